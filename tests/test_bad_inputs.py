"""Bad inputs: a clear error before anything was done, or an outcome that is kept.

Never a hang, a lost message, a dead thread, or a password in a text.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
import io
import json
import locale
import logging
import os
import pickle
import re
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import scoped_session, sessionmaker
from tenacity.wait import wait_fixed, wait_none

from msgworker import (
    App,
    ConfigError,
    Context,
    DatabaseUnavailable,
    HandlerError,
    Message,
    MessageTable,
    PayloadError,
    Reject,
    RetryLater,
    SchemaError,
)
from msgworker.message import Word
from msgworker.payload import decode, encode
from msgworker.store import ddl_script
from msgworker.table import BESIDE
from tests.support.rows import Table, send
from tests.support.tables import IDENTITY, SEED
from tests.support.waiting import in_thread, until

CANARY = "Canary-4711"
MakeApp = Callable[..., App]


@pytest.fixture
def make_app(database: Any) -> Iterator[MakeApp]:
    made: list[App] = []

    def make(url_or_engine: Any = None, **options: Any) -> App:
        options = {"backoff_seconds": 1, **options}
        made.append(App(url_or_engine or database.url, **options))
        return made[-1]

    yield make
    for app in made:
        app.engine.dispose()


@pytest.fixture
def app(ready: None, database: Any, make_app: MakeApp) -> App:
    app = make_app()
    if not database.ready:
        app.create_schema()
    return app


@pytest.fixture
def small(sqlite: Any) -> Iterator[App]:
    """An App on SQLite, for what is the same everywhere."""
    app = App(sqlite.url)
    app.create_schema()
    yield app
    app.engine.dispose()


# ---------------------------------------------------------------- 1-6, 9, 10, 14: the URL

IN_MEMORY = [
    "sqlite://",
    "sqlite:///",
    "sqlite:///:memory:",
    "sqlite:///file::memory:?uri=true",
    "sqlite:///file:x?mode=memory&cache=shared&uri=true",
]
BAD_URLS: list[tuple[Any, str]] = [
    ("", "url is required"),
    ("  ", "url is required"),
    (None, "url is required"),
    (7, "url is required"),
    (b"sqlite:///x.db", "url is required"),
    (f"just a text with {CANARY}", "cannot be read"),
    (f"user:{CANARY}@host/db", "cannot be read"),
    (f"mssql://u:{CANARY}@h/db", "postgresql, sqlite, mariadb, mysql, oracle"),
    (f"nosuch://u:{CANARY}@h/db", "postgresql, sqlite, mariadb, mysql, oracle"),
    (f"postgresql+nosuch://u:{CANARY}@h/db", "no such driver"),
    (f"postgresql://u:{CANARY}@h:abc/db", "cannot be read"),
    (f"postgresql://u:{CANARY}@h:0/db", "port"),
    (f"postgresql://u:{CANARY}@h:70000/db", "port"),
    (f"postgresql://u:x@{CANARY}@h/db", "URL.create"),
    (f"postgresql://u:x/@{CANARY}@h/db", "URL.create"),
    *((url, "in-memory") for url in IN_MEMORY),
    (f"postgresql+asyncpg://u:{CANARY}@h/db", "async"),
    (f"postgresql+psycopg_async://u:{CANARY}@h/db", "async"),
    (f"sqlite+aiosqlite:///{CANARY}.db", "async"),
    (f"mysql+aiomysql://u:{CANARY}@h/db", "async"),
    (f"mysql+asyncmy://u:{CANARY}@h/db", "async"),
    (f"oracle+oracledb_async://u:{CANARY}@h/db", "async"),
]


@pytest.mark.parametrize(("url", "text"), BAD_URLS, ids=range(len(BAD_URLS)))
def test_bad_urls_are_config_errors_that_do_not_repeat_the_password(url, text):
    with pytest.raises(ConfigError) as caught:
        App(url)
    assert text in str(caught.value)
    assert CANARY not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("mark", list("@/:#%?& "))
def test_an_unescaped_password_works_or_is_explained(mark):
    url = f"postgresql://user:Ca{mark}{CANARY}@host/db"
    refused = ""
    try:
        shown = repr(App(url))
    except ConfigError as error:
        refused = shown = str(error)
    assert CANARY not in shown
    assert not refused or "URL.create" in refused


@pytest.mark.parametrize("driver", ["mysql+mysqldb", "oracle+cx_oracle", "postgresql+pg8000"])
def test_a_driver_that_is_not_installed_is_named_with_what_to_install(driver):
    module = {"mysql+mysqldb": "MySQLdb", "oracle+cx_oracle": "cx_Oracle"}.get(driver, "pg8000")
    if importlib.util.find_spec(module):
        pytest.skip(f"{module} is installed")
    with pytest.raises(ConfigError, match=re.escape(driver)) as caught:
        App(f"{driver}://u:{CANARY}@h/db")
    assert 'pip install "msgworker[' in str(caught.value)
    assert CANARY not in str(caught.value)


def test_the_extra_is_offered_only_with_the_url_it_is_good_for():
    pytest.importorskip("pymysql")
    with pytest.raises(ConfigError, match=r"mysql\+pymysql://"):
        App("mysql+mysqldb://u:p@h/db")


@pytest.mark.parametrize("key", ["sslpassword", "password", "passwd", "sslkey", "token", "secret"])
def test_secrets_in_the_query_are_masked(key):
    url = f"postgresql://u:{CANARY}@127.0.0.1:1/db?{key}={CANARY}Q"
    app = App(url)
    assert CANARY not in repr(app)
    assert "127.0.0.1" in repr(app)
    with pytest.raises(DatabaseUnavailable) as caught:
        _ = app.tables
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("pool", [sa.StaticPool, sa.pool.SingletonThreadPool])
def test_an_engine_that_hands_one_connection_to_everybody_is_refused(tmp_path, pool):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'x.db'}", poolclass=pool)
    with pytest.raises(ConfigError, match="pool"):
        App(engine)


def test_an_engine_in_memory_is_refused():
    with pytest.raises(ConfigError, match="in-memory"):
        App(sa.create_engine("sqlite://"))


def test_an_engine_whose_driver_cannot_count_rows_is_refused(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    engine.dialect.supports_sane_rowcount = False
    with pytest.raises(ConfigError, match="rows"):
        App(engine)


# ---------------------------------------------------------------- 7, 8, 11, 12: no way in


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{CANARY}@127.0.0.1:1/db",
        f"postgresql://u:{CANARY}@no-such-host.invalid/db",
        f"mysql://u:{CANARY}@127.0.0.1:1/db",
        f"mariadb://u:{CANARY}@no-such-host.invalid/db",
        f"oracle://u:{CANARY}@127.0.0.1:1/?service_name=x",
    ],
)
def test_a_database_that_does_not_answer(url):
    app = App(url)
    app.add_handler("t", lambda msg: None)
    for act in (app.create_schema, lambda: app.tables, app.drain, app.worker().run):
        with pytest.raises(DatabaseUnavailable) as caught:
            act()
        assert CANARY not in str(caught.value)
        assert "***" in str(caught.value)
        assert caught.value.exit_code == 3


def test_a_wrong_password(database):
    if database.name == "sqlite":
        pytest.skip("SQLite has no passwords")
    url = sa.make_url(database.url).set(username="nobody_here", password=CANARY)
    app = App(url)
    with pytest.raises(DatabaseUnavailable) as caught:
        _ = app.tables
    assert CANARY not in str(caught.value)
    assert "nobody_here" in str(caught.value)


def test_a_database_that_does_not_exist(database):
    if database.name == "sqlite":
        pytest.skip("SQLite makes the file")
    app = App(sa.make_url(database.url).set(database="no_such_database"))
    for act in (app.create_schema, lambda: app.tables):
        with pytest.raises(DatabaseUnavailable):
            act()


def test_a_sqlite_path_that_cannot_be(tmp_path):
    for path in (tmp_path / "missing" / "x.db", tmp_path):
        app = App(f"sqlite:///{path}")
        for act in (app.create_schema, lambda app=app: app.tables):
            with pytest.raises(DatabaseUnavailable, match="unable to open"):
                act()


def test_a_sqlite_file_that_is_not_a_database(tmp_path):
    path = tmp_path / "x.db"
    path.write_text("no database at all " * 100, encoding="utf-8")
    app = App(f"sqlite:///{path}")
    for act in (app.create_schema, lambda: app.tables):
        with pytest.raises(DatabaseUnavailable, match="not a database"):
            act()


def test_a_sqlite_file_on_a_network_mount_is_warned_of(tmp_path):
    from msgworker.dialects import network_mount

    mounts = (
        "/dev/vda / ext4 rw 0 0\nsrv:/x /mnt/share nfs4 rw 0 0\nsrv:/y /mnt/a\\040b cifs rw 0 0\n"
    )
    assert network_mount("/mnt/share/q.db", mounts) == "nfs4"
    assert network_mount("/mnt/a b/q.db", mounts) == "cifs"
    assert network_mount("/mnt/sharexx/q.db", mounts) is None
    assert network_mount(str(tmp_path / "q.db"), mounts) is None
    assert network_mount("/mnt/share/q.db", "") is None


# ---------------------------------------------------------------- 15, 70: engines with habits


def test_an_autocommit_engine_has_transactions_all_the_same(database, make_app):
    engine = sa.create_engine(database.url, isolation_level="AUTOCOMMIT")
    app = make_app(engine)
    app.create_schema()
    table = Table(app)

    @app.handler("t", transactional=True, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        app.send(ctx.connection, "made", object_id="x")
        raise ValueError

    send(app, "o")
    assert app.drain(linger=0, topics=["t"]).retried == 1
    assert table.rows("topic", "status") == [("t", -1)]


@pytest.mark.parametrize("level", ["SERIALIZABLE", "READ UNCOMMITTED"])
def test_the_engine_s_isolation_level_is_not_ours(database, make_app, level):
    if database.name == "sqlite":
        pytest.skip("SQLite is always serializable")
    app = make_app(sa.create_engine(database.url, isolation_level=level))
    app.create_schema()
    app.add_handler("t", lambda msg: None)
    send(app, *[f"o{i % 5}" for i in range(50)])
    assert app.drain(threads=4, linger=0).done == 50
    with app.engine.connect() as conn:
        assert conn.get_isolation_level() == "READ COMMITTED"


def test_the_server_s_default_isolation_level_is_not_ours(postgresql):
    name = sa.make_url(postgresql.url).database
    with postgresql.engine().connect() as conn:
        conn.exec_driver_sql(
            f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
        )
        conn.commit()
    app = App(postgresql.url)
    with app.engine.connect() as conn:
        assert conn.scalar(sa.text("SHOW transaction_isolation")) == "read committed"
    app.engine.dispose()


# ---------------------------------------------------------------- 16-20: settings

NOT_A_COUNT = [0, -1, 1.5, "4", True, None, 10**9, float("nan")]


@pytest.mark.parametrize("threads", NOT_A_COUNT)
def test_threads_that_cannot_be(small, threads):
    small.add_handler("t", lambda msg: None)
    for act in (small.worker, small.drain):
        with pytest.raises(ConfigError, match="threads"):
            act(threads=threads)
    assert not small.drain(linger=0).skipped  # a refused drain does not count as running


@pytest.mark.parametrize("tries", [0, -1, 1.5, "3", True, None, float("nan"), 10**6])
def test_max_tries_that_cannot_be(tries):
    with pytest.raises(ConfigError, match="max_tries"):
        MessageTable(max_tries=tries)


NOT_SECONDS = [0, -1, float("nan"), float("inf"), "30", None, True]
BAD_SETTINGS: list[tuple[str, Any]] = [
    *(("lease_seconds", value) for value in (*NOT_SECONDS, 0.01, 1e9)),
    *(("poll_seconds", value) for value in NOT_SECONDS),
    *(("run_limit", value) for value in (-1, 1.5, "4", True)),
    *(("lanes_limit", value) for value in NOT_A_COUNT),
    ("notify", "yes"),
]


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS)
def test_settings_out_of_range(name, value):
    with pytest.raises(ConfigError, match=name):
        App("sqlite:///x.db", **{name: value})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"linger": -1}, "linger"),
        ({"linger": float("nan")}, "linger"),
        ({"time_limit": -1}, "time_limit"),
        ({"time_limit": "1h"}, "time_limit"),
        ({"overlap": "maybe"}, "overlap"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"topics": ["nobody's"]}, "nobody's"),
        ({"grace": -1}, "grace"),
    ],
)
def test_drain_options_that_cannot_be(small, options, text):
    small.add_handler("t", lambda msg: None)
    with pytest.raises(ConfigError, match=text):
        small.drain(**options)
    assert not small.drain(linger=0).skipped


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: App("sqlite:///x.db", leese_seconds=3), "lease_seconds"),
        (lambda: App("sqlite:///x.db", wholly_unknown=3), "known are: "),
        (lambda: App("sqlite:///x.db", table="name"), "MessageTable"),
        (lambda: MessageTable(max_tires=3), "max_tries"),
        (lambda: MessageTable(mesg_id="x"), "msg_id"),
        (lambda: MessageTable(on_dead="stop"), "on_dead"),
        (lambda: MessageTable(max_payload=0), "max_payload"),
        (lambda: MessageTable(later_limit=-1), "later_limit"),
        (lambda: MessageTable(visibility_delay_seconds=float("nan")), "visibility_delay_seconds"),
        (lambda: MessageTable(status="msg_id"), "twice"),
    ],
)
def test_unknown_and_wrong_settings_are_named(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


# ---------------------------------------------------------------- 24-28, 35, 36: tables


def test_a_table_that_does_not_exist_and_its_near_names(database, make_app):
    app = make_app(table=MessageTable("tb_cus_mgs"))
    with database.engine().begin() as conn:
        conn.exec_driver_sql("CREATE TABLE tb_cus_msg (a INTEGER)")
    with pytest.raises(SchemaError, match="tb_cus_msg") as caught:
        _ = app.tables
    assert "create_schema" in str(caught.value)
    assert caught.value.exit_code == 4


def test_a_schema_that_does_not_exist(make_app):
    app = make_app(table=MessageTable("nowhere.tb_cus_msg"))
    for act in (lambda: app.tables, app.create_schema):
        with pytest.raises(SchemaError, match="nowhere"):
            act()


def test_a_view(database, make_app, app):
    with database.engine().begin() as conn:
        conn.exec_driver_sql("CREATE VIEW v AS SELECT * FROM msgworker_message")
    view = make_app(table=MessageTable("v"))
    for act in (lambda: view.tables, view.create_schema):
        with pytest.raises(SchemaError, match="v"):
            act()


def test_a_temporary_table(database, make_app):
    engine = database.engine()
    with engine.connect() as conn:
        conn.exec_driver_sql("CREATE TEMPORARY TABLE tmp_msg (msg_id INTEGER PRIMARY KEY)")
        with pytest.raises(SchemaError, match="does not exist"):
            _ = make_app(table=MessageTable("tmp_msg")).tables


def test_a_partitioned_table(postgresql):
    with postgresql.engine().begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE parts (msg_id bigint PRIMARY KEY, object_id text, status int DEFAULT 0, "
            "error_try_times int DEFAULT 0) PARTITION BY HASH (msg_id)"
        )
    app = App(postgresql.url, table=MessageTable("parts"))
    with pytest.raises(SchemaError, match="partition"):
        app.create_schema()
    app.engine.dispose()


def test_all_missing_columns_are_named_at_once(database, make_app):
    with database.engine().begin() as conn:
        conn.exec_driver_sql("CREATE TABLE tb_cus_msg (msgID INTEGER PRIMARY KEY, x INTEGER)")
    app = make_app(table=SEED)
    for act in (lambda: app.tables, app.create_schema):
        with pytest.raises(SchemaError, match=r"objectID.*status.*errorTryTimes"):
            act()


def test_an_optional_column_that_was_asked_for_by_name_must_be_there(database, make_app):
    _foreign(database)
    app = make_app(table=SEED.replace(payload="body"))
    with pytest.raises(SchemaError, match="body"):
        _ = app.tables


def _foreign(database: Any, **changed: str) -> None:
    """The seed's table, with other types for some columns."""
    columns = {
        "msgID": IDENTITY[database.name],
        "objectID": "VARCHAR(50)",
        "status": "INTEGER DEFAULT 0",
        "errorTryTimes": "INTEGER DEFAULT 0",
    } | changed
    text = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    with database.engine().begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE tb_cus_msg ({text})")


