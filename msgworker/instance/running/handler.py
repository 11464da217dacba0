"""Handlers: their options and signatures, and the registry of an App."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NotRequired, Required

from typing_extensions import TypedDict

from msgworker.config import MAX_TRIES, number, whole
from msgworker.errors import (
    ConfigError,
    HandlerError,
)
from msgworker.instance.running.context import Context
from msgworker.message import Message

if TYPE_CHECKING:  # what only some handlers use is imported for them alone
    from pydantic import TypeAdapter
    from tenacity.wait import wait_base


TimeoutAction = typing.Literal["report", "restart"]


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler. wait: None = the App's back-off. max_tries: None = the table's rule."""

    topic: str | None
    fn: Callable[..., Any]
    transactional: bool = False
    timeout: float | None = None
    timeout_action: TimeoutAction = "report"
    wait: wait_base | None = None
    max_tries: int | None = None
    takes_context: bool = True
    is_async: bool = False
    payload_type: TypeAdapter[Any] | None = None
    warned: list[str] = field(default_factory=list)


def make_handler(
    topic: str | None,
    fn: Any,
    *,
    transactional: bool = False,
    timeout: float | None = None,
    timeout_action: TimeoutAction = "report",
    wait: wait_base | None = None,
    max_tries: int | None = None,
) -> Handler:
    """Check a function and its options; raises HandlerError before anything runs."""
    name = getattr(fn, "__qualname__", repr(fn))
    if topic is not None and (not isinstance(topic, str) or not 0 < len(topic) <= 100):
        raise HandlerError(f"a topic is a text of 1 to 100 characters, got {topic!r}")
    if not callable(fn):
        raise HandlerError(f"a handler must be callable, got {name}")
    if timeout is not None:
        number(f"timeout of handler {name}", timeout, 0.001, 86_400 * 30)
    if timeout_action not in typing.get_args(TimeoutAction):
        raise HandlerError(
            f'timeout_action of handler {name} must be "report" or "restart", '
            f"got {timeout_action!r}"
        )
    if timeout_action == "restart" and timeout is None:
        raise HandlerError(f'handler {name}: timeout_action="restart" needs a timeout')
    if wait is not None and not callable(wait):
        raise HandlerError(f"wait of handler {name} must be a tenacity wait strategy, got {wait!r}")
    if max_tries is not None:
        _check_max_tries(name, max_tries)
    if not isinstance(transactional, bool):
        raise HandlerError(
            f"transactional of handler {name} must be True or False, got {transactional!r:.80}"
        )
    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - an object with async __call__
    )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise HandlerError(f"handler {name} is a generator; its body would never run")
    if is_async and transactional:
        raise HandlerError(f"handler {name}: transactional handlers are plain functions, not async")
    return Handler(
        topic=topic,
        fn=fn,
        transactional=transactional,
        timeout=timeout,
        timeout_action=timeout_action,
        wait=wait,
        max_tries=max_tries,
        takes_context=_takes_context(fn, name),
        is_async=is_async,
        payload_type=_payload_type(fn),
    )


def _check_max_tries(name: str, max_tries: object) -> None:
    try:
        whole(f"max_tries of handler {name}", max_tries, 1, MAX_TRIES)
    except ConfigError as error:
        raise HandlerError(str(error)) from None


