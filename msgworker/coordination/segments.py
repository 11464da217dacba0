"""Segments of shards under locks: take one, empty its shards, continue with the next.

Each worker goes round the segments, from another starting point. A segment held by another worker
is tried again soon; an empty one is skipped for a while.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from msgworker.config import number
from msgworker.coordination.lease import Lease, LockCentre, check_name, need_centre, new_owner
from msgworker.coordination.partitions import Moving, monotonic
from msgworker.counted import span
from msgworker.errors import ConfigError
from msgworker.instance.state import InstanceView, Scope, ScopeMember
from msgworker.table.columns import MOST_SHARDS, Slice

BUSY_SECONDS = (0.05, 0.15)
EMPTY_SECONDS = 2.0
HOLD_SECONDS = 10.0
FULL_SECONDS = 1.0
"""A worker that cannot claim for longer than this leaves its segment to others."""
Layout = Mapping[str, Sequence[int]]


class Segments(Scope):
    """Looks at the shards of one segment at a time, while it holds the segment's lock.

    locks: a lock centre. segments: the name of each lock and its shards; a message belongs to the
    shard that is the remainder of its own by the number of shards named, from 0 on, all of which
    must be named.
    on_outage: while the locks cannot be reached, "stop" = look nowhere, "unscoped" = look at all
    shards: the message table keeps the order without any lock.
    ttl: seconds after which the lock of a worker that died is free. hold: the most seconds for
    which one segment is kept before the next.
    Raises ConfigError.
    """

    by = "shard"

    def __init__(
        self,
        locks: LockCentre,
        segments: Layout,
        on_outage: Literal["stop", "unscoped"] = "stop",
        *,
        ttl: float = 30.0,
        hold: float = HOLD_SECONDS,
    ) -> None:
        need_centre("Segments", locks)
        if on_outage not in ("stop", "unscoped"):
            raise ConfigError(f'on_outage must be "stop" or "unscoped", got {on_outage!r:.80}')
        self.locks = locks
        self.on_outage = on_outage
        self.ttl = number("ttl", ttl, 0.3, 86_400)
        self.hold = number("hold", hold, 0.01, 86_400)
        self.segments: Mapping[str, tuple[int, ...]] = _checked(segments)

    def change(self, segments: Layout) -> None:
        """Use another layout from the next round on, in all workers of this process. While other
        processes use the old one, two may look at one shard: that costs time, not order."""
        self.segments = _checked(segments)

    @property
    def shards(self) -> int:
        return 1 + max(shard for part in self.segments.values() for shard in part)

    def __repr__(self) -> str:
        return f"Segments({self.locks!r}, {len(self.segments)} segments of {self.shards} shards)"

    def join(self, instance: InstanceView) -> ScopeMember:
        """A new worker of the round."""
        return Walker(self, instance)


def _checked(segments: Any) -> Mapping[str, tuple[int, ...]]:
    if not isinstance(segments, Mapping) or not segments:
        raise ConfigError(f"segments must map names of locks to shards, got {segments!r:.120}")
    made: dict[str, tuple[int, ...]] = {}
    for name, shards in segments.items():
        check_name(name)
        if not isinstance(shards, Sequence) or isinstance(shards, str | bytes) or not shards:
            raise ConfigError(f"segment {name!r:.80} must be a list of shards, got {shards!r:.80}")
        for shard in shards:
            if isinstance(shard, bool) or not isinstance(shard, int):
                raise ConfigError(f"segment {name!r:.80}: {shard!r:.40} is no shard")
            if not 0 <= shard < MOST_SHARDS:
                raise ConfigError(
                    f"segment {name!r:.80}: shard {shard} is not 0 to {MOST_SHARDS - 1}"
                )
        made[name] = tuple(sorted(set(shards)))
    named = {shard for part in made.values() for shard in part}
    lacking = sorted(set(range(max(named) + 1)) - named)
    if lacking:
        raise ConfigError(
            f"shard {lacking[0]} is in no segment: no worker would handle its messages; name every "
            f"shard from 0 to {max(named)}"
        )
    return made


class Walker(Moving):
    """One instance on its way round the segments."""

    def __init__(
        self, scope: Segments, instance: InstanceView, clock: Callable[[], float] = monotonic
    ) -> None:
        super().__init__(instance, "segments")
        self.scope = scope
        self.owner = new_owner(instance.instance_id())
        self._clock = clock
        self._offset = zlib.crc32(self.owner.encode())
        self._segment = ""
        self._shards: tuple[int, ...] = ()
        self._lease: Lease | None = None
        self._since = self._renewed_at = 0.0
        self._empty_until: dict[int, float] = {}
        self._looking: tuple[int, ...] = ()  # at which shards, under the lock
        self._seen: set[int] = set()  # shards in which nothing could run when we last looked
        self._unscoped = False
        self._full_since: float | None = None  # when it last could claim no more
        self._busy: dict[str, float] = {}  # segments that others hold, since when

    # ------------------------------------------------------------ for the claim loop

    def slice(self) -> Slice | None:
        now = self._clock()
        with self.lock:
            lease = self._lease
            if self.leaving:
                return None
            if lease is not None and lease.live() and not self._is_empty(self._shards, now):
                self._looking = self._shards
                return Slice("shard", self.columns(self._shards, self.scope.shards))
            if self._unscoped:
                return self.reach()
        return None

    def looked(self, *, complete: bool, rest: float | None = None, full: bool = False) -> None:
        with self.lock:
            was, self._looking = self._looking, ()
            now, since, away = self._clock(), self._full_since, self._lease is None
            self._full_since = (now if since is None else since) if full else None
            if (since is not None and not full) if away else self._is_full(now):
                self.wake()  # to come back, or to leave
            if not was and not self._unscoped:
                return
            seen = was or range(self.scope.shards)
            if not complete:
                self._seen.difference_update(seen)
                return
            self._seen.update(seen)
            if was:
                pause = EMPTY_SECONDS if rest is None else min(EMPTY_SECONDS, rest)
                until = dict.fromkeys(was, now + pause)
                self._empty_until = self._empty_until | until  # the other thread may read it
        self.wake()

    @property
    def steady(self) -> bool:
        """Whether nothing could run in any shard when it was last looked at."""
        return self._seen.issuperset(range(self.scope.shards))

    def reach(self) -> Slice:
        count = self.scope.shards
        return Slice("shard", self.columns(range(count), count), exclusive=False)

    def go_round(self, values: Collection[Any] | None = None) -> None:
        count = self.scope.shards
        again = {n % count for n in (range(count) if values is None else values)}
        with self.lock:
            self._seen -= again
            skipped = self._empty_until.keys() & again
            self._empty_until = {n: t for n, t in self._empty_until.items() if n not in again}
        if skipped:
            self.wake()

    def info(self) -> Mapping[str, Any]:
        """All shards: its segment changes all the time."""
        return {"kind": "segments", "shards": self.scope.shards}

    # ------------------------------------------------------------ one step

    def may_look(self) -> bool:
        lease = self._lease
        return self._unscoped or (lease is not None and lease.live())

    def outage(self, error: Exception | None) -> None:
        self._unscoped = error is not None and self.scope.on_outage == "unscoped"
        if self._unscoped:
            self.log.warning("scope: looking at all shards until the locks can be reached")
            self.instance.wake()

    def step(self) -> float | None:
        now = self._clock()
        if self._lease is not None:
            return self._stay(now)
        if self.leaving:
            return None
        return self._go_on(now)

    def _stay(self, now: float) -> float:
        assert self._lease is not None
        # What is not live may still be ours, as with ZooKeeper behind a lost connection.
        if not self._lease.live() and not self._renewed(now):
            return 0.0
        if self._is_over(now):
            with self.lock:
                if self._looking:  # what was just found is still claimed under the lock
                    return 0.005
                lease, self._lease = self._lease, None
            self.scope.locks.release(lease)
            return 0.0
        if now - self._renewed_at >= self._lease.ttl / 3 and not self._renewed(now):
            return 0.0
        return min(self._lease.ttl / 3, max(0.01, self._since + self.scope.hold - now))

    def _is_over(self, now: float) -> bool:
        if self.leaving or self._is_empty(self._shards, now) or self._is_full(now):
            return True
        return now - self._since >= self.scope.hold

    def _is_full(self, now: float) -> bool:
        since = self._full_since
        return since is not None and now - since >= FULL_SECONDS

    def _is_empty(self, shards: Sequence[int], now: float) -> bool:
        return all(self._empty_until.get(shard, 0.0) > now for shard in shards)

    def _renewed(self, now: float) -> bool:
        assert self._lease is not None
        if self.scope.locks.renew(self._lease):
            self._renewed_at = now
            return True
        self.log.warning("segment %s is lost to us", self._segment)
        with self.lock:
            self._lease = None
        return False

    def _go_on(self, now: float) -> float:
        """Move to the next segment that is free and has messages."""
        if self._is_full(now):
            return EMPTY_SECONDS
        segments = self.scope.segments
        names = list(segments)
        busy = False
        for place in range(self._offset, self._offset + len(names)):
            name = names[place % len(names)]
            if self._is_empty(segments[name], now):
                continue
            lease = self.scope.locks.acquire(name, self.owner, self.scope.ttl)
            if lease is None:
                busy = True
                self._warn_of_busy(name, now)
                continue
            self._busy.pop(name, None)
            with self.lock:
                self._segment, self._shards, self._lease = name, segments[name], lease
                self._since = self._renewed_at = now
            self._offset = place + 1
            self.log.debug("segment %s is ours", name, extra={"event": "segment", "segment": name})
            self.instance.wake()
            return self.scope.hold
        if busy:
            return random.uniform(*BUSY_SECONDS)
        first = min((until for until in self._empty_until.values() if until > now), default=now)
        return max(BUSY_SECONDS[0], min(EMPTY_SECONDS, first - now))

    def _warn_of_busy(self, name: str, now: float) -> None:
        """Say that another one keeps a segment for longer than a worker does, once in that time."""
        most = self.scope.ttl + self.scope.hold
        if now - self._busy.setdefault(name, now) <= most:
            return
        self._busy[name] = now
        holder = self.scope.locks.holder(name)
        if holder is None or holder.age <= most:  # others take it in turns
            return
        text = "segment %s: its messages wait for its lock, which %s has held for %s; see %s"
        facts = {"event": "segment_busy", "segment": name}
        whose = (name, holder.owner, span(holder.age), self.scope.locks.listed)
        self.log.warning(text, *whose, extra=facts)
