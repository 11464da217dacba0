"""What a connection leads to: a pooler; a standby, which takes no writes until it is promoted; an
old primary that has come back; a file that was replaced."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping
from contextlib import closing, suppress
from math import inf
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL

from msgworker.db.database import Database, of
from msgworker.db.errors import code_of, masked, note_rolled_back
from msgworker.errors import ConfigError, DatabaseUnavailable
from msgworker.logs import Said, logger
from msgworker.processlock import ProcessLock

_log = logger("msgworker.dialects")

# --- A pooler between us and PostgreSQL, such as PgBouncer: where it gives each transaction another
# session of the server, nothing may be kept in a session.
#
# Prepared statements are the danger: the driver numbers them for each connection, so in the session
# of another client one of these names may be missing, taken, or another statement.

OPTION = "msgworker_pooler"
"""An execution option of an Engine, and without its prefix an option of the URL: how the pooler
pools. `session`: as without one; `transaction`: a session is not ours to keep. By default the
first connection is asked."""
KINDS = ("session", "transaction")
_PREPARES = "msgworker_prepares"

_shared: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""The pools that were asked, and whether they share their sessions."""
_said_of: set[str] = set()
"""The URLs of which it was logged: an App has several pools."""


def told_of_pooler(url: URL) -> tuple[URL, dict[str, str | bool], dict[str, int | None]]:
    """What a URL says of its pooler, taken out of it: the rest, options for the engine, and options
    for the driver. Raises ConfigError."""
    options: dict[str, str | bool] = {}
    args: dict[str, int | None] = {}
    kind, threshold = url.query.get("pooler"), url.query.get("prepare_threshold")
    if kind is not None:
        if kind not in KINDS:
            raise ConfigError(f"pooler in the database url must be {' or '.join(KINDS)}")
        options[OPTION] = str(kind)
    if threshold is not None and url.get_driver_name() == "psycopg":
        if threshold != "none" and not str(threshold).isdecimal():
            raise ConfigError("prepare_threshold in the database url must be a number or none")
        args["prepare_threshold"] = None if threshold == "none" else int(str(threshold))
        options[_PREPARES] = threshold != "none"
    return url.difference_update_query(("pooler", "prepare_threshold")), options, args


def notice_pooler(engine: sa.Engine) -> None:
    """Notice a pooler at the first connection of this engine, or at an error that shows one.

    Raises ConfigError for an execution option that means nothing.
    """
    kind = engine.get_execution_options().get(OPTION)
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"the execution option {OPTION} must be {' or '.join(KINDS)}")
    event.listen(engine, "engine_connect", _ask)
    event.listen(engine, "handle_error", _note_pooler)


def shares_sessions(conn: sa.Connection) -> bool:
    """Whether the next transaction of `conn` may be in another session of the server, so that
    settings and LISTEN do not last, and would change the sessions of others."""
    return bool(_shared.get(conn.engine.pool, False))


def _ask(conn: sa.Connection) -> None:
    pool = conn.engine.pool
    options = conn.get_execution_options()
    raw: Any = conn.connection.driver_connection
    if pool in _shared:
        if _shared[pool] and not options.get(_PREPARES):
            _unprepared(raw)  # it may be older than what another thread has found meanwhile
        return
    kind = options.get(OPTION)
    found = _is_between(raw) if kind is None else kind == "transaction"
    if found is None:
        return  # the next statement says what is wrong
    _shared[pool] = found
    if found:
        _share(conn.engine, raw, options)


def _is_between(raw: Any) -> bool | None:
    """Whether the server's process is another than the one that was reported when we connected: a
    pooler gives its own number. None if it cannot be asked."""
    ours = getattr(getattr(raw, "info", None), "backend_pid", None)
    if ours is None:
        return False
    try:
        with raw.cursor() as cursor:
            cursor.execute("SELECT pg_catalog.pg_backend_pid()")
            theirs = cursor.fetchone()[0]
        raw.rollback()
    except Exception:
        return None
    return bool(theirs != ours)


def _share(engine: sa.Engine, raw: Any, options: Mapping[str, Any]) -> None:
    if not options.get(_PREPARES):
        _unprepared(raw)
        event.listen(engine.pool, "checkout", _unprepared)
    url = masked(engine.url)
    if url in _said_of:
        return
    _said_of.add(url)
    _log.info(
        "a pooler is in front of %s: it is used without prepared statements, settings of a session "
        "and LISTEN, so messages of other processes are found by polling. If it pools by session "
        "add pooler=session to the url, see docs/operate/poolers.md",
        url,
        extra={"event": Said.POOLER_FOUND},
    )


def _unprepared(raw: Any, *_: Any) -> None:
    if hasattr(raw, "prepare_threshold"):
        raw.prepare_threshold = None


def _note_pooler(context: Any) -> None:
    if not is_of_a_pooler(context.original_exception) or context.engine is None:
        return
    conn = context.connection
    raw = None if conn is None or conn.invalidated else conn.connection.driver_connection
    _unprepared(raw)
    if not _shared.get(context.engine.pool):
        _shared[context.engine.pool] = True
        _share(context.engine, raw, {})


