"""What writes are asked for, and their result."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from msgworker.commands import proposed
from msgworker.config import YEAR_SECONDS, number, seconds
from msgworker.errors import ConfigError
from msgworker.queries.messages import MessageInfo
from msgworker.store.audit import Edited
from msgworker.store.bounded import LEAST, MOST

# --- Arguments of a write, checked before anything is done.

MAX_RATE = 1_000_000
KEPT_IDS = 10_000
"""The most ids that the audit stores; of a longer list it keeps the first and the last."""


def ids_of(ids: Any) -> list[int] | None:
    """Ids in order, each once; None for None. Raises ConfigError for an impossible id."""
    if ids is None:
        return None
    if isinstance(ids, int) and not isinstance(ids, bool):
        ids = [ids]
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise ConfigError(f"ids must be whole numbers, got {ids!r:.80}")
    found = set()
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int):
            raise ConfigError(f"an id is a whole number, got {one!r:.80}")
        if not LEAST <= one <= MOST:
            raise ConfigError(f"an id has at most 64 bits, got {one!r:.60}")
        found.add(one)
    return sorted(found)


class How(TypedDict, total=False):
    """What every write takes. `dry_run`: only say what it would do. `actor` (default: this user and
    host) and `reason`: who asks for it and why, as the audit keeps it."""

    dry_run: bool
    actor: str | None
    reason: str | None


def rate_of(rate: Any) -> float | None:
    """The most messages a second; None = no limit."""
    return None if rate is None else number("rate", rate, 0.001, MAX_RATE)


Age = float | str | timedelta | datetime | None


def age_of(older_than: Any) -> float | datetime:
    """An age in seconds, or the instant itself; raises ConfigError unless it is in the past."""
    if isinstance(older_than, datetime):
        if older_than.tzinfo is None:
            raise ConfigError(
                f"older_than needs its time zone, got {older_than!r}; use datetime.now(UTC)"
            )
        if older_than >= datetime.now(UTC):
            raise ConfigError(f"older_than is in the future: {older_than.isoformat()}")
        return older_than
    if isinstance(older_than, timedelta):
        older_than = older_than.total_seconds()
    if older_than is None:
        raise ConfigError("older_than is required: how old messages must be, such as 30d")
    age = seconds("older_than", older_than, -math.inf, 100 * YEAR_SECONDS)
    if age <= 0:
        raise ConfigError(
            f"older_than must be more than 0 seconds, such as 30d, got {older_than!r:.60}"
        )
    return age


def kept(ids: list[int]) -> dict[str, Any]:
    """A list of ids in the form stored in the audit."""
    if len(ids) <= KEPT_IDS:
        return {"ids": ids}
    return {"ids_from": ids[0], "ids_to": ids[-1], "ids_count": len(ids)}


# --- The result of a write: counts, skipped messages and why.

SHOWN = 20


class Why(enum.StrEnum):
    """Why a message was skipped: as a word; as a fact of the message, with the id of another one
    and what the database said; and what helps, if anything does."""

    NOT_THERE = "not there", "does not exist"
    NEW = "new", "is new: it waits for its turn already"
    RUNNING = "running", "is running"
    DONE = "done", "is done", "--force (force=True) runs it again"
    UNKNOWN = "unknown status", "has an unknown status"
    GIVEN_UP = "discarded already", "is discarded or cancelled already"
    RAN_LATER = (
        "a later one ran",
        "would run out of order: message {} of its object has run already",
        "--force (force=True) runs it nevertheless, --with-successors (with_successors=True) "
        "runs it and then, in order, the failed and dead messages behind it",
    )
    RUNS_LATER = (
        "a later one runs",
        "would run out of order: message {} of its object runs now",
        "try again later",
    )
    KEY_TAKEN = (
        "its unique key is taken",
        "has a unique key that message {} holds now",
        "--force (force=True) runs it without its key",
    )
    CHANGED = "changed meanwhile", "has changed meanwhile, or a message behind it has", "look again"
    LOCKED = (
        "locked by another transaction",
        "is locked by another transaction",
        "instances recover it when that transaction has ended, or release again",
    )
    UNDATED = (
        "of unknown age",
        "has neither a claimed_at nor a created_at, so its age is unknown",
        "--any-age (any_age=True) gives it back, if no consumer works on it",
    )
    ENDED = "done already", "is done: it is too late to discard it"
    TOO_LATE = "too late", "has ended already: it is too late to cancel it"
    FOREIGN = (
        "flagged by a foreign consumer",
        "was flagged by a consumer without a name, which sees no requests",
        "stop that consumer, give the message back (`msgworker release --nobody --any-age`), then "
        "cancel it",
    )
    NO_REQUESTS = (
        "running, and requests cannot be recorded",
        "is running, and table msgworker_cancel, for requests to end it, is missing",
        "run App.create_schema() or `msgworker init-db`, or see `msgworker ddl --dialect NAME`",
    )
    REQUESTED = (
        "requested already",
        "is running, and a request to cancel it is recorded already",
        "`msgworker explain ID` says whether its instance has seen it",
    )
    REFUSED = "refused by the database", "cannot be changed: {1}"
    NOT_DEAD = "not dead", "is not dead"
    KNOWN = "acknowledged already", "is acknowledged already, or was discarded or cancelled"
    SAME = "as it is already", "is as it would be: there is nothing to change"
    EDITED = (
        "changed since it was seen",
        "has changed since it was seen: it ran, or another operator has changed it",
        "look at it as it is now, then edit it",
    )
    NOT_EDITED = (
        "done, and so not edited",
        "is done",
        "a done message is not edited: send another one, or rerun it with `msgworker rerun "
        "ID --force`",
    )
    AHEAD = (
        "given up, and its object runs",
        "was discarded or cancelled, and a message of its object runs, whose instance may have "
        "read this one ahead as it was before an edit",
        "try again when that one has ended",
    )
    UNSEEN_JOB = (
        "of a job that cannot be seen",
        "is of a job, and this login may not read whether that waits for it",
        "let one purge that may: GRANT SELECT ON msgworker_job",
    )

    fact: str
    advice: str | None

    def __new__(cls, word: str, fact: str, advice: str | None = None) -> Why:
        one = str.__new__(cls, word)
        one._value_, one.fact, one.advice = word, fact, advice
        return one


ADVICE = {why: why.advice for why in Why if why.advice}
"""What helps, by reason."""


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
        return f"message {self.msg_id} {self.why.fact.format(self.other_id, self.error)}"

    def __str__(self) -> str:
        if not self.why.advice:
            return self.fact
        return proposed(f"{self.fact}; {self.why.advice.replace(' ID', f' {self.msg_id}')}")


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

    def skipping(self, why: Why, count: int, first: Iterable[int]) -> Repaired:
        """The same with so many messages more that were skipped; the first of them."""
        return replace(
            self,
            matched=self.matched + count,
            skipped=self.skipped + count,
            why=(*self.why, (why, count)) if count else self.why,
            skips=(*self.skips, *(Skip(one, why) for one in first)),
        )

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
