"""`msgworker db`: the upgrade as people run it, the script for a DBA, the version."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import Result
from sqlalchemy.engine import URL, make_url

from msgworker import App
from msgworker.table.build import NEWEST
from tests.servers import MariaDB, PostgreSQL
from tests.support.apps import created
from tests.support.programs import AT, Cli
from tests.upgrade import kept

Db = Callable[..., Result]


@pytest.fixture
def db(cli: Cli, database: Any, monkeypatch: pytest.MonkeyPatch) -> Db:
    """`msgworker db` for crm:app on the database of the test."""
    monkeypatch.setenv("CRM_URL", database.url)
    return lambda *args: cli("db", *args, *AT)


def versions(db: Db) -> tuple[int, int | None, int]:
    """What `db version` says: found, recorded, wanted."""
    told = json.loads(db("version", "--json").stdout)
    assert told["table"] == "msgworker_message"
    return told["found"], told["recorded"], told["wanted"]


def run_by_the_database(url: URL, script: Path) -> None:
    """Run a script by the program that comes with the database."""
    where = [str(url.host), str(url.port), str(url.username), str(url.database)]
    name = url.get_backend_name()
    if name == "sqlite":
        with contextlib.closing(sqlite3.connect(str(url.database))) as conn:
            conn.executescript(script.read_text())
        return
    if name == "postgresql":
        program = shutil.which("psql", path=PostgreSQL.programs()) or shutil.which("psql")
        options = ("--host", "--port", "--username", "--dbname")
        rest, read = (
            ["--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--file={script}"],
            subprocess.DEVNULL,
        )
    else:
        program = MariaDB.program("mariadb", "mysql")
        options = ("--host", "--port", "--user", "--database")
        rest, read = ["--default-character-set=utf8mb4"], script.open()
    if program is None:
        pytest.skip(f"{name} is not there: it has no client program here")
    command = [program, *(f"{o}={v}" for o, v in zip(options, where, strict=True)), *rest]
    environment = {"PGPASSWORD": url.password or "", "MYSQL_PWD": url.password or ""}
    done = subprocess.run(
        command, stdin=read, capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.quick("sqlite")
def test_db_upgrade_makes_the_schema_of_today_from_one_that_was_kept(db: Db, database: Any) -> None:
    kept.restore(database.engine(), 4)
    before = kept.rows(database.engine())
    assert versions(db) == (4, None, NEWEST)
    told = db("version").stdout
    assert told == f"msgworker_message: version 4 (not recorded); this package: {NEWEST}\n"
    done = db("upgrade")
    assert (done.exit_code, done.stderr) == (0, "")
    *made, last = done.stdout.splitlines()
    assert "made table msgworker_limit" in made
    assert all(line.startswith("made ") for line in made)
    assert last == f"msgworker_message is now version {NEWEST}"
    assert versions(db) == (NEWEST, NEWEST, NEWEST)
    told = db("version").stdout
    assert (
        told
        == f"msgworker_message: version {NEWEST} (recorded: {NEWEST}); this package: {NEWEST}\n"
    )
    again = db("upgrade")
    assert (again.exit_code, again.stdout) == (
        0,
        f"nothing to do: msgworker_message is version {NEWEST}\n",
    )
    assert kept.rows(database.engine()) == before
    assert kept.shape(database.engine()) == kept.shape_made_anew(database.engine())


@pytest.mark.quick("sqlite-1$|postgresql-4|mariadb-8")
@pytest.mark.parametrize("version", range(1, NEWEST))
def test_what_db_upgrade_prints_as_sql_leads_to_the_same_schema(
    db: Db, database: Any, tmp_path: Path, version: int
) -> None:
    kept.restore(database.engine(), version)
    before = kept.rows(database.engine())
    printed = db("upgrade", "--sql")
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert versions(db)[0] == version, "printing has changed the tables"
    script = tmp_path / "upgrade.sql"
    script.write_text(printed.stdout)
    run_by_the_database(make_url(database.url), script)
    assert versions(db) == (NEWEST, NEWEST, NEWEST)
    again = db("upgrade", "--sql")
    assert (again.exit_code, again.stdout) == (0, "")
    assert kept.rows(database.engine()) == before
    assert kept.shape(database.engine()) == kept.shape_made_anew(database.engine())


@pytest.mark.quick("sqlite")
def test_a_dry_run_of_db_upgrade_tells_the_steps_and_changes_nothing(db: Db, database: Any) -> None:
    kept.restore(database.engine(), 8)
    before = kept.shape(database.engine()), kept.rows(database.engine())
    done = db("upgrade", "--dry-run")
    assert done.exit_code == 0
    first, *steps, rights = done.stdout.splitlines()
    told = json.loads(db("upgrade", "--dry-run", "--json").stdout)
    number = len(told["steps"])
    assert first == f"msgworker_message: from version 8 to {NEWEST}, {number} steps"
    assert rights.startswith("the login needs ")
    assert (told["found"], told["wanted"], told["dry_run"]) == (8, NEWEST, True)
    text = " ".join(line.strip() for line in steps)
    for step in told["steps"]:
        assert f"{step['makes']}: {step['waits']}" in text
    versions = {step["version"] for step in told["steps"]}  # columns of a table may be one step
    assert {9, 10, 12, 13} <= versions <= {9, 10, 11, 12, 13}
    assert (kept.shape(database.engine()), kept.rows(database.engine())) == before


@pytest.mark.long
def test_a_command_on_tables_that_are_too_old_ends_with_4_until_they_are_upgraded(
    db: Db, cli: Cli, database: Any
) -> None:
    kept.restore(database.engine(), 1, messages=False)
    for _ in range(2):  # neither does it change anything
        done = cli("drain", *AT)
        assert (done.exit_code, done.stdout) == (4, "")
        assert "msgworker_try" in done.stderr
        assert "or `msgworker db crm:app upgrade`, or" in " ".join(done.stderr.split())
        assert versions(db) == (1, None, NEWEST)
    assert db("upgrade").exit_code == 0
    assert cli("send", "settle", *AT).exit_code == 0
    assert cli("drain", "--topic", "settle", *AT).exit_code == 0


def test_a_schema_of_a_later_package_that_excludes_this_one_ends_db_with_4(
    db: Db, database: Any
) -> None:
    app = created(App(database.url))
    later = {"table": "msgworker_message", "version": NEWEST + 2, "least": NEWEST + 1}
    lease = app.tables.lease
    with app.engine.begin() as conn:
        conn.execute(
            sa.update(lease).where(lease.c.kind == "schema").values(serves=json.dumps(later))
        )
    app.engine.dispose()
    for action in ("upgrade", "version"):
        done = db(action)
        assert (done.exit_code, done.stdout) == (4, "")
        assert f"is version {NEWEST + 2}, on which only code of version {NEWEST + 1}" in done.stderr


@pytest.mark.quick("sqlite")
def test_db_upgrade_leaves_a_message_table_of_yours_and_ends_with_4(
    cli: Cli, folder: Path, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.restore(database.engine(), 1, table="orders")
    monkeypatch.setenv("CRM_URL", database.url)
    (folder / "shop.py").write_text(
        "import os\nfrom msgworker import App, MessageTable\n"
        "app = App(os.environ['CRM_URL'], table=MessageTable('orders'))\n"
    )
    at = ("--app", "shop:app")
    printed = cli("db", "upgrade", "--sql", *at)
    assert printed.exit_code == 4
    assert "-- left, see --message-table: index orders_failed" in printed.stdout
    done = cli("db", "upgrade", *at)
    assert done.exit_code == 4
    _, _, left = done.stdout.partition("left out, the message table is yours")
    assert "INDEX" in left
    assert "orders_failed" in left
    told = json.loads(cli("db", "upgrade", "--json", *at).stdout)
    assert (told["exit_code"], told["steps"]) == (4, [])
    assert cli("db", "version", *at).exit_code == 0
    assert cli("db", "upgrade", "--message-table", *at).exit_code == 0
    assert json.loads(cli("db", "version", "--json", *at).stdout)["found"] == NEWEST
