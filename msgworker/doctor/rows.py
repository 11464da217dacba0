"""Rows that no instance claims, rows left at 1, and running rows that the guard would refuse; and
what is recorded beside the messages: the rule, schedules, and the slices of instances."""

from __future__ import annotations

import shlex
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker.counted import few, plural
from msgworker.db import connections
from msgworker.db.catalogue import id_source, is_there, whole_end
from msgworker.db.clock import seconds_since
from msgworker.db.errors import is_overtime, raise_lost
from msgworker.db.types import WholeId
from msgworker.doctor.structure import Finding, Subject, advised, fine, needed
from msgworker.errors import ConfigError
from msgworker.message import State, Status
from msgworker.queries import instances as scopes
from msgworker.queries import remaining
from msgworker.queries.explain import Asked, Facts, Verdict, Waits, World, verdict
from msgworker.queries.instances import instances, live
from msgworker.schedules import Schedule, ticks_of
from msgworker.schema import requirements
from msgworker.schema import rule as rules
from msgworker.schema.apply import has_unknown_status
from msgworker.schema.difference import is_generated, mistyped, ordered_indexes
from msgworker.schema.rule import Rule
from msgworker.store import bounded, slices
from msgworker.store import schedules as store
from msgworker.store.recover import flagged_at, giving_back
from msgworker.store.rows import running_ids
from msgworker.store.schedules import Stored
from msgworker.store.settle import back_to
from msgworker.table.build import OPERATION, SCHEDULE, own_tables, tables_for
from msgworker.table.tables import Need, Tables, key_counts, lit, takes_keys, unique_index_name

# --- Messages left at 1: without an owner, or of dead instances where no other lives.

MOST = 100_000


def held(p: Subject) -> Iterator[Finding]:
    """What is left at 1, what it holds back, and the command that gives it back."""
    t = p.live
    if t is None or not p.is_there(t.lease):
        return
    named = {t.spec.index_name(suffix) for suffix in ("guard", "object")}
    if t.indexes is None or not named <= t.indexes:
        return  # it would read the whole table; the indexes are needed first
    beside = own_tables(t, Need.OPS, Need.FEATURE)
    t = replace(t, missing=frozenset(one.name for one in beside if not p.is_there(one)))
    world = World.read(p.conn, t)
    found: list[Finding] = []
    if _flagged_by(None, world).left_as is Waits.NOBODY:
        found += _of_nobody(p, t)
    holders = [one for one in world.who if one.running]
    dead = [one for one in holders if _flagged_by(one.instance_id, world) is Verdict.ABANDONED]
    if dead:
        count = sum(one.running for one in dead)
        text = (
            f"{plural(count, 'message')} in the hands of the dead ({dead[0].instance_id}, say), "
            "and no instance lives: start one, which gives them back, or "
            f"`msgworker release {shlex.quote(str(dead[0].instance_id))}`"
        )
        found.append(advised("held", text))
    yield from found or [fine("held", "every processing message belongs to a live instance")]


def _flagged_by(owner: str | None, world: World) -> Verdict:
    return verdict(Facts(status=State.PROCESSING, owner=owner), world)


def _of_nobody(p: Subject, t: Tables) -> Iterator[Finding]:
    c = t.cols()
    ids = running_ids(t)
    age: Any = sa.null()
    dated: Any = sa.literal_column("0")
    ages = t.has("claimed_at") or t.has("created_at")
    if ages:
        age = seconds_since(sa.func.min(flagged_at(c)))
        dated = sa.func.count(flagged_at(c))
    query = sa.select(sa.func.count(), dated, age)
    query = query.select_from(ids.join(t.message, ids.c.i == c.msg_id))
    if c.claimed_by is not None:
        query = query.where(c.claimed_by.is_(None))
    count, known, oldest = p.conn.execute(query).one()
    if not count:
        return
    waiting = remaining.left(p.conn, t, Asked(topics=None), most=MOST)
    behind = waiting.by.get(Waits.NOBODY, count) - count
    text = f"{plural(count, 'message')} at 1 without an owner"
    if oldest is not None:
        text += f", the oldest for {float(oldest) / 3600:.1f} h at most"
    if ages and known < count:
        text += f", {'' if known == 0 else f'{count - known:,} of them '}of unknown age"
    text += f", and {plural(behind, 'message')} waiting behind" if behind > 0 else ""
    give = giving_back(dated=known == count)
    text += f": if no foreign consumer works on them any more, {give} gives them back"
    yield advised("held", text)


