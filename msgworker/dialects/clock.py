"""Time in SQL: the database's clock, and the instants in rows.

Any program may have written those: `infinity`, the year 20000, '0000-00-00', any text (SQLite).
A value without a Python datetime makes the driver fail, and with it all rows of a statement. So an
instant of a message is read by `instant_text` or `real_instant` (zones.py), which also know how
its column keeps it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, TypeEngine

from msgworker.dialects.instants import UtcDateTime


class now(FunctionElement[datetime]):
    """The database's clock, UTC; the same value for all rows of a statement."""

    inherit_cache = True

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class now_ms(FunctionElement[int]):
    """The database's clock as whole milliseconds since 1970, UTC: independent of instant types,
    time zones and drivers. It is the start of the statement: a statement that waits for a row
    uses a time that is too early, never too late."""

    inherit_cache = True
    type = sa.BigInteger()


class now_plus(FunctionElement[datetime]):
    """The database's clock plus a number of seconds (may be a fraction, may be negative)."""

    inherit_cache = True

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class seconds_passed(FunctionElement[float]):
    """Seconds from an instant in UTC until now, as a float; NULL or infinite for an invalid one."""

    inherit_cache = True
    type = sa.Float()


class step_of(FunctionElement[int]):
    """Which step since 1970 an instant is in: `step_of(instant, seconds of a step)`."""

    inherit_cache = True
    type = sa.BigInteger()


class text_of(FunctionElement[Any]):
    """`instant_text` of what a column keeps."""

    inherit_cache = True
    type = NullType()


class of_text(FunctionElement[datetime]):
    """The inverse of `text_of`."""

    inherit_cache = True
    type = UtcDateTime()


class of_plain_text(of_text):
    """The same, of a column without a zone on PostgreSQL."""

    inherit_cache = True


class real(FunctionElement[datetime]):
    """`real_instant` as a column keeps it."""

    inherit_cache = True

    def __init__(self, instant: Any) -> None:
        self.type = kind_of(instant)
        super().__init__(instant)


def kind_of(expression: Any) -> UtcDateTime:
    """How the instants of an expression are kept."""
    kind = getattr(expression, "type", None)
    return kind if isinstance(kind, UtcDateTime) else UtcDateTime()


