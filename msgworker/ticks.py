"""The ticks of a schedule: pure, on aware instants in UTC.

`every` counts from 1970-01-01 00:00 UTC, so that all instances agree, and a tick never depends on
when the one before was sent. Cron expressions are those of Debian's cron, in a time zone; cronsim
computes them.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, get_args

from msgworker.config import YEAR_SECONDS, seconds
from msgworker.config.values import changes_of_zone, checked_zone, zone_of
from msgworker.errors import ConfigError

CatchUp = Literal["last", "one", "all", "none"]
CATCH_UP: tuple[CatchUp, ...] = get_args(CatchUp)
Overlap = Literal["allow", "skip", "replace"]
OVERLAP: tuple[Overlap, ...] = get_args(Overlap)
MOST_TICKS = 100
"""The most ticks of a schedule that are sent in one transaction."""
ON_TIME_SECONDS = 60.0
"""With catch_up="none" a tick that is later than this is left out."""
LONGEST = 200
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_FIELDS = 'five fields, "minute hour day-of-month month day-of-week", such as "0 2 * * MON-FRI"'
_WINDOWS = tuple(timedelta(hours=n) for n in (1, 30, 24 * 32, 24 * 367, 24 * 366 * 9))


@dataclass(frozen=True, slots=True)
class Every:
    """A tick each `period` seconds."""

    period: int
    zone: str = "UTC"

    @property
    def text(self) -> str:
        """As it is stored in the row."""
        unit, size = next((u, n) for u, n in _UNITS if self.period % n == 0)
        return f"every {self.period // size}{unit}"

    def after(self, instant: datetime) -> datetime:
        """The first tick after an instant."""
        passed = (instant - EPOCH) // timedelta(seconds=self.period)
        return EPOCH + (passed + 1) * timedelta(seconds=self.period)


@dataclass(frozen=True, slots=True)
class Cron:
    """The ticks of a cron expression in a time zone.

    A time of day that a jump of the clocks leaves out is a tick when the clocks have jumped; one
    that comes twice is a tick the first time. With `*` in the minute or the hour ticks go by
    elapsed time: those of the repeated hour come twice, and a time that is left out is a tick at
    the jump unless the clock from before the jump and the one from after it agree on that tick.
    """

    text: str
    zone: str = "UTC"

    def after(self, instant: datetime) -> datetime:
        """The first tick after an instant; raises ConfigError if there is none in 50 years."""
        for tick in self._from(instant):
            if tick > instant:
                return self._left_out(instant, tick) or tick
        raise ConfigError(f"cron expression {self.text!r} never fires")

    def _left_out(self, instant: datetime, tick: datetime) -> datetime | None:
        """The first jump between the two that leaves out a tick."""
        stars = [field.startswith("*") for field in self.text.split()[:2]]
        if self.zone == "UTC" or not any(stars):
            return None  # cronsim moves those of a fixed time of day behind the jump itself
        zone = zone_of(self.zone)
        for at, before, after in changes_of_zone(zone, instant, tick):
            end = at.astimezone(zone).replace(tzinfo=None)
            gap = timedelta(seconds=after - before)
            if after > before and at < tick and _leaves_out(self.text, end - gap, end):
                return at
        return None

    def _from(self, instant: datetime) -> Iterator[datetime]:
        from cronsim import CronSim

        # Of the two instants of a repeated hour cronsim may begin behind the first one.
        for tick in CronSim(self.text, instant.astimezone(zone_of(self.zone))):
            yield tick.astimezone(UTC)


@lru_cache(256)
def _leaves_out(text: str, begin: datetime, end: datetime) -> bool:
    """Whether a time between these two is a tick by the old clock, and not by the new one, or the
    second is a tick itself, which cronsim passes over where clocks jump by half an hour."""
    from cronsim import CronSim

    second = timedelta(seconds=1)
    for tick in CronSim(text, begin - second):
        if tick >= end:
            return tick == end
        later = tick + (end - begin)
        if next(CronSim(text, later - second), None) != later:
            return True
    return False


When = Every | Cron


def every(period: Any) -> Every:
    """From a duration: "5m", 300, a timedelta; whole seconds from 1 on. Raises ConfigError."""
    given = period.total_seconds() if isinstance(period, timedelta) else period
    try:
        length = seconds("every", given, 1.0, YEAR_SECONDS)
    except ConfigError:
        length = 0.5
    if length != int(length):
        raise ConfigError(
            'every must be a duration of whole seconds from 1 s to 366 days, such as "5m", '
            f"got {period!r:.60}"
        )
    return Every(int(length))


def cron(expression: Any, zone: Any = "UTC") -> Cron:
    """From a cron expression of five fields and the name of a time zone. Raises ConfigError."""
    if not isinstance(expression, str):
        raise ConfigError(f"a cron expression is a text of {_FIELDS}; got {expression!r:.80}")
    fields = expression.upper().split()
    if len(fields) != 5:
        why = f"has {len(fields)} fields"
        raise ConfigError(f"cron expression {expression!r:.80} {why}; it has {_FIELDS}")
    text = " ".join(fields)
    if len(text) > LONGEST:
        raise ConfigError(f"a cron expression has at most {LONGEST} characters, got {len(text)}")
    name = zone.key if isinstance(zone, zoneinfo.ZoneInfo) else zone
    made = Cron(text, checked_zone(name))
    from cronsim import CronSimError

    try:
        made.after(datetime.now(UTC))
    except CronSimError as error:
        raise ConfigError(
            f"cron expression {expression!r:.80}: {error}; it has {_FIELDS}"
        ) from None
    return made


def read(text: str, zone: str) -> When:
    """From a row of the table. Raises ConfigError."""
    word, _, rest = text.partition(" ")
    return every(rest) if word == "every" else cron(text, zone)


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be sent now. ticks: a message each, in order; () = all that were missed are left
    out. next_at: the tick behind them, which may be due too."""

    ticks: tuple[datetime, ...]
    next_at: datetime


def due(
    when: When, catch_up: str, next_at: datetime, last_at: datetime | None, now: datetime
) -> Due | None:
    """What is to be sent, at the time `now` of the database, of a schedule whose next tick is
    `next_at`, and whose last one was `last_at`; None if there is no tick yet. No tick up to
    `last_at` is sent again, whatever the clock says.

    "all": every tick, `MOST_TICKS` at a time. "last", "one": the last one. "none": the
    last one, if it is not later than `ON_TIME_SECONDS`.
    """
    if last_at is not None and next_at <= last_at:
        next_at = when.after(last_at)
    if next_at > now:
        return None
    if catch_up == "all":
        ticks = [next_at]
        behind = when.after(next_at)
        while behind <= now and len(ticks) < MOST_TICKS:
            ticks.append(behind)
            behind = when.after(behind)
        return Due(tuple(ticks), behind)
    last = latest(when, next_at, now)
    behind = when.after(last)
    late = (now - last).total_seconds() > ON_TIME_SECONDS
    return Due((), behind) if catch_up == "none" and late else Due((last,), behind)


def latest(when: When, first: datetime, now: datetime) -> datetime:
    """The last tick up to `now`, of those from `first` on; `first` itself is one of them."""
    if isinstance(when, Every):
        return max(first, when.after(now) - timedelta(seconds=when.period))
    for window in _WINDOWS:  # near the end first: there may be a tick a minute for years
        begin = max(first, now - window)
        tick = when.after(begin)
        if tick <= now or begin == first:
            break
    last = begin if begin == first else first
    while tick <= now:
        last, tick = tick, when.after(tick)
    return last
