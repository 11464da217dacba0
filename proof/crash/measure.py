"""How long objects wait for a new owner, and what a large recovery costs the others.

    python -m proof.crash.measure [--database sqlite ...]

After kill -9 an object must be handled again within lease + 2 heartbeats, after SIGTERM within one
poll. The recovery of 10,000 rows must hold no lock longer than 1 s, and leave the rest of the fleet
0.8 of its speed. Figures to read: exit code 0 whatever they are.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from msgworker import App
from msgworker.store import lease
from proof.crash.fleet import Trial
from proof.history import Kind
from tests.engines import plain_engine
from tests.plugin import NAMES, _fresh
from tests.servers import session
from tests.support.waiting import until

LEASE_SECONDS = 3.0
POLL_SECONDS = 0.2
ROUNDS = 5
DEAD_ROWS = 10_000
BACKLOG = 500_000
"""More than the fleet handles in the whole time."""
DEAD_LEASE_SECONDS = 8.0
BEFORE_SECONDS = 5.0
"""The speed before is taken over so long: from one half second to the next it may be four times
what it was."""
DEAD = "dead-1-0123456789abcdef"


def after(trial: Trial, how: str) -> float:
    """Seconds from the end of one instance until another has started what it held."""
    held = trial.send("a", work=120.0 if how == "kill" else 0.3)
    behind = trial.send("a")
    victim = trial.spawn(poll=POLL_SECONDS, grace=0.5).ready()
    until(lambda: trial.seen(held, Kind.STARTED), "the victim works")
    heir = trial.spawn(poll=POLL_SECONDS).ready()
    until(lambda: len(trial.instances()) == 2, "the heir is there")
    trial.pauses(1.0)
    waits_for = held if how == "kill" else behind
    if how == "kill":
        victim.kill()
        ended = time.monotonic()
    else:
        later = trial.send("b", work=0.3), trial.send("b")
        del later
        assert victim.stop() == 0
        ended = time.monotonic()
        waits_for = trial.send("a")
    (event, *_) = until(lambda: trial.seen(waits_for, Kind.STARTED, by=heir), "the heir works")
    heir.kill()
    with trial.reader.connect() as conn:
        conn.execute(sa.text("DELETE FROM msgworker_message"))
        conn.execute(sa.text("DELETE FROM msgworker_lease"))
    return float(event.at) - ended


def recovery(url: str) -> tuple[float, float, float]:
    """Messages per second before and while 10,000 rows are recovered, and the longest transaction
    of the recovery in seconds."""
    apps = [App(url, lease_seconds=LEASE_SECONDS) for _ in range(2)]
    apps[0].create_schema()
    handled: list[float] = []
    for app in apps:
        app.add_handler("t", lambda msg: handled.append(time.monotonic()))
    with apps[0].engine.begin() as conn:
        pairs = ((None, f"o{i % 2000}") for i in range(BACKLOG))
        apps[0].send_many(conn, "t", pairs)
        apps[0].send_many(conn, "t", ((None, f"d{i}") for i in range(DEAD_ROWS)))
        conn.execute(
            sa.text(
                "UPDATE msgworker_message SET status = 1, claimed_by = :dead "
                "WHERE object_id LIKE 'd%'"
            ),
            {"dead": DEAD},
        )
    held = _transactions(apps)
    reader = plain_engine(url, isolation_level="AUTOCOMMIT")
    count = sa.text("SELECT count(*) FROM msgworker_message WHERE claimed_by = :dead")
    workers = [app.worker(threads=2) for app in apps]
    with apps[0].engine.begin() as conn:
        lease.register(conn, apps[0].tables, DEAD, ttl=DEAD_LEASE_SECONDS)
    for worker in workers:
        worker.start()
    with reader.connect() as conn:

        def left() -> int:
            return int(conn.execute(count, {"dead": DEAD}).scalar_one())

        until(lambda: left() < DEAD_ROWS, "the recovery has begun", every=0.02)
        begun = time.monotonic()
        until(lambda: left() == 0, "the recovery is over", every=0.02)
        ended = time.monotonic()
    for worker in workers:
        worker.stop()
    if len(handled) >= BACKLOG:
        print("the backlog was used up: these are no figures")
    settled = begun - 0.1
    before = sum(settled - BEFORE_SECONDS < at < settled for at in handled) / BEFORE_SECONDS
    during = sum(begun <= at <= ended for at in handled) / (ended - begun)
    for app in apps:
        app.engine.dispose()
    reader.dispose()
    return before, during, max(held)


def _transactions(apps: list[App]) -> list[float]:
    """The seconds from the first UPDATE of each transaction of the heartbeats to its end."""
    held = [0.0]
    local = threading.local()

    def began(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        heartbeat = threading.current_thread().name == "msgworker-heartbeat"
        if heartbeat and "crash_times" in statement and statement.startswith("UPDATE"):
            local.begun = time.monotonic()

    def ended(conn: Any) -> None:
        begun = getattr(local, "begun", None)
        if begun is not None:
            held.append(time.monotonic() - begun)
            local.begun = None

    for app in apps:
        sa.event.listen(app.engine, "before_cursor_execute", began)
        sa.event.listen(app.engine, "commit", ended)
    return held


def main() -> int:
    parser = argparse.ArgumentParser(prog="measure", description=__doc__)
    parser.add_argument("--database", choices=NAMES, action="append")
    options = parser.parse_args()
    limit = LEASE_SECONDS * 5 / 3
    with session() as servers, tempfile.TemporaryDirectory() as folder:
        for name in options.database or NAMES:
            for how, most in (("kill", limit), ("stop", POLL_SECONDS)):
                place = Path(folder) / f"{name}-{how}"
                place.mkdir()
                for database in _fresh(name, servers, place):
                    trial = Trial(database.url, place, lease=LEASE_SECONDS)
                    took = [after(trial, how) for _ in range(ROUNDS)]
                    trial.close()
                middle, worst = statistics.median(took), max(took)
                print(f"{name} {how}: {middle:.2f} s, at most {worst:.2f} s; allowed {most:.2f} s")
            place = Path(folder) / f"{name}-recovery"
            place.mkdir()
            for database in _fresh(name, servers, place):
                before, during, longest = recovery(database.url)
            share = during / before if before else 0.0
            print(
                f"{name} recovery of {DEAD_ROWS}: longest lock {longest:.2f} s; {before:.0f}/s "
                f"before, {during:.0f}/s meanwhile, {share:.2f} of it",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
