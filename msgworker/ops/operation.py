"""An operation, recorded in the audit: over many messages in short transactions, or at once.

Each step commits its changes together with its counts, so the counts of an operation are exact
wherever it is interrupted.
"""

from __future__ import annotations

import copy
import getpass
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypeVar, Unpack

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.config import whole
from msgworker.counted import plural
from msgworker.db import errors
from msgworker.db.connections import connecting, reaching, refusal, unavailable, writing
from msgworker.db.database import Trouble, of
from msgworker.errors import ConfigError, MsgworkerError, SchemaError
from msgworker.ops.looks import Clock, Looks, options_of
from msgworker.ops.results import How, OnProgress, Progress, Repaired, Sent, Skip, Skips, Why, kept
from msgworker.ops.selection import SAMPLE, DryRun
from msgworker.payload import clean, without_url_secrets
from msgworker.producing import AllSendOptions
from msgworker.queries import messages
from msgworker.schema import rule
from msgworker.store import audit
from msgworker.store.audit import Kind, Operation, Who
from msgworker.store.bounded import LEAST, MOST
from msgworker.store.rows import RowKept
from msgworker.table import build
from msgworker.table.tables import OwnTable, Tables, unique_index_name

T = TypeVar("T")
FIRST_SIZE = 100
LEAST_SIZE = 50
MOST_SIZE = 1000
STEP_SECONDS = 0.04
"""The target duration of a transaction, since claims and settles may wait for it."""
LET_OTHERS_SECONDS = 0.005
LET_START_SECONDS = 0.01
"""On databases where a step locks the rule exclusively, this pause lets a starting instance in."""
TRIES = 8
KEY_TRIES = 3
SHORT_TRIES = 3
RULE_PATIENCE_SECONDS = 5.0


class Unchanged(MsgworkerError):
    """The database has not done to locked rows what a statement asked for."""


def check_all(locked: int, **done: int) -> None:
    """Raise Unchanged if something was not done to all rows that are locked."""
    if any(count != locked for count in done.values()):
        did = " and ".join(f"{count} {what}" for what, count in done.items())
        raise Unchanged(
            f"{plural(locked, 'message')} locked, {did}; the step was rolled back. Does a trigger "
            "change rows of the table?"
        )


def in_one(engine: sa.Engine, act: Callable[[Connection], T]) -> T:
    """What `act` returns, in a transaction of its own, which is sent again where the database has
    rolled it back; not on SQLite, which has waited for a minute by then. Raises
    DatabaseUnavailable, SchemaError."""
    tries, most = 1, 1 if of(engine).one_writer else SHORT_TRIES
    while True:
        try:
            with reaching(engine), writing(engine) as conn:
                return act(conn)
        except DBAPIError as error:
            if errors.trouble(error) is not Trouble.AGAIN or tries == most:
                raise
        time.sleep(errors.outage_pause(tries))
        tries += 1


class TooMany(Exception):
    """A part of several is more than one transaction should change: a half of it may not be."""


@dataclass(slots=True)
class Step:
    """What one transaction did."""

    matched: int = 0
    changed: int = 0
    skips: list[Skip] = field(default_factory=list)


