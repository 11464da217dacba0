"""Which messages a write takes: what is asked for, what it may change, and what it would."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.config import whole
from msgworker.errors import ConfigError, SelectionChanged, TookTooLong
from msgworker.message import State, StateName, Status, word_of
from msgworker.ops.looks import ENDLESS, Clock, filter_of, word
from msgworker.ops.results import OnProgress, Progress, Skip, Skips, Why
from msgworker.schema.rule import Rule
from msgworker.store import bounded, change, jobs
from msgworker.store.audit import Kind, Operation, Who
from msgworker.store.bounded import MOST, SCAN, Filter
from msgworker.store.change import Behind, SeenRow
from msgworker.table.tables import Tables

# --- Which messages a write changes, page by page, and which it skips.

PAGE = 10_000
ORDER_SECONDS = 10.0
"""The time to find out of messages by id, in each page, whether later ones of their objects have
run."""
ROWS_RATIO = 10
LEAST_ROWS = 5_000
"""A page goes over so many times its size of rows that do not match, and at least over so many."""
WHY: Mapping[State, Why] = {
    State.NEW: Why.NEW,
    State.PROCESSING: Why.RUNNING,
    State.DONE: Why.DONE,
    State.DEAD: Why.GIVEN_UP,
    State.UNKNOWN: Why.UNKNOWN,
}
"""Why messages in a state that may not be changed are skipped."""
_WENT_ON = {State.PROCESSING: Why.RUNS_LATER, State.DONE: Why.RAN_LATER, State.UNKNOWN: Why.CHANGED}


FILTERS = {"status", *(one.name for one in fields(Filter))} - {"words", "given_up"}
"""The filters of a write, by name."""
CHOOSES = {"ids", *FILTERS, "force", "with_successors", "also_done"}
"""The arguments of a write that say which messages, by name: the audit keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of a write: which messages, by ids or by filters that all hold, and of a rerun
    what happens to the order of their objects; then how it is done, see `Repairs.rerun`. Raises
    ConfigError."""

    ids: list[int] | None = None
    status: StateName | State | None = None
    topic: str | None = None
    object_id: Any = None
    error: str | None = None
    since: datetime | None = None
    fingerprint: str | None = None
    job: int | None = None
    up_to: int | None = None
    acknowledged: bool | None = None
    force: bool = False
    with_successors: bool = False
    also_done: bool = False
    dry_run: bool = False
    actor: str | None = None
    reason: str | None = None
    count_limit: int | None = None
    expected_count: int | None = None
    rate: float | None = None
    operation: int | None = None
    progress: OnProgress | None = None

    def __post_init__(self) -> None:
        for name, least in (("count_limit", 1), ("expected_count", 0)):
            if (value := getattr(self, name)) is not None:
                whole(name, value, least, MOST)

    @property
    def given(self) -> dict[str, Any]:
        """What is said of the messages, as the audit keeps it."""
        said = ((one, getattr(self, one.name)) for one in fields(self) if one.name in CHOOSES)
        return {one.name: value for one, value in said if value is not one.default}

    def again(self, op: Operation) -> Options:
        """With the messages of an interrupted operation; `ids`: given again."""
        said = {name: op.filter[name] for name in CHOOSES & op.filter.keys()}
        if said.get("since") is not None:
            said["since"] = datetime.fromisoformat(said["since"])
        return replace(self, **(said if self.ids is None else said | {"ids": self.ids}))

    def filter(self, action: Action) -> Filter | None:
        """The filter; None with ids. Raises ConfigError if the action does not take that."""
        one = word(self.status, action.statuses, action.refused)
        given = {name: value for name, value in self.given.items() if name in FILTERS}
        if self.ids is not None:
            if given:
                raise ConfigError(f"give ids or a filter, not both: {', '.join(given)}")
            return None
        if action.needs_filter and given.keys() <= {"up_to"}:
            raise ConfigError(
                f"{action.kind} needs ids or a filter: it does not {action.kind} all messages"
            )
        given.pop("status", None)
        words = action.chosen if one is None else (one,)
        if given.get("acknowledged") is not None and one is None and State.DEAD in action.statuses:
            words = (State.DEAD,)
        return filter_of(words, **given, given_up=action.chooses_given_up)

    def is_enough(self, counted: DryRun) -> bool:
        """Whether to stop here: at the limit of a dry run, or if it are more than expected."""
        if self.dry_run:
            return self.count_limit is not None and counted.matched >= self.count_limit
        return self.expected_count is not None and counted.changed > self.expected_count

    def check(self, kind: str, would: DryRun) -> None:
        """Raise SelectionChanged if another number of messages would be changed; of a count that is
        not complete, if it is too high already. With successors all are counted, or none."""
        expected, found = self.expected_count, would.changed
        every = would.complete or self.with_successors
        if expected is not None and (found > expected or (every and found < expected)):
            raise SelectionChanged(kind, expected, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A kind of write: what it may take, and what it writes.

    may: the states that it changes. statuses: those that a filter may name, refused: why it takes
    no other. chosen: those of a filter that names none; chooses_given_up: with discarded ones.
    needs_filter: it never takes all messages. needs_reason: it is refused if none is given.
    change: changes locked and recorded rows in the caller's transaction; returns how many.
    in_order: skips messages whose later ones have run. given_up: it changes discarded ones.
    why: why messages in another state are skipped. unfit: says which ones may not be changed for
    another reason. key_taken: what happens to a message whose unique key another one holds: "skip"
    it, or change it "without" the key; None = it needs no key. leaves_held: what its messages hold
    up stays so, and is counted before.
    """

    kind: Kind
    may: tuple[State, ...]
    statuses: tuple[State, ...]
    refused: str
    chosen: tuple[State, ...]
    change: Callable[[Connection, Tables, list[int], Who], int]
    chooses_given_up: bool = True
    needs_filter: bool = True
    needs_reason: bool = True
    in_order: bool = False
    given_up: bool = True
    why: Mapping[State, Why] = field(default_factory=lambda: WHY)
    unfit: Callable[[Connection, Tables, list[int]], dict[int, Skip]] | None = None
    key_taken: Literal["skip", "without"] | None = None
    leaves_held: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in order of msg_id. skips: those that are skipped. behind: the messages behind the
    others when they were read, if their order matters. next_after: where the next page begins,
    None = there is none."""

    ids: list[int]
    skips: dict[int, Skip]
    behind: Behind | None = None
    next_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The messages of an action, page by page.

    ids: in order; None = by `wanted`. clock: the time of all reads of messages that are not locked;
    each raises TookTooLong when it is up.
    """

    engine: sa.Engine
    tables: Tables
    action: Action
    ids: list[int] | None = None
    wanted: Filter | None = None
    page_size: int = field(default=PAGE)
    clock: Clock = ENDLESS

    def pages(self, after: int | None = None) -> Iterator[Page]:
        """All of them after `after`, in pages that are read one by one."""
        while True:
            found = self.page(after, self.page_size)
            if found.ids:
                yield found
            after = found.next_after
            if after is None:
                return

    def page(self, after: int | None, size: int) -> Page:
        """The next ones after `after`, at most `size`; maybe none, with more behind them."""
        ids, next_after = list[int](), None
        if self.ids is not None:
            start = 0 if after is None else bisect_right(self.ids, after)
            ids = self.ids[start : start + min(self.tables.database.max_ids, size)]
            if not ids:
                return Page([], {})
            next_after = ids[-1] if start + len(ids) < len(self.ids) else None
        try:
            clock = self.clock if self.ids is None else self.in_order_seconds
            with clock.reading(self.engine) as conn:
                if self.wanted is not None:
                    rows = min(SCAN, max(LEAST_ROWS, ROWS_RATIO * size))
                    ids, next_after = bounded.ids_of_filter(
                        conn, self.tables, self.wanted, after=after, limit=size, rows=rows
                    )
                    skips = self._unfit_among(conn, ids)
                else:
                    skips = self.refusals(conn, ids)
                behind, late = self._late(conn, [i for i in ids if i not in skips])
                skips |= late
                skips |= self.taken(conn, [i for i in ids if i not in skips])
        except TookTooLong as error:
            if self.ids is None or not self.action.in_order or self.clock.seconds is not None:
                raise
            advice = self.advice(
                ids,
                "Whether a later message of its object has run is found fast, of one message",
                "and does not ask",
            )
            raise TookTooLong(error.seconds, advice) from error
        return Page(ids, skips, behind, next_after)

    @property
    def in_order_seconds(self) -> Clock:
        """The time of a walk over what is done behind messages: of each page, if it has none."""
        return Clock(ORDER_SECONDS) if self.clock.seconds is None else self.clock

    def advice(self, ids: list[int], what: str, forced: str) -> str:
        """How what took too long is done in time."""
        t = self.tables
        quote = t.database.offline_dialect().identifier_preparer
        object_id, msg_id = (quote.quote(t.names[role]) for role in ("object_id", "msg_id"))
        left, it, them = f"messages {ids[0]} to {ids[-1]} were", "them", "them one by one"
        if len(ids) == 1:
            left, it, them = f"message {ids[0]} was", "it", "it"
        return (
            f"{left} left alone. {what}, by an index of your own on "
            f"{quote.format_table(t.message)} ({object_id}, {msg_id}): with it rerun {them}. "
            f"Without it, --force (force=True) reruns {it} {forced}"
        )

    def ends_at(self, last: int) -> bool:
        """Whether nothing is chosen behind it; of a group of failures, whether none has failed."""
        if self.ids is not None:
            return last >= self.ids[-1]
        assert self.wanted is not None
        with self.clock.reading(self.engine) as conn:
            found = bounded.ids_of_filter(conn, self.tables, self.wanted, after=last, limit=1)
        return found[1] is None

    def _late(self, conn: Connection, ids: list[int]) -> tuple[Behind | None, dict[int, Skip]]:
        if not self.action.in_order or not ids:
            return None, {}
        # In this order: the second read sees messages that end between the two.
        behind = change.behind(conn, self.tables, ids)
        ordered = [i for i in ids if i in behind.ids]
        late = change.ran_later(conn, self.tables, ordered, wanted=self.wanted)
        return behind, {i: Skip(i, Why.RAN_LATER, late[i]) for i in ids if i in late}

    def taken(self, conn: Connection, ids: list[int]) -> dict[int, Skip]:
        """Those of the messages that are skipped, since another one holds their key."""
        if self.action.key_taken != "skip":
            return {}
        taken = change.taken(conn, self.tables, ids)
        return {i: Skip(i, Why.KEY_TAKEN, other) for i, other in taken.items()}

    def free_keys(self, conn: Connection, ids: list[int]) -> dict[int, Skip]:
        """Those of the locked messages whose key is taken; if they go on without, it is removed."""
        if self.action.key_taken == "without":
            change.free_keys(conn, self.tables, list(change.taken(conn, self.tables, ids)))
        return self.taken(conn, ids)

    def overtaken(self, conn: Connection, ids: list[int], behind: Behind) -> dict[int, Skip]:
        """Those of the messages behind which a later one of their object has run since the read."""
        t = self.tables
        runs = change.runs_later(conn, t, ids)
        found = {i: Skip(i, Why.RUNS_LATER, other) for i, other in runs.items()}
        # Read after that: a message that no longer runs has an outcome by now.
        firsts = sorted({behind.first[i] for i in ids if i in behind.first})
        seen = change.states(conn, t, firsts)
        came: dict[int, int] = {}
        for some in t.portions(ids):
            came |= change.done_above(conn, t, some, behind.high)
        for i in ids:
            first, last = behind.first.get(i), came.get(i, i)
            why = None if first is None else self._went_on(seen.get(first))
            if why is not None:
                found.setdefault(i, Skip(i, why, first))
            elif last > i:
                found.setdefault(i, Skip(i, Why.RAN_LATER, last))
        return found

    def _went_on(self, first: SeenRow | None) -> Why | None:
        """Why messages before this one are skipped; None while it holds its object."""
        if first is None:
            return Why.CHANGED
        rule = Rule.of(self.tables.spec)
        word = word_of(first.status, first.tries, rule.max_tries)
        if word in _WENT_ON:
            return _WENT_ON[word]
        if word is State.DEAD and not rule.holds_dead(first.tries):
            return Why.CHANGED  # those behind it may have run: only a new read could show it
        return None

    def refusals(self, conn: Connection, ids: list[int]) -> dict[int, Skip]:
        """Those of the messages that may not be changed in their present state."""
        seen = change.states(conn, self.tables, ids)
        given_up = set() if self.action.given_up else change.given_up(conn, self.tables, ids)
        whys = {i: Why.GIVEN_UP if i in given_up else self._why(i, seen) for i in ids}
        refused = {i: Skip(i, why) for i, why in whys.items() if why is not None}
        return refused | self._unfit_among(conn, [i for i in ids if i not in refused])

    def _unfit_among(self, conn: Connection, ids: list[int]) -> dict[int, Skip]:
        found: dict[int, Skip] = {}
        if self.action.unfit is not None:
            for some in self.tables.portions(ids):
                self.clock.check()
                found |= self.action.unfit(conn, self.tables, some)
        return found

    def _why(self, msg_id: int, seen: Mapping[int, SeenRow]) -> Why | None:
        if msg_id not in seen:
            return Why.NOT_THERE
        row = seen[msg_id]
        word = word_of(row.status, row.tries, self.tables.spec.max_tries)
        return None if word in self.action.may else self.action.why.get(word, Why.CHANGED)

    def lock(self, conn: Connection, ids: list[int]) -> tuple[list[int], list[Skip]]:
        """Lock the messages that still match; and say why the others do not."""
        locked = change.lock(conn, self.tables, ids, words=self.action.may, wanted=self.wanted)
        if not self.action.given_up and locked:
            away = change.given_up(conn, self.tables, locked)
            locked = [i for i in locked if i not in away]
        unfit = self._unfit_among(conn, locked)
        locked = [i for i in locked if i not in unfit]
        have = set(locked)
        gone = [i for i in ids if i not in have]
        why = self.refusals(conn, gone) if gone else {}
        return locked, [why.get(i, Skip(i, Why.CHANGED)) for i in gone]


