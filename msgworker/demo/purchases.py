"""The demonstration's App and its data: purchases of the CDNOW sample, priced and discounted."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tenacity import wait_fixed

from msgworker import App, Context, Message

# --- The demonstration's App: one handler that prices purchases, one that prints statements.
#
# Some handlers fail on purpose, always the same: whether they do depends on the message and the
# try.

PRICE = "purchase.price"
STATEMENT = "statement.print"
FAIL_EVERY = 50

metadata = sa.MetaData()
prices = sa.Table(
    "demo_price",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("msg_id", sa.BigInteger, nullable=False),
    sa.Column("customer", sa.String(20), nullable=False),
    sa.Column("price_cents", sa.Integer, nullable=False),
    sa.Column("place", sa.Integer, nullable=False),  # its ordinal among the customer's
    sa.Column("instance", sa.String(64), nullable=False),
)
contracts = sa.Table(
    "demo_contract",
    metadata,
    sa.Column("customer", sa.String(20), primary_key=True),
    sa.Column("total_cents", sa.Integer, nullable=False),
    sa.Column("purchases", sa.Integer, nullable=False),
)


def fails_once(number: int) -> bool:
    """Whether the first try of a purchase fails on purpose: 2 % of them."""
    return number % FAIL_EVERY == 0


def price_purchase(msg: Message[Any], ctx: Context) -> None:
    """Price one purchase by the customer's total so far; price and new total commit with `done`."""
    number, cents = msg.payload["number"], msg.payload["cents"]
    if fails_once(number) and ctx.attempt == 1:
        raise ConnectionError(f"price service did not answer for purchase {number}")
    mine = contracts.c.customer == msg.object_id
    total, before = ctx.connection.execute(
        sa.select(contracts.c.total_cents, contracts.c.purchases).where(mine)
    ).one()
    priced = price(total, cents)
    ctx.connection.execute(
        sa.update(contracts)
        .where(mine)
        .values(total_cents=priced.total_after, purchases=before + 1)
    )
    ctx.connection.execute(
        sa.insert(prices).values(
            number=number,
            msg_id=msg.msg_id,
            customer=msg.object_id,
            price_cents=priced.price_cents,
            place=before + 1,
            instance=ctx.instance_id,
        )
    )


def print_statement(msg: Message[Any]) -> None:
    """A few customers have no address: their statements fail three times and are dead."""
    if msg.payload["address"] is None:
        raise ValueError("the customer has no address")


def make_app(url: str, *, lease_seconds: float = 30.0, label: str = "") -> App:
    """The App on a database; tables are not created."""
    app = App(url, lease_seconds=lease_seconds, label=label)
    app.add_handler(PRICE, price_purchase, transactional=True, wait=wait_fixed(0.2))
    app.add_handler(STATEMENT, print_statement, wait=wait_fixed(0.2))
    return app


# --- The contract discount: what a customer has spent so far decides what the next purchase costs.
#
# From a total of 100 dollars on, 5 % off; from 250 dollars on, 10 % off. Of the 2,357 customers of
# the sample 615 reach the first limit and 224 the second; 2,301 of the 6,919 purchases are
# reduced.
#
# The total *before* a purchase decides, for the purchase as a whole: the one that reaches a limit
# is still priced by the old rate. Totals are of list prices. All in whole cents; the discount of
# each purchase is rounded half up to the cent. So prices depend on the order of a customer's
# purchases.

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


# --- The purchases of the bundled CDNOW sample, in order of time per customer.
#
# Source: the 1/10 sample of the CDNOW data (brucehardie.com); see samples/README.md.

FILE = "cdnow_sample.txt"
_LINE = re.compile(r" *\d+ +(\d+) +(\d{4})(\d\d)(\d\d) +(\d+) +(\d+)\.(\d\d) *", re.ASCII)


@dataclass(frozen=True, slots=True)
class Purchase:
    """One line of the file. number: its line, from 1 on. cents: what was paid, whole cents."""

    number: int
    customer: str
    date: datetime.date
    cds: int
    cents: int

    @property
    def payload(self) -> dict[str, int]:
        """What a message about it says."""
        return {"number": self.number, "cents": self.cents}


def find_file() -> Traversable:
    """The file: part of an installed package, else in the source tree's samples/data.

    Raises FileNotFoundError.
    """
    packed = resources.files("msgworker.demo") / FILE
    in_source_tree = Path(__file__).parents[2] / "samples" / "data" / FILE
    for place in (packed, in_source_tree):
        if place.is_file():
            return place
    raise FileNotFoundError(f"{FILE} is not part of this installation")


def read(file: Traversable | None = None) -> list[Purchase]:
    """All purchases, in the order of the file. Raises FileNotFoundError, ValueError."""
    lines = (file or find_file()).read_text(encoding="ascii").splitlines()
    return [parse(number, line) for number, line in enumerate(lines, start=1)]


def parse(number: int, line: str) -> Purchase:
    """One line: id in the master set, customer, date, number of CDs, dollars. Raises ValueError."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"line {number} is not a purchase: {line!r:.80}")
    customer, year, month, day, cds, dollars, cents = found.groups()
    date = datetime.date(int(year), int(month), int(day))
    return Purchase(number, customer, date, int(cds), int(dollars) * 100 + int(cents))


def spent(purchases: Iterable[Purchase]) -> dict[str, int]:
    """What each customer paid in all before any discount, in cents."""
    totals: Counter[str] = Counter()
    for purchase in purchases:
        totals[purchase.customer] += purchase.cents
    return dict(totals)
