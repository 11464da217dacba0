"""Purge old messages, pause topics, and read the audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from msgworker.config import HISTORY_SECONDS, whole
from msgworker.config.values import renamed
from msgworker.db import Trouble, connecting, reason_of, trouble, writing
from msgworker.errors import SchemaError
from msgworker.message import State
from msgworker.ops import call
from msgworker.ops.call import Who
from msgworker.ops.operation import Bulk, Step, Writing, check_all
from msgworker.ops.results import OnProgress, Repaired, Skip, Why
from msgworker.ops.selection import CHUNK, SAMPLE, Counted
from msgworker.queries import audited
from msgworker.queries.audited import AuditEntry
from msgworker.store import history, limits, pauses, purge
from msgworker.store.bounded import LEAST, MOST, Found
from msgworker.store.pauses import Pause
from msgworker.store.purge import Archive
from msgworker.table import HISTORY, Tables

MAX_AUDIT = 10_000
OfTopic = Callable[[Connection, Tables, str], bool]

# --- Purge: delete finished rows older than an instant, in short transactions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """What to purge: finished before this instant; dead: also dead messages; topic: only this."""

    before: datetime
    dead: bool = False
    topic: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"before": self.before, "dead": self.dead, "topic": self.topic}


def needs_age(t: Tables) -> None:
    """Raise SchemaError if the table cannot say how old a message is."""
    if not purge.has_age(t):
        raise SchemaError(
            f"table {t.spec.name} has neither finished_at nor created_at, so the age of its "
            "messages is unknown. Add one of them, or delete by a rule of your own"
        )


def open_archive(engine: sa.Engine, t: Tables, name: str | None) -> Archive | None:
    """The archive table, created if necessary; raises SchemaError if it cannot be used."""
    if name is None:
        return None
    try:
        with connecting(engine) as conn:
            return purge.open_archive(conn, t, name)
    except DBAPIError as error:
        if trouble(error) is Trouble.LOST:
            raise
        raise SchemaError(f"the archive table {name} cannot be used: {reason_of(error)}") from error


def purge_all(bulk: Bulk, engine: sa.Engine, t: Tables, old: Old, into: Archive | None) -> None:
    """Purge all messages that are old enough, by msg_id, from the last step of the operation on."""
    with connecting(engine) as conn:
        beside = purge.beside(conn, t)

    def work(op_id: int, part: list[int], conn: Connection) -> Step:
        ids = purge.lock(conn, t, part, **old.options)
        gone = sorted(set(part).difference(ids))
        if ids:
            kept = len(ids) if into is None else purge.archive(conn, t, into, ids)
            check_all(len(ids), kept=kept, deleted=purge.delete(conn, t, ids, beside))
        return Step(len(part), len(ids), [Skip(i, Why.CHANGED) for i in gone])

    def page(conn: Connection, after: int | None) -> list[int]:
        return purge.chunk(conn, t, **old.options, after=after, limit=CHUNK)

    bulk.over_all(page, work, after=bulk.last_id, full=CHUNK)


def forget_history(engine: sa.Engine, t: Tables, keep_seconds: float) -> None:
    """Delete what is older of the history for charts, an hour of it in a transaction. What cannot
    be deleted now is left to the instances."""
    more = HISTORY.is_there(t)
    try:
        while more:
            with writing(engine) as conn:
                more = bool(history.forget(conn, t, keep_seconds))
    except DBAPIError as error:
        if trouble(error) not in (Trouble.AGAIN, Trouble.REFUSED):
            raise


# --- What operators do in upkeep.


def _paused(conn: Connection, t: Tables, topic: str) -> bool:
    return topic in pauses.topics(conn, t)


def _runs(conn: Connection, t: Tables, topic: str) -> bool:
    return not _paused(conn, t, topic)


def _limited(conn: Connection, t: Tables, topic: str) -> bool:
    return topic in limits.read_all(conn, t)


class Upkeep(Writing):
    """Purges, pauses and the audit; `actor`, `reason` and `dry_run` as in `Repairs`."""

    # ------------------------------------------------------------ purge

    @renamed(resume="operation")
    def purge(
        self,
        older_than: float | str | timedelta | datetime | None = None,
        *,
        dead: bool = False,
        topic: str | None = None,
        archive_to: str | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        rate: float | None = None,
        operation: int | None = None,
        progress: OnProgress | None = None,
    ) -> Repaired:
        """Delete done messages that finished longer ago than this, lowest msg_id first.

        older_than: seconds, "30d", a timedelta, or an aware datetime in the past. dead: also dead
        ones, except those that hold their object back. archive_to: copy them into this table in the
        same transaction; it is created if it does not exist. rate, operation, progress: as in
        `rerun`. The history for charts that is older than `history_seconds` of the App goes too.
        """
        t = self._tables
        needs_age(t)
        by = self._who(actor, reason)
        call.filter_of((State.DONE,), topic=topic)
        if archive_to is not None:
            purge.archive_name(t, archive_to)
        asked: dict[str, Any] = {"dead": dead, "topic": topic, "archive_to": archive_to}
        if operation is not None:
            nothing = asked | {"older_than": older_than, "dead": dead or None}
            op = self._resumed("purge", operation, nothing)
            asked = {name: op.filter.get(name) for name in (*asked, "before")}
            before = datetime.fromisoformat(str(asked["before"]))
        else:
            op = None
            before = self._before(call.age_of(older_than))
            asked["before"] = before.isoformat()
        old = Old(before=before, dead=bool(asked["dead"]), topic=asked["topic"])
        if dry_run:
            return self._would_purge(old)
        self._ready()
        into = open_archive(self._engine, t, asked["archive_to"])
        pace = call.rate_of(rate)
        bulk = self._bulk("purge", by, asked, op, rate=pace, progress=progress)
        bulk.begin()
        purge_all(bulk, self._engine, t, old, into)
        forget_history(self._engine, self._tables, self._history_seconds or HISTORY_SECONDS)
        return bulk.end()

    def _would_purge(self, old: Old) -> Repaired:
        with self._reading() as (conn, t):
            count = purge.count(conn, t, **old.options)
            first = purge.chunk(conn, t, **old.options, after=None, limit=SAMPLE)
        return self._told("purge", Counted(first, count))

    # ------------------------------------------------------------ pause

    def pause(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Stop handlers of a topic from starting, on every instance from its next heartbeat on.

        Running handlers continue to their end. Messages of the topic wait, and so do those behind
        them of the same object. Returns 1, or 0 if it was paused already.
        """
        by = self._who(actor, reason)

        def act(conn: Connection, t: Tables, topic: str) -> bool:
            return pauses.add(conn, t, topic, actor=by.actor, reason=by.reason)

        return self._switch("pause", topic, by, dry_run, _runs, act)

    def resume(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Resume a paused topic. Returns 1, or 0 if it was not paused."""
        by = self._who(actor, reason)
        return self._switch("resume", topic, by, dry_run, _paused, pauses.remove)

    def _switch(
        self, kind: str, topic: Any, by: Who, dry_run: bool, wanted: OfTopic, act: OfTopic
    ) -> Repaired:
        """Change what is recorded of a topic, if it is as wanted."""
        name = call.topic_to_pause(topic)
        self._ready()
        would = int(self._read(wanted, name))
        if dry_run or not would:
            return Repaired(kind=kind, matched=would, changed=would, dry_run=dry_run)
        try:
            return self._at_once(kind, by, {"topic": name}, lambda conn, t: act(conn, t, name))
        except IntegrityError:  # another process pauses it at the same moment
            return Repaired(kind=kind)

    def remove_limit(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Forget the max_running and rate of a topic, on every instance from its next heartbeat on.

        For a topic whose handlers declare none any more; an instance whose handler does records
        them again. Returns 1, or 0 if the topic has no limits.
        """
        by = self._who(actor, reason)
        return self._switch("unlimit", topic, by, dry_run, _limited, limits.remove)

    def pauses(self) -> list[Pause]:
        """The topics that are paused."""
        return self._read(pauses.read_all)

    # ------------------------------------------------------------ audit

    def audit(
        self,
        msg_id: int | None = None,
        *,
        kind: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> Found[AuditEntry]:
        """What operators did, newest first: to one message, or all operations on this table.

        kind: "rerun", "pause", ... actor: exactly. since: started at or after this instant. A list
        with `next_after` (None = no more), which is `after` of the next page. Raises ConfigError.
        """
        call.limit_of(limit, MAX_AUDIT)
        if msg_id is not None:
            whole("msg_id", msg_id, LEAST, MOST)
        if after is not None:
            whole("after", after, LEAST, MOST)
        call.text_of("kind", kind)
        call.text_of("actor", actor)
        call.since_of(since)
        self._ready()
        chosen: dict[str, Any] = {"msg_id": msg_id, "kind": kind, "actor": actor, "since": since}
        return self._read(audited.entries, **chosen, limit=limit, after=after)
