"""The demonstration: real purchases through several processes, one of them killed; then the proof.

Everything happens in a temporary folder on embedded SQLite and is gone afterwards.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from msgworker import App
from msgworker.demo import discount, purchases
from msgworker.demo.contract import STATEMENT, TOPIC, contracts, make_app, metadata, prices
from msgworker.demo.purchases import Purchase
from msgworker.message import Status, Word

LEASE_SECONDS = 4.0
WITHOUT_ADDRESS = 7
LIMIT_SECONDS = 110.0


def run(*, processes: int = 3, kill: bool = True, out: TextIO | None = None) -> int:
    """Run the demonstration; 0 if every proof holds, else 1."""
    console = Console(file=out or sys.stdout, highlight=False)
    with tempfile.TemporaryDirectory(prefix="msgworker-demo-") as folder:
        show = _Demo(console, f"sqlite:///{Path(folder) / 'demo.db'}", processes, kill)
        try:
            return show.run()
        finally:
            show.end()


class _Demo:
    def __init__(self, console: Console, url: str, processes: int, kill: bool) -> None:
        self.console = console
        self.url = url
        self.processes = processes
        self.kill = kill
        self.workers: list[subprocess.Popen[bytes]] = []
        self.started = 0
        self.killed = 0
        self.app: App = make_app(url, lease_seconds=LEASE_SECONDS)
        self.list: list[Purchase] = purchases.read()

    def run(self) -> int:
        begun = time.monotonic()
        self.app.create_schema()
        metadata.create_all(self.app.engine)
        customers = {p.customer for p in self.list}
        self.console.print(
            f"{len(self.list):,} real purchases of {len(customers):,} customers; a discount starts "
            "when a customer's total reaches a limit, so order matters."
        )
        for _ in range(self.processes):
            self.start_worker()
        self.produce()
        self.disturb()
        self.wait_for_the_end()
        self.end()
        self.console.print(f"done in {time.monotonic() - begun:.0f} s\n")
        return self.prove()

    def start_worker(self) -> None:
        command = [sys.executable, "-m", "msgworker.demo.worker", self.url, str(LEASE_SECONDS)]
        self.workers.append(subprocess.Popen(command))
        self.started += 1

    def produce(self) -> None:
        """Send while the workers are at it: a chunk of purchases, then a few statements."""
        size = 500
        for start in range(0, len(self.list), size):
            part = self.list[start : start + size]
            with self.app.engine.begin() as conn:
                self.app.send_many(conn, TOPIC, [(p.payload, p.customer) for p in part])
        with self.app.engine.begin() as conn:
            for i in range(100):
                address = None if i < WITHOUT_ADDRESS else f"{i} Main Street"
                payload = {"customer": f"{i:04d}", "address": address}
                self.app.send(conn, STATEMENT, payload, object_id=f"statement-{i}")
        self.console.print(f"{self.started} worker processes; about 2 % of the handlers fail once")

    def disturb(self) -> None:
        """kill -9 one process in the middle of its work, stop another one in order."""
        self.wait_until(lambda: self.priced() > len(self.list) // 4, "a quarter")
        if self.kill:
            victim = self.workers.pop(0)
            victim.kill()
            victim.wait()
            self.killed = 1
            self.console.print("one process killed (SIGKILL) in the middle of its work")
        self.wait_until(lambda: self.priced() > len(self.list) // 2, "half")
        if len(self.workers) > 1:
            other = self.workers.pop(0)
            other.send_signal(signal.SIGTERM)
            code = other.wait(30)
            self.console.print(f"one process stopped in order (SIGTERM, exit code {code})")
            self.start_worker()
            self.console.print("and one started in its place")

    def wait_for_the_end(self) -> None:
        def left() -> int:
            unfinished = (Word.NEW, Word.PROCESSING, Word.FAILED)
            return sum(c.count for c in self.app.ops.counts() if c.status in unfinished)

        self.wait_until(lambda: left() == 0, "all")

    def wait_until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not reached():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the demonstration did not come to {what}")
            if not any(worker.poll() is None for worker in self.workers):
                raise RuntimeError("all worker processes have ended")
            time.sleep(0.1)

    def priced(self) -> int:
        return sum(
            c.count for c in self.app.ops.counts() if c.status is Word.DONE and c.topic == TOPIC
        )

    def end(self) -> None:
        """Stop the worker processes."""
        for worker in self.workers:
            with suppress(ProcessLookupError):
                worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self.workers.clear()

    # ------------------------------------------------------------ proof

    def prove(self) -> int:
        wanted = discount.straight(self.list)
        with self.app.engine.connect() as conn:
            rows = conn.execute(sa.select(prices)).all()
            totals = dict(
                conn.execute(sa.select(contracts.c.customer, contracts.c.total_cents)).all()
            )
            failed_once, recovered = self.detours(conn)
        counts = self.app.ops.counts()
        done = sum(c.count for c in counts if c.status is Word.DONE)
        dead = self.app.ops.find(status="dead", limit=100)
        by_customer: dict[str, list[tuple[int, int]]] = {}
        for row in rows:
            by_customer.setdefault(row.customer, []).append((row.place, row.number))
        in_order = all(
            [n for _, n in sorted(pairs)] == sorted(n for _, n in pairs)
            and [place for place, _ in sorted(pairs)] == list(range(1, len(pairs) + 1))
            for pairs in by_customer.values()
        )
        same = {r.number: r.price_cents for r in rows} == {
            n: p.price_cents for n, p in wanted.items()
        }
        spent: dict[str, int] = {}
        for p in self.list:
            spent[p.customer] = spent.get(p.customer, 0) + p.cents
        charged = sum(r.price_cents for r in rows)
        straight = sum(p.price_cents for p in wanted.values())
        proofs = [
            ("every message done or dead", done + len(dead) == len(self.list) + 100),
            ("every purchase priced exactly once", len(rows) == len(self.list)),
            ("order kept for every customer", in_order),
            ("every price equal to the straight computation", same),
            ("every total equal to the cent", totals == spent and charged == straight),
            ("dead only what always fails", len(dead) == WITHOUT_ADDRESS),
        ]
        figures = [
            ("messages", f"{len(self.list) + 100:,}"),
            ("done", f"{done:,}"),
            ("failed once, then done", f"{failed_once:,}"),
            ("recovered from a dead process, then done", f"{recovered:,}"),
            ("dead after three tries", f"{len(dead)}"),
            ("processes started / killed", f"{self.started} / {self.killed}"),
            ("instances that priced something", f"{len({r.instance for r in rows})}"),
            ("charged", f"${charged / 100:,.2f}"),
            ("straight computation", f"${straight / 100:,.2f}"),
            ("discount given", f"${(sum(spent.values()) - charged) / 100:,.2f}"),
        ]
        self.report(figures, proofs, dead[0].last_error if dead else None)
        return 0 if all(holds for _, holds in proofs) else 1

    def detours(self, conn: sa.Connection) -> tuple[int, int]:
        """How many done messages had failed before, and how many were in a crash."""
        c = self.app.tables.message.c
        done = sa.select(sa.func.count()).where(c.status == Status.DONE, c.topic == TOPIC)
        failed = conn.scalar(done.where(c.error_try_times > c.crash_times))
        crashed = conn.scalar(done.where(c.crash_times > 0))
        return failed or 0, crashed or 0

    def report(
        self, figures: list[tuple[str, str]], proofs: list[tuple[str, bool]], example: str | None
    ) -> None:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in figures:
            table.add_row(name, value)
        self.console.print(table)
        if example:
            self.console.print(f"a dead one says: {example}")
        self.console.print()
        for text, holds in proofs:
            mark = "[green]proved[/]" if holds else "[bold red]BROKEN[/]"
            self.console.print(f"{mark}  {text}")
