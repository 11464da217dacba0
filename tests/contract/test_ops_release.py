"""Release: of an instance, and of messages that no instance has."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError, Message, MessageTable, MsgworkerError
from msgworker.db.database import At, of
from msgworker.doctor import Severity
from msgworker.ops import upkeep
from msgworker.ops.results import Progress, Why
from msgworker.queries.explain import Reason
from msgworker.store import lease, recover
from tests.support.apps import created
from tests.support.doctor import run
from tests.support.leases import registered
from tests.support.ops import DONE, RUNNING, put
from tests.support.rows import Table, leave_rows_at_1, send
from tests.support.waiting import in_thread, launched, until
from tests.support.watching import Watch


def test_release_of_a_dead_instance(app, table):
    ids = put(app, ("a", RUNNING), ("b", RUNNING), (None, RUNNING), claimed_by="gone-1")
    put(app, ("c", RUNNING), claimed_by="other")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "gone-1", ttl=-1.0)
    assert app.ops.release("gone-1", dry_run=True) == 3
    done = app.ops.release("gone-1", actor="alice", reason="host is off")
    assert done == 3
    assert table.rows("status", "error_try_times", "crash_times", "claimed_by") == [
        (-1, 1, 1, None),
        (-1, 1, 1, None),
        (-1, 1, 1, None),
        (1, 0, 0, "other"),
    ]
    text = "released from instance gone-1 by alice: host is off"
    assert table.column("last_error")[0] == text
    entry = app.ops.audit(ids[0])[0]
    assert (entry.kind, entry.was_status, entry.was_claimed_by) == (
        "release",
        "processing",
        "gone-1",
    )
    with app.engine.connect() as conn:
        assert lease.read_all(conn, app.tables) == []
    assert app.ops.release("gone-1") == 0


@pytest.mark.requires("row_locks")
@pytest.mark.quick("postgresql")
@pytest.mark.parametrize("leased", [True, False])
def test_release_does_not_wait_for_locked_rows(app, table, monkeypatch, leased):
    """They stay as they are, and recovery may go on with them at once."""
    monkeypatch.setattr(upkeep, "AGAIN_AFTER_SECONDS", (0.0, 0.1))
    ids = put(app, *[(f"o{i}", RUNNING) for i in range(5)], claimed_by="gone-1")
    if leased:
        with app.engine.begin() as conn:
            lease.register(conn, app.tables, "gone-1", ttl=-1.0)
    m = app.tables.message
    with app.engine.connect() as frozen:
        frozen.execute(sa.select(m).where(table.where(msg_id=ids[2])).with_for_update()).all()
        done = in_thread(lambda: app.ops.release("gone-1"))()
        frozen.rollback()
    assert (done.matched, done.changed, done.skipped) == (5, 4, 1)
    assert [(skip.msg_id, skip.why) for skip in done.skips] == [(ids[2], Why.LOCKED)]
    assert table.statuses == [-1, -1, 1, -1, -1]
    (entry,) = app.ops.audit()
    assert (entry.changed, entry.skipped) == (4, 1)
    assert entry.finished_at is not None
    with app.engine.connect() as conn:
        assert [one.live for one in lease.read_all(conn, app.tables)] == [0] * leased
    assert app.ops.release("gone-1") == 1
    assert table.statuses == [-1] * 5


@pytest.mark.requires("row_locks")
@pytest.mark.quick("mariadb")
def test_release_takes_rows_that_were_locked_for_a_moment(app, table):
    ids = put(app, *[(f"o{i}", RUNNING) for i in range(3)], claimed_by="gone-1")
    m = app.tables.message
    frozen = app.engine.connect()
    frozen.execute(sa.select(m).where(table.where(msg_id=ids[0])).with_for_update()).all()

    def tell(progress: Progress) -> None:
        frozen.rollback()

    done = in_thread(lambda: app.ops.release("gone-1", progress=tell))()
    frozen.close()
    assert (done.matched, done.changed, done.skipped) == (3, 3, 0)
    assert table.statuses == [-1] * 3


@pytest.mark.parametrize("leased", [True, False])
def test_a_release_that_somebody_beats_is_over(app, table, monkeypatch, leased):
    """No operation stays open in the audit; nothing was changed."""
    put(app, ("a", RUNNING), claimed_by="gone-1")
    if leased:
        with app.engine.begin() as conn:
            lease.register(conn, app.tables, "gone-1", ttl=-1.0)
    held_by = upkeep.held_by

    def beaten(*args: Any) -> Any:
        held = held_by(*args)
        with app.engine.begin() as conn:
            lease.drop(conn, app.tables, "gone-1")
            lease.register(conn, app.tables, "gone-1", ttl=60.0)
        return held

    monkeypatch.setattr(upkeep, "held_by", beaten)
    with pytest.raises(MsgworkerError, match=r"try again|check with"):
        app.ops.release("gone-1")
    assert table.statuses == [RUNNING]
    (entry,) = app.ops.audit()
    assert (entry.kind, entry.changed) == ("release", 0)
    assert entry.finished_at is not None


def test_release_of_rows_without_a_lease(app, table):
    put(app, ("a", RUNNING), claimed_by="ghost")
    assert app.ops.release("ghost") == 1
    assert table.statuses == [-1]


def test_release_refuses_a_living_instance(app, table):
    put(app, ("a", RUNNING), claimed_by="alive")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "alive", ttl=60.0)
    with pytest.raises(MsgworkerError, match="is alive"):
        app.ops.release("alive")
    with pytest.raises(MsgworkerError, match="is alive"):
        app.ops.release("alive", dry_run=True)
    assert app.ops.release("alive", dry_run=True, force=True) == 1
    with app.engine.begin() as conn:
        lease.take_over_live(conn, app.tables, "alive", me="another", ttl=60.0)
    with pytest.raises(MsgworkerError, match="being recovered"):
        app.ops.release("alive", force=True)
    assert table.statuses == [1]


def test_an_instance_of_another_table_is_released_there(app, make_app):
    """By force it lost its lease here, and its messages were given back while it worked on."""
    other = make_app(table=MessageTable("another"))
    other.create_schema()
    registered(other, "theirs", ttl=5.0)
    with pytest.raises(ConfigError, match="theirs works on table another: release it there"):
        app.ops.release("theirs", force=True)
    with app.engine.connect() as conn:
        assert [one.taken_by for one in lease.read_all(conn, app.tables)] == [None]
    assert other.ops.release("theirs", force=True, dry_run=True) == 0


def test_release_refuses_what_is_no_instance(sqlite, subtests):
    app = created(App(sqlite.url))
    for name in ("", None, 7, "x" * 65):
        with subtests.test(name=name), pytest.raises(ConfigError):
            app.ops.release(name)


@pytest.mark.long
def test_release_by_force_fences_the_living(app_with):
    """Its messages run elsewhere only when it starts nothing more; what it writes is refused."""
    app = app_with(lease_seconds=6)
    table = Table(app)
    hold, watch = threading.Event(), Watch()

    @app.handler("t")
    def handle(msg: Message) -> None:
        watch.saw(msg.object_id, msg.msg_id, lambda: hold.wait(60) if msg.payload else None)

    first, *_ = send(app, "o", payload="hold")
    send(app, "o", "o", *(f"p{i}" for i in range(20)))
    with launched(app.worker(threads=2)) as worker:
        until(lambda: watch.now or None, "it runs")
        old = worker.instance_id
        released = app.ops.release(old, force=True, reason="hangs")
        assert released >= 1
        until(lambda: worker.instance_id != old, "a new id")
        hold.set()
        until(lambda: table.statuses.count(DONE) == 23, "all done")
    watch.assert_exclusive()
    assert first in {entry.msg_id for i in [first] for entry in app.ops.audit(i)}
    assert table.rows("error_try_times")[0] == (1,)


LONG_AGO = datetime.now(UTC) - timedelta(hours=5)
BARE = {"msg_id": "msgID", "object_id": "objectID", "error_try_times": "errorTryTimes"}


def found_by_doctor(app: App) -> list[str]:
    return [one.text for one in app.ops.doctor() if one.check == "held"]


@pytest.fixture
def bare_app(database: Any, make_app: Any) -> App:
    """An App on a table of four columns, of which row 1 stands at 1 and row 2 waits behind it."""
    with database.engine().begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE tb_cus (msgID INTEGER PRIMARY KEY, objectID VARCHAR(20), "
            "status INTEGER DEFAULT 0 NOT NULL, errorTryTimes INTEGER DEFAULT 0 NOT NULL)"
        )
        for msg_id, status in ((1, 1), (2, 0)):
            conn.exec_driver_sql(
                f"INSERT INTO tb_cus (msgID, objectID, status) VALUES ({msg_id}, 'a', {status})"
            )
    app: App = make_app(table=MessageTable("tb_cus", **BARE))
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    return app


def test_tries_that_a_column_of_ours_would_not_hold_are_recovered(bare_app, database):
    run(database, "UPDATE tb_cus SET errorTryTimes = 40000 WHERE msgID = 1")
    with bare_app.engine.begin() as conn:
        assert recover.recover_foreign(conn, bare_app.tables, [1], seen_tries=40000, text="x") == 1
    assert bare_app.ops.show(1).status == "dead"


def test_what_nobody_does_is_told_given_back_and_done(app, table):
    app.add_handler("t", lambda msg: None)
    held = leave_rows_at_1(app)
    table.edit(created_at=LONG_AGO)
    assert app.drain(linger=0).exit_code == 1

    (told,) = found_by_doctor(app)
    assert told.startswith("30 messages at 1 without an owner, the oldest for 5.")
    assert "and 150 messages waiting behind" in told
    assert "`msgworker release pkg.module:app --nobody --older-than 1h`" in told
    reason = app.ops.explain(held[0])
    assert reason.reason is Reason.RUNNING_FOREIGN
    assert "`msgworker release pkg.module:app --nobody --older-than 1h`" in reason.text

    assert app.ops.release_nobody("1h", dry_run=True) == 30
    assert table.statuses.count(1) == 30
    done = app.ops.release_nobody("1h", actor="anna", reason="the old consumer is gone")
    assert (done, done.matched, done.skipped) == (30, 30, 0)
    first = table.rows("status", "error_try_times", "crash_times", "last_error")[0]
    assert first[:3] == (-1, 1, 1)
    assert first[3].startswith("released by anna: it was at 1 without an owner: the old")
    assert [entry.was_status for entry in app.ops.audit(held[0])] == ["processing"]
    assert [one.kind for one in app.ops.show(held[0]).tries] == ["crash"]

    report = app.drain(linger=0)
    assert (report.done, report.left, report.exit_code) == (180, 0, 0)
    assert found_by_doctor(app) == ["every processing message belongs to a live instance"]


def test_only_what_has_stood_so_long_is_given_back(app, table):
    old, _young, claimed, _ = send(app, "a", "b", "c", "d")
    table.edit(status=1)
    for msg_id in (old, claimed):
        table.edit(table.where(msg_id=msg_id), created_at=LONG_AGO)
    table.edit(table.where(msg_id=claimed), claimed_at=datetime.now(UTC))
    assert app.ops.release_nobody(timedelta(hours=1)) == 1
    assert table.statuses == [-1, 1, 1, 1]
    assert app.ops.release_nobody(any_age=True) == 3
    assert table.statuses == [-1] * 4


def test_what_an_instance_has_is_never_given_back(app, table):
    ids = send(app, "a", "b")
    registered(app, "lives")
    table.edit(status=1, created_at=LONG_AGO)
    table.edit(table.where(msg_id=ids[0]), claimed_by="lives")
    assert app.ops.release_nobody("1h") == 1
    assert table.rows("status", "claimed_by") == [(1, "lives"), (-1, None)]


def test_a_message_on_its_last_try_becomes_dead(app, table):
    send(app, "a")
    table.edit(status=1, error_try_times=2, created_at=LONG_AGO)
    assert app.ops.release_nobody("1h") == 1
    assert [info.status for info in app.ops.find()] == ["dead"]


def test_a_message_that_was_settled_and_claimed_since_it_was_seen_is_left_alone(
    app, table, monkeypatch
):
    ids = send(app, "a", "b")
    registered(app, "lives")
    table.edit(status=1, created_at=LONG_AGO)
    real, asked = recover.foreign, []

    def foreign(conn: Any, t: Any, **options: Any) -> Any:
        found = real(conn, t, **options)
        asked.append(found)
        if len(asked) == 2:  # the first look of the step that writes
            c = t.message.c
            mine = t.message.update().where(c.msg_id == ids[0]).values(claimed_by="lives")
            conn.execute(mine)
        return found

    monkeypatch.setattr(recover, "foreign", foreign)
    done = app.ops.release_nobody("1h")
    assert (done, done.why) == (1, ((Why.CHANGED, 1),))
    assert table.rows("status", "claimed_by") == [(1, "lives"), (-1, None)]
    assert app.ops.audit(ids[1])
    assert [entry.kind for entry in app.ops.audit()] == ["release"]


def test_many_are_given_back_in_steps(app, table):
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, None)] * 700)
    table.edit(status=1, created_at=LONG_AGO)
    steps: list[int] = []
    assert app.ops.release_nobody("1h", progress=lambda p: steps.append(p.changed)) == 700
    assert len(steps) > 2
    assert set(table.rows("status", "error_try_times")) == {(-1, 1)}


def test_a_drain_names_the_release_that_the_table_takes(bare_app, caplog):
    assert bare_app.drain(linger=0).left_by == {"nobody": 2}
    (line,) = [r.getMessage() for r in caplog.records if "2 messages left" in r.getMessage()]
    assert "`msgworker release pkg.module:app --nobody --any-age`" in line


def test_without_a_column_for_owners_everything_at_1_is_meant_if_no_instance_lives(bare_app):
    app, table = bare_app, Table(bare_app)
    (told,) = found_by_doctor(app)
    assert "1 message at 1 without an owner, and 1 message waiting behind" in told
    assert "--any-age" in told
    assert "`msgworker release pkg.module:app --nobody --any-age`" in app.ops.explain(1).text
    with pytest.raises(ConfigError, match="neither claimed_at nor created_at"):
        app.ops.release_nobody("1h")
    registered(app, "lives")
    with pytest.raises(MsgworkerError, match="instance lives is alive"):
        app.ops.release_nobody(any_age=True)
    assert found_by_doctor(app) == ["every processing message belongs to a live instance"]
    with app.engine.begin() as conn:
        lease.drop(conn, app.tables, "lives")
    registered(app, "ends", stopped=True)  # its handler has outlived it
    assert found_by_doctor(app) == ["every processing message belongs to a live instance"]
    with app.engine.begin() as conn:
        lease.drop(conn, app.tables, "ends")
    assert app.ops.release_nobody(any_age=True) == 1
    assert table.rows("status", "error_try_times") == [(-1, 1), (0, 0)]
    report = app.drain(linger=0)
    assert (report.done, report.exit_code) == (2, 0)


def test_an_instance_that_starts_meanwhile_ends_a_release_without_owners(bare_app, monkeypatch):
    app, table = bare_app, Table(bare_app)
    real, asked = recover.foreign, []

    def foreign(conn: Any, t: Any, **options: Any) -> Any:
        asked.append(options)
        if len(asked) == 2:
            lease.register(conn, t, "starts", ttl=600.0)
        return real(conn, t, **options)

    monkeypatch.setattr(recover, "foreign", foreign)
    with pytest.raises(MsgworkerError, match="instance starts is alive"):
        app.ops.release_nobody(any_age=True)
    assert table.statuses == [1, 0]


def test_doctor_names_what_the_dead_have_where_no_instance_lives(app, table):
    send(app, "a", "b")
    table.edit(status=1, claimed_by="gone-1")
    (told,) = found_by_doctor(app)
    assert "2 messages in the hands of the dead (gone-1, say)" in told
    assert "`msgworker release pkg.module:app gone-1`" in told
    registered(app, "lives")
    assert found_by_doctor(app) == ["every processing message belongs to a live instance"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "older_than is required, such as 1h"),
        ({"older_than": "1h", "any_age": True}, "not both"),
        ({"older_than": 0}, "more than 0 seconds"),
        ({"older_than": "soon"}, "older_than"),
        ({"older_than": datetime(2020, 1, 1)}, "time zone"),  # noqa: DTZ001
    ],
)
def test_an_age_is_needed(app, options, text):
    with pytest.raises(ConfigError, match=text):
        app.ops.release_nobody(**options)


@pytest.fixture
def adopted_app(bare_app: App, make_app: Any) -> App:
    """An App on the table of `bare_app` after all that doctor advised was run; row 1 is at 1."""
    for one in bare_app.ops.doctor():
        if one.severity is Severity.ADVISED:
            run(bare_app, *one.fix)
    app: App = make_app(table=bare_app.table)
    app.add_handler(None, lambda msg: None)
    return app


def test_a_row_from_before_the_advised_column_is_of_unknown_age(adopted_app, database):
    table = Table(adopted_app)
    assert "created_at" in adopted_app.tables.names
    run(adopted_app, "INSERT INTO tb_cus (msgID, objectID) VALUES (3, 'new')")
    known = [instant is not None for instant in table.column("created_at")]
    assert known == [False, False, database.name != "sqlite"]


def test_a_message_of_unknown_age_is_released_with_any_age_only(adopted_app, caplog):
    app = adopted_app
    (told,) = found_by_doctor(app)
    assert "1 message at 1 without an owner, of unknown age, and 1 message waiting" in told
    assert "`msgworker release pkg.module:app --nobody --any-age`" in told
    assert "since when is not known" in app.ops.explain(1).text
    assert "--any-age" in app.ops.explain(1).text
    assert app.drain(linger=0).left_by == {"nobody": 2}
    assert "`msgworker release pkg.module:app --nobody --any-age`" in caplog.text

    for dry_run in (True, False):
        left = app.ops.release_nobody("1h", dry_run=dry_run)
        assert (left, left.matched, left.why) == (0, 1, ((Why.UNDATED, 1),))
        assert "--any-age (any_age=True)" in str(left.skips[0])
    assert app.ops.release_nobody(any_age=True) == 1
    assert app.drain(linger=0).left == 0


def test_beside_messages_of_known_age_those_of_unknown_age_are_left_alone(app, table):
    let_ages_be_unknown(app)
    old, undated, _young = send(app, "a", "b", "c")
    table.edit(status=1, created_at=datetime.now(UTC))
    table.edit(table.where(msg_id=old), created_at=LONG_AGO)
    table.edit(table.where(msg_id=undated), created_at=None)
    (told,) = found_by_doctor(app)
    assert re.search(r"the oldest for 5\.\d h at most, 1 of them of unknown age", told)
    assert "--nobody --any-age" in told  # which gives back all of them
    done = app.ops.release_nobody("1h")
    assert (done, done.matched, done.skipped, done.why) == (1, 2, 1, ((Why.UNDATED, 1),))
    assert [(entry.changed, entry.skipped) for entry in app.ops.audit()] == [(1, 1)]
    assert table.statuses == [-1, 1, 1]


def test_a_message_of_unknown_age_waits_for_no_visibility_delay(bare_app, adopted_app, make_app):
    delayed = make_app(table=bare_app.table.replace(visibility_delay_seconds=3600))
    delayed.add_handler(None, lambda msg: None)
    assert delayed.ops.release_nobody(any_age=True) == 1
    assert delayed.drain(linger=0).done == 2


def let_ages_be_unknown(app: App) -> None:
    """`created_at` may be NULL, as after an adoption."""
    name = app.tables.message.name
    kind = app.tables.message.c.created_at.type
    if app.engine.dialect.name == "sqlite":
        run(app, f"ALTER TABLE {name} DROP COLUMN created_at")
        run(app, f"ALTER TABLE {name} ADD COLUMN created_at TEXT")
    where = At(app.engine.dialect, name, "created_at")
    run(app, *of(app.engine).drop_not_null(where, kind))
