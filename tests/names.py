"""Where each test stands. No two tests share a name, so tests are named without their files: in
tests/quick.py, tests/mutations.py and docs/project/promises.md."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


@cache
def homes() -> dict[str, tuple[str, ...]]:
    """Test -> the files that have one of that name, as "tests/..."; more than one is a fault."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.M):
            found[name].append(path.relative_to(TESTS.parent).as_posix())
    return {name: tuple(files) for name, files in found.items()}


def node_of(test: str) -> str:
    """A test with or without its parameters, as pytest takes it. Raises KeyError."""
    (file,) = homes()[test.partition("[")[0]]
    return f"{file}::{test}"
