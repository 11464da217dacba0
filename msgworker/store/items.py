"""The item table: done items of a fan-out do not run again, and what they send is sent with their
records.

A record is written only while the message is flagged by us, and the message's row is locked from
that look until the commit: a recovery waits for the commit or makes the read fail, so an instance
that was declared dead records nothing. The lock is shared where the database has such locks, so
that the commits of several items do not wait for each other.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam
from sqlalchemy.exc import IntegrityError

from msgworker.db.clock import now
from msgworker.message import Outgoing, Status
from msgworker.payload import fitting_json
from msgworker.store import bounded
from msgworker.store.bounded import Found
from msgworker.store.rows import ME
from msgworker.store.send import send_all
from msgworker.table.columns import MAX_ERROR
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables, lit

LOOK = 500
"""How many keys are asked for at once, at most."""
MAX_LABEL = 60
MAX_RUNS = 32_767


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of one item. value: JSON text. tries: how often it was run to its end. sends:
    the messages that are inserted when it is written as done."""

    key: str
    done: bool
    tries: int
    value: str | None = None
    error: str | None = None
    sends: Sequence[Outgoing] = ()


class ItemState(enum.StrEnum):
    """What came of an item."""

    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ItemInfo:
    """An item as ops see it. key: with the name of its fan-out in brackets, if it has one. value:
    JSON text."""

    key: str
    state: ItemState
    tries: int
    value: str | None
    error: str | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Items:
    """The items of a message that have ended, by their records.

    total: how many its fan-outs have had in all; None where that is not known (a generator).
    complete: False if there are more than were counted. listed: the first ones, failed ones before
    done ones.
    """

    done: int
    failed: int
    total: int | None
    complete: bool = True
    listed: tuple[ItemInfo, ...] = ()

    @property
    def not_started(self) -> int | None:
        """How many have no record yet: not started, or running now; None = not known."""
        if self.total is None or not self.complete:
            return None
        return max(0, self.total - self.done - self.failed)


def label(spec: MessageTable) -> str:
    """How records name the message table; the item table is in the same schema."""
    name = spec.bare_name
    if len(name) <= MAX_LABEL:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name[: MAX_LABEL - 13]}_{digest}"


def count(conn: Connection, t: Tables, msg_id: int) -> int:
    """How many records the message has, bounded.SCAN at most; at a first try it has none."""

    def build() -> sa.Select[Any]:
        some = sa.select(t.item.c.tries).where(*_of(t)).limit(bounded.SCAN).subquery("w")
        return sa.select(sa.func.count()).select_from(some)

    found: int = conn.execute(t.built("items_count", build), _params(t, msg_id)).scalar_one()
    return found


def known(conn: Connection, t: Tables, msg_id: int, keys: Sequence[str]) -> dict[str, Record]:
    """The records of these keys, those that are there."""

    def build() -> sa.Select[Any]:
        c = t.item.c
        columns = (c.item_key, c.status, c.tries, c.item_value)
        among = c.item_key.in_(bindparam("b_keys", expanding=True))
        return sa.select(*columns).where(*_of(t), among)

    found: dict[str, Record] = {}
    size = min(LOOK, t.database.max_ids)
    for start in range(0, len(keys), size):
        params = _params(t, msg_id) | {"b_keys": list(keys[start : start + size])}
        for key, status, tries, value in conn.execute(t.built("items_known", build), params):
            found[key] = Record(key, status == Status.DONE, tries, value)
    return found


def record(
    conn: Connection,
    t: Tables,
    msg_id: int,
    batch: Sequence[Record],
    *,
    me: str,
    tries: int,
    there: Iterable[str],
    total: int | None = None,
) -> bool:
    """Write records, and insert what they send, in the caller's transaction; False, and nothing is
    written, if the claim is lost.

    tries: as the message was claimed. there: keys that have a record already. What is done stays
    done, whatever comes late, and sends nothing again. total: how many items the message has, None
    = not known. Raises IntegrityError if a key has a record that `there` does not name: roll back,
    look, write again.
    """
    at = fence(conn, t, msg_id, me=me, tries=tries)
    if at is None:
        return False
    old = set(there)
    new = [_row(t, msg_id, one, at, total) for one in batch if one.key not in old]
    if new:
        conn.execute(t.built("items_insert", lambda: sa.insert(t.item).inline()), new)
    changed = [(one, _change(t, msg_id, one, at, total)) for one in batch if one.key in old]
    if plain := [change for one, change in changed if not one.sends]:
        conn.execute(_update(t), plain)
    # The others each by itself: 0 rows = it is done, an answer was lost but not the commit.
    late = {
        one.key
        for one, change in changed
        if one.sends and conn.execute(_update(t), change).rowcount == 0
    }
    send_all(conn, t, (each for one in batch if one.key not in late for each in one.sends))
    return True


def record_one(
    conn: Connection,
    t: Tables,
    msg_id: int,
    one: Record,
    *,
    me: str,
    tries: int,
    there: bool,
    total: int | None = None,
) -> bool | None:
    """Write one record beside the item's own writes, in their transaction. None if the message is
    no longer ours, False if the item is done already: then the caller must roll back."""
    at = fence(conn, t, msg_id, me=me, tries=tries)
    if at is None:
        return None
    if there:
        return conn.execute(_update(t), _change(t, msg_id, one, at, total)).rowcount == 1
    try:
        insert = t.built("items_insert", lambda: sa.insert(t.item).inline())
        conn.execute(insert, _row(t, msg_id, one, at, total))
    except IntegrityError:  # an answer was lost, but not the commit
        return False
    return True


