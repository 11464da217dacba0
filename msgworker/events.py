"""Typed events of an instance, for logs, counts, metrics and traces.

`App.on(Dead, fn)` calls `fn(event)` for each event of a type. It is called in the thread that emits
the event and should return quickly, because outcomes of other messages may wait for it. Put slow
work into a queue of your own. Exceptions of the function are logged and have no other effect.

Every event has `instance`, the id of the instance. A message in an event has `msg_id`, `object_id`,
`topic` and `tries`, the failed tries before this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from msgworker.errors import ConfigError
from msgworker.logs import logger
from msgworker.processlock import ProcessLock

log = logger("msgworker.events")


Span = tuple[float, float | None]
"""Seconds that the handler of a message ran (of a batch, its share), and seconds from its sending
to its start; None for what is not its first start, and where created_at is unknown."""


class Facts(Protocol):
    """A message in an event."""

    @property
    def msg_id(self) -> int: ...
    @property
    def object_id(self) -> Any: ...
    @property
    def topic(self) -> Any: ...
    @property
    def tries(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Event:
    """instance: the id of the instance at that moment."""

    instance: str


@dataclass(frozen=True, slots=True)
class InstanceStarted(Event):
    """An instance has its lease and begins to claim. threads: its number of handler threads."""

    threads: int


@dataclass(frozen=True, slots=True)
class InstanceStopped(Event):
    """An instance has ended. clean: nothing is left for recovery."""

    clean: bool


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """Heads were flagged by a claim. The messages behind them get the flag in the settle of the one
    before, or in its transaction; there is no event of that. offered: how many candidates there
    were; other instances won some."""

    messages: Sequence[Facts]
    offered: int


@dataclass(frozen=True, slots=True)
class Looked(Event):
    """An instance has searched for work. offered: how many candidates it found. won: how many of
    them it got."""

    offered: int
    won: int


@dataclass(frozen=True, slots=True)
class Started(Event):
    """A handler starts."""

    message: Facts


@dataclass(frozen=True, slots=True)
class Settled(Event):
    """A settle has written outcomes. done: the messages that are done; every other outcome has
    an event of its own, before this one. spans: of each of them; None where it is unknown.
    written: how many outcomes were written, of all kinds."""

    done: Sequence[Facts]
    spans: Sequence[Span | None] = ()
    written: int = 0


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """A try has failed; the message is tried again after `delay_seconds` (None = at once).

    raised: what the handler raised, None if it was no exception. span: None if no handler ran.
    """

    message: Facts
    error: str
    delay_seconds: float | None
    raised: BaseException | None = None
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Dead(Event):
    """A message became dead; see `Retried`. Of one that was in its last try when its instance died,
    the instance that recovers it emits this."""

    message: Facts
    error: str
    raised: BaseException | None = None
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Cancelled(Event):
    """An operator has cancelled a message: it is dead. This instance had it, or recovers it, or has
    found that it waits again. error: its last error."""

    message: Facts
    error: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Later(Event):
    """A handler raised RetryLater: no try is counted. times: how often it did for this message."""

    message: Facts
    error: str
    delay_seconds: float | None
    times: int
    raised: BaseException | None = None
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Released(Event):
    """A message was released, because its handler had not started. stopping: because of a stop."""

    message: Facts
    stopping: bool


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The claim of a message was lost: it was recovered, edited or deleted. Its outcome was not
    written."""

    message: Facts


@dataclass(frozen=True, slots=True)
class FellBack(Event):
    """A batch or a group had no outcome: its messages run alone, without a try counted. error: why.

    raised: what the handler raised, None if it was no exception.
    """

    messages: Sequence[Facts]
    error: str
    raised: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """A heartbeat has renewed the lease. margin_seconds: for how long it was still trusted.
    in_flight: claimed messages, one for each object. running: handlers."""

    margin_seconds: float
    in_flight: int
    running: int


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """The instance was declared dead, or did not renew for too long, and continues under the id
    `now`.

    kept: how many messages it keeps; 0 except on a table without `claimed_by`.
    """

    now: str
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """Messages of a dead instance were given back. dead: its id. messages: how many."""

    dead: str
    messages: int


@dataclass(frozen=True, slots=True)
class OutageBegan(Event):
    """The database fails or cannot be reached. role: the part of the instance that noticed."""

    role: str
    reason: str


@dataclass(frozen=True, slots=True)
class OutageEnded(Event):
    """The database works again. failures: how many there were in a row."""

    role: str
    failures: int


