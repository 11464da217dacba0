"""What happens is told to whoever asked for it, and never harmed by who is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from msgworker import App, ConfigError, Reject, RetryLater, events
from msgworker.events import EVENTS, Events
from msgworker.testing import Database, drain


def send(app: App, topic: str, object_id: Any = None) -> Any:
    with app.engine.begin() as conn:
        return app.send(conn, topic, object_id=object_id)


def test_a_message_is_told_of_from_its_claim_to_its_end(msgworker_db: Database) -> None:
    app, seen = msgworker_db.app(), list[Any]()
    for kind in EVENTS.values():
        app.on(kind, seen.append)

    @app.handler("ok")
    def ok(msg: Any) -> None:
        pass

    sent = send(app, "ok", object_id="a")
    drain(app)
    names = [type(event).__name__ for event in seen]
    assert [n for n in names if n in ("Claimed", "Started", "Settled")] == [
        "Claimed",
        "Started",
        "Settled",
    ]
    (claimed,) = [e for e in seen if isinstance(e, events.Claimed)]
    (settled,) = [e for e in seen if isinstance(e, events.Settled)]
    assert (claimed.offered, [m.msg_id for m in claimed.messages]) == (1, [sent])
    (done,) = settled.done
    assert (done.msg_id, done.object_id, done.topic, done.tries) == (sent, "a", "ok", 0)
    assert len({event.instance for event in seen}) == 1


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ValueError("no"), events.Retried),
        (Reject("never"), events.Dead),
        (RetryLater(60), events.Later),
    ],
)
def test_every_outcome_that_is_not_done_has_its_event(
    msgworker_db: Database, raised: Exception, told: Any
) -> None:
    app, seen = msgworker_db.app(), list[Any]()
    app.on(told, seen.append)
    done: list[Any] = []
    app.on("Settled", lambda event: done.extend(event.done))

    @app.handler("t")
    def fails(msg: Any) -> None:
        raise raised

    sent = send(app, "t")
    drain(app)
    assert [event.message.msg_id for event in seen] == [sent]
    assert done == []


def test_who_is_told_and_fails_costs_nothing_and_is_named_once(
    msgworker_db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    app = msgworker_db.app()

    def broken(event: events.Settled) -> None:
        raise SystemExit("subscriber")

    counted: list[events.Settled] = []
    app.on(events.Settled, broken)
    app.on(events.Settled, counted.append)

    @app.handler("t")
    def ok(msg: Any) -> None:
        pass

    for _ in range(3):
        send(app, "t")
        drain(app)
    assert sum(len(event.done) for event in counted) == 3
    complaints = [r for r in caplog.records if r.name == "msgworker.events"]
    assert [r.levelno for r in complaints] == [logging.ERROR]
    assert "broken" in complaints[0].getMessage()


def test_who_has_ended_it_is_not_told() -> None:
    stream, seen = Events(), list[events.Event]()
    off = stream.on(events.Dead, seen.append)
    assert stream.wants(events.Dead)
    off()
    stream.emit(events.Dead("me", None, "e"))  # type: ignore[arg-type]
    assert seen == []
    assert not stream.wants(events.Dead)


def test_who_asked_twice_and_ended_one_is_told_once() -> None:
    stream, seen = Events(), list[events.Event]()
    off = stream.on(events.OutageEnded, seen.append)
    stream.on(events.OutageEnded, seen.append)
    off()
    stream.emit(events.OutageEnded("me", "fetcher", 3))
    assert len(seen) == 1


def test_an_event_that_nobody_asks_for_any_more_is_not_wanted() -> None:
    above = Events()
    stream = Events(above)
    assert not stream.wants(events.Started)
    told = ((stream, print), (above, repr), (above, str))
    ends = [one.on(events.Started, fn) for one, fn in told]
    for end in ends:
        assert stream.wants(events.Started)
        end()
        end()
    assert not stream.wants(events.Started)
    above.on(events.Started, print)
    assert stream.wants(events.Started)


def test_those_above_are_told_too_and_asked() -> None:
    above, seen = Events(), list[events.Event]()
    below = Events(above)
    above.on("OutageEnded", seen.append)
    assert below.wants(events.OutageEnded)
    below.emit(events.OutageEnded("me", "fetcher", 3))
    assert seen == [events.OutageEnded("me", "fetcher", 3)]


@pytest.mark.parametrize("event", ["settled", events.Event, int, None])
def test_what_is_no_event_is_refused_with_the_list(event: Any) -> None:
    with pytest.raises(ConfigError, match="InstanceStarted, InstanceStopped, Claimed"):
        Events().on(event, print)


def test_what_an_event_calls_must_be_a_function() -> None:
    with pytest.raises(ConfigError, match="must be a function"):
        Events().on(events.Dead, "print")  # type: ignore[arg-type]
