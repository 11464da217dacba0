"""The base of all calls of ops: the time of reads, the arguments of writes, and their result."""

from __future__ import annotations

import copy
import enum
import getpass
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.config import HISTORY_SECONDS, YEAR_SECONDS, nearest, number, seconds, whole
from msgworker.db import (
    AnyId,
    AnyText,
    KeyText,
    connecting,
    deadline,
    instant_ago,
    is_overtime,
)
from msgworker.errors import ConfigError, TookTooLong
from msgworker.message import State, StateName
from msgworker.payload import clean, without_url_secrets
from msgworker.queries.messages import MessageInfo
from msgworker.schedules import Schedule
from msgworker.store.audit import Edited, Who
from msgworker.store.bounded import LEAST, MOST, Filter
from msgworker.table import MAX_ACTOR, MAX_REASON, MessageTable, Tables
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
            return instant_ago(conn, age)

    @property
    def _clock(self) -> Clock:
        """The time that a dry run has from now on."""
        return Clock(self._seconds, self._counting)


# --- Arguments of a write, checked before anything is done.

MAX_RATE = 1_000_000
KEPT_IDS = 10_000
"""The most ids that the audit stores; of a longer list it keeps the first and the last."""


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


class How(TypedDict, total=False):
    """What every write takes. `dry_run`: only say what it would do. `actor` (default: this user and
    host) and `reason`: who asks for it and why, as the audit keeps it."""

    dry_run: bool
    actor: str | None
    reason: str | None


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


# --- The result of a write: counts, skipped messages and why.

SHOWN = 20


class Why(enum.StrEnum):
    """Why a message was skipped."""

    NOT_THERE = "not there"
    NEW = "new"
    RUNNING = "running"
    DONE = "done"
    UNKNOWN = "unknown status"
    GIVEN_UP = "discarded already"
    RAN_LATER = "a later one ran"
    RUNS_LATER = "a later one runs"
    KEY_TAKEN = "its unique key is taken"
    CHANGED = "changed meanwhile"
    LOCKED = "locked by another transaction"
    UNDATED = "of unknown age"
    TOO_LATE = "too late"
    FOREIGN = "flagged by a foreign consumer"
    NO_REQUESTS = "running, and requests cannot be recorded"
    REQUESTED = "requested already"
    REFUSED = "refused by the database"
    NOT_DEAD = "not dead"
    KNOWN = "acknowledged already"
    SAME = "as it is already"
    EDITED = "changed since it was seen"
    NOT_EDITED = "done, and so not edited"
    AHEAD = "given up, and its object runs"


@dataclass(frozen=True, slots=True)
class Skip:
    """A skipped message, and why. other_id: the later one of its object, or the one that holds
    its key. error: what the database said of it."""

    msg_id: int
    why: Why
    other_id: int | None = None
    error: str = ""

    @property
    def fact(self) -> str:
        """The reason, without the advice."""
        return f"message {self.msg_id} {_SAYS[self.why].format(self.other_id, self.error)}"

    def __str__(self) -> str:
        advice = ADVICE.get(self.why)
        return self.fact if advice is None else f"{self.fact}; {advice}"


