"""What the demonstration claims, each claim checked against the rows of the tables.

`read` collects the evidence when all is over; `claims` judges it, purely, against the file.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from msgworker import App
from msgworker.demo import purchases
from msgworker.message import Status
from msgworker.store import lease

MAX_TRIES = 3


class SeenMessage(NamedTuple):
    msg_id: int
    topic: str
    payload: dict[str, Any]
    status: int
    tries: int
    crashes: int
    error: str | None

    @property
    def meant_to_die(self) -> bool:
        return self.topic == purchases.STATEMENT and self.payload["address"] is None

    @property
    def failures_meant(self) -> int:
        if self.meant_to_die:
            return MAX_TRIES
        return int(self.topic == purchases.PRICE and purchases.fails_once(self.payload["number"]))

    @property
    def dead(self) -> bool:
        return self.status == Status.FAILED and self.tries == MAX_TRIES


class InHand(NamedTuple):
    """The in-flight messages of a process at one moment, and the ids of its instances."""

    instances: set[str]
    msg_ids: set[int]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The tables after the end; held: by the process that was killed."""

    messages: Sequence[SeenMessage]
    prices: Sequence[sa.Row[Any]]
    contracts: Sequence[sa.Row[Any]]
    leases: int
    held: InHand


def read(app: App, held: InHand) -> Evidence:
    t = app.tables
    m = t.message.c
    columns = (
        m.msg_id, m.topic, m.payload, m.status, m.error_try_times, m.crash_times, m.last_error
    )  # fmt: skip
    with app.engine.connect() as conn:
        found = conn.execute(sa.select(*columns)).all()
        return Evidence(
            messages=[SeenMessage(row[0], row[1], json.loads(row[2]), *row[3:]) for row in found],
            prices=conn.execute(sa.select(purchases.prices)).all(),
            contracts=conn.execute(sa.select(purchases.contracts)).all(),
            leases=len(lease.read_all(conn, t)),
            held=held,
        )


def claims(
    seen: Evidence, bought: Sequence[purchases.Purchase], statements: int
) -> Iterator[tuple[str, bool]]:
    """Each claim, and whether it holds."""
    wanted = {number: p.price_cents for number, p in purchases.straight(bought).items()}
    over = [m for m in seen.messages if m.status == Status.DONE or m.dead]
    sent = Counter({purchases.PRICE: len(bought), purchases.STATEMENT: statements})
    yield "nothing lost: every message sent is done or dead", Counter(m.topic for m in over) == sent
    yield (
        "exactly once: one price and one count in its contract per purchase",
        Counter(p.number for p in seen.prices) == Counter(p.number for p in bought)
        and {c.customer: c.purchases for c in seen.contracts}
        == Counter(p.customer for p in bought),
    )
    yield "order kept: every customer's purchases were priced one after another", _in_order(seen)
    yield (
        "every price equals the straight computation to the cent",
        {p.number: p.price_cents for p in seen.prices} == wanted,
    )
    yield (
        "every customer's total and the sum charged are equal to the cent",
        {c.customer: c.total_cents for c in seen.contracts} == purchases.spent(bought)
        and sum(p.price_cents for p in seen.prices) == sum(wanted.values()),
    )
    yield (
        "tries: who failed once on purpose recovered, no other lost a try",
        all(m.tries == m.failures_meant for m in seen.messages if not m.crashes),
    )
    yield (
        "dead: those that always fail, after three tries, and no others",
        all(m.dead == m.meant_to_die for m in seen.messages),
    )
    if seen.held.instances:
        yield "killed: others finished all in-flight messages of that process", _rescued(seen)
    yield (
        "nothing is left: no message in flight, no lease",
        not seen.leases and all(m.status != Status.PROCESSING for m in seen.messages),
    )


def _in_order(seen: Evidence) -> bool:
    by_customer: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in sorted(seen.prices, key=lambda row: row.place):
        by_customer[row.customer].append((row.place, row.number))
    return all(_ascends(pairs) for pairs in by_customer.values())


def _ascends(pairs: list[tuple[int, int]]) -> bool:
    places = [place for place, _ in pairs]
    numbers = [number for _, number in pairs]
    return places == list(range(1, len(pairs) + 1)) and numbers == sorted(set(numbers))


def _rescued(seen: Evidence) -> bool:
    messages = {m.msg_id: m for m in seen.messages}
    by = {p.msg_id: p.instance for p in seen.prices}
    return bool(seen.held.msg_ids) and all(
        messages[i].crashes and by.get(i) not in seen.held.instances for i in seen.held.msg_ids
    )
