"""Operations: their audit, and how they continue after being cut off."""

from __future__ import annotations

import sqlite3
from functools import partial

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError, DatabaseUnavailable, MsgworkerError, SchemaError
from msgworker.ops import operation, results, upkeep
from msgworker.ops.results import Why
from msgworker.queries import messages
from msgworker.schema import known
from msgworker.store import audit, jobs, lease
from msgworker.table.build import own_tables
from msgworker.table.tables import Need
from tests.support.leases import leases
from tests.support.ops import DONE, FAILED, NEW, RUNNING, Cut, audited, cut_after, many_dead, put
from tests.support.refusing import LOST, ROLLED_BACK, fails_once, refuse
from tests.support.rows import edit, send
from tests.support.timers import ticks_of, timer
from tests.support.waiting import at_once


def test_every_change_is_in_the_audit(app):
    ids = put(app, ("a", FAILED), ("b", FAILED), crash_times=1)
    app.ops.rerun(topic="t", actor="alice", reason="listener is back")
    app.ops.discard([ids[0]], actor="bob", reason="twin")
    discard, rerun = app.ops.audit()
    assert (rerun.kind, rerun.actor, rerun.reason) == ("rerun", "alice", "listener is back")
    assert rerun.filter == {"topic": "t"}
    assert (rerun.matched, rerun.changed, rerun.skipped) == (2, 2, 0)
    assert rerun.started_at <= rerun.finished_at
    assert (discard.kind, discard.filter) == ("discard", {"ids": [ids[0]]})
    newest, oldest = app.ops.audit(ids[0])
    assert (newest.kind, newest.was_status, newest.was_tries) == ("discard", "new", 0)
    assert (oldest.kind, oldest.was_status, oldest.was_tries) == ("rerun", "dead", 3)
    assert (oldest.msg_id, oldest.was_error) == (ids[0], "ValueError: no")
    assert app.ops.audit(999) == []
    assert len(app.ops.audit(limit=1)) == 1
    with pytest.raises(ConfigError):
        app.ops.audit(limit=0)


def read_only(app: App) -> App:
    """Of sessions that may write nothing."""
    url = app.engine.url
    if url.get_backend_name() == "sqlite":
        url = url.set(database=f"file:{url.database}", query={"mode": "ro", "uri": "true"})
        return App(url)
    ways = {"postgresql": {"options": "-c default_transaction_read_only=on"}}
    way = ways.get(url.get_backend_name(), {"init_command": "SET SESSION TRANSACTION READ ONLY"})
    return App(sa.create_engine(url, connect_args=way))


def test_where_nothing_may_be_written_every_write_says_so_by_an_error_of_ours(app, database):
    if database.stand_in is not None or database.name == "oracle":
        pytest.skip("its sessions are those of the stand-in")
    dead, done = put(app, ("a", FAILED), ("b", DONE))
    ops = read_only(app).ops
    for write in (
        *(ops.rerun, partial(ops.discard, [dead]), partial(ops.acknowledge, [dead])),
        *(partial(ops.edit, dead, topic="u"), partial(ops.purge, 1e-6, dead=True)),
        *(partial(ops.purge, 1e-6, archive_to="old_m"), partial(ops.pause, "t")),
    ):
        with pytest.raises((DatabaseUnavailable, SchemaError), match=r"(?i)read.?only"):
            write(reason="-")
    with pytest.raises(DatabaseUnavailable, match=r"(?i)read.?only"):
        ops.send("t")
    assert [one.status for one in (app.ops.show(dead), app.ops.show(done))] == ["dead", "done"]


def test_the_actor_is_the_user_if_nobody_is_named(app):
    put(app, ("a", FAILED))
    app.ops.rerun()
    assert "@" in app.ops.audit()[0].actor


def test_texts_of_people_are_kept_whatever_they_hold(app):
    put(app, ("a", FAILED))
    app.ops.rerun(actor="e\x00vil\u202e", reason="q'uo\"te; DROP TABLE x --\n\x1b[2J")
    entry = app.ops.audit()[0]
    assert "DROP TABLE" in entry.reason
    assert "vil" in entry.actor


