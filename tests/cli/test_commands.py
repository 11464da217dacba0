"""What each command does, prints and returns."""

from __future__ import annotations

import gc
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from msgworker import App
from msgworker.cli.group import COMMANDS
from msgworker.db.database import NAMES
from tests.support.leases import registered
from tests.support.programs import AT, Cli, dead, sql
from tests.support.rows import edit
from tests.support.spans import PARENT


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli: Cli, command: str) -> None:
    done = cli(command, "--help")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: msgworker {command} ")
    lines = [line.strip() for line in done.stdout.splitlines()]
    options = [line for line in lines if line.startswith("--")]
    assert "--config FILE" in done.stdout
    assert "--debug" in " ".join(options)


def test_main_help_lists_all_commands_and_exit_codes(cli: Cli) -> None:
    done = cli("--help")
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    assert "Exit codes:" in done.stdout
    assert cli("--version").stdout.startswith("msgworker, version ")


def test_who_only_works_keeps_its_imports_out_of_the_garbage_collector(crm: Cli) -> None:
    gc.unfreeze()
    try:
        assert crm("status", "--app", "crm:app").exit_code == 0
        assert gc.get_freeze_count() == 0
        assert crm("drain", "crm:app", "--linger", 0).exit_code == 0
        kept = gc.get_freeze_count()
        assert kept > 10_000
        assert crm("drain", "crm:app", "--linger", 0).exit_code == 0
        assert gc.get_freeze_count() <= kept  # only what has ended since is missing
    finally:
        gc.unfreeze()


def test_init_db_makes_the_schema_once(cli: Cli) -> None:
    first = json.loads(cli("init-db", *AT, "--json").stdout)
    assert first["table"] == "msgworker_message"
    assert {"msgworker_message", "msgworker_lease", "msgworker_item"} <= set(first["created"])
    assert "nothing to do" in cli("init-db", *AT).stdout


@pytest.mark.parametrize("dialect", NAMES)
def test_ddl_prints_a_script_without_connecting(cli: Cli, dialect: str) -> None:
    done = cli("ddl", "--dialect", dialect, "--table", "tb_cus_msg")
    assert done.exit_code == 0
    assert "CREATE TABLE tb_cus_msg" in done.stdout
    assert "CREATE UNIQUE INDEX tb_cus_msg_guard" in done.stdout
    assert done.stderr == ""


def test_ddl_with_partitions(cli: Cli) -> None:
    done = cli("ddl", "--dialect", "postgresql", "--partitions", "8", "--table", "crm.tb_cus_msg")
    assert done.exit_code == 0
    assert "PARTITION BY HASH (object_id)" in done.stdout
    made = re.findall(r"TABLE crm.tb_cus_msg_p\d PARTITION OF crm.tb_cus_msg\s", done.stdout)
    assert len(made) == 8
    assert "_unique " not in done.stdout


@pytest.mark.parametrize("dialect", [name for name in NAMES if name != "postgresql"])
def test_ddl_with_partitions_where_there_are_none(cli: Cli, dialect: str) -> None:
    done = cli("ddl", "--dialect", dialect, "--partitions", "8")
    assert done.exit_code == 2
    assert "--partitions is for PostgreSQL: " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("count", ["0", "1", "129", "many"])
def test_ddl_with_too_few_or_too_many_partitions(cli: Cli, count: str) -> None:
    done = cli("ddl", "--dialect", "postgresql", "--partitions", count)
    assert done.exit_code == 2
    assert done.stdout == ""


def test_ddl_for_a_database_nobody_knows(cli: Cli) -> None:
    done = cli("ddl", "--dialect", "dbase")
    assert done.exit_code == 2
    assert all(name in done.stderr for name in NAMES)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (["--payload", '{"a": [1, "å"]}'], '{"a":[1,"å"]}'),
        (["--payload", "@in.json"], '{"n":7}'),
        (["--payload", "-"], '{"n":8}'),
        (["--payload", "null"], None),
        ([], None),
    ],
)
def test_send_takes_json_a_file_or_stdin(
    crm: Cli, folder: Path, given: list[str], stored: str | None
) -> None:
    (folder / "in.json").write_text('{"n": 7}')
    done = crm("send", "settle", "--object-id", "C-1", *given, *AT, input='{"n": 8}')
    assert done.exit_code == 0, done.stderr
    row = sql(folder, "SELECT msg_id, topic, object_id, payload, status FROM msgworker_message")
    assert row == [(int(done.stdout), "settle", "C-1", stored, 0)]


