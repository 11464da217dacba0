"""Oracle's SQL for H2 in MODE=Oracle. Of what an Oracle has it knows more than MariaDB: '' is NULL
everywhere, intervals, MERGE, identities, unique indexes that leave NULL out."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import oracledb

from tests.oracle import h2_dictionary as dictionary
from tests.oracle import text
from tests.oracle.engine import Answer
from tests.oracle.errors import dpy, from_h2, ora
from tests.oracle.h2_sql import LONG_TEXT, plain, prepared, stored, typed
from tests.oracle.h2wire import Column, H2Error, Result, Wire
from tests.oracle.mariadb import index_on_expressions
from tests.oracle_lint import parts_of_block

_SETTINGS = {
    "MODE": "Oracle",
    "NON_KEYWORDS": "VALUE,KEY,DAY,HOUR,MINUTE,SECOND,MONTH,YEAR",
    "QUERY_CACHE_SIZE": "0",  # of each session; see `_KEPT_TEXT`
}
_WAITS = 50_000
"""So many milliseconds an UPDATE waits for a row. Oracle would do so without end."""
_DEADLOCK, _LOCK_TIMEOUT, _ENDED = 40001, 50200, 57014


class H2Session:
    """A session of a database in the memory of the server."""

    owner = "PUBLIC"

    def __init__(self, host: str, port: int, password: str, database: str) -> None:
        self._timeout = 0
        self._waits = _WAITS
        self._rolled_back = False
        self._autocommit = True
        settings = {**_SETTINGS, "IFEXISTS": "TRUE", "LOCK_TIMEOUT": str(_WAITS)}
        with self._failing():
            self._wire = _connected(host, port, database, settings, password)
            self._wire.execute(f"SET SCHEMA_SEARCH_PATH PUBLIC, {dictionary.SCHEMA}")
            self._wire.autocommit(False)
            self._autocommit = False

    def execute(self, sql: str, values: dict[str, Any], timeout: int) -> Answer:
        self._refuse_if_rolled_back()
        with self._failing():
            if timeout != self._timeout:
                self._wire.execute(f"SET QUERY_TIMEOUT {timeout}")
                self._timeout = timeout
            self._wait(min(timeout, _WAITS) if timeout else _WAITS)
            return self._executed(sql, values)

    def _executed(self, sql: str, values: dict[str, Any]) -> Answer:
        if parts_of_block(sql):
            raise ora(6550, "H2 has no PL/SQL")
        if dictionary.is_asked(sql):
            return self._query(dictionary.for_h2(sql), values)
        modified = text.modify(sql)
        if modified is not None:
            return self._modify(modified)
        drop = re.match(r"\s*DROP\s+INDEX\s+(\S+)\s*$", sql, re.I)
        if drop:
            return self._drop_index(drop[1])
        index = index_on_expressions(sql)
        if index is not None:
            return self._index(index)
        locking = _LOCKING.search(sql)
        if locking is None:
            return self._query(sql, values)
        asked = sql[: locking.start()]
        if locking[1].upper().startswith("SKIP"):
            return self._skipping(asked, values)
        wait = re.search(r"\d+", locking[1])
        self._wait(int(wait[0]) * 1000 if wait else 0)
        try:
            return self._query(f"{asked} FOR UPDATE", values)
        except H2Error as error:
            if error.code == _LOCK_TIMEOUT and not wait:
                raise ora(54, "resource busy and acquire with NOWAIT specified") from error
            raise

    def _skipping(self, asked: str, values: dict[str, Any]) -> Answer:
        """FOR UPDATE SKIP LOCKED, of one table: all rows at once, and where one of them is locked,
        one after the other."""
        self._wait(0)
        try:
            return self._query(f"{asked} FOR UPDATE", values)
        except H2Error as error:
            if error.code != _LOCK_TIMEOUT:
                raise
        found = _ONE_TABLE.fullmatch(asked)
        if found is None:
            raise ora(900, f"SKIP LOCKED is simulated for one table only: {asked}")
        columns, table, condition, order = found.groups()
        rest = f"FROM {table} WHERE ({condition})"
        numbers = self._query(f"SELECT {table}._ROWID_ {rest}{order or ''}", values)
        answer = Answer()
        rows: list[Any] = []
        for (number,) in numbers.rows:
            one = f"SELECT {columns} {rest} AND {table}._ROWID_ = :mw_row FOR UPDATE"
            try:
                answer = self._query(one, {**values, "MW_ROW": int(number)})
                rows += answer.rows
            except H2Error as error:
                if error.code != _LOCK_TIMEOUT:
                    raise
        if not answer.columns:  # all of them are locked
            answer = self._query(f"SELECT {columns} FROM {table} WHERE 1 = 0", values)
        return Answer(answer.columns, rows)

    def _query(self, sql: str, values: dict[str, Any]) -> Answer:
        plan = prepared(sql)
        given = [values[name] for name in plan.binds]
        return _answer(self._wire.execute(plan.sql, given, plan.returning), bool(plan.returning))

    def _wait(self, milliseconds: int) -> None:
        milliseconds = max(milliseconds, 1)  # 0 is as long as H2 waits by itself
        if milliseconds != self._waits:
            self._wire.execute(f"SET LOCK_TIMEOUT {milliseconds}")
            self._waits = milliseconds

    def _index(self, made: Any) -> Answer:
        """Its expressions become columns, as they do on Oracle, too, unseen."""
        names = []
        for part in made.parts:
            if re.fullmatch(_NAME, part):
                names.append(part)
                continue
            column = f"SYS_NC_{zlib.crc32(part.encode()):08X}"
            names.append(column)
            kind = self._wire.execute(f"SELECT {plain(part)} FROM {made.table} WHERE 1 = 0")
            number = kind.columns[0].kind not in ("varchar", "char")
            self._wire.execute(
                f"ALTER TABLE {made.table} ADD COLUMN IF NOT EXISTS {column}"
                f" {'NUMERIC(38)' if number else 'VARCHAR(2000)'} INVISIBLE"
                f" GENERATED ALWAYS AS ({plain(part)})"
            )
        kind_of = "UNIQUE INDEX" if made.unique else "INDEX"
        self._wire.execute(f"CREATE {kind_of} {made.name} ON {made.table} ({', '.join(names)})")
        return Answer(changed=0)

    def _drop_index(self, name: str) -> Answer:
        """The columns that only it has go, too."""
        kept = stored(name.rpartition(".")[2])
        found = self._wire.execute(
            "SELECT table_schema, table_name, column_name FROM information_schema.index_columns i"
            " WHERE index_name = ? AND column_name LIKE 'SYS\\_NC\\_%' AND NOT EXISTS"
            " (SELECT 1 FROM information_schema.index_columns o WHERE o.table_name = i.table_name"
            " AND o.column_name = i.column_name AND o.index_name <> i.index_name)",
            [kept],
        )
        self._wire.execute(f"DROP INDEX {name}")
        for schema, table, column in found.rows:
            self._wire.execute(f'ALTER TABLE "{schema}"."{table}" DROP COLUMN "{column}"')
        return Answer(changed=0)

    def _modify(self, said: text.Modify) -> Answer:
        """A column's type, default and NULL: what is not said stays."""
        table, column, kind, default, null = said
        alter = f"ALTER TABLE {table} ALTER COLUMN {column}"
        if kind is not None:
            self._wire.execute(f"{alter} SET DATA TYPE {typed(kind)}")
        if default is not None:
            self._wire.execute(f"{alter} SET DEFAULT {plain(default)}")
        if null is not None:
            change = "DROP NOT NULL" if null.upper() == "NULL" else "SET NOT NULL"
            self._wire.execute(f"{alter} {change}")
        return Answer(changed=0)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except H2Error as error:
            if error.code == _DEADLOCK:
                self._rolled_back = not self._autocommit
            waited = error.code == _LOCK_TIMEOUT and self._waits >= self._timeout
            if self._timeout and (waited or error.code == _ENDED):
                raise dpy(4024, "call timeout exceeded") from error
            raise from_h2(error, self.owner) from error

    def _refuse_if_rolled_back(self) -> None:
        # At a deadlock H2 rolls the whole transaction back, Oracle the statement only. What
        # followed would be another transaction, and a COMMIT that of its second half.
        if self._rolled_back:
            raise ora(60, "H2 has rolled the whole transaction back")

    def set_autocommit(self, on: bool) -> None:
        with self._failing():
            self._wire.autocommit(on)
            self._autocommit = on

    def commit(self) -> None:
        try:
            self._refuse_if_rolled_back()
        finally:
            self._rolled_back = False
        with self._failing():
            self._wire.commit()

    def rollback(self) -> None:
        self._rolled_back = False
        with self._failing():
            self._wire.execute("ROLLBACK")

    def ping(self) -> None:
        with self._failing():
            self._wire.execute("SELECT 1")

    def cancel(self) -> None:
        self._wire.cancel()

    def close(self) -> None:
        self._wire.close()