def _takes_context(fn: Callable[..., Any], name: str) -> bool:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return True
    for arguments in ((None, None), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise HandlerError(
        f"handler {name}{signature} cannot be called; it takes (msg) or (msg, ctx), "
        "other parameters need defaults"
    )


def _payload_type(fn: Callable[..., Any]) -> TypeAdapter[Any] | None:
    """The T of a first parameter annotated `Message[T]`, None if there is none.

    Raises HandlerError if the first one is annotated as the Context.
    """
    try:
        parameters = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return None
    try:
        hints = typing.get_type_hints(_called(fn))
    except Exception:  # perhaps of another parameter
        hints = _first_hint(fn)
    names = [n for n in parameters if n in hints]
    hint = hints[names[0]] if names else None
    if hint is Context and parameters[0] == names[0]:
        name = getattr(fn, "__qualname__", repr(fn))
        raise HandlerError(f"handler {name} takes the Context first; it takes (msg) or (msg, ctx)")
    args = typing.get_args(hint)
    if typing.get_origin(hint) is not Message or not args or args[0] is Any:
        return None
    if isinstance(args[0], typing.TypeVar):
        return None
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(_portable(args[0]))
    except Exception as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise HandlerError(
            f"handler {name}: cannot read payloads as {args[0]!r}: {error}"
        ) from error


def _first_hint(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotation of the first parameter; empty if it cannot be resolved (yet)."""
    target = inspect.unwrap(_called(fn))
    only = type("only", (), {"__annotations__": dict(_first_annotation(fn))})
    try:
        return typing.get_type_hints(only, globalns=getattr(target, "__globals__", {}))
    except Exception:
        return {}


def _called(fn: Any) -> Any:
    """The object with the annotations: a function, or the `__call__` of an object."""
    return fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004


def _first_annotation(fn: Callable[..., Any]) -> list[tuple[str, Any]]:
    first = list(inspect.signature(fn).parameters)[:1]
    given = getattr(inspect.unwrap(_called(fn)), "__annotations__", {})
    return [(name, given[name]) for name in first if name in given]


def _unread(fn: Callable[..., Any]) -> str:
    """The annotation `Message[T]` as text, if its T is unknown."""
    try:
        annotation = _first_annotation(fn)
    except (TypeError, ValueError):
        return ""
    text = "".join(a if isinstance(a, str) else repr(a) for _, a in annotation)
    return text if re.search(r"\bMessage\[", text) and not _first_hint(fn) else ""


def _portable(hint: Any) -> Any:
    """A type that pydantic accepts: before Python 3.12 only typing_extensions' TypedDict."""
    if sys.version_info >= (3, 12):
        return hint
    if typing.is_typeddict(hint):
        fields = {
            name: (Required if name in hint.__required_keys__ else NotRequired)[_portable(kind)]
            for name, kind in typing.get_type_hints(hint).items()
        }
        return TypedDict(hint.__name__, fields)  # type: ignore[operator]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (list, dict, set, tuple):
        return typing.get_origin(hint)[tuple(_portable(one) for one in arguments)]
    return hint


@dataclass(slots=True)
class Registry:
    """The handlers of an App by topic; `None` is the handler of every other topic."""

    handlers: dict[str | None, Handler] = field(default_factory=dict)

    def add(self, handler: Handler) -> None:
        if handler.topic in self.handlers:
            what = "every topic" if handler.topic is None else f"topic {handler.topic!r}"
            raise HandlerError(f"there is a handler for {what} already")
        self.handlers[handler.topic] = handler

    def get(self, topic: str | None) -> Handler | None:
        return self.handlers.get(topic) or self.handlers.get(None)

    def read_types(self) -> list[str]:
        """Resolve types of payloads that were unknown when their handler was registered; returns a
        warning for each that is still unknown."""
        told = []
        for topic, handler in list(self.handlers.items()):
            if handler.payload_type is None and "type" not in handler.warned:
                found = self.handlers[topic] = replace(
                    handler, payload_type=_payload_type(handler.fn)
                )
                unread = "" if found.payload_type is not None else _unread(handler.fn)
                if unread:
                    handler.warned.append("type")
                    name = getattr(handler.fn, "__qualname__", repr(handler.fn))
                    told.append(
                        f"handler {name}: the type in {unread} is not a name of its module, so "
                        "that payloads are not checked"
                    )
        return told

    def topics(self) -> frozenset[str] | None:
        """The topics that can be handled; None = all."""
        if None in self.handlers:
            return None
        return frozenset(topic for topic in self.handlers if topic is not None)
