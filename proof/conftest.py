"""What the tests of this tree need beside what tests/plugin.py has for both."""

from __future__ import annotations

import contextlib

import pytest

from proof.model import need_spin
from tests.servers import CannotHave

COLLECTED = pytest.StashKey[list[str]]()
"""The ids of all tests that were collected, of which `-m` and `-k` leave some."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = [item.nodeid for item in items]


def pytest_configure(config: pytest.Config) -> None:
    """Where the tests run on several processes (xdist), one of them installs Spin for all."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        with contextlib.suppress(CannotHave):  # the tests of the model say why they are skipped
            need_spin()
