"""Standard streams that are closed or full keep no work from being done.

Tried as shells do it: `2>&-`, `>&-`, `<&-`, `> /dev/full`.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from msgworker import App
from tests.support.programs import Cli, environment
from tests.support.rows import send
from tests.support.waiting import until

PYTHON = f"{sys.executable} -m msgworker"
AT = "--app crm:app"
CLOSES = """
import logging, sys
from crm import *

@app.handler("close")
def closes(msg):
    sys.stdout.close()
    sys.stderr.close()
    logging.shutdown()
"""
PRINTS = """
from crm import *

@app.handler("print")
def prints(msg):
    print("x" * 100_000, flush=True)
"""


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of a shell in which `msgworker` is the real program."""
    return subprocess.run(
        ["sh", "-c", f'msgworker() {{ {PYTHON} "$@"; }}; {line}'],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )


def statuses(folder: Path) -> list[int]:
    with sqlite3.connect(folder / "crm.db") as conn:
        rows = conn.execute("select status from msgworker_message order by msg_id").fetchall()
    conn.close()
    return [row[0] for row in rows]


CLOSED = ["2>&-", ">&-", "<&-", "<&- >&- 2>&-"]
FULL = ["> /dev/full", "2> /dev/full", "> /dev/full 2>&1"]


@pytest.mark.quick("^<&- >")
@pytest.mark.parametrize("streams", CLOSED + FULL)
def test_a_drain_does_its_work_whatever_its_streams_are(crm: Cli, folder: Path, streams: str):
    for _ in range(3):
        assert crm("send", "settle", "--app", "crm:app").exit_code == 0
    done = shell(f"msgworker drain crm:app {streams}", folder)
    assert (done.returncode, statuses(folder)) == (0, [2, 2, 2]), done


@pytest.mark.long
def test_a_drain_ends_with_the_code_of_its_work_if_its_report_is_lost(crm: Cli, folder: Path):
    crm("send", "settle", "--payload", '{"reject": "no"}', "--app", "crm:app")
    done = shell("msgworker drain crm:app > /dev/full", folder)
    assert (done.returncode, statuses(folder)) == (1, [-1])
    assert done.stderr.count("stdout cannot be written: No space left on device") == 1


@pytest.mark.long
@pytest.mark.parametrize("streams", ["2>&-", "2> /dev/full", "<&- >&- 2>&-"])
def test_several_processes_do_their_work_whatever_their_streams_are(
    crm: Cli, folder: Path, streams: str
):
    for _ in range(3):
        crm("send", "settle", "--app", "crm:app")
    done = shell(f"msgworker drain crm:app --processes 2 {streams}", folder)
    assert (done.returncode, statuses(folder)) == (0, [2, 2, 2]), done
    if ">&- 2" not in streams:
        assert done.stdout.count("stderr cannot be written") == 1
        assert "done=3" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("streams", ["2>&-", "2> /dev/full"])
def test_a_run_says_once_on_stdout_that_its_log_is_lost(crm: Cli, folder: Path, streams: str):
    crm("send", "settle", "--app", "crm:app")
    running = subprocess.Popen(
        ["sh", "-c", f"exec {PYTHON} run crm:app {streams}"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    until(lambda: statuses(folder) == [2], "the message is done")
    running.terminate()
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert said.startswith("msgworker: stderr cannot be written: ")
    assert said.count("\n") == 1


@pytest.mark.long
def test_json_on_stdout_stays_json_where_the_log_is_lost(crm: Cli, folder: Path):
    crm("send", "settle", "--app", "crm:app")
    done = shell("msgworker drain crm:app --json 2>&-", folder)
    assert (done.returncode, done.stdout[:1]) == (0, "{")
    assert "cannot be written" not in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("streams", [">&-", "> /dev/full"])
def test_a_handler_that_prints_does_not_fail_for_it(crm: Cli, folder: Path, streams: str):
    (folder / "prints.py").write_text(PRINTS)
    crm("send", "print", "--app", "crm:app")
    done = shell(f"msgworker drain prints:app {streams}", folder)
    assert (done.returncode, statuses(folder)) == (0, [2]), done


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "streams"),
    [
        ("list", ">&-"),
        ("doctor", ">&-"),
        ("show 1", "> /dev/full"),
        ("status --json", "> /dev/full"),
    ],
)
def test_a_command_whose_output_is_lost_says_so_and_ends_with_74(
    crm: Cli, folder: Path, command: str, streams: str
):
    crm("send", "settle", "--app", "crm:app")
    done = shell(f"msgworker {command} {AT} {streams}", folder)
    assert done.returncode == 74, done
    assert done.stderr.count("stdout cannot be written") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("streams", ["2>&-", "2> /dev/full", "<&-"])
