"""A failure's traceback: in the log record, with its try, and nowhere for longer than needed."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, Context, Message, Reject, RetryLater
from msgworker.doctor import Severity
from msgworker.instance import state
from msgworker.store.tries import Try
from tests.support.rows import Table, send


def inner(text: str) -> Any:
    return json.loads(text)


def outer(msg: Message[Any], ctx: Context) -> None:
    try:
        inner("{")
    except ValueError as error:
        raise RuntimeError("no account 17") from error


async def later(msg: Message[Any], ctx: Context) -> None:
    await asyncio.sleep(0)
    outer(msg, ctx)


def tries_of(app: App, msg_id: int) -> tuple[Try, ...]:
    info = app.ops.show(msg_id)
    assert info is not None
    return info.tries


def told(caplog: pytest.LogCaptureFixture, words: str) -> list[logging.LogRecord]:
    return [r for r in caplog.records if words in r.getMessage() and hasattr(r, "msg_id")]


def drained(app: App, fn: Callable[..., Any], **options: Any) -> int:
    """One message that `fn` has handled until nothing was due."""
    app.add_handler("t", fn, wait=wait_none(), **options)
    (msg_id,) = send(app, "a")
    app.drain(linger=1, threads=1)
    return int(msg_id)


# ---------------------------------------------------------------- log


@pytest.mark.parametrize(
    ("fn", "options"), [(outer, {}), (outer, {"transactional": True}), (later, {})]
)
def test_the_log_record_of_a_failed_try_has_the_error_with_its_traceback(app, caplog, fn, options):
    caplog.set_level("INFO")
    drained(app, fn, **options)
    # By its error: a handler of an earlier test may end only now.
    error = "RuntimeError: no account 17"
    retries, deaths = told(caplog, f" failed: {error}"), told(caplog, f" is dead: {error}")
    assert [r.levelname for r in retries + deaths] == ["INFO", "INFO", "WARNING"]
    for record in retries + deaths:
        kind, error, trace = record.exc_info
        assert kind is RuntimeError
        assert (str(error), type(error.__cause__)) == ("no account 17", json.JSONDecodeError)
        first = trace.tb_frame.f_code.co_name
        assert first == fn.__name__  # nothing of ours before it
        assert error.__traceback__ is trace


def test_wishes_of_a_handler_have_no_traceback_in_the_log(app, caplog):
    def reject(msg: Message[Any]) -> None:
        raise Reject("not ours")

    def again(msg: Message[Any]) -> None:
        raise RetryLater(after=600)

    caplog.set_level("DEBUG")
    app.add_handler("r", reject)
    app.add_handler("l", again)
    first, second = send(app, "a", topic="r") + send(app, "b", topic="l")
    app.drain(linger=0, threads=1)
    # By topic too: a handler of an earlier test may end only now, and its message had the same id.
    ours = {(first, "r"), (second, "l")}
    records = [
        r for r in caplog.records if (getattr(r, "msg_id", None), getattr(r, "topic", None)) in ours
    ]
    assert records
    assert [r for r in records if r.exc_info] == []
    (one,) = tries_of(app, first)
    assert one.error == "rejected: not ours"
    assert one.traceback.startswith(f'  File "{__file__}", line ')  # its place is enough
    assert one.traceback.endswith('in reject\n    raise Reject("not ours")')
    assert tries_of(app, second) == ()


def test_a_timeout_has_what_the_handler_raised_as_its_cause(app, caplog):
    def slow(msg: Message[Any]) -> None:
        time.sleep(0.1)
        raise KeyError("slow")

    msg_id = drained(app, slow, timeout=0.05)
    (record,) = told(caplog, " is dead: ")
    error = record.exc_info[1]
    assert "timeout" in str(error)
    assert isinstance(error.__cause__, KeyError)
    assert 'raise KeyError("slow")' in tries_of(app, msg_id)[-1].traceback


def test_a_timeout_of_an_async_handler_has_no_place_in_a_library(app, caplog):
    async def slow(msg: Message[Any]) -> None:
        await asyncio.sleep(30)

    (*_, last) = tries_of(app, drained(app, slow, timeout=0.05))
    assert last.error == "HandlerTimeout: timeout: the handler ran longer than 0.05 s"
    assert last.traceback is None
    assert all(r.exc_info for r in told(caplog, " is dead: "))


@pytest.fixture
def broken_log() -> Iterator[list[int]]:
    """A filter that fails on every record about a failure."""
    calls: list[int] = []

    def refuse(record: logging.LogRecord) -> bool:
        if record.exc_info:
            calls.append(1)
            raise ValueError("the log is broken")
        return True

    log = logging.getLogger("msgworker.instance")
    log.addFilter(refuse)
    yield calls
    log.removeFilter(refuse)


def test_a_log_that_fails_costs_no_outcome(app, table, broken_log, caplog):
    caplog.set_level("INFO")
    drained(app, outer)
    assert len(broken_log) == 3
    assert table.rows("status", "error_try_times") == [(-1, 3)]


class Kept(Exception):
    """One that can be referred to weakly."""


@pytest.mark.long
def test_an_error_is_let_go_when_it_is_logged(app):
    seen: list[weakref.ref[Any]] = []

    def made() -> Kept:
        error = Kept("let me go")
        seen.append(weakref.ref(error))
        return error

    def fail(msg: Message[Any], ctx: Context) -> None:
        raise made()  # a local name would be a cycle of the handler's own

    log = logging.getLogger("msgworker")
    before = log.level
    log.setLevel("CRITICAL")  # pytest keeps the records that it sees
    gc.collect()
    gc.disable()
    try:
        for n, options in enumerate(({}, {"transactional": True})):
            app.add_handler(f"k{n}", fail, wait=wait_none(), **options)
            send(app, "a", topic=f"k{n}")
        app.drain(linger=1, threads=1)
        assert len(seen) == 6
        assert [one() for one in seen] == [None] * 6
    finally:
        gc.enable()
        log.setLevel(before)


# ---------------------------------------------------------------- with the try


def test_a_failed_try_keeps_its_traceback(app):
    msg_id = drained(app, outer)
    line = inner.__code__.co_firstlineno + 1
    at = outer.__code__.co_firstlineno + 4
    for one in tries_of(app, msg_id):
        lines = one.traceback.split("\n")
        assert lines[0] == "Traceback (most recent call last):"
        assert f'  File "{__file__}", line {line}, in inner' in lines
        assert "    return json.loads(text)" in lines
        assert any(line.startswith("  ... 3 frames of json") for line in lines)
        assert lines[-2] == '    raise RuntimeError("no account 17") from error'
        assert lines[-1] == "RuntimeError: no account 17"
        assert one.error == f"RuntimeError: no account 17 [test_tracebacks.py:{at} in outer]"


def test_a_failed_fan_out_shows_where_its_first_item_failed(app):
    def item(n: int) -> None:
        inner("}")

    def fan(msg: Message[Any], ctx: Context) -> None:
        ctx.fan_out(item, [1, 2]).raise_for_failed()

    (*_, last) = tries_of(app, drained(app, fan))
    assert "    return json.loads(text)" in last.traceback
    assert "    ctx.fan_out(item, [1, 2]).raise_for_failed()" in last.traceback


def test_any_text_of_an_error_is_kept(app):
    def fail(msg: Message[Any]) -> None:
        raise ValueError("客户 \x00 \ud800 \x1b[31m 🙂 " + "x" * 100_000)

    (*_, last) = tries_of(app, drained(app, fail))
    assert "ValueError: 客户 \\0 ? \x1b[31m 🙂 xxx" in last.traceback
    assert len(last.traceback.encode()) <= 8000


def test_secrets_do_not_reach_a_traceback(app, monkeypatch):
    monkeypatch.setattr(state, "secrets_of", lambda url: {"hunter22"})

    def fail(msg: Message[Any]) -> None:
        raise ValueError("postgresql://me:hunter22@db")

    (*_, last) = tries_of(app, drained(app, fail))
    assert "postgresql://me:***@db" in last.traceback
    assert "hunter22" not in last.traceback


def refuse_tracebacks(app: App) -> None:
    sql = {
        "postgresql": "ALTER TABLE msgworker_try ALTER traceback TYPE varchar(10)",
        "mysql": "ALTER TABLE msgworker_try MODIFY traceback varchar(10)",
        "oracle": "ALTER TABLE msgworker_try MODIFY (traceback VARCHAR2(10))",
        "sqlite": "CREATE TRIGGER short BEFORE INSERT ON msgworker_try "
        "WHEN length(NEW.traceback) > 10 BEGIN SELECT RAISE(ABORT, 'too long'); END",
    }
    with app.engine.begin() as conn:
        conn.exec_driver_sql(sql[app.engine.dialect.name.replace("mariadb", "mysql")])


def test_a_traceback_that_the_database_refuses_costs_neither_outcome_nor_error(app, table):
    refuse_tracebacks(app)
    msg_id = drained(app, outer)
    assert table.rows("status", "error_try_times") == [(-1, 3)]
    found = tries_of(app, msg_id)
    assert [one.traceback for one in found] == [None] * 3
    assert found[-1].error == table.one("last_error")
    assert "no account 17" in found[-1].error


# ---------------------------------------------------------------- an older installation


def test_instances_run_without_the_column_and_init_db_adds_it(app, make_app):
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE msgworker_try DROP COLUMN traceback")
    older = make_app()
    msg_id = drained(older, outer)
    assert Table(older).rows("status", "error_try_times") == [(-1, 3)]
    found = tries_of(older, msg_id)
    assert [one.traceback for one in found] == [None] * 3
    assert "no account 17" in found[-1].error
    advice = [one for one in older.ops.doctor() if "traceback" in one.text]
    assert [(one.severity, one.check) for one in advice] == [(Severity.ADVISED, "tables")]
    assert advice[0].fix[0].startswith("ALTER TABLE msgworker_try ADD")
    assert make_app().create_schema() == ["traceback"]
    newer = make_app()
    assert [one for one in newer.ops.doctor() if "traceback" in one.text] == []
    assert tries_of(newer, drained(newer, outer))[-1].traceback


def test_lists_do_not_read_tracebacks(app):
    drained(app, outer)
    read: list[str] = []
    sa.event.listen(
        app.engine, "before_cursor_execute", lambda c, cur, sql, *rest: read.append(sql)
    )
    assert app.ops.failures()[0].sample_error
    assert app.ops.find()
    assert read
    assert [sql for sql in read if "traceback" in sql] == []


def test_a_payload_that_cannot_be_read_is_logged_without_frames_of_ours(app, caplog):
    def handle(msg: Message[int]) -> None:
        raise AssertionError("never called")

    app.add_handler("t", handle)
    with app.engine.begin() as conn:
        app.send(conn, "t", "many")

    with caplog.at_level(logging.INFO, logger="msgworker"):
        assert app.drain(linger=0).failed == 1

    (record,) = [r for r in caplog.records if "is dead" in r.getMessage()]
    assert "does not fit the handler's type" in record.getMessage()
    assert record.exc_info is None
