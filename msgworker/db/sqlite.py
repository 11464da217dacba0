"""SQLite: how its one writer begins and waits, hints, and the database file."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler

from msgworker.db.attempts import attempt
from msgworker.db.connections import connecting, is_ours_alone
from msgworker.db.database import Database, Trouble
from msgworker.errors import HandlerMisuse
from msgworker.logs import logger

log = logger("msgworker.dialects")
SQLITE_LEAST = (3, 38, 0)


class SQLite(Database):
    """SQLite 3.38 and later: a file on a local disk, with one writer at a time."""

    name = "sqlite"
    partial_indexes = True
    oldest_index = True
    recursive_skip_scan = True
    on_conflict = True
    slices_by_age = True  # a commit writes each page that it has changed, whole
    row_locks = False
    skip_locked = False
    update_ignore = "OR IGNORE"
    max_ids = 10_000
    json_lists = True
    index_hint = "INDEXED BY {}"
    one_writer = True
    loose_types = True

    tells_no_other_ids = True

    def returns_ids(self, version: tuple[Any, ...]) -> bool:
        return version >= (3, 35)

    def insert_unless(
        self,
        table: sa.Table,
        values: dict[str, Any],
        column: sa.ColumnElement[Any],
        where: sa.ColumnElement[bool],
    ) -> sa.Insert:
        from sqlalchemy.dialects import sqlite

        given = sqlite.insert(table).values(values)
        return given.on_conflict_do_nothing(index_elements=[column], index_where=where)

    # --- Errors: the driver of the standard library has codes since Python 3.11 only.

    def trouble(self, error: BaseException) -> Trouble:
        text = str(error).lower()
        return next((kind for part, kind in _TROUBLES if part in text), Trouble.OTHER)

    def is_overtime(self, error: BaseException) -> bool:
        return str(error) == "interrupted"

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


_TROUBLES = (
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
_STEPS = 1_000
"""The time is looked at after so many steps of SQLite's virtual machine."""


@cache
def _hinting_compiler() -> type[SQLCompiler]:
    from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

    class HintingCompiler(SQLiteCompiler):
        """SQLAlchemy's compiler, with hints (INDEXED BY) written out."""

        def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
            return text

    return HintingCompiler


def _begin_immediate(conn: sa.Connection) -> None:
    # A transaction that reads first and writes later fails if the database changed in between
    # (SQLITE_BUSY_SNAPSHOT, which no timeout prevents); so writers take the write lock at once.
    raw = conn.connection.dbapi_connection
    begun = getattr(raw, "in_transaction", False)  # by a listener of the user's own Engine
    if not begun and conn.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        if getattr(_lent, "url", None) == conn.engine.url:
            raise HandlerMisuse(
                "this code runs in the one transaction that may write to SQLite, and would wait "
                "for itself: write with ctx.connection or ctx.session"
            )
        _take_write_lock(conn, raw)


_lent = threading.local()


@contextmanager
def lending(conn: sa.Connection) -> Iterator[None]:
    """The block runs user code on this thread in the transaction of `conn`. On SQLite another
    transaction of this thread would wait for it until both time out, and block all other threads of
    the instance."""
    before = getattr(_lent, "url", None)
    _lent.url = conn.engine.url if conn.dialect.name == "sqlite" else None
    try:
        yield
    finally:
        _lent.url = before


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
        deadline = time.monotonic() + (BUSY_SECONDS if rest is None else rest)
        while time.monotonic() < deadline:
            try:
                cursor.execute("BEGIN IMMEDIATE")
                return
            except Exception as error:  # the driver may be another than the standard library's
                if "locked" not in str(error):
                    break
            time.sleep(random.uniform(0.25, 1) * BUSY_LOOK_SECONDS)
        conn.exec_driver_sql("BEGIN IMMEDIATE")  # raises SQLAlchemy's errors
    finally:
        cursor.execute(after)
        cursor.close()


def _own_file(_dialect: Any, _record: Any, args: Any, options: Any) -> None:
    # It holds payloads: only the owner may read a file that we create; -wal and -shm follow it.
    if args and not options.get("uri"):
        with suppress(OSError):  # it exists, or SQLite reports the error
            os.close(os.open(args[0], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


class DatabaseFile:
    """The present file of a database. path: absolute; "" if there is none to watch."""

    def __init__(self, engine: sa.Engine) -> None:
        name = engine.url.database or ""
        is_file = engine.dialect.name == "sqlite" and not name.startswith("file:")
        self.path = os.path.abspath(name) if is_file else ""
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
DATABASE_SET_UP = {"sqlite": "PRAGMA journal_mode=WAL"}
"""Settings stored in the database itself: readers and the writer do not wait for each other."""


def set_up_database(engine: sa.Engine) -> None:
    """Run DATABASE_SET_UP; warn of a file that is not on a local disk. Raises
    DatabaseUnavailable."""
    statement = DATABASE_SET_UP.get(engine.dialect.name)
    if statement is not None:
        kind = network_mount(engine.url.database or "", _mounts())
        if kind:
            log.warning(
                "the database file is on a network mount (%s): SQLite needs locks and "
                "shared memory that such mounts do not give; use a local disk",
                kind,
            )
        with connecting(engine) as conn:
            conn.exec_driver_sql(statement)


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