def _insert(database: Any, columns: str, *values: str) -> None:
    with database.engine().begin() as conn:
        for value in values:
            text = f"INSERT INTO tb_cus_msg ({columns}) VALUES ({value})"
            conn.exec_driver_sql(text.replace("%", "%%"))


def test_a_column_that_nobody_fills_stops_producers_only(database, make_app):
    _foreign(database, tenant="INTEGER NOT NULL")
    app = make_app(table=SEED)
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    _insert(database, "objectID, tenant", "'a', 1")
    assert app.drain(linger=0).done == 1
    with app.engine.begin() as conn:
        with pytest.raises(SchemaError, match="tenant"):
            app.send(conn, "t", object_id="a")
        with pytest.raises(SchemaError, match="tenant"):
            app.send_many(conn, "t", [(None, "a")])


def test_send_fills_status_and_tries_where_the_table_has_no_defaults(database, make_app):
    _foreign(database, status="INTEGER", errorTryTimes="INTEGER")
    app = make_app(table=SEED)
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    send(app, "a", "a")
    assert app.drain(linger=0).done == 2


BAD_TYPES = {
    "text status": ("status", "VARCHAR(5) DEFAULT '0'", "status"),
    "boolean status": ("status", "BOOLEAN", "status"),
    "text tries": ("errorTryTimes", "VARCHAR(5)", "errorTryTimes"),
    "text id": ("msgID", "VARCHAR(36) PRIMARY KEY", "msgID"),
    "id not unique": ("msgID", "INTEGER", "unique|primary key"),
}


