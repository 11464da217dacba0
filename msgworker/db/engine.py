"""The engine of an App, from a URL or from the user's own Engine."""

from __future__ import annotations

import copy
import inspect
import os
import re
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from msgworker.config import nearest
from msgworker.db.connections import connecting, doubt_sessions, watch_sessions
from msgworker.db.database import DATABASES, NAMES, Database, of_dialect
from msgworker.db.drivers import (
    ISOLATION,
    _any_text,
    _connect_pymysql,
    _end_plainly,
    _iso_dates,
    _note_number,
    connect_defaults,
)
from msgworker.db.failover import ROLLED_BACK, notice_standby
from msgworker.db.hosts import Hosts, named_hosts
from msgworker.db.oracle import _fetch_at_once, _pad_lists
from msgworker.db.poolers import notice_pooler, told_of_pooler
from msgworker.db.sqlite import (
    SQLITE_LEAST,
    _begin_immediate,
    _busy_timeout,
    _hinting_compiler,
    _own_file,
    _sync_fully,
)
from msgworker.errors import ConfigError

_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "mysql"),
    "oracle": ("oracle+oracledb", "oracle"),
}
_PORTS = {"postgresql": 5432, "mysql": 3306, "oracle": 1521}
_ASYNC = re.compile(r"\+(asyncpg|aiosqlite|aiomysql|asyncmy|psycopg_async|oracledb_async)\b")


def parse_url(url: object) -> URL:
    """A URL checked and completed with our default driver; raises ConfigError, never echoes it."""
    if isinstance(url, URL):
        parsed = url
    elif not isinstance(url, str) or not url.strip():
        raise ConfigError('a database url is required, such as "sqlite:///messages.db"')
    else:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            raise ConfigError(
                "the database url cannot be read; it looks like dialect://user:password@host:port/"
                "name. If the password holds one of @ / : # % build it with sqlalchemy.URL.create"
            ) from None
    text = parsed.drivername
    if _ASYNC.search(text):
        raise ConfigError(f"{text} is an async driver; use a plain one, e.g. {_plain(text)}://")
    backend = parsed.get_backend_name()
    if backend not in NAMES:
        raise ConfigError(f"database {backend!r} is not supported; use one of: {', '.join(NAMES)}")
    if parsed.port is not None and not 1 <= parsed.port <= 65_535:
        raise ConfigError(f"port must be 1 to 65535, got {parsed.port}")
    rest = [parsed.host or "", *parsed.query]
    if backend != "sqlite":
        rest.append(parsed.database or "")
    if any("@" in part for part in rest):  # this may be half of a password
        raise ConfigError(
            "the database url holds an @ behind the host: the password is not escaped; "
            "build the url with sqlalchemy.URL.create"
        )
    if backend == "sqlite" and any((parsed.username, parsed.password, parsed.host, parsed.port)):
        raise ConfigError(
            "the url of a SQLite database names a host or a user, but it is a file: write three "
            'slashes before a relative path, such as "sqlite:///messages.db", and four before an '
            "absolute one"
        )
    if backend == "sqlite" and _in_memory(parsed):
        raise ConfigError(
            "an in-memory SQLite database belongs to one connection, a worker needs several; "
            'use a file, such as "sqlite:///messages.db"'
        )
    if "+" not in text and backend in _DRIVERS:
        parsed = parsed.set(drivername=_DRIVERS[backend][0])
    return parsed


def same_database(one: str | URL, other: str | URL) -> bool:
    """Whether two URLs mean the same, although written differently: a default driver or port left
    out, another encoding of the password, another order of the query, a relative path of a file.

    Raises ConfigError for one that cannot be read.
    """
    return _plainly(parse_url(one)) == _plainly(parse_url(other))


def other_than(engine: sa.Engine, other: sa.Engine) -> str:
    """Why a connection of `other` is certainly to another database than this engine's; "" if
    unknown, since a server may have several names and addresses."""
    if other.url == engine.url:
        return ""
    ours, theirs = engine.dialect.name, other.dialect.name
    if {ours, theirs} - {"mysql", "mariadb"} and ours != theirs:
        return f"is of {theirs}, but the App's database is {ours}"
    files = [url.database or "" for url in (engine.url, other.url)]
    if ours != "sqlite" or any(file.startswith("file:") for file in files):
        return ""
    mine, given = (os.path.realpath(file) for file in files)
    return "" if mine == given else f"is of the file {given}, but the App's is {mine}"


