"""kill -9 in the middle of fan-outs: with transactional items every effect exactly once, without
at most a batch repeats per kill; what was recorded never runs again, and each item sends once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import sqlalchemy as sa

from msgworker.instance.fan_out.items import BATCH
from proof.crash.consumer import FAN_EFFECTS, SENT_BY_ITEM, table_of
from proof.crash.fleet import Trial, finish
from tests.plugin import Database
from tests.support.waiting import until


@pytest.fixture
def trial(database: Database, tmp_path: Path) -> Iterator[Trial]:
    made = Trial(database.url, tmp_path, lease=2.0, table=table_of(tries=100))
    yield made
    made.close()


def kill_again_and_again(trial: Trial, *, kills: int, items: int) -> None:
    chance = random.Random()
    sent = trial.send_many(
        [(None, "fan.rows", {"rows": items, "exact": exact}) for exact in (True, False)]
    )

    def count(of: sa.FromClause) -> int:
        with trial.reader.connect() as conn:
            return int(conn.scalar(sa.select(sa.func.count()).select_from(of)) or 0)

    killed_in_the_middle = 0
    for _ in range(kills):
        before = count(FAN_EFFECTS)
        victim = trial.spawn().ready()
        more = chance.randint(1, max(1, items // (2 * (kills + 1))))
        until(lambda: count(FAN_EFFECTS) > before + more, "items run", every=0.001)  # noqa: B023
        killed_in_the_middle += bool(trial.read("msg_id", "status = 1"))
        victim.kill()
    trial.spawn()
    trial.finish(120)
    told = trial.read("msg_id, payload", f"topic = '{SENT_BY_ITEM}'")
    verdict = finish(trial, *(msg_id for msg_id, _ in told))
    assert killed_in_the_middle == kills
    assert {verdict.row(n).status for n in sent} == {2}
    ran = Counter(trial.select(FAN_EFFECTS.c.exact, FAN_EFFECTS.c.item))
    assert [ran[True, item] for item in range(items)] == [1] * items
    plain = [ran[False, item] for item in range(items)]
    assert min(plain) == 1
    assert sum(plain) - items <= kills * BATCH
    assert count(trial.app.tables.item) == 2 * items
    of_items = [json.loads(payload) for _, payload in told]
    by_items = Counter((one["exact"], one["item"]) for one in of_items)
    assert by_items == dict.fromkeys(product((True, False), range(items)), 1)
    print(f"{trial.backend}: {kills} kills, {sum(plain) - items} plain items repeated")


@pytest.mark.quick("sqlite")
def test_a_kill_repeats_no_transactional_item_and_at_most_a_batch(trial: Trial) -> None:
    kill_again_and_again(trial, kills=1, items=80)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_twenty_kills_repeat_no_transactional_item_and_at_most_a_batch_each(trial: Trial) -> None:
    kill_again_and_again(trial, kills=20, items=2_000)
