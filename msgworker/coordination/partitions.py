"""Each shard has one owner at a time: members share the shards out among themselves."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgworker.config import YEAR_SECONDS, number, whole
from msgworker.coordination.lease import (
    Lease,
    LockCentre,
    check_name,
    group_of,
    need_centre,
    new_owner,
)
from msgworker.db.errors import reason_of
from msgworker.errors import ConfigError, LocksUnavailable, SchemaError
from msgworker.instance.state import InstanceView, Scope, ScopeMember
from msgworker.table.columns import MOST_SHARDS, Slice
from msgworker.table.spec import MessageTable

# --- The assignment of shards: pure functions of the live members and the present owners.
#
# All members compute the same function of the same leases, so no leader is needed. If they see
# different leases for a moment, two may want a shard; its lease has only one owner.

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


# --- A member whose slice changes: a thread of its own talks to the lock centre.
#
# The claim loop only reads its result, and never waits for it.

OUTAGE_SECONDS = 1.0


class Moving:
    """Start, stop and the loop of the thread; a subclass implements one step."""

    def __init__(self, instance: InstanceView, name: str) -> None:
        self.instance = instance
        self.log = instance.log
        self.lock = threading.Lock()
        self.leaving = False
        self.others: frozenset[int] = frozenset()
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._away_since: float | None = None
        self._can = ""  # what is so again when it is no longer away
        self._thread = threading.Thread(target=self._run, name=f"msgworker-{name}", daemon=True)

    def step(self) -> float | None:
        """One step; returns the pause in seconds, None = end."""
        raise NotImplementedError

    def may_look(self) -> bool:
        """Whether there is a place where it may look now."""
        raise NotImplementedError

    def away(self) -> float:
        since = self._away_since
        return 0.0 if since is None or self.may_look() else monotonic() - since

    def outage(self, error: Exception | None) -> None:
        """Called at the first failure to reach the centre, and at its end (None)."""

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self.leaving = True
        self.wake()

    def stop(self, seconds: float) -> None:
        self.leave()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        self._stopping.set()
        self.wake()

    def wake(self) -> None:
        """Cut the pause short."""
        self._woken.set()

    def columns(self, shards: Iterable[int], count: int) -> tuple[int, ...]:
        """The numbers of these shards of `count`, of those that are in the table."""
        return columns(shards, count, self.instance.tables.spec.shards, self.others)

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause = self._guarded()
            if pause is None:
                return
            self._woken.wait(pause)
            self._woken.clear()

    def _guarded(self) -> float | None:
        try:
            pause = self.step()
        except Exception as error:
            self._tell(error)
        else:
            self._tell(None)
            return pause
        return OUTAGE_SECONDS

    def _tell(self, error: Exception | None) -> None:
        if (error is None) is (self._away_since is None):
            return
        self._away_since = None if error is None else monotonic()
        if error is None:
            self.log.warning("scope: %s again", self._can)
        elif isinstance(error, LocksUnavailable | SchemaError):
            self._can = "the locks can be reached"
            self.log.warning("scope: the locks cannot be reached: %s; trying again", error)
        else:
            self._can = "it is known where to look"
            why = error if isinstance(error, ConfigError) else reason_of(error)
            self.log.error("scope: not known where to look: %s; trying again", why, exc_info=error)
        self.outage(error)

    def in_hand(self, count: int) -> set[int]:
        """The shards, of `count`, with messages in flight."""
        return {part % count for part in self.instance.holding() if isinstance(part, int)}


def columns(
    shards: Iterable[int], count: int, kept: int, others: Iterable[int] = ()
) -> tuple[int, ...]:
    """The numbers in the column `shard` that belong to these shards of `count`.

    kept: how many numbers `App.send` writes. others: those that other producers have written
    besides. Each belongs to the shard of its remainder, so that a scope may have fewer shards than
    the table.
    """
    wanted = set(shards)
    numbers = itertools.chain(range(kept), others)
    return tuple(sorted({k for k in numbers if k % count in wanted} | wanted))


def ranges(numbers: Collection[int]) -> str:
    """Numbers as a text: "0-3, 7"."""
    parts: list[list[int]] = []
    for one in sorted(numbers):
        if parts and parts[-1][-1] == one - 1:
            parts[-1][1:] = [one]
        else:
            parts.append([one])
    return ", ".join("-".join(map(str, part)) for part in parts) or "none"


def monotonic() -> float:
    """For pauses only; `Lease.live` judges leases."""
    return time.monotonic()


# --- The scope.
#
# A member holds a lease on its own name, and the owner of a shard a lease on the shard. Every
# member computes the assignment from these leases itself; there is no leader. A shard that moves to
# another member is released when none of its messages is in flight.

LOOK_SECONDS = 0.5
"""Seconds between two reads of the members, up to the number of members at which this is cheap;
larger groups read less often."""
LOOK_PER_MEMBER = 0.01
MOVING_SECONDS = 0.1
"""The same while shards move."""
MOVING_PER_MEMBER = 0.002
JOIN_SECONDS = 0.25
"""Seconds between joining and the first shards: members that start together see each other by then,
so that the first one does not take shards that must move again."""
MOST_GROUP = 100


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard with its present and its next owner; the latter is None if they are the same."""

    shard: int
    cur: str | None
    req: str | None


