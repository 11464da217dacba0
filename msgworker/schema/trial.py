"""A message sent, claimed, settled and purged in a transaction that is rolled back: what the
catalogue does not say about a table, its ids, its triggers and this login.

Nothing of it is ever seen by another session, and no id of the database is used up where the
database counts them: the message brings one of its own, below zero. Triggers do run.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError

from msgworker import db
from msgworker.counted import plural
from msgworker.db import Trouble, reason_of, trouble
from msgworker.message import DEFAULT_TOPIC
from msgworker.schema.describe import FILLED
from msgworker.schema.requirements import ROWS, Column, Fault, Live, error_room, rows_written
from msgworker.store.claim import refuse_at_once
from msgworker.store.send import inserted_values, row_values
from msgworker.table import Tables

CHECK = "trial"
ATTEMPTS = 3
"""Another trial, or a message, may have the id that was chosen."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """The row of the trial. which: the condition that finds it. ours: made by the trial."""

    which: ColumnElement[bool]
    ours: bool


class _Untried(Exception):
    """No row could be made; args: why. refused: this login may not."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


def trial(conn: Connection, t: Tables, live: Live) -> list[Fault]:
    """What would happen to a message on this table. The transaction of `conn`, if it is in one, has
    written nothing; it is rolled back.

    Where no message can be inserted, as with columns that others fill, the newest one is changed
    instead. Raises only for a lost connection or a deadline.
    """
    found: list[Fault] = []
    transaction = conn.get_transaction() or conn.begin()  # a deadline may have been set in one
    try:
        found += _tried(conn, t, live)
    except DBAPIError as error:
        _raise_lost(error)
    finally:
        if transaction.is_active and not conn.invalidated:
            transaction.rollback()
    return found


def _raise_lost(error: DBAPIError) -> None:
    if trouble(error) is Trouble.LOST or db.is_overtime(error):
        raise error


def _tried(conn: Connection, t: Tables, live: Live) -> Iterator[Fault]:
    refuse_at_once(conn, t)
    try:
        sent = _send(conn, t, live)
    except _Untried as untried:
        if not untried.refused:
            text = f"App.send cannot insert into {live.name}: {untried}"
            yield Fault(CHECK, False, text)
        newest = _newest(conn, t)
        if newest is None:
            return
        sent = newest
    else:
        fault = _without_id(conn, t, live, sent) or _unseen(conn, t, live, sent)
        if fault is not None:
            yield fault
            return
    yield from _written(conn, t, live, sent)
    if sent.ours:
        yield from _purged(conn, t, live, sent)


@contextmanager
def _savepoint(conn: Connection) -> Iterator[None]:
    """Errors of a row leave the transaction as it was."""
    with conn.begin_nested():
        yield


def _send(conn: Connection, t: Tables, live: Live) -> _Sent:
    """Insert a message as `App.send` does; raises _Untried."""
    if _lacking_values(t, live):
        raise _Untried("columns that it does not fill", refused=True)  # which another check says
    last: Exception | None = None
    for object_id in (_an_object(t), None):
        for _ in range(ATTEMPTS):
            own = _own_id(live)
            try:
                with _savepoint(conn):
                    return _inserted(conn, t, live, own, object_id)
            except DBAPIError as error:
                _raise_lost(error)
                kind = trouble(error)
                if kind in (Trouble.AGAIN, Trouble.REFUSED):
                    raise _Untried(reason_of(error), refused=True) from None
                last = error
                if not (isinstance(error, IntegrityError) and kind is Trouble.RACE):
                    break
            except (StatementError, TypeError, ValueError) as error:  # a type that takes no text
                last = error
                break
    raise _Untried(reason_of(last) if isinstance(last, DBAPIError) else str(last))


def _lacking_values(t: Tables, live: Live) -> bool:
    """Whether there are columns that neither `App.send` nor a default fills."""
    ours = {t.names[role] for role in FILLED if role in t.names}
    return any(_must_be_given(c) and not c.counts for n, c in live.all.items() if n not in ours)


def _must_be_given(column: Column) -> bool:
    return not column.nullable and column.default is None and not column.generated


def _inserted(conn: Connection, t: Tables, live: Live, own: int | None, object_id: Any) -> _Sent:
    priority = live.columns.get("priority")
    row = row_values(
        t,
        topic=DEFAULT_TOPIC,
        object_id=object_id,
        payload='"trial"',
        delay=None,
        at=None,
        priority=0 if priority is not None and _must_be_given(priority) else None,
    )
    c, ids = t.cols(), t.names["msg_id"]
    values = inserted_values(t, frozenset(row))
    if own is not None:
        values[ids] = own
        conn.execute(sa.insert(t.message).values(values).inline(), row)
        return _Sent(c.msg_id == own, ours=True)
    made = conn.execute(sa.insert(t.message).values(values), row)
    if object_id is not None:
        return _Sent(c.object_id == object_id, ours=True)
    key = made.inserted_primary_key
    if key is None or key[0] is None:
        raise _Untried("its row cannot be told from others without an object", refused=True)
    return _Sent(c.msg_id == key[0], ours=True)


def _own_id(live: Live) -> int | None:
    """An id that the database would not give; None where it must give it, or gives it back."""
    ids = live.columns["msg_id"]
    unsigned = bool(getattr(ids.kind, "unsigned", False))
    if not ids.counts or ids.always or unsigned or live.database.one_writer:
        return None
    return -1 - secrets.randbelow(min(db.whole_end(ids.kind), 1 << 62))


