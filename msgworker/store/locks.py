"""Locks with tokens, and the dealing of messages to instance types."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam

from msgworker.db.clock import now_ms
from msgworker.db.connections import fetch
from msgworker.table.build import LOCK
from msgworker.table.tables import ZERO, Tables

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
    conn.execute(sa.insert(LOCK.of(t)), [{"name": name} for name in names])


def acquire(
    conn: Connection, t: Tables, names: Sequence[str], *, owner: str, ttl_ms: int, claim_id: str
) -> dict[str, int]:
    """Take those of some locks that are free or expired, in one statement; name -> new token. Each
    statement may commit by itself: the tokens are read by the claim's own id."""
    c = LOCK.of(t).c
    free = (_among(c), sa.or_(c.owner.is_(None), _expired(c)))
    taken = {
        "owner": owner,
        "token": c.token + 1,
        "claim_id": claim_id,
        "since_ms": now_ms(),
        "expires_ms": _from_now(ttl_ms),
    }
    change = sa.update(LOCK.of(t)).where(*free).values(taken)
    if not conn.execute(change, {"mw_names": list(names)}).rowcount:
        return {}
    return acquired(conn, t, owner, claim_id)


def acquired(conn: Connection, t: Tables, owner: str, claim_id: str) -> dict[str, int]:
    """What an acquire has got and still holds: name -> token."""
    return _held_by(conn, t, owner, LOCK.of(t).c.claim_id == claim_id)


def _held_by(conn: Connection, t: Tables, owner: str, *which: Any) -> dict[str, int]:
    c = LOCK.of(t).c
    found = sa.select(c.name, c.token).where(c.owner == owner, sa.not_(_expired(c)), *which)
    return {str(name): int(token) for name, token in conn.execute(found)}


def there(conn: Connection, t: Tables, names: Sequence[str]) -> set[str]:
    """Those of the names that have their rows."""
    c = LOCK.of(t).c
    found = conn.execute(sa.select(c.name).where(_among(c)), {"mw_names": list(names)})
    return {str(row[0]) for row in found}


def renew(conn: Connection, t: Tables, name: str, *, owner: str, token: int, ttl_ms: int) -> bool:
    """Extend a lock from now on; False = it is no longer held under this owner and token, and never
    will be. Never an upsert: an expired lock is lost even if it is free."""
    c = LOCK.of(t).c
    mine = (*_is(c, name, owner, token), sa.not_(_expired(c)))
    change = sa.update(LOCK.of(t)).where(*mine).values(expires_ms=_from_now(ttl_ms))
    return bool(conn.execute(change).rowcount)


def renew_all(conn: Connection, t: Tables, owner: str, *, ttl_ms: int) -> dict[str, int]:
    """Extend all that an owner holds, in one statement; name -> token of what it holds now."""
    c = LOCK.of(t).c
    change = sa.update(LOCK.of(t)).where(c.owner == owner, sa.not_(_expired(c)))
    conn.execute(change.values(expires_ms=_from_now(ttl_ms)))
    return _held_by(conn, t, owner)


def release(conn: Connection, t: Tables, name: str, *, owner: str, token: int) -> bool:
    """Free a lock at once; False if it is not held under this owner and token: nothing changes."""
    free = {"owner": sa.null(), "claim_id": sa.null(), "expires_ms": ZERO}
    mine = _is(LOCK.of(t).c, name, owner, token)
    return bool(conn.execute(sa.update(LOCK.of(t)).where(*mine).values(**free)).rowcount)


def delete(
    conn: Connection, t: Tables, name: str, *, owner: str, token: int, expired: bool = False
) -> bool:
    """Delete the row of a lock that has this owner and token; False if it has not: nothing changes.
    expired: only if its lease has expired. The tokens of a deleted name start at 1 again, so delete
    only a name that is never acquired again, such as that of a member."""
    c = LOCK.of(t).c
    gone = (*_is(c, name, owner, token), *([_expired(c)] if expired else []))
    return bool(conn.execute(sa.delete(LOCK.of(t)).where(*gone)).rowcount)


def long_expired(conn: Connection, t: Tables, prefix: str, *, for_ms: int) -> list[HeldLock]:
    """Locks named `prefix` + owner that were not released, and expired so long ago."""
    c = LOCK.of(t).c
    found = _read(conn, t, _begins(c, prefix), c.expires_ms <= _from_now(-for_ms))
    return [one for one in found if one.name == prefix + one.owner]


def held(conn: Connection, t: Tables, prefix: str = "") -> list[HeldLock]:
    """The locks that are held and not expired, of names that begin so, by name."""
    c = LOCK.of(t).c
    found = _read(conn, t, _begins(c, prefix), sa.not_(_expired(c)))
    # LIKE takes upper for lower case somewhere.
    return [one for one in found if one.name.startswith(prefix)]


def holder(conn: Connection, t: Tables, name: str) -> HeldLock | None:
    """Who holds a lock now, None if it is free or expired."""
    c = LOCK.of(t).c
    return next(iter(_read(conn, t, c.name == name, sa.not_(_expired(c)))), None)


