"""Writes of ops beside workers and each other: nothing is lost, counted twice or overlaps."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from msgworker import App, Message, Reject
from msgworker.store.controls import JOB_PAUSED
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, launched, until
from tests.support.watching import Watch

pytestmark = pytest.mark.quick

OLD = datetime.now(UTC) - timedelta(days=40)


def lines(app: App) -> int:
    with app.engine.connect() as conn:
        return int(conn.execute(sa.text("SELECT count(*) FROM msgworker_audit")).scalar_one())


@pytest.mark.quick("postgresql")
def test_discards_beside_a_worker(app, table):
    """What was discarded never starts; what has started is never discarded."""
    watch = Watch()
    app.add_handler("t", watch)
    ids = send(app, *(f"o{i % 10}" for i in range(400)))
    with launched(app.worker(threads=3)):
        discarded = 0
        for start in range(0, 400, 100):
            part = ids[start + 40 : start + 100]
            discarded += app.ops.discard(part, reason="twin")
        until(lambda: set(table.statuses) <= {2, -1}, "all are finished")
    assert table.statuses.count(-1) == discarded == lines(app)
    assert table.statuses.count(2) == len(watch.spans) == 400 - discarded
    watch.assert_exclusive()
    watch.assert_in_order()


@pytest.mark.quick("mariadb")
def test_reruns_with_successors_beside_a_worker(app, table):
    """Every message starts once for the sending and once for each rerun, one at a time."""
    watch, chance = Watch(), random.Random(7)

    @app.handler("t")
    def handle(msg: Message) -> Reject | None:
        watch(msg)
        return Reject("no") if msg.msg_id % 3 == 0 else None

    ids = send(app, *(f"o{i % 6}" for i in range(60)))
    changed = 0
    with launched(app.worker(threads=3)):
        for _ in range(12):
            some = chance.sample(ids, 3)
            also = chance.random() < 0.5
            changed += app.ops.rerun(some, with_successors=True, force=True, also_done=also)
        until(
            lambda: set(table.statuses) <= {2, -1} and len(watch.spans) == 60 + changed,
            "all have run again",
        )
    watch.assert_exclusive()
    assert lines(app) == changed
    assert {table.statuses[i - ids[0]] for i in ids if i % 3} == {2}


@pytest.mark.quick("postgresql")
def test_reruns_and_discards_at_once(app, table):
    """Both lock the same rows; each change is in the audit once."""
    app.add_handler("t", lambda msg: Reject("no"))
    ids = send(app, *(f"o{i % 7}" for i in range(200)))
    app.drain(linger=0)

    def act(seed: int) -> int:
        chance, changed = random.Random(seed), 0
        for _ in range(6):
            some = chance.sample(ids, 60)
            if chance.random() < 0.5:
                changed += app.ops.rerun(some)
            else:
                changed += app.ops.discard(some, reason="r")
        return changed

    joins = [in_thread(lambda seed=seed: act(seed)) for seed in range(3)]
    assert sum(join() for join in joins) == lines(app)
    assert set(table.statuses) <= {0, -1}
    assert sum(entry.changed for entry in app.ops.audit()) == lines(app)


def test_purges_and_reruns_at_once(app, table):
    """A message is in the table or in the archive, never in both, never in none."""
    t = app.tables
    row = t.values(status=2, topic="t", object_id=None, finished_at=OLD)
    with app.engine.begin() as conn:
        conn.execute(sa.insert(t.message), [row] * 600)
    app.ops.purge("30d", topic="none", archive_to="old_m")
    joins = [
        in_thread(lambda: app.ops.purge("30d", archive_to="old_m")),
        in_thread(lambda: app.ops.purge("30d", archive_to="old_m")),
        in_thread(lambda: app.ops.rerun(range(200, 400), force=True)),
    ]
    counts = [int(join()) for join in joins]
    with app.engine.connect() as conn:
        archived = list(conn.scalars(sa.text("SELECT msg_id FROM old_m")))
    left = table.column("msg_id")
    assert len(archived) == counts[0] + counts[1]
    assert len(left) == counts[2]
    assert sorted([*archived, *left]) == list(range(1, 601))
    assert set(table.statuses) <= {0}


@pytest.mark.quick("sqlite")
def test_pauses_beside_a_worker(app_with):
    """Pausing and resuming again and again: order and exclusion hold, no try is counted."""
    app = app_with()
    table, watch = Table(app), Watch()
    app.add_handler(None, watch)
    with app.job("all") as job:
        for _ in range(40):
            send(app, *(f"o{i}" for i in range(5)), topic="a")
            send(app, *(f"o{i}" for i in range(5)), topic="b", job=job)
    with launched(app.worker(threads=3)) as worker:
        assert worker.instance is not None
        shared, beat = worker.instance.shared, worker.instance.housekeeper.wake
        for _ in range(2):
            app.ops.pause("a")
            until(lambda: beat() or worker.paused == {"a"}, "paused")
            app.ops.pause_job(job.job_id)
            until(lambda: beat() or JOB_PAUSED in shared.controls.paused, "paused")
            app.ops.resume("a")
            app.ops.resume_job(job.job_id)
            until(lambda: beat() or not shared.controls.paused, "resumed")
        until(lambda: set(table.statuses) == {2}, "all done")
    watch.assert_exclusive()
    watch.assert_in_order(table.column("msg_id"))
    assert set(table.column("error_try_times")) == {0}
