"""Find candidates in slices of the table, for instances with a scope: in shards, in instance types,
and in a job.

One statement for many slices, along the index (slice, object, msg_id): it reads a page for each, or
hops from object to object; the end of this file is for where the index stands by age. Rows of
other slices, and the rows of a deep object after its first few, are never read. Like all
candidates these are a hint: `claim.flag` decides, and it looks at the messages of an object
wherever they are.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.db.connections import fetch
from msgworker.db.types import array_param, array_rows, array_text, json_rows, whole_number
from msgworker.message import Status
from msgworker.store.candidates import Candidate, as_candidates, hint_columns
from msgworker.store.rows import MIN_ID, in_union
from msgworker.table.columns import JOB, SLICES, Cols
from msgworker.table.tables import ONE, ZERO, Tables, job_status, lit

BRANCHES = (1, 4, 16)
"""Of a UNION; unused ones ask for nothing, so few statements are built and prepared."""


class Place(NamedTuple):
    """Where to continue in a slice: behind the object, or the msg_id, `after`; None = the first. Of
    shard 0 in a table of others: Both."""

    value: Any
    after: Any = None


class Both(NamedTuple):
    """Where to continue among the rows of shard 0 and among those of no shard (NULL), which are
    apart in the index: only the database knows which of two objects comes first. OVER = the end."""

    own: Any
    null: Any


LAST = (1 << 63) - 1
OVER: Any = object()
"""No place among others: those are in a Both."""


class _Shape(NamedTuple):
    """What a statement differs by. branches: of its UNION, 0 where arrays make one of it. begun:
    there is a place to continue behind, so that each is one range of the index. null: it reads the
    rows of no shard."""

    role: str
    branches: int
    begun: bool
    null: bool


_Build = Callable[[Tables, _Shape], Any]


class Page(NamedTuple):
    """The rows of a slice behind a place. after: where to continue; None = the end was reached.
    entries: those of the index that were read."""

    found: list[Candidate]
    after: Any
    entries: int = 0


def may_skip(t: Tables) -> bool:
    """Whether a statement may hop: a step for each object, else one for each of their messages.
    Pages are cheaper where objects have few."""
    return t.database.recursive_skip_scan and t.database.arrays


def heads(
    conn: Connection,
    t: Tables,
    role: str,
    places: Sequence[Place],
    rows: int,
    *,
    deep: bool = False,
) -> list[Page]:
    """For each place the first messages of the objects behind it, by object: of `rows` objects
    where the statement hops, else as far as that many entries of the index reach. deep: objects
    have many messages."""
    return _each(conn, t, role, places, rows, _hopped if deep and may_skip(t) else _heads)


def without_object(
    conn: Connection, t: Tables, role: str, places: Sequence[Place], rows: int
) -> list[Page]:
    """For each place up to `rows` messages without an object behind it, by msg_id."""
    return _each(conn, t, role, places, rows, _without_object)


def open_in(conn: Connection, t: Tables, role: str, value: Any, *, objects: bool = False) -> bool:
    """Whether a message of the slice waits; None = of no slice. objects: one that has an object."""
    c = t.cols()
    which = t.slice_key(c, role) == value  # None: IS NULL
    query = t.hinted(sa.select(ONE), t.message, SLICES[role]).where(which, t.slice_rows(c, role))
    query = query.where(c.object_id.is_not(None)) if objects else query
    if conn.scalar(query.limit(1)) is not None:
        return True
    apart = value == 0 and t.null_shard_apart(role)
    return apart and open_in(conn, t, role, None, objects=objects)


def open_values(conn: Connection, t: Tables, role: str, *, most: int = 100) -> set[Any]:
    """The slices in which a message waits, `most` of them at most: a step of the index for
    each."""
    c, found = t.cols(), set[Any]()
    key = t.slice_key(c, role)
    query: Any = t.hinted(sa.select(key), t.message, SLICES[role])
    query = query.where(t.slice_rows(c, role)).order_by(key).limit(1)
    last = conn.scalar(query.where(key.is_not(None)))
    while last is not None and last not in found:  # of a fraction a driver may round what is behind
        found.add(last)
        if len(found) == most:
            break
        last = conn.scalar(query.where(key > bindparam("value", last, type_=_type(role))))
    return found


def other_numbers(
    conn: Connection, t: Tables, *, most: int = 100, most_steps: int = 300
) -> set[int]:
    """The numbers in the column shard that `App.send` does not write, below 0 or too high, at which
    a message waits: up to `most` of them, the lowest of both kinds. A step of the index for each,
    and for what lies between: fractions, and where the index has them, messages that have ended."""

    def build() -> Any:
        source = t.message.alias("n")
        c = t.cols(source)
        key = t.slice_key(c, "shard")

        def first(*within: ColumnElement[bool]) -> Any:
            which = t.within(c, sa.and_(*within))
            query = t.hinted(sa.select(key), source, SLICES["shard"]).where(which)
            if not ended_too:
                query = query.where(t.slice_rows(c, "shard"))
            return query.order_by(key).limit(ONE).scalar_subquery()

        low, high = (bindparam(name, type_=sa.BigInteger()) for name in ("low", "high"))
        # Up to a last number: behind it stand texts and NaN, which no driver need be able to read.
        below, above = first(key >= low, key < ZERO), first(key >= high, key <= lit(LAST))
        return sa.select(below.label("below"), above.label("above"))

    # There the index has the rows that have ended, too: they are not passed one by one.
    ended_too = t.database.case_index == "column"
    statement = t.built("other_numbers", build)
    found = set[int]()
    begins: list[int | None] = [MIN_ID, t.spec.shards]
    for _ in range(most_steps):
        if len(found) >= most or begins == [None, None]:
            break
        params = dict(zip(("low", "high"), begins, strict=True))
        row = conn.execute(statement, params).first()
        if row is None:
            break
        numbers = [n for value in row if (n := whole_number(value)) is not None and n <= LAST]
        found |= {n for n in numbers if not ended_too or open_in(conn, t, "shard", n)}
        begins = [_behind(value) for value in row]
    return found


def _behind(value: Any) -> int | None:
    """The next whole number; None behind the last, and behind what is no number."""
    if not isinstance(value, int | float | Decimal) or not MIN_ID <= value < LAST:
        return None
    return math.floor(value) + 1


def _type(role: str) -> Any:
    return sa.BigInteger() if role == "shard" else sa.String()


def _each(
    conn: Connection, t: Tables, role: str, places: Sequence[Place], rows: int, build: _Build
) -> list[Page]:
    """For each place what stands behind it."""
    apart = t.null_shard_apart(role)
    asked = [part for place in places for part in _parts(place, apart=apart)]
    pages: dict[Any, Page] = {}
    for begun, null in itertools.product((False, True), repeat=2):
        alike = [p for p in asked if (p.after is not None, p.value is None) == (begun, null)]
        most = len(alike) if t.database.arrays else BRANCHES[-1]
        for start in range(0, len(alike), most or 1):
            some = alike[start : start + most]
            branches = 0 if t.database.arrays else next(b for b in BRANCHES if b >= len(some))
            pages |= _read(conn, t, some, rows, build, _Shape(role, branches, begun, null))
    if apart and any(place.value == 0 for place in places):
        pages[0] = _merged(pages.get(0), pages.get(None))
    return [pages[place.value] for place in places]


def _parts(place: Place, *, apart: bool) -> list[Place]:
    """Shard 0 among its own rows and among those of no shard (None), where these are apart."""
    if not apart or place.value != 0:
        return [place]
    own, null = place.after if isinstance(place.after, Both) else (place.after, place.after)
    parts = (Place(0, own), Place(None, null))
    return [part for part in parts if part.after is not OVER]


def _merged(own: Page | None, null: Page | None) -> Page:
    """Rows of shard 0 and of no shard, as one; None = its end was reached before."""
    there = [page for page in (own, null) if page is not None]
    found = [row for page in there for row in page.found]
    ends = [OVER if page is None or page.after is None else page.after for page in (own, null)]
    after = None if ends == [OVER, OVER] else Both(*ends)
    return Page(found, after, sum(page.entries for page in there))


def _read(
    conn: Connection, t: Tables, places: Sequence[Place], rows: int, build: _Build, shape: _Shape
) -> dict[Any, Page]:
    params: dict[str, Any] = {"mw_rows": rows}
    values = [0 if shape.null else place.value for place in places]
    afters = [place.after for place in places]
    if t.database.arrays:
        params["values"] = array_text(values) if shape.role == "shard" else values
        if shape.begun:
            params["afters"] = array_text(afters) if build is _without_object else afters
    else:
        unused = [None] * (shape.branches - len(places))
        params |= {f"v{i}": value for i, value in enumerate([*values, *unused])}
        if shape.begun:
            params |= {f"a{i}": after for i, after in enumerate([*afters, *unused])}
    statement = t.built(("slices", build.__name__, *shape), partial(build, t, shape))
    by_value: dict[Any, list[Any]] = {place.value: [] for place in places}
    # A row ends in: its slice, the key to continue behind, how many entries it stands for.
    for row in fetch(conn, statement, params):
        by_value[None if shape.null else row[-3]].append(row)
    pages: dict[Any, Page] = {}
    for value, found in by_value.items():
        entries = sum(row[-1] for row in found)
        kept = [row[:-3] for row in found if build is _without_object or row[1] is not None]
        after = None if entries < rows or not found else found[-1][-2]
        pages[value] = Page(as_candidates(kept), after, entries)
    return pages


def _asked(
    t: Tables, shape: _Shape, afters: ColumnElement[Any], after_type: Any
) -> tuple[list[tuple[Any, Any]], Any]:
    """The value and the place of each branch of a UNION; or of the one of a LATERAL, and that."""
    begun, branches = shape.begun, range(shape.branches)
    if not t.database.arrays:
        values = [bindparam(f"v{i}", type_=_type(shape.role)) for i in branches]
        places = [bindparam(f"a{i}", type_=after_type) if begun else None for i in branches]
        return list(zip(values, places, strict=True)), None
    value: Any = array_param("values", sa.BigInteger())
    if shape.role != "shard":
        value = bindparam("values", type_=sa.ARRAY(sa.Text()))
    s = array_rows("s", {"v": value} | ({"a": afters} if begun else {}))
    return [(s.c.v, s.c.a if begun else None)], s


def _is_in(t: Tables, c: Cols, shape: _Shape, value: Any) -> list[ColumnElement[bool]]:
    key = t.slice_key(c, shape.role)
    if not shape.null:
        return [key == value]
    # The branch is there once; a value that is not asked for makes it empty.
    return [key.is_(None), value == ZERO]


def _hopped(t: Tables, shape: _Shape) -> Any:
    """From object to object in each slice, a step of the index for each."""
    role, afters = shape.role, bindparam("afters", type_=sa.ARRAY(t.object_type))
    asked = _asked(t, shape, afters, t.object_type)[1]
    one = sa.literal_column("1", sa.Integer())

    def place(c: Cols, value: Any) -> tuple[ColumnElement[bool], ...]:
        key = t.slice_key(c, role)
        mine = key.is_(None) if shape.null else key == value
        return (mine, t.slice_rows(c, role))

    def step(alias: str, value: Any, after: Any) -> Any:
        source = t.message.alias(alias)
        c = t.cols(source)
        behind = c.object_id.is_not(None) if after is None else c.object_id > after
        query = t.hinted(sa.select(c.object_id), source, SLICES[role])
        query = query.where(*place(c, value), behind)
        return query.order_by(c.object_id).limit(one).scalar_subquery()

    first = step("f", asked.c.v, asked.c.a if shape.begun else None)
    begin = sa.select(asked.c.v.label("v"), first.label("o"), one.label("k"))
    ring = begin.cte("ring", recursive=True)
    more = sa.select(ring.c.v, step("n", ring.c.v, ring.c.o), ring.c.k + one).where(
        ring.c.o.is_not(None), ring.c.k < bindparam("mw_rows", type_=sa.Integer())
    )
    ring = ring.union_all(more)
    # LATERAL: no planner takes it for a join with the whole table
    source = t.message.alias("h")
    h = t.cols(source)
    row = sa.select(*hint_columns(t, h)).where(*place(h, ring.c.v), h.object_id == ring.c.o)
    w = row.order_by(h.msg_id).limit(one).lateral("w")
    found = sa.select(*w.c, ring.c.v, ring.c.o, one.label("n"))
    return found.select_from(ring.join(w, sa.true())).order_by(ring.c.v, ring.c.k)


def _heads(t: Tables, shape: _Shape) -> Any:
    role, kind = shape.role, t.object_type if t.database.arrays else t.key_type
    afters = bindparam("afters", type_=sa.ARRAY(t.object_type))
    made, asked = _asked(t, shape, afters, kind)
    selects: list[sa.Select[Any]] = []
    for i, (value, after) in enumerate(made):
        source = t.message.alias("p")
        p = t.cols(source)
        key = t.open_object(p)
        shown = ZERO if shape.null else value  # that of the row may differ by its case
        entry = (shown.label("v"), key.label("o"), t.open_msg_id(p).label("i"))
        page: sa.Select[Any] = sa.select(*entry)
        page = t.hinted(page, source, SLICES[role]).where(*_is_in(t, p, shape, value))
        page = page.where(*t.slice_entries(p, role))
        page = page.where(key.is_not(None) if after is None else key > after)
        page = page.order_by(key, t.open_msg_id(p)).limit(bindparam("mw_rows", type_=sa.Integer()))
        selects.append(_branch(t, page, asked, i))
    u = _together(selects).c
    grouped = sa.select(
        u.v.label("v"), u.o.label("o"), sa.func.min(u.i).label("i"), sa.func.count().label("n")
    )
    g = grouped.group_by(u.v, u.o).subquery("g")
    c = t.cols()
    rows = g.join(t.message, c.msg_id == g.c.i)
    found = sa.select(*hint_columns(t, c), g.c.v, g.c.o, g.c.n).select_from(rows)
    return found.order_by(g.c.v, g.c.o)


def _without_object(t: Tables, shape: _Shape) -> Any:
    role, afters = shape.role, array_param("afters", sa.BigInteger())
    made, asked = _asked(t, shape, afters, sa.BigInteger())
    selects: list[sa.Select[Any]] = []
    for i, (value, after) in enumerate(made):
        source = t.message.alias("p")
        p = t.cols(source)
        where = t.slice_without_object(p, role)
        shown = ZERO if shape.null else value  # that of the row may differ by its case
        key = t.open_msg_id(p)
        columns = (*hint_columns(t, p), shown.label("v"), key.label("k"), ONE.label("n"))
        page: sa.Select[Any] = sa.select(*columns)
        page = t.hinted(page, source, SLICES[role]).where(*_is_in(t, p, shape, value), *where)
        if after is not None:
            page = page.where(key > after)
        # Its first key is the same in all rows: an order that only the index of slices gives.
        order = [] if t.database.index_hint else [p.object_id]
        page = page.order_by(*order, key).limit(bindparam("mw_rows", type_=sa.Integer()))
        selects.append(_branch(t, page, asked, i))
    u = _together(selects)
    return sa.select(u).order_by(u.c.v, u.c.k)


def _branch(t: Tables, page: sa.Select[Any], asked: Any, number: int) -> sa.Select[Any]:
    """A page as a part of the UNION; or, in a LATERAL, those of all that are asked for."""
    if asked is None:
        return in_union(t, page, f"q{number}")
    w = page.lateral("w")
    return sa.select(*w.c).select_from(asked.join(w, sa.true()))


def _together(selects: Sequence[sa.Select[Any]]) -> sa.Subquery:
    return (sa.union_all(*selects) if len(selects) > 1 else selects[0]).subquery("u")


# --- Find candidates in slices whose index is in order of age: (slice, msg_id, object).
#
# For a database that writes whole pages (SQLite). Messages that are flagged together are
# neighbours in this index, so a claim changes few pages; in order of object each would change a
# page of its own. The price: messages behind the head of an object are read, as entries of the
# index, and left out.


def heads_by_age(
    conn: Connection, t: Tables, role: str, places: Sequence[Place], rows: int
) -> list[Page]:
    """For each place, those among the next `rows` waiting messages behind it that are the first
    unfinished ones of their objects, or have none. One statement for all places."""
    asked = [[place.value, MIN_ID if place.after is None else place.after] for place in places]
    apart = t.null_shard_apart(role)
    asked += [[None, after] for value, after in asked if value == 0 and apart]
    key = ("slices_by_age", role)
    params = {"places": json.dumps(asked), "mw_rows": rows}
    by_value: dict[Any, list[Any]] = {value: [] for value, _ in asked}
    for row in fetch(conn, t.built(key, lambda: _heads_by_age(t, role)), params):
        by_value[row[-4]].append(row)
    pages = {value: _page_by_age(read, rows) for value, read in by_value.items()}
    if None in pages:
        two = (pages[0], pages[None])  # read as far as both have been
        ends = [page.after for page in two if page.after is not None]
        found = [row for page in two for row in page.found]
        pages[0] = Page(found, min(ends, default=None), sum(page.entries for page in two))
    return [pages[place.value] for place in places]


def heads_of_job(conn: Connection, t: Tables, place: Place, rows: int) -> Page:
    """As `heads_by_age`, of the messages of a job, by the index of those: the first unfinished ones
    of their objects, whatever job the others belong to."""
    statement = t.built("heads_of_job", lambda: _heads_of_job(t))
    after = MIN_ID if place.after is None else place.after
    found = fetch(conn, statement, {"mw_job": place.value, "after": after, "mw_rows": rows})
    # Ids that are no numbers cannot be claimed.
    ids = [whole_number(row[0]) for row in found]
    by_status: dict[int, list[int]] = {}
    for row, msg_id in zip(found, ids, strict=True):
        by_status.setdefault(row[-1], []).append(LAST if msg_id is None else msg_id)
    end = min((max(some) for some in by_status.values() if len(some) >= rows), default=LAST)
    read = [row for row, i in zip(found, ids, strict=True) if i is not None and i <= end]
    heads = as_candidates([row[:-2] for row in read if row[-2]])
    return Page(heads, None if end == LAST else end, len(read))


def _heads_of_job(t: Tables) -> Any:
    selects = []
    for n, status in enumerate((Status.NEW, Status.FAILED)):
        source = t.message.alias(f"p{n}")
        c = t.cols(source)
        job: Any = bindparam("mw_job", type_=sa.BigInteger())
        head = sa.case((t.earlier_unfinished(c), ZERO), else_=ONE)
        columns = (*hint_columns(t, c), head.label("head"), sa.literal_column(str(n)).label("part"))
        query = t.hinted(sa.select(*columns), source, JOB)
        query = query.where(t.within(c, c["job_id"] == job), job_status(t, c) == lit(status))
        if status is Status.FAILED:
            query = query.where(t.tries_left(c))
        query = query.where(c.msg_id > bindparam("after", type_=sa.BigInteger()))
        query = query.order_by(c.msg_id).limit(bindparam("mw_rows", type_=sa.Integer()))
        selects.append(in_union(t, query, f"q{n}"))
    return sa.union_all(*selects)


def _page_by_age(read: Sequence[Any], rows: int) -> Page:
    """Rows end in: the slice, how many entries they stand for, the last of these, head or not."""
    entries = sum(row[-3] for row in read)
    # Ids that are no numbers come last, and cannot be claimed.
    lasts = [row[-2] for row in read]
    last = max(lasts, default=None) if all(isinstance(k, int | float) for k in lasts) else None
    found = as_candidates([row[:-4] for row in read if row[-1]])
    return Page(found, None if entries < rows else last, entries)


def _heads_by_age(t: Tables, role: str) -> Any:
    given: Any = bindparam("places", type_=sa.String())
    places = json_rows(given, "value")
    asked = sa.select(
        sa.func.json_extract(places.c.value, "$[0]").label("v"),
        sa.func.json_extract(places.c.value, "$[1]", type_=sa.BigInteger()).label("a"),
    ).cte("s")

    def behind(alias: str) -> tuple[Any, Any, list[ColumnElement[bool]]]:
        source = t.message.alias(alias)
        c = t.cols(source)
        same = t.slice_key(c, role).is_not_distinct_from(asked.c.v)
        return source, c, [same, t.slice_rows(c, role), c.msg_id > asked.c.a]

    source, n, where = behind("n")
    rows: Any = bindparam("mw_rows", type_=sa.Integer()) - ONE
    last = t.hinted(sa.select(n.msg_id), source, SLICES[role]).where(*where).order_by(n.msg_id)
    until = last.limit(ONE).offset(rows).scalar_subquery()
    source, p, where = behind("p")
    end = sa.func.coalesce(until, sa.literal_column(str(LAST)))
    alone = sa.case((p.object_id.is_(None), p.msg_id))
    first = sa.func.min(p.msg_id).label("i")
    counted = (sa.func.count().label("n"), sa.func.max(p.msg_id).label("k"))
    page: sa.Select[Any] = sa.select(asked.c.v.label("v"), first, *counted)
    page = t.hinted(page, source, SLICES[role]).select_from(asked.join(source, sa.true()))
    page = page.where(*where, p.msg_id <= end).group_by(asked.c.v, p.object_id, alone)
    g = page.subquery("g")
    c = t.cols()
    is_head = sa.not_(t.earlier_unfinished(c)).label("head")
    found = sa.select(*hint_columns(t, c), g.c.v, g.c.n, g.c.k, is_head)
    return found.select_from(g.join(t.message, c.msg_id == g.c.i))
