"""Schedules of an App, and their rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from msgworker import App
from msgworker.app import setup_of
from msgworker.instance.liveness.schedules import Timer
from msgworker.instance.observers import EventLog
from msgworker.instance.state import Shared
from msgworker.schedules import Cron, Every
from msgworker.store import schedules as store
from msgworker.store.schedules import Stored
from msgworker.table.build import SCHEDULE


def rows(app: App) -> dict[str, Stored]:
    """The rows of the table of schedules, by name."""
    with app.engine.connect() as conn:
        return {one.name: one for one in store.look(conn, app.tables)[1]}


def clock(app: App) -> datetime:
    with app.engine.connect() as conn:
        return store.clock(conn)


def edit_row(app: App, name: str, **columns: Any) -> None:
    """An UPDATE by hand."""
    table = SCHEDULE.of(app.tables)
    change = sa.update(table).where(table.c.name == name).values(**columns)
    with app.engine.begin() as conn:
        assert conn.execute(change).rowcount == 1


def put_back(app: App, name: str, seconds: float) -> datetime:
    """Make a tick due that was to be so many seconds ago; returns it."""
    tick = clock(app).replace(microsecond=0) - timedelta(seconds=seconds)
    edit_row(app, name, next_at=tick, last_at=None)
    return tick


def behind(when: Cron | Every, tick: datetime) -> tuple[datetime, datetime]:
    """The tick that comes after this one and, where that was due meanwhile, the one after it."""
    first = when.after(tick)
    return first, when.after(first)


def timer(app: App, **parts: Any) -> Timer:
    """The role of an instance, not started: `run_once` is a look. parts: of its `Setup`."""
    setup = replace(setup_of(app), **parts)
    shared = Shared(setup)
    EventLog(setup.events, shared.log)
    made = Timer(setup, shared)
    made.register()
    return made


def ticks_of(app: App, topic: str | None = None) -> list[datetime]:
    """The ticks of all messages sent, in their order."""
    t = app.tables
    c = t.cols()
    query = sa.select(c.scheduled_for).order_by(c.msg_id)
    if topic is not None:
        query = query.where(c.topic == topic)
    with app.engine.connect() as conn:
        return list(conn.scalars(query))
