"""Groups of failures, and objects that wait."""

from __future__ import annotations

from typing import Literal

from msgworker.store.looking.failures import Failures
from msgworker.store.looking.waiting import LaneInfo
from msgworker.web.api import asked
from msgworker.web.api.asked import Instant
from msgworker.web.api.calling import Call, Endpoint, Page


class Groups(asked.Page):
    """topic, since: only failures of this topic, and since this instant."""

    topic: asked.Topic | None = None
    since: Instant | None = None


class Lanes(asked.Page):
    """by: "behind", those with most behind their head, one page; "object", all, in pages."""

    by: Literal["behind", "object"] = "behind"


async def list_failures(call: Call) -> Page:
    """Dead and failing messages grouped by error, the largest group first."""
    return Page(await call.site.ask(call.ops.failures, **call.query.model_dump()))


async def list_lanes(call: Call) -> Page:
    """Objects that wait, with their heads and how many messages are behind them."""
    return Page(await call.site.ask(call.ops.lanes, **call.query.model_dump()))


ENDPOINTS = [
    Endpoint("GET", "/failures", list_failures, Failures, query=Groups, page=True, tag="failures"),
    Endpoint("GET", "/lanes", list_lanes, LaneInfo, query=Lanes, page=True, tag="lanes"),
]