def is_of_a_pooler(error: BaseException | None) -> bool:
    """Whether a statement that the driver has prepared is missing or is there already: another
    session of the server than the one it was prepared in."""
    return code_of(error)[1] in ("42P05", "26000") and "_pg3_" in str(error)


# --- A standby takes no writes until it is promoted: an outage, which passes, and not a refusal,
# which ends the run. What a standby is, and whether the server must be asked, says the Database.


def notice_standby(engine: sa.Engine) -> None:
    """From now on what a standby refuses is a lost connection: the next one may lead to the
    primary. For PostgreSQL, MariaDB and MySQL."""
    event.listen(engine, "handle_error", _note_refusal)


def refuse_standby(conn: sa.Connection) -> None:
    """Close `conn`, which is new, and raise DatabaseUnavailable if its server is a standby. One of
    PostgreSQL that has reported so is asked itself."""
    database = of(conn)
    if database.may_be_standby(conn.connection.driver_connection) and _is_standby(
        database, _askable(conn)
    ):
        _drop(conn)
        where = masked(conn.engine.url)
        raise DatabaseUnavailable(
            f"cannot use the database {where}: the server is {database.standby}"
        )


def _note_refusal(context: Any) -> None:
    conn, error = context.connection, context.original_exception
    if conn is None or conn.invalidated or not of(conn).refuses_writes(error):
        return
    if conn.in_nested_transaction():  # a rollback to a savepoint must remain possible
        return
    note_rolled_back(context)
    database = of(conn)
    if database.refusal_is_of_standby or _is_standby(database, _askable(conn)):
        context.is_disconnect = True


def _askable(conn: sa.Connection) -> Any:
    """The driver's connection; of an async driver SQLAlchemy's, whose calls wait in the loop."""
    if conn.dialect.is_async:
        return conn.connection.dbapi_connection
    return conn.connection.driver_connection


def _drop(conn: sa.Connection) -> None:
    with suppress(Exception):
        conn.invalidate()
    conn.close()


def _is_standby(database: Database, raw: Any) -> bool:
    """Ask the server. What the transaction did is rolled back: it is new, or an error has ended
    it."""
    try:
        raw.rollback()
        with closing(raw.cursor()) as cursor:
            cursor.execute(database.standby_query)
            found = cursor.fetchone()[0]
        raw.rollback()
    except Exception:  # it is broken, which the next statement shows
        return False
    return found not in (False, None) and str(found).upper() not in ("0", "OFF")


# --- Which server was made the primary after which: an old one that comes back takes writes, which
# no other server will have.
#
# A server says something of its past by which it is known whether it lacks what another one, which
# replaced it, has: its timeline (postgresql.py), or who wrote its log (mysql_servers.py). So an
# engine whose connections have led to the newer primary does not work on the older one: that is an
# outage. This is known to the engine alone, as long as the process lives. One that is new has
# nothing to compare, unless its URL names other servers: they are asked.

_SEEN, _FIT = "msgworker_turn", "msgworker_fit"
"""In the `info` of a connection: the turn in which its server was asked; `is_fit`."""
ASKED_SECONDS = 10.0
"""New connections within so many seconds do not ask the other servers again."""
PATIENCE_SECONDS = 2
"""For the other servers."""
F = TypeVar("F")


class Past(Generic[F]):
    """What was seen of the primaries of one database. F: what a server says of its past.

    tells: whether servers like these can say it; if not, they are not asked again.
    """

    tells = False

    def ask(self, cursor: Any) -> F | None:
        """None = unknown."""
        raise NotImplementedError

    def is_untold(self, error: Exception) -> bool:
        """Whether an error of `ask` means that such servers cannot say it."""
        return False

    def is_old(self, found: F) -> bool:
        """Whether a server that takes writes was replaced by another one, which was seen."""
        raise NotImplementedError

    def sees(self, found: F) -> bool:
        """Remember one that is not old. Whether it has replaced the one that was seen before: then
        connections that are open may lead to that."""
        raise NotImplementedError

    def ask_other(self, cursor: Any) -> F | None:
        """Like `ask`, of a server that may be a standby."""
        raise NotImplementedError

    def hears(self, found: F) -> None:
        """Remember what another server says, which is not in use."""

    def is_settled(self) -> bool:
        """Whether the one that was seen last can be known from older ones; else it is asked
        again."""
        return True

    def words(self, found: F) -> str | None:
        """For people, of one that is not old; None = there is nothing to say."""
        raise NotImplementedError

    def words_of_old(self, found: F) -> str:
        """Why it is."""
        raise NotImplementedError


