"""Stops of real programs: a manager signals a whole group, a second signal, no database."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.instance.stop import HURRY_SECONDS, INSIST_SECONDS
from tests.support.apps import created
from tests.support.databases import SERVERS, SQLITE
from tests.support.leases import leases
from tests.support.programs import children, environment, fill, gone, program, states
from tests.support.rows import Table
from tests.support.waiting import until

Start = Callable[..., subprocess.Popen[str]]
INSISTING_SECONDS = INSIST_SECONDS + 0.3
SERVICE = """
import os, subprocess, sys, time
from pathlib import Path
from msgworker import App

if os.environ.get("CRM_SLOW"):
    Path(f"importing-{os.getpid()}").touch()
    if os.getppid() == int(os.environ["CRM_SLOW"]):
        time.sleep(0.5)  # the parent of the others
    else:
        time.sleep(60)
app = App(os.environ["CRM_URL"], lease_seconds=20)

@app.handler("settle")
def settle(msg):
    Path(f"started-{msg.msg_id}").touch()
    time.sleep(msg.payload["sleep"])

@app.handler("reads")
def reads(msg):
    subprocess.run([sys.executable, "-c", "import sys; sys.stdin.read()"], check=True)
"""


@pytest.fixture
def app(folder: Path, database: Any) -> App:
    """Another client of the table that service.py works on."""
    (folder / "service.py").write_text(SERVICE)
    return created(App(database.url))


@pytest.fixture
def start(folder: Path, database: Any) -> Iterator[Start]:
    """Start the program on service.py; it and its children are gone at the end of the test."""
    begun: list[subprocess.Popen[str]] = []

    def start(*args: Any, **env: str) -> subprocess.Popen[str]:
        env = environment(CRM_URL=database.url, **env)
        begun.append(program(*args, cwd=folder, start_new_session=True, env=env))
        return begun[-1]

    yield start
    for child in begun:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=60)


def fill_ahead(app: App, count: int) -> set[int]:
    """Slow messages, of which more is claimed than runs since there are quick ones before them;
    returns their ids."""
    fill(app, 30, sleep=0)
    with app.engine.begin() as conn:
        return {app.send(conn, "settle", {"sleep": 60}, object_id=f"S-{n}") for n in range(count)}


def started(folder: Path) -> set[int]:
    """The messages whose handler has started."""
    return {int(path.name.partition("-")[2]) for path in folder.glob("started-*")}


def counted(app: App) -> set[tuple[int, int]]:
    """The tries and crashes of all messages, each pair once."""
    return set(Table(app).rows("error_try_times", "crash_times"))


def rain(pids: list[int], number: int, seconds: float) -> None:
    """A signal to each, again and again, as long as one of them lives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(gone(pid) for pid in pids):
        for pid in pids:
            if not gone(pid):
                os.kill(pid, number)
        time.sleep(0.01)


def ended(child: subprocess.Popen[str]) -> tuple[int, str]:
    _, log = child.communicate(timeout=60)
    return child.returncode, log


@pytest.mark.long
@pytest.mark.parametrize("order", ["parent first", "children first", "twice"])
def test_one_stop_of_a_whole_group_is_one_stop_by_whatever_way_it_comes(
    app: App, start: Start, folder: Path, order: str
) -> None:
    fill(app, 60, sleep=0.6)
    for _ in range(3):  # deploys: each would count a try
        before = len(started(folder))
        child = start("run", "service:app", "--processes", 2, "--threads", 2)
        until(lambda: len(started(folder)) > before + 1, "handlers run")  # noqa: B023
        group = [child.pid, *children(child)]
        assert len(group) == 3
        if order == "children first":
            group.reverse()
        for pid in group * (2 if order == "twice" else 1):
            os.kill(pid, signal.SIGTERM)
        code, log = ended(child)
        assert code == 0, log
        assert set(states(app)) <= {"new", "done"}
    assert counted(app) == {(0, 0)}
    assert len(leases(app)) == 0


