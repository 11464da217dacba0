"""Schedules: what declares them, who fires them, and that a tick is one message."""

from __future__ import annotations

import json
import logging
import threading
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from msgworker import App, ConfigError, HandlerError, MessageTable, PayloadError, SchemaError
from msgworker import schedules as pure
from msgworker.app import registry_of
from msgworker.errors import DuplicateMessage
from msgworker.events import ScheduleFailed, ScheduleFired, ScheduleReplaced, ScheduleSkipped
from msgworker.message import State
from msgworker.store import schedules as store
from msgworker.table.build import SCHEDULE
from msgworker.testing import drain
from tests.support.apps import created
from tests.support.leases import registered
from tests.support.rows import Table, edit, send
from tests.support.tables import OTHER_NAMES, SEED, foreign_table
from tests.support.timers import behind, clock, edit_row, put_back, rows, ticks_of, timer
from tests.support.waiting import at_once, launched, until

NOW = {"linger": 0, "threads": 1}


def an_app(make_app, **options) -> App:
    """Another App on the same database, with a handler."""
    app = make_app(**options)
    app.add_handler("t", lambda msg: None)
    return app


# ---------------------------------------------------------------- declaring


def test_a_call_with_a_topic_declares_a_schedule(sqlite_app):
    app = sqlite_app
    app.every("5m", topic="price", payload={"all": True})
    app.cron("0 2 * * *", tz="Asia/Shanghai", topic="nightly", object_id=None, catch_up="all")
    price, nightly = app.schedules
    assert (price.name, price.spec, price.topic, price.object_id) == (
        *("price", "every 5m", "price", "price"),
    )
    assert (price.payload, price.catch_up) == ('{"all":true}', "last")
    assert (nightly.spec, nightly.tz, nightly.object_id) == ("0 2 * * *", "Asia/Shanghai", None)
    assert nightly.next_times(datetime(2026, 3, 1, tzinfo=UTC), 2) == [
        datetime(2026, 3, 1, 18, tzinfo=UTC),
        datetime(2026, 3, 2, 18, tzinfo=UTC),
    ]


def test_above_a_function_the_topic_is_its_handler_s_or_its_name(sqlite_app):
    app = sqlite_app

    @app.every("5m")
    def refresh(msg):
        pass

    @app.cron("0 2 * * *", name="night")
    @app.every("23h")
    @app.handler("crm.sync")
    def sync(msg):
        pass

    @app.every("1d", topic="daily")
    def anything(msg):
        pass

    found = [(one.name, one.topic) for one in app.schedules]
    assert found == [
        *(("refresh", "refresh"), ("crm.sync", "crm.sync"), ("night", "crm.sync")),
        ("daily", "daily"),
    ]
    assert app.topics == {"refresh", "crm.sync", "daily"}
    assert registry_of(app).handlers["daily"].fn is anything


def test_a_schedule_without_a_topic_above_nothing_is_refused_at_the_start(sqlite_app):
    sqlite_app.add_handler("t", lambda msg: None)
    sqlite_app.every("5m")
    for act in (lambda: sqlite_app.schedules, sqlite_app.worker, sqlite_app.drain):
        with pytest.raises(ConfigError, match=r"every 5m.*no topic and stands above no function"):
            act()


def test_a_wrong_schedule_is_refused_where_it_is_declared(sqlite_app, subtests):
    sqlite_app.every("1m", topic="there")
    for given, error, reason in (
        ({"name": "x" * 101}, ConfigError, "1 to 100 characters"),
        ({"name": "a\nb"}, ConfigError, "printable"),
        ({"name": " a"}, ConfigError, "printable"),
        ({"topic": ""}, ConfigError, "topic of a schedule"),
        ({"topic": "x" * 101}, ConfigError, "topic of a schedule"),
        ({"payload": {1, object()}}, PayloadError, "object"),
        ({"catch_up": "lst"}, ConfigError, "did you mean last"),
        ({"catch_up": None}, ConfigError, "unknown catch_up"),
        ({"overlap": "skp"}, ConfigError, "unknown overlap 'skp'; did you mean skip"),
        ({"overlap": None}, ConfigError, "unknown overlap"),
        ({"overlap": "skip", "catch_up": "all"}, ConfigError, 'choose catch_up="last"'),
        ({"overlap": "replace", "object_id": None}, ConfigError, "leave object_id out"),
        ({"object_id": 1.5}, ConfigError, "object_id must be"),
        ({"object_id": "x" * 191}, ConfigError, "object_id must be"),
        ({"object_id": ""}, ConfigError, "object_id must be"),
        ({"name": "there"}, ConfigError, "a schedule 'there' already"),
    ):
        with subtests.test(given=given, error=error, reason=reason):
            with pytest.raises(error, match=reason):
                sqlite_app.every("5m", **{"topic": "t", **given})
            assert [one.name for one in sqlite_app.schedules] == ["there"]


