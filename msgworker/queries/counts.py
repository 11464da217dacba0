"""How many messages are in each state, topic by topic, who works, how large the tables are, and
what was done in each step of the last hours."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db import clock
from msgworker.db.catalogue import file_size, row_estimate, table_size
from msgworker.db.types import beginning, bytewise, text_of
from msgworker.latency import RAN, WAITED, percentile
from msgworker.message import State, Status, topic_of, word_of
from msgworker.queries.instances import InstanceInfo, Life, TopicLimit, instances, topics
from msgworker.store import bounded, controls, history, jobs
from msgworker.store.bounded import Capped, Filter
from msgworker.store.controls import Pause, PausedJob
from msgworker.store.rows import running_ids
from msgworker.table.build import COUNTED, HISTORY, RAN_COUNTS, WAITED_COUNTS, own_tables
from msgworker.table.columns import Cols
from msgworker.table.tables import ONE, ZERO, Tables, lit

# --- How many messages are in each state.
#
# A small table is counted. In a large one each state is counted by its index, up to EXACT_UP_TO,
# and the number of finished ones comes from the database's statistics, so that the cost does not
# depend on the size. Each number says how exact it is.

EXACT_UP_TO = 20_000


class Exact(enum.StrEnum):
    """How good a number is."""

    EXACT = "exact"
    AT_LEAST = "at least"
    ABOUT = "about"


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages are in a state, and the age of the oldest in seconds (None = not known).

    exact: "at least": only so many were looked at; "about": from statistics, over all topics.
    at_most: what statistics leave beside those of the other states, of which not all were counted.
    acknowledged: how many of the dead ones are acknowledged, discarded or cancelled.
    hold_objects, hold_jobs: how many of the dead ones hold up their object (on_dead="block"), or a
    job that waits for them, acknowledged or not.
    """

    status: State
    topic: str | None
    count: int
    oldest_seconds: float | None
    exact: Exact = Exact.EXACT
    acknowledged: int = 0
    hold_objects: int = 0
    hold_jobs: int = 0
    at_most: bool = field(default=False, kw_only=True)

    @property
    def of_all(self) -> bool:
        """Whether it is of all topics together: the done ones of a large table, or 0 of a state of
        which not all rows were looked at."""
        of_done = self.status is State.DONE and self.exact is not Exact.EXACT
        return of_done or not self.count


def counts(conn: Connection, t: Tables, *, most: int = EXACT_UP_TO) -> list[Count]:
    """Messages by state and topic, states in the order of State; see the module about large tables.

    The DONE of a large table has no topic: it is an estimate from statistics for all topics, of all
    messages but those that were counted. So it is "at most" where one of the other states was cut,
    and at least 0 without statistics. Nor have new ones a topic of which none was found so far.
    """
    t = jobs.readable(conn, t)
    c = t.cols()
    if bounded.last_of(conn, t, after=bounded.LEAST, rows=most + 1) is None:
        # With an end, though there is none: else SQLite would sort the topics whole, however long.
        every = sa.select(*_facts(t, c)).where(*t.is_message(c)).limit(10 * most).subquery("w")
        return _sorted(_merged(_grouped(conn, t, every), Exact.EXACT))
    ids = running_ids(t)
    running = sa.select(*_facts(t, c)).select_from(ids.join(t.message, ids.c.i == c.msg_id))
    # The newest failed ones: what still has tries left is among them.
    failing = bounded.failed(t, c).query(t, _facts(t, c), [], end=None, limit=most, newest=True)
    found_by = [[(query.subquery("w"), False)] for query in (running, failing)]
    rows: list[Count] = []
    some_cut = False
    for parts in (*found_by, _new(conn, t, most)):
        found: list[Count] = []
        cut = False
        for part, is_cut in parts:
            some = list(_grouped(conn, t, part))
            cut |= is_cut or sum(one.count for one in some) >= most
            found += some
        if cut and not found:  # of the others what was found says how far it was counted
            found = [Count(State.NEW, None, 0, None)]
        rows += _merged(found, Exact.AT_LEAST if cut else Exact.EXACT)
        some_cut |= cut
    total = None if t.where else row_estimate(conn, t.message)
    if total is None:
        rows.append(Count(State.DONE, None, 0, None, Exact.AT_LEAST))
    else:
        done = max(0, total - sum(row.count for row in rows))
        rows.append(Count(State.DONE, None, done, None, Exact.ABOUT, at_most=some_cut))
    return _sorted(rows)


