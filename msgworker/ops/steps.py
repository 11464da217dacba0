"""The steps of a rerun, a discard and a purge."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.counted import plural
from msgworker.db import Trouble, connecting, reason_of, trouble, writing
from msgworker.errors import SchemaError, TookTooLong
from msgworker.message import State, Status
from msgworker.ops.operation import Bulk, Step, TooMany, Unchanged
from msgworker.ops.results import Skip, Skips, Why
from msgworker.ops.selection import CHUNK, Choice, Chunk
from msgworker.queries import order
from msgworker.store import audit, change, history
from msgworker.store import purge as store
from msgworker.store.change import SeenRow
from msgworker.store.purge import Archive
from msgworker.table import Tables

# --- Rerun and discard, step by step.

MOST_BEHIND = 10_000
"""Messages of several objects that one transaction reruns; those of one object, all of them."""
NOT_DONE = (State.FAILED, State.DEAD)

V = TypeVar("V")
Change = Callable[[Connection, list[int]], int]
"""Change locked and recorded rows in the caller's transaction; returns how many."""


def change_chunk(bulk: Bulk, choice: Choice, chunk: Chunk, act: Change) -> None:
    """Change the messages of a chunk, in short transactions."""

    def work(conn: Connection, part: list[int]) -> Step:
        to_do = [i for i in part if i not in chunk.skips]
        left = [chunk.skips[i] for i in part if i in chunk.skips]
        ids, gone = choice.lock(conn, to_do)
        late: dict[int, Skip] = {}
        if chunk.behind is not None and ids:
            late = choice.overtaken(conn, ids, chunk.behind)
            ids = [i for i in ids if i not in late]
        if choice.key_taken is not None and (taken := choice.free_keys(conn, ids)):
            late |= taken
            ids = [i for i in ids if i not in taken]
        recorded(conn, choice.tables, bulk.op.op_id, ids, act)
        return Step(len(part), len(ids), [*left, *gone, *late.values()])

    bulk.over(chunk.ids, work)


def recorded(conn: Connection, t: Tables, op_id: int, ids: Sequence[int], act: Change) -> None:
    """Record locked rows, then change them."""
    size = t.dialect.max_ids
    for start in range(0, len(ids), size):
        part = list(ids[start : start + size])
        kept, changed = audit.record(conn, t, op_id, part), act(conn, part)
        if not kept == changed == len(part):
            raise Unchanged(
                f"{plural(len(part), 'message')} locked, {kept} recorded and {changed} changed; "
                "the step was rolled back. Does a trigger change rows of the table?"
            )


# ---------------------------------------------------------------- with those behind


@dataclass(slots=True)
class Tails:
    """Chosen messages, and what stood behind them when it was read.

    first: of each chosen one, the lowest chosen one of its object. rows: under that one, those of
    the object behind it, by msg_id; done ones only if they may be rerun. stay_done: how many done
    ones behind them stay so; complete: those were all counted.
    """

    first: dict[int, int] = field(default_factory=dict)
    rows: dict[int, list[SeenRow]] = field(default_factory=dict)
    stay_done: int = 0
    complete: bool = True

    @classmethod
    def of(cls, choice: Choice, chunk: Chunk, *, also_done: bool, counts: bool = False) -> Tails:
        """Those of a chunk. counts: count those that stay done. The done ones stand in no index of
        ours: the walk is ended after ORDER_SECONDS, and raises TookTooLong if it has to be known
        which they are."""
        found, t = cls(), choice.tables
        heads = [i for i in chunk.ids if i not in chunk.skips]
        parts = [heads[i : i + t.dialect.max_ids] for i in range(0, len(heads), t.dialect.max_ids)]
        with choice.clock.reading(choice.engine) as conn:
            for part in parts:
                choice.clock.check()
                found.first |= order.lowest(conn, t, part)
                found.rows |= order.not_done_behind(conn, t, part)
        named = State.DONE in choice.words
        if also_done or named or counts:
            try:
                found._add_done(choice, parts, also_done=also_done, named=named)
            except TookTooLong as error:
                if choice.clock.seconds is not None:
                    raise
                if also_done or named:
                    raise TookTooLong(error.seconds, choice.done_by_object(heads)) from error
                found.complete = False
        return found

    def _add_done(
        self, choice: Choice, parts: list[list[int]], *, also_done: bool, named: bool
    ) -> None:
        t, clock = choice.tables, choice.in_order_seconds
        with clock.reading(choice.engine) as conn:
            for part in parts:
                clock.check()
                lows = sorted({self.first[i] for i in part})
                for low, rows in order.done_behind(conn, t, lows).items():
                    again = rows if also_done else _named(conn, choice, rows) if named else []
                    self.stay_done += len(rows) - len(again)
                    self.rows[low] = sorted([*self.rows.get(low, []), *again])

    def behind(self, head: int) -> list[SeenRow]:
        """What stands behind a chosen message."""
        rows = self.rows.get(self.first[head], [])
        return rows[bisect_right(rows, head, key=attrgetter("msg_id")) :]


