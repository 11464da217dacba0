"""Writers of several processes on one SQLite file: none starves behind a busy one.

SQLite's own waiting polls up to 100 ms apart, so who has just committed nearly always gets the lock
again; a heartbeat that waits like that loses its lease while its instance lives.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from msgworker import App, ConfigError, Context, DatabaseUnavailable, Message
from msgworker.db import sqlite
from msgworker.db.database import Trouble, of
from msgworker.db.errors import trouble
from tests.support.apps import created
from tests.support.waiting import in_thread

HOLD_SECONDS, GAP_SECONDS = 0.02, 0.0005
WANTED, ROUNDS_EACH = 20, 30  # measured: 3 rounds each with short looks, 65 with SQLite's waiting


def test_what_is_committed_is_on_disk_but_for_an_engine_of_the_user_s(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'm.db'}"
    own = sa.create_engine(url)
    sa.event.listen(own, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=NORMAL"))
    for source, level in ((url, 2), (own, 1)):
        engine = App(source).engine
        with engine.connect() as conn:
            assert conn.exec_driver_sql("PRAGMA synchronous").scalar() == level
        engine.dispose()


def test_the_schema_is_made_also_where_a_listener_keeps_each_cursor(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'm.db'}")
    kept: list[object] = []
    sa.event.listen(engine, "after_cursor_execute", lambda _c, cursor, *_: kept.append(cursor))
    App(engine).create_schema()
    with engine.connect() as conn:
        assert conn.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_an_index_is_unique_by_its_statement_not_by_its_name(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'm.db'}")
    table = sa.Table("t", sa.MetaData(), sa.Column("a", sa.Integer, unique=True))
    with engine.begin() as conn:
        table.create(conn)
        conn.exec_driver_sql("CREATE INDEX a_unique ON t (a)")
        conn.exec_driver_sql("create unique index a_one ON t (a) WHERE a > 1")
        found = of(conn).indexes_of(conn, table)
    unique = {name: index.unique for name, index in found.items()}
    assert unique == {"sqlite_autoindex_t_1": True, "a_unique": False, "a_one": True}


class Hog:
    """Another writer that takes the lock again right after each commit, and counts its rounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds = 0
        self.over = threading.Event()
        self.began = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        conn = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        while not self.over.is_set() and self.rounds < WANTED * ROUNDS_EACH:
            conn.execute("BEGIN IMMEDIATE")
            self.began.set()
            self.over.wait(HOLD_SECONDS)
            conn.execute("COMMIT")
            self.rounds += 1
            self.over.wait(GAP_SECONDS)
        conn.close()


def test_writer_gets_its_turn_behind_one_that_always_wants_to_write(tmp_path: Path) -> None:
    path = tmp_path / "busy.db"
    app = created(App(f"sqlite:///{path}"))
    hog = Hog(path)
    hog.thread.start()
    try:
        assert hog.began.wait(30)
        for _ in range(WANTED):
            with app.engine.begin() as conn:
                app.send(conn, "any", None)
        used = hog.rounds
    finally:
        hog.over.set()
        hog.thread.join()
        app.engine.dispose()

    assert used < WANTED * ROUNDS_EACH, "the lock came only after the other writer had ended"


def test_lock_that_is_held_too_long_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "held.db"
    app = created(App(f"sqlite:///{path}"))
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with app.engine.connect() as conn:
        with pytest.raises(OperationalError, match="locked") as caught:
            conn.begin()
        assert trouble(caught.value) is Trouble.AGAIN
    holder.execute("COMMIT")
    with app.engine.begin() as conn:  # and the connection is good for use again
        app.send(conn, "any", None)
    holder.close()


def test_the_schema_waits_for_a_program_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "theirs.db"
    app = App(f"sqlite:///{path}")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("CREATE TABLE customer (id)")
    holder.execute("BEGIN IMMEDIATE")
    with monkeypatch.context() as soon:
        soon.setattr(sqlite, "BUSY_SECONDS", 0.05)
        for make in (app.create_schema, app.upgrade_schema):
            with pytest.raises(DatabaseUnavailable, match="locked"):
                make()
    made = in_thread(app.create_schema)
    time.sleep(0.2)
    holder.execute("COMMIT")
    made()
    holder.close()
    assert app.create_schema() == []


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_an_instance_leaves_a_file_that_is_deleted_or_replaced_under_it(
    tmp_path: Path, how: str
) -> None:
    app = created(App(f"sqlite:///{tmp_path / 'crm.db'}", lease_seconds=3))
    handled = threading.Event()
    app.handler("t")(lambda msg: handled.set())
    with app.engine.begin() as conn:
        app.send(conn, "t")
    shutil.copy(tmp_path / "crm.db", tmp_path / "backup.db")
    running = in_thread(app.worker(threads=1).run)
    assert handled.wait(30)
    if how == "deleted":
        (tmp_path / "crm.db").unlink()
    else:
        (tmp_path / "backup.db").replace(tmp_path / "crm.db")
    with pytest.raises(DatabaseUnavailable, match=r"crm.db was deleted or replaced"):
        running()


