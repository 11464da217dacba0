"""Rerun and discard, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.dialects import connecting
from msgworker.errors import ConfigError, MsgworkerError
from msgworker.message import State, Status
from msgworker.ops.bulk import Bulk, Step
from msgworker.ops.choosing import Choice, Chunk
from msgworker.ops.results import Skip, Why
from msgworker.store.changing import audit, change
from msgworker.store.changing.change import SeenRow
from msgworker.store.looking import order
from msgworker.table import Tables

MOST_HEADS = 100
MOST_BEHIND = 10_000
NOT_DONE = (State.FAILED, State.DEAD)

Change = Callable[[Connection, list[int]], int]
"""Change locked and recorded rows in the caller's transaction; returns how many."""


def change_chunk(bulk: Bulk, choice: Choice, chunk: Chunk, act: Change) -> None:
    """Change the messages of a chunk, in short transactions."""
    start = 0
    while start < len(chunk.ids):
        part = chunk.ids[start : start + bulk.pace.size]
        start += len(part)
        _one_step(bulk, choice, chunk, part, act)


def _one_step(bulk: Bulk, choice: Choice, chunk: Chunk, part: list[int], act: Change) -> None:
    to_do = [i for i in part if i not in chunk.skips]
    left = [chunk.skips[i] for i in part if i in chunk.skips]

    def work(conn: Connection) -> Step:
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

    bulk.step(part[-1], work)


def recorded(conn: Connection, t: Tables, op_id: int, ids: Sequence[int], act: Change) -> None:
    """Record locked rows, then change them."""
    size = t.dialect.max_ids
    for start in range(0, len(ids), size):
        part = list(ids[start : start + size])
        kept, changed = audit.record(conn, t, op_id, part), act(conn, part)
        if not kept == changed == len(part):
            raise MsgworkerError(
                f"{plural(len(part), 'message')} locked, {kept} recorded and {changed} changed; "
                "the step was rolled back. Does a trigger change rows of the table?"
            )


# ---------------------------------------------------------------- with those behind


def heads_of(choice: Choice, after: int | None = None) -> tuple[list[int], list[Skip]]:
    """The messages to rerun with those behind them, and the skipped ones."""
    heads: list[int] = []
    skips: list[Skip] = []
    choice = replace(choice, chunk_size=min(choice.chunk_size, 10 * MOST_HEADS))  # no more is taken
    for chunk in choice.chunks(after):
        heads += [i for i in chunk.ids if i not in chunk.skips]
        skips += chunk.skips.values()
        if len(heads) > MOST_HEADS:
            raise ConfigError(
                f"with_successors takes at most {MOST_HEADS} messages at a time; name fewer"
            )
    return heads, skips


@dataclass(slots=True)
class Would:
    """What a rerun with successors would change.

    done: those of `ids` that are done. stay_done: how many done ones behind them stay so. skips:
    heads that would be skipped.
    """

    ids: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    stay_done: int = 0
    skips: list[Skip] = field(default_factory=list)


def would(choice: Choice, heads: list[int], *, also_done: bool) -> Would:
    """What a rerun of the heads with their successors would change now."""
    t, found = choice.tables, Would()
    with choice.clock.reading(choice.engine) as conn:
        running = order.runs_later(conn, t, heads)
        found.skips = [Skip(head, Why.RUNS_LATER, running[head]) for head in sorted(running)]
        for head in heads:
            if head in found.ids or head in running:
                continue
            choice.clock.check()
            tail = _tail(conn, t, head, None if also_done else heads)
            over = {row.msg_id for row in tail if row.status in (Status.FAILED, Status.DONE)}
            done = {row.msg_id for row in tail if row.status == Status.DONE}
            found.ids |= over - (_given_up(conn, t, sorted(over)) - {head})
            found.done |= done
            if not also_done:
                found.stay_done += order.done_behind(conn, t, head) - len(done - {head})
    return found


def _tail(conn: Connection, t: Tables, head: int, done: list[int] | None) -> list[SeenRow]:
    return order.tail(conn, t, head, done=done, limit=MOST_BEHIND + 1)


def _given_up(conn: Connection, t: Tables, ids: list[int]) -> set[int]:
    found: set[int] = set()
    for start in range(0, len(ids), t.dialect.max_ids):
        found |= change.given_up(conn, t, ids[start : start + t.dialect.max_ids])
    return found


