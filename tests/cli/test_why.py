"""explain, failures, lanes, instances, doctor and the tries of show: what they print and return."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from wcwidth import wcswidth

from msgworker.cli.explain import in_state
from msgworker.message import State
from msgworker.queries.counts import Count, Exact
from msgworker.queries.instances import overdue as missed
from msgworker.store.lease import Lease
from tests.support.programs import AT, LOOKS, Cli, dead, environment, sql

OF_NO_ROW = ("pause", "limits", "schedules", "jobs", "audit", "locks", "partitions", "config")
"""Looks that show no text of messages."""
EVIL = "\x1b]0;owned\x07\u202eC-1"


def sent(crm: Cli, *objects: str) -> list[int]:
    return [int(crm("send", "settle", "--object-id", o, *AT).stdout) for o in objects]


def test_explain_says_why_and_what_is_in_front(crm: Cli, folder: Path) -> None:
    first, second = sent(crm, "C-1", "C-1")
    done = crm("explain", second, *AT)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"message {second} (new, topic settle, object C-1): message {first}")
    assert lines[1].startswith(f"  message {first} (new")
    assert "no instance lives" in lines[1]
    found = json.loads(crm("explain", second, *AT, "--json").stdout)
    assert (found["reason"], found["behind"]["reason"]) == (
        "waits behind another message",
        "no live instance",
    )


@pytest.mark.parametrize(
    ("msg_id", "code"), [("4711", 5), ("x", 2), ("1;--", 2), ("1" + "0" * 30, 2), ("-7", 2)]
)
def test_explain_of_an_id_that_is_not_there(crm: Cli, msg_id: str, code: int) -> None:
    done = crm("explain", msg_id, *AT)
    assert done.exit_code == code
    assert done.stderr.count("\n") == 1


def test_failures_shows_groups_and_an_empty_table_says_so(crm: Cli, folder: Path) -> None:
    assert "nothing has failed" in crm("failures", *AT).stdout
    ids = dead(crm, folder, 3)
    done = crm("failures", *AT)
    header, row = done.stdout.splitlines()
    assert header.split()[:3] == ["GROUP", "DEAD", "FAILING"]
    assert "ValueError: x" in row
    found = json.loads(crm("failures", *AT, "--json").stdout)
    (group,) = found["failures"]
    assert (group["count"], group["dead"], group["sample_id"]) == (3, 3, ids[-1])
    assert found["complete"] is True
    listed = crm("list", "--group", group["fingerprint"], "--limit", "2", *AT, "--json")
    page = json.loads(listed.stdout)
    assert ([one["msg_id"] for one in page["messages"]], page["next_after"]) == (ids[:2], ids[1])
    assert crm("list", "--group", "0" * 16, *AT).exit_code == 5
    (topic,) = group["topics"]
    assert "ValueError: x" in crm("failures", "--topic", topic, *AT).stdout
    assert "by these filters" in crm("failures", "--topic", "another", *AT).stdout
    assert "by these filters" in crm("failures", "--job", "99", *AT).stdout


def test_lanes_shows_heads(crm: Cli) -> None:
    assert "no object waits" in crm("lanes", *AT).stdout
    first, *_ = sent(crm, "C-1", "C-1", "C-2")
    header, row, _ = crm("lanes", *AT).stdout.splitlines()
    assert header.split()[:3] == ["OBJECT", "BEHIND", "HEAD"]
    assert row.split()[:4] == ["C-1", "1", str(first), "new"]
    found = json.loads(crm("lanes", *AT, "--json").stdout)
    assert [(one["object_id"], one["behind"]) for one in found["lanes"]] == [("C-1", 1), ("C-2", 0)]


def test_instances_shows_who_holds_what(crm: Cli, folder: Path) -> None:
    assert "no instance lives" in crm("instances", *AT).stdout
    sent(crm, "C-1")
    sql(folder, "UPDATE msgworker_message SET status = 1, claimed_by = 'gone-1'")
    done = crm("instances", *AT)
    assert done.stdout.splitlines()[1].split()[:3] == ["gone-1", "no", "lease"]
    (one,) = json.loads(crm("instances", *AT, "--json").stdout)
    assert (one["instance_id"], one["life"], one["running"]) == ("gone-1", "no lease", 1)


def test_instances_lanes_and_explain_tell_claimed_from_running(crm: Cli, folder: Path) -> None:
    first, second = sent(crm, "C-1", "C-2")
    told = {"table": "msgworker_message", "topics": None, "handlers": 1, "running": [[first, 9.0]]}
    sql(
        folder,
        "INSERT INTO msgworker_lease (name, started_at, renewed_at, expires_at, in_hand, serves)"
        " VALUES ('h-1', datetime('now', '-60 seconds'), datetime('now', '-3 seconds'),"
        f" datetime('now', '+600 seconds'), 2, '{json.dumps(told)}')",
    )
    sql(
        folder,
        "UPDATE msgworker_message SET status = 1, claimed_by = 'h-1',"
        " claimed_at = datetime('now', '-12 seconds')",
    )
    row = crm("instances", *AT).stdout.splitlines()[1]
    assert " 1 of 2 " in row
    _, one, two = crm("lanes", *AT).stdout.splitlines()
    assert re.search(r"running for 1\d seconds, on h-1$", one)
    assert re.search(r"claimed 1\d seconds ago, not started, by h-1$", two)
    assert "its handler has run for 1" in crm("explain", first, *AT).stdout
    found = json.loads(crm("explain", second, *AT, "--json").stdout)
    assert (found["started"], found["running_seconds"]) == (False, None)
    found = json.loads(crm("lanes", *AT, "--json").stdout)["lanes"]
    assert [one["started"] for one in found] == [True, False]
    (one,) = json.loads(crm("instances", *AT, "--json").stdout)
    assert (one["handlers"], one["running_seconds"]) == (1, {str(first): 9.0})


def beating(folder: Path, name: str, silent: int, lease: int = 30) -> None:
    """A lease of so many seconds, renewed `silent` seconds ago."""
    told = {"table": "msgworker_message", "topics": None, "handlers": 0, "running": []}
    sql(
        folder,
        "INSERT INTO msgworker_lease (name, started_at, renewed_at, expires_at, in_hand, serves)"
        f" VALUES ('{name}', datetime('now', '-60 seconds'), datetime('now', '-{silent} seconds'),"
        f" datetime('now', '{lease - silent:+d} seconds'), 1, '{json.dumps(told)}')",
    )


def test_what_was_claimed_since_the_last_heartbeat_is_not_said_not_to_run(
    crm: Cli, folder: Path
) -> None:
    sent(crm, "C-1")
    beating(folder, "new-1", 5, lease=60)
    sql(folder, "UPDATE msgworker_message SET status = 1, claimed_by = 'new-1'")
    for claimed, running in ((600, "0 of 1"), (2, "1")):
        sql(
            folder,
            f"UPDATE msgworker_message SET claimed_at = datetime('now', '-{claimed} seconds')",
        )
        row = re.split(r"  +", crm("instances", *AT).stdout.splitlines()[1])
        assert row[4] == running, row


def test_an_instance_that_left_a_handler_behind_is_shown_as_stopped(crm: Cli, folder: Path) -> None:
    sent(crm, "C-1")
    beating(folder, "left-1", 200, lease=300)
    sql(
        folder,
        "UPDATE msgworker_lease SET serves = '"
        '{"table": "msgworker_message", "handlers": 1, "running": [[1, 5.0]], "stopped": true}\'',
    )
    sql(folder, "UPDATE msgworker_message SET status = 1, claimed_by = 'left-1'")
    row = crm("instances", *AT).stdout.splitlines()[1]
    assert re.match(r"left-1 +stopped, lease ends in \d+ s +", row)
    (one,) = json.loads(crm("instances", *AT, "--json").stdout)
    assert (one["life"], one["stopped"], one["overdue_seconds"]) == ("live", True, None)
    assert "left-1 has stopped" in crm("explain", 1, *AT).stdout
    refused = crm("release", "left-1", *AT)
    assert refused.exit_code == 1
    assert re.search(r"has stopped.*its lease ends in \d+ s", refused.stderr)


def test_a_heartbeat_that_is_overdue_is_told(crm: Cli, folder: Path) -> None:
    (msg_id,) = sent(crm, "C-1")
    beating(folder, "killed-1", 20, lease=60 * 60)
    sql(
        folder,
        "UPDATE msgworker_message SET status = 1, claimed_by = 'killed-1',"
        " claimed_at = datetime('now', '-15 seconds')",
    )

    def told() -> tuple[str, str, dict[str, object]]:
        text = crm("explain", msg_id, *AT).stdout.splitlines()[0]
        row = crm("instances", *AT).stdout.splitlines()[1]
        return text, row, json.loads(crm("instances", *AT, "--json").stdout)[0]

    text, row, one = told()  # a third of an hour has not gone by
    assert text.endswith("the next heartbeat says whether its handler has started")
    assert "overdue" not in row
    assert (one["life"], one["overdue_seconds"]) == ("live", None)
    sql(folder, "DELETE FROM msgworker_lease")
    beating(folder, "killed-1", 400, lease=900)
    sql(folder, "UPDATE msgworker_message SET claimed_at = datetime('now', '-390 seconds')")
    assert told()[2]["overdue_seconds"] is None  # within the margin of half a heartbeat's pause
    sql(folder, "DELETE FROM msgworker_lease")
    beating(folder, "killed-1", 200, lease=300)
    sql(folder, "UPDATE msgworker_message SET claimed_at = datetime('now', '-150 seconds')")
    text, row, one = told()
    assert "told with the next heartbeat" not in text
    assert re.search(
        r"last heard of 3 min ago; its heartbeat has been overdue for 1\d\d s; if it is dead, the "
        r"message is recovered when its lease is over, in about \d\d+ s, by an instance that runs "
        r"then$",
        text,
    )
    assert re.match(r"killed-1 +live, overdue +", row)
    overdue = one["overdue_seconds"]
    assert one["life"] == "live"
    assert isinstance(overdue, float)
    assert 100 <= overdue < 160
    beating(folder, "other-1", 0, lease=300)
    assert re.search(r"in about \d\d+ s$", told()[0])


@pytest.mark.parametrize(
    ("lease", "silent", "overdue"),
    [
        (30, 10, None),
        (30, 14.9, None),
        (30, 15.1, 5.1),
        (3, 1.9, None),
        (3, 2.1, 1.1),
        (0.3, 0.29, None),
    ],
)
def test_a_heartbeat_is_overdue_after_half_its_pause_and_a_second_at_least(
    lease: float, silent: float, overdue: float | None
) -> None:
    now = datetime.now(UTC)
    until = now + timedelta(seconds=lease)
    one = Lease("a", "instance", 1, None, 1, 0, now, now, until, None, 0)
    found = missed(one, silent)
    assert found == (None if overdue is None else pytest.approx(overdue))


def test_show_and_list_say_when_a_message_comes_back_and_that_it_asked(
    crm: Cli, folder: Path
) -> None:
    (only,) = sent(crm, "C-1")
    sql(
        folder,
        "UPDATE msgworker_message SET later_times = 3, last_error = 'retry later: it is closed',"
        " available_at = datetime('now', '+610 seconds')",
    )
    shown = crm("show", only, *AT).stdout
    assert re.search(r"later +due again at .*, postponed 3 times: it is closed", shown)
    assert "last error" not in shown
    assert "due again in 10 minutes, postponed 3 times: it is closed" in crm("list", *AT).stdout
    sql(folder, "UPDATE msgworker_message SET status = 2, available_at = NULL")
    shown = crm("show", only, *AT).stdout
    assert re.search(r"later +postponed 3 times: it is closed", shown)
    assert "last error" not in shown
    assert "closed" not in crm("list", *AT).stdout
    found = json.loads(crm("show", only, *AT, "--json").stdout)
    keys = ("last_error", "later_times", "later_reason")
    assert [found[key] for key in keys] == [None, 3, "it is closed"]


def test_show_prints_the_tries(crm: Cli, folder: Path) -> None:
    done = crm("send", "settle", "--payload", '{"reject": "no"}', *AT)
    assert crm("drain", "crm:app", "--linger", "0", "--quiet").exit_code == 1
    shown = crm("show", done.stdout.strip(), *AT).stdout
    assert "failed tries" in shown
    assert "rejected" in shown
    (one,) = json.loads(crm("show", done.stdout.strip(), *AT, "--json").stdout)["tries"]
    assert (one["number"], one["kind"], one["error"]) == (1, "rejected", "rejected: no")


@pytest.mark.parametrize("command", ["failures", "lanes"])
@pytest.mark.parametrize("limit", ["-1", "0", "1000000000000", "x"])
def test_limits_of_the_command_line_are_bounded(crm: Cli, command: str, limit: str) -> None:
    done = crm(command, "--limit", limit, *AT)
    assert done.exit_code == 2
    assert done.stdout == ""


def test_status_and_list_say_how_far_they_looked(crm: Cli) -> None:
    ids = sent(crm, "C-1", "C-2")
    page = json.loads(crm("list", *AT, "--json", "--limit", "1").stdout)
    assert (page["next_after"], page["complete"]) == (ids[0], True)
    counts = json.loads(crm("status", *AT, "--json").stdout)["counts"]
    assert [one["exact"] for one in counts] == ["exact"]


def test_a_number_is_said_as_in_the_dashboard_where_not_all_were_counted() -> None:
    def count(state: State, topic: str | None, number: int, exact: Exact) -> Count:
        return Count(state, topic, number, None, exact)

    counts = [
        count(State.NEW, "a", 20_000, Exact.AT_LEAST),
        count(State.FAILED, "b", 3, Exact.EXACT),
        count(State.DONE, None, 11_234_567, Exact.ABOUT),
    ]
    rows = {"a": counts[:1], "b": counts[1:2], "all": counts}
    told = {
        name: [in_state(state, counts, (name, row)) for state in list(State)[:4]]
        for name, row in rows.items()
    }
    assert told == {
        "a": ["20,000+", "-", "?", "-"],
        "b": ["0+", "-", "?", "3"],
        "all": ["20,000+", "-", "~11,200,000", "3"],
    }


# ---------------------------------------------------------------- doctor


def test_doctor_is_content_with_a_fresh_schema(crm: Cli) -> None:
    done = crm("doctor", *AT)
    assert done.exit_code == 0, done.stdout
    assert done.stdout.splitlines()[1] == "0 findings to fix, 0 advised"
    found = json.loads(crm("doctor", *AT, "--json").stdout)
    assert found["exit_code"] == 0
    assert {one["severity"] for one in found["findings"]} <= {"fine", "advised"}


def test_doctor_without_a_schema_ends_with_4_and_its_sql_mends_it(cli: Cli, folder: Path) -> None:
    folder.joinpath("crm.db").touch()
    done = cli("doctor", *AT)
    assert done.exit_code == 4
    lines = done.stdout.splitlines()
    assert lines[1:3] == ["1 finding to fix (statements: --sql), 0 advised", ""]
    assert "nor do the 12 tables beside it: run `msgworker init-db crm:app`" in "\n".join(lines[3:])
    assert "CREATE" not in done.stdout
    script = cli("doctor", *AT, "--sql")
    assert script.exit_code == 4
    for statement in script.stdout.split(";\n"):
        if statement.strip():
            sql(folder, statement)
    assert cli("doctor", *AT).exit_code == 0
    assert cli("init-db", *AT).stdout.startswith("nothing to do")


def test_doctor_prints_statements_with_sql_only(crm: Cli, folder: Path) -> None:
    sql(folder, "DROP TABLE msgworker_pause")
    sql(folder, "DROP INDEX msgworker_message_due")
    done = crm("doctor", *AT)
    text = "1 finding to fix (statements: --sql), 2 advised (statements: --sql --advised)"
    assert done.stdout.splitlines()[1] == text
    assert "CREATE" not in done.stdout
    needed = crm("doctor", *AT, "--sql").stdout
    assert (needed.count("CREATE"), "INDEX msgworker_message_due" in needed) == (1, True)
    both = crm("doctor", *AT, "--sql", "--advised").stdout
    assert ("CREATE TABLE msgworker_pause" in both, needed.strip() in both) == (True, True)
    refused = crm("doctor", *AT, "--advised")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--advised says what --sql prints: give both" in refused.stderr


def test_doctor_sql_says_what_no_statement_mends(cli: Cli, folder: Path) -> None:
    sql(folder, "CREATE TABLE q (msg_id INTEGER PRIMARY KEY, objectID TEXT, state INT, tries INT)")
    sql(folder, "INSERT INTO q VALUES (1, 'a', 2, 0), (2, 'a', 2, 0)")
    script = cli("doctor", "--url", f"sqlite:///{folder / 'crm.db'}", "--table", "q", "--sql")
    assert (script.exit_code, "TABLE q" in script.stdout, "status" in script.stderr) == (4, 0, 1)
    assert "no statement fixes this: table q has no column object_id, status" in script.stderr
    assert "MessageTable(object_id=..., status=..., error_try_times=...)" in script.stderr


def test_doctor_finds_a_dropped_guard(crm: Cli, folder: Path) -> None:
    sql(folder, "DROP INDEX msgworker_message_guard")
    done = crm("doctor", *AT)
    assert done.exit_code == 4
    assert "index msgworker_message_guard is missing" in done.stdout
    guard = "CREATE UNIQUE INDEX msgworker_message_guard"
    assert crm("doctor", *AT, "--sql").stdout.startswith(guard)
    assert "plan" in crm("doctor", *AT, "--plan").stdout


def test_doctor_on_a_database_that_is_away(cli: Cli) -> None:
    done = cli("doctor", "--url", "postgresql+psycopg://x:secret77@127.0.0.1:1/y")
    assert done.exit_code == 3
    assert "secret77" not in done.output


# ---------------------------------------------------------------- a real terminal


IN_TURN = """
import contextlib, sys
from msgworker.cli import main

