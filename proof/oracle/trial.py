"""A few messages, handled while the n-th statement or COMMIT of the run fails, and what operators
and producers do; then judged.

The judgement knows nothing of the error or of the database: whatever has failed, the outcome is
the same.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import sqlalchemy as sa

from msgworker import App, Context, Message
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.errors import MsgworkerError
from msgworker.ops.results import Repaired
from msgworker.store import lease
from msgworker.table.build import JOB_TABLE, LEASE, OWN, PAUSE, SCHEDULE
from tests.ready import EFFECTS
from tests.support.ops import DONE, FAILED, NEW, RUNNING, put
from tests.support.timers import timer

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


# --- What operators and producers do, while a statement fails.

Do = Callable[[App, dict[str, Any]], Any]
BY: dict[str, Any] = {"actor": "me", "reason": "why"}
OLD = datetime(2020, 1, 1, tzinfo=UTC)


def _states(app: App) -> dict[str, Any]:
    """A message or more in each state; some were held by an instance that is gone."""
    rows = (("a", DONE), ("a", FAILED), ("a", NEW), ("b", FAILED), (None, FAILED), ("d", NEW))
    ids = put(app, *rows, payload="1", created_at=OLD, finished_at=OLD)
    put(app, ("e", RUNNING), ("f", RUNNING), claimed_by="gone-1")
    put(app, ("g", RUNNING), claimed_by=None)
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "gone-1", ttl=-1.0)
        app.send(conn, "t", 1, object_id="h", unique_key="k")
        job = app.job("j", conn=conn, on_complete="over")
        app.send(conn, "t", object_id="i", job=job)
    app.ops.pause("paused", **BY)
    return {"ids": ids, "one": ids[3], "new": ids[5], "job": job.job_id}


def _schedules(app: App) -> dict[str, Any]:
    if not app.schedules:
        app.add_handler("tick", lambda msg: None)
        app.every("1h", topic="tick", name="s")
    timer(app).ended()
    return {}


def _replaced(app: App, given: dict[str, Any]) -> Any:
    with app.engine.begin() as conn:
        conn.execute(EFFECTS.insert(), {"msg_id": 1})
        app.send(conn, "t", 2, object_id="h", unique_key="k", on_duplicate="replace")
        with app.job("k", conn=conn, on_complete="over") as job:
            app.send_many(conn, "t", [(1, "x"), (2, "y", "l")], job=job)


ACTS: dict[str, tuple[Callable[[App], dict[str, Any]], Do]] = {
    "rerun": (_states, lambda app, g: app.ops.rerun(g["ids"], **BY)),
    "rerun more": (
        _states,
        lambda app, g: app.ops.rerun(g["ids"], with_successors=True, also_done=True, **BY),
    ),
    "discard": (_states, lambda app, g: app.ops.discard(g["one"], **BY)),
    "cancel": (_states, lambda app, g: app.ops.cancel(topic="t", **BY)),
    "edit": (_states, lambda app, g: app.ops.edit(g["new"], payload=[2], **BY)),
    "acknowledge": (_states, lambda app, g: app.ops.acknowledge(g["ids"], **BY)),
    "release": (_states, lambda app, g: app.ops.release("gone-1", **BY)),
    "release nobody": (_states, lambda app, g: app.ops.release_nobody(any_age=True, **BY)),
    "purge": (_states, lambda app, g: app.ops.purge("1h", dead=True, **BY)),
    "ops.send": (_states, lambda app, g: app.ops.send("t", object_id="z", **BY).op_id > 0),
    "pause": (_states, lambda app, g: app.ops.pause("t", **BY)),
    "resume": (_states, lambda app, g: app.ops.resume("paused", **BY)),
    "cancel job": (_states, lambda app, g: app.ops.cancel_job(g["job"], **BY)),
    "seal": (_states, lambda app, g: app.job(g["job"]).seal()),
    "send": (_states, _replaced),
    "run now": (_schedules, lambda app, g: app.ops.run_now("s", **BY)),
    "pause schedule": (_schedules, lambda app, g: app.ops.pause_schedule("s", **BY)),
}
IN_PARTS = ("cancel job", "purge", "release")
"""Of several transactions: one that fails leaves what is done, and the next call does the rest."""


def act(app: App, name: str, plan: Plan | None) -> tuple[bool, list[str], Any]:
    """The same of one act: what it has returned is what the tables show; where it has raised, they
    are as before or as after it, and it can be done again. The third: what was returned, and how
    they are at the end. plan: None = nothing fails."""
    _empty(app)
    prepare, do = ACTS[name]
    given, wrong, said = prepare(app), list[str](), None
    before = _standing(app)
    with nullcontext() if plan is None else plan(app) as fault:
        try:
            said = _said(do(app, given))
        except Exception as error:
            ours = isinstance(error, MsgworkerError) or trouble(error) is Trouble.AGAIN
            if not ours and name != "send":  # which is in the user's transaction
                wrong.append(f"raised {type(error)}: {error}")
            left = _standing(app)
            do(app, given)
            if left not in (before, _standing(app)) and name not in IN_PARTS:
                wrong.append(f"a half is left: {left}")
    return fault is not None and fault.raised > 0, wrong, (said, _standing(app))


def _empty(app: App) -> None:
    t = app.tables
    with app.engine.begin() as conn:
        conn.execute(sa.delete(t.lease).where(t.lease.c.kind == "instance"))
        for table in (*(one.of(t) for one in OWN if one is not LEASE), EFFECTS, t.message):
            conn.execute(sa.delete(table))


def _said(returned: Any) -> Any:
    if isinstance(returned, Repaired):
        return returned.matched, returned.changed, returned.skipped, returned.why, returned.changes
    return returned


def _standing(app: App) -> list[Any]:
    """What stands in the tables, without ids and instants."""
    t = app.tables
    m, job, one = t.cols(), JOB_TABLE.of(t).c, SCHEDULE.of(t).c
    where = (m.topic, m.object_id, m.payload, m.status, m.error_try_times, m.unique_key)
    held, sealed, over = (c.is_not(None) for c in (m.claimed_by, job.sealed_at, job.cancelled_at))
    queries = (
        sa.select(*where, held, m.last_error).order_by(m.msg_id),
        sa.select(PAUSE.of(t).c.topic).order_by(PAUSE.of(t).c.topic),
        sa.select(job.name, sealed, over).order_by(job.job_id),
        sa.select(one.paused_by),
        sa.select(EFFECTS.c.msg_id),
    )
    with app.engine.connect() as conn:
        return [[tuple(row) for row in conn.execute(query)] for query in queries]
