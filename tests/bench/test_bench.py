"""The bench itself: it runs, finds no fault where there is none, and finds those that are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from bench import counts, transactions
from bench.__main__ import main
from bench.checking import faults, judge
from bench.handlers import EFFECTS, Entry, create_effects, write
from bench.process import Counts, Seen
from bench.purchases import repeated, wrong
from bench.report import Line, table
from bench.scenarios import DRAINS, QUICK_SCALE, Drain, drains, note_round
from msgworker.demo.purchases import read
from tests.plugin import Database


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """What a tiny run of B1 and B2 on SQLite writes."""
    path = tmp_path_factory.mktemp("bench") / "report.json"
    arguments = ["B1", "B2", "--database", "sqlite", "--messages", "500", "--quick"]
    assert main([*arguments, "--json", str(path)]) == 0
    written: dict[str, list[dict[str, object]]] = json.loads(path.read_text())
    return written


@pytest.mark.long
@pytest.mark.xdist_group("tiny run")
def test_a_tiny_run_reports_each_scenario_with_one_and_two_processes(report):
    got = [(line["scenario"], line["processes"]) for line in report["lines"]]
    assert got == [("B1", 1), ("B1", 2), ("B2", 1), ("B2", 2)]


@pytest.mark.long
@pytest.mark.xdist_group("tiny run")
def test_a_tiny_run_finds_no_fault(report):
    faulty = ("order_faults", "overlaps", "missing")
    assert [line[name] for line in report["lines"] for name in faulty] == [0] * 12


@pytest.mark.long
@pytest.mark.xdist_group("tiny run")
def test_a_tiny_run_measures_rates_and_counts(report):
    for line in report["lines"]:
        assert line["rates"]
        assert line["rates"][0] > 0
        assert 0 < line["statements"] <= line["round_trips"]


@pytest.mark.long
@pytest.mark.xdist_group("tiny run")
def test_the_run_says_on_which_machine_and_how_durable(report):
    facts = " ".join(report["facts"])
    assert "cores" in facts
    assert "synchronous=2" in facts


def test_an_unknown_scenario_is_refused_with_those_that_exist(capsys):
    with pytest.raises(SystemExit):
        main(["B99"])
    assert "B1, B2" in capsys.readouterr().err


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


def test_faults_make_the_line_and_the_exit_code_bad():
    assert Line("sqlite", "B2", "x", overlaps=1).faults == 1
    assert Line("sqlite", "B2", "x", missing=2).faults == 2


def test_ratios_compare_medians():
    line = Line("sqlite", "B1", "x", rates=[10.0, 30.0, 20.0], limit=[40.0])
    assert line.of(line.limit) == 0.5
    assert line.of(line.prototype) is None
    assert "0.50" in table([line])


@pytest.mark.parametrize("scenario", DRAINS)
def test_every_drain_names_rows_and_an_end(scenario):
    for drain in drains(scenario, QUICK_SCALE):
        assert drain.rows
        assert (drain.expected is None) != (drain.time_limit is None)


def test_prototypes_are_there_for_every_database():
    folder = Path(counts.__file__).parent / "prototypes"
    assert {path.stem for path in folder.glob("*.py")} >= {"sqlite", "postgresql", "mariadb"}


@pytest.mark.quick("postgresql-B(1|2|14|14 group)$|sqlite-B(2|15)$|mariadb-B2$")
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


@pytest.mark.parametrize("threads", [1, 3])
def test_the_limit_of_one_transaction_for_each_message_is_there_where_pgbench_is_not(
    database: Database, threads: int
):
    if database.name != "postgresql":
        url = sa.engine.make_url(database.url)
        assert transactions.one_transaction(url, 20, threads) > 0


@pytest.mark.parametrize("name", ["sample", "sample and a half"])
def test_repeated_purchases_keep_their_order_and_get_new_customers(name):
    sample = read()
    bought = list(repeated(len(sample) * 3 // 2 if name != "sample" else len(sample)))
    assert len({p.number for p in bought}) == len(bought)
    assert [p.cents for p in bought[: len(sample)]] == [p.cents for p in sample]
    first = [p for p in bought if p.customer == f"{sample[0].customer}-1"]
    again = [p for p in sample if p.customer == sample[0].customer] if name != "sample" else []
    assert [p.cents for p in first] == [p.cents for p in again]


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
    engine.dispose()


@pytest.mark.parametrize(("seconds", "missing"), [(1.0, 7), (4.9, 0)], ids=["early", "over"])
def test_what_is_left_when_the_time_is_over_is_said_and_is_no_fault(seconds, missing):
    drain = Drain("B1", "x", (), expected=10, time_limit=5.0)
    line = Line("sqlite", "B1", "x")
    log: list[Entry] = [(None, i, 0, int(seconds * 1e9)) for i in range(3)]
    seen = [Seen(log, Counts())]
    note_round(line, drain, judge(seen), seen)
    assert line.missing == missing
    assert ("3 handled when 5 s were over" in line.notes) == (missing == 0)
