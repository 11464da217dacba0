"""Reading the live database: what the catalogue says of tables, their CHECKs, triggers, types and
values, and the settings and plans of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import NoneType
from typing import Any, Literal, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.reflection import Inspector, ObjectKind, ObjectScope
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from msgworker.db.database import (
    At,
    Database,
    IdSource,
    Trouble,
    of,
    of_any_type,
    of_dialect,
    printing,
    quoted,
)
from msgworker.db.errors import raise_lost, trouble
from msgworker.db.types import NUMBERS, ColumnLimit
from msgworker.errors import ConfigError


def names_there(inspector: Inspector, schema: str | None) -> list[str]:
    """The tables and views of a schema; an inspector reads them once. Raises ConfigError for the
    default one of a server's that is not there."""
    server = of_dialect(inspector.dialect)
    if server.family == "mysql" and schema is None and inspector.default_schema_name is None:
        raise ConfigError(
            "the database url names no database: write its name behind the host, "
            f"{server.driver}://user@host/NAME, or in front of the table's, "
            '--table NAME.msgworker_message or MessageTable("NAME.msgworker_message")'
        )
    return [*inspector.get_table_names(schema=schema), *inspector.get_view_names(schema=schema)]


def columns_there(
    inspector: Inspector, names: Sequence[str], schema: str | None
) -> dict[str, list[Any]]:
    """The columns of tables and views that are there, by name; one statement where the database
    describes many tables in one."""
    if type(inspector.dialect).get_multi_columns is DefaultDialect.get_multi_columns:
        return {name: columns_of(inspector, name, schema) for name in names}
    with of_any_type():
        found = inspector.get_multi_columns(schema, names, ObjectKind.ANY, ObjectScope.ANY)
    return {name: list(columns) for (_, name), columns in found.items()}


def columns_of(inspector: Inspector, name: str, schema: str | None) -> list[Any]:
    """The columns of a table or view that is there."""
    with of_any_type():
        return list(inspector.get_columns(name, schema=schema))


def is_there(inspector: Inspector, table: sa.Table) -> bool | None:
    """Whether a table exists; None if this login may not see it."""
    try:
        return inspector.has_table(table.name, schema=table.schema)
    except DBAPIError as error:  # MySQL describes only tables on which the login has a right
        if trouble(error) is not Trouble.REFUSED:
            raise
        return None


def schemas_with(conn: sa.Connection, name: str, *, but: str | None) -> list[str]:
    """The other schemas (databases on MariaDB and MySQL) with a table of this name, as far as this
    login sees them, as SQLAlchemy names them; but: None for the default one."""
    query = of(conn).other_schemas
    if not query:
        return []
    found = conn.scalars(sa.text(query), {"name": name, "own": but}).all()
    if conn.dialect.requires_name_normalize:  # Oracle keeps plain names in capitals
        found = [conn.dialect.normalize_name(schema) for schema in found]
    return sorted({str(schema) for schema in found})


def asked(conn: sa.Connection, text: str, table: sa.Table, **more: Any) -> sa.CursorResult[Any]:
    """A query of the catalogue about one table, by the parameters that it has."""
    name = of(conn).catalogue_name(table.name)
    known = {"table": quoted(table), "schema": table.schema, "name": name, **more}
    query = sa.text(text)
    return conn.execute(query, {key: known[key] for key in query._bindparams})


def name_holder(conn: sa.Connection, table: sa.Table, name: str) -> str:
    """What else has the name of this table, which is missing, or of an index that it is to have; ""
    if nothing."""
    query = of(conn).name_holder
    return str(asked(conn, query, table, name=name).scalar() or "") if query else ""


def row_estimate(conn: sa.Connection, table: sa.Table) -> int | None:
    """How many rows a table has according to the database's statistics; None if unknown.

    SQLite has no statistics; there ids are consecutive, and the highest one is close.
    """
    query = of(conn).row_estimate
    if not query:
        (key,) = table.primary_key.columns
        span = sa.select(sa.func.max(key) - sa.func.min(key) + 1)
        return conn.scalar(span)
    found = asked(conn, query, table).scalar()
    return None if found is None or found < 0 else int(found)


