"""List locks (msgworker.coordination) and take them away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgworker.coordination.centres import place_of
from msgworker.coordination.database import DatabaseLocks
from msgworker.coordination.lease import Lease, LockCentre, check_name
from msgworker.dialects import writing
from msgworker.errors import ConfigError
from msgworker.ops import asking
from msgworker.ops.results import Repaired
from msgworker.ops.writing import Writing
from msgworker.store.changing import audit

KIND = "release-lock"


class Locking(Writing):
    """Operations on locks."""

    def locks(self, prefix: str = "", *, centre: LockCentre | None = None) -> list[Lease]:
        """The locks with this prefix that are held now: owner, token, `age` (seconds since it was
        acquired) and `ttl` (seconds left).

        centre: the lock centre; default: the table msgworker_lock of this database. Raises
        LocksUnavailable, SchemaError.
        """
        with self._centre(centre) as where:
            return where.held(prefix)

    def release_lock(
        self,
        name: str,
        *,
        centre: LockCentre | None = None,
        force: bool = False,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Take a lock away from its holder. Returns 1, or 0 if the lock is not held.

        A lease that is not renewed expires, so a holder is alive or died less than its ttl ago:
        the call is refused without `force`. The holder notices at its next renewal, and may work
        beside the next holder until then; a check of the token refuses its writes. Recorded in the
        audit, if its tables exist. Raises ConfigError, LocksUnavailable.
        """
        check_name(name)
        by = self._who(actor, reason)
        with self._centre(centre) as where:
            lease = where.holder(name)
            if lease is None:
                return Repaired(kind=KIND, dry_run=dry_run)
            if not force:
                raise ConfigError(
                    f"lock {name!r} is held by {lease.owner}, whose lease lasts for "
                    f"{lease.ttl:.1f} s more unless it is renewed; take it away nevertheless with "
                    "force (--force)"
                )
            if dry_run:
                return Repaired(kind=KIND, matched=1, changed=1, dry_run=True)
            asked = {"lock": name, "owner": lease.owner, "token": lease.token}
            op_id = self._noted(by, asked | {"locks": place_of(where)})
            did = int(where.release(lease))
        if op_id is not None:
            self._done(op_id, did)
        return Repaired(kind=KIND, op_id=op_id, matched=1, changed=did, skipped=1 - did)

    @contextmanager
    def _centre(self, centre: LockCentre | None) -> Iterator[LockCentre]:
        if centre is not None:
            yield centre
            return
        own = DatabaseLocks(self._engine, schema=self._spec.schema)
        try:
            yield own
        finally:
            own.close()

    def _noted(self, by: asking.Who, asked: dict[str, object]) -> int | None:
        """Record it first, so that an interrupted release is in the audit too."""
        t = self._tables
        if t.missing & {"msgworker_operation", "msgworker_audit"}:
            return None
        with writing(self._engine) as conn:
            return audit.begin(conn, t, kind=KIND, **by.fields, asked=asked)

    def _done(self, op_id: int, did: int) -> None:
        t = self._tables
        with writing(self._engine) as conn:
            op = audit.read(conn, t, op_id)
            if op is not None:
                audit.advance(conn, t, op, last_id=None, matched=1, changed=did, skipped=1 - did)
                audit.finish(conn, t, op_id)
