"""The connection of a child process to its parent (`--processes`).

The parent sends lines on the pipe that is our standard input (see processes.py). The end of
the pipe means that the parent has died, and starts an orderly stop. No other process reads the
pipe: the standard input of processes that handlers start is empty.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import suppress
from typing import Any

from msgworker.cli.processes import NOW
from msgworker.instance.stopping import Asked, asking


class Parent:
    """The parent of this process; created as early as possible, in the main thread.

    Until `begin`, there is nothing to stop: a line of the parent, or a signal, ends the process.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.asked = Asked()
        self._begun = False
        self._lock = threading.Lock()
        self._telling = threading.RLock()
        words, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        for number in asking():
            signal.signal(number, signal.SIG_DFL)
        threading.Thread(
            target=self._listen, args=(words,), name="msgworker-parent", daemon=True
        ).start()

    def begin(self) -> None:
        """From now on a worker may run, which has to be stopped in order."""
        with self._lock:
            self._begun = True

    def tell(self, **event: Any) -> None:
        """Send to the parent: `progress`, counts by word; `metrics`, a snapshot of them; `report`,
        that of a drain."""
        line = json.dumps(event).encode() + b"\n"
        with suppress(OSError), self._telling:  # the parent has died; `_listen` handles that
            os.write(self._fd, line)  # a long line is written in parts

    def _listen(self, words: int) -> None:
        heard = b""
        while data := _read(words):
            *lines, heard = (heard + data).split(b"\n")
            for line in lines:
                self._hear(line.decode())
        self._hear("")

    def _hear(self, line: str) -> None:
        with self._lock:
            if not self._begun:
                os._exit(0)
        word, _, number = line.partition(" ")
        if word == NOW:
            self.asked.insist(int(number))
        else:
            self.asked.stop()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