def test_a_function_of_several_topics_must_name_one(sqlite_app):
    app = sqlite_app

    def fn(msg):
        pass

    app.add_handler("a", fn)
    app.add_handler("b", fn)
    with pytest.raises(HandlerError, match=r"handles 2 topics; give topic"):
        app.every("5m")(fn)
    app.every("5m", topic="b")(fn)

    def rest(msg):
        pass

    app.add_handler(None, rest)
    with pytest.raises(HandlerError, match=r"handles every topic; give topic"):
        app.every("5m")(rest)


def test_schedules_need_their_table_and_others_do_not(app, make_app):
    with app.engine.begin() as conn:
        conn.execute(sa.schema.DropTable(SCHEDULE.of(app.tables)))
    plain = an_app(make_app)
    send(plain, "a")
    assert plain.drain(**NOW).done == 1
    timed = an_app(make_app)
    timed.every("1s", topic="t")
    with pytest.raises(SchemaError, match=r"msgworker_schedule is missing.*init-db") as caught:
        timed.drain(**NOW)
    assert caught.value.exit_code == 4
    assert timed.create_schema() == ["msgworker_schedule"]
    assert timed.drain(**NOW).exit_code == 0


# ---------------------------------------------------------------- firing


def test_a_message_of_a_tick_is_a_plain_message_of_the_schedule_s_object(app, make_app):
    seen = []

    @app.handler("t")
    def handle(msg):
        seen.append((msg.object_id, msg.payload, msg.scheduled_for))

    app.every("23h", topic="t", payload={"a": [1]}, name="hourly")
    app.drain(**NOW)
    assert seen == []  # a tick to come is not waited for
    tick = put_back(app, "hourly", 10)
    assert app.drain(**NOW).done == 1
    assert seen == [("hourly", {"a": [1]}, tick)]
    row = rows(app)["hourly"]
    assert row.last_at == tick
    assert row.next_at in behind(pure.every("23h"), tick)


def test_of_all_instances_that_see_a_tick_one_sends_its_message(app, make_app, monkeypatch):
    apps = [an_app(make_app) for _ in range(4)]
    for one in apps:
        one.every("1h", topic="t", catch_up="all")
    timers = [timer(one) for one in apps]
    tick = put_back(app, "t", 7200)
    gate, here, real = threading.Barrier(len(timers)), threading.local(), store.look

    def look(*args, **options):
        found = real(*args, **options)
        if not hasattr(here, "has_looked"):
            here.has_looked = True
            gate.wait(30)  # until all have seen it
        return found

    def work(role):
        for _ in range(3):
            role.round_once()
        role.ended()

    monkeypatch.setattr(store, "look", look)
    at_once(*(partial(work, role) for role in timers))
    assert ticks_of(app) == [tick, *_every(tick, 3600, 2)]


def test_who_saw_a_schedule_before_it_was_deleted_and_made_anew_fires_nothing(
    app, make_app, monkeypatch
):
    """The new row has none of the versions that the old one had."""
    app.add_handler("t", lambda msg: None)
    app.every("23h", topic="t", catch_up="all")
    slow, other, again = timer(app), timer(app), an_app(make_app)
    again.every("5m", topic="u", name="t")
    tick = put_back(app, "t", 60)
    made: list[store.Stored] = []
    fired: list[datetime] = []  # another tick too, if the hour ends meanwhile
    real = store.look

    def look(conn, t, **asked):
        """All of it happens behind the first look, which is that of the slow one."""
        found = real(conn, t, **asked)
        if not made:
            made.append(found[1][0])
            other.round_once()
            fired.extend(ticks_of(app))
            assert fired[0] == tick
            app.ops.delete_schedule("t")
            timer(again).ended()
            made.append(real(conn, t)[1][0])
        return found

    monkeypatch.setattr(store, "look", look)
    slow.round_once()
    assert made[0].topic == "t"
    assert rows(app) == {"t": made[1]}
    assert (made[1].topic, ticks_of(app)) == ("u", fired)
    for role in (slow, other):
        role.ended()


