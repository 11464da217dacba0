"""A child of a fork finds our locks free, whoever held them in the parent."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.instance.running.context import SENDING
from msgworker.processlock import ProcessLock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks there")
SECONDS = 8


def child_ends(act: Callable[[], object]) -> bool:
    """Whether a forked child gets through `act`, without an error and without waiting."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


class Held:
    """Another thread, that stands in the middle of `act`."""

    def __init__(self, act: Callable[[Callable[[], None]], object]) -> None:
        self._go_on = threading.Event()
        there = threading.Event()

        def stand() -> None:
            there.set()
            assert self._go_on.wait(SECONDS)

        self._thread = threading.Thread(target=act, args=(stand,))
        self._thread.start()
        assert there.wait(SECONDS)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None:
        self._go_on.set()
        self._thread.join()


def test_the_lock_is_free_in_a_child_and_goes_on_in_its_parent():
    lock = ProcessLock()

    def hold(stand: Callable[[], None]) -> None:
        with lock:
            stand()

    def use() -> None:
        with lock, lock:
            pass

    with Held(hold):
        assert child_ends(use)
    use()


def test_a_child_builds_statements_while_a_thread_of_its_parent_builds_one(sqlite_app: App):
    tables = sqlite_app.tables
    with Held(lambda stand: tables.built("long", stand)):
        assert child_ends(lambda: tables.built("other", lambda: 1))


def test_a_child_reads_the_tables_while_a_thread_of_its_parent_reads_them(sqlite_app: App):
    """As of a server that loads the application, and forks."""
    app, parent = App(sqlite_app.engine.url), os.getpid()
    standing: list[Callable[[], None]] = []

    @sa.event.listens_for(app.engine, "connect")
    def slow(*_: Any) -> None:
        if os.getpid() == parent and standing:
            standing.pop()()

    def read(stand: Callable[[], None]) -> None:
        standing.append(stand)
        assert app.tables

    with Held(read):
        assert child_ends(lambda: app.tables.names["msg_id"])
        assert child_ends(app.wake)
    app.engine.dispose()


def test_a_child_sends_while_a_thread_of_its_parent_does():
    def hold(stand: Callable[[], None]) -> None:
        with SENDING:
            stand()

    def use() -> None:
        with SENDING:
            pass

    with Held(hold):
        assert child_ends(use)
