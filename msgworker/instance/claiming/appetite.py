"""How many lanes an instance holds, by how long they would last.

Few with slow handlers, so that other instances get a share; many with fast ones, so that one claim
or settle serves many messages. Nothing here reads a clock or a table.
"""

from __future__ import annotations

from collections.abc import Sequence

WORTH_SECONDS = 0.5
"""Seconds for which claimed messages may last; it claims no more."""
KEPT_SECONDS = 2.0
"""Lanes that would last longer than this are released if other instances are alive."""
TAKEN_SECONDS = 1.0
"""After so many seconds the end of a handler cannot be predicted: its thread counts as busy."""
LEAST_SECONDS = 1e-6


class Appetite:
    """How many lanes to hold. It grows while the threads run dry, up to what is used up soon.

    lanes: how many to hold at most. kept: lanes beyond this number are released. Both are
    written by the fetcher; `has_room` is also called by settling threads.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._threads = threads
        self._most = most
        self._least = min(max(4, 2 * threads), most)
        self._grown = self._least
        self._full = False  # after the last claim all was held that may be: there may be more
        self.lanes = min(threads, most)
        self.kept = self.lanes

    def sees(self, mean: float | None, ages: Sequence[float]) -> None:
        """Compute `lanes` and `kept` again.

        mean: seconds of a handler; None while none has ended, and then each thread has one lane.
        ages: for how many seconds each handler that has not ended has run.
        """
        soon = late = self._threads
        if mean is not None:
            mean = max(mean, LEAST_SECONDS)
            young = [age for age in ages if age <= TAKEN_SECONDS]
            taken = min(len(ages) - len(young), self._threads)
            free = self._threads - taken
            # A handler that has run for longer than the mean is slower than expected.
            slower = sum(1 / age - 1 / mean for age in young if age > mean)
            rate = max(0.0, free / mean + slower)
            soon = taken + max(free, _whole(WORTH_SECONDS * rate))
            # Releasing a lane that would soon be used costs more than holding it for a moment.
            late = taken + max(free, _whole(KEPT_SECONDS * free / mean))
        self.lanes = min(soon, self._grown, self._most)
        self.kept = late

    def fed(self, *, dry: bool, full: bool) -> None:
        """After a claim: dry = since the last one a thread had nothing to do; full = all that
        may be held is held now."""
        self._full = full
        if dry and full:
            self._grown = min(self._most, self._grown * 4)
        elif not dry and self._grown > self._least:
            self._grown = max(self._least, int(self._grown * 0.9))

    def ran_dry(self) -> None:
        """A thread had nothing to do although all that may be held was: hold more. Otherwise few
        lanes, most of them being settled, would keep the threads waiting until they have ended."""
        if self._full:
            self._full = False
            self._grown = min(self._most, self._grown * 4)

    def has_room(self, held: int) -> bool:
        """Whether to claim: half of it is used up, or a thread has nothing to do."""
        room = self.lanes - held
        return room > 0 and (room * 2 >= self.lanes or held < self._threads)

    def room(self, held: int) -> int:
        """How many lanes to claim now beside the `held` ones: all that may be held. Claims of half
        of it would overlap with settles better, and cost a tenth of the speed."""
        return self.lanes - held


def _whole(lanes: float) -> int:
    return int(min(lanes, 1_000_000.0))
