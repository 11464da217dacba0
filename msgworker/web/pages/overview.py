"""Overview: how much there is, how fast it goes, and who works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.message import State
from msgworker.store.looking.counts import Count, Exact
from msgworker.web import charts
from msgworker.web.site import site_of

NAV = ("Overview", "overview")
SHOWN = 10_000
"""The most that is counted out."""


def totals(counts: Sequence[Count]) -> list[dict[str, Any]]:
    """How many messages are in each state, over all topics."""
    found = []
    for state in State:
        some = [one for one in counts if one.status is state]
        about = any(one.exact is Exact.ABOUT for one in some)
        most = None if about else SHOWN
        count = sum(one.count for one in some)
        found.append({"state": state.value, "count": count, "about": about, "most": most})
    return found


def topics(counts: Sequence[Count]) -> list[dict[str, Any]]:
    """A row for each topic, those with failures and the oldest first."""
    found: dict[str, dict[str, Any]] = {}
    for one in counts:
        if one.exact is Exact.ABOUT:  # of all topics together
            continue
        name = one.topic or "(no topic)"
        row = found.setdefault(name, {"name": name, "oldest": None})
        row[one.status.value] = row.get(one.status.value, 0) + one.count
        if one.status is State.NEW and one.oldest_seconds is not None:
            row["oldest"] = max(one.oldest_seconds, row["oldest"] or 0.0)
    for name, row in found.items():
        words = {state.value: row.setdefault(state.value, 0) for state in State}
        row["bar"] = charts.states(words, title=f"States of {name}")
    return sorted(found.values(), key=lambda row: (-row["dead"] - row["failed"], row["name"]))


async def overview(request: Request) -> Response:
    site = site_of(request)
    ops = site.ops
    counts = await site.look(ops.counts)
    instances = await site.look(ops.instances)
    ages = [c.oldest_seconds for c in counts if c.status is State.NEW and c.oldest_seconds]
    return site.render(
        request,
        "overview.html",
        totals=totals(counts),
        topics=topics(counts),
        oldest=max(ages, default=None),
        up=sum(one.works and not one.silent for one in instances),
        silent=sum(one.silent or one.life == "dead" for one in instances),
    )


routes = [Route("/", overview, name="overview")]
