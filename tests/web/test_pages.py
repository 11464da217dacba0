"""Every page: what it may cost, what it may show, where its links lead."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.ops.results import ADVICE, Why
from msgworker.store.items import label
from msgworker.store.settling.fingerprint import fingerprint
from msgworker.web.pages.failures import cell, csv_of
from tests.support.browsing import Browser, Page
from tests.support.leases import dead_holds, registered
from tests.support.ops import DONE, FAILED, NEW, RUNNING, put
from tests.support.rows import Table

PLAIN = "plain text"
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
MOST_STATEMENTS = 60
MOST_OF_DOCTOR = 400
SAME = 1
AT = datetime(2026, 11, 22, 13, 0, tzinfo=UTC)


def fill(app: App, text: str) -> list[int]:
    """A table with this text in every field that takes one."""
    at = {"created_at": AT, "finished_at": AT}
    values: dict[str, Any] = {
        "topic": text,
        "last_error": f"ValueError: {text}",
        "unique_key": text,
    } | at
    ids = put(app, (text, FAILED), (text, NEW), payload=json.dumps({text: text}), **values)
    ids += put(app, (f"2{text}", FAILED), tries=1, **values | {"unique_key": None})
    ids += put(app, (f"3{text}", NEW), **values | {"unique_key": None, "available_at": AT})
    held = put(app, (f"4{text}", RUNNING), topic=text, claimed_by=text[:60], claimed_at=AT)
    ids += put(app, (None, DONE), topic=text, last_error=f"later: {text}", later_times=2) + held
    names = {"table_name": app.tables.message.name, "kind": "failed", "instance": text[:60]}
    tried = {"msg_id": ids[0], "try_no": 1, "started_at": AT, "ended_at": AT, "error": text}
    tried |= {"fingerprint": fingerprint(text), "traceback": f"Traceback\n{text}"}
    item = {"table_name": label(app.table), "msg_id": ids[0], "tries": 1, "finished_at": AT}
    with app.engine.begin() as conn:
        conn.execute(
            sa.insert(app.tables.failed_try), [_known(app.tables.failed_try, names | tried)]
        )
        items = [item | {"item_key": text[:60], "status": FAILED, "last_error": text}]
        conn.execute(sa.insert(app.tables.item), items)
    dead_holds(app, Table(app), text[:60], msg_id=held[0])
    registered(app, f"live {text}"[:60])
    ops = app.ops.acting(actor=text, source=text)
    ops.pause(text, reason=text)
    ops.cancel(ids[3], reason=text)
    app.add_handler("t", lambda msg: None)
    app.every("24h", topic="t", name="".join(c for c in text[:60] if c.isprintable()))
    return ids


def _known(table: sa.Table, values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in table.c}


def paths(text: str, ids: list[int]) -> list[str]:
    """Every page, with this text in every parameter that takes one."""
    one, q = ids[0], quote(text, safe="")
    found = ["/", "/failures", "/lanes", "/lanes?by=object", "/instances", "/topics", "/schedules"]
    found += ["/locks", "/audit", "/system", "/audit/1", f"/jobs/{one}?op=3", "/messages/99999"]
    found += [f"/messages/{i}?payload=1" for i in ids] + [f"/messages/{one}/items"]
    found += ["/messages", f"/messages?find={q}", f"/messages?group={fingerprint(text)}"]
    found += [f"/messages?topic={q}&object={q}&error={q}", f"/messages?status={q}&after={q}"]
    found += [f"/failures?topic={q}&since={q}", f"/audit?actor={q}&kind={q}", f"/lanes?after={q}"]
    found += [f"/change/{kind}?topic={q}&error={q}" for kind in ("rerun", "discard", "cancel")]
    found += [f"/change/rerun?ids={one}&order=force", f"/change/rerun?ids={q}"]
    kinds = ("pause-topic", "resume-topic", "release", "pause-schedule", "release-lock")
    return found + [f"/act/{kind}?name={q}&force=1" for kind in kinds]


def looked(browser: Browser, path: str) -> Page:
    """A page, whatever its status is: anything but an error of the dashboard."""
    answer = browser.client.get(path)
    assert answer.status_code in (200, 400, 404, 503), f"{path}: {answer.status_code}"
    return browser.get(path, answer.status_code)


@contextmanager
def statements(app: App) -> Iterator[list[str]]:
    """The statements that are sent within."""
    sent: list[str] = []

    def note(*args: Any) -> None:
        sent.append(args[2])

    sa.event.listen(app.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(app.engine, "before_cursor_execute", note)


def dangerous(page: Page) -> list[str]:
    found = []
    for one in page.tree.walk():
        for name, value in one.attrs.items():
            if name.startswith("on") or name == "style":
                found.append(f"<{one.tag} {name}>")
            if name in ("href", "src", "action", "hx-get") and not str(value).startswith(
                ("/", "#")
            ):
                found.append(f"<{one.tag} {name}={value}>")
        if one.tag in ("script", "style", "iframe", "object", "base") and one.text:
            found.append(f"<{one.tag}>{one.text}")
    return found


@pytest.mark.parametrize("number", range(len(XSS)))
def test_no_text_becomes_an_element_or_an_attribute(
    scratch_app: Callable[[], App], number: int
) -> None:
    shapes: list[set[Any]] = []
    for text in (PLAIN, XSS[number]):
        app = scratch_app()
        ids, browser = fill(app, text), Browser(app)
        pages = [looked(browser, path) for path in paths(text, ids)]
        assert not [bad for page in pages for bad in dangerous(page)]
        shapes.append({one for page in pages for one in page.shape})
        browser.close()
    assert shapes[1] <= shapes[0]


def test_a_text_of_every_field_is_shown_somewhere_as_it_is(sqlite_app: App, ann: Browser) -> None:
    text = XSS[0]
    ids = fill(sqlite_app, text)
    for path in ("/failures", "/lanes", "/instances", "/topics", "/audit", f"/messages/{ids[0]}"):
        assert text in ann.get(path).text, path


def test_every_link_of_every_page_leads_somewhere(sqlite_app: App, ann: Browser) -> None:
    fill(sqlite_app, "a/b?c=d&e #f%20")
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
    assert len(seen) > 40


def test_no_page_sends_more_than_a_bounded_number_of_statements(
    sqlite_app: App, ann: Browser
) -> None:
    ids = fill(sqlite_app, PLAIN)
    put(sqlite_app, *[(f"o{n}", FAILED) for n in range(150)], *[("deep", NEW)] * 150)
    for path in paths(PLAIN, ids):
        with statements(sqlite_app) as sent:
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


def test_a_secret_is_nowhere_but_in_the_payload_that_was_asked_for(
    sqlite_app: App, visit: Any
) -> None:
    values: dict[str, Any] = {"last_error": f"OperationalError: password={CANARY}-url at host"}
    ids = put(sqlite_app, ("o", FAILED), payload=json.dumps({"pin": f"{CANARY}-load"}), **values)
    browser = visit(sqlite_app, redact=["pin"])
    browser.site.secrets = frozenset({f"{CANARY}-url"})
    for path in paths(PLAIN, ids):
        body = looked(browser, path).body
        assert CANARY not in body, path
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
        ("-12", "-12"),
        ("", ""),
        ("ValueError: no", "ValueError: no"),
    ],
)
def test_no_cell_is_a_formula(text: str, safe: str) -> None:
    assert cell(text) == safe


def test_groups_of_failures_are_exported_as_csv(sqlite_app: App, ann: Browser) -> None:
    put(sqlite_app, ("a", FAILED), ("b", FAILED), last_error="=HYPERLINK(1)")
    found = ann.client.get("/failures.csv")
    assert found.headers["content-type"].startswith("text/csv")
    assert "attachment" in found.headers["content-disposition"]
    lines = found.text.splitlines()
    assert len(lines) == 2
    assert "\"'=HYPERLINK" in lines[1]
    assert csv_of([]).count("\n") == 1


def test_each_reason_for_a_skip_has_its_words() -> None:
    assert set(ADVICE) <= set(Why)
