"""MySQL and MariaDB: what they share, and the few points in which they differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Literal

import sqlalchemy as sa

from msgworker.db.database import Database, Trouble
from msgworker.db.errors import code_of, is_lost_by_its_text


class MySQL(Database):
    """MySQL 8 and later, by PyMySQL, mysqlclient or MariaDB Connector/Python."""

    name = "mysql"
    max_name = 64
    text_in_bytes = True
    texts_as_instants = True
    slow_sums = True
    key_collation: str | None = "utf8mb4_0900_bin"
    case_index = "column"
    # MySQL 8 allows a CASE as a key part: no column needed
    guard_case: Literal["column", "function"] | None = "function"
    storage_engines = True
    latest_by_lock = True
    ordered_update = True
    update_ignore = "IGNORE"
    rowcount_includes_ignored = True
    bare_unions = True
    index_hint = "FORCE INDEX ({})"

    tells_no_other_ids = True

    # --- Errors.

    def trouble(self, error: BaseException) -> Trouble:
        code = code_of(error)[0]
        if code is None:
            return Trouble.LOST if is_lost_by_its_text(error) else Trouble.OTHER
        if code == 1305 and "SAVEPOINT" in str(error):
            # A deadlock has rolled back the whole transaction, including our savepoint; this error
            # replaces the original one.
            return Trouble.AGAIN
        if self.refuses_writes(error):
            return Trouble.LOST  # a replica, see failover.py
        if code == 1180 and _TOO_LARGE.search(str(error)):
            return Trouble.OTHER
        return _TROUBLES.get(code, Trouble.OTHER)

    def no_connection_left(self, error: BaseException) -> bool:
        return code_of(error)[0] in (1040, 1203, 1226)

    def is_denied(self, error: BaseException) -> bool:
        return code_of(error)[0] in (1142, 1143)

    def violated_index(self, error: BaseException) -> str | None:
        # The entry, which is anything, comes before the name.
        found = re.search(r".*for key '([^']*)'", str(error), re.DOTALL)
        return "" if found is None else found[1]

    def refuses_writes(self, error: BaseException) -> bool:
        # Other options that prevent a statement have the same number.
        return code_of(error)[0] == 1290 and "read-only" in str(error).replace("_", "-")

    def ends_session(self, error: BaseException) -> bool:
        # A node of Galera without its cluster, which answers all the same: the next connection is
        # to another. MariaDB Connector/Python: what it has read is no answer.
        return code_of(error)[0] in (1047, 2027)

    def ends_transaction(self, error: BaseException) -> bool:
        return code_of(error)[0] in (1213, 1020)

    def is_overtime(self, error: BaseException) -> bool:
        return code_of(error)[0] in (1969, 3024)

    def is_statement_limit(self, error: BaseException) -> bool:
        return code_of(error)[0] in (1205, 1969, 3024)

    def is_session_limit(self, error: BaseException) -> bool:
        return code_of(error)[0] == 4031

    # --- Deadlines.

    session_limits = (
        "SHOW SESSION VARIABLES WHERE Variable_name IN "
        "('wait_timeout', 'idle_transaction_timeout', "
        "'idle_write_transaction_timeout', 'idle_readonly_transaction_timeout')",
        1,
    )

    @contextmanager
    def deadline(self, conn: sa.Connection, seconds: float) -> Iterator[None]:
        name, value = self._read_limit(seconds)
        conn.exec_driver_sql(f"SET @msgworker_kept = @@SESSION.{name}, SESSION {name} = {value}")
        try:
            yield
        finally:
            if not (conn.closed or conn.invalidated):
                conn.exec_driver_sql(f"SET SESSION {name} = @msgworker_kept")

    @contextmanager
    def before_transaction(self, conn: sa.Connection, seconds: float) -> Iterator[None]:
        raw: Any = conn.connection.driver_connection
        most = self._limits(seconds)
        kept = {name: f"@msgworker_{name}" for name in most}
        begin = "SET " + ", ".join(
            f"{kept[name]} = @@SESSION.{name}, SESSION {name} = {value}"
            for name, value in most.items()
        )
        end = "SET " + ", ".join(f"SESSION {name} = {was}" for name, was in kept.items())
        with closing(raw.cursor()) as cursor:
            cursor.execute(begin)
        try:
            yield
        finally:
            if not (conn.closed or conn.invalidated):
                with closing(raw.cursor()) as cursor:
                    cursor.execute(end)

    def _read_limit(self, seconds: float) -> tuple[str, str]:
        return "max_execution_time", str(max(1, round(seconds * 1000)))

    def _limits(self, seconds: float) -> dict[str, str]:
        # Its limit of statements is for reads.
        waits = ("innodb_lock_wait_timeout", "lock_wait_timeout")
        return dict.fromkeys(waits, str(max(1, round(seconds))))


class MariaDB(MySQL):
    """MariaDB 10.6 and later, also Galera."""

    name = "mariadb"
    key_collation = "utf8mb4_nopad_bin"
    guard_case = "column"
    share_locks = True
    settles_at_once = 2
    # After a crash of the server InnoDB may take an index on a virtual column as corrupted.
    stored_columns = True

    def returns_ids(self, version: tuple[Any, ...]) -> bool:
        return version >= (10, 5)

    def _read_limit(self, seconds: float) -> tuple[str, str]:
        return "max_statement_time", f"{max(1, round(seconds * 1000)) / 1000:.3f}"

    def _limits(self, seconds: float) -> dict[str, str]:
        return {"max_statement_time": f"{seconds:.3f}"}


_TROUBLES = {
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
_TOO_LARGE = re.compile(r"[Gg]ot error (5|90)\b")
"""At COMMIT on Galera: the transaction changes more than wsrep_max_ws_size; it always will."""
