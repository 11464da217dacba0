"""The audit: what was asked, by whom, from where and why; and operations as they run."""

from __future__ import annotations

from dataclasses import replace

from starlette.exceptions import HTTPException

from msgworker.store.changing.audit import Operation
from msgworker.store.looking.audited import AuditEntry
from msgworker.web.api.asked import Actor, Asked, IdText, Instant, Kind, Limit
from msgworker.web.api.calling import Call, Endpoint, Page


class Entries(Asked):
    """kind, actor: exactly. since: started since. msg_id: what was done to this message."""

    limit: Limit = 50
    after: IdText | None = None
    kind: Kind | None = None
    actor: Actor | None = None
    since: Instant | None = None
    msg_id: IdText | None = None


async def list_audit(call: Call) -> Page:
    """Operations, the newest first."""
    return Page(await call.site.ask(call.ops.audit, **call.query.model_dump()))


async def get_operation(call: Call) -> Operation:
    """An operation as it is now: how many messages it has changed, and whether it has ended."""
    op_id = call.number("op_id", "operation")
    found = await call.site.ask(call.ops.operation, op_id)
    if found is None:
        raise HTTPException(404, f"there is no operation {op_id}; see /audit")
    return replace(found, request=None)


ENDPOINTS = [
    Endpoint("GET", "/audit", list_audit, AuditEntry, query=Entries, page=True, tag="audit"),
    Endpoint(
        "GET",
        "/operations/{op_id}",
        get_operation,
        Operation,
        paths={"op_id": "the number of an operation"},
        tag="audit",
    ),
]
