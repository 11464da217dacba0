"""Helpers to test code that uses msgworker: a fresh database, a clock, a drain on this thread.

    def test_settles(msgworker_db):
        app = msgworker_db.app(crm.app)              # its handlers, on a fresh database
        with app.engine.begin() as conn:
            app.send(conn, "customer.settle", {"month": "2026-10"}, object_id="C-1")
        assert drain(app).done == 1                  # on this thread: breakpoints, coverage, mocks

The fixture `msgworker_db` is available if pytest and msgworker are installed. `drain` works on
any database; the clock and the fresh database use SQLite.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from msgworker.app import App, setup_of
from msgworker.config import Keywords
from msgworker.errors import ConfigError
from msgworker.instance.claiming.drain import Drain
from msgworker.instance.instance import Instance
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.running.pool import Lanes
from msgworker.instance.worker import Report, report_of
from msgworker.table import MessageTable

TEXT = "%Y-%m-%d %H:%M:%S.%f"


class Clock:
    """The clock of a test database. Its time changes only when you move it.

    Back-offs, delays, leases and all times that msgworker writes use it. Timeouts of handlers do
    not.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now or datetime.now(UTC).replace(microsecond=0)

    @property
    def now(self) -> datetime:
        """The time of the database; UTC."""
        return self._now

    def set(self, now: datetime) -> None:
        """Move to an aware instant, forwards or back. Raises ConfigError for a naive one."""
        if now.tzinfo is None:
            raise ConfigError(f"the clock takes an aware datetime, got {now!r}")
        self._now = now.astimezone(UTC)

    def advance(self, by: float | timedelta) -> None:
        """Move forward by seconds or a timedelta."""
        self._now += by if isinstance(by, timedelta) else timedelta(seconds=by)

    def attach(self, engine: sa.Engine) -> None:
        """Make connections of an SQLite engine use this clock, those opened from now on."""
        if engine.dialect.name != "sqlite":
            raise ConfigError("the clock of a database server cannot be set; use SQLite")
        event.listen(engine, "connect", self._connected)

    def _connected(self, raw: Any, _record: Any) -> None:
        for name in ("strftime", "julianday"):
            raw.create_function(name, -1, self._function(name))

    def _function(self, name: str) -> Callable[..., Any]:
        real = sqlite3.connect(":memory:", check_same_thread=False)  # SQLite's own function

        def call(*arguments: Any) -> Any:
            text = self._now.strftime(TEXT)
            given = [text if a in ("now", "NOW") else a for a in arguments]
            marks = ", ".join("?" * len(given))
            return real.execute(f"SELECT {name}({marks})", given).fetchone()[0]

        return call


@dataclass
class Database:
    """A fresh, empty SQLite database with a clock of its own."""

    url: str
    engine: sa.Engine
    clock: Clock
    _made: list[App] = field(default_factory=list)

    def app(
        self,
        like: App | None = None,
        *,
        table: MessageTable | None = None,
        label: str = "",
        **settings: Unpack[Keywords],
    ) -> App:
        """An App on this database, its schema created.

        like: an App whose table, settings and handlers it shares, including handlers registered
        later. A schema of its table is left out: SQLite has none.
        """
        if table is None and like is not None:
            table = like.table
        if isinstance(table, MessageTable) and table.schema is not None:
            table = table.replace(name=table.bare_name)
        if like is not None:
            settings = cast(Keywords, asdict(like.settings) | settings)
        made = App(self.engine, table=table, label=label, **settings)
        if like is not None:
            made._registry = like._registry
            made._subscribers = like._events
            made._timers = like._timers
        made.create_schema()
        self._made.append(made)
        return made


@pytest.fixture
def msgworker_db(tmp_path: Path) -> Iterator[Database]:
    """A fresh database: `.app()`, `.engine`, `.url`, `.clock`."""
    url, clock = f"sqlite:///{tmp_path / 'msgworker.db'}", Clock()
    engine = sa.create_engine(url, poolclass=sa.QueuePool, connect_args={"timeout": 60})
    clock.attach(engine)
    made = Database(url, engine, clock)
    yield made
    for app in made._made:
        app.engine.dispose()
    engine.dispose()


# ---------------------------------------------------------------- drain, crash


class At(StrEnum):
    """Points at which a process may die: after a claim, before and after the outcome is written."""

    CLAIMED = "claimed"
    HANDLED = "handled"
    SETTLED = "settled"