class Succession(Generic[F]):
    """Of one engine; read by all threads that use it.

    turn: changes when connections that are open may lead to another server than new ones do: who
    holds one closes it.
    """

    def __init__(self, past: Past[F]) -> None:
        self.turn = 0
        self._past = past
        self._refuses = False
        self._lock = ProcessLock()
        self._asking = ProcessLock()
        self._asked_at = -inf  # the other servers

    def check(self, conn: sa.Connection) -> int:
        """Of `conn`, which was just taken from its pool and has no transaction. If its server is an
        old primary, close it and raise DatabaseUnavailable. Returns the turn for which it is good,
        which may be over by now."""
        turn = self.turn
        if not self._past.tells or conn.info.get(_SEEN) == turn:
            return turn
        turn = self._compare(conn, new=True)
        if not shares_sessions(conn):
            conn.info[_SEEN] = turn
        return turn

    def is_fit(self, conn: sa.Connection) -> bool:
        """Whether `refuse_unfit` has nothing to ask."""
        return conn.info.get(_FIT) == (self, self.turn)

    def refuse_unfit(self, conn: sa.Connection) -> None:
        """Of `conn` from the pool of an AsyncEngine, once in each turn: close it and raise
        DatabaseUnavailable if its server is a standby or an old primary. The other servers are not
        asked: the loop would wait."""
        refuse_standby(conn)
        conn.info[_FIT] = self, self._compare(conn)

    def check_again(self, conn: sa.Connection) -> None:
        """As `check`, of a connection in use, without a transaction, where that may say more than
        it did: behind a pooler, where the server may be another than before, and nothing shows it;
        and while a new primary has written nothing. Elsewhere nothing is asked."""
        if self._past.tells and (shares_sessions(conn) or not self._past.is_settled()):
            self._compare(conn)

    def words(self, conn: sa.Connection) -> tuple[bool, str] | None:
        """For people: whether the server of `conn`, which has no transaction, is an old primary,
        and why; None = nothing is known of it."""
        past, found = self._past, self._ask(conn.connection.driver_connection)
        if found is None:
            return None
        self._ask_others(conn)
        with self._lock:
            if past.is_old(found):
                return True, past.words_of_old(found)
            text = past.words(found)
            return None if text is None else (False, text)

    def _ask_others(self, conn: sa.Connection) -> None:
        """A thread that comes meanwhile waits for what they say."""
        with self._asking:
            if time.monotonic() - self._asked_at < ASKED_SECONDS:
                return
            for connect in of(conn).other_servers(conn):
                with suppress(Exception), closing(connect()) as raw:  # it may be away
                    found = self._ask(raw, other=True)
                    if found is not None:
                        with self._lock:
                            self._past.hears(found)
            self._asked_at = time.monotonic()

    def _compare(self, conn: sa.Connection, *, new: bool = False) -> int:
        turn, past = self.turn, self._past
        found = self._ask(_askable(conn))
        if found is None:
            return turn
        if new:
            self._ask_others(conn)
        with self._lock:
            if not past.is_old(found):
                self.turn += past.sees(found)
                self._refuses = False
                return self.turn
            text = past.words_of_old(found)
            told, self._refuses = self._refuses, True
            # Behind a pooler all others may lead there, too.
            self.turn += not told and shares_sessions(conn)
        raise self._refused(conn, text, told)

    @staticmethod
    def _refused(conn: sa.Connection, text: str, told: bool) -> DatabaseUnavailable:
        where = masked(conn.engine.url)
        _drop(conn)
        text = f"{text}: it is an old primary, which was replaced"
        if not told:
            _log.error(
                "cannot use the database %s: %s. Nothing is handled until connections lead to the "
                "newer one again; to continue with the old one, restart with a url that names no "
                "other host, see docs/operate/failover.md",
                where,
                text,
                extra={"event": Said.PRIMARY_OLD},
            )
        return DatabaseUnavailable(f"cannot use the database {where}: {text}")

    def _ask(self, raw: Any, *, other: bool = False) -> F | None:
        """None = unknown."""
        past = self._past
        if not past.tells:
            return None
        try:
            try:
                with raw.cursor() as cursor:
                    return past.ask_other(cursor) if other else past.ask(cursor)
            finally:
                raw.rollback()  # fails where the connection is broken: the next statement shows it
        except Exception as error:
            if not other and past.is_untold(error):
                past.tells = False
            return None


_UNTOLD: Succession[Any] = Succession(Past())
_known: weakref.WeakKeyDictionary[sa.Dialect, Succession[Any]] = weakref.WeakKeyDictionary()
_making = ProcessLock()


def succession_of(engine: sa.Engine) -> Succession[Any]:
    """The one of this engine, and of those that share its connections."""
    past = of(engine).new_past()
    if past is None:
        return _UNTOLD
    with _making:
        return _known.setdefault(engine.dialect, Succession(past))


class DatabaseFile:
    """The present file of a database. path: absolute; "" if there is none to watch."""

    def __init__(self, engine: sa.Engine) -> None:
        self.path = of(engine).file_path(engine.url)
        self._was = self._is()

    def is_another(self) -> bool:
        """Whether it was deleted or replaced since: open connections still use the old file."""
        return self._was is not None and self._is() != self._was

    def _is(self) -> tuple[int, int] | None:
        if not self.path:
            return None
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino
