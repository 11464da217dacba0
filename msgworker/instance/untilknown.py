"""Send until it is known what became of it.

A connection that is lost at COMMIT leaves the outcome unknown: what was sent may be committed. To
send it again could do it twice, to go on could leave it undone; so the database is asked first.

    send ──answered──► known                     look ──found──► known
      │ rolled back: pause, send                   │ not committed: send
      │ unknown: pause, look                       │ no answer: pause, look
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol, TypeVar

from msgworker.dialects import Trouble, trouble
from msgworker.instance.role import outage_pause

T = TypeVar("T")


class Fate(Enum):
    """What an error says of what was sent. RAISE: no use to go on. AGAIN: the database rolled it
    back. UNKNOWN: it may be committed."""

    RAISE = auto()
    AGAIN = auto()
    UNKNOWN = auto()


class Pauses(Protocol):
    """How long to wait after a failure; an `Outage`, say."""

    def failed(self, error: BaseException) -> float:
        """Note it; the seconds to wait."""

    def over(self) -> None:
        """Note that it works."""


class Failures:
    """The pauses of an outage that is not logged; how many there were, and the last one."""

    def __init__(self) -> None:
        self.count = 0
        self.last: BaseException | None = None

    def failed(self, error: BaseException) -> float:
        self.count += 1
        self.last = error
        return outage_pause(self.count)

    def over(self) -> None:
        self.count = 0


def by_trouble(error: BaseException, looking: bool) -> Fate:
    """The usual judgement: a deadlock was rolled back, a lost connection tells nothing."""
    kind = trouble(error)
    if kind is Trouble.LOST:
        return Fate.UNKNOWN
    return Fate.AGAIN if kind is Trouble.AGAIN else Fate.RAISE


def repeatable(error: BaseException, looking: bool) -> Fate:
    """The judgement for what may be done twice, a read say: no failure of it leaves a doubt."""
    fate = by_trouble(error, looking)
    return Fate.AGAIN if fate is Fate.UNKNOWN else fate


def nothing() -> None:
    """A look for what is repeatable."""


def until_known(
    send: Callable[[], T],
    look: Callable[[], T | None],
    may_go_on: Callable[[], bool],
    outage: Pauses,
    *,
    judge: Callable[[BaseException, bool], Fate] = by_trouble,
    before_again: Callable[[], T | None] = lambda: None,
) -> T | None:
    """Returns what `send` or `look` says, or None when it may not go on: then it stays unknown.

    look: what became of what was sent; None = it was not committed. may_go_on: asked after every
    failure, before the pause. judge: what an error says, and whether `look` raised it; once in
    doubt, only a look ends the doubt. before_again: called before it is sent again; what it
    returns, if not None, is the end.

    Raises what `judge` has no use to go on for.
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
