"""Changes by operators: rerun, discard and cancel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db import Trouble, now, trouble
from msgworker.message import State, Status, ends_at
from msgworker.store import cancels
from msgworker.store.cancels import CANCELLED, Asked
from msgworker.store.rows import Wanted, check_written
from msgworker.store.selection import (
    DISCARDED,
    Filter,
    discarded,
    error_of,
    in_group,
    in_state,
    where,
)
from msgworker.table import Tables, lit
from msgworker.table.tables import able, counts, holds

# --- Unique keys of messages that are set to new again: whose key another message has taken.


def taken(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, int]:
    """Those of the ended messages whose key another one holds, or an earlier one of them would
    hold: msg_id -> the other one."""
    if not able(t) or not ids:
        return {}

    def build() -> sa.Select[Any]:
        c, other = t.cols(), t.cols(t.message.alias("h"))
        assert c.unique_key is not None
        held = sa.select(sa.func.min(other.msg_id)).where(*holds(t, other, c.unique_key))
        query = sa.select(c.msg_id, c.unique_key, held.scalar_subquery())
        zero: sa.ColumnElement[int] = sa.literal_column("0")
        ended = sa.case((counts(c), sa.literal_column("1")), else_=zero) == zero  # also if NULL
        return query.where(t.among(c.msg_id), c.unique_key.is_not(None), ended).order_by(c.msg_id)

    found: dict[int, int] = {}
    first: dict[str, int] = {}
    size = t.dialect.max_ids
    for start in range(0, len(ids), size):
        part = list(ids[start : start + size])
        for msg_id, key, other in conn.execute(t.built("keys_taken", build), {"mw_ids": part}):
            holder = first.setdefault(key, msg_id) if other is None else other
            if holder != msg_id:
                found[msg_id] = holder
    return found


def give_up(conn: Connection, t: Tables, ids: Sequence[int]) -> None:
    """Take their keys from messages, in the caller's transaction."""

    def build() -> sa.Update:
        without = {t.names["unique_key"]: sa.null()}
        return sa.update(t.message).where(t.among(t.cols().msg_id)).values(without)

    size = t.dialect.max_ids
    for start in range(0, len(ids), size):
        part = list(ids[start : start + size])
        conn.execute(t.built("keys_given_up", build), {"mw_ids": part})


# --- Changes by operators: rerun, discard and cancel, and the selection of their rows.
#
# A row is locked, checked again, recorded and changed in one transaction. Running rows are never
# changed; rows that have changed meanwhile are skipped and reported by the caller.


class SeenRow(NamedTuple):
    """A row as read or locked."""

    msg_id: int
    status: int | None
    tries: int


