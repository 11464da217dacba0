"""Whatever a handler raises."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed

from msgworker import App, Message, Reject, RetryLater
from tests.support.logged import CANARY
from tests.support.rows import Table, send
from tests.support.waiting import in_thread


class Strange(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def _cyclic() -> Exception:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


class _Unsayable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "huge": (lambda: ValueError("x" * 10_000_000), "ValueError: xxx"),
    "binary": (lambda: ValueError("\x00\x01\xff\ud800 end"), "end"),
    "four bytes": (lambda: ValueError("\U0001f600" * 5000), "\U0001f600"),
    "unprintable": (Unprintable, "Unprintable: <unprintable>"),
    "endless": (Endless, "Endless: <unprintable>"),
    "unpicklable": (Unpicklable, "holds a lock"),
    "cyclic": (_cyclic, "ValueError: one"),
    "SystemExit": (lambda: SystemExit(3), "SystemExit: 3"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "StopIteration": (StopIteration, "StopIteration"),
    "strange": (lambda: Strange("odd"), "Strange: odd"),
    "MemoryError": (MemoryError, "MemoryError"),
    "RecursionError": (RecursionError, "RecursionError"),
    "CancelledError": (asyncio.CancelledError, "CancelledError"),
    "not JSON": (lambda: json.JSONDecodeError("bad", "x", 0), "JSONDecodeError"),
    "unsayable reason": (lambda: Reject(_Unsayable()), "rejected"),  # type: ignore[arg-type]
    "unsayable later": (lambda: RetryLater(5, _Unsayable()), ""),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", ["plain", "transactional", "async"])
def test_whatever_a_handler_raises_its_try_fails_and_the_worker_lives(app, kind):
    make: list[Callable[[], BaseException]] = [make for make, _ in RAISED.values()]

    def handle(msg: Message) -> None:
        if msg.payload < len(make):
            raise make[msg.payload]()

    async def handle_async(msg: Message) -> None:
        handle(msg)

    fn = handle_async if kind == "async" else handle
    options = {"transactional": kind == "transactional", "wait": wait_fixed(3600)}
    app.add_handler("t", fn, **options)
    for i in range(len(make)):
        send(app, f"o{i}", payload=i)
    with app.worker(threads=1) as worker:  # one thread: if it died, nothing would go on
        assert worker.drain(linger=0).done == 0
        send(app, "good", payload=10**6)
        assert worker.drain(linger=0).done == 1
    rows = Table(app).rows("status", "error_try_times", "last_error", "claimed_by")
    for (name, (_, text)), row in zip(RAISED.items(), rows, strict=False):
        if "later" in name:
            assert row[:2] in ((0, 0), (-1, 1)), name
        else:
            assert row[0] == -1, (name, row)
            assert row[1] == (3 if "reason" in name else 1), name
        assert text in row[2] or (kind == "async" and "Stop" in name), (name, row)
        assert len(row[2].encode()) <= 2000
        assert "\x00" not in row[2]
        assert row[3] is None


@pytest.mark.parametrize("kind", ["plain", "transactional", "async"])
def test_keyboard_interrupt_in_a_handler_fails_its_try_and_stops_the_worker(app, kind):
    def handle(msg: Message) -> None:
        raise KeyboardInterrupt

    async def handle_async(msg: Message) -> None:
        raise KeyboardInterrupt

    fn = handle_async if kind == "async" else handle
    app.add_handler("t", fn, transactional=kind == "transactional", wait=wait_fixed(3600))
    send(app, "o", *["p"] * 3)
    join = in_thread(app.worker(threads=1).run)
    join()
    table = Table(app)
    assert 1 not in table.statuses
    assert sorted(table.column("error_try_times"))[-1] == 1


def test_a_recursion_without_end_and_a_failed_allocation(sqlite_app):
    def forever(n: int = 0) -> int:
        return forever(n + 1) + 1

    @sqlite_app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if msg.payload:
            forever()
        bytearray(1 << 62)

    send(sqlite_app, "a", payload=1)
    send(sqlite_app, "b", payload=0)
    assert sqlite_app.drain(linger=0).retried == 2
    first, second = Table(sqlite_app).column("last_error")
    assert "RecursionError" in first
    assert "MemoryError" in second


def test_the_database_s_password_is_not_kept_in_an_error(postgresql):
    app = App(sa.make_url(postgresql.url).set(password=CANARY))  # the tests' server asks for none
    app.create_schema()

    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        raise ValueError(f"cannot reach postgresql://u:{CANARY}@host")

    send(app, "o")
    app.drain(linger=0)
    text = Table(app).one("last_error")
    assert CANARY not in text
    assert "***" in text


def test_the_text_of_an_error_is_one_line_of_the_log(sqlite_app, caplog):
    caplog.set_level("INFO", "msgworker")

    def handle(msg: Message) -> None:
        raise ValueError("a\r\nCRITICAL forged \x1b[2K")

    sqlite_app.add_handler("t", handle)
    send(sqlite_app, "o")
    sqlite_app.drain(linger=0)
    told = [r.getMessage() for r in caplog.records if "forged" in r.getMessage()]
    assert told
    assert all(text.isprintable() for text in told)
