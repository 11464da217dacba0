"""The housekeeping: what an instance does periodically beside its messages; two parts of it are
here, the history and the completion of jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from msgworker.counted import few, plural
from msgworker.db.database import Trouble
from msgworker.db.errors import outage_pause, reason_of, shows_a_row, trouble
from msgworker.db.servers import DatabaseFile
from msgworker.errors import DatabaseUnavailable, RuleChanged
from msgworker.events import JobCompleted
from msgworker.instance.claiming.claimer import FlaggedRows
from msgworker.instance.connections import Connections
from msgworker.instance.liveness.lease import Heartbeat
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.liveness.requests import OperatorRequests
from msgworker.instance.observers import MinuteStats, Spans
from msgworker.instance.role import Aside, Role
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.running.pool import LaneQueue
from msgworker.instance.settling.settler import Settler
from msgworker.instance.state import Setup, Shared
from msgworker.store import history, jobs, recover
from msgworker.store.send import notify
from msgworker.table.build import HISTORY

# --- Write the history: what this instance did in each minute (store/history.py).
#
# A part of the housekeeping, on its connection. It is for charts only: an error here must cost
# nothing but history.

FORGET_EVERY = 10
"""After so many writes old rows are deleted; one hour of them at a time."""


class HistoryWriter:
    """Writes the history of one instance; used by the housekeeper. minutes: None if nothing is
    counted: without the table, or with history_seconds=0."""

    def __init__(self, setup: Setup, shared: Shared, link: Connections, spans: Spans) -> None:
        self._setup = setup
        self._spans = spans
        self._link = link
        self._log = shared.log
        self._keep = setup.settings.history_seconds
        self.minutes: MinuteStats | None = None
        self._in_doubt = False  # a write got no answer
        self._writes = hash(shared.identity.id) % FORGET_EVERY  # instances take turns
        if self._keep and HISTORY.is_there(setup.tables):
            self.minutes = MinuteStats(setup.events, spans.database_now)

    def read_clock(self) -> None:
        """Read the database's clock, before the first message."""
        if self.minutes is None:
            return
        try:
            with self._link.transaction() as conn:
                self._spans.set_clock(history.database_seconds(conn, self._setup.tables))
        except Exception as error:
            if trouble(error) is Trouble.LOST:
                raise
            self._log.debug("the clock of the database is unknown: %s", reason_of(error))

    def write(self, *, last: bool = False) -> None:
        """Write the minutes that are over; last: the present one too. Raises only if the database
        is lost."""
        if self.minutes is None or not (minutes := self.minutes.over(last=last)):
            return
        try:
            self._write(self.minutes, minutes)
        except Exception as error:
            self._in_doubt = True
            if trouble(error) is Trouble.LOST:
                raise
            if trouble(error) is not Trouble.REFUSED:  # the next write tries again
                self._log.debug("the history is not written now: %s", reason_of(error))
                return
            self._log.warning("the history is not written: %s", reason_of(error))
            self.minutes.end()
            self.minutes = None  # nothing is counted any more

    def _write(self, counted: MinuteStats, minutes: list[history.Minute]) -> None:
        tables = self._setup.tables
        forgets = self._writes % FORGET_EVERY == FORGET_EVERY - 1
        with self._link.transaction() as conn:
            new = minutes
            if self._in_doubt:
                there = history.written(conn, tables, minutes)
                new = [one for one in minutes if (one.instance, one.at) not in there]
            history.write(conn, tables, new)
            seconds = history.database_seconds(conn, tables)
        self._in_doubt = False
        self._writes += 1
        counted.forget(minutes)
        self._spans.set_clock(seconds)
        if forgets:
            with self._link.transaction() as conn:
                history.forget(conn, tables, self._keep)


# --- Complete jobs of which nothing is unfinished.
#
# A part of the housekeeping, and of the end of a drain. Every instance looks each `poll_seconds`,
# at least a second apart, and all may find the same job: the lock of its row lets one complete it.
# Nothing is remembered of messages that were settled, so a crash loses nothing.

EVERY_SECONDS = 1.0
SHARE = 0.05
"""The share of its time that an instance looks for jobs to complete, at most."""
AGAIN_SECONDS = 60.0
"""When a job whose message is refused is tried again."""


