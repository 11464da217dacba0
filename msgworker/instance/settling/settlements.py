"""The settlements of finished lanes, and their results if the answer was lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgworker.instance.running.backoff import Backoff
from msgworker.instance.running.hand import Lane
from msgworker.instance.running.outcome import DONE, Result, limited
from msgworker.instance.runtime import Runtime
from msgworker.instance.settling.chains import follow_ups
from msgworker.message import Outcome, Outgoing, Settled, Settlement, topic_of
from msgworker.payload import clean
from msgworker.store.rows import Row


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
    held = runtime.stopping.is_set() or runtime.quiesce.active
    if held or runtime.registry.tells:
        return [settlement(lane, runtime) for lane in lanes]
    found: list[Settlement] = []
    apart, done = runtime.apart, Outcome.DONE
    for lane in lanes:
        row = lane.row
        if lane.result is DONE and row.flaw is None and not (apart and lane.next_topic in apart):
            one = Settlement(row.msg_id, done, lane.next_id, None, 0.0, row.tries)
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
        sends = result.sends + told(lane, runtime)
        return Settlement(row.msg_id, Outcome.DONE, next_id, None, 0.0, tries, sends=sends)
    return Settlement(
        row.msg_id,
        result.outcome,
        None,
        result.error,
        result.delay_seconds,
        tries,
        row.later_times,
        result.trace,
        told(lane, runtime),
    )


def told(lane: Lane, runtime: Runtime) -> tuple[Outgoing, ...]:
    """The messages about a message that are sent with its outcome."""
    if not runtime.registry.tells:
        return ()
    result = lane.result or DONE
    return follow_ups(runtime.registry, runtime.tables, lane.row, result.outcome, result.error)


def unsent(runtime: Runtime, row: Row, why: str) -> Result:
    """The result of a message that the database does not take as done, or with what its handler has
    sent."""
    attempt, most = row.tries + 1, runtime.tables.spec.max_tries
    delay = Backoff(runtime.settings.backoff_seconds)(attempt)
    failed = Result(Outcome.FAILED, clean(why), delay)
    handler = runtime.registry.get(topic_of(row.topic))
    return failed if handler is None else limited(failed, handler, attempt, most)


def _may_go_on(lane: Lane, runtime: Runtime) -> bool:
    if runtime.stopping.is_set() or runtime.quiesce.active:
        return False
    ahead = lane.next_row if runtime.apart else None
    return ahead is None or not runtime.is_apart(ahead)
