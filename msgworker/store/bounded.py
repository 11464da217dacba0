"""Bounded reads of large tables: how far, from where, and whether that was all.

Rule: no look of operators may cost more on ten million finished rows than on ten thousand. A list
is a walk along an index, or several of them. A walk whose filter no index serves goes over SCAN
rows at most, and the result says where it stopped.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db import real_instant
from msgworker.errors import ConfigError
from msgworker.payload import is_text
from msgworker.store.recover import running_rows
from msgworker.table import Cols, Tables

T = TypeVar("T")
SCAN = 100_000
"""Rows of the primary key that one look reads at most."""
OPEN_SCAN = 50_000
"""Entries of the index of unfinished rows by object that one look reads at most."""
SINCE_SLACK = 1000
LEAST, MOST = -(2**63), 2**63 - 1


class Found(list[T]):
    """The result of a look.

    complete: False if only a part of the table was read. next_after: where to continue, None at the
    end. looked_at: how many rows were read, where that is known.
    """

    def __init__(
        self,
        rows: Iterable[T] = (),
        *,
        complete: bool = True,
        next_after: Any = None,
        looked_at: int | None = None,
    ) -> None:
        super().__init__(rows)
        self.complete = complete
        self.next_after = next_after
        self.looked_at = looked_at


# --- Numbers that were counted only so far, and cursors of lists.

MOST_CURSOR = 2_000
NO_CURSOR = "after is no cursor of this list; leave it out to begin anew"


@dataclass(frozen=True, slots=True)
class Capped:
    """A number. more: it is at least that, because counting stopped there; about: it is an estimate
    from the database's statistics. As a text: "1,204", "10,000+", "about 9,990,000"."""

    count: int
    more: bool = False
    about: bool = False

    def __str__(self) -> str:
        return f"{'about ' if self.about else ''}{self.count:,}{'+' if self.more else ''}"

    def __add__(self, other: Capped) -> Capped:
        total = self.count + other.count
        return Capped(total, self.more or other.more, self.about or other.about)


