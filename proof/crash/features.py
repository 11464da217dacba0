"""Chains, unique keys, a limit, cancels and a schedule, as a part of the torture.

The handlers are in topics.py. `Features` is what the trial does: it sends, cancels and looks from
outside, and judges in the end by feature_rules.py.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sqlalchemy.exc import IntegrityError

from msgworker.errors import DatabaseUnavailable, MsgworkerError
from proof.crash import feature_rules as rules
from proof.crash.feature_rules import (
    CHAIN,
    KEYED,
    LIMITED,
    MADE,
    MAX_RUNNING,
    MAX_TRIES,
    ON_DEAD,
    ON_DONE,
    SENT_BY,
    TICK,
    Broken,
    Cancel,
    Keyed,
    Line,
)
from proof.crash.fleet import Load, Trial, life
from proof.history import DONE, Event, Kind
from proof.history import Outcome as Told

KEYS = 6
LOOK_SECONDS = 0.1
CANCEL_SECONDS = 0.3
SLOW_SECONDS = 1.5
COMMIT_SECONDS = 2.0
"""After the database took its time, a transaction has committed."""
REASON = "wrong file"


def extend(messages: list[Load], objects: int, chance: random.Random) -> None:
    """A share of the plain and the transactional ones sends; some of a chain, a limit, slow ones.

    Slow ones are plain, as a transaction of that length is the only one on SQLite.
    """
    for _, topic, does in messages:
        if topic in ("plain", "exact", "group") and chance.random() < 0.2:
            does["sends"] = True
    for topic, count in ((CHAIN, 4), (LIMITED, chance.randrange(3))):
        for _ in range(count):
            does = life(chance, 0.004)
            if topic == CHAIN and chance.random() < 0.1:
                does["reject"] = True
            messages.append((f"o{chance.randrange(objects)}", topic, does))
    if chance.random() < 0.1:
        messages.append((None, "plain", {"slow": SLOW_SECONDS, "sends": True}))


@dataclass
class Features:
    """What was done and seen. kinds: of the errors that producers got, for the report."""

    trial: Trial
    chance: random.Random
    sends: list[Keyed] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    holders: list[rules.Holders] = field(default_factory=list)
    at_1: list[tuple[float, int]] = field(default_factory=list)
    asked: list[Cancel] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

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

    def start(self) -> None:
        """Look and cancel from now on."""
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
                self.errors.append(repr(error))
            raise
        self.sends.append(Keyed(key, msg_id))

    def _look(self) -> None:
        at = time.monotonic()
        self.at_1.append(
            (at, self.trial.read("count(*)", f"status = 1 AND topic = '{LIMITED}'")[0][0])
        )
        at = time.monotonic()
        unfinished = f"(status IN (0, 1) OR (status = -1 AND error_try_times < {MAX_TRIES}))"
        rows = self.trial.read("unique_key, msg_id", f"unique_key IS NOT NULL AND {unfinished}")
        self.holders.append((at, [(row[0], row[1]) for row in rows]))

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
            self.asked.append(Cancel(msg_id, since, time.monotonic(), at_once=False))
            raise
        if done.changed:
            self.asked.append(Cancel(msg_id, since, time.monotonic(), at_once=not done.requested))

    # ------------------------------------------------------------ the end

    def read(self) -> list[Line]:
        """Stop looking; the table as it is in the end."""
        self._over.set()
        self._no_cancels.set()
        for thread in self._threads:
            thread.join(30)
        c = self.trial.app.tables.cols()
        self.lines = [
            Line(*row[:6], rules.payload_of(row[6]), *row[7:])
            for row in self.trial.select(
                c.msg_id, c.topic, c.object_id, c.status, c.error_try_times, c.last_error,
                c.payload, c.unique_key, c.scheduled_for,
            )
        ]  # fmt: skip
        return self.lines

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
        at_once = {one.msg_id: one for one in self.asked if one.at_once}
        now = time.monotonic()
        for line in self.lines:
            facts = (line.msg_id, line.object_id)
            if line.topic in MADE or line.topic == TICK:
                first = min(done.get(line.about, now), claimed.get(line.msg_id, now))
                yield Event(Kind.INSERTED, first, line.topic, *facts)
            if line.msg_id in at_once and line.cancelled:
                one = at_once[line.msg_id]
                yield Event(Kind.DISCARDED, one.at, "operator", *facts, since=one.since)
        yield from self._ended_requests({line.msg_id for line in self.lines if line.cancelled})

    def _ended_requests(self, cancelled: set[int]) -> Iterator[Event]:
        c = self.trial.app.tables.cols()
        ahead = time.time() - time.monotonic()
        at_once = {one.msg_id for one in self.asked if one.at_once}
        for msg_id, object_id, finished_at in self.trial.select(
            c.msg_id, c.object_id, c.finished_at
        ):
            if msg_id in cancelled - at_once:
                at = finished_at.timestamp() - ahead
                facts = (msg_id, object_id)
                since = at - COMMIT_SECONDS
                yield Event(Kind.DISCARDED, at + COMMIT_SECONDS, "operator", *facts, since=since)

    def wrong(self) -> list[Broken]:
        """Every broken promise."""
        lines = self.lines
        return [
            *rules.chains(lines),
            *rules.keys(self.sends, self.holders, lines, self.errors),
            *rules.limit(self.at_1),
            *rules.cancels(self.asked, lines),
            *rules.ticks(lines),
        ]

    def count(self, *topics: str) -> int:
        """How many messages of these topics there are."""
        return sum(line.topic in topics for line in self.lines)

    def __str__(self) -> str:
        waited = sum(one.at_once for one in self.asked)
        dead = sum(line.cancelled for line in self.lines)
        own = sum(line.topic == CHAIN and line.dead and not line.cancelled for line in self.lines)
        most = max((count for _, count in self.at_1), default=0)
        held = len(self.sends) - self.count(KEYED)
        ended = sum(line.topic == CHAIN and line.status == DONE for line in self.lines)
        return "\n".join(
            [
                f"chains      {self.count(SENT_BY)} sent by handlers, {self.count(ON_DONE)} of "
                f"{ended} on_done, {self.count(ON_DEAD)} of {own} on_dead",
                f"keys        {len(self.sends)} sends, {held} skipped, "
                f"{len(self.holders)} looks at holders",
                f"limit       {self.count(LIMITED)} messages, at most {most} at 1 of {MAX_RUNNING}",
                f"cancels     {len(self.asked)}, {waited} of waiting ones; {dead} are dead by them",
                f"ticks       {self.count(TICK)}",
            ]
        )
