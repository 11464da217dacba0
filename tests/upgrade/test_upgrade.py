"""From every version of the schema to this one: `App.upgrade_schema`, alone and several at once."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable, SchemaError
from msgworker.db import postgresql as dialect
from msgworker.db.database import NAMES, of
from msgworker.doctor import Severity
from msgworker.schema import apply
from msgworker.schema.apply import Step
from msgworker.table.build import NEWEST, VERSIONS
from tests.support.apps import created
from tests.support.refusing import ROLLED_BACK
from tests.support.waiting import at_once, launched, until
from tests.upgrade import kept

ROOT = Path(__file__).parents[2]
HERE = [name for name in NAMES if (kept.FOLDER / "01" / f"{name}.sql").exists()]


def old(make_app: Callable[..., App], database: Any, version: int, **options: Any) -> App:
    """An App on the tables of an earlier version."""
    kept.restore(database.engine(), version)
    return make_app(**options)


def comparable(text: str) -> str:
    """DDL without the comments, which are reworded now and then."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()


@pytest.mark.parametrize("name", HERE)
def test_the_newest_version_that_is_kept_is_the_schema_of_today(name: str) -> None:
    """A change of the schema is a new version: in VERSIONS, and kept here."""
    latest = (kept.FOLDER / f"{NEWEST:02}" / f"{name}.sql").read_text()
    assert comparable(latest) == comparable((ROOT / "ddl" / f"{name}.sql").read_text())
    assert sorted(kept.COMMITS) == [one.number for one in VERSIONS] == [*range(1, NEWEST + 1)]


@pytest.mark.quick("sqlite-7$|postgresql-1$")
@pytest.mark.parametrize("version", kept.COMMITS)
def test_an_upgrade_makes_what_a_new_database_has_and_keeps_all_rows(
    database: Any, make_app: Callable[..., App], version: int
) -> None:
    app = old(make_app, database, version)
    before = kept.rows(app.engine)
    assert app.upgrade_schema(dry_run=True).found == version
    plan = app.upgrade_schema()
    assert (plan.found, plan.left) == (version, ())
    assert kept.rows(app.engine) == before
    again = app.upgrade_schema()
    assert (again.found, again.recorded, again.steps) == (NEWEST, NEWEST, ())
    assert app.create_schema() == []
    assert [one.text for one in app.ops.doctor() if one.severity is Severity.NEEDED] == []
    there = kept.shape(app.engine)
    app.engine.dispose()
    assert there == kept.shape_made_anew(database.engine())


@pytest.mark.quick("sqlite-4|mariadb-1")
@pytest.mark.parametrize("version", [1, 4])
def test_messages_in_all_states_go_on_after_an_upgrade(
    database: Any, make_app: Callable[..., App], version: int
) -> None:
    app = old(make_app, database, version)
    app.upgrade_schema()
    ran: list[str] = []
    for topic, *_ in kept.STATES:
        app.add_handler(topic, lambda msg: ran.append(msg.topic))
    app.ops.release_nobody(any_age=True)
    app.drain(retry_linger=0)
    assert sorted(ran) == ["alone", "behind", "failed", "new", "running"]
    assert ran.index("failed") < ran.index("behind")
    with app.engine.begin() as conn:
        key = {"unique_key": "k", "priority": 3}
        assert app.send(conn, "new", {"n": 2}, object_id="c", **key) is not None


def test_tables_are_made_from_nothing_as_create_schema_makes_them(
    database: Any, make_app: Callable[..., App]
) -> None:
    app = make_app()
    assert app.upgrade_schema().found == 0
    assert app.create_schema() == []
    assert app.upgrade_schema().steps == ()


@pytest.mark.quick("mariadb-15")
@pytest.mark.parametrize("ends_after", [1, 4, 12, 15])
def test_an_upgrade_that_ended_in_the_middle_goes_on(
    database: Any, make_app: Callable[..., App], ends_after: int
) -> None:
    class Killed(Exception):
        pass

    app = old(make_app, database, 1)
    left = [ends_after]

    def killed(step: Step) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    with pytest.raises(Killed):
        app.upgrade_schema(on_step=killed)
    begun = app.upgrade_schema(dry_run=True)
    assert begun.found < NEWEST or begun.recorded is None
    app.upgrade_schema()
    assert app.upgrade_schema().steps == ()
    assert app.create_schema() == []


@pytest.mark.quick("postgresql-6")
@pytest.mark.parametrize("version", [1, 6])
def test_several_upgrades_at_once_make_everything_once(
    database: Any, make_app: Callable[..., App], version: int
) -> None:
    kept.restore(database.engine(), version)
    apps = [make_app() for _ in range(3)]
    made: list[str] = []
    start = threading.Barrier(len(apps) + 1)

    def run(app: App) -> None:
        start.wait()
        app.upgrade_schema(on_step=lambda step: made.append(step.makes))

    def create() -> None:
        start.wait()
        make_app().create_schema()

    at_once(create, *(partial(run, app) for app in apps))
    assert len(made) == len(set(made))
    done = apps[0].upgrade_schema()
    assert (done.steps, done.recorded) == ((), NEWEST)
    with apps[0].engine.connect() as conn:
        assert kept.unfinished(conn, apps[0].tables.message) == set()


