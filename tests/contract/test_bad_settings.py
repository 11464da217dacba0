"""Settings and options that cannot be; labels; signals."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from msgworker import App, ConfigError, MessageTable
from tests.support.rows import Table, send
from tests.support.waiting import launched, until

NOT_A_COUNT = [0, -1, 1.5, "4", True, None, 10**9, float("nan")]


def test_threads_that_cannot_be(sqlite_app, subtests):
    sqlite_app.add_handler("t", lambda msg: None)
    for threads in NOT_A_COUNT:
        for act in (sqlite_app.worker, sqlite_app.drain):
            with subtests.test(threads=threads), pytest.raises(ConfigError, match="threads"):
                act(threads=threads)
    assert not sqlite_app.drain(linger=0).skipped  # a refused drain does not count as running


NOT_SECONDS = [0, -1, float("nan"), float("inf"), "30", None, True]
BAD_SETTINGS: list[tuple[str, Any]] = [
    *(("lease_seconds", value) for value in (*NOT_SECONDS, 0.01, 1e9)),
    *(("poll_seconds", value) for value in NOT_SECONDS),
    *(("run_limit", value) for value in (-1, 1.5, "4", True)),
    *(("lanes_limit", value) for value in NOT_A_COUNT),
    *(("backoff_seconds", value) for value in (-1, 481, float("inf"), True, "20")),
    ("notify", "yes"),
]


def test_settings_out_of_range(subtests):
    for name, value in BAD_SETTINGS:
        with subtests.test(name, value=value), pytest.raises(ConfigError, match=name):
            App("sqlite:///x.db", **{name: value})
    for tries in (0, -1, 1.5, "3", True, None, float("nan"), 10**6):
        with subtests.test(max_tries=tries), pytest.raises(ConfigError, match="max_tries"):
            MessageTable(max_tries=tries)


BAD_OPTIONS: list[tuple[str, Any]] = [
    *(("linger", value) for value in (-1, float("nan"))),
    *(("time_limit", value) for value in (-1, "1h")),
    ("overlap", "maybe"),
    ("max_concurrent", 0),
    ("topics", ["nobody's"]),
    ("grace", -1),
]


def test_drain_options_that_cannot_be(sqlite_app, subtests):
    sqlite_app.add_handler("t", lambda msg: None)
    for name, value in BAD_OPTIONS:
        says = "nobody's" if name == "topics" else name
        with subtests.test(name, value=value), pytest.raises(ConfigError, match=says):
            sqlite_app.drain(**{name: value})
    assert not sqlite_app.drain(linger=0).skipped


def test_unknown_and_wrong_settings_are_named(subtests):
    for options, says in (
        ({"leese_seconds": 3}, "lease_seconds"),
        ({"wholly_unknown": 3}, "known are: "),
        ({"table": "name"}, "MessageTable"),
    ):
        with subtests.test(options=options), pytest.raises(ConfigError, match=says):
            App("sqlite:///x.db", **options)
    for options, says in (
        ({"max_tires": 3}, "max_tries"),
        ({"mesg_id": "x"}, "msg_id"),
        ({"on_dead": "stop"}, "on_dead"),
        ({"max_payload": 0}, "max_payload"),
        ({"later_limit": -1}, "later_limit"),
        ({"visibility_delay_seconds": float("nan")}, "visibility_delay_seconds"),
        ({"status": "msg_id"}, "twice"),
    ):
        with subtests.test(options=options), pytest.raises(ConfigError, match=says):
            MessageTable(**options)


def test_two_workers_with_the_same_label_are_two_instances(make_app, app):
    one, two = make_app(label="same"), make_app(label="same")
    for each in (one, two):
        each.add_handler("t", lambda msg: None)
    with launched(one.worker()) as a, launched(two.worker()) as b:
        assert a.instance_id != b.instance_id
        send(one, *[f"o{i}" for i in range(20)])
        until(lambda: Table(app).statuses == [2] * 20, "all done")


def test_labels_of_all_sorts(app, subtests):
    for label in ("", "x" * 5000, "\u00e4\U0001f600\n\x00", "a b;c'd"):
        one = App(app.engine, label=label)
        one.add_handler("t", lambda msg: None)
        send(one, "o")
        with subtests.test(label=label), one.worker() as worker:
            worker.start()
            assert len(worker.instance_id or "") <= 64
            assert (worker.instance_id or "").isascii()
            until(lambda: set(Table(app).statuses) == {2}, "done")


def test_signals_are_left_alone_unless_asked(sqlite_app):
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    sqlite_app.add_handler("t", lambda msg: seen.append(signal.getsignal(signal.SIGTERM)))
    send(sqlite_app, "o")
    sqlite_app.drain(linger=0)
    assert seen == [before]
    assert signal.getsignal(signal.SIGTERM) is before
