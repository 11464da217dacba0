"""Apps whose tables are sliced, and a scope that never moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from msgworker import App, MessageTable
from msgworker.coordination import DatabaseLocks
from msgworker.coordination.centres import _Fixed
from msgworker.instance.claiming.scope import InstanceView, Scope, ScopeMember
from msgworker.table import Slice

SLICED = {"shard": "shard", "instance_type": "instance_type"}
MakeApp = Callable[..., App]


class Shards(Scope):
    """These shards, whoever else is there."""

    role = "shard"

    def __init__(self, *values: int) -> None:
        self.values = values

    def join(self, standing: InstanceView) -> ScopeMember:
        return _Fixed(Slice("shard", self.values), {})


@pytest.fixture
def make_app(database: Any) -> Iterator[MakeApp]:
    """Apps on the test's database; their connections are given back at the end."""
    made: list[App] = []

    def make(url: Any = None, **options: Any) -> App:
        options = {"backoff_seconds": 1, "table": MessageTable(**SLICED), **options}
        app = App(url or database.url, **options)
        made.append(app)
        return app

    yield make
    for app in made:
        app.engine.dispose()


@pytest.fixture
def app(make_app: MakeApp) -> App:
    """An App whose table has indexes of both slices."""
    app = make_app()
    app.create_schema()
    return app


@pytest.fixture
def locks(app: App) -> Iterator[DatabaseLocks]:
    """Locks beside the table of `app`."""
    made = DatabaseLocks(app.engine)
    made.create_schema()
    yield made
    made.close()
