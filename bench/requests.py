"""What bench/pages.py asks the dashboard: each page with each of its filters, what it counts before
a write, and each list of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from bench.large import DEEP_OBJECT, HOLDER, INSTANCES, LIMITED, TOPICS
from bench.seeding import TOPIC
from msgworker import App
from msgworker.store.bounded import cursor_place, cursor_text
from msgworker.web.site import Site

WIDTH = 46
BY_HAND = 200
"""Messages of a selection by ids."""
STATES = ("new", "processing", "failed", "dead", "done")
ORDERS = ("", "successors", "also_done", "force")


def requests(app: App) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Path and request of each list of the API, and of each page. The dashboard answers each as
    after a start: what viewers share for some seconds is read anew."""
    from starlette.testclient import TestClient

    made = app.web(actions=True, role="admin")
    client = TestClient(made, "http://127.0.0.1:8080", client=("127.0.0.1", 50_000))

    def get(path: str) -> None:
        made.site.forget(steady=True)
        found = client.get(path, headers={"accept": "text/html"}, follow_redirects=False)
        if found.status_code >= 400:
            raise RuntimeError(f"{path}: {found.status_code} {found.text:.500}")

    for path in paths(app, made.site):
        yield f"GET {path if len(path) <= WIDTH else path[: WIDTH - 1] + '…'}", partial(get, path)


def paths(app: App, site: Site) -> Iterator[str]:
    """All paths."""
    yield from api(app)
    yield from pages(app)
    yield from dry_runs(app)
    yield from (f"/act/{kind}?{urlencode(query)}" for kind, query in acts())
    yield running_write(app, site)
    yield from ("/healthz", "/readyz", "/metrics")


def api(app: App) -> Iterator[str]:
    """Each list of the API; of those with filters, with the ones that cost most."""
    from msgworker.web.api import ENDPOINTS

    last = app.ops.messages(limit=1)[0].msg_id
    for one in ENDPOINTS:
        if not one.write:
            path = one.path.replace("{msg_id}", str(last)).replace("{op_id}", "17")
            path = path.replace("{job_id}", str(app.ops.jobs(limit=1)[0].job_id))
            yield f"/api/v1{path}"
    since = urlencode({"since": app.ops.overview().read_at.isoformat()})
    for more in (
        *(f"messages?status={state}&limit=200" for state in STATES),
        "messages?topic=nothing",
        f"messages?object_id={DEEP_OBJECT}&limit=200",
        "messages?error=list%20k&order=oldest",
        f"messages?{since}&order=oldest",
        f"messages/{last}/items?state=failed&limit=200",
        f"failures?topic={TOPIC}3&{since}",
        "lanes?by=object",
        "lanes?limit=200",
        *(f"metrics/series?window={window}" for window in ("6h", "24h")),
        f"metrics/series?window=24h&topic={TOPIC}3",
        *(f"metrics/topics?window={window}" for window in ("6h", "24h")),
        "audit?kind=rerun&actor=nobody",
        f"audit?msg_id={last}",
        "openapi.json",
    ):
        yield f"/api/v1/{more}"


def pages(app: App) -> Iterator[str]:
    """The paths of all pages, with each of their filters."""
    ops = app.ops.within(10)
    last = ops.messages(limit=1)[0].msg_id
    group = ops.failures(limit=1)[0].fingerprint
    dead = ops.messages(status="dead", limit=1)[0].msg_id
    yield from ("/", "/?window=6h", "/?window=24h")
    filters: list[dict[str, str]] = [{}, *({"status": state} for state in STATES)]
    filters += [{"topic": f"{TOPIC}3"}, {"topic": "nothing"}, {"object": "obj00000017"}]
    filters += [{"object": DEEP_OBJECT}, {"error": "list k"}, {"since": "15m"}, {"since": "30d"}]
    filters += [{"status": state, "topic": f"{TOPIC}3"} for state in STATES]
    filters += [{"status": "dead", "group": group}, {"group": group}]
    filters += [{"status": "dead", "error": "list k", "since": "24h"}]
    for one in filters:
        for order in ({}, {"order": "oldest"}):
            yield f"/messages?{urlencode(one | order)}"
    yield from _deep(app)
    yield f"/messages?find={last}"
    yield f"/messages?find={DEEP_OBJECT}"
    behind = ops.messages(object_id=DEEP_OBJECT, status="new", limit=1)[0].msg_id
    for msg_id in (1, dead, behind, last):
        yield f"/messages/{msg_id}?payload=1"
    yield f"/messages/{last}/items"
    yield f"/messages/{last}/items?state=failed"
    yield from (f"/edit/{dead}", f"/change/edit?ids={dead}")
    yield "/failures"
    yield f"/failures?topic={TOPIC}3&since=24h"
    yield "/failures.csv"
    yield from ("/jobs", f"/jobs/{ops.jobs(limit=1)[0].job_id}")
    yield "/lanes"
    yield "/lanes?by=object"
    yield f"/lanes?by=object&after={ops.lanes(by='object', limit=100).next_after}"
    yield from ("/topics", "/topics?window=6h", "/topics?window=24h")
    yield from (f"/topics/{TOPIC}3", f"/topics/{TOPIC}3?window=24h", f"/topics/{TOPIC}{TOPICS - 1}")
    yield from ("/instances", "/schedules", "/locks", "/audit", "/audit?kind=rerun")
    yield "/audit?actor=ann-7"
    yield f"/audit?message={dead}"
    yield "/audit/17"
    yield "/system"


