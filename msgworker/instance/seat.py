"""Where an instance looks: advice that may be stale, torn or absent.

What is found there is flagged by the law of the whole table, so wrong advice costs time and nothing
else.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from msgworker.errors import ConfigError
from msgworker.table import MessageTable, Slice, Tables


class Seat(Protocol):
    """The place of one running instance in a scope. All methods return at once."""

    def start(self) -> None:
        """Take part."""

    def leave(self) -> None:
        """Look nowhere any more; give up what nothing is in hand of, as soon as that is so."""

    def stop(self, seconds: float) -> None:
        """Wait for the end of that, so long at most."""

    def slice(self) -> Slice | None:
        """Where to look now; None = nowhere. What is given is not given up before `looked`."""

    def looked(self, *, complete: bool) -> None:
        """The look, and the claim of what it found, are over. complete: nothing could go there."""

    @property
    def settled(self) -> bool:
        """Whether nothing else is to be had for now: then a drain may end."""

    def tells(self) -> Mapping[str, Any]:
        """What its instance tells people of it in its lease. kind: the scope; flag, or shards (how
        many there are) and owned (which of them): what it looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a seat knows of its instance. holding: the values of the slices of which something is in
    hand now. wake: tells that there is somewhere to look."""

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
    def seat(self, standing: Standing) -> Seat | None:
        """A place for one more instance; None = everywhere."""

    def check(self, spec: MessageTable) -> None:
        """Raise ConfigError if it does not fit the table."""
        if self.role is not None and getattr(spec, self.role) is None:
            raise ConfigError(
                f"{self!r} needs a column {self.role} in table {spec.name}: name it, "
                f"MessageTable({self.role}=...)"
            )
