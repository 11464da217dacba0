"""`msgworker jobs`."""

from __future__ import annotations

import json
from pathlib import Path

from msgworker import App
from tests.support.programs import AT, Cli, sql


def opened(folder: Path, count: int = 3) -> int:
    app = App(f"sqlite:///{folder / 'crm.db'}")
    app.create_schema()
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
    assert "month end  running        3        0     0     0  0.0" in listed.stdout
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


def test_a_watch_ends_with_the_job(crm: Cli, folder: Path) -> None:
    job_id = opened(folder)
    ended(folder, -1)
    sql(folder, "UPDATE msgworker_job SET completed_at = opened_at, done = 0, dead = 3")
    done = crm("jobs", "show", str(job_id), "--watch", *AT)
    assert done.exit_code == 1
    assert "3 of 3, 3 dead, completed" in done.stdout


def test_a_job_is_cancelled_with_its_messages(crm: Cli, folder: Path) -> None:
    job_id = str(opened(folder))
    assert crm("jobs", "cancel", job_id, *AT).exit_code == 2
    would = crm("jobs", "cancel", job_id, "--dry-run", *AT)
    assert would.stdout.startswith(f"would cancel job {job_id}: its message report is")
    assert "\nwould cancel 3 messages\n" in would.stdout
    done = crm("jobs", "cancel", job_id, "--reason", "wrong month", "--yes", *AT)
    assert done.stdout == f"cancelled job {job_id}: 3 messages\n"
    assert sql(folder, "SELECT status FROM msgworker_message") == [(-1,)] * 3
    assert "state: cancelled" in crm("jobs", "show", job_id, *AT).stdout


def test_a_job_without_messages_may_be_cancelled(crm: Cli, folder: Path) -> None:
    job_id = str(opened(folder, 0))
    sql(folder, "UPDATE msgworker_job SET on_complete = 'month.report'")
    would = crm("jobs", "cancel", job_id, "--dry-run", *AT)
    says = f"job {job_id}: its message month.report is then never sent"
    assert would.exit_code == 0
    assert would.stdout == f"would cancel {says}\n"
    found = json.loads(crm("jobs", "cancel", job_id, "--dry-run", "--json", *AT).stdout)
    assert (found["job"], found["cancelled"], found["unsent"]) == (int(job_id), 0, "month.report")
    assert "when it completes: month.report" in crm("jobs", "show", job_id, *AT).stdout
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
    show = ("jobs", "show", job_id, *AT)
    assert " left" in crm(*show).stdout
    assert "it waits until" not in crm(*show).stdout
    crm("jobs", "pause", job_id, *AT)
    assert "1 of 3, paused\n" in crm(*show).stdout
    crm("jobs", "resume", job_id, *AT)
    ended(folder, -1)
    shown = crm(*show).stdout
    assert "3 of 3, 3 dead, waits\n" in shown
    assert "dead messages: it waits until they are rerun or discarded\n" in shown


def test_a_message_says_to_which_job_it_belongs(crm: Cli, folder: Path) -> None:
    job_id = opened(folder, 1)
    assert f"job         {job_id}: msgworker jobs show {job_id}" in crm("show", "1", *AT).stdout


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
    assert f"job {job_id}, month end: paused by anna" in crm("status", *AT).stdout
    (one,) = json.loads(crm("status", "--json", *AT).stdout)["paused_jobs"]
    assert (one["job_id"], one["paused_by"]) == (int(job_id), "anna")
    assert f"job {job_id} is paused by anna" in crm("explain", "1", *AT).stdout
    done = crm("jobs", "resume", job_id, "--json", *AT)
    assert json.loads(done.stdout)["resumed"] == 1
    assert crm("jobs", "resume", job_id, *AT).exit_code == 5
    sql(folder, "UPDATE msgworker_job SET completed_at = opened_at")
    done = crm("jobs", "pause", job_id, *AT)
    assert done.exit_code == 5
    assert "has completed" in done.stderr


def test_a_drain_of_a_job(crm: Cli, folder: Path) -> None:
    one, other = opened(folder), opened(folder)
    done = crm("drain", "crm:app", "--job", str(other), "--linger", "0", "--quiet")
    assert done.exit_code == 6
    assert "done=0 failed=0 retried=0 released=0 left=3 (behind other jobs: 3)" in done.stdout
    done = crm("drain", "crm:app", "--job", str(one), "--linger", "0", "--quiet")
    assert "done=3 failed=0 retried=0 released=0 left=0 in" in done.stdout
    two = ("--processes", "2", "--linger", "0", "--quiet", "--json")
    told = json.loads(crm("drain", "crm:app", "--job", str(other), *two).stdout)
    assert (told["done"], told["left"]) == (3, 0)
    for args, says in (
        (("--job", "x"), "whole number"),
        (("--job", "99"), "there is no job 99"),
        (("--job", "1", "--scope", "everywhere"), "exclude"),
    ):
        done = crm("drain", "crm:app", *args)
        assert done.exit_code == 2, args
        assert says in done.stderr


def test_what_is_asked_wrongly(crm: Cli) -> None:
    crm("init-db", *AT)
    for args, says in (
        (("stop", "1"), "unknown action"),
        (("show",), "by its id"),
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
