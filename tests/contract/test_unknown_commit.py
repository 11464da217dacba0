"""The answer to a COMMIT is lost while the server still works on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from msgworker import App, Context, Message
from tests.plugin import Database
from tests.support.apps import created
from tests.support.proxy import Proxy, Side
from tests.support.rows import Table
from tests.support.waiting import in_thread, until


@pytest.fixture
def proxy(postgresql: Database) -> Iterator[Proxy]:
    made = Proxy.before(postgresql.url)
    yield made
    made.close()


SLOW_COMMIT = """
CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION wait_for_test()
"""


@contextmanager
def commits_held_back(engine: sa.Engine) -> Iterator[None]:
    """No transaction that wrote an effect can commit; a COMMIT waits."""
    with engine.connect() as conn:
        conn.exec_driver_sql("SELECT pg_advisory_lock(42)")
        yield
        conn.exec_driver_sql("SELECT pg_advisory_unlock(42)")


@pytest.mark.long
def test_a_commit_that_is_still_under_way_is_waited_for(postgresql: Database, proxy: Proxy) -> None:
    """Else the handler starts again, the old commit goes through and flags the next message, and
    two handlers of one object can run. (MariaDB rolls back a waiting COMMIT without a client.)"""
    app = created(App(proxy.url_of(postgresql.url), lease_seconds=30))
    near = postgresql.engine()
    with near.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE effect (msg_id integer NOT NULL)")
        conn.exec_driver_sql(SLOW_COMMIT)
    started: list[int] = []
    written, go = threading.Event(), threading.Event()

    @app.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        started.append(msg.msg_id)
        ctx.connection.execute(sa.text("INSERT INTO effect VALUES (:i)"), {"i": msg.msg_id})
        written.set()
        assert go.wait(30)

    with app.engine.begin() as conn:
        ids = [app.send(conn, "t", object_id="a") for _ in range(3)]
    cut = proxy.cut_at("INTO effect", "during")
    drained = in_thread(lambda: app.drain(linger=0))
    assert written.wait(30)
    with commits_held_back(near):
        go.set()
        until(lambda: cut.done == 1, "the COMMIT has lost its client")
        grace = time.monotonic() + 1  # long enough to look, and to start the handler again
        while len(started) == 1 and time.monotonic() < grace:
            time.sleep(0.02)
        assert started == ids[:1]
    assert drained().done == 3
    assert started == ids
    with near.connect() as conn:
        assert list(conn.scalars(sa.text("SELECT msg_id FROM effect ORDER BY msg_id"))) == ids
    assert set(Table(app).statuses) == {2}


@pytest.mark.requires("statements_end_with_their_client", of="during")
@pytest.mark.parametrize("side", ["before", "during", "after"])
def test_an_outcome_that_is_all_of_its_transaction_is_looked_up(
    postgresql: Database, proxy: Proxy, side: Side
) -> None:
    """A handler that has sent nothing is settled by a statement that commits itself."""
    app = created(App(proxy.url_of(postgresql.url), lease_seconds=30))
    started: list[int] = []

    @app.handler("t", transactional=True)
    def handle(msg: Message) -> None:
        started.append(msg.msg_id)

    with app.engine.begin() as conn:
        ids = [app.send(conn, "t", object_id="a") for _ in range(3)]
    cut = proxy.cut_at("WITH finished", side)
    assert app.drain(linger=0).done == 3
    assert cut.done == 1
    # "during": on a busy machine the look is faster than the server, which has not begun the
    # statement. The handler has written nothing, so it may start again: one of its settles counts.
    again = [sorted([*ids, one]) for one in ids]
    assert started in {"before": again, "during": [ids, *again], "after": [ids]}[side]
    assert set(Table(app).statuses) == {2}
