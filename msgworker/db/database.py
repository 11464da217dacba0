"""What can differ between databases: a `Database`, with a module of its own for each.

Everything that depends on which database it is, is an attribute or a method of `Database`: what it
can do, what its errors mean, what a thing is called in its SQL. Here stand the defaults; a module
such as `postgresql` has what is otherwise there, and is imported when such a database is used. All
that is the same for all databases is in the other modules of `db`, which ask a Database where it is
not.
"""

from __future__ import annotations

import copy
import enum
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Self

import sqlalchemy as sa


class Home(NamedTuple):
    """Where a database is implemented. drivers: the Python packages of its drivers."""

    module: str
    name: str
    drivers: tuple[str, ...]


HOMES = {
    "postgresql": Home("postgresql", "PostgreSQL", ("psycopg", "psycopg2")),
    "sqlite": Home("sqlite", "SQLite", ("sqlite3",)),
    "mariadb": Home("mysql", "MariaDB", ("pymysql", "MySQLdb", "mariadb")),
    "mysql": Home("mysql", "MySQL", ("pymysql", "MySQLdb", "mariadb", "mysql")),
    "oracle": Home("oracle", "Oracle", ("oracledb", "cx_Oracle")),
}
"""All that are supported, by name."""
NAMES = tuple(HOMES)
_OF_DRIVERS = {driver: name for name, home in HOMES.items() for driver in home.drivers}


class _Databases(dict[str, "Database"]):
    """Those that are in use; any other one is imported when it is asked for."""

    def __missing__(self, name: str) -> Database:
        home = HOMES[name]
        found = getattr(importlib.import_module(f"msgworker.db.{home.module}"), home.name)
        made: Database = found()
        return self.setdefault(name, made)


DATABASES = _Databases()


def of_dialect(dialect: sa.Dialect) -> Database:
    """The Database of an engine's dialect. SQLAlchemy has a MariaDB under the name of MySQL, too,
    which it knows once it has connected."""
    return DATABASES["mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name]


def of(bind: sa.Connection | sa.Engine) -> Database:
    """The Database to which a connection leads."""
    return of_dialect(bind.dialect)


def of_error(error: BaseException | None) -> Database | None:
    """The Database whose driver has raised an error; None = no driver has."""
    for kind in type(error).__mro__:
        name = _OF_DRIVERS.get(kind.__module__.partition(".")[0])
        if name is not None:
            return DATABASES[name]
    return None


def is_of_a_driver(error: BaseException | None) -> bool:
    """Whether it is a driver's own error."""
    return type(error).__module__.partition(".")[0] in _OF_DRIVERS


# --- What a Database answers.


class Trouble(enum.Enum):
    """The kinds of database exceptions."""

    RACE = "race"  # the guard index: another instance was first
    AGAIN = "again"  # rolled back by the database; send again, no try counted
    LOST = "lost"  # the connection, the server or our memory; what was being committed is unknown
    REFUSED = "refused"  # missing table or right, read-only, wrong password: an operator must act
    OTHER = "other"


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
    arrays: a whole batch is sent as arrays, and a WITH may contain an UPDATE.
    on_conflict: an INSERT can step back from the entry of one unique index.
    latest_by_lock: a locking read sees what was committed after the snapshot of the transaction.
    ordered_update: an UPDATE changes its rows in the order that it names.
    blocks: several statements may be sent as one block, see `oracle.block_of`.
    row_locks, skip_locked: SELECT ... FOR UPDATE [SKIP LOCKED] exists.
    share_locks: shared row locks exist, with SKIP LOCKED.
    certifies: row locks are those of one server of several, which find out at COMMIT who has
        changed the same row: what relies on a lock must change the row, too (Galera).
    defers: constraints and triggers may be deferred to the COMMIT, unless a transaction forbids it.
    update_ignore: the prefix that makes an UPDATE skip rows that violate the guard.
    rowcount_includes_ignored: the row count of such an UPDATE includes the skipped rows.
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
    max_name: the longest name of a table or column, in bytes.
    loose_types: a column takes every value, whatever its type.
    storage_engines: a table has one of several, some of them without transactions.
    text_in_bytes: the length of a text is counted in bytes, not in characters.
    pads_chars: values read from a CHAR(n) are padded with blanks.
    texts_as_instants: a column of texts can be compared with instants.
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
    max_name: int = 128
    loose_types: bool = False
    storage_engines: bool = False
    text_in_bytes: bool = False
    pads_chars: bool = False
    texts_as_instants: bool = False
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

    # --- What an INSERT can do, and what it tells.

    tells_no_other_ids: bool = False
    """The driver knows of an INSERT only what the counter of a table has given: not an id that
    comes by a trigger, or from a sequence."""

    def returns_ids(self, version: tuple[Any, ...]) -> bool:
        """Whether an INSERT can return what it has inserted. version: of the server."""
        return False

    def insert_unless(
        self,
        table: sa.Table,
        values: dict[str, Any],
        column: sa.ColumnElement[Any],
        where: sa.ColumnElement[bool],
    ) -> sa.Insert:
        """An INSERT of nothing where the partial unique index on this column has the entry
        already."""
        raise NotImplementedError

    # --- Errors, by the codes of the database. `error` is the driver's own.

    def trouble(self, error: BaseException) -> Trouble:
        """The kind of an error."""
        raise NotImplementedError

    def no_connection_left(self, error: BaseException) -> bool:
        """Whether all connections of the server are in use."""
        return False

    def is_denied(self, error: BaseException) -> bool:
        """Whether the login lacks a right on a table or column."""
        return False

    def violated_index(self, error: BaseException) -> str | None:
        """The name of the index that refuses a second entry; None if that is not told: any refusal
        is taken for it."""
        return None

    def refuses_writes(self, error: BaseException) -> bool:
        """Whether it is the refusal of a server, or of a transaction, that is read-only."""
        return False

    def follows(self, error: BaseException) -> bool:
        """Whether it only says that an earlier error has ended the transaction."""
        return False

    def shows_a_row(self, error: BaseException) -> bool:
        """Whether the text contains the row that a CHECK or NOT NULL refuses, with its payload."""
        return False

    def ends_session(self, error: BaseException) -> bool:
        """Whether the connection is of no use any more, although its driver takes it for good."""
        return False

    def ends_transaction(self, error: BaseException) -> bool:
        """Whether the whole transaction was rolled back, and the next statement begins another."""
        return False

    def is_overtime(self, error: BaseException) -> bool:
        """Whether a statement was ended because it took too long."""
        return False

    def is_statement_limit(self, error: BaseException) -> bool:
        """Whether a limit of the server for one statement, or for its wait for a lock, has struck,
        and will again."""
        return False

    def is_session_limit(self, error: BaseException) -> bool:
        """The same for a transaction, or for the time that a session does nothing."""
        return False

    # --- Deadlines.

    session_limits: tuple[str, int] | None = None
    """A query for names and values, and how many of their unit are a second: how long a session may
    do nothing within a transaction, and how long a transaction may last; 0 = without end."""

    @contextmanager
    def deadline(self, conn: sa.Connection, seconds: float) -> Iterator[None]:
        """The database ends each statement of the block that takes longer than this, with an error
        that `is_overtime` knows. `conn` is one of `connecting`."""
        yield

    @contextmanager
    def before_transaction(self, conn: sa.Connection, seconds: float) -> Iterator[None]:
        """The same for a transaction that begins in the block, and for its waits for locks, as far
        as that is set before."""
        yield

    def in_transaction(self, conn: sa.Connection, seconds: float) -> None:
        """What is set in the transaction itself."""
