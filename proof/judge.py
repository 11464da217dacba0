"""The judge of a run: rules over its record, each a small function; a pure function in all.

Nothing is reported that any moment of a commit within its interval would excuse (history.py), so
that a correct run is never red, however its records were delayed. What a killed instance did but
could not write down is excused too, as far as the final table agrees.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from math import inf
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple

from proof.history import DONE, FAILED, NEW, PROCESSING, Event, Final, Kind, Outage, Outcome, Row

STATUSES = frozenset({NEW, PROCESSING, DONE, FAILED})
CHAIN, SENT_BY, ON_DONE, ON_DEAD = "chain", "chain.sent", "chain.done", "chain.dead"
"""Topics: of messages with on_done and on_dead; of what handlers send; of the two about them."""
MADE = (SENT_BY, ON_DONE, ON_DEAD)
JOB_OVER = "job.over"  # the topic of the message of each job
CANCELLED = "cancelled: "
WINDOW_SECONDS = 10.0
LATE_STARTS = 1.05
"""A start is later than its permit, so that some of the seconds before may be in a window."""


class Rule(StrEnum):
    """What must hold in every history; the promises P1 to P8: docs/reference/guarantees.md."""

    I1 = "I1"  # P1: handlers of one object do not overlap, between instances that hold their lease
    I2 = "I2"  # P2: an object's messages start in order, late commits and reruns aside
    I3 = "I3"  # P3: every message is one row, at the end done or dead
    I4 = "I4"  # P6: at most max_tries starts between reruns, each counted to its claim
    I5 = "I5"  # P5: a settle of a row that was recovered changes nothing
    I6 = "I6"  # P4: what commits with the outcome is there once each time the message got done
    I7 = "I7"  # P1: four statuses, their moves; at most one row of an object at 1 at any time
    I8 = "I8"  # an orderly stop leaves no row at 1 and counts no try
    I9 = "I9"  # P3: rows of a killed instance can be claimed within a lease and two heartbeats
    I10 = "I10"  # P6: no message dies that never failed or crashed on its own
    I11 = "I11"  # limits of topics hold: handlers at once, rows at 1, starts in a time
    FINAL = "FINAL"  # done and dead are final, but for a rerun
    CHAINS = "CHAINS"  # one message sent for each done one that sends; one told of each end
    KEYS = "KEYS"  # one unfinished holder of a key; a send returns the holder and raises nothing
    CANCELS = "CANCELS"  # a cancelled one that waited is dead with the reason, one that ran or done
    TICKS = "TICKS"  # every tick of a schedule is one message
    JOBS = "JOBS"  # a sealed job completes once, with nothing of it unfinished; one message says so


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: what, who and when in `text`; `events` are the evidence, in order."""

    rule: Rule
    text: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([f"{self.rule}: {self.text}", *map(str, self.events)])


# --- the book: events sorted into messages, tries and runs ---------------------------------------


@dataclass(slots=True, eq=False)
class _Mark:
    """An event with its place in the history: the commit lies between `early` and `late`."""

    event: Event
    early: float
    late: float


@dataclass(slots=True, eq=False)
class _Run:
    """One call of a handler."""

    start: _Mark
    end: _Mark | None = None

    @property
    def until(self) -> float:
        return self.end.late if self.end else inf


@dataclass(slots=True, eq=False)
class _Try:
    """One claim of one message and all that was done under it. No claim: none was recorded."""

    instance: str
    begun: float
    claim: _Mark | None = None
    runs: list[_Run] = field(default_factory=list)
    settles: list[_Mark] = field(default_factory=list)
    recovered: _Mark | None = None
    generation: int = 0  # how many reruns went before
    attempt: int = 1

    @property
    def written(self) -> _Mark | None:
        """The settle that found the row."""
        return next((s for s in self.settles if s.event.detail != Outcome.LOST), None)

    @property
    def outcome(self) -> str | None:
        """What the settle wrote, unless the row had been recovered (then I5 speaks of it)."""
        written = self.written
        return written.event.detail if written and self.claim and not self.recovered else None

    @property
    def counts(self) -> bool:
        """Whether it used a try up. One without a known outcome may have."""
        return self.outcome not in (Outcome.DONE, Outcome.LATER, Outcome.RELEASED)

    @property
    def ended(self) -> _Mark | None:
        return next((r.end for r in self.runs if r.end), None)

    @property
    def seen_attempt(self) -> int | None:
        return self.claim.event.attempt if self.claim else None


@dataclass(slots=True, eq=False)
class _Close:
    """A moment from which the message was not unfinished any more."""

    mark: _Mark
    state: Literal["done", "dead", "discarded"]
    generation: int
    by: _Try | None = None


