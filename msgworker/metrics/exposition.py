"""The text of a scrape, and the HTTP server that answers it. Only this file needs
prometheus_client."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from http.server import ThreadingHTTPServer
from itertools import accumulate
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgworker.db.errors import reason_of
from msgworker.errors import ConfigError
from msgworker.logs import logger
from msgworker.message import State
from msgworker.metrics import counting, need
from msgworker.processlock import ProcessLock, Renewed
from msgworker.queries.counts import Overview, TopicInfo
from msgworker.store.history import MOST_TOPICS, OTHERS, countable

if TYPE_CHECKING:
    from msgworker import App
    from msgworker.ops import Ops

MOST_SCRAPES = 16
SCRAPE_SECONDS = 10.0


class Collector:
    """What prometheus_client asks for all metrics."""

    def __init__(self, source: counting.Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Any]:
        """The families of all metrics, in the order of the documentation."""
        by_name: dict[str, list[tuple[tuple[str, ...], Any]]] = {
            name: [] for name in counting.METRICS
        }
        for (name, labels), value in sorted(
            counting.summed(self._source()).items(), key=lambda one: one[0]
        ):
            by_name[name].append((labels, value))
        for name, metric in counting.METRICS.items():
            yield _family(metric, by_name[name])


def _family(metric: counting.Metric, samples: Iterable[tuple[tuple[str, ...], Any]]) -> Any:
    from prometheus_client import core

    made: Any
    if metric.kind == "histogram":
        made = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            bounds = [*(f"{bound:g}" for bound in metric.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(value[1]), strict=True))
            made.add_metric(labels, buckets, value[0])
        return made
    kind: Any = core.CounterMetricFamily if metric.kind == "counter" else core.GaugeMetricFamily
    made = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made


def registry_of(source: counting.Source) -> Any:
    """A registry of prometheus_client with all metrics of `source`. Raises ConfigError if the extra
    is not installed."""
    need()
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    made: Any = Collector(source)
    registry.register(made)
    return registry


def text(source: counting.Source, accept: str = "") -> tuple[bytes, str]:
    """The text of a scrape and its content type, as the client accepts it."""
    registry = registry_of(source)
    from prometheus_client.exposition import choose_encoder

    encode, kind = choose_encoder(accept)
    return encode(registry), kind


def write(source: counting.Source, path: str) -> None:
    """Write the text of a scrape to a file, at once, as the textfile collector of node_exporter
    reads it. Raises ConfigError if it cannot be written, or the extra is not installed."""
    registry = registry_of(source)
    from prometheus_client import write_to_textfile

    try:
        write_to_textfile(path, registry)
    except OSError as error:
        raise ConfigError(f"metrics cannot be written to {path}: {error}") from error


class _Server(ThreadingHTTPServer):
    """A thread for each connection, MOST_SCRAPES at most: with one more the oldest is closed. They
    are those of clients who send or read slowly, since a scrape takes a moment."""

    daemon_threads = True
    request_queue_size = 2 * MOST_SCRAPES  # behind it, a client is let in a second or more later

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        self._lock = ProcessLock()
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__(address, handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # skips the look-up of the host's name, which may take seconds
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= MOST_SCRAPES:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client may go away."""


def _is_known(host: str) -> bool:
    """Whether a name leads to this machine only: a page of another site, whose name was pointed at
    it, would read what is served here (DNS rebinding)."""
    name = urlsplit(f"//{host}").hostname or ""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return name in ("localhost", socket.gethostname().lower())


