"""The version of the schema, recorded beside the rule: a row of `msgworker_lease` that never
expires.

least: the oldest version whose code may work on it. Code of an older one is refused at its start.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker.db import Trouble, connecting, now, now_plus, trouble, writing
from msgworker.errors import SchemaError
from msgworker.schema.rule import NEVER_SECONDS
from msgworker.table import LEAST, NEWEST, Tables

KIND = "schema"
AGAIN_SECONDS = 20.0
"""So long what is to be recorded is read again where the database has rolled back the record."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is recorded."""

    version: int
    least: int


def row_name(t: Tables) -> str:
    """The name of the row."""
    name = f"schema of {t.message.name}"  # no id of an instance has a blank
    if len(name.encode()) <= 64:
        return name
    return f"schema of {hashlib.sha256(t.message.name.encode()).hexdigest()[:40]}"


def read(conn: Connection, t: Tables) -> Recorded | None:
    """The recorded version; None where none is, or what is there is none."""
    row = _row(conn, t)
    return None if row is None else _recorded(row.serves)


def _row(conn: Connection, t: Tables) -> Any:
    c = t.lease.c

    def build() -> sa.Select[Any]:
        return sa.select(c.term, c.serves).where(c.name == bindparam("mw_name"))

    return conn.execute(t.built("schema_version", build), {"mw_name": row_name(t)}).first()


def _recorded(text: str | None) -> Recorded | None:
    try:
        value = json.loads(text or "")
        return Recorded(int(value["version"]), int(value["least"]))
    except (ValueError, KeyError, TypeError):
        return None


def recording(conn: Connection | None, t: Tables) -> sa.Insert | sa.Update | None:
    """The statement that records the version of this package; None where it, or a newer one, is
    recorded. It changes only the row that was read. conn: None where the table is to be made."""
    row, c = None if conn is None else _row(conn, t), t.lease.c
    found = None if row is None else _recorded(row.serves)
    if found is not None and found.version >= NEWEST:
        return None
    named = {"table": t.message.name, "version": NEWEST, "least": LEAST}
    values: dict[str, Any] = {"renewed_at": now(), "serves": json.dumps(named)}
    if row is not None:
        read = sa.literal_column(str(row.term), sa.BigInteger())
        values["term"] = c.term + sa.literal_column("1")
        return sa.update(t.lease).where(c.name == row_name(t), c.term == read).values(values)
    values |= {
        "name": row_name(t),
        "kind": KIND,
        "started_at": now(),
        "expires_at": now_plus(sa.literal(NEVER_SECONDS, sa.Float())),
    }
    return sa.insert(t.lease).values(values)


def record(engine: sa.Engine, t: Tables) -> None:
    """Record the version of tables that are complete, unless it is recorded, or a newer one."""
    until = time.monotonic() + AGAIN_SECONDS
    while True:
        with connecting(engine) as conn:
            statement = recording(conn, t)
        if statement is None:
            return
        try:
            with writing(engine) as conn:
                conn.execute(statement)
        except DBAPIError as error:
            if not may_be_recorded(error, until):
                raise


def may_be_recorded(error: DBAPIError, until: float) -> bool:
    """Whether another program has recorded it first, or may have: on Galera one on another node
    ends our COMMIT like a deadlock. until: in monotonic seconds, when a deadlock is an error."""
    kind = trouble(error)
    return kind is Trouble.RACE or (kind is Trouble.AGAIN and time.monotonic() < until)


def check(conn: Connection, t: Tables) -> None:
    """Raise SchemaError if code of this version may not work on the schema."""
    found = read(conn, t)
    if found is not None and found.least > NEWEST:
        raise SchemaError(
            f"the schema of {t.spec.name} is version {found.version}, on which only code of "
            f"version {found.least} or later may work, and this package knows {NEWEST}: install "
            "the msgworker that has upgraded it, or a later one"
        )
