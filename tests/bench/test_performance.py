"""The page of figures: its table, its charts, and that nothing else of it is touched."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from bench.performance import BEGIN, DOCS, END, PAGE, QUICK, Measured, markdown, write
from bench.plot import Point, svg
from bench.report import Line

POINTS = {"postgresql": [Point(1_000, [900.0, 1_100.0, 1_000.0]), Point(10_000, [2_000.0])]}


def line(**values: object) -> Line:
    return Line("postgresql", "B1", "unordered", rates=[10.0, 30.0, 20.0], **values)  # type: ignore[arg-type]


def test_a_line_of_the_page_has_the_median_and_the_extremes():
    headings, _, row = markdown([line()])
    assert "messages/s (min-max)" in headings
    assert "| 20 (10-30) |" in row
    assert headings.count("|") == row.count("|")


def test_a_failure_is_in_the_table_without_folders_of_this_machine():
    failed = Line("postgresql", "B1", "queue 1.0", not_run="failed: a | b in /var/lib/x/y.py")
    row = list(markdown([failed]))[-1]
    assert "not run: failed: a / b in y.py" in row
    assert "/var" not in row


def test_only_what_is_between_the_marks_is_written_anew(tmp_path):
    page = tmp_path / PAGE
    page.write_text(f"# Head\n{BEGIN}\nold\n{END}\ntail\n")
    measured = Measured(["the machine"], [line()], [line()], POINTS, POINTS)
    write(tmp_path, measured, QUICK)
    text = page.read_text()
    assert text.startswith(f"# Head\n{BEGIN}\n")
    assert text.endswith(f"{END}\ntail\n")
    assert "old" not in text
    assert "* the machine" in text
    assert "### Beside other queues" in text
    assert (tmp_path / "speed-backlog.svg").exists()
    assert (tmp_path / "speed-processes.svg").exists()
    write(tmp_path, measured, QUICK)
    assert page.read_text() == text


def test_a_page_without_marks_is_refused(tmp_path):
    (tmp_path / PAGE).write_text("# Head\n")
    with pytest.raises(ValueError, match="lacks the marks"):
        write(tmp_path, Measured(), QUICK)


def test_the_page_of_the_project_has_the_marks():
    text = (DOCS / PAGE).read_text()
    assert 0 < text.index(BEGIN) < text.index(END)


def test_faults_of_msgworker_count_and_those_of_a_peer_do_not():
    ours = Line("postgresql", "B2", "msgworker: 1,000 objects", order_faults=1)
    peer = Line("postgresql", "B2", "queue 1.0: 1,000 objects", order_faults=5)
    assert Measured(scenarios=[line(overlaps=2)], peers=[ours, peer]).faults == 3


def test_a_chart_is_a_picture_with_a_line_for_each_series():
    chart = svg({**POINTS, "a < b": [Point(1_000, [50.0])]}, "t & u", "rows")
    root = ElementTree.fromstring(chart)
    texts = [element.text for element in root.iter() if element.text]
    assert {"postgresql", "a < b", "t & u", "1,000", "10,000"} <= set(texts)
    assert sum(element.tag.endswith("polyline") for element in root.iter()) == 2


@pytest.mark.parametrize("series", [{}, {"x": []}, {"x": [Point(1, [])]}], ids=str)
def test_a_chart_of_nothing_is_a_picture_too(series):
    assert ElementTree.fromstring(svg(series, "t", "x")) is not None


def test_a_higher_rate_is_drawn_higher():
    root = ElementTree.fromstring(svg(POINTS, "t", "x"))
    circles = [element for element in root.iter() if element.tag.endswith("circle")]
    first, second = (float(circle.attrib["cy"]) for circle in circles)
    assert second < first
