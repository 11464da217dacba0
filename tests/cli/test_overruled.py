"""What a configuration says and an App of the code overrules."""

from __future__ import annotations

from pathlib import Path

import pytest

from msgworker import App, MessageTable
from msgworker.app import settings_of
from msgworker.cli.work import unused
from msgworker.config import load
from tests.support.programs import files


def overruled(folder: Path, own: str, app: App, **environ: str) -> list[str]:
    files(folder, own=own)
    return unused(load(folder=folder, environ=environ), settings_of(app))


PG = "postgresql+psycopg://crm:${PW}@dbhost/crm"


@pytest.mark.parametrize(
    ("configured", "in_code"),
    [
        (PG, "postgresql+psycopg://crm:a%2Bb%20c%40@dbhost/crm"),
        (PG, "postgresql+psycopg://crm:a+b c%40@dbhost/crm"),
        (PG, "postgresql://crm:a%2Bb%20c%40@dbhost/crm"),
        ("postgresql://dbhost/crm", "postgresql+psycopg://DBHOST:5432/crm"),
        ("postgresql://dbhost/crm?b=2&a=1", "postgresql://dbhost/crm?a=1&b=2"),
        ("mysql://dbhost/crm", "mariadb+pymysql://dbhost:3306/crm"),
        ("oracle://dbhost/crm", "oracle+oracledb://dbhost:1521/crm"),
        ("${WHOLE}", "sqlite:///crm.db"),
        ("sqlite:///crm.db", "sqlite:///{here}/crm.db"),
        ("sqlite:///./sub/../crm.db", "sqlite+pysqlite:///crm.db"),
    ],
)
def test_a_url_that_means_the_same_is_not_overruled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str, in_code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    app = App(in_code.replace("{here}", str(tmp_path)))
    own = f'url = "{configured}"'
    assert overruled(tmp_path, own, app, PW="a+b c@", WHOLE="sqlite:///crm.db") == []


@pytest.mark.parametrize(
    ("configured", "in_code"),
    [
        (PG, "postgresql://crm:other@dbhost/crm"),
        (PG, "postgresql://crm@dbhost/crm"),
        ("postgresql://dbhost/crm", "postgresql://dbhost/billing"),
        ("postgresql://dbhost/crm", "postgresql://dbhost:5433/crm"),
        ("postgresql://dbhost/crm", "postgresql://standby/crm"),
        ("postgresql://dbhost/crm", "postgresql://dbhost/crm?sslmode=require"),
        ("postgresql://dbhost/crm", "mysql://dbhost/crm"),
        ("sqlite:///crm.db", "sqlite:///sub/crm.db"),
        ("postgresql://crm:${NOT_SET}@dbhost/crm", "sqlite:///crm.db"),
        ("no url at all", "sqlite:///crm.db"),
    ],
)
def test_a_url_that_means_another_database_is_overruled(
    tmp_path: Path, configured: str, in_code: str
) -> None:
    assert overruled(tmp_path, f'url = "{configured}"', App(in_code), PW="x") == ["url"]


CODE = MessageTable("crm.msg", msg_id="ID", payload=None, max_tries=5)


@pytest.mark.parametrize(
    ("own", "names"),
    [
        ("threads = 3\ngrace = 5", []),
        ('table = "crm.msg"', []),
        ('table = "msg"', ["table"]),
        ('columns = {msg_id = "ID", payload = false}', []),
        ('columns = {msg_id = "ID", payload = false, status = "status"}', []),
        ('columns = {msg_id = "ID"}', ["columns"]),
        ("max_tries = 5", []),
        ("max_tries = 3", ["max_tries"]),
        ('on_dead = "continue"\nvisibility_delay_seconds = "0s"', []),
        ('on_dead = "block"', ["on_dead"]),
        ('lease_seconds = "1m"', []),
        ("lease_seconds = 30", ["lease_seconds"]),
        ("foreign_stale_after = 600", ["foreign_stale_after"]),
        ("lanes_limit = 10\nmax_tries = 3", ["lanes_limit", "max_tries"]),
    ],
)
def test_a_setting_is_overruled_where_the_code_says_another_value(
    tmp_path: Path, own: str, names: list[str]
) -> None:
    app = App("sqlite:///crm.db", table=CODE, lease_seconds=60)
    assert sorted(overruled(tmp_path, own, app)) == names


def test_what_an_app_leaves_unset_is_shown_as_unset(tmp_path: Path) -> None:
    files(tmp_path, own="foreign_stale_after = 600")
    own = settings_of(App("sqlite:///crm.db"))
    conf = load(folder=tmp_path, environ={}, keywords=own, keywords_from="crm:app")
    assert (conf["foreign_stale_after"], conf.origins["foreign_stale_after"]) == (None, "crm:app")


def test_an_app_from_the_configuration_overrules_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files(
        tmp_path, own='url = "sqlite:///a.db"\n[columns]\nmsg_id = "ID"', pyproject="run_limit = 2"
    )
    monkeypatch.setenv("MSGWORKER_TABLE", "crm_msg")
    monkeypatch.setenv("MSGWORKER_NOTIFY", "true")
    app = App.from_config(label="crm")
    assert (app.table.name, app.table.msg_id, app.label) == ("crm_msg", "ID", "crm")
    assert (app.settings.run_limit, app.settings.notify) == (2, True)
    assert unused(load(), settings_of(app)) == []
    (tmp_path / "other.toml").write_text('url = "sqlite:///b.db"')
    assert App.from_config(load(file="other.toml")).engine.url.database == "b.db"
