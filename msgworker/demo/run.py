"""The demonstration: purchases through several processes, one of them killed; then the proof: each
claim is checked against the rows of the tables, when all is over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import click
import sqlalchemy as sa

from msgworker import App
from msgworker.counted import plural
from msgworker.demo import purchases
from msgworker.demo.purchases import PRICE, STATEMENT, Purchase, contracts, make_app, metadata
from msgworker.message import State, Status
from msgworker.store import lease
from msgworker.store.lease import INSTANCE

MAX_TRIES = 3


class SeenMessage(NamedTuple):
    msg_id: int
    topic: str
    payload: dict[str, Any]
    status: int
    tries: int
    crashes: int
    error: str | None

    @property
    def meant_to_die(self) -> bool:
        return self.topic == purchases.STATEMENT and self.payload["address"] is None

    @property
    def failures_meant(self) -> int:
        if self.meant_to_die:
            return MAX_TRIES
        return int(self.topic == purchases.PRICE and purchases.fails_once(self.payload["number"]))

    @property
    def dead(self) -> bool:
        return self.status == Status.FAILED and self.tries == MAX_TRIES


class InHand(NamedTuple):
    """The in-flight messages of a process at one moment, and the ids of its instances."""

    instances: set[str]
    msg_ids: set[int]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The tables after the end; held: by the process that was killed."""

    messages: Sequence[SeenMessage]
    prices: Sequence[sa.Row[Any]]
    contracts: Sequence[sa.Row[Any]]
    leases: int
    held: InHand


def read(app: App, held: InHand) -> Evidence:
    t = app.tables
    m = t.message.c
    columns = (
        m.msg_id, m.topic, m.payload, m.status, m.error_try_times, m.crash_times, m.last_error
    )  # fmt: skip
    with app.engine.connect() as conn:
        found = conn.execute(sa.select(*columns)).all()
        return Evidence(
            messages=[SeenMessage(row[0], row[1], json.loads(row[2]), *row[3:]) for row in found],
            prices=conn.execute(sa.select(purchases.prices)).all(),
            contracts=conn.execute(sa.select(purchases.contracts)).all(),
            leases=len(lease.read_all(conn, t)),
            held=held,
        )


def claims(
    seen: Evidence, bought: Sequence[purchases.Purchase], statements: int
) -> Iterator[tuple[str, bool]]:
    """Each claim, and whether it holds."""
    wanted = {number: p.price_cents for number, p in purchases.straight(bought).items()}
    over = [m for m in seen.messages if m.status == Status.DONE or m.dead]
    sent = Counter({purchases.PRICE: len(bought), purchases.STATEMENT: statements})
    yield "nothing lost: every message sent is done or dead", Counter(m.topic for m in over) == sent
    yield (
        "exactly once: one price and one count in its contract per purchase",
        Counter(p.number for p in seen.prices) == Counter(p.number for p in bought)
        and {c.customer: c.purchases for c in seen.contracts}
        == Counter(p.customer for p in bought),
    )
    yield "order kept: every customer's purchases were priced one after another", _in_order(seen)
    yield (
        "every price equals the straight computation to the cent",
        {p.number: p.price_cents for p in seen.prices} == wanted,
    )
    yield (
        "every customer's total and the sum charged are equal to the cent",
        {c.customer: c.total_cents for c in seen.contracts} == purchases.spent(bought)
        and sum(p.price_cents for p in seen.prices) == sum(wanted.values()),
    )
    yield (
        "tries: who failed once on purpose recovered, no other lost a try",
        all(m.tries == m.failures_meant for m in seen.messages if not m.crashes),
    )
    yield (
        "dead: those that always fail, after three tries, and no others",
        all(m.dead == m.meant_to_die for m in seen.messages),
    )
    if seen.held.instances:
        yield "killed: others finished all in-flight messages of that process", _rescued(seen)
    yield (
        "nothing is left: no message in flight, no lease",
        not seen.leases and all(m.status != Status.PROCESSING for m in seen.messages),
    )


def _in_order(seen: Evidence) -> bool:
    by_customer: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in sorted(seen.prices, key=lambda row: row.place):
        by_customer[row.customer].append((row.place, row.number))
    return all(_ascends(pairs) for pairs in by_customer.values())


def _ascends(pairs: list[tuple[int, int]]) -> bool:
    places = [place for place, _ in pairs]
    numbers = [number for _, number in pairs]
    return places == list(range(1, len(pairs) + 1)) and numbers == sorted(set(numbers))


def _rescued(seen: Evidence) -> bool:
    messages = {m.msg_id: m for m in seen.messages}
    by = {p.msg_id: p.instance for p in seen.prices}
    return bool(seen.held.msg_ids) and all(
        messages[i].crashes and by.get(i) not in seen.held.instances for i in seen.held.msg_ids
    )


# --- The worker processes of the demonstration, by name, in the order they were started.

STOP_SECONDS = 30.0


