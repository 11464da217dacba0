"""The claim loop: claim messages when there is room.

room.py says how much room there is, emptying.py whether to wait until nothing is in flight,
finder.py where to look, draining.py what an empty look means, and pollpace.py how long to wait.
claimer.py claims.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import ceil

from msgworker.events import Looked
from msgworker.instance.claiming.ahead import Ahead
from msgworker.instance.claiming.appetite import Appetite
from msgworker.instance.claiming.claimer import Claimer
from msgworker.instance.claiming.draining import Draining
from msgworker.instance.claiming.emptying import Emptying
from msgworker.instance.claiming.finder import Finder
from msgworker.instance.claiming.permits import Permits
from msgworker.instance.claiming.pollpace import PollPace
from msgworker.instance.claiming.rivals import Rivals
from msgworker.instance.claiming.room import Room
from msgworker.instance.claiming.search import Look
from msgworker.instance.role import Role
from msgworker.instance.running.hand import Lane
from msgworker.instance.running.lanes import Lanes
from msgworker.instance.runtime import Runtime
from msgworker.instance.settling.settler import Settler
from msgworker.store.claiming.candidates import Candidate

LEAST_PART = 50
"""Heads that are claimed at once for handlers of batches, at least."""


class Fetcher(Role):
    """The claim loop. wake: ends its pause early.

    exhausted: the drain is over; written by its thread, read by the thread that waits for it.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        room: Room,
        emptying: Emptying,
        finder: Finder,
        claimer: Claimer,
        permits: Permits,
        draining: Draining,
        pace: PollPace,
        appetite: Appetite,
        rivals: Rivals,
        ahead: Ahead,
        lanes: Lanes,
        settler: Settler,
        housekeep_now: Callable[[], None],
        wake: threading.Event,
    ) -> None:
        super().__init__("fetcher", runtime.log, runtime.away, wake, runtime.leave_for)
        self._runtime = runtime
        self._identity, self._hand = runtime.identity, runtime.hand
        self._room = room
        self._emptying = emptying
        self._finder = finder
        self._claimer = claimer
        self._permits = permits
        self._last_try: Candidate | None = None  # in quarantine, of a limited topic
        self._draining = draining
        self.pace = pace
        self._appetite = appetite
        self._rivals = rivals
        self.ahead = ahead
        self._housekeep_now = housekeep_now
        self._lanes = lanes
        self._settler = settler
        self.link = claimer.link
        self.exhausted = False
        self._more = True
        self._full = False  # the last claim was as large as there was room
        self._run_length = 1.0  # the mean number of messages of a lane, in the last claim

    def run_once(self) -> int:
        """Claim if there is room; returns how many lanes were won, -1 if there was no room."""
        self._lanes.nudge()
        self._settler.flush()
        with self._finder.round():
            held = len(self._hand.lanes)
            room = self._room.left(held, self._finder.where)
            if room == 0 or self._emptying.for_new_id(held):
                if room == 0:
                    self._look_ahead(held)
                return -1
            won = 0
            if self._runtime.limits and (won := self._claim_limited(room, held)):
                held, room = held + won, room - won
                if room < 1:
                    return won
            if held and self.pace.look_in > 0 and not self._emptying.active:
                return -1
            me, dry = self._identity.id, self._lanes.taken_dry()
            look = self.ahead.take((me, self._runtime.apart), room)
            look = look or self._finder.look(room, self._hand.objects())
            self._more = True
            last_try = look.quarantined or self._last_try
            if last_try is None:
                self._emptying.no_quarantine()
            elif self._emptying.for_quarantine(held):
                if held > 0:
                    return self._nothing(look)
                self._last_try = None
                if self.claim([last_try], me, alone=True):
                    return 1
                self._finder.pass_over(
                    last_try
                )  # another instance has it: continue with the others
            found = self._claim_in_parts(look.candidates, me)
            offered, slots = len(look.candidates), self._runtime.slots
            if self._rivals.claimed(offered, found, of_others=look.of_others, slots=slots):
                self._housekeep_now()  # it counts the instances
            if self._runtime.events.wants(Looked):
                self._runtime.events.emit(Looked(me, len(look.candidates), found))
            self._more = self._left_some(look, found, room)
            self._full = found >= room
            self._appetite.fed(dry=dry, full=self._full)
            return found + won or self._nothing(look)

    def answered(self) -> bool:
        """A round without room asks nothing."""
        return self.link.is_open

    def _look_ahead(self, held: int) -> None:
        """There is no room: look for the next heads already, if that pays. Not beside other
        instances: they would take these heads meanwhile, and have use for the CPU."""
        runtime = self._runtime
        alone = runtime.slots < 2 and not runtime.limits and self._finder.everywhere
        if not alone or not self._full or self._emptying.active:
            return
        seconds = self._lanes.mean_seconds
        if self.ahead.pays(held, run_length=self._run_length, handler_seconds=seconds):
            under = self._identity.id, self._runtime.apart
            look = self._finder.look(self._appetite.lanes, self._hand.objects())
            self.ahead.keep(look, under)

    def _claim_limited(self, room: int, held: int) -> int:
        """Claim messages of limited topics, for which handler threads are free; how many were won.

        While the hand runs empty nothing is claimed.
        """
        won = 0
        for topic in self._permits.due():
            want = self._permits.room(room - won)
            if want < 1 or self._emptying.active:
                break
            me = self._identity.id
            look = self._finder.look_limited(topic, want, self._permits.held)
            self._last_try = self._last_try or look.quarantined
            if look.candidates:
                won += self.claim(look.candidates, me, limited=True)
            else:
                self._permits.looked(topic, look)
        return won

    def _left_some(self, look: Look, won: int, room: int) -> bool:
        """Whether there may be more to claim than it has won."""
        if won >= room or won < len(look.candidates) or not look.saw_all:
            return True
        return self._runtime.slots > 1  # it leaves their shares to the other instances

    def _claim_in_parts(self, candidates: list[Candidate], me: str) -> int:
        """Claim what a look has found; how many lanes were won.

        Handlers of batches use up in a few transactions what one claim gives, and would wait for
        the next one: so they get the messages of about one batch at a time, and run beside the
        claim of those that follow.
        """
        won, at, most = 0, 0, self._runtime.registry.most
        while at < len(candidates) and not (at and self._stopping.is_set()):
            size = len(candidates) - at
            if most > 1:
                part = max(LEAST_PART, ceil(most / self._run_length))
                size = size if size < 2 * part else part
            won += self.claim(candidates[at : at + size], me)
            at += size
        return won

    def claim(
        self, candidates: list[Candidate], me: str, *, alone: bool = False, limited: bool = False
    ) -> int:
        """How many lanes were won. limited: they hold permits, and run before others."""
        claim = self._claimer.claim_alone if alone else self._claimer.claim

        def hand_over(some: Sequence[Lane]) -> None:
            self._draining.end.saw_work()
            if limited:
                self._permits.got(some)
            self._lanes.put(some, first=limited)

        where = self._finder.where
        lanes, lost = claim(
            candidates, me, places=self._finder.places, within=where, hand_over=hand_over
        )
        if lost:
            self._finder.refused(lost)
        if lanes:
            self._run_length = sum([len(lane.rows) for lane in lanes]) / len(lanes)
        return len(lanes)

    def _nothing(self, look: Look) -> int:
        self.pace.looked(look)
        if self._draining.saw_nothing(look):
            self.exhausted = True
            self.stop()
        return 0

    def pause_seconds(self, did: int) -> float:
        """None while there is room and work; short while messages are in flight; else longer."""
        wanted, holding = self._appetite.lanes, bool(self._hand.lanes)
        due_in = self._draining.end.due_in
        wait = self._permits.wait() if self._runtime.limits else None
        if wait is not None and self._draining.linger is not None:
            due_in = wait if due_in is None else min(wait, due_in)
        more = self._more
        pause = self.pace.after(did, wanted=wanted, holding=holding, due_in=due_in, more=more)
        return pause if wait is None or did < 0 else min(pause, wait)  # without room none is tried

    def woken(self) -> None:
        self.pace.restart()
        self._permits.woken()

    def failed(self, error: BaseException) -> None:
        self._finder.forget()
        self.ahead.forget()
        # Messages that became due in the outage were not seen yet: a drain decides its end again.
        self._draining.end.saw_work()

    def ended(self) -> None:
        self.link.close()
