"""Rows that no instance claims, and running rows that the guard would refuse.

The table is walked from its newest row on, in windows, as far as the time allows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker import dialects
from msgworker.counted import plural
from msgworker.dialects import Trouble, WholeId, trouble
from msgworker.message import Status
from msgworker.store.looking import window
from msgworker.store.looking.doctor.finding import Finding, advised, fine, needed
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.looking.instances import Life, instances
from msgworker.store.tables import requirements, schema
from msgworker.table import Tables

SECONDS = 3.0
ROWS = 200_000
"""Rows of a window; a look with a deadline, as of a page, goes over FEW_ROWS for FEW_SECONDS."""
FEW_SECONDS = 0.1
FEW_ROWS = 20_000
SHOWN = 1000
USED_UP = 0.9


@dataclass(slots=True)
class _Seen:
    looked_at: int = 0
    whole: bool = False
    unknown: int = 0
    values: set[Any] = field(default_factory=set)
    running: dict[Any, list[int]] = field(default_factory=lambda: defaultdict(list))


def odd(p: Patient) -> list[Finding]:
    """Unknown statuses; and, where no guard is, objects with two running rows."""
    t = p.live
    if t is None or p.as_is is None or requirements.mistyped(p.as_is):
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


def fractions(p: Patient) -> list[Finding]:
    """Open messages whose id is no whole number, where the column takes such."""
    t = p.live
    if t is None or p.as_is is None or requirements.mistyped(p.as_is):
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


def numbers(p: Patient) -> list[Finding]:
    """Whether new messages get higher ids than those that are there: that is their order."""
    t = p.live
    if t is None or p.as_is is None or requirements.mistyped(p.as_is):
        return []
    c = t.cols()
    highest = p.conn.scalar(sa.select(sa.func.max(c.msg_id)))
    if not isinstance(highest, int):
        return []
    found, end = [], _end(t, c.msg_id.type)
    if highest > end * USED_UP:
        text = f"the highest id is {highest}, and ids end at {end}: no message can be sent then"
        found.append(advised("numbers", text))
    source = dialects.id_source(p.conn, t.message, t.names["msg_id"])
    if source is not None and source.cycles:
        text = (
            f"the sequence {source.name} begins again at its end (CYCLE): new messages would get "
            "the ids of old ones, and run before those that wait"
        )
        found.append(advised("numbers", text, f"ALTER SEQUENCE {source.name} NO CYCLE"))
    if source is not None and source.last is not None and source.last < highest:
        text = (
            f"the sequence {source.name} stands at {source.last}, but there are ids up to "
            f"{highest}: new messages run before those, or cannot be sent"
        )
        restart = f"ALTER SEQUENCE {source.name} RESTART WITH {highest + 1}"
        found.append(advised("numbers", text, restart))
    return found or [fine("numbers", "new messages get higher ids than those that are there")]


def _end(t: Tables, kind: Any) -> int:
    """The highest id of a column of whole numbers."""
    small = not t.dialect.loose_types and not isinstance(kind, sa.BigInteger)
    bits = 15 if isinstance(kind, sa.SmallInteger) else 31
    if not small or not isinstance(kind, sa.Integer):
        bits = 63
    return int(2 ** (bits + bool(getattr(kind, "unsigned", False)))) - 1


def refused(p: Patient) -> list[Finding]:
    """Messages that the database does not let the living instances flag, as they tell."""
    t = p.live
    types = [] if p.as_is is None else requirements.needed(p.as_is)
    if t is None or any(fault.check == "types" for fault in types):
        return []
    try:
        known = instances(p.conn, t)
    except DBAPIError as error:
        if trouble(error) is not Trouble.REFUSED:
            raise
        return []  # the lease table is not as it should be, which others tell
    reasons: dict[str, str] = {}
    for one in known:
        if one.life is Life.LIVE and one.other_table is None:
            reasons |= one.refused
    if not reasons:
        return []
    shown = ", ".join(sorted(reasons, key=int)[:10])
    text = (
        f"the database does not let messages be flagged, so that they never run (a trigger or a "
        f"CHECK may be why): {shown}: {next(iter(reasons.values()))}"
    )
    return [needed("rows", text)]


def _walk(p: Patient, t: Tables, guarded: bool) -> _Seen:
    seen = _Seen()
    c = t.cols()
    fine_ones = [Status.NEW, Status.DONE, Status.FAILED]
    fine_ones += [Status.PROCESSING] if guarded else []
    strange = schema.has_unknown_status(c, known=fine_ones)
    query = sa.select(c.msg_id, c.object_id, c.status).where(strange).order_by(c.msg_id.desc())
    top = window.MOST
    rows, seconds = (ROWS, SECONDS) if p.limit is None else (FEW_ROWS, FEW_SECONDS)
    deadline = time.monotonic() + seconds
    while not seen.looked_at or time.monotonic() < deadline:
        behind = sa.select(c.msg_id).where(c.msg_id <= sa.literal(top, sa.BigInteger()))
        low = p.conn.scalar(behind.order_by(c.msg_id.desc()).limit(1).offset(rows))
        part = query.where(c.msg_id <= sa.literal(top, sa.BigInteger()))
        if low is not None:
            part = part.where(c.msg_id > sa.literal(int(low), sa.BigInteger()))
        for msg_id, object_id, status in p.conn.execute(part.limit(10 * SHOWN)):
            if status == Status.PROCESSING:
                if object_id is not None:
                    seen.running[object_id].append(int(msg_id))
            else:
                seen.unknown += 1
                seen.values.add(status)
        seen.looked_at += rows
        if low is None:
            seen.whole = True
            return seen
        top = int(low)
    return seen


def _unknown(p: Patient, t: Tables, seen: _Seen) -> Finding:
    shown = ", ".join(sorted("NULL" if v is None else str(v) for v in seen.values)[:10])
    quote = p.conn.dialect.identifier_preparer.quote
    status, tries = quote(t.names["status"]), quote(t.names["error_try_times"])
    text = (
        f"{plural(seen.unknown, 'row', 'has', 'have')} an unknown status ({shown}), which is never "
        "claimed; the statement makes such rows dead, so that ops can rerun what is to run"
    )
    mend = (
        f"UPDATE {p.table_name(t.message)} SET {status} = -1, {tries} = {t.spec.max_tries} "
        f"WHERE {status} NOT IN (-1, 0, 1, 2) OR {status} IS NULL"
    )
    return needed("rows", text, mend)


def _twice(p: Patient, t: Tables, twice: dict[Any, list[int]]) -> Finding:
    later = sorted(i for ids in twice.values() for i in sorted(ids)[1:])[:SHOWN]
    quote = p.conn.dialect.identifier_preparer.quote
    changes = [f"{quote(t.names['status'])} = 0"]
    if t.has("claimed_by"):
        changes.append(f"{quote(t.names['claimed_by'])} = NULL")
    text = (
        f"{plural(len(twice), 'object', 'has', 'have')} more than one running row, which the "
        "guard refuses; make sure that the later ones are not really running, then put them back "
        "to new"
    )
    ids = ", ".join(map(str, later))
    mend = (
        f"UPDATE {p.table_name(t.message)} SET {', '.join(changes)} "
        f"WHERE {quote(t.names['msg_id'])} IN ({ids})"
    )
    return needed("rows", text, mend)
