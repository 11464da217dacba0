"""Where an instance looks for heads, everywhere or in slices, and which of those that are found it
must skip; and a warning of topics without a handler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from msgworker.instance.claiming.capacity import Contention, LimitPoller
from msgworker.instance.claiming.claimer import RefusedRows
from msgworker.instance.claiming.heads import Look, Search, Wanted
from msgworker.instance.claiming.passes import AgeSearch, SliceSearch
from msgworker.instance.claiming.search import TableSearch
from msgworker.instance.connections import Connections
from msgworker.instance.state import ScopeMember, Setup, Shared
from msgworker.logs import Said
from msgworker.message import topic_of
from msgworker.queries.instances import leased
from msgworker.store import claim
from msgworker.store.candidates import Candidate, Those
from msgworker.store.controls import asking_jobs
from msgworker.store.slices import other_numbers
from msgworker.table.columns import SLICES, Slice

# --- Warns of topics with waiting messages for which no live instance has a handler.

REPORT_SECONDS = 3600.0
ASK_SECONDS = 60.0
"""Seconds after which the check of a topic that another instance handles is repeated."""
SHOWN = 10


class UnhandledTopics:
    """Logs each topic once an hour, a new one at once. Used by the fetcher's thread only.

    logged_at: when each topic was, on the clock; a topic need not be text (SQLite).
    """

    def __init__(self, setup: Setup, shared: Shared, link: Connections) -> None:
        self._setup, self._shared, self._link = setup, shared, link
        self.logged_at: dict[Any, float] = {}

    def report(self, unknown: Collection[Any]) -> None:
        """Log the topics that are due for a warning, of waiting ones without a handler here."""
        now = self._setup.clock()
        late = (t for t in unknown if now - self.logged_at.get(t, -inf) > REPORT_SECONDS)
        handled = self._setup.registry.topics()  # chosen or not
        asked = [t for t in late if handled is not None and t not in handled]
        new = self._handled_nowhere(asked, now) if asked else []
        if not new:
            return
        self.logged_at = {t: at for t, at in self.logged_at.items() if now - at <= REPORT_SECONDS}
        self.logged_at |= dict.fromkeys(new, now)
        names = ", ".join(repr(name) for name in new[:SHOWN])
        more = f" and {len(new) - SHOWN:,} more" if len(new) > SHOWN else ""
        text = "messages wait whose topic has no handler here: %s%s"
        self._shared.log.warning(text, names, more, extra={"event": Said.TOPICS_UNHANDLED})

    def _handled_nowhere(self, topics: Sequence[Any], now: float) -> list[Any]:
        """Those that no other live instance handles; the others are checked again later."""
        with self._link.statement() as conn:
            others = leased(conn, self._setup.tables)
        theirs = [t for t in topics if any(one.handles(t) for one in others)]
        self.logged_at |= dict.fromkeys(theirs, now - REPORT_SECONDS + ASK_SECONDS)
        return sorted((t for t in topics if t not in theirs), key=str)


# --- Find candidates.

OTHERS_SECONDS = 10.0
"""Seconds between two looks for numbers of shards that `App.send` does not write."""


@dataclass(eq=False)
class Finder:
    """Looks for candidates. Used by the fetcher's thread only. member: None = it looks everywhere.

    where: the slice of this round; None = everywhere, or nowhere for a member of a scope. full:
    nothing more may be claimed in this round.
    """

    _setup: Setup
    _shared: Shared
    _member: ScopeMember | None
    _link: Connections
    _refused_rows: RefusedRows

    def __post_init__(self) -> None:
        setup, shared = self._setup, self._shared
        self.contention = Contention(setup.settings.heartbeat_seconds, setup.clock)
        of_a_job = setup.scope is not None and setup.scope.by not in SLICES
        by_age = of_a_job or setup.tables.database.slices_by_age
        sliced = AgeSearch if by_age else SliceSearch
        self._kind = TableSearch if self._member is None else sliced
        self.search: Search = self._kind(setup.tables, setup.topics, shared.in_flight.blocked)
        self._limited: dict[str, Search] = {}  # by topic; `search` leaves them out
        self.unhandled = UnhandledTopics(setup, shared, self._link)
        self.where: Slice | None = None
        self._covered = self.full = False
        self._others_at = inf if setup.scope is None or setup.scope.by != "shard" else 0.0

    def forget(self, *, start: bool = True) -> None:
        """Forget earlier looks before the next one. start: see `Search.forget`."""
        for search in self._searches():
            search.forget(start=start)
        if start and self._others_at < inf:
            self._others_at = 0.0

    def lost(self, candidates: list[Candidate]) -> None:
        """These could not be flagged: their search alone skips their objects for a while, since one
        of another topic may stand before it."""
        for one in candidates:
            topic = topic_of(one.topic)
            search = self._limited.get(topic) if topic in self._shared.controls.limits else None
            (search or self.search).lost([one])

    def skip(self, candidate: Candidate) -> None:
        """Skip this message for a while."""
        for search in self._searches():
            search.skip(candidate)

    def still_free(self, candidate: Candidate) -> bool:
        """Whether it can be flagged as it was seen, and a slice is ours; and, until the instance
        claims nothing else because of it, whether no other transaction has it locked."""
        if self._member is not None and self.where is None:
            return False
        tables = self._setup.tables
        with self._link.statement() as conn:
            free = claim.free(conn, tables, [candidate])
        if not free or self._shared.quiesce.reason is not None or not tables.database.row_locks:
            return bool(free)
        with self._link.transaction() as conn:
            return not claim.locked(conn, tables, free)

    def _searches(self) -> Iterator[Search]:
        yield self.search
        yield from self._limited.values()

    @property
    def steady(self) -> bool:
        """Whether it has looked in all slices of ours, and no more are about to be added."""
        return self._member is None or self._member.steady

    @property
    def reach(self) -> Slice | None:
        """All slices that it may look in, now or in turn; None = everywhere, or not known."""
        return None if self._member is None else self._member.reach()

    def go_round(self) -> None:
        """Look in all of `reach` again, also in slices that were just empty."""
        if self._member is not None:
            self._member.go_round()

    @contextmanager
    def round(self, limit_poller: LimitPoller) -> Iterator[None]:
        """The looks in a slice and the claims of their candidates; the slice is kept meanwhile."""
        self._covered = False
        if self._member is not None:
            if freed := self._shared.in_flight.freed:  # what waited behind these may run
                self._member.go_round({freed.popleft() for _ in range(len(freed))})
            if (now := self._setup.clock()) >= self._others_at:
                with self._link.statement() as conn:
                    self._member.others = frozenset(other_numbers(conn, self._setup.tables))
                self._others_at = now + OTHERS_SECONDS
            where = self._member.slice()
            if where != self.where:
                limit_poller.moved()
            self.where = where
        try:
            yield
        finally:
            if self._member is not None:
                # The look left out limited topics: `rest` covers those.
                rest = limit_poller.rest() if self._covered else None
                self._member.looked(complete=rest is not None, rest=rest, full=self.full)

    def look(self, want: int, held: int, *, rests: bool = False) -> Look:
        """Up to `want` heads, while `held` lanes with an object are in flight. rests: as in
        `Wanted`."""
        controls = self._shared.controls
        tables = asking_jobs(self._setup.tables, controls.paused)
        limited = frozenset(controls.limits)
        self.search.use(tables, Those(limited, True) if limited else None)
        look = self._look_by(self.search, want, held, controls.apart, rests=rests)
        self._covered = self._member is not None and look.complete and not look.candidates
        if self.search.unknown_topics:
            self.unhandled.report(self.search.unknown_topics)
        return look

    def look_limited(self, topic: str, want: int, held: int) -> Look:
        """Up to `want` heads of a limited topic, while `held` such lanes are in flight."""
        search, tables = self._limited.get(topic), self._setup.tables
        paused = self._shared.controls.paused
        if search is None:
            search = self._limited[topic] = self._kind(tables, frozenset([topic]))
        search.use(asking_jobs(tables, paused), Those(frozenset([topic]), False))
        return self._look_by(search, want, held, paused)

    def _look_by(
        self, search: Search, want: int, held: int, paused: Set[str], *, rests: bool = False
    ) -> Look:
        shared = self._shared
        in_flight, identity = shared.in_flight, shared.identity
        while look_again := in_flight.look_again:
            msg_id = look_again.popleft()
            for one in self._searches():
                one.look_again_from(msg_id)
        if self._member is not None and self.where is None:
            return Look(complete=True)
        objects, ids = in_flight.running_under_lost_ids(identity.is_ours)
        if self._refused_rows:
            refused_objects, refused_ids = self._refused_rows.waiting()
            objects, ids = objects | refused_objects, ids | refused_ids
        if self.where is not None:
            # The index of slices has no running messages, but it has those behind them.
            ours, mine = in_flight.objects_and_ids()
            objects, ids = objects | ours, ids | mine
        busy = len(in_flight.lanes) >= self._setup.threads
        most_of_others = self.contention.most_of_others(busy=busy)
        wanted = Wanted(
            *(want, held, self.where, *shared.peers, most_of_others, objects, ids),
            paused=paused,
            busy=busy,
            rests=rests,
        )
        with self._link.statement() as conn:
            look = search.look(conn, wanted)
        if look.quarantined is not None and not self.still_free(look.quarantined):
            search.skip(look.quarantined)  # nothing is given back for one that waits for another
            look.quarantined = None
        objects, ids = in_flight.objects_and_ids()  # read after the look: see there
        look.candidates = [
            c
            for c in look.candidates
            if c.msg_id not in ids and (c.object_id is None or c.same not in objects)
        ]
        if identity.tenure.doubtful:
            self._drop_doubtful(look)
        return look

    def _drop_doubtful(self, look: Look) -> None:
        """Drop candidates that may be claimed only under another id; see `Tenure`."""
        identity, doubtful = self._shared.identity, self._shared.identity.tenure.doubtful
        free = [c for c in look.candidates if c.msg_id not in doubtful]
        if len(free) < len(look.candidates):
            identity.retire()
        look.candidates = free
        if look.quarantined is not None and look.quarantined.msg_id in doubtful:
            look.quarantined = None
            identity.retire()
