"""A dashboard on SQLite."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from msgworker import App
from tests.support import browsing
from tests.support.apps import created
from tests.support.web import Browser, browse


@pytest.fixture
def browser(sqlite_app: App) -> Iterator[Browser]:
    """A browser on this machine, at a dashboard that may act."""
    with browse(sqlite_app, actions=True) as found:
        yield found


@pytest.fixture
def full_app(sqlite_app: App) -> App:
    """An App with messages of two topics."""
    with sqlite_app.engine.begin() as conn:
        sqlite_app.send_many(conn, "settle", [({"n": n}, f"C-{n % 3}") for n in range(9)])
        sqlite_app.send_many(conn, "print", [({"n": n}, None) for n in range(4)])
    return sqlite_app


@pytest.fixture
def visit() -> Iterator[Callable[..., browsing.Browser]]:
    """Browsers of an App, each of a viewer with a role."""
    made: list[browsing.Browser] = []

    def make(app: App, role: str = "admin", **options: Any) -> browsing.Browser:
        made.append(browsing.Browser(app, role, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def ann(sqlite_app: App, visit: Callable[..., browsing.Browser]) -> browsing.Browser:
    """What an admin, Ann, sees of the table of `sqlite_app`."""
    return visit(sqlite_app)


@pytest.fixture
def scratch_app(tmp_path: Path) -> Callable[[], App]:
    """Apps on SQLite, each with its own tables."""
    number = itertools.count()

    def make() -> App:
        return created(App(f"sqlite:///{tmp_path}/web{next(number)}.db"))

    return make