@pytest.mark.long
def test_send_with_delay_waits(crm: Cli, folder: Path) -> None:
    done = crm("send", "settle", "--delay", "5m", *AT, "--json")
    said = {"msg_id": 1, "topic": "settle", "object_id": None, "operation": 1}
    assert json.loads(done.stdout) == said
    ahead = "SELECT (julianday(available_at) - julianday('now')) * 86400 FROM msgworker_message"
    assert 200 < sql(folder, ahead)[0][0] < 301


def test_a_send_is_in_the_audit_where_there_is_one(crm: Cli, folder: Path) -> None:
    done = crm("send", "settle", "--reason", "by hand", "--actor", "ann", *AT, "--json")
    assert json.loads(done.stdout)["operation"] == 1
    assert crm("send", "settle", *AT).stdout == "2\n"
    second, first = json.loads(crm("audit", *AT, "--json").stdout)
    assert (first["kind"], first["actor"], first["reason"]) == ("send", "ann", "by hand")
    assert (first["filter"], first["changed"]) == ({"ids": [1], "topic": "settle"}, 1)
    assert (second["kind"], second["reason"]) == ("send", None)
    wrong = crm("send", "settle", "--priority", "-1", *AT)
    assert (wrong.exit_code, len(json.loads(crm("audit", *AT, "--json").stdout))) == (2, 2)
    sql(folder, "DROP TABLE msgworker_audit")
    sql(folder, "DROP TABLE msgworker_operation")
    plain = crm("send", "settle", *AT)
    assert (plain.exit_code, plain.stdout) == (0, "3\n")
    assert "sent, but not in the audit" in plain.stderr
    refused = crm("send", "settle", "--reason", "by hand", *AT)
    assert (refused.exit_code, "msgworker_operation" in refused.stderr) == (4, True)
    assert sql(folder, "SELECT count(*) FROM msgworker_message") == [(3,)]


def test_send_with_a_priority_is_shown_by_list_and_show(crm: Cli, folder: Path) -> None:
    assert crm("send", "settle", "--priority", "5", *AT).exit_code == 0
    assert sql(folder, "SELECT priority FROM msgworker_message") == [(5,)]
    assert "priority 5" in crm("list", *AT).stdout
    assert "priority    5\n" in crm("show", "1", *AT).stdout
    listed = json.loads(crm("list", *AT, "--json").stdout)
    assert listed["messages"][0]["priority"] == 5


def test_send_with_a_unique_key_gives_the_id_of_its_holder(crm: Cli, folder: Path) -> None:
    given = ("send", "settle", "--unique-key", "inv-77", *AT)
    assert crm(*given, "--unique", "kept").stdout == crm(*given).stdout == "1\n"
    assert sql(folder, "SELECT unique_key, unique_kept FROM msgworker_message") == [("inv-77", 1)]
    assert "unique key  inv-77, kept until" in crm("show", "1", *AT).stdout
    refused = crm(*given, "--on-duplicate", "raise")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "the unique key 'inv-77' is held by message 1" in refused.stderr


def test_send_warns_of_a_topic_that_the_app_does_not_take(crm: Cli) -> None:
    done = crm("send", "setle", *AT)
    assert done.exit_code == 0
    assert "no handler here takes topic setle" in done.stderr


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--payload", "{a: 1}"], "--payload: the payload is not JSON"),
        (["--payload", "NaN"], "NaN is not JSON"),
        (["--payload", "[" * 100_000], "nested too deeply"),
        (["--payload", ""], "--payload is empty"),
        (["--payload", "@absent.json"], "absent.json cannot be read"),
        (["--payload", "@."], "cannot be read"),
        (["--payload", "@latin.json"], "latin.json is not UTF-8"),
        (["--delay", "soon"], "--delay must be a duration"),
        (["--delay", "-5"], "--delay must be a duration"),
        (["--object-id", "x" * 191], "at most 190"),
        (["--priority", "-1"], "priority must be a whole number from 0"),
        (["--priority", "40000"], "to 32767"),
    ],
)
def test_send_refuses(crm: Cli, folder: Path, given: list[str], text: str) -> None:
    (folder / "latin.json").write_bytes(b'"\xff"')
    done = crm("send", "settle", *given, *AT)
    assert (done.exit_code, done.stdout) == (2, "")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert sql(folder, "SELECT count(*) FROM msgworker_message") == [(0,)]


