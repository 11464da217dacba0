"""Metrics: counted from events, added up over processes, told as Prometheus reads them."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from msgworker import App, MessageTable, Reject, RetryLater, events
from msgworker.errors import ConfigError, DatabaseUnavailable
from msgworker.instance.role import Outage
from msgworker.metrics import exposition
from msgworker.metrics.counting import (
    METRICS,
    OUTCOMES,
    Counting,
    Known,
    Snapshot,
    known_of,
    packed,
    past,
    summed,
    unpacked,
)
from msgworker.metrics.exposition import KEEP_SECONDS, Looking, serving, text
from msgworker.ops import Ops
from msgworker.store.rows import Row
from tests.support.apps import created
from tests.support.programs import fill
from tests.support.waiting import launched, until

ROOT = Path(__file__).parent.parent.parent
GRAFANA = ROOT / "samples" / "grafana"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def row(topic: Any = "t") -> Row:
    return Row(1, None, topic, None, 0, 0, 0, None, None)


def parsed(body: bytes) -> Samples:
    """The samples, as prometheus_client itself reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def scraped(app: App, counting: Counting) -> Samples:
    looking = Looking(app.ops, partial(known_of, app))
    return parsed(text(lambda: (counting.snapshot(), looking.snapshot()))[0])


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_a_scrape_tells_what_was_done(sqlite_app):
    app = sqlite_app
    counting = Counting(app)
    tries: list[int] = []

    @app.handler("a")
    def good(msg: Any) -> None: ...

    @app.handler("b", max_tries=2)
    def bad(msg: Any) -> None:
        tries.append(1)
        if msg.payload == "reject":
            raise Reject("no")
        if len(tries) == 1:
            raise RetryLater(after=0)
        raise ValueError("x")

    with app.engine.begin() as conn:
        app.send_many(conn, "a", [({"n": i}, f"C-{i}") for i in range(30)])
        app.send(conn, "b", "fail", object_id="1")
        app.send(conn, "waits", {}, object_id="2")
    app.drain(threads=2, linger=0)
    found = scraped(app, counting)
    assert value(found, "msgworker_messages_total", topic="a", outcome="done") == 30
    assert value(found, "msgworker_messages_total", topic="b", outcome="postponed") == 1
    assert value(found, "msgworker_handler_seconds_count", topic="a") == 30
    assert value(found, "msgworker_handler_seconds_bucket", topic="a", le="+Inf") == 30
    assert value(found, "msgworker_wait_seconds_count", topic="a") == 30
    assert value(found, "msgworker_claims_won_total") >= 1
    assert value(found, "msgworker_looks_total") >= value(found, "msgworker_wasted_looks_total")
    assert value(found, "msgworker_wasted_looks_total") >= 1
    assert value(found, "msgworker_settle_messages_sum") >= 31
    assert value(found, "msgworker_instances") == 0
    assert value(found, "msgworker_database_up") == 1
    assert value(found, "msgworker_oldest_waiting_seconds", topic="waits") < 60
    assert value(found, "msgworker_table_messages", topic="waits", status="new") == 1
    assert value(found, "msgworker_table_instances", life="live") == 0


def told_of_all() -> Snapshot:
    stream = events.Events()
    known = Known(
        (), (), in_flight=7, running=3, instances=1, threads=4, away=1, locks_away=2, margin=6.5
    )
    counting = Counting(stream, lambda: known)
    me, one = "i", row()
    for event in (
        events.Looked(me, 3, 0),
        events.Looked(me, 3, 2),
        events.Claimed(me, [one, one], 3),
        events.Settled(me, [one], [(0.2, 1.5)], 2),
        events.Retried(me, one, "x", 1.0, span=(0.1, None)),
        events.Dead(me, one, "x"),
        events.Cancelled(me, one, "x"),
        events.Later(me, one, "x", 1.0, 1),
        events.Released(me, one, False),
        events.Lost(me, one),
        events.FellBack(me, [one], "x"),
        events.Recovered(me, "dead", 5),
        events.OutageBegan(me, "fetcher", "x"),
        events.ScheduleFired(me, "nightly", "t", [1, 2]),  # type: ignore[list-item]
        events.ScheduleSkipped(me, "nightly", "t", [1, 2, 3], 7),  # type: ignore[list-item]
        events.ScheduleReplaced(me, "nightly", "t", 1, 7),  # type: ignore[arg-type]
        events.ScheduleFailed(me, "nightly", "x", 1.0),
        events.JobCompleted(me, 1, "month end", done=5, dead=0),
    ):
        stream.emit(event)
    return counting.snapshot()


