"""What operators can read, one method each; nothing is changed.

Each read has a bounded cost on any table: without a suitable index it reads a bounded part, and the
result says if it is not complete (`Found.complete`, `Count.exact`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, Unpack
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.config import nearest, number, whole
from msgworker.db import connections
from msgworker.errors import ConfigError, TookTooLong
from msgworker.message import State, StateName
from msgworker.payload import is_text
from msgworker.queries import messages
from msgworker.schedules import Schedule
from msgworker.store.bounded import LEAST, MOST, Filter, Found, object_asked
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables
from msgworker.tracing import NoTracer

if TYPE_CHECKING:  # each method imports what it reads with
    from msgworker.doctor import Finding
    from msgworker.queries.counts import Count, History, Overview, Sizes, Timings, Window
    from msgworker.queries.explain import Explanation
    from msgworker.queries.failures import Failures
    from msgworker.queries.instances import InstanceInfo, TopicLimit
    from msgworker.queries.lanes import LaneInfo, LanePlace
    from msgworker.queries.messages import MessageInfo
    from msgworker.store.items import ItemInfo, ItemState

MAX_LIMIT = 10_000
MAX_GROUPS = 500
MAX_PAGE = 200
MOST_SECONDS = 3600.0
AboutDead = Callable[[Connection, Tables, list[int], str], None]
C = TypeVar("C", bound="Looks")
R = TypeVar("R")
P = ParamSpec("P")

# --- The time of reads: the database ends what takes longer.


class Clock:
    """The time of a read of many statements; it runs from the moment it is made. seconds: None =
    without end. enough: after so many it begins no further part, None = it does."""

    def __init__(self, seconds: float | None, enough: float | None = None) -> None:
        self.seconds = seconds
        self.enough = enough
        self._begun = time.monotonic()

    @property
    def rest(self) -> float | None:
        """What is left of `enough`."""
        return None if self.enough is None else self.enough - (time.monotonic() - self._begun)

    def check(self) -> float | None:
        """What is left of the time; raises TookTooLong if it is up."""
        if self.seconds is None:
            return None
        left = self.seconds - (time.monotonic() - self._begun)
        if left <= 0:
            raise TookTooLong(self.seconds)
        return max(0.001, left)

    @contextmanager
    def reading(self, engine: sa.Engine) -> Iterator[Connection]:
        """A connection whose statements end with the time; raises TookTooLong."""
        with connections.reading(engine, self.check(), self.seconds) as conn:
            yield conn


ENDLESS = Clock(None)


# --- What is asked for, checked before anything is read.


class Filters(TypedDict, total=False):
    """Filters of messages, of which all hold: `status`, `topic` and `object_id` exactly; `error`, a
    part of the last error; `since`, created at or after this instant; `job`, of this job;
    `acknowledged`, of dead ones those that an operator has acknowledged, discarded or cancelled, or
    the others. None, and what is left out, = all."""

    status: StateName | State | None
    topic: str | None
    object_id: Any
    error: str | None
    since: datetime | None
    job: int | None
    acknowledged: bool | None


def options_of(name: str, given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The keywords of a call; raises TypeError for one that the TypedDict `kind` has not."""
    if unknown := sorted(given.keys() - kind.__annotations__.keys()):
        raise TypeError(
            f"{name}() got an unexpected keyword argument {unknown[0]!r}; "
            f"{nearest(unknown[0], kind.__annotations__)}"
        )
    return dict(given)


