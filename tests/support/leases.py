"""Leases read from outside, and instances that are dead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from msgworker import App, Worker
from msgworker.store import lease
from tests.support.rows import Table
from tests.support.waiting import until


def leases(app: App) -> dict[str, lease.Lease]:
    """Those of instances, by their ids."""
    with app.engine.connect() as conn:
        return {found.name: found for found in lease.read_all(conn, app.tables)}


def registered(app: App, name: str, *, ttl: float = 600.0, **options: Any) -> None:
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, name, ttl=ttl, **options)


def renewed(app: App, name: str) -> None:
    """Wait until a live instance has renewed its lease twice: without a beat for so long it would
    trust it no more."""

    def term() -> int:
        with app.engine.connect() as conn:
            return next(one.term for one in lease.read_all(conn, app.tables) if one.name == name)

    first = term()
    until(lambda: term() >= first + 2, "it is renewed")


def dead_holds(
    app: App, table: Table, name: str = "dead-1", *, where: Any = None, **equal: Any
) -> None:
    """Rows flagged by an instance whose lease has expired."""
    where = table.where(**equal) if equal else where
    table.edit(where, status=1, claimed_by=name)
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, name, ttl=30.0)
        past = datetime.now(UTC) - timedelta(hours=1)
        theirs = app.tables.lease.c.name == name
        conn.execute(sa.update(app.tables.lease).where(theirs).values(expires_at=past))


def beats(app: App) -> int:
    """How often the only lease was renewed."""
    with app.engine.connect() as conn:
        c = app.tables.lease.c
        return int(conn.scalar(sa.select(c.term).where(c.kind == "instance")) or 0)


def beat_now(worker: Worker) -> None:
    """Its heartbeat and its housekeeper do not wait for their next round."""
    assert worker.instance is not None
    worker.instance.heartbeat.wake()
    worker.instance.housekeeper.wake()
