"""An instance whose rounds are called by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from msgworker import App, Message
from msgworker.instance.instance import Instance
from tests.support.batches import calls  # noqa: F401 - a fixture
from tests.support.rounds import by_hand
from tests.support.rule import Crm


@pytest.fixture
def ran() -> list[int]:
    """The messages that the handler of `one` has run."""
    return []


@pytest.fixture
def one(app: App, ran: list[int]) -> Iterator[Instance]:
    """An instance that holds its lease; no thread of it runs."""
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    with by_hand(app) as made:
        yield made


@pytest.fixture
def crm(ready: None, make_app: Any) -> Crm:
    return Crm(make_app)


@pytest.fixture
def server(database: Any) -> Any:
    """A database whose columns hold to their types: for a test that requires `column_types`."""
    return database


@pytest.fixture
def taken() -> list[Message[Any]]:
    """The messages that the handler has run."""
    return []
