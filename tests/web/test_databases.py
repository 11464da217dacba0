"""The dashboard on each database: every page, what its forms change, and its lists to their end."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.message import State
from tests.support.apps import created
from tests.support.browsing import Browser, dangerous
from tests.support.leases import dead_holds
from tests.support.ops import DONE, FAILED, NEW, RUNNING, many_dead, put
from tests.support.pages import PLAIN, fill, looked, paths
from tests.support.rows import Table
from tests.support.waiting import launched, until
from tests.support.web import browse, one_loop

ABOUT = "a reason"


def _done(browser: Browser, kind: str, **chosen: Any) -> str:
    """What the page says of a write that was confirmed."""
    page = browser.get(f"/{kind}", **chosen)
    told = browser.send(page, f"/{kind}", reason=ABOUT).main
    assert "Done" in told, told
    return told


def test_every_page_of_a_full_table_is_shown_on_each_database(app: App, visit: Any) -> None:
    ids, browser = fill(app, PLAIN), visit(app)
    with one_loop(browser.client):
        for path in paths(PLAIN, ids):
            page = looked(browser, path)
            assert page.status != 503, f"{path}: {page.main}"
            assert not dangerous(page.tree), path


def test_what_forms_change_is_changed_on_each_database(app: App, visit: Any) -> None:
    browser = visit(app)
    many_dead(app, 3, objects=3)
    new, held = put(app, ("n", NEW), ("held", RUNNING))
    dead_holds(app, Table(app), "crm-7", msg_id=held)
    assert "3" in _done(browser, "change/rerun", status="dead")
    _done(browser, "change/discard", ids=str(new))
    _done(browser, "act/pause-topic", name="t")
    _done(browser, "act/release", name="crm-7")
    counts = app.ops.overview().counts
    assert {state: counts[state].count for state in (State.NEW, State.FAILED, State.DEAD)} == {
        State.NEW: 3,
        State.FAILED: 1,
        State.DEAD: 1,
    }
    told = browser.get("/audit").main
    for word in ("rerun", "discard", "pause", "release", ABOUT):
        assert word in told, word


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_list_is_leafed_through_to_its_end_on_each_database(
    app: App, visit: Any, order: str
) -> None:
    browser = visit(app)
    kinds = [("a", NEW), ("b", FAILED), (None, DONE)]
    ids = put(app, *[(f"{key or ''}{n}", status) for n in range(40) for key, status in kinds])
    seen: list[int] = []
    page = browser.get("/messages", order=order)
    while True:
        found = [re.search(r"/messages/(\d+)$", link) for link in page.links]
        seen += dict.fromkeys(int(one[1]) for one in found if one)
        further = [link for link in page.links if "after=" in link]
        if not further:
            break
        page = browser.get(further[0])
    assert seen == sorted(ids, reverse=order == "newest")


def test_sizes_are_shown_and_told_on_each_database(app: App, visit: Any) -> None:
    browser = visit(app)
    told = browser.client.get("/api/v1/sizes").json()
    names = [one["name"] for one in told["tables"]]
    assert names == [one.name for one in app.ops.sizes().tables]
    page = browser.get("/system").main
    if app.engine.dialect.name == "sqlite":
        assert told["file_bytes"] > 0
        assert told["tables"][0]["table_bytes"] is None
        assert "the whole file with all its tables" in page
        assert "does not report the size of a single table" in page
    else:
        assert [name for name in names if name not in page] == []
        assert told["tables"][0]["index_bytes"] > 0
        assert "KiB" in page
        assert ("from the statistics" in page) == (told["exact"] == "about")


def test_sizes_that_cannot_be_had_are_unknown_on_the_page(sqlite_app: App, visit: Any) -> None:
    with sqlite_app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_item")
    browser = visit(App(sqlite_app.engine))
    page = browser.get("/system").main
    assert "The sizes of the tables are unknown" in page
    assert "msgworker_item is missing" in page
    assert browser.client.get("/api/v1/sizes").status_code == 503


@pytest.mark.requires("sessions")
def test_it_is_not_ready_while_an_instance_of_its_process_has_lost_its_lease(
    database: Any, make_app: Any
) -> None:
    """Another transaction holds the row, so that no heartbeat renews it."""
    made = created(make_app(lease_seconds=1.5))
    made.add_handler("t", lambda msg: None)
    client = browse(made)

    def told() -> tuple[int, str]:
        found = client.get("/readyz")
        return found.status_code, found.json()["checks"]["heartbeat"]

    with launched(made.worker(threads=1)) as worker:
        until(lambda: bool(made.heartbeats) and told() == (200, "ok"), "it is ready")
        me = made.tables.lease.c.name == worker.instance_id
        with database.engine().begin() as other:
            other.execute(sa.select(made.tables.lease).where(me).with_for_update())
            until(lambda: told() == (503, "failed"), "the lease is over")
        until(lambda: told() == (200, "ok"), "it has one again")
