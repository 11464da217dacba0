"""Limits of topics over all instances: permits, rates, and who waits for them."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, Context, HandlerError, Message, MessageTable, Reject, SchemaError
from msgworker.instance.claiming import passes, search
from msgworker.instance.claiming.heads import Wanted
from msgworker.instance.instance import Instance
from msgworker.instance.running.outcome import Result
from msgworker.limit import Limit
from msgworker.message import Outcome
from msgworker.store import candidates, claim, limits
from msgworker.store.candidates import Those
from msgworker.store.limits import Recorded
from tests.support.apps import created
from tests.support.leases import dead_holds, registered
from tests.support.ops import DONE
from tests.support.rounds import beat, by_hand
from tests.support.rows import Table, edit, send
from tests.support.waiting import until


def limited(app: App, topic: str = "t", **options: object) -> list[int]:
    """A handler with limits; the messages that it has run."""
    ran: list[int] = []
    app.add_handler(topic, lambda msg: ran.append(msg.msg_id), **options)
    return ran


def record(app: App, topic: str, limit: Limit, by: str = "other") -> None:
    with app.engine.begin() as conn:
        limits.declare(conn, app.tables, topic, limit, None, me=by)


def recorded(app: App) -> dict[str, Recorded]:
    with app.engine.connect() as conn:
        return limits.read_all(conn, app.tables)


def at_one(table: Table) -> int:
    return table.statuses.count(1)


def claim_all(one: Instance) -> int:
    """Two rounds that try whatever was found before; returns how many lanes are held then."""
    for _ in range(2):
        one.fetcher.limit_poller.forget()
        one.fetcher.finder.forget()
        one.fetcher.run_once()
    return len(one.shared.in_flight.lanes)


def end_one(one: Instance, outcome: Outcome = Outcome.DONE) -> None:
    """Settle the first lane that waits, as if its handler had run."""
    lane = one.lanes.next()
    assert lane is not None
    lane.result = Result(outcome)
    lane.finished_at = time.monotonic()
    one.settler.add(lane, True)


# ---------------------------------------------------------------- permits


@pytest.mark.parametrize("waits", ["itself", "paused", "unhandled", "running elsewhere", "behind"])
def test_a_drain_ends_beside_limited_messages_behind_a_head_that_waits(app, table, waits):
    """behind: the limited one is due, as one that was delayed is."""
    ran = limited(app, max_running=2)
    app.add_handler("p", lambda msg: None)
    head = {"paused": "p", "unhandled": "nowhere"}.get(waits, "t")
    delay = 3600 if waits in ("itself", "behind") else None
    with app.engine.begin() as conn:
        first = app.send(conn, head, object_id="a", delay=delay)
        app.send(conn, "t", object_id="a", delay=0.001 if waits == "behind" else None)
        free = app.send(conn, "t", object_id="b")
    if waits == "paused":
        app.ops.pause("p", actor="me", reason="x")
    if waits == "running elsewhere":
        edit(app, first, status=1)
    report = app.drain(threads=2, linger=0, time_limit=30)
    assert (report.stopped, report.done, report.left, ran) == (False, 1, 2, [free])


def test_no_more_are_flagged_than_may_run_and_the_others_lose_nothing(app, table):
    limited(app, max_running=2)
    send(app, *range(6))
    with by_hand(app, 8) as one:
        assert claim_all(one) == 2
        assert at_one(table) == 2
        assert set(table.column("error_try_times")) == {0}
        end_one(one)
        assert at_one(table) == 1
        assert claim_all(one) == 2  # the permit came back with the outcome
        assert table.statuses.count(DONE) == 1


def test_an_instance_claims_as_many_as_it_has_threads_for(app, table):
    limited(app, max_running=50)
    send(app, *range(20))
    with by_hand(app, 3) as one:
        assert claim_all(one) == 3


def test_permits_are_shared_by_all_instances(app, make_app, table):
    other = make_app()
    limited(app, max_running=3)
    limited(other, max_running=3)
    send(app, *range(10))
    with by_hand(app, 2) as one, by_hand(other, 8) as two:
        assert claim_all(one) == 2
        assert claim_all(two) == 1
        end_one(one)
        assert claim_all(two) == 2
        assert at_one(table) == 3


def test_never_more_run_than_may_over_several_workers(make_app, table, app):
    running, most, lock = 0, 0, threading.Lock()

    def handle(msg: Message) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    send(app, *(f"o{i % 9}" for i in range(40)))
    apps = [make_app() for _ in range(3)]
    for each in apps:
        each.add_handler("t", handle, max_running=2)
    seen: list[int] = []
    with ExitStack() as stack:
        workers = [stack.enter_context(each.worker(threads=4)) for each in apps]
        for worker in workers:
            worker.start()
        until(lambda: seen.append(at_one(table)) or table.statuses.count(DONE) == 40, "all done")
    assert max(seen) <= 2
    assert 1 <= most <= 2


def test_the_permits_of_a_dead_instance_come_back_with_its_messages(app, table):
    limited(app, max_running=2)
    ids = send(app, *range(4))
    for msg_id in ids[:2]:
        dead_holds(app, table, f"dead-{msg_id}", msg_id=msg_id)
    with by_hand(app, 8) as one:
        assert claim_all(one) == 0  # dead, but its rows are not given back yet
        beat(one)
        assert claim_all(one) == 2
        assert at_one(table) == 2


def test_a_message_of_a_foreign_consumer_counts(app, table):
    limited(app, max_running=1)
    ids = send(app, "a", "b")
    edit(app, ids[0], status=1)
    with by_hand(app, 8) as one:
        assert claim_all(one) == 0


def test_a_message_behind_another_needs_a_permit_of_its_own(app, table):
    """Neither the run that is read behind a head, nor the settle, flags it without one."""
    limited(app, max_running=1)
    limited(app, "free")
    (taken,) = send(app, "x")
    send(app, "a", topic="free")
    send(app, "a")
    send(app, "a", topic="free")
    edit(app, taken, status=1, claimed_by="other-1")
    registered(app, "other-1")
    with by_hand(app, 8) as one:
        assert claim_all(one) == 1
        (lane,) = one.shared.in_flight.lanes
        assert len(lane.rows) == 1
        end_one(one)
        assert table.statuses == [1, 2, 0, 0]
        edit(app, taken, status=2, claimed_by=None)
        assert claim_all(one) == 1
        end_one(one)
        assert table.statuses == [2, 2, 2, 1]  # what is not limited goes on in its lane


def test_a_limit_that_comes_while_a_run_waits_holds_for_its_messages(app, table):
    limited(app)
    send(app, "a", "a", "b")
    with by_hand(app, 8) as one:
        claim_all(one)
        assert at_one(table) == 2
        record(app, "t", Limit(max_running=1))
        beat(one)
        end_one(one)
        assert at_one(table) == 1


def test_messages_that_wait_for_a_permit_do_not_hold_up_other_topics(app, table):
    limited(app, max_running=1)
    limited(app, "free")
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, i) for i in range(1500)])
    free = send(app, *(f"f{i}" for i in range(20)), topic="free")
    with by_hand(app, 1) as one:
        for _ in range(5):
            claim_all(one)
        won = {lane.row.msg_id for lane in one.shared.in_flight.lanes}
        assert len(won & set(free)) == len(won) - 1 > 1


@pytest.mark.parametrize("was", ["free", "t"], ids=["into a limited topic", "out of it"])
def test_a_message_whose_topic_was_changed_since_the_look_needs_the_permit_of_its_own(
    app, table, was
):
    limited(app, max_running=1)
    limited(app, "free")
    (first,) = send(app, "a", topic="t" if was == "free" else "free")
    (moved,) = send(app, "b", topic=was)
    with by_hand(app, 2) as one:
        me = one.shared.identity.id
        if was == "free":
            claim_all(one)  # its permit is taken
            assert {lane.row.msg_id for lane in one.shared.in_flight.lanes} == {first, moved}
            one.settler.release([n for n in one.lanes.take_back() if n.row.msg_id == moved])
            look = one.fetcher.finder.look(5, 0)
        else:
            look = one.fetcher.finder.look_limited("t", 5, 0)
        candidates_of_it = [c for c in look.candidates if c.msg_id == moved]
        assert candidates_of_it
        edit(app, moved, topic="t" if was == "free" else "free")
        won, _ = one.fetcher.claimer.claim(candidates_of_it, me)
        assert won == []
    assert table.rows("status", "claimed_by")[1] == (0, None)


@pytest.mark.requires("index_by_age")
def test_rows_of_limited_topics_are_not_read_again_in_each_round(app, monkeypatch):
    limited(app, max_running=1)
    limited(app, "free")
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, i) for i in range(600)])
    with by_hand(app, 1) as one:
        for _ in range(5):  # a slow look ends before the newest row
            one.fetcher.run_once()
        marks: list[int] = []
        real = candidates.oldest_among

        def seen(*args: Any, **options: Any) -> Any:
            marks.append(options["mark"])
            return real(*args, **options)

        monkeypatch.setattr(candidates, "oldest_among", seen)
        (late,) = send(app, "late", topic="free")
        one.fetcher.run_once()
        assert late in {lane.row.msg_id for lane in one.shared.in_flight.lanes}
        assert marks
        assert min(marks) > 600


@pytest.mark.requires("looks_by_object")
def test_objects_of_limited_topics_are_not_read_again_in_each_round(app, monkeypatch):
    monkeypatch.setattr(candidates, "PAGE", 100)
    monkeypatch.setattr(passes, "WINDOW", 100)
    limited(app, max_running=1)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, f"m{i:03}") for i in range(900)])
    wanted: set[int] = set()
    pages: list[Any] = []
    real = candidates.heads

    def seen(*args: Any, **options: Any) -> Any:
        pages.append(options["after"])
        return real(*args, **options)

    monkeypatch.setattr(candidates, "heads", seen)
    monkeypatch.setattr(passes, "READ_AGAIN", 1000.0)  # however slow the machine is
    one = search.TableSearch(app.tables, None)
    one.those = Those(frozenset(["t"]), True)
    for busy, new in ((False, ("a", "z")), (True, ("a2", "z2"))):
        wanted |= set(send(app, *new, topic="free"))
        pages.clear()
        found: set[int] = set()
        with app.engine.connect() as conn:
            while not found >= wanted:
                found |= {c.msg_id for c in one.look(conn, Wanted(5, busy=busy)).candidates}
                assert len(pages) < 30
        assert found == wanted
    assert len(pages) <= 4  # of 10


def test_what_stands_behind_a_limited_message_does_not_keep_it_from_being_found(app):
    """Looks may offer the message behind it again and again, in vain."""
    limited(app, max_running=1)
    app.add_handler("free", lambda msg: None)
    (first,) = send(app, "a")
    (behind,) = send(app, "a", topic="free")
    with by_hand(app) as one:
        one.fetcher.finder.look(1, 0)
        one.fetcher.finder.lost([candidates.Candidate(behind, "a", 0, 0, 0, "free", 1)])
        assert [c.msg_id for c in one.fetcher.finder.look_limited("t", 1, 0).candidates] == [first]


def test_limited_messages_without_an_object_are_not_proposed_among_others(app):
    limited(app, max_running=1)
    limited(app, "free")
    waiting = set(send(app, *[None] * 30))
    (free,) = send(app, None, topic="free")
    one = search.TableSearch(app.tables, None)
    one.those = Those(frozenset(["t"]), True)
    found: set[int] = set()
    with app.engine.connect() as conn:
        for _ in range(3):
            found |= {c.msg_id for c in one.look(conn, Wanted(50)).candidates}
    assert found == {free}
    assert not found & waiting


class Stalled:
    """The clock of a machine on which the database answers once after ten minutes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        self.stalls = 600.0
        read = candidates.oldest_among

        def slowly(*given: Any, **named: Any) -> Any:
            found = read(*given, **named)
            if named["but"]:
                self.seconds, self.stalls = self.seconds + self.stalls, 0.0
            return found

        monkeypatch.setattr(candidates, "oldest_among", slowly)
        monkeypatch.setattr(search, "time", self)

    def monotonic(self) -> float:
        return self.seconds

    perf_counter = monotonic


