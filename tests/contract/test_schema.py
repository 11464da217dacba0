"""The tables that create_schema makes."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.errors import SchemaError
from msgworker.schema import apply
from msgworker.table.tables import Tables
from tests.engines import plain_engine
from tests.support.apps import created
from tests.support.rows import Table, send
from tests.support.waiting import in_thread

NAMES = {
    f"msgworker_{name}" for name in ("message", "lease", "item", "operation", "audit", "pause")
}


def test_create_schema_creates_and_then_finds_all_there(make_app):
    app = make_app()
    assert set(app.create_schema()) >= NAMES
    assert app.create_schema() == []
    assert make_app().create_schema() == []


def test_tables_of_one_shape_are_built_once_for_all_databases_of_a_process(tmp_path):
    """And those beside them once for all shapes."""

    def tables(name: str, *more: str, **rule: int) -> Tables:
        app = created(App(f"sqlite:///{tmp_path / name}.db", table=MessageTable(**rule)))
        with app.engine.begin() as conn:
            for statement in more:
                conn.exec_driver_sql(statement)
        found = App(app.engine, table=app.table).tables
        app.engine.dispose()
        return found

    north = tables("north")
    assert tables("south") is north
    others = [
        tables("rule", max_tries=5),
        tables("index", "DROP INDEX msgworker_message_due"),
        tables("beside", "DROP TABLE msgworker_pause"),
        tables("check", "ALTER TABLE msgworker_message ADD COLUMN shop VARCHAR NOT NULL DEFAULT 1"),
    ]
    assert others[2].missing == {"msgworker_pause"}
    assert len({id(t) for t in [north, *others]}) == 5
    assert {id(t.lease) for t in [north, *others]} == {id(north.lease)}


def test_create_schema_by_eight_threads_at_once(make_app):
    apps = [make_app() for _ in range(8)]
    gate = threading.Barrier(8)

    def create(app: App) -> list[str]:
        gate.wait()
        return app.create_schema()

    joins = [in_thread(lambda app=app: create(app)) for app in apps]
    made = [name for join in joins for name in join()]
    assert set(made) >= NAMES
    assert len(made) == len(set(made))
    assert apps[0].create_schema() == []


@pytest.mark.long
def test_create_schema_by_four_processes_at_once(database, make_app):
    code = (
        "import sys; from msgworker import App; app = App(sys.argv[1]); sys.stdin.readline(); "
        "print(' '.join(app.create_schema()))"
    )
    command = [sys.executable, "-c", code, database.url]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)
    ]
    for process in started:  # all are at the same line before the first goes on
        process.stdin.write("go\n")
        process.stdin.flush()
    out = [process.communicate(timeout=120) for process in started]
    assert [p.returncode for p in started] == [0] * 4, [o[1][-800:] for o in out]
    made = [name for text, _ in out for name in text.split()]
    assert set(made) >= NAMES
    assert len(made) == len(set(made))
    assert make_app().create_schema() == []


def test_a_session_in_which_a_step_waited_in_vain_for_a_lock_is_closed(sqlite_app, monkeypatch):
    """On MySQL it still has the limit for locks."""
    monkeypatch.setattr(apply, "ATTEMPTS", 0)
    engine, closed = plain_engine(sqlite_app.engine.url, connect_args={"timeout": 0}), list[int]()
    sa.event.listen(engine, "invalidate", lambda *_: closed.append(1))
    with sqlite_app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_lock")
    with plain_engine(engine.url).connect() as holder:
        holder.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(SchemaError, match="in use"):
            apply.create_locks(engine, sqlite_app.tables)
    assert closed != []


def test_a_schema_whose_index_names_another_table_has_is_refused(sqlite):
    """On SQLite the names of indexes stay with a table that is renamed."""
    app = created(App(sqlite.url))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE msgworker_message RENAME TO old")
    with pytest.raises(SchemaError, match="msgworker_message_guard already exists"):
        app.create_schema()


@pytest.mark.parametrize("rules", [{"max_tries": 5}, {"on_dead": "block"}, {"max_tries": 2}])
def test_rules_changed_on_a_table_that_exists(make_app, app, rules):
    """The claim indexes were made for other rules: create_schema adds the right ones."""
    changed = created(make_app(table=MessageTable(**rules)))
    assert changed.create_schema() == []
    changed.add_handler("t", lambda msg: None)
    first, second = send(changed, "o", "o")
    table = Table(changed)
    tries = rules.get("max_tries", 3) - 1
    table.edit(table.where(msg_id=first), status=-1, error_try_times=tries)
    assert changed.drain(linger=0).done == 2
    table.edit(table.where(msg_id=first), status=-1, error_try_times=tries + 1)
    table.edit(table.where(msg_id=second), status=0)
    report = changed.drain(linger=0)
    assert (report.done, report.left) == ((0, 2) if "on_dead" in rules else (1, 0))


def test_a_new_app_asks_few_questions_about_its_tables(make_app, database):
    """Each test, timer and command makes one, often over a network."""
    created(make_app())
    sent = []
    fresh = make_app()
    sa.event.listen(fresh.engine, "before_cursor_execute", lambda *sending: sent.append(sending[2]))
    assert fresh.tables.missing == frozenset()
    most = {"postgresql": 10, "mariadb": 11, "mysql": 11, "sqlite": 12, "oracle": 31}
    assert len(sent) <= most[fresh.tables.database.name], sent
