"""When to look for messages of limited topics, and what was free at the last try.

A try is a look for heads of the topic and, if there are any, a claim under the lock of its record
(store/limits.py). What finds no permit is left at 0: it holds no thread, flag or try. How
often to try follows from what the last one found: at once while permits and tokens are left; when
the next token comes; at the end of a message of ours, or more and more rarely, while all that may
run are running; a little later each time while others are claiming, so that several instances do
not spend their time looking; as rarely as the look was long, if there was nothing to claim.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from msgworker.instance.claiming.ring import LONGEST_REST_SECONDS
from msgworker.instance.claiming.search import Look
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.state import Setup, Shared
from msgworker.message import topic_of
from msgworker.store.limits import Free

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
GROWTH = 1.5
RACE_SECONDS = 0.01
TOKENS_SECONDS = 0.1
"""Tokens are taken in portions that come in this time, if the bucket is large enough for them."""
LEFT_TO_OTHERS, LEFT_TO_OTHERS_IDLE = 20.0, 4.0
"""The rest after a look that found nothing, as a multiple of its time; where threads are idle."""


class Waits(enum.Enum):
    """Why the last try claimed nothing. NO: it did, or there was none."""

    NO = enum.auto()
    NOTHING = enum.auto()  # there is no message that may run
    PERMIT = enum.auto()
    TOKEN = enum.auto()
    LOCK = enum.auto()


@dataclass(slots=True)
class _Topic:
    """look_at: when to try again; not_before: not earlier than that, whatever wakes us; both on the
    clock. token_at: when the next token comes. sure: the look that found nothing was one from the
    very start."""

    waits: Waits = Waits.NO
    look_at: float = 0.0
    not_before: float = 0.0
    token_at: float = 0.0
    sure: bool = True
    pause: float = FIRST_PAUSE_SECONDS

    def again(self, now: float, waits: Waits, seconds: float = 0.0) -> None:
        self.waits, self.look_at, self.not_before = waits, now + seconds, 0.0

    def longer(self) -> float:
        pause, self.pause = self.pause, min(LONGEST_PAUSE_SECONDS, self.pause * GROWTH)
        return pause


class LimitPoller:
    """Used by the fetcher's thread only. threads: of handlers; at most so many messages of limited
    topics are claimed, so that none holds a permit while it waits for a thread."""

    def __init__(self, setup: Setup, shared: Shared, *, threads: int) -> None:
        self._setup = setup
        self._shared = shared
        self._threads = threads
        self._clock = setup.clock
        self._topics: dict[str, _Topic] = {}
        self._ours: list[Lane] = []

    def due(self) -> list[str]:
        """The limited topics to look for now, in random order, so that none starves."""
        self._see_what_ended()
        if len(self._ours) >= self._threads:
            return []
        now = self._clock()
        found = [name for name in self._handled() if self._of(name).look_at <= now]
        return random.sample(found, len(found))

    def room(self, room: int) -> int:
        """How many messages of limited topics to claim, of so many in all."""
        return max(0, min(room, self._threads - len(self._ours)))

    @property
    def held(self) -> int:
        """How many of our lanes are at a message of a limited topic."""
        return len(self._ours)

    def got(self, lanes: Iterable[Lane]) -> None:
        """These were claimed."""
        self._ours += lanes

    def tried(self, topic: str, free: Free | None, won: int) -> None:
        """After a claim of a topic. free: before it; None = another instance had the record
        locked."""
        now, of = self._clock(), self._of(topic)
        if free is None:
            of.again(now, Waits.LOCK, min(of.longer(), TOKENS_SECONDS) * random.uniform(0.5, 1.0))
        elif free.starts <= 0 and free.permits > 0:
            of.token_at = now + free.next_in
            of.again(now, Waits.TOKEN, max(free.next_in, self._portion(free)))
        elif free.starts <= 0:
            of.again(now, Waits.PERMIT, of.longer())
        else:
            of.pause = FIRST_PAUSE_SECONDS
            if not won:  # others have claimed what was found
                of.again(now, Waits.NO, RACE_SECONDS * random.uniform(0.5, 1.5))
            elif won < free.starts or free.permits > free.tokens:
                of.again(now, Waits.NO, 0.0 if won < free.starts else self._portion(free))
            else:  # all permits are taken now
                of.again(now, Waits.PERMIT, of.longer())

    def looked(self, topic: str, look: Look) -> None:
        """After a look for a topic that found nothing."""
        now, of = self._clock(), self._of(topic)
        busy = len(self._shared.in_flight.lanes) >= self._threads
        rest = LEFT_TO_OTHERS if busy else LEFT_TO_OTHERS_IDLE
        rest = min(rest * look.seconds, LONGEST_REST_SECONDS)
        longest = self._setup.settings.poll_seconds
        waits = Waits.NOTHING if look.saw_all else Waits.NO
        of.again(now, waits, max(rest, min(longest, of.longer())))
        of.not_before, of.sure = now + rest, look.from_start

    def woken(self) -> None:
        """There may be messages now."""
        for of in self._topics.values():
            if of.waits is Waits.NOTHING:
                of.look_at, of.pause = of.not_before, FIRST_PAUSE_SECONDS

    def forget(self) -> None:
        """Try again; what is known of tokens stays."""
        for of in self._topics.values():
            if of.waits is not Waits.TOKEN:
                of.again(self._clock(), Waits.NO)

    def wait(self) -> float | None:
        """Seconds until the next try, None = not before a lane ends."""
        if len(self._ours) >= self._threads:
            return None
        now = self._clock()
        return min((max(0.0, self._of(n).look_at - now) for n in self._handled()), default=None)

    def starts_in(self) -> float | None:
        """Seconds until a message of a limited topic may start, 0 = to be tried now; None = none
        will, unless another instance ends one."""
        now, ahead = self._clock(), list[float]()
        for of in map(self._of, self._handled()):
            if of.waits in (Waits.NO, Waits.LOCK):
                return 0.0
            if of.waits is Waits.TOKEN:
                ahead.append(max(0.0, of.token_at - now))
        return min(ahead, default=None)

    @property
    def sure(self) -> bool:
        """Whether the looks that have found nothing were from the very start."""
        ours = map(self._of, self._handled())
        return all(of.sure or of.waits is not Waits.NOTHING for of in ours)

    def rest(self) -> float | None:
        """For how many seconds none can start here, as far as is known; None = one may now."""
        now, rest = self._clock(), math.inf
        for of in map(self._of, self._handled()):
            if of.waits in (Waits.NO, Waits.LOCK):
                return None
            if of.waits is not Waits.NOTHING:
                rest = min(rest, max(0.0, of.look_at - now))
        return rest

    def moved(self) -> None:
        """The next look is at another slice: what was not there may be here."""
        for of in self._topics.values():
            if of.waits is Waits.NOTHING:
                of.again(self._clock(), Waits.NO)
                of.pause = FIRST_PAUSE_SECONDS

    # ------------------------------------------------------------

    def _of(self, topic: str) -> _Topic:
        return self._topics.setdefault(topic, _Topic())

    def _handled(self) -> list[str]:
        topics, controls = self._setup.topics, self._shared.controls
        return [
            name
            for name in controls.limits
            if name not in controls.paused and (topics is None or name in topics)
        ]

    def _portion(self, free: Free) -> float:
        """Seconds to leave between two takings of tokens: no bucket runs over meanwhile."""
        limit = free.limit
        return min(TOKENS_SECONDS, limit.burst * limit.seconds / limit.starts / 4)

    def _see_what_ended(self) -> None:
        """At the end of a message of ours its permit is free."""
        if not self._ours:
            return
        lanes, limits = self._shared.in_flight.lanes, self._shared.controls.limits
        left = [n for n in self._ours if n in lanes and topic_of(n.row.topic) in limits]
        if len(left) < len(self._ours):
            self._ours = left
            for of in self._topics.values():
                if of.waits is Waits.PERMIT:
                    of.look_at = 0.0
