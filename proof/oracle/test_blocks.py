"""The settle in one block of PL/SQL, as far as MariaDB can show it; what it writes is tested by
tests/store/test_settle.py."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.db.database import of
from msgworker.message import Settled, Settlement
from msgworker.store import settle
from proof.oracle.faults import faults
from tests.oracle_driver import Log
from tests.plugin import Database
from tests.support.flags import ME
from tests.support.rows import Table, send
from tests.support.store import Store


@pytest.fixture
def app(over_mariadb: Database) -> Iterator[App]:
    app = App(over_mariadb.url)
    yield app
    app.engine.dispose()


def is_locked(app: App, msg_id: int) -> bool:
    c = app.tables.message.c
    with app.engine.connect() as conn:
        found = sa.select(c.msg_id).where(c.msg_id == msg_id).with_for_update(skip_locked=True)
        return conn.scalar(found) is None


def test_a_block_locks_its_rows_in_order_before_it_changes_any(app: App) -> None:
    """While it waits for the second row it has locked the first one, but not the third one."""
    a1, a2, b1 = send(app, "a", "a", "b")
    store = Store(app)
    store.flagged(a1, b1)
    c = app.tables.message.c
    with app.engine.connect() as other, ThreadPoolExecutor(1) as pool:
        other.execute(sa.select(c.msg_id).where(c.msg_id == a2).with_for_update())
        batch = [Settlement(b1), Settlement(a1, next_id=a2)]
        settled = pool.submit(store, settle.settle, batch, me=ME)
        for _ in range(1000):
            if is_locked(app, a1):
                break
        assert is_locked(app, a1)
        assert not is_locked(app, b1)
        assert not settled.done()
        other.rollback()
        assert settled.result() == {a1: Settled.ADVANCED, b1: Settled.ENDED}


def test_a_block_that_is_not_understood_is_sent_no_more(app: App) -> None:
    """As where a column has the name of a word of PL/SQL."""
    ran: list[Any] = []
    sent: list[str] = []
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    ids = send(app, *"aabbcc")
    sa.event.listen(app.engine, "before_cursor_execute", lambda *a: sent.append(a[2]))
    with faults.planned("ORA-06550", "statement", only="^DECLARE") as fault:
        report = app.drain(threads=1, linger=0)
    assert fault.raised == 1
    assert (report.done, report.left, sorted(ran)) == (6, 0, ids)
    assert len([sql for sql in sent if sql.startswith("DECLARE")]) == 1
    assert set(Table(app).rows("status", "error_try_times")) == {(2, 0)}


T = sa.Table("t", sa.MetaData(), sa.Column("i", sa.Integer), sa.Column("x", sa.String(9)))


def test_a_block_says_what_its_statements_say() -> None:
    lock = sa.select(T.c.i).where(T.c.i.in_(sa.bindparam("mw_ids", expanding=True)))
    change = sa.update(T).where(T.c.i > 5, T.c.x != sa.bindparam("mw_x"))
    change = change.values(x=sa.literal_column("'12:mw_x:b'"))
    with Log().engine().connect() as conn:
        block = of(conn).block_of(conn, lock.with_for_update(), {"mw_n": change})
        said = block.compile(dialect=conn.dialect)
    assert " ".join(str(said).split()) == (
        "DECLARE CURSOR mw_rows IS SELECT t.i FROM t WHERE t.i IN (__[POSTCOMPILE_mw_ids])"
        " FOR UPDATE; BEGIN OPEN mw_rows; CLOSE mw_rows; UPDATE t SET x='12:mw_x:b'"
        " WHERE t.i > :i_1 AND t.x != :mw_x; :mw_n := SQL%ROWCOUNT; END;"
    )
    assert said.params == {"mw_ids": None, "i_1": 5, "mw_x": None, "mw_n": None}


def test_no_block_is_sent_where_schemas_are_translated() -> None:
    with Log().engine().connect() as conn:
        assert of(conn).can_block(conn)
        assert not of(conn).can_block(conn.execution_options(schema_translate_map={None: "crm"}))
