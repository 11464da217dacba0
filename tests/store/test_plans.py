"""The indexes that statements use."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.db.database import DATABASES
from msgworker.message import Outcome, Settlement
from msgworker.schema import apply
from msgworker.store import (
    candidates,
    claim,
    controls,
    done,
    jobs,
    limits,
    ranked,
    recover,
    settle,
    slices,
)
from msgworker.store.candidates import Candidate
from msgworker.store.done import FlagMissing
from msgworker.store.ranked import due_in
from msgworker.store.rows import Row
from msgworker.store.settle import OutOfDate, Share, settle_batch
from tests.support.apps import created
from tests.support.flags import ME
from tests.support.plans import plan_of
from tests.support.rows import Table, send
from tests.support.store import Store

FINISHED, WAITING, OBJECTS = 10_000, 2_500, 250


class Statistics(enum.StrEnum):
    """What the planner knows of the waiting messages."""

    NEVER = "never analyzed"
    NONE = "analyzed while none waited"
    ONE = "analyzed while one waited"
    ALL = "analyzed while all waited"


@pytest.fixture(params=Statistics, ids=str)
def large(request: pytest.FixtureRequest, app: App) -> Store:
    return filled(app, request.param)


def filled(app: App, known: Statistics = Statistics.ALL) -> Store:
    """10,000 finished rows and 2,500 waiting ones of 250 objects."""
    store = Store(app)
    with app.engine.begin() as conn:
        name, table = app.engine.dialect.name, store.t.message.name
        if name == "postgresql" and not store.t.database.partitioned:
            conn.exec_driver_sql(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        if _is_mysql(app):
            conn.exec_driver_sql(f"ALTER TABLE {table} STATS_AUTO_RECALC = 0")
    with app.engine.begin() as conn:
        pairs = [({"n": i}, f"o{i % OBJECTS}") for i in range(FINISHED)]
        app.send_many(conn, "t", pairs)
        conn.execute(sa.update(store.t.message).values(status=2, finished_at=datetime.now(UTC)))
    if known is Statistics.ONE:
        send(app, "o1")
    if known in (Statistics.NONE, Statistics.ONE):
        _analyze(app, store)
    with app.engine.begin() as conn:
        with app.job("some", conn=conn) as job:
            app.send_many(conn, "t", pairs[:400], job=job)
        c = store.t.cols()
        of_it = (c.status == 2, c.msg_id < FINISHED // 4)
        conn.execute(sa.update(store.t.message).where(*of_it).values(job_id=job.job_id))
        app.send_many(conn, "t", pairs[400 : WAITING - 200])
        app.send_many(conn, "t", [(None, None)] * 100)
        app.send_many(conn, "t", [(None, f"w{i}") for i in range(50)], delay=3600)
        app.send_many(conn, "t", [(None, f"u{i}") for i in range(10)], priority=5)
        app.send_many(
            conn, "t", [(None, f"d{i}") for i in range(50)], at=datetime(2001, 1, 1, tzinfo=UTC)
        )
    if known is Statistics.ALL:
        _analyze(app, store)
    return store


def _analyze(app: App, store: Store) -> None:
    words = "ANALYZE TABLE" if _is_mysql(app) else "ANALYZE"
    if app.engine.dialect.name == "postgresql":
        words = "VACUUM ANALYZE"
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql(f"{words} {store.t.message.name}")


def _is_mysql(app: App) -> bool:
    return app.engine.dialect.name in ("mysql", "mariadb")


class Recorder:
    """Every statement on the message table that an act sends, with its parameters."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sent: list[tuple[str, Any]] = []

    def __call__(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def note(conn: Any, _: Any, text: str, parameters: Any, __: Any, many: bool) -> None:
            if self.store.t.message.name in text:
                self.sent.append((text, parameters[0] if many else parameters))

        engine = self.store.app.engine
        with engine.connect() as conn:
            sa.event.listen(conn, "before_cursor_execute", note)
            try:
                return act(conn, self.store.t, *args, **options)
            except (FlagMissing, OutOfDate, sa.exc.IntegrityError):  # it has been sent
                return None
            finally:
                conn.rollback()


def _acts(store: Store) -> Iterator[tuple[str, tuple[str, ...], Callable[[Recorder], Any]]]:
    """Name, indexes of which one must be used, the act."""
    open_ids = [i for i, s in store.table.rows("msg_id", "status") if s == 0]
    seen = store.seen(*open_ids[:100])
    rows = [Row(c.msg_id, c.object_id, "t", None, 0, 0, 0, None, None) for c in seen]
    moves = [Settlement(i, next_id=i + OBJECTS) for i in open_ids[:50]]
    key, obj, oldest, due, guard = "primary", "object", "oldest", "due", "guard"
    urgency = "urgent"
    if store.t.database.oldest_index:
        yield "oldest", (oldest,), lambda r: r(candidates.oldest, mark=0, limit=100)
        mine = {"mark": 0, "limit": 100, "share": (1, 2)}
        yield "oldest of a share", (oldest,), lambda r: r(candidates.oldest, **mine)
    yield "heads from start", (obj,), lambda r: r(candidates.heads, after=None, limit=100)
    yield "heads", (obj,), lambda r: r(candidates.heads, after="o250", limit=100)
    yield "due", (due,), lambda r: r(candidates.due_after, since=None, limit=100)
    ranks = {"limit": 100, "after": (-1, open_ids[0])}
    yield "by priority", (urgency,), lambda r: r(ranked.ranked, limit=100)
    yield "by priority, on", (urgency,), lambda r: r(ranked.ranked, **ranks)
    both = {"since": None, "limit": 100, "most": 100}
    yield "due and by priority", (urgency,), lambda r: r(ranked.due_and_ranked, **both)
    place = slices.Place(1)
    yield "of a job", ("job",), lambda r: r(slices.heads_of_job, place, rows=50)
    yield "jobs that have ended", ("job",), lambda r: r(jobs.ended)
    waits = {"linger": 5.0, "retry_linger": 300.0, "topics": ["t", "u"], "paused": ["u"]}
    yield "coming", (due, obj, guard), lambda r: r(due_in, **waits)
    alone = {"after": 0, "limit": 100}
    yield "loose", (obj, oldest), lambda r: r(candidates.without_object, **alone)
    alone |= {"share": (1, 2)}
    yield "loose, of a share", (obj, oldest), lambda r: r(candidates.without_object, **alone)
    yield "flag", (key,), lambda r: r(claim.flag, seen, me=ME)
    yield "flag one", (key,), lambda r: r(claim.flag, seen[:1], me=ME)
    yield "runs", (obj,), lambda r: r(claim.read_runs, rows, limit=20)
    yield "run of one", (obj,), lambda r: r(claim.read_runs, rows[:1], limit=20)
    yield "settle one", (key,), lambda r: r(settle.settle_one, moves[0], me=ME)
    yield "settle", (key,), lambda r: r(settle.settle, moves, me=ME)
    yield "settle in steps", (key,), lambda r: r(settle.settle, moves, me=ME, in_steps=True)
    failed = [s._replace(outcome=Outcome.FAILED, next_id=None, error="no") for s in moves[:5]]
    yield "settle failures", (key,), lambda r: r(settle.settle, failed, me=ME)
    yield "finish", (key,), lambda r: r(done.finish, open_ids[:20], ME, None)
    nexts = {"mw_ids": open_ids[:20], "mw_me": ME}
    yield "advance", (key,), lambda r: r(_advance, nexts)
    shares = [Share(s.msg_id, (), s.next_id) for s in moves]
    yield "settle a batch", (key,), lambda r: r(settle_batch, shares, me=ME, tries=0)
    change = {"dead_id": "gone", "text": "died"}
    yield "recover", (key,), lambda r: r(recover.recover, open_ids[:20], **change)
    yield "release", (key,), lambda r: r(recover.release, open_ids[:20], me=ME)
    ended = {"seen_tries": 0, "text": "stale"}
    yield "recover foreign", (key,), lambda r: r(recover.recover_foreign, open_ids[:20], **ended)
    yield "died", (key,), lambda r: r(recover.died, open_ids[:20])
    yield "foreign", (guard, obj), lambda r: r(recover.foreign)
    yield "holders", (guard, obj), lambda r: r(limits.all_holders)
    yield "running ones", (key,), lambda r: r(controls.running, open_ids[:20])
    yield "still mine", (key, guard), lambda r: r(done.still_mine, open_ids[:20], me=ME)
    yield "flagged by", (guard, obj), lambda r: r(recover.flagged_by, ME)
    yield "owners", (guard, obj), lambda r: r(recover.owners)


SMALL = ("guard", "urgent")
"""Indexes that may be read as a whole: of running rows, and those that are read by rank."""


@pytest.mark.quick("never.*sqlite|none waited.*(postgresql|mariadb)")
def test_hot_statements_use_the_claim_indexes(large):
    assert misread(large) == []


@pytest.mark.quick("sqlite|postgresql")
def test_open_rows_that_are_no_messages_are_in_no_plan(make_app):
    app = created(make_app(table=MessageTable(where={"tenant": 7, "deleted_at": None})))
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, f"o{i % OBJECTS}") for i in range(FINISHED)])
        conn.execute(sa.update(app.tables.message).values(tenant=8))
    assert misread(filled(app)) == []


