"""What is recorded beside the messages: the rule, schedules, and the slices of instances."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy.exc import DBAPIError

from msgworker import db, ticks
from msgworker.counted import plural
from msgworker.db import is_overtime
from msgworker.doctor.inspection import Finding, Patient, advised, fine, needed
from msgworker.errors import ConfigError
from msgworker.queries import instances as scopes
from msgworker.queries.instances import InstanceInfo, instances
from msgworker.schedules import Schedule
from msgworker.schema import rule as rules
from msgworker.schema.difference import is_generated, ordered_indexes
from msgworker.schema.rule import Rule
from msgworker.store import schedules as store
from msgworker.store import shards
from msgworker.store.schedules import Stored
from msgworker.table import SCHEDULE, Tables, tables_for

# --- The rule of the table beside that of the App, and what another rule has left behind.


def rule(p: Patient) -> list[Finding]:
    """All instances work by the recorded rule; an App with another one is shown how to change
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
    lacks = p.lacks(t.lease)
    return bool(lacks.exists) and not lacks.columns


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
    theirs = tables_for(other.to(p.spec), p.database, kinds)
    ours = {str(index.name) for index in t.message.indexes}
    names = [str(index.name) for index in ordered_indexes(theirs.message)]
    old = [name for name in names if name not in ours and name in (t.indexes or ())]
    table = p.table_name(t.message)
    fix = [p.database.drop_index(p.conn.dialect, name, t.message) for name in old]
    made = [c.name for c in theirs.message.c if is_generated(c)]
    fix += [
        f"ALTER TABLE {table} DROP COLUMN {p.conn.dialect.identifier_preparer.quote(name)}"
        for name in made
        if name in p.columns and name not in t.message.c
    ]
    text = f"index {', '.join(old)} is for {other}, which is not the rule: no query uses it"
    return advised("indexes", text, *fix)


# --- Schedules that no instance fires, or that the App declares differently.

LATE_SECONDS = 60.0


def schedules(p: Patient) -> list[Finding]:
    """The table, if the App needs it, and every row."""
    there_is = db.is_there(p.inspector, SCHEDULE.of(p.ideal))
    if not there_is:
        create = p.create(SCHEDULE.of(p.ideal))
        if there_is is None or p.declared == []:
            return []
        if p.declared is None:
            text = "table msgworker_schedule is missing: nothing can be declared without it"
            return [advised("schedules", text, *create)]
        text = "table msgworker_schedule is missing, and this App declares schedules"
        return [needed("schedules", text, *create)]
    try:
        now, rows = store.look(p.conn, p.ideal)
    except DBAPIError as error:
        if is_overtime(error):
            raise
        return []  # no right to read, or a column is missing: another check says so
    declared = {one.name: one for one in p.declared or ()}
    found = [one for row in rows for one in _judged(row, now, declared.get(row.name))]
    for row in rows:
        if p.declared is not None and row.name not in declared:
            text = f"schedule {row.name} is in the table, and this App does not declare it"
            fix = f"if no other program does: `msgworker schedules delete {row.name}`"
            found.append(advised("schedules", f"{text}; {fix}"))
    if found or not rows:
        return found
    return [fine("schedules", f"{plural(len(rows), 'schedule')}: fired in time, or paused")]


def _judged(row: Stored, now: datetime, one: Schedule | None) -> Iterator[Finding]:
    try:
        ticks.read(row.spec, row.time_zone)
    except ConfigError as error:
        yield advised("schedules", f"schedule {row.name} cannot fire: {error}")
        return
    if row.next_at is None:
        yield advised("schedules", f"schedule {row.name} cannot fire: its next_at is no instant")
    elif row.paused_at is None and (now - row.next_at).total_seconds() > LATE_SECONDS:
        text = f"schedule {row.name} is due since {row.next_at.isoformat()}, and no instance fires"
        yield advised("schedules", f"{text} it: run one whose App declares it, or pause it")
    if row.last_at is not None and (row.last_at - now).total_seconds() > LATE_SECONDS:
        text = (
            f"schedule {row.name} was fired for {row.last_at.isoformat()}, which is in the future"
        )
        yield advised("schedules", f"{text}: the clock of the database was put back; it waits")
    if one is not None and (row.spec, row.time_zone) != (one.spec, one.tz):
        text = f"schedule {row.name} is {row.spec} ({row.time_zone}) in the table and {one.spec}"
        yield advised("schedules", f"{text} ({one.tz}) in this App; the start of one changes it")


# --- Slices that no instance looks at.


def unseen(p: Patient) -> list[Finding]:
    """Shards without an owner, and messages whose instance type no instance has."""
    if p.live is None or not db.is_there(p.inspector, p.live.lease):
        return []
    try:
        return list(_found(p, p.live))
    except DBAPIError as error:
        if is_overtime(error):
            raise
        return []  # no right to read, or a column is missing: another check says so


def _found(p: Patient, t: Tables) -> Iterator[Finding]:
    who = scopes.live(instances(p.conn, t))
    if not any(one.scope for one in who):
        return
    lost = scopes.unowned(who)
    if lost:
        some = ", ".join(map(str, lost[:10])) + (", ..." if len(lost) > 10 else "")
        count = plural(len(lost), "shard", "is", "are")
        text = f"{count} owned by no live member ({some})"
        yield advised("scopes", f"{text}, as of the last heartbeats: their messages wait")
    for one in who:
        ttl, beat = one.scope.get("ttl"), one.scope.get("heartbeat")
        if isinstance(ttl, int | float) and isinstance(beat, int | float) and ttl < 2.99 * beat:
            text = f"{one.instance_id} renews its shards every {beat:g} s for {ttl:g} s"
            yield advised("scopes", f"{text}: a heartbeat that is late costs them; give it 3")
    yield from _undealt(p, t, who)


def _undealt(p: Patient, t: Tables, who: list[InstanceInfo]) -> Iterator[Finding]:
    flags = {one.scope.get("flag") for one in who}
    if None in flags or not t.has("instance_type"):  # an instance looks at all of them
        return
    if shards.open_in(p.conn, t, "instance_type", None):
        text = (
            "messages wait without an instance type, and every live instance handles one type only"
        )
        yield advised("scopes", f"{text}: run `msgworker deal {' '.join(sorted(map(str, flags)))}`")
    known = shards.open_values(p.conn, t, "instance_type")
    others = sorted(known - flags)
    if others:
        text = f"messages wait whose instance type no live instance has: {', '.join(others[:10])}"
        yield advised("scopes", f"{text}; `msgworker deal` deals them again")
