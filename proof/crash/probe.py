"""Whether the database takes writes: a row every 0.2 s through each way to it, from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from proof.history import Outage
from tests.engines import plain_engine
from tests.support.waiting import until

WRITE_SECONDS = 0.2
SILENCE_SECONDS = 1.0
PROBES = sa.Table(
    "tests_probe",
    sa.MetaData(),
    sa.Column("way", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("n", sa.Integer, primary_key=True, autoincrement=False),
)


class Probe:
    """Writes while the block lasts; `ways` are URLs of one database. An outage is a silence of all
    of them; that of one alone is in `silences`."""

    def __init__(self, *ways: str) -> None:
        self._engines = [_engine(url) for url in ways]
        PROBES.metadata.create_all(self._engines[0])
        self._written: list[list[float]] = [[] for _ in ways]
        self._began = time.monotonic()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(place,), daemon=True)
            for place in range(len(ways))
        ]

    def __enter__(self) -> Probe:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)  # one that waits for an answer ends with the process
        for engine in self._engines:
            engine.dispose()

    def _work(self, place: int) -> None:
        n = 0
        while not self._over.wait(WRITE_SECONDS):
            n += 1
            try:
                with self._engines[place].begin() as conn:
                    conn.execute(PROBES.insert().values(way=place, n=n))
            except Exception:  # that is what it is for
                continue
            self._written[place].append(time.monotonic())

    def outages(self) -> list[Outage]:
        """When no way took a write, so far."""
        return self._gaps(at for written in self._written for at in written)

    def past_outages(self) -> list[Outage]:
        """The same, as soon as none lasts."""

        def past() -> tuple[list[Outage], ...]:
            found = self.outages()
            return (found,) if all(back < inf for _, back in found) else ()

        found: list[Outage] = until(past, "writes are taken")[0]
        return found

    def silences(self, place: int) -> list[Outage]:
        """When this way took none, so far."""
        return self._gaps(self._written[place])

    def _gaps(self, written: Iterable[float]) -> list[Outage]:
        return list(gaps([self._began, *sorted(written)], time.monotonic()))


def gaps(written: list[float], now: float) -> Iterator[Outage]:
    """From each write to the next where that took too long; one that lasts has no end."""
    for before, after in zip(written, [*written[1:], inf], strict=True):
        if min(after, now) - before > SILENCE_SECONDS:
            yield before, after


def _engine(url: str) -> sa.Engine:
    limits: dict[str, Any] = {"connect_timeout": "2"}
    parsed = make_url(url)
    if parsed.get_backend_name() in ("mysql", "mariadb"):  # a node that stands still
        limits |= {"read_timeout": "5", "write_timeout": "5"}
    if parsed.get_backend_name() == "sqlite":
        limits = {}
    return plain_engine(parsed.update_query_dict(limits), pool_pre_ping=False)
