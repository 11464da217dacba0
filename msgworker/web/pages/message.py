"""One message: its state, its tries, its items, what it waits for and what waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.message import State
from msgworker.queries.audited import AuditEntry
from msgworker.queries.explain import Explanation
from msgworker.queries.messages import MessageInfo
from msgworker.store.items import ItemState
from msgworker.web import shown
from msgworker.web.forms import id_of
from msgworker.web.site import Refused, or_missing, site_of

NAV = None
MOST_TRIES = 20
"""The last of them that the page shows, with their tracebacks."""
ITEMS = 50
AUDIT = 50
MOST_TRACE = 20_000
DEEPEST = 20
"""Messages that wait for one another, in an explanation."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a message, or will. word: its kind, also its colour."""

    at: datetime
    word: str
    text: str = ""
    coming: bool = False


def timeline(info: MessageInfo, audit: Sequence[AuditEntry] = ()) -> list[Event]:
    """What is known of a message's life, in its order; what is to come is last."""
    past = sorted(_past(info, audit), key=lambda one: one.at)
    waits = info.status in (State.NEW, State.FAILED)
    if waits and info.available_at is not None:
        word = "retry" if info.status is State.FAILED else "due"
        past.append(Event(info.available_at, word, coming=True))
    return past


def _past(info: MessageInfo, audit: Sequence[AuditEntry]) -> Iterator[Event]:
    if info.created_at is not None:
        yield Event(info.created_at, "inserted")
    for one in info.tries:
        if one.started_at is not None:
            yield Event(one.started_at, "claimed", one.instance or "")
        yield Event(one.ended_at, one.kind, f"try {one.number}")
    if info.status is State.PROCESSING and info.claimed_at is not None:
        yield Event(info.claimed_at, "claimed", info.claimed_by or "")
    for entry in audit:
        yield Event(entry.changed_at or entry.started_at, entry.kind, f"by {entry.actor}")
    if info.cancel is not None:
        yield Event(info.cancel.requested_at, "cancel requested", f"by {info.cancel.actor}")
    if info.finished_at is not None and info.status in (State.DONE, State.DEAD):
        last = max((one.ended_at for one in info.tries), default=info.finished_at)
        yield Event(max(info.finished_at, last), info.status.value)  # by two clocks


def reasons(found: Explanation | None) -> list[Explanation]:
    """The explanation, then that of the message it waits for, and so on."""
    told: list[Explanation] = []
    while found is not None and len(told) < DEEPEST:
        told.append(found)
        found = found.behind
    return told


def acts(info: MessageInfo, on_dead: str) -> list[tuple[str, str]]:
    """What an operator may do with it: the kind of change, and its name."""
    state, found = info.status, []
    if state in (State.FAILED, State.DEAD, State.DONE):
        found.append(("rerun", "Rerun…"))
    if state in (State.NEW, State.FAILED) or (state is State.DEAD and on_dead == "block"):
        found.append(("discard", "Discard…"))
    if state in (State.NEW, State.FAILED, State.PROCESSING):
        found.append(("cancel", "Cancel…"))
    return found


async def message(request: Request) -> Response:
    site, ops = site_of(request), site_of(request).ops
    msg_id = id_of(request.path_params["msg_id"])
    info = await site.ask(ops.show, msg_id, items=ITEMS)
    if info is None:
        raise HTTPException(404, f"there is no message {msg_id} in {site.app.table.name}")
    spec = await site.ask(lambda: site.app.tables.spec)
    audit = await site.ask(or_missing, partial(ops.audit, msg_id, limit=AUDIT))
    wanted = request.query_params.get("payload") == "1"
    return site.render(
        request,
        "message.html",
        info=info,
        place=await site.ask(ops.place, msg_id),
        reasons=reasons(await site.ask(ops.explain, msg_id)),
        events=timeline(info, () if isinstance(audit, Refused) else audit),
        audit=audit,
        max_tries=spec.max_tries,
        most_tries=MOST_TRIES,
        acts=acts(info, spec.on_dead),
        payload=shown.payload(info.payload, site.settings.redact) if wanted else None,
        most_trace=MOST_TRACE,
    )


async def items(request: Request) -> Response:
    site, query = site_of(request), request.query_params
    msg_id = id_of(request.path_params["msg_id"])
    state: Any = query.get("state") or None  # ops.items refuses other words
    after = query.get("after")
    found = await site.ask(site.ops.items, msg_id, state=state, limit=ITEMS, after=after or None)
    chosen = {"state": state} if state else {}
    return site.render(
        request,
        "items.html",
        msg_id=msg_id,
        rows=found,
        state=state,
        states=[one.value for one in ItemState],
        first=chosen if after else None,
        more=None if found.next_after is None else chosen | {"after": found.next_after},
    )


routes = [
    Route("/messages/{msg_id}", message, name="message"),
    Route("/messages/{msg_id}/items", items, name="items"),
]