# --- Rows that no instance claims, and running rows that the guard would refuse.
#
# The table is walked from its newest row on, in windows, as far as the time allows.

SECONDS = 3.0
ROWS = 200_000
"""Rows of a window; a read with a deadline, as of a page, reads FEW_ROWS for FEW_SECONDS."""
FEW_SECONDS = 0.1
FEW_ROWS = 20_000
SHOWN = 1000
USED_UP = 0.9


@dataclass(slots=True)
class _Seen:
    """running: by object, msg_id and owner of its running rows."""

    looked_at: int = 0
    whole: bool = False
    unknown: int = 0
    values: set[Any] = field(default_factory=set)
    running: dict[Any, list[tuple[int, Any]]] = field(default_factory=lambda: defaultdict(list))


def odd(p: Subject) -> list[Finding]:
    """Unknown statuses; and, where no guard is, objects with two running rows."""
    t = p.live
    if t is None or p.as_is is None or mistyped(p.as_is):
        return []
    guarded = t.indexes is not None and t.guard_name in t.indexes
    seen = _walk(p, t, guarded)
    found = []
    if not seen.whole:
        text = f"only the newest {seen.looked_at:,} rows were looked at for odd statuses"
        text += "" if p.limit is None else "; `msgworker doctor` looks at more"
        found.append(advised("rows", text))
    if seen.unknown:
        found.append(_unknown(p, t, seen))
    twice = {key: ids for key, ids in seen.running.items() if len(ids) > 1}
    if twice:
        found.append(_twice(p, t, twice))
    return found or [
        fine("rows", "every status is 0 (new), 1 (processing), 2 (done) or -1 (failed)")
    ]


def keys(p: Subject) -> list[Finding]:
    """Unique keys that several messages hold, so that no index can be made that keeps them unique.
    Of the rows of a key, which one holds it is for those to say who have set it."""
    t = p.live
    if t is None or p.as_is is None or mistyped(p.as_is) or not takes_keys(t):
        return []
    if unique_index_name(t) in (t.indexes or ()):
        return []
    c = t.cols()
    key = p.database.recollated(c["unique_key"])
    query = sa.select(key, sa.func.count()).where(key_counts(t, c)).group_by(key)
    found = p.conn.execute(query.having(sa.func.count() > 1).limit(10)).all()
    if not found:
        return []
    shown = ", ".join(f"'{one}' ({count:,} messages)" for one, count in found)
    text = (
        f"several messages hold one unique key, {shown}: the index that keeps keys unique cannot "
        f"be made; set {c['unique_key'].name} of all but one of each to NULL"
    )
    return [advised("rows", text)]


def fractions(p: Subject) -> list[Finding]:
    """Open messages whose id is no whole number, where the column takes such."""
    t = p.live
    if t is None or p.as_is is None or mistyped(p.as_is):
        return []
    c = t.cols()
    if not isinstance(c.msg_id.type, WholeId):
        return []
    told = sa.cast(c.msg_id, sa.String(60))
    query = sa.select(told).where(t.unfinished(c), sa.func.round(c.msg_id) != c.msg_id)
    found = [str(one) for one in p.conn.scalars(query.order_by(c.msg_id).limit(SHOWN))]
    if not found:
        return []
    text = (
        f"{plural(len(found), 'open row', 'has', 'have')} an id with a fraction "
        f"({', '.join(found[:10])}): such a row is never run, and holds its object back; give it "
        "a whole id"
    )
    return [needed("rows", text)]


def numbers(p: Subject) -> list[Finding]:
    """Whether new messages get higher ids than those that are there: that is their order."""
    t = p.live
    if t is None or p.as_is is None or mistyped(p.as_is):
        return []
    found = [*_numbered(p, t, t.message)]
    if p.is_there(OPERATION.of(t)):
        found += _numbered(p, t, OPERATION.of(t))
    return found or [fine("numbers", "new messages get higher ids than those that are there")]


