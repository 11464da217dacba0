"""The engine of an App, from a URL or from the user's own Engine."""

from __future__ import annotations

import inspect
import os
import re
import weakref
from contextlib import nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from msgworker.config import nearest
from msgworker.db import connections, errors
from msgworker.db.database import DATABASES, NAMES, Trouble, of, of_dialect
from msgworker.db.drivers import ISOLATION, is_aborted
from msgworker.errors import ConfigError
from msgworker.payload import is_text

_ASYNC = re.compile(r"\+(asyncpg|aiosqlite|aiomysql|asyncmy|psycopg_async|oracledb_async)\b")


def parse_url(url: object) -> URL:
    """A URL checked and completed with our default driver; raises ConfigError, never echoes it."""
    if isinstance(url, URL):
        parsed = url
    elif not isinstance(url, str) or not url.strip():
        raise ConfigError('a database url is required, such as "sqlite:///messages.db"')
    elif errors.MASK in url:
        raise ConfigError(
            f"the database url has {errors.MASK} where its password was masked: write that in its "
            "place, or leave the url out and set MSGWORKER_URL"
        )
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
    database = DATABASES[backend]  # raises ConfigError
    if parsed.port is not None and not 1 <= parsed.port <= 65_535:
        raise ConfigError(f"port must be 1 to 65535, got {parsed.port}")
    rest = [parsed.host or "", *parsed.query]
    if not database.is_file:
        rest.append(parsed.database or "")
        if not is_text("".join([*rest, *map(str, (parsed.username, parsed.password))])):
            raise ConfigError("the database url must be a text in UTF-8")
    if any("@" in part for part in rest):  # this may be half of a password
        raise ConfigError(
            "the database url holds an @ behind the host: the password is not escaped; "
            "build the url with sqlalchemy.URL.create"
        )
    database.check_url(parsed)
    return parsed if "+" in text else parsed.set(drivername=database.driver)


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
    if of(engine).family != of(other).family:
        return f"is of {theirs}, but the App's database is {ours}"
    return of(engine).another_file(engine.url, other.url)


def place_of(conn: sa.Connection, table: str, schema: str | None) -> tuple[str, ...] | None:
    """To which server, database and table of it a name leads on this connection, as the server
    says; None if it does not. Two connections for which it is the same lead to one table. In a
    transaction of the caller, which an error leaves as it was."""
    quote = conn.dialect.identifier_preparer.quote
    full = ".".join(quote(part) for part in (schema, table) if part is not None)
    within = conn.in_transaction()
    try:
        with conn.begin_nested() if within else nullcontext():
            found = of(conn).place(conn, full)
    except sa.exc.DBAPIError:
        if not within:
            conn.rollback()
        return None
    return (*found, *(() if schema is None else (schema,)), table) if found else None


def _plainly(url: URL) -> URL:
    database = DATABASES[url.get_backend_name()]
    return database.plain_url(url.set(drivername=f"{database.family}+{url.get_driver_name()}"))


ASYNC = "sqlalchemy.ext.asyncio"


def plain_url(url: URL) -> URL:
    """The URL of an AsyncEngine, for our driver. Raises ConfigError for what that has not."""
    if not _ASYNC.search(url.drivername):
        return url  # a driver for both, such as psycopg
    query, left = DATABASES[url.get_backend_name()].plain_query(url.get_driver_name(), url.query)
    plain = url.set(drivername=_plain(url.drivername), query=query)
    if left:
        raise ConfigError(
            f"the url of the AsyncEngine has options of {url.get_driver_name()}, "
            f"{', '.join(left)}, and an App connects by {plain.get_driver_name()}; give App a url "
            f'or an Engine of its own beside it: App("{plain.drivername}://...")'
        )
    return plain


