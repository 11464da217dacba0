"""A purge into an archive with a partition per month, by the SQL of docs/operate/operations.md."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from tests.support.ops import DONE, put
from tests.support.rows import Table

SEPTEMBER, OCTOBER, NOVEMBER = (datetime(2026, month, 5, tzinfo=UTC) for month in (9, 10, 11))


@pytest.fixture
def sql() -> list[list[str]]:
    """The statements of the page: PostgreSQL once, PostgreSQL by month, MariaDB."""
    page = (Path(__file__).parents[2] / "docs" / "operate" / "operations.md").read_text(
        encoding="utf-8"
    )
    section = page.partition("### An archive that is dropped by month")[2].partition("\n[Metr")[0]
    blocks = re.findall(r"```sql\n(.*?)```", section, re.S)
    return [[one for one in block.split(";\n") if one.strip()] for block in blocks]


def _run(app: App, *statements: str) -> None:
    with app.engine.begin() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement.replace("crm.", f"{app.engine.url.database}."))


def _archived(app: App) -> list[int]:
    with app.engine.connect() as conn:
        return list(conn.scalars(sa.text("SELECT msg_id FROM old_messages ORDER BY msg_id")))


def _done(app: App, *months: datetime) -> list[int]:
    return [put(app, ("a", DONE), finished_at=month)[0] for month in months]


def _made(app: App) -> App:
    app.create_schema()
    return app


def test_a_month_of_the_archive_is_dropped_on_postgresql(postgresql: Any, sql: Any) -> None:
    app = _made(App(postgresql.url))
    once, (create, detach, drop), _ = sql
    _run(app, *once, create)
    september, *octobers, november = _done(app, SEPTEMBER, OCTOBER, OCTOBER, NOVEMBER)
    assert app.ops.purge("1s", archive_to="old_messages") == 4
    assert Table(app).rows("msg_id") == []
    _run(app, detach)
    assert _archived(app) == [september, november]
    with app.engine.connect() as conn:
        query = "SELECT msg_id FROM old_messages_2026_10 ORDER BY 1"
        assert list(conn.scalars(sa.text(query))) == octobers
    _run(app, drop)


def test_a_month_of_the_archive_is_dropped_on_mariadb(mariadb: Any, sql: Any) -> None:
    app = _made(App(mariadb.url))
    split, partition, another, drop = sql[2]
    (first,) = _done(app, SEPTEMBER)
    assert app.ops.purge("1s", archive_to="old_messages") == 1
    _run(app, split, partition, another)
    _, november = _done(app, OCTOBER, NOVEMBER)
    assert app.ops.purge("1s", archive_to="old_messages") == 2
    _run(app, drop)
    assert _archived(app) == [first, november]


def test_a_month_without_a_partition_loses_nothing_on_mariadb(mariadb: Any, sql: Any) -> None:
    app = _made(App(mariadb.url))
    split, partition, another, _ = sql[2]
    assert app.ops.purge("1s", archive_to="old_messages") == 0
    _done(app, SEPTEMBER)
    app.ops.purge("1s", archive_to="old_messages")
    _run(app, split, partition)
    (november,) = _done(app, NOVEMBER)
    left = app.ops.purge("1s", archive_to="old_messages")
    assert (left, left.skipped) == (0, 1)
    assert "partition" in str(left.skips[0])
    assert Table(app).column("msg_id") == [november]
    _run(app, another)
    assert app.ops.purge("1s", archive_to="old_messages") == 1
    assert Table(app).rows("msg_id") == []
