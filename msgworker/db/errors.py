"""The meaning of a driver's exception, by the database's own codes."""

from __future__ import annotations

import enum
import re

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    PendingRollbackError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from msgworker.db.exceptions import code_of
from msgworker.db.poolers import is_of_a_pooler
from msgworker.errors import DatabaseUnavailable
from msgworker.payload import shown


class Trouble(enum.Enum):
    """The kinds of database exceptions."""

    RACE = "race"  # the guard index: another instance was first
    AGAIN = "again"  # rolled back by the database; send again, no try counted
    LOST = "lost"  # the connection, the server or our memory; what was being committed is unknown
    REFUSED = "refused"  # missing table or right, read-only, wrong password: an operator must act
    OTHER = "other"


_POSTGRESQL = {
    "23505": Trouble.RACE,
    "40001": Trouble.AGAIN,
    "40P01": Trouble.AGAIN,
    "55P03": Trouble.AGAIN,
    "57014": Trouble.AGAIN,
    "57P01": Trouble.LOST,
    "57P02": Trouble.LOST,
    "57P03": Trouble.LOST,
    "57P05": Trouble.LOST,
    "25006": Trouble.REFUSED,
    "28000": Trouble.REFUSED,
    "28P01": Trouble.REFUSED,
    "3D000": Trouble.REFUSED,
    "42501": Trouble.REFUSED,
    "42703": Trouble.REFUSED,
    "42804": Trouble.REFUSED,
    "42883": Trouble.REFUSED,
    "42P01": Trouble.REFUSED,
}
_POSTGRESQL_CLASSES = {  # the first two characters of a code that is not listed above
    "08": Trouble.LOST,
    "53": Trouble.LOST,  # no connection, memory or disk space left
    "58": Trouble.LOST,  # trouble of the operating system
}
_MYSQL = {
    0: Trouble.LOST,  # PyMySQL: the connection is already closed
    1062: Trouble.RACE,
    1205: Trouble.AGAIN,
    1213: Trouble.AGAIN,  # on Galera at COMMIT, too: another node has changed the same row
    1020: Trouble.AGAIN,
    1317: Trouble.AGAIN,  # Galera ends a statement that is in the way of another node's change
    1412: Trouble.AGAIN,  # the table was altered since the transaction began
    3101: Trouble.AGAIN,  # Group Replication: what 1213 is on Galera
    1047: Trouble.LOST,  # Galera: the node is not one of the majority, or not ready yet
    1180: Trouble.LOST,  # Galera: the node was cut off at COMMIT
    3100: Trouble.LOST,  # Group Replication: the same
    1021: Trouble.LOST,  # the disk is full
    1037: Trouble.LOST,
    1040: Trouble.LOST,
    1041: Trouble.LOST,
    1114: Trouble.LOST,  # the table is full: the disk is
    1203: Trouble.LOST,
    1226: Trouble.LOST,  # the user has as many connections as it may
    1053: Trouble.LOST,
    1927: Trouble.LOST,
    2002: Trouble.LOST,
    2003: Trouble.LOST,
    2006: Trouble.LOST,
    2013: Trouble.LOST,
    2014: Trouble.LOST,
    2027: Trouble.LOST,  # MariaDB Connector/Python: what a killed session last sent
    1044: Trouble.REFUSED,
    1045: Trouble.REFUSED,
    1049: Trouble.REFUSED,
    1054: Trouble.REFUSED,
    1142: Trouble.REFUSED,
    1143: Trouble.REFUSED,
    1146: Trouble.REFUSED,
    1290: Trouble.REFUSED,
    1665: Trouble.REFUSED,  # a binary log of statements at READ COMMITTED
    1792: Trouble.REFUSED,
}
_ORACLE = (
    dict.fromkeys((1,), Trouble.RACE)
    | dict.fromkeys((54, 60, 1555, 4068, 8006, 8177, 12860, 30006, 1013), Trouble.AGAIN)
    | dict.fromkeys(
        (18, 20, 28, 600, 603, 1012, 1033, 1034, 1041, 1089, 1090, 1092, 2391, 2396, 2399),
        Trouble.LOST,
    )
    | dict.fromkeys(
        (
            *(3113, 3114, 3135, 12153, 12170, 12505, 12514, 12516, 12518, 12519, 12520, 12526),
            *(12528, 12535, 12537, 12541, 12543, 12545, 12547, 12571),
            *(25401, 25402, 25403, 25405, 25408, 25409, 41412),  # TAF, Application Continuity
        ),
        Trouble.LOST,
    )
    | dict.fromkeys((904, 942, 1017, 1031, 16000, 28000, 28001), Trouble.REFUSED)
)
_ORACLE_DRIVER = {
    "DPY-1001": Trouble.LOST,
    "DPY-4011": Trouble.LOST,
    "DPY-4033": Trouble.LOST,
    "DPY-6000": Trouble.LOST,
    "DPY-6001": Trouble.LOST,
    "DPY-6003": Trouble.LOST,
    "DPY-6005": Trouble.LOST,
    "DPI-1010": Trouble.LOST,
    "DPI-1080": Trouble.LOST,
    "DPY-4024": Trouble.AGAIN,
    "DPI-1067": Trouble.AGAIN,
    "DPY-3001": Trouble.REFUSED,  # what only the thick mode has
    "DPY-3010": Trouble.REFUSED,  # a server that is too old for the thin mode
    "DPY-4027": Trouble.REFUSED,  # no tnsnames.ora
    "DPI-1047": Trouble.REFUSED,  # no client libraries
}
_SQLITE = (
    ("unique constraint", Trouble.RACE),
    ("is locked", Trouble.AGAIN),
    ("unable to open", Trouble.LOST),
    ("disk i/o", Trouble.LOST),
    ("database or disk is full", Trouble.LOST),
    ("readonly", Trouble.REFUSED),
    ("not a database", Trouble.REFUSED),
    ("no such table", Trouble.REFUSED),
    ("no such column", Trouble.REFUSED),
)


