"""Collect outcomes, write them together, move the flags.

The first thread that gets a free writer settles all finished lanes ("a settling thread"): a handler
thread; `SettleThread`, where handlers are long; the fetcher before each round; the thread that
stops the instance. Outcomes are gathered while lanes wait and handlers are short, and written at
once otherwise. Settles overlap where the database allows it: while one is under way, another writer
takes what has finished since, if that is worth a statement of its own.
A lane is in one settle at a time: the thread that takes it from the queue has it alone, and its
next message is handled only after the answer to that settle.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import assert_never

from msgworker import events
from msgworker.counted import plural
from msgworker.db.clock import kind_of
from msgworker.db.errors import reason_of, shows_a_row
from msgworker.instance.connections import Connections
from msgworker.instance.observers import Ran, Spans
from msgworker.instance.role import Aside, Role
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.running.outcome import DONE, Result
from msgworker.instance.running.pool import LaneQueue
from msgworker.instance.settling.writer import Writer
from msgworker.instance.state import Setup, Shared
from msgworker.message import Outcome, Settled, State, becomes
from msgworker.store.rows import Row

GATHER_SECONDS = 0.002
WORTH_WAITING_SECONDS = 0.01
BATCH = 1000
LEAST_BESIDE = 50
SHARE_BESIDE = 0.4
"""A settle beside another one takes so many lanes at least, and this share of all in flight: small
statements would cost more than the wait for the other."""
ASK_SECONDS = 0.0005
"""While settles are under way, handler threads check this often whether another is worth it."""
LONG_SECONDS = 0.1
"""Beside a settle that takes longer than this, any number of lanes is worth a statement."""
LEAST_DOUBT_SHARE = 0.1
"""A renewal younger than this share of the time between two heartbeats is not doubted."""


class Settler:
    """Owns the queue of finished lanes and the writers. Settles lanes in batches, and queues those
    that continue for handler threads. Any thread may call it.

    finished: lanes that wait to be settled; any thread appends. writers: the second and later ones
    are spare, see `Writer`.
    """

    def __init__(
        self, setup: Setup, shared: Shared, *, lanes: LaneQueue, on_progress: Callable[[], None]
    ) -> None:
        """lanes: gets the lanes that continue. on_progress: called when there may be something to
        claim, or a free lane for it."""
        self._setup = setup
        self._shared = shared
        self._lanes = lanes
        self._on_progress = on_progress
        self.finished: deque[Lane] = deque()
        # When `add` next checks whether to settle, on the monotonic clock. No lock: if one thread
        # overwrites another's time, a check comes a few milliseconds late.
        self._check_at = 0.0
        self.spans = Spans(zone=kind_of(setup.tables.cols().created_at).zone)
        self.thread = SettleThread(shared, self.flush)
        most = setup.tables.database.settles_at_once
        self.writers = [
            Writer(setup, shared, spare=i > 0, on_leaving=on_progress) for i in range(most)
        ]

    @property
    def links(self) -> list[Connections]:
        return [writer.link for writer in self.writers]

    @property
    def leaving(self) -> int:
        """How many lanes end with the settles under way: the lane limit need not count them."""
        return sum(writer.leaving for writer in self.writers)

    def add(self, lane: Lane, nothing_waits: bool) -> None:
        """Take a finished lane, and settle if it is time."""
        self.finished.append(lane)
        if self.is_due(lane, nothing_waits):
            self.flush(takes_one=True)

    def is_due(self, lane: Lane, nothing_waits: bool) -> bool:
        """Whether it is time for the handler thread of a lane that has just finished to settle."""
        if nothing_waits:
            return True
        if lane.finished_at >= self._check_at:  # seldom true: this runs for each message
            gathered = float("-inf")
            with suppress(IndexError):  # another thread was faster
                gathered = self.finished[0].finished_at + GATHER_SECONDS
            if lane.finished_at >= gathered:
                # Nothing is to be written for a lane that its transactional handler has settled.
                written = lane.settled is not None
                return written or not self.thread.asked(self._lanes.handler_seconds())
            self._check_at = gathered
        return False

    def flush(self, *, takes_one: bool = False) -> None:
        """Settle all finished lanes, unless they are left to a thread that is settling. takes_one:
        see `LaneQueue.put`."""
        # Another thread may add a lane while this one has the lock, and leave it to this one: so
        # the queue is checked again after the lock is released.
        while self.finished and (writer := self._free_writer()) is not None:
            took, continuing = 0, list[Lane]()
            try:
                if writer.open():
                    took, continuing = self._settle_next(writer)
            finally:
                writer.lock.release()
            if continuing:
                self._lanes.put(continuing, takes_one=takes_one)
            if len(continuing) < took:
                self._on_progress()
            # Short handlers will soon have finished these: then one settle writes all, instead of
            # two halves in turn. The calling thread returns here when nothing waits.
            waiting = len(continuing) if takes_one else 0
            if 0 < waiting * self._lanes.handler_seconds() < WORTH_WAITING_SECONDS:
                return

    def _free_writer(self) -> Writer | None:
        """A writer, its lock taken; None = the lanes are left to a thread that is settling.

        A settling thread (`writer.since`) checks the queue again after its settle. A thread that
        has the lock only to open or close a spare writer's connection may not.
        """
        busy = 0
        for writer in self.writers:  # runs for each message: a loop is the cheapest way
            busy += writer.since is not None
        if busy and (busy == len(self.writers) or not self._worth_a_settle()):
            self._check_at = time.monotonic() + ASK_SECONDS
            return None
        for writer in self.writers:
            if writer.may_open and writer.lock.acquire(blocking=False):
                return writer
        return None

    def _worth_a_settle(self) -> bool:
        """Whether to settle beside another one that is under way."""
        waiting = len(self.finished)
        if waiting >= LEAST_BESIDE and waiting >= SHARE_BESIDE * len(self._shared.in_flight.lanes):
            return True
        now = time.monotonic()
        for writer in self.writers:
            since = writer.since
            if since is not None and now - since > LONG_SECONDS:
                return True
        return False

    def flush_waiting(self) -> None:
        """Settle all finished lanes, and wait for the settles that are under way."""
        first, *spare = self.writers
        self._wait_for(first)
        try:
            took = 1
            while took:
                took, continuing = self._settle_next(first)
                if continuing:
                    self._lanes.put(continuing)
        finally:
            first.lock.release()
        for writer in spare:
            self._wait_for(writer)
            writer.lock.release()
        self.flush()  # what was added while a lock was held

    def _wait_for(self, writer: Writer) -> None:
        """Take its lock, after the settle that is under way."""
        while not writer.lock.acquire(timeout=LONG_SECONDS):
            self.flush()  # with another writer, if this one hangs

    def release(self, lanes: Sequence[Lane], *, wait: bool = True) -> None:
        """Release lanes whose current message no handler has started. wait=False: `SettleThread`
        does that."""
        for lane in lanes:
            # A batch may have failed a message before it was flagged (`Lane.verdict`).
            lane.result = lane.result or Result(Outcome.RELEASED)
            lane.finished_at = time.monotonic()
            self.finished.append(lane)
        if not wait:
            if self.finished:
                self.thread.wake()
        elif lanes:
            self.flush_waiting()

    def close(self) -> None:
        """Return all connections, after the settles that are under way."""
        for writer in self.writers:
            writer.close()

    def _take(self, batch: list[Lane]) -> None:
        with suppress(IndexError):
            for _ in range(BATCH):
                batch.append(self.finished.popleft())
        self._check_at = 0.0

    # ------------------------------------------------------------ one batch

    def _settle_next(self, writer: Writer) -> tuple[int, list[Lane]]:
        """Settle what has finished: how many lanes, and those that continue. Does not raise: after
        an unexpected error the rows stay flagged until this instance takes a new id."""
        batch: list[Lane] = []
        try:
            writer.since = time.monotonic()
            self._take(batch)
            return len(batch), self.settle(batch, writer) if batch else []
        except BaseException as error:
            for lane in batch:
                self._shared.identity.cannot_write(lane.owner, [lane.row.msg_id])
            self._shared.in_flight.drop(batch)
            writer.outage.failed(error)
            cause = None if shows_a_row(error) else error
            many = plural(len(batch), "outcome", "was", "were")
            text = "%s not written: %s"
            self._shared.log.error(text, many, reason_of(error), exc_info=cause)
            return len(batch), []
        finally:
            writer.since = None

    def settle_apart(self, batch: Sequence[Lane]) -> None:
        """Write outcomes of lanes that do not continue, on a new connection: the writers may
        hang."""
        if batch:
            writer = Writer(self._setup, self._shared)
            try:
                self.settle(batch, writer)
            finally:
                writer.close()

    def settle(self, batch: Sequence[Lane], writer: Writer) -> list[Lane]:
        """Write the outcomes of a batch; return the lanes whose next message is flagged.

        Retries until the database has answered, or until our lease is lost.
        """
        setup, shared = self._setup, self._shared
        me = shared.identity.id
        mine = [one for one in batch if one.owner == me or shared.identity.is_ours(one.owner)]
        if len(mine) < len(batch):
            for lane in set(batch).difference(mine):
                self.drop_lost(lane)
        open_lanes = {lane.row.msg_id: lane for lane in mine if lane.settled is None}
        became: dict[int, Settled] = {}
        if open_lanes:
            became = writer.write(open_lanes, me)
            if became:
                self._answered()
        done, ran = list[Row](), list[Ran]()
        continuing, over = list[Lane](), list[Lane]()
        lost, advanced = Settled.LOST, Settled.ADVANCED
        for lane in mine:
            # Nearly all are done; `_record` handles what is rare.
            row = lane.row
            usual = lane.result is DONE and lane.width == 1
            settled = (lane.settled or became.get(row.msg_id, lost)) if usual else lost
            if settled is lost:
                if self._record(lane, became, done, ran):
                    continuing.append(lane)
                continue
            done.append(row)
            ran.append((lane.started_at, lane.ran_seconds))
            if settled is advanced:
                lane.advance()
                continuing.append(lane)
            else:
                over.append(lane)
        if over:
            self._end(over)
        written = len(became) - list(became.values()).count(lost)
        try:
            spans = self.spans.of(done, ran) if done else ()
            setup.events.emit(events.Settled(me, done, spans, written))
        except Exception as error:  # those that continue still do
            many = plural(len(done), "message")
            text = "%s settled as done, but not counted: %s"
            shared.log.error(text, many, reason_of(error), exc_info=error)
        if setup.registry.has_follow_ups:
            self._on_progress()  # messages about these may be claimed
        return continuing

    def _answered(self) -> None:
        """The database works: end the outages of idle writers, too. A writer that stopped retrying
        may not be used again, and then its outage would never end."""
        for writer in self.writers:
            idle = writer.since is None and writer.outage.failures
            if idle and writer.lock.acquire(blocking=False):
                try:
                    writer.outage.over()
                finally:
                    writer.lock.release()

    def _record(
        self, lane: Lane, became: dict[int, Settled], done: list[Row], ran: list[Ran]
    ) -> bool:
        """Record the result of a lane; True if it continues. done, ran: collect done messages."""
        settled = lane.settled or became.get(lane.row.msg_id, Settled.LOST)
        if settled is Settled.LOST:
            self._doubt()  # before we may claim the object again
            self.drop_lost(lane)
            return False
        if lane.result is None or lane.result.outcome is Outcome.DONE:
            done += lane.taken()
            ran += [(lane.started_at, lane.ran_seconds)] * lane.width
            if lane.result is not None and lane.result.sends:
                self._on_progress()  # they may be claimed
        else:
            self._emit(lane, lane.result)
        if settled is Settled.ENDED:
            self._end([lane])
            return False
        lane.advance()
        return True

    def _end(self, lanes: Sequence[Lane]) -> None:
        """Drop lanes that have ended: we may claim their objects again."""
        in_flight = self._shared.in_flight
        in_flight.drop(lanes)
        if in_flight.blocked:
            in_flight.blocked.difference_update([lane.row.same for lane in lanes])

    def _doubt(self) -> None:
        """A message was taken from us: stop claiming and starting handlers until the lease has been
        renewed, and renew it at once. Otherwise an instance that was declared dead would claim
        until its next heartbeat, and each of these claims would count a crash."""
        beat = self._setup.settings.heartbeat_seconds
        if self._shared.identity.doubt(least_age=LEAST_DOUBT_SHARE * beat):
            self._shared.renew_now.set()

    def drop_lost(self, lane: Lane) -> None:
        """Drop a lane whose message is no longer ours."""
        setup, shared = self._setup, self._shared
        if lane.result is not None:
            lane.result.raised = None
        shared.in_flight.drop([lane])
        setup.events.emit(events.Lost(lane.owner, lane.row))

    def _emit(self, lane: Lane, result: Result) -> None:
        """Emit the event of a written outcome, other than done."""
        setup, shared, row, me = self._setup, self._shared, lane.row, lane.owner
        shared.in_flight.look_again.append(row.msg_id)
        raised, result.raised = result.raised, None
        error = result.error or ""
        span = self.spans.of([row], [(lane.started_at, lane.ran_seconds)])[0]
        event: events.Event
        most = setup.tables.spec.max_tries
        match becomes(result.outcome, row.tries, max_tries=most):
            case Outcome.FAILED, State.FAILED:
                event = events.Retried(me, row, error, result.delay_seconds, raised, span)
            case ((Outcome.FAILED | Outcome.DEAD | Outcome.SPENT), _):
                event = events.Dead(me, row, error, raised, span)
            case Outcome.LATER, _:
                seconds, asked = result.delay_seconds, row.later_times + 1
                event = events.Later(me, row, error, seconds, asked, raised, span)
            case Outcome.CANCELLED, _:
                event = events.Cancelled(me, row, error, span)
            case Outcome.RELEASED, _:
                event = events.Released(me, row, shared.stop.requested.is_set())
            case Outcome.DONE, _:
                raise AssertionError("a done message has no event of its own")
            case unknown:
                assert_never(unknown)
        setup.events.emit(event)


# --- A thread that settles for the handler threads, where handlers are long.
#
# A handler thread that settles runs no handler meanwhile. Where handlers are short that costs less
# than waking another thread; where they are long, a handler thread would be lost for that time.

LONG_HANDLER_SECONDS = 0.001
IDLE_SECONDS = 10.0


class SettleThread(Role):
    """Settles whenever it is woken. settle: settles all finished lanes, unless another thread does;
    does not raise."""

    def __init__(self, shared: Shared, settle: Callable[[], None]) -> None:
        aside = Aside(shared.away)  # the writers log their outages
        super().__init__("settler", shared.log, aside, stop_for=shared.stop.stop_for)
        self._settle = settle

    def asked(self, handler_seconds: float) -> bool:
        """Wake it if handlers take so long that it pays; returns whether it will settle. Handler
        threads call this after they have queued a finished lane."""
        if handler_seconds < LONG_HANDLER_SECONDS or not self.alive:
            return False
        self.wake()
        return True

    def run_once(self) -> int:
        self._settle()
        return 0

    def pause_seconds(self, did: int) -> float:
        return IDLE_SECONDS
