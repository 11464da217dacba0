"""Databases on the stand-in of Oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plugin import Database, _fresh, _ready

NAME = "oracle-mariadb"


@pytest.fixture
def empty(servers: Any, tmp_path: Path) -> Iterator[Database]:
    yield from _fresh(NAME, servers, tmp_path)


@pytest.fixture
def over_mariadb(servers: Any, tmp_path: Path, scratch: Path) -> Iterator[Database]:
    """With the tables of a default App, and that of effects."""
    yield from _ready(NAME, servers, tmp_path, scratch, effects=True)
