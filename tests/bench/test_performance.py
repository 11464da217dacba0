"""The page of figures: its tables, its charts, what is kept of several runs, and what is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import aims, parts, scale
from bench.parts import NotKept, Run
from bench.performance import BEGIN, DOCS, END, PAGE, main, numbered, write
from bench.plot import Point
from bench.report import Line
from bench.scale_costs import Fleet

POINTS = {"postgresql": [Point(1_000, [900.0, 1_100.0, 1_000.0]), Point(10_000, [2_000.0])]}


def line(scenario: str = "B1", label: str = "unordered", **values: object) -> Line:
    values = {"rates": [10.0, 30.0, 20.0], **values}
    return Line("postgresql", scenario, label, **values)  # type: ignore[arg-type]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with a page that has the marks."""
    (tmp_path / PAGE).write_text(f"# Head\n{BEGIN}\nold\n{END}\ntail\n")
    return tmp_path


def test_a_line_of_the_page_has_its_run_the_median_and_the_extremes():
    headings, row = numbered([[], [line()]])
    assert (headings[0], row[0]) == ("run", "2")
    assert row[headings.index("messages/s (min-max)")] == "20 (10-30)"
    assert len(headings) == len(row)


def test_a_failure_is_in_the_table_without_folders_of_this_machine(docs):
    failed = line(label="queue 1.0", not_run="failed: a | b in /var/lib/x/y.py")
    write(docs, [Run(scenarios=[failed])])
    text = (docs / PAGE).read_text()
    assert "not run: failed: a / b in y.py" in text
    assert "/var" not in text


def test_only_what_is_between_the_marks_is_written_anew(docs):
    run = Run("a day", "abc", "10 messages", ["0.1", "0.2"], ["the machine"], [line()], [line()])
    run.backlog, run.processes = POINTS, POINTS
    write(docs, [run])
    text = (docs / PAGE).read_text()
    assert text.startswith(f"# Head\n{BEGIN}\n")
    assert text.endswith(f"{END}\ntail\n")
    assert "old" not in text
    assert "* the machine" in text
    assert "| 1 | a day | abc | 10 messages | 0.1 | 0.2 |" in text
    assert "### Beside other queues" in text
    assert (docs / "speed-backlog.svg").exists()
    assert (docs / "speed-processes.svg").exists()
    write(docs, [run])
    assert (docs / PAGE).read_text() == text


