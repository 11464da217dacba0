"""Programs that some tests need beside the database servers: found, or installed as those are.

MSGWORKER_TEST_NEEDS names what must be there, with commas between, or is "all": a test that would
be skipped for want of it, or of a database, fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers import CannotHave, install

R = TypeVar("R")
VARIABLES = {
    "chromium": "MSGWORKER_TEST_CHROMIUM",
    "axe-core": "MSGWORKER_TEST_AXE",
    "prometheus": "MSGWORKER_TEST_PROMETHEUS",
}
"""The path of a program, of axe.min.js, or of the folder of prometheus and promtool."""
NEEDS = "MSGWORKER_TEST_NEEDS"
AXE_VERSION = "4.14.1"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def or_skip(name: str, have: Callable[[], R]) -> R:
    """What `have` returns; skips the test, loudly, if it cannot be had."""
    try:
        return have()
    except CannotHave as reason:
        pytest.skip(f"{name} is not there: {reason}")


def is_needed(name: str) -> bool:
    """Whether a test may not be skipped for want of it."""
    asked = os.environ.get(NEEDS, "").replace(",", " ").split()
    return name in asked or "all" in asked


@cache
def chromium() -> str:
    """The path of Chromium, or of Chrome; raises CannotHave."""
    given = os.environ.get(VARIABLES["chromium"])
    found = given or _found(*BROWSERS)
    if found is None:
        install("chromium")
        found = _found(*BROWSERS)
    if found is None:
        raise CannotHave(f"none of {', '.join(BROWSERS)} was found")
    return found


@cache
def prometheus() -> tuple[str, str]:
    """The paths of prometheus and promtool; raises CannotHave."""
    folder = os.environ.get(VARIABLES["prometheus"])
    if folder is None and _found("prometheus") is None:
        install("prometheus")
    found = [shutil.which(name, path=folder) for name in ("prometheus", "promtool")]
    if found[0] is None or found[1] is None:
        raise CannotHave("prometheus or promtool was not found")
    return found[0], found[1]


@cache
def axe() -> str:
    """The program of axe-core, which npm installs once for all processes; raises CannotHave."""
    given = os.environ.get(VARIABLES["axe-core"])
    if given:
        return Path(given).read_text()
    folder = Path(tempfile.gettempdir()) / f"msgworker-axe-core-{AXE_VERSION}"
    script = folder / "node_modules/axe-core/axe.min.js"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            _npm(folder, f"axe-core@{AXE_VERSION}")
    return _as_pinned(script.read_bytes()).decode()


def _as_pinned(program: bytes) -> bytes:
    found = hashlib.sha256(program).hexdigest()
    assert found == AXE_SHA256, f"axe-core {AXE_VERSION} is not the one that was pinned: {found}"
    return program


def _npm(folder: Path, package: str) -> None:
    if shutil.which("npm") is None:
        raise CannotHave("there is no npm to install it")
    command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(
        [*command, "--prefix", str(folder), package],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    if done.returncode:
        raise CannotHave(f"npm: {' / '.join(done.stderr.strip().splitlines()[-2:])}")


def _found(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)
