"""Shared parts of all writes: the audit tables, dry runs, resuming after an interruption."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.errors import ConfigError, SchemaError
from msgworker.ops import asking, rerunning
from msgworker.ops.asking import Who
from msgworker.ops.bulk import Bulk
from msgworker.ops.call import Call
from msgworker.ops.choosing import Choice
from msgworker.ops.counting import SAMPLE, Count, Counted
from msgworker.ops.results import Repaired, Skip, Skips
from msgworker.store import history
from msgworker.store.changing import audit, cancelling
from msgworker.store.changing.audit import Operation
from msgworker.store.claiming import limits
from msgworker.store.looking import ending, find
from msgworker.store.tables import schema

LOOK_AHEAD_SECONDS = 20
W = TypeVar("W", bound="Writing")


class Writing(Call):
    """Helpers of the writes."""

    _actor: str | None = None
    _source: str | None = None
    _key: str | None = None
    _request: str | None = None

    def acting(
        self: W,
        *,
        actor: str | None = None,
        source: str | None = None,
        key: str | None = None,
        request: str | None = None,
    ) -> W:
        """The same calls, whose writes are recorded in the audit as of this actor, where the call
        names none, and from this source, such as "web 10.0.0.7" (at most 200 characters each).

        key: of this request, 1 to 100 letters, digits and any of .:_-. The database takes it once:
        another write with it raises KeyUsed and does nothing, and `recorded` finds the operation
        that has it. request: what is asked, such as its digest, for who finds it there (as long).
        Raises ConfigError.
        """
        by = asking.who(actor, None, source=source)
        other = copy.copy(self)
        other._actor, other._source = None if actor is None else by.actor, by.source
        other._key = None if key is None else asking.key_of(key)
        other._request = None if request is None else asking.key_of(request)
        return other

    def recorded(self, key: str) -> Operation | None:
        """The operation that was recorded with this key, see `acting`; None if there is none."""
        asking.key_of(key)
        self._ready()
        with self._reading() as (conn, t):
            return audit.with_key(conn, t, key)

    def operation(self, op_id: int) -> Operation | None:
        """An operation as it is now, also while it runs; None if there is none of this number."""
        asking.ids_of(op_id)
        self._ready()
        with self._reading() as (conn, t):
            return audit.read(conn, t, op_id)

    def note_sent(
        self,
        conn: Connection,
        msg_id: int,
        *,
        topic: str,
        actor: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Record in the audit that this message was sent by an operator, in the caller's
        transaction; return the op_id."""
        by, t = self._who(actor, reason), self._tables
        self._ready()
        asked = {"ids": [msg_id], "topic": topic}
        return audit.begin(conn, t, kind="send", **by.fields, asked=asked, done_to=msg_id)

    def _who(
        self, actor: str | None, reason: str | None, *, needs_reason: str | None = None
    ) -> Who:
        given = self._actor if actor is None else actor
        return asking.who(
            given,
            reason,
            source=self._source,
            key=self._key,
            request=self._request,
            needs_reason=needs_reason,
        )

    def _ready(self) -> None:
        """Raise SchemaError if the tables of ops are missing."""
        if not self._tables.missing:
            return
        missing = schema.missing_tables(self._engine, self._tables)
        needed = missing - {cancelling.NAME, limits.NAME, history.NAME}  # only for who uses them
        if needed:
            raise SchemaError(
                f"table {', '.join(sorted(needed))} is missing, which records operations. "
                "Run App.create_schema() or `msgworker init-db`, or see `msgworker ddl`"
            )
        self._found = replace(self._tables, missing=missing)  # created since this App read it

    def _resumed(self, kind: str, op_id: int, asked: dict[str, Any]) -> Operation:
        """An interrupted operation to continue; raises ConfigError if it does not exist, or had
        other ids than those given again."""
        ids = asked.get("ids")
        others = [value for name, value in asked.items() if name != "ids"]
        if any(value is not None and value is not False for value in others):
            raise ConfigError("operation continues with the original selection; give no other one")
        self._ready()
        asking.ids_of(op_id)
        with self._reading() as (conn, t):
            op = audit.read(conn, t, op_id)
        if op is None or op.kind != kind:
            raise ConfigError(f"there is no {kind} of number {op_id}; see `msgworker audit`")
        if op.finished_at is not None:
            raise ConfigError(f"{kind} {op_id} is over: {plural(op.changed, 'message')} changed")
        if ids is None and "ids_count" in op.filter:
            raise ConfigError(
                f"{kind} {op_id} was of {op.filter['ids_count']} ids, which were not stored; give "
                "the same ids again with operation: it continues after those that are done"
            )
        again = {} if ids is None else asking.kept(ids)
        if any(op.filter.get(name) != value for name, value in again.items()):
            raise ConfigError(f"these are not the ids of {kind} {op_id}; give the same ones")
        return op

    def _bulk(
        self,
        kind: str,
        by: Who,
        asked: dict[str, Any],
        op: Operation | None,
        pace: dict[str, Any],
    ) -> Bulk:
        if op is not None:
            return Bulk(self._engine, self._tables, op, **pace)
        kept = {k: v for k, v in asked.items() if v is not None and v is not False}
        if kept.get("ids") is not None:
            kept |= asking.kept(kept.pop("ids"))
        return Bulk.begun(self._engine, self._tables, kind, by, kept, **pace)

    def _change(
        self,
        kind: str,
        choice: Choice,
        asked: dict[str, Any],
        by: Who,
        op: Operation | None,
        count: Count,
        pace: dict[str, Any],
        act: rerunning.Change,
    ) -> Repaired:
        if count.before(op):
            timed = replace(choice, clock=self._clock)
            would = Counted.of(timed, count, None if count.dry_run else pace["progress"])
            count.check(kind, would.changed, complete=would.complete)
            if count.dry_run:
                return self._told(kind, would)
        self._ready()
        if pace["rate"] is not None:  # pages that are read ahead must not become stale
            ahead = int(pace["rate"] * LOOK_AHEAD_SECONDS)
            choice = replace(choice, chunk_size=max(1, min(choice.chunk_size, ahead)))
        bulk: Bulk | None = None if op is None else self._bulk(kind, by, asked, op, pace)
        for chunk in choice.chunks(None if op is None else op.last_id):
            bulk = bulk or self._bulk(kind, by, asked, None, pace)
            rerunning.change_chunk(bulk, choice, chunk, act)
        if bulk is None:
            return Repaired(kind=kind)
        bulk.finish()
        return bulk.result()

    def _told(self, kind: str, would: Counted) -> Repaired:
        """The result of a dry run that has counted."""
        return replace(
            self._would(kind, would.first, would.matched, []),
            changed=would.changed,
            skipped=would.matched - would.changed,
            why=would.skips.why,
            skips=tuple(would.skips.first),
            done_again=would.done,
            requested=would.running,
            complete=would.complete,
            up_to=would.up_to,
        )

    def _would(self, kind: str, ids: list[int], matched: int, left: list[Skip]) -> Repaired:
        """The result of a dry run: how many of `ids`, and the first of them."""
        skips = Skips()
        skips.add(left)
        with self._reading() as (conn, t):
            shown = [find.show(conn, t, i) for i in ids[:SAMPLE]]
            infos = ending.told(conn, t, [info for info in shown if info is not None])
        return Repaired(
            kind=kind,
            matched=matched,
            changed=len(ids),
            skipped=len(left),
            dry_run=True,
            why=skips.why,
            skips=tuple(skips.first),
            sample=tuple(replace(info, payload=None) for info in infos),
        )

    @staticmethod
    def _nothing(kind: str, left: list[Skip]) -> Repaired:
        skips = Skips()
        skips.add(left)
        return Repaired(
            kind=kind,
            matched=len(left),
            skipped=len(left),
            why=skips.why,
            skips=tuple(skips.first),
        )
