"""Oracle's SQL for MariaDB in sql_mode=ORACLE. Its locks between sessions are real ones."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import oracledb
import pymysql
from pymysql.constants import CLIENT, FIELD_TYPE

from proof.oracle import dictionary, text
from proof.oracle.errors import from_mariadb, ora
from tests.oracle_lint import parts_of_block

_MODE = (
    "ORACLE,EMPTY_STRING_IS_NULL,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,"
    "NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO"
)
COLLATION = "utf8mb4_nopad_bin"  # Oracle compares texts by their codes, blanks at their ends too
_NUMBERS = {
    FIELD_TYPE.DECIMAL,
    FIELD_TYPE.NEWDECIMAL,
    FIELD_TYPE.TINY,
    FIELD_TYPE.SHORT,
    FIELD_TYPE.LONG,
    FIELD_TYPE.LONGLONG,
    FIELD_TYPE.INT24,
    FIELD_TYPE.FLOAT,
    FIELD_TYPE.DOUBLE,
}
_INSTANTS = {FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP, FIELD_TYPE.DATE}
_TEXTS = {FIELD_TYPE.LONG_BLOB, FIELD_TYPE.BLOB, FIELD_TYPE.MEDIUM_BLOB, FIELD_TYPE.TINY_BLOB}
_LONG_TEXT = 65_536 * 4
_TRANSACTION_GONE = ((1213,), (1020,))
"""Errors after which MariaDB has rolled the whole transaction back."""
_BYTES = 63  # the character set of what is no text


@dataclass(slots=True)
class Answer:
    """The rows of a statement, or how many it has changed. columns: name, type of the driver,
    precision and scale."""

    columns: list[tuple[str, Any, int, int]] = field(default_factory=list)
    rows: Sequence[Sequence[Any]] = ()
    changed: int = -1


class MariaDBSession:
    """A session, of which the errors are the driver's. owner: the name of the database, which
    stands for a schema."""

    def __init__(self, host: str, port: int, user: str, password: str, database: str) -> None:
        self.owner = database
        self._place = {"host": host, "port": port, "user": user, "password": password}
        try:
            self._conn = pymysql.connect(
                **self._place,
                database=database,
                charset="utf8mb4",
                ssl_disabled=True,
                client_flag=CLIENT.FOUND_ROWS,
                init_command=f"SET NAMES utf8mb4 COLLATE {COLLATION}, "
                f"SESSION sql_mode='{_MODE}', SESSION tx_isolation='READ-COMMITTED', "
                "SESSION time_zone='+00:00', SESSION completion_type='NO_CHAIN'",
            )
        except pymysql.Error as error:
            raise from_mariadb(error, database) from error
        self._timeout = 0
        self._rolled_back = False
        self._plans: dict[str, list[tuple[str]]] = {}
        self._place_of = host, port, database

    def execute(self, sql: str, values: dict[str, Any], timeout: int) -> Answer:
        """values: by the upper-case names of the parameters. timeout: milliseconds; 0 = none.
        The rows of a RETURNING are its answer."""
        self._refuse_if_rolled_back()
        try:
            self._limit(timeout)
            if dictionary.is_asked(sql):
                return self._query(_Prepared.of(dictionary.for_mariadb(sql, values)), values)
            done = self._explained(sql, values)
            if done is not None:
                return done
            modified = text.modify(sql)
            if modified is not None:
                return self._modify(modified)
            drop = re.match(r"\s*DROP\s+INDEX\s+(\S+)\s*$", sql, re.I)
            if drop:
                return self._drop_index(drop[1].rpartition(".")[2])
            index = index_on_expressions(sql)
            if index is not None:
                return self._index(index)
            if parts := parts_of_block(sql):
                return self._block(parts, values)
            return self._query(self._prepared(sql), values)
        except pymysql.Error as error:
            self._rolled_back = (
                error.args[:1] in _TRANSACTION_GONE and not self._conn.get_autocommit()
            )
            raise from_mariadb(error, self.owner) from error

    def _explained(self, sql: str, values: dict[str, Any]) -> Answer | None:
        """The plans that MariaDB makes, by the words with which Oracle is asked for its own."""
        wanted = _EXPLAIN.match(sql)
        if wanted:
            found = self._prepared(sql[wanted.end() :])
            answer = self._query(_Prepared(f"EXPLAIN {found.sql}", found.binds), values)
            self._plans[wanted[1]] = [(" ".join(map(str, row)),) for row in answer.rows]
            return Answer(changed=0)
        shown = _XPLAN.search(sql)
        if shown:
            column = ("PLAN_TABLE_OUTPUT", oracledb.DB_TYPE_VARCHAR, 0, 0)
            return Answer([column], self._plans[shown[1]])
        statistics = _STATISTICS.match(sql)
        if statistics:
            self._query(_Prepared(f"ANALYZE TABLE {statistics[1].lower()}", ()), {})
            return Answer(changed=0)
        return None

    def _prepared(self, sql: str) -> _Prepared:
        """With the columns of indexes on expressions in the place of these."""
        if "CASE" not in sql or _LAYOUT.match(sql):
            return prepared(sql)
        if self._place_of not in _indexed:
            query = (
                "SELECT DISTINCT column_name, column_comment FROM information_schema.columns"
                " WHERE table_schema = DATABASE() AND column_name LIKE 'sys\\_nc\\_%' ESCAPE '\\'"
            )
            with self._conn.cursor() as cursor:
                cursor.execute(query)
                _indexed[self._place_of] = tuple(cursor.fetchall())
        for column, expression in _indexed[self._place_of]:
            sql = _anywhere(expression).sub(rf"\g<of>{column}", sql)
        return prepared(sql)

    def _block(self, parts: list[tuple[str, str]], values: dict[str, Any]) -> Answer:
        """MariaDB runs it as it is; but for the parameters that it gives, which are its session's
        variables, and read behind it."""
        said, binds, outs = "", list[str](), list[str]()
        for words, statement in parts:
            if count := re.fullmatch(r"\s*:(\w+) := SQL%ROWCOUNT", words, re.I):
                outs.append(count[1].upper())
                said += f" SELECT SQL%%ROWCOUNT INTO @{outs[-1]};"
                continue
            found = self._prepared(statement) if statement else _Prepared("", ())
            said += f"{words}{found.sql};"
            binds += found.binds
        self._query(_Prepared(said, tuple(binds)), values)
        asked = ", ".join(f"@{name} AS {name}" for name in outs)
        return self._query(_Prepared(f"SELECT {asked}", ()), {})

    def _limit(self, timeout: int) -> None:
        if timeout != self._timeout:
            self._conn.query(f"SET SESSION max_statement_time = {timeout / 1000}")
            self._timeout = timeout

    def _query(self, plan: _Prepared, values: dict[str, Any]) -> Answer:
        with self._conn.cursor() as cursor:
            cursor.execute(plan.sql, [values[name] for name in plan.binds])
            if cursor.description is None:
                return Answer(changed=cursor.rowcount)
            columns = [(_name(f.name), _type(f), *_exactness(f)) for f in _fields(cursor)]
            return Answer(columns, cursor.fetchall())

    def _index(self, made: _Index) -> Answer:
        """Its expressions become columns, as they do on Oracle, too, unseen."""
        names, added = [], []
        with self._conn.cursor() as cursor:
            for part in made.parts:
                if re.fullmatch(_NAME, part):
                    names.append(part)
                    continue
                cursor.execute(f"SELECT {_plain(part)} FROM {made.table} LIMIT 0")
                number_type = _type(_fields(cursor)[0]) is oracledb.DB_TYPE_NUMBER
                column = re.search(r'\bTHEN ("(?:[^"]|"")+"|\w+) END$', part)
                if number_type and column and not made.unique:
                    # An id of AUTO_INCREMENT may stand in no expression; the index is longer.
                    names.append(column[1])
                    continue
                kind = "BIGINT" if number_type else f"VARCHAR(500) COLLATE {COLLATION}"
                names.append(f"sys_nc_{zlib.crc32(part.encode()):08x}")
                told = part.replace("'", "''")
                expression = (
                    f"GENERATED ALWAYS AS ({_plain(part)}) PERSISTENT INVISIBLE COMMENT '{told}'"
                )
                added.append(f"ADD COLUMN IF NOT EXISTS {names[-1]} {kind} {expression}")
            unique = "UNIQUE " if made.unique else ""
            added.append(f"ADD {unique}INDEX {made.name} ({', '.join(names)})")
            cursor.execute(f"ALTER TABLE {made.table} {', '.join(added)}")
        _indexed.pop(self._place_of, None)
        return Answer(changed=0)

    def _modify(self, said: text.Modify) -> Answer:
        """A column's type, default and NULL: what is not said stays, on MariaDB it would go."""
        table, column, kind, default, null = said
        query = (
            "SELECT column_type, is_nullable, column_default FROM information_schema.columns"
            " WHERE table_schema = COALESCE(%s, DATABASE()) AND LOWER(table_name) = %s"
            " AND LOWER(column_name) = %s"
        )
        schema, _, name = table.rpartition(".")
        given = [schema or None, name.strip('"').lower(), column.strip('"').lower()]
        with self._conn.cursor() as cursor:
            cursor.execute(query, given)
            row = cursor.fetchone()
            if row is None:
                raise ora(904, f"{column}: invalid identifier")
            kept, nullable, by_default = row
            kind = kept if kind is None else _typed(kind)
            null = null or ("NULL" if nullable == "YES" else "NOT NULL")
            if default is not None:
                by_default = _plain(default)
            elif null.upper() != "NULL" and by_default == "NULL":
                by_default = None
            default = "" if by_default is None else f"DEFAULT ({by_default})"
            cursor.execute(f"ALTER TABLE {table} MODIFY COLUMN {column} {kind} {null} {default}")
        return Answer(changed=0)

    def _drop_index(self, name: str) -> Answer:
        """Its name says of which table, and its columns go, too."""
        query = (
            "SELECT table_name, column_name FROM information_schema.statistics"
            " WHERE table_schema = DATABASE() AND LOWER(index_name) = %s"
        )
        with self._conn.cursor() as cursor:
            cursor.execute(query, [name.strip('"').lower()])
            found = cursor.fetchall()
            if not found:
                raise ora(1418, "specified index does not exist")
            own = self._own_columns(cursor, name.strip('"').lower(), found)
            changes = [f"DROP INDEX {name}", *(f"DROP COLUMN {column}" for column in own)]
            cursor.execute(f'ALTER TABLE "{found[0][0]}" {", ".join(changes)}')
        _indexed.pop(self._place_of, None)
        return Answer(changed=0)

    @staticmethod
    def _own_columns(cursor: Any, index: str, found: Any) -> list[str]:
        """The columns of an index that stand for expressions, and are in no other one."""
        query = (
            "SELECT column_name FROM information_schema.statistics WHERE table_schema = DATABASE()"
            " AND table_name = %s AND LOWER(index_name) <> %s"
        )
        cursor.execute(query, [found[0][0], index])
        others = {row[0] for row in cursor.fetchall()}
        return [c for _, c in found if c.startswith("sys_nc_") and c not in others]

    def set_autocommit(self, on: bool) -> None:
        try:
            self._conn.autocommit(on)
        except pymysql.Error as error:
            raise from_mariadb(error, self.owner) from error

    def _refuse_if_rolled_back(self) -> None:
        # At a deadlock MariaDB rolls the whole transaction back, Oracle the statement only. What
        # followed would be another transaction, and a COMMIT that of its second half.
        if self._rolled_back:
            raise ora(60, "MariaDB has rolled the whole transaction back")

    def commit(self) -> None:
        try:
            self._refuse_if_rolled_back()
        finally:
            self._rolled_back = False
        try:
            self._conn.commit()
        except pymysql.Error as error:
            raise from_mariadb(error, self.owner) from error

    def rollback(self) -> None:
        self._rolled_back = False
        try:
            self._conn.rollback()
        except pymysql.Error as error:
            raise from_mariadb(error, self.owner) from error

    def ping(self) -> None:
        try:
            self._conn.ping(reconnect=False)
        except pymysql.Error as error:
            raise from_mariadb(error, self.owner) from error

    def cancel(self) -> None:
        number = self._conn.thread_id()
        with pymysql.connect(**self._place, ssl_disabled=True) as other, other.cursor() as cursor:
            cursor.execute(f"KILL QUERY {number}")

    def close(self) -> None:
        self._conn.close()


