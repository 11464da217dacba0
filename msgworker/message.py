"""A message, its status, and the state machine as data.

`status` is one of four numbers, because foreign consumers and reports read the same column. Finer
states (failed with tries left, dead) follow from `error_try_times`.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, get_args

if TYPE_CHECKING:  # `Message` alone is `Message[Any]`
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
DEFAULT_TOPIC = "default"
"""The topic of a message whose topic is NULL."""
Uniqueness = Literal["open", "kept"]
UNIQUE: tuple[Uniqueness, ...] = get_args(Uniqueness)
"""How long a message holds its unique key: until it has ended, or until its row is purged."""
JobPolicy = Literal["complete", "wait"]
JOB_POLICIES: tuple[JobPolicy, ...] = get_args(JobPolicy)
"""What a dead message means to its job: it completes with it, or waits for an operator."""
OnDuplicate = Literal["skip", "raise", "replace"]
ON_DUPLICATE: tuple[OnDuplicate, ...] = get_args(OnDuplicate)
"""What a send does where another message holds the key."""


class Status(enum.IntEnum):
    """The numbers in the status column."""

    NEW = 0
    PROCESSING = 1
    DONE = 2
    FAILED = -1


class State(enum.StrEnum):
    """The name of a state: status and tries taken together."""

    NEW = "new"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    UNKNOWN = "unknown"


StateName = Literal["new", "processing", "done", "failed", "dead", "unknown"]
"""The states as words, for type checkers."""


class MovedBy(enum.StrEnum):
    """The acts that move a message; see TRANSITIONS."""

    CLAIM = "claim"
    SETTLE = "settle"
    RELEASE = "release"
    RECOVER = "recover"
    RERUN = "rerun"
    DISCARD = "discard"
    CANCEL = "cancel"
    EDIT = "edit"


TRANSITIONS: dict[tuple[State, State], frozenset[MovedBy]] = {
    (State.NEW, State.PROCESSING): frozenset({MovedBy.CLAIM, MovedBy.SETTLE}),
    (State.NEW, State.DONE): frozenset({MovedBy.SETTLE}),  # behind the flagged head of a batch
    (State.FAILED, State.PROCESSING): frozenset({MovedBy.CLAIM}),
    (State.PROCESSING, State.DONE): frozenset({MovedBy.SETTLE}),
    (State.PROCESSING, State.FAILED): frozenset({MovedBy.SETTLE, MovedBy.RELEASE, MovedBy.RECOVER}),
    (State.PROCESSING, State.DEAD): frozenset({MovedBy.SETTLE, MovedBy.RECOVER}),
    (State.PROCESSING, State.NEW): frozenset(
        {MovedBy.RELEASE, MovedBy.SETTLE}
    ),  # settle: RetryLater
    (State.NEW, State.FAILED): frozenset({MovedBy.EDIT}),  # with no try: none has read it ahead
    (State.FAILED, State.NEW): frozenset({MovedBy.RERUN}),
    (State.DEAD, State.NEW): frozenset({MovedBy.RERUN}),
    (State.DONE, State.NEW): frozenset({MovedBy.RERUN}),
    (State.NEW, State.DEAD): frozenset({MovedBy.DISCARD, MovedBy.CANCEL}),
    (State.FAILED, State.DEAD): frozenset({MovedBy.DISCARD, MovedBy.CANCEL}),
    (State.DEAD, State.DEAD): frozenset(
        {MovedBy.DISCARD, MovedBy.CANCEL}
    ),  # discarded: its object continues under "block"
}
"""Every move of a row and the acts that may make it; the simulation checks against it."""


def word_of(status: int | None, error_try_times: int | None, max_tries: int) -> State:
    """The state of a row. An odd status gives UNKNOWN: such a row is shown and never claimed. If
    the tries are not a number, no tries are left, as in SQL."""
    if status == Status.FAILED:
        try:
            return State.FAILED if (error_try_times or 0) < max_tries else State.DEAD
        except (TypeError, ArithmeticError):
            return State.DEAD
    try:
        return State[Status(status).name] if status is not None else State.UNKNOWN
    except ValueError:
        return State.UNKNOWN


def ends_at(max_tries: int, on_dead: str) -> int:
    """From so many failed tries on a message holds nothing back. Under on_dead="block" the dead do,
    until they are discarded, which writes one try more than there are."""
    return max_tries + (on_dead == "block")


def in_quarantine(crash_times: int, tries: int, max_tries: int) -> bool:
    """Whether a message must run alone: on its last try, after a crash that it may have caused."""
    return crash_times > 0 and tries >= max_tries - 1


def topic_of(topic: str | None) -> str:
    """The topic that selects the handler; an empty text is a topic of its own."""
    return DEFAULT_TOPIC if topic is None else topic


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """One row of the message table, as a handler sees it.

    payload: the decoded JSON, or the type of the handler's annotation (`Message[Invoice]`).
    error_try_times: failed tries so far; 0 at the first try.
    created_at: aware UTC; None if the table has no such column or the row no valid instant in it.
    scheduled_for: the tick for which a schedule has sent it, aware UTC; None for other messages and
    where the table has no such column. It is read from the database when it is first asked for, and
    raises DatabaseUnavailable if that cannot be reached.
    """

    msg_id: int
    object_id: str | None
    topic: str
    payload: T
    error_try_times: int = 0
    created_at: datetime | None = None
    table_name: str = ""
    scheduled_for: datetime | None = field(default=None, repr=False, compare=False)

    @property
    def idempotency_key(self) -> str:
        """A text that is the same in every try and rerun; for outside systems."""
        return f"{self.table_name}:{self.msg_id}"


class _Lazily:
    """A slot that may hold a function, which is called when the value is first read: most handlers
    never read it. by_id: it takes the msg_id, so that all messages share one function."""

    def __init__(self, slot: Any, *, by_id: bool = False) -> None:
        self._slot = slot
        self._by_id = by_id

    def __get__(self, msg: Any, owner: Any = None) -> Any:
        if msg is None:
            return self
        value = self._slot.__get__(msg, owner)
        if callable(value):
            value = value(msg.msg_id) if self._by_id else value()
            self._slot.__set__(msg, value)
        return value

    def __set__(self, msg: Any, value: Any) -> None:
        self._slot.__set__(msg, value)


type.__setattr__(Message, "created_at", _Lazily(Message.__dict__["created_at"]))
_tick = Message.__dict__["scheduled_for"]
type.__setattr__(Message, "scheduled_for", _Lazily(_tick, by_id=True))


class _Draft(Generic[T]):
    """A Message while it is filled: the `__init__` of a frozen dataclass takes four times as
    long."""

    __slots__ = tuple(one.name for one in fields(Message))


FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
"""Python runs without the GIL: there it stops all threads to change the class of an object."""


def filled(
    msg_id: int,
    object_id: str | None,
    topic: str,
    payload: Any,
    error_try_times: int,
    created_at: Callable[[], datetime | None] | None,
    table_name: str,
    scheduled_for: Callable[[int], datetime | None] | None = None,
) -> Message[Any]:
    """`Message(...)`, quickly. created_at, scheduled_for: called when first read."""
    if FREE_THREADED:
        make: Any = Message
        made: Message[Any] = make(
            *(msg_id, object_id, topic, payload),
            *(error_try_times, created_at, table_name, scheduled_for),
        )
        return made
    draft: Any = _Draft()
    draft.msg_id = msg_id
    draft.object_id = object_id
    draft.topic = topic
    draft.payload = payload
    draft.error_try_times = error_try_times
    draft.created_at = created_at
    draft.table_name = table_name
    draft.scheduled_for = scheduled_for
    draft.__class__ = Message
    msg: Message[Any] = draft
    return msg


UNWRITABLE = "(the error could not be stored)"
"""The `last_error` of a message whose error text the table refused."""


SPENT = " (dead after {} of {} tries that its handler allows)"
"""Suffix of the error of a message that is dead by the handler's own `max_tries`."""


