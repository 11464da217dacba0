"""Check the models in docs/project/model/ with Spin: `python -m proof.model [--quick] [NAME ...]`.

The tables of its two pages are the questions: what is right must find no error; each broken variant
must give a counterexample. One line each; ends with 1 if any verdict is another than expected, with
2 if Spin cannot be had. Memory is capped at MEMORY_KB per process.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.servers import CannotHave, install

FOLDER = Path(__file__).parent.parent / "docs" / "project" / "model"
MEMORY_KB = 4_000_000
STATES_MB = 3_000
SECONDS = 240
PAGES = {"README.md": "flag", "batches.md": "batch"}
"""With the model of a row that names none, nor does the head of its table."""
CHECKS = "C_ALONE C_ORDER C_FLAG C_FENCE"
SHORT = {"ALL": CHECKS, "SEEN": CHECKS.replace("C_ORDER ", "")}
OF_BATCHES = " C_ONCE C_SAW C_GIVENUP"
LONG_STATES = 1_000_000
COUNTED = re.compile(r"^ *([0-9.e+]+) states, stored", re.M)
UNFINISHED = re.compile(r"max search depth too small|out of memory|reached -DMEMLIM|not completed")


@dataclass(frozen=True, slots=True)
class Variant:
    """One question to a model. flags: what is defined; live: every message ends, weakly fair."""

    name: str
    expected: str
    flags: str
    model: str
    live: bool
    slow: bool


def asked(page: str) -> Iterator[Variant]:
    """The rows of the tables of a page whose first column is `variant`."""
    head = None
    for line in (FOLDER / page).read_text().splitlines():
        if line.startswith("| variant |"):
            head = re.findall(r"(\w+)\.pml", line) or [PAGES[page]]
        elif not line.startswith("|"):
            head = None
        elif head and not line.startswith("|---"):
            name, how, expected, states, _ = (cell.strip() for cell in line.strip("|").split("|"))
            model = [*re.findall(r"(\w+)\.pml", how), *head][0]
            words = re.sub(r"`|\w+\.pml", "", how).split()
            more = OF_BATCHES * (page == "batches.md")
            flags = [SHORT[one] + more if one in SHORT else one for one in words]
            live = "LIVENESS" in words
            slow = int(states.replace(",", "")) > LONG_STATES
            yield Variant(name, expected, " ".join(flags), model, live, slow)


VARIANTS = [variant for page in PAGES for variant in asked(page)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out; `trace` is the shortest counterexample, in the model's own words."""

    result: str
    states: int
    seconds: float
    trace: tuple[str, ...] = ()


def need_spin() -> None:
    """Have spin and a C compiler; as root they are installed. Raises CannotHave."""
    missing = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    if missing:
        install(*missing, *(["libc6-dev"] if "gcc" in missing else []))
    if still := [name for name in missing if shutil.which(name) is None]:
        raise CannotHave(f"{' and '.join(still)} not found: apt-get install spin gcc")


def check(variant: Variant) -> Verdict:
    """Ask one question; raises RuntimeError if the search does not come to its end."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="msgworker-model-") as name:
        folder = Path(name)
        (folder / "m.pml").write_bytes((FOLDER / f"{variant.model}.pml").read_bytes())
        defined = [f"-D{flag}" for flag in variant.flags.split()]
        _capped(folder, "spin", "-a", *defined, "m.pml")
        how = ["-DNFAIR=6"] if variant.live else ["-DSAFETY", "-DBFS"]
        limits = ["-DCOLLAPSE", f"-DMEMLIM={STATES_MB}"]
        level = "-O2" if variant.slow else "-O0"
        _capped(folder, "gcc", level, "-w", *how, *limits, "-o", "pan", "pan.c")
        search = ["-a", "-f", "-m300000"] if variant.live else []
        told = _capped(folder, "./pan", *search)
        states = COUNTED.search(told)
        broken = re.search(r"errors: [1-9]", told)
        if states is None or (not broken and UNFINISHED.search(told)):
            raise RuntimeError(f"{variant.name}: no verdict: {told.strip()[-300:]}")
        trace: tuple[str, ...] = ()
        if broken:
            steps = _capped(folder, "spin", "-t", *defined, "m.pml")
            said = (line.strip() for line in steps.splitlines())
            trace = tuple(
                line
                for line in said
                if re.match(
                    r"[IRFM]\d|[MF] |ops|a delayed|a pending|joint|a mate|the |\.\.\.|<<", line
                )
            )
    verdict = "counterexample" if broken else "holds"
    return Verdict(verdict, int(float(states[1])), time.monotonic() - begun, trace)


def _capped(folder: Path, *command: str) -> str:
    """The output of a command that may use MEMORY_KB of memory and SECONDS of time."""
    capped = ["sh", "-c", f'ulimit -v {MEMORY_KB}; exec "$@"', "sh", *command]
    done = subprocess.run(
        capped, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    if done.returncode and command[0] == "gcc":
        raise RuntimeError(f"gcc failed: {done.stderr.strip()[-300:]}")
    if "syntax error" in done.stdout + done.stderr or (command[1:2] == ("-a",) and done.returncode):
        raise RuntimeError(f"{command[0]} failed: {(done.stdout + done.stderr).strip()[-300:]}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """0: all verdicts are as expected; 1: some are not; 2: Spin cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m proof.model", description=__doc__)
    parser.add_argument("names", nargs="*", help="of variants; all without")
    parser.add_argument("--quick", action="store_true", help="without the long searches")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="at once")
    parser.add_argument("--traces", action="store_true", help="print the counterexamples")
    chosen = parser.parse_args(arguments)
    try:
        need_spin()
    except CannotHave as reason:
        print(f"the models cannot be checked: {reason}", file=sys.stderr)
        return 2
    wanted = [
        one
        for one in VARIANTS
        if (not chosen.names or one.name in chosen.names) and not (chosen.quick and one.slow)
    ]
    surprises = 0
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for variant, verdict in zip(wanted, pool.map(check, wanted), strict=True):
            good = verdict.result == variant.expected
            surprises += not good
            mark = "ok  " if good else "SURPRISE"
            print(
                f"{mark} {variant.name:46} {verdict.result:15} {verdict.states:>9,} states "
                f"{verdict.seconds:5.1f} s  {variant.model}.pml {variant.flags}",
                flush=True,
            )
            if chosen.traces or not good:
                print("".join(f"         {line}\n" for line in verdict.trace), end="")
    print(f"{surprises} surprises" if surprises else "all as expected")
    return int(surprises > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
