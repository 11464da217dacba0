"""Properties of a live table beside its columns: CHECKs, triggers, the collation of ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from msgworker.db.catalogue import _quoted
from msgworker.db.database import Database, Trouble
from msgworker.db.errors import is_overtime, trouble


@dataclass(frozen=True, slots=True)
class Rule:
    """A property of a table beside columns and indexes.

    text: the condition of a CHECK; when a trigger, or a rule, runs; the collation of the column
    `name`; the type of a column that truncates texts; an ON UPDATE that changes ids; a layout in
    which the table cannot be indexed (versions, partitions; parent: of partitions that are tables;
    heirs: of tables that inherit from it; heir: it does so itself), or enforces the types of its
    columns (strict), or is divided by the hash of the object (hash); the modulus of one of these
    parts; the letters of what policies let this login do with rows (r, w, * = all), where row-level
    security decides it (policy); the character set of a column that does not take all of Unicode
    (name "" = of all columns); "" for the column that is SQLite's own number of rows (rowid).
    """

    kind: Literal[
        "check",
        "trigger",
        "compare",
        "cut",
        "changes",
        "layout",
        "part",
        "charset",
        "policy",
        "rowid",
    ]
    name: str
    text: str


_MYSQL_REST = (
    "SELECT 'charset', column_name, character_set_name FROM information_schema.columns"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
    " AND character_set_name NOT IN ('utf8mb4', 'utf16', 'utf32')",
    "SELECT 'trigger', trigger_name, concat(action_timing, ' ', event_manipulation)"
    " FROM information_schema.triggers WHERE event_object_schema = coalesce(:schema, database())"
    " AND event_object_table = :name",
    "SELECT 'compare', column_name, coalesce(collation_name, '')"
    " FROM information_schema.columns WHERE table_schema = coalesce(:schema, database())"
    " AND table_name = :name AND column_name = :object",
    "SELECT 'layout', table_name, CASE table_type WHEN 'SYSTEM VERSIONED' THEN 'versions' ELSE"
    " 'partitions' END FROM information_schema.tables WHERE table_name = :name"
    " AND table_schema = coalesce(:schema, database())"
    " AND (table_type = 'SYSTEM VERSIONED' OR create_options LIKE '%partitioned%')",
    "SELECT 'changes', column_name, extra FROM information_schema.columns"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
    " AND column_name = :object AND extra LIKE '%on update%'",
)
_POLICIES = (
    "coalesce(string_agg(polname::text, ', ' ORDER BY polname), ''),"
    " coalesce(string_agg(polcmd::text, '') FILTER (WHERE polpermissive AND (polroles = '{0}'"
    " OR EXISTS (SELECT FROM unnest(polroles) r WHERE r <> 0"
    " AND pg_has_role(current_user, r, 'USAGE')))), '')"
    " FROM pg_class c LEFT JOIN pg_policy ON polrelid = c.oid"
)
_POLICIES_OF_TABLES = (
    f"SELECT c.relname::text, {_POLICIES} WHERE c.oid IN (SELECT to_regclass(x)"
    " FROM unnest(CAST(:tables AS text[])) AS x) AND row_security_active(c.oid)"
    " GROUP BY c.oid, c.relname ORDER BY 1"
)
RULES: dict[str, tuple[str, ...]] = {
    "postgresql": (
        "SELECT 'check', conname::text, pg_get_expr(conbin, conrelid) FROM pg_constraint"
        " WHERE conrelid = to_regclass(:table) AND contype = 'c'",
        # with those of partitions alone
        "SELECT DISTINCT 'trigger', tgname::text, pg_get_triggerdef(oid) FROM pg_trigger"
        " WHERE (tgrelid = to_regclass(:table) OR tgrelid IN (SELECT inhrelid FROM pg_inherits"
        " WHERE inhparent = to_regclass(:table))) AND NOT tgisinternal AND tgenabled <> 'D'",
        "SELECT 'trigger', rulename::text, pg_get_ruledef(oid) FROM pg_rewrite"
        " WHERE ev_class = to_regclass(:table) AND rulename <> '_RETURN' AND ev_enabled <> 'D'",
        "SELECT 'compare', a.attname::text, CASE WHEN t.typname = 'citext' THEN 'citext'"
        " WHEN to_jsonb(c) ->> 'collisdeterministic' = 'false' THEN c.collname::text ELSE '' END"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " LEFT JOIN pg_collation c ON c.oid = a.attcollation"
        " WHERE a.attrelid = to_regclass(:table) AND a.attname = :object",
        "SELECT 'cut', a.attname::text, t.typname::text"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " WHERE a.attrelid = to_regclass(:table) AND t.typname IN ('char', 'name')"
        " AND t.typnamespace = 'pg_catalog'::regnamespace AND a.attnum > 0",
        "SELECT 'layout', partrelid::regclass::text, CASE WHEN partstrat = 'h' AND partnatts = 1"
        " AND partattrs[0] = attnum THEN 'hash' ELSE 'parent' END FROM pg_partitioned_table"
        " LEFT JOIN pg_attribute ON attrelid = partrelid AND attname = :object"
        " WHERE partrelid = to_regclass(:table)",
        "SELECT 'charset', '', pg_encoding_to_char(encoding)::text FROM pg_database"
        " WHERE datname = current_database() AND pg_encoding_to_char(encoding) <> 'UTF8'",
        "SELECT 'layout', min(inhrelid::regclass::text), 'heirs' FROM pg_inherits"
        " JOIN pg_class p ON p.oid = inhparent"
        " WHERE inhparent = to_regclass(:table) AND p.relkind <> 'p' GROUP BY inhparent",
        "SELECT 'layout', min(inhparent::regclass::text), 'heir' FROM pg_inherits"
        " WHERE inhrelid = to_regclass(:table) GROUP BY inhrelid",
        f"SELECT 'policy', {_POLICIES}"
        " WHERE c.oid = to_regclass(:table) AND row_security_active(c.oid) GROUP BY c.oid",
        # one that is being detached is not read any more
        "SELECT 'part', c.oid::regclass::text,"
        " substring(pg_get_expr(relpartbound, c.oid) FROM 'modulus (\\d+)')"
        " FROM pg_inherits i JOIN pg_class c ON c.oid = inhrelid"
        " WHERE inhparent = to_regclass(:table) AND relispartition"
        " AND coalesce(to_jsonb(i) ->> 'inhdetachpending', 'false') = 'false'",
    ),
    "sqlite": (
        "SELECT type, name, sql FROM sqlite_master WHERE lower(tbl_name) = lower(:name)"
        " AND type IN ('table', 'trigger')",
        "SELECT 'compare', name, coll FROM pragma_index_xinfo(:guard) WHERE key = 1",
        # a key that has no index of its own
        "SELECT 'rowid', max(name), '' FROM pragma_table_info(:name) WHERE pk > 0 AND NOT EXISTS"
        " (SELECT 1 FROM pragma_index_list(:name) WHERE origin = 'pk') HAVING count(*) = 1",
    ),
    "mariadb": (
        "SELECT 'check', constraint_name, check_clause FROM information_schema.check_constraints"
        " WHERE constraint_schema = coalesce(:schema, database()) AND table_name = :name",
        *_MYSQL_REST,
    ),
    "mysql": (
        "SELECT 'check', c.constraint_name, c.check_clause"
        " FROM information_schema.check_constraints c JOIN information_schema.table_constraints t"
        " ON t.constraint_schema = c.constraint_schema AND t.constraint_name = c.constraint_name"
        " WHERE t.table_schema = coalesce(:schema, database()) AND t.table_name = :name"
        " AND t.constraint_type = 'CHECK' AND t.enforced = 'YES'",
        *_MYSQL_REST,
    ),
    "oracle": (
        "SELECT 'check', constraint_name, search_condition_vc FROM all_constraints"
        " WHERE owner = coalesce(upper(:schema), user) AND table_name = :name"
        " AND constraint_type = 'C' AND status = 'ENABLED'",
        "SELECT 'trigger', trigger_name, trigger_type || ' ' || triggering_event"
        " FROM all_triggers WHERE table_owner = coalesce(upper(:schema), user)"
        " AND table_name = :name AND status = 'ENABLED'",
    ),
}


def hooks_of(conn: sa.Connection, name: str, table: sa.Table) -> list[Rule]:
    """Of a table's rules its triggers, and the policies for this login: they may be added at any
    time, without a word to those who work on it."""
    return [
        rule
        for rule in rules_of(conn, name, table, object_id="", guard="", only=HOOKS)
        if rule.kind in HOOKS
    ]


HOOKS = ("trigger", "policy")


class Policies(NamedTuple):
    """Row-level security that decides which rows of a table this login sees and changes. names: of
    its policies. may: what they let it do: r, a, w, d, or * for all."""

    table: str
    names: str
    may: str


def policies_of(conn: sa.Connection, name: str, tables: Sequence[sa.Table]) -> tuple[Policies, ...]:
    """Those of the tables over which row-level security decides; no statement where there is no
    such thing."""
    if not any("'policy'" in query for query in RULES[name]):
        return ()
    named = {"tables": [_quoted(table) for table in tables]}
    found = conn.execute(sa.text(_POLICIES_OF_TABLES), named)
    return tuple(Policies(*map(str, row)) for row in found)


def rules_of(
    conn: sa.Connection,
    name: str,
    table: sa.Table,
    *,
    object_id: str,
    guard: str,
    only: Sequence[str] = (),
) -> list[Rule]:
    """The CHECKs and triggers of a table that this login may see, and the collation of its ids.

    name: of the Database. object_id: the column of the ids; guard: its index. only: the
    kinds that are looked for, () = all.
    """
    asked = [q for q in RULES[name] if not only or any(f"'{kind}'" in q for kind in only)]
    bare = table.name.upper() if name == "oracle" and table.name.islower() else table.name
    known = {"table": _quoted(table), "schema": table.schema, "name": bare}
    known |= {"object": object_id, "guard": guard}
    found = _rows(conn, " UNION ALL ".join(asked), known)
    if found is None:  # an older server lacks some: query each separately
        found = [row for part in asked for row in _rows(conn, part, known) or ()]
    rules = []
    for kind, of, text in found:
        if kind == "table":  # its CREATE TABLE
            rules += [Rule("check", "", check) for check in checks_in(str(text))]
            if _STRICT.search(str(text)):
                rules.append(Rule("layout", str(of), "strict"))
        elif not (name == "oracle" and _NOT_NULL.fullmatch(str(text))):
            rules.append(Rule(kind, str(of), str(text)))
    return rules


_NOT_NULL = re.compile(r'"[^"]+" IS NOT NULL')
"""How Oracle keeps the NOT NULL of a column: it goes with a MODIFY, not as a constraint."""


_STRICT = re.compile(r"\)[\s\w,]*\bSTRICT\b[\s\w,]*$", re.I)


def _rows(conn: sa.Connection, text: str, known: Mapping[str, Any]) -> Sequence[Any] | None:
    query = sa.text(text)
    try:
        return conn.execute(query, {key: known[key] for key in query._bindparams}).all()
    except DBAPIError as error:
        if trouble(error) is Trouble.LOST or is_overtime(error):
            raise
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


def refused_by(
    conn: sa.Connection, check: str, rows: Mapping[str, Mapping[str, Any]]
) -> list[str] | None:
    """Which of some rows (name -> column -> value) a CHECK refuses, evaluated by the database;
    None if it uses a column that they do not have.

    A value is a number, a text, None, or a SQL expression.
    """
    quote = conn.dialect.identifier_preparer.quote
    from_nothing = " FROM dual" if conn.dialect.name == "oracle" else ""
    parts = []
    for name, row in rows.items():
        values = [f"{_literal(conn, value)} AS {quote(column)}" for column, value in row.items()]
        source = f"(SELECT {', '.join(values)}{from_nothing}) mw_row"
        parts.append(f"SELECT '{name}' FROM {source} WHERE NOT ({check})")
    try:
        if conn.dialect.name in ("mysql", "mariadb"):
            return [name for name, part in zip(rows, parts, strict=True) if _refuses(conn, part)]
        return [str(name) for name in conn.scalars(_plain(" UNION ALL ".join(parts)))]
    except DBAPIError as error:
        if trouble(error) is Trouble.LOST or is_overtime(error):
            raise
        return None


def refused_by_domain(
    conn: sa.Connection, domain: TypeEngine[Any], values: Mapping[str, Any]
) -> list[str]:
    """Which of some values, by name, a domain of PostgreSQL does not take."""
    name = conn.dialect.identifier_preparer.format_type(domain)  # type: ignore[attr-defined]
    refused = []
    for row, value in values.items():
        try:
            conn.execute(_plain(f"SELECT CAST({_literal(conn, value)} AS {name})"))
        except DBAPIError as error:
            if trouble(error) is Trouble.LOST or is_overtime(error):
                raise
            refused.append(row)
    return refused


def _plain(query: str) -> sa.TextClause:
    return sa.text(query.replace(":", r"\:"))


def _refuses(conn: sa.Connection, query: str) -> bool:
    """Turn warnings about the type of a value into errors: an UPDATE would fail for it."""
    refused = conn.scalars(_plain(query)).all()
    return bool(refused) or bool(conn.scalar(sa.text("SELECT @@warning_count")))


def _literal(conn: sa.Connection, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, sa.ClauseElement):
        return str(value.compile(dialect=conn.dialect))
    return f"'{value}'" if isinstance(value, str) else str(value)


def fold_of(name: str, rules: Sequence[Rule]) -> str | None:
    """How the collation makes different ids equal: a fold for `folded`; None if it does not;
    "unknown" if that cannot be determined."""
    compares = next((rule.text for rule in rules if rule.kind == "compare"), "")
    if name == "sqlite":
        known = {"BINARY": None, "": None, "NOCASE": "lower", "RTRIM": "rtrim"}
        return known.get(compares.upper(), "unknown")
    if name == "postgresql":
        return {"": None, "citext": "citext"}.get(compares, "unknown")
    if name not in ("mysql", "mariadb") or compares in ("", "binary"):
        return None
    bare = "nopad" in compares or "_0900_" in compares
    if bare and compares.endswith("_bin"):
        return None
    return "weight" if bare else "padded weight"


def folded(column: sa.ColumnElement[Any], fold: str) -> sa.ColumnElement[Any]:
    """A key that is equal for two ids if and only if the database compares them as equal."""
    if fold in ("lower", "rtrim"):  # of texts only; 1 and '1' differ
        is_text = sa.func.typeof(column) == sa.literal_column("'text'")
        by = sa.func.lower(column) if fold == "lower" else sa.func.rtrim(column)
        return sa.case((is_text, by), else_=column)
    if fold == "citext":
        return sa.func.lower(sa.cast(column, sa.Text()))
    text = sa.func.rtrim(column) if fold == "padded weight" else column
    return sa.func.weight_string(text, type_=sa.LargeBinary())


def cutting(rules: Sequence[Rule]) -> dict[str, TypeEngine[Any]]:
    """The text columns that truncate silently: "char" and name of PostgreSQL, which the catalogue
    describes as texts of any length."""
    rooms = {"char": 1, "name": 63 // 4}
    return {rule.name: sa.String(rooms[rule.text]) for rule in rules if rule.kind == "cut"}


_TINYTEXT_BYTES = 255


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
    numbers = isinstance(kind, sa.Integer | sa.Numeric | sa.Boolean)
    fills = getattr(kind, "zerofill", False)
    return isinstance(kind, texts) or takes_any_text(kind) or (numbers and not fills)


def text_room(kind: TypeEngine[Any]) -> int | None:
    """How many characters a text column holds at least; None = more than we ever write."""
    if kind.__visit_name__ == "TINYTEXT":
        return _TINYTEXT_BYTES // 4
    length: int | None = getattr(kind, "length", None)
    return length


_BYTES = {"TINYTEXT": 255, "TINYBLOB": 255, "TEXT": 65_535, "BLOB": 65_535}
_BYTES |= {"MEDIUMTEXT": 16_777_215, "MEDIUMBLOB": 16_777_215}


class Room(NamedTuple):
    """What a column takes. unit: of `most`: characters, bytes, or "" of a number its size. charset:
    of the bytes."""

    role: str
    most: int
    unit: str
    charset: str = ""

    def taken(self, value: Any) -> int:
        """How much of it a value takes at least."""
        if not self.unit:
            number = int(value) if isinstance(value, int) else 0
            return number if number >= 0 else -1 - number
        text = str(value)
        if self.unit == "characters" or self.charset not in _UTF_8:
            return len(text)
        return len(text.encode())


_UTF_8 = ("", "utf8", "utf8mb3", "utf8mb4")


def room_of(dialect: Database, role: str, kind: TypeEngine[Any], charset: str) -> Room | None:
    """The room of a column for what a producer sends; None = not known, or no end."""
    if dialect.loose_types or isinstance(kind, sa.Enum | sa.JSON):
        return None
    if isinstance(kind, sa.Integer):
        most = whole_room(kind)
        return Room(role, whole_end(kind) if most is None else most, "")
    in_bytes = _BYTES.get(kind.__visit_name__) if dialect.name in ("mysql", "mariadb") else None
    if in_bytes is not None:
        return Room(role, in_bytes, "bytes", charset)
    length: int | None = getattr(kind, "length", None)
    if length is None:
        return None
    if isinstance(kind, sa.LargeBinary | sa.BINARY | sa.VARBINARY):
        return Room(role, length, "bytes")
    return Room(role, length, "characters") if isinstance(kind, sa.String) else None


_KEY_BYTES = 3072 - 8
"""The bytes of an InnoDB index key, without the msg_id in it."""
_CHARACTER_BYTES = {"latin1": 1, "ascii": 1, "ucs2": 2, "utf8mb3": 3, "utf8": 3}


def key_room(dialect: Database, kind: TypeEngine[Any]) -> int | None:
    """How many characters of an id our indexes can hold; None = more than any column of ids."""
    if dialect.case_index != "column":
        return None
    collation = getattr(kind, "collation", None) or ""
    charset = getattr(kind, "charset", None) or collation.partition("_")[0]
    return _KEY_BYTES // _CHARACTER_BYTES.get(charset, 4)


_CODECS = {
    "mysql": {"latin1": "cp1252", "utf8mb3": "utf8mb3", "utf8": "utf8mb3", "ucs2": "utf8mb3"}
    | {name: name for name in ("gbk", "gb2312", "big5", "cp1250", "cp1251", "cp1256", "cp1257")},
    "postgresql": {f"WIN{n}": f"cp{n}" for n in range(1250, 1259)} | {"LATIN1": "latin-1"},
}


def codec_of(dialect: Database, rules: Sequence[Rule], column: str) -> str:
    """What encodes the texts that a column takes, see `payload.fitting`; "" = it takes all. Of a
    character set that is not known here only ASCII is used."""
    for rule in rules:
        if rule.kind == "charset" and rule.name in ("", column):
            known = _CODECS.get("mysql" if dialect.name == "mariadb" else dialect.name, {})
            return known.get(rule.text, "ascii")
    return ""


def whole_room(kind: TypeEngine[Any]) -> int | None:
    """The largest whole number that a column holds; None = at least that of 32 bits."""
    bits = {"TINYINT": 8, "SMALLINT": 16, "small_integer": 16, "MEDIUMINT": 24}
    if kind.__visit_name__ in bits:
        return int(2 ** (bits[kind.__visit_name__] - (not getattr(kind, "unsigned", False)))) - 1
    precision = getattr(kind, "precision", None)
    if precision is None or isinstance(kind, sa.Integer):
        return None
    return int(10 ** min(10, max(0, precision - (getattr(kind, "scale", None) or 0)))) - 1


def number_room(kind: TypeEngine[Any]) -> int | None:
    """The largest number of a small integer column; None = more than we write."""
    if kind.__visit_name__ != "TINYINT":
        return None
    return 255 if getattr(kind, "unsigned", False) else 127


def whole_end(kind: TypeEngine[Any]) -> int:
    """The highest id of a column of whole numbers that holds to its type."""
    bits = 63
    if isinstance(kind, sa.Integer) and not isinstance(kind, sa.BigInteger):
        bits = 15 if isinstance(kind, sa.SmallInteger) else 31
    return int(2 ** (bits + bool(getattr(kind, "unsigned", False)))) - 1


_WHOLE = r"^ *[-+]?[0-9]+([.]0*)? *$"
EXAMPLES = 5


def values_as_numbers(
    conn: sa.Connection, table: str, column: str, *, limit: int
) -> list[tuple[str | None, str | None, int]]:
    """What a column holds, as a text and as the number that a change of its type makes of it, with
    counts; the most frequent first. The number is None where the two are the same by definition."""
    quoted = conn.dialect.identifier_preparer.quote(column)
    text, number = f"CAST({quoted} AS CHAR)", f"CAST({quoted} + 0 AS CHAR)"
    if conn.dialect.name == "postgresql":
        text, number = f"CAST({quoted} AS text)", "NULL"
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
    ones (a word of an ENUM into its place)."""
    quoted = conn.dialect.identifier_preparer.quote(column)
    if conn.dialect.name == "postgresql":
        text = f"CAST({quoted} AS text)"
        odd = f"{text} !~ '{_WHOLE}'"
    else:
        text = f"CAST({quoted} AS CHAR)"
        odd = f"({text} NOT REGEXP '{_WHOLE}' OR {text} + 0 <> {quoted} + 0)"
    query = f"SELECT {text} FROM {table} WHERE {quoted} IS NOT NULL AND {odd} LIMIT {EXAMPLES}"
    return [str(_text(value)) for value in conn.scalars(_plain(query))]


