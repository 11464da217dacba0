"""A child of a fork finds our locks free, whoever held them in the parent."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import msgworker
from msgworker import App
from msgworker.app import setup_of
from msgworker.instance.running.context import SENDING
from msgworker.processlock import ProcessLock
from tests.engines import plain_engine
from tests.plugin import Database
from tests.support.apps import created
from tests.support.waiting import in_thread, launched

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks there")
SECONDS = 8


def child_ends(act: Callable[[], object]) -> bool:
    """Whether a forked child gets through `act`, without an error and without waiting."""
    return in_child(act)()


def in_child(act: Callable[[], object]) -> Callable[[], bool]:
    """Begin it; what is returned waits for its end."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return lambda: os.waitpid(pid, 0)[1] == 0


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


def test_a_child_sends_while_a_thread_of_its_parent_does():
    def hold(stand: Callable[[], None]) -> None:
        with SENDING:
            stand()

    def use() -> None:
        with SENDING:
            pass

    with Held(hold):
        assert child_ends(use)


@pytest.mark.long
def test_a_child_wakes_no_worker_of_its_parent(sqlite_app: App):
    """Whoever wakes it in the parent may hold the lock of its event at the fork."""
    sqlite_app.add_handler("t", lambda msg: None)
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            sqlite_app.wake()

    with launched(sqlite_app.worker(threads=1)):
        joins = [in_thread(busy) for _ in range(3)]
        try:
            assert all([child_ends(sqlite_app.wake) for _ in range(50)])
        finally:
            over.set()
            for join in joins:
                join()


def test_a_child_drains_while_a_handler_of_its_parent_writes(sqlite_app: App):
    """The turns of SQLite's writers are those of a process."""
    app = sqlite_app
    app.add_handler("t", lambda msg: None)
    turns = setup_of(app).turns
    assert turns is not None

    def hold(stand: Callable[[], None]) -> None:
        with turns:
            stand()

    with app.engine.begin() as conn:
        app.send(conn, "t")

    def drains() -> None:
        assert app.drain(linger=0).done == 1

    with Held(hold):
        assert child_ends(drains)


def test_a_child_leaves_the_connections_of_a_user_s_engine_to_its_parent(
    postgresql: Database, mariadb: Database
):
    """As of a server that has sent before it forks."""
    for url in (postgresql.url, mariadb.url):
        engine = plain_engine(url)
        app = created(App(engine))
        app.add_handler("t", lambda msg: None)

        def send(app: App = app) -> None:
            for _ in range(10):
                with app.engine.begin() as conn:
                    app.send(conn, "t")

        def child(app: App = app, send: Callable[[], None] = send) -> None:
            send()
            assert app.ops.find(limit=1)

        send()
        app.ops.overview()
        ended = in_child(child)
        send()
        assert ended()
        send()
        assert app.drain(linger=0).done == 40
        engine.dispose()


MET = ("app", "events", "producing", "databases", "workers", "schedules", "tracing", "db")
MET += ("store", "table", "contrib", "metrics", "config", "limit", "payload")
PLAIN = re.compile(r"threading\.(R?Lock|Condition|Semaphore|Event)\(|cached_property")
OF_ONE_CALL = {"connections.py", "postgresql.py"}


def test_no_lock_that_a_producer_may_meet_stays_held_in_a_child():
    root = Path(msgworker.__file__).parent
    files = [f for name in MET for f in (root / f"{name}.py", *(root / name).rglob("*.py"))]
    texts = {f.name: f.read_text() for f in files if f.exists() and f.name not in OF_ONE_CALL}
    assert len(texts) > 50
    assert [name for name, text in texts.items() if PLAIN.search(text)] == []
