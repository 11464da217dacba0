"""Unique keys: one message holds a key at a time, and the caller's transaction lives on."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from tenacity.wait import wait_fixed, wait_none

from msgworker import App, DuplicateMessage, MessageTable, Reject
from msgworker.errors import ConfigError, SchemaError
from msgworker.store import claim
from msgworker.store.candidates import Candidate
from msgworker.table.columns import HELD_KEY, UNIQUE
from tests.engines import plain_engine
from tests.support.apps import created
from tests.support.databases import SQLITE
from tests.support.flags import ME
from tests.support.rows import Table, edit
from tests.support.tables import OTHER_NAMES, SEED, foreign_table
from tests.support.waiting import at_once

pytestmark = pytest.mark.requires("unique_keys")

NOW = {"linger": 0, "threads": 1}
KEYS = {"unique_key": "job_key", "unique_kept": "kept"}


def send(app: App, key: str | None = "k", payload: Any = None, **options: Any) -> Any:
    topic = options.pop("topic", "t")
    with app.engine.begin() as conn:
        return app.send(conn, topic, payload, unique_key=key, **options)


def flag(app: App, msg_id: int) -> None:
    """Claim a new message, as an instance does."""
    with app.engine.begin() as conn:
        row = app.ops.show(msg_id)
        assert row is not None
        found = [Candidate(msg_id, row.object_id, 0, 0, 0, "t", msg_id, None)]
        assert claim.flag(conn, app.tables, found, me=ME)


def payloads(app: App) -> list[Any]:
    """What a drain handles, in order."""
    got: list[Any] = []
    app.add_handler("t", lambda msg: got.append(msg.payload))
    app.drain(**NOW)
    return got


def test_a_key_that_is_held_sends_nothing_and_gives_the_id_of_its_holder(app, table):
    first = send(app, payload=1)
    assert send(app, payload=2) == first
    assert send(app, "other", 3) != first
    assert table.column("unique_key") == ["k", "other"]


def test_the_transaction_lives_on_after_a_key_that_was_taken(app, table):
    send(app)
    with app.engine.begin() as conn:
        app.send(conn, "t", "before")
        app.send(conn, "t", unique_key="k")
        with pytest.raises(DuplicateMessage):
            app.send(conn, "t", unique_key="k", on_duplicate="raise")
        app.send(conn, "t", "after")
    assert len(table.column("msg_id")) == 3
    with Session(app.engine) as session, session.begin():
        app.send(session, "t", unique_key="k")
        app.send(session, "t", "after too")
    assert len(table.column("msg_id")) == 4


def test_explain_says_who_holds_the_key_of_a_message(app, table):
    with app.engine.begin() as conn:
        first = app.send(conn, "t", None, unique_key="k")
        kept = app.send(conn, "t", None, unique_key="p", unique="kept")
    told = [app.ops.explain(one).text for one in (first, kept)]
    assert "; it holds the unique key k until it ends" in told[0]
    assert "; it holds the unique key p until it is purged" in told[1]
    app.add_handler("t", lambda msg: None)
    app.drain(linger=0)
    assert app.ops.explain(first).text.endswith("; its unique key k is free")
    with app.engine.begin() as conn:
        second = app.send(conn, "t", None, unique_key="k")
    found = app.ops.explain(first)
    assert f"; its unique key k is held by message {second} now" in found.text
    assert [found.key_holder, app.ops.explain(kept).key_holder] == [second, kept]


def test_raise_names_the_holder_and_the_key(app):
    first = send(app)
    with pytest.raises(DuplicateMessage, match=rf"'k' is held by message {first}") as found:
        send(app, on_duplicate="raise")
    assert (found.value.msg_id, found.value.unique_key) == (first, "k")


def test_an_open_key_is_free_when_its_message_has_ended_and_a_kept_one_when_it_is_purged(
    app, table, subtests
):
    def handle(msg: Any) -> None:
        if msg.topic == "dead":
            raise Reject("no")

    ends = ("done", "dead", "discarded")
    for topic in ends:
        app.add_handler(topic, handle)
    for end, unique in itertools.product(ends, ("open", "kept")):
        given = {"key": f"{end} {unique}", "topic": end, "unique": unique}
        first = send(app, **given)
        if end == "discarded":
            app.ops.discard(ids=[first], reason="r")
        else:
            app.drain(**NOW)
        with subtests.test(end=end, unique=unique):
            assert (send(app, **given) == first) == (unique == "kept")
            if unique == "kept":
                table.edit(finished_at=datetime(2020, 1, 1, tzinfo=UTC))
                app.ops.purge(older_than="1d", dead=True)
                assert app.ops.show(first) is None
                assert send(app, **given) != first


def test_a_message_that_runs_or_waits_for_its_next_try_holds_its_key(app):
    seen: list[Any] = []

    def handle(msg: Any) -> None:
        seen.append(send(app))
        raise ValueError("again")

    app.add_handler("t", handle, wait=wait_none())
    first = send(app)
    app.drain(**NOW)
    assert seen == [first] * 3  # in each try
    assert send(app) != first


def test_an_open_key_is_held_between_two_tries(app):
    def handle(msg: Any) -> None:
        raise ValueError("again")

    app.add_handler("t", handle, wait=wait_fixed(600))
    first = send(app)
    app.drain(**NOW, retry_linger=0)
    assert app.ops.show(first).status == "failed"
    assert send(app) == first


def test_plain_sql_cannot_take_a_key_that_is_held(app):
    send(app)
    insert = "INSERT INTO msgworker_message (topic, unique_key) VALUES ('t', 'k')"
    with pytest.raises(IntegrityError), app.engine.begin() as conn:
        conn.exec_driver_sql(insert)
    payloads(app)
    with app.engine.begin() as conn:
        conn.exec_driver_sql(insert)
        assert app.send(conn, "t", unique_key="k") is not None
        rows = conn.exec_driver_sql("SELECT COUNT(*) FROM msgworker_message").scalar_one()
    assert rows == 2


def test_keys_are_compared_byte_by_byte(app, table):
    for key in ("k", "K", "k ", " k", "é", "e\u0301"):
        send(app, key)
    assert len(table.column("msg_id")) == 6


def test_replace_gives_a_message_that_was_never_claimed_the_new_payload(app, table):
    first = send(app, payload={"n": 1}, object_id="a", delay=3600, priority=3)
    other = send(app, None, "between", object_id="a")
    again = send(app, payload={"n": 2}, object_id="a", on_duplicate="replace")
    assert again == first
    assert table.column("available_at") == [None, None]
    assert table.column("priority") == [0, 0]
    assert payloads(app) == [{"n": 2}, "between"]
    assert other > first


def test_replace_leaves_nothing_of_the_old_message(app, table):
    first = send(app, payload=1)
    edit(app, first, headers='{"traceparent": "old"}', priority=7)
    assert send(app, payload=2, on_duplicate="replace") == first
    assert table.rows("payload", "headers", "priority") == [("2", None, 0)]


def test_replace_keeps_the_key_if_the_new_message_or_the_old_one_does(app):
    app.add_handler("t", lambda msg: None)
    first = send(app, "a")
    assert send(app, "a", unique="kept", on_duplicate="replace") == first
    second = send(app, "b", unique="kept")
    assert send(app, "b", on_duplicate="replace") == second
    app.drain(linger=0)
    assert [send(app, "a"), send(app, "b")] == [first, second]


@pytest.mark.parametrize(
    "options",
    [{}, {"delay": 0.5}, {"delay": 3600}, {"at": datetime(2099, 1, 1, tzinfo=UTC), "priority": 3}],
)
def test_replace_takes_the_place_of_a_message_that_was_edited(app, table, options):
    first = send(app, payload=1, topic="old")
    assert app.ops.edit(first, topic="t", reason="r") == 1
    assert table.one("status", "error_try_times") == (-1, 0)
    began = datetime.now(UTC)
    assert send(app, payload=2, on_duplicate="replace", **options) == first
    assert table.rows("status", "error_try_times", "payload", "unique_key") == [(-1, 0, "2", "k")]
    assert table.column("priority") == [options.get("priority", 0)]
    waits = app.ops.show(first).available_at - began  # for a claim under way
    assert waits > timedelta(seconds=1.5)
    assert (waits > timedelta(minutes=5)) == (options not in ({}, {"delay": 0.5}))
    edit(app, first, available_at=None)
    assert payloads(app) == [2]


def test_replace_leaves_an_edited_message_that_was_claimed(app, table):
    first = send(app, payload=1, topic="old")
    edit(app, first, claimed_at=datetime.now(UTC))
    assert app.ops.edit(first, topic="t", reason="r") == 1
    assert send(app, payload=2, on_duplicate="replace") != first
    assert table.rows("payload", "unique_key") == [("1", None), ("2", "k")]
    failed = send(app, "failed", 1)
    edit(app, failed, status=-1, error_try_times=1)
    assert send(app, "failed", 2, on_duplicate="replace") != failed


def test_replace_sends_where_the_holder_has_ended_since_the_transaction_began(app, database, table):
    first = send(app, payload=1)
    plain = plain_engine(database.url)
    with plain.connect() as conn:
        assert conn.execute(sa.select(sa.func.count()).select_from(app.tables.message)).scalar()
        if app.tables.database.row_locks:  # SQLite has one writer
            with app.engine.begin() as other:
                other.execute(sa.update(app.tables.message).values(status=2))
        else:
            conn.execute(sa.update(app.tables.message).values(status=2))
        second = app.send(conn, "t", 2, unique_key="k", on_duplicate="replace")
        conn.commit()
    plain.dispose()
    assert second != first
    assert table.rows("status", "payload") == [(2, "1"), (0, "2")]


def test_replace_of_another_topic_or_object_is_refused(app, table):
    first = send(app, payload=1, object_id="a")
    for options, what in (({"topic": "u"}, "topic 't'"), ({"object_id": "b"}, "object 'a'")):
        with pytest.raises(DuplicateMessage, match=f"{first}: it is of {what}, so it is not"):
            send(app, **{"payload": 2, "object_id": "a", "on_duplicate": "replace", **options})
    assert payloads(app) == [1]


def test_replace_of_a_message_that_was_claimed_sends_another_and_lets_it_go_on(app, table):
    got: list[Any] = []
    sent: list[Any] = []

    def handle(msg: Any) -> None:
        got.append(msg.payload)
        if msg.payload == 1:
            sent.append(send(app, payload=2, object_id="a", on_duplicate="replace"))

    app.add_handler("t", handle)
    first = send(app, payload=1, object_id="a")
    app.drain(**NOW)
    assert got == [1, 2]
    assert sent != [first]
    assert table.column("unique_key") == [None, "k"]


def test_replace_changes_nothing_of_a_kept_key_once_it_was_claimed(app):
    first = send(app, payload=1, unique="kept")
    assert send(app, payload=2, unique="kept", on_duplicate="replace") == first
    assert payloads(app) == [2]
    assert send(app, payload=3, unique="kept", on_duplicate="replace") == first
    app.drain(**NOW)
    assert app.ops.show(first).payload == "2"


def test_a_handler_never_runs_with_a_payload_that_was_replaced_before(app):
    """Messages behind a running one are read ahead, but none that has a key."""
    got: list[Any] = []

    def handle(msg: Any) -> None:
        if msg.payload == "head":
            send(app, payload="new", object_id="a", on_duplicate="replace")
        got.append(msg.payload)

    app.add_handler("t", handle)
    send(app, None, "head", object_id="a")
    keyed = send(app, payload="old", object_id="a")
    send(app, None, "behind", object_id="a")
    app.drain(**NOW)
    assert got == ["head", "new", "behind"]
    assert app.ops.show(keyed).payload == '"new"'


def test_a_batch_never_runs_with_a_payload_that_was_replaced_before(app):
    got: list[Any] = []

    def handle(msgs: Any) -> None:
        if msgs[0].payload == "head" and app.engine.dialect.name != "sqlite":
            send(app, payload="new", object_id="a", on_duplicate="replace")
        got.append([msg.payload for msg in msgs])

    app.add_handler("t", handle, transactional=True, batch=10)
    send(app, None, "head", object_id="a")
    send(app, payload="old", object_id="a")
    app.drain(**NOW)
    new = "old" if app.engine.dialect.name == "sqlite" else "new"
    assert got == [["head"], [new]]


def test_send_many_takes_keys_and_keeps_the_order(app, table):
    send(app, "b")
    rows = [(1, "o"), (2, "o", "a"), (3, "o", "b"), (4, "o", None), (5, "o", "a")]
    with app.engine.begin() as conn:
        assert app.send_many(conn, "t", rows) == 5
    assert table.column("unique_key") == ["b", None, "a", None]
    assert [n for n in payloads(app) if n is not None] == [1, 2, 4]


def test_send_many_says_what_it_has_sent_before_a_key_that_was_taken(app):
    first = send(app, "b", payload=0)
    rows = [(1, None), (2, None, "a"), (3, None, "b"), (4, None)]
    with app.engine.begin() as conn:
        with pytest.raises(DuplicateMessage, match="2 before it are in the transaction") as found:
            app.send_many(conn, "t", rows, on_duplicate="raise")
        with pytest.raises(DuplicateMessage, match="nothing was sent"):
            app.send_many(conn, "t", rows[2:], on_duplicate="raise")
    assert (found.value.msg_id, found.value.sent) == (first, 2)
    assert payloads(app) == [0, 1, 2]


@SQLITE
def test_a_bad_key_is_refused_before_anything_is_sent(app, table, subtests):
    for key in ("", "x" * 191, 5, b"k", "a\x00b", "\ud800", True):
        with subtests.test(key=key):
            with pytest.raises(ConfigError, match="unique_key"):
                send(app, key)
            with app.engine.begin() as conn, pytest.raises(ConfigError, match="unique_key"):
                app.send_many(conn, "t", [(None, "a"), (None, "a", key)])
            assert table.column("msg_id") == []


@SQLITE
def test_a_bad_option_of_a_key_is_refused(app, subtests):
    for options in ({"unique": "always"}, {"on_duplicate": "ignore"}, {"unique": None}):
        with (
            subtests.test(options=options),
            pytest.raises(ConfigError, match=f"{next(iter(options))} must be one of"),
        ):
            send(app, **options)


@SQLITE
def test_options_of_keys_need_a_key(app, table):
    with pytest.raises(ConfigError, match="give one too"):
        send(app, None, unique="kept")
    for options in ({"unique": "kept"}, {"on_duplicate": "raise"}):
        for rows in ([(1, "a"), (2, "b")], [(1, "a", None)]):
            with app.engine.begin() as conn, pytest.raises(ConfigError, match="triples"):
                app.send_many(conn, "t", rows, **options)
        with app.engine.begin() as conn:
            assert app.send_many(conn, "t", [], **options) == 0
    assert table.statuses == []
    with app.engine.begin() as conn:  # some have keys
        assert app.send_many(conn, "t", [(1, "a"), (2, "b", "k")], unique="kept") == 2


def test_another_unique_index_is_not_taken_for_that_of_the_keys(app):
    with app.engine.begin() as conn:
        conn.exec_driver_sql("CREATE UNIQUE INDEX theirs ON msgworker_message (object_id)")
    send(app, "one", object_id="a")
    with pytest.raises(IntegrityError):
        send(app, "two", object_id="a")


def test_senders_of_one_key_at_once_send_one_message(app, database, table):
    """The second one waits for the COMMIT of the first, and gets its id."""
    engines = [plain_engine(database.url) for _ in range(4)]
    start, got = threading.Barrier(4), list[Any]()

    def produce(engine: sa.Engine) -> None:
        start.wait(10)
        for n in range(25):
            with engine.begin() as conn:
                got.append((n, app.send(conn, "t", unique_key=f"k{n}")))

    at_once(*(partial(produce, engine) for engine in engines))
    for engine in engines:
        engine.dispose()
    assert len(table.column("msg_id")) == 25
    assert len(set(got)) == 25


def drop_index(app: App) -> None:
    name = app.tables.spec.index_name(UNIQUE)
    on = f" ON {app.tables.message.name}" if app.engine.dialect.name in ("mysql", "mariadb") else ""
    with app.engine.begin() as conn:
        conn.exec_driver_sql(f"DROP INDEX {name}{on}")


def without_the_columns(app: App) -> None:
    """The default table as an earlier version made it."""
    drop_index(app)
    t = app.tables
    there = [c.name for c in t.message.c if c.name.startswith((HELD_KEY, "unique_"))]
    with app.engine.begin() as conn:
        for name in sorted(there):  # the generated one first
            conn.exec_driver_sql(f"ALTER TABLE {t.message.name} DROP COLUMN {name}")
    app.engine.dispose()


def test_without_the_index_a_key_is_refused_and_doctor_tells(app, make_app):
    drop_index(app)
    late = make_app()
    send(late, None)
    with pytest.raises(SchemaError, match=r"unique index msgworker_message_unique is missing"):
        send(late)
    texts = [one.text for one in late.ops.doctor()]
    assert any("unique is missing: unique keys do nothing" in text for text in texts)
    assert late.create_schema() == ["msgworker_message_unique"]


@pytest.mark.long
def test_a_table_of_an_earlier_version_takes_no_keys_until_create_schema(app, make_app):
    without_the_columns(app)
    old = make_app()
    old.add_handler("t", lambda msg: None)
    send(old, None)
    lacks = r"has no columns for unique keys: unique_key, unique_kept; .*create_schema"
    with pytest.raises(ConfigError, match=lacks):
        send(old)
    assert old.drain(**NOW).done == 1
    told = [one.text for one in old.ops.doctor()]
    assert any("unique_key is missing: no message can be sent with" in text for text in told)
    made = make_app().create_schema()
    assert {"unique_key", "unique_kept", "msgworker_message_unique"} <= set(made)
    assert make_app().create_schema() == []
    new = make_app()
    assert send(new) == send(new)


@pytest.mark.long
def test_doctor_s_statements_add_what_is_missing_of_keys(app, make_app):
    without_the_columns(app)
    found = [one for one in make_app().ops.doctor() if "unique_k" in one.text]
    with app.engine.begin() as conn:
        for one in found:
            for statement in one.fix:
                conn.exec_driver_sql(statement)
    late = make_app()
    assert send(late, unique="kept") == send(late, unique="kept")
    assert late.create_schema() == []


def test_a_table_of_another_name_has_keys_where_their_columns_are_named(make_app):
    plain = created(make_app(table=MessageTable("work_item")))
    with pytest.raises(ConfigError, match=r'MessageTable\(unique_key="unique_key", unique_k'):
        send(plain)
    names = OTHER_NAMES | {"unique_key": "job_key", "unique_kept": "kept", "finished_at": "ended"}
    app = created(make_app(table=MessageTable("work_item_2", **names)))
    assert send(app) == send(app)
    assert send(app, "l", unique="kept") == send(app, "l")
    assert send(app, payload=2, on_duplicate="replace") is not None
    assert Table(app).column("unique_key") == ["k", "l"]


def test_the_columns_of_keys_go_together_and_need_finished_at():
    with pytest.raises(ConfigError, match="go together"):
        MessageTable("t", unique_key="job_key")
    with pytest.raises(ConfigError, match="needs the column finished_at"):
        MessageTable("t", **KEYS, finished_at=None)


def test_a_column_of_keys_must_be_a_text_that_may_be_null(make_app):
    app = created(make_app(table=MessageTable("work_item")))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE work_item ADD job_key VARCHAR(50) DEFAULT 'x' NOT NULL")
        conn.exec_driver_sql("ALTER TABLE work_item ADD kept SMALLINT")
    named = make_app(table=MessageTable("work_item", **KEYS))
    with pytest.raises(SchemaError, match=r"job_key \(unique_key\).*messages without a key need"):
        named.create_schema()


def test_a_key_longer_than_a_named_column_is_refused(make_app, database):
    app = created(make_app(table=MessageTable("work_item")))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE work_item ADD job_key VARCHAR(5)")
        conn.exec_driver_sql("ALTER TABLE work_item ADD kept SMALLINT")
    named = created(make_app(table=MessageTable("work_item", **KEYS)))
    assert send(named, "12345") == send(named, "12345")
    if database.name != "sqlite":
        with pytest.raises(ConfigError, match="column job_key of table work_item takes 5 at most"):
            send(named, "123456")


def test_show_tells_the_key(app):
    found = app.ops.show(send(app, "inv-77", unique="kept"))
    assert (found.unique_key, found.unique_kept) == ("inv-77", 1)


# ---------------------------------------------------------------- operators


def dead(app: App, key: str = "k", **options: Any) -> Any:
    msg_id, table = send(app, key, **options), Table(app)
    ended = {"status": -1, "error_try_times": 3, "finished_at": datetime(2026, 1, 1, tzinfo=UTC)}
    table.edit(table.where(msg_id=msg_id), **ended)
    return msg_id


def test_a_rerun_of_a_message_whose_key_is_taken_is_skipped_and_says_by_whom(app, table):
    first = dead(app)
    second = send(app)
    for dry_run in (True, False):
        found = app.ops.rerun(ids=[first], dry_run=dry_run)
        assert (found.changed, found.skipped) == (0, 1)
        assert f"message {first} has a unique key that message {second} holds now" in str(
            found.skips[0]
        )
    assert table.statuses == [-1, 0]
    app.ops.discard(ids=[second], reason="r")
    assert app.ops.rerun(ids=[first]).changed == 1
    assert send(app) == first


@pytest.mark.parametrize("keys", [("A", "a"), ("a", "A")])
def test_a_rerun_judges_keys_byte_by_byte_where_their_column_does_not(mariadb, keys):
    kind = "VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    foreign_table(mariadb, topic=kind, k=kind, kept="SMALLINT", done_at="DATETIME(6)")
    names = {"topic": "topic", "unique_key": "k", "unique_kept": "kept", "finished_at": "done_at"}
    app = created(App(mariadb.url, table=SEED.replace(**names)))
    ids = {key: dead(app, key) for key in keys}
    holder = send(app, "A")
    for dry_run in (True, False):
        found = app.ops.rerun(ids=[*ids.values()], dry_run=dry_run)
        assert [(one.msg_id, one.other_id) for one in found.skips] == [(ids["A"], holder)]
    assert found.changed == 1


def test_a_forced_rerun_goes_on_without_the_key_that_is_taken(app, table):
    first = dead(app)
    second = send(app)
    free = dead(app, "other")
    assert app.ops.rerun(ids=[first, free], force=True).changed == 2
    assert table.column("unique_key") == [None, "k", "other"]
    assert send(app) == second


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "with_successors"])
def test_of_messages_with_one_key_that_are_rerun_together_one_gets_it(app, table, behind):
    first, second = dead(app, object_id="a"), dead(app, object_id="a")
    ids = [first] if behind else [first, second]
    would = app.ops.rerun(ids=ids, with_successors=behind, dry_run=True)
    found = app.ops.rerun(ids=ids, with_successors=behind)
    assert (would.changed, would.skips) == (found.changed, found.skips)
    assert found.changed == (0 if behind else 1)  # those behind it would run without it
    assert found.skips[0].why == "its unique key is taken"
    assert table.statuses == [-1, -1] if behind else [0, -1]
    forced = app.ops.rerun(ids=ids, with_successors=behind, force=True)
    assert forced.changed == (2 if behind else 1)
    assert table.column("unique_key") == ["k", None]


def test_a_key_taken_while_a_rerun_looks_is_seen_by_its_second_look(app, table, monkeypatch):
    from msgworker.ops import repairs

    first = dead(app)
    real, late = repairs.recorded, list[Any]()

    def recorded(conn: Any, *args: Any) -> None:
        if not late and app.engine.dialect.name != "sqlite":  # there it has the only write lock
            late.append(send(app))
        real(conn, *args)

    monkeypatch.setattr(repairs, "recorded", recorded)
    found = app.ops.rerun(ids=[first])
    assert found.changed == (0 if late else 1)
    assert send(app) == (late[0] if late else first)