def _numbered(p: Subject, t: Tables, table: sa.Table) -> Iterator[Finding]:
    (key,) = table.primary_key.columns
    try:
        source = id_source(p.conn, table, key.name)
        highest = requirements.highest_id(p.conn, key)
    except DBAPIError as error:
        if table is t.message:
            raise
        raise_lost(error)
        return  # no right to read it, which other checks say
    end = 2**63 - 1 if t.database.loose_types else whole_end(key.type)
    if source is not None and source.most is not None:
        end = min(end, source.most)
    if highest is not None and highest > end * USED_UP:
        text = f"the highest id is {highest}, and ids end at {end}: no message can be sent then"
        yield advised("numbers", text)
    if source is None:
        return
    on = (p.at(table, key.name), source)
    if source.cycles:
        text = (
            f"the sequence {source.name} begins again at its end (CYCLE): new messages would get "
            "the ids of old ones, and run before those that wait"
        )
        yield advised("numbers", text, p.database.end_ids(*on))
    if source.step < 0:
        text = f"the sequence {source.name} counts down: new messages run before those that wait"
        yield needed("numbers", text)
    elif highest is not None and (text := requirements.behind(source, highest)):
        yield needed("numbers", text, *p.database.advance_ids(*on, highest))


def refused(p: Subject) -> list[Finding]:
    """Messages that the database does not let the live instances flag, as they report."""
    t = p.live
    types = [] if p.as_is is None else requirements.needed(p.as_is)
    if t is None or any(fault.check == "types" for fault in types):
        return []
    reasons: dict[str, str] = {}
    for one in live(instances(p.conn, t)):
        reasons |= one.refused
    if not reasons:
        return []
    shown = ", ".join(sorted(reasons, key=int)[:10])
    text = (
        f"the database does not let messages be flagged, so that they never run (a trigger or a "
        f"CHECK may be why): {shown}: {next(iter(reasons.values()))}"
    )
    return [needed("rows", text)]


def _walk(p: Subject, t: Tables, guarded: bool) -> _Seen:
    seen = _Seen()
    c = t.cols()
    fine_ones = [Status.NEW, Status.DONE, Status.FAILED]
    fine_ones += [Status.PROCESSING] if guarded else []
    strange = has_unknown_status(c, known=fine_ones)
    owner: sa.ColumnElement[Any] = sa.null()
    key: sa.ColumnElement[Any] = sa.null()
    if not guarded:
        owner = sa.null() if c.claimed_by is None else c.claimed_by
        # As the guard compares them.
        fold = None if p.as_is is None or p.as_is.fold == "unknown" else p.as_is.fold
        key = p.database.folded(c.object_id, fold) if fold else t.object_key(c)
    query = sa.select(c.msg_id, key, c.status, owner).where(t.within(c, strange))
    query = query.order_by(c.msg_id.desc())
    top = bounded.MOST
    rows, seconds = (ROWS, SECONDS) if p.limit is None else (FEW_ROWS, FEW_SECONDS)
    deadline = time.monotonic() + seconds
    while not seen.looked_at or time.monotonic() < deadline:
        behind = sa.select(c.msg_id).where(c.msg_id <= sa.literal(top, sa.BigInteger()))
        low = p.conn.scalar(behind.order_by(c.msg_id.desc()).limit(1).offset(rows))
        part = query.where(c.msg_id <= sa.literal(top, sa.BigInteger()))
        if low is not None:
            part = part.where(c.msg_id > sa.literal(int(low), sa.BigInteger()))
        for msg_id, key, status, who in p.conn.execute(part):
            if status == Status.PROCESSING:
                if key is not None:
                    seen.running[key].append((int(msg_id), who))
            else:
                seen.unknown += 1
                seen.values.add(status)
        seen.looked_at += rows
        if low is None:
            seen.whole = True
            return seen
        top = int(low)
    return seen


def _unknown(p: Subject, t: Tables, seen: _Seen) -> Finding:
    shown = ", ".join(sorted("NULL" if v is None else str(v) for v in seen.values)[:10])
    text = (
        f"{plural(seen.unknown, 'row', 'has', 'have')} an unknown status ({shown}), which is never "
        "claimed; the statement makes such rows dead, so that ops can rerun what is to run"
    )
    status = t.cols().status
    known = [value for value in seen.values if value is not None]
    which: list[sa.ColumnElement[bool]] = [status.is_(None)] if None in seen.values else []
    if all(type(value) in (int, str) for value in known):  # no more than what was seen
        which += [status.in_([sa.literal(value) for value in known])] if known else []
    else:
        which = [has_unknown_status(t.cols())]
    tries: sa.ColumnElement[int] = sa.literal_column(str(t.spec.max_tries), sa.Integer())
    dead = t.values(status=lit(Status.FAILED), error_try_times=tries)
    change = sa.update(t.message).where(t.within(t.cols(), sa.or_(*which)))
    return needed("rows", text, p.written(change.values(dead)))