def filter_of(words: tuple[State, ...], **given: Any) -> Filter:
    """A filter of checked values; raises ConfigError. Of a group are messages that have failed."""
    if given.get("fingerprint") is not None:
        words = tuple(one for one in words if one in (State.FAILED, State.DEAD)) or words
    if (known := given.get("acknowledged")) is not None:
        if not isinstance(known, bool):
            raise ConfigError(f"acknowledged is True or False, got {known!r:.60}")
        if State.DEAD not in words:
            raise ConfigError(
                f"acknowledged is about dead messages, not about those that are {words[0]}"
            )
        words = (State.DEAD,)
    for name in ("error", "fingerprint"):
        check_text(name, given.get(name))
    check_topic(given.get("topic"))
    check_since(given.get("since"))
    for name, least in (("job", 1), ("up_to", LEAST)):
        if given.get(name) is not None:
            whole(name, given[name], least, MOST)
    value = given.get("object_id")
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal | UUID | None):
        raise ConfigError(f"object_id must be a text or a whole number, got {value!r:.80}")
    if isinstance(value, int) and not LEAST <= value <= MOST:
        raise ConfigError(f"object_id has at most 64 bits, got {value!r:.60}")
    if isinstance(value, str) and value:
        check_text("object_id", value)
    return Filter(words, **given)


def check_text(name: str, value: Any) -> None:
    """Raise ConfigError for what is neither None nor a text, for an empty one, and for one that no
    database has."""
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{name} must be a text, got {value!r:.80}")
    if value is not None and not is_text(value):
        raise ConfigError(
            f"{name} {value!r:.80} holds half of a surrogate pair, or a byte that is not UTF-8"
        )


def check_topic(value: Any) -> None:
    """The same for a topic, which may be empty: rows of others may say so."""
    if value != "":
        check_text("topic", value)


def check_since(since: Any) -> None:
    """Raise ConfigError for what is neither None nor an aware instant."""
    if since is None:
        return
    if not isinstance(since, datetime) or since.tzinfo is None:
        raise ConfigError(f"since must be an aware datetime, got {since!r:.80}")
    try:
        since.astimezone(UTC)
    except OverflowError:
        raise ConfigError(
            f"since must be within the years 1 to 9999 in UTC, got {since.isoformat()}"
        ) from None


def word(status: StateName | State | None, allowed: tuple[State, ...], why: str) -> State | None:
    """An allowed state; raises ConfigError with `why` for others."""
    if status is None:
        return None
    try:
        found = State(status)
    except ValueError:
        words = ", ".join(w.value for w in State)
        raise ConfigError(f"status must be one of {words}; got {status!r:.60}") from None
    if found not in allowed:
        raise ConfigError(f"messages that are {found} {why}")
    return found


def _wanted(name: str, filters: Any, fingerprint: str | None) -> Filter:
    """The filter of a list, of this group of failures only; raises ConfigError and TypeError."""
    allowed = tuple(State) if fingerprint is None else (State.FAILED, State.DEAD)
    chosen = options_of(name, filters, Filters)
    one = word(chosen.pop("status", None), allowed, "are in no group of failures")
    return filter_of(allowed if one is None else (one,), **chosen, fingerprint=fingerprint)


def _check_window(window: str) -> None:
    from msgworker.queries.counts import WINDOWS

    if not isinstance(window, str) or window not in WINDOWS:
        raise ConfigError(f"window must be one of {', '.join(WINDOWS)}; got {window!r:.80}")


# --- The reads.