def test_one_look_that_took_long_keeps_no_other_topic_waiting(app, table, monkeypatch):
    limited(app, max_running=1)
    limited(app, "other")
    (first,) = send(app, "a", topic="other")
    edit(app, first, status=2)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, i) for i in range(600)])
    clock = Stalled(monkeypatch)
    with by_hand(app, 8) as one:
        one.fetcher.run_once()
        edit(app, first, status=0)
        clock.seconds += 60
        look = one.fetcher.finder.look(5, 0)
        assert [found.msg_id for found in look.candidates] == [first]


def test_a_look_by_object_past_limited_ones_ends_when_it_took_long(sqlite_app, monkeypatch):
    limited(sqlite_app, max_running=1)
    with sqlite_app.engine.begin() as conn:
        sqlite_app.send_many(conn, "t", [(None, i) for i in range(600)])
    one = search.TableSearch(sqlite_app.tables, None)
    one.those = Those(frozenset(["t"]), True)
    running = candidates.Candidate(1, "x", 1, 0, 0, "free", 0)
    by_age = candidates.Among([running], 1, False)
    monkeypatch.setattr(candidates, "oldest_among", lambda *_, **__: by_age)
    clock = Stalled(monkeypatch)
    clock.stalls = 0.0
    steps, real = [], candidates.heads

    def slowly(*given: Any, **named: Any) -> Any:
        steps.append(named["after"])
        clock.seconds += 0.1
        return real(*given, **named)

    monkeypatch.setattr(candidates, "heads", slowly)
    with sqlite_app.engine.connect() as conn:
        one.look(conn, Wanted(1))
    assert len(steps) == 1


