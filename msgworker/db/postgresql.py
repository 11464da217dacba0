"""PostgreSQL. One file, because all that is special about a database is looked for in one place."""

from __future__ import annotations

import re
import selectors
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import NO_LINTING
from sqlalchemy.types import TypeEngine

from msgworker.db import servers
from msgworker.db.connections import unavailable
from msgworker.db.database import (
    LAST_MOMENTS,
    LOCK_SECONDS,
    NOBODY,
    NOTHING,
    OLD_SNAPSHOT_SECONDS,
    READ_ONLY,
    TORN,
    WHOLE,
    At,
    Database,
    IdSource,
    LiveIndex,
    ServerSetting,
    Trouble,
    Was,
    own_dialect,
    quoted,
)
from msgworker.db.drivers import CONNECT_SECONDS, PROGRAM
from msgworker.db.engine import beside
from msgworker.db.errors import code_of, is_lost_by_its_text, raise_lost
from msgworker.db.types import KeyText
from msgworker.logs import logger

_LIBPQ: dict[str, int | str] = {
    "fallback_application_name": PROGRAM,
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds: for data that was never acknowledged
}


_OF_ASYNCPG = {
    "host": "host",
    "krbsrvname": "krbsrvname",
    "passfile": "passfile",
    "port": "port",
    "ssl": "sslmode",
    "target_session_attrs": "target_session_attrs",
    **dict.fromkeys(("async_fallback", "statement_cache_size", "prepared_statement_cache_size")),
}
"""Options of asyncpg, as libpq calls them; None = they are about that driver alone."""

_POLICIES = (
    "coalesce(string_agg(polname::text, ', ' ORDER BY polname), ''),"
    " coalesce(string_agg(polcmd::text, '') FILTER (WHERE polpermissive AND (polroles = '{0}'"
    " OR EXISTS (SELECT FROM unnest(polroles) r WHERE r <> 0"
    " AND pg_has_role(current_user, r, 'USAGE')))), '')"
    " FROM pg_class c LEFT JOIN pg_policy ON polrelid = c.oid"
)


def _shown(name: str, good: tuple[str, ...], otherwise: str, **more: bool) -> ServerSetting:
    fix = f"ALTER SYSTEM SET {name} = {good[0]}", "SELECT pg_reload_conf()"
    return ServerSetting(f"SHOW {name}", name, good, otherwise, fix, **more)


