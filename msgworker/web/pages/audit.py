"""Audit: who changed what, from where, and why; and writes that were begun here."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from msgworker.config import id_of
from msgworker.ops.call import ADVICE, Why
from msgworker.store.audit import AuditEntry, Kind
from msgworker.store.bounded import MOST
from msgworker.web import shown
from msgworker.web.forms import SPANS, Chosen, whole
from msgworker.web.sessions import Role
from msgworker.web.site import Refused, Site, or_missing, page, paged, site_of, there
from msgworker.web.threads import RunningWrite, Work

ROWS = 50


def what(entry: AuditEntry) -> str:
    """What an operation was about, in a line."""
    parts = []
    for name, value in entry.filter.items():
        if name == "acknowledged":
            value = "yes" if value else "no"
        if value is None or value is False:
            continue
        if isinstance(value, list):
            more = f" and {len(value) - 5:,} more" if len(value) > 5 else ""
            value = ", ".join(map(str, value[:5])) + more
        parts.append(f"{name} {value}" if value is not True else name)
    return "; ".join(parts)


@page("/audit", "audit.html")
async def audit(site: Site, request: Request) -> dict[str, Any]:
    query = request.query_params
    chosen = {name: query.get(name, "").strip() for name in ("message", "kind", "actor", "since")}
    chosen = {name: text for name, text in chosen.items() if text}
    after = query.get("after", "")
    asked: dict[str, Any] = {
        "kind": chosen.get("kind"),
        "actor": chosen.get("actor"),
        "since": Chosen.of({"since": chosen.get("since", "")}).instant(),
        "after": id_of(after) if after else None,
    }
    msg_id = id_of(chosen["message"]) if "message" in chosen else None
    found = await site.ask(or_missing, partial(site.ops.audit, msg_id, **asked, limit=ROWS))
    further = None if isinstance(found, Refused) else found.next_after
    return {
        "rows": found,
        "chosen": chosen,
        "kinds": get_args(Kind),
        "spans": list(SPANS),
        "what": what,
        "writes": site.writes.running(),
        **paged(chosen, after, further),
    }


@page("/audit/{op_id}", "operation.html")
async def operation(site: Site, request: Request) -> dict[str, Any]:
    op_id = id_of(request.path_params["op_id"])
    behind = op_id + 1 if op_id < MOST else None
    found = await site.ask(or_missing, site.ops.audit, after=behind, limit=1)
    if isinstance(found, Refused):
        return {"found": found, "one": None, "what": what}
    if not found or found[0].op_id != op_id:
        raise HTTPException(404, f"there is no operation {op_id} of {site.app.table.name}")
    wanted = request.query_params.get("payload") == "1"
    changes = shown.changes(found[0].changes, site.settings.redact, payloads=wanted)
    return {"found": found, "one": found[0], "what": what, "changed": changes}


# --- A write that was begun: its progress, its result, and a button that ends it.

SOON_SECONDS = 1.5
"""How long the answer to a form waits for the write: most have ended by then."""
LOOK_SECONDS = 0.02
HELP = ADVICE | {
    Why.DONE: "the last choice of the order (force) runs it again",
    Why.RAN_LATER: (
        "the second choice of the order runs it and then, in order, the failed and dead messages "
        "behind it; the last one (force) runs it out of order"
    ),
    Why.KEY_TAKEN: "the last choice of the order (force) runs it without its key",
    Why.UNDATED: "`msgworker release --nobody --any-age` gives it back, if no consumer works on it",
}
"""The advice for each reason, in the words of the pages."""


async def begun(request: Request, work: Work, **about: Any) -> Response:
    site = site_of(request)
    write = site.writes.start(work, by=site.viewer(request).name, **about)
    for _ in range(int(SOON_SECONDS / LOOK_SECONDS)):
        if write.over.is_set():
            break
        await asyncio.sleep(LOOK_SECONDS)
    site.forget()
    return RedirectResponse(
        site.url(request, "write", {"op": write.op_id}, write_id=write.write_id), 303
    )


def running_write(site: Site, request: Request) -> RunningWrite | None:
    return site.writes.get(request.path_params["write_id"])


@page("/writes/{write_id}", "write.html")
async def write(site: Site, request: Request) -> dict[str, Any] | Response:
    found = running_write(site, request)
    if found is None:
        op_id = whole(request.query_params, "op", 0, 0, 2**62) or None
        return site.render(request, "write_gone.html", 404, op_id=op_id)
    result, over = found.result, found.over.is_set()
    return {"write": found, "result": result, "advice": HELP, "over": over}


@page("/writes/{write_id}/end", method="POST", name="write_end")
async def end(site: Site, request: Request) -> Response:
    site.need(request, Role.OPERATOR)
    missing = "this process does not know that write; the audit shows it"
    found = there(running_write(site, request), missing)
    found.end()
    return RedirectResponse(site.url(request, "write", write_id=found.write_id), 303)
