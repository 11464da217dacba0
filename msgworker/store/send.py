"""Insert messages in the caller's transaction; with a unique key, if no other message holds it."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from types import NoneType
from typing import Any, NamedTuple, NoReturn

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker.db.clock import kind_of, now_plus
from msgworker.db.database import of
from msgworker.db.errors import violates
from msgworker.db.types import AnyText, array_of_texts, array_param, array_rows, json_text
from msgworker.errors import ConfigError, DuplicateMessage, PayloadError, SchemaError
from msgworker.message import Outgoing, Status
from msgworker.table import tables
from msgworker.table.spec import MessageTable, literal

# --- Send a message with a unique key, in the caller's transaction, which a taken key does not
# break.
#
# The unique index decides (table/tables.py); who comes second waits for the first one's COMMIT.
# Where an INSERT can step back from a conflict, it does. Elsewhere the error of the index undoes
# its statement alone; there the key is looked up first, because a refused INSERT keeps the entry
# of the other message locked until the caller's COMMIT, and with it the settle of that message.

ROUNDS = 20
"""How often it is sent again because the message that had the key has ended meanwhile."""
LATER_SECONDS = 2.0
"""A message that was edited, and waits at -1, waits so long at least once it is replaced: a claim
under way, which has seen it as it was, finds that it is not due."""


class Param(NamedTuple):
    """A parameter of an INSERT. role: the column that it fills. replaces: a message that is
    replaced gets it from the new one, or loses it (not its job, nor that its key is kept). array:
    those of many messages travel as one array; a message with another one is sent by itself."""

    role: str
    replaces: bool = False
    array: bool = False


PARAMS = {
    "b_topic": Param("topic", array=True),
    "b_object_id": Param("object_id", array=True),
    "b_payload": Param("payload", replaces=True, array=True),
    "b_shard": Param("shard", array=True),
    "b_priority": Param("priority", replaces=True, array=True),
    "b_delay": Param("available_at", replaces=True),
    "b_at": Param("available_at", replaces=True),
    "b_unique_key": Param("unique_key"),
    "b_unique_kept": Param("unique_kept", replaces=True),
    "b_scheduled_for": Param("scheduled_for", replaces=True),
    "b_headers": Param("headers", replaces=True, array=True),
    "b_job_id": Param("job_id", replaces=True, array=True),
}
"""All that `row_values`, and who adds headers, may give."""


class Holder(NamedTuple):
    """The message that holds a key."""

    msg_id: Any
    topic: Any
    object_id: Any
    kept: bool


def send_one(conn: Connection, t: tables.Tables, message: Outgoing, *, own: Any = None) -> Any:
    """Send a checked message; returns its msg_id, or that of the one that holds its key."""
    if message.on_duplicate is None or "b_unique_key" not in message.row:
        return insert_one(conn, t, message.row)
    return send(conn, t, message.row, on_duplicate=message.on_duplicate, own=own)


def send_all(
    conn: Connection, t: tables.Tables, messages: Iterable[Outgoing], *, sent: int | None = None
) -> None:
    """Send checked messages in order; those without a key, between two that have one, together.
    sent: how many of the same call were sent before; a DuplicateMessage then says how many are."""
    for keys, part in itertools.groupby(messages, lambda one: frozenset(one.row)):
        some = list(part)
        if "b_unique_key" not in keys:
            insert_many(conn, t, [one.row for one in some])
        else:
            for place, one in enumerate(some):
                try:
                    send_one(conn, t, one)
                except DuplicateMessage as error:
                    raise error if sent is None else error.behind(sent + place) from None
        sent = None if sent is None else sent + len(some)


def send(
    conn: Connection, t: tables.Tables, row: dict[str, Any], *, on_duplicate: str, own: Any = None
) -> Any:
    """Insert a message that has a key, unless another one holds it; return the msg_id of the one
    that does. `row` as for `insert_one`. own: the message whose handler sends this; its key is
    free, unless it is kept.

    Raises DuplicateMessage as `on_duplicate` says, and where the holder cannot be seen, is of
    another topic or object ("replace"), or changes all the time.
    """
    key, look = row["b_unique_key"], True
    for _ in range(ROUNDS):
        inserted, found = _inserted(conn, t, row, look=look)
        if inserted is not None:
            return inserted
        if found is None:
            continue
        look = not t.database.latest_by_lock  # the snapshot shows what is seen to have changed
        if found.msg_id == own and not found.kept:
            give_up(conn, t, found, key)
        elif on_duplicate == "raise":
            raise DuplicateMessage(found.msg_id, key)
        elif on_duplicate == "skip":
            return found.msg_id
        else:
            if what := other_than(t, found, row):
                text = f"it is of {what}, so it is not replaced; give each its own key"
                raise DuplicateMessage(found.msg_id, key, text)
            if replace(conn, t, found, row) or found.kept:
                return found.msg_id
            give_up(conn, t, found, key)
    raise DuplicateMessage(
        None,
        key,
        "the message that holds it cannot be seen: it changes all the "
        "time, or was committed after the snapshot of this transaction; send again in a new one",
    )


def _inserted(
    conn: Connection, t: tables.Tables, row: dict[str, Any], *, look: bool
) -> tuple[Any, Holder | None]:
    """The new msg_id, or the holder; neither if it has ended meanwhile. look: at the holder before
    the INSERT, where that cannot step back."""
    key = row["b_unique_key"]
    if t.database.on_conflict:
        names = frozenset(row)

        def build() -> sa.Insert:
            c = t.cols()
            values, where = inserted_values(t, names), tables.key_counts(t, c)
            statement = t.database.insert_unless(t.message, values, c["unique_key"], where)
            return statement.returning(c.msg_id)

        made = conn.execute(t.built(("insert unless", names), build), row).first()
        return (None, holder(conn, t, key)) if made is None else (made[0], None)
    if look and (found := holder(conn, t, key)) is not None:
        return None, found
    try:
        return insert_one(conn, t, row), None
    except DBAPIError as error:
        if not violates(error, tables.unique_index_name(t)):
            raise
    return None, holder(conn, t, key, latest=t.database.latest_by_lock)


def holder(conn: Connection, t: tables.Tables, key: str, *, latest: bool = False) -> Holder | None:
    """The message that holds a key. latest: also if it was committed after the snapshot of the
    transaction; its row is locked, shared, until the end of that."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        topic = sa.null() if c.topic is None else c.topic
        columns: list[Any] = [c.msg_id, topic, c.object_id, c.unique_kept]
        query = sa.select(*columns).where(
            *tables.holds_key(t, c, bindparam("mw_key", type_=AnyText()))
        )
        return query.with_for_update(read=True) if latest else query

    with t.database.past_snapshot(conn) if latest else nullcontext():
        found = conn.execute(t.built(("key_holder", latest), build), {"mw_key": key}).first()
    return None if found is None else Holder(found[0], found[1], found[2], found[3] == 1)