@pytest.mark.long
@SQLITE
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", [1, 2])
def test_signals_that_rain_for_two_seconds_are_one_stop(
    app: App, start: Start, processes: int, number: int
) -> None:
    """Also the last of them, which meet a process that is just ending."""
    child = start("run", "service:app", "--processes", processes)
    until(lambda: len(leases(app)) == processes, "all instances live")
    time.sleep(0.3)
    rain([child.pid, *children(child)], number, INSIST_SECONDS * 0.9)
    code, log = ended(child)
    assert code == 0, log
    assert "stopped: done=0" in log
    assert len(leases(app)) == 0


@pytest.mark.long
@SQLITE
def test_a_drain_that_is_stopped_as_a_group_counts_no_try(
    app: App, start: Start, folder: Path
) -> None:
    fill(app, 40, sleep=0.6)
    child = start("drain", "service:app", "--processes", 2, "--threads", 2)
    until(lambda: len(started(folder)) >= 4, "handlers run")
    for pid in [*children(child), child.pid]:
        os.kill(pid, signal.SIGTERM)
    out, log = child.communicate(timeout=60)
    assert child.returncode == 1, "what is left is due"
    assert "failed=0 retried=0" in out, log
    assert set(states(app)) == {"new", "done"}
    assert counted(app) == {(0, 0)}


@pytest.mark.long
@SQLITE
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_within_two_seconds_is_the_same_stop(
    app: App, start: Start, folder: Path, number: int
) -> None:
    fill(app, 10, sleep=2.5)
    child = start("run", "service:app", "--threads", 2)
    until(lambda: len(started(folder)) == 2, "handlers run")
    for _ in range(2):
        child.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        child.send_signal(number)
    code, log = ended(child)
    assert code == 0, log
    assert states(app) == {"done": 2, "new": 8}
    assert counted(app) == {(0, 0)}


@pytest.mark.quick("mariadb-1")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_after_two_seconds_stops_at_once_and_gives_back_what_has_not_started(
    app: App, start: Start, folder: Path, processes: int
) -> None:
    slow = fill_ahead(app, 80)
    threads = 4 // processes
    child = start("run", "service:app", "--processes", processes, "--threads", threads)
    until(lambda: len(started(folder) & slow) == 4, "handlers run")
    if processes == 1:  # one of several gives them back to the others after two seconds
        until(lambda: states(app)["processing"] > 4, "more is claimed than runs")
    child.send_signal(signal.SIGTERM)
    time.sleep(INSISTING_SECONDS)
    assert child.poll() is None
    begun = time.monotonic()
    child.send_signal(signal.SIGTERM)
    code, log = ended(child)
    assert time.monotonic() - begun < HURRY_SECONDS
    assert code == (-signal.SIGTERM if processes == 1 else 128 + signal.SIGTERM), log
    rows = Table(app).rows("msg_id", "status", "error_try_times", "crash_times")
    assert {row[0] for row in rows if row[1] == 1} == started(folder) & slow
    assert {row[1:] for row in rows if row[0] not in started(folder)} == {(0, 0, 0)}
    assert len(leases(app)) == processes, "who recovers what ran"


@pytest.mark.quick("postgresql")
@SERVERS
def test_a_stop_at_once_does_not_wait_for_a_locked_row_and_gives_back_the_others(
    app: App, start: Start, folder: Path
) -> None:
    slow = fill_ahead(app, 6)
    child = start("run", "service:app", "--threads", 2)
    table = Table(app)
    until(
        lambda: table.statuses.count(1) > 3 and len(started(folder) & slow) == 2,
        "more is claimed than runs",
    )
    claimed = [row[0] for row in table.rows("msg_id", "status") if row[1] == 1]
    locked = next(i for i in claimed if i not in started(folder))
    t = app.tables
    with app.engine.begin() as conn:
        row = t.message.c[t.names["msg_id"]] == locked
        conn.execute(sa.select(t.message).where(row).with_for_update())
        child.send_signal(signal.SIGTERM)
        time.sleep(INSISTING_SECONDS)
        begun = time.monotonic()
        child.send_signal(signal.SIGTERM)
        code, log = ended(child)
        assert time.monotonic() - begun < HURRY_SECONDS + 2
    assert code == -signal.SIGTERM, log
    rows = table.rows("msg_id", "status", "error_try_times")
    assert {row[0] for row in rows if row[1] == 1} == (started(folder) & slow) | {locked}
    assert {row[1:] for row in rows if row[0] in slow and row[1] != 1} == {(0, 0)}


