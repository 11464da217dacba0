"""The record of a run: what happened (events), and the table at its end. proof/judge.py judges it.

The one rule to know: a recorder sees a statement only from outside, so what changed the table is an
interval. `since` was read before the deciding statement was sent, `at` after its commit was known;
the commit is somewhere between. Where steps are atomic (simulation) `since` is left out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

NEW, PROCESSING, DONE, FAILED = 0, 1, 2, -1


class Kind(StrEnum):
    """What happened."""

    INSERTED = "inserted"  # a producer committed: visible from `at`
    CLAIMED = "claimed"  # a claim or a settle put the row to 1 for `instance`
    STARTED = "started"  # recorded after CLAIMED, before the handler is called
    ENDED = "ended"  # the handler returned or raised; recorded before the settle is sent
    SETTLED = "settled"  # detail: an Outcome
    RECOVERED = "recovered"  # given back by `instance`; detail: the dead id, or "foreign"
    RERUN = "rerun"
    DISCARDED = "discarded"
    EFFECT = "effect"  # a committed effect, one event per row found in the effects table
    LEASE_LOST = "lease_lost"  # the lease of `instance` was taken over; before its rows are
    KILLED = "killed"  # `instance` died
    FOREIGN_CLAIMED = "foreign_claimed"
    FOREIGN_DONE = "foreign_done"  # detail: None or "failed"


class Outcome(StrEnum):
    """What a settle wrote. LOST: it found 0 rows and wrote nothing. LATER: the handler asked to be
    called again later, which uses no try up. CANCELLED: dead, because an operator asked for it."""

    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    LATER = "later"
    CANCELLED = "cancelled"
    RELEASED = "released"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history. Times are seconds of one clock that all recorders share.

    `attempt` is error_try_times + 1 as the claim saw it. `since` (default: `at`) is the time before
    the statement that decided: for CLAIMED when the head was looked for, or, where a settle moved
    the flag, when the run was read; for all others when the transaction was sent.
    """

    kind: Kind
    at: float
    instance: str
    msg_id: int | None = None
    object_id: str | None = None
    attempt: int | None = None
    detail: str | None = None
    since: float | None = None

    @property
    def sent_at(self) -> float:
        return self.at if self.since is None else self.since

    def __str__(self) -> str:
        when = f"{self.at:.10g}" if self.since is None else f"{self.since:.10g}..{self.at:.10g}"
        what = "" if self.msg_id is None else f" message {self.msg_id}"
        extra = "" if self.attempt is None else f" try {self.attempt}"
        return f"{when} {self.instance} {self.kind}{what}{extra} {self.detail or ''}".rstrip()


class Row(NamedTuple):
    """A message as the final table shows it. tick: of the schedule `object_id` that sent it."""

    object_id: str | None
    status: int
    error_try_times: int = 0
    claimed_by: str | None = None
    topic: str = ""
    error: str | None = None
    payload: Mapping[str, Any] = {}
    key: str | None = None
    tick: datetime | None = None
    job: int | None = None


class JobRow(NamedTuple):
    """A job as the final table shows it. report: the message that was sent at its end."""

    job_id: int
    sealed: bool
    completed: bool
    report: int | None = None
    done: int | None = None
    dead: int | None = None


class Keyed(NamedTuple):
    """A committed send with a unique key, and the id that it returned. at: of an answer that was
    exact: the message that it names held the key then."""

    key: str
    msg_id: int
    at: float | None = None


class Cancel(NamedTuple):
    """What an operator asked for between `since` and `at`. at_once: the message waited, so it was
    dead by then; else it ran, or the answer was lost."""

    msg_id: int
    since: float
    at: float
    at_once: bool


Outage = tuple[float, float]
"""From when to when the database could not be written; inf as long as it lasts."""
Snapshot = tuple[float, Sequence[tuple[str | None, int, int]]]
"""When, and (object_id, msg_id, status) of the rows of one SELECT."""
Holders = tuple[float, Sequence[tuple[str, int]]]
"""When, and the unfinished messages with their keys."""


@dataclass(frozen=True, slots=True)
class Final:
    """The table at the end, and what was seen from outside on the way: looks at the rows and at the
    holders of keys, answers to sends with a key, errors that a producer got though the database was
    there, what an operator cancelled (None: it is not known), and the jobs."""

    rows: Mapping[int, Row]
    observed: Sequence[Snapshot] = ()
    holders: Sequence[Holders] = ()
    sends: Sequence[Keyed] = ()
    errors: Sequence[str] = ()
    cancels: Collection[Cancel] | None = None
    jobs: Sequence[JobRow] = ()


# --- lines and files ---------------------------------------------------------------------------


def to_line(event: Event) -> str:
    """The event as one JSON line, without its newline; empty fields are left out."""
    facts = {f.name: getattr(event, f.name) for f in fields(event)}
    return json.dumps({k: v for k, v in facts.items() if v is not None}, separators=(",", ":"))


def from_line(line: str) -> Event:
    """The event of one JSON line. In front of it may stand the beginning of another, of a process
    that was killed while it wrote: that is left out. Raises ValueError for anything else."""
    try:
        facts = json.loads(line[line.rindex('{"kind"') :])
        return Event(**{**facts, "kind": Kind(facts["kind"])})
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a history event ({error}): {line[:200]!r}") from error


class Recorder:
    """Appends the events of one instance to a file that others may append to as well.

    One os.write on O_APPEND per event: threads and processes need no lock, and a kill loses an
    event or, where a page of the file ends, leaves its beginning. Times are CLOCK_MONOTONIC, shared
    by all processes of a machine. Take `since = recorder.now()` before a statement is sent and hand
    it to the event after it.
    """

    def __init__(self, path: str | os.PathLike[str], instance: str) -> None:
        self.instance = instance
        self.now = time.monotonic
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)

    def close(self) -> None:
        os.close(self._file)

    def record(
        self,
        kind: Kind,
        msg_id: int | None = None,
        object_id: str | None = None,
        *,
        instance: str | None = None,
        attempt: int | None = None,
        detail: str | None = None,
        since: float | None = None,
    ) -> None:
        """Write one event, stamped now. Raises OSError when the file did not take all of it."""
        who = instance or self.instance
        event = Event(kind, self.now(), who, msg_id, object_id, attempt, detail, since)
        line = f"{to_line(event)}\n".encode()
        if os.write(self._file, line) != len(line):
            raise OSError(f"history file took only a part of {line!r}")
