"""Chains, unique keys, a limit, cancels, a schedule and jobs, as a part of the torture.

`Features` is what the trial does: it sends, cancels and looks from outside.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy.exc import IntegrityError

from msgworker.errors import DatabaseUnavailable, MsgworkerError
from proof.crash.consumer import KEYED, LIMITED, MAX_RUNNING, METERED, PER_SECOND, TICK
from proof.crash.fleet import Trial
from proof.crash.scenarios import Load, life
from proof.history import DONE, FAILED, Cancel, Event, Keyed, Kind, Row
from proof.history import Outcome as Told
from proof.judge import CANCELLED, CHAIN, JOB_OVER, MADE, ON_DEAD, ON_DONE, SENT_BY

KEYS = 6
LOOK_SECONDS = 0.1
CANCEL_SECONDS = 0.3
COMMIT_SECONDS = 2.0  # after the database took its time, a transaction has committed
REASON = "wrong file"


@dataclass
class Features:
    """What is done to a trial, and what it was at the end."""

    trial: Trial
    chance: random.Random
    rows: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._no_cancels = threading.Event()
        self._threads = [
            threading.Thread(target=self._again_and_again, args=facts, daemon=True)
            for facts in (
                (self._look, LOOK_SECONDS, self._over),
                (self._cancel, CANCEL_SECONDS, self._no_cancels),
            )
        ]

    def start(self, *, cancels: bool = True) -> None:
        """Look and cancel from now on."""
        if not cancels:
            self._no_cancels.set()
        for thread in self._threads:
            thread.start()

    def peace(self) -> None:
        """Cancel no more."""
        self._no_cancels.set()

    @staticmethod
    def _again_and_again(act: Callable[[], None], seconds: float, over: threading.Event) -> None:
        while not over.wait(seconds):
            try:
                act()
            except Exception:  # the database may be away: that is under test
                over.wait(seconds)

    # ------------------------------------------------------------ acts

    def send_keyed(self, chance: random.Random) -> None:
        """One message with a key that another may hold. Raises what the producer gets."""
        key = f"k{chance.randrange(KEYS)}"
        does, object_id = life(chance, 0.01), chance.choice((None, f"keyed{chance.randrange(3)}"))
        try:
            msg_id = self.trial.send_keyed(key, object_id, KEYED, does)
        except (IntegrityError, MsgworkerError) as error:
            if not isinstance(error, DatabaseUnavailable):
                self.trial.errors.append(repr(error))
            raise
        self.trial.keyed.append(Keyed(key, msg_id))

    def send_job(self, chance: random.Random, load: Callable[[], list[Load]]) -> None:
        """A job, its messages in one transaction or several, and its seal; now and then its
        producer dies before that. Raises what the producer gets."""
        job = self.trial.app.job("torture", on_complete=JOB_OVER)
        for _ in range(chance.choice((1, 1, 3))):
            with self.trial.sending(job) as add:
                for message in load():
                    add(*message)
        if chance.random() < 0.9:
            job.seal()

    def seal_jobs(self) -> int:
        """Seal those whose producers have ended before that; returns how many are open."""
        ops, open_jobs = self.trial.app.ops, [one for one in self.trial.jobs() if not one.completed]
        for one in open_jobs:
            if not one.sealed:
                with suppress(Exception):  # a connection from before a crash; it is tried again
                    ops.seal_job(one.job_id, actor="torture")
        return len(open_jobs)

    def _look(self) -> None:
        at = time.monotonic()
        unfinished = "(status IN (0, 1) OR (status = -1 AND error_try_times < 3))"
        rows = self.trial.read("unique_key, msg_id", f"unique_key IS NOT NULL AND {unfinished}")
        self.trial.holders.append((at, [(row[0], row[1]) for row in rows]))

    def _cancel(self) -> None:
        """One that waits and one that runs, a slow one if there is any."""
        slow = self.trial.read("msg_id", "status = 1 AND payload LIKE '%\"slow\"%'")
        running = slow or self.trial.read("msg_id", "status = 1")
        for rows in (running, self.trial.read("msg_id", "status = 0")):
            if rows and self.chance.random() < 0.5:
                self._ask(self.chance.choice(rows)[0])

    def _ask(self, msg_id: int) -> None:
        since = time.monotonic()
        cancel = self.trial.app.ops.cancel
        try:
            done = cancel(ids=[msg_id], reason=REASON, actor="torture")
        except Exception:  # the answer was lost: it may be written
            self.trial.cancels.append(Cancel(msg_id, since, time.monotonic(), at_once=False))
            raise
        if done.changed:
            at_once = not done.requested
            self.trial.cancels.append(Cancel(msg_id, since, time.monotonic(), at_once))

    # ------------------------------------------------------------ the end

    def read(self) -> dict[int, Row]:
        """Stop looking; the table as it is in the end."""
        self._over.set()
        self._no_cancels.set()
        for thread in self._threads:
            thread.join(30)
        self.rows = self.trial.rows()
        return self.rows

    def of(self, *topics: str) -> list[int]:
        """The messages of these topics."""
        return [msg_id for msg_id, row in self.rows.items() if row.topic in topics]

    def events(self) -> Iterator[Event]:
        """What no consumer and no producer has written down: inserts by outcomes and by the
        schedule, which are there at the latest when who sent them is known to be done, or when they
        are claimed; and cancels, whose time the row tells."""
        told = self.trial.events()
        done = {e.msg_id: e.at for e in told if e.kind == Kind.SETTLED and e.detail == Told.DONE}
        claimed: dict[int | None, float] = {}
        for event in told:
            if event.kind == Kind.CLAIMED:
                claimed.setdefault(event.msg_id, event.at)
        at_once = {one.msg_id: one for one in self.trial.cancels if one.at_once}
        now = time.monotonic()
        for msg_id, row in self.rows.items():
            facts = (msg_id, row.object_id)
            if row.topic in (*MADE, TICK, JOB_OVER):
                about = row.payload.get("msg_id")
                first = min(done.get(about, now), claimed.get(msg_id, now))
                yield Event(Kind.INSERTED, first, row.topic, *facts)
            if msg_id in at_once and _is_cancelled(row):
                one = at_once[msg_id]
                yield Event(Kind.DISCARDED, one.at, "operator", *facts, since=one.since)
        ended = {i for i, row in self.rows.items() if _is_cancelled(row)} - at_once.keys()
        c = self.trial.app.tables.cols()
        ahead = time.time() - time.monotonic()
        for msg_id, finished_at in self.trial.select(c.msg_id, c.finished_at):
            if msg_id in ended:
                at = finished_at.timestamp() - ahead
                facts = (msg_id, self.rows[msg_id].object_id)
                since = at - COMMIT_SECONDS
                yield Event(Kind.DISCARDED, at + COMMIT_SECONDS, "operator", *facts, since=since)

    def __str__(self) -> str:
        trial, rows = self.trial, self.rows
        waited = sum(one.at_once for one in trial.cancels)
        dead = sum(_is_cancelled(row) for row in rows.values())
        chained = [rows[i] for i in self.of(CHAIN)]
        own = sum(row.status == FAILED and not _is_cancelled(row) for row in chained)
        ended = sum(row.status == DONE for row in chained)
        limited = set(self.of(LIMITED))
        most = max((sum(i in limited for _, i, _ in look) for _, look in trial.observed), default=0)
        held = len(trial.keyed) - len(self.of(KEYED))
        return "\n".join(
            [
                f"chains      {len(self.of(SENT_BY))} sent by handlers, {len(self.of(ON_DONE))} of "
                f"{ended} on_done, {len(self.of(ON_DEAD))} of {own} on_dead",
                f"keys        {len(trial.keyed)} sends, {held} skipped, "
                f"{len(trial.holders)} looks at holders",
                f"limits      {len(limited)} messages, at most {most} at 1 of {MAX_RUNNING}; "
                f"{len(self.of(METERED))} of {PER_SECOND} a second",
                f"cancels     {len(trial.cancels)}, {waited} of waiting ones; {dead} died of them",
                f"ticks       {len(self.of(TICK))}{self._lateness()}",
                f"jobs        {len(self.of(JOB_OVER))} completed, of "
                f"{sum(row.job is not None for row in rows.values())} messages",
            ]
        )

    def _lateness(self) -> str:
        c = self.trial.app.tables.cols()
        late = sorted(
            (sent - tick).total_seconds()
            for sent, tick in self.trial.select(c.created_at, c.scheduled_for)
            if tick is not None
        )
        if not late:
            return ""
        return f", late by {late[len(late) // 2]:.3f} s (median), {late[-1]:.3f} s (most)"


def _is_cancelled(row: Row) -> bool:
    return row.status == FAILED and (row.error or "").startswith(CANCELLED)
