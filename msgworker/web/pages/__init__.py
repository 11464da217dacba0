"""The pages, one file each, in the order of the navigation.

A page has `routes` and `NAV`: its name in the navigation, and the name of its route; None for a
page that is reached from another one.

overview   counts, throughput and latency, topics
trouble    what needs help, of the overview
messages   a list by filters, and the search box
message    one message: its tries, its items, what it waits for
failures   messages that failed for the same reason, as groups
lanes      objects with what waits behind their head
instances  who works, with what
topics     how much there is of each, pauses and limits
schedules  next ticks, what stops them
locks      partitions and locks
audit      who changed what, and why
system     what doctor finds, sizes of tables, settings with their origins
jobs       a write that was begun: how far it is, what it did
changing   rerun, discard and cancel messages
acting     pause a topic, release an instance, and the like
login      logging in and out, and the colours
"""

from __future__ import annotations

from typing import Any

from starlette.routing import BaseRoute

from msgworker.web.live import Part
from msgworker.web.pages import (
    acting,
    audit,
    changing,
    failures,
    instances,
    jobs,
    lanes,
    locks,
    login,
    message,
    messages,
    overview,
    schedules,
    system,
    topics,
)
from msgworker.web.sections import with_badges

PAGES: tuple[Any, ...] = (
    overview,
    messages,
    message,
    failures,
    lanes,
    instances,
    topics,
    schedules,
    locks,
    audit,
    system,
    jobs,
    changing,
    acting,
    login,
)
NAV: list[tuple[str, str]] = [page.NAV for page in PAGES if page.NAV is not None]
PARTS: dict[str, Part] = {
    name: part for page in PAGES for name, part in getattr(page, "PARTS", {}).items()
}
routes: list[BaseRoute] = [with_badges(route) for page in PAGES for route in page.routes]
