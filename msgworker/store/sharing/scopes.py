"""The slices of live instances, from their leases, for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.dialects import whole_number
from msgworker.store.looking.instances import InstanceInfo, Life
from msgworker.store.recovering.recover import running_rows
from msgworker.table import Tables


def live(who: Sequence[InstanceInfo]) -> list[InstanceInfo]:
    """Those that work on this table."""
    return [one for one in who if one.life is Life.LIVE and one.other_table is None]


def part_of(conn: Connection, t: Tables, msg_id: int) -> tuple[int | None, str | None]:
    """The shard and the flag of a message; None where the column is not there."""
    c = t.cols()
    nothing: Any = sa.null()
    columns: list[Any] = [nothing if c.shard is None else t.slice_value(c, "shard")]
    columns.append(nothing if c.instance_type is None else c.instance_type)
    row = conn.execute(sa.select(*columns).where(c.msg_id == msg_id)).first()
    if row is None:
        return None, None
    return whole_number(row[0]), None if row[1] is None else str(row[1])


def looks_at(scope: Mapping[str, Any], shard: int | None, flag: str | None) -> bool:
    """Whether an instance with this scope looks at a message, as of its last heartbeat."""
    kind = scope.get("kind")
    if kind == "instance":
        return scope.get("flag") == flag
    if kind == "partitions" and shard is not None:
        return shard % _count(scope) in scope.get("owned", ())
    return True


def why_not(who: Sequence[InstanceInfo], shard: int | None, flag: str | None) -> str:
    """Why none of these, which live, looks at a message; "" if one does."""
    if any(looks_at(one.scope, shard, flag) for one in who):
        return ""
    kinds = {str(one.scope.get("kind")) for one in who}
    told = []
    if "partitions" in kinds:
        told.append(f"no live member owns shard {shard}, as of the last heartbeats")
    if "instance" in kinds and flag is None:
        told.append("it has no flag yet: a Dealer (`msgworker deal`) gives it one")
    elif "instance" in kinds:
        told.append(f"no live instance has its flag {flag}; a Dealer deals it again")
    return "; ".join(told)


def unowned(who: Sequence[InstanceInfo]) -> list[int]:
    """The shards that none of the members among them owns; [] where others look everywhere."""
    scopes = [one.scope for one in who]
    members = [scope for scope in scopes if scope.get("kind") == "partitions"]
    if not members or len(members) < len(scopes):
        return []
    owned = {n for scope in members for n in scope.get("owned", ())}
    return [n for n in range(max(map(_count, members))) if n not in owned]


def _count(scope: Mapping[str, Any]) -> int:
    found = scope.get("shards")
    return found if isinstance(found, int) and found > 0 else 1


def running_slices(conn: Connection, t: Tables, role: str) -> set[Any]:
    """The slices of running messages that have an object, which no index of slices holds."""

    def build() -> Any:
        parts = []
        for source, c, index, where in running_rows(t):
            values = t.hinted(sa.select(t.slice_value(c, role).label("value")), source, index)
            parts.append(values.where(where, c.object_id.is_not(None)))
        return sa.union(*parts) if len(parts) > 1 else parts[0].distinct()

    return set(conn.scalars(t.built(("running_slices", role), build)))
