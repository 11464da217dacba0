"""Stop means stopped: whoever asks for it, and where a program ends, or a handler forks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msgworker import App
from msgworker.errors import ExitCode, MsgworkerError
from msgworker.instance.stopping import EXIT_SECONDS
from tests.support.rows import send
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""Where the database makes no difference."""
SLOW_SECONDS = 1.0


def leases(app: App) -> int:
    with app.engine.connect() as conn:
        count = "SELECT count(*) FROM msgworker_lease WHERE kind = 'instance'"
        return int(conn.exec_driver_sql(count).scalar() or 0)


# ---------------------------------------------------------------- one stop, many who ask


@pytest.fixture
def slow(app: App) -> threading.Event:
    """Six messages for handlers that take a second; set when the first has started."""
    started = threading.Event()

    @app.handler("t")
    def handler(msg: Any) -> None:
        started.set()
        time.sleep(SLOW_SECONDS)

    send(app, *"abcdef")
    return started


@SQLITE
@pytest.mark.parametrize("how", ["run", "drain"])
def test_run_returns_when_the_stop_of_another_thread_is_complete(app, table, slow, how):
    worker = app.worker(threads=6)
    stopper = threading.Thread(target=lambda: slow.wait(60) and worker.stop())
    stopper.start()
    getattr(worker, how)()
    assert set(table.statuses) <= {0, 2}
    assert 2 in table.statuses
    assert leases(app) == 0
    stopper.join(60)


