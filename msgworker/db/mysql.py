"""MySQL and MariaDB: what they share, and the few points in which they differ.

One file, because all that is special about a database is looked for in one place.
"""

from __future__ import annotations

import codecs
import re
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import URL
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.types import TypeEngine

from msgworker.db import database
from msgworker.db.catalogue import asked
from msgworker.db.connections import connecting, note_number, odd_texts
from msgworker.db.drivers import CONNECT_SECONDS, PROGRAM, READ_SECONDS, WRITE_SECONDS
from msgworker.db.errors import code_of, is_lost_by_its_text
from msgworker.db.mysql_servers import OTHERS, Hosts, Reigns, named_hosts
from msgworker.db.servers import notice_standby
from msgworker.db.types import KeyText
from msgworker.errors import ConfigError

_WAITS: dict[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": READ_SECONDS,
    "write_timeout": WRITE_SECONDS,
}


_GAPS = (
    "each node gives out ids of its own: one that is taken here may be lower than one that was "
    "committed on another node a moment ago, and is then handled first; let all producers of an "
    "object write to one node, or set {}, or let one node take all writes, with "
    "auto_increment_increment = 1 (docs/operate/galera.md)"
)
# `trx_started` is in the zone of the server's machine.
_SNAPSHOT = (
    "concat('session ', trx_mysql_thread_id, coalesce(concat(' of ', p.user), ''), ', ',"
    " lower(trx_state)), timestampdiff(second, trx_started, now()),"
    " if(trx_mysql_thread_id = 0, 'XA RECOVER names it', concat('KILL ', trx_mysql_thread_id))"
    " FROM information_schema.innodb_trx"
    " LEFT JOIN {}.processlist p ON p.id = trx_mysql_thread_id"
    " WHERE trx_mysql_thread_id <> connection_id()"
    f" AND timestampdiff(second, trx_started, now()) > {database.OLD_SNAPSHOT_SECONDS}"
    " ORDER BY trx_started LIMIT 1"
)
"""By the schema in which the sessions are."""
_OF_TABLE = " WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
_RULES = (
    f"SELECT 'charset', column_name, character_set_name FROM information_schema.columns{_OF_TABLE}"
    " AND character_set_name NOT IN ('utf8mb4', 'utf16', 'utf32')",
    "SELECT 'trigger', trigger_name, concat(action_timing, ' ', event_manipulation)"
    " FROM information_schema.triggers WHERE event_object_schema = coalesce(:schema, database())"
    " AND event_object_table = :name",
    "SELECT 'compare', column_name, coalesce(collation_name, '')"
    f" FROM information_schema.columns{_OF_TABLE} AND column_name = :object",
    "SELECT 'layout', table_name, CASE table_type WHEN 'SYSTEM VERSIONED' THEN 'versions' ELSE"
    f" 'partitions' END FROM information_schema.tables{_OF_TABLE}"
    " AND (table_type = 'SYSTEM VERSIONED' OR create_options LIKE '%partitioned%')",
    f"SELECT 'changes', column_name, extra FROM information_schema.columns{_OF_TABLE}"
    " AND column_name = :object AND extra LIKE '%on update%'",
    "SELECT 'rest', column_name, concat(if(extra LIKE '%INVISIBLE%', ' INVISIBLE', ''),"
    " if(column_comment = '', '', concat(' COMMENT ', quote(column_comment))))"
    f" FROM information_schema.columns{_OF_TABLE}"
    " AND (extra LIKE '%INVISIBLE%' OR column_comment <> '')",
)


def _characters(kind: sa.String) -> str:
    """What is said of the characters of a text."""
    charset, collation = (getattr(kind, name, None) for name in ("charset", "collation"))
    said = f" CHARACTER SET {charset}" if charset else ""
    return f"{said} COLLATE {collation}" if collation else said


