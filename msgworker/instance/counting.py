"""The messages left when a drain has ended: how they are counted, and how long that may take."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import NamedTuple

from msgworker.db.database import Trouble
from msgworker.db.errors import outage_pause, trouble
from msgworker.instance.instance import GIVE_UP_SECONDS, TICK_SECONDS, Instance
from msgworker.instance.stop import HELP_SECONDS, StopRequest, beside
from msgworker.queries.remaining import Left, left
from msgworker.store.controls import asking_jobs
from msgworker.table.columns import Slice

LAST_COUNT_SECONDS = 1.0
"""At least so long, also after a stop that took as long as it may."""


class Patience(NamedTuple):
    """How long a drain tries to count the messages left, after its instance has stopped.

    again_until: in an outage (monotonic). ends_at: when it gives up in any case, also while a
    statement waits; earlier once it is stopped.
    """

    again_until: float
    ends_at: Callable[[], float]


def patience_of(
    instance: Instance, asked: StopRequest, outage_limit: float, deadline: float | None
) -> Patience:
    """Of a drain whose instance has stopped. asked: a stop of it, also from now on. deadline: of
    its work (monotonic)."""
    now, exhausted = time.monotonic(), instance.fetcher.exhausted
    if deadline is not None:
        outage_limit = min(outage_limit, max(GIVE_UP_SECONDS, deadline - now))
    late = now + max(outage_limit, GIVE_UP_SECONDS)
    # What is left of the time of the stop, which may have needed all of it.
    soon = max(now + LAST_COUNT_SECONDS, instance.shared.stop.give_up_at or 0.0)
    soon = min(soon, now + GIVE_UP_SECONDS)
    return Patience(now + outage_limit, lambda: late if exhausted and not asked.in_order else soon)


def left_within(instance: Instance, within: Slice | None, patience: Patience | None) -> Left | None:
    """The messages left; None if they cannot be counted."""
    setup, shared, over = instance.setup, instance.shared, threading.Event()
    link = shared.connector.new()

    def count() -> Left | None:
        try:
            for attempt in itertools.count(1):
                late = patience is None or time.monotonic() >= patience.again_until
                try:
                    with link.statement() as conn:
                        if over.is_set():  # it was cut before there was anything to cut
                            return None
                        tables = asking_jobs(setup.tables, shared.controls.paused)
                        return left(conn, tables, setup.asked(shared.identity.ids, within))
                except Exception as error:
                    kind = trouble(error)
                    mild = kind is Trouble.LOST or (kind is Trouble.AGAIN and not late)
                    if not (mild or over.is_set()):
                        raise
                if late or over.wait(outage_pause(attempt)):
                    return None
            raise AssertionError("unreachable")
        finally:
            link.close()

    if patience is None:
        return count()
    counting = beside(count)
    try:
        while not wait([counting], TICK_SECONDS).done:
            if time.monotonic() >= patience.ends_at():
                over.set()
                link.cut()
                wait([counting], HELP_SECONDS)
                break
    finally:
        over.set()
    return counting.result() if counting.done() else None


def left_soon(count: Callable[[], Left]) -> Left | None:
    """What `count` finds, or None if that takes longer than a stop may; then its thread is left
    behind, and does not hold up the end of the process."""
    counting = beside(count)
    return counting.result() if wait([counting], GIVE_UP_SECONDS).done else None