def test_a_deleted_file_is_told_even_when_another_error_is_met_first(tmp_path: Path) -> None:
    """A new connection makes an empty file, in which no table is found."""
    app = created(App(f"sqlite:///{tmp_path / 'crm.db'}", lease_seconds=60))
    app.handler("t")(lambda msg: (tmp_path / "crm.db").unlink())
    with app.engine.begin() as conn:
        app.send(conn, "t")
    with pytest.raises(DatabaseUnavailable, match=r"crm.db was deleted or replaced"):
        app.worker(threads=1).run()


@pytest.mark.parametrize("within", ["handler", "items"])
def test_a_second_transaction_within_the_one_that_may_write_is_refused_at_once(
    tmp_path: Path, within: str
) -> None:
    """It would wait for itself, and the heartbeat with it."""
    app = created(App(f"sqlite:///{tmp_path / 'crm.db'}", backoff_seconds=0))

    def write(*_: Any) -> None:
        with app.engine.begin() as conn:
            app.send(conn, "other")

    if within == "handler":
        app.handler("t", transactional=True, max_tries=1)(write)
    else:

        @app.handler("t", max_tries=1)
        def handle(msg: Message, ctx: Context) -> None:
            ctx.fan_out(write, [1], transactional_items=True).raise_for_failed()

    app.handler("good", transactional=True)(lambda msg, ctx: app.send(ctx.connection, "t"))
    with app.engine.begin() as conn:
        app.send(conn, "good", object_id="a")
    begun = time.monotonic()
    report = app.drain(linger=0)
    assert (report.done, report.failed) == (1, 1)
    assert time.monotonic() - begun < 30
    (dead,) = (info for info in app.ops.find() if info.topic == "t")
    assert "would wait for itself: write with ctx.connection" in dead.last_error


@pytest.mark.parametrize("level", [None, "AUTOCOMMIT"])
def test_an_app_changes_nothing_of_what_errors_do_to_a_program_s_own_connections(tmp_path, level):
    options = {} if level is None else {"isolation_level": level}
    engine = sa.create_engine(f"sqlite:///{tmp_path}/own.db", **options)
    App(engine).create_schema()
    with engine.connect() as conn:
        with pytest.raises(sa.exc.OperationalError) as error:
            conn.exec_driver_sql("SELECT * FROM nothing")
        assert not error.value.connection_invalidated
        assert conn.scalar(sa.text("SELECT 1")) == 1


@pytest.mark.parametrize("value", [True, False])
def test_an_engine_with_transactions_of_the_driver_s_own_is_refused(tmp_path, value):
    """As of Python 3.12, where a connection has this attribute; by default it is no bool."""

    class Own(sqlite3.Connection):
        autocommit = value

    engine = sa.create_engine(f"sqlite:///{tmp_path}/own.db", connect_args={"factory": Own})
    with pytest.raises(ConfigError, match="autocommit="):
        App(engine).create_schema()


@pytest.mark.parametrize("begin", ["BEGIN", "begin exclusive"])
def test_an_engine_whose_listener_begins_its_transactions_will_do(tmp_path, begin):
    """SQLAlchemy's manual advises one, for savepoints that work."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/own.db")

    @sa.event.listens_for(engine, "connect")
    def connected(raw, _record):
        raw.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begins(conn):
        conn.exec_driver_sql(begin)

    app = created(App(engine))
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE effect (msg_id INTEGER)")
    insert = sa.text("INSERT INTO effect VALUES (:i)")

    @app.handler("in", transactional=True)
    def handle(msg, ctx):
        ctx.connection.execute(insert, {"i": msg.msg_id})

    app.handler("t")(lambda msg: None)
    with engine.begin() as conn:
        ids = [app.send(conn, "in", object_id="a") for _ in range(3)]
        app.send(conn, "t", object_id="a")
    assert app.drain(linger=0, time_limit=30).done == 4
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT msg_id FROM effect").scalars().all() == ids
        assert conn.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.fixture
def own(tmp_path):
    """An App's Engine, and a table that ends the transaction of a second 1."""
    app = created(App(f"sqlite:///{tmp_path}/own.db"))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE t (x INTEGER UNIQUE ON CONFLICT ROLLBACK)")
        conn.exec_driver_sql("INSERT INTO t VALUES (1)")
    return app.engine


def test_an_error_that_ends_the_transaction_leaves_one_open(own):
    """What follows would be committed statement by statement."""
    with own.connect() as conn, conn.begin() as begun:
        with pytest.raises(sa.exc.IntegrityError):
            conn.exec_driver_sql("INSERT INTO t VALUES (1)")
        conn.exec_driver_sql("INSERT INTO t VALUES (2)")
        begun.rollback()
    with own.connect() as conn:
        assert conn.exec_driver_sql("SELECT x FROM t").scalars().all() == [1]


def test_a_commit_that_is_refused_leaves_nothing_open(own, tmp_path):
    """The connection goes back to its pool, and would hold the lock of the one writer there."""
    with own.connect() as conn:
        with pytest.raises(sa.exc.IntegrityError):
            conn.exec_driver_sql("INSERT INTO t VALUES (1)")
        conn.exec_driver_sql("INSERT INTO t VALUES (2)")
        with pytest.raises(sa.exc.IntegrityError):
            conn.commit()
    with sqlite3.connect(tmp_path / "own.db", timeout=0) as other:
        other.execute("INSERT INTO t VALUES (3)")
    with own.begin() as conn:
        assert conn.exec_driver_sql("SELECT x FROM t").scalars().all() == [1, 3]