def table_size(conn: sa.Connection, table: sa.Table) -> tuple[int, int] | None:
    """The bytes of a table and of its indexes; None if it is not there, or the database does not
    report them: SQLite only those of the whole file, see `file_size`; Oracle only those of the
    login's own tables.

    On MariaDB and MySQL from statistics, and with the primary key among the rows.
    """
    query = of(conn).table_size
    found = asked(conn, query, table).first() if query else None
    rows, indexes = (None, None) if found is None else tuple(found)
    return None if rows is None else (int(rows), int(indexes or 0))


def file_size(conn: sa.Connection) -> int | None:
    """The bytes of a database that is one file (SQLite), all its tables included; else None."""
    query = of(conn).file_size
    return int(conn.scalar(sa.text(query))) if query else None


def column_types(conn: sa.Connection, table: sa.Table) -> dict[str, str]:
    """The columns of a table that is there, and the type of each in the words of the database."""
    known, query = {c.name: repr(c.type) for c in table.c}, of(conn).column_types
    found: Any = asked(conn, query, table) if query else ()
    return known | {str(name): str(kind) for name, kind in found}


def id_source(conn: sa.Connection, table: sa.Table, column: str) -> IdSource | None:
    """The sequence of a column, in a connection of `connecting`; None if there is none. Counters of
    tables (AUTO_INCREMENT, SQLite's) are none: they follow each id that is inserted."""
    try:
        return of(conn).id_source(conn, table, column)
    except DBAPIError as error:
        raise_lost(error)
    return None


# --- What `doctor` asks of a server.


def refuses_all_writes(conn: sa.Connection) -> str:
    """Why the server would refuse every write, whatever the table; "" if nothing says so."""
    for setting in of(conn).server_settings:
        if not setting.stops:
            continue
        try:
            value = str(conn.scalar(sa.text(setting.query)))
        except DBAPIError as error:
            raise_lost(error)
            continue
        if value.lower() not in setting.good:
            return f"{setting.name} is {value}: {setting.otherwise}. To fix it: {setting.fix}"
    return ""


class _Explained(sa.Executable, sa.ClauseElement):
    inherit_cache = False

    def __init__(self, query: Any, prefix: str) -> None:
        self.query = query
        self.prefix = prefix