class JobCloser:
    """Completes jobs. The housekeeper has one, and the fetcher for the end of a drain. next_at:
    when the housekeeper looks next (monotonic)."""

    def __init__(
        self, setup: Setup, shared: Shared, link: Connections, *, ends: bool = False
    ) -> None:
        """ends: that of a drain's end looks whenever it is asked, and waits for who is completing a
        job just then."""
        self._setup = setup
        self._shared = shared
        self._link = link
        self._log = shared.log
        self._ends = ends
        self._failed: dict[int, float] = {}  # jobs whose message is refused: when to try again
        self._warned: set[str] = set()  # for what an operator must act
        self._every = max(EVERY_SECONDS, setup.settings.poll_seconds)
        self.next_at = 0.0 if jobs.is_there(setup.tables) else float("inf")

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self.next_at - time.monotonic())

    def run(self) -> int:
        """Complete what has ended, if it is time to look; returns how many jobs."""
        begun, did = time.monotonic(), 0
        if begun < self.next_at and not (self._ends and self.next_at < float("inf")):
            return 0
        self._failed = {job: until for job, until in self._failed.items() if until > begun}
        after: int | None = 0
        try:
            while after is not None:
                with self._link.statement() as conn:
                    found, after = jobs.ended(conn, self._setup.tables, after=after)
                did += sum(map(self._complete, found))
        except Exception as error:
            if trouble(error) is not Trouble.REFUSED:
                raise
            self._warn_once("no job is completed by this instance: %s", error)
            self.next_at = time.monotonic() + AGAIN_SECONDS
            return did
        now = time.monotonic()
        self.next_at = now + max(self._every, (now - begun) / SHARE)
        return did

    def _complete(self, job_id: int) -> bool:
        setup, shared = self._setup, self._shared
        if self._failed.get(job_id, 0.0) > time.monotonic():
            return False
        try:
            had = jobs.ended_of(self._link.statement, setup.tables, job_id)
            if had is None:
                return False
            with self._link.transaction() as conn:
                over = jobs.complete(conn, setup.tables, job_id, had=had, waits=self._ends)
                if over is not None and over.topic is not None:
                    notify(conn, setup.channel)
        except Exception as error:
            if trouble(error) is Trouble.LOST:
                raise
            if trouble(error) is not Trouble.AGAIN:
                self._log_failure(job_id, error)
            return False
        self._failed.pop(job_id, None)
        if over is None:
            return False
        setup.events.emit(
            JobCompleted(
                *(shared.identity.id, over.job_id, over.name),
                done=over.done,
                dead=over.dead,
                topic=over.topic,
                report_id=over.report_id,
            )
        )
        if over.topic is not None:
            shared.look_now.set()
        return True

    def _log_failure(self, job_id: int, error: BaseException) -> None:
        self._failed[job_id] = time.monotonic() + AGAIN_SECONDS
        if trouble(error) is Trouble.REFUSED:
            self._warn_once(f"job {job_id} has ended, and cannot be completed here: %s", error)
            return
        shown = None if shows_a_row(error) else error
        text = "job %s has ended, and its message cannot be sent: %s; it is tried again in %d s"
        self._log.error(text, job_id, reason_of(error), AGAIN_SECONDS)
        self._log.debug("job %s", job_id, exc_info=shown)

    def _warn_once(self, text: str, error: BaseException) -> None:
        if (reason := reason_of(error)) not in self._warned:
            self._warned.add(reason)
            self._log.warning(text, reason)


# --- The housekeeping, in the order of one round: check lanes kept from a lost lease, take a new id
# if it should, read pauses, limits and requests, release flagged rows without a lane, recover dead
# instances, write the history, complete jobs. Between two rounds jobs are completed, too.
#
# Its statements may wait for locks of others, such as one on the table of messages. The lease does
# not depend on them: the heartbeat renews it in another thread, on another connection. The
# housekeeper's is a spare one, since it is needed only now and then.

LEAVE_TRIES = 3
RECORD_SECONDS = 2.0
LEAVE_SECONDS = 10.0  # the most that a last statement may wait; the watchdog has ended by then
UNSURE_SECONDS = 0.1
CLAIM_PATIENCE_SECONDS = 1.0  # how long a round waits for a claim in flight


