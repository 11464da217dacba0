"""The databases of the tests are real, fresh and apart from each other."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.plugin import Database

pytestmark = pytest.mark.quick


def test_database_is_fresh_and_takes_writes(database: Database) -> None:
    engine = database.engine()
    assert sa.inspect(engine).get_table_names() == []

    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE t (i INTEGER)"))
        conn.execute(sa.text("INSERT INTO t VALUES (1)"))

    with engine.connect() as conn:
        assert conn.scalar(sa.text("SELECT count(*) FROM t")) == 1
