"""Limits of topics over all instances: what is recorded, and what is free now.

A permit is the flag itself: the messages of a topic that are at 1, of whichever instance, are
counted. So it comes back with the outcome, in the same transaction, or when recovery gives back the
row of a dead instance; nothing else has to be held, renewed or given back. Who claims messages of
the topic has its record locked until the flags are committed: two instances never count at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.db.clock import now, now_ms
from msgworker.db.connections import fetch
from msgworker.db.types import beginning
from msgworker.limit import MOST_STARTS, Limit
from msgworker.message import DEFAULT_TOPIC, topic_of
from msgworker.store.rows import of_running
from msgworker.table.build import LIMIT
from msgworker.table.columns import Cols
from msgworker.table.tables import Tables


class Recorded(NamedTuple):
    """The limits of a topic as recorded. by: the instance that declared them. version: of the
    declaration."""

    limit: Limit
    version: int
    by: str


class Free(NamedTuple):
    """What is free of a limit while its record is locked. running: messages at 1. full_us, now_us:
    see `Limit.tokens`."""

    limit: Limit
    running: int
    full_us: int
    now_us: int

    @property
    def permits(self) -> int:
        """How many of those that may run at once are free."""
        most = self.limit.max_running
        return MOST_STARTS if most is None else max(0, most - self.running)

    @property
    def tokens(self) -> int:
        """How many may start now, as far as the rate goes."""
        return self.limit.tokens(self.full_us, self.now_us)

    @property
    def starts(self) -> int:
        """How many messages may be flagged."""
        return min(self.permits, self.tokens)

    @property
    def next_in(self) -> float:
        """Seconds until the next token, 0 = there is one."""
        return self.limit.next_in(self.full_us, self.now_us) if self.limit.starts else 0.0


def _whose(t: Tables) -> list[ColumnElement[bool]]:
    c = LIMIT.of(t).c
    return [c.table_name == t.label, c.topic == bindparam("mw_topic", type_=c.topic.type)]


def _limit_columns(t: Tables) -> list[ColumnElement[Any]]:
    c = LIMIT.of(t).c
    return [c.max_running, c.rate_starts, c.rate_seconds, c.burst]


def _limit(most: int | None, starts: int, seconds: int, burst: int) -> Limit:
    """Numbers that an operator has edited count as the nearest that mean something: a max_running
    of 0, or less, lets none start."""
    running = None if most is None else max(0, most)
    return Limit(running, max(0, starts), max(1, seconds), max(1, burst))


def read_all(conn: Connection, t: Tables) -> dict[str, Recorded]:
    """The limited topics; none where the table is not there."""
    if not LIMIT.is_there(t):
        return {}
    c = LIMIT.of(t).c
    query = sa.select(c.topic, *_limit_columns(t), c.version, c.declared_by)
    rows = conn.execute(query.where(c.table_name == t.label))
    return {row[0]: Recorded(_limit(*row[1:5]), row[5], row[6]) for row in rows}


def declare(
    conn: Connection, t: Tables, topic: str, limit: Limit, seen: Recorded | None, *, me: str
) -> bool:
    """Record the limits of a topic, if what stands there is `seen` (None = nothing); whether it
    was. In the caller's transaction. Raises IntegrityError if another process records it at the
    same moment."""
    c = LIMIT.of(t).c
    values: dict[str, Any] = {
        "max_running": limit.max_running,
        "rate_starts": limit.starts,
        "rate_seconds": limit.seconds,
        "burst": limit.burst,
        "declared_by": me,
        "declared_at": now(),
    }
    if seen is None:
        made = sa.insert(LIMIT.of(t)).values(table_name=t.label, topic=topic, **values)
        conn.execute(made)
        return True
    change = sa.update(LIMIT.of(t)).where(*_whose(t), c.version == seen.version)
    change = change.values(version=c.version + 1, **values)
    return bool(conn.execute(change, {"mw_topic": topic}).rowcount)


def remove(conn: Connection, t: Tables, topic: str) -> bool:
    """Forget the limits of a topic; False if it has none. In the caller's transaction."""
    gone = sa.delete(LIMIT.of(t)).where(*_whose(t))
    return bool(conn.execute(gone, {"mw_topic": topic}).rowcount)


def lock(conn: Connection, t: Tables, topic: str) -> Free | None:
    """Lock the limits of a topic until the end of the transaction, and see what is free; None if
    another transaction has them locked, or they were removed."""

    def build() -> sa.Select[Any]:
        query = sa.select(*_limit_columns(t), LIMIT.of(t).c.full_us, now_ms()).where(*_whose(t))
        if not t.database.row_locks:
            return query
        return query.with_for_update(skip_locked=t.database.skip_locked)

    row = conn.execute(t.built("limit_lock", build), {"mw_topic": topic}).first()
    if row is None:
        return None
    limit = _limit(*row[:4])
    # Counted in a statement after the lock: what others have flagged before is committed.
    running = 0 if limit.max_running is None else sum(holders(conn, t, topic).values())
    return Free(limit, running, int(row[4]), int(row[5]) * 1000)


def take(conn: Connection, t: Tables, topic: str, free: Free, count: int) -> None:
    """Take so many tokens. In the transaction of `lock`."""
    if not free.limit.starts and not t.database.certifies:
        return

    def build() -> sa.Update:
        full = bindparam("mw_full", type_=sa.BigInteger())
        return sa.update(LIMIT.of(t)).where(*_whose(t)).values(full_us=full)

    if free.limit.starts:
        full_us = free.limit.taken(free.full_us, free.now_us, count)
    else:  # it means nothing, but the record has changed: who counts elsewhere is rolled back
        full_us = free.full_us + 1
    conn.execute(t.built("limit_take", build), {"mw_topic": topic, "mw_full": full_us})


def holders(conn: Connection, t: Tables, topic: str) -> Counter[str | None]:
    """How many messages of a topic are at 1, by their owner; None = a foreign consumer."""
    none = topic == DEFAULT_TOPIC

    def asked(c: Cols) -> ColumnElement[bool]:
        same = c["topic"] == bindparam("mw_topic", type_=c["topic"].type)
        return sa.or_(same, c["topic"].is_(None)) if none else same

    statement = t.built(("limit_held", none), partial(_held, t, asked))
    rows = fetch(conn, statement, {"mw_topic": topic})
    # Compared here too: to the database, texts that differ may be equal.
    return Counter(row[1] for row in rows if topic_of(row[0]) == topic)


def all_holders(conn: Connection, t: Tables) -> dict[str, Counter[str | None]]:
    """The same of every topic with messages at 1, in one statement."""
    found: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for topic, owner in fetch(conn, t.built("limit_held_all", partial(_held, t)), {}):
        found[topic_of(topic)][owner] += 1
    return found


def _held(t: Tables, asked: Callable[[Cols], ColumnElement[bool]] | None = None) -> Any:
    """Topic and owner of each message at 1."""

    def columns(c: Cols) -> list[ColumnElement[Any]]:
        owner: Any = sa.null() if c.claimed_by is None else beginning(c.claimed_by)
        return [beginning(c["topic"]).label("a"), owner.label("b")]

    return of_running(t, columns, lambda c: [] if asked is None else [asked(c)])
