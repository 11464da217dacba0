"""A table with a text in every field, every page of the dashboard, and what no page may have."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from msgworker import App
from msgworker.payload import clean
from msgworker.store.items import label
from msgworker.store.tries import fingerprint
from tests.support.browsing import Browser, Page
from tests.support.leases import dead_holds, registered
from tests.support.ops import DONE, FAILED, NEW, RUNNING, put
from tests.support.rows import Table

PLAIN = "plain text"
BY_JOB = "job_id"
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
    ops.cancel(ids[3], reason=f"because {text}")
    if BY_JOB in app.tables.names:
        told = clean(text if text.strip() else PLAIN, 190)
        app.job(told, on_complete=(clean(text, 100), {told: told}, told), opened_by=text)
    app.add_handler("t", lambda msg: None)
    name = "".join(c for c in text[:60] if c.isprintable()).strip()
    app.every("24h", topic="t", name=name or "nightly")
    return ids


def _known(table: sa.Table, values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in table.c}


def paths(text: str, ids: list[int]) -> list[str]:
    """Every page, with this text in every parameter that takes one."""
    one, q = ids[0], quote(text, safe="")
    found = ["/", "/failures", "/lanes", "/lanes?by=object", "/instances", "/topics", "/schedules"]
    found += [f"/topics/{q}", f"/topics/{q}?window=24h", "/topics/t"]
    found += ["/locks", "/audit", "/system", "/audit/1", f"/writes/{one}?op=3", "/messages/99999"]
    found += ["/jobs", "/jobs/1", f"/jobs?after={q}", f"/jobs/{q}"]
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
    return browser.get(path, 200, 400, 404, 503)
