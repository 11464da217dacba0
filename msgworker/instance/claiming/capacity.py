"""How much to claim, and when: how many lanes to hold (`LaneLimit`), how far to read ahead behind
each head (`RunLength`), how many heads to take from the shares of other instances (`Contention`),
which limited topics to try (`LimitPoller`), how long to pause (`PollPace`). None of them reads a
table."""

from __future__ import annotations

import enum
import math
import random
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap

from msgworker.instance.claiming.heads import LONGEST_REST_SECONDS, Look
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.state import Controls
from msgworker.message import topic_of
from msgworker.store.limits import Free
from msgworker.store.rows import Row

# --- How many lanes an instance holds, by how long they would last.
#
# Few if handlers are slow, so that other instances get a share; many if they are fast, so that one
# claim or settle covers many messages. Nothing here reads a clock or a table.

WORTH_SECONDS = 0.5
"""Claim no more lanes than the handler threads use up in this time."""
KEPT_SECONDS = 2.0
"""Lanes beyond what the threads use up in this time are released, if other instances are alive."""
TAKEN_SECONDS = 1.0
"""When a handler ends that has run longer than this cannot be predicted: its thread is busy."""
LEAST_SECONDS = 1e-6


class LaneLimit:
    """How many lanes to hold. The limit grows while threads are idle, up to what they use up soon.

    lanes: hold at most this many. keep: lanes beyond this number are released. Written by the
    fetcher's thread.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._threads = threads
        self._most = most
        self._least = min(max(4, 2 * threads), most)
        self._grown = self._least
        self._full = False  # the last claim reached the limit: the table may have more
        self.lanes = min(threads, most)
        self.keep = self.lanes

    def update(self, mean: float | None, ages: Sequence[float]) -> None:
        """Compute `lanes` and `keep` again. mean: the mean seconds of a handler; None = none has
        ended yet: one lane for each thread. ages: of each running handler, in seconds."""
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
        self.keep = late

    def claimed(self, *, idled: bool, full: bool) -> None:
        """After a claim. idled: a thread was idle since the claim before. full: the limit is
        reached."""
        self._full = full
        if idled and full:
            self._grown = min(self._most, self._grown * 4)
        elif not idled and self._grown > self._least:
            self._grown = max(self._least, int(self._grown * 0.9))

    def grow(self) -> None:
        """A thread is idle: raise the limit if the last claim reached it. Else idle threads would
        wait for lanes that are being settled, and fill a low limit."""
        if self._full:
            self._full = False
            self._grown = min(self._most, self._grown * 4)

    def has_free(self, held: int) -> bool:
        """Whether to claim: half of the limit is free, or there are fewer lanes than threads."""
        free = self.lanes - held
        return free > 0 and (free * 2 >= self.lanes or held < self._threads)


def _whole(lanes: float) -> int:
    return int(min(lanes, 1_000_000.0))


# --- How many messages behind a new head to read ahead.
#
# `run_limit` of them if `lanes_limit` lanes are held. Fewer lanes have longer runs, so that a busy
# object needs few claims: all lanes together hold at most run_limit * lanes_limit rows, and at most
# PAYLOAD_BUDGET bytes by the mean payload. Runs grow beyond `run_limit` only for batches, or where
# earlier runs were handled to their end, and then up to LASTS_SECONDS of work. Nothing here reads a
# clock or a table.

PAYLOAD_BUDGET = 32_000_000
LASTS_SECONDS = 1.0
"""The longest that a run beyond `run_limit` may take: a message of its object with a lower id that
is committed late, or rerun by an operator, waits for the end of the run."""
RUN_OF_BATCHES = 4
"""Read ahead at least this many batches of an object."""
GROWTH = 4
SAMPLE = 20
"""How many lanes of a claim, and rows of these, are measured."""
NEWEST_SHARE = 0.25


class RunLength:
    """How far to read ahead. Used by the fetcher's thread only.

    run, lanes: `run_limit` and `lanes_limit`. batch: returns how many messages of an object may
    share a batch.
    """

    def __init__(self, run: int, lanes: int, batch: Callable[[], int] = lambda: 1) -> None:
        self._run = run
        self._batch = batch
        self._rows = run * lanes
        self._grown = run
        self._mean_payload = 0.0
        self._mean_seconds: float | None = None  # of one message in its lane
        self.watched: list[tuple[Lane, int, float]] = []

    def limit(self, lanes: int, ahead: int) -> int:
        """How many messages to read behind each new head, 0 = none. lanes: the new ones, and those
        that may be claimed beside them. ahead: how many messages all lanes have read ahead."""
        if not self._run:
            return 0
        fits = min(self._rows, int(PAYLOAD_BUDGET / max(self._mean_payload, 1.0)))
        share = (fits - ahead) // max(1, lanes)
        batch = self._batch()
        least = max(self._run, RUN_OF_BATCHES * batch if batch > 1 else 0)
        mean = LASTS_SECONDS if self._mean_seconds is None else self._mean_seconds
        lasting = round(LASTS_SECONDS / max(mean, 1e-6))
        return max(1, min(max(least, min(self._grown, lasting)), share))

    def read(self, lanes: Sequence[Lane], limit: int, now: float) -> None:
        """Note new lanes whose runs were read, to learn from their end. now: monotonic seconds."""
        some = [lane for lane in lanes[:SAMPLE] if len(lane.rows) > 1]
        self.watched = [*self.watched, *((lane, limit, now) for lane in some)][-SAMPLE:]
        rows = [row for lane in lanes[:SAMPLE] for row in lane.rows[-SAMPLE:]][-SAMPLE:]
        for row in starmap(Row, rows):
            size = len(row.payload) if isinstance(row.payload, str | bytes) else 0
            self._mean_payload += (size - self._mean_payload) * 0.1

    def learn(self, held: Container[Lane]) -> None:
        """Adjust to the lanes that have ended since the last call. held: those that have not."""
        ended = [one for one in self.watched if one[0] not in held]
        if not ended:
            return
        self.watched = [one for one in self.watched if one[0] in held]
        grown, cut = self._grown, self._rows
        for lane, limit, since in ended:
            done = lane.place + lane.width
            if lane.finished_at > since:
                seconds = (lane.finished_at - since) / done
                mean = seconds if self._mean_seconds is None else self._mean_seconds
                self._mean_seconds = mean + (seconds - mean) * NEWEST_SHARE
            if done < len(lane.rows):  # a failure, a stop, a pause: the rest will be read again
                cut = min(cut, 2 * done)
            elif len(lane.rows) > limit:
                grown = max(grown, GROWTH * limit)
        self._grown = max(self._run, min(grown, cut))


# --- Contention: several instances claim the same head, and one of them gets it.
#
# Each instance prefers the objects of its share, so few claims are lost while all instances agree
# on how many they are. After a claim that lost much they are counted again. An instance whose share
# has too few heads takes some of other shares: few at first, since the instance of that share is
# often about to claim them, and more after each such claim that lost little. Nothing here reads a
# table.

MUCH_LOST = 1 / 8
FEW = 8
"""A claim of fewer heads that wins some shows nothing. While a thread is idle, a look may take at
least this many heads of other shares."""
MOST = 4096
CUT = 4
SHARE_GROWTH = 2
COUNT_SECONDS = 0.1
"""The first pause between two counts of the instances. Pauses double, up to a heartbeat's."""


