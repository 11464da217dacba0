"""Settings and options that cannot be; labels; signals."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from msgworker import App, ConfigError, MessageTable
from tests.support.rows import Table, send
from tests.support.waiting import until

NOT_A_COUNT = [0, -1, 1.5, "4", True, None, 10**9, float("nan")]


@pytest.mark.parametrize("threads", NOT_A_COUNT)
def test_threads_that_cannot_be(sqlite_app, threads):
    sqlite_app.add_handler("t", lambda msg: None)
    for act in (sqlite_app.worker, sqlite_app.drain):
        with pytest.raises(ConfigError, match="threads"):
            act(threads=threads)
    assert not sqlite_app.drain(linger=0).skipped  # a refused drain does not count as running


@pytest.mark.parametrize("tries", [0, -1, 1.5, "3", True, None, float("nan"), 10**6])
def test_max_tries_that_cannot_be(tries):
    with pytest.raises(ConfigError, match="max_tries"):
        MessageTable(max_tries=tries)


NOT_SECONDS = [0, -1, float("nan"), float("inf"), "30", None, True]
BAD_SETTINGS: list[tuple[str, Any]] = [
    *(("lease_seconds", value) for value in (*NOT_SECONDS, 0.01, 1e9)),
    *(("poll_seconds", value) for value in NOT_SECONDS),
    *(("run_limit", value) for value in (-1, 1.5, "4", True)),
    *(("lanes_limit", value) for value in NOT_A_COUNT),
    ("notify", "yes"),
]


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS)
def test_settings_out_of_range(name, value):
    with pytest.raises(ConfigError, match=name):
        App("sqlite:///x.db", **{name: value})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"linger": -1}, "linger"),
        ({"linger": float("nan")}, "linger"),
        ({"time_limit": -1}, "time_limit"),
        ({"time_limit": "1h"}, "time_limit"),
        ({"overlap": "maybe"}, "overlap"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"topics": ["nobody's"]}, "nobody's"),
        ({"grace": -1}, "grace"),
    ],
)
def test_drain_options_that_cannot_be(sqlite_app, options, text):
    sqlite_app.add_handler("t", lambda msg: None)
    with pytest.raises(ConfigError, match=text):
        sqlite_app.drain(**options)
    assert not sqlite_app.drain(linger=0).skipped


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: App("sqlite:///x.db", leese_seconds=3), "lease_seconds"),
        (lambda: App("sqlite:///x.db", wholly_unknown=3), "known are: "),
        (lambda: App("sqlite:///x.db", table="name"), "MessageTable"),
        (lambda: MessageTable(max_tires=3), "max_tries"),
        (lambda: MessageTable(mesg_id="x"), "msg_id"),
        (lambda: MessageTable(on_dead="stop"), "on_dead"),
        (lambda: MessageTable(max_payload=0), "max_payload"),
        (lambda: MessageTable(later_limit=-1), "later_limit"),
        (lambda: MessageTable(visibility_delay_seconds=float("nan")), "visibility_delay_seconds"),
        (lambda: MessageTable(status="msg_id"), "twice"),
    ],
)
def test_unknown_and_wrong_settings_are_named(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_two_workers_with_the_same_label_are_two_instances(make_app, app):
    one, two = make_app(label="same"), make_app(label="same")
    for each in (one, two):
        each.add_handler("t", lambda msg: None)
    with one.worker() as a, two.worker() as b:
        a.start()
        b.start()
        assert a.instance_id != b.instance_id
        send(one, *[f"o{i}" for i in range(20)])
        until(lambda: Table(app).statuses == [2] * 20, "all done")


@pytest.mark.parametrize("label", ["", "x" * 5000, "\u00e4\U0001f600\n\x00", "a b;c'd"])
def test_labels_of_all_sorts(make_app, app, label):
    one = make_app(label=label)
    one.add_handler("t", lambda msg: None)
    send(one, "o")
    with one.worker() as worker:
        worker.start()
        assert len(worker.instance_id or "") <= 64
        assert (worker.instance_id or "").isascii()
        until(lambda: Table(app).statuses == [2], "done")


def test_signals_are_left_alone_unless_asked(sqlite_app):
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    sqlite_app.add_handler("t", lambda msg: seen.append(signal.getsignal(signal.SIGTERM)))
    send(sqlite_app, "o")
    sqlite_app.drain(linger=0)
    assert seen == [before]
    assert signal.getsignal(signal.SIGTERM) is before