def test_status_counts_by_topic_and_state(crm: Cli, folder: Path) -> None:
    assert "holds no messages" in crm("status", *AT).stdout
    dead(crm, folder, 2, "invoice")
    crm("send", "settle", *AT)
    text = crm("status", *AT).stdout.splitlines()
    words = ["NEW", "PROCESSING", "DONE", "FAILED", "DEAD"]
    assert text[0].split() == ["TOPIC", *words, "OLDEST", "OPEN"]
    assert text[1].split()[:6] == ["invoice", "-", "-", "-", "-", "2"]
    assert text[2].split()[:6] == ["settle", "1", "-", "-", "-", "-"]
    assert text[3].split()[:7] == ["all", "topics", "1", "-", "-", "-", "2"]
    found = json.loads(crm("status", *AT, "--json").stdout)
    assert set(found) == {"database", "table", "counts", "limits", "paused_jobs"}
    assert found["limits"] == []
    assert [(c["status"], c["topic"], c["count"]) for c in found["counts"]] == [
        ("new", "settle", 1),
        ("dead", "invoice", 2),
    ]
    assert all(isinstance(c["oldest_seconds"], float) for c in found["counts"])


def test_status_says_what_waits_for_a_limit(crm: Cli, folder: Path) -> None:
    for _ in range(3):
        crm("send", "settle", *AT)
    sql(
        folder,
        "INSERT INTO msgworker_limit (table_name, topic, max_running, rate_starts, burst, full_us, "
        "declared_by, declared_at) VALUES ('msgworker_message', 'settle', 1, 2, 9, 0, 'x', "
        "'2026-11-22 10:00:00')",
    )
    sql(folder, "UPDATE msgworker_message SET status = 1, claimed_by = 'w' WHERE msg_id = 1")
    text = crm("status", *AT).stdout.splitlines()
    use = "1 of 1 running, rate 2/s (9 of 9 starts)"
    assert text[-1] == f"limits of settle: {use}, 2 wait for a permit"
    assert f"limits of its topic: {use}" in crm("explain", "2", *AT).stdout
    assert crm("limits", *AT).stdout.splitlines()[-1].split()[:3] == ["settle", "1/1", "2"]
    (limit,) = json.loads(crm("limits", *AT, "--json").stdout)
    assert (limit["new"], limit["holders"]) == (2, {"w": 1})
    (limit,) = json.loads(crm("status", *AT, "--json").stdout)["limits"]
    assert (limit["topic"], limit["running"], limit["new"]) == ("settle", 1, 2)
    assert limit["waits_for"] == "a permit of settle: 1 of 1 running, held by w (1)"
    sql(folder, "UPDATE msgworker_message SET object_id = 'o' || msg_id")
    registered(App(f"sqlite:///{folder}/crm.db"), "live-1", topics=["settle"])
    assert "waits for a permit of settle" in " ".join(crm("lanes", *AT).stdout.split())


def test_status_shows_what_nobody_knows(crm: Cli, folder: Path) -> None:
    crm("send", "settle", *AT)
    sql(folder, "UPDATE msgworker_message SET status = 99")
    assert "UNKNOWN" in crm("status", *AT).stdout


