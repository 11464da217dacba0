"""Claims in a slice of the table: what is found there, in which order, and at what cost."""

from __future__ import annotations

import math
import os
import threading
import zlib
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex

from msgworker import App, MessageTable, RetryLater
from msgworker.coordination import Partitions, Segments
from msgworker.coordination.centres import Everywhere, Instance
from msgworker.errors import ConfigError, SchemaError
from msgworker.instance.claiming import finder
from msgworker.instance.claiming.heads import Wanted
from msgworker.instance.claiming.passes import BEHIND, WINDOW, AgeSearch, SliceSearch
from msgworker.instance.claiming.search import TableSearch
from msgworker.message import Outcome, Settlement
from msgworker.queries.explain import Waits
from msgworker.schema import apply
from msgworker.store import candidates, claim, done, slices
from msgworker.store.slices import Place
from msgworker.table.columns import Slice
from tests.scopes.conftest import MakeApp, Shards
from tests.support.apps import created
from tests.support.plans import plan_of
from tests.support.rows import Table, edit, send
from tests.support.tables import IDENTITY
from tests.support.waiting import launched, until

NOW = {"linger": 0, "threads": 2}


def shard_of(object_id: str, shards: int = 64) -> int:
    return zlib.crc32(object_id.encode()) % shards


def search_of(app: App) -> SliceSearch:
    kind = AgeSearch if app.tables.database.slices_by_age else SliceSearch
    return kind(app.tables, None)


@pytest.fixture
def ran(app: App) -> list[int]:
    """The messages that were handled, in order."""
    found: list[int] = []
    app.add_handler("t", lambda msg: found.append(msg.msg_id))
    return found


# ---------------------------------------------------------------- sending


def test_send_fills_the_shard_of_the_object_and_no_flag(app):
    send(app, "C-1", "C-2", "C-1")
    found = Table(app).rows("shard", "instance_type")
    assert found == [(shard_of(o), None) for o in ("C-1", "C-2", "C-1")]


def test_messages_without_an_object_go_to_all_shards_in_turn(app):
    send(app, *[None] * 64)
    assert sorted(Table(app).column("shard")) == list(range(64))


def test_how_many_shards_there_are_is_a_setting_of_the_table(make_app):
    app = created(make_app(table=MessageTable(shards=8)))
    send(app, *(f"C-{i}" for i in range(50)))
    assert Table(app).column("shard") == [shard_of(f"C-{i}", 8) for i in range(50)]


# ---------------------------------------------------------------- the index


def test_the_index_of_a_slice_exists_where_its_column_is_named_and_only_there(make_app):
    def names(app: App) -> set[str]:
        app.create_schema()
        return {name for name in app.tables.indexes or () if name.endswith(("_shard", "_flag"))}

    assert names(make_app(table=MessageTable())) == set()
    assert names(make_app(table=MessageTable(shard="shard"))) == {"msgworker_message_shard"}
    assert len(names(make_app())) == 2


def test_a_scope_without_its_index_works_and_tells_the_statement(make_app, caplog):
    app = created(make_app(table=MessageTable()))
    app.add_handler("t", lambda msg: None)
    send(app, "C-1")
    assert app.drain(scope=Shards(shard_of("C-1")), **NOW).done == 1
    (told,) = [r.getMessage() for r in caplog.records if "CREATE INDEX" in r.getMessage()]
    with app.engine.begin() as conn:
        conn.exec_driver_sql(told.partition("run: ")[2])
    now = make_app(table=MessageTable()).tables
    assert not apply.slice_index(app.engine, now, "shard")


