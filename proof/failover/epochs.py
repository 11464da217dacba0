"""What a failover to an asynchronous standby loses, named; and the history of each time between two
failovers, judged by the rules as ever.

An epoch ends when its primary dies. What that had committed is read afterwards from its own files;
what the standby had when it was promoted is read before clients are let to it. The difference is
lost. The next epoch begins with that table, as if it had come from nowhere.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import sqlalchemy as sa

from proof.crash.consumer import EFFECTS
from proof.crash.fleet import MARGIN_SECONDS, Sent, Trial, Verdict, pid_of, tidy
from proof.history import DONE, FAILED, NEW, PROCESSING, Event, Final, Kind, Outage, Outcome, Row
from proof.history import Snapshot as Look
from proof.judge import Rule, Terms, Violation, check
from proof.pairs.postgresql import PostgreSQLPair, Primary
from tests.engines import plain_engine

MAX_TRIES = 3
BEHIND_SECONDS = 0.5
SETTLED_SECONDS = 1.0  # after the death of a primary; what was answered before is written down then


class Line(NamedTuple):
    """A message in a snapshot; n: its number in the trial."""

    object_id: str | None
    status: int
    tries: int
    crashes: int
    claimed_by: str | None
    topic: str
    n: int

    @property
    def is_over(self) -> bool:
        return self.status == DONE or (self.status == FAILED and self.tries >= MAX_TRIES)


@dataclass(frozen=True)
class Snapshot:
    """All that a server has of the trial. recovered: message and dead instance of each recovery,
    with its time on the wall clock."""

    lines: Mapping[int, Line]
    effects: Counter[int]
    recovered: tuple[tuple[int, str, float], ...]

    def rows(self) -> dict[int, Row]:
        return {
            msg_id: Row(one.object_id, one.status, one.tries, one.claimed_by)
            for msg_id, one in self.lines.items()
        }


def snapshot(url: str) -> Snapshot:
    """Read a server past everything, in one transaction."""
    engine = plain_engine(url, poolclass=sa.NullPool, isolation_level="REPEATABLE READ")
    with engine.connect() as conn:
        lines = conn.execute(
            sa.text(
                "SELECT msg_id, object_id, status, error_try_times, crash_times, claimed_by, topic,"
                " CAST(CAST(payload AS json) ->> 'n' AS integer) FROM msgworker_message"
            )
        ).all()
        effects = conn.scalars(sa.select(EFFECTS.c.msg_id)).all()
        crashes = conn.execute(
            sa.text(
                "SELECT msg_id, instance, extract(epoch FROM ended_at) FROM msgworker_try "
                "WHERE kind = 'crash'"
            )
        ).all()
    return Snapshot(
        {line[0]: Line(*line[1:]) for line in lines},
        Counter(effects),
        tuple((msg_id, instance, float(at)) for msg_id, instance, at in crashes),
    )


@dataclass(frozen=True)
class Loss:
    """What the promoted server did not have: messages by their number in the trial, as their sender
    knows them; outcomes, claims and effects by message."""

    sends: list[int] = field(default_factory=list)
    outcomes: list[int] = field(default_factory=list)
    claims: list[int] = field(default_factory=list)
    effects: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [
            f"{len(ids)} {name} ({', '.join(map(str, ids[:8]))}{', ...' * (len(ids) > 8)})"
            for name, ids in vars(self).items()
            if ids
        ]
        return "; ".join(parts) or "nothing"


def lost(old: Snapshot, new: Snapshot) -> Loss:
    """What `old` had and `new` has not."""
    kept = {line.n for line in new.lines.values()}
    loss = Loss(effects=sorted((old.effects - new.effects).elements()))
    for msg_id, was in sorted(old.lines.items()):
        if was.n not in kept:
            loss.sends.append(was.n)
            continue
        became = new.lines[msg_id]
        if (became.status, became.tries) == (was.status, was.tries):
            if was.status == PROCESSING and became.claimed_by != was.claimed_by:
                loss.claims.append(msg_id)
        elif was.status == PROCESSING and became.tries == was.tries:
            loss.claims.append(msg_id)
        else:
            loss.outcomes.append(msg_id)
    return loss


@dataclass(frozen=True)
class Epoch:
    """The time of one primary. first: what it began with, None = with nothing; last: what it had at
    the end. ended: no statement that its clients sent was answered after it, and none was sent to
    the next one before it."""

    begun: float
    ended: float
    first: Snapshot | None
    last: Snapshot


@dataclass(frozen=True)
class Told:
    """What all of them have written down: the consumers, the producer, who watched processes and
    the table. ahead: the wall clock's seconds before the history's."""

    events: list[Event]
    sent: Mapping[int, Sent]
    killed: list[Event]
    observed: list[Look]
    ahead: float


@dataclass
class Epochs:
    """The failovers of an asynchronous pair, and what each has lost."""

    trial: Trial
    pair: PostgreSQLPair
    losses: list[Loss] = field(default_factory=list)
    done: list[Epoch] = field(default_factory=list)
    first: Snapshot | None = None
    begun: float = 0.0

    def fail_over(self) -> None:
        """The standby is always some tenths of a second behind when its primary is killed."""
        self.pair.wait_for_standby()
        self.pair.hold_back()
        time.sleep(BEHIND_SECONDS)
        self.pair.primary.crash()
        time.sleep(SETTLED_SECONDS)
        old = self.pair.promote()
        new = snapshot(self._url(self.pair.primary))
        ended = time.monotonic()
        self.pair.turn()
        old.start()
        had = snapshot(self._url(old))
        old.remove()
        self.done.append(Epoch(self.begun, ended, self.first, had))
        self.losses.append(lost(had, new))
        self.first, self.begun = new, ended
        self.pair.mend()

    def judge(self, outages: Iterable[Outage]) -> Verdict:
        """When all is over: every epoch, by the rules of the history."""
        last = snapshot(self._url(self.pair.primary))
        self.done.append(Epoch(self.begun, time.monotonic(), self.first, last))
        trial = self.trial
        trial.note_lives()
        snapshots = [e.last for e in self.done] + [e.first for e in self.done if e.first]
        killed = trial.killed(line.claimed_by for one in snapshots for line in one.lines.values())
        ahead = time.time() - time.monotonic()
        told = Told(trial.events(), trial.sent, killed, trial.observed, ahead)
        found = [
            replace(fault, text=f"epoch {number}: {fault.text}")
            for number, epoch in enumerate(self.done, 1)
            for fault in judge(
                told, epoch, ttl=trial.lease, finished=epoch is self.done[-1], outages=outages
            )
        ]
        numbers = {line.n: msg_id for msg_id, line in last.lines.items()}
        return Verdict(last.rows(), numbers, told.events, found)

    @staticmethod
    def _url(server: Primary) -> str:
        return f"{server.url}torture"


def judge(
    told: Told, epoch: Epoch, *, ttl: float, finished: bool, outages: Iterable[Outage]
) -> list[Violation]:
    """Every broken rule of one epoch."""
    over = {} if epoch.first is None else {i: r for i, r in epoch.first.lines.items() if r.is_over}
    lines = {i: line for i, line in epoch.last.lines.items() if i not in over}
    events = [*_events(told, epoch, over), *_inserted(told, epoch, lines)]
    events += [
        Event(Kind.EFFECT, epoch.ended, "effects", msg_id, lines[msg_id].object_id)
        for msg_id in epoch.last.effects.elements()
        if msg_id in lines
    ]
    final = Final(
        {i: row for i, row in epoch.last.rows().items() if i in lines},
        [(at, rows) for at, rows in told.observed if epoch.begun < at < epoch.ended - 1.0],
    )
    first = {} if epoch.first is None else epoch.first.lines
    before = [e for e in told.events if e.at < epoch.begun]
    let_go = {
        (line.claimed_by, msg_id, epoch.begun)
        for msg_id, line in first.items()
        if line.claimed_by is not None and _since_claimed(msg_id, line, before) is None
    }
    terms = Terms(
        ttl=ttl,
        heartbeat=ttl / 3 + MARGIN_SECONDS,
        transactional={i for i, line in lines.items() if line.topic == "exact"},
        finished=finished,
        outages=outages,
        let_go=let_go,
    )
    return [*check(events, final, terms), *_touched(over, epoch)]


def _touched(over: Mapping[int, Line], epoch: Epoch) -> Iterator[Violation]:
    """What was over when the server was promoted is never touched again."""
    assert epoch.first is not None or not over
    for msg_id, was in over.items():
        now = epoch.last.lines.get(msg_id)
        if now is None or (now.status, now.tries) != (was.status, was.tries):
            text = f"message {msg_id} was {was} when the server was promoted, then {now}"
            yield Violation(Rule.FINAL, text)
        elif epoch.first is not None and epoch.first.effects[msg_id] != epoch.last.effects[msg_id]:
            text = f"message {msg_id} was over, and has another effect since"
            yield Violation(Rule.I6, text)


def _inserted(told: Told, epoch: Epoch, lines: Mapping[int, Line]) -> Iterator[Event]:
    of_n = {line.n: msg_id for msg_id, line in lines.items()}
    begun_with = set() if epoch.first is None else {line.n for line in epoch.first.lines.values()}
    for n, sent in told.sent.items():
        inside = epoch.begun <= sent.at < epoch.ended and n not in begun_with
        if (inside and sent.certain) or (n in of_n and n not in begun_with):
            facts = (of_n.get(n, -n), sent.object_id)
            at = min(sent.at, epoch.ended)
            yield Event(Kind.INSERTED, at, "producer", *facts, since=min(sent.since, at))


def _events(told: Told, epoch: Epoch, over: Mapping[int, Line]) -> list[Event]:
    """The consumers' events of the epoch and what went before it, without what only follows from
    claims that are lost: such a handler runs on, but nothing of it may count."""
    before = [e for e in told.events if e.at < epoch.begun]
    mine = [e for e in told.events if epoch.begun <= e.at < epoch.ended]
    known, opened = list[Event](), set[tuple[str, int | None]]()
    if epoch.first is not None:
        for msg_id, line in epoch.first.lines.items():
            if not line.is_over:
                known += _history_of(msg_id, line, before, epoch.begun)
        opened = {(e.instance, e.msg_id) for e in known if e.kind == Kind.CLAIMED}
    kept: list[Event] = []
    for event in mine:
        key = event.instance, event.msg_id
        if event.kind == Kind.CLAIMED:
            opened.add(key)
        of_a_claim = event.kind in (Kind.STARTED, Kind.ENDED, Kind.SETTLED)
        vain = event.kind != Kind.SETTLED or event.detail == Outcome.LOST
        if of_a_claim and key not in opened and vain:
            continue
        if event.kind == Kind.RECOVERED and event.msg_id in over:
            continue
        if event.kind == Kind.SETTLED and event.msg_id in over and _sent_before(event, epoch):
            continue  # the old primary committed it, and the new one has it: the answer came late
        kept.append(event)
    killed = [
        replace(e, at=max(e.at, epoch.begun), since=None if e.at < epoch.begun else e.since)
        for e in told.killed
        if e.at < epoch.ended
    ]
    return [*known, *tidy([*kept, *_untold(told, epoch, kept)], killed)]


def _sent_before(event: Event, epoch: Epoch) -> bool:
    return event.since is not None and event.since < epoch.begun


def _untold(told: Told, epoch: Epoch, kept: list[Event]) -> Iterator[Event]:
    """Recoveries of which no record was written, see `Trial`."""
    seen = {(e.msg_id, e.detail) for e in kept if e.kind == Kind.RECOVERED}
    before = () if epoch.first is None else epoch.first.recovered
    dead = {pid_of(e.instance) for e in told.killed}
    for one in epoch.last.recovered:
        msg_id, instance, wall = one
        if one in before or (msg_id, instance) in seen or pid_of(instance) not in dead:
            continue
        at = min(wall - told.ahead, epoch.ended)
        yield Event(Kind.RECOVERED, at + 0.01, "nobody", msg_id, detail=instance, since=at - 0.01)


def _history_of(msg_id: int, line: Line, before: list[Event], at: float) -> Iterator[Event]:
    """How a message may have come to its state: inserted, tried so often, crashed so often, claimed
    by whom it says. It is all at one moment."""

    def tell(kind: Kind, who: str, **facts: object) -> Event:
        return Event(kind, at, who, msg_id, line.object_id, **facts)  # type: ignore[arg-type]

    yield tell(Kind.INSERTED, "the standby")
    for attempt in range(1, line.tries + 1):
        who = f"before-{msg_id}-{attempt}"
        yield tell(Kind.CLAIMED, who, attempt=attempt)
        yield tell(Kind.STARTED, who)
        if attempt > line.tries - line.crashes:
            yield Event(Kind.KILLED, at, who)
            yield tell(Kind.RECOVERED, "the standby", detail=who)
        else:
            yield tell(Kind.ENDED, who, detail="raised")
            yield tell(Kind.SETTLED, who, detail=Outcome.FAILED)
    if line.status != PROCESSING or line.claimed_by is None:
        assert line.status in (NEW, FAILED, PROCESSING)
        return
    yield tell(Kind.CLAIMED, line.claimed_by, attempt=line.tries + 1)
    for e in _since_claimed(msg_id, line, before) or ():
        yield replace(e, at=at, since=None)


def _since_claimed(msg_id: int, line: Line, before: list[Event]) -> list[Event] | None:
    """What the instance that has the flag has done with the message since it claimed it; None = it
    has settled it, and that is lost."""
    theirs = [e for e in before if (e.instance, e.msg_id) == (line.claimed_by, msg_id)]
    last = max((i for i, e in enumerate(theirs) if e.kind == Kind.CLAIMED), default=len(theirs))
    since = [e for e in theirs[last:] if e.kind != Kind.CLAIMED]
    if any(e.kind == Kind.SETTLED and e.detail != Outcome.LOST for e in since):
        return None
    return [e for e in since if e.kind != Kind.SETTLED]
