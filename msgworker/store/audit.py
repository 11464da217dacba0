"""The audit: a row for each operation, and one for each message that it changed.

Both are written in the transaction of the change itself, so the counts of an interrupted operation
are exact, and it can be resumed where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from msgworker.db.clock import now
from msgworker.errors import KeyUsed
from msgworker.message import State, Status, word_of
from msgworker.store.bounded import Found
from msgworker.table import build
from msgworker.table.tables import Tables, lit

SOURCE, REQUEST, CHANGES = "source", "request", "changes"
"""Where an operation was asked from, what was asked with its key, and what an edit changes, beside
its selection."""
_Messages = Literal["rerun", "discard", "cancel", "edit", "acknowledge", "send", "release", "purge"]
_Topics = Literal["pause", "resume", "unlimit"]
_Jobs = Literal["seal-job", "cancel-job", "pause-job", "resume-job"]
_Schedules = Literal["pause-schedule", "resume-schedule", "run-schedule", "delete-schedule"]
Kind = Literal[_Messages, _Topics, _Jobs, "release-lock", _Schedules]
"""What is recorded. A row of a later version may have another one."""
MOST_KEPT = 20_000
"""Characters of a payload that the audit keeps, before an edit and after it."""
KEY_USED = "another request with this key is recorded; a key is for one"
OLD_KEY = "key"
"""What earlier versions kept of a key there."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A value that an edit changes. column: by its role, "topic", "payload", "available_at" or
    "priority". old, new: texts (of an instant in ISO 8601), a priority a number; None = NULL. The
    audit keeps 20,000 characters of a payload, and "…" for the rest."""

    column: str
    old: str | int | None
    new: str | int | None


def kept_changes(changes: Sequence[Edited]) -> list[list[Any]]:
    """Changes as the audit keeps them, for `begin`."""
    return [[one.column, _short(one.old), _short(one.new)] for one in changes]


def _short(value: Any) -> Any:
    long = isinstance(value, str) and len(value) > MOST_KEPT
    return f"{value[:MOST_KEPT]}…" if long else value


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation in its present state.

    filter: its selection. last_id: its progress, by msg_id. steps: transactions so far. source:
    from where it was asked, None = a program or the command line. request: what was asked with a
    key, if there was one.
    finished_at: None while it runs, or if it was interrupted.
    """

    op_id: int
    kind: str
    actor: str
    reason: str | None
    filter: dict[str, Any]
    started_at: datetime
    finished_at: datetime | None = None
    last_id: int | None = None
    steps: int = 0
    matched: int = 0
    changed: int = 0
    skipped: int = 0
    source: str | None = None
    request: str | None = None


# ---------------------------------------------------------------- an operation


class Who(NamedTuple):
    """Who asks for an operation, why and from where. key: of the request, which no other operation
    on this table has. request: what was asked with it."""

    actor: str
    reason: str | None
    source: str | None = None
    key: str | None = None
    request: str | None = None


def begin(
    conn: Connection,
    t: Tables,
    kind: Kind,
    by: Who,
    asked: dict[str, Any],
    *,
    done_to: int | None = None,
) -> int:
    """Record the start of an operation; return its op_id. In the caller's transaction.

    done_to: the message that it has changed, where that is all: it is recorded as over. Raises
    KeyUsed; where another transaction is about to record the key, this one waits for its end.
    """
    more = {SOURCE: by.source, REQUEST: by.request}
    asked = asked | {name: value for name, value in more.items() if value is not None}
    values: dict[str, Any] = {
        "table_name": t.label,
        "kind": kind,
        "actor": t.own_text(by.actor, build.MAX_ACTOR),
        "reason": t.own_text(by.reason, build.MAX_REASON),
        "op_filter": json.dumps(asked, ensure_ascii=bool(t.own_codec), default=str),
    }
    if done_to is not None:
        values |= {"steps": 1, "last_id": done_to, "matched": 1, "changed": 1, "finished_at": now()}
    if by.key is not None:
        values["request_key"] = _key(t, by.key)
    insert = sa.insert(build.OPERATION.of(t)).values(started_at=now(), **values)
    try:
        made = conn.execute(insert).inserted_primary_key
    except IntegrityError as error:
        if by.key is None:
            raise
        raise KeyUsed(KEY_USED) from error
    assert made is not None
    return int(made[0])


