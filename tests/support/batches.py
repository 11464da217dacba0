"""Handlers of batches that note what they were called with, and their effects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed

from msgworker import App, BatchContext, Context, Message
from msgworker.instance.instance import Instance
from msgworker.instance.running.in_flight import Lane
from tests.ready import EFFECTS
from tests.support.rounds import by_hand


@dataclass
class Calls:
    """The msg_ids of each call. fails: by msg_id, how often it still raises; poison: these raise
    always. names: by msg_id, what `ctx.fail` gets for it."""

    app: App
    of: list[list[int]] = field(default_factory=list)
    fails: dict[int, int] = field(default_factory=dict)
    names: dict[int, Exception] = field(default_factory=dict)
    contexts: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        EFFECTS.create(self.app.engine, checkfirst=True)

    def add(self, topic: str = "t", **options: Any) -> None:
        """Register the handler."""
        one = self.one if "group" in options else self.many
        if "group" not in options and not options.get("transactional"):
            one = self.plain
        self.app.add_handler(topic, one, **({"wait": wait_fixed(3600)} | options))

    def many(self, messages: list[Message[Any]], ctx: BatchContext) -> None:
        rows = [{"msg_id": message.msg_id} for message in messages]
        ctx.connection.execute(EFFECTS.insert(), rows)
        self.plain(messages, ctx)

    def plain(self, messages: list[Message[Any]], ctx: BatchContext) -> None:
        self.of.append([message.msg_id for message in messages])
        self.contexts.append(ctx)
        for message in messages:
            self._raise(message.msg_id)
            if message.msg_id in self.names:
                ctx.fail(message, self.names[message.msg_id])

    def one(self, msg: Message[Any], ctx: Context) -> None:
        self.of.append([msg.msg_id])
        self.contexts.append(ctx)
        ctx.connection.execute(EFFECTS.insert(), {"msg_id": msg.msg_id})
        self._raise(msg.msg_id)

    def _raise(self, msg_id: int) -> None:
        if self.fails.get(msg_id, 0) > 0:
            self.fails[msg_id] -= 1
            raise ValueError(f"message {msg_id} fails")

    @property
    def effects(self) -> list[int]:
        with self.app.engine.connect() as conn:
            return sorted(conn.scalars(sa.select(EFFECTS.c.msg_id)))


@pytest.fixture
def calls(effects_table: None, app: App) -> Calls:
    """Of the handlers of `app`."""
    return Calls(app)


@contextmanager
def claimed(app: App) -> Iterator[tuple[Instance, list[Lane]]]:
    """An instance with one thread's work left to the test, and the lanes that it has claimed."""
    with by_hand(app) as made:
        try:
            made.fetcher.run_once()
            yield made, list(made.lanes.ready)
        finally:
            made.settler.flush_waiting()
            made.settler.release(made.lanes.take_back())


def work_off(one: Instance) -> None:
    """Handle and settle all lanes, as a handler thread does."""
    while one.lanes.ready:
        lane = one.lanes.next()
        assert lane is not None
        ended = one.batches.handle_beside(lane)
        assert ended is not None
        for each in ended:
            one.settler.add(each, each is ended[-1])
