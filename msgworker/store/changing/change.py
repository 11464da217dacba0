"""Changes by operators: rerun, discard and cancel, and the selection of their rows.

A row is locked, checked again, recorded and changed in one transaction. Running rows are never
changed; rows that have changed meanwhile are skipped and reported by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import DBAPIError

from msgworker.dialects import Trouble, beginning, now, trouble
from msgworker.message import State, Status, ends_at
from msgworker.store.changing import cancelling
from msgworker.store.changing.cancelling import CANCELLED, Asked
from msgworker.store.looking.find import conditions, in_state
from msgworker.store.rows import Wanted, check_written
from msgworker.store.settling.fingerprint import fingerprint
from msgworker.table import Cols, Tables, lit

DISCARDED = "discarded by "
"""Prefix of the last error of a discarded message."""
WAITING = (State.NEW, State.FAILED)
"""The states of messages that wait, or will run again."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages: the filters of `list`, and a failure group.

    words: the states to choose from, at least one. up_to: the highest msg_id. given_up: whether
    those that were discarded before are chosen too.
    """

    words: tuple[State, ...]
    topic: str | None = None
    object_id: Any = None
    error: str | None = None
    since: datetime | None = None
    fingerprint: str | None = None
    up_to: int | None = None
    given_up: bool = True


class SeenRow(NamedTuple):
    """A row as read or locked."""

    msg_id: int
    status: int | None
    tries: int


def discarded(t: Tables, c: Cols) -> ColumnElement[bool]:
    """Dead because an operator gave it up: discarded or cancelled it.

    Under on_dead="block" it has one more try than the rule allows; so has a message that became
    dead under another rule, and only its last error distinguishes the two.
    """
    blocks = t.spec.on_dead == "block"
    last = ends_at(t.spec.max_tries, t.spec.on_dead) - 1
    more = t.tries(c) > sa.literal_column(str(last)) if blocks else sa.true()
    if c.last_error is None:
        return sa.and_(c.status == lit(Status.FAILED), more) if blocks else sa.false()
    text = sa.or_(
        c.last_error.startswith(DISCARDED, autoescape=True),
        c.last_error.startswith(CANCELLED, autoescape=True),
    )
    says = sa.and_(c.last_error.is_not(None), text)
    says = sa.or_(c.last_error.is_(None), text) if blocks else says
    return sa.and_(c.status == lit(Status.FAILED), more, says)


def where(t: Tables, c: Cols, wanted: Filter) -> list[ColumnElement[bool]]:
    where = conditions(t, c, None, wanted.topic, wanted.object_id, wanted.error, wanted.since)
    where.append(sa.or_(*(in_state(t, c, word) for word in wanted.words)))
    if wanted.up_to is not None:
        where.append(c.msg_id <= sa.literal(wanted.up_to, sa.BigInteger()))
    if not wanted.given_up:
        where.append(sa.not_(discarded(t, c)))
    return where


def error_of(c: Cols, wanted: Filter | None) -> ColumnElement[Any]:
    """What tells the group of a message, if it is asked for."""
    if wanted is None or wanted.fingerprint is None or c.last_error is None:
        return sa.null()
    return beginning(c.last_error)


def in_group(wanted: Filter | None, error: str | bytes | None) -> bool:
    """Whether a message with this error is of the group."""
    if wanted is None or wanted.fingerprint is None:
        return True
    return error is not None and fingerprint(error) == wanted.fingerprint


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
    cancelling.drop(conn, t, ids)
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
        cancelling.drop_seen(conn, t, request)
        return False
    if not lock(conn, t, ids, words=(asked.state,), waits=False):
        return False
    if not cancelling.drop_seen(conn, t, request) or asked.over:
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
