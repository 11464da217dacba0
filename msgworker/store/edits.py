"""Corrections of a message that waits or is dead, in its place.

A waiting message may be in a run that an instance has read ahead with its payload (store/claim.py),
and a candidate with its topic. Neither may start with what it was. So an edit of a new message
leaves it at -1 with no failed try: it holds its place and its object as before, but no run has it,
and a claim that has seen it at 0 loses; it is claimed again, and read under its flag. A failed one
is in no run, and a claim reads its topic under its flag, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.db import beginning, fetch, instant_text, text_length, whole_number
from msgworker.message import CANCELLED, DISCARDED, Status
from msgworker.store.rows import Wanted, as_text, by_key, check_written, or_zero
from msgworker.store.send import sent_values
from msgworker.table import AUDIT, OPERATION, Tables, lit
from msgworker.table.tables import ONE


class Held(NamedTuple):
    """A message as it is read for an edit; what its table has no column for is None. length: of a
    payload that is too long to be read, which is None then. available_at, finished_at: as
    `instant_text` reads them."""

    status: Any
    tries: Any
    object_id: Any
    topic: Any
    payload: Any
    length: Any
    available_at: Any
    priority: Any
    unique_key: Any
    last_error: Any
    finished_at: Any
    crashes: Any
    postponed: Any

    @property
    def seen(self) -> str:
        """What says whether it has changed: the same for the same row."""
        text = json.dumps([None if one is None else str(one) for one in self])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def given_up(self) -> bool:
        """Whether it may have been discarded or cancelled while it waited."""
        if self.status != Status.FAILED:
            return False
        text = self.last_error
        return not isinstance(text, str) or text.startswith((DISCARDED, CANCELLED))


def read(conn: Connection, t: Tables, msg_id: int, *, lock: bool = False) -> Held | None:
    """One message, None if there is none. lock: until the end of the caller's transaction."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        none: sa.ColumnElement[Any] = sa.null()
        payload = length = none
        if c.payload is not None:
            text = as_text(t, c.payload)
            most = lit(t.spec.max_payload)
            length = text_length(text)
            payload, length = sa.case((length <= most, text)), sa.case((length > most, length))
        columns = (
            c.status,
            t.tries(c),
            c.object_id,
            none if c.topic is None else c.topic,
            payload,
            length,
            none if c.available_at is None else instant_text(c.available_at),
            none if c.priority is None else c.priority,
            none if c.unique_key is None else c.unique_key,
            none if c.last_error is None else beginning(c.last_error),
            none if c.finished_at is None else instant_text(c.finished_at),
            or_zero(c.crash_times),
            or_zero(c.later_times),
        )
        query = sa.select(*(column.label(f"e{i}") for i, column in enumerate(columns)))
        query = query.where(t.among(c.msg_id), *t.is_message(c))
        return query.with_for_update() if lock and t.database.row_locks else query

    found = fetch(conn, t.built(("edit_read", lock), build), {"mw_ids": [msg_id]})
    return Held(*found[0]) if found else None


def object_runs(conn: Connection, t: Tables, msg_id: int) -> bool:
    """Whether a message of its object runs, so that an instance may have read this one ahead."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        return sa.select(c.msg_id).where(t.among(c.msg_id), t.object_is_running(c))

    return bool(conn.execute(t.built("edit_object_runs", build), {"mw_ids": [msg_id]}).all())


def read_ahead(conn: Connection, t: Tables, ids: Iterable[int]) -> set[int]:
    """Those of the messages that were edited, and are of an object of which one runs."""

    def build() -> sa.Select[Any]:
        c, o, a = t.cols(), OPERATION.of(t).c, AUDIT.of(t).c
        edited: sa.Select[Any] = sa.select(ONE).where(
            a.msg_id == c.msg_id,
            o.op_id == a.op_id,
            o.table_name == t.label,
            o.kind == "edit",
        )
        among = t.among(c.msg_id)
        return sa.select(c.msg_id).where(among, t.object_is_running(c), sa.exists(edited))

    query, found = t.built("edited_ahead", build), set[int]()
    for portion in t.portions(sorted(ids)):
        found |= set(conn.scalars(query, {"mw_ids": portion}))
    return found


def parks(held: Held, names: frozenset[str]) -> bool:
    """Whether an edit leaves a message at -1, since others may have read what changes."""
    if held.status != Status.NEW:
        return False
    ahead = held.object_id is not None and held.unique_key is None
    return "b_topic" in names or ("b_payload" in names and ahead)


def write(
    conn: Connection, t: Tables, msg_id: int, held: Held, params: dict[str, Any], *, at_once: bool
) -> int:
    """Write new values to a message that is locked and still `held`; returns how many were changed.

    params: those of `sent_values`. at_once: it waits for no instant.
    """
    names = frozenset(params)
    parked = parks(held, names)

    def build() -> sa.Update:
        c = t.cols()
        roles = sent_values(t, names) | ({"available_at": sa.null()} if at_once else {})
        if parked:
            roles |= {"status": lit(Status.FAILED), "claimed_by": sa.null()}
        waits = c.status.in_([lit(Status.NEW), lit(Status.FAILED)])
        change = sa.update(t.message).where(t.among(c.msg_id), waits)
        return by_key(t, change.values(t.values(**roles)))

    key = ("edit", names, at_once, parked)
    done = int(conn.execute(t.built(key, build), params | {"mw_ids": [msg_id]}).rowcount)
    after = Status.FAILED if parked else Status(held.status)
    check_written(conn, t, {msg_id: Wanted(after, whole_number(held.tries))}, "the edit")
    return done
