"""What a handler is: its options, its context, and what its return or error stands for.

Whatever a handler does, one of the outcomes of message.py comes out and the thread lives on. A
handler that returns is done; everything it raises, BaseException included, is a failed try.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
import re
import sys
import threading
import typing
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, Required

from sqlalchemy import Connection
from typing_extensions import TypedDict

from msgworker.config import BACKOFF_SECONDS, MAX_TRIES, number, whole
from msgworker.errors import (
    ConfigError,
    HandlerError,
    HandlerMisuse,
    HandlerTimeout,
    PayloadError,
    Reject,
    RetryLater,
)
from msgworker.instance.forks import no_child_returns
from msgworker.instance.traces import home_of, place_of, text_of, trace_of, trim, where
from msgworker.logs import logger
from msgworker.message import LATER, SPENT, Message, Outcome
from msgworker.payload import clean, decode
from msgworker.table import MAX_ERROR

if TYPE_CHECKING:  # what only some handlers use is imported for them alone
    from pydantic import TypeAdapter
    from sqlalchemy.orm import Session
    from tenacity.wait import wait_base

    from msgworker.instance.fanout import FanOut, Fans

log = logger("msgworker.handling")

FAULTS_SHOWN = 5
BACKOFF_FACTOR = 5
LONGEST_BACKOFF_SECONDS = 480.0
"""Before the jitter, which makes it 600 s at most."""
JITTER = 0.25
MAX_BACKOFF_SECONDS = 30 * 86_400.0
TimeoutAction = typing.Literal["report", "restart"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """The back-off of handlers that say none: `first` seconds after the first failed try (0 = at
    once), five times as long after each further one, up to a quarter longer, 600 s at most."""

    first: float

    def __call__(self, attempt: int) -> float:
        """The seconds after the attempt-th failed try (from 1 on)."""
        plain = self.first * float(BACKOFF_FACTOR) ** min(attempt - 1, 100)
        return min(plain, LONGEST_BACKOFF_SECONDS) * random.uniform(1, 1 + JITTER)


DEFAULT_BACKOFF = Backoff(BACKOFF_SECONDS)


def pause_after(wait: wait_base, attempt: int, error: BaseException) -> float:
    """The seconds that a tenacity wait strategy gives after the attempt-th failure (from 1 on)."""
    from tenacity import RetryCallState

    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = attempt
    state.set_exception((type(error), error, error.__traceback__))
    return max(0.0, float(wait(state)))


class Cancellable(Protocol):
    """What tells a context that its handler should come to an end."""

    cancelled: bool


class Context:
    """What a handler may use besides its message.

    instance_id: this instance. attempt: 1 at the first try. log: a logger whose records carry the
    message. cancelled: set when the worker stops, the lease is lost or the timeout is over.
    connection, session: only for transactional handlers; what is written there commits together
    with the outcome, or not at all. The handler must neither commit nor close them.
    """

    __slots__ = (
        "_connection",
        "_fans",
        "_log",
        "_msg",
        "_running",
        "_session",
        "attempt",
        "instance_id",
    )

    def __init__(
        self,
        msg: Message[Any],
        instance_id: str,
        attempt: int,
        running: Cancellable,
        connection: Connection | None = None,
        fans: Fans | None = None,
    ) -> None:
        self.instance_id = instance_id
        self.attempt = attempt
        self._msg = msg
        self._running = running
        self._connection = connection
        self._fans = fans
        self._session: Session | None = None
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the handler should come to an end."""
        return self._running.cancelled

    @property
    def connection(self) -> Connection:
        """The connection of the transaction that settles this message."""
        if self._connection is None:
            raise HandlerMisuse("ctx.connection is for handlers with transactional=True")
        return self._connection

    @property
    def session(self) -> Session:
        """An ORM session on `connection`; flushed, not committed, when the handler returns."""
        if self._session is None:
            from sqlalchemy.orm import Session

            self._session = Session(bind=self.connection, join_transaction_mode="create_savepoint")
        return self._session

    def fan_out(
        self,
        fn: Callable[..., Any],
        items: Iterable[Any],
        *,
        key: Callable[[Any], Any] | None = None,
        threads: int | None = None,
        executor: Executor | None = None,
        timeout: float | None = None,
        serial_by: Callable[[Any], Any] | None = None,
        transactional_items: bool = False,
        name: str = "",
    ) -> FanOut:
        """Run `fn(item)` for every item over threads, and record each that is done.

        Each item is recorded under its message and its key, so that a retry, another instance or a
        rerun by ops runs only what is not done. An item that fails does not stop the others; the
        message fails if you call `raise_for_failed()` on the result. What `fn` returns is kept:
        JSON of at most 8,000 characters, or None.

        key: from an item to a text (1 to 190 characters) or a whole number, each once; the items
        themselves if left out. threads: how many items run at once (5); with an executor, how many
        are submitted at once (64). executor: any concurrent.futures.Executor. timeout: seconds;
        after that no item starts, and HandlerTimeout is raised when the running ones have ended.
        serial_by: items for which it gives the same are run one at a time, in order; None = no
        order. transactional_items: `fn(item, connection)`; what is written through the connection
        commits together with the item's record, or not at all. name: tells several fan-outs of one
        message apart.

        Items run again after a crash: without transactional_items at most the last 200 (or as many
        as run at once, if that is more). Raises ConfigError for bad arguments, before anything
        runs; HandlerMisuse in a transactional handler; LostClaim, HandlerTimeout or RetryLater when
        no further item may start: the claim is lost, the time is over, or the worker stops (or its
        lease may be over, and it does not know yet whether it is lost).
        """
        if self._fans is None:
            raise HandlerMisuse(
                "ctx.fan_out is for plain handlers: items are recorded while the handler runs, and "
                "a transactional one holds its transaction open meanwhile. Leave out "
                "transactional=True and use transactional_items=True where items write"
            )
        return self._fans.fan_out(
            fn,
            items,
            key=key,
            threads=threads,
            executor=executor,
            timeout=timeout,
            serial_by=serial_by,
            transactional_items=transactional_items,
            name=name,
        )

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger under `msgworker.handler` whose records carry the message."""
        if self._log is None:
            extra = {
                "instance": self.instance_id,
                "msg_id": self._msg.msg_id,
                "object_id": self._msg.object_id,
                "topic": self._msg.topic,
                "try": self.attempt,
            }
            self._log = logging.LoggerAdapter(logger("msgworker.handler", of_user=True), extra)
        return self._log


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
        "all else optional"
    )


def _payload_type(fn: Callable[..., Any]) -> TypeAdapter[Any] | None:
    """The T of a first parameter annotated `Message[T]`, None if there is none.

    Raises HandlerError where the first one is annotated as the Context.
    """
    try:
        parameters = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return None
    try:
        hints = typing.get_type_hints(_called(fn))
    except Exception:  # of another parameter, perhaps
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
    """The annotation of the first parameter alone; empty if it cannot be resolved (now)."""
    target = inspect.unwrap(_called(fn))
    only = type("only", (), {"__annotations__": dict(_first_annotation(fn))})
    try:
        return typing.get_type_hints(only, globalns=getattr(target, "__globals__", {}))
    except Exception:
        return {}


def _called(fn: Any) -> Any:
    """What has the annotations: a function, or the `__call__` of an object."""
    return fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004


def _first_annotation(fn: Callable[..., Any]) -> list[tuple[str, Any]]:
    first = list(inspect.signature(fn).parameters)[:1]
    given = getattr(inspect.unwrap(_called(fn)), "__annotations__", {})
    return [(name, given[name]) for name in first if name in given]


def _unread(fn: Callable[..., Any]) -> str:
    """The annotation `Message[T]`, as it is written, if its T is not known."""
    try:
        annotation = _first_annotation(fn)
    except (TypeError, ValueError):
        return ""
    text = "".join(a if isinstance(a, str) else repr(a) for _, a in annotation)
    return text if re.search(r"\bMessage\[", text) and not _first_hint(fn) else ""


def _portable(hint: Any) -> Any:
    """A type that pydantic takes: before Python 3.12 it knows only typing_extensions' TypedDict."""
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


