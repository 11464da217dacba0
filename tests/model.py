"""Check the models in docs/model/ with Spin: `python -m tests.model [--quick] [NAME ...]`.

What is right must find no error; each broken variant must give a counterexample. One line each;
ends with 1 if any verdict is another than expected, with 2 if Spin cannot be had. Memory is capped
at MEMORY_KB per process.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.servers import CannotHave, install

FOLDER = Path(__file__).parent.parent / "docs" / "model"
MEMORY_KB = 4_000_000
STATES_MB = 3_000
SECONDS = 240
HOLDS, BROKEN = "holds", "counterexample"
COUNTED = re.compile(r"^ *([0-9.e+]+) states, stored", re.M)
UNFINISHED = re.compile(r"max search depth too small|out of memory|reached -DMEMLIM|not completed")


@dataclass(frozen=True, slots=True)
class Variant:
    """One question to a model. flags: what is defined; live: every message ends, weakly fair."""

    name: str
    expected: str
    flags: str
    model: str = "flag"
    live: bool = False
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out; `trace` is the shortest counterexample, in the model's own words."""

    result: str
    states: int
    seconds: float
    trace: tuple[str, ...] = ()


ALL = "C_ALONE C_ORDER C_FLAG C_FENCE"
HELD = "C_ALONE C_FLAG C_FENCE"  # of the model without owners
FREED = "RELEASES=1 EXPIRIES=3"
SEEN = "C_ALONE C_FLAG C_FENCE"  # with late commits and reruns the order is that of what was seen


def _right(name: str, flags: str, *, model: str = "flag", slow: bool = False) -> Variant:
    return Variant(name, HOLDS, flags, model, slow=slow)


def _live(name: str, flags: str, *, model: str = "flag") -> Variant:
    return Variant(name, HOLDS, flags, model, live=True)


def _broken(name: str, flags: str, *, model: str = "flag", live: bool = False) -> Variant:
    return Variant(name, BROKEN, flags, model, live)