@pytest.mark.quick("sqlite-False|postgresql-True")
@pytest.mark.parametrize("transactional", [False, True])
def test_a_permit_is_held_until_the_outcome_is_committed(app, table, transactional):
    counts: list[int] = []

    @app.handler("t", max_running=1, transactional=transactional)
    def handle(msg: Message, ctx: Context) -> None:
        with app.engine.connect() as conn:
            counts.append(sum(limits.holders(conn, app.tables, "t").values()))

    if transactional and app.engine.dialect.name == "sqlite":
        pytest.skip("one writer at a time")
    send(app, *range(6))
    assert app.drain(threads=3).done == 6
    assert counts == [1] * 6


def test_a_limited_message_in_quarantine_runs_alone_with_a_permit(app, table):
    ran = limited(app, max_running=2)
    limited(app, "free")
    (last,) = send(app, "q")
    edit(app, last, status=-1, error_try_times=2, crash_times=1)
    send(app, *range(5), topic="free")
    assert app.drain(linger=0).done == 6
    assert ran == [last]


@pytest.mark.parametrize("limit", [{"max_running": 1}, {"rate": "1/h"}], ids=str)
def test_one_in_quarantine_without_a_permit_holds_up_no_other_message(app, table, limit):
    ran = limited(app, **limit)
    limited(app, "free")
    send(app, "first")
    with by_hand(app, 2) as one:
        assert claim_all(one) == 1
        (last,) = send(app, "q")
        edit(app, last, status=-1, error_try_times=2, crash_times=1)
        send(app, "a", topic="free")
        assert claim_all(one) == 2
        assert one.shared.quiesce.reason is None
        for _ in range(2):
            end_one(one)
        send(app, "b", topic="free")
        has_permit = "max_running" in limit
        one.fetcher.limit_poller.forget()
        assert claim_all(one) == 1
        assert table.statuses == [2, 1 if has_permit else -1, 2, 0 if has_permit else 1]
    assert ran == []