def _sorted(rows: Iterable[Count]) -> list[Count]:
    order = list(State)
    return sorted(rows, key=lambda row: (order.index(row.status), row.topic or ""))


_OF_DEAD = ("acknowledged", "hold_objects", "hold_jobs")


def _merged(rows: Iterable[Count], exact: Exact) -> Iterator[Count]:
    sums: dict[tuple[State, str | None], Count] = {}
    for row in rows:
        key = row.status, row.topic
        before = sums.get(key, Count(*key, 0, None))
        ages = [age for age in (before.oldest_seconds, row.oldest_seconds) if age is not None]
        sums[key] = Count(
            *key,
            before.count + row.count,
            max(ages, default=None),
            exact,
            *(getattr(before, name) + getattr(row, name) for name in _OF_DEAD),
        )
    yield from sums.values()


def _facts(t: Tables, c: Cols) -> list[ColumnElement[Any]]:
    left = sa.case((t.tries_left(c), ONE), else_=ZERO)
    topic = sa.null() if c.topic is None else bytewise(beginning(c.topic))
    created: Any = sa.null() if c.created_at is None else clock.real_instant(c.created_at)
    failed = sa.case((c.status == lit(Status.FAILED), left), else_=ZERO)
    of_dead = (
        ZERO if one is None else sa.case((one, ONE), else_=ZERO)
        for one in (bounded.acknowledged(t, c), *jobs.holds_up(t, c))
    )
    labelled = zip((c.status, failed, topic, created, *of_dead), "sltcaoj", strict=True)
    return [column.label(name) for column, name in labelled]


def _grouped(conn: Connection, t: Tables, rows: sa.Subquery) -> Iterator[Count]:
    w = rows.c
    has_age = t.has("created_at")
    age: Any = clock.seconds_since(sa.func.min(w.c)) if has_age else sa.null()
    keys = [w.s, w.l, *([w.t] if t.has("topic") else [])]
    query = sa.select(w.s, w.l, w.t if t.has("topic") else sa.null(), sa.func.count(), age)
    query = query.add_columns(*(sa.func.sum(one) for one in (w.a, w.o, w.j)))
    for status, left, topic, count, oldest, *sums in conn.execute(query.group_by(*keys)).all():
        word = word_of(status, 0 if left else t.spec.max_tries, t.spec.max_tries)
        oldest = None if oldest is None else float(oldest)
        of_dead = [int(one or 0) if word is State.DEAD else 0 for one in sums]
        yield Count(word, text_of(topic), int(count), oldest, Exact.EXACT, *of_dead)


_Parts = list[tuple[sa.Subquery, bool]]
"""Rows to count, and whether there may be more of them."""


def _new(conn: Connection, t: Tables, most: int) -> _Parts:
    """New rows: by age where an index says so, else from the lowest unfinished row on."""
    c = t.cols()
    is_new = t.within(c, c.status == lit(Status.NEW))
    if not t.database.oldest_index:
        found = bounded.first_open(conn, t)
        if found is None:
            return []
        start, all_seen = found
        last = bounded.last_of(conn, t, after=start - 1)
        where = [is_new, c.msg_id >= sa.literal(start, sa.BigInteger())]
        if last is not None:
            where.append(c.msg_id <= sa.literal(last, sa.BigInteger()))
        query = sa.select(*_facts(t, c)).where(*where).order_by(c.msg_id).limit(most)
        return [(query.subquery("w"), last is not None or not all_seen)]
    parts: _Parts = []
    for walk in bounded.walks(t, c, Filter((State.NEW,))):
        query = walk.hinted(t, sa.select(*_facts(t, c))).where(*walk.where, is_new)
        parts.append((query.order_by(*walk.order).limit(most).subquery("w"), False))
    return parts


# --- How many bytes the message table and the tables beside it take.


