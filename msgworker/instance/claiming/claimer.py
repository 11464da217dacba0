"""Claim: flag heads, read the runs behind them, and account for every row flagged by us."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.counted import few
from msgworker.db.database import Trouble
from msgworker.db.errors import reason_of, secrets_of, trouble, without
from msgworker.events import Claimed
from msgworker.instance.claiming.capacity import LaneLimit, LimitPoller, RunLength
from msgworker.instance.connections import Connections
from msgworker.instance.role import EVERYDAY
from msgworker.instance.running.in_flight import TOPIC, Lane
from msgworker.instance.state import Setup, Shared
from msgworker.message import in_quarantine, topic_of
from msgworker.store import claim, limits, recover
from msgworker.store.candidates import Candidate
from msgworker.store.controls import asking_jobs
from msgworker.store.rows import Bare, Row, refuse_at_once
from msgworker.table.columns import Slice
from msgworker.table.tables import prioritized

# --- Messages that the database refuses to flag: a trigger, a CHECK or a constraint forbids it.
#
# Such a head can neither run nor become dead. It is skipped with its object, and tried again at
# growing intervals, separately: it makes each claim fail that contains it.

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
SUSPECT_AFTER = 4
"""A candidate that was lost this often is tried separately, to get the database's error."""
ALONE_AT_ONCE = 8
FORGET_LOSSES_SECONDS = 60.0
FORGET_SECONDS = 60.0
LOG_SECONDS = 10.0
MOST = 10_000
SHOWN = 20
SHOWN_LENGTH = 200


@dataclass(slots=True)
class RefusedRow:
    """same: the key of the skipped object. reason: the database's error. until: when it is tried
    again (monotonic)."""

    same: Any
    reason: str
    pause: float
    until: float


