"""What an exception of a driver means, by the database's codes; its text without secrets; how a
transaction is sent until its result is known; and which one is over before its COMMIT."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    PendingRollbackError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from msgworker.db.database import Trouble, is_of_a_driver, of_error
from msgworker.errors import DatabaseUnavailable
from msgworker.payload import shown, without_url_secrets

NO_MEMORY = MemoryError, SystemError
"""What the interpreter raises without memory, which comes back when a handler gives back what it
took."""


def trouble(error: BaseException) -> Trouble:
    """The meaning of an exception, by the database's own code, never by its class."""
    if isinstance(error, PoolTimeout | DatabaseUnavailable) or lacks_memory(error):
        return Trouble.LOST
    cause = cause_of(error)
    database = of_error(cause)
    found = Trouble.OTHER if database is None else database.trouble(cause)
    if not isinstance(error, DBAPIError):
        # While a connection is being set up or reset, SQLAlchemy does not wrap the driver's errors.
        return found
    if error.connection_invalidated and database is not None and database.refuses_writes(cause):
        return Trouble.LOST  # a standby, see servers.py
    if found is Trouble.REFUSED and database is not None:
        is_of_a_row = database.is_of_a_trigger(cause, error.statement or "")
        return Trouble.OTHER if is_of_a_row else found
    if found is not Trouble.OTHER:
        return found
    return Trouble.LOST if error.connection_invalidated else Trouble.OTHER


def cause_of(error: BaseException) -> BaseException:
    """The driver's own error."""
    return getattr(error, "orig", None) or error


def code_of(error: BaseException | None) -> tuple[int | None, str | None]:
    """Number and SQLSTATE, each None if the error has none. The number is that of MySQL and
    MariaDB, whose states are less precise; Oracle's is in the text.

    PyMySQL and mysqlclient have the number first in `args`, MariaDB Connector/Python as `errno`;
    psycopg 3 has the state as `sqlstate`, psycopg2 as `pgcode`.
    """
    first = error.args[0] if error is not None and error.args else None
    number = first if isinstance(first, int) else getattr(error, "errno", None)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return (number if isinstance(number, int) else None, state if isinstance(state, str) else None)


_LOST = (
    "connection failed",
    "connection refused",
    "connection timeout",
    "server closed",
    "is closed",
    "connection is",
    "consuming input failed",
    "sending query",
    "timeout expired",
    "connection to server",  # and these of psycopg2, where the text is all there is
    "connection already closed",
    "could not receive data",
    "could not send data",
    "ssl syscall error",
    "not connected",  # of MariaDB Connector/Python
)


def is_lost_by_its_text(error: BaseException) -> bool:
    """Whether an error without a code says that the connection is lost."""
    text = str(error).lower()
    return any(part in text for part in _LOST)


def lacks_memory(error: BaseException) -> bool:
    """Whether the interpreter had no memory: no row is at fault, and what was sent may have
    arrived. SQLAlchemy wraps what is raised before a statement is sent."""
    kind = type(error)  # its own `__class__` may raise
    if issubclass(kind, StatementError):
        return isinstance(error.orig, NO_MEMORY)  # type: ignore[attr-defined]
    return issubclass(kind, NO_MEMORY)


def is_of_the_session(error: BaseException) -> bool:
    """Whether an error of a statement may come from the state of its session, so that the statement
    would fail there again and not in a new one: a plan that the driver has prepared, a role, a
    path, a setting. All that is not known to be otherwise."""
    found = trouble(error)
    if found is Trouble.OTHER and not isinstance(error, IntegrityError | DataError):
        return isinstance(error, DBAPIError) or is_of_a_driver(error)
    return found in (Trouble.LOST, Trouble.REFUSED)


def violates(error: DBAPIError, index: str) -> bool:
    """Whether it is the refusal of the unique index of this name, and of no other. SQLite names
    the columns: there any refusal is taken for it."""
    database = of_error(error.orig)
    if database is None or trouble(error) is not Trouble.RACE:
        return False
    named = database.violated_index(cause_of(error))
    return named is None or named.rpartition(".")[2].lower() == index.lower()


def _is(error: BaseException, what: str) -> bool:
    """What the Database says of its driver's own error."""
    cause = cause_of(error)
    database = of_error(cause)
    return database is not None and database.says(what, cause)


def is_denied(error: DBAPIError) -> bool:
    """Whether the login lacks a right on a table or column."""
    return _is(error, "denied")


def no_connection_left(error: BaseException) -> bool:
    """Whether all connections are in use: of our pool, or of the server."""
    return isinstance(error, PoolTimeout) or _is(error, "no connection")


