"""FastAPI: messages sent in the request's transaction, and a worker for them.

In production the worker is a process of its own: `msgworker run main:queue`. CRM_WORKER=1 starts
one in the lifespan of the web process instead, for development and small programs.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import sqlalchemy as sa
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import msgworker
from msgworker import Context, Message

queue = msgworker.App(os.environ.get("CRM_DATABASE", "sqlite:///crm.db"), backoff_seconds=1)
make_session = sessionmaker(queue.engine)


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "crm_invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(sa.String(50))
    amount: Mapped[int]
    booked: Mapped[bool] = mapped_column(default=False)


@queue.handler("invoice.book", transactional=True)
def book(msg: Message, ctx: Context) -> None:
    """ctx.session: committed together with "done", so it is booked once."""
    invoice = ctx.session.get_one(Invoice, msg.payload["invoice"])
    invoice.booked = True


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(queue.engine)
    queue.create_schema()
    if os.environ.get("CRM_WORKER") != "1":
        yield
        return
    async with queue.running(threads=2):
        yield  # and stops at the end of the block, before the server ends


web = FastAPI(lifespan=lifespan)


class NewInvoice(BaseModel):
    amount: int


@web.post("/customers/{number}/invoices")
def invoice(number: str, new: NewInvoice) -> dict[str, int]:
    """The invoice and its message are there both, or neither is.

    The block commits before the answer is made. A session from Depends may commit after it was
    sent (FastAPI 0.118 and later): the client would be told of what is not there.
    """
    with make_session.begin() as db:
        made = Invoice(customer=number, amount=new.amount)
        db.add(made)
        db.flush()
        msg_id = queue.send(db, "invoice.book", {"invoice": made.id}, object_id=number)
        if new.amount < 0:
            raise HTTPException(400, "a negative amount")
        return {"invoice": made.id, "message": msg_id}


@web.get("/invoices/{invoice_id}")
def show(invoice_id: int) -> dict[str, bool]:
    with make_session() as db:
        return {"booked": db.get_one(Invoice, invoice_id).booked}
