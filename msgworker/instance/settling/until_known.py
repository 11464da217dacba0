"""Send a transaction until its result is known.

A connection that is lost at COMMIT leaves the result unknown: the transaction may be committed.
Sending it again could do it twice, and continuing could lose it; so the database is read first.

    send ──answered──► known                     look ──found──► known
      │ rolled back: pause, send                   │ not committed: send
      │ unknown: pause, look                       │ no answer: pause, look
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol, TypeVar

from msgworker.db import Trouble, trouble
from msgworker.instance.role import LONGEST_PAUSE_SECONDS, outage_pause

T = TypeVar("T")


class Fate(Enum):
    """What an error means for the transaction. RAISE: retrying is useless. AGAIN: the database
    rolled it back. UNKNOWN: it may be committed."""

    RAISE = auto()
    AGAIN = auto()
    UNKNOWN = auto()


class Pauses(Protocol):
    """The pauses after failures; for example an `Outage`."""

    def failed(self, error: BaseException) -> float:
        """Record a failure; the seconds to wait."""

    def over(self) -> None:
        """Record a success."""


class Failures:
    """The pauses of an outage that is not logged, each of `longest` seconds at most; how many there
    were, and the last one."""

    def __init__(self, longest: float = LONGEST_PAUSE_SECONDS) -> None:
        self._longest = longest
        self.count = 0
        self.last: BaseException | None = None

    def failed(self, error: BaseException) -> float:
        self.count += 1
        self.last = error
        return outage_pause(self.count, self._longest)

    def over(self) -> None:
        self.count = 0


def by_trouble(error: BaseException, looking: bool) -> Fate:
    """The default judgement: a deadlock was rolled back, after a lost connection it is unknown."""
    kind = trouble(error)
    if kind is Trouble.LOST:
        return Fate.UNKNOWN
    return Fate.AGAIN if kind is Trouble.AGAIN else Fate.RAISE


def repeatable(error: BaseException, looking: bool) -> Fate:
    """The judgement for repeatable work, such as a read: no failure leaves a doubt."""
    fate = by_trouble(error, looking)
    return Fate.AGAIN if fate is Fate.UNKNOWN else fate


def nothing() -> None:
    """The `look` of repeatable work."""


def until_known(
    send: Callable[[], T],
    look: Callable[[], T | None],
    may_go_on: Callable[[], bool],
    outage: Pauses,
    *,
    judge: Callable[[BaseException, bool], Fate] = by_trouble,
    before_again: Callable[[], T | None] = lambda: None,
) -> T | None:
    """Returns the result of `send` or `look`, or None if it may not continue: then it is unknown.

    look: reads the result of the transaction; None = it was not committed. may_go_on: called after
    every failure, before the pause. judge: gets an error, and whether `look` raised it; once in
    doubt, only a look ends the doubt. before_again: called before it is sent again; its
    result, if not None, ends the loop.

    Raises errors that `judge` maps to RAISE.
    """
    in_doubt = False
    while True:
        try:
            known = look() if in_doubt else send()
        except Exception as error:
            fate = judge(error, in_doubt)
            if fate is Fate.RAISE:
                raise
            pause = outage.failed(error)
            in_doubt = in_doubt or fate is Fate.UNKNOWN
            if not may_go_on():
                return None
            time.sleep(pause)
            if in_doubt:
                continue
        else:
            if known is not None:
                outage.over()
                return known
            in_doubt = False
        end = before_again()
        if end is not None:
            return end