def _advance(conn: Any, t: Any, params: dict[str, Any]) -> Any:
    return conn.execute(done.advance(t), params)


@pytest.mark.long
def test_hot_statements_use_the_indexes_of_partitions(postgresql):
    """Four indexes are looked into for a message only where a table is larger."""
    with postgresql.engine().begin() as conn:
        conn.exec_driver_sql(apply.ddl(MessageTable(), "postgresql", 4))
        conn.exec_driver_sql(
            "INSERT INTO msgworker_message (object_id, topic, status, finished_at) "
            f"SELECT 'o' || i %% {OBJECTS}, 't', 2, now() FROM generate_series(1, 80000) i"
        )
    app = App(postgresql.url)
    try:
        assert misread(filled(app)) == []
    finally:
        app.engine.dispose()


def misread(large: Store) -> list[str]:
    """The statements that use none of their indexes."""
    wrong: list[str] = []
    tuned = large.t.database.tuned
    for name, indexes, act in _acts(large):
        recorder = Recorder(large)
        act(recorder)
        assert recorder.sent, name
        with large.app.engine.connect() as conn:
            if tuned:
                conn.exec_driver_sql(tuned[0])
            steps = [s for text, p in recorder.sent for s in plan_of(conn, text, p)]
            conn.rollback()
        if any(how == "scan" for how, _ in steps):
            wrong.append(f"{name}: reads the whole table: {steps}")
        if any(how == "whole" and not index.endswith(SMALL) for how, index in steps):
            wrong.append(f"{name}: reads a whole index: {steps}")
        if not any(index.endswith(suffix) for _, index in steps for suffix in indexes):
            wrong.append(f"{name}: uses none of {indexes}: {steps}")
    return wrong


def test_flagging_reads_its_candidates_by_key_although_statistics_say_nothing_waits(postgresql):
    """Statistics of a quiet hour, then a burst: an index of open rows looks empty to the planner,
    and is not."""
    app = App(postgresql.url)
    try:
        app.create_schema()
        table = Table(app)
        send(app, *(f"o{i}" for i in range(3000)))
        table.edit(status=2)
        with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("VACUUM ANALYZE msgworker_message")
        ids = send(app, *(f"p{i}" for i in range(500)))[:100]
        candidates = [Candidate(i, None, 0, 0, 0, "t", 1, None) for i in ids]
        t = app.tables
        with app.engine.connect() as conn:
            conn.exec_driver_sql(DATABASES["postgresql"].tuned[0])  # type: ignore[index]
            sent: list[Any] = []
            sa.event.listen(conn, "before_cursor_execute", lambda *a: sent.append(a[2:4]))
            assert len(claim.flag(conn, t, candidates, me="me")) == 100
            statement, parameters = sent[0]
            plan = conn.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars().all()
            conn.rollback()
        (read,) = [line for line in plan if line.split("  (")[0].endswith("msgworker_message m")]
        assert "msgworker_message_pkey" in read, "\n".join(plan)
    finally:
        app.engine.dispose()