def _key(t: Tables, key: str) -> str:
    """A key as its column has it. The index is of one column, because Oracle takes two rows with
    the same name and no key for equal."""
    return hashlib.sha256(f"{t.label}\0{key}".encode()).hexdigest()


def advance(conn: Connection, t: Tables, seen: Operation, after: Operation) -> bool:
    """Record one step, after which it is as `after`; False if the operation is no longer as `seen`:
    another process continues it. In the transaction of the step."""
    c = build.OPERATION.of(t).c
    same = (c.op_id == seen.op_id, c.steps == seen.steps, c.finished_at.is_(None))
    changed = ("steps", "last_id", "matched", "changed", "skipped")
    values = {name: getattr(after, name) for name in changed}
    return bool(conn.execute(sa.update(build.OPERATION.of(t)).where(*same).values(values)).rowcount)


def end(conn: Connection, t: Tables, op_id: int, *, changed: int, skipped: int = 0) -> None:
    """Record the end of an operation of one step, and what it did."""
    counts = {"matched": changed + skipped, "changed": changed, "skipped": skipped}
    finish(conn, t, op_id, steps=1, **counts)


def finish(conn: Connection, t: Tables, op_id: int, **more: int) -> None:
    """Record the end of an operation."""
    over = sa.update(build.OPERATION.of(t)).where(build.OPERATION.of(t).c.op_id == op_id)
    conn.execute(over.values(finished_at=now(), **more))


def with_key(conn: Connection, t: Tables, key: str) -> Operation | None:
    """The operation that was recorded with a key."""
    return _read(conn, t, build.OPERATION.of(t).c.request_key == _key(t, key))


def read(conn: Connection, t: Tables, op_id: int) -> Operation | None:
    """An operation on this table, None if there is none of this id."""
    return _read(conn, t, build.OPERATION.of(t).c.op_id == op_id)


_OPERATION = ("op_id", "kind", "actor", "reason", "op_filter", "started_at", "finished_at")
_COUNTS = ("matched", "changed", "skipped")


def _read(conn: Connection, t: Tables, which: sa.ColumnElement[bool]) -> Operation | None:
    c = build.OPERATION.of(t).c
    query = sa.select(*(c[name] for name in (*_OPERATION, *_COUNTS, "last_id", "steps")))
    row = conn.execute(query.where(which, c.table_name == t.label)).mappings().first()
    if row is None:
        return None
    values: dict[Any, Any] = dict(row)
    asked = _asked(values.pop("op_filter"))
    return Operation(**values, **{name: asked[name] for name in asked if name != CHANGES})


