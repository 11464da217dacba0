"""What `make test` leaves to `make proof`, and what of that the CI takes each day.

A test of several databases is quick on one of them, each test on another: five of six on SQLite,
where it takes half the time. One with parameters is quick with each of them: with one on
PostgreSQL, one on MariaDB and the others on SQLite. Only what decides between databases, and the
crash tests, are quick on all (ON_ALL). A run that leaves out servers, by `-k "not postgresql ..."`,
takes each on what is left. A mark at the test says otherwise:

  long            it takes seconds, or what it proves is proved by a quick one: all of it is long
  quick           it is quick with all its parameters, on all databases
  quick(PATTERN)  with those in whose id the pattern is found, and no others
  core            on the stand-in of Oracle, too; `make proof` runs these through PgBouncer

Each promise keeps its main test in `make test`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
import xml.etree.ElementTree as ET
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from proof.oracle import standins
from tests import variants
from tests.names import ROOT

ON_ALL = ("proof/crash/", "tests/bench/", "tests/store/")
"""Folders whose tests are quick on all databases."""
DATABASES = ("sqlite", "postgresql", "mariadb")
SLICE = "MSGWORKER_TEST_SLICE"
"""The number of a day: `-m "not long or today"` then takes one of SLICES parts of the long tests,
too, after all others; each process begins none of them once it has had SLICE_SECONDS for them."""
SLICES = 45
SLICE_SECONDS = 120.0
SLICE_TEST_SECONDS = 300  # a test that may take so long by its mark is in no slice
SECONDS = ROOT / "tests" / "seconds.txt"
"""What a quick test of each file takes on average, to one digit. Anew, after a run with a report:
`python -m tests.quick REPORT > build/seconds.txt`. A file that is not there is among the first."""
SLOW, VERY_SLOW = 1.5, 5.0
"""Seconds. A file of VERY_SLOW comes with those of SLOW: at the end, others would wait for it."""
ON_EACH_VERSION = ("test_torture_breaks_no_rule",)
"""Quick on the server whose version is tested, whichever that is."""


def long_ones(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Those of the collected tests that are left to `make proof`."""
    twins: dict[tuple[str, str, str], dict[str, pytest.Item]] = defaultdict(dict)
    asked = items[0].config.getoption("keyword") if items else ""  # -k "not postgresql and ..."
    for item in items:
        file = item.nodeid.split("::")[0]
        given = getattr(item, "callspec", None)
        test = getattr(item, "originalname", None) or item.name
        if given and given.params.get("database") in standins.NAMES:
            if item.get_closest_marker("core") is None:
                yield item
            continue
        if item.get_closest_marker("long"):
            continue
        mark = item.get_closest_marker("quick")
        pattern = None if mark is None else str(mark.args[0]) if mark.args else ""
        if test in ON_EACH_VERSION and variants.name() in variants.VERSIONS:
            pattern = variants.VARIANTS[variants.name()].server
        if pattern is not None:
            if not re.search(pattern, _id(given) if given else ""):
                yield item
        elif given and given.params.get("database") in DATABASES and not file.startswith(ON_ALL):
            name = str(given.params["database"])
            rest = "-".join(part for part in _id(given).split("-") if part != name)
            twins[file, test, rest][name] = item
    cases = Counter((file, test) for file, test, _ in twins)
    taken = set()
    for (file, test, rest), found in twins.items():
        names = [name for name in sorted(found) if not found[name].get_closest_marker("skip")]
        names = [name for name in names if f"not {name}" not in asked] or sorted(found)
        chance = zlib.crc32(f"{test}[{rest}]".encode())
        quick = names[chance % len(names)]
        alone = cases[file, test] == 1
        most = 0x100 if variants.name() else 0x300  # a variant is on a server: it takes more there
        if "sqlite" in names and (chance & most if alone else (file, test, quick) in taken):
            quick = "sqlite"
        taken.add((file, test, quick))
        if variants.name() in variants.VERSIONS:
            quick = variants.VARIANTS[variants.name()].server
        yield from (item for name, item in found.items() if name != quick)


def spread(items: list[pytest.Item]) -> None:
    """Where several processes share the tests, those that take least come first, by what those of
    their file take (SECONDS): three of four have run after a quarter of the time, so that what is
    broken shows early. Tests of files that take the same are mixed."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        seconds = {
            file: float(taken) for taken, file in map(str.split, SECONDS.read_text().splitlines())
        }
        for file, taken in seconds.items():
            if taken >= VERY_SLOW:
                seconds[file] = SLOW

        def place(item: pytest.Item) -> tuple[float, int]:
            file = item.nodeid.split("::")[0]
            return seconds.get(file, 0.0), zlib.crc32(item.nodeid.encode())

        items.sort(key=place)


def seconds_in(report: Path) -> Iterator[str]:
    """The lines of SECONDS, from the report of a run (`--junitxml`)."""
    taken = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            taken[case.get("classname", "")].append(float(case.get("time", "0")))
    for name, all_of_it in sorted(taken.items()):
        yield f"{float(f'{fmean(all_of_it):.1g}'):g} {name.replace('.', '/')}.py"


def compile_share(config: pytest.Config) -> None:
    """Where several processes collect the same tests, each imports its share of them first: what
    pytest compiles anew for its `assert` in a fresh clone is then compiled by one of them, not by
    all, which takes each process longer than to collect all that is compiled."""
    mine = getattr(config, "workerinput", None)
    if mine is None:
        return
    folders = [Path(arg).resolve() for arg in config.args if Path(arg).is_dir()]
    files = sorted(file for folder in folders for file in folder.rglob("test_*.py"))
    for file in files[int(mine["workerid"][2:]) :: mine["workercount"]]:
        with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):  # said later
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            importlib.import_module(name)


def todays(items: list[pytest.Item]) -> None:
    """Mark today's slice of the long tests, and put it behind all others."""
    if os.environ.get(SLICE):
        day = int(os.environ[SLICE]) % SLICES
        for item in items:
            limit = item.get_closest_marker("timeout")
            long = item.get_closest_marker("long") and not (
                limit and limit.args[0] >= SLICE_TEST_SECONDS
            )
            if long and zlib.crc32(item.nodeid.encode()) % SLICES == day:
                item.add_marker(pytest.mark.today)
        items.sort(key=lambda item: item.get_closest_marker("today") is not None)


_begun: list[float] = []


def has_time(item: pytest.Item) -> bool:
    """Whether a test may begin: of today's slice as long as there are seconds left."""
    if item.get_closest_marker("today") is None:
        return True
    _begun.append(time.monotonic())
    return _begun[-1] - _begun[0] < SLICE_SECONDS


def _id(given: Any) -> str:
    """The id of a parametrized test, as it is where MariaDB has its place."""
    return re.sub(r"\bmysql\b", "mariadb", given.id) if variants.is_mysql() else given.id


if __name__ == "__main__":
    print(*seconds_in(Path(sys.argv[1])), sep="\n")
