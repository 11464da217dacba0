"""A real Chromium, driven by playwright; see tests/tools.py for where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests import tools


@contextmanager
def opened() -> Iterator[Any]:
    """A browser of playwright; skips the test if there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = tools.or_skip("chromium", tools.chromium)
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def axe() -> str:
    """The program of axe-core; skips the test if it cannot be had."""
    return tools.or_skip("axe-core", tools.axe)
