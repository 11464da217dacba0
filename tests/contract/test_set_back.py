"""Triggers that set back what is written, wholly or in part, while the database counts the row as
changed: what a statement of ours did is judged by the rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, RetryLater
from msgworker.ops.results import Why
from tests.support.apps import created
from tests.support.odd_rows import assert_all_others_ran, drain
from tests.support.rounds import beat, by_hand, fetch
from tests.support.rows import Table, edit, send
from tests.support.waiting import launched, until

ALL = ("status", "claimed_by", "claimed_at", "finished_at", "error_try_times")
NO_ERROR = "without an error: see the triggers, rules and policies of the table (back)"


def set_back(app: App, database: Any, when: str, columns: Iterable[str] = ALL) -> None:
    """Make a trigger after which a row has the values of before."""
    pairs = [(name, f"OLD.{name}") for name in columns]
    with app.engine.begin() as conn:
        if database.name == "sqlite":
            sets = ", ".join(f"{name} = {old}" for name, old in pairs)
            conn.exec_driver_sql(
                f"CREATE TRIGGER back AFTER UPDATE ON msgworker_message WHEN {when} BEGIN "
                f"UPDATE msgworker_message SET {sets} WHERE msg_id = NEW.msg_id; END"
            )
            return
        if database.name == "postgresql":
            sets = " ".join(f"NEW.{name} := {old};" for name, old in pairs)
            conn.exec_driver_sql(
                "CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN {sets} RETURN NEW; END $$"
            )
            conn.exec_driver_sql(
                "CREATE TRIGGER back BEFORE UPDATE ON msgworker_message FOR EACH ROW "
                f"WHEN ({when}) EXECUTE FUNCTION back()"
            )
            return
        sets = ", ".join(f"NEW.{name} = {old}" for name, old in pairs)
        conn.exec_driver_sql(
            "CREATE TRIGGER back BEFORE UPDATE ON msgworker_message FOR EACH ROW "
            f"BEGIN IF {when} THEN SET {sets}; END IF; END"
        )


@pytest.mark.quick("sqlite-(plain|batch)-status|postgresql-transactional-status|mariadb-plain-all")
@pytest.mark.parametrize("columns", [ALL, ("status",)], ids=["all", "status"])
@pytest.mark.parametrize("kind", ["plain", "transactional", "batch", "batch transactional"])
def test_an_outcome_that_is_set_back_is_a_failed_try(app, database, kind, columns):
    starts: list[int] = []
    transactional = kind.endswith("transactional")

    if kind.startswith("batch"):

        @app.handler("t", transactional=transactional, batch=10, wait=wait_none())
        def handle_all(messages: Any, ctx: Any) -> None:
            starts.extend(m.msg_id for m in messages)

    else:

        @app.handler("t", transactional=transactional, wait=wait_none())
        def handle(msg: Any, ctx: Any) -> None:
            starts.append(msg.msg_id)

    bad, *good = send(app, "bad", *(f"o{i % 4}" for i in range(12)), None)
    set_back(app, database, "NEW.status = 2 AND OLD.object_id = 'bad'", columns)
    report = app.drain(linger=0, retry_linger=30, time_limit=60)
    assert (report.done, report.failed, report.left, report.exit_code) == (13, 1, 0, 1)
    assert set(starts) == {bad, *good}
    assert starts.count(bad) <= (6 if kind == "batch transactional" else 4)
    shown = app.ops.show(bad)
    assert (shown.status, shown.error_try_times) == ("dead", 3)
    assert NO_ERROR in (shown.last_error or "")


def test_a_trigger_made_since_the_tables_were_read_is_seen_by_the_next_drain(app, database):
    app.add_handler("t", lambda msg: None, wait=wait_none())
    send(app, "good")
    assert app.drain(linger=0).exit_code == 0
    send(app, "bad")
    set_back(app, database, "NEW.status = 2 AND OLD.object_id = 'bad'")
    report = app.drain(linger=0, retry_linger=30, time_limit=60)
    assert (report.done, report.failed, report.left, report.exit_code) == (0, 1, 0, 1)


def test_a_trigger_after_the_update_of_the_row_is_noticed_too(postgresql):
    app = created(App(postgresql.url, backoff_seconds=0))
    app.add_handler("t", lambda msg: None, wait=wait_none())
    bad, *_ = send(app, "bad", "good", "good")
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "UPDATE msgworker_message SET status = 1, claimed_by = OLD.claimed_by "
            "WHERE msg_id = OLD.msg_id; RETURN NULL; END $$"
        )
        conn.exec_driver_sql(
            "CREATE TRIGGER back AFTER UPDATE ON msgworker_message FOR EACH ROW WHEN (NEW.status "
            "= 2 AND OLD.object_id = 'bad') EXECUTE FUNCTION back()"
        )
    report = app.drain(linger=0, retry_linger=30, time_limit=60)
    assert (report.done, report.failed, report.left) == (2, 1, 0)
    assert NO_ERROR in (app.ops.show(bad).last_error or "")


@pytest.mark.parametrize(
    "columns", [ALL, ("claimed_by",), ("status",)], ids=["all", "id", "status"]
)
def test_a_claim_that_is_set_back_is_a_refusal(app, database, taken, caplog, columns):
    bad = send(app, "bad", "bad")
    good = send(app, *(f"o{i % 5}" for i in range(20)), None)
    set_back(app, database, "NEW.status = 1 AND OLD.object_id = 'bad'", columns)
    report = drain(app, taken, time_limit=60)
    assert_all_others_ran(taken, good)
    assert (report.done, report.left, report.exit_code) == (21, 2, 1)
    assert Table(app).rows("status", "claimed_by")[:2] == [(0, None)] * 2  # nothing stays of it
    text = "\n".join(r.getMessage() for r in caplog.records)
    assert f"the database refuses to flag message {bad[0]}" in text


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("columns", [ALL, ("claimed_by",)], ids=["all", "id"])
def test_a_flag_that_is_set_back_where_it_moves_on_ends_the_lane(
    app, database, transactional, columns
):
    app.add_handler("t", lambda msg, ctx: None, transactional=transactional, wait=wait_none())
    first, second, _ = send(app, *"aaa")
    good = send(app, *(f"o{i % 3}" for i in range(9)))
    set_back(app, database, f"NEW.status = 1 AND OLD.msg_id = {second}", columns)
    report = app.drain(linger=0, time_limit=60)
    assert (report.done, report.left, report.exit_code) == (len(good) + 1, 2, 1)
    assert app.ops.show(first).status == "done"
    assert Table(app).rows("status", "claimed_by")[1:3] == [(0, None)] * 2


def test_a_failed_try_that_is_set_back_is_told_and_bounded(app_with, database, caplog):
    app = app_with(lease_seconds=3, backoff_seconds=0.1)
    starts: list[int] = []

    @app.handler("t", wait=wait_none())
    def handle(msg: Any) -> None:
        starts.append(msg.msg_id)
        if msg.object_id == "bad":
            raise ValueError

    bad, *good = send(app, "bad", *(f"o{i % 3}" for i in range(9)))
    set_back(app, database, "NEW.status = -1", ("error_try_times",))
    report = app.drain(linger=0, retry_linger=1, time_limit=20)
    assert report.done == len(good)
    assert report.exit_code == 1
    assert starts.count(bad) <= 3
    text = "\n".join(r.getMessage() for r in caplog.records)
    assert f"message {bad}: its outcome is not written" in text


def test_a_wait_that_is_set_back_is_no_endless_round(app_with, database, caplog):
    app = app_with(lease_seconds=30, backoff_seconds=0.1)
    starts: list[int] = []

    @app.handler("t", wait=wait_none())
    def handle(msg: Any) -> None:
        starts.append(msg.msg_id)
        raise RetryLater(60)

    send(app, "bad")
    set_back(app, database, "NEW.status = 0", ("available_at", "later_times"))
    with launched(app.worker(threads=1)):
        until(lambda: "its outcome is not written" in caplog.text, "it is told")
        time.sleep(0.5)  # in which an endless round would begin it again and again
    assert len(starts) <= 3


def test_a_recovery_that_is_set_back_is_told_once_and_holds_up_no_other(app_with, database, caplog):
    app = app_with(lease_seconds=3)
    bad, *good = send(app, "bad", "a", "b")
    for msg_id in (bad, *good):
        edit(app, msg_id, status=1, claimed_by="gone")
    set_back(app, database, "OLD.status = 1 AND OLD.object_id = 'bad'")
    app.add_handler("t", lambda msg: None, wait=wait_none())
    with launched(app.worker(threads=1)):
        until(lambda: Table(app).statuses[1:] == [2, 2], "the others are recovered and run")
        told = f"message {bad} cannot be recovered"
        until(lambda: told in caplog.text, "it is told")
        send(app, "c")
        until(lambda: Table(app).statuses[3:] == [2], "new ones run")
    assert caplog.text.count(told) == 1
    assert Table(app).statuses[0] == 1
    report = app.drain(linger=0)
    assert (report.left, report.exit_code) == (1, 1)


@pytest.mark.long
def test_a_row_that_cannot_be_released_keeps_no_instance_from_a_new_id(make_app, database):
    app = created(make_app())
    bad, *good = send(app, "bad", "a", "b")
    set_back(app, database, "OLD.status = 1 AND OLD.object_id = 'bad'")
    reads_now = make_app()
    reads_now.add_handler("t", lambda msg: None)
    with by_hand(reads_now, 2) as one:
        me = one.shared.identity.id
        edit(app, bad, status=1, claimed_by=me)  # a claim whose answer was lost
        one.shared.identity.retire()
        won = 0
        for _ in range(6):
            won += fetch(one) or 0
            beat(one)
        assert one.shared.identity.id != me
        assert won == len(good)


def test_a_release_that_is_set_back_is_told_once(make_app, database, caplog):
    app = created(make_app(lease_seconds=3))
    bad, good = send(app, "bad", "good", topic="nobody's")
    set_back(app, database, "OLD.status = 1 AND OLD.object_id = 'bad'")
    reads_now = make_app(lease_seconds=3)  # the tables, with the trigger
    reads_now.add_handler("t", lambda msg: None)
    with launched(reads_now.worker(threads=1)) as worker:
        for msg_id in (bad, good):
            edit(app, msg_id, status=1, claimed_by=worker.instance_id)
        until(lambda: Table(app).statuses[1] == 0, "the other one is released")
        told = f"message {bad} cannot be released"
        until(lambda: told in caplog.text, "it is told")
        send(app, "c")
        until(lambda: Table(app).statuses[2:] == [2], "new ones run")
    assert caplog.text.count(told) == 1


@pytest.mark.parametrize("act", ["rerun", "discard", "cancel", "rerun with successors"])
def test_an_operators_change_that_is_set_back_is_skipped_and_named(app, make_app, database, act):
    ids = send(app, *(f"o{i}" for i in range(10)), "bad")
    before = (0, 0) if act in ("discard", "cancel") else (-1, 3)
    Table(app).edit(status=before[0], error_try_times=before[1])
    set_back(app, database, "OLD.object_id = 'bad' AND OLD.status <> 1", ("status",))
    app = make_app()  # as a command reads the tables
    options = {"actor": "me", "reason": "why"}
    if act == "rerun with successors":
        done = app.ops.rerun(ids=ids, with_successors=True, **options)
    else:
        done = getattr(app.ops, act)(ids=ids, **options)
    assert (done.matched, done.changed, done.skipped) == (11, 10, 1)
    (skip,) = done.skips
    assert (skip.msg_id, skip.why) == (ids[-1], Why.REFUSED)
    assert NO_ERROR in str(skip.error)
    assert Table(app).rows("status", "error_try_times")[-1] == before


@pytest.mark.requires("triggers_on_their_table")
@pytest.mark.requires("common_sql")
def test_a_purged_row_that_a_trigger_puts_back_is_skipped_and_named(app, make_app, database):
    ids = send(app, *(f"o{i}" for i in range(10)), "bad")
    Table(app).edit(status=2, finished_at=sa.text("'2020-01-01 00:00:00'"))
    columns = ", ".join(c.name for c in app.tables.message.c if c.computed is None)
    old = ", ".join(f"OLD.{c.name}" for c in app.tables.message.c if c.computed is None)
    put = f"INSERT INTO msgworker_message ({columns}) VALUES ({old});"
    with app.engine.begin() as conn:
        if database.name == "sqlite":
            conn.exec_driver_sql(
                "CREATE TRIGGER back AFTER DELETE ON msgworker_message WHEN OLD.object_id = 'bad' "
                f"BEGIN {put} END"
            )
        else:
            conn.exec_driver_sql(
                "CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN {put} RETURN NULL; END $$"
            )
            conn.exec_driver_sql(
                "CREATE TRIGGER back AFTER DELETE ON msgworker_message FOR EACH ROW "
                "WHEN (OLD.object_id = 'bad') EXECUTE FUNCTION back()"
            )
    done = make_app().ops.purge("30d")
    assert (done.matched, done.changed, done.skipped) == (11, 10, 1)
    assert [skip.msg_id for skip in done.skips] == [ids[-1]]


def test_what_a_trigger_writes_on_a_claim_is_kept(sqlite):
    """SQLite gives the conflict clause of an UPDATE to what its triggers write."""
    app = created(App(sqlite.url))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE last (object_id TEXT PRIMARY KEY, msg_id INTEGER)")
        conn.exec_driver_sql(
            "CREATE TRIGGER last_claim AFTER UPDATE OF status ON msgworker_message"
            " WHEN NEW.status = 1 BEGIN"
            " INSERT OR REPLACE INTO last VALUES (NEW.object_id, NEW.msg_id); END"
        )
    app.add_handler("t", lambda msg: None)
    for _ in range(2):
        (newest,) = send(app, "a")
        assert app.drain(linger=0, time_limit=60).done == 1
    with app.engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT * FROM last").all() == [("a", newest)]
