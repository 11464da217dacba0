"""Audit: who changed what, from where, and why."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.queries.audited import AuditEntry
from msgworker.web.forms import MOST_ID, SPANS, Selection, id_of
from msgworker.web.site import Refused, or_missing, site_of

ROWS = 50
KINDS = (
    "rerun",
    "discard",
    "cancel",
    "release",
    "purge",
    "pause",
    "resume",
    "unlimit",
    "release-lock",
    "pause-schedule",
    "resume-schedule",
    "run-schedule",
    "delete-schedule",
)


def what(entry: AuditEntry) -> str:
    """What an operation was about, in a line."""
    parts = []
    for name, value in entry.filter.items():
        if value is None or value is False:
            continue
        if isinstance(value, list):
            more = f" and {len(value) - 5:,} more" if len(value) > 5 else ""
            value = ", ".join(map(str, value[:5])) + more
        parts.append(f"{name} {value}" if value is not True else name)
    return "; ".join(parts)


async def audit(request: Request) -> Response:
    site, query = site_of(request), request.query_params
    chosen = {name: query.get(name, "").strip() for name in ("message", "kind", "actor", "since")}
    chosen = {name: text for name, text in chosen.items() if text}
    after = query.get("after", "")
    asked: dict[str, Any] = {
        "kind": chosen.get("kind"),
        "actor": chosen.get("actor"),
        "since": Selection.of({"since": chosen.get("since", "")}).instant(),
        "after": id_of(after) if after else None,
    }
    msg_id = id_of(chosen["message"]) if "message" in chosen else None
    found = await site.ask(or_missing, partial(site.ops.audit, msg_id, **asked, limit=ROWS))
    more = None if isinstance(found, Refused) else found.next_after
    return site.render(
        request,
        "audit.html",
        rows=found,
        chosen=chosen,
        kinds=KINDS,
        spans=list(SPANS),
        what=what,
        first=chosen if after else None,
        more=None if more is None else chosen | {"after": more},
        jobs=site.jobs.running(),
    )


async def operation(request: Request) -> Response:
    site = site_of(request)
    op_id = id_of(request.path_params["op_id"])
    behind = op_id + 1 if op_id < MOST_ID else None
    found = await site.ask(or_missing, partial(site.ops.audit, after=behind, limit=1))
    if isinstance(found, Refused):
        return site.render(request, "operation.html", found=found, one=None, what=what)
    if not found or found[0].op_id != op_id:
        raise HTTPException(404, f"there is no operation {op_id} of {site.app.table.name}")
    return site.render(request, "operation.html", found=found, one=found[0], what=what)


routes = [
    Route("/audit", audit, name="audit"),
    Route("/audit/{op_id}", operation, name="operation"),
]
