"""Several hosts in one URL."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from msgworker import App, ConfigError
from msgworker.db import Trouble, open_engine, trouble
from tests.servers import free_port


def several(url: str, *before: int) -> str:
    """The URL with hosts of these ports before its own."""
    one = make_url(url)
    hosts = [*(f"127.0.0.1:{port}" for port in before), f"{one.host}:{one.port or 3306}"]
    names = (one.drivername, one.username, one.password)
    moved = sa.URL.create(*names, database=one.database, query={**one.query, "host": hosts})
    return moved.render_as_string(hide_password=False)


def test_the_first_host_that_answers_is_used(mariadb: Any) -> None:
    app = App(several(mariadb.url, free_port(), free_port()))
    app.create_schema()
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
