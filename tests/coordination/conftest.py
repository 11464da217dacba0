"""Lock centres as fixtures: each on its real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msgworker.coordination import DatabaseLocks
from tests.coordination.places import KINDS, NETWORKED, Place
from tests.plugin import _fresh
from tests.servers import CENTRES, CannotHave, Fleet


def _params(kinds: list[str]) -> list[Any]:
    """Tests of one centre on one process, so that its server is started once."""
    marks = {kind: [pytest.mark.xdist_group(kind)] for kind in CENTRES}
    return [pytest.param(kind, marks=marks.get(kind, [])) for kind in kinds]


def _place(kind: str, servers: Fleet, folder: Path) -> Iterator[Place]:
    if kind in CENTRES:
        try:
            place = Place(kind, servers.url(kind))
        except CannotHave as reason:
            pytest.skip(f"{kind} is not there: {reason}")
        yield place
        place.close()
        return
    for database in _fresh(kind, servers, folder):
        place = Place(kind, database.url)
        made = place.locks()
        assert isinstance(made, DatabaseLocks)
        made.create_schema()
        yield place
        place.close()


@pytest.fixture(params=_params(KINDS))
def place(request: pytest.FixtureRequest, servers: Fleet, tmp_path: Path) -> Iterator[Place]:
    """Each kind of lock centre."""
    yield from _place(str(request.param), servers, tmp_path)


@pytest.fixture(params=_params(NETWORKED))
def far(request: pytest.FixtureRequest, servers: Fleet, tmp_path: Path) -> Iterator[Place]:
    """Each kind that is behind a network."""
    yield from _place(str(request.param), servers, tmp_path)


@pytest.fixture
def near(servers: Fleet, tmp_path: Path) -> Iterator[Place]:
    """The one that is always there, for what is the same everywhere."""
    yield from _place("sqlite", servers, tmp_path)
