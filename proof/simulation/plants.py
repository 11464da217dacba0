"""Planted bugs: what must turn the checker red, each with the rules that may say so.

Some break statements of store/, others the objects of instance/ that decide; both for a while.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest.mock import patch

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import IntegrityError

from msgworker import schedules as ticks
from msgworker.instance.claiming.claimer import Claimer, FlaggedRows
from msgworker.instance.claiming.finder import Finder
from msgworker.instance.claiming.heads import HeadChooser, Search
from msgworker.instance.claiming.loop import DrainEnd
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.running import batch
from msgworker.instance.running.in_flight import InFlight, Lane, Quiesce, Step
from msgworker.instance.running.pool import LaneQueue
from msgworker.instance.settling.settler import Settler
from msgworker.instance.settling.writer import Writer, settlement
from msgworker.instance.state import Controls, Shared
from msgworker.message import Outcome, Settled, Settlement
from msgworker.store import (
    change,
    claim,
    controls,
    done,
    jobs,
    limits,
    recover,
    rows,
    schedules,
    settle,
)
from msgworker.store.candidates import Candidate
from msgworker.store.rows import Bare, Row
from msgworker.store.settle import OutOfDate, Share
from msgworker.table import tables
from msgworker.table.columns import Cols
from msgworker.table.tables import Tables
from proof.judge import Rule
from proof.simulation.configs import CONFIGS
from proof.simulation.process import RUN_LIMIT
from proof.simulation.schedule import Report, search_seeds

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One way to be wrong, where to look for it, and what must be reported."""

    name: str
    config: str
    rules: frozenset[Rule]
    patches: list[tuple[Any, str, Any]]  # owner, attribute, what takes its place
    guard: bool = True
    begin: int = 0  # the first seed to try: it, or one soon behind it, finds the bug
    seeds: int = 5000
    rare: bool = False  # takes long to find

    @contextmanager
    def planted(self) -> Iterator[None]:
        """For a while; statements are built anew with every world."""
        with ExitStack() as stack:
            for one in self.patches:
                stack.enter_context(patch.object(*one))
            yield

    def hunt(self, seeds: range | None = None) -> Report | None:
        """The first schedule in which one of the rules is reported broken, None if none is."""

        def found(report: Report) -> bool:
            return any(violation.rule in self.rules for violation in report.violations)

        seeds = seeds or range(self.begin, self.seeds)
        how: Any = {"guard": self.guard, "plant": self.name, "found": found}
        with self.planted():
            return search_seeds(CONFIGS[self.config], seeds, **how)


PLANTS: dict[str, Plant] = {}


def plant(name: str, config: str, rules: str, **how: Any) -> Callable[..., Callable[[F], F]]:
    """Add one to PLANTS. What it gives takes the owner and the name of an attribute, and the value
    that takes its place; without a value it is a decorator of a function that does."""
    expected = frozenset(Rule(rule) for rule in rules.split())
    made = PLANTS[name] = Plant(name=name, config=config, rules=expected, patches=[], **how)

    def instead_of(*place: Any) -> Callable[[F], F]:
        def placed(function: F) -> F:
            made.patches.append((*place, function))
            return function

        if len(place) == 3:
            made.patches.append(place)
        return placed

    return instead_of


_values = Tables.values


def without(role: str, is_left_out: Callable[[Any], bool]) -> tuple[Any, str, Any]:
    """A value of this role is not written."""

    def left(self: Tables, **roles: Any) -> dict[str, Any]:
        if role in roles and is_left_out(roles[role]):
            del roles[role]
        return _values(self, **roles)

    return Tables, "values", left


# --- broken statements ---


plant("guard index dropped", "guard", "I1", guard=False, begin=6)
plant("claimed_by kept", "foreign", "I1 I5", begin=395)(
    *without("claimed_by", lambda value: isinstance(value, sa.sql.elements.Null))
)


def owner(c: Cols) -> ColumnElement[Any]:
    assert c.claimed_by is not None
    return c.claimed_by


@plant("settle without claimed_by", "crashes", "I5", begin=228)(Tables, "mine")
@plant("batch: without claimed_by", "groups", "I5", begin=100)(Tables, "mine")
def no_fence(self: Tables, c: Cols, me: ColumnElement[Any]) -> ColumnElement[bool]:
    """A settle asks only whether the row is at 1."""
    return sa.or_(self.running(c), sa.and_(sa.false(), owner(c) == me))


@plant("earlier running", "ops", "I2")(Tables, "earlier_unfinished")
def earlier_running(self: Tables, of: Cols) -> ColumnElement[bool]:
    """The seed's question: is an earlier message running (instead of unfinished)."""
    other = self.cols(self.message.alias("e"))
    same = sa.and_(other.object_id == of.object_id, other.msg_id < of.msg_id)
    return sa.exists(sa.select(other.msg_id).where(same, self.running(other)))


