"""The base of all calls of ops: the time of reads, and the arguments of writes."""

from __future__ import annotations

import copy
import getpass
import math
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.config import HISTORY_SECONDS, YEAR_SECONDS, nearest, number, seconds, whole
from msgworker.db import AnyId, AnyText, KeyText, connecting, deadline, is_overtime
from msgworker.errors import ConfigError, TookTooLong
from msgworker.message import State, StateName
from msgworker.payload import clean, without_url_secrets
from msgworker.schedules import Schedule
from msgworker.store import purge
from msgworker.store.bounded import LEAST, MOST, Filter
from msgworker.store.items import ItemState
from msgworker.table import MAX_ACTOR, MAX_REASON, MAX_TOPIC, MessageTable, Tables
from msgworker.tracing import UNTRACED, NoTracer

# --- The time of reads: the database ends what takes longer.


class Clock:
    """The time of a read of many statements; it runs from the moment it is made. seconds: None =
    without end. enough: after so many it begins no further part, None = it does."""

    def __init__(self, seconds: float | None, enough: float | None = None) -> None:
        self.seconds = seconds
        self.enough = enough
        self._begun = time.monotonic()
        self._until = None if seconds is None else self._begun + seconds

    @property
    def rest(self) -> float | None:
        """What is left of `enough`."""
        return None if self.enough is None else self.enough - (time.monotonic() - self._begun)

    def check(self) -> None:
        """Raise TookTooLong if the time is up."""
        if self.seconds is not None and self._left() <= 0:
            raise TookTooLong(self.seconds)

    @contextmanager
    def reading(self, engine: sa.Engine) -> Iterator[Connection]:
        """A connection whose statements end with the time; raises TookTooLong."""
        self.check()
        with connecting(engine) as conn:
            if self.seconds is None:
                yield conn
                return
            try:
                with deadline(conn, max(0.001, self._left())):
                    yield conn
            except DBAPIError as error:
                if is_overtime(error):
                    raise TookTooLong(self.seconds) from error
                raise

    def _left(self) -> float:
        assert self._until is not None
        return self._until - time.monotonic()


ENDLESS = Clock(None)


# --- The base of all calls of ops.

MOST_SECONDS = 3600.0
C = TypeVar("C", bound="Call")
R = TypeVar("R")
P = ParamSpec("P")


class Call:
    """The database and its tables, which are read when first needed.

    names_rule: whether max_tries and on_dead of `spec` were given explicitly. declared: the
    schedules of the App; None if it says nothing of that. history_seconds: how long the history for
    charts is kept. tracer: makes spans for what is sent, or not. send: that of the App.
    """

    def __init__(
        self,
        engine: sa.Engine,
        tables: Callable[[], Tables],
        spec: MessageTable,
        *,
        names_rule: bool = True,
        declared: Callable[[], Sequence[Schedule] | None] | None = None,
        history_seconds: float = HISTORY_SECONDS,
        tracer: NoTracer | None = None,
        send: Callable[..., Any],
    ) -> None:
        self._engine = engine
        self.read_tables = tables
        self._spec = spec
        self._names_rule = names_rule
        self._schedules = declared
        self._history_seconds = history_seconds
        self._tracer = tracer or UNTRACED
        self._send = send
        self._found: Tables | None = None  # newer than those of the App
        self._seconds: float | None = None
        self._counting: float | None = None

    def within(self: C, seconds: float, *, counting: float | None = None) -> C:
        """The same calls, whose reads the database ends after so many seconds (0.001 to 3,600).

        Such a read raises TookTooLong. Each statement has this time; on SQLite the whole read has.
        A dry run has it in all, and returns what it counted (`Repaired.complete`). So has
        what a write counts for `expected_count`; the write itself has no deadline. counting: a dry
        run by a filter stops after the part in which so many seconds have passed: parts are small
        at first, so that a page can show it at once. Raises ConfigError.
        """
        other = copy.copy(self)
        other._seconds = number("seconds", seconds, 0.001, MOST_SECONDS)
        if counting is not None:
            other._counting = number("counting", counting, 0.001, MOST_SECONDS)
        return other

    def _declared(self) -> Sequence[Schedule] | None:
        return None if self._schedules is None else self._schedules()

    @property
    def _tables(self) -> Tables:
        return self._found or self.read_tables()

    @contextmanager
    def _reading(self) -> Iterator[tuple[Connection, Tables]]:
        """A connection to read with, and the tables. Those come first: their rule may be read again
        on a connection of its own, and a pool may have only one."""
        tables = self._tables
        with Clock(self._seconds).reading(self._engine) as conn:
            yield conn, tables

    def _read(
        self,
        look: Callable[Concatenate[Connection, Tables, P], R],
        *args: P.args,
        **given: P.kwargs,
    ) -> R:
        """What a function of queries finds."""
        with self._reading() as (conn, t):
            return look(conn, t, *args, **given)

    def _before(self, age: float | datetime) -> datetime:
        """The instant of an age, by the database's clock."""
        if isinstance(age, datetime):
            return age
        with connecting(self._engine) as conn:
            return purge.cutoff(conn, age)

    @property
    def _clock(self) -> Clock:
        """The time that a dry run has from now on."""
        return Clock(self._seconds, self._counting)


