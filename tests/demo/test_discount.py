"""The bundled purchases and the rules of the discount."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from msgworker.demo import purchases


def test_the_file_holds_what_is_said_of_it() -> None:
    bought = purchases.read()

    assert len(bought) == 6919
    assert len({p.customer for p in bought}) == 2357
    assert sum(p.cents for p in bought) == 24409194
    assert [p.number for p in bought] == list(range(1, 6920))


def test_purchases_of_a_customer_stand_in_order_of_time() -> None:
    last: dict[str, object] = {}
    for p in purchases.read():
        assert last.get(p.customer, p.date) <= p.date  # type: ignore[operator]
        last[p.customer] = p.date


@pytest.mark.parametrize(
    ("total", "cents", "price", "off"),
    [
        (0, 1000, 1000, 0),
        (9_999, 1000, 1000, 0),
        (10_000, 1000, 950, 50),
        (24_999, 1000, 950, 50),
        (25_000, 1000, 900, 100),
        (10_000, 9, 9, 0),  # 0.45 rounds down
        (10_000, 10, 9, 1),  # 0.50 rounds up
        (25_000, 5, 4, 1),  # 0.50 rounds up
        (25_000, 0, 0, 0),
    ],
)
def test_price(total: int, cents: int, price: int, off: int) -> None:
    assert purchases.price(total, cents) == purchases.Priced(price, off, total + cents)


def test_straight_gives_each_purchase_a_price_and_keeps_totals() -> None:
    bought = purchases.read()
    priced = purchases.straight(bought)

    assert set(priced) == {p.number for p in bought}
    assert all(
        priced[p.number].price_cents + priced[p.number].discount_cents == p.cents for p in bought
    )
    last = {p.customer: priced[p.number].total_after for p in bought}
    spent: Counter[str] = Counter()
    for p in bought:
        spent[p.customer] += p.cents
    assert last == dict(spent)


def test_order_of_a_customers_purchases_matters() -> None:
    """Else the sample would prove nothing about order."""
    bought = purchases.read()
    shuffled = bought[:]
    random.Random(1).shuffle(shuffled)

    assert purchases.straight(shuffled) != purchases.straight(bought)
    percents = {purchases.percent_off(p.total_after) for p in purchases.straight(bought).values()}
    assert percents == {0, 5, 10}
