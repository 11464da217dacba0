"""Which index a database takes for a statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection


def plan_of(conn: Connection, text: str, parameters: Any) -> list[tuple[str, str]]:
    """(how, index) of each access to the message table; how is "scan" where no index is used,
    "whole" where an index is read without a condition on its key. The index of a partition has the
    name of the one over all of them."""
    if conn.dialect.name == "sqlite":
        found = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters)
        return [_sqlite_step(row[3]) for row in found if _sqlite_step(row[3])[0]]
    if conn.dialect.name == "postgresql":
        (found,) = conn.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {text}", parameters).one()
        parts = {part: whole for part, whole in conn.exec_driver_sql(_PARTS)}
        return list(_postgresql_steps(found[0]["Plan"], parts))
    explain = f"EXPLAIN FORMAT=TRADITIONAL {text}"
    found = conn.exec_driver_sql(explain, parameters).mappings().all()
    return [
        (_MYSQL_WAYS.get(row["type"], "index"), str(row["key"]).lower())
        for row in found
        if row["table"] is not None and not str(row["table"]).startswith("<")
    ]


_MYSQL_WAYS = {"ALL": "scan", "index": "whole"}


def _sqlite_step(text: str) -> tuple[str, str]:
    words = text.split()
    if words[0] not in ("SCAN", "SEARCH") or "CONSTANT" in text or "VIRTUAL" in words:
        return "", ""
    if "USING INTEGER PRIMARY KEY" in text:
        return "index", "primary"
    if "INDEX" in words:
        return "whole" if words[0] == "SCAN" else "index", words[words.index("INDEX") + 1].lower()
    if words[1] in ("ring", "w", "g", "q0") or words[1].startswith(("(", "q")):
        return "", ""  # a step over what another step has found
    return "scan", text


_PARTS = (
    "SELECT p.relname, t.relname FROM pg_inherits i JOIN pg_class p ON p.oid = inhrelid"
    " JOIN pg_class t ON t.oid = inhparent"
)
"""Partitions, and their indexes, with what each is a part of."""


def _postgresql_steps(node: dict[str, Any], parts: dict[str, str]) -> Iterator[tuple[str, str]]:
    table = node.get("Relation Name")
    if node["Node Type"] == "Seq Scan" and parts.get(table, table) == "msgworker_message":
        yield "scan", str(node.get("Filter"))
    if "Index Name" in node:
        name = parts.get(node["Index Name"], node["Index Name"])
        how = "index" if "Index Cond" in node else "whole"
        yield how, "primary" if name.endswith(("_pkey", "_message_id")) else name
    for child in node.get("Plans", ()):
        yield from _postgresql_steps(child, parts)
