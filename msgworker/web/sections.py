"""Sections of pages that follow what changes: made once for all who see the same.

When a change is told, all viewers load their page anew at that moment. What they see of it depends
on its URL and on what they may do, and on nothing else of who they are: so the part of the page
between header and footer is made once for each URL and role. It has neither names nor tokens of a
session; a template that uses one fails, because it is not given any.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from msgworker.web import guard
from msgworker.web.site import SHARED_SECONDS, Site

LAYOUT = "section.html"
Values = Callable[[], Awaitable[dict[str, Any]]]


async def page(site: Site, request: Request, template: str, values: Values) -> Response:
    """A page with sections that are live; a script that loads one gets what is between header and
    footer."""
    if request.headers.get("hx-request") != "true":
        return site.render(request, template, layout="base.html", **await values())
    this = site.this(request)
    key = (template, guard.root_of(request.scope), this, site.viewer(request).role)

    async def make() -> bytes:
        found = await values()
        text = site.text(request, template, layout=LAYOUT, this=this, **found)
        return text.encode()

    return HTMLResponse(await site.sections.get(key, SHARED_SECONDS, make))
