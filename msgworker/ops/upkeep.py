"""Purge old messages, pause topics, and read the audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from msgworker.config import HISTORY_SECONDS
from msgworker.dialects import writing
from msgworker.message import State
from msgworker.ops import asking, purging
from msgworker.ops.asking import Who
from msgworker.ops.counting import SAMPLE
from msgworker.ops.purging import Old
from msgworker.ops.renamed import renamed
from msgworker.ops.results import Repaired, Tell
from msgworker.ops.writing import Writing
from msgworker.store.changing import audit, pause, purge
from msgworker.store.changing.pause import Pause
from msgworker.store.claiming import limits
from msgworker.store.looking import audited
from msgworker.store.looking.audited import AuditEntry
from msgworker.store.looking.window import Found
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
        purging.needs_age(t)
        by = self._who(actor, reason)
        asking.filter_of((State.DONE,), topic=topic)
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
            before = purging.before_of(self._engine, asking.age_of(older_than))
            asked["before"] = before.isoformat()
        old = Old(before=before, dead=bool(asked["dead"]), topic=asked["topic"])
        if dry_run:
            return self._would_purge(old)
        self._ready()
        into = purging.open_archive(self._engine, t, asked["archive_to"])
        pace = {"rate": asking.rate_of(rate), "progress": progress}
        bulk = self._bulk("purge", by, asked, op, pace)
        purging.purge_all(bulk, self._engine, t, old, into)
        purging.forget_history(self._engine, self._tables, self._history_seconds or HISTORY_SECONDS)
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
        name, by = asking.topic_to_pause(topic), self._who(actor, reason)

        def act(conn: Connection, t: Tables) -> bool:
            return pause.add(conn, t, name, actor=by.actor, reason=by.reason)

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
        name, by = asking.topic_to_pause(topic), self._who(actor, reason)

        def act(conn: Connection, t: Tables) -> bool:
            return pause.remove(conn, t, name)

        return self._switch("resume", name, by, dry_run, act)

    def _switch(self, kind: str, topic: str, by: Who, dry_run: bool, act: Act) -> Repaired:
        self._ready()
        with self._reading() as (conn, t):
            paused = topic in pause.topics(conn, t)
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
        name, by = asking.topic_to_pause(topic), self._who(actor, reason)
        self._ready()
        with self._reading() as (conn, t):
            there = int(name in limits.read_all(conn, t))
        if dry_run or not there:
            return Repaired(kind="unlimit", matched=there, changed=there, dry_run=dry_run)
        return self._recorded("unlimit", name, by, lambda conn, t: limits.remove(conn, t, name))

    def pauses(self) -> list[Pause]:
        """The topics that are paused."""
        with self._reading() as (conn, t):
            return pause.read_all(conn, t)

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
        asking.limit_of(limit, MAX_AUDIT)
        asking.ids_of(msg_id)
        asking.ids_of(after)
        asking.filter_of((), topic=kind, error=actor, since=since)
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
