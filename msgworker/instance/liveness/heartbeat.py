"""Renew the lease, recover dead instances, notice the loss of our own lease.

The database decides whether we hold our lease (a conditional UPDATE on its own clock), and which
instances are dead (recovery.py).
The local clock may only shorten trust. We trust our lease for 2/3 of its time, counted from the
START of the last successful renewal; after that no handler starts, and the lease is not renewed:
the instance continues under a new id.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from msgworker import dialects
from msgworker.clock import clock
from msgworker.counted import plural
from msgworker.dialects import Trouble, reason_of, trouble
from msgworker.errors import (
    DatabaseUnavailable,
    RuleChanged,
)
from msgworker.events import LeaseLost, Renewed
from msgworker.instance.claiming.claimer import Claimer, nothing_flagged
from msgworker.instance.claiming.seat import Seat
from msgworker.instance.liveness.chronicle import Chronicle
from msgworker.instance.liveness.identity import new_instance_id
from msgworker.instance.liveness.ownlease import TRUST, OwnLease
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.liveness.requests import Requests
from msgworker.instance.role import Role, outage_pause
from msgworker.instance.running.hand import Lane
from msgworker.instance.running.handlerwatch import HandlerWatch
from msgworker.instance.running.lanes import Lanes
from msgworker.instance.runtime import Runtime
from msgworker.instance.settling.settler import Settler
from msgworker.store.recovering import recover

LEAVE_TRIES = 3
TELL_SECONDS = 2.0
LEAVE_SECONDS = 10.0  # the most that a last statement may wait; the watchdog has ended by then
UNSURE_SECONDS = 0.1
CLAIM_PATIENCE_SECONDS = 1.0  # how long a beat waits for a claim in flight


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
        threads: int,
        label: str = "",
        wake: threading.Event,
        look_now: Callable[[], None],
    ) -> None:
        """wake: ends its pause early. look_now: makes the fetcher look at once."""
        super().__init__("heartbeat", runtime.log, runtime.away, wake, runtime.leave_for)
        self._runtime = runtime
        self._claimer = claimer
        self._lanes = lanes
        self._settler = settler
        self._look_now = look_now
        self._handlers = handlers
        self._label = label
        self.link = self._link = runtime.link()
        wait = self._stopping.wait
        self._lease = OwnLease(
            runtime, self._link, seat=seat, threads=threads, label=label, wait=wait
        )
        self._file = dialects.DatabaseFile(runtime.engine)
        self._lost_as = ""  # the id whose lease was lost, until there is a new one
        self.requests = Requests(runtime, self._link, log=self.log, look_now=look_now)
        self.chronicle = Chronicle(runtime, self._link, log=self.log)
        self.recovery = Recovery(
            runtime,
            self._link,
            log=self.log,
            rest=self._stopping.wait,
            on_batch=look_now,
            given_back=self.requests.given_back,
        )

    def register(self) -> None:
        """Load paused and limited topics, and take the lease on our own id: before the first
        claim."""
        self.requests.read()
        self.chronicle.look_at_clock()
        patience = self._runtime.settings.lease_seconds
        identity = self._runtime.identity
        identity.registered(self._lease.register(identity.id, patience))

    def run_once(self) -> int:
        """Renew, or register again as a new instance; then recover dead instances."""
        if self._has_left():
            return 0
        self._watch_file()
        self._link.check_server()
        try:
            self._renew()
            self._make_sure()
            self._rename()
        except RuleChanged as changed:  # our statements are built for the old one
            self.log.error("%s", changed)
            self._runtime.leave_for(changed)
            return 0
        self.requests.read()
        self._handlers.overtime()
        self._claimer.release_unknown(self._link, patience=CLAIM_PATIENCE_SECONDS)
        did = self.recovery.run(self._runtime.identity.renewed_at)
        self.chronicle.write()
        return did

    def pause_seconds(self, did: int) -> float:
        """Counted from the renewal, so that a long beat does not cost the lease."""
        if self._has_left():
            return self._runtime.settings.heartbeat_seconds
        if self.recovery.more or self._runtime.identity.doubted_at:
            return 0.0
        if self._runtime.hand.unsure:
            return UNSURE_SECONDS
        over = time.monotonic() - self._runtime.identity.renewed_at
        return max(0.0, self._runtime.settings.heartbeat_seconds - over)

    def _has_left(self) -> bool:
        """There is no lease left to renew."""
        return isinstance(self._runtime.left_for, RuleChanged)

    def leave(self) -> bool:
        """Drop the lease at an orderly stop, after the last handler has ended.

        False if a row is still flagged by us: then the lease is left to expire, for recovery.
        The connection may have been lost since the last beat, so a loss is retried.
        """
        try:
            for attempt in range(1, LEAVE_TRIES + 1):
                try:
                    with self._cut_after(LEAVE_SECONDS):
                        left = self._leave()
                    break
                except Exception as error:
                    mild = trouble(error) in (Trouble.LOST, Trouble.AGAIN)
                    if not mild or attempt == LEAVE_TRIES or self._runtime.gave_up():
                        raise
                    time.sleep(outage_pause(attempt))
            self._write_last()
            return left
        finally:
            self.close()

    def say_stopped(self) -> None:
        """Record in the lease, which is left to expire, that only handlers still run. Call it
        after the last beat."""
        if self._runtime.away.seconds:  # an outage: it cannot be written
            return
        try:
            with self._cut_after(TELL_SECONDS):
                self._lease.tell_stopped()
            self._write_last()
        except Exception as error:  # it is only for operators
            self.log.debug("the stop is not recorded in the lease: %s", reason_of(error))
        finally:
            self.close()

    def _write_last(self) -> None:
        """The last part of the history; without it the stop is as good."""
        try:
            with self._cut_after(TELL_SECONDS):
                self.chronicle.write(last=True)
        except Exception as error:
            self.log.debug("the last part of the history is not written: %s", reason_of(error))

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
        """Return the connection; the lease is not changed."""
        self._link.close()

    def _leave(self) -> bool:
        if not self._claimer.holds_nothing(self._link):
            return False
        if self.requests.open:
            self.requests.cancel()
        self._lease.drop(self._runtime.identity.id)
        return True

    # ------------------------------------------------------------ our own life

    def _renew(self) -> None:
        identity = self._runtime.identity
        begun, ttl = clock(), self._runtime.settings.lease_seconds
        identity.renewed_at = time.monotonic()
        if begun >= identity.trusted_until or not self._lease.renew():
            self.reborn()
            return
        margin = identity.trusted_until - begun
        identity.renewed(begun + TRUST * ttl)
        stream, hand = self._runtime.events, self._runtime.hand
        if stream.wants(Renewed):
            stream.emit(Renewed(identity.id, margin, len(hand.lanes), len(hand.running)))

    def reborn(self) -> None:
        """Declared dead, or not renewed for too long: drop all lanes, take a new id.

        The old lease is left to expire, so that another instance recovers rows that we may still
        have flagged; that instance may have it locked. During an outage nothing is
        dropped: finished messages may still be settled after it.
        """
        runtime = self._runtime
        runtime.identity.lost()
        if not runtime.tables.has("claimed_by"):
            self._go_on_with_all()
            return
        self._lost_as = self._lost_as or runtime.identity.id
        nothing_flagged(runtime, self._link)  # raises during an outage
        with self._claimer.no_claim_in_flight():
            runtime.forget_all(new_instance_id(self._label))
        self.register()
        runtime.events.emit(LeaseLost(self._lost_as, runtime.identity.id))
        self._lost_as = ""

    def _go_on_with_all(self) -> None:
        """Declared dead on a table without `claimed_by`: keep the in-flight messages.

        No instance can recover them, since their owner is not recorded; dropping them would strand
        them. Only an operator may have released them while no instance was alive. The new lease
        prevents that, so messages that have not started are checked after it, by `_make_sure`.
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
        """Start lanes that were claimed before the lease was lost, if their message is flagged as
        before; see `_go_on_with_all`."""
        runtime = self._runtime
        lanes: list[Lane] = []
        while runtime.hand.unsure:
            with suppress(IndexError):  # a stop removes them, too
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

    def _rename(self) -> None:
        """Take a new id when nothing is in flight, if our identity is to retire.

        Statements that may still reach the database name the old id, which no row will have again.
        If messages whose outcome could not be written still have it, its lease is left to expire,
        so that they are recovered.
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
            except DatabaseUnavailable:  # the rule is locked now: retry in the next beat
                return
            runtime.identity.become(new)
            runtime.identity.registered(trusted_until)
        if left:
            text = "continuing as %s; %s has %s whose outcome could not be written"
            self.log.warning(text, new, old, plural(len(left), "message"))
            return
        self.log.info("continuing as %s: a settle of %s may still arrive", new, old)
        self._lease.drop(old)

    def file_gone(self) -> DatabaseUnavailable | None:
        """The error if the database's file was deleted or replaced while in use."""
        if not self._file.is_another():
            return None
        return DatabaseUnavailable(
            f"the database file {self._file.path} was deleted or replaced while it was in use: "
            "writes since then are lost; start again on the right file"
        )

    def _watch_file(self) -> None:
        """Leave: no other process sees writes to a deleted file."""
        if self._runtime.left_for is None and (gone := self.file_gone()):
            self._runtime.leave_for(gone)
