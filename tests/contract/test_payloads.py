"""Payloads by the type that a handler names."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import pydantic

from msgworker import Context, Message
from tests.support.rows import send


@dataclass
class Invoice:
    id: int
    amount: float


class Order(TypedDict):
    id: int


class Customer(pydantic.BaseModel):
    name: str


def test_typed_payloads(app, table):
    got: list[Any] = []

    @app.handler("dataclass")
    def one(msg: Message[Invoice]) -> None:
        got.append(msg.payload)

    @app.handler("typed-dict")
    def two(msg: Message[Order], ctx: Context) -> None:
        got.append(msg.payload)

    @app.handler("model")
    async def three(msg: Message[Customer]) -> None:
        got.append(msg.payload)

    @app.handler("list")
    def four(msg: Message[list[int]]) -> None:
        got.append(msg.payload)

    payloads = {
        "dataclass": {"id": 1, "amount": 2.5},
        "typed-dict": {"id": 2},
        "model": {"name": "Ann"},
        "list": [1, 2],
    }
    for topic, payload in payloads.items():
        send(app, "o", topic=topic, payload=payload)
    assert app.drain(linger=0).done == 4
    assert got == [Invoice(1, 2.5), {"id": 2}, Customer(name="Ann"), [1, 2]]


class Currency(enum.Enum):
    EUR = "EUR"


@dataclass
class Booking:
    account: UUID
    amount: Decimal
    on: date
    at: datetime
    currency: Currency
    customer: Customer
    tags: frozenset[str]


def test_a_sent_object_comes_back_as_it_was(app, table):
    got: list[Any] = []

    @app.handler("t")
    def handle(msg: Message[Booking]) -> None:
        got.append(msg.payload)

    sent = [
        Booking(
            account=UUID(int=n),
            amount=Decimal("12345678901234567890.10"),
            on=date(2026, 10, 31),
            at=datetime(2026, 10, 31, 8, 30, tzinfo=UTC),
            currency=Currency.EUR,
            customer=Customer(name="Ann"),
            tags=frozenset({"a", "b"}),
        )
        for n in range(2)
    ]
    send(app, "o", payload=sent[0])
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(sent[1], "o")])
    assert app.drain(linger=0).done == 2
    assert got == sent
    assert str(got[0].amount) == "12345678901234567890.10"


def test_a_payload_that_does_not_fit_is_dead_at_once(app, table):
    @app.handler("t")
    def handle(msg: Message[Invoice]) -> None:
        raise AssertionError("never called")

    for payload in ({"id": "x", "amount": 1}, {}, None, [1]):
        send(app, "o", payload=payload)
    report = app.drain(linger=0)
    assert (report.failed, report.retried) == (4, 0)
    assert table.statuses == [-1] * 4
    assert all(text.startswith("PayloadError") for text in table.column("last_error"))
