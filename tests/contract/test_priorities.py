"""Messages with a priority: who comes first, who waits, and for how long at most."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, MessageTable
from msgworker.errors import ConfigError, SchemaError
from msgworker.instance.claiming import heads
from msgworker.instance.claiming.heads import SHARE, Wanted
from msgworker.instance.claiming.search import TableSearch
from msgworker.instance.state import Controls
from msgworker.store import claim
from msgworker.table.columns import URGENT
from tests.support.apps import created
from tests.support.databases import SQLITE
from tests.support.flags import ME
from tests.support.rounds import by_hand, fetch
from tests.support.rows import Table, send
from tests.support.tables import OTHER_NAMES

NOW = {"linger": 0, "threads": 1}


def claims(app: App, search: TableSearch, want: int) -> list[int]:
    """The ids of the next claim, in its order; each is done at once."""
    with app.engine.connect() as conn:
        found = search.look(conn, Wanted(want)).candidates
        won = {row.msg_id for row in claim.flag(conn, app.tables, found, me=ME)}
        table = app.tables.message
        done = sa.update(table).where(table.c.msg_id.in_(won)).values(status=2, claimed_by=None)
        conn.execute(done)
        conn.commit()
    return [c.msg_id for c in found if c.msg_id in won]


def test_heads_of_a_higher_priority_come_first(app):
    ran: list[int] = []
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    plain = send(app, "a", None, "b")
    low = send(app, "c", priority=1)
    high = send(app, None, "d", priority=9)
    plain += send(app, "e", priority=0)
    assert app.drain(**NOW).done == 7
    assert ran == [*high, *low, *plain]


def test_send_many_gives_all_its_messages_the_priority(app, table):
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, "a"), (None, "b")], priority=7)
        app.send_many(conn, "t", [(None, "c")])
    assert table.column("priority") == [7, 7, 0]


def test_a_high_priority_does_not_lift_the_earlier_messages_of_its_object(app):
    ran: list[int] = []
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    first, other = send(app, "a", "b")
    (behind,) = send(app, "a", priority=9)
    (high,) = send(app, "c", priority=1)
    app.drain(**NOW)
    assert ran == [high, first, other, behind] or ran == [high, first, behind, other]


@SQLITE
@pytest.mark.requires("small_integers")
def test_a_priority_out_of_range_is_refused_before_anything_is_sent(app, table, subtests):
    for priority in (-1, 32_768, 1.0, "5", True, Decimal(1)):
        with subtests.test(priority=priority):
            with pytest.raises(
                ConfigError, match=r"priority must be a whole number from 0.* to 32767"
            ):
                send(app, "a", priority=priority)
            with app.engine.begin() as conn, pytest.raises(ConfigError, match="priority must be"):
                app.send_many(conn, "t", [(None, "a")], priority=priority)
            assert table.statuses == []


def test_urgent_messages_are_claimed_at_once_before_all_that_wait(app):
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, f"o{i}") for i in range(3000)])
    search = TableSearch(app.tables, None)
    claims(app, search, 4)
    urgent = send(app, *[f"u{i}" for i in range(10)], priority=5)
    search.forget()
    found = claims(app, search, 12)
    assert [*found[:7], *found[8:11]] == urgent  # one of eight is the oldest
    assert {found[7], found[11]}.isdisjoint(urgent)


def test_of_every_eight_messages_claimed_one_is_the_oldest(app):
    """However many of a higher priority come."""
    old = send(app, *[f"o{i}" for i in range(4)])
    search = TableSearch(app.tables, None)
    order: list[int] = []
    for i in range(4 * SHARE):
        send(app, f"u{i}", f"v{i}", priority=1 + i % 3)
        order += claims(app, search, 1)
    assert [order.index(msg_id) for msg_id in old] == [7, 15, 23, 31]


def test_messages_with_a_priority_do_not_starve_each_other(app):
    (low,) = send(app, "low", priority=1)
    send(app, *[f"p{i}" for i in range(3)])
    search = TableSearch(app.tables, None)
    order: list[int] = []
    while low not in order:
        send(app, f"u{len(order)}", f"v{len(order)}", priority=9)
        order += claims(app, search, 1)
        assert len(order) <= SHARE


@pytest.mark.parametrize("seed", range(3))
def test_any_messages_keep_their_order_and_the_highest_heads_come_first(app, seed):
    """Random objects, priorities and claims: in every claim the heads of the highest priority are
    taken, but for the share of the oldest; and no object's message before an earlier one."""
    chance = random.Random(seed)
    search = TableSearch(app.tables, None)
    waiting: dict[int, tuple[str | None, int]] = {}
    order: list[int] = []
    for _ in range(15):
        for _ in range(chance.randrange(8)):
            whose, priority = chance.choice([*"abcdefgh", None]), chance.choice((0, 0, 1, 5, 9))
            (msg_id,) = send(app, whose, priority=priority)
            waiting[msg_id] = (whose, priority)
        first: dict[str | None, int] = {}
        for msg_id, (whose, _) in sorted(waiting.items()):
            first.setdefault(whose, msg_id) if whose is not None else None
        heads = [i for i, (o, _) in waiting.items() if o is None or first[o] == i]
        ranks = sorted(heads, key=lambda i: (-waiting[i][1], i))
        want = chance.randrange(1, 6)
        search.forget()
        won = claims(app, search, want)
        assert len(won) == min(want, len(heads))
        highest = Counter(waiting[i][1] for i in ranks[: len(won)])
        lower = Counter(waiting[i][1] for i in won) - highest
        assert lower.total() <= 1  # fewer than eight are claimed
        assert lower.total() == 0 or min(heads) in won
        order += won
        for msg_id in won:
            del waiting[msg_id]
    by_object: dict[str | None, list[int]] = defaultdict(list)
    whose_of = dict(Table(app).rows("msg_id", "object_id"))
    for msg_id in order:
        by_object[whose_of[msg_id]].append(msg_id)
    by_object.pop(None, None)
    assert all(ids == sorted(ids) for ids in by_object.values())


