"""Purge old messages, pause topics, and read the audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from msgworker.config import HISTORY_SECONDS
from msgworker.db import writing
from msgworker.message import State
from msgworker.ops import call, steps
from msgworker.ops.call import Who
from msgworker.ops.repairs import Writing
from msgworker.ops.results import Repaired, Tell, renamed
from msgworker.ops.selection import SAMPLE
from msgworker.ops.steps import Old
from msgworker.queries import audited
from msgworker.queries.audited import AuditEntry
from msgworker.store import audit, limits, pauses, purge
from msgworker.store.bounded import Found
from msgworker.store.pauses import Pause
from msgworker.table import Tables

MAX_AUDIT = 10_000
Act = Callable[[Connection, Tables], bool]


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
        progress: Tell | None = None,
    ) -> Repaired:
        """Delete done messages that finished longer ago than this, lowest msg_id first.

        older_than: seconds, "30d", a timedelta, or an aware datetime in the past. dead: also dead
        ones, except those that hold their object back. archive_to: copy them into this table in the
        same transaction; it is created if it does not exist. rate, operation, progress: as in
        `rerun`. The history for charts that is older than `history_seconds` of the App goes too.
        """
        t = self._tables
        steps.needs_age(t)
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
            before = steps.before_of(self._engine, call.age_of(older_than))
            asked["before"] = before.isoformat()
        old = Old(before=before, dead=bool(asked["dead"]), topic=asked["topic"])
        if dry_run:
            return self._would_purge(old)
        self._ready()
        into = steps.open_archive(self._engine, t, asked["archive_to"])
        pace = {"rate": call.rate_of(rate), "progress": progress}
        bulk = self._bulk("purge", by, asked, op, pace)
        steps.purge_all(bulk, self._engine, t, old, into)
        steps.forget_history(self._engine, self._tables, self._history_seconds or HISTORY_SECONDS)
        bulk.finish()
        return bulk.result()

    def _would_purge(self, old: Old) -> Repaired:
        with self._reading() as (conn, t):
            count = purge.count(conn, t, **old.options)
            first = purge.chunk(conn, t, **old.options, after=None, limit=SAMPLE)
        return replace(self._would("purge", first, count, []), changed=count)

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
        name, by = call.topic_to_pause(topic), self._who(actor, reason)

        def act(conn: Connection, t: Tables) -> bool:
            return pauses.add(conn, t, name, actor=by.actor, reason=by.reason)

        return self._switch("pause", name, by, dry_run, act)

    def resume(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Resume a paused topic. Returns 1, or 0 if it was not paused."""
        name, by = call.topic_to_pause(topic), self._who(actor, reason)

        def act(conn: Connection, t: Tables) -> bool:
            return pauses.remove(conn, t, name)

        return self._switch("resume", name, by, dry_run, act)

    def _switch(self, kind: str, topic: str, by: Who, dry_run: bool, act: Act) -> Repaired:
        self._ready()
        with self._reading() as (conn, t):
            paused = topic in pauses.topics(conn, t)
        if dry_run or paused == (kind == "pause"):
            would = int(paused != (kind == "pause"))
            return Repaired(kind=kind, matched=would, changed=would, dry_run=dry_run)
        return self._recorded(kind, topic, by, act)

    def _recorded(self, kind: str, topic: str, by: Who, act: Act) -> Repaired:
        t = self._tables
        try:
            with writing(self._engine) as conn:
                asked = {"topic": topic}
                op_id = audit.begin(conn, t, kind=kind, **by.fields, asked=asked)
                op = audit.read(conn, t, op_id)
                assert op is not None
                did = int(act(conn, t))
                audit.advance(conn, t, op, last_id=None, matched=did, changed=did, skipped=0)
                audit.finish(conn, t, op_id)
        except IntegrityError:  # another process pauses it at the same moment
            return Repaired(kind=kind)
        return Repaired(kind=kind, op_id=op_id, matched=did, changed=did)

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
        name, by = call.topic_to_pause(topic), self._who(actor, reason)
        self._ready()
        with self._reading() as (conn, t):
            there = int(name in limits.read_all(conn, t))
        if dry_run or not there:
            return Repaired(kind="unlimit", matched=there, changed=there, dry_run=dry_run)
        return self._recorded("unlimit", name, by, lambda conn, t: limits.remove(conn, t, name))

    def pauses(self) -> list[Pause]:
        """The topics that are paused."""
        with self._reading() as (conn, t):
            return pauses.read_all(conn, t)

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
        call.ids_of(msg_id)
        call.ids_of(after)
        call.filter_of((), topic=kind, error=actor, since=since)
        self._ready()
        with self._reading() as (conn, t):
            return audited.entries(
                conn,
                t,
                msg_id=msg_id,
                kind=kind,
                actor=actor,
                since=since,
                limit=limit,
                after=after,
            )
