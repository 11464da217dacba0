"""An App: its engine, its table, its workers."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import sqlalchemy as sa

from msgworker import SchemaError
from msgworker.coordination import DatabaseLocks
from tests.support.apps import created
from tests.support.rows import send
from tests.support.waiting import in_thread, until


def test_two_apps_share_an_engine_and_one_takes_the_other_s(database, make_app):
    engine = database.engine()
    first, second = make_app(engine), make_app(engine)
    third = make_app(first.engine)
    first.create_schema()
    for app in (first, second, third):
        app.add_handler(None, lambda msg: None)
        send(app, "a")
        assert app.drain(linger=0).done == 1


@pytest.mark.requires("nested_schemas")
def test_apps_of_one_shape_write_to_their_own_schemas(database, make_app):
    """Their statements are shared, also as texts, and one engine translates schemas."""
    engine = database.engine()
    first = created(make_app(engine))
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA other")
        for name in sa.inspect(conn).get_table_names():
            conn.exec_driver_sql(f"CREATE TABLE other.{name} (LIKE public.{name} INCLUDING ALL)")
    mapped = make_app(engine.execution_options(schema_translate_map={None: "other"}))
    locks = DatabaseLocks(mapped.engine)
    for make in (mapped.create_schema, mapped.upgrade_schema, locks.create_schema):
        with pytest.raises(SchemaError, match="table names the schema"):
            make()
    for app in (first, mapped):
        app.add_handler(None, lambda msg: None)
        send(app, "a", "a", "b")
        assert app.drain(linger=0).done == 3
    with engine.connect() as conn:
        for schema in ("public", "other"):
            found = conn.exec_driver_sql(f"SELECT status FROM {schema}.msgworker_message")
            assert list(found.scalars()) == [2, 2, 2], schema


def test_an_app_keeps_the_workers_that_run_and_no_others(app):
    """One without a reference that was started is woken all the same."""
    seen = threading.Event()
    app.add_handler("t", lambda msg: seen.set())
    idle = [weakref.ref(app.worker()) for _ in range(3)]
    worker = app.worker(threads=1)
    runs = weakref.ref(worker)
    worker.start()
    del worker
    gc.collect()
    assert [ref() for ref in idle] == [None] * 3
    try:
        send(app, "a")
        assert seen.wait(60)
    finally:
        runs().stop()
    until(lambda: gc.collect() is not None and runs() is None, "its threads have let it go")


def test_two_apps_with_different_topics_share_a_table(app, make_app, table):
    other = make_app()
    got: dict[str, list[str]] = {"a": [], "b": []}
    app.add_handler("a", lambda msg: got["a"].append(msg.topic))
    other.add_handler("b", lambda msg: got["b"].append(msg.topic))
    for i in range(20):
        send(app, f"x{i}", topic="a")
        send(app, f"y{i}", topic="b")
    joins = [in_thread(lambda one=one: one.drain(linger=0, threads=2)) for one in (app, other)]
    assert [join().done for join in joins] == [20, 20]
    assert (set(got["a"]), set(got["b"])) == ({"a"}, {"b"})
