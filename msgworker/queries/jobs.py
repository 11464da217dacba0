"""Jobs as operators see them: how far each is, what holds it, and when it may be over."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.counted import many, span
from msgworker.db.clock import real_instant, seconds_since
from msgworker.payload import shown
from msgworker.queries import remaining
from msgworker.queries.explain import Waits, World
from msgworker.queries.remaining import OfJob
from msgworker.store import controls, jobs
from msgworker.store.bounded import Capped, Found
from msgworker.table.build import JOB_TABLE
from msgworker.table.tables import Tables

COUNTED = 1_000_000
"""The most messages of each state that are counted of one job."""
OF_A_LIST = (100_000, 10_000)
"""The same of each job of a list: while fewer than LISTED were counted in it, and then."""
LISTED = 500_000
LOOKED_AT = 400
"""The oldest and newest waiting messages of one job of which is asked what they wait for."""
LOOKED_AT_OF_A_LIST = 20
"""The same of each job of a list of which none runs."""
_INSTANTS = ("opened_at", "sealed_at", "cancelled_at", "completed_at", "paused_at")
_PAUSED = ("paused_by", "paused_reason")
_TEXTS = ("name", "opened_by", "on_complete", "object_id", "on_dead", "payload", *_PAUSED)
_COLUMNS = ("job_id", *_TEXTS, *_INSTANTS, "report_id", "done", "dead")


class JobState(enum.StrEnum):
    """OPEN: it is not sealed. PAUSED: none of its messages starts. RUNNING: it goes on, or will.
    HELD: nothing of it runs, and what was looked at can go on only if an operator acts. WAITS: only
    dead messages are left, and it waits for an operator. CANCELLED: it was, and messages of it may
    still run."""

    OPEN = "open"
    PAUSED = "paused"
    RUNNING = "running"
    HELD = "held"
    WAITS = "waits"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Hold:
    """What messages of a job wait for.

    why: "dead", behind dead messages, or the job itself waits for what becomes of them; "paused",
    their topic or another job; "no handler", also no instance at all; "other slices", what lives
    handles other jobs alone; "nobody", a message without an owner; "later" and "retry", their
    instants, which come by themselves. count: how many. msg_id: the first message that they wait
    for, or that waits itself; ours: that one is of the job; topic: of that one. text: all of it as
    a sentence.
    """

    why: Waits
    count: Capped
    text: str
    msg_id: int | None = None
    ours: bool = True
    topic: str | None = None

    @property
    def needs_act(self) -> bool:
        """Whether that ends only when an operator acts, or an instance is started."""
        return self.why not in (Waits.LATER, Waits.RETRY)


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job; instants are aware UTC.

    waiting: messages that are new, or failed and to be tried again; running, done, dead: the
    others, all as they are now. retrying: those of the waiting that have failed. to_rerun: those
    of the dead that no operator has discarded or cancelled, so that rerun and discard choose them,
    among the first 10,000; None in a list, where it is not asked. completed_done, completed_dead:
    how they were when it completed; what was rerun since has changed, and then what was purged is
    missing. holds: what those that wait wait for, as far as that was looked at. rate: how many have
    ended a second, on average since it was opened, and of a completed one until then; None where
    nothing of it goes on. seconds_left:
    until the others have at that rate; None where an operator must act first. Both are None where
    it is unknown, as where not all of those were counted. on_complete, object_id, payload (JSON):
    of the message that is sent; report_id: that message. on_dead: what a dead message means to it.
    """

    job_id: int
    name: str
    state: JobState
    waiting: Capped
    running: Capped
    done: Capped
    dead: Capped
    retrying: Capped
    opened_at: datetime | None
    opened_by: str | None
    sealed_at: datetime | None
    cancelled_at: datetime | None
    completed_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    on_complete: str | None
    object_id: str | None
    payload: str | None
    on_dead: str
    report_id: int | None
    completed_done: int | None = None
    completed_dead: int | None = None
    rate: float | None = None
    seconds_left: float | None = None
    holds: tuple[Hold, ...] = ()
    to_rerun: Capped | None = None

    @property
    def total(self) -> Capped:
        """All its messages; of a completed one with those that were purged since."""
        now = self.unfinished + self.ended
        then = (self.completed_done or 0) + (self.completed_dead or 0)
        return Capped(then) if then > now.count else now

    @property
    def unfinished(self) -> Capped:
        """Those that wait or run."""
        return self.waiting + self.running

    @property
    def dead_are(self) -> str:
        """What a dead message means to it, as a sentence."""
        waits = self.on_dead == jobs.WAIT
        return "it waits for dead ones" if waits else "dead messages count as ended"

    @property
    def acts(self) -> tuple[Hold, ...]:
        """Those of `holds` that end only when an operator acts."""
        return tuple(one for one in self.holds if one.needs_act)

    @property
    def ended(self) -> Capped:
        """Those that are done or dead."""
        return self.done + self.dead

    @property
    def share(self) -> float | None:
        """How much of it has ended, 0 to 1; of a job without messages 1 as soon as it is over. None
        where not all of them were counted."""
        if self.completed_at is not None:
            return None if self.unfinished.more else self._share
        return None if self.total.more and self.ended.count else self._share

    @property
    def percent(self) -> str:
        """The same as a text: "62.3". Where not all were counted: "at least 62.3" if it is more of
        those that have ended, "at most 62.3" if of the others, "?" if of both."""
        others = self.unfinished.more
        ended = self.ended.more and self.completed_at is None
        if ended and others:
            return "?"
        text = f"{100 * self._share:.1f}"
        text = "99.9" if text == "100.0" and self._share < 1 else text
        if ended:
            return f"at least {text}"
        return f"at most {text}" if others and self.ended.count else text

    @property
    def _share(self) -> float:
        total, over = self.total.count, self.completed_at is not None
        if over:
            return 1.0 - (self.unfinished.count / total if total else 0.0)
        return self.ended.count / total if total else 0.0