def test_what_cannot_start_does_not_hide_lower_priorities(app, monkeypatch):
    """A page of messages behind others, and a page of a topic without a handler."""
    monkeypatch.setattr(heads, "LEAST_ROWS", 4)
    monkeypatch.setattr(heads, "BEHIND", 4)
    monkeypatch.setattr(heads, "LOOK_SECONDS", 0.0)
    send(app, "hot", "x", "y", "z")
    send(app, *["hot"] * 9, priority=9)
    send(app, *"mnopqr", topic="unhandled", priority=8)
    (high,) = send(app, "c", priority=1)
    search = TableSearch(app.tables, frozenset({"t"}))
    found: list[int] = []
    with app.engine.connect() as conn:
        for _ in range(6):
            look = search.look(conn, Wanted(1))
            found.append(look.candidates[0].msg_id)
    assert high in found


def test_a_paused_topic_keeps_its_urgent_messages(one, app, table):
    plain = send(app, "a")
    send(app, "b", priority=9)
    one.shared.controls = Controls(frozenset({"t"}), {})
    assert fetch(one) == 0
    one.shared.controls = Controls(frozenset(), {})
    assert fetch(one) == 2
    assert [lane.row.object_id for lane in one.lanes.ready] == ["b", "a"]
    assert plain


def test_urgent_messages_of_another_share_are_taken_too(app):
    """The instance whose share they are in may be busy."""
    send(app, *[f"o{i}" for i in range(40)])
    urgent = send(app, *[f"u{i}" for i in range(6)], priority=1)
    search = TableSearch(app.tables, None)
    with app.engine.connect() as conn:
        look = search.look(conn, Wanted(7, slot=1, slots=4))
    assert [c.msg_id for c in look.candidates][:6] == urgent


def test_a_failed_message_is_tried_again_by_its_priority(app):
    ran: list[str] = []

    def handle(msg):
        ran.append(msg.object_id)
        if msg.object_id == "bad" and ran.count("bad") == 1:
            raise ValueError("once")

    app.add_handler("t", handle, wait=wait_none())
    send(app, "a", "b")
    send(app, "bad", "c", priority=3)
    app.drain(linger=5, threads=1)
    assert ran[0] == "bad"
    assert sorted(ran[1:]) == ["a", "b", "bad", "c"]


