"""The rule of the table beside that of the App, and what another rule has left behind."""

from __future__ import annotations

from msgworker import dialects
from msgworker.store.looking.doctor.finding import Finding, advised, fine, needed
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.tables import additions
from msgworker.store.tables import rule as rules
from msgworker.store.tables.rule import Rule
from msgworker.table import Tables, tables_for


def rule(p: Patient) -> list[Finding]:
    """All instances work by the recorded rule; an App with another one is told how to change
    it."""
    if p.no_rule is not None:
        return [needed("rule", p.no_rule)]
    t = p.live
    if t is None:
        return []
    force = Rule.of(p.spec)
    if p.asked in (None, force):
        return [fine("rule", f"the rule of the table: {force}")]
    assert p.asked is not None
    live = rules.living(p.conn, t) if _has_leases(p, t) else []
    text = (
        f"the rule of the table is {force}, and all work by it; {p.asked} of this App is not "
        f"used. To change it, stop all instances ({len(live)} live), then run `msgworker init-db` "
        "or start one"
    )
    dying = rules.would_die(p.conn, t, p.asked) if _can_count(t) else 0
    if dying:
        text += f"; failed messages that would be dead at once: {dying:,}"
    return [advised("rule", text)]


def _has_leases(p: Patient, t: Tables) -> bool:
    if not dialects.is_there(p.inspector, t.lease):
        return False
    found = p.inspector.get_columns(t.lease.name, schema=t.lease.schema)
    return {c.name for c in t.lease.c} <= {str(c["name"]).lower() for c in found}


def _can_count(t: Tables) -> bool:
    """Whether what the index of failed rows stands on is there."""
    return t.indexes is not None and t.spec.index_name("failed") in t.indexes


def left_over(p: Patient) -> list[Finding]:
    """Indexes, and the columns under them, of a rule that no App has."""
    if p.live is None or p.live.indexes is None:
        return []
    used = {Rule.of(p.spec), *([p.asked] if p.asked else [])}
    others = [one for one in rules.made_for(p.spec, p.live.indexes) if one not in used]
    return [_left_by(p, p.live, one) for one in others]


def _left_by(p: Patient, t: Tables, other: Rule) -> Finding:
    kinds = {str(c["name"]): c["type"] for c in p.columns.values()}
    theirs = tables_for(other.to(p.spec), p.dialect, kinds)
    ours = {str(index.name) for index in t.message.indexes}
    names = [str(index.name) for index in additions.ordered_indexes(theirs.message)]
    old = [name for name in names if name not in ours and name in (t.indexes or ())]
    table = p.table_name(t.message)
    mend = [dialects.dropping_index(p.conn.dialect, name, t.message) for name in old]
    made = [c.name for c in theirs.message.c if additions.is_generated(c)]
    mend += [
        f"ALTER TABLE {table} DROP COLUMN {p.conn.dialect.identifier_preparer.quote(name)}"
        for name in made
        if name in p.columns and name not in t.message.c
    ]
    text = f"index {', '.join(old)} is for {other}, which is not the rule: no query uses it"
    return advised("indexes", text, *mend)
