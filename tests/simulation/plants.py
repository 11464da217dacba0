"""Planted bugs: what must turn the checker red, each with the rules that may say so.

Those of `flaws` stand in the simulated instance; those of `patch` break the statements themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.instance.search import Pick, Search
from msgworker.message import Outcome
from msgworker.store import claim, done, recover, rows, settle
from msgworker.store.candidates import Candidate
from msgworker.store.rows import Row
from msgworker.table import Cols, Tables
from tests.history import Rule
from tests.simulation.configs import CONFIGS
from tests.simulation.instance import Flaws
from tests.simulation.schedule import Config, Report, search_seeds, world_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One way to be wrong, where to look for it, and what must be reported."""

    name: str
    config: str
    rules: frozenset[Rule]
    flaws: Flaws = field(default_factory=Flaws)
    patch: Callable[[], AbstractContextManager[None]] = nullcontext
    guard: bool = True
    seeds: int = 5000
    rare: bool = False  # takes long to find

    def hunt(self, seeds: range | None = None) -> Report | None:
        """The first schedule in which one of the rules is reported broken, None if none is."""
        config: Config = CONFIGS[self.config]

        def found(report: Report) -> bool:
            return any(violation.rule in self.rules for violation in report.violations)

        with self.patch():
            world = world_for(config, guard=self.guard)
            try:
                return search_seeds(
                    config,
                    seeds or range(self.seeds),
                    flaws=self.flaws,
                    world=world,
                    plant=self.name,
                    found=found,
                )
            finally:
                world.close()


@contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute replaced for a while; statements are built anew with every world."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


# --- broken statements ---


def owner(c: Cols) -> ColumnElement[Any]:
    assert c.claimed_by is not None
    return c.claimed_by


def no_fence() -> AbstractContextManager[None]:
    """A settle asks only whether the row is at 1."""

    def mine(self: Tables, c: Cols, me: ColumnElement[Any]) -> ColumnElement[bool]:
        return sa.or_(self.running(c), sa.and_(sa.false(), owner(c) == me))

    return replaced(Tables, "mine", mine)


def no_status_in_fence() -> AbstractContextManager[None]:
    """A settle, and a recovery, takes any row, whoever has it."""

    def mine(self: Tables, c: Cols, me: ColumnElement[Any]) -> ColumnElement[bool]:
        return sa.or_(sa.true(), owner(c) == me)

    return replaced(Tables, "mine", mine)


def earlier_running() -> AbstractContextManager[None]:
    """The seed's question: is an earlier message running (instead of unfinished)."""

    def earlier(self: Tables, of: Cols) -> ColumnElement[bool]:
        other = self.cols(self.message.alias("e"))
        same = sa.and_(other.object_id == of.object_id, other.msg_id < of.msg_id)
        return sa.exists(sa.select(other.msg_id).where(same, self.running(other)))

    return replaced(Tables, "earlier_unfinished", earlier)


def earlier_ignored() -> AbstractContextManager[None]:
    """Nobody asks for the head."""

    def earlier(_: Tables, __: Cols) -> ColumnElement[bool]:
        return sa.false()

    return replaced(Tables, "earlier_unfinished", earlier)


def due_first() -> AbstractContextManager[None]:
    """A due message is offered before the head of its object, which is then passed over."""

    def offer_waited(self: Pick, row: Candidate) -> None:
        if row.object_id not in self._passed and self.could_go(row):
            self.offer(row)

    def refused(self: Search, candidates: list[Candidate]) -> None:
        self._blocked.update(c.object_id for c in candidates if c.object_id is not None)

    patches = ExitStack()
    patches.enter_context(replaced(Pick, "offer_waited", offer_waited))
    patches.enter_context(replaced(Search, "refused", refused))
    return patches


def any_claim() -> AbstractContextManager[None]:
    """The settle does not ask which claim of the instance it belongs to."""

    def statement(t: Tables, outcome: Outcome, counted: bool) -> sa.Update:
        c = t.cols()
        if outcome is Outcome.DONE:
            return done.finish_of(t, False)
        unasked = [sa.bindparam(name, type_=sa.Integer()) >= 0 for name in ("mw_tries", "mw_times")]
        mine = (t.among(c.msg_id), t.mine(c, rows.ME), *unasked)
        return sa.update(t.message).where(*mine).values(settle._outcome_values(t, outcome))

    return replaced(settle, "_statement", statement)


def any_tries() -> AbstractContextManager[None]:
    """Without owners an outcome asks for the status alone."""

    def same_tries(self: Tables, c: Cols, counted: bool) -> list[ColumnElement[bool]]:
        seen = sa.bindparam("mw_tries", type_=sa.Integer())
        return [sa.or_(self.tries(c) == seen, c.msg_id.is_not(None))] if counted else []

    return replaced(Tables, "same_tries", same_tries)


_flag = claim.flag


def _as_it_is_now(conn: Connection, t: Tables, candidates: Sequence[Candidate]) -> list[Candidate]:
    c = t.cols()
    ids = [one.msg_id for one in candidates]
    query = sa.select(c.msg_id, c.status, t.tries(c)).where(c.msg_id.in_(ids))
    now = {row[0]: row for row in conn.execute(query)}
    return [one._replace(status=now[one.msg_id][1], tries=now[one.msg_id][2]) for one in candidates]


