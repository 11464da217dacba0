"""What the tests of this tree need beside what tests/plugin.py has for both."""

from __future__ import annotations

import contextlib

import pytest

from proof.model import need_spin
from tests.servers import CannotHave


def pytest_configure(config: pytest.Config) -> None:
    """Where the tests run on several processes (xdist), one of them installs Spin for all."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        with contextlib.suppress(CannotHave):  # the tests of the model say why they are skipped
            need_spin()
