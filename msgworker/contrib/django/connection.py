"""A Django project's settings, Apps, handlers and connection."""

from __future__ import annotations

import copy
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Unpack

import sqlalchemy as sa
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core import mail
from django.db import DatabaseError, Error, close_old_connections, connections, transaction
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import DBAPIError

from msgworker.app import App
from msgworker.commands import brings
from msgworker.declaring import Declaring
from msgworker.errors import ConfigError, HandlerError, HandlerMisuse
from msgworker.instance.running.handler import Handler, Registry, check_tries, make_handler
from msgworker.logs import logger
from msgworker.processlock import ProcessLock
from msgworker.producing import AllSendOptions, Borrowed, ManyOptions
from msgworker.table.spec import MessageTable

# --- The setting MSGWORKER of a Django project.

MODULES = ("messages", "handlers")
PROGRAM, APP = "manage.py msgworker", "msgworker.contrib.django.project:app"
"""How the command line is called in a project, and the App that it has there."""


@dataclass(frozen=True, slots=True)
class ProjectOptions:
    """alias: of DATABASES. modules: that are imported of every installed app. app: keywords of
    App."""

    alias: str
    modules: tuple[str, ...]
    table: MessageTable | None
    app: dict[str, Any]


def options() -> ProjectOptions:
    """MSGWORKER, checked; raises ConfigError. App refuses unknown keys."""
    found = getattr(settings, "MSGWORKER", {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"the setting MSGWORKER must be a dict, got {found!r:.80}")
    given = dict(found)
    alias, modules = given.pop("alias", "default"), given.pop("modules", MODULES)
    if not isinstance(alias, str):
        raise ConfigError(f"MSGWORKER['alias'] must be an alias of DATABASES, got {alias!r:.80}")
    if isinstance(modules, str) or not all(isinstance(name, str) for name in modules):
        raise ConfigError(
            f"MSGWORKER['modules'] must be a list of names of modules, got {modules!r:.80}"
        )
    return ProjectOptions(alias, tuple(modules), _table(given.pop("table", None)), given)


def _table(given: Any) -> MessageTable | None:
    if given is None or isinstance(given, MessageTable):
        return given
    if isinstance(given, str):
        return MessageTable(given)
    if isinstance(given, Mapping):
        try:
            return MessageTable(**given)
        except TypeError as error:
            raise ConfigError(f"MSGWORKER['table']: {error}") from None
    raise ConfigError(
        f"MSGWORKER['table'] must be a name, a dict or a MessageTable, got {given!r:.80}"
    )


# --- The URL of a database of the setting DATABASES.

log = logger("msgworker.django")
_NO_OPTIONS = {
    *("dbname", "host", "port", "user", "password", "client_encoding", "replication"),
}
"""Of libpq: what Django has settings for, and what a connection of ours has in its own way."""
_MYSQL = ("charset", "unix_socket", "read_default_file", "connect_timeout", "init_command")
_TLS = {
    "DISABLED": {"ssl_disabled": "true"},
    "PREFERRED": {},  # as without ssl_mode
    "REQUIRED": {"ssl_check_hostname": "false"},
    "VERIFY_CA": {"ssl_check_hostname": "false"},
    "VERIFY_IDENTITY": {"ssl_check_hostname": "true"},
}
"""What each ssl_mode is for PyMySQL, which checks a certificate where it has that of a CA."""
_OF_DJANGO = {
    *("isolation_level", "server_side_binding", "assume_role", "pool", "cursor_factory"),
    *("transaction_mode", "timeout", "use_returning_into", "threaded", "sql_mode"),
}
"""Options that have a meaning for Django's connections only."""


def url_of(alias: str) -> sa.URL:
    """Of the database as Django uses it now: during tests it is the test database.

    Raises ConfigError for an alias that is not there, and for a database that only Django's own
    connection can see.
    """
    try:
        there: Any = connections[alias]
    except Exception as error:
        raise ConfigError(f"DATABASES has no {alias!r}: {error}") from None
    of = _BY_VENDOR.get(there.vendor)
    if of is None:
        raise ConfigError(f"database {alias!r} is {there.vendor}, which msgworker does not know")
    return of(alias, there.settings_dict)


def _postgresql(alias: str, given: Mapping[str, Any]) -> sa.URL:
    query, host, port = _query(alias, given, _libpq()), given.get("HOST") or "", given.get("PORT")
    if role := (given.get("OPTIONS") or {}).get("assume_role"):
        role = re.sub(r"([\\ ])", r"\\\1", role)
        query["options"] = f"{query.get('options', '')} -c role={role}".strip()
    if "," in f"{host}{port or ''}":  # several servers, as libpq takes them
        hosts, ports = f"{host}".split(","), f"{port or ''}".split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        if len(ports) != len(hosts):
            raise ConfigError(
                f"database {alias!r} has {len(hosts)} HOST and {len(ports)} PORT: give one PORT, "
                "or one for each HOST"
            )
        for one in ports:
            _port(alias, one)
        query |= {"host": ",".join(hosts), "port": ",".join(ports)}
        given = {**given, "HOST": "", "PORT": ""}
    return _url(alias, "postgresql+psycopg", given, query)


def _libpq() -> tuple[str, ...]:
    """The options of libpq; none without psycopg, which is asked for when it is to connect."""
    try:
        from psycopg import pq
    except ImportError:
        return ()
    known = (one.keyword.decode() for one in pq.Conninfo.get_defaults())
    return tuple(name for name in known if name not in _NO_OPTIONS)


def _mysql(alias: str, given: Mapping[str, Any]) -> sa.URL:
    query = _query(alias, given, (*_MYSQL, "ssl", "ssl_mode"))
    ssl, mode = query.pop("ssl", None), query.pop("ssl_mode", "PREFERRED")
    if isinstance(ssl, Mapping):
        query |= {f"ssl_{name}": value for name, value in ssl.items()}
    checks = str(mode).startswith("VERIFY_")
    if mode not in _TLS or (checks and not {"ssl_ca", "ssl_capath"}.intersection(query)):
        raise ConfigError(
            f"database {alias!r}: ssl_mode is one of {', '.join(_TLS)}, and those that verify need "
            f"the ca of ssl, got {mode!r:.80}"
        )
    query |= _TLS[mode]
    query.setdefault("charset", "utf8mb4")
    if str(given.get("HOST") or "").startswith("/"):
        query["unix_socket"] = given["HOST"]
        given = {**given, "HOST": ""}
    return _url(alias, "mysql+pymysql", given, query)


def _sqlite(alias: str, given: Mapping[str, Any]) -> sa.URL:
    name = os.fspath(given["NAME"])
    if name == ":memory:" or name.startswith("file:"):
        raise ConfigError(
            f"database {alias!r} is in the memory of Django's connection ({name}), which "
            "msgworker cannot see. Give it a file; for tests "
            "DATABASES[...]['TEST'] = {'NAME': 'test.sqlite3'}"
        )
    return sa.URL.create("sqlite", database=os.path.abspath(name))


def _oracle(alias: str, given: Mapping[str, Any]) -> sa.URL:
    if given.get("HOST"):
        named = {**given, "NAME": ""}
        return _url(alias, "oracle+oracledb", named, {"service_name": given["NAME"]})
    return _url(alias, "oracle+oracledb", {**given, "HOST": given["NAME"], "NAME": ""}, {})


_BY_VENDOR: dict[str, Callable[[str, Mapping[str, Any]], sa.URL]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "sqlite": _sqlite,
    "oracle": _oracle,
}


def _query(alias: str, given: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    options = dict(given.get("OPTIONS") or {})
    if left := sorted(set(options) - set(known) - _OF_DJANGO):
        _warn_once(alias, ", ".join(left))
    return {name: options[name] for name in known if options.get(name) is not None}


@functools.cache
def _warn_once(alias: str, left: str) -> None:
    text = "database %r: its OPTIONS %s are not taken over for the connections of msgworker"
    log.warning(text, alias, left)


def _port(alias: str, given: Any) -> int | None:
    """Raises ConfigError if it is none."""
    if not given:
        return None
    try:
        return int(given)
    except ValueError:
        raise ConfigError(f"database {alias!r}: PORT must be a number, got {given!r:.80}") from None


def _url(alias: str, driver: str, given: Mapping[str, Any], query: Mapping[str, Any]) -> sa.URL:
    return sa.URL.create(
        driver,
        username=given.get("USER") or None,
        password=given.get("PASSWORD") or None,
        host=given.get("HOST") or None,
        port=_port(alias, given.get("PORT")),
        database=given.get("NAME") or None,
        query={name: str(value) for name, value in query.items()},
    )


# --- A handler within a Django project.

_READS = {
    *("SELECT", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "WITH", "DECLARE"),
    *("FETCH", "MOVE", "CLOSE", "PRAGMA", "SET", "RESET", "USE", "START", "SAVEPOINT", "RELEASE"),
    *("ROLLBACK", "COMMIT", "END"),
}
"""What a statement begins with that writes nothing by itself."""
_BEGIN = re.compile(r"\W*BEGIN( (TRANSACTION|WORK|DEFERRED|IMMEDIATE|EXCLUSIVE))*\W*")
"""The begin of a transaction, which no block of statements has (Oracle)."""
_INTO = re.compile(r"\bINTO\b")
_WRITES = re.compile(
    r"(?<!FOR )(?<!KEY )\b(INSERT|UPDATE|DELETE|REPLACE|MERGE|INTO|CREATE|ALTER|DROP|TRUNCATE)\b"
    r"(?! ?\()"
)
"""Words that write within a statement that begins so; not FOR UPDATE, nor a function."""
_NO_WORDS = re.compile(
    r"""--[^\n]*|/\*(?!!).*?\*/|'(?:[^']|\'\')*'|"(?:[^"]|"")*"|`[^`]*`|\$(\w*)\$.*?\$\1\$""", re.S
)
"""Comments, texts and quoted names."""


def around(made: Handler) -> Callable[..., Any]:
    """The function of a handler between two `close_old_connections`, so that Django's ORM gets no
    dead connection. If it is transactional, writes through Django's connections are refused."""
    fn = made.fn
    if made.is_async:

        @functools.wraps(fn)
        async def handle_async(*args: Any) -> Any:
            close = sync_to_async(_close_old)
            await close()
            try:
                return await fn(*args)
            finally:
                await close()

        return handle_async

    @functools.wraps(fn)
    def handle(*args: Any) -> Any:
        _close_old()
        try:
            with _refused(made.transactional):
                return fn(*args)
        finally:
            _close_old()

    return handle


def _close_old() -> None:
    with suppress(Error):  # a connection that is dead already; Django drops it nevertheless
        close_old_connections()


@contextmanager
def _refused(transactional: bool) -> Iterator[None]:
    with ExitStack() as stack:
        if transactional:
            for alias in connections:
                stack.enter_context(connections[alias].execute_wrapper(_refuse_writes))
        yield


def _refuse_writes(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
    text = sql
    if hasattr(sql, "as_string"):  # composed by psycopg
        text = sql.as_string(context["connection"].connection)
    if word := writing(text if isinstance(text, str) else bytes(text).decode(errors="replace")):
        raise HandlerMisuse(
            f"{word} through Django's connection in a transactional handler: it would be committed "
            "by itself, whatever becomes of the message. Write with ctx.connection, or make the "
            "handler plain and use transaction.atomic() with msg.idempotency_key as a unique value"
        )
    return execute(sql, params, many, context)


def writing(sql: str) -> str | None:
    """The word that makes SQL a write, "INSERT"; None if it only reads, or begins or ends a
    transaction. What a function or procedure does that a SELECT calls, is not known."""
    for part in _NO_WORDS.sub(" ", sql).upper().split(";"):
        statement = " ".join(part.split())
        first = re.match(r"\W*(\w+)", statement)
        if first is None or first[1] == "SET" or _BEGIN.fullmatch(statement):
            continue
        if first[1] not in _READS:
            return first[1]
        found = (_INTO if first[1] == "SELECT" else _WRITES).search(statement)
        if found is not None:
            return found[0]
    return None


# --- The Apps of this process, one for each database, with the handlers of the project.
#
# Made when they are asked for, from the settings as they are then: during tests that is the test
# database.

_lock = ProcessLock()
_handlers: list[tuple[str | None, Callable[..., Any], dict[str, Any]]] = []
_apps: dict[str, App] = {}


class DjangoApp(App):
    """An App whose handlers may use Django's ORM; see `around`."""

    def _declare(self, topic: str | None, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        super()._declare(topic, around(_checked(topic, fn, options)), options)


def _checked(topic: str | None, fn: Callable[..., Any], options: dict[str, Any]) -> Handler:
    made = make_handler(topic, fn, **options)
    if made.is_async and made.transactional:
        raise HandlerError(
            f"handler {getattr(fn, '__qualname__', fn)} is async with transactional=True, which "
            "is not for a Django project: msgworker has no AsyncEngine there. Write a function "
            "that is not async, or leave transactional=True out"
        )
    return made


def app(alias: str | None = None) -> App:
    """The App on a database of DATABASES (default: MSGWORKER["alias"], else "default"), with all
    handlers of the project; the same one at every call. Raises ConfigError."""
    asked = options()
    alias = asked.alias if alias is None else alias
    url = url_of(alias)
    key = url.render_as_string(hide_password=False)
    with _lock:
        found = _apps.get(key)
        if found is None:
            found = DjangoApp(_source(url), table=asked.table, **asked.app)
            for topic, fn, more in _handlers:
                found._declare(topic, fn, more)
            _apps[key] = found
            if alias == asked.alias:
                brings(PROGRAM, APP)
        return found


def _source(url: sa.URL) -> sa.URL | sa.Engine:
    """During tests no connection stays open, with which the test database could not be dropped."""
    if not hasattr(mail, "outbox"):  # which Django's test runners set
        return url
    return sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True)


def _its_table() -> MessageTable:
    return options().table or MessageTable()


class _Project(Declaring):
    """The handlers of the project, for the Apps that there are and those that are made later."""

    def __init__(self) -> None:
        self._registry = Registry()

    def _declare(self, topic: str | None, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        made = _checked(topic, fn, options)
        check_tries(made, _its_table())
        with _lock:
            self._registry.add(made)  # refuses what no App would take, before there is one
            _handlers.append((topic, fn, options))
            for there in _apps.values():
                there._declare(topic, fn, options)


handler = _Project().handler
"""Register a function as the handler of a topic, in a module `messages` or `handlers` of an
installed app; options as in `App.handler`.

It may use Django's ORM. In a transactional one that would be another transaction than
`ctx.connection`'s: writes through the ORM are refused there with HandlerMisuse.
"""


def send(
    topic: str, payload: Any = None, *, using: str | None = None, **how: Unpack[AllSendOptions]
) -> Any:
    """Insert one message on Django's own connection; return its msg_id (None on Oracle).

    Inside `transaction.atomic` it commits or rolls back with the rest; outside, Django's
    autocommit commits it at once. using: an alias of DATABASES. how: as in `App.send` (object_id,
    delay, at, priority, ...). Raises what `App.send` raises, and Django's database errors.
    """
    there = app(using)
    with theirs():
        return there.send(_connection(there, using), topic, payload, **how)


def send_many(
    topic: str,
    messages: Iterable[tuple[Any, Any]],
    *,
    using: str | None = None,
    **how: Unpack[ManyOptions],
) -> int:
    """Insert (payload, object_id) pairs on Django's own connection, as `send`; return how many."""
    there = app(using)
    with theirs():
        return there.send_many(_connection(there, using), topic, messages, **how)


def _connection(there: App, using: str | None) -> Any:
    alias = options().alias if using is None else using
    _ = there.tables  # read on a connection of its own, before anything is compiled
    connections[alias].ensure_connection()
    return DjangoConnection(alias, there.engine)


# --- Statements of `send` on Django's own connection, in Django's own transaction.
#
# Django's connection is not SQLAlchemy's: a statement is compiled for the database, in the form of
# Django's cursors (`%s` in order), and sent through one of them.


class DjangoConnection(Borrowed):
    """A connection of Django, as far as `send` needs one. dialect: of the App's own engine."""

    def __init__(self, alias: str, engine: sa.Engine) -> None:
        self.alias = alias
        self.engine = engine
        self.dialect = _formatting(engine.dialect)

    def execute(self, statement: Any, params: Any = None, **_: Any) -> DjangoResult:
        """Run one statement, with one set of parameters or a list of them."""
        compiled = statement.compile(dialect=self.dialect)
        with connections[self.alias].cursor() as cursor:
            if isinstance(params, list):
                cursor.executemany(str(compiled), [self._values(compiled, one) for one in params])
                return DjangoResult(cursor, (), None)
            values = self._values(compiled, params or {})
            try:
                cursor.execute(str(compiled), values)
            except DatabaseError as error:  # `send` looks at the error of the driver, see `theirs`
                cause = error.__cause__
                if not isinstance(cause, Exception):
                    raise
                raise DBAPIError(str(compiled), values, cause) from error
            rows = [] if cursor.description is None else cursor.fetchall()
            key: Any = None
            if compiled.isinsert:
                key = rows[0] if rows else (getattr(cursor, "lastrowid", None),)
            return DjangoResult(cursor, rows, key)

    def scalar(self, statement: Any, params: Any = None) -> Any:
        return self.execute(statement, params).scalar()

    def scalars(self, statement: Any, params: Any = None) -> sa.ScalarResult[Any]:
        return self.execute(statement, params).scalars()

    def begin_nested(self) -> AbstractContextManager[None]:
        """A savepoint; a transaction where Django has none."""
        found: AbstractContextManager[None] = transaction.atomic(using=self.alias)
        return found

    @property
    def commits_each(self) -> bool:
        return bool(connections[self.alias].get_autocommit()) and not (
            connections[self.alias].in_atomic_block
        )

    def on_commit(self, fn: Callable[[], object]) -> bool:
        try:
            transaction.on_commit(fn, using=self.alias)
        except transaction.TransactionManagementError:  # without autocommit Django calls none
            return False
        return True

    def _values(self, compiled: Any, given: Mapping[str, Any]) -> list[Any]:
        values = compiled.construct_params(given)
        found = []
        for name in compiled.positiontup or ():
            kind = compiled.binds[name].type.dialect_impl(self.dialect)
            process = kind.bind_processor(self.dialect)
            found.append(values[name] if process is None else process(values[name]))
        return found


@contextmanager
def theirs() -> Iterator[None]:
    """Raises Django's errors of the database, as users of its connection expect."""
    try:
        yield
    except DBAPIError as error:
        if isinstance(error.__cause__, DatabaseError):
            raise error.__cause__ from error.__cause__.__cause__
        raise


class DjangoResult(IteratorResult[Any]):
    """The answer to a statement, read whole; key: of the row that it inserted."""

    def __init__(self, cursor: Any, rows: Sequence[Any], key: Any) -> None:
        names = [one[0] for one in cursor.description or ()]
        super().__init__(SimpleResultMetaData(names), iter(rows))
        self.rowcount = cursor.rowcount
        self.inserted_primary_key = key


def _formatting(dialect: sa.Dialect) -> sa.Dialect:
    """The same dialect, of the same server, in the style of Django's cursors."""
    found: Any = copy.copy(dialect)
    found.paramstyle, found.positional = "format", True
    found.identifier_preparer = found.preparer(found)
    made: sa.Dialect = found
    return made
