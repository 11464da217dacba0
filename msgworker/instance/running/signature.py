"""The signature of a handler: what it can be called with, and the type of its payloads."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NotRequired, Required

from typing_extensions import TypedDict

from msgworker.errors import HandlerError
from msgworker.instance.running.batchcontext import BatchContext
from msgworker.instance.running.context import Context
from msgworker.message import Message

if TYPE_CHECKING:  # what only some handlers use is imported for them alone
    from pydantic import TypeAdapter


def takes_context(fn: Callable[..., Any], name: str, *, batch: bool = False) -> bool:
    """Whether it takes a second argument. Raises HandlerError if it cannot be called."""
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
    first = "messages" if batch else "msg"
    raise HandlerError(
        f"handler {name}{signature} cannot be called; it takes ({first}) or ({first}, ctx), "
        "other parameters need defaults"
    )


def payload_type(
    fn: Callable[..., Any], *, batch: bool = False, group: bool = False
) -> TypeAdapter[Any] | None:
    """The T of a first parameter annotated `Message[T]`, in a batch `list[Message[T]]`; None if
    there is none.

    Raises HandlerError if the first one is annotated as the Context, as a list where it gets one
    message, or the reverse; or the second one as a Context that it does not get.
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
    name = getattr(fn, "__qualname__", repr(fn))
    first = "messages" if batch else "msg"
    if hint in (Context, BatchContext) and parameters[0] == names[0]:
        raise HandlerError(
            f"handler {name} takes the Context first; it takes ({first}) or ({first}, ctx)"
        )
    _check_context(hints.get(parameters[1]) if len(parameters) > 1 else None, name, batch)
    hint = _of_many(hints.get(parameters[0]), name) if batch else _of_one(hint, name, group)
    args = typing.get_args(hint)
    if typing.get_origin(hint) is not Message or not args or args[0] is Any:
        return None
    if isinstance(args[0], typing.TypeVar):
        return None
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(_portable(args[0]))
    except Exception as error:
        raise HandlerError(
            f"handler {name}: cannot read payloads as {args[0]!r}: {error}"
        ) from error


def _of_one(hint: Any, name: str, group: bool) -> Any:
    """The annotation of a handler of one message."""
    args = typing.get_args(hint)
    element = args[0] if args and _takes(hint, list) else None
    if element is Message or typing.get_origin(element) is Message:
        what = "give it batch=..., the most it may get, or take one: (msg: Message)"
        if group:
            what = "group=... calls it with one: (msg: Message); or use batch=... in its place"
        raise HandlerError(f"handler {name} takes a list of messages; {what}")
    return hint


def _of_many(hint: Any, name: str) -> Any:
    """The annotation of an element of the list that a handler with batch=... gets."""
    args = typing.get_args(hint)
    if hint is Message or typing.get_origin(hint) is Message:
        raise HandlerError(
            f"handler {name} has batch=... and takes one message; it gets a list: "
            f"(messages: list[{_text(hint)}]), or use group=..., which calls it for each"
        )
    element = args[0] if args else None
    if not _takes(hint, list) or (args and not _takes(element, Message)):
        if typing.get_origin(element) is Message:
            (element,) = typing.get_args(element)
        unknown = _is_any(element) or (len(args) > 1 and args[1] is not Ellipsis)
        raise HandlerError(
            f"handler {name} has batch=... and gets a list of messages, not {_text(hint)}: "
            f"annotate (messages: list[Message[{'T' if unknown else _text(element)}]])"
        )
    return element


def _check_context(hint: Any, name: str, batch: bool) -> None:
    """Raise if the second parameter is annotated as the other Context."""
    if batch and hint is Context:
        raise HandlerError(
            f"handler {name} has batch=... and gets a BatchContext: annotate (ctx: BatchContext)"
        )
    if not batch and hint is BatchContext:
        raise HandlerError(
            f"handler {name} gets a Context: annotate (ctx: Context); "
            "a BatchContext is for batch=..."
        )


def _takes(hint: Any, kind: type) -> bool:
    """Whether an annotation, apart from its arguments, is met by this type or narrows it."""
    origin = typing.get_origin(hint) or hint
    if origin is typing.Union:
        return False
    try:
        return _is_any(hint) or issubclass(kind, origin) or issubclass(origin, kind)
    except TypeError:  # no class, a protocol that cannot tell, or a TypedDict
        return not inspect.isclass(origin) or getattr(origin, "_is_protocol", False)


def _is_any(hint: Any) -> bool:
    return hint is None or hint is Any or hint is object or isinstance(hint, typing.TypeVar)


def _text(hint: Any) -> str:
    """An annotation as its author wrote it, without the names of modules."""
    args = typing.get_args(hint)
    name = getattr(hint, "__name__", None) or str(hint)
    if not args or not inspect.isclass(typing.get_origin(hint)):
        return name if not args else str(hint)
    inner = ", ".join("..." if one is Ellipsis else _text(one) for one in args)
    return f"{typing.get_origin(hint).__name__}[{inner}]"


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


def unread(fn: Callable[..., Any]) -> str:
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
