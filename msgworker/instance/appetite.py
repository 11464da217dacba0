"""How much to hold in hand: decided by how long it would last.

Little of slow work, so that other instances find some; a lot of fast work, so that claims and
settles are shared by many messages. Nothing here looks at a clock or a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgworker.store.rows import Row

WORTH_SECONDS = 0.5
"""What is in hand may last so long; more is not claimed."""
KEPT_SECONDS = 2.0
"""What would last longer than this is given back where others live."""
TAKEN_SECONDS = 1.0
"""A handler that has run so long tells nothing about when it ends: its thread is taken."""
LEAST_SECONDS = 1e-6
PAYLOAD_BUDGET = 32_000_000


class Appetite:
    """How many lanes to hold: grows while the threads run dry, but never beyond what is used up
    soon; runs shrink with heavy payloads.

    lanes: how many to hold at most. kept: beyond so many, lanes are better given back. Both are
    written by the fetcher; `has_room` is also asked by whoever settles.
    """

    def __init__(self, threads: int, most: int, run: int) -> None:
        self._threads = threads
        self._most = most
        self._least = min(max(4, 2 * threads), most)
        self._grown = self._least
        self._run = run
        self._mean_payload = 0.0
        self.lanes = min(threads, most)
        self.kept = self.lanes

    def sees(self, mean: float | None, ages: Sequence[float]) -> None:
        """Decide anew: `lanes` and `kept`.

        mean: seconds of a handler; None while none has ended, and then each thread has one lane.
        ages: for how many seconds each handler that has not ended has run.
        """
        soon = late = self._threads
        if mean is not None:
            mean = max(mean, LEAST_SECONDS)
            young = [age for age in ages if age <= TAKEN_SECONDS]
            taken = min(len(ages) - len(young), self._threads)
            free = self._threads - taken
            # A handler that has run for longer than the mean is slower than we thought.
            slower = sum(1 / age - 1 / mean for age in young if age > mean)
            rate = max(0.0, free / mean + slower)
            soon = taken + max(free, _whole(WORTH_SECONDS * rate))
            # To give back what is used up after all costs more than to hold it for a moment.
            late = taken + max(free, _whole(KEPT_SECONDS * free / mean))
        self.lanes = min(soon, self._grown, self._most)
        self.kept = late

    def fed(self, *, dry: bool, full: bool) -> None:
        """After a claim: dry = no lane was waiting before it; full = it brought all that was
        asked."""
        if dry and full:
            self._grown = min(self._most, self._grown * 4)
        elif not dry and self._grown > self._least:
            self._grown = max(self._least, int(self._grown * 0.9))

    def has_room(self, held: int) -> bool:
        """Whether to claim: half of it is used up, or a thread has nothing to do."""
        room = self.lanes - held
        return room > 0 and (room * 2 >= self.lanes or held < self._threads)

    def saw(self, rows: Sequence[Row]) -> None:
        """Note how large payloads are."""
        for row in rows[:20]:
            size = len(row.payload) if isinstance(row.payload, str | bytes) else 0
            self._mean_payload += (size - self._mean_payload) * 0.1

    @property
    def run(self) -> int:
        """How long runs may be, so that what is in hand fits into memory."""
        fits = PAYLOAD_BUDGET / (max(self._mean_payload, 1.0) * max(self.lanes, 1))
        return max(1, min(self._run, int(fits))) if self._run else 0


def _whole(lanes: float) -> int:
    return int(min(lanes, 1_000_000.0))