def _every(first: datetime, period: int, count: int) -> list[datetime]:
    tick, found = first, []
    for _ in range(count):
        tick = pure.every(period).after(tick)
        if tick <= datetime.now(UTC):
            found.append(tick)
    return found


@pytest.mark.parametrize("committed", [True, False])
def test_a_lost_answer_to_the_commit_of_a_tick_sends_it_once(app, make_app, committed):
    """Whether it was committed is not asked: the row says it."""
    one = an_app(make_app)
    one.every("23h", topic="t")
    role = timer(one)
    tick = put_back(app, "t", 5)
    lost = []

    def cut(conn):
        if not lost and any(conn.info.pop("fires", [])):
            lost.append(1)
            if committed:
                conn.connection.driver_connection.commit()
            raise OperationalError("COMMIT", None, Exception("gone"), connection_invalidated=True)

    def note(conn, cursor, text, *rest):
        if text.startswith("UPDATE msgworker_schedule"):
            conn.info["fires"] = [1]

    sa.event.listen(one.engine, "before_cursor_execute", note)
    sa.event.listen(one.engine, "commit", cut)
    for _ in range(3):
        role.round_once()
    role.ended()
    assert lost
    assert ticks_of(app) == [tick]


def test_a_tick_and_its_message_are_one_transaction(app, make_app):
    """The table refuses the message: the tick stays, and comes when it is taken."""
    one = an_app(make_app)
    one.every("23h", topic="t", object_id=None)
    other = an_app(make_app)
    role = timer(one)
    tick = put_back(app, "t", 5)
    before = rows(app)["t"]
    _refuse(app, "t")
    role.round_once()
    assert rows(app)["t"] == before
    assert ticks_of(app) == []
    _refuse(app, None)
    other.every("23h", topic="t", object_id=None)
    timer(other).ended()
    assert ticks_of(app) == [tick]
    role.ended()


