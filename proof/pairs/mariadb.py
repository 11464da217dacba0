"""A MariaDB, or a MySQL, with a semi-synchronous replica.

All are read-only from their start, as their configuration should say; who is promoted takes writes.
A new replica gets all that was ever committed from the logs of the primary, so nothing is copied.
"""

from __future__ import annotations

import os

from proof.pairs.pair import Pair, until
from tests.servers import CHOSEN, MariaDB, MySQL

OURS = "mw_trial"
"""A login that cannot write to a server that is read-only, as root can; it may end sessions."""


class Replica(MariaDB):
    """A primary, or the replica of one."""

    waits: str = "rpl_semi_sync_master_enabled"
    read_only: tuple[str, ...] = ("read_only",)

    def __init__(self) -> None:
        super().__init__(durable=False)

    def command(self) -> list[str]:
        return [
            *super().command(),
            f"--server-id={self.port}",
            "--log-bin=log",
            "--log-slave-updates",
            "--binlog-format=ROW",
            "--gtid-strict-mode=1",
            "--slave-parallel-threads=2",
            "--read-only=1",
            "--rpl-semi-sync-slave-enabled=1",
            "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
            "--rpl-semi-sync-master-wait-no-slave=1",
            "--rpl-semi-sync-master-timeout=3600000",
        ]

    def follow(self, other: Replica) -> None:
        self.prepare()
        self.start()
        self.query(
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {other.port}, "
            "MASTER_USER = 'root', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1"
        )
        self.query("START SLAVE")

    def promote(self) -> None:
        self.query("STOP SLAVE IO_THREAD")
        until(lambda: self.state("Gtid_IO_Pos") == self.value("gtid_slave_pos"), "it has all")
        self.query("STOP SLAVE")
        self.query("RESET SLAVE ALL")
        self.take_writes()

    def take_writes(self, *, alone: bool = False) -> None:
        """From now on a COMMIT is answered when a replica has it; alone: without one."""
        self.query(f"SET GLOBAL {self.waits} = {int(not alone)}")
        for name in self.read_only:
            self.query(f"SET GLOBAL {name} = 0")

    def take_writes_alone(self) -> None:
        self.take_writes(alone=True)

    def crash(self) -> None:
        self.kill()

    def remove(self) -> None:
        self.kill()  # in order it would wait for its replica
        super().remove()

    def value(self, name: str) -> str:
        return str(self.query(f"SELECT @@global.{name}")[0][0])

    def state(self, name: str) -> str:
        """A column of SHOW SLAVE STATUS."""
        from pymysql.cursors import DictCursor

        with self.connect() as conn, conn.cursor(DictCursor) as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            return str(cursor.fetchone()[name])


class MySQLReplica(MySQL, Replica):
    """The same of a MySQL; who may end sessions could write to one that is read-only for others
    only."""

    waits = "rpl_semi_sync_source_enabled"
    read_only = ("super_read_only", "read_only")

    def command(self) -> list[str]:
        return [
            *MariaDB.command(self),
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
            f"--server-id={self.port}",
            "--log-bin=log",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--super-read-only=1",
            "--plugin-load-add=semisync_source.so",
            "--plugin-load-add=semisync_replica.so",
            "--rpl-semi-sync-replica-enabled=1",
            "--rpl-semi-sync-source-wait-point=AFTER_SYNC",
            "--rpl-semi-sync-source-wait-no-replica=1",
            "--rpl-semi-sync-source-timeout=3600000",
        ]

    def prepare(self) -> None:
        os.environ.setdefault(CHOSEN, "mysql-9.7")
        MySQL.prepare(self)

    def follow(self, other: Replica) -> None:
        self.prepare()
        self.start()
        self.query(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {other.port}, "
            "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, SOURCE_CONNECT_RETRY = 1, "
            "GET_SOURCE_PUBLIC_KEY = 1"
        )
        self.query("START REPLICA")

    def promote(self) -> None:
        self.query("STOP REPLICA IO_THREAD")
        received = self.query(
            "SELECT received_transaction_set FROM performance_schema.replication_connection_status"
        )[0][0]
        until(lambda: self.has(str(received)), "it has all")
        self.query("STOP REPLICA")
        self.query("RESET REPLICA ALL")
        self.take_writes()

    def has(self, transactions: str) -> bool:
        return self.query(f"SELECT GTID_SUBSET('{transactions}', @@global.gtid_executed)") == [(1,)]


def _number(gtid: str) -> int:
    """Of the last transaction there, of one domain."""
    return int(gtid.rpartition("-")[2] or 0)


class MariaDBPair(Pair[Replica]):
    """A COMMIT is answered when the replica has received it."""

    protocol = "mysql"
    ends_sessions = "CONNECTION ADMIN"

    def server(self) -> Replica:
        return Replica()

    def make(self, database: str) -> str:
        """Its URL is that of one who may write to it, but not to a replica."""
        self.primary.query(f"CREATE DATABASE {database}")
        for host in ("'%'", "localhost"):
            self.primary.query(f"CREATE USER {OURS}@{host}")
            self.primary.query(f"GRANT ALL ON {database}.* TO {OURS}@{host}")
            self.primary.query(f"GRANT PROCESS, {self.ends_sessions} ON *.* TO {OURS}@{host}")
        return self.url.replace("root@", f"{OURS}@") + database

    def wait_for_standby(self) -> None:
        until(lambda: self.primary.status("Rpl_semi_sync_master_clients") == "1", "it is there")
        assert self.primary.status("Rpl_semi_sync_master_status") == "ON"
        # From now on it is waited for; but what was committed before may still be on its way.
        wanted = _number(self.primary.value("gtid_binlog_pos"))
        until(lambda: _number(self.standby.state("Gtid_IO_Pos")) >= wanted, "it has all")

    def wait_for_replay(self) -> None:
        wanted = self.primary.value("gtid_binlog_pos")
        until(lambda: self.standby.value("gtid_slave_pos") == wanted, "it has all")


class MySQLPair(MariaDBPair):
    """The same of a MySQL 9.7, which is unpacked."""

    primary: MySQLReplica
    standby: MySQLReplica
    ends_sessions = "CONNECTION_ADMIN"

    def server(self) -> MySQLReplica:
        return MySQLReplica()

    def wait_for_standby(self) -> None:
        until(lambda: self.primary.status("Rpl_semi_sync_source_clients") == "1", "it is there")
        assert self.primary.status("Rpl_semi_sync_source_status") == "ON"
        self.wait_for_replay()

    def wait_for_replay(self) -> None:
        wanted = self.primary.value("gtid_executed")
        until(lambda: self.standby.has(wanted), "it has all")
