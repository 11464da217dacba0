"""Column types, and how each database compares and measures texts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from msgworker.dialects.capabilities import DIALECTS
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


class KeyText(TypeDecorator[str]):
    """Text that is compared byte by byte, so that an index can be read in its order."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        length = self.impl_instance.length  # type: ignore[attr-defined]
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.String(length, collation="C"))
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects import mysql

            # nopad: with the older padded collations 'a' and 'a ' were one object.
            nopad = DIALECTS["mariadb" if _is_mariadb(dialect) else "mysql"].key_collation
            kind = mysql.VARCHAR(length, charset="utf8mb4", collation=nopad)
            return dialect.type_descriptor(kind)
        return dialect.type_descriptor(sa.String(length))


def _is_mariadb(dialect: sa.Dialect) -> bool:
    return dialect.name == "mariadb" or bool(getattr(dialect, "is_mariadb", False))


class WholeId(TypeDecorator[int]):
    """An id that its table declares as NUMERIC or DECIMAL: still a whole number in Python. None for
    a fraction and for NaN."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name == "oracle":  # its driver would fail on a fraction
            from sqlalchemy.dialects import oracle

            number: Any = oracle.NUMBER
            return dialect.type_descriptor(number(asdecimal=True))
        return dialect.type_descriptor(sa.BigInteger())

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int | None:
        return whole_number(value)


def whole_number(value: Any) -> int | None:
    """A driver's number as a whole number, None if it is not one."""
    if type(value) is int:
        return value
    if not isinstance(value, int | float | Decimal):
        return None
    try:
        return int(value) if value == int(value) else None
    except (ValueError, OverflowError):  # NaN, infinite
        return None


def exact(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type of a live column by which expressions of it are read exactly: SQLAlchemy reads those
    of Oracle's NUMBER as floats, 7 as 7.0, and large ids rounded."""
    if kind.__visit_name__ != "NUMBER":
        return kind
    if getattr(kind, "scale", None) == 0:
        return sa.BigInteger()
    return sa.Numeric(getattr(kind, "precision", None), getattr(kind, "scale", None))


class AnyText(TypeDecorator[str]):
    """A text that was read from a column and is used as a parameter, also if it is not UTF-8."""

    impl = sa.String
    cache_ok = True

    def bind_expression(self, bindvalue: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        return _given_back(bindvalue)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        if dialect.name != "sqlite" or not isinstance(value, str):
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogateescape")
        return value


class _given_back(FunctionElement[str]):
    inherit_cache = True
    type = sa.String()


@compiles(_given_back)
def _as_it_is(element: _given_back, compiler: SQLCompiler, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(_given_back, "sqlite")
def _as_text(element: _given_back, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS TEXT)"


class AnyId(TypeDecorator[Any]):
    """An id in a column that takes every value; a read value can be used as a parameter."""

    impl = sa.types.NullType
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        if isinstance(value, Decimal):
            return int(value) if value == value.to_integral_value() else str(value)
        return str(value) if isinstance(value, UUID) else value


def key_like(kind: TypeEngine[Any], length: int) -> TypeEngine[str]:
    """The type of a generated column for texts of a column of type `kind`, with the same
    collation."""
    if isinstance(kind, KeyText):
        return KeyText(length)
    from sqlalchemy.dialects import mysql

    charset, collation = (getattr(kind, name, None) for name in ("charset", "collation"))
    return mysql.VARCHAR(length, charset=charset, collation=collation)


def recollated(column: sa.ColumnElement[Any], collation: str) -> sa.ColumnElement[Any]:
    """A text column in the form of our keys; columns of different collations cannot be compared."""
    kept = getattr(column.type, "collation", None)
    if kept == collation or isinstance(column.type, KeyText):
        return column
    from sqlalchemy.dialects import mysql

    return sa.collate(sa.cast(column, mysql.CHAR(charset="utf8mb4")), collation)


def key_text(length: int) -> TypeEngine[str]:
    """A column type for keys of at most `length` characters; see KeyText."""
    return KeyText(length)


class JsonList(TypeDecorator[list[int]]):
    """A list of whole numbers as the text of a JSON array; only for parameters."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: list[int] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else f"[{','.join(map(str, value))}]"


def plain_text(length: int) -> TypeEngine[str]:
    """Text of at most `length` characters."""
    return sa.String(length).with_variant(sa.Text(), "sqlite")


class LongText(TypeDecorator[str]):
    """Text of any length, also on databases whose TEXT is limited."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects import mysql

            return dialect.type_descriptor(mysql.LONGTEXT())
        return self.impl_instance


def long_text() -> TypeEngine[str]:
    """Text of any length."""
    return LongText()


def big_id() -> TypeEngine[int]:
    """A 64-bit key that the database generates."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def text_length(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The length of a text, in the cheapest unit of the database."""
    return sa.func.length(column, type_=sa.BigInteger())


def json_text(name: str, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A parameter that is already JSON text, for a column that may have a JSON type, which would
    encode it again."""
    if not isinstance(column.type, sa.JSON):
        return sa.bindparam(name)
    from sqlalchemy.dialects import postgresql

    text = sa.bindparam(name, type_=sa.Text())
    takes_text = not isinstance(column.type, postgresql.JSON)
    return text if takes_text else sa.cast(text, column.type)
