"""Jobs: messages that belong together, and the message that is sent when all of them have ended.

No count is kept: the messages are the count, and the index `job` finds those of one that are
unfinished (table/tables.py). A job has completed when it is sealed and none of them is; who finds
that first writes `completed_at`, under a lock of the row, and sends the message of the job in the
same transaction. So nothing that a crash interrupts has to be made good: the next look finds it.

Who sends into an open job holds a shared lock of its row until the COMMIT, and the seal changes
the row, so it waits for them: a sealed job gets messages from handlers of its own messages only,
which are unfinished until the transaction that inserts what they send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.db.clock import UtcDateTime, now
from msgworker.db.connections import ignoring
from msgworker.db.database import Trouble
from msgworker.message import DEFAULT_TOPIC, State, Status
from msgworker.payload import encode
from msgworker.store.bounded import SCAN, Capped, discarded, in_state, object_of
from msgworker.store.rows import MIN_ID, among_ids
from msgworker.store.send import insert_one, row_values
from msgworker.table.build import JOB_TABLE, MAX_ACTOR, MAX_REASON
from msgworker.table.columns import JOB, Cols
from msgworker.table.tables import ONE, ZERO, Tables, by_job, job_status, lit, text_lit

WAIT = "wait"
PART = 1_000_000
"""The most messages that one statement counts when a job completes."""
LOOKED_AT = 200
"""The most jobs of one look for those that have ended."""
DEAD_LOOKED_AT = 10_000
"""The most failed messages of a job of which is asked whether they are dead, and by whom."""
_BIG = sa.BigInteger()


class OpenJob(NamedTuple):
    """What a sender asks of a job."""

    name: str
    sealed: bool


@dataclass(frozen=True, slots=True)
class Completed:
    """A job that has completed. report_id: the message that was sent, None if it has none, or was
    cancelled."""

    job_id: int
    name: str
    done: int
    dead: int
    topic: str | None
    report_id: Any = None


def is_there(t: Tables) -> bool:
    """Whether the database has what jobs need: their table, the column and its index."""
    return JOB_TABLE.is_there(t) and by_job(t)


# --- Open, send into, seal.


def open_job(conn: Connection, t: Tables, **columns: str | None) -> int:
    """Insert a job; return its id. In the caller's transaction. payload: JSON."""
    insert = sa.insert(JOB_TABLE.of(t)).values(table_name=t.label, opened_at=now(), **columns)
    made = conn.execute(insert).inserted_primary_key
    assert made is not None
    return int(made[0])


def lock_open(conn: Connection, t: Tables, job_id: int) -> OpenJob | None:
    """A job, whose row is locked, shared, until the end of the transaction; None if there is no
    such one. The seal waits for that; where rows have no such lock (Oracle), senders wait for each
    other, too. SQLite has no locks of rows: an UPDATE that changes nothing takes its write lock."""

    def touch() -> sa.Update:
        job = JOB_TABLE.of(t)
        return sa.update(job).where(*_this(t)).values(name=job.c.name)

    def build() -> sa.Select[Any]:
        c = JOB_TABLE.of(t).c
        return sa.select(c.name, c.sealed_at).where(*_this(t)).with_for_update(read=True)

    this = {"mw_job": job_id}
    if not t.database.row_locks:
        conn.execute(t.built("job_touched", touch), this)
    row = conn.execute(t.built("job_locked", build), this).first()
    return None if row is None else OpenJob(row[0], row[1] is not None)


def seal(conn: Connection, t: Tables, job_id: int) -> bool:
    """Close a job to further senders; False if it was sealed, or is not there. Waits for those that
    have sent into it and not committed."""
    return _changed(conn, t, job_id, JOB_TABLE.of(t).c.sealed_at.is_(None), sealed_at=now())


