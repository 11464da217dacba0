"""Messages: a list by filters that stand in the URL, and the search box."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from msgworker.errors import ConfigError
from msgworker.message import State
from msgworker.queries.counts import Overview
from msgworker.web.forms import SPANS, Selection, id_of
from msgworker.web.site import Site, site_of

NAV = ("Messages", "messages")
ROWS = 50
MOST_TOPICS = 200
"""Of the suggestions of a form."""
MOST_FIND = 200


async def messages(request: Request) -> Response:
    site, query = site_of(request), request.query_params
    if query.get("find", "").strip():
        return await _find(request, site, query["find"].strip())
    chosen, oldest = Selection.of(query), query.get("order") == "oldest"
    ops, filters = site.ops, chosen.filters
    if chosen.ids:
        raise ConfigError("a list is chosen by filters; /messages/ID shows a message")
    after = query.get("after") or None
    found, overview = await asyncio.gather(
        site.ask(ops.messages, **filters, newest=not oldest, limit=ROWS, after=after),
        site.overview(),
    )
    order = {"order": "oldest"} if oldest else {}
    return site.render(
        request,
        "messages.html",
        chosen=chosen,
        rows=found,
        rail=list(rail(chosen, overview, order)),
        chips=[(label, value, rest | order) for label, value, rest in chosen.chips()],
        topics=[one.topic for one in overview.topics][:MOST_TOPICS],
        states=list(State),
        spans=list(SPANS),
        oldest=oldest,
        first=chosen.query | order if after else None,
        more=None
        if found.next_after is None
        else chosen.query | order | {"after": found.next_after},
        turned=chosen.query | ({} if oldest else {"order": "oldest"}),
        change=chosen.fixed.query,
    )


def rail(
    chosen: Selection, overview: Overview, order: dict[str, str]
) -> Iterator[tuple[str, str, dict[str, str], bool]]:
    """The states: name, count, query and whether it is shown. Counts are of the whole table."""
    others = {name: text for name, text in chosen.query.items() if name != "status"}
    yield "all", "", others | order, not chosen.status
    for state in State:
        if state is State.UNKNOWN and not overview.count(state).count and chosen.status != state:
            continue
        kept = others
        if state not in (State.FAILED, State.DEAD):  # others are in no group
            kept = {name: text for name, text in others.items() if name != "group"}
        query = kept | {"status": state.value} | order
        yield state.value, str(overview.count(state)), query, chosen.status == state


async def _find(request: Request, site: Site, text: str) -> Response:
    """To the message of this id, else to the messages of the object of this name."""
    if len(text) > MOST_FIND:
        raise ConfigError(f"find takes an id or an object of at most {MOST_FIND} characters")
    try:
        found = await site.ask(site.ops.show, id_of(text), items=0)
    except ConfigError:
        found = None
    if found is not None:
        return RedirectResponse(site.url(request, "message", msg_id=found.msg_id), 303)
    query: dict[str, Any] = {"object": text}
    return RedirectResponse(site.url(request, "messages", query), 303)


routes = [Route("/messages", messages, name="messages")]
