"""The database's clock in SQL: now, now and some seconds, seconds since."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from msgworker.dialects.types import UtcDateTime


class now(FunctionElement[datetime]):
    """The database's clock, UTC; the same value for all rows of a statement."""

    inherit_cache = True

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class now_plus(FunctionElement[datetime]):
    """The database's clock plus a number of seconds (may be a fraction, may be negative)."""

    inherit_cache = True

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class seconds_since(FunctionElement[float]):
    """Seconds from an instant until now, as a float."""

    inherit_cache = True
    type = sa.Float()


def _clause(element: FunctionElement[Any], compiler: SQLCompiler, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(now)
def _now(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    raise NotImplementedError(compiler.dialect.name)


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    # now() stands still in a transaction, which a transactional handler may keep open for long.
    return "statement_timestamp()"


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@compiles(now, "mysql", "mariadb")
def _now_mysql(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "utc_timestamp(6)"


@compiles(now, "oracle")
def _now_oracle(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    # SYSTIMESTAMP is the server's clock; CURRENT_TIMESTAMP would be in the session's time zone.
    return "CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)"


@compiles(now_plus, "postgresql")
def _plus_postgresql(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = _clause(element, compiler, **kw)
    return f"(statement_timestamp() + make_interval(secs => {seconds}))"


@compiles(now_plus, "sqlite")
def _plus_sqlite(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = _clause(element, compiler, **kw)
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds')"


@compiles(now_plus, "mysql", "mariadb")
def _plus_mysql(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = _clause(element, compiler, **kw)
    return f"(utc_timestamp(6) + INTERVAL ROUND({seconds} * 1000000) MICROSECOND)"


@compiles(now_plus, "oracle")
def _plus_oracle(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = _clause(element, compiler, **kw)
    return (
        "(CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)"
        f" + NUMTODSINTERVAL({seconds}, 'SECOND'))"
    )


@compiles(seconds_since, "postgresql")
def _since_postgresql(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    return f"CAST(extract(epoch FROM statement_timestamp() - {instant}) AS float8)"


@compiles(seconds_since, "sqlite")
def _since_sqlite(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    return f"((julianday('now') - julianday({instant})) * 86400.0)"


@compiles(seconds_since, "mysql", "mariadb")
def _since_mysql(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    return f"(TIMESTAMPDIFF(MICROSECOND, {instant}, utc_timestamp(6)) / 1000000.0)"


@compiles(seconds_since, "oracle")
def _since_oracle(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    current = _now_oracle(now(), compiler)
    return f"((CAST({current} AS DATE) - CAST({instant} AS DATE)) * 86400)"