def test_a_scope_whose_column_is_missing_tells_how_to_add_it(make_app):
    app = make_app(table=MessageTable("own"))
    with app.engine.begin() as conn:
        kind = "INTEGER PRIMARY KEY" if conn.dialect.name == "sqlite" else "BIGINT PRIMARY KEY"
        conn.exec_driver_sql(
            f"CREATE TABLE own (msg_id {kind}, object_id VARCHAR(50), "
            "status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 NOT NULL)"
        )
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    with pytest.raises(SchemaError, match="ALTER TABLE own ADD") as told:
        app.drain(scope=Shards(0), **NOW)
    with app.engine.begin() as conn:
        conn.exec_driver_sql(str(told.value).partition("Add it: ")[2])
    again = make_app(table=MessageTable("own"))
    again.add_handler(None, lambda msg: None)
    assert again.drain(scope=Shards(0), **NOW).done == 0


def test_a_scope_that_does_not_fit_is_refused_at_the_call(app, ran):
    with pytest.raises(ConfigError, match="scope must be one of"):
        app.worker(scope="asA")
    bare = App(app.engine, table=MessageTable("x", instance_type=None))
    bare.add_handler("t", lambda msg: None)
    with pytest.raises(ConfigError, match="needs a column instance_type"):
        bare.worker(scope=Instance("asA"))
    for instance_type in ("", " ", None, "x" * 31):
        with pytest.raises(ConfigError, match="instance type"):
            Instance(instance_type)


# ---------------------------------------------------------------- what is claimed


def test_an_instance_reads_only_what_bears_its_flag(app, ran):
    ids = send(app, "a", "a", "b", None, "c", None)
    table = Table(app)
    for msg_id, flag in zip(ids, ["asA", "asB", "asB", "asA", "asA", "asB"], strict=True):
        table.edit(table.where(msg_id=msg_id), instance_type=flag)
    assert app.drain(scope=Instance("asA"), **NOW).done == 3
    assert sorted(ran) == [ids[0], ids[3], ids[4]]
    worker = app.worker(scope=Instance("asA"))
    assert (worker.left().due_heads, worker.left().by) == (0, {Waits.OTHER_SLICES: 3})
    assert app.drain(scope=Instance("asB"), **NOW).done == 3


def test_everywhere_is_as_without_a_scope(app, ran):
    send(app, "a", "b", None)
    assert app.worker(scope=Everywhere()).make_setup().scope is None
    assert app.drain(scope=Everywhere(), **NOW).done == 3


def test_a_message_waits_for_an_earlier_one_of_its_object_in_another_shard(app, ran):
    first, second = send(app, "a", "a")
    table = Table(app)
    table.edit(table.where(msg_id=first), shard=5)
    table.edit(table.where(msg_id=second), shard=6)
    assert app.drain(scope=Shards(6), **NOW).done == 0
    assert app.drain(scope=Shards(5), **NOW).done == 1
    assert app.drain(scope=Shards(6), **NOW).done == 1
    assert ran == [first, second]


def test_a_null_shard_counts_as_shard_0(make_app):
    app = make_app(table=MessageTable("own", shard="s"))
    with app.engine.begin() as conn:
        counts = {"sqlite": "INTEGER PRIMARY KEY", "postgresql": "BIGSERIAL PRIMARY KEY"}
        kind = counts.get(conn.dialect.name, "BIGINT AUTO_INCREMENT PRIMARY KEY")
        conn.exec_driver_sql(
            f"CREATE TABLE own (msg_id {kind}, object_id VARCHAR(50), s SMALLINT, "
            "status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 NOT NULL)"
        )
    app.create_schema()
    with app.engine.begin() as conn:
        for row in ("'a', NULL", "'a', 0", "'b', NULL", "NULL, NULL", "NULL, 0", "'c', 1"):
            conn.exec_driver_sql(f"INSERT INTO own (object_id, s) VALUES ({row})")
    app.add_handler(None, lambda msg: None)
    assert app.drain(scope=Shards(0, 2), **NOW).done == 5
    assert Table(app).statuses == [2, 2, 2, 2, 2, 0]


def own_table(make_app: MakeApp, name: str, objects: str, shard: str) -> App:
    """An App on a table of others, with these types of the object and of the shard."""
    app = make_app(table=MessageTable("own", shard="s"))
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE own (msg_id {IDENTITY[name]}, object_id {objects}, s {shard}, "
            "status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 NOT NULL)"
        )
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    return app


