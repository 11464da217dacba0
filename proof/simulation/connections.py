"""Connections of the product to the one database of a schedule, on which replies get lost.

A transaction is one step: nothing comes in between its first statement and its COMMIT, which is
what the row locks of a server give. A thread pauses before it, and behind it, while the answer is
on its way. What a transaction does before its first statement, a handler say, is no part of the
step; nor are the looks of a recovery, of which each sees the table of its own moment.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

from sqlalchemy.exc import IntegrityError, OperationalError

from msgworker.instance.claiming.claimer import Claimer, FlaggedRows
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.liveness.requests import OperatorRequests
from msgworker.instance.running.batch import BatchCaller
from msgworker.instance.running.call import Caller
from msgworker.instance.settling.writer import Writer
from proof.simulation.strands import Stage
from proof.simulation.world import Act, World

ACTS = {
    Claimer._flag_once.__code__: Act.CLAIM,
    Writer.write_once.__code__: Act.SETTLE,
    Writer._write_alone.__code__: Act.SETTLE,
    Caller._settle.__code__: Act.SETTLE,
    BatchCaller._settle.__code__: Act.SETTLE,
    FlaggedRows.release.__code__: Act.RELEASE,
    Recovery._try_to.__code__: Act.RECOVER,
    OperatorRequests._end.__code__: Act.CANCEL,
}
"""What a statement that writes messages is for, by the code of a role that sends it."""
ANSWER_STEPS = (0, 0, 0, 4, 30)  # how long an answer is on its way: so many steps of others
NEAR = 12  # so many callers up at most


class Sent(NamedTuple):
    """A statement that writes, and how many rows it changed."""

    statement: Any
    params: Any
    changed: int


@dataclass(slots=True)
class Faults:
    """Chances that a transaction meets trouble, and of each outcome of a handler but done; all 0 in
    liveness mode.

    delayed: that a settle which was given up as lost is executed later; until then it is one of
    in_flight, with the id that has sent it.
    """

    lost: float = 0.0
    again: float = 0.0
    delayed: float = 0.0
    fail: float = 0.0
    reject: float = 0.0
    later: float = 0.0
    in_flight: list[tuple[str, list[Sent]]] = field(default_factory=list)


class Site:
    """What the connections of one process have in common.

    read_at: by message, when the run was read in which it may be flagged.
    """

    def __init__(
        self, world: World, stage: Stage, rng: random.Random, faults: Faults, label: str
    ) -> None:
        self.world = world
        self.stage = stage
        self.rng = rng
        self.faults = faults
        self.label = label
        self.id = label
        self.faulty = False
        self.read_at: dict[int, float] = {}

    def name(self, owner: str) -> str:
        """Who it is in the history: without owners one, whatever its id is now."""
        return owner if self.world.owners else self.label


class Engine:
    """Stands for sqlalchemy.Engine."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.pool = None
        self.url = site.world.engine.url
        self.dialect = site.world.engine.dialect

    def connect(self) -> Connection:
        return Connection(self._site)


def lost() -> OperationalError:
    error = sqlite3.OperationalError("disk i/o error: the connection is gone")
    return OperationalError("a statement", {}, error, connection_invalidated=True)


def rolled_back() -> OperationalError:
    return OperationalError("a statement", {}, sqlite3.OperationalError("database is locked"))


