"""Instances, schedules, limits and locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from starlette.exceptions import HTTPException

from msgworker.coordination.lease import Lease
from msgworker.ops.results import Progress, Repaired
from msgworker.ops.scheduling import ScheduleInfo
from msgworker.store.looking.instances import InstanceInfo
from msgworker.store.looking.limited import TopicLimit
from msgworker.web import shown
from msgworker.web.api.asked import Part, Why
from msgworker.web.api.calling import Call, Endpoint, Page, part_of
from msgworker.web.api.lasting import lasting
from msgworker.web.api.plain import plain
from msgworker.web.tokens import Role


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
