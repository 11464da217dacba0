"""Time in SQL: the database's clock, instants as columns keep them, also in local time, and how
Python reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import visitors
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from msgworker.config.values import changes_of_zone, offset_of, zone_of
from msgworker.db.database import Database, of_dialect
from msgworker.db.types import OfDatabase
from msgworker.errors import ConfigError

# --- Instants as columns keep them: their types, and how Python reads them.


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime in Python, with microseconds (SQLite: milliseconds, as text). None for
    a text that is not an instant.

    zone: the local time that a column keeps, see below. form: "plain" for a column without a
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
        database = of_dialect(dialect)
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

    type = UtcDateTime(form="zoned")


def _clock_at(instant: datetime, zone: str) -> datetime:
    """What the clocks of a zone show at an instant; within the years 1 to 9999."""
    try:
        return instant.astimezone(zone_of(zone)).replace(tzinfo=None)
    except OverflowError:
        return (FIRST if instant.year == 1 else LAST).replace(tzinfo=None)


def _instant_at(local: datetime, zone: str) -> datetime:
    """The latest instant that a local time can mean, see below."""
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
# an instant of a message is read by `instant_text` or `real_instant`, which also know
# how its column keeps it.


class now(OfDatabase):
    """The database's clock, UTC; the same value for all rows of a statement."""

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class now_ms(OfDatabase):
    """The database's clock as whole milliseconds since 1970, UTC: independent of instant types,
    time zones and drivers. It is the start of the statement: a statement that waits for a row
    uses a time that is too early, never too late."""

    type = sa.BigInteger()


class now_plus(OfDatabase):
    """The database's clock plus a number of seconds (may be a fraction, may be negative)."""

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class seconds_passed(OfDatabase):
    type = sa.Float()


class step_of(OfDatabase):
    """Which step since 1970 an instant is in: `step_of(instant, seconds of a step)`."""

    type = sa.BigInteger()


class text_of(OfDatabase):
    """`instant_text` of what a column keeps."""

    type = NullType()


class of_text(OfDatabase):
    type = UtcDateTime()


class of_plain_text(of_text):
    pass


class real(OfDatabase):
    """`real_instant` as a column keeps it."""

    def __init__(self, instant: Any) -> None:
        self.type = kind_of(instant)
        super().__init__(instant)


def kind_of(expression: Any) -> UtcDateTime:
    """How the instants of an expression are kept."""
    kind = getattr(expression, "type", None)
    return kind if isinstance(kind, UtcDateTime) else UtcDateTime()


# --- The offsets of time zones and their changes, as Python knows them; pure.

Pieces = tuple[tuple[datetime | None, int], ...]
"""Offsets in seconds, each until a time without a zone; the last one has no end."""
YEARS_BEFORE, YEARS_AHEAD = 10, 10
"""In these the changes of a zone are known to statements; outside, its offsets of the ends hold."""
RECENT_DAYS = 400
"""What is written or due now looks no further back: fewer pieces in frequent statements."""


@dataclass(frozen=True, slots=True)
class Change:
    """A zone goes from one offset to another at an instant, UTC without a zone."""

    at: datetime
    before: int
    after: int


