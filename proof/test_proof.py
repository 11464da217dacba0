"""The parts of the laboratory: a red one stops none, and what has run is not run again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proof import __main__ as proof
from tests.names import ROOT, homes, marked
from tests.variants import VARIABLE, VARIANTS

TRIAL = """
green: holds
    PYTEST {folder}/test_green.py
red: does not hold
    PYTEST {folder}/test_red.py
away: cannot be had
    away
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A laboratory of three small parts, which count how often they run."""
    count = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')\n"
    (tmp_path / "test_green.py").write_text(f"def test_a():\n    {count}")
    (tmp_path / "test_red.py").write_text(f"def test_b():\n    {count}    assert False\n")
    (tmp_path / "away.py").write_text(f"{count}raise SystemExit(3)\n")
    (tmp_path / "none.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    told = TRIAL.format(folder=tmp_path)
    monkeypatch.setattr(proof, "PARTS", told)
    monkeypatch.setattr(proof, "HOME", tmp_path / "kept")
    monkeypatch.setattr(proof, "PYTEST", f"pytest -q -c {tmp_path}/none.ini --junitxml={{report}}")
    monkeypatch.setattr(proof, "commit", lambda: "c0ffee")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # Five sixths of what each costs is the import of plugins.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path


def test_a_red_part_stops_none_and_each_runs_once_for_a_commit(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert proof.main(["--hours", "0"]) == 3
    assert not (lab / "runs").exists()
    for more in ([], ["red"]):
        assert proof.main(more) == 1
        assert (lab / "runs").read_text() == "xxx"
    assert proof.main(["green", "--again"]) == 0
    assert (lab / "runs").read_text() == "xxxx"
    assert proof.main([]) == 1
    told = capsys.readouterr().out
    assert "test_red::test_b" in told
    last = told[told.rindex("part ") :].splitlines()
    numbers = [re.findall(r"(\S+) +(\d+) +(\d+) +(\d+) +\d+  (.+)", line) for line in last[1:4]]
    assert numbers == [
        [("green", "1", "0", "0", "holds")],
        [("red", "0", "1", "0", "does not hold")],
        [("away", "0", "0", "1", "cannot be had")],
    ]


def test_the_parts_name_files_variants_and_sessions_that_are_there() -> None:
    import noxfile

    every = list(proof.parts())
    assert len({part.name for part in every}) == len(every) == proof.PARTS.count("\n    ")
    for part in every:
        for path in re.findall(r"\b(?:tests|proof)/[\w/.]+", part.program):
            assert (ROOT / path).exists(), path
        assert part.variant.get(VARIABLE, "psycopg2") in VARIANTS
        if part.program.startswith("nox"):
            assert part.name in noxfile.SESSIONS
    paths = re.findall(r"PYTEST ((?:tests|proof)[\w/.]*)", proof.PARTS)
    long = {file for test in marked("long") for file in homes().get(test, ())}
    assert [file for file in sorted(long) if not file.startswith(tuple(paths))] == []
