"""Transactional items: writes and record are one."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import Context, LostClaim
from msgworker.store import items as store
from msgworker.store import recover
from msgworker.store.items import Record
from tests.support.apps import created
from tests.support.cutting import Cutter, consumer_url
from tests.support.fan_out import (
    DONE,
    EFFECT,
    FAILED,
    Ran,
    Trying,
    effects,
    records,
    run,
    take_over,
    write_effect,
)
from tests.support.rows import send
from tests.support.waiting import in_thread, until


def test_a_transactional_item_commits_its_writes_with_its_record(app):
    EFFECT.create(app.engine)

    def act(n: int, conn: sa.Connection) -> int:
        write_effect(n, conn)
        if n % 5 == 0:
            raise ValueError("no")
        return n

    def fan(ctx: Context) -> Any:
        return ctx.fan_out(act, range(40), threads=4, transactional_items=True)

    result = run(app, fan)
    assert result.failed_count == 8
    assert effects(app) == {str(n): 1 for n in range(40) if n % 5}
    assert {key for key, row in records(app).items() if row[0] == DONE} == set(effects(app))
    assert records(app)["5"][:2] == (FAILED, 1)


def test_a_failed_transactional_item_is_done_by_the_next_try(app):
    EFFECT.create(app.engine)
    ran = Ran(fails={2})

    def act(n: int, conn: sa.Connection) -> int:
        write_effect(n, conn)
        return ran(n)

    def fan(ctx: Context) -> Any:
        found = ctx.fan_out(act, range(4), transactional_items=True)
        ran.fails.clear()
        return found.raise_for_failed()

    trying = Trying(app, fan, tries=2)
    assert trying.drain(linger=5).done == 1
    assert trying.results[0].values == [0, 1, 2, 3]
    assert effects(app) == {str(n): 1 for n in range(4)}
    assert records(app)["2"] == (DONE, 2, "2", None)


@pytest.mark.parametrize("how", ["commit", "rollback", "close"])
def test_an_item_that_ends_its_transaction_fails(sqlite_app, how):
    def act(n: int, conn: sa.Connection) -> None:
        getattr(conn, how)()

    result = run(sqlite_app, lambda ctx: ctx.fan_out(act, [1], transactional_items=True))
    assert "HandlerMisuse" in result.failed[1]


def test_a_value_that_cannot_be_kept_rolls_its_item_back(app):
    EFFECT.create(app.engine)

    def act(n: int, conn: sa.Connection) -> Any:
        write_effect(n, conn)
        return object()

    result = run(app, lambda ctx: ctx.fan_out(act, [1], transactional_items=True))
    assert result.failed_count == 1
    assert effects(app) == {}


@pytest.mark.requires("row_locks")
@pytest.mark.quick("mariadb")
def test_a_transactional_item_taken_over_before_its_commit_writes_nothing(app, database):
    EFFECT.create(app.engine)
    ran = Ran()

    def act(n: int, conn: sa.Connection) -> None:
        ran(n)
        write_effect(n, conn)
        if n == 5:
            take_over(app, trying.msg_id)

    def fan(ctx: Context) -> Any:
        return ctx.fan_out(act, range(300), threads=1, transactional_items=True)

    trying = Trying(app, fan)
    trying.drain()
    assert isinstance(trying.error, LostClaim)
    assert effects(app) == {str(n): 1 for n in range(5)}
    assert set(records(app)) == set(effects(app))
    assert ran.items == list(range(6))  # and no other item started


def test_transactional_items_after_a_take_over_write_nothing(app):
    EFFECT.create(app.engine)

    def source() -> Iterator[int]:
        yield 1
        until(lambda: records(app), "the first is recorded")
        take_over(app, trying.msg_id)
        yield from range(2, 50)

    def fan(ctx: Context) -> Any:
        return ctx.fan_out(write_effect, source(), threads=5, transactional_items=True)

    trying = Trying(app, fan)
    trying.drain()
    assert isinstance(trying.error, LostClaim)
    assert effects(app) == {"1": 1}
    assert set(records(app)) == {"1"}


@pytest.mark.requires("row_locks")
@pytest.mark.quick("postgresql")
def test_recovery_leaves_a_row_whose_item_is_committing(app, database):
    """The other way round: the look has been made, the commit has not. It must still count."""
    (msg_id,) = send(app, None)
    t = app.tables
    c = t.message.c
    with app.engine.begin() as conn:
        flag = {"status": 1, "claimed_by": "zombie"}
        conn.execute(sa.update(t.message).where(c.msg_id == msg_id).values(**flag))

    def recovery() -> int:
        with app.engine.begin() as conn:
            return recover.recover(conn, t, [msg_id], dead_id="zombie", text="died")

    with app.engine.begin() as conn:
        one = Record("a", True, 1, None)
        assert store.record_one(conn, t, msg_id, one, me="zombie", tries=0, there=False) is True
        assert in_thread(recovery)() == 0
    assert recovery() == 1
    assert set(records(app)) == {"a"}
    with app.engine.begin() as conn:
        late = Record("b", True, 1, None)
        assert store.record_one(conn, t, msg_id, late, me="zombie", tries=0, there=False) is None
        assert store.record(conn, t, msg_id, [late], me="zombie", tries=0, there=()) is False
    assert set(records(app)) == {"a"}


@pytest.mark.requires("share_locks")
@pytest.mark.quick("mariadb")
@pytest.mark.requires("rows_in_two_transactions")
def test_two_items_commit_side_by_side(app, database):
    """The look at the message's row does not make items wait for each other."""
    (msg_id,) = send(app, None)
    t = app.tables
    with app.engine.begin() as conn:
        conn.execute(sa.update(t.message).values(status=1, claimed_by="me"))
    with app.engine.begin() as first, app.engine.begin() as second:
        for conn, key in ((first, "a"), (second, "b")):
            record = Record(key, True, 1, None)
            assert store.record_one(conn, t, msg_id, record, me="me", tries=0, there=False) is True


