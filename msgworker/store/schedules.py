"""Schedules: a row each in `msgworker_schedule`, which any instance may fire.

A change of a row names the version that was read, so that of all who see the same tick one
sends its message: the UPDATE and the INSERT are one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam

from msgworker import db
from msgworker.db import instant_text, kind_of, now, read_instant, real_instant, same_text
from msgworker.errors import SchemaError
from msgworker.message import DEFAULT_TOPIC, Status
from msgworker.store.send import insert_many, refuse_unfilled, row_values
from msgworker.table import SCHEDULE, Tables, lit

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stored:
    """A schedule as it is in its row.

    payload: JSON. next_at: its next tick; None if the row holds no valid instant. last_at: the tick
    it fired last. version: grows with every change of the row, and does not begin again when a row
    of this name is deleted and made anew. declared_by: the instance that has
    written the declaration.
    """

    name: str
    spec: str
    time_zone: str
    topic: str
    object_id: str | None
    payload: str | None
    catch_up: str
    next_at: datetime | None
    last_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    version: int
    declared_by: str | None
    declared_at: datetime | None


def is_there(conn: Connection, t: Tables) -> bool:
    """Whether the table of schedules exists, for all that this login can see."""
    return db.is_there(sa.inspect(conn), SCHEDULE.of(t)) is not False


def look(conn: Connection, t: Tables) -> tuple[datetime, list[Stored]]:
    """The time of the database, and all schedules of this message table, by name."""

    def build() -> sa.Select[Any]:
        c = SCHEDULE.of(t).c
        instants = ("next_at", "last_at", "paused_at", "declared_at")
        columns = [
            real_instant(c[name]).label(name) if name in instants else c[name]
            for name in Stored.__slots__
        ]
        query = sa.select(now().label("mw_now"), *columns)
        return query.where(c.table_name == t.spec.bare_name).order_by(c.name)

    rows = conn.execute(t.built("schedules", build)).all()
    if not rows:
        return clock(conn), []
    return rows[0][0], [Stored(*row[1:]) for row in rows]


def clock(conn: Connection) -> datetime:
    """The time of the database, aware UTC."""
    found: datetime = conn.execute(sa.select(now().label("mw_now"))).scalar_one()
    return found


def insert(conn: Connection, t: Tables, values: dict[str, Any]) -> None:
    """Insert a schedule, by column. Raises IntegrityError if another process has just done so."""
    conn.execute(
        sa.insert(SCHEDULE.of(t)).values(table_name=t.spec.bare_name, declared_at=now(), **values)
    )


def first_version(at: datetime) -> int:
    """The version of a row that is made at this time of the database: its microseconds.

    A row of this name that was deleted before has counted from an earlier time, by less than one
    in a microsecond, so who has seen that one does not take this one for it.
    """
    return (at - EPOCH) // timedelta(microseconds=1)


def change(conn: Connection, t: Tables, seen: Stored, values: dict[str, Any]) -> bool:
    """Change the columns in `values`, if the row is as it was seen; False if it is not."""

    def build() -> sa.Update:
        new: dict[str, Any] = {name: bindparam(f"mw_{name}") for name in values}
        return sa.update(SCHEDULE.of(t)).where(*_as_seen(t)).values(version=_version(t) + 1, **new)

    params = {f"mw_{name}": value for name, value in values.items()} | _seen(t, seen)
    done = conn.execute(t.built(("schedule_change", frozenset(values)), build), params)
    return done.rowcount == 1


def fire(
    conn: Connection,
    t: Tables,
    seen: Stored,
    rows: Sequence[dict[str, Any]],
    *,
    next_at: datetime,
    last_at: datetime | None,
) -> bool:
    """Send the messages of one or more ticks and move to `next_at`, if the row is as it was seen;
    False, and nothing is sent, if it is not: another instance has fired them. In the caller's
    transaction. rows: as of `send.row_values`."""
    if not change(conn, t, seen, {"next_at": next_at, "last_at": last_at}):
        return False
    insert_many(conn, t, rows)
    return True


def waits(conn: Connection, t: Tables, of: Stored) -> bool:
    """Whether a message of the topic and object of a schedule waits: it has not begun, or failed
    and is to be tried again."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        query = t.hinted(sa.select(c.msg_id), t.message, "object").where(
            t.open_object(c) == bindparam("mw_object", type_=t.key_type), t.open_rows(c)
        )
        query = query.where(c.status != lit(Status.PROCESSING))
        if c.topic is not None:
            query = query.where(same_text(c.topic, bindparam("mw_topic", type_=c.topic.type)))
        return query.limit(sa.literal_column("1"))

    params = {"mw_object": t.key(object_of(t, of.object_id))}
    params |= {"mw_topic": of.topic} if t.has("topic") else {}
    return conn.execute(t.built("schedule_waits", build), params).first() is not None


