"""Count the lines of both trees of tests: `python -m proof.lines [--files]`.

Of each folder: lines of Python, and the share of them that stands in test functions with their
decorators. A file beside the folders counts as "tests" or "proof" itself.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from pathlib import Path

from tests.names import ROOT, TREES


def lines_of(path: Path) -> tuple[int, int]:
    """Of one file: its lines, and those in test functions."""
    text = path.read_text(encoding="utf-8")
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            first = min(one.lineno for one in (node, *node.decorator_list))
            inside.update(range(first, (node.end_lineno or first) + 1))
    return len(text.splitlines()), len(inside)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.lines", description=__doc__)
    parser.add_argument("--files", action="store_true", help="each file")
    asked = parser.parse_args(arguments)
    lines: Counter[str] = Counter()
    tested: Counter[str] = Counter()
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*.py")):
            place = path.relative_to(ROOT)
            row = place.as_posix() if asked.files else "/".join(place.parts[:-1][:2])
            for name in {row, f"{tree} in all", "together"}:
                total, inside = lines_of(path)
                lines[name] += total
                tested[name] += inside
    sums = [*(f"{tree} in all" for tree in TREES), "together"]
    for name in [*(one for one in lines if one not in sums), *sums]:
        print(f"{name:44} {lines[name]:7,} lines {tested[name] / max(lines[name], 1):5.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