def key_text(conn: Connection, t: tables.Tables, msg_id: int, key: str) -> tuple[int | None, str]:
    """The message that holds the key of this one, and the same as the end of a sentence, "" where
    keys do nothing."""
    if not tables.takes_keys(t):
        return None, ""
    found = holder(conn, t, key)
    if found is None:
        return None, f"; its unique key {key} is free"
    if found.msg_id != msg_id:
        return found.msg_id, f"; its unique key {key} is held by message {found.msg_id} now"
    until = "it is purged" if found.kept else "it ends"
    return found.msg_id, f"; it holds the unique key {key} until {until}"


def other_than(t: tables.Tables, found: Holder, row: dict[str, Any]) -> str:
    """In words, the topic or object of a holder, where a new message has another one; else ""."""
    if t.has("topic") and found.topic != row["b_topic"]:
        return f"topic {found.topic!r}"
    if str(found.object_id) != str(row["b_object_id"]):
        return f"object {found.object_id!r}"
    return ""


def replace(conn: Connection, t: tables.Tables, found: Holder, row: dict[str, Any]) -> bool:
    """Give a message that was never claimed what the new one says; whether that was done. Not to
    one of another job, which waits for it as it is.

    A run ends before a message with a key (claim.py), so its payload is read under its flag only.
    One that an edit has left at -1 (change.py) stays there."""
    new = {name: row[name] for name, param in PARAMS.items() if param.replaces and name in row}
    with t.database.past_snapshot(conn):
        for status in (Status.NEW, Status.FAILED):
            if status is Status.FAILED and t.has("available_at"):
                new = _waiting(new)
            change = _replacing(t, found, row["b_unique_key"], status, frozenset(new))
            if conn.execute(change, new).rowcount:
                return True
    return False


