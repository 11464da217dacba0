"""Handlers: their options and signatures, the registry of an App, and how large batches are."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NotRequired, Required

from typing_extensions import TypedDict

from msgworker.config import MAX_TRIES, number, whole
from msgworker.errors import ConfigError, HandlerError
from msgworker.instance.running.context import BatchContext, Context
from msgworker.limit import Limit, limit_of
from msgworker.message import Message, topic_of
from msgworker.table.columns import MAX_TOPIC
from msgworker.table.spec import MessageTable

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from tenacity.wait import wait_base

    from msgworker.store.rows import Row

# --- The signature of a handler: what it can be called with, and the type of its payloads.


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
    """The T of a first parameter annotated `Message[T]`, in a batch `list[Message[T]]`, or None.
    Raises HandlerError if the first parameter is annotated as the Context, as a list where it gets
    one message, or the reverse; or the second one as the wrong Context."""
    try:
        parameters = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return None
    try:
        hints = typing.get_type_hints(_called(fn))
    except Exception:  # perhaps because of another parameter
        hints = _first_hint(fn)
    names = [n for n in parameters if n in hints]
    hint = hints[names[0]] if names else None
    name = getattr(fn, "__qualname__", repr(fn))
    first = "messages" if batch else "msg"
    if hint in (Context, BatchContext) and parameters[0] == names[0]:
        raise HandlerError(
            f"handler {name} takes the Context first; it takes ({first}) or ({first}, ctx)"
        )
    second = hints.get(parameters[1]) if len(parameters) > 1 else None
    if batch and second is Context:
        raise HandlerError(
            f"handler {name} has batch=... and gets a BatchContext: annotate (ctx: BatchContext)"
        )
    if not batch and second is BatchContext:
        raise HandlerError(
            f"handler {name} gets a Context: annotate (ctx: Context); "
            "a BatchContext is for batch=..."
        )
    hint = _of_many(hints.get(parameters[0]), name) if batch else _of_one(hint, name, group)
    args = typing.get_args(hint)
    if typing.get_origin(hint) is not Message or not args:
        return None
    if args[0] is Any or isinstance(args[0], typing.TypeVar):
        return None
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(_portable(args[0]))
    except Exception as error:
        text = f"handler {name}: cannot read payloads as {args[0]!r}: {error}"
        raise HandlerError(text) from error


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


def _takes(hint: Any, kind: type) -> bool:
    """Whether an annotation, apart from its arguments, is this type, a base or a subclass of it."""
    origin = typing.get_origin(hint) or hint
    if origin is typing.Union:
        return False
    try:
        return _is_any(hint) or issubclass(kind, origin) or issubclass(origin, kind)
    except TypeError:  # no class, a protocol that cannot be checked, or a TypedDict
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


# --- Handlers: their options and signatures, and the registry of an App.

MOST_IN_A_BATCH = 10_000
DEFAULT_BATCH_SECONDS = 1.0
TimeoutAction = typing.Literal["report", "restart"]
WhenDone = typing.Literal["keep", "delete"]


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler. wait: None = the App's back-off. max_tries: None = the table's rule.
    batch: it takes lists of at most so many messages. group: so many of its calls, one message
    each, may share a transaction. batch_seconds: the aimed time of either. limit: of its topic,
    over all instances. on_done, on_dead: the topic of what is sent when one is done or dead.
    when_done: whether the row of one that is done stays."""

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
    batch: int | None = None
    group: int | None = None
    batch_seconds: float = DEFAULT_BATCH_SECONDS
    limit: Limit | None = None
    on_done: str | None = None
    on_dead: str | None = None
    when_done: WhenDone = "keep"
    warned: list[str] = field(default_factory=list)

    @property
    def batch_most(self) -> int:
        """How many messages may share a call or a transaction; 1 without batch and group."""
        return self.batch or self.group or 1

    def follow_ups(self, topic: str | None) -> tuple[str | None, str | None]:
        """The topics of what is sent about a message of this topic when it is done, and when it is
        dead; None = nothing. Nothing is sent about the messages that `on_done` and `on_dead` send.
        """
        own = (self.on_done, self.on_dead)
        return (None, None) if topic is not None and topic in own else own

    @property
    def suits_loop(self) -> bool:
        """Whether all of a call can be done in the event loop."""
        return self.is_async and not self.transactional and self.batch is None


@contextmanager
def _of_a_handler() -> Iterator[None]:
    """A bad option is a HandlerError."""
    try:
        yield
    except HandlerError:
        raise
    except ConfigError as error:
        raise HandlerError(str(error)) from None