def _asked(text: str | None) -> dict[str, Any]:
    """The selection of an operation (`filter`), from where it was asked, what was asked with its
    key, and what it changes of a message."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    found = found if isinstance(found, dict) else {}
    source, request, _ = (found.pop(name, None) for name in (SOURCE, REQUEST, OLD_KEY))
    changes = tuple(Edited(*one) for one in found.pop(CHANGES, None) or ())
    source, request = (None if one is None else str(one) for one in (source, request))
    return {"filter": found, SOURCE: source, REQUEST: request, CHANGES: changes}


# ---------------------------------------------------------------- messages


def record(conn: Connection, t: Tables, op_id: int, ids: Sequence[int]) -> int:
    """Record the state of these messages before it is changed; return how many exist. In the
    transaction of the change, after the rows were locked; at most `max_ids` ids."""
    if not ids:
        return 0
    c = t.cols()
    error: sa.ColumnElement[Any] = sa.null()
    owner: sa.ColumnElement[Any] = sa.null()
    if c.last_error is not None:
        error = sa.func.substr(c.last_error, 1, lit(build.MAX_WAS_ERROR))
    if c.claimed_by is not None:  # of a foreign consumer it may be longer
        owner = sa.func.substr(c.claimed_by, 1, lit(build.MAX_WAS_OWNER))
    columns: dict[str, sa.ColumnElement[Any]] = {
        "msg_id": c.msg_id,
        # Said with its type: in a SELECT, a bare parameter has none.
        "op_id": sa.cast(sa.literal(op_id, sa.BigInteger()), sa.BigInteger()),
        "changed_at": now(),
        "was_status": sa.func.coalesce(c.status, lit(99)),
        "was_tries": t.tries(c),
        "was_claimed_by": owner,
        "was_error": error,
    }
    chosen = sa.select(*(column.label(f"a{i}") for i, column in enumerate(columns.values())))
    insert = sa.insert(build.AUDIT.of(t)).from_select(
        list(columns), chosen.where(t.among(c.msg_id))
    )
    return inserted(conn, insert, {"mw_ids": list(ids)})


def inserted(conn: Connection, insert: sa.Insert, params: dict[str, Any]) -> int:
    """Run an INSERT ... SELECT of `mw_ids`; return how many rows were inserted."""
    done = conn.execute(insert, params, execution_options={"preserve_rowcount": True})
    known = done.rowcount >= 0  # SQLAlchemy before 2.0.28 does not know
    return int(done.rowcount) if known else len(params["mw_ids"])


def touched(conn: Connection, t: Tables, op_id: int, ids: Sequence[int]) -> set[int]:
    """Those of the messages that an operation has changed already; at most `max_ids` ids."""
    c = build.AUDIT.of(t).c
    query = sa.select(c.msg_id).where(t.among(c.msg_id), c.op_id == op_id)
    return set(conn.scalars(query, {"mw_ids": list(ids)})) if ids else set()


def running_before(conn: Connection, t: Tables, op_id: int) -> int:
    """How many messages were running when an operation changed them."""
    c = build.AUDIT.of(t).c
    query = sa.select(sa.func.count()).select_from(build.AUDIT.of(t))
    query = query.where(c.op_id == op_id, c.was_status == lit(Status.PROCESSING))
    return int(conn.execute(query).scalar_one())


# --- What operators did, as the audit has it.


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An operation in the audit; with `msg_id`, what it did to that message.

    source: from where it was asked, such as "web 10.0.0.7"; None = a program or the command line.

    was_...: the message before the change. changes: of an edit, old and new values; with payloads,
    so they are for who may see those. finished_at: None while the operation runs, or if it was
    interrupted.
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
    changes: tuple[Edited, ...] = ()

    @property
    def about(self) -> str | None:
        """The topic, schedule, lock, job or instance that it is about; None = messages."""
        asked = self.filter
        found = asked.get("schedule") or asked.get("lock")
        if asked.keys() == {"job"} and self.kind.endswith("-job"):
            found = asked["job"]
        elif "lived" in asked:
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
    c, a = build.OPERATION.of(t).c, build.AUDIT.of(t).c
    query = sa.select(*(c[name] for name in (*_OPERATION, *_COUNTS)))
    if msg_id is not None:
        more = [a.msg_id, a.changed_at, a.was_status, a.was_tries, a.was_claimed_by, a.was_error]
        query = query.add_columns(*more).join(build.AUDIT.of(t), a.op_id == c.op_id)
        query = query.where(a.msg_id == msg_id)
    wanted = {c.kind: kind, c.actor: t.own_text(actor, build.MAX_ACTOR)}
    query = query.where(*(column == value for column, value in wanted.items() if value is not None))
    if since is not None:
        query = query.where(c.started_at >= since)
    if after is not None:
        query = query.where(c.op_id < sa.literal(after, sa.BigInteger()))
    query = query.where(c.table_name == t.label).order_by(c.op_id.desc()).limit(limit)
    rows = [_entry(t, dict(row)) for row in conn.execute(query).mappings()]
    return Found(rows, next_after=rows[-1].op_id if len(rows) == limit else None)


def _entry(t: Tables, row: dict[Any, Any]) -> AuditEntry:
    asked = _asked(row.pop("op_filter"))
    if "was_status" in row:
        row["was_status"] = word_of(row["was_status"], row["was_tries"], t.spec.max_tries)
    return AuditEntry(**row, **{name: asked[name] for name in asked if name != REQUEST})
