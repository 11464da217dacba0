"""The claim loop: claims messages when lanes are free; how long it waits between two rounds; and
what wakes it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from math import ceil

from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.db import of, shares_sessions
from msgworker.events import Looked
from msgworker.instance.claiming.claimer import Claimer
from msgworker.instance.claiming.drain import DrainEnd
from msgworker.instance.claiming.finder import Finder
from msgworker.instance.claiming.heads import LONGEST_REST_SECONDS, Look
from msgworker.instance.connections import Connections
from msgworker.instance.role import Aside, Role
from msgworker.instance.running.in_flight import Lane, Reason, Step
from msgworker.instance.running.pool import LaneQueue
from msgworker.instance.settling.settler import Settler
from msgworker.instance.state import Setup, Shared
from msgworker.store.candidates import Candidate

# --- How long the claim loop waits between two rounds.
#
# Not at all while there is work and a free lane, briefly while no lane is free, longer and longer
# while idle. While messages are in flight there is a round at every tick, which settles finished
# lanes and wakes threads, but looks become rarer if they find nothing; after a wake it looks at
# once. Looks past many messages that may not be claimed (of a paused topic, for example) have no
# idle pauses, but a pause longer than they took, to leave the database to others.

FIRST_PAUSE_SECONDS = 0.01
TICK_SECONDS = 0.01
SOME_WON_SECONDS = 0.001
"""The pause after a claim that won far fewer lanes than were wanted."""
GROWTH = 1.3
BUSY_GROWTH = 2.0
LONGEST_BUSY_SECONDS = 0.25
"""The longest time between two looks while messages are in flight and lanes are free."""
LEFT_TO_OTHERS = 4.0
"""The pause in and after a round over the objects, as a multiple of its time."""


class PollPace:
    """Decides how long the claim loop pauses. Used by the fetcher's thread only.

    poll_seconds: the longest pause while idle. drains: a drain waits long only for known times.
    clock: monotonic seconds. jitter: the share of an idle pause that is waited.
    """

    def __init__(
        self,
        poll_seconds: float,
        *,
        drains: bool = False,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0.75, 1.0),
    ) -> None:
        self._longest = poll_seconds
        self._drains = drains
        self._clock = clock
        self._jitter = jitter
        self._pause = FIRST_PAUSE_SECONDS
        self._busy = TICK_SECONDS  # between two looks while messages are in flight
        self._look_at = 0.0
        self._woken = False  # since the last look
        self._round_since: float | None = None  # when the unfinished round over the objects began
        self._look_seconds = 0.0  # of the last look of an unfinished round
        self._rest = 0.0  # the pause after the last round

    def restart(self) -> None:
        """There may be work now: look at once, then start with the shortest idle pause."""
        self._pause = FIRST_PAUSE_SECONDS
        self._look_at, self._woken = 0.0, True

    @property
    def look_in(self) -> float:
        """The seconds until the next look while messages are in flight, 0 = now."""
        return max(0.0, self._look_at - self._clock())

    def looked(self, look: Look) -> None:
        """After a look of which nothing was claimed."""
        now = self._clock()
        if look.complete or look.round_over:
            took = 0.0 if self._round_since is None else now - self._round_since
            self._rest = min(LEFT_TO_OTHERS * took, LONGEST_REST_SECONDS)
            self._round_since, self._look_seconds = None, 0.0
        else:
            self._round_since = now if self._round_since is None else self._round_since
            self._look_seconds = look.seconds

    def after(
        self, won: int, *, wanted: int, holding: bool, due_in: float | None, more: bool = True
    ) -> float:
        """The seconds to wait after a round.

        won: how many lanes were claimed, -1 = it did not look. wanted: how many to hold at most.
        more: there may be more to claim. holding: messages are in flight. due_in: seconds until a
        drain has something to do again, if that is known.
        """
        if won > 0:
            self._round_since, self._look_seconds, self._rest = None, 0.0, 0.0
            self._pause = FIRST_PAUSE_SECONDS
        if won > 0 and more:
            self._look_at = 0.0
            return 0.0 if won * 4 >= wanted else SOME_WON_SECONDS
        if won < 0:
            return TICK_SECONDS
        woken, self._woken = self._woken, False
        if won > 0 or holding:
            wait = 0.0 if self._look_seconds else self._busy_seconds(found=won > 0, woken=woken)
            self._look_at = self._clock() + wait
            return TICK_SECONDS
        if self._look_seconds:
            return max(TICK_SECONDS, LEFT_TO_OTHERS * self._look_seconds)
        if self._drains and due_in is None:
            return FIRST_PAUSE_SECONDS
        self._pause = min(self._longest, self._pause * GROWTH)
        if due_in is not None:
            return max(FIRST_PAUSE_SECONDS, min(self._pause, due_in))
        return max(self._rest, self._pause * self._jitter())

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


# --- The claim loop.
#
# capacity.py decides how many lanes to claim, in_flight.py how long to wait until nothing is in
# flight, finder.py where to look, `PollPace` how long to pause, drain.py what an empty look means;
# claimer.py claims. The fetcher collects their input and does what they decide.

NEW_ID_ASK_SECONDS = 0.5
LEAST_CLAIM = 50
"""The fewest heads of one claim, where handlers take batches."""


class Fetcher(Role):
    """The claim loop. exhausted: the drain is over; the thread that waits for it reads this."""

    link: Connections

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        *,
        finder: Finder,
        claimer: Claimer,
        drain_end: DrainEnd,
        lanes: LaneQueue,
        settler: Settler,
    ) -> None:
        wake, stop_for = shared.look_now, shared.stop.stop_for
        super().__init__("fetcher", shared.log, shared.away, wake, stop_for)
        self._setup = setup
        self._shared = shared
        self._identity, self._in_flight = shared.identity, shared.in_flight
        self._quiesce = shared.quiesce
        self._asked_at = -NEW_ID_ASK_SECONDS  # when it last woke the housekeeper for a new id
        self._finder = finder
        self._claimer = claimer
        self._limit_poller, self._lane_limit = claimer.limit_poller, claimer.lane_limit
        self._alone: Look | None = None  # of a limited topic, with a message in quarantine
        self.drain_end = drain_end
        seconds, clock = setup.settings.poll_seconds, setup.clock
        self.pace = PollPace(seconds, drains=drain_end.drains, clock=clock)
        self._lanes = lanes
        self._settler = settler
        self.link = claimer.link
        self.exhausted = False
        self._more = True
        self._run_length = 1.0  # the mean number of messages of a lane, in the last claim

    def run_once(self) -> int:
        """Settle what has finished, and claim if lanes are free. Returns how many lanes were won,
        -1 if none was, and it did not look."""
        self._lanes.nudge()
        self._settler.flush()
        controls = self._shared.controls
        self._limit_poller.update(controls, self._in_flight.lanes)
        with self._finder.round():
            held = len(self._in_flight.lanes)
            free = self.free(held)
            if free == 0 or self._waits_for_new_id(held):
                return -1
            won = 0
            if controls.limits and (won := self._claim_limited(free)):
                held, free = held + won, free - won
                if free < 1:
                    return won
            if held and self.pace.look_in > 0 and not self._empties:
                return won or -1
            me, idled = self._identity.id, self._lanes.take_idled()
            look = self._finder.look(free, self._in_flight.objects())
            self._more = True
            alone = look if look.quarantined is not None else self._alone
            if alone is None or alone.quarantined is None:
                if not self._identity.retires:
                    self._quiesce.end()
            elif self._quiesces(held, Reason.QUARANTINE):
                if held > 0:
                    return self._nothing(look)
                self._alone = None
                if self._claimer.may_claim_alone() and self.claim([alone.quarantined], alone, me):
                    return 1
                # Another instance has it: continue with the others.
                self._finder.skip(alone.quarantined)
            found = self._claim_by_batches(look, me)
            offered, slots = len(look.candidates), self._shared.peers.slots
            if self._finder.contention.claimed(
                offered, found, of_others=look.of_others, slots=slots
            ):
                self._shared.housekeep_now.set()  # which counts the instances
            if self._setup.events.wants(Looked):
                self._setup.events.emit(Looked(me, len(look.candidates), found))
            self._more = self._left_some(look, found, free)
            self._lane_limit.claimed(idled=idled, full=found >= free)
            return found + won or self._nothing(look)

    def answered(self) -> bool:
        """A round in which no lane is free may not have used the database."""
        return self.link.is_open

    # ------------------------------------------------------------ how many lanes

    def free(self, held: int) -> int:
        """How many lanes to claim beside the `held` ones, 0 = none. If too many are held, releases
        some."""
        shared, limit = self._shared, self._lane_limit
        staying = max(0, held - self._settler.leaving)
        busy = staying + self._look_at_handlers()
        if self._lanes.threads_idled and not limit.has_free(busy):
            limit.grow()
            busy = staying + self._look_at_handlers()
        most = self._setup.tables.spec.max_tries
        if (held == 1 and shared.in_flight.quarantined(most)) or not shared.identity.trusted():
            return 0
        if limit.has_free(busy):
            return limit.free(busy)
        self.share(staying)
        return 0

    def _look_at_handlers(self) -> int:
        """Update the lane limit; returns how many handlers of lost ids still occupy threads."""
        now = time.monotonic()
        running = list(self._in_flight.running.values())
        # A batch is one call for many lanes: count its time per lane.
        ages = [(now - r.since) / (1 + len(r.beside)) for r in running]
        self._lane_limit.update(self._lanes.mean_seconds, ages)
        return sum(not self._identity.is_ours(r.owner) for r in running)

    def share(self, held: int) -> None:
        """Release lanes that would wait long here while another instance may have free threads. We
        do not claim them again at once, since the lane limit is reached."""
        excess = held - self._lane_limit.keep
        if excess <= 0 or self._shared.peers.slots < 2 or self._quiesce.active:
            return
        where = self._finder.where
        if where is not None and where.exclusive:  # no other instance would claim them
            return
        lanes = self._lanes.take_back(excess)
        if lanes:
            text = "gave back what waited for a thread: %s"
            self.log.debug(text, plural(len(lanes), "lane"))
            self._settler.release(lanes)

    @property
    def _empties(self) -> bool:
        """Whether there is a reason to wait until nothing is in flight."""
        return self._quiesce.reason is not None

    def _waits_for_new_id(self, held: int) -> bool:
        """Whether to claim nothing, because the instance takes a new id when the `held` lanes are
        settled; then wakes the housekeeper, which does that."""
        if not self._identity.retires or not self._quiesces(held, Reason.NEW_ID):
            return False
        now = time.monotonic()
        if held == 0 and now > self._asked_at + NEW_ID_ASK_SECONDS:
            self._asked_at = now
            self._shared.housekeep_now.set()
        return True

    def _quiesces(self, held: int, reason: Reason) -> bool:
        """Stop claiming until in-flight messages are settled; True while that lasts, and after."""
        step = self._quiesce.step(held, reason)
        if step is Step.BEGUN:
            self.log.debug("nothing new is started: %s", reason.value)
            self._settler.release(self._lanes.take_back())
        return step in (Step.BEGUN, Step.QUIESCING, Step.EMPTY)

    # ------------------------------------------------------------ look and claim

    def _claim_limited(self, free: int) -> int:
        """Claim messages of limited topics, at most one for each handler thread; returns how many
        were won. While quiescing nothing is claimed."""
        won = 0
        for topic in self._limit_poller.due():
            want = self._limit_poller.lanes(free - won)
            if want < 1 or self._empties:
                break
            me = self._identity.id
            look = self._finder.look_limited(topic, want, self._limit_poller.held)
            if self._alone is None and look.quarantined is not None:
                self._alone = look
            if look.candidates:
                won += self.claim(look.candidates, look, me, limited=True)
            else:
                busy = len(self._in_flight.lanes) >= self._setup.threads
                self._limit_poller.looked(topic, look, busy=busy)
        return won

    def _left_some(self, look: Look, won: int, free: int) -> bool:
        """Whether there may be more to claim."""
        if won >= free or won < len(look.candidates) or not look.saw_all:
            return True
        return self._shared.peers.slots > 1  # the look left out heads of their shares

    def _claim_by_batches(self, look: Look, me: str) -> int:
        """Claim the candidates of a look; returns how many lanes were won.

        Handlers of batches would use up all in a few calls, and then wait for the next claim. So
        for them a claim takes about one batch, which is handled while the next is claimed.
        """
        candidates, won, at, most = look.candidates, 0, 0, self._setup.registry.most
        while at < len(candidates) and not (at and self._stopping.is_set()):
            size = len(candidates) - at
            if most > 1:
                claim = max(LEAST_CLAIM, ceil(most / self._run_length))
                size = size if size < 2 * claim else claim
            won += self.claim(candidates[at : at + size], look, me)
            at += size
        return won

    def claim(
        self, candidates: list[Candidate], look: Look, me: str, *, limited: bool = False
    ) -> int:
        """Claim some that a look has found; returns how many lanes were won. limited: they hold
        permits, and run before others."""

        def queue(some: Sequence[Lane]) -> None:
            self.drain_end.saw_work()
            if limited:
                self._limit_poller.claimed(some)
            self._lanes.put(some, first=limited)

        lanes, lost = self._claimer.claim(
            candidates, me, places=look.places, within=self._finder.where, queue=queue
        )
        if lost:
            self._finder.refused(lost)
        if lanes:
            self._run_length = sum([len(lane.rows) for lane in lanes]) / len(lanes)
        return len(lanes)

    # ------------------------------------------------------------ nothing was claimed

    def _nothing(self, look: Look) -> int:
        self.pace.looked(look)
        if self.drain_end.is_over(look):
            self.exhausted = True
            self.stop()
        return 0

    def pause_seconds(self, did: int) -> float:
        """0 while there is work and a free lane, short while messages are in flight, else long."""
        wanted, holding = self._lane_limit.lanes, bool(self._in_flight.lanes)
        due_in = self.drain_end.due_in
        wait = self._limit_poller.wait() if self._shared.controls.limits else None
        if wait is not None and self.drain_end.drains:
            due_in = wait if due_in is None else min(wait, due_in)
        more = self._more
        pause = self.pace.after(did, wanted=wanted, holding=holding, due_in=due_in, more=more)
        # Without a free lane no limited topic is tried.
        return pause if wait is None or did < 0 else min(pause, wait)

    def woken(self) -> None:
        self.pace.restart()
        self._limit_poller.woken()

    def failed(self, error: BaseException) -> None:
        self._finder.forget()
        # Messages that became due in the outage were not seen yet: a drain starts anew.
        self.drain_end.saw_work()

    def ended(self) -> None:
        self.link.close()


# --- Wakes up the fetcher when another process has sent a message: a hint, not needed for
# correctness.

LISTEN_SECONDS = 1.0
NO_NOTICE_SECONDS = 3_600.0


class Listener(Role):
    """Listens on the channel of the message table, on a connection of its own."""

    link: Connections

    def __init__(self, shared: Shared, channel: str | None) -> None:
        super().__init__("listener", shared.log, Aside(shared.away))
        self.link = shared.connector.new()
        self._channel = channel
        self._look_now = shared.look_now
        self._listening = False
        self._cannot_listen = False

    def run_once(self) -> int:
        """Listen for a second; returns 1 if a notification arrived. Through a pooler that shares
        sessions none would arrive: then it stops listening, and the fetcher polls."""
        assert self._channel is not None
        with self.link.statement() as conn:
            self._cannot_listen = shares_sessions(conn)
            noticed = not self._cannot_listen and self._wait(conn, self._channel)
        if self._cannot_listen:
            self.link.close()
        if noticed:
            self._look_now.set()
        return int(noticed)

    def _wait(self, conn: Connection, channel: str) -> bool:
        if not self._listening:
            of(conn).listen(conn, channel)
            self._listening = True
            self._look_now.set()  # for messages sent before we listened
        return of(conn).wait_for_notice(conn, LISTEN_SECONDS)

    def pause_seconds(self, did: int) -> float:
        return NO_NOTICE_SECONDS if self._cannot_listen else 0.0

    def failed(self, error: BaseException) -> None:
        self._listening = False

    def ended(self) -> None:
        self.link.close()
