"""Locks with tokens, and the dealing of messages to instance types."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam

from msgworker.db import fetch, now_ms
from msgworker.table import LOCK, Tables
from msgworker.table.tables import ZERO

# --- Locks in the database: one row for each name, changed by conditional updates. Rows are kept,
# except those of names that only one owner uses, and never again: see `delete`.
#
# `token` rises with every change of owner and stays when the lock is free, so it fences former
# holders, also after a crash. `expires_ms` moves with every renewal, by the database's clock: two
# numbers, because one that moves with every heartbeat cannot fence. `claim_id` is another one for
# each acquire: after a lost reply the owner reads it there.


class HeldLock(NamedTuple):
    """A lock that is held, as read: for how long it is, and for how long it still will be, in
    milliseconds."""

    name: str
    owner: str
    token: int
    age_ms: int
    left_ms: int


def ensure(conn: Connection, t: Tables, *names: str) -> None:
    """Insert the rows of names. Raises IntegrityError if another process inserted one first."""
    insert = t.built("lock_row", lambda: sa.insert(LOCK.of(t)).values(name=bindparam("mw_name")))
    conn.execute(insert, [{"mw_name": name} for name in names])


def acquire(
    conn: Connection, t: Tables, name: str, *, owner: str, ttl_ms: int, claim_id: str
) -> int | None:
    """Take a lock that is free or expired; its new token, None if it is held.

    Each statement may commit by itself: the token is read by the claim's own id.
    """
    c = LOCK.of(t).c

    def build() -> sa.Update:
        free = sa.or_(c.owner.is_(None), _expired(c))
        return sa.update(LOCK.of(t)).where(c.name == bindparam("mw_name"), free).values(_taken(c))

    params = {"mw_name": name, "mw_owner": owner, "mw_claim": claim_id, "mw_ttl": ttl_ms}
    if not conn.execute(t.built("lock_acquire", build), params).rowcount:
        return None
    return acquired(conn, t, name, claim_id)


def acquired(conn: Connection, t: Tables, name: str, claim_id: str) -> int | None:
    """The token that an acquire has got, None if it has got none or has lost the lock since."""
    c = LOCK.of(t).c

    def build() -> sa.Select[Any]:
        mine = (c.name == bindparam("mw_name"), c.claim_id == bindparam("mw_claim"))
        return sa.select(c.token).where(*mine, c.owner.is_not(None), sa.not_(_expired(c)))

    found = conn.scalar(t.built("lock_acquired", build), {"mw_name": name, "mw_claim": claim_id})
    return None if found is None else int(found)


def acquire_all(
    conn: Connection, t: Tables, names: Sequence[str], *, owner: str, ttl_ms: int, claim_id: str
) -> dict[str, int]:
    """Take those of many locks that are free or expired, in one statement; name -> new token."""
    c = LOCK.of(t).c

    def build() -> sa.Update:
        free = sa.or_(c.owner.is_(None), _expired(c))
        return sa.update(LOCK.of(t)).where(_among(c), free).values(_taken(c))

    params = {"mw_names": list(names), "mw_owner": owner, "mw_claim": claim_id, "mw_ttl": ttl_ms}
    conn.execute(t.built("lock_acquire_all", build), params)
    return acquired_all(conn, t, owner, claim_id)


def acquired_all(conn: Connection, t: Tables, owner: str, claim_id: str) -> dict[str, int]:
    """What an acquire of many has got and still holds: name -> token."""
    c = LOCK.of(t).c

    def build() -> sa.Select[Any]:
        mine = (c.owner == bindparam("mw_owner"), c.claim_id == bindparam("mw_claim"))
        return sa.select(c.name, c.token).where(*mine, sa.not_(_expired(c)))

    params = {"mw_owner": owner, "mw_claim": claim_id}
    found = conn.execute(t.built("lock_acquired_all", build), params)
    return {str(name): int(token) for name, token in found}


def _taken(c: Any) -> dict[str, Any]:
    """What a lock gets with a new owner."""
    return {
        "owner": bindparam("mw_owner"),
        "token": c.token + 1,
        "claim_id": bindparam("mw_claim"),
        "since_ms": now_ms(),
        "expires_ms": now_ms() + bindparam("mw_ttl", type_=sa.BigInteger()),
    }


def there(conn: Connection, t: Tables, names: Sequence[str]) -> set[str]:
    """Those of the names that have their rows."""
    c = LOCK.of(t).c

    def build() -> sa.Select[Any]:
        return sa.select(c.name).where(_among(c))

    found = conn.execute(t.built("lock_there", build), {"mw_names": list(names)})
    return {str(row[0]) for row in found}


def renew(conn: Connection, t: Tables, name: str, *, owner: str, token: int, ttl_ms: int) -> bool:
    """Extend a lock from now on; False = it is no longer held under this owner and token, and never
    will be. Never an upsert: an expired lock is lost even if it is free."""
    c = LOCK.of(t).c

    def build() -> sa.Update:
        until = now_ms() + bindparam("mw_ttl", type_=sa.BigInteger())
        whose = (*_of(c), sa.not_(_expired(c)))
        return sa.update(LOCK.of(t)).where(*whose).values(expires_ms=until)

    params = {"mw_name": name, "mw_owner": owner, "mw_token": token, "mw_ttl": ttl_ms}
    return bool(conn.execute(t.built("lock_renew", build), params).rowcount)


def release(conn: Connection, t: Tables, name: str, *, owner: str, token: int) -> bool:
    """Free a lock at once; False if it is not held under this owner and token: nothing changes."""
    c = LOCK.of(t).c

    def build() -> sa.Update:
        free = {"owner": sa.null(), "claim_id": sa.null(), "expires_ms": ZERO}
        return sa.update(LOCK.of(t)).where(*_of(c)).values(**free)

    params = {"mw_name": name, "mw_owner": owner, "mw_token": token}
    return bool(conn.execute(t.built("lock_release", build), params).rowcount)


def delete(
    conn: Connection, t: Tables, name: str, *, owner: str, token: int, expired: bool = False
) -> bool:
    """Delete the row of a lock that has this owner and token; False if it has not: nothing changes.

    expired: only if its lease has expired. The tokens of a deleted name start at 1 again, so delete
    only a name that is never acquired again, such as that of a member.
    """
    c = LOCK.of(t).c

    def build() -> sa.Delete:
        return sa.delete(LOCK.of(t)).where(*_of(c), *([_expired(c)] if expired else []))

    params = {"mw_name": name, "mw_owner": owner, "mw_token": token}
    return bool(conn.execute(t.built(("lock_delete", expired), build), params).rowcount)


def long_expired(conn: Connection, t: Tables, prefix: str, *, for_ms: int) -> list[HeldLock]:
    """Locks named `prefix` + owner that were not released, and expired so long ago."""
    c = LOCK.of(t).c

    def build() -> sa.Select[Any]:
        begins = c.name.like(bindparam("mw_pattern"), escape="!")
        ago = bindparam("mw_ago", type_=sa.BigInteger())
        return _shown(c).where(begins, c.owner.is_not(None), c.expires_ms <= now_ms() - ago)

    params = {"mw_pattern": _pattern(prefix), "mw_ago": for_ms}
    found = [_as_held(row) for row in conn.execute(t.built("lock_long_expired", build), params)]
    return [one for one in found if one.name == prefix + one.owner]


def renew_all(conn: Connection, t: Tables, owner: str, *, ttl_ms: int) -> dict[str, int]:
    """Extend all that an owner holds, in one statement; name -> token of what it holds now."""
    c = LOCK.of(t).c

    def build() -> sa.Update:
        until = now_ms() + bindparam("mw_ttl", type_=sa.BigInteger())
        whose = (c.owner == bindparam("mw_owner"), sa.not_(_expired(c)))
        return sa.update(LOCK.of(t)).where(*whose).values(expires_ms=until)

    def look() -> sa.Select[Any]:
        whose = (c.owner == bindparam("mw_owner"), sa.not_(_expired(c)))
        return sa.select(c.name, c.token).where(*whose)

    conn.execute(t.built("lock_renew_all", build), {"mw_owner": owner, "mw_ttl": ttl_ms})
    found = conn.execute(t.built("lock_mine", look), {"mw_owner": owner})
    return {str(name): int(token) for name, token in found}


def held(conn: Connection, t: Tables, prefix: str = "") -> list[HeldLock]:
    """The locks that are held and not expired, of names that begin so, by name."""
    c = LOCK.of(t).c

    def build() -> sa.Select[Any]:
        begins = c.name.like(bindparam("mw_pattern"), escape="!")
        return _reading(c).where(begins).order_by(c.name)

    found = conn.execute(t.built("lock_held", build), {"mw_pattern": _pattern(prefix)})
    # LIKE takes upper for lower case somewhere.
    return [_as_held(row) for row in found if str(row[0]).startswith(prefix)]


def holder(conn: Connection, t: Tables, name: str) -> HeldLock | None:
    """Who holds a lock now, None if it is free or expired."""
    c = LOCK.of(t).c

    def build() -> sa.Select[Any]:
        return _reading(c).where(c.name == bindparam("mw_name"))

    row = conn.execute(t.built("lock_holder", build), {"mw_name": name}).one_or_none()
    return None if row is None else _as_held(row)


def _reading(c: Any) -> sa.Select[Any]:
    return _shown(c).where(c.owner.is_not(None), sa.not_(_expired(c)))


def _shown(c: Any) -> sa.Select[Any]:
    return sa.select(c.name, c.owner, c.token, now_ms() - c.since_ms, c.expires_ms - now_ms())


def _pattern(prefix: str) -> str:
    return prefix.replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%"


def _as_held(row: Any) -> HeldLock:
    name, owner, token, age_ms, left_ms = row
    return HeldLock(str(name), str(owner), int(token), max(0, int(age_ms)), int(left_ms))


def _among(c: Any) -> Any:
    return c.name.in_(bindparam("mw_names", expanding=True))


def _of(c: Any) -> tuple[Any, ...]:
    who = c.owner == bindparam("mw_owner")
    return (c.name == bindparam("mw_name"), who, c.token == bindparam("mw_token"))


def _expired(c: Any) -> Any:
    return c.expires_ms <= now_ms()


# --- Deal messages to instance types, for scopes of one instance.

BATCH = 1000


class Undealt(NamedTuple):
    """A message that has no instance type yet."""

    msg_id: int
    object_id: Any


def undealt(conn: Connection, t: Tables, *, limit: int = BATCH) -> list[Undealt]:
    """Messages without an instance type that may be claimed, oldest first."""

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
    for portion in t.portions(list(objects)):
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
            query.order_by(c.msg_id), {"objects": [t.key(one) for one in portion]}
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
    for portion in t.portions(ids):
        c = t.cols()
        now: Any = c.instance_type
        was = now.is_(None) if seen is None else now == seen
        change = sa.update(t.message).where(t.among(c.msg_id), t.claimable(c), was)
        change = change.values(t.values(instance_type=flag))
        count += int(conn.execute(change, {"mw_ids": portion}).rowcount)
    return count
