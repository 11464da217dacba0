"""The claim loop: claims messages when lanes are free; when a drain is over; and what wakes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil

from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.db.database import Trouble, of
from msgworker.db.errors import reason_of, trouble
from msgworker.db.servers import shares_sessions
from msgworker.errors import SchemaError
from msgworker.events import Looked
from msgworker.instance.claiming.capacity import TICK_SECONDS, LaneLimit, LimitPoller, PollPace
from msgworker.instance.claiming.claimer import Claimer, FlaggedRows, RefusedRows
from msgworker.instance.claiming.finder import Finder
from msgworker.instance.claiming.heads import Look
from msgworker.instance.connections import Connections
from msgworker.instance.liveness.housekeeper import JobCloser
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.role import Aside, Role
from msgworker.instance.running.in_flight import Lane, Reason, Step
from msgworker.instance.running.pool import LaneQueue
from msgworker.instance.settling.settler import Settler
from msgworker.instance.state import Controls, ScopeMember, Setup, Shared
from msgworker.queries.explain import Waits
from msgworker.queries.instances import leases_ending
from msgworker.queries.remaining import Left, left
from msgworker.schema import known
from msgworker.store import ranked
from msgworker.store.candidates import Candidate
from msgworker.store.controls import asking_jobs
from msgworker.store.lease import Lease

# --- The claim loop.
#
# capacity.py decides how many lanes to claim and how long to pause, in_flight.py how long to wait
# until nothing is in flight, finder.py where to look, `DrainEnd` what an empty look means;
# claimer.py claims. The fetcher collects their input and does what they decide.

NEW_ID_ASK_SECONDS = 0.5
LEAST_CLAIM = 50
"""The fewest heads of one claim, where handlers take batches."""


class Fetcher(Role):
    """The claim loop. It makes what its thread alone uses: the connection, the limits and the parts
    that find, claim and end a drain. looked: the last round read the table for heads. exhausted:
    the drain is over; the thread that waits for it reads this."""

    link: Connections

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        drain: Drain | None,
        member: ScopeMember | None,
        *,
        refused_rows: RefusedRows,
        flagged: FlaggedRows,
        recovery: Recovery,
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
        # A message in quarantine, the look that has found it, and what was paused then.
        self._alone: tuple[Candidate, Look, Controls] | None = None
        self._lanes = lanes
        self._settler = settler
        threads, longest, clock = setup.threads, setup.settings.poll_seconds, setup.clock
        self.link = link = shared.connector.new(tuned=True)
        self.pace = PollPace(longest, drains=drain is not None, clock=clock)
        self.lane_limit = limit = LaneLimit(threads, setup.settings.lanes_limit)
        self.limit_poller = poller = LimitPoller(threads, setup.topics, longest, clock)
        self.claimer = Claimer(setup, shared, link, limit, poller, refused_rows, flagged)
        self.finder = finder = Finder(setup, shared, member, link, refused_rows)
        jobs = JobCloser(setup, shared, link, ends=True)
        self.drain_end = DrainEnd(
            *(setup, shared, drain, link, finder, poller, refused_rows, flagged, recovery, jobs)
        )
        self.looked = self.exhausted = False
        self._more = True
        self._run_length = 1.0  # the mean number of messages of a lane, in the last claim

    def run_once(self) -> int:
        """Settle what has finished, and claim if lanes are free. Returns how many lanes were
        won."""
        self.looked = False
        self._lanes.nudge()
        self._settler.flush()
        controls = self._shared.controls
        self.limit_poller.update(controls, self._in_flight.lanes)
        with self.finder.round(self.limit_poller):
            held = len(self._in_flight.lanes)
            free = self.lanes_to_claim(held)
            self.finder.full = free == 0 or self._waits_for_new_id(held)
            if self.finder.full:
                return 0
            limited = self._claim_limited(free) if controls.limits else 0
            held, free = held + limited, free - limited
            too_early = held and self.pace.look_in > 0 and not self._quiesce.active
            if free < 1 or too_early:
                return limited
            look, won = self._look_and_claim(held, free)
            if not (limited or won):
                self.pace.looked(look)
                if self.drain_end.is_over(look):
                    self.exhausted = True
                    self.ask_to_end()
            return limited + won

    def answered(self) -> bool:
        """A round in which no lane is free may not have used the database."""
        return self.link.is_open

    # ------------------------------------------------------------ how many lanes

    def lanes_to_claim(self, held: int) -> int:
        """How many lanes to claim beside the `held` ones. If too many are held, releases some."""
        shared, limit = self._shared, self.lane_limit
        staying = max(0, held - self._settler.leaving)
        busy = staying + self._update_limit()
        if self._lanes.threads_idled and not limit.has_free(busy):
            limit.grow()
            busy = staying + self._update_limit()
        most = self._setup.tables.spec.max_tries
        if (held == 1 and shared.in_flight.quarantined(most)) or not shared.identity.trusted():
            return 0
        if limit.has_free(busy):
            return limit.lanes - busy  # claims of half of that were a tenth slower
        self.release_excess(staying)
        return 0

    def _update_limit(self) -> int:
        """Adapt the lane limit to how long handlers take; returns how many threads are taken by
        handlers of lost ids."""
        now = time.monotonic()
        running = list(self._in_flight.running.values())
        # A batch is one call for many lanes: count its time per lane.
        ages = [(now - r.since) / (1 + len(r.beside)) for r in running]
        self.lane_limit.update(self._lanes.mean_seconds, ages)
        return sum(not self._identity.is_ours(r.owner) for r in running)

    def release_excess(self, held: int) -> None:
        """Release lanes that would wait long here while others may have free threads. We do not
        claim them again at once, since the lane limit is reached."""
        excess = held - self.lane_limit.keep
        if excess <= 0 or self._shared.peers.slots < 2 or self._quiesce.active:
            return
        where = self.finder.where
        if where is not None and where.exclusive:  # no other instance would claim them
            return
        lanes = self._lanes.take_back(excess)
        if lanes:
            text = "gave back what waited for a thread: %s"
            self.log.debug(text, plural(len(lanes), "lane"))
            self._settler.release(lanes)

    def _waits_for_new_id(self, held: int) -> bool:
        """Whether to claim nothing, because the instance takes a new id when the `held` lanes are
        settled; the housekeeper, which does that, is woken then."""
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

    def _look_and_claim(self, held: int, free: int) -> tuple[Look, int]:
        """Look for up to `free` heads, and claim them; returns how many lanes were won. One in
        quarantine is claimed alone, when none of the `held` lanes is left."""
        me, idled = self._identity.id, self._lanes.take_idled()
        look = self.finder.look(free, self._in_flight.with_object(), rests=self.pace.rests)
        self.looked = self._more = True
        if look.quarantined is not None:
            self._alone = look.quarantined, look, self._shared.controls
        elif not self._still_alone():
            self._alone = None
        if self._alone is None:
            if not self._identity.retires:
                self._quiesce.end()
        elif self._quiesces(held, Reason.QUARANTINE):
            if held > 0:
                return look, 0
            (alone, found_by, _), self._alone = self._alone, None
            if self.claimer.may_claim_alone() and self.claim([alone], found_by, me):
                return look, 1
            # Another instance has it: continue with the others.
            self.finder.skip(alone)
        won = self._claim_by_batches(look, me)
        offered, slots = len(look.candidates), self._shared.peers.slots
        if self.finder.contention.claimed(offered, won, of_others=look.of_others, slots=slots):
            self._shared.housekeep_now.set()  # which counts the instances
        if self._setup.events.wants(Looked):
            self._setup.events.emit(Looked(me, offered, won))
        # The look of one of several instances leaves out heads of the others' shares.
        self._more = won >= free or won < offered or not look.saw_all or slots > 1
        self.lane_limit.claimed(idled=idled, full=won >= free)
        return look, won

    def _still_alone(self) -> bool:
        """Whether a message in quarantine that a look has found can still run. A look that reads on
        behind it, or in another slice, does not see it; one under other pauses is to find it."""
        if self._alone is None or self._alone[2] is not self._shared.controls:
            return False
        return self.finder.still_free(self._alone[0])

    def _claim_limited(self, free: int) -> int:
        """Claim messages of limited topics, at most one for each handler thread, unless it
        quiesces; returns how many were won."""
        won = 0
        for topic in self.limit_poller.due():
            want = self.limit_poller.to_claim(free - won)
            if want < 1 or self._quiesce.active:
                break
            me = self._identity.id
            look = self.finder.look_limited(topic, want, self.limit_poller.held)
            if look.quarantined is not None:  # nothing is given back for one that may not start
                if not self.claimer.may_start(topic):
                    continue
                if self._alone is None:
                    self._alone = look.quarantined, look, self._shared.controls
            if look.candidates:
                won += self.claim(look.candidates, look, me, limited=True)
            else:
                busy = len(self._in_flight.lanes) >= self._setup.threads
                self.limit_poller.looked(topic, look, busy=busy)
        return won

    def _claim_by_batches(self, look: Look, me: str) -> int:
        """Claim the candidates of a look; returns how many lanes were won. For handlers of batches
        a claim takes about one batch, which is handled while the next is claimed."""
        candidates, won, at, most = look.candidates, 0, 0, self._setup.registry.batch_most
        while at < len(candidates) and not (at and self._asked_to_end.is_set()):
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
                self.limit_poller.claimed(some)
            self._lanes.put(some, first=limited)

        lanes, lost = self.claimer.claim(
            candidates, me, places=look.places, within=self.finder.where, queue=queue
        )
        if lost:
            self.finder.lost(lost)
        if lanes:
            self._run_length = sum([len(lane.rows) for lane in lanes]) / len(lanes)
        return len(lanes)

    # ------------------------------------------------------------ after a round

    def pause_seconds(self, did: int) -> float:
        """0 while there is work and a free lane, short while messages are in flight, else long."""
        if not (did or self.looked):
            return TICK_SECONDS  # no lane is free: no limited topic is tried, either
        wanted, holding = self.lane_limit.lanes, bool(self._in_flight.lanes)
        due_in = self.drain_end.due_in
        wait = self.limit_poller.wait() if self._shared.controls.limits else None
        if wait is not None and self.drain_end.drains:
            due_in = wait if due_in is None else min(wait, due_in)
        more = self._more
        pause = self.pace.after(did, wanted=wanted, holding=holding, due_in=due_in, more=more)
        return pause if wait is None else min(pause, wait)

    def woken(self) -> None:
        self.pace.restart()
        self.limit_poller.woken()

    def failed(self, error: BaseException) -> None:
        self.finder.forget()
        # Messages that became due in the outage were not seen yet: a drain starts anew.
        self.drain_end.saw_work()

    def ended(self) -> None:
        self.link.close()


# --- When a drain is over: after several complete looks that found nothing, with nothing to wait
# for, and with nothing due in the table that it may handle.

EMPTY_LOOKS = 3
"""How many complete looks in a row must find nothing before a drain may end."""
OVERDUE_LOOK_SECONDS = 0.1
"""The pause between two looks for due messages that could not be claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How long a drain waits, in seconds. linger: for messages that become due and for leases of
    other instances. retry_linger: for the next try of failed messages. overdue: for due messages
    that cannot be claimed."""

    linger: float
    retry_linger: float
    overdue: float


class DrainEnd:
    """Decides when a drain is over. Used by the fetcher's thread only.

    drain: None = it never ends. due_in: seconds until there is something to do again, as last read;
    None = unknown. overdue_since: on the clock, since when messages are due that cannot be claimed.
    undone: how many of those there were at the last count.
    """

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        drain: Drain | None,
        link: Connections,
        finder: Finder,
        limit_poller: LimitPoller,
        refused_rows: RefusedRows,
        flagged: FlaggedRows,
        recovery: Recovery,
        jobs: JobCloser,
    ) -> None:
        self._setup, self._shared, self._link = setup, shared, link
        self._drain, self.drains = drain, drain is not None
        self._finder, self._limit_poller = finder, limit_poller
        self._refused_rows, self._flagged = refused_rows, flagged
        self._recovery, self._jobs = recovery, jobs
        self._empty_looks = 0
        self._looked_afresh = False
        self._waited_for_a_lease = False
        self._leases: dict[str, tuple[datetime, float]] = {}
        self.overdue_since: float | None = None
        self.due_in: float | None = None
        self.undone = 0

    def saw_work(self) -> None:
        """There is work, or there may be: count empty looks from 0 again."""
        self._empty_looks = 0
        self._looked_afresh = False
        self.overdue_since = None

    def is_over(self, look: Look) -> bool:
        """After a look of which nothing was claimed; if it is not over, prepares the next look."""
        self.due_in = None
        in_flight = self._shared.in_flight
        starts_in = self._limit_poller.starts_in()
        soon = self._drain and starts_in is not None and starts_in <= self._drain.linger
        if in_flight.lanes or in_flight.running or soon:
            self.saw_work()
        elif not self._finder.steady:
            self._empty_looks = 0
        elif look.complete or (look.round_over and not look.candidates):
            if self.drains and not (look.from_start and self._limit_poller.from_start):
                return self._look_afresh()
            return self._saw_everything()
        return False

    def _look_afresh(self) -> bool:
        self._finder.forget(start=self.drains)
        self._limit_poller.forget()
        return False

    def _saw_everything(self) -> bool:
        recoveries = self._recovery.begun
        self._empty_looks += 1
        if self._empty_looks == 1:  # skipped objects may be free by now
            return self._look_afresh()
        if self._drain is None or self._empty_looks < EMPTY_LOOKS:
            return False
        flagged = self._flagged
        if flagged.unanswered:
            self._empty_looks = 0
            with flagged.no_claim_in_flight():
                flagged.release_unknown(self._link)
            flagged.unanswered = False
            return self._look_afresh()
        if self._recovery.under_way:  # recovered messages may be claimable
            return False
        if not self._looked_afresh:  # state kept between looks may have hidden a message
            self._looked_afresh = True
            return self._look_afresh()
        if self._waits(self._drain):
            return False
        if self._complete_jobs():  # what they have sent is there now
            self.saw_work()
            return self._look_afresh()
        if self._is_due(self._drain):
            self._empty_looks = 0
            self._looked_afresh = False
            self.due_in = OVERDUE_LOOK_SECONDS
            self._finder.go_round()
            return self._look_afresh()
        if self._recovery.begun != recoveries:  # its messages may have counted as another's
            return self._look_afresh()
        return True

    def _waits(self, drain: Drain) -> bool:
        """Whether a message becomes due, or a lease ends, for which it waits."""
        self.due_in = self.read_due_in(drain)
        if self.due_in is None:
            waited, self.due_in = self._waited_for_a_lease, self._wait_for_lease(drain)
            self._waited_for_a_lease = self.due_in is not None
            if waited and self.due_in is None:  # its messages may be free since the last look
                self._looked_afresh = False
                return True
        if self.due_in is None:
            return False
        self.overdue_since = None
        return True

    def read_due_in(self, drain: Drain) -> float | None:
        """Seconds until the first message where we look becomes due that is worth waiting for."""
        setup, paused = self._setup, self._shared.controls.paused
        with self._link.statement() as conn:
            return ranked.due_in(
                conn,
                asking_jobs(setup.tables, paused),
                topics=setup.topics,
                paused=paused,
                linger=drain.linger,
                retry_linger=drain.retry_linger,
                within=self._finder.reach,
            )

    def _wait_for_lease(self, drain: Drain) -> float | None:
        """`lease_ends_in` of those that end within the linger."""
        if drain.linger <= 0:
            return None
        ends_in = self.lease_ends_in(self.read_ending(drain))
        if ends_in == 0.0:
            self._shared.housekeep_now.set()  # which takes the lease over
        return ends_in

    def read_ending(self, drain: Drain) -> Sequence[Lease]:
        """The leases of other instances with messages that end within the linger."""
        me = self._shared.identity.id
        with self._link.statement() as conn:
            return leases_ending(conn, self._setup.tables, within=drain.linger, but=me)

    def lease_ends_in(self, ending: Sequence[Lease]) -> float | None:
        """Seconds until the first of these leases ends (0 = it has ended); None if there is none to
        wait for: not for one that is renewed, or not taken over in time."""
        now, awaited = self._setup.clock(), []
        for one in ending:
            left = one.left_seconds
            late = now + left + self._setup.settings.heartbeat_seconds
            renewed_at, until = self._leases.setdefault(one.name, (one.renewed_at, late))
            if one.renewed_at == renewed_at and now < until:
                awaited.append(left)
        return min(awaited, default=None)

    def _complete_jobs(self) -> int:
        try:
            return self._jobs.run()
        except Exception as error:  # it is not to decide whether a drain ends
            if trouble(error) is Trouble.LOST:
                raise
            self._shared.log.warning("the look for ended jobs has failed: %s", reason_of(error))
            return 0

    def _is_due(self, drain: Drain) -> bool:
        """Whether the table has due messages that it may handle, and it still waits for those: not
        for what the database refuses to flag, which was logged."""
        found, refused = self.read_left(), len(self._refused_rows)
        due = found.due_heads > refused
        self.undone = found.by[Waits.DUE] if due else 0
        if not due:
            return False
        now = self._setup.clock()
        self.overdue_since = now if self.overdue_since is None else self.overdue_since
        return now - self.overdue_since <= drain.overdue

    def read_left(self) -> Left:
        """Count what is left. Stops the instance if what it may see has changed."""
        setup, shared = self._setup, self._shared
        asked = setup.asked(shared.identity.ids, self._finder.reach)
        with self._link.statement() as conn:
            found = left(conn, asking_jobs(setup.tables, shared.controls.paused), asked)
            hides_rows = known.policies_changed(conn, setup.tables)
        if hides_rows:
            shared.stop.stop_for(
                SchemaError(
                    f"row-level security of table {setup.tables.spec.name} was switched on, or "
                    "changed, while this drain ran: what it may not see is not counted. See "
                    "`msgworker doctor`, and start it again"
                )
            )
        return found


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
        sessions none would: then it stops listening."""
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
