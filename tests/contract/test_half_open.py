"""Connections that lead nowhere, of which no side is told; and answers that take long."""

from __future__ import annotations

import ctypes
import os
import socket
import threading

import pytest
import sqlalchemy as sa

from msgworker import App, Context, Message
from msgworker.store import lease
from tests.support.holes import holes
from tests.support.rounds import beat, declared_dead
from tests.support.rows import Table, send
from tests.support.sessions import SLEEP
from tests.support.waiting import until


@pytest.mark.quick("postgresql")
@pytest.mark.requires("network")
def test_handlers_on_half_open_connections_run_again_on_others(app_with):
    """Of the roles and of transactional handlers, while the lease is renewed in time or late."""
    near = app_with()
    table, starts, gate = Table(near), list[int](), threading.Event()
    with holes(near.engine.url) as between:
        app = App(between.url, lease_seconds=2.0, backoff_seconds=0.0)

        @app.handler("t", transactional=True)
        def handle(msg: Message, ctx: Context) -> None:
            starts.append(msg.msg_id)
            assert gate.wait(60)
            ctx.connection.execute(sa.text("SELECT 1"))

        ids = send(near, "a", "b")
        with app.worker(threads=2) as worker:
            worker.start()
            until(lambda: sorted(starts) == ids, "both run")
            between.open()
            gate.set()
            until(lambda: table.statuses == [2, 2], "both are done")
            late = send(near, "c", "d")
            until(lambda: table.statuses == [2] * 4, "the threads are free")
        app.engine.dispose()
    assert set(starts) == {*ids, *late}
    assert table.column("error_try_times") == [0] * 4


@pytest.mark.quick("mariadb")
@pytest.mark.requires("network")
def test_a_handler_s_connection_is_cut_when_its_claim_is_lost(app_with):
    app = app_with(lease_seconds=3.0)
    asked, errors = threading.Event(), list[Exception]()

    @app.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        asked.set()
        try:
            ctx.connection.execute(sa.text(SLEEP[app.engine.dialect.name]))
        except Exception as error:
            errors.append(error)
            raise

    send(app, "a")
    with app.worker(threads=1) as worker:
        worker.start()
        assert asked.wait(60)
        assert worker.instance is not None
        declared_dead(worker.instance)
        until(lambda: errors, "it does not wait for the answer")
        worker.stop(grace=0)


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
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: table.statuses == [2], "it is done")
    assert len(starts) == 1


@pytest.mark.skipif(os.name != "posix", reason="it calls the C library")
def test_a_call_that_keeps_the_gil_for_longer_than_the_lease_is_named(make_app, sqlite, caplog):
    """No thread can renew the lease meanwhile. It is renewed late, unless it was taken over."""
    app = make_app(lease_seconds=1.0)
    app.create_schema()
    table, starts = Table(app), list[int]()

    @app.handler("t")
    def handle(msg: Message) -> None:
        starts.append(msg.msg_id)
        ctypes.PyDLL(None).sleep(2)

    with app.worker(threads=1) as worker:
        worker.start()
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
