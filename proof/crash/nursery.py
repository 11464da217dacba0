"""Consumer processes forked from one that has imported everything: a start costs milliseconds.

`Child` is what subprocess.Popen would be: pid, poll, wait, returncode, send_signal.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["proof.crash.consumer", "proof.oracle.standins", "psycopg", "pymysql"]
)
PR_SET_PDEATHSIG = 1
_lock = threading.Lock()
"""Only one thread at a time may ask the standard library who has ended; a start asks, too."""


class Child:
    """A consumer process; its output goes into these files."""

    def __init__(self, arguments: Sequence[str], out: Path, err: Path) -> None:
        given = list(arguments), str(out), str(err)
        self._process = SERVER.Process(target=live, args=given, daemon=True)
        with _lock:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        with _lock:
            return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal; raises subprocess.TimeoutExpired."""
        wait([self._process.sentinel], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("consumer", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its end is on the way to us
                os.kill(self.pid, number)


def live(arguments: list[str], out: str, err: str) -> None:
    """All that the process does; it does not outlive the one that forked it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for path, number in ((out, 1), (err, 2)):
        fd = os.open(path, flags, 0o600)
        os.dup2(fd, number)
        os.close(fd)

    from proof.crash import consumer
    from proof.oracle import standins

    standins.install()
    sys.exit(consumer.main(arguments))
