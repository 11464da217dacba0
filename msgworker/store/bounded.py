"""Which messages an operator looks at or chooses, and bounded walks to them.

Rule: no read of operators may cost more on ten million finished rows than on ten thousand. A list
is a walk along an index, or several of them. A walk whose filter no index serves goes over SCAN
rows at most, and the result says where it stopped.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import DataError

from msgworker import message
from msgworker.db.clock import UtcDateTime, real_instant, utc_of
from msgworker.db.errors import reason_of
from msgworker.db.types import NUMBERS, KeyText, bytewise, holds_text, is_own_enum, same_text
from msgworker.errors import ConfigError
from msgworker.payload import is_text
from msgworker.store.rows import MAX_ID, MIN_ID, from_indexes, in_all, is_topic, running_ids
from msgworker.store.tries import in_group
from msgworker.table.columns import JOB, Cols
from msgworker.table.tables import Tables, by_job, job_status, lit

T = TypeVar("T")
SCAN = 100_000
"""Rows of the primary key that one read takes at most."""
OPEN_SCAN = 50_000
"""Entries of the index of unfinished rows by object that one read takes at most."""
SINCE_SLACK = 1000
LEAST, MOST = MIN_ID, MAX_ID


class Found(list[T]):
    """The result of a read.

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


# --- Counts with a limit, and cursors of lists.

MOST_CURSOR = 2_000
NO_CURSOR = "after is no cursor of this list; leave it out to begin anew"


@dataclass(frozen=True, slots=True)
class Capped:
    """A number. more: it is at least that, because counting stopped there; about: it is an estimate
    from the database's statistics; at_most: of all that was not counted, so it may be far fewer. As
    a text: "1,204", "10,000+", "about 9,990,000", "at most 9,990,000"."""

    count: int
    more: bool = False
    about: bool = False
    at_most: bool = False

    def __bool__(self) -> bool:
        """Whether there are any, or may be: of "0+" none was found before counting stopped."""
        return self.count > 0 or self.more

    def __str__(self) -> str:
        about = "at most " if self.at_most else "about " if self.about else ""
        return f"{about}{self.count:,}{'+' if self.more else ''}"

    def __add__(self, other: Capped) -> Capped:
        more, about = self.more or other.more, self.about or other.about
        return Capped(self.count + other.count, more, about, self.at_most or other.at_most)


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
        place = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
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
    return isinstance(part, int) and not LEAST <= part <= MOST


# --- Walks along an index, in the order of msg_id.


class Walk(NamedTuple):
    """Rows in the order of an index."""

    by: str | None  # its suffix, None = the primary key
    where: tuple[ColumnElement[bool], ...]  # its predicate
    key: ColumnElement[Any]  # what it is ordered by, a msg_id
    exact: bool = False  # the filter keeps all of its rows, or they are few on any table
    instant: ColumnElement[Any] | None = None  # what its rows wait for, and are ordered by first
    but: ColumnElement[bool] | None = None  # rows that another walk shows

    @property
    def order(self) -> tuple[ColumnElement[Any], ...]:
        return (self.key,) if self.instant is None else (self.instant, self.key)

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
        if self.exact or self.instant is not None:
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
        limit: int | ColumnElement[int],
        newest: bool = False,
    ) -> sa.Select[Any]:
        """Its rows up to `end` that are wanted."""
        found = self.hinted(t, sa.select(*columns)).where(*self.where, *where)
        if self.but is not None:
            found = found.where(sa.not_(self.but))
        if end is not None:
            found = found.where(self.key >= an_id(end) if newest else self.key <= an_id(end))
        return found.order_by(self.key.desc() if newest else self.key).limit(limit)


class Page(NamedTuple):
    """A page of a list. next_at: the msg_id behind which it continues, None at the end.
    cut: the most rows were read, and fewer were found than may be shown."""

    rows: list[Any]
    next_at: Any = None
    cut: bool = False