@compiles(_Explained)
def _explained(element: _Explained, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{element.prefix}{compiler.process(element.query, **kw)}"


def plan_of(conn: sa.Connection, query: Any, params: dict[str, Any]) -> list[str] | None:
    """The database's plan of a query, in lines; None if a plan needs more than reading."""
    database = of(conn)
    if not database.explain:
        return None
    found = conn.execute(_Explained(query, database.explain), params).all()
    return [database.plan_line(row) for row in found]


# --- Properties of a live table beside its columns: CHECKs, triggers, the collation of ids.


@dataclass(frozen=True, slots=True)
class Trait:
    """A property of a table beside columns and indexes.

    text: the condition of a CHECK (column check: of one that is a part of the column `name`); when
    a trigger, or a rule, runs; the collation of the column `name`; the type of a column that
    truncates texts; an ON UPDATE that changes ids; a layout in which the table cannot be indexed
    (versions, partitions; parent: of partitions that are tables; heirs: of tables that inherit from
    it; heir: it does so itself; view, foreign: it is one; shared: it has our tables of another one
    of its name, sharing: it would have them), or enforces the types of its columns (strict), or is
    emptied by a crash of the server (unlogged), or is divided by the hash of the object (hash); the
    modulus of one of these parts; the letters of what policies let this login do with rows (r, w, *
    = all), where row-level security decides it (policy); the character set of a column that does
    not take all of Unicode (name "" = of all columns); a default that the description of the column
    lacks; what else is said of a column (rest, see `Database.whole_columns`); "" for the column
    that is SQLite's own number of rows (rowid), and where the number of a deleted last row is given
    again (reused); the columns of a UNIQUE by which a row replaces the one that has the same values
    (replaces)."""

    kind: Literal[
        "check",
        "column check",
        "default",
        "rest",
        "trigger",
        "compare",
        "cut",
        "changes",
        "layout",
        "part",
        "charset",
        "policy",
        "rowid",
        "reused",
        "replaces",
    ]
    name: str
    text: str


def hooks_of(conn: sa.Connection, table: sa.Table) -> list[Trait]:
    """Of a table's rules its triggers, and the policies for this login: they may be added at any
    time, without a word to those who work on it."""
    found = traits_of(conn, table, object_id="", guard="", only=HOOKS)
    return [trait for trait in found if trait.kind in HOOKS]


HOOKS = ("trigger", "policy")


class Policies(NamedTuple):
    """Row-level security that decides which rows of a table this login sees and changes. names: of
    its policies. may: what they let it do: r, a, w, d, or * for all."""

    table: str
    names: str
    may: str


def policies_of(conn: sa.Connection, tables: Sequence[sa.Table]) -> tuple[Policies, ...]:
    """Those of the tables over which row-level security decides; no statement where there is no
    such thing."""
    query = of(conn).policies
    if not query:
        return ()
    found = conn.execute(sa.text(query), {"tables": [quoted(table) for table in tables]})
    return tuple(Policies(*map(str, row)) for row in found)


def traits_of(
    conn: sa.Connection, table: sa.Table, *, object_id: str, guard: str, only: Sequence[str] = ()
) -> list[Trait]:
    """The CHECKs and triggers of a table that this login may see, and the collation of its ids.

    object_id: the column of the ids; guard: its index. only: the
    kinds that are looked for, () = all.
    """
    database = of(conn)
    wanted = [f"'{kind}'" for kind in only] or [""]
    queries = [query for query in database.rule_queries if any(one in query for one in wanted)]
    known = {"object": object_id, "guard": guard}
    found = _rows(conn, " UNION ALL ".join(queries), table, known)
    if found is None:  # an older server lacks some: query each separately
        found = [row for part in queries for row in _rows(conn, part, table, known) or ()]
    traits, collation = [], ""
    for kind, named, text in found:
        if kind == "table":  # its CREATE TABLE
            collation = collation_in(str(text), object_id)
            traits += [Trait("check", "", check) for check in checks_in(str(text))]
            if _STRICT.search(str(text)):
                traits.append(Trait("layout", str(named), "strict"))
            if _VIRTUAL.match(str(text)):
                traits.append(Trait("layout", str(named), "foreign"))
            if not _AUTOINCREMENT.search(str(text)):
                traits.append(Trait("reused", str(named), ""))
            traits += [Trait("replaces", "", part) for part in _replacing(str(text))]
        elif not database.is_not_null(str(text)):
            traits.append(Trait(kind, str(named), str(text)))
    if collation:  # behind that of the guard
        traits.append(Trait("compare", object_id, collation))
    return traits


_STRICT = re.compile(r"\)[\s\w,]*\bSTRICT\b[\s\w,]*$", re.I)
_VIRTUAL = re.compile(r"\s*CREATE\s+VIRTUAL\b", re.I)
_AUTOINCREMENT = re.compile(r"\bAUTOINCREMENT\b", re.I)
_REPLACE = re.compile(r"\bUNIQUE\s*(?:\(([^()]*)\))?\s*ON\s+CONFLICT\s+REPLACE\b", re.I)


def _replacing(statement: str) -> Iterator[str]:
    """The columns of each UNIQUE in a CREATE TABLE that deletes the row with the same values; or
    the column of which it is a part, as it is defined before it."""
    for found in _REPLACE.finditer(statement):
        part, shorter = "", statement[: found.start()]
        while part != shorter:
            part, shorter = shorter, re.sub(r"\([^()]*\)", "", shorter)
        yield " ".join((found[1] or re.split("[,(]", part)[-1]).split())


def _rows(
    conn: sa.Connection, text: str, table: sa.Table, known: Mapping[str, Any]
) -> Sequence[Any] | None:
    try:
        return asked(conn, text, table, **known).all()
    except DBAPIError as error:
        raise_lost(error)
        return None


_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|\w+|.", re.S
)


