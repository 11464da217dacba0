"""What chains, unique keys, cancels and schedules must leave behind: pure functions over the rows.

What a limit allows and that a cancelled message never starts again are rules of proof/history.py.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from proof.history import DONE, FAILED, NEW, PROCESSING

CHAIN, SENT_BY, ON_DONE, ON_DEAD = "chain", "chain.sent", "chain.done", "chain.dead"
"""Topics: of messages with on_done and on_dead; of what handlers send; of the two about them."""
KEYED, LIMITED, TICK = "keyed", "limited", "tick"
MAX_RUNNING = 2
MAX_TRIES = 3
CANCELLED = "cancelled: "


class Promise(StrEnum):
    """What is judged here."""

    CHAINS = "CHAINS"  # one message sent for each done one that sends; one told of each end
    KEYS = "KEYS"  # one unfinished holder of a key; a send returns the holder and raises nothing
    LIMIT = "LIMIT"  # never more rows of the topic at 1 than max_running
    CANCELS = "CANCELS"  # a cancelled one that waited is dead with the reason, one that ran or done
    TICKS = "TICKS"  # every tick one message


class Broken(NamedTuple):
    """A broken promise, as `history.Violation` prints one."""

    promise: Promise
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.text}"


class Line(NamedTuple):
    """A row of the message table at the end."""

    msg_id: int
    topic: str
    object_id: str | None = None
    status: int = DONE
    tries: int = 0
    error: str | None = None
    payload: Mapping[str, Any] = {}
    key: str | None = None
    tick: datetime | None = None

    @property
    def dead(self) -> bool:
        return self.status == FAILED and self.tries >= MAX_TRIES

    @property
    def cancelled(self) -> bool:
        return self.dead and (self.error or "").startswith(CANCELLED)

    @property
    def unfinished(self) -> bool:
        return self.status in (NEW, PROCESSING) or (self.status == FAILED and not self.dead)

    @property
    def about(self) -> int | None:
        """The message that has sent this one, or that it is about."""
        return self.payload.get("msg_id") if self.topic in MADE else None


MADE = (SENT_BY, ON_DONE, ON_DEAD)


def payload_of(text: str | None) -> dict[str, Any]:
    """The payload of a row; of one that has none, an empty one."""
    return dict(json.loads(text) or {}) if text else {}


def chains(lines: Iterable[Line]) -> list[Broken]:
    """Exactly one message for each outcome that sends one, none else."""
    lines = list(lines)
    made = Counter((line.about, line.topic) for line in lines if line.topic in MADE)
    found = []
    for line in lines:
        wanted = {
            SENT_BY: bool(line.payload.get("sends")) and line.status == DONE,
            ON_DONE: line.topic == CHAIN and line.status == DONE,
            ON_DEAD: line.topic == CHAIN and line.dead and not line.cancelled,
        }
        for topic, one in wanted.items():
            there = made.pop((line.msg_id, topic), 0)
            if there != one:
                text = f"message {line.msg_id} of {line.topic} (status {line.status}, "
                text += f"{line.error!r}) has {there} of {topic}, {int(one)} expected"
                found.append(Broken(Promise.CHAINS, text))
    for (about, topic), count in made.items():
        found.append(Broken(Promise.CHAINS, f"{count} of {topic} about no message {about}"))
    return found


class Keyed(NamedTuple):
    """A committed send with a key, and the id that it returned."""

    key: str
    msg_id: int


Holders = tuple[float, Sequence[tuple[str, int]]]  # at, the unfinished messages with their keys


def keys(
    sends: Iterable[Keyed], seen: Iterable[Holders], lines: Iterable[Line], errors: Iterable[str]
) -> list[Broken]:
    """errors: what a producer got though the database was there."""
    lines = list(lines)
    found = [Broken(Promise.KEYS, f"a producer got {error}") for error in errors]
    end = [(line.key, line.msg_id) for line in lines if line.key and line.unfinished]
    for at, holders in [*seen, (float("inf"), end)]:
        by_key: defaultdict[str, list[int]] = defaultdict(list)
        for key, msg_id in holders:
            by_key[key].append(msg_id)
        for key, ids in by_key.items():
            if len(ids) > 1:
                text = f"messages {sorted(ids)} hold {key!r}, all unfinished, at {at:.10g}"
                found.append(Broken(Promise.KEYS, text))
    key_of = {line.msg_id: line.key for line in lines}
    for key, msg_id in sends:
        if key_of.get(msg_id) != key:
            text = f"a send with {key!r} returned {msg_id}, whose key is {key_of.get(msg_id)!r}"
            found.append(Broken(Promise.KEYS, text))
    return found


def limit(seen: Iterable[tuple[float, int]]) -> list[Broken]:
    """seen: at, how many rows of the topic were at 1."""
    return [
        Broken(Promise.LIMIT, f"{count} at 1 at {at:.10g}, max_running is {MAX_RUNNING}")
        for at, count in seen
        if count > MAX_RUNNING
    ]


class Cancel(NamedTuple):
    """What an operator asked for between `since` and `at`. at_once: the message waited, so it was
    dead by then; else it ran, or the answer was lost."""

    msg_id: int
    since: float
    at: float
    at_once: bool


def cancels(asked: Collection[Cancel], lines: Iterable[Line]) -> list[Broken]:
    """One that ran may also have been done by then, or dead of its own tries: that one needs its
    tries, as the rules of the history say."""
    found = []
    by_id = {line.msg_id: line for line in lines}
    for one in asked:
        line = by_id.get(one.msg_id)
        if line is None:
            found.append(Broken(Promise.CANCELS, f"message {one.msg_id} is gone"))
        elif not (line.cancelled if one.at_once else line.dead or line.status == DONE):
            how = "waited" if one.at_once else "ran"
            text = f"message {one.msg_id} {how} when it was cancelled at {one.at:.10g}, ends with "
            text += f"status {line.status}, {line.tries} tries, {line.error!r}"
            found.append(Broken(Promise.CANCELS, text))
    known = {one.msg_id for one in asked}
    for line in by_id.values():
        if line.cancelled and line.msg_id not in known:
            text = f"message {line.msg_id} is {line.error!r}, and nobody asked for that"
            found.append(Broken(Promise.CANCELS, text))
    return found


def ticks(lines: Iterable[Line]) -> list[Broken]:
    """Every tick of the schedule of a second is one message, in their order."""
    there = [line.tick for line in sorted(lines) if line.topic == TICK and line.tick is not None]
    found = [f"{tick} was sent {n} times" for tick, n in Counter(there).items() if n > 1]
    if there != sorted(there):
        found.append("ticks are out of order")
    seconds = round((max(there) - min(there)).total_seconds()) if there else 0
    every = [min(there) + timedelta(seconds=n) for n in range(seconds)]
    found += [f"{tick} is missing" for tick in every if tick not in there]
    return [Broken(Promise.TICKS, text) for text in (found if there else ["no tick"])]