def place_of(conn: sa.Connection, table: str, schema: str | None) -> tuple[str, ...] | None:
    """To which server, database and table of it a name leads on this connection, as the server
    says; None if it does not. Two connections for which it is the same lead to one table. In a
    transaction of the caller, which an error leaves as it was."""
    name, query = conn.dialect.name, _PLACES.get(conn.dialect.name)
    if query is None:
        return None
    quote = conn.dialect.identifier_preparer.quote
    full = ".".join(quote(part) for part in (schema, table) if part is not None)
    within = conn.in_transaction()
    try:
        with conn.begin_nested() if within else nullcontext():
            params = {"full": full} if ":full" in query else {}
            found = [str(value) for value in conn.execute(sa.text(query), params).one()]
            if name in ("mysql", "mariadb"):
                cluster = conn.exec_driver_sql(_CLUSTER).first()
                if cluster is not None and cluster[1]:  # which of its nodes does not matter
                    found = [str(cluster[1]), found[-1]]
    except sa.exc.DBAPIError:
        if not within:
            conn.rollback()
        return None
    if conn.dialect.name == "sqlite":
        found = [os.path.realpath(found[0])] if found[0] else []
    return (*found, *(() if schema is None else (schema,)), table) if found else None


_OF_MYSQL = "SELECT @@hostname, @@port, @@datadir, @@server_id, DATABASE()"
_PLACES = {
    "postgresql": "SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()), "
    "current_database(), CAST(to_regclass(:full) AS oid)",
    "mysql": _OF_MYSQL,
    "mariadb": _OF_MYSQL,
    "sqlite": "SELECT file FROM pragma_database_list WHERE name = 'main'",
    "oracle": "SELECT SYS_CONTEXT('USERENV', 'DB_UNIQUE_NAME'), "
    "SYS_CONTEXT('USERENV', 'CON_NAME'), SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA') FROM dual",
}
_CLUSTER = "SHOW STATUS LIKE 'wsrep_cluster_state_uuid'"


def _plainly(url: URL) -> URL:
    url = told_of_pooler(url)[0]
    backend = url.get_backend_name().replace("mariadb", "mysql")
    url = url.set(drivername=f"{backend}+{url.get_driver_name()}")
    if backend == "sqlite":
        # A name such as file:x.db?uri=true is interpreted by the driver.
        path = url.database or ""
        return url if path.startswith("file:") else url.set(database=os.path.realpath(path))
    port = url.port or _PORTS.get(backend)
    return url.set(host=(url.host or "").lower(), port=port)


def _in_memory(url: URL) -> bool:
    name = url.database or ""
    return not name or ":memory:" in name or url.query.get("mode") == "memory"


def _plain(drivername: str) -> str:
    backend = drivername.split("+")[0]
    return _DRIVERS.get(backend, (backend,))[0]


def dialect_of(engine: sa.Engine) -> Database:
    """The capabilities of an engine's database; connects once to distinguish MariaDB and MySQL."""
    name = engine.dialect.name
    if name in ("mysql", "mariadb"):
        if getattr(engine.dialect, "server_version_info", None) is None:
            with connecting(engine):
                pass
        name = "mariadb" if getattr(engine.dialect, "is_mariadb", False) else "mysql"
    if name not in NAMES:
        raise ConfigError(f"database {name!r} is not supported; use one of: {', '.join(NAMES)}")
    known = DATABASES[name]
    if name not in _SEVERAL_WRITERS:
        return known
    if engine.pool not in _certifies:
        variable, value = _SEVERAL_WRITERS[name]
        with connecting(engine) as conn:
            asked = sa.text("SHOW VARIABLES LIKE :variable")
            found = conn.execute(asked, {"variable": variable}).first()
        _certifies[engine.pool] = found is not None and str(found[1]) == value
    return known.having(certifies=True) if _certifies[engine.pool] else known


_certifies: weakref.WeakKeyDictionary[sa.Pool, bool] = weakref.WeakKeyDictionary()
"""The pools of connections to a MariaDB or a MySQL, and whether it is one of several servers that
take writes."""
_SEVERAL_WRITERS = {
    "mariadb": ("wsrep_on", "ON"),
    "mysql": ("group_replication_single_primary_mode", "OFF"),
}
"""The variable that says so, and its value then."""


def server_of(engine: sa.Engine) -> dict[str, str | int]:
    """Host and port of the database as OpenTelemetry names them, as far as the URL says."""
    said = {"server.address": engine.url.host, "server.port": engine.url.port}
    return {name: value for name, value in said.items() if value}


