"""All but messages: instances, schedules, limits and locks, and writes that may last; the overview,
topics, series for charts, failures, objects that wait, jobs, and the audit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from pydantic import Field
from starlette.exceptions import HTTPException

from msgworker.coordination.lease import Lease
from msgworker.ops.records import ScheduleInfo
from msgworker.ops.results import OnProgress, Progress, Repaired
from msgworker.queries.counts import History, Overview, Sizes, Timings, TopicInfo
from msgworker.queries.failures import Failures
from msgworker.queries.instances import InstanceInfo, TopicLimit
from msgworker.queries.jobs import JobInfo
from msgworker.queries.lanes import LaneInfo
from msgworker.store.audit import AuditEntry, Operation
from msgworker.web import shown
from msgworker.web.api import calling
from msgworker.web.api.calling import ApiCall, Page, endpoint, page_of
from msgworker.web.site import or_404
from msgworker.web.threads import AFTER, RunningWrite
from msgworker.web.writes import ON_THINGS, OnThing

# --- Writes that may take long, such as a throttled rerun, whose end is awaited a while.

WAIT_SECONDS = 5.0
BEGIN_SECONDS = 60.0
"""A write that has not begun by then is ended, and answered with an error."""
LOOK_SECONDS = 0.02


async def lasting(
    call: ApiCall, title: str, write: Callable[[OnProgress], Repaired], *, resumes: bool = False
) -> Repaired | Progress:
    """The result of a write, or how far it is if it takes longer than WAIT_SECONDS. resumes: see
    `RunningWrite`.

    Raises what it raises; HTTPException 503 if too many run.
    """
    failed: list[Exception] = []

    def work(on_progress: OnProgress) -> Repaired:
        try:
            return write(on_progress)
        except Exception as error:
            failed.append(error)
            raise

    by = call.site.viewer(call.request).name
    running = call.site.writes.start(
        work, title=title, by=by, back="overview", back_text="Overview", resumes=resumes
    )
    begun = time.monotonic()
    while not _answers(running, time.monotonic() - begun):
        await asyncio.sleep(LOOK_SECONDS)
    if failed:
        raise call.site.read_errors.answer(failed[0], running.attempt.left) or failed[0]
    if running.result is not None:
        return running.result
    if running.progress is None or running.op_id is None:
        left = running.attempt.give_up()
        text = (
            f"the messages were not found and counted within {BEGIN_SECONDS:g} s, so it was ended"
        )
        rest = AFTER.get(left, "nothing was done; name fewer")
        raise HTTPException(503, f"{text}; {rest}")
    return running.progress


def _answers(running: RunningWrite, seconds: float) -> bool:
    """Whether there is something to answer."""
    if running.over.is_set() or seconds > max(WAIT_SECONDS, BEGIN_SECONDS):
        return True
    return seconds > WAIT_SECONDS and running.op_id is not None


# --- Instances, schedules, limits and locks.


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that is held. age: seconds since it was acquired. ttl: seconds left."""

    name: str
    owner: str
    token: int
    age: float | None
    ttl: float


class Release(calling.Why):
    """force: also from a live one, see the dashboard's documentation."""

    force: bool = Field(default=False, strict=True)


@endpoint("GET /instances", InstanceInfo, query=calling.ListInput, page=True)
async def list_instances(call: ApiCall) -> Page:
    """Live instances, then dead and foreign ones."""
    found = await call.site.look(call.ops.instances)
    return page_of(call, found, lambda one: one.instance_id)


@endpoint("GET /schedules", ScheduleInfo, query=calling.ListInput, page=True)
async def list_schedules(call: ApiCall) -> Page:
    """Schedules with their next times; payloads are not shown."""
    found = await call.site.look(call.ops.schedules)
    return page_of(call, [replace(one, payload=None) for one in found], lambda one: one.name)


@endpoint("GET /limits", TopicLimit, query=calling.ListInput, page=True)
async def list_limits(call: ApiCall) -> Page:
    """The topics with max_running or rate, and what is used of them."""
    found = await call.site.look(call.ops.limits)
    return page_of(call, found, lambda one: one.topic)


class Locks(calling.ListInput):
    """centre: those of the database, or of the other lock centre that the dashboard knows."""

    centre: Literal["database", "other"] = "database"


class ReleaseLock(Release):
    """centre: where it is, see the list of locks."""

    centre: Literal["database", "other"] = "database"


def _known(call: ApiCall, centre: str) -> None:
    if centre == "other" and call.site.elsewhere is None:
        raise HTTPException(404, "the dashboard knows no other lock centre: start it with --locks")


@endpoint("GET /locks", Lock, query=Locks, page=True)
async def list_locks(call: ApiCall) -> Page:
    """The locks that are held now."""
    where = call.query.centre
    _known(call, where)

    def read() -> list[Lease]:
        return call.ops.locks(**call.site.locks_at(where == "other"))

    found = await call.site.ask(read)
    rows = [Lock(one.name, one.owner, one.token, one.age, one.ttl) for one in found]
    return page_of(call, rows, lambda one: one.name)


def _add(act: OnThing) -> None:
    """The endpoint of a write about one thing."""
    place, name = act.api.rsplit(" ", 1)
    part = place[place.index("{") + 1 : place.index("}")].partition(":")[0]
    body = ReleaseLock if act.what == "lock" else Release if act.force else calling.Why

    @endpoint(place, Repaired, name=name, says=act.text, role=act.role, body=body)
    async def handler(call: ApiCall) -> Repaired | Progress:
        given = call.body.model_dump()
        about = await _about(call, act, part)
        where = given.pop("centre", "database")
        _known(call, where)
        write = partial(act.of(call.acting), about, **given)
        if act.counts and not given["dry_run"]:
            title = f"{act.kind} of {shown.cut(about, 60)}, by the API"
            return await lasting(call, title, lambda on_progress: write(progress=on_progress))
        run = call.site.count if act.counts else call.site.ask
        return await run(lambda: write(**call.site.locks_at(where == "other")))


async def job_of(call: ApiCall) -> JobInfo:
    """The job of the path; raises HTTPException."""
    job_id = call.number("job_id", "job")
    found = await call.site.ask(call.ops.job, job_id) if job_id > 0 else None
    return or_404(found, f"there is no job {job_id}; see /jobs")


async def _about(call: ApiCall, act: OnThing, part: str) -> str | int:
    """What ops takes for the thing that this part of the path names; raises HTTPException."""
    if act.what == "job":
        job = await job_of(call)
        if job.completed_at is not None and act.kind in ("cancel-job", "pause-job"):
            raise HTTPException(409, f"job {job.job_id} has completed")
        return job.job_id
    name = call.path(part)
    if act.what != "schedule" or any(
        one.name == name for one in await call.site.ask(call.ops.schedules)
    ):
        return name
    raise HTTPException(404, f"there is no schedule {shown.cut(name, 60)!r}; see /schedules")


for _act in ON_THINGS.values():
    if _act.api:
        _add(_act)


# --- The overview, topics, and series for charts.


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
