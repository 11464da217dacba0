"""Every page: what it may cost, what it may show, where its links lead."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.ops.results import ADVICE, Why
from msgworker.queries.failures import READ
from msgworker.web.pages.changing import HELP
from msgworker.web.pages.messages import cell, csv_of
from tests.engines import statements
from tests.support.browsing import Browser, dangerous
from tests.support.ops import FAILED, NEW, many_dead, put
from tests.support.pages import PLAIN, fill, looked, paths
from tests.support.web import one_loop

XSS = [
    "\"'><script>x</script><b onclick=x>",
    '"><img src=x onerror=alert(1)>',
    "<script>alert(1)</script>",
    "' onmouseover='alert(1)",
    "</textarea></select></title></pre><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt;&#60;i&#62;",
    "<!-- --><![CDATA[<b>]]>",
    "\u202e\u2066<b>\u2028\x07\x1b[31m",
]
MOST_STATEMENTS = 90
MOST_OF_DOCTOR = 400
SAME = 1


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(XSS)))
def test_no_text_becomes_an_element_or_an_attribute(
    scratch_app: Callable[[], App], number: int
) -> None:
    shapes: list[set[Any]] = []
    for text in (PLAIN, XSS[number]):
        app = scratch_app()
        ids, browser = fill(app, text), Browser(app)
        with one_loop(browser.client):
            pages = [looked(browser, path) for path in paths(text, ids)]
        assert not [bad for page in pages for bad in dangerous(page.tree)]
        shapes.append({one for page in pages for one in page.tree.shape})
        browser.close()
    assert shapes[1] <= shapes[0]


def test_a_text_of_every_field_is_shown_somewhere_as_it_is(sqlite_app: App, ann: Browser) -> None:
    text = XSS[0]
    ids = fill(sqlite_app, text)
    for path in ("/failures", "/lanes", "/instances", "/topics", "/audit", f"/messages/{ids[0]}"):
        assert text in ann.get(path).text, path


def test_every_link_of_every_page_leads_somewhere(sqlite_app: App, ann: Browser) -> None:
    fill(sqlite_app, "a/b?c=d&e #f%20")
    with one_loop(ann.client):
        assert len(followed(ann)) > 40


def followed(ann: Browser) -> set[str]:
    """All that links lead to, of which each page is looked at."""
    seen: set[str] = set()
    to_see = ["/"]
    kinds: Counter[str] = Counter()  # the same page with other values is looked at a few times
    while to_see:
        path = to_see.pop()
        page = looked(ann, path)
        assert page.status == 200, f"{path}: {page.main}"
        for link in page.links:
            target = urlsplit(link)._replace(fragment="").geturl() or path
            if target.startswith("/") and target not in seen and not target.startswith("/act"):
                seen.add(target)
                kind = re.sub(r"\d+", "N", re.sub(r"=[^&]*", "=", target))
                kinds[kind] += 1
                if kinds[kind] > SAME:
                    continue
                to_see.append(target)
    return seen


@pytest.mark.long
def test_no_page_sends_more_than_a_bounded_number_of_statements(
    sqlite_app: App, ann: Browser
) -> None:
    ids = fill(sqlite_app, PLAIN)
    put(sqlite_app, *[(f"o{n}", FAILED) for n in range(150)], *[("deep", NEW)] * 150)
    for path in paths(PLAIN, ids):
        with statements(sqlite_app.engine) as sent:
            looked(ann, path)
        most = MOST_OF_DOCTOR if path == "/system" else MOST_STATEMENTS
        assert len(sent) <= most, f"{path}: {len(sent)}"
        writes = [s for s in sent if s.split()[0] in ("INSERT", "UPDATE", "DELETE", "CREATE")]
        assert not writes or path == "/system", writes  # doctor tries rights by no row at all


NEEDED = ("msgworker_message", "msgworker_lease", "msgworker_item", "msgworker_try")
PAGES = ["/", "/messages", "/messages/1", "/failures", "/lanes", "/instances", "/topics"]
OTHERS = ["/schedules", "/locks", "/audit", "/audit/1"]


def _drop(app: App, but: tuple[str, ...]) -> None:
    with app.engine.begin() as conn:
        for name in sa.inspect(conn).get_table_names():
            if name.startswith("msgworker_") and name not in but:
                conn.exec_driver_sql(f"DROP TABLE {name}")


def test_a_page_of_a_missing_table_says_how_to_create_it_and_others_are_shown(
    sqlite_app: App, visit: Any
) -> None:
    put(sqlite_app, ("o", FAILED))
    _drop(sqlite_app, NEEDED)
    browser = visit(App(sqlite_app.engine))
    for path in PAGES:
        browser.get(path)
    for path in OTHERS:
        assert "init-db" in browser.get(path).main, path


def test_without_the_tables_that_every_page_needs_each_says_what_to_do(
    sqlite_app: App, visit: Any
) -> None:
    put(sqlite_app, ("o", FAILED))
    _drop(sqlite_app, NEEDED[:1])
    browser = visit(App(sqlite_app.engine))
    for path in (*PAGES, *OTHERS):
        assert "init-db" in looked(browser, path).main, path


CANARY = "canary-7f3a"


@pytest.mark.long
def test_a_secret_is_nowhere_but_in_the_payload_that_was_asked_for(
    sqlite_app: App, visit: Any
) -> None:
    values: dict[str, Any] = {"last_error": f"OperationalError: password={CANARY}-url at host"}
    ids = put(sqlite_app, ("o", FAILED), payload=json.dumps({"pin": f"{CANARY}-load"}), **values)
    browser = visit(sqlite_app, redact=["pin"])
    browser.site.secrets = frozenset({f"{CANARY}-url"})
    with one_loop(browser.client):
        for path in paths(PLAIN, ids):
            assert CANARY not in looked(browser, path).body, path
    assert CANARY not in browser.client.get("/failures.csv").text
    assert f"{CANARY}-load" in visit(sqlite_app).get(f"/messages/{ids[0]}?payload=1").text


# ---------------------------------------------------------------- CSV


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("\tx", "'\tx"),
        (" =1", "' =1"),
        ("＝1+1", "'＝1+1"),
        ("＋1", "'＋1"),
        ("－1", "'－1"),
        ("＠SUM(A1)", "'＠SUM(A1)"),
        ("\u200b=1", "'\u200b=1"),
        ("-１２", "'-１２"),
        ("-12", "-12"),
        ("", ""),
        ("ValueError: no", "ValueError: no"),
    ],
)
def test_no_cell_is_a_formula(text: str, safe: str) -> None:
    assert cell(text) == safe


@pytest.mark.parametrize("ids", [",", " , ,", "%20"])
def test_ids_that_are_none_are_refused_with_what_to_write(ann: Browser, ids: str) -> None:
    found = ann.client.get(f"/messages?ids={ids}")
    assert found.status_code == (200 if ids == "%20" else 400)  # an empty field is no filter
    assert ids == "%20" or "whole numbers such as 12,15" in found.text


def test_groups_of_failures_are_exported_as_csv(sqlite_app: App, ann: Browser) -> None:
    put(sqlite_app, ("a", FAILED), ("b", FAILED), last_error="=HYPERLINK(1)")
    found = ann.client.get("/failures.csv")
    assert found.headers["content-type"].startswith("text/csv")
    assert "attachment" in found.headers["content-disposition"]
    lines = found.text.splitlines()
    assert len(lines) == 2
    assert "\"'=HYPERLINK" in lines[1]
    assert csv_of([]).count("\n") == 1


def test_a_csv_says_in_its_last_row_what_it_lacks(sqlite_app: App, ann: Browser) -> None:
    many_dead(sqlite_app, READ + 1)
    *_, last = ann.client.get("/failures.csv").text.splitlines()
    assert last.startswith(
        '"Not all failures are here: at most the 500 largest groups of the newest 5,000'
    )
    assert last.count('","') == csv_of([]).count('","')


def test_a_failure_that_is_not_utf8_is_exported_with_escapes(sqlite_app: App, ann: Browser) -> None:
    put(sqlite_app, ("a", FAILED))
    with sqlite_app.engine.begin() as conn:
        text = "UPDATE msgworker_message SET last_error = CAST(x'46ff' AS TEXT), topic = last_error"
        conn.execute(sa.text(text))
    found = ann.client.get("/failures.csv")
    assert found.status_code == 200
    assert "F\\udcff" in found.text


def test_each_reason_for_a_skip_has_its_words() -> None:
    assert set(ADVICE) <= set(Why)


def test_settings_that_an_app_leaves_as_they_are_are_told_as_defaults(sqlite_app: App) -> None:
    app = App(sqlite_app.engine, lease_seconds=12)
    page = Browser(app).get("/system").main
    assert "lease_seconds12 sApp" in page
    assert "poll_seconds1 sdefault" in page
    assert "max_tries3default" in page


def test_what_helps_is_told_in_the_words_of_the_pages() -> None:
    assert HELP.keys() == ADVICE.keys()
    assert not [text for text in HELP.values() if "=True" in text or text.startswith("--")]
