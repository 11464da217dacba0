"""Jobs as operators see them: how far each is, and when it may be over."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db import now, real_instant, seconds_since
from msgworker.message import Status
from msgworker.payload import shown
from msgworker.store import jobs
from msgworker.store.bounded import Capped, Found
from msgworker.table import JOB_TABLE, Tables

COUNTED = 1_000_000
"""The most messages of each state that are counted of one job."""
OF_A_LIST = 10_000
"""The same of each job of a list."""
_INSTANTS = ("opened_at", "sealed_at", "cancelled_at", "completed_at", "paused_at")
_TEXTS = ("name", "opened_by", "on_complete", "object_id", "on_dead", "payload", "paused_by")
_COLUMNS = ("job_id", *_TEXTS, *_INSTANTS, "report_id", "done", "dead")


class JobState(enum.StrEnum):
    """OPEN: it is not sealed. PAUSED: none of its messages starts. WAITS: only dead messages are
    left, and it waits for an operator. CANCELLED: it was, and messages of it may still run."""

    OPEN = "open"
    PAUSED = "paused"
    RUNNING = "running"
    WAITS = "waits"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job; instants are aware UTC.

    waiting: messages that are new, or failed and to be tried again; running, done, dead: the
    others. Of a completed job done and dead are as it ended, and the first two are what was rerun
    or sent since. rate: how many have ended a second, on average since it was opened.
    seconds_left: until the others have at that rate. Both are None where that is unknown, as where
    not all of those were counted. on_complete, object_id, payload (JSON): of the message that is
    sent; report_id: that message. on_dead: what a dead message means to it.
    """

    job_id: int
    name: str
    state: JobState
    waiting: Capped
    running: Capped
    done: Capped
    dead: Capped
    opened_at: datetime | None
    opened_by: str | None
    sealed_at: datetime | None
    cancelled_at: datetime | None
    completed_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    on_complete: str | None
    object_id: str | None
    payload: str | None
    on_dead: str
    report_id: int | None
    rate: float | None = None
    seconds_left: float | None = None

    @property
    def total(self) -> Capped:
        """All its messages; of a completed one those that had ended then."""
        ended = self.done + self.dead
        return ended if self.completed_at is not None else self.waiting + self.running + ended

    @property
    def ended(self) -> Capped:
        """Those that are done or dead."""
        return self.done + self.dead

    @property
    def share(self) -> float | None:
        """How much of it has ended, 0 to 1; of a job without messages 1 as soon as it is over. None
        where not all of them were counted."""
        return None if self.total.more and self.ended.count else self._share

    @property
    def percent(self) -> str:
        """The same as a text: "62.3". Where not all were counted: "at least 62.3" if it is more of
        those that have ended, "at most 62.3" if of the others, "?" if of both."""
        ended, others = self.ended.more, (self.waiting + self.running).more
        if ended and others:
            return "?"
        text = f"{100 * self._share:.1f}"
        text = "99.9" if text == "100.0" and self._share < 1 else text
        if ended:
            return f"at least {text}"
        return f"at most {text}" if others and self.ended.count else text

    @property
    def _share(self) -> float:
        total = self.total.count
        return self.ended.count / total if total else float(self.completed_at is not None)


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
    rows = [_info(conn, t, row, OF_A_LIST) for row in conn.execute(query).all()]
    return Found(rows, next_after=rows[-1].job_id if len(rows) == limit else None)


def show(conn: Connection, t: Tables, job_id: int, *, most: int = COUNTED) -> JobInfo | None:
    """One job; None if there is no such one."""
    c = JOB_TABLE.of(t).c
    query = _query(t).where(
        c.job_id == sa.literal(job_id, sa.BigInteger()), c.table_name == t.label
    )
    row = conn.execute(query).first()
    return None if row is None else _info(conn, t, row, most)


def _query(t: Tables) -> sa.Select[Any]:
    c = JOB_TABLE.of(t).c
    columns: list[ColumnElement[Any]] = [
        real_instant(c[name]).label(name) if name in _INSTANTS else c[name] for name in _COLUMNS
    ]
    age = seconds_since(real_instant(c.opened_at)).label("mw_age")
    return sa.select(*columns, age, now().label("mw_now"))


def _info(conn: Connection, t: Tables, row: Any, most: int) -> JobInfo:
    over = row.completed_at is not None
    given = {name: getattr(row, name) for name in (*_INSTANTS, "report_id")}
    given |= {name: shown(getattr(row, name)) for name in _TEXTS if getattr(row, name) is not None}
    known = {Status.DONE: row.done, Status.FAILED: row.dead} if over else {}
    counts = jobs.counts(conn, t, row.job_id, most=most, but=frozenset(known))
    found = {name: Capped(count, count >= most) for name, count in counts.items()}
    if over:
        found["done"], found["dead"] = Capped(row.done or 0), Capped(row.dead or 0)
    ended, left = found["done"] + found["dead"], found["waiting"] + found["running"]
    age = row.mw_age
    if over and row.opened_at is not None:
        age = (row.completed_at - row.opened_at).total_seconds()
    known_rate = ended.count and not ended.more and age and age > 0
    rate = ended.count / float(age) if known_rate else None
    held = over or row.cancelled_at is not None or row.paused_at is not None
    runs = rate and left.count and not left.more and not held
    values: dict[str, Any] = {**dict.fromkeys(_TEXTS), **given, **found}
    return JobInfo(
        job_id=int(row.job_id),
        state=_state(row, left=left.count, dead=found["dead"].count),
        rate=rate,
        seconds_left=left.count / rate if rate and runs else None,
        **values,
    )


def _state(row: Any, *, left: int, dead: int) -> JobState:
    if row.cancelled_at is not None:
        return JobState.CANCELLED
    if row.completed_at is not None:
        return JobState.COMPLETED
    if row.paused_at is not None:
        return JobState.PAUSED
    if row.sealed_at is None:
        return JobState.OPEN
    return JobState.WAITS if dead and not left else JobState.RUNNING