class PostgreSQL(Database):
    """PostgreSQL, by psycopg 3 or psycopg2, also behind a pooler (servers.py)."""

    name = "postgresql"
    max_name = 63
    pads_chars = True
    trims_chars = True
    reads_texts = True
    partial_indexes = True
    rolls_back_ddl = True
    oldest_index = True
    recursive_skip_scan = True
    booleans = True
    arrays = True
    on_conflict = True
    insert = staticmethod(postgresql.insert)
    share_locks = True
    settles_at_once = 2
    defers = True
    max_ids = 10_000
    # A bitmap scan reads all rows of a deep object to give the first few. Until a new table is
    # analyzed it looks empty, and each look and claim would read all of it.
    tuned = (
        "SET enable_bitmapscan = off; SET enable_seqscan = off; SET jit = off",
        "RESET enable_bitmapscan; RESET enable_seqscan; RESET jit",
    )
    # Before the table is analyzed it looks small, and a nested loop over it takes hours.
    wide_join_settings = ("SET enable_nestloop = off", "RESET enable_nestloop")
    notify = True

    # --- Errors.

    codes = {  # noqa: RUF012
        "no connection": ("53300",),
        "denied": ("42501",),
        "follows": ("25P02",),
        "shows a row": ("23502", "23514"),
        "overtime": ("57014",),
        "statement limit": ("57014", "55P03"),
        "session limit": ("25P03", "25P04", "57P05"),
    }

    def code(self, error: BaseException) -> str | None:
        return code_of(error)[1]

    def says(self, what: str, error: BaseException) -> bool:
        # For a refused session libpq gives only the server's text, in the server's language.
        by_libpq = self.code(error) is None and type(error).__module__.startswith("psycopg")
        if what == "no connection" and by_libpq:
            return "FATAL" in str(error)
        return super().says(what, error)

    def trouble(self, error: BaseException) -> Trouble:
        if servers.is_of_a_pooler(error):
            return Trouble.AGAIN
        state = self.code(error)
        if state is None:
            return Trouble.LOST if is_lost_by_its_text(error) else Trouble.OTHER
        return _TROUBLES.get(state, _CLASSES.get(state[:2], Trouble.OTHER))

    def is_of_a_trigger(self, error: BaseException, statement: str) -> bool:
        # The language of a function is in the context of what it raises, in any language.
        return "PL/" in str(error)

    def violated_index(self, error: BaseException) -> str | None:
        named = getattr(getattr(error, "diag", None), "constraint_name", None)
        return "" if named is None else str(named)

    def refuses_writes(self, error: BaseException) -> bool:
        return self.code(error) == "25006"

    # --- Deadlines.

    session_limits = (
        "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN "
        "('idle_in_transaction_session_timeout', 'transaction_timeout')",
        1000,
    )

    @contextmanager
    def deadline(self, conn: sa.Connection, seconds: float) -> Iterator[None]:
        if servers.shares_sessions(conn):  # the session is not ours to set
            with _cancelling(conn, seconds):
                yield
            return
        told = "current_setting('statement_timeout')"
        change = f"set_config('statement_timeout', '{max(1, round(seconds * 1000))}', false)"
        begin = f"SELECT {told}, {change}"
        end = f"SET statement_timeout = '{conn.exec_driver_sql(begin).scalar_one()}'"
        try:
            yield
        finally:
            if not (conn.closed or conn.invalidated):
                conn.exec_driver_sql(end)

    def in_transaction(self, conn: sa.Connection, seconds: float) -> None:
        # of this transaction: a pooler may be between
        conn.exec_driver_sql(f"SET LOCAL statement_timeout = {int(max(1, seconds * 1000))}")

    # --- Time.

    session_offset = "SELECT CAST(extract(timezone FROM statement_timestamp()) AS INTEGER)"

    # now() is constant in a transaction, which a transactional handler may keep open for long.
    now = "statement_timestamp()"
    now_ms = "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT)"
    now_plus = "(statement_timestamp() + make_interval(secs => {0}))"
    # Not the seconds of their difference: before version 17 there is none to an infinite one.
    seconds_passed = (
        "(CAST(extract(epoch FROM statement_timestamp()) AS float8)"
        " - CAST(extract(epoch FROM {0}) AS float8))"
    )
    step_of = "CAST(floor(CAST(extract(epoch FROM {0}) AS float8) / {1}) AS BIGINT)"
    moved = "({0} + make_interval(secs => {1}))"
    text_of = "CAST({0} AS TEXT)"
    of_text = "CAST({0} AS TIMESTAMP WITH TIME ZONE)"
    of_plain_text = "CAST({0} AS TIMESTAMP WITHOUT TIME ZONE)"
    plain = aware = "({0} AT TIME ZONE 'UTC')"

    # --- Columns.

    zoned_instants = True
    casts_json = True

    bytewise = '(CAST({0} AS TEXT) COLLATE "C")'
    beginning = Database.beginning.format("CAST({0} AS TEXT)")
    place_of = "strpos({0}, {1})"

    def instant_form(self, kind: TypeEngine[Any] | None, zone: str) -> tuple[str, str]:
        return (
            (zone, "plain") if isinstance(kind, sa.DateTime) and not kind.timezone else ("UTC", "")
        )

    def zone_is_lost(self, kind: TypeEngine[Any]) -> bool:
        return not getattr(kind, "timezone", True)

    def created_default(self, zone: str, offset: int | None) -> str:
        return "now()"  # the column has a zone of its own

    def is_local_default(self, form: str, default: str) -> bool:
        return form == "plain" and super().is_local_default("", default)

    def key_type(self, length: int) -> TypeEngine[Any]:
        return sa.String(length, collation="C")

    # --- DDL.

    driver = "postgresql+psycopg"
    retypes_values = True
    owner_rights = "CREATE on the schema, and to own the tables"

    def table_options(self, by: str | None = None) -> dict[str, Any]:
        if by is not None:
            quoted = self.offline_dialect().identifier_preparer.quote(by)
            return {"postgresql_partition_by": f"HASH ({quoted})"}
        if not _KNOWS_WITH:
            sa.Table.argument_for("postgresql", "with", None)
        return {"postgresql_with": FREE_SPACE}

    def table_written(self, table: sa.Table, text: str) -> str:
        given = {} if _KNOWS_WITH else table.dialect_options["postgresql"].get("with") or {}
        if not given:
            return text
        settings = ", ".join(f"{name} = {value}" for name, value in given.items())
        return f"{text.rstrip()}\n WITH ({settings})\n\n"

    def partitions_of(self, sql: sa.Dialect, table: sa.Table, count: int) -> list[str]:
        quote = sql.identifier_preparer
        schema = "" if table.schema is None else f"{quote.quote_schema(table.schema)}."
        free = ", ".join(f"{name} = {value}" for name, value in FREE_SPACE.items())
        return [
            f"CREATE TABLE {schema}{quote.quote(f'{table.name}_p{n}')} PARTITION OF "
            f"{quote.format_table(table)}\n  FOR VALUES WITH (MODULUS {count}, REMAINDER {n}) "
            f"WITH ({free})"
            for n in range(count)
        ]

    def identity(self, *, always: bool = False) -> tuple[Any, ...]:
        # BY DEFAULT (always=False): a restore or a copy may bring its own ids.
        return (sa.Identity(always=always),)

    def alter_type(self, at: At, to: sa.Column[Any], was: Was = NOTHING) -> list[str]:
        kind, default = to.type.compile(dialect=at.sql), was.default_for(to)
        collation = getattr(was.kind, "collation", None)
        if collation and isinstance(to.type, sa.String):
            kind += f" COLLATE {at.sql.identifier_preparer.quote(collation)}"
        # Via text, to which every type can be cast: values that do not convert are refused, and so
        # are texts that are too long, which a cast to a length would cut.
        using = f"{at.quoted}::text"
        if not isinstance(to.type, sa.String | sa.Text | KeyText):
            using += f"::{kind}"
        if isinstance(to.type, sa.Integer):
            using = f"{at.quoted}::text::numeric::{kind}"
        if was.number and not isinstance(to.type, sa.Integer):
            using = f"to_timestamp({at.quoted})"
        if was.zone is not None:
            using = f"{at.quoted} AT TIME ZONE '{was.zone}'"
        changes = ["DROP DEFAULT", f"TYPE {kind} USING {using}"]
        if was.default and isinstance(to.type, sa.Integer) and isinstance(was.kind, sa.String):
            default = f"({default})::numeric::{kind}"
        changes += [f"SET DEFAULT {default}"] if default else []
        return _altered(at, *changes, *(["DROP NOT NULL"] if to.nullable else []))

    def broken_by(
        self, conn: sa.Connection, at: At, was: TypeEngine[Any], to: TypeEngine[Any]
    ) -> tuple[list[str], list[tuple[str, str]]]:
        known = {"full": at.table, "column": at.name}
        others = conn.scalars(sa.text(_OTHER_COLUMNS), known).all()
        new = f"CAST(NULL AS {to.compile(dialect=at.sql)}) AS {at.quoted}"
        source = f"(SELECT {', '.join([*others, new])} FROM {at.table})"
        texts = isinstance(was, sa.String) and not isinstance(was, sa.Enum)
        texts = texts and isinstance(to, sa.String | KeyText)
        fitting = {"text": texts, "whole": isinstance(to, sa.Integer)}

        def is_read(condition: str) -> bool:
            """Whether what is written for the old type means something with the new one."""
            query = f"SELECT FROM {source} x WHERE false AND ({condition}) IS NULL"
            try:
                conn.exec_driver_sql(query, execution_options={"no_parameters": True})
            except DBAPIError as error:
                raise_lost(error)
                return False
            return True

        held, checks = [], []
        for what, name, condition, odd, other in conn.execute(sa.text(_ON_COLUMN), known):
            if what == "check" and not is_read(condition):
                checks.append((name, condition))
            elif what == "index" and ((odd and not texts) or not is_read(condition)):
                held.append(f"index {name}")
            elif what == "foreign key" and not fitting.get(other):
                held.append(f"foreign key {name}")
        return held, checks

    def drop_not_null(self, at: At, kind: TypeEngine[Any], rest: str = "") -> list[str]:
        return _altered(at, "DROP NOT NULL", "DROP DEFAULT")

    def set_not_null(self, at: At, kind: TypeEngine[Any], rest: str = "") -> list[str]:
        return [] if isinstance(kind, sa.types.NullType) else _altered(at, "SET NOT NULL")

    def drop_generated(self, at: At) -> list[str]:
        return _altered(at, "DROP EXPRESSION IF EXISTS", "DROP IDENTITY IF EXISTS")

    def with_lock_limit(self, statement: str) -> tuple[str, ...]:
        return f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'", statement

    def index_online(self, statement: str) -> tuple[str, str]:
        text = re.sub(r"^CREATE (UNIQUE )?INDEX ", r"CREATE \1INDEX CONCURRENTLY ", statement)
        return text, f"{NOBODY}; it waits for transactions that are open"

    def index_anew(self, sql: sa.Dialect, statement: str, index: sa.Index) -> list[str]:
        if self.partitioned:  # where no index is built beside others
            return super().index_anew(sql, statement, index)
        assert index.table is not None
        quote, name = sql.identifier_preparer.quote, str(index.name)
        new = f"{name}_new"  # of at most 30 characters
        made = statement.replace(f"INDEX {quote(name)} ", f"INDEX {quote(new)} ", 1)
        drop = self.drop_index(sql, name, index.table)
        away = self.drop_index(sql, new, index.table)
        there = away.removeprefix("DROP INDEX ")
        return [
            # what is left of one that was ended in the middle
            away.replace("DROP INDEX", "DROP INDEX CONCURRENTLY IF EXISTS", 1),
            self.index_online(made)[0],
            f"DO $$ BEGIN PERFORM set_config('lock_timeout', '{LOCK_SECONDS}s', true); "
            f"{drop}; ALTER INDEX {there} RENAME TO {quote(name)}; END $$",
        ]

    def drop_unfinished(self, sql: sa.Dialect, table: sa.Table, index: str) -> str:
        quote = sql.identifier_preparer
        on = quote.format_table(table)
        name = quote.quote(index)
        name = name if table.schema is None else f"{quote.quote_schema(table.schema)}.{name}"
        text = name.replace("'", "''")
        return (
            f"DO $$ BEGIN PERFORM set_config('lock_timeout', '{LOCK_SECONDS}s', true); "
            f"LOCK TABLE {on} IN SHARE UPDATE EXCLUSIVE MODE NOWAIT; "
            f"IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('{text}') "
            f"AND NOT (indisvalid AND indisready)) THEN DROP INDEX {name}; END IF; END $$"
        )

    @contextmanager
    def in_turn(self, engine: sa.Engine, what: str) -> Iterator[None]:
        # Two that build an index on a table end in a deadlock.
        own = beside(engine)
        try:
            with own.connect() as conn:
                # Who builds an index waits for the end of each transaction that had a snapshot when
                # it began. So each look is a transaction; the SET ends the snapshot of the last.
                key, looks = zlib.crc32(what.encode()) - 2**31, 0
                while not conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(key))):
                    looks += 1
                    if looks == _LOOKS_IN_SILENCE:
                        owner = conn.scalar(sa.text(_HOLDS), {"low": key % 2**32})
                        text = "waiting for another upgrade of these tables, of session %s"
                        ends = "pg_terminate_backend(%s) ends it if its program is gone"
                        if owner is not None:  # not just freed
                            log.warning(f"{text}; {ends}", owner, owner)
                    conn.rollback()
                    time.sleep(_LOOK_SECONDS)
                conn.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
                yield
        except DBAPIError as error:
            raise unavailable(engine, error) from error
        finally:
            own.dispose()

    # --- The catalogue.

    other_schemas = (
        "SELECT table_schema FROM information_schema.tables"
        " WHERE lower(table_name) = lower(:name)"
        " AND table_schema <> coalesce(:own, current_schema())"
    )
    found_schema = (
        "SELECT nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = to_regclass(:table)"
    )
    name_holder = (
        "SELECT coalesce((SELECT CASE relkind WHEN 'S' THEN 'a sequence' WHEN 'v' THEN 'a view'"
        " WHEN 'm' THEN 'a materialized view' WHEN 'c' THEN 'a type' ELSE coalesce("
        "(SELECT 'an index of table ' || indrelid::regclass FROM pg_index WHERE indexrelid = c.oid)"
        ", 'a table') END FROM pg_class c WHERE relname = :name AND relnamespace = n.oid),"
        " (SELECT 'a type' FROM pg_type WHERE typname = :name AND typnamespace = n.oid"
        " AND to_regclass(:table) IS NULL)) FROM pg_namespace n WHERE n.oid = coalesce("
        "(SELECT relnamespace FROM pg_class WHERE oid = to_regclass(:table) AND relkind <> 'S'"
        " AND relkind <> 'i'),"
        " (SELECT oid FROM pg_namespace WHERE nspname = coalesce(:schema, current_schema())))"
    )
    column_types = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped"
    )
    row_estimate = "SELECT reltuples FROM pg_class WHERE oid = to_regclass(:table)"
    table_size = (
        "SELECT pg_table_size(c.oid) + coalesce((SELECT sum(pg_table_size(p.relid))"
        " FROM pg_partition_tree(c.oid) p WHERE p.relid <> c.oid), 0),"
        " pg_indexes_size(c.oid) + coalesce((SELECT sum(pg_indexes_size(p.relid))"
        " FROM pg_partition_tree(c.oid) p WHERE p.relid <> c.oid), 0)"
        " FROM pg_class c WHERE c.oid = to_regclass(:table) AND c.relkind IN ('r', 'p')"
    )

    def indexes_of(
        self, conn: sa.Connection, table: sa.Table, inspector: Inspector | None = None
    ) -> dict[str, LiveIndex]:
        query = (  # much less than the inspector's queries
            "SELECT lower(c.relname), indisunique, ARRAY(SELECT attname::text"
            " FROM unnest(indkey) WITH ORDINALITY AS k (number, place) LEFT JOIN pg_attribute"
            " ON attrelid = indrelid AND attnum = number WHERE place <= indnkeyatts"
            " ORDER BY place), indisvalid AND indisready, pg_get_expr(indpred, indrelid)"
            " FROM pg_index JOIN pg_class c ON c.oid = indexrelid"
            " WHERE indrelid = to_regclass(:table)"
        )
        found = conn.execute(sa.text(query), {"table": quoted(table)})
        return {str(name): LiveIndex(unique, tuple(on), *rest) for name, unique, on, *rest in found}

    def index_parts(self, conn: sa.Connection, table: sa.Table, index: str) -> set[str]:
        query = (
            "SELECT c.relname FROM pg_index i JOIN pg_class p ON p.oid = i.indexrelid"
            " CROSS JOIN pg_partition_tree(p.oid) t JOIN pg_class c ON c.oid = t.relid"
            " WHERE i.indrelid = to_regclass(:table) AND p.relname = :index"
        )
        known = {"table": quoted(table), "index": index}
        return {index, *conn.scalars(sa.text(query), known)}

    def has_partitions(self, conn: sa.Connection, table: sa.Table) -> bool:
        query = "SELECT FROM pg_partitioned_table WHERE partrelid = to_regclass(:table)"
        return conn.execute(sa.text(query), {"table": quoted(table)}).first() is not None

    def id_source(self, conn: sa.Connection, table: sa.Table, column: str) -> IdSource | None:
        known = {"table": quoted(table), "column": column}
        found = conn.execute(sa.text(_SEQUENCE_OF), known).first()
        if found is None:
            return None
        name, cycles, most, step, readable = found
        if not readable:
            return IdSource(name, cycles, None, most=most, step=step)
        # What the catalogue says of it is NULL as well where it was set and not called since.
        quoted_query = f"SELECT last_value, is_called FROM {name}".replace("%", "%%")
        last, used = conn.exec_driver_sql(quoted_query).one()
        return IdSource(name, cycles, last + step if used else last, used, most, step)

    def advance_ids(self, at: At, source: IdSource, highest: int) -> list[str]:
        text = source.name.replace("'", "''")
        return [
            f"SELECT setval('{text}', highest) FROM"
            f" (SELECT max({at.quoted}) AS highest FROM {at.table}) m"
            f" WHERE highest >= (SELECT last_value FROM {source.name})"
        ]

    def drop_layout(self, table: str, layout: str) -> str:
        return f"ALTER TABLE {table} SET LOGGED" if layout == "unlogged" else ""

    def end_ids(self, at: At, source: IdSource) -> str:
        return f"ALTER SEQUENCE {source.name} NO CYCLE"

    # --- A live table.

    rule_queries = (
        "SELECT 'check', conname::text, pg_get_expr(conbin, conrelid) FROM pg_constraint"
        " WHERE conrelid = to_regclass(:table) AND contype = 'c'",
        # with those of partitions alone, but not those that they have of the table's
        "SELECT DISTINCT 'trigger', tgname::text, pg_get_triggerdef(oid) FROM pg_trigger t"
        " WHERE (tgrelid = to_regclass(:table) OR tgrelid IN (SELECT inhrelid FROM pg_inherits"
        " WHERE inhparent = to_regclass(:table))) AND NOT tgisinternal AND tgenabled <> 'D'"
        " AND coalesce((to_jsonb(t) ->> 'tgparentid')::oid, 0) NOT IN"
        " (SELECT oid FROM pg_trigger WHERE tgenabled <> 'D')",
        "SELECT 'trigger', rulename::text, pg_get_ruledef(oid) FROM pg_rewrite"
        " WHERE ev_class = to_regclass(:table) AND rulename <> '_RETURN' AND ev_enabled <> 'D'",
        "SELECT 'compare', a.attname::text, CASE WHEN t.typname = 'citext' THEN 'citext'"
        " WHEN to_jsonb(c) ->> 'collisdeterministic' = 'false' THEN c.collname::text ELSE '' END"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " LEFT JOIN pg_collation c ON c.oid = a.attcollation"
        " WHERE a.attrelid = to_regclass(:table) AND a.attname = :object",
        "SELECT 'cut', a.attname::text, t.typname::text"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " WHERE a.attrelid = to_regclass(:table) AND t.typname IN ('char', 'name')"
        " AND t.typnamespace = 'pg_catalog'::regnamespace AND a.attnum > 0",
        "SELECT 'layout', partrelid::regclass::text, CASE WHEN partstrat = 'h' AND partnatts = 1"
        " AND partattrs[0] = attnum THEN 'hash' ELSE 'parent' END FROM pg_partitioned_table"
        " LEFT JOIN pg_attribute ON attrelid = partrelid AND attname = :object"
        " WHERE partrelid = to_regclass(:table)",
        "SELECT 'charset', '', pg_encoding_to_char(encoding)::text FROM pg_database"
        " WHERE datname = current_database() AND pg_encoding_to_char(encoding) <> 'UTF8'",
        "SELECT 'layout', min(inhrelid::regclass::text), 'heirs' FROM pg_inherits"
        " JOIN pg_class p ON p.oid = inhparent"
        " WHERE inhparent = to_regclass(:table) AND p.relkind <> 'p' GROUP BY inhparent",
        "SELECT 'layout', relname::text, 'unlogged' FROM pg_class"
        " WHERE oid = to_regclass(:table) AND relpersistence = 'u'",
        # found by the search_path, behind the schema of the table; only what has a guard is used
        "SELECT 'layout', m.relname::text, CASE WHEN EXISTS (SELECT FROM pg_index"
        " WHERE indrelid = m.oid AND indisunique AND indpred IS NOT NULL)"
        " THEN 'shared' ELSE 'sharing' END FROM pg_class m, pg_class o"
        " WHERE m.oid = to_regclass(:table) AND o.oid = to_regclass('msgworker_lease')"
        " AND CAST(:schema AS text) IS NULL AND o.relnamespace <> m.relnamespace AND EXISTS"
        " (SELECT FROM pg_class x WHERE x.relname = m.relname AND x.oid <> m.oid"
        " AND x.relkind IN ('r', 'p') AND x.relpersistence <> 't' AND EXISTS (SELECT FROM pg_index"
        " WHERE indrelid = x.oid AND indisunique AND indpred IS NOT NULL))",
        "SELECT 'layout', relname::text, CASE relkind WHEN 'm' THEN 'view' ELSE 'foreign' END"
        " FROM pg_class WHERE oid = to_regclass(:table) AND relkind IN ('f', 'm')",
        "SELECT 'layout', min(inhparent::regclass::text), 'heir' FROM pg_inherits"
        " WHERE inhrelid = to_regclass(:table) GROUP BY inhrelid",
        f"SELECT 'policy', {_POLICIES}"
        " WHERE c.oid = to_regclass(:table) AND row_security_active(c.oid) GROUP BY c.oid",
        # one that is being detached is not read any more
        "SELECT 'part', c.oid::regclass::text,"
        " substring(pg_get_expr(relpartbound, c.oid) FROM 'modulus (\\d+)')"
        " FROM pg_inherits i JOIN pg_class c ON c.oid = inhrelid"
        " WHERE inhparent = to_regclass(:table) AND relispartition"
        " AND coalesce(to_jsonb(i) ->> 'inhdetachpending', 'false') = 'false'",
    )
    policies = (
        f"SELECT c.relname::text, {_POLICIES} WHERE c.oid IN (SELECT to_regclass(x)"
        " FROM unnest(CAST(:tables AS text[])) AS x) AND row_security_active(c.oid)"
        " GROUP BY c.oid, c.relname ORDER BY 1"
    )
    cut_types = {"char": 1, "name": 63 // 4}  # noqa: RUF012
    codecs = {  # noqa: RUF012 - as psycopg has them
        **{f"WIN{n}": f"cp{n}" for n in (866, 874, *range(1250, 1259))},
        **{f"LATIN{n}": f"iso8859-{n}" for n in range(1, 5)},
        **{f"LATIN{5 + i}": f"iso8859-{n}" for i, n in enumerate((9, 10, 13, 14, 15, 16))},
        **{f"ISO_8859_{n}": f"iso8859-{n}" for n in range(5, 9)},
        **{"KOI8R": "koi8-r", "KOI8U": "koi8-u", "EUC_CN": "gb2312", "EUC_JP": "euc_jp"},
        **{"EUC_JIS_2004": "euc_jis_2004", "EUC_KR": "euc_kr", "SQL_ASCII": "utf-8"},
    }
    holders = (
        "SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid) "
        "FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_attribute a "
        "ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid "
        "LEFT JOIN pg_catalog.pg_attrdef g "
        "ON d.classid = CAST('pg_attrdef' AS regclass) AND g.oid = d.objid "
        "WHERE d.refclassid = CAST('pg_class' AS regclass) AND d.refobjid = to_regclass(:full) "
        "AND a.attname = :column AND (d.classid IN (CAST('pg_rewrite' AS regclass), "
        "CAST('pg_policy' AS regclass), CAST('pg_trigger' AS regclass), CAST('pg_proc' AS regclass)"
        ", CAST('pg_publication_rel' AS regclass)) OR g.adnum <> a.attnum) "
        "ORDER BY 1"
    )

    def fold_of(self, collation: str) -> str | None:
        return {"": None, "citext": "citext"}.get(collation, "unknown")

    def folded(self, column: sa.ColumnElement[Any], fold: str) -> sa.ColumnElement[Any]:
        return sa.func.lower(sa.cast(column, sa.Text()))

    as_text = "CAST({0} AS text)"
    is_not_whole = f"CAST({{0}} AS text) !~ '{WHOLE}'"

    def identified(self, conn: sa.Connection, full: str, reason: str) -> list[str]:
        if "replica identity" not in reason:
            return []
        return [str(found) for found in conn.scalars(sa.text(_IDENTITY), {"full": full})]

    # --- The server.

    server_settings = (
        _shown("fsync", ("on",), TORN),
        _shown("full_page_writes", ("on",), TORN),
        _shown("synchronous_commit", ("on", "local", "remote_write", "remote_apply"), LAST_MOMENTS),
        ServerSetting(
            "SELECT pg_is_in_recovery()::text", "in recovery", ("false",), READ_ONLY, needed=True
        ),
        _shown("default_transaction_read_only", ("off",), READ_ONLY, needed=True),
    )
    oldest_snapshot = (
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
    )
    analyze = "ANALYZE {}"
    current_user = "SELECT quote_ident(current_user)"
    explain = "EXPLAIN "

    # --- The engine.

    family = "postgresql"
    extra = "postgresql"
    port = 5432
    driver_options = dict.fromkeys(("psycopg", "psycopg2"), _LIBPQ)
    autocommit_flag = True

    def plain_url(self, url: URL) -> URL:
        return super().plain_url(servers.told_of_pooler(url)[0])

    def plain_query(
        self, driver: str, query: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], list[str]]:
        if driver != "asyncpg":
            return query, []
        named = {_OF_ASYNCPG[key]: value for key, value in query.items() if key in _OF_ASYNCPG}
        kept = {name: value for name, value in named.items() if name is not None}
        return kept, sorted(set(query) - set(_OF_ASYNCPG))

    def create_options(self, url: URL) -> tuple[URL, dict[str, Any]]:
        url, options, arguments = servers.told_of_pooler(url)
        url, args = super().create_options(url)
        args["connect_args"] |= arguments
        return url, args | {"execution_options": options}

    def prepare(self, engine: sa.Engine, *, given: bool) -> None:
        servers.notice_standby(engine)
        servers.notice_pooler(engine)

    def prepare_lent(self, engine: sa.Engine) -> None:
        if engine.driver == "asyncpg":  # SQLAlchemy would warn of a statement of ours
            own_dialect(engine, engine.dialect).compiler_linting = NO_LINTING

    def sessions(self, driver: str) -> tuple[Callable[[sa.Connection], None], ...]:
        return (_iso_dates,)

    def place(self, conn: sa.Connection, table: str) -> list[str]:
        query = (
            "SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()), "
            "current_database(), CAST(to_regclass(:full) AS oid)"
        )
        return [str(value) for value in conn.execute(sa.text(query), {"full": table}).one()]

    def listen(self, conn: sa.Connection, channel: str) -> None:
        conn.exec_driver_sql(f"LISTEN {conn.dialect.identifier_preparer.quote(channel)}")

    def wait_for_notice(self, conn: sa.Connection, seconds: float) -> bool:
        driver: Any = conn.connection.driver_connection
        if callable(driver.notifies):
            return any(True for _ in driver.notifies(timeout=seconds, stop_after=1))
        driver.poll()  # psycopg2: what came with the answers to statements
        if not driver.notifies:
            with selectors.DefaultSelector() as ready:
                ready.register(driver.fileno(), selectors.EVENT_READ)
                ready.select(seconds)
            driver.poll()
        came = bool(driver.notifies)
        driver.notifies.clear()
        return came

    def wake(self, conn: sa.Connection, channel: str) -> None:
        conn.execute(sa.select(sa.func.pg_notify(channel, "")))

    # --- Failovers.

    standby = "a standby"
    standby_query = "SELECT pg_catalog.pg_is_in_recovery()"

    def may_be_standby(self, raw: Any) -> bool:
        # What was reported when the connection was opened (version 14 and later) is only a hint: a
        # pooler repeats what it got itself, perhaps before a promotion. The server is asked.
        ask = getattr(getattr(raw, "info", None), "parameter_status", None)
        try:
            return ask is not None and ask("in_hot_standby") == "on"
        except Exception:  # the connection is closed
            return False

    def other_servers(self, conn: sa.Connection) -> list[Callable[[], Any]]:
        named = conn.dialect.create_connect_args(conn.engine.url)[1]
        hosts = str(named.get("host", "")).split(",")
        if len(hosts) == 1:
            return []
        ports = str(named.get("port", "")).split(",")
        ports = ports if len(ports) == len(hosts) else ports * len(hosts)
        info: Any = getattr(conn.connection.driver_connection, "info", None)
        given = _parameters(info)
        if not given:
            return []
        given |= {"target_session_attrs": "any", "connect_timeout": servers.PATIENCE_SECONDS}
        given.pop("hostaddr", None)
        connect = conn.dialect.loaded_dbapi.connect

        def way(host: str, port: str) -> Callable[[], Any]:
            return lambda: connect(**{**given, "host": host, "port": port})

        used = info.host, str(info.port)
        others = [(host, port or "5432") for host, port in zip(hosts, ports, strict=True)]
        return [way(host, port) for host, port in others if (host, port) != used]

    def new_past(self) -> Timelines:
        return Timelines()


