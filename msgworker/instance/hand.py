"""What an instance has in hand: lanes, and the handlers that run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from msgworker.instance.outcome import Result
from msgworker.message import in_quarantine
from msgworker.store.rows import Row


class Lane:
    """One object's run in our hands: `rows[place]` is flagged, those behind it are read ahead.

    Whoever has the lane writes it: the fetcher, then the thread that handles it, then whoever
    settles it. row: the flagged message. owner: the id it was claimed under. part: of the slice in
    which its head was found.
    settled: a transactional handler has settled it; whether it goes on.
    """

    __slots__ = ("finished_at", "owner", "part", "place", "result", "row", "rows", "settled")

    def __init__(self, owner: str, rows: list[Row]) -> None:
        self.owner = owner
        self.rows = rows
        self.row = rows[0]
        self.part: Any = None
        self.place = 0
        self.result: Result | None = None
        self.settled: bool | None = None
        self.finished_at = 0.0

    @property
    def next_row(self) -> Row | None:
        """The message that gets the flag next, if the lane goes on."""
        return self.rows[self.place + 1] if self.place + 1 < len(self.rows) else None

    def go_on(self) -> None:
        """The flag has moved to the next message."""
        self.place += 1
        self.row = self.rows[self.place]
        self.result = self.settled = None


@dataclass(slots=True)
class Running:
    """A handler that runs now: who, since when (monotonic), until when it may.

    part: of the slice that it was found in. fatal: if it runs longer than it may, the instance
    leaves. stuck: it did.
    """

    row: Row
    owner: str
    since: float
    until: float | None
    fatal: bool = False
    stuck: bool = False
    cancelled: bool = False
    reported: bool = False
    part: Any = None


Held = tuple[set[Any], set[int]]
"""Objects and messages."""


class Hand:
    """Touched with single, atomic operations only.

    lanes: added by the fetcher, taken out by whoever settles and by the heartbeat; read by all.
    running: by thread, each handler thread writes its own; read by all. `cancelled` and `reported`
    in it are written by `HandlerWatch` and the stop.
    unsure: lanes of a lost id whose message has not started, and must not before the heartbeat has
    asked whether it is still flagged; put in by handler threads, taken out by the heartbeat and the
    stop. On a table without `claimed_by` only.
    blocked: objects whose head could not be flagged a moment ago; written by the search, and a
    settle takes its own out.
    """

    __slots__ = ("blocked", "lanes", "running", "unsure")

    def __init__(self) -> None:
        self.lanes: set[Lane] = set()
        self.running: dict[int, Running] = {}
        self.unsure: deque[Lane] = deque()
        self.blocked: set[Any] = set()

    def held(self) -> Held:
        """Of all lanes in hand.

        A message whose settle is under way may look free because it was written already, while we
        do not know that yet. To claim of its object then would make two claims indistinguishable.
        """
        rows = [lane.rows[0] for lane in list(self.lanes)]
        return {row.same for row in rows if row.object_id is not None}, {row.msg_id for row in rows}

    def running_under_lost_ids(self, is_ours: Callable[[str], bool]) -> Held:
        """Of the handlers that still run under an id that was lost."""
        old = [r.row for r in list(self.running.values()) if not is_ours(r.owner)]
        return {r.same for r in old if r.object_id is not None}, {r.msg_id for r in old}

    def flagged(self) -> set[int]:
        """The messages that lanes in hand hold a flag on, or are just passing it to."""
        known: set[int] = set()
        for lane in list(self.lanes):
            place = lane.place  # read once: a settle may move it at any moment
            known.update(row.msg_id for row in lane.rows[place : place + 2])
        return known

    def parts(self) -> set[Any]:
        """The parts of slices of which something is in hand, or which a handler that runs under a
        lost id was started for: while its part is ours no instance runs a message of its object
        beside it, for we claim none (`running_under_lost_ids`) and others do not look there."""
        parts = {lane.part for lane in list(self.lanes)}
        return parts | {running.part for running in list(self.running.values())}

    def owners(self) -> set[str]:
        """The ids under which something in hand was claimed, or a handler runs."""
        kept = {lane.owner for lane in list(self.lanes)}
        return kept | {running.owner for running in list(self.running.values())}

    def quarantined(self, max_tries: int) -> bool:
        """Whether what is in hand is one message in quarantine: nothing is claimed beside it."""
        rows = [lane.rows[0] for lane in list(self.lanes)]
        return any(in_quarantine(row.crash_times, row.tries, max_tries) for row in rows)

    def cancel(self) -> None:
        """Tell the handlers that run to end."""
        for running in list(self.running.values()):
            running.cancelled = True

    def drop(self, lanes: Iterable[Lane]) -> None:
        """These are over, or no longer ours."""
        self.lanes.difference_update(lanes)

    def forget(self) -> None:
        """Our lease is lost: nothing is in hand; handlers that run are told to end."""
        self.lanes = set()
        self.cancel()