def states(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, SeenRow]:
    """Messages by id in their present state, without missing ones."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        columns: list[Any] = [c.msg_id, c.status, t.tries(c)]
        return sa.select(*columns).where(t.among(c.msg_id))

    found: dict[int, SeenRow] = {}
    for start in range(0, len(ids), t.dialect.max_ids):
        part = list(ids[start : start + t.dialect.max_ids])
        for row in conn.execute(t.built("change_states", build), {"mw_ids": part}):
            found[row[0]] = SeenRow._make(row)
    return found


def given_up(conn: Connection, t: Tables, ids: Sequence[int]) -> set[int]:
    """Those of the messages that were discarded or cancelled; at most `max_ids` ids."""
    c = t.cols()
    query = sa.select(c.msg_id).where(t.among(c.msg_id), discarded(t, c))
    return set(conn.scalars(query, {"mw_ids": list(ids)})) if ids else set()


def lock(
    conn: Connection,
    t: Tables,
    ids: Sequence[int],
    *,
    words: Sequence[State],
    wanted: Filter | None = None,
    waits: bool = True,
) -> list[int]:
    """Lock those of the messages that are in one of these states and still match; by msg_id.

    In the caller's transaction; at most `max_ids` ids. waits: False = skip rows locked by others,
    if the database can.
    """

    def build() -> sa.Select[Any]:
        query = _matching(t, words, wanted)
        if not t.dialect.row_locks:
            return query
        return query.with_for_update(skip_locked=not waits and t.dialect.skip_locked)

    if not ids:
        return []
    key = ("change_lock", tuple(words), waits)
    query = build() if wanted is not None else t.built(key, build)
    rows = conn.execute(query, {"mw_ids": list(ids)}).all()
    return [row[0] for row in rows if in_group(wanted, row[1])]


def matching(
    conn: Connection, t: Tables, ids: Sequence[int], *, words: Sequence[State], wanted: Filter
) -> list[int]:
    """Those of the messages that are in one of these states and match, without a lock."""
    found: list[int] = []
    for start in range(0, len(ids), t.dialect.max_ids):
        part = list(ids[start : start + t.dialect.max_ids])
        rows = conn.execute(_matching(t, words, wanted), {"mw_ids": part})
        found += [row[0] for row in rows if in_group(wanted, row[1])]
    return found


def _matching(t: Tables, words: Sequence[State], wanted: Filter | None) -> sa.Select[Any]:
    c = t.cols()
    state = sa.or_(*(in_state(t, c, word) for word in words))
    query = sa.select(c.msg_id, error_of(c, wanted).label("e")).where(t.among(c.msg_id), state)
    if wanted is not None:
        query = query.where(*where(t, c, wanted))
    return query.order_by(c.msg_id)


def rerun(conn: Connection, t: Tables, ids: Sequence[int], *, done_too: bool = False) -> int:
    """Set failed and dead messages to new, with their tries at 0; return how many.

    In the caller's transaction; at most `max_ids` ids. A row that is new or running stays as it is.
    Requests to cancel them are deleted under the same locks: the next run is another one.
    """

    def build() -> sa.Update:
        c = t.cols()
        allowed = [lit(Status.FAILED), *([lit(Status.DONE)] if done_too else [])]
        zero: sa.ColumnElement[int] = sa.literal_column("0")
        values: dict[str, Any] = t.values(
            status=lit(Status.NEW),
            error_try_times=zero,
            crash_times=zero,
            later_times=zero,
            available_at=sa.null(),
            claimed_by=sa.null(),
            finished_at=sa.null(),
        )
        ids_in = t.among(c.msg_id)
        return sa.update(t.message).where(ids_in, c.status.in_(allowed)).values(values)

    if not ids:
        return 0
    rerun = int(conn.execute(t.built(("rerun", done_too), build), {"mw_ids": list(ids)}).rowcount)
    check_written(conn, t, dict.fromkeys(ids, Wanted(Status.NEW, 0)), "the rerun")
    cancels.drop(conn, t, ids)
    return rerun


def discard(conn: Connection, t: Tables, ids: Sequence[int], *, text: str) -> int:
    """Give up new, failed and dead messages: dead, with `text` as the last error; return how many.

    In the caller's transaction; at most `max_ids` ids. Done and running rows stay as they are.
    Under on_dead="block" one more try than the rule allows is written, so that the object
    continues. A text that is too long for the column is truncated.
    """
    return _give_up(conn, t, ids, text, DISCARDED)


def cancel(conn: Connection, t: Tables, ids: Sequence[int], *, text: str) -> int:
    """Cancel messages that wait: as `discard`, with a text that begins with CANCELLED."""
    return _give_up(conn, t, ids, text, CANCELLED)


def end_request(conn: Connection, t: Tables, asked: Asked) -> bool:
    """Do what is left to do for a request, as it was read: a message that waits becomes dead; the
    request of one that has ended is deleted. True if the message became dead.

    In the caller's transaction. The message is locked first, without waiting for others, and
    what was seen is asked for again under that lock: a rerun deletes the request under the same.
    """
    request, ids = asked.request, [asked.request.msg_id]
    if asked.rerun or asked.state is None:
        cancels.drop_seen(conn, t, request)
        return False
    if not lock(conn, t, ids, words=(asked.state,), waits=False):
        return False
    if not cancels.drop_seen(conn, t, request) or asked.over:
        return False
    return bool(cancel(conn, t, ids, text=request.text))


def _give_up(conn: Connection, t: Tables, ids: Sequence[int], text: str, prefix: str) -> int:

    def build() -> sa.Update:
        c = t.cols()
        tries = ends_at(t.spec.max_tries, t.spec.on_dead)
        values = t.values(
            status=lit(Status.FAILED),
            error_try_times=sa.literal_column(str(tries)),
            available_at=sa.null(),
            claimed_by=sa.null(),
            finished_at=now(),
            last_error=sa.bindparam("mw_text", type_=sa.String()),
        )
        open_ones = c.status.in_([lit(Status.NEW), lit(Status.FAILED)])
        return sa.update(t.message).where(t.among(c.msg_id), open_ones).values(values)

    if not ids:
        return 0
    statement, params = t.built("discard", build), {"mw_ids": list(ids)}
    dead = dict.fromkeys(ids, Wanted(Status.FAILED, ends_at(t.spec.max_tries, t.spec.on_dead)))
    if not t.has("last_error"):
        given_up = int(conn.execute(statement, params).rowcount)
        check_written(conn, t, dead, "its end")
        return given_up
    for fitting in _shorter(t.error_text(text), prefix):
        try:
            with conn.begin_nested():
                given_up = int(conn.execute(statement, params | {"mw_text": fitting}).rowcount)
            check_written(conn, t, dead, "its end")
            return given_up
        except DBAPIError as error:
            if fitting is None or trouble(error) not in (Trouble.RACE, Trouble.OTHER):
                raise
    raise AssertionError("unreachable")


def _shorter(text: str, prefix: str) -> Iterator[str | None]:
    """A text, and its replacements if the table refuses it because of its character set or length:
    first only the prefix of discarded or cancelled messages, then NULL.
    """
    if text.startswith(prefix):  # else the column is too short for it
        yield text
        plain = text.encode("ascii", "backslashreplace").decode()
        length = len(plain)
        while length > len(prefix):
            yield plain[:length]
            length //= 2
        yield prefix
    yield None
