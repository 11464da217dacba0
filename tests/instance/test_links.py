"""Connections of a role."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker.dialects import Trouble, trouble
from msgworker.errors import DatabaseUnavailable
from msgworker.instance.links import Link


def test_a_connection_whose_set_up_failed_is_given_up(app):
    """Cut in its first statement, it would be kept in an invalid transaction for the next use."""
    link = Link(app.engine, None, ("SELECT 1 FROM not_there", "SELECT 1"))
    for _ in range(2):
        with pytest.raises(DBAPIError), link.statement():
            pytest.fail("it was not set up")
    link.close()


def test_no_connection_at_all_is_an_outage_whatever_the_driver_says(app) -> None:
    told: list[int] = []

    def connect(*args: Any, **options: Any) -> Any:
        raise psycopg.OperationalError("an error of no known kind")

    engine = sa.create_engine("postgresql+psycopg://", creator=connect)
    link = Link(engine, none_left=lambda: told.append(1))
    with pytest.raises(DatabaseUnavailable) as error, link.transaction():
        pytest.fail("there is no connection")
    assert trouble(error.value) is Trouble.LOST
    assert told == []  # no other role need give back its own