class Partitions(Scope):
    """Shares out `shards` parts of the table among all workers that have this scope.

    locks: a lock centre. shards: the number of parts; the same for all members, as `assign` and the
    topics that they handle. A message belongs to the part that is the remainder of its shard.
    assign: sticky, round_robin, or fn(members, shards, owners) -> {shard: member}.
    ttl: seconds after which the shards of a member that died are free; heartbeat: the interval of
    renewals, a third of that or less. drain_timeout: seconds that a moving shard may be
    kept for its in-flight messages. group: names the fleet at the lock centre; default: the name of
    the table. Fleets on tables of one name in several databases need one each, if they share a
    lock centre.

    While the locks cannot be reached a member works on its shards for 0.9 x ttl, then stops.
    Raises ConfigError.
    """

    by = "shard"

    def __init__(
        self,
        locks: LockCentre,
        shards: int = 64,
        assign: Assign = sticky,
        *,
        ttl: float = 30.0,
        heartbeat: float | None = None,
        drain_timeout: float = 30.0,
        group: str = "",
    ) -> None:
        need_centre("Partitions", locks)
        if not callable(assign):
            raise ConfigError(f"assign must be callable, got {assign!r:.80}")
        self.locks = locks
        self.shards = whole("shards", shards, 1, MOST_SHARDS)
        self.assign = assign
        self.ttl = number("ttl", ttl, 0.3, 86_400)
        self.heartbeat = number("heartbeat", ttl / 3 if heartbeat is None else heartbeat, 0.01, ttl)
        if self.ttl < 3 * self.heartbeat * (1 - 1e-9):
            raise ConfigError(
                f"ttl must be at least three heartbeats: one that is late must not cost the "
                f"shards; got ttl={ttl:g}, heartbeat={self.heartbeat:g}"
            )
        self.drain_timeout = number("drain_timeout", drain_timeout, 0, YEAR_SECONDS)
        self.group = group
        if group:
            check_name(group)
            if len(group) > MOST_GROUP:
                raise ConfigError(f"group has at most {MOST_GROUP} characters, got {group!r:.120}")

    def __repr__(self) -> str:
        return f"Partitions({self.locks!r}, shards={self.shards})"

    def join(self, instance: InstanceView) -> ScopeMember:
        """A new member."""
        kept = instance.tables.spec.shards
        if self.shards > kept:
            instance.log.warning(
                "scope: %r has more shards than the table: App.send writes the shards 0 to %d, so "
                "who owns others gets none of its messages; take %d, or fewer",
                *(self, kept - 1, kept),
            )
        return Member(self, instance)

    def prefix(self, spec: MessageTable) -> str:
        """The prefix of the names of its locks."""
        return f"{self.group or group_of(spec, MOST_GROUP)}:"

    def view(self, spec: MessageTable) -> tuple[list[str], dict[int, str]]:
        """The present members, and the owner of each shard."""
        prefix = self.prefix(spec)
        members, owners = [], {}
        for lease in self.locks.held(prefix):
            kind, _, rest = lease.name.removeprefix(prefix).partition(":")
            if kind == "member" and rest == lease.owner:  # else it is a lock of a program's own
                members.append(rest)
            elif kind == "shard" and rest.isdecimal() and int(rest) < self.shards:
                owners[int(rest)] = lease.owner
        return sorted(members), owners

    def target(self, members: list[str], owners: Mapping[int, str]) -> dict[int, str]:
        """The assignment of shards to members."""
        try:
            found = self.assign(members, range(self.shards), owners)
            return {shard: found[shard] for shard in range(self.shards) if shard in found}
        except Exception as error:
            name = getattr(self.assign, "__qualname__", self.assign)
            raise ConfigError(f"assign={name} failed: {reason_of(error)}") from error

    def status(self, spec: MessageTable | None = None) -> list[Shard]:
        """All shards, for operators. spec: their table; default: the default table. Raises
        LocksUnavailable."""
        members, owners = self.view(spec or MessageTable())
        asked = requested(self.target(members, owners), owners)
        return [Shard(n, owners.get(n), asked.get(n)) for n in range(self.shards)]


