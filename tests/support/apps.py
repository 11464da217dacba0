"""Fixtures: an App on a fresh database, and what a test sees of its table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msgworker import App, MessageTable
from tests.ready import ReadyFile
from tests.support.rows import Table

MakeApp = Callable[..., App]


def created(app: App) -> App:
    """The same App, whose schema exists from now on."""
    app.create_schema()
    return app


@pytest.fixture
def make_app(database: Any) -> MakeApp:
    """Apps on the test's database."""

    def make(url_or_engine: Any = None, **options: Any) -> App:
        return App(url_or_engine or database.url, **{"backoff_seconds": 1, **options})

    return make


@pytest.fixture
def app_with(ready: None, database: Any, make_app: MakeApp) -> MakeApp:
    """Apps with these settings whose schema exists."""

    def make(**settings: Any) -> App:
        app = make_app(**settings)
        if not database.ready:
            app.create_schema()
        return app

    return make


@pytest.fixture
def app(app_with: MakeApp) -> App:
    """An App whose schema exists."""
    return app_with()


@pytest.fixture
def blocking_app(make_app: MakeApp) -> App:
    """An App whose dead messages block their object."""
    return created(make_app(table=MessageTable(on_dead="block")))


@pytest.fixture
def table(app: App) -> Table:
    """What stands in the table of `app`."""
    return Table(app)


@pytest.fixture
def sqlite_app(sqlite: Any, scratch: Path) -> App:
    """An App on SQLite, for what is the same everywhere."""
    app = App(sqlite.url)
    ReadyFile(scratch).copy_to(Path(app.engine.url.database or ""))
    return app