def test_without_the_tables_of_ops_messages_are_handled_and_writes_refused(app, table):
    with app.engine.begin() as conn:
        for made in reversed(own_tables(app.tables, Need.OPS)):
            conn.execute(sa.schema.DropTable(made))
    other = App(app.engine.url)
    other.add_handler("t", lambda msg: None)
    send(other, "a")
    assert other.drain(linger=0).done == 1
    assert other.ops.rerun(dry_run=True) == 0
    for act in (
        lambda: other.ops.rerun(),
        lambda: other.ops.discard([1], reason="x"),
        lambda: other.ops.purge("1d"),
        lambda: other.ops.pause("t"),
        lambda: other.ops.audit(),
        lambda: other.ops.release("x"),
    ):
        with pytest.raises(SchemaError, match="init-db"):
            act()
    assert set(App(app.engine.url).create_schema()) == {
        "msgworker_operation",
        "msgworker_operation_key",
        "msgworker_audit",
        "msgworker_pause",
        "msgworker_cancel",
    }
    assert other.ops.rerun([1], force=True) == 1


def test_an_interrupted_rerun_goes_on_without_counting_twice(app, table):
    many_dead(app, 700)
    with pytest.raises(Cut):
        app.ops.rerun(topic="t", progress=cut_after(2))
    (cut,) = app.ops.audit()
    assert cut.finished_at is None
    assert 0 < cut.changed < 700
    assert table.statuses.count(0) == cut.changed == len(audited(app))
    table.edit(table.where(msg_id=1), status=FAILED, error_try_times=3)  # it has failed again
    done = app.ops.rerun(operation=cut.op_id)
    assert (done.op_id, done.changed, done.matched) == (cut.op_id, 700, 700)
    assert audited(app) == [(cut.op_id, i) for i in range(1, 701)]
    assert table.statuses.count(0) == 699
    with pytest.raises(ConfigError, match="is over"):
        app.ops.rerun(operation=cut.op_id)
    with pytest.raises(ConfigError, match="no discard"):
        app.ops.discard(operation=cut.op_id)


def test_an_interrupted_rerun_of_a_long_list_goes_on_with_the_same_ids(app, table, monkeypatch):
    """So many ids are not kept; what is through is not run again, also if it has ended since."""
    monkeypatch.setattr(results, "KEPT_IDS", 250)
    many_dead(app, 300)
    table.edit(status=DONE)
    ids = range(1, 301)
    with pytest.raises(Cut):
        app.ops.rerun(ids, force=True, progress=cut_after(1))
    (cut,) = app.ops.audit()
    table.edit(table.where(status=NEW), status=DONE)
    table.edit(table.where(msg_id=1), status=FAILED, error_try_times=3)
    with pytest.raises(ConfigError, match="same ids again with operation"):
        app.ops.rerun(operation=cut.op_id)
    for others in ([1, 300], range(1, 300), range(2, 302), 7):
        with pytest.raises(ConfigError, match="not the ids"):
            app.ops.rerun(others, operation=cut.op_id)
    with pytest.raises(ConfigError, match="no other one"):
        app.ops.rerun(ids, force=True, operation=cut.op_id)
    done = app.ops.rerun(ids, operation=cut.op_id)
    assert (done.op_id, done.changed, done.skipped) == (cut.op_id, 300, 0)
    assert audited(app) == [(cut.op_id, i) for i in ids]
    assert table.statuses.count(NEW) == 300 - cut.changed
    assert table.statuses[0] == FAILED


