"""A real Chromium, where there is one: that of the system, driven by playwright."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
AXE = "MSGWORKER_TEST_AXE"
"""Names axe.min.js of the npm package axe-core; else npm downloads it."""


def program() -> str | None:
    """The path of Chromium."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def opened() -> Iterator[Any]:
    """A browser of playwright; skips the test if there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = program()
    if path is None:
        pytest.skip(f"none of {', '.join(NAMES)} is there")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@cache
def axe(folder: Path) -> str:
    """The program of axe-core; skips the test if it cannot be had."""
    given = os.environ.get(AXE)
    if given:
        return Path(given).read_text()
    if shutil.which("npm") is None:
        pytest.skip(f"axe-core is not there: set {AXE}, or install npm")
    command = ["npm", "install", "--silent", "--no-save", "--prefix", str(folder), "axe-core@4"]
    if subprocess.run(command, capture_output=True, timeout=120, check=False).returncode:
        pytest.skip("npm cannot install axe-core")
    return (folder / "node_modules/axe-core/axe.min.js").read_text()