OBJECTS: dict[str, tuple[Any, ...]] = {
    "BIGINT": (-5, -128, 7, None, 2**62, -(2**63)),
    "DECIMAL(30, 2)": (Decimal("-5.5"), Decimal("12.25"), Decimal(-7), Decimal(2**63 - 1)),
    "VARCHAR(60)": ("-5", "\u00e4\u00f6", "", "~msgworker.none~", "a' b%"),
}


@pytest.mark.quick("mariadb-BIG|postgresql-DEC|sqlite-VAR")
@pytest.mark.parametrize("objects", OBJECTS)
def test_each_object_that_is_sent_is_in_a_shard(database, make_app, locks, objects):
    app = own_table(make_app, database.name, objects, "SMALLINT")
    with app.engine.begin() as conn:
        app.send_many(conn, "default", [(None, one) for one in OBJECTS[objects]])
    report = app.drain(scope=Partitions(locks), **NOW)
    assert (report.done, report.left) == (len(OBJECTS[objects]), 0)


@pytest.mark.quick("(sqlite-Par|postgresql-Seg|mariadb-Par).*DECIMAL")  # has what BIGINT has
@pytest.mark.parametrize("shard", ["SMALLINT", "BIGINT", "DECIMAL(22, 2)"])
@pytest.mark.parametrize("kind", [Partitions, Segments])
def test_a_number_that_send_does_not_write_is_in_the_shard_of_its_remainder(
    database, make_app, locks, shard, kind
):
    """As of a producer whose SQL is MOD(object_id, 64): of a negative id that is negative."""
    app = own_table(make_app, database.name, "BIGINT", shard)
    many = range(-65, 0)
    given = [*((one, f"MOD({one}, 64)") for one in many), (-70, -6), (1, 64), (2, 32_000)]
    given += [(3, "NULL"), ("NULL", -6)]
    given += [] if shard == "SMALLINT" else [(4, 1 << 40), (5, -(1 << 40))]
    values = ", ".join(f"({one}, {number})" for one, number in given)
    with app.engine.begin() as conn:
        if database.name == "sqlite":  # it may lack MOD
            conn.connection.create_function("MOD", 2, math.fmod)
        conn.exec_driver_sql(f"INSERT INTO own (object_id, s) VALUES {values}")
    scope = Partitions(locks, 8) if kind is Partitions else Segments(locks, {"a": range(8)})
    report = app.drain(scope=scope, **NOW)
    assert (report.done, report.left) == (len(given), 0)


def test_the_owner_of_its_shard_alone_looks_there(make_app, database, locks):
    app = own_table(make_app, database.name, "BIGINT", "SMALLINT")
    scope = Partitions(locks, 8, lambda members, shards, owners: dict.fromkeys([2, 3], members[0]))
    for number in (-6, -5, -4):  # of 8 these are 2, 3 and 4
        insert(app, number)
    assert app.drain(scope=scope, **NOW).left_by == {"other slices": 1}
    assert Table(app).statuses == [2, 2, 0]


def test_a_service_looks_for_such_numbers_again(make_app, database, locks, monkeypatch):
    monkeypatch.setattr(finder, "OTHERS_SECONDS", 0.05)
    app = own_table(make_app, database.name, "BIGINT", "SMALLINT")
    worker = launched(app.worker(scope=Partitions(locks, 8), threads=1))
    try:
        for number in (-6, -5):
            insert(app, number)
            until(lambda: Table(app).statuses[-1] == 2, "it is done")
    finally:
        worker.stop()


def insert(app: App, shard: Any) -> None:
    with app.engine.begin() as conn:
        conn.exec_driver_sql(f"INSERT INTO own (s) VALUES ({shard})")