due_first = plant("due follower hides head", "ops", "I3")
"""A due message is offered before the head of its object, which is then passed over."""


@due_first(HeadChooser, "offer_waited")
def offer_waited(self: HeadChooser, row: Candidate) -> None:
    if row.object_id not in self._skipped and self.can_run(row):
        self.offer(row)


@due_first(Search, "lost")
def lost(self: Search, candidates: list[Candidate]) -> None:
    self._blocked.update(c.object_id for c in candidates if c.object_id is not None)


# Goes on under its id while a settle may be under way: one of both alone does no harm.
under_its_id = plant("settle executed late", "delayed", "I1 I4 I5")
under_its_id(Identity, "retire", lambda self: None)
under_its_id(Finder, "_drop_doubtful", lambda self, look: None)


@under_its_id(settle, "_statement")
def any_claim(t: Tables, outcome: Outcome, counted: bool) -> sa.Update:
    """The settle does not ask which claim of the instance it belongs to."""
    c = t.cols()
    unasked = [sa.bindparam(name, type_=sa.Integer()) >= 0 for name in ("mw_tries", "mw_times")]
    this = c.msg_id == sa.bindparam("mw_id", type_=sa.BigInteger())
    mine = (this, t.mine(c, rows.ME), *unasked)
    return sa.update(t.message).where(*mine).values(settle._outcome_values(t, outcome))


@plant("without owners any tries", "unowned", "I5")(Tables, "same_tries")
def any_tries(self: Tables, c: Cols, counted: bool) -> list[ColumnElement[bool]]:
    """Without owners an outcome asks for the status alone."""
    seen = sa.bindparam("mw_tries", type_=sa.Integer())
    return [sa.or_(self.tries(c) == seen, c.msg_id.is_not(None))] if counted else []


_flag = claim.flag


# A message at any status but 1 may be claimed.
any_status = plant("any status claimed", "plain", "FINAL I4")
any_status(Tables, "claimable", lambda _, c: c.status != 1)


@any_status(claim, "flag")
def seen_ignored(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], *, me: str
) -> list[Row]:
    """The claim does not compare status and tries with what was seen."""
    c = t.cols()
    ids = [one.msg_id for one in candidates]
    query = sa.select(c.msg_id, c.status, t.tries(c)).where(c.msg_id.in_(ids))
    now = {i: {"status": status, "tries": tries} for i, status, tries in conn.execute(query)}
    return _flag(conn, t, [one._replace(**now[one.msg_id]) for one in candidates], me=me)


@plant("crash counts no try", "crashes", "I4")(recover, "recover")
def crash_is_no_try(
    conn: Connection, t: Tables, ids: Sequence[int], *, dead_id: str, text: str, **_: Any
) -> int:
    """A recovery counts no try."""
    c = t.cols()
    mine = sa.and_(c.msg_id.in_(ids), t.running(c), owner(c) == dead_id)
    values = {"status": -1, "available_at": None, "claimed_by": None, "last_error": text}
    return conn.execute(sa.update(t.message).where(mine).values(values)).rowcount


# --- broken roles ---


# Rows of an expired lease are given back without taking it over.
plant("no take-over", "crashes", "I1 I5", begin=82)(
    Recovery, "_take_over", lambda self, seen: self._recover_rows(seen.name)[0]
)
plant("orphans never given back", "zombies", "I3", rare=True)(
    Recovery, "_recover_orphan", lambda self, dead_id: 0
)
# Recovery takes the dead for living, as long as their lease was once seen alive.
plant("the dead never given back", "crashes", "I3")(
    Recovery, "_due", lambda self, leases, holders: iter(())
)
early = plant("run read before the flag", "ops", "I2 I3 FINAL")
_flag_by, _read_runs = Claimer._flag, claim.read_runs
_kept: dict[int, list[Bare]] = {}


@early(Claimer, "_flag")
def flag_later(
    self: Claimer, candidates: list[Candidate], me: str
) -> tuple[list[Row], list[Candidate]]:
    heads = [Row(c.msg_id, c.object_id, None, None, 0, 0, 0, None, None) for c in candidates]
    with self._link.statement() as conn:
        found = _read_runs(conn, self._setup.tables, heads, limit=RUN_LIMIT)
        _kept.update({head.msg_id: found.get(head.msg_id, []) for head in heads})
    return _flag_by(self, candidates, me)


@early(claim, "read_runs")
def read(conn: Connection, t: Tables, heads: Sequence[Row], **_: Any) -> dict[int, list[Bare]]:
    return {head.msg_id: _kept.get(head.msg_id, []) for head in heads}


