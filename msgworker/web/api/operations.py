"""Instances, schedules, limits and locks, and writes that may last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from starlette.exceptions import HTTPException

from msgworker.coordination.lease import Lease
from msgworker.ops.records import ScheduleInfo
from msgworker.ops.results import Progress, Repaired, Tell
from msgworker.queries.instances import InstanceInfo
from msgworker.queries.remaining import TopicLimit
from msgworker.web import shown
from msgworker.web.api.calling import Call, Endpoint, Page, Part, Why, part_of, plain
from msgworker.web.jobs import Job, TooMany
from msgworker.web.sessions import Role
from msgworker.web.threads import AFTER

# --- Writes that may last, such as a throttled rerun: a job, for which the request waits a while.

WAIT_SECONDS = 5.0
BEGIN_SECONDS = 60.0
"""A write that has not begun by then is ended, and answered with an error."""
LOOK_SECONDS = 0.02


async def lasting(
    call: Call, title: str, write: Callable[[Tell], Repaired], *, wait: float = WAIT_SECONDS
) -> Repaired | Progress:
    """The result of a write, or how far it is if it takes longer than `wait` seconds.

    Raises what it raises; HTTPException 503 if too many run.
    """
    failed: list[Exception] = []

    def work(tell: Tell) -> Repaired:
        try:
            return write(tell)
        except Exception as error:
            failed.append(error)
            raise

    by = call.site.viewer(call.request).name
    try:
        job = call.site.jobs.start(work, title=title, by=by, back="overview", back_text="Overview")
    except TooMany as error:
        raise HTTPException(503, str(error), {"Retry-After": "5"}) from error
    begun = time.monotonic()
    while not _answers(job, time.monotonic() - begun, wait):
        await asyncio.sleep(LOOK_SECONDS)
    if failed:
        raise call.site.hardships.answer(failed[0], job.attempt.left) or failed[0]
    if isinstance(job.result, Repaired):
        return job.result
    if job.progress is None or job.op_id is None:
        left = job.attempt.give_up()
        text = (
            f"the messages were not found and counted within {BEGIN_SECONDS:g} s, so it was ended"
        )
        rest = AFTER.get(left, "nothing was done; name fewer")
        raise HTTPException(503, f"{text}; {rest}")
    return job.progress


def _answers(job: Job, seconds: float, wait: float) -> bool:
    """Whether there is something to answer."""
    if job.over.is_set() or seconds > max(wait, BEGIN_SECONDS):
        return True
    return seconds > wait and job.op_id is not None


# --- Instances, schedules, limits and locks.


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that is held. age: seconds since it was acquired. ttl: seconds left."""

    name: str
    owner: str
    token: int
    age: float | None
    ttl: float


class Release(Why):
    """force: also from a live one, see the dashboard's documentation."""

    force: bool = Field(default=False, strict=True)


async def list_instances(call: Call) -> Page:
    """Live instances, then dead and foreign ones."""
    found = await call.site.look(call.ops.instances)
    return part_of(call, found, lambda one: one.instance_id)


async def release_instance(call: Call) -> Repaired | Progress:
    """Give back the messages of a dead instance; of a live one with force, which takes as long as
    its lease."""
    given = call.body.model_dump()
    write = call.acting.release
    if given["dry_run"]:
        return await call.site.ask(write, call.path("instance"), **given)
    name = call.path("instance")
    title = f"release of {shown.cut(name, 60)}, by the API"
    return await lasting(call, title, lambda tell: write(name, **given, progress=tell))


async def list_schedules(call: Call) -> Page:
    """Schedules with their next times; payloads are not shown."""
    found = await call.site.look(call.ops.schedules)
    rows: list[Any] = [_schedule(one) for one in found]
    return part_of(call, rows, lambda one: one["name"])


def _schedule(one: ScheduleInfo) -> dict[str, Any]:
    told: dict[str, Any] = plain(one)
    return told | {"payload": None}


async def pause_schedule(call: Call) -> Repaired:
    """Let a schedule not fire from now on."""
    return await _on_schedule(call, call.acting.pause_schedule)


async def resume_schedule(call: Call) -> Repaired:
    """Let a paused schedule fire again."""
    return await _on_schedule(call, call.acting.resume_schedule)


async def run_schedule_now(call: Call) -> Repaired:
    """Send the message of a schedule now; its ticks do not change."""
    return await _on_schedule(call, call.acting.run_now)


