"""`python -m bench.peers [--peer NAME] [--kind KIND] [--quick] [--backlog] [--json FILE]`.

msgworker and other queues do the same work on the same PostgreSQL, in turns; one table. Exit code 1
if msgworker handled a message out of order, beside another of its object, twice or never; what a
peer does wrong stands in its line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import databases, served
from bench.databases import NotAvailable
from bench.peers.peer import PEERS, PROMISES
from bench.peers.turns import FULL, KINDS, QUICK, Size, run, works
from bench.report import Line, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit code."""
    asked = _parser().parse_args(arguments)
    if served.wanted(("postgresql",)):
        given = sys.argv[1:] if arguments is None else list(arguments)
        return served.again(given, module="bench.peers")
    size = QUICK if asked.quick else FULL
    if asked.messages:
        size = Size(asked.messages, size.rounds, size.seconds, size.backlog)
    peers = [peer for peer in PEERS if not asked.peer or peer.name in asked.peer]
    every = works(size, backlog=asked.backlog)
    chosen = [work for work in every if not asked.kind or work.kind in asked.kind]
    facts = [databases.machine_line()]
    try:
        with databases.scratch("postgresql") as url:
            facts.append(f"postgresql: {databases.server_line(url, 'postgresql')}")
    except NotAvailable as error:
        print(f"PostgreSQL is needed: {error}", file=sys.stderr)
        return 3
    facts += [f"{peer.shown}: {peer.setup}" for peer in peers]
    lines = run(peers, chosen, size)
    how = f"{size.messages:,} messages or {size.seconds:.0f} s, {size.rounds} round(s) in turns"
    print("\n".join(["", *facts, how, ""]))
    print(table(lines))
    print("\n".join(["", *legend(lines)]))
    if asked.json:
        result = {"facts": facts, "lines": [asdict(line) for line in lines]}
        Path(asked.json).write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(line.faults for line in lines if line.is_ours) else 0


def legend(lines: Sequence[Line]) -> Iterator[str]:
    """What the words in the column "without" mean, of those that stand there."""
    said = {word for line in lines for word in line.without.split(", ") if word}
    if said:
        yield 'Under "without" stands what a queue does not do of what its row asks for:'
    yield from (f"  {word}: {text}" for word, text in PROMISES.items() if word in said)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--peer", action="append", choices=[peer.name for peer in PEERS])
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--messages", type=int, help="messages of a drain (100,000)")
    parser.add_argument("--quick", action="store_true", help="5,000 messages, one round")
    parser.add_argument(
        "--backlog", action="store_true", help="over 1,000,000 waiting and 1,000,000 finished too"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything measured as JSON too")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
