"""The contract discount: what a customer has spent so far decides what the next purchase costs.

From a total of 100 dollars on, 5 % off; from 250 dollars on, 10 % off. Of the 2,357 customers of
the sample 615 reach the first limit and 224 the second; 2,301 of the 6,919 purchases are reduced.

The total *before* a purchase decides, for the purchase as a whole: the one that reaches a limit is
still priced by the old rate. Totals are of list prices. All in whole cents; the discount of each
purchase is rounded half up to the cent. So prices depend on the order of a customer's purchases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgworker.demo.purchases import Purchase

LIMITS = ((25_000, 10), (10_000, 5))
"""(total in cents from which on it holds, percent off), the highest first."""


@dataclass(frozen=True, slots=True)
class Priced:
    """What a purchase costs. All in cents; total_after is what counts for the next one."""

    price_cents: int
    discount_cents: int
    total_after: int


def percent_off(total_before: int) -> int:
    """The discount that a total has earned."""
    return next((percent for limit, percent in LIMITS if total_before >= limit), 0)


def price(total_before: int, cents: int) -> Priced:
    """Price one purchase by the customer's total before it."""
    discount = (cents * percent_off(total_before) + 50) // 100
    return Priced(cents - discount, discount, total_before + cents)


def straight(purchases: Iterable[Purchase]) -> dict[int, Priced]:
    """The single-threaded computation that every other way must agree with: number -> price."""
    totals: dict[str, int] = {}
    priced: dict[int, Priced] = {}
    for purchase in purchases:
        found = price(totals.get(purchase.customer, 0), purchase.cents)
        totals[purchase.customer] = found.total_after
        priced[purchase.number] = found
    return priced