def test_delayed_messages_come_by_priority_when_their_instant_has_come(app):
    past = datetime.now(UTC) - timedelta(hours=1)
    send(app, "a", at=past)
    (high,) = send(app, "b", at=past, priority=2)
    (higher,) = send(app, "c", priority=3)
    send(app, "later", delay=3600, priority=9)
    search = TableSearch(app.tables, None)
    assert claims(app, search, 4)[:2] == [higher, high]


def test_a_message_in_quarantine_with_a_priority_runs_alone(one, app, table):
    (bad,) = send(app, "bad", priority=5)
    table.edit(table.where(msg_id=bad), status=-1, error_try_times=2, crash_times=1)
    send(app, "a")
    for _ in range(5):
        fetch(one)
    held = [lane.row.msg_id for lane in one.shared.in_flight.lanes]
    assert held == [bad]


# ---------------------------------------------------------------- for people


def test_show_list_and_explain_tell_the_priority(app):
    plain, first = send(app, "a", "b")
    (behind,) = send(app, "b", priority=5)
    (high,) = send(app, "c", priority=7)
    assert [info.priority for info in app.ops.find()] == [0, 0, 5, 7]
    assert app.ops.show(high).priority == 7
    app.add_handler("t", lambda msg: None)
    text = app.ops.explain(behind).text
    assert (
        text == f"message {first} of the same object b comes first, although its priority is lower"
    )
    with by_hand(app):
        assert app.ops.explain(plain).text.endswith(
            "claims it when messages of a higher priority, up to 7, and older ones leave room"
        )
        assert app.ops.explain(high).text.endswith("older ones of its priority leave room")


# ---------------------------------------------------------------- tables


def without_the_column(app: App) -> None:
    """Make the table as an earlier version has made it."""
    t = app.tables
    columns = [c.name for c in t.message.c if c.name.startswith(("mw_urgent", "priority"))]
    with app.engine.begin() as conn:
        index = t.spec.index_name(URGENT)
        on = f" ON {t.message.name}" if app.engine.dialect.name in ("mysql", "mariadb") else ""
        conn.exec_driver_sql(f"DROP INDEX {index}{on}")
        for column in reversed(columns):
            conn.exec_driver_sql(f"ALTER TABLE {t.message.name} DROP COLUMN {column}")
    app.engine.dispose()


def test_a_table_of_an_earlier_version_works_and_is_upgraded_by_create_schema(app, make_app):
    without_the_column(app)
    old = make_app()
    old.add_handler("t", lambda msg: None)
    send(old, "a", "b")
    with pytest.raises(ConfigError, match=r"has no priority column.*create_schema"):
        send(old, "a", priority=1)
    told = [one.text for one in old.ops.doctor()]
    assert any("priority is missing: all messages have the same priority" in t for t in told)
    assert old.drain(**NOW).done == 2
    made = make_app().create_schema()
    assert {"priority", "msgworker_message_urgent"} <= set(made)
    assert make_app().create_schema() == []
    new = make_app()
    ran: list[str] = []
    new.add_handler("t", lambda msg: ran.append(msg.object_id))
    send(new, "a")
    send(new, "b", priority=1)
    new.drain(**NOW)
    assert ran == ["b", "a"]


def test_doctor_s_statements_add_what_is_missing_of_priorities(app, make_app):
    without_the_column(app)
    found = [one for one in make_app().ops.doctor() if "priority" in one.text]
    with app.engine.begin() as conn:
        for statement in found[0].fix:
            conn.exec_driver_sql(statement)
    assert make_app().create_schema() == []


def test_without_the_index_messages_are_claimed_by_age_and_doctor_tells(app, make_app):
    name = app.tables.spec.index_name(URGENT)
    on = f" ON {app.tables.message.name}" if app.engine.dialect.name in ("mysql", "mariadb") else ""
    with app.engine.begin() as conn:
        conn.exec_driver_sql(f"DROP INDEX {name}{on}")
    late = make_app()
    ran: list[str] = []
    late.add_handler("t", lambda msg: ran.append(msg.object_id))
    send(late, "a")
    send(late, "b", priority=9)
    late.drain(**NOW)
    assert ran == ["a", "b"]
    texts = [one.text for one in late.ops.doctor()]
    assert any(f"index {name} is missing: priorities do nothing" in text for text in texts)