class RefusedRows:
    """The refused messages. The fetcher's thread owns them; any thread may call `reasons`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[int, RefusedRow] = {}
        self._losses: dict[int, int] = {}
        self._losses_since = clock()
        self._unlogged: dict[int, str] = {}
        self._logged_at = -LOG_SECONDS

    def __len__(self) -> int:
        return len(self._found)

    def reasons(self) -> dict[int, str]:
        """The database's errors by msg_id, of the lowest few ids, for operators."""
        found = sorted((msg_id, one.reason) for msg_id, one in self._found.copy().items())
        return {msg_id: reason[:SHOWN_LENGTH] for msg_id, reason in found[:SHOWN]}

    def waiting(self) -> tuple[set[Any], set[int]]:
        """The objects and messages to skip now."""
        now = self._clock()
        for msg_id, one in list(self._found.items()):
            if now > one.until + FORGET_SECONDS:  # not offered again: perhaps fixed
                del self._found[msg_id]
        kept = {msg_id: one for msg_id, one in self._found.items() if now < one.until}
        return {one.same for one in kept.values() if one.same is not None}, set(kept)

    def suspects(self, candidate: Candidate) -> bool:
        """Whether it was refused before, or lost repeatedly."""
        i = candidate.msg_id
        return i in self._found or self._losses.get(i, 0) >= SUSPECT_AFTER

    def sorted_out(self, candidates: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """Candidates to try together, and a few to try separately."""
        some = self._found or self._losses
        alone = [c for c in candidates if self.suspects(c)][:ALONE_AT_ONCE] if some else []
        if not alone:
            return candidates, []
        left_out = {c.msg_id for c in alone} | self._found.keys()
        return [c for c in candidates if c.msg_id not in left_out], alone

    def lost(self, candidates: Sequence[Candidate], *, alone: bool = False) -> None:
        """Count candidates that could not be flagged. alone: no other instance is alive, so none
        was faster: each counts twice."""
        now = self._clock()
        if now - self._losses_since > FORGET_LOSSES_SECONDS:
            self._losses.clear()
            self._losses_since = now
        for one in candidates:
            if one.msg_id not in self._found:
                self._losses[one.msg_id] = self._losses.get(one.msg_id, 0) + (2 if alone else 1)

    def record(self, candidate: Candidate, reason: str | None) -> None:
        """Record a separate try. reason: the database's error, logged the first time; None = it was
        not refused."""
        known = self._found.pop(candidate.msg_id, None)
        self._losses.pop(candidate.msg_id, None)
        if reason is None:
            return
        pause = FIRST_PAUSE_SECONDS if known is None else 2 * known.pause
        pause = min(pause, LONGEST_PAUSE_SECONDS)
        until = self._clock() + pause
        self._found[candidate.msg_id] = RefusedRow(candidate.same, reason, pause, until)
        if len(self._found) > MOST:
            self._found.pop(next(iter(self._found)))
        if known is None:
            self._unlogged[candidate.msg_id] = reason

    def log_new(self, log: logging.LoggerAdapter[logging.Logger]) -> None:
        """Log new refusals, at a limited rate."""
        if not self._unlogged or self._clock() - self._logged_at < LOG_SECONDS:
            return
        self._logged_at = self._clock()
        by_reason: dict[str, list[int]] = {}
        for msg_id, reason in self._unlogged.items():
            by_reason.setdefault(reason, []).append(msg_id)
        self._unlogged.clear()
        for reason, ids in by_reason.items():
            what = f"message {ids[0]}" if len(ids) == 1 else f"{len(ids)} messages ({few(ids, 10)})"
            text = "the database refuses to flag %s; skipped, and tried again at growing intervals"
            log.warning(f"{text}: %s", what, reason)


# --- The rows flagged by us.
#
# A claim that was committed although its answer was lost leaves flagged rows without a lane. While
# no claim is in flight, each row flagged by us without a lane comes from such a claim.

SWEEP_LIMIT = 5000


class FlaggedRows:
    """The rows flagged by our id, and the release of those that no lane holds. Any thread may call
    the methods, each with a link of its own.

    claiming: held from the flagging until the lanes exist. unanswered: the answer to the last claim
    was lost; written by the fetcher's thread. unreleased: messages that the database did not let us
    release, each logged once; any thread adds.
    """

    def __init__(self, setup: Setup, shared: Shared) -> None:
        self._setup = setup
        self._shared = shared
        self.claiming = threading.Lock()
        self.unanswered = False
        self.unreleased: set[int] = set()

    @contextmanager
    def no_claim_in_flight(self, patience: float | None = None) -> Iterator[bool]:
        """No claim is sent during the block, so that no row flagged by us gets a lane. patience:
        seconds to wait for a claim in flight; None = until its end. Yields False if there is one.
        """
        free = self.claiming.acquire(timeout=-1 if patience is None else patience)
        try:
            yield free
        finally:
            if free:
                self.claiming.release()

    def none_left(self, link: Connections) -> bool:
        """Release flagged rows without a lane; returns whether nothing is flagged by us then."""
        with self.claiming:
            self.release_unknown(link)
            with link.transaction() as conn:
                me = self._shared.identity.id
                return not recover.flagged_by(conn, self._setup.tables, me, limit=1)

    def release_unknown(self, link: Connections) -> None:
        """Release rows flagged by us without a lane. Call it only while no claim is in flight."""
        shared, me = self._shared, self._shared.identity.id
        with link.transaction() as conn:
            rows = recover.flagged_by(conn, self._setup.tables, me, limit=SWEEP_LIMIT)
        known = shared.identity.tenure.stuck | shared.in_flight.flagged() if rows else set()
        # Our id is compared last: the heartbeat's thread changes it before it drops lanes, so if it
        # is the same, `known` has them all.
        if not rows or me != shared.identity.id:
            return
        ids = [msg_id for msg_id in rows if msg_id not in known]
        if released := self.release(link, ids, me=me):
            shared.in_flight.look_again.append(min(ids))
            text = "messages flagged by us without a lane, now released: %d"
            shared.log.warning(text, released)

    def release(
        self, link: Connections, ids: Sequence[int], *, me: str, tries: int | None = None
    ) -> int:
        """Release rows flagged by this id of ours; returns how many. tries: as in
        `recover.release`. After an error in halves, down to a row that the database does not let us
        release: it is logged once, stays flagged, and blocks no other."""
        if not ids:
            return 0
        if len(ids) > recover.BATCH:
            released = self.release(link, ids[: recover.BATCH], me=me, tries=tries)
            return released + self.release(link, ids[recover.BATCH :], me=me, tries=tries)
        try:
            with link.transaction() as conn:
                return recover.release(conn, self._setup.tables, ids, me=me, tries=tries)
        except Exception as error:
            if trouble(error) not in claim.OF_A_ROW:
                raise
            why = reason_of(error)
        if half := len(ids) // 2:
            halves = ids[:half], ids[half:]
            return sum(self.release(link, some, me=me, tries=tries) for some in halves)
        if ids[0] not in self.unreleased:
            self.unreleased.add(ids[0])
            self._shared.log.error("message %s cannot be released: %s", ids[0], why)
        return 0


# --- Claim.

APART_SECONDS = 5.0
"""How long a claim goes on one by one."""
LOOK_FOR_RUNS = 8
"""While objects have one message each, only one claim in this many reads runs."""
KEPT = "no row was changed, without an error: a trigger, a rule or a policy of the table keeps it"
Queue = Callable[[Sequence[Lane]], None]
_TOPIC = itemgetter(TOPIC)


@dataclass(eq=False)
class Claimer:
    """Flags candidates and makes lanes of them. Used by the fetcher's thread only."""

    _setup: Setup
    _shared: Shared
    _link: Connections
    _lane_limit: LaneLimit
    _limit_poller: LimitPoller
    _refused_rows: RefusedRows
    _flagged: FlaggedRows

    def __post_init__(self) -> None:
        run, lanes = self._setup.settings.run_limit, self._setup.settings.lanes_limit
        self._runs = RunLength(run, lanes, lambda: self._setup.registry.batch_most)
        self._secrets = secrets_of(self._setup.engine.url)
        self._by_priority = prioritized(self._setup.tables)
        self._runs_pay = LOOK_FOR_RUNS

    # ------------------------------------------------------------ claim

    def claim(
        self,
        candidates: list[Candidate],
        me: str,
        *,
        places: Mapping[int, Any] | None = None,
        within: Slice | None = None,
        queue: Queue = lambda lanes: None,
    ) -> tuple[list[Lane], list[Candidate]]:
        """Flag candidates. Returns the new lanes, in the order of the candidates, and the
        candidates that could not be flagged; those without a permit are in neither.

        me: the id under which they were found. places: by msg_id, the value of the slice. within:
        where runs are read. queue: called with some lanes at a time, as soon as theirs are.
        """
        shared, flagged = self._shared, self._flagged
        with flagged.claiming:
            if shared.identity.id != me or not shared.identity.trusted():
                return [], []  # declared dead since the look, which was under the previous id
            if flagged.unanswered:
                flagged.release_unknown(self._link)
            flagged.unanswered = True
            rows, candidates = self._flag(candidates, me)
            self._refused_rows.log_new(shared.log)
            if self._by_priority and len(rows) > 1:
                place = {c.msg_id: i for i, c in enumerate(candidates)}
                rows.sort(key=lambda row: place[row.msg_id])
            lanes = [Lane(me, [row]) for row in rows]
            if places:
                for lane in lanes:
                    lane.slice_value = places.get(lane.row.msg_id)
            shared.in_flight.lanes.update(lanes)
            flagged.unanswered = False
            # Our id is read after the lanes were added: the heartbeat's thread changes it first,
            # and then drops the lanes of the old one (`Shared.continue_as`).
            if not shared.identity.is_ours(me):
                shared.in_flight.drop(lanes)
                return [], []
        queued: set[Lane] = set()

        def queue_noting(some: Sequence[Lane]) -> None:
            queued.update(some)
            try:
                queue(some)
            except BaseException:
                queued.difference_update(some)
                raise

        try:
            return lanes, self._read_and_queue(lanes, rows, candidates, me, within, queue_noting)
        except BaseException:  # no memory, for example: the next claim releases what has no lane
            flagged.unanswered = True
            shared.in_flight.drop([lane for lane in lanes if lane not in queued])
            raise

    def _read_and_queue(
        self,
        lanes: Sequence[Lane],
        rows: Sequence[Row],
        candidates: Sequence[Candidate],
        me: str,
        within: Slice | None,
        queue: Queue,
    ) -> list[Candidate]:
        """Read the runs of new lanes and queue them; returns the candidates that were lost."""
        setup, shared = self._setup, self._shared
        setup.events.emit(Claimed(me, rows, len(candidates)))
        lost: list[Candidate] = []
        if len(rows) < len(candidates):
            won = {row.msg_id for row in rows}
            lost = [c for c in candidates if c.msg_id not in won]
            self._refused_rows.lost(lost, alone=shared.peers.slots < 2)
        # A message in quarantine is claimed alone: no run behind it, no lane beside it.
        most = setup.tables.spec.max_tries
        if rows and not in_quarantine(rows[0].crash_times, rows[0].tries, most):
            self._read_runs(lanes, within, queue)
        elif lanes:
            queue(lanes)
        return lost

    def may_claim_alone(self) -> bool:
        """Whether a message in quarantine may be claimed: nothing else is flagged by us."""
        return not self._shared.in_flight.lanes and self._flagged.none_left(self._link)

    def may_start(self, topic: str) -> bool:
        """Whether a message of a limited topic may start now; if not, the next try waits for it."""
        with self._link.transaction() as conn:
            free = limits.lock(conn, self._setup.tables, topic)
        may = free is not None and free.starts > 0
        if not may:
            self._limit_poller.tried(topic, free, 0)
        return may

    # ------------------------------------------------------------ flag

    def _flag(self, candidates: list[Candidate], me: str) -> tuple[list[Row], list[Candidate]]:
        """Flag candidates, those of limited topics with a permit. Returns the rows, and the
        candidates that were tried: all but those without a permit."""
        limited = self._shared.controls.limits
        if not limited:
            return self._flag_of(None, candidates, me)
        by_limit: dict[str | None, list[Candidate]] = {}
        for one in candidates:
            topic = topic_of(one.topic)
            by_limit.setdefault(topic if topic in limited else None, []).append(one)
        rows, tried, moved = list[Row](), list[Candidate](), list[int]()
        for limit, some in by_limit.items():
            won, asked = self._flag_of(limit, some, me)
            rows, tried = rows + won, tried + asked
            # Of these an operator has changed the topic since the look: a permit of it decides.
            now = ((row.msg_id, topic_of(row.topic)) for row in won)
            moved += [i for i, topic in now if limit != (topic if topic in limited else None)]
        if moved:
            self._flagged.release(self._link, moved, me=me)
            self._shared.in_flight.look_again.append(min(moved))
            rows = [row for row in rows if row.msg_id not in moved]
        return sorted(rows, key=lambda row: row.msg_id), tried

    def _flag_of(
        self, limit: str | None, candidates: list[Candidate], me: str
    ) -> tuple[list[Row], list[Candidate]]:
        """Flag candidates of a limited topic, or (None) of the others: apart what the database may
        refuse."""
        together, alone = self._refused_rows.sorted_out(candidates)
        if alone and limit is not None:  # all in one transaction, which takes the permits
            return self._flag_apart(limit, candidates, me)
        rows, tried = list[Row](), candidates
        if together:
            try:
                rows, tried = self._flag_once(limit, together, me)
            except (claim.LeftAlone, DBAPIError) as error:
                if not self._may_be_of_a_row(error):
                    raise
                rows, tried = self._flag_apart(limit, together, me)
        if alone:
            rows = rows + self._flag_apart(None, alone, me)[0]
            rows.sort(key=lambda row: row.msg_id)
        return rows, candidates if limit is None else tried

    def _flag_apart(
        self, limit: str | None, candidates: list[Candidate], me: str
    ) -> tuple[list[Row], list[Candidate]]:
        """Flag candidates so that a refused row affects no other."""
        try:
            return self._flag_once(limit, candidates, me, apart=True)
        except DBAPIError as error:  # one has ended the whole transaction, or is refused at its end
            if not self._may_be_of_a_row(error):
                raise
        rows, until = list[Row](), time.monotonic() + APART_SECONDS
        for place, one in enumerate(candidates):
            if time.monotonic() > until:  # they wait for locks; the next claim goes on
                return rows, candidates[:place]
            try:
                won, tried = self._flag_once(limit, [one], me)
                if not tried:  # no permit is left
                    return rows, candidates[:place]
                rows += won
            except claim.LeftAlone:
                self._record_tried([one], {}, {one.msg_id})
            except DBAPIError as error:
                # Each may wait for a lock: not when the instance stops meanwhile.
                if not self._may_be_of_a_row(error) or self._shared.stop.requested.is_set():
                    raise
                self._record_tried([one], {one.msg_id: error}, ())
        return rows, candidates

    def _may_be_of_a_row(self, error: BaseException) -> bool:
        """A trigger may want what others have locked; the other rows need not wait for that. On
        SQLite the lock that is missing is the only one."""
        kind, tables = trouble(error), self._setup.tables
        wants_lock = kind is Trouble.AGAIN and tables.on_update and not tables.database.one_writer
        return bool(wants_lock) or kind in claim.OF_A_ROW

    def _flag_once(
        self, limit: str | None, candidates: list[Candidate], me: str, *, apart: bool = False
    ) -> tuple[list[Row], list[Candidate]]:
        """Flag candidates in one transaction; of a limited topic as many as may start. apart: in
        more statements, so that a refused row affects no other."""
        tables, refused, free = self._setup.tables, dict[int, Exception](), None
        rows, kept = list[Row](), set[int]()
        if limit is None and not apart and tables.database.arrays and not tables.on_update:
            with self._link.statement() as conn:
                return claim.flag(conn, tables, candidates, me=me), candidates
        with self._link.transaction() as conn:
            if limit is not None:
                free = limits.lock(conn, tables, limit)
                candidates = [] if free is None else candidates[: free.starts]
            if apart and candidates:
                refuse_at_once(conn, tables)
                rows, refused = claim.flag_apart(conn, tables, candidates, me=me)
                kept = self._still_free(conn, candidates, {row.msg_id for row in rows}, refused)
            elif candidates:
                rows = claim.flag(conn, tables, candidates, me=me)
            if limit is not None and free is not None and rows:
                limits.take(conn, tables, limit, free, len(rows))
        if limit is not None:
            self._limit_poller.tried(limit, free, len(rows))
        if apart:
            self._record_tried(candidates, refused, kept)
        return rows, candidates

    def _still_free(
        self,
        conn: Connection,
        tried: Sequence[Candidate],
        won: Collection[int],
        refused: Collection[int],
    ) -> set[int]:
        """Those that were lost and are still free: no other instance was faster, and no transaction
        has them locked."""
        lost = [one for one in tried if one.msg_id not in won and one.msg_id not in refused]
        if self._setup.tables.database.row_locks:  # another transaction may have locked it
            lost = [one for one in lost if self._refused_rows.suspects(one)]
        if not lost:
            return set()
        free = claim.free(conn, self._setup.tables, lost)
        return free - claim.locked(conn, self._setup.tables, free)

    def _record_tried(
        self, tried: Sequence[Candidate], refused: Mapping[int, Exception], kept: Collection[int]
    ) -> None:
        """Remember which rows the database refuses to flag."""
        for one in tried:
            error = refused.get(one.msg_id)
            if error is None:  # only lost: it stays counted until it is a suspect
                if one.msg_id in kept or self._refused_rows.suspects(one):
                    self._refused_rows.record(one, KEPT if one.msg_id in kept else None)
            # A race may have been lost by the guard, or a lock is held for a moment: no refusal,
            # unless it happens every time.
            elif trouble(error) is Trouble.OTHER or self._refused_rows.suspects(one):
                self._refused_rows.record(one, without(reason_of(error), self._secrets))

    # ------------------------------------------------------------ the runs behind the heads

    def _read_runs(self, lanes: Sequence[Lane], within: Slice | None, queue: Queue) -> None:
        """Read the runs behind the heads into their lanes, and queue the lanes: some at a time, so
        that threads need not wait for all."""
        self._runs_pay -= 1
        held = self._shared.in_flight.lanes.copy()  # includes `lanes`
        self._runs.learn(held)
        ahead = sum(len(lane.rows) - lane.place - 1 for lane in held)
        to_come = max(0, self._lane_limit.lanes - len(held))
        run = self._runs.limit(len(lanes) + to_come, ahead)
        if run < 1 or (self._runs_pay < 0 and self._runs_pay % LOOK_FOR_RUNS):
            queue(lanes)
            return
        size, readable = claim.at_once(self._setup.tables) or len(lanes), True
        for start in range(0, len(lanes), size):
            some = lanes[start : start + size]
            readable = readable and self._read_some(some, run, within)
            queue(some)

    def _read_some(self, lanes: Sequence[Lane], run: int, within: Slice | None) -> bool:
        """Read the runs of some lanes; False = they could not be read."""
        heads = [lane.row for lane in lanes]
        tables = asking_jobs(self._setup.tables, self._shared.controls.paused)
        try:
            with self._link.statement() as conn:
                runs = claim.read_runs(conn, tables, heads, limit=run, within=within)
        except Exception as error:
            # The heads are flagged: they must run, even without followers.
            kind = trouble(error)
            level = logging.DEBUG if kind in EVERYDAY else logging.WARNING  # roles log outages
            text = "runs could not be read; continuing with the heads: %s"
            self._shared.log.log(level, text, reason_of(error), exc_info=kind is Trouble.OTHER)
            return False
        for lane in lanes:
            if followers := runs.get(lane.row.msg_id):
                lane.rows += self._may_follow(followers)
                self._runs_pay = LOOK_FOR_RUNS
        self._runs.read(lanes, run, self._setup.clock())
        return True

    def _may_follow(self, followers: Sequence[Bare]) -> Iterable[Bare]:
        """Those that may be in the run, up to the first that may not: nearly always all."""
        topics, controls = self._setup.topics, self._shared.controls
        doubtful = self._shared.identity.tenure.doubtful
        if topics is None or topics.issuperset(map(_TOPIC, followers)):
            apart = controls.apart
            free = not apart or apart.isdisjoint(map(topic_of, map(_TOPIC, followers)))
            if free and not doubtful:
                return followers

        def may(bare: Bare) -> bool:
            row = Row(*bare)
            handled = topics is None or topic_of(row.topic) in topics
            return handled and not controls.is_apart(row) and row.msg_id not in doubtful

        return takewhile(may, followers)
