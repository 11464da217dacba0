"""What can be started and stopped: the worker of one database, or those of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Self, TypeVar

GRACE = 30.0
"""Seconds that running handlers may take at a stop."""

R = TypeVar("R")


class Working(ABC, Generic[R]):
    """`run` until stopped, `drain` until empty, or `start` and `stop`. As a context manager it
    stops at the end of the block. R: what a drain returns."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start and return at once; `stop` ends it."""

    @abstractmethod
    def stop(self, grace: float = GRACE) -> bool:
        """Stop in order; True if every handler ended within `grace` seconds."""

    @abstractmethod
    def wake(self) -> None:
        """Look for work now."""

    @abstractmethod
    def run(
        self, *, signals: bool = False, grace: float = GRACE, time_limit: float | None = None
    ) -> None:
        """Work until `stop` is called, until a signal if `signals`, or until `time_limit`."""

    @abstractmethod
    def drain(
        self,
        *,
        time_limit: float | None = None,
        linger: float = 5.0,
        retry_linger: float | None = None,
        grace: float = GRACE,
        signals: bool = False,
        outage_limit: float = 60.0,
    ) -> R:
        """Work until nothing is due now or within `linger` seconds, or until `time_limit`."""
