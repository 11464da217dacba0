"""CREATE, ALTER and DROP for each database."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn, CreateTable
from sqlalchemy.sql.compiler import DDLCompiler
from sqlalchemy.types import TypeEngine

from msgworker.db.connections import unavailable
from msgworker.db.engine import beside
from msgworker.db.types import KeyText


def compiler_for(name: str) -> sa.Dialect:
    """A SQLAlchemy dialect object to print DDL without a connection."""
    drivers = {
        "postgresql": "postgresql+psycopg",
        "sqlite": "sqlite",
        "mariadb": "mariadb+pymysql",
        "mysql": "mysql+pymysql",
        "oracle": "oracle+oracledb",
    }
    made = make_url(f"{drivers[name]}://").get_dialect()()
    if name == "oracle":
        made.server_version_info = (19,)
    return made


ROOM = {"fillfactor": 90}
"""Room in each page for new versions of rows (PostgreSQL)."""


def table_options(name: str, by: str | None = None) -> dict[str, Any]:
    """Options of CREATE TABLE for the message table. by: the column by whose hash it is
    partitioned."""
    if name == "sqlite":
        return {"sqlite_autoincrement": True}  # else the id of a deleted last row is reused
    if by is not None:
        quoted = compiler_for(name).identifier_preparer.quote(by)
        return {"postgresql_partition_by": f"HASH ({quoted})"}
    if name == "postgresql":
        if not _KNOWS_WITH:
            sa.Table.argument_for("postgresql", "with", None)
        return {"postgresql_with": ROOM}
    return engine_options(name)


MOST_PARTITIONS = 128
"""Each statement that looks for a message by its id looks into all of them."""
UNPARTITIONED = {
    "sqlite": "SQLite has no partitions",
    "mariadb": "each unique key needs the partition key in it: a primary key with the object takes "
    "no message without one",
    "mysql": "each unique key needs the partition key in it: a primary key with the object takes "
    "no message without one",
    "oracle": "indexes are over all partitions there, and stay as they are: add PARTITION BY HASH "
    "to the CREATE TABLE of the script (docs/project/oracle.md)",
}
"""Why no script has partitions."""


def partitions_of(compiler: sa.Dialect, table: sa.Table, count: int) -> list[str]:
    """The statements that create the partitions of a table of PostgreSQL, by hash."""
    quote = compiler.identifier_preparer
    schema = "" if table.schema is None else f"{quote.quote_schema(table.schema)}."
    room = ", ".join(f"{name} = {value}" for name, value in ROOM.items())
    return [
        f"CREATE TABLE {schema}{quote.quote(f'{table.name}_p{n}')} PARTITION OF "
        f"{quote.format_table(table)}\n  FOR VALUES WITH (MODULUS {count}, REMAINDER {n}) "
        f"WITH ({room})"
        for n in range(count)
    ]


_KNOWS_WITH = not sa.__version__.startswith("2.0.")
"""Whether SQLAlchemy has the storage parameters of a table of PostgreSQL."""


if not _KNOWS_WITH:

    @compiles(CreateTable, "postgresql")
    def _create_table(element: CreateTable, compiler: DDLCompiler, **kw: Any) -> str:
        text: str = compiler.visit_create_table(element, **kw)  # type: ignore[no-untyped-call]
        given = element.element.dialect_options["postgresql"].get("with") or {}
        if not given:
            return text
        settings = ", ".join(f"{name} = {value}" for name, value in given.items())
        return f"{text.rstrip()}\n WITH ({settings})\n\n"


def engine_options(name: str) -> dict[str, Any]:
    """The storage engine, if there is a choice: one with transactions."""
    if name not in ("mysql", "mariadb"):
        return {}
    options = {"engine": "InnoDB", "default_charset": "utf8mb4"}
    return {f"{prefix}_{k}": v for prefix in ("mysql", "mariadb") for k, v in options.items()}


HIDDEN = "msgworker_hidden"
"""Key in Column.info: hide this generated column from SELECT * and INSERT without columns."""


@compiles(CreateColumn, "mysql", "mariadb")
def _create_column(element: CreateColumn, compiler: DDLCompiler, **kw: Any) -> str:
    text = compiler.visit_create_column(element, **kw)  # type: ignore[no-untyped-call]
    return f"{text} INVISIBLE" if element.element.info.get(HIDDEN) else text


# SQLAlchemy 2.1 uses another name.
_ORDER: dict[str, Any] = {"oracle_order" if hasattr(sa.Identity, "argument_for") else "order": True}


def identity(name: str, *, always: bool = False) -> tuple[Any, ...]:
    """The generator of msg_id, on databases where the type does not imply it. always: no INSERT
    brings its own ids (PostgreSQL)."""
    # BY DEFAULT (always=False): a restore or a copy may bring its own ids.
    if name == "postgresql":
        return (sa.Identity(always=always),)
    if name == "oracle":
        # ORDER: else each node of a RAC uses its own range of ids, so that a message inserted
        # later on another node may get a lower one. On a single node it costs nothing.
        return (sa.Identity(always=False, cache=100, **_ORDER),)
    return ()


def takes_default(name: str, column: sa.Column[Any]) -> bool:
    """Whether a column may be added with its default to a table with rows."""
    default = getattr(column.server_default, "arg", None)
    return name != "sqlite" or default is None or "(" not in str(default)


def retyping(
    dialect: sa.Dialect,
    table: str,
    column: sa.Column[Any],
    *,
    zone: str | None = None,
    number: bool = False,
    counts: bool = False,
) -> list[str]:
    """Statements that give a column the type, default and nullability of `column`.

    zone: it holds instants as the local time of this zone. number: it holds numbers; instants are
    then seconds since 1970. counts: the database generates its values. [] if there is no such
    statement (on SQLite the table must be created again).
    """
    if dialect.name == "sqlite":
        return []
    quoted = dialect.identifier_preparer.quote(column.name)
    kind = column.type.compile(dialect=dialect)
    default = getattr(column.server_default, "arg", None)
    set_default = "" if default is None else f" DEFAULT {_default_text(default)}"
    null = " NULL" if column.nullable else " NOT NULL"
    if dialect.name == "postgresql":
        # Via text, to which every type can be cast: values that do not convert are refused, and so
        # are texts that are too long, which a cast to a length would cut.
        using = f"{quoted}::text"
        if not isinstance(column.type, sa.String | sa.Text | KeyText):
            using += f"::{kind}"
        if isinstance(column.type, sa.Integer):
            using = f"{quoted}::text::numeric::{kind}"
        if number and not isinstance(column.type, sa.Integer):
            using = f"to_timestamp({quoted})"
        if zone is not None:
            using = f"{quoted} AT TIME ZONE '{zone}'"
        parts = [f"ALTER COLUMN {quoted} DROP DEFAULT"]
        parts.append(f"ALTER COLUMN {quoted} TYPE {kind} USING {using}")
        parts += [f"ALTER COLUMN {quoted} SET{set_default}"] if set_default else []
        parts += [f"ALTER COLUMN {quoted} DROP NOT NULL"] if column.nullable else []
        return [f"ALTER TABLE {table} {', '.join(parts)}"]
    if dialect.name == "oracle":
        return [f"ALTER TABLE {table} MODIFY ({quoted} {kind}{set_default}{null})"]
    fill = f"UPDATE {table} SET {quoted} = {_default_text(default)} WHERE {quoted} IS NULL"
    null += " AUTO_INCREMENT" if counts else ""
    alter = f"ALTER TABLE {table} MODIFY {quoted} {kind}{set_default}{null}"
    if not set_default or column.nullable:
        return [alter]
    # The type first: the old type may refuse the default.
    return [f"ALTER TABLE {table} MODIFY {quoted} {kind} NULL", fill, alter]


_ONLY_TO_TEXT = ("UUID", "INET4", "INET6")


def retypes_values(dialect: sa.Dialect) -> bool:
    """Whether `retyping` changes a column that has values: Oracle refuses it, SQLite cannot."""
    return dialect.name in ("postgresql", "mysql", "mariadb")


def can_retype(
    dialect: sa.Dialect, kind: TypeEngine[Any], to: TypeEngine[Any], *, generated: bool
) -> bool:
    """Whether `retyping` can change a column of type `kind`: a generated column cannot be
    converted, and MODIFY can turn a UUID or an address (INET6) only into a text."""
    if dialect.name not in ("mysql", "mariadb"):
        return not generated
    if generated or isinstance(kind, sa.types.NullType):
        return False
    return kind.__visit_name__.upper() not in _ONLY_TO_TEXT or isinstance(to, sa.String)


def check_calls(dialect: sa.Dialect, check: str, column: str) -> bool:
    """Whether a CHECK passes the column to a function, which may accept only its old type: then the
    type cannot be changed while the CHECK exists."""
    if dialect.name != "postgresql":
        return False
    return re.search(rf'\w\s*\(+"?{re.escape(column)}"?\b', check) is not None


def taking_null(dialect: sa.Dialect, table: str, column: str, kind: TypeEngine[Any]) -> list[str]:
    """Statements that make a column of type `kind` nullable, with NULL as its default. []: none, on
    SQLite."""
    quoted = dialect.identifier_preparer.quote(column)
    if dialect.name == "sqlite":
        return []
    if dialect.name == "postgresql":
        changes = f"ALTER COLUMN {quoted} DROP NOT NULL, ALTER COLUMN {quoted} DROP DEFAULT"
        return [f"ALTER TABLE {table} {changes}"]
    if dialect.name == "oracle":
        return [f"ALTER TABLE {table} MODIFY ({quoted} DEFAULT NULL NULL)"]
    if isinstance(kind, sa.types.NullType):  # its type cannot be written
        return []
    return [f"ALTER TABLE {table} MODIFY {quoted} {kind.compile(dialect=dialect)} NULL"]


def refusing_null(dialect: sa.Dialect, table: str, column: str, kind: TypeEngine[Any]) -> list[str]:
    """Statements that make a column of type `kind` NOT NULL; rows with NULL refuse them. []: none,
    on SQLite."""
    quoted = dialect.identifier_preparer.quote(column)
    if dialect.name == "sqlite" or isinstance(kind, sa.types.NullType):
        return []
    if dialect.name == "postgresql":
        return [f"ALTER TABLE {table} ALTER COLUMN {quoted} SET NOT NULL"]
    if dialect.name == "oracle":
        return [f"ALTER TABLE {table} MODIFY ({quoted} NOT NULL)"]
    return [f"ALTER TABLE {table} MODIFY {quoted} {kind.compile(dialect=dialect)} NOT NULL"]


def storing(dialect: sa.Dialect, table: str, column: str) -> list[str]:
    """Statements that turn a generated column into an ordinary one with its values; [] = none."""
    if dialect.name != "postgresql":
        return []
    quoted = dialect.identifier_preparer.quote(column)
    kinds = ("EXPRESSION", "IDENTITY")
    parts = (f"ALTER COLUMN {quoted} DROP {kind} IF EXISTS" for kind in kinds)
    return [f"ALTER TABLE {table} {', '.join(parts)}"]


def setting_default(dialect: sa.Dialect, table: str, column: str, default: str) -> tuple[str, ...]:
    """The statement that gives a column another default; () on SQLite."""
    quoted = dialect.identifier_preparer.quote(column)
    if dialect.name == "sqlite":
        return ()
    if dialect.name == "oracle":
        return (f"ALTER TABLE {table} MODIFY ({quoted} DEFAULT {default})",)
    return (f"ALTER TABLE {table} ALTER COLUMN {quoted} SET DEFAULT {default}",)


class Described(Protocol):
    """A column in the catalogue of the database."""

    @property
    def kind(self) -> Any: ...
    @property
    def nullable(self) -> bool: ...
    @property
    def default(self) -> str | None: ...


def dropping_check(
    dialect: sa.Dialect, table: str, name: str, column: Described | None
) -> tuple[str, ...]:
    """The statement that drops a CHECK; () if there is none, or it has no name. column: the one
    of the same name, to which it belongs on MariaDB."""
    if dialect.name == "sqlite" or not name:
        return ()
    quoted = dialect.identifier_preparer.quote(name)
    if column is not None and dialect.name in ("mysql", "mariadb"):
        if isinstance(column.kind, sa.types.NullType):  # its type cannot be written
            return ()
        default = "" if column.default is None else f" DEFAULT {column.default}"
        null = " NULL" if column.nullable else " NOT NULL"
        kind = column.kind.compile(dialect=dialect)
        return (f"ALTER TABLE {table} MODIFY {quoted} {kind}{default}{null}",)
    return (f"ALTER TABLE {table} DROP CONSTRAINT {quoted}",)


def plain_layout(dialect: sa.Dialect, table: str, layout: str) -> str:
    """The statement that turns a table with a `layout` (see Rule) into a plain one with all that it
    holds; "" if there is none."""
    return f"ALTER TABLE {table} REMOVE PARTITIONING" if layout == "partitions" else ""


def zone_is_lost(dialect: sa.Dialect, kind: TypeEngine[Any]) -> bool:
    """Whether the instants of a column depend on the time zone of the session."""
    return dialect.name == "postgresql" and not getattr(kind, "timezone", True)


def _default_text(default: Any) -> str:
    return str(default) if isinstance(default, sa.TextClause) else f"'{default}'"


def adding(name: str, column: str) -> str:
    """The ADD clause of ALTER TABLE; `column` is its name and type."""
    return f"ADD ({column})" if name == "oracle" else f"ADD COLUMN {column}"


def adds_many(name: str) -> bool:
    """Whether one ALTER TABLE should add several columns, because each ALTER may copy the table."""
    return name in ("mysql", "mariadb")


def dropping_index(dialect: sa.Dialect, index: str, table: sa.Table) -> str:
    """The statement that drops an index of this table, and no other of its name in another schema:
    an index is in the schema of its table."""
    quote = dialect.identifier_preparer
    name = quote.quote(index)
    if dialect.name in ("mysql", "mariadb"):
        return f"DROP INDEX {name} ON {quote.format_table(table)}"
    schema = "" if table.schema is None else f"{quote.quote_schema(table.schema)}."
    return f"DROP INDEX {schema}{name}"


# --- DDL that lets others work on the tables meanwhile, as far as the database can.

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
