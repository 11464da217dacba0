"""SQLite: how its one writer begins and waits, hints, and the database file."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.engine import URL
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from msgworker.db import database
from msgworker.db.connections import (
    attempt,
    closed_after_failure,
    connecting,
    is_ours_alone,
    unavailable,
)
from msgworker.db.errors import note_rolled_back
from msgworker.errors import ConfigError, HandlerMisuse, SchemaError
from msgworker.logs import logger
from msgworker.payload import BEGINNING

log = logger("msgworker.dialects")
_LEAST = (3, 38, 0)
_MOST = 4 * BEGINNING + 4


class SQLite(database.Database):
    """SQLite 3.38 and later: a file on a local disk, with one writer at a time."""

    name = "sqlite"
    partial_indexes = True
    oldest_index = True
    recursive_skip_scan = True
    on_conflict = True
    insert = staticmethod(sqlite.insert)
    slices_by_age = True  # a commit writes each page that it has changed, whole
    row_locks = False
    skip_locked = False
    update_ignore = "OR IGNORE"
    max_ids = 10_000
    json_lists = True
    index_hint = "INDEXED BY {}"
    one_writer = True
    rolls_back_ddl = True
    loose_types = True

    tells_no_other_ids = True

    def returns_ids(self, version: tuple[Any, ...]) -> bool:
        return version >= (3, 35)

    # --- Errors: the driver of the standard library has codes since Python 3.11 only.

    def trouble(self, error: BaseException) -> database.Trouble:
        text = str(error).lower()
        return next((kind for part, kind in _TROUBLES if part in text), database.Trouble.OTHER)

    lacking = re.compile(r"no such (?:table|column): ([\w$.]+)")

    codes = {"overtime": ("interrupted",)}  # noqa: RUF012

    def code(self, error: BaseException) -> str:
        return str(error)

    # --- Deadlines: of all that is done in the block, as statements read on while their rows are
    # fetched.

    @contextmanager
    def deadline(self, conn: sa.Connection, seconds: float) -> Iterator[None]:
        raw: Any = conn.connection.driver_connection
        until = time.monotonic() + seconds
        raw.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)

    before_transaction = deadline

    # --- Time: a text.

    session_offset = (
        "SELECT CAST(strftime('%s', 'now', 'localtime') AS INTEGER) "
        "- CAST(strftime('%s', 'now') AS INTEGER)"
    )

    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    # Rounded: a double has a Julian day to 40 microseconds, perhaps just below a millisecond.
    now_ms = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
    now_plus = "strftime('%Y-%m-%d %H:%M:%f', 'now', {0} || ' seconds')"
    seconds_passed = "((julianday('now') - julianday({0})) * 86400.0)"
    step_of = "(CAST(strftime('%s', {0}) AS INTEGER) / {1})"
    moved = "strftime('%Y-%m-%d %H:%M:%f', {0}, ({1}) || ' seconds')"
    text_of = "{0}"
    real = (  # julianday() also accepts 'now' and numbers
        "CASE WHEN {0} GLOB '[0-9][0-9][0-9][0-9]-*' AND julianday({0}) IS NOT NULL THEN {0} END"
    )
    literal_instants = False

    # --- Columns.

    text_instants = True
    odd_texts = True

    bytewise = "({0} COLLATE BINARY)"
    # In bytes, since characters are counted up to a NUL there; and each value is loaded once, since
    # it is loaded whole. A part of no bytes is NULL there.
    beginning = (
        "(CASE typeof({0}) WHEN 'text'"
        f" THEN ifnull(CAST(substr(CAST({{0}} AS BLOB), 1, {_MOST}) AS TEXT), '')"
        f" WHEN 'blob' THEN ifnull(substr({{0}}, 1, {_MOST}), x'') ELSE {{0}} END)"
    )
    given_back = "CAST({0} AS TEXT)"

    def instant_type(self, *, zoned: bool) -> TypeEngine[Any]:
        return sa.Text()

    def created_default(self, zone: str, offset: int | None) -> str:
        by = ", 'localtime'" if offset is None else f", '{offset} seconds'" if offset else ""
        return f"(strftime('%Y-%m-%d %H:%M:%f', 'now'{by}))"

    def is_local_default(self, form: str, default: str) -> bool:
        return "localtime" in default and super().is_local_default(form, default)

    def key_type(self, length: int) -> TypeEngine[Any]:
        return sa.Text()

    # --- DDL: of a table that is there little can be changed.

    driver = "sqlite"
    unpartitioned = "SQLite has no partitions"
    owner_rights = "to write the file and its directory"

    def table_options(self, by: str | None = None) -> dict[str, Any]:
        return {"sqlite_autoincrement": True}  # else the id of a deleted last row is reused

    def takes_default(self, column: sa.Column[Any]) -> bool:
        return "(" not in database.default_of(column)

    def set_default(self, at: database.At, default: str) -> tuple[str, ...]:
        return ()

    def drop_check(self, at: database.At) -> tuple[str, ...]:
        return ()

    def rename_index(self, sql: sa.Dialect, index: str, new: str, table: sa.Table) -> str:
        return ""

    # --- The catalogue.

    name_holder = (
        "SELECT CASE type WHEN 'index' THEN 'an index of table ' || tbl_name ELSE 'a ' || type END"
        " FROM sqlite_master WHERE lower(name) = lower(:name) AND type <> 'trigger'"
    )
    file_size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"

    def indexes_of(
        self, conn: sa.Connection, table: sa.Table, inspector: Inspector | None = None
    ) -> dict[str, database.LiveIndex]:
        query = (  # the inspector leaves out indexes on expressions
            "SELECT lower(i.name), coalesce(sql, 'UNIQUE ON'), json_group_array(x.name),"
            " json_group_array(x.desc)"
            " FROM sqlite_master i, pragma_index_xinfo(i.name) x"
            " WHERE type = 'index' AND lower(tbl_name) = lower(:table) AND x.key = 1"
            " GROUP BY i.name"
        )
        made = {}
        for name, text, columns, orders in conn.execute(sa.text(query), {"table": table.name}):
            where = _WHERE.search(text)
            unique = re.match(r"\s*(CREATE\s+)?UNIQUE\b", text, re.I) is not None
            made[str(name)] = database.LiveIndex(
                unique,
                tuple(json.loads(columns)),
                where=None if where is None else where[1],
                descending=tuple(map(bool, json.loads(orders))),
            )
        return made

    # --- A live table.

    rule_queries = (
        "SELECT type, name, sql FROM sqlite_master WHERE lower(tbl_name) = lower(:name)"
        " AND type IN ('table', 'trigger')",
        "SELECT 'compare', name, coll FROM pragma_index_xinfo(:guard) WHERE key = 1",
        # a key that has no index of its own
        "SELECT 'rowid', max(name), '' FROM pragma_table_info(:name) WHERE pk > 0 AND NOT EXISTS"
        " (SELECT 1 FROM pragma_index_list(:name) WHERE origin = 'pk') HAVING count(*) = 1",
    )

    column_types = "SELECT name, type FROM pragma_table_info(:name)"

    def fold_of(self, collation: str) -> str | None:
        known = {"BINARY": None, "": None, "NOCASE": "lower", "RTRIM": "rtrim"}
        return known.get(collation.upper(), "unknown")

    def folded(self, column: sa.ColumnElement[Any], fold: str) -> sa.ColumnElement[Any]:
        # of texts only; 1 and '1' differ
        is_text = sa.func.typeof(column) == sa.literal_column("'text'")
        by = sa.func.lower(column) if fold == "lower" else sa.func.rtrim(column)
        return sa.case((is_text, by), else_=column)

    def check_schema(self, schema: str | None) -> None:
        if (schema or "main").lower() != "main":
            raise SchemaError(
                f"{schema} is another file, with which an outcome and what its handler has written "
                "are not committed as one: give the App that file"
            )

    # --- The server, which is none.

    server_settings = (
        database.ServerSetting(
            "PRAGMA journal_mode",
            "journal_mode",
            ("wal",),
            "readers and the writer wait for each other",
            ("PRAGMA journal_mode=WAL",),
        ),
    )
    analyze = "ANALYZE {}"
    explain = "EXPLAIN QUERY PLAN "

    def plan_line(self, row: sa.Row[Any]) -> str:
        return str(row[-1])

    # --- The engine.

    family = "sqlite"
    is_file = True
    inlined_lists = "qmark"
    probe = "PRAGMA schema_version"  # the file is read at the first statement only
    # Readers and the writer do not wait for each other.
    set_up_statement = "PRAGMA journal_mode=WAL"

    def check_url(self, url: URL) -> None:
        if any((url.username, url.password, url.host, url.port)):
            raise ConfigError(
                "the url of a SQLite database names a host or a user, but it is a file: write "
                'three slashes before a relative path, such as "sqlite:///messages.db", and four '
                "before an absolute one"
            )
        name = url.database or ""
        if not name or ":memory:" in name or url.query.get("mode") == "memory":
            raise ConfigError(
                "an in-memory SQLite database belongs to one connection, a worker needs several; "
                'use a file, such as "sqlite:///messages.db"'
            )

    def plain_url(self, url: URL) -> URL:
        # A name such as file:x.db?uri=true is interpreted by the driver.
        path = url.database or ""
        return url if path.startswith("file:") else url.set(database=os.path.realpath(path))

    def another_file(self, url: URL, other: URL) -> str:
        files = [one.database or "" for one in (url, other)]
        if any(file.startswith("file:") for file in files):
            return ""
        mine, given = (os.path.realpath(file) for file in files)
        return "" if mine == given else f"is of the file {given}, but the App's is {mine}"

    def file_path(self, url: URL) -> str:
        name, is_uri = url.database or "", sa.util.asbool(url.query.get("uri", False))
        return _path_in(name) if is_uri else name and os.path.abspath(name)

    def create_options(self, url: URL) -> tuple[URL, dict[str, Any]]:
        options = {"timeout": 60, "check_same_thread": False}
        return url, {"connect_args": options, "poolclass": sa.QueuePool}

    def created(self, engine: sa.Engine) -> None:
        event.listen(engine, "do_connect", _own_file)
        event.listen(engine, "connect", _sync_fully)

    def prepare(self, engine: sa.Engine, *, given: bool) -> None:
        found: tuple[int, ...] = getattr(engine.dialect.dbapi, "sqlite_version_info", _LEAST)
        if found < _LEAST:
            raise ConfigError(
                f"SQLite {'.'.join(map(str, found))} is too old; 3.38 or later is needed"
            )
        if given:
            event.listen(engine, "engine_connect", _refuse_autocommit)
            event.listen(engine, "before_cursor_execute", _begun_already, retval=True)
        event.listen(engine, "begin", _begin_immediate)
        event.listen(engine, "handle_error", _begin_again)
        if not given:
            engine.dialect.statement_compiler = HintingCompiler

    def prepare_beside(self, own: sa.Engine, engine: sa.Engine) -> None:
        if engine.dialect.statement_compiler is not HintingCompiler:
            database.own_dialect(own, engine.dialect).statement_compiler = HintingCompiler

    def sessions(self, driver: str) -> tuple[Callable[[sa.Connection], None], ...]:
        return (_busy_timeout,)

    def place(self, conn: sa.Connection, table: str) -> list[str]:
        query = "SELECT file FROM pragma_database_list WHERE name = 'main'"
        file = str(conn.scalar(sa.text(query)))
        return [os.path.realpath(file)] if file else []

    def set_up(self, engine: sa.Engine) -> None:
        kind = network_mount(engine.url.database or "", _mounts())
        if kind:
            log.warning(
                "the database file is on a network mount (%s): SQLite needs locks and "
                "shared memory that such mounts do not give; use a local disk",
                kind,
            )
        until = time.monotonic() + BUSY_SECONDS
        while True:  # SQLite itself does not wait for a program that writes now
            try:
                with connecting(engine) as conn:
                    conn.exec_driver_sql(self.set_up_statement).close()
                return
            except DBAPIError as error:
                if self.trouble(error) is not database.Trouble.AGAIN:
                    raise
                if time.monotonic() >= until:
                    raise unavailable(engine, error) from error
            time.sleep(BUSY_LOOK_SECONDS)

    @contextmanager
    def user_code(self, conn: sa.Connection) -> Iterator[None]:
        # Another transaction of this thread would wait for this one until both time out, and block
        # all other threads of the instance.
        before = getattr(_lent, "url", None)
        _lent.url = conn.engine.url
        try:
            yield
        finally:
            _lent.url = before


_TROUBLES = (
    ("unique constraint", database.Trouble.RACE),
    ("is locked", database.Trouble.AGAIN),
    ("locking protocol", database.Trouble.AGAIN),  # too many open the file at once
    ("unable to open", database.Trouble.LOST),
    ("disk i/o", database.Trouble.LOST),
    ("database or disk is full", database.Trouble.LOST),
    ("readonly", database.Trouble.REFUSED),
    ("not a database", database.Trouble.REFUSED),
    ("no such table", database.Trouble.REFUSED),
    ("no such column", database.Trouble.REFUSED),
)
_WHERE = re.compile(r"\)\s*WHERE\b(.*)", re.I | re.S)
"""In a CREATE INDEX."""
_STEPS = 1_000
"""The time is looked at after so many steps of SQLite's virtual machine."""