plant("unknown rows never swept", "unknown", "I3")(
    FlaggedRows, "release_unknown", lambda self, link: None
)
plant("stop without a sweep", "stops", "I8")(FlaggedRows, "none_left", lambda self, link: True)


@plant("sweep beside a claim", "stops", "I4 I8", begin=15)(FlaggedRows, "no_claim_in_flight")
@contextmanager
def no_claim_in_flight(self: FlaggedRows, patience: float | None = None) -> Iterator[bool]:
    """The sweep of unknown rows does not wait for claims in flight."""
    yield True


# An object may be claimed while it is not known whether its settle is over.
plant("claim before the answer", "answers", "I1 I4", rare=True)(
    InFlight, "objects_and_ids", lambda self: (set(), set())
)
# A message in quarantine is claimed beside others, whose handlers are not waited for.
beside = plant("beside a quarantined", "quarantine", "I10", begin=6)
beside(Quiesce, "step", lambda self, held, reason: Step.EMPTY)
beside(Claimer, "may_claim_alone", lambda self: True)
beside(InFlight, "quarantined", lambda self, most: False)
_continue_as = Shared.continue_as
# Without owners, too, a lost lease makes an instance forget all.
plant("without owners all forgotten", "unowned", "I3")(
    Shared, "continue_as", lambda self, *what, with_all=False: _continue_as(self, *what)
)
# Without owners, what is carried over a lost lease starts without being asked for.
plant("without owners started unasked", "unowned", "I1")(
    LaneQueue, "may_start", lambda self, lane: self._identity.is_ours(lane.owner)
)
_settle = Settler.settle


@plant("handler ahead of the flag", "plain", "I4")(Settler, "settle")
def ahead_of_the_flag(self: Settler, batch: Sequence[Lane], writer: Writer) -> list[Lane]:
    """Lanes go on before what moves their flags is written."""
    ahead = [
        Lane(lane.owner, lane.rows[lane.place + 1 :])
        for lane in batch
        if settlement(lane, self._setup, self._shared).next_id is not None and lane.settled is None
    ]
    self._shared.in_flight.lanes.update(ahead)
    self._lanes.put(ahead)
    _settle(self, batch, writer)
    return []


in_both = plant("one lane in two settles", "plain", "I1 I3 I4 I5")
"""Finished lanes leave the queue after their settle, so that both take them."""


@in_both(Settler, "_take")
def copied(self: Settler, batch: list[Lane]) -> None:
    batch += self.finished


@in_both(Settler, "settle")
def late(self: Settler, batch: Sequence[Lane], writer: Writer) -> list[Lane]:
    try:
        return _settle(self, batch, writer)
    finally:
        for lane in batch:
            if lane in self.finished:
                self.finished.remove(lane)


_write = Writer.write


