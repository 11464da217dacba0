"""Schedules: a row each in `msgworker_schedule`, which any instance may fire.

A change of a row names the version that was read, so that of all who see the same tick one
sends its message: the UPDATE and the INSERT are one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.db import catalogue
from msgworker.db.clock import instant_text, kind_of, now, read_instant, real_instant
from msgworker.db.types import same_text
from msgworker.errors import ConfigError, DuplicateMessage, PayloadError, SchemaError
from msgworker.message import DEFAULT_TOPIC, State, Status
from msgworker.schedules import Schedule
from msgworker.store import send
from msgworker.store.bounded import object_of
from msgworker.store.change import cancel_or_request, lock
from msgworker.table.build import MAX_ACTOR, SCHEDULE
from msgworker.table.tables import ONE, Tables, lit

OPEN = (State.NEW, State.PROCESSING, State.FAILED)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stored:
    """A schedule as it is in its row."""

    name: str
    spec: str
    time_zone: str
    topic: str
    object_id: str | None
    payload: str | None  # JSON
    catch_up: str
    next_at: datetime | None  # its next tick; None if the row holds no valid instant
    last_at: datetime | None  # the tick it fired last
    paused_at: datetime | None
    paused_by: str | None
    # Grows with every change, and does not begin again when a row of this name is made anew.
    version: int
    declared_by: str | None  # the instance that has written the declaration
    declared_at: datetime | None
    overlap: str = "allow"
    skipped: int = 0
    replaced: int = 0
    paused_reason: str | None = None

    @property
    def key(self) -> str | None:
        """The unique key of its messages, by which one is found that has not ended; None where they
        may overlap."""
        return None if self.overlap == "allow" else key_of(self.name)


def key_of(name: str) -> str:
    """The unique key of the messages of a schedule."""
    return f"schedule:{name}"


class Fired(NamedTuple):
    """What became of ticks. sent: those that have a message. skipped: those that have none.
    before: of those that were skipped or replaced, the message that had not ended. replaced: how
    many have taken the place of one."""

    sent: tuple[datetime, ...] = ()
    skipped: tuple[datetime, ...] = ()
    before: Any = None
    replaced: int = 0


def is_there(conn: Connection, t: Tables) -> bool:
    """Whether the table of schedules exists, for all that this login can see."""
    return catalogue.is_there(sa.inspect(conn), SCHEDULE.of(t)) is not False


ADDED = ("overlap", "skipped", "replaced", "paused_reason")
"""Columns that version 13 of the schema has added."""


def is_whole(conn: Connection, t: Tables) -> bool:
    """Whether the table has the columns ADDED: how ticks may overlap, how many did, and why it is
    paused."""
    table = SCHEDULE.of(t)
    try:
        found = catalogue.columns_of(sa.inspect(conn), table.name, table.schema)
    except sa.exc.NoSuchTableError:
        return False
    return {*ADDED} <= {str(column["name"]).lower() for column in found}


def look(
    conn: Connection, t: Tables, *, whole: bool | None = None
) -> tuple[datetime, list[Stored]]:
    """The time of the database, and all schedules of this message table, by name. whole: with the
    columns of `is_whole`, which is asked where it is None."""
    whole = is_whole(conn, t) if whole is None else whole
    c = SCHEDULE.of(t).c
    instants = ("next_at", "last_at", "paused_at", "declared_at")
    columns = [
        real_instant(c[name]).label(name) if name in instants else c[name]
        for name in Stored.__slots__
        if whole or name not in ADDED
    ]
    query = sa.select(now().label("mw_now"), *columns)
    rows = conn.execute(query.where(c.table_name == t.label).order_by(c.name)).all()
    if not rows:
        return clock(conn), []
    return rows[0][0], [Stored(*row[1:]) for row in rows]


def clock(conn: Connection) -> datetime:
    """The time of the database, aware UTC."""
    found: datetime = conn.execute(sa.select(now().label("mw_now"))).scalar_one()
    return found


def insert(conn: Connection, t: Tables, values: dict[str, Any]) -> None:
    """Insert a schedule, by column. Raises IntegrityError if another process has just done so."""
    conn.execute(sa.insert(SCHEDULE.of(t)).values(table_name=t.label, declared_at=now(), **values))


def first_version(at: datetime) -> int:
    """The version of a row that is made at this time of the database: its microseconds. A row of
    this name that was deleted before has counted from an earlier time, by less than one in a
    microsecond, so who has seen that one does not take this one for it."""
    return (at - EPOCH) // timedelta(microseconds=1)


def change(conn: Connection, t: Tables, seen: Stored, values: dict[str, Any]) -> bool:
    """Change the columns in `values`, if the row is as it was seen; False if it is not."""
    change = sa.update(SCHEDULE.of(t)).where(*_as_seen(t, seen))
    new = change.values(version=SCHEDULE.of(t).c.version + 1, **values)
    return conn.execute(new).rowcount == 1


def fire(
    conn: Connection,
    t: Tables,
    seen: Stored,
    rows: Sequence[dict[str, Any]],
    ticks: Sequence[datetime],
    *,
    next_at: datetime,
    skips: bool = False,
    counts: bool = True,
) -> Fired | None:
    """Send the messages of one or more ticks and move to `next_at`, if the row is as it was seen;
    None, and nothing is sent, if it is not: another instance has fired them. In the caller's
    transaction, which holds the row, so that one alone decides what becomes of a tick. rows: as of
    `send.row_values`, one for each of `ticks`. skips: none is sent. counts: skipped ticks, where
    the table has columns for it (`is_whole`)."""
    last_at = ticks[-1] if ticks and not skips else seen.last_at
    if not change(conn, t, seen, {"next_at": next_at, "last_at": last_at}):
        return None
    if skips:
        found = Fired(skipped=tuple(ticks))
    elif seen.key is None:
        send.insert_many(conn, t, rows)
        found = Fired(sent=tuple(ticks))
    else:
        found = Fired()
        for row, tick in zip(rows, ticks, strict=True):
            found = _fired(conn, t, seen, row, tick, found)
    if counts and (found.skipped or found.replaced):
        _count(conn, t, seen, found)
    return found


def _fired(
    conn: Connection, t: Tables, of: Stored, row: dict[str, Any], tick: datetime, so_far: Fired
) -> Fired:
    """Send the message of a tick, as `overlap` says if the one before has not ended."""
    sent = (*so_far.sent, tick)
    try:
        send.send(conn, t, row, on_duplicate="raise")
        return so_far._replace(sent=sent)
    except DuplicateMessage as found:
        before = found.msg_id
        if before is None:  # it changes all the time
            raise
    if of.overlap != "replace":
        return so_far._replace(skipped=(*so_far.skipped, tick), before=before)
    if not replace(conn, t, of, row, before)[1]:
        return so_far._replace(sent=sent)
    return so_far._replace(sent=sent, before=before, replaced=so_far.replaced + 1)


def replace(
    conn: Connection, t: Tables, of: Stored, row: dict[str, Any], before: Any
) -> tuple[Any, bool]:
    """Let the message of a tick take the place of the one before it: that one, if it has not begun,
    is the message of the new tick; else, and where the schedule has another topic or object since,
    it is cancelled. Returns the id of the message, and False if the one before has ended meanwhile,
    or runs on, without an owner. In the caller's transaction."""
    key = row["b_unique_key"]
    found = send.holder(conn, t, key)
    if found is not None and send.other_than(t, found, row):
        send.give_up(conn, t, found, key)
    msg_id = send.send(conn, t, row, on_duplicate="replace")
    if msg_id == before:
        return msg_id, True
    if not lock(conn, t, [before], words=OPEN):  # it has ended meanwhile
        return msg_id, False
    actor, why = f"schedule {of.name}"[:MAX_ACTOR], "replaced by its next tick"
    return msg_id, bool(cancel_or_request(conn, t, [before], actor=actor, reason=why))