class HintingCompiler(SQLiteCompiler):
    """SQLAlchemy's compiler, with hints (INDEXED BY) written out."""

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        return text


def _refuse_autocommit(conn: sa.Connection) -> None:
    # Python 3.12 and later: with True its commit() does nothing, with False a read never ends.
    if isinstance(getattr(conn.connection.driver_connection, "autocommit", None), bool):
        with closed_after_failure(conn):
            raise ConfigError(
                "the engine connects to SQLite with autocommit=, with which its transactions are "
                "not those of SQLAlchemy; leave it out of the connect_args"
            )


def _begun_already(conn: sa.Connection, _cursor: Any, statement: str, params: Any, *_: Any) -> Any:
    # A program's own listener, which is called after ours, may say BEGIN, too: SQLAlchemy's manual
    # advises it. It would fail, and open a transaction in autocommit mode.
    if vars(conn).pop(_BEGINNING, False) and statement.lstrip()[:5].upper() == "BEGIN":
        statement = "SELECT 1"
    return statement, params


_BEGINNING = "msgworker_beginning"
"""On our connections: SQLAlchemy has begun a transaction, and sent no statement in it."""


def _begin_immediate(conn: sa.Connection) -> None:
    # A transaction that reads first and writes later fails if the database changed in between
    # (SQLITE_BUSY_SNAPSHOT, which no timeout prevents); so writers take the write lock at once.
    raw = conn.connection.dbapi_connection
    vars(conn)[_BEGINNING] = False
    begun = getattr(raw, "in_transaction", False)
    if not begun and conn.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        if conn.dialect.is_async:  # its thread waits, and the loop goes on
            conn.exec_driver_sql("BEGIN IMMEDIATE")
        elif getattr(_lent, "url", None) == conn.engine.url:
            raise HandlerMisuse(
                "this code runs in the one transaction that may write to SQLite, and would wait "
                "for itself: write with ctx.connection or ctx.session"
            )
        else:
            _take_write_lock(conn, raw)
        begun = True
    vars(conn)[_BEGUN], vars(conn)[_BEGINNING] = begun, True
    if not is_ours_alone(conn):
        _lent.begun = weakref.ref(conn)


