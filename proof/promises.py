"""What holds each promise on which database, and what of it under which fault: a table.

`python -m proof.promises` writes promises.txt anew from the tests that pytest collects and from
the pages that name them; proof/test_promises.py compares it. A number that falls is a promise that
is proved by less: a change that moves tests has to say why.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.names import ROOT, homes

FILE = Path(__file__).with_suffix(".txt")
PAGE = ROOT / "docs" / "project" / "promises.md"
DATABASES = ("sqlite", "postgresql", "mariadb", "oracle")
OF_A_RULE = {
    "I1": "P1", "I2": "P2", "I3": "P3", "I4": "P6", "I5": "P5", "I6": "P4", "I7": "P1",
    "I9": "P3", "I10": "P6",
}  # fmt: skip
"""The promise that a rule of proof/judge.py is about."""


def on(names: Iterable[str]) -> dict[str, set[str]]:
    """Test -> the databases on which it runs, by the ids that pytest gives; "any": on none."""
    found = defaultdict[str, set[str]](set)
    for name in names:
        test, _, parameters = name.rpartition("::")[2].partition("[")
        test = test.partition("@")[0]  # behind it xdist names the group
        words = set(re.split(r"[^a-z]+", parameters.replace("mysql", "mariadb")))
        words -= {"mariadb"} if "oracle" in words else set()  # the stand-in of Oracle
        found[test] |= words.intersection(DATABASES) or {"any"}
    return found


def rows(page: str) -> Iterator[tuple[str, set[str]]]:
    """Each promise, and each failure, with the tests that the page names for it."""
    kind = "promise"
    for line in page.partition("## Which test is for which promise")[2].splitlines():
        if line.startswith(("| promise", "| failure")):
            kind = line.split()[1]
        elif line.startswith("| ") and (tests := set(re.findall(r"`(test_\w+)`", line))):
            yield f"{kind}: {line.split(' | ')[0][2:]}", tests


def faults() -> Iterator[tuple[str, set[str]]]:
    """Each fault of proof/crash by its number, with the promises that its tests name by the rules
    of the judge."""
    found = defaultdict[tuple[str, str], set[str]](set)
    for files in set(homes().values()):
        text = (ROOT / files[0]).read_text() if files[0].startswith("proof/crash/") else ""
        for test, said in re.findall(r'def (test_\w+)\([^)]*\)[^:]*:\n +"""(.*?)"""', text, re.S):
            rules = [OF_A_RULE.get(one, "") for one in re.findall(r"\bI\d+", said)] or ["all"]
            for fault in re.findall(r"\bF\d+", said):
                for promise in rules:
                    found[fault, promise].add(test)
    for (fault, promise), tests in sorted(found.items(), key=lambda one: (int(one[0][0][1:]), one)):
        if promise:
            yield f"fault {fault}, {promise}", tests


def table(collected: Mapping[str, set[str]]) -> str:
    """A line for each: how many of its tests run on each database, and on none in particular."""
    lines = [f"{'':74} {' '.join(f'{one:>10}' for one in (*DATABASES, 'any'))}"]
    for name, tests in [*rows(PAGE.read_text(encoding="utf-8")), *faults()]:
        counts = [sum(one in collected.get(t, ()) for t in tests) for one in (*DATABASES, "any")]
        lines.append(f"{name[:74]:74} {' '.join(f'{n or chr(45):>10}' for n in counts)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    FILE.write_text(table(on(line for line in done.stdout.splitlines() if "::" in line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
