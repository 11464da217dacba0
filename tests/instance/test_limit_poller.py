"""When to try limited topics: the decision, as tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from msgworker.instance.claiming.capacity import (
    FIRST_PAUSE_SECONDS,
    TOKENS_SECONDS,
    LimitPoller,
)
from msgworker.instance.claiming.search import Look
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.state import Controls
from msgworker.limit import Limit
from msgworker.store.limits import Free
from msgworker.store.rows import Row


def poller(
    limit: Limit, *, threads: int = 4, clock: Callable[[], float] = lambda: 1000.0
) -> LimitPoller:
    """One that knows of this limit of the topic t."""
    one = LimitPoller(threads=threads, topics=None, longest=1.0, clock=clock)
    one.update(Controls(limits={"t": limit}), ())
    return one


def lane(topic: str = "t") -> Lane:
    return Lane("me", [Row(1, "o", topic, None, 0, 0, 0, None, None)])


TEN = Limit(starts=10, burst=10)  # a token each 0.1 s


@pytest.mark.parametrize(
    ("free", "won", "starts_in", "least", "most"),
    [
        pytest.param(None, 0, 0.0, 0.0, FIRST_PAUSE_SECONDS, id="its record is locked"),
        pytest.param(Free(Limit(4), 0, 0, 0), 0, 0.0, 0.005, 0.015, id="others were faster"),
        pytest.param(Free(Limit(4), 0, 0, 0), 2, 0.0, 0.0, 0.0, id="permits are left"),
        pytest.param(Free(Limit(4), 0, 0, 0), 4, None, 0.02, 0.02, id="all are taken now"),
        pytest.param(Free(Limit(4), 4, 0, 0), 0, None, 0.02, 0.02, id="all were taken"),
        pytest.param(Free(TEN, 0, 1_000_000, 0), 0, 0.1, 0.1, 0.1, id="no token"),
        pytest.param(Free(TEN, 0, 0, 0), 10, 0.0, 0.1, 0.1, id="all tokens are taken now"),
    ],
)
def test_the_next_try_follows_from_what_the_last_one_found(
    free: Free | None, won: int, starts_in: float | None, least: float, most: float
) -> None:
    one = poller(Limit(4))
    one.tried("t", free, won)
    assert one.starts_in() == pytest.approx(starts_in)
    wait = one.wait()
    assert wait is not None
    assert least - 1e-9 <= wait <= most + 1e-9


def test_paused_topics_and_those_of_others_are_not_tried() -> None:
    one = LimitPoller(threads=1, topics={"t", "p"}, longest=1.0)
    limits = {name: Limit(1) for name in ("t", "p", "other")}
    one.update(Controls(frozenset({"p"}), limits), ())
    assert one.due() == ["t"]


def test_the_end_of_a_message_of_ours_frees_its_permit() -> None:
    one, ours = poller(Limit(1), threads=2), lane()
    one.claimed([ours])
    one.tried("t", Free(Limit(1), 1, 0, 0), 1)
    controls = Controls(limits={"t": Limit(1)})
    one.update(controls, {ours})
    assert (one.held, one.due()) == (1, [])
    one.update(controls, ())
    assert (one.held, one.due()) == (0, ["t"])


def test_no_more_are_claimed_than_threads_are_free() -> None:
    one, ours = poller(Limit(9), threads=1), lane()
    one.claimed([ours])
    one.update(Controls(limits={"t": Limit(9)}), {ours})
    assert (one.due(), one.room(5), one.wait()) == ([], 0, None)


def test_one_look_that_took_long_keeps_its_topic_waiting_for_seconds() -> None:
    clock = [1000.0]
    one = poller(Limit(1), threads=1, clock=lambda: clock[0])
    one.looked("t", Look(complete=True, seconds=600.0), busy=False)
    clock[0] += 30
    one.woken()
    assert one.due() == ["t"]


def test_a_topic_without_messages_is_asked_again_where_the_look_did_not_begin_at_the_start() -> (
    None
):
    one = poller(Limit(1), threads=1)
    one.looked("t", Look(complete=True, from_start=False), busy=False)
    assert (one.starts_in(), one.from_start) == (None, False)  # a drain looks afresh
    one.looked("t", Look(complete=True), busy=False)
    assert (one.starts_in(), one.from_start) == (None, True)


def test_who_finds_a_record_locked_again_and_again_looks_more_rarely() -> None:
    one = poller(Limit(1), threads=1)
    waits = []
    for _ in range(12):
        one.tried("t", None, 0)
        waits.append(one.wait() or 0.0)
    assert 0 < waits[0] <= 0.02
    assert min(waits[-3:]) > 0.04
    assert max(waits) <= TOKENS_SECONDS


def test_who_loses_every_race_for_heads_does_not_look_again_at_once() -> None:
    one = poller(Limit(4))
    one.tried("t", Free(Limit(4), 1, 0, 1), 0)
    assert 0 < (one.wait() or 0.0) < 0.02