# --- Arguments of a write, checked before anything is done.

MAX_RATE = 1_000_000
KEPT_IDS = 10_000
"""The most ids that the audit stores; of a longer list it keeps the first and the last."""


@dataclass(frozen=True, slots=True)
class Who:
    """The actor, the reason, from where it was asked, the key of the request, and what was asked
    with it."""

    actor: str
    reason: str | None
    source: str | None = None
    key: str | None = None
    request: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """As the audit records them."""
        names = ("actor", "reason", "source", "key", "request")
        return {name: getattr(self, name) for name in names}


def who(
    actor: str | None,
    reason: str | None,
    *,
    source: str | None = None,
    key: str | None = None,
    request: str | None = None,
    needs_reason: str | None = None,
) -> Who:
    """The actor (default: user and host of this process), reason and source; raises ConfigError."""
    texts = (("actor", actor, MAX_ACTOR), ("reason", reason, MAX_REASON))
    for name, value, most in (*texts, ("source", source, MAX_ACTOR)):
        if value is not None and (not isinstance(value, str) or len(value) > most):
            raise ConfigError(f"{name} is a text of at most {most} characters, got {value!r:.80}")
    if needs_reason is not None and not (reason or "").strip():
        raise ConfigError(f"{needs_reason} needs a reason; it is kept in the audit")
    named = (actor or "").strip() or _user()
    why = clean(without_url_secrets(reason), MAX_REASON) if reason else None
    where = clean(source, MAX_ACTOR) if source else None
    return Who(clean(named, MAX_ACTOR), why, where, key, request)


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user in a container
        user = "unknown"
    return f"{user}@{socket.gethostname() or 'host'}"


def key_of(key: Any) -> str:
    """The key of a request; raises ConfigError."""
    if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z0-9.:_-]{1,100}", key):
        raise ConfigError(f"a key is 1 to 100 letters, digits and any of .:_-, got {key!r:.80}")
    return key


def ids_of(ids: Any) -> list[int] | None:
    """Ids in order, each once; None for None. Raises ConfigError for an impossible id."""
    if ids is None:
        return None
    if isinstance(ids, int) and not isinstance(ids, bool):
        ids = [ids]
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise ConfigError(f"ids must be whole numbers, got {ids!r:.80}")
    found = set()
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int):
            raise ConfigError(f"an id is a whole number, got {one!r:.80}")
        if not LEAST <= one <= MOST:
            raise ConfigError(f"an id has at most 64 bits, got {one!r:.60}")
        found.add(one)
    return sorted(found)


class Filters(TypedDict, total=False):
    """Filters of messages, of which all hold: `status`, `topic` and `object_id` exactly; `error`, a
    part of the last error; `since`, created at or after this instant; `job`, of this job;
    `acknowledged`, of dead ones those that an operator has acknowledged, discarded or cancelled, or
    the others. None, and what is left out, = all."""

    status: StateName | State | None
    topic: str | None
    object_id: Any
    error: str | None
    since: datetime | None
    job: int | None
    acknowledged: bool | None