NO_MEMORY = MemoryError, SystemError
"""What the interpreter raises without memory, which comes back when a handler gives back what it
took."""
_TOO_LARGE = re.compile(r"[Gg]ot error (5|90)\b")
"""At COMMIT on Galera: the transaction changes more than wsrep_max_ws_size; it always will."""
_NO_CONNECTION_LEFT = {"53300", 1040, 1203, 1226}
_NO_SESSION_LEFT = {18, 20, 2391, 12516, 12519, 12520}
"""The same of Oracle's."""
_DRIVER_MODULES = {
    *("psycopg", "psycopg2", "pymysql", "MySQLdb", "mariadb", "oracledb", "cx_Oracle", "sqlite3"),
}


def trouble(error: BaseException) -> Trouble:
    """The meaning of an exception, by the database's own code, never by its class."""
    if isinstance(error, PoolTimeout | DatabaseUnavailable) or lacks_memory(error):
        return Trouble.LOST
    if not isinstance(error, DBAPIError):
        # While a connection is being set up or reset, SQLAlchemy does not wrap the driver's errors.
        return _by_code(error) if is_of_a_driver(error) else Trouble.OTHER
    found = _by_code(error.orig)
    if error.connection_invalidated and refuses_writes(error.orig):
        return Trouble.LOST  # a standby, see failover.py
    if found is not Trouble.OTHER:
        return found
    return Trouble.LOST if error.connection_invalidated else Trouble.OTHER


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
    if trouble(error) is not Trouble.RACE:
        return False
    named = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    text = str(error.orig)  # the entry, which is anything, comes before the name
    if named is None and type(error.orig).__module__.startswith("sqlite3"):
        return True
    if named is None:
        found = re.search(r".*for key '([^']*)'", text, re.DOTALL) or re.search(r"\(([^)]*)", text)
        named = "" if found is None else found[1]
    return bool(named.rpartition(".")[2].lower() == index.lower())


