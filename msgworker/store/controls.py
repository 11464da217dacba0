"""What operators ask of running instances, which read it in their heartbeat: topics and jobs that
are paused, and requests to cancel running messages.

A request to cancel is made under the lock of its message's row and holds until the message has
ended or is rerun: a rerun deletes it under the same lock, so that it never hits a later run. The
instance that has the message sees the request in its heartbeat; a message that waits again
(released, failed, recovered) becomes dead by the heartbeat of any instance.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db.clock import now, real_instant
from msgworker.db.connections import ignoring
from msgworker.db.database import Trouble
from msgworker.db.types import beginning, bytewise, or_text
from msgworker.message import CANCELLED, State, Status, word_of
from msgworker.store.bounded import discarded
from msgworker.store.rows import ME
from msgworker.table.build import CANCEL, JOB_TABLE, LIMIT, MAX_ACTOR, MAX_REASON, PAUSE
from msgworker.table.columns import LONGEST_ID, Cols
from msgworker.table.tables import ONE, ZERO, Tables, by_job, lit


class Seen(NamedTuple):
    """The topics that are paused, and whether there are requests, and limits of topics."""

    paused: frozenset[str]
    requests: bool
    limits: bool


def look(conn: Connection, t: Tables, *, requests: bool = True, limits: bool = True) -> Seen:
    """All in one statement, of the tables that are there. requests, limits: with these."""
    asked = ((PAUSE, True), (CANCEL, requests), (LIMIT, limits))
    tables = [table for table, wanted in asked if wanted and table.is_there(t)]

    def build() -> Any:
        selects = []
        for table in tables:
            c = table.of(t).c
            topic = c.topic if table is PAUSE else c.table_name
            kind = lit((PAUSE, CANCEL, LIMIT).index(table)).label("n")
            found = sa.select(kind, topic.label("x")).where(c.table_name == t.label)
            selects.append(found if table is PAUSE else found.distinct())
        return sa.union_all(*selects) if len(selects) > 1 else selects[0]

    key = ("controls", *(table.name for table in tables))
    rows = conn.execute(t.built(key, build)).all() if tables else []
    kinds = {row[0] for row in rows}
    return Seen(frozenset(row[1] for row in rows if not row[0]), 1 in kinds, 2 in kinds)


# --- Paused topics: one row each.


@dataclass(frozen=True, slots=True)
class Pause:
    """A topic that is paused: by whom, since when, why."""

    topic: str
    actor: str
    reason: str | None
    paused_at: datetime


def pauses(conn: Connection, t: Tables) -> list[Pause]:
    """The topics that are paused, by name; none where the table is not there."""
    if not PAUSE.is_there(t):
        return []
    c = PAUSE.of(t).c
    query = sa.select(c.topic, c.actor, c.reason, c.paused_at)
    query = query.where(c.table_name == t.label).order_by(c.topic)
    return [Pause(*row) for row in conn.execute(query)]


def paused_by(conn: Connection, t: Tables) -> dict[str, str]:
    """The topics that are paused, and by whom."""
    return {one.topic: one.actor for one in pauses(conn, t)}


def pause(conn: Connection, t: Tables, topic: str, *, actor: str, reason: str | None) -> bool:
    """Pause a topic; False if it is paused already. In the caller's transaction. Raises
    IntegrityError if another process pauses it at the same moment."""
    if topic in paused_by(conn, t):
        return False
    who, why = t.own_text(actor, MAX_ACTOR), t.own_text(reason, MAX_REASON)
    values = {"table_name": t.label, "topic": topic, "actor": who, "reason": why}
    conn.execute(sa.insert(PAUSE.of(t)).values(paused_at=now(), **values))
    return True


def resume(conn: Connection, t: Tables, topic: str) -> bool:
    """Resume a topic; False if it was not paused. In the caller's transaction."""
    c = PAUSE.of(t).c
    where = (c.table_name == t.label, c.topic == topic)
    return bool(conn.execute(sa.delete(PAUSE.of(t)).where(*where)).rowcount)


# --- Paused jobs. To a claim their messages are of the topic JOB_PAUSED, which is paused: so all
# that is done with messages of a paused topic (read past them, keep the order of their objects,
# count them as paused) is done with them. Statements ask for the job of a message only while a job
# is paused (`asking_jobs`): otherwise it costs nothing.

