"""What a consumer process writes down of batches, besides what proof/crash/witness.py does.

The head of a lane is claimed, starts and ends as any message. Those behind it are at 0 until the
COMMIT that makes them done. Before that is sent they are written down as ENDED with `BEHIND`, and
after it as settled; `tell_of_batches` makes the claim, the start and the end of it that a history
has, once it is known what became of the batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgworker.errors import Reject
from msgworker.instance.running.batch import BatchCaller, Taken
from msgworker.instance.running.outcome import DONE as LANE_DONE
from msgworker.message import Outcome, Settled
from proof.crash.points import AFTER_SETTLE, IN_SETTLE, die_at, now
from proof.history import DONE, Event, Kind, Row
from proof.history import Outcome as Told

if TYPE_CHECKING:
    from proof.crash.witness import Witness

SHARED = "shared"
"""Of a STARTED: in a batch of several messages; if that is rolled back it starts again, alone."""
BEHIND = "behind "  # of an ENDED, with the time at which the run was read
APART = 1e-7  # seconds; less than writing a line takes


def watch_batches(witness: Witness) -> None:
    """From now on batches are written down."""
    handle, call = BatchCaller.handle, BatchCaller._call
    run, settle, look = (
        BatchCaller._in_transaction,
        BatchCaller._settle,
        BatchCaller._was_committed,
    )
    tell = witness._tell

    def watched_handle(self: BatchCaller, *args: Any) -> Any:
        now.begun = set()
        return handle(self, *args)

    def watched_call(self: BatchCaller, taken: list[Taken], *args: Any) -> Any:
        detail = SHARED if sum(len(one.messages) for one in taken) > 1 else None
        heads = [(one.lane.row, one.lane.owner) for one in taken]
        for row, owner in heads:
            if row.msg_id not in now.begun:  # the database may have rolled back
                now.begun.add(row.msg_id)
                tell.record(Kind.STARTED, row.msg_id, row.object_id, instance=owner, detail=detail)
        ends = dict.fromkeys([row.msg_id for row, _ in heads], "raised")
        now.in_batch = True
        try:
            failures = call(self, taken, *args)
            ends = {i: _how(failures[i]) if i in failures else "returned" for i in ends}
        except Reject:
            ends = dict.fromkeys(ends, "rejected")
            raise
        finally:
            now.in_batch = False
            for row, owner in heads:
                how = ends[row.msg_id]
                tell.record(Kind.ENDED, row.msg_id, row.object_id, instance=owner, detail=how)
        return failures

    def watched_settle(self: BatchCaller, conn: Any, taken: list[Taken]) -> Any:
        now.sent_at = tell.now()
        for one in taken:
            me = one.lane.owner
            for row in _rows(one)[1:]:
                read_at = witness._run_read_at[me, row.msg_id]
                detail = f"{BEHIND}{read_at!r}"
                tell.record(Kind.ENDED, row.msg_id, row.object_id, instance=me, detail=detail)
        flagged = settle(self, conn, taken)
        _die(taken, IN_SETTLE)
        return flagged

    def watched_look(self: BatchCaller, *args: Any) -> bool:
        now.guessed = look(self, *args)
        return bool(now.guessed)

    def watched_run(self: BatchCaller, taken: list[Taken], *args: Any) -> None:
        now.guessed = False
        run(self, taken, *args)
        if any(one.lane.result is not LANE_DONE for one in taken):
            return  # an operator has cancelled one of them: nothing was committed
        _die(taken, AFTER_SETTLE)
        told = Told.LOST if now.guessed else Told.DONE
        for one in taken:
            lane = one.lane
            for row in _rows(one):
                witness._told_of(row, lane.owner, told, now.sent_at)
            ahead = lane.next_row
            if lane.settled is not Settled.ADVANCED or ahead is None:
                continue
            witness._claimed(
                lane.owner, ahead, witness._run_read_at.pop((lane.owner, ahead.msg_id))
            )
            if lane.verdict is not None:  # its handler has named it, in the batch
                facts = (ahead.msg_id, ahead.object_id)
                how = "rejected" if lane.verdict.outcome is Outcome.DEAD else "raised"
                tell.record(Kind.STARTED, *facts, instance=lane.owner)
                tell.record(Kind.ENDED, *facts, instance=lane.owner, detail=how)

    BatchCaller.handle = watched_handle  # type: ignore[method-assign]
    BatchCaller._call = watched_call  # type: ignore[method-assign]
    BatchCaller._settle = watched_settle  # type: ignore[method-assign]
    BatchCaller._was_committed = watched_look  # type: ignore[method-assign]
    BatchCaller._in_transaction = watched_run  # type: ignore[method-assign]


def _how(error: BaseException) -> str:
    return "rejected" if isinstance(error, Reject) else "raised"


def _rows(one: Taken) -> Sequence[Any]:
    """The messages of a lane in the batch, the head first."""
    return list(one.lane.taken())[: len(one.messages)]


def _die(taken: Iterable[Taken], point: str) -> None:
    for one in taken:
        for row in _rows(one):
            die_at(point, row.payload, row.tries + 1)


# ---------------------------------------------------------------- what became of them


def tell_of_batches(
    told: Iterable[Event], rows: Mapping[int, Row], killed: Iterable[str]
) -> list[Event]:
    """The records of the consumers as a history has them. killed: the instances of which a last
    record may be missing."""
    dead, by_key = set(killed), defaultdict[tuple[str, int | None], list[Event]](list)
    ordered = sorted(told, key=lambda e: e.at)
    claimed, done = defaultdict[int | None, float](float), set()
    for event in ordered:
        if event.kind == Kind.CLAIMED:
            claimed[event.msg_id] = max(claimed[event.msg_id], event.at)
        if event.kind == Kind.SETTLED and event.detail == Told.DONE:
            done.add(event.msg_id)
        by_key[event.instance, event.msg_id].append(event)

    def unseen(behind: Event) -> bool:
        """Whether the table says done, and no record does."""
        row = rows.get(behind.msg_id or 0)
        last = claimed[behind.msg_id] < behind.at and behind.msg_id not in done
        return last and row is not None and row.status == DONE

    kept: list[Event] = []
    for (instance, _), events in by_key.items():
        last = next((e for e in reversed(events) if _is_behind(e)), None)
        claim: list[Event] = []
        for event in [*events, None]:
            if event is None or event.kind == Kind.CLAIMED or _is_behind(event):
                if claim and _is_behind(claim[0]):
                    betrayed = claim[0] is last and unseen(claim[0])
                    kept += _behind(claim, done=betrayed, silent=betrayed and instance in dead)
                else:
                    kept += _under_own_claim(claim)
                claim = []
            if event is not None:
                claim.append(event)
    return kept


def _is_behind(event: Event) -> bool:
    return event.detail is not None and event.detail.startswith(BEHIND)


def _behind(events: list[Event], *, done: bool, silent: bool) -> list[Event]:
    """What became of a message behind the head of its object. done: the table says so, and no
    record does. silent: its instance was killed then."""
    behind, *rest = events
    settled = [replace(e, since=behind.at) for e in rest if e.kind == Kind.SETTLED]
    others = [e for e in rest if e.kind != Kind.SETTLED]
    sure = any(e.detail != Told.LOST for e in settled)
    if sure or silent or (settled and done):
        return [*_as_its_own(behind), *settled, *others]
    return others


def _under_own_claim(events: list[Event]) -> list[Event]:
    """A batch that was rolled back, and the run alone that follows it, are one run. If none
    followed, because an orderly stop gave the message back, there was none."""
    starts = [e for e in events if e.kind == Kind.STARTED]
    shared = [e for e in starts if e.detail == SHARED]
    if not shared:
        return events
    rest = [e for e in events if e.kind != Kind.STARTED]
    released = any(e.kind == Kind.SETTLED and e.detail == Told.RELEASED for e in rest)
    if released and len(shared) == len(starts):
        return [e for e in rest if e.kind != Kind.ENDED]
    return [replace(starts[0], detail=None), *rest]


def _as_its_own(behind: Event) -> list[Event]:
    """The claim, the start and the end of a message behind the head: right before the COMMIT, when
    the one before it had ended."""
    read_at = float((behind.detail or "").removeprefix(BEHIND))
    return [
        replace(
            behind,
            kind=Kind.CLAIMED,
            at=behind.at - 2 * APART,
            since=read_at,
            attempt=1,
            detail=None,
        ),
        replace(behind, kind=Kind.STARTED, at=behind.at - APART, detail=None),
        replace(behind, detail="returned"),
    ]
