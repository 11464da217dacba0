"""The main sample: a discount that starts when a customer's total reaches a limit.

The discount is detailed to each purchase, so a customer's purchases must be priced in order, each
exactly once, however many threads and processes work. One message per purchase, object = customer.
The handler is transactional: the price, the new total and "done" commit together.

    python samples/contract_discount.py [--url URL] [--threads N]

Look for: every price equal to a straight single-threaded computation, to the cent.
"""

import argparse
import tempfile
from pathlib import Path

import sqlalchemy as sa

from msgworker import App, Context, Message
from msgworker.demo import purchases

metadata = sa.MetaData()
prices = sa.Table(
    "price",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("customer", sa.String(20), nullable=False),
    sa.Column("price_cents", sa.Integer, nullable=False),
)
contracts = sa.Table(
    "contract",
    metadata,
    sa.Column("customer", sa.String(20), primary_key=True),
    sa.Column("total_cents", sa.Integer, nullable=False),
)


def price_purchase(msg: Message, ctx: Context) -> None:
    """Price one purchase by the customer's total so far."""
    mine = contracts.c.customer == msg.object_id
    total = ctx.connection.scalar(sa.select(contracts.c.total_cents).where(mine))
    priced = purchases.price(total or 0, msg.payload["cents"])
    if total is None:
        change = sa.insert(contracts).values(customer=msg.object_id)
    else:
        change = sa.update(contracts).where(mine)
    ctx.connection.execute(change.values(total_cents=priced.total_after))
    ctx.connection.execute(
        sa.insert(prices).values(
            number=msg.payload["number"],
            customer=msg.object_id,
            price_cents=priced.price_cents,
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url")
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        app = App(options.url or f"sqlite:///{Path(folder) / 'crm.db'}")
        app.create_schema()
        metadata.drop_all(app.engine)
        metadata.create_all(app.engine)
        app.add_handler("purchase.price", price_purchase, transactional=True)

        bought = purchases.read()
        with app.engine.begin() as conn:
            messages = [(p.payload, p.customer) for p in bought]
            app.send_many(conn, "purchase.price", messages)

        report = app.drain(threads=options.threads)
        print(report)
        code = compare(app, bought)
        app.engine.dispose()
        return code or report.exit_code


def compare(app: App, bought: list[purchases.Purchase]) -> int:
    """Every price and every total against the straight computation."""
    wanted = {number: p.price_cents for number, p in purchases.straight(bought).items()}
    spent: dict[str, int] = {}
    for p in bought:
        spent[p.customer] = spent.get(p.customer, 0) + p.cents
    with app.engine.connect() as conn:
        found = {n: c for n, c in conn.execute(sa.select(prices.c.number, prices.c.price_cents))}
        totals = {c: t for c, t in conn.execute(sa.select(contracts))}
    wrong = sum(found.get(number) != cents for number, cents in wanted.items())
    wrong += sum(totals.get(customer) != cents for customer, cents in spent.items())
    print(
        f"{len(found):,} purchases of {len(totals):,} customers priced; charged "
        f"${sum(found.values()) / 100:,.2f}, straight ${sum(wanted.values()) / 100:,.2f}; "
        f"{wrong} differences"
    )
    return 1 if wrong or len(found) != len(wanted) else 0


if __name__ == "__main__":
    raise SystemExit(main())
