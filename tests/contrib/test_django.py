"""msgworker.contrib.django with the real Django, in the project samples/django_crm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

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
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


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
    with app.engine.connect() as conn:
        keys = conn.execute(sa.text("SELECT booking_key FROM customers_booking")).scalars().all()
    assert keys == [f"msgworker_message:{first}"]


@pytest.mark.long
def test_handlers_use_the_orm_and_refuse_what_would_not_be_in_their_transaction(environment):
    found = told(environment, "handle")
    assert found["read"] == 0
    assert found["report"] == [3, 1, 0]
    assert found["written"] == 0
    assert "INSERT through Django's connection in a transactional handler" in found["why"][0]


@pytest.mark.long
def test_manage_py_takes_the_app_of_the_project_for_every_command(sqlite, environment_of):
    environment = environment_of(sqlite)
    assert run(environment, "manage.py", "msgworker", "init-db").returncode == 0
    assert run(environment, "manage.py", "msgworker", "send", "invoice.book").returncode == 0
    assert "invoice.book" in run(environment, "manage.py", "msgworker", "show", "1").stdout
    assert run(environment, "manage.py", "msgworker", "show", "99").returncode == 5


def test_a_url_has_what_stands_in_databases():
    """Password, options and sockets are taken over, and what only Django can see is refused."""
    script = """
import json, logging
from django.conf import settings
settings.configure(DATABASES={
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": "crm", "USER": "anna",
                "PASSWORD": "p@ss:w/rd", "HOST": "db", "PORT": "5433",
                "OPTIONS": {"sslmode": "require", "pool": True, "odd": 1}},
    "memory": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "file": {"ENGINE": "django.db.backends.sqlite3", "NAME": "crm.sqlite3"},
}, MSGWORKER={"alias": "default", "lease_secs": 3})
logging.basicConfig()
from msgworker.contrib.django.connection import url_of
from msgworker.contrib.django import app
print(url_of("default").render_as_string(hide_password=False))
print(url_of("file").database)
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
    assert [line.split()[0] for line in lines[2:]] == ["ConfigError"] * 3
    assert "memory" in lines[2]
    assert "lease_seconds" in lines[4]
    assert "OPTIONS odd are not taken over" in done.stderr