class Connection:
    """Stands for sqlalchemy.Connection."""

    dialect = SimpleNamespace(
        name="sqlite",
        driver="",
        paramstyle="",
        supports_sane_multi_rowcount=True,
        set_isolation_level=lambda raw, level: None,
    )
    connection = SimpleNamespace(dbapi_connection=None, driver_connection=None)
    is_active = True  # as its own transaction

    def __init__(self, site: Site) -> None:
        self._site = site
        self._alone = False
        self._within = False  # a transaction
        self._looking = False  # of which each statement is a step
        self._begun = False
        self._act: Act | None = None
        self._who = ""
        self._sent: list[Sent] = []
        self._fate: OperationalError | None = None
        self._arrives = False  # the COMMIT does, if its answer is lost
        self.invalidated = self.closed = False
        self.engine = site.world.engine

    def execution_options(self, **_: Any) -> Connection:
        self._alone = True
        return self

    def get_execution_options(self) -> dict[str, Any]:
        return {}

    def invalidate(self) -> None:
        self.invalidated = True

    def close(self) -> None:
        self.closed = True

    def get_transaction(self) -> Connection | None:
        return self if self._within else None

    # ------------------------------------------------------------ statements

    def execute(self, statement: Any, params: Any = None) -> Any:
        writes = bool(getattr(statement, "is_dml", False))
        if self._alone or self._looking or not self._within:
            assert not writes, "what writes is written in a transaction"
            return self._look(statement, params)
        if not self._begun:
            if not writes and _by_recovery():
                self._looking = True
                return self._look(statement, params)
            self._begin()
        found = self._site.world.conn.execute(statement, params)
        if writes:
            self._sent.append(Sent(statement, params, found.rowcount))
            self._act = self._act or _act()
            if self._act is not Act.RECOVER:
                first = params[0] if isinstance(params, list) else params or {}
                self._who = first.get("mw_me", self._who)
        return found

    def scalars(self, statement: Any, params: Any = None) -> Any:
        return (row[0] for row in self.execute(statement, params))

    def scalar(self, statement: Any, params: Any = None) -> Any:
        return self.execute(statement, params).scalar()

    def exec_driver_sql(self, text: str) -> Any:
        raise AssertionError(f"not for SQLite: {text}")

    def _look(self, statement: Any, params: Any) -> Any:
        site = self._site
        site.stage.pause()
        if site.faulty and site.faults.lost and site.rng.random() < site.faults.lost:
            self.invalidated = True
            raise lost()
        return site.world.conn.execute(statement, params)

    # ------------------------------------------------------------ transactions

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        self._within, self._looking, self._begun = True, False, False
        self._act, self._who, self._sent, self._fate = None, self._site.id, [], None
        try:
            yield self
        except BaseException:
            self._roll_back()
            raise
        else:
            if self._begun:
                self._commit()
        finally:
            self._within = False

    @contextmanager
    def begin_nested(self) -> Iterator[None]:
        if not self._begun:
            self._begin()
        with self._site.world.conn.begin_nested():
            yield

    def _begin(self) -> None:
        site = self._site
        site.stage.pause()
        rng, faults = site.rng, site.faults
        if site.faulty and faults.again and rng.random() < faults.again:
            self._fate, self._arrives = rolled_back(), False
        elif site.faulty and faults.lost and rng.random() < faults.lost:
            self._fate, self._arrives = lost(), rng.random() < 0.6
            if not self._arrives and rng.random() < 0.5:
                self.invalidated = True
                raise self._fate
        site.world.raw.execute("BEGIN")
        self._begun = site.stage.atomic = True

    def _roll_back(self) -> None:
        if self._begun:
            self._site.world.raw.execute("ROLLBACK")
            self._begun = self._site.stage.atomic = False

    def _commit(self) -> None:
        site, fate = self._site, self._fate
        if fate is not None:
            self.invalidated = fate.connection_invalidated
        if fate is not None and not self._arrives:
            self._roll_back()
            settles = self.invalidated and self._act is Act.SETTLE
            if settles and site.rng.random() < site.faults.delayed:
                site.faults.in_flight.append((self._who, self._sent))
            raise fate
        site.world.raw.execute("COMMIT")
        self._begun = site.stage.atomic = False
        if self._sent:
            site.world.observe(self._act or Act.LEASE, site.name(self._who), site.read_at)
            site.stage.linger(site.rng.choice(ANSWER_STEPS))
        if fate is not None:
            raise fate


def deliver(world: World, who: str, sent: list[Sent]) -> None:
    """Execute what its sender has given up. If it finds other rows than its sender was told of, who
    would have gone another way, only what stands alone is committed."""
    world.raw.execute("BEGIN")
    with suppress(IntegrityError):
        same = [world.conn.execute(s.statement, s.params).rowcount == s.changed for s in sent]
        if len(sent) == 1 or all(same):
            world.raw.execute("COMMIT")
            world.observe(Act.SETTLE, who, {})
            return
    world.raw.execute("ROLLBACK")


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(3)
    for _ in range(NEAR):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _act() -> Act | None:
    return next((ACTS[f.f_code] for f in _callers() if f.f_code in ACTS), None)


def _by_recovery() -> bool:
    """Whether a recovery looks for what there is to do."""
    roles = (f for f in _callers() if f.f_globals["__name__"].startswith("msgworker.instance."))
    return next((f.f_code for f in roles), None) is Recovery.run.__code__