_BEGUN = "msgworker_begun"
"""On our connections: whether a transaction of SQLite is open where one of SQLAlchemy is."""


def _begin_again(context: Any) -> None:
    # Some errors (a full disk, an interrupted write, ids that are used up, no memory) end the whole
    # transaction, and SQLite begins no other: what follows would commit statement by statement.
    # So another one is begun, as MySQL does; code that hides the error: see `refuse_rest`.
    conn = context.connection
    if conn is None or conn.invalidated or not (conn.in_transaction() and vars(conn).get(_BEGUN)):
        return
    raw = conn.connection
    try:
        if not getattr(raw.driver_connection, "in_transaction", True):
            note_rolled_back(context)
            raw.dbapi_connection.execute("BEGIN")
    except Exception:  # it is closed, or there is no memory
        conn.invalidate(context.original_exception)


_lent = threading.local()
"""url: of the transaction in which user code runs. begun: the last connection of user code that
has begun one in this thread."""

OWN_SECONDS = 5.0
"""How long we wait for a transaction of our own thread, which another one may be about to end."""


def _waits_for_itself(conn: sa.Connection) -> bool:
    """Whether the write lock is held by user code of this thread, while it calls us."""
    found = getattr(_lent, "begun", lambda: None)()
    if found is None or not is_ours_alone(conn) or found.engine.url != conn.engine.url:
        return False
    return bool(not found.closed and found.in_transaction() and vars(found).get(_BEGUN))


