"""Counts by minute and topic, from events, on a clock of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from msgworker import events
from msgworker.instance.observers import MOST_MINUTES, MOST_TOPICS, OTHERS, MinuteStats, Spans
from msgworker.store.rows import Row

NOON = 1_800_000_000 // 60 * 60


@dataclass
class Clock:
    seconds: float = NOON

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Kit:
    clock: Clock
    stream: events.Events
    minutes: MinuteStats

    def done(self, topic: Any = "t", span: events.Span | None = (0.002, 0.5)) -> None:
        row = Row(1, None, topic, None, 0, 0, 0, None, None)
        self.stream.emit(events.Settled("me", [row], [span]))

    def over(self, **options: bool) -> list[dict[str, int]]:
        return [{k: c.done for k, c in m.topics.items()} for m in self.minutes.over(**options)]


@pytest.fixture
def kit() -> Kit:
    clock, stream = Clock(), events.Events()
    return Kit(clock, stream, MinuteStats(stream, clock))


def test_a_minute_is_over_when_another_one_has_begun(kit):
    kit.done()
    kit.clock.seconds += 59.9
    kit.done()
    assert kit.over() == []
    kit.clock.seconds += 0.2
    kit.done()
    (minute,) = kit.minutes.over()
    assert minute.at.timestamp() == NOON
    assert minute.instance == "me"
    assert minute.topics["t"].done == 2
    assert kit.over(last=True) == [{"t": 2}, {"t": 1}]


def test_minutes_are_those_of_the_database(kit):
    kit.minutes.ahead = 3600.0
    kit.done()
    (minute,) = kit.minutes.over(last=True)
    assert minute.at.timestamp() == NOON + 3600


def test_a_minute_without_work_is_none(kit):
    kit.stream.emit(events.Settled("me", []))
    kit.clock.seconds += 600
    assert kit.over(last=True) == []


def test_a_minute_that_was_taken_never_comes_again_after_the_clock_was_put_back(kit):
    kit.done()
    kit.clock.seconds += 60
    kit.done()
    kit.clock.seconds -= 60
    kit.done()
    kit.clock.seconds += 120
    kit.done()
    taken = kit.minutes.over(last=True)
    assert [m.topics["t"].done for m in taken] == [1, 2, 1]
    assert len({m.at for m in taken}) == 3


def test_what_is_written_is_forgotten_and_what_came_meanwhile_is_not(kit):
    kit.done()
    kit.clock.seconds += 60
    first = kit.minutes.over()
    kit.done()
    kit.clock.seconds += 60
    kit.minutes.forget(first)
    assert kit.over() == [{"t": 1}]
    assert kit.minutes.over() != first


def test_the_topics_of_a_minute_are_bounded(kit):
    for i in range(MOST_TOPICS + 50):
        kit.done(f"t{i}")
    (topics,) = kit.over(last=True)
    assert len(topics) == MOST_TOPICS + 1
    assert topics[OTHERS] == 50


@pytest.mark.parametrize("topic", ["x" * 101, "a\0b", "\ud800", 7, b"raw", [1]])
def test_a_topic_that_no_column_takes_is_counted_under_others(kit, topic):
    kit.done(topic)
    assert kit.over(last=True) == [{OTHERS: 1}]


def test_minutes_that_cannot_be_written_are_bounded(kit):
    for _ in range(MOST_MINUTES + 10):
        kit.done()
        kit.clock.seconds += 60
    assert len(kit.minutes.over()) == MOST_MINUTES


def test_each_outcome_has_its_count_and_its_time(kit):
    row = Row(1, None, "t", None, 0, 0, 0, None, None)
    kit.stream.emit(events.Retried("me", row, "x", 1.0, span=(2.0, None)))
    kit.stream.emit(events.Dead("me", row, "x", span=(4.0, 5.0)))
    kit.stream.emit(events.Cancelled("me", row, "x"))
    kit.stream.emit(events.Later("me", row, "x", 1.0, 1, span=(0.0001, None)))
    (minute,) = kit.minutes.over(last=True)
    counts = minute.topics["t"]
    assert (counts.done, counts.retried, counts.dead, counts.postponed) == (0, 1, 2, 1)
    assert (counts.ran_seconds, counts.waited_seconds) == (6.0001, 5.0)
    assert (sum(counts.ran), sum(counts.waited)) == (3, 1)


def row_sent(created_at: Any, **values: int) -> Row:
    known = {"tries": 0, "crash_times": 0, "later_times": 0} | values
    return Row(1, None, "t", None, created_at=created_at, flaw=None, **known)


def test_a_wait_is_told_on_the_clock_of_the_database():
    spans = Spans(wall=lambda: NOON + 50.0, monotonic=lambda: 50.0)
    spans.set_clock(NOON + 50.0 + 7200)  # our clock is two hours behind
    sent = "2027-01-15 10:00:00.500"
    assert NOON == 1_800_000_000
    row = row_sent("2027-01-15 10:00:00.500+00")  # NOON + 2 h and half a second
    assert spans.of([row, row_sent(sent)], [(2.0, 0.25), (0.4, 0.25)]) == [
        (0.25, pytest.approx(1.5)),
        (0.25, 0.0),
    ]


@pytest.mark.parametrize("what", ["tries", "crash_times", "later_times"])
def test_only_a_first_start_has_waited(what):
    spans = Spans()
    row = row_sent("2026-01-01 00:00:00", **{what: 1})
    assert spans.of([row], [(1.0, 0.1)]) == [(0.1, None)]


@pytest.mark.parametrize("sent", [None, "garbage", 5, "0000-00-00 00:00:00"])
def test_a_message_of_unknown_age_has_a_time_and_no_wait(sent):
    assert Spans().of([row_sent(sent)], [(1.0, 0.1)]) == [(0.1, None)]


def test_what_did_not_start_has_no_span():
    assert Spans().of([row_sent("2026-01-01 00:00:00")], [(0.0, 0.0)]) == [None]