class MySQL(database.Database):
    """MySQL 8 and later, by PyMySQL, mysqlclient or MariaDB Connector/Python."""

    name = "mysql"
    max_name = 64
    text_in_bytes = True
    texts_as_instants = True
    slow_sums = True
    key_collation: str | None = "utf8mb4_0900_bin"
    bytewise = f"(CONVERT({{0}} USING utf8mb4) COLLATE {key_collation})"
    case_index = "column"
    # MySQL 8 allows a CASE as a key part: no column needed
    guard_case: Literal["column", "function"] | None = "function"
    latest_by_lock = True
    ordered_update = True
    key_hint = "FORCE INDEX (PRIMARY)"
    update_ignore = "IGNORE"
    rowcount_includes_ignored = True
    bare_unions = True
    index_hint = "FORCE INDEX ({})"

    tells_no_other_ids = True

    def check_url(self, url: URL) -> None:
        if "ssl" in url.query:
            raise ConfigError(
                "ssl is no option of the url of a MySQL: TLS is used where the server offers it; "
                "ssl_ca=/path/of/ca.pem checks its certificate, ssl_disabled=true goes without"
            )

    # --- Errors.

    codes = {  # noqa: RUF012
        "no connection": (1040, 1203, 1226),
        "denied": (1142, 1143),
        # A node of Galera without its cluster, which answers all the same: the next connection is
        # to another. MariaDB Connector/Python: what it has read is no answer.
        "session ends": (1047, 2027),
        "transaction ends": (1213, 1020, 1206),
        "overtime": (1969, 3024),
        "statement limit": (1205, 1969, 3024, 3572),
        "session limit": (4031,),
    }

    def code(self, error: BaseException) -> int | None:
        return code_of(error)[0]

    def trouble(self, error: BaseException) -> database.Trouble:
        code = self.code(error)
        if code is None:
            return database.Trouble.LOST if is_lost_by_its_text(error) else database.Trouble.OTHER
        if code == 1305 and "SAVEPOINT" in str(error):
            # A deadlock has rolled back the whole transaction, including our savepoint; this error
            # replaces the original one.
            return database.Trouble.AGAIN
        if self.refuses_writes(error):
            return database.Trouble.LOST  # a replica, see servers.py
        if code == 1180 and _TOO_LARGE.search(str(error)):
            return database.Trouble.OTHER
        if code in (1030, 1026, 3) and _NO_ROOM.search(str(error)):
            return database.Trouble.LOST
        return _TROUBLES.get(code, database.Trouble.OTHER)

    lacking = re.compile(r"(?:\b[Tt]able|Unknown column) ([\w$.`']+)")

    def violated_index(self, error: BaseException) -> str | None:
        # The entry, which is anything, comes before the name.
        found = re.search(r".*for key '([^']*)'", str(error), re.DOTALL)
        return "" if found is None else found[1]

    def refuses_writes(self, error: BaseException) -> bool:
        # Other options that prevent a statement have the same number.
        return self.code(error) == 1290 and "read-only" in str(error).replace("_", "-")

    # --- Deadlines.

    session_limits = (
        "SHOW SESSION VARIABLES WHERE Variable_name IN "
        "('wait_timeout', 'idle_transaction_timeout', "
        "'idle_write_transaction_timeout', 'idle_readonly_transaction_timeout')",
        1,
    )

    def deadline(self, conn: sa.Connection, seconds: float) -> AbstractContextManager[None]:
        return _set_within(conn, "read", self._read_limit(seconds), conn.exec_driver_sql)

    def before_transaction(
        self, conn: sa.Connection, seconds: float
    ) -> AbstractContextManager[None]:
        raw: Any = conn.connection.driver_connection

        def run(statement: str) -> None:  # which begins no transaction of SQLAlchemy's
            with closing(raw.cursor()) as cursor:
                cursor.execute(statement)

        return _set_within(conn, "begun", self._limits(seconds), run)

    def _read_limit(self, seconds: float) -> dict[str, str]:
        return {"max_execution_time": str(max(1, round(seconds * 1000)))}

    def _limits(self, seconds: float) -> dict[str, str]:
        # Its limit of statements is for reads.
        waits = ("innodb_lock_wait_timeout", "lock_wait_timeout")
        return dict.fromkeys(waits, str(max(1, round(seconds))))

    # --- Time.

    session_offset = "SELECT TIMESTAMPDIFF(SECOND, utc_timestamp(), now())"

    now = "utc_timestamp(6)"
    now_ms = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000)"
    now_plus = "(utc_timestamp(6) + INTERVAL ROUND({0} * 1000000) MICROSECOND)"
    seconds_passed = "(TIMESTAMPDIFF(MICROSECOND, {0}, utc_timestamp(6)) / 1000000.0)"
    step_of = "(TIMESTAMPDIFF(SECOND, '1970-01-01 00:00:00', {0}) DIV {1})"
    moved = "({0} + INTERVAL {1} SECOND)"
    text_of = "CAST({0} AS CHAR)"
    epoch = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {0}) * 0.000001)"
    # Of a session's time that comes twice in a year the server may take the first for the second:
    # then as much later as it would be too early.
    with_zone = (
        f"FROM_UNIXTIME({epoch} + GREATEST(0, {epoch} - UNIX_TIMESTAMP(FROM_UNIXTIME({epoch}))))"
    )
    unzoned = "(TIMESTAMP '1970-01-01 00:00:00' + INTERVAL NULLIF(UNIX_TIMESTAMP({0}), 0) SECOND)"
    kept_epoch = "UNIX_TIMESTAMP({0})"
    session_now = "CURRENT_TIMESTAMP(6)"
    session_low = (
        f"(FROM_UNIXTIME({epoch})"
        f" - INTERVAL (FROM_UNIXTIME({epoch}) = FROM_UNIXTIME({epoch} + 3600)) HOUR)"
    )

    # --- Columns.

    def instant_type(self, *, zoned: bool) -> TypeEngine[Any]:
        return mysql.DATETIME(fsp=6)

    def instant_form(self, kind: TypeEngine[Any] | None, zone: str) -> tuple[str, str]:
        return ("UTC", "session") if isinstance(kind, sa.TIMESTAMP) else (zone, "")

    def instant_limits(
        self, kind: TypeEngine[Any], version: tuple[Any, ...]
    ) -> tuple[datetime, datetime] | None:
        if not isinstance(kind, sa.TIMESTAMP):
            return None
        return datetime(1970, 1, 2, tzinfo=UTC), datetime(2038, 1, 18, tzinfo=UTC)

    def created_default(self, zone: str, offset: int | None) -> str:
        if offset is None:
            return "CURRENT_TIMESTAMP(6)"
        return f"(utc_timestamp(6) + INTERVAL {offset} SECOND)" if offset else "(utc_timestamp(6))"

    def key_type(self, length: int) -> TypeEngine[Any]:
        # nopad: with the older padded collations 'a' and 'a ' were one object.
        return mysql.VARCHAR(length, charset="utf8mb4", collation=self.key_collation)

    def key_like(self, kind: TypeEngine[Any], length: int) -> TypeEngine[str]:
        if isinstance(kind, KeyText):
            return KeyText(length)
        charset, collation = (getattr(kind, name, None) for name in ("charset", "collation"))
        return mysql.VARCHAR(length, charset=charset, collation=collation)

    def recollated(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        kept = getattr(column.type, "collation", None)
        if kept == self.key_collation or isinstance(column.type, KeyText):
            return column
        return sa.collate(sa.cast(column, mysql.CHAR(charset="utf8mb4")), str(self.key_collation))

    def long_text_type(self) -> TypeEngine[Any] | None:
        return mysql.LONGTEXT()

    def delete_hint(self, table: sa.Table) -> str:
        # it takes one behind USING alone
        name = self.offline_dialect().identifier_preparer.format_table(table)
        return f"USING {name} {self.key_hint}"

    def in_order(self, change: sa.Update, *by: sa.ColumnElement[Any]) -> sa.Update:
        # SQLAlchemy has no method for an ORDER BY: it stands behind the last condition, and so any
        # further one would become a part of it.
        first, *rest = by
        begin = sa.literal_column("1").op("ORDER BY", precedence=100, is_comparison=True)
        order: sa.ColumnElement[Any] = begin(first)
        for key in rest:
            order = order.op(",", precedence=90, is_comparison=True)(key)
        return change.where(order)

    # --- DDL.

    driver = "mysql+pymysql"
    unpartitioned = (
        "each unique key needs the partition key in it: a primary key with the object takes no "
        "message without one"
    )
    multi_column_alter = True
    retypes_values = True
    whole_columns = True
    owner_rights = "CREATE, ALTER, INDEX, SELECT, INSERT and UPDATE on the tables"

    def column_written(self, column: sa.Column[Any], text: str) -> str:
        return f"{text} INVISIBLE" if column.info.get(database.HIDDEN) else text

    def own_table_options(self) -> dict[str, Any]:
        # a storage engine with transactions
        options = {"engine": "InnoDB", "default_charset": "utf8mb4"}
        return {f"{prefix}_{k}": v for prefix in ("mysql", "mariadb") for k, v in options.items()}

    def alter_type(
        self, at: database.At, to: sa.Column[Any], was: database.Was = database.NOTHING
    ) -> list[str]:
        kind, default = to.type.compile(dialect=at.sql), was.default_for(to)
        to_text = re.match(r"(VAR)?CHAR|\w*TEXT", kind)
        if to_text and isinstance(was.kind, sa.String):  # its collation says which values are one
            kind = re.sub(r" (CHARACTER SET|COLLATE) \w+", "", kind) + _characters(was.kind)
        set_default = f" DEFAULT {default}" if default else ""
        null = " NULL" if to.nullable else " NOT NULL"
        null += " AUTO_INCREMENT" if was.counts else ""
        alter = at.alter(f"MODIFY {at.quoted} {kind}{set_default}{null}{was.rest}")
        if not set_default or to.nullable or was.default:
            return [alter]
        # The type first: the old type may refuse the default.
        fill = f"UPDATE {at.table} SET {at.quoted} = {default} WHERE {at.quoted} IS NULL"
        return [at.alter(f"MODIFY {at.quoted} {kind} NULL{was.rest}"), fill, alter]

    def can_alter_type(
        self, kind: TypeEngine[Any], to: TypeEngine[Any], *, generated: bool
    ) -> bool:
        if generated or isinstance(kind, sa.types.NullType):
            return False
        only_to_text = kind.__visit_name__.upper() in ("UUID", "INET4", "INET6")
        return not only_to_text or isinstance(to, sa.String)

    def drop_not_null(self, at: database.At, kind: TypeEngine[Any], rest: str = "") -> list[str]:
        return self._modify(at, kind, f"NULL{rest}")

    def set_not_null(self, at: database.At, kind: TypeEngine[Any], rest: str = "") -> list[str]:
        return self._modify(at, kind, f"NOT NULL{rest}")

    @staticmethod
    def _modify(at: database.At, kind: TypeEngine[Any], rest: str) -> list[str]:
        if isinstance(kind, sa.types.NullType):  # its type cannot be written
            return []
        return [at.alter(f"MODIFY {at.quoted} {kind.compile(dialect=at.sql)} {rest}")]

    def say_again(self, at: database.At, column: Any) -> tuple[str, ...]:
        default = "" if column.default is None else f"DEFAULT {column.default} "
        null = "NULL" if column.nullable else "NOT NULL"
        null += " AUTO_INCREMENT" if column.counts else ""
        return tuple(self._modify(at, column.kind, f"{default}{null}{column.rest}"))

    def drop_layout(self, table: str, layout: str) -> str:
        return f"ALTER TABLE {table} REMOVE PARTITIONING" if layout == "partitions" else ""

    def drop_index(self, sql: sa.Dialect, index: str, table: sa.Table) -> str:
        quote = sql.identifier_preparer
        return f"DROP INDEX {quote.quote(index)} ON {quote.format_table(table)}"

    def rename_index(self, sql: sa.Dialect, index: str, new: str, table: sa.Table) -> str:
        quote = sql.identifier_preparer
        on = quote.format_table(table)
        return f"ALTER TABLE {on} RENAME INDEX {quote.quote(index)} TO {quote.quote(new)}"

    def with_lock_limit(self, statement: str) -> tuple[str, ...]:
        limit, was = "SESSION lock_wait_timeout", "@msgworker_lock_wait"
        begin = f"SET {was} = @@{limit.replace(' ', '.')}, {limit} = {database.LOCK_SECONDS}"
        return begin, statement, f"SET {limit} = {was}"

    def wait_of_columns(self, *, stored: bool) -> str:
        return database.COPYING if stored else database.AN_INSTANT

    def index_online(self, statement: str) -> tuple[str, str]:
        return statement, database.AN_INSTANT

    # --- The catalogue.

    other_schemas = (
        "SELECT table_schema FROM information_schema.tables"
        " WHERE table_name = :name AND table_schema <> coalesce(:own, database(), '-')"
    )
    column_types = (
        "SELECT column_name, concat_ws(' CHARACTER SET ', column_type, character_set_name)"
        f" FROM information_schema.columns{_OF_TABLE}"
    )
    row_estimate = f"SELECT table_rows FROM information_schema.tables{_OF_TABLE}"
    table_size = f"SELECT data_length, index_length FROM information_schema.tables{_OF_TABLE}"
    sizes_are_exact = False  # and the primary key is among the rows

    def id_source(
        self, conn: sa.Connection, table: sa.Table, column: str
    ) -> database.IdSource | None:
        default = asked(conn, _DEFAULT_OF, table, column=column).scalar()
        called = _CALLED.match(str(default or "").strip("( "))
        if called is None:
            return None
        quoted_query = (
            f"SELECT next_not_cached_value, increment, cycle_option, maximum_value FROM {called[1]}"
        ).replace("%", "%%")
        ahead, step, cycles, most = conn.exec_driver_sql(quoted_query).one()
        return database.IdSource(
            called[1], bool(cycles), int(ahead), most=int(most), step=int(step)
        )

    def advance_ids(self, at: database.At, source: database.IdSource, highest: int) -> list[str]:
        return [f"DO SETVAL({source.name}, {highest})"]  # it does nothing for a lower value

    # --- A live table.

    rule_queries: tuple[str, ...] = (
        "SELECT 'check', c.constraint_name, c.check_clause"
        " FROM information_schema.check_constraints c JOIN information_schema.table_constraints t"
        " ON t.constraint_schema = c.constraint_schema AND t.constraint_name = c.constraint_name"
        " WHERE t.table_schema = coalesce(:schema, database()) AND t.table_name = :name"
        " AND t.constraint_type = 'CHECK' AND t.enforced = 'YES'",
        *_RULES,
    )
    text_bytes = {  # noqa: RUF012
        "TINYTEXT": 255,
        "TINYBLOB": 255,
        "TEXT": 65_535,
        "BLOB": 65_535,
        "MEDIUMTEXT": 16_777_215,
        "MEDIUMBLOB": 16_777_215,
    }
    codecs = {"latin1": "cp1252", "big5": "cp950"} | {
        **dict.fromkeys(("utf8mb3", "utf8", "ucs2"), "utf8mb3"),
        **{name: name for name in ("gbk", "gb2312", "cp1250", "cp1251", "cp1256", "cp1257")},
    }
    holders = (
        "SELECT concat('foreign key ', constraint_name, ' of ', table_name) "
        "FROM information_schema.key_column_usage WHERE referenced_table_name IS NOT NULL AND ("
        "table_schema = coalesce(:schema, DATABASE()) AND table_name = :bare "
        "AND column_name = :column "
        "OR referenced_table_schema = coalesce(:schema, DATABASE()) "
        "AND referenced_table_name = :bare "
        "AND referenced_column_name = :column) ORDER BY 1"
    )

    def refusing(self, conn: sa.Connection, queries: dict[str, str]) -> list[str]:
        # Warnings about the type of a value become errors: an UPDATE would fail for it.
        refused = []
        for name, query in queries.items():
            part = f"SELECT '{name}' {query}"
            found = conn.scalars(sa.text(part)).all()
            if found or conn.scalar(sa.text("SELECT @@warning_count")):
                refused.append(name)
        return refused

    def fold_of(self, collation: str) -> str | None:
        if collation in ("", "binary"):
            return None
        bare = "nopad" in collation or "_0900_" in collation
        if bare and collation.endswith("_bin"):
            return None
        return "weight" if bare else "padded weight"

    def folded(self, column: sa.ColumnElement[Any], fold: str) -> sa.ColumnElement[Any]:
        text = sa.func.rtrim(column) if fold == "padded weight" else column
        return sa.func.weight_string(text, type_=sa.LargeBinary())

    as_number = "CAST({0} + 0 AS CHAR)"
    is_not_whole = (
        f"(CAST({{0}} AS CHAR) NOT REGEXP '{database.WHOLE}'"
        " OR CAST({0} AS CHAR) + 0 <> {0} + 0)"
    )

    def max_key(self, kind: TypeEngine[Any]) -> int | None:
        collation = getattr(kind, "collation", None) or ""
        charset = getattr(kind, "charset", None) or collation.partition("_")[0]
        return _KEY_BYTES // _CHARACTER_BYTES.get(charset, 4)

    # --- The server.

    server_settings = (
        database.ServerSetting(
            "SELECT @@innodb_flush_log_at_trx_commit",
            "innodb_flush_log_at_trx_commit",
            ("1",),
            database.LAST_MOMENTS,
            ("SET GLOBAL innodb_flush_log_at_trx_commit = 1",),
        ),
        database.ServerSetting(
            "SELECT @@innodb_doublewrite", "innodb_doublewrite", ("1", "on"), database.TORN
        ),
        database.ServerSetting(
            "SELECT CASE WHEN @@log_bin = 0 OR @@sql_log_bin = 0 THEN 'off'"
            " ELSE @@binlog_format END",
            "binlog_format",
            ("off", "row", "mixed"),
            "the server refuses every write at the isolation level READ COMMITTED (error 1665), so "
            "that no message can be sent or claimed",
            ("SET GLOBAL binlog_format = ROW",),
            needed=True,
            stops=True,
        ),
        database.ServerSetting(
            "SELECT @@global.read_only", "read_only", ("0", "off"), database.READ_ONLY
        ),
        database.ServerSetting(
            "SELECT CASE WHEN @@sql_mode LIKE '%STRICT%' THEN 'strict' ELSE 'not strict' END",
            "sql_mode",
            ("strict",),
            "values that do not fit are truncated instead of refused",
            ("SET GLOBAL sql_mode = CONCAT(@@global.sql_mode, ',STRICT_TRANS_TABLES')",),
        ),
    )
    several_writers: database.SeveralWriters | None = database.SeveralWriters(
        "Group Replication with several primaries",
        "SELECT 0, @@auto_increment_increment, @@group_replication_consistency"
        " NOT IN ('EVENTUAL', 'BEFORE_ON_PRIMARY_FAILOVER')",
        _GAPS.format("group_replication_consistency"),
        "SET GLOBAL group_replication_consistency = 'BEFORE'",
    )
    oldest_snapshot = (
        f"SELECT /*+ SET_VAR(time_zone = 'SYSTEM') */ {_SNAPSHOT.format('performance_schema')}"
    )
    analyze = "ANALYZE TABLE {}"
    current_user = (
        "SELECT CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@',"
        " QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))"
    )
    explain = "EXPLAIN "

    def weak_storage(self, inspector: Inspector, name: str, schema: str | None) -> str:
        try:
            with database.of_any_type():
                options = inspector.get_table_options(name, schema=schema)
        except NoSuchTableError:  # a view
            return ""
        kept = next((str(v) for k, v in options.items() if k.endswith("_engine")), "")
        return kept if kept.lower() in ("myisam", "memory", "aria", "csv", "archive") else ""

    def strong_storage(self, table: str) -> str:
        return f"ALTER TABLE {table} ENGINE=InnoDB"

    def single_primary(self, conn: sa.Connection) -> tuple[str, str, str]:
        query = "SHOW GLOBAL VARIABLES LIKE 'group_replication_%'"
        told = {str(name): value for name, value in conn.execute(sa.text(query))}
        if not told.get("group_replication_group_name"):
            return "", "", ""
        text = "Group Replication with a single primary: a server with replicas"
        if told.get("group_replication_consistency") != "EVENTUAL":
            return text, "", ""
        wrong = (
            "a server that becomes the primary takes writes before it has all that was committed, "
            "so instances see what was before (docs/operate/galera.md)"
        )
        fix = "SET GLOBAL group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER'"
        return text, wrong, fix

    # --- The engine.

    family = "mysql"
    extra = "mysql"
    port = 3306
    driver_options = {  # noqa: RUF012
        "pymysql": _WAITS | {"program_name": PROGRAM},
        "mysqldb": _WAITS,
        "mariadbconnector": _WAITS,
    }
    checked_drivers = ("pymysql",)
    inlined_lists = "pyformat"
    writers_variable = ("group_replication_single_primary_mode", "OFF")

    def connect_options(self, url: URL) -> dict[str, Any]:
        found = super().connect_options(url)
        if url.get_driver_name() in ("pymysql", "mysqldb"):  # the third one has no other
            found["charset"] = "utf8mb4"
        return found

    def create_options(self, url: URL) -> tuple[URL, dict[str, Any]]:
        named_hosts(url)  # raises ConfigError
        return super().create_options(url)

    def created(self, engine: sa.Engine) -> None:
        if engine.driver != "pymysql":
            event.listen(engine, "connect", lambda raw, _: _end_plainly(raw), insert=True)
            return
        connect: Any = _connect_pymysql
        if hosts := named_hosts(engine.url):
            turns = Hosts(hosts, _connect_pymysql)
            event.listen(engine, "checkout", turns.checkout)
            connect = turns.connect
        event.listen(engine, "do_connect", connect)

    def prepare(self, engine: sa.Engine, *, given: bool) -> None:
        notice_standby(engine)
        if engine.driver == "mysqldb":
            event.listen(engine, "engine_connect", note_number)

    def sessions(self, driver: str) -> tuple[Callable[[sa.Connection], None], ...]:
        return (_any_text,) if driver == "pymysql" else ()

    def known(self, engine: sa.Engine) -> database.Database:
        if engine.dialect.server_version_info is None:  # it distinguishes MariaDB and MySQL
            with connecting(engine):
                pass
        made = database.of(engine)
        if engine.pool not in _certifies:
            assert made.writers_variable is not None
            variable, value = made.writers_variable
            with connecting(engine) as conn:
                asked = sa.text("SHOW VARIABLES LIKE :variable")
                found = conn.execute(asked, {"variable": variable}).first()
            _certifies[engine.pool] = found is not None and str(found[1]) == value
        return made.having(certifies=True) if _certifies[engine.pool] else made

    def place(self, conn: sa.Connection, table: str) -> list[str]:
        query = "SELECT @@hostname, @@port, @@datadir, @@server_id, DATABASE()"
        found = [str(value) for value in conn.execute(sa.text(query)).one()]
        cluster = conn.exec_driver_sql("SHOW STATUS LIKE 'wsrep_cluster_state_uuid'").first()
        if cluster is not None and cluster[1]:  # which of its nodes does not matter
            return [str(cluster[1]), found[-1]]
        return found

    # --- Failovers.

    standby = "read-only, as a standby is"
    # What it is besides, a login without further rights cannot ask.
    standby_query = "SELECT @@global.read_only"
    refusal_is_of_standby = True

    def may_be_standby(self, raw: Any) -> bool:
        return True

    def other_servers(self, conn: sa.Connection) -> list[Callable[[], Any]]:
        return list(conn.info.get(OTHERS, ()))

    def new_past(self) -> Reigns:
        return Reigns()


class MariaDB(MySQL):
    """MariaDB 10.6 and later, also Galera."""

    name = "mariadb"
    key_collation = "utf8mb4_nopad_bin"
    bytewise = f"(CONVERT({{0}} USING utf8mb4) COLLATE {key_collation})"
    guard_case = "column"
    share_locks = True
    settles_at_once = 2
    # After a crash of the server InnoDB may take an index on a virtual column as corrupted.
    stored_columns = True
    driver = "mariadb+pymysql"

    def instant_limits(
        self, kind: TypeEngine[Any], version: tuple[Any, ...]
    ) -> tuple[datetime, datetime] | None:
        found = super().instant_limits(kind, version)
        if found is None or version < (11, 5):
            return found
        return found[0], datetime(2106, 2, 6, tzinfo=UTC)

    def with_lock_limit(self, statement: str) -> tuple[str, ...]:
        return (f"SET STATEMENT lock_wait_timeout={database.LOCK_SECONDS} FOR {statement}",)

    def index_online(self, statement: str) -> tuple[str, str]:
        return f"{statement} ALGORITHM=INPLACE LOCK=NONE", database.AN_INSTANT

    def returns_ids(self, version: tuple[Any, ...]) -> bool:
        return version >= (10, 5)

    def _read_limit(self, seconds: float) -> dict[str, str]:
        return {"max_statement_time": f"{max(1, round(seconds * 1000)) / 1000:.3f}"}

    _limits = _read_limit

    writers_variable = ("wsrep_on", "ON")

    rule_queries = (
        "SELECT CASE level WHEN 'Column' THEN 'column check' ELSE 'check' END, constraint_name,"
        " check_clause FROM information_schema.check_constraints"
        " WHERE constraint_schema = coalesce(:schema, database()) AND table_name = :name",
        # those that SQLAlchemy cannot read: of a sequence, say
        f"SELECT 'default', column_name, column_default FROM information_schema.columns{_OF_TABLE}"
        " AND column_default LIKE '%`%'",
        *_RULES,
    )
    several_writers = database.SeveralWriters(
        "a Galera cluster of {} nodes",
        "SELECT (SELECT variable_value FROM information_schema.global_status"
        " WHERE variable_name = 'WSREP_CLUSTER_SIZE'),"
        " @@auto_increment_increment, @@wsrep_sync_wait & 4",
        _GAPS.format("wsrep_sync_wait"),
        "SET GLOBAL wsrep_sync_wait = 4",
    )
    oldest_snapshot = "SET STATEMENT time_zone = 'SYSTEM' FOR SELECT " + _SNAPSHOT.format(
        "information_schema"
    )

    def single_primary(self, conn: sa.Connection) -> tuple[str, str, str]:
        return "", "", ""

    def past_snapshot(self, conn: sa.Connection) -> AbstractContextManager[None]:
        if (conn.dialect.server_version_info or ()) < (11, 6):
            return nullcontext()
        off = {"innodb_snapshot_isolation": "OFF"}
        return _set_within(conn, "past", off, conn.exec_driver_sql)


@contextmanager
def _set_within(
    conn: sa.Connection, whose: str, values: dict[str, str], run: Callable[[str], Any]
) -> Iterator[None]:
    """The session of `conn` has these settings in the block, and behind it those that it had.
    whose: another one for each that may be in the block of another."""
    kept = {name: f"@msgworker_{whose}_{name}" for name in values}
    begin = (f"{kept[n]} = @@SESSION.{n}, SESSION {n} = {value}" for n, value in values.items())
    run("SET " + ", ".join(begin))
    try:
        yield
    finally:
        if not (conn.closed or conn.invalidated):
            run("SET " + ", ".join(f"SESSION {name} = {was}" for name, was in kept.items()))


_DEFAULT_OF = (
    f"SELECT column_default FROM information_schema.columns{_OF_TABLE} AND column_name = :column"
)
_NAME = r"(?:`[^`]+`|\w+)"
_CALLED = re.compile(rf"^next(?:val\(|\s+value\s+for\s+)\s*({_NAME}(?:\.{_NAME})?)", re.I)
_KEY_BYTES = 3072 - 8
"""The bytes of an InnoDB index key, without the msg_id in it."""
_CHARACTER_BYTES = {"latin1": 1, "ascii": 1, "ucs2": 2, "utf8mb3": 3, "utf8": 3}


_TROUBLES = {
    1062: database.Trouble.RACE,
    **dict.fromkeys(
        (
            1213,  # on Galera at COMMIT, too: another node has changed the same row
            1317,  # Galera ends a statement that is in the way of another node's change
            1412,  # the table was altered since the transaction began
            3101,  # Group Replication: what 1213 is on Galera
            3572,  # NOWAIT, on MySQL
            *(1020, 1205),
        ),
        database.Trouble.AGAIN,
    ),
    **dict.fromkeys(
        (
            0,  # PyMySQL: the connection is already closed
            1047,  # Galera: the node is not one of the majority, or not ready yet
            1180,  # Galera: the node was cut off at COMMIT
            3100,  # Group Replication: the same
            *range(3796, 3800),  # ... and while it is not yet like the others
            *(3032, 6400),  # MySQL in offline mode, also of a server that has left its group
            *(1836, 3168, 3169),  # the server is read-only as a whole, for an upgrade
            4031,  # the session was idle for too long
            *(1021, 1114),  # the disk is full
            *(1206, 1637),  # no lock, or transaction, left
            *(1037, 1041),
            *(1040, 1203, 1226),  # no connection left, or none for this user
            *(1053, 1077, 1079, 1152, 1184, 1927, 2002, 2003, 2006, 2013, 2014, 2055),
            *range(1158, 1162),  # the server could not read or write to its client
            2027,  # MariaDB Connector/Python: what a killed session last sent
        ),
        database.Trouble.LOST,
    ),
    **dict.fromkeys(
        (
            *(1820, 1862),  # the password has expired
            *(3118, 3955, 4151),  # the account is locked
            3159,  # the server wants TLS
            1665,  # a binary log of statements at READ COMMITTED
            *(1036, 1874, 1881),  # the table, or InnoDB, is read-only
            *(1044, 1045, 1049, 1054, 1142, 1143, 1146, 1290, 1698, 1792),
        ),
        database.Trouble.REFUSED,
    ),
}
_NO_ROOM = re.compile(r"(?i)(?:error|errno:?|errcode:) (5|11|12|23|24|28|122)\b")
"""Of the operating system: no disk space, quota, memory or file left, or one that fails."""
_TOO_LARGE = re.compile(r"[Gg]ot error (5|90)\b")
"""At COMMIT on Galera: the transaction changes more than wsrep_max_ws_size; it always will."""


_certifies: weakref.WeakKeyDictionary[sa.Pool, bool] = weakref.WeakKeyDictionary()
"""The pools of connections, and whether they are to one of several servers that take writes."""


def _connect_pymysql(dialect: Any, record: Any, cargs: Any, cparams: dict[str, Any]) -> Any:
    # Its connect_timeout is for the socket only: if a server, or a proxy, accepts and stays
    # silent, the driver waits as long as for the answer to a query.
    args = cparams | {"defer_connect": True}
    asks_for_tls = any(name.startswith("ssl") or name == "read_default_file" for name in cparams)
    context = None if cargs or asks_for_tls else _preferred_tls(dialect.dbapi)
    if context is None:
        conn = _with_its_files(dialect.dbapi, cargs, args)
    else:
        conn = dialect.dbapi.connect(**args, ssl_disabled=True)
        conn.ssl, conn.ctx = True, context
    limit, conn._read_timeout = conn._read_timeout, cparams.get("connect_timeout", CONNECT_SECONDS)
    conn.connect()
    _end_plainly(conn)
    conn._read_timeout = limit
    conn._sock.settimeout(limit)
    if conn._sock.family != getattr(socket, "AF_UNIX", None):
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):  # PyMySQL switches keepalive itself on
                conn._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return conn


