"""What user code sets in the session of a connection harms its own message at most, and what is
borrowed from a user's Engine is given back as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed

from msgworker import App, BatchContext, ConfigError, Context, Message
from tests import variants
from tests.engines import plain_engine
from tests.plugin import Database
from tests.support.apps import created
from tests.support.rows import Table, send

pytestmark = pytest.mark.requires("own_sessions")

LEAVES = {
    "postgresql": {
        "path": "SET search_path TO elsewhere",
        "in a block": "SELECT 1; SET search_path TO elsewhere",
        "by a function": "SELECT set_config('search_path', 'elsewhere', false)",
        "read-only": "SET default_transaction_read_only = on",
        "limit": "SET statement_timeout = 1",
        "shadow": "CREATE TEMP TABLE msgworker_message AS TABLE msgworker_message",
        "role": "SET ROLE pg_monitor",
    },
    "mariadb": {
        "path": "USE elsewhere",
        "read-only": "SET SESSION TRANSACTION READ ONLY",
        "shadow": "CREATE TEMPORARY TABLE msgworker_message SELECT * FROM msgworker_message",
        "mode": "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
    },
    "sqlite": {
        "read-only": "PRAGMA query_only = ON",
        "shadow": "CREATE TEMP TABLE msgworker_message AS SELECT * FROM msgworker_message",
    },
}
"""By database: what user code may leave, by which our statements would fail or change nothing."""
LASTS = {
    "postgresql": ("SET lock_timeout = '7s'", "SHOW lock_timeout", "7s"),
    "mariadb": ("SET lock_wait_timeout = 77", "SELECT @@lock_wait_timeout", 77),
    "sqlite": ("PRAGMA cache_size = 77", "PRAGMA cache_size", 77),
}
"""A statement, one that reads what it has set, and that."""


@pytest.fixture
def app(ready: None, database: Database, make_app: Any) -> App:
    """With a second table of the name of ours where `elsewhere` is."""
    if database.name not in LEAVES or database.stand_in:
        pytest.skip("no sessions like these")
    made: App = make_app(backoff_seconds=0)
    if not database.ready:
        made.create_schema()
    return made


@pytest.fixture
def elsewhere(app: App, database: Database) -> Iterator[str]:
    """A schema or a database with tables of the same names."""
    name = f"{sa.make_url(database.url).database}_b" if database.name == "mariadb" else "elsewhere"
    if database.name == "sqlite":
        yield name
        return
    admin = database.engine().execution_options(isolation_level="AUTOCOMMIT")
    kind = "DATABASE" if database.name == "mariadb" else "SCHEMA"
    with admin.connect() as conn:
        conn.exec_driver_sql(f"CREATE {kind} {name}")
        for table in ("msgworker_message", "msgworker_lease", "msgworker_try"):
            own = f"public.{table}" if kind == "SCHEMA" else table
            more = "(LIKE {} INCLUDING ALL)" if kind == "SCHEMA" else "LIKE {}"
            conn.exec_driver_sql(f"CREATE TABLE {name}.{table} {more.format(own)}")
        yield name
        conn.exec_driver_sql(f"DROP {kind} {name} {'CASCADE' if kind == 'SCHEMA' else ''}")


def left(database: Database, what: str, name: str) -> str:
    return LEAVES[database.name][what].replace("elsewhere", name)


of_each = pytest.mark.parametrize(
    ("database", "what"),
    [(name, what) for name, kinds in LEAVES.items() for what in kinds],
    indirect=["database"],
)


@pytest.mark.quick("postgresql-(path|role)|mariadb-mode|sqlite-read")
@of_each
def test_what_a_plain_handler_leaves_in_a_session_harms_no_message(
    app: App, database: Database, elsewhere: str, what: str
) -> None:
    change, starts = left(database, what, elsewhere), Counter[Any]()

    @app.handler("t")
    def handle(msg: Message) -> None:
        starts[msg.msg_id] += 1
        if msg.payload == "bad":
            with app.engine.connect() as conn:
                conn.exec_driver_sql(change)
                conn.commit()

    @app.handler("in", transactional=True)
    def inside(msg: Message, ctx: Context) -> None:
        starts[msg.msg_id] += 1
        ctx.connection.execute(sa.select(1))

    send(app, "a", payload="bad")
    send(app, *(f"o{n}" for n in range(19)))
    send(app, *(f"p{n}" for n in range(20)), topic="in")
    assert app.drain(threads=4, linger=2, time_limit=60).done == 40
    assert set(starts.values()) == {1}


@pytest.mark.quick(
    "alone-(postgresql-in|sqlite-shadow)|group-mariadb-mode|batch-(postgresql-(path|role)|sqlite-read)"
)
@of_each
@pytest.mark.parametrize("how", ["alone", "group", "batch"])
def test_what_a_transactional_handler_leaves_harms_its_own_message_at_most(
    app: App, database: Database, elsewhere: str, what: str, how: str
) -> None:
    change, starts = left(database, what, elsewhere), Counter[Any]()
    options: dict[str, Any] = {} if how == "alone" else {how: 5}
    bad = Counter[Any]()

    def work(messages: list[Message], conn: sa.Connection) -> None:
        for msg in messages:
            starts[msg.msg_id] += 1
            if msg.payload == "bad":
                bad[msg.msg_id] += 1
                conn.exec_driver_sql(change)

    if how == "batch":

        @app.handler("t", transactional=True, wait=wait_fixed(0), **options)
        def handle_all(messages: list[Message], ctx: BatchContext) -> None:
            work(messages, ctx.connection)

    else:

        @app.handler("t", transactional=True, wait=wait_fixed(0), **options)
        def handle(msg: Message, ctx: Context) -> None:
            work([msg], ctx.connection)

    for n in range(20):
        send(app, f"o{n}", payload="bad" if n == 3 else "good")
    app.drain(threads=2, linger=2, time_limit=60)
    ((msg_id, count),) = bad.items()
    rows = Table(app).rows("msg_id", "status", "error_try_times")
    # What shadows our table is seen after the COMMIT, which those of one transaction share.
    fewest = {(2, 0), (2, 1)} if what == "shadow" and how != "alone" else {(2, 0)}
    assert {row[1:] for row in rows if row[0] != msg_id} <= fewest
    ((status, tries),) = [row[1:] for row in rows if row[0] == msg_id]
    # Whether a statement takes as long as the limit, a millisecond, differs from try to try.
    lucky = {(2, 1), (2, 2)} if what == "limit" else set()
    assert (status, tries) in {(2, 0), (-1, 3)} | lucky
    assert count <= 2 * 3  # twice in a try at most: with others, and alone
    assert all(count <= 4 for count in starts.values())


def test_a_setting_for_the_transaction_may_hide_the_table_and_costs_a_try(
    app: App, database: Database, elsewhere: str
) -> None:
    if database.name != "postgresql":
        pytest.skip("SET LOCAL is PostgreSQL's")

    @app.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        ctx.connection.exec_driver_sql(f"SET LOCAL search_path TO {elsewhere}")

    send(app, "o")
    app.drain(linger=2, time_limit=60)
    assert "changed its session ('SET LOCAL search_path TO elsewhere')" in str(
        Table(app).one("last_error")
    )


def test_what_one_handler_sets_for_its_session_the_next_does_not_see(
    app: App, database: Database
) -> None:
    change, read, value = LASTS[database.name]
    seen: list[Any] = []

    @app.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        if msg.payload == "sets":
            ctx.connection.exec_driver_sql(change)
        else:
            seen.append(ctx.connection.exec_driver_sql(read).scalar())

    for n in range(6):
        send(app, "o", payload="sets" if n % 2 == 0 else "reads")
    assert app.drain(threads=1, linger=0).done == 6
    assert len(seen) == 3
    assert value not in seen


def test_an_item_s_session_is_its_own(app: App, database: Database) -> None:
    change, read, value = LASTS[database.name]
    seen: list[Any] = []

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        def item(name: str, conn: sa.Connection) -> None:
            if name.startswith("s"):
                conn.exec_driver_sql(change)
            else:
                seen.append(conn.exec_driver_sql(read).scalar())

        ctx.fan_out(
            item, ["s1", "r1", "s2", "r2"], threads=1, transactional_items=True
        ).raise_for_failed()

    send(app, "o")
    assert app.drain(threads=1, linger=0).done == 1
    assert len(seen) == 2
    assert value not in seen


# ------------------------------------------------------------ what is given back


READ_LIMIT, ISOLATION = (
    ("max_execution_time", "transaction_isolation")
    if variants.is_mysql()
    else ("max_statement_time", "tx_isolation")
)
SESSION = {
    "postgresql": (
        ["SET statement_timeout = '77s'", "SET enable_bitmapscan = off", "SET lock_timeout = 777"],
        "SELECT current_setting('statement_timeout'), current_setting('enable_bitmapscan'), "
        "current_setting('enable_nestloop'), current_setting('enable_seqscan'), "
        "current_setting('jit'), current_setting('lock_timeout'), "
        "current_setting('transaction_isolation'), current_setting('datestyle')",
    ),
    "mariadb": (
        [f"SET SESSION {READ_LIMIT} = 77", "SET SESSION lock_wait_timeout = 777"],
        f"SELECT @@{READ_LIMIT}, @@lock_wait_timeout, @@{ISOLATION}, @@autocommit, @@sql_mode"
        ", @@completion_type",
    ),
    "sqlite": (
        ["PRAGMA busy_timeout = 777", "PRAGMA synchronous = 1", "PRAGMA cache_size = 77"],
        "SELECT (SELECT timeout FROM pragma_busy_timeout), (SELECT synchronous FROM "
        "pragma_synchronous), (SELECT cache_size FROM pragma_cache_size)",
    ),
}


def test_the_sessions_of_a_user_s_engine_stay_as_they_are(
    app: App, database: Database, make_app: Any
) -> None:
    set_up, read = SESSION[database.name]
    options = {"poolclass": sa.QueuePool, "pool_size": 1, "max_overflow": 0}
    engine = plain_engine(database.url, **options)
    with engine.connect() as conn:
        for statement in set_up:
            conn.exec_driver_sql(statement)
        conn.commit()
        before = conn.exec_driver_sql(read).one()
        raw: Any = conn.connection.driver_connection
        kept = {name: getattr(raw, name, None) for name in ("autocommit", "text_factory")}
    hint = sa.table("msgworker_message", sa.column("msg_id"))
    hinted = sa.select(hint.c.msg_id).with_hint(hint, "INDEXED BY nothing", "sqlite")
    text = str(hinted.compile(engine))
    theirs = make_app(engine)
    theirs.add_handler("t", lambda msg: None)
    send(theirs, "a", "b")
    assert theirs.drain(threads=2, linger=0).done == 2
    theirs.ops.within(30).overview()
    theirs.ops.within(30).find(topic="t")
    theirs.ops.doctor()
    assert str(hinted.compile(engine)) == text
    with engine.connect() as conn:
        assert conn.exec_driver_sql(read).one() == before
        raw = conn.connection.driver_connection
        assert {name: getattr(raw, name, None) for name in kept} == kept


@pytest.mark.quick("postgresql")
def test_a_limit_that_a_listener_sets_in_each_session_is_put_back(
    app: App, database: Database, make_app: Any
) -> None:
    """After a look with a time of its own, in the same session."""
    if database.name == "sqlite":
        pytest.skip("it has none")
    engine, seen = plain_engine(database.url), set[Any]()
    name = "statement_timeout" if database.name == "postgresql" else READ_LIMIT
    value = "77s" if database.name == "postgresql" else 77

    @sa.event.listens_for(engine, "connect")
    def limit(raw: Any, _: Any) -> None:
        with raw.cursor() as cursor:
            cursor.execute(f"SET {name} = {value!r}")
        raw.commit()

    @sa.event.listens_for(engine, "reset")
    def look(raw: Any, *_: Any) -> None:
        with raw.cursor() as cursor:
            cursor.execute(f"SHOW {name}" if name[0] == "s" else f"SELECT @@{name}")
            seen.add(cursor.fetchone()[0])
        raw.rollback()

    theirs = make_app(engine)
    theirs.ops.within(30).overview()
    theirs.ops.within(30).find(topic="t")
    theirs.engine.dispose()
    assert seen in ({"77s"}, {77})


def test_a_pool_of_one_connection_will_do(app: App, database: Database, make_app: Any) -> None:
    """It is the user's: an instance has connections of its own, and handlers one in turn."""
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1.0, "poolclass": sa.QueuePool}
    theirs = make_app(plain_engine(database.url, **options), notify=True)

    @theirs.handler("in", transactional=True)
    def inside(msg: Message, ctx: Context) -> None:
        ctx.connection.execute(sa.select(1))

    theirs.add_handler("t", lambda msg: None)
    with theirs.engine.connect():  # all that it has
        send(app, *(f"o{n}" for n in range(20)), topic="in")
        send(app, *(f"o{n}" for n in range(20)))
        report = theirs.drain(threads=3, linger=0, time_limit=60)
    assert report.done == 40
    assert set(Table(app).rows("status", "error_try_times")) == {(2, 0)}


def test_a_pool_with_one_connection_for_all_threads_is_refused(subtests: Any) -> None:
    for pool in (sa.StaticPool, sa.AssertionPool, sa.pool.SingletonThreadPool):
        with (
            subtests.test(pool=pool),
            pytest.raises(ConfigError, match="one connection for all threads"),
        ):
            App(sa.create_engine("sqlite:///nowhere.db", poolclass=pool))


def test_the_connections_of_an_app_are_closed_with_its_engine(
    database: Database, make_app: Any
) -> None:
    if database.stand_in:
        pytest.skip("its engine is the driver's business")
    counts = Counter[str]()
    engine = plain_engine(database.url, poolclass=sa.QueuePool)
    for way in ("connect", "close"):
        sa.event.listen(engine, way, lambda *_, way=way: counts.update([way]))
    theirs = created(make_app(engine))
    theirs.add_handler("t", lambda msg: None)
    theirs.drain(linger=0)
    engine.dispose()
    assert counts["connect"] == counts["close"] > 0
