"""A MariaDB with a semi-synchronous replica: what tests/pairs.py is for PostgreSQL.

All are read-only from their start, as their configuration should say; who is promoted takes writes.
A new replica gets all that was ever committed from the logs of the primary, so nothing is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.crash.proxy import Proxy
from tests.servers import START_SECONDS, CannotHave, MariaDB

OURS = "mw_trial"
"""A login that cannot write to a server that is read-only, as root can; it may end sessions."""


class Replica(MariaDB):
    """A primary, or the replica of one."""

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

    def begin(self) -> None:
        self.prepare()
        self.start()

    def follow(self, other: Replica) -> None:
        """Become the replica of the other, new and running."""
        self.begin()
        self.query(
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {other.port}, "
            "MASTER_USER = 'root', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1"
        )
        self.query("START SLAVE")

    def promote(self) -> None:
        """After all that it has received."""
        self.query("STOP SLAVE IO_THREAD")
        until(lambda: self.state("Gtid_IO_Pos") == self.value("gtid_slave_pos"), "it has all")
        self.query("STOP SLAVE")
        self.query("RESET SLAVE ALL")
        self.take_writes()

    def take_writes(self) -> None:
        """From now on a COMMIT is answered when a replica has it."""
        self.query("SET GLOBAL rpl_semi_sync_master_enabled = 1")
        self.query("SET GLOBAL read_only = 0")

    def value(self, name: str) -> str:
        return str(self.query(f"SELECT @@global.{name}")[0][0])

    def state(self, name: str) -> str:
        """A column of SHOW SLAVE STATUS."""
        from pymysql.cursors import DictCursor

        with self.connect() as conn, conn.cursor(DictCursor) as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            return str(cursor.fetchone()[name])


class MariaDBPair:
    """A primary with a replica: a COMMIT is answered when the replica has received it."""

    name = "mariadb"

    def __init__(self) -> None:
        self.primary, self.standby = Replica(), Replica()
        self.failovers = 0

    def start(self) -> None:
        """Raises CannotHave."""
        try:
            self.primary.begin()
            self.standby.follow(self.primary)
            self.primary.take_writes()
            self.wait_for_standby()
            self.proxy = Proxy(self.primary.port, "mysql")
        except BaseException:
            self.remove()
            raise

    @property
    def url(self) -> str:
        """Through the proxy, without a database, as its administrator."""
        return self.primary.url.replace(str(self.primary.port), str(self.proxy.port))

    def make(self, database: str) -> str:
        """Make a database; the URL of one who may write to it, but not to a replica."""
        for statement in (
            f"CREATE DATABASE {database}",
            f"CREATE USER {OURS}@'%'",
            f"CREATE USER {OURS}@localhost",
            *(
                statement
                for host in ("'%'", "localhost")
                for statement in (
                    f"GRANT ALL ON {database}.* TO {OURS}@{host}",
                    f"GRANT PROCESS, CONNECTION ADMIN ON *.* TO {OURS}@{host}",
                )
            ),
        ):
            self.primary.query(statement)
        return self.url.replace("root@", f"{OURS}@") + database

    def wait_for_standby(self) -> None:
        """Until the replica is waited for."""
        until(lambda: self.primary.status("Rpl_semi_sync_master_clients") == "1", "it is there")
        assert self.primary.status("Rpl_semi_sync_master_status") == "ON"

    def wait_for_replay(self) -> None:
        """Until all that is committed now shows on the replica, too."""
        wanted = self.primary.value("gtid_binlog_pos")
        until(lambda: self.standby.value("gtid_slave_pos") == wanted, "it has all")

    def promote(self) -> Replica:
        """The replica is the primary now, and has no replica; returns the old one. The proxy is not
        turned."""
        self.standby.promote()
        old, self.primary = self.primary, self.standby
        self.failovers += 1
        return old

    def turn(self) -> None:
        """Connections lead to the primary."""
        self.proxy.turn(self.primary.port)

    def mend(self) -> None:
        """A new replica."""
        self.standby = Replica()
        self.standby.follow(self.primary)
        self.wait_for_standby()

    def fail_over(self, seconds: float = 0.0, shown: bool = False) -> None:
        """Kill the primary; after so long the replica is promoted. shown: connections lead to it
        before it is promoted."""
        self.primary.kill()
        if shown:
            self.proxy.turn(self.standby.port)
        time.sleep(seconds)
        self.promote().remove()
        self.turn()
        self.mend()

    def remove(self) -> None:
        if hasattr(self, "proxy"):
            self.proxy.close()
        for server in (self.standby, self.primary):
            server.kill()
            server.remove()


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise CannotHave(f"the replica does not follow: not {what}")
        time.sleep(0.05)