def cancel(conn: Connection, t: Tables, job_id: int) -> bool:
    """Seal a job, and send no message when it has ended; False if that is so, or it has
    completed."""
    c = JOB_TABLE.of(t).c
    goes_on = sa.and_(c.completed_at.is_(None), c.cancelled_at.is_(None))
    sealed = sa.func.coalesce(c.sealed_at, now())
    return _changed(conn, t, job_id, goes_on, cancelled_at=now(), sealed_at=sealed)


def pause(conn: Connection, t: Tables, job_id: int, by: str, why: str | None) -> bool:
    """Let no message of a job start; False if that is so, or it has completed."""
    c = JOB_TABLE.of(t).c
    goes_on = sa.and_(c.completed_at.is_(None), c.paused_at.is_(None))
    said = {"paused_by": t.own_text(by, MAX_ACTOR), "paused_reason": t.own_text(why, MAX_REASON)}
    return _changed(conn, t, job_id, goes_on, paused_at=now(), **said)


def resume(conn: Connection, t: Tables, job_id: int) -> bool:
    """Let them start again; False if it was not paused."""
    values = dict.fromkeys(("paused_at", "paused_by", "paused_reason"))
    return _changed(conn, t, job_id, JOB_TABLE.of(t).c.paused_at.is_not(None), **values)


def _changed(
    conn: Connection, t: Tables, job_id: int, which: ColumnElement[bool], **values: Any
) -> bool:
    """Change the row of a job; whether it was one of `which`."""
    change = sa.update(JOB_TABLE.of(t)).where(*_this(t), which).values(values)
    return bool(conn.execute(change, {"mw_job": job_id}).rowcount)