class Housekeeper(Role):
    """The housekeeping of one instance. After its end the thread that stops the instance calls
    `leave` or `record_stop`."""

    link: Connections

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        *,
        heartbeat: Heartbeat,
        flagged: FlaggedRows,
        lanes: LaneQueue,
        settler: Settler,
    ) -> None:
        aside = Aside(shared.away)  # without housekeeping an instance still claims and settles
        wake, stop_for = shared.housekeep_now, shared.stop.stop_for
        super().__init__("housekeeper", shared.log, aside, wake, stop_for)
        self._setup = setup
        self._shared = shared
        self._lease = heartbeat.lease
        self._heartbeat = heartbeat
        self._flagged = flagged
        self._lanes = lanes
        self._settler = settler
        self.link = shared.connector.new(spare=True)
        self._file = DatabaseFile(setup.engine)
        self._begun = 0.0
        self._whole_at = 0.0  # when the next whole round begins
        self._waits_logged = ""  # the id for which it was logged that it cannot be replaced
        self.jobs = JobCloser(setup, shared, self.link)
        self.requests = OperatorRequests(setup, shared, self.link)
        self.history_writer = HistoryWriter(setup, shared, self.link, settler.spans)
        rest, end_requests = self._asked_to_end.wait, self.requests.end_for
        self.recovery = Recovery(setup, shared, self.link, rest=rest, on_recovered=end_requests)

    def prepare(self) -> None:
        """Load paused and limited topics, and the database's clock: before the lease is taken."""
        with self.link.lock:
            self.requests.read()
            self.history_writer.read_clock()

    def run_once(self) -> int:
        """One round; or, between two, only a look for jobs to complete."""
        begun = time.monotonic()
        self.emit()
        if self._shared.stop.rule_changed:
            return 0
        if begun < self._whole_at:
            with self.link.lock:
                return self.jobs.run()
        self._begun = begun
        self._watch_file()
        with self.link.lock:
            return self._keep_house()

    def woken(self) -> None:
        self._whole_at = 0.0

    def failed(self, error: BaseException) -> None:
        self._whole_at = 0.0

    def _keep_house(self) -> int:
        """Run each part, also if another one has failed; the first error is raised at the end.
        Without the database no further part is tried."""
        self.link.check_server()
        failed: Exception | None = None
        parts: tuple[Callable[[], int | None], ...] = (
            self._recheck_unsure,
            self._take_new_id,
            self.requests.read,
            self._release_unknown,
            lambda: self.recovery.run(self._begun),
            self.history_writer.write,
            self.jobs.run,
        )
        did = 0
        for part in parts:
            try:
                did += part() or 0
            except RuleChanged as changed:  # our statements are built for the old rule
                self.log.error("%s", changed)
                self._shared.stop.stop_for(changed)
                return 0
            except Exception as error:
                if trouble(error) is Trouble.LOST:
                    raise
                failed = failed or error
        if failed is not None:
            raise failed
        return did

    def _release_unknown(self) -> None:
        with self._flagged.no_claim_in_flight(CLAIM_PATIENCE_SECONDS) as free:
            if free:
                self._flagged.release_unknown(self.link)

    def pause_seconds(self, did: int) -> float:
        """Counted from the beginning of the whole round."""
        if self._shared.stop.rule_changed:
            return self._setup.settings.heartbeat_seconds
        self._whole_at = 0.0
        if self.recovery.more:
            return 0.0
        if self._shared.in_flight.unsure:
            return UNSURE_SECONDS
        now = time.monotonic()
        self._whole_at = self._begun + self._setup.settings.heartbeat_seconds
        return max(0.0, min(self._whole_at - now, self.jobs.pause))

    def emit(self) -> None:
        """Log, and emit as events, what has happened to the lease."""
        standstills = self._heartbeat.standstills
        while standstills:
            self.log.warning("%s", standstills.popleft())
        to_emit = self._heartbeat.to_emit
        while to_emit:
            self._setup.events.emit(to_emit.popleft())

    def leave(self) -> bool:
        """Drop the lease at an orderly stop, after the last handler and the heartbeat have ended.
        False if a row is still flagged by us: then it is left to expire, for recovery. The
        connection may have been lost since the last round, so a loss is retried."""
        try:
            for attempt in range(1, LEAVE_TRIES + 1):
                try:
                    with self._cut_after(LEAVE_SECONDS):
                        left = self._leave()
                    break
                except Exception as error:
                    mild = trouble(error) in (Trouble.LOST, Trouble.AGAIN)
                    if not mild or attempt == LEAVE_TRIES or self._shared.stop.gave_up():
                        raise
                    time.sleep(outage_pause(attempt))
            self._write_last()
            return left
        finally:
            self.close()

    def record_stop(self) -> None:
        """Record in the lease, after its last renewal, that only handlers still run."""
        try:
            if self._shared.away.seconds:  # an outage: it cannot be written
                return
            with self._cut_after(RECORD_SECONDS):
                self._lease.record_stopped(self.link)
            self._write_last()
        except Exception as error:  # it is only for operators
            self.log.debug("the stop is not recorded in the lease: %s", reason_of(error))
        finally:
            self.close()

    def _write_last(self) -> None:
        """Write the last part of the history; the stop does not depend on it."""
        try:
            with self._cut_after(RECORD_SECONDS):
                self.history_writer.write(last=True)
        except Exception as error:
            self.log.debug("the last part of the history is not written: %s", reason_of(error))

    @contextmanager
    def _cut_after(self, seconds: float) -> Iterator[None]:
        with self.link.cut_after(seconds):
            alone = self.link.lock.acquire(timeout=seconds)  # see `Connector.new`
            try:
                yield
            finally:
                if alone:
                    self.link.lock.release()

    def close(self) -> None:
        """Return the connections, also that of the heartbeat; the lease is not changed."""
        self.link.close()
        self._heartbeat.link.close()

    def _leave(self) -> bool:
        self.emit()
        if not self._flagged.none_left(self.link):
            return False
        if self.requests.open:
            self.requests.cancel()
        self._lease.drop(self.link, self._shared.identity.id)
        return True

    # ------------------------------------------------------------ our own life

    def _recheck_unsure(self) -> None:
        """Start lanes that were claimed before the lease was lost, if their messages are flagged as
        before; see `Heartbeat.re_register`."""
        setup, shared = self._setup, self._shared
        me, lanes = shared.identity.id, list[Lane]()
        while shared.in_flight.unsure:
            with suppress(IndexError):  # the thread that stops removes them, too
                lanes.append(shared.in_flight.unsure.popleft())
        if not lanes:
            return
        seen = {lane.row.msg_id: lane.row.tries for lane in lanes if lane.row.odd is None}
        try:
            with self.link.transaction() as conn:
                found = recover.still_flagged(conn, setup.tables, seen)
        except Exception:
            shared.in_flight.unsure.extend(lanes)
            raise
        sure = [lane for lane in lanes if lane.row.msg_id in found.free or lane.row.odd is not None]
        for lane in sure:
            lane.owner = me  # if this id is lost meanwhile, too, they are checked again
        self._lanes.put(sure)
        shared.in_flight.unsure.extend(lane for lane in lanes if lane.row.msg_id in found.locked)
        for lane in lanes:
            if lane not in sure and lane.row.msg_id not in found.locked:
                self._settler.drop_lost(lane)

    def _take_new_id(self) -> None:
        """Take a new id when nothing is in flight, if our identity is to retire.

        Statements that may still reach the database name the old id, which no row gets again. If
        messages that could not be settled or released are still flagged by it, its lease is left to
        expire, so that they are recovered.
        """
        setup, shared, identity = self._setup, self._shared, self._shared.identity
        if not identity.retires or not identity.trusted() or shared.in_flight.lanes:
            return
        tenure, new = identity.tenure, self._lease.new_id()
        old, stuck = tenure.id, tenure.stuck | self._flagged.unreleased
        with self._flagged.no_claim_in_flight(CLAIM_PATIENCE_SECONDS) as free:
            if not free or shared.in_flight.lanes:
                return
            with self.link.transaction() as conn:
                left = set(recover.flagged_by(conn, setup.tables, old, limit=len(stuck) + 1))
            if not left <= stuck:  # locked by another transaction: the next rounds release them
                if self._waits_logged != old:
                    self._waits_logged = old
                    text = "no message is claimed until these, flagged by %s, can be released: %s"
                    self.log.warning(text, old, few(sorted(left - stuck)))
                return
            begun = time.monotonic()
            try:
                trusted_until = self._lease.register(self.link, new)
            except DatabaseUnavailable:  # the rule is locked now: retry in the next round
                return
            renamed = identity.adopt(old, new, trusted_until, begun, has_stuck=bool(left))
        if not renamed:  # the heartbeat has found the old lease lost, and has a new id
            self._lease.drop(self.link, new)
            return
        if left:
            text = "continuing as %s; %s has %s that could not be settled or released"
            self.log.warning(text, new, old, plural(len(left), "message"))
            return
        self.log.info("continuing as %s: a settle of %s may still arrive", new, old)
        self._lease.drop(self.link, old)

    def file_gone(self) -> DatabaseUnavailable | None:
        """The error if the database's file was deleted or replaced while in use."""
        if not self._file.is_another():
            return None
        return DatabaseUnavailable(
            f"the database file {self._file.path} was deleted or replaced while it was in use: "
            "writes since then are lost; start again on the right file"
        )

    def _watch_file(self) -> None:
        """Leave if the database's file is gone: no other process would see what we write."""
        if self._shared.stop.stopped_for is None and (gone := self.file_gone()):
            self._shared.stop.stop_for(gone)