def refuses_writes(error: BaseException | None) -> bool:
    """Whether it is the refusal of a standby of PostgreSQL, or of a transaction that is read-only
    for another reason."""
    return (getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)) == "25006"


def is_read_only(error: BaseException | None) -> bool:
    """Whether it is the refusal of a MariaDB or MySQL with read_only, as a replica has it. Other
    options that prevent a statement have the same number."""
    return code_of(error)[0] == 1290 and "read-only" in str(error).replace("_", "-")


def is_denied(error: DBAPIError) -> bool:
    """Whether the login lacks a right on a table or column. Oracle reports a table without any
    right as missing."""
    code, state = code_of(error.orig)
    oracle = re.match(r"ORA-0*(1031|41900)\b", str(error.orig))
    return state == "42501" or code in (1142, 1143) or bool(oracle)


def is_of_a_driver(error: BaseException | None) -> bool:
    """Whether it is a driver's own error."""
    return type(error).__module__.split(".")[0] in _DRIVER_MODULES


def no_connection_left(error: BaseException) -> bool:
    """Whether all connections are in use: of our pool, or of the server."""
    if isinstance(error, PoolTimeout):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    code, state = code_of(cause)
    oracle = re.search(r"ORA-0*(\d+)", str(cause))
    if type(cause).__module__.startswith("psycopg") and state is None:
        # For a refused session libpq gives only the server's text, in the server's language.
        return "FATAL" in str(cause)
    if oracle is not None and int(oracle[1]) in _NO_SESSION_LEFT:
        return True
    return code in _NO_CONNECTION_LEFT or state in _NO_CONNECTION_LEFT


def _by_code(error: BaseException | None) -> Trouble:
    code, state = code_of(error)
    if code == 1305 and "SAVEPOINT" in str(error):
        # A deadlock has rolled back the whole transaction, including our savepoint; this error
        # replaces the original one.
        return Trouble.AGAIN
    if is_read_only(error):
        return Trouble.LOST  # see failover.py
    if code == 1180 and _TOO_LARGE.search(str(error)):
        return Trouble.OTHER
    if code is not None:
        return _MYSQL.get(code, Trouble.OTHER)
    if is_of_a_pooler(error):
        return Trouble.AGAIN
    if state is not None:
        return _POSTGRESQL.get(state, _POSTGRESQL_CLASSES.get(state[:2], Trouble.OTHER))
    text = str(error)
    if type(error).__module__.startswith("sqlite3"):
        return next((kind for part, kind in _SQLITE if part in text.lower()), Trouble.OTHER)
    driver = re.match(r"(ORA|DPY|DPI)-0*(\d+)", text)
    if driver:
        inner = re.search(r"ORA-0*(\d+)", text)
        if inner and int(inner[1]) in _ORACLE:
            return _ORACLE[int(inner[1])]
        return _ORACLE_DRIVER.get(f"{driver[1]}-{driver[2]}", Trouble.OTHER)
    lost = (
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
    return Trouble.LOST if any(part in text.lower() for part in lost) else Trouble.OTHER


def follows(error: BaseException) -> bool:
    """Whether it only says that an earlier error has ended the transaction or the session."""
    state = code_of(getattr(error, "orig", None))[1]
    return isinstance(error, PendingRollbackError) or state == "25P02"


def shows_a_row(error: BaseException | None) -> bool:
    """Whether the text of an error contains the row that a CHECK or NOT NULL refuses, with its
    payload."""
    cause = getattr(error, "orig", None) or error
    return code_of(cause)[1] in ("23502", "23514")


def reason_of(error: BaseException) -> str:
    """The database's error text in one line, without parameters, and without the row that
    PostgreSQL includes if a CHECK or NOT NULL refuses it."""
    cause = getattr(error, "orig", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if shows_a_row(cause):
        del lines[1:]
    return shown(f"{type(cause).__name__}: {'; '.join(lines[:2])}", 500)
