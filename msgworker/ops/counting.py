"""Dry runs: what a write would change, as far as it was counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgworker.config import whole
from msgworker.errors import SelectionChanged, TookTooLong
from msgworker.message import State, Status
from msgworker.ops.choosing import Choice, Chunk
from msgworker.ops.results import Progress, Skips, Tell
from msgworker.store.changing.audit import Operation
from msgworker.store.looking.window import MOST

SAMPLE = 10
FIRST_SIZE, LEAST_SIZE = 500, 100
"""Messages of a part, where it is hurried: of the first one, and the least."""
MOST_FACTOR = 8.0
"""A part has at most so many times the messages of the one before."""


@dataclass(frozen=True, slots=True)
class Count:
    """What is counted before a write, or in its place. Raises ConfigError.

    limit: a dry run stops at so many messages. expected: the number that has to come out.
    """

    dry_run: bool
    limit: int | None = None
    expected: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            whole("count_limit", self.limit, 1, MOST)
        if self.expected is not None:
            whole("expected_count", self.expected, 0, MOST)

    def before(self, op: Operation | None) -> bool:
        """Whether to count; not when an operation is continued."""
        return self.dry_run or (self.expected is not None and op is None)

    def is_enough(self, counted: Counted) -> bool:
        """Whether to stop here: at the limit of a dry run, or if it are more than expected."""
        if self.dry_run:
            return self.limit is not None and counted.matched >= self.limit
        return self.expected is not None and counted.changed > self.expected

    def check(self, kind: str, found: int, *, complete: bool = True) -> None:
        """Raise SelectionChanged if another number of messages would be changed; of a count that is
        not complete, if it is too high already."""
        if self.expected is None or found == self.expected:
            return
        if complete or found > self.expected:
            raise SelectionChanged(kind, self.expected, found)


class Pace:
    """The size of the next part that is counted. If the clock says when it is enough, parts begin
    small, and none is begun that would take much longer."""

    def __init__(self, choice: Choice) -> None:
        self._clock, self._most = choice.clock, choice.chunk_size
        hurried = self._clock.enough is not None
        self.size = min(FIRST_SIZE, self._most) if hurried else self._most
        self._rest = self._clock.rest

    def goes_on(self) -> bool:
        """Whether there is time for a next part, after one."""
        before, self._rest = self._rest, self._clock.rest
        if before is None or self._rest is None:
            return True
        took = max(before - self._rest, 1e-4)
        factor = min(MOST_FACTOR, self._rest / took / 2)
        self.size = min(self._most, max(1, int(self.size * factor)))
        return self._rest > 0 and self.size >= min(LEAST_SIZE, self._most)


@dataclass(slots=True)
class Counted:
    """What would be changed. first: ids of the first ones. done, running: how many of them are so,
    where such messages may be changed. complete: whether nothing is left behind up_to."""

    first: list[int] = field(default_factory=list)
    matched: int = 0
    done: int = 0
    running: int = 0
    skips: Skips = field(default_factory=Skips)
    complete: bool = True
    up_to: int | None = None

    @property
    def changed(self) -> int:
        return self.matched - self.skips.counts.total()

    @classmethod
    def of(cls, choice: Choice, count: Count, progress: Tell | None = None) -> Counted:
        """Count the messages of the choice, as long as its time lasts.

        A dry run that is out of time tells what it has counted; else TookTooLong is raised.
        """
        found, pace = cls(), Pace(choice)
        after: int | None = None
        try:
            while True:
                left = None if not count.dry_run or count.limit is None else count.limit
                size = pace.size if left is None else max(1, min(pace.size, left - found.matched))
                chunk = choice.chunk(after, size)
                after = chunk.next_after
                if chunk.ids:
                    found._add(choice, chunk)
                    if progress is not None:
                        progress(Progress(None, found.matched, 0, found.matched - found.changed))
                if after is None:
                    break
                if count.is_enough(found):
                    found.complete = choice.ends_at(after)
                    break
                if count.dry_run and not pace.goes_on():
                    found.complete = False
                    break
        except TookTooLong:
            if not count.dry_run or choice.clock.seconds is None:
                raise
            found.complete = False
        return found

    def _add(self, choice: Choice, chunk: Chunk) -> None:
        """A chunk, wholly or, if the time ends, not at all."""
        chosen = [i for i in chunk.ids if i not in chunk.skips]
        done = running = 0
        if State.DONE in choice.words:
            done = choice.count_among(chosen, Status.DONE)
        if State.PROCESSING in choice.words:
            running = choice.count_among(chosen, Status.PROCESSING)
        self.matched += len(chunk.ids)
        self.up_to = chunk.ids[-1]
        self.done += done
        self.running += running
        self.skips.add(chunk.skips.values())
        if len(self.first) < SAMPLE:
            self.first += chosen[: SAMPLE - len(self.first)]
