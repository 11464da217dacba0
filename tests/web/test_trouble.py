"""The list of trouble on the Overview, each line with the page that helps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from msgworker import App, MessageTable
from msgworker.errors import TookTooLong
from msgworker.message import State
from msgworker.ops import Ops
from msgworker.queries.counts import Overview, TopicInfo, TopicTimes
from msgworker.store.bounded import Capped
from msgworker.store.controls import Pause
from msgworker.web import threads
from msgworker.web.pages.overview import trouble_lines
from tests.support.apps import created
from tests.support.browsing import Browser, Page
from tests.support.leases import dead_holds
from tests.support.ops import FAILED, NEW, RUNNING, put
from tests.support.rows import Table, edit

NOW = datetime(2026, 11, 25, tzinfo=UTC)
NONE = Capped(0)
PAUSED = Pause("t", "ann", "INC-1", NOW)


def seen(*topics: TopicInfo, failed: Capped = NONE, **given: Any) -> Overview:
    values: dict[str, Any] = {"oldest_seconds": None, "live": 1, "silent": 0, "dead": 0} | given
    return Overview(NOW, {State.DEAD: failed}, topics, **values)


def topic(name: str, *, handlers: int = 1, new: int = 1, **more: Any) -> TopicInfo:
    return TopicInfo(name, {State.NEW: Capped(new)}, None, handlers, **more)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (seen(topic("t")), []),
        (seen(topic("t", handlers=0, new=0)), []),
        (seen(failed=Capped(3)), []),  # all acknowledged
        (seen(unacknowledged=Capped(10_000, more=True)), [("dead", "failures", {})]),
        (seen(failed=Capped(3), hold_objects=Capped(1)), [("held up", "lanes", {})]),
        (seen(failed=Capped(3), hold_jobs=Capped(2)), [("held up", "jobs", {})]),
        (seen(silent=1, dead=2), [("dead", "instances", {}), ("silent", "instances", {})]),
        (
            seen(topic("t", handlers=0)),
            [("no handler", "messages", {"status": "new", "topic": "t"})],
        ),
        (seen(topic("t", handlers=0), topic("u", handlers=0)), [("no handler", "topics", {})]),
        (seen(topic("t", handlers=0, paused=PAUSED)), [("paused", "topic", {})]),
    ],
)
def test_each_trouble_is_a_line_with_its_page(
    found: Overview, told: list[tuple[str, str, dict[str, str]]]
) -> None:
    got = [(one.word, one.route, dict(one.query)) for one in trouble_lines(found, {})]
    assert got == told


def test_a_topic_whose_tries_all_fail_is_told_until_one_ends_well() -> None:
    found = seen(topic("t"))
    times = {"t": TopicTimes("t", retried=3)}
    assert [one.word for one in trouble_lines(found, times)] == ["every try fails"]
    assert trouble_lines(found, {"t": TopicTimes("t", retried=3, done=1)}) == []


def test_many_topics_are_one_line_that_names_some() -> None:
    (line,) = trouble_lines(seen(*(topic(f"t{n}", handlers=0) for n in range(9))), {})
    assert line.text.endswith("t0, t1, t2 and 6 more")


def _told(page: Page) -> list[str]:
    return [
        one.text
        for part in page.tree.all("section", **{"aria-labelledby": "trouble"})
        for one in part.all("li")
    ]


def test_the_overview_begins_with_what_needs_help(sqlite_app: App, ann: Browser) -> None:
    assert _told(ann.get("/")) == []
    put(sqlite_app, ("a", FAILED), ("b", NEW), topic="t")
    (held,) = put(sqlite_app, ("c", RUNNING), topic="t")
    dead_holds(sqlite_app, Table(sqlite_app), "crm-7", msg_id=held)
    sqlite_app.ops.pause("u", actor="bob")
    page = ann.get("/")
    assert [text.split()[0] for text in _told(page)] == ["dead", "dead", "no", "paused"]
    for path in ("/failures", "/instances", "/messages?status=new&topic=t", "/topics"):
        assert path in page.links, path
        assert ann.get(path).status == 200


def test_what_dead_messages_hold_up_is_told_until_they_do_no_more(
    tmp_path: Any, visit: Any
) -> None:
    app = created(App(f"sqlite:///{tmp_path}/blocks.db", table=MessageTable(on_dead="block")))
    with app.engine.begin() as conn, app.job("import", on_dead="wait", conn=conn) as job:
        app.send(conn, "t", object_id="a", job=job)
    Table(app).edit(status=-1, error_try_times=3)
    (dead,) = Table(app).column("msg_id")
    ann = visit(app)
    with app.engine.begin() as conn:
        app.send(conn, "t", object_id="a")
    (*_, waits) = Table(app).column("msg_id")
    edit(app, waits, job_id=job.job_id)
    assert "Discard what waits, and its dead messages…" in ann.get(f"/jobs/{job.job_id}").main
    edit(app, waits, status=2, job_id=None)
    object_, job_ = "1 dead message holds up its object", "1 dead message holds up its job"
    for acknowledged in (False, True):
        told = _told(ann.get("/"))
        assert [any(text in line for line in told) for text in (object_, job_)] == [True, True]
        assert any("will not be tried again" in line for line in told) != acknowledged
        page = ann.get("/topics")
        badges = [one.text for one in page.tree.all("span", **{"class": "badge"}) if one.text]
        for what in ("object", "job"):
            assert f"1 dead messages that hold up their {what}" in badges
        if not acknowledged:
            page = ann.get(ann.get(f"/messages/{dead}").link("Acknowledge"))
            assert "hold up an object or a job, until rerun or discarded1" in page.main
            assert "changed1" in ann.send(page, "/change/acknowledge", reason="INC-4711").main
    assert "acknowledged by ann: INC-4711" in ann.get("/lanes").main
    assert {"/lanes", "/jobs"} <= set(ann.get("/").links)
    page = ann.get(ann.get(f"/messages/{dead}").link("Discard"))
    ann.send(page, "/change/discard", reason="gone")
    assert _told(ann.get("/")) == []


def test_reads_that_the_database_did_not_answer_are_told(
    sqlite_app: App, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any, **__: Any) -> None:
        raise TookTooLong(10)

    with monkeypatch.context() as patched:
        patched.setattr(Ops, "audit", late)
        assert ann.get("/audit", 503).status == 503
        assert ann.get("/audit", 503).status == 503
    page = ann.get("/")
    (line,) = _told(page)
    assert "2 reads of this dashboard failed" in line
    assert "did not answer within 10 s" in line
    assert "/system" in page.links
    ann.get("/messages", 400, since="never")  # that is no trouble of the database
    assert "2 reads" in _told(ann.get("/"))[0]


def test_what_has_failed_is_shared_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    async def late() -> None:
        made.append(1)
        raise TookTooLong(10)

    async def ask_thrice() -> None:
        sharing = threads.Sharing(9)
        for _ in range(3):
            with pytest.raises(TookTooLong):
                await sharing.get("a", 60.0, late)

    asyncio.run(ask_thrice())
    assert len(made) == 1
    monkeypatch.setattr(threads, "FAILED_SECONDS", 0.0)
    asyncio.run(ask_thrice())
    assert len(made) == 1 + 3
