"""Databases in which the tables of a default App are made already.

Most tests begin with these tables, and making them takes longer than most tests do. So a database
is used again once its rows are taken out, as long as nothing else in it has changed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from msgworker import App
from tests.engines import outlive, plain_engine

Rows = dict[str, list[dict[str, Any]]]

_SCHEMA = {
    "postgresql": """
        WITH own AS (SELECT oid, nspname, nspacl::text AS acl FROM pg_namespace
                     WHERE nspname NOT LIKE 'pg\\_%%' AND nspname <> 'information_schema'),
             rel AS (SELECT c.* FROM pg_class c JOIN own ON own.oid = c.relnamespace)
        SELECT 'schema', nspname, acl FROM own
        UNION ALL SELECT relkind::text, oid::regclass::text,
            concat_ws(' ', relpersistence, reloptions::text, relacl::text, relrowsecurity) FROM rel
        UNION ALL SELECT 'column', concat_ws('.', rel.oid::regclass, attname), concat_ws(' ',
            format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
            attcollation::regcollation, attacl::text, pg_get_expr(d.adbin, d.adrelid))
          FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0
          LEFT JOIN pg_attrdef d ON d.adrelid = rel.oid AND d.adnum = a.attnum
        UNION ALL SELECT 'index', indexrelid::regclass::text,
            concat_ws(' ', pg_get_indexdef(indexrelid), indisvalid)
          FROM pg_index JOIN rel ON rel.oid = indexrelid
        UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(c.oid)
          FROM pg_constraint c JOIN own ON own.oid = connamespace
        UNION ALL SELECT 'trigger', tgname, tgrelid::regclass::text
          FROM pg_trigger JOIN rel ON rel.oid = tgrelid
        UNION ALL SELECT 'rule', rulename, ev_class::regclass::text
          FROM pg_rewrite JOIN rel ON rel.oid = ev_class
        UNION ALL SELECT 'policy', polname, polrelid::regclass::text FROM pg_policy
        UNION ALL SELECT 'function', proname, prosrc FROM pg_proc
          JOIN own ON own.oid = pronamespace
        UNION ALL SELECT 'type', typname, typtype::text FROM pg_type
          JOIN own ON own.oid = typnamespace
        UNION ALL SELECT 'statistics', rel.oid::regclass::text, staattnum::text
          FROM pg_statistic JOIN rel ON rel.oid = starelid
        UNION ALL SELECT 'setting', setrole::regrole::text, setconfig::text
          FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
          WHERE d.datname = current_database()
        UNION ALL SELECT 'database', '', coalesce(datacl::text, '') || datconnlimit
          FROM pg_database WHERE datname = current_database()
        ORDER BY 1, 2, 3""",
    "mariadb": """
        SELECT 'table', table_name, CONCAT_WS(' ', table_type, engine, table_collation,
            row_format, create_options)
          FROM information_schema.tables WHERE table_schema = DATABASE()
        UNION ALL SELECT 'column', CONCAT_WS('.', table_name, ordinal_position), CONCAT_WS(' ',
            column_name, column_type, is_nullable, column_default, extra, collation_name,
            generation_expression)
          FROM information_schema.columns WHERE table_schema = DATABASE()
        UNION ALL SELECT 'index', CONCAT_WS('.', table_name, index_name, seq_in_index), CONCAT_WS(
            ' ', column_name, non_unique, sub_part, index_type)
          FROM information_schema.statistics WHERE table_schema = DATABASE()
        UNION ALL SELECT 'constraint', CONCAT_WS('.', table_name, constraint_name), constraint_type
          FROM information_schema.table_constraints WHERE table_schema = DATABASE()
        UNION ALL SELECT 'check', constraint_name, check_clause
          FROM information_schema.check_constraints WHERE constraint_schema = DATABASE()
        UNION ALL SELECT 'trigger', trigger_name, action_statement
          FROM information_schema.triggers WHERE trigger_schema = DATABASE()
        UNION ALL SELECT 'routine', routine_name, routine_definition
          FROM information_schema.routines WHERE routine_schema = DATABASE()
        UNION ALL SELECT 'database', default_character_set_name, default_collation_name
          FROM information_schema.schemata WHERE schema_name = DATABASE()
        UNION ALL SELECT 'right', grantee, privilege_type
          FROM information_schema.schema_privileges WHERE table_schema = DATABASE()
        UNION ALL SELECT 'right', grantee, privilege_type
          FROM information_schema.table_privileges WHERE table_schema = DATABASE()
        ORDER BY 1, 2, 3""",
}
"""All that a test may have changed of a database, its rows left out."""
_OTHERS = {
    "postgresql": "SELECT pid FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mariadb": "SELECT id FROM information_schema.processlist "
    "WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}
"""The sessions of others in a database."""


_USED = {
    "postgresql": "SELECT coalesce(pg_partition_root(oid)::regclass::text, relname) FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0",
    "mariadb": "SELECT table_name FROM information_schema.tables "
    "WHERE table_schema = DATABASE() AND auto_increment > 1",
}
"""The tables that may have rows or have had some; on MariaDB only where ids count them."""


EFFECTS = sa.Table(
    "batch_effects",
    sa.MetaData(),
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("msg_id", sa.BigInteger, nullable=False),
)
"""What transactional handlers of tests write."""


class Ready:
    """Those of one server. A database is named by its URL. effects: with the table of effects.

    A session in each of them stays open: a new one reads the whole catalogue first, which takes
    longer than all that is done in it.
    """

    def __init__(self, name: str, *, effects: bool = False) -> None:
        self._name = name
        self._effects = effects
        self._free: list[sa.URL] = []
        self._engines: dict[sa.URL, sa.Engine] = {}
        self._schemas: dict[sa.URL, Sequence[Any]] = {}
        self._rows: Rows = {}

    def take(self) -> sa.URL | None:
        """One that is ready, the one that has been so for longest. What a test has left running
        has come back by then, and such a database is given up."""
        while self._free:
            url = self._free.pop(0)
            with contextlib.suppress(sa.exc.DBAPIError), self._engines[url].connect() as conn:
                if not self._others(conn):
                    return url
            self._give_up(url)
        return None

    def make(self, url: sa.URL) -> None:
        """Make the tables in an empty database."""
        create(self.app_url(url), effects=self._effects)
        self._engines[url] = plain_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True)
        outlive(self._engines[url])
        with self._engines[url].connect() as conn:
            self._schemas[url] = self._seen(conn)
            self._rows = self._rows or rows_of(conn)

    def app_url(self, url: sa.URL) -> sa.URL:
        """How an App reaches the database; this class does so as its server has it."""
        return url

    def give_back(self, url: sa.URL) -> bool:
        """Take the rows out and keep it; False if it is not as it was made."""
        try:
            with self._engines[url].begin() as conn:
                others = self._others(conn)
                for session in others:
                    self._end(conn, session)
                same = self._seen(conn) == self._schemas[url]
                if same:
                    self._restore(conn, beside=bool(others))
        except sa.exc.DBAPIError:  # a session of the test's is still at it
            same = False
        if same:
            self._free.append(url)
        else:
            self._give_up(url)
        return same

    def _give_up(self, url: sa.URL) -> None:
        self._engines.pop(url).dispose()

    def _seen(self, conn: sa.Connection) -> Sequence[Any]:
        return conn.exec_driver_sql(_SCHEMA[self._name]).fetchall()

    def _others(self, conn: sa.Connection) -> Sequence[int]:
        return conn.exec_driver_sql(_OTHERS[self._name]).scalars().all()

    def _end(self, conn: sa.Connection, session: int) -> None:
        if self._name == "postgresql":
            conn.exec_driver_sql(f"SELECT pg_terminate_backend({session})")
            return
        with contextlib.suppress(sa.exc.OperationalError):  # it has gone
            conn.exec_driver_sql(f"KILL {session}")

    def _restore(self, conn: sa.Connection, *, beside: bool) -> None:
        """beside: a session of the test's has just been ended, and may still commit. PostgreSQL's
        sizes of tables show that; on MariaDB all are emptied then, which waits for it."""
        used = list(self._rows) if beside and self._name == "mariadb" else self._used(conn)
        if self._name == "postgresql":
            conn.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
            if used:
                conn.exec_driver_sql(f"TRUNCATE {', '.join(used)} RESTART IDENTITY")
        else:
            conn.exec_driver_sql("SET lock_wait_timeout = 2")
            for table in used:
                conn.exec_driver_sql(f"TRUNCATE {table}")
        for table in used:
            for row in self._rows[table]:
                columns = [sa.column(name) for name in row]
                conn.execute(sa.insert(sa.table(table, *columns)).values(row))

    def _used(self, conn: sa.Connection) -> list[str]:
        """The tables that are not as they were made: to empty one takes long, and most tests use
        two of them."""
        suspects = set(conn.exec_driver_sql(_USED[self._name]).scalars())
        if self._name == "mariadb":
            some = " UNION ALL ".join(
                f"SELECT '{table}' FROM DUAL WHERE EXISTS (SELECT 1 FROM {table})"
                for table, rows in self._rows.items()
                if not rows
            )
            suspects.update(conn.exec_driver_sql(some).scalars())
        return [
            table
            for table, rows in self._rows.items()
            if (_all(conn, table) != rows if rows else table in suspects)
        ]


def create(url: sa.URL, *, effects: bool = False) -> None:
    """The tables of a default App."""
    app = App(url.render_as_string(hide_password=False))
    try:
        app.create_schema()
        if effects:
            EFFECTS.create(app.engine)
    finally:
        app.engine.dispose()


def rows_of(conn: sa.Connection) -> Rows:
    """What stands in each table."""
    return {table: _all(conn, table) for table in sa.inspect(conn).get_table_names()}


def _all(conn: sa.Connection, table: str) -> list[dict[str, Any]]:
    return [dict(row) for row in conn.exec_driver_sql(f"SELECT * FROM {table}").mappings()]


class ReadyFile:
    """A file of SQLite, made once and copied."""

    def __init__(self, folder: Path, *, effects: bool = False) -> None:
        self._effects = effects
        self._file = folder / f"ready{'-effects' if effects else ''}.db"

    def copy_to(self, path: Path) -> None:
        if not self._file.exists():
            url = sa.URL.create("sqlite", database=str(self._file))
            create(url, effects=self._effects)
            with contextlib.closing(_connect(self._file)) as conn:
                conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copyfile(self._file, path)


def _connect(path: Path) -> Any:
    import sqlite3

    return sqlite3.connect(path)
