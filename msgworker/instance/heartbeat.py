"""Keep the lease, recover the dead, notice our own death.

What the database decides: whether we hold our lease (a conditional UPDATE on its own clock), and
who is dead (recovery.py).
What local time may decide: only to trust less. We believe in our lease for 2/3 of its time,
counted from the START of the renewal that succeeded; after that no handler starts, and nothing is
renewed any more: we go on as another instance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from msgworker import dialects
from msgworker.clock import clock
from msgworker.dialects import Trouble, reason_of, trouble
from msgworker.errors import (
    DatabaseUnavailable,
    MsgworkerError,
    RuleChanged,
)
from msgworker.events import LeaseLost
from msgworker.instance.claimer import Claimer, nothing_flagged
from msgworker.instance.hand import Lane
from msgworker.instance.handlerwatch import HandlerWatch
from msgworker.instance.identity import new_instance_id
from msgworker.instance.lanes import Lanes
from msgworker.instance.ownlease import TRUST, OwnLease
from msgworker.instance.recovery import Recovery
from msgworker.instance.role import Role, outage_pause
from msgworker.instance.runtime import Runtime
from msgworker.instance.seat import Seat
from msgworker.instance.settler import Settler
from msgworker.store import pause, recover

LEAVE_TRIES = 3
TELL_SECONDS = 2.0
LEAVE_SECONDS = 10.0  # so long one of them may wait for an answer; no watchdog is there any more
UNSURE_SECONDS = 0.1
CLAIM_PATIENCE_SECONDS = 1.0  # so long a beat waits for a claim that is in flight


class Heartbeat(Role):
    """The heartbeat of one instance, on its own connection."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        claimer: Claimer,
        lanes: Lanes,
        settler: Settler,
        handlers: HandlerWatch,
        seat: Seat | None = None,
        label: str = "",
        wake: threading.Event,
        look_now: Callable[[], None],
        leave_for: Callable[[MsgworkerError], None],
    ) -> None:
        """wake: cuts its pause short. look_now: has the fetcher look at once. leave_for: has the
        instance finish what is in hand, and leave for this reason."""
        super().__init__("heartbeat", runtime.log, runtime.away, wake)
        self._runtime = runtime
        self._claimer = claimer
        self._lanes = lanes
        self._settler = settler
        self._look_now = look_now
        self._leave_for = leave_for
        self._handlers = handlers
        self._label = label
        self.link = self._link = runtime.link()
        self._lease = OwnLease(
            runtime, self._link, seat=seat, label=label, wait=self._stopping.wait
        )
        self._told_of_pauses = False
        self._file = dialects.DatabaseFile(runtime.engine)
        self._lost_as = ""  # the id whose lease was lost, until we have another
        self.recovery = Recovery(
            runtime, self._link, log=self.log, rest=self._stopping.wait, on_batch=look_now
        )

    def register(self) -> None:
        """Hear what is paused and take the lease on our own id; before the first claim."""
        self._read_pauses()
        patience = self._runtime.settings.lease_seconds
        identity = self._runtime.identity
        identity.registered(self._lease.register(identity.id, patience))

    def run_once(self) -> int:
        """Renew, or start afresh as a new instance; then recover the dead."""
        if self._has_left():
            return 0
        self._watch_file()
        try:
            self._renew()
            self._make_sure()
            self._rename()
        except RuleChanged as changed:  # our statements are built for the old one
            self.log.error("%s", changed)
            self._leave_for(changed)
            return 0
        self._read_pauses()
        self._handlers.overtime()
        self._claimer.release_unknown(self._link, patience=CLAIM_PATIENCE_SECONDS)
        return self.recovery.run(self._runtime.identity.renewed_at)

    def pause_seconds(self, did: int) -> float:
        """Counted from the renewal: a long beat must not cost us our lease."""
        if self._has_left():
            return self._runtime.settings.heartbeat_seconds
        if self.recovery.more or self._runtime.identity.doubted_at:
            return 0.0
        if self._runtime.hand.unsure:
            return UNSURE_SECONDS
        over = time.monotonic() - self._runtime.identity.renewed_at
        return max(0.0, self._runtime.settings.heartbeat_seconds - over)

    def _has_left(self) -> bool:
        """There is no lease any more to keep."""
        return isinstance(self._runtime.left_for, RuleChanged)

    def leave(self) -> bool:
        """Drop the lease at an orderly stop, after the last handler has ended.

        False if a row is still flagged by us: then the lease is left to expire, for recovery.
        Our connection may have died since the last beat, so a loss is not the end at once.
        """
        try:
            for attempt in range(1, LEAVE_TRIES + 1):
                try:
                    with self._cut_after(LEAVE_SECONDS):
                        return self._leave()
                except Exception as error:
                    mild = trouble(error) in (Trouble.LOST, Trouble.AGAIN)
                    if not mild or attempt == LEAVE_TRIES or self._runtime.gave_up():
                        raise
                    time.sleep(outage_pause(attempt))
            raise AssertionError("unreachable")
        finally:
            self.close()

    def say_stopped(self) -> None:
        """Tell in the lease, which is left to expire, that only handlers are left of us. Call it
        after our last beat."""
        if self._runtime.away.seconds:  # the database is away: it cannot be told
            return
        try:
            with self._cut_after(TELL_SECONDS):
                self._lease.tell_stopped()
        except Exception as error:  # for people only
            self.log.debug("the lease does not tell of the stop: %s", reason_of(error))
        finally:
            self.close()

    @contextmanager
    def _cut_after(self, seconds: float) -> Iterator[None]:
        late = threading.Timer(seconds, self._link.cut)
        late.daemon = True
        with suppress(RuntimeError):  # no thread starts while the interpreter ends
            late.start()
        try:
            yield
        finally:
            late.cancel()
            if late.ident is not None:
                late.join()

    def close(self) -> None:
        """Give the connection back; the lease is left as it is."""
        self._link.close()

    def _leave(self) -> bool:
        if not self._claimer.holds_nothing(self._link):
            return False
        self._lease.drop(self._runtime.identity.id)
        return True

    # ------------------------------------------------------------ our own life

    def _renew(self) -> None:
        identity = self._runtime.identity
        begun, ttl = clock(), self._runtime.settings.lease_seconds
        identity.renewed_at = time.monotonic()
        if begun >= identity.trusted_until or not self._lease.renew():
            self._reborn()
            return
        identity.renewed(begun + TRUST * ttl)

    def _reborn(self) -> None:
        """Declared dead, or silent for too long: forget everything, take a new id.

        The old lease is left to expire, so that another recovers the rows we may still have
        flagged; who does so may have it locked. As long as the database is away nothing is
        forgotten: what was handled may still be settled when it is there again.
        """
        runtime = self._runtime
        runtime.identity.lost()
        if not runtime.tables.has("claimed_by"):
            self._go_on_with_all()
            return
        self._lost_as = self._lost_as or runtime.identity.id
        nothing_flagged(runtime, self._link)  # the database is there
        with self._claimer.no_claim_in_flight():
            runtime.forget_all(new_instance_id(self._label))
        self.register()
        runtime.events.emit(LeaseLost(self._lost_as, runtime.identity.id))
        self._lost_as = ""

    def _go_on_with_all(self) -> None:
        """Declared dead on a table without `claimed_by`: what we have in hand stays ours.

        No instance can recover it, for none knows whose it is; to forget it would strand it. Only
        people may have given it back while no instance lived. From the new lease on they may not,
        so what has not started is asked for after that, by `_make_sure`.
        """
        runtime = self._runtime
        old, new = runtime.identity.id, new_instance_id(self._label)
        trusted_until = self._lease.register(new, runtime.settings.lease_seconds)
        with self._claimer.no_claim_in_flight():
            runtime.carry_all(new)
            held = len(runtime.hand.lanes)
        runtime.identity.registered(trusted_until)
        runtime.events.emit(LeaseLost(old, new, held))

    def _make_sure(self) -> None:
        """Let the lanes start that were claimed before we lost a lease, if their message is flagged
        as it was; see `_go_on_with_all`."""
        runtime = self._runtime
        lanes: list[Lane] = []
        while runtime.hand.unsure:
            with suppress(IndexError):  # a stop takes them, too
                lanes.append(runtime.hand.unsure.popleft())
        if not lanes:
            return
        seen = {lane.row.msg_id: lane.row.tries for lane in lanes if lane.row.odd is None}
        try:
            with self._link.transaction() as conn:
                found = recover.still_flagged(conn, runtime.tables, seen)
        except Exception:
            runtime.hand.unsure.extend(lanes)
            raise
        sure = [lane for lane in lanes if lane.row.msg_id in found.free or lane.row.odd is not None]
        for lane in sure:
            lane.owner = runtime.identity.id
        self._lanes.put(sure)
        runtime.hand.unsure.extend(lane for lane in lanes if lane.row.msg_id in found.locked)
        for lane in lanes:
            if lane not in sure and lane.row.msg_id not in found.locked:
                self._settler.lose(lane)

    def _read_pauses(self) -> None:
        runtime = self._runtime
        if "msgworker_pause" in runtime.tables.missing:
            return
        try:
            with self._link.transaction() as conn:
                paused = pause.topics(conn, runtime.tables)
        except Exception as error:
            if trouble(error) is not Trouble.REFUSED:
                raise
            if not self._told_of_pauses:  # work goes on, as where the table was never made
                self.log.warning("cannot see which topics are paused: %s", reason_of(error))
            self._told_of_pauses = True
            return
        if paused != runtime.paused:
            names = ", ".join(repr(topic) for topic in sorted(paused)) or "none"
            self.log.info("paused topics: %s", names)
            runtime.paused = paused
            self._look_now()

    def _rename(self) -> None:
        """With empty hands go on under a new id, if our identity is to retire.

        What may still be under way to the database names the old id, which no row bears again. If
        messages whose outcome could not be written still do, its lease is left to expire, so that
        they are recovered.
        """
        runtime = self._runtime
        if not runtime.identity.retires or runtime.hand.lanes:
            return
        old, new = runtime.identity.id, new_instance_id(self._label)
        with self._claimer.no_claim_in_flight(CLAIM_PATIENCE_SECONDS) as free:
            if not free or runtime.hand.lanes:
                return
            with self._link.transaction() as conn:
                most = len(runtime.identity.stuck) + 1
                left = set(recover.flagged_by(conn, runtime.tables, old, limit=most))
            if not left <= runtime.identity.stuck:
                return
            try:
                trusted_until = self._lease.register(new)
            except DatabaseUnavailable:  # the rule is locked just now: in the next beat
                return
            runtime.identity.become(new)
            runtime.identity.registered(trusted_until)
        if left:
            text = "going on as %s; %s has %d messages whose outcome could not be written"
            self.log.warning(text, new, old, len(left))
            return
        self.log.info("going on as %s: a settle of %s may still be under way", new, old)
        self._lease.drop(old)

    def file_gone(self) -> DatabaseUnavailable | None:
        """The error that says so when the database's file was deleted or replaced under us."""
        if not self._file.is_another():
            return None
        return DatabaseUnavailable(
            f"the database file {self._file.path} was deleted or replaced while it was in use: "
            "what was written since then is lost; start again on the file that is to be used"
        )

    def _watch_file(self) -> None:
        """No other process sees what is written into a file that has no name any more."""
        if self._runtime.left_for is None and (gone := self.file_gone()):
            self._leave_for(gone)
