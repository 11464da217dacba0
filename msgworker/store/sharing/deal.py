"""Deal messages to flags, for scopes of one instance."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam

from msgworker.dialects import fetch
from msgworker.store.looking.instances import Life, instances
from msgworker.table import Tables

BATCH = 1000


class Undealt(NamedTuple):
    """A message that has no flag yet."""

    msg_id: int
    object_id: Any


def undealt(conn: Connection, t: Tables, *, limit: int = BATCH) -> list[Undealt]:
    """Messages without a flag that may be claimed, oldest first."""

    def build() -> Any:
        c = t.cols()
        columns: tuple[Any, ...] = (c.msg_id, c.object_id)
        query = t.hinted(sa.select(*columns), t.message, "flag")
        query = query.where(t.slice_key(c, "instance_type").is_(None), *_claimable(t, c))
        return query.order_by(c.msg_id).limit(bindparam("rows", type_=sa.Integer()))

    return [Undealt(*row) for row in fetch(conn, t.built("undealt", build), {"rows": limit})]


def _claimable(t: Tables, c: Any) -> list[Any]:
    return [t.slice_rows(c, "instance_type"), t.claimable(c)]


def flags(conn: Connection, t: Tables) -> dict[str, int]:
    """The flags of unfinished messages, and of how many each."""

    def build() -> Any:
        c = t.cols()
        flag = t.slice_key(c, "instance_type")
        query = t.hinted(sa.select(flag, sa.func.count()), t.message, "flag")
        return query.where(flag.is_not(None), t.slice_rows(c, "instance_type")).group_by(flag)

    return {str(flag): int(count) for flag, count in conn.execute(t.built("flags", build))}


def flags_of(conn: Connection, t: Tables, objects: Collection[Any]) -> dict[Any, str]:
    """The flag of the first unfinished message of each object that has one."""
    found: dict[Any, str] = {}
    wanted = list(objects)
    for start in range(0, len(wanted), t.dialect.max_ids):
        part = wanted[start : start + t.dialect.max_ids]
        c = t.cols()
        flag: Any = c.instance_type
        columns: tuple[Any, ...] = (c.object_id, flag)
        query = t.hinted(sa.select(*columns), t.message, "object")
        key = t.open_object(c)
        query = query.where(
            key.in_(bindparam("objects", expanding=True, type_=t.key_type)),
            t.open_rows(c),
            flag.is_not(None),
        )
        for object_id, whose in conn.execute(
            query.order_by(c.msg_id), {"objects": [t.key(one) for one in part]}
        ):
            found.setdefault(object_id, whose)
    return found


def deal(conn: Connection, t: Tables, msg_ids: Sequence[int], flag: str) -> int:
    """Give messages that still have no flag this one; how many that were."""
    return _write(conn, t, msg_ids, None, flag)


def take_back(conn: Connection, t: Tables, flag: str, *, limit: int = BATCH) -> int:
    """Remove a flag from claimable messages; how many, up to `limit`."""
    c = t.cols()
    query = t.hinted(sa.select(c.msg_id), t.message, "flag")
    query = query.where(t.slice_key(c, "instance_type") == flag, *_claimable(t, c)).limit(limit)
    return _write(conn, t, list(conn.scalars(query)), flag, None)


def _write(conn: Connection, t: Tables, ids: Sequence[int], seen: Any, flag: Any) -> int:
    count = 0
    for start in range(0, len(ids), t.dialect.max_ids):
        c = t.cols()
        part = list(ids[start : start + t.dialect.max_ids])
        now: Any = c.instance_type
        was = now.is_(None) if seen is None else now == seen
        change = sa.update(t.message).where(t.among(c.msg_id), t.claimable(c), was)
        change = change.values(t.values(instance_type=flag))
        count += int(conn.execute(change, {"mw_ids": part}).rowcount)
    return count


def served(conn: Connection, t: Tables) -> set[str]:
    """The flags that a live instance of this table looks at."""
    return {
        str(one.scope["flag"])
        for one in instances(conn, t)
        if one.life is Life.LIVE and one.other_table is None and "flag" in one.scope
    }
