"""Handlers: their options and signatures, and the registry of an App."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from msgworker.config import MAX_TRIES, number, whole
from msgworker.errors import (
    ConfigError,
    HandlerError,
)
from msgworker.instance.running.signature import payload_type, takes_context, unread
from msgworker.limit import Limit, limit_of

if TYPE_CHECKING:  # what only some handlers use is imported for them alone
    from pydantic import TypeAdapter
    from tenacity.wait import wait_base


MOST_IN_A_BATCH = 10_000
DEFAULT_BATCH_SECONDS = 1.0
TimeoutAction = typing.Literal["report", "restart"]


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler. wait: None = the App's back-off. max_tries: None = the table's rule.

    batch: it takes lists of at most so many messages. group: so many of its calls, one message
    each, may share a transaction. batch_seconds: what a batch or a group may take.
    limit: of its topic, over all instances. on_done, on_dead: topics of the messages about those
    that are done or dead.
    """

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
    warned: list[str] = field(default_factory=list)

    @property
    def most(self) -> int:
        """How many messages may share a call or a transaction; 1 without batch and group."""
        return self.batch or self.group or 1


def make_handler(
    topic: str | None,
    fn: Any,
    *,
    transactional: bool = False,
    timeout: float | None = None,
    timeout_action: TimeoutAction = "report",
    wait: wait_base | None = None,
    max_tries: int | None = None,
    batch: int | None = None,
    group: int | None = None,
    batch_seconds: float = DEFAULT_BATCH_SECONDS,
    max_running: int | None = None,
    rate: str | None = None,
    burst: int | None = None,
    on_done: str | None = None,
    on_dead: str | None = None,
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
    _check_batch(name, batch, group, batch_seconds, transactional)
    for option, value in (("on_done", on_done), ("on_dead", on_dead)):
        _check_follow_up(name, option, value, topic)
    if max_tries == 1 and (batch or group):
        raise HandlerError(
            f"handler {name}: {'batch' if batch else 'group'}=... has no effect with max_tries=1, "
            "since only messages that can be tried again share one; leave one of them out"
        )
    limit = _checked_limit(name, topic, max_running, rate, burst)
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
        takes_context=takes_context(fn, name, batch=batch is not None),
        is_async=is_async,
        payload_type=payload_type(fn, batch=batch is not None, group=group is not None),
        batch=batch,
        group=group,
        batch_seconds=float(batch_seconds),
        limit=limit,
        on_done=on_done,
        on_dead=on_dead,
    )


def _checked_limit(
    name: str, topic: str | None, max_running: object, rate: object, burst: object
) -> Limit | None:
    try:
        limit = limit_of(f"handler {name}", max_running, rate, burst)
    except ConfigError as error:
        raise HandlerError(str(error)) from None
    if limit is not None and topic is None:
        raise HandlerError(
            f"handler {name}: max_running=... and rate=... are limits of a topic; name it: "
            "@app.handler(topic, ...)"
        )
    return limit


def _check_follow_up(name: str, option: str, value: object, topic: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not 0 < len(value) <= 100 or "\x00" in value:
        raise HandlerError(
            f"{option} of handler {name} must be a topic, a text of 1 to 100 characters, "
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


def _check_batch(
    name: str, batch: object, group: object, batch_seconds: object, transactional: bool
) -> None:
    for option, value in (("batch", batch), ("group", group)):
        if value is not None:
            try:
                whole(f"{option} of handler {name}", value, 2, MOST_IN_A_BATCH)
            except ConfigError as error:
                raise HandlerError(str(error)) from None
    try:
        number(f"batch_seconds of handler {name}", batch_seconds, 0.001, 3600)
    except ConfigError as error:
        raise HandlerError(str(error)) from None
    if batch is None and group is None and batch_seconds != DEFAULT_BATCH_SECONDS:
        raise HandlerError(
            f"handler {name}: batch_seconds=... is for batch=... and group=...; leave it out, or "
            "add one of them"
        )
    if batch is not None and group is not None:
        raise HandlerError(
            f"handler {name} has batch and group: batch=... calls it with a list of messages, "
            "group=... with one message each; use one of them"
        )
    if group is not None and not transactional:
        raise HandlerError(
            f"handler {name}: group=... makes calls share a transaction, so it needs "
            "transactional=True"
        )


def _check_max_tries(name: str, max_tries: object) -> None:
    try:
        whole(f"max_tries of handler {name}", max_tries, 1, MAX_TRIES)
    except ConfigError as error:
        raise HandlerError(str(error)) from None


@dataclass(slots=True)
class Registry:
    """The handlers of an App by topic; `None` is the handler of every other topic.

    most: the most messages that share a call or a transaction of one of them. tells: whether one of
    them has on_done or on_dead. has_timeouts: whether one of them has a timeout.
    """

    handlers: dict[str | None, Handler] = field(default_factory=dict)
    most: int = 1
    tells: bool = False
    has_timeouts: bool = False

    def __post_init__(self) -> None:
        for handler in self.handlers.values():
            self._note(handler)

    def _note(self, handler: Handler) -> None:
        self.most = max(self.most, handler.most)
        self.has_timeouts = self.has_timeouts or handler.timeout is not None
        self.tells = self.tells or handler.on_done is not None or handler.on_dead is not None

    def add(self, handler: Handler) -> None:
        if handler.topic in self.handlers:
            what = "every topic" if handler.topic is None else f"topic {handler.topic!r}"
            raise HandlerError(f"there is a handler for {what} already")
        self._refuse_circle(handler, "on_done")
        self._refuse_circle(handler, "on_dead")
        self.handlers[handler.topic] = handler
        self._note(handler)

    def _refuse_circle(self, new: Handler, option: str) -> None:
        """Raise if messages about messages would come back to the topic of this handler."""
        known = self.handlers | {new.topic: new}
        way: list[str | None] = [new.topic]
        at: str | None = getattr(new, option)
        while at is not None:
            if at in way:
                circle = " -> ".join(str(topic) for topic in (*way, at))
                raise HandlerError(
                    f"{option} goes in a circle: {circle}; such messages would never end"
                )
            way.append(at)
            found = known.get(at) or known.get(None)
            ahead: str | None = None if found is None else getattr(found, option)
            at = None if ahead == at else ahead  # it sends none about its own topic

    def get(self, topic: str | None) -> Handler | None:
        return self.handlers.get(topic) or self.handlers.get(None)

    def read_types(self) -> list[str]:
        """Resolve types of payloads that were unknown when their handler was registered; returns a
        warning for each that is still unknown."""
        told = []
        for topic, handler in list(self.handlers.items()):
            if handler.payload_type is None and "type" not in handler.warned:
                found = self.handlers[topic] = replace(
                    handler,
                    payload_type=payload_type(
                        handler.fn,
                        batch=handler.batch is not None,
                        group=handler.group is not None,
                    ),
                )
                hint = "" if found.payload_type is not None else unread(handler.fn)
                if hint:
                    handler.warned.append("type")
                    name = getattr(handler.fn, "__qualname__", repr(handler.fn))
                    told.append(
                        f"handler {name}: the type in {hint} is not a name of its module, so "
                        "that payloads are not checked"
                    )
        return told

    def topics(self) -> frozenset[str] | None:
        """The topics that can be handled; None = all."""
        if None in self.handlers:
            return None
        return frozenset(topic for topic in self.handlers if topic is not None)
