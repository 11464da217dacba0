"""Cancel messages: those that wait at once, running ones by a request to their instance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection

from msgworker.errors import ConfigError
from msgworker.message import State, StateName
from msgworker.ops import call
from msgworker.ops.call import Who
from msgworker.ops.repairs import Writing
from msgworker.ops.results import Repaired, Skip, Tell, Why, renamed
from msgworker.ops.selection import WHY, Choice, Count
from msgworker.schema import create
from msgworker.store import audit, cancels, change
from msgworker.table import Tables

_OPEN = (State.NEW, State.FAILED, State.PROCESSING)
_TOO_LATE = {**WHY, State.DONE: Why.TOO_LATE, State.DEAD: Why.TOO_LATE}


class Cancels(Writing):
    """Cancels; `actor`, `reason` and `dry_run` as in `Repairs`."""

    @renamed(resume="operation")
    def cancel(
        self,
        ids: Iterable[int] | int | None = None,
        *,
        reason: str | None = None,
        status: StateName | State | None = None,
        topic: str | None = None,
        object_id: Any = None,
        error: str | None = None,
        since: datetime | None = None,
        fingerprint: str | None = None,
        up_to: int | None = None,
        dry_run: bool = False,
        count_limit: int | None = None,
        expected_count: int | None = None,
        actor: str | None = None,
        rate: float | None = None,
        operation: int | None = None,
        progress: Tell | None = None,
    ) -> Repaired:
        """Cancel messages: dead, with the reason as their last error; their object continues.

        By ids, or by at least one filter; a filter without a status selects new, failed and running
        ones. New and failed ones are dead at once. For a running one a request is recorded
        (`requested` counts them): its instance sets `ctx.cancelled` within a heartbeat, and if the
        handler then raises or returns, the message is dead; a transaction of the handler is
        rolled back, an async handler is cancelled. If it ends before that, it was too late; if it
        fails or is released, it is dead instead of being tried again.

        Skipped: what has ended, and what a foreign consumer has flagged. A reason is required.
        up_to, count_limit, expected_count, rate, operation, progress: as in `rerun`.
        """
        chosen = {
            "status": status,
            "topic": topic,
            "object_id": object_id,
            "error": error,
            "since": since,
            "fingerprint": fingerprint,
            "up_to": up_to,
        }
        asked = {"ids": call.ids_of(ids)} | chosen
        op = self._resumed("cancel", operation, asked) if operation is not None else None
        asked = asked if op is None else call.again(op, asked["ids"])
        if op is not None:
            by = Who(op.actor, op.reason, op.source)
        else:
            by = self._who(actor, reason, needs_reason=None if dry_run else "cancel")
        there = self._there()
        choice = self._to_cancel(there, **asked)
        count = Count(dry_run, count_limit, expected_count)
        pace = {"rate": call.rate_of(rate), "progress": progress}

        def act(conn: Connection, part: list[int]) -> int:
            return _cancel(conn, choice.tables, part, by)

        done = self._change("cancel", choice, asked, by, op, count, pace, act)
        if done.op_id is None:
            return done
        with self._reading() as (conn, t):
            running = audit.running_before(conn, t, done.op_id)
        return replace(done, requested=running)

    def _to_cancel(
        self, there: bool, ids: list[int] | None, status: StateName | State | None, **filters: Any
    ) -> Choice:
        one = call.word(status, _OPEN, "cannot be cancelled: they have ended")
        wanted = None
        if ids is not None:
            call.not_both(filters | {"status": status})
        else:
            if one is None and call.none_of(filters):
                raise ConfigError("cancel needs ids or a filter: it does not cancel all messages")
            wanted = call.filter_of(_OPEN if one is None else (one,), **filters)
        t = self._tables
        return Choice(
            engine=self._engine,
            tables=t,
            words=_OPEN,
            ids=ids,
            wanted=wanted,
            why=_TOO_LATE,
            unfit=partial(_unfit, t, there),
        )

    def _there(self) -> bool:
        """Whether requests can be recorded; looked at again if they could not."""
        if not cancels.is_there(self._tables):
            missing = create.missing_tables(self._engine, self._tables)
            self._found = replace(self._tables, missing=missing)
        return cancels.is_there(self._tables)


def _unfit(t: Tables, there: bool, conn: Connection, ids: list[int]) -> dict[int, Skip]:
    """The running ones among the messages for which no request can be made; `there`: requests can
    be recorded."""
    running = cancels.running(conn, t, ids)
    if not running:
        return {}
    found = {
        asked.request.msg_id for asked in cancels.read(conn, t, list(running)) if not asked.over
    }
    skips = {}
    for msg_id, (owner, _) in running.items():
        if owner is None:
            skips[msg_id] = Skip(msg_id, Why.FOREIGN)
        elif not there:
            skips[msg_id] = Skip(msg_id, Why.NO_REQUESTS)
        elif msg_id in found:
            skips[msg_id] = Skip(msg_id, Why.REQUESTED)
    return skips


def _cancel(conn: Connection, t: Tables, part: list[int], by: Who) -> int:
    """Cancel messages that are locked and recorded."""
    running = cancels.running(conn, t, part)
    waiting = [i for i in part if i not in running]
    text = cancels.text_of(by.actor, by.reason)
    cancelled = change.cancel(conn, t, waiting, text=text)
    cancels.drop(conn, t, waiting)
    owned = {i: (owner, tries) for i, (owner, tries) in running.items() if owner is not None}
    cancels.add(conn, t, owned, actor=by.actor, reason=by.reason or "")
    return cancelled + len(owned)
