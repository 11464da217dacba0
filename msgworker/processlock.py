"""A lock that is free in a forked child, also if a thread of the parent held it.

A child of `os.fork` has copies of all locks but only the thread that forked: what another
thread held never ends in it. What our locks protect is whole at any moment, so the child
may begin with new ones.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet


class Renewed:
    """Renewed in each process: `renew` is called when it is made, and in a forked child."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        self.renew()
        _ALL.add(self)

    def renew(self) -> None:
        """Begin with the state of a new process."""
        raise NotImplementedError


class ProcessLock(Renewed):
    """A reentrant lock, new in each process. Used with `with`."""

    __slots__ = ("_lock",)

    def renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()


_ALL: WeakSet[Renewed] = WeakSet()


def _renew_all() -> None:
    for one in list(_ALL):
        one.renew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_all)
