"""Torture of batches: processes are killed, and die of their own messages; then the verdict.

    python -m proof.crash.batches URL --seconds 60 --processes 3 --kind batch

Every message writes one row of effects in its batch. In the end: each message is done or dead, a
done one has exactly one effect, a dead one none, and the effects of an object are in its order.
With `--consume` it is one of the processes. Payloads: {"n": 17}; "fails": in so many tries it is
named by `ctx.fail`, or its handler raises ("raises": true); "crashes": its process dies in so many.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from tenacity.wait import wait_random

from msgworker import App, BatchContext, Context, Message

EFFECTS = sa.Table(
    "batch_effect",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("msg_id", sa.BigInteger(), nullable=False),
)
KINDS: dict[str, dict[str, Any]] = {"batch": {"batch": 200}, "group": {"group": 50}}
LEASE_SECONDS = 2.0
OBJECTS = 20
PEACE_SECONDS = 120.0


class Planned(RuntimeError):
    """The failure that a message asks for."""


def make_app(url: str, kind: str, lease: float = LEASE_SECONDS) -> App:
    """The App of a consumer."""
    app = App(url, lease_seconds=lease, poll_seconds=0.1)

    def fails(msg: Message[Any]) -> bool:
        if msg.payload.get("crashes", 0) > msg.error_try_times:
            os._exit(9)
        return bool(msg.payload.get("fails", 0) > msg.error_try_times)

    def one(msg: Message[Any], ctx: Context) -> None:
        ctx.connection.execute(EFFECTS.insert(), {"msg_id": msg.msg_id})
        if fails(msg):
            raise Planned(f"message {msg.msg_id}")

    def many(messages: list[Message[Any]], ctx: BatchContext) -> None:
        rows = [{"msg_id": msg.msg_id} for msg in messages]
        ctx.connection.execute(EFFECTS.insert(), rows)
        for msg in messages:
            if fails(msg):
                if msg.payload.get("raises"):
                    raise Planned(f"message {msg.msg_id}")
                ctx.fail(msg, Planned(f"message {msg.msg_id}"))

    fn = many if kind == "batch" else one
    app.add_handler("t", fn, transactional=True, wait=wait_random(0.02, 0.2), **KINDS[kind])
    return app


def payload(n: int, chance: random.Random) -> dict[str, Any]:
    """What a message does."""
    drawn = chance.random()
    if drawn < 0.02:
        return {"n": n, "fails": chance.choice((1, 2, 99)), "raises": chance.random() < 0.5}
    return {"n": n, "crashes": 1} if drawn < 0.023 else {"n": n}


class Torture:
    """Producers, processes, kills. deaths: of processes, by whatever."""

    def __init__(self, url: str, kind: str, processes: int, seed: int) -> None:
        self.url, self.kind = url, kind
        self.chance = random.Random(seed)
        self.app = make_app(url, kind)
        self.app.create_schema()
        EFFECTS.create(self.app.engine, checkfirst=True)
        self.sent = self.deaths = 0
        self.lives = [self._spawn() for _ in range(processes)]

    def run(self, seconds: float, messages: int) -> list[str]:
        """Send and kill for so long, then wait for the end; returns what is wrong."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                if self.sent < messages:
                    self._send(min(messages // 10, messages - self.sent))
                time.sleep(min(0.3, seconds / 10))
                if self.chance.random() < 0.3:
                    self.chance.choice(self.lives).kill()
                self._replace_dead()
            self._send(messages - self.sent)
            peace = time.monotonic() + PEACE_SECONDS
            while self._unfinished() and time.monotonic() < peace:
                time.sleep(0.1)
                self._replace_dead()
        finally:
            for life in self.lives:
                life.terminate()
            for life in self.lives:
                life.wait(60)
        return self.wrong()

    def wrong(self) -> list[str]:
        """Everything that breaks a rule."""
        t = self.app.tables
        c = t.cols()
        with self.app.engine.connect() as conn:
            rows = conn.execute(sa.select(c.msg_id, c.object_id, c.status)).all()
            effects = list(conn.scalars(sa.select(EFFECTS.c.msg_id).order_by(EFFECTS.c.id)))
        self.app.engine.dispose()
        return verdict([tuple(row) for row in rows], effects)

    def _send(self, count: int) -> None:
        pairs = []
        for n in range(self.sent, self.sent + count):
            name = self.chance.randrange(OBJECTS + 1)
            pairs.append((payload(n, self.chance), f"o{name}" if name < OBJECTS else None))
        with self.app.engine.begin() as conn:
            self.app.send_many(conn, "t", pairs)
        self.sent += count

    def _unfinished(self) -> int:
        t = self.app.tables
        with self.app.engine.connect() as conn:
            open_rows = sa.select(sa.func.count()).where(t.unfinished(t.cols()))
            return int(conn.scalar(open_rows) or 0)

    def _spawn(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "proof.crash.batches", self.url, "--kind", self.kind]
        return subprocess.Popen([*words, "--consume"], stderr=subprocess.DEVNULL)

    def _replace_dead(self) -> None:
        for i, life in enumerate(self.lives):
            if life.poll() is not None:
                self.deaths += 1
                self.lives[i] = self._spawn()


def verdict(rows: Sequence[tuple[Any, ...]], effects: Sequence[int]) -> list[str]:
    """What is wrong with these messages (msg_id, object, status) and effects, in their order."""
    found = [f"message {i} is left at {status}" for i, _, status in rows if status in (0, 1)]
    times: defaultdict[int, int] = defaultdict(int)
    for msg_id in effects:
        times[msg_id] += 1
    for msg_id, _, status in rows:
        if times[msg_id] != (status == 2):
            found.append(f"message {msg_id} at {status} has {times[msg_id]} effects")
    objects = {msg_id: name for msg_id, name, _ in rows if name is not None}
    last: dict[str, int] = {}
    for msg_id in effects:
        name = objects.get(msg_id)
        if name is not None:
            if last.get(name, 0) > msg_id:
                found.append(f"message {msg_id} of {name} was done after {last[name]}")
            last[name] = max(last.get(name, 0), msg_id)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="batches", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--kind", choices=list(KINDS), default="batch")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--consume", action="store_true", help="be one of the processes")
    options = parser.parse_args()
    if options.consume:
        make_app(options.url, options.kind).worker(threads=2).run(signals=True)
        return 0
    print(f"seed {options.seed}", flush=True)
    run = Torture(options.url, options.kind, options.processes, options.seed)
    wrong = run.run(options.seconds, options.messages)
    print(f"{run.sent} messages, {run.deaths} deaths, {len(wrong)} violations")
    print("\n".join(wrong[:10]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