for line in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        main(line.split(), prog_name="msgworker")
    print("=" * 9, flush=True)
"""


def on_terminal(folder: Path, width: int, *commands: str) -> list[str]:
    """What the program writes to a terminal of so many columns; one process for all commands."""
    leader, follower = pty.openpty()
    env = environment(COLUMNS=str(width), LINES="24", NO_COLOR="1", TERM="xterm")
    child = subprocess.Popen(
        [sys.executable, "-c", IN_TURN, *(f"{one} {' '.join(AT)}" for one in commands)],
        cwd=folder, env=env, stdout=follower, stderr=follower, stdin=follower,
    )  # fmt: skip
    os.close(follower)
    out = b""
    while True:
        try:
            part = os.read(leader, 65_536)
        except OSError:  # Linux says so at the end of a terminal
            part = b""
        if not part:
            break
        out += part
    child.wait()
    os.close(leader)
    found = out.decode().replace("\r\n", "\n").split(f"{'=' * 9}\n")
    assert len(found) == len(commands) + 1, found[-1]
    return found[:-1]


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_a_terminal_and_let_no_escape_through(
    crm: Cli, folder: Path, width: int
) -> None:
    sent(crm, "C-1", "C-2", "C-3", "C-3")
    sql(
        folder,
        f"UPDATE msgworker_message SET object_id = '{EVIL}' || msg_id, topic = '{EVIL}',"
        f" last_error = 'E: {EVIL} {'long ' * 60}', claimed_by = '{EVIL}', claimed_at = created_at,"
        " error_try_times = 1, status = CASE msg_id WHEN 1 THEN -1 WHEN 2 THEN 1 ELSE 0 END",
    )
    commands = (*LOOKS, "explain 2")
    for command, text in zip(commands, on_terminal(folder, width, *commands), strict=True):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert ("\\x1b" in text) is (command not in OF_NO_ROW), text
        assert all(wcswidth(line) <= width for line in text.split("\n")), text


@pytest.mark.long
def test_no_look_fails_on_a_table_of_odd_rows(crm: Cli, folder: Path) -> None:
    first = sent(crm, "good")[0]
    odd = {
        "payload": "CAST(x'ff' AS TEXT)",
        "object_id": "CAST(x'ff' AS TEXT)",
        "topic": "CAST(x'ff' AS TEXT)",
        "last_error": "CAST(x'ff' AS TEXT)",
        "created_at": "''",
        "available_at": "'garbage'",
        "finished_at": "strftime('%s', 'now')",
        "error_try_times": "'two'",
    }
    for column, value in odd.items():
        sql(folder, f"INSERT INTO msgworker_message ({column}) VALUES ({value})")
    sql(folder, "UPDATE msgworker_message SET topic = 'settle' WHERE topic = 'default'")
    for after_a_drain in (False, True):
        if after_a_drain:
            done = crm("drain", *AT, "--linger", "0", "--time-limit", "60")
            assert done.exit_code == 1, done.stderr  # of the dead
        ids = [str(i) for i in range(first, first + len(odd) + 1)]
        looks = [*LOOKS, *(f"{look} {i}" for look in ("show", "explain") for i in ids)]
        looks += [f"{look} --json" for look in looks]
        for look in [*looks, "purge --older-than 1h --dry-run"]:
            done = crm(*look.split(), *AT)
            fine = (0, 5) if look.split()[0] in ("audit", "partitions", "purge") else (0,)
            assert done.exit_code in fine, (look, done.stderr, done.exception)
    shown = crm("show", first + 5, *AT).stdout
    assert 'created_at holds ""' in shown
    assert json.loads(crm("show", first + 6, *AT, "--json").stdout)["odd"] == {
        "available_at": '"garbage"'
    }