def is_overtime(error: BaseException) -> bool:
    """Whether a statement was ended because it took too long."""
    return _is(error, "overtime")


def raise_lost(error: DBAPIError) -> None:
    """Raise it again where the connection is lost, or the time of the statement is over: any other
    error of a question says that it cannot be answered."""
    if trouble(error) is Trouble.LOST or is_overtime(error):
        raise error


def is_time_limit(error: BaseException, *, of_session: bool = False) -> bool:
    """Whether a time limit of the server has ended a statement, a transaction or a session, and
    will strike again; of_session: not one of a statement."""
    cause = cause_of(error)
    database = of_error(cause)
    if database is None or not is_of_a_driver(cause):
        return False  # of the user's own nothing is asked, not even its text
    if database.says("session limit", cause):
        return True
    return not of_session and database.says("statement limit", cause)


def follows(error: BaseException) -> bool:
    """Whether it only says that an earlier error has ended the transaction or the session."""
    return isinstance(error, PendingRollbackError) or _is(error, "follows")


def shows_a_row(error: BaseException | None) -> bool:
    """Whether the text of an error contains the row that a CHECK or NOT NULL refuses, with its
    payload."""
    return error is not None and _is(error, "shows a row")


def reason_of(error: BaseException) -> str:
    """The database's error text in one line, without parameters, and without the row that some
    include if a CHECK or NOT NULL refuses it."""
    cause = cause_of(error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if shows_a_row(cause):
        del lines[1:]
    return shown(f"{type(cause).__name__}: {'; '.join(lines[:2])}", 500)


# --- URLs and texts without their secrets.

MASK = "***"
"""In the place of a password."""
HARMLESS = re.compile(
    r"application_name|cache|charset|check_same_thread|client_encoding|connect_timeout|events|"
    r"gssencmode|host|hostaddr|immutable|isolation_level|keepalives|keepalives_count|"
    r"keepalives_idle|keepalives_interval|mode|nolock|pooler|port|prepare_threshold|read_timeout|"
    r"server_side_cursors|"
    r"service_name|ssl_ca|ssl_check_hostname|ssl_verify_cert|ssl_verify_identity|sslmode|"
    r"sslrootcert|target_session_attrs|tcp_connect_timeout|tcp_user_timeout|timeout|unix_socket|"
    r"uri|use_unicode|write_timeout"
)
"""Keys of a URL's query whose values are shown. Others may hold secrets."""
_SECRET_KEY = re.compile(r"passw|secret|token|pwd|credential|sslkey", re.I)
_SHORT = 5
"""The most characters of a secret that may also be an ordinary word."""


def masked(url: URL) -> str:
    """The URL as text without its password, and with only harmless parts of its query."""
    query = {key: value if HARMLESS.fullmatch(key) else MASK for key, value in url.query.items()}
    shown = url.set(query=query).render_as_string(hide_password=True)
    return shown.replace("%2A%2A%2A", MASK)


def secrets_of(url: str | URL) -> set[str]:
    """The secrets of a URL, plain and percent-encoded, to remove them from texts. A short value or
    a number is a secret only under a key that says so."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return set()
    values = [str(parsed.password)] if parsed.password else []
    for key, value in parsed.query.items():
        given = [value] if isinstance(value, str) else list(value)
        values += [text for text in given if _is_secret(key, text)]
    texts = {text for value in values for text in (value, quote(value, safe=""), quote_plus(value))}
    return {text for text in texts if len(text) > 2 and text != "msgworker"}


def _is_secret(key: str, value: str) -> bool:
    if _SECRET_KEY.search(key):
        return True
    return not HARMLESS.fullmatch(key) and len(value) > _SHORT and not value.isdecimal()


def without(text: str, secrets: Iterable[str]) -> str:
    """The text with MASK for each secret, a short one only as a separate word, and for what looks
    like a password or key in any URL."""
    text = without_url_secrets(text)
    for secret in sorted(secrets, key=len, reverse=True):
        word = re.escape(secret) if len(secret) > _SHORT else rf"(?<!\w){re.escape(secret)}(?!\w)"
        text = re.sub(word, MASK, text)
    return text


# --- The pauses of an outage.

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0


def outage_pause(attempt: int, longest: float = LONGEST_PAUSE_SECONDS + 0.5) -> float:
    """The seconds to wait after the attempt-th failure in a row (from 1 on): twice as long each
    time, 5 s at most, and up to half a second more; never more than `longest`."""
    doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(attempt - 1, 20)
    return min(longest, min(doubled, LONGEST_PAUSE_SECONDS) + random.uniform(0, 0.5))


# --- Send a transaction until its result is known.
#
# A connection that is lost at COMMIT leaves the result unknown: the transaction may be committed.
# Sending it again could do it twice, and continuing could lose it; so the database is read first.
#
#     send ──answered──► known                     look ──found──► known
#       │ rolled back: pause, send                   │ not committed: send
#       │ unknown: pause, look                       │ no answer: pause, look

T = TypeVar("T")


class Fate(Enum):
    """What an error means for the transaction. RAISE: retrying is useless. AGAIN: the database
    rolled it back. UNKNOWN: it may be committed."""

    RAISE = auto()
    AGAIN = auto()
    UNKNOWN = auto()


class Pauses(Protocol):
    """The pauses after failures; for example an `Outage`."""

    def failed(self, error: BaseException) -> float:
        """Record a failure; the seconds to wait."""

    def over(self) -> None:
        """Record a success."""


class Failures:
    """The pauses of an outage that is not logged, each of `longest` seconds at most; how many there
    were, and the last one."""

    def __init__(self, longest: float = LONGEST_PAUSE_SECONDS) -> None:
        self._longest = longest
        self.count = 0
        self.last: BaseException | None = None

    def failed(self, error: BaseException) -> float:
        self.count += 1
        self.last = error
        return outage_pause(self.count, self._longest)

    def over(self) -> None:
        self.count = 0


def by_trouble(error: BaseException, looking: bool) -> Fate:
    """The default judgement: a deadlock was rolled back, after a lost connection it is unknown."""
    kind = trouble(error)
    if kind is Trouble.LOST:
        return Fate.UNKNOWN
    return Fate.AGAIN if kind is Trouble.AGAIN else Fate.RAISE


def repeatable(error: BaseException, looking: bool) -> Fate:
    """The judgement for repeatable work, such as a read: no failure leaves a doubt."""
    fate = by_trouble(error, looking)
    return Fate.AGAIN if fate is Fate.UNKNOWN else fate


def nothing() -> None:
    """The `look` of repeatable work."""


def until_known(
    send: Callable[[], T],
    look: Callable[[], T | None],
    may_continue: Callable[[], bool],
    outage: Pauses,
    *,
    judge: Callable[[BaseException, bool], Fate] = by_trouble,
    before_again: Callable[[], T | None] = lambda: None,
) -> T | None:
    """Returns the result of `send` or `look`, or None if it may not continue: then it is unknown.

    look: reads the result of the transaction; None = it was not committed. may_continue: called
    after every failure, before the pause. judge: gets an error, and whether `look` raised it; once
    in doubt, only a result of `look` ends the doubt. before_again: called before it is sent again;
    its result, if not None, ends the loop.

    Raises errors that `judge` maps to RAISE.
    """
    in_doubt = False
    while True:
        try:
            known = look() if in_doubt else send()
        except Exception as error:
            fate = judge(error, in_doubt)
            if fate is Fate.RAISE:
                raise
            pause = outage.failed(error)
            in_doubt = in_doubt or fate is Fate.UNKNOWN
            if not may_continue():
                return None
            time.sleep(pause)
            if in_doubt:
                continue
        else:
            if known is not None:
                outage.over()
                return known
            in_doubt = False
        end = before_again()
        if end is not None:
            return end


# --- A transaction that the database has ended although SQLAlchemy does not know it.

_ROLLED_BACK = "msgworker_rolled_back"
"""In the attributes of a connection: the error with which the database has ended its transaction
though it does not show it, and that transaction."""


def note_rolled_back(context: Any) -> None:
    """Note in a listener of "handle_error" that the transaction is over."""
    # Errors that are not the driver's, such as MemoryError, are not wrapped.
    error = context.sqlalchemy_exception or context.original_exception
    conn = context.connection
    vars(conn)[_ROLLED_BACK] = (error, conn.get_transaction())  # `info` is lost with the connection


def take_rolled_back(conn: Connection) -> BaseException | None:
    """What was noted last, and clear it; also of an earlier transaction."""
    found: BaseException | None = vars(conn).pop(_ROLLED_BACK, (None,))[0]
    return found


def refuse_rest(conn: Connection) -> None:
    """Called before a COMMIT: raise the error with which the database has ended the transaction,
    although a savepoint has hidden it or code of ours has gone on. Only the statements since then
    would be committed. In autocommit mode each of them is already."""
    error, transaction = vars(conn).get(_ROLLED_BACK, (None, None))
    if error is None or transaction is not conn.get_transaction():
        return
    if conn.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        with suppress(Exception):  # it is lost
            conn.connection.rollback()  # SQLAlchemy takes it for ended, and gives it back so
        raise error
