"""A PostgreSQL with a synchronous or an asynchronous standby."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proof.pairs.pair import Pair, until
from tests.servers import PostgreSQL, run

STANDBY = "s1"


class Primary(PostgreSQL):
    """A PostgreSQL that is killed as a whole, and may be the standby of another one."""

    def __init__(self, *, synchronous: bool) -> None:
        super().__init__(durable=False)
        # On a standby it has no effect; from its promotion on every COMMIT waits for the next one.
        self.settings = {"synchronous_standby_names": STANDBY} if synchronous else {}

    def follow(self, other: Primary) -> None:
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

    def take_writes(self) -> None:
        pass  # it always does

    def take_writes_alone(self) -> None:
        pass  # an asynchronous one does

    def crash(self) -> None:
        """All its processes at once."""
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
            found = conn.execute(query)
            return found.fetchall() if found.description else []


class PostgreSQLPair(Pair[Primary]):
    """synchronous: a COMMIT is answered when the standby has it on its disk; else it may miss the
    last ones."""

    protocol = "postgresql"

    def __init__(self, *, synchronous: bool) -> None:
        self.synchronous = synchronous
        super().__init__()

    def server(self) -> Primary:
        return Primary(synchronous=self.synchronous)

    def make(self, database: str) -> str:
        self.primary.ask(f"CREATE DATABASE {database}")
        return self.url + database

    def wait_for_standby(self) -> None:
        wanted = "sync" if self.synchronous else "async"
        query = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        until(lambda: self.primary.ask(query) == [(wanted,)], "it is there")

    def wait_for_replay(self) -> None:
        ((wanted,),) = self.primary.ask("SELECT pg_current_wal_lsn()")
        reached = f"SELECT pg_last_wal_replay_lsn() >= '{wanted}'"
        until(lambda: self.standby.ask(reached) == [(True,)], "it has all")

    def hold_back(self) -> None:
        """From now on the standby gets nothing; only for an asynchronous one."""
        for (pid,) in self.primary.ask("SELECT pid FROM pg_stat_replication"):
            os.kill(pid, signal.SIGSTOP)


def _children(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                yield int(path.parent.name)
