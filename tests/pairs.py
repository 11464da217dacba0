"""Two servers, one of which copies the other: killed, promoted, replaced; and the way to the one
that is in use.

What a user has: an address that leads to the primary (here a Proxy), a standby, and something that
promotes it. `fail_over` is one failover; afterwards there is a new standby.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.crash.proxy import Proxy
from tests.replicas import MariaDBPair
from tests.servers import START_SECONDS, CannotHave, PostgreSQL, run

STANDBY = "s1"


class Primary(PostgreSQL):
    """A PostgreSQL that is killed as a whole, and may be the standby of another one."""

    def __init__(self, *, synchronous: bool) -> None:
        super().__init__(durable=False)
        # On a standby it has no effect; from its promotion on every COMMIT waits for the next one.
        self.settings = {"synchronous_standby_names": STANDBY} if synchronous else {}

    def copy(self, other: Primary) -> None:
        """Become a standby of the other, running."""
        self.find()
        source = f"host=127.0.0.1 port={other.port} user=postgres application_name={STANDBY}"
        data = self.folder / "data"
        backup = ["-D", data, "-d", source, "-X", "stream", "-c", "fast", "--no-sync"]
        run(self.bin / "pg_basebackup", *backup, user=self.user)
        run("touch", data / "standby.signal", user=self.user)
        self.settings = {**self.settings, "primary_conninfo": source}
        self.start()

    def promote(self) -> None:
        run(self.bin / "pg_ctl", "promote", "-w", "-D", self.folder / "data", user=self.user)

    def crash(self) -> None:
        """kill -9 of all its processes at once: none of them answers any more."""
        assert self.process is not None
        pids = [self.process.pid, *_children(self.process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            time.sleep(0.01)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query of an administrator, in the database postgres."""
        import psycopg  # the servers themselves need nothing but Python

        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as conn:
            return conn.execute(query).fetchall()


class PostgreSQLPair:
    """A primary with a standby. synchronous: a COMMIT is answered when the standby has it on its
    disk; else it may miss the last ones."""

    name = "postgresql"

    def __init__(self, *, synchronous: bool) -> None:
        self.synchronous = synchronous
        self.primary = Primary(synchronous=synchronous)
        self.standby = Primary(synchronous=synchronous)
        self.failovers = 0

    def start(self) -> None:
        """Raises CannotHave."""
        try:
            self.primary.prepare()
            self.primary.start()
            self.standby.copy(self.primary)
            self.wait_for_standby()
            self.proxy = Proxy(self.primary.port, "postgresql")
        except BaseException:
            self.remove()
            raise

    @property
    def url(self) -> str:
        """Through the proxy, without a database."""
        return self.primary.url.replace(str(self.primary.port), str(self.proxy.port))

    def wait_for_standby(self) -> None:
        """Until the standby has all, and, a synchronous one, is waited for."""
        wanted = "sync" if self.synchronous else "async"
        deadline = time.monotonic() + START_SECONDS
        query = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        while [(wanted,)] != self.primary.ask(query):
            if time.monotonic() > deadline:
                raise CannotHave("the standby does not follow")
            time.sleep(0.05)

    def wait_for_replay(self) -> None:
        """Until all that is committed now shows on the standby, too."""
        ((wanted,),) = self.primary.ask("SELECT pg_current_wal_lsn()")
        reached = f"SELECT pg_last_wal_replay_lsn() >= '{wanted}'"
        deadline = time.monotonic() + START_SECONDS
        while self.standby.ask(reached) != [(True,)]:
            if time.monotonic() > deadline:
                raise CannotHave("the standby does not follow")
            time.sleep(0.02)

    def hold_back(self) -> None:
        """From now on the standby gets nothing; only for an asynchronous one."""
        for (pid,) in self.primary.ask("SELECT pid FROM pg_stat_replication"):
            os.kill(pid, signal.SIGSTOP)

    def promote(self) -> Primary:
        """The standby is the primary now, and has no standby; returns the old one. The proxy is
        not turned."""
        self.standby.promote()
        old, self.primary = self.primary, self.standby
        self.failovers += 1
        return old

    def turn(self) -> None:
        """Connections lead to the primary."""
        self.proxy.turn(self.primary.port)

    def mend(self) -> None:
        """A new standby."""
        self.standby = Primary(synchronous=self.synchronous)
        self.standby.copy(self.primary)
        self.wait_for_standby()

    def fail_over(self, seconds: float = 0.0, shown: bool = False) -> None:
        """Kill the primary; after so long the standby is promoted. shown: connections lead to it
        before it is promoted."""
        self.primary.crash()
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
            server.remove()


def _children(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                yield int(path.parent.name)


Pair = PostgreSQLPair | MariaDBPair
NAMES = ("postgresql-sync", "mariadb-semisync")


@contextlib.contextmanager
def running(name: str) -> Iterator[PostgreSQLPair]:
    """A pair of PostgreSQL: one of NAMES, or postgresql-async; raises CannotHave."""
    pair = PostgreSQLPair(synchronous=name == "postgresql-sync")
    pair.start()
    try:
        yield pair
    finally:
        pair.remove()


@contextlib.contextmanager
def semisync() -> Iterator[MariaDBPair]:
    """The pair of MariaDB; raises CannotHave."""
    pair = MariaDBPair()
    pair.start()
    try:
        yield pair
    finally:
        pair.remove()