def send_now(conn: Connection, t: Tables, of: Stored, row: dict[str, Any]) -> Any:
    """Send the message of a schedule besides its ticks; returns its id. In the caller's
    transaction. Raises DuplicateMessage where one has not ended and the schedule skips ticks."""
    if of.key is None:
        return send.insert_one(conn, t, row)
    try:
        return send.send(conn, t, row, on_duplicate="raise")
    except DuplicateMessage as found:
        if found.msg_id is None:
            raise
        if of.overlap == "replace":
            return replace(conn, t, of, row, found.msg_id)[0]
        text = f'schedule {of.name} has overlap="{of.overlap}": wait for that message, or cancel it'
        raise DuplicateMessage(found.msg_id, of.key, text) from None


def _count(conn: Connection, t: Tables, of: Stored, found: Fired) -> None:
    """Count what was skipped and replaced, of a row that this transaction has changed."""
    c = SCHEDULE.of(t).c
    counts = {
        "skipped": c.skipped + len(found.skipped),
        "replaced": c.replaced + found.replaced,
        "last_at": found.sent[-1] if found.sent else of.last_at,
    }
    conn.execute(sa.update(SCHEDULE.of(t)).where(*_as_seen(t, of)[:2]).values(counts))


def waits(conn: Connection, t: Tables, of: Stored) -> bool:
    """Whether a message of the topic and object of a schedule waits: it has not begun, or failed
    and is to be tried again."""
    c = t.cols()
    key = sa.literal(t.key(object_of(t, of.object_id)), t.key_type)
    query = t.hinted(sa.select(c.msg_id), t.message, "object")
    query = query.where(t.open_object(c) == key, t.open_rows(c))
    query = query.where(c.status != lit(Status.PROCESSING))
    if c.topic is not None:
        query = query.where(same_text(c.topic, sa.literal(of.topic, c.topic.type)))
    return conn.execute(query.limit(ONE)).first() is not None


