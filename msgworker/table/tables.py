"""The existing columns and the predicates of the protocol, which all statements are made of.

One file, because the predicates are made of each other.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, FromClause
from sqlalchemy.types import TypeEngine

from msgworker.db.catalogue import Policies
from msgworker.db.clock import Instants, has_come, now, now_plus, written
from msgworker.db.database import Database
from msgworker.db.types import AnyText, ColumnLimit, KeyText, in_json, is_own_enum
from msgworker.message import Status, ends_at
from msgworker.payload import fitting
from msgworker.table import columns
from msgworker.table.spec import MessageTable, Where, one_of

ONE: ColumnElement[int] = sa.literal_column("1")
ZERO: ColumnElement[int] = sa.literal_column("0")


def lit(number: int) -> ColumnElement[int]:
    """A number of ours, such as a Status, as a literal in the SQL text."""
    return sa.literal_column(str(int(number)), sa.Integer())


def text_lit(text: str) -> ColumnElement[str]:
    """One of our own constants as a literal in the SQL text."""
    return sa.literal(text, sa.String(), literal_execute=True)


def generated(c: columns.Cols, name: str) -> ColumnElement[Any]:
    """One of our generated columns, which some databases need for indexes, of the source of `c`."""
    source: FromClause = c.msg_id.table
    found: ColumnElement[Any] = source.c[name]
    return found


def index_key(
    t: Tables, c: columns.Cols, plain: ColumnElement[Any], hidden: str, case: ColumnElement[Any]
) -> ColumnElement[Any]:
    """The key of an index: the `plain` column where an index can be partial; else a CASE, which is
    NULL for all other rows, in the generated column `hidden` or of its own."""
    if t.database.partial_indexes:
        return plain
    return generated(c, hidden) if t.database.case_index == "column" else case


# --- Priorities: the predicates of rows that have one, and the index by which these are found.
#
# The index `urgent` has the rows with a priority that may be claimed and wait for no instant, by
# priority and age. It is made only if the table has the column, and holds no other row: messages
# without a priority cost nothing. A row leaves it when it is flagged.


def prioritized(t: Tables) -> bool:
    """Whether the table has the column of priorities and its index."""
    return t.has("priority") and t.has_index(columns.URGENT)


def priority_of(c: columns.Cols) -> ColumnElement[Any]:
    """The priority of a row; what is none counts as 0."""
    return sa.case((_has_priority(c), c.priority), else_=ZERO)


def rank_of(t: Tables, c: columns.Cols) -> ColumnElement[Any]:
    """The priority, negated, so that the highest comes first; as in the index, where its key is a
    CASE."""
    hidden = columns.URGENT_RANK + t.spec.part + t.spec.rule
    return index_key(t, c, -c["priority"], hidden, urgent_rank(t, c))


def urgent_rank(t: Tables, c: columns.Cols) -> ColumnElement[Any]:
    """`rank_of` as a CASE: NULL for all rows that are not in the index."""
    return sa.case((_urgent(t, c), -c["priority"]))


def urgent_order(t: Tables, c: columns.Cols) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """The keys of the index `urgent`."""
    if t.database.partial_indexes:  # of columns alone: tools do not read indexes on expressions
        return c["priority"].desc(), c.msg_id
    return rank_of(t, c), _msg_id(t, c)


def urgent_behind(
    t: Tables, c: columns.Cols, rank: ColumnElement[int], msg_id: ColumnElement[int]
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """The rows behind this one in the order of the index `urgent`."""
    own = _msg_id(t, c)
    if t.database.partial_indexes:
        priority = ZERO - rank
        return c["priority"] <= priority, sa.or_(c["priority"] < priority, own > msg_id)
    key = rank_of(t, c)
    return key >= rank, sa.or_(key > rank, own > msg_id)


def urgent_rows(t: Tables, c: columns.Cols) -> ColumnElement[bool]:
    """The rows of the index `urgent`, as a query by it selects them."""
    if not t.database.partial_indexes:
        return rank_of(t, c).is_not(None)
    # Written in this form, no planner uses the indexes of open rows for it.
    return sa.case((_urgent(t, c), ONE), else_=ZERO) == ONE


def _msg_id(t: Tables, c: columns.Cols) -> ColumnElement[int]:
    """A CASE too where the rank is one, because an entry of only NULLs is not in an index."""
    return sa.case((_urgent(t, c), c.msg_id)) if t.database.case_index == "function" else c.msg_id


def _urgent(t: Tables, c: columns.Cols) -> ColumnElement[bool]:
    # As `claimable`, but in the words of the indexes that are there: a query must repeat them.
    free = sa.or_(
        c.status == lit(Status.NEW), sa.and_(c.status == lit(Status.FAILED), t.tries_left(c))
    )
    waits = [] if c.available_at is None else [c.available_at.is_(None)]
    return t.within(c, sa.and_(free, _has_priority(c), *waits))


def _has_priority(c: columns.Cols) -> ColumnElement[bool]:
    """Between two numbers, because a text and NaN are greater than any."""
    return c["priority"].between(ONE, lit(columns.MOST_PRIORITY))


# --- Unique keys: which rows hold theirs, and the unique index that enforces it for all producers.
#
# The index `unique` has the keys that count: of rows that have not ended, and of those that keep
# theirs. A row without a key has no entry where an index can be partial, or of a function. The
# index asks nothing of tries, so it is the same under every rule of the table: whatever ends a
# message writes `finished_at`. A row enters the index when it is sent or rerun, and never by a
# claim or a settle, which therefore cannot violate it.

KEY_COLUMNS = ("unique_key", "unique_kept", "finished_at")


def unique_index_name(t: Tables) -> str:
    return t.spec.index_name(columns.UNIQUE)


def enforces_keys(t: Tables) -> bool:
    """Whether the table has the columns of keys and their index."""
    return takes_keys(t) and t.has_index(columns.UNIQUE)


def takes_keys(t: Tables) -> bool:
    """Whether the table has the columns of keys, each of use with the others only, and can have
    their index."""
    return not t.database.partitioned and all(map(t.has, KEY_COLUMNS))


def key_counts(t: Tables, c: columns.Cols) -> ColumnElement[bool]:
    """The row holds its key, if it has one: the predicate of the index."""
    running_or_new = c.status.in_([lit(Status.NEW), lit(Status.PROCESSING)])
    to_be_tried = sa.and_(c.status == lit(Status.FAILED), c["finished_at"].is_(None))
    held = sa.or_(c["unique_kept"] == ONE, running_or_new, to_be_tried)
    return t.within(c, sa.and_(c["unique_key"].is_not(None), held))


def held_key(t: Tables, c: columns.Cols) -> ColumnElement[Any]:
    """The key of a row that holds it, as in the index."""
    held = sa.case((key_counts(t, c), c["unique_key"]))
    return index_key(t, c, c["unique_key"], columns.HELD_KEY + t.spec.part, held)


def holds_key(t: Tables, c: columns.Cols, key: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """It is the row that holds this key."""
    mine = held_key(t, c) == key
    return [mine, key_counts(t, c)] if t.database.partial_indexes else [mine]


# --- Jobs: the messages of one, by status, for its progress and its end.
#
# The index `job` has every message that belongs to a job, and no other one where an index can be
# partial, or of a function. So a job's count is read from its own entries, and whether any of its
# messages is unfinished is one probe for each status. It asks nothing of the rule of the table.


def by_job(t: Tables) -> bool:
    """Whether the table has the column of jobs and their index."""
    return t.has("job_id") and t.has_index(columns.JOB)


def job_status(t: Tables, c: columns.Cols) -> ColumnElement[int]:
    """The status of a message that belongs to a job, as in the index."""
    return index_key(t, c, c.status, columns.JOB_STATUS + t.spec.part, if_of_a_job(t, c, c.status))


def job_msg_id(t: Tables, c: columns.Cols) -> ColumnElement[int]:
    """The msg_id of a message that belongs to a job, by which the index has those of a status."""
    return if_of_a_job(t, c, c.msg_id) if t.database.case_index == "function" else c.msg_id


def of_a_job(t: Tables, c: columns.Cols) -> ColumnElement[bool]:
    """It belongs to a job: the predicate of the index."""
    return t.within(c, c["job_id"].is_not(None))


def if_of_a_job(t: Tables, c: columns.Cols, value: ColumnElement[int]) -> ColumnElement[int]:
    """The value, NULL for all rows that are not in the index."""
    return sa.case((of_a_job(t, c), value))


# --- The base of all statements: the existing columns, and the predicates of the protocol.

R = TypeVar("R")
AnyOrNone = TypeVar("AnyOrNone", str, str | None)
Entries = tuple[columns.Cols, str, ColumnElement[bool]]
"""Rows as an index has them: the columns, the suffix of its name, and the predicate."""


@dataclass(frozen=True, eq=False)
class Tables(ABC):
    """The tables for one database, the predicates of the protocol, and the statements built."""

    spec: MessageTable
    database: Database
    message: sa.Table
    lease: sa.Table
    item: sa.Table
    failed_try: sa.Table
    own: dict[str, sa.Table]  # our tables beside it, by name
    names: dict[str, str]  # role -> column name, of the existing columns
    indexes: frozenset[str] | None = None  # existing ones, lower case; None = all of ours
    unfilled: tuple[str, ...] = ()  # columns of the user's that take no NULL and have no default
    no_null: tuple[str, ...] = ()  # of object_id and payload, what each message must have
    # An INSERT must name the priority: its column takes no NULL and has no default. And what of the
    # state it must name, because the column has no default 0.
    says_priority: bool = False
    says: tuple[str, ...] = ("status", "error_try_times")
    missing: frozenset[str] = frozenset()  # tables of ours, without which instances work
    id_is_key: bool = True  # `msg_id` is the primary key, not only unique
    # Columns of our own tables, as table.column, that a later version has added, and are not there:
    # their data is not written.
    lacking: frozenset[str] = frozenset()
    # How objects are compared if the generated columns have another collation than the column of
    # the ids; None = by that. fold: how different ids may then be equal, see `db.folded`.
    key_collation: str | None = None
    fold: str | None = None
    # Why no instance starts on this table, with the statements that fix it. doubtful: only a trial
    # shows whether messages get ids, and are seen by this login.
    unfit: str = ""
    doubtful: bool = False
    counts_ids: bool = True  # by the table's counter or identity; no trigger, sequence or producer
    reuses_ids: bool = False  # the id of a deleted last row is given to the next one
    max_error: int = columns.MAX_ERROR  # how many characters of an error are stored
    error_codec: str = ""  # see `error_text`
    own_codec: str = ""  # see `own_text`
    instants: Instants = field(default_factory=Instants)  # the range of `available_at`
    # The triggers and rules that run when rows are changed or deleted, and may set back what is
    # written: then the rows are read again (`rows.check_written`). "" = none that this login sees.
    on_update: str = ""
    on_delete: str = ""
    # Of row-level security: which rows this login sees and changes, and what they let it do; None =
    # there are none. own_policies: the same of the tables that instances need beside it.
    policies: tuple[str, str] | None = None
    own_policies: tuple[Policies, ...] = ()
    # Sizes of columns that a producer fills, where they are less than what may be sent.
    column_limits: tuple[ColumnLimit, ...] = ()
    id_types: tuple[type, ...] = (object,)  # of ids of objects that their column takes as they are
    max_headers: int = 0  # 0 = neither read nor written: tracing is off, or there is no column
    asks_jobs: bool = False  # a job is paused: candidates are asked for theirs
    where: Where = ()  # the columns of `spec.where` as they are named in the database
    _built: dict[Any, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How our own tables name the messages: by their table, and its `where`."""
        return f"{self.spec.bare_name}{self.spec.part}"

    def error_text(self, text: str) -> str:
        """The text of an error as `last_error` takes it: characters that its character set lacks
        are escaped."""
        return fitting(text, self.error_codec)[: self.max_error]

    def codec_of(self, role: str) -> str:
        """What encodes the texts that a column takes, see `payload.fitting`; "" = it takes all."""
        return next((one.codec for one in self.column_limits if one.role == role), "")

    def own_text(self, text: AnyOrNone, most: int | None = None) -> AnyOrNone:
        """The same as our own tables take it, at most so many characters."""
        return text if text is None else fitting(text, self.own_codec)[:most]

    def built(self, key: Any, build: Callable[[], R]) -> R:
        """The statement under `key`, kept per shape of table and database. The key names all that
        `build` reads beside the tables: Apps of one process share what is built. Of threads that
        build it at the same time all get the same one."""
        if key not in self._built:
            self._built.setdefault(key, build())
        found: R = self._built[key]
        return found

    def keeps(self, column: sa.Column[Any]) -> bool:
        """Whether a column of one of our own tables exists; see `lacking`."""
        return not self.lacking or f"{column.table.name}.{column.name}" not in self.lacking

    def cols(self, source: FromClause | None = None) -> columns.Cols:
        """The columns by role, of the table or of an alias of it."""
        source = self.message if source is None else source
        return columns.Cols(**{role: source.c[name] for role, name in self.names.items()})

    def hinted(self, query: sa.Select[Any], source: FromClause, suffix: str) -> sa.Select[Any]:
        """The query with a hint to read `source` by one of our indexes, if it exists."""
        if self.database.index_hint is None:
            return query
        if not self.has_index(suffix):
            return query
        hint = self.database.index_hint.format(self.spec.index_name(suffix))
        if source is self.message:  # Oracle ignores a hint that names the schema
            quote = self.database.offline_dialect().identifier_preparer.quote
            name = quote(self.message.name).replace("%", "%%")  # SQLAlchemy formats the hint
            hint = hint.replace("%(name)s", name)
        return query.with_hint(source, hint)

    def row_by_row(self, query: sa.Select[Any]) -> sa.Select[Any]:
        """A subquery of an EXISTS, that is asked for each row: a planner without hints would join
        all rows with a whole index, if statistics call that empty. The OFFSET keeps it apart."""
        return query.offset(ZERO) if self.database.index_hint is None else query

    def among(self, column: ColumnElement[Any]) -> ColumnElement[bool]:
        """`column` is one of the ids given as the parameter `mw_ids`, a list; of the message table
        only those of messages."""
        found: ColumnElement[bool]
        if not self.database.json_lists:
            found = column.in_(sa.bindparam("mw_ids", expanding=True))
        else:
            found = in_json(column, "mw_ids")
        if not self.where:
            return found
        source = column.table
        ours = getattr(source, "element", source) is self.message
        return self.within(self.cols(source), found) if ours else found

    def within(self, c: columns.Cols, which: ColumnElement[bool]) -> ColumnElement[bool]:
        """Those of the rows that are messages: the `where` of the table. Every statement asks it of
        each source of messages, itself or in one of the predicates below."""
        return sa.and_(which, *self.is_message(c)) if self.where else which

    def is_message(self, c: columns.Cols) -> list[ColumnElement[bool]]:
        """The `where` of the table as conditions; none without one."""
        source: FromClause = c.msg_id.table
        return [one_of(self.database, source.c[name], values) for name, values in self.where]

    def portions(self, ids: Sequence[R]) -> Iterator[list[R]]:
        """As many of them as a statement takes, one portion after the other."""
        for start in range(0, len(ids), self.database.max_ids):
            yield list(ids[start : start + self.database.max_ids])

    def has(self, role: str) -> bool:
        """Whether the table has the column of this role."""
        return role in self.names

    def has_index(self, suffix: str) -> bool:
        """Whether one of our indexes exists."""
        return self.indexes is None or self.spec.index_name(suffix) in self.indexes

    # -- predicates; statuses are literals, because a partial index is used only if a query repeats
    # its predicate

    def tries(self, c: columns.Cols) -> ColumnElement[int]:
        """Failed tries; NULL, from a foreign producer, counts as 0."""
        return sa.func.coalesce(c.error_try_times, ZERO)

    def tries_left(self, c: columns.Cols) -> ColumnElement[bool]:
        return self.tries(c) < lit(self.spec.max_tries)

    def unfinished(self, c: columns.Cols) -> ColumnElement[bool]:
        """Holds back its successors: new, running, failed with tries left (block: also dead). A
        discarded message has one try more than there are, so it does not block: `ends_at`."""
        last = ends_at(self.spec.max_tries, self.spec.on_dead)
        found = sa.or_(
            c.status.in_([ZERO, ONE]),
            sa.and_(c.status == lit(Status.FAILED), self.tries(c) < lit(last)),
        )
        return self.within(c, found)

    def claimable(self, c: columns.Cols) -> ColumnElement[bool]:
        """May be claimed according to its own status."""
        return sa.or_(
            self.stands_at(c, Status.NEW),
            sa.and_(self.stands_at(c, Status.FAILED), self.tries_left(c)),
        )

    def due(self, c: columns.Cols) -> ColumnElement[bool]:
        """Past `available_at`, and older than the visibility delay."""
        parts: list[ColumnElement[bool]] = []
        if c.available_at is not None:
            parts.append(sa.or_(c.available_at.is_(None), has_come(c.available_at, now())))
        if self.spec.visibility_delay_seconds and c.created_at is not None:
            delay = sa.literal(-float(self.spec.visibility_delay_seconds), sa.Float())
            old = has_come(c.created_at, now_plus(delay))
            parts.append(sa.or_(c.created_at.is_(None), old))  # from before the column was added
        return sa.and_(*parts) if parts else sa.true()

    def running(self, c: columns.Cols) -> ColumnElement[bool]:
        return self.within(c, c.status == lit(Status.PROCESSING))

    def stands_at(self, c: columns.Cols, status: Status) -> ColumnElement[bool]:
        """The status of rows that a statement names by primary key, in a form that implies the
        predicate of no partial index: for each of these rows a planner would read all entries of
        one that its statistics call empty, or that is full of dead ones."""
        if not self.database.partial_indexes:
            return self.within(c, c.status == lit(status))
        below = lit(status - 1)
        above = lit(status + 1)
        return self.within(c, sa.and_(c.status > below, c.status < above))

    def failed(self, c: columns.Cols) -> ColumnElement[bool]:
        """Failed or dead; the predicate of their index."""
        return self.within(c, c.status == lit(Status.FAILED))

    def untried(self, c: columns.Cols) -> ColumnElement[bool]:
        """Failed, and has failed no try: an edit has left it so, and it waits as a new one."""
        return sa.and_(c.status == lit(Status.FAILED), self.tries(c) == ZERO)

    def mine(self, c: columns.Cols, me: ColumnElement[Any]) -> ColumnElement[bool]:
        """The fence, where rows are named by primary key: flagged, and by us. Without `claimed_by`
        only the status can be checked, and `same_tries`: each removal of a flag counts a try."""
        running = self.stands_at(c, Status.PROCESSING)
        return running if c.claimed_by is None else sa.and_(running, c.claimed_by == me)

    def same_tries(self, c: columns.Cols, counted: bool) -> list[ColumnElement[bool]]:
        """As many failed tries as `mw_tries` says; counted: False = no condition."""
        if not counted:
            return []
        return [self.tries(c) == sa.bindparam("mw_tries", type_=sa.Integer())]

    def holds_or_waits(self, c: columns.Cols) -> ColumnElement[bool]:
        """All but running messages without an object, which hold nothing back."""
        return sa.or_(c.object_id.is_not(None), c.status != lit(Status.PROCESSING))

    def waits_for_no_instant(self, c: columns.Cols) -> ColumnElement[bool]:
        open_ones = self.unfinished(c)
        return open_ones if c.available_at is None else sa.and_(open_ones, c.available_at.is_(None))

    def in_slices(self, c: columns.Cols) -> ColumnElement[bool]:
        """Unfinished and not running: the predicate of the partial index of slices, in which moving
        a flag or writing an outcome changes nothing. Written in this form, no planner uses the
        indexes of open rows of all slices for it."""
        waits = sa.and_(self.unfinished(c), c.status != lit(Status.PROCESSING))
        return sa.case((waits, ONE), else_=ZERO) == ONE

    def slice_value(self, c: columns.Cols, role: str) -> ColumnElement[Any]:
        """The slice of a row; NULL, from a foreign producer, counts as shard 0."""
        return sa.func.coalesce(c[role], ZERO) if role == "shard" else c[role]

    def object_is_running(self, of: columns.Cols) -> ColumnElement[bool]:
        """Another row of the object is flagged."""
        source = self.message.alias("r")
        match = self.runs(self.cols(source), self.object_key(of))
        found = self.hinted(sa.select(ONE), source, "guard").where(match)
        return sa.and_(of.object_id.is_not(None), sa.exists(self.row_by_row(found)))

    def earlier_unfinished(self, of: columns.Cols) -> ColumnElement[bool]:
        """A lower message of the object is unfinished: the row is not the head."""
        source = self.message.alias("e")
        other = self.cols(source)
        found = self.hinted(sa.select(ONE), source, "object").where(
            self.open_object(other) == self.object_key(of),
            other.msg_id < of.msg_id,
            self.open_rows(other),
        )
        return sa.and_(of.object_id.is_not(None), sa.exists(self.row_by_row(found)))

    @property
    def sliced(self) -> tuple[str, ...]:
        """The roles by which an index of slices is made."""
        return tuple(role for role in self.spec.slices if role in self.names)

    @property
    def object_type(self) -> TypeEngine[Any]:
        """The type of `object_id`, for parameters that are compared with it."""
        return self.message.c[self.names["object_id"]].type

    def values(self, **roles: Any) -> dict[str, Any]:
        """Values for an UPDATE or INSERT by role, without columns that do not exist; a time of the
        database's clock in the zone that its column is kept in."""
        known = {self.message.c[self.names[r]]: v for r, v in roles.items() if r in self.names}
        return {column.name: written(value, column.type) for column, value in known.items()}

    def tries_last(self, values: dict[str, Any]) -> list[tuple[str, Any]]:
        """`values` of an UPDATE in which other columns depend on the tries, for `ordered_values`:
        MariaDB and MySQL assign from left to right, so later ones would see the new number."""
        last = self.names["error_try_times"]
        return sorted(values.items(), key=lambda item: item[0] == last)

    # -- the guard

    @property
    def guard_name(self) -> str:
        return self.spec.index_name("guard")

    @property
    def orders_updates(self) -> bool:
        """Whether an UPDATE of given ids can have an order, see `rows.in_guard_order`: they must be
        the key by which rows are read."""
        return self.database.ordered_update and self.id_is_key

    # -- the keys and predicates of the indexes, where these are partial: a query uses one only if
    # it repeats its WHERE literally. indexes.py makes the indexes, and has those of others:
    # there the key is NULL for all other rows, and the predicate is true. So a query asks for both;
    # without the key it would read all rows there, which no test on SQLite shows. They are:
    #     open_object, open_msg_id     open_rows
    #     oldest_key                   oldest_rows
    #     failed_key                   failed_rows
    #     slice_key                    slice_rows

    @abstractmethod
    def add_indexes(self) -> None:
        """Attach the guard and the indexes to `message`."""

    def key(self, object_id: Any) -> Any:
        """A value of `object_key`."""
        return object_id

    @property
    def key_type(self) -> TypeEngine[Any]:
        """The type of `open_object`, for cursors."""
        kind = self.object_type
        is_text = isinstance(kind, sa.String | KeyText) and not is_own_enum(kind)
        return AnyText() if is_text else kind

    def object_key(self, c: columns.Cols) -> ColumnElement[Any]:
        """`object_id` as in `open_object` and the guard."""
        return c.object_id

    def running_object(self, c: columns.Cols) -> ColumnElement[Any]:
        """`object_id` of the running row as in the guard."""
        return c.object_id

    def runs(self, c: columns.Cols, key: Any) -> ColumnElement[bool]:
        """It is the running row of the object with this key."""
        return sa.and_(c.object_id == key, self.running(c))

    def open_object(self, c: columns.Cols) -> ColumnElement[Any]:
        """`object_id` of unfinished rows as in the object index."""
        return c.object_id

    def open_msg_id(self, c: columns.Cols) -> ColumnElement[int]:
        """`msg_id` as in the object index."""
        return c.msg_id

    def open_rows(self, c: columns.Cols) -> ColumnElement[bool]:
        """The predicate that lets a query use the object index: of rows without an object, those
        that do not run."""
        return sa.and_(self.unfinished(c), self.holds_or_waits(c))

    def running_rows(self, c: columns.Cols, d: columns.Cols) -> Sequence[Entries]:
        """How all running rows are found: by `c`, and by `d` too where it takes two queries; the
        index and the predicate of each."""
        return ((c, "guard", self.running(c)),)

    def all_open(self, c: columns.Cols, d: columns.Cols) -> Sequence[Entries]:
        """How all unfinished rows are found, as in `running_rows`."""
        return (c, "object", self.open_rows(c)), self._running_alone(d)

    def _running_alone(self, d: columns.Cols) -> Entries:
        return d, "guard", sa.and_(self.running(d), d.object_id.is_(None))

    def between_objects(self, key: ColumnElement[Any]) -> ColumnElement[bool]:
        """The entries of the object index that have an object, by its key, as ranges."""
        return key.is_not(None)

    def without_object(self, c: columns.Cols, d: columns.Cols) -> Sequence[Entries]:
        """How all unfinished rows without an object are found, as in `running_rows`."""
        waits = sa.and_(*self.waiting_without_object(c))
        return (c, "object", waits), self._running_alone(d)

    def waiting_without_object(self, c: columns.Cols) -> Sequence[ColumnElement[bool]]:
        """The entries of the object index that have no object, and do not run."""
        return self.open_rows(c), c.object_id.is_(None)

    def due_rows(self, c: columns.Cols) -> Sequence[ColumnElement[bool]]:
        """The predicate that lets a query use the index of rows that wait for an instant."""
        return (self.unfinished(c),)

    def oldest_key(self, c: columns.Cols) -> ColumnElement[Any]:
        """The key of the index of open rows by age."""
        return c.msg_id

    def oldest_rows(self, c: columns.Cols) -> ColumnElement[bool]:
        """Open rows that do not wait for an instant, as in `open_rows`; the predicate of the index
        by age."""
        return sa.and_(self.waits_for_no_instant(c), self.holds_or_waits(c))

    def failed_key(self, c: columns.Cols) -> ColumnElement[Any]:
        """The key of the index of failed rows: `msg_id`, or NULL for every other row."""
        return c.msg_id

    def failed_rows(self, c: columns.Cols) -> ColumnElement[bool]:
        """Failed and dead rows, as a query by their index selects them."""
        return self.failed(c)

    def slice_key(self, c: columns.Cols, role: str) -> ColumnElement[Any]:
        """The column of a slice as in its index."""
        return c[role]

    def null_shard_apart(self, role: str) -> bool:
        """Whether rows of no shard, which count as shard 0, have entries apart from its own; only a
        table of others has NULL there."""
        return role == "shard" and not self.spec.is_default

    def slice_entries(self, c: columns.Cols, role: str) -> Sequence[ColumnElement[bool]]:
        """What a query by slice and object asks besides for the index of a slice."""
        return (self.slice_rows(c, role),)

    def slice_without_object(self, c: columns.Cols, role: str) -> Sequence[ColumnElement[bool]]:
        """The entries of the index of a slice that have no object, and do not run."""
        return self.slice_rows(c, role), c.object_id.is_(None)

    def slice_rows(self, c: columns.Cols, role: str) -> ColumnElement[bool]:
        """The predicate that lets a query use the index of a slice."""
        return self.in_slices(c) if self.has_index(columns.SLICES[role]) else self.open_rows(c)