def _deep(app: App) -> Iterator[str]:
    """Places deep in the list: behind half of the messages, in both orders."""
    middle = app.ops.messages(limit=1)[0].msg_id // 2
    for status in (None, "done"):
        for newest in (True, False):
            found = app.ops.messages(status=status, limit=50, newest=newest)
            if found.next_after is None:  # a small table
                continue
            more = (object, object) if status and newest else ()
            number, _, *rest = cursor_place(str(found.next_after), int, int, *more)
            query = {"after": cursor_text([number, middle, *rest])}
            query |= {} if newest else {"order": "oldest"}
            yield f"/messages?{urlencode(query | ({} if status is None else {'status': status}))}"


def dry_runs(app: App) -> Iterator[str]:
    """The pages before a write of messages, which count those that it would change."""
    ops = app.ops.within(10)
    group = ops.failures(limit=1)[0].fingerprint
    dead = ops.messages(status="dead", limit=BY_HAND)
    by_hand = ",".join(str(one.msg_id) for one in dead)
    selections: list[dict[str, str]] = [
        {"ids": str(dead[0].msg_id)},
        {"ids": by_hand},
        *({"status": state} for state in ("dead", "failed", "new")),
        {"topic": f"{TOPIC}3"},
        {"topic": "nothing"},
        {"status": "dead", "topic": f"{TOPIC}3"},
        {"group": group},
        {"object": DEEP_OBJECT},
        {"status": "dead", "error": "list k", "since": "24h"},
    ]
    for kind in ("rerun", "discard", "cancel"):
        for chosen in selections:
            yield f"/change/{kind}?{urlencode(chosen)}"
    for order in ORDERS[1:]:
        for chosen in ({"status": "dead"}, {"group": group}, {"ids": by_hand}):
            yield f"/change/rerun?order={order}&{urlencode(chosen)}"
    yield "/change/rerun?status=done&order=force"


def acts() -> Iterator[tuple[str, dict[str, str]]]:
    """The pages before a write of one thing: kind and query."""
    topic, schedule = {"name": f"{TOPIC}{TOPICS - LIMITED - 1}"}, {"name": "nightly-1"}
    yield "pause-topic", topic
    yield "resume-topic", {"name": f"{TOPIC}0"}
    yield "remove-limit", {"name": f"{TOPIC}{TOPICS - 1}"}
    yield "release", {"name": f"large-{INSTANCES - 1}"}
    yield "release", {"name": HOLDER, "force": "1"}
    for kind in ("pause", "resume", "run", "delete"):
        yield f"{kind}-schedule", schedule
    yield "release-lock", {"name": "inbox:shard:1", "force": "1"}


def running_write(app: App, site: Site) -> str:
    """The page of a write that has ended; it changed nothing."""
    ops = app.ops.acting(actor="bench", source="bench")
    about = {"title": "Pause topic", "back": "/topics", "back_text": "Topics"}
    work = partial(ops.pause, f"{TOPIC}{TOPICS - 1}", dry_run=True)
    done = site.writes.start(lambda tell: work(), by="bench", **about)
    done.over.wait()
    return f"/writes/{quote(done.write_id)}"
