"""Expiring rights to a name.

The database decides, by its clock and the row counts of conditional updates. An instance holds a
lease on its own id; ids are never reused. Renewal is never an upsert: once a lease was taken
over, renewing it always changes 0 rows, and its holder knows that it was declared dead. One that is
over, but was not taken over, may be renewed. A take-over expires too, and can be taken over
again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.db.clock import now, now_plus, seconds_since
from msgworker.table.tables import ZERO, Tables

INSTANCE = "instance"
HANDLERS_TOLD = 100
"""A lease lists the messages of at most this many running handlers, the longest first."""
AHEAD_SECONDS = 1.0
"""A renewal later than now by more than this: the clocks of cluster nodes differ by less."""


@dataclass(frozen=True, slots=True)
class Served:
    """What an instance says of itself in its lease, see `serves_text`. Of one that says nothing, as
    that of an earlier version, nothing is known: it may handle every topic."""

    table: str | None = None  # the message table that it serves
    topics: tuple[str, ...] | None = None
    handlers: int | None = None  # how many run
    running: dict[int, float] = field(default_factory=dict)  # for how long the oldest do, by msg_id
    refused: dict[str, str] = field(default_factory=dict)
    stopped: bool = False  # only a handler that has outlived the stop may still run
    scope: Mapping[str, Any] = field(default_factory=dict)  # where it looks, {} = everywhere
    process: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str | None) -> Served:
        try:
            value = json.loads(text or "{}")
            table, topics = value.get("table"), value.get("topics")
            handlers, scope, process = (value.get(n) for n in ("handlers", "scope", "process"))
            told = process if isinstance(process, dict) else {}
            process = {n: told[n] for n, kind in PROCESS.items() if type(told.get(n)) is kind}
            return cls(
                None if table is None else str(table),
                None if topics is None else tuple(map(str, topics)),
                None if handlers is None else int(handlers),
                {int(i): float(seconds) for i, seconds in value.get("running", ())},
                {str(i): str(why) for i, why in value.get("refused", {}).items()},
                bool(value.get("stopped")),
                scope if isinstance(scope, dict) else {},
                process,
            )
        except (ValueError, AttributeError, TypeError):
            return cls()


PROCESS = {"host": str, "pid": int, "threads": int, "version": str}
"""What is said of its process."""


class Lease(NamedTuple):
    """A lease as read. live: by the database's clock at the moment of reading. ahead: that clock
    was set back since the last renewal or take-over, `renewed_at`, which is `silent` seconds
    ago."""

    name: str
    kind: str
    term: int
    taken_by: str | None
    live: int
    ahead: int
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime
    label: str | None
    in_hand: int
    serves: str | None = None
    silent: float | None = None

    @property
    def left_seconds(self) -> float:
        """Until it ends, by the database's clock."""
        whole = (self.expires_at - self.renewed_at).total_seconds()
        return max(0.0, whole - (self.silent or 0.0))

    @property
    def served(self) -> Served:
        """What its instance says of itself."""
        return Served.read(self.serves)


def serves_text(
    t: Tables,
    topics: Iterable[str] | None = None,
    handlers: Collection[tuple[int, float]] = (),
    refused: Mapping[int, str] | None = None,
    *,
    stopped: bool = False,
    scope: Mapping[str, Any] | None = None,
    process: Mapping[str, Any] | None = None,
) -> str:
    """The data for operators in a lease: the topics of the instance, None = every one;
    which messages' handlers run now, for how many seconds each; which messages the database does
    not let it flag, and why; whether it has stopped, so that these handlers are all that is left of
    it; its scope, if it has one; and its process: `host`, `pid`, `threads`, `version`."""
    longest = sorted(handlers, key=lambda one: -one[1])[:HANDLERS_TOLD]
    value: dict[str, Any] = {
        "table": t.label,
        "topics": None if topics is None else sorted(topics),
        "handlers": len(handlers),
        "running": [[msg_id, round(seconds, 1)] for msg_id, seconds in longest],
    }
    about = {"scope": dict(scope or {}), "process": dict(process or {})}
    more = {"refused": refused, **about, "stopped": stopped}
    return json.dumps(value | {name: one for name, one in more.items() if one}, default=str)


def register(
    conn: Connection, t: Tables, name: str, *, ttl: float, label: str = "", **told: Any
) -> None:
    """Take a new lease. In the caller's transaction. A name that exists raises IntegrityError.
    told: for operators, see `serves_text`."""
    said = {"label": label[:200], "serves": serves_text(t, **told)}
    times = {"started_at": now(), "renewed_at": now(), "expires_at": _from_now(ttl)}
    insert = sa.insert(t.lease).values(name=name, kind=INSTANCE, term=ZERO, **said, **times)
    conn.execute(insert)


def is_kept(conn: Connection, t: Tables, name: str) -> bool:
    """Whether a lease just registered reads as it was written: not cut, padded or changed."""
    lease = t.lease.c
    return bool(conn.scalar(sa.select(lease.name).where(lease.name == name)) == name)