def _twice(p: Subject, t: Tables, twice: dict[Any, list[tuple[int, Any]]]) -> Finding:
    """The statements ask for what was seen: a row that has ended meanwhile stays as it is."""
    later = sorted(one for rows in twice.values() for one in sorted(rows)[1:])[:SHOWN]
    text = (
        f"{plural(len(twice), 'object', 'has', 'have')} more than one running row, which the "
        "guard refuses; make sure that the later ones are not really running, then put them back "
        "to new"
    )
    by_owner: dict[Any, list[int]] = defaultdict(list)
    for msg_id, owner in later:
        by_owner[owner].append(msg_id)
    c = t.cols()
    back = t.values(status=back_to(t), claimed_by=sa.null())
    fixes = []
    for owner, ids in by_owner.items():
        change = sa.update(t.message).where(c.msg_id.in_(ids), c.status == lit(Status.PROCESSING))
        if c.claimed_by is not None:
            theirs = c.claimed_by.is_(None) if owner is None else c.claimed_by == str(owner)
            change = change.where(theirs)
        fixes.append(p.written(change.values(back)))
    return needed("rows", text, *fixes)


# --- The rule of the table beside that of the App, and what another rule has left behind.


def rule(p: Subject) -> list[Finding]:
    """All instances work by the recorded rule; an App with another one is told how to change it"""
    if p.no_rule is not None:
        return [needed("rule", p.no_rule)]
    t = p.live
    if t is None:
        return []
    force = Rule.of(p.spec)
    if p.asked in (None, force):
        return [fine("rule", f"the rule of the table: {force}")]
    assert p.asked is not None
    lacks = p.lacks(t.lease)
    live = rules.living(p.conn, t) if lacks.exists and not lacks.columns else []
    text = (
        f"the rule of the table is {force}, and all work by it; {p.asked} of this App is not "
        f"used. To change it, stop all instances ({len(live)} live), then run `msgworker init-db` "
        "or start one"
    )
    can_count = t.spec.index_name("failed") in (t.indexes or ())
    dying = rules.would_die(p.conn, t, p.asked) if can_count else 0
    if dying:
        text += f"; failed messages that would be dead at once: {dying:,}"
    return [advised("rule", text)]


def legacy(p: Subject) -> list[Finding]:
    """Rows from before msgworker that the first instance would handle."""
    t = p.live
    if t is None or p.as_is is None or mistyped(p.as_is) or p.no_rule is not None:
        return []
    missing = frozenset(own.name for own in own_tables(t) if not p.is_there(own))
    fresh = any(own.name in missing for own in own_tables(t, Need.RUN))
    seconds = SECONDS if p.limit is None else None  # else the connection has its limit
    try:
        with p.another() as conn, connections.deadline(conn, seconds):
            said = rules.legacy(conn, replace(t, missing=missing), untouched=fresh)
    except DBAPIError as error:
        if seconds is None or not is_overtime(error):
            raise
        return []  # it takes too long without an index
    return [advised("rows", said)] if said else []


def left_over(p: Subject) -> Iterator[Finding]:
    """Indexes, and the columns under them, of a rule that no App has."""
    t = p.live
    if t is None or t.indexes is None:
        return
    kinds = {str(c["name"]): c["type"] for c in p.columns.values()}
    ours = {str(index.name) for index in t.message.indexes}
    quote = p.sql_dialect.identifier_preparer.quote
    for other in rules.made_for(p.spec, t.indexes):
        if other in (Rule.of(p.spec), p.asked):
            continue
        theirs = tables_for(other.to(p.spec), p.database, kinds)
        names = [str(index.name) for index in ordered_indexes(theirs.message)]
        old = [name for name in names if name not in ours and name in t.indexes]
        fix = [p.database.drop_index(p.sql_dialect, name, t.message) for name in old]
        fix += [
            f"ALTER TABLE {p.table_name(t.message)} DROP COLUMN {quote(c.name)}"
            for c in theirs.message.c
            if is_generated(c) and c.name in p.columns and c.name not in t.message.c
        ]
        text = f"index {', '.join(old)} is for {other}, which is not the rule: no query uses it"
        yield advised("indexes", text, *fix)


