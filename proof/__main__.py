"""Run the laboratory, part after part, and print one table: `python -m proof [PART ...]`.

A part that is red stops none. What came out of each is kept in .proof/, by commit (and by what is
not committed), so that a run that was stopped, or whose hours are over, goes on where it was;
--again begins anew. The seed is that of the day on which a commit was begun: on another day other
schedules, rows, tables and mutants are drawn. Ends with 1 if a part is red, with 3 if one is left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.names import ROOT
from tests.variants import VARIABLE

HOME = ROOT / ".proof"
HOURS = 2.0
WORKERS = min((os.cpu_count() or 1) + 2, 6)
PYTEST = (
    f"pytest -q -n {WORKERS} --dist loadgroup --max-worker-restart 0 --junitxml={{report}}"
    " -o faulthandler_timeout=1900"  # some tests here may take 1800 s
)
TORTURE = "proof.crash.torture --seed {seed}"
NOT_THERE = 3  # a program of ours ends with it where its server cannot be had
PARTS = """
model: the protocol as coded holds in every interleaving within bounds
    PYTEST proof/test_model.py -m long
simulation: whole instances, interleaved on virtual time with faults, break no rule
    PYTEST proof/simulation -m long
machines: leases, shards and segments keep their rules in any order of events
    PYTEST proof/machines -m long
judge: the judge of all runs is right about random histories
    PYTEST proof/test_history.py -m long
contract: what users see holds on every database
    PYTEST tests/contract -m long
tests: so do all other tests
    PYTEST tests -m long --ignore=tests/contract
crash: processes, sessions, servers and networks that end lose and repeat nothing
    PYTEST proof/crash -m long
torture-postgresql: nor do all faults at once, for a minute
    TORTURE --database postgresql
torture-mariadb: the same
    TORTURE --database mariadb
torture-sqlite: the same
    TORTURE --database sqlite
torture-partitions: the same over a table with partitions
    TORTURE --database partitions
torture-oracle: the same on the stand-in of Oracle
    TORTURE --database oracle-mariadb
failover: a primary that dies, and one that comes back, lose and repeat nothing
    PYTEST proof/failover -m long
galera: nor do three nodes that all take writes
    PYTEST proof/galera -m long
poolers: nor does a PgBouncer that is killed
    PYTEST proof/poolers -m long
fuzz: any value harms its own row only; a table of any types works or is refused
    PYTEST proof/fuzz -m long
oracle: no error at any statement changes an outcome, on Oracle's stand-in and elsewhere
    PYTEST proof/oracle -m long
mutants: for each promise that is broken on purpose a test is red
    PYTEST proof/test_mutants.py -m long
psycopg2: the contract holds with psycopg2
    VARIANT=psycopg2 tests/contract
partitions: ... over partitions
    VARIANT=partitions tests/contract
mysqlclient: ... with mysqlclient
    VARIANT=mysqldb tests/contract -m "not long"
pgbouncer-transaction: ... through PgBouncer, by transaction
    VARIANT=pgbouncer-transaction tests/contract -m "not long"
pgbouncer-session: ... through PgBouncer, by session
    VARIANT=pgbouncer-session tests/contract -m "not long"
galera-contract: ... on nodes of Galera
    VARIANT=galera tests/contract -m "not long"
oldest: ... with the oldest Python and every lower bound
    nox -s oldest -- --junitxml={report}
free-threaded: ... without the GIL
    nox -s free-threaded -- --junitxml={report}
python-3.14: ... with the newest Python
    nox -s python-3.14 -- --junitxml={report}
"""
"""Name, what it proves; what Python's -m is given."""
LIMIT, TORTURE_LIMIT = "90m", "10m"
"""A part that does not end is stopped. Each test of pytest has a limit of its own."""


class Part(NamedTuple):
    name: str
    proves: str
    program: str

    def command(self, report: Path, seed: int) -> list[str]:
        words = re.sub(r"^(VARIANT=\S+|PYTEST)", PYTEST, self.program).replace("TORTURE", TORTURE)
        most = TORTURE_LIMIT if "TORTURE" in self.program else LIMIT
        limit = ["timeout", "--foreground", "-s", "INT", "-k", "60", most]
        return [*limit, sys.executable, "-m", *shlex.split(words.format(report=report, seed=seed))]

    @property
    def variant(self) -> dict[str, str]:
        """What another driver, a pooler or a cluster is asked for with: tests/variants.py."""
        found = re.match(r"VARIANT=(\S+)", self.program)
        return {VARIABLE: found[1]} if found else {}