def test_a_look_for_numbers_of_shards_ends_behind_any_value(make_app, database):
    """Fractions, and in SQLite texts, are no numbers of shards."""
    app = own_table(make_app, database.name, "BIGINT", "DOUBLE PRECISION")
    odd = ("-6.5", "-0.5", "64.5", "1e300", "-1e300", "-7", "70")
    odd += ("'x'",) if database.name == "sqlite" else ()
    for value in odd:
        insert(app, value)
    with app.engine.connect() as conn:
        assert slices.other_numbers(conn, app.tables) == {-7, 70}


def test_a_look_for_numbers_of_shards_reads_no_value_that_a_driver_fails_on(make_app, database):
    """A text that is not UTF-8 would end each look of each instance, and so would NaN."""
    odd = {"sqlite": "CAST(x'ff41' AS TEXT)", "postgresql": "'NaN'"}.get(database.name, "64.5")
    app = own_table(make_app, database.name, "BIGINT", "NUMERIC(30, 2)")
    for value in (odd, "-7", "70"):
        insert(app, value)
    with app.engine.connect() as conn:
        assert slices.other_numbers(conn, app.tables) == {-7, 70}


def test_a_drain_handles_more_numbers_of_shards_than_one_look_reads(make_app, database, locks):
    app = own_table(make_app, database.name, "BIGINT", "SMALLINT")
    with app.engine.begin() as conn:
        values = ", ".join(f"({number})" for number in range(64, 214))
        conn.exec_driver_sql(f"INSERT INTO own (s) VALUES {values}")
    report = app.drain(scope=Partitions(locks, 8), **NOW)
    assert (report.done, report.left) == (150, 0)


def test_a_look_for_numbers_of_shards_ends_among_fractions(make_app, database):
    app = own_table(make_app, database.name, "BIGINT", "DOUBLE PRECISION")
    with app.engine.begin() as conn:
        values = ", ".join(f"({number}.5)" for number in range(64, 84))
        conn.exec_driver_sql(f"INSERT INTO own (s) VALUES {values}, (90)")
    with app.engine.connect() as conn:
        assert slices.other_numbers(conn, app.tables, most_steps=20) == set()
        assert slices.other_numbers(conn, app.tables, most_steps=21) == {90}


@pytest.mark.quick("sqlite")
def test_explain_says_that_a_shard_is_no_whole_number(make_app, database, locks):
    app = own_table(make_app, database.name, "BIGINT", "DOUBLE PRECISION")
    insert(app, "2.5")
    worker = launched(app.worker(scope=Partitions(locks, 8), threads=1))
    try:
        until(lambda: "whole number" in app.ops.explain(1).text, "it is said")
    finally:
        worker.stop()


def test_finished_messages_are_in_no_list_of_slices(make_app, database):
    app = own_table(make_app, database.name, "BIGINT", "SMALLINT")
    for value in (-3, 3, 300):
        insert(app, value)
    Table(app).edit(status=2)
    insert(app, -4)
    with app.engine.connect() as conn:
        assert slices.other_numbers(conn, app.tables) == {-4}
        assert slices.open_values(conn, app.tables, "shard") == {-4}


def test_slices_are_listed_in_a_statement_for_each(app):
    ids = send(app, "a", "b", "c", "d")
    for number, msg_id in enumerate(ids):
        edit(app, msg_id, instance_type=f"as{number}")
    sent = []
    with app.engine.connect() as conn:
        sa.event.listen(conn, "before_cursor_execute", lambda *a: sent.append(a[2]))
        assert slices.open_values(conn, app.tables, "instance_type", most=3) == {
            "as0",
            "as1",
            "as2",
        }
        assert len(sent) == 3


def test_what_has_failed_and_what_was_delayed_is_found_in_its_slice_when_it_is_due(app):
    tries: dict[int, int] = {}

    @app.handler("t")
    def fails_once(msg):
        tries[msg.msg_id] = tries.get(msg.msg_id, 0) + 1
        if tries[msg.msg_id] == 1 and msg.object_id == "a":
            raise RetryLater(after=0.2) if msg.msg_id % 2 else ValueError("once")

    send(app, "a", "b")
    send(app, None, "c", delay=0.3)
    ours = [shard_of("a"), shard_of("b"), shard_of("c")]
    every = sorted({*ours, *Table(app).column("shard")})
    report = app.drain(scope=Shards(*every), threads=2)
    assert report.done == 4
    assert report.left == 0