@lru_cache(64)
def changes_of(name: str, first: int, last: int) -> tuple[Change, ...]:
    """The changes of a zone in these years."""
    zone = zone_of(name)
    if zone.utcoffset(None) is not None:  # it has one offset, such as UTC
        return ()
    begin, end = datetime(first, 1, 1, tzinfo=UTC), datetime(last + 1, 1, 1, tzinfo=UTC)
    return tuple(
        Change(at.replace(tzinfo=None), before, after)
        for at, before, after in changes_of_zone(zone, begin, end)
    )


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of a zone as pieces. by_instant: of UTC; recent: the same, of late; lowest: the
    same, but around a change the lower one of the two; by_clock: of the local time, as it is read;
    recent_clock: the same, of late."""

    by_instant: Pieces
    recent: Pieces
    lowest: Pieces
    by_clock: Pieces
    recent_clock: Pieces

    @property
    def fixed(self) -> bool:
        """Whether the zone has one offset in all these years."""
        return len(self.by_instant) == 1


def offsets_of(name: str) -> Offsets:
    """The offsets of a zone, around this year."""
    return _offsets(name, datetime.now(UTC).year)


@lru_cache(64)
def _offsets(name: str, year: int) -> Offsets:
    every = changes_of(name, year - YEARS_BEFORE, year + YEARS_AHEAD)
    since = datetime(year, 1, 1) - timedelta(days=RECENT_DAYS)  # noqa: DTZ001
    last = offset_of(zone_of(name), datetime(year, 7, 1, tzinfo=UTC))
    recent = tuple(change for change in every if change.at >= since)

    def by_clock(change: Change) -> int:
        # What is left out has the offset of before, what comes twice that of after.
        return change.after

    def lower(change: Change) -> int:
        return change.after - change.before

    return Offsets(
        _pieces(every, last), _pieces(recent, last), _pieces(recent, last, lower),
        _pieces(every, last, by_clock), _pieces(recent, last, by_clock),
    )  # fmt: skip


def _pieces(
    changes: tuple[Change, ...], last: int, later: Callable[[Change], int] = lambda _: 0
) -> Pieces:
    """later: by how many seconds a piece ends after its change."""
    parts = [(c.at + timedelta(seconds=later(c)), c.before) for c in changes]
    return (*parts, (None, changes[-1].after if changes else last))


# --- Local time in columns: an instant as a column keeps it, and back, without the server's zones.
#
# A column without a zone of its own holds the clock on the wall of a declared zone. What that
# clock shows is computed in SQL, from the database's clock and from the changes of the zone that
# Python knows, so the server needs no table of zones and no clock but its own decides.
#
# One rule for the two odd hours of summer time: a local time has the latest meaning it can have.
# One that comes twice is taken as the second, one that is left out as the zone's offset before the
# change has it. So what waits for such a time may wait as long as the change is wide, and never
# runs early.


class _moved(FunctionElement[datetime]):
    """`_moved(time, by)`: a time without a zone, plus the seconds of the piece in which `by` is."""

    _traverse_internals = (  # what a compiled statement is kept by
        *FunctionElement._traverse_internals,
        ("pieces", visitors.InternalTraversal.dp_plain_obj),
        ("type", visitors.InternalTraversal.dp_type),
    )  # type: ignore[assignment]

    def __init__(self, time: Any, by: Any, pieces: Pieces, kind: TypeEngine[Any]) -> None:
        self.pieces, self.type = pieces, kind
        super().__init__(time, by)


class _plain(OfDatabase):
    type = UtcDateTime(form="plain")


class _aware(OfDatabase):
    type = UtcDateTime()


class _unzoned(OfDatabase):
    type = UtcDateTime()


class _epoch(OfDatabase):
    type = sa.Float()


class _kept_epoch(_epoch):
    pass


class _session_now(OfDatabase):
    type = UtcDateTime(form="session")


class _session_low(OfDatabase):
    type = UtcDateTime(form="session")


def kept(instant: sa.ColumnElement[Any], kind: UtcDateTime) -> sa.ColumnElement[Any]:
    """A UTC instant as a column of this kind keeps it."""
    return _kept(instant, instant, kind, offsets_of(kind.zone).recent)


def _kept(instant: Any, by: Any, kind: UtcDateTime, pieces: Pieces) -> sa.ColumnElement[Any]:
    if kind.form in ("zoned", "session"):
        return with_zone(instant)
    same = by is instant
    if kind.form == "plain":
        instant = _plain(instant)
    if pieces != ((None, 0),):
        instant = _moved(instant, instant if same else by, pieces, kind)
    found: sa.ColumnElement[Any] = instant
    return found


def utc_of(column: Any) -> Any:
    """The instants of a column as UTC; an expression of them keeps how they are kept in its type.
    NULL where the result would be beyond what the database holds."""
    kind = kind_of(column)
    if kind.form in ("zoned", "session"):
        return _unzoned(column)
    pieces = tuple((end, -offset) for end, offset in offsets_of(kind.zone).by_clock)
    if pieces != ((None, 0),):
        column = _moved(column, column, pieces, UtcDateTime(form=kind.form))
    return _aware(column) if kind.form == "plain" else column


def seconds_since(column: Any) -> sa.ColumnElement[float]:
    """Seconds from an instant until now, as a float; NULL or infinite for an invalid one."""
    return seconds_passed(utc_of(column))


def real_instant(column: Any) -> Any:
    """An instant of the years 1 to 9999 as UTC; NULL for any other value."""
    return utc_of(real(column))


def instant_text(column: Any) -> Any:
    """An instant in a form that a driver can always read; for `read_instant`, with its zone."""
    kind = kind_of(column)
    return text_of(column if kind.form in ("", "plain") else utc_of(column))


def instant_of(text: Any, column: Any) -> sa.ColumnElement[Any]:
    """The inverse of `instant_text`, to compare the column with it."""
    kind = kind_of(column)
    found: sa.ColumnElement[Any] = of_plain_text(text) if kind.form == "plain" else of_text(text)
    return found if kind.form in ("", "plain") else with_zone(found)


def has_come(column: Any, by: Any) -> sa.ColumnElement[bool]:
    """The instant in a column is not later than the UTC instant `by`; an index can be read so."""
    kind = kind_of(column)
    by_index: sa.ColumnElement[bool] = column <= kept(by, kind)
    if kind.form == "session":
        return sa.and_(by_index, _kept_epoch(column) <= _epoch(by))
    offsets = offsets_of(kind.zone)
    if offsets.fixed:
        return by_index
    return sa.and_(by_index, column <= _kept(by, column, kind, offsets.recent_clock))


def is_to_come(column: Any, by: Any) -> sa.ColumnElement[bool]:
    """The contrary; an index can be read so, too."""
    kind = kind_of(column)
    if kind.form == "session":
        return sa.and_(column > _session_low(by), _kept_epoch(column) > _epoch(by))
    offsets = offsets_of(kind.zone)
    by_index: sa.ColumnElement[bool] = column > _kept(by, by, kind, offsets.lowest)
    if offsets.fixed:
        return by_index
    return sa.and_(by_index, column > _kept(by, column, kind, offsets.recent_clock))


def written(value: Any, kind: TypeEngine[Any]) -> Any:
    """A value for a column of this kind: what it says of the database's clock, as that keeps it."""
    if not isinstance(kind, UtcDateTime) or not isinstance(value, sa.ClauseElement):
        return value
    if (kind.zone, kind.form) == ("UTC", ""):
        return value
    if kind.form == "session" and isinstance(value, now):
        return _session_now()

    def replace(element: Any) -> Any:
        if isinstance(element, _moved | _plain | with_zone):
            return element
        return kept(element, kind) if isinstance(element, now | now_plus) else None

    found, traverse = replace(value), cast("Any", visitors.replacement_traverse)
    return traverse(value, {}, replace) if found is None else found