@pytest.mark.parametrize("case", BAD_TYPES)
def test_columns_of_a_wrong_kind_are_named(database, make_app, case):
    column, kind, text = BAD_TYPES[case]
    _foreign(database, **{column: kind})
    app = make_app(table=SEED)
    with pytest.raises(SchemaError, match=f"(?i){text}"):
        _ = app.tables


def test_an_unsigned_status_is_refused(mariadb):
    _foreign(mariadb, status="TINYINT UNSIGNED DEFAULT 0")
    app = App(mariadb.url, table=SEED)
    with pytest.raises(SchemaError, match="-1"):
        _ = app.tables
    app.engine.dispose()


def test_a_table_without_transactions_is_refused(mariadb):
    with mariadb.engine().begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE tb_cus_msg (msgID BIGINT PRIMARY KEY, objectID VARCHAR(50), "
            "status INT DEFAULT 0, errorTryTimes INT DEFAULT 0) ENGINE=MyISAM"
        )
    app = App(mariadb.url, table=SEED)
    for act in (app.create_schema, lambda: app.tables):
        with pytest.raises(SchemaError, match="MyISAM"):
            act()
    app.engine.dispose()


@pytest.mark.parametrize("kind", ["SMALLINT", "INTEGER", "BIGINT", "NUMERIC(19)"])
def test_ids_of_any_sign_and_whole_type_work(database, make_app, kind):
    _foreign(database, msgID=f"{kind} PRIMARY KEY")
    app = make_app(table=SEED)
    app.create_schema()
    ids: list[int] = []
    app.add_handler(None, lambda msg: ids.append(int(msg.msg_id)))
    numbers = [-5, 0, 7, 8]
    if kind in ("BIGINT", "NUMERIC(19)"):
        numbers = [-(2**63), *numbers, 2**63 - 1]
    _insert(database, "msgID, objectID", *(f"{n}, 'a'" for n in numbers))
    assert app.drain(linger=0, threads=1).done == len(numbers)
    assert ids == numbers


# ---------------------------------------------------------------- 29-34: odd rows


def test_tries_that_are_null_count_as_none(database, make_app):
    _foreign(database)
    app = make_app(table=SEED)
    app.create_schema()

    @app.handler(None, wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        assert msg.error_try_times == ctx.attempt - 1
        raise ValueError

    _insert(database, "objectID, errorTryTimes", "'a', NULL", "NULL, NULL")
    assert app.drain(linger=1).failed == 2
    assert Table(app).rows("status", "error_try_times") == [(-1, 3), (-1, 3)]


def test_unknown_statuses_are_never_claimed_and_are_counted(database, make_app):
    _foreign(database)
    app = make_app(table=SEED)
    app.create_schema()
    ids: list[int] = []
    app.add_handler(None, lambda msg: ids.append(msg.msg_id))
    odd = ["NULL", "3", "99", "-2"]
    _insert(database, "objectID, status", *(f"'o{i}', {s}" for i, s in enumerate(odd)))
    _insert(database, "objectID, status", *(f"NULL, {s}" for s in odd))
    _insert(database, "objectID", *(f"'o{i}'" for i in range(4)))
    report = app.drain(linger=0)
    assert (report.done, report.left) == (4, 0)
    assert sorted(ids) == [9, 10, 11, 12]
    assert Table(app).statuses[:8] == [None, 3, 99, -2] * 2
    assert sum(c.count for c in app.ops.counts() if c.status is Word.UNKNOWN) == 8


OBJECT_IDS = [
    "",
    " ",
    "a",
    "A",
    "a ",
    "\u00e4",
    "a\u0308",
    "line\nbreak\r\n\ttab",
    "\U0001f600 emoji",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u202eright to left",
    "x' OR '1'='1; --",
    '"`]\\%_:b{}',
    "\x1b]0;title\x07",
    "\u2028",
    "\U0010ffff",
    "~msgworker.none~x",
    "x" * 190,
    "\u4e2d" * 190,
]


def test_object_ids_of_all_sorts_are_objects_of_their_own(app):
    if app.engine.dialect.name == "oracle":
        pytest.skip("an empty text is NULL there: no order is wanted")
    seen: dict[str, list[int]] = {}
    app.add_handler("t", lambda msg: seen.setdefault(msg.object_id, []).append(msg.msg_id))
    ids = send(app, *OBJECT_IDS, *OBJECT_IDS)
    assert app.drain(threads=3, linger=0).done == len(ids)
    half = len(OBJECT_IDS)
    assert seen == {name: [ids[i], ids[half + i]] for i, name in enumerate(OBJECT_IDS)}


def test_a_failed_head_holds_back_only_the_very_same_object(app):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if msg.object_id == "a":
            raise ValueError

    send(app, "a", "A", "a ", "\u00e4", "a")
    report = app.drain(linger=0)
    assert (report.done, report.retried, report.left) == (3, 1, 2)


BAD_OBJECTS: list[Any] = [
    "x" * 191,
    "x" * 10_000,
    "nul\x00",
    "half \ud800",
    True,
    1.5,
    b"bytes",
    ["list"],
    {"a": 1},
    ("a",),
    object(),
]


@pytest.mark.parametrize("object_id", BAD_OBJECTS, ids=[str(i) for i in range(len(BAD_OBJECTS))])
def test_object_ids_that_cannot_be(small, object_id):
    with small.engine.begin() as conn:
        with pytest.raises(ConfigError, match="object_id"):
            small.send(conn, "t", object_id=object_id)
        with pytest.raises(ConfigError, match="object_id"):
            small.send_many(conn, "t", [(None, object_id)])
    assert Table(small).statuses == []


@pytest.mark.parametrize(
    "collation",
    [
        "utf8mb4 COLLATE utf8mb4_general_ci",
        "utf8mb4 COLLATE utf8mb4_bin",
        "utf8mb4 COLLATE utf8mb4_nopad_bin",
        "latin1 COLLATE latin1_swedish_ci",
        "utf8mb3 COLLATE utf8mb3_general_ci",
    ],
)
def test_foreign_collations_keep_exclusion_and_order(mariadb, collation):
    _foreign(mariadb, objectID=f"VARCHAR(50) CHARACTER SET {collation}")
    app = App(mariadb.url, table=SEED)
    app.create_schema()
    ids: list[int] = []

    @app.handler(None, wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        ids.append(msg.msg_id)
        if ctx.attempt == 1:
            raise ValueError

    _insert(mariadb, "objectID", "'a'", "'a'", "'b'", "NULL", "'a'")
    assert app.drain(linger=1, threads=2).done == 5
    assert [i for i in ids if i in (1, 2, 5)] == [1, 1, 2, 2, 5, 5]
    app.engine.dispose()


def test_a_foreign_object_column_that_is_longer_than_ours(database, make_app):
    _foreign(database, objectID="VARCHAR(500)")
    app = make_app(table=SEED)
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    _insert(database, "objectID", f"'{'x' * 400}'", f"'{'x' * 400}'", f"'{'x' * 399}y'")
    assert app.drain(linger=0).done == 3


# ---------------------------------------------------------------- 38, 39: names

NAMES = [
    "msg; drop table x--",
    'we"ird',
    "br]ack[et",
    "back`tick",
    "quo'te",
    "per%cent",
    "per%(s)s",
    "co:lon",
    "sp ace",
    "\u00dcn\u00efcode",
    "select",
    "brace{0}",
    "que?stion",
    "back\\slash",
    "(paren)",
]


@pytest.mark.parametrize("name", NAMES)
def test_odd_table_names_are_one_identifier(make_app, name):
    app = make_app(table=MessageTable(name))
    assert name in app.create_schema()
    assert app.create_schema() == []
    app.add_handler("t", lambda msg: None)
    send(app, "a", "a", None)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(1, "a")] * 3)
    assert app.drain(linger=0).done == 6
    assert [c.count for c in app.ops.counts()] == [6]


