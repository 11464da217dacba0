"""Handlers that cannot be, and what they do to us: own rows, our transaction, their process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import locale
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed

from msgworker import App, ConfigError, Context, HandlerError, Message, RetryLater
from tests.support.apps import created
from tests.support.rows import Table, send


class _Callable:
    def __call__(self, msg: Message, ctx: Context) -> None: ...


async def _async(msg: Message) -> None: ...


def _generator(msg: Message) -> Iterator[int]:
    yield 1


def _swapped(ctx: Context, msg: Message) -> None: ...


BAD_HANDLERS: list[tuple[Any, dict[str, Any]]] = [
    (None, {}),
    ("os:system", {}),
    (7, {}),
    (lambda: None, {}),
    (lambda a, b, c: None, {}),
    (lambda *, msg: None, {}),
    (_generator, {}),
    (_async, {"transactional": True}),
    (lambda msg: None, {"timeout": 0}),
    (lambda msg: None, {"timeout": -1}),
    (lambda msg: None, {"timeout": float("nan")}),
    (lambda msg: None, {"timeout": "5"}),
    (lambda msg: None, {"wait": 5}),
    (lambda msg: None, {"transactional": "yes"}),
    (lambda msg: None, {"transactional": 1}),
    (_swapped, {}),
]


def test_handlers_that_cannot_be_are_refused_at_once(subtests):
    for number, (fn, options) in enumerate(BAD_HANDLERS):
        with subtests.test(number=number, options=options), pytest.raises(HandlerError):
            App("sqlite:///x.db").add_handler("t", fn, **options)


def test_topics_to_choose_that_cannot_be_are_refused_also_where_a_handler_takes_every_one(
    sqlite_app,
):
    sqlite_app.add_handler(None, lambda msg: None)
    for topic in ("\udcff", "", "a\0", 5):
        with pytest.raises(ConfigError, match="topic"):
            sqlite_app.drain(topics=[topic])


def test_handlers_that_can_be():
    app = App("sqlite:///x.db")
    for topic, fn in (
        ("one", lambda msg: None),
        ("two", lambda msg, ctx: None),
        ("more", lambda msg, ctx, more=1: None),
        ("any", lambda *args: None),
        ("named", lambda msg, **more: None),
        ("object", _Callable()),
        ("method", _Callable().__call__),
        ("async", _async),
        ("builtin", print),
        (None, print),
    ):
        app.add_handler(topic, fn)
        with pytest.raises(HandlerError, match="already"):  # a topic has one
            app.add_handler(topic, fn)


class _BadWait:
    def __init__(self, what: Any) -> None:
        self.what = what

    def __call__(self, retry_state: Any) -> Any:
        if isinstance(self.what, type):
            raise self.what
        return self.what


BAD_WAITS = [-1, float("nan"), float("inf"), 10**12, "soon", None, ValueError, SystemExit]


def test_a_wait_strategy_that_fails_costs_only_its_delay(sqlite_app):
    def fail(msg: Message) -> None:
        raise ValueError("x")

    for number, what in enumerate(BAD_WAITS):
        sqlite_app.add_handler(f"t{number}", fail, wait=_BadWait(what))
        send(sqlite_app, None, None, topic=f"t{number}")
    assert sqlite_app.drain(linger=0, threads=1).retried >= 2 * len(BAD_WAITS)
    assert {row[0] for row in Table(sqlite_app).rows("status")} == {-1}


async def _coroutine() -> None: ...


def _returns() -> list[tuple[Any, bool]]:
    """Value, and whether the message is done."""
    loop = asyncio.new_event_loop()
    pending = loop.create_future()
    loop.close()
    return [
        (None, True),
        (False, True),
        (0, True),
        (object(), True),
        ("done", True),
        (_coroutine(), False),
        (_generator(Message(1, None, "t", None)), False),
        (concurrent.futures.Future(), False),
        (pending, False),
    ]


def test_what_a_handler_returns(sqlite_app, caplog):
    values = _returns()

    @sqlite_app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> Any:
        return values[msg.payload][0]

    for i in range(len(values)):
        send(sqlite_app, None, payload=i)
    with caplog.at_level("WARNING", "msgworker"):
        sqlite_app.drain(linger=0, threads=1)
    rows = Table(sqlite_app).rows("status", "last_error")
    assert [row[0] for row in rows] == [2 if done else -1 for _, done in values]
    assert all("HandlerMisuse" in row[1] for row in rows if row[0] == -1)
    assert sum("return values are ignored" in r.getMessage() for r in caplog.records) == 1


def _commit(ctx: Context) -> None:
    ctx.connection.commit()


def _rollback(ctx: Context) -> None:
    ctx.connection.rollback()


def _close(ctx: Context) -> None:
    ctx.connection.close()


def _invalidate(ctx: Context) -> None:
    ctx.connection.invalidate()


def _end_and_begin(ctx: Context) -> None:
    ctx.connection.commit()
    ctx.connection.execute(sa.text("SELECT 1"))


@pytest.mark.parametrize("misuse", [_commit, _rollback, _close, _invalidate, _end_and_begin])
def test_a_handler_that_ends_our_transaction_fails_its_try(app, misuse):
    @app.handler("t", transactional=True, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        if msg.object_id == "bad":
            misuse(ctx)

    send(app, "bad")
    send(app, *["good"] * 3)
    report = app.drain(threads=1, linger=0)
    assert (report.done, report.retried) == (3, 1)
    status, tries, text, owner = Table(app).rows(
        "status", "error_try_times", "last_error", "claimed_by"
    )[0]
    assert (status, tries, owner) == (-1, 1, None)
    # What it did after that, SQLAlchemy may have refused already.
    assert text.split(":")[0] in ("HandlerMisuse", "InvalidRequestError", "PendingRollbackError")


def test_a_savepoint_left_open_is_committed_with_the_rest(app):
    @app.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        ctx.connection.begin_nested()
        if msg.payload is None:
            app.send(ctx.connection, "t", 1, object_id=msg.object_id)

    send(app, "o")
    assert app.drain(linger=0).done == 2


def test_an_sql_error_in_a_transactional_handler_fails_its_try(app):
    @app.handler("t", transactional=True, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        if msg.object_id == "caught":
            with pytest.raises(sa.exc.DBAPIError), ctx.connection.begin_nested():
                ctx.connection.execute(sa.text("SELECT no_such_column FROM msgworker_message"))
        else:
            ctx.connection.execute(sa.text("SELECT no_such_column FROM msgworker_message"))

    send(app, "caught", "not caught")
    report = app.drain(linger=0)
    assert (report.done, report.retried) == (1, 1)
    assert "no_such_column" in Table(app).rows("last_error")[1][0]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_handler_that_sends_to_its_own_object_waits_its_turn(app, transactional):
    order: list[int] = []

    @app.handler("t", transactional=transactional)
    def handle(msg: Message, ctx: Context) -> None:
        order.append(msg.payload)
        if msg.payload < 3:
            if transactional:
                app.send(ctx.connection, "t", msg.payload + 1, object_id=msg.object_id)
            else:
                send(app, msg.object_id, payload=msg.payload + 1)

    send(app, "o", payload=0)
    assert app.drain(threads=2, linger=0).done == 4
    assert order == [0, 1, 2, 3]


def _own(app: App, conn: sa.Connection, msg: Message, status: int | None) -> None:
    m = app.tables.message
    act = sa.delete(m) if status is None else sa.update(m).values(status=status)
    assert conn.execute(act.where(m.c.msg_id == msg.msg_id)).rowcount == 1


@pytest.mark.parametrize("status", [None, 0, 2, -1])
def test_a_handler_that_deletes_or_changes_its_own_row(app, caplog, status):
    ran: list[int] = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        ran.append(msg.msg_id)
        if ran.count(msg.msg_id) == 1:
            with app.engine.begin() as conn:
                _own(app, conn, msg, status)

    ids = send(app, "o", "o")
    with caplog.at_level("WARNING", "msgworker"):
        app.drain(linger=1, threads=1)
    assert any("no longer claimed by us" in record.getMessage() for record in caplog.records)
    assert set(ran) == set(ids)
    expected = {None: [], 0: [2, 2], 2: [2, 2], -1: [2, 2]}[status]
    assert Table(app).statuses == expected


@pytest.mark.parametrize("status", [None, 2])
def test_a_transactional_handler_that_deletes_or_changes_its_own_row(app, status):
    @app.handler("t", transactional=True, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        _own(app, ctx.connection, msg, status)

    send(app, "o", "p")
    report = app.drain(linger=0)
    assert (report.done, report.retried) == (0, 2)
    rows = Table(app).rows("status", "error_try_times", "last_error")
    assert {row[:2] for row in rows} == {(-1, 1)}
    assert "LostClaim" in rows[0][2]


def test_a_retry_later_that_cannot_be_fails_its_try(sqlite_app, subtests):
    bad = [-1, 10**12, float("nan"), float("inf"), "5", None, True, timedelta(-1)]
    for after in bad:
        with subtests.test(after=after), pytest.raises(ConfigError, match="RetryLater"):
            RetryLater(after=after)

    @sqlite_app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        raise RetryLater(after=bad[int(msg.object_id)])

    send(sqlite_app, *range(len(bad)))
    assert sqlite_app.drain(linger=0).retried == len(bad)
    assert ["RetryLater" in text for text in Table(sqlite_app).column("last_error")] == [True] * 8


def test_a_handler_may_change_the_folder_the_locale_and_start_threads(
    tmp_path, monkeypatch, request
):
    """61: a database with a relative path stays the same one; signal handlers are the main
    thread's; a thread that goes on is not waited for."""
    monkeypatch.chdir(tmp_path)
    before = locale.setlocale(locale.LC_ALL)
    request.addfinalizer(lambda: locale.setlocale(locale.LC_ALL, before))
    (tmp_path / "elsewhere").mkdir()
    app = created(App("sqlite:///crm.db", backoff_seconds=0))
    over = threading.Event()
    request.addfinalizer(over.set)
    refused = []

    @app.handler("t")
    def handle(msg):
        os.chdir(tmp_path / "elsewhere")
        locale.setlocale(locale.LC_ALL, "C")
        threading.Thread(target=over.wait, daemon=True).start()
        try:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except ValueError as error:
            refused.append(str(error))

    kept = signal.getsignal(signal.SIGTERM)
    send(app, "a", "a", "b", None)
    assert app.drain(threads=2, linger=0).done == 4
    send(app, "c")
    assert app.drain(threads=2, linger=0).done == 1
    app.engine.dispose()
    assert app.ops.unfinished() == 0
    assert not list((tmp_path / "elsewhere").iterdir())
    assert len(refused) == 5
    assert signal.getsignal(signal.SIGTERM) is kept


def test_a_handler_that_closes_stdout_and_shuts_logging_down_costs_nothing(sqlite_app, monkeypatch):
    """62, in a program of the user's."""
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    handler = logging.StreamHandler(err)
    own = logging.getLogger("msgworker")
    own.addHandler(handler)
    try:

        @sqlite_app.handler("t")
        def handle(msg):
            sys.stdout.close()
            sys.stderr.close()
            logging.shutdown()
            if msg.payload:
                raise ValueError("no")

        send(sqlite_app, "a", "b", "c")
        send(sqlite_app, "d", payload=1)
        report = sqlite_app.drain(threads=2, linger=0)
        assert (report.done, report.retried) == (3, 1)
    finally:
        own.removeHandler(handler)
