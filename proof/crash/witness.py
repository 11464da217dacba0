"""Make a consumer process write down what it does, and die where a message says so.

The product is wrapped from outside, in the consumer program only. The one rule: an event is written
after what it tells has been committed and before anything can follow from it, and `since` was taken
before the deciding statement was sent (proof/history.py).

Crash points stand in the message itself: {"crash": POINT, "crashes": N} ends the process at that
point in its first N tries. In claims and in settles of plain messages PostgreSQL has one statement
that commits by itself, so "in-claim" and "in-settle" are before the commit only where there is a
transaction.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any

from msgworker.errors import Reject
from msgworker.instance.claiming.claimer import Claimer
from msgworker.instance.claiming.finder import Finder
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.running.call import Caller
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.settling.settler import Settler
from msgworker.instance.settling.writer import Writer
from msgworker.message import Message, Outcome, Settled
from msgworker.store import claim, lease, recover, settle, tries
from proof.crash import points
from proof.crash.batch_witness import watch_batches
from proof.crash.points import (
    AFTER_CLAIM,
    AFTER_EFFECT,
    AFTER_SETTLE,
    FREEZE,
    IN_CLAIM,
    IN_HANDLER,
    IN_SETTLE,
    die_at,
    die_if,
    now,
    now_in_settle,
    wants,
)
from proof.history import Kind, Recorder
from proof.history import Outcome as Told


class Witness:
    """Wraps the product's classes in this process; one for all its instances."""

    def __init__(self, recorder: Recorder, *, immune: bool = False) -> None:
        """immune: this process dies at no point."""
        points.immune[:] = [True] if immune else []
        self._tell = recorder
        self._run_read_at: dict[tuple[str, int], float] = {}
        self._held: set[tuple[str, int]] = set()

    def install(self) -> None:
        """From now on everything is written down."""
        self._watch_claims()
        self._watch_handlers()
        self._watch_settles()
        self._watch_recovery()
        watch_batches(self)

    # ------------------------------------------------------------ claims

    def _watch_claims(self) -> None:
        look, flag, read_runs = Finder._look_by, Claimer._flag_once, Claimer._read_some

        def watched_look(self: Finder, *args: Any, **kw: Any) -> Any:
            now.looked_at = witness._tell.now()
            return look(self, *args, **kw)

        def watched_flag(
            self: Claimer, limit: str | None, candidates: Any, me: str, **how: Any
        ) -> Any:
            rows, tried = flag(self, limit, candidates, me, **how)
            flagged(self, rows, me)
            return rows, tried

        def flagged(self: Claimer, rows: Any, me: str) -> None:
            for row in rows:
                die_at(AFTER_CLAIM, row.payload, row.tries + 1)
                if wants(FREEZE, row.payload, row.tries + 1):
                    with (
                        self._setup.turns or contextlib.nullcontext()
                    ):  # no other thread is writing
                        os.kill(os.getpid(), signal.SIGSTOP)
                witness._claimed(me, row, now.looked_at)

        def watched_read_runs(self: Claimer, lanes: Sequence[Lane], *args: Any) -> bool:
            since = witness._tell.now()
            readable = read_runs(self, lanes, *args)
            for lane in lanes:
                for row in lane.rows[1:]:
                    witness._run_read_at[lane.owner, row[0]] = since
            return readable

        def watched_store_flag(*args: Any, **kw: Any) -> Any:
            rows = store_flag(*args, **kw)
            for row in rows:
                die_at(IN_CLAIM, row.payload, row.tries + 1)
            return rows

        witness = self
        store_flag = claim.flag
        claim.flag = watched_store_flag
        Finder._look_by = watched_look  # type: ignore[method-assign]
        Claimer._flag_once = watched_flag  # type: ignore[method-assign]
        Claimer._read_some = watched_read_runs  # type: ignore[method-assign]

    def _claimed(self, me: str, row: Any, since: float) -> None:
        self._held.add((me, row.msg_id))
        self._tell.record(
            Kind.CLAIMED, row.msg_id, row.object_id, instance=me, attempt=row.tries + 1, since=since
        )

    # ------------------------------------------------------------ handlers

    def _watch_handlers(self) -> None:
        call, transactional = Caller.call, Caller._transactional
        committing, was_committed = Caller._settle, Caller._was_committed

        def watched_call(
            self: Caller, handler: Any, running: Any, msg: Message[Any], context: Any
        ) -> Any:
            if getattr(now, "in_batch", False):  # who starts and ends is told in batch_witness.py
                return mortal_call(self, handler, running, msg, context)
            facts: tuple[Any, ...] = (msg.msg_id, msg.object_id)
            me = context.instance_id
            if not getattr(now, "again", False):  # the same claim may run its handler again
                witness._tell.record(Kind.STARTED, *facts, instance=me)
            now.again = handler.transactional
            detail = "raised"
            try:
                die_at(IN_HANDLER, msg.payload, context.attempt)
                value = call(self, handler, running, msg, context)
                detail = "returned"
            except Reject:
                detail = "rejected"
                raise
            finally:
                witness._tell.record(Kind.ENDED, *facts, instance=me, detail=detail)
            die_at(AFTER_EFFECT, msg.payload, context.attempt)
            return value

        def mortal_call(self: Caller, handler: Any, running: Any, asked: Any, context: Any) -> Any:
            messages = asked if isinstance(asked, list) else [asked]
            for msg in messages:
                die_at(IN_HANDLER, msg.payload, msg.error_try_times + 1)
            value = call(self, handler, running, asked, context)
            for msg in messages:
                die_at(AFTER_EFFECT, msg.payload, msg.error_try_times + 1)
            return value

        def watched_settle(self: Caller, conn: Any, lane: Lane, *args: Any) -> Any:
            now.sent_at = witness._tell.now()
            fate = committing(self, conn, lane, *args)
            die_at(IN_SETTLE, lane.row.payload, lane.row.tries + 1)
            return fate

        def watched_was_committed(self: Caller, lane: Lane, *args: Any) -> bool:
            found = was_committed(self, lane, *args)
            now.guessed = found and lane.settled is not Settled.ADVANCED
            return found

        def watched_transactional(self: Caller, lane: Lane, *args: Any) -> Any:
            now.again = now.guessed = False
            try:
                return transactional(self, lane, *args)
            finally:
                now.again = False
                if (fate := lane.settled) is not None:
                    die_at(AFTER_SETTLE, lane.row.payload, lane.row.tries + 1)
                    witness._settled(lane, fate, now.sent_at, guessed=now.guessed)

        witness = self
        Caller.call = watched_call  # type: ignore[method-assign]
        Caller._settle = watched_settle  # type: ignore[method-assign]
        Caller._was_committed = watched_was_committed  # type: ignore[method-assign]
        Caller._transactional = watched_transactional  # type: ignore[method-assign]

    # ------------------------------------------------------------ settles

    def _watch_settles(self) -> None:
        write, look, lost = Writer.write, Writer._look, Settler.drop_lost
        batch, each = settle.settle, settle.settle_one

        def watched_write(self: Writer, lanes: dict[int, Lane], *args: Any) -> Any:
            since = witness._tell.now()
            now.guesses = set()
            became = write(self, lanes, *args)
            for msg_id, lane in lanes.items():
                die_at(AFTER_SETTLE, lane.row.payload, lane.row.tries + 1)
                if became.get(msg_id, Settled.LOST) is not Settled.LOST:
                    guessed = msg_id in now.guesses
                    witness._settled(lane, became[msg_id], since, guessed=guessed)
            return became

        def watched_look(self: Writer, lanes: dict[int, Lane], *args: Any) -> dict[int, Settled]:
            answers = look(self, lanes, *args)
            now.guesses |= {i for i, fate in answers.items() if fate is Settled.ENDED}
            return answers

        def watched_lost(self: Settler, lane: Lane) -> None:
            witness._told(lane, Told.LOST, None)
            lost(self, lane)

        def watched_batch(conn: Any, t: Any, settlements: Any, **kw: Any) -> Any:
            became = batch(conn, t, settlements, **kw)
            for one in settlements:
                die_if(now_in_settle, one.msg_id)
            return became

        def watched_each(conn: Any, t: Any, settlement: Any, **kw: Any) -> Any:
            fate = each(conn, t, settlement, **kw)
            die_if(now_in_settle, settlement.msg_id)
            return fate

        def marked_write_once(self: Writer, lanes: Sequence[Lane], *args: Any) -> Any:
            now_in_settle.update(
                lane.row.msg_id
                for lane in lanes
                if wants(IN_SETTLE, lane.row.payload, lane.row.tries + 1)
            )
            return write_once(self, lanes, *args)

        witness = self
        write_once = Writer.write_once
        Writer.write = watched_write  # type: ignore[method-assign]
        Writer._look = watched_look  # type: ignore[method-assign]
        Settler.drop_lost = watched_lost  # type: ignore[method-assign]
        Writer.write_once = marked_write_once  # type: ignore[method-assign]
        settle.settle = watched_batch
        settle.settle_one = watched_each

    def _settled(self, lane: Lane, fate: Settled, since: float, *, guessed: bool) -> None:
        """guessed: after a lost COMMIT the flag was gone; so it is not known what was written."""
        outcome = Outcome.DONE if lane.result is None else lane.result.outcome
        self._told(lane, Told.LOST if guessed else Told(outcome.value), since)
        ahead = lane.next_row
        if fate is Settled.ADVANCED and ahead is not None:
            read_at = self._run_read_at.pop((lane.owner, ahead.msg_id))
            self._claimed(lane.owner, ahead, read_at)

    def _told(self, lane: Lane, outcome: Told, since: float | None) -> None:
        self._told_of(lane.row, lane.owner, outcome, since)

    def _told_of(self, row: Any, owner: str, outcome: Told, since: float | None) -> None:
        self._held.discard((owner, row.msg_id))
        self._tell.record(
            Kind.SETTLED, row.msg_id, row.object_id, instance=owner, detail=outcome, since=since
        )

    # ------------------------------------------------------------ recovery

    def _watch_recovery(self) -> None:
        take, give = Recovery._take_over, Recovery._recover_rows
        recovering, releasing, keeping = recover.recover, recover.release, tries.keep

        def watched_take(self: Recovery, seen: lease.Lease) -> int:
            now.taking = witness._tell.now()
            now.taken_from = seen.name
            # Should we die before we can tell that we won: see fleet.read_history.
            me = self._shared.identity.id
            witness._tell.record(Kind.LEASE_LOST, instance=seen.name, detail=f"tried {me}")
            return take(self, seen)

        def watched_give(self: Recovery, dead_id: str, why: str = "") -> Any:
            since = witness._tell.now()
            if getattr(now, "taken_from", None) == dead_id:
                witness._tell.record(Kind.LEASE_LOST, instance=dead_id, since=now.taking)
            now.taken_from = None
            now.given_back = []
            me = self._shared.identity.id
            try:
                found = give(self, dead_id, why)
            except BaseException:
                now.given_back[-1:] = []  # rolled back, most likely
                raise
            finally:
                for msg_id in (i for batch in now.given_back for i in batch):
                    witness._tell.record(
                        Kind.RECOVERED, msg_id, instance=me, detail=dead_id, since=since
                    )
            return found

        def watched_recover(conn: Any, t: Any, ids: Any, **kw: Any) -> int:
            # Not all of `ids`, of which others may have given some back since they were read.
            now.crashes = []
            count = recovering(conn, t, ids, **kw)
            now.given_back.append(now.crashes)
            return count

        def watched_keep(conn: Any, t: Any, failures: Any, **kw: Any) -> None:
            now.crashes = [one.msg_id for one in failures if one.kind is tries.Kind.CRASH]
            keeping(conn, t, failures, **kw)

        def watched_release(conn: Any, t: Any, ids: Sequence[int], *, me: str, **kw: Any) -> int:
            since = witness._tell.now()
            count = releasing(conn, t, ids, me=me, **kw)
            for msg_id in ids:
                if (me, msg_id) in witness._held:  # a claim that we know of: no good
                    detail = Told.RELEASED
                    witness._tell.record(
                        Kind.SETTLED, msg_id, instance=me, detail=detail, since=since
                    )
            return count

        witness = self
        Recovery._take_over = watched_take  # type: ignore[method-assign]
        Recovery._recover_rows = watched_give  # type: ignore[method-assign]
        tries.keep = watched_keep
        recover.recover = watched_recover
        recover.release = watched_release
