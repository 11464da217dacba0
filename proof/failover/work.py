"""An App that works while its database fails over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from msgworker import App, Worker
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from tests.engines import plain_engine
from tests.support.waiting import until


def app_of(url: str, lease_seconds: float = 30.0) -> tuple[App, list[int]]:
    """An App at this URL with a handler, and the messages that it has handled."""
    app = App(url, poll_seconds=0.05, lease_seconds=lease_seconds, backoff_seconds=1)
    app.create_schema()
    handled: list[int] = []
    app.add_handler("t", lambda msg: handled.append(msg.payload["n"]))
    return app, handled


def send(app: App, *numbers: int) -> None:
    with app.engine.begin() as conn:
        for n in numbers:
            app.send(conn, "t", {"n": n}, object_id=f"o{n % 3}")


def rows(url: str) -> list[Any]:
    engine = plain_engine(url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        query = "SELECT status, error_try_times FROM msgworker_message ORDER BY msg_id"
        return [tuple(row) for row in conn.execute(sa.text(query))]


def mended(act: Callable[[], Any]) -> None:
    """Until it does not fail any more: our own sends have nobody who repeats them."""

    def done() -> bool:
        try:
            act()
        except Exception as error:
            if trouble(error) is not Trouble.LOST:
                raise
            return False
        return True

    until(done, "it works again")


@contextmanager
def working(app: App) -> Iterator[Worker]:
    with app.worker(threads=2) as worker:
        worker.start()
        yield worker
    app.engine.dispose()
