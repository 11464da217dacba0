"""Where an instance looks: advice that may be stale, inconsistent or missing.

The flagging statement checks the whole table, so wrong advice costs only time.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from msgworker.errors import ConfigError
from msgworker.table import MessageTable, Slice, Tables


class ScopeMember(Protocol):
    """The place of one running instance in a scope. All methods but `stop` return at once.

    The instance starts and stops it; each thread that writes the lease calls `info`; the fetcher's
    thread calls the others.
    """

    def start(self) -> None:
        """Take part."""

    def leave(self) -> None:
        """Stop looking; release each slice as soon as none of its messages is in flight."""

    def stop(self, seconds: float) -> None:
        """Wait until `leave` has released all slices, at most so many seconds."""

    def slice(self) -> Slice | None:
        """Where to look now; None = nowhere. The returned slice is kept until `looked`."""

    def looked(self, *, complete: bool, rest: float | None = None) -> None:
        """The looks in the slice and their claims are over. complete: nothing there can run, for
        `rest` seconds as far as is known."""

    def reach(self) -> Slice | None:
        """All slices that it may look in, now or in turn; None = not known, perhaps everywhere."""

    def go_round(self) -> None:
        """The table has due messages within `reach`: look in all of it again."""

    @property
    def settled(self) -> bool:
        """Whether it has looked in all of `reach`, and no more is about to be added."""

    def info(self) -> Mapping[str, Any]:
        """Data for operators in the lease of the instance. kind: the scope; flag, or shards (their
        number) and owned (which of them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """What a member knows of its instance. holding: the values of slices with messages in flight.
    wake: wakes the fetcher when there is a slice to look in."""

    tables: Tables
    instance_id: Callable[[], str]
    holding: Callable[[], Collection[Any]]
    wake: Callable[[], None]
    log: logging.LoggerAdapter[logging.Logger]


class Scope(ABC):
    """Where the instances of a worker look; see `msgworker.coordination`.

    role: the column that slices the table, shard or instance_type; None = all of it.
    """

    role: str | None = None

    @abstractmethod
    def join(self, standing: InstanceView) -> ScopeMember | None:
        """The member of one more instance; None = it looks everywhere."""

    def check(self, spec: MessageTable) -> None:
        """Raise ConfigError if it does not fit the table."""
        if self.role is not None and getattr(spec, self.role) is None:
            raise ConfigError(
                f"{self!r} needs a column {self.role} in table {spec.name}: name it, "
                f"MessageTable({self.role}=...)"
            )
