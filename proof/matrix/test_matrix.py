"""There is a session for all that pyproject.toml allows, and the pages say what was recorded."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import noxfile
from proof.matrix import record
from tests.names import ROOT, homes

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPORT = """<testsuites><testsuite>
<testcase classname="tests.contract.test_a" name="test_good[sqlite]" />
<testcase classname="tests.contract.test_a" name="test_bad[sqlite]"><failure/></testcase>
<testcase classname="tests.contract.test_a" name="test_not"><skipped/></testcase>
</testsuite></testsuites>"""


def test_each_python_of_the_classifiers_has_a_session_and_no_other_has() -> None:
    told = set(re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"])))
    assert {python.removesuffix("t") for python, *_ in noxfile.SESSIONS.values()} == told
    assert PROJECT["requires-python"] == f">={noxfile.SESSIONS['oldest'][0]}"


def test_the_oldest_session_has_every_lower_bound() -> None:
    pinned = dict(one.split("==") for one in noxfile.oldest())
    for requirement in PROJECT["dependencies"]:
        name = re.split(r"[<>=\[]", requirement)[0]
        assert f"{name}>={pinned[name]}" in requirement
    assert {"psycopg[binary]", "PyMySQL", "redis", "Django", "starlette"} <= pinned.keys()


def test_the_sessions_name_drivers_as_the_extras_do_and_files_that_are_there() -> None:
    extras = PROJECT["optional-dependencies"].values()
    known = {one.replace("[binary]", "") for some in extras for one in some} | {noxfile.OLD}
    page = record.VERSIONS.read_text(encoding="utf-8")
    for name, (_, packages, _) in noxfile.SESSIONS.items():
        assert {one.replace("[binary]", "") for one in packages} <= known, name
        assert f"\n| {name} |" in page
        for path in noxfile.tests_of(name):
            assert path.startswith("--") or (ROOT / path.partition("::")[0]).exists(), path
    for test in noxfile.OLDEST_CANNOT:
        plain = test.rpartition("::")[2].partition("[")[0]
        assert plain in homes()
        assert f"`{plain}`" in page


def test_the_pages_say_of_each_server_what_was_recorded() -> None:
    told = json.loads(record.RECORD.read_text(encoding="utf-8"))
    versions = record.VERSIONS.read_text(encoding="utf-8")
    readme = record.README.read_text(encoding="utf-8")
    assert record.made(told, versions, readme) == (versions, readme)
    assert [name for name, one in told.items() if one["failed"]] == []


def test_a_test_that_failed_counts_as_passed_once_it_has_passed_alone() -> None:
    alone = REPORT.replace("<failure/>", "")
    skips = {"listed": 0, "skipped": 1, "seconds": 0}
    failed = {"passed": 1, "again": 0, "failed": ["tests.contract.test_a::test_bad[sqlite]"]}
    assert record.counted([REPORT]) == skips | failed
    assert record.counted([REPORT, alone]) == skips | {"passed": 2, "again": 1, "failed": []}


def test_what_is_absent_without_the_gil_is_a_module_of_its_own() -> None:
    assert (Path(__file__).parent / "absent" / "oracledb.py").exists()
