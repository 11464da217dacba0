"""`msgworker jobs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msgworker import App, MessageTable
from msgworker.cli import jobs
from tests.support.apps import created
from tests.support.leases import registered
from tests.support.programs import AT, Cli, sql


def opened(folder: Path, count: int = 3) -> int:
    app = created(App(f"sqlite:///{folder / 'crm.db'}"))
    with (
        app.job("month end", on_complete="report", opened_by="anna") as job,
        app.engine.begin() as c,
    ):
        app.send_many(c, "settle", [({}, f"C-{n}") for n in range(count)], job=job)
    app.engine.dispose()
    return job.job_id


def ended(folder: Path, status: int) -> None:
    tries = 3 if status < 0 else 0
    change = f"UPDATE msgworker_message SET status = {status}, error_try_times = {tries}"
    sql(folder, f"{change} WHERE topic = 'settle'")


def test_there_is_no_job(crm: Cli) -> None:
    crm("init-db", *AT)
    done = crm("jobs", *AT)
    assert (done.exit_code, done.stdout) == (0, "there is no job\n")
    assert crm("jobs", "show", "1", *AT).exit_code == 5
    assert "no job 1" in crm("jobs", "seal", "1", *AT).stderr


def test_jobs_are_listed_and_shown(crm: Cli, folder: Path) -> None:
    job_id = opened(folder)
    listed = crm("jobs", *AT)
    assert "month end  held         3        0     0     0  0.0" in listed.stdout
    shown = crm("jobs", "show", str(job_id), *AT)
    assert "progress: [....................] 0.0 %, 0 of 3" in shown.stdout
    assert "by anna" in shown.stdout
    found = json.loads(crm("jobs", "--json", *AT).stdout)
    (one,) = found["jobs"]
    assert (one["job_id"], one["waiting"], one["percent"], one["at_least"]) == (job_id, 3, 0.0, [])
    assert found["next_after"] is None
    assert json.loads(crm("jobs", "show", str(job_id), "--json", *AT).stdout)["total"] == 3
    assert "1 message" not in crm("list", "--job", str(job_id), *AT).stderr
    assert crm("list", "--job", "99", *AT).exit_code == 5


def alive(folder: Path) -> None:
    app = App(f"sqlite:///{folder / 'crm.db'}")
    registered(app, "alive-1")
    app.engine.dispose()


def lines_of(crm: Cli, job: int | str) -> tuple[dict[str, str], list[str]]:
    """Of `jobs show`: what it says by name, and the commands that it offers."""
    shown, _, ways = crm("jobs", "show", str(job), *AT).stdout.partition("what can be done:\n")
    lines = (line.partition(": ") for line in shown.splitlines())
    commands = [line.strip().partition("#")[0].strip() for line in ways.splitlines()]
    commands = [line.replace(" crm:app", "", 1) for line in commands]
    return {name: text for name, _, text in lines}, commands


def test_a_watch_ends_with_the_job(crm: Cli, folder: Path) -> None:
    job_id = opened(folder)
    ended(folder, -1)
    sql(folder, "UPDATE msgworker_job SET completed_at = opened_at, done = 0, dead = 3")
    done = crm("jobs", "show", str(job_id), "--watch", *AT)
    assert done.exit_code == 1
    assert "3 of 3, 3 dead, completed" in done.stdout


def test_a_watch_goes_by_what_was_rerun_since(crm: Cli, folder: Path) -> None:
    job_id = str(opened(folder))
    sql(folder, "UPDATE msgworker_message SET status = 2 WHERE msg_id > 1")
    sql(folder, "UPDATE msgworker_message SET status = -1, error_try_times = 3 WHERE msg_id = 1")
    sql(folder, "UPDATE msgworker_job SET completed_at = opened_at, done = 2, dead = 1")
    watch = ("jobs", "show", job_id, "--watch", *AT)
    shown = crm(*watch)
    assert shown.exit_code == 1
    assert "messages: when it completed: 2 done, 1 dead\n" in shown.stdout
    said, ways = lines_of(crm, job_id)
    assert said["state"] == "completed"
    assert ways == [f"msgworker rerun --job {job_id}"]
    assert crm("rerun", "--job", job_id, *AT).exit_code == 0
    said, ways = lines_of(crm, job_id)
    now = "when it completed: 2 done, 1 dead; now: 1 waiting, 0 running, 2 done, 0 dead"
    assert said["messages"] == now
    assert said["progress"].startswith("[#############.......] 66.7 %, 2 of 3, completed")
    assert ways[-1] == f"msgworker cancel --job {job_id} --reason TEXT"
    sql(folder, "UPDATE msgworker_message SET status = 2")
    shown = crm(*watch)
    assert shown.exit_code == 0
    assert "; now: 0 waiting, 0 running, 3 done, 0 dead\n" in shown.stdout
    (one,) = json.loads(crm("jobs", "--json", *AT).stdout)["jobs"]
    counts = [one[name] for name in ("done", "dead", "completed_done", "completed_dead", "total")]
    assert counts == [3, 0, 2, 1, 3]


def test_a_watch_waits_for_what_was_rerun(
    crm: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = str(opened(folder))
    ended(folder, 0)
    sql(folder, "UPDATE msgworker_job SET completed_at = opened_at, done = 3, dead = 0")
    monkeypatch.setattr(jobs, "sleep", lambda seconds: ended(folder, 2))
    shown = crm("jobs", "show", job_id, "--watch", *AT)
    assert (shown.exit_code, "3 of 3, completed" in shown.stdout) == (0, True)
    assert "0 of 3, completed, no instance lives" not in shown.stderr
    assert "0 of 3, completed" in shown.stderr


def test_a_watch_ends_at_its_time_limit_and_says_the_same_once(
    crm: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = str(opened(folder))
    alive(folder)
    monkeypatch.setattr(jobs, "NOTE_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "WATCH_SECONDS", 0.01)
    sql(folder, "UPDATE msgworker_message SET status = -1, error_try_times = 1 WHERE msg_id = 1")
    watch = ("jobs", "show", job, "--watch", "--time-limit")
    done = crm(*watch, "2", *AT)
    assert done.exit_code == 6
    said = "0 of 3, 3 waiting, 1 of them has failed"
    assert done.stderr.count(said) == 1
    assert said in done.stdout
    assert crm(*watch, "soon", *AT).exit_code == 2
    assert crm(*watch[:3], "--time-limit", "5", *AT).exit_code == 2


def test_each_state_of_a_job_says_what_can_be_done(crm: Cli, folder: Path) -> None:
    job = str(opened(folder))
    pause, cancel = f"msgworker jobs pause {job}", f"msgworker jobs cancel {job} --reason TEXT"
    discard = f"msgworker discard --job {job} --reason TEXT"
    said, ways = lines_of(crm, job)
    assert said["state"].startswith("held: 3 wait: no instance lives that works on this table;")
    assert ways == ["msgworker run", pause, discard, cancel]
    alive(folder)
    said, ways = lines_of(crm, job)
    assert (said["state"], ways) == ("running", [pause, discard, cancel])
    crm("pause", "settle", "--actor", "anna", *AT)
    said, ways = lines_of(crm, job)
    assert said["state"] == "held: 3 wait: topic settle is paused by anna"
    assert ways == ["msgworker resume settle", pause, discard, cancel]
    sql(folder, "UPDATE msgworker_job SET sealed_at = NULL")
    said, ways = lines_of(crm, job)
    assert said["state"] == "open: 3 wait: topic settle is paused by anna"
    assert ways[2] == f"msgworker jobs seal {job}"
    crm("resume", "settle", *AT)
    crm("jobs", "seal", job, *AT)
    crm("jobs", "pause", job, "--reason", "the bank\x1b is closed", "--actor", "anna", *AT)
    said, ways = lines_of(crm, job)
    assert said["state"] == "paused by anna: the bank\\x1b is closed"
    assert said["paused"].endswith(" by anna: the bank\\x1b is closed")
    assert ways == [f"msgworker jobs resume {job}", discard, cancel]
    (one,) = json.loads(crm("jobs", "--json", *AT).stdout)["jobs"]
    assert (one["paused_by"], one["paused_reason"]) == ("anna", "the bank\\x1b is closed")
    crm("jobs", "resume", job, *AT)
    sql(folder, "UPDATE msgworker_job SET on_dead = 'wait'")
    ended(folder, -1)
    said, ways = lines_of(crm, job)
    waits = "waits: it waits for 3 dead messages, until they are rerun or discarded"
    assert said["state"] == waits
    assert said["progress"].endswith("3 of 3, 3 dead, waits")
    assert said["when it completes"] == "report (it waits for dead ones)"
    dead = f"msgworker discard --job {job} --status dead --reason TEXT"
    assert ways == [f"msgworker rerun --job {job}", dead, cancel]
    assert crm(*dead.split()[1:-1], "paid by hand", "--yes", *AT).exit_code == 0
    assert crm("drain", "crm:app", "--linger", "0", "--quiet").exit_code == 0
    said, ways = lines_of(crm, job)
    assert said["messages"] == "when it completed: 0 done, 3 dead"
    crm("jobs", "cancel", str(opened(folder, 1)), "--reason", "wrong", "--yes", *AT)
    assert lines_of(crm, int(job) + 1)[1] == []


def test_what_is_offered_is_what_the_command_does(crm: Cli, folder: Path) -> None:
    job = str(opened(folder, 4))
    alive(folder)
    ended(folder, -1)
    sql(folder, "UPDATE msgworker_job SET on_dead = 'wait'")

    def shown() -> str:
        return crm("jobs", "show", job, *AT).stdout

    only = "where a later one of its object is done, only with --force or --with-successors"
    assert f"# try its 4 dead messages again; {only}\n" in shown()
    for msg_id in ("1", "2"):
        crm("discard", msg_id, "--reason", "paid by hand", *AT)
    assert "it waits for 2 dead messages" in shown()
    assert "# try its 2 dead messages again;" in shown()
    assert "# give up its 2 dead messages: it completes, and counts them as dead\n" in shown()
    assert "would rerun 2 messages" in crm("rerun", "--job", job, "--dry-run", *AT).stdout
    found = json.loads(crm("jobs", "show", job, "--json", *AT).stdout)
    assert (found["dead"], found["to_rerun"], found["at_least"]) == (4, 2, [])
    (listed,) = json.loads(crm("jobs", "--json", *AT).stdout)["jobs"]
    assert listed["to_rerun"] is None
    args = ("--job", job, "--status", "dead", "--reason", "paid by hand", "--yes")
    assert crm("discard", *args, *AT).stdout == "discarded 2\n"
    assert "dead messages again" not in shown()
    assert "give up its" not in shown()


def test_a_job_behind_a_dead_message_of_another(crm: Cli, folder: Path) -> None:
    app = created(App(f"sqlite:///{folder / 'crm.db'}", table=MessageTable(on_dead="block")))
    with app.engine.begin() as conn, app.job("a", conn=conn) as job:
        first = app.send(conn, "settle", {}, object_id="C-1")
        app.send(conn, "settle", {}, object_id="C-1", job=job)
    change = "UPDATE msgworker_message SET status = -1, error_try_times = 3"
    sql(folder, f"{change}, last_error = 'ValueError: no' WHERE msg_id = {first}")
    registered(app, "alive-1")
    app.engine.dispose()
    at = ("--url", f"sqlite:///{folder / 'crm.db'}", "--on-dead", "block")
    shown = crm("jobs", "show", str(job.job_id), *at).stdout
    assert f"state: held: 1 waits behind 1 dead message, such as message {first}\n" in shown
    given = " ".join(at)
    assert f"msgworker rerun {given} {first} " in shown
    assert f"msgworker discard {given} {first} --reason TEXT " in shown
    (one,) = json.loads(crm("jobs", "--json", *at).stdout)["jobs"]
    assert one["holds"] == [
        {
            "why": "dead",
            "count": 1,
            "at_least": False,
            "text": f"1 waits behind 1 dead message, such as message {first}",
            "msg_id": first,
            "ours": False,
            "topic": "settle",
        }
    ]


def test_a_job_is_cancelled_with_its_messages(crm: Cli, folder: Path) -> None:
    job_id = str(opened(folder))
    assert crm("jobs", "cancel", job_id, *AT).exit_code == 2
    would = crm("jobs", "cancel", job_id, "--dry-run", *AT)
    assert would.stdout.startswith(f"would cancel job {job_id}: its message report is")
    assert "\nwould cancel 3 messages\n" in would.stdout
    done = crm("jobs", "cancel", job_id, "--reason", "wrong month", "--yes", *AT)
    assert done.stdout == f"cancelled job {job_id}: 3 messages\n"
    assert sql(folder, "SELECT status FROM msgworker_message") == [(-1,)] * 3
    said, ways = lines_of(crm, job_id)
    assert said["state"].startswith("cancelled: all of it has ended, and no instance lives to")
    assert ways == ["msgworker run"]
    assert crm("rerun", "--job", job_id, "--yes", *AT).exit_code == 5


def test_a_job_without_messages_may_be_cancelled(crm: Cli, folder: Path) -> None:
    job_id = str(opened(folder, 0))
    sql(folder, "UPDATE msgworker_job SET on_complete = 'month.report'")
    would = crm("jobs", "cancel", job_id, "--dry-run", *AT)
    says = f"job {job_id}: its message month.report is then never sent"
    assert would.exit_code == 0
    assert would.stdout == f"would cancel {says}\n"
    found = json.loads(crm("jobs", "cancel", job_id, "--dry-run", "--json", *AT).stdout)
    assert (found["job"], found["cancelled"], found["unsent"]) == (int(job_id), 0, "month.report")
    counts = "when it completes: month.report (dead messages count as ended)\n"
    assert counts in crm("jobs", "show", job_id, *AT).stdout
    refused = crm("jobs", "cancel", job_id, "--reason", "wrong month", *AT)
    assert refused.exit_code == 2
    assert "month.report is then never sent?" in refused.stderr
    done = crm("jobs", "cancel", job_id, "--reason", "wrong month", "--yes", *AT)
    assert done.stdout == f"cancelled job {job_id}: 0 messages\n"
    assert "month.report" not in crm("jobs", "show", job_id, *AT).stdout
    again = crm("jobs", "cancel", job_id, "--dry-run", *AT)
    assert again.stdout == f"job {job_id} is cancelled already\n"


def test_only_a_job_that_moves_has_a_rate(crm: Cli, folder: Path) -> None:
    job_id = str(opened(folder))
    sql(folder, "UPDATE msgworker_message SET status = 2 WHERE msg_id = 1")
    sql(folder, "UPDATE msgworker_job SET opened_at = '2026-01-01 00:00:00', on_dead = 'wait'")
    assert lines_of(crm, job_id)[0]["progress"].endswith("1 of 3, held")
    alive(folder)
    assert lines_of(crm, job_id)[0]["progress"].endswith(" left")
    crm("jobs", "pause", job_id, *AT)
    assert lines_of(crm, job_id)[0]["progress"].endswith("1 of 3, paused")
    crm("jobs", "resume", job_id, *AT)
    ended(folder, -1)
    assert lines_of(crm, job_id)[0]["progress"].endswith("3 of 3, 3 dead, waits")


def test_a_message_says_to_which_job_it_belongs(crm: Cli, folder: Path) -> None:
    job_id = opened(folder, 1)
    shown = f"job         {job_id}: msgworker jobs crm:app show {job_id}"
    assert shown in crm("show", "1", *AT).stdout


def test_a_job_is_sealed_once(crm: Cli, folder: Path) -> None:
    job_id = str(opened(folder))
    sql(folder, "UPDATE msgworker_job SET sealed_at = NULL")
    assert (
        crm("jobs", "seal", job_id, "--dry-run", *AT).stdout == f"would have sealed job {job_id}\n"
    )
    assert crm("jobs", "seal", job_id, *AT).stdout == f"sealed job {job_id}\n"
    assert crm("jobs", "seal", job_id, *AT).stdout == f"job {job_id} is sealed already\n"


def test_a_job_is_paused_and_resumed(crm: Cli, folder: Path) -> None:
    job_id = str(opened(folder))
    assert (
        crm("jobs", "pause", job_id, "--dry-run", *AT).stdout == f"would have paused job {job_id}\n"
    )
    done = crm("jobs", "pause", job_id, "--reason", "the bank is closed", "--actor", "anna", *AT)
    assert done.stdout == f"paused job {job_id}\n"
    assert crm("jobs", "pause", job_id, *AT).stdout == f"job {job_id} is paused already\n"
    shown = crm("jobs", "show", job_id, *AT).stdout
    assert "state: paused" in shown
    assert " by anna" in shown.partition("paused: ")[2].splitlines()[0]
    told = f"job {job_id}, month end: paused by anna: the bank is closed"
    assert told in crm("status", *AT).stdout
    (one,) = json.loads(crm("status", "--json", *AT).stdout)["paused_jobs"]
    who = (one["job_id"], one["paused_by"], one["paused_reason"])
    assert who == (int(job_id), "anna", "the bank is closed")
    assert f"job {job_id} is paused by anna: the bank" in crm("explain", "1", *AT).stdout
    done = crm("jobs", "resume", job_id, "--json", *AT)
    assert json.loads(done.stdout)["resumed"] == 1
    assert crm("jobs", "resume", job_id, *AT).exit_code == 5
    sql(folder, "UPDATE msgworker_job SET completed_at = opened_at")
    done = crm("jobs", "pause", job_id, *AT)
    assert done.exit_code == 5
    assert "has completed" in done.stderr


@pytest.mark.quick("1")
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_drain_of_a_job(crm: Cli, folder: Path, processes: str) -> None:
    one, other = opened(folder), opened(folder)
    done = crm("drain", "crm:app", "--job", str(other), "--linger", "0", "--quiet")
    assert done.exit_code == 6
    assert "done=0 failed=0 retried=0 released=0 left=3 (behind other jobs: 3)" in done.stdout
    done = crm("drain", "crm:app", "--job", str(one), "--linger", "0", "--quiet")
    assert "done=3 failed=0 retried=0 released=0 left=0 in" in done.stdout
    how = ("--processes", processes, "--linger", "0", "--quiet", "--json")
    told = json.loads(crm("drain", "crm:app", "--job", str(other), *how).stdout)
    assert (told["done"], told["left"]) == (3, 0)
    for args, says in (
        (("--job", "x"), "whole number"),
        (("--job", "99"), "there is no job 99"),
        (("--job", "1", "--scope", "everywhere"), "exclude"),
    ):
        done = crm("drain", "crm:app", *args)
        assert done.exit_code == 2, args
        assert says in done.stderr


@pytest.mark.quick("1")
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_drain_of_a_job_that_waits_for_dead_messages_ends_with_1(
    crm: Cli, folder: Path, processes: str
) -> None:
    job = str(opened(folder))
    ended(folder, -1)
    args = ("drain", "crm:app", "--job", job, "--linger", "0", "--quiet")
    sql(folder, "UPDATE msgworker_job SET on_dead = 'wait'")
    done = crm(*args, "--processes", processes)
    assert done.exit_code == 1
    says = f"job {job} waits for 3 dead messages: `msgworker rerun crm:app --job {job}`"
    assert says in done.stderr
    assert "left=0 (its job waits for dead ones: 3) in" in done.stdout
    told = json.loads(crm(*args, "--json").stdout)
    assert (told["left"], told["dead_awaited"], told["exit_code"]) == (0, 3, 1)
    give_up = ("--status", "dead", "--reason", "paid by hand", "--yes")
    assert crm("discard", "--job", job, *give_up, *AT).exit_code == 0
    done = crm(*args)
    assert (done.exit_code, "waits for" in done.stderr) == (0, False)


def test_what_is_asked_wrongly(crm: Cli) -> None:
    crm("init-db", *AT)
    for args, says in (
        (("stop", "1"), "unknown action"),
        (("show",), "by its id"),
        (("17",), "msgworker jobs crm:app show 17"),
        (("--watch",), "--watch is for one job"),
        (("--reason", "x"), "what is to be done"),
        (("show", "x"), "whole number"),
    ):
        done = crm("jobs", *args, *AT)
        assert done.exit_code == 2, args
        assert says in done.stderr


def test_a_message_is_sent_into_a_job(crm: Cli, folder: Path) -> None:
    job_id = opened(folder, 0)
    assert "sealed" in crm("send", "settle", "--job", str(job_id), *AT).stderr
    sql(folder, "UPDATE msgworker_job SET sealed_at = NULL")
    assert crm("send", "settle", "--job", str(job_id), *AT).exit_code == 0
    assert sql(folder, "SELECT job_id FROM msgworker_message") == [(job_id,)]
