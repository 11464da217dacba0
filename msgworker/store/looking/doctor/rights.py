"""What this login may do, tried with statements that match no row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker import dialects
from msgworker.dialects import Trouble, is_overtime, reason_of, trouble
from msgworker.store.looking.doctor.finding import Finding, advised, fine, needed
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.tables import ddl_script, requirements

NEVER = sa.literal_column("1") == sa.literal_column("0")


def rights(p: Patient) -> list[Finding]:
    """SELECT, UPDATE on messages; all four on the tables beside; INSERT for producers."""
    found: list[Finding] = []
    whom = _whom(p)
    with p.another() as conn:
        for table, right, statement, is_needed in _trials(p):
            reason = _refused(conn, statement)
            if reason is None:
                continue
            mend = [f"GRANT {right} ON {p.table_name(table)} TO {whom}"] if whom else []
            text = f"this login may not {right} on {table.name}: {reason}"
            told = needed if is_needed else advised
            found.append(told("rights", text, *mend))
        found += _headers(p, conn, whom)
        runs = ddl_script.run_tables(p.ideal)
        beside = (*ddl_script.ops_tables(p.ideal), *ddl_script.feature_tables(p.ideal))
        for tables, is_run in ((runs, True), (beside, False)):
            policies = dialects.policies_of(conn, p.dialect.name, tables)
            for fault in requirements.of_own_policies(policies):
                told = needed if fault.needed and is_run else advised
                found.append(told("rights", fault.text))
    return found or [fine("rights", f"{whom or 'this process'} may read and write all it needs to")]


def _trials(p: Patient) -> Iterator[tuple[sa.Table, str, Any, bool]]:
    if p.live is not None:
        message, c = p.live.message, p.live.cols()
        yield message, "SELECT", sa.select(c.msg_id).where(NEVER), True
        change = sa.update(message).values({p.live.names["status"]: c.status})
        yield message, "UPDATE", change.where(NEVER), True
        yield message, "INSERT", _copy(message, [p.live.names["object_id"]]), bool(p.declared)
    runs = ddl_script.run_tables(p.ideal)
    beside = (*ddl_script.ops_tables(p.ideal), *ddl_script.feature_tables(p.ideal))
    for table in (*runs, *beside):
        is_needed = table in runs
        there_is = dialects.is_there(p.inspector, table)
        first = next(iter(table.c))
        if there_is is False or (there_is and not _has(p, table, first.name)):
            continue
        yield table, "SELECT", sa.select(first).where(NEVER), is_needed
        yield table, "INSERT", _copy(table, [first.name]), is_needed
        yield table, "UPDATE", sa.update(table).values({first: first}).where(NEVER), is_needed
        yield table, "DELETE", sa.delete(table).where(NEVER), is_needed


def _headers(p: Patient, conn: Connection, whom: str | None) -> Iterator[Finding]:
    """Where rights are given for single columns: a traced login that may send, but without headers,
    is refused each send."""
    if p.live is None or not (p.traced and p.has("headers")):
        return
    message, names = p.live.message, p.live.names
    headers, quote = names["headers"], p.conn.dialect.identifier_preparer.quote

    def insert(role: str) -> Any:
        nothing = sa.select(sa.literal_column("1").label("a")).subquery("n")
        chosen = sa.select(sa.null()).select_from(nothing).where(NEVER)
        return sa.insert(message).from_select([names[role]], chosen, include_defaults=False)

    def update(role: str) -> Any:
        return sa.update(message).values({names[role]: sa.null()}).where(NEVER)

    for right, statement, role, what in (
        ("INSERT", insert, "object_id", "each send"),
        ("UPDATE", update, "unique_key", 'on_duplicate="replace"'),
    ):
        if role not in names or _refused(conn, statement(role)) is not None:
            continue  # it does not send
        reason = _refused(conn, statement("headers"))
        if reason is not None:
            text = f"tracing is on, and this login may not {right} {message.name}.{headers}: "
            mend = f"GRANT {right} ({quote(headers)}) ON {p.table_name(message)} TO {whom}"
            yield needed("rights", f"{text}{what} is refused: {reason}", *([mend] if whom else []))


def _has(p: Patient, table: sa.Table, column: str) -> bool:
    there = p.inspector.get_columns(table.name, schema=table.schema)
    return column in {str(c["name"]).lower() for c in there}


def _copy(table: sa.Table, names: list[str]) -> Any:
    """An INSERT that inserts nothing."""
    source = sa.select(*(table.c[name] for name in names)).where(NEVER)
    return sa.insert(table).from_select(names, source, include_defaults=False)


def _refused(conn: Connection, statement: Any) -> str | None:
    """The database's words if the statement is refused; it changes nothing and is rolled back."""
    try:
        conn.execute(statement)
        return None
    except DBAPIError as error:
        kind = trouble(error)
        if kind is Trouble.LOST or is_overtime(error):
            raise
        return reason_of(error) if kind is Trouble.REFUSED else None
    finally:
        conn.rollback()


def _whom(p: Patient) -> str | None:
    query = dialects.CURRENT_USER.get(p.dialect.name)
    return None if query is None else str(p.conn.scalar(sa.text(query)))
