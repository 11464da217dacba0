"""Ends processes that a handler forks, before they can act as the worker.

The child of a bare `os.fork` has copies of everything: our connections, whose sockets it shares
with the parent, and a message that the parent handles too. It is ended when it returns from the
user's code, or when it requests a connection.

Python says when it has been forked, so that no call of the system is needed for each message.
"""

from __future__ import annotations

import os
from contextlib import suppress

from msgworker.errors import ExitCode

TEXT = (
    "msgworker: process {} was forked by a handler of process {} and came back from it; it ends "
    "here, process {} goes on. End such a child with os._exit(), or use subprocess or "
    "ProcessPoolExecutor.\n"
)


_here = os.getpid()


def _forked() -> None:
    global _here
    _here = os.getpid()


os.register_at_fork(after_in_child=_forked)


def end_if_forked(pid: int) -> None:
    """End this process unless it is `pid`, with exit code 1 and a line on stderr.

    At once, without cleanup and without waiting for a lock, which a thread of the parent may have
    held at the fork.
    """
    if _here == pid:
        return
    with suppress(OSError):
        os.write(2, TEXT.format(_here, pid, pid).encode())
    os._exit(ExitCode.REFUSED)


class no_child_returns:
    """The block runs user code in process `pid`; a child that leaves the block ends."""

    __slots__ = ("_pid",)

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        end_if_forked(self._pid)