LATER = "retry later: "
"""Prefix of `last_error` for a RetryLater, which is not an error."""
DISCARDED, CANCELLED = "discarded by ", "cancelled: "
"""Prefixes of that of a message that an operator has discarded, or cancelled."""
ACKNOWLEDGED = "acknowledged by "
"""Prefix of that of a dead message that an operator has acknowledged: a line that says who and why;
the error follows in the next one."""


def plain_error(error: str | bytes | None) -> str | bytes | None:
    """The last error without what an acknowledgement has put before it."""
    if isinstance(error, str) and error.startswith(ACKNOWLEDGED):
        return error.partition("\n")[2]
    return error


class Outcome(enum.StrEnum):
    """What a settle writes for a message."""

    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    SPENT = "spent"  # failed, and its handler allows no more tries: dead
    LATER = "later"
    RELEASED = "released"
    CANCELLED = "cancelled"  # by an operator, while it ran: dead


def becomes(
    outcome: Outcome, tries: int, *, max_tries: int, allowed: int | None = None, later: bool = True
) -> tuple[Outcome, State]:
    """What is written for a try that ended so, and the state of its message then. tries: failed
    ones before it. max_tries: those of the table; allowed: those of its handler, None = as many.
    later: whether it may be postponed once more."""
    if outcome is Outcome.LATER and not later:
        outcome = Outcome.FAILED
    if outcome is Outcome.FAILED:
        if tries + 1 >= max_tries:
            return outcome, State.DEAD
        spent = allowed is not None and tries + 1 >= allowed
        return (Outcome.SPENT, State.DEAD) if spent else (outcome, State.FAILED)
    if outcome in (Outcome.LATER, Outcome.RELEASED):
        return outcome, State.FAILED if tries else State.NEW
    return outcome, State.DONE if outcome is Outcome.DONE else State.DEAD


class Outgoing(NamedTuple):
    """A checked message that is to be sent: its row, as store/send.py takes it, and what happens if
    another one holds its unique key; None = it has no key."""

    row: dict[str, Any]
    on_duplicate: OnDuplicate | None = None


class Settlement(NamedTuple):
    """What to write for one flagged message, and which message gets the flag next.

    next_id: the next message of the run, None if the lane ends here.
    delay_seconds: back-off of FAILED, delay of LATER.
    tries, later_times: as they were when the message was claimed; tries is None if they are not
    numbers.
    trace: the traceback that is stored with the try.
    sends: messages that are sent with it, if it is written.
    ran_seconds: since its handler started, of a failed try; None = that is not known.
    deletes: the row of a message that is done is deleted, if nothing else needs it.
    """

    msg_id: int
    outcome: Outcome = Outcome.DONE
    next_id: int | None = None
    error: str | None = None
    delay_seconds: float = 0.0
    tries: int | None = 0
    later_times: int = 0
    trace: str | None = None
    sends: tuple[Outgoing, ...] = ()
    ran_seconds: float | None = None
    deletes: bool = False


class Settled(enum.Enum):
    """The result of a settlement."""

    LOST = "lost"  # the message was no longer flagged by us: nothing was written
    ENDED = "ended"  # written; the lane ends here
    ADVANCED = "advanced"  # written, and the next message is flagged
