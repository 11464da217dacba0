"""Rerun and discard, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from msgworker.dialects import connecting
from msgworker.errors import ConfigError, MsgworkerError
from msgworker.message import Status, Word
from msgworker.ops.bulk import Bulk, Skip, Step, Why
from msgworker.ops.choosing import Choice, Chunk
from msgworker.store import audit, change
from msgworker.table import Tables

MOST_HEADS = 100
MOST_BEHIND = 10_000
ENDED = (Word.FAILED, Word.DEAD, Word.DONE)

Act = Callable[[Connection, list[int]], int]
"""Change locked and recorded rows in the caller's transaction; returns how many."""


def change_chunk(bulk: Bulk, choice: Choice, chunk: Chunk, act: Act) -> None:
    """The messages of a chunk, in short transactions."""
    start = 0
    while start < len(chunk.ids):
        part = chunk.ids[start : start + bulk.pace.size]
        start += len(part)
        _one_step(bulk, choice, chunk, part, act)


def _one_step(bulk: Bulk, choice: Choice, chunk: Chunk, part: list[int], act: Act) -> None:
    to_do = [i for i in part if i not in chunk.skips]
    left = [chunk.skips[i] for i in part if i in chunk.skips]

    def work(conn: Connection) -> Step:
        ids, gone = choice.lock(conn, to_do)
        late: dict[int, Skip] = {}
        if chunk.behind is not None and ids:
            late = choice.overtaken(conn, ids, chunk.behind)
            ids = [i for i in ids if i not in late]
        recorded(conn, choice.tables, bulk.op.op_id, ids, act)
        return Step(len(part), len(ids), [*left, *gone, *late.values()])

    bulk.step(part[-1], work)


def recorded(conn: Connection, t: Tables, op_id: int, ids: Sequence[int], act: Act) -> None:
    """Record rows that are locked, then change them."""
    size = t.dialect.max_ids
    for start in range(0, len(ids), size):
        part = list(ids[start : start + size])
        kept, changed = audit.record(conn, t, op_id, part), act(conn, part)
        if not kept == changed == len(part):
            raise MsgworkerError(
                f"{len(part)} messages were locked, {kept} recorded and {changed} changed; the "
                "step was rolled back. Does a trigger change rows of the table?"
            )


# ---------------------------------------------------------------- with those behind


def heads_of(choice: Choice, after: int | None = None) -> tuple[list[int], list[Skip]]:
    """The messages to rerun with all that is behind them, and those left alone."""
    heads: list[int] = []
    skips: list[Skip] = []
    for chunk in choice.chunks(after):
        heads += [i for i in chunk.ids if i not in chunk.skips]
        skips += chunk.skips.values()
        if len(heads) > MOST_HEADS:
            raise ConfigError(
                f"with_successors takes at most {MOST_HEADS} messages at a time; name fewer"
            )
    return heads, skips


def behind(choice: Choice, head: int) -> list[int]:
    """A message and those behind it that have run: what a rerun with successors would change."""
    with connecting(choice.engine) as conn:
        return _behind(conn, choice.tables, head)


def _behind(conn: Connection, t: Tables, head: int) -> list[int]:
    tail = change.tail(conn, t, head, limit=MOST_BEHIND + 1)
    over = (Status.FAILED, Status.DONE)
    return [row.msg_id for row in tail if row.status in over or row.msg_id == head]


def rerun_objects(bulk: Bulk, choice: Choice, heads: list[int], left: list[Skip]) -> None:
    """Each of the heads with all that has run behind it; `left`: those left alone, in order.

    They are booked with the next head, so that after an interruption all up to `last_id` is booked
    and nothing behind it.
    """
    waits = _not_done_here(bulk, choice, left) if bulk.op.steps else left
    covered: set[int] = set()
    for head in heads:
        if head not in covered:
            before = [skip for skip in waits if skip.msg_id < head]
            waits = waits[len(before) :]
            covered.update(_rerun_object(bulk, choice, head, before))
    if waits:
        bulk.step(waits[-1].msg_id, lambda conn: Step(len(waits), 0, waits))


def _not_done_here(bulk: Bulk, choice: Choice, left: list[Skip]) -> list[Skip]:
    """Without those that were left alone because this operation has rerun them behind a head."""
    size = choice.tables.dialect.max_ids
    ids = [skip.msg_id for skip in left]
    done: set[int] = set()
    with connecting(choice.engine) as conn:
        for start in range(0, len(ids), size):
            done |= audit.touched(conn, choice.tables, bulk.op.op_id, ids[start : start + size])
    return [skip for skip in left if skip.msg_id not in done]


def _rerun_object(bulk: Bulk, choice: Choice, head: int, before: list[Skip]) -> list[int]:
    """One message and all that has run behind it, in one transaction; returns what was set to new.

    In one, because a worker that sees half of it would run the rest out of order. `before`: booked
    with it.
    """
    done: list[int] = []

    def work(conn: Connection) -> Step:
        done.clear()
        step = _all_behind(conn, bulk.op.op_id, choice, head, done)
        return Step(len(before) + step.matched, step.changed, [*before, *step.skips])

    bulk.step(head, work)
    return done


def _all_behind(conn: Connection, op_id: int, choice: Choice, head: int, done: list[int]) -> Step:
    """Lock, look and set to new; `done` gets what was."""
    t = choice.tables
    if audit.touched(conn, t, op_id, [head]):  # as one behind another head
        return Step()
    if gone := choice.lock(conn, [head])[1]:
        return Step(1, 0, gone)
    tail = [row.msg_id for row in change.tail(conn, t, head, limit=MOST_BEHIND + 1)]
    if len(tail) > MOST_BEHIND:
        return Step(1, 0, [Skip(head, Why.TOO_LONG)])
    ids = _lock_tail(conn, t, tail, head)
    if running := change.runs_later(conn, t, [head]):
        return Step(1, 0, [Skip(head, Why.RUNS_LATER, running[head])])
    recorded(conn, t, op_id, ids, lambda c, part: rerun(c, t, part))
    done.extend(ids)
    return Step(len(ids), len(ids))


def rerun(conn: Connection, t: Tables, ids: list[int]) -> int:
    """Rerun rows that are locked, whatever they are."""
    return change.rerun(conn, t, ids, done_too=True)


def _lock_tail(conn: Connection, t: Tables, tail: list[int], head: int) -> list[int]:
    """Lock all of it, the new ones too, so that none of them is claimed meanwhile; return those
    to set to new."""
    found: list[int] = []
    for start in range(0, len(tail), t.dialect.max_ids):
        part = tail[start : start + t.dialect.max_ids]
        change.lock(conn, t, part, words=(Word.NEW,))
        ended = change.lock(conn, t, part, words=ENDED)
        away = change.given_up(conn, t, ended) - {head}
        found += [i for i in ended if i not in away]
    return found