def checks_in(statement: str) -> Iterator[str]:
    """The conditions of the CHECKs in a CREATE TABLE."""
    depth, begun, wanted = 0, 0, False
    for token in _TOKEN.finditer(statement):
        text = token[0]
        if text.isspace() or text.startswith(("--", "/*")):
            continue
        if text == "(":
            depth += 1
            if wanted:
                begun, inside, wanted = token.end(), depth, False
        elif text == ")":
            if begun and depth == inside:
                yield statement[begun : token.start()]
                begun = 0
            depth -= 1
        elif not begun:
            wanted = text.upper() == "CHECK"


def collation_in(statement: str, column: str) -> str:
    """The collation that a CREATE TABLE names for a column; "" = it names none."""
    depth, begins, ours, wanted = 0, False, False, False
    for token in _TOKEN.finditer(statement):
        text = token[0]
        if text.isspace() or text.startswith(("--", "/*")):
            continue
        bare = text[1:-1] if text[0] in "'\"`[" else text
        if text in "()":
            depth += 1 if text == "(" else -1
            begins = begins or (depth == 1 and text == "(" and not ours)
        elif depth == 1 and text == ",":
            begins, ours = True, False
        elif begins:
            ours, begins = bare.lower() == column.lower(), False
        elif ours and depth == 1:
            if wanted:
                return bare
            wanted = text.upper() == "COLLATE"
    return ""


def refused_by(
    conn: sa.Connection, check: str, rows: Mapping[str, Mapping[str, Any]]
) -> list[str] | None:
    """Which of some rows (name -> column -> value) a CHECK refuses, evaluated by the database;
    None if it uses a column that they do not have.

    A value is a number, a text, None, or a SQL expression.
    """
    quote = printing(conn.dialect).identifier_preparer.quote
    database, queries = of(conn), {}
    for name, row in rows.items():
        values = [f"{_literal(conn, value)} AS {quote(column)}" for column, value in row.items()]
        source = f"(SELECT {', '.join(values)}{database.from_nothing}) mw_row"
        queries[name] = f"FROM {source} WHERE NOT ({check})".replace(":", r"\:")
    try:
        return database.refusing(conn, queries)
    except DBAPIError as error:
        raise_lost(error)
        return None


def refused_by_domain(
    conn: sa.Connection, domain: TypeEngine[Any], values: Mapping[str, Any]
) -> list[str]:
    """Which of some values, by name, a domain of PostgreSQL does not take."""
    name = printing(conn.dialect).identifier_preparer.format_type(domain)  # type: ignore[attr-defined]
    refused = []
    for row, value in values.items():
        try:
            conn.execute(_plain(f"SELECT CAST({_literal(conn, value)} AS {name})"))
        except DBAPIError as error:
            raise_lost(error)
            refused.append(row)
    return refused


def _plain(query: str) -> sa.TextClause:
    return sa.text(query.replace(":", r"\:"))


def _literal(conn: sa.Connection, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, sa.ClauseElement):
        return str(value.compile(dialect=conn.dialect))
    return f"'{value}'" if isinstance(value, str) else str(value)


def fold_of(database: Database, traits: Sequence[Trait]) -> str | None:
    """How the collation makes different ids equal: a fold for `Database.folded`; None if it does
    not; "unknown" if that cannot be determined."""
    return database.fold_of(next((trait.text for trait in traits if trait.kind == "compare"), ""))


def cutting(database: Database, traits: Sequence[Trait]) -> dict[str, TypeEngine[Any]]:
    """The text columns that truncate silently: "char" and name of PostgreSQL, which the catalogue
    describes as texts of any length."""
    lengths = database.cut_types
    return {trait.name: sa.String(lengths[trait.text]) for trait in traits if trait.kind == "cut"}


