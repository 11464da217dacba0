"""What a server on an older timeline means is in proof/failover: it needs a standby."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from msgworker.db import open_engine, succession_of
from msgworker.instance.connections import Connections

CALLS = (
    "pg_control_system()",
    "pg_control_checkpoint()",
    "pg_current_wal_lsn()",
    "pg_walfile_name(pg_lsn)",
)


def test_any_login_may_ask_for_the_timeline(postgresql: Any) -> None:
    with postgresql.engine().connect() as conn:
        conn.exec_driver_sql("CREATE ROLE mw_timeline")
        for call in CALLS:
            may = sa.text("SELECT has_function_privilege('mw_timeline', :call, 'execute')")
            assert conn.scalar(may, {"call": call})


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_a_server_that_stays_the_same_is_used_as_ever(database: Any) -> None:
    engine = open_engine(database.url)
    succession = succession_of(engine)
    links = [Connections(engine) for _ in range(2)]
    for link in links * 2:
        with link.transaction() as conn:
            assert conn.exec_driver_sql("SELECT 1").scalar() == 1
        link.check_server()
    assert succession.turn == 0
    assert succession is succession_of(engine.execution_options(isolation_level="AUTOCOMMIT"))
    for link in links:
        link.close()


def test_a_server_that_may_not_tell_is_used_as_ever(postgresql: Any) -> None:
    url = sa.make_url(postgresql.url)
    role = f"{url.database}_untold"
    with postgresql.engine().connect() as admin:
        admin.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
        admin.exec_driver_sql("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        admin.commit()
        engine = open_engine(url.set(username=role))
        link = Connections(engine)
        try:
            with link.transaction() as conn:
                assert conn.exec_driver_sql("SELECT 1").scalar() == 1
        finally:
            link.close()
            engine.dispose()
            admin.exec_driver_sql("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
            admin.exec_driver_sql(f"DROP ROLE {role}")
            admin.commit()
