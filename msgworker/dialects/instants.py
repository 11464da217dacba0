"""Instants as columns keep them: their types, and how Python reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from msgworker.dialects.types import _is_mariadb
from msgworker.errors import ConfigError
from msgworker.ticks import zone_of


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
