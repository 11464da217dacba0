"""Which messages an operator chooses, and a walk over them in chunks by msg_id."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db import UtcDateTime, beginning, holds_text, same_text, utc_of
from msgworker.message import State, Status, ends_at
from msgworker.store import bounded
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


def conditions(
    t: Tables,
    c: Cols,
    status: State | None,
    topic: str | None,
    object_id: Any,
    error: str | None,
    since: datetime | None,
) -> list[ColumnElement[bool]]:
    """The WHERE of a filter; a filter on a column that is not there matches nothing."""
    where: list[ColumnElement[bool]] = []
    if status is not None:
        where.append(in_state(t, c, status))
    if object_id is not None:
        where.append(same_text(c.object_id, object_id))
    if topic is not None:
        where.append(sa.false() if c.topic is None else same_text(c.topic, topic))
    if error is not None:
        where.append(sa.false() if c.last_error is None else holds_text(c.last_error, error))
    if since is not None:
        begin = sa.literal(since, UtcDateTime())
        where.append(sa.false() if c.created_at is None else utc_of(c.created_at) >= begin)
    return where


# --- The messages of a filter, chunk by chunk, in order of msg_id.
#
# What may be changed are few messages among those that are done, so a chunk is put together from
# the indexes that hold them. An index whose rows a filter keeps few of is gone over for so many
# rows a chunk: no statement takes long, whatever the table.

WALK = 100_000
"""Rows that one chunk goes over at most in an index."""


class _Walk(NamedTuple):
    """Rows of an index, by msg_id. by: its suffix, None = the primary key. key: what it is ordered
    by. late: it is ordered by an instant instead, and read as a whole. open: only unfinished and
    failed rows are wanted of all rows."""

    by: str | None
    where: tuple[ColumnElement[bool], ...]
    key: ColumnElement[Any]
    late: bool = False
    open: bool = False

    def hinted(self, t: Tables, query: sa.Select[Any]) -> sa.Select[Any]:
        return query if self.by is None else t.hinted(query, t.message, self.by)


def chunk(
    conn: Connection,
    t: Tables,
    wanted: Filter,
    *,
    after: int | None,
    limit: int,
    walk: int = WALK,
) -> tuple[list[int], int | None]:
    """The next messages of a filter after `after`, by msg_id, and where to continue (None = end).

    Reads at most `limit` rows that match and goes over `walk` others; none may match.
    """
    walks = _walks(t, t.cols(), wanted)
    if after is None and walks and walks[0].open:
        after = _below(conn, t)
    ends = [_end(conn, t, one, after, walk) for one in walks]
    parts = [
        _rows(t, one, wanted, after, end).limit(limit) for one, end in zip(walks, ends, strict=True)
    ]
    errors: dict[int, Any] = {}
    for number, rows in enumerate(_read(conn, parts)):
        errors.update(rows)
        if len(rows) == limit:
            ends[number] = rows[-1][0]
    last = min((end for end in ends if end is not None), default=None)
    ids = [i for i in sorted(errors) if last is None or i <= last]
    if len(ids) > limit:
        ids, last = ids[:limit], ids[limit - 1]
    return [i for i in ids if in_group(wanted, errors[i])], last


def _read(conn: Connection, parts: list[sa.Select[Any]]) -> list[list[tuple[int, Any]]]:
    """The rows of each part, by msg_id; of one moment, or one that moves between them is missed."""
    if not parts:
        return []
    if len(parts) == 1:
        return [[(int(row[0]), row[1]) for row in conn.execute(parts[0])]]
    numbered = []
    for number, part in enumerate(parts):
        p = part.subquery(f"p{number}").c
        numbered.append(sa.select(sa.literal_column(str(number)), p.i, p.e))
    found: list[list[tuple[int, Any]]] = [[] for _ in parts]
    for number, msg_id, error in conn.execute(sa.union_all(*numbered)):
        found[number].append((int(msg_id), error))
    return [sorted(rows) for rows in found]


def _walks(t: Tables, c: Cols, wanted: Filter) -> list[_Walk]:
    """Where all that is wanted stands; some of it in two of them. None if a column is missing."""
    asked = ((wanted.topic, c.topic), (wanted.error, c.last_error), (wanted.since, c.created_at))
    if any(value is not None and column is None for value, column in asked):
        return []
    words = set(wanted.words)
    if words <= {State.FAILED, State.DEAD}:
        return [_failed(t, c)]
    if words == {State.PROCESSING}:
        ids = bounded.running(t)
        return [_Walk(None, (c.msg_id.in_(sa.select(ids.c.i)),), c.msg_id)]
    if words & {State.DONE, State.UNKNOWN}:
        return [_Walk(None, (), c.msg_id)]
    found = [_failed(t, c)] if State.DEAD in words else []
    if wanted.object_id is not None:
        return [*found, _Walk("object", (bounded.same_object(t, c, wanted.object_id),), c.msg_id)]
    if not t.dialect.oldest_index:
        return [_Walk(None, (), c.msg_id, open=True)]
    key = t.oldest_key(c)
    found.append(_Walk("oldest", (t.oldest_rows(c), key.is_not(None)), key))
    if c.available_at is not None:
        due = (*t.due_rows(c), c.available_at.is_not(None))
        found.append(_Walk("due", due, c.msg_id, late=True))
    return found


def _below(conn: Connection, t: Tables) -> int:
    """A msg_id behind which all rows stand that are unfinished or failed. Where no index has them
    in order, the first chunk would go over all that are done."""
    c = t.cols()
    failed = t.hinted(sa.select(t.failed_key(c)), t.message, "failed").where(t.failed_rows(c))
    found = [
        bounded.lowest_open(conn, t),
        conn.scalar(failed.order_by(t.failed_key(c)).limit(1)),
    ]
    return min((int(one) for one in found if one is not None), default=bounded.MOST) - 1


def _failed(t: Tables, c: Cols) -> _Walk:
    return _Walk("failed", (t.failed_rows(c),), t.failed_key(c))


def _inside(one: _Walk, after: int | None) -> list[ColumnElement[bool]]:
    if after is None:
        return list(one.where)
    return [*one.where, one.key > sa.literal(after, sa.BigInteger())]


def _end(conn: Connection, t: Tables, one: _Walk, after: int | None, walk: int) -> int | None:
    """The msg_id up to which a walk goes, None = to its end."""
    if one.late:
        return None
    bound = sa.select(t.cols().msg_id).where(*_inside(one, after)).order_by(one.key)
    found = conn.scalar(one.hinted(t, bound.limit(1).offset(walk - 1)))
    return None if found is None else int(found)


def _rows(
    t: Tables, one: _Walk, wanted: Filter, after: int | None, end: int | None
) -> sa.Select[Any]:
    """What is wanted of a walk: msg_id, and the error if its group is asked for."""
    c = t.cols()
    query = sa.select(c.msg_id.label("i"), error_of(c, wanted).label("e"))
    query = one.hinted(t, query).where(*_inside(one, after), *where(t, c, wanted))
    if end is not None:
        query = query.where(one.key <= sa.literal(end, sa.BigInteger()))
    return query.order_by(one.key)
