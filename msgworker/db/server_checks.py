"""Checks of `doctor` on each database: settings of the server, users, plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from msgworker.db.database import Trouble
from msgworker.db.errors import is_overtime, trouble


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """A setting of the server that a promise needs. good: the right values, in lower case. stops:
    with another value every write fails, although tables can be made."""

    query: str
    name: str
    good: tuple[str, ...]
    otherwise: str
    mend: str = ""
    needed: bool = False
    stops: bool = False


_READ_ONLY = "the database refuses writes; is it a standby?"
_TORN = "a page that is half written when the machine crashes cannot be repaired"
_LAST_MOMENTS = "transactions committed just before a crash of the server can be lost"
_INNODB = (
    ServerSetting(
        "SELECT @@innodb_flush_log_at_trx_commit",
        "innodb_flush_log_at_trx_commit",
        ("1",),
        _LAST_MOMENTS,
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
    ),
    ServerSetting("SELECT @@innodb_doublewrite", "innodb_doublewrite", ("1", "on"), _TORN),
    ServerSetting(
        "SELECT CASE WHEN @@log_bin = 0 OR @@sql_log_bin = 0 THEN 'off' ELSE @@binlog_format END",
        "binlog_format",
        ("off", "row", "mixed"),
        "the server refuses every write at the isolation level READ COMMITTED (error 1665), so "
        "that no message can be sent or claimed",
        "SET GLOBAL binlog_format = ROW",
        needed=True,
        stops=True,
    ),
    ServerSetting("SELECT @@global.read_only", "read_only", ("0", "off"), _READ_ONLY),
    ServerSetting(
        "SELECT CASE WHEN @@sql_mode LIKE '%STRICT%' THEN 'strict' ELSE 'not strict' END",
        "sql_mode",
        ("strict",),
        "values that do not fit are truncated instead of refused",
        "SET GLOBAL sql_mode = CONCAT(@@global.sql_mode, ',STRICT_TRANS_TABLES')",
    ),
)
SERVER_SETTINGS: dict[str, tuple[ServerSetting, ...]] = {
    "postgresql": (
        ServerSetting("SHOW fsync", "fsync", ("on",), _TORN, "ALTER SYSTEM SET fsync = on"),
        ServerSetting(
            "SHOW full_page_writes",
            "full_page_writes",
            ("on",),
            _TORN,
            "ALTER SYSTEM SET full_page_writes = on",
        ),
        ServerSetting(
            "SHOW synchronous_commit",
            "synchronous_commit",
            ("on", "local", "remote_write", "remote_apply"),
            _LAST_MOMENTS,
            "ALTER SYSTEM SET synchronous_commit = on",
        ),
        ServerSetting(
            "SELECT pg_is_in_recovery()::text", "in recovery", ("false",), _READ_ONLY, needed=True
        ),
        ServerSetting(
            "SHOW default_transaction_read_only",
            "default_transaction_read_only",
            ("off",),
            _READ_ONLY,
            "ALTER SYSTEM SET default_transaction_read_only = off",
            needed=True,
        ),
    ),
    "mariadb": _INNODB,
    "mysql": _INNODB,
    "sqlite": (
        ServerSetting(
            "PRAGMA journal_mode",
            "journal_mode",
            ("wal",),
            "readers and the writer wait for each other",
            "PRAGMA journal_mode=WAL",
        ),
    ),
    "oracle": (),
}


@dataclass(frozen=True, slots=True)
class SeveralWriters:
    """Several servers that all take writes. query: how many there are (0 = it does not say), the
    step between ids, and whether a transaction sees all that was committed before it on any; else
    `mend` makes it so."""

    words: str
    query: str
    setting: str
    mend: str


SEVERAL_WRITERS = {
    "mariadb": SeveralWriters(
        "a Galera cluster of {} nodes",
        "SELECT (SELECT variable_value FROM information_schema.global_status"
        " WHERE variable_name = 'WSREP_CLUSTER_SIZE'),"
        " @@auto_increment_increment, @@wsrep_sync_wait & 4",
        "wsrep_sync_wait",
        "SET GLOBAL wsrep_sync_wait = 4",
    ),
    "mysql": SeveralWriters(
        "Group Replication with several primaries",
        "SELECT 0, @@auto_increment_increment, @@group_replication_consistency"
        " NOT IN ('EVENTUAL', 'BEFORE_ON_PRIMARY_FAILOVER')",
        "group_replication_consistency",
        "SET GLOBAL group_replication_consistency = 'BEFORE'",
    ),
}
SINGLE_PRIMARY = {"mysql": "SHOW GLOBAL VARIABLES LIKE 'group_replication_%'"}
"""The settings of a group of servers, one of which takes writes."""
OLD_SNAPSHOT_SECONDS = 600
"""What ends since an older one was taken is kept long enough to slow claims down."""
_INNODB_SNAPSHOT = (
    "concat('session ', trx_mysql_thread_id, coalesce(concat(' of ', p.user), ''), ', ',"
    " lower(trx_state)), timestampdiff(second, trx_started, now()),"
    " if(trx_mysql_thread_id = 0, 'XA RECOVER names it', concat('KILL ', trx_mysql_thread_id))"
    " FROM information_schema.innodb_trx"
    " LEFT JOIN information_schema.processlist p ON p.id = trx_mysql_thread_id"
    " WHERE trx_mysql_thread_id <> connection_id()"
    f" AND timestampdiff(second, trx_started, now()) > {OLD_SNAPSHOT_SECONDS}"
    " ORDER BY trx_started LIMIT 1"
)
OLDEST_SNAPSHOT = {
    "postgresql": (
        "SELECT who, seconds, ends FROM ("
        "SELECT 'session ' || pid || coalesce(' of ' || usename, '')"
        " || coalesce(', ' || nullif(application_name, ''), '') || coalesce(', ' || state, '')"
        " AS who, extract(epoch FROM now() - coalesce(xact_start, backend_start)) AS seconds,"
        " 'SELECT pg_terminate_backend(' || pid || ')' AS ends, age(backend_xmin) AS age"
        " FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend' AND datname = current_database()"
        " UNION ALL SELECT 'prepared transaction ' || gid, extract(epoch FROM now() - prepared),"
        " 'ROLLBACK PREPARED ' || quote_literal(gid), age(transaction)"
        " FROM pg_prepared_xacts WHERE database = current_database()"
        " UNION ALL SELECT 'replication slot ' || slot_name, NULL,"
        " 'SELECT pg_drop_replication_slot(' || quote_literal(slot_name) || ')', age(xmin)"
        " FROM pg_replication_slots WHERE xmin IS NOT NULL AND NOT active) AS held"
        f" WHERE seconds IS NULL OR seconds > {OLD_SNAPSHOT_SECONDS} ORDER BY age DESC LIMIT 1"
    ),
    # `trx_started` is in the zone of the server's machine.
    "mariadb": f"SET STATEMENT time_zone = 'SYSTEM' FOR SELECT {_INNODB_SNAPSHOT}",
    "mysql": f"SELECT /*+ SET_VAR(time_zone = 'SYSTEM') */ {_INNODB_SNAPSHOT}",
}
"""Who holds the oldest one, for how many seconds (None = it does not say), and what ends it; no row
= nobody for long, as far as this login may see."""


def refuses_all_writes(conn: sa.Connection, name: str) -> str:
    """Why the server would refuse every write, whatever the table; "" if nothing says so."""
    for setting in SERVER_SETTINGS[name]:
        if not setting.stops:
            continue
        try:
            value = str(conn.scalar(sa.text(setting.query)))
        except DBAPIError as error:
            if trouble(error) is Trouble.LOST or is_overtime(error):
                raise
            continue
        if value.lower() not in setting.good:
            return f"{setting.name} is {value}: {setting.otherwise}. To fix it: {setting.mend}"
    return ""


ANALYZE = {
    "postgresql": "ANALYZE {}",
    "sqlite": "ANALYZE {}",
    "mysql": "ANALYZE TABLE {}",
    "mariadb": "ANALYZE TABLE {}",
}
"""Fresh statistics for the planner."""

_MYSQL_USER = (
    "SELECT CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@',"
    " QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))"
)
CURRENT_USER = {
    "postgresql": "SELECT quote_ident(current_user)",
    "mysql": _MYSQL_USER,
    "mariadb": _MYSQL_USER,
    "oracle": "SELECT user FROM dual",
}
"""The current login in the form that GRANT needs; SQLite has no users."""

_EXPLAIN = {
    "postgresql": "EXPLAIN ",
    "mysql": "EXPLAIN ",
    "mariadb": "EXPLAIN ",
    "sqlite": "EXPLAIN QUERY PLAN ",
}


class _Explained(sa.Executable, sa.ClauseElement):
    inherit_cache = False

    def __init__(self, query: Any, prefix: str) -> None:
        self.query = query
        self.prefix = prefix


@compiles(_Explained)
def _explained(element: _Explained, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{element.prefix}{compiler.process(element.query, **kw)}"


def plan_of(conn: sa.Connection, name: str, query: Any, params: dict[str, Any]) -> list[str] | None:
    """The database's plan of a query, in lines; None if a plan needs more than reading."""
    if name not in _EXPLAIN:
        return None
    found = conn.execute(_Explained(query, _EXPLAIN[name]), params).all()
    if name == "sqlite":
        return [str(row[-1]) for row in found]
    return ["  ".join("-" if v is None else str(v) for v in row) for row in found]
