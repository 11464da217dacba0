"""Messages that the database refuses to flag: a trigger, a CHECK or a constraint forbids it.

Such a row is the head of its object and can neither run nor become dead, since it cannot be
changed. So it is skipped, with its object, and tried again separately, at growing intervals: it
would make a whole batch fail each time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgworker.store.claiming.candidates import Candidate

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
SUSPECT_AFTER = 4
"""A candidate that was lost this often is tried separately, to get the database's error."""
ALONE_AT_ONCE = 8
FORGET_LOSSES_SECONDS = 60.0
FORGET_SECONDS = 60.0
TELL_SECONDS = 10.0
MOST = 10_000
SHOWN = 20
SHOWN_LENGTH = 200


@dataclass(slots=True)
class Refusal:
    """same: the key of the skipped object, as in a candidate. reason: the database's error.
    until: when it is tried again, by the monotonic clock."""

    same: Any
    reason: str
    pause: float
    until: float


class Refusals:
    """The refused messages, as remembered by the claim loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[int, Refusal] = {}
        self._losses: dict[int, int] = {}
        self._losses_since = clock()
        self._untold: dict[int, str] = {}
        self._told_at = -TELL_SECONDS

    def __len__(self) -> int:
        return len(self._found)

    def reasons(self) -> dict[int, str]:
        """The database's errors by msg_id, of the lowest few, for operators."""
        found = sorted((msg_id, one.reason) for msg_id, one in self._found.copy().items())
        return {msg_id: reason[:SHOWN_LENGTH] for msg_id, reason in found[:SHOWN]}

    def waiting(self) -> tuple[set[Any], set[int]]:
        """The objects and messages to skip now."""
        now = self._clock()
        for msg_id, one in list(self._found.items()):
            if now > one.until + FORGET_SECONDS:  # not offered again: perhaps fixed
                del self._found[msg_id]
        kept = {msg_id: one for msg_id, one in self._found.items() if now < one.until}
        return {one.same for one in kept.values() if one.same is not None}, set(kept)

    def suspects(self, candidate: Candidate) -> bool:
        """Whether it was refused before, or lost repeatedly."""
        i = candidate.msg_id
        return i in self._found or self._losses.get(i, 0) >= SUSPECT_AFTER

    def sorted_out(self, candidates: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """Candidates to try together, and a few to try separately."""
        if not (self._found or self._losses):
            return candidates, []
        alone = [c for c in candidates if self.suspects(c)]
        if not alone:
            return candidates, []
        chosen = {c.msg_id for c in alone[:ALONE_AT_ONCE]}
        together = [c for c in candidates if c.msg_id not in chosen and c.msg_id not in self._found]
        return together, alone[:ALONE_AT_ONCE]

    def lost(self, candidates: Sequence[Candidate], *, alone: bool = False) -> None:
        """These could not be flagged; most likely another instance was faster, unless we are
        alone."""
        now = self._clock()
        if now - self._losses_since > FORGET_LOSSES_SECONDS:
            self._losses.clear()
            self._losses_since = now
        for one in candidates:
            if one.msg_id not in self._found:
                self._losses[one.msg_id] = self._losses.get(one.msg_id, 0) + (2 if alone else 1)

    def heard(self, candidate: Candidate, reason: str | None) -> None:
        """It was tried separately. reason: why the database refuses it, logged the first time; None
        if it does not."""
        known = self._found.pop(candidate.msg_id, None)
        self._losses.pop(candidate.msg_id, None)
        if reason is None:
            return
        pause = FIRST_PAUSE_SECONDS if known is None else 2 * known.pause
        pause = min(pause, LONGEST_PAUSE_SECONDS)
        until = self._clock() + pause
        self._found[candidate.msg_id] = Refusal(candidate.same, reason, pause, until)
        if len(self._found) > MOST:
            self._found.pop(next(iter(self._found)))
        if known is None:
            self._untold[candidate.msg_id] = reason

    def tell(self, log: logging.LoggerAdapter[logging.Logger]) -> None:
        """Log new refusals, at a limited rate."""
        if not self._untold or self._clock() - self._told_at < TELL_SECONDS:
            return
        self._told_at = self._clock()
        by_reason: dict[str, list[int]] = {}
        for msg_id, reason in self._untold.items():
            by_reason.setdefault(reason, []).append(msg_id)
        self._untold.clear()
        for reason, ids in by_reason.items():
            shown = ", ".join(map(str, ids[:10])) + (", ..." if len(ids) > 10 else "")
            what = f"message {shown}" if len(ids) == 1 else f"{len(ids)} messages ({shown})"
            text = "the database refuses to flag %s; skipped, and tried again at growing intervals"
            log.warning(f"{text}: %s", what, reason)