def find(
    conn: Connection, t: Tables, *, is_open: bool | None, limit: int, after: int | None
) -> Found[JobInfo]:
    """Jobs, the newest first. is_open: only those that have not completed, or only the others.
    after: the id of the last one of the page before."""
    c = JOB_TABLE.of(t).c
    where: list[ColumnElement[bool]] = [c.table_name == t.label]
    if is_open is not None:
        where.append(c.completed_at.is_(None) if is_open else c.completed_at.is_not(None))
    if after is not None:
        where.append(c.job_id < sa.literal(after, sa.BigInteger()))
    query = _query(t).where(*where).order_by(c.job_id.desc()).limit(limit)
    look = _Look(conn, t, LOOKED_AT_OF_A_LIST, listed=True)
    rows: list[JobInfo] = []
    counted = 0
    for row in conn.execute(query).all():
        rows.append(one := _info(look, row, OF_A_LIST[counted >= LISTED]))
        ended = one.ended if one.completed_at is None else one.dead  # its done ones are known
        counted += (one.unfinished + ended).count
    return Found(rows, next_after=rows[-1].job_id if len(rows) == limit else None)


def show(
    conn: Connection, t: Tables, job_id: int, *, most: int = COUNTED, looks: int = LOOKED_AT
) -> JobInfo | None:
    """One job; None if there is none. looks: LOOKED_AT, or 0 = what it waits for is not asked."""
    c = JOB_TABLE.of(t).c
    query = _query(t).where(
        c.job_id == sa.literal(job_id, sa.BigInteger()), c.table_name == t.label
    )
    row = conn.execute(query).first()
    return None if row is None else _info(_Look(conn, t, looks), row, most)


def _query(t: Tables) -> sa.Select[Any]:
    c = JOB_TABLE.of(t).c
    columns: list[ColumnElement[Any]] = [
        real_instant(c[name]).label(name) if name in _INSTANTS else c[name] for name in _COLUMNS
    ]
    age = seconds_since(real_instant(c.opened_at)).label("mw_age")
    return sa.select(*columns, age)


@dataclass
class _Look:
    """How jobs are looked at, and what messages wait for beside them, read once for a list. looks:
    of how many waiting messages it is asked; listed: only of a job of which none runs."""

    conn: Connection
    t: Tables
    looks: int
    listed: bool = False

    @cached_property
    def world(self) -> World:
        return World.read(self.conn, self.t)

    @cached_property
    def holding(self) -> Tables:
        """See `controls.asking_jobs`."""
        return (
            controls.asking_jobs(self.t) if controls.paused_job_ids(self.conn, self.t) else self.t
        )


def _info(look: _Look, row: Any, most: int) -> JobInfo:
    conn, t = look.conn, look.t
    over = row.completed_at is not None
    given = {name: getattr(row, name) for name in (*_INSTANTS, "report_id")}
    given |= {name: shown(getattr(row, name)) for name in _TEXTS if getattr(row, name) is not None}
    found = _counts(conn, t, row, most)
    if look.looks and not look.listed:
        dead = found["dead"]
        found["to_rerun"] = jobs.given_up(conn, t, row.job_id) if dead else dead
    left, ended = found["waiting"] + found["running"], found["done"] + found["dead"]
    age, share = row.mw_age, ended
    if over:
        given |= {"completed_done": row.done or 0, "completed_dead": row.dead or 0}
        share = Capped(given["completed_done"] + given["completed_dead"])
        age = None if row.opened_at is None else (row.completed_at - row.opened_at).total_seconds()
    known_rate = share.count and not share.more and age and age > 0
    rate = share.count / float(age) if known_rate else None
    holds, goes_on = _holds(look, row, found)
    del found["again"]
    acts = [one for one in holds if one.needs_act]
    if not over and not (left and goes_on):
        rate = None
    ends = rate and left.count and not left.more and not acts and not over
    ends = ends and row.cancelled_at is None and row.paused_at is None
    values: dict[str, Any] = {**dict.fromkeys(_TEXTS), **given, **found}
    return JobInfo(
        job_id=int(row.job_id),
        state=_state(row, holds=acts, left=bool(left), goes_on=goes_on),
        rate=rate,
        seconds_left=left.count / rate if rate and ends else None,
        holds=tuple(holds),
        **values,
    )


