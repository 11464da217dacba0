"""The settlements of finished lanes, and their results if the answer was lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
            ahead = lane.next_row
            went_on = ahead is not None and ahead.msg_id in flagged
            became[msg_id] = Settled.WENT_ON if went_on else Settled.ENDED
    return became


def settlement(lane: Lane, runtime: Runtime) -> Settlement:
    """The settlement of a lane: only a done message passes the flag on, but not during a stop, nor
    while quiescing, nor to a message whose topic is paused."""
    result = lane.result or DONE
    row = lane.row
    tries = row.tries if row.flaw is None or row.odd is None else None
    if result is DONE or result.outcome is Outcome.DONE:
        ahead = None if runtime.stopping.is_set() or runtime.quiesce.active else lane.next_row
        if ahead is not None and runtime.is_paused(ahead):
            ahead = None
        next_id = None if ahead is None else ahead.msg_id
        return Settlement(row.msg_id, next_id=next_id, tries=tries)
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