# ---------------------------------------------------------------- outcome


@dataclass(slots=True)
class Result:
    """What came out of one try; `error` is the text kept for people.

    trace: the traceback as text. raised: the error itself, until it is logged.
    """

    outcome: Outcome
    error: str | None = None
    delay_seconds: float = 0.0
    trace: str | None = None
    raised: BaseException | None = None


DONE = Result(Outcome.DONE)


def describe(error: BaseException, home: str | None = None) -> str:
    """An exception as text for `last_error`: type, message, place; cut, without NUL, never failing.

    home: see `traces.place_of`.
    """
    found = place_of(error, home)
    place = clean(f" [{found}]", 300) if found else ""
    return clean(f"{type(error).__name__}: {text_of(error)}", MAX_ERROR - len(place) - 10) + place


def result_of_error(
    error: BaseException, handler: Handler, attempt: int, backoff: Backoff = DEFAULT_BACKOFF
) -> Result:
    """The outcome that an exception of a handler stands for; backoff: if the handler says none."""
    home = home_of(handler.fn)
    if isinstance(error, Reject):
        text = clean(f"rejected: {text_of(error.reason)}")
        return Result(Outcome.DEAD, text, trace=where(error, home))
    if isinstance(error, RetryLater):
        return Result(Outcome.LATER, clean(f"{LATER}{text_of(error)}"), error.after_seconds)
    trim(error, home)
    text, trace = describe(error, home), trace_of(error, home)
    if isinstance(error, PayloadError):
        raised = error if trace else None  # found before the handler ran: its text says it all
        return Result(Outcome.DEAD, text, trace=trace, raised=raised)
    try:
        wait = handler.wait
        delay = backoff(attempt) if wait is None else pause_after(wait, attempt, error)
        if not 0 <= delay <= MAX_BACKOFF_SECONDS:
            raise ConfigError(f"back-off of {delay!r} s")
    except BaseException:
        log.exception("the wait strategy of topic %s failed; 60 s instead", handler.topic)
        delay = 60.0
    return Result(Outcome.FAILED, text, delay, trace, error)