def test_list_has_stable_keys_and_pages(crm: Cli, folder: Path) -> None:
    ids = dead(crm, folder, 3)
    page = json.loads(crm("list", *AT, "--json", "--status", "dead", "--limit", "2").stdout)
    assert page["next_after"] == ids[1]
    keys = ["msg_id", "object_id", "topic", "status", "error_try_times", "available_at"]
    keys += ["claimed_by", "claimed_at", "crash_times", "last_error", "created_at", "finished_at"]
    keys += ["later_times", "later_reason", "priority", "unique_key", "unique_kept"]
    keys += ["scheduled_for", "job_id", "odd", "trace_id", "acknowledged", "changed"]
    assert [list(m) for m in page["messages"]] == [keys, keys]
    first = page["messages"][0]
    assert (first["status"], first["error_try_times"]) == ("dead", 3)
    assert datetime.fromisoformat(first["created_at"]).tzinfo is not None
    assert first["created_at"].endswith("Z")
    rest = json.loads(crm("list", *AT, "--json", "--after", ids[1]).stdout)
    assert ([m["msg_id"] for m in rest["messages"]], rest["next_after"]) == ([ids[2]], None)


def test_list_filters(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 3)
    crm("send", "other", *AT, "--object-id", "X")

    def found(*filters: str) -> int:
        done = crm("list", *AT, "--json", *filters)
        messages = json.loads(done.stdout)["messages"]
        assert done.exit_code == (0 if messages else 5)
        return len(messages)

    assert found("--status", "dead") == 3
    assert found("--topic", "other") == 1
    assert found("--object-id", "C-1") == 1
    assert found("--error", "ValueError") == 3
    assert found("--error", "%") == 0
    assert found("--since", "1h") == 4
    assert found("--since", "2099-01-01T00:00Z") == 0
    assert found("--status", "done") == 0


def test_list_says_why_in_words(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 1)
    crm("send", "settle", *AT, "--delay", "1h")
    lines = crm("list", *AT).stdout.splitlines()
    assert lines[0].split() == ["ID", "STATUS", "TRIES", "TOPIC", "OBJECT", "AGE", "WHAT"]
    assert "dead        3  " in lines[1]  # of how many says nothing when none is left
    assert lines[1].endswith("ValueError: x")
    assert lines[2].endswith("minutes")
    assert "due in" in lines[2]


