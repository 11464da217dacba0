"""Time limits of a server that would strike each time: a start that one of them has ended is a
failed try, with a reason and a line for operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed

from msgworker import App, BatchContext, Context, Message
from tests import variants
from tests.engines import plain_engine
from tests.plugin import Database
from tests.support.rows import Table, send

Work = Callable[[sa.Connection], object]


def idle(conn: sa.Connection) -> None:
    conn.execute(sa.text("INSERT INTO written VALUES (3)"))
    for _ in range(2):
        time.sleep(0.7)


def slow(conn: sa.Connection) -> None:
    # MySQL ends a SLEEP that is all of its query without an error.
    sleep = "SELECT 1 FROM (SELECT 1 AS n) AS one WHERE SLEEP(1.5)"
    conn.execute(sa.text("SELECT pg_sleep(1.5)" if conn.dialect.name == "postgresql" else sleep))


def locked(conn: sa.Connection) -> None:
    conn.execute(sa.text("UPDATE busy SET n = n + 1"))


def swallowed(conn: sa.Connection) -> None:
    with suppress(sa.exc.DBAPIError):
        slow(conn)


CASES: dict[str, list[tuple[str, str, Work, str]]] = {
    "postgresql": [
        ("idle_in_transaction_session_timeout", "300", idle, "idle"),
        ("statement_timeout", "300", slow, "statement timeout"),
        ("statement_timeout", "300", swallowed, "current transaction is aborted"),
        ("lock_timeout", "300", locked, "lock timeout"),
    ],
    "mariadb": [
        ("wait_timeout", "1", idle, "idle"),
        ("idle_transaction_timeout", "1", idle, "idle"),
        ("max_statement_time", "0.3", slow, "max_statement_time"),
        ("innodb_lock_wait_timeout", "1", locked, "Lock wait timeout"),
    ],
}
LIMIT = {"postgresql": ("statement_timeout", "300"), "mariadb": ("max_statement_time", "0.3")}
if variants.is_mysql():
    LIMIT["mariadb"] = ("max_execution_time", "300")
    del CASES["mariadb"][1]
    CASES["mariadb"][1] = (*LIMIT["mariadb"], slow, "maximum statement execution time")
ALL = [
    pytest.param(name, limit, value, work, words, id=f"{name}-{limit}-{work.__name__}")
    for name, cases in CASES.items()
    for limit, value, work, words in cases
]


def limited(url: str, limit: str, value: str) -> str:
    """The URL of sessions with this limit."""
    parsed = sa.make_url(url)
    option = {"options": f"-c{limit}={value}"}
    if parsed.get_backend_name() != "postgresql":
        option = {"init_command": f"SET SESSION {limit} = {value}"}
    return parsed.update_query_dict(option).render_as_string(hide_password=False)


@pytest.fixture
def limit_app(
    request: pytest.FixtureRequest, postgresql: Database, mariadb: Database
) -> Iterator[Callable[[str, str, str], App]]:
    """An App whose sessions have a limit, and a row that another session has locked."""
    with ExitStack() as stack:

        def make(name: str, limit: str, value: str) -> App:
            database: Database = request.getfixturevalue(name)
            app = App(limited(database.url, limit, value), backoff_seconds=0)
            stack.callback(app.engine.dispose)
            app.create_schema()
            engine = plain_engine(database.url, poolclass=sa.NullPool)
            with engine.begin() as conn:
                conn.exec_driver_sql("CREATE TABLE busy (n int)")
                conn.exec_driver_sql("INSERT INTO busy VALUES (1)")
                conn.exec_driver_sql("CREATE TABLE written (n int)")
            stack.enter_context(engine.connect()).exec_driver_sql("UPDATE busy SET n = 2")
            return app

        yield make


@pytest.mark.requires("startup_options", of="postgresql")
@pytest.mark.quick("postgresql-(statement_timeout-swallowed|lock_timeout)|mariadb-wait_timeout")
@pytest.mark.parametrize(("name", "limit", "value", "work", "words"), ALL)
def test_a_start_that_a_limit_of_the_server_ended_is_a_failed_try(
    limit_app: Any, caplog: Any, name: str, limit: str, value: str, work: Work, words: str
) -> None:
    app = limit_app(name, limit, value)
    starts: list[Any] = []

    @app.handler("t", transactional=True, wait=wait_fixed(0), max_tries=2)
    def handle(msg: Message, ctx: Context) -> None:
        starts.append(msg.msg_id)
        work(ctx.connection)

    send(app, "o")
    app.drain(threads=1, linger=2, time_limit=60)
    status, tries, error = Table(app).one("status", "error_try_times", "last_error")
    assert (len(starts), status, tries) == (2, -1, 3)  # dead
    assert words in error or work is swallowed
    told = [one for one in caplog.messages if "a time limit of the server ended" in one]
    assert len(told) == (0 if work is swallowed else 2)


@pytest.mark.requires("startup_options", of="postgresql")
@pytest.mark.quick("mariadb")
@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_limit_that_a_batch_meets_lets_each_message_run_alone(limit_app: Any, name: str) -> None:
    app = limit_app(name, *LIMIT[name])
    calls: list[int] = []

    @app.handler("t", transactional=True, batch=10, wait=wait_fixed(0))
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        calls.append(len(messages))
        if any(msg.payload == "slow" for msg in messages):
            slow(ctx.connection)

    for n in range(4):
        send(app, f"o{n}", payload="slow" if n == 2 else "quick")
    app.drain(threads=1, linger=2, time_limit=60)
    rows = Table(app).rows("payload", "status", "error_try_times")
    assert [row[1:] for row in rows] == [(2, 0), (2, 0), (-1, 3), (2, 0)]
    assert len(calls) <= 8


@pytest.mark.requires("startup_options", of="postgresql")
@pytest.mark.quick("session|postgresql")
@pytest.mark.parametrize(
    ("name", "limit", "value", "work"),
    [
        pytest.param("postgresql", *LIMIT["postgresql"], slow, id="postgresql-statement"),
        pytest.param("mariadb", *LIMIT["mariadb"], slow, id="mariadb-statement"),
        pytest.param("mariadb", "wait_timeout", "1", idle, id="mariadb-session"),
    ],
)
def test_a_limit_that_an_item_meets_fails_the_item(
    limit_app: Any, caplog: Any, name: str, limit: str, value: str, work: Work
) -> None:
    app = limit_app(name, limit, value)
    starts: list[str] = []

    @app.handler("t", wait=wait_fixed(0), max_tries=2)
    def handle(msg: Message, ctx: Context) -> None:
        def item(key: str, conn: sa.Connection) -> None:
            starts.append(key)
            work(conn)

        ctx.fan_out(item, ["a"], transactional_items=True).raise_for_failed()

    send(app, "o")
    app.drain(threads=1, linger=2, time_limit=60)
    assert starts == ["a"] * 2
    assert len([one for one in caplog.messages if "a time limit of the server ended" in one]) == 2
