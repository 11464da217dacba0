"""`run` and `drain` as real programs: signals, children, what becomes of the rows."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from msgworker import App
from msgworker.cli import main, processes
from msgworker.cli.logs import StatusLine
from msgworker.cli.options import Call
from msgworker.cli.processes import Fleet, ending, total
from msgworker.cli.work import OF_PARENT, child_arguments
from msgworker.config import SETTINGS, load
from msgworker.metrics.counting import Snapshot, past, summed
from msgworker.queries.remaining import Left, Waits
from tests.support.leases import leases
from tests.support.programs import Program, children, environment, fill, gone, states
from tests.support.waiting import until


@pytest.mark.quick("15-1")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_ends_in_order_at_a_signal(
    app: App, start: Callable[..., Program], processes: int, number: signal.Signals
) -> None:
    fill(app, 300, sleep=0.05)
    child = start("run", "crm:app", "--processes", processes, "--threads", 2)
    until(lambda: len(leases(app)) == processes, "all instances live")
    until(lambda: states(app).get("done", 0) > 5, "some are done")
    child.send_signal(number)
    _, log = child.communicate(timeout=60)
    assert child.returncode == 0, log
    found = states(app)
    assert set(found) <= {"new", "done"}, "no row is left at 1, no try is counted"
    assert sum(found.values()) == 300
    assert len(leases(app)) == 0


COUNTS = """#!{}
import os, sys
os.write(int(sys.argv[-1]), b'{{"metrics": [["msgworker_looks_total", [], 100.0]]}}\\n')
"""


def test_no_counter_falls_while_a_process_that_has_ended_is_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def looks() -> Any:
        return summed(fleet.metrics()).get(("msgworker_looks_total", ()), 0.0)

    def reaping(snapshot: Snapshot) -> Snapshot:
        seen.append(looks())
        return past(snapshot)

    child = tmp_path / "child"
    child.write_text(COUNTS.format(sys.executable))
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setattr(processes, "past", reaping)
    fleet = Fleet([], 1, progress=StatusLine(quiet=True))
    fleet.drain()
    assert (seen, looks()) == ([100.0], 100.0)


LEFT_UNDONE = """#!{}
import json, os, sys
names = ("done", "failed", "retried", "released", "refused", "undone")
report = dict.fromkeys((*names, "database_lost", "stopped"), 0) | {{"done": 2, "undone": 1}}
os.write(int(sys.argv[-1]), json.dumps({{"report": report}}).encode() + b"\\n")
sys.exit(1)
"""


def test_what_one_process_has_left_undone_is_judged_when_all_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    child.write_text(LEFT_UNDONE.format(sys.executable))
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    report, code = Fleet([], 1, progress=StatusLine(quiet=True)).drain()
    assert (report.undone, code) == (1, 0)
    assert (report.exit_code, report.leaving(Left()).exit_code) == (1, 0)
    assert report.leaving(Left(total=1, by={Waits.DUE: 1})).exit_code == 1


def test_a_process_that_dies_again_and_again_is_started_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    child, starts = tmp_path / "child", tmp_path / "starts"
    child.write_text(
        f"#!/bin/sh\necho >> {starts}\n[ $(wc -l < {starts}) = 4 ] && exit 2\nexit 9\n"
    )
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    fast = SimpleNamespace(monotonic=lambda: 10 * time.monotonic())
    monkeypatch.setattr(processes, "time", fast)
    assert Fleet([], 1, progress=StatusLine(quiet=True)).run() == 2
    assert re.findall(r"another one starts in ([0-9.]+) s", caplog.text) == ["1.0", "2.0", "4.0"]


@pytest.mark.long
def test_second_signal_stops_at_once(app: App, start: Callable[..., Program]) -> None:
    fill(app, 4, sleep=60)
    child = start("run", "crm:app", "--processes", 2, "--threads", 4)
    assert child.stderr is not None
    for _ in range(4):  # all run, in one process or in both
        assert any("settled" in line for line in child.stderr)
    pids = children(child)
    child.send_signal(signal.SIGTERM)
    assert any("stopping" in line for line in child.stderr)
    assert states(app) == {"processing": 4}
    until(lambda: child.send_signal(signal.SIGTERM) or child.poll() is not None, "it ends")
    # The last of our signals may meet the parent when its children are gone already.
    assert child.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert all(gone(pid) for pid in pids)


@pytest.mark.long
def test_children_stop_in_order_when_the_parent_is_killed(
    app: App, start: Callable[..., Program]
) -> None:
    fill(app, 300, sleep=0.05)
    child = start("run", "crm:app", "--processes", 2)
    until(lambda: len(leases(app)) == 2, "all instances live")
    pids = until(lambda: children(child), "children")
    child.kill()
    until(lambda: all(gone(pid) for pid in pids), "the children have ended")
    assert set(states(app)) <= {"new", "done"}
    assert len(leases(app)) == 0


NOT_HANDED_ON = {
    *("quiet", "config_file", "debug", "app_ref", "report_fd", "report_metrics"),  # in other ways
    *("as_json", "job"),  # the parent prints the report; a job is a scope
}


@pytest.mark.parametrize("number", ["7", "0"])
@pytest.mark.parametrize("command", ["run", "drain"])
def test_children_get_every_flag_of_the_parent(folder: Path, command: str, number: str) -> None:
    """What is given to the parent by a flag, and could be forgotten for its children."""
    found = main.get_command(click.Context(main), command)  # type: ignore[attr-defined]
    flags = [one.name for one in found.params if one.name in SETTINGS]
    others = {one.name for one in found.params} - set(flags)
    assert others <= NOT_HANDED_ON, "hand it on in child_arguments, and name it here"
    odd = {"topics": ("a", "b"), "scope": "instance:a", "locks": "redis://h", "log_level": "debug"}
    odd |= {"log_format": "json", "metrics_file": "m.prom", "metrics_host": "::1"}
    chosen = {name: odd.get(name, number if SETTINGS[name].least == 0 else "7") for name in flags}
    conf = load(chosen)
    call = Call(click.Context(found), {"app_ref": "crm:app", **chosen})
    arguments = child_arguments(command, call, quiet=False)
    child = found.make_context(command, arguments[2:])
    got = load({name: v if v != () else None for name, v in child.params.items() if name in flags})
    ours = {name for name in flags if name not in OF_PARENT}
    assert {name: got[name] for name in ours} == {name: conf[name] for name in ours}
    assert {name for name in ours if not conf.given(name)} == set()
    assert (got["processes"], got.given("metrics_host")) == (1, False)
    call.file = "other.toml"
    assert "--config other.toml" in " ".join(child_arguments(command, call, quiet=False))


@pytest.mark.long
def test_run_replaces_a_process_that_died(app: App, start: Callable[..., Program]) -> None:
    child = start("run", "crm:app", "--processes", 2)
    pids = until(lambda: len(children(child)) == 2 and children(child), "two children")
    until(lambda: len(leases(app)) == 2, "all instances live")
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: len(set(children(child)) - set(pids)) == 1, "another one is started")
    fill(app, 300, sleep=0.05)
    until(lambda: states(app).get("done", 0) > 5, "work goes on")
    child.terminate()
    _, log = child.communicate(timeout=60)
    assert child.returncode == 0
    assert set(states(app)) <= {"new", "done"}, "all processes have ended in order"
    assert f"process {pids[0]} was killed by SIGKILL" in log


@pytest.mark.long
@pytest.mark.parametrize("command", ["run", "drain"])
def test_handler_that_hangs_ends_the_program(
    app: App, start: Callable[..., Program], command: str
) -> None:
    with app.engine.begin() as conn:
        app.send(conn, "hang", object_id="X")
    child = start(command, "crm:app", "--quiet")
    out, log = child.communicate(timeout=60)
    assert child.returncode == 75
    assert out == ""
    assert re.search(r"message 1: its handler has run for \S+ s, longer than its timeout;", log)


@pytest.mark.long
def test_run_ends_when_its_time_is_over(app: App, start: Callable[..., Program]) -> None:
    fill(app, 10)
    child = start("run", "crm:app", "--processes", 2, "--time-limit", "4s", "--quiet")
    out, log = child.communicate(timeout=60)
    assert (child.returncode, out, log) == (0, "", "")
    assert states(app) == {"done": 10}


REFUSES_BAD = (
    "CREATE TRIGGER no BEFORE UPDATE ON msgworker_message WHEN NEW.object_id = 'bad'"
    " AND NEW.status = 1 BEGIN SELECT RAISE(ABORT, 'not this one'); END"
)


@pytest.mark.quick("2")
@pytest.mark.parametrize("processes", [1, 2])
def test_drain_sums_what_was_done(app: App, start: Callable[..., Program], processes: int) -> None:
    fill(app, 200)
    fill(app, 3, reject="no")
    with app.engine.begin() as conn:
        app.send(conn, "settle", object_id="bad")
        conn.exec_driver_sql(REFUSES_BAD)
    child = start("drain", "crm:app", "--processes", processes, "--linger", 0, "--json")
    out, _ = child.communicate(timeout=60)
    report = json.loads(out)
    assert child.returncode == report["exit_code"] == 1
    keys = {"done", "failed", "retried", "released", "left", "seconds", "skipped"}
    keys |= {"waiting", "left_by", "next_seconds", "lease_seconds", "stopped", "refused", "undone"}
    keys.add("dead_awaited")
    assert set(report) == keys | {"database_lost", "exit_code"}
    assert (report["done"], report["failed"], report["left"]) == (200, 3, 1)
    assert report["refused"] == 1


@pytest.mark.long
def test_drain_prints_one_line_for_people(app: App, start: Callable[..., Program]) -> None:
    fill(app, 5)
    child = start("drain", "crm:app", "--linger", "0")
    out, log = child.communicate(timeout=60)
    assert out.startswith("done=5 failed=0 retried=0 released=0 left=0 in ")
    assert out.count("\n") == 1
    assert child.returncode == 0
    assert "settled C-1" in log
    assert "msg_id=2 object_id=C-1 topic=settle try=1" in log


@pytest.mark.long
def test_drain_tells_of_a_process_that_died(app: App, start: Callable[..., Program]) -> None:
    fill(app, 1, exit=True)
    child = start("drain", "crm:app", "--processes", 2, "--linger", 0)
    _, log = child.communicate(timeout=60)
    assert child.returncode == 9
    assert "ended with 9" in log


@pytest.mark.long
def test_only_the_topics_that_were_asked_for(app: App, start: Callable[..., Program]) -> None:
    with app.engine.begin() as conn:
        app.send(conn, "other", object_id="X")
    fill(app, 2)
    child = start("drain", "crm:app", "--topic", "settle", "--linger", 0, "--processes", 2)
    child.communicate(timeout=60)
    assert states(app) == {"new": 1, "done": 2}


@pytest.mark.long
def test_log_as_json_is_one_object_per_line(app: App, start: Callable[..., Program]) -> None:
    fill(app, 2, reject="two\nlines \x1b[2J")
    child = start("drain", "crm:app", "--linger", 0, "--log-format", "json")
    _, log = child.communicate(timeout=60)
    events = [json.loads(line) for line in log.splitlines()]
    dead = [e for e in events if e.get("msg_id") == 1 and e["level"] == "warning"]
    assert {"instance", "object_id", "topic", "try"} <= set(dead[0])
    assert "\x1b" not in log


def in_a_terminal(folder: Path, *args: str, answer: str = "", **env: str) -> tuple[int, str]:
    """Run the program with all three streams on a terminal; its exit code and the screen."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "msgworker", *args],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", COLUMNS="80", **env),
        start_new_session=True,
    )
    os.close(theirs)
    if answer:
        os.write(ours, answer.encode())
    screen = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        screen += part
    os.close(ours)
    return child.wait(timeout=60), screen.decode()