def whole_guard(p: Subject) -> list[Finding]:
    """A guard over all rows, where only some are messages."""
    if p.live is None or not p.live.where:
        return []
    name = p.live.spec.index_name("guard", "")
    if name not in (p.live.indexes or ()):
        return []
    text = (
        f"index {name} forbids two running rows of an object also outside of where=: a row that is "
        "no message may hold messages back; drop it, unless an App without where= uses the table"
    )
    drop = p.database.drop_index(p.sql_dialect, name, p.live.message)
    return [advised("indexes", text, drop)]


# --- Schedules that no instance fires, or that the App declares differently.

LATE_SECONDS = 60.0


def schedules(p: Subject) -> list[Finding]:
    """The table, if the App needs it, and every row."""
    there_is = is_there(p.inspector, SCHEDULE.of(p.ideal))
    if not there_is:
        create = p.create(SCHEDULE.of(p.ideal))
        if there_is is None or p.declared == []:
            return []
        if p.declared is None:
            text = "table msgworker_schedule is missing: nothing can be declared without it"
            return [advised("schedules", text, *create)]
        text = "table msgworker_schedule is missing, and this App declares schedules"
        return [needed("schedules", text, *create)]
    now, rows = store.look(p.conn, p.ideal)
    declared = {one.name: one for one in p.declared or ()}
    found = [one for row in rows for one in _judged(row, now, declared.get(row.name))]
    for row in rows:
        if p.declared is not None and row.name not in declared:
            text = f"schedule {row.name} is in the table, and this App does not declare it"
            fix = f"if no other program does: `msgworker schedules delete {shlex.quote(row.name)}`"
            found.append(advised("schedules", f"{text}; {fix}"))
    if found or not rows:
        return found
    return [fine("schedules", f"{plural(len(rows), 'schedule')}: fired in time, or paused")]


def _judged(row: Stored, now: datetime, one: Schedule | None) -> Iterator[Finding]:
    try:
        ticks_of(row.spec, row.time_zone)
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


def unseen(p: Subject) -> Iterator[Finding]:
    """Shards without an owner, and messages whose instance type no instance has."""
    t = p.live
    if t is None or not p.is_there(t.lease):
        return
    who = scopes.live(instances(p.conn, t))
    if not any(one.scope for one in who):
        return
    for group, counts in scopes.unlike(who).items():
        text = f"members of group {group} have different numbers of shards ({few(counts)})"
        text = f"{text}: messages wait that none of them looks at"
        yield advised("scopes", f"{text}; give each number a group: Partitions(group=...)")
    kept = t.spec.shards
    lost = scopes.unowned(who, kept)
    if lost:
        count = plural(len(lost), "shard", "is", "are")
        text = f"{count} owned by no live member ({few(lost, 10)})"
        yield advised("scopes", f"{text}, as of the last heartbeats: their messages wait")
    apart: dict[tuple[int, ...], list[str]] = {}
    for topic in sorted({topic for one in who for topic in one.topics or ()}):
        able = [one for one in who if one.topics is None or topic in one.topics]
        apart.setdefault(tuple(n for n in scopes.unowned(able, kept) if n not in lost), []).append(
            topic
        )
    apart.pop((), None)
    for shards, topics in apart.items():
        count = plural(len(shards), "shard", "is", "are")
        text = f"{count} owned by live members without a handler for topic {few(topics, 3)}"
        text = f"{text} ({few(shards, 10)}), as of the last heartbeats: its messages wait there"
        yield advised("scopes", f"{text}; give each set of topics a group: Partitions(group=...)")
    for one in who:
        ttl, beat = one.scope.get("ttl"), one.scope.get("heartbeat")
        if isinstance(ttl, int | float) and isinstance(beat, int | float) and ttl < 2.99 * beat:
            text = f"{one.instance_id} renews its shards every {beat:g} s for {ttl:g} s"
            yield advised("scopes", f"{text}: a heartbeat that is late costs them; give it 3")
    flags = {one.scope.get("flag") for one in who}
    if None in flags or not t.has("instance_type"):  # an instance looks at all of them
        return
    types = shlex.join(sorted(map(str, flags)))
    if slices.open_in(p.conn, t, "instance_type", None):
        text = (
            "messages wait without an instance type, and every live instance handles one type only"
        )
        yield advised("scopes", f"{text}: run `msgworker deal {types}`")
    known = slices.open_values(p.conn, t, "instance_type")
    others = sorted(known - flags)
    if others:
        text = f"messages wait whose instance type no live instance has: {', '.join(others[:10])}"
        yield advised("scopes", f"{text}; `msgworker deal {types}` deals them again")
