"""The result of a fan-out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgworker.errors import ItemsFailed


@dataclass(frozen=True, slots=True)
class FanOut:
    """The result of a fan-out.

    values: one per item, in the order of the items: the value of the item's function, decoded from
    JSON; None for an item that failed. failed: key -> error text of the first 10,000
    failed items; failed_count: all of them. total: items in all. done: items done, now or in
    earlier tries. ran: items run now. held_back: items not run because an earlier one in their
    `serial_by` order failed.
    """

    values: list[Any] = field(repr=False)
    failed: dict[Any, str]
    failed_count: int
    total: int
    done: int
    ran: int
    held_back: int = 0
    first_error: BaseException | None = field(default=None, repr=False, compare=False)

    def raise_for_failed(self) -> FanOut:
        """Return this result if every item is done, else raise ItemsFailed."""
        if self.failed_count:
            raise ItemsFailed(
                self.failed, count=self.failed_count, total=self.total, held_back=self.held_back
            ) from self.first_error
        return self
