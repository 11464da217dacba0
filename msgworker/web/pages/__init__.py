"""The pages, one file each, in the order of the navigation.

A page has `routes` and `NAV`: its name in the navigation, and the name of its route; None for a
page that is reached from another one.

overview  counts, throughput and latency, topics
system    what doctor finds, settings with their origins, sizes
login     logging in and out, and the colours
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from msgworker.web.live import Part
from msgworker.web.pages import login, overview, system

PAGES = (overview, system, login)
NAV: list[tuple[str, str]] = [page.NAV for page in PAGES if page.NAV is not None]
PARTS: dict[str, Part] = {
    name: part for page in PAGES for name, part in getattr(page, "PARTS", {}).items()
}
routes: list[BaseRoute] = [route for page in PAGES for route in page.routes]