def test_a_drain_does_not_wait_for_what_becomes_due_in_other_slices(app, ran):
    send(app, "a", delay=3600)
    send(app, "b", delay=60)
    assert shard_of("a") != shard_of("b")
    report = app.drain(scope=Shards(shard_of("a")), linger=120, threads=1)
    assert report.done == 0
    assert report.seconds < 50
    assert (report.left_by, report.exit_code) == ({"later": 1, "other slices": 1}, 0)


def test_an_object_of_many_messages_hides_nothing_behind_it(app):
    """Its rows stand between the others of its shard, and its head cannot go."""
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, "deep")] * 1500)
        app.send_many(conn, "t", [({}, f"o{i}") for i in range(20)])
    table = Table(app)
    table.edit(shard=1)
    first = min(table.column("msg_id"))
    far = sa.text("'2999-01-01 00:00:00'")
    table.edit(table.where(msg_id=first), available_at=far)
    search = search_of(app)
    found = set()
    with app.engine.connect() as conn:
        for _ in range(4):
            look = search.look(conn, Wanted(20, where=Slice("shard", (1,))))
            found |= {c.object_id for c in look.candidates}
    assert found == {f"o{i}" for i in range(20)}


def test_a_look_finds_as_many_objects_as_are_wanted_however_many_messages_they_have(app):
    """Claims, and settles behind them, are no smaller than without a scope."""
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, f"o{i % 160}") for i in range(160 * 25)])
    table = Table(app)
    t = app.tables.message.c
    table.edit(shard=t.msg_id % 160 % 4)
    search = search_of(app)
    found, sent = [], []
    with app.engine.connect() as conn:
        sa.event.listen(conn, "before_cursor_execute", lambda *a: sent.append(a[2]))
        for _ in range(3):
            sent.clear()
            look = search.look(conn, Wanted(48, where=Slice("shard", (0, 1, 2, 3))))
            found.append(len(look.candidates))
    assert found[2] == 48
    assert len(sent) <= 4


def test_messages_with_a_priority_come_first_in_their_slice_only(app):
    plain = send(app, *[f"o{i}" for i in range(40)])
    Table(app).edit(shard=1)
    urgent = send(app, "u", "v", None, priority=5)
    Table(app).edit(Table(app).where(object_id="v"), shard=2)
    Table(app).edit(Table(app).where(msg_id=urgent[0]), shard=1)
    Table(app).edit(Table(app).where(msg_id=urgent[2]), shard=3)
    search = search_of(app)
    with app.engine.connect() as conn:
        look = search.look(conn, Wanted(6, where=Slice("shard", (1, 3))))
    found = [c.msg_id for c in look.candidates]
    assert found[:2] == [urgent[0], urgent[2]]
    assert set(found[2:]) < set(plain)
    assert [look.places[i] for i in found] == [1, 3, 1, 1, 1, 1]


def test_a_look_everywhere_is_bounded_however_many_instances_live(app, monkeypatch):
    limits = []
    for source in (candidates.oldest, candidates.heads, candidates.without_object):

        def counted(conn, t, *, limit, source=source, **options):
            limits.append(limit)
            return source(conn, t, limit=limit, **options)

        monkeypatch.setattr(candidates, source.__name__, counted)
    send(app, *[f"o{i}" for i in range(200)])
    found = TableSearch(app.tables, None)
    monkeypatch.setattr(found, "_look_window", lambda *_: False)  # as where it is full of others'
    with app.engine.connect() as conn:
        found.look(conn, Wanted(100, slot=1, slots=1000))
    assert limits == [WINDOW, WINDOW]