JOB_PAUSED = "(paused with its job)"
# Not `text_lit`: the most frequent statements are kept as texts, which leave that open.
_JOB_PAUSED: ColumnElement[str] = sa.literal_column("'(paused with its job)'", sa.String())
_DEFAULT_TOPIC: ColumnElement[str] = sa.literal_column("'default'", sa.String())
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


def asking_jobs(t: Tables, paused: Container[str] = (JOB_PAUSED,)) -> Tables:
    """The tables by which candidates are read: others, with statements of their own, while a job is
    paused. paused: topics, JOB_PAUSED among them if one is."""

    def other() -> Tables:
        return replace(t, asks_jobs=True, _built={})

    return t.built("asking_jobs", other) if JOB_PAUSED in paused and not t.asks_jobs else t


def paused_job_ids(conn: Connection, t: Tables) -> frozenset[int]:
    """The jobs that are paused; none where there are no jobs."""
    if not (JOB_TABLE.is_there(t) and by_job(t)):
        return frozenset()
    return frozenset(map(int, conn.scalars(t.built("paused_jobs", lambda: _paused_jobs(t)))))


def paused_jobs(conn: Connection, t: Tables, *, job_id: int | None = None) -> list[PausedJob]:
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
    with ignoring(Trouble.REFUSED):
        return [PausedJob(int(row[0]), *row[1:]) for row in conn.execute(query)]
    return []


def _paused_jobs(t: Tables) -> sa.Select[Any]:
    c = JOB_TABLE.of(t).c
    where = (c.table_name == sa.literal(t.label, sa.String()), c.completed_at.is_(None))
    return sa.select(c.job_id).where(*where, c.paused_at.is_not(None))


def held(t: Tables, c: Cols) -> ColumnElement[bool]:
    """A message belongs to a job that is paused."""
    return c["job_id"].in_(_paused_jobs(t))


def topic_or_held(t: Tables, c: Cols) -> ColumnElement[Any]:
    """The topic of a message, JOB_PAUSED while its job is paused. One without a topic has NULL, or
    the default one."""
    topic: ColumnElement[Any] = sa.null() if c.topic is None else c.topic
    if not t.asks_jobs:
        return topic
    known = or_text(bytewise(topic), _DEFAULT_TOPIC)
    return or_text(sa.case((held(t, c), sa.null()), else_=known), _JOB_PAUSED)


def held_among(conn: Connection, t: Tables, ids: Sequence[int]) -> set[int]:
    """Those of these messages (at most `max_ids`) whose job is paused."""
    c = t.cols()
    query = sa.select(c.msg_id).where(t.among(c.msg_id), held(t, c))
    return set(conn.scalars(query, {"mw_ids": list(ids)}))


# --- Requests to cancel running messages: one row each, until it is settled.

BATCH = 1000
"""The most requests that are read at once."""