def _an_object(t: Tables) -> Any:
    """An id of an object that has no messages; None for a type of which none can be made up."""
    kind = t.message.c[t.names["object_id"]].type
    if isinstance(kind, sa.String):
        text = f"msgworker-trial-{secrets.token_hex(12)}"
        return text[-kind.length :] if kind.length else text
    if isinstance(kind, db.AnyId | db.KeyText):
        return f"msgworker-trial-{secrets.token_hex(12)}"
    if isinstance(kind, sa.Uuid):
        return uuid.uuid4()
    if isinstance(kind, sa.Integer):
        return 1 + secrets.randbelow(db.whole_end(kind))
    return None


def _newest(conn: Connection, t: Tables) -> _Sent | None:
    """The newest message, if it is not locked; None if there is none."""
    c = t.cols()
    query = sa.select(c.msg_id, c.status).order_by(c.msg_id.desc()).limit(1)
    if t.database.row_locks and not t.database.blocks:  # who takes blocks locks no limited query
        query = query.with_for_update(skip_locked=t.database.skip_locked)
    try:
        with _savepoint(conn):
            found = conn.execute(query).first()
    except DBAPIError as error:
        _raise_lost(error)
        return None  # no right to change it, which other checks say
    if found is None or found[0] is None or found[1] == 1:
        return None
    return _Sent(c.msg_id == found[0], ours=False)


def _without_id(conn: Connection, t: Tables, live: Live, sent: _Sent) -> Fault | None:
    """A row whose id is NULL is found by nothing."""
    ids = live.columns["msg_id"]
    if not ids.nullable or ids.counts:
        return None
    c = t.cols()
    if conn.scalar(sa.select(c.msg_id).where(sent.which)) is not None:
        return None
    if not conn.scalar(sa.select(sa.func.count()).select_from(t.message).where(sent.which)):
        return None
    without = sa.select(sa.func.count()).select_from(t.message).where(c.msg_id.is_(None))
    others = int(conn.scalar(without) or 0) - 1
    text = f"a message that is sent gets no id: column {ids.name} (msg_id) stays NULL, and the "
    text += "message is never handled"
    text += f"; {plural(others, 'row', 'has', 'have')} none" if others > 0 else ""
    mend = () if others > 0 else live.database.set_not_null(live.sql, live.name, ids.name, ids.kind)
    if live.database.loose_types:
        text += ". Create the table again, with INTEGER PRIMARY KEY, or with NOT NULL if all who "
        text += "insert bring an id"
    elif not mend:
        text += ". Give them ids, and make the column NOT NULL"
    return Fault(CHECK, True, text, tuple(mend), "msg_id")


def _unseen(conn: Connection, t: Tables, live: Live, sent: _Sent) -> Fault | None:
    try:
        with _savepoint(conn):
            seen = conn.scalar(sa.select(sa.func.count()).select_from(t.message).where(sent.which))
    except DBAPIError as error:
        _raise_lost(error)
        return None  # no right to read it, which other checks say
    if seen:
        return None
    text = f"a message that is inserted into {live.name} is not there for this login: "
    return Fault(CHECK, True, text + _hidden_by(live))


def _hidden_by(live: Live) -> str:
    """What may keep rows from being seen, or changed, without an error of the database."""
    names = ", ".join(name for name, _ in live.triggers)
    maybe = ["a policy of row-level security"] if live.policies is not None else []
    maybe += [f"a trigger ({names})" if names else "a trigger or a rule"]
    return f"{' or '.join(maybe)} keeps it away"


def _written(conn: Connection, t: Tables, live: Live, sent: _Sent) -> Iterator[Fault]:
    """Each outcome that is written to a message, one after the other, as they come."""
    rows = rows_written(live.spec, error_room(live))
    problems: dict[str, list[str]] = {}
    for name in ("claimed", "released", "failed", "dead", "done"):
        problem = _problem(conn, t, live, sent, rows[name])
        if problem:
            problems.setdefault(problem, []).append(ROWS[name])
    for problem, refused in problems.items():
        text = f"table {live.name} does not take {', '.join(refused)}: {problem}"
        yield Fault(CHECK, True, text, tuple(live.database.identified(conn, live.name, problem)))


def _problem(
    conn: Connection, t: Tables, live: Live, sent: _Sent, row: dict[str, Any]
) -> str | None:
    """Why a message does not become what is written; None if it does, or that is unknown."""
    change = sa.update(t.message).where(sent.which).values(t.values(**row))
    try:
        with _savepoint(conn):
            count = conn.execute(change).rowcount
            if count == 0:
                return f"nothing is changed, without an error: {_hidden_by(live)}"
            status = conn.scalar(sa.select(t.cols().status).where(sent.which))
    except DBAPIError as error:
        _raise_lost(error)
        kind = trouble(error)
        told_otherwise = (Trouble.RACE, Trouble.AGAIN)
        if kind in told_otherwise or (kind is Trouble.REFUSED and live.policies is None):
            return None
        return reason_of(error)
    if status is None or int(status) != row["status"]:
        return f"its status is {status} then: {_hidden_by(live)}"
    return None


def _purged(conn: Connection, t: Tables, live: Live, sent: _Sent) -> Iterator[Fault]:
    try:
        with _savepoint(conn):
            if conn.execute(sa.delete(t.message).where(sent.which)).rowcount:
                return
            reason = f"nothing is deleted, without an error: {_hidden_by(live)}"
    except DBAPIError as error:
        _raise_lost(error)
        if trouble(error) in (Trouble.REFUSED, Trouble.AGAIN):
            return  # only a purge needs the right
        reason = reason_of(error)
    mend = live.database.identified(conn, live.name, reason)
    yield Fault(CHECK, False, f"messages of {live.name} cannot be purged: {reason}", tuple(mend))
