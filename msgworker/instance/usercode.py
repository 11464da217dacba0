"""Calls the user's code, so that what it leaves behind harms nobody.

Its context variables end with the call, and an error comes out as it was raised. A process that it
forks is ended before it can act as the worker: the child of a bare `os.fork` has copies of
everything, of our connections, whose sockets it shares with the parent, and of a message that the
parent handles too. It is ended when it returns from the user's code, or requests a connection.

Python says when it has been forked, so that no call of the system is needed for each message.
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


def free_memory(error: BaseException | None) -> None:
    """Where memory has run out, the frames of the error hold what has taken it: they give it back,
    or what is to be written of the error would find none."""
    for _ in range(MOST_CAUSES):
        if error is None:
            return
        if issubclass(type(error), NO_MEMORY):
            clear_frames(_its_own(error, "__traceback__"))
        error = _its_own(error, "__cause__") or _its_own(error, "__context__")


def _its_own(error: BaseException, name: str) -> Any:
    return BaseException.__getattribute__(error, name)  # that of its class may refuse


class Carried(Exception):
    """Carries an error with attributes of its own making, such as a frozen dataclass, out of the
    user's code: `contextlib` assigns to what passes it, and a refusal would take its place."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def call_user(pid: int, fn: Callable[..., T], *arguments: Any) -> T:
    """Call the user's code in a copy of this thread's context, so that what it sets there ends with
    it. Raises what that raises, or Carried. pid: a child that comes back from it ends."""
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
    """The error of the user's code that has arrived."""
    return error.error if type(error) is Carried else error
