"""Partitions and locks: who holds which part of the table, and which lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.coordination.lease import Lease
from msgworker.store.looking.instances import InstanceInfo
from msgworker.web.refused import Refused, or_missing
from msgworker.web.site import site_of

NAV = ("Locks", "locks")
ROWS = 500
SHARDS = 40
"""Numbers of shards that a row names."""


@dataclass(slots=True)
class Group:
    """Workers that share a table by partitions: its members, and the shards of each owner."""

    name: str
    members: set[str] = field(default_factory=set)
    shards: dict[str, list[int]] = field(default_factory=dict)

    @property
    def owners(self) -> list[tuple[str, bool, list[int]]]:
        """Each owner or member, whether it is a member, and its shards."""
        names = sorted(self.members | set(self.shards))
        return [(name, name in self.members, sorted(self.shards.get(name, []))) for name in names]


def split(held: Iterable[Lease]) -> tuple[list[Group], list[Lease]]:
    """The locks of partition groups, by group, and the others."""
    groups: dict[str, Group] = {}
    others = []
    for one in held:
        group, _, rest = one.name.partition(":")
        kind, _, name = rest.partition(":")
        if kind == "member" and name:
            groups.setdefault(group, Group(group)).members.add(name)
        elif kind == "shard" and name.isdecimal() and len(name) < 10:
            shards = groups.setdefault(group, Group(group)).shards
            shards.setdefault(one.owner, []).append(int(name))
        else:
            others.append(one)
    return sorted(groups.values(), key=lambda one: one.name), others


def places(found: Iterable[InstanceInfo]) -> list[tuple[str, str]]:
    """Instances that look at a part of the table, and at which."""
    told = []
    for one in found:
        if one.instance_id is not None and one.scope:
            text = ", ".join(f"{name} {value}" for name, value in sorted(one.scope.items()))
            told.append((one.instance_id, text))
    return told


async def locks(request: Request) -> Response:
    site = site_of(request)
    held = await site.ask(or_missing, partial(site.ops.locks))
    groups, others = split(() if isinstance(held, Refused) else held)
    return site.render(
        request,
        "locks.html",
        held=held,
        groups=groups,
        rows=others[:ROWS],
        left=max(0, len(others) - ROWS),
        places=places(await site.look(site.ops.instances)),
        named=SHARDS,
    )


routes = [Route("/locks", locks, name="locks")]
