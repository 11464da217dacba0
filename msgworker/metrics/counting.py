"""All metrics. docs/operate/metrics.md has the same table; a test compares them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from msgworker import events
from msgworker.latency import RAN, WAITED, bucket
from msgworker.processlock import ProcessLock
from msgworker.store.history import MOST_TOPICS, OTHERS, countable

if TYPE_CHECKING:
    from msgworker import App

Kind = Literal["counter", "gauge", "histogram"]
BATCHES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. bounds: of a histogram. joined: how the gauges of several instances and processes
    become one."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: Sequence[float] = ()
    joined: Literal["sum", "min"] = "sum"


MESSAGES = Metric(
    "msgworker_messages_total", "counter", "Outcomes of messages", ("topic", "outcome")
)
HANDLER = Metric("msgworker_handler_seconds", "histogram", "Run time of handlers", ("topic",), RAN)
WAIT = Metric(
    "msgworker_wait_seconds",
    "histogram",
    "Time from the sending of a message to its first start, and to that after each rerun",
    ("topic",),
    WAITED,
)
LOOKS = Metric("msgworker_looks_total", "counter", "Looks for work")
WASTED = Metric("msgworker_wasted_looks_total", "counter", "Looks for work that claimed nothing")
OFFERED = Metric("msgworker_claims_offered_total", "counter", "Messages that claims tried to get")
WON = Metric("msgworker_claims_won_total", "counter", "Messages that claims got")
SETTLES = Metric("msgworker_settle_messages", "histogram", "Outcomes written at once", (), BATCHES)
IN_FLIGHT = Metric("msgworker_in_flight_messages", "gauge", "Claimed messages")
RUNNING = Metric("msgworker_running_handlers", "gauge", "Running handlers")
INSTANCES = Metric("msgworker_instances", "gauge", "Instances that run in these processes")
THREADS = Metric("msgworker_handler_threads", "gauge", "Handler threads of these instances")
MARGIN = Metric(
    "msgworker_lease_margin_seconds",
    "gauge",
    "Time for which the lease was still trusted when it was last renewed, the shortest",
    joined="min",
)
LOST = Metric("msgworker_lease_losses_total", "counter", "Leases that were lost")
RECOVERIES = Metric("msgworker_recoveries_total", "counter", "Dead instances that were recovered")
RECOVERED = Metric(
    "msgworker_recovered_messages_total", "counter", "Messages that were given back for them"
)
OUTAGES = Metric("msgworker_database_outages_total", "counter", "Outages of the database")
AWAY = Metric("msgworker_database_away", "gauge", "Instances that cannot reach the database now")
LOCKS_AWAY = Metric(
    "msgworker_locks_away", "gauge", "Instances that claim nothing until they reach their locks"
)
ALONE = Metric(
    "msgworker_batches_alone_total", "counter", "Batches that were rolled back and ran one by one"
)
TICKS = Metric("msgworker_schedule_ticks_total", "counter", "Ticks that were sent", ("schedule",))
TICKS_SKIPPED = Metric(
    "msgworker_schedule_skipped_total",
    "counter",
    "Ticks that were not sent because the message before had not ended",
    ("schedule",),
)
TICKS_REPLACED = Metric(
    "msgworker_schedule_replaced_total",
    "counter",
    "Ticks that took the place of a message that had not ended",
    ("schedule",),
)
TICKS_FAILED = Metric(
    "msgworker_schedule_failures_total", "counter", "Failed tries to send a tick", ("schedule",)
)
JOBS = Metric("msgworker_jobs_completed_total", "counter", "Jobs that have completed")
UP = Metric("msgworker_database_up", "gauge", "Whether the database answers within the deadline")
OLDEST = Metric(
    "msgworker_oldest_waiting_seconds", "gauge", "Age of the oldest new message", ("topic",)
)
TABLE = Metric(
    "msgworker_table_messages",
    "gauge",
    "Unfinished and dead messages in the table, counted up to 10000",
    ("topic", "status"),
)
UNKNOWN_DEAD = Metric(
    "msgworker_table_dead_unacknowledged",
    "gauge",
    "Dead messages in the table that no operator has acknowledged, discarded or cancelled",
    ("topic",),
)
HOLDING = Metric(
    "msgworker_table_dead_holding",
    "gauge",
    "Dead messages in the table that hold up their object, or a job, acknowledged or not",
    ("topic", "holds"),
)
LIVING = Metric("msgworker_table_instances", "gauge", "Instances that work on the table", ("life",))

METRICS = {one.name: one for one in [*globals().values()] if isinstance(one, Metric)}
"""All of these by name, in the order of the documentation."""


# --- Counts as plain values, which go through a pipe as JSON and can be added up.
#
# The counters of a process that was killed stay in the sums (`past`), so that no sum ever falls;
# its gauges do not.

Key = tuple[str, tuple[str, ...]]
"""A name and the values of its labels."""
Histogram = tuple[float, list[int]]
"""The sum, and a count for each bucket, the last one beyond all bounds."""
Snapshot = dict[Key, float | Histogram]
Source = Callable[[], Iterable[Snapshot]]
"""The snapshots of all processes at this moment."""


def packed(snapshot: Snapshot) -> list[Any]:
    """As JSON takes it."""
    return [[name, list(labels), value] for (name, labels), value in snapshot.items()]


def unpacked(packed: Iterable[Any]) -> Snapshot:
    """The reverse; metrics that are not known here are left out."""
    found: Snapshot = {}
    for name, labels, value in packed:
        if name in METRICS:
            many = isinstance(value, list)
            found[name, tuple(labels)] = (value[0], value[1]) if many else value
    return found


def summed(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Several processes as one."""
    total: Snapshot = {}
    for snapshot in snapshots:
        for key, value in snapshot.items():
            before = total.get(key)
            if before is None:
                total[key] = value
            elif isinstance(value, tuple) and isinstance(before, tuple):
                both = [a + b for a, b in zip(before[1], value[1], strict=True)]
                total[key] = (before[0] + value[0], both)
            elif not isinstance(value, tuple) and not isinstance(before, tuple):
                least = METRICS[key[0]].joined == "min"
                total[key] = min(before, value) if least else before + value
    return total


