"""A few messages, handled while the n-th statement or COMMIT of the run fails; then judged.

The judgement knows nothing of the error or of the database: whatever has failed, the outcome is
the same.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import sqlalchemy as sa

from msgworker import App, Context, Message
from msgworker.db import Trouble, trouble
from tests.ready import EFFECTS

Kind = Literal["plain", "transactional", "failing", "fan-out", "group", "chain"]
KINDS: tuple[Kind, ...] = ("plain", "transactional", "failing", "fan-out", "group", "chain")
WITH_EFFECT = ("transactional", "group")
ITEMS = 3


class Planned(Protocol):
    raised: int


Plan = Callable[[App], AbstractContextManager[Planned]]
"""What lets one statement of an App fail, for as long as the block lasts."""


@dataclass
class Seen:
    """What handlers have done. overlaps: objects of which two messages ran at once."""

    runs: Counter[int] = field(default_factory=Counter)
    order: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    overlaps: list[str] = field(default_factory=list)
    running: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begins(self, msg: Message[Any]) -> None:
        with self.lock:
            self.running[str(msg.object_id)] += 1
            if self.running[str(msg.object_id)] > 1:
                self.overlaps.append(str(msg.object_id))
            self.runs[msg.msg_id] += 1
            if msg.msg_id not in self.order[str(msg.object_id)]:
                self.order[str(msg.object_id)].append(msg.msg_id)

    def ends(self, msg: Message[Any]) -> None:
        with self.lock:
            self.running[str(msg.object_id)] -= 1


def attempt(url: str, kind: Kind, plan: Plan) -> tuple[bool, list[str]]:
    """Whether the statement was reached, and what is wrong afterwards."""
    app, seen = App(url, backoff_seconds=0, poll_seconds=0.05), Seen()
    try:
        _handle(app, kind, seen)
        with app.engine.begin() as conn:
            conn.execute(sa.delete(EFFECTS))
            sent = [app.send(conn, "t", payload, object_id=one) for payload, one in _messages(kind)]
        wrong = []
        with plan(app) as fault:
            try:
                report = app.drain(threads=2, linger=3, retry_linger=10)
            except Exception as error:  # of a start, as on every database
                if seen.runs or trouble(error) is Trouble.OTHER:
                    wrong.append(f"drain has raised {type(error)}: {error}")
                report = None
        report = report or app.drain(threads=2, linger=3, retry_linger=10)
        if report.left:
            wrong.append(f"{report.left} are left")
        return fault.raised > 0, wrong + _judged(app, kind, seen, sent)
    finally:
        app.engine.dispose()


def _messages(kind: Kind) -> list[tuple[dict[str, int], str]]:
    """Payload and object. fails: so many tries."""
    if kind == "fan-out":
        return [({"fails": 0}, "a"), ({"fails": 0}, "a")]
    fails = {1: 1, 5: 9} if kind == "failing" else {}
    return [({"fails": fails.get(number, 0)}, "abc"[number % 3]) for number in range(6)]


def _handle(app: App, kind: Kind, seen: Seen) -> None:
    def act(number: int, conn: sa.Connection) -> None:
        conn.execute(EFFECTS.insert(), {"msg_id": number})

    options: dict[str, Any] = {"max_tries": 2, "transactional": kind in WITH_EFFECT}
    if kind == "group":
        options["group"] = 3
    if kind == "chain":
        options["on_done"] = "next"
        app.add_handler("next", lambda msg: seen.runs.update([msg.msg_id]), when_done="delete")

    @app.handler("t", **options)
    def handle(msg: Message[dict[str, int]], ctx: Context) -> None:
        seen.begins(msg)
        try:
            if kind in WITH_EFFECT:
                act(msg.msg_id, ctx.connection)
            if kind == "fan-out":
                numbers = [msg.msg_id * 100 + item for item in range(ITEMS)]
                ctx.fan_out(act, numbers, threads=2, transactional_items=True).raise_for_failed()
            if seen.runs[msg.msg_id] <= msg.payload["fails"]:
                raise ValueError("as asked")
        finally:
            seen.ends(msg)


def _judged(app: App, kind: Kind, seen: Seen, sent: list[Any]) -> list[str]:
    t, wrong = app.tables.message, []
    columns = (t.c.msg_id, t.c.status, t.c.error_try_times, t.c.claimed_by, t.c.object_id)
    with app.engine.connect() as conn:
        found = {
            row[0]: row[1:] for row in conn.execute(sa.select(*columns).where(t.c.msg_id.in_(sent)))
        }
        effects = Counter(conn.scalars(sa.select(EFFECTS.c.msg_id)))
    for msg_id, (payload, object_id) in zip(sent, _messages(kind), strict=True):
        fails = payload["fails"]
        # Dead is a message with as many tries as the table allows, whatever its handler does.
        wanted = (-1, 3, None, object_id) if fails > 1 else (2, fails, None, object_id)
        if found[msg_id] != wanted:
            wrong.append(f"{msg_id} is {found[msg_id]}, not {wanted}")
        runs = min(fails + 1, 2)
        if kind in ("plain", "failing", "chain") and seen.runs[msg_id] != runs:
            wrong.append(f"{msg_id} has run {seen.runs[msg_id]} times, not {runs}")
        if seen.runs[msg_id] < runs:
            wrong.append(f"{msg_id} has not run")
    if kind in WITH_EFFECT and effects != Counter(sent):
        wrong.append(f"effects: {effects}")
    if kind == "fan-out" and effects != Counter(m * 100 + i for m in sent for i in range(ITEMS)):
        wrong.append(f"effects of items: {effects}")
    if kind == "chain" and sorted(seen.runs.values()) != [1] * 2 * len(sent):
        wrong.append(f"what follows has run {sorted(seen.runs.values())} times")
    wrong += [f"two of {one} at once" for one in seen.overlaps]
    wrong += [f"{one}: {ids}" for one, ids in seen.order.items() if ids != sorted(ids)]
    return wrong