def _clause(element: FunctionElement[Any], compiler: SQLCompiler, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


def _clauses(element: FunctionElement[Any], compiler: SQLCompiler, **kw: Any) -> list[str]:
    return [str(compiler.process(clause, **kw)) for clause in element.clauses]


@compiles(now)
def _now(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    raise NotImplementedError(compiler.dialect.name)


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    # now() is constant in a transaction, which a transactional handler may keep open for long.
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


@compiles(now_ms, "postgresql")
def _ms_postgresql(element: now_ms, compiler: SQLCompiler, **kw: Any) -> str:
    return "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT)"


@compiles(now_ms, "sqlite")
def _ms_sqlite(element: now_ms, compiler: SQLCompiler, **kw: Any) -> str:
    # Rounded: a double has a Julian day to 40 microseconds, perhaps just below a millisecond.
    return "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(now_ms, "mysql", "mariadb")
def _ms_mysql(element: now_ms, compiler: SQLCompiler, **kw: Any) -> str:
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000)"


@compiles(now_ms, "oracle")
def _ms_oracle(element: now_ms, compiler: SQLCompiler, **kw: Any) -> str:
    since = "(SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')"
    parts = {"DAY": 86_400_000, "HOUR": 3_600_000, "MINUTE": 60_000}
    whole = " + ".join(f"EXTRACT({part} FROM {since}) * {ms}" for part, ms in parts.items())
    return f"({whole} + FLOOR(EXTRACT(SECOND FROM {since}) * 1000))"


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


@compiles(seconds_passed, "postgresql")
def _since_postgresql(element: seconds_passed, compiler: SQLCompiler, **kw: Any) -> str:
    # Not the seconds of their difference: before version 17 there is none to an infinite instant.
    instant = _clause(element, compiler, **kw)
    past = f"CAST(extract(epoch FROM {instant}) AS float8)"
    return f"(CAST(extract(epoch FROM statement_timestamp()) AS float8) - {past})"


@compiles(seconds_passed, "sqlite")
def _since_sqlite(element: seconds_passed, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    return f"((julianday('now') - julianday({instant})) * 86400.0)"


@compiles(seconds_passed, "mysql", "mariadb")
def _since_mysql(element: seconds_passed, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    return f"(TIMESTAMPDIFF(MICROSECOND, {instant}, utc_timestamp(6)) / 1000000.0)"


@compiles(seconds_passed, "oracle")
def _since_oracle(element: seconds_passed, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    # Of an interval: a difference of DATEs would have whole seconds only.
    passed = f"({_now_oracle(now(), compiler)} - CAST({instant} AS TIMESTAMP))"
    return f"({_seconds_oracle(passed)})"


def _seconds_oracle(interval: str) -> str:
    parts = {"DAY": 86_400, "HOUR": 3_600, "MINUTE": 60, "SECOND": 1}
    return " + ".join(f"EXTRACT({part} FROM {interval}) * {size}" for part, size in parts.items())


@compiles(step_of, "postgresql")
def _step_postgresql(element: step_of, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = _clauses(element, compiler, **kw)
    return f"CAST(floor(CAST(extract(epoch FROM {instant}) AS float8) / {seconds}) AS BIGINT)"


@compiles(step_of, "sqlite")
def _step_sqlite(element: step_of, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = _clauses(element, compiler, **kw)
    return f"(CAST(strftime('%s', {instant}) AS INTEGER) / {seconds})"


@compiles(step_of, "mysql", "mariadb")
def _step_mysql(element: step_of, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = _clauses(element, compiler, **kw)
    return f"(TIMESTAMPDIFF(SECOND, '1970-01-01 00:00:00', {instant}) DIV {seconds})"


@compiles(step_of, "oracle")
def _step_oracle(element: step_of, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = _clauses(element, compiler, **kw)
    since = f"({instant} - TIMESTAMP '1970-01-01 00:00:00')"
    return f"FLOOR(({_seconds_oracle(since)}) / {seconds})"


@compiles(text_of, "postgresql")
def _text_postgresql(element: text_of, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({_clause(element, compiler, **kw)} AS TEXT)"


@compiles(text_of, "sqlite")
def _text_sqlite(element: text_of, compiler: SQLCompiler, **kw: Any) -> str:
    return _clause(element, compiler, **kw)


@compiles(text_of, "mysql", "mariadb")
def _text_mysql(element: text_of, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({_clause(element, compiler, **kw)} AS CHAR)"


_ORACLE_FORMAT = "'SYYYY-MM-DD HH24:MI:SS.FF6'"


@compiles(text_of, "oracle")
def _text_oracle(element: text_of, compiler: SQLCompiler, **kw: Any) -> str:
    return f"TO_CHAR(CAST({_clause(element, compiler, **kw)} AS TIMESTAMP), {_ORACLE_FORMAT})"


@compiles(of_text, "postgresql")
def _of_postgresql(element: of_text, compiler: SQLCompiler, **kw: Any) -> str:
    zone = "WITHOUT" if isinstance(element, of_plain_text) else "WITH"
    return f"CAST({_clause(element, compiler, **kw)} AS TIMESTAMP {zone} TIME ZONE)"


@compiles(of_text, "sqlite", "mysql", "mariadb")
def _of_itself(element: of_text, compiler: SQLCompiler, **kw: Any) -> str:
    return _clause(element, compiler, **kw)


@compiles(of_text, "oracle")
def _of_oracle(element: of_text, compiler: SQLCompiler, **kw: Any) -> str:
    return f"TO_TIMESTAMP({_clause(element, compiler, **kw)}, {_ORACLE_FORMAT})"


@compiles(real, "postgresql", "mysql", "mariadb")
def _real(element: real, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)  # a day less at both ends, for all time zones
    return f"CASE WHEN {instant} BETWEEN '0001-01-02' AND '9999-12-30' THEN {instant} END"


@compiles(real, "sqlite")
def _real_sqlite(element: real, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)  # julianday() also accepts 'now' and numbers
    looks = f"{instant} GLOB '[0-9][0-9][0-9][0-9]-*' AND julianday({instant}) IS NOT NULL"
    return f"CASE WHEN {looks} THEN {instant} END"


@compiles(real, "oracle")
def _real_oracle(element: real, compiler: SQLCompiler, **kw: Any) -> str:
    return _clause(element, compiler, **kw)
