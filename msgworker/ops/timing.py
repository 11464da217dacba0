"""The time of reads: the database ends what takes longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.dialects import connecting, deadline, is_overtime
from msgworker.errors import TookTooLong


@contextmanager
def timed(conn: Connection, left: float, seconds: float) -> Iterator[None]:
    """The database ends each statement of the block after `left` seconds, of `seconds` in all;
    raises TookTooLong."""
    try:
        with deadline(conn, left):
            yield
    except DBAPIError as error:
        if is_overtime(error):
            raise TookTooLong(seconds) from error
        raise


class Clock:
    """The time of a read of many statements; it runs from the moment it is made. seconds: None =
    without end. enough: after so many it begins no further part, None = it does."""

    def __init__(self, seconds: float | None, enough: float | None = None) -> None:
        self.seconds = seconds
        self.enough = enough
        self._begun = time.monotonic()
        self._until = None if seconds is None else self._begun + seconds

    @property
    def rest(self) -> float | None:
        """What is left of `enough`."""
        return None if self.enough is None else self.enough - (time.monotonic() - self._begun)

    def check(self) -> None:
        """Raise TookTooLong if the time is up."""
        if self.seconds is not None and self._left() <= 0:
            raise TookTooLong(self.seconds)

    @contextmanager
    def reading(self, engine: sa.Engine) -> Iterator[Connection]:
        """A connection whose statements end with the time; raises TookTooLong."""
        self.check()
        with connecting(engine) as conn:
            if self.seconds is None:
                yield conn
                return
            with timed(conn, max(0.001, self._left()), self.seconds):
                yield conn

    def _left(self) -> float:
        assert self._until is not None
        return self._until - time.monotonic()


ENDLESS = Clock(None)
