"""Where the tests keep what they throw away: in memory, where there is room.

Nothing of it must outlive the machine, and on a disk each commit to SQLite waits for it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 6 * 1024**3  # bytes: a whole run needs about a third of it


def keep_in_memory() -> None:
    """Temporary files of this process, and of those that it starts, are in memory from now on,
    unless TMPDIR is set or there is no room."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    available = int(found[1]) * 1024 if found else 0
    if min(available, shutil.disk_usage(MEMORY).free) >= ROOM:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # looked for anew