def seen_ignored() -> AbstractContextManager[None]:
    """The claim does not compare status and tries with what was seen."""

    def flag(conn: Connection, t: Tables, candidates: Sequence[Candidate], *, me: str) -> list[Row]:
        return _flag(conn, t, _as_it_is_now(conn, t, candidates), me=me)

    return replaced(claim, "flag", flag)


@contextmanager
def seen_and_status_ignored() -> Iterator[None]:
    """Nor does it look at the status at all."""

    def claimable(_: Tables, c: Cols) -> ColumnElement[bool]:
        return c.status != 1

    with seen_ignored(), replaced(Tables, "claimable", claimable):
        yield


def recover_anybody() -> AbstractContextManager[None]:
    """Rows are given back by id, whoever holds them now."""

    def taken(conn: Connection, t: Tables, ids: Sequence[int], *, dead_id: str, text: str) -> int:
        c = t.cols()
        found = conn.execute(
            sa.update(t.message)
            .where(c.msg_id.in_(ids), t.running(c))
            .values(status=-1, error_try_times=t.tries(c) + 1, crash_times=1, claimed_by=None)
        )
        return found.rowcount + 0 * len(dead_id + text)

    return replaced(recover, "recover", taken)


def crash_is_no_try() -> AbstractContextManager[None]:
    """A recovery counts no try."""

    def back(conn: Connection, t: Tables, ids: Sequence[int], *, dead_id: str, text: str) -> int:
        c = t.cols()
        mine = sa.and_(t.running(c), owner(c) == dead_id)
        values = {"status": -1, "available_at": None, "claimed_by": None, "last_error": text}
        return conn.execute(
            sa.update(t.message).where(c.msg_id.in_(ids), mine).values(values)
        ).rowcount

    return replaced(recover, "recover", back)


def owner_kept() -> AbstractContextManager[None]:
    """What leaves status 1 keeps its `claimed_by`."""
    values = Tables.values

    def kept(self: Tables, **roles: Any) -> dict[str, Any]:
        gone = isinstance(roles.get("claimed_by"), sa.sql.elements.Null)
        return values(self, **{k: v for k, v in roles.items() if k != "claimed_by" or not gone})

    return replaced(Tables, "values", kept)


# --- all of them ---


def _plant(name: str, config: str, rules: str, **how: Any) -> Plant:
    expected = frozenset(Rule(rule) for rule in rules.split())
    return Plant(name=name, config=config, rules=expected, **how)


PLANTS = {
    plant.name: plant
    for plant in (
        _plant("guard index dropped", "guard", "I1", guard=False),
        _plant("guard dropped, claim looks", "foreign", "I1", guard=False),
        _plant("settle without claimed_by", "crashes", "I5", patch=no_fence),
        _plant("settle without any check", "crashes", "I5", patch=no_status_in_fence),
        _plant("earlier running", "ops", "I2", patch=earlier_running),
        _plant("any message instead of the head", "ops", "I2", patch=earlier_ignored),
        _plant(
            "status and tries not as seen",
            "quarantine",
            "I10",
            patch=seen_ignored,
            seeds=20_000,
            rare=True,
        ),
        _plant("any status claimed", "plain", "FINAL I4", patch=seen_and_status_ignored),
        _plant("recover whoever holds it", "zombies", "I1 I4 I5", patch=recover_anybody, rare=True),
        _plant("crash counts no try", "crashes", "I4", patch=crash_is_no_try),
        _plant("claimed_by kept", "foreign", "I1 I5", patch=owner_kept),
        _plant("no take-over", "crashes", "I1 I5", flaws=Flaws(no_take_over=True)),
        _plant("run read before the flag", "ops", "I2 I3 FINAL", flaws=Flaws(early_run=True)),
        _plant("handler ahead of the flag", "plain", "I4", flaws=Flaws(runs_ahead=True)),
        _plant("unknown rows never swept", "unknown", "I3", flaws=Flaws(no_own_sweep=True)),
        _plant("orphans never swept", "crashes", "I3", flaws=Flaws(no_orphan_sweep=True)),
        _plant("sweep beside a claim", "stops", "I4 I8", flaws=Flaws(claim_unlocked=True)),
        _plant("claim before the answer", "answers", "I1 I4", flaws=Flaws(claim_unanswered=True)),
        # What instance/ does at the time of writing; see the test of the same names.
        _plant("only the settled row waits", "answers", "I1 I4", flaws=Flaws(sending_only=True)),
        _plant("beside a quarantined", "quarantine", "I10", flaws=Flaws(beside_quarantine=True)),
        _plant("stop without a sweep", "stops", "I8", flaws=Flaws(stop_unswept=True)),
        _plant(
            "ghosts of the old look", "zombies", "I1", flaws=Flaws(ghosts_of_look=True), rare=True
        ),
        _plant("due follower hides head", "ops", "I3", patch=due_first, rare=True),
        _plant("without owners all forgotten", "unowned", "I3", flaws=Flaws(forgets=True)),
        _plant("without owners started unasked", "unowned", "I1", flaws=Flaws(unasked=True)),
        _plant("without owners any tries", "unowned", "I5", patch=any_tries),
        _plant("settle executed late", "delayed", "I1 I4 I5", patch=any_claim),
    )
}
