"""Time in SQL: the database's clock, the types of instants, and how Python reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from msgworker.db.types import _is_mariadb
from msgworker.errors import ConfigError
from msgworker.ticks import zone_of

# --- Instants as columns keep them: their types, and how Python reads them.


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime in Python, with microseconds (SQLite: milliseconds, as text). None for
    a text that is not an instant.

    zone: the local time that a column keeps, see zones.py. form: "plain" for a column without a
    zone on PostgreSQL, "zoned" for one with a zone on Oracle, "session" for one that is read and
    written in the zone of the session (TIMESTAMP of MariaDB and MySQL); "" = as in our own tables.
    """

    impl = sa.DateTime
    cache_ok = True

    def __init__(self, zone: str = "UTC", form: str = "") -> None:
        super().__init__()
        self.zone, self.form = zone, form

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects import mysql

            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        if dialect.name == "oracle":  # DateTime would be DATE: whole seconds
            from sqlalchemy.dialects import oracle

            return dialect.type_descriptor(oracle.TIMESTAMP())
        return dialect.type_descriptor(sa.DateTime(timezone=self.form != "plain"))

    def bind_expression(self, bindvalue: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        return with_zone(bindvalue) if self.form in ("zoned", "session") else bindvalue

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ConfigError(f"a time needs its time zone, got {value!r}; use datetime.now(UTC)")
        if dialect.name == "postgresql" and self.form != "plain":
            return value.astimezone(UTC)
        local = _clock_at(value, self.zone)
        if dialect.name == "sqlite":  # not strftime, which writes the year 2 as "2" on some systems
            return local.isoformat(" ", "milliseconds")
        return local

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        try:
            return read_instant(value, self.zone)
        except ValueError:
            return None


class with_zone(FunctionElement[datetime]):
    """A UTC instant without a zone, as a column keeps it that has one (Oracle), or the session's
    (MariaDB, MySQL)."""

    inherit_cache = True
    type = UtcDateTime(form="zoned")


@compiles(with_zone)
def _zone_elsewhere(element: with_zone, compiler: SQLCompiler, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(with_zone, "oracle")
def _zone_oracle(element: with_zone, compiler: SQLCompiler, **kw: Any) -> str:
    return f"FROM_TZ({compiler.process(element.clauses, **kw)}, 'UTC')"


def epoch_of(instant: str) -> str:
    """Seconds since 1970 of a UTC time (MariaDB, MySQL)."""
    return f"(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {instant}) * 0.000001)"


@compiles(with_zone, "mysql", "mariadb")
def _zone_mysql(element: with_zone, compiler: SQLCompiler, **kw: Any) -> str:
    # Of a session's time that comes twice in a year the server may take the first for the second:
    # then as much later as it would be too early.
    epoch = epoch_of(str(compiler.process(element.clauses, **kw)))
    early = f"GREATEST(0, {epoch} - UNIX_TIMESTAMP(FROM_UNIXTIME({epoch})))"
    return f"FROM_UNIXTIME({epoch} + {early})"


def _clock_at(instant: datetime, zone: str) -> datetime:
    """What the clocks of a zone show at an instant; within the years 1 to 9999."""
    try:
        return instant.astimezone(zone_of(zone)).replace(tzinfo=None)
    except OverflowError:
        return (FIRST if instant.year == 1 else LAST).replace(tzinfo=None)


def _instant_at(local: datetime, zone: str) -> datetime:
    """The latest instant that a local time can mean, see zones.py."""
    if zone == "UTC":
        return local.replace(tzinfo=UTC)
    known = zone_of(zone)
    return max(local.replace(tzinfo=known, fold=fold).astimezone(UTC) for fold in (0, 1))


def read_instant(value: Any, zone: str = "UTC") -> datetime | None:
    """An aware UTC datetime from a driver's value for an instant, or for `instant_text`; raises
    ValueError for an invalid one. zone: of one that names none."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.strip())
        if isinstance(value, datetime):
            return _instant_at(value, zone) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"not an instant: {value!r:.80}")


FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Instants:
    """The first and the last instant that a column can hold, in sessions of any time zone; none if
    the last is before the first. kind: the name of its type."""

    first: datetime = FIRST
    last: datetime = LAST
    kind: str = ""


def instants_of(kind: TypeEngine[Any], dialect: sa.Dialect) -> Instants:
    """The instants that a column of this type can hold."""
    if isinstance(kind, sa.Date | sa.Time) and not isinstance(kind, sa.DateTime):
        return Instants(LAST, FIRST, str(kind))
    if dialect.name not in ("mysql", "mariadb") or not isinstance(kind, sa.TIMESTAMP):
        return Instants(kind=str(kind))
    version = getattr(dialect, "server_version_info", None) or ()
    last = datetime(2038, 1, 18, tzinfo=UTC)
    if _is_mariadb(dialect) and version >= (11, 5):
        last = datetime(2106, 2, 6, tzinfo=UTC)
    return Instants(datetime(1970, 1, 2, tzinfo=UTC), last, str(kind))


def kept_as(kind: TypeEngine[Any] | None, dialect: str, zone: str) -> UtcDateTime:
    """How a column of this type keeps instants, in a table of this zone; None = one of ours."""
    if dialect == "postgresql":
        lost = isinstance(kind, sa.DateTime) and not kind.timezone
        return UtcDateTime(zone, "plain") if lost else UtcDateTime()
    if dialect == "oracle" and isinstance(kind, sa.DateTime):
        has_zone = kind.timezone or getattr(kind, "local_timezone", False)
        return UtcDateTime(form="zoned") if has_zone else UtcDateTime(zone)
    if dialect in ("mysql", "mariadb") and isinstance(kind, sa.TIMESTAMP):
        return UtcDateTime(form="session")
    return UtcDateTime(zone)


# --- Time in SQL: the database's clock, and the instants in rows.
#
# Any program may have written those: `infinity`, the year 20000, '0000-00-00', any text (SQLite).
# A value without a Python datetime makes the driver fail, and with it all rows of a statement. So
# an instant of a message is read by `instant_text` or `real_instant` (zones.py), which also know
# how its column keeps it.


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
