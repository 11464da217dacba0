"""The search for heads: oldest first by a window, then a cursor over the objects.

Candidates are only hints; store/claim.flag decides. So state that is kept between looks
(the mark, the cursors, recently blocked objects) may be wrong for a while without
harm, and is forgotten every second. A look reads:

urgent  rows with a priority, the highest first (heads.py)
window  the oldest unfinished rows from a low-water mark on; the first row of each object is its
        head. The index may have entries of ended rows before them, see `Beginning`
due     rows whose instant has come: retries and delayed messages
cursor  when the window is full of rows that cannot run: each object in turn, from where it was
        (passes.py), then each row without an object
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from msgworker.instance.claiming import heads
from msgworker.instance.claiming.passes import IDLE_OBJECTS, READ_AGAIN, WINDOW, ObjectCursor
from msgworker.store import candidates, ranked
from msgworker.store.candidates import PAGE, Candidate, Those
from msgworker.store.ranked import Ranked
from msgworker.store.rows import MIN_ID, id_behind
from msgworker.table.tables import Tables

IDLE_WINDOW = 128
BEHIND_SECONDS = 0.1
ALL = Those(frozenset(), True)
LEAST_SPAN, MOST_SPAN, MOST_STEPS = 256, 16_000, 8
"""The least and the most rows of a step past messages of other topics, and the steps of a look."""
PASSING_SECONDS = 0.02
"""A look that has taken this long makes no further step past messages of other topics; the next
look continues there."""


LONGEST_FROM_LOW_SECONDS = 2.0
SHORT_SECONDS = 0.1
"""Looks may in any case miss a message with an id that is committed late for this long."""


class Beginning:
    """Where a look by age begins, so that rows that have ended cost little: their entries stay at
    the start of the index until the database has cleaned up.

    So a look begins at the very start only READ_AGAIN times as long after the last such look as
    that took, or LONGEST_FROM_LOW_SECONDS after it: without such entries, nearly always. The others
    begin at `low`: the oldest unfinished row, or, if that is lower, what was the newest row a
    second before the last look from the start. A message that is committed with a lower id waits
    for the next one, see also `Steps.read_again_at`.
    """

    def __init__(self) -> None:
        self.low = MIN_ID
        self._due_at = 0.0
        self._behind = MIN_ID
        self._newest, self._newest_at = MIN_ID, 0.0

    def is_due(self, now: float) -> bool:
        """Whether to look from the very start."""
        return now >= self._due_at

    def due(self) -> None:
        """Look from the very start the next time."""
        self._due_at = 0.0

    def lower(self, msg_id: int) -> None:
        """Begin at this message, or before it, the next time."""
        self.low = min(self.low, msg_id)

    def looked(
        self, now: float, seconds: float, first: int | None, newest: Callable[[], int]
    ) -> None:
        """After a look from the very start that took `seconds`. first: the lowest id that it found,
        `MIN_ID` if it did not reach one, None = there was none. newest: reads the highest id."""
        rest = min(READ_AGAIN * seconds, LONGEST_FROM_LOW_SECONDS)
        self._due_at = now + rest
        if rest < SHORT_SECONDS:
            self.low = self._behind = self._newest = MIN_ID
            return
        if now - self._newest_at >= heads.FORGET_SECONDS:
            self._behind, self._newest, self._newest_at = self._newest, newest(), now
        self.low = self._behind if first is None else min(self._behind, first)


@dataclass(slots=True)
class Steps:
    """Where to read the rows of some topics alone, in steps past those of others.

    at: where the next look begins. end: behind it are rows that no look has read; ends: where that
    was at the last two `forget`. span: how many rows of all topics a step reads. read_again_at:
    when to begin again at the start. from_start: the present pass began there. found: heads that
    each look reads again, where no index gives rows by age.
    """

    at: int = MIN_ID
    end: int | None = None
    ends: tuple[int | None, int | None] = (None, None)
    span: int = LEAST_SPAN
    read_again_at: float = 0.0
    from_start: bool = True
    beginning: Beginning = field(default_factory=Beginning)
    found: dict[int, None] = field(default_factory=dict)

    def begin(self, now: float, *, by_age: bool) -> int:
        """Where a look begins now. by_age: an index gives rows by age."""
        due = not by_age or self.beginning.is_due(now)
        if due and self.beginning.low > MIN_ID and now >= self.read_again_at:
            self.at = MIN_ID
        at = self.at if due else max(self.at, self.beginning.low)
        if at == MIN_ID or at > self.at:  # else it continues where the last look stopped
            self.from_start = at == MIN_ID
        return at

    def stepped(self, now: float, seconds: float) -> None:
        """A step that took so many seconds has found too few, and did not reach the end."""
        again_at = max(self.read_again_at, now) + READ_AGAIN * seconds
        self.read_again_at = min(again_at, now + heads.LONGEST_REST_SECONDS)
        self.span = min(MOST_SPAN, self.span * 2)

    def ended(self, at: int, *, whole: bool, full: bool) -> None:
        """A look has ended; the next one begins at `at`. whole: it reached the newest row. full:
        it found as many rows as it may read."""
        self.at = at
        if whole or full:
            self.span = max(LEAST_SPAN, self.span // 2)

    def lower(self, msg_id: int) -> None:
        """Begin at this message, or before it, the next time."""
        self.at = min(self.at, msg_id)
        self.beginning.lower(msg_id)

    def forget(self, now: float) -> None:
        """Once a second: read again from where the end was a second ago, for rows with ids that are
        committed late."""
        self.ends = (self.ends[1], self.end)
        end = self.ends[0]
        if now >= self.read_again_at:
            self.at = MIN_ID
        if end is not None and self.end is not None:
            self.at, self.end = min(self.at, end), min(self.end, end)


def widened(width: int, *, few: bool) -> int:
    """How many times more rows than wanted heads the next window reads. few: it was too few."""
    return min(8, width * 2) if few else max(1, width - 1)


class TableSearch(heads.Search):
    """Finds candidates in the whole table; keeps its place between looks."""

    def __init__(
        self, tables: Tables, topics: frozenset[str] | None, blocked: set[Any] | None = None
    ) -> None:
        """_mark: where the window begins. _own: our share, and where its rows begin, see
        `_look_own`; _own_at: when to read those again. _width: how many times more rows than wanted
        heads it reads. _among: where to read by topic; _crowded: most rows are of other topics, so
        that all are read by topic; _passing: this look is not past rows of other topics yet.
        _buried: the window does not reach the newest row, and was too little once: what has come
        since is read first, every BEHIND_SECONDS (_behind_at), or it would wait for a round.
        _since: the place in the rows that have become due; _due_at: when to read those. _cursor_at:
        when to step the cursor. _from_start: this look began at the very start.
        """
        super().__init__(tables, topics, blocked)
        self._mark = MIN_ID
        self._own: tuple[int, int, int] | None = None
        self._own_at = 0.0
        self._width = 1
        self._beginning = Beginning()
        self._from_start = True
        self._among = Steps()
        self._crowded = self._passing = self._buried = False
        self._since: tuple[Any, int] | None = None
        self._due_at = 0.0
        self._cursor = ObjectCursor(tables)
        self._cursor_at = self._behind_at = 0.0

    def use(self, tables: Tables, those: Those | None) -> None:
        self._cursor.tables = tables
        super().use(tables, those)

    def look(self, conn: Connection, wanted: heads.Wanted) -> heads.Look:
        now, want = time.monotonic(), wanted.heads
        if now >= self._forget_at:
            self._forget_now(now)
        self._turn += 1
        skip_ids = wanted.skip_ids | self._skipped_ids
        chooser = heads.HeadChooser(self, replace(wanted, skip_ids=skip_ids))
        if self._turn % 8 == 0:  # so that the oldest of other shares do not starve
            chooser.oldest_of_others = max(1, want // 8)
        due_complete, first = self._look_due(conn, chooser, now, want)
        chooser.skip(self._blocked)
        # How many heads are enough, those with a priority included; whole: others are read, too.
        enough, whole = want, True
        if first is not None and (ranked := self._look_urgent(conn, chooser, first, now, want)):
            others = max(want - len(chooser.own), heads.owed(want, self._overtaken))
            enough, whole = ranked + others, others > 0
        complete = round_over = self._passing = False
        self._from_start = True
        if whole and self.tables.database.oldest_index:
            complete = self._look_window(conn, chooser, want, wanted.held, enough) and due_complete
        rests = wanted.rests and self._buried
        if whole and len(chooser.own) < enough and not (complete or self._passing or rests):
            round_over = self._look_objects(conn, chooser, enough)
            complete = round_over and self._cursor.clean
            self._from_start = True
        found, self._overtaken = chooser.chosen(want, self._overtaken, whole=whole)
        self.idle = not found and chooser.quarantined is None
        seconds = time.monotonic() - now
        look = heads.Look(
            found, chooser.quarantined, complete, round_over, self._from_start, seconds
        )
        look.of_others = chooser.of_others
        look.finds_new = self._buried
        return look

    def _those(self, chooser: heads.HeadChooser) -> Those | None:
        """The topics of which rows are read; None = read all rows and check the topic of each."""
        if not self._crowded or (self.those is not None and not self.those.but):
            return self.those
        but = chooser.wanted.paused | set(self.those.topics if self.those else ())
        if self.topics is not None:
            return Those(self.topics - but, False)
        return Those(but, True) if but else None

    def forget(self, *, start: bool = True) -> None:
        super().forget(start=start)
        self._among.read_again_at = self._cursor_at = 0.0
        if start:
            self._beginning.due()
            self._among.beginning.due()
        self._cursor.forget()

    def look_again_from(self, msg_id: int) -> None:
        if self.tables.database.oldest_index:
            self._mark = min(self._mark, msg_id)
            if self._own is not None:
                self._own = (*self._own[:2], min(self._own[2], msg_id))
            self._beginning.lower(msg_id)
            self._among.lower(msg_id)

    def _forget_now(self, now: float) -> None:
        super()._forget_now(now)
        self._crowded = False
        self._mark = MIN_ID
        self._own = None
        self._among.forget(now)
        self._since = None
        self._due_at = 0.0

    # ------------------------------------------------------------ sources

    def _look_due(
        self, conn: Connection, chooser: heads.HeadChooser, now: float, want: int
    ) -> tuple[bool, Ranked | None]:
        """Offer due rows. Returns whether no more are due, and the rows with the highest priority
        if it was time to read them, too."""
        first, most = None, self._urgent.rows(want)
        if now < self._due_at:
            if self._urgent.is_time(now):
                first = ranked.ranked(conn, self.tables, limit=most)
            return True, first
        self._due_at = now + heads.DUE_SECONDS
        limit, since = max(want, IDLE_OBJECTS), self._since
        if self._urgent.has_priority:
            first = ranked.due_and_ranked(conn, self.tables, since=since, limit=limit, most=most)
            chooser.priorities |= first.priorities
        rows = (
            candidates.due_after(conn, self.tables, since=since, limit=limit)
            if first is None
            else first.due
        )
        for row in rows:
            chooser.offer_waited(row)
        if rows and rows[-1].waits_until is not None:
            self._since = (rows[-1].waits_until, rows[-1].msg_id)
        return len(rows) < limit, first

    def _look_urgent(
        self, conn: Connection, chooser: heads.HeadChooser, first: Ranked, now: float, want: int
    ) -> int:
        """Offer the heads that have a priority, also those behind `first` if they are too few.
        Returns how many heads there are then, 0 = none has a priority."""
        found = chooser.offer_ranked(first)
        self._urgent.found(found > 0, now)
        if found < want:
            more = self._urgent.behind(conn, first, now)
            found += 0 if more is None else chooser.offer_ranked(more)
        return len(chooser.own) if found else 0

    def _look_window(
        self, conn: Connection, chooser: heads.HeadChooser, want: int, held: int, enough: int
    ) -> bool:
        """True if the window reached the newest row. enough: how many heads are wanted."""
        size = IDLE_WINDOW
        if not self.idle:
            size = min(WINDOW, held + want * max(self._width, chooser.slots))
        those = self._those(chooser)
        if those is not None:
            return self._look_window_among(conn, chooser, size, enough, those)
        if self._look_own(conn, chooser, held + want * self._width, enough):
            return False
        if self._buried and time.monotonic() >= self._behind_at:
            self._look_behind_end(conn, chooser, size, ALL)
            self._behind_at = time.monotonic() + BEHIND_SECONDS
        started, beginning = time.monotonic(), self._beginning
        due = beginning.is_due(started)
        mark = MIN_ID if due else max(self._mark, beginning.low)
        rows = candidates.oldest(conn, self.tables, mark=mark, limit=size)
        seconds = time.monotonic() - started
        slow = seconds > 0.004 + 4e-6 * len(rows)
        self._mark, self._from_start = mark, mark == MIN_ID
        if self._from_start:
            first = rows[0].msg_id if rows else None
            beginning.looked(started + seconds, seconds, first, lambda: self._newest(conn))
        chooser.offer_all(rows)
        whole = len(rows) < size
        self._own = None
        if chooser.slots > 1 and not whole and sum(r.object_id is None for r in rows) * 2 > size:
            self._own = (chooser.slot, chooser.slots, mark)
        short = not whole and len(chooser.own) < enough
        if short and not self._buried:
            self._among.end = None  # only what comes from now on
        self._buried = not whole and (short or self._buried)
        if (
            short
            and self._is_crowded(chooser, rows)
            and (those := self._those(chooser)) is not None
        ):
            return self._look_window_among(conn, chooser, size, enough, those)
        if rows:
            # Index entries of finished rows make the low end slow until they are cleaned up; then
            # the mark may pass rows that cannot run now. They are read again after `forget`.
            first_free = next((r.msg_id for r in rows if chooser.can_run(r)), rows[0].msg_id)
            self._mark = max(mark, first_free) if slow else rows[0].msg_id
        self._width = widened(self._width, few=len(chooser.own) < enough and not whole)
        return whole

    def _look_own(
        self, conn: Connection, chooser: heads.HeadChooser, size: int, enough: int
    ) -> bool:
        """Offer rows of our share, where many have no object: else each instance would read those
        of all. False = look at all shares: these are too few, or it is time to."""
        own = self._own
        if own is None or own[:2] != (chooser.slot, chooser.slots) or self._turn % 8 == 0:
            return False
        if (begun := time.monotonic()) < self._own_at:
            return False
        size = min(WINDOW, size)
        rows = candidates.oldest(conn, self.tables, mark=own[2], limit=size, share=own[:2])
        seconds, few = time.monotonic() - begun, len(rows) < size
        if few or seconds > PASSING_SECONDS:  # perhaps past many rows of others
            self._own_at = begun + min(READ_AGAIN * seconds, heads.LONGEST_REST_SECONDS)
        if few:
            return False
        chooser.offer_all(rows)
        self._own, self._from_start = (*own[:2], rows[0].msg_id), False
        self._width = widened(self._width, few=len(chooser.own) < enough)
        return True

    def _is_crowded(self, chooser: heads.HeadChooser, rows: Sequence[Candidate]) -> bool:
        """Whether most rows are of other topics: then rows are read by topic for a while."""
        several = self.tables.has("topic") or self.tables.asks_jobs
        topics = Counter(map(attrgetter("topic"), rows)) if several else {}
        others = sum(many for topic, many in topics.items() if chooser.is_of_others(topic))
        by_topic = 2 * others > len(rows)
        self._crowded = self._crowded or by_topic
        return by_topic

    def _look_window_among(
        self, conn: Connection, chooser: heads.HeadChooser, size: int, enough: int, those: Those
    ) -> bool:
        """`_look_window` for some topics: in steps past rows of the others, from where the last
        look stopped; until it is past them, each look first reads the rows behind `_among.end`, so
        that a new message waits for one step. Where no index gives rows by age, only rows without
        an object."""
        ahead = 0
        among, by_age = self._among, self.tables.database.oldest_index
        if by_age and among.at < self._end_is_known(conn):
            ahead = self._look_behind_end(conn, chooser, size, those)
        first, count, whole, begun_at = 0, 0, False, time.monotonic()
        begin = at = among.begin(begun_at, by_age=by_age)
        self._from_start = among.from_start
        for _ in range(MOST_STEPS):
            begun = time.monotonic()
            step = self._step(conn, chooser, those, mark=at, limit=size - count)
            if step.rows and not count:
                first = step.rows[0].msg_id
            count, whole = count + len(step.rows), step.whole
            at = at if step.last is None else id_behind(step.last)
            if whole or count >= size:
                break
            now = time.monotonic()
            among.stepped(now, now - begun)
            if now - begun_at > PASSING_SECONDS:
                self._passing = len(chooser.own) < enough
                break
        else:
            self._passing = len(chooser.own) < enough
        if by_age and begin == MIN_ID:
            now = time.monotonic()
            lowest = first if count else None if whole else MIN_ID
            among.beginning.looked(now, now - begun_at, lowest, lambda: self._newest(conn))
        among.ended(first if count else at, whole=whole, full=count >= size)
        if whole and by_age:
            among.end = among.at
        if ahead:
            chooser.oldest_first()
        few = len(chooser.own) < enough and not whole and not ahead
        self._width = widened(self._width, few=few)
        return whole

    def _newest(self, conn: Connection) -> int:
        return candidates.newest(conn, self.tables)

    def _end_is_known(self, conn: Connection) -> int:
        """The place behind which rows are read first: initially behind the newest row."""
        among = self._among
        if among.end is None:
            among.end = id_behind(self._newest(conn))
            if not self.tables.database.oldest_index:  # the cursor may have missed the newest rows
                among.end = max(MIN_ID, among.end - PAGE)
            among.ends = (among.end, among.end)
        return among.end

    def _look_behind_end(
        self, conn: Connection, chooser: heads.HeadChooser, size: int, those: Those
    ) -> int:
        """Offer the heads behind `_among.end`, in steps; the next call continues there. Returns how
        many there were. Followers would hide the heads of their objects, which are read after."""
        by_age, begun = self.tables.database.oldest_index, time.monotonic()
        at, found = self._end_is_known(conn), list[Candidate]()
        for _ in range(MOST_STEPS):
            step = candidates.oldest_among(
                *(conn, self.tables, those.topics),
                but=those.but,
                mark=at,
                limit=size,
                span=max(PAGE, self._among.span),
            )
            found = self._heads_among(conn, chooser, step.rows)
            for row in found:
                chooser.offer(row)
            if found and by_age:
                at = found[0].msg_id
            elif step.last is not None:
                at = id_behind(step.last)
            self._keep(chooser, found)
            if found or step.whole or time.monotonic() - begun > PASSING_SECONDS:
                break
        self._among.end = at
        return len(found)

    def _keep(self, chooser: heads.HeadChooser, rows: Sequence[Candidate]) -> None:
        """Where no index gives rows by age: read these again until they are gone, since the cursor
        would come back to them only after all others."""
        if not self.tables.database.oldest_index and len(self._among.found) < PAGE:
            self._among.found |= {row.msg_id: None for row in rows[:PAGE] if chooser.can_run(row)}

    def _look_at_found(self, conn: Connection, chooser: heads.HeadChooser, those: Those) -> None:
        rows = candidates.heads_of(conn, self.tables, list(self._among.found))
        self._among.found.clear()
        rows = [row for row in rows if those.has(row) and row.same not in self._blocked]
        self._keep(chooser, rows)
        for row in rows:
            chooser.offer(row)

    def _step(
        self, conn: Connection, chooser: heads.HeadChooser, those: Those, *, mark: int, limit: int
    ) -> candidates.Among:
        span, by_age = max(self._among.span, limit), self.tables.database.oldest_index
        if by_age:
            found = candidates.oldest_among(
                *(conn, self.tables, those.topics), but=those.but, mark=mark, limit=limit, span=span
            )
        else:
            after = None if mark == MIN_ID else mark - 1
            rows, last = candidates.without_object(
                conn, self.tables, after=after, limit=self._among.span, those=those
            )
            found = candidates.Among(rows, last, last is None)
        rows = found.rows
        if by_age and not those.but:  # the head of an object may be of another topic
            rows = self._heads_among(conn, chooser, rows)
        for row in rows:
            chooser.offer(row)
        return found

    def _heads_among(
        self, conn: Connection, chooser: heads.HeadChooser, rows: Sequence[Candidate]
    ) -> list[Candidate]:
        """Those that can run, and are the heads of their objects."""
        ids = [row.msg_id for row in rows if chooser.can_run(row)]
        return candidates.heads_of(conn, self.tables, ids)

    def _look_objects(self, conn: Connection, chooser: heads.HeadChooser, enough: int) -> bool:
        """Step the cursor; True if that ended a round."""
        those, by_age = self._those(chooser), self.tables.database.oldest_index
        if those is None:
            left = enough - len(chooser.own)
            round_over = self._cursor.step(conn, chooser, left, idle=self.idle)
            if not by_age and self._is_crowded(chooser, self._cursor.rows):
                self._end_is_known(conn)
            return round_over
        if by_age or (those.but and not self._crowded):
            return self._look_objects_among(conn, chooser, enough, those)
        self._look_at_found(conn, chooser, those)
        self._look_behind_end(conn, chooser, PAGE, those)
        if len(chooser.own) >= enough and self._turn % 8:  # else, so that none starves
            return False
        over = self._look_window_among(conn, chooser, WINDOW, enough, those)
        round_over = self._look_objects_among(conn, chooser, enough, those, rows=False) and over
        chooser.oldest_first()
        return round_over

    def _look_objects_among(
        self,
        conn: Connection,
        chooser: heads.HeadChooser,
        enough: int,
        those: Those,
        *,
        rows: bool = True,
    ) -> bool:
        """The cursor for some topics: several steps, past objects with heads of other topics. Where
        rows are read by age too, it pauses if it finds nothing. rows: see `ObjectCursor.step`."""
        begun = time.monotonic()
        if begun < self._cursor_at:
            return False
        by_age, before = self.tables.database.oldest_index, len(chooser.own)
        for _ in range(MOST_STEPS):
            over = self._cursor.step(
                *(conn, chooser, enough - before),
                idle=self.idle,
                busy=chooser.wanted.busy,
                those=those,
                rows=rows,
            )
            if not those.but:
                self._keep(chooser, self._cursor.rows)
            if over or len(chooser.own) > before:
                break
            if time.monotonic() - begun > PASSING_SECONDS:
                break
        if len(chooser.own) == before:
            now = time.monotonic()
            if by_age:
                self._cursor_at = now + min(READ_AGAIN * (now - begun), heads.LONGEST_REST_SECONDS)
            elif those.but and not over:
                self._cursor.found_nothing()
        return over
