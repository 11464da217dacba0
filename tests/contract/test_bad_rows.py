"""Odd values in a row: they harm their own message only."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from msgworker import App, Message, MessageTable
from msgworker.cli.output import print_json
from msgworker.cli.show import as_dict
from msgworker.errors import ConfigError
from tests.support.apps import created
from tests.support.odd_rows import assert_all_others_ran, drain, drain_all, put
from tests.support.ops import looks
from tests.support.rows import Table, send

DONE, DEAD, STAYS = "done", "dead", "new"
NOT_UTF8 = "CAST(x'ff41' AS TEXT)"
HALF = "x'eda080'"  # half a surrogate pair, which MariaDB takes for text
LONG_AGO = "'2020-01-01 00:00:00'"


@dataclass(frozen=True)
class Odd:
    """A value that a producer wrote into a column, as SQL; what becomes of its message."""

    database: str
    column: str
    value: str
    becomes: str

    def __str__(self) -> str:
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{self.database}-{self.column}-{self.value}")


def _odd_rows() -> list[Odd]:
    rows = [
        Odd("sqlite", "created_at", value, DONE)
        for value in (
            "strftime('%s','now')",
            "''",
            "'garbage'",
            "'0001-01-01T00:00:00+14'",
            "x'ff'",
        )
    ]
    for column in ("created_at", "finished_at", "claimed_at", "last_error", "claimed_by"):
        rows.append(Odd("sqlite", column, NOT_UTF8, DONE))
    for column in ("finished_at", "claimed_at"):
        rows += [Odd("sqlite", column, value, DONE) for value in ("''", "'garbage'", "17")]
    for column in ("payload", "object_id", "topic"):
        rows.append(Odd("sqlite", column, NOT_UTF8, DEAD))
    for column in ("error_try_times", "crash_times", "later_times"):
        values = ["'two'", "1.5", NOT_UTF8, "-1e300"]
        values += ["1e300"] if column != "error_try_times" else []
        rows += [Odd("sqlite", column, value, DEAD) for value in values]
    for database in ("sqlite", "postgresql", "mariadb"):
        rows += [Odd(database, c, "-2", DEAD) for c in ("error_try_times", "later_times")]
    rows.append(Odd("sqlite", "last_error", "x'ff'", DONE))
    rows += [Odd("mariadb", column, HALF, DEAD) for column in ("payload", "object_id", "topic")]
    rows += [Odd("mariadb", column, HALF, DONE) for column in ("last_error", "claimed_by")]
    rows += [Odd("sqlite", "status", value, "unknown") for value in ("'text'", "0.5", NOT_UTF8)]
    rows += [
        Odd("sqlite", "available_at", value, becomes)
        for value, becomes in (
            ("''", DONE),
            ("'2-01-01 00:00:00.000'", DONE),
            ("'1700000000'", DONE),
            ("'garbage'", STAYS),
            (NOT_UTF8, STAYS),
        )
    ]
    strange = ("'infinity'", "'-infinity'", "'20000-01-01'", "'0044-03-15 BC'")
    for column in ("created_at", "claimed_at", "finished_at"):
        rows += [Odd("postgresql", column, value, DONE) for value in strange]
        rows.append(Odd("mariadb", column, "'0000-00-00'", DONE))
    fates = (STAYS, DONE, STAYS, DONE)
    rows += [Odd("postgresql", "available_at", v, f) for v, f in zip(strange, fates, strict=True)]
    rows.append(Odd("mariadb", "available_at", "'0000-00-00'", DONE))
    for database in ("sqlite", "postgresql", "mariadb"):
        half = r"'{\"a\":\"\\ud800\"}'" if database == "mariadb" else r"""'{"a":"\ud800"}'"""
        rows += [Odd(database, "payload", value, DEAD) for value in (half, "'NaN'")]
    return rows


ODD = _odd_rows()


def every_look(app: App, msg_id: int) -> dict[str, Any]:
    """What all the looks of ops find, as JSON shows it, too."""
    ops = app.ops
    found = {name: look() for name, look in looks(ops, msg_id).items()}
    found["list"] = ops.find(limit=1000)
    for chosen in (
        {"status": "new"},
        {"status": "dead"},
        {"since": datetime(2020, 1, 1, tzinfo=UTC)},
    ):
        ops.find(**chosen)
        ops.messages(**chosen)
    ops.purge(older_than=3600, dry_run=True)
    print_json([as_dict(info) for info in found["list"]])
    return found


@pytest.mark.quick("sqlite-status-0|postgresql-available_at-_inf")
@pytest.mark.requires("half_surrogates", of="x_eda080_")
@pytest.mark.parametrize(
    ("database", "odd"),
    [(odd.database, odd) for odd in ODD],
    ids=map(str, ODD),
    indirect=["database"],
)
def test_an_odd_value_harms_its_own_message_only(app, database, odd, taken, capsys):
    good = send(app, *(f"o{i % 5}" for i in range(10)))
    put(app, **{odd.column: odd.value})
    bad = good[-1] + 1
    behind = send(app, *(["bad"] * 2), *(f"o{i % 5}" for i in range(10)))
    found = every_look(app, bad)  # before it is changed
    assert len(found["list"]) == 23
    waits = odd.becomes == STAYS and odd.column == "available_at"
    report = drain(app, taken)
    assert_all_others_ran(taken, good + (behind[2:] if waits else behind))
    found = every_look(app, bad)
    info = found["show"]
    assert info.status == odd.becomes
    assert report.exit_code == (1 if odd.becomes == DEAD else 0)
    assert "inf" not in str(report)
    assert report.left == (3 if waits else 0)
    if odd.becomes == DEAD and odd.value != "'NaN'":
        named = odd.column if "ud800" not in odd.value else "payload"
        assert named in info.last_error
        assert all(char.isprintable() for char in info.last_error)
        assert info.error_try_times == app.table.max_tries
    if odd.becomes == DONE and odd.column == "created_at":
        assert [m.created_at for m in taken if m.msg_id == bad] == [None]
        assert all(m.created_at is not None for m in taken if m.msg_id != bad)
        assert info.created_at is None
        assert info.odd["created_at"]
    if odd.value == HALF and odd.column != "claimed_by":  # which a done one has no more
        told = "a text" if odd.column == "payload" else r'"\xed\xa0\x80"'  # hidden until asked for
        assert info.odd[odd.column].startswith(told)
    if waits:
        assert info.odd["available_at"] in found["explain"].text
    assert all(one.odd == {} for one in found["list"] if one.msg_id != bad)


@pytest.mark.parametrize("on_dead", ["continue", "block"])
def test_a_message_that_cannot_be_read_is_dead_at_once_and_its_object_goes_on_by_on_dead(
    sqlite, taken, on_dead
):
    app = created(App(sqlite.url, table=MessageTable(on_dead=on_dead)))
    put(app, payload=NOT_UTF8)
    (behind,) = send(app, "bad")
    report = drain(app, taken)
    assert report.failed == 1
    assert report.retried == 0
    assert [m.msg_id for m in taken] == ([behind] if on_dead == "continue" else [])
    info = app.ops.show(1)
    assert info.last_error == r'the row cannot be read: payload holds "\xffA", which is not UTF-8'
    assert [one.error for one in info.tries] == [info.last_error]


def test_a_value_in_an_error_is_clipped_and_on_one_line(sqlite, taken):
    app = created(App(sqlite.url))
    put(app, payload="CAST(x'ff0a1b5b326a' || zeroblob(100000) AS TEXT)")
    drain(app, taken)
    text = app.ops.show(1).last_error
    assert r"\xff\n\x1b[2j\x00" in text
    assert text.endswith('...", which is not UTF-8')
    assert len(text) < 500


def test_an_object_whose_id_is_not_utf8_is_found_among_many(sqlite, taken):
    app = created(App(sqlite.url))
    for byte in ("fe", "ff"):
        put(app, object_id=f"CAST(x'{byte}' AS TEXT)", available_at="'2999-01-01'")
        for _ in range(3):
            put(app, object_id=f"CAST(x'{byte}' AS TEXT)")
    ids = send(app, *(f"o{i}" for i in range(300)))
    drain(app, taken)  # the window and the ring go past them
    assert len(taken) == len(ids)
    assert {lane.object_id: lane.behind for lane in app.ops.lanes()} == {r"\xfe": 3, r"\xff": 3}
    with app.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE msgworker_message SET available_at = NULL WHERE status = 0")
    report = drain(app, taken)
    assert (report.failed, report.left) == (8, 0)


def test_rows_of_a_dead_instance_whose_id_is_not_utf8_are_recovered(sqlite, taken):
    app = created(App(sqlite.url, lease_seconds=3))
    put(app, status="1", claimed_by=NOT_UTF8, claimed_at="'garbage'")
    good = send(app, "a", "bad")
    assert [one.instance_id for one in app.ops.instances()] == ["\udcffA"]
    report = drain(app, taken)
    assert (report.done, report.left) == (3, 0)
    assert_all_others_ran(taken, good)
    (crash,) = app.ops.show(1).tries
    assert crash.error == r"instance \xffA died while it held this message"
    assert crash.started_at is None


def test_rows_of_an_owner_that_is_no_text_are_recovered(sqlite, taken):
    app = created(App(sqlite.url, lease_seconds=3))
    put(app, status="1", claimed_by="x'ff41'")
    put(app, object_id="'other'", status="1", claimed_by="'gone'")
    good = send(app, "a", "bad")
    assert {one.instance_id for one in app.ops.instances()} == {"gone", r"b'\xffA'"}
    report = drain(app, taken)
    assert (report.done, report.left) == (4, 0)
    assert_all_others_ran(taken, good)


def test_a_topic_that_is_no_text_stops_no_look(sqlite, taken):
    app = created(App(sqlite.url))
    put(app, topic="x'ff'")
    put(app, object_id="'b'", topic="x'fe'", status="-1", error_try_times="3", last_error="x'ff'")
    good = send(app, "a", "b")
    every_look(app, 1)
    report = drain(app, taken)
    assert_all_others_ran(taken, good)
    found = every_look(app, 1)
    assert found["explain"].reason == "no live instance"
    assert found["show"].odd["topic"]
    assert [one.topics for one in found["failures"]] == [(r"b'\xfe'",)]
    assert report.left_by == {"no handler": 1}


@pytest.mark.requires("column_types")
@pytest.mark.parametrize("status", ["0", "1"])
def test_a_counter_at_the_limit_of_its_column_goes_no_further(app, server, taken, status):
    app.settings  # noqa: B018
    most = {"error_try_times": "32767", "crash_times": "32767", "later_times": "32767"}
    put(app, status=status, claimed_by="'gone'", **most)
    good = send(app, "a", "bad")

    def handle(msg: Message[Any]) -> None:
        taken.append(msg)
        if msg.object_id == "bad" and msg.msg_id not in good:
            raise ValueError("no")

    app.add_handler("t", handle)
    report = drain(app, taken)
    assert_all_others_ran(taken, good)
    assert (report.done, report.left) == (len(good), 0)
    info = app.ops.show(1)
    assert (info.status, info.error_try_times) == (DEAD, app.table.max_tries)


@pytest.mark.requires("common_sql")
def test_an_odd_created_at_hides_no_ages_of_others(app, database, taken):
    send(app, "a", "b")
    Table(app).edit(created_at=datetime.now(UTC) - timedelta(hours=1))
    odd = {"postgresql": "'-infinity'", "mariadb": "'0000-00-00'"}.get(database.name, "''")
    put(app, created_at=odd)
    (count,) = app.ops.counts()
    assert count.count == 3
    assert 3590 < count.oldest_seconds < 4000


@pytest.mark.parametrize("topics", [None, ["t"]], ids=["all", "one topic"])
def test_the_lowest_and_the_highest_id_stop_nobody(app, table, topics):
    """Looks go on behind the last id that they have read: behind the highest there is none."""
    ids = send(app, "a", "b", "c", "d")
    for msg_id, other in zip(ids[:2], (2**63 - 1, -(2**63)), strict=True):
        table.edit(table.where(msg_id=msg_id), msg_id=other)
    table.edit(table.where(msg_id=ids[2]), topic="other")
    app.add_handler("t", lambda msg: None)
    assert app.drain(linger=0.3, topics=topics).done == 3
    app.ops.rerun(2**63 - 1, force=True)
    assert app.drain(linger=0, topics=topics).done == 1


def test_an_id_that_is_no_whole_number_stops_nobody(postgresql, taken):
    engine = postgresql.engine()
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE old (msgid numeric PRIMARY KEY, objectid numeric, status numeric(5, 2)"
            " NOT NULL DEFAULT 0, errortrytimes numeric(5, 2) NOT NULL DEFAULT 0)"
        )
        for row in ("'NaN', 1", "1.5, 1", "2, 2", "3, 'NaN'", "4, 'NaN'", "5, 2", "6, NULL"):
            conn.exec_driver_sql(f"INSERT INTO old (msgid, objectid) VALUES ({row})")
        conn.exec_driver_sql("INSERT INTO old VALUES (7, 7, 0, 'NaN'), (8, 8, 0, 1.5)")
    names = {"msg_id": "msgid", "object_id": "objectid", "error_try_times": "errortrytimes"}
    app = created(App(postgresql.url, table=MessageTable("old", **names)))
    report = drain_all(app, taken)
    assert sorted(m.msg_id for m in taken) == [2, 3, 4, 5, 6]
    assert report.failed == 2
    assert {i: app.ops.show(i).status for i in (7, 8)} == {7: DEAD, 8: DEAD}
    app.ops.counts(), app.ops.lanes(), app.ops.find(), app.ops.doctor()


@pytest.mark.long
def test_tries_counted_in_decimals_back_off_like_whole_ones(database, make_app, caplog):
    engine = database.engine()
    kind = "DECIMAL(5, 2)"
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE old (msgid integer PRIMARY KEY, objectid varchar(50), status integer"
            f" NOT NULL DEFAULT 0, errortrytimes {kind} NOT NULL DEFAULT 0,"
            f" available_at {'timestamptz' if database.name == 'postgresql' else 'datetime(6)'})"
        )
        conn.exec_driver_sql("INSERT INTO old (msgid, objectid) VALUES (1, 'a')")
    names = {"msg_id": "msgid", "object_id": "objectid", "error_try_times": "errortrytimes"}
    app = created(make_app(table=MessageTable("old", **names)))
    tries: list[Any] = []

    def fails(msg: Message[Any]) -> None:
        tries.append(msg.error_try_times)
        raise ValueError("no")

    app.add_handler(None, fails)
    report = app.drain(linger=10, time_limit=60)
    assert tries == [0, 1, 2]
    assert {type(n) for n in tries} == {int}
    assert report.failed == 1
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "at",
    [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1900, 1, 1, tzinfo=UTC),
        datetime(2, 1, 1, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=-8))),
    ],
    ids=str,
)
def test_any_instant_in_the_past_is_due(app, taken, at):
    first, second = send(app, "x", "y", at=at)
    (behind,) = send(app, "x")
    assert app.ops.show(first).available_at == at
    report = drain(app, taken)
    assert_all_others_ran(taken, [first, second, behind])
    assert report.left == 0


def test_many_messages_of_long_ago_are_all_found(app, taken):
    ids = send(app, *(None for _ in range(300)), at=datetime(1969, 7, 20, tzinfo=UTC))
    drain(app, taken)
    assert_all_others_ran(taken, ids)


@pytest.mark.parametrize(
    "at",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=8))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    ],
    ids=str,
)
def test_an_instant_outside_the_years_1_to_9999_is_refused_at_the_call(app, at):
    with app.engine.begin() as conn, pytest.raises(ConfigError, match="years 1 to 9999"):
        app.send(conn, "t", object_id="x", at=at)
    with app.engine.begin() as conn, pytest.raises(ConfigError, match="years 1 to 9999"):
        app.send_many(conn, "t", [(None, "x")], at=at)
    assert app.ops.find() == []


THEIRS = (
    "CREATE TABLE theirs (msg_id BIGINT {count} PRIMARY KEY, object_id VARCHAR(50), topic "
    "VARCHAR(100) DEFAULT 'default', payload TEXT, status SMALLINT NOT NULL DEFAULT 0, "
    "error_try_times SMALLINT NOT NULL DEFAULT 0, available_at {kind} NULL)"
)


def test_an_instant_that_a_column_of_theirs_cannot_hold_is_refused_at_the_call(mariadb, subtests):
    """A TIMESTAMP of MariaDB and MySQL; reliability 84: the clock is the database's."""
    with mariadb.engine().begin() as conn:
        conn.exec_driver_sql(THEIRS.format(count="AUTO_INCREMENT", kind="TIMESTAMP"))
    app = created(App(mariadb.url, table=MessageTable("theirs")))
    words = r"1970-01-02 to (2038|2106)-.*column available_at \(TIMESTAMP\)"
    odd: tuple[dict[str, Any], ...] = (
        {"at": datetime(1969, 7, 20, tzinfo=UTC)},
        {"at": datetime(1970, 1, 1, 0, 0, 0, tzinfo=UTC)},
        {"at": datetime(2107, 1, 1, tzinfo=UTC)},
        {"at": datetime(9999, 12, 31, tzinfo=UTC)},
        {"delay": timedelta(days=90 * 366)},
    )
    with app.engine.begin() as conn:
        for options in odd:
            with subtests.test(options=options):
                with pytest.raises(ConfigError, match=words):
                    app.send(conn, "t", **options)
                with pytest.raises(ConfigError, match=words):
                    app.send_many(conn, "t", [(None, "x")], **options)
        app.send(conn, "t", at=datetime(2038, 1, 17, tzinfo=UTC))
        app.send(conn, "t", at=datetime(1970, 1, 3, tzinfo=UTC))
    assert len(app.ops.find()) == 2