def _read(conn: Connection, t: Tables, *which: Any) -> list[HeldLock]:
    """Those of the locks that have an owner, by name."""
    c = LOCK.of(t).c
    columns = (c.name, c.owner, c.token, now_ms() - c.since_ms, c.expires_ms - now_ms())
    query = sa.select(*columns).where(c.owner.is_not(None), *which).order_by(c.name)
    return [
        HeldLock(str(name), str(owner), int(token), max(0, int(age_ms)), int(left_ms))
        for name, owner, token, age_ms, left_ms in conn.execute(query)
    ]


def _begins(c: Any, prefix: str) -> Any:
    return c.name.startswith(prefix, autoescape=True)


def _among(c: Any) -> Any:
    return c.name.in_(bindparam("mw_names", expanding=True))


def _is(c: Any, name: str, owner: str, token: int) -> tuple[Any, ...]:
    return c.name == name, c.owner == owner, c.token == token


def _expired(c: Any) -> Any:
    return c.expires_ms <= now_ms()


def _from_now(ms: int) -> Any:
    return now_ms() + sa.literal(ms, sa.BigInteger())


# --- Deal messages to instance types, for scopes of one instance.

BATCH = 1000


class Undealt(NamedTuple):
    """A message that has no instance type yet."""

    msg_id: int
    object_id: Any


def undealt(
    conn: Connection,
    t: Tables,
    *,
    flag: str | None = None,
    after: int | None = None,
    limit: int = BATCH,
) -> list[Undealt]:
    """Messages without an instance type, or with this one, that may be claimed, oldest first;
    behind `after`."""
    c = t.cols()
    which = t.slice_key(c, "instance_type") == flag  # None: IS NULL
    waits = (t.slice_rows(c, "instance_type"), t.claimable(c))
    query: Any = sa.select(c.msg_id, c.object_id).order_by(c.msg_id)
    query = t.hinted(query, t.message, "flag").where(which, *waits)
    query = query if after is None else query.where(c.msg_id > after)
    return [Undealt(*row) for row in fetch(conn, query.limit(limit), {})]


def flags(conn: Connection, t: Tables) -> dict[str, int]:
    """The flags of unfinished messages, and of how many each."""
    c = t.cols()
    flag = t.slice_key(c, "instance_type")
    query = t.hinted(sa.select(flag, sa.func.count()), t.message, "flag")
    query = query.where(flag.is_not(None), t.slice_rows(c, "instance_type")).group_by(flag)
    return {str(flag): int(count) for flag, count in conn.execute(query)}


def flags_there(conn: Connection, t: Tables) -> set[str]:
    """The flags of unfinished messages, each found by one step in their index."""

    def build(first: bool) -> Any:
        c = t.cols()
        flag = t.slice_key(c, "instance_type")
        after = flag.is_not(None) if first else flag > bindparam("mw_last", type_=flag.type)
        query = t.hinted(sa.select(flag), t.message, "flag").order_by(flag).limit(1)
        return query.where(after, t.slice_rows(c, "instance_type"))

    def step(last: Any) -> Any:
        first = last is None
        names = {} if first else {"mw_last": last}
        return conn.scalar(t.built(("flags_there", first), lambda: build(first)), names)

    found, last = set[str](), None
    while (last := step(last)) is not None:
        found.add(str(last))
    return found


def flags_of(conn: Connection, t: Tables, objects: Collection[Any]) -> dict[Any, str]:
    """The flag of the first unfinished message of each object that has one."""
    c = t.cols()
    flag: Any = c.instance_type
    among = t.open_object(c).in_(bindparam("objects", expanding=True, type_=t.key_type))
    query = t.hinted(sa.select(c.object_id, flag), t.message, "object")
    query = query.where(among, t.open_rows(c), flag.is_not(None)).order_by(c.msg_id)
    found: dict[Any, str] = {}
    for portion in t.portions(list(objects)):
        for object_id, whose in conn.execute(query, {"objects": [t.key(one) for one in portion]}):
            found.setdefault(object_id, whose)
    return found


def deal(conn: Connection, t: Tables, msg_ids: Sequence[int], flag: str) -> int:
    """Give messages that still have no flag this one; how many that were."""
    return _write(conn, t, msg_ids, None, flag)


def take_back(conn: Connection, t: Tables, msg_ids: Sequence[int], flag: str) -> int:
    """Remove this flag from messages that still have it; how many that were."""
    return _write(conn, t, msg_ids, flag, None)


def _write(
    conn: Connection, t: Tables, ids: Sequence[int], seen: str | None, flag: str | None
) -> int:
    c = t.cols()
    whose: Any = c.instance_type
    which = (t.among(c.msg_id), t.claimable(c), whose == seen)
    change = sa.update(t.message).where(*which).values(t.values(instance_type=flag))
    count = 0
    for some in t.portions(ids):
        if t.database.skip_locked:  # what another program has locked is left for later
            free = sa.select(c.msg_id).where(*which).with_for_update(skip_locked=True)
            some = list(conn.scalars(free, {"mw_ids": some}))
        count += conn.execute(change, {"mw_ids": some}).rowcount
    return count
