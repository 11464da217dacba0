"""Messages that are deleted when they are done."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, HandlerError, MessageTable, RetryLater, SchemaError
from msgworker.events import Lost
from msgworker.message import Settled, Settlement
from msgworker.store import done, settle
from msgworker.store.settle import OutOfDate, Share, settle_batch
from tests.support.apps import created
from tests.support.doctor import needed
from tests.support.rows import Table, edit, send
from tests.support.waiting import launched, until

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "transactional": {"transactional": True},
    "batch": {"transactional": True, "batch": 4},
    "plain batch": {"batch": 4},
    "group": {"transactional": True, "group": 4},
}


def handles(app: App, kind: str, topic: str = "t", **more: Any) -> list[Any]:
    """A handler that deletes what is done; returns what it gets, in order."""
    seen: list[Any] = []

    def one(msg: Any, ctx: Any) -> None:
        seen.append(msg)

    def many(messages: Any, ctx: Any) -> None:
        seen.extend(messages)

    options = KINDS[kind] | {"when_done": "delete"} | more
    app.add_handler(topic, many if "batch" in options else one, **options)
    return seen


@pytest.mark.core
@pytest.mark.quick("(sqlite|oracle-mariadb)-plain$|postgresql-(plain b|group)|mariadb-(tr|batch)")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_done_is_deleted_in_order_of_each_object(app, table, kind):
    seen = handles(app, kind)
    app.add_handler("u", seen.append)
    for n in range(8):
        send(app, f"o{n % 2}", None, "alone", topic="t", payload=n)
    kept = send(app, "o0", "o1", None, topic="u")
    after = send(app, "o0", "o1")
    report = app.drain(linger=0)
    assert (report.done, report.left) == (29, 0)
    assert table.rows("msg_id", "status") == [(msg_id, 2) for msg_id in kept]
    for name in ("o0", "o1", "alone"):
        ids = [msg.msg_id for msg in seen if msg.object_id == name]
        assert ids == sorted(ids)
    assert {msg.msg_id for msg in seen} >= {*kept, *after}


@pytest.mark.requires("unique_keys")
@pytest.mark.parametrize("kind", KINDS)
def test_what_others_need_stays(app, table, kind):
    handles(app, kind)
    with app.engine.begin() as conn:
        job = app.job("month end", conn=conn)
        of_job = app.send(conn, "t", object_id="a", job=job)
        job.seal()
        held = app.send(conn, "t", object_id="a", unique_key="kept", unique="kept")
        app.send(conn, "t", object_id="a", unique_key="open")
        app.send(conn, "t", object_id="a")
    assert app.drain(linger=0).done == 4
    assert table.rows("msg_id", "status") == [(of_job, 2), (held, 2)]
    assert app.ops.job(job.job_id).done.count == 1
    with app.engine.begin() as conn:
        assert app.send(conn, "t", unique_key="kept") == held
        assert app.send(conn, "t", unique_key="open") > held


@pytest.mark.parametrize("kind", ["plain", "transactional"])
def test_what_has_failed_before_stays(make_app, kind):
    app = created(make_app(backoff_seconds=0))
    fails = {1}

    @app.handler("t", when_done="delete", **KINDS[kind])
    def handle(msg: Any) -> None:
        if msg.msg_id in fails:
            fails.remove(msg.msg_id)
            raise ValueError("the first time")

    send(app, "a", "a", "b")
    assert app.drain().done == 3
    assert Table(app).rows("msg_id", "status", "error_try_times") == [(1, 2, 1)]
    assert [one.error for one in app.ops.show(1).tries]


def test_what_has_items_stays(app, table):
    @app.handler("t", when_done="delete")
    def handle(msg: Any, ctx: Any) -> None:
        if msg.object_id == "a":
            ctx.fan_out(str, [1, 2])

    send(app, "a", "b")
    app.drain(linger=0)
    assert table.rows("object_id", "status") == [("a", 2)]
    assert len(app.ops.items(1)) == 2


@pytest.mark.requires("unique_index_of_any_column")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_row_of_another_table_refers_to_stays(app, table, kind):
    send(app, "a", "a", "b", None)
    if app.engine.dialect.name == "sqlite":  # which looks only where a connection asks for it
        engine = sa.create_engine(app.engine.url)
        sa.event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys = ON"))
        app = App(engine)
    seen = handles(app, kind)
    msg_id = app.tables.cols().msg_id
    line = sa.Table("line", sa.MetaData(), sa.Column("msg", msg_id.type, sa.ForeignKey(msg_id)))
    with app.engine.begin() as conn:
        line.create(conn)
        conn.execute(sa.insert(line), {"msg": 1})
    report = app.drain(linger=0)
    assert (report.done, report.failed, report.retried, report.left) == (4, 0, 0, 0)
    assert len({msg.msg_id for msg in seen}) == 4
    assert (1, 2, 0) in table.rows("msg_id", "status", "error_try_times")
    if "batch" not in kind and kind != "group":  # of one all stay
        assert table.column("msg_id") == [1]


ON_DELETE = {
    "sqlite": "CREATE TRIGGER theirs BEFORE DELETE ON msgworker_message BEGIN {} END",
    "mysql": "CREATE TRIGGER theirs BEFORE DELETE ON msgworker_message FOR EACH ROW {}",
    "postgresql": "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {} END';"
    "CREATE TRIGGER theirs BEFORE DELETE ON msgworker_message FOR EACH ROW EXECUTE FUNCTION f()",
}


@pytest.mark.quick("sqlite-plain$|postgresql-tr|mariadb-group")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_a_trigger_of_the_user_may_archive_what_is_deleted(app, table, kind):
    database = app.engine.dialect.name.replace("mariadb", "mysql")
    copy = "INSERT INTO old_ones VALUES (OLD.msg_id);"
    body = copy + " RETURN OLD;" if database == "postgresql" else copy
    with app.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE old_ones (msg_id BIGINT)")
        text = ON_DELETE[database].format(body.rstrip(";") if database == "mysql" else body)
        conn.exec_driver_sql(text)
    app = App(app.engine)  # which sees the trigger
    handles(app, kind)
    ids = send(app, "a", "a", "b", None)
    assert app.drain(linger=0).done == 4
    assert table.statuses == []
    with app.engine.connect() as conn:
        old = conn.scalars(sa.text("SELECT msg_id FROM old_ones ORDER BY msg_id"))
        assert list(old) == ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_what_a_trigger_keeps_without_an_error_is_done(app, table, kind):
    """MySQL and Oracle have no such triggers."""
    keeps = {
        "sqlite": "SELECT RAISE(IGNORE) WHERE OLD.object_id = 'a';",
        "postgresql": "IF OLD.object_id = ''a'' THEN RETURN NULL; END IF; RETURN OLD;",
    }
    database = app.engine.dialect.name
    with app.engine.begin() as conn:
        conn.exec_driver_sql(ON_DELETE[database].format(keeps[database]))
    app = App(app.engine)
    handles(app, kind)
    send(app, "a", "a", "b", None)
    report = app.drain(linger=0)
    assert (report.done, report.left) == (4, 0)
    assert table.rows("object_id", "status") == [("a", 2), ("a", 2)]


@pytest.mark.long
@pytest.mark.requires("unique_index_of_any_column")
@pytest.mark.parametrize("kind", ["plain", "transactional", "batch"])
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_deferred_key_of_another_table_keeps_the_row_too(app, table, kind):
    msg_id = app.tables.cols().msg_id
    key = sa.ForeignKey(msg_id, deferrable=True, initially="DEFERRED")
    line = sa.Table("line", sa.MetaData(), sa.Column("msg", msg_id.type, key))
    line.create(app.engine)
    ids = send(app, "a", "b")
    with app.engine.begin() as conn:
        conn.execute(sa.insert(line), {"msg": ids[0]})
    handles(app, kind, max_tries=None if kind == "batch" else 1)
    assert app.drain(linger=0).done == 2
    assert (ids[0], 2, 0) in table.rows("msg_id", "status", "error_try_times")


def test_a_key_that_sqlite_checks_at_the_commit_keeps_the_row_too(sqlite):
    engine = sa.create_engine(sqlite.url)
    sa.event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys = ON"))
    app = created(App(engine))
    handles(app, "plain", max_tries=1)
    ids = send(app, "a", "a", "b")
    with app.engine.begin() as conn:
        key = "INTEGER REFERENCES msgworker_message DEFERRABLE INITIALLY DEFERRED"
        conn.exec_driver_sql(f"CREATE TABLE line (msg {key})")
        conn.exec_driver_sql(f"INSERT INTO line VALUES ({ids[0]})")
    report = app.drain(linger=0)
    assert (report.done, report.failed) == (3, 0)
    with app.engine.connect() as conn:
        rows = conn.exec_driver_sql("SELECT msg_id, status, error_try_times FROM msgworker_message")
        assert rows.all() == [(ids[0], 2, 0)]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_what_is_deleted_is_not_lost_where_the_others_are_refused(app, table, caplog):
    """Both statements of such a batch are in one transaction."""
    handles(app, "plain")
    handles(app, "plain", topic="u", when_done="keep")
    deleted, kept = send(app, *"abcd"), send(app, *"efgh", topic="u")
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "ALTER TABLE msgworker_message ADD CHECK (status <> 2 OR topic <> 'u')"
        )
    lost: list[Any] = []
    app.on(Lost, lost.append)
    report = app.drain(linger=0, threads=1)
    assert (report.done, lost) == (len(deleted), [])
    assert table.rows("msg_id", "status") == [(msg_id, -1) for msg_id in kept]


@pytest.mark.quick("sqlite")
def test_what_was_put_off_or_rerun_stays(make_app):
    app = created(make_app(backoff_seconds=0))
    fails = [True]

    @app.handler("t", when_done="delete", max_tries=1)
    def handle(msg: Any) -> None:
        if msg.object_id == "dead" and fails:
            fails.clear()
            raise ValueError("dead")
        if msg.object_id == "later" and "later" not in seen:
            seen.append("later")
            raise RetryLater(0.01)

    seen: list[str] = []
    send(app, "dead", "later", "done")
    app.drain(linger=1)
    assert app.ops.rerun([1]) == 1
    app.drain(linger=0)
    assert Table(app).rows("object_id", "status") == [("dead", 2), ("later", 2)]


def flagged(app: App, *objects: Any, me: str = "me") -> list[int]:
    ids = send(app, *objects)
    for msg_id in ids:
        edit(app, msg_id, status=1, claimed_by=me)
    return ids


@pytest.mark.core
@pytest.mark.quick("sqlite-True|(postgresql|oracle-mariadb)-False")
@pytest.mark.parametrize("alone", [False, True])
def test_a_message_that_is_no_longer_ours_is_not_deleted(app, table, alone):
    mine, theirs = flagged(app, "a")[0], flagged(app, "b", me="other")[0]
    batch = [Settlement(msg_id, deletes=True) for msg_id in (mine, theirs)]
    became: dict[int, Settled] = {}
    for some in [[one] for one in batch] if alone else [batch]:
        with app.engine.begin() as conn:
            try:
                became |= settle.settle(conn, app.tables, some, me="me")
            except done.FlagMissing:
                conn.rollback()
                for one in some:
                    with app.engine.begin() as own:
                        became[one.msg_id] = settle.settle_one(own, app.tables, one, me="me")
    assert became == {mine: Settled.ENDED, theirs: Settled.LOST}
    assert table.rows("msg_id", "status", "claimed_by") == [(theirs, 1, "other")]


def test_a_batch_with_a_message_that_is_no_longer_ours_deletes_none(app, table):
    flagged(app, "a")
    flagged(app, "b", me="other")
    with app.engine.begin() as conn:
        with pytest.raises(OutOfDate):
            settle_batch(conn, app.tables, [Share(1), Share(2)], me="me", deletes=True)
        conn.rollback()
    assert table.statuses == [1, 1]


def test_a_message_that_was_recovered_stays(make_app):
    """Its try ended in a crash, which people may ask about."""
    app = created(make_app(backoff_seconds=0, poll_seconds=0.02))
    handles(app, "plain")
    flagged(app, "a", me="gone-1")
    table = Table(app)
    with launched(app.worker(threads=1)):
        until(lambda: table.statuses == [2], "it is recovered and done")
    assert table.one("crash_times") == 1


@pytest.mark.parametrize("kind", ["plain", "transactional"])
def test_rows_without_owners_are_deleted_too(make_app, kind):
    app = created(make_app(table=MessageTable(claimed_by=None)))
    handles(app, kind)
    send(app, "a", "a", None)
    assert app.drain(linger=0).done == 3
    assert Table(app).statuses == []


def test_when_done_is_one_of_two(sqlite_app):
    with pytest.raises(HandlerError, match=r'when_done of handler .* must be "keep" or "delete"'):
        sqlite_app.add_handler("t", print, when_done="drop")


def test_a_table_that_gives_an_id_again_is_refused(make_app, sqlite):
    app = created(make_app(sqlite.url))
    with app.engine.begin() as conn:
        sql = conn.scalar(sa.text("SELECT sql FROM sqlite_master WHERE name = 'msgworker_message'"))
        conn.exec_driver_sql("ALTER TABLE msgworker_message RENAME TO before_it")
        conn.exec_driver_sql(sql.replace(" AUTOINCREMENT", ""))
        conn.exec_driver_sql("DROP TABLE before_it")
    app.create_schema()
    app.add_handler("t", lambda msg: None)
    app.drain(linger=0)
    assert needed(app) == []
    app.add_handler("u", lambda msg: None, when_done="delete")
    assert ["AUTOINCREMENT" in one.text for one in needed(app)] == [True]
    with pytest.raises(SchemaError, match="AUTOINCREMENT"):
        app.drain(linger=0)