def _fields(cursor: Any) -> list[Any]:
    """What the server tells of each column: `description` leaves out where it comes from."""
    return list(vars(cursor)["_result"].fields)


_EXPLAIN = re.compile(r"EXPLAIN PLAN SET STATEMENT_ID = '(\w+)' FOR\s+", re.I)
_XPLAN = re.compile(r"DBMS_XPLAN\.DISPLAY\(NULL, '(\w+)'", re.I)
_STATISTICS = re.compile(r"BEGIN DBMS_STATS\.GATHER_TABLE_STATS\(user, '(\w+)'", re.I)
_LAYOUT = re.compile(r"\s*(CREATE|ALTER|DROP)\b", re.I)
_indexed: dict[tuple[str, int, str], tuple[tuple[str, str], ...]] = {}
"""Of each database, the columns that stand for expressions: MariaDB knows no index of those."""


@cache
def _anywhere(expression: str) -> re.Pattern[str]:
    """The expression with its columns of any one table or alias."""
    pattern, first = "", True
    for piece in re.split(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\b[a-z]\w*\b)", expression):
        column = re.fullmatch(r'[a-z]\w*|".*"', piece) and piece != "coalesce"
        if column:
            pattern += r"(?P<of>(?:\b\w+\.)*)" if first else r"(?P=of)"
            first = False
        pattern += re.escape(piece)
    return re.compile(pattern)