class Crashed(BaseException):
    """Raised by `drain(crash=...)` instead of a crash of the instance.

    Its messages stay flagged until its lease expires: `clock.advance(app.settings.lease_seconds)`.
    Then another drain recovers them, with a try counted for each.
    """


def drain(app: App, *, crash: str | None = None, crash_on: Any = None) -> Report:
    """Handle messages on this thread until none is due now; first, send those of schedules that are
    due by the clock of the database.

    Each failed try is logged as a warning with its traceback: pytest shows it when a test fails.

    crash: "claimed", "handled" or "settled": raise Crashed there, as if the process had died: after
    a claim was committed, after a handler has returned (a transactional one is rolled back), after
    its outcome was committed. crash_on: only at this msg_id; default: at the first message.
    """
    dies = _Dies(None if crash is None else _place(crash), crash_on)
    # No other instance could unblock a message: due messages that cannot be claimed are left at
    # once.
    instance = Instance(
        setup_of(app),
        1,
        drain=Drain(linger=0.0, retry_linger=0.0, overdue=0.0),
        label=app.label,
        retry_level=logging.WARNING,  # so that a test that fails shows it
        # The outcome of a transactional handler is written inside the handler.
        before_settle=partial(dies.at, At.HANDLED),
    )
    return _Drain(instance, dies).run()


def _place(name: str) -> At:
    try:
        return At(name)
    except ValueError:
        raise ConfigError(f"crash must be one of {', '.join(At)}; got {name!r:.80}") from None


@dataclass(frozen=True)
class _Dies:
    """Where, and at which message (None = the first), the process dies."""

    place: At | None
    on: Any

    def at(self, place: At, lane: Lane) -> None:
        """Raise Crashed if it is here, at any message of the lane's present try."""
        if place is self.place:
            ids = [row.msg_id for row in lane.taken()]
            if self.on is None or self.on in ids:
                raise Crashed(f"{place} message {ids[0] if self.on is None else self.on}")


class _Drain:
    """One instance whose roles take turns on one thread."""

    def __init__(self, instance: Instance, dies: _Dies) -> None:
        self._instance = instance
        self._dies = dies
        self._beat_at = 0.0
        instance.lanes.took(0.0)  # how much is claimed at once is the same however long tests take

    def run(self) -> Report:
        begun = time.monotonic()
        parts = self._instance
        try:
            if parts.timer is not None:
                parts.timer.register()
            parts.housekeeper.prepare()
            parts.heartbeat.register()
            while not parts.fetcher.exhausted:
                self._beat()
                parts.fetcher.run_once()
                self._handle_all(parts.lanes)
            parts.settler.flush_waiting()
            parts.housekeeper.leave()
            return report_of(parts, begun)
        finally:
            parts.fetcher.ended()
            parts.settler.close()
            parts.caller.close()
            parts.housekeeper.close()
            if parts.timer is not None:
                parts.timer.ended()

    def _beat(self) -> None:
        if time.monotonic() >= self._beat_at or self._instance.shared.identity.in_doubt:
            if self._instance.timer is not None:
                self._instance.timer.run_once()
            self._instance.heartbeat.run_once()
            house = self._instance.housekeeper
            self._beat_at = time.monotonic() + house.pause_seconds(house.run_once())

    def _handle_all(self, lanes: Lanes) -> None:
        while lanes.ready:
            self._beat()
            lane = lanes.next()
            if lane is None:
                return
            if lanes.may_start(lane):
                self._handle(lane)
            elif self._instance.shared.in_flight.unsure:  # the housekeeper reads them
                self._instance.housekeeper.run_once()

    def _handle(self, lane: Lane) -> None:
        parts = self._instance
        batch = None if lane.result is not None else parts.batches.gathering.gather(lane)
        lanes = [lane] if batch is None else batch.lanes
        as_taken = [_copy(one) for one in lanes]  # the lanes move to their next messages
        for one in as_taken:
            self._dies.at(At.CLAIMED, one)
        if batch is not None:
            lanes = parts.batches.handle(batch)
        elif lane.result is None:
            parts.caller.handle(lane)
        for one in as_taken:
            self._dies.at(At.HANDLED, one)
        as_taken = [_copy(one) for one in lanes]
        for one in lanes:
            one.finished_at = time.monotonic()
            parts.settler.add(one, one is lanes[-1])
        for one in as_taken:
            self._dies.at(At.SETTLED, one)


def _copy(lane: Lane) -> Lane:
    """A lane of the messages of the present try alone."""
    copy = Lane(lane.owner, lane.taken())
    copy.width = lane.width
    return copy