def _with_its_files(driver: Any, cargs: Any, args: dict[str, Any]) -> Any:
    """A connection of PyMySQL that is not made yet, but has read the files that its options name.
    Their contents are not shown."""
    import configparser  # PyMySQL has imported it

    try:
        return driver.connect(*cargs, **args)
    except (OSError, configparser.Error) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None)
        raise ConfigError(
            "a file that an option of the database url names (ssl_ca, ssl_cert, ssl_key, "
            f"read_default_file) cannot be read: {why or type(error).__name__}"
        ) from None


_PLAIN = ("NO_CHAIN", 2**64 - 1)


def _end_plainly(conn: Any) -> None:
    """Reset settings by which a server, or an `init_command`, makes COMMIT end the session or begin
    another transaction (completion_type), or limits the rows of queries (sql_select_limit)."""
    with conn.cursor() as cursor:
        cursor.execute("SELECT @@completion_type, @@sql_select_limit")
        if tuple(cursor.fetchone()) != _PLAIN:
            cursor.execute("SET SESSION completion_type = %s, sql_select_limit = %s", _PLAIN)


@cache
def _preferred_tls(dbapi: Any) -> Any:
    """The TLS context that PyMySQL would create for each connection without TLS options. It reads
    all certificates of the system, which takes ten times as long as connecting. None if not
    needed."""
    made = dbapi.connect(defer_connect=True)
    return made.ctx if made.ssl and hasattr(made, "_ssl_required") else None


_ANY_UTF8 = "msgworker_any_utf8"


def _decode(data: Any, errors: str = "strict") -> tuple[str, int]:
    try:
        return codecs.utf_8_decode(data, errors, True)
    except UnicodeDecodeError:
        odd_texts.met = True
        return codecs.utf_8_decode(data, "surrogateescape", True)


def _encode(text: str, errors: str = "strict") -> tuple[bytes, int]:
    return codecs.utf_8_encode(text, "surrogateescape")


@codecs.register
def _any_utf8(name: str) -> codecs.CodecInfo | None:
    return codecs.CodecInfo(_encode, _decode, name=name) if name == _ANY_UTF8 else None


def _any_text(conn: sa.Connection) -> None:
    # MariaDB stores half surrogates, on which PyMySQL fails in the middle of an answer: the
    # connection is then unusable.
    raw: Any = conn.connection.driver_connection
    if getattr(raw, "encoding", None) == "utf8":
        raw.encoding = _ANY_UTF8
