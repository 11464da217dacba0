"""Purge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError, MessageTable, SchemaError
from msgworker.message import Status
from msgworker.ops import upkeep
from msgworker.ops.operation import RecordedOperation
from msgworker.ops.results import Why
from msgworker.store import items, purge
from msgworker.table.build import tables_for
from tests.engines import plain_engine
from tests.support.apps import created
from tests.support.doctor import run
from tests.support.ops import DONE, FAILED, NEW, RUNNING, Cut, cut_after, put
from tests.support.rows import Table, send

OLD = datetime.now(UTC) - timedelta(days=40)


def test_purge_takes_what_was_finished_long_ago(app, table):
    put(app, ("a", DONE), ("b", DONE), finished_at=OLD)
    put(app, ("c", DONE), ("d", NEW), ("e", RUNNING), finished_at=datetime.now(UTC))
    put(app, ("f", FAILED), finished_at=OLD)
    put(app, ("g", NEW), created_at=OLD)
    put(app, ("h", DONE), created_at=OLD)  # by a foreign consumer, which fills in nothing
    would = app.ops.purge("30d", dry_run=True)
    assert (would, len(would.sample)) == (3, 3)
    assert app.ops.purge(timedelta(days=50)) == 0
    done = app.ops.purge("30d", reason="retention")
    assert (done, done.skipped) == (3, 0)
    assert table.column("object_id") == ["c", "d", "e", "f", "g"]
    assert app.ops.purge(older_than=datetime.now(UTC) - timedelta(days=30), dead=True) == 1
    assert table.column("object_id") == ["c", "d", "e", "g"]
    assert [entry.changed for entry in app.ops.audit()] == [1, 3, 0]
    assert "before" in app.ops.audit()[0].filter


def test_purge_leaves_dead_ones_that_hold_their_object(blocking_app):
    app, table = blocking_app, Table(blocking_app)
    ids = put(app, ("a", FAILED), ("b", FAILED), finished_at=OLD)
    app.ops.discard([ids[1]], reason="x")
    table.edit(table.where(msg_id=ids[1]), finished_at=OLD)
    assert app.ops.purge("30d", dead=True) == 1
    assert table.column("object_id") == ["a"]


def test_purge_into_an_archive(app, table):
    put(app, *[(f"o{i}", DONE) for i in range(300)], finished_at=OLD, payload='{"n": 1}')
    before = table.rows("msg_id", "object_id", "payload", "created_at", "finished_at")
    assert app.ops.purge("30d", archive_to="old_messages", topic="t") == 300
    put(app, ("late", DONE), finished_at=OLD)
    assert app.ops.purge("30d", archive_to="old_messages") == 1
    assert table.rows("msg_id") == []
    t = sa.Table("old_messages", sa.MetaData(), autoload_with=app.engine)
    assert {c.name for c in t.c} >= set(app.tables.names.values())
    with app.engine.connect() as conn:
        names = ("msg_id", "object_id", "payload")
        rows = conn.execute(sa.select(*(t.c[n] for n in names)).order_by(t.c.msg_id)).all()
    assert [tuple(row) for row in rows[:300]] == [row[:3] for row in before]
    assert len(rows) == 301


def test_the_message_table_is_no_archive_of_itself_under_its_schema_either(app, table):
    put(app, ("a", DONE), finished_at=OLD)
    default = sa.inspect(app.engine).default_schema_name
    for name in (app.table.name, f"{default}.{app.table.name}"):
        with pytest.raises(ConfigError, match="cannot be the message table"):
            app.ops.purge("30d", archive_to=name)
    assert table.statuses == [2]
    assert not [one for one in app.ops.audit() if one.finished_at is None]


def test_the_message_table_is_no_archive_of_itself_wherever_the_search_path_finds_it(postgresql):
    app = App(postgresql.url)
    app.create_schema()
    put(app, ("a", DONE), finished_at=OLD)
    run(postgresql, "CREATE SCHEMA own", "CREATE SCHEMA other")
    url = sa.make_url(postgresql.url).update_query_dict({"options": "-csearch_path=own,public"})
    there = App(url)
    for name in ("public", "own"):
        with pytest.raises(ConfigError, match="cannot be the message table"):
            there.ops.purge("30d", archive_to=f"{name}.{app.table.name}")
    assert Table(app).statuses == [2]
    assert there.ops.purge("30d", archive_to=f"other.{app.table.name}") == 1
    for one in (app, there):
        one.engine.dispose()


def test_purge_refuses_an_archive_that_lacks_columns(app, table):
    put(app, ("a", DONE), finished_at=OLD)
    with app.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE too_narrow (msg_id INT, status INT)"))
        conn.execute(sa.text("CREATE TABLE old_m (x INT)"))
    with pytest.raises(SchemaError, match=r"too_narrow lacks column .*object_id"):
        app.ops.purge("30d", archive_to="too_narrow")
    for name in (
        "msgworker_message",
        "MSGWORKER_MESSAGE",
        "msgworker_lease",
        "",
        "a.b.c",
        "x\ny",
        7,
    ):
        with pytest.raises(ConfigError):
            app.ops.purge("30d", archive_to=name)
    assert table.statuses == [2]


def test_an_archive_of_before_an_upgrade_gets_its_column_by_the_statement_of_the_error(app, table):
    put(app, ("a", DONE), finished_at=OLD)
    assert app.ops.purge("30d", archive_to="old_m") == 1
    with app.engine.begin() as conn:
        conn.execute(sa.text("ALTER TABLE old_m DROP COLUMN job_id"))
        conn.execute(sa.text("ALTER TABLE old_m DROP COLUMN topic"))
    put(app, ("b", DONE), finished_at=OLD)
    with pytest.raises(SchemaError, match="old_m lacks column ") as refused:
        app.ops.purge("30d", archive_to="old_m")
    assert table.statuses == [2]
    with app.engine.begin() as conn:
        for statement in str(refused.value).split("`")[1::2][0].split("; "):
            conn.execute(sa.text(statement))
    assert app.ops.purge("30d", archive_to="old_m") == 1


def test_an_archive_that_does_not_take_the_rows_loses_none(app, table):
    put(app, ("a", DONE), finished_at=OLD)
    assert app.ops.purge("30d", archive_to="old_m") == 1
    (second,) = put(app, ("b", DONE), finished_at=OLD)
    with app.engine.begin() as conn:  # the same id stands there already
        conn.execute(sa.text(f"UPDATE old_m SET msg_id = {second}"))
    (third,) = put(app, ("c", DONE), finished_at=OLD)
    done = app.ops.purge("30d", archive_to="old_m")
    assert (done, done.skipped, done.skips[0].why) == (1, 1, Why.REFUSED)
    assert table.column("msg_id") == [second]
    with app.engine.connect() as conn:
        kept = conn.exec_driver_sql("SELECT msg_id FROM old_m ORDER BY msg_id").scalars().all()
    assert kept == [second, third]


WHOLE_SECOND = OLD.replace(microsecond=0)
LOSING = [  # a column of the archive, its type, what it alters, and what it keeps
    ("mariadb", "payload", "VARCHAR(5)", '"a long text"', "1"),
    ("mariadb", "payload", "VARCHAR(90) CHARACTER SET latin1", '"\u65e5\u672c"', '"\u00e4"'),
    ("mariadb", "finished_at", "DATETIME", OLD.replace(microsecond=7), WHOLE_SECOND),
    ("postgresql", "finished_at", "TIMESTAMPTZ(0)", OLD.replace(microsecond=7), WHOLE_SECOND),
    ("sqlite", "payload", "NUMERIC", "1.50", "1.5"),
]


@pytest.mark.quick("CHARACTER|TIMESTAMPTZ|sqlite")
@pytest.mark.parametrize(
    ("name", "column", "kind", "lost", "kept"),
    [pytest.param(*one, id=f"{one[0]}-{one[2]}") for one in LOSING],
)
def test_a_message_that_an_archive_would_alter_is_left(request, name, column, kind, lost, kept):
    """Also by a server that is not strict, which cuts what is too long."""
    database = request.getfixturevalue(name)
    loose = {"connect_args": {"init_command": "SET SESSION sql_mode = ''"}}
    made = plain_engine if name != "mariadb" else partial(sa.create_engine, **loose)
    app = created(App(made(database.url)))
    put(app, ("first", DONE), finished_at=OLD)
    assert app.ops.purge("30d", archive_to="old_m") == 1
    run(
        database,
        f"ALTER TABLE old_m DROP COLUMN {column}",
        f"ALTER TABLE old_m ADD COLUMN {column} {kind}",
    )
    values: dict[str, Any] = {"finished_at": OLD}
    (left,) = put(app, ("lost", DONE), **(values | {column: lost}))
    put(app, ("kept", DONE), **(values | {column: kept}))
    done = app.ops.purge("30d", archive_to="old_m")
    assert (done.changed, done.skipped, done.skips[0].why) == (1, 1, Why.REFUSED)
    told = f"the archive table old_m does not keep the message as it is: {column} is"
    assert told in str(done.skips[0])
    assert Table(app).column("msg_id") == [left]


UNKNOWN = [
    ("mariadb", "POINT", "POINT(1, 2)"),
    ("postgresql", "POINT", "'(1,2)'"),
    ("postgresql", "XML", "'<a/>'"),
    ("sqlite", "", "'007'"),
]


@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize(("name", "kind", "value"), UNKNOWN)
def test_an_archive_has_columns_of_types_that_sqlalchemy_does_not_know(request, name, kind, value):
    database = request.getfixturevalue(name)
    app = created(App(database.url))
    run(database, f"ALTER TABLE msgworker_message ADD COLUMN extra {kind}")
    for again in range(3):
        put(app, ("a", DONE), finished_at=OLD)
        run(database, f"UPDATE msgworker_message SET extra = {value}")
        if again == 2:
            run(database, "ALTER TABLE old_m DROP COLUMN extra")
            with pytest.raises(SchemaError, match="old_m lacks column extra") as refused:
                app.ops.purge("30d", archive_to="old_m")
            run(database, str(refused.value).split("`")[1])
        assert app.ops.purge("30d", archive_to="old_m") == 1
    assert Table(app).statuses == []


@pytest.mark.requires("unique_index_of_any_column")
def test_purge_leaves_out_the_rows_that_others_refer_to_and_names_them(app, table):
    ids = put(app, *((f"o{n}", DONE) for n in range(500)), finished_at=OLD)
    held = [ids[7], ids[8], ids[300], ids[-1]]
    line = sa.Table(
        "line",
        sa.MetaData(),
        sa.Column("msg", app.tables.cols().msg_id.type, sa.ForeignKey(app.tables.cols().msg_id)),
    )
    if app.engine.dialect.name == "sqlite":  # an App makes pools like that of its engine
        engine = sa.create_engine(app.engine.url)
        sa.event.listen(engine, "connect", foreign_keys)
        app = App(engine)
    with app.engine.begin() as conn:
        line.create(conn)
        conn.execute(sa.insert(line), [{"msg": i} for i in held])
    done = app.ops.purge("30d")
    assert (done.matched, done.changed, done.skipped) == (500, 496, 4)
    assert [(skip.msg_id, skip.why) for skip in done.skips] == [(i, Why.REFUSED) for i in held]
    assert "foreign key" in str(done.skips[0]).lower()
    assert table.column("msg_id") == held
    assert [(entry.changed, entry.skipped) for entry in app.ops.audit()] == [(496, 4)]


def foreign_keys(raw: Any, _: Any) -> None:
    """SQLite checks them only where a connection asks for it."""
    raw.execute("PRAGMA foreign_keys = ON")


@pytest.mark.parametrize("name", ["m", "m" * 61], ids=["short", "long"])
def test_purge_takes_the_items_of_a_message_too(make_app, name):
    app = created(make_app(table=MessageTable(name)))
    ids = put(app, ("a", DONE), ("b", DONE), finished_at=OLD)
    new = put(app, ("c", DONE), finished_at=datetime.now(UTC))
    item = app.tables.item
    with app.engine.begin() as conn:
        for msg_id in (*ids, *new):
            known = {"table_name": items.label(app.table), "msg_id": msg_id}
            conn.execute(sa.insert(item).values({**known, "item_key": "k", "status": 2}))
    assert app.ops.purge("30d") == 2
    with app.engine.connect() as conn:
        assert list(conn.scalars(sa.select(item.c.msg_id))) == new


def test_what_is_known_of_a_message_is_purged_by_who_has_asked_for_none_of_it(app):
    """The tables of ours are described at their first use: `msgworker purge` may be the first."""
    fresh = tables_for(MessageTable("not_used_before"), app.tables.database)
    with app.engine.connect() as conn:
        names = {table.name for table in purge.beside(conn, fresh)}
    assert names >= {"msgworker_cancel", "msgworker_item", "msgworker_try"}


@pytest.mark.quick("sqlite")
@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_purge_sweeps_what_is_left_of_messages_that_are_gone(app, monkeypatch, rows):
    monkeypatch.setattr(upkeep, "SWEPT_ROWS", rows)
    first = ["items", "fails", "discarded"]

    @app.handler("t", when_done="delete", max_tries=1)
    def handle(msg: Any, ctx: Any) -> None:
        if msg.object_id not in first:
            return
        first.remove(msg.object_id)
        if msg.object_id != "items":
            raise ValueError
        ctx.fan_out(str, [1, 2, 3])

    def left() -> tuple[list[int], list[int]]:
        with app.engine.connect() as conn:
            found = [conn.scalars(sa.select(x.c.msg_id)).all() for x in (t.item, t.failed_try)]
        return sorted(found[0]), sorted(found[1])

    t = app.tables
    ids = send(app, *first)
    app.drain(linger=0)
    assert left() == ([ids[0]] * 3, ids[1:])
    assert app.ops.discard([ids[2]], reason="x") == 1
    assert app.ops.purge("1h") == 0
    assert left() == ([ids[0]] * 3, ids[1:])
    assert app.ops.rerun(ids, force=True) == 3
    app.drain(linger=0)
    assert Table(app).column("msg_id") == [ids[1]]  # it has failed
    assert app.ops.purge("1h") == 0
    assert left() == ([], [ids[1]])
    assert [one.kind for one in app.ops.show(ids[1]).tries] == ["failed"]


def test_purge_refuses_ages_that_are_none(sqlite, subtests):
    app = created(App(sqlite.url))
    put(app, ("a", DONE), finished_at=OLD)
    for age in (
        None,
        0,
        -1,
        "0",
        "-5d",
        "soon",
        "",
        float("nan"),
        float("inf"),
        True,
        10**12,
        timedelta(0),
        timedelta(days=-1),
        datetime(2200, 1, 1, tzinfo=UTC),
        datetime(2020, 1, 1),  # noqa: DTZ001 - that is what is wrong
        [],
    ):
        with subtests.test(age=age):
            with pytest.raises(ConfigError):
                app.ops.purge(age)
            assert Table(app).statuses == [2]


def test_purge_of_a_table_without_times_is_refused(database, make_app):
    spec = MessageTable("plain", finished_at=None, created_at=None, claimed_at=None)
    app = created(make_app(table=spec))
    with pytest.raises(SchemaError, match="finished_at"):
        app.ops.purge("30d")


def test_an_interrupted_purge_goes_on(app, table):
    t = app.tables
    row = t.values(status=int(Status.DONE), topic="t", object_id="o", finished_at=OLD)
    with app.engine.begin() as conn:
        conn.execute(sa.insert(t.message), [row] * 899)
    put(app, ("dead", FAILED), finished_at=OLD)
    put(app, ("other", DONE), topic="u", finished_at=OLD)
    with pytest.raises(Cut):
        app.ops.purge("30d", dead=True, topic="t", archive_to="old_m", progress=cut_after(2))
    (cut,) = app.ops.audit()
    assert len(table.statuses) == 901 - cut.changed
    done = app.ops.purge(operation=cut.op_id)
    assert (done.changed, done.op_id) == (900, cut.op_id)
    assert table.column("object_id") == ["other"]
    with app.engine.connect() as conn:
        assert conn.execute(sa.text("SELECT count(*) FROM old_m")).scalar_one() == 900


def test_a_rerun_saves_a_message_from_the_purge(app, table, monkeypatch):
    ids = put(app, ("a", DONE), ("b", DONE), finished_at=OLD)
    step = RecordedOperation.step

    def late(self: RecordedOperation, last_id: Any, work: Any) -> Any:
        if self.op.kind == "purge" and self.op.steps == 0:
            assert app.ops.rerun([ids[0]], force=True) == 1
        return step(self, last_id, work)

    monkeypatch.setattr(RecordedOperation, "step", late)
    done = app.ops.purge("30d", archive_to="old_m")
    assert (done.changed, done.skipped) == (1, 1)
    assert table.rows("msg_id", "status") == [(ids[0], 0)]
