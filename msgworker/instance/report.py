"""The report of a drain: what it did and which messages are left."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from msgworker.counted import plural
from msgworker.db import Trouble, outage_pause, trouble
from msgworker.errors import ExitCode
from msgworker.instance.instance import Instance
from msgworker.logs import Said
from msgworker.queries.explain import Waits
from msgworker.queries.remaining import Left, left
from msgworker.store.pauses import asking_jobs
from msgworker.table import Slice

WORDS = {
    Waits.RETRY: "waiting for a retry",
    Waits.LATER: "due later",
    Waits.ELSEWHERE: "held elsewhere",
    Waits.SILENT: "held by a silent instance",
    Waits.NOBODY: "held by nobody",
    Waits.PAUSED: "paused",
    Waits.LIMITED: "topic limited",
    Waits.NO_HANDLER: "no handler",
    Waits.OTHER_TOPICS: "other topics",
    Waits.OTHER_SLICES: "other slices",
    Waits.OTHER_JOBS: "behind other jobs",
    Waits.DEAD: "behind a dead one",
    Waits.DUE: "due",
}
STUCK = (Waits.NOBODY, Waits.NO_HANDLER, Waits.DEAD)
"""Messages left that no instance will handle: the exit code is 1."""
AGAIN = (Waits.RETRY, Waits.SILENT, Waits.LIMITED, Waits.OTHER_JOBS)
"""Messages left that wait for a while: the exit code is 6."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a drain.

    done: messages done. failed: messages that became dead. retried: failed tries that will be tried
    again. released: messages released at a stop before they started. left: unfinished messages in
    the table, or of the job. seconds: wall time.
    skipped: another drain was running, nothing was done. database_lost: it ended because the
    database could not be reached.
    waiting: how many of `left` wait for a retry or for a later instant. left_by: counts of `left`
    by reason: "retry", "later" (an instant), "elsewhere" (claimed by another live instance),
    "silent" (by one that misses its heartbeat, or stopped before its handler ended), "nobody"
    (flagged without an owner), "paused", "limited" (by max_running or rate), "no handler", "other
    topics" (with `topics`), "other slices" (with a scope), "other jobs" (of a drain of a job:
    behind a message that is not of it, and that others may handle), "dead" (if dead ones block),
    "due". A message behind the head of its object has the reason of the head. The sum is less than
    `left` if only a part of very many messages was read.
    next_seconds: seconds to the first retry, else to the first other instant; None if nothing
    waits.
    lease_seconds: seconds until the leases of all other instances that hold messages of `left` have
    ended; messages of those that are dead are then recovered. None if no other holds any.
    refused: how many messages the database refused to flag; they, and those behind them, are
    left as "due".
    stopped: it ended by its time limit or a stop, not because nothing was due.
    undone: how many messages that it may handle were due when it ended and could not be claimed;
    later ones are in `left` only.
    dead_awaited: of a drain of a job, the dead messages that it waits for (on_dead="wait").
    """

    done: int = 0
    failed: int = 0
    retried: int = 0
    released: int = 0
    left: int = 0
    seconds: float = 0.0
    skipped: bool = False
    database_lost: bool = False
    waiting: int = 0
    left_by: dict[str, int] = field(default_factory=dict, hash=False)
    next_seconds: float | None = None
    stopped: bool = False
    refused: int = 0
    lease_seconds: float | None = None
    undone: int = 0
    dead_awaited: int = 0

    @property
    def exit_code(self) -> int:
        """3 database lost. 1 some became dead or were refused, or messages are left that no
        instance will handle: "nobody", "no handler", "dead", what is `undone`, `dead_awaited`, and
        "due" if the drain was stopped. 6 messages wait for their retry, for a limit of their topic,
        for messages of other jobs, or for the lease of a silent instance: run again. 0 otherwise;
        "later", "elsewhere", "paused", "other topics" or "other slices" may be left."""
        if self.database_lost:
            return ExitCode.UNREACHABLE
        stuck = any(self.left_by.get(waits) for waits in STUCK)
        if self.failed or self.refused or self.undone or self.dead_awaited or stuck:
            return ExitCode.REFUSED
        if self.stopped and self.left_by.get(Waits.DUE):
            return ExitCode.REFUSED
        again = any(self.left_by.get(waits) for waits in AGAIN)
        return ExitCode.RETRIES if again else ExitCode.OK

    def __str__(self) -> str:
        if self.skipped:
            return "skipped: another drain is running"
        text = (
            f"done={self.done} failed={self.failed} retried={self.retried} "
            f"released={self.released} left={self.left}{self._why}"
            f"{f' refused={self.refused}' if self.refused else ''} in {self.seconds:.1f}s"
        )
        return f"{text} (database lost)" if self.database_lost else text

    @property
    def _why(self) -> str:
        parts = [self._part(Waits(name), count) for name, count in self.left_by.items()]
        parts += [f"its job waits for dead ones: {self.dead_awaited}"] if self.dead_awaited else []
        some = "at least " if sum(self.left_by.values()) < self.left else ""
        return f" ({some}{'; '.join(parts)})" if parts else ""

    def _part(self, waits: Waits, count: int) -> str:
        text = f"{WORDS[waits]}: {count}"
        first = Waits.RETRY if self.left_by.get(Waits.RETRY) else Waits.LATER
        if waits is first and self.next_seconds is not None:
            text += f", next in {self.next_seconds:.0f} s"
        last = Waits.SILENT if self.left_by.get(Waits.SILENT) else Waits.ELSEWHERE
        if waits is last and self.lease_seconds is not None:
            text += f", recovered after {self.lease_seconds:.0f} s if that one is gone"
        return text

    def leaving(self, found: Left) -> Report:
        """The same with the messages left."""
        return replace(
            self,
            left=found.total,
            waiting=found.by.get(Waits.RETRY, 0) + found.by.get(Waits.LATER, 0),
            left_by={str(waits): count for waits, count in found.by.items()},
            next_seconds=found.next_seconds,
            lease_seconds=found.lease_seconds,
            # Otherwise they were fixed or removed since the database refused them.
            refused=self.refused if found.by.get(Waits.DUE) else 0,
            undone=min(self.undone, found.by.get(Waits.DUE, 0)),
            dead_awaited=max(1, found.dead_awaited.count) if found.dead_awaited else 0,
        )


def report_of(
    instance: Instance,
    begun: float,
    *,
    lost: bool = False,
    outage_limit: float = 0.0,
    counts_left: bool = True,
    within: Slice | None = None,
) -> Report:
    """The counts since `begun` (monotonic), and the messages left. lost: the database is lost; it
    also counts as lost if it cannot be reached now for `outage_limit` seconds. within: the slice
    that the instance claims from; None = all."""
    shared, exhausted = instance.shared, instance.fetcher.exhausted
    found = None if lost else Left()
    if counts_left and not lost:
        found = _left_within(instance, within, outage_limit)
    tally = instance.tally
    report = Report(
        done=tally.done,
        failed=tally.dead,
        retried=tally.retried,
        released=tally.released,
        seconds=time.monotonic() - begun,
        database_lost=found is None,
        stopped=not exhausted,
        refused=len(instance.claimer.rejected_rows),
        undone=instance.fetcher.drain_end.undone if exhausted else 0,
    )
    if found is None:
        return report
    report = report.leaving(found)
    for line in complaints(report, found):
        shared.log.warning(line, extra={"event": Said.DRAIN_LEFT})
    return report


def _left_within(instance: Instance, within: Slice | None, seconds: float) -> Left | None:
    """The messages left; None if the database stays unreachable for so many seconds."""
    until = time.monotonic() + seconds
    for attempt in itertools.count(1):
        try:
            return _left(instance, within)
        except Exception as error:
            kind, over = trouble(error), time.monotonic() >= until
            if kind is not Trouble.LOST and (kind is not Trouble.AGAIN or over):
                raise
        if time.monotonic() >= until:
            return None
        time.sleep(outage_pause(attempt))
    raise AssertionError("unreachable")


def _left(instance: Instance, within: Slice | None) -> Left:
    setup, shared = instance.setup, instance.shared
    asked = setup.asked(shared.identity.ids, within)
    with shared.connector.once() as link, link.statement() as conn:
        return left(conn, asking_jobs(setup.tables, shared.controls.paused), asked)


def complaints(report: Report, found: Left) -> Iterator[str]:
    """One line for each reason of messages left that changes the exit code; of a job for each,
    and for the dead ones that it waits for."""
    for waits, count in found.by.items():
        say = _SAYS.get(waits) or (None if found.job is None else _OF_A_JOB.get(waits))
        if waits is Waits.DUE and not report.stopped:
            say = _UNDONE if report.undone else None
        if say is None or waits not in found.examples:
            continue
        one = found.examples[waits]
        retry = waits is Waits.RETRY
        when = round(found.next_seconds or 0.0) if retry else math.ceil(found.lease_seconds or 0.0)
        text = say.format(id=one.msg_id, why=one.text, when=when)
        if waits is Waits.NOBODY and one.claimed_by is not None:
            text += f"; the next drain does, or `msgworker release {one.claimed_by}`"
        if one.beside:
            text += f"; {one.beside}"
        yield f"{plural(count, 'message')} left {text}"
    yield from found.job_waits


_SAYS = {
    Waits.RETRY: "waiting for a retry, such as message {id}, the first in {when} s: run again then",
    Waits.LIMITED: (
        "of a limited topic, message {id} first: {why}; run again, or see `msgworker limits`"
    ),
    Waits.OTHER_JOBS: (
        "behind messages that are not of the job, message {id} first: {why}; run again when that "
        "one has ended"
    ),
    Waits.SILENT: (
        "held by an instance that is silent or has stopped, such as message {id}: {why}; run again "
        "then, or with --linger {when}"
    ),
    Waits.NOBODY: (
        "that no instance handles: message {id} (see `msgworker explain {id}`), or the one before "
        "them: {why}"
    ),
    Waits.NO_HANDLER: (
        "that no instance handles, such as message {id}: {why}; register one, or name the topics "
        "to drain"
    ),
    Waits.DEAD: (
        "dead or behind a dead one, such as message {id}: {why}, and blocks its object; `msgworker "
        "rerun {id}` or `msgworker discard {id} --reason ...`"
    ),
    Waits.DUE: (
        "though due, message {id} first: the drain was stopped, or its time was over; run again"
    ),
}
_OF_A_JOB = {
    Waits.LATER: "due later, such as message {id}: {why}; run again then",
    Waits.ELSEWHERE: "held elsewhere, such as message {id}: {why}; run again when it has ended",
    Waits.PAUSED: "paused, such as message {id}: {why}; resume that, and run again",
    Waits.OTHER_TOPICS: "of other topics, such as message {id}: {why}; name its topic, too",
}
_UNDONE = (
    "though due, message {id} first: it could not be claimed, or its outcome not be written; see "
    "the warnings, `msgworker explain {id}` and `msgworker doctor`"
)