@dataclass(frozen=True, slots=True)
class TableSize:
    """table_bytes: of its rows; index_bytes: of its indexes; None = unknown, or it is not there."""

    name: str
    table_bytes: int | None
    index_bytes: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in bytes, the message table first.

    exact: "exact", or "about" where they are from statistics (MariaDB, MySQL). file_bytes: of the
    whole file on SQLite, with all its tables; None on a server.
    """

    tables: tuple[TableSize, ...]
    exact: Exact
    file_bytes: int | None

    @property
    def total_bytes(self) -> int | None:
        """Of the file, or of all tables whose size is known; None if none is."""
        known = [one.table_bytes for one in self.tables if one.table_bytes is not None]
        known += [one.index_bytes for one in self.tables if one.index_bytes is not None]
        return self.file_bytes if self.file_bytes is not None else sum(known) if known else None


def sizes(conn: Connection, t: Tables) -> Sizes:
    """A statement for each table on a server, none of which reads a table."""
    found = []
    for table in (t.message, *own_tables(t)):
        size = table_size(conn, table)
        found.append(TableSize(table.name, *(size or (None, None))))
    exact = Exact.EXACT if t.database.sizes_are_exact else Exact.ABOUT
    return Sizes(tuple(found), exact, file_size(conn))


# --- Everything at a glance: how many messages are in which state, topic by topic, and who works.
#
# All of it is bounded like `counts`: the numbers of a large table are capped.

NONE = Capped(0)
MOST = 10_000
"""Messages of a state are counted up to this number."""
NEWEST = 1_000
"""So many of the newest messages are looked at for the names of topics."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: how many of its messages are in each state, and what holds it back.

    counts: of the states in which messages of it were found; at least 0 of those that were not
    counted to their end. unacknowledged: of the dead ones, those that no operator has acknowledged,
    discarded or cancelled. hold_objects, hold_jobs: those that hold up their object, or a job,
    acknowledged or not. oldest_seconds: the age of the oldest one that is new; None if there is
    none, or its age is not known. handlers: live instances that have a handler for it. paused,
    limit: None if it is not.
    """

    topic: str
    counts: Mapping[State, Capped]
    oldest_seconds: float | None
    handlers: int
    paused: Pause | None = None
    limit: TopicLimit | None = None
    unacknowledged: Capped = NONE
    hold_objects: Capped = NONE
    hold_jobs: Capped = NONE

    def count(self, status: State | str) -> Capped:
        """How many of its messages are in a state."""
        return self.counts.get(State(status), Capped(0))


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts, topics and instances, read at `read_at` by the database's clock.

    counts: messages in each state; "done" of a large table is an estimate, or at most so many, and
    no topic has a share of it. topics: by name, all that were seen: in messages, in handlers of
    live instances, in pauses and limits. oldest_seconds: the age of the oldest new message. live,
    silent, dead: how many instances; a silent one is live, but misses its heartbeat or has stopped.
    paused_jobs: the newest first. unacknowledged, hold_objects, hold_jobs: of all topics.
    """

    read_at: datetime
    counts: Mapping[State, Capped]
    topics: tuple[TopicInfo, ...]
    oldest_seconds: float | None
    live: int
    silent: int
    dead: int
    paused_jobs: tuple[PausedJob, ...] = ()
    unacknowledged: Capped = NONE
    hold_objects: Capped = NONE
    hold_jobs: Capped = NONE

    @property
    def names_all(self) -> bool:
        """Whether all messages were counted, so no topic is missing."""
        return not any(one.more or one.about for one in self.counts.values())

    def count(self, status: State | str) -> Capped:
        """How many messages are in a state."""
        return self.counts.get(State(status), Capped(0))


def total(
    rows: Sequence[Count], word: State, of: Callable[[Count], int] = lambda one: one.count
) -> Capped:
    """How many messages these counts have in a state, or how many of them `of` counts."""
    chosen = [one for one in rows if one.status is word]
    numbers = (
        Capped(of(x), x.exact is Exact.AT_LEAST, x.exact is Exact.ABOUT, x.at_most) for x in chosen
    )
    return sum(numbers, NONE)


def _facts_of(rows: Sequence[Count], of_all: Sequence[Count] = ()) -> dict[str, Any]:
    """What counts say of all of their messages, as fields of `TopicInfo` and `Overview`. of_all:
    those of all topics; any topic may have more of a state that is cut there."""
    cut = [one for one in of_all if one.exact is Exact.AT_LEAST]
    rows = [*rows, *(Count(one.status, None, 0, None, one.exact) for one in cut)]
    words = dict.fromkeys(one.status for one in rows)
    ages = (one.oldest_seconds for one in rows if one.status is State.NEW)
    return {
        "counts": {word: total(rows, word) for word in words},
        "oldest_seconds": max((max(0.0, age) for age in ages if age is not None), default=None),
        "unacknowledged": total(rows, State.DEAD, lambda one: one.count - one.acknowledged),
        "hold_objects": total(rows, State.DEAD, lambda one: one.hold_objects),
        "hold_jobs": total(rows, State.DEAD, lambda one: one.hold_jobs),
    }


