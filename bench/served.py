"""Start the servers that are missing, by running the bench again below `tests.servers`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence

from bench.databases import VARIABLES

MARK = "MSGWORKER_BENCH_SERVED"


def wanted(kinds: Sequence[str]) -> bool:
    """Whether a server is needed whose URL is not given, and was not started yet."""
    lacking = [kind for kind in kinds if kind in VARIABLES and not os.environ.get(VARIABLES[kind])]
    return bool(lacking) and MARK not in os.environ and _can_serve()


def _can_serve() -> bool:
    try:
        return importlib.util.find_spec("tests.servers") is not None
    except ModuleNotFoundError:
        return False


def again(arguments: Sequence[str], module: str = "bench") -> int:
    """Run the bench, or another module, with servers; return its exit code."""
    python = sys.executable
    command = [python, "-m", "tests.servers", "--", python, "-m", module, *arguments]
    return subprocess.run(command, env={**os.environ, MARK: "1"}).returncode
