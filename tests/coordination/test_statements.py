"""The statements of locks on every database: compiled, linted for Oracle, and the clock in them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker.db.clock import now_ms
from msgworker.db.connections import connecting
from msgworker.db.database import DATABASES, NAMES
from msgworker.db.engine import open_engine
from msgworker.store import locks
from msgworker.table.build import tables_for
from msgworker.table.spec import MessageTable
from tests.oracle_lint import lint


class Recorder:
    """Stands for a connection; remembers what it is to execute."""

    def __init__(self) -> None:
        self.statements: list[Any] = []

    def execute(self, statement: Any, params: Any = None) -> Any:
        self.statements.append(statement)
        return self

    rowcount = 1

    def scalar(self, statement: Any, params: Any = None) -> Any:
        self.execute(statement)

    def __iter__(self) -> Any:
        return iter(())


def statements(name: str) -> list[str]:
    t, conn = tables_for(MessageTable("crm.msgworker_message"), DATABASES[name]), Recorder()
    of: Any = conn
    locks.ensure(of, t, "x", "y")
    locks.acquire(of, t, ["x"], owner="me", ttl_ms=1, claim_id="c")
    locks.there(of, t, ["x"])
    locks.renew(of, t, "x", owner="me", token=1, ttl_ms=1)
    locks.release(of, t, "x", owner="me", token=1)
    locks.delete(of, t, "x", owner="me", token=1)
    locks.delete(of, t, "x", owner="me", token=1, expired=True)
    locks.long_expired(of, t, "x", for_ms=1)
    locks.renew_all(of, t, "me", ttl_ms=1)
    locks.held(of, t, "x")
    locks.holder(of, t, "x")
    return [str(s.compile(dialect=DATABASES[name].offline_dialect())) for s in conn.statements]


@pytest.mark.parametrize("name", NAMES)
def test_locks_compile_on_every_database(name):
    found = statements(name)
    assert len(found) == 13
    assert all("msgworker_lock" in text for text in found)
    changes = [text for text in found if text.startswith("UPDATE")]
    assert len(changes) == 4
    assert all(" WHERE " in text.replace("\n", " ") for text in changes)


def test_oracle_takes_the_statements_of_locks():
    assert {text: lint(text) for text in statements("oracle") if lint(text)} == {}


def test_the_database_tells_milliseconds_since_1970(database):
    engine = database.engine()
    query = sa.select(now_ms())
    if database.name == "oracle":
        query = query.select_from(sa.text("dual"))
    with connecting(open_engine(engine)) as conn:
        before = time.time() * 1000
        said = conn.scalar(query)
        after = time.time() * 1000
    assert isinstance(said, int)
    assert before - 2 <= said <= after + 2