BUSY_SECONDS = 60.0
"""How long a writer waits for another one on SQLite."""
BUSY_LOOK_SECONDS = 0.002


def _take_write_lock(conn: sa.Connection, raw: Any) -> None:
    # SQLite's busy handler polls up to every 100 ms, so that the last writer nearly always gets
    # the lock again, and a heartbeat beside a busy process starves. Short intervals are fair.
    mine = attempt()
    rest = None if mine is None else mine.check()
    cursor = raw.cursor()
    after = _BUSY_TIMEOUT
    if not is_ours_alone(conn):
        after = f"PRAGMA busy_timeout={cursor.execute('PRAGMA busy_timeout').fetchone()[0]}"
    cursor.execute("PRAGMA busy_timeout=0")
    try:
        deadline = (begun := time.monotonic()) + (BUSY_SECONDS if rest is None else rest)
        while (now := time.monotonic()) < deadline:
            try:
                cursor.execute("BEGIN IMMEDIATE")
                return
            except Exception as error:  # the driver may be another than the standard library's
                if "locked" not in str(error):
                    break
            if now - begun >= OWN_SECONDS and _waits_for_itself(conn):
                raise ConfigError(
                    "this thread has a transaction open, and SQLite has one writer at a time: what "
                    "is written beside it would wait for its end. End it first, or write in it: "
                    "App.job(..., conn=conn), job.seal(conn)"
                )
            time.sleep(random.uniform(0.25, 1) * BUSY_LOOK_SECONDS)
        conn.exec_driver_sql("BEGIN IMMEDIATE")  # raises SQLAlchemy's errors
    finally:
        cursor.execute(after)
        cursor.close()


