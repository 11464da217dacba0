"""The connections of a role: one that could not be set up is not used."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from msgworker.instance.links import Link


def test_a_connection_whose_set_up_failed_is_given_up(app):
    """Cut in its first statement, it would be kept in an invalid transaction for the next use."""
    link = Link(app.engine, None, ("SELECT 1 FROM not_there", "SELECT 1"))
    for _ in range(2):
        with pytest.raises(DBAPIError), link.statement():
            pytest.fail("it was not set up")
    link.close()