def made(host: str, port: int, database: str) -> None:
    """Make a database, with Oracle's views of its catalogue."""
    wire = Wire(host, port, f"mem:{database}", {**_SETTINGS, "DB_CLOSE_DELAY": "-1"})
    for statement in dictionary.VIEWS:
        wire.execute(statement)
    wire.close()


def removed(host: str, port: int, database: str) -> None:
    """End a database with the last of its sessions."""
    wire = _connected(host, port, database, {"IFEXISTS": "TRUE"})
    wire.execute("SET DB_CLOSE_DELAY 0")
    wire.close()


def _connected(
    host: str, port: int, database: str, settings: dict[str, str], password: str = ""
) -> Wire:
    try:
        return Wire(host, port, f"mem:{database}", settings, password)
    except OSError as error:
        raise dpy(6005, f"cannot connect to database: {error}") from error


def _answer(result: Result, is_returning: bool) -> Answer:
    if result.changed >= 0 and not is_returning:
        return Answer(changed=result.changed)
    columns = [(c.name, _type(c), *_exactness(c)) for c in result.columns]
    whole = [kind is oracledb.DB_TYPE_NUMBER and scale == 0 for _, kind, _, scale in columns]
    if not any(whole):
        return Answer(columns, result.rows)
    rows = [
        tuple(
            int(value) if exact and isinstance(value, Decimal) else value
            for exact, value in zip(whole, row, strict=True)
        )
        for row in result.rows
    ]
    return Answer(columns, rows)


