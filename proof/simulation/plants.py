"""Planted bugs: what must turn the checker red, each with the rules that may say so.

Some break statements of store/, others the objects of instance/ that decide; both for a while.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

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
    lease,
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
from proof.simulation.schedule import Config, Report, search_seeds, world_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One way to be wrong, where to look for it, and what must be reported."""

    name: str
    config: str
    rules: frozenset[Rule]
    patch: Callable[[], AbstractContextManager[None]] = nullcontext
    guard: bool = True
    begin: int = 0  # the first seed to try: it, or one soon behind it, finds the bug
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
                    seeds or range(self.begin, self.seeds),
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


@contextmanager
def together(*patches: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


def without(role: str, is_left_out: Callable[[Any], bool]) -> AbstractContextManager[None]:
    """A value of this role is not written."""
    values = Tables.values

    def left(self: Tables, **roles: Any) -> dict[str, Any]:
        if role in roles and is_left_out(roles[role]):
            del roles[role]
        return values(self, **roles)

    return replaced(Tables, "values", left)


# --- broken statements ---


def owner(c: Cols) -> ColumnElement[Any]:
    assert c.claimed_by is not None
    return c.claimed_by


def no_fence() -> AbstractContextManager[None]:
    """A settle asks only whether the row is at 1."""

    def mine(self: Tables, c: Cols, me: ColumnElement[Any]) -> ColumnElement[bool]:
        return sa.or_(self.running(c), sa.and_(sa.false(), owner(c) == me))

    return replaced(Tables, "mine", mine)


def earlier_running() -> AbstractContextManager[None]:
    """The seed's question: is an earlier message running (instead of unfinished)."""

    def earlier(self: Tables, of: Cols) -> ColumnElement[bool]:
        other = self.cols(self.message.alias("e"))
        same = sa.and_(other.object_id == of.object_id, other.msg_id < of.msg_id)
        return sa.exists(sa.select(other.msg_id).where(same, self.running(other)))

    return replaced(Tables, "earlier_unfinished", earlier)


def due_first() -> AbstractContextManager[None]:
    """A due message is offered before the head of its object, which is then passed over."""

    def offer_waited(self: HeadChooser, row: Candidate) -> None:
        if row.object_id not in self._skipped and self.can_run(row):
            self.offer(row)

    def lost(self: Search, candidates: list[Candidate]) -> None:
        self._blocked.update(c.object_id for c in candidates if c.object_id is not None)

    return together(
        replaced(HeadChooser, "offer_waited", offer_waited), replaced(Search, "lost", lost)
    )


def any_claim() -> AbstractContextManager[None]:
    """The settle does not ask which claim of the instance it belongs to."""

    def statement(t: Tables, outcome: Outcome, counted: bool) -> sa.Update:
        c = t.cols()
        unasked = [sa.bindparam(name, type_=sa.Integer()) >= 0 for name in ("mw_tries", "mw_times")]
        this = c.msg_id == sa.bindparam("mw_id", type_=sa.BigInteger())
        mine = (this, t.mine(c, rows.ME), *unasked)
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


def crash_is_no_try() -> AbstractContextManager[None]:
    """A recovery counts no try."""

    def back(
        conn: Connection, t: Tables, ids: Sequence[int], *, dead_id: str, text: str, **_: Any
    ) -> int:
        c = t.cols()
        mine = sa.and_(t.running(c), owner(c) == dead_id)
        values = {"status": -1, "available_at": None, "claimed_by": None, "last_error": text}
        return conn.execute(
            sa.update(t.message).where(c.msg_id.in_(ids), mine).values(values)
        ).rowcount

    return replaced(recover, "recover", back)


def owner_kept() -> AbstractContextManager[None]:
    """What leaves status 1 keeps its `claimed_by`."""
    return without("claimed_by", lambda value: isinstance(value, sa.sql.elements.Null))


# --- broken roles ---


def no_take_over() -> AbstractContextManager[None]:
    """Recovery: rows of an expired lease are given back without taking it over."""

    def give_back(self: Recovery, seen: lease.Lease) -> int:
        return self._recover_rows(seen.name)[0]

    return replaced(Recovery, "_take_over", give_back)


def no_orphans() -> AbstractContextManager[None]:
    """Recovery: rows of ids without a lease stay."""
    return replaced(Recovery, "_recover_orphan", lambda self, dead_id: 0)


def drops_before_the_rest() -> AbstractContextManager[None]:
    """Recovery: takes the dead for living as long as their lease was once seen alive."""
    return replaced(Recovery, "_due", lambda self, leases, holders: iter(()))


def early_runs() -> AbstractContextManager[None]:
    """Claimer: the run is read before the flag commits."""
    flag, runs = Claimer._flag, claim.read_runs
    kept: dict[int, list[Bare]] = {}

    def flag_later(
        self: Claimer, candidates: list[Candidate], me: str
    ) -> tuple[list[Row], list[Candidate]]:
        heads: list[Row] = [
            Row(c.msg_id, c.object_id, None, None, 0, 0, 0, None, None) for c in candidates
        ]
        with self._link.statement() as conn:
            kept.update(runs(conn, self._setup.tables, heads, limit=RUN_LIMIT))
        return flag(self, candidates, me)

    def read(conn: Connection, t: Tables, heads: Sequence[Row], **_: Any) -> dict[int, list[Bare]]:
        return {head.msg_id: kept.get(head.msg_id, []) for head in heads}

    return together(replaced(Claimer, "_flag", flag_later), replaced(claim, "read_runs", read))


def no_sweep() -> AbstractContextManager[None]:
    """FlaggedRows: those that no lane knows stay."""
    return replaced(FlaggedRows, "release_unknown", lambda self, link: None)


def no_look_at_the_stop() -> AbstractContextManager[None]:
    """FlaggedRows: there are none, it says, without a look."""
    return replaced(FlaggedRows, "none_left", lambda self, link: True)


def sweep_beside_a_claim() -> AbstractContextManager[None]:
    """FlaggedRows: the sweep of unknown rows does not wait for claims in flight."""

    @contextmanager
    def no_claim_in_flight(self: FlaggedRows, patience: float | None = None) -> Iterator[bool]:
        yield True

    return replaced(FlaggedRows, "no_claim_in_flight", no_claim_in_flight)


def nothing_held() -> AbstractContextManager[None]:
    """Hand: claims objects whose settle is not known to be over."""
    return replaced(InFlight, "objects_and_ids", lambda self: (set(), set()))


def unasked() -> AbstractContextManager[None]:
    """Lanes: without owners what is carried over starts without being asked for."""

    def may_start(self: LaneQueue, lane: Lane) -> bool:
        return self._identity.is_ours(lane.owner)

    return replaced(LaneQueue, "may_start", may_start)


def forgets_all() -> AbstractContextManager[None]:
    """Shared: without owners, too, a lost lease makes an instance forget all."""

    continue_as = Shared.continue_as

    def forget(self: Shared, *what: Any, with_all: bool = False) -> bool:
        return continue_as(self, *what)

    return replaced(Shared, "continue_as", forget)


def never_quiet() -> AbstractContextManager[None]:
    """Quiesce: hands never run empty, and a message in quarantine is claimed beside others."""
    return together(
        replaced(Quiesce, "step", lambda self, held, reason: Step.EMPTY),
        replaced(Claimer, "may_claim_alone", lambda self: True),
        replaced(InFlight, "quarantined", lambda self, most: False),
    )


def ahead_of_the_flag() -> AbstractContextManager[None]:
    """Settler: lanes go on before what moves their flags is written."""
    settle = Settler.settle

    def early(self: Settler, batch: Sequence[Lane], writer: Writer) -> list[Lane]:
        ahead = []
        for lane in batch:
            if (
                settlement(lane, self._setup, self._shared).next_id is not None
                and lane.settled is None
            ):
                ahead.append(Lane(lane.owner, lane.rows[lane.place + 1 :]))
        self._shared.in_flight.lanes.update(ahead)
        self._lanes.put(ahead)
        settle(self, batch, writer)
        return []

    return replaced(Settler, "settle", early)


def one_answer_for_all() -> AbstractContextManager[None]:
    """Writer: what became of one lane of a batch is taken for what became of all."""
    write = Writer.write

    def same(self: Writer, lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
        became = write(self, lanes, me)
        return dict.fromkeys(lanes, next(iter(became.values()), Settled.LOST))

    return replaced(Writer, "write", same)


def unanswered_is_written() -> AbstractContextManager[None]:
    """Writer: what was not answered is taken for written, without a look."""

    def look(self: Writer, lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
        wanted = {
            i: settlement(lane, self._setup, self._shared).next_id for i, lane in lanes.items()
        }
        return {i: Settled.ADVANCED if ahead else Settled.ENDED for i, ahead in wanted.items()}

    return replaced(Writer, "_look", look)


def in_both() -> AbstractContextManager[None]:
    """Settler: finished lanes leave the queue after their settle, so that both take them."""
    settle = Settler.settle

    def copied(self: Settler, batch: list[Lane]) -> None:
        batch += self.finished

    def late(self: Settler, batch: Sequence[Lane], writer: Writer) -> list[Lane]:
        try:
            return settle(self, batch, writer)
        finally:
            for lane in batch:
                if lane in self.finished:
                    self.finished.remove(lane)

    return together(replaced(Settler, "_take", copied), replaced(Settler, "settle", late))


def always_trusted() -> AbstractContextManager[None]:
    """Identity: believes in a lease that is over."""
    return replaced(Identity, "trusted", lambda self: True)


def keeps_its_id() -> AbstractContextManager[None]:
    """Identity: goes on under its id while a settle may be under way, and a settle does not ask
    which claim it belongs to. One of both alone does no harm."""
    return together(
        replaced(Identity, "retire", lambda self: None),
        replaced(Finder, "_drop_doubtful", lambda self, look: None),
        any_claim(),
    )


def nobody_else() -> AbstractContextManager[None]:
    """Identity: what was claimed under a lost id is never lost, and its lanes are started."""
    return together(
        replaced(Identity, "is_ours", lambda self, owner: True),
        replaced(LaneQueue, "may_start", lambda self, lane: True),
    )


def ends_at_once() -> AbstractContextManager[None]:
    """DrainEnd: over after the first look at everything that found nothing."""

    return replaced(DrainEnd, "is_over", lambda self, look: look.complete)


def waits_for_no_lease() -> AbstractContextManager[None]:
    """DrainEnd: does not wait for the leases of others."""
    return replaced(DrainEnd, "lease_ends_in", lambda self, ending: None)


def sends_for_the_lost() -> AbstractContextManager[None]:
    """What the handler of a lost lane has sent is sent all the same."""
    real = settle.settle_one

    def settle_one(conn: Connection, t: Tables, one: Settlement, **how: Any) -> Settled:
        settled = real(conn, t, one, **how)
        if settled is Settled.LOST:
            settle.send_all(conn, t, one.sends)
        return settled

    return replaced(settle, "settle_one", settle_one)


def sends_by_itself() -> AbstractContextManager[None]:
    """What handlers have sent is committed before their outcomes."""
    real = Writer.write_once

    def write_once(self: Writer, lanes: Sequence[Lane], *how: Any) -> None:
        for lane in lanes:
            if lane.result is not None and lane.result.sends:
                with self.link.transaction() as conn:
                    settle.send_all(conn, self._setup.tables, lane.result.sends)
                lane.result = dataclasses.replace(lane.result, sends=())
        real(self, lanes, *how)

    return replaced(Writer, "write_once", write_once)


# --- batches ---


def counts_ignored() -> AbstractContextManager[None]:
    """A head that is gone, or a follower, is not noticed."""
    finish = done.finish

    def all_ended(conn: Connection, t: Tables, ids: Any, me: str, seen: Any, **how: Any) -> int:
        ended = finish(conn, t, ids, me, seen, **how)
        return len(ids) if "free" in how else ended  # else not of a batch

    return replaced(done, "finish", all_ended)


def half_is_committed() -> AbstractContextManager[None]:
    """The lanes that are still ours are committed, with the writes for the others."""
    settle_batch = settle.settle_batch

    def each(conn: Connection, t: Tables, shares: Sequence[Share], **how: Any) -> set[int]:
        flagged: set[int] = set()
        for share in shares:
            try:
                with conn.begin_nested():
                    flagged |= settle_batch(conn, t, [share], **how)
            except (OutOfDate, IntegrityError):
                pass
        return flagged

    return replaced(batch.store, "settle_batch", each)


# --- cancels, keys and limits ---


@contextmanager
def kept_by_a_rerun() -> Iterator[None]:
    """A rerun leaves the request for the run before it."""
    rerun, drop = change.rerun, controls.drop_requests
    within: list[bool] = []

    def kept(conn: Any, t: Any, ids: Any) -> int:
        return 0 if within else drop(conn, t, ids)

    def rerunning(*args: Any, **how: Any) -> int:
        within.append(True)
        try:
            return rerun(*args, **how)
        finally:
            within.pop()

    with replaced(controls, "drop_requests", kept), replaced(change, "rerun", rerunning):
        yield


def free_between_tries() -> AbstractContextManager[None]:
    """A message that has failed does not hold its key until its next try."""

    def key_counts(_: Tables, c: Cols) -> ColumnElement[bool]:
        assert c.unique_key is not None
        running_or_new = c.status.in_([sa.literal_column("0"), sa.literal_column("1")])
        return sa.and_(c.unique_key.is_not(None), running_or_new)

    return replaced(tables, "key_counts", key_counts)


def held_by_the_dead() -> AbstractContextManager[None]:
    """What ends a message does not say when."""
    return without("finished_at", lambda value: True)


def counted_before() -> AbstractContextManager[None]:
    """What is free is counted in a transaction of its own, before that of the flags."""

    flag_once = Claimer._flag_once

    def counted(
        self: Claimer, topic: str | None, candidates: list[Candidate], me: str, **how: Any
    ) -> tuple[list[Row], list[Candidate]]:
        if topic is None:
            return flag_once(self, topic, candidates, me, **how)
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

    return replaced(Claimer, "_flag_once", counted)


def runs_go_on() -> AbstractContextManager[None]:
    """A message of a limited topic gets the flag of the one in front of it."""

    def init(self: Controls) -> None:
        object.__setattr__(self, "apart", self.paused)

    return replaced(Controls, "__post_init__", init)


def free_of_charge() -> AbstractContextManager[None]:
    """A start takes no token."""
    return replaced(limits, "take", lambda conn, t, topic, free, count: None)


# --- schedules ---


def any_version() -> AbstractContextManager[None]:
    """A tick is fired whoever has fired it meanwhile."""
    as_seen = schedules._as_seen
    return replaced(schedules, "_as_seen", lambda t, seen: as_seen(t, seen)[:2])


def ticks_from_now() -> AbstractContextManager[None]:
    """The next tick is computed from the time at which the one before is sent."""
    due = ticks.due

    def late(when: Any, catch_up: str, next_at: Any, last_at: Any, now: Any) -> Any:
        found = due(when, catch_up, next_at, last_at, now)
        return found and ticks.Due(found.ticks[:1], when.after(now))

    return replaced(ticks, "due", late)


# --- jobs ---


def any_state() -> AbstractContextManager[None]:
    """A job completes as soon as it is sealed."""
    return replaced(jobs, "_unfinished", lambda t, job: sa.false())


def whoever_completes() -> AbstractContextManager[None]:
    """A job completes whoever has completed it meanwhile."""
    return replaced(jobs, "_is_to_complete", lambda c: (c.sealed_at.is_not(None),))


# --- all of them ---


def _plant(name: str, config: str, rules: str, **how: Any) -> Plant:
    expected = frozenset(Rule(rule) for rule in rules.split())
    return Plant(name=name, config=config, rules=expected, **how)


PLANTS = {
    plant.name: plant
    for plant in (
        _plant("guard index dropped", "guard", "I1", guard=False, begin=6),
        _plant("settle without claimed_by", "crashes", "I5", patch=no_fence, begin=228),
        _plant("earlier running", "ops", "I2", patch=earlier_running),
        _plant("any status claimed", "plain", "FINAL I4", patch=seen_and_status_ignored),
        _plant("crash counts no try", "crashes", "I4", patch=crash_is_no_try),
        _plant("claimed_by kept", "foreign", "I1 I5", patch=owner_kept),
        _plant("no take-over", "crashes", "I1 I5", patch=no_take_over, begin=82),
        _plant("orphans never given back", "zombies", "I3", patch=no_orphans, rare=True),
        _plant("the dead never given back", "crashes", "I3", patch=drops_before_the_rest),
        _plant("run read before the flag", "ops", "I2 I3 FINAL", patch=early_runs),
        _plant("unknown rows never swept", "unknown", "I3", patch=no_sweep),
        _plant("stop without a sweep", "stops", "I8", patch=no_look_at_the_stop),
        _plant("sweep beside a claim", "stops", "I4 I8", patch=sweep_beside_a_claim, begin=15),
        _plant("claim before the answer", "answers", "I1 I4", patch=nothing_held, rare=True),
        _plant("beside a quarantined", "quarantine", "I10", patch=never_quiet, begin=6),
        _plant("handler ahead of the flag", "plain", "I4", patch=ahead_of_the_flag),
        _plant("one answer for a batch", "plain", "I3 I4", patch=one_answer_for_all, begin=4),
        _plant("unanswered is written", "unknown", "I1 I4", patch=unanswered_is_written),
        _plant("one lane in two settles", "plain", "I1 I3 I4 I5", patch=in_both),
        _plant("no lease is ever lost", "zombies", "I1", patch=always_trusted),
        _plant("lost ids are ours", "zombies", "I1", patch=nobody_else),
        _plant("drain ends at once", "drains", "I3", patch=ends_at_once),
        _plant("drain waits for no lease", "drains", "I3", patch=waits_for_no_lease),
        _plant("due follower hides head", "ops", "I3", patch=due_first),
        _plant("without owners all forgotten", "unowned", "I3", patch=forgets_all),
        _plant("without owners started unasked", "unowned", "I1", patch=unasked),
        _plant("without owners any tries", "unowned", "I5", patch=any_tries),
        _plant("batch: counts ignored", "batches", "I3 I5 I6 FINAL", patch=counts_ignored),
        _plant("batch: half is committed", "batches", "I3 I6", patch=half_is_committed),
        _plant("batch: without claimed_by", "groups", "I5", patch=no_fence, begin=100),
        _plant("chains: sent for the lost", "chains", "I6", patch=sends_for_the_lost),
        _plant("chains: sent by itself", "chains", "I6", patch=sends_by_itself),
        _plant("a rerun keeps a request", "cancels", "I3", patch=kept_by_a_rerun),
        _plant("limits: counted before", "limits", "I11", patch=counted_before),
        _plant("limits: a run goes on", "limits", "I11", patch=runs_go_on),
        _plant("limits: starts take no token", "limits", "I11", patch=free_of_charge),
        _plant("keys: free between tries", "keys", "KEYS", patch=free_between_tries),
        _plant("keys: held by the dead", "keys", "KEYS", patch=held_by_the_dead),
        _plant("ticks: any version", "ticks", "TICKS", patch=any_version),
        _plant("ticks: computed from now", "ticks", "TICKS", patch=ticks_from_now),
        _plant("jobs: whatever is left", "jobs", "JOBS", patch=any_state),
        _plant("jobs: completed twice", "jobs", "JOBS", patch=whoever_completes),
        _plant("settle executed late", "delayed", "I1 I4 I5", patch=keeps_its_id),
    )
}