def takes_any_text(kind: Any) -> bool:
    """Whether a column of this type holds any text, unlike an ENUM or SET."""
    listed = isinstance(kind, sa.Enum) or kind.__visit_name__ in ("ENUM", "SET")
    return isinstance(kind, sa.String) and not listed


def is_lob(kind: Any) -> bool:
    """Whether a column of this type is stored beside its row: TEXT, BLOB, CLOB and their like."""
    return str(kind.__visit_name__).upper().endswith(("TEXT", "BLOB", "CLOB"))


def holds_json(kind: Any) -> bool:
    """Whether a column of this type can hold any JSON, or only a number, and returns it unchanged:
    BINARY is padded, and a number with leading zeros is not JSON."""
    if kind.__visit_name__ == "DOMAIN":
        return holds_json(kind.data_type)
    texts = (sa.JSON, sa.LargeBinary, sa.VARBINARY)
    numbers = isinstance(kind, (*NUMBERS, sa.Boolean))
    fills = getattr(kind, "zerofill", False)
    return isinstance(kind, texts) or takes_any_text(kind) or (numbers and not fills)


def max_text(kind: TypeEngine[Any]) -> int | None:
    """How many characters a text column holds at least; None = more than we ever write."""
    if kind.__visit_name__ == "TINYTEXT":
        return 255 // 4  # bytes
    length: int | None = getattr(kind, "length", None)
    return length


_ENDLESS = 1 << 32


def column_limit(
    database: Database, role: str, kind: TypeEngine[Any], charset: str
) -> ColumnLimit | None:
    """How much of what a producer sends fits into a column; None = unknown, or unlimited."""
    codec = database.codecs.get(charset, "")
    if database.loose_types or (isinstance(kind, sa.JSON) and not codec):
        return None
    if isinstance(kind, sa.Enum):
        words = frozenset(word.rstrip(" ").casefold() for word in kind.enums)
        return None if kind.name is not None else ColumnLimit(role, 0, "words", words=words)
    unsigned = bool(getattr(kind, "unsigned", False))
    if isinstance(kind, sa.Integer):
        most = max_whole(kind)
        most = whole_end(kind) if most is None else most
        return ColumnLimit(role, most, "", least=0 if unsigned else -1 - most)
    if isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float):
        if kind.precision is None or kind.scale is None or kind.scale < 0:
            return None
        most = int(10 ** max(0, kind.precision - kind.scale)) - 1
        least = 0 if unsigned else -most
        return ColumnLimit(role, most, "", least=least, places=kind.scale)
    in_bytes = database.text_bytes.get(kind.__visit_name__)
    if in_bytes is not None:
        return ColumnLimit(role, in_bytes, "bytes", charset, codec)
    length: int | None = getattr(kind, "length", None)
    if length is None and not codec:
        return None
    if isinstance(kind, sa.LargeBinary | sa.BINARY | sa.VARBINARY):
        return None if length is None else ColumnLimit(role, length, "bytes")
    if not isinstance(kind, sa.String | sa.JSON):
        return None
    return ColumnLimit(role, _ENDLESS if length is None else length, "characters", charset, codec)


def id_types(database: Database, kind: TypeEngine[Any]) -> tuple[type, ...]:
    """The types of the ids of objects that a column takes as they are."""
    if database.loose_types or isinstance(kind, sa.String | sa.types.NullType):
        return (object,)
    if isinstance(kind, NUMBERS):
        return (int, NoneType) if isinstance(kind, sa.Integer) else (int, Decimal, NoneType)
    if isinstance(kind, sa.Uuid):
        return (UUID, NoneType)
    return (object,) if database.reads_texts else (NoneType,)


def codec_of(database: Database, traits: Sequence[Trait], column: str) -> str:
    """What encodes the texts that a column takes, see `payload.fitting`; "" = it takes all. Of a
    character set that is not known here only ASCII is used. Column "": of our own tables, which
    have the character set of the database where that has one."""
    for trait in traits:
        if trait.kind == "charset" and trait.name in ("", column):
            return database.codecs.get(trait.text, "ascii")
    return ""


