"""The standalone prototypes of the claim, run in the same run as a yardstick.

Each prints its own figure. They leave out a lot (leases, failures, types), so a ratio of 1.0 is not
the aim by itself: it shows what the statements alone can reach on this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import sqlalchemy as sa

from bench.databases import NotAvailable

TIMEOUT_SECONDS = 300
ORDERED = {"sqlite", "postgresql", "mariadb"}
LOOSE = {"postgresql"}
"""Those that can handle messages without an object."""


def rate(url: sa.URL, kind: str, *, messages: int, objects: int, processes: int) -> float:
    """Messages per second of the prototype; raises NotAvailable if it has no such scenario."""
    if kind not in (ORDERED if objects else LOOSE):
        raise NotAvailable(f"the {kind} prototype cannot do this")
    what = [str(messages), str(objects), str(processes)]
    if kind != "postgresql":
        what += ["4", "500", "20"]  # threads, objects per claim, run
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / f"{kind}.py"), *what],
        env={**os.environ, **_environment(url, kind)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    found = re.search(r"([\d.]+)/s ", done.stdout)
    if done.returncode or not found:
        raise NotAvailable(f"the prototype failed: {done.stderr.strip().splitlines()[-1:]}")
    return float(found[1])


def _environment(url: sa.URL, kind: str) -> dict[str, str]:
    if kind == "sqlite":
        return {"SQ": f"{url.database}.prototype"}
    if kind == "postgresql":
        return {"DSN": url.set(drivername="postgresql").render_as_string(hide_password=False)}
    return {
        "HOST": url.host or "127.0.0.1",
        "PORT": str(url.port or 3306),
        "DBUSER": url.username or "root",
        "PASSWORD": url.password or "",
        "DB": url.database or "",
        "ONE": "3",  # settles by two conditional updates, without locking first: its fastest form
    }
