"""Every failed try with its error and time, in a table beside the messages.

Written in the transaction that settles or recovers the message, after the fenced UPDATE has won, so
the history always agrees with the row. A message that succeeds at once costs nothing.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.dialects import UtcDateTime, now, real_instant
from msgworker.store.settling.fingerprint import fingerprint
from msgworker.table import MAX_ERROR, Tables

KEPT = 20
"""The most tries of a message that are stored; older ones are deleted."""


class Kind(enum.StrEnum):
    """How a try ended."""

    FAILED = "failed"  # an exception, or a RetryLater beyond its limit
    REJECTED = "rejected"  # no more tries were wanted
    CRASH = "crash"  # its process died


class Failure(NamedTuple):
    """A try to store."""

    msg_id: int
    kind: Kind
    error: str | None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Try:
    """A failed try. number: counted from the first try of all, reruns included.

    traceback: the user's frames whole, the error last; None where none was kept, and in lists.
    """

    number: int
    kind: str
    instance: str | None
    started_at: datetime | None
    ended_at: datetime
    error: str | None
    fingerprint: str | None
    traceback: str | None = None


def keep(conn: Connection, t: Tables, failures: Sequence[Failure], *, instance: str) -> None:
    """Add tries of messages whose rows this transaction has just changed.

    instance: the owner of the messages. The oldest ones beyond KEPT per message are deleted.
    """
    found: dict[int, tuple[datetime | None, int]] = {}
    for start in range(0, len(failures), t.dialect.max_ids):
        ids = [f.msg_id for f in failures[start : start + t.dialect.max_ids]]
        params = {"mw_ids": ids, "mw_table": t.message.name}
        for msg_id, started_at, last in conn.execute(_last_tries(t), params).all():
            found[msg_id] = (started_at, last or 0)
    rows = [
        {
            "mw_table": t.message.name,
            "mw_id": f.msg_id,
            "mw_no": found[f.msg_id][1] + 1,
            "mw_kind": str(f.kind),
            "mw_who": instance[:64],
            "mw_started": found[f.msg_id][0],
            "mw_error": None if f.error is None else f.error[:MAX_ERROR],
            "mw_print": fingerprint(f.error or ""),
            **({"mw_trace": f.trace} if t.keeps(t.failed_try.c.traceback) else {}),
        }
        for f in failures
        if f.msg_id in found
    ]
    if rows:
        conn.execute(_insert(t), rows)
    full = [
        {"mw_table": t.message.name, "mw_id": msg_id, "mw_no": last + 1 - KEPT}
        for msg_id, (_, last) in found.items()
        if last >= KEPT
    ]
    if full:
        conn.execute(_delete_up_to(t), full)


def of(
    conn: Connection, t: Tables, ids: Sequence[int], *, traces: bool = False
) -> dict[int, list[Try]]:
    """The kept tries of messages, oldest first; a message that never failed has none.

    traces: with their tracebacks.
    """

    def build() -> sa.Select[Any]:
        c = t.failed_try.c
        return (
            sa.select(
                *(c.msg_id, c.try_no, c.kind, c.instance, c.started_at, c.ended_at),
                *(c.error, c.fingerprint),
                *([c.traceback] if traces and t.keeps(c.traceback) else []),
            )
            .where(c.table_name == bindparam("mw_table"), t.among(c.msg_id))
            .order_by(c.msg_id, c.try_no)
        )

    found: defaultdict[int, list[Try]] = defaultdict(list)
    for part in _parts(t, ids):
        params = {"mw_table": t.message.name, "mw_ids": part}
        for row in conn.execute(t.built(("tries_of", traces), build), params):
            found[row[0]].append(Try(*row[1:]))
    return dict(found)


def _parts(t: Tables, ids: Sequence[int]) -> Iterable[list[int]]:
    size = t.dialect.max_ids
    return (list(ids[start : start + size]) for start in range(0, len(ids), size))


def last_try(t: Tables, msg_id: ColumnElement[Any]) -> ColumnElement[Any]:
    """The number of a message's last try, NULL if none is kept."""
    c = t.failed_try.alias("l").c
    table = bindparam("mw_table", type_=sa.String())
    last = sa.select(sa.func.max(c.try_no)).where(c.table_name == table, c.msg_id == msg_id)
    return last.scalar_subquery()


def _last_tries(t: Tables) -> sa.Select[Any]:
    def build() -> sa.Select[Any]:
        c = t.cols()
        started: ColumnElement[Any] = sa.null()
        if c.claimed_at is not None:
            started = real_instant(c.claimed_at)
        return sa.select(c.msg_id, started, last_try(t, c.msg_id)).where(t.among(c.msg_id))

    return t.built("tries_last", build)


def _insert(t: Tables) -> sa.Insert:
    def build() -> sa.Insert:
        trace = bindparam("mw_trace", type_=t.failed_try.c.traceback.type)
        # Last: Oracle takes no other long text behind one of any length.
        kept = {"traceback": trace} if t.keeps(t.failed_try.c.traceback) else {}
        return sa.insert(t.failed_try).values(
            table_name=bindparam("mw_table"),
            msg_id=bindparam("mw_id"),
            try_no=bindparam("mw_no"),
            kind=bindparam("mw_kind"),
            instance=bindparam("mw_who"),
            started_at=bindparam("mw_started", type_=UtcDateTime()),
            ended_at=now(),
            error=bindparam("mw_error"),
            fingerprint=bindparam("mw_print"),
            **kept,
        )

    return t.built("tries_insert", build)


def _delete_up_to(t: Tables) -> sa.Delete:
    def build() -> sa.Delete:
        c = t.failed_try.c
        return sa.delete(t.failed_try).where(
            c.table_name == bindparam("mw_table"),
            c.msg_id == bindparam("mw_id"),
            c.try_no <= bindparam("mw_no"),
        )

    return t.built("tries_delete", build)
