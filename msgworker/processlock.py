"""A lock that a forked child finds free, whoever held it in the parent.

A child of `os.fork` has copies of all locks but only the thread that forked: what another
thread held never ends in it. What our locks protect is whole at any moment, so the child
may begin with new ones.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet


class ProcessLock:
    """A reentrant lock, new in each process. Used with `with`."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self.renew()
        _ALL.add(self)

    def renew(self) -> None:
        """Begin with a lock that is free."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()


_ALL: WeakSet[ProcessLock] = WeakSet()


def _renew_all() -> None:
    for lock in list(_ALL):
        lock.renew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_all)
