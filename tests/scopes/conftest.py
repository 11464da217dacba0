"""Apps whose tables are sliced, and a scope that never moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from msgworker import App, MessageTable
from msgworker.coordination import DatabaseLocks
from msgworker.coordination.centres import _Fixed
from msgworker.instance.state import InstanceView, Scope, ScopeMember
from msgworker.table.columns import Slice
from tests.support.apps import created

SLICED = {"shard": "shard", "instance_type": "instance_type"}
MakeApp = Callable[..., App]


class Shards(Scope):
    """These shards, whoever else is there."""

    by = "shard"

    def __init__(self, *values: int) -> None:
        self.values = values

    def join(self, standing: InstanceView) -> ScopeMember:
        return _Fixed(Slice("shard", self.values), {})


@pytest.fixture
def make_app(database: Any) -> MakeApp:
    """Apps on the test's database."""

    def make(url: Any = None, **options: Any) -> App:
        options = {"backoff_seconds": 1, "table": MessageTable(**SLICED), **options}
        return App(url or database.url, **options)

    return make


@pytest.fixture
def app(make_app: MakeApp) -> App:
    """An App whose table has indexes of both slices."""
    return created(make_app())


@pytest.fixture
def locks(make_app: MakeApp) -> Iterator[DatabaseLocks]:
    """Locks in the test's database."""
    made = DatabaseLocks(make_app().engine)
    made.create_schema()
    yield made
    made.close()
