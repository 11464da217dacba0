"""What users write by mistake: a type checker names each line that is marked, and no other."""

from __future__ import annotations

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

app = App("sqlite:///a.db")
databases = Databases({"a": app})

App("sqlite:///a.db", lease_secondss=3)  # error
App("sqlite:///a.db", notify="yes")  # error
MessageTable("t", msgid="ID")  # error
MessageTable("t", on_dead="stop")  # error


@app.handler  # error
def without(msg: int) -> None: ...


@app.handler("nothing")  # error
def nothing() -> None: ...


@app.handler("three")  # error
def three(msg: Message, ctx: Context, more: int) -> None: ...


@app.handler("turned")  # error
def turned(ctx: Context, msg: Message) -> None: ...


@app.handler("payload")  # error
async def payload(msg: dict[str, int]) -> None: ...


@app.handler("context")  # error
def context(msg: Message, ctx: BatchContext) -> None: ...


@app.handler("one", batch=5)  # error
def one(msg: Message) -> None: ...


@app.handler("many")  # error
def many(messages: list[Message]) -> None: ...


@app.handler("not.async", transactional=True)  # error
def not_async(msg: Message, ctx: AsyncContext) -> None: ...


@app.handler("not.async.batch", transactional=True, batch=5)  # error
def not_async_batch(messages: list[Message], ctx: AsyncBatchContext) -> None: ...


@app.handler("group.list", transactional=True, group=5)  # error
def group_list(messages: list[Message]) -> None: ...


@databases.handler("several")  # error
def several(msg: str) -> None: ...


@app.every("5m")  # error
def tick(when: int) -> None: ...


def fine(msg: Message) -> None: ...


async def also_fine(msg: Message) -> None: ...


app.handler("t", timout=5)  # error
app.handler("t", group=5)  # error
app.handler("t", timeout_action="stop")  # error
app.add_handler("t", nothing)  # error
app.add_handler("t", fine, batch=5)  # error
app.add_handler("t", not_async, transactional=True)  # error
app.add_handler("t", fine, max_try=5)  # error
app.every("5m", catch_up="some")  # error
app.every("5m", overlap="some")  # error
app.on("Ded", print)  # error
app.on(int, print)  # error
app.on(Dead, lambda event: event.errors)  # error

with app.engine.begin() as conn:
    app.send(conn, "t", unique_key="k", on_duplicate="ignore")  # error
    app.send(conn, "t", unique_key="k", unique="always")  # error
    app.send_many(conn, "t", [], on_duplicate="ignore")  # error
    databases.send(conn, "t", unique_keys="k")  # error
    app.asend(conn, "t")  # error


def sends(ctx: Context, batch: BatchContext) -> None:
    ctx.send("t", on_duplicate="ignore")  # error
    batch.send("t", on_duplicates="skip")  # error


app.ops.find(statuss="dead")  # error
app.ops.find(status="ded")  # error
app.ops.find(since="yesterday")  # error
app.ops.rerun(state="dead")  # error
app.ops.rerun(status="ded")  # error
app.ops.discard([1], status="gone", reason="r")  # error
app.ops.cancel("all", reason="r")  # error
app.ops.messages(status=1)  # error
app.ops.purge(older=5)  # error
app.ops.history("2h")  # error
app.ops.items(1, state="new")  # error
app.ops.lanes(by="age")  # error
app.drain(overlap="never")  # error
