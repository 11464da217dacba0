"""Schedules: their ticks, on aware instants in UTC, and how an App declares them; both pure. Their
rows: store/schedules.py.

`every` counts from 1970-01-01 00:00 UTC, so that all instances agree, and a tick never depends on
when the one before was sent. Cron expressions are those of Debian's cron, in a time zone; cronsim
computes them.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import count
from typing import Any, Literal, TypeVar, get_args
from uuid import UUID

from msgworker.config import YEAR_SECONDS, nearest, seconds
from msgworker.config.values import changes_of_zone, checked_zone, zone_of
from msgworker.counted import plural
from msgworker.errors import ConfigError, HandlerError
from msgworker.payload import encode, is_text
from msgworker.table.columns import MAX_OBJECT_ID, MAX_SCHEDULE, MAX_TOPIC

# --- When a schedule fires.

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


def ticks_of(text: str, zone: str) -> When:
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


# --- How it is declared.

F = TypeVar("F", bound=Callable[..., Any])
Handlers = Mapping[str | None, Any]
"""Handlers by topic: each has its function as `fn`."""
KEYS = ("every", "cron", "tz", "topic", "object_id", "payload", "catch_up", "overlap")


class _Own:
    """Marks the default: an object of the schedule's own name."""

    def __repr__(self) -> str:
        return "OWN"


OWN: Any = _Own()


@dataclass(frozen=True, slots=True)
class Schedule:
    """A declared schedule.

    spec: "every 5m", or a cron expression, in the time zone `tz`. object_id: as text, None = no
    object: its messages may overlap. payload: as JSON. catch_up: "last", "one", "all" or "none".
    origin: where it is declared, "code" or the name of a file. overlap: what becomes of a tick
    while the message before it has not ended: "allow", "skip" or "replace".
    """

    name: str
    spec: str
    topic: str
    object_id: str | None
    payload: str | None = None
    tz: str = "UTC"
    catch_up: str = "last"
    origin: str = "code"
    overlap: str = "allow"

    def next_times(self, after: datetime, n: int = 5) -> list[datetime]:
        """The next n ticks after an aware instant, in UTC."""
        return next_times(self.spec, self.tz, after, n)


def next_times(spec: str, tz: str, after: datetime, n: int) -> list[datetime]:
    """The next n ticks after an aware instant, in UTC. Raises ConfigError for a spec that cannot be
    read here."""
    when, found = ticks_of(spec, tz), [after]
    for _ in range(n):
        found.append(when.after(found[-1]))
    return found[1:]


