"""What an instance logs and counts of its events."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from msgworker import App, Context, Message, events
from msgworker.cli.group import Invocation
from msgworker.cli.logs import Lines
from msgworker.errors import ConfigError
from msgworker.instance.observers import (
    FIRST,
    MOST_GROUPS,
    MOST_MINUTES,
    EventLog,
    LogThrottle,
    MinuteStats,
    Spans,
)
from msgworker.logs import Said, logger
from msgworker.store.history import MOST_TOPICS, OTHERS
from msgworker.store.rows import Row
from tests.support.waiting import until

# --- Storms of equal log lines, and the names of log events.


ROOT = Path(__file__).parent.parent.parent
NOON = 1_800_000_000 // 60 * 60


@dataclass
class Clock:
    seconds: float = NOON

    def __call__(self) -> float:
        return self.seconds


class PassOn(logging.LoggerAdapter[logging.Logger]):
    """Keeps what is given as `extra`."""

    def process(self, msg: Any, kwargs: Any) -> Any:
        return msg, kwargs


class Kit:
    """The log of an instance with a clock of its own."""

    def __init__(self, caplog: pytest.LogCaptureFixture, *, every: bool = False) -> None:
        self.clock, self.stream, self._caplog = Clock(), events.Events(), caplog
        caplog.set_level(logging.INFO, "msgworker.storm")
        log = PassOn(logger("msgworker.storm"), {})
        EventLog(self.stream, log, throttle=None if every else LogThrottle(self.clock))

    def dies(self, msg_id: int, error: str = "ValueError: no account 7", topic: str = "t") -> None:
        row = Row(msg_id, None, topic, None, 0, 0, 0, None, None)
        self.stream.emit(events.Dead("i", row, error))

    def beat(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.stream.emit(events.Renewed("i", 1.0, 0, 0))

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def kit(caplog: pytest.LogCaptureFixture) -> Kit:
    return Kit(caplog)


def test_a_storm_is_a_few_lines_and_their_number(kit, caplog):
    for i in range(1209):
        kit.dies(i, f"ValueError: no account {i}")
    assert len(kit.lines) == FIRST
    kit.beat(59.0)
    assert len(kit.lines) == FIRST
    kit.beat(2.0)
    (summed,) = kit.lines[FIRST:]
    told = "message.dead x 1,204 more in the last minute: topic t, ValueError: no account 1208"
    assert summed == told
    record = caplog.records[-1]
    assert (record.levelno, record.event, record.more) == (logging.WARNING, "message.dead", 1204)
    kit.beat(120.0)
    assert len(kit.lines) == FIRST + 1


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_few_failures_are_a_line_each(kit, seconds):
    for i in range(FIRST):
        kit.dies(i)
        kit.clock.seconds += seconds
    kit.beat(200.0)
    assert len(kit.lines) == FIRST


def test_groups_of_other_topics_and_errors_have_lines_of_their_own(kit):
    for i in range(20):
        kit.dies(i)
        kit.dies(i, topic="u")
        kit.dies(i, "KeyError: 'x'")
    assert len(kit.lines) == 3 * FIRST
    kit.beat(61.0)
    assert len([line for line in kit.lines if "x 15 more" in line]) == 3


def test_the_next_minute_shows_the_first_ones_again(kit):
    for _ in range(2):
        for i in range(20):
            kit.dies(i)
        kit.beat(61.0)
    assert len(kit.lines) == 2 * (FIRST + 1)


def test_what_is_counted_is_told_at_the_stop(kit):
    for i in range(7):
        kit.dies(i)
    kit.stream.emit(events.InstanceStopped("i", clean=True))
    assert "message.dead x 2 more" in kit.lines[-1]


def test_every_failure_is_logged_where_that_is_asked_for(caplog):
    kit = Kit(caplog, every=True)
    for i in range(50):
        kit.dies(i)
    assert len(kit.lines) == 50


def test_the_groups_are_bounded():
    throttle = LogThrottle(Clock())
    shown = 0
    for i in range(10_000):
        shown += throttle.logs("message.dead", f"t{i}", "", level=30, error="x")
    assert shown == MOST_GROUPS + FIRST
    (rest,) = throttle.over(all_of_them=True)
    assert rest.count == 10_000 - MOST_GROUPS - FIRST


def test_a_storm_of_a_drain_is_summed_up(sqlite_app, caplog):
    app = sqlite_app

    @app.handler("t", max_tries=1)
    def bad(msg: object) -> None:
        raise ValueError("no")

    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({"n": n}, f"C-{n}") for n in range(30)])
    app.drain(threads=1, linger=0)
    dead = [r for r in caplog.records if getattr(r, "event", "") == "message.dead"]
    assert [getattr(r, "more", None) for r in dead] == [None] * FIRST + [30 - FIRST]


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_the_switch_is_true_or_false(wrong):
    with pytest.raises(ConfigError, match="log_every_failure"):
        App("sqlite://", log_every_failure=wrong)


def test_a_line_of_json_has_the_event_and_no_secret(kit, caplog):
    for i in range(FIRST + 2):
        kit.dies(i, "ValueError: canary\nfake\u2028line \x1b[2J", topic="a\nb")
    kit.beat(61.0)
    form = Lines("json", Invocation(secrets={"canary"}))
    lines = [form.format(record) for record in caplog.records]
    found = [json.loads(line) for line in lines]
    assert [one["event"] for one in found] == ["message.dead"] * (FIRST + 1)
    assert (found[-1]["more"], found[-1]["level"]) == (2, "warning")
    for line in lines:
        assert line.isprintable()
        assert "canary" not in line


def test_the_documented_events_are_those_of_the_code():
    page = (ROOT / "docs" / "operate" / "logs.md").read_text()
    assert re.findall(r"^\| `([a-z.]+)` \|", page, re.M) == [str(one) for one in Said]
    code = "".join(p.read_text() for p in (ROOT / "msgworker").rglob("*.py"))
    assert set(re.findall(r"Said\.(\w+)", code)) == {one.name for one in Said}


def test_topics_without_a_handler_and_what_a_drain_leaves_are_named_events(
    sqlite_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_app.add_handler("known", lambda msg: None)
    with sqlite_app.engine.begin() as conn:
        sqlite_app.send(conn, "nobody", {}, object_id="A")
    assert sqlite_app.drain(threads=1, linger=0).left == 1
    told = {r.event: r.getMessage() for r in caplog.records if hasattr(r, "event")}
    assert "'nobody'" in told[Said.TOPICS_UNHANDLED]
    assert "nobody" in told[Said.DRAIN_LEFT]


def _event(record: logging.LogRecord) -> str:
    return getattr(record, "event", "")


def test_a_handler_beyond_its_timeout_is_a_named_event_of_its_message(
    sqlite_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def late(msg: Message[Any], ctx: Context) -> None:
        until(lambda: Said.HANDLER_LATE in [*map(_event, caplog.records)], "it is told late")

    hasty = App(sqlite_app.engine, lease_seconds=3)  # a heartbeat a second, which sees it
    hasty.add_handler("late", late, timeout=0.05)
    with hasty.engine.begin() as conn:
        msg_id = hasty.send(conn, "late", {}, object_id="A")
    hasty.drain(threads=1, linger=0)
    (said,) = {r.msg_id for r in caplog.records if _event(r) == Said.HANDLER_LATE}
    assert said == msg_id


# --- Counts by minute and topic, from events, on a clock of their own.


@dataclass
class Counts:
    clock: Clock
    stream: events.Events
    minutes: MinuteStats

    def done(self, topic: Any = "t", span: events.Span | None = (0.002, 0.5)) -> None:
        row = Row(1, None, topic, None, 0, 0, 0, None, None)
        self.stream.emit(events.Settled("me", [row], [span]))

    def over(self, **options: bool) -> list[dict[str, int]]:
        return [{k: c.done for k, c in m.topics.items()} for m in self.minutes.over(**options)]


@pytest.fixture
def counted() -> Counts:
    clock, stream = Clock(), events.Events()
    return Counts(clock, stream, MinuteStats(stream, clock))


def test_a_minute_is_over_when_another_one_has_begun(counted):
    counted.done()
    counted.clock.seconds += 59.9
    counted.done()
    assert counted.over() == []
    counted.clock.seconds += 0.2
    counted.done()
    (minute,) = counted.minutes.over()
    assert minute.at.timestamp() == NOON
    assert minute.instance == "me"
    assert minute.topics["t"].done == 2
    assert counted.over(last=True) == [{"t": 2}, {"t": 1}]


def test_minutes_are_those_of_the_database(counted):
    spans = Spans(wall=counted.clock)
    spans.set_clock(NOON + 3600)
    minutes = MinuteStats(counted.stream, spans.database_now)
    counted.done()
    (minute,) = minutes.over(last=True)
    assert minute.at.timestamp() == NOON + 3600


def test_a_minute_without_work_is_none(counted):
    counted.stream.emit(events.Settled("me", []))
    counted.clock.seconds += 600
    assert counted.over(last=True) == []


def test_a_minute_that_was_taken_never_comes_again_after_the_clock_was_put_back(counted):
    counted.done()
    counted.clock.seconds += 60
    counted.done()
    counted.clock.seconds -= 60
    counted.done()
    counted.clock.seconds += 120
    counted.done()
    taken = counted.minutes.over(last=True)
    assert [m.topics["t"].done for m in taken] == [1, 2, 1]
    assert len({m.at for m in taken}) == 3


def test_what_is_written_is_forgotten_and_what_came_meanwhile_is_not(counted):
    counted.done()
    counted.clock.seconds += 60
    first = counted.minutes.over()
    counted.done()
    counted.clock.seconds += 60
    counted.minutes.forget(first)
    assert counted.over() == [{"t": 1}]
    assert counted.minutes.over() != first


def test_the_topics_of_a_minute_are_bounded(counted):
    for i in range(MOST_TOPICS + 50):
        counted.done(f"t{i}")
    (topics,) = counted.over(last=True)
    assert len(topics) == MOST_TOPICS + 1
    assert topics[OTHERS] == 50


@pytest.mark.parametrize("topic", ["x" * 101, "a\0b", "\ud800", 7, b"raw", [1]])
def test_a_topic_that_no_column_takes_is_counted_under_others(counted, topic):
    counted.done(topic)
    assert counted.over(last=True) == [{OTHERS: 1}]


def test_minutes_that_cannot_be_written_are_bounded(counted):
    for _ in range(MOST_MINUTES + 10):
        counted.done()
        counted.clock.seconds += 60
    assert len(counted.minutes.over()) == MOST_MINUTES


def test_each_outcome_has_its_count_and_its_time(counted):
    row = Row(1, None, "t", None, 0, 0, 0, None, None)
    counted.stream.emit(events.Retried("me", row, "x", 1.0, span=(2.0, None)))
    counted.stream.emit(events.Dead("me", row, "x", span=(4.0, 5.0)))
    counted.stream.emit(events.Cancelled("me", row, "x"))
    counted.stream.emit(events.Later("me", row, "x", 1.0, 1, span=(0.0001, None)))
    (minute,) = counted.minutes.over(last=True)
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
