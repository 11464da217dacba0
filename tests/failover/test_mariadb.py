"""MariaDB: a primary that dies, its semi-synchronous replica, which is read-only until promoted."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from msgworker.dialects import Trouble, open_engine, refuse_standby, trouble
from msgworker.errors import DatabaseUnavailable
from tests import pairs
from tests.crash import torture
from tests.failover.work import app_of, mended, rows, send, working
from tests.replicas import MariaDBPair
from tests.servers import CannotHave
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]


@pytest.fixture
def pair() -> Iterator[MariaDBPair]:
    try:
        with pairs.semisync() as made:
            yield made
    except CannotHave as reason:
        pytest.skip(f"mariadb-semisync is not there: {reason}")


def test_a_replica_is_an_outage_until_it_is_promoted(
    pair: MariaDBPair, caplog: pytest.LogCaptureFixture
) -> None:
    url = pair.make("queue")
    app, handled = app_of(url, lease_seconds=3.0)
    with working(app) as worker:
        send(app, 1)
        until(lambda: handled == [1] and rows(url) == [(2, 0)], "it works")
        instance = worker.instance
        assert instance is not None
        pair.primary.kill()
        pair.proxy.turn(pair.standby.port)
        until(lambda: instance.database_gone_seconds() > 5, "that is an outage")
        instance.raise_what_people_must_mend()
        pair.promote().remove()
        pair.mend()
        mended(lambda: send(app, 2))
        until(lambda: handled == [1, 2], "it goes on")
    assert rows(url) == [(2, 0)] * 2
    away = [r for r in caplog.records if getattr(r, "event", "") == "database.away"]
    assert len([r for r in away if r.levelno >= logging.WARNING]) == 1
    assert "unexpected error" not in caplog.text


def test_a_primary_that_becomes_read_only_is_an_outage(pair: MariaDBPair) -> None:
    """An old primary is demoted in order, and comes back: its configuration says read-only."""
    url = pair.make("queue")
    app, handled = app_of(url, lease_seconds=3.0)
    with working(app) as worker:
        send(app, 1)
        until(lambda: handled == [1] and rows(url) == [(2, 0)], "it works")
        instance = worker.instance
        assert instance is not None
        pair.primary.query("SET GLOBAL read_only = 1")
        until(lambda: instance.database_gone_seconds() > 5, "that is an outage")
        instance.raise_what_people_must_mend()
        pair.primary.query("SET GLOBAL read_only = 0")
        mended(lambda: send(app, 2))
        until(lambda: handled == [1, 2], "it goes on")
    assert rows(url) == [(2, 0)] * 2


def test_what_a_replica_refuses_is_an_outage(pair: MariaDBPair) -> None:
    url = sa.make_url(pair.make("queue"))
    pair.primary.query("CREATE TABLE queue.t (a integer)")
    pair.wait_for_replay()
    replica = url.set(port=pair.standby.port)
    engine = open_engine(replica)
    with engine.connect() as conn:
        with pytest.raises(sa.exc.DBAPIError, match="1290") as refused:
            conn.exec_driver_sql("INSERT INTO t VALUES (1)")
        assert conn.invalidated
        assert trouble(refused.value) is Trouble.LOST
    administrator = open_engine(replica.set(username="root"))  # who could write
    for one in (engine, administrator):
        with pytest.raises(DatabaseUnavailable, match="read-only"), one.connect() as conn:
            refuse_standby(conn)
        one.dispose()
    with open_engine(url).connect() as conn:
        refuse_standby(conn)


def test_nothing_is_lost_with_a_semi_synchronous_replica(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    try:
        with torture.running("mariadb-semisync", tmp_path, 4, seed) as run:
            run.crash_seconds = 6.0
            verdict = run.run(30.0)
    except CannotHave as reason:
        pytest.skip(str(reason))
    assert not verdict.violations + run.broken, torture.report(run, verdict)
    assert not [row for row in verdict.rows.values() if row.status in (0, 1)]
    assert run.score.crashes
    assert len(verdict.rows) > 100