def _refuse(app: App, topic: str | None) -> None:
    """A CHECK that takes no message of a topic; None: no CHECK."""
    sqlite = app.engine.dialect.name == "sqlite"
    if topic is None:
        drop = (
            "DROP TRIGGER refuse"
            if sqlite
            else "ALTER TABLE msgworker_message DROP CONSTRAINT refuse"
        )
    elif sqlite:
        drop = (
            f"CREATE TRIGGER refuse BEFORE INSERT ON msgworker_message WHEN NEW.topic = '{topic}' "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    else:
        drop = f"ALTER TABLE msgworker_message ADD CONSTRAINT refuse CHECK (topic <> '{topic}')"
    with app.engine.begin() as conn:
        conn.exec_driver_sql(drop)


def test_a_schedule_that_is_refused_is_told_and_others_go_on(app, make_app, caplog):
    one = an_app(make_app)
    one.every("23h", topic="bad")
    one.every("23h", topic="t")
    failed, fired = [], []
    one.on(ScheduleFailed, failed.append)
    one.on("ScheduleFired", fired.append)
    now = [0.0]
    role = timer(one, clock=lambda: now[0])
    put_back(app, "bad", 5)
    tick = put_back(app, "t", 5)
    _refuse(app, "bad")
    with caplog.at_level(logging.WARNING, "msgworker"):
        pauses = [role.round_once() for _ in range(3)]
    assert ticks_of(app) == [tick]
    assert [(e.name, e.delay_seconds) for e in failed] == [("bad", 1.0)]  # not at once again
    assert [0.0 < pause <= 1.0 for pause in pauses] == [True] * 3
    assert [(e.name, e.topic, tuple(e.ticks)) for e in fired] == [("t", "t", (tick,))]
    assert isinstance(fired[0], ScheduleFired)
    told = [r.getMessage() for r in caplog.records if "schedule bad" in r.getMessage()]
    assert len(told) == 1
    assert "cannot be sent" in told[0]
    for _ in range(7):
        now[0] += 60.0
        role.run_once()
    assert [e.delay_seconds for e in failed] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    role.ended()


NOT_TAKEN = [
    ({"topic": "t" * 21}, ConfigError, "schedule n: the topic has 21 characters"),
    ({"topic": "t", "payload": "p" * 41}, PayloadError, "schedule n: the payload has 4[13] char"),
    ({"topic": "t", "object_id": "n"}, ConfigError, "schedule n: 'n' is no object_id"),
]


@pytest.mark.requires("column_types")
@pytest.mark.parametrize(("sent", "kind", "says"), NOT_TAKEN, ids=["topic", "payload", "object"])
def test_what_a_schedule_sends_is_checked_at_the_start_as_what_is_sent(
    server, make_app, sent, kind, says
):
    columns = {"topic": "VARCHAR(20)", "body": "VARCHAR(40)", "objectID": "BIGINT"}
    foreign_table(server, **columns)
    app = an_app(make_app, table=SEED.replace(topic="topic", payload="body"))
    app.create_schema()
    app.every("23h", name="n", **{"object_id": 7} | sent)
    with pytest.raises(kind, match=says):
        app.drain(**NOW)
    good = an_app(make_app, table=app.table)
    good.every("23h", name="n", topic="t", object_id=7)
    good.drain(**NOW)
    edit_row(good, "n", **sent)  # by an older program
    with pytest.raises(kind, match=says):
        good.ops.run_now("n")
    assert Table(good).rows("msg_id") == []


def test_a_schedule_whose_payload_is_never_read_is_refused_at_the_start(app, make_app):
    one = an_app(make_app, table=MessageTable(max_payload=2000))
    one.every("23h", topic="t", payload="p" * 2000)
    with pytest.raises(PayloadError, match=r"schedule t: .*at most 2000 are read"):
        one.drain(**NOW)


def test_a_row_that_cannot_be_read_concerns_its_schedule_alone(app, make_app, caplog):
    one = an_app(make_app)
    one.every("23h", topic="odd")
    one.every("23h", topic="t")
    role = timer(one)
    put_back(app, "odd", 5)
    tick = put_back(app, "t", 5)
    edit_row(app, "odd", spec="at noon")
    role.round_once()
    assert ticks_of(app) == [tick]
    assert "five fields" in caplog.text
    role.ended()


@pytest.mark.parametrize(("catch_up", "count"), [("last", 1), ("all", 3), ("none", 0)])
def test_after_an_outage_it_catches_up_as_declared(msgworker_db, catch_up, count):
    app = msgworker_db.app()
    msgworker_db.clock.set(datetime(2026, 3, 1, 9, 50, tzinfo=UTC))
    seen = []
    app.add_handler("t", lambda msg: seen.append(msg.scheduled_for))
    app.cron("0 * * * *", topic="t", catch_up=catch_up)
    drain(app, schedules=True)
    msgworker_db.clock.set(datetime(2026, 3, 1, 12, 30, tzinfo=UTC))
    assert drain(app, schedules=True).done == count
    due = [datetime(2026, 3, 1, hour, tzinfo=UTC) for hour in (10, 11, 12)]
    assert seen == due[len(due) - count :]
    assert drain(app, schedules=True).done == 0
    msgworker_db.clock.set(datetime(2026, 3, 1, 13, 0, 30, tzinfo=UTC))
    assert drain(app, schedules=True).done == 1  # on time, for all of them


@pytest.mark.parametrize("catch_up", pure.CATCH_UP)
def test_no_tick_is_sent_twice_when_the_clock_of_the_database_is_put_back(
    msgworker_db, catch_up, caplog
):
    clock = msgworker_db.clock
    clock.set(datetime(2026, 3, 1, 10, tzinfo=UTC))
    app = msgworker_db.app()
    app.add_handler("t", lambda msg: None)
    app.every("10m", topic="t", catch_up=catch_up)
    drain(app, schedules=True)
    for minutes in (10, 10, -60, 10, 10, 30, 10, 10, 10):  # it is 10:40 at the end
        clock.advance(minutes * 60)
        drain(app, schedules=True)
    ticks = ticks_of(app)
    assert ticks == sorted(set(ticks))
    assert [tick.strftime("%H:%M") for tick in ticks] == ["10:10", "10:20", "10:30", "10:40"]
    assert "the clock of the database was put back" in caplog.text


def test_a_tick_that_was_set_back_behind_the_last_one_is_waited_for(app, make_app):
    """It was looked for without a pause, for as long as the next one was not due."""
    one = an_app(make_app)
    one.every("23h", topic="t")
    role = timer(one)
    now = clock(app)
    edit_row(app, "t", next_at=now - timedelta(days=2), last_at=now)
    assert role.run_once() == 0
    assert role.pause_seconds(0) > 1.0
    assert ticks_of(app) == []
    role.ended()


def test_a_change_while_the_clock_is_put_back_sends_no_tick_again(app, make_app):
    old = an_app(make_app)
    old.every("23h", topic="t")
    timer(old).ended()
    last = clock(app).replace(microsecond=0) + timedelta(hours=3)
    edit_row(app, "t", last_at=last, next_at=last + timedelta(hours=1))
    new = an_app(make_app)
    new.every("30m", topic="t")
    timer(new).ended()
    assert rows(app)["t"].next_at == pure.every("30m").after(last)


def test_put_forward_by_an_hour_it_sends_what_catch_up_says(msgworker_db):
    clock = msgworker_db.clock
    clock.set(datetime(2026, 3, 1, 10, tzinfo=UTC))
    app = msgworker_db.app()
    app.add_handler("t", lambda msg: None)
    for catch_up in pure.CATCH_UP:
        app.every("10m", topic="t", name=catch_up, object_id=catch_up, catch_up=catch_up)
    drain(app, schedules=True)
    clock.advance(3600)
    drain(app, schedules=True)
    assert sorted(Table(app).column("object_id")) == ["all"] * 6 + ["last", "none", "one"]


def test_a_live_instance_fires_within_half_a_second(app, make_app):
    late = []

    @app.handler("t")
    def handle(msg):
        late.append((msg.created_at - msg.scheduled_for).total_seconds())

    app.every("1s", topic="t")
    with launched(app.worker(threads=1)):
        until(lambda: len(late) >= 2, "two ticks")
    assert min(late) >= 0
    assert min(late) < 0.5  # the machine may be busy at one of them


def test_without_schedules_there_is_no_role_and_no_statement(app, make_app):
    one = an_app(make_app)
    seen = []

    @sa.event.listens_for(one.engine, "before_cursor_execute")
    def _(conn, cursor, text, *rest):
        seen.append(text)

    send(one, "a")
    with launched(one.worker(threads=1)) as worker:
        assert worker.instance.timer is None
        until(lambda: Table(app).statuses == [2], "it is done")
    assert [text for text in seen if "msgworker_schedule" in text] == []
    claims = [text for text in seen if "scheduled_for" in text]
    assert claims == []


def test_it_works_on_a_table_with_other_names(make_app):
    app = created(make_app(table=MessageTable(**OTHER_NAMES)))
    seen = []
    app.add_handler(None, lambda msg: seen.append((msg.object_id, msg.scheduled_for)))
    app.every("23h", topic="t", name="n")
    app.drain(**NOW)
    tick = put_back(app, "n", 5)
    assert app.drain(**NOW).done == 1
    named = app.tables.has("scheduled_for")
    assert seen == [("n", tick if named else None)]


# ---------------------------------------------------------------- declared otherwise


def test_a_changed_schedule_goes_on_by_its_new_times_and_fires_no_tick_twice(app, make_app, caplog):
    old = an_app(make_app)
    old.every("23h", topic="t", payload=1)
    timer(old).ended()
    tick = put_back(app, "t", 5)
    new = an_app(make_app)
    new.every("30m", topic="t", payload=2)
    with caplog.at_level(logging.WARNING, "msgworker"):
        role = timer(new)
    row = rows(app)["t"]
    assert (row.spec, row.payload) == ("every 30m", "2")
    assert ticks_of(app) == [tick]  # due by the old times, and sent first
    assert Table(app).column("payload") in (["2"], [2])
    assert row.next_at in behind(pure.every("30m"), tick)
    assert "'every 23h' -> 'every 30m'" in caplog.text
    assert "payload: '1' -> '2'" in caplog.text
    version = row.version
    role.round_once()
    role.ended()
    assert rows(app)["t"].version == version


def test_old_code_beside_new_code_fires_as_in_the_table_and_says_so_once(app, make_app, caplog):
    old = an_app(make_app)
    old.every("23h", topic="t")
    role = timer(old)
    new = an_app(make_app)
    new.every("30m", topic="t")
    timer(new).ended()
    version = rows(app)["t"].version
    with caplog.at_level(logging.WARNING, "msgworker"):
        for _ in range(3):
            role.round_once()
    told = [
        r.getMessage() for r in caplog.records if "changed by another program" in r.getMessage()
    ]
    assert len(told) == 1
    assert "spec: 'every 30m', not 'every 23h'" in told[0]
    assert rows(app)["t"].version == version  # it is not changed back
    tick = put_back(app, "t", 5)
    role.round_once()
    role.ended()
    assert rows(app)["t"].next_at in behind(pure.every("30m"), tick)


def test_a_schedule_that_a_program_does_not_declare_is_not_fired_by_it(app, make_app, caplog):
    old = an_app(make_app)
    old.every("23h", topic="gone")
    timer(old).ended()
    put_back(app, "gone", 600)
    new = an_app(make_app)
    new.every("23h", topic="t")
    with caplog.at_level(logging.WARNING, "msgworker"):
        timer(new).ended()
    assert ticks_of(app) == []
    told = [r.getMessage() for r in caplog.records if "schedule gone" in r.getMessage()]
    assert len(told) == 1
    assert "has not fired since" in told[0]


def test_two_instances_that_declare_at_once_make_one_row(app, make_app):
    apps = [an_app(make_app) for _ in range(3)]
    for one in apps:
        for n in range(3):
            one.every("23h", topic="t", name=f"n{n}", payload={"n": n})
    gate = threading.Barrier(len(apps))

    def start(one):
        gate.wait()
        timer(one).ended()

    at_once(*(partial(start, one) for one in apps))
    assert sorted(rows(app)) == ["n0", "n1", "n2"]
    assert {json.loads(row.payload)["n"] for row in rows(app).values()} == {0, 1, 2}


def test_a_paused_schedule_does_not_fire(app, make_app):
    one = an_app(make_app)
    one.every("23h", topic="t")
    role = timer(one)
    put_back(app, "t", 5)
    edit_row(app, "t", paused_at=clock(app))
    role.round_once()
    assert ticks_of(app) == []
    role.ended()


def test_of_a_schedule_that_asks_for_one_no_tick_is_sent_while_another_one_waits(app):
    app.add_handler("t", lambda msg: None)
    app.every("23h", topic="t", catch_up="one")
    app.every("23h", topic="t", name="beside", object_id="other")
    role = timer(app)
    send(app, "t", topic="of another topic")  # in front of it, in the same object
    for _ in range(3):
        put_back(app, "t", 1)
        role.run_once()
        assert rows(app)["t"].next_at > clock(app)
    (waits,) = [i for i, topic in Table(app).rows("msg_id", "topic") if topic == "t"]
    edit(app, waits, status=1, claimed_by="another")  # it runs: the next one may wait
    for _ in range(2):
        put_back(app, "t", 1)
        role.run_once()
    assert [topic for (topic,) in Table(app).rows("topic")].count("t") == 2
    assert len(ticks_of(app, "t")) == 2
    role.ended()


# ---------------------------------------------------------------- overlap


def overlapping(app, make_app, overlap, **options):
    """The role of an instance with a schedule of this overlap, and the events of it."""
    one = an_app(make_app)
    one.every("23h", topic="t", overlap=overlap, **options)
    told = []
    for event in (ScheduleFired, ScheduleSkipped, ScheduleReplaced):
        one.on(event, told.append)
    return timer(one), told


def ids_of(app) -> list[int]:
    return sorted(Table(app).column("msg_id"))


@pytest.mark.requires("unique_keys")
@pytest.mark.parametrize("held", ["t", None])
def test_a_tick_is_skipped_while_the_message_before_has_not_ended(app, make_app, held):
    role, told = overlapping(app, make_app, "skip", object_id=held)
    first = put_back(app, "t", 50)
    role.run_once()
    (sent,) = ids_of(app)
    # It waits, runs, waits for its next try, and is tried again by an operator.
    states = [{"status": 0}, {"status": 1, "claimed_by": "x"}]
    states += [{"status": -1, "error_try_times": 1, "claimed_by": None}]
    for number, state in enumerate(states, 1):
        edit(app, sent, **state)
        tick = put_back(app, "t", 40 - number)
        role.run_once()
        row = rows(app)["t"]
        assert (row.skipped, row.replaced, row.last_at) == (number, 0, None)
        assert row.next_at > clock(app)
        assert isinstance(told[-1], ScheduleSkipped)
        assert (told[-1].name, list(told[-1].ticks), told[-1].msg_id) == ("t", [tick], sent)
    assert ticks_of(app) == [first]
    edit(app, sent, status=2, finished_at=clock(app))
    last = put_back(app, "t", 5)
    role.run_once()
    assert ticks_of(app) == [first, last]
    assert (rows(app)["t"].skipped, rows(app)["t"].last_at) == (3, last)
    (shown,) = app.ops.schedules()
    assert (shown.overlap, shown.skipped, shown.replaced) == ("skip", 3, 0)
    text = app.ops.explain(ids_of(app)[-1]).text
    assert "sent by schedule t (overlap skip, 3 ticks skipped) for" in text
    assert "it holds the unique key schedule:t until it ends" in text
    role.ended()


@pytest.mark.requires("unique_keys")
def test_a_message_that_was_edited_to_another_topic_skips_ticks_and_says_so(app, make_app):
    role, told = overlapping(app, make_app, "skip")
    put_back(app, "t", 50)
    role.run_once()
    (sent,) = ids_of(app)
    assert app.ops.edit(sent, topic="of nobody", reason="r") == 1
    for number in (1, 2):
        tick = put_back(app, "t", 40 - number)
        role.run_once()
        assert (told[-1].msg_id, list(told[-1].ticks)) == (sent, [tick])
        assert rows(app)["t"].skipped == number
    assert "sent by schedule t (overlap skip, 2 ticks skipped) for" in app.ops.explain(sent).text
    assert app.ops.cancel(sent, reason="r") == 1
    put_back(app, "t", 5)
    role.run_once()
    assert [topic for (topic,) in Table(app).rows("topic")] == ["of nobody", "t"]
    assert rows(app)["t"].skipped == 2
    role.ended()


@pytest.mark.requires("unique_keys")
def test_of_several_instances_one_decides_what_becomes_of_a_tick(app, make_app):
    roles = [overlapping(app, make_app, "skip")[0] for _ in range(3)]
    for _ in range(3):
        put_back(app, "t", 5)
        at_once(*(role.round_once for role in roles))
    assert (len(ids_of(app)), rows(app)["t"].skipped) == (1, 2)
    for role in roles:
        role.ended()


@pytest.mark.requires("unique_keys")
def test_a_message_that_has_not_begun_becomes_that_of_the_next_tick(app, make_app):
    role, told = overlapping(app, make_app, "replace", catch_up="one")
    put_back(app, "t", 50)
    role.run_once()
    (sent,) = ids_of(app)
    tick = put_back(app, "t", 5)
    role.run_once()
    assert (ids_of(app), ticks_of(app)) == ([sent], [tick])
    row = rows(app)["t"]
    assert (row.skipped, row.replaced, row.last_at) == (0, 1, tick)
    (replaced,) = [one for one in told if isinstance(one, ScheduleReplaced)]
    assert (replaced.name, replaced.tick, replaced.msg_id) == ("t", tick, sent)
    assert [list(one.ticks)[-1] for one in told if isinstance(one, ScheduleFired)][-1] == tick
    assert app.ops.explain(sent).message.status is State.NEW
    role.ended()


@pytest.mark.requires("unique_keys")
def test_a_message_that_has_begun_is_cancelled_for_the_next_tick(app, make_app):
    role, _ = overlapping(app, make_app, "replace")
    put_back(app, "t", 50)
    role.run_once()
    (first,) = ids_of(app)
    registered(app, "other-1")
    edit(app, first, status=1, claimed_by="other-1")
    put_back(app, "t", 40)
    role.run_once()
    first, second = ids_of(app)
    request = app.ops.explain(first).cancel
    assert (request.actor, request.reason) == ("schedule t", "replaced by its next tick")
    assert app.ops.explain(second).behind.message.msg_id == first
    edit(app, first, status=2, claimed_by=None, finished_at=clock(app))
    edit(app, second, status=-1, error_try_times=1, claimed_at=clock(app))  # it is tried later
    put_back(app, "t", 5)
    role.run_once()
    assert len(ids_of(app)) == 3
    found = app.ops.explain(second)
    assert found.message.status is State.DEAD
    assert found.message.last_error == "cancelled: replaced by its next tick (by schedule t)"
    assert rows(app)["t"].replaced == 2
    role.ended()


@pytest.mark.requires("unique_keys")
def test_a_message_that_cannot_be_cancelled_runs_on_and_counts_as_replaced_by_no_tick(
    app, make_app
):
    role, told = overlapping(app, make_app, "replace")
    put_back(app, "t", 50)
    role.run_once()
    edit(app, *ids_of(app), status=1, claimed_by=None)  # as by a foreign consumer
    tick = put_back(app, "t", 40)
    role.run_once()
    assert Table(app).statuses == [1, 0]
    assert (rows(app)["t"].replaced, rows(app)["t"].last_at) == (0, tick)
    assert [type(one) for one in told] == [ScheduleFired, ScheduleFired]
    put_back(app, "t", 5)
    role.run_once()
    assert (len(ids_of(app)), rows(app)["t"].replaced) == (2, 1)
    role.ended()


@pytest.mark.requires("unique_keys")
@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("new", [{"topic": "u"}, {"topic": "t", "object_id": "another"}])
def test_a_message_of_another_topic_or_object_is_replaced_by_a_new_one(app, make_app, new, runs):
    role, _ = overlapping(app, make_app, "replace")
    put_back(app, "t", 50)
    role.run_once()
    role.ended()
    (first,) = ids_of(app)
    if runs:
        registered(app, "other-1")
        edit(app, first, status=1, claimed_by="other-1")
    later = an_app(make_app)
    later.every("23h", name="t", overlap="replace", **new)
    role = timer(later)
    for minutes in (40, 5):
        put_back(app, "t", minutes)
        role.run_once()
    first, second = ids_of(app)
    sent = app.ops.explain(second).message
    assert (sent.topic, sent.object_id) == (new["topic"], new.get("object_id", "t"))
    found = app.ops.explain(first)
    if runs:
        assert found.cancel.reason == "replaced by its next tick"
    else:
        assert found.message.status is State.DEAD
        assert found.message.last_error == "cancelled: replaced by its next tick (by schedule t)"
    assert rows(app)["t"].replaced == 2
    role.ended()


@pytest.mark.requires("unique_keys")
def test_a_schedule_is_sent_by_hand_as_its_overlap_says(app, make_app):
    for overlap in ("skip", "replace"):
        one = an_app(make_app)
        one.every("23h", topic="t", name=overlap, overlap=overlap)
        timer(one).ended()
        app.ops.run_now(overlap)
    first, second = ids_of(app)
    said = f'held by message {first}.*schedule skip has overlap="skip": wait for that message'
    with pytest.raises(DuplicateMessage, match=said):
        app.ops.run_now("skip")
    assert app.ops.run_now("replace").sample[0].msg_id == second
    assert ids_of(app) == [first, second]


@pytest.mark.requires("unique_keys")
def test_overlap_needs_keys_and_the_table_of_today(app, make_app):
    bare = an_app(make_app, table=MessageTable("tb_bare"))
    bare.create_schema()
    bare.every("23h", topic="default", overlap="skip")
    with pytest.raises(ConfigError, match=r'schedule default has overlap="skip".*no columns for'):
        timer(bare)
    plain = an_app(make_app)
    plain.every("23h", topic="t", catch_up="one")
    with app.engine.begin() as conn:
        for name in ("overlap", "skipped", "replaced", "paused_reason"):
            conn.exec_driver_sql(f"ALTER TABLE msgworker_schedule DROP COLUMN {name}")
    late = an_app(make_app)
    late.every("23h", topic="t", overlap="skip")
    with pytest.raises(SchemaError, match=r"no column overlap\. Run `msgworker db .* upgrade`"):
        timer(late)
    role = timer(plain)  # without it all is as before
    for _ in range(2):
        put_back(app, "t", 5)
        role.run_once()
    assert len(ticks_of(app)) == 1
    (shown,) = app.ops.schedules()
    assert (shown.overlap, shown.skipped) == ("allow", 0)
    put_back(app, "t", 600)
    texts = [one.text for one in app.ops.doctor()]
    assert len([text for text in texts if "msgworker_schedule has no column" in text]) == 4
    assert [text for text in texts if "no instance fires it" in text]
    for change, reason in ((app.ops.pause_schedule, "month end"), (app.ops.resume_schedule, None)):
        assert change("t", reason=reason) == 1
        assert app.ops.schedules()[0].paused_reason is None
    app.upgrade_schema()
    timer(late).ended()
    assert rows(app)["t"].overlap == "skip"
    role.ended()


def test_a_schedule_without_an_object_cannot_ask_for_one(sqlite_app):
    with pytest.raises(ConfigError, match="leave object_id out"):
        sqlite_app.every("23h", topic="t", object_id=None, catch_up="one")