def test_the_heads_of_a_limited_topic_come_by_priority(app):
    ran = limited(app, max_running=1)
    low = send(app, "a", "b")
    high = send(app, "c", priority=5)
    assert app.drain(linger=0).done == 3
    assert ran == [*high, *low]


def test_failed_tries_and_rejected_messages_give_their_permits_back(app, table):
    @app.handler("t", max_running=1, wait=wait_none())
    def handle(msg: Message) -> None:
        raise (Reject("no") if msg.object_id == "r" else ValueError("x"))

    send(app, "r", "a", "b")
    assert app.drain(linger=0).failed == 3


# ---------------------------------------------------------------- rates


def test_so_many_start_as_there_are_tokens_and_the_rest_is_left(app, table):
    ran = limited(app, rate="1/h", burst=3)
    ids = send(app, *range(5))
    report = app.drain(linger=0)
    assert (report.done, report.left) == (3, 2)
    assert sorted(ran) == ids[:3]  # on several threads
    assert set(table.column("error_try_times")) == {0}


def test_tokens_are_shared_by_all_instances(app, make_app):
    other = make_app()
    for each in (app, other):
        limited(each, rate="1/h", burst=3)
    send(app, *range(5))
    with by_hand(app, 2) as one, by_hand(other, 8) as two:
        assert claim_all(one) == 2
        assert claim_all(two) == 1


