"""Contention in a fleet: claims, segments, shards that move, many that die at once."""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from bench.scale_costs import (
    BEAT_SECONDS,
    BEAT_SHARE,
    COMMIT_SECONDS,
    LANES,
    LEASE_SECONDS,
    LOOK_TO_FLAG_SECONDS,
    MEASURED,
    SHARDS_EACH,
    Measured,
    look_ms,
)
from msgworker.coordination import round_robin, sticky
from msgworker.instance.claiming.passes import WINDOW


def wasted_claims(
    instances: int, waiting: int, looks: int, rng: random.Random, m: Measured = MEASURED
) -> float:
    """The share of claims with Everywhere that another instance has won.

    The search as it is: the oldest rows, those at 1 among them, by shares of the objects; a ring
    over the objects where that gives too little; what is of others if that does, too; and each
    eighth look the oldest of all. One message per object; for each that is done another one comes.
    """
    queue = _Queue(instances, rng)
    for _ in range(waiting + instances * LANES // 2):
        queue.add()
    latency = look_ms(instances, m) / 1000 + LOOK_TO_FLAG_SECONDS
    room, looking = [LANES] * instances, [True] * instances
    events: list[tuple[float, int, float | list[float] | None]] = []  # None: a look is due
    events += [(rng.random() * 0.5, who, None) for who in range(instances)]
    heapq.heapify(events)
    offered = lost = done = 0
    while done < looks * instances:
        now, who, what = heapq.heappop(events)
        if isinstance(what, list):  # its flags
            won = [name for name in what if queue.flag(name)]
            offered, lost, done = offered + len(what), lost + len(what) - len(won), done + 1
            room[who] -= len(won)
            for name in won:
                heapq.heappush(events, (now + rng.expovariate(2.0), who, name))
            looking[who] = room[who] > 0
            if looking[who]:
                heapq.heappush(events, (now + (0.0 if won else 0.05), who, None))
            continue
        if what is not None:  # a handler has ended
            queue.finish(what)
            room[who] += 1
            if looking[who]:
                continue
            looking[who] = True
        heapq.heappush(events, (now + latency, who, queue.choose(who, room[who])))
    return lost / max(1, offered)


class _Queue:
    """Messages, each of an object of its own, whose name says where it stands among the objects."""

    def __init__(self, instances: int, rng: random.Random) -> None:
        self._rng = rng
        self._slots = instances
        self._share: dict[float, int] = {}  # by name, oldest first
        self._order: list[float] = []
        self._held: set[float] = set()
        self._cursor = [rng.random() for _ in range(instances)]
        self._turns = [rng.randrange(8) for _ in range(instances)]

    def add(self) -> None:
        name = self._rng.random()
        self._share[name] = self._rng.randrange(self._slots)
        insort(self._order, name)

    def flag(self, name: float) -> bool:
        """Whether no other instance was faster."""
        free = name in self._share and name not in self._held
        if free:
            self._held.add(name)
        return free

    def finish(self, name: float) -> None:
        self._held.discard(name)
        del self._share[name], self._order[bisect_left(self._order, name)]
        self.add()

    def choose(self, who: int, room: int) -> list[float]:
        self._turns[who] += 1
        slots = self._slots if self._turns[who] % 8 else 1
        rows = islice(self._share, min(WINDOW, LANES - room + room * slots))
        free = [name for name in rows if name not in self._held]
        own = [name for name in free if slots == 1 or self._share[name] == who]
        if len(own) < room:
            own += [name for name in self._ring(who, room * slots) if name not in own]
        chosen = own[:room]
        if len(chosen) < max(1, room // 4):
            others = [name for name in free if name not in chosen]
            chosen += others[: room - len(chosen)]
        return chosen

    def _ring(self, who: int, objects: int) -> list[float]:
        start = bisect_left(self._order, self._cursor[who])
        part = self._order[start : start + min(WINDOW, max(64, objects))]
        self._cursor[who] = part[-1] if part else 0.0
        return [n for n in part if n not in self._held and self._share[n] == who]


def segment_tries(walkers: int, segments: int, rng: random.Random) -> float:
    """How many locks a worker asks for until it has a segment, where the others hold theirs."""
    tries = []
    for _ in range(200):
        held = set(rng.sample(range(segments), min(walkers - 1, segments - 1)))
        start = rng.randrange(segments)
        tries.append(next(i + 1 for i in range(segments) if (start + i) % segments not in held))
    return sum(tries) / len(tries)


def moves(members: int, joined: int, left: int, rng: random.Random) -> tuple[int, int, int]:
    """Shards, and how many of them change their owner, sticky and by round robin, where so many
    come and go."""
    shards = range(members * SHARDS_EACH)
    before = [f"m{n:05}" for n in range(members)]
    gone = set(rng.sample(before, left))
    after = [one for one in before if one not in gone] + [f"n{n:05}" for n in range(joined)]
    counts = []
    for assign in (sticky, round_robin):
        was = assign(before, shards, {})
        living = {shard: owner for shard, owner in was.items() if owner not in gone}
        now = assign(sorted(after), shards, living)
        counts.append(sum(now[shard] != was[shard] for shard in shards))
    return len(shards), counts[0], counts[1]


@dataclass(frozen=True, slots=True)
class Storm:
    """What a recovery took: seconds from the death until the last message was given back;
    statements, of which `lost` were take-overs that another instance had won; the most per
    second."""

    seconds: float
    recovered: int
    statements: int
    lost: int
    peak: int
    cpu_seconds: float


def storm(instances: int, dead: int, rng: random.Random, m: Measured = MEASURED) -> Storm:
    """So many of a database's instances die at once, each with 8 messages in flight.

    Each survivor sees in its heartbeat which leases are over, and takes them over in any order: one
    wins each. A beat recovers for half its time at most.
    """
    expires = [LEASE_SECONDS - rng.random() * BEAT_SECONDS for _ in range(dead)]
    gone: set[int] = set()
    taken: set[int] = set()
    per_second: Counter[int] = Counter()
    last = cpu = 0.0
    lost = statements = 0
    win = m.recovery_cpu_ms / 1000 + 4 * COMMIT_SECONDS
    lose = m.lost_take_over_cpu_ms / 1000
    survivors = instances - dead
    events = [
        (LEASE_SECONDS - BEAT_SECONDS + rng.random() * BEAT_SECONDS, who, -1.0)
        for who in range(survivors)
    ]
    heapq.heapify(events)
    lists: dict[int, list[int]] = {}
    while len(gone) < dead and events:
        now, who, until = heapq.heappop(events)
        if until < 0:  # a beat begins
            seen = [one for one in range(dead) if expires[one] <= now and one not in taken]
            rng.shuffle(seen)
            lists[who], until = seen, now + BEAT_SHARE * BEAT_SECONDS
            heapq.heappush(events, (now + BEAT_SECONDS, who, -1.0))
        if not lists[who] or now > until:
            continue
        one = lists[who].pop()
        won = one not in taken
        taken.add(one)
        count = 7 if won else 1
        took = win if won else lose
        statements, lost = statements + count, lost + (not won)
        per_second[int(now)] += count
        cpu += m.recovery_cpu_ms / 1000 if won else lose
        if won:
            gone.add(one)
            last = max(last, now + took)
        heapq.heappush(events, (now + took, who, until))
    return Storm(last, len(gone), statements, lost, max(per_second.values(), default=0), cpu)