def rerun_objects(
    bulk: Bulk, choice: Choice, heads: list[int], left: list[Skip], *, also_done: bool
) -> None:
    """Rerun each head with those behind it that are not done; `left`: skipped ones, in order.

    also_done: also the done ones behind it; else only done ones that are heads themselves.
    Skipped ones are counted with the next head, so that after an interruption all up to
    `last_id` are counted and none after it.
    """
    done_too = None if also_done else heads
    waits = _not_done_here(bulk, choice, left) if bulk.op.steps else left
    covered: set[int] = set()
    for head in heads:
        if head not in covered:
            before = [s for s in waits if s.msg_id < head and s.msg_id not in covered]
            waits = [s for s in waits if s.msg_id > head]
            covered.update(_rerun_object(bulk, choice, head, before, done_too))
    waits = [s for s in waits if s.msg_id not in covered]
    if waits:
        bulk.step(waits[-1].msg_id, lambda conn: Step(len(waits), 0, waits))


def _not_done_here(bulk: Bulk, choice: Choice, left: list[Skip]) -> list[Skip]:
    """Leave out those that were skipped because this operation has rerun them behind a head."""
    size = choice.tables.dialect.max_ids
    ids = [skip.msg_id for skip in left]
    done: set[int] = set()
    with connecting(choice.engine) as conn:
        for start in range(0, len(ids), size):
            done |= audit.touched(conn, choice.tables, bulk.op.op_id, ids[start : start + size])
    return [skip for skip in left if skip.msg_id not in done]


def _rerun_object(
    bulk: Bulk, choice: Choice, head: int, before: list[Skip], done_too: list[int] | None
) -> list[int]:
    """Rerun a message and those behind it in one transaction; returns those set to new.

    In one, because a worker that saw only a part would run the rest out of order. `before`: counted
    with it. done_too: of the done ones only these; None = all.
    """
    done: list[int] = []

    def work(conn: Connection) -> Step:
        done.clear()
        step = _all_behind(conn, bulk.op.op_id, choice, head, done_too, done)
        return Step(len(before) + step.matched, step.changed, [*before, *step.skips])

    bulk.step(head, work)
    return done


def _all_behind(
    conn: Connection,
    op_id: int,
    choice: Choice,
    head: int,
    done_too: list[int] | None,
    done: list[int],
) -> Step:
    """Lock, check and set to new; `done` collects the counts."""
    t = choice.tables
    if audit.touched(conn, t, op_id, [head]):  # already rerun behind another head
        return Step()
    if gone := choice.lock(conn, [head])[1]:
        return Step(1, 0, gone)
    tail = [row.msg_id for row in _tail(conn, t, head, done_too)]
    if len(tail) > MOST_BEHIND:
        return Step(1, 0, [Skip(head, Why.TOO_LONG)])
    ids = _lock_tail(conn, t, tail, head, done_too)
    if running := order.runs_later(conn, t, [head]):
        return Step(1, 0, [Skip(head, Why.RUNS_LATER, running[head])])
    if taken := choice.free_keys(conn, ids):  # one of them cannot run: none does
        return Step(1, 0, [taken.get(head) or next(iter(taken.values()))])
    recorded(conn, t, op_id, ids, lambda c, part: rerun(c, t, part))
    done.extend(ids)
    return Step(len(ids), len(ids))


def rerun(conn: Connection, t: Tables, ids: list[int]) -> int:
    """Rerun locked rows in any state."""
    return change.rerun(conn, t, ids, done_too=True)


def _lock_tail(
    conn: Connection, t: Tables, tail: list[int], head: int, done_too: list[int] | None
) -> list[int]:
    """Lock all of them, also new ones, so that none is claimed meanwhile; return those to set to
    new."""
    found: list[int] = []
    for start in range(0, len(tail), t.dialect.max_ids):
        part = tail[start : start + t.dialect.max_ids]
        change.lock(conn, t, part, words=(State.NEW,))
        if done_too is None:
            ended = change.lock(conn, t, part, words=(*NOT_DONE, State.DONE))
        else:  # one that ran when the tail was read may have ended since
            ended = change.lock(conn, t, part, words=NOT_DONE)
            named = [i for i in part if i in done_too]
            ended = sorted(ended + change.lock(conn, t, named, words=(State.DONE,)))
        away = change.given_up(conn, t, ended) - {head}
        found += [i for i in ended if i not in away]
    return found