class Contention:
    """How many heads of other shares to take, and when to count the instances. Used by the
    fetcher's thread only. longest: seconds between two heartbeats. clock: monotonic."""

    def __init__(self, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._clock = clock
        self._pause = COUNT_SECONDS
        self._count_at = 0.0
        self._slots = 1
        self._most_of_others = FEW

    def most_of_others(self, *, busy: bool) -> int:
        """How many heads of other shares a look may take. busy: no thread waits for work."""
        return self._most_of_others if busy else max(self._most_of_others, FEW)

    def claimed(self, offered: int, won: int, *, of_others: int, slots: int) -> bool:
        """After a claim of `offered` heads, `of_others` of them in other shares, among `slots`
        instances; returns whether to count the instances again now."""
        if offered < FEW and (won or not offered):
            return False
        if offered - won <= offered * MUCH_LOST:
            if of_others:
                self._most_of_others = min(MOST, self._most_of_others * SHARE_GROWTH)
            return False
        self._most_of_others = max(1, self._most_of_others // CUT)
        if slots != self._slots:
            self._slots, self._pause = slots, COUNT_SECONDS
        now = self._clock()
        if now < self._count_at:
            return False
        self._count_at = now + self._pause
        self._pause = min(self._longest, self._pause * 2)
        return True


# --- When to try to claim messages of limited topics.
#
# A try is a look for heads of the topic and, if there are any, a claim under the lock of its
# record (store/limits.py). A message that gets no permit keeps status 0: it uses no thread, flag or
# try. When to try again depends on what the last try found:
#
# permits and tokens left      at once
# no token                     when the next one comes
# no permit                    when a message of ours ends, else after growing pauses
# record locked by another     after short, growing pauses
# nothing of it was claimed    after a short pause
# no message                   after a multiple of the time of the look

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
PAUSE_GROWTH = 1.5
RACE_SECONDS = 0.01
TOKENS_SECONDS = 0.1
"""Tokens are taken in portions: those of this time, if the bucket holds as many."""
LEFT_TO_OTHERS, LEFT_TO_OTHERS_IDLE = 20.0, 4.0
"""The pause after a look that found nothing, as a multiple of its time; the second one while a
thread is idle."""


class TopicWaits(enum.Enum):
    """What a topic waits for, as of its last try. NO: for nothing that is known."""

    NO = enum.auto()
    NOTHING = enum.auto()  # there is no message that may run
    PERMIT = enum.auto()
    TOKEN = enum.auto()
    LOCK = enum.auto()
    LOST = enum.auto()  # others have claimed what was found, or it is not the head of its object


@dataclass(slots=True)
class _Topic:
    """look_at: when to try again. not_before: a wake does not cause a try earlier than this.
    token_at: when the next token comes. All are on the clock. from_start: the look that found
    nothing began at the very start of the table."""

    waits: TopicWaits = TopicWaits.NO
    look_at: float = 0.0
    not_before: float = 0.0
    token_at: float = 0.0
    from_start: bool = True
    pause: float = FIRST_PAUSE_SECONDS

    def retry_in(self, now: float, waits: TopicWaits, seconds: float = 0.0) -> None:
        self.waits, self.look_at, self.not_before = waits, now + seconds, 0.0

    def next_pause(self) -> float:
        pause, self.pause = self.pause, min(LONGEST_PAUSE_SECONDS, self.pause * PAUSE_GROWTH)
        return pause


@dataclass(eq=False)
class LimitPoller:
    """Decides when to try limited topics. Used by the fetcher's thread only; reads no table.

    threads: handler threads; at most so many messages of limited topics are held, so that none
    waits with a permit. topics: those handled here, None = all. longest: seconds between two looks
    for a topic without messages. clock: monotonic.
    """

    threads: int
    topics: Container[str] | None
    longest: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._handled: list[str] = []
        self._ours: list[Lane] = []

    def update(self, controls: Controls, lanes: Container[Lane]) -> None:
        """Before a round: take the present limits, and drop lanes that have ended."""
        among, limits = self.topics, controls.limits
        self._handled = [
            name
            for name in limits
            if name not in controls.paused and (among is None or name in among)
        ]
        left = [n for n in self._ours if n in lanes and topic_of(n.row.topic) in limits]
        if len(left) < len(self._ours):
            self._ours = left
            for one in self._topics.values():
                if one.waits is TopicWaits.PERMIT:
                    one.look_at = 0.0

    def due(self) -> list[str]:
        """The limited topics to look for now, in random order, so that none starves."""
        if len(self._ours) >= self.threads:
            return []
        now = self.clock()
        found = [name for name in self._handled if self._topic(name).look_at <= now]
        return random.sample(found, len(found))

    def to_claim(self, free: int) -> int:
        """How many messages of limited topics to claim, if `free` lanes may be claimed in all."""
        return max(0, min(free, self.threads - len(self._ours)))

    @property
    def held(self) -> int:
        """How many of our lanes are at a message of a limited topic."""
        return len(self._ours)

    def claimed(self, lanes: Iterable[Lane]) -> None:
        """Note lanes that were claimed with a permit."""
        self._ours += lanes

    def tried(self, topic: str, free: Free | None, won: int) -> None:
        """After a claim of a topic. free: what was free before it; None = another instance had the
        record locked."""
        now, one = self.clock(), self._topic(topic)
        if free is None:
            pause = min(one.next_pause(), TOKENS_SECONDS) * random.uniform(0.5, 1.0)
            one.retry_in(now, TopicWaits.LOCK, pause)
        elif free.starts <= 0 and free.permits > 0:
            one.token_at = now + free.next_in
            one.retry_in(now, TopicWaits.TOKEN, max(free.next_in, self._portion(free)))
        elif free.starts <= 0:
            one.retry_in(now, TopicWaits.PERMIT, one.next_pause())
        else:
            one.pause = FIRST_PAUSE_SECONDS
            if not won:
                one.retry_in(now, TopicWaits.LOST, RACE_SECONDS * random.uniform(0.5, 1.5))
            elif won < free.starts or free.permits > free.tokens:
                one.retry_in(now, TopicWaits.NO, 0.0 if won < free.starts else self._portion(free))
            else:  # all permits are taken now
                one.retry_in(now, TopicWaits.PERMIT, one.next_pause())

    def looked(self, topic: str, look: Look, *, busy: bool) -> None:
        """After a look for a topic that found nothing. busy: no thread waits for work."""
        now, one = self.clock(), self._topic(topic)
        rest = LEFT_TO_OTHERS if busy else LEFT_TO_OTHERS_IDLE
        rest = min(rest * look.seconds, LONGEST_REST_SECONDS)
        waits = TopicWaits.NOTHING if look.saw_all else TopicWaits.NO
        one.retry_in(now, waits, max(rest, min(self.longest, one.next_pause())))
        one.not_before, one.from_start = now + rest, look.from_start

    def woken(self) -> None:
        """After a wake: there may be messages now."""
        for one in self._topics.values():
            if one.waits is TopicWaits.NOTHING:
                one.look_at, one.pause = one.not_before, FIRST_PAUSE_SECONDS

    def forget(self) -> None:
        """Try all topics again now, except those that wait for a token."""
        for one in self._topics.values():
            if one.waits is not TopicWaits.TOKEN:
                one.retry_in(self.clock(), TopicWaits.NO)

    def wait(self) -> float | None:
        """Seconds until the next try, None = not before a lane ends."""
        if len(self._ours) >= self.threads:
            return None
        now = self.clock()
        return min((max(0.0, self._topic(n).look_at - now) for n in self._handled), default=None)

    def starts_in(self) -> float | None:
        """Seconds until a message of a limited topic may start, 0 = try now; None = none may until
        another instance ends one, or what was found is free."""
        now, ahead = self.clock(), list[float]()
        for one in map(self._topic, self._handled):
            if one.waits in (TopicWaits.NO, TopicWaits.LOCK):
                return 0.0
            if one.waits is TopicWaits.TOKEN:
                ahead.append(max(0.0, one.token_at - now))
        return min(ahead, default=None)

    @property
    def from_start(self) -> bool:
        """Whether all looks that found nothing began at the very start of the table."""
        ours = map(self._topic, self._handled)
        return all(one.from_start or one.waits is not TopicWaits.NOTHING for one in ours)

    def rest(self) -> float | None:
        """For how many seconds none can start here, as far as is known; None = one may now."""
        now, rest = self.clock(), math.inf
        for one in map(self._topic, self._handled):
            if one.waits in (TopicWaits.NO, TopicWaits.LOCK):
                return None
            if one.waits is not TopicWaits.NOTHING:
                rest = min(rest, max(0.0, one.look_at - now))
        return rest

    def moved(self) -> None:
        """The next look is in another slice: topics without messages may have some there."""
        for one in self._topics.values():
            if one.waits is TopicWaits.NOTHING:
                one.retry_in(self.clock(), TopicWaits.NO)
                one.pause = FIRST_PAUSE_SECONDS

    # ------------------------------------------------------------

    def _topic(self, name: str) -> _Topic:
        return self._topics.setdefault(name, _Topic())

    def _portion(self, free: Free) -> float:
        """Seconds between two claims with tokens: so few that the bucket does not overflow."""
        limit = free.limit
        return min(TOKENS_SECONDS, limit.burst * limit.seconds / limit.starts / 4)


# --- How long the claim loop waits between two rounds.
#
# Not at all while there is work and a free lane, briefly while no lane is free, longer and longer
# while idle. While messages are in flight there is a round at every tick, which settles finished
# lanes and wakes threads, but looks become rarer if they find nothing; after a wake it looks at
# once. Looks past many messages that may not be claimed (of a paused topic, for example) have no
# idle pauses, but a pause longer than they took, to leave the database to others.

FIRST_IDLE_SECONDS = 0.01
TICK_SECONDS = 0.01
SOME_WON_SECONDS = 0.001
"""The pause after a claim that won far fewer lanes than were wanted."""
IDLE_GROWTH = 1.3
BUSY_GROWTH = 2.0
LONGEST_BUSY_SECONDS = 0.25
"""The longest time between two looks while messages are in flight and lanes are free."""
ROUND_LEFT_TO_OTHERS = 4.0
"""The pause in and after a round over the objects, as a multiple of its time."""


@dataclass(eq=False)
class PollPace:
    """Decides how long the claim loop pauses. Used by the fetcher's thread only.

    poll_seconds: the longest pause while idle. drains: a drain waits long only for known times.
    clock: monotonic. jitter: the share of an idle pause that is waited.
    """

    _longest: float
    drains: bool = False
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = lambda: random.uniform(0.75, 1.0)

    def __post_init__(self) -> None:
        self._pause = FIRST_IDLE_SECONDS
        self._busy = TICK_SECONDS  # between two looks while messages are in flight
        self._look_at = 0.0
        self._woken = False  # since the last look
        self._round_since: float | None = None  # when the unfinished round over the objects began
        self._look_seconds = 0.0  # of the last look of an unfinished round
        self._rest = 0.0  # the pause after the last round
        self._no_round_until = 0.0  # the same, if looks go on meanwhile that find what is new

    def restart(self) -> None:
        """There may be work now: look at once, then start with the shortest idle pause."""
        self._pause = FIRST_IDLE_SECONDS
        self._look_at, self._woken = 0.0, True

    @property
    def rests(self) -> bool:
        """Whether a look that finds what is new without it leaves out the round over the
        objects."""
        return self.clock() < self._no_round_until

    @property
    def look_in(self) -> float:
        """The seconds until the next look while messages are in flight, 0 = now."""
        return max(0.0, self._look_at - self.clock())

    def looked(self, look: Look) -> None:
        """After a look of which nothing was claimed."""
        now = self.clock()
        if look.complete or look.round_over:
            took = 0.0 if self._round_since is None else now - self._round_since
            rest = min(ROUND_LEFT_TO_OTHERS * took, LONGEST_REST_SECONDS)
            alone = look.finds_new and not self.drains
            self._rest, self._no_round_until = (0.0, now + rest) if alone else (rest, 0.0)
            self._round_since, self._look_seconds = None, 0.0
        elif not (look.finds_new and self.rests):
            self._round_since = now if self._round_since is None else self._round_since
            self._look_seconds = look.seconds

    def after(
        self, won: int, *, wanted: int, holding: bool, due_in: float | None, more: bool = True
    ) -> float:
        """The seconds to wait after a round that looked, or claimed messages of limited topics
        alone. won: how many lanes were claimed. wanted: how many to hold at most. more: there may
        be more to claim. holding: messages are in flight. due_in: seconds until a drain has
        something to do again, if known."""
        if won > 0:
            self._round_since, self._look_seconds, self._rest = None, 0.0, 0.0
            self._pause = FIRST_IDLE_SECONDS
        if won > 0 and more:
            self._look_at = 0.0
            return 0.0 if won * 4 >= wanted else SOME_WON_SECONDS
        woken, self._woken = self._woken, False
        if won > 0 or holding:
            wait = 0.0 if self._look_seconds else self._busy_seconds(found=won > 0, woken=woken)
            self._look_at = self.clock() + wait
            return TICK_SECONDS
        if self._look_seconds:
            return max(TICK_SECONDS, ROUND_LEFT_TO_OTHERS * self._look_seconds)
        if self.drains and due_in is None:
            return FIRST_IDLE_SECONDS
        self._pause = min(self._longest, self._pause * IDLE_GROWTH)
        if due_in is not None:
            return max(FIRST_IDLE_SECONDS, min(self._pause, due_in))
        return max(self._rest, self._pause * self.jitter())

    def _busy_seconds(self, *, found: bool, woken: bool) -> float:
        """The seconds until the next look while messages are in flight."""
        if found and woken:  # often it is the next run of the same object: no reason to hurry
            return TICK_SECONDS
        if found or woken:  # producers may not wake us, or wake us before their commit
            self._busy = TICK_SECONDS
        else:
            longest = max(TICK_SECONDS, min(LONGEST_BUSY_SECONDS, self._longest))
            self._busy = min(longest, self._busy * BUSY_GROWTH)
        return self._busy
