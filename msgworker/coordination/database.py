"""Locks in a relational database: any that msgworker runs on, also the one with the messages.

Decided by the database's clock and the row counts of conditional updates (store/locks.py),
so the clocks of the machines need not agree.

One file, because each act says beside it what to do when its answer is lost.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from msgworker.clock import clock
from msgworker.coordination.lease import (
    Lease,
    LockCentre,
    check_name,
    check_prefix,
    ended,
    extended,
)
from msgworker.db.connections import reaching, refusal, unavailable
from msgworker.db.database import Trouble, database_of
from msgworker.db.engine import beside, open_engine
from msgworker.db.errors import masked, reason_of, trouble
from msgworker.errors import LocksUnavailable, MsgworkerError, SchemaError
from msgworker.instance.connections import Connections
from msgworker.schema import apply
from msgworker.store import locks
from msgworker.table.build import LOCK, tables_for
from msgworker.table.columns import DEFAULT_NAME
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables

R = TypeVar("R")
Work = Callable[[Connection], R]
TRIES = 3
LEAST_ANSWER_SECONDS, MOST_ANSWER_SECONDS = 1.0, 30.0
KNOWN_NAMES = 10_000
KNOWN_SECONDS = 30.0
"""How long a name counts as one that has its row, which a restore or a DELETE may take away."""
KEPT_SECONDS = 3600
"""Between the end of a lease and the deletion of its row, where that can be deleted."""
BATCH = 100
"""How many locks one statement releases."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """The connections of one process: renewals have their own, so that they never queue."""

    engines: tuple[sa.Engine, ...]
    calls: Connections
    renewals: Connections


class DatabaseLocks(LockCentre):
    """Locks in the table msgworker_lock.

    url_or_engine: a SQLAlchemy URL or an Engine, such as `app.engine`. Two connections are kept
    from the first use until `close`, each in a pool separate from that of an Engine, so that
    renewals do not wait for a busy pool. schema: of the table, if not the login's own.

    It connects at its first use. SchemaError if the table is missing: see
    `create_schema`, which `msgworker init-db` and `App.create_schema` call too.
    """

    listed = "`msgworker locks`"

    def __init__(
        self, url_or_engine: str | sa.URL | sa.Engine, *, schema: str | None = None
    ) -> None:
        super().__init__()
        self.engine = open_engine(url_or_engine)
        self._spec = MessageTable(f"{schema}.{DEFAULT_NAME}" if schema else DEFAULT_NAME)
        self._found: Tables | None = None
        self._known: dict[str, float] = {}  # name -> until when it has its row
        self._lines: dict[
            int, _Lines
        ] = {}  # by process: a child must not close those of its parent
        self._asking: set[tuple[str, str]] = set()
        self._given: dict[tuple[str, str], int] = {}  # (name, owner) -> token

    def __repr__(self) -> str:
        return f"DatabaseLocks({masked(self.engine.url)!r})"

    @property
    def _tables(self) -> Tables:
        if self._found is None:  # without the lock of a cached_property, for a child of a fork
            self._found = tables_for(self._spec, database_of(self.engine))
        return self._found

    def create_schema(self) -> list[str]:
        """Create the table of locks and its index if they are missing; the names of what was
        created. Idempotent. Raises DatabaseUnavailable, SchemaError."""
        with reaching(self.engine):
            return apply.create_locks(self.engine, self._tables)

    # ------------------------------------------------------------ what a lock centre does

    def _acquire(self, name: str, owner: str, ttl: float) -> Lease | None:
        return next(iter(self._acquire_some([name], owner, ttl)), None)

    def _most_at_once(self) -> int:
        return self._reached().database.max_ids

    def _acquire_some(self, names: Sequence[str], owner: str, ttl: float) -> list[Lease]:
        begun, asked = clock(), {(name, owner) for name in names}
        self._asking |= asked
        try:
            if len(names) > 1:  # of one it is nearly always there
                self._made(names, ttl)
            taken = self._take(names, owner, ttl, begun)
            if not taken and self._made(names, ttl):
                taken = self._take(names, owner, ttl, begun)
            self._given |= {(name, owner): lease.token for name, lease in taken.items()}
        finally:
            self._asking -= asked
        return [taken[name] for name in names if name in taken]

    def _take(self, names: Sequence[str], owner: str, ttl: float, begun: float) -> dict[str, Lease]:
        claim_id, asked = uuid.uuid4().hex, False

        def take(conn: Connection) -> dict[str, int]:
            nonlocal asked
            again, asked = asked, True  # what was taken is committed, whatever has failed since
            mine = locks.acquired(conn, self._tables, owner, claim_id) if again else {}
            return mine or locks.acquire(
                conn, self._tables, names, owner=owner, ttl_ms=_ms(ttl), claim_id=claim_id
            )

        found = self._run(take, seconds=ttl)
        return {
            name: Lease(name, owner, token, ttl, asked_at=begun) for name, token in found.items()
        }

    def _made(self, names: Sequence[str], ttl: float) -> bool:
        """Insert missing rows of locks; returns whether there was one."""
        now = clock()
        asked = [name for name in names if self._known.get(name, 0.0) <= now]
        if not asked:
            return False
        t = self._tables
        there = self._run(partial(locks.there, t=t, names=asked), seconds=ttl)
        missing = [name for name in asked if name not in there]
        try:
            if missing:
                self._run(lambda conn: locks.ensure(conn, t, *missing), seconds=ttl)
        except IntegrityError:  # another process inserted at least one of them first
            for name in missing if len(missing) > 1 else ():
                self._made([name], ttl)
        if len(self._known) >= KNOWN_NAMES:
            self._known.clear()
        self._known.update(dict.fromkeys(asked, now + KNOWN_SECONDS))
        return bool(missing)

    def _renew(self, lease: Lease) -> bool:
        renew = partial(
            locks.renew,
            t=self._tables,
            name=lease.name,
            owner=lease.owner,
            token=lease.token,
            ttl_ms=_ms(lease.ttl),
        )
        return self._run(renew, seconds=lease.deadline - clock(), line="renewals")

    def renew_all(self, leases: Sequence[Lease]) -> list[Lease]:
        """Renew many leases of one owner at once, in one statement; those that it still holds.

        All of one owner and one ttl. Locks that this owner holds only because the reply to an
        acquire was lost are released.
        """
        if not leases:
            return []
        begun, first = clock(), leases[0]
        if any(lease.owner != first.owner or lease.ttl != first.ttl for lease in leases):
            return super().renew_all(leases)
        seconds = min(lease.deadline for lease in leases) - begun
        renew = partial(locks.renew_all, t=self._tables, owner=first.owner, ttl_ms=_ms(first.ttl))
        mine = self._run(renew, seconds=seconds, line="renewals")
        kept = [one for one in leases if extended(one, mine.get(one.name) == one.token, begun)]
        for name, token in mine.items():
            whose = (name, first.owner)
            if whose not in self._asking and self._given.get(whose) != token:
                self._release(Lease(name, first.owner, token, first.ttl, asked_at=begun))
        return kept

    def release_all(self, leases: Sequence[Lease]) -> list[Lease]:
        """Free many locks at once, on SQLite in one transaction; those that were still held."""
        freed = []
        for start in range(0, len(leases), BATCH):
            part = leases[start : start + BATCH]
            done = self._release_some(part)
            freed += [one for one, was in zip(part, done, strict=True) if ended(one, was)]
        return freed

    def _release(self, lease: Lease) -> bool:
        return self._release_some([lease])[0]

    def _release_some(self, leases: Sequence[Lease]) -> list[bool]:
        t = self._reached()
        freed: dict[int, bool] = {}

        def free(conn: Connection, *, in_doubt: bool = False) -> None:
            if t.database.one_writer:
                freed.clear()  # a transaction that was rolled back freed none
            for place, lease in enumerate(leases):
                if place in freed:
                    continue
                name, owner = lease.name, lease.owner
                was_ours = locks.release(conn, t, name, owner=owner, token=lease.token)
                # Without a reply: it was released, if it was still held.
                freed[place] = was_ours or (in_doubt and were_live[place])

        were_live = [lease.live() for lease in leases]
        for lease in leases:
            if self._given.get((lease.name, lease.owner)) == lease.token:
                del self._given[lease.name, lease.owner]
        seconds = max(lease.ttl for lease in leases)
        self._run(free, seconds=seconds, in_doubt=partial(free, in_doubt=True))
        return [freed[place] for place in range(len(leases))]

    def _forget(self, lease: Lease) -> bool:
        """Delete the lease's row, or only release it where the login has no right to delete."""
        delete = partial(
            locks.delete, t=self._tables, name=lease.name, owner=lease.owner, token=lease.token
        )
        was_live = lease.live()
        try:
            gone = self._run(
                delete, seconds=lease.ttl, in_doubt=lambda conn: delete(conn) or was_live
            )
        except MsgworkerError:
            return self._release(lease)
        self._given.pop((lease.name, lease.owner), None)
        return gone

    def forget_expired(self, prefix: str) -> int:
        check_prefix(prefix)
        t = self._reached()
        old = self._run(partial(locks.long_expired, t=t, prefix=prefix, for_ms=_ms(KEPT_SECONDS)))
        count = 0
        for one in old:  # a lock that was renewed or acquired since it was read is not deleted
            delete = partial(locks.delete, t=t, name=one.name, owner=one.owner, token=one.token)
            count += self._run(partial(delete, expired=True))
        return count

    def held(self, prefix: str = "") -> list[Lease]:
        check_prefix(prefix)
        begun = clock()
        found = self._run(partial(locks.held, t=self._tables, prefix=prefix))
        return [_read(one, begun) for one in found]

    def holder(self, name: str) -> Lease | None:
        check_name(name)
        begun = clock()
        found = self._run(partial(locks.holder, t=self._tables, name=name))
        return None if found is None else _read(found, begun)

    def close(self) -> None:
        """Close the connections. Leases are not released."""
        lines = self._lines.pop(os.getpid(), None)
        if lines is not None:
            for link in (lines.calls, lines.renewals):
                with link.lock:
                    link.close()
            for engine in lines.engines:
                engine.dispose()

    # ------------------------------------------------------------ connections

    def _run(
        self,
        act: Work[R],
        *,
        seconds: float = MOST_ANSWER_SECONDS,
        line: Literal["calls", "renewals"] = "calls",
        in_doubt: Work[R] | None = None,
    ) -> R:
        """Run statements in autocommit mode, so that a suspended process holds no row lock (on
        SQLite, in a transaction). Retry if the database rolled one back, or if the connection was
        lost, which is common after a long idle time.

        seconds: the timeout of an answer, between 1 and 30. in_doubt: called instead of `act` when
        it may already have been done.
        """
        t = self._reached()
        link: Connections = getattr(self._own_lines(), line)
        limit = min(max(LEAST_ANSWER_SECONDS, seconds), MOST_ANSWER_SECONDS)
        until, tries = clock() + limit, 0
        while True:
            tries += 1
            opened = link.transaction if t.database.one_writer else link.single
            try:
                # A half-open connection looks like a slow one.
                cut = nullcontext() if t.database.one_writer else link.cut_after(limit)
                with link.lock, cut, opened() as conn:
                    return act(conn)
            except IntegrityError:
                raise
            except Exception as error:
                kind = trouble(error)
                if kind is Trouble.REFUSED:
                    raise self._refusal(error) from error
                if kind not in (Trouble.LOST, Trouble.AGAIN):
                    raise
                if tries >= TRIES or clock() >= until:
                    raise self._unavailable(error) from error
                if kind is Trouble.LOST and in_doubt is not None:
                    act = in_doubt

    def _reached(self) -> Tables:
        with reaching(self.engine):
            return self._tables

    def _own_lines(self) -> _Lines:
        lines = self._lines.get(os.getpid())
        if lines is None:
            engines = tuple(beside(self.engine) for _ in range(2))
            lines = _Lines(engines, Connections(engines[0]), Connections(engines[1]))
            lines = self._lines.setdefault(os.getpid(), lines)  # another thread may be faster
        return lines

    def _refusal(self, error: Exception) -> Exception:
        found = refusal(self.engine, error)
        if isinstance(found, SchemaError):
            return SchemaError(
                f"{reason_of(error)}. Locks are kept in the table {LOCK.name}: run "
                "DatabaseLocks.create_schema() or `msgworker init-db`"
            )
        return LocksUnavailable(str(found))

    def _unavailable(self, error: Exception) -> LocksUnavailable:
        return LocksUnavailable(str(unavailable(self.engine, error)))


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _read(found: Any, asked_at: float) -> Lease:
    left, age = found.left_ms / 1000, found.age_ms / 1000
    return Lease(found.name, found.owner, found.token, left, asked_at=asked_at, age=age)
