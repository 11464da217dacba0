"""The guard, the indexes of unfinished and failed rows, and what they are built from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex

from msgworker import dialects
from msgworker.counted import plural
from msgworker.store.looking.doctor.finding import Finding, advised, fine, needed
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.tables import additions, ddl_script
from msgworker.table import OWN_PREFIX, SLICES, UNIQUE, URGENT, tables_for

KEY = "key"
WHY = {
    "guard": "two messages of one object could run at once",
    "id": "a message is looked for by its id among all",
    "object": "claims read finished messages",
    "oldest": "claims read finished messages",
    "due": "retries and delayed messages are looked for among all",
    "failed": "failed messages are looked for among all",
    "urgent": "priorities do nothing: messages are claimed by age",
    "unique": "unique keys do nothing: App.send refuses them",
    KEY: "two writes of the API with one Idempotency-Key could both be done",
    "group": "tries of a kind are looked for among all",
    "owner": "an owner's locks are looked for among all",
    "shard": "a scope over shards reads the messages of all others, too",
    "flag": "a scope of one instance reads the messages of all others, too",
}


def partitions(p: Patient) -> list[Finding]:
    """What a table with partitions costs, and what no index there enforces."""
    parts = None if p.as_is is None else p.as_is.partitions
    ids = p.column("msg_id")
    if not parts or ids is None:
        return []
    shown = ", ".join(sorted(parts)[:3]) + (", ..." if len(parts) > 3 else "")
    text = (
        f"{plural(len(parts), 'partition')} by the hash of objects ({shown}): messages are handled "
        "at 0.6 to 0.9 of the speed of one table; no index keeps ids unique, which the identity "
        "does, and none can keep unique keys: App.send refuses them "
        "(docs/project/decisions/013-partitions.md)"
    )
    found = [fine("partitions", text)]
    if not (ids.get("identity") or {}).get("always"):
        quoted = p.conn.dialect.identifier_preparer.quote(ids["name"])
        mend = f"ALTER TABLE {p.table_name(p.ideal.message)} ALTER COLUMN {quoted} SET GENERATED "
        text = (
            f"an INSERT may bring an id of its own for {ids['name']}, and nothing keeps it unique"
        )
        known = ids.get("identity") is not None  # a serial is made anew
        found.append(advised("partitions", text, *([f"{mend}ALWAYS"] if known else [])))
    return found


def _takes_none(p: Patient) -> bool:
    """Whether no index of ours can be on the table as it is, which another check tells."""
    return p.as_is is not None and bool(p.as_is.layouts)


def columns(p: Patient) -> list[Finding]:
    """Hidden columns that the indexes are on."""
    if p.live is None or _takes_none(p):  # they are on columns that are not there, or cannot be
        return []
    lacking = [
        c for c in p.least.message.c if additions.is_generated(c) and c.name not in p.columns
    ]
    if not lacking:
        return []
    names = ", ".join(column.name for column in lacking)
    text = f"generated columns that indexes are on are missing: {names}"
    return [needed("columns", text, p.add(p.least.message, *lacking), detail=_copies(p))]


def not_stored(p: Patient) -> list[Finding]:
    """Hidden columns that are VIRTUAL but should be stored."""
    if not p.dialect.stored_columns:
        return []
    ours = [c for c in p.least.message.c if additions.is_generated(c)]
    found = [c for c in ours if _is_virtual(p.columns.get(c.name))]
    if not found:
        return []
    names = ", ".join(column.name for column in found)
    text = f"columns {names} are VIRTUAL: a crash of the server may leave their indexes corrupted"
    return [advised("columns", text, _make_stored(p, found), detail=_copies(p))]


def _is_virtual(described: Any) -> bool:
    computed = (described or {}).get("computed")
    return computed is not None and not computed.get("persisted")


def _copies(p: Patient) -> str | None:
    return "the table is copied; writers wait meanwhile" if p.dialect.stored_columns else None


def _make_stored(p: Patient, columns: list[sa.Column[Any]]) -> str:
    """One statement, so that the guard is never away."""
    table = p.least.message
    there = dialects.index_names(p.conn, table)
    on_them = [
        index
        for index in additions.ordered_indexes(table)
        if str(index.name).lower() in there and any(c.name in index.columns for c in columns)
    ]
    quote = p.conn.dialect.identifier_preparer.quote
    parts = [f"DROP INDEX {quote(str(index.name))}" for index in on_them]
    parts += [f"DROP COLUMN {quote(column.name)}" for column in columns]
    for index in on_them:
        made = p.sql(CreateIndex(index)).removeprefix("CREATE ")
        parts.append("ADD " + made.replace(f" ON {p.table_name(table)}", "", 1))
    adding = p.add(table, *columns)
    return ", ".join([adding, *parts])


def other_collation(p: Patient) -> list[Finding]:
    """Hidden columns that compare ids in another way than the column of the ids."""
    if p.live is None or p.live.key_collation is None:
        return []
    kinds = {
        c["name"]: c["type"] for name, c in p.columns.items() if not name.startswith(OWN_PREFIX)
    }
    least = replace(p, least=tables_for(p.spec, p.dialect, kinds))
    ours = [c for c in least.least.message.c if additions.is_generated(c) and c.name in p.columns]
    text = (
        f"ids are told apart by {p.live.key_collation} here, while the database takes more of them "
        "for one: such objects (upper and lower case, say) run side by side"
    )
    return [advised("columns", text, _make_stored(least, ours), detail=_copies(p))]


def missing(p: Patient) -> list[Finding]:
    """Every index of ours, on every table of ours that is there."""
    if p.live is None:  # what they are on is not there
        return []
    found = []
    for table in (p.least.message, *ddl_script.own_tables(p.least)):
        if table is p.least.message and _takes_none(p):
            continue
        if not dialects.is_there(p.inspector, table):
            continue
        there = dialects.index_names(p.conn, table)
        for index in additions.ordered_indexes(table):
            name = str(index.name)
            if name.lower() not in there:
                suffix = name.rpartition("_")[2]
                text = f"index {name} is missing: {WHY[suffix]}"
                make = advised if suffix in (*SLICES.values(), URGENT, UNIQUE, KEY) else needed
                found.append(make("indexes", text, p.sql(CreateIndex(index))))
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
        drop = dialects.dropping_unfinished(p.conn, table, str(ours[bad].name))
        found.append(needed("indexes", text, drop, p.sql(CreateIndex(ours[bad]))))
    if dialects.index_is_unique(p.conn, table, name) is False:
        drop = dialects.dropping_index(p.conn.dialect, name, table)
        text = f"the guard index {name} is not unique: {WHY['guard']}"
        found.append(needed("indexes", text, drop, p.sql(CreateIndex(index))))
    return found