def test_a_column_of_days_takes_no_instant(database):
    """It would keep the midnight before."""
    kinds = {"postgresql": "TIMESTAMPTZ", "mariadb": "DATETIME(6)"}
    if database.name not in kinds:
        pytest.skip("types are loose there")
    on_mariadb = database.name == "mariadb"
    count = "AUTO_INCREMENT" if on_mariadb else "GENERATED BY DEFAULT AS IDENTITY"
    change = "MODIFY available_at DATE" if on_mariadb else "ALTER available_at TYPE DATE"
    with database.engine().begin() as conn:
        conn.exec_driver_sql(THEIRS.format(count=count, kind=kinds[database.name]))
    App(database.url, table=MessageTable("theirs")).create_schema()
    with database.engine().begin() as conn:
        conn.exec_driver_sql(f"ALTER TABLE theirs {change}")
    app = App(database.url, table=MessageTable("theirs"))
    for options in ({"at": datetime(2030, 1, 1, 12, tzinfo=UTC)}, {"delay": 60}):
        with app.engine.begin() as conn, pytest.raises(ConfigError, match="is DATE and holds no"):
            app.send(conn, "t", **options)
    assert app.ops.find() == []


def test_the_last_instant_of_all_is_kept_and_waited_for(app, taken):
    (far,) = send(app, "x", at=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
    report = drain(app, taken)
    assert report.left == 1
    info = app.ops.show(far)
    assert info.available_at == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_ops_take_dead_rows_whose_counter_or_error_is_odd(sqlite, taken):
    app = created(App(sqlite.url))
    put(app, status="-1", error_try_times="'two'", last_error="'no'")
    put(app, object_id="'b'", status="-1", error_try_times="3", last_error=NOT_UTF8)
    put(
        app,
        object_id="'c'",
        status="2",
        payload=NOT_UTF8,
        finished_at="'garbage'",
        claimed_by=NOT_UTF8,
    )
    assert [one.dead for one in app.ops.failures()] == [1, 1]
    every_look(app, 1)
    assert {one.status for one in app.ops.find(status="dead")} == {"dead"}
    assert app.ops.rerun(ids=[1], actor="anna") == 1
    (group,) = app.ops.failures()
    assert app.ops.rerun(fingerprint=group.fingerprint, actor="anna") == 1
    assert app.ops.discard(ids=[2], actor="anna", reason="no") == 1
    assert len(app.ops.audit()) == 3
    assert len(app.ops.audit(msg_id=1)) == 1
    report = drain(app, taken)
    assert [m.msg_id for m in taken] == [1]
    assert report.left == 0
