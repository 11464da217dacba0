"""Limits while processes are killed; and the measure of them, on hand-made starts."""

from __future__ import annotations

from pathlib import Path

from proof.crash.limits import MAX_RUNNING, PER_SECOND, Verdict, measure, most_at_once, windows


def test_processes_that_are_killed_never_run_more_than_may(sqlite, tmp_path: Path) -> None:
    found = measure(str(sqlite.url), tmp_path, seconds=2.0, processes=2, seed=1, kill_seconds=0.7)
    assert 1 <= found.at_once <= MAX_RUNNING, found
    assert found.at_1 <= MAX_RUNNING, found
    assert found.capped > MAX_RUNNING, found
    assert found.kills > 0, found


def test_the_measure_counts_what_ran_at_once() -> None:
    lines = [
        f"capped {step}".split()
        for step in ("start 1 7 1", "start 2 8 2", "end 3 7 1", "start 5 7 3", "end 6 7 3")
    ]
    late = ["capped", "start", "5.5", "9", "4"]
    assert most_at_once(lines, {}) == 2
    assert most_at_once(lines, {"8": 4.0}) == 2
    assert most_at_once([*lines, late], {"8": 2.5}) == 2
    assert most_at_once([*lines, late], {}) == 3


def test_the_measure_sees_windows_that_are_odd() -> None:
    even = [i / PER_SECOND for i in range(PER_SECOND * 15)]
    assert Verdict(windows=windows(even)).wrong() == []
    late = [at for at in even if not 4 < at < 5]
    assert Verdict(windows=windows(late)).wrong() != []
    assert Verdict(at_1=MAX_RUNNING + 1).wrong() != []