def test_instances_whose_scopes_overlap_or_are_wrong_keep_the_order(app):
    """Advice may be anything: two that own the same shards, one of which believes that they are
    others, and one that has none."""
    started: list[tuple[str, int]] = []
    lock, running, overlaps = threading.Lock(), set(), []

    @app.handler("t")
    def handle(msg):
        with lock:
            started.append((msg.object_id, msg.msg_id))
            overlaps.extend({msg.object_id} & running)
            running.add(msg.object_id)
        with lock:
            running.discard(msg.object_id)

    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, f"o{i % 12}") for i in range(240)])
    table = Table(app)
    t = app.tables.message.c
    table.edit(shard=t.msg_id % 8)  # by row, not by object
    scopes = (Shards(*range(8)), Shards(*range(5)), Shards(3, 4, 5, 6, 7), None)
    workers = [app.worker(threads=2, scope=scope) for scope in scopes]
    for worker in workers:
        worker.start()
    try:
        until(lambda: set(table.statuses) == {2}, "all are done")
    finally:
        for worker in workers:
            worker.stop()
    assert overlaps == []
    for i in range(12):
        mine = [msg_id for object_id, msg_id in started if object_id == f"o{i}"]
        assert mine == sorted(mine)


# ---------------------------------------------------------------- cost


@pytest.fixture
def crowded(make_app: MakeApp) -> App:
    """20,000 messages of other shards in front of a few of shard 7, and finished ones of it."""
    app = created(make_app())
    app.add_handler("t", lambda msg: None)
    table = Table(app)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, f"o{i}") for i in range(3000)])
    table.edit(shard=7, status=2)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, f"x{i}") for i in range(20_000)])
    t = app.tables.message.c
    table.edit(t.status == 0, shard=8 + t.msg_id % 50, instance_type="asB")
    with app.engine.begin() as conn:
        for i in range(10):
            app.send(conn, "t", {}, object_id=f"mine{i}")
            app.send(conn, "t", {})
    last = max(table.column("msg_id"))
    table.edit(t.msg_id > last - 20, shard=7, instance_type="asA")
    return app


@pytest.mark.long
def test_a_look_into_a_slice_reads_no_row_of_others(crowded):
    reads = (slices.heads, partial(slices.heads, deep=True), slices.without_object)
    if crowded.tables.database.slices_by_age:
        reads = (slices.heads_by_age,)
    for role, value, index in (("shard", 7, "shard"), ("instance_type", "asA", "flag")):
        for read in reads:
            with crowded.engine.connect() as conn:
                found = _looked(conn, crowded, read, role, value)
            ours = ("SCAN u", "SCAN g", "1:")  # over what was asked
            steps = {step for step in found if step[1] not in ours}
            may = {f"msgworker_message_{index}", "primary"}
            if read is slices.heads_by_age:  # whether they are heads
                may.add("msgworker_message_object")
            assert ("index", f"msgworker_message_{index}") in steps
            assert steps <= {("index", one) for one in may}


