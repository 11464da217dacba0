"""What can differ between databases: a `Database`, with a module of its own for each.

What depends on which database it is, is an attribute or a method of `Database`: what it can do,
what its errors mean, what a thing is called in its SQL. Here stand the defaults; a module such as
`postgresql` has what is otherwise there, and is imported when such a database is used. What is the
same for all is in the other modules of `db`, which ask a Database for the rest. Some things they
know themselves: variants of column types for SQLite (types.py), what a driver's connection shows of
itself (drivers.py, servers.py, connections.py), and what user code sets in a session, which is
looked for in the words of all databases at once (connections.py).

One file, because it is the list that one who adds a database goes through.
"""

from __future__ import annotations

import copy
import enum
import importlib
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from msgworker.errors import ConfigError
from msgworker.payload import BEGINNING


class Home(NamedTuple):
    """Where a database is implemented. drivers: the Python packages of its drivers."""

    module: str
    name: str
    drivers: tuple[str, ...]


HOMES = {
    "postgresql": Home("postgresql", "PostgreSQL", ("psycopg", "psycopg2")),
    "sqlite": Home("sqlite", "SQLite", ("sqlite3",)),
    "mariadb": Home("mysql", "MariaDB", ("pymysql", "MySQLdb", "mariadb", "asyncmy")),
    "mysql": Home("mysql", "MySQL", ("pymysql", "MySQLdb", "mariadb", "mysql", "asyncmy")),
    "oracle": Home("oracle", "Oracle", ("oracledb", "cx_Oracle")),
}
"""All that are supported, by name."""
NAMES = tuple(HOMES)
_OF_DRIVERS = {driver: name for name, home in HOMES.items() for driver in home.drivers}


class _Databases(dict[str, "Database"]):
    """Those that are in use; any other one is imported when it is asked for."""

    def __missing__(self, name: str) -> Database:
        if name == "default":  # SQLAlchemy's, by which a statement is printed without an engine
            return self.setdefault(name, Database())
        home = HOMES.get(name)
        if home is None:
            raise ConfigError(f"database {name!r} is not supported; use one of: {', '.join(NAMES)}")
        found = getattr(importlib.import_module(f"msgworker.db.{home.module}"), home.name)
        made: Database = found()
        return self.setdefault(name, made)


DATABASES = _Databases()