def past(snapshot: Snapshot) -> Snapshot:
    """The part of a snapshot that still counts when its process has ended: all but gauges."""
    return {key: value for key, value in snapshot.items() if METRICS[key[0]].kind != "gauge"}


# --- Count the events of a process.
#
# The functions run in the threads of instances, so they only add numbers, under one lock.


OUTCOMES: dict[type[events.Event], str] = {
    events.Retried: "retried",
    events.Dead: "dead",
    events.Cancelled: "cancelled",
    events.Later: "postponed",
    events.Released: "released",
    events.Lost: "lost",
}
"""The outcomes of one message each, by their events; beside them "done"."""


class Subscribes(Protocol):
    """An App, or an event stream."""

    def on(self, event: Any, fn: Callable[[Any], object]) -> Callable[[], None]: ...


class Known(NamedTuple):
    """What a process knows of itself at this moment. topics: those with a handler. schedules: their
    names. in_flight, running: claimed messages and running handlers of its instances. threads:
    their handler threads. away, locks_away: how many of them cannot reach the database, or claim
    nothing until they reach the locks of their scope. margin: see MARGIN."""

    topics: Collection[str] = ()
    schedules: Collection[str] = ()
    in_flight: int = 0
    running: int = 0
    instances: int = 0
    threads: int = 0
    away: int = 0
    locks_away: int = 0
    margin: float | None = None


def known_of(app: App) -> Known:
    """Of the instances of an App in this process."""
    names = [one.name for one in app.schedules]
    return Known(app.topics or (), names, *app.load, **app._gauges())


