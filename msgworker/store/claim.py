"""Find candidates, flag heads, read runs.

Candidates are only a hint: they may be stale, filtered or wrong. `flag` is the law: it takes a row
only with the status and tries that were seen, if it is the head of its object, and if the guard
agrees. A run is read in a new statement after the flag has committed; read earlier it could be
stale: until we have the flag, others may run what stands in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker.dialects import (
    AnyText,
    Escaped,
    Trouble,
    fetch,
    folded,
    instant_of,
    instant_text,
    now,
    text_length,
    trouble,
    whole_number,
)
from msgworker.message import Status
from msgworker.payload import is_text, quoted
from msgworker.table import NO_OBJECT, Cols, Slice, Tables, lit, text_lit

RUNS_PER_STATEMENT = 50
PAGE = 1000
MOST_COUNTED = (1 << 31) - 1
"""A counter of a row that says more is none."""


class Candidate(NamedTuple):
    """A row that may be a head; only `due_after` fills `waits_until`, as `instant_text` reads it.

    status, tries: as the driver gives them, which need not be whole numbers: `flag` compares them.
    key: of the object, where ids that differ may be one to the database.
    """

    msg_id: int
    object_id: str | None
    status: int
    tries: Any
    crash_times: int
    topic: str | None
    due: int
    waits_until: Any
    key: Any = None

    @property
    def same(self) -> Any:
        """What is equal for two messages exactly where the database takes their objects for one;
        None without an object."""
        return self.object_id if self.key is None else self.key


class Row(NamedTuple):
    """A flagged message, or one of its run.

    created_at: as `instant_text` reads it.
    flaw: None for nearly all; the payload's length where it was too long to be read; or, as a text,
    why the message cannot be handled, whatever its handler: the column and what it holds.
    key: as of a candidate.
    """

    msg_id: int
    object_id: str | None
    topic: str | None
    payload: Any
    tries: int
    crash_times: int
    later_times: int
    created_at: Any
    flaw: int | str | None
    key: Any = None

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


# ---------------------------------------------------------------- candidates


def or_zero(column: ColumnElement[Any] | None) -> ColumnElement[Any]:
    """The column, 0 where it is NULL or not there."""
    return (
        sa.literal_column("0")
        if column is None
        else sa.func.coalesce(column, sa.literal_column("0"))
    )


_INT = {int}
_CANDIDATE_NUMBERS = itemgetter(0, 3, 4)
_ROW_NUMBERS = itemgetter(4, 5, 6)


def _types(values: Iterable[Iterable[Any]]) -> set[type]:
    """The types in many rows, at as little cost as can be."""
    return set(map(type, chain.from_iterable(values)))


def as_candidates(found: Sequence[Any]) -> list[Candidate]:
    """Rows that can be named: one whose id is no whole number nobody can claim.

    What stands in the counters may be anything. A message with such a counter does not live long
    enough for its quarantine.
    """
    made = [Candidate._make(row) for row in found]
    if not _types(map(_CANDIDATE_NUMBERS, made)) - _INT:
        return made
    return [_countable(c, i) for c in made if (i := whole_number(c.msg_id)) is not None]


def _countable(c: Candidate, msg_id: int) -> Candidate:
    crashes = whole_number(c.crash_times) if whole_number(c.tries) is not None else 0
    return c._replace(msg_id=msg_id, crash_times=crashes or 0)


def _key_column(t: Tables, c: Cols) -> list[ColumnElement[Any]]:
    return [sa.null() if t.fold is None else folded(c.object_id, t.fold)]


def hint_columns(t: Tables, c: Cols, waits_until: Any = None) -> list[ColumnElement[Any]]:
    topic = sa.null() if c.topic is None else c.topic
    due = sa.case((t.due(c), sa.literal_column("1")), else_=sa.literal_column("0"))
    until = sa.null() if waits_until is None else waits_until
    columns = [
        c.msg_id,
        c.object_id,
        c.status,
        t.tries(c),
        or_zero(c.crash_times),
        topic,
        due,
        until,
        *_key_column(t, c),
    ]
    return [column.label(f"h{i}") for i, column in enumerate(columns)]


def oldest(conn: Connection, t: Tables, *, mark: int, limit: int) -> list[Candidate]:
    """Open rows that wait for no instant, in order of age, from `mark` on."""

    def build() -> Select[Any]:
        c = t.cols()
        key = t.oldest_key(c)
        query = t.hinted(sa.select(*hint_columns(t, c)), t.message, "oldest")
        return (
            query.where(t.oldest_rows(c), key >= bindparam("mark", type_=sa.BigInteger()))
            .order_by(key)
            .limit(bindparam("rows", type_=sa.Integer()))
        )

    return as_candidates(fetch(conn, t.built("oldest", build), {"mark": mark, "rows": limit}))


def due_after(
    conn: Connection, t: Tables, *, since: tuple[Any, int] | None, limit: int
) -> list[Candidate]:
    """Rows whose instant has come, after the (`waits_until`, msg_id) `since`, in that order; None =
    from the first."""
    if not t.has("available_at"):
        return []

    def build(from_start: bool) -> Select[Any]:
        c = t.cols()
        assert c.available_at is not None
        query = t.hinted(
            sa.select(*hint_columns(t, c, instant_text(c.available_at))), t.message, "due"
        )
        query = query.where(t.unfinished(c), c.available_at.is_not(None), c.available_at <= now())
        if not from_start:
            at: Any = instant_of(bindparam("at", type_=AnyText()))
            query = query.where(
                c.available_at >= at,
                sa.or_(c.available_at > at, c.msg_id > bindparam("id", type_=sa.BigInteger())),
            )
        query = query.order_by(c.available_at, c.msg_id)
        return query.limit(bindparam("rows", type_=sa.Integer()))

    statement = t.built(("due", since is None), partial(build, since is None))
    at, msg_id = since or (None, None)
    return as_candidates(fetch(conn, statement, {"at": at, "id": msg_id, "rows": limit}))


def heads(conn: Connection, t: Tables, *, after: Any, limit: int) -> tuple[list[Candidate], Any]:
    """The head of each object behind the object `after` (None = from the first), and the next
    cursor.

    The cursor is None when the last object was reached. Costs one index step per object, or a page
    of index entries per statement, never the rows of a deep object.
    """
    return _hop(conn, t, after, limit) if t.dialect.hops else _page(conn, t, after, limit)


def _hop(conn: Connection, t: Tables, after: Any, limit: int) -> tuple[list[Candidate], Any]:
    def build(from_start: bool) -> Select[Any]:
        first_row = t.message.alias("f")
        first = t.cols(first_row)
        after_it: ColumnElement[bool] = first.object_id.is_not(None)
        if not from_start:
            after_it = first.object_id > bindparam("after", type_=t.key_type)
        one = sa.literal_column("1", sa.Integer())
        start = t.hinted(sa.select(first.object_id), first_row, "object")
        start = start.where(t.unfinished(first), after_it).order_by(first.object_id).limit(one)
        ring = sa.select(start.scalar_subquery().label("o"), one.label("k")).cte(
            "ring", recursive=True
        )
        next_row = t.message.alias("n")
        hop = t.cols(next_row)
        next_object = (
            t.hinted(sa.select(hop.object_id), next_row, "object")
            .where(t.unfinished(hop), hop.object_id > ring.c.o)
            .order_by(hop.object_id)
            .limit(one)
            .scalar_subquery()
        )
        more = sa.select(next_object, ring.c.k + one).where(
            ring.c.o.is_not(None), ring.c.k < bindparam("objects", type_=sa.Integer())
        )
        ring = ring.union_all(more)
        head_row = t.message.alias("h")
        h = t.cols(head_row)
        head = (
            t.hinted(sa.select(h.msg_id), head_row, "object")
            .where(t.unfinished(h), h.object_id == ring.c.o)
            .order_by(h.msg_id)
            .limit(sa.literal_column("1"))
            .scalar_subquery()
        )
        c = t.cols()
        return sa.select(*hint_columns(t, c), ring.c.k).select_from(
            ring.join(t.message, c.msg_id == head)
        )

    key = ("hop", after is None)
    statement = t.built(key, lambda: build(after is None))
    found = fetch(conn, statement, {"after": after, "objects": limit})
    found = sorted(found, key=lambda row: row[-1])
    rows = as_candidates([row[:-1] for row in found])
    return rows, found[-1][1] if len(found) >= limit else None


def _page(conn: Connection, t: Tables, after: Any, limit: int) -> tuple[list[Candidate], Any]:
    def build(from_start: bool) -> Select[Any]:
        source = t.message.alias("p")
        p = t.cols(source)
        key = t.open_object(p)
        page = sa.select(key.label("o"), t.open_msg_id(p).label("i"))
        page = t.hinted(page, source, "object")
        if from_start:
            page = page.where(key.is_not(None))
        else:
            page = page.where(key > bindparam("after", type_=t.key_type))
        page = page.order_by(key, t.open_msg_id(p)).limit(bindparam("rows", type_=sa.Integer()))
        w = page.subquery("w")
        first = (
            sa.select(w.c.o.label("o"), sa.func.min(w.c.i).label("i"), sa.func.count().label("n"))
            .group_by(w.c.o)
            .subquery("g")
        )
        c = t.cols()
        return (
            sa.select(*hint_columns(t, c), first.c.o, first.c.n)
            .select_from(first.join(t.message, c.msg_id == first.c.i))
            .order_by(first.c.o)
        )

    seen: list[Candidate] = []
    rows_read = max(PAGE, limit)
    while len(seen) < limit:
        from_start = after is None
        statement = t.built(("page", from_start), partial(build, from_start))
        found = fetch(conn, statement, {"after": after, "rows": rows_read})
        seen += as_candidates([row[:-2] for row in found if row[1] is not None])
        if sum(row[-1] for row in found) < rows_read:
            return seen, None
        after = found[-1][-2]
    return seen, after


def loose(conn: Connection, t: Tables, *, after: int, limit: int) -> list[Candidate]:
    """Open rows without an object, by msg_id, behind `after`."""

    def build() -> Select[Any]:
        c = t.cols()
        if t.dialect.partial_indexes:
            where: Sequence[ColumnElement[bool]] = (t.unfinished(c), c.object_id.is_(None))
        else:
            where = (t.open_object(c) == text_lit(NO_OBJECT),)
        key = t.open_msg_id(c)
        # Without a hint a planner may prefer the primary key, and walk over all finished rows; this
        # order, whose first key is the same in all rows, is one that only the object index gives.
        order = [] if t.dialect.index_hint else [c.object_id]
        query = t.hinted(sa.select(*hint_columns(t, c)), t.message, "object")
        return (
            query.where(*where, key > bindparam("after", type_=sa.BigInteger()))
            .order_by(*order, key)
            .limit(bindparam("rows", type_=sa.Integer()))
        )

    return as_candidates(fetch(conn, t.built("loose", build), {"after": after, "rows": limit}))


# ---------------------------------------------------------------- flag


def _row_columns(t: Tables, c: Cols) -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = [
        c.msg_id,
        c.object_id,
        sa.null() if c.topic is None else c.topic,
    ]
    if c.payload is None:
        payload: ColumnElement[Any] = sa.null()
        oversize: ColumnElement[Any] = sa.null()
    else:
        most: ColumnElement[int] = sa.literal_column(str(t.spec.max_payload))
        kind, texts = c.payload.type, (sa.String, sa.LargeBinary, sa.BINARY, sa.VARBINARY)
        plain = t.dialect.loose_types and not isinstance(kind, sa.JSON)
        text = c.payload if plain or isinstance(kind, texts) else sa.cast(c.payload, sa.Text())
        length = text_length(text)
        payload = sa.case((length <= most, text))
        oversize = sa.case((length > most, length))
    columns += [
        payload,
        t.tries(c),
        or_zero(c.crash_times),
        or_zero(c.later_times),
        sa.null() if c.created_at is None else instant_text(c.created_at),
        oversize,
        *_key_column(t, c),
    ]
    return [column.label(f"r{i}") for i, column in enumerate(columns)]


def _rows(t: Tables, found: Sequence[Any], first: int = 0) -> list[Row]:
    """Rows of which `_row_columns` begin at the place `first`."""
    made = [Row._make(row[first:] if first else row) for row in found]
    numbers = list(map(_ROW_NUMBERS, made))
    if (
        isinstance(found, Escaped)
        or _types(numbers) - _INT
        or min(map(min, numbers), default=0) < 0
    ):
        return [_judged(t, row) for row in made]
    return made


def _judged(t: Tables, row: Row) -> Row:
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


# In statements that write, parameters are named mw_...: a name that is a column's too is refused.
ME: ColumnElement[Any] = bindparam("mw_me", type_=AnyText())


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


def array_param(name: str, kind: sa.types.TypeEngine[Any]) -> ColumnElement[Any]:
    """An array of numbers that travels as one text, see `array_text`: much cheaper to bind."""
    return sa.cast(bindparam(name, type_=sa.Text()), sa.ARRAY(kind))


def array_text(numbers: Iterable[int]) -> str:
    """Numbers as the text of an array."""
    return "{" + ",".join(map(str, numbers)) + "}"


def flag(conn: Connection, t: Tables, candidates: Sequence[Candidate], *, me: str) -> list[Row]:
    """Flag the candidates that are still what they were seen as; return the rows won, by msg_id.

    In the caller's transaction. Rows that somebody else holds, changed or got in front of are left
    out; none won gives []. Raises IntegrityError or LeftAlone if the guard finds a running message
    that the statement could not see, and if the database refuses to change a row for whatever
    reason of its own: roll back and call `flag_apart`.
    """
    if t.dialect.arrays:
        return _flag_arrays(conn, t, candidates, me)
    won: list[Row] = []
    for start in range(0, len(candidates), t.dialect.max_ids):
        part = candidates[start : start + t.dialect.max_ids]
        won += _flag_locked(conn, t, part, me, loud=False)
    return won


class LeftAlone(Exception):
    """Rows that were free have not been flagged, and the database was told not to say why."""


OF_A_ROW = (Trouble.RACE, Trouble.OTHER)
"""Errors that may be about one row of a batch."""


def refuse_at_once(conn: Connection, t: Tables) -> None:
    """Let what is deferred to the COMMIT refuse at the statement, until the end of the transaction:
    a COMMIT does not say whose row it is about, and takes the others with it."""
    if t.dialect.defers:
        conn.execute(t.built("immediate", lambda: sa.text("SET CONSTRAINTS ALL IMMEDIATE")))


def flag_apart(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], *, me: str
) -> tuple[list[Row], dict[int, DBAPIError]]:
    """`flag` in halves, each in its savepoint, down to single rows: one that the database refuses
    costs only itself. Returns the rows won and, by msg_id, why others were refused; the guard may
    be why."""
    if not candidates:
        return [], {}
    try:
        with conn.begin_nested():
            if t.dialect.arrays:
                return _flag_arrays(conn, t, candidates, me), {}
            return _flag_locked(conn, t, candidates, me, loud=True), {}
    except DBAPIError as error:
        if trouble(error) not in OF_A_ROW:
            raise
        if len(candidates) == 1:
            return [], {candidates[0].msg_id: error}
    half = len(candidates) // 2
    won, refused = flag_apart(conn, t, candidates[:half], me=me)
    more, too = flag_apart(conn, t, candidates[half:], me=me)
    return won + more, refused | too


def _is_head(t: Tables, c: Cols) -> list[ColumnElement[bool]]:
    return [
        t.claimable(c),
        t.due(c),
        sa.not_(t.earlier_unfinished(c)),
        sa.not_(t.object_is_running(c)),
    ]


def _flag_locked(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], me: str, *, loud: bool
) -> list[Row]:
    """Lock, compare, update by primary key. loud: a row that the guard, or whatever else, does not
    let through raises what the database says to it, else LeftAlone."""

    def lock() -> Select[Any]:
        c = t.cols()
        query = sa.select(c.status, *_row_columns(t, c)).where(t.among(c.msg_id), *_is_head(t, c))
        query = query.order_by(c.msg_id)
        if not t.dialect.row_locks:
            return query
        return query.with_for_update(skip_locked=t.dialect.skip_locked)

    def update(loud: bool) -> sa.Update:
        c = t.cols()
        change = (
            sa.update(t.message).where(t.among(c.msg_id), t.claimable(c)).values(flagged_values(t))
        )
        ignore = None if loud else t.dialect.update_ignore
        return change.prefix_with(ignore) if ignore else change

    seen = {c.msg_id: (c.status, c.tries) for c in candidates}
    found = fetch(conn, t.built("flag_lock", lock), {"mw_ids": list(seen)})
    same = [r for r in found if seen[r[1]] == (r[0], r[5])]
    rows = _rows(t, Escaped(same) if isinstance(found, Escaped) else same, 1)
    if not rows:
        return []
    ids = [row.msg_id for row in rows]
    statement = t.built(("flag_update", loud), partial(update, loud))
    done = conn.execute(statement, {"mw_ids": ids, "mw_me": me})
    if done.rowcount == len(ids) and not t.dialect.counts_ignored:
        return rows
    back = set(conn.scalars(mine_among(t), {"mw_ids": ids, "mw_me": me}))
    if len(back) < len(rows) and t.dialect.update_ignore and not loud:
        raise LeftAlone
    return [row for row in rows if row.msg_id in back]


def _flag_arrays(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], me: str
) -> list[Row]:
    """The same in one statement and one round trip."""

    def build() -> Any:
        seen = (
            sa.func.unnest(
                array_param("mw_ids", sa.BigInteger()),
                # Of a kind that takes what any column of numbers may hold, NaN too.
                array_param("mw_statuses", sa.Numeric()),
                array_param("mw_tries", sa.Numeric()),
            )
            .table_valued("msg_id", "status", "tries")
            .render_derived(name="seen")
        )
        target = t.message.alias("m")
        c = t.cols(target)
        # Asked of what was seen, which the row must equal: said of the row itself it would let the
        # planner walk an index of open rows, which old statistics may call empty.
        claimable = sa.or_(
            seen.c.status == lit(Status.NEW),
            sa.and_(
                seen.c.status == lit(Status.FAILED),
                seen.c.tries < sa.literal_column(str(t.spec.max_tries)),
            ),
        )
        locked = (
            sa.select(c.msg_id.label("msg_id"))
            .select_from(target.join(seen, c.msg_id == seen.c.msg_id))
            .where(c.status == seen.c.status, t.tries(c) == seen.c.tries, claimable)
            .where(*_is_head(t, c)[1:])
            .order_by(c.msg_id)
            .with_for_update(skip_locked=True, of=target)
            .cte("locked")
            .prefix_with("MATERIALIZED")
        )
        plain = t.cols()
        return (
            sa.update(t.message)
            .where(plain.msg_id == locked.c.msg_id)
            .values(flagged_values(t))
            .returning(*_row_columns(t, plain))
        )

    found = conn.execute(
        t.built("flag_arrays", build),
        {
            "mw_ids": array_text(c.msg_id for c in candidates),
            "mw_statuses": array_text(c.status for c in candidates),
            "mw_tries": array_text(c.tries for c in candidates),
            "mw_me": me,
        },
    ).all()
    return sorted(_rows(t, found), key=lambda row: row.msg_id)


# ---------------------------------------------------------------- runs


def read_runs(
    conn: Connection,
    t: Tables,
    heads_flagged: Sequence[Row],
    *,
    limit: int,
    within: Slice | None = None,
) -> dict[int, list[Row]]:
    """The run behind each flagged head: head's msg_id -> rows to go on with, maybe empty.

    To be called after the flags have committed. A run holds rows at status 0 that are due, ends
    before the first unfinished row that is not, and is empty if a lower unfinished row has
    appeared. within: it also ends before the first row of another slice.
    """
    asked = [row for row in heads_flagged if row.object_id is not None]
    runs: dict[int, list[Row]] = {row.msg_id: [] for row in asked}
    if not asked or limit < 1:
        return runs
    read = _runs_lateral if t.dialect.arrays else _runs_union
    first: set[int] = set()
    ended: set[int] = set()
    role = None if within is None else within.role
    for place, startable, slice_value, row in read(conn, t, asked, limit + 1, role):
        if within is not None and slice_value not in within.values:
            startable = 0
        head = asked[place].msg_id
        if head in ended:
            continue
        if head not in first:
            first.add(head)
            if row.msg_id != head:  # a lower unfinished row has appeared
                ended.add(head)
        elif startable and row.msg_id > head:
            runs[head].append(row)
        else:
            ended.add(head)
    return runs


def _startable(t: Tables, c: Cols) -> ColumnElement[Any]:
    free = sa.and_(c.status == lit(Status.NEW), t.due(c))
    return sa.case((free, sa.literal_column("1")), else_=sa.literal_column("0"))


def _slice_column(t: Tables, c: Cols, role: str | None) -> list[ColumnElement[Any]]:
    return [] if role is None else [t.slice_value(c, role).label("v")]


def _runs_lateral(
    conn: Connection, t: Tables, asked: Sequence[Row], limit: int, role: str | None
) -> Iterable[tuple[int, int, Any, Row]]:
    def build() -> Select[Any]:
        objects = (
            sa.func.unnest(
                array_param("places", sa.Integer()),
                bindparam("objects", type_=sa.ARRAY(t.object_type)),
            )
            .table_valued("place", "object_id")
            .render_derived(name="o")
        )
        c = t.cols(t.message.alias("m"))
        rows = (
            sa.select(_startable(t, c).label("s"), *_slice_column(t, c, role), *_row_columns(t, c))
            .where(c.object_id == objects.c.object_id, t.unfinished(c))
            .order_by(c.msg_id)
            .limit(bindparam("rows", type_=sa.Integer()))
            .lateral("r")
        )
        return sa.select(objects.c.place, rows).select_from(objects.join(rows, sa.true()))

    found = conn.execute(
        t.built(("runs_lateral", role), build),
        {
            "places": array_text(range(len(asked))),
            "objects": [row.object_id for row in asked],
            "rows": limit,
        },
    ).all()
    return _placed(t, found, 0, role)


def _placed(
    t: Tables, found: Sequence[Any], start: int, role: str | None
) -> list[tuple[int, int, Any, Row]]:
    first = 2 if role is None else 3
    rows = zip(found, _rows(t, found, first), strict=True)
    return [(start + f[0], f[1], None if role is None else f[2], row) for f, row in rows]


def _key(t: Tables, object_id: Any) -> Any:
    return str(object_id) if t.dialect.case_index else object_id


def _runs_union(
    conn: Connection, t: Tables, asked: Sequence[Row], limit: int, role: str | None
) -> Iterable[tuple[int, int, Any, Row]]:
    """One branch per object; the statement always has the same number of branches, unused ones ask
    for no object, so it is built and prepared once."""

    def build(branches: int) -> Any:
        parts = []
        for i in range(branches):
            source = t.message.alias("m")
            c = t.cols(source)
            place: ColumnElement[Any] = sa.literal_column(str(i)).label("p")
            query = sa.select(
                place, _startable(t, c).label("s"), *_slice_column(t, c, role), *_row_columns(t, c)
            )
            branch = (
                t.hinted(query, source, "object")
                .where(t.open_object(c) == bindparam(f"o{i}", type_=t.key_type), t.open_rows(c))
                .order_by(t.open_msg_id(c))
                .limit(bindparam("rows", type_=sa.Integer()))
            )
            # Derived tables that hold payloads are written to disk by MariaDB (and crashed a
            # 10.11).
            bare = t.dialect.bare_unions
            parts.append(branch if bare else sa.select(branch.subquery(f"q{i}")))
        return sa.union_all(*parts) if branches > 1 else parts[0]

    out: list[tuple[int, int, Any, Row]] = []
    for start in range(0, len(asked), RUNS_PER_STATEMENT):
        part = asked[start : start + RUNS_PER_STATEMENT]
        branches = 1 if len(part) == 1 else RUNS_PER_STATEMENT
        params: dict[str, Any] = {f"o{i}": None for i in range(branches)}
        params |= {f"o{i}": _key(t, row.object_id) for i, row in enumerate(part)}
        params["rows"] = limit
        statement = t.built(("runs_union", branches, role), partial(build, branches))
        found = _placed(t, fetch(conn, statement, params), start, role)
        # A union promises no order; each object's rows must come by age.
        found.sort(key=lambda f: (f[0], f[3].msg_id))
        out += found
    return out
