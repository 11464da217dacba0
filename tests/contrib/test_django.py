"""msgworker.contrib.django with the real Django, in the project samples/django_crm."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.programs import python
from tests.support.rows import Table

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "samples" / "django_crm"
ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mariadb": "mysql"}
AS_MYSQLDB = "import pymysql; pymysql.install_as_MySQLdb()\n"


@pytest.fixture
def environment(database: Any, environment_of: Any) -> dict[str, str]:
    """Of a process of the project, on the test's database."""
    found: dict[str, str] = environment_of(database)
    return found


@pytest.fixture
def environment_of(tmp_path: Path) -> Any:
    return partial(_environment, tmp_path)


def _environment(tmp_path: Path, database: Any) -> dict[str, str]:
    url = sa.make_url(database.url)
    given = {
        "ENGINE": f"django.db.backends.{ENGINES[database.name]}",
        "NAME": url.database,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": url.host or "",
        "PORT": url.port or "",
    }
    (tmp_path / "sitecustomize.py").write_text(AS_MYSQLDB if database.name == "mariadb" else "")
    paths = [str(tmp_path), str(PROJECT), str(ROOT)]
    return {
        **os.environ,
        "CRM_DATABASE": json.dumps(given),
        "DJANGO_SETTINGS_MODULE": "crm.settings",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore",
    }


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return python(*words, env=environment, cwd=PROJECT)


def told(environment: dict[str, str], what: str) -> dict[str, Any]:
    done = run(environment, "-m", "tests.contrib.django_project", what)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_send_is_part_of_django_s_transaction_and_manage_py_runs_the_handlers(
    environment, make_app
):
    found = told(environment, "produce")
    first = found["posted"]["message"]
    assert (found["refused"], found["after_rollback"]) == (400, [[first], 1])
    assert found["seen_before_commit"] == 1
    assert found["many"] == 3
    assert (found["again"], found["replaced"]) == (True, True)
    assert (found["duplicate"], found["bad"]) == ("DuplicateMessage", "PayloadError")
    payloads = [None if one is None else json.loads(one) for one in found["payloads"]]
    assert payloads == [
        {"invoice": found["posted"]["invoice"]},
        {"text": "5 % of \u00e4"},
        1,
        {"n": 2},
        None,
        "now",
        2,
        "still sound",
    ]
    app = make_app()
    table = Table(app)
    assert table.column("object_id")[:5] == ["C-1", "C-2", "C-4", "C-5", None]
    assert table.column("priority")[1] == 3
    assert table.column("msg_id")[1] == found["in_atomic"]

    manage = ("manage.py", "msgworker")
    done = run(environment, *manage, "drain", "--topic", "invoice.book", "--linger", "0")
    assert (done.returncode, "done=1" in done.stdout) == (0, True), done.stderr
    done = run(environment, *manage, "jobs", "show")
    assert "by its id: manage.py msgworker jobs show ID\n" in done.stderr
    with app.engine.connect() as conn:
        keys = conn.execute(sa.text("SELECT booking_key FROM customers_booking")).scalars().all()
    assert keys == [f"msgworker_message:{first}"]


def test_a_job_is_not_sealed_within_django_s_transaction_that_has_sent_into_it(environment):
    found = told(environment, "jobs")
    assert (found["within"], found["after"]) == ("ConfigError", [True, False])
    assert (found["rolled_back"], found["counts"]) == (True, [1, 0])


@pytest.mark.long
def test_handlers_use_the_orm_and_refuse_what_would_not_be_in_their_transaction(environment):
    found = told(environment, "handle")
    assert found["read"] == 0
    assert found["report"] == [3, 2, 0]
    assert found["written"] == 0
    assert len(found["why"]) == 2
    for why in found["why"]:
        assert "INSERT through Django's connection in a transactional handler" in why