def _own_file(_dialect: Any, _record: Any, args: Any, options: Any) -> None:
    # It holds payloads: only the owner may read a file that we create; -wal and -shm follow it.
    path = args[0] if args else ""
    if options.get("uri"):
        path = "" if re.search(r"[?&](mode=(ro|rw)|vfs=memdb)\b", path) else _path_in(path)
    if path:
        with suppress(OSError):  # it exists, or SQLite reports the error
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _path_in(uri: str) -> str:
    """The file that a URI of SQLite's leads to (file:x.db?mode=ro); "" if it is none."""
    if not uri.startswith("file:"):
        return uri and os.path.abspath(uri)
    path = unquote(urlsplit(uri).path)
    return path and os.path.abspath(path)


def _sync_fully(raw: Any, _record: Any) -> None:
    # The default of nearly all builds of SQLite; with less, the last commits could be lost after a
    # power cut.
    raw.execute("PRAGMA synchronous=FULL")
    raw.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")


_BUSY_TIMEOUT = f"PRAGMA busy_timeout={BUSY_SECONDS * 1000:.0f}"


def _busy_timeout(conn: sa.Connection) -> None:
    raw = conn.connection.dbapi_connection
    assert raw is not None
    cursor = raw.cursor()
    cursor.execute(_BUSY_TIMEOUT)
    cursor.close()


WAL_BYTES = 64 * 1024 * 1024
"""To which the file of the log is cut back once it has been copied: a reader that was open for long
lets it grow, and SQLite leaves it as large as it was."""


def network_mount(path: str, mounts: str) -> str | None:
    """The type of the mount of a file, if it is a network mount; mounts: as in /proc/mounts."""
    longest, kind = "", ""
    full = os.path.abspath(path)
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) > 2:
            folder = parts[1].replace("\\040", " ").rstrip("/")
            if full.startswith(f"{folder}/") and len(folder) >= len(longest):
                longest, kind = folder, parts[2]
    network = kind.startswith(("nfs", "cifs", "smb", "fuse.sshfs", "9p", "afs", "ceph", "gluster"))
    return kind if network else None


def _mounts() -> str:
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # not Linux
        return ""
