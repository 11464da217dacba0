"""What happens in an instance, as typed events: for logs, counts, metrics and traces.

`App.on(Dead, fn)` calls `fn(event)` for each event of a type. It is called in the thread in which
it happens, so it should return at once: outcomes of other messages may wait for it. What takes long
belongs in a queue of its own. What it raises is logged and changes nothing.

Every event has `instance`, the id of the instance. A message in an event has `msg_id`, `object_id`,
`topic` and `tries`, the failed tries before this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from msgworker.errors import ConfigError
from msgworker.logs import logger

log = logger("msgworker.events")


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
    """An instance has its lease and begins to claim, with so many handler threads."""

    threads: int


@dataclass(frozen=True, slots=True)
class InstanceStopped(Event):
    """An instance has ended. clean: nothing is left for recovery."""

    clean: bool


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """Messages were flagged, of so many candidates; others had been faster with the rest."""

    messages: Sequence[Facts]
    offered: int


@dataclass(frozen=True, slots=True)
class Started(Event):
    """A handler starts."""

    message: Facts


@dataclass(frozen=True, slots=True)
class Settled(Event):
    """Outcomes of a batch were written. done: those that are done; each other outcome is an event
    of its own, before this one."""

    done: Sequence[Facts]


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """A try has failed; the message is tried again after so many seconds (None = at once).

    raised: what the handler raised, None if it was no exception.
    """

    message: Facts
    error: str
    delay_seconds: float | None
    raised: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Dead(Event):
    """A message became dead; see `Retried`."""

    message: Facts
    error: str
    raised: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Later(Event):
    """A handler raised RetryLater: no try is counted. times: how often this message has."""

    message: Facts
    error: str
    delay_seconds: float | None
    times: int
    raised: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Released(Event):
    """A message was given back, since its handler had not started. stopping: because of a stop."""

    message: Facts
    stopping: bool


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """A message is no longer ours: recovered, edited or deleted. Its outcome was not written."""

    message: Facts


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """The instance was declared dead, or silent for too long, and goes on under the id `now`.

    kept: how many messages it still has in hand; 0 but on a table without `claimed_by`.
    """

    now: str
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """So many messages of a dead instance were given back; dead: its id."""

    dead: str
    messages: int


@dataclass(frozen=True, slots=True)
class OutageBegan(Event):
    """The database is in trouble. role: which part of the instance met it first."""

    role: str
    reason: str


@dataclass(frozen=True, slots=True)
class OutageEnded(Event):
    """The database works again, after so many failures in a row."""

    role: str
    failures: int


E = TypeVar("E", bound=Event)
Subscriber = Callable[[Any], object]
EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
"""All events by name."""


@dataclass(slots=True, eq=False)
class Events:
    """Who is told of what; `above` is told, too.

    _by is replaced under the lock, and read without it.
    """

    above: Events | None = None
    _by: dict[type[Event], tuple[Subscriber, ...]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _told: set[tuple[int, type[BaseException]]] = field(default_factory=set)

    def on(self, event: type[E] | str, fn: Callable[[E], object]) -> Callable[[], None]:
        """Call `fn(event)` from now on; returns what ends it. Raises ConfigError for no event."""
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
                left = list(self._by[kind])
                if fn in left:  # once for each time it was asked for
                    left.remove(fn)
                self._by = self._by | {kind: tuple(left)}

        return off

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody is told of such an event: to make none where nobody is."""
        return bool(self._by.get(kind)) or (self.above is not None and self.above.wants(kind))

    def emit(self, event: Event) -> None:
        """Tell everybody, in the order in which they asked."""
        for fn in self._by.get(type(event), ()):
            try:
                fn(event)
            except BaseException as error:
                self._complain(fn, event, error)
        if self.above is not None:
            self.above.emit(event)

    def _complain(self, fn: Subscriber, event: Event, error: BaseException) -> None:
        """Once for each subscriber and type of error."""
        which = (id(fn), type(error))
        if which in self._told:
            return
        self._told.add(which)
        name = getattr(fn, "__qualname__", repr(fn))
        text = "%s, told of %s, raised %s; work goes on, and this is told once"
        what = (name, type(event).__name__, type(error).__name__)
        log.error(text, *what, exc_info=error)
