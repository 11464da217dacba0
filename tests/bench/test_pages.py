"""What the measure of pages asks for."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from starlette.routing import Match, Mount, Route

from bench import large
from bench.pages import of_jobs
from bench.requests import paths, requests
from msgworker import App
from msgworker.web.application import routes

APART = {"events", "api_events", "static", "login"}
"""Routes that are no read of the database: streams, files, a form."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> App:
    app = App(f"sqlite:///{tmp_path_factory.mktemp('pages')}/pages.db")
    with pytest.MonkeyPatch.context() as smaller:
        for name, count in (
            ("DEAD", 300), ("FAILED", 50), ("DELAYED", 50), ("DEEP", 60),
            ("OPERATIONS", 40), ("HISTORY_MINUTES", 90), ("ITEMS", 60),
        ):  # fmt: skip
            smaller.setattr(large, name, count)
        large.fill(app, 3000, 1000)
    return app


def _names(path: str) -> set[str]:
    """The routes that answer a path."""
    found = set()
    for route in routes():
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "root_path": ""}
        match, child = route.matches(scope)
        if match is not Match.FULL:
            continue
        if isinstance(route, Mount) and route.name == "api":
            inner = route.app.routes  # type: ignore[attr-defined]
            found |= {r.name for r in inner if r.matches(scope | child)[0] is Match.FULL}
        else:
            found.add(getattr(route, "name", ""))
        break
    return found


def _wanted() -> set[str]:
    found: set[str] = set()
    for route in routes():
        inner = route.app.routes if isinstance(route, Mount) and route.name == "api" else [route]  # type: ignore[attr-defined]
        found |= {
            one.name for one in inner if not isinstance(one, Route) or "GET" in (one.methods or ())
        }
    return found - APART


def test_each_page_and_each_read_of_the_api_is_measured(filled):
    made = filled.web(actions=True, role="admin")
    asked = {name for path in paths(filled, made.site) for name in _names(path.partition("?")[0])}
    assert _wanted() - asked == set()


@pytest.mark.long
def test_each_request_reads_the_database_anew(filled):
    """Nothing is answered from what the dashboard keeps for some seconds."""
    tables = {
        "GET /?window=24h": "msgworker_history",
        "GET /topics?window=24h": "msgworker_history",
        "GET /lanes": "msgworker_message",
        "GET /metrics": "msgworker_message",
    }
    sent: list[str] = []
    sa.event.listen(filled.engine, "before_cursor_execute", lambda *of: sent.append(str(of[2])))
    counts = {}
    for name, read in requests(filled):
        if name in tables:
            found = []
            for _ in range(3):
                sent.clear()
                read()
                found.append(sum(tables[name] in one for one in sent))
            counts[name] = found
    assert counts.keys() == tables.keys()
    for name, found in counts.items():
        assert len(set(found)) == 1, (name, found)
        assert found[0] > 0, name


def test_jobs_are_measured_in_their_states(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "WAITING", 50)
    monkeypatch.setattr(large, "JOB", 80)
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    large.fill_jobs(app, 320)
    found = {name: read() for name, read in of_jobs(app)}
    assert len(found["list of jobs, completed"]) == 2
    one = found["job of 1,000"]
    assert (str(one.state), one.waiting.count, one.dead.count, one.total.count) == (
        *("running", 30, 10),
        80,
    )
    assert found["job of 1,000, completed"].state == "completed"
    assert found["job, 10,000 waiting"].waiting.count == 50
    assert found["job of all"].total.count == 320
    app.engine.dispose()