_SAYS = {
    Why.NOT_THERE: "does not exist",
    Why.NEW: "is new: it waits for its turn already",
    Why.RUNNING: "is running",
    Why.DONE: "is done",
    Why.NOT_EDITED: "is done",
    Why.UNKNOWN: "has an unknown status",
    Why.GIVEN_UP: "is discarded already",
    Why.RAN_LATER: "would run out of order: message {} of its object has run already",
    Why.RUNS_LATER: "would run out of order: message {} of its object runs now",
    Why.KEY_TAKEN: "has a unique key that message {} holds now",
    Why.CHANGED: "has changed meanwhile, or a message behind it has",
    Why.LOCKED: "is locked by another transaction",
    Why.UNDATED: "has neither a claimed_at nor a created_at, so its age is unknown",
    Why.TOO_LATE: "has ended already: it is too late to cancel it",
    Why.FOREIGN: "was flagged by a consumer without a name, which sees no requests",
    Why.NO_REQUESTS: "is running, and table msgworker_cancel, for requests to end it, is missing",
    Why.REQUESTED: "is running, and a request to cancel it is recorded already",
    Why.REFUSED: "cannot be changed: {1}",
    Why.NOT_DEAD: "is not dead",
    Why.KNOWN: "is acknowledged already, or was discarded or cancelled",
    Why.SAME: "is as it would be: there is nothing to change",
    Why.EDITED: "has changed since it was seen: it ran, or another operator has changed it",
    Why.AHEAD: (
        "was discarded or cancelled, and a message of its object runs, whose instance may have "
        "read this one ahead as it was before an edit"
    ),
}
ADVICE = {
    Why.DONE: "--force (force=True) runs it again",
    Why.RAN_LATER: (
        "--force (force=True) runs it nevertheless, --with-successors (with_successors=True) runs "
        "it and then, in order, the failed and dead messages behind it"
    ),
    Why.RUNS_LATER: "try again later",
    Why.KEY_TAKEN: "--force (force=True) runs it without its key",
    Why.CHANGED: "look again",
    Why.LOCKED: "instances recover it when that transaction has ended, or release again",
    Why.UNDATED: "--any-age (any_age=True) gives it back, if no consumer works on it",
    Why.FOREIGN: "stop that consumer, give the message back (`release --nobody`), then cancel it",
    Why.NO_REQUESTS: "run App.create_schema() or `msgworker init-db`, or see `msgworker ddl`",
    Why.REQUESTED: "`msgworker explain` says whether its instance has seen it",
    Why.EDITED: "look at it as it is now, then edit it",
    Why.NOT_EDITED: (
        "a done message is not edited: send another one, or rerun it with `msgworker rerun --force`"
    ),
    Why.AHEAD: "try again when that one has ended",
}
"""The advice for each reason."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The message that was sent, or whose key was taken. op_id: in the audit."""

    kind: str
    msg_id: Any
    op_id: int


@dataclass(frozen=True, eq=False)
class Repaired(int):
    """The result of a write. As a number: how many messages it changed, or would change.

    op_id: its number in the audit, None if there was nothing to do. matched: messages that were
    read. skipped: how many of them were skipped; why: how many for which reason; skips: the
    first of them. For a dry run: sample: the first messages that would be changed; done_again: how
    many of them are done, so that their handlers would run again; stay_done: how many behind them
    are done and would stay so. requested: of a cancel, how many of the changed ones run, so that a
    request to their instances was recorded. complete: False for a dry run that did not count all,
    because of `count_limit` or the time of `within`; there may be more behind `up_to`, the highest
    msg_id that it counted (None = it counted none). holding: of an acknowledge, how many of them
    hold up their object or a job, and go on to do so until they are rerun or discarded. changes: of
    an edit, what it changes; seen: what the message was then, see `edit`.
    """

    kind: str
    op_id: int | None = None
    matched: int = 0
    changed: int = 0
    skipped: int = 0
    dry_run: bool = False
    why: tuple[tuple[Why, int], ...] = ()
    skips: tuple[Skip, ...] = ()
    sample: tuple[MessageInfo, ...] = ()
    done_again: int = 0
    stay_done: int = 0
    requested: int = 0
    complete: bool = True
    up_to: int | None = None
    holding: int = 0
    changes: tuple[Edited, ...] = ()
    seen: str | None = None

    def __new__(cls, *args: Any, **values: Any) -> Repaired:
        return super().__new__(cls, values.get("changed", 0))

    def __str__(self) -> str:
        return str(int(self))


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an operation; given to `progress` after each step.

    op_id: None while it counts, for `expected_count`: nothing was changed yet.
    """

    op_id: int | None
    matched: int
    changed: int
    skipped: int


OnProgress = Callable[[Progress], None]


@dataclass(slots=True)
class Skips:
    """Counts skipped messages, and keeps the first ones."""

    counts: Counter[Why] = field(default_factory=Counter)
    first: list[Skip] = field(default_factory=list)

    def add(self, skips: Iterable[Skip]) -> None:
        for skip in skips:
            self.counts[skip.why] += 1
            if len(self.first) < SHOWN:
                self.first.append(skip)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    @property
    def as_counts(self) -> dict[str, Any]:
        """As fields of a result."""
        why = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return {"skipped": self.count, "why": tuple(why), "skips": tuple(self.first)}
