"""The arithmetic of `bench.scale`, on fleets small enough to count by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench import scale
from bench.scale_costs import MEASURED, Fleet, load
from bench.scale_sim import moves, storm, wasted_claims

ROOT = Path(__file__).parent.parent.parent
PLAIN = replace(
    MEASURED,
    message_statements=3.0,
    message_cpu_ms=2.0,
    message_looks=0.5,
    idle_statements=2.0,
    idle_cpu_ms=1.0,
    look_cpu_ms=1.0,
    wide_look_cpu_ms=41.0,
    slice_look_cpu_ms=1.0,
    beat_cpu_ms=1.0,
    beat_of_1000_cpu_ms=100.0,
    beat_statements=5.0,
    members_look_cpu_ms=5.096,
    renewal_cpu_ms=1.0,
    row_bytes=100.0,
)
FLEET = Fleet(instances=100, messages=1e6, seconds=1000.0)


def test_the_statements_of_a_database_are_those_of_its_share_of_the_fleet():
    one = load(FLEET, 1, "partitions", PLAIN).statements
    assert one == {"messages": 3000.0, "polls": 200.0, "heartbeats": 50.0, "locks": 120.0}
    half = load(FLEET, 2, "partitions", PLAIN).statements
    assert half == {"messages": 1500.0, "polls": 100.0, "heartbeats": 25.0, "locks": 110.0}


def test_the_cores_of_a_database_grow_with_the_square_of_those_who_look_at_each_other():
    few = load(FLEET, 10, "everywhere", PLAIN).cores
    assert few["heartbeats"] == pytest.approx(0.001)  # 1 beat a second of 1 ms
    many = load(FLEET, 1, "everywhere", PLAIN).cores
    assert many["heartbeats"] == pytest.approx(0.1)  # 10 of 10 ms
    # 1,000 messages of 2 ms; 500 looks for 2, which read a twentieth of the window: 2 ms more
    assert many["messages"] == pytest.approx(2.0 + 1.0)
    assert load(FLEET, 1, "partitions", PLAIN).cores["messages"] == pytest.approx(2.0)
    # 100 looks a second at 500 of 5,096 rows, and 10 renewals
    assert load(FLEET, 1, "partitions", PLAIN).cores["locks"] == pytest.approx(0.05 + 0.01)


def test_connections_and_bytes_are_shared_out_among_the_databases():
    one = load(FLEET, 4, "segments", PLAIN)
    assert (one.connections, one.cores["locks"]) == (100, 0.0)
    assert load(FLEET, 4, "partitions", PLAIN).connections == 150
    assert one.gigabytes == pytest.approx(0.025)


def test_the_loads_in_the_docs_are_those_that_the_script_computes():
    assert scale.loads(Fleet()) in (ROOT / "docs" / "project" / "scaling.md").read_text()


def test_one_instance_wastes_no_claim_and_more_waste_more():
    assert wasted_claims(1, 50, 10, random.Random(1)) == 0
    few, many = (wasted_claims(n, 10 * n, 16, random.Random(1)) for n in (2, 40))
    assert 0 <= few < many < 0.6


def test_a_member_more_moves_its_part_and_no_more():
    shards, few, many = moves(10, 1, 0, random.Random(1))
    assert (shards, few) == (40, 3)
    assert many > 20
    assert moves(10, 0, 1, random.Random(1))[1] == 4  # what the one that went had


def test_each_of_the_dead_is_recovered_once_and_within_a_lease_and_two_beats():
    for instances, dead in ((2, 1), (20, 10), (100, 50)):
        found = storm(instances, dead, random.Random(1))
        assert found.recovered == dead
        assert 20 <= found.seconds <= 50
        assert found.statements == 7 * dead + found.lost


def test_survivors_that_see_the_same_dead_lose_take_overs_to_each_other():
    slow = replace(MEASURED, recovery_cpu_ms=2000.0)
    assert storm(40, 20, random.Random(1), slow).lost > 0


def test_a_seed_gives_the_same_tables_and_names_each_layout(capsys):
    arguments = ["--instances", "20", "--messages", "1e6", "--seed", "3"]
    assert scale.main(arguments) == 0
    first = capsys.readouterr().out
    scale.main(arguments)
    assert capsys.readouterr().out == first
    assert "| 4 x 5 instances, partitions |" in first
    assert "| 10 of 20 |" in first
