"""Pictures of every page: `python -m tests.web.screens [FOLDER]`, by default docs/screens.

In light and dark, 1440 and 390 px wide, with a palette of 64 colours. Needs Chromium and the
packages playwright and pillow.
"""

from __future__ import annotations

import io
import math
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import uvicorn

from msgworker import App
from msgworker.coordination import DatabaseLocks
from msgworker.store import history
from msgworker.store.history import Counts, Minute
from msgworker.web.access import Viewer
from msgworker.web.tokens import Role
from tests.support.leases import dead_holds, registered
from tests.support.ops import DONE, FAILED, NEW, RUNNING, put
from tests.support.rows import Table
from tests.web.chromium import opened

WIDTHS = (1440, 390)
COLOURS = ("light", "dark")
MOST_HEIGHT = 1600
SETTLED_MS = 300
"""Until the first event of the stream has loaded what is live."""


def _history(app: App, now: datetime) -> None:
    """What two instances did in the last day, with an outage in the last half hour."""
    minutes = []
    for ago in range(1, 1440):
        at = now.replace(second=0, microsecond=0) - timedelta(minutes=ago)
        wave = 30 + int(20 * math.sin(ago / 90)) + ago * 7 % 11
        failing = 9 <= ago <= 22
        for instance in ("crm-1", "crm-2"):
            merged = Counts(done=wave, ran=_spread(3, wave), waited=_spread(2, wave))
            sent = Counts(done=0 if failing else wave // 2, retried=8 if failing else 0)
            sent.dead = 2 if ago in (9, 10) else 0
            sent.ran = _spread(9 if failing else 5, 8 if failing else wave // 2)
            topics = {"customer.merge": merged, "statement.send": sent}
            minutes.append(Minute(at, instance, topics))
    with app.engine.begin() as conn:
        history.write(conn, app.tables, minutes)


def _spread(bound: int, count: int) -> list[int]:
    """Most as long as the bound of this number, one in ten a bound more."""
    found = [0] * len(history.RAN_COUNTS)
    found[bound], found[bound + 1] = count - count // 10, count // 10
    return found


def sample(app: App) -> dict[str, str]:
    """A table in the middle of an incident, and the pages to see of it."""
    now = datetime.now(UTC)
    customers = [f"C-{1000 + n}" for n in range(24)]
    put(app, *[(name, DONE) for name in customers * 4], topic="customer.merge", finished_at=now)
    failed = put(
        app,
        *[(name, FAILED) for name in customers[:9]],
        topic="statement.send",
        last_error="DatabaseError: ORA-12541: no listener at billing-db",
        created_at=now - timedelta(minutes=22),
        payload='{"customer_id": "C-1000", "month": "2026-10", "card": "4111"}',
    )
    put(app, ("C-1020", FAILED), tries=2, topic="customer.merge", last_error="KeyError: 'into'")
    put(app, *[(name, NEW) for name in customers * 3], topic="statement.send", created_at=now)
    put(app, *[(None, NEW)] * 12, topic="report.print", created_at=now)
    held = put(app, *[(f"D-{n}", RUNNING) for n in range(3)], topic="customer.merge")
    tried = app.tables.failed_try
    with app.engine.begin() as conn:
        for msg_id in failed:
            for number, minute in ((1, 20), (2, 15), (3, 9)):
                at = now - timedelta(minutes=minute)
                values = {
                    "table_name": app.tables.message.name,
                    "msg_id": msg_id,
                    "try_no": number,
                    "kind": "failed",
                    "instance": "crm-1",
                    "started_at": at - timedelta(seconds=7),
                    "ended_at": at,
                    "error": "DatabaseError: ORA-12541: no listener at billing-db",
                    "fingerprint": "a91f03c2d4e5f607",
                    "traceback": 'Traceback (most recent call last):\n  File "crm/statements.py", '
                    "line 81, in send\nDatabaseError: ORA-12541: no listener at billing-db",
                }
                conn.execute(sa.insert(tried), {k: v for k, v in values.items() if k in tried.c})
    dead_holds(app, Table(app), "crm-7", msg_id=held[0])
    for number in (1, 2):
        process = {"host": f"app{number}", "pid": 4410 + number, "threads": 8, "version": "1.2.0"}
        registered(app, f"crm-{number}", process=process)
    app.add_handler("report.print", lambda msg: None)
    _history(app, now)
    app.cron("0 2 * * *", topic="report.print", name="nightly", tz="Europe/Berlin")
    app.ops.acting(actor="alice", source="web, token, 10.0.0.7").pause(
        "report.print", reason="INC-4711: the printer is out of order"
    )
    locks = DatabaseLocks(app.engine)
    for name in ("month-end", "inbox:member:crm-1", "inbox:shard:0", "inbox:shard:1"):
        locks.acquire(name, "crm-1", ttl=600)
    return {
        "overview": "/",
        "messages": "/messages",
        "messages-filtered": "/messages?status=dead&topic=statement.send",
        "message": f"/messages/{failed[0]}?payload=1",
        "failures": "/failures",
        "rerun": "/change/rerun?status=dead&topic=statement.send",
        "lanes": "/lanes",
        "instances": "/instances",
        "release": "/act/release?name=crm-7",
        "topics": "/topics",
        "schedules": "/schedules",
        "locks": "/locks",
        "audit": "/audit",
        "system": "/system",
    }


@contextmanager
def served(app: App, **options: Any) -> Iterator[str]:
    """The dashboard of an App on a port of loopback; its URL."""
    viewer = Viewer("alice", Role.ADMIN)
    given: dict[str, Any] = {"auth": lambda _: viewer, "actions": True} | options
    made = app.web(**given)
    config = uvicorn.Config(made, "127.0.0.1", 0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        made.site.stopping()
        server.should_exit = True
        thread.join(15)
        made.site.close()


def small(png: bytes) -> bytes:
    """The same picture with few colours."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, MOST_HEIGHT)))
    out = io.BytesIO()
    picture.quantize(64).save(out, "PNG", optimize=True)
    return out.getvalue()


def take(folder: Path) -> int:
    """Take all pictures; returns their size in bytes."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    size = 0
    with tempfile.TemporaryDirectory() as place, chdir(place), opened() as browser:
        app = App("sqlite:///crm.db")  # pages show the URL
        app.create_schema()
        pages = sample(app)
        with served(app, label="PROD", redact=["card"]) as url:
            for width in WIDTHS:
                for colours in COLOURS:
                    page = browser.new_page(
                        viewport={"width": width, "height": 900}, color_scheme=colours
                    )
                    for name, path in pages.items():
                        page.goto(url + path)
                        page.wait_for_timeout(SETTLED_MS)
                        png = small(page.screenshot(full_page=True))
                        (folder / f"{name}-{width}-{colours}.png").write_bytes(png)
                        size += len(png)
                    page.close()
        app.engine.dispose()
    return size


if __name__ == "__main__":
    print(take(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screens")), "bytes")
