"""A message, its status, and the state machine as data.

`status` is one of four numbers and never anything else: foreign consumers and reports read the
same column. Everything finer (failed with tries left, dead) follows from `error_try_times`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")
DEFAULT_TOPIC = "default"
"""What a message without a topic is handled as."""


class Status(enum.IntEnum):
    """The numbers in the status column."""

    NEW = 0
    PROCESSING = 1
    DONE = 2
    FAILED = -1


class Word(enum.StrEnum):
    """What people call a state: status and tries taken together."""

    NEW = "new"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Act(enum.StrEnum):
    """Who may move a message; see TRANSITIONS."""

    CLAIM = "claim"
    SETTLE = "settle"
    RELEASE = "release"
    RECOVER = "recover"
    RERUN = "rerun"
    DISCARD = "discard"


TRANSITIONS: dict[tuple[Word, Word], frozenset[Act]] = {
    (Word.NEW, Word.PROCESSING): frozenset({Act.CLAIM, Act.SETTLE}),
    (Word.FAILED, Word.PROCESSING): frozenset({Act.CLAIM}),
    (Word.PROCESSING, Word.DONE): frozenset({Act.SETTLE}),
    (Word.PROCESSING, Word.FAILED): frozenset({Act.SETTLE, Act.RELEASE, Act.RECOVER}),
    (Word.PROCESSING, Word.DEAD): frozenset({Act.SETTLE, Act.RECOVER}),
    (Word.PROCESSING, Word.NEW): frozenset({Act.RELEASE, Act.SETTLE}),  # settle: RetryLater
    (Word.FAILED, Word.NEW): frozenset({Act.RERUN}),
    (Word.DEAD, Word.NEW): frozenset({Act.RERUN}),
    (Word.DONE, Word.NEW): frozenset({Act.RERUN}),
    (Word.NEW, Word.DEAD): frozenset({Act.DISCARD}),
    (Word.FAILED, Word.DEAD): frozenset({Act.DISCARD}),
    (Word.DEAD, Word.DEAD): frozenset({Act.DISCARD}),  # given up: its object goes on under "block"
}
"""Every move a row may make and the acts that may make it; the simulation judges by it."""


def word_of(status: int | None, error_try_times: int | None, max_tries: int) -> Word:
    """The word for a row; an odd status gives UNKNOWN, it is shown and never claimed. Tries that
    are no number leave none, as in SQL."""
    if status == Status.FAILED:
        try:
            return Word.FAILED if (error_try_times or 0) < max_tries else Word.DEAD
        except (TypeError, ArithmeticError):
            return Word.DEAD
    try:
        return Word[Status(status).name] if status is not None else Word.UNKNOWN
    except ValueError:
        return Word.UNKNOWN


def in_quarantine(crash_times: int, tries: int, max_tries: int) -> bool:
    """Whether a message must run alone: on its last try, after a crash that it may have caused."""
    return crash_times > 0 and tries >= max_tries - 1


def topic_of(topic: str | None) -> str:
    """The topic that a row is handled as; an empty text is a topic of its own."""
    return DEFAULT_TOPIC if topic is None else topic


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """One row of the message table, as a handler sees it.

    payload: the decoded JSON, or the type of the handler's annotation (`Message[Invoice]`).
    error_try_times: failed tries so far; 0 at the first try.
    created_at: aware UTC, None where the table has no such column, or the row no instant in it.
    """

    msg_id: int
    object_id: str | None
    topic: str
    payload: T
    error_try_times: int = 0
    created_at: datetime | None = None
    table_name: str = ""

    @property
    def idempotency_key(self) -> str:
        """A text that stays the same over retries and reruns; for outside systems."""
        return f"{self.table_name}:{self.msg_id}"


class _Lazily:
    """A slot that may hold a function, called when the value is asked for first: most handlers
    never do."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, msg: Any, owner: Any = None) -> Any:
        if msg is None:
            return self
        value = self._slot.__get__(msg, owner)
        if callable(value):
            value = value()
            self._slot.__set__(msg, value)
        return value

    def __set__(self, msg: Any, value: Any) -> None:
        self._slot.__set__(msg, value)


type.__setattr__(Message, "created_at", _Lazily(Message.__dict__["created_at"]))


UNWRITABLE = "(the error could not be stored)"
"""Stands in `last_error` where the table did not take the text."""


SPENT = " (dead after {} of {} tries that its handler allows)"
"""How the error of a message ends that is dead before the table's rule says so."""


LATER = "retry later: "
"""How `last_error` begins where it tells of a wish (RetryLater), not of an error."""


class Outcome(enum.StrEnum):
    """What is written for a message that was in our hands."""

    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    SPENT = "spent"  # failed, and its handler allows no more tries: dead
    LATER = "later"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Settlement:
    """What to write for one flagged message, and which message gets the flag next.

    next_id: the next message of the run, None if the lane ends here.
    delay_seconds: back-off of FAILED, delay of LATER.
    tries, later_times: as they were when the message was claimed; tries None where they are no
    numbers.
    trace: the traceback that is kept with the try.
    """

    msg_id: int
    outcome: Outcome = Outcome.DONE
    next_id: int | None = None
    error: str | None = None
    delay_seconds: float = 0.0
    tries: int | None = 0
    later_times: int = 0
    trace: str | None = None


class Settled(enum.Enum):
    """What became of a settlement."""

    LOST = "lost"  # the flag was not ours any more: nothing was written
    ENDED = "ended"  # written; the lane ends here
    WENT_ON = "went on"  # written, and the next message is flagged
