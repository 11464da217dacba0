"""DDL that lets others work on the tables meanwhile, as far as the database can."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker.dialects.connections import unavailable
from msgworker.dialects.engines import beside

LOCK_SECONDS = 5
"""So long a change of a table waits for those who use it; all others wait behind it meanwhile."""
LOOK_SECONDS = 0.5
COPYING = "writers wait while the table is copied"
AN_INSTANT = "others wait for an instant"
BUILDING = "writers wait while the index is built"
NOBODY = "no program waits"


def _named(dialect: sa.Dialect) -> str:
    """The name of the database; SQLAlchemy has a MariaDB under that of MySQL, too."""
    return "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name


def changing_table(dialect: sa.Dialect, statement: str) -> tuple[str, ...]:
    """The statements, of one transaction, that run an ALTER TABLE which gives up if it does not get
    its lock within LOCK_SECONDS."""
    name = _named(dialect)
    if name == "postgresql":
        return f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'", statement
    if name == "mariadb":
        return (f"SET STATEMENT lock_wait_timeout={LOCK_SECONDS} FOR {statement}",)
    return (statement,)


def wait_of_columns(dialect: sa.Dialect, *, stored: bool) -> str:
    """Who waits while columns are added; stored: they are computed for every row."""
    return COPYING if stored and dialect.name in ("mysql", "mariadb") else AN_INSTANT


def indexing_online(dialect: sa.Dialect, statement: str) -> tuple[str, str]:
    """A CREATE INDEX on a table that is in use, and who waits for it."""
    name = _named(dialect)
    if name == "postgresql":
        return re.sub(r"^CREATE (UNIQUE )?INDEX ", r"CREATE \1INDEX CONCURRENTLY ", statement), (
            f"{NOBODY}; it waits for transactions that are open"
        )
    if name == "mariadb":
        return f"{statement} ALGORITHM=INPLACE LOCK=NONE", AN_INSTANT
    return statement, AN_INSTANT if name == "mysql" else BUILDING


def is_concurrent(statement: str) -> bool:
    """Whether a statement runs in no transaction."""
    return " INDEX CONCURRENTLY " in statement


def dropping_unfinished(conn: sa.Connection, table: sa.Table, index: str) -> str:
    """The statement that drops an index whose creation was interrupted, and no other: neither one
    that is being built nor one that is good (PostgreSQL)."""
    quote = conn.dialect.identifier_preparer
    on = quote.format_table(table)
    name = quote.quote(index)
    name = name if table.schema is None else f"{quote.quote_schema(table.schema)}.{name}"
    text = name.replace("'", "''")
    return (
        f"DO $$ BEGIN PERFORM set_config('lock_timeout', '{LOCK_SECONDS}s', true); "
        f"LOCK TABLE {on} IN SHARE UPDATE EXCLUSIVE MODE NOWAIT; "
        f"IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('{text}') "
        f"AND NOT (indisvalid AND indisready)) THEN DROP INDEX {name}; END IF; END $$"
    )


def owner_rights(engine: sa.Engine) -> str:
    """What a login needs that creates and changes the tables."""
    return {
        "postgresql": "CREATE on the schema, and to own the tables",
        "mysql": "CREATE, ALTER, INDEX, SELECT, INSERT and UPDATE on the tables",
        "mariadb": "CREATE, ALTER, INDEX, SELECT, INSERT and UPDATE on the tables",
        "oracle": "CREATE TABLE and a quota, and to own the tables",
        "sqlite": "to write the file and its directory",
    }[engine.dialect.name]


@contextmanager
def in_turn(engine: sa.Engine, what: str) -> Iterator[None]:
    """Only one program at a time is in the block, where statements of two could hinder each other:
    on PostgreSQL, where two that build an index on a table end in a deadlock. It waits."""
    if engine.dialect.name != "postgresql":
        yield
        return
    own = beside(engine)
    try:
        with own.connect() as conn, conn.begin():
            # The building of an index waits for all snapshots that are older. So it looks again and
            # again instead of waiting in a statement, and the SET ends the snapshot of the SELECT.
            key = zlib.crc32(what.encode()) - 2**31
            taken = False
            while not taken:
                taken = bool(conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(key))))
                conn.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
                time.sleep(0 if taken else LOOK_SECONDS)
            yield
    except DBAPIError as error:
        raise unavailable(engine, error) from error
    finally:
        own.dispose()