def an_id(msg_id: int) -> ColumnElement[int]:
    return sa.literal(msg_id, sa.BigInteger())


def page_of(
    conn: Connection,
    t: Tables,
    walks: Sequence[Walk],
    columns: Sequence[ColumnElement[Any]],
    where: Sequence[ColumnElement[bool]],
    *,
    limit: int,
    newest: bool = False,
    rows: int | None = None,
) -> Page:
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
        return Page(shown[:limit], int(shown[limit - 1][0]))
    return Page(shown, last, cut)


def _merged(found: list[list[Any]], last: int | None, newest: bool) -> list[Any]:
    by_id = {int(row[0]): row for some in found for row in some}
    ids = [i for i in by_id if last is None or (i >= last if newest else i <= last)]
    return [by_id[i] for i in sorted(ids, reverse=newest)]


def _rows(conn: Connection, selects: list[sa.Select[Any]]) -> list[list[Any]]:
    """The rows of each select; of one moment, or one that moves between them is missed."""
    if len(selects) < 2:
        return [list(conn.execute(one)) for one in selects]
    numbered = [sa.select(lit(n), *one.subquery(f"p{n}").c) for n, one in enumerate(selects)]
    found: list[list[Any]] = [[] for _ in selects]
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
    """A msg_id behind which all rows created since `instant` are. Ids and times of creation grow
    together, up to producers whose transactions overlap: found by halving, a little given back."""
    found, c = ends(conn, t), t.cols()
    if found is None or c.created_at is None:
        return LEAST
    low, high = found[0] - 1, found[1]
    while high - low > SINCE_SLACK:
        middle = (low + high) // 2
        query = sa.select(real_instant(c.created_at)).where(c.msg_id > an_id(middle))
        created = conn.scalar(query.order_by(c.msg_id).limit(1))
        if created is None or created >= instant:
            high = middle
        else:
            low = middle
    return max(LEAST, low - SINCE_SLACK)


def first_open(conn: Connection, t: Tables) -> tuple[int, bool] | None:
    """The lowest msg_id among the first OPEN_SCAN unfinished rows of the object index, and whether
    those are all, else older ones may stand before it; None if there is none. For databases that
    have no index of unfinished rows by age."""
    c = t.cols()
    query = t.hinted(sa.select(c.msg_id.label("i")), t.message, "object")
    query = query.where(t.open_object(c).is_not(None)).limit(OPEN_SCAN)
    w = query.subquery("w").c
    lowest, count = conn.execute(sa.select(sa.func.min(w.i), sa.func.count())).one()
    return None if lowest is None else (int(lowest), int(count) < OPEN_SCAN)


def same_object(t: Tables, c: Cols, object_id: Any) -> ColumnElement[bool]:
    """Open rows of an object, as the object index finds them."""
    return sa.and_(t.open_object(c) == sa.literal(t.key(object_id), t.key_type), t.open_rows(c))


def object_of(t: Tables, given: Any) -> Any:
    """An object_id that was given, as its column has it; raises ValueError for what is known to be
    no value of it."""
    kind = t.object_type
    if given is None or t.database.loose_types:
        return given
    text = str(given)
    if is_own_enum(kind) and text not in cast(sa.Enum, kind).enums:
        raise ValueError(f"it is none of {', '.join(cast(sa.Enum, kind).enums)}")
    if isinstance(kind, sa.String | KeyText):
        trims = t.database.trims_chars and isinstance(kind, sa.CHAR)
        return text.rstrip(" ") if trims else text
    if isinstance(kind, sa.Uuid):
        return UUID(text)
    for one, reads in ((sa.DateTime, datetime), (sa.Date, date), (sa.Time, time)):
        if isinstance(kind, one) and not t.database.reads_texts:
            return reads.fromisoformat(text)
    is_number = isinstance(kind, NUMBERS)
    if not is_number and (t.database.reads_texts or kind.__visit_name__ not in ("BIT", "YEAR")):
        return given
    try:
        number = Decimal(text)
    except ArithmeticError:
        raise ValueError("it is no number") from None
    if isinstance(kind, sa.Numeric | sa.Float) and (number.is_finite() or t.database.reads_texts):
        return number
    if not number.is_finite() or number != int(number):
        raise ValueError("it is no whole number")
    return int(number)


