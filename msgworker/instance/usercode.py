"""Calls user code, so that what it leaves behind does no harm.

Context variables that it sets end with the call, and its errors come out as they were raised. A
process that it forks is ended before it can act as the worker: the child of a bare `os.fork` has
copies of our connections, whose sockets it shares with the parent, and of a message that the parent
handles too. The child is ended when it returns from user code or requests a connection.

`os.register_at_fork` notes a fork, so that a message costs no system call (`getpid`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from traceback import clear_frames
from typing import Any, TypeVar

from msgworker.db import NO_MEMORY
from msgworker.errors import ExitCode

T = TypeVar("T")
MOST_CAUSES = 10

TEXT = (
    "msgworker: process {} was forked by a handler of process {} and came back from it; it ends "
    "here, process {} goes on. End such a child with os._exit(), or use subprocess or "
    "ProcessPoolExecutor.\n"
)


_here = os.getpid()


def _forked() -> None:
    global _here
    _here = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)


def end_if_forked(pid: int) -> None:
    """End this process unless it is `pid`, with exit code 1 and a line on stderr.

    At once, without cleanup: that could wait for a lock that a thread of the parent held at the
    fork.
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


def free_memory(error: BaseException | None) -> None:
    """Clear the frames of an out-of-memory error and of its causes: their variables hold the memory
    that is needed to write down the error."""
    for _ in range(MOST_CAUSES):
        if error is None:
            return
        if issubclass(type(error), NO_MEMORY):
            clear_frames(_its_own(error, "__traceback__"))
        error = _its_own(error, "__cause__") or _its_own(error, "__context__")


def _its_own(error: BaseException, name: str) -> Any:
    return BaseException.__getattribute__(error, name)  # that of its own class may raise


class Carried(Exception):
    """Carries an error that defines its own attribute access, such as a frozen dataclass, out of
    user code: `contextlib` sets attributes of errors that pass it, and if that raises, the new
    error would replace the user's."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def call_user(pid: int, fn: Callable[..., T], *arguments: Any) -> T:
    """Call user code in a copy of this thread's context, so that what it sets there ends with it.
    Raises its error, or Carried. pid: the worker's process; a forked child that returns is
    ended."""
    try:
        return copy_context().run(fn, *arguments)
    except BaseException as error:
        free_memory(error)
        kind = type(error)
        usual = kind.__setattr__ is BaseException.__setattr__
        if usual and kind.__getattribute__ is BaseException.__getattribute__:
            raise
        raise Carried(error) from None
    finally:
        if _here != pid:
            end_if_forked(pid)


def carried(error: BaseException) -> BaseException:
    """The error of user code, taken out of Carried if it is one."""
    return error.error if type(error) is Carried else error
