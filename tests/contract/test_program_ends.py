"""Programs that end, or fork, beside a worker that runs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from msgworker.instance.instance import EXIT_SECONDS
from tests.support.databases import SQLITE
from tests.support.leases import leases
from tests.support.programs import python
from tests.support.rows import send

ROOT = Path(__file__).resolve().parents[2]
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
    given = filter(None, [os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*given, str(ROOT)])}
    script = PROGRAM.format(url=database.url, logging=logging) + text
    done = python("-c", script, cwd=ROOT, env=env)
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


@pytest.mark.quick("sqlite-run")
@pytest.mark.parametrize("how", ENDS)
def test_a_program_that_ends_without_a_stop_is_stopped_in_order(database, app, table, how):
    send(app, *"abcd", payload={"sleep": 0.4})
    done, _ = program(database, ENDS[how])
    assert done.returncode == {"an error": 1, "sys.exit in the block": 3}.get(how, 0), done.stderr
    assert sorted(set(table.statuses)) == [0, 2], done.stderr
    assert leases(app) == {}
    assert "stopped: done=1" in done.stderr
    asked_for = how == "sys.exit in the block"
    assert ("WARNING the program ends without a stop" in done.stderr) is not asked_for


@pytest.mark.long
@SQLITE
def test_a_program_that_ends_beside_a_long_handler_says_what_it_leaves(database, app, table):
    first, _ = send(app, *"ab", payload={"sleep": 60})
    begin = time.monotonic()
    done, took = program(database, "app.worker(threads=1).start(); started.wait(60)")
    assert done.returncode == 0
    assert took < EXIT_SECONDS + 15, begin
    assert sorted(table.statuses) == [0, 1]
    assert f"handlers still run (messages {first}); recovery follows" in done.stderr


@pytest.mark.long
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
from msgworker.instance.running.on_loop import AsyncCalls
get = AsyncCalls._get

def late_get(self):
    started.set()
    handle.wait(60)
    self._stop.requested.wait(60)  # no thread starts any more once all that runs at exit has run
    return get(self)

AsyncCalls._get = late_get
worker.start(); started.wait(60)

@atexit.register
def ending():
    threading.Thread.start = refuse
    handle.set()
"""
    done, _ = program(database, late)
    assert done.returncode == 0
    assert "stopped: done=0 dead=0 retried=0" in done.stderr, done.stderr
    assert table.rows("status", "error_try_times", "crash_times") == [(0, 0, 0)] * 2
    assert leases(app) == {}


@pytest.mark.long
@SQLITE
def test_a_program_that_ends_while_its_stop_hangs_says_what_it_leaves(database, app, table):
    send(app, "a", payload={"sleep": 0.5})
    hang = (
        "w = app.worker(threads=1); w.start(); started.wait(60)\n"
        "w.instance.settle_rest = lambda: time.sleep(60)"
    )
    done, took = program(database, hang)
    assert done.returncode == 0
    assert took < EXIT_SECONDS + 15
    assert "the stop takes too long, and the program ends" in done.stderr


@pytest.mark.long
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
    send(app, *"ab", payload={"sleep": 0.8})
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


# On PostgreSQL: where a thread of the parent is within SQLite's library at the fork, the child
# waits for a lock there without end.
@pytest.mark.long
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["start", "run"])
def test_a_forked_child_has_no_instance_of_its_parent_and_may_start_its_own(database, app, how):
    begin = "both.start()"
    if how == "run":
        begin = "threading.Thread(target=both.run, daemon=True).start()"
    fork = f"""
from msgworker import Workers
one, both = app.worker(threads=1), Workers({{"a": app.worker(threads=1)}})
one.start()
{begin}
while len(app.heartbeats) < 2:
    time.sleep(0.05)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert len(app.heartbeats) == 2 and one.instance_id and both.instance_ids["a"]
    one.stop(); both.stop()
else:
    assert (one.instance_id, both.instance_ids) == (None, {{"a": None}})
    assert (app.heartbeats, app.load, one.tally.done, one.paused) == ({{}}, (0, 0), 0, frozenset())
    one.start(); both.start()
    assert list(app.heartbeats.values()) == [True, True]
    one.stop(); both.stop()
    assert both.drain(linger=0).exit_code == 0
"""
    done, _ = program(database, fork)
    assert done.returncode == 0, done.stderr


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


@pytest.mark.quick("sqlite-returns")
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
    assert leases(app) == {}


@pytest.mark.long
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
