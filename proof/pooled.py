"""A PostgreSQL behind a PgBouncer, either of which may be killed."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

from tests.servers import PgBouncer, PostgreSQL, start

NAMES = ("pgbouncer-transaction", "pgbouncer-session")
HARMS = ("the server crashed", "the pooler killed", "the pooler restarted", "its sessions ended")
"""What can happen to them. The last one: a KILL of the pooler's console, then RESUME."""

# It looks for a server that was away after 15 s otherwise, which is longer than a short lease.
CONFIGURED = "server_login_retry = 1\n"


class Pooled:
    """mode: session or transaction."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.server = start(PostgreSQL.name)
        self.pooler = PgBouncer(self.server.url, mode, size=200, more=CONFIGURED)
        try:
            self.pooler.prepare()
            self.pooler.start()
        except BaseException:
            self.remove()
            raise

    def url(self, database: str) -> str:
        """Through the pooler. In session mode nothing is left out."""
        keeps = "?pooler=session" if self.mode == "session" else ""
        return f"{self.pooler.url}{database}{keeps}"

    def harm(self, kind: str, seconds: float) -> None:
        """One of HARMS; after so long all is back."""
        if kind == "its sessions ended":
            self._end_sessions(seconds)
        elif kind == "the server crashed":
            self.server.stop(signal.SIGQUIT)
            time.sleep(seconds)
            self.server.start()
        else:
            self.pooler.stop(signal.SIGKILL if kind == "the pooler killed" else signal.SIGTERM)
            time.sleep(seconds)
            self.pooler.start()

    def _end_sessions(self, seconds: float) -> None:
        import psycopg  # the servers themselves need nothing but Python

        console = self.pooler.url.replace("+psycopg", "") + "pgbouncer"
        with psycopg.connect(console, autocommit=True, prepare_threshold=None) as conn:
            cursor = psycopg.ClientCursor(conn)
            cursor.execute("KILL torture")
            time.sleep(seconds)
            cursor.execute("RESUME torture")

    def remove(self) -> None:
        self.pooler.remove()
        self.server.remove()


@contextlib.contextmanager
def running(name: str) -> Iterator[Pooled]:
    """One of NAMES; raises CannotHave."""
    made = Pooled(name.removeprefix("pgbouncer-"))
    try:
        yield made
    finally:
        made.remove()
