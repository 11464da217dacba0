"""What users write: a type checker has nothing to say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from msgworker import (
    App,
    AsyncBatchContext,
    AsyncContext,
    BatchContext,
    Context,
    Databases,
    Message,
    MessageTable,
)
from msgworker.events import Dead
from msgworker.message import State


@dataclass
class Invoice:
    number: int


table = MessageTable("crm.tb_cus_msg", msg_id="msgID", payload=None, on_dead="block")
app = App("sqlite:///a.db", table=table, label="a", lease_seconds=60, notify=True)
databases = Databases({"a": app})
many = 500
in_one = bool(many)


@app.handler
def bare(msg: Message) -> None: ...


@app.handler()
def other(msg: Message, ctx: Context) -> int:
    return msg.msg_id


@app.handler("typed", timeout=5, on_dead="typed.dead", rate="20/s", max_running=2)
def typed(msg: Message[Invoice], ctx: Context, note: str = "") -> None:
    msg.payload.number.bit_length()


@app.handler("async")
async def later(msg: Message[Invoice], ctx: Context) -> None: ...


@app.handler("transactional", transactional=True)
def post(msg: Message, ctx: Context) -> sa.CursorResult[object]:
    return ctx.connection.execute(sa.text("SELECT 1"))


@app.handler("either", transactional=in_one)
def either(msg: Message) -> None: ...


@app.handler("group", transactional=True, group=50)
def grouped(msg: Message[Invoice], ctx: Context) -> None: ...


@app.handler("batch", batch=many)
async def mail(messages: list[Message[Invoice]]) -> None: ...


@app.handler("async.rows", transactional=True)
async def async_rows(msg: Message[Invoice], ctx: AsyncContext) -> None:
    await ctx.connection.execute(sa.text("SELECT 1"))
    await ctx.session.flush()


@app.handler("async.batch", transactional=True, batch=5)
async def async_batch(messages: list[Message], ctx: AsyncBatchContext) -> None:
    await ctx.connection.execute(sa.text("SELECT 1"))
    ctx.fail(messages[0], ValueError("no"))


@app.handler("async.group", transactional=True, group=5)
async def async_group(msg: Message) -> None: ...


@app.handler("batch.rows", batch=500, transactional=True, batch_seconds=2.0)
def price(messages: Sequence[Message[Invoice]], ctx: BatchContext) -> None:
    ctx.fail(messages[0], ValueError("no address"))
    ctx.send("next", of=messages[0], unique_key="a", unique="kept")


class Handler:
    def __call__(self, msg: Message, ctx: Context) -> None: ...

    async def method(self, msg: Message) -> None: ...


app.add_handler("object", Handler(), max_tries=2)
app.add_handler("method", Handler().method)
app.add_handler("lambda", lambda msg: None)
app.add_handler("lambda.rows", lambda msg, ctx: ctx.connection.close(), transactional=True)
app.add_handler(None, price, batch=2, transactional=True)


@databases.handler("both")
def both(msg: Message) -> None: ...


@app.every("5m", catch_up="last", overlap="skip")
def tick(msg: Message) -> None: ...


@app.cron("0 2 * * *", tz="Asia/Shanghai")
@app.handler("nightly", batch=5)
def nightly(messages: list[Message]) -> None: ...


typed(Message(1, None, "t", Invoice(1)), ctx=None)  # type: ignore[arg-type]
app.on(Dead, lambda event: print(event.error))
app.on("Dead", lambda event: print(event.error))

with app.engine.begin() as conn:
    app.send(conn, "t", {"a": 1}, unique_key="k", on_duplicate="replace", at=datetime.now(UTC))
    app.send_many(conn, "t", [({"a": 1}, "C-1")], on_duplicate="raise")
    databases.send(conn, "t", object_id="C-1", unique="open")


async def produce(session: AsyncSession, conn: AsyncConnection) -> None:
    await app.asend(session, "t", {"a": 1}, object_id="C-1", unique_key="k")
    await app.asend_many(conn, "t", [({"a": 1}, "C-1")], priority=1)
    async with App(create_async_engine("sqlite+aiosqlite:///a.db")).running(threads=2) as running:
        running.wake()


found = app.ops.find(status="dead", topic="t", since=datetime.now(UTC), limit=5)
first = found[0].msg_id + 1
app.ops.rerun(status=State.FAILED, topic="t", reason="mended", dry_run=True)
app.ops.discard([1, 2], reason="wrong file")
app.ops.cancel(topic="t", reason="wrong file", actor="anna")
app.ops.messages(status="done", newest=False)
app.ops.history("24h")
app.ops.items(1, state="failed")
app.ops.lanes(by="object")
report = app.drain(threads=8, overlap="allow", max_concurrent=2)
raise SystemExit(report.exit_code)