def longer_than(conn: sa.Connection, table: str, column: str, length: int) -> int:
    """How many texts of a column are longer."""
    quoted = conn.dialect.identifier_preparer.quote(column)
    kind = "text" if conn.dialect.name == "postgresql" else "CHAR"
    text = f"char_length(CAST({quoted} AS {kind}))"
    return int(conn.scalar(_plain(f"SELECT count(*) FROM {table} WHERE {text} > {length}")))


_HOLDERS_OF_MYSQL = (
    "SELECT concat('foreign key ', constraint_name, ' of ', table_name) "
    "FROM information_schema.key_column_usage WHERE referenced_table_name IS NOT NULL AND ("
    "table_schema = coalesce(:schema, DATABASE()) AND table_name = :bare AND column_name = :column "
    "OR referenced_table_schema = coalesce(:schema, DATABASE()) AND referenced_table_name = :bare "
    "AND referenced_column_name = :column) ORDER BY 1"
)
_HOLDERS = {
    "postgresql": "SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid) "
    "FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_attribute a "
    "ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid "
    "LEFT JOIN pg_catalog.pg_attrdef g "
    "ON d.classid = CAST('pg_attrdef' AS regclass) AND g.oid = d.objid "
    "WHERE d.refclassid = CAST('pg_class' AS regclass) AND d.refobjid = to_regclass(:full) "
    "AND a.attname = :column AND (d.classid IN (CAST('pg_rewrite' AS regclass), "
    "CAST('pg_policy' AS regclass), CAST('pg_trigger' AS regclass)) OR g.adnum <> a.attnum) "
    "ORDER BY 1",
    "mysql": _HOLDERS_OF_MYSQL,
    "mariadb": _HOLDERS_OF_MYSQL,
}


