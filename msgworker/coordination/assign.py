"""The assignment of shards: pure functions of the live members and the present owners.

All members compute the same function of the same leases, so no leader is needed. If they see
different leases for a moment, two may want a shard; its lease has only one owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Assign = Callable[[Sequence[str], Sequence[int], Mapping[int, str]], Mapping[int, str]]
"""fn(members, shards, owners) -> target: shard -> member. `owners` has the shards that are owned
now, possibly by a former member."""


def round_robin(
    members: Sequence[str], shards: Sequence[int], owners: Mapping[int, str]
) -> dict[int, str]:
    """Assign the shards to the members in turn, regardless of present owners.

    Balanced within one; one member more or less moves nearly all shards. {} without members.
    Source: the queue assignment of TBSchedule.
    """
    if not members:
        return {}
    return {shard: members[place % len(members)] for place, shard in enumerate(shards)}


def sticky(
    members: Sequence[str], shards: Sequence[int], owners: Mapping[int, str]
) -> dict[int, str]:
    """Balanced within one, with the fewest moves. {} without members.

    The members with most shards may keep one more than the others; free and surplus shards go to
    members with too few, in the order of shards and members.
    """
    if not members:
        return {}
    order = sorted(shards)
    kept: dict[str, list[int]] = {member: [] for member in sorted(members)}
    for shard in order:
        owner = owners.get(shard)
        if owner in kept:
            kept[owner].append(shard)
    least, more = divmod(len(order), len(kept))
    by_size = sorted(kept, key=lambda member: (-len(kept[member]), member))
    quota = {member: least + (place < more) for place, member in enumerate(by_size)}
    target = {shard: member for member, own in kept.items() for shard in own[: quota[member]]}
    free = iter([shard for shard in order if shard not in target])
    for member, own in kept.items():
        for _ in range(quota[member] - len(own)):
            target[next(free)] = member
    return {shard: target[shard] for shard in shards}


def requested(target: Mapping[int, str], owners: Mapping[int, str]) -> dict[int, str | None]:
    """The next owner of each shard; None if it is the present one."""
    return {shard: None if owners.get(shard) == to else to for shard, to in target.items()}
