"""Send a message with a unique key, in the caller's transaction, which a taken key does not break.

The unique index decides (table/uniqueness.py); who comes second waits for the first one's COMMIT.
Where an INSERT can step back from a conflict, it does. Elsewhere the error of the index undoes its
statement alone; there the key is looked up first, because a refused INSERT keeps the entry of the
other message locked until the caller's COMMIT, and with it the settle of that message.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker import dialects
from msgworker.dialects import AnyText
from msgworker.errors import DuplicateMessage
from msgworker.message import Outgoing, Status
from msgworker.store.send import insert_many, insert_one, inserted_values, sent_values
from msgworker.table import Tables
from msgworker.table.uniqueness import ONE, able, counts, holds, index_name

ROUNDS = 20
"""How often it is sent again because the message that had the key has ended meanwhile."""
REPLACED = ("payload", "priority", "available_at", "headers")
"""What a replaced message gets from the new one."""
ZERO: sa.ColumnElement[int] = sa.literal_column("0")


class Holder(NamedTuple):
    """The message that holds a key."""

    msg_id: Any
    topic: Any
    object_id: Any
    kept: bool


def send_one(conn: Connection, t: Tables, message: Outgoing, *, own: Any = None) -> Any:
    """Send a checked message; returns its msg_id, or that of the one that holds its key."""
    if message.on_duplicate is None or "b_unique_key" not in message.row:
        return insert_one(conn, t, message.row)
    return send(conn, t, message.row, on_duplicate=message.on_duplicate, own=own)


def send_all(conn: Connection, t: Tables, messages: Iterable[Outgoing]) -> None:
    """Send checked messages in order; those without a key, between two that have one, together."""
    for keys, part in itertools.groupby(messages, lambda one: frozenset(one.row)):
        if "b_unique_key" in keys:
            for one in part:
                send_one(conn, t, one)
        else:
            insert_many(conn, t, [one.row for one in part])


def send(
    conn: Connection, t: Tables, row: dict[str, Any], *, on_duplicate: str, own: Any = None
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
        look = not t.dialect.latest_by_lock  # the snapshot shows what is seen to have changed
        if found.msg_id == own and not found.kept:
            give_up(conn, t, found, key)
        elif on_duplicate == "raise":
            raise DuplicateMessage(found.msg_id, key)
        elif on_duplicate == "skip":
            return found.msg_id
        else:
            _refuse_other(t, found, row)
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
    conn: Connection, t: Tables, row: dict[str, Any], *, look: bool
) -> tuple[Any, Holder | None]:
    """The new msg_id, or the holder; neither if it has ended meanwhile. look: at the holder before
    the INSERT, where that cannot step back."""
    key = row["b_unique_key"]
    if t.dialect.on_conflict:
        names = frozenset(row)

        def build() -> sa.Insert:
            c = t.cols()
            assert c.unique_key is not None
            values, where = inserted_values(t, names), counts(c)
            statement = dialects.insert_unless(
                t.dialect.name, t.message, values, c.unique_key, where
            )
            return statement.returning(c.msg_id)

        made = conn.execute(t.built(("insert unless", names), build), row).first()
        return (None, holder(conn, t, key)) if made is None else (made[0], None)
    if look and (found := holder(conn, t, key)) is not None:
        return None, found
    try:
        return insert_one(conn, t, row), None
    except DBAPIError as error:
        if not dialects.violates(error, index_name(t)):
            raise
    return None, holder(conn, t, key, latest=t.dialect.latest_by_lock)


def holder(conn: Connection, t: Tables, key: str, *, latest: bool = False) -> Holder | None:
    """The message that holds a key. latest: also if it was committed after the snapshot of the
    transaction; its row is locked, shared, until the end of that."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        topic = sa.null() if c.topic is None else c.topic
        columns: list[Any] = [c.msg_id, topic, c.object_id, c.unique_kept]
        query = sa.select(*columns).where(*holds(t, c, bindparam("mw_key", type_=AnyText())))
        return query.with_for_update(read=True) if latest else query

    found = conn.execute(t.built(("key_holder", latest), build), {"mw_key": key}).first()
    return None if found is None else Holder(found[0], found[1], found[2], found[3] == 1)


def told(conn: Connection, t: Tables, msg_id: int, key: str) -> str:
    """Whether a message holds its key, or which one does, as the end of a sentence; else empty."""
    found = holder(conn, t, key) if able(t) else None
    if found is None:
        return ""
    if found.msg_id != msg_id:
        return f"; its unique key {key} is held by message {found.msg_id} now"
    return f"; it holds the unique key {key} until {'it is purged' if found.kept else 'it ends'}"


def _refuse_other(t: Tables, found: Holder, row: dict[str, Any]) -> None:
    """Raise if a replacement were of another topic or object."""
    what = ""
    if t.has("topic") and found.topic != row["b_topic"]:
        what = f"topic {found.topic!r}"
    elif str(found.object_id) != str(row["b_object_id"]):
        what = f"object {found.object_id!r}"
    if what:
        text = f"it is of {what}, so it is not replaced; give each its own key"
        raise DuplicateMessage(found.msg_id, row["b_unique_key"], text)


def replace(conn: Connection, t: Tables, found: Holder, row: dict[str, Any]) -> bool:
    """Give a message that was never claimed what the new one says; whether that was done.

    A run ends before a message with a key (store/claiming/following.py), so its payload is read
    under its flag only.
    """
    names = frozenset(row)

    def build() -> sa.Update:
        c = t.cols()
        never = [t.stands_at(c, Status.NEW), t.tries(c) == ZERO]
        if c.claimed_at is not None:
            never.append(c.claimed_at.is_(None))
        if c.later_times is not None:
            never.append(sa.func.coalesce(c.later_times, ZERO) == ZERO)
        roles = sent_values(t, names)
        new = {"priority": ZERO, "available_at": sa.null()} | {
            role: roles[role] for role in REPLACED if role in roles
        }
        assert c.unique_key is not None
        same = (
            c.msg_id == bindparam("mw_id"),
            c.unique_key == bindparam("mw_key", type_=AnyText()),
        )
        return sa.update(t.message).where(*same, *never).values(t.values(**new))

    used = {"b_payload", "b_priority", "b_delay", "b_at", "b_headers"} & names
    params = {name: row[name] for name in used}
    params |= {"mw_id": found.msg_id, "mw_key": row["b_unique_key"]}
    return bool(conn.execute(t.built(("replace", frozenset(used)), build), params).rowcount)


def give_up(conn: Connection, t: Tables, found: Holder, key: str) -> None:
    """Free the key of a message that holds it while it is open."""

    def build() -> sa.Update:
        c = t.cols()
        assert c.unique_key is not None
        same = [
            c.msg_id == bindparam("mw_id"),
            c.unique_key == bindparam("mw_key", type_=AnyText()),
        ]
        same.append(sa.func.coalesce(c.unique_kept, ZERO) != ONE)
        without = {t.names["unique_key"]: sa.null()}
        return sa.update(t.message).where(*same, counts(c)).values(without)

    conn.execute(t.built("key_given_up", build), {"mw_id": found.msg_id, "mw_key": key})
