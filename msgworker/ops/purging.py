"""Purge: delete finished rows older than an instant, in short transactions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.counted import plural
from msgworker.dialects import Trouble, connecting, reason_of, trouble, writing
from msgworker.errors import SchemaError
from msgworker.ops.bulk import Bulk, Step, Unchanged
from msgworker.ops.choosing import CHUNK
from msgworker.ops.results import Skip, Why
from msgworker.store import history
from msgworker.store.changing import purge as store
from msgworker.store.changing.purge import Archive
from msgworker.table import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """What to purge: finished before this instant; dead: also dead messages; topic: only this."""

    before: datetime
    dead: bool = False
    topic: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"before": self.before, "dead": self.dead, "topic": self.topic}


def needs_age(t: Tables) -> None:
    """Raise SchemaError if the table cannot say how old a message is."""
    if not store.has_age(t):
        raise SchemaError(
            f"table {t.spec.name} has neither finished_at nor created_at, so the age of its "
            "messages is unknown. Add one of them, or delete by a rule of your own"
        )


def before_of(engine: sa.Engine, age: float | datetime) -> datetime:
    """The instant of an age, by the database's clock."""
    if isinstance(age, datetime):
        return age
    with connecting(engine) as conn:
        return store.cutoff(conn, age)


def open_archive(engine: sa.Engine, t: Tables, name: str | None) -> Archive | None:
    """The archive table, created if necessary; raises SchemaError if it cannot be used."""
    if name is None:
        return None
    try:
        with connecting(engine) as conn:
            return store.open_archive(conn, t, name)
    except DBAPIError as error:
        if trouble(error) is Trouble.LOST:
            raise
        raise SchemaError(f"the archive table {name} cannot be used: {reason_of(error)}") from error


def purge_all(bulk: Bulk, engine: sa.Engine, t: Tables, old: Old, into: Archive | None) -> None:
    """Purge all messages that are old enough, by msg_id, from the last step of the operation on."""
    with connecting(engine) as conn:
        beside = store.beside(conn, t)

    def work(conn: Connection, part: list[int]) -> Step:
        ids = store.lock(conn, t, part, **old.options)
        gone = sorted(set(part) - set(ids))
        if ids:
            _take_away(conn, t, ids, into, beside)
        return Step(len(part), len(ids), [Skip(i, Why.CHANGED) for i in gone])

    more = True
    while more:
        with connecting(engine) as conn:
            ids = store.chunk(conn, t, **old.options, after=bulk.op.last_id, limit=CHUNK)
        more = len(ids) == CHUNK
        bulk.over(ids, work)


def forget_history(engine: sa.Engine, t: Tables, keep_seconds: float) -> None:
    """Delete what is older of the history for charts, an hour of it in a transaction. What cannot
    be deleted now is left to the instances."""
    more = history.is_there(t)
    try:
        while more:
            with writing(engine) as conn:
                more = bool(history.forget(conn, t, keep_seconds))
    except DBAPIError as error:
        if trouble(error) not in (Trouble.AGAIN, Trouble.REFUSED):
            raise


def _take_away(
    conn: Connection, t: Tables, ids: list[int], into: Archive | None, beside: list[sa.Table]
) -> None:
    kept = len(ids) if into is None else store.archive(conn, t, into, ids)
    deleted = store.delete(conn, t, ids, beside)
    if not kept == deleted == len(ids):
        raise Unchanged(
            f"{plural(len(ids), 'message')} locked, {kept} kept and {deleted} deleted; the step "
            "was rolled back. Does a trigger change rows of the table?"
        )