class Looks:
    """The reads, and what all calls of ops share: the database, and its tables, which are read when
    first needed.

    names_rule: whether max_tries and on_dead of `spec` were given explicitly. declared: the
    schedules of the App; None if it says nothing of that. wants: rights on the messages that its
    handlers and schedules need, and for what. history_seconds: how long the history for charts is
    kept. tracer: makes spans for what is sent, or not. send: that of the App. about_dead: sends
    what `on_dead` of its handlers says about messages that died as they were given back.
    """

    def __init__(
        self,
        engine: sa.Engine,
        tables: Callable[[float | None], Tables],
        spec: MessageTable,
        *,
        names_rule: bool,
        declared: Callable[[], Sequence[Schedule] | None],
        wants: Callable[[], Mapping[str, str]],
        history_seconds: float,
        tracer: NoTracer,
        send: Callable[..., Any],
        about_dead: AboutDead,
    ) -> None:
        self._engine = engine
        self.read_tables = tables
        self._spec = spec
        self._names_rule = names_rule
        self._declared = declared
        self._wants = wants
        self._history_seconds = history_seconds
        self._tracer = tracer
        self._send = send
        self._about_dead = about_dead
        self._found: Tables | None = None  # newer than those of the App
        self._seconds: float | None = None
        self._counting: float | None = None

    def within(self: C, seconds: float, *, counting: float | None = None) -> C:
        """The same calls, whose reads the database ends after so many seconds (0.001 to 3,600).

        Such a read raises TookTooLong. Each statement has this time; on SQLite the whole read has.
        To connect is not in it: that ends by the timeout of the driver (`connect_timeout`).
        A dry run has it in all, and returns what it counted (`Repaired.complete`). So has
        what a write counts for `expected_count`; the write itself has no deadline. counting: a dry
        run by a filter stops after the part in which so many seconds have passed: parts are small
        at first, so that a page can show it at once. Raises ConfigError.
        """
        other = copy.copy(self)
        other._seconds = number("seconds", seconds, 0.001, MOST_SECONDS)
        if counting is not None:
            other._counting = number("counting", counting, 0.001, MOST_SECONDS)
        return other

    @property
    def _tables(self) -> Tables:
        return self._found or self.read_tables(self._seconds)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Connection, Tables]]:
        """A connection to read with, and the tables. Those come first: their rule may be read again
        on a connection of its own, and a pool may have only one."""
        tables = self._tables
        with Clock(self._seconds).reading(self._engine) as conn:
            yield conn, tables

    def _read(
        self,
        look: Callable[Concatenate[Connection, Tables, P], R],
        *args: P.args,
        **given: P.kwargs,
    ) -> R:
        """What a function of queries finds."""
        with self._reading() as (conn, t):
            return look(conn, t, *args, **given)

    def counts(self) -> list[Count]:
        """Counts of messages by state and topic, with the age of the oldest.

        Exact on a small table; on a large one `Count.exact` says "at least" or "about".
        """
        from msgworker.queries import counts

        return self._read(counts.counts)

    def overview(self) -> Overview:
        """Counts up to 10,000 by state and by topic, the oldest message of each topic, pauses,
        limits, and how many instances are alive; at the same cost on any table."""
        from msgworker.queries import counts

        return self._read(counts.overview)

    def probe(self) -> bool:
        """Whether the database answers, the tables are there, and code of this version may work on
        them now; True, or raises DatabaseUnavailable or SchemaError."""
        from msgworker.schema import rule

        with self._reading() as (conn, t):
            rule.read(conn, t)
            rule.check_version(conn, t)
        return True

    def unfinished(self) -> int:
        """How many messages are unfinished: `left` in the report of a drain."""
        return self._read(messages.unfinished)

    def find(
        self,
        *,
        fingerprint: str | None = None,
        limit: int = 50,
        after: int | None = None,
        **filters: Unpack[Filters],
    ) -> Found[MessageInfo]:
        """Messages by filter, lowest msg_id first; `after` = `next_after` of the page before.

        error: a part of the last error. since: created at or after this instant. job: those of a
        job. acknowledged: of dead ones, those that are, or are not; None = both. fingerprint: of a
        group of `failures`. A list, with
        `next_after` (None = no more) and `complete` (False = only a part was
        searched). Raises ConfigError.
        """
        whole("limit", limit, 1, MAX_LIMIT)
        if after is not None:
            whole("after", after, LEAST, MOST)
        wanted = self._with_object(_wanted("find", filters, fingerprint))
        if fingerprint is not None:
            from msgworker.queries import pages

            return self._read(pages.of_group, wanted, newest=False, limit=limit, after=after)
        with self._reading() as (conn, t):
            found = messages.find(conn, t, wanted, limit=limit, after=after)
            found[:] = messages.with_past(conn, t, found)
        return found

    def messages(
        self,
        *,
        fingerprint: str | None = None,
        newest: bool = True,
        limit: int = 50,
        after: str | None = None,
        **filters: Unpack[Filters],
    ) -> Found[MessageInfo]:
        """A page of at most 200 messages by filter, newest or oldest first, without payloads.

        The filters are those of `find`; fingerprint: of a group of `failures`. after: `next_after`
        of the page before, an opaque text. A list, with `next_after` (None = no more) and
        `complete` (False = it stopped after a bounded part of the table; there may be more behind
        `next_after`, also if this page is short or empty). Messages of one object: the unfinished
        ones first; new ones that wait for an instant: after the others, the next one first; done
        ones behind a large backlog: before those that stand among it. Raises ConfigError.
        """
        whole("limit", limit, 1, MAX_PAGE)
        wanted = self._with_object(_wanted("messages", filters, fingerprint))
        from msgworker.queries import pages

        return self._read(pages.page, wanted, newest=newest, limit=limit, after=after)

    def object_id(self, text: Any) -> Any:
        """An object_id that was given, as a text or otherwise, as the column of the table has it;
        raises ConfigError for what is no value of it."""
        with self._reading() as (conn, t):
            try:
                return object_asked(conn, t, text)
            except ValueError as error:
                why = f"{str(text)!r:.80} is no object_id of table {t.spec.name}: {error}"
                raise ConfigError(why) from None

    def _with_object(self, wanted: Filter) -> Filter:
        """The filter with its object as the column has it; raises ConfigError."""
        if wanted.object_id is None:
            return wanted
        return replace(wanted, object_id=self.object_id(wanted.object_id))

    def place(self, msg_id: int) -> LanePlace | None:
        """Where a message stands among the unfinished ones of its object, and how many wait behind
        it, counted up to 1,000. None if it has no object, has ended, or does not exist."""
        whole("msg_id", msg_id, LEAST, MOST)
        from msgworker.queries import lanes

        return self._read(lanes.place, msg_id)

    def show(self, msg_id: int, *, items: int = 20) -> MessageInfo | None:
        """One message with its payload, its failed tries with their tracebacks, and the items of
        its fan-outs: the counts, and the first `items` (0 to 10,000), failed ones before done ones.
        None if there is no such message."""
        whole("msg_id", msg_id, LEAST, MOST)
        whole("items", items, 0, MAX_LIMIT)
        from msgworker.store import controls
        from msgworker.store import items as fan_outs

        with self._reading() as (conn, t):
            found = messages.show(conn, t, msg_id)
            if found is None:
                return None
            found = replace(found, items=fan_outs.shown(conn, t, msg_id, limit=items))
            found = replace(found, cancel=controls.request_of(conn, t, msg_id))
            return messages.with_past(conn, t, [found])[0]

    def items(
        self,
        msg_id: int,
        *,
        state: Literal["done", "failed"] | ItemState | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Found[ItemInfo]:
        """The items of a message's fan-outs that have ended, by key; `after` = `next_after` of the
        page before. state: "done" or "failed"; None = both. Raises ConfigError."""
        whole("msg_id", msg_id, LEAST, MOST)
        whole("limit", limit, 1, MAX_LIMIT)
        if after is not None and not isinstance(after, str):
            raise ConfigError(f"after must be the key of an item, got {after!r:.80}")
        from msgworker.store import items

        try:
            chosen = None if state is None else items.ItemState(state)
        except ValueError:
            raise ConfigError(f'state must be "done" or "failed", got {state!r:.80}') from None
        return self._read(items.find, msg_id, state=chosen, limit=limit, after=after)

    def explain(self, msg_id: int) -> Explanation | None:
        """Why a message is not running, None if there is none."""
        whole("msg_id", msg_id, LEAST, MOST)
        from msgworker.queries import explain

        return self._read(explain.explain, msg_id)

    def failures(
        self,
        *,
        topic: str | None = None,
        since: datetime | None = None,
        job: int | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Found[Failures]:
        """Dead and failing messages grouped by error, largest group first, without what an operator
        has acknowledged, discarded or cancelled; their members are `messages(fingerprint=...)`.

        topic, job: messages of this topic, or job, only. since: those whose last try ended at or
        after this instant. Reads the newest 5,000 failed messages, of a job its own: `complete`
        says whether these are all.
        after: `next_after` of the page before. Raises ConfigError.
        """
        whole("limit", limit, 1, MAX_GROUPS)
        filter_of((), topic=topic, since=since, job=job)
        chosen: dict[str, Any] = {"topic": topic, "since": since, "job": job, "after": after}
        from msgworker.queries import failures

        return self._read(failures.failures, limit=limit, **chosen)

    def lanes(
        self,
        *,
        by: Literal["behind", "blocked", "object"] = "behind",
        limit: int = 50,
        after: str | None = None,
    ) -> Found[LaneInfo]:
        """Objects that wait: head, its state, how many messages behind it, and why it does not run.

        by: "behind", the longest first, one page; "blocked", also one page, first those whose head
        has no handler, is dead, is paused or waits for a limit, each reason with its share: of
        those chosen by "behind", and of the first 10,000 waiting messages; or "object", in the
        order of their ids, in pages: `after` = `next_after` of the page before. Raises ConfigError.
        """
        whole("limit", limit, 1, MAX_GROUPS)
        if by not in ("behind", "blocked", "object"):
            raise ConfigError(f'by must be "behind", "blocked" or "object", got {by!r:.80}')
        if by != "object" and after is not None:
            raise ConfigError('lanes have pages only by="object"')
        from msgworker.queries import lanes

        if by == "object":
            return self._read(lanes.by_object, limit=limit, after=after)
        return self._read(lanes.lanes, limit=limit, blocked=by == "blocked")

    def instances(self) -> list[InstanceInfo]:
        """Live instances, since when, with how many messages; then dead and foreign ones."""
        from msgworker.queries import instances

        return self._read(instances.instances)

    def limits(self) -> list[TopicLimit]:
        """The topics with max_running or rate, by name: what runs, who has it, and when the next
        may start."""
        from msgworker.queries import instances

        return self._read(instances.topics)

    def history(self, window: Window = "1h", *, topic: str | None = None) -> History:
        """What instances did in the last hour by minute ("1h"), in 6 hours by 5 minutes ("6h"), or
        in 24 hours by quarters of an hour ("24h"): outcomes, p50 and p95. topic: only of this one.

        Read from a table that instances write each minute; `History.recorded` says whether it is
        there. Raises ConfigError.
        """
        _check_window(window)
        check_topic(topic)
        from msgworker.queries import counts

        return self._read(counts.history_of, window=window, topic=topic)

    def timings(self, window: Window = "1h", *, waits: bool = True) -> Timings:
        """What was done of each topic in the last hour ("1h"), 6 hours ("6h") or 24 hours ("24h"),
        and how long its handlers ran and its messages waited. waits: False leaves the waits out,
        which takes a quarter less time. Raises ConfigError."""
        _check_window(window)
        from msgworker.queries import counts

        return self._read(counts.timings, window=window, waits=bool(waits))

    def sizes(self) -> Sizes:
        """The bytes of the message table, of the tables beside it, and of their indexes.

        On PostgreSQL with all partitions; on MariaDB and MySQL from statistics ("about"); on Oracle
        of the login's own tables; on SQLite only of the whole file.
        """
        from msgworker.queries import counts

        return self._read(counts.sizes)

    def doctor(self) -> list[Finding]:
        """Compare the live schema, rows and server with what is needed; changes nothing.

        Works on a missing or broken schema, too. With a deadline (`within`), the checks that are
        not over by then are named in a finding.
        """
        from msgworker import doctor

        return doctor.examine(
            self._engine,
            self._spec,
            names_rule=self._names_rule,
            declared=self._declared(),
            wants=self._wants(),
            traced=self._tracer.on,
            seconds=self._seconds,
        )
