"""Connections that lead nowhere, of which no side is told; and answers that take long."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from msgworker import App, AsyncContext, Context, Message
from msgworker.app import setup_of
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.instance.connections import Connections
from msgworker.instance.liveness import watchdog
from msgworker.instance.liveness.watchdog import Watchdog
from msgworker.instance.state import Shared
from msgworker.store import lease
from tests.support.apps import created
from tests.support.databases import async_url
from tests.support.proxy import Proxy
from tests.support.rounds import beat, declared_dead
from tests.support.rows import Table, send
from tests.support.sessions import SLEEP
from tests.support.waiting import in_thread, launched, until

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


def app_of(url: sa.URL, kind: str, **settings: Any) -> App:
    """Of handlers of this kind."""
    one: Any = url if kind == "sync" else create_async_engine(async_url(url))
    return App(one, backoff_seconds=0.0, **settings)


def runs(app: App, before: Callable[[Message], object], statement: str, kind: str) -> None:
    """A transactional handler that calls `before`, then sends the statement; an async one in a
    task of its own."""
    if kind == "sync":

        @app.handler("t", transactional=True)
        def handle(msg: Message, ctx: Context) -> None:
            before(msg)
            ctx.connection.execute(sa.text(statement))

        return

    @app.handler("t", transactional=True)
    async def handle_async(msg: Message, ctx: AsyncContext) -> None:
        await asyncio.to_thread(before, msg)
        await asyncio.create_task(ctx.connection.execute(sa.text(statement)))


@pytest.mark.quick("postgresql")
@pytest.mark.requires("network")
@KINDS
def test_handlers_on_half_open_connections_run_again_on_others(app_with, kind, monkeypatch):
    """Of the roles and of transactional handlers, while the lease is renewed in time or late."""
    monkeypatch.setattr(watchdog, "LEAST_SECONDS", 2.0)
    near = app_with()
    table, starts, gate = Table(near), list[int](), threading.Event()
    url = near.engine.url.render_as_string(hide_password=False)
    with closing(Proxy.before(url)) as between:
        app = app_of(sa.make_url(between.url_of(url)), kind, lease_seconds=2.0)

        def before(msg: Message) -> None:
            starts.append(msg.msg_id)
            assert gate.wait(60)

        runs(app, before, "SELECT 1", kind)
        ids = send(near, "a", "b")
        with launched(app.worker(threads=2)):
            until(lambda: sorted(starts) == ids, "both run")
            between.strand()
            gate.set()
            until(lambda: table.statuses == [2, 2], "both are done")
            late = send(near, "c", "d")
            until(lambda: table.statuses == [2] * 4, "the threads are free")
        app.engine.dispose()
    assert set(starts) == {*ids, *late}
    assert table.column("error_try_times") == [0] * 4


@pytest.mark.quick("postgresql")
@pytest.mark.requires("network")
def test_a_statement_of_ours_beside_hanging_roles_is_cut(app_with, monkeypatch):
    """As it reads a long payload, say, on a connection that is opened for that."""
    monkeypatch.setattr(watchdog, "LEAST_SECONDS", 0.3)
    app = app_with(lease_seconds=1.0)
    app.add_handler("t", lambda msg: None)
    setup, opened = setup_of(app), threading.Event()
    shared = Shared(setup)

    def ask() -> None:
        with shared.connector.once() as link, link.statement() as conn:
            opened.set()
            conn.execute(sa.text(SLEEP[app.engine.dialect.name]))

    asking = in_thread(ask)
    assert opened.wait(60)
    hangs = Connections(app.engine)
    hangs.busy_since = time.monotonic()
    watch = Watchdog(setup, shared, roles=(), settling=[hangs])
    until(lambda: watch.run_once() and not shared.connector.lent, "it is cut", seconds=30)
    with pytest.raises(DBAPIError) as cut:
        asking()
    assert trouble(cut.value) is Trouble.LOST


@pytest.mark.quick("mariadb")
@pytest.mark.requires("network")
@KINDS
def test_a_handler_s_connection_is_cut_when_its_claim_is_lost(app_with, kind):
    near = app_with()
    app = app_of(near.engine.url, kind, lease_seconds=3.0)
    asked = threading.Event()
    runs(app, lambda msg: asked.set(), SLEEP[app.engine.dialect.name], kind)
    send(near, "a")
    with launched(app.worker(threads=1)) as worker:
        assert asked.wait(60)
        assert worker.instance is not None
        running = worker.instance.shared.in_flight.running
        declared_dead(worker.instance)
        until(lambda: not running, "it does not wait for the answer", seconds=30)
        worker.stop(grace=0)
    app.engine.dispose()


@pytest.mark.long
@pytest.mark.requires("network")
def test_a_statement_of_a_handler_may_take_longer_than_the_lease(app_with):
    app = app_with(lease_seconds=3.0)
    table, starts = Table(app), list[int]()
    sleep = "SELECT pg_sleep(8)" if app.engine.dialect.name == "postgresql" else "SELECT SLEEP(8)"

    @app.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        starts.append(msg.msg_id)
        ctx.connection.execute(sa.text(sleep))

    send(app, "a")
    with launched(app.worker(threads=1)):
        until(lambda: table.statuses == [2], "it is done")
    assert len(starts) == 1


@pytest.mark.skipif(os.name != "posix", reason="it calls the C library")
def test_a_call_that_keeps_the_gil_for_longer_than_the_lease_is_named(make_app, sqlite, caplog):
    """No thread can renew the lease meanwhile. It is renewed late, unless it was taken over."""
    app = created(make_app(lease_seconds=1.0))
    table, starts = Table(app), list[int]()

    @app.handler("t")
    def handle(msg: Message) -> None:
        starts.append(msg.msg_id)
        ctypes.PyDLL(None).sleep(2)

    with launched(app.worker(threads=1)):
        (msg_id,) = send(app, "a")
        until(lambda: table.statuses == [2], "it is done")
        until(lambda: "kept Python's GIL" in caplog.text, "it is told")
    assert starts == [msg_id]
    assert f"by message: {msg_id} (t)" in caplog.text


def test_the_error_of_who_is_declared_dead_while_its_process_runs_names_the_cause(one, app, table):
    send(app, "a", "b")
    table.edit(table.where(object_id="a"), status=1, claimed_by="stuck-1")
    table.edit(table.where(object_id="b"), status=1, claimed_by="gone-1")
    here = {"host": socket.gethostname(), "pid": os.getpid()}
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "stuck-1", ttl=0.0, process=here)
    until(lambda: beat(one) and table.statuses == [-1, -1], "both are recovered")
    stuck, gone = table.column("last_error")
    assert stuck.startswith("instance stuck-1 died while it held this message, or did not renew")
    assert "GIL" in stuck
    assert gone == "instance gone-1 died while it held this message"
