"""Time in SQL: the database's clock, the types of instants, and how Python reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from msgworker.db.database import DATABASES, Database, of_dialect
from msgworker.db.types import OfDatabase
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
        kind = of_dialect(dialect).instant_type(zoned=self.form != "plain")
        return dialect.type_descriptor(kind)

    def bind_expression(self, bindvalue: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        return with_zone(bindvalue) if self.form in ("zoned", "session") else bindvalue

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ConfigError(f"a time needs its time zone, got {value!r}; use datetime.now(UTC)")
        database = DATABASES[dialect.name]
        if database.zoned_instants and self.form != "plain":
            return value.astimezone(UTC)
        local = _clock_at(value, self.zone)
        if database.text_instants:  # not strftime, which writes the year 2 as "2" on some systems
            return local.isoformat(" ", "milliseconds")
        return local

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        try:
            return read_instant(value, self.zone)
        except ValueError:
            return None


class with_zone(OfDatabase):
    """A UTC instant without a zone, as a column keeps it that has one (Oracle), or the session's
    (MariaDB, MySQL)."""

    inherit_cache = True
    way = "with_zone"
    type = UtcDateTime(form="zoned")


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
    limits = of_dialect(dialect).instant_limits(kind, dialect.server_version_info or ())
    return Instants(*(limits or (FIRST, LAST)), str(kind))


def kept_as(kind: TypeEngine[Any] | None, database: Database, zone: str) -> UtcDateTime:
    """How a column of this type keeps instants, in a table of this zone; None = one of ours."""
    return UtcDateTime(*database.instant_form(kind, zone))


# --- Time in SQL: the database's clock, and the instants in rows.
#
# Any program may have written those: `infinity`, the year 20000, '0000-00-00', any text (SQLite).
# A value without a Python datetime makes the driver fail, and with it all rows of a statement. So
# an instant of a message is read by `instant_text` or `real_instant` (zones.py), which also know
# how its column keeps it.


class now(OfDatabase):
    """The database's clock, UTC; the same value for all rows of a statement."""

    inherit_cache = True
    way = "now"

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class now_ms(OfDatabase):
    """The database's clock as whole milliseconds since 1970, UTC: independent of instant types,
    time zones and drivers. It is the start of the statement: a statement that waits for a row
    uses a time that is too early, never too late."""

    inherit_cache = True
    way = "now_ms"
    type = sa.BigInteger()


class now_plus(OfDatabase):
    """The database's clock plus a number of seconds (may be a fraction, may be negative)."""

    inherit_cache = True
    way = "now_plus"

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class seconds_passed(OfDatabase):
    """Seconds from an instant in UTC until now, as a float; NULL or infinite for an invalid one."""

    inherit_cache = True
    way = "seconds_passed"
    type = sa.Float()


class step_of(OfDatabase):
    """Which step since 1970 an instant is in: `step_of(instant, seconds of a step)`."""

    inherit_cache = True
    way = "step_of"
    type = sa.BigInteger()


class text_of(OfDatabase):
    """`instant_text` of what a column keeps."""

    inherit_cache = True
    way = "text_of"
    type = NullType()


class of_text(OfDatabase):
    """The inverse of `text_of`."""

    inherit_cache = True
    way = "of_text"
    type = UtcDateTime()


class of_plain_text(of_text):
    """The same, of a column without a zone on PostgreSQL."""

    inherit_cache = True
    way = "of_plain_text"


class real(OfDatabase):
    """`real_instant` as a column keeps it."""

    inherit_cache = True
    way = "real"

    def __init__(self, instant: Any) -> None:
        self.type = kind_of(instant)
        super().__init__(instant)


def kind_of(expression: Any) -> UtcDateTime:
    """How the instants of an expression are kept."""
    kind = getattr(expression, "type", None)
    return kind if isinstance(kind, UtcDateTime) else UtcDateTime()