def test_an_interrupted_discard_of_ids_goes_on_with_and_without_them(app, table):
    many_dead(app, 300)
    table.edit(status=NEW)
    for given in (None, range(1, 301)):
        with pytest.raises(Cut):
            app.ops.discard(range(1, 301), reason="r", progress=cut_after(1))
        done = app.ops.discard(given, operation=app.ops.audit()[0].op_id)
        assert done.changed == 300
        assert set(table.statuses) == {FAILED}
        table.edit(status=NEW, error_try_times=0, last_error=None)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_interrupted_rerun_with_successors_goes_on_to_its_end(app, table, steps, monkeypatch):
    """Wherever it is cut: each message is counted once, those left alone too."""
    monkeypatch.setattr(operation, "MOST_SIZE", 1)
    first, waiting, behind, second, third, ended = put(
        app, ("o", FAILED), ("p", NEW), ("o", FAILED), ("q", FAILED), ("r", FAILED), ("s", DONE)
    )
    ids = [first, waiting, behind, second, third, ended]
    with pytest.raises(Cut):
        app.ops.rerun(ids, with_successors=True, progress=cut_after(steps))
    (cut,) = app.ops.audit()
    table.edit(table.where(msg_id=first), status=DONE)
    done = app.ops.rerun(operation=cut.op_id)
    (entry,) = app.ops.audit()
    assert (entry.matched, entry.changed, entry.skipped) == (6, 4, 2)
    assert (done.op_id, done.matched, done.changed, done.skipped) == (cut.op_id, 6, 4, 2)
    assert entry.finished_at is not None
    with pytest.raises(ConfigError, match="is over"):
        app.ops.rerun(operation=cut.op_id)


def test_two_cannot_go_on_with_one_operation(app):
    many_dead(app, 1000)
    with pytest.raises(Cut):
        app.ops.rerun(progress=cut_after(1))
    op_id = app.ops.audit()[0].op_id
    with pytest.raises(Cut):
        app.ops.rerun(operation=op_id, progress=cut_after(1))
    done = []
    trouble: list[BaseException] = []

    def go_on() -> None:
        try:
            done.append(app.ops.rerun(operation=op_id))
        except Exception as error:
            trouble.append(error)

    at_once(go_on, go_on)
    (lost,) = trouble
    assert isinstance(lost, MsgworkerError)
    assert f" {op_id} is over" in str(lost)
    assert [progress.changed for progress in done] == [1000]
    with pytest.raises(ConfigError, match="is over"):
        app.ops.rerun(operation=op_id)
    (entry,) = app.ops.audit()
    assert entry.changed == 1000
    assert len(audited(app)) == 1000


def test_the_old_name_of_the_keyword_for_an_operation_works_and_warns(app):
    with (
        pytest.warns(DeprecationWarning, match="operation="),
        pytest.raises(ConfigError, match="there is no rerun of number 77"),
    ):
        app.ops.rerun(resume=77)
    with pytest.raises(TypeError, match="give operation"):
        app.ops.purge(resume=1, operation=2)


@pytest.mark.quick("sqlite-rerun$|postgresql-discard|mariadb-cancel")
@pytest.mark.parametrize("act", ["rerun", "discard", "cancel", "rerun behind"])
def test_a_row_that_the_database_refuses_is_left_out_and_named(app, act):
    """Whatever changes many: the others of its step are changed."""
    state = FAILED if act.startswith("rerun") else NEW
    names = ["bad" if n in (3, 250) else f"o{n}" for n in range(300)]
    ids = put(app, *((name, state) for name in names))
    refuse(app, f"object_id <> 'bad' OR status = {state}")
    if act == "discard":
        done = app.ops.discard(ids, reason="twin")
    elif act == "cancel":
        done = app.ops.cancel(ids, reason="twin")
    else:
        done = app.ops.rerun(ids, with_successors=act.endswith("behind"))
    bad = [ids[3]] if act.endswith("behind") else [ids[3], ids[250]]
    assert (done.matched, done.changed, done.skipped) == (300, 298, 2)
    assert {skip.msg_id for skip in done.skips} >= set(bad)
    assert {skip.why for skip in done.skips} == {Why.REFUSED}
    assert "theirs" in str(done.skips[0])
    (entry,) = app.ops.audit()
    assert (entry.changed, entry.skipped, entry.finished_at is None) == (298, 2, False)
    assert {info.msg_id for info in app.ops.find(object_id="bad")} == {ids[3], ids[250]}