class Processes:
    """Starts, halts, kills and stops them; once it is closed none is left."""

    def __init__(self, url: str, lease_seconds: float) -> None:
        self._url = url
        self._lease_seconds = lease_seconds
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    @property
    def names(self) -> list[str]:
        return list(self._running)

    def oldest(self) -> str:
        return next(iter(self._running))

    def start(self) -> str:
        """Start one; returns its name, which is the label of its lease."""
        self._started += 1
        name = f"worker-{self._started}"
        command = [sys.executable, "-m", "msgworker.demo.worker"]
        command += [self._url, str(self._lease_seconds), name]
        # It stops when this pipe is closed, however we end.
        self._running[name] = subprocess.Popen(command, stdin=subprocess.PIPE)
        return name

    def halt(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._forget(name)

    def stop(self, name: str) -> int:
        """SIGTERM, and SIGKILL if that does not help; returns the exit code."""
        self._running[name].terminate()
        return self._forget(name)

    def ended(self) -> str:
        """The processes that ended by themselves, with their exit codes; empty if none did."""
        codes = {name: process.poll() for name, process in self._running.items()}
        return ", ".join(
            f"{name} (exit code {code})" for name, code in codes.items() if code is not None
        )

    def close(self) -> None:
        """Stop all that run, at once."""
        for name, process in self._running.items():
            process.terminate()
            self.go_on(name)  # a halted process would not get the signal
        for name in self.names:
            self._forget(name)

    def _forget(self, name: str) -> int:
        process = self._running[name]
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        finally:
            if process.stdin is not None:
                process.stdin.close()
        del self._running[name]
        return code


# --- The demonstration.
#
# Everything happens in a temporary folder on embedded SQLite and is gone afterwards.

PROCESSES = 3
LEASE_SECONDS = 4.0
LIMIT_SECONDS = 300.0
LOOK_SECONDS = 0.05
STATEMENTS = 100
WITHOUT_ADDRESS = 7
CHUNK = 250
PROVED, BROKEN = click.style("proved", "green"), click.style("BROKEN", "red", bold=True)


class Stuck(Exception):
    """The demonstration cannot finish."""


def run(serve: Callable[[App], None] | None = None) -> int:
    """Run the demonstration; 0 if every proof holds, else 1.

    serve: called after the proofs with the App; an instance works beside it, so that what is rerun
    is handled. Nothing stays behind: no process, no file.
    """
    with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="msgworker-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        app = make_app(url, lease_seconds=LEASE_SECONDS)
        try:
            with closing(Processes(url, LEASE_SECONDS)) as fleet:
                code = _Demo(app, fleet).run()
            if serve is None:
                say("\nSee such a table in your browser: msgworker demo --web")
            else:
                with app.worker(threads=2) as worker:
                    worker.start()
                    serve(app)
            return code
        except Stuck as reason:
            say(f"{BROKEN}  {reason}")
            return 1
        finally:
            app.engine.dispose()


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM leaves as Ctrl-C does, so that workers and folder go too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say(text: str) -> None:
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


class _Demo:
    def __init__(self, app: App, fleet: Processes) -> None:
        self.app = app
        self.fleet = fleet
        self.bought: list[Purchase] = purchases.read()
        self.deadline = time.monotonic() + LIMIT_SECONDS
        self.held = InHand(set(), set())
        self.while_sending = 0

    def run(self) -> int:
        begun = time.monotonic()
        customers = sorted({p.customer for p in self.bought})
        say(
            f"{len(self.bought):,} real purchases of {len(customers):,} customers. A discount "
            "starts when a customer's total reaches a limit, so order matters."
        )
        self.prepare(customers)
        self.start_workers()
        self.produce()
        self.kill_one()
        self.stop_one()
        self.wait_until(lambda: not self.unfinished() and self.only_the_living(), "the end")
        self.fleet.close()
        say(f"All is over after {time.monotonic() - begun:.0f} s.\n")
        seen = read(self.app, self.held)
        proofs = list(claims(seen, self.bought, STATEMENTS))
        self.report(seen, proofs)
        return 0 if all(holds for _, holds in proofs) else 1

    # ------------------------------------------------------------ acts

    def prepare(self, customers: list[str]) -> None:
        self.app.create_schema()
        metadata.create_all(self.app.engine)
        with self.app.engine.begin() as conn:
            rows = [{"customer": c, "total_cents": 0, "purchases": 0} for c in customers]
            conn.execute(sa.insert(contracts), rows)

    def start_workers(self) -> None:
        """Start them all and wait until each has registered its lease."""
        for _ in range(PROCESSES):
            self.fleet.start()
        self.wait_until(lambda: self.leases() >= PROCESSES, "its start")
        say(f"{PROCESSES} worker processes run; 2 % of the purchases fail once.")

    def produce(self) -> None:
        """Send, chunk by chunk, while the workers run."""
        for start in range(0, len(self.bought), CHUNK):
            part = self.bought[start : start + CHUNK]
            with self.app.engine.begin() as conn:
                self.app.send_many(conn, PRICE, [(p.payload, p.customer) for p in part])
        with self.app.engine.begin() as conn:
            for i in range(STATEMENTS):
                address = None if i < WITHOUT_ADDRESS else f"{i} Main Street"
                payload = {"customer": f"{i:04d}", "address": address}
                self.app.send(conn, STATEMENT, payload, object_id=f"statement-{i}")
        self.while_sending = self.priced()

    def kill_one(self) -> None:
        """SIGKILL one process while it has messages in flight."""
        self.wait_until(lambda: self.priced() >= len(self.bought) // 4, "a quarter")
        victim = self.fleet.oldest()
        self.wait_until(lambda: self.holds_when_halted(victim), "a process with messages in flight")
        self.fleet.kill(victim)
        say(f"One was killed (SIGKILL) with {plural(len(self.held.msg_ids), 'message')} in flight.")

    def holds_when_halted(self, victim: str) -> bool:
        """Halt the process and read its in-flight messages; if there are none, let it continue."""
        self.fleet.halt(victim)
        self.held = self.in_hand(victim)
        if not self.held.msg_ids:
            self.fleet.go_on(victim)
        return bool(self.held.msg_ids)

    def in_hand(self, name: str) -> InHand:
        lease, message = self.app.tables.lease.c, self.app.tables.message.c
        ids = set(self.ask(sa.select(lease.name).where(lease.label == name)).scalars())
        flagged = sa.select(message.msg_id).where(
            message.status == Status.PROCESSING, message.claimed_by.in_(ids)
        )
        return InHand(ids, set(self.ask(flagged).scalars()))

    def stop_one(self) -> None:
        """SIGTERM one process in the middle of the work, with another one in its place."""
        self.wait_until(lambda: self.priced() >= len(self.bought) // 2, "half")
        leaver = self.fleet.oldest()
        self.fleet.start()
        code = self.fleet.stop(leaver)
        if code != 0:
            raise Stuck(f"a process that was stopped in order ended with exit code {code}")
        if left := len(self.in_hand(leaver).msg_ids):
            raise Stuck(
                f"a process that was stopped in order left {plural(left, 'message')} behind"
            )
        say("One was stopped in order (SIGTERM, exit code 0), another one started.")

    # ------------------------------------------------------------ looking

    def wait_until(self, reached: Callable[[], bool], what: str) -> None:
        while not reached():
            if time.monotonic() > self.deadline:
                raise Stuck(f"no {what} within {LIMIT_SECONDS:.0f} s")
            if ended := self.fleet.ended():
                raise Stuck(f"a worker process ended by itself: {ended}")
            time.sleep(LOOK_SECONDS)

    def ask(self, query: sa.Select[Any]) -> sa.Result[Any]:
        """Read without a lock: a halted worker may be the one writer."""
        with self.app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            return conn.execute(query).freeze()()

    def leases(self) -> int:
        lease = self.app.tables.lease
        count = sa.select(sa.func.count()).where(lease.c.kind == INSTANCE)
        return int(self.ask(count).scalar_one())

    def only_the_living(self) -> bool:
        """Whether all leases are those of workers that run: one that was lost is gone soon."""
        return self.leases() <= len(self.fleet.names)

    def unfinished(self) -> int:
        words = (State.NEW, State.PROCESSING, State.FAILED)
        return sum(c.count for c in self.app.ops.counts() if c.status in words)

    def priced(self) -> int:
        counts = self.app.ops.counts()
        return sum(c.count for c in counts if c.status is State.DONE and c.topic == PRICE)

    # ------------------------------------------------------------ report

    def report(self, seen: Evidence, proofs: list[tuple[str, bool]]) -> None:
        figures = self.figures(seen)
        names, values = (max(map(len, column)) for column in zip(*figures, strict=True))
        for name, value in figures:
            say(f"{name:<{names}} {value:>{values}}")
        reasons = Counter((m.error or "").split(" [")[0] for m in seen.messages if m.dead)
        for reason, count in reasons.most_common(5):
            say(f"  dead: {count} x {reason}")
        say("")
        for claim, holds in proofs:
            say(f"{PROVED if holds else BROKEN}  {claim}")

    def figures(self, seen: Evidence) -> list[tuple[str, str]]:
        done = [m for m in seen.messages if m.status == Status.DONE]
        charged = sum(p.price_cents for p in seen.prices)
        straight = sum(p.price_cents for p in purchases.straight(self.bought).values())
        listed = sum(p.cents for p in self.bought)
        return [
            ("messages", f"{len(seen.messages):,}"),
            ("priced while the producer still sent", f"{self.while_sending:,}"),
            ("done", f"{len(done):,}"),
            ("failed once, retried, then done", f"{sum(m.tries > m.crashes for m in done):,}"),
            ("recovered after the kill, then done", f"{sum(m.crashes > 0 for m in done):,}"),
            ("dead after three tries", f"{sum(m.dead for m in seen.messages):,}"),
            ("instances that priced something", f"{len({p.instance for p in seen.prices})}"),
            ("charged", _dollars(charged)),
            ("straight computation", _dollars(straight)),
            ("discount given", _dollars(listed - charged)),
        ]


def _dollars(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02d}"