def open_engine(source: object) -> sa.Engine:
    """Our engine for a URL or for a user's Engine; does not connect.

    A user's Engine keeps its pool and its behaviour: we use it through execution options, so
    isolation level and BEGIN differ only for our connections, and nothing is set in a session that
    goes back to its pool. Our own statements use engines `beside` it. Errors of ours show no
    parameters, which are payloads and errors of messages.
    """
    given = isinstance(source, sa.Engine)
    if isinstance(source, sa.Engine):
        engine = source
        parse_url(engine.url)
        if isinstance(engine.pool, _ONE_FOR_ALL):
            raise ConfigError(
                f"the engine's pool ({type(engine.pool).__name__}) has one connection for all "
                "threads; create the engine with a QueuePool"
            )
        _forked.add(engine)
    else:
        engine = _create(parse_url(source))
    if not engine.dialect.supports_sane_rowcount:
        raise ConfigError(
            f"the driver of {engine.url.drivername} does not count the rows that an UPDATE changed,"
            " by which a claim is decided; use another driver"
        )
    if engine.dialect.name == "sqlite":
        found: tuple[int, ...] = getattr(engine.dialect.dbapi, "sqlite_version_info", SQLITE_LEAST)
        if found < SQLITE_LEAST:
            raise ConfigError(
                f"SQLite {'.'.join(map(str, found))} is too old; 3.38 or later is needed"
            )
        engine = _ours(engine, given)
        event.listen(engine, "begin", _begin_immediate)
        if not given:
            engine.dialect.statement_compiler = _hinting_compiler()
            _set_sessions(engine, engine)
        return engine
    engine = _ours(engine, given, isolation_level=ISOLATION)
    if engine.dialect.name in ("postgresql", "mysql", "mariadb"):
        notice_standby(engine)
    event.listen(engine, "handle_error", _note_rollback)
    if engine.dialect.name == "postgresql":
        notice_pooler(engine)
    if engine.dialect.driver == "mysqldb":
        event.listen(engine, "engine_connect", _note_number)
    if engine.dialect.name == "oracle":
        event.listen(engine, "before_execute", _pad_lists, retval=True)
        event.listen(engine, "before_cursor_execute", _fetch_at_once)
    if not given:
        _set_sessions(engine, engine)
    return engine


def _ours(engine: sa.Engine, given: bool, **options: Any) -> sa.Engine:
    """An Engine with these execution options and events of its own. One that we have created needs
    no other beside it, whose events would be looked up in both at each statement."""
    if given:
        engine = engine.execution_options(**options)
        engine.hide_parameters = True
    else:
        engine.update_execution_options(**options)
    return engine


def _set_sessions(own: sa.Engine, engine: sa.Engine) -> None:
    """Set what our statements need in the sessions of `own`, whose pool is ours, unless that is
    done by `engine`, whose events it has."""
    for listener in _SESSIONS.get(own.dialect.name, ()) + _SESSIONS.get(own.driver, ()):
        if not event.contains(engine, "engine_connect", listener):
            event.listen(own, "engine_connect", listener)


_SESSIONS: dict[str, tuple[Callable[[sa.Connection], None], ...]] = {
    "sqlite": (_busy_timeout,),
    "postgresql": (_iso_dates,),
    "pymysql": (_any_text,),
}
"""By database or by driver."""


class Beside(OptionEngine):
    """An Engine beside another one: it connects as that does and has its options and its events
    (those of the pool as they are now), but connections of its own, which only the package uses.

    They are closed when the other one is disposed of, and a forked child leaves them to its parent.
    """

    pool: sa.Pool = None  # type: ignore[assignment]

    def __init__(self, engine: sa.Engine, pool: sa.Pool) -> None:
        super().__init__(engine, {})
        self.pool = pool
        self._pid = os.getpid()

    def close_pool(self, of: sa.Engine) -> None:
        """The other engine was disposed of, perhaps in a child without closing anything."""
        if isinstance(of, Beside):
            return
        if self._pid == os.getpid():
            self.pool.dispose()
        self._pid, self.pool = os.getpid(), self.pool.recreate()


def beside(engine: sa.Engine, *, lends: bool = False) -> sa.Engine:
    """Another engine beside one of `open_engine`, see Beside; whoever asks for it keeps it. It
    opens as many connections as are needed. lends: its connections are lent to user code, as many
    as the other engine may have at most, and what that sets in their sessions is noted."""
    pool = engine.pool.recreate()
    if isinstance(pool, sa.QueuePool) and not lends:
        pool._max_overflow = -1  # it has no public name; what is idle has the size of the pool
    own = Beside(engine, pool)
    if engine.dialect.name == "sqlite" and not _writes_hints(engine):
        own.dialect = copy.copy(engine.dialect)
        own.dialect.statement_compiler = _hinting_compiler()
        learned = engine.dialect
        event.listen(own, "engine_connect", lambda conn: _know_as_much(conn.dialect, learned))
    _set_sessions(own, engine)
    if lends:
        watch_sessions(own)
    else:
        doubt_sessions(own)
    _forked.add(own)
    close = weakref.WeakMethod(own.close_pool)

    def disposed(of: sa.Engine) -> None:
        method = close()
        if method is not None:
            method(of)

    event.listen(_root_of(engine), "engine_disposed", disposed)
    return own