def test_a_look_needs_nothing_but_stdout(crm: Cli, folder: Path, streams: str):
    crm("send", "settle", "--app", "crm:app")
    done = shell(f"msgworker list {AT} {streams}", folder)
    assert (done.returncode, "settle" in done.stdout) == (0, True), done
    assert "cannot be written" not in done.stdout


def test_a_write_whose_output_is_lost_is_done_and_ends_with_74(crm: Cli, folder: Path):
    done = shell(f"msgworker send settle {AT} > /dev/full", folder)
    assert (done.returncode, statuses(folder)) == (74, [0]), done


@pytest.mark.long
def test_a_question_that_nobody_can_answer_is_refused_where_stdin_is_closed(crm: Cli, folder: Path):
    for _ in range(12):
        crm("send", "settle", "--app", "crm:app")
    done = shell(f"msgworker discard --status new --reason x {AT} <&-", folder)
    assert (done.returncode, "add --yes" in done.stderr) == (2, True), done


def test_what_asks_for_help_and_does_not_read_it_ends_quietly(folder: Path):
    done = shell("{ msgworker --help; echo $? >&2; } | true; sleep 0.1", folder)
    assert done.stderr in ("0\n", ""), done


@pytest.mark.long
def test_a_handler_that_closes_the_streams_and_the_log_costs_nothing(crm: Cli, folder: Path):
    """Reliability 62."""
    (folder / "closes.py").write_text(CLOSES)
    for _ in range(3):
        crm("send", "close", "--app", "crm:app")
    done = shell("msgworker drain closes:app", folder)
    assert (done.returncode, statuses(folder)) == (0, [2, 2, 2]), done
    assert "done=3" in done.stdout
    assert "stopped: done=3" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_is_printed_as_it_is_to_be_run_or_not_at_all(crm: Cli, folder: Path) -> None:
    said = (
        "holds '\\u5ba2', which cannot be printed here as it is (ascii): set PYTHONIOENCODING=utf-8"
    )
    (folder / "x.db").touch()
    for rest in (f"doctor --sql --url sqlite:///{folder}/x.db", "ddl --dialect sqlite"):
        call = f"{PYTHON} {rest} --table \u5ba2"
        done = shell(f"PYTHONIOENCODING=ascii {call}", folder)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert said in done.stderr
        assert 'TABLE "\u5ba2" (' in shell(f"PYTHONIOENCODING=utf-8 {call}", folder).stdout


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_what_the_encoding_of_stdout_has_not_is_written_as_an_escape(
    crm: Cli, app: App, folder: Path, encoding: str
):
    send(app, "\u5ba2\u6237-1 \u00e9", topic="settle")
    call = f"PYTHONIOENCODING={encoding} {PYTHON} list crm:app"
    assert shell(f"{call} > listed", folder).returncode == 0
    assert "\\u5ba2\\u6237-1 \u00e9" in (folder / "listed").read_text(encoding)
    said = json.loads(shell(f"{call} --json", folder).stdout)
    assert said["messages"][0]["object_id"] == "\u5ba2\u6237-1 \u00e9"