def delete(conn: Connection, t: Tables, seen: Stored) -> bool:
    """Delete a schedule, if the row is as it was seen."""
    return conn.execute(sa.delete(SCHEDULE.of(t)).where(*_as_seen(t, seen))).rowcount == 1


def _as_seen(t: Tables, seen: Stored) -> list[sa.ColumnElement[bool]]:
    c = SCHEDULE.of(t).c
    return [c.table_name == t.label, c.name == seen.name, c.version == seen.version]


def rows_of(t: Tables, of: Schedule | Stored, ticks: Sequence[datetime]) -> list[dict[str, Any]]:
    """A row for each tick, for `fire`. Raises SchemaError, ConfigError or PayloadError if the
    message table does not take such messages."""
    if t.unfilled:
        send.refuse_unfilled(t)
    if of.payload is not None and not t.has("payload"):
        text = f"table {t.spec.name} has no payload column; give schedule {of.name} none"
        raise SchemaError(text)
    if of.topic != DEFAULT_TOPIC and not t.has("topic"):
        raise SchemaError(
            f"table {t.spec.name} has no topic column: each of its messages is of the topic "
            f'"{DEFAULT_TOPIC}". Give schedule {of.name} that topic, or name a column, '
            "MessageTable(topic=...)"
        )
    key = None if of.overlap == "allow" else key_of(of.name)
    try:
        message: dict[str, Any] = {"topic": of.topic, "payload": of.payload, "unique_key": key}
        message["object_id"] = send.as_object(t, of.object_id)
        rows = [send.row_values(t, **message, scheduled_for=tick) for tick in ticks]
        for row in rows:
            send.check_limits(t, row)
    except (ConfigError, PayloadError) as error:
        raise type(error)(f"schedule {of.name}: {error}") from None
    return rows


def tick_of(conn: Connection, t: Tables, msg_id: int) -> datetime | None:
    """For which instant a schedule has sent a message; None for other messages, and for a value
    that is no instant."""
    c = t.cols()
    if c.scheduled_for is None:
        return None
    same = t.within(c, c.msg_id == sa.literal(msg_id, c.msg_id.type))
    found = conn.execute(sa.select(instant_text(c.scheduled_for)).where(same)).scalar()
    try:
        tick = read_instant(found, kind_of(c.scheduled_for).zone)
    except ValueError:
        return None
    return None if tick is None else tick.astimezone(UTC)


def sender_of(
    conn: Connection, t: Tables, topic: str, object_id: Any, key: str | None = None
) -> str:
    """In words, which schedule has sent a message: the one whose unique key it has, whatever its
    topic is by now, else that of this topic and object."""
    rows = look(conn, t)[1] if is_there(conn, t) else []
    held = None if object_id is None else str(object_id)
    same = [row for row in rows if key is not None and row.key == key]
    same = same or [row for row in rows if (row.topic, row.object_id) == (topic, held)]
    if len(same) != 1:
        return "a schedule"
    (one,) = same
    counts = ((one.skipped, "skipped"), (one.replaced, "replaced"))
    said = "".join(f", {plural(count, 'tick')} {word}" for count, word in counts if count)
    told = f" (overlap {one.overlap}{said})" if said or one.key is not None else ""
    return f"schedule {one.name}{told}"