VARIANTS = (
    _right("failures", f"{ALL} C_TRIES C_ONCE MAXT=3 REJECT"),
    _right("short runs", f"{ALL} SHORTRUNS KILLS=1"),
    _right("two kills", f"{ALL} C_TRIES KILLS=2", slow=True),
    _right("a kill and a zombie", f"{ALL} C_TRIES C_ONCE EXPIRIES=1 KILLS=1 N=2"),
    _right("a kill and a zombie, 3 messages", f"{ALL} C_TRIES EXPIRIES=1 KILLS=1", slow=True),
    _right("two zombies", f"{ALL} EXPIRIES=2 N=2", slow=True),
    _right("three instances", f"{ALL} KILLS=1 W=3 NOFAIL"),
    _right("two recover, one dies of it", f"{ALL} EXPIRIES=1 RKILLS=1 R=2 NOFAIL", slow=True),
    _right("answers lost", f"{ALL} C_ONCE UNKNOWN=2"),
    _right("answers lost and a kill", f"{ALL} C_ONCE UNKNOWN=2 KILLS=1", slow=True),
    _right("answer lost and a zombie", f"{ALL} UNKNOWN=1 EXPIRIES=1 NOFAIL"),
    _right("delayed settle", f"{ALL} DELAYED=1 LATERS=1"),
    _right("delayed settle and a kill", f"{ALL} DELAYED=1 KILLS=1", slow=True),
    _right("delayed settle, forced rerun", f"{SEEN} DELAYED=1 FORCED N=2"),
    _right("delayed failure, rerun", f"{SEEN} DELAYED=1 RERUN N=2 MAXT=1"),
    _right("delayed settle and a zombie", f"{ALL} DELAYED=1 EXPIRIES=1 NOFAIL"),
    _right("stop", f"{ALL} C_STOP STOPS=1 UNKNOWN=1"),
    _right("stop and a kill", f"{ALL} C_TRIES C_STOP STOPS=1 KILLS=1 NOFAIL"),
    _right("back-off", f"{ALL} BACKOFF LATERS=1 KILLS=1"),
    _right("on_dead=block", f"{ALL} BLOCK KILLS=1 REJECT"),
    _right("late, rerun, discard", f"{SEEN} LATE RERUN DISCARD REJECT"),
    _right("forced rerun, late, a kill", f"{SEEN} FORCED LATE KILLS=1 N=2"),
    _right("foreign consumer", f"{SEEN} FOREIGN RERUN LATE"),
    _right("foreign consumer and a kill", f"{SEEN} FOREIGN DISCARD KILLS=1 NOFAIL"),
    *(_right(f"poison M{m}", f"{ALL} C_BLAME C_TRIES NOFAIL POISON={m} MAXT=3") for m in (1, 2, 3)),
    _live("all end: failures", "REJECT LATERS=1"),
    _live("all end: two kills", "NOFAIL KILLS=2"),
    _live("all end: a zombie", "EXPIRIES=1 NOFAIL"),
    _live("all end: a kill and a zombie", "EXPIRIES=1 KILLS=1 NOFAIL N=2"),
    _live("all end: who recovers dies", "RKILLS=1 R=2 KILLS=1 NOFAIL N=2"),
    _live("all end: answers lost", "UNKNOWN=2"),
    _live("all end: delayed settle", "DELAYED=1 KILLS=1 NOFAIL"),
    _live("all end: stop and a kill", "STOPS=1 KILLS=1 NOFAIL"),
    _live("all end: late, rerun, discard", "LATE RERUN DISCARD NOFAIL"),
    _live("all end: back-off", "BACKOFF KILLS=1 NOFAIL"),
    _live("all end: foreign consumer", "FOREIGN NOFAIL KILLS=1"),
    _live("all end: poison", "POISON=2 NOFAIL"),
    # Second locks: one taken away is not missed while nothing else goes wrong.
    _right("no guard, nothing late", "B_GUARD C_ALONE KILLS=1"),
    _right("no take-over, renewal refused", "B_NOTAKEOVER C_ALONE EXPIRIES=1 NOFAIL"),
    _right("sent again without a look", "B_RESENDS C_ALONE C_FENCE C_ONCE UNKNOWN=2 NOFAIL"),
    # What the protocol does not stand: see README.md.
    _broken("known: strict order, late commit", "C_ORDER LATE"),
    # One condition each taken away.
    _broken("no guard, late commit", "B_GUARD C_ALONE LATE"),
    _broken("no guard, rerun", "B_GUARD C_ALONE RERUN"),
    _broken("id kept, a settle under way", f"{SEEN} DELAYED=1 FORCED N=2 NOFAIL B_SAMEID"),
    _broken("no fence", "B_FENCE C_FENCE EXPIRIES=1 NOFAIL"),
    _broken("earlier running, not unfinished", "B_RUNNING C_ORDER BACKOFF"),
    _broken("status and tries not as seen", "B_SEEN C_TRIES"),
    _broken("run read before the flag", "B_RUNEARLY C_ORDER LATE"),
    _broken("run passes over a waiting one", "B_SKIPS C_ORDER BACKOFF RERUN"),
    _broken("handler ahead of the flag", "B_AHEAD C_FLAG"),
    _broken("... alone no more", "B_AHEAD C_ALONE DISCARD"),
    _broken("... blames the wrong one", "B_AHEAD C_BLAME POISON=2 NOFAIL"),
    _broken(
        "recovery without take-over", "B_NOTAKEOVER B_RENEWS_EXPIRED C_ALONE EXPIRIES=1 NOFAIL"
    ),
    _broken("renewal after a take-over", "B_RENEWS_TAKEN C_ALONE EXPIRIES=1 NOFAIL"),
    _broken("recovery from whoever has it", "B_RECOVERS_ANY C_ALONE EXPIRIES=1 N=2"),
    _broken("a crash counts no try", "B_CRASHFREE C_TRIES KILLS=3 NOFAIL"),
    _broken("... so poison lives for ever", "B_CRASHFREE POISON=2 NOFAIL", live=True),
    _broken("claimed_by stays", "B_KEEPS C_ALONE FOREIGN RERUN"),
    _broken("old handler not waited for", "B_GHOST C_ALONE EXPIRIES=1 NOFAIL"),
    _broken("lease dropped without a look", "B_LEAVES C_STOP STOPS=1 UNKNOWN=1"),
    _broken("claims before the answer", "B_UNANSWERED C_ALONE DELAYED=1 N=2 B_SAMEID"),
    _broken("outcome of any claim", "B_ANYCLAIM C_FLAG DELAYED=1 LATERS=1 B_SAMEID"),
    _broken("unknown rows never swept", "B_NOSWEEP UNKNOWN=1 NOFAIL", live=True),
    _broken("orphans never swept", "B_NOORPHANS EXPIRIES=1 NOFAIL", live=True),
    _right("quarantine", "", model="quarantine"),
    _right("quarantine, 2 poisons", "POISONS=2 FAILS=1", model="quarantine"),
    _right("quarantine, 3 poisons", "POISONS=3 N=4", model="quarantine"),
    _live("all end: quarantine", "POISONS=2", model="quarantine"),
    _broken("no quarantine", "B_NOQUARANTINE", model="quarantine"),
    _broken("claims beside a quarantined one", "B_BESIDE POISONS=2", model="quarantine"),
    _broken("known: killed from outside too", "KILLS=1", model="quarantine"),
    _right("without owners", f"{HELD} EXPIRIES=3 FAILS=1", model="unowned"),
    _right("without owners, people release", f"{HELD} RELEASES=2 EXPIRIES=4", model="unowned"),
    _live("all end: without owners", "EXPIRIES=3 FAILS=1", model="unowned"),
    _live("all end: without owners, people release", "RELEASES=2 EXPIRIES=3", model="unowned"),
    _broken("what nobody can recover is forgotten", "B_FORGETS", model="unowned", live=True),
    _broken("an outcome asks for the status alone", f"{FREED} B_FENCE C_FENCE", model="unowned"),
    _broken("what is carried over starts unasked", f"{FREED} B_UNASKED C_FLAG", model="unowned"),
    _broken("... asked before the new lease", f"{FREED} B_ASKS_EARLY C_FLAG", model="unowned"),
    _broken("... asked without a lock", f"{FREED} B_UNLOCKED C_FLAG", model="unowned"),
    _broken(
        "people release beside the living", "RELEASES=1 B_RELEASES_LIVING C_FLAG", model="unowned"
    ),
    _broken(
        "known: rerun to the tries of an old claim",
        f"{FREED} RERUNS=1 MAXT=1 C_FENCE",
        model="unowned",
    ),
)


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
        defined += ["-DLIVENESS"] if variant.live else []
        _capped(folder, "spin", "-a", *defined, "m.pml")
        how = ["-DNFAIR=6"] if variant.live else ["-DSAFETY", "-DBFS"]
        limits = ["-DCOLLAPSE", f"-DMEMLIM={STATES_MB}"]
        _capped(
            folder,
            "gcc",
            "-O2" if variant.slow else "-O1",
            "-w",
            *how,
            *limits,
            "-o",
            "pan",
            "pan.c",
        )
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
                line for line in said if re.match(r"[IRFM]\d|[MF] |ops|a delayed|<<", line)
            )
    verdict = BROKEN if broken else HOLDS
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
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("names", nargs="*", help="of variants; all without")
    parser.add_argument("--quick", action="store_true", help="without the long searches")
    parser.add_argument("--traces", action="store_true", help="print the counterexamples")
    chosen = parser.parse_args(arguments)
    try:
        need_spin()
    except CannotHave as reason:
        print(f"the models cannot be checked: {reason}", file=sys.stderr)
        return 2
    surprises = 0
    for variant in VARIANTS:
        if (chosen.names and variant.name not in chosen.names) or (chosen.quick and variant.slow):
            continue
        verdict = check(variant)
        good = verdict.result == variant.expected
        surprises += not good
        mark = "ok  " if good else "SURPRISE"
        print(
            f"{mark} {variant.name:38} {verdict.result:15} {verdict.states:>9,} states "
            f"{verdict.seconds:5.1f} s  {variant.model}.pml {variant.flags}",
            flush=True,
        )
        if chosen.traces or not good:
            print("".join(f"         {line}\n" for line in verdict.trace), end="")
    print(f"{surprises} surprises" if surprises else "all as expected")
    return int(surprises > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