@pytest.mark.parametrize(
    "name", [*NAMES, "ids", "me", "error", "mark", "rows", "at", "after", "seen"]
)
def test_odd_column_names_are_one_identifier(make_app, name):
    roles = ("msg_id", "object_id", "status", "error_try_times", "payload", "claimed_by")
    spec = MessageTable("odd_columns", **{role: f"{name} {i}" for i, role in enumerate(roles)})
    if name not in NAMES:
        spec = MessageTable("odd_columns", **{"status": name, "available_at": "delay"})
    app = make_app(table=spec)
    app.create_schema()
    if "`" in name and app.engine.dialect.name in ("mysql", "mariadb"):
        with pytest.raises(SchemaError, match="has no column"):  # SQLAlchemy misreads such names
            _ = app.tables
        return
    assert app.create_schema() == []

    @app.handler("t", wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")

    send(app, "a", "a", None, payload={"x": 1})
    report = app.drain(linger=1)
    assert (report.done, report.retried) == (3, 3)
    assert app.ops.rerun([1], force=True) == 1


BAD_NAMES: list[Any] = [
    "",
    "  ",
    None,
    7,
    "a.b.c",
    ".",
    "a.",
    ".b",
    "x" * 200,
    "nul\x00",
    "new\nline",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=[str(i) for i in range(len(BAD_NAMES))])
def test_names_that_cannot_be(name):
    with pytest.raises(ConfigError):
        MessageTable(name)
    if name not in ("a.b.c", ".", "a.", ".b"):
        with pytest.raises(ConfigError):
            MessageTable(msg_id=name)


def test_a_name_that_is_too_long_for_the_database(database, make_app):
    app = make_app(table=MessageTable("x" * 100))
    if database.name == "sqlite":
        app.create_schema()
        return
    for act in (app.create_schema, lambda: app.tables):
        with pytest.raises(SchemaError, match=r"x{60}"):
            act()


# ---------------------------------------------------------------- 41-48: payloads

BAD_PAYLOADS: dict[str, tuple[str, str]] = {
    "text": ("not JSON at all", "not JSON"),
    "cut": ('{"a": 1', "not JSON"),
    "two": ("1 2", "not JSON"),
    "blank": ("   ", "not JSON"),
    "single quotes": ("{'a': 1}", "not JSON"),
    "NaN": ("NaN", "NaN"),
    "Infinity": ('{"a": -Infinity}', "Infinity"),
    "1e999": ("[1e999]", "out of range"),
    "twins": ('{"a": 1, "a": 2}', "twice"),
    "surrogate": ('"\\ud800"', "surrogate"),
    "deep": ("[" * 100_000 + "]" * 100_000, "deep"),
    "digits": ("1" * 1_000_000, "digits"),
    "minus digits": ("-" + "1" * 5_000, "digits"),
    "pickle": (pickle.dumps({"a": 1}, 0).decode(), "not JSON"),
}


@pytest.mark.parametrize("case", BAD_PAYLOADS)
def test_payloads_that_are_not_strict_json_are_refused(case):
    raw, text = BAD_PAYLOADS[case]
    with pytest.raises(PayloadError, match=text) as caught:
        decode(raw)
    assert len(str(caught.value)) < 600


def test_payloads_that_are_not_strict_json_are_dead_at_once(app):
    called: list[Any] = []
    app.add_handler("t", lambda msg: called.append(msg))
    t = app.tables
    rows = [{"topic": "t", "object_id": "o", "payload": raw} for raw, _ in BAD_PAYLOADS.values()]
    with app.engine.begin() as conn:
        conn.execute(sa.insert(t.message), rows)
    report = app.drain(linger=0)
    assert (report.failed, report.retried, report.left) == (len(rows), 0, 0)
    assert called == []
    found = Table(app).rows("status", "error_try_times", "last_error")
    assert {row[:2] for row in found} == {(-1, 3)}
    for row, (_, text) in zip(found, BAD_PAYLOADS.values(), strict=True):
        assert row[2].startswith("PayloadError")
        assert text in row[2]


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (None, None),
        ("", None),
        ("null", None),
        ("[]", []),
        ('"x"', "x"),
        ("1", 1),
        ("-0.5e3", -500.0),
        ("true", True),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        (b'{"a": 1}', {"a": 1}),
        (memoryview(b"[1]"), [1]),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_payloads_that_are_good(raw, value):
    assert decode(raw) == value


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"\x80abc", "\u00e4".encode("latin-1")])
def test_bytes_that_are_not_utf_8_are_refused(raw):
    with pytest.raises(PayloadError, match="UTF-8"):
        decode(raw)


