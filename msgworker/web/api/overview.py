"""The overview, topics, series for charts, failures, objects that wait, jobs, and the audit."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from msgworker.queries.counts import History, Overview, Sizes, Timings, TopicInfo
from msgworker.queries.failures import Failures
from msgworker.queries.jobs import JobInfo
from msgworker.queries.lanes import LaneInfo
from msgworker.store.audit import AuditEntry, Operation
from msgworker.web import shown
from msgworker.web.api import calling
from msgworker.web.api.calling import ApiCall, Page, endpoint, page_of
from msgworker.web.api.operations import job_of
from msgworker.web.site import or_404


class Span(calling.ApiInput):
    """window: of time, up to now."""

    window: Literal["1h", "6h", "24h"] = "1h"


class Window(Span):
    """window: of time, up to now. topic: only this one."""

    topic: calling.Topic | None = None


@endpoint("GET /overview", Overview)
async def get_overview(call: ApiCall) -> Overview:
    """Counts up to 10,000 by state and topic, the oldest message, instances."""
    return await call.site.look(call.ops.overview)


@endpoint("GET /topics", TopicInfo, query=calling.ListInput, page=True)
async def list_topics(call: ApiCall) -> Page:
    """Topics, with counts, pauses and limits: all, or those of the messages that were counted."""
    found = await call.site.look(call.ops.overview)
    return page_of(call, found.topics, lambda one: one.topic, complete=found.names_all)


@endpoint("GET /metrics/series", History, query=Window, tag="overview")
async def get_series(call: ApiCall) -> History:
    """What instances did in each step of a window."""
    found: History = await call.site.look(
        call.ops.history, call.query.window, topic=call.query.topic
    )
    return found


@endpoint("GET /metrics/topics", Timings, query=Span, tag="topics")
async def get_timings(call: ApiCall) -> Timings:
    """What was done of each topic in a window, and how long it took."""
    return await call.site.look(call.ops.timings, call.query.window)


@endpoint("GET /sizes", Sizes, tag="overview")
async def get_sizes(call: ApiCall) -> Sizes:
    """The bytes of the tables and of their indexes; null = unknown."""
    return await call.site.look(call.ops.sizes)


# --- Groups of failures, and objects that wait.


class Groups(calling.Paging):
    """topic, since, job: only failures of this topic, since this instant, and of this job."""

    topic: calling.Topic | None = None
    since: calling.Instant | None = None
    job: calling.JobIdText | None = None


class Lanes(calling.Paging):
    """by: "behind", those with most behind their head, one page; "blocked", those whose head is
    blocked first, one page; "object", all, in pages."""

    by: Literal["behind", "blocked", "object"] = "behind"


@endpoint("GET /failures", Failures, query=Groups, page=True)
async def list_failures(call: ApiCall) -> Page:
    """Dead and failing messages grouped by error, the largest group first."""
    return Page(await call.site.ask(call.ops.failures, **call.query.model_dump()))


@endpoint("GET /lanes", LaneInfo, query=Lanes, page=True)
async def list_lanes(call: ApiCall) -> Page:
    """Objects that wait, with their heads and how many messages are behind them."""
    return Page(await call.site.ask(call.ops.lanes, **call.query.model_dump()))


# --- Jobs.


class Jobs(calling.ApiInput):
    """state: "open" = those that have not completed, "ended" = the others."""

    limit: calling.Limit = 50
    after: calling.IdText | None = None
    state: Literal["open", "ended"] | None = None


@endpoint("GET /jobs", JobInfo, query=Jobs, page=True)
async def list_jobs(call: ApiCall) -> Page:
    """Jobs, the newest first, and how far each is; payloads are not shown."""
    asked = call.query.model_dump(exclude={"state"})
    state = call.query.state
    is_open = None if state is None else state == "open"
    found = await call.site.ask(call.ops.jobs, is_open=is_open, **asked)
    return Page(found, [replace(one, payload=None) for one in found])


@endpoint("GET /jobs/{job_id}", JobInfo)
async def get_job(call: ApiCall) -> JobInfo:
    """One job, and how far it is; its payload is not shown."""
    return replace(await job_of(call), payload=None)


# --- The audit: what was asked, by whom, from where and why; and operations as they run.


class Entries(calling.ApiInput):
    """kind, actor: exactly. since: started since. msg_id: what was done to this message. payload:
    "1" shows payloads before an edit and after it, without what is hidden by the settings."""

    limit: calling.Limit = 50
    after: calling.IdText | None = None
    kind: calling.Kind | None = None
    actor: calling.Actor | None = None
    since: calling.Instant | None = None
    msg_id: calling.IdText | None = None
    payload: calling.Flag = "0"


@endpoint("GET /audit", AuditEntry, query=Entries, page=True)
async def list_audit(call: ApiCall) -> Page:
    """Operations, the newest first."""
    given = call.query.model_dump()
    asked, redact = given.pop("payload") == "1", call.site.options.redact
    found = await call.site.ask(call.ops.audit, **given)
    found[:] = [
        replace(one, changes=shown.changes(one.changes, redact, payloads=asked)) for one in found
    ]
    return Page(found)


@endpoint("GET /operations/{op_id}", Operation, tag="audit")
async def get_operation(call: ApiCall) -> Operation:
    """An operation as it is now: how many messages it has changed, and whether it has ended."""
    op_id = call.number("op_id", "operation")
    found = await call.site.ask(call.ops.operation, op_id)
    return replace(or_404(found, f"there is no operation {op_id}; see /audit"), request=None)