@contextmanager
def serving(source: counting.Source, host: str, port: int) -> Iterator[int]:
    """Answer scrapes in threads while the block runs; gives the port. Raises ConfigError if the
    address is taken or not ours."""
    registry = registry_of(source)
    from prometheus_client import MetricsHandler

    class Handler(MetricsHandler.factory(registry)):  # type: ignore[misc]
        timeout = SCRAPE_SECONDS

        def do_GET(self) -> None:
            if urlsplit(self.path).path not in ("/", "/metrics"):
                self.send_error(404)
            elif local and not _is_known(self.headers.get("Host", "")):
                self.send_error(421, "this name is not one of this machine")
            else:
                super().do_GET()

    try:
        server = _Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"metrics cannot be served at {host}:{port}: {error}") from error
    local = ipaddress.ip_address(str(server.server_address[0])).is_loopback
    thread = threading.Thread(target=server.serve_forever, name="msgworker-metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


# --- What a scrape reads from the database: the oldest message, counts, instances.
#
# One read serves all scrapes of a few seconds, and has a deadline: monitoring must not burden what
# it monitors.

KEEP_SECONDS = 10.0
DEADLINE_SECONDS = 2.0
STATUSES = (State.NEW, State.PROCESSING, State.FAILED, State.DEAD)
FAILED = {State.FAILED, State.DEAD}
DOWN: counting.Snapshot = {(counting.UP.name, ()): 0.0}
"""The metrics while the database does not answer."""
log = logger("msgworker.metrics")


class Looking(Renewed):
    """Reads the overview, at most every `KEEP_SECONDS`, in a thread of its own: no deadline of a
    statement ends a wait for a server that does not answer at all. known: see `Known`; a topic
    without messages has a count of 0."""

    def __init__(
        self,
        ops: Ops,
        known: Callable[[], counting.Known] = counting.Known,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._ops = ops.within(DEADLINE_SECONDS)
        self._known = known
        self._clock = clock
        self._lock = ProcessLock()
        self._until = float("-inf")
        self._failed = False

    def renew(self) -> None:
        """See `Renewed`."""
        self._last: Future[counting.Snapshot] | None = None

    def snapshot(self) -> counting.Snapshot:
        """The latest overview as metrics, DOWN while one takes too long. Never raises."""
        with self._lock:
            if self._last is None or (self._last.done() and self._clock() >= self._until):
                self._last = self._begun()
            last = self._last
        if wait([last], DEADLINE_SECONDS).done:
            return last.result()
        self._warn(f"no answer within {DEADLINE_SECONDS:g} s")
        return DOWN

    def _begun(self) -> Future[counting.Snapshot]:
        made: Future[counting.Snapshot] = Future()
        run = partial(self._look, made)
        try:
            threading.Thread(target=run, name="msgworker-metrics-read", daemon=True).start()
        except RuntimeError:  # there is no thread to be had
            run()
        return made

    def _look(self, made: Future[counting.Snapshot]) -> None:
        found = DOWN
        try:
            found = metrics_of(self._ops.overview(), self._known().topics)
            self._failed = False
        except Exception as error:
            self._warn(reason_of(error))
        finally:  # who waits for it gets an answer
            self._until = self._clock() + KEEP_SECONDS
            made.set_result(found)

    def _warn(self, why: str) -> None:
        if not self._failed:
            log.warning("the database cannot be read for metrics: %s", why)
        self._failed = True


def metrics_of(seen: Overview, known: Collection[str] = ()) -> counting.Snapshot:
    """An overview as metrics. Beyond so many topics the others are one: the age of their oldest,
    and the sum of their messages. known: topics that are there without a message, too. Where not
    all messages of a state were counted, a topic of which none were seen has no number."""
    found: defaultdict[counting.Key, float] = defaultdict(float, {(counting.UP.name, ()): 1.0})
    for life in ("live", "silent", "dead"):
        found[counting.LIVING.name, (life,)] = getattr(seen, life)
    cut = {status for status in STATUSES if seen.count(status).more}
    if cut & FAILED:  # they are counted together
        cut |= FAILED

    def add(metric: counting.Metric, labels: tuple[str, ...], count: int, status: State) -> None:
        if count or status not in cut:
            found[metric.name, labels] += count

    there = {topic.topic for topic in seen.topics}
    empty = sorted(name for name in known if name not in there)[: max(0, MOST_TOPICS - len(there))]
    topics = [*seen.topics, *(TopicInfo(name, {}, None, 0) for name in empty)]
    for place, topic in enumerate(topics):
        name = countable(topic.topic) if place < MOST_TOPICS else OTHERS
        if topic.oldest_seconds is not None:
            key = (counting.OLDEST.name, (name,))
            found[key] = max(found[key], topic.oldest_seconds)
        for status in STATUSES:
            add(counting.TABLE, (name, str(status)), topic.count(status).count, status)
        add(counting.UNKNOWN_DEAD, (name,), topic.unacknowledged.count, State.DEAD)
        for holds, count in (("object", topic.hold_objects), ("job", topic.hold_jobs)):
            add(counting.HOLDING, (name, holds), count.count, State.DEAD)
    return dict(found)


class Scrapes:
    """Metrics of a process that may never be asked for them: counts events from the first scrape
    on."""

    def __init__(self, app: App, ops: Callable[[], Ops]) -> None:
        self._app = app
        self._known = partial(counting.known_of, app)
        self._ops = ops
        self._lock = ProcessLock()
        self._made: tuple[counting.Counting, Looking] | None = None

    def text(self, accept: str) -> tuple[bytes, str]:
        """The answer and its content type, with a read of the database."""
        counting, looking = self._parts()
        return text(lambda: (counting.snapshot(), looking.snapshot()), accept)

    def without_database(self, accept: str) -> tuple[bytes, str]:
        """The same, while the database does not answer."""
        counting, _ = self._parts()
        return text(lambda: (counting.snapshot(), DOWN), accept)

    def forget(self) -> None:
        """Drop what was read from the database, because it is out of date."""
        with self._lock:
            if self._made is not None:
                self._made = self._made[0], Looking(self._ops(), self._known)

    def _parts(self) -> tuple[counting.Counting, Looking]:
        with self._lock:
            if self._made is None:
                counted = counting.Counting(self._app, self._known)
                self._made = counted, Looking(self._ops(), self._known)
            return self._made
