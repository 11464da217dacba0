"""Sessions ended by the server, servers that crash: F9, F10, F11. No process dies, so nothing may
happen twice and no try may be counted."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from proof.crash.fleet import Trial, Verdict, assert_clean, assert_once
from proof.crash.scenarios import Load
from tests import servers
from tests.engines import plain_engine
from tests.plugin import Database
from tests.support.cutting import Cutter, consumer_url
from tests.support.waiting import until

MESSAGES = 1200
CUT_EVERY_SECONDS = 0.1
MOST_CUTS = 100
MOST_SECONDS = 30


def messages(count: int, chance: random.Random) -> list[Load]:
    made: list[Load] = []
    for i in range(count):
        object_id = None if i % 10 == 0 else f"o{chance.randrange(150)}"
        made.append((object_id, chance.choice(("plain", "exact")), {"work": 0.005}))
    return made


def two_drains_at_work(trial: Trial, count: int, chance: random.Random) -> None:
    """Two drains that have both begun, and messages before them: a database that is away at the
    start is an error, by design."""
    before = count  # since the last messages were sent

    def begun() -> bool:
        """On a busy machine the first drain may have handled all before the second begins, which
        then ends at once, and both before more are sent: then another one is begun."""
        nonlocal before
        left, running = trial.unfinished(), [one for one in trial.consumers if one.running]
        if left < count // 2:
            trial.send_many(messages(count // 2, chance))
            before = left + count // 2
        elif len(running) < 2:
            trial.spawn(drain=True, threads=4)
        else:
            return left < before and {drain.pid for drain in running} <= trial.pids_seen()
        return False

    trial.send_many(messages(count, chance))
    for _ in range(2):
        trial.spawn(drain=True, threads=4)
    until(begun, "both work")


def drained_once(trial: Trial) -> Verdict:
    """All drains end by themselves; each message was started once and counted no try."""
    drains = list(trial.consumers)
    assert {drain.wait(120) for drain in drains} == {0}, [d.complaints for d in drains]
    verdict = trial.judge(orderly=True)
    assert_clean(trial, verdict)
    assert_once(trial, verdict)
    return verdict


@pytest.mark.quick("mariadb")
def test_ended_sessions_lose_nothing_and_count_no_try(served: Database, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    trial = Trial(consumer_url(served.url), tmp_path, sends_with=served.url)
    try:
        two_drains_at_work(trial, MESSAGES, chance)
        with Cutter(served.url, CUT_EVERY_SECONDS, chance).cutting() as cutter:
            # Not without end: on a busy machine a session may live too short to do anything, and
            # drains that wait longer and longer to connect again leave few to cut.
            end = time.monotonic() + MOST_SECONDS
            while cutter.count <= MOST_CUTS and trial.unfinished() and time.monotonic() < end:
                trial.pauses(0.1)
        until(lambda: trial.unfinished() == 0, "all is done", seconds=120)
        assert cutter.count > 5
        drained_once(trial)
    finally:
        trial.close()


@pytest.fixture(params=["postgresql", "mariadb"])
def own_server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    """A server that is ours alone, to be crashed."""
    try:
        server = servers.start(request.param)
    except servers.CannotHave as reason:
        pytest.skip(f"{request.param} is not there: {reason}")
    yield server
    server.remove()


def make_database(server: servers.Server) -> str:
    """The URL of a new database on it."""
    engine = plain_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as conn:
        conn.exec_driver_sql("CREATE DATABASE trial")
    return f"{server.url}trial"


def crash(server: servers.Server, away_seconds: float, trial: Trial) -> None:
    """The end without any order, a while of nothing, and the start."""
    if server.name == "postgresql":
        server.stop(signal.SIGQUIT)
    else:
        server.kill()
    trial.pauses(away_seconds)
    server.start()


@pytest.mark.quick("postgresql-0.0")
@pytest.mark.parametrize("away_seconds", [0.0, pytest.param(6.0, marks=pytest.mark.long)])
def test_crash_of_the_server_loses_nothing_and_counts_no_try(
    own_server: servers.Server, tmp_path: Path, away_seconds: float
) -> None:
    url = make_database(own_server)
    chance = random.Random()
    trial = Trial(url, tmp_path)
    try:
        two_drains_at_work(trial, MESSAGES // 2, chance)
        for share in (0.7, 0.4):
            left = MESSAGES // 2 * share
            until(lambda: trial.unfinished() < left, "work is under way")  # noqa: B023
            crash(own_server, away_seconds, trial)
        drained_once(trial)
    finally:
        trial.close()