def test_a_release_leaves_out_a_row_that_the_database_refuses(app):
    ids = put(app, *(("bad" if n == 20 else f"o{n}", RUNNING) for n in range(60)))
    refuse(app, "object_id <> 'bad' OR status = 1")
    done = app.ops.release("another")
    assert (done.matched, done.changed, done.skipped) == (60, 59, 1)
    assert [(skip.msg_id, skip.why) for skip in done.skips] == [(ids[20], Why.REFUSED)]
    for msg_id in ids[:20]:
        edit(app, msg_id, status=RUNNING, claimed_by=None)
    edit(app, ids[20], claimed_by=None)
    done = app.ops.release_nobody(any_age=True)
    assert (done.matched, done.changed, done.skipped) == (21, 20, 1)
    assert [(skip.msg_id, skip.why) for skip in done.skips] == [(ids[20], Why.REFUSED)]


# --- A statement of an operation fails; proof/oracle/test_nth.py lets each of them fail.


def test_an_operation_that_cannot_be_recorded_now_blames_no_message(app, table, monkeypatch):
    """It is sent again where the database has rolled it back, as are those of one transaction."""
    (dead,) = put(app, ("a", FAILED))
    waits = app.tables.database.one_writer  # for a minute, so that it is not sent again
    for act in (lambda: app.ops.discard(dead, reason="twin"), lambda: app.ops.pause("t")):
        fails_once(monkeypatch, audit, "begin", ROLLED_BACK)
        if waits:
            with pytest.raises(sa.exc.OperationalError):
                act()
        done = act()
        assert (done.changed, done.skipped) == (1, 0)
    assert table.one("last_error").startswith("discarded")


def test_a_pause_that_cannot_be_recorded_is_not_told_as_done_before(app, monkeypatch):
    refused = sa.exc.IntegrityError("", {}, sqlite3.IntegrityError("CHECK constraint failed"))
    fails_once(monkeypatch, audit, "begin", refused)
    with pytest.raises(sa.exc.IntegrityError):
        app.ops.pause("t")
    assert app.ops.pause("t") == 1


def test_what_was_left_alone_is_told_though_the_commit_got_no_answer(sqlite_app, monkeypatch):
    ids = put(sqlite_app, ("a", FAILED), ("b", DONE))
    assert sqlite_app.ops.pauses() == []  # the tables are read
    with monkeypatch.context() as patch:
        commits = sqlite_app.engine.dialect.do_commit

        def lose(conn: object) -> None:
            commits(conn)
            if sqlite_app.ops.audit() and audited(sqlite_app):
                patch.undo()
                raise LOST.orig

        patch.setattr(sqlite_app.engine.dialect, "do_commit", lose)
        done = sqlite_app.ops.discard(ids, reason="twin")
    assert (done.changed, done.skipped, done.why) == (1, 1, ((Why.ENDED, 1),))


def test_a_message_of_a_schedule_that_cannot_be_shown_is_not_sent(app, monkeypatch):
    """Else it would be sent twice by who gives the command again."""
    app.add_handler("t", lambda msg: None)
    app.every("1h", topic="t", name="hourly")
    timer(app).ended()
    fails_once(monkeypatch, messages, "show", LOST)
    with pytest.raises(DatabaseUnavailable):
        app.ops.run_now("hourly")
    assert ticks_of(app) == []
    assert app.ops.run_now("hourly").sample[0].topic == "t"
    assert len(ticks_of(app)) == 1


@pytest.mark.parametrize("after", [False, True])
def test_a_release_that_fails_can_be_given_again_at_once(app, table, monkeypatch, after):
    """Its lease is left to who comes next."""
    put(app, ("a", RUNNING), claimed_by="gone-1")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "gone-1", ttl=-1.0)
    fails_once(monkeypatch, upkeep, "give_back", LOST, after=after)
    with pytest.raises(sa.exc.OperationalError):
        app.ops.release("gone-1")
    assert app.ops.release("gone-1") == (0 if after else 1)
    assert table.statuses == [FAILED]
    assert leases(app) == {}


def test_a_lost_connection_has_an_error_of_ours_wherever_it_is_lost(app, monkeypatch):
    app.add_handler("t", lambda msg: None)
    for module, name, act in (
        (jobs, "open_job", lambda: app.job("j")),
        (known, "check_fit", lambda: app.drain(linger=0)),
        (upkeep, "forget", lambda: app.ops.purge("1d")),
    ):
        fails_once(monkeypatch, module, name, LOST)
        with pytest.raises(DatabaseUnavailable, match="disk I/O"):
            act()
        act()