@dataclass(slots=True, eq=False)
class _Story:
    """All that happened to one message."""

    msg_id: int
    object_id: str | None = None
    inserted: list[_Mark] = field(default_factory=list)
    tries: list[_Try] = field(default_factory=list)
    held: dict[str, list[_Try]] = field(default_factory=dict)  # the tries of each instance
    stray_ends: list[_Mark] = field(default_factory=list)
    reruns: list[_Mark] = field(default_factory=list)
    discards: list[_Mark] = field(default_factory=list)
    foreign: list[_Run] = field(default_factory=list)
    effects: list[_Mark] = field(default_factory=list)
    closes: list[_Close] = field(default_factory=list)

    def __str__(self) -> str:
        of = "without object" if self.object_id is None else f"of {self.object_id!r}"
        return f"message {self.msg_id} {of}"

    @property
    def lane(self) -> tuple[str | None, int]:
        """What excludes each other: an object; without one, a message only itself."""
        return (self.object_id, 0) if self.object_id is not None else (None, self.msg_id)

    @property
    def last_generation(self) -> int:
        return len(self.reruns)

    def generation_at(self, place: float) -> int:
        return sum(rerun.early < place for rerun in self.reruns) if self.reruns else 0

    def generation_of(self, t: _Try) -> int:
        """A row that is read, discarded, rerun and only then flagged is of the rerun: a settle
        that found it shows that, since a rerun leaves alone what is flagged."""
        generation = self.generation_at(t.begun)
        if (written := t.written) is None or t.recovered or generation == len(self.reruns):
            return generation
        return max(generation, sum(rerun.late < written.early for rerun in self.reruns))

    def tries_of(self, generation: int) -> list[_Try]:
        return [t for t in self.tries if t.generation == generation]

    def closes_of(self, generation: int) -> list[_Close]:
        return [c for c in self.closes if c.generation == generation]

    def open_try(self, instance: str, begun: float) -> _Try:
        t = _Try(instance, begun)
        self.tries.append(t)
        self.held.setdefault(instance, []).append(t)
        return t

    def try_of(self, mark: _Mark) -> _Try:
        """The try of the event's instance that had been recorded before the act was sent. There is
        none for a fault: a start ahead of its flag goes to the later try, others to one unclaimed.
        """
        tries = self.held.get(mark.event.instance, [])
        for t in reversed(tries):
            if t.claim and t.claim.late <= mark.early:
                return t
        ahead = mark.event.kind != Kind.SETTLED
        fault = next((t for t in tries if ahead or t.claim is None), None)
        return fault or self.open_try(mark.event.instance, mark.late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which a run is judged.

    `ttl` and `heartbeat` (seconds; heartbeat defaults to ttl/3) turn on I9, which needs a live
    instance all the while. `orderly`: every instance was stopped within its grace time.
    `transactional`: the ids whose effects are recorded as EFFECT, or True for all. `in_order`: they
    were read in the order in which they were written, and no message was committed late or rerun.
    `finished=False`: the run was cut, so unfinished messages are no fault.
    `limited`: the ids of which at most `max_running` may run, or be at 1, at once.
    `metered`: the ids of which so many may start `per_second`, or at once after a pause.
    `outages`: when the database was away, as seen from outside; I9 gives that much more time.
    `ticks`: the schedules of a second that have fired.
    `let_go`: claims (instance, msg_id, time) that a standby still has, of messages whose instance
    has settled them: nothing of these runs.
    """

    max_tries: int = 3
    on_dead: Literal["continue", "block"] = "continue"
    ttl: float | None = None
    heartbeat: float | None = None
    orderly: bool = False
    transactional: Collection[int] | bool = frozenset()
    in_order: bool = False
    finished: bool = True
    limited: Collection[int] = frozenset()
    max_running: int = 1
    metered: Collection[int] = frozenset()
    per_second: float = 0.0
    outages: Iterable[Outage] = ()
    ticks: Collection[str] = ()
    let_go: Collection[tuple[str, int, float]] = frozenset()


@dataclass(slots=True, eq=False)
class _Book:
    """The whole history, sorted."""

    final: Final
    set: Terms
    outages: tuple[Outage, ...]  # in order, none overlapping another
    end_at: float
    stories: dict[int, _Story] = field(default_factory=dict)
    killed: dict[str, _Mark] = field(default_factory=dict)
    lost: dict[str, _Mark] = field(default_factory=dict)

    @property
    def rows(self) -> Mapping[int, Row]:
        return self.final.rows

    def story(self, event: Event) -> _Story:
        if event.msg_id is None:
            raise ValueError(f"event without msg_id: {event}")
        story = self.stories.get(event.msg_id)
        if story is None:
            story = self.stories[event.msg_id] = _Story(event.msg_id)
        if event.object_id is not None and story.object_id is None:
            story.object_id = event.object_id
        return story

    def killed_at(self, instance: str) -> float:
        return self.killed[instance].early if instance in self.killed else inf

    def lost_at(self, instance: str) -> float:
        """The place from which the instance is not entitled to anything."""
        lost = self.lost[instance].early if instance in self.lost else inf
        return min(lost, self.killed_at(instance))

    def is_dead(self, row: Row | None) -> bool:
        return row is not None and row.status == FAILED and not self.has_tries(row)

    def is_unfinished(self, row: Row) -> bool:
        return row.status != DONE and not self.is_dead(row)

    def is_cancelled(self, row: Row) -> bool:
        return self.is_dead(row) and (row.error or "").startswith(CANCELLED)

    def has_tries(self, row: Row) -> bool:
        return row.error_try_times < self.set.max_tries

    def excused(self, t: _Try) -> bool:
        """Whether the outcome of the try may have been committed without being recorded."""
        silent = t.instance in self.killed or t.instance in self.lost or bool(t.settles)
        return t.written is None and t.ended is not None and silent


def _marks(events: Iterable[Event]) -> list[_Mark]:
    """Every event with its place; an interval begins before all events at or after `since`."""
    ordered = sorted(events, key=attrgetter("at"))
    times = [e.at for e in ordered]
    marks = []
    for late, event in enumerate(ordered):
        early: float = late
        if event.since is not None:
            early = min(bisect_left(times, event.since) - 0.5, late)
        marks.append(_Mark(event, early, late))
    return marks


def _write_book(events: Iterable[Event], final: Final, terms: Terms) -> _Book:
    marks = _marks(events)
    end_at = max([m.event.at for m in marks[-1:]] + [at for at, _ in final.observed], default=0.0)
    book = _Book(final, terms, tuple(_apart(terms.outages)), end_at)
    for mark in marks:
        ends = {Kind.KILLED: book.killed, Kind.LEASE_LOST: book.lost}.get(mark.event.kind)
        if ends is not None:
            ends.setdefault(mark.event.instance, mark)
    for mark in marks:  # all claims first: other acts belong to the last one known when sent
        if mark.event.kind == Kind.CLAIMED:
            _file_claim(book, book.story(mark.event), mark)
    for mark in marks:
        if mark.event.kind in _FILE:
            _FILE[mark.event.kind](book, book.story(mark.event), mark)
    for mark in marks:  # all settles before: a zombie's may be recorded after the recovery
        if mark.event.kind == Kind.RECOVERED:
            _file_recovery(book, book.story(mark.event), mark)
    for story in book.stories.values():
        _number(story)
        story.closes = list(_closes(story, terms.max_tries))
    return book


def _file_claim(book: _Book, story: _Story, mark: _Mark) -> None:
    """A zombie may write its claim down long after it lost it; it was made before, most likely."""
    made = max(mark.early, book.lost_at(mark.event.instance))
    story.open_try(mark.event.instance, min(mark.late, made)).claim = mark


def _file_start(_: _Book, story: _Story, mark: _Mark) -> None:
    story.try_of(mark).runs.append(_Run(mark))


def _file_end(_: _Book, story: _Story, mark: _Mark) -> None:
    run = next((r for r in story.try_of(mark).runs if r.end is None), None)
    if run is None:
        story.stray_ends.append(mark)
    else:
        run.end = mark


def _file_settle(_: _Book, story: _Story, mark: _Mark) -> None:
    story.try_of(mark).settles.append(mark)


def _file_recovery(book: _Book, story: _Story, mark: _Mark) -> None:
    """To the try it ended; a killed holder may have claimed again without a record of it, and so
    may one that lost its lease in an outage: the claim was committed, and the answer lost."""
    dead = mark.event.detail
    if dead is None or dead == "foreign":
        return _file_foreign_done(book, story, mark)
    tries = [t for t in reversed(story.held.get(dead, [])) if t.claim]

    def is_over(t: _Try) -> bool:
        if t.recovered or not t.written:
            return bool(t.recovered)
        if dead in book.killed:
            return t.written.late < mark.early
        return t.written.early < mark.late  # a zombie may write down late what it did before

    def unrecorded_since(t: _Try) -> bool:
        if dead in book.killed or not t.written or dead not in book.lost:
            return dead in book.killed
        since, at = t.written.event.at, mark.event.at
        before = t.written.late < mark.early and t.written.early < book.lost[dead].late
        return before and any(away <= at and since <= back for away, back in book.outages)

    # One whose record came later may be meant, but only if the one known by then was over.
    known = next((t for t in tries if t.claim and t.claim.late <= mark.late), None)
    latest = next((t for t in tries if t.claim and t.claim.early < mark.late), None)
    t = latest if known is None or is_over(known) else known
    if t is None or (is_over(t) and unrecorded_since(t)):
        t = story.open_try(dead, book.lost_at(dead))
    t.recovered = t.recovered or mark
    t.begun = min(t.begun, mark.late)
    return None


def _file_foreign_claim(_: _Book, story: _Story, mark: _Mark) -> None:
    story.foreign.append(_Run(mark))


def _file_foreign_done(_: _Book, story: _Story, mark: _Mark) -> None:
    if not story.foreign or story.foreign[-1].end:
        story.foreign.append(_Run(mark))
    story.foreign[-1].end = mark


_FILE: dict[Kind, Callable[[_Book, _Story, _Mark], None]] = {
    Kind.INSERTED: lambda _, story, mark: story.inserted.append(mark),
    Kind.STARTED: _file_start,
    Kind.ENDED: _file_end,
    Kind.SETTLED: _file_settle,
    Kind.RERUN: lambda _, story, mark: story.reruns.append(mark),
    Kind.DISCARDED: lambda _, story, mark: story.discards.append(mark),
    Kind.EFFECT: lambda _, story, mark: story.effects.append(mark),
    Kind.FOREIGN_CLAIMED: _file_foreign_claim,
    Kind.FOREIGN_DONE: _file_foreign_done,
}


def _number(story: _Story) -> None:
    """Give every try its generation and its attempt: as recorded, else counted."""
    generation = counted = 0
    story.tries.sort(key=attrgetter("begun"))
    for t in story.tries:
        t.generation = story.generation_of(t)
        if t.generation != generation:
            generation, counted = t.generation, 0
        t.attempt = t.seen_attempt or counted + 1
        counted = t.attempt - 1 + t.counts


def _closes(story: _Story, max_tries: int) -> Iterator[_Close]:
    """Everything in the history that finished the message, for good or until a rerun."""
    for t in story.tries:
        last = t.attempt >= max_tries
        mark = t.recovered or t.written
        if mark is None:
            continue
        if t.outcome == Outcome.DONE:
            yield _Close(mark, "done", t.generation, t)
        elif t.outcome == Outcome.CANCELLED:
            yield _Close(mark, "discarded", t.generation, t)
        elif t.outcome == Outcome.DEAD or (last and (t.recovered or t.outcome == Outcome.FAILED)):
            yield _Close(mark, "dead", t.generation, t)
    for discard in story.discards:
        yield _Close(discard, "discarded", story.generation_at(discard.late))
    for end in (run.end for run in story.foreign):
        if end and end.event.kind == Kind.FOREIGN_DONE and end.event.detail != "failed":
            yield _Close(end, "done", story.generation_at(end.late))


# --- the rules -----------------------------------------------------------------------------------


def check(events: Iterable[Event], final: Final, terms: Terms | None = None) -> list[Violation]:
    """Every broken rule, one rule after the other; empty for a correct run."""
    book = _write_book(events, final, terms or Terms())
    return [violation for rule in _RULES for violation in rule(book)]


def _apart(outages: Iterable[Outage]) -> Iterator[Outage]:
    """The same times in order, those that overlap as one."""
    begun = ended = -inf
    for begin, end in sorted(outages):
        if begin > ended:
            if ended > begun:
                yield begun, ended
            begun = begin
        ended = max(ended, end)
    if ended > begun:
        yield begun, ended


class _Interval(NamedTuple):
    """A handler that runs; `until` is where it, its process or its right to run ended."""

    start: float
    until: float
    instance: str
    story: _Story
    run: _Run


def _exclusion(book: _Book) -> Iterator[Violation]:
    """I1: handlers of one object do not overlap, between instances that hold their lease;
    nor ever within one instance."""
    lanes: dict[tuple[str | None, int], list[_Interval]] = defaultdict(list)
    zombies: dict[tuple[tuple[str | None, int], str], list[_Interval]] = defaultdict(list)
    for story in book.stories.values():
        for interval in _intervals(book, story):
            until = min(interval.until, book.lost_at(interval.instance))
            lanes[story.lane].append(interval._replace(until=until))
            if interval.instance in book.lost:
                zombies[story.lane, interval.instance].append(interval)
    seen: set[tuple[float, float]] = set()
    for one, other in _overlaps([*lanes.values(), *zombies.values()]):
        if (one.start, other.start) not in seen:
            seen.add((one.start, other.start))
            yield _overlap(one, other)


def _intervals(book: _Book, story: _Story) -> Iterator[_Interval]:
    for t in story.tries:
        for run in t.runs:
            until = min(run.until, book.killed_at(t.instance))
            yield _Interval(run.start.late, until, t.instance, story, run)
    for run in story.foreign:
        until = run.end.early if run.end else inf
        yield _Interval(run.start.late, until, run.start.event.instance, story, run)


def _overlaps(groups: Iterable[list[_Interval]]) -> Iterator[tuple[_Interval, _Interval]]:
    """Each interval that begins inside an earlier one of its group, with that one."""
    for group in groups:
        group.sort(key=attrgetter("start"))
        widest: _Interval | None = None
        for interval in group:
            if interval.until <= interval.start:
                continue
            if widest and interval.start < widest.until:
                yield widest, interval
            if widest is None or interval.until > widest.until:
                widest = interval


def _overlap(one: _Interval, other: _Interval) -> Violation:
    begun, beside = one.run.start.event, other.run.start.event
    text = (
        f"{beside.instance} started {other.story} at {beside.at:.10g} while {begun.instance} "
        f"was running message {one.story.msg_id}, started at {begun.at:.10g}"
    )
    marks = [one.run.start, other.run.start, one.run.end, other.run.end]
    return _violation(Rule.I1, text, *marks)


class _Step(NamedTuple):
    place: float
    act: Literal["open", "close", "start"]
    story: _Story
    by: tuple[_Try, _Run] | None = None


def _order(book: _Book) -> Iterator[Violation]:
    """I2: no message starts while a lower one of its object is unfinished, if that was so already
    when the claim read (or the run was read): late commits and reruns are aside by that."""
    objects: dict[str, list[_Step]] = defaultdict(list)
    for story in book.stories.values():
        if story.object_id is not None:
            objects[story.object_id] += _order_steps(book, story)
    for steps in objects.values():
        yield from _out_of_order(sorted(steps, key=itemgetter(0)))
    if book.set.in_order:
        yield from _effects_out_of_order(book)


def _effects_out_of_order(book: _Book) -> Iterator[Violation]:
    effects = [mark for story in book.stories.values() for mark in story.effects]
    last: dict[str, _Mark] = {}
    for mark in sorted(effects, key=attrgetter("late")):
        object_id, msg_id = mark.event.object_id, mark.event.msg_id or 0
        if object_id is None:
            continue
        before = last.get(object_id)
        if before and (before.event.msg_id or 0) > msg_id:
            text = f"the effect of message {msg_id} of {object_id!r} came after a later one's"
            yield _violation(Rule.I2, text, before, mark)
        else:
            last[object_id] = mark


def _order_steps(book: _Book, story: _Story) -> Iterator[_Step]:
    for opened, closed in _unfinished(book, story):
        yield _Step(opened, "open", story)
        yield _Step(closed, "close", story)
    for t in story.tries:
        for run in t.runs:
            if t.claim:
                yield _Step(run.start.late, "start", story, (t, run))


def _out_of_order(steps: list[_Step]) -> Iterator[Violation]:
    opened: dict[int, _Step] = {}
    ids: list[int] = []  # of the unfinished, ascending; almost always only the first is looked at
    for step in steps:
        msg_id = step.story.msg_id
        if step.act == "open":
            opened[msg_id] = step
            insort(ids, msg_id)
        elif step.act == "close":
            del ids[bisect_left(ids, msg_id)]
        elif step.by and step.by[0].claim and ids and ids[0] < msg_id:
            read = step.by[0].claim.early
            for lower in ids[: bisect_left(ids, msg_id)]:
                if opened[lower].place < read:
                    yield _overtaken(step.story, *step.by, opened[lower].story)
                    break


def _overtaken(story: _Story, t: _Try, run: _Run, lower: _Story) -> Violation:
    visible = lower.inserted[0].event
    text = (
        f"{t.instance} started {story} at {run.start.event.at:.10g}, though message "
        f"{lower.msg_id}, visible since {visible.at:.10g}, was unfinished when the claim read and "
        "still at the start"
    )
    nearest = [m for m in _last_of(lower, run.start.late) if m is not lower.inserted[0]]
    return _violation(Rule.I2, text, lower.inserted[0], *nearest, t.claim, run.start)


def _last_of(story: _Story, place: float) -> list[_Mark]:
    """What was last known of a message at a place: its try of then."""
    t = next((t for t in reversed(story.tries) if t.begun < place), None)
    known = [t.claim, *(r.start for r in t.runs), *t.settles, t.recovered] if t else []
    return [*story.reruns, *(m for m in known if m)]


def _unfinished(book: _Book, story: _Story) -> Iterator[tuple[float, float]]:
    """The times during which the message was certainly visible and unfinished."""
    opened = story.inserted[0].late if story.inserted else None
    for generation in range(story.last_generation + 1 if story.inserted else 0):
        if opened is None:
            opened = story.reruns[generation - 1].late
        closed = _closed_at(book, story, generation)
        if closed is not None:
            if opened < closed:
                yield opened, closed
            opened = None
    if opened is not None:
        yield opened, inf


def _closed_at(book: _Book, story: _Story, generation: int) -> float | None:
    """The first moment the message may have been finished in this generation; None: never.
    With on_dead="block" a dead one still holds its object; a discarded one does not."""
    closes = story.closes_of(generation)
    if closes:
        blocks = ("dead",) if book.set.on_dead == "block" else ()
        return min((c.mark.early for c in closes if c.state not in blocks), default=None)
    row = book.rows.get(story.msg_id)
    over = row is not None and (row.status == DONE or book.is_dead(row))
    if generation == story.last_generation and not over:
        return None
    sign = _last_sign(story, generation)
    if sign is None or generation == story.last_generation:
        return sign
    return min(sign, story.reruns[generation].early)  # a zombie may end later


def _last_sign(story: _Story, generation: int) -> float | None:
    """The table says finished, the history does not say when: the last it knows before."""
    tries = story.tries_of(generation)
    if tries:
        return tries[-1].ended.late if tries[-1].ended else tries[-1].begun
    foreign = [r for r in story.foreign if story.generation_at(r.start.late) == generation]
    return foreign[-1].start.late if foreign else None


def _nothing_lost(book: _Book) -> Iterator[Violation]:
    """I3: every inserted message is one row, at the end DONE or dead; no other row exists."""
    for story in book.stories.values():
        row = book.rows.get(story.msg_id)
        if not story.inserted:
            yield _violation(Rule.I3, f"{story} was never inserted", *_signs(story))
        elif row is None:
            yield _violation(Rule.I3, f"{story} is gone from the table", *story.inserted)
        elif len(story.inserted) > 1:
            yield _violation(Rule.I3, f"{story} was inserted twice", *story.inserted)
        elif row.object_id != story.object_id:
            text = f"{story} has object {row.object_id!r} in the table"
            yield _violation(Rule.I3, text, *story.inserted)
        else:
            yield from _really_done(book, story, row)
    for msg_id in book.rows.keys() - book.stories.keys():
        yield _violation(Rule.I3, f"row {msg_id} of the table was never inserted")
    if book.set.finished:
        yield from _left_over(book)


def _signs(story: _Story) -> list[_Mark]:
    return [m for t in story.tries[:3] for m in (t.claim, t.recovered, *t.settles) if m]


def _really_done(book: _Book, story: _Story, row: Row) -> Iterator[Violation]:
    """DONE means that a handler ran and its settle wrote it."""
    for t in story.tries:
        if t.outcome == Outcome.DONE and not t.runs:
            text = f"{story} was settled done by {t.instance}, its handler never started"
            yield _violation(Rule.I3, text, t.claim, t.written)
    if row.status != DONE or story.foreign:
        return
    tries = story.tries_of(story.last_generation)
    if any(c.state == "done" for c in story.closes_of(story.last_generation)):
        return
    if not any(book.excused(t) for t in tries):
        yield _violation(Rule.I3, f"{story} is DONE in the table, but no settle wrote it",
                         *_last_of(story, inf))  # fmt: skip


def _left_over(book: _Book) -> Iterator[Violation]:
    blocked = _blocked_behind(book)
    for msg_id, row in book.rows.items():
        if row.status == DONE or book.is_dead(row) or row.status not in STATUSES:
            continue
        if row.status == PROCESSING and book.set.orderly:
            continue  # I8 speaks of it
        if row.status != PROCESSING and blocked.get(row.object_id, inf) < msg_id:
            continue
        story = book.stories.get(msg_id, _Story(msg_id, row.object_id))
        text = (
            f"{story} ends with status {row.status}, {row.error_try_times} tries, "
            f"claimed by {row.claimed_by}: neither DONE nor dead"
        )
        yield _violation(Rule.I3, text, *story.inserted, *_last_of(story, inf))


def _blocked_behind(book: _Book) -> dict[str | None, int]:
    """With on_dead="block", the first dead message of each object."""
    first: dict[str | None, int] = {}
    if book.set.on_dead == "block":
        for msg_id, row in book.rows.items():
            if row.object_id is not None and book.is_dead(row):
                first[row.object_id] = min(msg_id, first.get(row.object_id, msg_id))
    return first


def _bounded_tries(book: _Book) -> Iterator[Violation]:
    """I4: at most max_tries starts between reruns, one for each claim, and only while the row is
    at 1 for that claim (flag first)."""
    for story in book.stories.values():
        for t in story.tries:
            yield from _flag_first(book, story, t)
        for end in story.stray_ends:
            yield _violation(Rule.I4, f"{story} ended without having started", end)
        yield from _too_many_starts(book, story)


def _too_many_starts(book: _Book, story: _Story) -> Iterator[Violation]:
    counted = [t for t in story.tries if t.claim and t.outcome != Outcome.LATER]
    starts = Counter(t.generation for t in counted for _ in t.runs)
    for generation, count in starts.items():
        if count > book.set.max_tries:
            runs = [r.start for t in story.tries_of(generation) for r in t.runs]
            text = f"{story} was started {count} times between reruns, max_tries is "
            yield _violation(Rule.I4, text + str(book.set.max_tries), *runs)
    for t in story.tries:
        if t.seen_attempt and t.seen_attempt > book.set.max_tries >= starts[t.generation]:
            text = f"{story} was claimed by {t.instance} for try {t.seen_attempt}"
            yield _violation(Rule.I4, text, t.claim)


def _flag_first(book: _Book, story: _Story, t: _Try) -> Iterator[Violation]:
    for number, run in enumerate(t.runs):
        fault = _start_fault(book, t, run) if number == 0 else "twice under one claim"
        if fault:
            text = f"{t.instance} started {story} at {run.start.event.at:.10g} {fault}"
            yield _violation(Rule.I4, text, t.claim, t.recovered, *t.settles, run.start)
    settle = next((s for s in t.settles if s.event.detail != Outcome.LOST), None)
    running = settle and t.runs and t.runs[0].start.late < settle.late < t.runs[0].until
    if settle and running and settle.event.detail != Outcome.RELEASED:
        text = f"{t.instance} settled {story} at {settle.event.at:.10g} while its handler ran"
        yield _violation(Rule.I4, text, t.runs[0].start, settle, t.runs[0].end)


def _start_fault(book: _Book, t: _Try, run: _Run) -> str | None:
    """What is wrong with a start. A zombie may enter late: nothing can stop it, it is fenced."""
    start = run.start.late
    if t.claim is None or t.claim.late > start:
        return "without a claim of its own"
    if t.settles and t.settles[0].late < start:
        return "after that claim was settled"
    if t.recovered and t.recovered.late < start <= book.lost_at(t.instance):
        return "after that claim was recovered, though it had not lost its lease"
    return None


def _fenced(book: _Book) -> Iterator[Violation]:
    """I5: a claim is ended once; a settle after a recovery finds 0 rows."""
    for story in book.stories.values():
        for t in story.tries:
            wrote = [s for s in t.settles if s.event.detail != Outcome.LOST]
            if not wrote:
                continue
            what = f"{t.instance} settled {story} as {wrote[0].event.detail} at "
            what += f"{wrote[0].event.at:.10g}"
            if t.recovered:
                text = f"{what}, but that claim was recovered at {t.recovered.event.at:.10g}"
                yield _violation(Rule.I5, text, t.claim, t.recovered, *wrote)
            elif t.claim is None:
                yield _violation(Rule.I5, f"{what} without a claim", *wrote)
            elif len(wrote) > 1:
                yield _violation(Rule.I5, f"{what}, and once more", t.claim, *wrote)


def _effects(book: _Book) -> Iterator[Violation]:
    """I6: the effect of a transactional message is there once each time it got done, else never."""
    chosen = book.set.transactional
    for story in book.stories.values():
        if chosen is False or (chosen is not True and story.msg_id not in chosen):
            continue
        least, most = _expected_effects(book, story)
        if not least <= len(story.effects) <= most:
            text = f"{story} has {len(story.effects)} effects, {least} expected"
            yield _violation(Rule.I6, text, *story.effects, *(c.mark for c in story.closes))


def _expected_effects(book: _Book, story: _Story) -> tuple[int, int]:
    """One for each time a settle wrote done; what was not recorded the table or a rerun betrays."""
    least = most = len({c.generation for c in story.closes if c.state == "done" and c.by})
    row, last = book.rows.get(story.msg_id), story.last_generation
    for generation in range(last + 1):
        if story.closes_of(generation) or story.foreign:
            continue
        if generation == last and row is not None and row.status == DONE:
            least, most = least + 1, most + 1
        elif generation < last and any(book.excused(t) for t in story.tries_of(generation)):
            most += 1
    return least, most


def _statuses(book: _Book) -> Iterator[Violation]:
    """I7: four statuses; at most one row at 1 per object in every look."""
    table = [(row.object_id, msg_id, row.status) for msg_id, row in book.rows.items()]
    for at, rows in [*book.final.observed, (inf, table)]:
        when = "at the end" if at == inf else f"at {at:.10g}"
        for object_id, msg_id, status in rows:
            if status not in STATUSES:
                text = f"message {msg_id} of {object_id!r} has status {status} {when}"
                yield _violation(Rule.I7, text)
        running: dict[str, list[int]] = defaultdict(list)
        for object_id, msg_id, status in rows:
            if status == PROCESSING and object_id is not None:
                running[object_id].append(msg_id)
        for object_id, ids in running.items():
            if len(ids) > 1:
                yield _violation(Rule.I7, f"messages {ids} of {object_id!r} are all at 1 {when}")


def _orderly(book: _Book) -> Iterator[Violation]:
    """I8: an orderly stop leaves no row at 1; a release is of a message not started and counts
    no try."""
    for story in book.stories.values():
        for t in story.tries:
            if t.outcome == Outcome.RELEASED:
                yield from _bad_release(book, story, t)
    for msg_id, row in book.rows.items():
        story = book.stories.get(msg_id, _Story(msg_id, row.object_id))
        foreign = any(run.end is None for run in story.foreign)
        if book.set.orderly and row.status == PROCESSING and not foreign:
            text = f"{story} is left at 1 for {row.claimed_by} after an orderly stop"
            yield _violation(Rule.I8, text, *_last_of(story, inf))


def _bad_release(book: _Book, story: _Story, t: _Try) -> Iterator[Violation]:
    if t.runs and t.written and t.runs[0].start.late < t.written.late:
        text = f"{t.instance} released {story} though its handler had started"
        yield _violation(Rule.I8, text, t.claim, t.runs[0].start, t.written)
    after = _attempt_after(book, story, t)
    if after and t.seen_attempt and after > t.seen_attempt:
        text = f"the release of {story} by {t.instance} counted a try: {t.seen_attempt} -> {after}"
        yield _violation(Rule.I8, text, *_last_of(story, inf), t.claim, t.written)


def _attempt_after(book: _Book, story: _Story, t: _Try) -> int | None:
    """The attempt that followed a release, seen by the next claim or in the table."""
    if story.foreign:  # it may have counted a try in between
        return None
    later = story.tries[story.tries.index(t) + 1 :]
    if later:
        return later[0].seen_attempt
    row = book.rows.get(story.msg_id)
    return None if row is None or story.discards else row.error_try_times + 1


def _recovery_time(book: _Book) -> Iterator[Violation]:
    """I9: the rows of a killed instance are recovered or claimed again within ttl + 2 heartbeats
    (counted anew if an instance that may have been recovering them dies as well), outages aside."""
    if book.set.ttl is None:
        return
    beat = book.set.ttl / 3 if book.set.heartbeat is None else book.set.heartbeat
    limits = {who: _deadline(book, who, book.set.ttl + 2 * beat) for who in book.killed}
    for story in book.stories.values():
        for t in story.tries:
            if t.instance in limits and not t.settles:
                yield from _late_recovery(book, story, t, limits[t.instance])
    for msg_id, row in book.rows.items():
        limit = limits.get(row.claimed_by or "", inf)
        if row.status == PROCESSING and limit < book.end_at:
            story = book.stories.get(msg_id, _Story(msg_id, row.object_id))
            text = f"{story} is still at 1 for {row.claimed_by}, killed at "
            text += f"{book.killed[row.claimed_by or ''].event.at:.10g}: never recovered"
            yield _violation(Rule.I9, text, *_last_of(story, inf))


def _deadline(book: _Book, victim: str, limit: float) -> float:
    deadline = _with_database(book, book.killed[victim].event.at, limit)
    gone = [m.event.at for m in [*book.killed.values(), *book.lost.values()]]
    for at in sorted(gone):
        if book.killed[victim].event.at < at <= deadline:
            deadline = _with_database(book, at, limit)
    return deadline


def _with_database(book: _Book, begin: float, seconds: float) -> float:
    """When the database has been there for so long since `begin`."""
    end = begin + seconds
    for away, back in book.outages:
        if away < end:
            end += max(0.0, back - max(away, begin))
    return end


def _late_recovery(book: _Book, story: _Story, t: _Try, limit: float) -> Iterator[Violation]:
    later = [o.claim for o in story.tries if o.begun > t.begun and o.claim]
    back = t.recovered or (later[0] if later and not t.ended else None)
    if back is None:
        return
    at = back.event.sent_at
    if at > limit:
        text = (
            f"{story}, held by {t.instance} when it was killed, was {back.event.kind} by "
            f"{back.event.instance} only at {at:.10g}; allowed until {limit:.10g}"
        )
        yield _violation(Rule.I9, text, t.claim, book.killed[t.instance], back)


def _own_death(book: _Book) -> Iterator[Violation]:
    """I10: a message dies only of tries of its own; on its last try after a crash it is the only
    one its instance holds, so that it cannot die for another (P6, quarantine)."""
    for story in book.stories.values():
        for t in story.tries:
            if t.outcome in (Outcome.FAILED, Outcome.DEAD) and not t.runs:
                text = f"{story} was settled {t.outcome} by {t.instance} without having started"
                yield _violation(Rule.I10, text, t.claim, t.written)
        yield from _early_death(book, story)
    yield from _broken_quarantine(book)


def _early_death(book: _Book, story: _Story) -> Iterator[Violation]:
    if not book.is_dead(book.rows.get(story.msg_id)) or story.foreign:
        return
    generation = story.last_generation
    tries = story.tries_of(generation)
    discarded = any(c.state == "discarded" for c in story.closes_of(generation))
    own = sum(t.counts for t in tries)
    if own < book.set.max_tries and not discarded and not any(_rejected(book, t) for t in tries):
        text = f"{story} is dead after {own} failures and crashes of its own, "
        text += f"max_tries is {book.set.max_tries}"
        yield _violation(Rule.I10, text, *_last_of(story, inf))


def _rejected(book: _Book, t: _Try) -> bool:
    """Whether the handler itself asked for death before the last try."""
    ended = t.ended
    if ended is not None and book.excused(t) and not t.recovered:
        return ended.event.detail == "rejected"
    if t.outcome != Outcome.DEAD or not t.runs:
        return False
    return ended is None or ended.event.detail in (None, "rejected")


class _Hold(NamedTuple):
    """The time during which an instance certainly held the flag of a message."""

    begin: float
    end: float
    quarantined: bool
    story: _Story
    t: _Try


def _broken_quarantine(book: _Book) -> Iterator[Violation]:
    suspects = {h.t.instance for h in _holds(book) if h.quarantined}
    if not suspects:
        return
    held: dict[str, list[_Hold]] = defaultdict(list)
    for hold in _holds(book):
        if hold.t.instance in suspects:
            held[hold.t.instance].append(hold)
    for holds in held.values():
        yield from _not_alone(sorted(holds, key=attrgetter("begin")))


def _holds(book: _Book) -> Iterator[_Hold]:
    for story in book.stories.values():
        crashed = -1  # the generation in which the message last saw a crash
        for t in story.tries:
            if t.claim and (t.instance, story.msg_id, t.claim.event.at) not in book.set.let_go:
                last = t.attempt == book.set.max_tries and crashed == t.generation
                yield _Hold(t.claim.late, _held_until(book, t), last, story, t)
            if t.recovered:
                crashed = t.generation


def _held_until(book: _Book, t: _Try) -> float:
    ends = [m.early for m in [*t.settles[:1], t.recovered] if m]
    return min([*ends, book.lost_at(t.instance)])


def _not_alone(holds: list[_Hold]) -> Iterator[Violation]:
    """Each pair of overlapping holds of one instance of which one is quarantined."""
    current: list[_Hold] = []
    for hold in holds:
        current = [h for h in current if h.end > hold.begin]
        for other in current:
            if hold.quarantined or other.quarantined:
                last, beside = (hold, other) if hold.quarantined else (other, hold)
                text = (
                    f"{hold.t.instance} held {last.story} on its last try, after a crash, beside "
                    f"{beside.story}: it could die for the other"
                )
                yield _violation(Rule.I10, text, other.t.claim, hold.t.claim)
                break
        current.append(hold)


def _within_limit(book: _Book) -> Iterator[Violation]:
    """I11: no more handlers of limited messages at once than allowed, between instances that hold
    their lease, nor rows at 1."""
    for at, rows in book.final.observed:
        held = [i for _, i, status in rows if status == PROCESSING and i in book.set.limited]
        if len(held) > book.set.max_running:
            text = f"messages {held} are at 1 at {at:.10g}, max_running is {book.set.max_running}"
            yield _violation(Rule.I11, text)
    intervals = [
        interval._replace(until=min(interval.until, book.lost_at(interval.instance)))
        for msg_id in book.set.limited
        if msg_id in book.stories
        for interval in _intervals(book, book.stories[msg_id])
    ]
    running: list[_Interval] = []
    for interval in sorted(intervals, key=attrgetter("start")):
        running = [other for other in running if other.until > interval.start]
        if interval.until > interval.start:
            running.append(interval)
        if len(running) > book.set.max_running:
            at = interval.run.start.event.at
            ids = [other.story.msg_id for other in running]
            text = f"messages {ids} ran at once at {at:.10g}, max_running is "
            text += str(book.set.max_running)
            yield _violation(Rule.I11, text, *(other.run.start for other in running))


def _within_rate(book: _Book) -> Iterator[Violation]:
    """I11: no more starts in a window than its rate makes of it, besides those of a full bucket."""
    starts = sorted(
        run.start.event.at
        for msg_id in book.set.metered
        if msg_id in book.stories
        for t in book.stories[msg_id].tries
        for run in t.runs
    )
    even = book.set.per_second * WINDOW_SECONDS
    for at, count in starts_in_windows(starts):
        if count > even * LATE_STARTS + book.set.per_second:
            text = f"{count} metered messages started in the {WINDOW_SECONDS:g} s from {at:.10g} "
            yield _violation(Rule.I11, f"{text}on, {even:g} are even")


def starts_in_windows(starts: Sequence[float]) -> Iterator[tuple[float, int]]:
    """Each window that begins with a second, and how many of these starts are in it; the first
    seconds, of a full bucket, are in none."""
    at = starts[0] + 2.0 if starts else inf
    while starts and at + WINDOW_SECONDS <= starts[-1]:
        yield at, bisect_left(starts, at + WINDOW_SECONDS) - bisect_left(starts, at)
        at += 1.0


def too_many(starts: Sequence[float], burst: float, per_second: float) -> str | None:
    """What is wrong with starts at these seconds, ascending: in any time more than the bucket had
    and got."""
    least = inf
    for n, at in enumerate(starts):
        least = min(least, n - per_second * at)
        if n + 1 - per_second * at - least > burst + 1e-6:
            return f"{n + 1} starts by {at:.3f} are too many for a burst of {burst:g}"
    return None


def _finality(book: _Book) -> Iterator[Violation]:
    """FINAL: done and dead stay so until a rerun."""
    for story in book.stories.values():
        for close in story.closes:
            again = next(_again(book, story, close), None)
            if again:
                text = f"{again[0].instance} started {story} at {again[1].event.at:.10g}, though "
                text += f"it was {close.state} since {close.mark.event.at:.10g} and not rerun"
                yield _violation(Rule.FINAL, text, close.mark, again[0].claim, again[1])
                break
        else:
            yield from _undone(book, story)


def _again(book: _Book, story: _Story, close: _Close) -> Iterator[tuple[_Try, _Mark]]:
    """Starts after the close in its generation, but those that I4 speaks of and zombies'."""
    tries = story.tries_of(close.generation)
    if close.state == "dead" and sum(len(t.runs) for t in tries) > book.set.max_tries:
        return
    for t in tries:
        start = t.runs[0].start if t.runs and t.claim and t is not close.by else None
        if start and close.mark.late < start.late <= book.lost_at(t.instance):
            yield t, start


def _undone(book: _Book, story: _Story) -> Iterator[Violation]:
    """The table at the end agrees with the last outcome."""
    row = book.rows.get(story.msg_id)
    closes = story.closes_of(story.last_generation)
    if row is None or not closes or row.status not in STATUSES:
        return
    done = [c for c in closes if c.state == "done"]
    if (done and row.status != DONE) or (not done and not book.is_dead(row)):
        close = (done or closes)[0]
        text = f"{story} was {close.state} at {close.mark.event.at:.10g}, but ends with status "
        text += f"{row.status}, {row.error_try_times} tries"
        yield _violation(Rule.FINAL, text, close.mark, *_last_of(story, inf))


def _told_as_dead(book: _Book, msg_id: int, row: Row) -> set[int]:
    """How often a message of `on_dead` may have been sent: of a cancelled one only if it had died
    of itself before that was seen."""
    if not book.is_cancelled(row):
        return {int(book.is_dead(row))}
    story = book.stories[msg_id]
    if any(t.outcome == Outcome.DEAD for t in story.tries):
        return {1}
    unsure = any(close.state == "dead" for close in story.closes)
    return {0, 1} if unsure or any(map(book.excused, story.tries)) else {0}


def _chains(book: _Book) -> Iterator[Violation]:
    """CHAINS: exactly one message for each outcome that sends one, none else."""
    made = Counter(
        (row.payload.get("msg_id"), row.topic) for row in book.rows.values() if row.topic in MADE
    )
    for msg_id, row in book.rows.items():
        chain = row.topic == CHAIN
        wanted = {
            SENT_BY: {int(row.status == DONE and bool(row.payload.get("sends")))},
            ON_DONE: {int(row.status == DONE and chain)},
            ON_DEAD: _told_as_dead(book, msg_id, row) if chain else {0},
        }
        for topic, counts in wanted.items():
            there = made.pop((msg_id, topic), 0)
            if there not in counts:
                text = f"message {msg_id} of {row.topic} (status {row.status}, {row.error!r}) has "
                expected = " or ".join(map(str, sorted(counts)))
                yield _violation(Rule.CHAINS, f"{text}{there} of {topic}, {expected} expected")
    for (about, topic), count in made.items():
        yield _violation(Rule.CHAINS, f"{count} of {topic} about no message {about}")


def _unique_keys(book: _Book) -> Iterator[Violation]:
    """KEYS: one unfinished message holds a key, and a send with it returns one that does."""
    for error in book.final.errors:
        yield _violation(Rule.KEYS, f"a producer got {error}")
    end = [(row.key, i) for i, row in book.rows.items() if row.key and book.is_unfinished(row)]
    looks = [*book.final.holders, (inf, end)]
    for at, holders in looks:
        by_key: dict[str, list[int]] = defaultdict(list)
        for key, msg_id in holders:
            by_key[key].append(msg_id)
        for key, ids in by_key.items():
            if len(ids) > 1:
                text = f"messages {sorted(ids)} hold {key!r}, all unfinished, at {at:.10g}"
                yield _violation(Rule.KEYS, text)
    for sent in book.final.sends:
        if sent.at is None:
            row = book.rows.get(sent.msg_id)
            held = row is not None and row.key == sent.key
        else:
            last = bisect_right(looks, sent.at, key=itemgetter(0)) - 1
            held = last >= 0 and (sent.key, sent.msg_id) in looks[last][1]
        if not held:
            text = f"a send with {sent.key!r} returned {sent.msg_id}, which does not hold it"
            yield _violation(Rule.KEYS, text)


def _cancels(book: _Book) -> Iterator[Violation]:
    """CANCELS: one that ran may also have been done by then, or dead of its own tries: that one
    needs its tries, as I10 says. Nothing is cancelled that nobody asked for."""
    if book.final.cancels is None:
        return
    for one in book.final.cancels:
        row = book.rows.get(one.msg_id)
        if row is None:
            yield _violation(Rule.CANCELS, f"message {one.msg_id} is gone")
        elif not (book.is_cancelled(row) if one.at_once else not book.is_unfinished(row)):
            how = "waited" if one.at_once else "ran"
            text = f"message {one.msg_id} {how} when it was cancelled at {one.at:.10g}, ends with "
            text += f"status {row.status}, {row.error_try_times} tries, {row.error!r}"
            yield _violation(Rule.CANCELS, text)
    known = {one.msg_id for one in book.final.cancels}
    for msg_id, row in book.rows.items():
        if book.is_cancelled(row) and msg_id not in known:
            text = f"message {msg_id} is {row.error!r}, and nobody asked for that"
            yield _violation(Rule.CANCELS, text)


def _ticks(book: _Book) -> Iterator[Violation]:
    """TICKS: every tick of a schedule of a second is one message, in their order."""
    ticks: dict[str, list[datetime]] = {name: [] for name in book.set.ticks}
    for _, row in sorted(book.rows.items()):
        if row.tick is not None:
            ticks.setdefault(row.object_id or "", []).append(row.tick)
    for name, there in ticks.items():
        for text in odd_ticks(there):
            yield _violation(Rule.TICKS, f"{name}: {text}")


def odd_ticks(
    ticks: Sequence[datetime], *, period: float = 1.0, last: datetime | None = None
) -> Iterator[str]:
    """What is wrong with the ticks of a schedule, in the order of their messages. last: the tick
    that the schedule fired last."""
    if not ticks:
        yield "no tick"
        return
    yield from (f"{tick} was sent {n} times" for tick, n in Counter(ticks).items() if n > 1)
    if list(ticks) != sorted(ticks):
        yield "ticks are out of order"
    there, tick, end = set(ticks), min(ticks), last or max(ticks)
    while tick <= end:
        if tick not in there:
            yield f"{tick} is missing"
        tick += timedelta(seconds=period)
    if max(ticks) > end:
        yield f"{max(ticks)} was sent, and {last} is the last"


def _violation(rule: Rule, text: str, *marks: _Mark | None) -> Violation:
    found = {id(m): m for m in marks if m}
    ordered = sorted(found.values(), key=attrgetter("late"))
    return Violation(rule, text, tuple(m.event for m in ordered))


def _jobs(book: _Book) -> Iterator[Violation]:
    """JOBS: each sealed job has completed, when its messages had ended, as its one message says."""
    members: dict[int | None, list[Row]] = defaultdict(list)
    reports: dict[int | None, list[int]] = defaultdict(list)
    for msg_id, row in book.rows.items():
        members[row.job].append(row)
        if row.topic == JOB_OVER:
            reports[row.payload.get("job")].append(msg_id)
    for job in book.final.jobs:
        rows, told = members[job.job_id], reports.pop(job.job_id, [])
        left = sum(map(book.is_unfinished, rows))
        ended = (sum(row.status == DONE for row in rows), sum(map(book.is_dead, rows)))
        faults = {
            f"has completed with {left} unfinished messages": job.completed and left,
            "is sealed, nothing of it is unfinished, and it has not completed": job.sealed
            and not (job.completed or left)
            and book.set.finished,
            f"has sent messages {told}, and names {job.report}": told
            != ([job.report] if job.completed else []),
            f"says {(job.done, job.dead)} done and dead, and has {ended}": job.completed
            and (job.done, job.dead) != ended,
        }
        yield from (
            _violation(Rule.JOBS, f"job {job.job_id} {f}") for f, is_so in faults.items() if is_so
        )
    for unknown, told in reports.items():
        yield _violation(Rule.JOBS, f"messages {told} are of job {unknown}, which is not there")


_RULES: tuple[Callable[[_Book], Iterator[Violation]], ...] = (
    _exclusion, _order, _nothing_lost, _bounded_tries, _fenced, _effects, _statuses, _orderly,
    _recovery_time, _own_death, _within_limit, _within_rate, _finality, _chains, _unique_keys,
    _cancels, _ticks, _jobs,
)  # fmt: skip