def job_of(conn: Connection, t: Tables, msg_id: Any) -> int | None:
    """The job of a message; None if it belongs to none."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        same = c.msg_id == bindparam("mw_id", type_=c.msg_id.type)
        return sa.select(c["job_id"]).where(t.within(c, same))

    if not t.has("job_id"):
        return None
    found = conn.execute(t.built("job_of", build), {"mw_id": msg_id}).scalar()
    return None if found is None else int(found)


def forget(conn: Connection, t: Tables, *, before: datetime, after: int) -> int | None:
    """Delete the jobs that have completed before this instant and have no message left, among the
    next LOOKED_AT behind `after`; returns where to go on, None at the end. In the caller's
    transaction."""
    job = JOB_TABLE.of(t)
    c = job.c
    old = (c.table_name == t.label, c.completed_at < sa.literal(before, UtcDateTime()))
    page = sa.select(c.job_id).where(*old, c.job_id > after).order_by(c.job_id)
    ids = [int(one) for one in conn.scalars(page.limit(LOOKED_AT))]
    source = t.message.alias("m")
    of_it = t.hinted(sa.select(ONE), source, JOB).where(_is_of(t, t.cols(source), c.job_id))
    empty = sa.not_(sa.exists(t.row_by_row(of_it)))
    among = c.job_id.in_(bindparam("mw_ids", expanding=True))
    if ids:
        conn.execute(sa.delete(job).where(*old, among, empty), {"mw_ids": ids})
    return ids[-1] if len(ids) == LOOKED_AT else None


# --- Complete.


def ended(conn: Connection, t: Tables, *, after: int = 0) -> tuple[list[int], int | None]:
    """The sealed jobs of which nothing is unfinished, that have not completed, among the next
    LOOKED_AT behind `after`; and where to go on, None at the end."""

    def build() -> sa.Select[Any]:
        c = JOB_TABLE.of(t).c
        mark = bindparam("mw_after", type_=_BIG)
        found = sa.select(c.job_id, sa.case((_unfinished(t, c), ZERO), else_=ONE))
        found = found.where(c.table_name == t.label, *_is_to_complete(c), c.job_id > mark)
        return found.order_by(c.job_id).limit(lit(LOOKED_AT))

    rows = conn.execute(t.built("jobs_ended", build), {"mw_after": after}).all()
    more = int(rows[-1][0]) if len(rows) == LOOKED_AT else None
    return [int(job_id) for job_id, is_over in rows if is_over], more


def complete(
    conn: Connection,
    t: Tables,
    job_id: int,
    *,
    had: dict[str, int] | None = None,
    waits: bool = False,
) -> Completed | None:
    """Complete a job and send its message, if nothing of it is unfinished and no other has done so.
    In the caller's transaction. had: what `ended_of` found of it before, so that the lock is short;
    nothing is done if other messages are dead by now: one that was rerun meanwhile may be in none
    of the counts, or in both. waits: for another one that may be doing so now; else there is
    nothing to do. Its row is locked first, in a statement of its own: what then asks for unfinished
    messages sees all that was committed before the seal."""

    def lock() -> sa.Select[Any]:
        c = JOB_TABLE.of(t).c
        columns = (c.name, c.on_complete, c.object_id, c.payload, c.cancelled_at)
        query = sa.select(*columns).where(*_this(t), *_is_to_complete(c))
        return query.with_for_update(skip_locked=t.database.skip_locked and not waits)

    def build() -> sa.Update:
        job = JOB_TABLE.of(t)
        ended = (*_is_to_complete(job.c), sa.not_(_unfinished(t, job.c)))
        return sa.update(job).where(*_this(t), *ended).values(completed_at=now())

    this = {"mw_job": job_id}
    row = conn.execute(t.built(("job_to_complete", waits), lock), this).first()
    if row is None:
        return None

    def within() -> AbstractContextManager[Connection]:
        return nullcontext(conn)

    had = had or ended_of(within, t, job_id)
    if had is None or _count(within, t, job_id, Status.FAILED) != had["dead"]:
        return None
    if not conn.execute(t.built("job_complete", build), this).rowcount:
        return None
    done, dead = had["done"], had["dead"]
    sends = row.on_complete is not None and row.cancelled_at is None
    over = Completed(job_id, row.name, done, dead, row.on_complete if sends else None)
    report_id = _report(conn, t, over, row.object_id, row.payload) if sends else None
    update = sa.update(JOB_TABLE.of(t)).where(*_this(t))
    conn.execute(update.values(done=done, dead=dead, report_id=report_id), this)
    return replace(over, report_id=report_id)


def _report(
    conn: Connection, t: Tables, over: Completed, object_id: str | None, payload: str | None
) -> Any:
    """Send the message of a job; without a payload of its own it says how the job has ended."""
    if payload is None and t.has("payload"):
        says = {"job": over.job_id, "name": over.name, "done": over.done, "dead": over.dead}
        payload = encode(says)
    held = object_of(t, object_id)
    topic = over.topic or DEFAULT_TOPIC
    return insert_one(conn, t, row_values(t, topic=topic, object_id=held, payload=payload))


def ended_of(
    statement: Callable[[], AbstractContextManager[Connection]], t: Tables, job_id: int
) -> dict[str, int] | None:
    """How many messages of a job are done, and dead; None if some are unfinished again, or it has
    completed. statement: gives a connection for each."""

    def build() -> sa.Select[Any]:
        c = JOB_TABLE.of(t).c
        over = (*_this(t), *_is_to_complete(c), sa.not_(_unfinished(t, c)))
        return sa.select(c.job_id).where(*over)

    # In this order: what is rerun once the dead are counted changes their number.
    dead = _count(statement, t, job_id, Status.FAILED)
    with statement() as conn:
        if conn.execute(t.built("job_is_over", build), {"mw_job": job_id}).first() is None:
            return None
    return {"done": _count(statement, t, job_id, Status.DONE), "dead": dead}


def _count(
    statement: Callable[[], AbstractContextManager[Connection]],
    t: Tables,
    job_id: int,
    status: Status,
) -> int:
    """The messages of a job that are done, or dead: however many there are, no statement counts
    more than PART."""

    def build() -> Any:
        source = t.message.alias()
        c = t.cols(source)
        query = of_status(t, bindparam("mw_job", type_=_BIG), status, source=source)
        query = query.with_only_columns(c.msg_id.label("i"))
        if status is Status.FAILED:
            query = query.where(sa.not_(t.tries_left(c)))
        query = query.where(c.msg_id > bindparam("mw_after", type_=_BIG)).order_by(c.msg_id)
        part = query.limit(lit(PART)).subquery()
        return sa.select(sa.func.count(), sa.func.max(part.c.i))

    ask = t.built(("job_part", status), build)
    found, after, count = 0, MIN_ID, PART
    while count == PART:
        with statement() as conn:
            count, last = conn.execute(ask, {"mw_job": job_id, "mw_after": after}).one()
        found += count
        after = last if count else after
    return found


def counts(
    conn: Connection, t: Tables, job_id: int, *, most: int, done: bool = True
) -> dict[str, Capped]:
    """How many messages of a job wait, run, are done and dead, up to `most` of each; "retrying":
    how many of those that wait have failed; "again": those and edited ones (`Tables.untried`).
    done: False = done ones are not counted. It reads as many entries of the index, and of failed
    and dead ones SCAN at least."""
    scan = max(most, SCAN)

    def build() -> sa.Select[Any]:
        job = bindparam("mw_job", type_=_BIG)
        statuses = (Status.NEW, Status.PROCESSING, *([Status.DONE] if done else []))
        some = (of_status(t, job, status).limit(lit(most)).subquery() for status in statuses)
        counted = [sa.select(sa.func.count()).select_from(one).scalar_subquery() for one in some]
        source = t.message.alias()
        c = t.cols(source)
        again = sa.case((t.tries_left(c), ONE), else_=ZERO)
        tried = sa.case((t.untried(c), ZERO), else_=again)
        failed = of_status(t, job, Status.FAILED, source=source)
        failed = failed.with_only_columns(again.label("a"), tried.label("r")).limit(lit(scan))
        f = failed.subquery("f").c
        sums = (sa.func.sum(f.a).label("a"), sa.func.sum(f.r).label("r"))
        all_three = sa.select(sa.func.count().label("n"), *sums).subquery("g").c
        return sa.select(*all_three, *counted)

    row = conn.execute(t.built(("job_counts", most, done), build), {"mw_job": job_id}).one()
    failed, again, retrying, new, running, ended = (*(int(n or 0) for n in row), *[0] * 4)[:6]
    cut, waiting, dead = failed == scan, new + again, failed - again
    counted = {"waiting": waiting, "running": running, "done": ended, "dead": dead}
    counted |= {"retrying": retrying, "again": again}
    part_known = ("waiting", "dead", "retrying", "again")
    return {
        name: Capped(min(most, count), count >= most or (cut and name in part_known))
        for name, count in counted.items()
    }


def given_up(conn: Connection, t: Tables, job_id: int) -> Capped:
    """How many messages of a job are dead and not discarded, among its first
    DEAD_LOOKED_AT failed ones."""
    source = t.message.alias()
    c = t.cols(source)
    spent = sa.and_(sa.not_(t.tries_left(c)), sa.not_(discarded(t, c)))
    counted = sa.case((spent, ONE), else_=ZERO).label("d")
    failed = of_status(t, sa.literal(job_id, _BIG), Status.FAILED, source=source)
    first = failed.with_only_columns(counted).limit(DEAD_LOOKED_AT).subquery("d")
    looked, found = conn.execute(sa.select(sa.func.count(), sa.func.sum(first.c.d))).one()
    return Capped(int(found or 0), looked == DEAD_LOOKED_AT)


def awaited(conn: Connection, t: Tables, job_id: int) -> Capped:
    """How many of these an open job waits for (on_dead="wait"), and others do not."""
    waits = sa.select(ONE).where(*_this(t), *_waits(JOB_TABLE.of(t).c))
    if conn.execute(waits, {"mw_job": job_id}).first() is None:
        return Capped(0)
    return given_up(conn, t, job_id)


def _waits(c: Any) -> tuple[ColumnElement[bool], ...]:
    """It is open, and waits for its dead messages."""
    return c.completed_at.is_(None), c.cancelled_at.is_(None), c.on_dead == text_lit(WAIT)


def of_status(
    t: Tables, job: ColumnElement[int], status: Status, *, source: sa.FromClause | None = None
) -> sa.Select[Any]:
    source = t.message.alias() if source is None else source
    c = t.cols(source)
    query = t.hinted(sa.select(ONE.label("one")), source, JOB)
    return query.where(_is_of(t, c, job), job_status(t, c) == lit(status))


def _is_of(t: Tables, c: Cols, job: ColumnElement[int]) -> ColumnElement[bool]:
    return t.within(c, c["job_id"] == job)


def _unfinished(t: Tables, job: Any) -> ColumnElement[bool]:
    """A message of a job is unfinished, or is dead and the job waits for its operator."""
    found = []
    for number, status in enumerate((Status.NEW, Status.PROCESSING, Status.FAILED)):
        source = t.message.alias(f"j{number}")
        c = t.cols(source)
        # In a form that no other partial index fits.
        is_at = t.stands_at(c, status)
        if not t.database.partial_indexes:
            is_at = job_status(t, c) == lit(status)
        query = t.hinted(sa.select(ONE), source, JOB).where(_is_of(t, c, job.job_id), is_at)
        if status is Status.FAILED:
            waits = sa.and_(job.on_dead == text_lit(WAIT), job.cancelled_at.is_(None))
            given_up = sa.and_(waits, sa.not_(discarded(t, c)))
            query = query.where(sa.or_(t.tries_left(c), given_up))
        found.append(sa.exists(t.row_by_row(query)))
    return sa.or_(*found)


def readable(conn: Connection, t: Tables) -> Tables:
    """The same tables; without that of jobs if this login may not read it. `conn` commits each
    statement."""
    if not is_there(t):
        return t
    with ignoring(Trouble.REFUSED):
        conn.execute(sa.select(JOB_TABLE.of(t).c.job_id).limit(ONE)).all()
        return t
    return replace(t, missing=t.missing | {JOB_TABLE.name})


def holds_up(t: Tables, c: Cols) -> list[ColumnElement[bool] | None]:
    """Whether a dead message holds up its object, which waits for it, and whether an open job does;
    None where no message can."""
    dead = in_state(t, c, State.DEAD)
    by_object: ColumnElement[bool] | None = None
    by_job: ColumnElement[bool] | None = None
    if t.spec.on_dead == "block":
        by_object = sa.and_(dead, t.unfinished(c), c.object_id.is_not(None))
    if is_there(t):
        job = JOB_TABLE.of(t).alias("hj").c
        its = sa.select(ONE).where(job.job_id == c["job_id"], job.table_name == t.label)
        its = its.where(*_waits(job))
        by_job = sa.and_(dead, c["job_id"].is_not(None), sa.not_(discarded(t, c)), sa.exists(its))
    return [by_object, by_job]


def held_up(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, list[str]]:
    """Those of the messages that are dead and hold something up: msg_id -> "its object" and "its
    job 5"."""
    t = readable(conn, t) if ids else t
    if not ids or (t.spec.on_dead != "block" and not is_there(t)):
        return {}
    c = t.cols()
    flags = [ZERO if one is None else sa.case((one, ONE), else_=ZERO) for one in holds_up(t, c)]
    job = sa.null() if c.job_id is None else c.job_id
    query = sa.select(c.msg_id, job, *flags).where(t.among(c.msg_id))
    found: dict[int, list[str]] = {}
    for msg_id, of_job, *does in among_ids(conn, t, query, ids):
        named = zip(("its object", f"its job {of_job}"), does, strict=True)
        if any(does):
            found[int(msg_id)] = [what for what, one in named if one]
    return found


def _is_to_complete(c: Any) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return c.sealed_at.is_not(None), c.completed_at.is_(None)


def _this(t: Tables) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    c = JOB_TABLE.of(t).c
    return c.job_id == bindparam("mw_job", type_=_BIG), c.table_name == t.label
