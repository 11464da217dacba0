"""Count what the events of a process tell.

The functions run in the threads of instances, so they only add numbers, under one lock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, Protocol

from msgworker import events
from msgworker.instance.minutes import MOST_TOPICS, OTHERS, countable
from msgworker.latency import bucket
from msgworker.metrics import names
from msgworker.metrics.names import Metric
from msgworker.metrics.snapshot import Snapshot
from msgworker.processlock import ProcessLock


class Subscribes(Protocol):
    """An App, or an event stream."""

    def on(self, event: Any, fn: Callable[[Any], object]) -> Callable[[], None]: ...


class Counting:
    """The counts of a process since this was made; `end` ends it."""

    def __init__(self, stream: Subscribes) -> None:
        self._lock = ProcessLock()
        self._counters: dict[tuple[str, tuple[str, ...]], float] = {}
        self._histograms: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
        self._topics: set[str] = set()
        self._threads: dict[str, int] = {}  # of each instance
        self._beats: dict[str, events.Renewed] = {}
        self._away: set[str] = set()
        for metric in names.METRICS.values():
            if metric.kind == "counter" and not metric.labels:
                self._counters[metric.name, ()] = 0.0
        tells: dict[type[events.Event], Callable[[Any], None]] = {
            events.InstanceStarted: self._started,
            events.InstanceStopped: self._stopped,
            events.Claimed: self._claimed,
            events.Looked: self._looked,
            events.Settled: self._settled,
            events.Retried: self._outcome("retried"),
            events.Dead: self._outcome("dead"),
            events.Cancelled: self._outcome("cancelled"),
            events.Later: self._outcome("postponed"),
            events.Released: self._outcome("released"),
            events.Lost: self._outcome("lost"),
            events.FellBack: lambda _: self._add(names.ALONE),
            events.Renewed: self._renewed,
            events.LeaseLost: self._lease_lost,
            events.Recovered: self._recovered,
            events.OutageBegan: self._outage,
            events.OutageEnded: lambda event: self._away.discard(event.instance),
            events.ScheduleFired: lambda e: self._add(names.TICKS, (e.name,), len(e.ticks)),
            events.ScheduleFailed: lambda e: self._add(names.TICKS_FAILED, (e.name,)),
        }
        self._off = [stream.on(kind, tell) for kind, tell in tells.items()]

    def end(self) -> None:
        """Count no more."""
        for off in self._off:
            off()

    def snapshot(self) -> Snapshot:
        """The counts now."""
        with self._lock:
            beats = list(self._beats.values())
            found: Snapshot = dict(self._counters)
            for key, (total, counts) in self._histograms.items():
                found[key] = (total, list(counts))
            found[names.INSTANCES.name, ()] = len(self._threads)
            found[names.THREADS.name, ()] = sum(self._threads.values())
            found[names.AWAY.name, ()] = len(self._away)
        found[names.IN_FLIGHT.name, ()] = sum(beat.in_flight for beat in beats)
        found[names.RUNNING.name, ()] = sum(beat.running for beat in beats)
        if beats:
            found[names.MARGIN.name, ()] = min(beat.margin_seconds for beat in beats)
        return found

    # ------------------------------------------------------------ adding; the lock is held

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
            self._measure(names.HANDLER, (topic,), seconds)
            if waited is not None:
                self._measure(names.WAIT, (topic,), waited)

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

    def _settled(self, event: events.Settled) -> None:
        with self._lock:
            if event.written:
                self._measure(names.SETTLES, (), event.written)
            for message, span in zip(event.done, event.spans or repeat(None), strict=False):
                topic = self._topic(message.topic)
                self._count(names.MESSAGES, (topic, "done"), 1.0)
                self._spans(topic, span)

    def _outcome(self, word: str) -> Callable[[Any], None]:
        def tell(event: Any) -> None:
            with self._lock:
                topic = self._topic(event.message.topic)
                self._count(names.MESSAGES, (topic, word), 1.0)
                self._spans(topic, getattr(event, "span", None))

        return tell

    def _claimed(self, event: events.Claimed) -> None:
        with self._lock:
            self._count(names.OFFERED, (), event.offered)
            self._count(names.WON, (), len(event.messages))

    def _looked(self, event: events.Looked) -> None:
        with self._lock:
            self._count(names.LOOKS, (), 1.0)
            if not event.won:
                self._count(names.WASTED, (), 1.0)

    def _started(self, event: events.InstanceStarted) -> None:
        with self._lock:
            self._threads[event.instance] = event.threads

    def _stopped(self, event: events.InstanceStopped) -> None:
        with self._lock:
            self._threads.pop(event.instance, None)
            self._beats.pop(event.instance, None)
            self._away.discard(event.instance)

    def _renewed(self, event: events.Renewed) -> None:
        with self._lock:
            self._beats[event.instance] = event

    def _lease_lost(self, event: events.LeaseLost) -> None:
        with self._lock:
            self._count(names.LOST, (), 1.0)
            self._beats.pop(event.instance, None)
            self._away.discard(event.instance)
            if event.instance in self._threads:
                self._threads[event.now] = self._threads.pop(event.instance)

    def _recovered(self, event: events.Recovered) -> None:
        with self._lock:
            self._count(names.RECOVERIES, (), 1.0)
            self._count(names.RECOVERED, (), event.messages)

    def _outage(self, event: events.OutageBegan) -> None:
        with self._lock:
            self._count(names.OUTAGES, (), 1.0)
            self._away.add(event.instance)
