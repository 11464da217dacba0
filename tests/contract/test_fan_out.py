"""Fan-out: values, keys, names and records of items."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from msgworker import ConfigError, Context, HandlerMisuse, ItemsFailed, Message, MessageTable
from msgworker.app import registry_of
from msgworker.instance.fan_out.items import BATCH
from msgworker.store import items as store
from msgworker.store import purge
from msgworker.store.items import Record
from tests.support.apps import created
from tests.support.fan_out import (
    DONE,
    FAILED,
    Ran,
    Trying,
    double,
    records,
    refuse_odd,
    refused,
    run,
)
from tests.support.rows import Table, send
from tests.support.waiting import launched, until


def test_values_come_in_the_order_of_the_items_and_are_recorded(app):
    result = run(app, lambda ctx: ctx.fan_out(double, range(300), threads=4))
    assert result.values == [2 * n for n in range(300)]
    assert (result.total, result.done, result.ran, result.failed_count) == (300, 300, 300, 0)
    assert result.failed == {}
    assert result.raise_for_failed() is result
    assert records(app) == {str(n): (DONE, 1, str(2 * n), None) for n in range(300)}


def test_an_empty_list_is_done(app, table: Table):
    result = run(app, lambda ctx: ctx.fan_out(double, []).raise_for_failed())
    assert (result.values, result.total) == ([], 0)
    assert table.statuses == [DONE]


def test_items_run_side_by_side_and_never_more_than_asked(app):
    gate = threading.Barrier(5)
    lock = threading.Lock()
    now, most = 0, 0

    def meet(item: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        if item < 5:
            gate.wait(30)
        with lock:
            now -= 1

    run(app, lambda ctx: ctx.fan_out(meet, range(50), threads=5).raise_for_failed())
    assert most == 5


def test_a_failed_item_does_not_stop_the_others_and_all_are_counted(app, table: Table):
    ran = Ran(fails=set(range(0, 40, 2)))

    def fan(ctx: Context) -> None:
        ctx.fan_out(ran, range(40), threads=3).raise_for_failed()

    trying = Trying(app, fan)
    assert trying.drain(linger=5).done == 1  # the second try asks for nothing
    error = trying.error
    assert isinstance(error, ItemsFailed)
    assert (error.count, error.total, error.held_back) == (20, 40, 0)
    assert set(error.failed) == ran.fails
    assert isinstance(error.__cause__, ValueError)
    assert sorted(ran.items) == list(range(40))
    text = table.one("last_error")
    assert text.startswith("ItemsFailed: 20 of 40 items failed: ")
    assert re.search(r"ValueError: item \d+ fails \[fan_out\.py:", text)
    assert "and 15 more" in text


def test_a_retry_runs_only_what_is_not_done(app):
    ran = Ran(fails={3, 7})

    def fan(ctx: Context) -> Any:
        found = ctx.fan_out(ran, range(10), threads=2)
        ran.fails.discard(3 if ctx.attempt == 1 else 7)
        return found.raise_for_failed()

    trying = Trying(app, fan, tries=3)
    assert trying.drain(linger=5).done == 1
    assert ran.counts == {n: {3: 2, 7: 3}.get(n, 1) for n in range(10)}
    (result,) = trying.results
    assert result.values == list(range(10))
    assert (result.done, result.ran) == (10, 1)
    assert len(trying.errors) == 2
    found = records(app)
    assert found["0"] == (DONE, 1, "0", None)
    assert found["3"] == (DONE, 2, "3", None)
    assert found["7"] == (DONE, 3, "7", None)


def test_a_failed_record_keeps_tries_and_error(app):
    def fan(ctx: Context) -> None:
        ctx.fan_out(refuse_odd, [1, 2]).raise_for_failed()

    trying = Trying(app, fan, tries=3)
    assert trying.drain(linger=5).failed == 1
    status, tries, value, error = records(app)["1"]
    assert (status, tries, value) == (FAILED, 3, None)
    assert error.startswith("ValueError: 1 is odd")
    assert records(app)["2"] == (DONE, 1, "2", None)


def test_a_rerun_by_ops_runs_only_what_is_not_done(app):
    ran = Ran(fails={1})
    trying = Trying(app, lambda ctx: ctx.fan_out(ran, range(3)).raise_for_failed(), tries=3)
    assert trying.drain(linger=5).failed == 1
    ran.fails.clear()
    assert app.ops.rerun([trying.msg_id]) == 1
    assert trying.drain().done == 1
    assert ran.counts == {0: 1, 1: 4, 2: 1}
    assert app.ops.rerun([trying.msg_id], force=True) == 1  # it was done: so are its items
    assert trying.drain().done == 1
    assert trying.results[-1].values == [0, 1, 2]
    assert trying.results[-1].ran == 0
    assert ran.counts == {0: 1, 1: 4, 2: 1}


def test_forgotten_records_run_again(app):
    ran = Ran()
    trying = Trying(app, lambda ctx: ctx.fan_out(ran, range(3)))
    trying.drain()
    (other,) = send(app, None, topic="fan")
    trying.drain()
    item = app.tables.item
    with app.engine.begin() as conn:
        conn.execute(sa.delete(item).where(item.c.msg_id == trying.msg_id))
    assert records(app, trying.msg_id) == {}
    assert len(records(app, other)) == 3
    app.ops.rerun([trying.msg_id], force=True)
    trying.drain()
    assert ran.counts == {n: 3 for n in range(3)}


def test_values_are_the_same_now_and_in_a_later_try(app):
    given = [None, "", "ü", 0, 1.5, True, [1, [2]], {"a": {"b": None}}, (1, 2)]
    ran = Ran(fails={"bad"})

    def fan(ctx: Context) -> Any:
        def look(n: Any) -> Any:
            return ran(n) if n == "bad" else given[n]

        found = ctx.fan_out(look, [*range(len(given)), "bad"])
        ran.fails.clear()
        kept.append(found.values)
        found.raise_for_failed()

    kept: list[Any] = []
    Trying(app, fan, tries=2).drain(linger=5)
    expected = [*given[:-1], [1, 2]]
    assert kept == [[*expected, None], [*expected, "bad"]]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "stored as JSON, got a object"),
        (float("nan"), "stored as JSON, got a float"),
        ("x" * 8_000, "8002 characters as JSON, at most 8000"),
        ("\x00", "NUL"),
    ],
    ids=["object", "nan", "long", "nul"],
)
def test_a_value_that_cannot_be_kept_fails_its_item(sqlite_app, value, why):
    result = run(sqlite_app, lambda ctx: ctx.fan_out(lambda n: value, ["a"]))
    assert why in result.failed["a"]
    assert records(sqlite_app)["a"][:2] == (FAILED, 1)


def test_whatever_an_item_raises_is_its_own_failure(sqlite_app):
    def act(n: int) -> Any:
        if n == 0:
            raise SystemExit(3)
        if n == 1:
            raise KeyboardInterrupt
        if n == 2:
            raise ItemsFailed({}, count=0, total=0)
        return asyncio.sleep(0) if n == 3 else None

    result = run(sqlite_app, lambda ctx: ctx.fan_out(act, range(5)))
    assert sorted(result.failed) == [0, 1, 2, 3]
    assert "coroutine" in result.failed[3]


def test_texts_that_databases_cannot_keep_are_kept_all_the_same(app):
    def act(n: int) -> None:
        raise ValueError("\x00 \ud800 " + "ü" * 5000)

    result = run(app, lambda ctx: ctx.fan_out(act, [1]))
    assert records(app)["1"][3] == result.failed[1]


def test_the_item_table_is_shared_by_message_tables(make_app):
    spec = MessageTable("other_" + "x" * 56)
    first, second = make_app(), make_app(table=spec)
    for app in (first, second):
        app.create_schema()
        ran = Ran()
        assert run(app, lambda ctx, ran=ran: ctx.fan_out(ran, ["a", "b"])).ran == 2
    with first.engine.begin() as conn:
        assert purge.delete(conn, first.tables, [1], [first.tables.item]) == 1
        assert store.count(conn, first.tables, 1) == 0
        assert store.count(conn, second.tables, 1) > 0


@pytest.mark.requires("common_sql")
def test_four_columns_of_an_existing_table_are_enough(database, make_app):
    engine = database.engine()
    kind = "SERIAL" if database.name == "postgresql" else "INTEGER"
    auto = " AUTO_INCREMENT" if database.name == "mariadb" else ""
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE tb_cus_msg (msgID {kind} PRIMARY KEY{auto}, objectID VARCHAR(50), "
            "status INTEGER NOT NULL, errorTryTimes INTEGER NOT NULL)"
        )
    names = {"msg_id": "msgid", "object_id": "objectid", "error_try_times": "errortrytimes"}
    app = created(make_app(table=MessageTable("tb_cus_msg", payload=None, **names)))
    ran = Ran(fails={2})
    results = []

    def fan(msg: Message[Any], ctx: Context) -> None:
        results.append(ctx.fan_out(ran, range(5)))
        ran.fails.clear()
        results[-1].raise_for_failed()

    app.add_handler(None, fan)
    send(app, "C-1")
    assert app.drain(linger=0).done == 1
    assert ran.counts == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}
    assert results[-1].values == list(range(5))


def test_a_generator_is_read_only_a_little_ahead(sqlite_app):
    read = 0

    def source() -> Iterator[int]:
        nonlocal read
        for n in range(3 * BATCH):
            read = n + 1
            yield n

    result = run(sqlite_app, lambda ctx: ctx.fan_out(lambda n: read, source(), threads=1))
    assert result.total == 3 * BATCH
    assert all(ahead - n <= BATCH + 1 for n, ahead in enumerate(result.values))


def test_an_infinite_source_is_stopped_by_the_timeout(app):
    ran = Ran()

    def source() -> Iterator[int]:
        n = 0
        while True:
            time.sleep(0.01)
            yield (n := n + 1)

    text = refused(app, lambda ctx: ctx.fan_out(ran, source(), timeout=1.0))
    assert text.startswith("HandlerTimeout: timeout in the middle of a fan-out")
    assert ran.items
    assert records(app) == {str(n): (DONE, 1, str(n), None) for n in ran.items}


def test_what_the_source_raises_ends_the_fan_out_and_what_ran_is_recorded(app):
    def source() -> Iterator[int]:
        yield from range(5)
        raise LookupError("the source broke")

    text = refused(app, lambda ctx: ctx.fan_out(double, source()))
    assert text == "LookupError: the source broke"
    found = records(app)
    assert {found[key][0] for key in found} <= {DONE}


def test_what_is_done_is_looked_up_in_parts(app):
    ran = Ran(fails={1100})

    def fan(ctx: Context) -> Any:
        found = ctx.fan_out(ran, (n for n in range(1200)))
        ran.fails.clear()
        return found.raise_for_failed()

    trying = Trying(app, fan, tries=2)
    assert trying.drain(linger=5).done == 1
    assert trying.results[0].values == list(range(1200))
    assert ran.counts[1100] == 2
    assert len(ran.items) == 1201


def test_duplicate_keys_are_refused_before_anything_runs(app):
    ran = Ran()
    items = [{"id": n % 9} for n in range(10)]
    text = refused(app, lambda ctx: ctx.fan_out(ran, items, key=lambda item: item["id"]))
    assert text.startswith("ConfigError: the key 0 of item 9 appears twice")
    assert ran.items == []
    assert records(app) == {}


def test_a_whole_number_and_its_text_are_one_key(sqlite_app):
    assert "appears twice" in refused(sqlite_app, lambda ctx: ctx.fan_out(Ran(), [1, "1"]))


def test_a_duplicate_key_of_a_generator_is_refused_when_it_comes(app):
    ran = Ran()
    text = refused(app, lambda ctx: ctx.fan_out(ran, iter([1, 2, 3, 2, 4])))
    assert "the key 2 of item 3 appears twice" in text
    assert "have run" in text
    assert set(ran.items) <= {1, 2, 3}
    assert ran.items.count(2) <= 1


def test_bad_keys_are_refused_before_anything_runs(sqlite_app, subtests):
    ran = Ran()

    def fan(ctx: Context) -> None:
        for key, why in (
            (None, "must be a text or a whole number"),
            (1.5, "must be a text or a whole number"),
            (True, "must be a text or a whole number"),
            (b"a", "must be a text or a whole number"),
            ("", "is empty"),
            ("a\x00b", "NUL"),
            ("\ud800", "surrogate"),
            ("x" * 191, "191 characters"),
        ):
            keys = {"good": "g", "bad": key}
            says = f"^the key of item 1 .*{why}"
            with subtests.test(key=key), pytest.raises(ConfigError, match=says):
                ctx.fan_out(ran, ["good", "bad"], key=keys.get)

    assert Trying(sqlite_app, fan).drain().done == 1
    assert ran.items == []


def test_items_that_cannot_be_their_own_keys_are_refused(sqlite_app):
    text = refused(sqlite_app, lambda ctx: ctx.fan_out(Ran(), [{"id": 1}]))
    assert "item 0 is a dict, which cannot be its own key: give key=" in text


def test_any_text_of_190_characters_is_a_key(app):
    keys = ["ü" * 190, "a", "a ", "A", " a", "[", "[x]y", "%s", ":k", "\U0001f40d'\"", "a\nb"]
    result = run(app, lambda ctx: ctx.fan_out(len, keys))
    assert result.values == [len(key) for key in keys]
    assert len(records(app)) == len(keys)


def test_the_same_function_may_go_round_again(app):
    ran = Ran(fails={2})

    def fan(ctx: Context) -> Any:
        first = ctx.fan_out(ran, [1, 2, 3])
        ran.fails.clear()
        assert list(first.failed) == [2]
        return ctx.fan_out(ran, [1, 2, 3, 4]).raise_for_failed()

    assert run(app, fan).values == [1, 2, 3, 4]
    assert ran.counts == {1: 1, 2: 2, 3: 1, 4: 1}


def test_another_function_with_the_same_keys_needs_a_name(sqlite_app):
    def fan(ctx: Context) -> Any:
        ctx.fan_out(Ran(), [1, 2])
        return ctx.fan_out(double, [0, 2])

    assert "the key 2 of item 1 was used by another fan-out of this message" in refused(
        sqlite_app, fan
    )


def test_names_keep_fan_outs_apart(app):
    def fan(ctx: Context) -> Any:
        ctx.fan_out(Ran(), [1, "[b]1"]).raise_for_failed()
        ctx.fan_out(Ran(), [1], name="a").raise_for_failed()
        return ctx.fan_out(double, [1], name="b")

    assert run(app, fan).values == [2]
    assert set(records(app)) == {"1", "[][b]1", "[a]1", "[b]1"}


def test_a_name_that_cannot_be_one_is_refused(sqlite_app, subtests):
    def fan(ctx: Context) -> None:
        for name in (None, 3, "x" * 51, "a]", "[a", "a\n"):
            with subtests.test(name=name), pytest.raises(ConfigError, match=r"^name "):
                ctx.fan_out(double, [1], name=name)

    assert Trying(sqlite_app, fan).drain().done == 1


def test_one_inside_another_is_refused(sqlite_app):
    result = run(sqlite_app, lambda ctx: ctx.fan_out(lambda n: ctx.fan_out(double, [n]), [1]))
    assert "one inside another" in result.failed[1]


def test_bad_arguments_are_refused(sqlite_app, subtests):
    def fan(ctx: Context) -> None:
        arguments: tuple[Any, ...]
        options: dict[str, Any]
        for arguments, options, why in (
            ((None, []), {}, "takes a function first"),
            ((asyncio.sleep, [1]), {}, "must be a plain one"),
            ((double, 7), {}, "items must be"),
            ((double, "abc"), {}, "items must be"),
            ((double, [1]), {"key": "id"}, "key must be a function"),
            ((double, [1]), {"serial_by": 3}, "serial_by must be a function"),
            ((double, [1]), {"threads": 0}, "threads must be"),
            ((double, [1]), {"threads": 5000}, "threads must be"),
            ((double, [1]), {"timeout": -1}, "timeout must be"),
            ((double, [1]), {"executor": 5}, "executor must be"),
        ):
            with subtests.test(why), pytest.raises(ConfigError, match=why):
                ctx.fan_out(*arguments, **options)

    assert Trying(sqlite_app, fan).drain().done == 1


def test_a_transactional_handler_has_no_fan_out(app):
    trying = Trying(app, lambda ctx: ctx.fan_out(double, [1]), transactional=True)
    trying.drain()
    assert "ctx.fan_out is for plain handlers" in str(trying.error)


def test_items_of_one_sub_key_run_in_order_and_one_at_a_time(app):
    lock = threading.Lock()
    active: set[int] = set()
    order: dict[int, list[int]] = {}
    side_by_side = threading.Barrier(3)

    def act(n: int) -> None:
        with lock:
            assert n % 3 not in active
            active.add(n % 3)
            order.setdefault(n % 3, []).append(n)
        if n < 3:
            side_by_side.wait(30)
        with lock:
            active.discard(n % 3)

    options = {"threads": 4, "serial_by": lambda n: n % 3}
    result = run(app, lambda ctx: ctx.fan_out(act, range(300), **options))
    assert result.failed == {}
    assert order == {group: list(range(group, 300, 3)) for group in range(3)}


@pytest.mark.parametrize("kind", [list, iter])
def test_sub_keys_run_side_by_side_also_where_the_items_are_sorted_by_them(sqlite_app, kind):
    side_by_side = threading.Barrier(3)

    def act(n: int) -> None:
        if n % 500 == 0:
            side_by_side.wait(10)

    options: dict[str, Any] = {"threads": 3, "serial_by": lambda n: n // 500}
    result = run(sqlite_app, lambda ctx: ctx.fan_out(act, kind(range(1500)), **options))
    assert (result.done, result.failed) == (1500, {})


def test_items_run_on_as_many_threads_as_the_system_allows(sqlite_app, monkeypatch):
    start, started = threading.Thread.start, []

    def one_alone(thread: threading.Thread) -> None:
        if thread.name.startswith("msgworker-item-"):
            if started:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", one_alone)
    result = run(sqlite_app, lambda ctx: ctx.fan_out(str, range(5), threads=3))
    assert (result.values, len(started)) == (list("01234"), 1)


def test_what_is_held_back_makes_room_for_others(sqlite_app, monkeypatch):
    monkeypatch.setattr("msgworker.instance.fan_out.items.QUEUED", 3)
    waiting = threading.Event()

    def act(n: int) -> None:
        if n == 0:
            waiting.wait(10)
            raise ValueError("those behind it are held back")

    def items() -> Any:
        yield from range(4)
        waiting.set()  # three wait behind the first
        yield from range(4, 9)

    options: dict[str, Any] = {"serial_by": lambda n: "a" if n < 4 else None, "timeout": 60}
    result = run(sqlite_app, lambda ctx: ctx.fan_out(act, items(), **options))
    assert (result.done, result.held_back, list(result.failed)) == (5, 3, [0])


def test_behind_a_failed_item_its_sub_key_waits_for_the_next_try(app):
    ran = Ran(fails={2})
    seen = []

    def fan(ctx: Context) -> Any:
        found = ctx.fan_out(ran, range(9), threads=2, serial_by=lambda n: n % 2 if n < 8 else None)
        ran.fails.clear()
        seen.append(found)
        return found.raise_for_failed()

    trying = Trying(app, fan, tries=2)
    trying.drain(linger=5)
    first, second = seen
    assert list(first.failed) == [2]
    assert (first.held_back, first.done, first.values[4:]) == (2, 6, [None, 5, None, 7, 8])
    assert "1 of 9 items failed (2 held back behind them)" in str(trying.errors[0])
    assert second.values == list(range(9))
    assert [n for n in ran.items if n in (0, 2, 4, 6)] == [0, 2, 2, 4, 6]


def test_an_instance_holds_no_more_messages_than_it_is_told(app_with):
    app = app_with(lanes_limit=1, poll_seconds=0.02)
    gate, held = threading.Event(), threading.Event()

    def hold(msg: Message[Any]) -> None:
        held.set()
        assert gate.wait(60)

    app.add_handler(None, hold)
    send(app, None, None, None)
    table = Table(app)
    with launched(app.worker(threads=1)):
        assert held.wait(60)
        send(app, None)
        assert table.statuses.count(1) == 1
        gate.set()
        until(lambda: table.statuses == [DONE] * 4, "all are done")


def test_what_is_done_stays_done_whatever_comes_late(app):
    (msg_id,) = send(app, None)
    t = app.tables
    with app.engine.begin() as conn:
        conn.execute(sa.update(t.message).values(status=1, claimed_by="me"))
        done = Record("a", True, 1, "7")
        assert store.record(conn, t, msg_id, [done], me="me", tries=0, there=())
    late = Record("a", False, 1, None, "late")
    with app.engine.begin() as conn:
        assert store.record(conn, t, msg_id, [late], me="me", tries=0, there=["a"])
    with pytest.raises(IntegrityError), app.engine.begin() as conn:
        store.record(conn, t, msg_id, [late], me="me", tries=0, there=())
    for there in (True, False):
        with app.engine.connect() as conn:
            assert store.record_one(conn, t, msg_id, done, me="me", tries=0, there=there) is False
    assert records(app) == {"a": (DONE, 1, "7", None)}


def test_an_async_handler_calls_it_in_a_thread(app):
    kept: list[Any] = []

    async def handle(msg: Message[Any], ctx: Context) -> None:
        with pytest.raises(HandlerMisuse, match=r"asyncio\.to_thread"):
            ctx.fan_out(double, [1])
        kept.append(await asyncio.to_thread(ctx.fan_out, double, [1, 2]))

    app.add_handler("a", handle)
    send(app, None, topic="a")
    assert app.drain(linger=0).done == 1
    assert kept[0].values == [2, 4]


def test_a_fan_out_works_beside_others_in_one_instance(app):
    assert run_many(app) == [list(range(50))] * 8


def run_many(app: Any) -> list[Any]:
    registry_of(app).handlers.clear()
    kept = []

    def handle(msg: Message[Any], ctx: Context) -> None:
        kept.append(ctx.fan_out(lambda n: n, range(50), threads=3).raise_for_failed().values)

    app.add_handler("m", handle)
    send(app, *[None] * 8, topic="m")
    assert app.drain(linger=0, threads=4).done == 8
    return kept