def test_tokens_that_are_not_used_are_not_taken(app):
    limited(app, rate="1/h", burst=3)
    with by_hand(app, 8) as one:
        claim_all(one)
        send(app, *range(5))
        assert claim_all(one) == 3


def test_tokens_of_heads_that_others_have_claimed_are_not_taken(app, monkeypatch):
    real = claim.flag
    calls: list[int] = []

    def flag(conn, tables, some, *, me):
        calls.append(len(some))
        return real(conn, tables, some[:1] if len(calls) == 1 else some, me=me)

    monkeypatch.setattr(claim, "flag", flag)
    limited(app, rate="1/h", burst=3)
    send(app, *range(5))
    with by_hand(app, 8) as one:
        assert claim_all(one) == 3
    assert calls[0] == 3


def test_a_drain_waits_for_a_token_that_comes_within_its_linger(app):
    limited(app, rate="2/s", burst=1)
    send(app, "a", "b")
    assert app.drain(linger=2).done == 2


def test_a_drain_waits_for_a_token_that_comes_soon(app):
    limited(app, rate="20/s", burst=1)
    send(app, *range(4))
    begun = time.monotonic()
    assert app.drain(linger=2).done == 4
    assert time.monotonic() - begun >= 0.15


def test_each_try_takes_a_token(app, table):
    starts: list[int] = []

    @app.handler("t", rate="1/h", burst=2, wait=wait_none())
    def handle(msg: Message) -> None:
        starts.append(msg.msg_id)
        raise ValueError("x")

    send(app, "a", "b")
    app.drain(linger=0)
    assert len(starts) == 2
    assert sum(table.column("error_try_times")) == 2


# ---------------------------------------------------------------- what is recorded


def test_the_newest_declaration_counts_and_is_said(app, make_app, caplog):
    limited(app, max_running=2)
    other = make_app()
    limited(other, max_running=5)
    send(app, *range(9))
    with caplog.at_level(logging.INFO, logger="msgworker"), by_hand(app, 8) as one:
        assert recorded(app)["t"].limit == Limit(max_running=2)
        with by_hand(other, 8) as two:
            assert "limit changed from max_running=2" in caplog.text
            beat(one)
            assert "max_running=5 was declared by" in caplog.text
            assert recorded(app)["t"].limit == Limit(max_running=5)  # it does not change it back
            beat(one)
            beat(two)
            assert recorded(app)["t"].version == 1
            assert claim_all(one) == 5


def test_a_smaller_limit_counts_for_who_started_before(app, make_app, table):
    limited(app, max_running=4)
    other = make_app()
    limited(other, max_running=1)
    send(app, *range(9))
    with by_hand(app, 8) as one:
        assert claim_all(one) == 4
        with by_hand(other, 8):
            for left in (3, 2, 1, 0):
                end_one(one)
                held = claim_all(one)  # even before it has read it
                assert held == max(left, 1)


def test_an_instance_obeys_limits_that_its_code_does_not_declare(app, table, caplog):
    limited(app)
    record(app, "t", Limit(max_running=1))
    send(app, *range(4))
    with caplog.at_level(logging.INFO, logger="msgworker"), by_hand(app, 8) as one:
        assert claim_all(one) == 1
        beat(one)
    assert caplog.text.count("is limited to max_running=1 (declared by other)") == 1


def test_a_limit_that_was_removed_is_declared_again_by_who_has_it(app):
    limited(app, max_running=1)
    with by_hand(app, 8) as one:
        with app.engine.begin() as conn:
            assert limits.remove(conn, app.tables, "t")
        beat(one)
        assert recorded(app)["t"].limit == Limit(max_running=1)


def test_a_limit_of_another_table_is_another_one(app, make_app):
    limited(app, max_running=1)
    other = created(make_app(table=MessageTable("second_message")))
    limited(other, max_running=1)
    send(app, "a")
    send(other, "a")
    with by_hand(app, 8) as one, by_hand(other, 8) as two:
        assert (claim_all(one), claim_all(two)) == (1, 1)