class Schedules:
    """The schedules of an App, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Schedule] = {}
        self._unplaced: dict[int, str] = {}  # `app.every(...)` that needs a function below it
        self._number = count()

    def all(self) -> list[Schedule]:
        """In the order of their declaration. Raises ConfigError for one without a topic."""
        for call in self._unplaced.values():
            raise ConfigError(
                f"{call} has no topic and stands above no function: nothing would be sent; give "
                "topic=..., or write it as a decorator above a handler"
            )
        return list(self._by_name.values())

    def add(self, one: Schedule) -> None:
        """Raises ConfigError if there is another one of its name."""
        there = self._by_name.get(one.name)
        if there == one and one.origin != "code":  # the same file, read again
            return
        if there is not None:
            raise ConfigError(
                f"there is a schedule {one.name!r} already ({there.spec}, {there.origin}); give "
                "one of them another name"
            )
        self._by_name[one.name] = one

    def declare(
        self,
        when: When,
        topic: str | None,
        object_id: Any,
        payload: Any,
        name: str | None,
        catch_up: Any,
        overlap: Any,
        handlers: Handlers,
        add_handler: Callable[[str, Callable[..., Any], dict[str, Any]], None],
    ) -> Callable[[F], F]:
        """See `App.every`."""
        rest = {"object_id": object_id, "payload": payload, "catch_up": catch_up}
        rest["overlap"] = overlap

        def made(topic: str) -> Schedule:
            return schedule(when, name=name or topic, topic=topic, **rest)

        number = next(self._number)
        if topic is None:
            self._unplaced[number] = f"a schedule ({when.text})"
        else:
            self.add(made(topic))

        def above(fn: F) -> F:
            of = _topic_of(fn, handlers) if topic is None else topic
            own = made(of) if topic is None else None
            there = handlers.get(of)
            if there is None or there.fn is not fn:
                add_handler(of, fn, {})
            if own is not None:
                self.add(own)
                self._unplaced.pop(number, None)
            return fn

        return above


def _topic_of(fn: Callable[..., Any], handlers: Handlers) -> str:
    """The topic of the handler below, else the name of the function."""
    topics = [topic for topic, one in handlers.items() if one.fn is fn]
    named = [topic for topic in topics if topic is not None]
    if len(named) == 1:
        return named[0]
    name = getattr(fn, "__name__", "")
    if topics or not name.isidentifier():
        what = f"has no name ({fn!r:.60})"
        if topics:
            what = (
                "handles every topic"
                if topics == [None]
                else f"handles {plural(len(topics), 'topic')}"
            )
        raise HandlerError(f"the function below a schedule {what}; give topic=...")
    return name


def schedule(
    when: When,
    *,
    name: Any,
    topic: Any,
    object_id: Any = OWN,
    payload: Any = None,
    catch_up: Any = "last",
    overlap: Any = "allow",
    origin: str = "code",
) -> Schedule:
    """A checked schedule. Raises ConfigError, PayloadError."""
    for what, text, most in (("topic", topic, MAX_TOPIC), ("name", name, MAX_SCHEDULE)):
        good = isinstance(text, str) and text.strip() == text and text.isprintable()
        if not good or not 0 < len(text) <= most or not is_text(text):
            raise ConfigError(
                f"the {what} of a schedule is a printable text of 1 to {most} characters, got "
                f"{text!r:.120}"
            )
    for what, word, words in (("catch_up", catch_up, CATCH_UP), ("overlap", overlap, OVERLAP)):
        if word not in words:
            hint = nearest(str(word), words)
            raise ConfigError(f"schedule {name!r}: unknown {what} {word!r:.60}; {hint}")
    if overlap != "allow" and catch_up == "all":
        raise ConfigError(
            f'schedule {name!r}: catch_up="all" sends every tick that was missed, which '
            f'overlap="{overlap}" leaves out; choose catch_up="last"'
        )
    if overlap == "replace" and object_id is None:
        raise ConfigError(
            f'schedule {name!r}: overlap="replace" cancels the message before, whose handler may '
            "go on for a while: the new one waits for it in its object; leave object_id out, or "
            "give it one"
        )
    if catch_up == "one" and object_id is None:
        raise ConfigError(
            f'schedule {name!r}: catch_up="one" looks for the tick before it in its object; '
            "leave object_id out, or give it one"
        )
    return Schedule(
        name=name,
        spec=when.text,
        topic=topic,
        object_id=name if object_id is OWN else _object_text(name, object_id),
        payload=encode(payload),
        tz=when.zone,
        catch_up=catch_up,
        origin=origin,
        overlap=overlap,
    )


def _object_text(name: str, object_id: Any) -> str | None:
    if object_id is None:
        return None
    whole = isinstance(object_id, int | Decimal | UUID) and not isinstance(object_id, bool)
    text = str(object_id) if whole else object_id
    if not isinstance(text, str) or not 0 < len(text) <= MAX_OBJECT_ID or "\x00" in text:
        raise ConfigError(
            f"schedule {name!r}: object_id must be a text of 1 to {MAX_OBJECT_ID} characters, a "
            f"whole number, or None for no object; got {object_id!r:.80}"
        )
    if not is_text(text):
        raise ConfigError(f"schedule {name!r}: object_id holds half of a surrogate pair")
    return text


def configured(found: Mapping[str, tuple[Any, str]]) -> list[Schedule]:
    """The tables [schedule.NAME] of files, each with its file. Raises ConfigError, and names the
    place."""
    made = []
    for name, (table, origin) in found.items():
        place = f"[schedule.{name}] in {origin}"
        if not isinstance(table, Mapping):
            raise ConfigError(f"schedule.{name} in {origin} must be a table: [schedule.{name}]")
        for key in table:
            if key not in KEYS:
                raise ConfigError(f"unknown key {key!r:.60} in {place}; {nearest(key, KEYS)}")
        given = dict(table)
        period, expression = given.pop("every", None), given.pop("cron", None)
        if (period is None) == (expression is None):
            raise ConfigError(f'{place} needs one of every = "5m" and cron = "0 2 * * *"')
        zone = given.pop("tz", None)
        if expression is None and zone is not None:
            raise ConfigError(f"{place}: tz is for cron; every counts from 1970-01-01 00:00 UTC")
        if given.get("object_id") is False:  # TOML has no null
            given["object_id"] = None
        try:
            if "topic" not in given:
                raise ConfigError("topic is needed")
            when = every(period) if expression is None else cron(expression, zone or "UTC")
            made.append(schedule(when, name=name, origin=origin, **given))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
    return made