def _plain(drivername: str) -> str:
    name = drivername.split("+")[0]
    return DATABASES[name].driver if name in NAMES else name


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

    An AsyncEngine belongs to an event loop, and our threads to none: ours connects beside it, by
    its URL.
    """
    if connections.is_a(source, ASYNC, "AsyncEngine"):
        source = plain_url(source.url)  # type: ignore[attr-defined]
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
    engine = _ours(engine, given)
    if not given:
        _set_sessions(engine, engine)
    return engine


def lent_engine(source: Any) -> Any:
    """An AsyncEngine on the pool of the program's, for transactions that run its async handlers;
    None if `source` is none. It has options and events of its own, as `_ours`, and notes what
    handlers set in their sessions."""
    if not connections.is_a(source, ASYNC, "AsyncEngine"):
        return None
    engine = _ours(source.sync_engine, True)
    of(engine).prepare_lent(engine)
    connections.watch_sessions(engine)
    _note_statements(engine)
    return type(source)(engine)


_ASKED = "msgworker_asked"
"""In the attributes of a connection: the greenlet of its last statement, new at each."""


def _note_statements(engine: sa.Engine) -> None:
    """Note statements of the engine behind an AsyncEngine, see `awaited`."""
    from greenlet import getcurrent  # type: ignore[import-untyped]  # it comes with SQLAlchemy's asyncio

    def note(conn: sa.Connection, *_: Any) -> None:
        vars(conn)[_ASKED] = (getcurrent(),)

    event.listen(engine, "before_cursor_execute", note)


def awaited(conn: sa.Connection) -> object | None:
    """The same object while the loop waits for the answer to one statement; None = to none. From
    any thread."""
    found = getattr(conn, _ASKED, None)
    # The greenlet ends with the call of AsyncConnection; that of a thread has no parent.
    return None if found is None or found[0].parent is None or found[0].dead else found


def _ours(engine: sa.Engine, given: bool) -> sa.Engine:
    """An Engine with execution options and events of its own. One that we have created needs
    no other beside it, whose events would be looked up in both at each statement."""
    database = of(engine)
    options: Any = {} if database.one_writer else {"isolation_level": ISOLATION}
    if given:
        if database.one_writer and "isolation_level" in engine.get_execution_options():
            options = {"isolation_level": _SERIALIZABLE}
        engine = Ours(engine, options)
        engine.hide_parameters = True
    else:
        engine.update_execution_options(**options)
    database.prepare(engine, given=given)
    if not database.one_writer:  # else a deadlock, or a lost connection, is of no transaction
        event.listen(engine, "handle_error", _note_rollback)
    event.listen(engine, "handle_error", _name_unkept)
    event.listen(engine, "commit", errors.refuse_rest)
    return engine


def _name_unkept(context: Any) -> None:
    # What is stored is escaped or refused before; what is asked for, and names, are not.
    error, conn = context.original_exception, context.connection
    if conn is None or not connections.is_ours_alone(conn):
        return
    part = "\0" if "NUL (0x00)" in str(error) else ""
    if isinstance(error, UnicodeEncodeError):
        part = error.object[error.start : error.end]
    if part:
        raise ConfigError(
            f"the database has no characters for {part!r:.60}; nothing there has them"
        )


def _set_sessions(own: sa.Engine, engine: sa.Engine) -> None:
    """Set what our statements need in the sessions of `own`, whose pool is ours, unless that is
    done by `engine`, whose events it has."""
    for listener in of(own).sessions(own.driver):
        if not event.contains(engine, "engine_connect", listener):
            event.listen(own, "engine_connect", listener)


_SERIALIZABLE = "SERIALIZABLE"
"""What SQLite has in the place of ISOLATION: its transactions, and not each statement alone."""


class Ours(OptionEngine):
    """An Engine with the pool of another one. Its connections have the isolation level of its own
    options, also where that one sets another (AUTOCOMMIT) by its options or by a listener:
    SQLAlchemy calls those last."""

    def connect(self) -> sa.Connection:
        conn = super().connect()
        wanted = self.get_execution_options().get("isolation_level", _SERIALIZABLE)
        is_other = conn.get_execution_options().get("isolation_level", wanted) != wanted
        if is_other or (not of(self).one_writer and self._may_have_another(wanted)):
            with connections.closed_after_failure(conn):
                if conn.in_transaction():
                    conn.commit()
                conn.connection.commit()  # what a listener has sent: none is set in a transaction
                conn.execution_options(isolation_level=wanted)
        return conn

    def _may_have_another(self, wanted: str) -> bool:
        """Whether a program's Engine sets another level, by its options or those of the one that it
        was made of, or has listeners of the program's own, which may."""
        found: Any = self.given
        while isinstance(found, Ours):
            found = found.given
        if found is None:
            return False
        modules = [str(getattr(one, "__module__", "")) for one in found.dispatch.engine_connect]
        if any([not module.startswith(_KNOWN) for module in modules]):
            return True
        while found is not None:
            if found.get_execution_options().get("isolation_level", wanted) != wanted:
                return True
            found = getattr(found, "_proxied", None)
        return False

    @property
    def given(self) -> sa.Engine | None:
        """The other one, unless the package has made it."""
        return self._proxied