def limited(result: Result, handler: Handler, attempt: int, max_tries: int) -> Result:
    """The same, but no more tries than the handler allows, where the table (max_tries) allows
    more."""
    most = handler.max_tries
    if result.outcome is not Outcome.FAILED or most is None or not most <= attempt < max_tries:
        return result
    why = SPENT.format(attempt, most)
    error = clean(result.error or "", MAX_ERROR - len(why)) + why
    return replace(result, outcome=Outcome.SPENT, error=error)


def result_of_return(
    value: Any, handler: Handler, attempt: int, backoff: Backoff = DEFAULT_BACKOFF
) -> Result:
    """The outcome that a handler's return value stands for."""
    if value is None:
        return DONE
    if isinstance(value, Reject | RetryLater):
        return result_of_error(value, handler, attempt, backoff)
    if inspect.iscoroutine(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        if inspect.iscoroutine(value):
            value.close()
        error = HandlerMisuse(
            f"the handler returned a {type(value).__name__} that nobody runs; "
            "declare it `async def` or run it"
        )
        return result_of_error(error, handler, attempt, backoff)
    if isinstance(value, Future | asyncio.Future):
        error = HandlerMisuse("the handler returned a future; wait for it inside the handler")
        return result_of_error(error, handler, attempt, backoff)
    _warn_return(handler, value)
    return DONE


def _warn_return(handler: Handler, value: Any) -> None:
    if "return" not in handler.warned:
        handler.warned.append("return")
        log.warning(
            "the handler of topic %s returned a %s; return values are ignored, "
            "only None, Reject and RetryLater mean something",
            handler.topic,
            type(value).__name__,
        )


def payload_of(raw: Any, oversize: int | None, handler: Handler) -> Any:
    """The payload of a row as the handler's annotated type, as decoded JSON if it has none.

    Raises PayloadError if it is not strict JSON or does not fit.
    """
    payload = decode(raw, oversize)
    if handler.payload_type is None:
        return payload
    from pydantic import ValidationError

    try:
        if payload is None:
            return handler.payload_type.validate_python(None)
        # Read as JSON, where a text may be a date or a Decimal and a list a set, also in a type
        # that is strict.
        text = raw if isinstance(raw, str) else json.dumps(payload)
        return handler.payload_type.validate_json(text)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, one['loc'])) or 'payload':.100}: {one['msg']:.200}"
            for one in error.errors(include_url=False, include_input=False)
        ]
        more = len(faults) - FAULTS_SHOWN
        faults[FAULTS_SHOWN:] = [f"and {more} more"] if more > 0 else []
        text = "; ".join(faults)
        raise PayloadError(f"the payload does not fit the handler's type: {text}") from None


# ---------------------------------------------------------------- async


@dataclass(frozen=True, slots=True)
class _Escaping:
    """What would end the loop's thread, and hang all who wait for it, if it were raised there."""

    error: BaseException


class LoopThread:
    """One event loop on one thread, started at the first async handler.

    pid: the process; a child that comes back from a handler here ends.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Any, timeout: float | None) -> Any:
        """Run a coroutine to its end; after `timeout` it is cancelled and HandlerTimeout raised."""
        future = asyncio.run_coroutine_threadsafe(self._limited(coroutine, timeout), self._get())
        value = future.result()
        if isinstance(value, _Escaping):
            raise value.error
        return value

    async def _limited(self, coroutine: Any, timeout: float | None) -> Any:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout) as limit:
                with no_child_returns(self._pid):
                    value = await coroutine
            took = asyncio.get_running_loop().time() - began
            late = timeout is not None and took > timeout  # it blocked, or swallowed the cancel
            if late and not isinstance(value, Reject | RetryLater):
                raise HandlerTimeout(
                    f"timeout: the handler took {took:.1f} s, its limit is {timeout:g} s"
                )
            return value
        except TimeoutError:
            if limit.expired():
                raise HandlerTimeout(
                    f"timeout: the handler ran longer than {timeout:g} s"
                ) from None
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            return _Escaping(error)

    def _get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=loop.run_forever, name="msgworker-async", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the interpreter ends
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
            return self._loop

    def close(self) -> None:
        """Stop the loop; coroutines that still run are dropped."""
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)
            if not self._thread.is_alive():
                self._loop.close()
            self._loop = self._thread = None


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
        """Look again for types of payloads that were not known when their handler was registered;
        returns a text for each that is not known now."""
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
