"""Schedules that no instance fires, or that the App declares differently."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy.exc import DBAPIError

from msgworker import dialects, ticks
from msgworker.counted import plural
from msgworker.dialects import is_overtime
from msgworker.errors import ConfigError
from msgworker.schedules import Schedule
from msgworker.store import schedules as store
from msgworker.store.looking.doctor.finding import Finding, advised, fine, needed
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.schedules import Stored

LATE_SECONDS = 60.0


def schedules(p: Patient) -> list[Finding]:
    """The table, if the App needs it, and every row."""
    there_is = dialects.is_there(p.inspector, store.table(p.ideal))
    if not there_is:
        create = p.create(store.table(p.ideal))
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
        return []  # no right to read, or a column is missing: another check tells
    declared = {one.name: one for one in p.declared or ()}
    found = [one for row in rows for one in _judged(row, now, declared.get(row.name))]
    for row in rows:
        if p.declared is not None and row.name not in declared:
            text = f"schedule {row.name} is in the table, and this App does not declare it"
            mend = f"if no other program does: `msgworker schedules delete {row.name}`"
            found.append(advised("schedules", f"{text}; {mend}"))
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