class _Bomb:
    """Unpickled, it would leave a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_are_never_unpickled(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PayloadError):
        decode(pickle.dumps(_Bomb(), protocol))
    assert not (tmp_path / "unpickled").exists()


def test_a_blob_column_is_decoded_or_refused(database, make_app):
    kind = {"postgresql": "BYTEA"}.get(database.name, "BLOB")
    _foreign(database, body=kind)
    app = make_app(table=SEED.replace(payload="body"))
    app.create_schema()
    got: list[Any] = []
    app.add_handler(None, lambda msg: got.append(msg.payload))
    t = app.tables
    with app.engine.begin() as conn:
        for raw in (b'{"a": 1}', b"\xff\xfe", pickle.dumps(1)):
            values = {t.names["object_id"]: "o", "body": raw, t.names["status"]: 0}
            conn.execute(sa.insert(t.message).values(values))
    report = app.drain(linger=0)
    assert (report.done, report.failed) == (1, 2)
    assert got == [{"a": 1}]


def test_a_json_column(database, make_app):
    kind = {"postgresql": "JSONB"}.get(database.name, "JSON")
    _foreign(database, body=kind)
    app = make_app(table=SEED.replace(payload="body"))
    app.create_schema()
    got: list[Any] = []
    app.add_handler(None, lambda msg: got.append(msg.payload))
    _insert(database, "objectID, body", """'o', '{"a": [1, 2]}'""", "'o', NULL")
    assert app.drain(linger=0).done == 2
    assert got == [{"a": [1, 2]}, None]


def test_a_payload_that_is_too_long_is_never_read(make_app):
    app = make_app(table=MessageTable(max_payload=1000))
    app.create_schema()
    app.add_handler("t", lambda msg: None)
    send(make_app(), "a", payload="x" * 5000)
    assert app.drain(linger=0).failed == 1
    assert "5002" in Table(app).one("last_error")


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "payload",
    [
        float("nan"),
        float("inf"),
        {"a": [float("-inf")]},
        {object()},
        object(),
        b"bytes",
        datetime.now(timezone(timedelta(seconds=1))),
        {(1, 2): 3},
        {1: 2},
        "half \ud800",
        10**5000,
        CYCLE,
        DEEP,
        "nul \x00",
    ],
    ids=range(14),
)
def test_payloads_that_cannot_be_written_are_refused_before_any_sql(small, payload):
    with small.engine.begin() as conn:
        with pytest.raises(PayloadError):
            small.send(conn, "t", payload)
        with pytest.raises(PayloadError):
            small.send_many(conn, "t", [(1, "o"), (payload, "o")])
    assert Table(small).statuses == []


@pytest.mark.parametrize("text", ["\\u0000", "a\\\\u0000", "\\", "\u2028", "\U0001f600", "'\"`;--"])
def test_payload_texts_come_back_as_they_were(app, text):
    assert decode(encode({"t": text, text: 1})) == {"t": text, text: 1}
    got: list[Any] = []
    app.add_handler("t", lambda msg: got.append(msg.payload))
    send(app, "o", payload=text)
    app.drain(linger=0)
    assert got == [text]


@pytest.mark.parametrize("object_id", [10**30, -(2**63) - 1, Decimal("1.5"), uuid.UUID(int=7)])
def test_an_object_id_that_sqlite_cannot_keep_is_refused_at_the_call(small, object_id):
    with small.engine.begin() as conn:
        with pytest.raises(ConfigError, match="object_id"):
            small.send(conn, "t", object_id=object_id)
        small.send(conn, "t", object_id=2**63 - 1)


@pytest.mark.parametrize("topic", ["nul\x00", "half \ud800"])
def test_a_topic_that_no_database_keeps_is_refused_at_the_call(small, topic):
    with small.engine.begin() as conn, pytest.raises(ConfigError, match="topic"):
        small.send(conn, topic, object_id="o")


def test_send_refuses_a_payload_that_would_be_too_long_to_be_read(make_app):
    app = make_app(table=MessageTable(max_payload=50))
    app.create_schema()
    in_bytes = app.tables.dialect.text_in_bytes
    fits = "\u00e4" * (24 if in_bytes else 48)  # and two quotes
    with app.engine.begin() as conn:
        app.send(conn, "t", fits, object_id="o")
        with pytest.raises(PayloadError, match="max_payload"):
            app.send(conn, "t", fits + "x", object_id="o")
        with pytest.raises(PayloadError, match="max_payload"):
            app.send_many(conn, "t", [(fits + "x", "o")])
    got: list[Any] = []
    app.add_handler("t", lambda msg: got.append(msg.payload))
    assert app.drain(linger=0).done == 1
    assert got == [fits]


def test_send_refuses_keys_that_are_one_text():
    with pytest.raises(PayloadError, match="key"):
        encode({1: "a", "1": "b"})


def test_since_beyond_the_calendar_is_refused(small):
    with pytest.raises(ConfigError, match="9999"):
        small.ops.find(since=datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-14))))


def test_a_file_that_we_create_is_its_owners_alone(tmp_path):
    path = tmp_path / "own.db"
    app = App(f"sqlite:///{path}")
    app.create_schema()
    with app.engine.begin() as conn:
        app.send(conn, "t", object_id="o")
        modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    app.engine.dispose()
    assert modes == dict.fromkeys(("own.db", "own.db-wal", "own.db-shm"), 0o600)


def test_a_file_that_is_there_keeps_its_mode(tmp_path):
    path = tmp_path / "shared.db"
    path.touch()
    path.chmod(0o664)
    app = App(f"sqlite:///{path}")
    app.create_schema()
    app.engine.dispose()
    assert path.stat().st_mode & 0o777 == 0o664


# ---------------------------------------------------------------- 49, 50: handlers that cannot be


def _registering(fn: Any, **options: Any) -> None:
    App("sqlite:///x.db").add_handler("t", fn, **options)


class _Callable:
    def __call__(self, msg: Message, ctx: Context) -> None: ...


async def _async(msg: Message) -> None: ...


def _generator(msg: Message) -> Iterator[int]:
    yield 1


def _swapped(ctx: Context, msg: Message) -> None: ...


BAD_HANDLERS: list[tuple[Any, dict[str, Any]]] = [
    (None, {}),
    ("os:system", {}),
    (7, {}),
    (lambda: None, {}),
    (lambda a, b, c: None, {}),
    (lambda *, msg: None, {}),
    (_generator, {}),
    (_async, {"transactional": True}),
    (lambda msg: None, {"timeout": 0}),
    (lambda msg: None, {"timeout": -1}),
    (lambda msg: None, {"timeout": float("nan")}),
    (lambda msg: None, {"timeout": "5"}),
    (lambda msg: None, {"wait": 5}),
    (lambda msg: None, {"transactional": "yes"}),
    (lambda msg: None, {"transactional": 1}),
    (_swapped, {}),
]


@pytest.mark.parametrize(("fn", "options"), BAD_HANDLERS, ids=range(len(BAD_HANDLERS)))
def test_handlers_that_cannot_be_are_refused_at_once(fn, options):
    with pytest.raises(ConfigError):
        _registering(fn, **options)


@pytest.mark.parametrize(
    "fn",
    [
        lambda msg: None,
        lambda msg, ctx: None,
        lambda msg, ctx, more=1: None,
        lambda *args: None,
        lambda msg, **more: None,
        _Callable(),
        _Callable().__call__,
        _async,
        print,
    ],
    ids=range(9),
)
def test_handlers_that_can_be(fn):
    _registering(fn)


def test_topics_that_cannot_be(small):
    for topic in ("", "x" * 101, 7):
        with pytest.raises(ConfigError):
            small.handler(topic)(lambda msg: None)
        with small.engine.begin() as conn, pytest.raises(ConfigError):
            small.send(conn, topic)


def test_a_topic_has_one_handler():
    app = App("sqlite:///x.db")
    for topic in ("t", None):
        app.add_handler(topic, lambda msg: None)
        with pytest.raises(HandlerError, match="already"):
            app.add_handler(topic, lambda msg: None)


# ---------------------------------------------------------------- 52-58: what handlers raise


class Strange(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def _cyclic() -> Exception:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


class _Unsayable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "huge": (lambda: ValueError("x" * 10_000_000), "ValueError: xxx"),
    "binary": (lambda: ValueError("\x00\x01\xff\ud800 end"), "end"),
    "four bytes": (lambda: ValueError("\U0001f600" * 5000), "\U0001f600"),
    "unprintable": (Unprintable, "Unprintable: <unprintable>"),
    "endless": (Endless, "Endless: <unprintable>"),
    "unpicklable": (Unpicklable, "holds a lock"),
    "cyclic": (_cyclic, "ValueError: one"),
    "SystemExit": (lambda: SystemExit(3), "SystemExit: 3"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "StopIteration": (StopIteration, "StopIteration"),
    "strange": (lambda: Strange("odd"), "Strange: odd"),
    "MemoryError": (MemoryError, "MemoryError"),
    "RecursionError": (RecursionError, "RecursionError"),
    "CancelledError": (asyncio.CancelledError, "CancelledError"),
    "not JSON": (lambda: json.JSONDecodeError("bad", "x", 0), "JSONDecodeError"),
    "unsayable reason": (lambda: Reject(_Unsayable()), "rejected"),  # type: ignore[arg-type]
    "unsayable later": (lambda: RetryLater(5, _Unsayable()), ""),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", ["plain", "transactional", "async"])
def test_whatever_a_handler_raises_its_try_fails_and_the_worker_lives(app, kind):
    make: list[Callable[[], BaseException]] = [make for make, _ in RAISED.values()]

    def handle(msg: Message) -> None:
        if msg.payload < len(make):
            raise make[msg.payload]()

    async def handle_async(msg: Message) -> None:
        handle(msg)

    fn = handle_async if kind == "async" else handle
    options = {"transactional": kind == "transactional", "wait": wait_fixed(3600)}
    app.add_handler("t", fn, **options)
    for i in range(len(make)):
        send(app, f"o{i}", payload=i)
    with app.worker(threads=1) as worker:  # one thread: if it died, nothing would go on
        assert worker.drain(linger=0).done == 0
        send(app, "good", payload=10**6)
        assert worker.drain(linger=0).done == 1
    rows = Table(app).rows("status", "error_try_times", "last_error", "claimed_by")
    for (name, (_, text)), row in zip(RAISED.items(), rows, strict=False):
        if "later" in name:
            assert row[:2] in ((0, 0), (-1, 1)), name
        else:
            assert row[0] == -1, (name, row)
            assert row[1] == (3 if "reason" in name else 1), name
        assert text in row[2] or (kind == "async" and "Stop" in name), (name, row)
        assert len(row[2].encode()) <= 2000
        assert "\x00" not in row[2]
        assert row[3] is None


@pytest.mark.parametrize("kind", ["plain", "transactional", "async"])
def test_keyboard_interrupt_in_a_handler_fails_its_try_and_stops_the_worker(app, kind):
    def handle(msg: Message) -> None:
        raise KeyboardInterrupt

    async def handle_async(msg: Message) -> None:
        raise KeyboardInterrupt

    fn = handle_async if kind == "async" else handle
    app.add_handler("t", fn, transactional=kind == "transactional", wait=wait_fixed(3600))
    send(app, "o", *["p"] * 3)
    join = in_thread(app.worker(threads=1).run)
    join()
    table = Table(app)
    assert 1 not in table.statuses
    assert sorted(table.column("error_try_times"))[-1] == 1


def test_a_recursion_without_end_and_a_failed_allocation(small):
    def forever(n: int = 0) -> int:
        return forever(n + 1) + 1

    @small.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if msg.payload:
            forever()
        bytearray(1 << 62)

    send(small, "a", payload=1)
    send(small, "b", payload=0)
    assert small.drain(linger=0).retried == 2
    first, second = Table(small).column("last_error")
    assert "RecursionError" in first
    assert "MemoryError" in second


def test_the_database_s_password_is_not_kept_in_an_error(postgresql):
    app = App(sa.make_url(postgresql.url).set(password=CANARY))  # the tests' server asks for none
    app.create_schema()

    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        raise ValueError(f"cannot reach postgresql://u:{CANARY}@host")

    send(app, "o")
    app.drain(linger=0)
    text = Table(app).one("last_error")
    assert CANARY not in text
    assert "***" in text


class _BadWait:
    def __init__(self, what: Any) -> None:
        self.what = what

    def __call__(self, retry_state: Any) -> Any:
        if isinstance(self.what, type):
            raise self.what
        return self.what


BAD_WAITS = [-1, float("nan"), float("inf"), 10**12, "soon", None, ValueError, SystemExit]


@pytest.mark.parametrize("what", BAD_WAITS, ids=str)
def test_a_wait_strategy_that_fails_costs_only_its_delay(small, what):
    def fail(msg: Message) -> None:
        raise ValueError("x")

    small.add_handler("t", fail, wait=_BadWait(what))
    send(small, "o")
    send(small, "p")
    report = small.drain(linger=0, threads=1)
    assert report.retried >= 2
    assert {row[0] for row in Table(small).rows("status")} == {-1}


# ---------------------------------------------------------------- 59: what handlers return


async def _coroutine() -> None: ...


def _returns() -> list[tuple[Any, bool]]:
    """Value, and whether the message is done."""
    loop = asyncio.new_event_loop()
    pending = loop.create_future()
    loop.close()
    return [
        (None, True),
        (False, True),
        (0, True),
        (object(), True),
        ("done", True),
        (_coroutine(), False),
        (_generator(Message(1, None, "t", None)), False),
        (concurrent.futures.Future(), False),
        (pending, False),
    ]


def test_what_a_handler_returns(small, caplog):
    values = _returns()

    @small.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> Any:
        return values[msg.payload][0]

    for i in range(len(values)):
        send(small, None, payload=i)
    with caplog.at_level("WARNING", "msgworker"):
        small.drain(linger=0, threads=1)
    rows = Table(small).rows("status", "last_error")
    assert [row[0] for row in rows] == [2 if done else -1 for _, done in values]
    assert all("HandlerMisuse" in row[1] for row in rows if row[0] == -1)
    assert sum("return values are ignored" in r.getMessage() for r in caplog.records) == 1


# ---------------------------------------------------------------- 60: our transaction misused


def _commit(ctx: Context) -> None:
    ctx.connection.commit()


def _rollback(ctx: Context) -> None:
    ctx.connection.rollback()


def _close(ctx: Context) -> None:
    ctx.connection.close()


def _invalidate(ctx: Context) -> None:
    ctx.connection.invalidate()


def _end_and_begin(ctx: Context) -> None:
    ctx.connection.commit()
    ctx.connection.execute(sa.text("SELECT 1"))


@pytest.mark.parametrize("misuse", [_commit, _rollback, _close, _invalidate, _end_and_begin])
def test_a_handler_that_ends_our_transaction_fails_its_try(app, misuse):
    @app.handler("t", transactional=True, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        if msg.object_id == "bad":
            misuse(ctx)

    send(app, "bad")
    send(app, *["good"] * 3)
    report = app.drain(threads=1, linger=0)
    assert (report.done, report.retried) == (3, 1)
    status, tries, text, owner = Table(app).rows(
        "status", "error_try_times", "last_error", "claimed_by"
    )[0]
    assert (status, tries, owner) == (-1, 1, None)
    # What it did after that, SQLAlchemy may have refused already.
    assert text.split(":")[0] in ("HandlerMisuse", "InvalidRequestError", "PendingRollbackError")


def test_a_savepoint_left_open_is_committed_with_the_rest(app):
    @app.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        ctx.connection.begin_nested()
        if msg.payload is None:
            app.send(ctx.connection, "t", 1, object_id=msg.object_id)

    send(app, "o")
    assert app.drain(linger=0).done == 2


def test_an_sql_error_in_a_transactional_handler_fails_its_try(app):
    @app.handler("t", transactional=True, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        if msg.object_id == "caught":
            with pytest.raises(sa.exc.DBAPIError), ctx.connection.begin_nested():
                ctx.connection.execute(sa.text("SELECT no_such_column FROM msgworker_message"))
        else:
            ctx.connection.execute(sa.text("SELECT no_such_column FROM msgworker_message"))

    send(app, "caught", "not caught")
    report = app.drain(linger=0)
    assert (report.done, report.retried) == (1, 1)
    assert "no_such_column" in Table(app).rows("last_error")[1][0]


# ---------------------------------------------------------------- 63, 64: own rows


@pytest.mark.parametrize("transactional", [False, True])
def test_a_handler_that_sends_to_its_own_object_waits_its_turn(app, transactional):
    order: list[int] = []

    @app.handler("t", transactional=transactional)
    def handle(msg: Message, ctx: Context) -> None:
        order.append(msg.payload)
        if msg.payload < 3:
            if transactional:
                app.send(ctx.connection, "t", msg.payload + 1, object_id=msg.object_id)
            else:
                send(app, msg.object_id, payload=msg.payload + 1)

    send(app, "o", payload=0)
    assert app.drain(threads=2, linger=0).done == 4
    assert order == [0, 1, 2, 3]


def _own(app: App, conn: sa.Connection, msg: Message, status: int | None) -> None:
    m = app.tables.message
    act = sa.delete(m) if status is None else sa.update(m).values(status=status)
    assert conn.execute(act.where(m.c.msg_id == msg.msg_id)).rowcount == 1


@pytest.mark.parametrize("status", [None, 0, 2, -1])
def test_a_handler_that_deletes_or_changes_its_own_row(app, caplog, status):
    ran: list[int] = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        ran.append(msg.msg_id)
        if ran.count(msg.msg_id) == 1:
            with app.engine.begin() as conn:
                _own(app, conn, msg, status)

    ids = send(app, "o", "o")
    with caplog.at_level("WARNING", "msgworker"):
        app.drain(linger=1, threads=1)
    assert any("no longer ours" in record.getMessage() for record in caplog.records)
    assert set(ran) == set(ids)
    expected = {None: [], 0: [2, 2], 2: [2, 2], -1: [2, 2]}[status]
    assert Table(app).statuses == expected


@pytest.mark.parametrize("status", [None, 2])
def test_a_transactional_handler_that_deletes_or_changes_its_own_row(app, status):
    @app.handler("t", transactional=True, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        _own(app, ctx.connection, msg, status)

    send(app, "o", "p")
    report = app.drain(linger=0)
    assert (report.done, report.retried) == (0, 2)
    rows = Table(app).rows("status", "error_try_times", "last_error")
    assert {row[:2] for row in rows} == {(-1, 1)}
    assert "LostClaim" in rows[0][2]


# ---------------------------------------------------------------- 65: delays


@pytest.mark.parametrize(
    "after", [-1, 10**12, float("nan"), float("inf"), "5", None, True, timedelta(-1)]
)
def test_a_retry_later_that_cannot_be_fails_its_try(small, after):
    with pytest.raises(ConfigError, match="RetryLater"):
        RetryLater(after=after)

    @small.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        raise RetryLater(after=after)

    send(small, "o")
    assert small.drain(linger=0).retried == 1
    assert "RetryLater" in Table(small).one("last_error")


BAD_DELAYS: list[dict[str, Any]] = [
    {"delay": -1},
    {"delay": 10**12},
    {"delay": float("nan")},
    {"delay": "5"},
    {"delay": True},
    {"delay": timedelta(seconds=-1)},
    {"at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is what is wrong with it
    {"at": "2030-01-01"},
    {"at": 5},
    {"delay": 5, "at": datetime(2030, 1, 1, tzinfo=UTC)},
]


@pytest.mark.parametrize("options", BAD_DELAYS, ids=range(len(BAD_DELAYS)))
def test_delays_that_cannot_be(small, options):
    with small.engine.begin() as conn:
        with pytest.raises(ConfigError):
            small.send(conn, "t", **options)
        with pytest.raises(ConfigError):
            small.send_many(conn, "t", [(1, "o")], **options)


def test_a_delay_on_a_table_where_nothing_can_wait(database, make_app):
    _foreign(database)
    app = make_app(table=SEED)
    app.create_schema()
    with app.engine.begin() as conn:
        with pytest.raises(ConfigError, match="available_at"):
            app.send(conn, "t", delay=5)
        with pytest.raises(ConfigError, match="payload"):
            app.send(conn, "t", {"a": 1})


# ---------------------------------------------------------------- 66: what is sent


@pytest.mark.parametrize("target", [None, "conn", object()])
def test_send_takes_a_connection_or_a_session(small, target):
    with pytest.raises(ConfigError, match="Connection or Session"):
        small.send(target, "t")
    with pytest.raises(ConfigError, match="Connection or Session"):
        small.send(small.engine, "t")


@pytest.mark.parametrize("messages", [[1], ["ab"], [(1,)], [(1, 2, 3)], [None]])
def test_send_many_takes_pairs(small, messages):
    with small.engine.begin() as conn, pytest.raises(ConfigError, match="pairs"):
        small.send_many(conn, "t", messages)


def test_send_many_from_a_generator_that_raises_sends_nothing_if_rolled_back(app):
    def messages() -> Iterator[tuple[Any, Any]]:
        for i in range(12_000):
            yield i, "o"
        raise LookupError("the source broke")

    def produce() -> None:
        with app.engine.begin() as conn:
            app.send_many(conn, "t", messages())

    with pytest.raises(LookupError):
        produce()
    assert Table(app).statuses == []


# ---------------------------------------------------------------- 75, 76: two of a kind


def test_two_workers_with_the_same_label_are_two_instances(make_app, app):
    one, two = make_app(label="same"), make_app(label="same")
    for each in (one, two):
        each.add_handler("t", lambda msg: None)
    with one.worker() as a, two.worker() as b:
        a.start()
        b.start()
        assert a.instance_id != b.instance_id
        send(one, *[f"o{i}" for i in range(20)])
        until(lambda: Table(app).statuses == [2] * 20, "all done")


@pytest.mark.parametrize("label", ["", "x" * 5000, "\u00e4\U0001f600\n\x00", "a b;c'd"])
def test_labels_of_all_sorts(make_app, app, label):
    one = make_app(label=label)
    one.add_handler("t", lambda msg: None)
    send(one, "o")
    with one.worker() as worker:
        worker.start()
        assert len(worker.instance_id or "") <= 64
        assert (worker.instance_id or "").isascii()
        until(lambda: Table(app).statuses == [2], "done")


def test_two_tables_in_one_database_do_not_disturb_each_other(make_app):
    one = make_app()
    two = make_app(table=MessageTable(f"other_{uuid.uuid4().hex[:6]}"))
    for each in (one, two):
        each.create_schema()
        each.add_handler("t", lambda msg: None)
        send(each, "o", "o", "p")
    assert [each.drain(linger=0).done for each in (one, two)] == [3, 3]


def test_signals_are_left_alone_unless_asked(small):
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    small.add_handler("t", lambda msg: seen.append(signal.getsignal(signal.SIGTERM)))
    send(small, "o")
    small.drain(linger=0)
    assert seen == [before]
    assert signal.getsignal(signal.SIGTERM) is before


# ---------------------------------------------------------------- names, options and settings


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("sslmode=require", "unknown option 'sslmode'"),
        ("conect_timeout=3", "did you mean connect_timeout"),
        ("connect_timeout=soon", "must be a number"),
    ],
)
def test_an_option_that_the_driver_does_not_know_is_refused_before_it_connects(option, words):
    with pytest.raises(ConfigError, match=words):
        App(f"mysql+pymysql://u:{CANARY}@127.0.0.1:1/db?{option}")


@pytest.mark.parametrize("name", ["lease", "item", "try", "operation", "audit", "pause", "lock"])
def test_a_table_of_our_own_cannot_be_the_message_table(name):
    with pytest.raises(ConfigError, match="one of msgworker's own tables"):
        MessageTable(f"crm.Msgworker_{name}")


def test_the_reserved_table_names_are_those_that_are_made(small):
    ours = {table.name for table in ddl_script.own_tables(small.tables)}
    assert ours == {f"msgworker_{name}" for name in BESIDE}


@pytest.mark.parametrize("name", ["mw_open_object", "mw_ids", "MW_ME"])
def test_a_column_cannot_have_a_name_of_our_own(name):
    with pytest.raises(ConfigError, match=r"names that begin with mw_ are msgworker's own"):
        MessageTable("tb", last_error=name)


def test_columns_may_be_named_like_anything_else(make_app):
    """Also like what a statement calls its parameters, or SQL its words."""
    names = {"object_id": "b_topic", "topic": "b_payload", "payload": "b_object_id"}
    names |= {"status": "b_at", "error_try_times": "rows", "available_at": "b_delay"}
    names |= {"claimed_by": "order", "last_error": "me", "msg_id": "after", "finished_at": "low"}
    app = make_app(table=MessageTable("select", **names))
    app.create_schema()
    app.add_handler("t", lambda msg: 1 / msg.payload, wait=wait_none())
    with app.engine.begin() as conn:
        for number in (1, 0):
            app.send(conn, "t", number, object_id="a", delay=0)
    report = app.drain(linger=0)
    assert (report.done, report.failed) == (1, 1)
    assert app.ops.rerun([2], reason="r") == 1


@pytest.mark.parametrize("name", ["客" * 21, "客" * 18 + "a"])
def test_a_long_table_name_of_many_bytes_can_be_notified(postgresql, name):
    app = App(postgresql.url, table=MessageTable(name), notify=True)
    try:
        app.create_schema()
        app.add_handler("t", lambda msg: None)
        with app.worker(threads=1) as worker:
            worker.start()
            send(app, "a")
            until(lambda: worker.tally.done == 1, "the message is done")
    finally:
        app.engine.dispose()


@pytest.mark.parametrize("style", ["SQL, DMY", "German", "Postgres, MDY"])
def test_any_style_of_dates_of_a_login_will_do(postgresql, style):
    label = sa.make_url(postgresql.url).database
    with postgresql.engine().connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql(f"ALTER DATABASE {label} SET datestyle TO '{style}'")
    app = App(postgresql.url)
    try:
        app.create_schema()
        app.add_handler("t", lambda msg: 1 / 0)
        send(app, "a", "b")
        app.drain(linger=0)
        assert Table(app).statuses == [-1, -1]
        (first,) = app.ops.find(limit=1)
        assert first.created_at is not None
        assert [one for one in app.ops.doctor() if one.severity == "needed"] == []
    finally:
        app.engine.dispose()


def test_the_text_of_an_error_is_one_line_of_the_log(small, caplog):
    caplog.set_level("INFO", "msgworker")

    def handle(msg: Message) -> None:
        raise ValueError("a\r\nCRITICAL forged \x1b[2K")

    small.add_handler("t", handle)
    send(small, "o")
    small.drain(linger=0)
    told = [r.getMessage() for r in caplog.records if "forged" in r.getMessage()]
    assert told
    assert all(text.isprintable() for text in told)


# ---------------------------------------------------------------- 61, 62: a handler and its process


def test_a_handler_may_change_the_folder_the_locale_and_start_threads(
    tmp_path, monkeypatch, request
):
    """61: a database with a relative path stays the same one; signal handlers are the main
    thread's; a thread that goes on is not waited for."""
    monkeypatch.chdir(tmp_path)
    before = locale.setlocale(locale.LC_ALL)
    request.addfinalizer(lambda: locale.setlocale(locale.LC_ALL, before))
    (tmp_path / "elsewhere").mkdir()
    app = App("sqlite:///crm.db", backoff_seconds=0)
    app.create_schema()
    over = threading.Event()
    request.addfinalizer(over.set)
    refused = []

    @app.handler("t")
    def handle(msg):
        os.chdir(tmp_path / "elsewhere")
        locale.setlocale(locale.LC_ALL, "C")
        threading.Thread(target=over.wait, daemon=True).start()
        try:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except ValueError as error:
            refused.append(str(error))

    kept = signal.getsignal(signal.SIGTERM)
    send(app, "a", "a", "b", None)
    assert app.drain(threads=2, linger=0).done == 4
    send(app, "c")
    assert app.drain(threads=2, linger=0).done == 1
    app.engine.dispose()
    assert app.ops.unfinished() == 0
    assert not list((tmp_path / "elsewhere").iterdir())
    assert len(refused) == 5
    assert signal.getsignal(signal.SIGTERM) is kept
    app.engine.dispose()


