"""What a process of a fleet hears from its parent, and tells it.

The parent's words are lines on the pipe that was our standard input (see processes.py); the end of
the pipe means that the parent is gone, and is a stop in order. Nobody else reads them: the standard
input of what handlers start is empty.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import suppress
from typing import Any

from msgworker.cli.processes import NOW
from msgworker.instance.stopping import NUMBERS, Asked


class Parent:
    """The parent of this process; made as early as possible, in the main thread.

    Until `begin`, there is nothing to stop: a word of the parent, or a signal, ends the process.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.asked = Asked()
        self._begun = False
        self._lock = threading.Lock()
        words, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        for number in NUMBERS:
            signal.signal(number, signal.SIG_DFL)
        threading.Thread(
            target=self._listen, args=(words,), name="msgworker-parent", daemon=True
        ).start()

    def begin(self) -> None:
        """From now on there may be something to stop."""
        with self._lock:
            self._begun = True

    def tell(self, **event: Any) -> None:
        """Tell the parent: `progress`, counts by word; `report`, that of a drain."""
        with suppress(OSError):  # it is gone; `_listen` sees to it
            os.write(self._fd, json.dumps(event).encode() + b"\n")

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
