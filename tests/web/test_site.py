"""Reads in threads, sub-paths, health, and what is shipped."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

import msgworker
from msgworker import App
from msgworker.config import SETTINGS
from msgworker.errors import ConfigError
from msgworker.ops import Ops
from msgworker.queries import counts
from msgworker.table.build import NEWEST
from msgworker.web import application, need, site, threads
from tests.names import homes
from tests.support.programs import python
from tests.support.web import Browser, Page, browse

WEB = Path(msgworker.__file__).parent / "web"
PAGES = ("/", "/?window=24h", "/system")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_and_has_nothing_inline(full_app: App, path: str) -> None:
    page = Page(browse(full_app).get(path).text)
    assert page.faults == []
    assert [tag for tag, _ in page.elements].count("h1") == 1
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    labelled = {attrs.get("for") for tag, attrs in page.elements if tag == "label"}
    for tag, attrs in page.elements:
        if tag == "select" or (tag == "input" and attrs.get("type") != "hidden"):
            assert attrs.get("id") in labelled or attrs.get("aria-label")


def test_the_overview_counts_by_topic(full_app: App) -> None:
    text = Page(browse(full_app).get("/").text).text
    assert re.search(r"new 13 ", text)
    assert re.search(r"settle no handler 9 0 0 0", text)


@pytest.mark.parametrize("window", ["2h", "", "1h' OR 1=1", "9" * 500])
def test_a_window_that_is_none_is_refused(full_app: App, window: str) -> None:
    assert browse(full_app).get("/", params={"window": window}).status_code == 400


def test_the_password_of_the_database_is_on_no_page(tmp_path: Path) -> None:
    """Nor in an error of the driver."""
    app = App("postgresql+psycopg://crm:hunter2canary@127.0.0.1:1/crm?password=hunter2canary")
    client = browse(app)
    for path in ("/", "/system", "/readyz", "/nothing"):
        assert "hunter2canary" not in client.get(path).text
    assert client.get("/").status_code == 503


def test_the_system_page_names_each_setting_with_its_origin(sqlite_app: App) -> None:
    made = App(sqlite_app.engine, lease_seconds=45)
    text = Page(browse(made).get("/system").text).text
    assert "lease_seconds 45 s App" in text
    assert "on_dead continue default" in text
    assert "columns – default" in text


def test_the_system_page_of_a_mounted_dashboard_has_all_that_an_app_is_made_with(
    sqlite_app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSGWORKER_URL", str(sqlite_app.engine.url))
    monkeypatch.setenv("MSGWORKER_RUN_LIMIT", "3")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "msgworker.toml").write_text("later_limit = 7")
    row = r'<th scope="row"[^>]*>(\w+)</th><td[^>]*"value">([^<]*)</td><td[^>]*"from">([^<]*)<'
    found = re.findall(row, browse(App.from_config()).get("/system").text)
    wanted = [name for name, one in SETTINGS.items() if one.group in ("database", "table", "app")]
    assert [name for name, _, _ in found] == wanted
    from_where = {name: (value, origin) for name, value, origin in found}
    assert from_where["run_limit"] == ("3", "environment MSGWORKER_RUN_LIMIT")
    assert from_where["later_limit"] == ("7", "msgworker.toml")
    assert from_where["max_tries"] == ("3", "default")


# ---------------------------------------------------------------- sub-paths


@pytest.mark.parametrize("asked", ["/queue", ""])
def test_below_a_path_every_link_stays_below_it(full_app: App, asked: str) -> None:
    """Whether the proxy passes the prefix on or not."""
    client = browse(full_app, root_path="/queue/")
    for path in ("/", "/system", "/nothing"):
        links = Page(client.get(asked + path).text).links()
        assert links
        assert [one for one in links if not one.startswith("/queue/")] == []
    assert client.get(f"{asked}/static/page.css").status_code == 200
    done = client.submit("/queue/theme", {"theme": "dark", "next": "/elsewhere"}, page="/queue/")
    assert done.headers["location"] == "/queue/"
    assert "Path=/queue;" in Browser(client.app).get(f"{asked}/").headers["set-cookie"]


def test_mounted_in_another_program_every_link_stays_below_it(full_app: App) -> None:
    client = Browser(Starlette(routes=[Mount("/ops/queue", full_app.web())]))
    page = Page(client.get("/ops/queue/").text)
    assert [one for one in page.links() if not one.startswith("/ops/queue/")] == []
    assert client.get("/ops/queue/static/page.js").status_code == 200
    assert client.get("/ops/queue/", headers={"host": "evil"}).status_code == 421


# ---------------------------------------------------------------- reads


def test_a_read_that_is_too_slow_is_given_up(sqlite_app: App) -> None:
    made = sqlite_app.web()
    over = threading.Event()
    object.__setattr__(made.site.options, "deadline", -0.9)

    async def ask() -> None:
        await made.site.ask(over.wait, 30)

    try:
        with pytest.raises(HTTPException, match="503"):
            asyncio.run(ask())
    finally:
        over.set()


def test_the_database_ends_a_read_of_a_page_at_its_deadline(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would keep its thread and its connection after its request was given up."""
    made = application.dashboard(sqlite_app, deadline=0.2)
    begun, over = threading.Event(), threading.Event()
    numbers = (
        "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 100000000)"
    )

    def slow(conn: Any, _: Any) -> None:
        begun.set()
        try:
            conn.exec_driver_sql(f"{numbers} SELECT max(i) FROM n").all()
        finally:
            over.set()

    monkeypatch.setattr(counts, "counts", slow)
    while not begun.is_set():  # on a busy machine the time is over before it is
        with pytest.raises(threads.Busy, match="503"):
            asyncio.run(made.site.ask(made.site.ops.counts))
    assert over.wait(5)  # on a busy machine its request is given up first
    made.site.close()