@pytest.mark.long
@SQLITE
def test_a_stop_at_once_ends_within_seconds_while_the_database_does_not_answer(
    app: App, start: Start, folder: Path
) -> None:
    slow = fill_ahead(app, 6)
    child = start("run", "service:app", "--threads", 2)
    until(lambda: len(started(folder) & slow) == 2, "handlers run")
    until(lambda: states(app)["processing"] > 2, "there is something to give back")
    with sqlite3.connect(app.engine.url.database) as conn:
        conn.execute("BEGIN IMMEDIATE")
        child.send_signal(signal.SIGTERM)
        time.sleep(INSISTING_SECONDS)
        assert child.poll() is None
        begun = time.monotonic()
        child.send_signal(signal.SIGTERM)
        code, log = ended(child)
        assert time.monotonic() - begun < HURRY_SECONDS + 2
    assert code == -signal.SIGTERM, log
    assert "the stop takes too long" in log


@pytest.mark.long
@SQLITE
def test_a_stop_while_children_import_the_app_ends_them_and_the_program_with_0(
    app: App, start: Start, folder: Path
) -> None:
    child = start("run", "service:app", "--processes", 2, CRM_SLOW=str(os.getpid()))
    until(lambda: len(list(folder.glob("importing-*"))) == 3, "all import")
    begun = time.monotonic()
    child.send_signal(signal.SIGTERM)
    code, log = ended(child)
    assert code == 0, log
    assert time.monotonic() - begun < 10


@pytest.mark.long
@SQLITE
@pytest.mark.parametrize(
    ("command", "number", "exit_code"),
    [("run", signal.SIGTERM, 0), ("run", signal.SIGINT, 0), ("drain", signal.SIGTERM, 1)],
)
def test_a_group_that_is_stopped_while_children_import_the_app_ends_in_order(
    app: App, start: Start, folder: Path, command: str, number: int, exit_code: int
) -> None:
    """A drain leaves something that is due."""
    fill(app, 3, sleep=60)
    child = start(command, "service:app", "--processes", 2, CRM_SLOW=str(os.getpid()))
    until(lambda: len(list(folder.glob("importing-*"))) == 3, "all import")
    for pid in [*children(child), child.pid]:
        os.kill(pid, number)
    code, log = ended(child)
    assert code == exit_code, log
    assert states(app) == {"new": 3}


@pytest.mark.long
@SQLITE
def test_what_handlers_start_does_not_read_the_words_of_the_parent(
    app: App, start: Start, folder: Path
) -> None:
    with app.engine.begin() as conn:
        app.send(conn, "reads")
    child = start("drain", "service:app", "--processes", 2, "--linger", 0)
    assert ended(child)[0] == 0
    assert states(app) == {"done": 1}


@pytest.mark.long
@SQLITE
def test_insisting_once_more_ends_the_program_where_it_stands(
    app: App, start: Start, folder: Path
) -> None:
    slow = fill_ahead(app, 80)
    child = start("run", "service:app", "--processes", 2, "--threads", 2)
    until(lambda: len(started(folder) & slow) == 4, "handlers run")
    until(lambda: states(app)["processing"] > 4, "there is something to give back")
    pids = children(child)
    with sqlite3.connect(app.engine.url.database) as conn:
        conn.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            child.send_signal(signal.SIGTERM)
            time.sleep(INSISTING_SECONDS)
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert ended(child)[0] == -signal.SIGTERM
    until(lambda: all(gone(pid) for pid in pids), "none is left")
