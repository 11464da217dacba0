"""kill -9 in the middle of fan-outs: with transactional items every effect exactly once, without
at most a batch repeats per kill; what was recorded never runs again."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker.instance.fan_out.items import BATCH
from proof.crash.fan_consumer import EFFECT, make_app
from tests.support.rows import Table
from tests.support.waiting import until

ROOT = Path(__file__).parent.parent.parent
LEASE_SECONDS = 2.0


class Victim:
    """A consumer process that is to be killed."""

    def __init__(self, url: str, log: Path) -> None:
        command = [sys.executable, "-m", "proof.crash.fan_consumer", url]
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                [*command, "--lease", str(LEASE_SECONDS)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def kill_again_and_again(database: Any, folder: Path, *, kills: int, items: int) -> None:
    app = make_app(database.url, lease=LEASE_SECONDS)
    app.create_schema()
    EFFECT.create(app.engine)
    table, chance = Table(app), random.Random()
    with app.engine.begin() as conn:
        for topic in ("exact", "plain"):
            app.send(conn, topic, items)

    def count(of: sa.FromClause) -> int:
        with app.engine.connect() as conn:
            return int(conn.scalar(sa.select(sa.func.count()).select_from(of)))

    killed_in_the_middle = 0
    try:
        for _ in range(kills):
            before = count(EFFECT)
            victim = Victim(database.url, folder / "log")
            try:
                more = chance.randint(1, max(1, items // (2 * (kills + 1))))
                until(lambda: count(EFFECT) > before + more, "items run", every=0.001)  # noqa: B023
                killed_in_the_middle += 1 in table.statuses
            finally:
                victim.kill()
        last = Victim(database.url, folder / "log")
        try:
            until(lambda: table.statuses == [2, 2], "both messages are done", seconds=120)
        finally:
            last.kill()
        with app.engine.connect() as conn:
            found = conn.execute(sa.select(EFFECT.c.topic, EFFECT.c.item))
            ran = Counter((row[0], row[1]) for row in found)
        assert killed_in_the_middle == kills
        assert {item: ran["exact", item] for item in range(items)} == dict.fromkeys(range(items), 1)
        plain = [ran["plain", item] for item in range(items)]
        assert min(plain) == 1
        assert sum(plain) - items <= kills * BATCH
        assert count(app.tables.item) == 2 * items
        print(f"{database.name}: {kills} kills, {sum(plain) - items} plain items repeated")
    finally:
        app.engine.dispose()


@pytest.mark.quick("sqlite")
def test_a_kill_repeats_no_transactional_item_and_at_most_a_batch(
    database: Any, tmp_path: Path
) -> None:
    kill_again_and_again(database, tmp_path, kills=1, items=200)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_twenty_kills_repeat_no_transactional_item_and_at_most_a_batch_each(
    database: Any, tmp_path: Path
) -> None:
    kill_again_and_again(database, tmp_path, kills=20, items=2_000)