def _named(conn: Connection, choice: Choice, rows: list[SeenRow]) -> list[SeenRow]:
    """Those of the done messages that are chosen themselves."""
    if choice.ids is not None:
        have = set(choice.ids)
        return [row for row in rows if row.msg_id in have]
    assert choice.wanted is not None
    ids = [row.msg_id for row in rows]
    have = set(change.matching(conn, choice.tables, ids, words=(State.DONE,), wanted=choice.wanted))
    return [row for row in rows if row.msg_id in have]


@dataclass(slots=True)
class Would:
    """What a rerun with successors would change.

    ids: messages; done: those of them that are done. matched: those, and the chosen ones that would
    be skipped. stay_done: how many done ones behind them stay so; complete: those were all counted.
    """

    ids: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    stay_done: int = 0
    complete: bool = True
    skips: Skips = field(default_factory=Skips)

    @property
    def matched(self) -> int:
        return len(self.ids) + self.skips.count


def would(choice: Choice, *, also_done: bool) -> Would:
    """What a rerun of the chosen messages with their successors would change now."""
    t, found = choice.tables, Would()
    for chunk in choice.chunks():
        tails = Tails.of(choice, chunk, also_done=also_done, counts=True)
        found.stay_done += tails.stay_done
        found.complete &= tails.complete
        heads = list(tails.first)
        with choice.clock.reading(choice.engine) as conn:
            running = _by_parts(t, heads, partial(order.runs_later, conn, t))
            states = _by_parts(t, heads, partial(change.states, conn, t))
            behind = {row.msg_id for rows in tails.rows.values() for row in rows}
            away = _by_parts(t, sorted(behind), partial(_given_up, conn, t))
        for head in heads:
            if head in found.ids:
                continue
            if head in running:
                found.skips.add([Skip(head, Why.RUNS_LATER, running[head])])
                continue
            rows = [states[head]] if head in states else []
            rows += [row for row in tails.behind(head) if row.msg_id not in away]
            over = [row for row in rows if row.status in (Status.FAILED, Status.DONE)]
            found.ids.update(row.msg_id for row in over)
            found.done.update(row.msg_id for row in over if row.status == Status.DONE)
        found.skips.add(skip for i, skip in chunk.skips.items() if i not in found.ids)
    return found


def _by_parts(t: Tables, ids: list[int], look: Callable[[list[int]], dict[int, V]]) -> dict[int, V]:
    found: dict[int, V] = {}
    for start in range(0, len(ids), t.dialect.max_ids):
        found |= look(ids[start : start + t.dialect.max_ids])
    return found


def _given_up(conn: Connection, t: Tables, ids: list[int]) -> dict[int, bool]:
    return dict.fromkeys(change.given_up(conn, t, ids), True)


def rerun_with_behind(
    bulk: Bulk, choice: Choice, chunk: Chunk, tails: Tails, *, also_done: bool
) -> None:
    """Rerun each chosen message of a chunk with those behind it that are not done: those of one
    object in one transaction, because a worker that saw only a part would run the rest out of
    order.

    also_done: also the done ones behind it; else only done ones that are chosen themselves.
    """
    with_done = also_done or State.DONE in choice.words

    def work(conn: Connection, part: list[int]) -> Step:
        t = choice.tables
        before = audit.touched(conn, t, bulk.op.op_id, part)  # already rerun behind another one
        heads, gone = choice.lock(conn, [i for i in part if i in tails.first and i not in before])
        behind = {head: [row.msg_id for row in tails.behind(head)] for head in heads}
        if len(part) > 1 and sum(map(len, behind.values())) > MOST_BEHIND:
            raise TooMany
        ended = _lock_tail(conn, t, sorted({*heads, *chain(*behind.values())}), heads, with_done)
        running = order.runs_later(conn, t, heads)
        skips = [Skip(head, Why.RUNS_LATER, running[head]) for head in heads if head in running]
        chosen = [head for head in heads if head not in running]
        again = {i for head in chosen for i in (head, *behind[head]) if i in ended}
        taken = _by_parts(t, sorted(again), partial(choice.free_keys, conn))
        ids: set[int] = set()
        for head in chosen:
            if head in ids:
                continue
            own = {i for i in (head, *behind[head]) if i in again}
            if cannot := sorted(own & taken.keys()):  # one of them cannot run: none does
                skips.append(taken.get(head) or taken[cannot[0]])
            else:
                ids |= own
        recorded(conn, t, bulk.op.op_id, sorted(ids), lambda c, some: rerun(c, t, some))
        known = ids | before
        skips += [chunk.skips[i] for i in part if i in chunk.skips and i not in known]
        skips += [skip for skip in gone if skip.msg_id not in known]
        return Step(len(ids) + len(skips), len(ids), skips)

    bulk.over(chunk.ids, work)