def test_what_is_printed_is_what_runs(database: Any, make_app: Callable[..., App]) -> None:
    app = old(make_app, database, 4)
    steps = app.upgrade_schema(dry_run=True).steps
    printed = [text for step in steps for text in step.statements]
    ran: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        reads = ("SELECT", "PRAGMA", "SHOW", "WITH", "DESCRIBE")
        of_the_session = "SET LOCAL IDLE"  # whose limit would end an upgrade that takes its time
        if not statement.lstrip("( ").upper().startswith((*reads, of_the_session)):
            ran.append(statement)

    sa.event.listen(app.engine, "before_cursor_execute", note)
    told: list[tuple[str, str]] = []
    app.upgrade_schema(on_step=lambda step: told.append((step.makes, step.waits)))
    assert ran == printed
    assert told == [(step.makes, step.waits) for step in steps]


def test_a_message_table_of_yours_is_changed_when_it_is_asked_for(
    database: Any, make_app: Callable[..., App]
) -> None:
    kept.restore(database.engine(), 1, table="orders")
    app = make_app(table=MessageTable("orders"))
    before = kept.shape(app.engine), sa.inspect(app.engine).get_columns("orders")
    with app.engine.connect() as conn:
        indexes = of(conn).indexes_of(conn, sa.Table("orders", sa.MetaData()))
    plan = app.upgrade_schema()
    assert {one.table.lower() for one in plan.left} == {"orders"}
    assert app.upgrade_schema().recorded is None
    assert [c["name"] for c in sa.inspect(app.engine).get_columns("orders")] == [
        c["name"] for c in before[1]
    ]
    with app.engine.connect() as conn:
        assert of(conn).indexes_of(conn, sa.Table("orders", sa.MetaData())) == indexes
    assert app.upgrade_schema(message_table=True).left == ()
    done = app.upgrade_schema()
    assert (done.steps, done.left, done.recorded) == ((), (), NEWEST)
    assert "priority" not in app.tables.names


def recorded_as(app: App, **changes: int) -> None:
    """Record another version, as a later package would."""
    lease = app.tables.lease
    text = json.dumps({"table": "msgworker_message", **changes})
    with app.engine.begin() as conn:
        done = conn.execute(sa.update(lease).where(lease.c.kind == "schema").values(serves=text))
        assert done.rowcount == 1


def test_code_works_on_a_later_schema_that_only_adds(
    database: Any, make_app: Callable[..., App]
) -> None:
    app = created(make_app())
    recorded_as(app, version=NEWEST + 3, least=NEWEST)
    later = make_app()
    later.add_handler("new", lambda msg: None)
    with later.engine.begin() as conn:
        later.send(conn, "new", {})
    assert later.drain().done == 1
    assert later.create_schema() == []
    assert later.upgrade_schema().recorded == NEWEST + 3
    (found,) = [one for one in later.ops.doctor() if one.check == "version"]
    assert found.severity is Severity.FINE
    assert f"version {NEWEST + 3}, of a later package" in found.text


def test_code_is_refused_by_a_schema_that_it_does_not_understand(
    database: Any, make_app: Callable[..., App]
) -> None:
    app = created(make_app())
    recorded_as(app, version=NEWEST + 3, least=NEWEST + 2)
    earlier = make_app()
    earlier.add_handler("new", lambda msg: None)
    for call in (earlier.drain, earlier.upgrade_schema, lambda: earlier.tables):
        with pytest.raises(SchemaError, match=f"only code of version {NEWEST + 2} or later"):
            call()
    (found,) = [one for one in earlier.ops.doctor() if one.check == "version"]
    assert found.severity is Severity.NEEDED


def test_an_instance_that_runs_goes_on_where_a_later_schema_refuses_its_start(
    database: Any, make_app: Callable[..., App]
) -> None:
    app = created(make_app(poll_seconds=0.05))
    ran: list[int] = []
    app.add_handler("new", lambda msg: ran.append(msg.msg_id))
    worker = launched(app.worker())
    recorded_as(app, version=NEWEST + 1, least=NEWEST + 1)
    with app.engine.begin() as conn:
        sent = app.send(conn, "new", {})
    until(lambda: ran == [sent], "it is handled")
    worker.stop()
    again = make_app()
    again.add_handler("new", lambda msg: None)
    with pytest.raises(SchemaError, match=f"only code of version {NEWEST + 1} or later"):
        again.drain()


def test_doctor_names_both_versions(database: Any, make_app: Callable[..., App]) -> None:
    app = old(make_app, database, 8)
    (found,) = [one for one in app.ops.doctor() if one.check == "version"]
    assert found.severity is Severity.ADVISED
    assert found.text == (
        f"the schema is version 8, this package wants {NEWEST}: run "
        "`msgworker db pkg.module:app upgrade`"
    )


