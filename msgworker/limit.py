"""The limits of a topic over all instances: how many messages may run at once, how many may start
in a time.

Only values and arithmetic. The rate is a bucket of `burst` tokens that fills at the rate; a start
takes one. One number represents it: the instant, on the database's clock, at which the bucket will
be full again. Source: the generic cell rate algorithm, ITU-T I.371.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from msgworker.config import whole
from msgworker.errors import ConfigError

MOST_RUNNING = 10_000
MOST_STARTS = 100_000
"""The most starts in the time of a rate, and the largest bucket."""
SET_BACK_US = 1_000_000
"""A bucket that is emptier than empty by more than this means that the clock was set back."""
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_RATE = re.compile(r"\s*(\d{1,18})\s*/\s*([smh])\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a topic. max_running: None = any number. starts: so many in `seconds`, 0 = at
    any rate. burst: the size of the bucket."""

    max_running: int | None = None
    starts: int = 0
    seconds: int = 1
    burst: int = 1

    @property
    def rate(self) -> str | None:
        """As it is given to a handler: "20/s"."""
        if not self.starts:
            return None
        units = {seconds: unit for unit, seconds in _SECONDS.items()}
        unit = units.get(self.seconds, f"{self.seconds}s")
        return f"{self.starts}/{unit}"

    def __str__(self) -> str:
        parts = [] if self.max_running is None else [f"max_running={self.max_running}"]
        parts += [f"rate={self.rate} burst={self.burst}"] if self.starts else []
        return " ".join(parts) or "no limit"

    # -- the bucket; instants in whole microseconds

    @property
    def _period(self) -> int:
        return self.seconds * 1_000_000

    def _full_at(self, full_at: int, now: int) -> int:
        """The instant as it is to be understood: not in the past, nor later than an empty bucket
        can be, which only a clock that was set back, or an earlier rate, can leave."""
        empty = now + self.burst * self._period // self.starts
        if full_at > empty + SET_BACK_US:
            full_at = now + (self.burst - 1) * self._period // self.starts
        return max(full_at, now)

    def tokens(self, full_at: int, now: int) -> int:
        """How many messages may start now, as far as the rate goes."""
        if not self.starts:
            return MOST_STARTS
        ahead = self._full_at(full_at, now) - now
        return max(0, (self.burst * self._period - ahead * self.starts) // self._period)

    def taken(self, full_at: int, now: int, count: int) -> int:
        """`full_at` after so many starts."""
        if not self.starts:
            return full_at
        # Rounded up, so that the rate is never more than what was asked for.
        took = -(-count * self._period // self.starts)
        return self._full_at(full_at, now) + took

    def next_in(self, full_at: int, now: int) -> float:
        """Seconds until there is a token, 0 = there is one."""
        if self.tokens(full_at, now) > 0:
            return 0.0
        one_at = self._full_at(full_at, now) - (self.burst - 1) * self._period // self.starts
        return max(1, one_at - now) / 1e6


def limit_of(
    whose: str, max_running: object = None, rate: object = None, burst: object = None
) -> Limit | None:
    """The limits as given to a handler, None = none given. whose: for the errors. Raises
    ConfigError."""
    if rate is None and burst is not None:
        raise ConfigError(f"{whose}: burst=... is for rate=...; leave it out, or add a rate")
    if max_running is None and rate is None:
        return None
    made = Limit()
    if max_running is not None:
        made = replace(
            made, max_running=whole(f"max_running of {whose}", max_running, 1, MOST_RUNNING)
        )
    if rate is None:
        return made
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if found is None:
        raise ConfigError(
            f'rate of {whose} must be a text such as "20/s", "100/m" or "5000/h", got {rate!r:.80}'
        )
    starts = whole(f"the starts in the rate of {whose}", int(found[1]), 1, MOST_STARTS)
    size = starts if burst is None else whole(f"burst of {whose}", burst, 1, MOST_STARTS)
    return replace(made, starts=starts, seconds=_SECONDS[found[2]], burst=size)