async def delete_schedule(call: Call) -> Repaired:
    """Delete a schedule from the table; its messages stay."""
    return await _on_schedule(call, call.acting.delete_schedule)


async def _on_schedule(call: Call, write: Any) -> Repaired:
    name = call.path("name")
    if all(one.name != name for one in await call.site.ask(call.ops.schedules)):
        raise HTTPException(404, f"there is no schedule {shown.cut(name, 60)!r}; see /schedules")
    done: Repaired = await call.site.ask(write, name, **call.body.model_dump())
    return done


async def list_limits(call: Call) -> Page:
    """The topics with max_running or rate, and what is used of them."""
    found = await call.site.look(call.ops.limits)
    return part_of(call, found, lambda one: one.topic)


async def delete_limit(call: Call) -> Repaired:
    """Forget the limits of a topic, until an instance declares them again."""
    return await call.site.ask(
        call.acting.remove_limit, call.path("topic"), **call.body.model_dump()
    )


class Locks(Part):
    """centre: those of the database, or of the other lock centre that the dashboard knows."""

    centre: Literal["database", "other"] = "database"


class ReleaseLock(Release):
    """centre: where it is, see the list of locks."""

    centre: Literal["database", "other"] = "database"


def _placed(call: Call, centre: str) -> dict[str, Any]:
    """The argument that says where locks are; may wait for the lock centre."""
    there = call.site.elsewhere
    return {"centre": there.centre()} if centre == "other" and there is not None else {}


def _known(call: Call, centre: str) -> None:
    if centre == "other" and call.site.elsewhere is None:
        raise HTTPException(404, "the dashboard knows no other lock centre: start it with --locks")


async def list_locks(call: Call) -> Page:
    """The locks that are held now."""
    where = call.query.centre
    _known(call, where)

    def read() -> list[Lease]:
        return call.ops.locks(**_placed(call, where))

    found = await call.site.ask(read)
    rows = [Lock(one.name, one.owner, one.token, one.age, one.ttl) for one in found]
    return part_of(call, rows, lambda one: one.name)


async def release_lock(call: Call) -> Repaired:
    """Take a lock away from its holder; needs force."""
    given = call.body.model_dump()
    where = given.pop("centre")
    _known(call, where)
    acting, name = call.acting, call.path("name")

    def release() -> Repaired:
        return acting.release_lock(name, **given, **_placed(call, where))

    return await call.site.ask(release)


_SCHEDULE: dict[str, Any] = {
    "paths": {"name": "the name of a schedule"},
    "tag": "schedules",
    "role": Role.OPERATOR,
    "body": Why,
}
_ADMIN: dict[str, Any] = {"role": Role.ADMIN}
ENDPOINTS = [
    Endpoint(
        "GET", "/instances", list_instances, InstanceInfo, query=Part, page=True, tag="instances"
    ),
    Endpoint(
        "POST",
        "/instances/{instance:path}/release",
        release_instance,
        Repaired,
        body=Release,
        paths={"instance": "the id of an instance"},
        tag="instances",
        role=Role.OPERATOR,
    ),
    Endpoint(
        "GET", "/schedules", list_schedules, ScheduleInfo, query=Part, page=True, tag="schedules"
    ),
    Endpoint("POST", "/schedules/{name:path}/pause", pause_schedule, Repaired, **_SCHEDULE),
    Endpoint("POST", "/schedules/{name:path}/resume", resume_schedule, Repaired, **_SCHEDULE),
    Endpoint("POST", "/schedules/{name:path}/run-now", run_schedule_now, Repaired, **_SCHEDULE),
    Endpoint("DELETE", "/schedules/{name:path}", delete_schedule, Repaired, **(_SCHEDULE | _ADMIN)),
    Endpoint("GET", "/limits", list_limits, TopicLimit, query=Part, page=True, tag="limits"),
    Endpoint(
        "DELETE",
        "/limits/{topic:path}",
        delete_limit,
        Repaired,
        body=Why,
        paths={"topic": "the name of a topic"},
        tag="limits",
        **_ADMIN,
    ),
    Endpoint("GET", "/locks", list_locks, Lock, query=Locks, page=True, tag="locks"),
    Endpoint(
        "POST",
        "/locks/{name:path}/release",
        release_lock,
        Repaired,
        body=ReleaseLock,
        paths={"name": "the name of a lock"},
        tag="locks",
        **_ADMIN,
    ),
]
