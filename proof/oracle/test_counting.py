"""Round trips, statements and parses per message on the stand-in, beside what was recorded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from bench.counts import SHAPES, recorded
from proof.oracle import counting
from tests.plugin import Database

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_a_message_costs_no_more_on_oracle_than_recorded(empty: Database, name: str) -> None:
    counted, kept = asdict(counting.count(empty.url, name)), counting.kept()[name]
    besides = counting.PER_SECOND * counted["seconds"] / SHAPES[name].rows.count
    for what, most in kept.items():
        assert counted[what] <= counting.TOLERANCE * most + besides, (what, counted)


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_round_trips_recorded_are_within_the_aim(name: str) -> None:
    times = counting.kept()[name]["round_trips"] / recorded()["postgresql"][name]["round_trips"]
    assert times <= counting.AIM


def test_the_document_shows_the_counts() -> None:
    text = (DOCS / "project" / "oracle.md").read_text(encoding="utf-8")
    assert counting.shown() in text, "write it anew with `python -m proof.oracle.counting`"
