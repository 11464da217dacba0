"""What is in flight in an instance: its lanes, its running handlers, and the wait until there are
none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from msgworker.errors import HandlerMisuse
from msgworker.instance.running.outcome import Result
from msgworker.message import Settled, in_quarantine
from msgworker.store.controls import Request
from msgworker.store.rows import Bare, Row

# --- The in-flight messages of an instance: its lanes, and the handlers that run.

TOPIC = Row._fields.index("topic")
"""Its place in a row that is read ahead."""
KEPT_LONG = 10


class Lane:
    """A head and its run: `rows[place]` is flagged, those behind it are read ahead.

    Written by its present owner: the fetcher, then the handler thread, then the thread that
    settles it. head: the first message. row: the flagged one. width: how many messages its present
    try takes; 1 except in a batch. owner: the id that claimed it. slice_value: that in which its
    head was found. settled: what became of it, once a transactional handler has settled its
    message; None before. alone: no message of it runs in a batch any more. verdict: the result of
    the next message, which failed in a batch before it was flagged. started_at: when the handler of
    its message did (monotonic), 0 = it did not. ran_seconds: of the handler, in a batch its share.
    """

    __slots__ = (
        *("alone", "finished_at", "head", "owner", "place", "ran_seconds", "result"),
        *("row", "rows", "settled", "slice_value", "started_at", "verdict", "width"),
    )

    def __init__(self, owner: str, rows: Iterable[Bare]) -> None:
        self.owner = owner
        self.rows = list(rows)
        first = self.rows[0]
        self.row = self.head = first if type(first) is Row else Row(*first)
        self.slice_value: Any = None
        self.place = 0
        self.width = 1
        self.result: Result | None = None
        self.settled: Settled | None = None
        self.alone = False
        self.verdict: Result | None = None
        self.finished_at = 0.0
        self.started_at = 0.0
        self.ran_seconds = 0.0

    @property
    def next_row(self) -> Row | None:
        """The message that gets the flag next, if the lane continues."""
        place = self.place + self.width
        return Row(*self.rows[place]) if place < len(self.rows) else None

    @property
    def next_id(self) -> int | None:
        place, rows = self.place + self.width, self.rows
        return rows[place][0] if place < len(rows) else None

    def taken(self) -> list[Row]:
        """The messages of the present try."""
        if self.width == 1 and self.row.flaw is None:  # `keep` is for those with one
            return [self.row]
        return [Row(*bare) for bare in self.rows[self.place : self.place + self.width]]

    def keep(self, row: Row, number: int = 0) -> None:
        """Keep this message with its payload, for what is sent with its outcome. `self.row` stays:
        requests to cancel name that very object."""
        self.rows[self.place + number] = tuple(row)

    def advance(self) -> None:
        """The flag has moved to the next message. `place` is written before `width`, see
        `InFlight.flagged`."""
        self.place += self.width
        self.width = 1
        self.row = Row(*self.rows[self.place])
        if self.verdict is None:  # else its handler has run, in the call of the batch
            self.started_at = 0.0
        self.result, self.verdict, self.settled = self.verdict, None, None


class Execution:
    """A running handler: its flagged message, its start and its deadline (monotonic).

    slice_value: as of its lane. beside: the flagged messages of other lanes that the same call
    handles, each with its own. called: the message of a group that runs now. fatal: if it exceeds
    its timeout, the instance stops. stuck: it did. several: it handles more than one message.
    cancel_reason: of an operator, if it handles one. end_task: cancels the task of an async one,
    once. stopped: the task was cancelled at the end of the grace time. cut_short: the kind of error
    with which we have ended a fan-out of it before all items were done, except for a timeout.
    tried: see spans.py.
    """

    stuck = cancelled = reported = several = stopped = False
    cut_short: type[Exception] | None = None
    beside: Sequence[tuple[Row, Any]] = ()
    called: int | None = None
    cancel_reason: str | None = None
    end_task: Callable[[], None] | None = None
    tried: Any = None

    def __init__(
        self,
        row: Row,
        owner: str,
        since: float,
        until: float | None,
        fatal: bool = False,
        slice_value: Any = None,
    ) -> None:
        self.row = row
        self.owner = owner
        self.since = since
        self.until = until
        self.fatal = fatal
        self.slice_value = slice_value

    @property
    def interrupted(self) -> bool:
        """Whether what it raises follows from a stop, or from its lost claim."""
        return self.stopped or self.cut_short not in (None, HandlerMisuse)

    def end_at_stop(self) -> bool:
        """At the end of the grace time: cancel the task of an async handler. Whether it has one."""
        end_task = self.end_task  # read once: the thread of the loop clears it
        if end_task is not None:
            self.stopped = True
            end_task()
        return end_task is not None

    def rows(self) -> list[Row]:
        """All flagged messages that it handles."""
        return [self.row, *(row for row, _ in self.beside)]

    def slice_values(self) -> set[Any]:
        """The values of slices in which they were found."""
        return {self.slice_value, *(value for _, value in self.beside)}


ObjectsAndIds = tuple[set[Any], set[int]]
"""Objects and ids of messages."""


class Cancel(NamedTuple):
    """A request to cancel our claim of a message. row: the very object in `Lane.row`."""

    row: Row
    request: Request


class InFlight:
    """Lanes and running handlers. Accessed with single, atomic operations only.

    lanes: added by the fetcher; removed by settling threads, and, where their id was lost, by the
    fetcher, the heartbeat and the housekeeper; read by all.
    running: by thread, each handler thread writes its own; read by all. Of an Execution the
    watchdog, the stop and, to cancel it, the heartbeat and the housekeeper write single fields.
    unsure: lanes of a lost id whose message has not started, and must not start before the
    housekeeper has checked that it is still flagged; added by handler threads, removed by the
    housekeeper and the stop. Only on a table without `claimed_by`.
    cancels: requests of operators by message; replaced by the housekeeper, read by all.
    blocked: objects whose head could not be flagged recently; added by the search of topics without
    limits, which clears it each second; a settle removes its own.
    ran_long: the last handlers that took longer than a heartbeat, with their begin and end
    (monotonic); added by handler threads, read by the heartbeat.
    look_again: the lowest id of each set of messages that may be claimed again since we have
    released or recovered them, or their try has failed; added by the thread that did so, removed by
    the fetcher before it searches.
    freed: the values of slices in which lanes have ended; added by the thread that removed the
    lane, removed by the fetcher before it looks.
    """

    __slots__ = (
        *("blocked", "cancels", "freed", "lanes", "look_again", "ran_long", "running", "unsure"),
    )

    def __init__(self) -> None:
        self.lanes: set[Lane] = set()
        self.running: dict[int, Execution] = {}
        self.unsure: deque[Lane] = deque()
        self.blocked: set[Any] = set()
        self.cancels: dict[int, Cancel] = {}
        self.ran_long: deque[tuple[Row, float, float]] = deque(maxlen=KEPT_LONG)
        self.look_again: deque[int] = deque()
        self.freed: deque[Any] = deque()

    def objects_and_ids(self) -> ObjectsAndIds:
        """The objects and ids of all lanes. A message whose settle is under way may look free: its
        outcome is committed, but not answered. A claim of its object now could not be distinguished
        from the old one."""
        rows = [lane.head for lane in list(self.lanes)]
        return {row.same for row in rows if row.object_id is not None}, {row.msg_id for row in rows}

    def with_object(self) -> int:
        """How many lanes have an object."""
        return sum(lane.head.object_id is not None for lane in list(self.lanes))

    def running_under_lost_ids(self, is_ours: Callable[[str], bool]) -> ObjectsAndIds:
        """The objects and ids of handlers that still run under a lost id."""
        lost = [r for r in list(self.running.values()) if not is_ours(r.owner)]
        old = [row for running in lost for row in running.rows()]
        return {r.same for r in old if r.object_id is not None}, {r.msg_id for r in old}

    def flagged(self) -> set[int]:
        """The messages of our lanes that are flagged, or that are just getting the flag; call it
        after the flagged rows were read. A settling thread may move a lane meanwhile: it writes
        `place` and then `width`; this one reads `width` first, so it is never of a later place."""
        known: set[int] = set()
        for lane in list(self.lanes):
            width = lane.width
            place, rows = lane.place, lane.rows
            known.add(rows[place][0])
            if place + width < len(rows):
                known.add(rows[place + width][0])
        return known

    def slice_values(self) -> set[Any]:
        """The values of slices with in-flight messages, or with a handler that runs under a lost
        id. While we keep such a value, no instance runs another message of its objects."""
        values = {lane.slice_value for lane in list(self.lanes)}
        return values.union(*(running.slice_values() for running in list(self.running.values())))

    def owners(self) -> set[str]:
        """The ids under which in-flight messages were claimed, or a handler runs."""
        kept = {lane.owner for lane in list(self.lanes)}
        return kept | {running.owner for running in list(self.running.values())}

    def quarantined(self, max_tries: int) -> bool:
        """Whether a message in quarantine is in flight: nothing is claimed beside it."""
        rows = [lane.head for lane in list(self.lanes)]
        return any(in_quarantine(row.crash_times, row.tries, max_tries) for row in rows)

    def cancel_all(self) -> None:
        """Cancel the running handlers."""
        for running in list(self.running.values()):
            running.cancelled = True

    def request_for(self, row: Row) -> Request | None:
        """The request to cancel this claim of a message. row: the very object in `Lane.row`."""
        found = self.cancels.get(row.msg_id)
        return None if found is None or found.row is not row else found.request

    def cancel_requested(self) -> None:
        """Cancel running handlers whose message is in `cancels`."""
        for running in list(self.running.values()):
            request = self.request_for(running.row)
            if request is not None and not running.several and running.cancel_reason is None:
                running.cancel_reason, running.cancelled = request.reason, True
                end_task = running.end_task  # read once: the thread of the loop clears it
                if end_task is not None:
                    end_task()

    def drop(self, lanes: Sequence[Lane]) -> None:
        """Remove lanes that are finished or lost."""
        self.lanes.difference_update(lanes)
        self.freed += [lane.slice_value for lane in lanes if lane.slice_value is not None]

    def forget(self, is_ours: Callable[[str], bool]) -> None:
        """The lease is lost: drop the lanes of the old id and cancel its running handlers."""
        self.drop([lane for lane in list(self.lanes) if not is_ours(lane.owner)])
        for running in list(self.running.values()):
            if not is_ours(running.owner):
                running.cancelled = True


# --- Quiesce: nothing is claimed, and no lane passes its flag on, until nothing is in flight.
#
# OPEN ──begin──► QUIESCING ──nothing in flight──► EMPTY (do the purpose) ──end──► OPEN
#  ▲                  │ it takes too long
#  └──────end────── PAUSE: claim again, so that long handlers do not block all other work

FIRST_SECONDS = 5.0
LONGEST_SECONDS = 600.0
PAUSE_SECONDS = 30.0


class Reason(Enum):
    """Why an instance quiesces."""

    QUARANTINE = "a message in quarantine must run alone"
    NEW_ID = "the instance must take a new id"


class Step(Enum):
    """OPEN: claim as usual. BEGUN: from now on nothing new starts; waiting lanes are released.
    QUIESCING: as BEGUN, in later steps. EMPTY: nothing is in flight. PAUSE: claim for a while."""

    OPEN = auto()
    BEGUN = auto()
    QUIESCING = auto()
    EMPTY = auto()
    PAUSE = auto()


class Quiesce:
    """Written by the fetcher's thread. reason: its purpose; None while OPEN. active: no lane passes
    its flag on. If handlers take too long, each attempt lasts twice as long as the one before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = FIRST_SECONDS
        self._until: float | None = None  # None = OPEN
        self.reason: Reason | None = None
        self.active = False

    def step(self, held: int, reason: Reason) -> Step:
        """Stop claiming until nothing is in flight; held: how many lanes are in flight."""
        now = self._clock()
        if held == 0:
            self.end()
            self._seconds = FIRST_SECONDS
            return Step.EMPTY
        if self._until is None:
            self._until = now + self._seconds
            self.reason = reason
            self.active = True
            return Step.BEGUN
        if now > self._until + PAUSE_SECONDS:
            self.end()
            return Step.OPEN
        if self.active and now > self._until:
            self.active = False
            self._seconds = min(LONGEST_SECONDS, self._seconds * 2)
        return Step.QUIESCING if self.active else Step.PAUSE

    def end(self) -> None:
        """The purpose is gone: back to OPEN."""
        self._until = self.reason = None
        self.active = False