class Pace:
    """Chooses the size of the next transaction, so that each is short. rate: messages a second."""

    def __init__(self, t: Tables, rate: float | None) -> None:
        database = t.database
        self._most = min(database.max_ids, MOST_SIZE)
        if rate is not None:
            self._most = max(1, min(self._most, int(rate / 4)))
        self._rate = rate
        # With a single writer, all others wait during the whole transaction.
        self._target = STEP_SECONDS / 2 if database.one_writer else STEP_SECONDS
        self._rest = LET_OTHERS_SECONDS if database.one_writer else 0.0
        if rule.locks_alone(t):
            self._rest = LET_START_SECONDS
        self._gate = threading.Event()
        self._next_at = time.monotonic()
        self.size = min(FIRST_SIZE, self._most)

    def took(self, count: int, seconds: float) -> None:
        """After a transaction of `count` messages."""
        if count * 2 >= self.size:
            wanted = int(count * self._target / max(seconds, 1e-4))
            least = min(LEAST_SIZE, self._most)
            self.size = min(max(wanted, least, self.size // 4), self.size * 2, self._most)
        rest = self._rest
        if self._rate is not None:
            now = time.monotonic()
            self._next_at = max(self._next_at, now - 1.0) + count / self._rate
            rest = max(rest, self._next_at - now)
        if rest > 0:
            self._gate.wait(rest)


Work = Callable[[int, list[int], Connection], Step]
"""What one transaction of an operation of this number does with a part of its messages."""


class RecordedOperation:
    """An operation on messages: `over` some after others, then `end`. It is recorded when it begins
    with the first. op: one that was interrupted and is continued, None = a new one."""

    def __init__(
        self,
        engine: sa.Engine,
        tables: Tables,
        kind: Kind,
        by: Who,
        asked: dict[str, Any],
        op: Operation | None = None,
        *,
        rate: float | None = None,
        progress: OnProgress | None = None,
    ) -> None:
        self.engine = engine
        self._tables = tables
        self._kind, self._by, self._asked = kind, by, asked
        self._op = op
        self._progress = progress
        self.skips = Skips()
        self._worked_seconds = STEP_SECONDS
        self._sent = Step()  # by the step whose COMMIT was last asked for
        self.pace = Pace(tables, rate)

    @property
    def op(self) -> Operation:
        """What the audit has of it."""
        return self.begin()

    def begin(self) -> Operation:
        """Record it, if it is not recorded."""
        if self._op is None:

            def record(conn: Connection) -> Operation | None:
                op_id = audit.begin(conn, self._tables, self._kind, self._by, self._asked)
                return audit.read(conn, self._tables, op_id)

            self._op = in_one(self.engine, record)
            assert self._op is not None
        return self._op

    @property
    def last_id(self) -> int | None:
        """The message behind which it continues; None = it begins."""
        return None if self._op is None else self._op.last_id

    def over_all(
        self,
        page: Callable[[Connection, int | None], list[int]],
        work: Work,
        *,
        after: int | None = None,
        full: int = 1,
    ) -> None:
        """`over` the messages of each page: those behind a msg_id, lowest first. A page of fewer
        than `full` is the last."""
        while True:
            with reaching(self.engine), connecting(self.engine) as conn:
                ids = page(conn, after)
            self.over(ids, work)
            if len(ids) < full:
                return
            after = ids[-1]

    def over(self, ids: Sequence[int], work: Work) -> None:
        """Run `work` on the messages, part by part, each in a step.

        A part that the database refuses is halved, down to the one message: it is skipped and
        named, and the others are not held up.
        """
        start, most = 0, MOST_SIZE
        while start < len(ids):
            part = list(ids[start : start + min(most, self.pace.size)])
            op_id = self.op.op_id  # if that cannot be recorded, no message is at fault
            try:
                self.step(part[-1], partial(work, op_id, part))
            except TooMany:
                most = len(part) // 2
                continue
            except (DBAPIError, Unchanged, RowKept) as error:
                if len(part) > 1:
                    most = len(part) // 2
                    continue
                said = errors.reason_of(error) if isinstance(error, DBAPIError) else str(error)
                self.skip([Skip(part[0], Why.REFUSED, error=said)], part[0])
            start += len(part)
            most = min(2 * most, MOST_SIZE)

    def skip(self, skips: list[Skip], last_id: int | None = None) -> None:
        """Count messages that are left alone."""
        if skips:
            self.step(last_id, lambda conn: Step(len(skips), 0, skips))

    def step(self, last_id: int | None, work: Callable[[Connection], Step]) -> Step:
        """Run `work` and record its counts in one transaction.

        A step that the database rolled back is repeated. If the connection is lost, the audit says
        whether the step had been committed. Raises MsgworkerError if another process continues
        this operation at the same time.
        """
        done = self._until_known(last_id, work)
        self.skips.add(done.skips)
        self.pace.took(done.matched, self._worked_seconds)
        if self._progress is not None:
            op = self.op
            self._progress(Progress(op.op_id, op.matched, op.changed, op.skipped))
        return done

    def _until_known(self, last_id: int | None, work: Callable[[Connection], Step]) -> Step:
        taken = 0

        def judge(error: BaseException, looking: bool) -> errors.Fate:
            nonlocal taken
            if errors.trouble(error) is Trouble.REFUSED:
                raise refusal(self.engine, error) from error
            key = unique_index_name(self._tables)
            if isinstance(error, DBAPIError) and errors.violates(error, key):
                taken += 1  # a unique key was taken after it was looked at: look again
                return errors.Fate.AGAIN if taken < KEY_TRIES else errors.Fate.RAISE
            return errors.by_trouble(error, looking)

        return self._known(partial(self._once, last_id, work), self._committed, judge)

    def _known(
        self,
        send: Callable[[], T],
        look: Callable[[], T | None],
        judge: Callable[[BaseException, bool], errors.Fate],
    ) -> T:
        """`until_known` with a limit of attempts."""
        failures = errors.Failures()
        known = errors.until_known(
            send, look, lambda: failures.count < TRIES, failures, judge=judge
        )
        if known is None:
            assert failures.last is not None
            raise unavailable(self.engine, failures.last) from failures.last
        return known

    def _once(self, last_id: int | None, work: Callable[[Connection], Step]) -> Step:
        op = self.op
        with self._by_the_rule() as conn:
            begun = time.monotonic()
            done = work(conn)
            # Without the COMMIT, whose duration does not depend on the number of changes.
            self._worked_seconds = time.monotonic() - begun
            self._sent = done
            after = replace(
                op,
                steps=op.steps + 1,
                last_id=last_id,
                matched=op.matched + done.matched,
                changed=op.changed + done.changed,
                skipped=op.skipped + len(done.skips),
            )
            if not audit.advance(conn, self._tables, op, after):
                raise MsgworkerError(
                    f"operation {op.op_id} is over, or another process continues it; this step was "
                    "not done. `msgworker audit` shows it"
                )
        self._op = after
        return done

    @contextmanager
    def _by_the_rule(self) -> Iterator[Connection]:
        """A transaction in which the rule cannot change; raises RuleChanged if it has changed."""
        deadline = time.monotonic() + RULE_PATIENCE_SECONDS
        while True:
            with writing(self.engine) as conn:
                if rule.hold(conn, self._tables):
                    yield conn
                    return
            if time.monotonic() > deadline:
                break
            threading.Event().wait(rule.look_seconds(self._tables))
        raise MsgworkerError(
            f"the rule of table {self._tables.spec.name} is being changed; operation "
            f"{self.op.op_id} was not finished: continue it later (operation)"
        )

    def _committed(self) -> Step | None:
        """The result of a step whose COMMIT got no answer; None if it was not committed."""
        with connecting(self.engine) as conn:
            now = audit.read(conn, self._tables, self.op.op_id)
        before = self.op
        if now is None or now.steps != before.steps + 1:
            return None
        self._op = now
        return self._sent

    def end(self) -> Repaired:
        """Record its end; returns the counts, including those from before an interruption."""
        op = self._op
        if op is None:
            return Repaired(kind=self._kind)

        def send() -> bool:
            with writing(self.engine) as conn:
                audit.finish(conn, self._tables, op.op_id)
            return True

        self._known(send, errors.nothing, errors.repeatable)
        return Repaired(
            kind=op.kind,
            op_id=op.op_id,
            matched=op.matched,
            changed=op.changed,
            **self.skips.as_counts | {"skipped": op.skipped},
        )


# --- Shared parts of all writes: the audit tables, dry runs, resuming after an interruption.


def _check_key(key: Any) -> None:
    """Raise ConfigError for what is no key of a request."""
    if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z0-9.:_-]{1,100}", key):
        raise ConfigError(f"a key is 1 to 100 letters, digits and any of .:_-, got {key!r:.80}")


def _short(name: str, value: Any, most: int) -> str:
    """A text of at most so many characters, None as ""; raises ConfigError."""
    if value is not None and (not isinstance(value, str) or len(value) > most):
        raise ConfigError(f"{name} is a text of at most {most} characters, got {value!r:.80}")
    return value or ""


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user in a container
        user = "unknown"
    return f"{user}@{socket.gethostname() or 'host'}"


class Writing(Looks):
    """Helpers of the writes."""

    _acting = Who("", None)
    """Who acts where a call does not say it, see `acting`."""

    def acting(
        self,
        *,
        actor: str | None = None,
        source: str | None = None,
        key: str | None = None,
        request: str | None = None,
    ) -> Self:
        """The same calls, whose writes are recorded in the audit as of this actor, where the call
        names none, and from this source, such as "web 10.0.0.7" (at most 200 characters each).

        key: of this request, 1 to 100 letters, digits and any of .:_-. The database takes it once:
        another write with it raises KeyUsed and does nothing, and `recorded` finds the operation
        that has it. request: what is asked, such as its digest, for who finds it there (as long).
        Raises ConfigError.
        """
        for text in (key, request):
            if text is not None:
                _check_key(text)
        who = _short("actor", actor, build.MAX_ACTOR)
        where = clean(_short("source", source, build.MAX_ACTOR), build.MAX_ACTOR) or None
        return self._as(Who(who, None, where, key, request))

    def _keyless(self) -> Self:
        """The same calls, for further writes of one request: the key is of one write."""
        return self._as(self._acting._replace(key=None, request=None))

    def _as(self, who: Who) -> Self:
        other = copy.copy(self)
        other._acting = who
        return other

    def recorded(self, key: str) -> Operation | None:
        """The operation that was recorded with this key, see `acting`; None if there is none."""
        _check_key(key)
        self._ready()
        return self._read(audit.with_key, key)

    def operation(self, op_id: int) -> Operation | None:
        """An operation as it is now, also while it runs; None if there is none of this number."""
        whole("op_id", op_id, LEAST, MOST)
        self._ready()
        return self._read(audit.read, op_id)

    def send(
        self,
        topic: str,
        payload: Any = None,
        *,
        actor: str | None = None,
        reason: str | None = None,
        **options: Unpack[AllSendOptions],
    ) -> Sent:
        """Send one message in a transaction of its own, which also records in the audit who did.

        options: as in `App.send` (object_id, delay, at, priority, unique_key, ...). Raises what
        that raises, and SchemaError if the tables of the audit are missing.
        """
        self._who(actor, reason)
        self._ready()

        def sent(conn: Connection) -> Sent:
            msg_id = self._send(conn, topic, payload, **options)
            op_id = self.note_sent(conn, msg_id, topic=topic, actor=actor, reason=reason)
            return Sent("send", msg_id, op_id)

        return in_one(self._engine, sent)

    def note_sent(
        self,
        conn: Connection,
        msg_id: int,
        *,
        topic: str,
        actor: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Record in the audit that this message was sent by an operator, in the caller's
        transaction; return the op_id."""
        by = self._who(actor, reason)
        self._ready()
        t, asked = self._tables, {"ids": [msg_id], "topic": topic}
        return audit.begin(conn, t, "send", by, asked, done_to=msg_id)

    def _at_once(
        self,
        kind: Kind,
        asked: tuple[Who, bool],
        what: str,
        name: T,
        act: Callable[[Connection, Tables, T], bool],
        would: bool,
    ) -> Repaired:
        """Record and do something to one thing, such as a topic, in a transaction, if it would."""
        by, dry_run = asked
        if dry_run or not would:
            return Repaired(kind=kind, matched=int(would), changed=int(would), dry_run=dry_run)
        t = self._tables

        def once(conn: Connection) -> Repaired:
            op_id = audit.begin(conn, t, kind, by, {what: name})
            did = int(act(conn, t, name))
            audit.end(conn, t, op_id, changed=did)
            return Repaired(kind=kind, op_id=op_id, matched=did, changed=did)

        return in_one(self._engine, once)

    def _asked(self, name: str, how: How, needs_reason: str | None = None) -> tuple[Who, bool]:
        """Who asks for the write of this name, and whether it is a dry run, which needs no reason;
        raises TypeError for an unknown keyword."""
        given = options_of(name, how, How)
        dry_run = bool(given.pop("dry_run", False))
        return self._who(**given, needs_reason=None if dry_run else needs_reason), dry_run

    def _who(
        self,
        actor: str | None = None,
        reason: str | None = None,
        *,
        needs_reason: str | None = None,
    ) -> Who:
        """Who asks (default: user and host of this process) and why; raises ConfigError. What
        `needs_reason` is refused without one."""
        given = self._acting.actor if actor is None else _short("actor", actor, build.MAX_ACTOR)
        if not _short("reason", reason, build.MAX_REASON).strip() and needs_reason is not None:
            raise ConfigError(f"{needs_reason} needs a reason; it is kept in the audit")
        why = clean(without_url_secrets(reason), build.MAX_REASON) if reason else None
        return self._acting._replace(
            actor=clean(given.strip() or _user(), build.MAX_ACTOR), reason=why
        )

    @property
    def _clock(self) -> Clock:
        """The time that a dry run has from now on."""
        return Clock(self._seconds, self._counting)

    def _ready(self) -> None:
        """Raise SchemaError if the tables of ops are missing."""
        features = {build.CANCEL.name, build.LIMIT.name, build.HISTORY.name, build.JOB_TABLE.name}
        needed = self._tables_with(*build.OWN).missing - features
        if needed:
            named = [f"{one.name} ({one.about})" for one in build.OWN if one.name in needed]
            raise SchemaError(
                f"table {', '.join(named)} is missing. "
                "Run App.create_schema() or `msgworker init-db`, or see `msgworker ddl "
                "--dialect NAME`"
            )

    def _tables_with(self, *own: OwnTable) -> Tables:
        """The tables, with these of ours, if they were created since this App has read them."""
        if not all(one.is_there(self._tables) for one in own):
            from msgworker.schema import known

            missing = known.missing_tables(self._engine, self._tables)
            self._found = replace(self._tables, missing=missing)
        return self._tables

    def _resumed(self, kind: Kind, op_id: int, asked: dict[str, Any]) -> Operation:
        """An interrupted operation to continue; raises ConfigError if it does not exist, or had
        other ids than those given again."""
        ids = asked.get("ids")
        if any(value is not None for name, value in asked.items() if name != "ids"):
            raise ConfigError("operation continues with the original selection; give no other one")
        self._ready()
        whole("operation", op_id, LEAST, MOST)
        op = self._read(audit.read, op_id)
        if op is None or op.kind != kind:
            raise ConfigError(f"there is no {kind} of number {op_id}; see `msgworker audit`")
        if op.finished_at is not None:
            raise ConfigError(f"{kind} {op_id} is over: {plural(op.changed, 'message')} changed")
        if ids is None and "ids_count" in op.filter:
            raise ConfigError(
                f"{kind} {op_id} was of {op.filter['ids_count']} ids, which were not stored; give "
                "the same ids again with operation: it continues after those that are done"
            )
        again = {} if ids is None else kept(ids)
        if any(op.filter.get(name) != value for name, value in again.items()):
            raise ConfigError(f"these are not the ids of {kind} {op_id}; give the same ones")
        return op

    def _operation(
        self, kind: Kind, by: Who, asked: dict[str, Any], op: Operation | None = None, **pace: Any
    ) -> RecordedOperation:
        """An operation that has yet to begin, or to be continued; pace: rate and progress."""
        said = ((k, v) for k, v in asked.items() if v is not None)
        noted = {k: v for k, v in said if v is not False or k == "acknowledged"}
        if "ids" in noted:
            noted |= kept(noted.pop("ids"))
        return RecordedOperation(self._engine, self._tables, kind, by, noted, op, **pace)

    def _counted(self, kind: Kind, would: DryRun) -> Repaired:
        """The result of a dry run, with the first of the messages."""
        with self._reading() as (conn, t):
            shown = [messages.show(conn, t, i) for i in would.first[:SAMPLE]]
            infos = messages.with_past(conn, t, [info for info in shown if info is not None])
        return Repaired(
            kind=kind,
            matched=would.matched,
            changed=would.changed,
            **would.skips.as_counts,
            dry_run=True,
            sample=tuple(replace(info, payload=None) for info in infos),
            done_again=would.done,
            stay_done=would.stay_done,
            requested=would.running,
            complete=would.complete,
            up_to=would.up_to,
            holding=would.holding,
        )