def object_asked(conn: Connection, t: Tables, given: Any) -> Any:
    """The same; the database says what is no value of any other type."""
    found, kind = object_of(t, given), t.object_type
    if not t.database.reads_texts or isinstance(kind, sa.String | KeyText):
        return found
    try:
        return conn.scalar(sa.select(sa.cast(sa.literal(str(found), sa.Text()), kind)))
    except DataError as error:
        raise ValueError(reason_of(error)) from error


# --- Which messages an operator looks at or chooses: the filter, as conditions of a statement.

WAITING = (message.State.NEW, message.State.FAILED)
"""The states of messages that wait, or will run again."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages: the filters of `list`, and a failure group."""

    words: tuple[message.State, ...]  # the states to choose from, at least one
    topic: str | None = None
    object_id: Any = None
    error: str | None = None
    since: datetime | None = None
    fingerprint: str | None = None
    job: int | None = None
    up_to: int | None = None  # the highest msg_id
    given_up: bool = True  # whether those that were discarded before are chosen too
    acknowledged: bool | None = None  # of dead ones those that are, or are not; None = both


def said(error: ColumnElement[Any], *prefixes: str) -> ColumnElement[bool]:
    """Whether an operator has written the last error: it begins with one of these."""
    text = bytewise(error)  # its collation may know no LIKE
    return sa.or_(*[text.startswith(one, autoescape=True) for one in prefixes])


def discarded(t: Tables, c: Cols) -> ColumnElement[bool]:
    """Dead because an operator discarded or cancelled it. Under on_dead="block" it has one more try
    than the rule allows; so has a message that became dead under another rule, and only its last
    error distinguishes the two."""
    blocks = t.spec.on_dead == "block"
    last = message.ends_at(t.spec.max_tries, t.spec.on_dead) - 1
    more = t.tries(c) > lit(last) if blocks else sa.true()
    if c.last_error is None:
        return sa.and_(c.status == lit(message.Status.FAILED), more) if blocks else sa.false()
    text = said(c.last_error, message.DISCARDED, message.CANCELLED)
    says = sa.and_(c.last_error.is_not(None), text)
    says = sa.or_(c.last_error.is_(None), text) if blocks else says
    return sa.and_(c.status == lit(message.Status.FAILED), more, says)


def acknowledged(t: Tables, c: Cols) -> ColumnElement[bool]:
    """Dead, and an operator knows: acknowledged, discarded or cancelled."""
    if c.last_error is None:
        return discarded(t, c)
    says = sa.and_(c.last_error.is_not(None), said(c.last_error, message.ACKNOWLEDGED))
    return sa.or_(discarded(t, c), sa.and_(c.status == lit(message.Status.FAILED), says))


_ASKED_OF = {"topic": "topic", "error": "last_error", "since": "created_at", "job": "job_id"}
"""Filters, and the role of the column of each."""


def refuse_lacking(t: Tables, **given: Any) -> None:
    """Raise ConfigError for a filter on a column that the table has not. Without topics each
    message is of the topic `default`."""
    for name, role in _ASKED_OF.items():
        value = given.get(name)
        if value is None or t.has(role) or (name == "topic" and value == message.DEFAULT_TOPIC):
            continue
        what = "each message is of the topic default" if name == "topic" else "no message says that"
        raise ConfigError(
            f"table {t.spec.name} has no {role} column, so it cannot be asked for {name}: {what}. "
            f"Leave it out, or name such a column, MessageTable({role}=...)"
        )