def parts() -> Iterator[Part]:
    for name, proves, program in re.findall(r"^(\S+): (.+)\n +(.+)$", PARTS, re.M):
        yield Part(name, proves, program)


def counted(report: Path, code: int) -> dict[str, int]:
    """passed, failed and skipped; of a program without a report, what its exit code says."""
    if not report.exists():
        found = {0: "passed", NOT_THERE: "skipped"}.get(code, "failed")
        return {one: int(one == found) for one in ("passed", "failed", "skipped")}
    suite = next(ET.parse(report).iter("testsuite"))
    number = {one: int(suite.get(one, 0)) for one in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    passed = number["tests"] - failed - number["skipped"]
    return {"passed": passed, "failed": failed or int(code != 0), "skipped": number["skipped"]}


def names_of_failed(report: Path) -> Iterator[str]:
    for case in ET.parse(report).iter("testcase") if report.exists() else ():
        if case.find("failure") is not None or case.find("error") is not None:
            yield f"{case.get('classname')}::{case.get('name')}"


def run(part: Part, seed: int) -> dict[str, Any]:
    """What came of a part, with its seconds; its output is in .proof/."""
    report, log, begun = HOME / f"{part.name}.xml", HOME / f"{part.name}.log", time.monotonic()
    report.unlink(missing_ok=True)
    environment = {**os.environ, **part.variant, "MSGWORKER_TEST_SEED": str(seed)}
    environment["PYTHONNODEBUGRANGES"] = "1"  # see the Makefile
    with log.open("w") as file:
        command = part.command(report, seed)
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    found = counted(report, done.returncode) | {"seconds": round(time.monotonic() - begun)}
    if found["failed"]:
        print(f"{part.name} is red (exit code {done.returncode}), see {log}:", flush=True)
        print(*(f"  {name}" for name in names_of_failed(report)), sep="\n", flush=True)
    return found


def commit() -> str:
    """What is tested: HEAD, and a digest of what is not committed."""
    head, changed = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout
        for words in (["rev-parse", "--short=12", "HEAD"], ["diff", "HEAD"])
    )
    digest = f"+{hashlib.sha1(changed).hexdigest()[:8]}" if changed else ""
    return head.decode().strip() + digest


def table(chosen: list[Part], found: dict[str, dict[str, Any]]) -> str:
    wide = max(len(part.name) for part in chosen)
    head = ("passed", "failed", "skipped", "seconds")
    lines = [f"{'part':{wide}} {' '.join(f'{one:>8}' for one in head)}  what it proves"]
    for part in chosen:
        one = found.get(part.name)
        numbers = [f"{one[name]:8,}" if one else "       -" for name in head]
        lines.append(f"{part.name:{wide}} {' '.join(numbers)}  {part.proves}")
    sums = [f"{sum(one[name] for one in found.values()):8,}" for name in head]
    return "\n".join([*lines, f"{'':{wide}} {' '.join(sums)}"])


def main(arguments: list[str]) -> int:
    every = {part.name: part for part in parts()}
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(every)}")
    parser.add_argument("--again", action="store_true", help="also what has been run already")
    parser.add_argument("--hours", type=float, default=HOURS, help="none begins after so many")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.parts) - every.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    chosen = [every[name] for name in asked.parts or every]
    HOME.mkdir(exist_ok=True)
    kept = HOME / f"{commit()}.json"
    told = json.loads(kept.read_text()) if kept.exists() else {"seed": int(time.time() // 86_400)}
    found = told.setdefault("parts", {})
    for part in chosen if asked.again else ():
        found.pop(part.name, None)
    end = time.monotonic() + asked.hours * 3600
    for part in chosen:
        if part.name not in found and time.monotonic() < end:
            print(f"{time.strftime('%H:%M:%S')} {part.name}: {part.proves}", flush=True)
            found[part.name] = run(part, told["seed"])
            kept.write_text(json.dumps(told, indent=1) + "\n")
    mine = {part.name: found[part.name] for part in chosen if part.name in found}
    print(f"\n{kept.stem}, seed {told['seed']}\n{table(chosen, mine)}")
    red = any(one["failed"] for one in mine.values())
    return 1 if red else NOT_THERE if len(mine) < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
