"""Requests to an instance: pauses, cancels of running messages, and limits of topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import Connection

from msgworker.db.database import Trouble
from msgworker.db.errors import reason_of, trouble
from msgworker.errors import SchemaError
from msgworker.events import Cancelled
from msgworker.instance.connections import Connections
from msgworker.instance.running.in_flight import Cancel
from msgworker.instance.state import Controls, Setup, Shared
from msgworker.limit import Limit
from msgworker.logs import Said
from msgworker.message import State
from msgworker.store import change, controls, limits, recover
from msgworker.store.claim import OF_A_ROW
from msgworker.store.controls import JOB_PAUSED, Asked, Seen
from msgworker.store.limits import Recorded
from msgworker.table.build import CANCEL, JOB_TABLE, LIMIT, PAUSE

# --- Limits of topics over all instances: declare those of our handlers, obey those recorded.
#
# They are read with every round of the housekeeping, where there are any. The newest declaration
# counts: at its start an instance records the limits of its handlers, where the table has others;
# after that it obeys what is recorded, also for topics that its own code does not limit. So two
# versions of the code do not overwrite each other in turns, and no start removes a limit that
# protects another system.

RACES = 10


class TopicLimits:
    """Declares and reads limits, for `OperatorRequests`."""

    def __init__(self, setup: Setup, shared: Shared, link: Connections) -> None:
        self._setup = setup
        self._shared = shared
        self._link = link
        self._log = shared.log
        self._started = False
        self._logged_versions: dict[str, int] = {}  # the version of each limit that was logged

    @property
    def wanted(self) -> dict[str, Limit]:
        """The limits of our handlers."""
        setup = self._setup
        return {
            h.topic: h.limit
            for h in list(setup.registry.handlers.values())
            if h.topic is not None and h.limit is not None
            if setup.topics is None or h.topic in setup.topics
        }

    def check(self) -> None:
        """Raise SchemaError if our handlers have limits and the database cannot record them."""
        tables = self._setup.tables
        if not (wanted := self.wanted):
            return
        if not LIMIT.is_there(tables):
            raise SchemaError(
                f"table {LIMIT.name} is missing: the handler of {min(wanted)} has max_running or "
                "rate, which are recorded there. Run App.create_schema() or `msgworker init-db`, "
                "or see `msgworker ddl --dialect NAME`"
            )
        if not tables.has("topic"):
            raise SchemaError(
                f"max_running and rate are limits of a topic, and table {tables.spec.name} has no "
                "column for topics: name it, MessageTable(topic=...), or add one"
            )

    def read(self, *, there: bool) -> None:
        """Take the recorded limits, if there are some; the first call declares ours, too."""
        setup, shared, wanted = self._setup, self._shared, self.wanted
        recorded: dict[str, Recorded] = {}
        if there and setup.tables.has("topic"):
            with self._link.transaction() as conn:
                recorded = limits.read_all(conn, setup.tables)
        for topic, limit in wanted.items():
            seen = recorded.get(topic)
            if seen is None or (seen.limit != limit and not self._started):
                recorded[topic] = self._declare(topic, limit)
        self._started = True
        self._log_new(recorded, wanted)
        by_topic = {topic: one.limit for topic, one in recorded.items()}
        if by_topic != shared.controls.limits:
            shared.controls = replace(shared.controls, limits=by_topic)

    def _declare(self, topic: str, limit: Limit) -> Recorded:
        """Record the limit of a handler; it replaces the one that is recorded."""
        tables, me = self._setup.tables, self._shared.identity.id
        for _ in range(RACES):
            with self._link.transaction() as conn:
                seen = limits.read_all(conn, tables).get(topic)
            if seen is not None and (seen.limit == limit or self._started):
                return seen
            try:
                with self._link.transaction() as conn:
                    written = limits.declare(conn, tables, topic, limit, seen, me=me)
            except Exception as error:
                if trouble(error) not in (Trouble.RACE, Trouble.AGAIN):
                    raise
                continue
            if written and seen is not None:
                text = "topic %s: limit changed from %s (declared by %s) to %s"
                self._log.warning(text, topic, seen.limit, seen.by, limit)
            if written:
                return Recorded(limit, 0 if seen is None else seen.version + 1, me)
        raise SchemaError(f"the limits of topic {topic} could not be recorded: others change them")

    def _log_new(self, recorded: dict[str, Recorded], wanted: dict[str, Limit]) -> None:
        setup, logged = self._setup, self._logged_versions
        self._logged_versions = {topic: one.version for topic, one in recorded.items()}
        for topic, one in recorded.items():
            if logged.get(topic) == one.version:
                continue
            if setup.topics is not None and topic not in setup.topics:
                continue
            if topic not in wanted:
                text = "topic %s is limited to %s (declared by %s), not by this code; obeyed"
                self._log.info(text, topic, one.limit, one.by)
            elif one.limit != wanted[topic]:
                text = "topic %s: %s was declared by %s, which started later; obeyed instead of %s"
                self._log.warning(text, topic, one.limit, one.by, wanted[topic])
            else:
                self._log.info("topic %s: %s, over all instances", topic, one.limit)


# --- All requests to an instance: pauses, cancels and limits.
#
# A part of the housekeeping, on its connection. One statement reads the pauses, and whether there
# are cancels or limits; only then further ones read those.

SHOWN = 20
LIMITS = "cannot see which topics are limited: %s"
CANCELS = "cannot see which messages are to be cancelled: %s"
PAUSES = "cannot see which topics are paused: %s"
CANNOT_END = "cannot end a request to cancel a message: %s"
CANNOT_END_OF = "message {} cannot be cancelled: %s"


class OperatorRequests:
    """Reads requests and does what they ask for. Used by the housekeeper. open: whether the last
    read has found requests to cancel."""

    def __init__(self, setup: Setup, shared: Shared, link: Connections) -> None:
        self._setup = setup
        self._shared = shared
        self._link = link
        self._log = shared.log
        self._topic_limits = TopicLimits(setup, shared, link)
        self._refused: set[str] = set()  # what the database does not let us do, logged once
        self._jobs = frozenset[int]()  # those that are paused
        self.open = False

    def read(self) -> None:
        """Read all requests, then cancel. Raises SchemaError if limits cannot be recorded."""
        self._topic_limits.check()
        jobs = self._paused_jobs()
        none_there = {PAUSE.name, CANCEL.name, LIMIT.name} <= self._setup.tables.missing
        seen = None if none_there else self._look()
        self.open = seen is not None and seen.requests
        topics = self._shared.controls.paused - {JOB_PAUSED} if seen is None else seen.paused
        self._pause(topics, jobs)
        if seen is None:  # work continues, as if the tables did not exist
            return
        self._topic_limits.read(there=seen.limits)
        if self.open or self._shared.in_flight.cancels:
            self.cancel()

    def _look(self) -> Seen | None:
        """What is asked for, as far as our rights allow; None = not even the pauses can be read.
        What cannot be read is left out from then on."""
        tables, refused = self._setup.tables, dict[str, Exception]()
        for most in (LIMITS, CANCELS, PAUSES):
            if most in self._refused and most != PAUSES:
                continue
            try:
                with self._link.transaction() as conn:
                    with_requests, with_limits = most != PAUSES, most == LIMITS
                    seen = controls.look(conn, tables, requests=with_requests, limits=with_limits)
            except Exception as error:
                needed = most == LIMITS and self._topic_limits.wanted
                if trouble(error) is not Trouble.REFUSED or needed:
                    raise
                refused[most] = error
                continue
            for text, why in refused.items():
                self._log_refused(text, text, why)
            return seen
        self._log_refused(PAUSES, PAUSES, refused[PAUSES])
        return None

    def _log_refused(self, what: str, text: str, error: Exception) -> None:
        if what not in self._refused:
            self._log.warning(text, reason_of(error))
        self._refused.add(what)

    def _paused_jobs(self) -> frozenset[int]:
        """The paused jobs; none if they cannot be read."""
        if not JOB_TABLE.is_there(self._setup.tables):
            return frozenset()
        try:
            with self._link.transaction() as conn:
                return controls.paused_job_ids(conn, self._setup.tables)
        except Exception as error:
            if trouble(error) is not Trouble.REFUSED:
                raise
            self._log_refused("jobs", "cannot see which jobs are paused: %s", error)
            return frozenset()

    def _pause(self, topics: frozenset[str], jobs: frozenset[int]) -> None:
        shared, before = self._shared, self._shared.controls.paused
        paused = topics | {JOB_PAUSED} if jobs else topics
        messages = self._paused_ids() if jobs else frozenset[int]()
        if topics != before - {JOB_PAUSED}:
            names = ", ".join(repr(topic) for topic in sorted(topics)) or "none"
            self._log.info("paused topics: %s", names, extra={"event": Said.TOPICS_PAUSED})
        if jobs != self._jobs:
            ids = ", ".join(map(str, sorted(jobs)[:SHOWN])) or "none"
            more = f" and {len(jobs) - SHOWN:,} more" if len(jobs) > SHOWN else ""
            self._log.info("paused jobs: %s%s", ids, more, extra={"event": Said.JOBS_PAUSED})
        changed, self._jobs = paused != before or jobs != self._jobs, jobs
        if changed or messages != shared.controls.paused_ids:
            shared.controls = Controls(paused, shared.controls.limits, messages)
        if changed:
            self._shared.look_now.set()

    def _paused_ids(self) -> frozenset[int]:
        """Our messages in flight, and those behind them, that belong to a paused job."""
        t, found = self._setup.tables, set[int]()
        ids = [row[0] for lane in list(self._shared.in_flight.lanes) for row in [*lane.rows]]
        for portion in t.portions(ids):
            with self._link.transaction() as conn:
                found |= controls.held_among(conn, t, portion)
        return frozenset(found)

    # ------------------------------------------------------------ cancels

    def cancel(self) -> None:
        """Cancel our own messages that operators want cancelled; end the requests for messages that
        wait or have ended. The lanes are read before the requests, so that a request is about the
        claim of the lane, which may have ended since."""
        setup, shared = self._setup, self._shared
        in_flight, me = shared.in_flight, shared.identity.id
        rows = {row.msg_id: row for lane in list(in_flight.lanes) for row in (lane.row,)}
        with self._link.transaction() as conn:
            asked = controls.requests(conn, setup.tables, me=me)
        kept = {i: one for i, one in in_flight.cancels.items() if rows.get(i) is one.row}
        for one in asked:
            row = rows.get(one.request.msg_id)
            if one.over or one.waits:
                self._end(one)
            elif one.owner == me and row is not None:
                kept.setdefault(row.msg_id, Cancel(row, one.request))
        in_flight.cancels = kept  # set before handlers are cancelled, see `Caller.handle`
        if kept:
            in_flight.cancel_requested()

    def end_for(self, conn: Connection, ids: list[int]) -> list[Cancelled]:
        """End the requests for messages of a dead instance, in the transaction that recovers it.
        Returns the events of those that it has cancelled."""
        cancelled, asked = list[Cancelled](), list[Asked]()
        if not self.open or "ends" in self._refused:
            return cancelled
        with self._refusals(), conn.begin_nested():
            asked = controls.requests(conn, self._setup.tables, ids)
        for one in asked:
            with self._refusals(one), conn.begin_nested():
                cancelled += self._end_one(conn, one, recovered=True)
        return cancelled

    def _end_one(self, conn: Connection, one: Asked, *, recovered: bool = False) -> list[Cancelled]:
        """Do what is left to do for a request; returns the event of its message if it became dead
        by that, or in this transaction (recovered)."""
        tables, request, me = self._setup.tables, one.request, self._shared.identity.id
        alive = one.waits and (recovered or one.state is not State.DEAD)
        rows = recover.read(conn, tables, [request.msg_id]) if alive else []
        ended = change.end_request(conn, tables, one)
        return [Cancelled(me, row, request.text) for row in rows] if ended else []

    def _end(self, one: Asked) -> None:
        with self._refusals(one):
            try:
                with self._link.transaction() as conn:
                    cancelled = self._end_one(conn, one)
            except Exception as error:
                if trouble(error) is not Trouble.AGAIN:
                    raise
                return  # another instance ends it; if not, the next round does
            for event in cancelled:
                self._setup.events.emit(event)
            if one.waits:
                self._shared.look_now.set()

    @contextmanager
    def _refusals(self, one: Asked | None = None) -> Iterator[None]:
        """Log once what the database refuses, and continue."""
        try:
            yield
        except Exception as error:
            kind = trouble(error)
            if kind is Trouble.REFUSED:
                self._log_refused("ends", CANNOT_END, error)
            elif one is not None and kind in OF_A_ROW:
                msg_id = one.request.msg_id
                self._log_refused(f"end {msg_id}", CANNOT_END_OF.format(msg_id), error)
            else:
                raise
