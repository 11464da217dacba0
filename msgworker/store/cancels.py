"""Requests to cancel running messages: one row each, until it is settled.

A request is made under the lock of its message's row and holds until the message has ended or is
rerun: a rerun deletes it under the same lock, so that it never hits a later run. The instance that
has the message sees the request in its heartbeat; a message that waits again (released, failed,
recovered) becomes dead by the heartbeat of any instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db import Trouble, beginning, now, trouble
from msgworker.message import CANCELLED, State, Status, ends_at, word_of
from msgworker.store import pauses
from msgworker.store.rows import ME
from msgworker.table import CANCEL, LIMIT, LONGEST_ID, PAUSE, Tables, lit
from msgworker.table.tables import ZERO

BATCH = 1000
"""The most requests that are read at once."""


def text_of(actor: str, reason: str | None) -> str:
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
        return text_of(self.actor, self.reason)


class Asked(NamedTuple):
    """A request, and its message as it stands.

    state: None if it is gone. owner: its claimed_by. over: nothing is left to cancel; a dead
    message that holds its object back is not over. rerun: by hand, since the request.
    """

    request: Request
    state: State | None
    owner: str | None
    over: bool
    rerun: bool

    @property
    def waits(self) -> bool:
        """The message runs nowhere, and would run again or holds its object back."""
        return not self.over and self.state is not State.PROCESSING


class Seen(NamedTuple):
    """The topics that are paused, and whether there are requests, and limits of topics."""

    paused: frozenset[str]
    requests: bool = False
    limits: bool = False


def look(conn: Connection, t: Tables, *, limited: bool = True) -> Seen:
    """All in one statement. limited: with the limits."""
    limited = limited and LIMIT.is_there(t)
    if not CANCEL.is_there(t) and not limited:
        return Seen(pauses.topics(conn, t))

    def some(n: int, of: sa.Table) -> sa.Select[Any]:
        kind: Any = sa.literal_column(str(n)).label("n")
        found = sa.select(kind, of.c.table_name.label("x"))
        return found.where(of.c.table_name == t.label).distinct()

    def build() -> Any:
        p = PAUSE.of(t).c
        selects: list[sa.Select[Any]] = []
        if PAUSE.is_there(t):
            paused = sa.select(ZERO.label("n"), p.topic.label("x"))
            selects.append(paused.where(p.table_name == t.label))
        selects += [some(1, CANCEL.of(t))] if CANCEL.is_there(t) else []
        selects += [some(2, LIMIT.of(t))] if limited else []
        return sa.union_all(*selects) if len(selects) > 1 else selects[0]

    key = ("requests_look", limited, CANCEL.is_there(t), not PAUSE.is_there(t))
    rows = conn.execute(t.built(key, build)).all()
    kinds = {row[0] for row in rows}
    return Seen(frozenset(row[1] for row in rows if not row[0]), 1 in kinds, 2 in kinds)


def read(
    conn: Connection, t: Tables, ids: Sequence[int] | None = None, *, me: str | None = None
) -> list[Asked]:
    """The requests, or those of some messages (at most `max_ids`), with what has become of each
    message; none where the table is not there. me: without those of messages that run elsewhere,
    of which there may be more than `BATCH`."""
    if not CANCEL.is_there(t):
        return []

    def build() -> sa.Select[Any]:
        r, c = CANCEL.of(t), t.cols()
        owner = sa.null() if c.claimed_by is None else beginning(c.claimed_by)
        own = (r.c.msg_id, r.c.actor, r.c.reason, r.c.requested_at, r.c.seen_owner, r.c.seen_tries)
        row = (c.msg_id.label("m"), c.status, t.tries(c).label("n"), owner.label("o"))
        same = t.within(c, r.c.msg_id == c.msg_id)
        query = sa.select(*own, *row).select_from(r.outerjoin(t.message, same))
        query = query.where(r.c.table_name == t.label)
        query = query.order_by(r.c.msg_id)
        if me is not None and c.claimed_by is not None:
            runs = sa.func.coalesce(c.status, lit(Status.NEW)) == lit(Status.PROCESSING)
            query = query.where(sa.or_(sa.not_(runs), c.claimed_by == ME))
        return query.limit(BATCH) if ids is None else query.where(t.among(r.c.msg_id))

    params: dict[str, Any] = {} if ids is None else {"mw_ids": list(ids)}
    params |= {} if me is None or not t.has("claimed_by") else {"mw_me": me}
    key = ("requests", ids is None, me is None)
    rows = conn.execute(t.built(key, build), params).all()
    return [_asked(t, row) for row in rows]


def _asked(t: Tables, row: Any) -> Asked:
    request = Request(*row[:6])
    there, status, tries, owner = row[6:]
    if there is None:
        return Asked(request, None, None, True, False)
    state = word_of(status, tries, t.spec.max_tries)
    holds = tries < ends_at(t.spec.max_tries, t.spec.on_dead)
    over = state in (State.DONE, State.UNKNOWN) or (state is State.DEAD and not holds)
    rerun = tries < request.tries
    return Asked(request, state, owner, over or rerun, rerun)


def of(conn: Connection, t: Tables, msg_id: int) -> Request | None:
    """The request to cancel a message that is not settled, for operators; None too where it cannot
    be read. `conn` commits each statement."""
    try:
        found = read(conn, t, [msg_id])
    except DBAPIError as error:
        if trouble(error) is not Trouble.REFUSED:
            raise
        return None
    return found[0].request if found and not found[0].over else None


def running(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, tuple[str | None, int]]:
    """The running ones among these messages, with their owner (None if unknown) and tries; at most
    `max_ids` ids."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        owner = sa.null() if c.claimed_by is None else beginning(c.claimed_by)
        query = sa.select(c.msg_id, owner.label("o"), t.tries(c).label("n"))
        return query.where(t.among(c.msg_id), t.stands_at(c, Status.PROCESSING))

    if not ids:
        return {}
    rows = conn.execute(t.built("cancel_running", build), {"mw_ids": list(ids)})
    return {row[0]: (row[1], row[2]) for row in rows}


