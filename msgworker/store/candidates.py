"""Candidates for a claim: by age, by instant, by object.

They are hints: the flagging statement (claim.py) checks everything again. One file, because all
ways to find them read the same columns, and filter topics by the same comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam

from msgworker.db.clock import has_come, instant_of, instant_text, now
from msgworker.db.connections import fetch
from msgworker.db.types import AnyText, bytewise, or_text, whole_number
from msgworker.message import DEFAULT_TOPIC, topic_of
from msgworker.store.controls import topic_or_held
from msgworker.store.rows import INT, MIN_ID, key_column, or_zero, sent_often, types_of
from msgworker.table.columns import Cols
from msgworker.table.tables import ONE, ZERO, Tables, text_lit

PAGE = 1000


class Candidate(NamedTuple):
    """A row that may be a head."""

    msg_id: int
    object_id: str | None
    # As the driver gives them, which need not be whole numbers: `flag` compares them.
    status: int
    tries: Any
    crash_times: int
    topic: str | None
    due: int
    waits_until: Any = None  # as `instant_text` reads it; only `due_after` fills it
    key: Any = None  # of the object, where ids that differ may be one to the database

    @property
    def same(self) -> Any:
        """A key that is equal for two messages if and only if the database compares their objects
        as equal; None without an object."""
        return self.object_id if self.key is None else self.key


_CANDIDATE_NUMBERS = itemgetter(*map(Candidate._fields.index, ("msg_id", "tries", "crash_times")))


def as_candidates(found: Sequence[Any]) -> list[Candidate]:
    """Rows with usable ids: a row whose id is not a whole number cannot be claimed. Counters may
    hold any value: with an invalid one a message becomes dead before its quarantine matters."""
    made = [Candidate(*row) for row in found]
    if not types_of(map(_CANDIDATE_NUMBERS, made)) - INT:
        return made
    return [_countable(c, i) for c in made if (i := whole_number(c.msg_id)) is not None]


def _countable(c: Candidate, msg_id: int) -> Candidate:
    crashes = whole_number(c.crash_times) if whole_number(c.tries) is not None else 0
    return c._replace(msg_id=msg_id, crash_times=crashes or 0)


def hint_columns(t: Tables, c: Cols, waits_until: Any = None) -> list[ColumnElement[Any]]:
    """The columns of a Candidate, in its order: where a key follows, with a NULL before it. What a
    query selects behind them (ranked.py, slices.py) is read by its place from the end."""
    topic = topic_or_held(t, c)
    due = sa.case((t.due(c), ONE), else_=ZERO)
    until = [] if waits_until is None else [waits_until]
    if not until and t.fold is not None:  # the key stands behind it
        until = [sa.null()]
    columns = [
        c.msg_id,
        c.object_id,
        c.status,
        t.tries(c),
        or_zero(c.crash_times),
        topic,
        due,
        *until,
        *key_column(t, c),
    ]
    return [column.label(f"h{i}") for i, column in enumerate(columns)]


SHARE_BLOCK = 16
"""So many ids in a row are of one share: where servers number rows in steps, as Galera's do, each
share still gets its part."""


def share_of_id(msg_id: int, slots: int) -> int:
    """Whose a message without an object is, of so many shares."""
    return msg_id // SHARE_BLOCK % slots


def _in_share(c: Cols) -> ColumnElement[bool]:
    period, least, most = (
        bindparam(name, type_=sa.BigInteger()) for name in ("period", "least", "most")
    )
    # A remainder has the sign of the id.
    return ((c.msg_id % period + period) % period).between(least, most)


def _of_share(share: tuple[int, int] | None) -> dict[str, int]:
    """The parameters of `_in_share`."""
    if share is None:
        return {}
    slot, slots = share
    least, most = slot * SHARE_BLOCK, (slot + 1) * SHARE_BLOCK - 1
    return {"period": slots * SHARE_BLOCK, "least": least, "most": most}


def oldest(
    conn: Connection, t: Tables, *, mark: int, limit: int, share: tuple[int, int] | None = None
) -> list[Candidate]:
    """Open rows that wait for no instant, in order of age, from `mark` on; without those that run
    and have no object, since nothing waits behind them. share: which one, and of how many; of the
    rows without an object only those in it are read."""

    def build() -> Select[Any]:
        c = t.cols()
        key = t.oldest_key(c)
        query = t.hinted(sa.select(*hint_columns(t, c)), t.message, "oldest")
        query = query.where(t.oldest_rows(c), key >= bindparam("mark", type_=sa.BigInteger()))
        if share is not None:
            query = query.where(sa.or_(c.object_id.is_not(None), _in_share(c)))
        return query.order_by(key).limit(bindparam("mw_rows", type_=sa.Integer()))

    params = {"mark": mark, "mw_rows": limit, **_of_share(share)}
    kind = "oldest" if share is None else "oldest of a share"
    return as_candidates(sent_often(conn, t, kind, build, params))


TOPIC = Candidate._fields.index("topic")


def topic_among(t: Tables, topic: ColumnElement[Any], *, but: bool) -> ColumnElement[bool]:
    """The topic of a row is one of `mw_topics` (but: none of them), compared exactly."""
    name: ColumnElement[Any] = bytewise(or_text(bytewise(topic), text_lit(DEFAULT_TOPIC)))
    names: Any = bindparam("mw_topics", expanding=True)
    return name.not_in(names) if but else name.in_(names)


def _reach(
    conn: Connection, t: Tables, key: Any, page: Callable[[], Any], params: dict[str, Any]
) -> tuple[int, Any]:
    """How many rows a page has, and the last key (`k`) of them. It is read before they are: those
    that end between the two let the page read further, not less."""

    def build() -> Select[Any]:
        w = page().subquery("w").c
        return sa.select(sa.func.count().label("n"), sa.func.max(w.k).label("last"))

    read, last = conn.execute(t.built(key, build), params).one()
    return int(read), last


class Among(NamedTuple):
    """Candidates of some topics. last: the highest msg_id read for them, None = none was left.
    whole: the newest row was reached."""

    rows: list[Candidate]
    last: int | None
    whole: bool


def oldest_among(
    conn: Connection,
    t: Tables,
    topics: Collection[str],
    *,
    but: bool,
    mark: int,
    limit: int,
    span: int,
) -> Among:
    """`oldest` of these topics alone (but: of all others), among the next `span` rows: a bounded
    step, however many of other topics are in front. Where no index has rows by age, those that
    have ended count, too."""
    by_age = t.database.oldest_index

    def pages(*columns: ColumnElement[Any]) -> Any:
        c = t.cols()
        key = t.oldest_key(c)
        query = sa.select(key.label("k"), *columns)
        if by_age:
            query = t.hinted(query, t.message, "oldest").where(t.oldest_rows(c))
        query = query.where(key >= bindparam("mark", type_=sa.BigInteger()))
        return query.order_by(key).limit(bindparam("span", type_=sa.Integer()))

    def build() -> Select[Any]:
        c = t.cols()
        hints = hint_columns(t, c)
        is_open = [] if by_age else [sa.case((t.unfinished(c), ONE)).label("u")]
        w = pages(*hints, *is_open).subquery("w").c
        query = sa.select(*(w[hint.name] for hint in hints))
        query = query.where(topic_among(t, w[hints[TOPIC].name], but=but))
        if not by_age:
            query = query.where(w.u.is_not(None))
        return query.order_by(w.k).limit(bindparam("mw_rows", type_=sa.Integer()))

    params = {"mark": mark, "span": span}
    names: dict[str, Any] = {"mw_topics": sorted(topics), "mw_rows": limit}
    read, last = _reach(conn, t, "oldest_end", pages, params)
    rows = as_candidates(fetch(conn, t.built(("oldest_among", but), build), params | names))
    if len(rows) >= limit:
        return Among(rows, rows[-1].msg_id, False)
    return Among(rows, None if last is None else int(last), read < span)


def newest(conn: Connection, t: Tables) -> int:
    """The highest id; `MIN_ID` without one."""
    found = conn.scalar(t.built("newest", lambda: sa.select(sa.func.max(t.cols().msg_id))))
    number = whole_number(found)
    return MIN_ID if number is None else number


def heads_of(conn: Connection, t: Tables, ids: Sequence[int]) -> list[Candidate]:
    """Those of these messages that are open and the heads of their objects, or have none, by
    msg_id."""

    def build() -> Select[Any]:
        c = t.cols()
        is_head = sa.not_(t.earlier_unfinished(c))
        query = sa.select(*hint_columns(t, c)).where(t.among(c.msg_id), t.unfinished(c), is_head)
        return query.order_by(c.msg_id)

    if not ids:
        return []
    return as_candidates(fetch(conn, t.built("heads_of", build), {"mw_ids": list(ids)}))


def due_after(
    conn: Connection, t: Tables, *, since: tuple[Any, int] | None, limit: int
) -> list[Candidate]:
    """Rows whose instant has passed, after the (`waits_until`, msg_id) `since`, in that order;
    None = from the first."""
    if not t.has("available_at"):
        return []
    statement = t.built(("due", since is None), partial(due_rows, t, since is None))
    at, msg_id = since or (None, None)
    return as_candidates(fetch(conn, statement, {"at": at, "id": msg_id, "mw_rows": limit}))


def due_rows(t: Tables, from_start: bool, *more: ColumnElement[Any]) -> Select[Any]:
    """The statement of `due_after`, with more columns."""
    c = t.cols()
    columns = hint_columns(t, c, instant_text(c["available_at"]))
    query = t.hinted(sa.select(*columns, *more), t.message, "due")
    query = query.where(
        t.unfinished(c), c["available_at"].is_not(None), has_come(c["available_at"], now())
    )
    if not from_start:
        at: Any = instant_of(bindparam("at", type_=AnyText()), c["available_at"])
        query = query.where(
            c["available_at"] >= at,
            sa.or_(c["available_at"] > at, c.msg_id > bindparam("id", type_=sa.BigInteger())),
        )
    query = query.order_by(c["available_at"], c.msg_id)
    return query.limit(bindparam("mw_rows", type_=sa.Integer()))


class Those(NamedTuple):
    """The messages of some topics (but: of all others)."""

    topics: Collection[str]
    but: bool

    def has(self, one: Candidate) -> bool:
        return (topic_of(one.topic) in self.topics) is not self.but


def heads(
    conn: Connection,
    t: Tables,
    *,
    after: Any,
    limit: int,
    those: Those | None = None,
    until: Any = None,
) -> tuple[list[Candidate], Any]:
    """The head of each object behind the object `after` (None = from the first), and the next
    cursor.

    The cursor is None after the last object. Costs one index step per object, or a page
    of index entries per statement, never the rows of a deep object. those: heads of other messages
    are not read; then it ends with, or before, the first page that has none of them. until: the
    last object to read, which is then the cursor behind it; with `those` alone, where pages are
    read.
    """
    if t.database.recursive_skip_scan:
        return _hop(conn, t, after, limit, those)
    return _page(conn, t, after, limit, those, until)


def _names(those: Those | None) -> dict[str, Any]:
    return {} if those is None else {"mw_topics": sorted(those.topics)}


def _hop(
    conn: Connection, t: Tables, after: Any, limit: int, those: Those | None
) -> tuple[list[Candidate], Any]:
    def build(from_start: bool) -> Select[Any]:
        first_row = t.message.alias("f")
        first = t.cols(first_row)
        after_it: ColumnElement[bool] = first.object_id.is_not(None)
        if not from_start:
            after_it = first.object_id > bindparam("after", type_=t.key_type)
        one = sa.literal_column("1", sa.Integer())
        start = t.hinted(sa.select(first.object_id), first_row, "object")
        start = start.where(t.open_rows(first), after_it).order_by(first.object_id).limit(one)
        ring = sa.select(start.scalar_subquery().label("o"), one.label("k")).cte(
            "ring", recursive=True
        )
        next_row = t.message.alias("n")
        hop = t.cols(next_row)
        next_object = (
            t.hinted(sa.select(hop.object_id), next_row, "object")
            .where(t.open_rows(hop), hop.object_id > ring.c.o)
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
            .where(t.open_rows(h), h.object_id == ring.c.o)
            .order_by(h.msg_id)
            .limit(ONE)
            .scalar_subquery()
        )
        c = t.cols()
        query = sa.select(*hint_columns(t, c), ring.c.k).select_from(
            ring.join(t.message, c.msg_id == head)
        )
        if those is None:
            return query
        last = ring.c.k >= bindparam("objects", type_=sa.Integer())  # the next cursor
        return query.where(sa.or_(topic_among(t, topic_or_held(t, c), but=those.but), last))

    key = ("hop", after is None, those and those.but)
    statement = t.built(key, lambda: build(after is None))
    found = fetch(conn, statement, {"after": after, "objects": limit} | _names(those))
    found = sorted(found, key=lambda row: row[-1])
    rows = as_candidates([row[:-1] for row in found])
    cursor = found[-1][1] if found and found[-1][-1] >= limit else None
    return rows if those is None else list(filter(those.has, rows)), cursor


def _page(
    conn: Connection, t: Tables, after: Any, limit: int, those: Those | None, until: Any
) -> tuple[list[Candidate], Any]:
    def read(from_start: bool, ends: bool) -> Select[Any]:
        source = t.message.alias("p")
        p = t.cols(source)
        key = t.open_object(p)
        page = sa.select(key.label("k"), t.open_msg_id(p).label("i"))
        page = t.hinted(page, source, "object")
        if from_start:
            page = page.where(key.is_not(None))
        else:
            page = page.where(key > bindparam("after", type_=t.key_type))
        if ends:
            page = page.where(key <= bindparam("last", type_=t.key_type))
        return page.order_by(key, t.open_msg_id(p)).limit(bindparam("mw_rows", type_=sa.Integer()))

    def build(from_start: bool) -> Select[Any]:
        w = read(from_start, those is not None).subquery("w").c
        first = (
            sa.select(w.k.label("o"), sa.func.min(w.i).label("i"), sa.func.count().label("n"))
            .group_by(w.k)
            .subquery("g")
        )
        c = t.cols()
        query = (
            sa.select(*hint_columns(t, c), first.c.o, first.c.n)
            .select_from(first.join(t.message, c.msg_id == first.c.i))
            .order_by(first.c.o)
        )
        if those is None:
            return query
        return query.where(topic_among(t, topic_or_held(t, c), but=those.but))

    seen: list[Candidate] = []
    rows_read = max(PAGE, limit)
    if those is not None and not those.but:  # few are wanted
        rows_read = max(PAGE // 4, limit)
    while len(seen) < limit:
        from_start = after is None
        key = "page", from_start, those and those.but
        params = {"after": after, "mw_rows": rows_read}
        if those is not None:
            bounded = until is not None
            page = partial(read, from_start, bounded)
            asked = params | {"last": until} if bounded else params
            read_rows, last = _reach(conn, t, ("page_end", from_start, bounded), page, asked)
            if last is None:
                return seen, until
            params |= {"last": last, "mw_rows": rows_read + PAGE} | _names(those)
        found = fetch(conn, t.built(key, partial(build, from_start)), params)
        rows = as_candidates([row[:-2] for row in found if row[1] is not None])
        seen += rows
        if those is None:
            read_rows, last = sum(row[-1] for row in found), found[-1][-2] if found else None
        if read_rows < rows_read:
            return seen, until
        if those is not None and not rows:
            return seen, after if seen else last
        after = last
    return seen, after


def without_object(
    conn: Connection,
    t: Tables,
    *,
    after: int | None,
    limit: int,
    those: Those | None = None,
    until: int | None = None,
    share: tuple[int, int] | None = None,
) -> tuple[list[Candidate], int | None]:
    """Open rows without an object, by msg_id, behind `after` (None = from the first), and the next
    cursor, None after the last one. those, until: see `heads`; then it is one page. share: as of
    `oldest`, for all topics."""

    def read(*columns: ColumnElement[Any], bounded: bool = False) -> Select[Any]:
        c = t.cols()
        key = t.open_msg_id(c)
        # Without a hint a planner may prefer the primary key, and read all finished rows; this
        # order, whose first key is the same in all rows, is one that only the object index gives.
        order = [] if t.database.index_hint else [c.object_id]
        query: Select[Any] = t.hinted(sa.select(*columns), t.message, "object")
        where = [*t.waiting_without_object(c), key > bindparam("after", type_=sa.BigInteger())]
        if bounded:
            where.append(key <= bindparam("last", type_=sa.BigInteger()))
        if share is not None:
            where.append(_in_share(c))
        query = query.where(*where).order_by(*order, key)
        return query.limit(bindparam("mw_rows", type_=sa.Integer()))

    def build(but: bool | None) -> Select[Any]:
        c = t.cols()
        hints = hint_columns(t, c)
        if but is None:
            return read(*hints)
        w = read(t.open_msg_id(c).label("k"), *hints, bounded=True).subquery("w").c
        query: Select[Any] = sa.select(*(w[hint.name] for hint in hints))
        return query.where(topic_among(t, w[hints[TOPIC].name], but=but)).order_by(w.k)

    params: dict[str, Any] = {"after": MIN_ID if after is None else after, "mw_rows": limit}
    if those is None:
        kind = "without_object" if share is None else "without_object of a share"
        statement = t.built(kind, partial(build, None))
        rows = as_candidates(fetch(conn, statement, params | _of_share(share)))
        return rows, rows[-1].msg_id if len(rows) == limit else None
    span, bounded = max(PAGE, limit), until is not None
    params["mw_rows"] = span

    def page() -> Select[Any]:
        return read(t.open_msg_id(t.cols()).label("k"), bounded=bounded)

    asked = params | {"last": until} if bounded else params
    read_rows, last = _reach(conn, t, ("without_object_end", bounded), page, asked)
    if last is None:
        return [], until
    statement = t.built(("without_object", those.but), partial(build, those.but))
    named = {"last": last, "mw_rows": span + PAGE, "mw_topics": sorted(those.topics)}
    rows = as_candidates(fetch(conn, statement, params | named))
    return rows, until if read_rows < span else int(last)