def options_of(name: str, given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The keywords of a call; raises TypeError for one that the TypedDict `kind` has not."""
    if unknown := sorted(given.keys() - kind.__annotations__.keys()):
        raise TypeError(
            f"{name}() got an unexpected keyword argument {unknown[0]!r}; "
            f"{nearest(unknown[0], kind.__annotations__)}"
        )
    return dict(given)


def filter_of(words: tuple[State, ...], **given: Any) -> Filter:
    """A filter of checked values; raises ConfigError. Of a group are messages that have failed."""
    if given.get("fingerprint") is not None:
        words = tuple(one for one in words if one in (State.FAILED, State.DEAD)) or words
    if (known := given.get("acknowledged")) is not None:
        if not isinstance(known, bool):
            raise ConfigError(f"acknowledged is True or False, got {known!r:.60}")
        if State.DEAD not in words:
            raise ConfigError(
                f"acknowledged is about dead messages, not about those that are {words[0]}"
            )
        words = (State.DEAD,)
    for name in ("topic", "error", "fingerprint"):
        text_of(name, given.get(name))
    since_of(given.get("since"))
    if given.get("job") is not None:
        whole("job", given["job"], 1, MOST)
    if given.get("up_to") is not None:
        whole("up_to", given["up_to"], LEAST, MOST)
    _check_object(given.get("object_id"))
    return Filter(words, **given)


def _check_object(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal | UUID | None):
        raise ConfigError(f"object_id must be a text or a whole number, got {value!r:.80}")
    if isinstance(value, int) and not LEAST <= value <= MOST:
        raise ConfigError(f"object_id has at most 64 bits, got {value!r:.60}")


def object_of(t: Tables, text: str) -> Any:
    """An object_id that was kept as a text, as its column has it; raises ConfigError."""
    kind = t.object_type
    if isinstance(kind, AnyId | AnyText | KeyText | sa.String):
        return text
    try:
        return kind.python_type(text)
    except (ValueError, TypeError, ArithmeticError):
        raise ConfigError(f"{text!r:.80} is no object_id of this table") from None


def text_of(name: str, value: Any) -> str | None:
    """A text, or None; raises ConfigError for another value and for an empty text."""
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{name} must be a text, got {value!r:.80}")
    return value


def since_of(since: Any) -> datetime | None:
    """Messages created from this instant on; raises ConfigError if it is not aware."""
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise ConfigError(f"since must be an aware datetime, got {since!r:.80}")
    if since is not None:
        try:
            since.astimezone(UTC)
        except OverflowError:
            raise ConfigError(
                f"since must be within the years 1 to 9999 in UTC, got {since.isoformat()}"
            ) from None
    return since


def item_state(given: Any) -> ItemState:
    """The state of an item; raises ConfigError for an unknown one."""
    try:
        return ItemState(given)
    except ValueError:
        raise ConfigError(f'state must be "done" or "failed", got {given!r:.80}') from None


def word(
    status: StateName | State | None, allowed: tuple[State, ...] = tuple(State), why: str = ""
) -> State | None:
    """An allowed state; raises ConfigError with `why` for others."""
    if status is None:
        return None
    try:
        found = State(status)
    except ValueError:
        words = ", ".join(w.value for w in State)
        raise ConfigError(f"status must be one of {words}; got {status!r:.60}") from None
    if found not in allowed:
        raise ConfigError(f"messages that are {found} {why}")
    return found


def rate_of(rate: Any) -> float | None:
    """The most messages a second; None = no limit."""
    return None if rate is None else number("rate", rate, 0.001, MAX_RATE)


def topic_to_pause(topic: Any) -> str:
    """A topic to pause or resume, or ConfigError."""
    if not isinstance(topic, str) or not 0 < len(topic) <= MAX_TOPIC:
        raise ConfigError(f"a topic is a text of 1 to {MAX_TOPIC} characters, got {topic!r:.80}")
    return topic


def age_of(older_than: Any) -> float | datetime:
    """An age in seconds, or the instant itself; raises ConfigError unless it is in the past."""
    if isinstance(older_than, datetime):
        if older_than.tzinfo is None:
            raise ConfigError(
                f"older_than needs its time zone, got {older_than!r}; use datetime.now(UTC)"
            )
        if older_than >= datetime.now(UTC):
            raise ConfigError(f"older_than is in the future: {older_than.isoformat()}")
        return older_than
    if isinstance(older_than, timedelta):
        older_than = older_than.total_seconds()
    if older_than is None:
        raise ConfigError("older_than is required: how old messages must be, such as 30d")
    age = seconds("older_than", older_than, -math.inf, 100 * YEAR_SECONDS)
    if age <= 0:
        raise ConfigError(
            f"older_than must be more than 0 seconds, such as 30d, got {older_than!r:.60}"
        )
    return age


def kept(ids: list[int]) -> dict[str, Any]:
    """A list of ids in the form stored in the audit."""
    if len(ids) <= KEPT_IDS:
        return {"ids": ids}
    return {"ids_from": ids[0], "ids_to": ids[-1], "ids_count": len(ids)}