def delete(conn: Connection, t: Tables, seen: Stored) -> bool:
    """Delete a schedule, if the row is as it was seen."""
    gone = sa.delete(SCHEDULE.of(t)).where(*_as_seen(t))
    return conn.execute(gone, _seen(t, seen)).rowcount == 1


def _version(t: Tables) -> sa.Column[int]:
    return SCHEDULE.of(t).c.version


def _as_seen(t: Tables) -> list[sa.ColumnElement[bool]]:
    c = SCHEDULE.of(t).c
    return [
        c.table_name == bindparam("mw_seen_table"),
        c.name == bindparam("mw_seen_name"),
        c.version == bindparam("mw_seen_version"),
    ]


def _seen(t: Tables, seen: Stored) -> dict[str, Any]:
    return {
        "mw_seen_table": t.spec.bare_name,
        "mw_seen_name": seen.name,
        "mw_seen_version": seen.version,
    }


def rows_of(t: Tables, of: Stored, ticks: Sequence[datetime]) -> list[dict[str, Any]]:
    """A row for each tick, for `fire`. Raises SchemaError if the message table does not take such
    messages, ValueError if it does not take the object."""
    if t.unfilled:
        refuse_unfilled(t)
    refuse(t, of.name, of.topic, of.payload)
    held = object_of(t, of.object_id)
    message = {"topic": of.topic, "object_id": held, "payload": of.payload}
    return [row_values(t, **message, delay=None, at=None, scheduled_for=tick) for tick in ticks]


def refuse(t: Tables, name: str, topic: str, payload: str | None) -> None:
    """Raise SchemaError if the message table has no columns for what a schedule sends."""
    if payload is not None and not t.has("payload"):
        raise SchemaError(f"table {t.spec.name} has no payload column; give schedule {name} none")
    if topic != DEFAULT_TOPIC and not t.has("topic"):
        raise SchemaError(
            f"table {t.spec.name} has no topic column: each of its messages is of the topic "
            f'"{DEFAULT_TOPIC}". Give schedule {name} that topic, or name a column, '
            "MessageTable(topic=...)"
        )


def object_of(t: Tables, text: str | None) -> Any:
    """The object of a schedule as the message table takes it; raises ValueError for a text that is
    no value of its column."""
    kind = t.object_type
    if text is None or isinstance(kind, sa.String | db.KeyText) or t.database.loose_types:
        return text
    if isinstance(kind, sa.Integer):
        return int(text)
    if isinstance(kind, sa.Uuid):
        return UUID(text)
    if isinstance(kind, sa.Numeric):
        try:
            return Decimal(text)
        except ArithmeticError:
            raise ValueError(f"not a number: {text!r:.80}") from None
    return text


def tick_of(conn: Connection, t: Tables, msg_id: int) -> datetime | None:
    """For which instant a schedule has sent a message; None for other messages, and for a value
    that is no instant."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        assert c.scheduled_for is not None
        same = c.msg_id == bindparam("mw_id", type_=c.msg_id.type)
        return sa.select(instant_text(c.scheduled_for)).where(same)

    if not t.has("scheduled_for"):
        return None
    found = conn.execute(t.built("tick_of", build), {"mw_id": msg_id}).scalar()
    try:
        tick = read_instant(found, kind_of(t.cols().scheduled_for).zone)
    except ValueError:
        return None
    return None if tick is None else tick.astimezone(UTC)


def sender_of(conn: Connection, t: Tables, topic: str, object_id: Any) -> str:
    """In words, which schedule has sent a message of this topic and object."""
    rows = look(conn, t)[1] if is_there(conn, t) else []
    held = None if object_id is None else str(object_id)
    same = [row.name for row in rows if (row.topic, row.object_id) == (topic, held)]
    return f"schedule {same[0]}" if len(same) == 1 else "a schedule"