def test_a_transactional_handler_writes_through_none_of_django_s_connections():
    script = """
from django.conf import settings
memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": memory, "other": memory})
from django.db import connections
from msgworker.contrib.django.connection import around, make_handler
def handle(msg):
    for alias in connections:
        try:
            connections[alias].cursor().execute("CREATE TABLE t (a)")
        except Exception as error:
            print(alias, type(error).__name__)
        else:
            print(alias, "written")
for transactional in (True, False):
    around(make_handler("t", handle, transactional=transactional))(None)
"""
    done = run({**os.environ, "PYTHONPATH": str(ROOT)}, "-c", script)
    refused = ["default HandlerMisuse", "other HandlerMisuse"]
    assert done.stdout.splitlines() == [*refused, "default written", "other written"], done.stderr


def test_old_connections_are_closed_before_a_handler_and_after_it():
    script = """
import asyncio, contextlib
from msgworker.contrib.django import connection
closed = []
connection._close_old = lambda: closed.append(1)
def handle(msg):
    raise ValueError(len(closed))
async def handle_async(msg):
    raise ValueError(len(closed))
for fn in (handle, handle_async):
    found = connection.around(connection.make_handler("t", fn))
    try:
        asyncio.run(found(None)) if fn is handle_async else found(None)
    except ValueError as error:
        print(error, len(closed))
"""
    done = run({**os.environ, "PYTHONPATH": str(ROOT)}, "-c", script)
    assert done.stdout.splitlines() == ["1 2", "3 4"], done.stderr


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_test_database_can_be_dropped_at_the_end_of_the_tests(environment):
    """PostgreSQL drops none to which a program is connected."""
    assert told(environment, "tests")["sent"] == [1]


@pytest.mark.long
def test_a_wrong_handler_is_refused_where_it_stands(sqlite, environment_of):
    found = told(environment_of(sqlite), "refuse")
    assert (found["first"], found["sent"]) == ("", 1)
    taken, circle, of_async, tries, timeout = found["bad"]
    assert taken == "there is a handler for topic 'a' already"
    assert "goes in a circle: b -> a -> b" in circle
    assert "not for a Django project" in of_async
    assert found["of_the_app"] == of_async
    assert "more than the 3 tries of the table" in tries
    assert "timeout of handler len" in timeout


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("INSERT INTO t VALUES (1)", "INSERT"),
        ("\n  insert\n  into t values (1)", "INSERT"),
        ("UPDATE\tt SET a = 1", "UPDATE"),
        ("/* a ; b */ DELETE FROM t", "DELETE"),
        ("-- SELECT\nTRUNCATE t", "TRUNCATE"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", "INSERT"),
        ("WITH a AS (DELETE FROM t RETURNING b) SELECT * FROM a", "DELETE"),
        ("CALL p()", "CALL"),
        ("COPY t FROM STDIN", "COPY"),
        ("DO $$ BEGIN DELETE FROM t; END $$", "DO"),
        ("BEGIN p(); END;", "BEGIN"),
        ("SELECT 1; DROP TABLE t", "DROP"),
        ("SELECT * INTO n FROM t", "INTO"),
        ("EXPLAIN ANALYZE UPDATE t SET a = 1", "UPDATE"),
        ("LOCK TABLE t", "LOCK"),
        ("", None),
        ("(SELECT 1) UNION (SELECT 2);", None),
        ("SELECT 'INSERT; DELETE FROM t', \"into\" FROM `update` FOR UPDATE", None),
        ("WITH a AS (SELECT replace(b, 'x', 'y') FROM t FOR NO KEY UPDATE) SELECT 1", None),
        ("BEGIN IMMEDIATE", None),
        ('SAVEPOINT "s1"', None),
        ('RELEASE SAVEPOINT "s1"', None),
        ("ROLLBACK TO SAVEPOINT s", None),
        ("SET CONSTRAINTS ALL IMMEDIATE", None),
        ("PRAGMA foreign_keys", None),
        ("EXPLAIN SELECT 1", None),
    ],
)
def test_what_writes(sql, word):
    from msgworker.contrib.django.connection import writing

    assert writing(sql) == word


