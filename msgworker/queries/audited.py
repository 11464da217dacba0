"""What operators did, as the audit has it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.message import State, word_of
from msgworker.store import audit
from msgworker.store.bounded import Found
from msgworker.table import AUDIT, OPERATION, Tables


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An operation in the audit; with `msg_id`, what it did to that message.

    source: from where it was asked, such as "web 10.0.0.7"; None = a program or the command line.

    was_...: the message before the change. finished_at: None while the operation runs, or if it
    was interrupted.
    """

    op_id: int
    kind: str
    actor: str
    reason: str | None
    filter: dict[str, Any]
    started_at: datetime
    finished_at: datetime | None
    matched: int
    changed: int
    skipped: int
    msg_id: int | None = None
    changed_at: datetime | None = None
    was_status: State | None = None
    was_tries: int | None = None
    was_claimed_by: str | None = None
    was_error: str | None = None
    source: str | None = None

    @property
    def about(self) -> str | None:
        """The topic, schedule, lock or instance that it is about; None = messages."""
        asked = self.filter
        found = asked.get("schedule") or asked.get("lock")
        if "lived" in asked:
            found = asked.get("instance")
        elif asked.keys() == {"topic"}:
            found = asked["topic"]
        return None if found is None else str(found)


def entries(
    conn: Connection,
    t: Tables,
    *,
    msg_id: int | None,
    limit: int,
    kind: str | None = None,
    actor: str | None = None,
    since: datetime | None = None,
    after: int | None = None,
) -> Found[AuditEntry]:
    """The latest operations on this table before the op_id `after`, or those that changed one
    message; newest first."""
    c, a = OPERATION.of(t).c, AUDIT.of(t).c
    columns: list[Any] = [c.op_id, c.kind, c.actor, c.reason, c.op_filter, c.started_at]
    columns += [c.finished_at, c.matched, c.changed, c.skipped]
    query = sa.select(*columns)
    if msg_id is not None:
        more = [a.msg_id, a.changed_at, a.was_status, a.was_tries, a.was_claimed_by, a.was_error]
        query = query.add_columns(*more).join(AUDIT.of(t), a.op_id == c.op_id)
        query = query.where(a.msg_id == msg_id)
    wanted = {c.kind: kind, c.actor: actor}
    query = query.where(*(column == value for column, value in wanted.items() if value is not None))
    if since is not None:
        query = query.where(c.started_at >= since)
    if after is not None:
        query = query.where(c.op_id < sa.literal(after, sa.BigInteger()))
    query = query.where(c.table_name == t.spec.bare_name).order_by(c.op_id.desc()).limit(limit)
    rows = [_entry(t, row) for row in conn.execute(query)]
    return Found(rows, next_after=rows[-1].op_id if len(rows) == limit else None)


def _entry(t: Tables, row: Any) -> AuditEntry:
    asked, source, _ = audit.filter_of(row[4])
    values = [*row[:4], asked, *row[5:]]
    if len(values) > 10:
        values[12] = word_of(values[12], values[13], t.spec.max_tries)
    return replace(AuditEntry(*values), source=source)
