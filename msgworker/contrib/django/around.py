"""What is done around a handler in a Django project."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error, close_old_connections, connections

from msgworker.errors import HandlerMisuse

_WRITES = {"INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "CREATE", "ALTER", "DROP", "TRUNCATE"}


def around(fn: Callable[..., Any], *, transactional: bool) -> Callable[..., Any]:
    """The handler between two `close_old_connections`, so that Django's ORM meets no dead
    connection. transactional: writes through Django's connections are refused in it."""
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def handle_async(*args: Any) -> Any:
            close = sync_to_async(_close_old)
            await close()
            try:
                with _refused(transactional):
                    return await fn(*args)
            finally:
                await close()

        return handle_async

    @functools.wraps(fn)
    def handle(*args: Any) -> Any:
        _close_old()
        try:
            with _refused(transactional):
                return fn(*args)
        finally:
            _close_old()

    return handle


def _close_old() -> None:
    with suppress(Error):  # a connection that is dead already; Django forgets it all the same
        close_old_connections()


@contextmanager
def _refused(transactional: bool) -> Iterator[None]:
    with ExitStack() as stack:
        if transactional:
            for alias in connections:
                stack.enter_context(connections[alias].execute_wrapper(_refuse_writes))
        yield


def _refuse_writes(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
    word = str(sql).lstrip(" (\n\t").partition(" ")[0].upper()
    if word in _WRITES:
        raise HandlerMisuse(
            f"{word} through Django's connection in a transactional handler: it would be committed "
            "by itself, whatever becomes of the message. Write with ctx.connection, or make the "
            "handler plain and use transaction.atomic() with msg.idempotency_key as a unique value"
        )
    return execute(sql, params, many, context)