TOLD = {
    **{
        ("msgworker_messages_total", ("t", word)): 1
        for word in ("done", "retried", "dead", "cancelled", "postponed", "released", "lost")
    },
    ("msgworker_looks_total", ()): 2,
    ("msgworker_jobs_completed_total", ()): 1,
    ("msgworker_wasted_looks_total", ()): 1,
    ("msgworker_claims_offered_total", ()): 3,
    ("msgworker_claims_won_total", ()): 2,
    ("msgworker_in_flight_messages", ()): 7,
    ("msgworker_running_handlers", ()): 3,
    ("msgworker_instances", ()): 1,
    ("msgworker_handler_threads", ()): 4,
    ("msgworker_lease_margin_seconds", ()): 6.5,
    ("msgworker_lease_losses_total", ()): 0,
    ("msgworker_recoveries_total", ()): 1,
    ("msgworker_recovered_messages_total", ()): 5,
    ("msgworker_database_outages_total", ()): 1,
    ("msgworker_database_away", ()): 1,
    ("msgworker_locks_away", ()): 2,
    ("msgworker_batches_alone_total", ()): 1,
    ("msgworker_schedule_ticks_total", ("nightly",)): 2,
    ("msgworker_schedule_skipped_total", ("nightly",)): 3,
    ("msgworker_schedule_replaced_total", ("nightly",)): 1,
    ("msgworker_schedule_failures_total", ("nightly",)): 1,
}