def _name(name: str) -> str:
    return name.upper() if name == name.lower() else name


def _type(field: Any) -> Any:
    if field.type_code in _NUMBERS:
        return oracledb.DB_TYPE_NUMBER
    if field.type_code in _INSTANTS:
        return oracledb.DB_TYPE_TIMESTAMP
    if field.type_code in _TEXTS and field.charsetnr == _BYTES:
        return oracledb.DB_TYPE_BLOB
    if field.type_code in _TEXTS and field.length > _LONG_TEXT:
        return oracledb.DB_TYPE_CLOB
    return oracledb.DB_TYPE_VARCHAR


_EXPRESSION = (0, -127)
_WHOLE = {FIELD_TYPE.LONGLONG: 19, FIELD_TYPE.LONG: 38, FIELD_TYPE.SHORT: 38, FIELD_TYPE.TINY: 38}


def _exactness(field: Any) -> tuple[int, int]:
    """Precision and scale: Oracle knows those of a column, not those of an expression."""
    if _type(field) is not oracledb.DB_TYPE_NUMBER:
        return 0, 0
    if not field.org_name:
        return _EXPRESSION
    if field.type_code in _WHOLE:
        return _WHOLE[field.type_code], 0
    return (38, field.scale) if field.type_code == FIELD_TYPE.NEWDECIMAL else _EXPRESSION