@pytest.mark.parametrize("make", ["create_schema", "upgrade_schema"])
def test_it_is_said_once_that_a_table_is_in_use(
    sqlite: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make: str
) -> None:
    """For some minutes nobody knew what it waited for."""
    app = created(App(sqlite.url))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("DROP INDEX msgworker_message_failed")
    real, left = apply.writing, [ROLLED_BACK] * 3

    def writing(engine: sa.Engine) -> Any:
        if left:
            raise left.pop()
        return real(engine)

    monkeypatch.setattr(apply, "writing", writing)
    monkeypatch.setattr(apply, "PAUSE_SECONDS", 0.0)
    getattr(app, make)()
    said = "table msgworker_message is in use, and so index msgworker_message_failed is tried again"
    assert caplog.text.count(said) == 1
    assert "database is locked" in caplog.text
    assert app.create_schema() == []


def test_an_upgrade_says_for_which_one_it_waits(
    postgresql: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host of the other one may be gone, and the server takes hours to notice. Who waits has no
    transaction open: an index of the other one could be waiting for its end."""
    monkeypatch.setattr(dialect, "_LOOKS_IN_SILENCE", 2)
    app = created(App(postgresql.url))
    upgrade = threading.Thread(target=app.upgrade_schema)
    with of(app.engine).in_turn(app.engine, "msgworker upgrade "):
        upgrade.start()
        until(lambda: "waiting for another upgrade" in caplog.text, "it says so")
        with app.engine.connect() as conn:
            (session,) = re.findall(r"pg_terminate_backend\((\d+)\)", caplog.text)
            there = sa.text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
            assert conn.scalar(there, {"pid": int(session)}) == 1
            others = sa.text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
                "state = 'idle in transaction' AND pid <> :pid"
            )
            conn.rollback()
            until(lambda: not conn.scalar(others, {"pid": int(session)}), "none is open", seconds=5)
    upgrade.join(60)
    assert not upgrade.is_alive()


@pytest.mark.long
def test_an_index_whose_creation_was_interrupted_is_made_anew(
    postgresql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.restore(postgresql.engine(), 4)
    app = App(postgresql.url)
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("DROP INDEX msgworker_message_guard")
        conn.exec_driver_sql("UPDATE msgworker_message SET status = 1 WHERE object_id = 'b'")
    with pytest.raises(SchemaError, match="two rows at status 1") as told:
        app.upgrade_schema()
    assert "GROUP BY msgworker_message.object_id" in str(told.value)
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        table = sa.Table("msgworker_message", sa.MetaData())
        assert kept.unfinished(conn, table) == {"msgworker_message_guard"}
        conn.exec_driver_sql("UPDATE msgworker_message SET status = 0 WHERE object_id = 'b'")
        plan = app.upgrade_schema()
        assert plan.steps[0].statements[0].startswith(("ALTER", "DO", "CREATE", "SET"))
        assert kept.unfinished(conn, table) == set()
        assert "msgworker_message_guard" in of(conn).indexes_of(conn, table)


@pytest.mark.parametrize("act", ["upgrade", "upgrade of an index", "create", "create of an index"])
@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_table_in_use_is_waited_for_without_holding_up_others(database: Any, act: str) -> None:
    """Who writes in a long transaction delays it; others read and write meanwhile."""
    kept.restore(database.engine(), NEWEST if "index" in act else 11)
    app = App(database.url)
    postgresql = database.name == "postgresql"
    if "index" in act:
        index, on = "msgworker_message_failed", "" if postgresql else " ON msgworker_message"
        with app.engine.begin() as conn:
            conn.exec_driver_sql(f"DROP INDEX {index}{on}")
    make = app.create_schema if "create" in act else app.upgrade_schema
    making = threading.Thread(target=make)
    write = "UPDATE msgworker_message SET last_error = 'x' WHERE msg_id = {}"
    with database.engine().begin() as long:
        long.exec_driver_sql(write.format(1))
        making.start()
        making.join(1)
        assert making.is_alive()
        with database.engine().begin() as other:
            limit = "LOCAL statement_timeout = '20s'" if postgresql else "lock_wait_timeout = 20"
            other.exec_driver_sql(f"SET {limit}")
            other.exec_driver_sql(write.format(2))
    making.join(60)
    assert not making.is_alive()
    assert app.upgrade_schema().steps == ()
    limit = "SHOW lock_timeout" if postgresql else "SELECT @@SESSION.lock_wait_timeout"
    with database.engine().connect() as conn:
        usual = conn.exec_driver_sql(limit).scalar_one()
    with app.engine.connect() as one, app.engine.connect() as other:  # what its pool has kept
        assert {conn.exec_driver_sql(limit).scalar_one() for conn in (one, other)} == {usual}
