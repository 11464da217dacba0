"""Rows as read by claims, settles and runs, in forms that no driver fails on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam

from msgworker.db.clock import instant_text, now
from msgworker.db.connections import Escaped, fetch
from msgworker.db.drivers import change_by_text, change_text_for, fetch_text, text_for, text_kind
from msgworker.db.types import AnyText, same_text, text_length, whole_number
from msgworker.errors import MsgworkerError
from msgworker.message import Status
from msgworker.payload import is_text, quoted
from msgworker.table.columns import MAX_HEADERS, Cols
from msgworker.table.tables import ONE, ZERO, Entries, Tables, lit

# How a statement is sent: `sent_often` for the path of a message, `changed` for an UPDATE of ids on
# it, `fetch` where rows of messages are read (an odd text costs no batch); all else by `execute`.
# In statements that write, parameters are named mw_...: a name that is a column's too is refused,
# and Oracle pads the lists named so to few lengths.
ME: ColumnElement[Any] = bindparam("mw_me", type_=AnyText())
"""The id of the instance that asks."""
READ_AHEAD = 16_384
"""Characters (bytes on MariaDB and MySQL). A longer payload is read when its handler starts, by
itself: claims and runs read many at once."""
MOST_COUNTED = (1 << 31) - 1
"""A counter of a row that says more is none."""


class Row(NamedTuple):
    """A flagged message, or one of its run."""

    msg_id: int
    object_id: str | None
    topic: str | None
    payload: Any
    tries: int
    crash_times: int
    later_times: int
    created_at: Any  # as `instant_text` reads it
    # None for nearly all; the payload's length where it was too long to be read, or to be read
    # ahead; or, as a text, why the message cannot be handled: the column and what it holds.
    flaw: int | str | None
    key: Any = None  # as of a candidate
    headers: Any = None  # as text, where they are read

    @property
    def oversize(self) -> int | None:
        """The length of a payload that was too long to be read."""
        return None if isinstance(self.flaw, str) else self.flaw

    @property
    def odd(self) -> str | None:
        """Why the row cannot be read."""
        return self.flaw if isinstance(self.flaw, str) else None

    @property
    def same(self) -> Any:
        """As of a candidate."""
        return self.object_id if self.key is None else self.key


Bare = tuple[Any, ...]
"""A Row without its names, as messages wait that are read ahead. The garbage collector looks at a
tuple of texts and numbers once, but at a Row in each of its rounds; there may be thousands."""


def or_zero(column: ColumnElement[Any] | None) -> ColumnElement[Any]:
    """The column, 0 where it is NULL or not there."""
    # A new 0 each time: SQLAlchemy names the second of two columns that are one object.
    return sa.literal_column("0") if column is None else sa.func.coalesce(column, ZERO)


INT = {int}
NIL = 0
MIN_ID, MAX_ID = -(1 << 63), (1 << 63) - 1
"""No msg_id is lower, and none is higher: a database takes no greater number as a parameter."""
_ROW_NUMBERS = itemgetter(*map(Row._fields.index, ("tries", "crash_times", "later_times")))


def is_topic(column: ColumnElement[Any], topic: Any, *, none: bool) -> ColumnElement[bool]:
    """The column names this topic; none: or nothing, as `message.topic_of` says of "default"."""
    same = same_text(column, topic)
    return sa.or_(same, column.is_(None)) if none else same


def id_behind(msg_id: int) -> int:
    """The next id in the order of age; behind the highest that one itself, which is read again."""
    return min(msg_id + 1, MAX_ID)


def types_of(values: Iterable[Iterable[Any]]) -> set[type]:
    """The types in many rows, at as little cost as can be."""
    return set(map(type, chain.from_iterable(values)))


def key_column(t: Tables, c: Cols) -> list[ColumnElement[Any]]:
    """The key of the object, only where ids that differ may be one: every column of every row costs
    something, in some drivers much."""
    return [] if t.fold is None else [t.database.folded(c.object_id, t.fold)]


def _after_key(t: Tables, c: Cols) -> list[ColumnElement[Any]]:
    """The headers, and before them a place for the key; where they are read only."""
    if c.headers is None or t.max_headers == 0:
        return []
    text = as_text(t, c.headers)
    short = text_length(text) <= lit(MAX_HEADERS)
    return [*([sa.null()] if t.fold is None else []), sa.case((short, text))]


def as_text(t: Tables, column: ColumnElement[Any]) -> ColumnElement[Any]:
    kind, texts = column.type, (sa.String, sa.LargeBinary, sa.BINARY, sa.VARBINARY)
    plain = t.database.loose_types and not isinstance(kind, sa.JSON)
    return column if plain or isinstance(kind, texts) else sa.cast(column, sa.Text())


def row_columns(t: Tables, c: Cols, *, ahead: bool = True) -> list[ColumnElement[Any]]:
    """The columns of a Row, in its order. ahead: without the payloads that are not read ahead.

    By place they are read by `bare_rows` (the three counters), `Lane.next_id`
    (instance/running/in_flight.py) and `settlements` (writer.py), and behind other columns by
    claim.py and done.py.
    """
    most = t.spec.max_payload
    payload, oversize = payload_columns(t, c, min(READ_AHEAD, most) if ahead else most)
    columns: tuple[ColumnElement[Any], ...] = (
        c.msg_id,
        c.object_id,
        sa.null() if c.topic is None else c.topic,
        payload,
        t.tries(c),
        or_zero(c.crash_times),
        or_zero(c.later_times),
        sa.null() if c.created_at is None else instant_text(c.created_at),
        oversize,
        *key_column(t, c),
        *_after_key(t, c),
    )
    return [column.label(f"r{i}") for i, column in enumerate(columns)]


def payload_columns(t: Tables, c: Cols, most: int) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """The payload, if it has `most` characters at most; and the length of one that has more."""
    if c.payload is None:
        return sa.null(), sa.null()
    text = as_text(t, c.payload)
    length = text_length(text)
    return sa.case((length <= lit(most), text)), sa.case((length > lit(most), length))


def rows_of(t: Tables, found: Sequence[Any], first: int = 0) -> list[Row]:
    """Rows of which `row_columns` begin at the place `first`."""
    return [Row(*bare) for bare in bare_rows(t, found, first)]


def with_payload(conn: Connection, t: Tables, row: Row) -> Row | None:
    """A row whose payload was not read ahead, with it; None if the row is gone."""

    def build() -> Select[Any]:
        c = t.cols()
        return sa.select(*row_columns(t, c, ahead=False)).where(t.among(c.msg_id))

    found = fetch(conn, t.built("with_payload", build), {"mw_ids": [row.msg_id]})
    if not found:
        return None
    (now,) = rows_of(t, found)
    return row._replace(payload=now.payload, flaw=now.flaw)


def bare_rows(t: Tables, found: Sequence[Any], first: int = 0) -> list[Bare]:
    """As `rows_of`, without their names."""
    bare: list[Bare] = [row[first:] for row in found]
    if isinstance(found, Escaped):
        return [tuple(judged(t, Row(*row))) for row in bare]
    # Nearly all have the one small 0 of the interpreter.
    counted = [r for r in bare if not (r[4] is NIL and r[5] is NIL and r[6] is NIL)]
    numbers = list(map(_ROW_NUMBERS, counted))
    if types_of(numbers) - INT or min(map(min, numbers), default=0) < 0:
        return [tuple(judged(t, Row(*row))) for row in bare]
    return bare


def judged(t: Tables, row: Row) -> Row:
    """A row whose counters are numbers from 0 on, or with the reason why it cannot be handled."""
    odd = None
    for role, text in (
        ("object_id", row.object_id),
        ("topic", row.topic),
        ("payload", row.payload),
    ):
        if isinstance(text, str) and not is_text(text):
            odd = odd or f"{t.names[role]} holds {quoted(text)}, which is not UTF-8"
    numbers = {}
    for role in ("error_try_times", "crash_times", "later_times"):
        value = getattr(row, "tries" if role == "error_try_times" else role)
        number = whole_number(value)
        if number is None:
            odd = odd or f"{t.names[role]} holds {quoted(value)}, which is not a whole number"
        elif not 0 <= number <= MOST_COUNTED:
            odd = odd or f"{t.names[role]} holds {quoted(value)}, which counts nothing"
            number = 0
        numbers[role] = number or 0
    tries, crashes, later = numbers.values()
    return row._replace(tries=tries, crash_times=crashes, later_times=later, flaw=odd or row.flaw)


def flagged_values(t: Tables) -> dict[str, Any]:
    """What a row gets with the flag."""
    return t.values(
        status=lit(Status.PROCESSING), claimed_by=ME, claimed_at=now(), available_at=sa.null()
    )


def mine_among(t: Tables) -> Select[Any]:
    """Those of the ids `mw_ids` that are flagged by us."""

    def build() -> Select[Any]:
        c = t.cols()
        return sa.select(c.msg_id).where(t.among(c.msg_id), t.mine(c, ME))

    return t.built("mine_among", build)


class RowKept(MsgworkerError):
    """The database has not kept what was written to a row, and said nothing, although the row is
    ours as before."""

    def __init__(self, t: Tables, msg_id: int, what: str = "its outcome") -> None:
        names = f" ({t.on_update})" if t.on_update else ""
        super().__init__(
            f"the database kept the row of message {msg_id} as it was, in whole or in part, when "
            f"{what} was written, without an error: see the triggers, rules and policies of the "
            f"table{names}"
        )
        self.msg_id = msg_id


class Expected(NamedTuple):
    """What a row holds after a change that takes it out of 1, or leaves it out; None = anything."""

    status: Status | None  # None = any but 1
    tries: int | None = None
    later_times: int | None = None
    waits: bool = False  # `available_at` is set


def check_written(
    conn: Connection, t: Tables, expected: Mapping[int, Expected], what: str = "its outcome"
) -> None:
    """Raise RowKept if a row is there and does not hold what this transaction has just written: the
    count of an UPDATE says what was sent, and a trigger or a rule may have set it back. One more
    statement, on tables that have such ones only."""
    if t.on_update and (kept := _unlike(conn, t, expected)):
        raise RowKept(t, min(kept), what)


def _unlike(conn: Connection, t: Tables, expected: Mapping[int, Expected]) -> list[int]:
    def is_set(column: ColumnElement[Any] | None) -> ColumnElement[Any]:
        return ZERO if column is None else sa.case((column.is_(None), ZERO), else_=ONE)

    def build() -> Select[Any]:
        c = t.cols()
        owned, waits = is_set(c.claimed_by), is_set(c.available_at)
        values = (c.msg_id, c.status, t.tries(c), or_zero(c.later_times), owned, waits)
        columns = [value.label(f"k{i}") for i, value in enumerate(values)]
        return sa.select(*columns).where(t.among(c.msg_id))

    statement, kept = t.built("written", build), list[int]()
    for portion in t.portions(list(expected)):
        for row in fetch(conn, statement, {"mw_ids": portion}):
            msg_id, status, tries, times, owned, waits = row
            want = expected[msg_id]
            is_out = status != Status.PROCESSING if want.status is None else status == want.status
            same = (
                is_out
                and want.tries in (None, tries)
                and want.later_times in (None, times)
                and (not want.waits or waits == 1)
                # a flag that comes from elsewhere would look like ours
                and (owned == 0 or want.status is Status.DONE)
            )
            if not same:
                kept.append(msg_id)
    return kept


def changed(
    conn: Connection, t: Tables, key: Any, change: sa.Update | sa.Delete, params: dict[str, Any]
) -> int:
    """Send an UPDATE or a DELETE of rows given by lists of ids; returns how many rows it has
    changed. key: of the statement, under which its text is kept."""
    key = ("change", key, *text_kind(conn))
    text = t.built(key, lambda: change_text_for(conn, change))
    if text is None:
        return conn.execute(change, params).rowcount
    return change_by_text(conn, text, params)


def sent_often(
    conn: Connection,
    t: Tables,
    key: Any,
    build: Callable[[], Any],
    params: dict[str, Any],
    *,
    kept: bool = False,
) -> Sequence[Any]:
    """The rows of the most frequent statements. Where lists are arrays (other drivers fail on some
    texts): sent as a text that is made once, and as the driver gives them, if SQLAlchemy would
    convert nothing; else by `fetch`. kept: as of `fetch_text`."""
    if t.database.arrays:
        place = ("text", key, *text_kind(conn))
        text = t.built(place, lambda: text_for(conn, t.built(key, build)))
        if text is not None:
            return fetch_text(conn, text, params, kept=kept)
    return fetch(conn, t.built(key, build), params)


def locked_by_key(t: Tables, query: sa.Select[Any]) -> sa.Select[Any]:
    """Rows given by id, locked in the order of their ids."""
    if t.orders_updates:
        query = query.with_hint(t.message, t.database.key_hint)
    return query.order_by(t.cols().msg_id).with_for_update()


Change = TypeVar("Change", bound=sa.Update | sa.Delete)


def by_key(t: Tables, change: Change) -> Change:
    """An UPDATE or a DELETE of rows given by id. Without the hint MariaDB and MySQL read a small
    table whole, and wait for rows that others have locked: two batches deadlock."""
    if not t.orders_updates:
        return change
    deletes = isinstance(change, sa.Delete)
    hint = t.database.delete_hint(t.message) if deletes else t.database.key_hint
    return cast(Change, change.with_hint(hint))


def in_guard_order(t: Tables, change: sa.Update) -> sa.Update:
    """An UPDATE that flags several rows, given by id, in the order of the guard. The last call on
    the statement: a condition that follows would be a part of the order (`in_order` of mysql.py),
    so a further `where` raises AssertionError on every database.

    Where the guard locks the gaps beside an entry, two that enter it in different orders deadlock.
    Rows are still locked by msg_id, as they are read; and in an object the old row leaves the guard
    before its next one comes. Without the hint a small table would be read whole, and rows that are
    to be sorted are waited for, also those that the conditions leave out.
    """
    if t.orders_updates:
        c = t.cols()
        change = t.database.in_order(change, c.object_id, c.msg_id)
        change = change.with_hint(t.database.key_hint)
    change.where = _has_all  # type: ignore[method-assign]
    return change


def _has_all(*_: Any) -> NoReturn:
    raise AssertionError("a condition behind in_guard_order would be a part of the order")


def refuse_at_once(conn: Connection, t: Tables) -> None:
    """Make deferred constraints check at each statement until the end of the transaction: an error
    at COMMIT does not name its row, and rolls back all others."""
    if t.database.defers:
        conn.execute(t.built("immediate", lambda: sa.text("SET CONSTRAINTS ALL IMMEDIATE")))


def among_ids(conn: Connection, t: Tables, query: Any, ids: Iterable[int]) -> Iterator[Any]:
    """The rows of a query of the messages `mw_ids`, asked in as many portions as it takes."""
    for portion in t.portions(list(ids)):
        yield from conn.execute(query, {"mw_ids": portion})


def in_union(t: Tables, query: Select[Any], name: str) -> Select[Any]:
    """A query with an order or a limit, as a part of a UNION."""
    return query if t.database.bare_unions else sa.select(query.subquery(name))


# --- Running rows, by their index: few entries, whatever the size of the table.


def from_indexes(
    t: Tables,
    at: Callable[[Cols, Cols], Sequence[Entries]],
    columns: Callable[[Cols], Sequence[ColumnElement[Any]]],
    where: Callable[[Cols], Sequence[ColumnElement[bool]]] = lambda _: (),
    index: str | None = None,
) -> list[Select[Any]]:
    """The rows that `at` finds (`Tables.running_rows`, ...), a SELECT for each index that they are
    in. index: read this one instead."""
    sources = (t.message.alias("a"), t.message.alias("b"))
    return [
        t.hinted(sa.select(*columns(c)), source, index or named).where(rows, *where(c))
        for source, (c, named, rows) in zip(sources, at(*map(t.cols, sources)), strict=False)
    ]


def of_running(
    t: Tables,
    columns: Callable[[Cols], Sequence[ColumnElement[Any]]],
    where: Callable[[Cols], Sequence[ColumnElement[bool]]] = lambda _: (),
) -> Any:
    """A SELECT of running rows, by their index."""
    return in_all(from_indexes(t, t.running_rows, columns, where))


def in_all(selects: Sequence[Any]) -> Any:
    """The rows of all of them."""
    return sa.union_all(*selects) if len(selects) > 1 else selects[0]


def running_ids(t: Tables) -> sa.Subquery:
    """The ids of all running rows, as a subquery with the column `i`."""
    found: sa.Subquery = of_running(t, lambda c: [c.msg_id.label("i")]).subquery("rids")
    return found
