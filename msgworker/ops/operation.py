"""One operation over many messages, in short transactions that are recorded in the audit.

Each step commits its changes together with its counts, so the counts of an operation are exact
wherever it is interrupted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db import (
    Trouble,
    connecting,
    reason_of,
    refusal,
    trouble,
    unavailable,
    violates,
    writing,
)
from msgworker.errors import MsgworkerError
from msgworker.instance.settling.until_known import (
    Failures,
    Fate,
    by_trouble,
    nothing,
    repeatable,
    until_known,
)
from msgworker.ops.call import Who
from msgworker.ops.results import Progress, Repaired, Skip, Skips, Tell, Why
from msgworker.schema import rule
from msgworker.store import audit
from msgworker.store.audit import Operation
from msgworker.store.rows import RowKept
from msgworker.table import Tables
from msgworker.table.tables import index_name

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
RULE_PATIENCE_SECONDS = 5.0


class Unchanged(MsgworkerError):
    """The database has not done to locked rows what a statement asked for."""


class TooMany(Exception):
    """A part of several is more than one transaction should change: a half of it may not be."""


@dataclass(slots=True)
class Step:
    """What one transaction did."""

    matched: int = 0
    changed: int = 0
    skips: list[Skip] = field(default_factory=list)


class Pace:
    """Chooses the size of the next transaction, so that each is short, and limits the rate.

    rate: the most messages a second. most: the most that a statement takes. rest: the least pause
    after each transaction, in seconds.
    """

    def __init__(
        self, *, most: int, rate: float | None, lets_others: bool, rest: float = 0.0
    ) -> None:
        self._most = min(most, MOST_SIZE)
        if rate is not None:
            self._most = max(1, min(self._most, int(rate / 4)))
        self._rate = rate
        self._lets_others = lets_others
        self._rest = rest
        self._gate = threading.Event()
        self._next_at = time.monotonic()
        self.size = min(FIRST_SIZE, self._most)

    def took(self, count: int, seconds: float) -> None:
        """After a transaction of `count` messages."""
        if count * 2 >= self.size:
            # With a single writer, all others wait during the whole transaction.
            target = STEP_SECONDS / 2 if self._lets_others else STEP_SECONDS
            wanted = int(count * target / max(seconds, 1e-4))
            least = min(LEAST_SIZE, self._most)
            self.size = min(max(wanted, least, self.size // 4), self.size * 2, self._most)
        rest = self._rest
        if self._rate is not None:
            now = time.monotonic()
            self._next_at = max(self._next_at, now - 1.0) + count / self._rate
            rest = max(rest, self._next_at - now)
        if rest > 0:
            self._gate.wait(rest)


class Bulk:
    """A running operation: `step` after `step`, then `finish`."""

    def __init__(
        self,
        engine: sa.Engine,
        tables: Tables,
        op: Operation,
        *,
        rate: float | None = None,
        progress: Tell | None = None,
    ) -> None:
        self.engine = engine
        self._tables = tables
        self._progress = progress
        self.op = op
        self.skips = Skips()
        self._worked_seconds = STEP_SECONDS
        dialect = tables.dialect
        rest = LET_OTHERS_SECONDS if dialect.one_writer else 0.0
        if rule.locks_alone(tables):
            rest = LET_START_SECONDS
        self.pace = Pace(most=dialect.max_ids, rate=rate, lets_others=dialect.one_writer, rest=rest)

    @classmethod
    def begun(
        cls,
        engine: sa.Engine,
        tables: Tables,
        kind: str,
        by: Who,
        asked: dict[str, Any],
        **more: Any,
    ) -> Bulk:
        """Record a new operation in the audit."""
        with writing(engine) as conn:
            op_id = audit.begin(conn, tables, kind=kind, **by.fields, asked=asked)
            op = audit.read(conn, tables, op_id)
        assert op is not None
        return cls(engine, tables, op, **more)

    def over(
        self,
        ids: Sequence[int],
        work: Callable[[Connection, list[int]], Step],
        *,
        keeps_place: bool = True,
    ) -> None:
        """Run `work` on the messages, part by part, each in a step.

        A part that the database refuses is halved, down to the one message: it is skipped and
        named, and the others are not held up. keeps_place: the operation can be continued after
        the last one of a part.
        """
        start, most = 0, MOST_SIZE
        while start < len(ids):
            part = list(ids[start : start + min(most, self.pace.size)])
            last = part[-1] if keeps_place else None
            try:
                self.step(last, partial(_on, part, work))
            except TooMany:
                most = len(part) // 2
                continue
            except (DBAPIError, Unchanged, RowKept) as error:
                if len(part) > 1:
                    most = len(part) // 2
                    continue
                said = reason_of(error) if isinstance(error, DBAPIError) else str(error)
                skip = Skip(part[0], Why.REFUSED, error=said)
                self.step(last, lambda conn, skip=skip: Step(1, 0, [skip]))  # type: ignore[misc]
            start += len(part)
            most = min(2 * most, MOST_SIZE)

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

        def judge(error: BaseException, looking: bool) -> Fate:
            nonlocal taken
            if trouble(error) is Trouble.REFUSED:
                raise refusal(self.engine, error) from error
            if isinstance(error, DBAPIError) and violates(error, index_name(self._tables)):
                taken += 1  # a unique key was taken after it was looked at: look again
                return Fate.AGAIN if taken < KEY_TRIES else Fate.RAISE
            return by_trouble(error, looking)

        return self._known(partial(self._once, last_id, work), self._committed, judge)

    def _known(
        self,
        send: Callable[[], T],
        look: Callable[[], T | None],
        judge: Callable[[BaseException, bool], Fate],
    ) -> T:
        """`until_known` with a limit of attempts."""
        failures = Failures()
        known = until_known(send, look, lambda: failures.count < TRIES, failures, judge=judge)
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
            counts = {
                "matched": done.matched,
                "changed": done.changed,
                "skipped": len(done.skips),
            }
            if not audit.advance(conn, self._tables, op, last_id=last_id, **counts):
                raise MsgworkerError(
                    f"operation {op.op_id} is over, or another process continues it; this step was "
                    "not done. `msgworker audit` shows it"
                )
        self.op = replace(
            op,
            steps=op.steps + 1,
            last_id=last_id,
            matched=op.matched + done.matched,
            changed=op.changed + done.changed,
            skipped=op.skipped + len(done.skips),
        )
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
        self.op = now
        return Step(now.matched - before.matched, now.changed - before.changed)

    def finish(self) -> None:
        """Record the end of the operation."""

        def send() -> bool:
            with writing(self.engine) as conn:
                audit.finish(conn, self._tables, self.op.op_id)
            return True

        self._known(send, nothing, repeatable)

    def result(self) -> Repaired:
        """The counts so far, including those from before an interruption."""
        op = self.op
        return Repaired(
            kind=op.kind,
            op_id=op.op_id,
            matched=op.matched,
            changed=op.changed,
            skipped=op.skipped,
            why=self.skips.why,
            skips=tuple(self.skips.first),
        )


def _on(part: list[int], work: Callable[[Connection, list[int]], Step], conn: Connection) -> Step:
    return work(conn, part)
