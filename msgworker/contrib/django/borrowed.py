"""Statements of `send` on Django's own connection, in Django's own transaction.

Django's connection is not SQLAlchemy's: a statement is compiled for the database, in the form of
Django's cursors (`%s` in order), and sent through one of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sqlalchemy as sa
from django.db import DatabaseError, connections, transaction
from sqlalchemy.exc import DBAPIError

from msgworker.producing import Borrowed


class DjangoConnection(Borrowed):
    """A connection of Django, as far as `send` needs one. dialect: of the App's own engine."""

    def __init__(self, alias: str, engine: sa.Engine) -> None:
        self.alias = alias
        self.engine = engine
        self.dialect = _formatting(engine.dialect)

    def execute(self, statement: Any, params: Any = None, **_: Any) -> Result:
        """Run one statement, with one set of parameters or a list of them."""
        compiled = statement.compile(dialect=self.dialect)
        with connections[self.alias].cursor() as cursor:
            if isinstance(params, list):
                cursor.executemany(str(compiled), [self._values(compiled, one) for one in params])
                return Result([], cursor.rowcount, None)
            values = self._values(compiled, params or {})
            try:
                cursor.execute(str(compiled), values)
            except DatabaseError as error:  # `send` looks at the error of the driver, see `theirs`
                cause = error.__cause__
                if not isinstance(cause, Exception):
                    raise
                raise DBAPIError(str(compiled), values, cause) from error
            rows = [] if cursor.description is None else cursor.fetchall()
            key: Any = None
            if compiled.isinsert:
                key = rows[0] if rows else (getattr(cursor, "lastrowid", None),)
            return Result(rows, cursor.rowcount, key)

    def scalar(self, statement: Any, params: Any = None) -> Any:
        return self.execute(statement, params).scalar()

    def scalars(self, statement: Any, params: Any = None) -> list[Any]:
        return self.execute(statement, params).scalars()

    def begin_nested(self) -> AbstractContextManager[None]:
        """A savepoint; a transaction where Django has none."""
        found: AbstractContextManager[None] = transaction.atomic(using=self.alias)
        return found

    def on_commit(self, fn: Callable[[], None]) -> None:
        transaction.on_commit(fn, using=self.alias)

    def _values(self, compiled: Any, given: Mapping[str, Any]) -> list[Any]:
        values = compiled.construct_params(given)
        found = []
        for name in compiled.positiontup or ():
            kind = compiled.binds[name].type.dialect_impl(self.dialect)
            process = kind.bind_processor(self.dialect)
            found.append(values[name] if process is None else process(values[name]))
        return found


@contextmanager
def theirs() -> Iterator[None]:
    """Raises Django's errors of the database, as users of its connection expect."""
    try:
        yield
    except DBAPIError as error:
        if isinstance(error.__cause__, DatabaseError):
            raise error.__cause__ from error.__cause__.__cause__
        raise


class Result:
    """The answer to a statement, read whole."""

    def __init__(self, rows: Sequence[Any], rowcount: int, key: Any) -> None:
        self._rows = list(rows)
        self.rowcount = rowcount
        self.inserted_primary_key = key

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def all(self) -> list[Any]:
        return self._rows

    def first(self) -> Any:
        return self._rows[0] if self._rows else None

    def scalar(self) -> Any:
        return self._rows[0][0] if self._rows else None

    def scalar_one(self) -> Any:
        return self._rows[0][0]

    def scalars(self) -> list[Any]:
        return [row[0] for row in self._rows]


def _formatting(dialect: sa.Dialect) -> sa.Dialect:
    """The same dialect, of the same server, in the style of Django's cursors."""
    found: Any = copy.copy(dialect)
    found.paramstyle, found.positional = "format", True
    found.identifier_preparer = found.preparer(found)
    made: sa.Dialect = found
    return made
