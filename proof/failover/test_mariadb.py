"""MariaDB, MySQL: what a server that is read-only, or in offline mode, does not take."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from msgworker.db.database import Trouble
from msgworker.db.engine import open_engine
from msgworker.db.errors import trouble
from msgworker.db.servers import refuse_standby
from msgworker.errors import DatabaseUnavailable
from msgworker.instance.connections import Connections
from proof.failover.work import app_of, mended, rows, send, working
from proof.pairs.mariadb import OURS, MariaDBPair
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]


@pytest.mark.parametrize(
    ("pair", "setting"), [("mariadb", "read_only"), ("mysql", "offline_mode")], indirect=["pair"]
)
def test_a_primary_that_becomes_read_only_is_an_outage(pair: MariaDBPair, setting: str) -> None:
    """An old primary is demoted in order, and comes back: its configuration says read-only. A
    server of MySQL is in offline mode for maintenance, or where it has left its group."""
    url = pair.make("queue")
    if setting == "offline_mode":
        for host in ("'%'", "localhost"):  # which would be let in
            pair.primary.query(f"REVOKE CONNECTION_ADMIN ON *.* FROM {OURS}@{host}")
    app, handled = app_of(url, lease_seconds=3.0)
    with working(app) as worker:
        send(app, 1)
        until(lambda: handled == [1] and rows(url) == [(2, 0)], "it works")
        instance = worker.instance
        assert instance is not None
        pair.primary.query(f"SET GLOBAL {setting} = 1")
        until(lambda: instance.shared.away.seconds > 5, "that is an outage")
        instance.raise_what_people_must_mend()
        pair.primary.query(f"SET GLOBAL {setting} = 0")
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


def test_an_old_primary_is_one_that_lacks_what_its_heir_wrote(mariadb: MariaDBPair) -> None:
    """It was partitioned off, not killed: connections to it live on, and it goes on alone."""
    engine = open_engine(mariadb.make("queue"))
    links = [Connections(engine) for _ in range(2)]
    for link in links:
        with link.transaction() as conn:
            conn.exec_driver_sql("CREATE TABLE IF NOT EXISTS t (a integer)")
    mariadb.wait_for_replay()
    old = mariadb.promote()
    old.take_writes_alone()
    mariadb.mend()
    mariadb.proxy.turn(mariadb.primary.port, cut=False)
    with links[0].transaction() as conn:  # nothing has shown it yet
        conn.exec_driver_sql("INSERT INTO t VALUES (1)")
    links[1].close(lost=True)
    with links[1].transaction() as conn:
        conn.exec_driver_sql("INSERT INTO t VALUES (2)")
    with pytest.raises(DatabaseUnavailable, match="replaced"), links[0].transaction():
        pass
    links[1].check_server()  # as each heartbeat does
    mariadb.proxy.turn(old.port)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable, match=f"server {old.port} lacks all"):
            links[0].open()

    mariadb.turn()
    with links[0].transaction() as conn:
        assert conn.exec_driver_sql("SELECT a FROM t").scalars().all() == [2]
    for link in links:
        link.close()
    engine.dispose()
    old.remove()


def test_a_replica_counts_once_it_has_received_all(mariadb: MariaDBPair) -> None:
    """One that has just come is waited for at each COMMIT, and may lack all that was before."""
    mariadb.make("queue")
    mariadb.primary.query("CREATE TABLE queue.t (a LONGBLOB)")
    for _ in range(20):
        ten = "SELECT REPEAT('x', 1000000) FROM queue.seq_1_to_10"
        mariadb.primary.query(f"INSERT INTO queue.t {ten}")
    mariadb.fail_over()
    mariadb.primary.crash()
    mariadb.promote().remove()
    assert mariadb.primary.query("SELECT count(*) FROM queue.t") == [(200,)]
