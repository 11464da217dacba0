"""The load of a large fleet: `python -m bench.scale [--instances N] [--messages N]`.

Computes what each database would have to do, and simulates who gets in whose way: claims, shards
that move, recoveries when many die at once. What a statement costs is not assumed but measured, on
a small machine (scale_costs.py); `--measure` measures it anew. The figures are for orders of
magnitude: which part grows with the square of the fleet, and which layout ends that.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

from bench.scale_costs import LANES, MEASURED, Fleet, Measured, load
from bench.scale_sim import moves, segment_tries, storm, wasted_claims


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def loads(fleet: Fleet, m: Measured = MEASURED) -> str:
    """The load of one database, by how many there are and by the scope."""
    rows = []
    for databases in (1, 4, 10, 20):
        for scope in ("everywhere", "partitions"):
            one = load(fleet, databases, scope, m)
            n = fleet.instances / databases
            rows.append(
                [f"{databases} x {n:,.0f} instances, {scope}"]
                + [f"{one.statements[part]:,.0f}" for part in one.statements]
                + [f"{one.cores[part]:.1f}" for part in one.cores]
                + [f"**{sum(one.cores.values()):.1f}**", f"{one.connections:,}"]
            )
    parts = ("messages", "polls", "heartbeats", "locks")
    head = ["each database", *(f"{p} /s" for p in parts), *(f"{p}, cores" for p in parts)]
    return table([*head, "cores", "connections"], rows)


def report(fleet: Fleet, seed: int) -> str:
    """All tables. The same seed gives the same."""
    rng = random.Random(seed)
    n = fleet.instances
    sizes = sorted({max(2, n // 100), max(2, n // 10), n})
    wasted = [
        [f"{size:,}", *(f"{wasted_claims(size, k * size * LANES, 6, rng):.1%}" for k in (1, 10))]
        for size in sizes
    ]
    changes = {
        "one comes": (1, 0),
        "one goes": (0, 1),
        "a tenth comes": (n // 10, 0),
        "a tenth goes": (0, n // 10),
        "a deploy of a tenth": (n // 10, n // 10),
    }
    moved = []
    for what, (joined, left) in changes.items():
        shards, few, many = moves(n, joined, left, rng)
        moved.append([what, f"{shards:,}", f"{few:,}", f"{many:,}"])
    storms = []
    for size in sizes:
        for dead in sorted({1, size // 10, size // 2} - {0}):
            one = storm(size, dead, rng)
            cells = [f"{dead:,} of {size:,}", f"{one.seconds:.0f} s", f"{one.statements:,}"]
            cells += [f"{one.lost:,}", f"{one.peak:,}", f"{one.cpu_seconds:.1f} s"]
            storms.append(cells)
    walkers = [
        [f"{w:,} workers, {s:,} segments", f"{segment_tries(w, s, rng):.1f}"]
        for w, s in ((n, n), (n, n * 5 // 4), (n, 2 * n))
    ]
    gigabytes = load(fleet, 1, "everywhere").gigabytes
    return "\n\n".join(
        [
            f"{n:,} instances of {fleet.threads} threads, {fleet.messages:,.0f} messages in "
            f"{fleet.seconds / 3600:.0f} h = {fleet.rate:,.0f}/s, handlers of "
            f"{fleet.handler_seconds:g} s: {fleet.busy:.0%} of the threads are busy; "
            f"{gigabytes:,.0f} GB of messages and indexes; seed {seed}",
            loads(fleet),
            "Wasted claims, everywhere, by how many messages wait for each thread:",
            table(["instances of one database", "1", "10"], wasted),
            "Shards that change their owner:",
            table(["of all instances", "shards", "sticky", "round robin"], moved),
            "Locks that a worker asks for until it has a segment:",
            table(["", "tries"], walkers),
            "Recovery, where so many of a database's instances die at once:",
            table(
                ["dead", "all given back after", "statements", "lost take-overs", "peak /s", "CPU"],
                storms,
            ),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or what is measured; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--messages", type=float, default=1e9)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", action="store_true", help="on MSGWORKER_TEST_POSTGRESQL_URL")
    asked = parser.parse_args(arguments)
    if asked.instances < 2 or asked.messages <= 0 or asked.hours <= 0:
        parser.error("at least 2 instances, and messages and hours above 0")
    if asked.measure:
        return _measure(parser)
    fleet = Fleet(asked.instances, asked.messages, asked.hours * 3600)
    print(report(fleet, asked.seed))
    return 0


def _measure(parser: argparse.ArgumentParser) -> int:
    from bench.databases import NotAvailable
    from bench.scale_measure import measure

    try:
        for name, value in measure().items():
            print(f"    {name}={value:.4g},")
    except NotAvailable as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
