"""Engines of the tests' own, which know nothing of msgworker; and the end of all that a test has
made, those of its Apps, too."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from msgworker.db.engine import Beside

_made: set[sa.Engine] = set()
_beside: list[Beside] = []
"""Both are kept until the end of the test: of an App that it drops, the garbage collector would
close the connections, with a ResourceWarning."""
_open: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""What pools keep of the connections that are open."""
ENDING_SECONDS = 30.0
watched = True  # whether all that is in use is of the test that runs, and not of others beside it


def remember(engine: sa.Engine) -> None:
    """It ends with the test, unless it is to `outlive` it, or is of a trial beside the tests."""
    if threading.current_thread() is threading.main_thread():
        _made.add(engine)


def keep_those_beside() -> None:
    """Engines that are made beside others from now on live until the end of the test."""
    make = Beside.__init__

    def keep(self: Beside, engine: sa.Engine, pool: sa.Pool) -> None:
        make(self, engine, pool)
        _beside.append(self)

    Beside.__init__ = keep  # type: ignore[method-assign]


def outlive(*engines: sa.Engine) -> None:
    """These are used by later tests, too; none named: all that there are."""
    _made.difference_update(engines or list(_made))


def dispose_all() -> None:
    """Close the connections of each engine that the test has made, but for those in use."""
    for engine in list(_made):
        engine.dispose()
    _made.clear()
    _beside.clear()


@contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements that are sent within the block."""
    sent: list[str] = []

    def note(*args: Any) -> None:
        sent.append(args[2])

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def left_in_use(seconds: float = ENDING_SECONDS) -> list[str]:
    """The connections that were taken of a pool and not given back, not by a thread that is just
    ending either; what only the garbage collector would still find is given back, and named. Each
    is named once: a failed test keeps its own, and the next one is not to be blamed."""
    end = time.monotonic() + seconds
    while watched and (found := _in_use()):
        if time.monotonic() > end:
            gc.collect()
            _open.clear()
            return found
        time.sleep(0.01)
    return []


def _in_use() -> list[str]:
    records = [record for ref in _open.valuerefs() if (record := ref()) is not None]
    taken = [one for one in records if one.fairy_ref is not None]
    return [repr(one.dbapi_connection) for one in taken if one.dbapi_connection is not None]


@sa.event.listens_for(sa.Pool, "connect")
def _opened(_: Any, record: Any) -> None:
    _open[id(record)] = record


def plain_engine(url: str | sa.URL, **options: Any) -> sa.Engine:
    """What `create_engine` makes.

    Without TLS options in the URL PyMySQL reads all certificates of the machine for each
    connection, which takes longer than all else that is done on most of them.
    """
    parsed = make_url(url).difference_update_query(["pooler"])  # which is an option of ours
    if parsed.get_driver_name() == "pymysql" and not any("ssl" in key for key in parsed.query):
        options["connect_args"] = {"ssl_disabled": True}
    engine = sa.create_engine(parsed, **options)
    if parsed.get_backend_name() in ("mysql", "mariadb") and "host" in parsed.query:
        sa.event.listen(engine, "do_connect", _first_that_answers)
        sa.event.listen(engine, "handle_error", _given_up)
    return engine


def _first_that_answers(dialect: Any, _: Any, __: Any, cparams: dict[str, Any]) -> Any:
    """A connection to the first node of a cluster that is ready. What it reads is all that was
    committed before, on any node."""
    for text in cparams["host"]:
        host, _colon, port = text.rpartition(":")
        try:
            conn = dialect.dbapi.connect(
                **{**cparams, "host": host, "port": int(port), "read_timeout": 20}
            )
            with conn.cursor() as cursor:
                cursor.execute("SHOW VARIABLES LIKE 'group_replication_consistency'")
                if cursor.fetchone():
                    _refuse_reader(dialect.dbapi, cursor)
                    cursor.execute("SET SESSION group_replication_consistency = 'BEFORE'")
                else:
                    cursor.execute("SET SESSION wsrep_sync_wait = 1")
                cursor.execute("SELECT count(*) FROM mysql.user WHERE 1 = 0")
            return conn
        except dialect.dbapi.Error as error:
            last = error
    raise last


def _refuse_reader(dbapi: Any, cursor: Any) -> None:
    cursor.execute("SELECT @@global.read_only")
    if cursor.fetchone()[0]:
        raise dbapi.OperationalError(1290, "it is read-only")


def _given_up(context: Any) -> None:
    if getattr(context.original_exception, "args", (0,))[0] == 1047:
        context.is_disconnect = True