@_of_a_handler()
def make_handler(
    topic: str | None,
    fn: Any,
    *,
    max_running: int | None = None,
    rate: str | None = None,
    burst: int | None = None,
    **options: Any,
) -> Handler:
    """Check a function and its options: those of a limit, and of a Handler. Raises HandlerError."""
    name = getattr(fn, "__qualname__", repr(fn))
    new = Handler(topic, fn, **options)
    batch, group, max_tries = new.batch, new.group, new.max_tries
    if topic is not None and (not isinstance(topic, str) or not 0 < len(topic) <= MAX_TOPIC):
        raise HandlerError(f"a topic is a text of 1 to {MAX_TOPIC} characters, got {topic!r}")
    if not callable(fn):
        raise HandlerError(f"a handler must be callable, got {name}")
    if new.timeout is not None:
        number(f"timeout of handler {name}", new.timeout, 0.001, 86_400 * 30)
    if new.timeout_action not in typing.get_args(TimeoutAction):
        raise HandlerError(
            f'timeout_action of handler {name} must be "report" or "restart", '
            f"got {new.timeout_action!r}"
        )
    if new.when_done not in typing.get_args(WhenDone):
        raise HandlerError(
            f'when_done of handler {name} must be "keep" or "delete", got {new.when_done!r:.80}'
        )
    if new.timeout_action == "restart" and new.timeout is None:
        raise HandlerError(f'handler {name}: timeout_action="restart" needs a timeout')
    if new.wait is not None and not callable(new.wait):
        raise HandlerError(
            f"wait of handler {name} must be a tenacity wait strategy, got {new.wait!r}"
        )
    if max_tries is not None:
        whole(f"max_tries of handler {name}", max_tries, 1, MAX_TRIES)
    if not isinstance(new.transactional, bool):
        raise HandlerError(
            f"transactional of handler {name} must be True or False, got {new.transactional!r:.80}"
        )
    _check_batch(name, new)
    for option in ("on_done", "on_dead"):
        _check_follow_up(name, option, getattr(new, option), topic)
    if max_tries == 1 and (batch or group):
        raise HandlerError(
            f"handler {name}: {'batch' if batch else 'group'}=... has no effect with max_tries=1, "
            "since only messages that can be tried again share one; leave one of them out"
        )
    limit = limit_of(f"handler {name}", max_running, rate, burst)
    if limit is not None and topic is None:
        raise HandlerError(
            f"handler {name}: max_running=... and rate=... are limits of a topic; name it: "
            "@app.handler(topic, ...)"
        )
    if limit is not None and (batch or group):
        raise HandlerError(
            f"handler {name}: {'batch' if batch else 'group'}=... makes messages share a call or a "
            "transaction, which max_running=... and rate=... count one by one; use one of them"
        )
    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - an object with async __call__
    )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise HandlerError(f"handler {name} is a generator; its body would never run")
    return replace(
        new,
        takes_context=takes_context(fn, name, batch=batch is not None),
        is_async=is_async,
        payload_type=payload_type(fn, batch=batch is not None, group=group is not None),
        batch_seconds=float(new.batch_seconds),
        limit=limit,
    )


def check_tries(made: Handler, table: MessageTable) -> None:
    """Raise HandlerError if a handler would have more tries than its table gives."""
    if made.max_tries is not None and made.max_tries > table.max_tries:
        raise HandlerError(
            f"max_tries={made.max_tries} of a handler is more than the {table.max_tries} tries of "
            f"the table {table.name}, which go for all who look at it; raise those: "
            "MessageTable(max_tries=...)"
        )


