"""Through PgBouncer: no statement is prepared in, and nothing is set in, a session of another."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from msgworker import App, ConfigError
from msgworker.db.connections import connecting, deadline
from msgworker.db.database import Trouble
from msgworker.db.engine import open_engine, same_database
from msgworker.db.errors import is_overtime, trouble
from msgworker.db.servers import shares_sessions
from tests.engines import plain_engine
from tests.servers import CannotHave, PgBouncer, running

MESSAGES = 300


@pytest.fixture
def through(servers: Any) -> Iterator[Any]:
    """A URL of a fresh database behind a PgBouncer of this mode."""
    try:
        behind = servers.url("postgresql")
    except CannotHave as reason:
        pytest.skip(str(reason))
    admin = plain_engine(behind, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def drop(pooler: PgBouncer) -> None:
        with admin.connect() as conn:
            conn.exec_driver_sql(f"DROP DATABASE IF EXISTS mw_{pooler.port} WITH (FORCE)")

    with ExitStack() as stack:

        def start(mode: str, **options: Any) -> str:
            pooler = PgBouncer(behind, mode, **options)
            stack.callback(drop, pooler)
            try:
                stack.enter_context(running(pooler))
            except CannotHave as reason:
                pytest.skip(str(reason))
            with admin.connect() as conn:
                conn.exec_driver_sql(f"CREATE DATABASE mw_{pooler.port}")
            return f"{pooler.url}mw_{pooler.port}"

        yield start


def drained(app: App) -> list[int]:
    """The objects' numbers in the order in which their messages ran, through handlers of both
    kinds."""
    ran: list[int] = []
    app.create_schema()
    app.add_handler("t", lambda msg: ran.append(msg.payload["n"]))

    @app.handler("in", transactional=True)
    def _inside(msg: Any, ctx: Any) -> None:
        ctx.connection.execute(sa.text("SELECT 1"))
        ran.append(msg.payload["n"])

    with app.engine.begin() as conn:
        for n in range(MESSAGES):
            app.send(conn, "t" if n % 2 else "in", {"n": n}, object_id=str(n % 20))
    report = app.worker(threads=4).drain()
    assert (report.done, report.retried, report.left) == (MESSAGES, 0, 0)
    return ran


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_drain_through_a_pooler_is_exact_and_in_order(
    through: Any, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        ran = drained(App(through(mode, size=8 if mode == "transaction" else 40)))
    assert sorted(ran) == list(range(MESSAGES))
    for lane in range(20):
        mine = [n for n in ran if n % 20 == lane]
        assert mine == sorted(mine)
    said = [r for r in caplog.records if getattr(r, "event", "") == "pooler.found"]
    assert len(said) == 1
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_an_engine_of_the_user_prepares_nothing_once_a_pooler_is_noticed(through: Any) -> None:
    engine = plain_engine(through("transaction", size=4))
    ran = drained(App(engine))
    assert len(ran) == MESSAGES
    with engine.connect() as conn:  # of the user's own
        raw: Any = conn.connection.driver_connection
        assert raw.prepare_threshold is None
    engine.dispose()


def test_a_deadline_through_a_pooler_ends_a_statement_and_sets_nothing(through: Any) -> None:
    engine = open_engine(through("transaction", size=1))
    with connecting(engine) as conn:
        began = time.monotonic()
        with pytest.raises(sa.exc.DBAPIError) as ended, deadline(conn, 0.2):
            conn.exec_driver_sql("SELECT pg_sleep(20)")
        assert is_overtime(ended.value)
        assert time.monotonic() - began < 10
        assert conn.exec_driver_sql("SHOW statement_timeout").scalar() == "0"
    engine.dispose()


def test_a_pooler_is_noticed_unless_the_url_says_that_it_keeps_sessions(through: Any) -> None:
    url = through("session", size=4)
    for options, shares, threshold in (
        ("", True, None),
        ("?pooler=transaction&prepare_threshold=7", True, 7),
        ("?pooler=session", False, 5),
        ("?pooler=session&prepare_threshold=none", False, None),
    ):
        engine = open_engine(url + options)
        with engine.connect() as conn:
            raw: Any = conn.connection.driver_connection
            assert (shares_sessions(conn), raw.prepare_threshold) == (shares, threshold)
        assert same_database(url, url + options)
        engine.dispose()


def test_a_server_without_a_pooler_is_used_as_ever(servers: Any) -> None:
    try:
        engine = open_engine(make_url(servers.url("postgresql")).set(database="postgres"))
    except CannotHave as reason:
        pytest.skip(str(reason))
    with engine.connect() as conn:
        raw: Any = conn.connection.driver_connection
        assert (shares_sessions(conn), raw.prepare_threshold) == (False, 5)
    engine.dispose()


@pytest.mark.parametrize("option", ["pooler=bad", "prepare_threshold=-1"])
def test_options_that_mean_nothing_are_refused(option: str) -> None:
    with pytest.raises(ConfigError):
        open_engine(f"postgresql://u@h/d?{option}")


def test_a_statement_of_another_session_is_sent_again() -> None:
    taken = psycopg.errors.DuplicatePreparedStatement
    assert trouble(taken('prepared statement "_pg3_0" already exists')) is Trouble.AGAIN
    assert trouble(taken('prepared statement "mine" already exists')) is Trouble.OTHER
