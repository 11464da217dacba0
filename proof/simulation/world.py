"""One SQLite database, a clock that stands still until it is moved, an observer of every commit.

The rule to know: the history is not what the instances believe but what the table shows. After
each step all rows are read and compared with those before, so a statement that lies about what it
did, or whose reply was lost, is in the history all the same.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import sqlalchemy as sa

from msgworker.db.database import DATABASES, Database
from msgworker.limit import Limit
from msgworker.message import CANCELLED, TRANSITIONS, word_of
from msgworker.schema import rule
from msgworker.table.build import CANCEL, JOB_TABLE, LIMIT, SCHEDULE, build_tables
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables
from proof.history import (
    DONE,
    FAILED,
    NEW,
    PROCESSING,
    Event,
    Final,
    Holders,
    JobRow,
    Keyed,
    Kind,
    Outcome,
    Row,
    Snapshot,
)
from proof.judge import JOB_OVER, Rule, Violation, odd_ticks, too_many

if TYPE_CHECKING:
    from proof.simulation.schedule import Config

T = TypeVar("T")
EPOCH = datetime(2026, 1, 1)  # noqa: DTZ001 - the text that SQLite keeps has no zone
EPOCH_DAY = 2461041.5
OPTIONAL = frozenset(
    f"msgworker_{name}"
    for name in ("item", "try", "operation", "audit", "pause", "cancel", "limit", "history", "job")
)
"""Tables that instances do without."""
KEYS = {"one": "X", "two": None}  # the object of each unique key
LIMITED, METERED = "limited", "metered"
LIMITS = {LIMITED: Limit(max_running=2), METERED: Limit(starts=1, seconds=1, burst=2)}
"""The limits of the handlers of these topics, in all instances."""
CLOCK_SECONDS = 0.002  # the database's clock gives whole milliseconds


class Act(StrEnum):
    """What a step is for: how a change of a row is to be understood."""

    PRODUCE = "produce"
    CLAIM = "claim"
    SETTLE = "settle"
    RELEASE = "release"
    RECOVER = "recover"
    LEASE = "lease"
    RERUN = "rerun"
    DISCARD = "discard"
    CANCEL = "cancel"
    FOREIGN = "foreign"


class Clock:
    """Virtual seconds: those of the instances, and strftime for the database; `ahead`: how far the
    database's clock was put forward (or back, negative)."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.ahead = 0.0
        self._text = ("", math.nan)

    def strftime(self, _format: str, _now: str, modifier: str = "0 seconds") -> str:
        """What SQLite's strftime('%Y-%m-%d %H:%M:%f', 'now', 'n seconds') gives."""
        plus = float(modifier.removesuffix(" seconds"))
        now = self.seconds + self.ahead
        if plus == 0.0 and self._text[1] == now:
            return self._text[0]
        moment = EPOCH + timedelta(seconds=now + plus)
        text = moment.isoformat(" ", "milliseconds")
        if plus == 0.0:
            self._text = (text, now)
        return text

    def julianday(self, moment: str | None) -> float | None:
        """Days, as SQLite's; of 'now' or of an instant of a row."""
        if moment is None:
            return None
        at = self.strftime("", "now") if moment == "now" else moment
        return (datetime.fromisoformat(at) - EPOCH).total_seconds() / 86_400 + EPOCH_DAY


class Seen(NamedTuple):
    """A row as the observer reads it."""

    msg_id: int
    object_id: str | None
    status: int
    tries: int
    later_times: int
    claimed_by: str | None


def dialect(*, ignores: bool) -> Database:
    """SQLite, on which settles overlap as on a server; without `ignores` a guard violation raises,
    as it does on PostgreSQL and Oracle."""
    sqlite = DATABASES["sqlite"].having(settles_at_once=2)
    return sqlite if ignores else sqlite.having(update_ignore=None)


