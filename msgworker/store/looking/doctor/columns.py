"""Checks of tables and columns: they exist, have suitable types, and are filled."""

from __future__ import annotations

from sqlalchemy.schema import CreateIndex

from msgworker import dialects
from msgworker.counted import plural
from msgworker.store.looking.doctor.finding import Finding, advised, fine, needed
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.tables import ddl_script, reflection
from msgworker.store.tables import requirements as store
from msgworker.store.tables.trial import trial
from msgworker.table import (
    ADDED,
    HELD_KEY,
    REQUIRED,
    UNIQUE,
    URGENT,
    URGENT_RANK,
    WITHOUT_TICK,
    WITHOUT_TRACE,
)

WITHOUT = {
    "topic": "every message goes to the handler of topic default",
    "payload": "messages carry nothing but their object",
    "available_at": "no back-off and no delayed messages: a failed message is tried at once",
    "claimed_by": "no recovery: messages of an instance that died stay at 1 until ops reset them",
    "claimed_at": "it is not shown since when a message runs",
    "crash_times": "no quarantine: a message may die for the crashes of others",
    "later_times": "RetryLater counts as a failed try",
    "last_error": "the error is kept in msgworker_try only",
    "created_at": (
        "the age of messages is not shown, and visibility_delay does nothing. If it is added, the "
        "age of the messages that are there stays unknown"
    ),
    "finished_at": "it is not shown when messages ended, and old ones cannot be purged by age",
    "priority": "all messages have the same priority",
    "unique_key": "no message can be sent with a unique key",
    "unique_kept": "no message can be sent with a unique key",
    "scheduled_for": WITHOUT_TICK,
    "headers": WITHOUT_TRACE,
}
INDEXED = {"available_at": "due", "priority": URGENT, "unique_kept": UNIQUE}
HIDDEN = {"priority": URGENT_RANK, "unique_kept": HELD_KEY}
"""The suffixes of the indexes on optional columns."""
WITHOUT_OPS = ": ops cannot write or pause without it"
WITHOUT_FEATURE = {
    "msgworker_limit": ": no handler can have max_running or rate without it",
    "msgworker_history": ": no history for charts is written without it",
    "msgworker_cancel": ": running messages cannot be cancelled without it",
}
NOT_MISSED = ("shard", "instance_type")


def tables(p: Patient) -> list[Finding]:
    """The message table and those beside it."""
    found: list[Finding] = []
    if not p.exists:
        text = f"table {p.spec.name} does not exist"
        mend = p.create(p.ideal.message)
        near = reflection.near_names(p.inspector, p.spec)
        text += f"; near names: {', '.join(near)}" if near else ""
        if other := reflection.elsewhere(p.conn, p.spec):
            text += f"; {other}"
            mend = mend if p.spec.is_default else []  # that one has the messages
        found.append(needed("tables", text, *mend))
    else:
        count = dialects.row_estimate(p.conn, p.ideal.message)
        size = "" if count is None else f", about {plural(count, 'row')}"
        found.append(fine("tables", f"table {p.spec.name} is there{size}"))
    ops, optional = ddl_script.ops_tables(p.ideal), ddl_script.optional_tables(p.ideal)
    for table in ddl_script.own_tables(p.ideal):
        make, cost = (advised, WITHOUT_OPS) if table in ops else (needed, "")
        if table.name in WITHOUT_FEATURE:
            make, cost = advised, WITHOUT_FEATURE[table.name]
        there_is = dialects.is_there(p.inspector, table)
        if there_is is False and table not in optional:
            found.append(make("tables", f"table {table.name} is missing{cost}", *p.create(table)))
        if not there_is:
            continue
        there = p.inspector.get_columns(table.name, schema=table.schema)
        names = {str(c["name"]).lower() for c in there}
        lacking = [c for c in table.c if c.name not in names and ADDED not in c.info]
        if lacking:
            text = f"table {table.name} has no column {', '.join(c.name for c in lacking)}{cost}"
            found.append(make("tables", text, *(p.add(table, c) for c in lacking)))
        for column in (c for c in table.c if c.name not in names and ADDED in c.info):
            text = f"table {table.name} has no column {column.name}: {column.info[ADDED]}"
            found.append(advised("tables", text, p.add(table, column)))
    return found


