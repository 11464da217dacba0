"""What those who ask for the same at the same time get together."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

R = TypeVar("R")
FAILED_SECONDS = 2.0
"""How long a failure is shared at most."""


class Sharing:
    """Values by key, each made once for all who ask for it within some seconds. Used on an event
    loop. most: how many are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: Hashable, seconds: float, make: Callable[[], Awaitable[R]]) -> R:
        """The value of this key, if it was begun to be made within these seconds, else a new one.

        A caller that goes away does not end the making. Raises what `make` raises.
        """
        now = time.monotonic()
        begun, found = self._made.get(key, (0.0, None))
        most = seconds if found is None or not _failed(found) else min(seconds, FAILED_SECONDS)
        loop = asyncio.get_running_loop()
        if found is None or now - begun > most or found.get_loop() is not loop:
            found = asyncio.ensure_future(make())
            found.add_done_callback(_seen)
            if len(self._made) >= self._most:
                self._made.clear()
            self._made[key] = (now, found)
        result: R = await asyncio.shield(found)
        return result

    def put(self, key: Hashable, value: Any) -> None:
        """A value that was made just now."""
        made = asyncio.get_running_loop().create_future()
        made.set_result(value)
        self._made[key] = (time.monotonic(), made)

    def forget(self) -> None:
        """All of it is out of date."""
        self._made.clear()


def key_of(call: functools.partial[Any]) -> Hashable:
    """Of equal calls; of a method, which is bound anew each time, by its name."""
    name = getattr(call.func, "__qualname__", call.func)
    return name, call.args, tuple(sorted(call.keywords.items()))


def _failed(future: asyncio.Future[Any]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def _seen(future: asyncio.Future[Any]) -> None:
    """An error for which no caller waits any more."""
    if not future.cancelled():
        future.exception()
