"""What a program, a script or an alert relies on since the last release is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.surface import surface

KEPT = Path(__file__).parent / "surface-0.2.0.txt"
RENAMED = {"Dealer(flags)", "Instance(flag)"}
"""Keywords that work until 1.0, and warn: tests/coordination."""
REMOVED = {"GET /events", "GET /events part"}  # the changelog says so
MADE_BY_US = {
    "BatchContext(runtime)",
    "Context(runtime)",
    "Finding(mend)",
    "Worker(label)",
    "Worker(make_runtime)",
    "Worker(threads)",
}
"""Of what no program makes itself."""
CALLED_BY_US = {
    name
    for scope in ("Instance", "Partitions", "Segments")
    for name in (f"{scope}.role", f"{scope}.seat", f"{scope}.seat(standing)")
}
"""What an instance asks its scope."""


def test_what_the_last_release_has_is_there() -> None:
    kept = set(KEPT.read_text().splitlines())
    assert kept - surface() == RENAMED | REMOVED | MADE_BY_US | CALLED_BY_US


def test_the_contract_discount_of_the_last_release_finds_its_rules() -> None:
    with pytest.warns(DeprecationWarning, match="demo.discount is now msgworker.demo.purchases"):
        from msgworker.demo import discount

    assert discount.straight([]) == {}
