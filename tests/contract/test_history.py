"""The history for charts: written by instances, read by ops."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, Reject
from msgworker.doctor import Severity
from msgworker.instance.instance import Instance
from msgworker.instance.liveness import housekeeper
from msgworker.store import history
from msgworker.store.history import Counts, Minute
from msgworker.table.build import HISTORY, RAN_COUNTS, WAITED_COUNTS
from tests.engines import statements
from tests.support.apps import created
from tests.support.rounds import beat


def send(app: App, topic: str, count: int) -> None:
    with app.engine.begin() as conn:
        app.send_many(conn, topic, [({"n": i}, f"{topic}-{i}") for i in range(count)])


def rows(app: App) -> list[dict[str, Any]]:
    table = HISTORY.of(app.tables)
    with app.engine.connect() as conn:
        query = sa.select(table).order_by(table.c.topic)
        return [row._asdict() for row in conn.execute(query)]


def counted(instance: Instance) -> Any:
    found = instance.housekeeper.history_writer.minutes
    assert found is not None
    return found


def test_a_drain_leaves_a_row_for_each_topic(app):
    app.add_handler("a", lambda msg: time.sleep(0.004))

    @app.handler("b")
    def bad(msg: Any) -> None:
        raise Reject("no")

    @app.handler("c", batch=10)
    def slow(messages: Any) -> None:
        time.sleep(0.05)

    send(app, "a", 3)
    send(app, "b", 2)
    send(app, "c", 10)
    app.drain(threads=1, linger=0)
    a, b, c = rows(app) if len(rows(app)) == 3 else pytest.skip("a minute has just ended")
    assert (a["topic"], a["done"], a["dead"], a["retried"], a["postponed"]) == ("a", 3, 0, 0, 0)
    assert (b["topic"], b["done"], b["dead"]) == ("b", 0, 2)
    assert c["done"] == 10
    assert a["ran_ms"] >= 12
    assert 50 <= c["ran_ms"] < 500  # each message has its share of the call
    for row in (a, b, c):
        assert sum(row[name] for name in RAN_COUNTS) == row["done"] + row["dead"]
        assert sum(row[name] for name in WAITED_COUNTS) == row["done"] + row["dead"]
        assert row["minute_at"].second == 0
        assert datetime.now(UTC) - row["minute_at"] < timedelta(minutes=3)
    assert a["instance"] == b["instance"] == c["instance"]


def test_the_history_is_one_point_for_each_step(app):
    app.add_handler("a", lambda msg: None)
    app.add_handler("b", lambda msg: None)
    send(app, "a", 3)
    send(app, "b", 2)
    app.drain(linger=0)
    for window, steps, seconds in (("1h", 60, 60), ("6h", 72, 300), ("24h", 96, 900)):
        told = app.ops.history(window)
        assert (told.recorded, told.step_seconds, len(told.points)) == (True, seconds, steps)
        assert sum(point.done for point in told.points) == 5
        gaps = {b.at - a.at for a, b in zip(told.points, told.points[1:], strict=False)}
        assert gaps == {timedelta(seconds=seconds)}
        assert told.points[-1].at <= datetime.now(UTC)
    only = app.ops.history("1h", topic="b").points
    assert sum(point.done for point in only) == 2
    (busy,) = [point for point in only if point.done == 2] or pytest.skip("between two minutes")
    assert busy.ran_p50 is not None
    assert busy.ran_p50 <= busy.ran_p95
    assert 0 <= busy.waited_p50 <= busy.waited_p95 < 60


@pytest.mark.parametrize("window", ["1h", "6h", "24h"])
def test_each_minute_is_in_the_step_that_it_begins_in(app, window):
    """The database divides them: at the borders of a step it must agree with us."""
    told = app.ops.history(window)
    first, step = told.points[0].at, timedelta(seconds=told.step_seconds)
    begins = [told.points[n].at for n in (0, 1, 7, -2)]
    minutes = [at for begin in begins for at in (begin, begin + step - timedelta(minutes=1))]
    wanted: dict[datetime, int] = {}
    with app.engine.begin() as conn:
        for number, at in enumerate(minutes):
            history.write(conn, app.tables, [Minute(at, f"i{number}", {"t": Counts(done=1)})])
            wanted[first + (at - first) // step * step] = 2
    told = app.ops.history(window)
    if told.points[0].at != first:
        pytest.skip("a step has just ended")
    assert {point.at: point.done for point in told.points if point.done} == wanted


def test_old_rows_are_not_in_the_window(app):
    table = HISTORY.of(app.tables)
    with app.engine.begin() as conn:
        now = history.database_seconds(conn, app.tables)
        for minutes in (30, 90, 7 * 60, 25 * 60, -60):
            at = datetime.fromtimestamp(now // 60 * 60 - minutes * 60, UTC)
            history.write(conn, app.tables, [Minute(at, "old", {"t": Counts(done=1)})])
    assert len(rows(app)) == 5
    assert table.name == "msgworker_history"
    found = [sum(p.done for p in app.ops.history(w).points) for w in ("1h", "6h", "24h")]
    assert found == [1, 2, 3]


def test_each_topic_has_its_times_in_a_window_from_one_read_of_the_history(app):
    names = len(RAN_COUNTS)
    fast, slow = ([0] * names for _ in range(2))
    fast[1], slow[8] = 4, 1  # between 1 ms and 3 ms; between 3 s and 10 s
    with app.engine.begin() as conn:
        now = history.database_seconds(conn, app.tables)
        for minutes, counts in (
            (30, {"a": Counts(done=3, retried=1, ran_seconds=0.01, ran=fast)}),
            (31, {"a": Counts(done=4, ran_seconds=0.01, ran=fast)}),
            (90, {"b": Counts(dead=1, ran_seconds=5.0, ran=slow)}),
            (-60, {"c": Counts(done=1)}),
        ):
            at = datetime.fromtimestamp(now // 60 * 60 - minutes * 60, UTC)
            history.write(conn, app.tables, [Minute(at, "old", counts)])
    with statements(app.engine) as sent:
        (a,) = app.ops.timings("1h").topics
    assert len([text for text in sent if "msgworker_history" in text]) == 1
    assert (a.topic, a.done, a.retried, a.dead) == ("a", 7, 1, 0)
    assert (a.ran_p50, a.ran_p95) == (0.003, 0.003)  # what is known to be enough
    assert (a.waited_p50, a.waited_p95) == (None, None)
    waited = [0] * len(WAITED_COUNTS)
    waited[8] = 7
    with app.engine.begin() as conn:
        at = datetime.fromtimestamp(now // 60 * 60 - 29 * 60, UTC)
        history.write(conn, app.tables, [Minute(at, "old", {"a": Counts(waited=waited)})])
    (with_waits,) = app.ops.timings("1h").topics
    assert with_waits.waited_p50 == 100
    assert app.ops.timings("1h", waits=False).topics == [a]
    busiest = app.ops.timings("6h").topics
    assert [one.topic for one in busiest] == ["b", "a"]
    assert busiest[0].ran_p50 == 10


def test_without_the_table_nothing_is_written_and_readers_say_so(app, make_app):
    with app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_history")
    other = make_app(app.engine.url)
    other.add_handler("t", lambda msg: None)
    send(other, "t", 3)
    with statements(other.engine) as sent:
        assert other.drain(linger=0).done == 3
    assert not [text for text in sent if "msgworker_history" in text]
    told = other.ops.history()
    assert (told.recorded, told.points) == (False, [])
    assert (other.ops.timings().recorded, other.ops.timings().topics) == (False, [])
    (found,) = [one for one in other.ops.doctor() if "msgworker_history" in one.text]
    assert found.severity is Severity.ADVISED
    assert "CREATE TABLE" in found.fix[0]
    with app.engine.begin() as conn:
        conn.exec_driver_sql(found.fix[0])
    assert other.create_schema() == []


def test_an_instance_whose_history_is_switched_off_writes_none(app, make_app):
    other = make_app(app.engine.url, history_seconds=0)
    other.add_handler("t", lambda msg: None)
    send(other, "t", 3)
    with statements(other.engine) as sent:
        assert other.drain(linger=0).done == 3
    assert not [text for text in sent if "msgworker_history" in text]
    assert rows(app) == []


def test_a_minute_without_work_costs_no_statement(one, app):
    with statements(app.engine) as sent:
        one.housekeeper.history_writer.write()
        one.housekeeper.history_writer.write(last=True)
    assert sent == []


def work(one: Instance, app: App) -> None:
    """One message is done, and its minute is over."""
    send(app, "t", 1)
    one.fetcher.run_once()
    lane = one.lanes.ready.popleft()
    begin = time.monotonic()
    one.caller.handle(lane)
    one.handlers.record(lane, begin)
    one.settler.add(lane, True)
    minutes = counted(one)
    before = minutes.clock
    minutes.clock = lambda: before() + 60


def test_a_minute_is_one_insert_beside_the_heartbeat(one, app):
    work(one, app)
    with statements(app.engine) as sent:
        beat(one)
        beat(one)
    inserts = [text for text in sent if text.startswith("INSERT INTO msgworker_history")]
    assert len(inserts) == 1
    assert [row["done"] for row in rows(app)] == [1]


def test_a_lost_answer_to_the_commit_doubles_nothing(one, app, monkeypatch):
    work(one, app)
    written = history.database_seconds

    def committed(conn: Any, t: Any) -> float:
        conn.commit()
        raise sa.exc.OperationalError("COMMIT", {}, Exception("no answer"))

    monkeypatch.setattr(housekeeper.history, "database_seconds", committed)
    with suppress(sa.exc.DBAPIError):
        one.housekeeper.history_writer.write()
    assert [row["done"] for row in rows(app)] == [1]
    monkeypatch.setattr(housekeeper.history, "database_seconds", written)
    work(one, app)
    one.housekeeper.history_writer.write()
    assert sorted(row["done"] for row in rows(app)) == [1, 1]
    assert counted(one).over() == []


def test_the_history_that_cannot_be_written_costs_nothing_else(one, app, caplog):
    work(one, app)
    with app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_history")
    renewed = one.shared.identity.tenure.renewed_at
    beat(one)
    work_again = [beat(one) for _ in range(3)]
    assert work_again == [0, 0, 0]
    assert one.shared.identity.tenure.renewed_at > renewed
    assert caplog.text.count("the history is not written") == 1


def test_old_history_is_deleted_by_instances_an_hour_at_a_time(one, app, monkeypatch):
    monkeypatch.setattr(housekeeper, "FORGET_EVERY", 2)
    with app.engine.begin() as conn:
        now = history.database_seconds(conn, app.tables) // 60 * 60
        for hours in (240, 239.5, 238, 167):
            at = datetime.fromtimestamp(now - hours * 3600, UTC)
            history.write(conn, app.tables, [Minute(at, "old", {"t": Counts(done=1)})])
    for left in (2 + 2, 1 + 4, 1 + 6):
        for _ in range(2):
            work(one, app)
            one.housekeeper.history_writer.write()
        assert len(rows(app)) == left
    assert min(row["minute_at"].timestamp() for row in rows(app)) == now - 167 * 3600


def test_purge_deletes_old_history_too(app):
    with app.engine.begin() as conn:
        now = history.database_seconds(conn, app.tables) // 60 * 60
        for hours in (1000, 240, 239.5, 238, 167):
            at = datetime.fromtimestamp(now - hours * 3600, UTC)
            history.write(conn, app.tables, [Minute(at, "old", {"t": Counts(done=1)})])
    app.ops.purge("30d", dry_run=True)
    assert len(rows(app)) == 5
    app.ops.purge("30d")
    assert [row["minute_at"].timestamp() for row in rows(app)] == [now - 167 * 3600]


def test_histories_of_two_message_tables_stay_apart(app, make_app):
    from msgworker import MessageTable

    other = created(make_app(app.engine.url, table=MessageTable("tb_other")))
    for one in (app, other):
        one.add_handler("t", lambda msg: None)
    send(app, "t", 3)
    send(other, "t", 2)
    app.drain(linger=0)
    other.drain(linger=0)
    assert [sum(p.done for p in one.ops.history().points) for one in (app, other)] == [3, 2]
