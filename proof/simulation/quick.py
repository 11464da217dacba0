"""A connection that runs the statements of store/ on SQLite with little around them.

SQLAlchemy compiles them as ever, once; what is left out is what it does at each execution, which
took most of the time of a schedule. Only statements that `Tables.built` keeps go this way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa

from msgworker.table import Tables

Process = Callable[[Any], Any] | None
Params = Mapping[str, Any] | list[dict[str, Any]] | None


class Prepared(NamedTuple):
    """A compiled statement: its text, and how each parameter and column is turned.

    The statement itself is kept, so that its id is not given to another.
    """

    statement: Any
    text: str
    binds: tuple[tuple[str, Any, Process], ...]
    columns: tuple[tuple[int, Callable[[Any], Any]], ...]


class Found:
    """What the callers of store/ use of a Result."""

    __slots__ = ("rowcount", "rows")

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int) -> None:
        self.rows = rows
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def first(self) -> tuple[Any, ...] | None:
        return self.rows[0] if self.rows else None

    def one(self) -> tuple[Any, ...]:
        (row,) = self.rows
        return row

    def all(self) -> list[tuple[Any, ...]]:
        return self.rows

    def scalar_one(self) -> Any:
        ((value,),) = self.rows
        return value

    def scalar(self) -> Any:
        return self.rows[0][0] if self.rows else None


class Quick:
    """Stands for a sqlalchemy.Connection; what it does not know, the real one does."""

    def __init__(self, conn: sa.Connection, raw: sqlite3.Connection, t: Tables) -> None:
        self._conn = conn
        self._raw = raw
        self._t = t
        self._prepared: dict[int, Prepared] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def execute(self, statement: Any, params: Params = None) -> Any:
        prepared = self._prepared.get(id(statement)) or self._prepare(statement)
        if prepared is None:
            return self._conn.execute(statement, params)
        if isinstance(params, list):
            return Found([], sum(self.execute(statement, one).rowcount for one in params))
        given = params or {}
        values = []
        for key, default, process in prepared.binds:
            value = given.get(key, default)
            values.append(value if process is None else process(value))
        try:
            cursor = self._raw.execute(prepared.text, values)
            rows = cursor.fetchall()
        except sqlite3.IntegrityError as error:
            raise sa.exc.IntegrityError(prepared.text, values, error) from error
        if prepared.columns and rows:
            rows = [_turned(row, prepared.columns) for row in rows]
        return Found(rows, cursor.rowcount)

    def scalars(self, statement: Any, params: Mapping[str, Any] | None = None) -> Any:
        return (row[0] for row in self.execute(statement, params))

    def scalar(self, statement: Any, params: Mapping[str, Any] | None = None) -> Any:
        return self.execute(statement, params).scalar()

    @contextmanager
    def begin_nested(self) -> Iterator[None]:
        self._raw.execute("SAVEPOINT quick")
        try:
            yield
        except BaseException:
            self._raw.execute("ROLLBACK TO quick")
            self._raw.execute("RELEASE quick")
            raise
        self._raw.execute("RELEASE quick")

    def _prepare(self, statement: Any) -> Prepared | None:
        if not any(kept is statement for kept in self._t._built.values()):
            return None
        dialect = self._conn.dialect
        compiled = statement.compile(dialect=dialect)
        if compiled.post_compile_params or compiled.literal_execute_params:
            return None
        binds = []
        for name in compiled.positiontup or ():
            bind = compiled.binds[name]
            binds.append((bind.key, bind.effective_value, compiled._bind_processors.get(name)))
        turned = []
        for place, column in enumerate(compiled._result_columns):
            process = column.type._cached_result_processor(dialect, None)
            if process is not None:
                turned.append((place, process))
        prepared = Prepared(statement, compiled.string, tuple(binds), tuple(turned))
        self._prepared[id(statement)] = prepared
        return prepared


def _turned(row: tuple[Any, ...], columns: Any) -> tuple[Any, ...]:
    out = list(row)
    for place, process in columns:
        out[place] = process(out[place])
    return tuple(out)