def test_a_handler_that_closes_stdout_and_shuts_logging_down_costs_nothing(small, monkeypatch):
    """62, in a program of the user's."""
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    handler = logging.StreamHandler(err)
    own = logging.getLogger("msgworker")
    own.addHandler(handler)
    try:

        @small.handler("t")
        def handle(msg):
            sys.stdout.close()
            sys.stderr.close()
            logging.shutdown()
            if msg.payload:
                raise ValueError("no")

        send(small, "a", "b", "c")
        send(small, "d", payload=1)
        report = small.drain(threads=2, linger=0)
        assert (report.done, report.retried) == (3, 1)
    finally:
        own.removeHandler(handler)


# ---------------------------------------------------------------- 74, 84: clocks and time zones


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_instants_mean_the_same_in_any_time_zone_of_a_session(postgresql, mariadb, zone):
    """74: also in the hour that a clock shows twice, on 1 November 2026 in New York."""
    fold = [datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in (5, 6)]
    offset = {"America/New_York": "-05:00", "Asia/Kathmandu": "+05:45"}[zone]
    for url in (
        sa.make_url(postgresql.url).update_query_dict({"options": f"-ctimezone={zone}"}),
        sa.make_url(mariadb.url).update_query_dict({"init_command": f"SET time_zone = '{offset}'"}),
    ):
        app = App(url.render_as_string(hide_password=False), backoff_seconds=1)
        app.create_schema()
        first, second = (send(app, "x", at=at)[0] for at in fold)
        (later,) = send(app, "y", delay=3600)
        assert [app.ops.show(one).available_at for one in (first, second)] == fold
        left = app.ops.show(later).available_at - datetime.now(UTC)
        assert 3500 < left.total_seconds() < 3700
        assert abs((app.ops.show(later).created_at - datetime.now(UTC)).total_seconds()) < 100
        app.handler("t")(lambda msg: None)
        app.drain(linger=0)
        for one, at in zip((first, second), fold, strict=True):
            assert (app.ops.show(one).status is Word.DONE) == (at < datetime.now(UTC))
        assert app.ops.show(later).status is Word.NEW
        app.engine.dispose()


