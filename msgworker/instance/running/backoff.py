"""The back-off before the next try."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgworker.config import BACKOFF_SECONDS

if TYPE_CHECKING:  # what only some handlers use is imported for them alone
    from tenacity.wait import wait_base

BACKOFF_FACTOR = 5
LONGEST_BACKOFF_SECONDS = 480.0
"""Before the jitter, which makes it 600 s at most."""
JITTER = 0.25
MAX_BACKOFF_SECONDS = 30 * 86_400.0
"""The longest back-off of a user's strategy."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The default back-off: `first` seconds after the first failed try (0 = at once), five times as
    long after each further one, plus up to a quarter at random, 600 s at most."""

    first: float

    def __call__(self, attempt: int) -> float:
        """The seconds after the attempt-th failed try (from 1 on)."""
        plain = self.first * float(BACKOFF_FACTOR) ** min(attempt - 1, 100)
        return min(plain, LONGEST_BACKOFF_SECONDS) * random.uniform(1, 1 + JITTER)


DEFAULT_BACKOFF = Backoff(BACKOFF_SECONDS)


def pause_after(wait: wait_base, attempt: int, error: BaseException) -> float:
    """The seconds that a tenacity wait strategy gives after the attempt-th failure (from 1 on)."""
    from tenacity import RetryCallState

    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = attempt
    state.set_exception((type(error), error, error.__traceback__))
    return max(0.0, float(wait(state)))
