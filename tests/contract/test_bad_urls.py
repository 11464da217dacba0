"""URLs, engines and files that cannot be, and databases that cannot be reached."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError, DatabaseUnavailable, MessageTable
from tests.support.apps import created
from tests.support.logged import CANARY

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
    (f"mysql+pymysql://u:{CANARY}@h/db?ssl=true", "ssl_ca"),
]


def test_bad_urls_are_config_errors_that_do_not_repeat_the_password(subtests):
    for url, text in BAD_URLS:
        with subtests.test(url=url):
            with pytest.raises(ConfigError) as caught:
                App(url)
            assert text in str(caught.value)
            assert CANARY not in str(caught.value)
            assert caught.value.exit_code == 2


def test_an_unescaped_password_works_or_is_explained(subtests):
    for mark in "@/:#%?& ":
        refused = ""
        try:
            shown = repr(App(f"postgresql://user:Ca{mark}{CANARY}@host/db"))
        except ConfigError as error:
            refused = shown = str(error)
        with subtests.test(mark=mark):
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
    if driver == "mysql+mysqldb" and importlib.util.find_spec("pymysql"):
        assert "mysql+pymysql://" in str(caught.value)  # the URL that the extra is good for


@pytest.mark.parametrize(
    "url", ["postgresql://\udcff@h/x", "mysql://u:\udcff@h/x", "mysql://h/\udcff"]
)
def test_a_url_of_a_server_with_a_byte_that_is_not_utf8_is_refused(url):
    with pytest.raises(ConfigError, match="must be a text in UTF-8"):
        App(url)


def test_engines_that_cannot_be(tmp_path, subtests):
    """In memory, with one connection for all threads, or of a driver that cannot count rows."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    uncounted = sa.create_engine(url)
    uncounted.dialect.supports_sane_rowcount = False
    for engine, says in (
        (sa.create_engine("sqlite://"), "in-memory"),
        (sa.create_engine(url, poolclass=sa.StaticPool), "pool"),
        (sa.create_engine(url, poolclass=sa.pool.SingletonThreadPool), "pool"),
        (uncounted, "rows"),
    ):
        with subtests.test(says=says), pytest.raises(ConfigError, match=says):
            App(engine)


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


@pytest.mark.requires("logins")
@pytest.mark.quick("mariadb")
def test_a_wrong_password(database):
    url = sa.make_url(database.url).set(username="nobody_here", password=CANARY)
    app = App(url)
    with pytest.raises(DatabaseUnavailable) as caught:
        _ = app.tables
    assert CANARY not in str(caught.value)
    assert "nobody_here" in str(caught.value)


@pytest.mark.quick("postgresql")
@pytest.mark.requires("database_in_url")
def test_a_database_that_does_not_exist(database):
    app = App(sa.make_url(database.url).set(database="no_such_database"))
    for act in (app.create_schema, lambda: app.tables):
        with pytest.raises(DatabaseUnavailable):
            act()


def test_a_url_without_a_database_is_named_where_the_server_has_no_default(mariadb):
    url = sa.make_url(mariadb.url)
    bare = url._replace(database=None)
    app = App(bare)
    for act in (app.create_schema, lambda: app.tables):
        with pytest.raises(ConfigError, match="names no database"):
            act()
    named = MessageTable(f"{url.database}.msgworker_message")
    App(bare, table=named).create_schema()


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
    from msgworker.db.sqlite import network_mount

    mounts = (
        "/dev/vda / ext4 rw 0 0\nsrv:/x /mnt/share nfs4 rw 0 0\nsrv:/y /mnt/a\\040b cifs rw 0 0\n"
    )
    assert network_mount("/mnt/share/q.db", mounts) == "nfs4"
    assert network_mount("/mnt/a b/q.db", mounts) == "cifs"
    assert network_mount("/mnt/sharexx/q.db", mounts) is None
    assert network_mount(str(tmp_path / "q.db"), mounts) is None
    assert network_mount("/mnt/share/q.db", "") is None


def test_a_file_that_we_create_is_its_owners_alone(tmp_path):
    path = tmp_path / "own.db"
    app = created(App(f"sqlite:///{path}"))
    with app.engine.begin() as conn:
        app.send(conn, "t", object_id="o")
        modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    app.engine.dispose()
    assert modes == dict.fromkeys(("own.db", "own.db-wal", "own.db-shm"), 0o600)


def test_a_file_of_a_uri_is_its_owners_alone(tmp_path):
    app = created(App(f"sqlite:///file:{tmp_path}/o%2520n.db?uri=true"))
    app.engine.dispose()
    assert (tmp_path / "o n.db").stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_keeps_its_mode(tmp_path):
    path = tmp_path / "shared.db"
    path.touch()
    path.chmod(0o664)
    app = created(App(f"sqlite:///{path}"))
    app.engine.dispose()
    assert path.stat().st_mode & 0o777 == 0o664


def test_an_option_that_the_driver_does_not_know_is_refused_before_it_connects(subtests):
    for option, says in (
        ("sslmode=require", "unknown option 'sslmode'"),
        ("conect_timeout=3", "did you mean connect_timeout"),
        ("connect_timeout=soon", "must be a number"),
    ):
        with subtests.test(option=option), pytest.raises(ConfigError, match=says):
            App(f"mysql+pymysql://u:{CANARY}@127.0.0.1:1/db?{option}")


def test_an_option_that_the_driver_of_oracle_does_not_know_is_refused_too(monkeypatch):
    driver = pytest.importorskip("oracledb")
    monkeypatch.setattr(driver, "connect", lambda dsn, *, user, password, stmtcachesize=20: None)
    with pytest.raises(ConfigError, match="unknown option 'foo'"):
        App(f"oracle+oracledb://u:{CANARY}@127.0.0.1:1/db?foo=1")


def test_a_sqlite_url_with_a_host_or_a_user_is_refused(subtests):
    for place in (f"u:{CANARY}@h/x.db", "u@h/x.db", "h/x.db", "h:1/x.db"):
        with subtests.test(place=place):
            with pytest.raises(ConfigError, match="but it is a file") as told:
                App(f"sqlite://{place}")
            assert CANARY not in str(told.value)


def test_a_file_of_an_option_that_cannot_be_read_is_a_wrong_setting(tmp_path, subtests):
    """The driver passes over a `read_default_file` that is not there."""
    bad, missing = tmp_path / "no such form", tmp_path / "missing"
    bad.write_text(f"{CANARY}\n", encoding="utf-8")
    for option, path in (("ssl_ca", bad), ("ssl_ca", missing), ("read_default_file", bad)):
        query = {option: str(path)}
        app = App(sa.URL.create("mysql+pymysql", "u", host="127.0.0.1", port=1, query=query))
        with subtests.test(query=query):
            with pytest.raises(ConfigError, match="an option of the database url names") as told:
                _ = app.tables
            assert CANARY not in str(told.value)