@dataclass(frozen=True, slots=True)
class _Index:
    unique: bool
    name: str
    table: str
    parts: list[str]


_NAME = r'(?:"(?:[^"]|"")+"|[\w$]+)'
_CREATE_INDEX = re.compile(
    rf"\s*CREATE\s+(UNIQUE\s+)?INDEX\s+(?:{_NAME}\.)?({_NAME})"
    rf"\s+ON\s+((?:{_NAME}\.)?{_NAME})\s*\(",
    re.I,
)


def index_on_expressions(sql: str) -> _Index | None:
    found = _CREATE_INDEX.match(sql)
    if found is None:
        return None
    parts = text.split(sql[found.end() : text.closing(sql, found.end())])
    if all(re.fullmatch(_NAME, part) for part in parts):
        return None
    return _Index(bool(found[1]), found[2], found[3], parts)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """sql: with a %s for each of `binds`."""

    sql: str
    binds: tuple[str, ...]

    @classmethod
    def of(cls, sql: str) -> _Prepared:
        binds = tuple(text.bind_names(sql))
        return cls(text.with_binds(sql, lambda _: "%s", lambda s: s.replace("%", "%%")), binds)


_DROP_TABLE = re.compile(r"^\s*(DROP\s+TABLE\s+\S+)\s+CASCADE\s+CONSTRAINTS(\s+PURGE)?\s*$", re.I)
_ISOLATION = re.compile(r"^\s*ALTER\s+SESSION\s+SET\s+ISOLATION_LEVEL\s*=\s*([\w ]+)", re.I)