@pytest.mark.parametrize(
    "given",
    [
        ("--limit", "-1"),
        ("--limit", "0"),
        ("--limit", 10**12),
        ("--limit", "x"),
        ("--status", "old"),
        ("--since", "yesterday"),
        ("--since", "9" * 12 + "w"),
        ("--since", "9999-12-31T23:59:59-14:00"),
        ("--after", 10**30),
        ("--nonsense",),
    ],
)
def test_list_refuses(crm: Cli, given: tuple[Any, ...]) -> None:
    done = crm("list", *AT, *given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("msgworker: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "args"),
    [
        ("--since", ("list",)),
        ("--since", ("rerun",)),
        ("--older-than", ("purge",)),
        ("--older-than", ("release", "--nobody")),
        ("--available-at", ("edit", "1", "--reason", "r")),
    ],
)
def test_a_time_without_a_zone_is_refused(crm: Cli, option: str, args: tuple[str, ...]) -> None:
    """The same text is the same instant everywhere, whatever the zone of the host."""
    for text, shown in (
        ("2026-01-02T12:00", "2026-01-02T12:00:00Z"),
        ("2026-01-02", "2026-01-02T00:00:00Z"),
    ):
        done = crm(*args, option, text, *AT)
        says = f"msgworker: {option} needs its time zone, such as {shown}; got '{text}'\n"
        assert (done.exit_code, done.stderr) == (2, says)
        assert crm(*args, option, shown, *AT).exit_code == 5


def test_a_rejected_message_is_not_said_to_have_failed_three_times(crm: Cli, folder: Path) -> None:
    (one,) = dead(crm, folder, 1)
    sql(
        folder,
        "INSERT INTO msgworker_try (table_name, msg_id, try_no, kind, ended_at, error) VALUES "
        f"('msgworker_message', {one}, 1, 'rejected', '2026-01-01 00:00:00.000', 'ValueError: x')",
    )
    text = crm("show", one, *AT).stdout
    assert "dead, rejected at its first try" in text
    assert "3 of 3" not in text
    listed = crm("list", *AT).stdout
    assert "rejected at its first try; ValueError: x" in listed
    assert "3/3" not in listed
    assert "rejected at its first try" in crm("explain", one, *AT).stdout
    assert json.loads(crm("show", one, *AT, "--json").stdout)["ending"]["how"] == "rejected"


def test_show_tells_all_about_one(crm: Cli, folder: Path) -> None:
    ids = dead(crm, folder, 1)
    text = crm("show", ids[0], *AT).stdout
    for part in ("dead, no tries left", "topic       settle", "object      C-0", '"n": 1'):
        assert part in text
    assert "last error\n  ValueError: x" in text
    assert f"commands    msgworker rerun crm:app {ids[0]}, or discard, acknowledge, edit" in text
    found = json.loads(crm("show", ids[0], *AT, "--json").stdout)
    assert (found["payload"], found["payload_cut"], found["status"]) == ('{"n":1}', False, "dead")


def test_show_names_the_trace_in_which_a_message_was_sent(crm: Cli, folder: Path) -> None:
    msg_id = crm("send", "settle", *AT).stdout.strip()
    edit(App(f"sqlite:///{folder}/crm.db"), int(msg_id), headers=f'{{"traceparent": "{PARENT}"}}')
    assert f"trace       {PARENT.split('-')[1]}" in crm("show", msg_id, *AT).stdout


@pytest.mark.parametrize(
    ("msg_id", "code"), [("7", 5), ("x", 2), ("1;--", 2), ("9" * 30, 2), ("٣", 2)]
)
def test_show_of_what_is_not_there(crm: Cli, msg_id: str, code: int) -> None:
    done = crm("show", msg_id, *AT)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1


def test_rerun_by_id(crm: Cli, folder: Path) -> None:
    ids = dead(crm, folder, 1)
    assert crm("rerun", ids[0], *AT, "--dry-run").stdout.startswith("would rerun 1 message\n")
    assert sql(folder, "SELECT status FROM msgworker_message") == [(-1,)]
    assert crm("rerun", ids[0], *AT).stdout == "rerun 1\n"
    assert sql(folder, "SELECT status, error_try_times FROM msgworker_message") == [(0, 0)]


def test_rerun_of_many_asks_or_wants_yes(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 3)
    done = crm("rerun", "--dead", *AT)
    assert done.exit_code == 2
    assert "Set 3 messages" in done.stderr
    assert "--yes" in done.stderr
    assert sql(folder, "SELECT DISTINCT status FROM msgworker_message") == [(-1,)]
    done = crm("rerun", "--dead", "--yes", *AT, "--json")
    found = json.loads(done.stdout)
    assert list(found) == ["operation", "matched", "rerun", "skipped", "why", "dry_run"]
    assert (found["matched"], found["rerun"], found["dry_run"]) == (3, 3, False)
    assert crm("rerun", "--dead", *AT).exit_code == 5


def test_rerun_says_why_not(crm: Cli, folder: Path) -> None:
    ids = dead(crm, folder, 4)
    for status, msg_id in zip((0, 1, 2), ids, strict=False):
        sql(folder, f"UPDATE msgworker_message SET status = {status} WHERE msg_id = {msg_id}")
    done = crm("rerun", *ids, 99, *AT)
    assert done.exit_code == 5
    assert done.stdout == "rerun 1\n"
    for text in ("is new", "is running", "is done; --force", "message 99 does not exist"):
        assert text in done.stderr
    assert crm("rerun", ids[2], "--force", *AT).stdout == "rerun 1\n"
    states = sql(folder, "SELECT status FROM msgworker_message ORDER BY msg_id")
    assert states == [(0,), (1,), (0,), (0,)]


@pytest.mark.parametrize(
    "given",
    [(), ("1", "--dead"), ("1", "--topic", "t"), ("one",), ("-1",), ("1;--",), (str(10**30),)],
)
def test_rerun_on_the_command_line_refuses(crm: Cli, given: tuple[str, ...]) -> None:
    done = crm("rerun", *given, *AT)
    assert (done.exit_code, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "option",
    [
        ("--group", "abc"),
        ("--dead-unacknowledged",),
        ("--dead",),
        ("--object-id", "a"),
        ("--topic", ""),
        ("--job", "3"),
        ("--since", "2h"),
    ],
)
def test_a_filter_beside_ids_is_named_as_it_was_written(crm: Cli, option: tuple[str, ...]) -> None:
    done = crm("acknowledge", "5", *option, "--reason", "r", *AT)
    assert done.exit_code == 2
    assert done.stderr == f"msgworker: give ids or a filter, not both: {option[0]}\n"


def test_config_shows_value_and_origin(cli: Cli, folder: Path) -> None:
    (folder / "msgworker.toml").write_text("threads = 9\n[columns]\nmsg_id = 'ID'\npayload = false")
    done = cli("config", "--json", "--grace", "2m", env={"MSGWORKER_LINGER": "1s"})
    found = {row["setting"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)}
    assert found["threads"] == (9, "msgworker.toml")
    assert found["grace"] == (120.0, "option --grace")
    assert found["linger"] == (1.0, "environment MSGWORKER_LINGER")
    assert found["url"] == (None, "default")
    text = cli("config").stdout
    assert "msg_id=ID, payload=none" in text
    with_app = json.loads(cli("config", "--json", "--app", "crm:app").stdout)
    values = {row["setting"]: (row["value"], row["origin"]) for row in with_app}
    assert values["lease_seconds"] == (9.0, "crm:app")
    assert values["lanes_limit"] == (1000, "default")
    assert values["threads"] == (9, "msgworker.toml")


def test_config_names_what_an_app_has_read(cli: Cli, folder: Path) -> None:
    (folder / "msgworker.toml").write_text(
        "url = 'sqlite:///c.db'\nlease_seconds = 12\nthreads = 2"
    )
    (folder / "read.py").write_text("from msgworker import App\napp = App.from_config()\n")
    done = cli("config", "read:app", "--json", env={"MSGWORKER_RUN_LIMIT": "7"})
    found = {row["setting"]: row["origin"] for row in json.loads(done.stdout)}
    names = ("url", "table", "lease_seconds", "run_limit", "lanes_limit", "threads")
    toml, variable = "msgworker.toml", "environment MSGWORKER_RUN_LIMIT"
    assert [found[name] for name in names] == [toml, "default", toml, variable, "default", toml]


def test_without_a_command_the_help_is_printed(cli: Cli) -> None:
    done = cli()
    assert (done.exit_code, done.stderr) == (2, "")
    assert done.stdout == cli("--help").stdout


def test_config_file_is_taken_from_the_flag(cli: Cli, folder: Path) -> None:
    (folder / "other.toml").write_text("threads = 3")
    found = json.loads(cli("config", "--json", "--config", "other.toml").stdout)
    assert {"setting": "threads", "value": 3, "origin": "other.toml"} in found


def test_url_and_table_from_configuration_reach_a_foreign_table(cli: Cli, folder: Path) -> None:
    sql(
        folder,
        "CREATE TABLE tb_cus_msg (msgID INTEGER PRIMARY KEY, objectID TEXT, status INT NOT NULL"
        " DEFAULT 0, errorTryTimes INT NOT NULL DEFAULT 0)",
    )
    (folder / "pyproject.toml").write_text(
        '[tool.msgworker]\nurl = "sqlite:///${NAME}.db"\ntable = "tb_cus_msg"\nmax_tries = 5\n'
        '[tool.msgworker.columns]\nmsg_id = "msgID"\nobject_id = "objectID"\n'
        'error_try_times = "errorTryTimes"\npayload = false\n'
    )
    env = {"NAME": "crm"}
    assert cli("init-db", env=env).exit_code == 0
    assert cli("send", "default", "--object-id", "C-1", env=env).stdout == "1\n"
    sql(folder, "UPDATE tb_cus_msg SET status = -1, errorTryTimes = 4")
    found = json.loads(cli("list", "--json", env=env).stdout)["messages"]
    assert [(m["msg_id"], m["status"]) for m in found] == [(1, "failed")]
    four = ("--max-tries", "4")
    looked = json.loads(cli("list", "--json", *four, env=env).stdout)["messages"]
    assert looked[0]["status"] == "failed"  # by the rule of the table
    changed = cli("init-db", *four, env=env)
    assert "created rule max_tries=4, on_dead=continue" in changed.stdout
    assert "failed messages that are dead by it: 1" in changed.stderr
    dead = json.loads(cli("list", "--json", env=env).stdout)["messages"]
    assert dead[0]["status"] == "dead"


@pytest.mark.parametrize(
    ("text", "says"),
    [("[columns]\nnope = 'x'", "nope"), ("[schedule.x]\nevery = '5x'\ntopic = 't'", "'5x'")],
)
def test_config_refuses_what_all_other_commands_refuse(
    cli: Cli, folder: Path, text: str, says: str
) -> None:
    (folder / "msgworker.toml").write_text(text)
    done = cli("config")
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr


def test_an_error_in_the_value_of_an_option_names_the_help_of_its_command(crm: Cli) -> None:
    done = crm("limits", "crm:app", "--remove")
    assert done.exit_code == 2
    assert "See `msgworker limits --help`" in done.stderr


def test_which_rows_are_messages_is_a_setting(cli: Cli, folder: Path) -> None:
    """Without it, commands do not touch a table that an App uses with one."""
    url, table = ("--url", "sqlite:///crm.db"), ("--table", "legacy")
    where = ("--where", '{"tenant": 7, "gone_at": null}')
    env = {"MSGWORKER_WHERE": where[1]}
    assert cli("init-db", *url, *table, *where).exit_code == 0
    assert cli("send", "default", *url, *table, env=env).stdout == "1\n"
    sql(folder, "INSERT INTO legacy (tenant, object_id) VALUES (8, 'theirs')")
    listed = cli("list", "--json", *url, *table, *where)
    assert [one["msg_id"] for one in json.loads(listed.stdout)["messages"]] == [1]
    shown = cli("config", "--json", *where).stdout
    (found,) = [one for one in json.loads(shown) if one["setting"] == "where"]
    assert found["value"] == {"tenant": 7, "gone_at": None}
    assert "tenant=7, gone_at=none" in cli("config", env=env).stdout
    (folder / "others.py").write_text(
        "from msgworker import App, MessageTable\n"
        'spec = MessageTable("legacy", where={"tenant": 7, "gone_at": None})\n'
        'app = App("sqlite:///crm.db", table=spec)\n'
    )
    told = json.loads(cli("config", "--json", "others:app").stdout)
    (own,) = [one for one in told if one["setting"] == "where"]
    assert (own["value"], own["origin"]) == (found["value"], "others:app")
    assert cli("doctor", "others:app").exit_code == 0
    made = list_of_indexes(folder)
    for args in (("init-db",), ("db", "upgrade"), ("status",), ("doctor",), ("rerun", "1")):
        done = cli(*args, *url, *table)
        assert done.exit_code == 4, args
        assert "is the guard of an App with a where=" in re.sub(r"\s+", " ", done.output)
    assert cli("doctor", "--sql", "--advised", *url, *table).stdout == ""
    assert list_of_indexes(folder) == made
    done = cli("status", *url, *table, "--where", "tenant = 7")
    assert done.exit_code == 2
    assert "--where must look like" in done.stderr


def list_of_indexes(folder: Path) -> list[Any]:
    return sql(folder, "SELECT name FROM sqlite_master WHERE type = 'index' ORDER BY 1")


def test_nothing_raw_reaches_the_terminal(crm: Cli, folder: Path) -> None:
    evil = "C\x1b]0;owned\x07\u202e\u2066\x9b31m"
    crm("send", "settle", *AT, "--object-id", evil, "--payload", json.dumps({"x": evil}))
    sql(folder, "UPDATE msgworker_message SET status = -1, error_try_times = 3, "
        "last_error = char(27) || '[2J' || char(8238) || char(10) || 'x'")  # fmt: skip
    for args in (("list",), ("show", 1), ("status",), ("list", "--json"), ("show", 1, "--json")):
        done = crm(*args, *AT)
        assert done.exit_code == 0
        for char in "\x1b\x07\u202e\u2066\x9b":
            assert char not in done.stdout, args
    assert json.loads(crm("show", 1, *AT, "--json").stdout)["object_id"] == evil


@pytest.mark.parametrize("given", [("run", "{}"), ("list", "--table={}"), ("list", "--app", "{}")])
def test_a_password_in_a_url_in_the_wrong_place_is_masked(cli: Cli, given: tuple[str, ...]) -> None:
    url = "postgresql://u:Canary-4711@h/db"
    done = cli(*(one.format(url) for one in given))
    assert done.exit_code == 2
    assert "Canary" not in done.output
