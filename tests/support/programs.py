"""The program as it really runs, and what a test sees of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import Result

from msgworker import App

Program = subprocess.Popen[str]


def fill(app: App, count: int, **payload: Any) -> None:
    with app.engine.begin() as conn:
        app.send_many(conn, "settle", [(payload, f"C-{n}") for n in range(count)])


def states(app: App) -> dict[str, int]:
    found: dict[str, int] = {}
    for count in app.ops.counts():
        found[count.status.value] = found.get(count.status.value, 0) + count.count
    return found


def children(parent: Program) -> list[int]:
    path = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    if not path.exists():
        pytest.skip("no /proc here")
    return [int(pid) for pid in path.read_text().split()]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


AT = ("--app", "crm:app")
LOOKS = (
    *("status", "list", "show 1", "explain 1", "failures", "pause", "limits", "schedules"),
    "jobs",
    *("audit", "lanes", "instances", "locks", "partitions", "doctor", "config"),
)
"""Every command that looks, as it is called for message 1 without a change; all take --json."""
WRITES = {
    *("demo", "init-db", "db", "ddl", "run", "drain", "web", "send", "rerun", "discard", "cancel"),
    *("acknowledge", "edit", "release", "purge", "resume", "deal"),
}
"""The other commands."""


def sql(folder: Path, statement: str) -> list[Any]:
    engine = sa.create_engine(f"sqlite:///{folder / 'crm.db'}")
    with engine.begin() as conn:
        found = conn.exec_driver_sql(statement)
        rows = list(found) if found.returns_rows else []
    engine.dispose()
    return rows


def dead(crm: Cli, folder: Path, count: int, topic: str = "settle") -> list[int]:
    """Make so many dead messages; their ids."""
    app = App(f"sqlite:///{folder / 'crm.db'}")
    with app.engine.begin() as conn:
        ids = [int(app.send(conn, topic, {"n": 1}, object_id=f"C-{n}")) for n in range(count)]
    app.engine.dispose()
    listed = ", ".join(str(i) for i in ids)
    sql(
        folder,
        "UPDATE msgworker_message SET status = -1, error_try_times = 3,"
        f" last_error = 'ValueError: x' WHERE msg_id IN ({listed})",
    )
    return ids


ROOT = Path(__file__).resolve().parents[2]
Cli = Callable[..., Result]


def environment(**more: str) -> dict[str, str]:
    """The environment of a child program: ours, with the package found."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("MSGWORKER_")}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def python(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script or a module by this Python, to its end."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, **{"timeout": 120, "check": False} | options
    )


def program(*args: Any, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Start the real program."""
    command = [sys.executable, "-m", "msgworker", *(str(a) for a in args)]
    options = {"env": environment(), "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True, **options)


def files(folder: Path, own: str = "", pyproject: str = "") -> Path:
    """Configuration files of this text in a folder."""
    if own:
        (folder / "msgworker.toml").write_text(own)
    if pyproject:
        (folder / "pyproject.toml").write_text(f"[tool.msgworker]\n{pyproject}")
    return folder
