"""The result of a write: counts, skipped messages and why."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgworker.queries.messages import MessageInfo
from msgworker.store.audit import Edited

SHOWN = 20


class Why(enum.StrEnum):
    """Why a message was skipped."""

    NOT_THERE = "not there"
    NEW = "new"
    RUNNING = "running"
    DONE = "done"
    UNKNOWN = "unknown status"
    GIVEN_UP = "discarded already"
    RAN_LATER = "a later one ran"
    RUNS_LATER = "a later one runs"
    KEY_TAKEN = "its unique key is taken"
    TOO_LONG = "too many behind it"
    CHANGED = "changed meanwhile"
    LOCKED = "locked by another transaction"
    UNDATED = "of unknown age"
    TOO_LATE = "too late"
    FOREIGN = "flagged by a foreign consumer"
    NO_REQUESTS = "running, and requests cannot be recorded"
    REQUESTED = "requested already"
    REFUSED = "refused by the database"
    NOT_DEAD = "not dead"
    KNOWN = "acknowledged already"
    SAME = "as it is already"
    EDITED = "changed since it was seen"
    NOT_EDITED = "done, and so not edited"
    AHEAD = "given up, and its object runs"


@dataclass(frozen=True, slots=True)
class Skip:
    """A skipped message, and why. other_id: the later one of its object, or the one that holds
    its key. error: what the database said of it."""

    msg_id: int
    why: Why
    other_id: int | None = None
    error: str = ""

    @property
    def fact(self) -> str:
        """The reason, without the advice."""
        return f"message {self.msg_id} {_SAYS[self.why].format(self.other_id, self.error)}"

    def __str__(self) -> str:
        advice = ADVICE.get(self.why)
        return self.fact if advice is None else f"{self.fact}; {advice}"


_SAYS = {
    Why.NOT_THERE: "does not exist",
    Why.NEW: "is new: it waits for its turn already",
    Why.RUNNING: "is running",
    Why.DONE: "is done",
    Why.NOT_EDITED: "is done",
    Why.UNKNOWN: "has an unknown status",
    Why.GIVEN_UP: "is discarded already",
    Why.RAN_LATER: "would run out of order: message {} of its object has run already",
    Why.RUNS_LATER: "would run out of order: message {} of its object runs now",
    Why.KEY_TAKEN: "has a unique key that message {} holds now",
    Why.TOO_LONG: "has more messages behind it than one transaction can take",
    Why.CHANGED: "has changed meanwhile, or a message behind it has",
    Why.LOCKED: "is locked by another transaction",
    Why.UNDATED: "has neither a claimed_at nor a created_at, so its age is unknown",
    Why.TOO_LATE: "has ended already: it is too late to cancel it",
    Why.FOREIGN: "was flagged by a consumer without a name, which sees no requests",
    Why.NO_REQUESTS: "is running, and table msgworker_cancel, for requests to end it, is missing",
    Why.REQUESTED: "is running, and a request to cancel it is recorded already",
    Why.REFUSED: "cannot be changed: {1}",
    Why.NOT_DEAD: "is not dead",
    Why.KNOWN: "is acknowledged already, or was discarded or cancelled",
    Why.SAME: "is as it would be: there is nothing to change",
    Why.EDITED: "has changed since it was seen: it ran, or another operator has changed it",
    Why.AHEAD: (
        "was discarded or cancelled, and a message of its object runs, whose instance may have "
        "read this one ahead as it was before an edit"
    ),
}
ADVICE = {
    Why.DONE: "--force (force=True) runs it again",
    Why.RAN_LATER: (
        "--force (force=True) runs it nevertheless, --with-successors (with_successors=True) runs "
        "it and then, in order, the failed and dead messages behind it"
    ),
    Why.RUNS_LATER: "try again later",
    Why.KEY_TAKEN: "--force (force=True) runs it without its key",
    Why.CHANGED: "look again",
    Why.LOCKED: "instances recover it when that transaction has ended, or release again",
    Why.UNDATED: "--any-age (any_age=True) gives it back, if no consumer works on it",
    Why.FOREIGN: "stop that consumer, give the message back (`release --nobody`), then cancel it",
    Why.NO_REQUESTS: "run App.create_schema() or `msgworker init-db`, or see `msgworker ddl`",
    Why.REQUESTED: "`msgworker explain` says whether its instance has seen it",
    Why.EDITED: "look at it as it is now, then edit it",
    Why.NOT_EDITED: (
        "a done message is not edited: send another one, or rerun it with `msgworker rerun --force`"
    ),
    Why.AHEAD: "try again when that one has ended",
}
"""The advice for each reason."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The message that was sent, or whose key was taken. op_id: in the audit."""

    kind: str
    msg_id: Any
    op_id: int


@dataclass(frozen=True, eq=False)
class Repaired(int):
    """The result of a write. As a number: how many messages it changed, or would change.

    op_id: its number in the audit, None if there was nothing to do. matched: messages that were
    read. skipped: how many of them were skipped; why: how many for which reason; skips: the
    first of them. For a dry run: sample: the first messages that would be changed; done_again: how
    many of them are done, so that their handlers would run again; stay_done: how many behind them
    are done and would stay so. requested: of a cancel, how many of the changed ones run, so that a
    request to their instances was recorded. complete: False for a dry run that did not count all,
    because of `count_limit` or the time of `within`; there may be more behind `up_to`, the highest
    msg_id that it counted (None = it counted none). holding: of an acknowledge, how many of them
    hold up their object or a job, and go on to do so until they are rerun or discarded. changes: of
    an edit, what it changes; seen: what the message was then, see `edit`.
    """

    kind: str
    op_id: int | None = None
    matched: int = 0
    changed: int = 0
    skipped: int = 0
    dry_run: bool = False
    why: tuple[tuple[Why, int], ...] = ()
    skips: tuple[Skip, ...] = ()
    sample: tuple[MessageInfo, ...] = ()
    done_again: int = 0
    stay_done: int = 0
    requested: int = 0
    complete: bool = True
    up_to: int | None = None
    holding: int = 0
    changes: tuple[Edited, ...] = ()
    seen: str | None = None

    def __new__(cls, *args: Any, **values: Any) -> Repaired:
        return super().__new__(cls, values.get("changed", 0))

    def __str__(self) -> str:
        return str(int(self))


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an operation; given to `progress` after each step.

    op_id: None while it counts, for `expected_count`: nothing was changed yet.
    """

    op_id: int | None
    matched: int
    changed: int
    skipped: int


OnProgress = Callable[[Progress], None]


@dataclass(slots=True)
class Skips:
    """Counts skipped messages, and keeps the first ones."""

    counts: Counter[Why] = field(default_factory=Counter)
    first: list[Skip] = field(default_factory=list)

    def add(self, skips: Iterable[Skip]) -> None:
        for skip in skips:
            self.counts[skip.why] += 1
            if len(self.first) < SHOWN:
                self.first.append(skip)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    @property
    def as_counts(self) -> dict[str, Any]:
        """As fields of a result."""
        why = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return {"skipped": self.count, "why": tuple(why), "skips": tuple(self.first)}
