"""Who is to work on which shard: pure functions of who lives and who owns what now.

All members compute the same function of the same leases, so nobody has to decide for the others.
Where they see different leases for a moment, two may want a shard; its lease has one owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Assign = Callable[[Sequence[str], Sequence[int], Mapping[int, str]], Mapping[int, str]]
"""fn(members, shards, owners) -> target: shard -> member. `owners` names those of the shards that
somebody owns now, maybe somebody who is no member any more."""


def round_robin(
    members: Sequence[str], shards: Sequence[int], owners: Mapping[int, str]
) -> dict[int, str]:
    """The shards in turn to the members in their order, whoever owns them now.

    Balanced within one; a member more or less moves nearly all shards. {} without members.
    Source: the queue assignment of TBSchedule.
    """
    if not members:
        return {}
    return {shard: members[place % len(members)] for place, shard in enumerate(shards)}


def sticky(
    members: Sequence[str], shards: Sequence[int], owners: Mapping[int, str]
) -> dict[int, str]:
    """Balanced within one, moving as few shards as that takes. {} without members.

    Those who own most may keep one more than the others; what is free or too much goes to those
    who have too little, in the order of shards and members.
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
    """Whom each shard waits for: the member that is to have it, None where that one has it."""
    return {shard: None if owners.get(shard) == to else to for shard, to in target.items()}
