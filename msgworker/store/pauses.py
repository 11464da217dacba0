"""Paused topics: one row each, read by every instance in its heartbeat; and paused jobs."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db import Trouble, now, real_instant, trouble
from msgworker.table import JOB_TABLE, PAUSE, Cols, Tables
from msgworker.table.tables import by_job


@dataclass(frozen=True, slots=True)
class Pause:
    """A topic that is paused: by whom, since when, why."""

    topic: str
    actor: str
    reason: str | None
    paused_at: datetime


def topics(conn: Connection, t: Tables) -> frozenset[str]:
    """The topics that are paused; none where the table is not there."""
    if not PAUSE.is_there(t):
        return frozenset()

    def build() -> sa.Select[Any]:
        c = PAUSE.of(t).c
        return sa.select(c.topic).where(c.table_name == t.label)

    return frozenset(conn.scalars(t.built("paused", build)))


def actors(conn: Connection, t: Tables) -> dict[str, str]:
    """The topics that are paused, and by whom."""
    if not PAUSE.is_there(t):
        return {}

    def build() -> sa.Select[Any]:
        c = PAUSE.of(t).c
        return sa.select(c.topic, c.actor).where(c.table_name == t.label)

    return {row[0]: row[1] for row in conn.execute(t.built("paused_by", build))}


def read_all(conn: Connection, t: Tables) -> list[Pause]:
    """The topics that are paused, by name."""
    if not PAUSE.is_there(t):
        return []
    c = PAUSE.of(t).c
    query = sa.select(c.topic, c.actor, c.reason, c.paused_at)
    query = query.where(c.table_name == t.label).order_by(c.topic)
    return [Pause(*row) for row in conn.execute(query)]


def add(conn: Connection, t: Tables, topic: str, *, actor: str, reason: str | None) -> bool:
    """Pause a topic; False if it is paused already. In the caller's transaction.

    Raises IntegrityError if another process pauses it at the same moment.
    """
    if topic in topics(conn, t):
        return False
    values = {"table_name": t.label, "topic": topic, "actor": actor, "reason": reason}
    conn.execute(sa.insert(PAUSE.of(t)).values(paused_at=now(), **values))
    return True


def remove(conn: Connection, t: Tables, topic: str) -> bool:
    """Resume a topic; False if it was not paused. In the caller's transaction."""
    c = PAUSE.of(t).c
    where = (c.table_name == t.label, c.topic == topic)
    return bool(conn.execute(sa.delete(PAUSE.of(t)).where(*where)).rowcount)


# --- Paused jobs. To a claim their messages are of the topic HELD, which is paused: so all that is
# done with messages of a paused topic (read past them, keep the order of their objects, count them
# as paused) is done with them. Statements ask for the job of a message only while a job is paused
# (`asking_jobs`): otherwise it costs nothing.

HELD = "(paused with its job)"
_HELD: ColumnElement[str] = sa.literal_column("'(paused with its job)'", sa.String())


MOST_JOBS = 1000


@dataclass(frozen=True, slots=True)
class PausedJob:
    """A job that is paused, and has not completed. paused_by: None where plain SQL has paused it;
    paused_reason: None where none was given."""

    job_id: int
    name: str
    paused_at: datetime
    paused_by: str | None
    paused_reason: str | None

    @property
    def told(self) -> str:
        """By whom and why: "paused by ann: the bank is closed"."""
        why = f": {self.paused_reason}" if self.paused_reason else ""
        return f"paused by {self.paused_by or 'plain SQL'}{why}"

    @property
    def text(self) -> str:
        return f"job {self.job_id} is {self.told}"


def asking_jobs(t: Tables, paused: Container[str] = (HELD,)) -> Tables:
    """The tables by which candidates are read: others, with statements of their own, while a job is
    paused. paused: topics, HELD among them if one is."""

    def other() -> Tables:
        return replace(t, asks_jobs=True, _built={})

    return t.built("asking_jobs", other) if HELD in paused and not t.asks_jobs else t


def jobs(conn: Connection, t: Tables) -> frozenset[int]:
    """The jobs that are paused; none where there are no jobs."""
    if not (JOB_TABLE.is_there(t) and by_job(t)):
        return frozenset()
    return frozenset(map(int, conn.scalars(t.built("paused_jobs", lambda: _paused_jobs(t)))))


def read_jobs(conn: Connection, t: Tables, *, job_id: int | None = None) -> list[PausedJob]:
    """The jobs that are paused, the newest first, MOST_JOBS at most; or this one, if it is. None
    where this login may not read them, and then its transaction may be of no more use."""
    if not (JOB_TABLE.is_there(t) and by_job(t)):
        return []
    c = JOB_TABLE.of(t).c
    at = real_instant(c.paused_at).label("paused_at")
    query = _paused_jobs(t).add_columns(c.name, at, c.paused_by, c.paused_reason)
    query = query.order_by(c.job_id.desc()).limit(MOST_JOBS)
    if job_id is not None:
        query = query.where(c.job_id == sa.literal(job_id, sa.BigInteger()))
    try:
        return [PausedJob(int(row[0]), *row[1:]) for row in conn.execute(query)]
    except DBAPIError as error:
        if trouble(error) is not Trouble.REFUSED:
            raise
        return []


def _paused_jobs(t: Tables) -> sa.Select[Any]:
    c = JOB_TABLE.of(t).c
    # Not `text_lit`: the most frequent statements are kept as texts, which leave that open.
    where = (c.table_name == sa.literal(t.label, sa.String()), c.completed_at.is_(None))
    return sa.select(c.job_id).where(*where, c.paused_at.is_not(None))


def held(t: Tables, c: Cols) -> ColumnElement[bool]:
    """A message belongs to a job that is paused."""
    assert c.job_id is not None
    return c.job_id.in_(_paused_jobs(t))


def topic_or_held(t: Tables, c: Cols) -> ColumnElement[Any]:
    """The topic of a message, NULL where there is no column; HELD while its job is paused."""
    topic: ColumnElement[Any] = sa.null() if c.topic is None else c.topic
    return sa.case((held(t, c), _HELD), else_=topic) if t.asks_jobs else topic


def held_among(conn: Connection, t: Tables, ids: Sequence[int]) -> set[int]:
    """Those of these messages (at most `max_ids`) whose job is paused."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        return sa.select(c.msg_id).where(t.among(c.msg_id), held(t, c))

    return set(conn.scalars(t.built("held_among", build), {"mw_ids": list(ids)}))
