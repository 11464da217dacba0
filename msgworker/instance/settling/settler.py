"""Collect outcomes, write them together, move the flags.

The first thread that gets the lock settles for all ("the settling thread"); there is no dedicated
one. Outcomes are gathered while lanes wait and handlers are short, and written at once otherwise.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from sqlalchemy.exc import DBAPIError

from msgworker import events
from msgworker.dialects import Trouble, reason_of, shows_a_row, trouble
from msgworker.instance.role import Outage
from msgworker.instance.running.hand import Lane
from msgworker.instance.running.lanes import Lanes
from msgworker.instance.running.outcome import DONE, Result
from msgworker.instance.runtime import Runtime, facts
from msgworker.instance.settling.settlements import settlement, what_became
from msgworker.instance.settling.untilknown import Fate, until_known
from msgworker.message import UNWRITABLE, Outcome, Settled, Settlement
from msgworker.store.rows import Row
from msgworker.store.settling import done
from msgworker.store.settling import settle as store

GATHER_SECONDS = 0.002
WORTH_WAITING_SECONDS = 0.01
BATCH = 1000
DEADLOCK_SECONDS = 0.2  # the longest pause before a settle is sent again after a rollback
LEAST_DOUBT_SHARE = 0.1
"""The least age of a renewal that may be doubted, as a share of the time between two beats."""


class Settler:
    """Takes finished lanes, settles them in batches, gives back those that go on."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        lanes: Lanes,
        on_progress: Callable[[], None],
        beat_now: Callable[[], None],
    ) -> None:
        """lanes: gets the lanes that continue. on_progress: called when there may be room for
        more. beat_now: requests a heartbeat at once."""
        self._runtime = runtime
        self._lanes = lanes
        self._on_progress = on_progress
        self._beat_now = beat_now
        self._finished: deque[Lane] = deque()
        self._lock = threading.Lock()
        self.link = self._link = runtime.link()
        self.outage = Outage(runtime.log, "settle", runtime.away)
        self._pauses = _Pauses(self.outage)

    def add(self, lane: Lane, nothing_waits: bool) -> None:
        """Take a finished lane from a handler thread, and settle if it is time."""
        self._finished.append(lane)
        if (
            nothing_waits
            or len(self._finished) >= BATCH
            or lane.finished_at - self._finished_since() > GATHER_SECONDS
        ):
            self.flush(takes_one=True)

    def _finished_since(self) -> float:
        try:
            return self._finished[0].finished_at
        except IndexError:  # another thread was faster
            return float("inf")

    def flush(self, *, takes_one: bool = False) -> None:
        """Settle all finished lanes, unless another thread is already settling."""
        # Checked again after the lock is free, so that a lane added meanwhile is not missed.
        while self._finished and self._lock.acquire(blocking=False):
            try:
                batch = self._take()
                took = len(batch)
                going_on = self._settle_safely(batch)
            finally:
                self._lock.release()
            if going_on:
                self._lanes.put(going_on, takes_one=takes_one)
            if len(going_on) < took:
                self._on_progress()
            # Short handlers will soon have finished these: then one settle writes all, instead of
            # two halves in turn. The calling thread returns here when nothing waits.
            if takes_one and 0 < len(going_on) * self._lanes.pace() < WORTH_WAITING_SECONDS:
                return

    def flush_waiting(self) -> None:
        """Settle all finished lanes, after the thread that is settling now."""
        with self._lock:
            while batch := self._take():
                going_on = self._settle_safely(batch)
                if going_on:
                    self._lanes.put(going_on)

    def give_back(self, lanes: Sequence[Lane]) -> None:
        """Release lanes whose current message no handler has started."""
        for lane in lanes:
            lane.result = Result(Outcome.RELEASED)
            lane.finished_at = time.monotonic()
            self.add(lane, False)
        if lanes:
            self.flush_waiting()

    def close(self) -> None:
        with self._lock:
            self._link.close()

    def _take(self) -> list[Lane]:
        batch: list[Lane] = []
        while len(batch) < BATCH:
            try:
                batch.append(self._finished.popleft())
            except IndexError:
                break
        return batch

    # ------------------------------------------------------------ one batch

    def _settle_safely(self, batch: Sequence[Lane]) -> list[Lane]:
        """`settle`; after an error of our own the rows stay flagged until this instance takes
        a new id."""
        try:
            return self.settle(batch) if batch else []
        except Exception as error:
            told = None if shows_a_row(error) else error
            text = "%d outcomes were not written: %s"
            self._runtime.log.error(text, len(batch), reason_of(error), exc_info=told)
            self.outage.failed(error)
            self._runtime.identity.cannot_write([lane.row.msg_id for lane in batch])
            self._runtime.hand.drop(batch)
            return []

    def settle(self, batch: Sequence[Lane]) -> list[Lane]:
        """Write the outcomes of a batch; return the lanes whose next message is flagged.

        Retries until the database has answered, or until our lease is lost.
        """
        runtime = self._runtime
        me = runtime.identity.id
        mine = [one for one in batch if one.owner == me or runtime.identity.is_ours(one.owner)]
        if len(mine) < len(batch):
            for lane in set(batch).difference(mine):
                self.lose(lane)
        open_lanes = {lane.row.msg_id: lane for lane in mine if lane.settled is None}
        became: dict[int, Settled] = {}
        if open_lanes:
            became = self._write(open_lanes, me)
        written: list[Row] = []
        going_on = [lane for lane in mine if self._after(lane, became, written)]
        runtime.events.emit(events.Settled(me, written))
        return going_on

    def _after(self, lane: Lane, became: dict[int, Settled], written: list[Row]) -> bool:
        """Record the result of a lane; True if it continues. written: collects done messages."""
        if lane.settled is not None:
            fate = Settled.WENT_ON if lane.settled else Settled.ENDED
        else:
            fate = became.get(lane.row.msg_id, Settled.LOST)
        if fate is Settled.LOST:
            self._doubt()  # before the object is free for us
            self.lose(lane)
            return False
        if lane.result is None or lane.result is DONE:
            written += lane.taken()
        else:
            self._tell(lane, lane.result, written)
        if fate is Settled.ENDED:
            self._runtime.hand.lanes.discard(lane)
            self._runtime.hand.blocked.discard(lane.row.same)  # its object is free for us
            return False
        lane.go_on()
        return True

    def _doubt(self) -> None:
        """A message was taken from us: stop claiming and starting handlers until the lease has been
        renewed; renew it at once. Otherwise an instance that was declared dead would claim until
        its next beat, and each of these claims would count a crash."""
        beat = self._runtime.settings.heartbeat_seconds
        if self._runtime.identity.doubt(least_age=LEAST_DOUBT_SHARE * beat):
            self._beat_now()

    def lose(self, lane: Lane) -> None:
        """Drop a lane whose message is no longer ours."""
        runtime = self._runtime
        if lane.result is not None:
            lane.result.raised = None
        runtime.hand.lanes.discard(lane)
        runtime.events.emit(events.Lost(lane.owner, lane.row))

    def _tell(self, lane: Lane, result: Result, written: list[Row]) -> None:
        """Emit the event of a written outcome."""
        runtime, row, me, outcome = self._runtime, lane.row, lane.owner, result.outcome
        raised, result.raised = result.raised, None
        error = result.error or ""
        event: events.Event
        if outcome is Outcome.FAILED and row.tries + 1 < runtime.tables.spec.max_tries:
            event = events.Retried(me, row, error, result.delay_seconds, raised)
        elif outcome in (Outcome.FAILED, Outcome.DEAD, Outcome.SPENT):
            event = events.Dead(me, row, error, raised)
        elif outcome is Outcome.LATER:
            seconds, times = result.delay_seconds, row.later_times + 1
            event = events.Later(me, row, error, seconds, times, raised)
        elif outcome is Outcome.RELEASED:
            event = events.Released(me, row, runtime.stopping.is_set())
        else:
            written.append(row)
            return
        runtime.events.emit(event)

    def _write(self, lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
        """Write until the result is known; lanes that are not in it are lost."""
        runtime, became = self._runtime, dict[int, Settled]()

        def left() -> dict[int, Lane]:
            return {i: lane for i, lane in lanes.items() if i not in became}

        def send() -> dict[int, Settled]:
            if lanes_left := left():
                self.write_once(list(lanes_left.values()), me, became)
            return became

        def look() -> dict[int, Settled] | None:
            if lanes_left := left():
                became.update(self._look(lanes_left, me))
            return None if left() else became

        def judge(error: BaseException, looking: bool) -> Fate:
            kind = trouble(error)
            if kind is Trouble.OTHER:
                return Fate.RAISE
            if kind is Trouble.AGAIN:
                return Fate.AGAIN
            runtime.identity.doubtful.update(left())
            return Fate.UNKNOWN

        def may_go_on() -> bool:  # under a lost id the recovering instance may have the rows locked
            return runtime.identity.is_ours(me) and not runtime.gave_up()

        known = until_known(
            *(send, look, may_go_on, self._pauses),
            judge=judge,
            before_again=lambda: None if may_go_on() else became,
        )
        return became if known is None else known

    def _look(self, lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
        """Read what was written.

        The old row still flagged: not committed, and not in the answer. The next one flagged:
        committed, the lane continues. None: committed and over, or lost.
        """
        ids = set(lanes) | {r.msg_id for lane in lanes.values() if (r := lane.next_row)}
        with self._link.transaction() as conn:
            flagged = done.look(conn, self._runtime.tables, ids, me=me)
        return what_became(lanes, flagged)

    def write_once(self, lanes: Sequence[Lane], me: str, became: dict[int, Settled]) -> None:
        """One try; `became` is filled with what is known to be committed, also when it raises."""
        tables = self._runtime.tables
        batch = [settlement(lane, self._runtime) for lane in lanes]
        plain = all(s.outcome is Outcome.DONE for s in batch)
        try:
            alone = tables.dialect.arrays and plain
            with self._link.statement() if alone else self._link.transaction() as conn:
                written = store.settle(conn, tables, batch, me=me)
            became |= written
            return
        except done.FlagMissing:
            pass
        except Exception as error:
            if trouble(error) not in (Trouble.RACE, Trouble.OTHER):
                raise
        # One by one, so that a lane that cannot be settled does not block the others.
        for lane, one in zip(lanes, batch, strict=True):
            became[one.msg_id] = self._write_alone(lane.row, one, me)

    def _write_alone(self, row: Row, one: Settlement, me: str) -> Settled:
        log = self._runtime.log
        try:
            with self._link.transaction() as conn:
                tables = self._runtime.tables
                return store.settle_one(conn, tables, one, me=me, at_once=True)
        except Exception as error:
            if trouble(error) not in (Trouble.RACE, Trouble.OTHER):
                raise
            if one.error in (None, UNWRITABLE) and one.trace is None:
                text = "message %s: its outcome is not written: %s"
                # Without the driver's own text, which may show the row.
                told = None if isinstance(error, DBAPIError) else error
                log.error(text, row.msg_id, reason_of(error), exc_info=told, extra=facts(row))
                self._runtime.identity.cannot_write([one.msg_id])
                return Settled.LOST
            # The table may refuse a text (another character set, a shorter column).
            log.warning("message %s: %s", row.msg_id, reason_of(error), extra=facts(row))
        fewer = one._replace(error=UNWRITABLE) if one.trace is None else one._replace(trace=None)
        return self._write_alone(row, fewer, me)


class _Pauses:
    """The pauses of an outage; a deadlock is retried soon, because other lanes wait."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage

    def failed(self, error: BaseException) -> float:
        pause = self._outage.failed(error)
        return min(pause, DEADLOCK_SECONDS) if trouble(error) is Trouble.AGAIN else pause

    def over(self) -> None:
        self._outage.over()
