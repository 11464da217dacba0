"""What goes wrong with reads of the database: the answer, and a line on the Overview."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from msgworker import dialects
from msgworker.counted import plural
from msgworker.dialects import Left
from msgworker.errors import ConfigError, DatabaseUnavailable, SchemaError, TookTooLong
from msgworker.web import shown

AFTER = {
    Left.PART: (
        "what was asked for had begun and was ended on its way: the audit says how much is done"
    ),
    Left.UNKNOWN: (
        "the COMMIT of a write had been sent, and whether that is done is not known: look before "
        "you ask again, unless that is with the same Idempotency-Key, with which it is done once"
    ),
}
"""What an answer adds where something may be left of a write: then the client is not told to repeat
it."""
KEPT_SECONDS = 600.0
MOST = 1000


class Busy(HTTPException):
    """Too many reads wait for the database, or one took too long."""

    def __init__(self, text: str) -> None:
        super().__init__(503, text, {"Retry-After": "5"})


class Hardships:
    """The last failures of reads. without: a text without secrets. seconds: of a read."""

    def __init__(self, engine: Engine, without: Callable[[str], str], seconds: float) -> None:
        self._engine = engine
        self._without = without
        self._seconds = seconds
        self._seen: deque[tuple[float, str]] = deque(maxlen=MOST)

    def answer(self, error: Exception, left: Left = Left.NOTHING) -> HTTPException | None:
        """What a request gets: 503 if the database cannot be used or is too slow, 400 for a
        ConfigError, which is about a value that was given; None = it is a fault of ours. left: of
        the attempt that has failed."""
        if isinstance(error, ConfigError):
            return HTTPException(400, self._without(str(error)))
        found = self._trouble(error)
        if found is not None:
            self._seen.append((time.monotonic(), found.detail))
        if found is not None and left in AFTER:
            return HTTPException(503, f"{found.detail}; {AFTER[left]}")
        return found

    def _trouble(self, error: Exception) -> HTTPException | None:
        if isinstance(error, TimeoutError | TookTooLong):
            return Busy(f"the database did not answer within {self._seconds:g} s")
        if isinstance(error, DatabaseUnavailable | SchemaError):
            return HTTPException(503, self._without(str(error)))
        if not isinstance(error, DBAPIError | PoolTimeout):
            return None
        if dialects.is_overtime(error):
            return Busy(f"the database did not answer within {self._seconds:g} s")
        if dialects.trouble(error) is dialects.Trouble.AGAIN:
            return Busy("the database is busy; try again")
        return HTTPException(503, self._without(str(dialects.refusal(self._engine, error))))

    @property
    def told(self) -> str:
        """In a line, "" = there were none."""
        now = time.monotonic()
        recent = [one for one in self._seen if now - one[0] < KEPT_SECONDS]
        if not recent:
            return ""
        at, text = recent[-1]
        reads = plural(len(recent), "read")
        return f"{reads} of this dashboard failed in 10 minutes, the last {_ago(now - at)}: {text}"


def _ago(seconds: float) -> str:
    return "just now" if seconds < 15 else f"{shown.age(seconds)} ago"