def test_only_so_many_requests_wait_for_the_database(sqlite_app: App) -> None:
    made = sqlite_app.web()
    over = threading.Event()

    async def many() -> list[Any]:
        asked = [asyncio.ensure_future(made.site.ask(over.wait, 30)) for _ in range(site.WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(threads.Busy):
            await made.site.ask(over.wait, 30)
        over.set()
        return await asyncio.gather(*asked)

    before = threading.active_count()
    assert len(asyncio.run(many())) == site.WAITING
    assert threading.active_count() <= before + site.THREADS + 1  # that watches them


def test_those_who_look_at_the_same_share_one_read(sqlite_app: App) -> None:
    made, calls = sqlite_app.web(), []

    def read() -> int:
        calls.append(1)
        return len(calls)

    async def fifty() -> list[int]:
        return await asyncio.gather(*(made.site.look(read) for _ in range(50)))

    assert asyncio.run(fifty()) == [1] * 50


# ---------------------------------------------------------------- health


def test_ready_says_whether_database_and_heartbeat_work(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browse(sqlite_app)
    assert client.get("/readyz").json() == {"status": "ok", "checks": {"database": "ok"}}
    monkeypatch.setattr(App, "heartbeats", {"a": True, "b": False})
    found = client.get("/readyz")
    assert (found.status_code, found.json()["checks"]["heartbeat"]) == (503, "failed")


def test_many_who_ask_whether_it_is_ready_ask_the_database_once(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, probe = [], Ops.probe

    def counted(ops: Ops) -> bool:
        asked.append(1)
        return probe(ops)

    monkeypatch.setattr(Ops, "probe", counted)
    with browse(sqlite_app) as client:  # all requests on one event loop
        assert {client.get("/readyz").status_code for _ in range(10)} == {200}
    assert len(asked) <= 5  # one in 2 s, also on a slow machine


def test_charts_of_many_viewers_are_read_once_although_the_counts_change(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, history = [], Ops.history

    def counted(ops: Ops, window: str) -> Any:
        asked.append(window)
        return history(ops, window)

    monkeypatch.setattr(Ops, "history", counted)
    dashboard = sqlite_app.web()
    with Browser(dashboard) as client:  # all requests on one event loop
        for window in ("1h", "24h") * 5:
            assert client.get(f"/?window={window}").status_code == 200
            dashboard.site.forget()
    dashboard.site.close()
    assert sorted(asked) == ["1h", "24h"]


def test_ready_needs_the_tables_and_alive_does_not(sqlite: Any) -> None:
    app = App(sqlite.url)
    client = browse(app)
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(("least", "status"), [(NEWEST, 200), (NEWEST + 1, 503)])
def test_ready_needs_a_schema_that_this_version_may_work_on(
    sqlite_app: App, caplog: Any, least: int, status: int
) -> None:
    client = browse(sqlite_app)
    assert client.get("/readyz").status_code == 200
    lease = sqlite_app.tables.lease
    text = json.dumps({"table": "msgworker_message", "version": NEWEST + 2, "least": least})
    with sqlite_app.engine.begin() as conn:
        done = conn.execute(sa.update(lease).where(lease.c.kind == "schema").values(serves=text))
        assert done.rowcount == 1
    found = browse(sqlite_app).get("/readyz")
    assert found.status_code == status
    told = f"only code of version {least} or later may work" in caplog.text
    assert told == (status == 503)


def test_an_app_tells_of_the_instances_that_run_here(sqlite_app: App) -> None:
    sqlite_app.add_handler("settle", lambda msg: None)
    assert sqlite_app.heartbeats == {}
    worker = sqlite_app.worker(threads=1)
    with worker:
        worker.start()
        assert sqlite_app.heartbeats == {worker.instance_id: True}


# ---------------------------------------------------------------- what is shipped


def test_files_of_others_are_as_they_were_published() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` .*`(licences/[\w.-]+)` \| `(\w{64})` \|$",
        (WEB / "static" / "VENDORED.md").read_text(),
        re.M,
    )
    assert {name for name, _, _ in rows} == {
        path.name for path in (WEB / "static").glob("*.js") if path.name != "page.js"
    }
    for name, licence, digest in rows:
        assert hashlib.sha256((WEB / "static" / name).read_bytes()).hexdigest() == digest
        assert (WEB / "static" / licence).read_text()


def test_templates_escape_all_and_have_nothing_inline() -> None:
    for path in (WEB / "templates").glob("*.html"):
        text = path.read_text()
        assert not re.search(r"\|\s*safe|autoescape|<style|style=|\son\w+=", text), path
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), path


def test_nothing_of_the_web_is_imported_before_it_is_wanted() -> None:
    code = (
        "import sys, msgworker; from msgworker import App; App('sqlite:///never-opened.db');"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'starlette', 'jinja2', 'uvicorn'}))"
    )
    done = python("-c", code)
    assert done.stdout.strip() == "[]"


def test_what_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(ConfigError, match=r"no_such_module.*msgworker\[web\]"):
        need("starlette", "no_such_module")


# ---------------------------------------------------------------- the command


def test_the_command_serves_and_stops_in_order(sqlite_app: App, tmp_path: Path) -> None:
    url = sqlite_app.engine.url.render_as_string()
    command = [sys.executable, "-m", "msgworker", "web", "--url", url, "--port", "0"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert program.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", program.stderr.readline())
        assert found
        text = urllib.request.urlopen(found[0], timeout=20).read().decode()
        assert "<h1>Overview</h1>" in text
        system = urllib.request.urlopen(f"{found[0]}system", timeout=20).read().decode()
        assert "option --port" in system
        begun = time.monotonic()
        program.send_signal(signal.SIGTERM)
        assert program.wait(20) == 0
        assert time.monotonic() - begun < 10
        assert program.stderr.read() == ""
    finally:
        program.kill()
        program.wait()


# ---------------------------------------------------------------- the list of SECURITY.md


def test_each_rule_of_the_dashboard_names_tests_that_are_there() -> None:
    text = (WEB.parents[1] / "SECURITY.md").read_text()
    rows = re.findall(r"^\| (S\d+) \|.*\|(.*)\|$", text, re.M)
    assert [rule for rule, _ in rows] == [f"S{number}" for number in range(1, 20)]
    for rule, named in rows:
        names = re.findall(r"`(test_\w+)`", named)
        assert names, rule
        assert [name for name in names if name not in homes()] == [], rule


def test_an_error_of_the_badges_of_a_page_that_fails_is_not_logged_by_asyncio() -> None:
    class Broken:
        badges = SimpleNamespace(age=site.BADGE_SECONDS)

        async def overview(self) -> None:
            raise ValueError("hunter2")

        async def live(self, request: Request, template: str, values: Any, **_: Any) -> Response:
            return cast(Response, await values())

    async def fails(site: Any, request: Request) -> Response:
        await asyncio.sleep(0.01)
        raise KeyError("of the page")

    async def asked() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
        state, app = {"viewer": object()}, SimpleNamespace(state=SimpleNamespace(site=Broken()))
        request = Request({"type": "http", "state": state, "app": app})
        site.page("/fails")(fails)
        endpoint = cast(Route, site.PAGES.pop()).endpoint
        with pytest.raises((KeyError, ValueError)):
            await endpoint(request)
        gc.collect()
        return found

    assert asyncio.run(asked()) == []
