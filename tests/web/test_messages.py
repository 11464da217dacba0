"""The pages Messages and one message."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.cli import rerun, show
from msgworker.config import id_of
from msgworker.errors import ConfigError
from msgworker.message import State
from msgworker.ops import selection
from msgworker.ops.looks import Filters
from msgworker.ops.repairs import WriteOptions
from msgworker.ops.results import How
from msgworker.queries.messages import MessageInfo
from msgworker.store import bounded
from msgworker.store.audit import AuditEntry
from msgworker.store.items import label
from msgworker.store.tries import Kind, Try
from msgworker.web.api import calling
from msgworker.web.api import messages as of_api
from msgworker.web.forms import LABELS, SAID, Chosen
from msgworker.web.pages.messages import timeline
from tests.support.apps import created
from tests.support.browsing import Browser, Page
from tests.support.leases import registered
from tests.support.ops import DONE, FAILED, NEW, RUNNING, failing, put
from tests.support.rows import edit, send
from tests.support.spans import PARENT
from tests.support.tables import SEED, seed_table

AT = datetime(2026, 11, 22, 13, 0, tzinfo=UTC)


def _ids(page: Page) -> list[int]:
    return [int(row.text) for row in page.tree.all("th", scope="row") if row.text.isdecimal()]


def test_the_list_shows_each_state_and_filters_by_the_url(sqlite_app: App, ann: Browser) -> None:
    new, running, done, dead = put(
        sqlite_app, ("a", NEW), ("b", RUNNING), ("c", DONE), ("d", FAILED)
    )
    (retries,) = put(sqlite_app, ("e", FAILED), tries=1)
    (other,) = put(sqlite_app, ("a", NEW), topic="other")
    page = ann.get("/messages")
    assert sorted(_ids(page)) == sorted([new, running, done, dead, retries, other])
    for query, found in (
        ("status=new", [new, other]),
        ("status=processing", [running]),
        ("status=done", [done]),
        ("status=failed", [retries]),
        ("status=dead", [dead]),
        ("topic=other", [other]),
        ("object=a", [new, other]),
        ("object=a&topic=t", [new]),
        ("error=Value", [dead, retries]),
        ("since=1h&status=dead&topic=none", []),
    ):
        assert sorted(_ids(ann.get(f"/messages?{query}"))) == found, query
    rail = page.tree.all("nav", **{"aria-label": "States"})[0]
    spans = [one.text for one in rail.all("span")]
    told = dict(zip(spans[::2], spans[1::2], strict=True))
    counts = {"new": "2", "processing": "1", "done": "1", "failed": "1", "dead": "1"}
    assert told == {"all": ""} | counts


def test_an_edited_message_that_is_due_later_waits_on_each_page(
    sqlite_app: App, ann: Browser
) -> None:
    (msg_id,) = put(sqlite_app, ("a", NEW), available_at=datetime(2100, 1, 1, tzinfo=UTC))
    assert sqlite_app.ops.edit(msg_id, payload=1, reason="r") == 1
    for place in (f"messages/{msg_id}", "messages", f"edit/{msg_id}", "lanes"):
        page = ann.get(f"/{place}")
        words = page.tree.all("span", **{"class": "word waiting"})
        assert [one.text for one in words] == ["waiting"], place
    assert "retry" not in ann.get(f"/messages/{msg_id}").main


def test_each_chip_takes_its_own_filter_out(ann: Browser) -> None:
    page = ann.get("/messages?status=dead&topic=a%26b&order=oldest")
    found = page.tree.all("ul", **{"class": "chips"})[0].all("a")
    chips = {one.text.partition(":")[0]: one.attrs["href"] for one in found}
    assert chips == {
        "state": "/messages?topic=a%26b&order=oldest",
        "topic": "/messages?status=dead&order=oldest",
    }


def _boxes(page: Page, *labels: str) -> list[tuple[str, str]]:
    """The fields that the list sends if these boxes are ticked."""
    (form,) = page.tree.all("form", **{"class": "pick"})
    named = {one.text.strip(): one.all("input")[0] for one in form.all("label")}
    named |= {str(one.attrs.get("aria-label")): one for one in form.all("input")}
    sent = form.all("input", type="hidden") + [named[label] for label in labels]
    return [(str(one.attrs["name"]), str(one.attrs["value"])) for one in sent]


def test_what_is_ticked_in_a_list_is_changed_without_a_script(
    sqlite_app: App, ann: Browser
) -> None:
    ids = put(sqlite_app, *((f"o{n}", FAILED) for n in range(3)))
    page = ann.get("/messages?status=dead&topic=t")
    assert {
        f"/change/{kind}" for kind in ("rerun", "discard", "cancel", "acknowledge", "edit")
    } == {one.attrs["formaction"] for one in page.tree.all("button") if "formaction" in one.attrs}
    for labels, told in (
        ([f"Tick message {ids[0]}", f"Tick message {ids[2]}"], "Rerun 2 messages by id"),
        (["all on this page", f"Tick message {ids[0]}"], "Rerun 3 messages by id"),
        (["all 3 by these filters", f"Tick message {ids[0]}"], "Rerun dead messages of topic t"),
    ):
        found = ann.get(f"/change/rerun?{urlencode(_boxes(page, *labels))}")
        assert told in found.main
        assert found.link("Messages of this selection") == "/messages?status=dead&topic=t"
    assert "tick messages" in ann.get(f"/change/rerun?{urlencode(_boxes(page))}", 400).main
    one = ann.get(f"/change/edit?{urlencode(_boxes(page, f'Tick message {ids[1]}'))}")
    assert one.url.endswith(f"/edit/{ids[1]}")
    two = ann.get(f"/change/edit?{urlencode(_boxes(page, 'all on this page'))}", 400)
    assert "tick exactly one" in two.main
    many = ",".join(map(str, range(1001)))
    assert "at most 1,000 ids" in ann.get(f"/change/rerun?ids={many}", 400).main


def test_what_has_changed_since_it_was_ticked_is_left_alone(sqlite_app: App, ann: Browser) -> None:
    ids = put(sqlite_app, *((f"o{n}", FAILED) for n in range(3)))
    page = ann.get("/change/rerun?" + urlencode([("ids", one) for one in ids]))
    sqlite_app.ops.rerun(ids[1], reason="by bob")
    done = ann.send(page, "/change/rerun", reason="again")
    assert "changed2 of 3" in done.main
    assert "1 message changed since the count, and was left alone" in done.main


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("status=new", "all 60 by"),
        ("status=new&order=oldest", "all 60 by"),
        ("topic=t", "all 50+ by"),
        ("object=o1", "all 2 by"),
        ("error=none", "all 0 by"),
    ],
)
def test_a_list_says_how_many_its_filters_select_as_far_as_it_is_known(
    sqlite_app: App, ann: Browser, query: str, told: str
) -> None:
    put(sqlite_app, *[(f"o{n % 30}", NEW) for n in range(60)])
    assert told in ann.get(f"/messages?{query}").main


def test_the_search_box_finds_an_id_or_an_object(sqlite_app: App, ann: Browser) -> None:
    (found,) = put(sqlite_app, ("C-1001", NEW))
    assert ann.get("/messages?find=%20C-1001").url.endswith("/messages?object=C-1001")
    assert ann.get("/messages", find=found).url.endswith(f"/messages/{found}")
    assert ann.get("/messages?find=99999").url.endswith("/messages?object=99999")


@pytest.mark.parametrize(
    "url",
    [
        "/messages?status=no",
        "/messages?since=yesterday",
        "/messages?since=2026-11-22T13:00",
        "/messages?after=no",
        "/messages?status=new&group=abc",
        "/messages?topic=" + "t" * 501,
        "/messages?ids=1",
        "/messages/abc",
        "/messages/1e3",
        f"/messages/{2**63}",
        "/messages/1/items?state=no",
    ],
)
def test_what_is_no_value_is_refused_in_words(ann: Browser, url: str) -> None:
    assert len(ann.get(url, 400).main) > len("400 Bad Request ")


def test_a_message_that_does_not_exist_is_not_found(ann: Browser) -> None:
    assert "there is no message 7" in ann.get("/messages/7", 404).text


def test_a_message_tells_its_tries_with_tracebacks_folded(sqlite_app: App, ann: Browser) -> None:
    failing(sqlite_app, "no account for <b>{n}</b>")
    (found,) = send(sqlite_app, "C-1")
    sqlite_app.drain(linger=0)
    page = ann.get(f"/messages/{found}")
    assert "3 of 3 failed" in page.main
    assert f"no account for <b>{found}</b>" in page.main
    assert [one.text for one in page.tree.all("main")[0].all("summary")] == ["traceback"] * 3
    assert "open" not in page.tree.all("details")[0].attrs
    assert f"ValueError: no account for <b>{found}</b>" in page.tree.all("pre")[1].text
    assert page.tree.all("pre")[1].text.startswith('  File "')
    groups = ann.get("/failures")
    assert f"ValueError: no account for <b>{found}</b> [ops.py in handler]" in groups.main
    assert groups.tree.all("small") == []
    (other,) = send(sqlite_app, "C-2")
    sqlite_app.drain(linger=0)
    for path in ("/failures", "/topics/t"):
        groups = ann.get(path)
        assert "ValueError: no account for <b>#</b> [ops.py in handler]" in groups.main
        examples = [one.text for one in groups.tree.all("small") if "example" in one.text]
        assert examples == [f"for example {other}: ValueError: no account for <b>{other}</b>"]
    words = [one.text for one in page.tree.all("ol", **{"class": "timeline"})[0].all("span")]
    assert words == ["inserted", *["started", "failed"] * 3, "dead"]


def test_the_page_of_a_message_names_the_trace_in_which_it_was_sent(
    sqlite_app: App, ann: Browser
) -> None:
    (msg_id,) = send(sqlite_app, "a")
    assert "trace" not in [one.text for one in ann.get(f"/messages/{msg_id}").tree.all("dt")]
    edit(sqlite_app, msg_id, headers=f'{{"traceparent": "{PARENT}", "baggage": "card=canary"}}')
    page = ann.get(f"/messages/{msg_id}")
    assert PARENT.split("-")[1] in [one.text for one in page.tree.all("code")]
    assert "canary" not in page.text


def test_a_message_says_where_it_stands_in_its_lane(sqlite_app: App, ann: Browser) -> None:
    head, second, _ = put(sqlite_app, ("o", NEW), ("o", NEW), ("o", NEW))
    assert "it is at the head; 2 wait behind it" in ann.get(f"/messages/{head}").main
    page = ann.get(f"/messages/{second}")
    assert f"1 ahead; the head is {head}; 1 waits behind it" in page.main
    assert f"/messages/{head}" in page.links
    assert f"Message {head}:" in page.main


def test_limits_and_who_holds_a_key_are_shown_where_a_message_is(
    sqlite_app: App, ann: Browser
) -> None:
    sqlite_app.add_handler("t", lambda msg: None, max_running=1, rate="9/h")
    sqlite_app.drain(linger=0)  # records the limits
    put(sqlite_app, ("a", RUNNING), claimed_by="w")
    waits, _ = put(sqlite_app, ("b", NEW), ("c", NEW))
    (ended,) = put(sqlite_app, ("d", DONE), unique_key="k", finished_at=AT)
    (holder,) = put(sqlite_app, ("d", NEW), unique_key="k")
    registered(sqlite_app, "live-1", topics=["t"])
    permit = "waits for a permit of t: 1 of 1 running, held by w (1)"
    page = ann.get(f"/messages/{waits}").text
    assert permit in page
    assert "1 of 1 running, rate 9/h (9 of 9 starts)" in page
    assert permit in ann.get("/lanes").text
    assert "3 wait for a permit" in ann.get("/topics").text
    page = ann.get(f"/messages/{ended}")
    assert (f"held by message {holder}" in page.text, f"/messages/{holder}" in page.links) == (
        True,
        True,
    )


def test_lanes_show_what_is_blocked_first_and_what_to_do_about_it(
    sqlite_app: App, ann: Browser
) -> None:
    registered(sqlite_app, "live-1", topics=["t", "p"])
    put(sqlite_app, *[("deep", NEW)] * 3)
    put(sqlite_app, ("held", FAILED), topic="p", tries=1)
    put(sqlite_app, ("alone", NEW), topic="nobody")
    sqlite_app.ops.pause("p", reason="x")
    page = ann.get("/lanes")
    assert [one.text for one in page.tree.all("th", scope="row")] == ["alone", "held", "deep"]
    assert "has a handler for topic nobody; start an instance" in page.main
    assert page.link("start an instance") == "/instances"
    assert "topic p is paused" in page.main
    assert page.link("resume the topic") == "/topics/p"
    states = [one.text for one in page.tree.all("span", **{"class": "word dead"})]
    assert states == ["blocked", "blocked"]


@pytest.mark.parametrize(
    ("status", "offered"),
    [
        (NEW, ["Discard…", "Cancel…", "Edit…"]),
        (RUNNING, ["Cancel…"]),
        (DONE, ["Rerun…"]),
        (FAILED, ["Rerun…", "Discard…", "Acknowledge…", "Edit…"]),
    ],
)
def test_the_page_of_a_message_offers_all_that_may_be_done_with_it(
    sqlite_app: App, ann: Browser, status: int, offered: list[str]
) -> None:
    (found,) = put(sqlite_app, ("a", status))
    (buttons,) = ann.get(f"/messages/{found}").tree.all("p", **{"class": "acts"})
    assert [one.text for one in buttons.all("a")] == offered
    for one in buttons.all("a"):
        assert ann.get(one.attrs["href"]).status == 200


def test_the_payload_is_shown_on_request_only_and_without_what_is_hidden(
    sqlite_app: App, visit: Any
) -> None:
    (found,) = send(sqlite_app, "o", payload={"name": "canary-1", "card": {"no": "canary-2"}})
    bob = visit(sqlite_app, "viewer", redact=["card.no"])
    assert "canary" not in bob.get(f"/messages/{found}").body
    for page in (
        bob.get(f"/messages/{found}?payload=1"),
        visit(sqlite_app, "operator", redact=["card.no"]).get(f"/messages/{found}"),
    ):
        assert "canary-1" in page.body
        assert "canary-2" not in page.body
    assert "canary" not in visit(sqlite_app).get(f"/messages/{found}?payload=0").body


def test_a_page_says_that_it_shows_a_part_of_a_payload(sqlite_app: App, visit: Any) -> None:
    said = "Only its first 10,000 characters"
    for length, is_part in ((9_998, False), (9_999, True)):
        (found,) = put(sqlite_app, ("o", NEW), payload=f'"{"x" * length}"')
        assert (said in visit(sqlite_app).get(f"/messages/{found}").main) is is_part
        page = visit(sqlite_app, redact=["a"]).get(f"/messages/{found}").main
        assert ("it has more than 10,000 characters; not shown" in page) is is_part
        assert said not in page


def test_items_of_a_fan_out_are_listed_in_pages(sqlite_app: App, ann: Browser) -> None:
    (found,) = put(sqlite_app, ("o", RUNNING))
    rows = [
        {
            "table_name": label(sqlite_app.table),
            "msg_id": found,
            "item_key": f"{n:04}",
            "status": DONE if n % 4 else FAILED,
            "tries": 1,
            "last_error": None if n % 4 else "no item",
            "finished_at": AT,
        }
        for n in range(120)
    ]
    with sqlite_app.engine.begin() as conn:
        conn.execute(sa.insert(sqlite_app.tables.item), rows)
    page = ann.get(f"/messages/{found}")
    assert "90 done, 30 failed" in page.main
    keys: list[str] = []
    url: str | None = f"/messages/{found}/items"
    while url:
        page = ann.get(url)
        keys += [one.text for one in page.tree.all("th", scope="row")]
        url = next((one.attrs["href"] for one in page.tree.all("a", rel="next")), None)
    assert keys == [f"{n:04}" for n in range(120)]
    assert ann.get(f"/messages/{found}/items?state=failed").main.count("no item") == 30


def test_a_page_without_the_tables_of_the_audit_says_how_to_create_them(
    sqlite_app: App, visit: Any
) -> None:
    (found,) = put(sqlite_app, ("o", NEW))
    with sqlite_app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_audit")
        conn.exec_driver_sql("DROP TABLE msgworker_operation")
    page = visit(App(sqlite_app.engine)).get(f"/messages/{found}")
    assert "msgworker_audit" in page.main
    assert "init-db" in page.main


def test_only_who_may_act_is_offered_changes(sqlite_app: App, visit: Any) -> None:
    (found,) = put(sqlite_app, ("o", FAILED))
    for role, offered in (("viewer", False), ("operator", True)):
        one = visit(sqlite_app, role)
        for path in (f"/messages/{found}", "/messages"):
            assert ("Rerun…" in one.get(path).main) is offered, (role, path)
        assert (
            bool(one.get("/messages").tree.all("main")[0].all("input", type="checkbox")) is offered
        )


def test_a_table_of_other_names_is_shown(sqlite: Any, visit: Any) -> None:
    spec = MessageTable("inbox", msg_id="nr", object_id="customer", status="state")
    app = created(App(sqlite.url, table=spec))
    (found,) = put(app, ("o", FAILED))
    ann = visit(app)
    assert _ids(ann.get("/messages")) == [found]
    assert "3 of 3 failed" in ann.get(f"/messages/{found}").main


def test_nothing_is_offered_that_needs_a_column_that_the_table_lacks(
    sqlite: Any, visit: Any
) -> None:
    seed_table(sqlite)
    app = created(App(sqlite.url, table=SEED))
    with app.engine.begin() as conn:
        conn.execute(sa.text("INSERT INTO tb_cus_msg VALUES (1, 'a', -1, 3)"))
    page = visit(app).get("/messages/1").main
    assert "Rerun…" in page
    assert "Acknowledge…" not in page
    assert "Edit…" not in page


# ---------------------------------------------------------------- without a page


def test_the_timeline_is_in_order_and_ends_with_what_is_to_come() -> None:
    begun, ended = AT + timedelta(seconds=1), AT + timedelta(seconds=3)
    info = MessageInfo(
        5,
        "o",
        "t",
        State.FAILED,
        1,
        created_at=AT,
        available_at=AT + timedelta(minutes=1),
        tries=(Try(1, Kind.FAILED, "crm-1", begun, ended, "x", "f"),),
    )
    between = AT + timedelta(seconds=2)
    entry = AuditEntry(7, "rerun", "ann", None, {}, AT, AT, 1, 1, 0, msg_id=5, changed_at=between)
    told = [(one.word, one.coming) for one in timeline(info, [entry])]
    past = [(word, False) for word in ("inserted", "started", "rerun", "failed")]
    assert told == [*past, ("retry", True)]


def test_every_place_that_takes_filters_takes_all_of_them(sqlite_app: App, ann: Browser) -> None:
    """A filter that is new, and is not everywhere: ops, command line, API, forms, the page."""
    every = {"status", *(one.name for one in fields(bounded.Filter))} - {"words", "given_up"}
    order = {"ids", "force", "with_successors", "also_done"}
    how = {*How.__annotations__, "count_limit", "expected_count", "rate", "operation", "progress"}
    assert selection.CHOOSES - order == every
    assert {one.name for one in fields(selection.Options)} == every | order | how
    assert {*Filters.__annotations__, "fingerprint", "up_to"} == every
    assert every <= set(WriteOptions.__annotations__)
    assert {*rerun.FILTERS, "up_to"} == every  # up_to: from a dry run of a program
    options = {one.name for one in show.list_.params} | {"acknowledged", "fingerprint"}
    assert every - options == {"up_to"}
    assert set(calling.Selection.model_fields) - {"ids"} == every
    assert set(of_api.Filter.model_fields) - {"limit", "after", "order"} == every - {"up_to"}
    forms = {{"object_id": "object", "fingerprint": "group"}.get(name, name) for name in every}
    forms.remove("up_to")
    assert {one.name for one in fields(Chosen)} - {"ids"} == forms == set(LABELS)
    assert {"status", *SAID} == forms
    given = {"status": "dead", "since": "1h", "job": "1", "acknowledged": "no", "group": "a1"}
    page = ann.get(f"/messages?{urlencode(dict.fromkeys(forms, 'a') | given)}").body
    assert {name for name in forms if f'name="{name}"' not in page} == set()


@pytest.mark.parametrize("text", ["", " ", "1.0", "--1", "²", "1_0", "0x1", "9" * 20, "१"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        id_of(text)


def test_a_span_becomes_an_instant_that_stays() -> None:
    fixed = Chosen.of({"since": " 1h ", "topic": " t "}).fixed
    assert fixed.topic == " t "  # as it is: "t" is another one
    found = fixed.instant()
    assert found == Chosen.of(fixed.query).instant()
    assert found is not None
    assert abs(datetime.now(UTC) - timedelta(hours=1) - found) < timedelta(seconds=30)