def renew(
    conn: Connection,
    t: Tables,
    name: str,
    *,
    ttl: float,
    in_hand: int = 0,
    serves: str | None = None,
    over: bool = False,
) -> bool:
    """Extend our lease; False = it was taken over, or is over.

    in_hand: lanes. serves: see `serves_text`; None leaves what is there. over: extend it although
    it is over, unless it was taken over: a take-over names the term and the end that it has read,
    so one of the two changes nothing.
    """
    lease = t.lease.c
    live = () if over else (lease.expires_at > now(),)
    told = {} if serves is None else {"serves": serves}
    values = _renewed(t, ttl) | {"in_hand": in_hand} | told
    return _changed(conn, t, name, lease.taken_by.is_(None), *live, **values)


def update_serves(conn: Connection, t: Tables, name: str, serves: str) -> bool:
    """Write the data for operators (see `serves_text`) without extending our lease; not if it was
    taken over, or another transaction has locked it."""
    if not is_free(conn, t, name):
        return False
    return _changed(conn, t, name, t.lease.c.taken_by.is_(None), serves=serves)


def _changed(
    conn: Connection, t: Tables, name: str, *which: ColumnElement[bool], **values: Any
) -> bool:
    """Change a lease, if it is one of these."""
    change = sa.update(t.lease).where(t.lease.c.name == name, *which).values(values)
    return bool(conn.execute(change).rowcount)


def _renewed(t: Tables, ttl: float) -> dict[str, Any]:
    """What a renewal and a take-over write."""
    return {"term": t.lease.c.term + 1, "renewed_at": now(), "expires_at": _from_now(ttl)}


def _from_now(seconds: float) -> ColumnElement[Any]:
    return now_plus(sa.literal(seconds, sa.Float()))


def read_all(conn: Connection, t: Tables, *, kind: str = INSTANCE) -> list[Lease]:
    """All leases of a kind, by name."""

    def build() -> Any:
        lease = t.lease.c
        judged: dict[str, Any] = {
            "live": sa.case((lease.expires_at > now(), 1), else_=0),
            "ahead": sa.case((lease.renewed_at > _from_now(AHEAD_SECONDS), 1), else_=0),
            "silent": seconds_since(lease.renewed_at),
        }
        columns = [judged[n] if n in judged else lease[n] for n in Lease._fields]
        return sa.select(*columns).where(lease.kind == bindparam("of_kind")).order_by(lease.name)

    query = t.built("read_all", build)
    return [Lease._make(row) for row in conn.execute(query, {"of_kind": kind})]


def is_free(conn: Connection, t: Tables, name: str) -> bool:
    """Lock a lease, unless it is locked or gone: a suspended process may hold the lock, and an
    instance that waits for it loses its own lease."""
    if not t.database.row_locks:
        return True
    query = sa.select(t.lease.c.name).where(t.lease.c.name == name)
    return bool(conn.execute(query.with_for_update(skip_locked=t.database.skip_locked)).all())


def restart_ttl(conn: Connection, t: Tables, seen: Lease) -> bool:
    """Restart a lease's time from now, after the database's clock was set back (`ahead`): it could
    not be taken over until the clock reaches its old time. It gets its whole length, so live
    instances lose nothing. After a renewal, a take-over or another restart nothing is changed."""
    if not is_free(conn, t, seen.name):
        return False
    lease = t.lease.c
    ahead = (lease.term == seen.term, lease.renewed_at > now())
    ttl = max(0.0, (seen.expires_at - seen.renewed_at).total_seconds())
    times = {"renewed_at": now(), "expires_at": _from_now(ttl)}
    return _changed(conn, t, seen.name, *ahead, **times)


def take_over(conn: Connection, t: Tables, seen: Lease, *, me: str, ttl: float) -> bool:
    """Declare the holder of an expired lease dead; True for the one winner. Names the term that was
    read, so a renewal or another take-over in between makes it fail. Waits for no locked lease."""
    if not is_free(conn, t, seen.name):
        return False
    lease = t.lease.c
    expired = (lease.term == seen.term, lease.expires_at <= now())
    return _changed(conn, t, seen.name, *expired, taken_by=me, **_renewed(t, ttl))


def take_over_live(conn: Connection, t: Tables, name: str, *, me: str, ttl: float) -> bool:
    """Declare an instance dead although its lease is live: an operator's decision (`release`)."""
    live = t.lease.c.taken_by.is_(None)
    return _changed(conn, t, name, live, taken_by=me, **_renewed(t, ttl))


def leave(conn: Connection, t: Tables, name: str, *, taken_by: str) -> bool:
    """Expire a lease that we took over: the next recovery continues with it."""
    lease = t.lease.c
    ours = lease.taken_by == taken_by
    return _changed(conn, t, name, ours, term=lease.term + 1, expires_at=now())


def drop(conn: Connection, t: Tables, name: str, *, taken_by: str | None = None) -> bool:
    """Delete a lease: our own (taken_by None) or one that we took over; a locked one is left."""
    if not is_free(conn, t, name):
        return False
    lease = t.lease.c
    gone = sa.delete(t.lease).where(lease.name == name, lease.taken_by == taken_by)
    return bool(conn.execute(gone).rowcount)