_KINDS = {
    "varchar": oracledb.DB_TYPE_VARCHAR,
    "char": oracledb.DB_TYPE_CHAR,
    "varbinary": oracledb.DB_TYPE_BLOB,
    "binary": oracledb.DB_TYPE_BLOB,
    "timestamp": oracledb.DB_TYPE_TIMESTAMP,
    "timestamp_tz": oracledb.DB_TYPE_TIMESTAMP_TZ,
    "date": oracledb.DB_TYPE_DATE,
    "null": oracledb.DB_TYPE_VARCHAR,
}


def _type(column: Column) -> Any:
    if column.kind == "varchar" and column.precision >= LONG_TEXT:
        return oracledb.DB_TYPE_CLOB
    return _KINDS.get(column.kind, oracledb.DB_TYPE_NUMBER)


_EXPRESSION = (0, -127)


def _exactness(column: Column) -> tuple[int, int]:
    """Precision and scale: Oracle knows those of a column, not those of an expression."""
    if _type(column) is not oracledb.DB_TYPE_NUMBER:
        return 0, 0
    if not column.table:
        return _EXPRESSION
    if column.kind == "numeric":
        return column.precision, max(column.scale, 0)
    return _EXPRESSION if column.kind in ("decfloat", "double", "real") else (38, 0)


_NAME = r'(?:"(?:[^"]|"")+"|[\w$]+)'
_LOCKING = re.compile(r"\s+FOR\s+UPDATE\s+(SKIP\s+LOCKED|NOWAIT|WAIT\s+\d+)\s*$", re.I)
_ONE_TABLE = re.compile(
    rf"\s*SELECT\s+(.*?)\s+FROM\s+((?:{_NAME}\.)?{_NAME})\s+WHERE\s+(.*?)(\s+ORDER\s+BY\s+.*)?\s*",
    re.I | re.S,
)
