"""Planted bugs of cancels: what must turn the checker red."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgworker.store import cancels, change
from proof.simulation.batch_plants import replaced


@contextmanager
def kept_by_a_rerun() -> Iterator[None]:
    """A rerun leaves the request for the run before it."""
    rerun, drop = change.rerun, cancels.drop
    within: list[bool] = []

    def kept(conn: Any, t: Any, ids: Any) -> int:
        return 0 if within else drop(conn, t, ids)

    def rerunning(*args: Any, **how: Any) -> int:
        within.append(True)
        try:
            return rerun(*args, **how)
        finally:
            within.pop()

    with replaced(cancels, "drop", kept), replaced(change, "rerun", rerunning):
        yield
