"""The bench itself: it runs, finds no fault where there is none, and finds those that are there."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from bench import counts
from bench.__main__ import main
from bench.checking import faults, judge
from bench.handlers import EFFECTS, Entry, create_effects, write
from bench.process import Counts, Seen
from bench.purchases import repeated, wrong
from tests.plugin import Database


@pytest.mark.long
def test_a_tiny_run_reports_rates_and_counts_and_finds_no_fault(tmp_path):
    path = tmp_path / "report.json"
    arguments = ["B1", "B2", "B18", "B19", "--database", "sqlite", "--messages", "500", "--quick"]
    assert main([*arguments, "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    got = [(line["scenario"], line["processes"]) for line in report["lines"]]
    assert got == [("B1", 1), ("B1", 2), ("B2", 1), ("B2", 2), ("B18", 1), *[("B19", 1)] * 6]
    assert "of one without a job, median of 1 pairs: rate" in str(report["lines"][4]["notes"])
    for line in report["lines"]:
        assert [line[name] for name in ("order_faults", "overlaps", "missing")] == [0, 0, 0]
        assert line["rates"][0] > 0
        assert 0 < line["statements"] <= line["round_trips"]
    facts = " ".join(report["facts"])
    assert "cores" in facts
    assert "synchronous=2" in facts


def test_a_missing_server_is_reported_by_name_and_reason(monkeypatch, capsys):
    monkeypatch.setenv("MSGWORKER_TEST_POSTGRESQL_URL", "")
    monkeypatch.setenv("MSGWORKER_BENCH_SERVED", "1")
    assert main(["B1", "--database", "postgresql", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "postgresql: NOT TESTED" in out
    assert "not run: no server: MSGWORKER_TEST_POSTGRESQL_URL is not set" in out


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([("a", 1, 10, 20), ("a", 2, 20, 30), ("b", 1, 12, 40)], (0, 0)),
        ([("a", 2, 10, 20), ("a", 1, 20, 30)], (1, 0)),
        ([("a", 1, 10, 20), ("a", 2, 19, 30)], (0, 1)),
        ([("a", 1, 10, 90), ("a", 2, 20, 30), ("a", 3, 40, 50)], (0, 2)),
        ([("a", 1, 10, 20), ("a", 1, 30, 40)], (1, 0)),
        ([(None, 2, 10, 20), (None, 1, 11, 30)], (0, 0)),
    ],
    ids=["good", "order", "overlap", "overlap of a long one", "twice", "no object"],
)
def test_faults_are_found_in_hand_made_logs(log, expected):
    assert faults(sorted(log, key=lambda entry: entry[2])) == expected


def test_logs_of_several_processes_are_judged_together():
    one: list[Entry] = [("a", 2, 50, 60)]
    two: list[Entry] = [("a", 1, 70, 80), ("b", 3, 0, 1_000_000_000)]
    verdict = judge([Seen(one, Counts()), Seen(two, Counts())])
    assert (verdict.order_faults, verdict.repeated, verdict.handled) == (1, 0, 3)
    assert verdict.seconds == 1.0


@pytest.mark.quick("postgresql-B(2|14)$|sqlite-B2$|mariadb-B2$")
@pytest.mark.parametrize("shape", counts.SHAPES)
def test_statements_per_message_stay_as_recorded(database: Database, shape: str):
    """Counts, not seconds: a statement or a round trip more per batch is seen here."""
    recorded = counts.recorded().get(database.name)
    if recorded is None:
        pytest.skip(f"nothing is recorded for {database.name}; run python -m bench --record")
    most = {name: value * counts.TOLERANCE for name, value in recorded[shape].items()}
    for _ in range(3):  # a busy machine adds some, it takes none away
        counted = counts.count(database.url, shape)
        assert counted.verdict.handled == counts.SHAPES[shape].rows.count
        assert (counted.verdict.order_faults, counted.verdict.overlaps) == (0, 0)
        assert 0 < counted.statements <= counted.round_trips
        found = {"statements": counted.statements, "round_trips": counted.round_trips}
        if all(found[name] <= most[name] for name in most):
            return
    pytest.fail(f"{found} for each message, at most {most} are expected")


def test_effects_that_are_wrong_by_a_cent_are_seen(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'effects.db'}")
    bought = list(repeated(20))
    create_effects(engine)
    assert wrong(engine, bought) == len({p.customer for p in bought})
    with engine.begin() as conn:
        write(conn, [(p.number, p.customer, p.cents) for p in bought])
    assert wrong(engine, bought) == 0
    with engine.begin() as conn:
        conn.exec_driver_sql(f"UPDATE {EFFECTS} SET cents = cents + 1 WHERE number = 1")
    assert wrong(engine, bought) == 1