def overview(conn: Connection, t: Tables) -> Overview:
    """The present state of the table and of its instances."""
    who = [one for one in instances(conn, t) if one.other_table is None or one.running]
    rows = counts(conn, t, most=MOST)
    of_topic: defaultdict[str, list[Count]] = defaultdict(list)
    for one in rows:
        if not one.of_all:
            of_topic[topic_of(one.topic)].append(one)
    return Overview(
        read_at=clock.instant_ago(conn),
        topics=_topics(conn, t, who, rows, of_topic),
        live=sum(one.life is Life.LIVE for one in who),
        silent=sum(one.silent for one in who),
        dead=sum(one.life in (Life.DEAD, Life.TAKEN_OVER, Life.NO_LEASE) for one in who),
        paused_jobs=tuple(controls.paused_jobs(conn, t)),
        **_facts_of(rows),
    )


def _topics(
    conn: Connection,
    t: Tables,
    who: list[InstanceInfo],
    of_all: Sequence[Count],
    counted: Mapping[str, Sequence[Count]],
) -> tuple[TopicInfo, ...]:
    paused = {one.topic: one for one in controls.pauses(conn, t)}
    limit = {one.topic: one for one in topics(conn, t)}
    handled = {name for one in who if one.works for name in one.topics or ()}
    return tuple(
        TopicInfo(
            topic=name,
            handlers=sum(one.handles(name) for one in who),
            paused=paused.get(name),
            limit=limit.get(name),
            **_facts_of(counted.get(name, ()), of_all),
        )
        for name in sorted({*counted, *paused, *limit, *handled, *_newest(conn, t)})
    )


def _newest(conn: Connection, t: Tables) -> set[str]:
    """The topics of the newest messages: counting begins with the oldest and may not reach them."""
    if not t.has("topic"):
        return set()

    def build() -> sa.Select[tuple[str | None]]:
        c = t.cols()
        names = sa.select(beginning(c["topic"]).label("t"))
        if t.where:  # of as many rows, whoever's they are
            names = names.add_columns(sa.case((sa.and_(*t.is_message(c)), 1)).label("m"))
        rows = names.order_by(c.msg_id.desc()).limit(NEWEST).subquery("w")
        found = sa.select(rows.c.t).distinct()
        return found.where(rows.c.m.is_not(None)) if t.where else found

    found = conn.scalars(t.built("overview_newest", build))
    return {topic_of(text_of(name)) for name in found}


# --- The history: what was done in each step of a window, or of each topic, and how long it took.