# --- Dry runs: what a write would change, as far as it was counted.

SAMPLE = 10
"""Messages that a dry run shows."""
FIRST_SIZE, LEAST_SIZE = 500, 100
"""Messages of a part, where it is hurried: of the first one, and the least."""
MOST_FACTOR = 8.0
"""A part has at most so many times the messages of the one before."""


@dataclass(slots=True)
class DryRun:
    """What would be changed. first: ids of the first ones. matched: all that were read. done,
    running: how many of those to change are so, where such messages may be changed. holding: how
    many hold up an object or a job, where that stays so. complete:
    whether nothing is left behind up_to, and stay_done, the done ones behind them, was counted."""

    first: list[int] = field(default_factory=list)
    matched: int = 0
    done: int = 0
    running: int = 0
    skips: Skips = field(default_factory=Skips)
    complete: bool = True
    up_to: int | None = None
    stay_done: int = 0
    holding: int = 0

    @property
    def changed(self) -> int:
        return self.matched - self.skips.count

    @classmethod
    def of(cls, selection: Selection, asked: Options) -> DryRun:
        """Count the messages of the selection, as long as its time lasts.

        A dry run that is out of time returns what it has counted; else TookTooLong is raised.
        """
        found, clock = cls(), selection.clock
        after: int | None = None
        most = selection.page_size
        next_size = most if clock.enough is None else min(FIRST_SIZE, most)
        try:
            while True:
                size, rest = next_size, clock.rest
                if asked.dry_run and asked.count_limit is not None:
                    size = max(1, min(size, asked.count_limit - found.matched))
                page = selection.page(after, size)
                after = page.next_after
                if page.ids:
                    found._add(selection, page)
                    if asked.progress is not None and not asked.dry_run:
                        asked.progress(
                            Progress(None, found.matched, 0, found.matched - found.changed)
                        )
                if after is None:
                    break
                if asked.is_enough(found):
                    found.complete = selection.ends_at(after)
                    break
                if not asked.dry_run:
                    continue
                next_size = _next_size(selection, next_size, rest)
                if not next_size:
                    found.complete = False
                    break
        except TookTooLong:
            if not asked.dry_run or clock.seconds is None:
                raise
            found.complete = False
        return found

    def _add(self, selection: Selection, page: Page) -> None:
        """A page, wholly or, if the time ends, not at all."""
        chosen = [i for i in page.ids if i not in page.skips]
        done = running = holding = 0
        action, t = selection.action, selection.tables
        if {State.DONE, State.PROCESSING} & {*action.may}:
            with selection.clock.reading(selection.engine) as conn:
                seen = [row.status for row in change.states(conn, t, chosen).values()]
            done = seen.count(Status.DONE) if State.DONE in action.may else 0
            running = seen.count(Status.PROCESSING) if State.PROCESSING in action.may else 0
        if action.leaves_held:
            with selection.clock.reading(selection.engine) as conn:
                holding = len(jobs.held_up(conn, t, chosen))
        self.matched += len(page.ids)
        self.up_to = page.ids[-1]
        self.done += done
        self.running += running
        self.holding += holding
        self.skips.add(page.skips.values())
        if len(self.first) < SAMPLE:
            self.first += chosen[: SAMPLE - len(self.first)]


def _next_size(selection: Selection, size: int, before: float | None) -> int:
    """How many messages to count next, after `size` of them, before which so much of the time was
    left. If the clock says when it is enough, none are begun that would take much longer: 0."""
    rest, most = selection.clock.rest, selection.page_size
    if before is None or rest is None:
        return size
    took = max(before - rest, 1e-4)
    wanted = min(most, max(1, int(size * min(MOST_FACTOR, rest / took / 2))))
    return wanted if rest > 0 and wanted >= min(LEAST_SIZE, most) else 0
