"""The demonstration's App: one handler that prices purchases, one that prints statements.

Some handlers fail on purpose, always the same: whether they do depends on the message and the try.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from tenacity import wait_fixed

from msgworker import App, Context, Message
from msgworker.demo import discount

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
    sa.Column("place", sa.Integer, nullable=False),  # the customer's how-manieth priced purchase
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
    priced = discount.price(total, cents)
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