def fence(conn: Connection, t: Tables, msg_id: int, *, me: str, tries: int) -> datetime | None:
    """The database's time if the message is flagged by us, None if not; it stays so until the end
    of the transaction. tries: as it was claimed; asked for where the table has no owners."""
    counted = not t.has("claimed_by")
    params = {"b_msg": msg_id, "mw_me": me, "mw_tries": tries}

    def mine() -> list[ColumnElement[bool]]:
        c = t.cols()
        return [c.msg_id == bindparam("b_msg"), t.mine(c, ME), *t.same_tries(c, counted)]

    def touch() -> sa.Update:
        return sa.update(t.message).where(*mine()).values(t.values(available_at=now()))

    def build() -> sa.Select[Any]:
        query = sa.select(now().label("at")).select_from(t.message).where(*mine())
        return query.with_for_update(read=True) if t.database.row_locks else query

    if t.database.certifies and t.has("available_at"):
        # It means nothing while the message runs. A recovery on another server is then in conflict.
        conn.execute(t.built("items_touch", touch), params)
    found: datetime | None = conn.scalar(t.built("items_fence", build), params)
    return found


def _of(t: Tables) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    c = t.item.c
    return c.table_name == bindparam("b_table_name"), c.msg_id == bindparam("b_msg_id")


def _params(t: Tables, msg_id: int) -> dict[str, Any]:
    return {"b_table_name": label(t.spec), "b_msg_id": msg_id}


def _update(t: Tables) -> sa.Update:
    def build() -> sa.Update:
        c = t.item.c
        mine = (*_of(t), c.item_key == bindparam("b_item_key"), c.status != lit(Status.DONE))
        names = ["status", "tries", "item_value", "last_error", "finished_at"]
        names += ["total"] if t.keeps(c.total) else []
        values: dict[str, Any] = {name: bindparam(f"b_{name}") for name in names}
        return sa.update(t.item).where(*mine).values(values)

    return t.built("items_update", build)


def _row(t: Tables, msg_id: int, one: Record, at: datetime, total: int | None) -> dict[str, Any]:
    """Plain values only: drivers send many such rows as one statement."""
    row = {
        "table_name": label(t.spec),
        "msg_id": msg_id,
        "item_key": one.key,
        "status": int(Status.DONE if one.done else Status.FAILED),
        "tries": min(one.tries, MAX_RUNS),
        "item_value": one.value and fitting_json(one.value, t.own_codec),
        "last_error": t.own_text(one.error, MAX_ERROR),
        "finished_at": at,
    }
    return row | {"total": total} if t.keeps(t.item.c.total) else row


def _change(t: Tables, msg_id: int, one: Record, at: datetime, total: int | None) -> dict[str, Any]:
    """The same for `_update`."""
    return {f"b_{name}": value for name, value in _row(t, msg_id, one, at, total).items()}


# ---------------------------------------------------------------- for operators


def shown(conn: Connection, t: Tables, msg_id: int, *, limit: int) -> Items | None:
    """What is recorded of a message, with the first `limit` items; None if nothing is. At most
    bounded.SCAN records are counted."""
    c = t.item.c
    total = c.total if t.keeps(c.total) else sa.null()
    columns = (c.status.label("s"), c.finished_at.label("at"), total.label("n"))
    w = sa.select(*columns).where(*_of(t)).limit(bounded.SCAN).subquery("w").c
    by_status = sa.select(w.s, sa.func.count()).group_by(w.s)
    # As the newest record has it: a retry may have other items than the try before.
    newest = sa.select(w.n).order_by(w.at.desc(), w.n.desc()).limit(1)
    params = _params(t, msg_id)
    counts: dict[int, int] = {status: count for status, count in conn.execute(by_status, params)}
    if not counts:
        return None
    done = counts.get(Status.DONE, 0)
    failed = sum(counts.values()) - done
    known = conn.scalar(newest, params) if t.keeps(c.total) else None
    listed: list[ItemInfo] = []
    for state in (ItemState.FAILED, ItemState.DONE):
        if len(listed) < limit:
            listed += find(conn, t, msg_id, state=state, limit=limit - len(listed))
    return Items(done, failed, known, sum(counts.values()) < bounded.SCAN, tuple(listed))


def find(
    conn: Connection,
    t: Tables,
    msg_id: int,
    *,
    state: ItemState | None = None,
    limit: int = 100,
    after: str | None = None,
) -> Found[ItemInfo]:
    """Recorded items by key, behind the key `after`; at most bounded.SCAN are read at once."""
    c = t.item.c
    params = _params(t, msg_id)
    behind = list(_of(t))
    if after is not None:
        behind.append(c.item_key > bindparam("b_after", type_=c.item_key.type))
        params["b_after"] = after
    last = None
    if state is not None:
        bound = sa.select(c.item_key).where(*behind).order_by(c.item_key)
        last = conn.scalar(bound.limit(1).offset(bounded.SCAN - 1), params)
        done = lit(Status.DONE)
        behind.append(c.status == done if state is ItemState.DONE else c.status != done)
    if last is not None:
        behind.append(c.item_key <= bindparam("b_last", type_=c.item_key.type))
        params["b_last"] = last
    columns = (c.item_key, c.status, c.tries, c.item_value, c.last_error, c.finished_at)
    query = sa.select(*columns).where(*behind).order_by(c.item_key).limit(limit)
    names = {Status.DONE: ItemState.DONE}
    rows = [
        ItemInfo(key, names.get(status, ItemState.FAILED), *rest)
        for key, status, *rest in conn.execute(query, params)
    ]
    if len(rows) == limit:
        return Found(rows, next_after=rows[-1].key)
    return Found(rows, complete=last is None, next_after=last)
