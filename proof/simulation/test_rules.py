"""Instances with different rules start, work, stand still and leave: what has ended stays so.

One step is one transaction of the real store functions; anything else may come between two steps.
After each the table is read: what is done, or dead by the recorded rule, is final until an operator
reruns it, whatever the rule is then; and no handler may start for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from msgworker.db.database import DATABASES
from msgworker.errors import RuleChanged
from msgworker.message import Outcome, Settlement
from msgworker.schema import rule
from msgworker.schema.rule import Answer, Rule
from msgworker.store import candidates, change, claim, lease, recover, settle
from msgworker.store.done import FlagMissing
from msgworker.table.build import CANCEL, tables_for
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables

T = TypeVar("T")
RULES = (Rule(3, "continue"), Rule(5, "continue"), Rule(2, "block"))
SEEN = ((0, 0), (-1, 1), (-1, 2), (-1, 3), (-1, 3), (2, 0))  # status and tries at the begin
SEEDS = 10
STEPS = 60


class Broken(AssertionError):
    """Something that had ended goes on."""


class Base:
    """A table with six messages, and what is final in it."""

    def __init__(self) -> None:
        self.engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
        self.tables = {r: tables_for(r.to(MessageTable()), DATABASES["sqlite"]) for r in RULES}
        with self.engine.begin() as conn:
            for t in self.tables.values():
                CANCEL.of(t)  # which a rerun asks
                for metadata in (t.message.metadata, t.lease.metadata):
                    metadata.create_all(conn)
                for index in t.message.indexes:
                    index.create(conn, checkfirst=True)

    def play(self, seed: int) -> None:
        """One schedule; raises Broken."""
        self.rng = random.Random(seed)
        self.final: set[int] = set()
        self.asleep: set[str] = set()
        self.names = 0
        t = self.tables[RULES[0]]
        with self.engine.begin() as conn:
            for one in (t.message, t.lease):
                conn.execute(sa.delete(one))
            rule.record(conn, t)
            for n, (status, tries) in enumerate(self.rng.sample(SEEN, len(SEEN))):
                row = {"msg_id": n + 1, "object_id": "ab"[n % 2]}
                row |= {"status": status, "error_try_times": tries}
                conn.execute(sa.insert(t.message).values(row))
        actors = [self.people(), *(self.instance(wanted) for wanted in RULES)]
        for _ in range(STEPS):
            actor = self.rng.choice(actors)
            try:
                next(actor)
            except StopIteration:
                actors[actors.index(actor)] = self.instance(self.rng.choice(RULES))

    def do(self, act: Callable[..., T], *args: Any, **named: Any) -> T:
        """One step: an act of store/, called with a connection."""
        with self.engine.begin() as conn:
            value = act(conn, *args, **named)
            found = self.rule(conn)
            rows = conn.exec_driver_sql(
                "SELECT msg_id, status, error_try_times, claimed_by FROM msgworker_message"
            ).all()
        for msg_id, status, tries, holder in rows:
            over = status == 2 or (status == -1 and tries >= found.max_tries)
            if over:
                self.final.add(msg_id)
            elif msg_id in self.final and holder not in self.asleep:
                raise Broken(f"message {msg_id} had ended and is {status} with {tries}, by {found}")
        return value

    def rule(self, conn: sa.Connection) -> Rule:
        found = rule.read(conn, self.tables[RULES[0]])
        assert found is not None
        return found

    def start(self, msg_id: int) -> None:
        """A handler starts."""
        if msg_id in self.final:
            raise Broken(f"message {msg_id} had ended and was started again")

    # ------------------------------------------------------------ who takes part

    def instance(self, wanted: Rule) -> Iterator[None]:
        rng = self.rng
        self.names += 1
        me = f"i{self.names}"
        t = None
        while t is None:
            t = yield from self._started(wanted, me)
        for _ in range(rng.randint(1, 8)):
            yield
            if me in self.asleep:  # its lease is over: a new id, by the rule it was built for
                self.names += 1
                me = f"i{self.names}"
                if not self._registered(t, me):
                    return
                yield
            seen = self.do(candidates.oldest, t, mark=0, limit=20)
            yield
            chosen = rng.sample(seen, min(1, len(seen)))
            rows = self.do(claim.flag, t, chosen, me=me) if chosen else []
            yield
            if me in self.asleep:  # not trusted any more
                continue
            for row in rows:
                self.start(row.msg_id)
                yield
                outcome = rng.choice((Outcome.DONE, Outcome.FAILED, Outcome.FAILED, Outcome.DEAD))
                one = Settlement(row.msg_id, outcome, error="no", tries=row.tries)
                with suppress(FlagMissing):
                    self.do(settle.settle, t, [one], me=me)
            yield
            self._recover(t)
        self.do(lease.drop, t, me)

    def _started(self, wanted: Rule, me: str) -> Iterator[None]:
        """As App._state and ruling.change do."""
        found = self.do(self.rule)
        yield
        t = self.tables[found]
        if found != wanted:
            may_bury = self.rng.random() < 0.5
            verdict = self.do(rule.change, t, wanted, may_bury=may_bury)
            yield
            if verdict.state is Answer.HELD:
                self._recover(t)
                return None
            if verdict.state is Answer.CHANGED:
                t = self.tables[wanted]
        return t if self._registered(t, me) else None

    def _registered(self, t: Tables, me: str) -> bool:
        def work(conn: sa.Connection) -> None:
            assert rule.hold(conn, t)
            lease.register(conn, t, me, ttl=3600.0)

        try:
            self.do(work)
            return True
        except RuleChanged:
            return False

    def _recover(self, t: Tables) -> None:
        dead = [one.name for one in self.do(lease.read_all, t) if not one.live]
        for name in dead:
            ids = self.do(recover.flagged_by, t, name)
            self.do(recover.recover, t, ids, dead_id=name, text="died")

    def people(self) -> Iterator[None]:
        """Who ends leases, reruns, discards."""
        t = self.tables[RULES[0]]
        while True:
            yield
            chance, msg_id = self.rng.random(), self.rng.randint(1, 6)
            if chance < 0.3:
                live = [one.name for one in self.do(lease.read_all, t) if one.live]
                if live:
                    name = self.rng.choice(live)
                    self.asleep.add(name)
                    past = sa.update(t.lease).where(t.lease.c.name == name)
                    past = past.values(expires_at=sa.text("'2020-01-01 00:00:00.000'"))
                    self.do(sa.Connection.execute, past)
            elif chance < 0.4:
                self.do(self._rerun, msg_id)

    def _rerun(self, conn: sa.Connection, msg_id: int) -> None:
        if change.rerun(conn, self.tables[self.rule(conn)], [msg_id], done_too=True):
            self.final.discard(msg_id)


@pytest.fixture
def base() -> Iterator[Base]:
    made = Base()
    yield made
    made.engine.dispose()


def test_no_rule_starts_again_what_has_ended(base: Base) -> None:
    for seed in range(SEEDS):
        base.play(seed)


@pytest.mark.parametrize(
    ("name", "broken"),
    [("living", lambda *_: []), ("_renumber", lambda *_: None), ("hold", lambda *_: True)],
    ids=["changed beside the living", "numbers stay", "the start does not ask"],
)
def test_a_broken_rule_is_noticed(
    base: Base, monkeypatch: pytest.MonkeyPatch, name: str, broken: Any
) -> None:
    monkeypatch.setattr(rule, name, broken)
    for seed in range(30 * SEEDS):
        try:
            base.play(seed)
        except Broken:
            return
    pytest.fail("not found")