def add(
    conn: Connection, t: Tables, running: Mapping[int, tuple[str, int]], *, actor: str, reason: str
) -> None:
    """Request that running messages are cancelled: by id their owner and tries, as they were
    locked. In the caller's transaction, under those locks."""
    if not running:
        return
    drop(conn, t, list(running))
    rows = [
        {
            "table_name": t.label,
            "msg_id": msg_id,
            "actor": actor,
            "reason": reason,
            "seen_owner": owner[:LONGEST_ID],
            "seen_tries": tries,
        }
        for msg_id, (owner, tries) in running.items()
    ]
    conn.execute(sa.insert(CANCEL.of(t)).values(requested_at=now()), rows)


def drop(conn: Connection, t: Tables, ids: Sequence[int]) -> int:
    """Delete the requests of these messages; return how many there were. In the caller's
    transaction; at most `max_ids` ids."""

    def build() -> sa.Delete:
        c = CANCEL.of(t).c
        return sa.delete(CANCEL.of(t)).where(c.table_name == t.label, t.among(c.msg_id))

    if not ids or not CANCEL.is_there(t):
        return 0
    return int(conn.execute(t.built("cancel_drop", build), {"mw_ids": list(ids)}).rowcount)


def drop_seen(conn: Connection, t: Tables, seen: Request) -> bool:
    """Delete this request; False if it is gone, or another one has taken its place. In the
    caller's transaction."""

    def build() -> sa.Delete:
        c = CANCEL.of(t).c
        return sa.delete(CANCEL.of(t)).where(
            c.table_name == t.label,
            c.msg_id == sa.bindparam("mw_id", type_=sa.BigInteger()),
            c.seen_owner == sa.bindparam("mw_owner", type_=sa.String()),
            c.seen_tries == sa.bindparam("mw_tries", type_=sa.Integer()),
        )

    params = {"mw_id": seen.msg_id, "mw_owner": seen.instance, "mw_tries": seen.tries}
    return bool(conn.execute(t.built("cancel_drop_seen", build), params).rowcount)