class Member(Moving):
    """One instance as a member of the partition group."""

    def __init__(self, scope: Partitions, instance: InstanceView) -> None:
        super().__init__(instance, "partitions")
        self.scope = scope
        self.owner = ""
        self._settled = False  # all that is to be ours is
        self._prefix = scope.prefix(instance.tables.spec)
        self._member: Lease | None = None
        self._held: dict[int, Lease] = {}
        self._draining: dict[int, float] = {}  # since when
        self._missing: dict[int, float] = {}  # what is to be ours and is not, since when
        self._warned = False
        self._looking: frozenset[int] = frozenset()
        self._values: tuple[Any, tuple[int, ...]] = (None, ())
        self._renewed_at = 0.0
        self._beat = scope.heartbeat

    # ------------------------------------------------------------ for the claim loop

    def slice(self) -> Slice | None:
        with self.lock:
            self._looking = frozenset() if self.leaving else frozenset(self._mine())
            mine = self._looking
        if not mine:
            return None
        if self._values[0] != (mine, self.others):
            self._values = ((mine, self.others), self.columns(mine, self.scope.shards))
        return Slice("shard", self._values[1])

    def may_look(self) -> bool:
        with self.lock:
            return bool(self._mine())

    def _mine(self) -> list[int]:
        return [n for n, one in self._held.items() if n not in self._draining and one.live()]

    def looked(self, *, complete: bool, rest: float | None = None, full: bool = False) -> None:
        with self.lock:
            self._looking = frozenset()

    def reach(self) -> Slice | None:
        with self.lock:
            if self.leaving or not self._is_steady():
                return None
            return Slice("shard", self.columns(self._mine(), self.scope.shards))

    @property
    def steady(self) -> bool:
        with self.lock:
            return self._is_steady()

    def _is_steady(self) -> bool:
        kept = len(self._held.keys() - self._draining.keys())
        return self._settled and kept == len(self._mine())  # else it looks nowhere for a while

    def go_round(self, values: Collection[Any] | None = None) -> None:
        """It always looks at all of its shards."""

    def info(self) -> Mapping[str, Any]:
        with self.lock:
            owned = sorted(self._mine())
        return {
            "kind": "partitions",
            "group": self._prefix[:-1],
            "shards": self.scope.shards,
            "owned": owned,
            "ttl": self.scope.ttl,
            "heartbeat": self.scope.heartbeat,
        }

    # ------------------------------------------------------------ one step

    def step(self) -> float | None:
        if self.leaving:
            return self._leave()
        if self._keep():
            return JOIN_SECONDS
        members, owners = self.scope.view(self.instance.tables.spec)
        if self.owner not in members:  # expired since: handled by the next step
            self._renewed_at = 0.0
            return MOVING_SECONDS
        target = self.scope.target(members, owners)
        now = monotonic()
        with self.lock:
            for shard, lease in self._held.items():
                if target.get(shard) == self.owner and lease.live():
                    self._draining.pop(shard, None)
                else:
                    self._draining.setdefault(shard, now)
        self._give_up(target)
        mine = [n for n, to in target.items() if to == self.owner]
        self._take([n for n in mine if n not in self._held and n not in owners])
        self._warn_of_missing([n for n in mine if n not in self._held], members, owners, now)
        self._settled = not self._missing
        pause = min(self._beat, max(LOOK_SECONDS, LOOK_PER_MEMBER * len(members)))
        if self._draining or self._missing:
            pause = min(pause, max(MOVING_SECONDS, MOVING_PER_MEMBER * len(members)))
        return pause * random.uniform(0.9, 1.0)  # never longer: a heartbeat is promised

    def _keep(self) -> bool:
        """Renew the membership and the owned shards, or join again under another name. Returns
        whether it has just joined."""
        now = monotonic()
        # What is not live may still be ours, as with ZooKeeper behind a lost connection.
        due = now - self._renewed_at >= 0.9 * self._beat
        if self._member is not None and (due or not self._member.live()):
            self._renew(now)
        if self._member is not None:
            return False
        self.owner = new_owner(self.instance.instance_id())
        members = f"{self._prefix}member:"
        self._member = self.scope.locks.acquire(members + self.owner, self.owner, self.scope.ttl)
        self._renewed_at = now
        try:
            self.scope.locks.forget_expired(members)
        except LocksUnavailable as error:  # a login that may not delete, say: the rows stay
            self.log.debug("members that died long ago are left in the locks: %s", error)
        if self._member is not None:  # ZooKeeper's last as long as its session
            self._beat = min(self.scope.heartbeat, self._member.ttl / 3)
        return True

    def _renew(self, now: float) -> None:
        own = [self._member] if self._member is not None else []
        kept = self.scope.locks.renew_all([*own, *self._held.values()])
        self._renewed_at = now
        if self._member is not None and self._member not in kept:
            self._forget()
            return
        with self.lock:
            lost = [n for n, lease in self._held.items() if lease not in kept]
            for shard in lost:
                del self._held[shard]
                self._draining.pop(shard, None)
        if lost:
            self._log("lost", lost, "their leases were taken away")

    def _forget(self) -> None:
        """The lease of the member is lost, and others may own its shards now: stop all work under
        the old name."""
        with self.lock:
            lost, self._held = self._held, {}
            self._draining.clear()
            self._member = None
        self._settled, self._missing = False, {}
        self._log("lost", list(lost), f"the lease of member {self.owner} was lost")
        with suppress(LocksUnavailable):  # they may outlive that of the member
            self.scope.locks.release_all([*lost.values()])

    def _give_up(self, target: Mapping[int, str]) -> None:
        """Release shards that move, when none of their messages is in flight or `drain_timeout` is
        over."""
        now = monotonic()
        late: list[int] = []
        given = self._free(now, late)
        if given:
            leases = [self._held[shard] for shard in given]
            try:
                self.scope.locks.release_all(leases)
            except LocksUnavailable:  # some may be free by now, so they are not ours any more
                for lease in leases:
                    lease.end("its release got no answer")
                raise
            with self.lock:
                for shard in given:
                    del self._held[shard]
                    self._draining.pop(shard, None)
            to = ", ".join(sorted({target[n] for n in given if n in target})) or "any member"
            self._log("released", given, f"for {to}")
        if late:
            self._log("late", late, f"messages were in flight for {self.scope.drain_timeout:g} s")

    def _free(self, now: float, late: list[int]) -> list[int]:
        with self.lock:
            busy = self._looking | self.in_hand(self.scope.shards)
            free = []
            for shard, since in self._draining.items():
                if shard not in busy:
                    free.append(shard)
                elif now - since >= self.scope.drain_timeout:
                    late.append(shard)
        return free + late

    def _take(self, shards: list[int]) -> None:
        if not shards:
            return
        names = {f"{self._prefix}shard:{shard}": shard for shard in shards}
        leases = self.scope.locks.acquire_all(list(names), self.owner, self.scope.ttl)
        taken = {names[lease.name]: lease for lease in leases}
        if not taken:
            return
        with self.lock:
            self._held |= taken
        self._log("acquired", list(taken), f"{len(self._held)} of {self.scope.shards} are ours")
        self.instance.wake()

    def _warn_of_missing(
        self, shards: list[int], members: list[str], owners: Mapping[int, str], now: float
    ) -> None:
        """Say once that another one keeps shards for longer than a member may."""
        self._missing = {n: self._missing.get(n, now) for n in shards}
        late: list[int] = []
        for shard, since in self._missing.items():
            most = self.scope.ttl
            if owners.get(shard) in members:
                most += self.scope.drain_timeout
            late += [shard] if shard in owners and now - since > most else []
        late = [shard for shard in late if owners[shard] == owners[late[0]]]
        if late and not self._warned:
            whose = f"locks of group {self._prefix[:-1]} that {owners[late[0]]} holds"
            see = self.scope.locks.listed
            self._log("missing", late, f"their messages wait for {whose}; see {see}")
        self._warned = bool(late)

    def _leave(self) -> float | None:
        """Leave as a member first, so that no shard is assigned to us; then release the shards."""
        if self._member is not None:
            self.scope.locks.forget(self._member)
            self._member = None
        now = monotonic()
        with self.lock:
            for shard in self._held:
                self._draining.setdefault(shard, now)
        self._give_up({})
        if not self._held:
            return None
        if now - self._renewed_at >= self._beat:
            self._renew(now)
        return 0.05

    def _log(self, event: str, shards: list[int], why: str) -> None:
        facts = {"event": f"shards_{event}", "shards": sorted(shards), "owner": self.owner}
        level = "warning" if event in ("lost", "late", "missing") and shards else "info"
        getattr(self.log, level)("shards %s %s: %s", ranges(shards), event, why, extra=facts)