# --- Our tables beside it, of which build.py has each.


class Need(enum.Enum):
    """Who needs a table."""

    RUN = enum.auto()  # every instance
    OPS = enum.auto()  # only operations write to it; instances run without it
    FEATURE = enum.auto()  # a feature that an instance may use; `doctor` says where it is missing
    OPTIONAL = enum.auto()  # an optional feature; without that it is not needed


MadeColumns = Callable[[Database], Iterable[sa.Column[Any]]]


@dataclass(frozen=True, slots=True)
class OwnTable:
    """One of our tables. about: for who reads the DDL. columns: made anew for each database.
    index: its suffix and columns, and whether it is unique. without: what it costs to lack it."""

    name: str
    about: str
    need: Need
    index: tuple[str, tuple[str, ...], bool] | None = None
    without: str = ""
    columns: MadeColumns = field(default=lambda _: ())

    def __call__(self, columns: MadeColumns) -> OwnTable:
        """As a decorator of the function that makes the columns."""
        return replace(self, columns=columns)

    def of(self, t: Tables) -> sa.Table:
        """The table beside this message table."""
        return t.own[self.name]

    def made(self, schema: str | None, database: Database, metadata: sa.MetaData) -> sa.Table:
        """The table as our DDL makes it; once for each metadata."""
        options = database.own_table_options()
        columns = self.columns(database)
        table = sa.Table(self.name, metadata, *columns, schema=schema, **options)
        if self.index is not None:
            suffix, on, unique = self.index
            sa.Index(f"{self.name}_{suffix}", *(table.c[name] for name in on), unique=unique)
        return table

    def is_there(self, t: Tables) -> bool:
        """Whether the database has it; always of those that instances need."""
        return self.name not in t.missing
