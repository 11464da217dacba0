"""Storms of equal log lines, and the names of log events."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from msgworker import App, Context, Message, events
from msgworker.cli.logs import Lines
from msgworker.errors import ConfigError
from msgworker.instance.observers import FIRST, MOST_GROUPS, EventLog, LogThrottle
from msgworker.logs import Said, logger
from msgworker.store.rows import Row
from tests.support.waiting import until

ROOT = Path(__file__).parent.parent.parent


class Clock:
    seconds = 1000.0

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
        EventLog(self.stream, log, storms=None if every else LogThrottle(self.clock))

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
    storms = LogThrottle(Clock())
    shown = 0
    for i in range(10_000):
        shown += storms.logs("message.dead", f"t{i}", "", level=30, error="x")
    assert shown == MOST_GROUPS + FIRST
    (rest,) = storms.over(all_of_them=True)
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
    form = Lines(form="json", secrets={"canary"}, tracebacks=False)
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