@cache
def prepared(sql: str) -> _Prepared:
    """A statement of Oracle's for MariaDB."""
    isolation = _ISOLATION.match(sql)
    if isolation:
        return _Prepared(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation[1]}", ())
    dropped = _DROP_TABLE.match(sql)
    if dropped:
        return _Prepared(dropped[1], ())
    if re.match(r"\s*SET\s+CONSTRAINTS\b", sql, re.I):
        return _Prepared("DO 0", ())
    if re.match(r"\s*(CREATE|ALTER)\s+TABLE\b", sql, re.I):
        return _Prepared(_table(sql).replace("%", "%%"), ())
    sql = re.sub(rf"^(\s*CREATE\s+(?:UNIQUE\s+)?INDEX\s+){_NAME}\.", r"\1", sql, flags=re.I)
    sql = re.sub(r"^SELECT user FROM dual$", "SELECT UPPER(DATABASE()) FROM dual", sql, flags=re.I)
    sql, columns, _ = text.returning(sql)
    if columns:
        if not re.match(r"\s*INSERT\b", sql, re.I):
            raise ora(900, "MariaDB has no UPDATE ... RETURNING")
        sql += f" RETURNING {', '.join(columns)}"
    return _Prepared.of(_plain(sql))


_ENDLESS = 1 << 62
_FORMAT = "'SYYYY-MM-DD HH24:MI:SS.FF6'"
_UTC = "UTC_TIMESTAMP(6)"


def _plain(sql: str) -> str:
    """An expression or a statement without what only Oracle has."""
    sql = text.outside_literals(sql, _clock)
    sql = text.outside_literals(sql, lambda part: _MARIADBS_WORD.sub(r'"\1"', part))
    sql = text.calls(sql, "EXTRACT", _extract)
    sql = re.sub(r"\bSYS_EXTRACT_UTC\s*\(\s*SYSTIMESTAMP\s*\)", _UTC, sql, flags=re.I)
    sql = text.calls(sql, "CAST", _cast)
    sql = text.calls(sql, "NUMTODSINTERVAL", _interval)
    sql = text.calls(sql, "TO_CHAR", _to_char)
    return text.calls(sql, "TO_TIMESTAMP", _to_timestamp)


def _clock(part: str) -> str:
    return re.sub(r"/\*\+.*?\*/", "", part, flags=re.S)


_NOW = re.compile(r"SYSTIMESTAMP\s+AT\s+TIME\s+ZONE\s+'UTC'", re.I)