_KNOWN = ("msgworker.", "sqlalchemy.engine.default")
"""Modules whose listeners set no level, or one of the options."""


class Beside(Ours):
    """An Engine beside another one: it connects as that does and has its options and its events
    (those of the pool as they are now), but connections of its own, which only the package uses.

    They are closed when the other one is disposed of, and a forked child leaves them to its parent.
    """

    pool: sa.Pool = None  # type: ignore[assignment]

    @property
    def given(self) -> sa.Engine | None:
        return self._proxied.given if isinstance(self._proxied, Ours) else None

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
        pool = self.pool.recreate()
        _initialize_once(pool, of.pool)
        self._pid, self.pool = os.getpid(), pool


def beside_loop(engine: Any) -> Any:
    """An AsyncEngine beside one of `lent_engine`, whose connections are of another event loop; the
    caller disposes of it there."""
    own = engine.sync_engine
    pool = own.pool.recreate()
    _initialize_once(pool, own.pool)
    return type(engine)(Beside(own, pool))


def _initialize_once(pool: sa.Pool, other: sa.Pool) -> None:
    """SQLAlchemy initializes a dialect with the first connection of a pool, and others of that pool
    wait meanwhile on its mutex. `pool` was made of `other` and has its dialect and its events: give
    it that mutex too, so that neither uses a dialect which the other is initializing."""
    first: Any = other.dispatch.connect
    second: Any = pool.dispatch.connect
    mutex = getattr(first, "_get_exec_once_mutex", None)  # SQLAlchemy 2.0 has an attribute
    second._exec_once_mutex = first._exec_once_mutex if mutex is None else mutex()


def beside(engine: sa.Engine, *, lends: bool = False) -> sa.Engine:
    """Another engine beside one of `open_engine`, see Beside; the caller keeps it. It
    opens as many connections as are needed. lends: user code gets its connections, as many
    as the other engine may have at most, and what that sets in their sessions is noted."""
    pool = engine.pool.recreate()
    _initialize_once(pool, engine.pool)
    if isinstance(pool, sa.QueuePool) and not lends:
        pool._max_overflow = -1  # it has no public name; what is idle has the size of the pool
    own = Beside(engine, pool)
    of(engine).prepare_beside(own, engine)
    _set_sessions(own, engine)
    if lends:
        connections.watch_sessions(own)
    else:
        connections.doubt_sessions(own)
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


def _create(url: URL) -> sa.Engine:
    database = DATABASES[url.get_backend_name()]
    url, args = database.create_options(url)
    args |= {"hide_parameters": True, "pool_size": 0}  # 0: as many as are needed
    try:
        engine = sa.create_engine(url, **args)
        if url.get_driver_name() in database.checked_drivers:
            _check_options(engine)
        database.created(engine)
        _forked.add(engine)
        return engine
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError("the database url has an option that must be a number") from None
    except NoSuchModuleError as error:
        raise ConfigError(f"no such driver: {url.drivername}") from error
    except ImportError as error:
        ours, extra = database.missing_driver(url)
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
    if database.says("session ends", error):
        context.is_disconnect = True
    if context.connection is None:
        return
    noted = vars(context.connection)
    if context.is_disconnect or database.says("transaction ends", error):
        errors.note_rolled_back(context)
    elif database.trouble(error) is Trouble.AGAIN:
        noted[_ABORTED_BY] = context.sqlalchemy_exception
    elif not database.says("follows", error):
        # An aborted transaction gives only errors that follow: a savepoint has ended that one.
        noted.pop(_ABORTED_BY, None)


_ABORTED_BY = "msgworker_aborted_by"
"""In the attributes of a connection: its last deadlock or the like. Where that has not ended the
transaction as a whole, a savepoint may have."""


def rolled_back(conn: sa.Connection) -> BaseException | None:
    """The error with which the database has ended the transaction of `conn` although the connection
    does not show it, or the deadlock that has aborted it; reading it clears it."""
    found = errors.take_rolled_back(conn)
    aborted: BaseException | None = vars(conn).pop(_ABORTED_BY, None)
    if found is None and aborted is not None and is_aborted(conn):
        return None if errors.is_time_limit(aborted) else aborted
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
