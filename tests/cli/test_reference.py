"""What all commands have in common: how the App is named, and what --json leaves as it is."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import click
import pytest

from msgworker.cli import main
from msgworker.cli.group import COMMANDS, app_as_option, is_reference, takes_app
from msgworker.cli.options import TARGET
from msgworker.commands import Started, proposed, started, takes
from msgworker.store import bounded
from tests.support.programs import LOOKS, WRITES, Cli, dead, sql

REST: dict[str, tuple[str, ...]] = {
    "init-db": ("--json",),
    "db": ("upgrade", "--dry-run"),
    "ddl": ("--dialect", "oracle"),
    "run": ("--time-limit", "0", "--quiet"),
    "drain": ("--linger", "0", "--time-limit", "0", "--json"),
    "web": ("--host", "0.0.0.0"),
    "send": ("settle", "--object-id", "crm:app"),
    "status": ("--json",),
    "list": ("--object-id", "C-0"),
    "show": ("1",),
    "explain": ("1",),
    "failures": ("--limit", "2"),
    "rerun": ("1", "2", "--dry-run"),
    "discard": ("1", "--dry-run"),
    "cancel": ("1", "--dry-run"),
    "acknowledge": ("1", "--dry-run"),
    "edit": ("1", "--topic", "other", "--dry-run"),
    "release": ("nobody",),
    "purge": ("--older-than", "1d"),
    "pause": ("settle", "--dry-run"),
    "resume": ("settle",),
    "limits": ("--json",),
    "schedules": ("--json",),
    "jobs": ("--json",),
    "audit": ("1",),
    "lanes": (),
    "instances": (),
    "doctor": ("--sql",),
    "config": ("--json",),
    "locks": ("--prefix", "a"),
    "partitions": ("--json",),
    "deal": ("asA", "--once"),
}
REFUSED = {"deal": 4, "web": 2}
"""Commands that this table is not made for, and the one that would serve without end."""


def test_every_command_but_demo_takes_an_app() -> None:
    assert set(REST) == set(COMMANDS) - {"demo"}


def test_every_command_looks_or_writes() -> None:
    """LOOKS is what is tested for secrets, escapes, widths, odd rows and rights."""
    looks = [look.split()[0] for look in LOOKS]
    assert sorted([*looks, *WRITES]) == sorted(COMMANDS)


ALIKE: dict[str, tuple[str, ...]] = {
    **REST,
    "jobs": ("resume", "1"),
    "jobs show": ("show", "2"),
    "jobs seal": ("seal", "2"),
    "jobs cancel": ("cancel", "2", "--reason", "r"),
    "list": ("--topic", "other"),
    "list done": ("--status", "done", "--object-id", "C-9"),
    "schedules": ("resume", "nightly"),
    "locks": ("--release", "a"),
    "limits": ("--remove", "other"),
    "audit": (),
    "rerun": ("1", "9"),
    "rerun --topic": ("--topic", "other"),
    "release --nobody": ("--nobody", "--any-age"),
    "partitions": (),
    "doctor": (),
    "show": ("9",),
    "explain": ("9",),
    "edit": ("9", "--topic", "other", "--dry-run"),
}
"""Calls whose exit code must not depend on --json: most find nothing."""


@pytest.mark.quick("drain|rerun|jobs|list|doctor|status")
@pytest.mark.parametrize("call", [one for one in ALIKE if one not in ("ddl", "run", "web")])
def test_the_exit_code_is_the_same_with_json(crm: Cli, folder: Path, call: str) -> None:
    dead(crm, folder, 2)
    sql(folder, "INSERT INTO msgworker_job (table_name, name) VALUES ('msgworker_message', 'a')")
    shutil.copy(folder / "crm.db", folder / "before.db")
    args = (call.split()[0], "crm:app", *(one for one in ALIKE[call] if one != "--json"))
    plain = crm(*args)
    shutil.copy(folder / "before.db", folder / "crm.db")
    done = crm(*args, "--json")
    assert done.exit_code == plain.exit_code, (plain.stderr, done.stderr)
    if plain.exit_code in (0, 5) and done.stdout:
        json.loads(done.stdout)


def test_a_part_without_a_match_is_no_list_without_one(
    crm: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(crm, folder, 3)
    sql(folder, "UPDATE msgworker_message SET status = 2")
    monkeypatch.setattr(bounded, "SCAN", 2)
    asked = ("list", "crm:app", "--status", "done", "--topic", "other")
    for more in ((), ("--json",)):
        assert crm(*asked, *more).exit_code == 0
        assert crm(*asked, *more, "--after", "2").exit_code == 5
    more = "msgworker list crm:app --status done --topic other --after 2\n"
    assert crm(*asked).stderr.endswith(f"so far; continue with: {more}")


@pytest.mark.parametrize(
    "args",
    [
        ("jobs", "pause", "1"),
        ("jobs", "seal", "1"),
        ("jobs", "cancel", "1"),
        ("pause", "settle"),
        ("rerun", "1"),
        ("edit", "1", "--topic", "other"),
        ("purge", "--older-than", "1d"),
        ("db", "upgrade"),
    ],
)
def test_a_dry_run_says_so_in_json(crm: Cli, folder: Path, args: tuple[str, ...]) -> None:
    dead(crm, folder, 1)
    sql(folder, "INSERT INTO msgworker_job (table_name, name) VALUES ('msgworker_message', 'a')")
    done = crm(args[0], "crm:app", *args[1:], "--dry-run", "--json")
    assert json.loads(done.stdout)["dry_run"] is True, done.stderr


@pytest.mark.parametrize(
    "args", [("rerun", "--dead"), ("cancel", "--topic", "other"), ("release", "x")]
)
def test_a_write_that_matches_nothing_is_no_dry_run_in_json(
    crm: Cli, args: tuple[str, ...]
) -> None:
    more = () if args[0] == "rerun" else ("--reason", "r")
    done = crm(args[0], "crm:app", *args[1:], *more, "--json")
    assert (done.exit_code, json.loads(done.stdout)["dry_run"]) == (5, False), done.stderr


def options(command: str, *args: str) -> list[str]:
    """The arguments as the command gets them."""
    ctx = click.Context(main)
    found = main.get_command(ctx, command)  # type: ignore[attr-defined]
    assert takes_app(found)
    return app_as_option(ctx, command, found, args)


def takes_action(command: str) -> bool:
    found = main.get_command(click.Context(main), command)  # type: ignore[attr-defined]
    return any(one.name == "action" for one in found.params)


def test_the_app_stands_before_an_action_or_behind_it(crm: Cli, folder: Path) -> None:
    dead(crm, folder, 1)
    sql(folder, "INSERT INTO msgworker_job (table_name, name) VALUES ('msgworker_message', 'a')")
    acts = {
        "jobs": ("show", "1"),
        "schedules": ("pause", "crm:nightly"),  # a name that looks like an App
        "db": ("version",),
    }
    assert set(acts) == {name for name in REST if takes_action(name)}
    for command, (action, *rest) in acts.items():
        first = crm(command, "crm:app", action, *rest)
        for way in (("crm:app", *rest), (*rest, "--app", "crm:app")):
            done = crm(command, action, *way)
            assert (done.exit_code, done.stderr) == (first.exit_code, first.stderr)
            assert done.stdout.splitlines()[:2] == first.stdout.splitlines()[:2]
        says = "no schedule 'crm:nightly'" if command == "schedules" else ""
        assert (first.exit_code, says in first.stderr) == (5 if says else 0, True), first.stderr
    for wrong, says in (
        (("jobs", "show", "crm:app"), "msgworker jobs crm:app show ID"),
        (("jobs", "crm:app", "show"), "msgworker jobs crm:app show ID"),
        (("jobs", "stop", "crm:app", "1"), "unknown action 'stop'"),
        (("jobs", "crm:app", "1"), "msgworker jobs crm:app show 1"),
        (("jobs", "show", "1", "crm:app"), "stands before the other arguments: msgworker jobs crm"),
        (("rerun", "1", "crm:app"), "stands before the other arguments: msgworker rerun crm:app "),
        (("send", "t", "crm:app"), "stands before the other arguments: msgworker send crm:app "),
        (("schedules", "pause", "n", "crm:app"), "other arguments: msgworker schedules crm:app "),
        (("jobs", "show", "crm:app", "1", "--app", "billing:app"), "two Apps are given"),
        (("schedules", "crm:app", "pause"), "msgworker schedules crm:app pause NAME"),
    ):
        done = crm(*wrong)
        assert (done.exit_code, says in done.stderr) == (2, True), (wrong, done.stderr)


@pytest.mark.quick("drain|^rerun|jobs|locks|schedules|status")
@pytest.mark.parametrize("command", REST)
def test_the_app_as_an_argument_is_the_app_as_an_option(
    crm: Cli, folder: Path, command: str
) -> None:
    dead(crm, folder, 2)
    rest = REST[command]
    ways = [("crm:app", *rest), ("--app=crm:app", "crm:app", *rest), (*rest, "--app", "crm:app")]
    if not rest or rest[0].startswith("--"):
        ways.append((*rest, "crm:app"))
    elif takes_action(command):
        ways.append((rest[0], "crm:app", *rest[1:]))
    for way in ways:
        found = options(command, *way)
        assert [word for word in found if word not in ("--app", "--app=crm:app", "crm:app")] == [
            word for word in rest if word != "crm:app"
        ]
    for way in (ways[0], ways[-1]):
        done = crm(command, *way)
        assert done.exit_code in (0, REFUSED.get(command, 5)), done.stderr
    without = crm(command, *rest)
    assert without.exit_code == (0 if command in ("ddl", "config") else 2)
    usage = crm(command, "--help").stdout.splitlines()[0]
    assert usage.startswith(f"Usage: msgworker {command} [OPTIONS] ")
    assert "PKG.MODULE:APP" in usage


@pytest.mark.parametrize(
    ("command", "given", "app", "left"),
    [
        ("show", ["crm:app", "42"], "crm:app", ["42"]),
        ("show", ["--json", "crm:app", "42"], "crm:app", ["--json", "42"]),
        ("show", ["42"], None, ["42"]),
        ("show", ["crm:app"], "crm:app", []),
        ("rerun", ["my.crm:app", "1", "2"], "my.crm:app", ["1", "2"]),
        ("rerun", ["--topic", "crm:app", "crm:app"], "crm:app", ["--topic", "crm:app"]),
        ("rerun", ["--topic", "a:b"], None, ["--topic", "a:b"]),
        ("rerun", ["--", "crm:app", "1"], "crm:app", ["--", "1"]),
        ("audit", ["crm:app"], "crm:app", []),
        ("audit", ["crm:app", "7"], "crm:app", ["7"]),
        ("send", ["crm:app", "settle"], "crm:app", ["settle"]),
        ("send", ["order:created"], None, ["order:created"]),
        ("send", ["crm:app", "order:created"], "crm:app", ["order:created"]),
        ("send", ["--app", "crm:app", "a:b"], "crm:app", ["--app", "crm:app", "a:b"]),
        ("resume", ["order:created"], None, ["order:created"]),
        ("release", ["host:one"], None, ["host:one"]),
        ("release", ["crm:app", "host:one"], "crm:app", ["host:one"]),
        ("release", ["crm:app", "--nobody"], "crm:app", ["--nobody"]),
        ("pause", ["crm:app"], "crm:app", []),
        ("pause", ["crm:app", "order:created"], "crm:app", ["order:created"]),
        ("pause", ["--app", "crm:app", "a:b"], "crm:app", ["--app", "crm:app", "a:b"]),
        ("pause", ["--url", "sqlite:///x", "a:b"], None, ["--url", "sqlite:///x", "a:b"]),
        ("jobs", ["show", "crm:app", "17"], "crm:app", ["show", "17"]),
        ("jobs", ["--json", "show", "crm:app", "17"], "crm:app", ["--json", "show", "17"]),
        ("jobs", ["show", "17"], None, ["show", "17"]),
        ("schedules", ["pause", "a:b"], None, ["pause", "a:b"]),
        ("schedules", ["pause", "crm:app", "a:b"], "crm:app", ["pause", "a:b"]),
        ("schedules", ["pause", "a:b", "--app", "c:d"], None, ["pause", "a:b", "--app", "c:d"]),
        ("db", ["upgrade", "crm:app", "--sql"], "crm:app", ["upgrade", "--sql"]),
        ("status", ["crm"], "crm", []),
        ("drain", ["--threads", "2", "../crm:app"], "../crm:app", ["--threads", "2"]),
        ("status", ["-x:y"], "error", []),
    ],
)
def test_what_is_the_app_and_what_is_not(
    command: str, given: list[str], app: str | None, left: list[str]
) -> None:
    if app == "error":
        with pytest.raises(click.UsageError, match="No such option"):
            options(command, *given)
        return
    found = options(command, *given)
    if app is None or "--app" in given:
        assert found == given == left
    else:
        assert found == [f"--app={app}", *left]


@pytest.mark.parametrize("command", REST)
def test_two_different_apps_are_refused(crm: Cli, command: str) -> None:
    done = crm(command, "crm:app", *REST[command], "--app", "billing:app")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "msgworker: two Apps are given, crm:app and --app billing:app; give one\n"
    )


def test_an_app_and_a_database_are_refused(crm: Cli) -> None:
    for given in (("status", "crm:app", "--url", "sqlite:///x.db"), ("show", "crm:app", "1")):
        done = crm(*given, *(() if "--url" in given else ("--table", "t")))
        assert (done.exit_code, "give --app or --" in done.stderr) == (2, True)


@pytest.mark.parametrize("command", ["run", "drain"])
def test_run_and_drain_say_how_an_app_is_named(cli: Cli, command: str) -> None:
    done = cli(command)
    assert done.exit_code == 2
    assert done.stderr == f"msgworker: name an App: msgworker {command} pkg.module:app\n"


def test_the_script_of_a_dba_is_that_of_the_app(cli: Cli, folder: Path) -> None:
    (folder / "own.py").write_text(
        "from msgworker import App, MessageTable\n"
        "app = App('sqlite:///x.db', table=MessageTable('crm_msg', msg_id='ident'))\n"
    )
    script = cli("ddl", "own:app", "--dialect", "postgresql").stdout
    assert "CREATE TABLE crm_msg" in script
    assert "ident " in script
    assert not (folder / "x.db").exists()


def test_the_app_first_shows_its_own_table(crm: Cli, folder: Path) -> None:
    (one, two) = dead(crm, folder, 2)
    assert json.loads(crm("show", "crm:app", two, "--json").stdout)["msg_id"] == two
    assert crm("rerun", "crm:app", one, two, "--yes").stdout == "rerun 2\n"
    assert sql(folder, "SELECT DISTINCT status FROM msgworker_message") == [(0,)]


def test_what_a_reference_looks_like() -> None:
    assert all(is_reference(text) for text in ("a:b", "a.b.c:d", "_x:y1", "päckchen:größe"))
    assert not any(is_reference(t) for t in ("", "a", ":", "a:", ":b", "1:2", "a:b:c", "a..b:c"))
    assert not any(is_reference(t) for t in ("vm-1:2", "a b:c", "a/b:c", "42", "a.py:1", "a:b c"))


GIVEN = [
    (("crm:app",), "crm:app"),
    (("--url", "sqlite:///crm.db", "--config", "of crm.toml"), None),
    (("--url", "sqlite:///crm.db?timeout=9", "--table", "msgworker_message"), None),
]


@pytest.mark.parametrize(("given", "told"), GIVEN)
def test_what_is_proposed_acts_on_what_this_call_acts_on(
    crm: Cli, folder: Path, given: tuple[str, ...], told: str | None
) -> None:
    (folder / "of crm.toml").write_text('on_dead = "continue"\n')
    dead(crm, folder, 3)
    folder.joinpath("msgworker.toml").write_text('url = "sqlite:///other.db"\n')
    told = shlex.join(given) if told is None else told
    asked = ("--status", "dead", "--limit", "2")
    done = crm("list", *given, *asked)
    line = done.stderr.splitlines()[-1]
    assert line == f"there may be more: msgworker list {told} {' '.join(asked)} --after 2"
    page = crm(*shlex.split(line.partition("msgworker ")[2])).stdout
    assert page.splitlines()[1].split()[0] == "3"
    assert f"commands    msgworker rerun {told} 1, or" in crm("show", *given, "1").stdout
    said = crm("release", *given, "gone-1").stderr
    assert said.endswith(f"no such instance: gone-1; see `msgworker instances {told}`\n")
    sql(folder, "DROP TABLE msgworker_job")
    assert f"run `msgworker db {told} upgrade`" in crm("doctor", *given).stdout


def test_a_password_is_in_no_command_that_is_proposed(cli: Cli) -> None:
    url = "postgresql://anna:s3cr3t@127.0.0.1:1/crm"
    said = cli("jobs", "show", "--url", url, "--locks", "x").stderr
    assert "s3cr3t" not in said
    said = cli("jobs", "show", "--url", url).stderr
    masked = "postgresql://anna:***@127.0.0.1:1/crm"
    assert f"msgworker jobs --url '{masked}' show ID" in said
    done = cli("jobs", "show", "1", "--url", masked)
    assert (done.exit_code, "where its password was masked" in done.stderr) == (2, True)
    done = cli("locks", "--locks", "redis://***@127.0.0.1:1")
    assert (done.exit_code, "where its password was masked" in done.stderr) == (2, True)


def test_what_takes_an_app_alone_is_proposed_with_one() -> None:
    told = Started(given={"url": "sqlite:///x.db", "config_file": "x.toml"})
    assert told.command("run") == "msgworker run pkg.module:app --config x.toml"
    assert told.command("ddl") == "msgworker ddl --config x.toml"
    assert told.command("--version") == "msgworker --version"
    text = "`msgworker doctor --sql` or `doctor`, msgworker run"
    with started(Started(given={"app_ref": "crm:app"})):
        assert proposed(text) == "`msgworker doctor crm:app --sql` or `doctor`, msgworker run"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_app_of_a_command_that_is_proposed_is_the_app(command: str) -> None:
    found = main.get_command(click.Context(main), command)
    assert found is not None
    for option in ("app_ref", "config_file", *TARGET):
        has = any(param.name == option for param in found.params)
        assert takes(command, option) == has or command == "demo", option
    if not takes_app(found):
        return
    told = Started(given={"app_ref": "crm:app"})
    for rest in REST.get(command, ()), ("some:name",):
        words = told.command(" ".join([command, *rest])).split()[2:]
        read = app_as_option(click.Context(main), command, found, words)
        known = command == "release" and not rest
        assert known or read == ["--app=crm:app", *rest], command


@pytest.mark.parametrize("command", sorted({*REST, "run", "drain"} - {"init-db"}))
def test_no_command_but_one_makes_a_file_of_sqlite(cli: Cli, folder: Path, command: str) -> None:
    done = cli(command, "crm:app", *REST.get(command, ()))
    assert not folder.joinpath("crm.db").exists()
    told = "crm.db: correct the path, or run `msgworker init-db crm:app`, which makes it\n"
    connects = command not in ("ddl", "config")
    assert (done.exit_code, done.stderr.endswith(told)) == (4 * connects, connects), done.stderr