def of_dialect(dialect: sa.Dialect) -> Database:
    """The Database of an engine's dialect. SQLAlchemy has a MariaDB under the name of MySQL, too,
    which it knows once it has connected."""
    return DATABASES["mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name]


def own_dialect(engine: sa.Engine, learned: sa.Dialect) -> sa.Dialect:
    """Give an engine a copy of a dialect, which also has what that learns at its first
    connection."""
    engine.dialect = copied = copy.copy(learned)

    def connected(conn: sa.Connection) -> None:
        for name, value in vars(learned).items():
            vars(conn.dialect).setdefault(name, value)

    event.listen(engine, "engine_connect", connected)
    return copied


def of(bind: sa.Connection | sa.Engine) -> Database:
    """The Database to which a connection leads."""
    return of_dialect(bind.dialect)


def database_of(engine: sa.Engine) -> Database:
    """The capabilities of an engine's database; connects once to distinguish MariaDB and MySQL."""
    return of(engine).known(engine)


def of_error(error: BaseException | None) -> Database | None:
    """The Database whose driver has raised an error; None = no driver has."""
    for kind in type(error).__mro__:
        if (name := _driven(kind)) is not None:
            return DATABASES[name]
    return None


def _driven(kind: type) -> str | None:
    """The database whose driver has a class of errors; those of asyncpg are SQLAlchemy's."""
    module = kind.__module__
    if module == "sqlalchemy.dialects.postgresql.asyncpg":
        return "postgresql"
    return _OF_DRIVERS.get(module.partition(".")[0])


def is_of_a_driver(error: BaseException | None) -> bool:
    """Whether it is a driver's own error."""
    return _driven(type(error)) is not None


# --- What the methods of a Database take and return.

HIDDEN = "msgworker_hidden"
"""Key in Column.info: hide this generated column from SELECT * and INSERT without columns."""
MOST_PARTITIONS = 128
"""Each statement that looks for a message by its id looks into all of them."""
LOCK_SECONDS = 5
"""So long a change of a table waits for those who use it; all others wait behind it meanwhile."""
COPYING = "writers wait while the table is copied"
AN_INSTANT = "others wait for an instant"
BUILDING = "writers wait while the index is built"
NOBODY = "no program waits"
OWN_CLOCK = re.compile(r"\b(now|current_timestamp|localtimestamp|localtime|sysdate|systimestamp)\b")
"""In the default of a column."""


def default_of(column: sa.Column[Any]) -> str:
    """What stands behind DEFAULT; "" = it has none."""
    default = getattr(column.server_default, "arg", None)
    if default is None:
        return ""
    return str(default) if isinstance(default, sa.TextClause) else f"'{default}'"


def is_concurrent(statement: str) -> bool:
    """Whether a statement runs in no transaction."""
    return " INDEX CONCURRENTLY " in statement


class Trouble(enum.Enum):
    """The kinds of database exceptions."""

    RACE = "race"  # the guard index: another instance was first
    AGAIN = "again"  # rolled back by the database; send again, no try counted
    LOST = "lost"  # the connection, the server or our memory; what was being committed is unknown
    REFUSED = "refused"  # missing table or right, read-only, wrong password: an operator must act
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class IdSource:
    """The sequence of a column. name: in SQL, with its schema. next: the id that it gives next, or
    a higher one, where the database has given out some ahead; None if this login may not see it.
    used: it has given one. most: its last one. step: between two; below zero they fall."""

    name: str
    cycles: bool
    next: int | None
    used: bool = True
    most: int | None = None
    step: int = 1


def printing(dialect: sa.Dialect) -> sa.Dialect:
    """The same for statements that are printed, or run as they are written: with each percent sign
    once, which drivers that format their parameters want twice."""
    if dialect.paramstyle not in ("format", "pyformat"):
        return dialect
    plain = copy.copy(dialect)
    plain.paramstyle, plain.positional = "named", False
    plain.identifier_preparer = plain.preparer(plain)
    plain.type_compiler_instance = dialect.type_compiler_cls(plain)
    return plain


class At(NamedTuple):
    """A column of a live table, or a CHECK of one, in the statements that change it. table: as SQL
    writes it."""

    sql: sa.Dialect
    table: str
    name: str

    @property
    def quoted(self) -> str:
        return self.sql.identifier_preparer.quote(self.name)

    def alter(self, *changes: str) -> str:
        """ALTER TABLE with these changes."""
        return f"ALTER TABLE {self.table} {', '.join(changes)}"


class Was(NamedTuple):
    """What a column is whose type is changed. zone: it holds instants as the local time of this
    zone. number: numbers; instants are then seconds since 1970. counts: the database generates its
    values. default: one that it keeps, in SQL. kind: its type. rest: what else it keeps, see
    `whole_columns`."""

    zone: str | None = None
    number: bool = False
    counts: bool = False
    default: str = ""
    kind: TypeEngine[Any] | None = None
    rest: str = ""

    def default_for(self, to: sa.Column[Any]) -> str:
        """What stands behind DEFAULT then; "" = nothing."""
        return self.default or default_of(to)


NOTHING = Was()


@contextmanager
def of_any_type() -> Iterator[None]:
    """Without SQLAlchemy's warnings of types that it does not know: a user's table may have such,
    and of those that matter `schema/requirements.py` says what is wrong."""
    with warnings.catch_warnings():
        # Where two threads do so at once the filter may stay: it is of this one text.
        warnings.filterwarnings("ignore", "Did not recognize type", sa.exc.SAWarning)
        yield


class LiveIndex(NamedTuple):
    """An index in the catalogue. columns: None for an expression. finished: its creation was not
    interrupted, on any partition. where: its predicate; None = it has none, or the database has no
    such indexes. descending: which of its keys are; () = unknown."""

    unique: bool
    columns: tuple[str | None, ...]
    finished: bool = True
    where: str | None = None
    descending: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """A setting of the server that a promise needs. good: the right values, in lower case. stops:
    with another value every write fails, although tables can be made."""

    query: str
    name: str
    good: tuple[str, ...]
    otherwise: str
    fix: tuple[str, ...] = ()
    needed: bool = False
    stops: bool = False


READ_ONLY = "the database refuses writes; is it a standby?"
TORN = "a page that is half written when the machine crashes cannot be repaired"
LAST_MOMENTS = "transactions committed just before a crash of the server can be lost"


@dataclass(frozen=True, slots=True)
class SeveralWriters:
    """Several servers that all take writes. query: how many there are (0 = it does not say), the
    step between ids, and whether a transaction sees all that was committed before it on any.
    otherwise: what follows if it does not, which `fix` changes."""

    words: str
    query: str
    otherwise: str
    fix: str


OLD_SNAPSHOT_SECONDS = 600
"""What ends since an older one was taken is kept long enough to slow claims down."""


def quoted(table: sa.Table) -> str:
    """The table's name as PostgreSQL's to_regclass reads it; a value, so nothing is escaped."""
    parts = [part for part in (table.schema, table.name) if part is not None]
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


WHOLE = r"^ *[-+]?[0-9]+([.]0*)? *$"
"""A text that is a whole number, to a database."""


class Database:
    """What its statements can do, and what is otherwise on it than on others.

    partial_indexes: an index may have a WHERE; else finished rows are kept out by a CASE.
    case_index: how a CASE is indexed: "column" (a generated column) or "function".
    guard_case: the same for the guard.
    stored_columns: generated columns are stored, not virtual.
    oldest_index: open rows can be read in order of age without reading finished ones.
    recursive_skip_scan: a recursive query can skip from object to object along an index.
    slices_by_age: entries of the index of slices are in order of age, so that those that leave
        together are on few pages; else by object.
    booleans: a column may hold true and false, which are no numbers.
    arrays: a whole batch is sent as arrays, and a WITH may contain an UPDATE.
    on_conflict: an INSERT can step back from the entry of one unique index.
    latest_by_lock: a locking read sees what was committed after the snapshot of the transaction.
    ordered_update: an UPDATE changes its rows in the order that it names.
    blocks: several statements may be sent as one block, see `oracle.block_of`.
    row_locks, skip_locked: SELECT ... FOR UPDATE [SKIP LOCKED] exists.
    share_locks: shared row locks exist, with SKIP LOCKED.
    certifies: row locks are those of one server of several, which find out at COMMIT who has
        changed the same row: what relies on a lock must change the row, too (Galera); see
        `several_writers`.
    defers: constraints and triggers may be deferred to the COMMIT, unless a transaction forbids it.
    update_ignore: the prefix that makes an UPDATE skip rows that violate the guard.
    rowcount_includes_ignored: the row count of such an UPDATE includes the skipped rows.
    lacking: finds the name of a table or column in the error that it is missing, or not allowed.
    max_ids: how many ids one IN list may have.
    bare_unions: a branch of a UNION may have its own ORDER BY and LIMIT, without a derived table.
    json_lists: a list of ids is sent as one JSON text, so that the statement stays the same.
    index_hint: how a query names the index it must use; planners guess badly about indexes that
        hold a small, fast-changing part of a table.
    tuned: statements that set and reset planner options for the plans of the claim, on the claim's
        connection.
    wide_join_settings: the same for joins of a large part of the table with itself.
    notify: a commit can wake up listeners.
    settles_at_once: how many batches of outcomes an instance writes at the same time; more than one
        only where that was measured to be faster.
    partitioned: of this message table, not of a database: it is partitioned by the hash of the
        object, so that only an index with the object can be unique.
    one_writer: transactions that write exclude each other in the whole database.
    rolls_back_ddl: what a transaction creates goes with it.
    max_name: the longest name of a table or column, in bytes.
    loose_types: a column takes every value, whatever its type.
    text_in_bytes: the length of a text is counted in bytes, not in characters.
    pads_chars: values read from a CHAR(n) are padded with blanks.
    empty_is_null: an empty text is NULL.
    trims_chars: and as texts they have none at their end.
    reads_texts: a text can be cast to any type, and one that is no value of it is refused.
    texts_as_instants: a column of texts can be compared with instants.
    null_is_default: a column may store its default where it is given NULL, and says it takes none.
    refuses_others: its `rule_queries` name what is no table, as a foreign or materialized one.
    slow_sums: a SUM of whole numbers is one of decimals, which takes twice the time of floats.
    key_collation: the collation of object ids, if a column needs one of its own.
    """

    name: str
    partial_indexes: bool = False
    case_index: Literal["column", "function"] | None = None
    guard_case: Literal["column", "function"] | None = None
    stored_columns: bool = False
    oldest_index: bool = False
    recursive_skip_scan: bool = False
    slices_by_age: bool = False
    booleans: bool = False
    arrays: bool = False
    on_conflict: bool = False
    latest_by_lock: bool = False
    ordered_update: bool = False
    blocks: bool = False
    row_locks: bool = True
    share_locks: bool = False
    certifies: bool = False
    skip_locked: bool = True
    defers: bool = False
    update_ignore: str | None = None
    rowcount_includes_ignored: bool = False
    lacking: re.Pattern[str] | None = None
    max_ids: int = 1000
    bare_unions: bool = False
    json_lists: bool = False
    index_hint: str | None = None
    tuned: tuple[str, str] | None = None
    wide_join_settings: tuple[str, str] | None = None
    notify: bool = False
    settles_at_once: int = 1
    partitioned: bool = False
    one_writer: bool = False
    rolls_back_ddl: bool = False
    max_name: int = 128
    loose_types: bool = False
    text_in_bytes: bool = False
    pads_chars: bool = False
    empty_is_null: bool = False
    trims_chars: bool = False
    reads_texts: bool = False
    texts_as_instants: bool = False
    null_is_default: bool = False
    refuses_others: bool = True
    slow_sums: bool = False
    key_collation: str | None = None

    def having(self, **changed: Any) -> Self:
        """The same with other attributes, as they are of one server or of one table."""
        made = copy.copy(self)
        for name, value in changed.items():
            getattr(made, name)  # raises AttributeError for one that there is not
            setattr(made, name, value)
        return made

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *sorted(vars(self).items())))

    # --- What an INSERT and an UPDATE can do, and what an INSERT returns.

    tells_no_other_ids: bool = False
    """The driver knows of an INSERT only what the counter of a table has given: not an id that
    comes by a trigger, or from a sequence."""

    def returns_ids(self, version: tuple[Any, ...]) -> bool:
        """Whether an INSERT can return what it has inserted. version: of the server."""
        return False

    key_hint: str = ""
    """The hint of a statement by which rows that are given by id are read by their primary key."""

    def delete_hint(self, table: sa.Table) -> str:
        """The same of a DELETE."""
        return self.key_hint

    def in_order(self, change: sa.Update, *by: sa.ColumnElement[Any]) -> sa.Update:
        """An UPDATE that changes its rows in this order; where there is `ordered_update`. It takes
        no further condition: see `rows.in_guard_order`."""
        raise NotImplementedError

    insert: Any = staticmethod(sa.insert)
    """With the ON CONFLICT of the dialect, where there is `on_conflict`."""

    def insert_unless(
        self,
        table: sa.Table,
        values: dict[str, Any],
        column: sa.ColumnElement[Any],
        where: sa.ColumnElement[bool],
    ) -> sa.Insert:
        """An INSERT of nothing where the partial unique index on this column has the entry
        already."""
        made: Any = self.insert(table).values(values)
        given: sa.Insert = made.on_conflict_do_nothing(index_elements=[column], index_where=where)
        return given

    # --- Errors, by the codes of the database. `error` is the driver's own.

    def trouble(self, error: BaseException) -> Trouble:
        """The kind of an error."""
        raise NotImplementedError

    codes: Mapping[str, Collection[int | str]] = {}
    """The codes of errors, by what they say, for `says`.

    no connection: all those of the server are in use. denied: the login lacks a right on a table or
    column. follows: an earlier error has ended the transaction, and this one says no more. shows a
    row: the text contains the row that a CHECK or NOT NULL refuses, with its payload. session ends:
    the connection is of no use any more, although its driver takes it as open. transaction ends:
    the whole of it was rolled back, and the next statement begins another. overtime: a statement
    was ended because it took too long. statement limit: a limit of the server for one statement, or
    for its wait for a lock, has struck, and will again; session limit: the same for a transaction,
    or for the time that a session does nothing."""

    def code(self, error: BaseException) -> int | str | None:
        """As `codes` has it."""
        return None

    def says(self, what: str, error: BaseException) -> bool:
        return self.code(error) in self.codes.get(what, ())

    def is_of_a_trigger(self, error: BaseException, statement: str) -> bool:
        """Whether what is missing, or not allowed, is asked for by a trigger of the table and not
        by the statement; False if that cannot be told."""
        named = None if self.lacking is None else self.lacking.search(str(error))
        name = "" if named is None else re.sub("[`']", "", named[1]).rpartition(".")[2]
        return bool(name) and not re.search(rf"\b{re.escape(name)}\b", statement, re.I)

    def violated_index(self, error: BaseException) -> str | None:
        """The name of the index that refuses a second entry; None if it is unknown: any refusal
        counts as one of it."""
        return None

    def refuses_writes(self, error: BaseException) -> bool:
        """Whether it is the refusal of a server, or of a transaction, that is read-only."""
        return False

    # --- Deadlines.

    session_limits: tuple[str, int] | None = None
    """A query for names and values, and how many of their unit are a second: how long a session may
    do nothing within a transaction, and how long a transaction may last; 0 = without end."""

    def deadline(self, conn: sa.Connection, seconds: float) -> AbstractContextManager[None]:
        """The database ends each statement of the block that takes longer than this, with an error
        that says "overtime". `conn` is one of `connecting`."""
        return nullcontext()

    def before_transaction(
        self, conn: sa.Connection, seconds: float
    ) -> AbstractContextManager[None]:
        """The same for a transaction that begins in the block, and for its waits for locks, as far
        as that is set before."""
        return nullcontext()

    def in_transaction(self, conn: sa.Connection, seconds: float) -> None:
        """What is set in the transaction itself."""

    # --- Time in SQL: templates, by which an expression is written. {0} and {1} are SQL themselves;
    # instants are UTC without a zone if not said.

    session_offset: str
    """A query: by how many seconds a default of the database's own clock differs from UTC."""

    now: str
    """The clock; the same value for all rows of a statement."""
    now_ms: str
    """The clock as whole milliseconds since 1970."""
    now_plus: str
    """The clock plus seconds, which may be a fraction, and negative."""
    seconds_passed: str
    """Seconds from an instant until now; NULL or infinite for an invalid one."""
    step_of: str
    """Which step of {1} seconds since 1970 an instant is in."""
    moved: str
    """A time plus seconds."""
    text_of: str
    """An instant in a form that a driver can always read."""
    of_text = "{0}"
    """The inverse."""
    of_plain_text = "{0}"
    """The same, of a column without a zone where instants have one."""
    # A day less at both ends, for all time zones.
    real = "CASE WHEN {0} BETWEEN '0001-01-02' AND '9999-12-30' THEN {0} END"
    """The instant if it is of the years 1 to 9999, else NULL."""
    with_zone = "{0}"
    """An instant as a column keeps it that has a zone, or the session's; see `instant_form`."""
    unzoned = "{0}"
    """The inverse."""
    plain = "{0}"
    """An instant as a time without a zone, where instants have one."""
    aware = "{0}"
    """The inverse."""
    epoch: str
    """Seconds since 1970 of an instant."""
    kept_epoch: str
    """The same of a column that the session has its zone for."""
    session_now: str
    """The clock, for such a column: also in a repeated hour exact, if it is written as it is."""
    session_low: str
    """A time of the session before which no instant of such a column is later than this one."""
    literal_instants = True
    """`TIMESTAMP '...'` is an instant."""

    # --- How columns keep instants and texts.

    zoned_instants = False
    """Instants have a zone, in our own columns too."""
    text_instants = False
    """They are texts."""
    odd_texts = False
    """A column of texts also holds bytes that are no text."""
    casts_json = False
    """A JSON text must be cast for a column of JSON."""

    bytewise = "{0}"
    """A text that is compared byte by byte, whatever its collation."""
    or_text = "coalesce({0}, {1})"
    """A text of a column, or one of ours where it is NULL."""
    beginning = f"substr({{0}}, 1, {BEGINNING + 1})"
    """The first characters of a text, one more than BEGINNING."""
    place_of = "instr({0}, {1})"
    """Where a text begins in another one, from 1 on; 0 = it is not there."""
    given_back = "{0}"
    """A parameter that was read as a text."""

    def instant_type(self, *, zoned: bool) -> TypeEngine[Any]:
        """The type of our columns of instants."""
        return sa.DateTime(timezone=zoned)

    def instant_form(self, kind: TypeEngine[Any] | None, zone: str) -> tuple[str, str]:
        """Zone and form in which a column of this type keeps instants, see `UtcDateTime`, in a
        table of this zone; None = one of our own tables."""
        return zone, ""

    def instant_limits(
        self, kind: TypeEngine[Any], version: tuple[Any, ...]
    ) -> tuple[datetime, datetime] | None:
        """The first and the last instant of a column of this type that a session of any zone can
        write; None = those of Python. version: of the server."""
        return None

    def zone_is_lost(self, kind: TypeEngine[Any]) -> bool:
        """Whether the instants of a column depend on the time zone of the session."""
        return False

    def created_default(self, zone: str, offset: int | None) -> str:
        """DEFAULT of created_at in a column of ours: the time of this zone, whatever that of the
        session. offset: of the zone in seconds; None = its clocks change. Then, where the server
        need not know the zone, it is that of the session or of the host."""
        raise NotImplementedError

    def is_local_default(self, form: str, default: str) -> bool:
        """Whether a default is the time of the session, or of the host. form: of the column.
        default: in lower case."""
        return form == "" and "utc" not in default and OWN_CLOCK.search(default) is not None

    def key_type(self, length: int) -> TypeEngine[Any]:
        """The type of texts that are compared byte by byte, of at most so many characters."""
        return sa.String(length)

    def key_like(self, kind: TypeEngine[Any], length: int) -> TypeEngine[str]:
        """The type of a generated column for texts of a column of type `kind`, with the same
        collation."""
        raise NotImplementedError

    def recollated(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """A text column in the form of our keys; columns of different collations cannot be
        compared."""
        return column

    def whole_id_type(self) -> TypeEngine[Any]:
        """The type by which an id of a NUMERIC column is read."""
        return sa.BigInteger()

    def long_text_type(self) -> TypeEngine[Any] | None:
        """Text of any length, where TEXT has an end."""
        return None

    def index_where(self, where: Any) -> dict[str, Any]:
        """The option of an Index with a WHERE, where there are such."""
        return {f"{self.name}_where": where} if self.partial_indexes else {}

    def predicate_of(self, index: sa.Index) -> Any:
        """Its WHERE, of an Index of ours; None = it has none."""
        return index.dialect_options[self.name]["where"] if self.partial_indexes else None

    # --- DDL. `sql` is SQLAlchemy's dialect of the connection, or of `offline_dialect`; `table` is
    # the quoted name; [] or () = there is no such statement.

    driver: str
    """The driver that is taken where a URL names none, as in `postgresql+psycopg`."""
    unpartitioned: str = ""
    """Why no script has partitions."""
    multi_column_alter = False
    """One ALTER TABLE should add several columns, because each may copy the table."""
    retypes_values = False
    """`alter_type` changes a column that has values."""
    owner_rights: str
    """What a login needs that creates and changes the tables."""

    def offline_dialect(self) -> sa.Dialect:
        """A new dialect of SQLAlchemy, to print SQL without a connection."""
        return make_url(f"{self.driver}://").get_dialect()()

    def own_table_options(self) -> dict[str, Any]:
        """Options of CREATE TABLE for our own tables."""
        return {}

    def table_options(self, by: str | None = None) -> dict[str, Any]:
        """The same for the message table. by: the column by whose hash it is partitioned."""
        return self.own_table_options()

    def column_written(self, column: sa.Column[Any], text: str) -> str:
        """A column in CREATE or ALTER TABLE, with what SQLAlchemy leaves out of the text."""
        return text

    def table_written(self, table: sa.Table, text: str) -> str:
        """The same of a CREATE TABLE."""
        return text

    def partitions_of(self, sql: sa.Dialect, table: sa.Table, count: int) -> list[str]:
        """The statements that create the partitions of a table, by hash."""
        raise NotImplementedError

    def identity(self, *, always: bool = False) -> tuple[Any, ...]:
        """The generator of msg_id, where the type does not imply it. always: no INSERT brings its
        own ids, as far as that can be said."""
        return ()

    def takes_default(self, column: sa.Column[Any]) -> bool:
        """Whether a column may be added with its default to a table with rows."""
        return True

    def add_column(self, column: str) -> str:
        """The ADD clause of ALTER TABLE; `column` is its name and type."""
        return f"ADD COLUMN {column}"

    def alter_type(self, at: At, to: sa.Column[Any], was: Was = NOTHING) -> list[str]:
        """Statements that give a column the type, default and nullability of `to`."""
        return []

    def can_alter_type(
        self, kind: TypeEngine[Any], to: TypeEngine[Any], *, generated: bool
    ) -> bool:
        """Whether `alter_type` can change a column of type `kind`: a generated column cannot be
        converted."""
        return not generated

    whole_columns = False
    """A change of a column says all of it anew: what is not said again is gone. `rest` is what is
    said behind its type, default and NULL."""

    def say_again(self, at: At, column: Any) -> tuple[str, ...]:
        """The statement that says a column as it is, by its `kind`, `default`, `rest` and whether
        it is `nullable` and `counts`; () unless `whole_columns`."""
        return ()

    def broken_by(
        self, conn: sa.Connection, at: At, was: TypeEngine[Any], to: TypeEngine[Any]
    ) -> tuple[list[str], list[tuple[str, str]]]:
        """What of a table keeps a column from another type beside its `holders`: what is to be
        dropped first, in words; and CHECKs, by name and text, that are of no use with that type."""
        return [], []

    def drop_not_null(self, at: At, kind: TypeEngine[Any], rest: str = "") -> list[str]:
        """Statements that make a column of type `kind` nullable, with NULL as its default."""
        return []

    def set_not_null(self, at: At, kind: TypeEngine[Any], rest: str = "") -> list[str]:
        """Statements that make a column of type `kind` NOT NULL; rows with NULL refuse them."""
        return []

    def drop_generated(self, at: At) -> list[str]:
        """Statements that turn a generated column into an ordinary one with its values."""
        return []

    def set_default(self, at: At, default: str) -> tuple[str, ...]:
        """The statement that gives a column another default."""
        return (at.alter(f"ALTER COLUMN {at.quoted} SET DEFAULT {default}"),)

    def drop_check(self, at: At) -> tuple[str, ...]:
        """The statement that drops a CHECK; () if it has no name."""
        return (at.alter(f"DROP CONSTRAINT {at.quoted}"),) if at.name else ()

    def check_schema(self, schema: str | None) -> None:
        """Raise SchemaError for one whose tables cannot be used."""

    def drop_layout(self, table: str, layout: str) -> str:
        """The statement that turns a table with a `layout` (see Trait) into a plain one with all
        that it holds; "" if there is none."""
        return ""

    def drop_index(self, sql: sa.Dialect, index: str, table: sa.Table) -> str:
        """The statement that drops an index of this table, and no other of its name in another
        schema: an index is in the schema of its table."""
        quote = sql.identifier_preparer
        schema = "" if table.schema is None else f"{quote.quote_schema(table.schema)}."
        return f"DROP INDEX {schema}{quote.quote(index)}"

    def rename_index(self, sql: sa.Dialect, index: str, new: str, table: sa.Table) -> str:
        """The statement that gives an index of this table another name; "" if there is none."""
        quote = sql.identifier_preparer.quote
        old = self.drop_index(sql, index, table).removeprefix("DROP INDEX ")
        return f"ALTER INDEX {old} RENAME TO {quote(new)}"

    # --- DDL that lets others work on the tables meanwhile, as far as the database can.

    def with_lock_limit(self, statement: str) -> tuple[str, ...]:
        """The statements, of one transaction, that run one about a table, which fails if it does
        not get its lock within LOCK_SECONDS."""
        return (statement,)

    def wait_of_columns(self, *, stored: bool) -> str:
        """Who waits while columns are added; stored: they are computed for every row."""
        return AN_INSTANT

    def index_online(self, statement: str) -> tuple[str, str]:
        """A CREATE INDEX on a table that is in use, and who waits for it."""
        return statement, BUILDING

    def index_anew(self, sql: sa.Dialect, statement: str, index: sa.Index) -> list[str]:
        """The statements that build an index anew by its CREATE INDEX, on a table that is in
        use."""
        assert index.table is not None
        return [self.drop_index(sql, str(index.name), index.table), statement]

    def drop_unfinished(self, sql: sa.Dialect, table: sa.Table, index: str) -> str:
        """The statement that drops an index whose creation was interrupted, and no other: neither
        one that is being built nor one that is good."""
        raise NotImplementedError

    @contextmanager
    def in_turn(self, engine: sa.Engine, what: str) -> Iterator[None]:
        """Only one program at a time is in the block, where statements of two could hinder each
        other. It waits."""
        yield

    # --- The catalogue. Queries have the parameters :table (as `quoted` writes it), :name (as
    # `catalogue_name` does), :schema, :column; "" = there is no such query.

    other_schemas: str = ""
    """The other schemas than :own in which this login sees a table or view of this :name."""
    found_schema: str = ""
    """The schema in which a :table without one is found, where that need not be the default one."""
    name_holder: str = ""
    """What has the :name that the :table, or an index of it, is to have, in words, where names of
    indexes are those of a schema."""
    row_estimate: str = ""
    """How many rows a table has by the statistics; without it ids are taken to be consecutive."""
    table_size: str = ""
    """The bytes of a table, and of its indexes."""
    sizes_are_exact = True
    """Sizes are those of this moment; else they are from statistics."""
    file_size: str = ""
    """The bytes of a database that is one file."""
    column_types: str = ""
    """The columns of a table, and the type of each as its DDL has it, with its character set."""

    def catalogue_name(self, name: str) -> str:
        """How the catalogue has a name."""
        return name

    def indexes_of(
        self, conn: sa.Connection, table: sa.Table, inspector: Inspector | None = None
    ) -> dict[str, LiveIndex]:
        """The indexes of a table that is there, those on expressions included, by their lower-case
        names. inspector: one that may know them already."""
        with of_any_type():
            found = (inspector or sa.inspect(conn)).get_indexes(table.name, schema=table.schema)
        return {
            str(one["name"]).lower(): LiveIndex(bool(one["unique"]), tuple(one["column_names"]))
            for one in found
        }

    def index_parts(self, conn: sa.Connection, table: sa.Table, index: str) -> set[str]:
        """The name of an index, and of its parts if it is over partitions: plans name those."""
        return {index}

    def has_partitions(self, conn: sa.Connection, table: sa.Table) -> bool:
        """Whether a table has partitions, which are tables."""
        return False

    def id_source(self, conn: sa.Connection, table: sa.Table, column: str) -> IdSource | None:
        """The sequence of a column; None if there is none, or it is the counter of a table, which
        follows each id that is inserted."""
        return None

    def advance_ids(self, at: At, source: IdSource, highest: int) -> list[str]:
        """The statement that sets a sequence to continue after the highest id. It reads that itself
        where the database can, and never sets a sequence back."""
        raise NotImplementedError

    def end_ids(self, at: At, source: IdSource) -> str:
        """The statement that ends a sequence at its last id."""
        return f"ALTER SEQUENCE {source.name} NOCYCLE"

    # --- A live table, see catalogue.py.

    rule_queries: tuple[str, ...] = ()
    """Kind, name and text of its `catalogue.Trait`s; :object is the column of the ids, :guard its
    index."""
    policies: str = ""
    """Its name and its policies, for some :tables that row-level security decides over."""
    from_nothing = ""
    """What stands behind a SELECT of no table."""
    cut_types: dict[str, int] = {}  # noqa: RUF012
    """Types that truncate a text silently, and to how many characters."""
    text_bytes: dict[str, int] = {}  # noqa: RUF012
    """Types of texts with an end of their own, in bytes."""
    codecs: dict[str, str] = {}  # noqa: RUF012
    """Python's names of character sets that do not take all of Unicode."""
    holders: str = ""
    """What uses a column so that the database refuses to change its type; :full is the table."""

    def is_not_null(self, check: str) -> bool:
        """Whether a CHECK is only how the database keeps a NOT NULL."""
        return False

    def refusing(self, conn: sa.Connection, queries: dict[str, str]) -> list[str]:
        """Which of some queries give a row: of each a CHECK refuses a row of values."""
        parts = [f"SELECT '{name}' {query}" for name, query in queries.items()]
        return [str(name) for name in conn.scalars(sa.text(" UNION ALL ".join(parts)))]

    def fold_of(self, collation: str) -> str | None:
        """How this collation makes different ids equal: a fold for `folded`; None if it does not;
        "unknown" if that cannot be determined."""
        return None

    def folded(self, column: sa.ColumnElement[Any], fold: str) -> sa.ColumnElement[Any]:
        """A key that is equal for two ids if and only if the database compares them as equal."""
        raise NotImplementedError

    def max_key(self, kind: TypeEngine[Any]) -> int | None:
        """How many characters of an id our indexes can hold; None = more than any column of ids."""
        return None

    # Templates; {0} is a value.
    as_text = "CAST({0} AS CHAR)"
    """A value of any column as a text."""
    as_number = "NULL"
    """That text, of the number that a change of the type makes of a value; NULL where the two are
    the same by definition."""
    is_not_whole: str
    """Whether it is no whole number, or a change of the type turns it into another one (a word of
    an ENUM into its place)."""

    def identified(self, conn: sa.Connection, full: str, reason: str) -> list[str]:
        """The statements after which a publication takes updates and deletes of a table and of its
        partitions, if that is why they were refused. full: the name of the table as SQL has it."""
        return []

    # --- What `doctor` asks of a server.

    server_settings: tuple[ServerSetting, ...] = ()
    several_writers: SeveralWriters | None = None
    """What is said of a server that `certifies`."""
    writers_variable: tuple[str, str] | None = None
    """The variable that says that a server is one of those, and its value then."""
    oldest_snapshot: str = ""
    """Who holds the oldest snapshot, for how many seconds (None = it does not say), and what ends
    it; no row = no session for long, as far as this login may see."""
    analyze: str = ""
    """Fresh statistics for the planner; {} is the table."""
    current_user: str = ""
    """The current login in the form that GRANT needs."""
    explain: str = ""
    """What stands before a query to get its plan; "" = that needs more than reading."""

    def weak_storage(self, inspector: Inspector, name: str, schema: str | None) -> str:
        """The storage engine of a table, if that has no transactions; "" = it has."""
        return ""

    def strong_storage(self, table: str) -> str:
        """The statement that gives a table one with transactions."""
        raise NotImplementedError

    def single_primary(self, conn: sa.Connection) -> tuple[str, str, str]:
        """Of a group of servers, one of which takes writes: what it is, what is wrong with it, and
        the statement that changes that; "" = nothing is, or there is no such group."""
        return "", "", ""

    def plan_line(self, row: sa.Row[Any]) -> str:
        """A line of a plan."""
        return "  ".join("-" if value is None else str(value) for value in row)

    # --- URLs, drivers and engines.

    family: str
    """The name that those share to which one driver may lead."""
    extra: str = ""
    """The extra of our package with its driver; "" = none is needed."""
    port: int | None = None
    """That of a server, where a URL names none."""
    is_file = False
    """The database is a file: a URL names no host and no user."""
    driver_options: dict[str, dict[str, Any]] = {}  # noqa: RUF012
    """By driver: options of a connection, mostly timeouts for a network that does not answer, which
    most drivers have not."""
    checked_drivers: tuple[str, ...] = ()
    """Drivers that raise a TypeError for an option that they do not know."""
    autocommit_flag = False
    """Autocommit is an attribute of the driver's connection, and setting it sends nothing."""
    inlined_lists: str = ""
    """The parameter style of a driver to which it is cheaper to write ids into a statement than to
    give them as values."""
    probe: str = ""
    """A statement without which a connection says nothing of the state of its database."""
    set_up_statement: str = ""
    """A setting that is stored in the database itself."""

    def check_url(self, url: URL) -> None:
        """Raise ConfigError for a URL that cannot work."""

    def plain_url(self, url: URL) -> URL:
        """The URL without what makes no other database of it."""
        return url.set(host=(url.host or "").lower(), port=url.port or self.port)

    def another_file(self, url: URL, other: URL) -> str:
        """Why the other URL certainly names another database; "" if that is unknown."""
        return ""

    def file_path(self, url: URL) -> str:
        """The absolute path of a database that is a file; "" = it is none that can be watched."""
        return ""

    def plain_query(
        self, driver: str, query: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], list[str]]:
        """The query of an async driver's URL for our driver, and what of it that does not know."""
        return query, []

    def missing_driver(self, url: URL) -> tuple[str, str]:
        """Our driver, and the extra with it, for who has not that of the URL."""
        return self.driver, self.extra

    def connect_options(self, url: URL) -> dict[str, Any]:
        """Options for the driver of a URL that we open; those in the URL have precedence."""
        given = self.driver_options.get(url.get_driver_name(), {})
        return {name: value for name, value in given.items() if name not in url.query}

    def create_options(self, url: URL) -> tuple[URL, dict[str, Any]]:
        """The URL and the options with which an engine of our own is created."""
        return url, {"pool_pre_ping": True, "connect_args": self.connect_options(url)}

    def created(self, engine: sa.Engine) -> None:
        """Prepare an engine that was just created with these."""

    def prepare(self, engine: sa.Engine, *, given: bool) -> None:
        """Prepare ours, of which no session is set. given: its pool is that of a user's Engine."""

    def prepare_lent(self, engine: sa.Engine) -> None:
        """Events and dialect of an engine for async handlers, after `prepare`."""

    def prepare_beside(self, own: sa.Engine, engine: sa.Engine) -> None:
        """Prepare an engine of ours beside another one."""

    def sessions(self, driver: str) -> tuple[Callable[[sa.Connection], None], ...]:
        """What is done when a connection is taken from a pool of ours."""
        return ()

    def known(self, engine: sa.Engine) -> Database:
        """With what differs between servers of this kind; connects if that must be asked."""
        return self

    def place(self, conn: sa.Connection, table: str) -> list[str]:
        """To which server, database and table a name leads on this connection, as the server says;
        [] = it does not."""
        return []

    def set_up(self, engine: sa.Engine) -> None:
        """Set what is stored in the database itself. Raises DatabaseUnavailable."""

    def user_code(self, conn: sa.Connection) -> AbstractContextManager[None]:
        """The block runs user code on this thread in the transaction of `conn`."""
        return nullcontext()

    def past_snapshot(self, conn: sa.Connection) -> AbstractContextManager[None]:
        """Locking reads and writes of the block see what was committed after the snapshot of the
        transaction, where a server would end that for it."""
        return nullcontext()

    def can_block(self, conn: sa.Connection) -> bool:
        """Whether `block_of` can be sent."""
        return False

    def block_of(
        self, conn: sa.Connection, lock: sa.Select[Any], changes: Mapping[str, sa.Update]
    ) -> sa.TextClause:
        """A locking query, then UPDATEs, in one round trip; where there are `blocks`."""
        raise NotImplementedError

    def send_block(
        self, conn: sa.Connection, block: sa.TextClause, params: dict[str, Any]
    ) -> Sequence[int]:
        """Send a block of `block_of`; returns the number of rows of each UPDATE."""
        raise NotImplementedError

    def refuses_block(self, conn: sa.Connection, error: DBAPIError) -> bool:
        """Whether the error says that a block was not understood. Nothing of it was done then; its
        statements may be good without it."""
        return False

    def listen(self, conn: sa.Connection, channel: str) -> None:
        """Listen to a channel on this connection."""
        raise NotImplementedError

    def wait_for_notice(self, conn: sa.Connection, seconds: float) -> bool:
        """Wait for a notification; True if one arrived. Several at once count as one."""
        raise NotImplementedError

    def wake(self, conn: sa.Connection, channel: str) -> None:
        """Wake up listeners at commit; the database sends one notification per transaction at
        most."""
        raise NotImplementedError

    # --- Failovers, see servers.py.

    standby: str = ""
    """What the server is called that takes no writes until it is promoted."""
    standby_query: str = ""
    """Whether it is one."""
    refusal_is_of_standby = False
    """An error of `refuses_writes` says so already."""

    def may_be_standby(self, raw: Any) -> bool:
        """Whether a server must be asked. raw: the driver's connection."""
        return False

    def other_servers(self, conn: sa.Connection) -> list[Callable[[], Any]]:
        """Calls that connect to the other servers that the URL names, to ask them only."""
        return []

    def new_past(self) -> Any:
        """A `servers.Past`; None = nothing is known of the past of its servers."""
        return None
