"""Instances and what they work with: schedules, partitions and locks, the system."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from msgworker.coordination.centres import LazyCentre
from msgworker.coordination.lease import Lease
from msgworker.queries.counts import Sizes
from msgworker.queries.instances import InstanceInfo, Life
from msgworker.web.site import Refused, Site, or_missing, page

ROWS = 500
NAMED = 12
"""Topics that a row names."""


def trouble(one: InstanceInfo) -> str:
    """What is wrong with it, "" = nothing."""
    if one.life is Life.LIVE:
        if one.stopped:
            return "has stopped; a handler has outlived its grace time"
        return "misses its heartbeat" if one.silent else ""
    return {
        Life.DEAD: "its lease has run out",
        Life.TAKEN_OVER: f"{one.taken_by} gives its messages back",
        Life.NO_LEASE: "it has no lease, but messages are claimed by it",
        Life.FOREIGN: "claimed by a consumer that gives no name",
    }[one.life]


@page("/instances", "instances.html", live=True)
async def instances(site: Site, request: Request) -> dict[str, Any]:
    found = await site.look(site.ops.instances)
    rows = [(one, trouble(one)) for one in found]
    if len(rows) > ROWS:  # first those that need help
        rows = sorted(rows, key=lambda row: not row[1])[:ROWS]
    return {"rows": rows, "left": len(found) - len(rows), "named": NAMED}


# --- Schedules: their next ticks, and what stops them.

CATCH_UP = {"last": "the last one is sent", "all": "all are sent", "none": "none is sent"}
CATCH_UP["one"] = "the last one is sent, unless one waits"
OVERLAP = {"skip": "skipped", "replace": "takes its place"}


@page("/schedules", "schedules.html")
async def schedules(site: Site, request: Request) -> dict[str, Any]:
    found = await site.ask(or_missing, site.ops.schedules)
    there = await site.ask(or_missing, site.ops.can_schedule)
    return {"rows": found, "there": there, "catch_up": CATCH_UP, "overlap": OVERLAP, "most": ROWS}


# --- Partitions and locks: who holds which part of the table, and which lock.

SHARDS = 40
"""Numbers of shards that a row names."""


@dataclass(slots=True)
class PartitionGroup:
    """Workers that share a table by partitions: its members, and the shards of each owner."""

    name: str
    members: set[str] = field(default_factory=set)
    shards: dict[str, list[int]] = field(default_factory=dict)

    @property
    def owners(self) -> list[tuple[str, bool, list[int]]]:
        """Each owner or member, whether it is a member, and its shards."""
        names = sorted(self.members | set(self.shards))
        return [(name, name in self.members, sorted(self.shards.get(name, []))) for name in names]


def split(held: Iterable[Lease]) -> tuple[list[PartitionGroup], list[Lease]]:
    """The locks of partition groups, by group, and the others."""
    groups: dict[str, PartitionGroup] = {}
    others = []
    for one in held:
        group, _, rest = one.name.partition(":")
        kind, _, name = rest.partition(":")
        if kind == "member" and name:
            groups.setdefault(group, PartitionGroup(group)).members.add(name)
        elif kind == "shard" and name.isdecimal() and len(name) < 10:
            shards = groups.setdefault(group, PartitionGroup(group)).shards
            shards.setdefault(one.owner, []).append(int(name))
        else:
            others.append(one)
    return sorted(groups.values(), key=lambda one: one.name), others


def scoped_instances(found: Iterable[InstanceInfo]) -> list[tuple[str, str]]:
    """Instances that look at a part of the table, and at which."""
    return [
        (one.instance_id, ", ".join(f"{name} {value}" for name, value in sorted(one.scope.items())))
        for one in found
        if one.instance_id is not None and one.scope
    ]


def kept(title: str, act: str, found: list[Lease] | Refused) -> dict[str, Any]:
    """What the page shows of a lock centre. act: the kind of write that takes a lock away."""
    groups, rows = ([], []) if isinstance(found, Refused) else split(found)
    return {
        "title": title,
        "act": act,
        "missing": found if isinstance(found, Refused) else None,
        "groups": groups,
        "rows": rows,
        "left": max(0, len(rows) - ROWS),
    }


async def _elsewhere(site: Site, there: LazyCentre) -> list[Lease] | Refused:
    def read() -> list[Lease]:
        return site.ops.locks(centre=there.centre())

    try:
        return await site.ask(read)
    except HTTPException as error:  # the page shows the locks of the database nevertheless
        return Refused(error.detail)


@page("/locks", "locks.html")
async def locks(site: Site, request: Request) -> dict[str, Any]:
    there = site.elsewhere
    own = await site.ask(or_missing, site.ops.locks)
    found = [kept("this database", "release-lock", own)]
    if there is not None:
        held = await _elsewhere(site, there)
        title = there.place or "the lock centre of --locks"
        found.append(kept(title, "release-lock-elsewhere", held))
    return {
        "centres": found,
        "most": ROWS,
        "places": scoped_instances(await site.look(site.ops.instances)),
        "named": SHARDS,
    }


# --- System: what doctor finds, sizes of tables, settings with their origins.


@page("/system", "system.html")
async def system(site: Site, request: Request) -> dict[str, Any]:
    findings, sizes = await asyncio.gather(site.look(site.ops.doctor), sizes_of(site))
    return {"findings": findings, "sizes": sizes, "values": site.options.values}


async def sizes_of(site: Site) -> Sizes | None:
    """None where they cannot be had now: a table is missing, or locked for longer than the
    deadline. What is wrong is among the findings of doctor."""
    try:
        return await site.look(site.ops.sizes)
    except HTTPException as error:
        if error.status_code != 503:
            raise
        return None
