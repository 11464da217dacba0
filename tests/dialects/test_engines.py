"""What an engine and its pool tell."""

from __future__ import annotations

import sqlalchemy as sa

from msgworker.dialects import has_free_connection


def engine(**pool: int) -> sa.Engine:
    return sa.create_engine("sqlite://", poolclass=sa.QueuePool, **pool)


def test_a_pool_has_a_free_connection_until_all_are_in_use() -> None:
    small = engine(pool_size=1, max_overflow=1)
    assert has_free_connection(small)
    with small.connect():
        assert has_free_connection(small)
        with small.connect():
            assert not has_free_connection(small)
        assert has_free_connection(small)
    small.dispose()


def test_a_pool_without_a_limit_always_has_one() -> None:
    for pool in ({"pool_size": 0}, {"pool_size": 1, "max_overflow": -1}):
        endless = engine(**pool)
        with endless.connect(), endless.connect():
            assert has_free_connection(endless)
        endless.dispose()
    assert has_free_connection(sa.create_engine("sqlite://", poolclass=sa.NullPool))