@pytest.mark.requires("sessions")
@pytest.mark.long
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "plain"])
def test_cut_sessions_lose_nothing_and_repeat_no_transactional_item(make_app, database, exact):
    app = created(make_app(consumer_url(database.url)))
    watcher = make_app()
    EFFECT.create(watcher.engine)
    ran, cutter = Ran(), Cutter(database.url, 0.06, random.Random(7))

    def act(n: int, conn: sa.Connection | None = None) -> None:
        ran(n)
        if n == 0:
            until(lambda: cutter.count, "a session was cut")
        if conn is not None:
            write_effect(n, conn)
        time.sleep(0.005)

    def fan(ctx: Context) -> Any:
        found = ctx.fan_out(act, range(200), threads=4, transactional_items=exact)
        return found.raise_for_failed()

    trying = Trying(app, fan, tries=3)
    join = in_thread(lambda: trying.drain(linger=30))
    until(lambda: ran.items, "items run")
    with cutter.cutting():
        assert join().done == 1
    assert trying.results[-1].done == 200
    found = records(watcher)
    assert {row[0] for row in found.values()} == {DONE}
    assert len(found) == 200
    if exact:
        assert effects(watcher) == {str(n): 1 for n in range(200)}
    else:
        assert ran.counts == {n: 1 for n in range(200)}


@pytest.mark.requires("row_locks")
@pytest.mark.quick("mariadb")
def test_an_item_s_own_deadlock_is_run_again(app, database):
    """Two items that lock two rows in opposite order: one of them is rolled back, both end."""
    EFFECT.create(app.engine)
    with app.engine.begin() as conn:
        conn.execute(EFFECT.insert(), [{"id": 1, "item": "x"}, {"id": 2, "item": "y"}])
    both = threading.Barrier(2)
    met: list[int] = []

    def act(n: int, conn: sa.Connection) -> None:
        for row in (n, 3 - n):
            conn.execute(sa.update(EFFECT).where(EFFECT.c.id == row).values(item=f"by {n}"))
            if len(met) < 2 and row == n:
                met.append(n)
                both.wait(30)

    def fan(ctx: Context) -> Any:
        return ctx.fan_out(act, [1, 2], threads=2, transactional_items=True)

    assert run(app, fan).raise_for_failed().done == 2
