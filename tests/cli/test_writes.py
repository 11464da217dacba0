"""The commands that write: rerun by filter, discard, release, purge, pause, resume, audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from msgworker import App
from msgworker.ops.operation import RecordedOperation
from tests.support.programs import AT, Cli, dead, sql
from tests.support.rows import Table

STATES = "SELECT status FROM msgworker_message ORDER BY msg_id"


def states(folder: Path) -> list[int]:
    return [row[0] for row in sql(folder, STATES)]


# ---------------------------------------------------------------- rerun


def test_what_to_do_about_many_that_are_left_alone_is_said_once(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 4)
    sql(folder, "UPDATE msgworker_message SET object_id = 'o' WHERE msg_id IN (1, 2, 4)")
    sql(folder, "UPDATE msgworker_message SET status = 2 WHERE msg_id IN (3, 4)")
    for dry_run in (["--dry-run"], []):
        done = crm("rerun", 1, 2, 3, "--yes", *dry_run, *AT)
        *facts, advice = done.stderr.splitlines()
        assert sorted(facts) == [
            "message 1 would run out of order: message 4 of its object has run already",
            "message 2 would run out of order: message 4 of its object has run already",
            "message 3 is done; --force (force=True) runs it again",
        ]
        assert advice == (
            "if a later one ran: --force (force=True) runs it nevertheless, --with-successors "
            "(with_successors=True) runs it and then, in order, the failed and dead messages "
            "behind it"
        )


def test_a_group_that_does_not_exist_is_said_to(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 1)
    for options in (("--dry-run",), ("--yes",)):
        done = crm("rerun", "--group", "0123456789ab", *options, *AT)
        assert (done.exit_code, done.stdout) == (5, "")
        assert (
            "there is no group 0123456789ab; `msgworker failures crm:app` lists them" in done.stderr
        )
    (group,) = json.loads(crm("failures", "--json", *AT).stdout)["failures"]
    assert crm("rerun", "--group", group["fingerprint"], *AT).stdout == "rerun 1\n"


def test_rerun_by_the_filters_of_list(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 2, "a")
    dead(crm, folder, 1, "b")
    assert crm("rerun", "--topic", "b", *AT).stdout == "rerun 1\n"
    assert crm("rerun", "--error", "KeyError", *AT).exit_code == 5
    assert crm("rerun", "--object-id", "C-0", "--since", "1h", *AT).stdout == "rerun 1\n"
    assert crm("rerun", "--error", "ValueError", "--status", "dead", *AT).stdout == "rerun 1\n"
    assert states(folder) == [0, 0, 0]


def test_dry_run_shows_a_sample(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 12)
    done = crm("rerun", "--dead", "--dry-run", *AT)
    lines = done.stdout.splitlines()
    assert lines[0] == "would rerun 12 messages"
    assert lines[1].split() == ["1", "dead", "settle", "C-0"]
    assert lines[-1] == "  ... and 2 more"
    found = json.loads(crm("rerun", "--dead", "--dry-run", *AT, "--json").stdout)
    assert (found["rerun"], found["dry_run"], found["operation"]) == (12, True, None)
    assert [row["msg_id"] for row in found["sample"]] == list(range(1, 11))
    for words in (["rerun"], ["discard", "--reason", "x"], ["cancel", "--reason", "x"]):
        told = crm(*words, "--topic", "settle", "--dry-run", *AT, "--json").stdout
        found = json.loads(told)
        assert found["complete"] is True, words
        assert found["up_to"] == (12 if found["matched"] else None), words
    assert set(states(folder)) == {-1}


def test_rerun_of_what_is_behind_its_time(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 2)
    sql(folder, "UPDATE msgworker_message SET object_id = 'o'")
    sql(folder, "UPDATE msgworker_message SET status = 2 WHERE msg_id = 2")
    done = crm("rerun", 1, *AT)
    assert (done.exit_code, done.stdout) == (5, "rerun 0\n")
    for text in ("message 2 of its object has run", "--force", "--with-successors"):
        assert text in done.stderr
    alone = crm("rerun", 1, "--with-successors", "--dry-run", *AT)
    assert alone.stdout.startswith("would rerun 1 message (1 behind that are done stay done)\n")
    also = ("--with-successors", "--also-done")
    would = crm("rerun", 1, *also, "--dry-run", *AT)
    assert would.stdout.startswith("would rerun 2 messages (1 of them done: handled again)\n")
    found = json.loads(crm("rerun", 1, *also, "--dry-run", "--json", *AT).stdout)
    assert (found["rerun"], found["done_again"], found["stay_done"]) == (2, 1, 0)
    asked = crm("rerun", 1, *also, *AT)
    assert (asked.exit_code, states(folder)) == (2, [-1, 2])
    assert "Set 2 messages of msgworker_message (1 of them done: handled again) to new?" in (
        asked.stderr
    )
    done = crm("rerun", 1, *also, "--yes", *AT)
    assert (done.exit_code, done.stdout) == (0, "rerun 2\n")
    assert done.stderr == "2 messages (1 of them done: handled again)\n"
    assert states(folder) == [0, 0]


def test_rerun_with_successors_leaves_done_ones_and_says_so(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 3)
    sql(folder, "UPDATE msgworker_message SET object_id = 'o'")
    sql(folder, "UPDATE msgworker_message SET status = 2 WHERE msg_id = 2")
    done = crm("rerun", 1, "--with-successors", "--yes", *AT)
    assert (done.exit_code, done.stdout) == (0, "rerun 2\n")
    assert done.stderr == "2 messages (1 behind that are done stay done)\n"
    assert states(folder) == [0, 2, 0]
    refused = crm("rerun", 1, "--also-done", *AT)
    assert (refused.exit_code, "--with-successors" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("--rate", "0", "--dead"),
        ("--rate", "fast", "--dead"),
        ("--rate", "-5", "--dead"),
        ("--operation", "x"),
        ("--operation", "1", "--dead"),
        ("--operation", "77"),
        ("1", "--resume", "77"),
        ("--dead", "--status", "failed"),
        ("--status", "new"),
        ("--status", "done"),
        ("--since", "yesterday"),
        ("1", "--error", "x"),
        ("1", "--reason", "x" * 1001),
    ],
)
def test_rerun_refuses_in_one_line(crm: Cli, folder: Path, given: tuple[str, ...]) -> None:
    dead(crm, folder, 1)
    done = crm("rerun", *given, *AT)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("msgworker: ")
    assert done.stderr.count("\n") == 1
    assert states(folder) == [-1]


def test_a_rerun_that_is_cut_short_says_how_to_go_on(
    crm: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(crm, folder, 1)
    sql(
        folder,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400) "
        "INSERT INTO msgworker_message (topic, object_id, status, error_try_times) "
        "SELECT 'settle', 'o' || i, -1, 3 FROM n",
    )
    step = RecordedOperation.step

    def once(self: RecordedOperation, last_id: Any, work: Any) -> Any:
        if self.op.steps:
            raise KeyboardInterrupt
        return step(self, last_id, work)

    monkeypatch.setattr(RecordedOperation, "step", once)
    # The first step is told of only after it is committed.
    done = crm("rerun", "--dead", "--yes", *AT)
    assert done.exit_code == 130
    assert "continue with: msgworker rerun crm:app --operation 1" in done.stderr
    changed = states(folder).count(0)
    assert 0 < changed < 401
    assert f"{changed} changed so far" in done.stderr
    assert "rerun (unfinished)" in crm("audit", *AT).stdout
    monkeypatch.setattr(RecordedOperation, "step", step)
    done = crm("rerun", "--operation", "1", *AT, "--json")
    assert json.loads(done.stdout)["rerun"] == 401
    assert set(states(folder)) == {0}


# ---------------------------------------------------------------- discard


def test_discard_wants_a_reason_and_keeps_it(crm: Cli, folder: Path) -> None:
    crm("send", "settle", *AT)
    for reason in ((), ("--reason", " ")):
        refused = crm("discard", 1, *reason, *AT)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "--reason is required" in refused.stderr
    assert crm("discard", 1, "--dry-run", *AT).stdout.startswith("would discard 1 message\n")
    assert crm("discard", 1, "--reason", "twin", "--actor", "al", *AT).stdout == "discarded 1\n"
    last = sql(folder, "SELECT status, error_try_times, last_error FROM msgworker_message")
    assert last == [(-1, 3, "discarded by al: twin")]
    again = crm("discard", 1, "--reason", "x", *AT)
    assert (again.exit_code, again.stdout) == (5, "discarded 0\n")
    assert "is discarded or cancelled already" in again.stderr
    crm("send", "settle", *AT)
    some = crm("discard", 1, 2, "--reason", "x", *AT)
    assert (some.exit_code, some.stdout) == (5, "discarded 1\n")  # not all that were named


def test_discard_of_what_runs_is_refused_with_a_reason(crm: Cli, folder: Path) -> None:
    crm("send", "settle", *AT)
    sql(folder, "UPDATE msgworker_message SET status = 1, claimed_by = 'x'")
    done = crm("discard", 1, "--reason", "r", *AT)
    assert (done.exit_code, "is running" in done.stderr) == (5, True)
    assert crm("discard", "--reason", "r", *AT).exit_code == 2
    assert states(folder) == [1]


# ---------------------------------------------------------------- release


def test_release_of_a_dead_and_of_a_living_instance(crm: Cli, folder: Path) -> None:
    crm("send", "settle", *AT)
    claimed = "UPDATE msgworker_message SET status = 1, claimed_by = 'inst-1'"
    sql(folder, claimed)
    lease = (
        "INSERT INTO msgworker_lease (name, started_at, renewed_at, expires_at) VALUES"
        " ('inst-1', strftime('%Y-%m-%d %H:%M:%f', 'now'), strftime('%Y-%m-%d %H:%M:%f', 'now'),"
        " strftime('%Y-%m-%d %H:%M:%f', 'now', '60 seconds'))"
    )
    sql(folder, lease)
    done = crm("release", "inst-1", *AT)
    assert (done.exit_code, done.stdout) == (1, "")  # refused; 2 would be a wrong command line
    assert "is alive" in done.stderr
    assert "--force" in done.stderr
    asked = crm("release", "inst-1", "--force", *AT)
    assert (asked.exit_code, "add --yes" in asked.stderr) == (2, True)  # it lives, and may work
    crm("send", "settle", *AT)
    sql(folder, claimed)
    sql(folder, "UPDATE msgworker_lease SET expires_at = '2020-01-01 00:00:00.000'")
    assert crm("release", "inst-1", *AT).exit_code == 2  # two messages: it asks
    assert crm("release", "inst-1", "--yes", *AT).stdout == "released 2\n"
    assert states(folder) == [-1, -1]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("host-1-ab", "instance host-1-ab has claimed nothing"),
        ("foo", "no such instance: foo; see `msgworker instances crm:app`"),
        (
            "host-2",
            "no such instance: host-2; see `msgworker instances crm:app`; did you mean host-2-cd?",
        ),
        ("host-", "no such instance: host-; see `msgworker instances crm:app`"),
    ],
)
def test_release_tells_an_unknown_instance_from_one_with_empty_hands(
    crm: Cli, folder: Path, name: str, told: str
) -> None:
    crm("send", "settle", *AT)
    sql(folder, "UPDATE msgworker_message SET status = 1, claimed_by = 'host-2-cd'")
    lease = (
        "INSERT INTO msgworker_lease (name, started_at, renewed_at, expires_at) VALUES"
        " ('host-1-ab', '2020-01-01 00:00:00.000', '2020-01-01 00:00:00.000',"
        " '2020-01-01 00:00:30.000')"
    )
    sql(folder, lease)
    for force in ((), ("--force", "--yes"), ("--dry-run",)):
        done = crm("release", name, *force, *AT)
        assert (done.exit_code, done.stdout) == (5, "")
        assert done.stderr.splitlines()[-1] == f"msgworker: {told}"
    assert states(folder) == [1]  # a prefix is not acted on


# ---------------------------------------------------------------- purge


def test_purge(crm: Cli, folder: Path) -> None:
    for _ in range(3):
        crm("send", "settle", *AT)
    sql(folder, "UPDATE msgworker_message SET status = 2, finished_at = '2020-01-01 00:00:00.000'")
    sql(folder, "UPDATE msgworker_message SET finished_at = NULL WHERE msg_id = 3")
    assert crm("purge", "--older-than", "30d", *AT).exit_code == 2
    assert crm("purge", "--older-than", "30d", "--dry-run", *AT).stdout.startswith("would purge 2")
    done = crm("purge", "--older-than", "30d", "--archive-to", "old_m", "--yes", *AT, "--json")
    found = json.loads(done.stdout)
    assert (found["purged"], found["skipped"], found["operation"]) == (2, 0, 4)
    assert sql(folder, "SELECT msg_id FROM old_m ORDER BY msg_id") == [(1,), (2,)]
    assert sql(folder, "SELECT msg_id FROM msgworker_message") == [(3,)]
    assert crm("purge", "--older-than", "30d", *AT).exit_code == 5


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("--older-than", "0"),
        ("--older-than", "-3d"),
        ("--older-than", "soon"),
        ("--older-than", "2999-01-01T00:00Z"),
        ("--older-than", "1d", "--operation", "1"),
        ("--older-than", "1d", "--archive-to", "a.b.c"),
        ("--older-than", "1d", "--archive-to", "msgworker_message"),
        ("--older-than", "9" * 12 + "w"),
    ],
)
def test_purge_refuses(crm: Cli, given: tuple[str, ...]) -> None:
    done = crm("purge", *given, *AT)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_an_archive_with_an_evil_name_is_one_identifier(crm: Cli, folder: Path) -> None:
    crm("send", "settle", *AT)
    sql(folder, "UPDATE msgworker_message SET status = 2, finished_at = '2020-01-01 00:00:00.000'")
    evil = 'x"; drop table msgworker_lease; --'
    done = crm("purge", "--older-than", "1d", "--archive-to", evil, *AT)
    assert done.exit_code == 0, done.stderr
    assert sql(folder, "SELECT count(*) FROM msgworker_lease WHERE kind = 'instance'") == [(0,)]


# ---------------------------------------------------------------- pause, audit


def test_pause_and_resume(crm: Cli, folder: Path) -> None:
    crm("send", "settle", *AT)
    assert crm("pause", *AT).stdout == "no topic is paused\n"
    assert crm("pause", "settle", "--reason", "bank is closed", *AT).stdout == "paused settle\n"
    again = crm("pause", "settle", *AT)
    assert (again.exit_code, again.stdout) == (0, "topic settle is paused already\n")
    again = crm("pause", "settle", *AT, "--json")
    assert (again.exit_code, json.loads(again.stdout)["paused"]) == (0, True)
    (listed,) = json.loads(crm("pause", *AT, "--json").stdout)
    assert (listed["topic"], listed["reason"]) == ("settle", "bank is closed")
    assert "bank is closed" in crm("pause", *AT).stdout
    done = crm("drain", "crm:app", "--linger", "0")
    assert "done=0 failed=0 retried=0 released=0 left=1" in done.stdout
    assert crm("resume", "settle", "--dry-run", *AT).stdout == "would have resumed settle\n"
    assert crm("resume", "settle", *AT).stdout == "resumed settle\n"
    assert crm("resume", "settle", *AT).exit_code == 5
    assert "done=1" in crm("drain", "crm:app", "--linger", "0").stdout
    assert "no handler here takes topic setle" in crm("pause", "setle", *AT).stderr


def test_the_audit_names_the_topic_that_was_paused(crm: Cli) -> None:
    crm("pause", "settle", *AT)
    crm("resume", "settle", *AT)
    lines = crm("audit", *AT).stdout.splitlines()
    assert [line.split()[1:3] for line in lines[1:]] == [["resume", "settle"], ["pause", "settle"]]


def test_audit_of_all_and_of_one(crm: Cli, folder: Path) -> None:
    assert crm("audit", *AT).exit_code == 5
    nothing = crm("audit", *AT, "--json")
    assert (nothing.exit_code, json.loads(nothing.stdout)) == (5, [])
    dead(crm, folder, 2)
    crm("rerun", "--dead", "--yes", "--reason", "fixed", "--actor", "alice", *AT)
    crm("discard", 1, "--reason", "evil \x1b[2J", "--actor", "bob", *AT)
    lines = crm("audit", *AT).stdout.splitlines()
    assert lines[0].split() == "OPERATION WHAT CHANGED SKIPPED AGE ACTOR REASON".split()  # noqa: SIM905
    assert lines[1].split()[:3] == ["2", "discard", "1"]
    one = crm("audit", 1, *AT).stdout
    assert "rerun by alice: fixed (#1; it was dead, 3 tries failed)" in one
    assert "\x1b" not in one
    found = json.loads(crm("audit", 1, *AT, "--json").stdout)
    assert [(e["kind"], e["was_status"]) for e in found] == [("discard", "new"), ("rerun", "dead")]
    shown = crm("show", 1, *AT).stdout
    assert "audit\n" in shown
    assert "rerun by alice: fixed" in shown
    assert len(json.loads(crm("show", 1, *AT, "--json").stdout)["audit"]) == 2
    assert crm("audit", 99, *AT).exit_code == 5
    assert crm("audit", "x", *AT).exit_code == 2
    assert crm("audit", "--limit", "0", *AT).exit_code == 2


def test_without_the_tables_of_ops_a_write_names_init_db(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 1)
    for name in ("audit", "operation", "pause"):
        sql(folder, f"DROP TABLE msgworker_{name}")
    done = crm("rerun", "--dead", *AT)
    assert (done.exit_code, "init-db" in done.stderr) == (4, True)
    assert states(folder) == [-1]
    assert crm("show", 1, "--url", "sqlite:///crm.db").exit_code == 0
    assert crm("drain", "crm:app", "--linger", "0").exit_code == 0


# ---------------------------------------------------------------- of unknown age


def test_list_show_and_release_say_that_an_age_is_unknown(crm: Cli, folder: Path) -> None:
    sql(folder, "ALTER TABLE msgworker_message DROP COLUMN created_at")
    sql(
        folder, "INSERT INTO msgworker_message (topic, object_id, status) VALUES ('settle', 'a', 1)"
    )
    sql(folder, "ALTER TABLE msgworker_message ADD COLUMN created_at TEXT")
    assert " unknown " in crm("list", *AT).stdout
    assert " unknown " in crm("lanes", *AT).stdout
    assert "created     unknown\n" in crm("show", 1, *AT).stdout
    left = crm("release", "--nobody", "--older-than", "1h", "--yes", *AT)
    assert (left.exit_code, left.stdout) == (5, "released 0\n")
    assert "message 1 has neither a claimed_at nor a created_at" in left.stderr
    assert "--any-age" in left.stderr
    given = crm("release", "--nobody", "--any-age", "--yes", *AT)
    assert (given.exit_code, given.stdout) == (0, "released 1\n"), given.stderr


def test_of_many_that_are_left_alone_the_number_comes_first_then_ten(
    crm: Cli, folder: Path
) -> None:
    dead(crm, folder, 30)
    sql(folder, "UPDATE msgworker_message SET object_id = 'o'")
    sql(folder, "UPDATE msgworker_message SET status = 2 WHERE msg_id = 30")
    done = crm("rerun", "--status", "dead", "--dry-run", *AT)
    assert done.stdout.splitlines()[0] == "would rerun 0 messages"
    first, *examples, more, advice = done.stderr.splitlines()
    assert first == "29 were skipped: 29 a later one ran"
    assert [line.split()[1] for line in examples] == [str(n) for n in range(1, 11)]
    assert more == "... and 19 more"
    assert "--with-successors" in advice


# ---------------------------------------------------------------- edit


def test_edit_prints_the_difference_and_then_changes_it(crm: Cli, folder: Path) -> None:
    (msg_id,) = dead(crm, folder, 1)
    given = ("edit", msg_id, "--payload", '{"n": 2}', "--priority", 3, *AT)
    told = crm(*given, "--dry-run")
    assert told.stdout.splitlines() == [
        "payload:",
        *("    {", '  -   "n": 1', '  +   "n": 2', "    }"),
        "priority: 0 -> 3",
        f"would edit message {msg_id}; --seen {told.stdout.split()[-8]} edits it only as it is now",
    ]
    assert crm(*given).exit_code == 2  # no reason
    done = crm(*given, "--reason", "typo", "--rerun")
    assert done.stdout.splitlines()[-1] == f"edited message {msg_id}, rerun 1"
    assert states(folder) == [0]
    assert "payload:" in crm("audit", msg_id, *AT).stdout
    assert '+   "n": 2' in crm("show", msg_id, *AT).stdout
    again = crm(*given, "--reason", "typo")
    assert (again.exit_code, again.stdout) == (5, "")
    assert "there is nothing to change" in again.stderr
    back = crm("edit", msg_id, "--priority", 0, "--reason", "not urgent", *AT)
    assert back.stdout.splitlines()[0] == "priority: 3 -> 0"


def test_a_message_that_an_edit_has_left_failed_is_shown_as_waiting(crm: Cli) -> None:
    sent = ("send", "crm:app", "t", "--object-id", "a", "--payload", "1", "--delay", "1h")
    msg_id = crm(*sent).stdout.strip()
    assert crm("edit", msg_id, "--payload", "2", "--reason", "r", *AT).exit_code == 0
    assert "waiting, 0 of 3 tries failed" in crm("show", msg_id, *AT).stdout
    assert "waiting" in crm("list", *AT).stdout
    told = crm("explain", msg_id, *AT).stdout
    assert f"message {msg_id} (waiting, topic t, object a): it is not due yet" in told


def test_edit_says_what_it_was_in_json(crm: Cli, folder: Path) -> None:
    (msg_id,) = dead(crm, folder, 1)
    told = crm("edit", msg_id, "--topic", "other", "--dry-run", "--json", *AT)
    found = json.loads(told.stdout)
    assert found["changes"] == [{"column": "topic", "old": "settle", "new": "other"}]
    done = crm(
        *("edit", msg_id, "--topic", "other", "--seen", found["seen"], "--reason", "r"),
        *("--rerun", "--json", *AT),
    )
    found = json.loads(done.stdout)
    assert (found["edited"], found["rerun"]["rerun"]) == (1, 1)
    late = crm("edit", msg_id, "--topic", "x", "--seen", "0" * 16, "--reason", "r", *AT)
    assert (late.exit_code, "look at it as it is now" in late.stderr) == (5, True)


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("--available-at", "soon"),
        ("--available-at", "2030-01-01T00:00"),
        ("--payload", "{"),
        ("--payload", ""),
        ("--topic", ""),
        ("--priority", "-1"),
        ("--topic", "u", "--seen", "x"),
        ("--topic", "u", "--rerun"),
        ("--topic", "u", "--force"),
        ("--topic", "u", "--with-successors"),
    ],
    ids=str,
)
def test_edit_refuses(crm: Cli, folder: Path, given: tuple[str, ...]) -> None:
    crm("send", "settle", "--payload", "1", *AT)
    done = crm("edit", 1, *given, "--reason", "r", *AT)
    assert done.exit_code == 2, done.stderr
    assert sql(folder, "SELECT topic, payload FROM msgworker_message") == [("settle", "1")]


def test_edit_lets_a_message_wait_or_not(crm: Cli, folder: Path) -> None:
    crm("send", "settle", *AT)
    at = "SELECT available_at FROM msgworker_message"
    assert crm("edit", 1, "--available-at", "5m", "--reason", "r", *AT).exit_code == 0
    assert sql(folder, at) != [(None,)]
    assert crm("edit", 1, "--available-at", "now", "--reason", "r", *AT).exit_code == 0
    assert sql(folder, at) == [(None,)]


def test_edit_advises_no_option_that_it_has_not(crm: Cli, folder: Path) -> None:
    early, late = dead(crm, folder, 2)
    sql(folder, "UPDATE msgworker_message SET object_id = 'o'")
    sql(folder, f"UPDATE msgworker_message SET status = 2 WHERE msg_id = {late}")
    done = crm("edit", late, "--priority", 1, "--reason", "r", *AT)
    assert done.exit_code == 5
    assert "is done; a done message is not edited: send another one" in done.stderr
    done = crm("edit", early, "--priority", 1, "--rerun", "--reason", "r", *AT)
    assert done.exit_code == 5
    assert f"it is still dead: `msgworker rerun crm:app {early}`" in done.stderr
    assert f"`msgworker rerun crm:app {early} --force` runs it nevertheless" in done.stderr
    done = crm("edit", early, "--priority", 2, "--rerun", "--force", "--reason", "r", *AT)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"edited message {early}, rerun 1")
    assert states(folder) == [0, 2]


def test_edit_and_rerun_with_successors(crm: Cli, folder: Path) -> None:
    early, _, _ = dead(crm, folder, 3)
    sql(folder, "UPDATE msgworker_message SET object_id = 'o'")
    given = ("edit", early, "--priority", 1, "--rerun", "--with-successors", "--reason", "r", *AT)
    would = crm(*given, "--dry-run")
    assert (would.exit_code, would.stdout.splitlines()[-1]) == (0, "would rerun 3 messages")
    assert json.loads(crm(*given, "--dry-run", "--json").stdout)["rerun"]["rerun"] == 3
    asked = crm(*given)
    assert (asked.exit_code, "Edit it, and set 3 messages of" in asked.stderr) == (2, True)
    assert (states(folder), "edited" in asked.stdout) == ([-1, -1, -1], False)
    assert crm(*given, "--yes").stdout.splitlines()[-1] == f"edited message {early}, rerun 3"
    assert states(folder) == [0, 0, 0]


# ---------------------------------------------------------------- acknowledge


def test_what_is_acknowledged_is_counted_apart(crm: Cli, folder: Path) -> None:
    known, other = dead(crm, folder, 2)
    check = ("status", "--dead-unacknowledged", *AT)
    done = crm(*check)
    assert (done.exit_code, "2 dead messages not acknowledged" in done.stderr) == (1, True)
    assert crm("acknowledge", known, *AT).exit_code == 2  # no reason
    done = crm("acknowledge", known, "--reason", "INC-4711", "--actor", "ana", *AT)
    assert done.stdout == "acknowledged 1\n"
    assert "acknowledged by ana: INC-4711; ValueError: x" in crm("list", *AT).stdout
    assert "known       acknowledged by ana: INC-4711" in crm("show", known, *AT).stdout
    listed = json.loads(crm("list", "--dead-unacknowledged", "--json", *AT).stdout)["messages"]
    assert [one["msg_id"] for one in listed] == [other]
    assert crm("status", *AT).exit_code == 0
    (count,) = json.loads(crm("status", "--json", *AT).stdout)["counts"]
    assert (count["count"], count["acknowledged"]) == (2, 1)
    again = crm("acknowledge", known, "--reason", "r", *AT)
    assert (again.exit_code, "acknowledged already" in again.stderr) == (5, True)
    assert crm("acknowledge", "--dead-unacknowledged", "--reason", "r", *AT).exit_code == 0
    done = crm(*check)
    assert (done.exit_code, "2 of the dead messages are acknowledged" in done.stderr) == (0, True)
    left = "that is not acknowledged, discarded or cancelled (2 are)\n"
    assert crm("failures", *AT).stdout.endswith(left)
    assert crm("rerun", "--dead-unacknowledged", *AT).exit_code == 5
    wrong = crm("rerun", "--dead-unacknowledged", "--status", "failed", *AT)
    assert (wrong.exit_code, "--dead-unacknowledged means --status dead" in wrong.stderr) == (
        2,
        True,
    )
    assert crm("list", "--dead-unacknowledged", "--status", "new", *AT).exit_code == 2
    assert crm("rerun", "--dead", "--yes", *AT).stdout == "rerun 2\n"


def test_acknowledge_says_what_stays_held_up_and_status_goes_on_to_say_it(
    crm: Cli, folder: Path
) -> None:
    app = App(f"sqlite:///{folder}/crm.db")
    with app.engine.begin() as conn, app.job("a", on_dead="wait", conn=conn) as job:
        app.send(conn, "t", job=job)
    Table(app).edit(status=-1, error_try_times=3)
    (held,) = map(str, Table(app).column("msg_id"))
    would = crm("acknowledge", held, "--reason", "r", "--dry-run", *AT)
    assert "1 of them holds up an object or a job, until rerun or discarded" in would.stdout
    found = json.loads(crm("acknowledge", held, "--reason", "r", "--dry-run", "--json", *AT).stdout)
    assert found["holding"] == 1
    done = crm("acknowledge", held, "--reason", "INC-4711", "--actor", "ana", *AT)
    assert (done.stdout, "1 of them holds up" in done.stderr) == ("acknowledged 1\n", True)
    told = (
        "1 dead message holds up its job until it is rerun or discarded: `msgworker jobs crm:app`"
    )
    assert told in crm("status", *AT).stderr
    (count,) = json.loads(crm("status", "--json", *AT).stdout)["counts"]
    assert (count["acknowledged"], count["hold_objects"], count["hold_jobs"]) == (1, 0, 1)
    assert crm("discard", held, "--reason", "r", *AT).exit_code == 0
    assert "holds up" not in crm("status", *AT).stderr


def test_an_error_of_before_an_edit_is_marked(crm: Cli, folder: Path) -> None:
    (msg_id,) = dead(crm, folder, 1)
    text = crm("show", msg_id, *AT).stdout
    assert "last error\n" in text
    args = ("--payload", '{"n": 2}', "--reason", "INC-1", "--actor", "ana")
    assert crm("edit", msg_id, *args, *AT).exit_code == 0
    text = crm("show", msg_id, *AT).stdout
    assert "changed     edited by ana just now: INC-1" in text
    assert "last error, of before it was edited by ana\n  ValueError: x" in text
    assert "edited by ana just now; before: ValueError: x" in crm("list", *AT).stdout
    assert "last error, of before it was edited by ana: Val" in crm("explain", msg_id, *AT).stdout
    assert crm("rerun", msg_id, "--actor", "bob", *AT).exit_code == 0
    assert "rerun by bob just now; before: ValueError: x" in crm("list", *AT).stdout


def test_numbers_are_sent_shown_and_edited_digit_for_digit(crm: Cli) -> None:
    old, new = "12345678901234567.89", "12345678901234567.88"
    sent = crm("send", "t", "--payload", f'{{"amount": {old}, "b": 1.10}}', *AT)
    msg_id = sent.stdout.strip()
    assert f'"amount": {old},' in crm("show", msg_id, *AT).stdout
    args = ("--payload", f'{{"amount": {new}, "b": 1.10}}', "--reason", "INC-1")
    done = crm("edit", msg_id, *args, *AT)
    assert f'-   "amount": {old},' in done.stdout
    assert f'+   "amount": {new},' in done.stdout
    found = json.loads(crm("show", msg_id, "--json", *AT).stdout)
    assert found["payload"] == f'{{"amount":{new},"b":1.10}}'
    assert found["audit"][0]["changes"][0]["old"] == f'{{"amount":{old},"b":1.10}}'