@SQLITE
def test_every_stop_waits_for_the_one_under_way_and_has_its_answer(app, table, slow):
    worker = app.worker(threads=6)
    worker.start()
    assert slow.wait(60)
    answers: list[tuple[bool, int]] = []

    def stop() -> None:
        answers.append((worker.stop(), leases(app)))

    threads = [threading.Thread(target=stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [(True, 0)] * 4
    assert worker.stop()
    assert worker.instance_id is None


@SQLITE
def test_of_several_stops_the_shortest_grace_counts_and_all_have_one_answer(app, table):
    over, started = threading.Event(), threading.Event()

    @app.handler("t")
    def handler(msg: Any) -> None:
        started.set()
        over.wait(60)

    send(app, "a")
    worker = app.worker(threads=1)
    worker.start()
    assert started.wait(60)
    answers: list[bool] = []
    first = threading.Thread(target=lambda: answers.append(worker.stop(grace=60)))
    first.start()
    time.sleep(0.2)
    answers.append(worker.stop(grace=0.2))
    first.join(10)
    assert answers == [False, False]
    over.set()


@SQLITE
def test_the_grace_of_stop_goes_before_that_of_run(app, table, slow):
    worker = app.worker(threads=6)
    stopper = threading.Thread(target=lambda: slow.wait(60) and worker.stop(grace=30))
    stopper.start()
    worker.run(grace=0)
    stopper.join(60)
    assert 1 not in table.statuses


@SQLITE
def test_an_instance_whose_handler_outlives_its_stop_is_shown_as_stopped(app, table):
    started, over = threading.Event(), threading.Event()

    @app.handler("t")
    def handler(msg: Any) -> None:
        started.set()
        over.wait(60)

    (msg_id,) = send(app, "a")
    worker = app.worker(threads=1)
    worker.start()
    try:
        assert started.wait(60)
        name = worker.instance_id
        assert worker.stop(grace=0.1) is False
        (told,) = app.ops.instances()
        assert (told.instance_id, told.life, told.stopped) == (name, "live", True)
        assert (told.works, told.overdue_seconds) == (False, None)
        assert 0 < told.left_seconds <= app.settings.lease_seconds
        why = app.ops.explain(msg_id)
        assert f"{name} has stopped, and its handler has outlived the grace time" in why.text
        assert "recovered when the lease is over, in about " in why.text
        with pytest.raises(
            MsgworkerError, match=r"has stopped.*its lease ends in \d+ s"
        ) as refused:
            app.ops.release(name)
        assert refused.value.exit_code == ExitCode.REFUSED
        other = app.drain(linger=0)
        assert (other.left_by, other.exit_code) == ({"silent": 1}, ExitCode.RETRIES)
    finally:
        over.set()


def test_a_worker_can_be_started_again_as_soon_as_stop_returns(app):
    app.add_handler("t", lambda msg: None)
    worker = app.worker(threads=1)
    for _ in range(10):
        worker.start()
        stoppers = [threading.Thread(target=worker.stop) for _ in range(3)]
        for thread in stoppers:
            thread.start()
        assert worker.stop()
        worker.start()
        assert worker.instance_id is not None
        assert worker.stop()
        for thread in stoppers:
            thread.join(60)


@SQLITE
def test_a_stop_in_a_signal_handler_in_the_middle_of_a_stop_does_not_wait_for_itself(app):
    """The signal interrupts the thread that stops."""
    worker = app.worker(threads=1) if app.add_handler("t", lambda msg: None) is None else None
    assert worker is not None
    worker.start()
    instance = worker._instance
    assert instance is not None
    answers = []
    wait = instance._settle_rest
    instance._settle_rest = lambda: (answers.append(worker.stop()), wait())[1]  # type: ignore[method-assign]
    assert worker.stop()
    assert answers
    assert not any(answers)  # each asks and returns at once


# ---------------------------------------------------------------- asked for from within


def sync_stop(app: App, stop: Callable[[], bool]) -> None:
    app.add_handler("t", lambda msg: stop() and None)


def async_stop(app: App, stop: Callable[[], bool]) -> None:
    @app.handler("t")
    async def handler(msg: Any) -> None:
        stop()


def to_thread_stop(app: App, stop: Callable[[], bool]) -> None:
    @app.handler("t")
    async def handler(msg: Any) -> None:
        await asyncio.to_thread(stop)


def transactional_stop(app: App, stop: Callable[[], bool]) -> None:
    app.add_handler("t", lambda msg: stop() and None, transactional=True)


def item_stop(app: App, stop: Callable[[], bool]) -> None:
    @app.handler("t")
    def handler(msg: Any, ctx: Any) -> None:
        ctx.fan_out(lambda item: stop() and None, [1], threads=1)


WITHIN = [sync_stop, async_stop, to_thread_stop, transactional_stop, item_stop]


@SQLITE
@pytest.mark.parametrize("how", ["start", "run", "drain"])
@pytest.mark.parametrize("within", WITHIN, ids=lambda w: w.__name__)
def test_a_stop_from_within_asks_and_returns_at_once(app, table, within, how, caplog):
    answers: list[tuple[bool, bool]] = []

    def stop() -> bool:
        begin = time.monotonic()
        answer = worker.stop(grace=20)
        answers.append((answer, time.monotonic() - begin < 10))
        return answer

    within(app, stop)
    send(app, *"abc")
    worker = app.worker(threads=1)
    getattr(worker, how)()
    until(lambda: worker.instance_id is None, "it has stopped", seconds=30)
    assert answers == [(False, True)]
    assert table.statuses in ([2, 0, 0], [0, 0, 0])  # a fan-out that a stop meets runs later
    assert table.column("error_try_times") == [0, 0, 0]
    assert leases(app) == 0
    assert "cannot join" not in caplog.text


# ---------------------------------------------------------------- the end of a program


PROGRAM = """
import atexit, os, sys, threading, time
from msgworker import App
{logging}
app = App({url!r}, lease_seconds=20, backoff_seconds=1)

@app.handler("t")
def handler(msg):
    began.append(msg.msg_id)
    started.set()
    time.sleep(msg.payload["sleep"])

began, started = [], threading.Event()
"""
LOGGING = "import logging; logging.basicConfig(level='INFO', format='%(levelname)s %(message)s')"


def program(
    database: Any, text: str, *, logging: str = LOGGING
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run it; how it ended, and how long it took."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(url=database.url, logging=logging) + text],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done, time.monotonic() - begin


ENDS = {
    "start": "app.worker(threads=1).start(); started.wait(60)",
    "run in a daemon": (
        "w = app.worker(threads=1); threading.Thread(target=w.run, daemon=True).start()\n"
        "started.wait(60)"
    ),
    "drain in a daemon": (
        "w = app.worker(threads=1); threading.Thread(target=w.drain, daemon=True).start()\n"
        "started.wait(60)"
    ),
    "an error": "app.worker(threads=1).start(); started.wait(60); raise RuntimeError('x')",
    "sys.exit in the block": (
        "with app.worker(threads=1) as w:\n    w.start(); started.wait(60); sys.exit(3)"
    ),
    "no thread can start": """
app.worker(threads=1).start(); started.wait(60)
def refuse(thread):  # as Python 3.12 does while the interpreter ends
    raise RuntimeError("can't create new thread at interpreter shutdown")
atexit.register(lambda: setattr(threading.Thread, "start", refuse))
""",
}


@pytest.mark.parametrize("how", ENDS)
def test_a_program_that_ends_without_a_stop_is_stopped_in_order(database, app, table, how):
    send(app, *"abcd", payload={"sleep": 0.7})
    done, _ = program(database, ENDS[how])
    assert done.returncode == {"an error": 1, "sys.exit in the block": 3}.get(how, 0), done.stderr
    assert sorted(set(table.statuses)) == [0, 2], done.stderr
    assert leases(app) == 0
    assert "stopped: done=1" in done.stderr
    asked_for = how == "sys.exit in the block"
    assert ("WARNING the program ends without a stop" in done.stderr) is not asked_for


@SQLITE
def test_a_program_that_ends_beside_a_long_handler_says_what_it_leaves(database, app, table):
    first, _ = send(app, *"ab", payload={"sleep": 60})
    begin = time.monotonic()
    done, took = program(database, "app.worker(threads=1).start(); started.wait(60)")
    assert done.returncode == 0
    assert took < EXIT_SECONDS + 15, begin
    assert sorted(table.statuses) == [0, 1]
    assert f"handlers still run (messages {first}); recovery follows" in done.stderr


@SQLITE
def test_a_handler_whose_thread_cannot_start_while_the_program_ends_does_not_cut_the_stop_off(
    database, app, table
):
    send(app, *"ab", topic="async")
    late = """
@app.handler("async")
async def late(msg):
    pass

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

worker = app.worker(threads=1)
handle = threading.Event()
from msgworker.instance.asyncloop import LoopThread
get = LoopThread._get

def late_get(self):
    started.set()
    handle.wait(60)
    return get(self)

LoopThread._get = late_get
worker.start(); started.wait(60)

@atexit.register
def ending():
    threading.Thread.start = refuse
    handle.set()
"""
    done, _ = program(database, late)
    assert done.returncode == 0
    assert "stopped: done=0 dead=0 retried=1" in done.stderr, done.stderr
    assert table.statuses == [-1, 0]
    assert leases(app) == 0


@SQLITE
def test_a_program_that_ends_while_its_stop_hangs_says_what_it_leaves(database, app, table):
    send(app, "a", payload={"sleep": 0.5})
    hang = (
        "w = app.worker(threads=1); w.start(); started.wait(60)\n"
        "w._instance._settle_rest = lambda: time.sleep(60)"
    )
    done, took = program(database, hang)
    assert done.returncode == 0
    assert took < EXIT_SECONDS + 15
    assert "the stop takes too long, and the program ends" in done.stderr


@SQLITE
def test_a_program_that_has_stopped_its_workers_ends_in_silence(database, app, table):
    send(app, "a", payload={"sleep": 0})
    stop = "w = app.worker(threads=1); w.start(); started.wait(60); w.stop()"
    done, _ = program(database, stop, logging="")
    assert (done.returncode, done.stderr) == (0, "")
    assert table.statuses == [2]


@SQLITE
def test_a_forked_child_that_ends_stops_nothing_of_its_parent(database, app, table):
    """Neither at its exit nor at the end of a `with` block."""
    send(app, *"ab", payload={"sleep": 1.5})
    fork = """
with app.worker(threads=1) as w:
    w.start(); started.wait(60)
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(0.2)
        with app.engine.connect() as conn:
            count = "SELECT count(*) FROM msgworker_lease WHERE kind = 'instance'"
            assert conn.exec_driver_sql(count).scalar() == 1
        with app.engine.begin() as conn:
            app.send(conn, "t", {"sleep": 0}, object_id="c")
        while len(began) < 3:  # it goes on
            time.sleep(0.05)
"""
    done, _ = program(database, fork)
    assert done.returncode == 0, done.stderr
    assert table.statuses == [2, 2, 2], done.stderr


# ---------------------------------------------------------------- handlers that fork


FORKS = {
    "returns": "app.add_handler('f', lambda msg: fork() and None)",
    "raises": "app.add_handler('f', lambda msg: fork() or 1 / 0)",
    "sys.exit": "app.add_handler('f', lambda msg: fork() or sys.exit(0))",
    "transactional": "app.add_handler('f', lambda msg: fork() and None, transactional=True)",
    "transactional, raises": (
        "app.add_handler('f', lambda msg: fork() or 1 / 0, transactional=True)"
    ),
    "async": """
@app.handler("f")
async def forks(msg):
    fork()
""",
    "items": """
@app.handler("f")
def forks(msg, ctx):
    ctx.fan_out(lambda item: fork() and None, [1], threads=1)
""",
    "transactional items": """
@app.handler("f")
def forks(msg, ctx):
    ctx.fan_out(lambda item, conn: fork() and None, [1], threads=1, transactional_items=True)
""",
    "items of an executor": """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
@app.handler("f")
def forks(msg, ctx):
    ctx.fan_out(item, [1], executor=pool)
def item(i):
    fork()
""",
    "the iterable of items": """
@app.handler("f")
def forks(msg, ctx):
    ctx.fan_out(len, (str(fork()) for _ in range(2)), threads=1)
""",
    "before a fan-out": """
@app.handler("f")
def forks(msg, ctx):
    fork()
    ctx.fan_out(len, ["a"], threads=1)
""",
}
FORKING = """
children = []

def fork():
    child = os.fork()
    if child:
        children.append((child, os.waitstatus_to_exitcode(wait(child))))
    return child

def wait(child):
    for _ in range(200):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1

{forks}
report = app.drain(threads=3, linger=0)
print(os.getpid(), [code for _, code in children], report.done, report.failed, report.retried)
"""


@pytest.mark.parametrize("how", FORKS)
def test_the_child_of_a_handler_that_forks_ends_and_the_parent_goes_on(database, app, table, how):
    # Others run beside it and after it, on all connections of the parent.
    send(app, "a", topic="f")
    send(app, *"abcdefgh", payload={"sleep": 0.02})
    done, _ = program(database, FORKING.replace("{forks}", FORKS[how]))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stdout  # the child has not come so far
    forks = 2 if how == "the iterable of items" else 1
    assert lines[0].split(" ", 1)[1] == f"{[1] * forks} 9 0 0", done.stderr
    parent = lines[0].split()[0]
    assert done.stderr.count(f"was forked by a handler of process {parent} and came back") == forks
    assert set(table.statuses) == {2}
    assert leases(app) == 0


@SQLITE
def test_a_child_of_a_handler_that_ends_itself_is_left_alone(database, app, table):
    """Also that of `multiprocessing`."""
    quiet = """
import multiprocessing
@app.handler("f")
def forks(msg):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    assert process.exitcode == 0
"""
    send(app, "a", topic="f")
    done, _ = program(database, FORKING.replace("{forks}", quiet))
    assert done.returncode == 0, done.stderr
    assert "forked" not in done.stderr
    assert table.statuses == [2]
