"""Local time in columns: what is written, due and read around each change of clocks, on every
database, with walks over the hours around it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, oracle

from msgworker.db.clock import (
    UtcDateTime,
    changes_of,
    created_default,
    has_come,
    instant_of,
    instant_text,
    is_to_come,
    kept,
    kept_as,
    now,
    now_plus,
    offsets_of,
    read_instant,
    real_instant,
    seconds_since,
    utc_of,
    written,
)
from msgworker.db.database import DATABASES
from msgworker.db.types import OfDatabase
from tests.servers import MariaDB, run, start

YEAR = datetime.now(UTC).year
ZONES = (
    *("Asia/Shanghai", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"),
    *("America/St_Johns", "Antarctica/Troll", "Pacific/Chatham", "UTC"),
)


def latest(local: datetime, zone: str) -> datetime:
    """The latest instant that a local time can mean."""
    means = [local.replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC) for fold in (0, 1)]
    return max(means)


def around(zone: str) -> list[datetime]:
    """Instants in the hours around the changes of a zone this year, and one far from them."""
    begin = [change.at.replace(tzinfo=UTC) for change in changes_of(zone, YEAR, YEAR)]
    steps = [timedelta(minutes=25 * n, seconds=1) for n in range(-6, 7)]
    return [at + step for at in begin for step in steps] or [datetime(YEAR, 6, 1, 8, tzinfo=UTC)]


def kind_on(name: str, zone: str) -> tuple[UtcDateTime, sa.types.TypeEngine[Any]]:
    """A column without a zone of its own: how it keeps instants, and its type."""
    there: sa.types.TypeEngine[Any] = {
        "postgresql": sa.DateTime(timezone=False),
        "sqlite": sa.Text(),
    }.get(name, mysql.DATETIME(fsp=6))
    return kept_as(there, DATABASES[name], zone), there


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def local(database: Any, zone: str) -> Iterator[tuple[sa.Connection, sa.Table, Any]]:
    """A table with a column of local times, and its column as statements know it."""
    kind, there = kind_on(database.name, zone)
    made = sa.Table("wall", sa.MetaData(), sa.Column("at", there))
    known = sa.Table("wall", sa.MetaData(), sa.Column("at", kind))
    with database.engine().connect() as conn:
        made.create(conn)
        conn.commit()
        yield conn, known, known.c.at
        conn.rollback()
        made.drop(conn)
        conn.commit()


@pytest.mark.quick("Berlin")
def test_an_instant_is_written_as_the_clocks_of_its_zone_show_it(zone: str, local: Any) -> None:
    conn, table, column = local
    for at in around(zone):
        for value in (at, kept(sa.literal(at, UtcDateTime()), column.type)):
            conn.execute(sa.insert(table).values(at=value))
        texts = conn.scalars(sa.select(instant_text(column))).all()
        assert len(set(texts)) == 1
        wall = datetime.fromisoformat(str(texts[0]))
        assert wall == at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        assert read_instant(texts[0], zone) == latest(wall, zone) >= at
        (read,) = set(conn.scalars(sa.select(column)))
        (real,) = set(conn.scalars(sa.select(real_instant(column))))
        assert read == real == latest(wall, zone)
        conn.execute(sa.delete(table))


@pytest.mark.quick("Berlin|Howe")
def test_what_waits_is_due_at_the_latest_meaning_of_its_local_time(zone: str, local: Any) -> None:
    """Also a local time that no clock shows, which a producer computes: it is never early, and
    late by no more than the change is wide."""
    conn, _table, column = local
    instants = around(zone)
    walls = {at.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for at in instants}
    walls |= {wall + timedelta(minutes=step) for wall in walls for step in (-30, 30)}
    raw = sa.table("wall", sa.column("at"))
    text = [str(wall) if conn.dialect.name == "sqlite" else wall for wall in sorted(walls)]
    conn.execute(sa.insert(raw), [{"at": one} for one in text])
    for at in instants:
        by = sa.literal(at, UtcDateTime())
        due = {latest(wall, zone) for wall in walls if latest(wall, zone) <= at}
        later = {latest(wall, zone) for wall in walls if latest(wall, zone) > at}
        assert set(conn.scalars(sa.select(column).where(has_come(column, by)))) == due
        assert set(conn.scalars(sa.select(column).where(is_to_come(column, by)))) == later
        since = sa.select(column).where(utc_of(column) > by)
        assert set(conn.scalars(since)) == later


@pytest.mark.quick("Berlin")
def test_the_database_s_clock_counts_for_local_times(zone: str, local: Any) -> None:
    conn, table, column = local
    delay = sa.literal(-5.0, sa.Float())
    conn.execute(sa.insert(table).values(at=written(now(), column.type)))
    conn.execute(sa.insert(table).values(at=written(now_plus(delay), column.type)))
    ages = conn.scalars(sa.select(seconds_since(column)).order_by(column.desc())).all()
    wide = max((abs(c.after - c.before) for c in changes_of(zone, YEAR, YEAR)), default=0)
    assert -wide - 1 < float(ages[0]) < 2 < 4 < float(ages[1]) + wide
    last = conn.scalars(sa.select(instant_text(column)).order_by(column)).first()
    place = instant_of(sa.literal(str(last)), column)
    assert len(conn.scalars(sa.select(column).where(column >= place)).all()) == 2
    assert len(conn.scalars(sa.select(column).where(column > place)).all()) == 1


def test_a_case_of_the_clock_is_written_in_the_zone_too() -> None:
    kind = UtcDateTime("Asia/Shanghai")
    value = sa.case((sa.column("dead") == 1, now()))
    compiler = DATABASES["mariadb"].offline_dialect()
    text = str(written(value, kind).compile(dialect=compiler))
    assert "utc_timestamp(6) + INTERVAL 28800 SECOND" in text
    twice = str(
        written(written(value, kind), kind).compile(dialect=DATABASES["mariadb"].offline_dialect())
    )
    assert text == twice
    assert text.count("INTERVAL") == 1


@pytest.mark.parametrize("name", ["mariadb", "oracle", "sqlite"])
def test_the_default_of_our_own_column_is_in_the_zone(name: str) -> None:
    assert "28800" in str(created_default(DATABASES[name], "Asia/Shanghai"))
    assert "28800" not in str(created_default(DATABASES[name]))


def test_oracle_compares_columns_with_and_without_a_zone() -> None:
    compiler = DATABASES["oracle"].offline_dialect()
    clock = "CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)"

    def due(there: Any, zone: str) -> str:
        column = sa.column("a", kept_as(there, DATABASES["oracle"], zone))
        return str(has_come(column, now()).compile(dialect=compiler))

    assert due(oracle.TIMESTAMP(), "UTC") == f"a <= {clock}"
    local = f"a <= ({clock} + NUMTODSINTERVAL(28800, 'SECOND'))"
    assert due(oracle.TIMESTAMP(), "Asia/Shanghai") == local
    assert due(oracle.DATE(), "Asia/Shanghai") == local
    assert due(oracle.TIMESTAMP(timezone=True), "Asia/Shanghai") == f"a <= FROM_TZ({clock}, 'UTC')"
    tied = oracle.TIMESTAMP(local_timezone=True)
    assert due(tied, "Asia/Shanghai") == f"a <= FROM_TZ({clock}, 'UTC')"
    berlin = due(oracle.TIMESTAMP(), "Europe/Berlin")
    assert berlin.count("CASE WHEN") == 2
    assert f"WHEN a < TIMESTAMP '{YEAR}-" in berlin


def test_the_changes_of_a_zone_are_those_that_python_knows() -> None:
    for zone in ZONES:
        for change in changes_of(zone, YEAR - 1, YEAR + 1):
            at = change.at.replace(tzinfo=UTC)
            before, after = (
                moment.astimezone(ZoneInfo(zone)).utcoffset()
                for moment in (at - timedelta(seconds=1), at)
            )
            assert (before, after) == (
                timedelta(seconds=change.before),
                timedelta(seconds=change.after),
            )
    assert offsets_of("Asia/Shanghai").by_instant == ((None, 28_800),)
    assert not offsets_of("Europe/Berlin").fixed


@pytest.fixture(scope="module")
def summer_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    """A MariaDB of its own that knows the zones of its sessions."""
    server = start("mariadb", durable=False)
    try:
        tool = MariaDB.program("mariadb-tzinfo-to-sql", "mysql_tzinfo_to_sql")
        assert tool is not None
        for name in SESSIONS:
            rows = run(tool, Path("/usr/share/zoneinfo") / name, name)
            with sa.create_engine(f"{server.url}mysql").begin() as conn:
                for statement in rows.split(";"):
                    if (
                        statement.strip()
                        .upper()
                        .startswith(("INSERT", "SET @TIME", "SET @TIMESTAMP"))
                    ):
                        conn.exec_driver_sql(statement.replace("%", "%%"))
        with sa.create_engine(server.url).begin() as conn:
            conn.exec_driver_sql("CREATE DATABASE tried")
        yield sa.create_engine(f"{server.url}tried")
    finally:
        server.remove()


SESSIONS = ("Europe/Berlin", "America/New_York")


@pytest.mark.parametrize("session", SESSIONS)
def test_a_timestamp_is_right_whatever_the_zone_of_the_session(
    session: str, summer_time: sa.Engine
) -> None:
    """No error in the hour that is left out, and exact but in the second of two equal hours: there
    an instant that is computed may be kept as much later as they are long."""
    kind = kept_as(mysql.TIMESTAMP(fsp=6), DATABASES["mariadb"], "Asia/Shanghai")
    table = sa.Table("ticked", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("at", kind))
    column, key = table.c.at, table.c.id
    offsets = [timedelta(minutes=25 * n) for n in range(-6, 7)]
    with summer_time.begin() as conn:
        conn.exec_driver_sql(
            "CREATE OR REPLACE TABLE ticked (id INT, at TIMESTAMP(6) NULL, KEY (at))"
        )
        conn.exec_driver_sql("SET sql_mode = 'STRICT_ALL_TABLES'")
        conn.exec_driver_sql(f"SET time_zone = '{session}'")
        assert str(conn.exec_driver_sql("SELECT @@time_zone").scalar()) == session
        for change in changes_of(session, YEAR, YEAR):
            at = change.at.replace(tzinfo=UTC)
            again = timedelta(seconds=max(0, change.before - change.after))
            conn.execute(sa.delete(table))
            conn.exec_driver_sql("SET time_zone = '+00:00'")
            for n, step in enumerate(offsets):
                kept_at = (at + step).replace(tzinfo=None)
                conn.exec_driver_sql(f"INSERT INTO ticked VALUES ({n}, '{kept_at}')")
            conn.exec_driver_sql(f"SET time_zone = '{session}'")
            assert conn.scalars(sa.select(real_instant(column)).order_by(key)).all() == [
                at + step for step in offsets
            ]
            for step in (*offsets, timedelta(0), again, -again):
                here = at + step + timedelta(seconds=1)
                conn.exec_driver_sql(f"SET timestamp = {here.timestamp()}")
                assert conn.scalar(sa.select(now())) == here
                repeated = again and at <= here < at + again
                late = again if repeated else timedelta(0)
                values = {
                    50: written(now(), kind),
                    51: written(now_plus(sa.literal(5.0)), kind),
                    52: written(sa.case((sa.literal(1) == 1, now())), kind),
                    53: here,
                }
                for number, value in values.items():
                    conn.execute(sa.insert(table).values(id=number, at=value))
                query = sa.select(key, real_instant(column)).where(key >= 50)
                kept_at = {number: found for number, found in conn.execute(query)}
                assert kept_at[50] == here
                assert (
                    here + timedelta(seconds=5) <= kept_at[51] <= here + late + timedelta(seconds=5)
                )
                assert here <= kept_at[52] <= here + late
                assert here <= kept_at[53] <= here + late
                conn.execute(sa.delete(table).where(key >= 50))
                due = [n for n, one in enumerate(offsets) if at + one <= here]
                later = [n for n, one in enumerate(offsets) if at + one > here]
                for index in ("FORCE", "IGNORE"):
                    rows = sa.select(key).with_hint(table, f"{index} INDEX (at)", "mysql")
                    rows = rows.with_hint(table, f"{index} INDEX (at)", "mariadb")
                    assert sorted(conn.scalars(rows.where(has_come(column, now())))) == due
                    assert sorted(conn.scalars(rows.where(is_to_come(column, now())))) == later
        conn.exec_driver_sql("DROP TABLE ticked")


def test_an_expression_that_no_database_can_write_is_an_error_at_once():
    with pytest.raises(TypeError, match="Database has no template nwo"):
        type("nwo", (OfDatabase,), {})
