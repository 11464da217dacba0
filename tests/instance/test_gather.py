"""How many messages share a batch, and which: the decisions, as tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from msgworker.config import Settings
from msgworker.instance.claiming.capacity import PAYLOAD_BUDGET, RunLength
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.running import pool
from msgworker.instance.running.handler import FIRST, BatchSize, Registry, make_handler
from msgworker.instance.running.in_flight import InFlight, Lane, Quiesce
from msgworker.instance.running.pool import Gathering, LaneQueue
from msgworker.instance.state import Controls
from msgworker.instance.stop import Stop
from msgworker.store.rows import Row

# the most, the aim, the lease, then (messages, seconds) of each batch; the size after them
SIZES: list[tuple[int, float, float, list[tuple[int, float]], int]] = [
    (500, 1.0, 30.0, [], FIRST),
    (5, 1.0, 30.0, [], 5),
    (500, 1.0, 30.0, [(16, 0.1)], 32),
    (500, 1.0, 30.0, [(16, 0.1), (32, 0.1), (64, 0.1), (128, 0.1), (256, 0.1)], 500),
    (500, 1.0, 30.0, [(15, 0.1)], 16),  # it was not full
    (500, 1.0, 30.0, [(16, 0.6)], 16),  # twice as many would take too long
    (500, 1.0, 30.0, [(16, 4.0)], 4),
    (500, 1.0, 30.0, [(16, 400.0)], 1),
    (500, 1.0, 30.0, [(16, 400.0), (1, 0.1)], 2),
    (500, 1.0, 30.0, [(3, 4.0)], 1),
    (500, 60.0, 3.0, [(16, 4.0)], 4),  # a third of the lease
]


@pytest.mark.parametrize(("most", "aim", "lease", "batches", "size"), SIZES)
def test_a_batch_is_as_large_as_its_time_allows(
    most: int, aim: float, lease: float, batches: list[tuple[int, float]], size: int
) -> None:
    made = BatchSize(most, aim, lease)
    for messages, seconds in batches:
        made.took(messages, seconds)
    assert made.now == size


def test_batches_that_are_rolled_back_become_smaller() -> None:
    made = BatchSize(500, 1.0, 30.0)
    sizes = []
    for _ in range(6):
        made.failed()
        sizes.append(made.now)
    assert sizes == [8, 4, 2, 1, 1, 1]


# lanes held, mean length of payloads; how long runs are, with batches of 500 and without
RUNS = [
    (1, 0, 2000, 20),
    (4, 0, 2000, 20),
    (20, 0, 1000, 20),
    (1000, 0, 20, 20),
    (1, PAYLOAD_BUDGET // 100, 100, 20),
    (1, 2 * PAYLOAD_BUDGET, 1, 1),
]


@pytest.mark.quick("1000-0")
@pytest.mark.parametrize(("held", "length", "run", "run_without"), RUNS)
def test_runs_are_as_long_as_batches_need_but_no_more_is_held_in_all(
    held: int, length: int, run: int, run_without: int
) -> None:
    for batch, expected in ((500, run), (1, run_without)):
        runs = RunLength(20, 1000, lambda batch=batch: batch)  # type: ignore[misc]
        if length:
            one = Lane("me", [row(i, payload="x" * length) for i in range(20)])
            for _ in range(20):
                runs.read([one] * 20, 20, 0.0)
        assert runs.limit(held, 0) == expected
        assert expected * held <= 20_000


def row(msg_id: int, object_id: str | None = "o", topic: str = "t", **values: Any) -> Row:
    fields = {"payload": "{}", "tries": 0, "crash_times": 0, "flaw": None} | values
    return Row(
        *(msg_id, object_id, topic, fields["payload"], fields["tries"], fields["crash_times"]),
        *(0, None, fields["flaw"]),
    )


class Waiting:
    """Lanes that wait, and what shares a batch with the first."""

    def __init__(self, *, max_tries: int = 3, **options: Any) -> None:
        def handle(messages: Any) -> None:
            """A handler."""

        registry = Registry()
        registry.add(make_handler("t", handle, **{"transactional": True, "batch": 500} | options))
        registry.add(make_handler("u", handle, transactional=True, batch=500))
        registry.add(make_handler("plain", handle))
        setup = SimpleNamespace(
            registry=registry,
            settings=Settings(),
            tables=SimpleNamespace(spec=SimpleNamespace(max_tries=max_tries)),
        )
        self.shared = SimpleNamespace(stop=Stop(), quiesce=Quiesce(), controls=Controls())
        self.lanes = LaneQueue(Identity("a"), InFlight(), housekeep_now=lambda: None)
        self.gathering = Gathering(cast(Any, setup), cast(Any, self.shared), self.lanes)

    def gather(self, *runs: list[Row]) -> list[list[int]] | None:
        """The ids of the batch by lane; the lanes beyond it stay in order."""
        self.lanes.ready.extend(Lane("a", run) for run in runs)
        first = self.lanes.next()
        assert first is not None
        batch = self.gathering.gather(first)
        if batch is None:
            return None
        return [[one.msg_id for one in lane.taken()] for lane in batch.lanes]

    @property
    def left(self) -> list[int]:
        return [lane.row.msg_id for lane in self.lanes.ready]


def test_a_handler_of_one_message_gathers_nothing() -> None:
    assert Waiting().gather([row(1, topic="plain")], [row(2)]) is None


def test_lanes_of_another_handler_or_with_a_try_keep_their_places() -> None:
    one = Waiting()
    runs = [
        [row(1), row(2)],
        [row(3, "p", "u")],
        [row(4, "q"), row(5, "q", tries=1)],
        [row(6, "r", tries=1)],
        [row(7, "s", crash_times=1)],
        [row(8, "v"), row(9, "v", "u"), row(10, "v")],
        [row(11, "w", flaw="odd")],
        [row(12, None)],
    ]
    assert one.gather(*runs) == [[1, 2], [4], [8], [12]]
    assert one.left == [3, 6, 7, 11]


def test_a_batch_without_a_transaction_has_heads_only() -> None:
    one = Waiting(transactional=False)
    assert one.gather([row(1), row(2)], [row(3, "p"), row(4, "p")]) == [[1], [3]]


def test_lanes_that_cannot_be_judged_still_wait() -> None:
    """As without memory."""
    one, judged = Waiting(), list[int]()

    def is_paused(row: Row) -> bool:
        if row.msg_id == 5:
            raise MemoryError
        judged.append(row.msg_id)
        return False

    one.shared.controls = SimpleNamespace(is_paused=is_paused, is_apart=lambda row: False)
    runs = [[row(1)], [row(2, "p", "u")], [row(3, "q"), row(4, "q")], [row(5, "r")], [row(6, "s")]]
    with pytest.raises(MemoryError):
        one.gather(*runs)
    assert judged == [3]
    assert sorted(one.left) == [2, 3, 5, 6]
    assert [lane.width for lane in one.lanes.ready] == [1] * 4


def test_a_paused_topic_shares_no_batch() -> None:
    one = Waiting()
    one.shared.controls = Controls(frozenset({"t"}))
    assert one.gather([row(1), row(2)], [row(3, "p")]) == [[1]]


@pytest.mark.parametrize("state", ["stopping", "quiesce"])
def test_nothing_more_starts_with_a_message_while_the_instance_empties(state: str) -> None:
    one = Waiting()
    if state == "stopping":
        one.shared.stop.requested.set()
    else:
        one.shared.quiesce.active = True
    assert one.gather([row(1), row(2)], [row(3, "p")]) == [[1]]
    assert not one.lanes.ready[0].alone


def test_lanes_of_another_id_share_no_batch() -> None:
    one = Waiting()
    one.lanes.ready.extend([Lane("a", [row(1)]), Lane("b", [row(2, "p")])])
    assert one.gather() == [[1]]
    assert one.left == [2]


def test_a_batch_is_full_by_its_size() -> None:
    one = Waiting()
    long = [row(i) for i in range(1, 40)]
    assert one.gather(long, [row(50, "p")]) == [list(range(1, FIRST + 1))]
    assert one.left == [50]
    other = Waiting()
    assert other.gather(long[:10], [row(50 + i, "p") for i in range(10)], [row(70, "q")]) == [
        list(range(1, 11)),
        list(range(50, 56)),
    ]
    assert other.left == [70]


def test_a_batch_is_full_by_its_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BYTES", 100)
    one = Waiting()
    runs = [[row(1, payload="x" * 60), row(2, payload="x" * 41)], [row(3, "p", payload="x" * 40)]]
    assert one.gather(*runs, [row(4, "q", payload="x")]) == [[1], [3]]
    assert one.left == [4]
    assert Waiting().gather([row(1, payload="x" * 1000)]) == [[1]]  # one always fits


def test_only_so_many_lanes_of_other_handlers_are_looked_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "MOST_PASSED", 3)
    one = Waiting()
    others = [[row(i, f"u{i}", "u")] for i in range(10, 14)]
    assert one.gather([row(1)], *others, [row(2, "p")]) == [[1]]
    assert one.left == [10, 11, 12, 13, 2]


def test_the_rest_of_a_lane_whose_head_has_a_try_is_as_long_as_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash may have been caused by any message of the batch: these run alone, and no more."""
    one = Waiting(batch=5)
    lane = Lane("a", [row(1, tries=1), *[row(i) for i in range(2, 20)]])
    one.lanes.ready.append(lane)
    assert one.gather() == [[1]]
    assert lane.alone
    assert [each.msg_id for each in lane.rows] == [1, 2, 3, 4, 5]
    lane.advance()
    one.lanes.ready.append(lane)
    assert one.gather() == [[2]]
