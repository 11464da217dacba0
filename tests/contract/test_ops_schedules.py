"""Operators and schedules: list, pause, resume, send now, delete; doctor and explain."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError, MessageTable, SchemaError
from msgworker import schedules as pure
from msgworker.config import load
from msgworker.doctor import Severity
from msgworker.store import schedules as store
from msgworker.table.build import SCHEDULE
from tests.support.doctor import needed
from tests.support.tables import topicless
from tests.support.timers import behind, clock, edit_row, put_back, rows, ticks_of, timer


@pytest.fixture
def timed(app) -> App:
    """An App with one schedule, which is in the table."""
    app.add_handler("t", lambda msg: None)
    app.every("1h", topic="t", name="hourly", payload={"a": 1}, catch_up="all")
    timer(app).ended()
    return app


def test_schedules_are_listed_with_their_next_five_ticks(timed):
    timed.cron("0 2 * * *", tz="Asia/Shanghai", topic="t", name="nightly")
    hourly, nightly = timed.ops.schedules()
    first = rows(timed)["hourly"].next_at
    assert hourly.next_times == tuple(first + timedelta(hours=n) for n in range(5))
    assert (hourly.spec, hourly.topic, hourly.payload) == ("every 1h", "t", '{"a":1}')
    assert (hourly.declared, hourly.stored, hourly.late_seconds) == (True, True, 0.0)
    assert (nightly.name, nightly.stored, nightly.declared_by) == ("nightly", False, None)
    assert len(nightly.next_times) == 5
    put_back(timed, "hourly", 600)
    assert 600 <= timed.ops.schedules()[0].late_seconds < 700


def test_a_paused_schedule_leaves_out_the_ticks_of_its_pause(timed):
    ops = timed.ops
    assert ops.pause_schedule("hourly", dry_run=True) == 1
    assert rows(timed)["hourly"].paused_at is None
    assert ops.pause_schedule("hourly", actor="anna", reason="month end") == 1
    assert ops.pause_schedule("hourly") == 0
    (info,) = ops.schedules()
    assert (info.paused_by, info.paused_reason, info.next_times) == ("anna", "month end", ())
    put_back(timed, "hourly", 7200)
    role = timer(timed)
    assert ticks_of(timed) == []
    assert ops.resume_schedule("hourly") == 1
    assert ops.resume_schedule("hourly") == 0
    assert ops.schedules()[0].paused_reason is None
    role.round_once()
    role.ended()
    assert ticks_of(timed) == []
    since = clock(timed) - timedelta(minutes=1)
    assert rows(timed)["hourly"].next_at in behind(pure.every("1h"), since)
    done = [(entry.kind, entry.actor, entry.reason) for entry in ops.audit()]
    assert done[-1] == ("pause-schedule", "anna", "month end")
    assert [kind for kind, *_ in done] == ["resume-schedule", "pause-schedule"]
    assert ops.audit()[0].filter == {"schedule": "hourly"}
    last = clock(timed) + timedelta(hours=3)  # the clock of the database was put back
    edit_row(timed, "hourly", last_at=last, paused_at=since)
    assert ops.resume_schedule("hourly") == 1
    assert rows(timed)["hourly"].next_at > last


def test_run_now_sends_one_message_and_moves_no_tick(timed):
    before = rows(timed)["hourly"]
    timed.ops.pause_schedule("hourly")
    done = timed.ops.run_now("hourly", actor="anna")
    assert done == 1
    (sent,) = done.sample
    assert (sent.topic, sent.object_id, sent.payload) == ("t", "hourly", '{"a":1}')
    assert abs((sent.scheduled_for - clock(timed)).total_seconds()) < 30
    after = rows(timed)["hourly"]
    assert (after.next_at, after.last_at) == (before.next_at, before.last_at)
    assert timed.drain(linger=0).done == 1
    assert timed.ops.run_now("hourly", dry_run=True) == 1
    assert len(ticks_of(timed)) == 1


def test_a_deleted_schedule_comes_back_only_with_a_start_of_who_declares_it(timed, caplog):
    role = timer(timed)
    assert timed.ops.delete_schedule("hourly", reason="no longer") == 1
    role.round_once()
    assert "schedule hourly was deleted" in caplog.text
    assert rows(timed) == {}
    role.ended()
    with pytest.raises(ConfigError, match="no schedule 'hourly' in the table; the App declares it"):
        timed.ops.delete_schedule("hourly")
    timer(timed).ended()
    assert list(rows(timed)) == ["hourly"]
    with pytest.raises(ConfigError, match="did you mean hourly"):
        timed.ops.pause_schedule("hourli")


def test_an_act_beside_a_tick_that_is_fired_is_done_once(timed, monkeypatch):
    """The row changes between its look and its UPDATE: it looks again."""
    change, met = store.change, []

    def beside(conn, t, seen, values):
        if "paused_at" in values and not met:
            met.append(1)
            seen = replace(seen, version=-1)
        return change(conn, t, seen, values)

    monkeypatch.setattr(store, "change", beside)
    assert timed.ops.pause_schedule("hourly") == 1
    assert met
    assert len(timed.ops.audit()) == 1  # the first try is rolled back


def test_without_its_table_ops_say_what_to_do(app):
    with app.engine.begin() as conn:
        conn.execute(sa.schema.DropTable(SCHEDULE.of(app.tables)))
    assert app.ops.schedules() == []
    for act in (app.ops.pause_schedule, app.ops.resume_schedule, app.ops.run_now):
        with pytest.raises(SchemaError, match=r"msgworker_schedule is missing.*init-db"):
            act("x")
    app.every("1h", topic="t")
    (found,) = [one for one in needed(app) if "msgworker_schedule" in one.text]
    with app.engine.begin() as conn:
        for statement in found.fix:
            conn.exec_driver_sql(statement)
    assert [one for one in needed(app) if "msgworker_schedule" in one.text] == []


def test_a_payload_is_refused_at_the_start_where_the_table_has_no_column_for_it(tmp_path):
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", table=MessageTable("jobs", payload=None))
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE jobs (msg_id INTEGER PRIMARY KEY, object_id VARCHAR(190), "
            "status SMALLINT DEFAULT 0, error_try_times SMALLINT DEFAULT 0)"
        )
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    app.every("5m", topic="t", payload={"a": 1})
    with pytest.raises(SchemaError, match=r"no payload column; give schedule t none"):
        app.drain(linger=0)


def test_a_topic_is_refused_at_the_start_where_the_table_has_no_column_for_it(tmp_path):
    app = topicless(App(f"sqlite:///{tmp_path / 'jobs.db'}", table=MessageTable("jobs")))
    app.add_handler(None, lambda msg: None)
    app.every("5m", topic="t")
    with pytest.raises(SchemaError, match=r"no topic column.*Give schedule t that"):
        app.drain(linger=0)
    other = App(app.engine.url, table=MessageTable("jobs"))
    other.add_handler(None, lambda msg: None)
    other.every("5m", topic="default")
    assert other.drain(linger=0).done == 0


def test_doctor_advises_the_table_of_schedules_where_it_cannot_know_who_needs_it(app, make_app):
    with app.engine.begin() as conn:
        conn.execute(sa.schema.DropTable(SCHEDULE.of(app.tables)))
    (found,) = [one for one in app.ops.doctor() if "msgworker_schedule" in one.text]
    assert found.severity is Severity.ADVISED
    other = make_app()
    other.add_handler("t", lambda msg: None)  # it declares none
    assert not [one for one in other.ops.doctor() if "msgworker_schedule" in one.text]
    with app.engine.begin() as conn:
        for statement in found.fix:
            conn.exec_driver_sql(statement)
    assert not [one for one in app.ops.doctor() if "msgworker_schedule" in one.text]


def told(app: App) -> list[str]:
    return [one.text for one in app.ops.doctor() if one.check == "schedules"]


def test_doctor_tells_who_is_not_fired_not_declared_or_changed(timed, make_app):
    assert told(timed) == ["1 schedule: fired in time, or paused"]
    other = make_app()
    other.every("30m", topic="t", name="hourly")
    assert ["every 1h (UTC) in the table and every 30m" in text for text in told(other)] == [True]
    stranger = make_app()
    stranger.every("1h", topic="x")
    assert ["this App does not declare it" in text for text in told(stranger)] == [True]
    assert told(make_app()) == told(timed)  # it says nothing of schedules
    put_back(timed, "hourly", 600)
    assert ["no instance fires it" in text for text in told(timed)] == [True]
    timed.ops.pause_schedule("hourly")
    assert told(timed) == ["1 schedule: fired in time, or paused"]
    edit_row(timed, "hourly", spec="at noon", paused_at=None)
    assert ["cannot fire" in text for text in told(timed)] == [True]


def test_doctor_tells_of_a_clock_that_was_put_back(timed):
    edit_row(timed, "hourly", last_at=clock(timed) + timedelta(hours=1))
    assert ["in the future" in text for text in told(timed)] == [True]


def test_explain_and_show_tell_for_which_tick_a_message_was_sent(timed):
    tick = put_back(timed, "hourly", 5)
    timer(timed).ended()
    (msg_id,) = [info.msg_id for info in timed.ops.find()][:1]
    text = timed.ops.explain(msg_id).text
    assert f"sent by schedule hourly for {tick:%Y-%m-%d %H:%M:%S} UTC" in text
    assert timed.ops.show(msg_id).scheduled_for == tick


# ---------------------------------------------------------------- the configuration


def configured(tmp_path, text: str) -> App:
    (tmp_path / "msgworker.toml").write_text(f'url = "sqlite:///{tmp_path}/x.db"\n{text}')
    return App.from_config(load(environ={}, folder=tmp_path))


def test_schedules_of_the_configuration_are_declared(tmp_path):
    app = configured(
        tmp_path,
        '[schedule.nightly]\ncron = "0 2 * * *"\ntz = "Asia/Shanghai"\ntopic = "crm.settle"\n'
        'catch_up = "all"\npayload = {all = true}\n'
        '[schedule.prices]\nevery = "5m"\ntopic = "price"\nobject_id = false\noverlap = "skip"\n',
    )
    nightly, prices = app.schedules
    assert (nightly.name, nightly.spec, nightly.tz) == ("nightly", "0 2 * * *", "Asia/Shanghai")
    assert (nightly.payload, nightly.catch_up, nightly.object_id) == (
        *('{"all":true}', "all", "nightly"),
    )
    assert (prices.spec, prices.object_id, prices.origin) == ("every 5m", None, "msgworker.toml")
    assert (nightly.overlap, prices.overlap) == ("allow", "skip")
    app.add_configured(load(environ={}, folder=tmp_path))  # as the command line does
    assert len(app.schedules) == 2


def test_a_wrong_table_of_a_schedule_is_refused_with_its_place(tmp_path, subtests):
    for text, reason in (
        ('[schedule.x]\nevery = "5m"\ntopc = "t"', r"unknown key 'topc' in \[schedule.x\] of|in"),
        ('[schedule.x]\nevery = "5m"\ntopc = "t"', "did you mean topic"),
        ('[schedule.x]\ntopic = "t"', "needs one of every"),
        ('[schedule.x]\ntopic = "t"\nevery = "5m"\ncron = "* * * * *"', "needs one of every"),
        ('[schedule.x]\nevery = "5m"', "topic is needed"),
        ('[schedule.x]\nevery = "0.5s"\ntopic = "t"', r"\[schedule.x\] in msgworker.toml: every"),
        ('[schedule.x]\nevery = "5m"\ntz = "UTC"\ntopic = "t"', "tz is for cron"),
        ('[schedule.x]\ncron = "* * *"\ntopic = "t"', "has 3 fields"),
        ('[schedule]\nx = "5m"', "must be a table"),
        ("schedule = 5", "schedule in msgworker.toml must be tables"),
        ('[scheduel.x]\nevery = "5m"', "did you mean schedule"),
    ):
        with subtests.test(text=text, reason=reason), pytest.raises(ConfigError, match=reason):
            configured(tmp_path, text)


def test_a_name_in_code_and_configuration_is_refused(tmp_path):
    (tmp_path / "msgworker.toml").write_text('[schedule.t]\nevery = "5m"\ntopic = "t"\n')
    app = App("sqlite://" + f"/{tmp_path}/x.db")
    app.every("1h", topic="t")
    with pytest.raises(ConfigError, match=r"a schedule 't' already \(every 1h, code\)"):
        app.add_configured(load(environ={}, folder=tmp_path))