def max_whole(kind: TypeEngine[Any]) -> int | None:
    """The largest whole number that a column holds; None = at least that of 32 bits."""
    bits = {"TINYINT": 8, "SMALLINT": 16, "small_integer": 16, "MEDIUMINT": 24}
    if kind.__visit_name__ in bits:
        return int(2 ** (bits[kind.__visit_name__] - (not getattr(kind, "unsigned", False)))) - 1
    precision = getattr(kind, "precision", None)
    if precision is None or isinstance(kind, sa.Integer):
        return None
    return int(10 ** min(10, max(0, precision - (getattr(kind, "scale", None) or 0)))) - 1


def max_number(kind: TypeEngine[Any]) -> int | None:
    """The largest number of a small integer column; None = more than we write."""
    return max_whole(kind) if kind.__visit_name__ == "TINYINT" else None


def whole_end(kind: TypeEngine[Any]) -> int:
    """The highest id of a column of whole numbers that holds to its type."""
    bits = 63
    if isinstance(kind, sa.Integer) and not isinstance(kind, sa.BigInteger):
        bits = 15 if isinstance(kind, sa.SmallInteger) else 31
    return int(2 ** (bits + bool(getattr(kind, "unsigned", False)))) - 1


def values_as_numbers(
    conn: sa.Connection, table: str, column: str, *, limit: int
) -> list[tuple[str | None, str | None, int]]:
    """What a column holds, as a text and as the number that a change of its type makes of it, with
    counts; the most frequent first. The number is None where the two are the same by definition."""
    quoted = printing(conn.dialect).identifier_preparer.quote(column)
    text, number = (one.format(quoted) for one in (of(conn).as_text, of(conn).as_number))
    query = (
        f"SELECT v, w, count(*) FROM (SELECT {text} AS v, {number} AS w FROM {table}) x"
        f" GROUP BY v, w ORDER BY 3 DESC, v LIMIT {limit}"
    )
    found = conn.execute(_plain(query)).all()
    return [(_text(v), _text(w), int(n)) for v, w, n in found]


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def not_whole(conn: sa.Connection, table: str, column: str) -> list[str]:
    """Examples of values that are no whole numbers, or that a change of the type turns into other
    ones (the text of an ENUM into its ordinal)."""
    quoted = printing(conn.dialect).identifier_preparer.quote(column)
    text, odd = (one.format(quoted) for one in (of(conn).as_text, of(conn).is_not_whole))
    query = f"SELECT {text} FROM {table} WHERE {quoted} IS NOT NULL AND {odd} LIMIT 5"
    return [str(_text(value)) for value in conn.scalars(_plain(query))]


def longer_than(conn: sa.Connection, table: str, column: str, length: int) -> int:
    """How many texts of a column are longer."""
    quoted = printing(conn.dialect).identifier_preparer.quote(column)
    text = f"char_length({of(conn).as_text.format(quoted)})"
    return int(conn.scalar(_plain(f"SELECT count(*) FROM {table} WHERE {text} > {length}")))


def hanging(
    conn: sa.Connection, spec_name: tuple[str | None, str], at: At, was: Any, to: Any
) -> tuple[list[str], list[tuple[str, str]]]:
    """What hangs on a column whose type is to be changed: what keeps the database from it, in
    words; and CHECKs, by name and text, that are of no use with the new type. spec_name: schema
    and name of the table."""
    query, (schema, bare) = of(conn).holders, spec_name
    given = {"full": at.table, "schema": schema, "bare": bare, "column": at.name}
    named = {name: value for name, value in given.items() if f":{name}" in query}
    held = [str(_text(found)) for found in conn.scalars(sa.text(query), named)]
    more, checks = of(conn).broken_by(conn, at, was, to)
    return [*held, *more], checks


def filled(conn: sa.Connection, table: str, column: str) -> int:
    """How many rows have a value in a column."""
    quoted = printing(conn.dialect).identifier_preparer.quote(column)
    return int(conn.scalar(_plain(f"SELECT count({quoted}) FROM {table}")))
