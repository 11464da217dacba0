"""What each database of the tests has and what it lacks: a class for each.

A test names what it needs, `@pytest.mark.requires("sequences")`, and with `of=` which of its
parameters need it, by a pattern in their ids. Where the database lacks it the test is skipped, or
runs and is expected to fail, which shows when it no longer lacks it.
`python -m tests.requirements oracle-mariadb` prints the table of docs/project/oracle.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from tests import variants


class Lacks(NamedTuple):
    """why; runs: the test is not skipped; always: it never passes."""

    why: str
    runs: bool = True
    always: bool = True


def skipped(why: str) -> Lacks:
    """A test that needs it cannot run there."""
    return Lacks(why, runs=False)


def fails(why: str) -> Lacks:
    """A test that needs it fails there; one that passes is an error."""
    return Lacks(why)


def may_fail(why: str) -> Lacks:
    """A test that needs it fails there now and then, or some of them do."""
    return Lacks(why, always=False)


May = Lacks | None


class Requirements:
    """What a test may need. None = the database has it."""

    row_locks: May = None  # two transactions can change rows of one table at the same time
    share_locks: May = None  # shared row locks, with SKIP LOCKED
    sessions: May = None  # a connection is a session of a server, which can end it
    logins: May = None
    own_clock: May = None  # a clock that is not the one of the tests' host
    schemas: May = None  # tables in any schema, and the catalogue is read of each
    network: May = None  # connections go over a network
    lengths: May = None  # a column has a length, which a text may exceed
    column_types: May = None  # a column takes values of its type only
    jsonb: May = None
    nested_schemas: May = None  # a database has several schemas, to which SQLAlchemy can translate
    partial_indexes: May = None
    index_by_age: May = None  # open rows are looked for by age (`Database.oldest_index`)
    # They are looked for by object.
    looks_by_object: May = skipped("rows are looked for by age there")
    # The heads of objects are read in pages (no `Database.recursive_skip_scan`).
    pages_of_heads: May = None
    # The column of objects may have a collation for which "mail" and "MAIL" are one.
    objects_without_case: May = None
    triggers_on_their_table: May = None  # a trigger may change the table for which it runs
    sqlite_sql: May = skipped("the test's own SQL is SQLite's")
    # What SQLite, PostgreSQL and MariaDB have in common, which the test uses itself.
    common_sql: May = None
    empty_text: May = None  # an empty text is not NULL
    types_as_named: May = None  # a column of a type holds what that type holds elsewhere
    small_integers: May = None
    booleans: May = None
    fractions: May = None  # a NUMERIC keeps them
    ids_in_a_char: May = None  # the guard takes an object id in a CHAR
    named_checks: May = None  # a CHECK of a column has a name
    sizes_of_others: May = None  # the sizes of tables in other schemas are told
    doctor_asks: May = None  # `doctor` asks the server what the test keeps from it
    isolation_of_an_engine: May = None  # an Engine may have an isolation level of its own
    database_in_url: May = None  # the path of the URL names the database
    guard_column: May = None  # the guard stands in a generated column
    stored_columns: May = None  # generated columns of ours are stored
    fragile_virtual_columns: May = None  # a crash may spoil an index on a virtual column
    aria: May = None  # a storage engine without transactions
    table_history: May = None  # tables keep their former rows
    loose_checks: May = None  # a CHECK may be one that an UPDATE fails for
    sequences: May = None
    ids_of_triggers: May = None  # the id that a trigger gave is told to who inserts
    keys_of_odd_types: May = None
    half_surrogates: May = None  # half of a surrogate pair is stored, and read
    quotes_in_names: May = None
    mixed_executemany: May = None  # values of several types in one column of an executemany
    listen: May = None
    own_sessions: May = None  # a connection has its session to itself, from its begin to its end
    startup_options: May = None
    session_numbers: May = None  # a session can be ended by the number that it says it has
    statements_end_with_their_client: May = None
    # Two transactions that change one row after the other both commit.
    rows_in_two_transactions: May = None
    unique_index_of_any_column: May = None
    unique_keys: May = None
    rows_by_index: May = None  # rows of one value in an index come by its next column


class SQLite(Requirements):
    row_locks = skipped("one writer at a time")
    share_locks = skipped("one writer at a time")
    sessions = skipped("no server, no sessions")
    logins = skipped("SQLite has no passwords")
    own_clock = skipped("its clock is the host's")
    schemas = skipped("SQLite has no schemas")
    network = skipped("no server, no network")
    lengths = skipped("its columns have no length")
    column_types = skipped("the types of columns are advice there")
    nested_schemas = skipped("SQLite has no schemas")
    pages_of_heads = skipped("a recursive query reads them all")
    sqlite_sql = None
    isolation_of_an_engine = skipped("SQLite is always serializable")
    database_in_url = skipped("SQLite makes the file")


class PostgreSQL(Requirements):
    pages_of_heads = skipped("a recursive query reads them all")
    objects_without_case = skipped("such a collation is refused there")


class MariaDB(Requirements):
    partial_indexes = skipped("no index has a WHERE there")
    jsonb = skipped("no such type there")
    nested_schemas = skipped("a schema is a database there")
    index_by_age = skipped("rows are looked for by object there")
    looks_by_object = None
    triggers_on_their_table = skipped("no trigger changes the table there for which it runs")


class MySQL(MariaDB):
    guard_column = fails("the guard is an index on an expression there, without a column")
    stored_columns = fails("no column of ours is stored there")
    fragile_virtual_columns = fails("a crash of MySQL spoils no index on a virtual column")
    aria = fails("MySQL has no such engine")
    table_history = fails("MySQL keeps no history of a table")
    loose_checks = fails("MySQL makes no table with such a CHECK")
    sequences = fails("MySQL has no sequences")
    ids_of_triggers = fails("MySQL returns no row of an INSERT, and no counter gave this id")
    keys_of_odd_types = fails("MySQL has no such type that can be a key")
    half_surrogates = may_fail("MySQL stores no half of a surrogate pair")


class Oracle(Requirements):
    partial_indexes = skipped("no index has a WHERE there")
    share_locks = skipped("no shared row locks there")
    nested_schemas = skipped("a schema is a login there")


class OverMariaDB(Oracle):
    """The stand-in of Oracle."""

    network = skipped("the stand-in has no connections of its own")
    objects_without_case = skipped("such a collation is the stand-in's")
    common_sql = fails("the test's own SQL is of other databases")
    schemas = fails("the stand-in reads the catalogue of one schema at a time")
    empty_text = fails("'' is NULL")
    types_as_named = fails("'' is NULL, a BIGINT is a NUMBER, and a DATE has a time")
    small_integers = fails("a SMALLINT is a NUMBER")
    booleans = fails("MariaDB makes a TINYINT of BOOLEAN")
    fractions = fails("a NUMERIC has no fraction unless it says so")
    ids_in_a_char = fails("MariaDB's generated column takes no object id of a CHAR")
    named_checks = fails("MariaDB gives a CHECK of a column no name of its own")
    sizes_of_others = fails("Oracle tells the sizes of the login's own tables only")
    doctor_asks = fails("doctor asks this of other servers only")
    isolation_of_an_engine = fails(
        "SQLAlchemy compares an Engine's own level with v$transaction, which this login may not "
        "read; READ UNCOMMITTED is none of Oracle's"
    )
    database_in_url = fails("a service stands in the query of the URL")


class MySQLClient(MariaDB):
    half_surrogates = fails("the driver cannot read half of a surrogate pair")


class MariaDBConnector(MySQLClient):
    quotes_in_names = fails("the driver takes a quote in a name for a text")
    mixed_executemany = fails("the driver wants values of one type in a column of executemany")


class PgBouncer(PostgreSQL):
    startup_options = fails("PgBouncer refuses what is set with options= at the connection")
    own_sessions = may_fail("sessions go from one client of the pooler to another as they are")
    session_numbers = fails("the pooler has numbers of its own for its sessions")
    statements_end_with_their_client = may_fail(
        "a statement whose client is gone may reach the server after the look; the handler, which "
        "wrote nothing, then starts twice, and one settle counts"
    )


class PgBouncerByTransaction(PgBouncer):
    listen = fails("no LISTEN: the message is found at the next look")


class Galera(MariaDB):
    sequences = fails("a sequence must have INCREMENT BY 0 there, or no cache")
    rows_in_two_transactions = fails("the rows of a transaction are compared at COMMIT")


class Partitions(PostgreSQL):
    unique_index_of_any_column = fails("an index without the object cannot be unique")
    unique_keys = may_fail("no index over partitions keeps keys unique")
    rows_by_index = may_fail("rows are read from one partition after the other")


DATABASES: dict[str, type[Requirements]] = {
    "sqlite": SQLite,
    "postgresql": PostgreSQL,
    "mariadb": MariaDB,
    "mysql": MySQL,
    "oracle": Oracle,
    "oracle-mariadb": OverMariaDB,
}
VARIANTS: dict[str, type[Requirements]] = {
    "mysqldb": MySQLClient,
    "mariadbconnector": MariaDBConnector,
    "pgbouncer-transaction": PgBouncerByTransaction,
    "pgbouncer-session": PgBouncer,
    "galera": Galera,
    "partitions": Partitions,
}
"""Those that lack something beside what their server lacks."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Skip the tests, or expect the failures of those, whose database lacks what they need."""
    for item in items:
        given = getattr(item, "callspec", None)
        for needed in item.iter_markers("requires"):
            has = _database_of(item)
            if not re.search(needed.kwargs.get("of", ""), given.id if given else ""):
                continue
            for name in needed.args:
                if name not in Requirements.__annotations__:
                    raise pytest.UsageError(f"{item.nodeid}: no requirement is named {name}")
                if has is not None and (lack := getattr(has, name)) is not None:
                    item.add_marker(_marker(name, lack))


def _marker(name: str, lack: Lacks) -> pytest.MarkDecorator:
    why = f"{name}: {lack.why}"
    return pytest.mark.xfail(reason=why, strict=lack.always) if lack.runs else pytest.mark.skip(why)


def _database_of(item: pytest.Item) -> type[Requirements] | None:
    """What the database of a test has, by its parameter or its fixture; None: it has none."""
    if variants.name() in VARIANTS:  # nothing else runs
        return VARIANTS[variants.name()]
    given = getattr(item, "callspec", None)
    params = dict(given.params) if given else {}
    fixtures = getattr(item, "fixturenames", ())
    for one in (params.pop("database", None), *params.values(), *fixtures):
        if isinstance(one, str) and one in DATABASES:
            return DATABASES[variants.database_name(one)]
    return None


def shown(database: str) -> str:
    """What one lacks of which tests are run all the same, as a table."""
    has = DATABASES[database]
    lines = ["| a test that requires | fails, because |", "|---|---|"]
    for name in Requirements.__annotations__:
        if (lack := getattr(has, name)) is not None and lack.runs:
            lines.append(f"| `{name}` | {lack.why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(shown(sys.argv[1]), end="")
