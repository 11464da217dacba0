"""Several hosts in one URL, and servers that follow one another.

What an older timeline means is in proof/failover: it needs a standby.
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from msgworker import App, ConfigError
from msgworker.db.database import Trouble
from msgworker.db.engine import open_engine
from msgworker.db.errors import trouble
from msgworker.db.servers import succession_of
from msgworker.instance.connections import Connections
from tests.servers import free_port
from tests.support.apps import created

# --- Timelines of PostgreSQL.


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


# --- Several hosts in one URL.


def several(url: str, *before: int) -> str:
    """The URL with hosts of these ports before its own."""
    one = make_url(url)
    hosts = [*(f"127.0.0.1:{port}" for port in before), f"{one.host}:{one.port or 3306}"]
    names = (one.drivername, one.username, one.password)
    moved = sa.URL.create(*names, database=one.database, query={**one.query, "host": hosts})
    return moved.render_as_string(hide_password=False)


def test_the_first_host_that_answers_is_used(mariadb: Any) -> None:
    app = created(App(several(mariadb.url, free_port(), free_port())))
    ran: list[int] = []
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    with app.engine.begin() as conn:
        app.send(conn, "t", {})
    assert app.worker(threads=1).drain().done == len(ran) == 1


def test_no_host_that_answers_is_an_outage() -> None:
    engine = open_engine(f"mysql://u@/d?host=127.0.0.1:{free_port()}&host=[::1]:{free_port()}")
    with pytest.raises(sa.exc.DBAPIError, match="none of the hosts can be used") as raised:
        engine.connect()
    assert trouble(raised.value) is Trouble.LOST


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u@a/d?host=b:1",
        "mysql://u@/d?host=b:x",
        "mysql://u@/d?host=:3306",
        "mysql+mysqldb://u@/d?host=b:1&host=c:1",
    ],
)
def test_hosts_that_mean_nothing_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_engine(url)