@pytest.mark.parametrize("year", [1970, 2106])
def test_the_clock_of_the_host_may_be_wrong_by_decades(database, make_app, monkeypatch, year):
    """84: instants are the database's; doctor says how far the clocks are apart."""
    if database.name == "sqlite":
        pytest.skip("its clock is the host's")
    wrong = datetime(year, 1, 2, tzinfo=UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return wrong.astimezone(tz)

    monkeypatch.setattr("time.time", wrong.timestamp)
    monkeypatch.setattr("msgworker.store.doctor.server.datetime", Clock)
    app = make_app(backoff_seconds=0)
    app.create_schema()
    tried = []

    @app.handler("t")
    def handle(msg):
        tried.append(msg.msg_id)
        if len(tried) == 1:
            raise ValueError("again")

    (one,) = send(app, "a")
    (waits,) = send(app, "b", delay=3600)
    assert app.drain(linger=2).done == 1
    assert tried == [one, one]
    assert app.ops.show(waits).status is Word.NEW
    (clock,) = [finding for finding in app.ops.doctor() if finding.check == "clock"]
    way = "ahead of" if year > 2100 else "behind"
    assert (clock.severity, way in clock.text) == ("advised", True)


# ---------------------------------------------------------------- what send and handlers are given


def test_send_takes_a_scoped_session(small):
    session = scoped_session(sessionmaker(small.engine))
    small.send(session, "t", object_id="x")
    session.rollback()
    assert small.ops.find() == []
    small.send(session, "t", object_id="x")
    session.commit()
    assert len(small.ops.find()) == 1
    session.remove()


def test_a_connection_to_another_database_is_refused(small, postgresql, tmp_path):
    other = App(f"sqlite:///{tmp_path / 'other.db'}")
    other.create_schema()
    for engine, words in ((other.engine, "is of the file"), (postgresql.engine(), "postgresql")):
        with engine.begin() as conn, pytest.raises(ConfigError, match=words):
            small.send(conn, "t")
    same = sa.create_engine(small.engine.url.set(database=f"{small.engine.url.database}"))
    with same.begin() as conn:
        small.send(conn, "t")
    same.dispose()
    assert (len(small.ops.find()), len(other.ops.find())) == (1, 0)
    other.engine.dispose()


def test_a_type_of_payloads_that_is_not_known_is_told_and_one_that_comes_later_is_read(
    small, caplog
):
    module: dict[str, Any] = {"Message": Message, "Any": Any}
    exec(
        "from __future__ import annotations\n"
        "def unknown(msg: Message[Unknown]): pass\n"
        "def later(msg: Message[Order], ctx: OnlyForTheChecker): seen.append(msg.payload)\n"
        "def known(msg: Message[int], ctx: OnlyForTheChecker): seen.append(msg.payload)\n"
        "def plain(msg: Message[Any], ctx: OnlyForTheChecker): pass\n",
        module,
    )
    for name in ("unknown", "later", "known", "plain"):
        small.add_handler(name, module[name])
    module["seen"] = seen = []
    exec("from dataclasses import dataclass\n@dataclass\nclass Order:\n    n: int", module)
    send(small, "a", topic="later", payload={"n": 1})
    send(small, "b", topic="later", payload={"n": "no number"})
    send(small, "c", topic="known", payload="no number")
    send(small, "d", topic="unknown", payload={"n": 1})
    report = small.drain(linger=0)
    assert (report.done, report.failed) == (2, 2)
    assert seen == [module["Order"](1)]
    told = [r.getMessage() for r in caplog.records if "payloads are not checked" in r.getMessage()]
    assert len(told) == 1
    assert "handler unknown: the type in Message[Unknown] is not a name of its module" in told[0]


@pytest.mark.parametrize("setting", ["completion_type='RELEASE'", "sql_select_limit=1"])
def test_settings_of_a_server_that_cut_sessions_or_answers_do_no_harm(mariadb, setting):
    url = sa.make_url(mariadb.url).update_query_dict({"init_command": f"SET {setting}"})
    app = App(url.render_as_string(hide_password=False))
    app.create_schema()
    app.handler("t")(lambda msg: None)
    send(app, *(f"o{i}" for i in range(5)))
    assert app.drain(linger=0).done == 5
    assert len(app.ops.find()) == 5
    app.engine.dispose()
