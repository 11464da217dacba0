"""MariaDB: what a server that is read-only does not take."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from msgworker.dialects import Trouble, open_engine, refuse_standby, trouble
from msgworker.errors import DatabaseUnavailable
from tests.failover.work import app_of, mended, rows, send, working
from tests.pairs.mariadb import MariaDBPair
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]


def test_a_primary_that_becomes_read_only_is_an_outage(mariadb: MariaDBPair) -> None:
    """An old primary is demoted in order, and comes back: its configuration says read-only."""
    url = mariadb.make("queue")
    app, handled = app_of(url, lease_seconds=3.0)
    with working(app) as worker:
        send(app, 1)
        until(lambda: handled == [1] and rows(url) == [(2, 0)], "it works")
        instance = worker.instance
        assert instance is not None
        mariadb.primary.query("SET GLOBAL read_only = 1")
        until(lambda: instance.database_gone_seconds() > 5, "that is an outage")
        instance.raise_what_people_must_mend()
        mariadb.primary.query("SET GLOBAL read_only = 0")
        mended(lambda: send(app, 2))
        until(lambda: handled == [1, 2], "it goes on")
    assert rows(url) == [(2, 0)] * 2


def test_what_a_replica_refuses_is_an_outage(mariadb: MariaDBPair) -> None:
    url = sa.make_url(mariadb.make("queue"))
    mariadb.primary.query("CREATE TABLE queue.t (a integer)")
    mariadb.wait_for_replay()
    replica = url.set(port=mariadb.standby.port)
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
