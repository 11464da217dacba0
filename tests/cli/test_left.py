"""What `drain` leaves and says of it, in one process and in several; `release --nobody`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from msgworker import App, Report, Worker
from msgworker.cli.processes import Fleet
from msgworker.instance import counting
from msgworker.queries.remaining import Left
from tests.support.programs import AT, Cli, fill, sql

FAILS = """
from tenacity.wait import wait_fixed

@app.handler("fails", wait=wait_fixed(3600))
def fails(msg):
    raise ConnectionError("the neighbour is away")
"""
NOBODY = "UPDATE msgworker_message SET status = 1, created_at = '2020-01-01 00:00:00.000'"


def leave(app: App, folder: Path) -> None:
    """30 rows at 1 without an owner hold 150 messages back; one is free."""
    fill(app, 30)
    sql(folder, NOBODY)
    for _ in range(5):
        fill(app, 30)
    with app.engine.begin() as conn:
        app.send(conn, "settle", object_id="free")


@pytest.mark.quick("1")
@pytest.mark.parametrize("processes", [1, 2])
def test_work_that_nobody_does_is_said_given_back_and_done(
    app: App, cli: Cli, folder: Path, processes: int
) -> None:
    leave(app, folder)
    drain = ("drain", "crm:app", "--processes", processes, "--linger", 0)
    done = cli(*drain)
    left = "done=1 failed=0 retried=0 released=0 left=180 (held by nobody: 180) in "
    assert (done.exit_code, done.stdout.startswith(left)) == (1, True), done.stdout
    lines = done.stderr.splitlines()
    said = [line for line in lines if "180 messages left that no instance handles" in line]
    assert len(said) == 1, done.stderr
    assert "msgworker release crm:app --nobody --older-than 1h" in said[0]

    assert "30 messages at 1 without an owner" in cli("doctor", *AT).stdout
    assert "release crm:app --nobody" in cli("explain", 1, *AT).stdout
    assert cli("release", "--nobody", "--older-than", "1h", *AT).exit_code == 2  # it asks
    given = cli("release", "--nobody", "--older-than", "1h", "--yes", *AT)
    assert (given.exit_code, given.stdout) == (0, "released 30\n"), given.stderr

    done = cli(*drain, "--json")
    report = json.loads(done.stdout)
    assert (report["done"], report["left"], report["left_by"]) == (180, 0, {})
    assert (done.exit_code, report["exit_code"]) == (0, 0), done.stderr


@pytest.mark.quick("1")
@pytest.mark.parametrize("processes", [1, 2])
def test_messages_of_another_instance_type_are_left_to_it(
    app: App, cli: Cli, processes: int
) -> None:
    fill(app, 3)
    scope = ("--scope", "instance:asA", "--processes", processes)
    report = json.loads(cli("drain", "crm:app", *scope, "--linger", 0, "--json").stdout)
    assert (report["done"], report["left_by"], report["exit_code"]) == (0, {"other slices": 3}, 0)


@pytest.mark.quick("1")
@pytest.mark.parametrize("processes", [1, 2])
def test_messages_that_wait_for_their_retry_end_a_drain_with_6(
    app: App, cli: Cli, folder: Path, processes: int
) -> None:
    with (folder / "crm.py").open("a") as file:
        file.write(FAILS)
    fill(app, 3)
    with app.engine.begin() as conn:
        app.send(conn, "fails", object_id="X")
    done = cli("drain", "crm:app", "--processes", processes, "--linger", 0, "--json")
    report = json.loads(done.stdout)
    assert (report["done"], report["retried"], report["left"], report["waiting"]) == (3, 1, 1, 1)
    assert (report["left_by"], report["exit_code"]) == ({"retry": 1}, 6)
    assert 3000 < report["next_seconds"] <= 3600
    assert done.exit_code == 6
    assert done.stderr.count("1 message left waiting for a retry") == 1, done.stderr


def test_a_retry_within_the_retry_linger_is_waited_for(app: App, cli: Cli, folder: Path) -> None:
    soon = FAILS.replace("3600", "0.2")
    (folder / "crm.py").write_text((folder / "crm.py").read_text() + soon)
    with app.engine.begin() as conn:
        app.send(conn, "fails", object_id="X")
    done = cli("drain", "crm:app", "--linger", 0, "--retry-linger", "30s")
    assert done.stdout.startswith("done=0 failed=1 retried=2 released=0 left=0 in ")
    assert done.exit_code == 1


def test_a_drain_that_recovers_a_message_after_its_last_try_ends_with_1(
    app: App, cli: Cli, folder: Path
) -> None:
    fill(app, 1)
    last = "SET status = 1, claimed_by = 'gone-1', error_try_times = 2"
    sql(folder, f"UPDATE msgworker_message {last}")
    done = cli("drain", "crm:app", "--linger", 0)
    assert done.stdout.startswith("done=0 failed=1 retried=0 released=0 left=0 in ")
    assert done.exit_code == 1


def test_release_of_nobody_s_asks_even_for_one(crm: Cli, folder: Path) -> None:
    crm("send", "settle", *AT)
    sql(folder, NOBODY)
    asked = crm("release", "--nobody", "--older-than", "1h", *AT)
    assert (asked.exit_code, asked.stdout) == (2, "")
    would = crm("release", "--nobody", "--older-than", "1h", "--dry-run", *AT)
    assert (would.exit_code, would.stdout.splitlines()[0]) == (0, "would release 1 message")
    assert sql(folder, "SELECT status FROM msgworker_message") == [(1,)]
    done = crm("release", "--nobody", "--any-age", "--yes", "--json", *AT)
    assert json.loads(done.stdout)["released"] == 1
    again = crm("release", "--nobody", "--any-age", "--json", *AT)
    assert (again.exit_code, "without an owner" in again.stderr) == (5, True)
    assert json.loads(again.stdout)["matched"] == 0


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "give the id of an instance, or --nobody"),
        (("inst-1", "--nobody"), "give the id of an instance, or --nobody"),
        (("--nobody", "--force"), "--force is for an instance"),
        (("inst-1", "--older-than", "1h"), "go with --nobody"),
        (("inst-1", "--any-age"), "go with --nobody"),
        (("--nobody",), "older_than is required, such as 1h"),
        (("--nobody", "--any-age", "--older-than", "1h"), "not both"),
        (("--nobody", "--older-than", "soon"), "--older-than must be a duration"),
    ],
)
def test_release_says_what_is_asked_wrongly(crm: Cli, args: tuple[Any, ...], text: str) -> None:
    done = crm("release", *args, *AT)
    assert (done.exit_code, done.stdout) == (2, "")
    assert text in done.stderr


def test_processes_that_were_stopped_do_not_wait_for_the_count_of_what_is_left(
    app: App, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(counting, "GIVE_UP_SECONDS", 0.2)
    monkeypatch.setattr(Fleet, "drain", lambda fleet: (Report(done=3, stopped=True), 0))
    monkeypatch.setattr(Worker, "left", lambda worker, **how: answered.wait(20) and Left())
    done = cli("drain", "crm:app", "--processes", 2, "--linger", 0)
    assert not answered.is_set()
    answered.set()
    assert (done.exit_code, "(database lost)" in done.stdout) == (3, True), done.output
