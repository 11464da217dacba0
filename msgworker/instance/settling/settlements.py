"""The settlements of finished lanes, and their results if the answer was lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgworker.instance.running.hand import Lane
from msgworker.instance.running.outcome import DONE
from msgworker.instance.runtime import Runtime
from msgworker.message import Outcome, Settled, Settlement


def what_became(lanes: Mapping[int, Lane], flagged: Collection[int]) -> dict[int, Settled]:
    """The results of lanes whose settle got no answer, from the rows still flagged by us. Lanes
    whose own row is flagged are left out: nothing was written."""
    became: dict[int, Settled] = {}
    for msg_id, lane in lanes.items():
        if msg_id not in flagged:
            went_on = lane.next_id in flagged
            became[msg_id] = Settled.WENT_ON if went_on else Settled.ENDED
    return became


def settlements(lanes: Sequence[Lane], runtime: Runtime) -> list[Settlement]:
    """`settlement` of each; nearly all are done, and go on."""
    if runtime.stopping.is_set() or runtime.quiesce.active or runtime.apart:
        return [settlement(lane, runtime) for lane in lanes]
    found: list[Settlement] = []
    for lane in lanes:
        row = lane.row
        if lane.result is DONE and row.flaw is None:
            one = Settlement(row.msg_id, Outcome.DONE, lane.next_id, None, 0.0, row.tries)
        else:
            one = settlement(lane, runtime)
        found.append(one)
    return found


def settlement(lane: Lane, runtime: Runtime) -> Settlement:
    """The settlement of a lane: only a done message passes the flag on, but not during a stop, nor
    while quiescing, nor to a message whose topic is paused or limited."""
    result = lane.result or DONE
    row = lane.row
    tries = row.tries if row.flaw is None or row.odd is None else None
    if result is DONE or result.outcome is Outcome.DONE:
        next_id = lane.next_id
        if next_id is not None and not _may_go_on(lane, runtime):
            next_id = None
        return Settlement(row.msg_id, Outcome.DONE, next_id, None, 0.0, tries)
    return Settlement(
        row.msg_id,
        result.outcome,
        None,
        result.error,
        result.delay_seconds,
        tries,
        row.later_times,
        result.trace,
    )


def _may_go_on(lane: Lane, runtime: Runtime) -> bool:
    if runtime.stopping.is_set() or runtime.quiesce.active:
        return False
    ahead = lane.next_row if runtime.apart else None
    return ahead is None or not runtime.is_apart(ahead)
