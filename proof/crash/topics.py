"""Handlers of a consumer for chains, unique keys, a limit and a schedule (--all-topics)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgworker import App, Context, Message
from proof.crash.feature_rules import (
    CHAIN,
    KEYED,
    LIMITED,
    MADE,
    MAX_RUNNING,
    ON_DEAD,
    ON_DONE,
    SENT_BY,
    TICK,
)


def add_topics(app: App, act: Callable[[Message[Any], int], None], **options: Any) -> None:
    """The handlers and the schedule. act: does what a message says; options: of each handler."""

    @app.handler(CHAIN, on_done=ON_DONE, on_dead=ON_DEAD, **options)
    @app.handler(LIMITED, max_running=MAX_RUNNING, **options)
    @app.handler(KEYED, **options)
    def as_it_says(msg: Message[Any], ctx: Context) -> None:
        act(msg, ctx.attempt)

    def nothing(msg: Message[Any], ctx: Context) -> None:
        """It is there: that is all."""

    for topic in MADE:
        app.add_handler(topic, nothing)
    app.add_handler(TICK, nothing)
    app.every("1s", topic=TICK, name=TICK, catch_up="all")


def send_on(msg: Message[Any], ctx: Context) -> None:
    """What a handler begins with: the message that it sends, if it does, and a long wait."""
    if msg.payload.get("sends"):
        ctx.send(SENT_BY, {"msg_id": msg.msg_id}, object_id=msg.object_id)
    until = time.monotonic() + msg.payload.get("slow", 0)
    while time.monotonic() < until and not ctx.cancelled:
        time.sleep(0.02)