def _check_follow_up(name: str, option: str, value: object, topic: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TOPIC or "\x00" in value:
        raise HandlerError(
            f"{option} of handler {name} must be a topic, a text of 1 to {MAX_TOPIC} characters, "
            f"got {value!r:.80}"
        )
    if option == "on_dead" and value in ("block", "continue"):
        raise HandlerError(
            f"on_dead of handler {name} is the topic of a message about each that is dead; whether "
            f"a dead message blocks its object is a rule of the table: "
            f"MessageTable(on_dead={value!r})"
        )
    if value == topic:
        raise HandlerError(
            f"{option} of handler {name} is its own topic {topic!r}: each message would send "
            "another one, without end; give it a topic of its own"
        )


def _check_batch(name: str, new: Handler) -> None:
    for option, value in (("batch", new.batch), ("group", new.group)):
        if value is not None:
            whole(f"{option} of handler {name}", value, 2, MOST_IN_A_BATCH)
    number(f"batch_seconds of handler {name}", new.batch_seconds, 0.001, 3600)
    if new.batch_most == 1 and new.batch_seconds != DEFAULT_BATCH_SECONDS:
        raise HandlerError(
            f"handler {name}: batch_seconds=... is for batch=... and group=...; leave it out, or "
            "add one of them"
        )
    if new.batch is not None and new.group is not None:
        raise HandlerError(
            f"handler {name} has batch and group: batch=... calls it with a list of messages, "
            "group=... with one message each; use one of them"
        )
    if new.group is not None and not new.transactional:
        raise HandlerError(
            f"handler {name}: group=... makes calls share a transaction, so it needs "
            "transactional=True"
        )


@dataclass(slots=True)
class Registry:
    """The handlers of an App by topic; `None` is the handler of every other topic. batch_most: the
    most messages that share a call or a transaction of one. has_follow_ups: whether one has on_done
    or on_dead. deletes: whether one deletes what is done. has_timeouts, has_async: whether one has
    a timeout, or suits the event loop."""

    handlers: dict[str | None, Handler] = field(default_factory=dict)
    batch_most: int = 1
    has_follow_ups: bool = False
    deletes: bool = False
    has_timeouts: bool = False
    has_async: bool = False

    def __post_init__(self) -> None:
        for handler in self.handlers.values():
            self._note(handler)

    def _note(self, handler: Handler) -> None:
        self.batch_most = max(self.batch_most, handler.batch_most)
        self.has_timeouts = self.has_timeouts or handler.timeout is not None
        self.has_async = self.has_async or handler.suits_loop
        self.has_follow_ups = self.has_follow_ups or bool(handler.on_done or handler.on_dead)
        self.deletes = self.deletes or handler.when_done == "delete"

    def add(self, handler: Handler) -> None:
        if handler.topic in self.handlers:
            what = "every topic" if handler.topic is None else f"topic {handler.topic!r}"
            raise HandlerError(f"there is a handler for {what} already")
        self._refuse_circle(self.handlers | {handler.topic: handler}, handler.topic, whole=False)
        self.handlers[handler.topic] = handler
        self._note(handler)

    def refuse_circles(self) -> None:
        """Raise HandlerError if what handlers send about their messages leads in a circle, also by
        that of every topic: all are known now."""
        for topic in list(self.handlers):
            self._refuse_circle(self.handlers, topic, whole=True)

    def _refuse_circle(
        self, known: Mapping[str | None, Handler], first: str | None, *, whole: bool
    ) -> None:
        """Raise if what this handler sends about its messages would lead to one about the same.
        whole: no handler of a topic that has none comes later."""
        ended = set[str | None]()  # those that lead to no circle

        def follow(way: tuple[str | None, ...]) -> None:
            handler = known.get(way[-1]) or (known.get(None) if whole else None)
            for topic in () if handler is None else handler.follow_ups(way[-1]):
                if topic is None or topic in ended:
                    continue
                if topic in way:
                    circle = " -> ".join(str(one) for one in (*way[way.index(topic) :], topic))
                    raise HandlerError(
                        f"what on_done and on_dead send goes in a circle: {circle}; such messages "
                        "might never end"
                    )
                follow((*way, topic))
            ended.add(way[-1])

        follow((first,))

    def get(self, topic: str | None) -> Handler | None:
        return self.handlers.get(topic) or self.handlers.get(None)

    def deletes_done(self, row: Row) -> bool:
        """Whether the row of this message is deleted once it is done: not if it has failed before,
        which people may ask about."""
        if not self.deletes or row.tries or row.crash_times or row.later_times:
            return False
        handler = self.get(topic_of(row.topic))
        return handler is not None and handler.when_done == "delete"

    def read_types(self) -> list[str]:
        """Resolve types of payloads that were unknown when their handler was registered; returns a
        warning for each that is still unknown."""
        warnings = []
        for topic, handler in list(self.handlers.items()):
            if handler.payload_type is not None or "type" in handler.warned:
                continue
            fn, batch, group = handler.fn, handler.batch is not None, handler.group is not None
            found = payload_type(fn, batch=batch, group=group)
            self.handlers[topic] = replace(handler, payload_type=found)
            if found is None and (hint := unread(fn)):
                handler.warned.append("type")
                warnings.append(
                    f"handler {getattr(fn, '__qualname__', repr(fn))}: the type in {hint} is not a "
                    "name of its module, so that payloads are not checked"
                )
        return warnings

    def topics(self) -> frozenset[str] | None:
        """The topics that can be handled; None = all."""
        if None in self.handlers:
            return None
        return frozenset(topic for topic in self.handlers if topic is not None)


# --- How many messages a batch takes, by how long the last ones took.

FIRST = 16
"""Messages of the first batch."""
LEASE_SHARE = 1 / 3
"""The share of a lease that a batch may take: others wait behind its locks."""


class BatchSize:
    """The size of the batches of one handler. It starts small; it is doubled if a full batch takes
    at most half of the aimed time, cut to fit if it takes longer than that time, and halved if a
    batch is rolled back, so that after rare failures most batches are not.

    now: how many messages the next one takes. Written by handler threads without a lock: of two
    updates at the same time one may be lost.
    """

    def __init__(self, most: int, aim_seconds: float, lease_seconds: float) -> None:
        self._most = most
        self._aim = min(aim_seconds, lease_seconds * LEASE_SHARE)
        self.now = min(FIRST, most)

    def took(self, messages: int, seconds: float) -> None:
        """A batch of so many messages took so many seconds."""
        if seconds > self._aim:
            self.now = max(1, min(self.now, int(messages * self._aim / seconds)))
        elif messages >= self.now and seconds * 2 <= self._aim:
            self.now = min(self._most, self.now * 2)

    def failed(self) -> None:
        """A batch was rolled back."""
        self.now = max(1, self.now // 2)
