"""Rows that a trigger, a check or the COMMIT refuses."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tenacity.wait import wait_none

from msgworker import App, SchemaError
from msgworker.db import sqlite as sqlite_db
from msgworker.instance.claiming.claimer import (
    FIRST_PAUSE_SECONDS,
    FORGET_SECONDS,
    Claimer,
    RefusedRows,
)
from msgworker.instance.worker import Report
from msgworker.queries.explain import Waits
from msgworker.queries.remaining import Left
from msgworker.store.candidates import Candidate
from tests.support.apps import created
from tests.support.doctor import run
from tests.support.odd_rows import assert_all_others_ran, drain
from tests.support.rounds import fetch
from tests.support.rows import Table, send
from tests.support.waiting import launched, until

REFUSALS = {
    "flag": {
        "sqlite": "CREATE TRIGGER no BEFORE UPDATE ON msgworker_message WHEN NEW.object_id = 'bad'"
        " AND NEW.status = 1 BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        "mariadb": "CREATE TRIGGER no BEFORE UPDATE ON msgworker_message FOR EACH ROW BEGIN"
        " IF NEW.object_id = 'bad' AND NEW.status = 1 THEN"
        " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END",
        "postgresql": "NEW.object_id = 'bad' AND NEW.status = 1",
    },
    "outcome": {
        "sqlite": "CREATE TRIGGER no BEFORE UPDATE ON msgworker_message WHEN NEW.object_id = 'bad'"
        " AND NEW.status = 2 BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        "mariadb": "CREATE TRIGGER no BEFORE UPDATE ON msgworker_message FOR EACH ROW BEGIN"
        " IF NEW.object_id = 'bad' AND NEW.status = 2 THEN"
        " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END",
        "postgresql": "NEW.object_id = 'bad' AND NEW.status = 2",
    },
}


def refuse(app: App, database: Any, what: str, by: str = "") -> None:
    """Make a trigger that refuses an UPDATE of the object 'bad'. by: what it does; otherwise it
    raises an error."""
    sql = REFUSALS[what][database.name]
    if by:
        sql = re.sub(r"SIGNAL [^;]*", by, sql)
    by = by or "RAISE EXCEPTION 'not this one'"
    with app.engine.begin() as conn:
        if database.name == "postgresql":
            conn.exec_driver_sql(
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF {sql} THEN {by}; END IF; RETURN NEW; END $$"
            )
            sql = (
                "CREATE TRIGGER no BEFORE UPDATE ON msgworker_message "
                "FOR EACH ROW EXECUTE FUNCTION no()"
            )
        conn.exec_driver_sql(sql)


@pytest.mark.requires("common_sql")
def test_a_row_that_a_trigger_refuses_to_flag_is_passed_over_and_told_once(
    app, database, taken, caplog
):
    good = send(app, *(f"o{i % 5}" for i in range(20)))
    bad = send(app, "bad", "bad")
    good += send(app, *(f"o{i % 5}" for i in range(20)), None)
    refuse(app, database, "flag")
    report = drain(app, taken)
    assert_all_others_ran(taken, good)
    assert (report.done, report.failed, report.left) == (len(good), 0, 2)
    assert (report.refused, report.exit_code) == (1, 1)
    assert "refused=1" in str(report)
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(told) == 1, told
    assert f"message {bad[0]}" in told[0]
    assert "not this one" in told[0]
    assert app.ops.show(bad[0]).status == "new"


def defer(engine: Any, condition: str) -> None:
    """Make a trigger of PostgreSQL that refuses rows at the COMMIT."""
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF {condition} THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NULL; END $$"
        )
        conn.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON msgworker_message DEFERRABLE "
            "INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()"
        )


def test_a_row_that_the_commit_refuses_is_passed_over_and_holds_up_no_other(
    postgresql, taken, caplog
):
    app = created(App(postgresql.url))
    good = send(app, *(f"o{i % 5}" for i in range(20)))
    bad = send(app, "bad", "bad")
    good += send(app, *(f"o{i % 5}" for i in range(20)), None)
    defer(app.engine, "NEW.object_id = 'bad' AND NEW.status = 1")
    report = drain(app, taken, time_limit=30)
    assert_all_others_ran(taken, good)
    assert (report.done, report.failed, report.left, report.refused) == (len(good), 0, 2, 1)
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(told) == 1, told
    assert f"message {bad[0]}" in told[0]
    assert "not this one" in told[0]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "at the commit"])
def test_a_follower_that_the_database_refuses_does_not_undo_the_outcome_before_it(
    postgresql, taken, late, caplog
):
    app = created(App(postgresql.url))
    first, second, _ = send(app, *"aaa")
    send(app, *(f"o{i}" for i in range(5)))
    defer(app.engine, f"NEW.msg_id = {second} AND NEW.status = 1")
    if not late:
        with app.engine.begin() as conn:
            conn.exec_driver_sql("DROP TRIGGER late ON msgworker_message")
            conn.exec_driver_sql(
                "CREATE TRIGGER late AFTER UPDATE ON msgworker_message "
                "FOR EACH ROW EXECUTE FUNCTION late()"
            )
    report = drain(app, taken, time_limit=30)
    assert (report.done, report.left, report.refused) == (6, 2, 1)
    assert app.ops.show(first).status == "done"
    assert "its outcome is not written" not in caplog.text


@pytest.mark.parametrize("options", [{}, {"batch": 2}], ids=["alone", "batch"])
def test_a_follower_that_the_commit_refuses_fails_no_transactional_handler(postgresql, options):
    App(postgresql.url).create_schema()
    engine = postgresql.engine()
    defer(engine, "NEW.object_id = 'a' AND NEW.payload = '3' AND NEW.status = 1")
    app, handled = App(engine), list[Any]()

    @app.handler("t", transactional=True, max_tries=None if options else 1, **options)
    def handle(msgs: Any) -> None:
        handled.extend(msg.payload for msg in (msgs if options else [msgs]))

    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(number, "a") for number in (1, 2, 3, 4)])
    report = app.drain(linger=0, time_limit=30)
    assert (report.done, report.failed, report.retried) == (2, 0, 0)
    assert (report.left, report.refused) == (2, 1)
    assert set(handled) == {1, 2}


def test_a_check_that_refuses_one_row_costs_only_that_row(app, database, taken, caplog):
    good = send(app, *(f"o{i}" for i in range(20)))
    bad = send(app, "bad", payload="5551234")
    check = "CHECK (object_id <> 'bad' OR status = 0)"
    with app.engine.begin() as conn:
        if database.name == "sqlite":  # only a new table can have one
            (made,) = conn.exec_driver_sql(
                "SELECT sql FROM sqlite_master WHERE name = 'msgworker_message'"
            ).scalars()
            conn.exec_driver_sql("PRAGMA writable_schema = 1")
            changed = f"{made.rstrip().rstrip(')')}, {check})"
            conn.exec_driver_sql(
                "UPDATE sqlite_master SET sql = ? WHERE name = 'msgworker_message'", (changed,)
            )
        else:
            conn.exec_driver_sql(f"ALTER TABLE msgworker_message ADD CONSTRAINT odd {check}")
    app.engine.dispose()
    report = drain(app, taken, linger=2)
    assert_all_others_ran(taken, good)
    assert report.left == 1
    assert app.ops.show(bad[0]).status == "new"
    text = "\n".join(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
    assert "constraint" in text.lower()
    assert "5551234" not in text  # PostgreSQL shows the row that it refuses


@pytest.mark.requires("common_sql")
def test_messages_without_an_object_that_are_refused_do_not_hold_up_others(
    app, database, taken, caplog
):
    refuse(app, database, "flag")
    Table(app)
    send(app, "bad")
    ids = send(app, *(None for _ in range(30)))
    drain(app, taken)
    assert_all_others_ran(taken, ids)


@pytest.mark.requires("common_sql")
def test_a_row_that_is_refused_no_more_runs(make_app, database, taken, monkeypatch):
    monkeypatch.setattr("msgworker.instance.claiming.claimer.FIRST_PAUSE_SECONDS", 0.3)
    app = make_app(lease_seconds=6)  # operators see it with a heartbeat
    app.create_schema()
    refuse(app, database, "flag")
    bad = send(app, "bad", "bad")
    app.add_handler("t", taken.append)
    with launched(app.worker(threads=2)):
        (good,) = send(app, "good")
        until(lambda: [m.msg_id for m in taken] == [good], "the others run")
        until(lambda: app.ops.explain(bad[0]).reason == "refused", "explain says so")
        assert "not this one" in app.ops.explain(bad[0]).text
        assert app.ops.explain(bad[1]).behind.reason == "refused"
        (finding,) = [f for f in app.ops.doctor() if "not this one" in f.text]
        assert str(bad[0]) in finding.text
        with app.engine.begin() as conn:
            on = " ON msgworker_message" if database.name == "postgresql" else ""
            conn.exec_driver_sql(f"DROP TRIGGER no{on}")
        until(lambda: [m.msg_id for m in taken] == [good, *bad], "it runs")
        until(lambda: not [f for f in app.ops.doctor() if "not this one" in f.text], "forgotten")


@pytest.mark.requires("common_sql")
def test_an_outcome_that_a_trigger_refuses_costs_only_that_row(app, database, taken, caplog):
    app.settings  # noqa: B018
    good = send(app, *(f"o{i % 5}" for i in range(20)))
    (bad,) = send(app, "bad")
    good += send(app, *(f"o{i % 5}" for i in range(20)))
    refuse(app, database, "outcome")
    report = drain(app, taken, time_limit=15)
    assert_all_others_ran(taken, good)
    assert (report.done, report.failed, report.left) == (len(good), 1, 0)
    assert [m.msg_id for m in taken].count(bad) == 3
    text = "\n".join(r.getMessage() for r in caplog.records)
    assert f"message {bad}: it cannot be written as done" in text
    shown = app.ops.show(bad)
    assert (shown.status, shown.error_try_times) == ("dead", 3)
    assert "not this one" in (shown.last_error or "")


@pytest.mark.long
@pytest.mark.requires("common_sql")
@pytest.mark.parametrize("what", ["flag", "outcome"])
def test_a_trigger_that_writes_to_a_table_that_is_gone_costs_only_its_row(
    app, database, taken, what
):
    """It is not our schema that has changed, though the database says the same."""
    if database.name == "sqlite":
        pytest.skip("it does not begin a statement whose trigger cannot run")
    good = send(app, *(f"o{i % 5}" for i in range(20)))
    (bad,) = send(app, "bad")
    good += send(app, *(f"o{i % 5}" for i in range(20)))
    refuse(app, database, what, by="INSERT INTO gone VALUES (1)")
    report = drain(app, taken, time_limit=15)
    assert_all_others_ran(taken, good)
    assert (report.done, report.failed) == (len(good), int(what == "outcome"))
    if what == "flag":
        assert (report.left, report.refused) == (1, 1)
    else:
        assert "gone" in (app.ops.show(bad).last_error or "")


@pytest.mark.requires("row_locks")
@pytest.mark.quick("postgresql")
@pytest.mark.parametrize("object_id", ["a", None])
def test_a_message_that_is_locked_is_not_taken_for_a_refused_one(one, app, object_id):
    """It had to wait for 5 s then, and a drain left it and ended with 1."""
    send(app, object_id)
    with app.engine.connect() as another:
        another.execute(sa.select(app.tables.cols().msg_id).with_for_update()).all()
        for _ in range(8):
            assert not fetch(one)
        another.rollback()
    assert one.refused_rows.reasons() == {}
    assert fetch(one) == 1


def test_a_trigger_that_wants_what_another_has_locked_costs_only_its_row(postgresql, taken):
    """Until it is free."""
    app = created(App(postgresql.url))
    good = send(app, *(f"o{i % 5}" for i in range(20)))
    bad = send(app, "bad", "bad")
    run(app, "CREATE TABLE customer (id VARCHAR(20) PRIMARY KEY)")
    run(app, "INSERT INTO customer VALUES ('bad')")
    lock = "PERFORM 1 FROM customer WHERE id = NEW.object_id FOR UPDATE NOWAIT"
    refuse(app, postgresql, "flag", by=lock)
    with app.engine.begin() as conn:
        conn.exec_driver_sql("SELECT * FROM customer FOR UPDATE").all()
        report = drain(app, taken, time_limit=15)
    assert_all_others_ran(taken, good)
    assert (report.done, report.left) == (20, 2)
    assert drain(app, taken).done == 2
    assert [m.msg_id for m in taken][-2:] == bad


def test_a_trigger_that_cannot_run_is_found_at_the_start(sqlite):
    """SQLite refuses each update then; our tables are there all the same."""
    app = created(App(sqlite.url))
    refuse(app, sqlite, "outcome")
    with app.engine.begin() as conn:
        (sql,) = conn.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'no'").scalars()
        conn.exec_driver_sql("DROP TRIGGER no")
        conn.exec_driver_sql(sql.replace("SELECT RAISE(ABORT, 'not this one')", "DELETE FROM gone"))
    with pytest.raises(SchemaError, match=r"does not take .*no such table: main\.gone"):
        App(sqlite.url).create_schema()


@pytest.mark.long
def test_a_race_that_is_always_lost_is_a_refusal(postgresql, taken):
    app = App(postgresql.url, lease_seconds=6)  # operators see it with a heartbeat
    app.create_schema()
    refuse(app, postgresql, "flag")
    with app.engine.begin() as conn:
        (body,) = conn.exec_driver_sql("SELECT prosrc FROM pg_proc WHERE proname = 'no'").scalars()
        raised = body.replace("'not this one'", "'twice' USING ERRCODE = 'unique_violation'")
        conn.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS "
            f"$${raised.replace('%', '%%')}$$"
        )
    (bad,) = send(app, "bad")
    app.add_handler("t", taken.append)
    with launched(app.worker(threads=2)):
        until(lambda: app.ops.explain(bad).reason == "refused", "it is told", seconds=90)
        assert "twice" in app.ops.explain(bad).text


def test_what_was_refused_and_has_been_mended_is_forgotten():
    now = [0.0]
    rows = RefusedRows(clock=lambda: now[0])
    one, pause = Candidate(1, "a", 0, 0, 0, None, 1, None, "a"), FIRST_PAUSE_SECONDS
    rows.record(one, "no")
    now[0] = pause + FORGET_SECONDS - 1
    assert rows.waiting() == (set(), set())
    assert len(rows) == 1  # it is offered again: then its next pause is longer
    rows.record(one, "no")
    now[0] += 2 * pause - 1
    assert rows.waiting() == ({"a"}, {1})
    now[0] += 1
    assert rows.waiting() == (set(), set())
    now[0] += FORGET_SECONDS + 1
    rows.waiting()
    assert len(rows) == 0


def test_a_refusal_that_was_mended_meanwhile_does_not_make_a_drain_fail():
    report = Report(done=1, refused=1)
    assert report.leaving(Left(total=1, by={Waits.DUE: 1})).exit_code == 1
    assert report.leaving(Left()).exit_code == 0


def keep_rows(app: App, database: Any, when: str) -> None:
    """Make a trigger that drops an UPDATE without an error, or all of its values."""
    with app.engine.begin() as conn:
        if database.name == "mariadb":
            kept = ("status", "claimed_by", "claimed_at", "finished_at")
            sets = ", ".join(f"NEW.{name} = OLD.{name}" for name in kept)
            conn.exec_driver_sql(
                "CREATE TRIGGER keep BEFORE UPDATE ON msgworker_message FOR EACH ROW "
                f"BEGIN IF {when} THEN SET {sets}; END IF; END"
            )
            return
        if database.name == "postgresql":
            conn.exec_driver_sql(
                "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RETURN NULL; END $$"
            )
            conn.exec_driver_sql(
                "CREATE TRIGGER keep BEFORE UPDATE ON msgworker_message FOR EACH ROW "
                f"WHEN ({when}) EXECUTE FUNCTION keep()"
            )
            return
        conn.exec_driver_sql(
            f"CREATE TRIGGER keep BEFORE UPDATE ON msgworker_message WHEN {when} "
            "BEGIN SELECT RAISE(IGNORE); END"
        )


@pytest.mark.requires("common_sql")
@pytest.mark.parametrize("transactional", [False, True])
def test_an_outcome_that_the_database_drops_without_an_error_is_a_failed_try(
    app, database, transactional, caplog
):
    starts = []

    @app.handler("t", transactional=transactional, wait=wait_none())
    def handle(msg: Any, ctx: Any) -> None:
        starts.append(msg.msg_id)

    bad, *good = send(app, "bad", "good", "good", "good")
    keep_rows(app, database, "NEW.status = 2 AND OLD.object_id = 'bad'")
    report = app.drain(linger=0, retry_linger=30, time_limit=60)
    assert (report.done, report.failed, report.left, report.exit_code) == (3, 1, 0, 1)
    assert starts.count(bad) == 3
    assert set(starts) == {bad, *good}
    assert "triggers, rules and policies" in (app.ops.show(bad).last_error or "")


@pytest.mark.requires("common_sql")
def test_a_claim_that_the_database_drops_without_an_error_is_a_refusal(
    app, database, taken, monkeypatch, caplog
):
    (bad,) = send(app, "bad")
    good = send(app, *(f"o{i % 5}" for i in range(20)))
    keep_rows(app, database, "NEW.status = 1 AND OLD.object_id = 'bad'")
    report = drain(app, taken, time_limit=60)
    assert_all_others_ran(taken, good)
    assert (report.done, report.left_by, report.exit_code) == (20, {"due": 1}, 1)
    assert (report.refused, report.stopped) == (1, False)
    text = "\n".join(r.getMessage() for r in caplog.records)
    assert f"the database refuses to flag message {bad}" in text


@pytest.fixture
def ending(sqlite):
    """An App on SQLite, and a function that makes a trigger which ends the whole transaction where
    a row is flagged: always, or at the first call of `no_memory`."""
    asked = []

    def no_memory() -> None:
        asked.append(1)
        if len(asked) == 1:
            raise MemoryError

    def end(what: str, when: str) -> None:
        with app.engine.begin() as conn:
            conn.exec_driver_sql(
                "CREATE TRIGGER ends BEFORE UPDATE ON msgworker_message WHEN NEW.status = 1"
                f" AND {when} BEGIN SELECT {what}; END"
            )

    engine = sa.create_engine(sqlite.url)
    event.listen(engine, "connect", lambda raw, _: raw.create_function("no_memory", 0, no_memory))
    app = created(App(engine))
    return app, end


ENDS = "RAISE(ROLLBACK, 'not this one')"


def test_a_refusal_that_ends_the_claim_of_others_costs_only_its_row(ending, taken):
    app, end = ending
    good = send(app, *(f"o{i % 5}" for i in range(20)))
    send(app, "bad", "bad")
    good += send(app, *(f"o{i % 5}" for i in range(20)), None)
    end(ENDS, "NEW.object_id = 'bad'")
    report = drain(app, taken, time_limit=60)
    assert_all_others_ran(taken, good)
    assert (report.done, report.failed, report.left, report.refused) == (len(good), 0, 2, 1)


def test_a_message_without_a_permit_is_not_taken_for_lost(ending, taken, monkeypatch):
    app, end = ending
    app.add_handler("t", lambda msg: taken.append(msg), max_running=1)
    (bad, *good) = send(app, "bad", *(f"o{i}" for i in range(5)))
    end(ENDS, "NEW.object_id = 'bad'")
    claim, lost = Claimer.claim, set[int]()

    def claims(*args: Any, **options: Any) -> Any:
        lanes, missed = claim(*args, **options)
        lost.update(one.msg_id for one in missed)
        return lanes, missed

    monkeypatch.setattr(Claimer, "claim", claims)
    report = app.drain(linger=0, threads=4, time_limit=60)
    assert (report.done, report.left, lost) == (len(good), 1, {bad})


def test_a_claim_waits_once_for_the_lock_of_sqlite(ending, taken, monkeypatch):
    """Also where a trigger might want what others have locked."""
    app, end = ending
    monkeypatch.setattr(sqlite_db, "BUSY_SECONDS", 1.0)
    good = send(app, *(f"o{i}" for i in range(5)))
    end("1", "0")
    app = App(app.engine)
    claim, waited = Claimer.claim, list[float]()

    def locked(*args: Any, **options: Any) -> Any:
        if waited:
            return claim(*args, **options)
        with app.engine.begin():
            begun = time.monotonic()
            try:
                return claim(*args, **options)
            finally:
                waited.append(time.monotonic() - begun)

    monkeypatch.setattr(Claimer, "claim", locked)
    assert drain(app, taken, time_limit=60).done == len(good)
    assert 1 <= waited[0] < 3


def test_a_refused_follower_that_ends_the_settle_does_not_undo_the_outcome_before_it(ending, taken):
    app, end = ending
    first, second, _ = send(app, *"aaa")
    others = send(app, *(f"o{i}" for i in range(5)))
    end(ENDS, f"NEW.msg_id = {second}")
    report = drain(app, taken, time_limit=60)
    assert (report.done, report.failed, report.left, report.refused) == (6, 0, 2, 1)
    assert sorted(msg.msg_id for msg in taken) == [first, *others]


@pytest.mark.parametrize("what", [ENDS, "no_memory()"], ids=["refused", "no memory"])
def test_an_error_that_ends_the_transaction_of_a_handler_leaves_nothing_half_done(ending, what):
    """SQLite ends all of it, and the savepoint round the flag of the next message, too."""
    app, end = ending
    with app.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE effect (msg_id INTEGER)")
    ran = []

    @app.handler("t", transactional=True, wait=wait_none())
    def handle(msg: Any, ctx: Any) -> None:
        ran.append(msg.msg_id)
        ctx.connection.execute(sa.text("INSERT INTO effect VALUES (:i)"), {"i": msg.msg_id})

    ids = send(app, *"aaa")
    end(what, f"NEW.msg_id = {ids[1]}")
    report = app.drain(linger=0, retry_linger=30, time_limit=60)
    states = [app.ops.show(i).status for i in ids]
    with app.engine.connect() as conn:
        effects = list(conn.scalars(sa.text("SELECT msg_id FROM effect ORDER BY msg_id")))
    assert effects == [i for i, state in zip(ids, states, strict=True) if state == "done"]
    if what != ENDS:
        assert (states, ran) == (["done"] * 3, [ids[0], *ids])
        assert (report.done, report.failed, report.retried) == (3, 0, 0)
    else:
        assert (states, ran) == (["done", "new", "new"], [ids[0]] * 2)
        assert (report.done, report.failed, report.retried, report.refused) == (1, 0, 0, 1)
