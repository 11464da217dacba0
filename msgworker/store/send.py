"""Insert messages in the caller's transaction."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from types import NoneType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam

from msgworker import dialects
from msgworker.dialects import kind_of, now_plus
from msgworker.message import Status
from msgworker.store.rows import array_of_texts, array_param
from msgworker.table import MessageTable, Tables, lit

ARRAYS = ("b_topic", "b_object_id", "b_payload", "b_shard", "b_priority", "b_headers")
ARRAY_CHARACTERS = 4_000_000
"""Of the payloads of one statement, far below what a server takes as one value."""
TEXTS = (sa.String, sa.Text, sa.VARCHAR, sa.TEXT)
NUMBERS = (sa.Integer, sa.BigInteger, sa.SmallInteger, sa.INTEGER, sa.BIGINT, sa.SMALLINT)
LONGEST_CHANNEL = 63
"""In bytes; a longer name is an error."""


def insert_one(conn: Connection, t: Tables, values: dict[str, Any]) -> Any:
    """Insert one message; return its msg_id as the database gave it, None where it does not tell.
    `values` by role, from `row_values`."""
    keys = frozenset(values)
    if not t.counts_ids and dialects.tells_no_other_ids(conn.dialect):
        if not dialects.returns_ids(conn.dialect):
            conn.execute(_insert(t, keys).inline(), values)
            return None
        found = conn.execute(t.built(("insert", keys, "id"), lambda: _returning(t, keys)), values)
        key = found.first()
    else:
        key = conn.execute(_insert(t, keys), values).inserted_primary_key
    # 0: a trigger has given another one than the counter would
    return None if key is None or key[0] == 0 else key[0]


def _returning(t: Tables, keys: frozenset[str]) -> Any:
    return sa.insert(t.message).values(inserted_values(t, keys)).returning(t.cols().msg_id)


def insert_many(conn: Connection, t: Tables, rows: Sequence[dict[str, Any]]) -> None:
    """Insert messages that all have the same keys, in order."""
    if not rows:
        return
    keys = frozenset(rows[0])
    kinds = _array_kinds(t, rows) if t.dialect.arrays else None
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
    t: Tables, rows: Sequence[dict[str, Any]]
) -> dict[str, sa.types.TypeEngine[Any]] | None:
    """The type of the elements of each array; None if a column has a type of its own.

    Texts without a length and the longest whole numbers: the INSERT converts them as it does single
    values, where a cast to the column's type would cut off what is too long.
    """
    kinds: dict[str, sa.types.TypeEngine[Any]] = {}
    for key in rows[0]:
        column = getattr(t.cols(), key[2:]) if key in ARRAYS else None
        kind = None if column is None else column.type
        if (key == "b_payload" and isinstance(kind, sa.JSON)) or type(kind) in TEXTS:
            kinds[key] = sa.Text()
        elif type(kind) in NUMBERS and all(type(row[key]) in (int, NoneType) for row in rows):
            kinds[key] = sa.BigInteger()
        else:
            return None
    return kinds


def _insert_arrays(t: Tables, kinds: dict[str, sa.types.TypeEngine[Any]]) -> sa.Insert:
    """One INSERT of rows that come as arrays, in the time of half of them one by one.

    Ordered: ids are given in the order of the messages.
    """
    arrays = [array_param(key, kind) for key, kind in kinds.items()]
    given = sa.func.unnest(*arrays).table_valued(*kinds, with_ordinality="place")
    given = given.render_derived(name="given")
    roles = inserted_values(t, frozenset(kinds)) | {key[2:]: given.c[key] for key in kinds}
    payload = t.cols().payload
    if "payload" in roles and payload is not None and isinstance(payload.type, sa.JSON):
        roles["payload"] = sa.cast(roles["payload"], payload.type)
    values = t.values(**roles)
    chosen = sa.select(*values.values()).order_by(given.c.place)
    return sa.insert(t.message).from_select(list(values), chosen)


def row_values(
    t: Tables,
    *,
    topic: str,
    object_id: Any,
    payload: str | None,
    delay: float | None,
    at: datetime | None,
    priority: int | None = None,
    unique_key: str | None = None,
    kept: bool = False,
    scheduled_for: datetime | None = None,
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


def _insert(t: Tables, keys: frozenset[str]) -> sa.Insert:
    """The INSERT of one message, of which `row_values` gave these keys."""
    return t.built(("insert", keys), lambda: sa.insert(t.message).values(inserted_values(t, keys)))


def inserted_values(t: Tables, keys: frozenset[str]) -> dict[str, Any]:
    """The values of a new row, by column."""
    roles = sent_values(t, keys)
    # Only where the column has no such default, so that a producer needs no right to write them: a
    # status of NULL is never claimed.
    state = {"status": lit(Status.NEW), "error_try_times": sa.literal_column("0")}
    roles |= {role: value for role, value in state.items() if role in t.says}
    return t.values(**roles)


def sent_values(t: Tables, keys: frozenset[str]) -> dict[str, Any]:
    """What a producer says of a message, by role."""
    roles: dict[str, Any] = {
        key[2:]: bindparam(key) for key in keys if key not in ("b_delay", "b_at")
    }
    if "b_delay" in keys:
        roles["available_at"] = now_plus(bindparam("b_delay", type_=sa.Float()))
    if "b_at" in keys:
        roles["available_at"] = bindparam("b_at", type_=kind_of(t.cols().available_at))
    if "b_scheduled_for" in keys:
        roles["scheduled_for"] = bindparam("b_scheduled_for", type_=kind_of(t.cols().scheduled_for))
    payload = t.cols().payload
    if "b_payload" in keys and payload is not None:
        roles["payload"] = dialects.json_text("b_payload", payload)
    headers = t.cols().headers
    if "b_headers" in keys and headers is not None:
        roles["headers"] = dialects.json_text("b_headers", headers)
    return roles


def channel(spec: MessageTable) -> str:
    """The channel for notifications of new messages: a name of at most 63 bytes."""
    name = f"msgworker_{spec.bare_name}".lower().encode()[:LONGEST_CHANNEL]
    return name.decode(errors="ignore")


def notify(conn: Connection, channel: str) -> None:
    """Wake up listeners at commit; the database sends one notification per transaction at most."""
    conn.execute(sa.select(sa.func.pg_notify(channel, "")))
