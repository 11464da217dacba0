"""Consumer processes forked from one that has imported everything: a start costs milliseconds.

The parent of them all has one thread, no engine and no connection, so nothing is shared that must
not be. `hatch` gives what subprocess.Popen would: pid, poll, wait, returncode, send_signal.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0


class Child:
    """One process."""

    def __init__(self) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self.born = threading.Event()
        self.died = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal; raises subprocess.TimeoutExpired."""
        if not self.died.wait(timeout):
            raise subprocess.TimeoutExpired("consumer", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:  # its end is on the way to us
                self.died.wait(START_SECONDS)


class Nursery:
    """The process that forks, and who listens to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "proof.crash.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._unborn: dict[int, Child] = {}
        self._alive: dict[int, Child] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def hatch(self, arguments: Sequence[str], out: Path, err: Path) -> Child:
        """A new consumer process; its output goes into these files."""
        child = Child()
        with self._lock:
            number = next(self._numbers)
            self._unborn[number] = child
            order = {"number": number, "arguments": list(arguments)}
            assert self._process.stdin is not None
            print(
                json.dumps(order | {"out": str(out), "err": str(err)}),
                file=self._process.stdin,
                flush=True,
            )
        assert child.born.wait(START_SECONDS), "the nursery does not answer"
        return child

    def close(self) -> None:
        """End it, and whoever still lives."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(START_SECONDS)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "number" in told:
                child = self._unborn.pop(told["number"])
                child.pid = told["pid"]
                self._alive[child.pid] = child
                child.born.set()
            else:
                child = self._alive.pop(told["pid"])
                child.returncode = told["code"]
                child.died.set()


_shared: list[Nursery] = []
_lock = threading.Lock()


def hatch(arguments: Sequence[str], out: Path, err: Path) -> Child:
    """A consumer process from the nursery of this process."""
    with _lock:
        if not _shared:
            _shared.append(Nursery())
            atexit.register(_shared[0].close)
    return _shared[0].hatch(arguments, out, err)


# ---------------------------------------------------------------- the process itself


def serve(orders: IO[bytes]) -> list[str]:
    """Fork as ordered; returns in each child, with its arguments. Ends the process at the end of
    the orders."""
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    alive: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([orders, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(alive)
        if orders in ready:
            got = os.read(orders.fileno(), 65536)
            if not got:
                break
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _redirect(order["out"], order["err"])
                    return [str(word) for word in order["arguments"]]
                alive.add(pid)
                print(json.dumps({"number": order["number"], "pid": pid}), flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    sys.exit(0)


def _reap(alive: set[int]) -> None:
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        alive.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"pid": pid, "code": code}), flush=True)


def _redirect(out: str, err: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for path, mode, number in ((os.devnull, os.O_RDONLY, 0), (out, flags, 1), (err, flags, 2)):
        fd = os.open(path, mode, 0o600)
        os.dup2(fd, number)
        os.close(fd)


def main() -> int:
    import psycopg  # noqa: F401 - imported once, for all
    import pymysql

    from msgworker.db.mysql import _preferred_tls
    from proof.crash import consumer
    from proof.oracle import standins

    _preferred_tls(pymysql)
    standins.install()

    return consumer.main(serve(sys.stdin.buffer))


if __name__ == "__main__":
    sys.exit(main())