def rerun(conn: Connection, t: Tables, ids: list[int]) -> int:
    """Rerun locked rows in any state."""
    return change.rerun(conn, t, ids, done_too=True)


def _lock_tail(
    conn: Connection, t: Tables, ids: list[int], heads: list[int], done_too: bool
) -> set[int]:
    """Lock all of them, also new ones, so that none is claimed meanwhile; return those to set to
    new."""
    found: set[int] = set()
    for start in range(0, len(ids), t.dialect.max_ids):
        part = ids[start : start + t.dialect.max_ids]
        change.lock(conn, t, part, words=(State.NEW,))
        ended = change.lock(conn, t, part, words=(*NOT_DONE, State.DONE) if done_too else NOT_DONE)
        found.update(ended)
        found -= change.given_up(conn, t, ended) - set(heads)
    return found


# --- Purge: delete finished rows older than an instant, in short transactions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """What to purge: finished before this instant; dead: also dead messages; topic: only this."""

    before: datetime
    dead: bool = False
    topic: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"before": self.before, "dead": self.dead, "topic": self.topic}


def needs_age(t: Tables) -> None:
    """Raise SchemaError if the table cannot say how old a message is."""
    if not store.has_age(t):
        raise SchemaError(
            f"table {t.spec.name} has neither finished_at nor created_at, so the age of its "
            "messages is unknown. Add one of them, or delete by a rule of your own"
        )


def before_of(engine: sa.Engine, age: float | datetime) -> datetime:
    """The instant of an age, by the database's clock."""
    if isinstance(age, datetime):
        return age
    with connecting(engine) as conn:
        return store.cutoff(conn, age)


def open_archive(engine: sa.Engine, t: Tables, name: str | None) -> Archive | None:
    """The archive table, created if necessary; raises SchemaError if it cannot be used."""
    if name is None:
        return None
    try:
        with connecting(engine) as conn:
            return store.open_archive(conn, t, name)
    except DBAPIError as error:
        if trouble(error) is Trouble.LOST:
            raise
        raise SchemaError(f"the archive table {name} cannot be used: {reason_of(error)}") from error


def purge_all(bulk: Bulk, engine: sa.Engine, t: Tables, old: Old, into: Archive | None) -> None:
    """Purge all messages that are old enough, by msg_id, from the last step of the operation on."""
    with connecting(engine) as conn:
        beside = store.beside(conn, t)

    def work(conn: Connection, part: list[int]) -> Step:
        ids = store.lock(conn, t, part, **old.options)
        gone = sorted(set(part) - set(ids))
        if ids:
            _take_away(conn, t, ids, into, beside)
        return Step(len(part), len(ids), [Skip(i, Why.CHANGED) for i in gone])

    more = True
    while more:
        with connecting(engine) as conn:
            ids = store.chunk(conn, t, **old.options, after=bulk.op.last_id, limit=CHUNK)
        more = len(ids) == CHUNK
        bulk.over(ids, work)


def forget_history(engine: sa.Engine, t: Tables, keep_seconds: float) -> None:
    """Delete what is older of the history for charts, an hour of it in a transaction. What cannot
    be deleted now is left to the instances."""
    more = history.is_there(t)
    try:
        while more:
            with writing(engine) as conn:
                more = bool(history.forget(conn, t, keep_seconds))
    except DBAPIError as error:
        if trouble(error) not in (Trouble.AGAIN, Trouble.REFUSED):
            raise


def _take_away(
    conn: Connection, t: Tables, ids: list[int], into: Archive | None, beside: list[sa.Table]
) -> None:
    kept = len(ids) if into is None else store.archive(conn, t, into, ids)
    deleted = store.delete(conn, t, ids, beside)
    if not kept == deleted == len(ids):
        raise Unchanged(
            f"{plural(len(ids), 'message')} locked, {kept} kept and {deleted} deleted; the step "
            "was rolled back. Does a trigger change rows of the table?"
        )
