"""Schedules as an App declares them; when they fire: ticks.py, their rows: store/schedules.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from msgworker import ticks
from msgworker.config import nearest
from msgworker.counted import plural
from msgworker.errors import ConfigError, HandlerError
from msgworker.payload import encode, is_text
from msgworker.table import MAX_OBJECT_ID, MAX_SCHEDULE, MAX_TOPIC

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
    when, found = ticks.read(spec, tz), [after]
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
        when: ticks.When,
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

        def made(topic: str) -> Schedule:
            return schedule(
                when, name=name or topic, topic=topic, object_id=object_id, payload=payload,
                catch_up=catch_up, overlap=overlap,
            )  # fmt: skip

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
    when: ticks.When,
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
    for what, word, words in (
        ("catch_up", catch_up, ticks.CATCH_UP),
        ("overlap", overlap, ticks.OVERLAP),
    ):
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
            when = (
                ticks.every(period) if expression is None else ticks.cron(expression, zone or "UTC")
            )
            made.append(schedule(when, name=name, origin=origin, **given))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
    return made
