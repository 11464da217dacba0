"""Find candidates for this instance, in all of the table or in a slice of it: those of the search,
without those that it must skip."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from sqlalchemy import Connection

from msgworker.instance.claiming.capacity import Contention, LimitPoller
from msgworker.instance.claiming.choice import WHOLE_REACH, WINDOW, HeadChooser
from msgworker.instance.claiming.claimer import RejectedRows
from msgworker.instance.claiming.drain import Drain
from msgworker.instance.claiming.search import DUE_SECONDS, Look, Search
from msgworker.instance.connections import Connections
from msgworker.instance.state import ScopeMember, Setup, Shared
from msgworker.logs import Said
from msgworker.queries.instances import leased, leases_ending
from msgworker.queries.remaining import Left, left
from msgworker.schema import known
from msgworker.store import ranked, shards
from msgworker.store.candidates import Candidate
from msgworker.store.lease import Lease
from msgworker.store.pauses import holding
from msgworker.store.ranked import Ranked
from msgworker.store.shards import Page, Place
from msgworker.table import SLICES, Slice, Tables

# --- A slice whose index is in the order of objects: read a page of each part at a time.
#
# Like all candidates these are hints: `claim.flag` checks the whole table.

LEAST_ROWS = 8
LEAST_WANT = 32
WIDEST = 64
DEEP = 24
"""From this many messages per object on, skipping to the next object costs less than reading on."""
ASK_DEPTH = 16
Skip = tuple[set[Any], Collection[int]]
"""Objects and messages to skip."""
MOST_ENTRIES = 16_000


@dataclass(slots=True)
class _Lap:
    """A repeated pass through a part of a slice. after: its place. clean: this pass has found no
    message that can run. over: nor has the last complete one."""

    after: Any = None
    clean: bool = True
    over: bool = False

    def advance(self, page: Page, can_run: bool) -> None:
        if can_run:
            self.clean = self.over = False
        self.after = page.after
        if page.after is None:
            self.over, self.clean = self.clean, True


@dataclass(slots=True)
class _Track:
    heads: _Lap = field(default_factory=_Lap)
    without_object: _Lap = field(default_factory=_Lap)


class SliceSearch(Search):
    """Finds candidates in a slice: object by object along its index, in repeated passes that keep a
    place in each of its parts. The oldest candidates of a look come first."""

    def __init__(
        self, tables: Tables, topics: frozenset[str] | None, blocked: set[Any] | None = None
    ) -> None:
        super().__init__(tables, topics, blocked)
        self._tracks: dict[Any, _Track] = {}
        self._factor = 1
        self._depth = 1.0
        self._without_object_at = 0.0

    def look_in(
        self,
        conn: Connection,
        where: Slice,
        *,
        want: int,
        slot: int = 0,
        slots: int = 1,
        reach: int = WHOLE_REACH,
        skip_objects: set[Any] | None = None,
        skip_ids: set[int] | frozenset[int] = frozenset(),
    ) -> Look:
        """As `Search.look`, in a slice."""
        now = time.monotonic()
        if now >= self._forget_at:
            self._forget(now)
        slots = 1 if where.exclusive else slots
        chooser = HeadChooser(
            self, set(skip_objects or ()), skip_ids | self._skipped_ids, slot, slots
        )
        chooser.reach = reach
        chooser.skip(self._blocked)
        self._tracks = {v: self._tracks.get(v) or _Track() for v in where.values}
        budget = min(WINDOW, max(want, LEAST_WANT) * slots * self._factor)
        each = math.ceil(budget / len(where.values))
        skip = (set(skip_objects or ()) | self._blocked, skip_ids | self._skipped_ids)
        places = self._look_urgent_in(conn, where, chooser, now, want)
        ranked = len(chooser.own)
        found, widen = self._gather(conn, where, each, skip)
        for row, _ in sorted(found, key=lambda one: one[0].msg_id):
            chooser.offer(row)
        free = len(chooser.own) - ranked
        chosen, self._overtaken = chooser.chosen(want, self._overtaken)
        tracks = self._tracks.values()
        complete = all(track.heads.over and track.without_object.over for track in tracks)
        if complete:
            for track in tracks:
                track.heads.over = False
        if free >= 2 * want:
            self._factor = max(1, self._factor // 2)
        elif free < want and widen:
            self._factor = min(WIDEST, self._factor * 2)
        self.idle = not chosen and chooser.quarantined is None
        look = Look(chosen, chooser.quarantined, complete, seconds=time.monotonic() - now)
        look.of_others = chooser.of_others
        look.places = {row.msg_id: value for row, value in found} | places
        return look

    def _look_urgent_in(
        self, conn: Connection, where: Slice, chooser: HeadChooser, now: float, want: int
    ) -> dict[int, Any]:
        """Offer heads with a priority; returns the part of the slice of each."""
        if not self._urgent.is_time(now):
            return {}
        limit = self._urgent.rows(want)
        first = _within(ranked.ranked(conn, self.tables, limit=limit, role=where.role), where)
        found = chooser.offer_ranked(first)
        self._urgent.found(found > 0, now)
        places = first.values
        if found < want:
            more = self._urgent.behind(conn, first, now, where.role)
            if more is not None:
                chooser.offer_ranked(_within(more, where))
                places = places | more.values
        return places

    def _gather(
        self, conn: Connection, where: Slice, each: int, skip: Skip
    ) -> tuple[list[tuple[Candidate, Any]], bool]:
        """Continue each lap. Returns the rows, each with its slice's value, and whether a longer
        step would find more."""
        laps = [track.heads for track in self._tracks.values()]
        found = self._read(conn, where, each, laps, skip)
        now = time.monotonic()
        if now >= self._without_object_at:
            laps = [track.without_object for track in self._tracks.values()]
            more = self._read(conn, where, each, laps, skip, without_object=True)
            self._without_object_at = 0.0 if more else now + DUE_SECONDS
            found += more
        tracks = self._tracks.values()
        return found, any(
            t.heads.after is not None or t.without_object.after is not None for t in tracks
        )

    def _read(
        self,
        conn: Connection,
        where: Slice,
        each: int,
        laps: Sequence[_Lap],
        skip: Skip,
        *,
        without_object: bool = False,
    ) -> list[tuple[Candidate, Any]]:
        """Continue each lap by about `each` heads; returns the rows, each with its slice's
        value."""
        places = [Place(v, lap.after) for v, lap in zip(where.values, laps, strict=True)]
        if without_object:
            pages = shards.without_object(
                conn, self.tables, where.role, places, max(each, LEAST_ROWS)
            )
        else:
            pages = self._read_heads(conn, where, places, each)
        found: list[tuple[Candidate, Any]] = []
        for value, lap, page in zip(where.values, laps, pages, strict=True):
            lap.advance(page, self._any_can_run(page, skip))
            found += [(row, value) for row in page.found]
        return found

    def _any_can_run(self, page: Page, skip: Skip) -> bool:
        """Whether a row of the page could run now."""
        judge = HeadChooser(self, set(), frozenset(), 0, 1)
        free = (row for row in page.found if judge.can_run(row))
        return any(row.same not in skip[0] and row.msg_id not in skip[1] for row in free)

    def _read_heads(
        self, conn: Connection, where: Slice, places: Sequence[Place], each: int
    ) -> list[Page]:
        """Read heads: by skips from object to object where objects have many messages, else by
        pages. Only a page shows how many messages an object has, so one is read now and then."""
        self._turn += 1
        if shards.may_skip(self.tables) and self._depth >= DEEP and self._turn % ASK_DEPTH:
            return shards.heads(conn, self.tables, where.role, places, each, deep=True)
        depth = min(self._depth, DEEP) if shards.may_skip(self.tables) else self._depth
        rows = max(LEAST_ROWS, min(MOST_ENTRIES // len(places), math.ceil(each * depth)))
        pages = shards.heads(conn, self.tables, where.role, places, rows)
        objects = sum(len(page.found) for page in pages)
        if objects:
            self._depth = max(1.0, sum(page.entries for page in pages) / objects)
        return pages


def _within(found: Ranked, where: Slice) -> Ranked:
    """Only the heads in the slice."""
    found.heads = [row for row in found.heads if found.values.get(row.msg_id) in where.values]
    return found


# --- A slice whose index is in the order of age.

BEHIND = 1000
"""How many entries a look reads behind the oldest, if too few of those can start."""


class AgeSearch(SliceSearch):
    """Reads the oldest messages of each part at every look. Where none of them, or too few, can
    start, it also reads one long page behind them, and remembers in each part how far it has read.

    A page has the heads only: messages behind a head of their object are read and left out.
    """

    def _gather(
        self, conn: Connection, where: Slice, each: int, skip: Skip
    ) -> tuple[list[tuple[Candidate, Any]], bool]:
        places = [Place(value) for value in where.values]
        rows = max(LEAST_ROWS, each)
        fronts = self._by_age(conn, where.role, places, rows)
        found: list[tuple[Candidate, Any]] = []
        some_can_run = False
        behind: list[Place] = []
        for value, front in zip(where.values, fronts, strict=True):
            track = self._tracks[value]
            track.without_object.over = True  # this index has them among the others
            found += [(row, value) for row in front.found]
            can_run = self._any_can_run(front, skip)
            some_can_run |= can_run
            if front.after is None:
                track.heads.after, track.heads.over = None, not can_run
                continue
            track.heads.over &= not can_run
            after = track.heads.after
            behind.append(Place(value, front.after if after is None else max(after, front.after)))
        if behind and (not some_can_run or self._factor >= WIDEST):
            rows = max(LEAST_ROWS, BEHIND // len(behind))
            pages = self._by_age(conn, where.role, behind, rows)
            for place, page in zip(behind, pages, strict=True):
                self._tracks[place.value].heads.advance(page, self._any_can_run(page, skip))
                found += [(row, place.value) for row in page.found]
        return found, some_can_run and bool(behind)

    def _by_age(
        self, conn: Connection, role: str, places: Sequence[Place], rows: int
    ) -> list[Page]:
        if role in SLICES:
            return shards.heads_by_age(conn, self.tables, role, places, rows)
        return [shards.heads_of_job(conn, self.tables, place, rows) for place in places]


# --- Warns of topics with waiting messages for which no live instance has a handler.

REPORT_SECONDS = 3600.0
ASK_SECONDS = 60.0
"""Seconds after which the check of a topic that another instance handles is repeated."""
SHOWN = 10


class UnhandledTopics:
    """Logs each topic once an hour, a new one at once. Used by the fetcher's thread only.

    handled: the topics that have a handler here, chosen or not; None = all.
    """

    def __init__(
        self,
        tables: Tables,
        handled: Callable[[], Collection[str] | None],
        link: Connections,
        log: logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tables = tables
        self._handled = handled
        self._link = link
        self._log = log
        self._clock = clock
        self.logged_at: dict[Any, float] = {}
        """When each topic was logged, on the clock; a topic need not be text (SQLite)."""

    def report(self, unknown: Collection[Any]) -> None:
        """Log the topics that are due for a warning. unknown: waiting topics without a handler
        here."""
        now = self._clock()
        late = (t for t in unknown if now - self.logged_at.get(t, -inf) > REPORT_SECONDS)
        handled = self._handled()
        asked = [t for t in late if handled is not None and t not in handled]
        new = self._handled_nowhere(asked, now) if asked else []
        if not new:
            return
        self.logged_at = {t: at for t, at in self.logged_at.items() if now - at <= REPORT_SECONDS}
        self.logged_at |= dict.fromkeys(new, now)
        names = ", ".join(repr(name) for name in new[:SHOWN])
        more = f" and {len(new) - SHOWN:,} more" if len(new) > SHOWN else ""
        text = "messages wait whose topic has no handler here: %s%s"
        self._log.warning(text, names, more, extra={"event": Said.TOPICS_UNHANDLED})

    def _handled_nowhere(self, topics: Sequence[Any], now: float) -> list[Any]:
        """Those that no other live instance handles; the others are checked again later."""
        with self._link.statement() as conn:
            others = leased(conn, self._tables)
        theirs = [t for t in topics if any(one.handles(t) for one in others)]
        self.logged_at |= dict.fromkeys(theirs, now - REPORT_SECONDS + ASK_SECONDS)
        return sorted((t for t in topics if t not in theirs), key=str)


# --- Find candidates.


class Finder:
    """Looks for candidates. Used by the fetcher's thread only. member: None = it looks everywhere.

    where: the slice of this round; None = everywhere, or nowhere for a member of a scope. places:
    by msg_id, the part of the slice of each candidate.
    """

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        link: Connections,
        member: ScopeMember | None,
        *,
        rejected_rows: RejectedRows,
        limit_poller: LimitPoller,
        threads: int,
    ) -> None:
        self._setup = setup
        self._shared = shared
        self._link = link
        self._member = member
        self._rejected_rows = rejected_rows
        self._limit_poller = limit_poller
        self.contention = Contention(setup.settings.heartbeat_seconds, setup.clock)
        self._threads = threads
        of_a_job = setup.scope is not None and setup.scope.role not in SLICES
        by_age = of_a_job or setup.tables.database.slices_by_age
        sliced = AgeSearch if by_age else SliceSearch
        self._kind = Search if member is None else sliced
        self.search: Search = self._kind(setup.tables, setup.topics, shared.in_flight.blocked)
        self._limited: dict[str, Search] = {}  # by topic; `search` leaves these topics out
        self.unhandled = UnhandledTopics(
            setup.tables, setup.registry.topics, link, shared.log, clock=setup.clock
        )
        self.where: Slice | None = None
        self.places: dict[int, Any] = {}
        self._covered = False

    def forget(self, *, start: bool = True) -> None:
        """Forget earlier looks before the next one. start: see `Search.forget`."""
        for search in self._searches():
            search.forget(start=start)

    def refused(self, candidates: list[Candidate]) -> None:
        """These could not be flagged: skip their objects for a while."""
        self.search.refused(candidates)  # all searches share the set of these objects

    def skip(self, candidate: Candidate) -> None:
        """Skip this message for a while."""
        for search in self._searches():
            search.skip(candidate)

    def _searches(self) -> Iterator[Search]:
        yield self.search
        yield from self._limited.values()

    @property
    def settled(self) -> bool:
        """Whether it has looked in all slices of ours, and no more are about to be added."""
        return self._member is None or self._member.settled

    @property
    def everywhere(self) -> bool:
        """Whether it looks at the whole table instead of slices."""
        return self._member is None

    @property
    def reach(self) -> Slice | None:
        """All slices that it may look in, now or in turn; None = everywhere, or not known."""
        return None if self._member is None else self._member.reach()

    def go_round(self) -> None:
        """Look in all of `reach` again, also in slices that were just empty."""
        if self._member is not None:
            self._member.go_round()

    @contextmanager
    def round(self) -> Iterator[None]:
        """The looks in a slice and the claims of their candidates; the slice is kept meanwhile."""
        self._covered = False
        if self._member is not None:
            where = self._member.slice()
            if where != self.where:
                self._limit_poller.moved()
            self.where = where
        try:
            yield
        finally:
            if self._member is not None:
                # The look left out limited topics: `rest` covers those.
                rest = self._limit_poller.rest() if self._covered else None
                self._member.looked(complete=rest is not None, rest=rest)

    def look(self, want: int, held: int) -> Look:
        """Up to `want` heads, while `held` lanes with an object are in flight."""
        shared, controls = self._shared, self._shared.controls
        self.search.use(holding(self._setup.tables, controls.paused))
        self.search.paused = controls.apart
        self.search.busy = len(shared.in_flight.lanes) >= self._threads
        if self.search.but != controls.limits.keys():
            self.search.but = frozenset(controls.limits)
            self.search.forget()
        look = self._look_by(self.search, want, held)
        self._covered = self._member is not None and look.complete and not look.candidates
        if self.search.unknown_topics:
            self.unhandled.report(self.search.unknown_topics)
        return look

    def look_limited(self, topic: str, want: int, held: int) -> Look:
        """Up to `want` heads of a limited topic, while `held` such lanes are in flight."""
        search, setup, shared = self._limited.get(topic), self._setup, self._shared
        if search is None:
            only = frozenset([topic])
            search = self._kind(setup.tables, only, shared.in_flight.blocked)
            search.only, self._limited[topic] = only, search
        search.use(holding(setup.tables, shared.controls.paused))
        search.paused = shared.controls.paused
        return self._look_by(search, want, held)

    def _look_by(self, search: Search, want: int, held: int) -> Look:
        shared = self._shared
        while look_again := shared.in_flight.look_again:
            msg_id = look_again.popleft()
            for one in self._searches():
                one.look_again_from(msg_id)
        objects, ids = shared.in_flight.running_under_lost_ids(shared.identity.is_ours)
        if self._rejected_rows:
            refused_objects, refused_ids = self._rejected_rows.waiting()
            objects, ids = objects | refused_objects, ids | refused_ids
        look = self._looked(search, want, held, objects, ids)
        objects, ids = shared.in_flight.held()  # read after the look: see `InFlight.held`
        look.candidates = [
            c
            for c in look.candidates
            if c.msg_id not in ids and (c.object_id is None or c.same not in objects)
        ]
        if shared.identity.tenure.doubtful:
            self._drop_doubtful(look)
        return look

    def due_in(self, drain: Drain) -> float | None:
        """Seconds until the first message within `reach` becomes due, if a drain waits for it."""
        setup, shared = self._setup, self._shared
        with self._link.statement() as conn:
            return ranked.due_in(
                conn,
                holding(setup.tables, shared.controls.paused),
                topics=setup.topics,
                paused=shared.controls.paused,
                linger=drain.linger,
                retry_linger=drain.retry_linger,
                within=self.reach,
            )

    def left(self) -> Left:
        """Count the messages left within `reach`, by what they wait for."""
        setup, shared = self._setup, self._shared
        asked = replace(setup.asked(shared.identity.ids), within=self.reach)
        with self._link.statement() as conn:
            return left(conn, holding(setup.tables, shared.controls.paused), asked)

    def hides_rows(self) -> bool:
        """Whether row-level security of the messages was switched on, or changed, since the tables
        were read."""
        with self._link.statement() as conn:
            return known.policies_changed(conn, self._setup.tables)

    def leases_ending(self, seconds: float) -> list[Lease]:
        """The leases of other instances with messages that end within so many seconds."""
        setup, shared = self._setup, self._shared
        with self._link.statement() as conn:
            return leases_ending(conn, setup.tables, within=seconds, but=shared.identity.id)

    def _looked(
        self, search: Search, want: int, held: int, objects: set[Any], ids: set[int]
    ) -> Look:
        shared = self._shared
        wants: dict[str, Any] = {
            "want": want,
            **shared.peers._asdict(),
            "reach": self.contention.reach(busy=self.search.busy),
            "skip_objects": objects,
            "skip_ids": ids,
        }
        if self._member is None:
            with self._link.statement() as conn:
                return search.look(conn, held=held, **wants)
        assert isinstance(search, SliceSearch)
        if self.where is None:
            return Look(complete=True)
        # The index of slices has no running messages, but it has those behind them.
        ours, mine = shared.in_flight.held()
        wants |= {"skip_objects": objects | ours, "skip_ids": ids | mine}
        with self._link.statement() as conn:
            look = search.look_in(conn, self.where, **wants)
        self.places = look.places
        return look

    def _drop_doubtful(self, look: Look) -> None:
        """Drop candidates that may be claimed only under another id; see `Tenure`."""
        shared = self._shared
        free = [c for c in look.candidates if c.msg_id not in shared.identity.tenure.doubtful]
        if (
            look.quarantined is not None
            and look.quarantined.msg_id in shared.identity.tenure.doubtful
        ):
            look.quarantined = None
            shared.identity.retire()
        if len(free) < len(look.candidates):
            shared.identity.retire()
        look.candidates = free