Window = Literal["1h", "6h", "24h"]
WINDOWS: dict[Window, tuple[int, int]] = {"1h": (60, 60), "6h": (360, 300), "24h": (1440, 900)}
"""The windows: their minutes, and the seconds of a step."""
TIMED = 500
RUNS = (*COUNTED, "ran_ms", *RAN_COUNTS)
SUMMED = (*RUNS, *WAITED_COUNTS)
"""The columns that are added up: the sums take longer than reading the rows."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One step. at: its begin, UTC. done, retried, dead, postponed: messages by outcome; retried:
    failed tries with a further try, dead: cancelled ones too.

    busy_seconds: handlers have run, in all. ran_p50, ran_p95: seconds within which half, and 95 of
    100, handlers have ended, of a batch the share of a message: each the least that is known to be
    enough, of 0.001, 0.003, 0.01, 0.03 and so on to 300; 1000 = more than 300. waited_p50,
    waited_p95: the same from the sending of a message to its first start, or the first after a
    rerun, of 0.01, 0.03 and so on to 3600; 10800 = more than 3600. None if there was none.
    """

    at: datetime
    done: int = 0
    retried: int = 0
    dead: int = 0
    postponed: int = 0
    busy_seconds: float = 0.0
    ran_p50: float | None = None
    ran_p95: float | None = None
    waited_p50: float | None = None
    waited_p95: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What instances did in a window, up to now.

    points: one for each step of `step_seconds`, oldest first, the last one being the present step;
    a minute is written when it is over, within a third of the lease. recorded: False if the table
    of the history is missing; then there are no points.
    """

    window: str
    topic: str | None
    step_seconds: int
    recorded: bool
    points: list[HistoryPoint]


@dataclass(frozen=True, slots=True)
class TopicTimes:
    """What was done of one topic in a window; the fields are those of a `HistoryPoint`."""

    topic: str
    done: int = 0
    retried: int = 0
    dead: int = 0
    postponed: int = 0
    busy_seconds: float = 0.0
    ran_p50: float | None = None
    ran_p95: float | None = None
    waited_p50: float | None = None
    waited_p95: float | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """The topics with work in a window up to now, those first on which handlers have spent the
    most time, 500 at most. recorded: False if the table of the history is missing."""

    window: str
    recorded: bool
    topics: list[TopicTimes]


def timings(conn: Connection, t: Tables, *, window: Window, waits: bool = True) -> Timings:
    """The times of each topic in a window of `WINDOWS`, in one read of the history. waits: False
    leaves `waited_p50` and `waited_p95` None."""
    if not HISTORY.is_there(t):
        return Timings(window, recorded=False, topics=[])
    c = HISTORY.of(t).c
    names = SUMMED if waits else RUNS

    def build() -> sa.Select[Any]:
        query = sa.select(c.topic, *(_summed(t, c[name]) for name in names))
        since = clock.now_plus(sa.bindparam("mw_since", type_=sa.Float()))
        recent = sa.and_(c.minute_at > since, c.minute_at <= clock.now_plus(sa.literal(0.0)))
        query = query.where(c.table_name == t.label, recent)
        query = query.group_by(c.topic)
        return query.order_by(_summed(t, c.ran_ms).desc(), c.topic).limit(TIMED)

    minutes, _ = WINDOWS[window]
    rows = conn.execute(t.built(("timings", waits), build), {"mw_since": -60.0 * minutes})
    found = [TopicTimes(str(row[0]), **_figures(row[1:])) for row in rows]
    return Timings(window, recorded=True, topics=found)


def history_of(conn: Connection, t: Tables, *, window: Window, topic: str | None) -> History:
    """The history of a window of `WINDOWS`; topic: only of this one."""
    minutes, step = WINDOWS[window]
    if not HISTORY.is_there(t):
        return History(window, topic, step, recorded=False, points=[])
    last = int(history.database_seconds(conn, t) // step)
    first = last - minutes * 60 // step + 1
    begin = datetime.fromtimestamp(first * step, UTC)
    sums = {row[0]: row[1:] for row in _by_step(conn, t, begin, step, topic)}
    points = [  # none ahead of the clock, which may have been put back
        HistoryPoint(begin + timedelta(seconds=i * step), **_figures(sums.get(first + i, ())))
        for i in range(last + 1 - first)
    ]
    return History(window, topic, step, recorded=True, points=points)


def _by_step(
    conn: Connection, t: Tables, begin: datetime, step: int, topic: str | None
) -> Iterable[sa.Row[Any]]:
    """The sums of each step of so many seconds from `begin` on: a range of the primary key."""
    table = HISTORY.of(t)
    c = table.c

    def build() -> sa.Select[Any]:
        place = clock.step_of(c.minute_at, lit(step))
        query = sa.select(place, *(_summed(t, c[name]) for name in SUMMED))
        since = sa.bindparam("mw_begin", type_=clock.UtcDateTime())
        query = query.where(c.table_name == t.label, c.minute_at >= since)
        if topic is not None:
            query = query.where(c.topic == sa.bindparam("mw_topic", type_=c.topic.type))
        return query.group_by(place)

    params: dict[str, Any] = {"mw_begin": begin}
    if topic is not None:
        params["mw_topic"] = topic
    return conn.execute(t.built(("history", step, topic is None), build), params)


def _summed(t: Tables, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Of whole numbers; as floating-point ones, exact up to 2**53, where that is faster."""
    return sa.func.sum(column + sa.literal_column("0e0") if t.database.slow_sums else column)


def _figures(sums: Sequence[Any]) -> dict[str, Any]:
    """The fields of a `HistoryPoint`. sums: of `SUMMED`, or of `RUNS`; () = there are none."""
    numbers = dict.fromkeys(SUMMED, 0) | dict(zip(SUMMED, map(int, sums), strict=False))
    ran = [numbers[name] for name in RAN_COUNTS]
    waited = [numbers[name] for name in WAITED_COUNTS]
    return {name: numbers[name] for name in COUNTED} | {
        "busy_seconds": numbers["ran_ms"] / 1000,
        "ran_p50": percentile(RAN, ran, 0.5),
        "ran_p95": percentile(RAN, ran, 0.95),
        "waited_p50": percentile(WAITED, waited, 0.5),
        "waited_p95": percentile(WAITED, waited, 0.95),
    }
