"""The guard, the indexes of unfinished and failed rows, and what they are built from."""

from __future__ import annotations

from sqlalchemy.schema import CreateIndex

from msgworker import dialects
from msgworker.store import schema
from msgworker.store.doctor.finding import Finding, fine, needed
from msgworker.store.doctor.patient import Patient

WHY = {
    "guard": "two messages of one object could run at once",
    "object": "claims read finished messages",
    "oldest": "claims read finished messages",
    "due": "retries and delayed messages are looked for among all",
    "failed": "failed messages are looked for among all",
    "group": "tries of a kind are looked for among all",
}


def virtual(p: Patient) -> list[Finding]:
    """Hidden columns that the indexes are on."""
    lacking = [c for c in p.least.message.c if schema.is_virtual(c)]
    lacking = [c for c in lacking if c.name not in p.columns]
    return [
        needed(
            "columns",
            f"virtual column {column.name} is missing: an index needs it",
            p.add(p.least.message, column),
        )
        for column in lacking
    ]


def missing(p: Patient) -> list[Finding]:
    """Every index of ours, on every table of ours that is there."""
    found = []
    for table in (p.least.message, *schema.own_tables(p.least)):
        if not dialects.is_there(p.inspector, table):
            continue
        there = dialects.index_names(p.conn, table)
        for index in schema.ordered_indexes(table):
            name = str(index.name)
            if name.lower() not in there:
                why = WHY[name.rpartition("_")[2]]
                text = f"index {name} is missing: {why}"
                found.append(needed("indexes", text, p.sql(CreateIndex(index))))
    return found or [fine("indexes", "all indexes are there")]


def guard(p: Patient) -> list[Finding]:
    """A guard that is there must guard."""
    table, name = p.least.message, p.least.guard_name
    index = next(i for i in table.indexes if i.name == name)
    broken = {n for n in dialects.invalid_indexes(p.conn, table)}
    found = []
    ours = {str(i.name).lower(): i for i in table.indexes}
    for bad in sorted(broken & set(ours)):
        text = f"index {bad} was not finished: it promises nothing"
        found.append(needed("indexes", text, f"DROP INDEX {bad}", p.sql(CreateIndex(ours[bad]))))
    if dialects.index_is_unique(p.conn, table, name) is False:
        drop = dialects.dropping_index(p.conn.dialect.name, name, p.table_name(table))
        text = f"the guard index {name} is not unique: {WHY['guard']}"
        found.append(needed("indexes", text, drop, p.sql(CreateIndex(index))))
    return found
