"""Dealing messages to flags."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from msgworker import MessageTable
from msgworker.coordination import DatabaseLocks, Dealer, Instance, LeaseBusy, hold
from msgworker.coordination import dealer as dealer_module
from msgworker.coordination.dealer import shared_out
from msgworker.errors import ConfigError, DatabaseUnavailable, SchemaError
from msgworker.store import locks as store
from msgworker.store.locks import Undealt
from tests.support.refusing import ROLLED_BACK
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, until


def test_messages_are_dealt_three_by_three(app):
    send(app, *(f"C-{i}" for i in range(12)))
    assert Dealer(app, ["asA", "asB"], size=3).deal_once() == 12
    assert Table(app).column("instance_type") == (["asA"] * 3 + ["asB"] * 3) * 2


def test_an_object_follows_its_unfinished_message_and_the_counts_stay_equal(app):
    send(app, *["a"] * 5, *(f"C-{i}" for i in range(20)), "a", None, None)
    dealer = Dealer(app, ["asA", "asB"], size=1)
    dealer.deal_once()
    send(app, "a", "C-3", *(f"D-{i}" for i in range(10)))
    dealer.deal_once()
    flags: dict[str, set[str]] = {}
    rows = Table(app).rows("object_id", "instance_type")
    for object_id, flag in rows:
        if object_id is not None:
            flags.setdefault(object_id, set()).add(flag)
    assert all(len(found) == 1 for found in flags.values())
    counts = Counter(flag for _, flag in rows)
    assert abs(counts["asA"] - counts["asB"]) <= 2
    assert sum(counts.values()) == 40


def test_a_type_that_comes_later_gets_no_more_than_the_others(app, monkeypatch):
    live = {"asA"}
    monkeypatch.setattr("msgworker.queries.instances.served", lambda conn, t: live)
    dealer = Dealer(app, ["asA", "asB"], size=1)
    for _ in range(2):
        send(app, *[None] * 6)
        dealer.deal_once()
        live.add("asB")
    assert Table(app).column("instance_type") == ["asA"] * 6 + ["asA", "asB"] * 3


def test_what_is_finished_or_runs_is_left_alone(app):
    ids = send(app, "a", "b", "c")
    table = Table(app)
    table.edit(table.where(msg_id=ids[0]), status=2)
    table.edit(table.where(msg_id=ids[1]), status=1)
    assert Dealer(app, ["asA"]).deal_once() == 1
    assert table.column("instance_type") == [None, None, "asA"]


@pytest.mark.requires("row_locks")
def test_what_another_program_has_locked_is_dealt_later(app):
    ids = send(app, "a", "b", "c")
    table = Table(app)
    table.edit(table.where(msg_id=ids[2]), instance_type="gone")
    dealer, t = Dealer(app, ["asA"]), app.tables.message
    with app.engine.begin() as other:
        other.execute(sa.update(t).where(t.c.msg_id != ids[1]).values(topic="u"))
        assert dealer.deal_once() == 1
    assert table.column("instance_type") == [None, "asA", "gone"]
    assert dealer.deal_once() == 2


@pytest.mark.requires("row_locks")
def test_what_is_locked_hides_nothing_behind_it_and_is_in_no_share(app, monkeypatch):
    monkeypatch.setattr(store, "undealt", functools.partial(store.undealt, limit=2))
    ids = send(app, *["x"] * 5)
    table, t = Table(app), app.tables.message
    table.edit(table.where(msg_id=ids[0]), instance_type="asA")  # which the others follow
    dealer = Dealer(app, ["asA", "asB"], size=1)
    with app.engine.begin() as other:
        other.execute(sa.update(t).where(t.c.msg_id > ids[0]).values(topic="u"))
        assert [dealer.deal_once() for _ in range(3)] == [0, 0, 0]
        send(app, "c", "d", "e", "f")
        assert dealer.deal_once() == 4
    dealt = Counter(table.column("instance_type"))
    assert dealt == {"asA": 3, "asB": 2, None: 4} or dealt == {"asA": 2, "asB": 3, None: 4}
    assert dealer.deal_once() == 4


@pytest.mark.requires("row_locks")
def test_what_is_locked_of_a_type_without_an_instance_hides_nothing_behind_it(app, monkeypatch):
    monkeypatch.setattr(store, "undealt", functools.partial(store.undealt, limit=2))
    ids = send(app, *"abcde")
    table, t = Table(app), app.tables.message
    table.edit(instance_type="gone")
    with app.engine.begin() as other:
        other.execute(sa.update(t).where(t.c.msg_id < ids[3]).values(topic="u"))
        assert Dealer(app, ["asA"]).deal_once() == 2
    assert table.column("instance_type") == ["gone"] * 3 + ["asA"] * 2


def test_what_is_sent_to_a_type_without_an_instance_meanwhile_is_left_for_the_next_round(
    app, monkeypatch
):
    send(app, "a")
    table, read, sent = Table(app), store.undealt, []
    table.edit(instance_type="gone")

    def one_more(*of, **which):
        found = read(*of, **which)
        if "flag" in which and len(sent) < 5:
            sent.extend(send(app, "b"))
            table.edit(table.where(msg_id=sent[-1]), instance_type="gone")
        return found

    monkeypatch.setattr(store, "undealt", one_more)
    assert Dealer(app, ["asA"]).deal_once() == 1
    assert table.column("instance_type") == ["asA"] + ["gone"] * len(sent)


def test_what_a_flag_without_an_instance_has_left_is_dealt_again(app):
    send(app, *(f"C-{i}" for i in range(12)))
    table = Table(app)
    table.edit(instance_type="gone")
    dealer = Dealer(app, ["asA", "asB"])
    assert dealer.deal_once() == 12
    assert Counter(table.column("instance_type")) == {"asA": 6, "asB": 6}
    app.add_handler("t", lambda msg: None)
    with app.worker(scope=Instance("asB"), threads=1) as worker:
        worker.start()  # asA lives nowhere: what it has goes to asB
        dealer.deal_once()
        assert "asA" not in [f for s, f in table.rows("status", "instance_type") if s != 2]
        until(lambda: set(table.statuses) == {2}, "asB has done all")


def test_the_flags_of_messages_that_wait_are_read_one_by_one(app):
    """What a dealer asks every half second, whatever waits."""
    send(app, *(f"C-{i}" for i in range(9)), None)
    table = Table(app)
    with app.engine.connect() as conn:
        assert store.flags_there(conn, app.tables) == set()
    for msg_id, flag in zip(sorted(table.column("msg_id")), ["b", "a b", "c"] * 3, strict=False):
        table.edit(table.where(msg_id=msg_id), instance_type=flag)
    table.edit(table.where(instance_type="c"), status=2)
    with app.engine.connect() as conn:
        assert store.flags_there(conn, app.tables) == {"a b", "b"}


def test_what_is_sent_while_it_deals_keeps_no_dealer_from_its_end(app, monkeypatch):
    """Messages came as fast as they were dealt: it saw no stop, and no instance that had left."""
    undealt, looks = store.undealt, [0]

    def more_come(conn, t, **behind):
        looks[0] += 1
        assert looks[0] < 20, "it does not end"
        send(app, f"C-{looks[0]}")
        return undealt(conn, t, **behind)

    send(app, "a", "b")
    monkeypatch.setattr(store, "undealt", more_come)
    assert Dealer(app, ["asA"]).deal_once() == 2


def test_dealers_of_other_rows_of_a_table_deal_beside_each_other(make_app):
    apps = [
        make_app(table=MessageTable(instance_type="instance_type", where={"tenant": n}))
        for n in (1, 2)
    ]
    assert len({Dealer(app, ["asA"]).name for app in apps}) == 2


def test_one_dealer_deals_at_a_time(app):
    dealer = Dealer(app, ["asA"])
    with hold(dealer._locks, dealer.name), pytest.raises(LeaseBusy):
        Dealer(app, ["asA"]).deal_once()


def test_a_dealer_refuses_what_cannot_be_dealt(make_app):
    app = make_app(table=MessageTable(instance_type=None))
    with pytest.raises(ConfigError, match="instance_type"):
        Dealer(app, ["asA"])
    for flags in ([], "asA", [""], ["x" * 31]):
        with pytest.raises(ConfigError):
            Dealer(make_app(), flags)
    with pytest.raises(ConfigError, match="size"):
        Dealer(make_app(), ["asA"], size=0)
    bare = make_app(table=MessageTable("own"))
    with bare.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE own (msg_id INTEGER PRIMARY KEY, object_id VARCHAR(50), "
            "status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 NOT NULL)"
        )
    bare.create_schema()
    with pytest.raises(SchemaError, match="ALTER TABLE own ADD"):
        Dealer(bare, ["asA"]).deal_once()


def test_who_has_got_fewest_gets_the_next():
    rows = [Undealt(i, None) for i in range(9)]
    dealt = {"a": 0, "b": 4, "c": 0}
    assert shared_out(rows, ["a", "b", "c"], dealt, {}, 3) == {
        "a": [0, 1, 2, 6, 7, 8],
        "c": [3, 4, 5],
    }
    assert dealt == {"a": 6, "b": 4, "c": 3}


@pytest.mark.parametrize("wait", [0, 1.6])
def test_a_dealer_stands_by_for_as_long_as_it_is_told(app, wait, caplog):
    caplog.set_level("INFO", "msgworker.coordination")
    dealer = Dealer(app, ["asA"])
    with hold(DatabaseLocks(app.engine), dealer.name):
        begun = time.monotonic()
        with pytest.raises(LeaseBusy):
            dealer.run(wait=wait)
    assert wait <= time.monotonic() - begun < wait + 30
    assert caplog.text.count("dealer: standing by: lock 'dealer:msgworker_message'") == bool(wait)


def test_a_dealer_waits_only_after_a_round_without_anything_to_deal(app, monkeypatch):
    told, real = [], dealer_module.newest

    def newest(*given):
        told.append("round")
        if len(told) > 4:
            dealer.stop()
        return real(*given)

    class Event(threading.Event):
        def wait(self, timeout=None):
            if threading.current_thread() is not threading.main_thread():
                return super().wait(timeout)
            told.append(timeout)
            self.set()
            return True

    monkeypatch.setattr(dealer_module, "newest", newest)
    monkeypatch.setattr(
        dealer_module, "threading", SimpleNamespace(Event=Event, Thread=threading.Thread)
    )
    dealer = Dealer(app, ["asA"])
    send(app, "a")
    dealer.run(poll_seconds=7)
    assert told == ["round", "round", 7]


def test_a_dealer_that_was_stopped_deals_again(app, monkeypatch):
    dealer, real = Dealer(app, ["asA"]), store.flags_there

    def flags(*given):
        dealer.stop()
        return real(*given)

    monkeypatch.setattr(store, "flags_there", flags)
    for n in range(2):
        send(app, n)
        dealer.run(poll_seconds=0.05)
        assert Table(app).column("instance_type") == ["asA"] * (n + 1)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_dealer_that_waits_for_a_lock_ends_soon_after_its_stop(app, monkeypatch):
    monkeypatch.setattr(dealer_module, "STOP_SECONDS", 0.2)
    dealer, asked, real = Dealer(app, ["asA"]), threading.Event(), store.flags_there

    with app.engine.connect() as conn:

        def flags(*given):
            if not asked.is_set():
                conn.exec_driver_sql("LOCK TABLE msgworker_message IN ACCESS EXCLUSIVE MODE")
                asked.set()
            return real(*given)

        monkeypatch.setattr(store, "flags_there", flags)
        run = in_thread(dealer.run)
        assert asked.wait(60)
        dealer.stop()
        run()
    send(app, "a")
    assert dealer.deal_once() == 1


def test_a_dealer_that_is_stopped_before_it_runs_says_so(app, caplog):
    caplog.set_level("INFO", "msgworker.coordination")
    dealer = Dealer(app, ["asA"])
    send(app, "a")
    dealer.stop()
    dealer.run()
    assert "stopped before" in caplog.text
    assert Table(app).column("instance_type") == [None]


@pytest.mark.parametrize(
    "error",
    [pytest.param(DatabaseUnavailable("gone"), marks=pytest.mark.long), ROLLED_BACK],
    ids=["away", "rolled back"],
)
def test_a_dealer_waits_for_a_database_that_is_away_or_rolls_back(app, monkeypatch, error):
    dealer, asked = Dealer(app, ["asA"]), []
    real = store.flags_there

    def flags(*given):
        asked.append(1)
        if len(asked) < 4:
            raise error
        dealer.stop()
        return real(*given)

    monkeypatch.setattr(store, "flags_there", flags)
    dealer.run()
    assert len(asked) == 4


def test_the_old_names_of_instance_types_are_taken_until_they_go(app):
    with pytest.warns(DeprecationWarning, match=r"^Instance\(flag=...\) is now instance_type="):
        assert Instance(flag="asA").instance_type == "asA"
    with pytest.warns(DeprecationWarning, match=r"^Dealer\(flags=...\) is now instance_types="):
        assert Dealer(app, flags=["asA"]).instance_types == ("asA",)
    with pytest.raises(TypeError, match="both instance_type and flag"):
        Instance(flag="asB", instance_type="asB")