@pytest.mark.long
def test_terminal_gets_colours_and_a_status_line(app: App, folder: Path) -> None:
    fill(app, 200, sleep=0.05)
    code, screen = in_a_terminal(
        folder, "drain", "crm:app", "--processes", "2", "--linger", "0", "--log-level", "warning"
    )
    assert code == 0
    assert "processes 2  done " in screen
    assert "\r\x1b[2K" in screen
    assert "\x1b[32mdone" in in_a_terminal(folder, "list", "--app", "crm:app")[1]
    plain = in_a_terminal(folder, "list", "--app", "crm:app", NO_COLOR="1")[1]
    assert "\x1b" not in plain


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "done", "exit_code", "said"),
    [
        ("y\n", 3, 0, "rerun 3"),
        ("n\n", 0, 1, "msgworker: nothing changed"),
        ("\n", 0, 1, "msgworker: nothing changed"),
        ("\x04", 0, 130, "msgworker: interrupted"),  # the end of the input
    ],
)
def test_terminal_is_asked_before_many_are_changed(
    app: App, folder: Path, answer: str, done: int, exit_code: int, said: str
) -> None:
    fill(app, 3)
    with app.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE msgworker_message SET status = -1, error_try_times = 3")
    code, screen = in_a_terminal(folder, "rerun", "--dead", "--app", "crm:app", answer=answer)
    assert "Set 3 messages of msgworker_message to new? [y/N]" in screen
    assert states(app).get("new", 0) == done
    assert code == exit_code
    assert screen.rstrip().endswith(said)


