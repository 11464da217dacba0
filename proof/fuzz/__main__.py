"""Write odd rows, or make odd tables, and say what became of them; the same seed does the same."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from proof.fuzz.hunt import hunt_rows, hunt_tables
from tests.plugin import NAMES, _fresh
from tests.servers import session


def main(arguments: list[str]) -> int:
    """0: nothing was found; 1: faults were printed."""
    parser = argparse.ArgumentParser(prog="python -m proof.fuzz", description=__doc__)
    parser.add_argument("--rows", type=int, default=0, help="so many odd rows")
    parser.add_argument("--at-once", type=int, default=200, help="so many among 300 good ones")
    parser.add_argument("--tables", type=int, default=0, help="so many tables to adopt")
    parser.add_argument("--database", choices=NAMES, action="append", help="default: each")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    logging.getLogger("msgworker").addHandler(logging.NullHandler())  # what is planned is no news
    hunts: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("rows", hunt_rows, {"at_once": chosen.at_once}),
        ("tables", hunt_tables, {}),
    )
    faults = 0
    with session(durable=False) as fleet, TemporaryDirectory() as folder:
        for name in chosen.database or NAMES:
            with contextmanager(_fresh)(name, fleet, Path(folder)) as database:
                for what, hunt, more in hunts:
                    if count := getattr(chosen, what):
                        more = {what: count, "start": chosen.seed, "tell": _tell} | more
                        found = hunt(database.url, name, **more)
                        print(f"{name}, seed {chosen.seed}, {what}:\n{found}", flush=True)
                        faults += len(found.faults)
    return int(faults > 0)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