def _altered(at: At, *changes: str) -> list[str]:
    return [at.alter(*(f"ALTER COLUMN {at.quoted} {change}" for change in changes))]


_OTHER_COLUMNS = (
    "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = to_regclass(:full)"
    " AND attnum > 0 AND NOT attisdropped AND attname <> :column"
)
# Of an index: what it computes, whether it is of another kind than those that every type has; of
# foreign keys: of which kind the other column is.
_ON_COLUMN = (
    "WITH a AS (SELECT attrelid, attnum FROM pg_attribute WHERE attrelid = to_regclass(:full)"
    " AND attname = :column)"
    " SELECT 'check', conname::text, pg_get_expr(conbin, conrelid), false, ''"
    " FROM a JOIN pg_constraint ON conrelid = attrelid AND contype = 'c' AND attnum = ANY(conkey)"
    " UNION ALL SELECT 'index', i.indexrelid::regclass::text, 'ROW(' || concat_ws(', ',"
    " pg_get_expr(indexprs, indrelid), pg_get_expr(indpred, indrelid)) || ')',"
    " EXISTS (SELECT FROM unnest(indkey, indclass) AS k (number, class) JOIN pg_opclass o"
    " ON o.oid = class JOIN pg_am m ON m.oid = opcmethod WHERE number = attnum"
    " AND NOT (opcdefault AND amname IN ('btree', 'hash', 'brin'))), ''"
    " FROM a JOIN pg_index i ON indrelid = attrelid AND (attnum = ANY(indkey)"
    " OR EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass"
    " AND objid = indexrelid AND refclassid = 'pg_class'::regclass AND refobjid = attrelid"
    " AND refobjsubid = attnum))"
    " UNION ALL SELECT 'foreign key', conname || ' of ' || conrelid::regclass, '', false,"
    " CASE WHEN t.typname IN ('int2', 'int4', 'int8') THEN 'whole'"
    " WHEN t.typcategory = 'S' THEN 'text' ELSE '' END"
    " FROM (SELECT k.*, CASE WHEN side = 1 THEN confrelid ELSE conrelid END AS there,"
    " CASE WHEN side = 1 THEN confkey[array_position(conkey, attnum)]"
    " ELSE conkey[array_position(confkey, attnum)] END AS number"
    " FROM a, pg_constraint k, generate_series(1, 2) AS side WHERE contype = 'f'"
    " AND CASE WHEN side = 1 THEN conrelid = attrelid AND attnum = ANY(conkey)"
    " ELSE confrelid = attrelid AND attnum = ANY(confkey) END) f"
    " JOIN pg_attribute o ON o.attrelid = there AND o.attnum = number"
    " JOIN pg_type t ON t.oid = o.atttypid"
)
_SEQUENCE_OF = (
    "SELECT quote_ident(nspname) || '.' || quote_ident(relname), seqcycle, seqmax, seqincrement,"
    " has_sequence_privilege(seqrelid, 'SELECT') FROM pg_sequence"
    " JOIN pg_class ON pg_class.oid = seqrelid JOIN pg_namespace n ON n.oid = relnamespace"
    " WHERE seqrelid = coalesce(pg_get_serial_sequence(:table, :column)::regclass::oid,"
    " (SELECT min(refobjid) FROM pg_attribute a JOIN pg_attrdef f ON f.adrelid = a.attrelid"
    " AND f.adnum = a.attnum JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass"
    " AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass"
    " JOIN pg_sequence s ON s.seqrelid = d.refobjid"
    " WHERE a.attrelid = to_regclass(:table) AND a.attname = :column))"
)
_IDENTITY = (
    "SELECT 'ALTER TABLE ' || CAST(c.oid AS regclass) || ' REPLICA IDENTITY ' || coalesce(("
    "SELECT 'USING INDEX ' || quote_ident(min(n.relname)) FROM pg_catalog.pg_index i "
    "JOIN pg_catalog.pg_class n ON n.oid = i.indexrelid WHERE i.indrelid = c.oid "
    "AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL "
    "AND i.indexprs IS NULL AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute a "
    "WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) AND NOT a.attnotnull)), 'FULL') "
    "FROM pg_catalog.pg_class c WHERE c.relkind = 'r' AND (c.relreplident = 'n' "
    "OR c.relreplident = 'd' AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_index p "
    "WHERE p.indrelid = c.oid AND p.indisprimary)) AND (c.oid = to_regclass(:full) "
    "OR c.oid IN (SELECT t.relid FROM pg_partition_tree(to_regclass(:full)) t)) ORDER BY c.relname"
)