class Counting:
    """The counts of a process since this was made; `end` ends it. All series of known topics and
    schedules are there from the start, so that the first event is seen as an increase."""

    def __init__(self, stream: Subscribes, known: Callable[[], Known] = Known) -> None:
        self._lock = ProcessLock()
        self._known = known
        self._counters: dict[Key, float] = {}
        self._histograms: dict[Key, list[Any]] = {}
        self._topics: set[str] = set()
        for metric in METRICS.values():
            if metric.kind == "counter" and not metric.labels:
                self._counters[metric.name, ()] = 0.0
        subscribers: dict[type[events.Event], Callable[[Any], None]] = {
            events.Claimed: lambda e: self._add_both(OFFERED, e.offered, WON, len(e.messages)),
            events.Looked: lambda e: self._add_both(LOOKS, 1, WASTED, not e.won),
            events.Settled: self._settled,
            **{kind: self._outcome(word) for kind, word in OUTCOMES.items()},
            events.FellBack: lambda _: self._add(ALONE),
            events.LeaseLost: lambda _: self._add(LOST),
            events.Recovered: lambda e: self._add_both(RECOVERIES, 1, RECOVERED, e.messages),
            events.OutageBegan: lambda _: self._add(OUTAGES),
            events.ScheduleFired: lambda e: self._add(TICKS, (e.name,), len(e.ticks)),
            events.ScheduleSkipped: lambda e: self._add(TICKS_SKIPPED, (e.name,), len(e.ticks)),
            events.ScheduleReplaced: lambda e: self._add(TICKS_REPLACED, (e.name,)),
            events.ScheduleFailed: lambda e: self._add(TICKS_FAILED, (e.name,)),
            events.JobCompleted: lambda _: self._add(JOBS),
        }
        self._off = [stream.on(kind, count) for kind, count in subscribers.items()]

    def end(self) -> None:
        """Count no more."""
        for off in self._off:
            off()

    def snapshot(self) -> Snapshot:
        """The counts now."""
        known = self._known()
        with self._lock:
            self._begin(known)
            found: Snapshot = dict(self._counters)
            for key, (total, counts) in self._histograms.items():
                found[key] = (total, list(counts))
        found[INSTANCES.name, ()] = known.instances
        found[THREADS.name, ()] = known.threads
        found[AWAY.name, ()] = known.away
        found[LOCKS_AWAY.name, ()] = known.locks_away
        found[IN_FLIGHT.name, ()] = known.in_flight
        found[RUNNING.name, ()] = known.running
        if known.margin is not None:
            found[MARGIN.name, ()] = known.margin
        return found

    # ------------------------------------------------------------ adding; the lock is held

    def _begin(self, known: Known) -> None:
        for topic in {self._topic(topic) for topic in sorted(known.topics)}:
            for word in ("done", *OUTCOMES.values()):
                self._counters.setdefault((MESSAGES.name, (topic, word)), 0.0)
            for metric in (HANDLER, WAIT):
                nothing = [0.0, [0] * (len(metric.bounds) + 1)]
                self._histograms.setdefault((metric.name, (topic,)), nothing)
        for name in known.schedules:
            for metric in (TICKS, TICKS_SKIPPED, TICKS_REPLACED, TICKS_FAILED):
                self._counters.setdefault((metric.name, (name,)), 0.0)

    def _count(self, metric: Metric, labels: tuple[str, ...], by: float) -> None:
        key = (metric.name, labels)
        self._counters[key] = self._counters.get(key, 0.0) + by

    def _measure(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        key = (metric.name, labels)
        found = self._histograms.get(key)
        if found is None:
            found = self._histograms[key] = [0.0, [0] * (len(metric.bounds) + 1)]
        found[0] += value
        found[1][bucket(metric.bounds, value)] += 1

    def _spans(self, topic: str, span: events.Span | None) -> None:
        if span is not None:
            seconds, waited = span
            self._measure(HANDLER, (topic,), seconds)
            if waited is not None:
                self._measure(WAIT, (topic,), waited)

    def _topic(self, topic: Any) -> str:
        """The topic as a label; there are at most `MOST_TOPICS`, and one for all others."""
        if isinstance(topic, str) and topic in self._topics:
            return topic
        name = countable(topic)
        if name not in self._topics:
            if len(self._topics) >= MOST_TOPICS:
                return OTHERS
            self._topics.add(name)
        return name

    # ------------------------------------------------------------ events

    def _add(self, metric: Metric, labels: tuple[str, ...] = (), by: float = 1.0) -> None:
        with self._lock:
            self._count(metric, labels, by)

    def _add_both(self, one: Metric, by: float, other: Metric, by_other: float) -> None:
        with self._lock:
            self._count(one, (), by)
            self._count(other, (), by_other)

    def _settled(self, event: events.Settled) -> None:
        with self._lock:
            if event.written:
                self._measure(SETTLES, (), event.written)
            for message, span in zip(event.done, event.spans or repeat(None), strict=False):
                topic = self._topic(message.topic)
                self._count(MESSAGES, (topic, "done"), 1.0)
                self._spans(topic, span)

    def _outcome(self, word: str) -> Callable[[Any], None]:
        def count(event: Any) -> None:
            with self._lock:
                topic = self._topic(event.message.topic)
                self._count(MESSAGES, (topic, word), 1.0)
                self._spans(topic, getattr(event, "span", None))

        return count