def instant_ago(conn: sa.Connection, seconds: float = 0.0) -> datetime:
    """The instant so many seconds ago, by the database's clock."""
    then = now_plus(sa.literal(-seconds, sa.Float()))
    found: datetime = conn.execute(sa.select(then)).scalar_one()
    return found


def offset_now(zone: str) -> int:
    """By how many seconds the clocks of a zone differ from UTC."""
    return offset_of(zone_of(zone), datetime.now(UTC))


def created_default(database: Database, zone: str = "UTC") -> sa.TextClause:
    """DEFAULT of created_at in a column of ours: the time of this zone, whatever that of the
    session, as far as `Database.created_default` can say it."""
    offsets = offsets_of(zone)
    return sa.text(
        database.created_default(zone, offsets.by_instant[0][1] if offsets.fixed else None)
    )


@compiles(_moved)
def _written_moved(element: _moved, compiler: SQLCompiler, **kw: Any) -> str:
    database = of_dialect(compiler.dialect)
    time, by = (str(compiler.process(clause, **kw)) for clause in element.clauses)
    *pieces, (_, rest) = element.pieces
    if not pieces:
        return database.moved.format(time, rest)
    word = "TIMESTAMP " if database.literal_instants else ""
    when = " ".join(f"WHEN {by} < {word}'{end}' THEN {offset}" for end, offset in pieces)
    return database.moved.format(time, f"CASE {when} ELSE {rest} END")
