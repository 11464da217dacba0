"""Audit: who changed what, from where, and why."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request

from msgworker.config import id_of
from msgworker.store.audit import AuditEntry, Kind
from msgworker.store.bounded import MOST
from msgworker.web import shown
from msgworker.web.forms import SPANS, Chosen
from msgworker.web.site import Refused, Site, or_missing, page, paged

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
    changes = shown.changes(found[0].changes, site.options.redact, payloads=wanted)
    return {"found": found, "one": found[0], "what": what, "changed": changes}