def _replacing(
    t: tables.Tables, found: Holder, key: str, status: Status, names: frozenset[str]
) -> sa.Update:
    c = t.cols()
    never = [t.stands_at(c, status), t.tries(c) == tables.ZERO]
    if c.claimed_at is not None:
        never.append(c.claimed_at.is_(None))
    if c.later_times is not None:
        never.append(sa.func.coalesce(c.later_times, tables.ZERO) == tables.ZERO)
    if c.job_id is not None:
        same_job = [c.job_id == bindparam("b_job_id")] if "b_job_id" in names else []
        never.append(sa.or_(c.job_id.is_(None), *same_job))
    unsaid = {"priority": tables.ZERO, "available_at": sa.null(), "headers": sa.null()}
    new = t.values(**unsaid | sent_values(t, names))
    return sa.update(t.message).where(*_holds(t, found, key), *never).values(new)


def _holds(t: tables.Tables, found: Holder, key: str) -> list[sa.ColumnElement[bool]]:
    """It is the message that holds the key."""
    c = t.cols()
    return [c.msg_id == found.msg_id, c["unique_key"] == sa.literal(key, AnyText())]


def _waiting(new: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a new message, for one that was edited: it waits at least as long as an
    edit may have let it wait for a claim under way."""
    at = new.get("b_at")
    if at is not None and (at - datetime.now(UTC)).total_seconds() >= LATER_SECONDS:
        return new
    delay = max(new.get("b_delay") or 0.0, LATER_SECONDS)
    return {name: value for name, value in new.items() if name != "b_at"} | {"b_delay": delay}


def give_up(conn: Connection, t: tables.Tables, found: Holder, key: str) -> None:
    """Free the key of a message that holds it while it is open."""
    kept = sa.func.coalesce(t.cols().unique_kept, tables.ZERO) == tables.ONE
    where = (*_holds(t, found, key), sa.not_(kept), tables.key_counts(t, t.cols()))
    change = sa.update(t.message).where(*where).values(t.values(unique_key=sa.null()))
    with t.database.past_snapshot(conn):
        conn.execute(change)


# --- Insert messages in the caller's transaction.

ARRAY_CHARACTERS = 4_000_000
"""Of the payloads of one statement, far below what a server takes as one value."""
TEXTS = (sa.String, sa.Text, sa.VARCHAR, sa.TEXT)
NUMBERS = (sa.Integer, sa.BigInteger, sa.SmallInteger, sa.INTEGER, sa.BIGINT, sa.SMALLINT)
LONGEST_CHANNEL = 63
"""In bytes; a longer name is an error."""


def insert_one(conn: Connection, t: tables.Tables, values: dict[str, Any]) -> Any:
    """Insert one message; return its msg_id as the database gave it, None where it gave none.
    `values` by role, from `row_values`."""
    keys = frozenset(values)
    if not t.counts_ids and t.database.tells_no_other_ids:
        if not t.database.returns_ids(conn.dialect.server_version_info or ()):
            conn.execute(_insert(t, keys).inline(), values)
            return None
        with_id = ("insert", keys, "id")
        insert = t.built(with_id, lambda: _insert(t, keys).returning(t.cols().msg_id))
        key: Any = conn.execute(insert, values).first()
    else:
        key = conn.execute(_insert(t, keys), values).inserted_primary_key
    # 0: a trigger has given another one than the counter would
    return None if key is None or key[0] == 0 else key[0]


def insert_many(conn: Connection, t: tables.Tables, rows: Sequence[dict[str, Any]]) -> None:
    """Insert messages that all have the same keys, in order."""
    if not rows:
        return
    keys = frozenset(rows[0])
    kinds = _array_kinds(t, rows) if t.database.arrays else None
    if kinds is None:
        conn.execute(_insert(t, keys).inline(), list(rows))
        return
    insert = t.built(("insert arrays", keys), lambda: _insert_arrays(t, kinds))
    for some in _of_limited_size(rows):
        conn.execute(insert, {key: array_of_texts(row[key] for row in some) for key in kinds})


def _of_limited_size(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    """Parts whose payloads have ARRAY_CHARACTERS together, or one that has more by itself."""
    start = size = 0
    for i, row in enumerate(rows):
        length = len(row.get("b_payload") or "")
        if size + length > ARRAY_CHARACTERS and i > start:
            yield rows[start:i]
            start, size = i, 0
        size += length
    yield rows[start:]


def _array_kinds(
    t: tables.Tables, rows: Sequence[dict[str, Any]]
) -> dict[str, sa.types.TypeEngine[Any]] | None:
    """The type of the elements of each array; None if a column has a type of its own. Texts without
    a length and the longest whole numbers: the INSERT converts them as it does single values, where
    a cast to the column's type would cut off what is too long."""
    kinds: dict[str, sa.types.TypeEngine[Any]] = {}
    for key in rows[0]:
        column = getattr(t.cols(), PARAMS[key].role) if PARAMS[key].array else None
        kind = None if column is None else column.type
        if (key == "b_payload" and isinstance(kind, sa.JSON)) or type(kind) in TEXTS:
            kinds[key] = sa.Text()
        elif type(kind) in NUMBERS and all(type(row[key]) in (int, NoneType) for row in rows):
            kinds[key] = sa.BigInteger()
        else:
            return None
    return kinds


def _insert_arrays(t: tables.Tables, kinds: dict[str, sa.types.TypeEngine[Any]]) -> sa.Insert:
    """One INSERT of rows that come as arrays, in half the time; ids are in their order."""
    arrays = {key: array_param(key, kind) for key, kind in kinds.items()}
    given = array_rows("given", arrays, place="place")
    roles: dict[str, Any] = {PARAMS[key].role: given.c[key] for key in kinds}
    payload = t.cols().payload
    if "payload" in roles and payload is not None and isinstance(payload.type, sa.JSON):
        roles["payload"] = sa.cast(roles["payload"], payload.type)
    values = t.values(**roles) | said_values(t)
    chosen = sa.select(*values.values()).order_by(given.c.place)
    return sa.insert(t.message).from_select(list(values), chosen)


def refuse_unfilled(t: tables.Tables) -> NoReturn:
    """Raise SchemaError: an INSERT of ours would leave a column empty that must not be."""
    raise SchemaError(
        f"table {t.spec.name} cannot be sent to: msgworker does not fill its column "
        f"{', '.join(t.unfilled)}, which is NOT NULL and has no default"
    )


def check_limits(t: tables.Tables, row: dict[str, Any]) -> None:
    """Raise ConfigError or PayloadError if a column does not take its value as it is, or the
    payload is longer than is read."""
    for role in t.no_null:
        if row.get(f"b_{role}", "") is None:
            kind = PayloadError if role == "payload" else ConfigError
            raise kind(
                f"a message without {role}: column {t.names[role]} of table {t.spec.name} takes no "
                "NULL; nothing was written. Give one, or let the column take NULL"
            )
    payload = row.get("b_payload")
    if payload is not None and len(payload) > t.spec.max_payload // 4:  # of four bytes at most
        _check_payload(t, payload)
    for limit in t.column_limits:
        value = row.get(f"b_{limit.role}")
        if value is None or (refusal := limit.refusal(value)) is None:
            continue
        column = f"column {t.names[limit.role]} of table {t.spec.name}"
        text = f"the {limit.role} {refusal[0]}, {column} takes {refusal[1]}"
        if limit.role == "payload":
            hint = "store it elsewhere and send a reference, or widen the column"
            raise PayloadError(f"{text}; {hint}")
        raise ConfigError(f"{text}; nothing was written. Widen the column, or give another one")


def _check_payload(t: tables.Tables, payload: str) -> None:
    in_bytes, most = t.database.text_in_bytes, t.spec.max_payload
    length = len(payload.encode()) if in_bytes else len(payload)
    if length > most:
        raise PayloadError(
            f"the payload has {length} {'bytes' if in_bytes else 'characters'} as JSON, at most "
            f"{most} are read (max_payload); store it elsewhere and send a reference"
        )


def as_object(t: tables.Tables, given: Any) -> Any:
    """An object_id of another type than `Tables.id_types`, as its column has it: some servers make
    0 of a text that is no number. Raises ConfigError."""
    from msgworker.store.bounded import object_of

    try:
        return object_of(t, given)
    except ValueError as error:
        text = f"{str(given)!r:.80} is no object_id of table {t.spec.name}: {error}"
        raise ConfigError(text) from None


def row_values(
    t: tables.Tables,
    *,
    topic: str,
    object_id: Any,
    payload: str | None,
    delay: float | None = None,
    at: datetime | None = None,
    priority: int | None = None,
    unique_key: str | None = None,
    kept: bool = False,
    scheduled_for: datetime | None = None,
    job_id: int | None = None,
) -> dict[str, Any]:
    """One row as parameters of `insert`; the columns that are not there are left out."""
    row: dict[str, Any] = {"b_object_id": object_id}
    if t.has("shard"):
        row["b_shard"] = shard_of(object_id, t.spec.shards)
    if t.has("topic"):
        row["b_topic"] = topic
    if t.has("payload"):
        row["b_payload"] = payload
    if priority is not None or t.says_priority:
        row["b_priority"] = priority or 0
    if scheduled_for is not None and t.has("scheduled_for"):
        row["b_scheduled_for"] = scheduled_for
    if delay is not None:
        row["b_delay"] = delay
    elif at is not None:
        row["b_at"] = at
    if unique_key is not None:
        row["b_unique_key"] = unique_key
        if kept:
            row["b_unique_kept"] = 1
    if job_id is not None:
        row["b_job_id"] = job_id
    return row


_next_shard = itertools.count(os.getpid())


def shard_of(object_id: Any, shards: int) -> int:
    """The shard of an object, from 0 on: CRC-32 of its text in UTF-8, modulo the number of shards.
    Messages without an object, among which there is no order, go to all of them in turn. A whole
    number has one shard, however it is written: 5, Decimal("5.0")."""
    if object_id is None:
        return next(_next_shard) % shards
    if isinstance(object_id, Decimal) and object_id.is_finite() and object_id == int(object_id):
        object_id = int(object_id)
    return zlib.crc32(str(object_id).encode()) % shards


def _insert(t: tables.Tables, keys: frozenset[str]) -> sa.Insert:
    """The INSERT of one message, of which `row_values` gave these keys."""
    return t.built(("insert", keys), lambda: sa.insert(t.message).values(inserted_values(t, keys)))


def inserted_values(t: tables.Tables, keys: frozenset[str]) -> dict[str, Any]:
    """The values of a new row, by column."""
    return t.values(**sent_values(t, keys)) | said_values(t)


def said_values(t: tables.Tables) -> dict[str, Any]:
    """What each INSERT says beside that, by column."""
    # Only where the column has no such default, so that a producer needs no right to write them: a
    # status of NULL is never claimed.
    state = {"status": tables.lit(Status.NEW), "error_try_times": tables.ZERO}
    said = t.values(**{role: value for role, value in state.items() if role in t.says})
    c = t.message.c
    return said | {name: literal(t.database, c[name], values[0]) for name, values in t.where}


def sent_values(t: tables.Tables, keys: frozenset[str]) -> dict[str, Any]:
    """What a producer says of a message, by role."""
    roles: dict[str, Any] = {PARAMS[key].role: bindparam(key) for key in keys}
    if "b_delay" in keys:
        roles["available_at"] = now_plus(bindparam("b_delay", type_=sa.Float()))
    if "b_at" in keys:
        roles["available_at"] = bindparam("b_at", type_=kind_of(t.cols().available_at))
    if "b_scheduled_for" in keys:
        roles["scheduled_for"] = bindparam("b_scheduled_for", type_=kind_of(t.cols().scheduled_for))
    for role in ("payload", "headers"):
        column = getattr(t.cols(), role)
        if f"b_{role}" in keys and column is not None:
            roles[role] = json_text(t.database, f"b_{role}", column)
    return roles


def channel(spec: MessageTable) -> str:
    """The channel for notifications of new messages: a name of at most 63 bytes."""
    name = f"msgworker_{spec.bare_name}".lower().encode()[:LONGEST_CHANNEL]
    return name.decode(errors="ignore")


def notify(conn: Connection, channel: str | None) -> None:
    """Wake up listeners at commit; the database sends one notification per transaction at most.
    channel: None = there are none."""
    if channel is not None:
        of(conn).wake(conn, channel)
