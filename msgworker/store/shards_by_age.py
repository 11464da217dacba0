"""Find candidates in slices whose index is in order of age: (slice, msg_id, object).

For a database that writes whole pages (SQLite). Messages that are flagged together are neighbours
in this index, so a claim changes few pages; in order of object each would change a page of its own.
The price: messages behind the head of an object are read, as entries of the index, and left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.db import fetch
from msgworker.store.candidates import as_candidates, hint_columns
from msgworker.store.shards import Page, Place
from msgworker.table import SLICES, Tables

FIRST = -(1 << 63)
LAST = (1 << 63) - 1


def heads(conn: Connection, t: Tables, role: str, places: Sequence[Place], rows: int) -> list[Page]:
    """For each place, those among the next `rows` waiting messages behind it that are the first
    unfinished ones of their objects, or have none. One statement for all places."""
    asked = [[place.value, FIRST if place.after is None else place.after] for place in places]
    null_is_0 = not t.spec.is_default and role == "shard"  # only a table of others has NULL there
    asked += [[None, after] for value, after in asked if value == 0 and null_is_0]
    key = ("slices_by_age", role)
    params = {"places": json.dumps(asked), "rows": rows}
    parts: dict[Any, list[Any]] = {value: [] for value, _ in asked}
    for row in fetch(conn, t.built(key, lambda: _heads(t, role)), params):
        parts[row[-4]].append(row)
    pages = {value: _page_of(part, rows) for value, part in parts.items()}
    if None in pages:
        pages[0] = _together(pages[0], pages[None])
    return [pages[place.value] for place in places]


def _page_of(part: Sequence[Any], rows: int) -> Page:
    """Rows end in: the slice, how many entries they stand for, the last of these, head or not."""
    entries = sum(row[-3] for row in part)
    # Ids that are no numbers come last, and cannot be claimed.
    lasts = [row[-2] for row in part]
    last = max(lasts, default=None) if all(isinstance(k, int | float) for k in lasts) else None
    found = as_candidates([row[:-4] for row in part if row[-1]])
    return Page(found, None if entries < rows else last, entries)


def _together(page: Page, other: Page) -> Page:
    """As far as both have been read."""
    ends = [one.after for one in (page, other) if one.after is not None]
    found = [*page.found, *other.found]
    return Page(found, min(ends, default=None), page.entries + other.entries)


def _heads(t: Tables, role: str) -> Any:
    places = sa.func.json_each(bindparam("places", type_=sa.String())).table_valued("value")
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
    rows: Any = bindparam("rows", type_=sa.Integer()) - sa.literal_column("1")
    last = t.hinted(sa.select(n.msg_id), source, SLICES[role]).where(*where).order_by(n.msg_id)
    until = last.limit(sa.literal_column("1")).offset(rows).scalar_subquery()
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