def cursor_text(place: list[Any]) -> str:
    """A place in a list as an opaque text, safe in a URL."""
    raw = json.dumps(place, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def cursor_place(text: str, *kinds: type | tuple[type, ...]) -> list[Any]:
    """The place that `cursor_text` was given. Raises ConfigError for any other text, or if its
    parts are not of these types."""
    wrong = ConfigError(NO_CURSOR)
    if not isinstance(text, str) or not text.isascii() or len(text) > MOST_CURSOR:
        raise wrong
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        place = json.loads(raw)
    except (ValueError, binascii.Error, RecursionError):
        raise wrong from None
    if not isinstance(place, list) or len(place) != len(kinds):
        raise wrong
    for part, kind in zip(place, kinds, strict=True):
        if not isinstance(part, kind) or isinstance(part, bool) or _not_stored(part):
            raise wrong
    return place


def _not_stored(part: Any) -> bool:
    """Whether no database has such a value: it was not we who wrote it."""
    if isinstance(part, str):
        return "\x00" in part or not is_text(part)
    return isinstance(part, int) and not -(2**63) <= part < 2**63


# --- Walks along an index, in the order of msg_id.


class Walk(NamedTuple):
    """Rows in the order of an index. by: its suffix, None = the primary key. where: its predicate.
    key: what it is ordered by, a msg_id. exact: the filter keeps all of its rows, or they are few
    on any table. late: it is ordered by an instant instead, for which its rows wait. but: rows that
    another walk shows."""

    by: str | None
    where: tuple[ColumnElement[bool], ...]
    key: ColumnElement[Any]
    exact: bool = False
    late: bool = False
    but: ColumnElement[bool] | None = None

    def hinted(self, t: Tables, query: sa.Select[Any]) -> sa.Select[Any]:
        return query if self.by is None else t.hinted(query, t.message, self.by)

    def behind(self, at: int | None, *, newest: bool = False) -> Walk:
        """What is left of it behind this msg_id."""
        if at is None:
            return self
        rest = self.key < an_id(at) if newest else self.key > an_id(at)
        return self._replace(where=(*self.where, rest))

    def end(
        self, conn: Connection, t: Tables, *, rows: int | None = None, newest: bool = False
    ) -> int | None:
        """The msg_id up to which its first `rows` (SCAN) rows reach; None if there are fewer, or if
        they need no bound."""
        if self.exact or self.late:
            return None
        query = sa.select(t.cols().msg_id).where(*self.where)
        query = query.order_by(self.key.desc() if newest else self.key)
        most = SCAN if rows is None else rows
        found = conn.scalar(self.hinted(t, query.limit(1).offset(most - 1)))
        return None if found is None else int(found)

    def query(
        self,
        t: Tables,
        columns: Sequence[ColumnElement[Any]],
        where: Sequence[ColumnElement[bool]],
        *,
        end: int | None,
        limit: int,
        newest: bool = False,
    ) -> sa.Select[Any]:
        """Its rows up to `end` that are wanted."""
        found = self.hinted(t, sa.select(*columns)).where(*self.where, *where)
        if self.but is not None:
            found = found.where(sa.not_(self.but))
        if end is not None:
            found = found.where(self.key >= an_id(end) if newest else self.key <= an_id(end))
        return found.order_by(self.key.desc() if newest else self.key).limit(limit)


class Part(NamedTuple):
    """A part of a list. next_at: the msg_id behind which it goes on, None at the end. cut: as many
    rows as may be were gone over, and fewer were found than may be shown."""

    rows: list[Any]
    next_at: Any = None
    cut: bool = False


def an_id(msg_id: int) -> ColumnElement[int]:
    return sa.literal(msg_id, sa.BigInteger())


def part_of(
    conn: Connection,
    t: Tables,
    walks: Sequence[Walk],
    columns: Sequence[ColumnElement[Any]],
    where: Sequence[ColumnElement[bool]],
    *,
    limit: int,
    newest: bool = False,
    rows: int | None = None,
) -> Part:
    """The first rows of the walks as one list by msg_id, each row once. The first of the columns is
    the msg_id. Each walk goes over `rows` (SCAN) rows at most; the list ends with the first that
    was cut, which says nothing of what is behind its end."""
    ends = [walk.end(conn, t, rows=rows, newest=newest) for walk in walks]
    found = _rows(
        conn,
        [
            walk.query(t, columns, where, end=end, limit=limit, newest=newest)
            for walk, end in zip(walks, ends, strict=True)
        ],
    )
    stops = [
        (int(some[-1][0]), False) if len(some) == limit else (end, True)
        for some, end in zip(found, ends, strict=True)
        if len(some) == limit or end is not None
    ]
    last, cut = (max if newest else min)(stops, default=(None, False))
    shown = found[0] if len(found) == 1 else _merged(found, last, newest)
    if len(shown) >= limit:
        return Part(shown[:limit], int(shown[limit - 1][0]))
    return Part(shown, last, cut)


def _merged(found: list[list[Any]], last: int | None, newest: bool) -> list[Any]:
    by_id = {int(row[0]): row for some in found for row in some}
    ids = [i for i in by_id if last is None or (i >= last if newest else i <= last)]
    return [by_id[i] for i in sorted(ids, reverse=newest)]


def _rows(conn: Connection, parts: list[sa.Select[Any]]) -> list[list[Any]]:
    """The rows of each part; of one moment, or one that moves between them is missed."""
    if len(parts) < 2:
        return [list(conn.execute(part)) for part in parts]
    numbered = []
    for number, part in enumerate(parts):
        place: ColumnElement[int] = sa.literal_column(str(number))
        numbered.append(sa.select(place, *part.subquery(f"p{number}").c))
    found: list[list[Any]] = [[] for _ in parts]
    for number, *row in conn.execute(sa.union_all(*numbered)):
        found[number].append(row)
    return [sorted(some, key=lambda row: row[0]) for some in found]


def last_of(conn: Connection, t: Tables, *, after: int, rows: int | None = None) -> int | None:
    """The msg_id up to which `rows` rows (SCAN) behind `after` reach, None if there are fewer."""
    return Walk(None, (), t.cols().msg_id).behind(after).end(conn, t, rows=rows)


# --- Where a walk begins.


def ends(conn: Connection, t: Tables) -> tuple[int, int] | None:
    """The lowest and the highest msg_id, None in an empty table."""
    c = t.cols()
    first = conn.scalar(sa.select(sa.func.min(c.msg_id)))
    last = conn.scalar(sa.select(sa.func.max(c.msg_id)))
    return None if first is None or last is None else (int(first), int(last))


def before_instant(conn: Connection, t: Tables, instant: datetime) -> int:
    """A msg_id behind which all rows created since `instant` are.

    Ids and times of creation grow together, up to producers whose transactions overlap; so the
    place is found by halving, and a little is given back.
    """
    found = ends(conn, t)
    c = t.cols()
    if found is None or c.created_at is None:
        return LEAST
    low, high = found[0] - 1, found[1]
    while high - low > SINCE_SLACK:
        middle = (low + high) // 2
        query = sa.select(real_instant(c.created_at))
        query = query.where(c.msg_id > sa.literal(middle, sa.BigInteger()))
        created = conn.scalar(query.order_by(c.msg_id).limit(1))
        if created is None or created >= instant:
            high = middle
        else:
            low = middle
    return low - SINCE_SLACK


def lowest_open(conn: Connection, t: Tables) -> int | None:
    """The lowest msg_id of an unfinished message, None if there is none: reads the object index,
    all of it on databases that have no index of unfinished rows by age."""
    c = t.cols()
    query = t.hinted(sa.select(sa.func.min(t.open_msg_id(c))), t.message, "object")
    found = conn.scalar(query.where(t.all_open(c)))
    return None if found is None else int(found)


def first_open(conn: Connection, t: Tables) -> tuple[int, bool] | None:
    """The lowest msg_id among the first OPEN_SCAN unfinished rows that the object index holds, and
    whether those are all; None if there is none.

    For databases that have no index of unfinished rows by age: with more rows than that, older
    ones may stand before it.
    """
    c = t.cols()
    query = t.hinted(sa.select(c.msg_id.label("i")), t.message, "object")
    query = query.where(t.open_object(c).is_not(None)).limit(OPEN_SCAN)
    w = query.subquery("w").c
    lowest, count = conn.execute(sa.select(sa.func.min(w.i), sa.func.count())).one()
    return None if lowest is None else (int(lowest), int(count) < OPEN_SCAN)


def running(t: Tables) -> sa.Subquery:
    """The ids of all running rows, as a subquery with the column `i`: few, whatever the table."""
    parts = []
    for source, c, index, where in running_rows(t):
        parts.append(t.hinted(sa.select(c.msg_id.label("i")), source, index).where(where))
    found = parts[0] if len(parts) == 1 else sa.union_all(*parts)
    return found.subquery("rids")


def same_object(t: Tables, c: Cols, object_id: Any) -> ColumnElement[bool]:
    """Open rows of an object, as the object index finds them."""
    return sa.and_(t.open_object(c) == sa.literal(t.key(object_id), t.key_type), t.open_rows(c))
