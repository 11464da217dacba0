"""Payloads, ids and texts of any characters, through every page of the dashboard."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from msgworker import App
from tests.support.browsing import Browser, Page, dangerous
from tests.support.ops import DONE, FAILED, NEW, put
from tests.support.pages import PLAIN, fill, looked, paths
from tests.support.web import one_loop

ROWS = 20
"""Values of an example: each is a message, and the first stands in every field of all tables."""
CHARS = st.characters(codec="utf-8", exclude_characters="\x00")
TURNING = st.sampled_from("\u202e\u2066\u0627\u05d0\x1b\x85\u2028\ufeff")
SHORT = st.text(st.one_of(CHARS, TURNING), min_size=1, max_size=60)
TEXTS = st.one_of(SHORT, SHORT.map(lambda text: (text * 190)[:190]))
MARKUP = st.sampled_from(
    ["<script>x</script>", '" onload=x ', "'><b>", "</table>", "&lt;", "{{ 1 }}"]
)
VALUES = st.one_of(TEXTS, st.tuples(MARKUP, SHORT).map("".join))
PAYLOADS = st.recursive(
    st.one_of(VALUES, st.integers(), st.none(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(VALUES, inner, max_size=3)
    ),
    max_leaves=8,
)
QUERIES = st.text(max_size=30)


def _emptied(app: App) -> None:
    known = set(sa.inspect(app.engine).get_table_names())
    with app.engine.begin() as conn:
        for table in (app.tables.message, *app.tables.lease.metadata.sorted_tables):
            if table.name in known and table.name.startswith("msgworker_"):
                conn.execute(sa.delete(table))


def _put(app: App, text: str, payload: Any) -> int:
    values: dict[str, Any] = {"topic": text[:100], "payload": json.dumps(payload)}
    put(app, (text, NEW), (text, DONE), **values | {"last_error": None})
    return put(app, (text, FAILED), **values, last_error=text)[0]


def _paths(msg_id: int, text: str, query: str) -> Iterable[str]:
    asked = urlencode({"topic": text, "object": text, "error": text})
    names = ("find", "after", "since", "actor", "message", "status", "group", "order", "window")
    typed = urlencode(dict.fromkeys(names, query), errors="replace")
    yield f"/messages/{msg_id}?payload=1"
    yield f"/messages?{asked}"
    yield f"/change/rerun?{asked}"
    yield f"/act/pause-topic?{urlencode({'name': text})}"
    for page in ("/", "/messages", "/failures", "/lanes", "/audit"):
        yield f"{page}?{typed}"
    for page in ("/messages", "/audit", "/change", "/act", "/writes"):
        yield f"{page}/{quote(query, errors='replace', safe='')}"


def _look(app: App, browser: Browser, rows: list[tuple[str, str, Any]]) -> dict[str, Page]:
    """Every page of a table with these texts, by path: an object, a part of a query, a payload."""
    _emptied(app)
    ids = fill(App(app.engine), rows[0][0][:100])
    asked = paths(rows[0][0][:100], ids)
    for text, query, payload in rows:
        asked += _paths(_put(app, text, payload), text, query)
    browser.site.forget(steady=True)
    with one_loop(browser.client):
        pages = {path: looked(browser, path) for path in asked}
    bad = {path: found for path, page in pages.items() if (found := dangerous(page.tree))}
    assert not bad
    return pages


def _any_values(app: App, count: int) -> None:
    """count: how many values, in all."""
    browser, rows = Browser(app), min(ROWS, count)
    usual: list[tuple[str, str, Any]] = [(PLAIN, "1", {"a": 1}), ("x" * 190, "dead", "x")]
    usual.append(("a//b", "1", "no path has this topic"))
    usual += [(f"{PLAIN} {n}", "-", n) for n in range(rows)]
    known = {one for page in _look(app, browser, usual).values() for one in page.tree.shape}

    @settings(
        max_examples=count // rows,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # the path tells more than a smaller example, at once
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.tuples(VALUES, QUERIES, PAYLOADS), min_size=rows, max_size=rows))
    def look(some: list[tuple[str, str, Any]]) -> None:
        pages = _look(app, browser, some)
        odd = {path: set(page.tree.shape) - known for path, page in pages.items()}
        assert not any(odd.values()), {path: found for path, found in odd.items() if found}

    look()
    browser.close()


def test_a_few_odd_values_break_no_page(sqlite_app: App) -> None:
    _any_values(sqlite_app, 1)


@pytest.mark.long
@pytest.mark.parametrize("part", range(5))  # one alone would be minutes on a busy machine
def test_hundreds_of_odd_values_break_no_page(sqlite_app: App, part: int) -> None:
    """Each run draws others."""
    _any_values(sqlite_app, 100)


@pytest.mark.long
def test_odd_values_break_no_page_of_each_database(app: App) -> None:
    _any_values(app, 40)
