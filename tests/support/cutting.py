"""End database sessions of the consumers from outside, as administrators and networks do."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from proof.oracle import standins
from tests.engines import plain_engine

ROLE = "mw_consumer"


def consumer_url(url: str) -> str:
    """The same database under a name of the consumers' own: only their sessions are ended."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return standins.text(parsed.update_query_dict({"application_name": ROLE}))
    theirs = make_url(standins.engine_of(url))
    engine = plain_engine(theirs, poolclass=sa.NullPool)
    with engine.begin() as conn:
        for host in ("%", "localhost"):
            name = f"'{ROLE}'@'{host}'"
            conn.execute(sa.text(f"CREATE USER IF NOT EXISTS {name}"))
            conn.execute(sa.text(f"GRANT ALL ON `{theirs.database}`.* TO {name}"))
    password = standins.NO_PASSWORD if parsed.get_backend_name() == "oracle" else None
    return standins.text(parsed.set(username=ROLE, password=password))


class Cutter:
    """Ends one random session of the consumers now and then; `count` says how many so far.

    when: asked each time; a process that starts gives up when its session ends, so where most of
    them start at once, none would get through.
    """

    when: Callable[[], bool] = staticmethod(lambda: True)

    def __init__(self, url: str, seconds: float, chance: random.Random) -> None:
        self._url = make_url(standins.engine_of(url))
        self._seconds = seconds
        self._chance = chance
        self._over = threading.Event()
        self.count = 0

    @contextmanager
    def cutting(self) -> Iterator[Cutter]:
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join(10)

    def _work(self) -> None:
        engine = plain_engine(self._url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        while not self._over.wait(self._seconds):
            if not self.when():
                continue
            try:
                with engine.connect() as conn:
                    self._cut_one(conn)
            except sa.exc.DBAPIError:  # ended meanwhile, or the whole server is away
                continue
        engine.dispose()

    def _cut_one(self, conn: sa.Connection) -> None:
        postgresql = conn.dialect.name == "postgresql"
        if postgresql:
            find = (
                "SELECT pid FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = :role"
            )
        else:
            find = (
                "SELECT id FROM information_schema.processlist "
                "WHERE db = database() AND user = :role"
            )
        sessions = list(conn.scalars(sa.text(find), {"role": ROLE}))
        if not sessions:
            return
        victim = self._chance.choice(sessions)
        end = "SELECT pg_terminate_backend(:id)" if postgresql else f"KILL {int(victim)}"
        conn.execute(sa.text(end), {"id": victim} if postgresql else {})
        self.count += 1