@dataclass(frozen=True, slots=True)
class ScheduleFired(Event):
    """The messages of one or more ticks of a schedule were sent. ticks: aware UTC, in order."""

    name: str
    topic: str
    ticks: Sequence[datetime]


@dataclass(frozen=True, slots=True)
class ScheduleSkipped(Event):
    """Ticks of a schedule were not sent, because the message before, msg_id, has not ended
    (overlap="skip"), or one waits (catch_up="one"; msg_id is None). ticks: aware UTC, in order."""

    name: str
    topic: str
    ticks: Sequence[datetime]
    msg_id: Any = None


@dataclass(frozen=True, slots=True)
class ScheduleReplaced(Event):
    """The message of a tick has taken the place of msg_id, which had not ended: that one is now the
    message of this tick, or was cancelled (overlap="replace"). tick: aware UTC."""

    name: str
    topic: str
    tick: datetime
    msg_id: Any


@dataclass(frozen=True, slots=True)
class ScheduleFailed(Event):
    """The messages of a due schedule could not be sent; it is tried again after `delay_seconds`."""

    name: str
    error: str
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class JobCompleted(Event):
    """All messages of a job have ended. done, dead: how many ended so. topic, report_id: of the
    message that was sent, None if there is none."""

    job: int
    name: str
    done: int
    dead: int
    topic: str | None = None
    report_id: Any = None


E = TypeVar("E", bound=Event)
Subscriber = Callable[[Any], object]
EventName = Literal[
    "InstanceStarted",
    "InstanceStopped",
    "Claimed",
    "Looked",
    "Started",
    "Settled",
    "Retried",
    "Dead",
    "Cancelled",
    "Later",
    "Released",
    "Lost",
    "FellBack",
    "Renewed",
    "LeaseLost",
    "Recovered",
    "OutageBegan",
    "OutageEnded",
    "ScheduleFired",
    "ScheduleSkipped",
    "ScheduleReplaced",
    "ScheduleFailed",
    "JobCompleted",
]
"""The names of the events, for type checkers."""
EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
"""All events by name."""


@dataclass(slots=True, eq=False)
class Events:
    """Subscribers by event. `above` gets every event too.

    _by is replaced under the lock, and read without it; it holds no event without a subscriber.
    """

    above: Events | None = None
    _by: dict[type[Event], tuple[Subscriber, ...]] = field(default_factory=dict)
    _lock: ProcessLock = field(default_factory=ProcessLock)
    _logged: set[tuple[int, type[BaseException]]] = field(default_factory=set)

    def on(self, event: type[E] | str, fn: Callable[[E], object]) -> Callable[[], None]:
        """Call `fn(event)` from now on; returns a function that ends it. Raises ConfigError."""
        kind: Any = EVENTS.get(event) if isinstance(event, str) else event
        if kind not in EVENTS.values():
            known = ", ".join(EVENTS)
            raise ConfigError(f"{event!r:.80} is no event of msgworker.events; there are {known}")
        if not callable(fn):
            raise ConfigError(f"what an event calls must be a function, got {fn!r:.80}")
        with self._lock:
            self._by = self._by | {kind: (*self._by.get(kind, ()), fn)}

        def off() -> None:
            with self._lock:
                left = list(self._by.get(kind, ()))
                if fn in left:  # one subscription of several
                    left.remove(fn)
                others = {k: fns for k, fns in self._by.items() if k is not kind}
                self._by = others | {kind: tuple(left)} if left else others

        return off

    def wants(self, kind: type[Event]) -> bool:
        """Whether the event has a subscriber; without one it need not be created."""
        stream: Events | None = self
        while stream is not None:
            if kind in stream._by:
                return True
            stream = stream.above
        return False

    def emit(self, event: Event) -> None:
        """Call all subscribers, in the order in which they subscribed."""
        for fn in self._by.get(type(event), ()):
            try:
                fn(event)
            except BaseException as error:
                self._complain(fn, event, error)
        if self.above is not None:
            self.above.emit(event)

    def _complain(self, fn: Subscriber, event: Event, error: BaseException) -> None:
        """Log an error, once for each subscriber and type of error."""
        which = (id(fn), type(error))
        with self._lock:
            if which in self._logged:
                return
            self._logged.add(which)
        name = getattr(fn, "__qualname__", repr(fn))
        text = "subscriber %s of %s raised %s; work continues, and this is logged once"
        what = (name, type(event).__name__, type(error).__name__)
        log.error(text, *what, exc_info=error)
