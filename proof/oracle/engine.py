"""What an engine offers to the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(slots=True)
class Answer:
    """The rows of a statement, or how many it has changed. columns: name, type of the driver,
    precision and scale."""

    columns: list[tuple[str, Any, int, int]] = field(default_factory=list)
    rows: Sequence[Sequence[Any]] = ()
    changed: int = -1


class Session(Protocol):
    """A session of an engine. What it raises are the driver's errors."""

    owner: str

    def execute(self, sql: str, values: dict[str, Any], timeout: int) -> Answer:
        """values: by the upper-case names of the parameters. timeout: milliseconds; 0 = none.
        The rows of a RETURNING are its answer."""

    def set_autocommit(self, on: bool) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def ping(self) -> None: ...

    def cancel(self) -> None:
        """End the statement that runs, from another thread."""

    def close(self) -> None: ...
