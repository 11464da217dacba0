"""Consumer processes on a real database, an observer from outside, and the verdict over all of it.

A `Trial` is one table with everything that happens to it: it sends the messages, starts and ends
the processes, looks at the table all the while, and puts all records together for the checker.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from msgworker import App, Job, MessageTable
from msgworker.store import tries
from msgworker.table.build import JOB_TABLE
from proof import history
from proof.crash import nursery
from proof.crash.batch_witness import tell_of_batches
from proof.crash.consumer import EFFECTS
from proof.crash.scenarios import Load
from proof.history import Cancel, Event, Final, Holders, JobRow, Keyed, Kind, Row, Snapshot
from proof.judge import Terms, Violation, check
from tests.engines import plain_engine
from tests.support.proxy import Proxy
from tests.support.waiting import until

LOOK_SECONDS = 0.1
MARGIN_SECONDS = 2.5
EXACT = ("exact", "batch", "group")  # the topics of transactional handlers that write an effect
BAD_WORDS = ("Traceback", "ERROR", "CRITICAL", "Exception in thread", "unexpected error")


class Consumer:
    """One consumer process."""

    def __init__(self, url: str, folder: Path, number: int, *options: str) -> None:
        self.out = folder / f"consumer{number}.out"
        self.err = folder / f"consumer{number}.err"
        for file in (self.out, self.err):
            file.touch()
        self.process = nursery.Child([url, *options], self.out, self.err)
        self.alive_at = time.monotonic()
        self.ended_at: float | None = None
        self.told_to_stop = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        return self.out.read_text().startswith("ready")

    def ready(self) -> Consumer:
        """Wait until its instances run."""
        until(lambda: self.is_ready or not self.running, "the consumer is ready", every=0.03)
        assert self.is_ready, f"the consumer died at its start: {self.err.read_text()}"
        return self

    def send(self, number: int) -> None:
        self.told_to_stop |= number == signal.SIGTERM
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self.send(signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM, and its exit code."""
        if self.running:
            self.ready().send(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = 60.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGUSR1)
            until(lambda: "most recent call first" in self.err.read_text(), "its threads are shown")
            text = f"process {self.pid} has not ended in {seconds:g} s: {self.err.read_text()}"
            raise AssertionError(text) from None

    def notelife(self) -> None:
        """Called again and again: when was it last seen alive, when found dead."""
        now = time.monotonic()
        if self.running:
            self.alive_at = now
        elif self.ended_at is None:
            self.ended_at = time.monotonic()

    @property
    def was_killed(self) -> bool:
        """Ended by a signal or by itself, not in order."""
        return self.process.returncode is not None and self.process.returncode not in (0, 1)

    @property
    def complaints(self) -> list[str]:
        """What on stderr is not a warning that belongs to everyday life."""
        text = self.err.read_text(errors="replace")
        return [line for line in text.splitlines() if any(word in line for word in BAD_WORDS)]


class Sent(NamedTuple):
    """A message that was sent: between `since` and `at`, for certain or perhaps."""

    object_id: str | None
    topic: str
    since: float
    at: float
    certain: bool = True


@dataclass
class Verdict:
    """What is left at the end, and what the checker says about it."""

    rows: dict[int, Row]
    numbers: dict[int, int]  # n -> msg_id
    events: list[Event]
    violations: list[Violation]

    def row(self, n: int) -> Row:
        return self.rows[self.numbers[n]]

    def of(self, n: int, *kinds: Kind) -> list[Event]:
        """The events of a message, in order."""
        msg_id = self.numbers[n]
        return [e for e in self.events if e.msg_id == msg_id and (not kinds or e.kind in kinds)]

    def count(self, n: int, kind: Kind) -> int:
        return len(self.of(n, kind))

    def __str__(self) -> str:
        shown = [str(violation) for violation in self.violations[:5]]
        return "\n".join([f"{len(self.violations)} violations", *shown])


