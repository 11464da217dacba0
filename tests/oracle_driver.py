"""A stand-in for a connection of Oracle's driver: remembers statements, gives prepared rows.

SQLAlchemy's own dialect and the driver's own types and errors stay as they are, so what is
remembered is what a server would be sent.
"""

from __future__ import annotations

import os
import re
from typing import Any

import oracledb
import sqlalchemy as sa

from tests.oracle_lint import parts_of_block

DRIVER = "MSGWORKER_TEST_ORACLE_DRIVER"
"""The variable that names another driver whose dialect compiles: cx_oracle."""


class _Variable:
    def __init__(self, kind: Any, size: int = 0, arraysize: int = 1, **options: Any) -> None:
        self.values: list[Any] = [[1]] * max(1, arraysize)

    def getvalue(self, position: int = 0) -> Any:
        return self.values[position]


class _Cursor:
    arraysize = 100
    prefetchrows = 2
    outputtypehandler = None

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: list[tuple[Any, ...]] = []
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def close(self) -> None: ...

    def setinputsizes(self, *args: Any, **named: Any) -> None: ...

    def var(self, kind: Any, *args: Any, **options: Any) -> _Variable:
        return _Variable(kind)

    def execute(self, sql: str, parameters: Any = None) -> _Cursor:
        if "sys_context" in sql.lower():
            self._rows, self.description = [("MW",)], [("X", None)]
            return self
        if "1.1 FROM DUAL" in sql:
            self._rows, self.description = [("1.1",)], [("X", None)]
            return self
        if "dbms_transaction" in sql.lower():
            raise oracledb.DatabaseError("ORA-06550: not here")
        self._connection.log.sent.append((sql, parameters))
        self._connection.log.rows_at_once.append((self.prefetchrows, self.arraysize))
        self.rowcount = self._connection.log.rowcount
        self.description = None
        if parts_of_block(sql):  # each of its counts
            for value in parameters.values():
                if isinstance(value, _Variable):
                    value.values = [self.rowcount]
        if re.match(r"\s*(SELECT|WITH)\b", sql, re.IGNORECASE):
            self._rows = self._connection.log.rows_for(sql)
            width = len(self._rows[0]) if self._rows else 1
            self.description = [(f"C{i}", None) for i in range(width)]
        return self

    def executemany(self, sql: str, parameters: Any, **options: Any) -> None:
        self.execute(sql, parameters[0] if isinstance(parameters, list) else None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self._rows = self._rows, []
        return rows

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        return self.fetchall()

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows.pop(0) if self._rows else None


class Connection:
    version = "19.0.0.0.0"
    max_identifier_length = 128
    thin = True
    autocommit = False
    outputtypehandler = None
    stmtcachesize = 20

    def __init__(self, log: Log) -> None:
        self.log = log

    def cursor(self, *args: Any) -> _Cursor:
        return _Cursor(self)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def ping(self) -> None: ...


class Log:
    """Statements sent, and what is given for them: `rowcount`, and rows by a part of the SELECT."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.rowcount = 1
        self.rows_at_once: list[tuple[int, int]] = []  # of each statement: first answer, further
        self.rows: dict[str, list[tuple[Any, ...]]] = {}

    def rows_for(self, sql: str) -> list[tuple[Any, ...]]:
        return next((list(rows) for part, rows in self.rows.items() if part in sql), [])

    def engine(self) -> sa.Engine:
        driver = os.environ.get(DRIVER, "oracledb")
        return sa.create_engine(f"oracle+{driver}://", creator=lambda: Connection(self))

    @property
    def statements(self) -> list[str]:
        """Each different statement, in the order of first use."""
        return list(dict.fromkeys(sql for sql, _ in self.sent))