def test_a_table_of_another_name_has_priorities_where_its_column_is_named(make_app):
    plain = created(make_app(table=MessageTable("work_item")))
    assert "priority" not in plain.tables.names
    with pytest.raises(ConfigError, match=r'MessageTable\(priority="priority"\)'):
        send(plain, "a", priority=1)
    app = created(make_app(table=MessageTable("work_item_2", **OTHER_NAMES, priority="rank_of_it")))
    ran: list[str] = []
    app.add_handler("t", lambda msg: ran.append(msg.object_id))
    send(app, "a")
    send(app, "b", priority=3)
    app.drain(**NOW)
    assert ran == ["b", "a"]
    assert Table(app).column("priority") == [0, 3]


def test_a_named_column_must_be_there_and_hold_whole_numbers(make_app):
    app = created(make_app(table=MessageTable("work_item")))
    named = make_app(table=MessageTable("work_item", priority="priority"))
    with pytest.raises(SchemaError, match="missing column priority"):
        named.tables  # noqa: B018 - it is read from the database
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE work_item ADD priority VARCHAR(10)")
    again = make_app(table=MessageTable("work_item", priority="priority"))
    with pytest.raises(SchemaError, match=r"priority.*must be a whole number"):
        again.create_schema()
    assert make_app(table=MessageTable("work_item")).create_schema() == []  # theirs: left alone


def test_send_fills_a_column_that_takes_no_null_and_has_no_default(make_app):
    app = make_app(table=MessageTable("work_item", priority="priority"))
    t = app.table
    created(make_app(table=MessageTable("work_item")))
    adding = "ALTER TABLE work_item ADD priority INTEGER"
    if app.engine.dialect.name == "sqlite":
        adding += " NOT NULL DEFAULT 4"
    with app.engine.begin() as conn:
        conn.exec_driver_sql(adding)
        if app.engine.dialect.name == "postgresql":
            conn.exec_driver_sql("ALTER TABLE work_item ALTER priority SET NOT NULL")
        elif app.engine.dialect.name != "sqlite":
            conn.exec_driver_sql("ALTER TABLE work_item MODIFY priority INTEGER NOT NULL")
    app.create_schema()
    assert t.priority == "priority"
    send(app, "a")
    send(app, "b", priority=2_000_000_000)
    expected = 4 if app.engine.dialect.name == "sqlite" else 0
    assert Table(app).column("priority") == [expected, 2_000_000_000]


@pytest.mark.requires("common_sql")
@pytest.mark.parametrize("held", [None, -5, 3_000_000_000])
def test_what_is_no_priority_counts_as_none(make_app, held):
    app = make_app(table=MessageTable("work_item", priority="priority"))
    make_app(table=MessageTable("work_item")).create_schema()
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE work_item ADD priority BIGINT")
    app.create_schema()
    ran: list[str] = []
    app.add_handler("t", lambda msg: ran.append(msg.object_id))
    send(app, "a", "odd")
    Table(app).edit(Table(app).where(object_id="odd"), priority=held)
    send(app, "z")
    send(app, "c", priority=1)
    app.drain(**NOW)
    assert ran == ["c", "a", "odd", "z"]


@pytest.mark.parametrize("held", ["'high'", "x'00'", "1e300", "'7'"])
def test_odd_values_of_sqlite_count_as_none_or_as_their_number(sqlite_app, held):
    ran: list[str] = []
    sqlite_app.add_handler("t", lambda msg: ran.append(msg.object_id))
    send(sqlite_app, "a", "odd")
    with sqlite_app.engine.begin() as conn:
        text = f"UPDATE msgworker_message SET priority = {held} WHERE object_id = 'odd'"
        conn.exec_driver_sql(text)
    send(sqlite_app, "c", priority=1)
    sqlite_app.drain(**NOW)
    assert ran == (["odd", "c", "a"] if held == "'7'" else ["c", "a", "odd"])


def test_a_table_without_the_column_is_not_asked_for_priorities(app, make_app, database):
    plain = created(make_app(table=MessageTable("work_item")))
    texts: list[str] = []
    sa.event.listen(
        plain.engine, "before_cursor_execute", lambda *given: texts.append(given[2].lower())
    )
    plain.add_handler("t", lambda msg: None)
    send(plain, "a", "b", None)
    assert plain.drain(**NOW).done == 3
    assert not [text for text in texts if "priority" in text or "urgent" in text]