def holders(
    conn: sa.Connection, full: str, schema: str | None, bare: str, column: str
) -> list[str]:
    """What uses a column so that the database refuses to change its type. full: the name of the
    table as SQL has it."""
    query = _HOLDERS[conn.dialect.name]
    given = {"full": full, "schema": schema, "bare": bare, "column": column}
    named = {name: value for name, value in given.items() if f":{name}" in query}
    return [str(_text(found)) for found in conn.scalars(sa.text(query), named)]


_IDENTITY = (
    "SELECT 'ALTER TABLE ' || CAST(c.oid AS regclass) || ' REPLICA IDENTITY ' || coalesce(("
    "SELECT 'USING INDEX ' || quote_ident(min(n.relname)) FROM pg_catalog.pg_index i "
    "JOIN pg_catalog.pg_class n ON n.oid = i.indexrelid WHERE i.indrelid = c.oid "
    "AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL "
    "AND i.indexprs IS NULL AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute a "
    "WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) AND NOT a.attnotnull)), 'FULL') "
    "FROM pg_catalog.pg_class c WHERE c.relkind = 'r' AND (c.relreplident = 'n' "
    "OR c.relreplident = 'd' AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_index p "
    "WHERE p.indrelid = c.oid AND p.indisprimary)) AND (c.oid = to_regclass(:full) "
    "OR c.oid IN (SELECT t.relid FROM pg_partition_tree(to_regclass(:full)) t)) ORDER BY c.relname"
)


def identified(conn: sa.Connection, full: str, reason: str) -> list[str]:
    """The statements after which a publication takes updates and deletes of a table and of its
    partitions, if that is why they were refused. full: the name of the table as SQL has it."""
    if conn.dialect.name != "postgresql" or "replica identity" not in reason:
        return []
    return [str(found) for found in conn.scalars(sa.text(_IDENTITY), {"full": full})]


def filled(conn: sa.Connection, table: str, column: str) -> int:
    """How many rows have a value in a column."""
    quoted = conn.dialect.identifier_preparer.quote(column)
    return int(conn.scalar(_plain(f"SELECT count({quoted}) FROM {table}")))
