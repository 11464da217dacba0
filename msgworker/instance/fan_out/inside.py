"""Whether code runs inside an item of a fan-out, where nothing may be sent with the outcome.

An item that is done does not run again when its message is tried again, so that what it had sent
with the failed try would be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

ITEM_OF: ContextVar[object] = ContextVar("msgworker_item_of", default=None)
"""The running handler to which the item belongs that this thread or task runs."""


class AsItem:
    """The function of a fan-out, marked while an executor of the user runs it in this process.

    Pickled, it is the function alone: another process has no context to send with.
    """

    def __init__(self, fn: Callable[[Any], Any], running: object) -> None:
        self._fn = fn
        self._running = running

    def __call__(self, item: Any) -> Any:
        before = ITEM_OF.set(self._running)
        try:
            return self._fn(item)
        finally:
            ITEM_OF.reset(before)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (self._fn,)