def _looked(conn, app, read, role, value):
    """Read all of a slice, then behind its middle; the steps of the plans."""
    sent = []
    sa.event.listen(conn, "before_cursor_execute", lambda *a: sent.append(a[2:4]))
    places = [Place(value), Place(3)] if role == "shard" else [Place(value)]
    first = read(conn, app.tables, role, places, 100)[0]
    all_of_it = 20 if read is slices.heads_by_age else 10
    assert (len(first.found), first.after) == (all_of_it, None)
    by_id = sorted(one.msg_id for one in first.found)
    middle = (
        by_id[len(by_id) // 2 - 1]
        if read in (slices.without_object, slices.heads_by_age)
        else "mine4"
    )
    (rest,) = read(conn, app.tables, role, [Place(value, middle)], 100)
    assert len(rest.found) == all_of_it // 2
    return [step for text, params in list(sent) for step in plan_of(conn, text, params)]


@pytest.mark.long
def test_a_look_for_numbers_of_shards_is_a_step_of_the_index(crowded):
    sent = []
    with crowded.engine.connect() as conn:
        sa.event.listen(conn, "before_cursor_execute", lambda *a: sent.append(a[2:4]))
        assert slices.other_numbers(conn, crowded.tables) == set()
        (one,) = list(sent)
        steps = {step for step in plan_of(conn, *one) if step[0] == "index"}
        assert steps == {("index", "msgworker_message_shard")}


def test_a_drain_of_a_slice_sends_as_many_statements_whatever_waits_in_others(crowded):
    sent = []

    @sa.event.listens_for(crowded.engine, "before_cursor_execute")
    def _(conn, cursor, statement, *rest):
        sent.append(statement)

    report = crowded.drain(scope=Shards(7), **NOW)
    assert report.done == 20
    assert len(sent) < 120


# ---------------------------------------------------------------- an index by age, on SQLite


@pytest.fixture
def lite(tmp_path) -> Callable[..., App]:
    """Apps on files of their own, whose table has 8 shards."""
    made: list[App] = []

    def make(**slices_of: str) -> App:
        table = MessageTable(shards=8, **slices_of)
        made.append(App(f"sqlite:///{tmp_path}/{len(made)}.db", table=table))
        made[-1].create_schema()
        return made[-1]

    return make


def shown(app: App, search: SliceSearch, *shards: int, **options: Any) -> list[int]:
    with app.engine.connect() as conn:
        wanted = Wanted(**{"heads": 50, "where": Slice("shard", shards), **options})
        look = search.look(conn, wanted)
    return sorted(c.msg_id for c in look.candidates)


def test_messages_that_go_together_leave_hardly_more_pages_with_an_index_of_slices(lite):
    """A commit of SQLite writes each page whole that it has changed."""
    pages = []
    for app in (lite(), lite(shard="shard")):
        with app.engine.begin() as conn:
            app.send_many(conn, "t", [({}, f"object {i % 400:08}") for i in range(12_000)])
        table = Table(app)
        with app.engine.begin() as conn:
            found = candidates.oldest(conn, app.tables, mark=1, limit=100)
            assert len(claim.flag(conn, app.tables, found, me="me")) == 100
        with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").all()
        done_ones = [Settlement(i, Outcome.DONE, next_id=i + 400) for i in range(1, 101)]
        with app.engine.begin() as conn:
            done.write_done(conn, app.tables, done_ones, [], "me")
        pages.append(os.path.getsize(f"{app.engine.url.database}-wal") // 4096)
        assert table.column("status").count(1) == 100
    plain, sliced = pages
    assert sliced - plain <= 20, pages


def test_a_look_by_age_takes_as_many_steps_whatever_waits_in_other_slices(lite):
    steps = []
    for others in (0, 5000):
        app = lite(shard="shard")
        with app.engine.begin() as conn:
            app.send_many(conn, "t", [({}, f"x{i}") for i in range(others + 1)])
        table = Table(app)
        table.edit(shard=1)
        with app.engine.begin() as conn:
            app.send_many(conn, "t", [({}, f"o{i}") for i in range(50)])
        table.edit(app.tables.message.c.msg_id > others + 1, shard=2)
        with app.engine.connect() as conn:
            slices.heads_by_age(conn, app.tables, "shard", [Place(2)], 20)  # builds and prepares
            count = [0]
            raw = conn.connection.driver_connection
            raw.set_progress_handler(lambda count=count: count.__setitem__(0, count[0] + 1), 1)
            (page,) = slices.heads_by_age(conn, app.tables, "shard", [Place(2)], 20)
            raw.set_progress_handler(None, 0)
        assert len(page.found) == 20
        steps.append(count[0])
    assert abs(steps[1] - steps[0]) < 50, steps


def test_a_look_by_age_offers_no_message_behind_one_of_its_object(lite):
    """Wherever that one is: running, in another shard, or further in front."""
    app = lite(shard="shard")
    first, second, third, _, _, sixth = send(app, "a", "b", "c", "a", "b", "c")
    table = Table(app)
    table.edit(shard=1)
    table.edit(table.where(msg_id=first), status=1)
    table.edit(table.where(msg_id=second), shard=2)
    assert shown(app, search_of(app), 1) == [third]
    (page,) = behind(app, Place(1, third))
    assert (page.found, page.entries) == ([], 3)
    table.edit(table.where(msg_id=third), status=2)
    assert shown(app, search_of(app), 1) == [sixth]


def behind(app: App, place: Place) -> list[slices.Page]:
    with app.engine.connect() as conn:
        return slices.heads_by_age(conn, app.tables, "shard", [place], 100)


def test_what_is_free_again_among_the_oldest_is_found_at_the_next_look(lite):
    """Though the search has gone on far behind it meanwhile, round and round."""
    app = lite(shard="shard")
    deep = send(app, *["deep"] * (3 * BEHIND))
    last = send(app, "last")
    Table(app).edit(shard=1)
    search = search_of(app)
    first = {"skip_objects": {"deep"}}  # in flight
    looks = [shown(app, search, 1, **first) for _ in range(5)]
    assert last in looks
    assert all(look in ([], last) for look in looks)
    assert shown(app, search, 1) == deep[:1]


def test_a_drain_of_slices_by_age_ends_only_behind_the_last_of_them(lite):
    app = lite(shard="shard")
    app.add_handler("t", lambda msg: None)
    send(app, *["deep"] * (2 * BEHIND), delay=3600)
    Table(app).edit(shard=1)
    last = send(app, "last", None)
    Table(app).edit(app.tables.message.c.msg_id >= last[0], shard=1)
    assert app.drain(scope=Shards(1), **NOW).done == 2


def test_an_index_of_slices_as_it_was_made_before_serves(lite):
    """Slower, and with nothing missed."""
    app = lite(shard="shard")
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        conn.exec_driver_sql("DROP INDEX msgworker_message_shard")
        made = next(i for i in app.tables.message.indexes if i.name == "msgworker_message_shard")
        text = str(CreateIndex(made).compile(dialect=app.engine.dialect))
        keys, _, where = text.partition(" WHERE ")
        assert "(shard, msg_id, object_id" in keys
        begin = keys.partition("(")[0]
        conn.exec_driver_sql(f"{begin}(shard, object_id, msg_id) WHERE {where}")
    send(app, *["a", "b", None] * 40)
    assert app.drain(scope=Shards(*range(8)), **NOW).done == 120


def test_an_id_that_is_no_number_stops_no_look_by_age(tmp_path):
    app = App(f"sqlite:///{tmp_path}/own.db", table=MessageTable("own", shard="s"))
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE own (msg_id BIGINT NOT NULL PRIMARY KEY, object_id VARCHAR(50), "
            "s SMALLINT, status SMALLINT DEFAULT 0 NOT NULL, "
            "error_try_times SMALLINT DEFAULT 0 NOT NULL)"
        )
    app.create_schema()
    with app.engine.begin() as conn:
        for msg_id in (*range(1, 21), "'x'", "x'01'", *(f"'y{i}'" for i in range(20))):
            conn.exec_driver_sql(f"INSERT INTO own (msg_id, s) VALUES ({msg_id}, 0)")
    search = search_of(app)
    assert [shown(app, search, 0, heads=30) for _ in range(2)] == [list(range(1, 21))] * 2


@pytest.mark.parametrize("read", [slices.heads, slices.without_object])
def test_values_that_differ_by_case_are_told_apart_or_not_as_the_database_does(app, read):
    """On MariaDB and MySQL they are one type: whoever asks for it gets the rows of both."""
    names = ["a", "b"] if read is slices.heads else [None, None]
    send(app, *names)
    for msg_id, kind in zip(Table(app).column("msg_id"), ("Blue", "blue"), strict=True):
        edit(app, msg_id, instance_type=kind)
    with app.engine.connect() as conn:
        t = app.tables
        c = t.cols()
        same = conn.scalar(
            sa.select(sa.func.count()).select_from(t.message).where(c.instance_type == "blue")
        )
        (page,) = read(conn, t, "instance_type", [Place("blue")], 10)
    assert len(page.found) == same