def _root_of(engine: sa.Engine) -> sa.Engine:
    """The Engine that was created, by whose pool all that have its options connect."""
    while isinstance(engine, OptionEngine) and not isinstance(engine, Beside):
        engine = engine._proxied
    return engine


def _writes_hints(engine: sa.Engine) -> bool:
    return engine.dialect.statement_compiler is _hinting_compiler()


def _know_as_much(copied: sa.Dialect, learned: sa.Dialect) -> None:
    # What a dialect learns at its first connection, its copy does not.
    for name, value in vars(learned).items():
        vars(copied).setdefault(name, value)


def _create(url: URL) -> sa.Engine:
    args: dict[str, Any] = {"hide_parameters": True, "pool_size": 0}  # 0: as many as are needed
    if url.get_backend_name() == "sqlite":
        args["connect_args"] = {"timeout": 60, "check_same_thread": False}
        args["poolclass"] = sa.QueuePool
    else:
        url, args["execution_options"], threshold = told_of_pooler(url)
        hosts = named_hosts(url) if url.get_backend_name() in ("mysql", "mariadb") else []
        args["pool_pre_ping"] = True
        args["connect_args"] = connect_defaults(url) | threshold
    try:
        engine = sa.create_engine(url, **args)
        if url.get_driver_name() in ("pymysql", "oracledb"):
            _check_options(engine)
        if url.get_driver_name() == "pymysql":
            connect: Any = _connect_pymysql
            if hosts:
                turns = Hosts(hosts, _connect_pymysql)
                event.listen(engine, "checkout", turns.checkout)
                connect = turns.connect
            event.listen(engine, "do_connect", connect)
        elif engine.dialect.name in ("mysql", "mariadb"):
            event.listen(engine, "connect", lambda raw, _: _end_plainly(raw), insert=True)
        if url.get_backend_name() == "sqlite":
            event.listen(engine, "do_connect", _own_file)
            event.listen(engine, "connect", _sync_fully)
        _forked.add(engine)
        return engine
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError("the database url has an option that must be a number") from None
    except NoSuchModuleError as error:
        raise ConfigError(f"no such driver: {url.drivername}") from error
    except ImportError as error:
        ours, extra = _DRIVERS.get(url.get_backend_name(), ("", ""))
        if url.drivername == "oracle+cx_oracle":
            ours, extra = url.drivername, "cx-oracle"
        change = "" if url.drivername == ours else f"change the url to {ours}://... and "
        raise ConfigError(
            f"the driver of {url.drivername} is not installed ({error.name}); "
            f'{change}run: pip install "msgworker[{extra}]"'
        ) from error


def _check_options(engine: sa.Engine) -> None:
    """Raise ConfigError for an option in the URL that the driver does not know: it would raise
    a TypeError at the first connection."""
    _, given = engine.dialect.create_connect_args(engine.url)
    known = inspect.signature(engine.dialect.loaded_dbapi.connect).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return  # the driver itself says what it does not know
    unknown = sorted(set(given) - set(known))
    if unknown:
        hint = nearest(unknown[0], known)
        raise ConfigError(f"the database url has an unknown option {unknown[0]!r}; {hint}")


def _note_rollback(context: Any) -> None:
    # MySQL rolls the whole transaction back at a deadlock and begins another one with the next
    # statement. Code that swallows the error would commit only its second half. The same holds for
    # a lost connection, after which SQLAlchemy raises other errors.
    database, error = of_dialect(context.dialect), context.original_exception
    if database.ends_session(error):
        context.is_disconnect = True
    whole = context.is_disconnect or database.ends_transaction(error)
    if context.connection is not None and whole:
        # Not in its `info`, which is lost with the connection.
        vars(context.connection)[ROLLED_BACK] = context.sqlalchemy_exception


def rolled_back(conn: sa.Connection) -> BaseException | None:
    """The error with which the database has ended the transaction of `conn` although the connection
    does not show it; reading it clears it."""
    found: BaseException | None = vars(conn).pop(ROLLED_BACK, None)
    return found


_ONE_FOR_ALL = (sa.StaticPool, sa.pool.SingletonThreadPool, sa.AssertionPool)
_forked: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
"""Engines whose connections a forked child leaves to its parent: a server that loads the
application before it forks, say."""


def _leave_to_the_parent() -> None:
    for engine in list(_forked):
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_to_the_parent)
