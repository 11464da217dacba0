"""The functions of store/ on the table of a fresh App."""

from __future__ import annotations

import pytest

from msgworker import App
from tests.support.store import Store


@pytest.fixture
def store(app: App) -> Store:
    return Store(app)