def of_topic(column: ColumnElement[Any] | None, topic: Any) -> list[ColumnElement[bool]]:
    """The message is of this topic; see `refuse_lacking`."""
    return [] if column is None else [is_topic(column, topic, none=topic == message.DEFAULT_TOPIC)]


def where(t: Tables, c: Cols, wanted: Filter) -> list[ColumnElement[bool]]:
    """The WHERE of a filter. Raises ConfigError for one on a column that is not there."""
    _check(t, wanted)
    where = t.is_message(c)
    if set(wanted.words) < set(message.State):
        where.append(sa.or_(*(in_state(t, c, word) for word in wanted.words)))
    if wanted.object_id is not None:
        where.append(same_text(c.object_id, wanted.object_id))
    if wanted.topic is not None:
        where += of_topic(c.topic, wanted.topic)
    if wanted.error is not None:
        where.append(holds_text(c["last_error"], wanted.error))
    if wanted.since is not None:
        where.append(utc_of(c["created_at"]) >= sa.literal(wanted.since, UtcDateTime()))
    if wanted.job is not None:
        where.append(c["job_id"] == an_id(wanted.job))
    if wanted.up_to is not None:
        where.append(c.msg_id <= an_id(wanted.up_to))
    if not wanted.given_up:
        where.append(sa.not_(discarded(t, c)))
    if wanted.acknowledged is not None:
        known = acknowledged(t, c)
        where.append(known if wanted.acknowledged else sa.not_(known))
    return where


def _check(t: Tables, wanted: Filter) -> None:
    refuse_lacking(t, **{name: getattr(wanted, name) for name in _ASKED_OF})


def in_state(t: Tables, c: Cols, word: message.State) -> ColumnElement[bool]:
    """The predicate of a word; which index is read, a query says with another one."""
    if word is message.State.FAILED:
        return sa.and_(t.stands_at(c, message.Status.FAILED), t.tries_left(c))
    if word is message.State.DEAD:
        return sa.and_(t.stands_at(c, message.Status.FAILED), sa.not_(t.tries_left(c)))
    if word is message.State.UNKNOWN:
        known = [lit(status) for status in message.Status]
        return t.within(c, sa.or_(c.status.is_(None), c.status.not_in(known)))
    return t.stands_at(c, message.Status[word.name])


# --- Where the messages of a filter stand, and the next of them.


def failed(t: Tables, c: Cols, job: ColumnElement[int] | None = None) -> Walk:
    """Rows that have failed, dead ones too: all, or of a job."""
    if job is not None:
        return of_job(t, c, job, {message.State.FAILED, message.State.DEAD})[0]
    return Walk("failed", (t.failed_rows(c),), t.failed_key(c))


def oldest(t: Tables, c: Cols) -> Walk:
    """Unfinished rows that wait for no instant, where an index has them by age; without those that
    run and have no object."""
    key = t.oldest_key(c)
    return Walk("oldest", (t.oldest_rows(c), key.is_not(None)), key)


def running(t: Tables, c: Cols) -> Walk:
    """Running rows."""
    ids = running_ids(t)
    return Walk(None, (c.msg_id.in_(sa.select(ids.c.i)),), c.msg_id, exact=True)


def waiting(t: Tables, c: Cols) -> Walk:
    """Unfinished rows that wait for an instant, or have waited for one: by that instant."""
    where = (*t.due_rows(c), c["available_at"].is_not(None))
    return Walk("due", where, c.msg_id, instant=c["available_at"])