def _counts(conn: Connection, t: Tables, row: Any, most: int) -> dict[str, Capped]:
    """How many of each. Of a completed job done ones are counted only if it is not as it was."""
    over = row.completed_at is not None
    found = jobs.counts(conn, t, row.job_id, most=most, done=not over)
    if not over:
        return found
    dead = Capped(row.dead or 0)
    if found["dead"].more and found["dead"].count <= dead.count:
        found["dead"] = dead
    found["done"] = Capped(row.done or 0)
    if found["waiting"] or found["running"] or found["dead"] != dead:
        found["done"] = jobs.counts(conn, t, row.job_id, most=most)["done"]
    return found


# --- What holds a job.


_HOLDS = (
    Waits.DEAD,
    Waits.PAUSED,
    Waits.NO_HANDLER,
    Waits.OTHER_SLICES,
    Waits.NOBODY,
    Waits.LATER,
    Waits.RETRY,
)


def _holds(look: _Look, row: Any, found: dict[str, Capped]) -> tuple[list[Hold], bool]:
    """What messages of a job wait for; and whether any of them goes on, as far as is known."""
    waiting, running = found["waiting"], bool(found["running"])
    if row.paused_at is not None and row.completed_at is None:
        return [], running
    if not look.looks or (look.listed and running):
        return [], True
    if not waiting:
        return _at_the_end(look, row, found), True
    how: dict[str, Any] = {"most": look.looks, "retries": bool(found["again"])}
    groups = remaining.of_job(look.conn, look.holding, int(row.job_id), look.world, **how)
    more = waiting.more or sum(one.number for one in groups) < waiting.count
    holds = [_hold(one, waiting if more else None) for one in groups if one.waits in _HOLDS]
    return holds, running or any(one.waits not in _HOLDS for one in groups)


def _at_the_end(look: _Look, row: Any, found: dict[str, Capped]) -> list[Hold]:
    """What holds a sealed job of which nothing is unfinished and that has not completed."""
    if found["running"] or row.sealed_at is None or row.completed_at is not None:
        return []
    if row.on_dead == jobs.WAIT and row.cancelled_at is None and found["dead"]:
        dead = found.get("to_rerun")
        dead = jobs.given_up(look.conn, look.t, row.job_id) if dead is None else dead
        if dead:
            it = "it is" if dead.count == 1 and not dead.more else "they are"
            text = f"it waits for {many(dead, 'dead message')}, until {it} rerun or discarded"
            return [Hold(Waits.DEAD, dead, text)]
    if look.world.works:
        return []
    text = "all of it has ended, and no instance lives to complete it; start one"
    return [Hold(Waits.NO_HANDLER, Capped(0), text)]


def _hold(one: OfJob, waiting: Capped | None) -> Hold:
    """waiting: how many wait in all, if not all of them were looked at."""
    more = waiting is not None
    count, rows = Capped(one.number, more), Capped(one.rows, more)
    wait = f"{count} of {waiting} wait" if more else f"{count} wait{'s' * (one.number == 1)}"
    after = "" if one.seconds is None else f", the first for {span(one.seconds)}"
    first = f"such as message {one.msg_id}"
    text = {
        Waits.DEAD: f"{wait} behind {many(rows, 'dead message')}, {first}",
        Waits.NOBODY: f"{wait} for {many(rows, 'message')} without an owner, {first}: {one.text}",
        Waits.LATER: f"{wait} until due{after}",
        Waits.RETRY: f"{wait} for the next try of a failed one{after}",
    }.get(one.waits, f"{wait}: {one.text}")
    topic = None if one.topic == controls.JOB_PAUSED else one.topic
    return Hold(one.waits, count, text, one.msg_id, one.here, topic)


def _state(row: Any, *, holds: Sequence[Hold], left: bool, goes_on: bool) -> JobState:
    if row.cancelled_at is not None:
        return JobState.CANCELLED
    if row.completed_at is not None:
        return JobState.COMPLETED
    if row.paused_at is not None:
        return JobState.PAUSED
    if row.sealed_at is None:
        return JobState.OPEN
    if not left:
        by_dead = any(one.why == Waits.DEAD for one in holds)
        return JobState.WAITS if by_dead else JobState.HELD if holds else JobState.RUNNING
    return JobState.HELD if holds and not goes_on else JobState.RUNNING
