"""Which messages an operator looks at or chooses, and where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db import UtcDateTime, beginning, holds_text, same_text, utc_of
from msgworker.message import State, Status, ends_at
from msgworker.store import bounded
from msgworker.store.bounded import Part, Walk
from msgworker.store.cancels import CANCELLED
from msgworker.store.tries import fingerprint
from msgworker.table import Cols, Tables, lit

# --- Which messages an operator chooses: the filter, as conditions of a statement.

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
    """The WHERE of a filter; a filter on a column that is not there matches nothing."""
    where: list[ColumnElement[bool]] = []
    if set(wanted.words) < set(State):
        where.append(sa.or_(*(in_state(t, c, word) for word in wanted.words)))
    if wanted.object_id is not None:
        where.append(same_text(c.object_id, wanted.object_id))
    if wanted.topic is not None:
        where.append(sa.false() if c.topic is None else same_text(c.topic, wanted.topic))
    if wanted.error is not None:
        error = c.last_error
        where.append(sa.false() if error is None else holds_text(error, wanted.error))
    if wanted.since is not None:
        begin = sa.literal(wanted.since, UtcDateTime())
        where.append(sa.false() if c.created_at is None else utc_of(c.created_at) >= begin)
    if wanted.up_to is not None:
        where.append(c.msg_id <= bounded.an_id(wanted.up_to))
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


def in_state(t: Tables, c: Cols, word: State) -> ColumnElement[bool]:
    """The predicate of a word; which index is read, a query says with another one."""
    if word is State.FAILED:
        return sa.and_(t.stands_at(c, Status.FAILED), t.tries_left(c))
    if word is State.DEAD:
        return sa.and_(t.stands_at(c, Status.FAILED), sa.not_(t.tries_left(c)))
    if word is State.UNKNOWN:
        known = [lit(status) for status in Status]
        return sa.or_(c.status.is_(None), c.status.not_in(known))
    return t.stands_at(c, Status[word.name])


# --- Where the messages of a filter stand, and the next of them.


def walks(t: Tables, c: Cols, wanted: Filter) -> list[Walk]:
    """Where all that is wanted stands; some of it in two of them. [] if a column is missing."""
    asked = ((wanted.topic, c.topic), (wanted.error, c.last_error), (wanted.since, c.created_at))
    if any(value is not None and column is None for value, column in asked):
        return []
    words = set(wanted.words)

    def failed() -> Walk:
        return Walk("failed", (t.failed_rows(c),), t.failed_key(c))

    if wanted.object_id is not None and not words & {State.DONE, State.UNKNOWN}:
        opened = Walk("object", (bounded.same_object(t, c, wanted.object_id),), c.msg_id)
        if words == {State.DEAD}:
            return [failed()]
        return [failed(), opened] if State.DEAD in words else [opened]
    if words <= {State.FAILED, State.DEAD}:
        return [failed()]
    if words == {State.PROCESSING}:
        ids = bounded.running(t)
        return [Walk(None, (c.msg_id.in_(sa.select(ids.c.i)),), c.msg_id, exact=True)]
    if words & {State.DONE, State.UNKNOWN} or not t.dialect.oldest_index:
        return [Walk(None, (), c.msg_id, exact=wanted == Filter(tuple(State)))]
    key = t.oldest_key(c)
    found = [failed()] if State.DEAD in words else []
    found.append(Walk("oldest", (t.oldest_rows(c), key.is_not(None)), key))
    if c.available_at is not None:
        due = (*t.due_rows(c), c.available_at.is_not(None))
        found.append(Walk("due", due, c.msg_id, late=True))
    return found


def part_of(
    conn: Connection,
    t: Tables,
    wanted: Filter,
    columns: Sequence[ColumnElement[Any]],
    *,
    after: int | None,
    limit: int,
    rows: int | None = None,
) -> Part:
    """The next rows of a filter behind `after`, by msg_id; see `bounded.part_of`."""
    c = t.cols()
    found = walks(t, c, wanted)
    if not found:
        return Part([])
    if found[0].by is None and not found[0].exact:  # no index has them in order
        begins = [] if after is None else [after]
        if wanted.since is not None:
            begins.append(bounded.before_instant(conn, t, wanted.since))
        elif after is None and not {State.DONE, State.UNKNOWN} & set(wanted.words):
            begins.append(_below(conn, t))
        after = max(begins, default=None)
    found = [walk.behind(after) for walk in found]
    return bounded.part_of(conn, t, found, columns, where(t, c, wanted), limit=limit, rows=rows)


def chunk(
    conn: Connection,
    t: Tables,
    wanted: Filter,
    *,
    after: int | None,
    limit: int,
    walk: int | None = None,
) -> tuple[list[int], int | None]:
    """The next messages of a filter after `after`, by msg_id, and where to continue (None = end).

    Reads at most `limit` rows that match and goes over `walk` (SCAN) others; none may match.
    """
    c = t.cols()
    columns = (c.msg_id.label("i"), error_of(c, wanted).label("e"))
    found = part_of(conn, t, wanted, columns, after=after, limit=limit, rows=walk)
    ids = [int(row[0]) for row in found.rows if in_group(wanted, row[1])]
    return ids, None if found.next_at is None else int(found.next_at)


def _below(conn: Connection, t: Tables) -> int:
    """A msg_id behind which all rows stand that are unfinished or failed."""
    c = t.cols()
    failed = t.hinted(sa.select(t.failed_key(c)), t.message, "failed").where(t.failed_rows(c))
    found = [
        bounded.lowest_open(conn, t),
        conn.scalar(failed.order_by(t.failed_key(c)).limit(1)),
    ]
    return min((int(one) for one in found if one is not None), default=bounded.MOST) - 1
