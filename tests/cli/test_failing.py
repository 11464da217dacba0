"""Bad inputs end in one line, the right exit code, and never in a password."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.app import table_from
from msgworker.cli import main
from msgworker.config import load
from msgworker.db.errors import secrets_of
from msgworker.errors import ConfigError
from tests.support.programs import Cli, environment

CANARY = "Sup3rCanary"


def one_line(stderr: str) -> bool:
    return (
        stderr.startswith("msgworker: ") and stderr.count("\n") == 1 and "Traceback" not in stderr
    )


@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        (None, 2, "a database url is required"),  # 1
        ("", 2, "--url must be a text"),
        ("messages.db", 2, "cannot be read"),  # 2
        (f"//u:{CANARY}@h/n", 2, "cannot be read"),
        ("dbase://h/n", 2, "use one of: postgresql, sqlite, mariadb, mysql, oracle"),  # 3
        (f"postgresql://u:p@{CANARY}:x@h/n", 2, "password"),  # 5
        (f"postgresql://u:p@{CANARY}/x@h/n", 2, "password is not escaped"),
        (f"postgresql://u:p@{CANARY}@h/n", 2, "password is not escaped"),
        (f"postgresql://u:p@127.0.0.1:1?{CANARY}@h/n", 3, "cannot use the database"),
        (f"postgresql://u:{CANARY}@h:abc/n", 2, "cannot be read"),  # 6
        (f"postgresql://u:{CANARY}@h:0/n", 2, "port must be 1 to 65535"),
        (f"postgresql://u:{CANARY}@h:70000/n", 2, "port must be 1 to 65535"),
        (f"postgresql://u:{CANARY}@no-such-host.invalid/n", 3, "cannot use the database"),  # 7
        (f"postgresql://u:{CANARY}@127.0.0.1:1/n", 3, "u:***@127.0.0.1:1"),
        (f"mysql://u:{CANARY}@127.0.0.1:1/n", 3, "cannot use the database"),
        (f"oracle://u:{CANARY}@127.0.0.1:1/?service_name=n", 3, "cannot use the database"),
        (f"postgresql://u@127.0.0.1:1/n?sslpassword={CANARY}", 3, "cannot use the database"),  # 9
        ("sqlite://", 2, "in-memory"),  # 10
        ("sqlite:///:memory:", 2, "in-memory"),
        ("sqlite:///no/such/folder/x.db", 3, "unable to open database file"),  # 11
        ("sqlite:///.", 3, "unable to open database file"),
        ("sqlite:///text.db", 3, "file is not a database"),  # 12
        ("postgresql+asyncpg://h/n", 2, "is an async driver"),  # 14
        ("sqlite+aiosqlite:///x.db", 2, "is an async driver"),
        ("sqlite:///${NOT_SET}.db", 2, "environment variable NOT_SET, which is not set"),  # 23
        ("sqlite:///empty.db", 4, "table msgworker_message does not exist"),  # 24
        ("sqlite:///file:mispelt.db?uri=true", 4, "mispelt.db: correct the path"),
        ("sqlite:///mispelt.db", 4, "mispelt.db: correct the path, or run `msgworker init-db"),
    ],
)
@pytest.mark.parametrize("command", [("status",), ("send", "t"), ("rerun", "1")])
def test_bad_url(
    cli: Cli, folder: Path, url: str | None, code: int, text: str, command: tuple[str, ...]
) -> None:
    (folder / "text.db").write_text("this is a text, not a database " * 100)
    (folder / "empty.db").touch()
    done = cli(*command, *([] if url is None else ["--url", url]))
    assert (done.exit_code, done.stdout) == (code, ""), done.stderr
    assert text in done.stderr
    assert one_line(done.stderr), done.stderr
    assert CANARY not in done.stderr
    assert not (folder / "mispelt.db").exists()


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("oracle+cx_oracle://u@h/n", "cx_Oracle", "cx-oracle"),
        ("oracle://u@h/n", "oracledb", "oracle"),
        ("mysql://u@h/n", "pymysql", "mysql"),
        ("postgresql://u@h/n", "psycopg", "postgresql"),
    ],
)
def test_missing_driver_names_the_extra(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    done = cli("status", "--url", url)
    assert done.exit_code == 2
    assert f'pip install "msgworker[{extra}]"' in done.stderr


@pytest.mark.parametrize("url", ["sqlite:///no/folder/x.db", "sqlite:///text.db", "sqlite:///."])
def test_init_db_where_no_database_can_be(cli: Cli, folder: Path, url: str) -> None:
    (folder / "text.db").write_text("this is a text, not a database " * 100)
    done = cli("init-db", "--url", url)
    assert done.exit_code == 3
    assert one_line(done.stderr), done.stderr


def test_missing_table_names_near_ones(cli: Cli) -> None:
    assert cli("init-db", "--url", "sqlite:///x.db").exit_code == 0
    done = cli("status", "--url", "sqlite:///x.db", "--table", "msgworker_mesage")
    assert done.exit_code == 4
    assert "Near names: msgworker_message" in done.stderr


@pytest.mark.quick("drop|select|a.b.c|a%b")
@pytest.mark.parametrize(
    "name",
    [
        "msg; drop table x--",
        'a"b',
        "a]b",
        "a`b",
        "select",
        "Überweisung",
        "x" * 129,
        "a.b.c",
        " ",
        "a\nb",
        "a%b",
        "a:b",
    ],
)
def test_odd_table_names_are_quoted_or_refused(cli: Cli, folder: Path, name: str) -> None:
    done = cli("init-db", "--url", "sqlite:///x.db", "--table", name)
    assert done.exit_code in (0, 2), done.stderr
    if done.exit_code == 0:
        engine = sa.create_engine(f"sqlite:///{folder / 'x.db'}")
        assert name in sa.inspect(engine).get_table_names()
        engine.dispose()
        sent = cli("send", "t", "--url", "sqlite:///x.db", "--table", name)
        assert (sent.exit_code, sent.stdout) == (0, "1\n"), sent.stderr


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        ("os:system", "os:system is a builtin_function_or_method, but must be a msgworker App"),
        ("crm", "an app looks like pkg.module:app"),
        ("crm:", "an app looks like pkg.module:app"),
        (":app", "an app looks like pkg.module:app"),
        ("crm.py:app", "there is no module 'crm.py'"),
        ("../crm:app", "an app looks like pkg.module:app"),
        ("crm:ap", "module crm has no attribute 'ap'; its Apps: app"),
        ("crm:other", "crm:other is a object, but must be a msgworker App; its Apps: app"),
        ("os:nothing", "it has no App"),
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("crm.deeper:app", "there is no module 'crm.deeper'"),
        (
            "needs:app",
            "needs cannot be imported: No module named 'not_installed' (needs.py line 1)",
        ),
        ("broken:app", "broken cannot be imported: ZeroDivisionError: division by zero (broken.py"),
        ("wrong:app", "wrong cannot be imported: SyntaxError"),
        ("leaves:app", "leaves cannot be imported: SystemExit"),
        ("handler:app", "(handler.py line 3)"),
        ("notcallable:app", "(notcallable.py line 3)"),
    ],
)
@pytest.mark.parametrize("command", ["run", "drain", "status"])
def test_bad_app(cli: Cli, folder: Path, ref: str, text: str, command: str) -> None:
    make = "from msgworker import App\napp = App('sqlite:///x.db')\n"
    files = {
        "needs": "import not_installed",
        "broken": "1 / 0",
        "wrong": "def f(:",
        "leaves": "raise SystemExit(0)",
        "handler": make + "app.add_handler('t', lambda: None)",
        "notcallable": make + "app.add_handler('t', 5)",
    }
    for name, text_of in files.items():
        (folder / f"{name}.py").write_text(text_of)
    done = cli(command, *(["--app", ref] if command == "status" else [ref]))
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert text in done.stderr
    assert one_line(done.stderr), done.stderr


def test_app_without_handlers_is_refused(cli: Cli, folder: Path) -> None:
    (folder / "bare.py").write_text("from msgworker import App\napp = App('sqlite:///x.db')")
    cli("init-db", "--app", "bare:app")
    for processes in (1, 2):
        done = cli("drain", "bare:app", "--processes", processes, "--quiet")
        assert done.exit_code == 2
        assert "there is no handler" in done.stderr


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("command", ["run", "drain"])
def test_missing_schema_is_said_once(cli: Cli, command: str, processes: int) -> None:
    done = cli(command, "crm:app", "--processes", processes)
    assert done.exit_code == 4
    assert one_line(done.stderr), done.stderr
    assert "msgworker init-db" in done.stderr


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--threads", "0"], "--threads must be a whole number from 1 to 1024, got 0"),
        (["--threads", "-1"], "--threads"),
        (["--threads", "1.5"], "got '1.5'"),
        (["--threads", "1000000000"], "--threads"),
        (["--processes", "0"], "--processes must be a whole number"),
        (["--time-limit", "soon"], "--time-limit must be a duration"),
        (["--topic", "nobody"], "no handler for topic nobody"),
        (["--log-level", "loud"], "--log-level must be one of debug, info, warning, error"),
        (["--nonsense"], "No such option"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_bad_options(crm: Cli, given: list[str], text: str) -> None:
    done = crm("drain", "crm:app", *given)
    assert done.exit_code == 2
    assert text in done.stderr
    assert one_line(done.stderr), done.stderr


def test_bad_configuration_is_told_by_every_command(cli: Cli, folder: Path) -> None:
    (folder / "msgworker.toml").write_text("thraeds = 4")
    for args in (("status",), ("config",), ("drain", "crm:app"), ("ddl", "--dialect", "oracle")):
        done = cli(*args)
        assert done.exit_code == 2
        assert done.stderr.endswith("in msgworker.toml; did you mean threads?\n")


def test_app_and_url_together_are_refused(cli: Cli) -> None:
    done = cli("status", "--app", "crm:app", "--url", "sqlite:///x.db")
    assert done.exit_code == 2
    assert "give --app or --url" in done.stderr


def test_unknown_column_has_a_suggestion(folder: Path) -> None:
    conf = load(keywords={"columns": {"msgid": "ID"}}, folder=folder, environ={})
    with pytest.raises(ConfigError, match="did you mean msg_id"):
        table_from(conf)
    assert isinstance(table_from(load(folder=folder, environ={})), MessageTable)


def test_settings_that_an_imported_app_overrules_are_named(crm: Cli) -> None:
    done = crm("drain", "crm:app", "--linger", "0", env={"MSGWORKER_LEASE_SECONDS": "60"})
    assert done.exit_code == 0
    assert "lease_seconds (environment MSGWORKER_LEASE_SECONDS) is not used" in done.stderr
    same = crm("drain", "crm:app", "--linger", "0", env={"MSGWORKER_LEASE_SECONDS": "9"})
    assert "is not used" not in same.stderr


def test_traceback_only_with_debug(cli: Cli) -> None:
    for args in (("--debug", "status"), ("status", "--debug")):
        done = cli(*args)
        assert done.exit_code == 2
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("msgworker: a database url is required")


def test_an_error_of_ours_is_one_line_and_70(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines\x1b[2J")

    monkeypatch.setattr("msgworker.cli.options.load", broken)
    done = cli("status")
    assert done.exit_code == 70
    assert one_line(done.stderr)
    assert r"RuntimeError: two lines\x1b[2J; run it again with --debug" in done.stderr


def test_interruption_is_quiet(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("msgworker.cli.options.load", interrupted)
    done = cli("status")
    assert (done.exit_code, done.stderr.strip()) == (130, "msgworker: interrupted")


def test_a_lost_table_in_mid_command_is_a_schema_error(crm: Cli, folder: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{folder / 'crm.db'}")
    with engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_lease")
    engine.dispose()
    done = crm("status", "--app", "crm:app")
    assert done.exit_code == 4
    assert "msgworker_lease is missing" in done.stderr


def test_config_masks_every_password(cli: Cli, folder: Path) -> None:
    url = f"postgresql://u:{CANARY}@h/n?sslpassword={CANARY}2&x=1"
    (folder / "msgworker.toml").write_text(f'url = "{url}"')
    for args in ((), ("--json",), ("--debug",)):
        done = cli("config", *args)
        assert done.exit_code == 0
        assert CANARY not in done.output
        assert "u:***@h/n?sslpassword=***&x=***" in done.stdout
    (folder / "msgworker.toml").write_text('url = "postgresql://u:${PW}@127.0.0.1:1/n"')
    done = cli("status", "--debug", env={"PW": f"{CANARY}@/%"})
    assert done.exit_code == 3
    assert CANARY not in done.output


def test_password_in_a_url_of_an_app_is_not_shown(cli: Cli) -> None:
    url = f"postgresql://u:{CANARY}@127.0.0.1:1/n"
    for args in (
        ("drain", "crm:app"),
        ("run", "crm:app"),
        ("status", "--app", "crm:app", "--debug"),
    ):
        done = cli(*args, env={"CRM_URL": url})
        assert done.exit_code == 3, done.stderr
        assert CANARY not in done.output
    done = cli("config", "--app", "crm:app", env={"CRM_URL": url})
    assert done.exit_code == 0
    assert CANARY not in done.output


@pytest.mark.parametrize(
    "query",
    [
        f"options=-c{CANARY}",
        f"password={CANARY}",
        f"passwd={CANARY}",
        f"sslpassword={CANARY}",
        f"whatever={CANARY}",
        f"whatever=a&whatever={CANARY}",
    ],
)
def test_of_the_query_of_a_url_only_what_is_known_to_be_harmless_is_shown(
    cli: Cli, folder: Path, query: str
) -> None:
    url = f"postgresql://u@127.0.0.1:1/n?{query}&sslmode=disable"
    (folder / "msgworker.toml").write_text(f'url = "{url}"')
    shown = cli("config")
    assert (shown.exit_code, CANARY in shown.output) == (0, False)
    assert "=***" in shown.stdout
    assert "sslmode=disable" in shown.stdout
    misplaced = [("run", url), ("list", "--table", url), ("list", "--app", url), ("list", url)]
    for args in [("status",), ("doctor", "--debug"), *misplaced]:
        done = cli(*args)
        assert (done.exit_code != 0, CANARY in done.output) == (True, False), args
    assert CANARY not in repr(App(url.replace("whatever", "options")))


def test_short_values_of_unknown_options_stay_in_texts() -> None:
    url = (
        "postgresql://h/n?a=true&b=300000&options=-csearch_path=crm&sslpassword=abc&charset=utf8mb4"
    )
    assert {text for text in secrets_of(url) if "%" not in text} == {"-csearch_path=crm", "abc"}


def test_secrets_of_a_url() -> None:
    url = "postgresql://u:a%40b@h/n?sslpassword=q%20r&sslmode=require"
    assert secrets_of(url) == {"a@b", "a%40b", "q r", "q%20r", "q+r"}
    assert secrets_of("not a url") == set()


def test_main_group_is_a_click_command() -> None:
    assert isinstance(main, click.Group)


@pytest.mark.long
def test_closed_pipe_ends_quietly(crm: Cli, folder: Path) -> None:
    for _ in range(3):
        crm("send", "settle", "--app", "crm:app")
    for command in (["list", "--app", "crm:app"], ["list", "--app", "crm:app", "--json"]):
        reading, writing = os.pipe()
        os.close(reading)  # no reader is left
        done = subprocess.run(
            [sys.executable, "-m", "msgworker", *command],
            cwd=folder,
            stdout=writing,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
        )
        os.close(writing)
        assert (done.returncode, done.stderr) == (0, b"")
