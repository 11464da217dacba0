"""The proxy does what the tests of the network rely on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from tests.plugin import Database
from tests.support.proxy import Proxy


@pytest.fixture
def proxy(served: Database) -> Iterator[Proxy]:
    made = Proxy.before(served.url)
    yield made
    made.close()


@pytest.fixture
def engine(served: Database, proxy: Proxy) -> Iterator[sa.Engine]:
    made = sa.create_engine(proxy.url_of(served.url), poolclass=sa.NullPool)
    with made.begin() as conn:
        conn.execute(sa.text("CREATE TABLE t (i integer)"))
    yield made
    made.dispose()


def rows(served: Database) -> list[Any]:
    with served.engine().connect() as conn:
        return list(conn.scalars(sa.text("SELECT i FROM t")))


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("side", ["before", "after"])
def test_cut_at_a_commit(
    served: Database, proxy: Proxy, engine: sa.Engine, side: Literal["before", "after"], alone: bool
) -> None:
    cut = proxy.cut_at(r"VALUES \(2\)", side)
    level = "AUTOCOMMIT" if alone else "READ COMMITTED"
    for i in (1, 2):
        with engine.connect().execution_options(isolation_level=level) as conn:
            broken = pytest.raises(sa.exc.DBAPIError) if i == 2 else contextlib.nullcontext()
            with broken as lost:
                conn.execute(sa.text(f"INSERT INTO t VALUES ({i})"))
                conn.commit()
    assert lost is not None
    assert trouble(lost.value) is Trouble.LOST
    assert cut.done == 1
    assert sorted(rows(served)) == ([1] if side == "before" else [1, 2])


def test_refuse_and_heal(proxy: Proxy, engine: sa.Engine) -> None:
    with engine.connect() as conn:
        conn.execute(sa.text("SELECT 1"))
        proxy.refuse()
        with pytest.raises(sa.exc.DBAPIError) as lost:
            conn.execute(sa.text("SELECT 1"))
        assert trouble(lost.value) is Trouble.LOST
    with pytest.raises(sa.exc.DBAPIError) as refused:
        engine.connect()
    assert trouble(refused.value) is Trouble.LOST
    proxy.heal()
    with engine.connect() as conn:
        assert conn.scalar(sa.text("SELECT 1")) == 1


def test_every_nth_commit_is_cut() -> None:
    from tests.support.proxy import Cut

    cut = Cut("x", "before", times=2, every=3)
    assert [cut.wants("x") for _ in range(9)].count(True) == 2
    assert not Cut("x", "after").wants("y")
