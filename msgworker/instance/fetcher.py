"""Ask for work when there is room.

Where to look is for finder.py to say, how much to hold for appetite.py, how long to wait for
pollpace.py, and when a drain is over for drainend.py; claimer.py claims.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgworker.instance.appetite import Appetite
from msgworker.instance.claimer import Claimer
from msgworker.instance.drainend import Drain, DrainEnd, Next
from msgworker.instance.finder import Finder
from msgworker.instance.lanes import Lanes
from msgworker.instance.pollpace import PollPace
from msgworker.instance.quiesce import Phase, Reason
from msgworker.instance.recovery import Recovery
from msgworker.instance.role import Role
from msgworker.instance.runtime import Runtime
from msgworker.instance.search import Look
from msgworker.instance.settler import Settler
from msgworker.store.candidates import Candidate

NEW_ID_ASK_SECONDS = 0.5


class Fetcher(Role):
    """The claim loop.

    drain: None = it runs until it is stopped. wake: cuts its pause short. beat_now: has the
    heartbeat beat at once. exhausted: the drain is over.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        lanes: Lanes,
        settler: Settler,
        appetite: Appetite,
        finder: Finder,
        claimer: Claimer,
        drain: Drain | None = None,
        wake: threading.Event,
        beat_now: Callable[[], None],
        recovery: Recovery,
    ) -> None:
        super().__init__("fetcher", runtime.log, runtime.away, wake)
        self._runtime = runtime
        self._lanes = lanes
        self._settler = settler
        self._drain = drain
        self._appetite = appetite
        self._finder = finder
        self._claimer = claimer
        self.link = claimer.link
        settings = runtime.settings
        self.end = DrainEnd(drain, heartbeat_seconds=settings.heartbeat_seconds)
        self._pace = PollPace(settings.poll_seconds, drains=drain is not None)
        self._quiesce = runtime.quiesce
        self._asked_for_new_id_at = -NEW_ID_ASK_SECONDS
        self._beat_now = beat_now
        self._recovery = recovery
        self.exhausted = False

    # ------------------------------------------------------------ one round

    def run_once(self) -> int:
        """Claim if there is room; returns how many lanes were won, -1 if there was no room."""
        with self._finder.round():
            return self._claim_if_room()

    def _claim_if_room(self) -> int:
        self._lanes.nudge()
        self._settler.flush()
        runtime = self._runtime
        held = len(runtime.hand.lanes)
        busy = held + self._look_at_handlers()
        alone = held == 1 and runtime.hand.quarantined(runtime.tables.spec.max_tries)
        if alone or not runtime.identity.trusted():
            return -1
        if not self._appetite.has_room(busy):
            self._share(held)
            return -1
        if runtime.identity.retires and self._runs_empty(held, Reason.NEW_ID):
            if held == 0:
                self._ask_for_new_id()
            return -1
        room, dry = self._appetite.lanes - busy, not self._lanes.ready
        me = runtime.identity.id
        look = self._finder.look(room, held)
        last_try = look.quarantined
        if last_try is not None and self._runs_empty(held, Reason.QUARANTINE):
            if held > 0:
                return self._nothing(look)
            if self._claim([last_try], me, alone=True):
                return 1
            self._finder.pass_over(last_try)  # another instance has it: go on with the others
        if last_try is None and not runtime.identity.retires:
            self._quiesce.end()
        won = self._claim(look.candidates, me) if look.candidates else 0
        self._appetite.fed(dry=dry, full=won >= room)
        return won or self._nothing(look)

    def _claim(self, candidates: list[Candidate], me: str, *, alone: bool = False) -> int:
        claim = self._claimer.claim_alone if alone else self._claimer.claim
        lanes, lost = claim(candidates, me, places=self._finder.places, within=self._finder.where)
        if lost:
            self._finder.refused(lost)
        if lanes:
            self.end.saw_work()
            self._lanes.put(lanes)
        return len(lanes)

    def _look_at_handlers(self) -> int:
        """Decide anew how much to hold; returns how many handlers of an id that was lost still have
        their threads."""
        now = time.monotonic()
        running = list(self._runtime.hand.running.values())
        self._appetite.sees(self._lanes.mean_seconds, [now - r.since for r in running])
        return sum(not self._runtime.identity.is_ours(r.owner) for r in running)

    def _share(self, held: int) -> None:
        """Give back, without a try, what would wait here for long while another instance may have
        threads for it. It is not claimed again at once: there is no room for it."""
        excess = held - self._appetite.kept
        if excess <= 0 or self._runtime.slots < 2 or self._quiesce.active:
            return
        where = self._finder.where
        if where is not None and where.exclusive:  # no other would take it
            return
        lanes = self._lanes.take_back(excess)
        if lanes:
            self.log.debug("gave back %d messages that waited for a thread", len(lanes))
            self._settler.give_back(lanes)

    def _ask_for_new_id(self) -> None:
        now = time.monotonic()
        if now > self._asked_for_new_id_at + NEW_ID_ASK_SECONDS:
            self._asked_for_new_id_at = now
            self._beat_now()

    def _runs_empty(self, held: int, reason: Reason) -> bool:
        """Start nothing new, so that our hands run empty; True while that goes on, or is so."""
        phase = self._quiesce.step(held, reason)
        if phase is Phase.BEGUN:
            self.log.debug("nothing new is started: %s", reason.value)
            self._settler.give_back(self._lanes.take_back())
        return phase in (Phase.BEGUN, Phase.QUIESCING, Phase.EMPTY)

    # ------------------------------------------------------------ nothing found

    def _nothing(self, look: Look) -> int:
        self._pace.looked(look)
        then = self.end.saw_nothing(
            look,
            holding=bool(self._runtime.hand.lanes),
            settled=self._finder.settled,
            in_doubt=self._claimer.in_doubt,
            recovering=self._recovery.under_way,
        )
        if then is Next.ASK:
            then = self._ask_what_is_coming()
        if then is Next.SWEEP:
            self._claimer.resolve_doubt()
        if then in (Next.SWEEP, Next.LOOK_AFRESH):
            self._finder.forget()
        if then is Next.OVER:
            self.exhausted = True
            self.stop()
        return 0

    def _ask_what_is_coming(self) -> Next:
        if self._drain is None or self._finder.nowhere:  # nothing to wait for
            return Next.OVER
        coming = self._finder.coming(self._drain)
        if coming.seconds is not None or self._drain.linger <= 0:
            return self.end.verdict(coming)
        ending = self._finder.leases_ending(self._drain.linger)
        lease_ends_in = self.end.lease_ends_in(ending)
        if lease_ends_in == 0.0:
            self._beat_now()  # it takes the lease over
        return self.end.verdict(coming, lease_ends_in)

    # ------------------------------------------------------------ pauses

    def pause_seconds(self, did: int) -> float:
        """No pause while there is room and work; a tick while hands are full; longer when idle."""
        return self._pace.after(
            did,
            wanted=self._appetite.lanes,
            holding=bool(self._runtime.hand.lanes),
            due_in=self.end.due_in,
        )

    def woken(self) -> None:
        self._pace.restart()

    def failed(self, error: BaseException) -> None:
        self._finder.forget()
        # What was due while the database was away was not passed over: a drain begins its end anew.
        self.end.saw_work()

    def ended(self) -> None:
        self.link.close()