def test_the_page_of_the_project_is_that_of_the_runs_kept(tmp_path):
    (tmp_path / PAGE).write_text((DOCS / PAGE).read_text())
    write(tmp_path, parts.load(DOCS / "performance.json"))
    for name in (PAGE, "speed-backlog.svg", "speed-processes.svg"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text()


def test_a_scenario_measured_anew_leaves_the_older_run_and_the_others_stay():
    older = Run("1", scenarios=[line("B1"), line("B4", "deep"), line("B4", "deeper")])
    kept = parts.add([older], Run("2", scenarios=[line("B4", "of another size")]))
    labels = [[(one.scenario, one.label) for one in run.scenarios] for run in kept]
    assert labels == [[("B1", "unordered")], [("B4", "of another size")]]


def test_a_database_that_is_not_there_takes_nothing_from_what_is_kept():
    absent = line(label="", rates=[], not_run="no server")
    kept = parts.add([Run("1", scenarios=[line()])], Run("2", scenarios=[absent]))
    assert [run.began for run in kept] == ["1"]
    failed = line(label="", rates=[], not_run="it broke", missing=1)
    kept = parts.add(kept, Run("3", scenarios=[failed]))
    assert [run.began for run in kept] == ["3"]


def test_a_peer_that_does_not_offer_a_work_leaves_no_older_run_for_it():
    def run(began: str, **values: object) -> Run:
        return Run(began, peers=[line(label="msgworker: a"), line(label="queue 1.0: a", **values)])

    refused = {"rates": [], "not_run": "not offered"}
    assert [r.began for r in parts.add([run("1", **refused)], run("2", **refused))] == ["2"]
    kept = parts.add([run("1")], run("2", **refused))
    assert [[one.not_run for one in r.peers] for r in kept] == [[None, None], [None]]


def test_what_is_saved_is_loaded_as_it_was(tmp_path):
    path = tmp_path / "kept.json"
    run = Run("1", "abc", "10", ["0", "1"], ["a"], [line(notes=["n"])], [line()], POINTS, POINTS)
    parts.save(path, [run])
    assert parts.load(path) == [run]
    assert parts.load(tmp_path / "none.json") == []


@pytest.mark.parametrize("text", ["{", "7", '[{"began": "1"}]', '[{"other": 1}]', "[3]"])
def test_a_file_that_holds_no_runs_is_refused_before_anything_is_measured(tmp_path, capsys, text):
    path = tmp_path / "kept.json"
    path.write_text(text)
    with pytest.raises(NotKept):
        parts.load(path)
    with pytest.raises(SystemExit):
        main(["--keep", str(path), "--docs", str(tmp_path), "--page"])
    assert "holds no runs" in capsys.readouterr().err
    assert path.read_text() == text


def test_a_part_is_measured_with_its_facts_and_the_page_written_from_all(docs):
    keep = docs / "kept.json"
    ours = [line("B10", "10 ms", limit=[40.0])]
    older = Run("1999", "abc", "10", ["0", "0"], [], ours)
    parts.save(keep, [older])
    arguments = ["--keep", str(keep), "--docs", str(docs), "--scenarios", "B12"]
    small = ["--database", "sqlite", "--messages", "100", "--rounds", "2"]
    assert main([*arguments, *small]) == 0
    kept, newest = json.loads(keep.read_text())
    assert kept["began"] == "1999"
    assert newest["size"] == "100 messages, 2 round(s)"
    assert len(newest["load"]) == 2
    assert newest["commit"]
    assert [len(one["rates"]) for one in newest["scenarios"]] == [2]
    text = (docs / PAGE).read_text()
    assert "| 2 | sqlite | B12 send_many of 100" in text
    assert "| postgresql | B10 | of ideal, 10 ms each: at least 0.9 | 0.50 | no |" in text


def test_an_aim_is_judged_by_the_lines_of_one_run():
    def met(runs):
        return {row[2]: row[3:] for row in aims.rows(runs) if row[:2] == ("postgresql", "B9")}

    two, eight = line("B9", processes=2), line("B9", processes=8, rates=[17.0], wasted=0.2)
    rule = "of two instances, 8, unordered: at least 0.8"
    assert met([[two, eight]])[rule] == ("0.85", "yes")
    assert met([[two], [eight]])[rule] == ("not measured", "-")
    assert met([[two, eight]])["% of candidates wasted, 8, unordered: at most 10"] == (
        "20.00",
        "no",
    )


@pytest.mark.parametrize(("rate", "said"), [(7.99, ("0.80", "yes")), (7.9, ("0.79", "no"))])
def test_an_aim_is_met_by_the_figure_that_is_shown(rate, said):
    lines = [line("B12", "send_many", rates=[rate], limit=[10.0])]
    assert next(row for row in aims.rows([lines]) if row[1] == "B12")[3:] == said


def test_every_aim_finds_its_line_among_the_scenarios():
    """Of the drains; those of other scenarios are found by their names."""
    from bench.scenarios import DRAINS, QUICK_SCALE, drains

    for aim in aims.AIMS:
        if aim.scenario not in DRAINS:
            continue
        fitting = [
            drain
            for drain in drains(aim.scenario, QUICK_SCALE)
            if aim.fits(Line(aim.database, drain.scenario, drain.label, drain.processes))
        ]
        assert len({(drain.label, drain.processes) for drain in fitting}) == 1, aim


def test_the_loads_in_the_docs_are_those_that_the_script_computes():
    assert scale.loads(Fleet()) in (DOCS / "scaling.md").read_text()