def cancel_text(actor: str, reason: str | None) -> str:
    """The last error of a cancelled message."""
    return f"{CANCELLED}{reason} (by {actor})"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to cancel a running message. instance: who had it then. tries: its failed ones."""

    msg_id: int
    actor: str
    reason: str
    requested_at: datetime
    instance: str
    tries: int

    @property
    def text(self) -> str:
        """The last error of the message."""
        return cancel_text(self.actor, self.reason)


class Asked(NamedTuple):
    """A request, and its message as it stands."""

    request: Request
    state: State | None  # None if it is gone
    owner: str | None  # its claimed_by
    over: bool  # nothing is left to cancel; what died of itself is not over: it might be rerun
    rerun: bool  # by hand, since the request

    @property
    def waits(self) -> bool:
        """The message runs nowhere, and would run again, or be rerun with other dead ones."""
        return not self.over and self.state is not State.PROCESSING


def requests(
    conn: Connection, t: Tables, ids: Sequence[int] | None = None, *, me: str | None = None
) -> list[Asked]:
    """The requests, or those of some messages (at most `max_ids`), with what has become of each
    message; none where the table is not there. me: without those of messages that run elsewhere,
    of which there may be more than `BATCH`."""
    if not CANCEL.is_there(t):
        return []
    r, c = CANCEL.of(t), t.cols()
    own = (r.c.msg_id, r.c.actor, r.c.reason, r.c.requested_at, r.c.seen_owner, r.c.seen_tries)
    given_up = sa.case((discarded(t, c), ONE), else_=ZERO).label("g")
    row = (c.msg_id.label("m"), c.status, t.tries(c).label("n"), _owner(c), given_up)
    same = t.within(c, r.c.msg_id == c.msg_id)
    if t.reuses_ids and c.claimed_at is not None:  # one that was never claimed is another message
        same = sa.and_(same, c.claimed_at.is_not(None))
    query = sa.select(*own, *row).select_from(r.outerjoin(t.message, same))
    query = query.where(r.c.table_name == t.label).order_by(r.c.msg_id)
    params: dict[str, Any] = {}
    if me is not None and c.claimed_by is not None:
        runs = sa.func.coalesce(c.status, lit(Status.NEW)) == lit(Status.PROCESSING)
        query = query.where(sa.or_(sa.not_(runs), c.claimed_by == ME))
        params["mw_me"] = me
    if ids is None:
        query = query.limit(BATCH)
    else:
        query = query.where(t.among(r.c.msg_id))
        params["mw_ids"] = list(ids)
    return [_asked(t, row) for row in conn.execute(query, params)]


def _owner(c: Cols) -> ColumnElement[Any]:
    return (sa.null() if c.claimed_by is None else beginning(c.claimed_by)).label("o")


def _asked(t: Tables, row: Any) -> Asked:
    request = Request(*row[:6])
    there, status, tries, owner, given_up = row[6:]
    if there is None:
        return Asked(request, None, None, True, False)
    state = word_of(status, tries, t.spec.max_tries)
    over = state in (State.DONE, State.UNKNOWN) or (state is State.DEAD and bool(given_up))
    rerun = tries < request.tries
    return Asked(request, state, owner, over or rerun, rerun)


def request_of(conn: Connection, t: Tables, msg_id: int) -> Request | None:
    """The request to cancel a message that is not settled, for operators; None too where it cannot
    be read. `conn` commits each statement."""
    with ignoring(Trouble.REFUSED):
        found = requests(conn, t, [msg_id])
        return found[0].request if found and not found[0].over else None
    return None


def running(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, tuple[str | None, int]]:
    """The running ones among these messages, with their owner (None if unknown) and tries; at most
    `max_ids` ids."""
    c = t.cols()
    query = sa.select(c.msg_id, _owner(c), t.tries(c).label("n"))
    query = query.where(t.among(c.msg_id), t.stands_at(c, Status.PROCESSING))
    rows = conn.execute(query, {"mw_ids": list(ids)}) if ids else ()
    return {row[0]: (row[1], row[2]) for row in rows}


def request_cancel(
    conn: Connection,
    t: Tables,
    running: Mapping[int, tuple[str | None, int]],
    *,
    actor: str,
    reason: str,
) -> int:
    """Request that running messages are cancelled, given by id with their owner and tries, as they
    were locked; returns of how many. Not of those without an owner: no instance would see it. In
    the caller's transaction, under those locks."""
    rows: list[dict[str, Any]] = [
        {
            "table_name": t.label,
            "msg_id": msg_id,
            "actor": t.own_text(actor, MAX_ACTOR),
            "reason": t.own_text(reason, MAX_REASON),
            "seen_owner": owner[:LONGEST_ID],
            "seen_tries": tries,
        }
        for msg_id, (owner, tries) in running.items()
        if owner is not None
    ]
    if not rows or not CANCEL.is_there(t):
        return 0
    drop_requests(conn, t, [row["msg_id"] for row in rows])
    conn.execute(sa.insert(CANCEL.of(t)).values(requested_at=now()), rows)
    return len(rows)


def drop_requests(conn: Connection, t: Tables, ids: Sequence[int]) -> None:
    """Delete the requests of these messages. In the caller's transaction; at most `max_ids` ids."""
    if ids and CANCEL.is_there(t):
        c = CANCEL.of(t).c
        gone = sa.delete(CANCEL.of(t)).where(c.table_name == t.label, t.among(c.msg_id))
        conn.execute(gone, {"mw_ids": list(ids)})


def drop_seen(conn: Connection, t: Tables, seen: Request) -> bool:
    """Delete this request; False if it is gone, or another one has taken its place. In the
    caller's transaction."""
    c = CANCEL.of(t).c
    same = (c.msg_id == seen.msg_id, c.seen_owner == seen.instance, c.seen_tries == seen.tries)
    gone = sa.delete(CANCEL.of(t)).where(c.table_name == t.label, *same)
    return bool(conn.execute(gone).rowcount)