@dataclass
class Trial:
    """One message table under trial. `url` is what consumers connect with."""

    url: str
    folder: Path
    lease: float = 30.0
    sends_with: str | None = None  # where the trial's own sessions need another URL
    proxy: Proxy | None = None  # what `url` leads through
    table: MessageTable = field(default_factory=MessageTable)
    look_seconds: float = LOOK_SECONDS
    consumers: list[Consumer] = field(default_factory=list)
    sent: dict[int, Sent] = field(default_factory=dict)
    observed: list[Snapshot] = field(default_factory=list)
    holders: list[Holders] = field(default_factory=list)
    keyed: list[Keyed] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # that producers got
    cancels: list[Cancel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app = App(self.sends_with or self.url, table=self.table)
        self.app.create_schema()
        # Plain sessions of our own: nothing of the product's is between us and the rows.
        self.reader = plain_engine(
            self.sends_with or self.url, isolation_level="AUTOCOMMIT", pool_pre_ping=True
        )
        EFFECTS.metadata.create_all(self.app.engine)
        self.history = self.folder / "history.jsonl"
        self.history.unlink(missing_ok=True)
        self.history.touch()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._read_bytes = 0
        self._events: list[Event] = []
        self._ids: dict[int, int] = {}  # n -> msg_id, as far as it was asked for
        self._over = threading.Event()
        self._watchers = [
            threading.Thread(target=self._watch, args=(act, seconds), daemon=True)
            for act, seconds in ((self._look, self.look_seconds), (self.note_lives, 0.05))
        ]
        for watcher in self._watchers:
            watcher.start()

    def close(self) -> None:
        """End what still runs."""
        for consumer in self.consumers:
            if consumer.running:
                consumer.kill()
        self._over.set()
        for watcher in self._watchers:
            watcher.join(10)
        self.app.engine.dispose()
        self.reader.dispose()
        if self.proxy is not None:
            self.proxy.close()

    @property
    def backend(self) -> str:
        """sqlite, postgresql, or mysql for MariaDB too."""
        return make_url(self.url).get_backend_name()

    # ------------------------------------------------------------ processes

    def spawn(self, *options: str, through: str | None = None, **settings: Any) -> Consumer:
        """Start a consumer; settings are its options: threads=4, drain=True. through: the URL of
        another way to the same database."""
        words = [f"--history={self.history}", f"--lease={self.lease}", *options]
        words.append(f"--tries={self.table.max_tries}")
        for name, value in settings.items():
            if value is False:
                continue
            flag = f"--{name.replace('_', '-')}"
            words.append(flag if value is True else f"{flag}={value}")
        url = self.url if through is None else through
        consumer = Consumer(url, self.folder, len(self.consumers), *words)
        self.consumers.append(consumer)
        return consumer

    def stop_all(self) -> list[int]:
        """SIGTERM to all that run, after their start; their exit codes."""
        alive = [c for c in self.consumers if c.running]
        for consumer in alive:
            if not consumer.told_to_stop:  # a second one would not be orderly
                consumer.ready().send(signal.SIGTERM)
        return [consumer.wait() for consumer in alive]

    # ------------------------------------------------------------ messages

    def send(self, object_id: str | None, topic: str = "plain", **does: Any) -> int:
        """Send one message; returns its number n."""
        return self.send_many([(object_id, topic, does)])[0]

    def send_many(self, messages: Iterable[Load]) -> list[int]:
        """Send messages in one transaction; returns their numbers."""
        with self.sending() as add:
            return [add(*message) for message in messages]

    @contextmanager
    def sending(
        self, job: Job | None = None
    ) -> Iterator[Callable[[str | None, str, dict[str, Any]], int]]:
        """A producer's transaction, open as long as the block: gives the function that inserts.
        job: into this one."""
        mine: list[int] = []
        facts: dict[int, tuple[str | None, str]] = {}
        conn = self.app.engine.connect()

        def add(object_id: str | None, topic: str, does: dict[str, Any]) -> int:
            with self._lock:
                n = self._last_number = getattr(self, "_last_number", 0) + 1
            mine.append(n)
            facts[n] = object_id, topic
            self.app.send(conn, topic, {"n": n, **does}, object_id=object_id, job=job)
            return n

        begun = since = time.monotonic()
        certain = False
        try:
            with conn, conn.begin():
                yield add
                since = time.monotonic()
            certain = True
        finally:
            at = time.monotonic()
            for n in mine:
                self.sent[n] = Sent(*facts[n], since if certain else begun, at, certain)

    def send_keyed(self, key: str, object_id: str | None, topic: str, does: dict[str, Any]) -> int:
        """Send one message with a unique key, in a transaction of its own; returns the msg_id of
        it, or of the one that holds the key."""
        with self._lock:
            n = self._last_number = getattr(self, "_last_number", 0) + 1
        since = time.monotonic()
        payload = {"n": n, **does}
        try:
            with self.app.engine.begin() as conn:
                return self.app.send(
                    conn, topic, payload, object_id=object_id, unique_key=key, on_duplicate="skip"
                )
        finally:
            self.sent[n] = Sent(object_id, topic, since, time.monotonic(), certain=False)

    def send_late(self, object_id: str, topic: str, hold: float) -> None:
        """A transaction with the lower id of an object stays open while a higher one commits."""
        with self.sending() as add:
            add(object_id, topic, {})
            self.send_many([(object_id, topic, {}), (object_id, topic, {})])
            self._over.wait(hold)

    # ------------------------------------------------------------ looking

    def _watch(self, act: Callable[[], None], seconds: float) -> None:
        while not self._over.wait(seconds):
            act()

    def note_lives(self) -> None:
        for consumer in list(self.consumers):
            consumer.notelife()

    def _look(self) -> None:
        """The observer of I7: one SELECT."""
        at = time.monotonic()
        try:
            rows = self.read("object_id, msg_id, status", "status = 1")
        except Exception:  # the database may be away: that is under test
            return
        self.observed.append((at, [(row[0], row[1], row[2]) for row in rows]))

    def read(self, columns: str, where: str = "1 = 1") -> list[Any]:
        """Rows of the message table, as they are now."""
        query = sa.text(f"SELECT {columns} FROM {self.app.table.name} WHERE {where}")
        with self.reader.connect() as conn:
            return list(conn.execute(query))

    def select(self, *columns: Any) -> list[Any]:
        """All rows, with their values as Python has them."""
        with self.reader.connect() as conn:
            return list(conn.execute(sa.select(*columns)))

    def instances(self) -> list[str]:
        """The ids in the lease table."""
        with self.reader.connect() as conn:
            names = "SELECT name FROM msgworker_lease WHERE kind = 'instance' ORDER BY name"
            return list(conn.scalars(sa.text(names)))

    def jump(self, seconds: float) -> None:
        """As if the database's clock had been put forward so far (back, if negative): what it is
        compared with is moved the other way."""
        by = {
            "sqlite": "strftime('%Y-%m-%d %H:%M:%f', {}, '{:+f} seconds')",
            "postgresql": "{} + interval '{:f} seconds'",
            "mysql": "{} + INTERVAL {:f} SECOND",
        }[self.backend]
        columns = ("expires_at", "renewed_at", "started_at")
        changes = ", ".join(f"{name} = {by.format(name, -seconds)}" for name in columns)
        with self.app.engine.begin() as conn:  # which waits long enough for SQLite's lock
            conn.exec_driver_sql(f"UPDATE msgworker_lease SET {changes}")

    def pauses(self, seconds: float) -> None:
        """Let some time go by, as part of what is tried."""
        self._over.wait(seconds)

    def unfinished(self) -> int:
        """How many messages are neither done nor dead."""
        again = f"status = -1 AND error_try_times < {self.table.max_tries}"
        return int(self.read("count(*)", f"status IN (0, 1) OR ({again})")[0][0])

    def finish(self, seconds: float = 60.0) -> None:
        """Wait until every message is done or dead."""

        def none_left() -> bool:
            self.pauses(0.1)
            return self.unfinished() == 0

        until(none_left, "every message is done or dead", seconds=seconds)

    def events(self) -> list[Event]:
        """What the consumers have written down so far."""
        with self._reading:
            if self.history.stat().st_size == self._read_bytes:
                return self._events
            events = list(self._events)
            with self.history.open("rb") as file:
                file.seek(self._read_bytes)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read_bytes += len(line)
                    events.append(history.from_line(line.decode()))
            self._events = sorted(events, key=lambda e: e.at)
            return self._events

    def seen(self, n: int, kind: Kind, *, by: Consumer | None = None) -> list[Event]:
        """Events of message n so far, of one process if given."""
        if n not in self._ids:
            self._ids = {k: i for i, k in self._numbers().items()}
        ids = {self._ids.get(n)}
        return [
            e
            for e in self.events()
            if e.kind == kind and e.msg_id in ids and (by is None or pid_of(e.instance) == by.pid)
        ]

    def pids_seen(self) -> set[int | None]:
        """The processes that have written something down so far."""
        return {pid_of(event.instance) for event in self.events()}

    def _numbers(self) -> dict[int, int]:
        """msg_id -> n, of every row that the trial has sent."""
        rows = self.read("msg_id, payload")
        found = ((row[0], _NUMBER.match(row[1] or "")) for row in rows)
        return {msg_id: int(number[1]) for msg_id, number in found if number}

    # ------------------------------------------------------------ verdict

    def jobs(self) -> list[JobRow]:
        """All jobs, as they are now."""
        c = JOB_TABLE.of(self.app.tables).c
        ended = (c.completed_at.is_not(None), c.report_id, c.done, c.dead)
        found = self.select(c.job_id, c.sealed_at.is_not(None), *ended)
        return [JobRow(row[0], bool(row[1]), bool(row[2]), *row[3:]) for row in found]

    def rows(self) -> dict[int, Row]:
        """The table as it is now."""
        c = self.app.tables.cols()
        found = self.select(
            c.msg_id, c.object_id, c.status, c.error_try_times, c.claimed_by, c.topic, c.last_error,
            c.payload, c.unique_key, c.scheduled_for, c.job_id,
        )  # fmt: skip
        return {row[0]: Row(*row[1:7], payload_of(row[7]), *row[8:]) for row in found}

    def judge(self, *, also: Iterable[Event] = (), **terms: Any) -> Verdict:
        """Stop watching, put everything together, and ask the judge. also: events that neither the
        consumers nor our own sends tell; terms: fields of Terms."""
        self._over.set()
        for watcher in self._watchers:
            watcher.join(10)
        self.note_lives()
        numbers = self._numbers()
        assert len(set(numbers.values())) == len(numbers), "a message was inserted twice"
        of_n = {n: msg_id for msg_id, n in numbers.items()}
        rows = self.rows()
        events = [*self._told(rows), *self._inserted(of_n), *self._effects(), *also]
        exact = {n for n, sent in self.sent.items() if sent.topic in EXACT and n in of_n}
        seen = self.observed, self.holders, self.keyed, self.errors, self.cancels
        final = Final(rows, *seen, self.jobs())
        common: dict[str, Any] = {
            "max_tries": self.table.max_tries,
            "ttl": self.lease,
            "heartbeat": self.lease / 3 + MARGIN_SECONDS,
            "transactional": {of_n[n] for n in exact},
        }
        violations = check(events, final, Terms(**{**common, **terms}))
        return Verdict(rows, of_n, sorted(events, key=lambda e: e.at), violations)

    def _inserted(self, of_n: dict[int, int]) -> Iterator[Event]:
        for n, sent in self.sent.items():
            if sent.certain or n in of_n:  # one that is not there stands out by its negative id
                facts = (of_n.get(n, -n), sent.object_id)
                yield Event(Kind.INSERTED, sent.at, "producer", *facts, since=sent.since)

    def _effects(self) -> list[Event]:
        query = sa.select(EFFECTS.c.msg_id, EFFECTS.c.object_id).order_by(EFFECTS.c.id)
        with self.reader.connect() as conn:
            found = list(conn.execute(query))
        at = time.monotonic()
        return [Event(Kind.EFFECT, at, "effects", row[0], row[1]) for row in found]

    def _told(self, rows: dict[int, Row]) -> list[Event]:
        told = self.events()
        told += self._untold_recoveries(told)
        killed = self.killed({row.claimed_by for row in rows.values()})
        return tidy(tell_of_batches(told, rows, [e.instance for e in killed]), killed)

    def killed(self, holders: Iterable[str | None] = ()) -> list[Event]:
        """The deaths of the instances that have written something down, or are named."""
        told = self.events()
        ids = {e.instance for e in told} | {e.detail for e in told if e.kind == Kind.RECOVERED}
        ids |= set(holders)
        return [
            Event(Kind.KILLED, consumer.ended_at, i, since=consumer.alive_at)
            for consumer in self.consumers
            if consumer.was_killed and consumer.ended_at is not None
            for i in ids
            if i is not None and pid_of(i) == consumer.pid
        ]

    def _untold_recoveries(self, told: list[Event]) -> Iterator[Event]:
        """Recoveries of killed instances that no instance could record: the answer to their COMMIT
        was lost, or who did it was killed. Each has left a failed try in the database."""
        killed = {consumer.pid for consumer in self.consumers if consumer.was_killed}
        known = {(e.msg_id, e.detail) for e in told if e.kind == Kind.RECOVERED}
        ahead = time.time() - time.monotonic()
        t = self.app.tables.failed_try.c
        query = sa.select(t.msg_id, t.instance, t.ended_at).where(t.kind == tries.Kind.CRASH)
        with self.reader.connect() as conn:
            found = conn.execute(query).all()
        for msg_id, dead, ended_at in found:
            if pid_of(dead) in killed and (msg_id, dead) not in known:
                at = ended_at.timestamp() - ahead
                yield Event(
                    Kind.RECOVERED, at + 0.01, "nobody", msg_id, detail=dead, since=at - 0.01
                )


def payload_of(text: Any) -> dict[str, Any]:
    """The payload of a row; an empty one where it is no object."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


_NUMBER = re.compile(r'\{"n": ?(\d+)')
_PID = re.compile(r"-(\d+)-[0-9a-f]{16}$")


def pid_of(instance_id: str) -> int | None:
    """The process of an instance."""
    found = _PID.search(instance_id)
    return int(found[1]) if found else None


def tidy(told: list[Event], killed: list[Event]) -> list[Event]:
    """The consumers' records and the deaths together, without what only a recorder can know of.

    A transactional handler that the database rolled back runs again under the same claim: one run,
    up to its last end. A take-over that was tried counts only if who tried was killed before it
    could tell.
    """
    kept: dict[int, Event] = dict(enumerate(sorted(told, key=lambda e: e.at)))
    ended: dict[tuple[str, int | None], int] = {}
    died = {e.instance: e.at for e in killed}
    known = {e.instance for e in told if e.kind == Kind.LEASE_LOST and e.detail is None}
    for place, event in list(kept.items()):
        key = event.instance, event.msg_id
        if event.kind == Kind.CLAIMED:
            ended.pop(key, None)
        elif event.kind == Kind.ENDED:
            if key in ended:
                del kept[ended[key]]
            ended[key] = place
        elif event.kind == Kind.LEASE_LOST and event.detail is not None:
            del kept[place]
            tried_by = event.detail.removeprefix("tried ")
            untold = event.instance not in known and tried_by in died
            if untold and died[tried_by] - event.at < 1.0:
                kept[place] = replace(event, detail=None)
    return [*kept.values(), *killed]


def assert_clean(trial: Trial, verdict: Verdict, *, quiet: bool = True) -> None:
    """Nothing broken, nothing left at 1, and (quiet) no traceback of any process."""
    assert not verdict.violations, str(verdict)
    assert not [i for i, row in verdict.rows.items() if row.status == 1]
    if quiet:
        for consumer in trial.consumers:
            assert not consumer.complaints, f"{consumer.err.name}: {consumer.complaints[:5]}"


def assert_once(trial: Trial, verdict: Verdict) -> None:
    """Done with no try counted; started once; one effect of each transactional handler."""
    failed = trial.read("msg_id, last_error", "error_try_times > 0")
    assert not failed, failed[:3]
    assert {row.status for row in verdict.rows.values()} == {2}
    for n, sent in trial.sent.items():
        assert verdict.count(n, Kind.STARTED) == 1, [str(e) for e in verdict.of(n)]
        assert verdict.count(n, Kind.EFFECT) == (sent.topic == "exact")


def finish(trial: Trial, *sent_by_items: int) -> Verdict:
    """Wait for the last message, stop all in order, judge. sent_by_items: messages that items of
    fan-outs have sent, which are there at the latest when they are claimed."""
    trial.finish()
    assert set(trial.stop_all()) <= {0}
    claims = sorted((e for e in trial.events() if e.kind == Kind.CLAIMED), key=lambda e: -e.at)
    first = {e.msg_id: replace(e, kind=Kind.INSERTED, since=None) for e in claims}
    also = [first[msg_id] for msg_id in sent_by_items]
    verdict = trial.judge(orderly=True, also=also)
    assert_clean(trial, verdict, quiet=False)
    return verdict