class World:
    """The database of many schedules of a configuration, one after the other."""

    def __init__(self, config: Config, *, guard: bool = True) -> None:
        self.clock = Clock()
        self.spec = MessageTable(on_dead=config.on_dead)
        if not config.owners:
            self.spec = self.spec.replace(claimed_by=None)
        self.t: Tables = build_tables(self.spec, dialect(ignores=config.ignores))
        self.jobs = JOB_TABLE.of(self.t)
        there = {CANCEL.of(self.t).name: config.cancels, LIMIT.of(self.t).name: config.limits}
        there[self.jobs.name] = config.jobs
        missing = OPTIONAL - {name for name, is_there in there.items() if is_there}
        object.__setattr__(self.t, "missing", missing)
        self.limited, self.deletes = config.limits, config.deletes
        if config.blind:  # as a snapshot that is too old would be
            object.__setattr__(self.t, "object_is_running", lambda of: sa.false())
        args = {"check_same_thread": False}
        self.engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool, connect_args=args)
        self.conn = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        raw = self.conn.connection.dbapi_connection
        assert isinstance(raw, sqlite3.Connection)
        self.raw: sqlite3.Connection = raw
        raw.execute("PRAGMA synchronous=OFF")
        raw.create_function("strftime", -1, self.clock.strftime)
        raw.create_function("julianday", 1, self.clock.julianday)
        self.schedule = SCHEDULE.of(self.t)
        self.keys = bool(config.keys)
        for metadata in (self.t.message.metadata, self.t.lease.metadata):
            metadata.create_all(self.conn)
        raw.execute("CREATE TABLE effects (msg_id INTEGER)")
        if not guard:
            raw.execute(f"DROP INDEX {self.t.guard_name}")
        self.reset()

    def close(self) -> None:
        self.conn.close()
        self.engine.dispose()

    def reset(self) -> None:
        """Empty tables, a clock at 0, no history."""
        own = (self.t.lease.name, CANCEL.name, LIMIT.name, self.schedule.name, self.jobs.name)
        for table in (self.t.message.name, *own, "effects", "sqlite_sequence"):
            self.raw.execute(f"DELETE FROM {table}")
        self.clock.seconds = self.clock.ahead = 0.0
        self.events: list[Event] = []
        self.violations: list[Violation] = []
        self.observed: list[Snapshot] = []
        self.holders_of_keys: list[Holders] = []
        self.keyed: list[Keyed] = []
        self.topics: dict[int, str] = {}  # of all messages, where some have limits
        self.starts: list[float] = []  # when each message of METERED was flagged
        self.rows: dict[int, Seen] = {}
        self.claims: Counter[int] = Counter()  # how often each message was flagged
        self.batched: Counter[int] = Counter()  # messages of batches, in so many calls now
        self.named: set[int] = set()  # messages that a handler of a batch has failed
        self.holders: dict[int, str] = {}  # without owners: who has flagged a message
        self.reruns: Counter[int] = Counter()
        self.asked: dict[int, int] = {}  # by message: for which run its cancel was requested
        self._taken_over: set[str] = set()
        self.moved_at: dict[int, float] = {}  # when a row changed last
        self.place = 0
        self.version = 0
        self.raw.execute("BEGIN")
        rule.record(self.conn, self.t)
        self.raw.execute("COMMIT")

    # ------------------------------------------------------------ steps

    def read(self, fn: Callable[[sa.Connection], T]) -> T:
        """One step that reads."""
        return fn(self.conn)

    def commit(self, act: Act, who: str, fn: Callable[[sa.Connection], T]) -> T:
        """One step that writes: a transaction, and what it changed."""
        self.raw.execute("BEGIN")
        try:
            value = fn(self.conn)
        except BaseException:
            self.raw.execute("ROLLBACK")
            raise
        self.raw.execute("COMMIT")
        self.observe(act, who, {})
        return value

    def running(self) -> bool:
        return any(row.status == PROCESSING for row in self.rows.values())

    def mark(self) -> float:
        """A place in the history, behind all that has happened so far."""
        return self.place + 0.5

    def record(
        self,
        kind: Kind,
        who: str,
        row: Seen | None = None,
        *,
        msg_id: int | None = None,
        detail: str | None = None,
        attempt: int | None = None,
        since: float | None = None,
    ) -> None:
        """Write one event into the history."""
        self.place += 1
        object_id = None
        if row is None and msg_id is not None:
            row = self.rows.get(msg_id)
        if row is not None:
            msg_id, object_id = row.msg_id, row.object_id
        at = float(self.place)
        self.events.append(Event(kind, at, who, msg_id, object_id, attempt, detail, since))

    @property
    def owners(self) -> bool:
        """Whether the table says who has flagged a message."""
        return self.t.has("claimed_by")

    def observe(self, act: Act, who: str, read_at: Mapping[int, float]) -> None:
        """Compare the table with what it was before this act was committed. read_at: of messages
        that may be flagged, when their run was read."""
        if act is Act.LEASE:
            self._observe_leases()
        found = self.raw.execute(
            "SELECT msg_id, object_id, status, error_try_times, later_times,"
            f" {'claimed_by' if self.owners else 'NULL'}"
            f" FROM {self.t.message.name} ORDER BY msg_id"
        ).fetchall()
        before = self.rows
        self.rows = {row[0]: Seen._make(row) for row in found}
        if self.deletes:
            self._keep_deleted(act, before)
        if self.rows == before:
            return
        self.version += 1
        changed = [row for i, row in self.rows.items() if before.get(i) != row]
        changed.sort(key=lambda row: row.status == PROCESSING)  # first what was given up
        for row in changed:
            self.moved_at[row.msg_id] = self.clock.seconds
            self._changed(act, who, before.get(row.msg_id), row, read_at)
        if self.keys:
            self.holders_of_keys.append((float(self.place), self._holders_of_keys()))
        now = self.clock.seconds + self.clock.ahead
        self.starts += [
            now
            for row in changed
            if row.status == PROCESSING and self.topics.get(row.msg_id) == METERED
        ]
        self.observed.append(
            (float(self.place), [(r.object_id, r.msg_id, r.status) for r in self.rows.values()])
        )

    def _keep_deleted(self, act: Act, before: Mapping[int, Seen]) -> None:
        """A settle deletes what is done: here such a row stays, as one that is done."""
        for i in before.keys() - self.rows.keys():
            if act is not Act.SETTLE and before[i].status != DONE:
                self.violations.append(Violation(Rule.I3, f"{act} has deleted message {i}"))
            self.rows[i] = before[i]._replace(status=DONE, claimed_by=None)

    def _holders_of_keys(self) -> list[tuple[str, int]]:
        """By what the table shows: those with tries left, whatever says the index about them."""
        query = "SELECT unique_key, msg_id, status, error_try_times FROM " + self.spec.name
        return [
            (key, msg_id)
            for key, msg_id, status, tries in self.raw.execute(query).fetchall()
            if key is not None
            and (status in (NEW, PROCESSING) or (status == FAILED and tries < self.spec.max_tries))
        ]

    def sent(self, key: str, msg_id: int) -> None:
        """A send with this key was answered with this message."""
        self.keyed.append(Keyed(key, msg_id, at=float(self.place)))

    def limited_ids(self) -> list[int]:
        return [msg_id for msg_id, topic in self.topics.items() if topic == LIMITED]

    def _observe_leases(self) -> None:
        """Who was taken over is dead; without owners its holder keeps what it has."""
        query = f"SELECT name FROM {self.t.lease.name} WHERE taken_by IS NOT NULL ORDER BY name"
        for (name,) in self.raw.execute(query).fetchall():
            if name not in self._taken_over:
                self._taken_over.add(name)
                if self.owners:
                    self.record(Kind.LEASE_LOST, name)

    def _judge(self, act: Act, old: Seen, row: Seen) -> None:
        """A row moves only as TRANSITIONS says; a foreign consumer does what it likes."""
        most = self.spec.max_tries
        move = word_of(old.status, old.tries, most), word_of(row.status, row.tries, most)
        if act is not Act.FOREIGN and act not in TRANSITIONS.get(move, ()):
            text = f"{act} moved message {row.msg_id} from {move[0]} to {move[1]}"
            self.violations.append(Violation(Rule.I7, text))

    def _changed(
        self, act: Act, who: str, old: Seen | None, row: Seen, read_at: Mapping[int, float]
    ) -> None:
        if act is Act.RECOVER and old and old.status != PROCESSING and self._is_cancelled(row):
            act = Act.CANCEL  # it was released in the meantime, and its request is ended
        if old is not None:
            self._judge(act, old, row)
        if old is None:
            self.record(Kind.INSERTED, who, row)
        elif act is Act.FOREIGN:
            kind = Kind.FOREIGN_CLAIMED if row.status == PROCESSING else Kind.FOREIGN_DONE
            failed = kind is Kind.FOREIGN_DONE and row.status != DONE
            self.record(kind, who, row, detail="failed" if failed else None)
        elif row.status == PROCESSING:
            since = read_at.get(row.msg_id) if act is Act.SETTLE else None
            by = self.holders[row.msg_id] = row.claimed_by or who
            self.claims[row.msg_id] += 1
            self.record(Kind.CLAIMED, by, row, attempt=row.tries + 1, since=since)
        elif act in (Act.RERUN, Act.DISCARD):
            self.reruns[row.msg_id] += act is Act.RERUN
            self.record(Kind.RERUN if act is Act.RERUN else Kind.DISCARDED, who, row)
        elif act is Act.CANCEL:
            self._cancelled(who, row)
        elif act is Act.RECOVER:
            whose = "foreign" if self.owners else self.holders[row.msg_id]
            self.record(Kind.RECOVERED, who, row, detail=old.claimed_by or whose)
            if self._is_cancelled(row):
                self._cancelled(who, row)
        elif self._is_cancelled(row):
            given_back = Outcome.LATER if self._has_started(row) else Outcome.RELEASED
            self.record(Kind.SETTLED, who, row, detail=given_back)
            self._cancelled(who, row)
        else:
            outcome = self._outcome(old, row)
            if outcome is Outcome.RELEASED and self.batched.get(row.msg_id) == 0:
                self._undo_start(row.msg_id)
            if (old.status, row.status) == (NEW, DONE):  # behind the head of a batch
                by = read_at.get(row.msg_id)
                self.record(Kind.CLAIMED, who, row, attempt=row.tries + 1, since=by)
                self._handled(who, row, "returned")
            elif row.msg_id in self.named and outcome not in (Outcome.DONE, Outcome.RELEASED):
                how = "rejected" if outcome is Outcome.DEAD else "raised"
                self._handled(who, row, how)
            self.named.discard(row.msg_id)
            self.record(Kind.SETTLED, who, row, detail=outcome)

    def _is_cancelled(self, row: Seen) -> bool:
        if not self.asked or row.status != FAILED:
            return False
        query = f"SELECT last_error FROM {self.t.message.name} WHERE msg_id = ?"
        text = self.raw.execute(query, (row.msg_id,)).fetchone()[0]
        return (text or "").startswith(CANCELLED)

    def _cancelled(self, who: str, row: Seen) -> None:
        """In the history it is given back, and discarded."""
        if self.asked.get(row.msg_id, self.reruns[row.msg_id]) != self.reruns[row.msg_id]:
            text = f"message {row.msg_id} was cancelled by a request for a run before its rerun"
            self.violations.append(Violation(Rule.I3, text))
        self.record(Kind.DISCARDED, who, row)

    def _has_started(self, row: Seen) -> bool:
        """Whether a handler has started under the claim that ends."""
        for event in reversed(self.events):
            if event.msg_id == row.msg_id and event.kind in (Kind.STARTED, Kind.CLAIMED):
                return event.kind is Kind.STARTED
        return False

    def _undo_start(self, msg_id: int) -> None:
        """Its batch was rolled back, and it has not started alone."""
        for i in range(len(self.events) - 1, -1, -1):
            event = self.events[i]
            if event.msg_id == msg_id:
                if event.kind not in (Kind.STARTED, Kind.ENDED):
                    return
                del self.events[i]

    def _handled(self, who: str, row: Seen, how: str) -> None:
        """Its handler has run in a batch, before it had the flag itself."""
        self.record(Kind.STARTED, who, row)
        self.record(Kind.ENDED, who, row, detail=how)

    def _outcome(self, old: Seen, row: Seen) -> Outcome:
        if row.status == DONE:
            return Outcome.DONE
        if row.tries > old.tries:
            return Outcome.DEAD if row.tries >= self.spec.max_tries else Outcome.FAILED
        return Outcome.LATER if row.later_times > old.later_times else Outcome.RELEASED

    # ------------------------------------------------------------ ticks

    def end_of_ticks(self) -> None:
        """No schedule fires any more."""
        text = f"UPDATE {self.schedule.name} SET paused_at = '2026-01-01', version = version + 1"
        self.raw.execute(text)

    def judge(self, period: int) -> None:
        """What is told in seconds: the ticks of a schedule, and how fast metered ones started."""
        meter = LIMITS[METERED]
        per_second = meter.starts / meter.seconds
        text = too_many(self.starts, meter.burst + CLOCK_SECONDS * per_second, per_second)
        if text:
            self.violations.append(Violation(Rule.I11, text))
        query = f"SELECT scheduled_for FROM {self.t.message.name} ORDER BY msg_id"
        last = self.raw.execute(f"SELECT max(last_at) FROM {self.schedule.name}").fetchone()[0]
        if period and last is not None:
            ticks = [datetime.fromisoformat(one) for (one,) in self.raw.execute(query).fetchall()]
            for text in odd_ticks(ticks, period=period, last=datetime.fromisoformat(last)):
                self.violations.append(Violation(Rule.TICKS, text))

    # ------------------------------------------------------------ the end

    def final(self) -> Final:
        """The table as it is; writes the effects into the history."""
        for (msg_id,) in self.raw.execute("SELECT msg_id FROM effects").fetchall():
            self.record(Kind.EFFECT, "reader", msg_id=msg_id)
        rows = {i: Row(r.object_id, r.status, r.tries, r.claimed_by) for i, r in self.rows.items()}
        query = f"SELECT msg_id, topic, payload, job_id FROM {self.t.message.name} WHERE "
        found = self.raw.execute(f"{query} job_id IS NOT NULL OR topic = '{JOB_OVER}'").fetchall()
        for i, topic, payload, job in found:
            rows[i] = rows[i]._replace(topic=topic, payload=json.loads(payload or "{}"), job=job)
        columns = "job_id, sealed_at IS NOT NULL, completed_at IS NOT NULL, report_id, done, dead"
        jobs = self.raw.execute(f"SELECT {columns} FROM {self.jobs.name}").fetchall()
        seen = self.observed, self.holders_of_keys, self.keyed
        return Final(rows, *seen, jobs=[JobRow(i, bool(s), bool(c), *r) for i, s, c, *r in jobs])