def test_each_event_has_its_number():
    found = told_of_all()
    assert {key: found[key] for key in TOLD} == TOLD
    assert found["msgworker_settle_messages", ()] == (2.0, [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    total, counts = found["msgworker_handler_seconds", ("t",)]  # type: ignore[misc]
    assert (round(total, 6), sum(counts)) == (0.3, 2)
    assert set(found) - set(TOLD) == {
        ("msgworker_settle_messages", ()),
        ("msgworker_handler_seconds", ("t",)),
        ("msgworker_wait_seconds", ("t",)),
    }


def gauges(counting: Counting) -> dict[str, Any]:
    """Those of instances."""
    found = counting.snapshot()
    names = ("instances", "handler_threads", "database_away", "locks_away", "lease_margin_seconds")
    return {name: found.get((f"msgworker_{name}", ())) for name in names}


def test_gauges_are_of_the_instances_that_run_whenever_counting_began(sqlite_app):
    app = sqlite_app
    app.add_handler("t", lambda msg: None)
    before = Counting(app, partial(known_of, app))
    none: dict[str, Any] = dict.fromkeys(gauges(before), 0) | {"lease_margin_seconds": None}
    assert gauges(before) == none
    with launched(app.worker(threads=2)) as worker:
        assert worker.instance is not None
        shared, after = worker.instance.shared, Counting(app, partial(known_of, app))
        shared.renew_now.set()
        until(lambda: gauges(after)["lease_margin_seconds"] is not None, "renewed")
        shared.away.begins(outage := Outage(shared.log, "x"), "x", "x")
        both = [gauges(before), gauges(after)]
        shared.away.ends(outage, "x", 1)
        assert both[0] == both[1]
        assert {**none, **both[0]} == {**both[0], "instances": 1, "handler_threads": 2}
        assert both[0]["database_away"] == 1
        old = worker.instance_id
        shared.identity.retire()
        shared.housekeep_now.set()
        until(lambda: worker.instance_id != old, "it has taken another id")
    assert [gauges(before), gauges(after)] == [none, none]


def test_topics_beyond_a_hundred_share_one_label():
    stream = events.Events()
    counting = Counting(stream)
    for i in range(150):
        stream.emit(events.Settled("i", [row(f"t{i}")], [None]))
    stream.emit(events.Settled("i", [row("x" * 200)], [None]))
    found = counting.snapshot()
    assert found["msgworker_messages_total", ("(others)", "done")] == 51
    assert sum(key[0] == "msgworker_messages_total" for key in found) == 101


def test_topics_of_the_table_beyond_a_hundred_are_added_up(sqlite_app, monkeypatch):
    monkeypatch.setattr(exposition, "MOST_TOPICS", 1)
    app, ages = sqlite_app, {"a": 9, "b": 7, "c": 8, "d": 6}
    with app.engine.begin() as conn:
        for topic in ages:
            app.send_many(conn, topic, [(1, None)] * 2)
    seen = app.ops.overview()
    topics = tuple(replace(one, oldest_seconds=ages[one.topic]) for one in seen.topics)
    found = exposition.metrics_of(replace(seen, topics=topics))
    assert found["msgworker_table_messages", ("(others)", "new")] == 6
    assert found["msgworker_oldest_waiting_seconds", ("(others)",)] == 8


def test_processes_add_up_and_what_a_killed_one_has_counted_stays():
    one = unpacked(json.loads(json.dumps(packed(told_of_all()))))
    assert one == told_of_all()
    both = summed((one, one))
    assert both["msgworker_messages_total", ("t", "done")] == 2
    assert both["msgworker_settle_messages", ()] == (4.0, [0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    assert both["msgworker_lease_margin_seconds", ()] == 6.5
    left = summed((past(one), one))
    assert left["msgworker_messages_total", ("t", "done")] == 2
    assert left["msgworker_in_flight_messages", ()] == 7


def test_a_scrape_lists_exactly_the_documented_metrics():
    body = text(lambda: (told_of_all(),))[0].decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", body, re.M))
    assert kinds == {one.name: one.kind for one in METRICS.values()}
    page = (ROOT / "docs" / "operate" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(msgworker_\w+)` \| (\w+) \| ([^|]*) \|", page, re.M)
    assert [(name, kind) for name, kind, _ in rows] == list(kinds.items())
    labels = {name: tuple(re.findall(r"`(\w+)`", told)) for name, _, told in rows}
    assert labels == {one.name: one.labels for one in METRICS.values()}


def used(expressions: list[str]) -> set[str]:
    names = set(re.findall(r"msgworker_\w+", " ".join(expressions)))
    return {re.sub(r"_(bucket|sum|count)$", "", n) if n not in METRICS else n for n in names}


def test_the_grafana_dashboard_uses_metrics_that_exist_and_shows_all():
    board = json.loads((GRAFANA / "msgworker.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    assert used(found) == set(METRICS)
    chosen = {one["name"] for one in board["templating"]["list"]}
    assert chosen == {"datasource", *re.findall(r"\$(\w+)", " ".join(found))} - {"__rate_interval"}
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)


def test_alert_rules_use_metrics_that_exist():
    found = re.findall(r"expr:(.*?)(?:for|labels):", (GRAFANA / "alerts.yml").read_text(), re.S)
    assert len(found) == 9
    assert used(found) <= set(METRICS)


def test_what_is_known_is_there_at_0_before_anything_happens(sqlite_app):
    app = sqlite_app
    app.add_handler("t", lambda msg: None)
    app.every("1h", topic="t", name="hourly")
    counting = Counting(app, partial(known_of, app))
    found = scraped(app, counting)
    for outcome in ("done", *OUTCOMES.values()):
        assert value(found, "msgworker_messages_total", topic="t", outcome=outcome) == 0
    assert value(found, "msgworker_wait_seconds_count", topic="t") == 0
    assert value(found, "msgworker_schedule_ticks_total", schedule="hourly") == 0
    assert value(found, "msgworker_table_messages", topic="t", status="dead") == 0
    assert value(found, "msgworker_table_dead_holding", topic="t", holds="job") == 0


@pytest.mark.parametrize(("status", "cut"), [("new", ["new"]), ("dead", ["failed", "dead"])])
def test_a_topic_has_no_0_of_a_state_of_which_not_all_were_counted(
    sqlite_app, monkeypatch, status, cut
):
    monkeypatch.setattr("msgworker.queries.counts.MOST", 2)
    app = sqlite_app
    with app.engine.begin() as conn:
        app.send_many(conn, "first" if status == "new" else "last", [(1, None)])
        app.send_many(conn, "many", [(1, None)] * 3)
        app.send_many(conn, "last" if status == "new" else "first", [(1, None)])
        if status == "dead":
            conn.exec_driver_sql("UPDATE msgworker_message SET status = -1, error_try_times = 3")
    for topic in ("many", "last", "none"):
        app.add_handler(topic, lambda msg: None)
    found = scraped(app, Counting(app))
    name = "msgworker_table_messages"
    assert value(found, name, topic="many", status=status) in (1, 2)
    for topic in ("last", "none"):
        told = {dict(of)["status"] for n, of in found if n == name and dict(of)["topic"] == topic}
        assert told == {"new", "processing", "failed", "dead"} - set(cut)
    unknown = "msgworker_table_dead_unacknowledged", (("topic", "last"),)
    assert (unknown in found) == (status == "new")


def test_what_runs_is_that_of_the_moment(sqlite_app):
    app, go = sqlite_app, threading.Event()

    @app.handler("settle")
    def waits(msg: Any) -> None:
        go.wait(30)

    counting = Counting(app, partial(known_of, app))
    fill(app, 3)
    with launched(app.worker(threads=2)):
        until(lambda: app.load[1] == 2, "two handlers run")
        found = scraped(app, counting)
        assert value(found, "msgworker_running_handlers") == 2
        assert value(found, "msgworker_in_flight_messages") in (2, 3)
        go.set()
        until(lambda: app.load == (0, 0), "nothing runs")
        assert value(scraped(app, counting), "msgworker_running_handlers") == 0


def test_a_topic_cannot_fake_a_line_of_a_scrape(sqlite_app):
    evil = 'x"} 1\nfake_metric 1\n# \\'
    stream = events.Events()
    counting = Counting(stream)
    stream.emit(events.Settled("i", [row(evil)], [(0.1, None)]))
    found = parsed(text(lambda: (counting.snapshot(),))[0])
    assert value(found, "msgworker_messages_total", topic=evil, outcome="done") == 1
    assert not any(name == "fake_metric" for name, _ in found)


class Away:
    """Ops of a database that is away. back: what it says once it is there."""

    def __init__(self) -> None:
        self.asked, self.back = 0, None

    def within(self, seconds: float) -> Away:
        return self

    def overview(self) -> Any:
        self.asked += 1
        if self.back is None:
            raise DatabaseUnavailable("canary-secret host")
        return self.back


def test_the_database_is_asked_rarely_and_each_absence_is_told_once(sqlite_app, caplog):
    now, ops = [0.0], Away()
    looking = Looking(ops, clock=lambda: now[0])  # type: ignore[arg-type]
    for _ in range(50):
        assert looking.snapshot() == {("msgworker_database_up", ()): 0.0}
    assert ops.asked == 1
    now[0] += KEEP_SECONDS
    looking.snapshot()
    assert ops.asked == 2
    assert caplog.text.count("cannot be read for metrics") == 1
    for ops.back in (sqlite_app.ops.overview(), None):
        now[0] += KEEP_SECONDS
        looking.snapshot()
    assert caplog.text.count("cannot be read for metrics") == 2


class Stuck:
    """Ops of a database that answers when it is let."""

    def __init__(self, ops: Ops) -> None:
        self.asked, self.answers, self._ops = 0, threading.Event(), ops

    def within(self, seconds: float) -> Stuck:
        return self

    def overview(self) -> Any:
        self.asked += 1
        self.answers.wait(60)
        return self._ops.overview()


def test_a_scrape_ends_though_the_database_does_not_answer_and_asks_it_once(
    sqlite_app, monkeypatch
):
    monkeypatch.setattr(exposition, "DEADLINE_SECONDS", 0.01)
    up, ops = ("msgworker_database_up", ()), Stuck(sqlite_app.ops)
    looking = Looking(ops)  # type: ignore[arg-type]
    assert [looking.snapshot() for _ in range(3)] == [{up: 0.0}] * 3
    assert ops.asked == 1
    ops.answers.set()
    until(lambda: looking.snapshot()[up] == 1.0, "it is read")
    assert ops.asked == 1


def test_metrics_are_served_over_http_and_an_address_that_is_taken_is_named():
    from urllib.request import urlopen

    with serving(lambda: (told_of_all(),), "127.0.0.1", 0) as port:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            found = parsed(answer.read())
        assert value(found, "msgworker_messages_total", topic="t", outcome="done") == 1
        with (
            pytest.raises(ConfigError, match=f"cannot be served at 127.0.0.1:{port}"),
            serving(lambda: (), "127.0.0.1", port),
        ):
            pass


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"msgworker\[metrics\]"):
        text(lambda: ())


def test_a_table_of_other_names_is_measured_too(sqlite):
    names = {"msg_id": "msgID", "object_id": "objectID", "created_at": None, "topic": "kind"}
    app = created(App(sqlite.url, table=MessageTable("tb_msg", **names)))
    counting = Counting(app)
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        app.send(conn, "t", {})
    app.drain(linger=0)
    found = scraped(app, counting)
    app.engine.dispose()
    assert value(found, "msgworker_handler_seconds_count", topic="t") == 1
    assert ("msgworker_wait_seconds_count", (("topic", "t"),)) not in found


def test_slow_clients_of_the_metrics_take_no_thread_each() -> None:
    """Neither half a request nor an idle connection holds a place for which another one waits."""
    with serving(lambda: (told_of_all(),), "127.0.0.1", 0) as port:
        before = threading.active_count()
        slow = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(60)]
        for one in slow:
            with contextlib.suppress(OSError):
                one.sendall(b"GET /metrics HTTP/1.1\r\nX-")
        until(lambda: threading.active_count() - before <= exposition.MOST_SCRAPES, "they end")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b"msgworker_messages_total" in answer.read()
        for one in slow:
            one.close()


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/metrics", "127.0.0.1:9464", 200),
        ("/metrics", "localhost:9464", 200),
        ("/metrics", "[::1]:9464", 200),
        ("/metrics", "evil.example:9464", 421),
        ("/other", "127.0.0.1:9464", 404),
    ],
)
def test_metrics_of_this_machine_are_for_its_own_names(path: str, host: str, status: int) -> None:
    with serving(lambda: (told_of_all(),), "127.0.0.1", 0) as port:
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        asked.request("GET", path, headers={"Host": host})
        assert asked.getresponse().status == status
        asked.close()