def storage(p: Patient) -> list[Finding]:
    """A storage engine with transactions."""
    found = []
    for table in (p.ideal.message, *ddl_script.own_tables(p.ideal)):
        if not dialects.is_there(p.inspector, table):
            continue
        kept = reflection.storage_of(p.inspector, table.name, table.schema)
        if reflection.has_no_transactions(kept):
            text = f"table {table.name} is kept in {kept}, which has no transactions"
            mend = f"ALTER TABLE {p.table_name(table)} ENGINE=InnoDB"
            found.append(needed("storage", text, mend))
    return found


def missing(p: Patient) -> list[Finding]:
    """Columns that have a name and are not there."""
    unnamed = [role for role in p.lacking() if role in REQUIRED]
    if unnamed:  # what else is missing can be told when these are known
        there = [str(one["name"]) for one in p.columns.values()]
        return [needed("columns", reflection.unnamed(p.spec, unnamed, there))]
    found = []
    asked_for = reflection.asked_for(p.spec)
    for role in p.lacking():
        column = p.ideal.message.c[p.ideal.names[role]]
        if role in asked_for:
            text = f"column {column.name} ({role}) is missing"
            found.append(needed("columns", text, *p.add_role(role)))
        elif role not in NOT_MISSED:
            text = f"column {column.name} is missing: {WITHOUT[role]}"
            mend = p.add_role(role)
            if role in ("topic", "payload", "created_at"):  # a new one would be empty beside theirs
                used = {name.lower() for name in p.ideal.names.values()}
                there = [str(one["name"]) for one in p.columns.values()]
                free = [name for name in there if name.lower() not in used]
                text += (
                    f". If the table has it under another name, name that: MessageTable({role}=...)"
                    f"; columns without a name here: {', '.join(free) or 'none'}"
                )
            if role in INDEXED:
                index = p.spec.index_name(INDEXED[role])
                on = HIDDEN.get(role)
                hidden = [c for c in p.ideal.message.c if on and c.name.startswith(on)]
                if hidden:
                    mend = [p.add(p.ideal.message, column, *hidden)]
                mend += [p.sql(CreateIndex(i)) for i in p.ideal.message.indexes if i.name == index]
            found.append(advised("columns", text, *mend))
    return found


def requirements(p: Patient) -> list[Finding]:
    """What messages need in order to be neither lost nor stranded; also asked at every start."""
    faults = [] if p.as_is is None else store.faults(p.as_is)
    return [
        (needed if f.needed else advised)(f.check, f.text, *f.mend, detail=f.detail) for f in faults
    ]


def tried(p: Patient) -> list[Finding]:
    """A message is sent, claimed, settled and purged, and all of it is rolled back."""
    if p.live is None or p.as_is is None or store.needed(p.as_is):
        return []  # what is told already would be told again, in words of the database
    with p.another() as conn:
        faults = trial(conn, p.live, p.as_is)
    made = [(needed if f.needed else advised)(f.check, f.text, *f.mend) for f in faults]
    return made or [fine("trial", "a message can be sent, claimed, settled and purged: tried")]


def key(p: Patient) -> list[Finding]:
    """msg_id is unique: rows are updated by it."""
    if not p.has("msg_id") or p.live is None or p.dialect.partitioned:
        return []
    name = str(p.column("msg_id")["name"])
    if reflection.is_unique(p.inspector, p.ideal.message.name, p.spec.schema, name):
        return []
    if p.as_is is None:
        return []
    fault = store.not_unique(p.conn, p.as_is)
    return [needed(fault.check, fault.text, *fault.mend)]


def unfilled(p: Patient) -> list[Finding]:
    """Columns that `send` leaves out although they need a value."""
    if p.live is None:
        return []
    names = reflection.unfilled(p.live.names, list(p.columns.values()))
    if not names:
        return []
    text = (
        f"App.send cannot insert: it does not fill {', '.join(names)}, NOT NULL without a default"
    )
    return [advised("columns", text)]