def test_endings_in_words() -> None:
    assert ending(-signal.SIGKILL) == "was killed by SIGKILL"
    assert ending(-63).startswith("was killed by")
    assert "msgworker itself" in ending(70)


def test_total_of_no_report_is_nothing() -> None:
    assert total([], 1.0).done == 0


def holders(app: App) -> dict[str, int]:
    """How many messages each instance has claimed."""
    with app.engine.connect() as conn:
        found = conn.exec_driver_sql(
            "SELECT claimed_by, count(*) FROM msgworker_message WHERE status = 1 GROUP BY 1"
        )
        return {row[0]: row[1] for row in found}


@pytest.mark.long
def test_slow_messages_are_spread_over_the_processes(app: App, start) -> None:
    fill(app, 12, sleep=600)
    run = ("run", "crm:app", "--threads", "2", "--quiet")
    start(*run)
    until(lambda: holders(app), "the first has claimed")
    for _ in range(2):
        start(*run)
    until(lambda: len(holders(app)) == 3, "each has claimed")
    until(lambda: list(holders(app).values()) == [2, 2, 2], "each has as many as threads")
    assert states(app) == {"processing": 6, "new": 6}


@pytest.mark.long
def test_messages_that_turn_out_slow_are_given_to_others(app: App, start) -> None:
    fill(app, 34)
    fill(app, 12, sleep=600)
    run = ("run", "crm:app", "--threads", "2", "--quiet")
    start(*run)
    until(lambda: sum(holders(app).values()) > 4, "they are claimed as if they were quick")
    start(*run)
    until(lambda: list(holders(app).values()) == [2, 2], "the second has its share")
    with app.engine.connect() as conn:
        tries = "SELECT sum(error_try_times) FROM msgworker_message"
        assert conn.exec_driver_sql(tries).scalar() == 0