@pytest.mark.long
def test_manage_py_takes_the_app_of_the_project_for_every_command(sqlite, environment_of):
    environment = environment_of(sqlite)
    assert run(environment, "manage.py", "msgworker", "init-db").returncode == 0
    assert run(environment, "manage.py", "msgworker", "send", "invoice.book").returncode == 0
    assert "invoice.book" in run(environment, "manage.py", "msgworker", "show", "1").stdout
    assert run(environment, "manage.py", "msgworker", "show", "99").returncode == 5
    script = """
import django, io, contextlib
django.setup()
from django.core.management import call_command
for words in (("list", "--limit", "5", "--json"), ("status", "--json", "-v", "2")):
    try:
        call_command("msgworker", *words)
    except SystemExit as error:
        assert error.code == 0
from msgworker.commands import command
assert command("show 1") == "manage.py msgworker show 1"  # of a server of pages, say
"""
    done = run(environment, "-c", script)
    assert (done.returncode, done.stdout.count('"invoice.book"')) == (0, 2), done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("status --settings=crm.settings", "status --app=P"),
        ("status --settings crm.settings --json", "status --app=P --json"),
        ("-v 2 status --pythonpath .", "status --app=P"),
        ("status --verbosity=3 --skip-checks --force-color", "status --app=P"),
        ("show 1 --traceback", "--debug show --app=P 1"),
        ("--debug status", "--debug status --app=P"),
        ("list --after -5", "list --app=P --after -5"),
        ("send -- --settings", "send --app=P -- --settings"),
        ("status --app x:app", "status --app x:app"),
        ("status --help", "status --help"),
        ("--version", "--version"),
        ("", ""),
        ("nothing", "nothing"),
    ],
)
def test_manage_py_knows_the_options_of_django(given, words):
    from msgworker.contrib.django.management.commands.msgworker import APP, ours, with_app

    assert " ".join(with_app(ours(given.split()))).replace(APP, "P") == words


def test_a_url_has_what_stands_in_databases():
    """Password, options and sockets are taken over, and what only Django can see is refused."""
    script = """
import json, logging
from django.conf import settings
settings.configure(DATABASES={
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": "crm", "USER": "anna",
                "PASSWORD": "p@ss:w/rd", "HOST": "db", "PORT": "5433",
                "OPTIONS": {"sslmode": "require", "pool": True, "odd": 1}},
    "role": {"ENGINE": "django.db.backends.postgresql", "NAME": "crm",
             "OPTIONS": {"assume_role": "crm owner", "options": "-c geqo=off"}},
    "memory": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "file": {"ENGINE": "django.db.backends.sqlite3", "NAME": "crm.sqlite3"},
}, MSGWORKER={"alias": "default", "lease_secs": 3})
logging.basicConfig()
from msgworker.contrib.django.connection import url_of
from msgworker.contrib.django import app
print(url_of("default").render_as_string(hide_password=False))
print(url_of("file").database)
print(url_of("role").query["options"])
url_of("default")
for fn in (lambda: url_of("memory"), lambda: url_of("none"), app):
    try:
        fn()
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = run({**os.environ, "PYTHONPATH": str(ROOT)}, "-c", script)
    lines = done.stdout.splitlines()
    assert lines[0] == "postgresql+psycopg://anna:p%40ss%3Aw%2Frd@db:5433/crm?sslmode=require"
    assert lines[1] == str(PROJECT / "crm.sqlite3")
    assert lines[2] == r"-c geqo=off -c role=crm\ owner"
    assert [line.split()[0] for line in lines[3:]] == ["ConfigError"] * 3
    assert "memory" in lines[3]
    assert "lease_seconds" in lines[5]
    assert done.stderr.count("OPTIONS odd are not taken over") == 1


def test_options_of_tls_and_addresses_are_taken_over():
    script = """
import pymysql
from django.conf import settings
SEEN = ("ssl", "hos", "req")
given = {"address": ("postgresql", {"hostaddr": "10.0.0.7", "require_auth": "scram-sha-256"})}
given |= {mode: ("mysql", {"ssl_mode": mode}) for mode in
          ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "odd")}
given |= {f"ca {mode}": ("mysql", {"ssl_mode": mode, "ssl": {"ca": "/ca.pem"}})
          for mode in ("VERIFY_CA", "VERIFY_IDENTITY")}