log = logger("msgworker.dialects")
_TROUBLES = {
    "23505": Trouble.RACE,
    **dict.fromkeys(("40001", "40P01", "55P03", "57014", "72000"), Trouble.AGAIN),
    **dict.fromkeys(("25P03", "25P04", "40003"), Trouble.LOST),
    **dict.fromkeys(("57P01", "57P02", "57P03", "57P04", "57P05"), Trouble.LOST),
    **dict.fromkeys(("25006", "28000", "28P01", "3D000"), Trouble.REFUSED),
    **dict.fromkeys(("42501", "42703", "42804", "42883", "42P01"), Trouble.REFUSED),
}
_CLASSES = {  # the first two characters of a code that is not listed above
    "08": Trouble.LOST,
    "53": Trouble.LOST,  # no connection, memory or disk space left
    "58": Trouble.LOST,  # trouble of the operating system
}
FREE_SPACE = {"fillfactor": 90}
"""Leaves space in each page for new versions of rows."""
_LOOK_SECONDS = 0.5
"""Between two tries to be in turn."""
_LOOKS_IN_SILENCE = 10
"""After so many it says for whom it waits."""
_HOLDS = (
    "SELECT min(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND objid::bigint = :low"
)
"""Who has the advisory lock of this key, by its lower half."""
_KNOWS_WITH = not sa.__version__.startswith("2.0.")
"""Whether SQLAlchemy has the storage parameters of a table."""
_CANCEL_SECONDS = 0.1
"""Between two cancels of what is still running, through a pooler."""


