"""The transaction of a batch: its handler and the outcome of all its lanes, as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.dialects import led_elsewhere
from msgworker.errors import HandlerMisuse, LostClaim
from msgworker.instance.links import Stage, lent, misled, missed
from msgworker.instance.running.calling import Caller
from msgworker.instance.running.hand import Lane
from msgworker.instance.running.outcome import DONE, Result, cancelled
from msgworker.instance.runtime import Runtime
from msgworker.instance.settling.chains import follow_ups
from msgworker.instance.settling.settlements import settlement
from msgworker.message import Message, Outcome, Outgoing
from msgworker.store.recovering import recover
from msgworker.store.settling import batch as store
from msgworker.store.settling import done
from msgworker.store.settling.batch import OutOfDate, Share
from msgworker.store.unique import send_all


@dataclass(slots=True)
class Part:
    """A lane, and its messages in the batch. sends: what a plain handler has sent with the outcome
    of its message."""

    lane: Lane
    messages: list[Message[Any]]
    sends: list[Outgoing] = field(default_factory=list)

    @staticmethod
    def share_out(sent: dict[Any, list[Outgoing]], parts: list[Part]) -> None:
        """Give each part what its handler has sent, by msg_id, with the outcome of its message."""
        for part in parts if sent else ():
            part.sends = sent.get(part.messages[0].msg_id, [])

    def done(self) -> Result:
        """The result of a plain handler that has returned."""
        return Result(Outcome.DONE, sends=tuple(self.sends)) if self.sends else DONE


class Failed(Exception):
    """Messages that fail: roll back. by_id: their errors. The handler has named them, or it has
    ended the transaction, so that none may be called again."""

    def __init__(self, by_id: dict[Any, BaseException]) -> None:
        super().__init__(f"{plural(len(by_id), 'message')} failed")
        self.by_id = by_id


class Cancelled(Exception):
    """An operator has cancelled a message of the batch: roll back."""


Failures = dict[Any, BaseException]


class BatchTransaction:
    """Used by the handler threads of one instance."""

    def __init__(self, runtime: Runtime, caller: Caller) -> None:
        self._runtime = runtime
        self._caller = caller

    def run(
        self,
        parts: list[Part],
        call: Callable[[Connection], Failures],
        check_time: Callable[[], None],
    ) -> None:
        """Settle the lanes with the writes of their handler. call: calls it; returns the failures
        that it has named. check_time: raises if it took too long.

        Raises what these raise; Failed, OutOfDate or LostClaim: then nothing is committed, but with
        LostClaim that may be unknown. If an operator has cancelled a message of it, nothing is
        committed, and that one alone has its result.
        """
        first = parts[0].lane
        in_doubt = False

        def once(stage: Stage) -> None:
            self._once(parts, call, check_time, stage)

        def was_committed() -> bool:
            nonlocal in_doubt
            in_doubt = True
            found = self._was_committed(parts)
            in_doubt = False
            return found

        try:
            self._caller.transacting.until_committed(first.row, first.owner, once, was_committed)
        except Cancelled:
            return
        except Exception as error:
            if in_doubt:  # it may be committed: nothing of it may start again
                raise LostClaim(first.row.msg_id, first.owner) from error
            raise
        for part in parts:
            part.lane.result = DONE

    def _once(
        self,
        parts: list[Part],
        call: Callable[[Connection], Failures],
        check_time: Callable[[], None],
        stage: Stage,
    ) -> None:
        link = self._caller.transacting.link()
        with link.lock, link.transaction() as conn:
            self._refuse_lost(conn, parts)
            failures = self._lent(conn, parts, call, stage)
            if failures:
                raise Failed(failures)
            check_time()
            if any([self.is_cancelled(part.lane) for part in parts]):
                raise Cancelled
            try:
                flagged = self._settle(conn, parts)
            except OutOfDate:
                misuse = missed(conn, "the handler")
                if misuse is None:
                    raise
                raise misuse from None
            stage.led = led_elsewhere(conn)
            stage.committing = True
        self._settled(parts, flagged)
        if stage.led is not None and not self._was_committed(parts):
            self._unsettled(parts, misled("the handler", stage.led))

    def is_cancelled(self, lane: Lane) -> bool:
        """Whether an operator has cancelled its flagged message; then it has its result."""
        hand = self._runtime.hand
        if not hand.cancels or (request := hand.cancelled(lane.row)) is None:
            return False
        lane.width, lane.verdict, lane.result = 1, None, cancelled(request)
        return True

    @staticmethod
    def _lent(
        conn: Connection, parts: list[Part], call: Callable[[Connection], Failures], stage: Stage
    ) -> Failures:
        try:
            with lent(conn, stage, "the handler"):
                return call(conn)
        except HandlerMisuse as error:
            if not stage.ended:
                raise
            # What was committed stays, and a call for each message would write it again.
            raise Failed({part.lane.row.msg_id: error for part in parts}) from error

    def _refuse_lost(self, conn: Connection, parts: list[Part]) -> None:
        """Raise if our lease was lost since the claim, and others may have some of the messages."""
        if parts[0].lane.owner == self._runtime.identity.id:
            return
        tries = {part.lane.row.msg_id: part.lane.row.tries for part in parts}
        found = recover.still_flagged(conn, self._runtime.tables, tries)
        if not set(tries) <= set(found.free):
            raise OutOfDate

    def _settle(self, conn: Connection, parts: list[Part]) -> set[int]:
        """Write the outcome; returns the next messages that are flagged now."""
        shares = []
        for part in parts:
            lane = part.lane
            self._caller.before_settle(lane)
            ahead = settlement(lane, self._runtime).next_id
            failed = lane.next_row if lane.verdict is not None else None
            # Also of a paused topic, and at a stop: it has run, and only its failure is written.
            if failed is not None and not self._runtime.needs_permit(failed):
                ahead = failed.msg_id
            followers = [message.msg_id for message in part.messages[1:]]
            shares.append(Share(lane.row.msg_id, followers, ahead))
        first = parts[0].lane
        tables, tries = self._runtime.tables, first.row.tries
        flagged = store.settle_batch(conn, tables, shares, me=first.owner, tries=tries)
        if self._runtime.registry.tells:
            registry = self._runtime.registry
            rows = [row for part in parts for row in part.lane.taken()]
            about = [follow_ups(registry, tables, row, Outcome.DONE, None) for row in rows]
            send_all(conn, tables, [one for sends in about for one in sends])
        return flagged

    def _was_committed(self, parts: list[Part]) -> bool:
        """Lock and read the rows, which waits for a COMMIT still under way: all of the batch was
        committed, or nothing."""
        heads = {part.lane.row.msg_id for part in parts}
        nexts = {row.msg_id for part in parts if (row := part.lane.next_row)}
        with self._caller.transacting.beside() as conn:
            me = parts[0].lane.owner
            flagged = done.look(conn, self._runtime.tables, heads | nexts, me=me)
        if not heads.isdisjoint(flagged):
            return False
        self._settled(parts, flagged)
        return True

    @staticmethod
    def _unsettled(parts: list[Part], error: HandlerMisuse) -> None:
        """What the handler wrote is committed, the outcome is not."""
        for part in parts:
            part.lane.settled = None
        raise Failed({part.lane.row.msg_id: error for part in parts}) from error

    @staticmethod
    def _settled(parts: list[Part], flagged: set[int]) -> None:
        for part in parts:
            ahead = part.lane.next_row
            part.lane.settled = ahead is not None and ahead.msg_id in flagged