def test_a_limit_in_one_database_is_another_one_in_the_next(tmp_path):
    apps = [App(f"sqlite:///{tmp_path}/{name}.db") for name in "ab"]
    try:
        for app, most in zip(apps, (1, 2), strict=True):
            app.create_schema()
            limited(app, max_running=most, rate="1/h", burst=3)
            send(app, *range(5))
        with by_hand(apps[0], 8) as one, by_hand(apps[1], 8) as two:
            assert (claim_all(one), claim_all(two)) == (1, 2)
            end_one(one)
            assert (claim_all(one), claim_all(two)) == (1, 2)
        assert [app.ops.limits()[0].starts for app in apps] == [1, 1]
    finally:
        for app in apps:
            app.engine.dispose()


def test_a_worker_with_limits_needs_their_table(app, make_app):
    with app.engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE msgworker_limit"))
    plain, with_limits = make_app(), make_app()
    limited(plain, "other")
    assert plain.drain(linger=0).done == 0
    limited(with_limits, max_running=1)
    with pytest.raises(SchemaError, match=r"msgworker_limit is missing.*init-db"):
        with_limits.drain(linger=0)


@pytest.mark.requires("row_locks")
def test_a_record_that_is_locked_holds_up_neither_us_nor_other_topics(app, table):
    limited(app, max_running=1)
    limited(app, "free")
    send(app, "a")
    send(app, "b", topic="free")
    with by_hand(app, 8) as one:
        with app.engine.begin() as conn:
            assert limits.lock(conn, app.tables, "t") is not None
            assert claim_all(one) == 1
            assert table.statuses == [0, 1]
        assert claim_all(one) == 2


def test_a_limit_is_declared_over_what_was_seen_and_nothing_else(app):
    """Else two that start at once would both believe that theirs counts."""
    t = app.tables
    record(app, "t", Limit(max_running=1))
    seen = recorded(app)["t"]
    with app.engine.begin() as conn:
        assert limits.declare(conn, t, "t", Limit(max_running=2), seen, me="first")
        assert not limits.declare(conn, t, "t", Limit(max_running=3), seen, me="second")
    assert recorded(app) == {"t": Recorded(Limit(max_running=2), seen.version + 1, "first")}


def test_permits_are_counted_by_the_topic_as_python_compares_it(tmp_path):
    """Where the database takes topics for equal that are not; a topic of NULL is `default`."""
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", table=MessageTable("jobs"))
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE jobs (msg_id INTEGER PRIMARY KEY, object_id VARCHAR(190), "
            "topic VARCHAR(100) COLLATE NOCASE, status SMALLINT DEFAULT 0, "
            "error_try_times SMALLINT DEFAULT 0, claimed_by VARCHAR(64))"
        )
    app.create_schema()
    rows = [("t", "one"), ("T", "two"), (None, "three"), ("default", "four")]
    with app.engine.begin() as conn:
        for n, (topic, owner) in enumerate(rows):
            values = {"n": n, "topic": topic, "owner": owner}
            text = "INSERT INTO jobs (object_id, topic, status, claimed_by) VALUES "
            conn.execute(sa.text(f"{text} (:n, :topic, 1, :owner)"), values)
        assert limits.holders(conn, app.tables, "t") == {"one": 1}
        assert limits.holders(conn, app.tables, "default") == {"three": 1, "four": 1}
        assert limits.all_holders(conn, app.tables) == {
            "t": {"one": 1},
            "T": {"two": 1},
            "default": {"three": 1, "four": 1},
        }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_running": 0}, "max_running of handler .* from 1 to 10000"),
        ({"rate": "fast"}, "rate of handler .*20/s"),
        ({"burst": 3}, "burst=... is for rate"),
        ({"max_running": 2, "batch": 5}, "batch=.*one by one"),
        ({"rate": "2/s", "transactional": True, "group": 5}, "group=.*one by one"),
    ],
    ids=str,
)
def test_limits_that_mean_nothing_are_refused(sqlite_app, options, says):
    with pytest.raises(HandlerError, match=says):
        sqlite_app.add_handler("t", lambda msg: None, **options)


def test_a_handler_of_every_topic_has_no_limits(sqlite_app):
    with pytest.raises(HandlerError, match="name it"):
        sqlite_app.add_handler(None, lambda msg: None, max_running=1)