@contextmanager
def _cancelling(conn: sa.Connection, seconds: float) -> Iterator[None]:
    raw: Any = conn.connection.driver_connection
    ended = threading.Event()

    def watch() -> None:
        if ended.wait(seconds):
            return
        while not ended.is_set():  # between two statements a cancel ends none
            with suppress(Exception):
                raw.cancel()
            ended.wait(_CANCEL_SECONDS)

    watching = threading.Thread(target=watch, name="msgworker-deadline", daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _iso_dates(conn: sa.Connection) -> None:
    # psycopg reads instants in the ISO style only; roles, databases and URLs may set another. The
    # driver already knows the style from the server, so this needs no statement.
    raw: Any = conn.connection.driver_connection
    told = getattr(getattr(raw, "pgconn", None), "parameter_status", lambda _: None)(b"DateStyle")
    if told is not None and not told.startswith(b"ISO"):
        raw.execute("SET datestyle TO ISO")
        raw.commit()


def _parameters(info: Any) -> dict[str, Any]:
    """What libpq was given for the connection in use: by psycopg 3, or psycopg2; of another driver
    nothing."""
    try:
        ask = getattr(info, "get_parameters", None)
        given = dict(info.dsn_parameters if ask is None else ask())
        return given | ({"password": info.password} if info.password else {})
    except Exception:  # the connection is closed, or there is no such thing
        return {}


# --- The timelines of PostgreSQL: each promotion of a standby begins a new one, with a higher
# number; the old primary stays on the older one.

_ASK_TIMELINE = (
    "SELECT s.system_identifier, CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL"
    " ELSE pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END"
    " FROM pg_catalog.pg_control_system() s"
)
"""A name of a WAL file begins with the timeline that is written to, in eight hexadecimal digits."""
_ASK_OTHER = (
    "SELECT s.system_identifier, c.timeline_id"
    " FROM pg_catalog.pg_control_system() s, pg_catalog.pg_control_checkpoint() c"
)
"""That of its last checkpoint, also of a standby; it may be on a newer one by now."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """cluster: the identifier that a primary and its standbys share."""

    cluster: int
    number: int


class Timelines(servers.Past[Timeline]):
    """The newest one that was seen."""

    def __init__(self) -> None:
        self.tells = True
        self._newest: Timeline | None = None

    def ask(self, cursor: Any) -> Timeline | None:
        cursor.execute(_ASK_TIMELINE)
        cluster, file = cursor.fetchone()
        return None if file is None else Timeline(int(cluster), int(file[:8], 16))

    def is_untold(self, error: Exception) -> bool:
        # A missing right, function, table or schema; not supported.
        return code_of(error)[1] in ("42501", "42883", "42P01", "0A000", "3F000")

    def is_old(self, found: Timeline) -> bool:
        seen = self._newest
        # A database with another identifier, as after a restore, is another database.
        return seen is not None and seen.cluster == found.cluster and found.number < seen.number

    def sees(self, found: Timeline) -> bool:
        newer = self._newest is not None and self._newest != found
        self._newest = found
        return newer

    def ask_other(self, cursor: Any) -> Timeline | None:
        found = self.ask(cursor)
        if found is None:
            cursor.execute(_ASK_OTHER)
            found = Timeline(*(int(one) for one in cursor.fetchone()))
        return found

    def hears(self, found: Timeline) -> None:
        seen = self._newest
        if seen is None or (seen.cluster == found.cluster and seen.number < found.number):
            self._newest = found

    def words(self, found: Timeline) -> str | None:
        if found.number == 1:
            return None
        return f"on timeline {found.number}; a primary that it replaced has a lower one"

    def words_of_old(self, found: Timeline) -> str:
        newest = found.number if self._newest is None else self._newest.number
        return (
            f"the server is on timeline {found.number}, but there is timeline {newest} of the same "
            "database"
        )