@plant("one answer for a batch", "plain", "I3 I4", begin=4)(Writer, "write")
def one_answer_for_all(self: Writer, lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
    """What became of one lane of a batch is taken for what became of all."""
    became = _write(self, lanes, me)
    return dict.fromkeys(lanes, next(iter(became.values()), Settled.LOST))


@plant("unanswered is written", "unknown", "I1 I4")(Writer, "_look")
def unanswered_is_written(self: Writer, lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
    """What was not answered is taken for written, without a look."""
    wanted = {i: settlement(lane, self._setup, self._shared).next_id for i, lane in lanes.items()}
    return {i: Settled.ADVANCED if ahead else Settled.ENDED for i, ahead in wanted.items()}


plant("no lease is ever lost", "zombies", "I1")(Identity, "trusted", lambda self: True)
# What was claimed under a lost id is never lost, and its lanes are started.
ours = plant("lost ids are ours", "zombies", "I1")
ours(Identity, "is_ours", lambda self, owner: True)
ours(LaneQueue, "may_start", lambda self, lane: True)
# After the first look at everything that found nothing.
plant("drain ends at once", "drains", "I3")(DrainEnd, "is_over", lambda self, look: look.complete)
plant("drain waits for no lease", "drains", "I3")(
    DrainEnd, "lease_ends_in", lambda self, ending: None
)
_settle_one = settle.settle_one


@plant("chains: sent for the lost", "chains", "I6")(settle, "settle_one")
def sends_for_the_lost(conn: Connection, t: Tables, one: Settlement, **how: Any) -> Settled:
    """What the handler of a lost lane has sent is sent all the same."""
    settled = _settle_one(conn, t, one, **how)
    if settled is Settled.LOST:
        settle.send_all(conn, t, one.sends)
    return settled


_write_once = Writer.write_once


@plant("chains: sent by itself", "chains", "I6")(Writer, "write_once")
def sends_by_itself(self: Writer, lanes: Sequence[Lane], *how: Any) -> None:
    """What handlers have sent is committed before their outcomes."""
    for lane in lanes:
        if lane.result is not None and lane.result.sends:
            with self.link.transaction() as conn:
                settle.send_all(conn, self._setup.tables, lane.result.sends)
            lane.result = dataclasses.replace(lane.result, sends=())
    _write_once(self, lanes, *how)


# --- batches ---


_finish = done.finish


@plant("batch: counts ignored", "batches", "I3 I5 I6 FINAL")(done, "finish")
def all_ended(conn: Connection, t: Tables, ids: Any, me: str, seen: Any, **how: Any) -> int:
    """A head that is gone, or a follower, is not noticed."""
    ended = _finish(conn, t, ids, me, seen, **how)
    return len(ids) if "free" in how else ended  # else not of a batch


_settle_batch = settle.settle_batch


@plant("batch: half is committed", "batches", "I3 I6")(batch.store, "settle_batch")
def each(conn: Connection, t: Tables, shares: Sequence[Share], **how: Any) -> set[int]:
    """The lanes that are still ours are committed, with the writes for the others."""
    flagged: set[int] = set()
    for share in shares:
        with suppress(OutOfDate, IntegrityError), conn.begin_nested():
            flagged |= _settle_batch(conn, t, [share], **how)
    return flagged


# --- cancels, keys and limits ---


kept_by_a_rerun = plant("a rerun keeps a request", "cancels", "I3")  # of the run before it
_rerun, _drop = change.rerun, controls.drop_requests
_within: list[bool] = []


@kept_by_a_rerun(controls, "drop_requests")
def kept(conn: Any, t: Any, ids: Any) -> int:
    return 0 if _within else _drop(conn, t, ids)


@kept_by_a_rerun(change, "rerun")
def rerunning(*args: Any, **how: Any) -> int:
    _within.append(True)
    try:
        return _rerun(*args, **how)
    finally:
        _within.pop()


@plant("keys: free between tries", "keys", "KEYS")(tables, "key_counts")
def free_between_tries(_: Tables, c: Cols) -> ColumnElement[bool]:
    """A message that has failed does not hold its key until its next try."""
    assert c.unique_key is not None
    running_or_new = c.status.in_([sa.literal_column("0"), sa.literal_column("1")])
    return sa.and_(c.unique_key.is_not(None), running_or_new)


# What ends a message does not say when.
plant("keys: held by the dead", "keys", "KEYS")(*without("finished_at", lambda value: True))
_flag_once = Claimer._flag_once


@plant("limits: counted before", "limits", "I11")(Claimer, "_flag_once")
def counted_before(
    self: Claimer, topic: str | None, candidates: list[Candidate], me: str, **how: Any
) -> tuple[list[Row], list[Candidate]]:
    """What is free is counted in a transaction of its own, before that of the flags."""
    if topic is None:
        return _flag_once(self, topic, candidates, me, **how)
    tables, rows = self._setup.tables, list[Row]()
    with self._link.transaction() as conn:
        free = limits.lock(conn, tables, topic)
    some = [] if free is None else candidates[: free.starts]
    if free is not None and some:
        with self._link.transaction() as conn:
            rows, _ = claim.flag_apart(conn, tables, some, me=me)
            limits.take(conn, tables, topic, free, len(rows))
    self._limit_poller.tried(topic, free, len(rows))
    return rows, some


# A message of a limited topic gets the flag of the one in front of it.
plant("limits: a run goes on", "limits", "I11")(
    Controls, "__post_init__", lambda self: object.__setattr__(self, "apart", self.paused)
)
plant("limits: starts take no token", "limits", "I11")(
    limits, "take", lambda conn, t, topic, free, count: None
)


# --- schedules and jobs ---


_as_seen, _due = schedules._as_seen, ticks.due
# A tick is fired whoever has fired it meanwhile.
plant("ticks: any version", "ticks", "TICKS")(schedules, "_as_seen", lambda *a: _as_seen(*a)[:2])


@plant("ticks: computed from now", "ticks", "TICKS")(ticks, "due")
def ticks_from_now(when: Any, catch_up: str, next_at: Any, last_at: Any, now: Any) -> Any:
    """The next tick is computed from the time at which the one before is sent."""
    found = _due(when, catch_up, next_at, last_at, now)
    return found and ticks.Due(found.ticks[:1], when.after(now))


plant("jobs: whatever is left", "jobs", "JOBS")(jobs, "_unfinished", lambda t, job: sa.false())
# Whoever has completed it meanwhile.
plant("jobs: completed twice", "jobs", "JOBS")(
    jobs, "_is_to_complete", lambda c: (c.sealed_at.is_not(None),)
)