def walks(t: Tables, c: Cols, wanted: Filter) -> list[Walk]:
    """Where all that is wanted stands; some of it in two of them. Raises ConfigError for a filter
    on a column that is not there."""
    _check(t, wanted)
    words = set(wanted.words)
    if wanted.job is not None:
        return of_job(t, c, an_id(wanted.job), words)
    if wanted.object_id is not None and not words & {message.State.DONE, message.State.UNKNOWN}:
        opened = Walk("object", (same_object(t, c, wanted.object_id),), c.msg_id)
        if words == {message.State.DEAD}:
            return [failed(t, c)]
        return [failed(t, c), opened] if message.State.DEAD in words else [opened]
    if words <= {message.State.FAILED, message.State.DEAD}:
        return [failed(t, c)]
    if words == {message.State.PROCESSING}:
        return [running(t, c)]
    if words & {message.State.DONE, message.State.UNKNOWN} or not t.database.oldest_index:
        return [Walk(None, (), c.msg_id, exact=wanted == Filter(tuple(message.State)))]
    found = [failed(t, c)] if message.State.DEAD in words else []
    found.append(oldest(t, c))
    if message.State.PROCESSING in words:
        found.append(running(t, c))
    return found if c.available_at is None else [*found, waiting(t, c)]


def of_job(t: Tables, c: Cols, job: ColumnElement[int], words: set[message.State]) -> list[Walk]:
    """The messages of a job, a walk for each status. Raises ConfigError without its index."""
    if not by_job(t):
        raise ConfigError(
            f"table {t.spec.name} has no index {t.spec.index_name(JOB)}, by which the messages of "
            "a job are found; run `msgworker db upgrade`"
        )
    places = {message.State.DEAD: message.Status.FAILED} | {
        message.State[one.name]: one for one in message.Status
    }
    statuses = sorted({places[word] for word in words if word in places})
    of_it = (*t.is_message(c), c["job_id"] == job)
    return [Walk(JOB, (*of_it, job_status(t, c) == lit(one)), c.msg_id) for one in statuses]


def of_filter(
    conn: Connection,
    t: Tables,
    wanted: Filter,
    columns: Sequence[ColumnElement[Any]],
    *,
    after: int | None,
    limit: int,
    rows: int | None = None,
) -> Page:
    """The next rows of a filter behind `after`, by msg_id; see `bounded.page_of`."""
    c = t.cols()
    found = walks(t, c, wanted)
    if not found:
        return Page([])
    if found[0].by is None and not found[0].exact:  # no index has them in order
        begins = [] if after is None else [after]
        if wanted.since is not None:
            begins.append(before_instant(conn, t, wanted.since))
        elif after is None and not {message.State.DONE, message.State.UNKNOWN} & set(wanted.words):
            begins.append(_below(conn, t))
        after = max(begins, default=None)
    found = [walk.behind(after) for walk in found]
    return page_of(conn, t, found, columns, where(t, c, wanted), limit=limit, rows=rows)


def ids_of_filter(
    conn: Connection,
    t: Tables,
    wanted: Filter,
    *,
    after: int | None,
    limit: int,
    rows: int | None = None,
) -> tuple[list[int], int | None]:
    """The ids of a page of a filter behind `after`, and where to continue (None = end). Reads at
    most `limit` rows that match and goes over `rows` (SCAN) others; none may match."""
    columns = [t.cols().msg_id.label("i")]
    found = of_filter(conn, t, wanted, columns, after=after, limit=limit, rows=rows)
    ids = [int(row[0]) for row in found.rows]
    if wanted.fingerprint is not None:
        ids = in_group(conn, t, ids, wanted.fingerprint)
    return ids, None if found.next_at is None else int(found.next_at)


def _below(conn: Connection, t: Tables) -> int:
    """A msg_id behind which all rows stand that are unfinished or failed: reads all of the object
    index."""
    c = t.cols()
    first = failed(t, c).query(t, [t.failed_key(c)], [], end=None, limit=1)
    each = from_indexes(t, t.all_open, lambda c: [sa.func.min(t.open_msg_id(c)).label("i")])
    opened = sa.select(sa.func.min(in_all(each).subquery("open").c.i))
    found = [conn.scalar(opened), conn.scalar(first)]
    return min((int(one) for one in found if one is not None), default=MOST) - 1
