"""A folder of its own for each test; the program in this process, and as it really is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from msgworker import App
from msgworker.cli import main
from tests.ready import ReadyFile
from tests.support.programs import Cli, Program, program

CRM = """
import os, time
from msgworker import App, Reject

app = App(os.environ.get("CRM_URL", "sqlite:///crm.db"), lease_seconds=9)
other = object()

@app.handler("settle")
def settle(msg, ctx):
    ctx.log.info("settled %s", msg.object_id)
    if (msg.payload or {}).get("sleep"):
        time.sleep(msg.payload["sleep"])
    if (msg.payload or {}).get("exit"):
        os._exit(9)
    if (msg.payload or {}).get("reject"):
        raise Reject(msg.payload["reject"])

@app.handler("hang", timeout=0.1, timeout_action="restart")
def hang(msg):
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory with crm.py in it, and no MSGWORKER_ variables but those that say
    where the servers of the tests are."""
    for name in list(os.environ):
        if name.startswith("MSGWORKER_") and not name.startswith("MSGWORKER_TEST_"):
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "crm", raising=False)  # another test's, which has no App
    before_path, before_modules = list(sys.path), set(sys.modules)
    (tmp_path / "crm.py").write_text(CRM)
    yield tmp_path
    sys.path[:] = before_path
    for name in set(sys.modules) - before_modules:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def cli(folder: Path) -> Cli:
    """Call the program in this process; never raises, gives exit_code, stdout and stderr."""
    return lambda *args, **options: CliRunner().invoke(main, [str(a) for a in args], **options)


@pytest.fixture
def crm(cli: Cli, folder: Path, scratch: Path) -> Cli:
    """The program, with the tables of crm.py made."""
    ReadyFile(scratch).copy_to(folder / "crm.db")
    return cli


@pytest.fixture
def app(crm: Cli, folder: Path) -> App:
    """Another client of the table that crm.py works on."""
    return App(f"sqlite:///{folder / 'crm.db'}")


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Program]]:
    """Start the program; it and its children are gone at the end of the test."""
    begun: list[Program] = []

    def start(*args: Any, **options: Any) -> Program:
        begun.append(program(*args, cwd=folder, start_new_session=True, **options))
        return begun[-1]

    yield start
    for child in begun:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=60)