settings.configure(DATABASES={"default": {}} | {
    alias: {"ENGINE": f"django.db.backends.{engine}", "NAME": "crm", "HOST": "db", "OPTIONS": opts}
    for alias, (engine, opts) in given.items()
})
from msgworker.contrib.django.connection import url_of
for alias in given:
    try:
        url = url_of(alias)
        args = url.get_dialect()().create_connect_args(url)[1]
        print(alias, {name: args[name] for name in sorted(args) if name[:3] in SEEN})
        if alias == "REQUIRED":
            conn = pymysql.connect(**args, defer_connect=True)
            print(conn.ssl, conn.ctx.check_hostname)
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = run({**os.environ, "PYTHONPATH": str(ROOT)}, "-c", AS_MYSQLDB + script)
    no_host, host = {"check_hostname": False}, {"check_hostname": True}
    assert done.stdout.splitlines() == [
        "address {'host': 'db', 'hostaddr': '10.0.0.7', 'require_auth': 'scram-sha-256'}",
        "DISABLED {'host': 'db', 'ssl_disabled': 'true'}",
        "PREFERRED {'host': 'db'}",
        f"REQUIRED {{'host': 'db', 'ssl': {no_host}}}",
        "True False",
        "ConfigError database 'VERIFY_CA': ssl_mode is one of DISABLED, PREFERRED, REQUIRED, "
        "VERIFY_CA, VERIFY_IDENTITY, and those that verify need the ca of ssl, got 'VERIFY_CA'",
        "ConfigError database 'odd': ssl_mode is one of DISABLED, PREFERRED, REQUIRED, "
        "VERIFY_CA, VERIFY_IDENTITY, and those that verify need the ca of ssl, got 'odd'",
        f"ca VERIFY_CA {{'host': 'db', 'ssl': { {'ca': '/ca.pem'} | no_host }}}",
        f"ca VERIFY_IDENTITY {{'host': 'db', 'ssl': { {'ca': '/ca.pem'} | host }}}",
    ], done.stderr
    assert "not taken over" not in done.stderr


@pytest.mark.long
def test_several_hosts_of_a_database_are_taken_over_as_libpq_takes_them():
    script = """
from django.conf import settings
given = {
    "two": ("postgresql", "a,b", "5432,5433"), "one port": ("postgresql", "a,b", 5433),
    "no port": ("postgresql", "/run/a,::1", ""), "uneven": ("postgresql", "a,b", "1,2,3"),
    "no number": ("postgresql", "a,b", "1,x"), "mysql": ("mysql", "a,b", "1,2"),
}
settings.configure(DATABASES={"default": {}} | {
    alias: {"ENGINE": f"django.db.backends.{engine}", "NAME": "crm", "HOST": host, "PORT": port}
    for alias, (engine, host, port) in given.items()
})
from msgworker.contrib.django.connection import url_of
for alias in given:
    try:
        url = url_of(alias)
        args = url.get_dialect()().create_connect_args(url)[1]
        print(args["host"], args["port"])
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = run({**os.environ, "PYTHONPATH": str(ROOT)}, "-c", AS_MYSQLDB + script)
    lines = done.stdout.splitlines()
    assert lines[:3] == ["a,b 5432,5433", "a,b 5433,5433", "/run/a,::1 ,"], done.stderr
    for line, alias in zip(lines[3:], ("uneven", "no number", "mysql"), strict=True):
        assert line.startswith(f"ConfigError database '{alias}'")
        assert "PORT" in line


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ('{"lease_secs": 3}', "did you mean lease_seconds?"),
        ('{"lease_seconds": -3, "label": "x"}', "lease_seconds must be"),
        ('{"modules": "messages"}', "must be a list of names"),
    ],
)
def test_a_wrong_setting_ends_the_start(setting, says):
    script = f"""
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["msgworker.contrib.django"], MSGWORKER={setting})
django.setup()
"""
    done = run({**os.environ, "PYTHONPATH": str(ROOT)}, "-c", script)
    assert done.returncode == 1
    assert says in done.stderr.splitlines()[-1]
