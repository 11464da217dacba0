"""Consumers of theirs on the same table."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.errors import ConfigError
from tests.support.apps import created
from tests.support.leases import beat_now, beats
from tests.support.rounds import by_hand, recover_what_is_stale
from tests.support.rows import Table, send
from tests.support.tables import SEED, seed_table
from tests.support.waiting import in_thread, launched, until
from tests.support.watching import Watch, breathe


class Foreign:
    """A consumer of the seed's plain protocol: candidate, conditional UPDATE, row count."""

    def __init__(self, database: Any, names: tuple[str, str, str], watch: Watch) -> None:
        self.engine = database.engine()
        self.table, self.id, self.object = names
        self.watch = watch
        self.done: list[int] = []
        self.stop = threading.Event()

    def __call__(self) -> None:
        while not self.stop.is_set():
            if not self.once():
                self.stop.wait(0.005)

    def once(self) -> bool:
        find = sa.text(
            f"SELECT {self.id}, {self.object} FROM {self.table} re WHERE status = 0 AND NOT EXISTS "
            f"(SELECT 1 FROM {self.table} t WHERE t.{self.object} = re.{self.object} "
            f"AND t.status = 1 AND t.{self.id} < re.{self.id}) ORDER BY {self.id} LIMIT 1"
        )
        with self.engine.connect() as conn:
            row = conn.execute(find).first()
        if row is None or not self._to(row[0], 1, 0):
            return False
        self.watch.saw(row[1], row[0], breathe)
        assert self._to(row[0], 2, 1)
        self.done.append(row[0])
        return True

    def _to(self, msg_id: int, status: int, seen: int) -> bool:
        change = sa.text(
            f"UPDATE {self.table} SET status = :s WHERE status = :seen AND {self.id} = :i"
        )
        try:
            with self.engine.begin() as conn:
                return bool(conn.execute(change, {"s": status, "seen": seen, "i": msg_id}).rowcount)
        except sa.exc.IntegrityError:  # the guard
            return False
        except sa.exc.OperationalError as error:  # deadlock victim, lock timeout
            if status == 2:
                return self._to(msg_id, status, seen)
            if not any(word in str(error).lower() for word in ("lock", "busy")):
                raise
            return False


def _both(app: App, foreign: Foreign, table: Table) -> None:
    join = in_thread(foreign)
    try:
        with launched(app.worker(threads=3)):
            until(lambda: set(table.statuses) == {2}, "all done")
    finally:
        foreign.stop.set()
    join()


@pytest.mark.quick
def test_a_foreign_consumer_beside_ours(database, app, table):
    watch = Watch()
    app.add_handler("t", lambda msg: watch.saw(msg.object_id, msg.msg_id, breathe))
    ids = send(app, *[f"o{i % 8}" for i in range(80)])
    _both(app, Foreign(database, ("msgworker_message", "msg_id", "object_id"), watch), table)
    watch.assert_exclusive()
    assert sorted(watch.ids) == ids


def test_a_foreign_consumer_on_the_seed_s_table(database, make_app):
    seed_table(database, "INTEGER")
    app = created(make_app(table=SEED))
    watch = Watch()
    app.add_handler(None, lambda msg: watch.saw(msg.object_id, msg.msg_id, breathe))
    ids = send(app, *[i % 8 for i in range(80)])
    _both(app, Foreign(database, ("tb_cus_msg", "msgID", "objectID"), watch), Table(app))
    watch.assert_exclusive()
    assert sorted(watch.ids) == ids


def test_message_of_a_foreign_consumer_is_left_alone_unless_asked(make_app):
    app = created(make_app(lease_seconds=3.0))
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    flagged, _ = send(app, "o", None)
    table.edit(table.where(msg_id=flagged), status=1)
    behind = send(app, "o")
    with launched(app.worker(threads=1)) as worker:
        until(lambda: beat_now(worker) or beats(app) > 2, "several heartbeats")
        until(lambda: table.statuses == [1, 2, 0], "the other one is done")
    patient = make_app(lease_seconds=6.0, foreign_stale_after=1.0)
    patient.add_handler("t", lambda msg: None)
    with launched(patient.worker(threads=1)) as worker:
        until(lambda: table.statuses == [2, 2, 2], "taken from the foreign consumer")
    assert table.rows("msg_id", "error_try_times", "crash_times")[0] == (flagged, 1, 1)
    assert table.rows("msg_id", "error_try_times")[2] == (behind[0], 0)


def test_all_messages_of_a_foreign_consumer_that_died_are_given_back_after_their_time(
    app_with, monkeypatch
):
    """250 of them after each `foreign_stale_after`, and none behind 250 that live on."""
    app = app_with(lease_seconds=30.0, foreign_stale_after=10.0)
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    send(app, *range(600))
    table.edit(status=1)
    with by_hand(app) as one:
        recover_what_is_stale(one, monkeypatch)
    assert table.statuses == [-1] * 600


def test_foreign_consumer_that_goes_on_to_the_next_try_is_not_stale(app_with):
    app = app_with(lease_seconds=2.0, foreign_stale_after=86_400)
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    (flagged,) = send(app, "o")
    table.edit(table.where(msg_id=flagged), status=1)
    with launched(app.worker(threads=1)) as worker:
        until(lambda: beat_now(worker) or beats(app) > 2, "several heartbeats have passed")
    assert table.statuses == [1]


def test_foreign_stale_after_needs_claimed_by(make_app):
    with pytest.raises(ConfigError, match="claimed_by"):
        make_app(table=MessageTable(claimed_by=None), foreign_stale_after=60)