def _cast(*arguments: str) -> str | None:
    *_, kind = text.split(arguments[-1], "AS")
    value = ", ".join(arguments)[: -len(kind)].rstrip()[: -len("AS")].rstrip()
    if _NOW.fullmatch(value):
        return _UTC
    if kind.upper() == "TIMESTAMP":
        return f"CAST({value} AS DATETIME(6))"
    if kind.upper() == "CLOB":
        return f"({value})"
    if kind.upper().startswith("VARCHAR2"):
        room = re.search(r"\d+", kind)
        return f"CAST({value} AS CHAR({room[0]}))" if room else None
    if kind.upper().startswith("NUMBER"):
        return f"CAST({value} AS DECIMAL(38))"
    if kind.upper() in ("INTEGER", "SMALLINT"):
        return f"CAST({value} AS SIGNED)"
    return None


_MICROSECONDS = {"DAY": 86_400_000_000, "HOUR": 3_600_000_000, "MINUTE": 60_000_000}


_PARTS = {"DAY": _ENDLESS, "HOUR": 24, "MINUTE": 60}


def _extract(argument: str) -> str | None:
    """A part of an interval, which is a difference of instants, or of the offset of the clock."""
    offset = re.fullmatch(r"TIMEZONE_(HOUR|MINUTE)\s+FROM\s+SYSTIMESTAMP", argument, re.I)
    if offset is not None:
        part = offset[1].upper()
        return f"MOD(TIMESTAMPDIFF({part}, {_UTC}, NOW(6)), {_PARTS[part]})"
    found = re.fullmatch(
        r"(\w+)\s+FROM\s+\((.+?) - (TIMESTAMP '[^']*'|CAST\(.+ AS TIMESTAMP\))\)", argument, re.S
    )
    if found is None:
        return None
    unit, until, since = found.groups()
    whole = f"TIMESTAMPDIFF(MICROSECOND, {since}, {until})"
    if unit.upper() == "SECOND":
        return f"(MOD({whole}, 60000000) / 1000000)"
    size = _MICROSECONDS[unit.upper()]
    return f"MOD({whole} DIV {size}, {_PARTS[unit.upper()]})"


def _interval(value: str, unit: str) -> str:
    return f"INTERVAL ROUND(({value}) * 1000000) MICROSECOND"


def _to_char(value: str, form: str = "") -> str | None:
    # A leading blank for the sign of the year; CONCAT would pass over NULL in this mode.
    return f"DATE_FORMAT({value}, ' %Y-%m-%d %H:%i:%s.%f')" if form == _FORMAT else None


def _to_timestamp(value: str, form: str = "") -> str | None:
    return f"CAST(TRIM({value}) AS DATETIME(6))" if form == _FORMAT else None


_TYPES = {
    r"NUMBER\(19\)\s+GENERATED\s+BY\s+DEFAULT\s+AS\s+IDENTITY(\s*\([^)]*\))?": (
        "BIGINT AUTO_INCREMENT"
    ),
    r"INTEGER\s+GENERATED\s+BY\s+DEFAULT\s+AS\s+IDENTITY(\s*\([^)]*\))?": "BIGINT AUTO_INCREMENT",
    r"NUMBER\(19\)": "BIGINT",
    r"\bNUMBER\((\d+)\)": r"DECIMAL(\1)",
    r"(N?VARCHAR2|CHAR)\((\d+)\s+(CHAR|BYTE)\)": r"\1(\2)",
    r"\bNVARCHAR2\b": "VARCHAR",
    r"\bTIMESTAMP(\(\d\))?(?!\w)": "DATETIME(6)",
    r"DEFAULT\s+CURRENT_TIMESTAMP(?!\()": "DEFAULT CURRENT_TIMESTAMP(6)",
    r"DEFAULT\s+SYS_EXTRACT_UTC\(SYSTIMESTAMP\)": f"DEFAULT ({_UTC})",
}


def _table(sql: str) -> str:
    return text.outside_literals(sql, _typed)


def _typed(part: str) -> str:
    for pattern, kind in _TYPES.items():
        part = re.sub(pattern, kind, part, flags=re.I)
    return _MARIADBS_WORD.sub(r'"\1"', part)


_MARIADBS_WORD = re.compile(r'(?<![\w".:])(body|rows)(?![\w"])')
"""Names that MariaDB takes for words of its own; in capitals they are words of Oracle's."""
