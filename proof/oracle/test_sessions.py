"""The statement by which SQLAlchemy sets and resets the isolation level of a session fails with the
driver's own error, which it does not wrap: users get the error of a database that is away."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from msgworker import App
from msgworker.errors import DatabaseUnavailable
from proof.oracle.faults import faults
from tests.plugin import Database
from tests.support.rows import send

CODES = ("ORA-03113", "ORA-00604")
MOST = 60


@pytest.fixture
def url(over_mariadb: Database) -> str:
    return over_mariadb.url


def _drain(app: App) -> object:
    app.add_handler("t", lambda msg: None)
    return app.drain(threads=1, linger=0)


ACTS: dict[str, Callable[[App], object]] = {
    "tables": lambda app: app.tables,
    "drain": _drain,
    "overview": lambda app: app.ops.overview(),
    "doctor": lambda app: app.ops.doctor(),
    "purge": lambda app: app.ops.purge(older_than=timedelta(days=1)),
}


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(act, id=name, marks=[] if name == "tables" else [pytest.mark.long])
        for name, act in ACTS.items()
    ],
)
def test_a_session_that_cannot_be_set_up_or_reset_is_a_database_that_is_away(
    url: str, act: Callable[[App], object]
) -> None:
    wrong: dict[int, BaseException] = {}
    failed = 0
    for nth in range(1, MOST):
        app = App(url)
        try:
            with faults.planned(CODES[nth % 2], "statement", nth, "^ALTER SESSION") as fault:
                act(app)
        except DatabaseUnavailable as error:
            failed += 1
            if "cannot use the database oracle+oracledb://" not in str(error):
                wrong[nth] = error
        except Exception as error:
            wrong[nth] = error
        finally:
            app.engine.dispose()
        if not fault.raised:
            break
    assert wrong == {}
    assert failed
    assert not fault.raised


def test_what_was_done_is_done_although_its_session_cannot_be_reset(url: str) -> None:
    """The statement comes when the connection is set up, and twice when it is given back."""
    app = App(url)
    try:
        send(app, "a", None)
        for nth in (2, 3):
            with faults.planned("ORA-00604", "statement", nth, "^ALTER SESSION") as fault:
                assert app.ops.unfinished() == 2
            assert fault.raised == 1
    finally:
        app.engine.dispose()
