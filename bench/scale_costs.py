"""What things cost a PostgreSQL, as measured, and what each database of a fleet has to do."""

from __future__ import annotations

from dataclasses import dataclass

from msgworker.coordination.partitions import LOOK_PER_MEMBER, LOOK_SECONDS
from msgworker.instance.claiming.passes import WINDOW


@dataclass(frozen=True, slots=True)
class Measured:
    """What things cost a PostgreSQL: CPU milliseconds of its backends, and statements.

    fast: per message of a drain with handlers that do nothing. message: per message where handlers
    take 0.5 s and an instance holds little; message_looks of them are looks. idle: per second of an
    instance that finds nothing. look: at one instance; wide_look: at 1,000; slice_look: of
    4 shards of 4,096. beat: of 10 instances, of 1,000 with 8,000 messages at 1. recovery: of a dead
    instance with 8 messages. members_look: Partitions, of 1,000 members and 4,096 shards. renewal:
    of the leases of a member. row_bytes: a message with a small payload, with its indexes.
    """

    fast_statements: float
    fast_cpu_ms: float
    message_statements: float
    message_cpu_ms: float
    message_looks: float
    idle_statements: float
    idle_cpu_ms: float
    look_cpu_ms: float
    wide_look_cpu_ms: float
    slice_look_cpu_ms: float
    beat_cpu_ms: float
    beat_of_1000_cpu_ms: float
    beat_statements: float
    recovery_cpu_ms: float
    lost_take_over_cpu_ms: float
    members_look_cpu_ms: float
    renewal_cpu_ms: float
    row_bytes: float


MEASURED = Measured(
    # 2026-11-23, PostgreSQL 15.18 at default durability on 2 shared cores of x86_64, Python 3.11.
    fast_statements=0.007,
    fast_cpu_ms=0.034,
    message_statements=3.3,
    message_cpu_ms=1.35,
    message_looks=0.875,
    idle_statements=2.2,
    idle_cpu_ms=0.35,
    look_cpu_ms=0.46,
    wide_look_cpu_ms=39.0,
    slice_look_cpu_ms=0.88,
    beat_cpu_ms=0.83,
    beat_of_1000_cpu_ms=13.1,
    beat_statements=5.0,
    recovery_cpu_ms=4.5,
    lost_take_over_cpu_ms=0.3,
    members_look_cpu_ms=7.3,
    renewal_cpu_ms=0.13,
    row_bytes=256.0,
)
BEAT_SECONDS = 10.0
LEASE_SECONDS = 30.0
BEAT_SHARE = 0.5
COMMIT_SECONDS = 0.002
LOOK_TO_FLAG_SECONDS = 0.01
"""Of round trips and Python, beside the look itself. With it the simulation wastes 3 to 10 % of the
claims of 8 instances with 10 messages for each thread; 15 of 440 were on 2026-11-23, busy as it
was."""
SHARDS_EACH = 4
"""Shards of a database for each of its instances: so few get twice the work of others."""
CONNECTIONS = 4
CONNECTIONS_OF_LOCKS = 2
LANES = 8
"""What an instance of 8 threads holds of slow work."""
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """How much is to be done, by how many: `messages` in `seconds`, each `handler_seconds` long."""

    instances: int = 1000
    messages: float = 1e9
    seconds: float = DAY
    threads: int = 8
    handler_seconds: float = 0.5

    @property
    def rate(self) -> float:
        """Messages per second, over all databases."""
        return self.messages / self.seconds

    @property
    def busy(self) -> float:
        """The share of its threads that is at work."""
        return self.rate * self.handler_seconds / (self.instances * self.threads)


@dataclass(frozen=True, slots=True)
class Load:
    """Of one database: statements and busy cores per second, by what they are for."""

    statements: dict[str, float]
    cores: dict[str, float]
    connections: int
    gigabytes: float


def load(fleet: Fleet, databases: int, scope: str, m: Measured = MEASURED) -> Load:
    """The load of one of so many databases; scope: everywhere, partitions or segments, of which the
    last one asks another lock centre."""
    n, rate = fleet.instances / databases, fleet.rate / databases
    looks = rate * m.message_looks
    wide = look_ms(n, m) if scope == "everywhere" else m.slice_look_cpu_ms
    beats = n / BEAT_SECONDS
    statements = {
        "messages": rate * m.message_statements,
        "polls": n * m.idle_statements,
        "heartbeats": beats * m.beat_statements,
        "locks": 0.0,
    }
    ms = {
        "messages": rate * m.message_cpu_ms + looks * max(0.0, wide - m.look_cpu_ms),
        "polls": n * m.idle_cpu_ms,
        "heartbeats": beats * between(n, m.beat_cpu_ms, m.beat_of_1000_cpu_ms),
        "locks": 0.0,
    }
    if scope == "partitions":
        views = n / view_seconds(n)
        rows = n + SHARDS_EACH * n
        statements["locks"] = views + 2 * beats
        ms["locks"] = views * m.members_look_cpu_ms * rows / 5096 + beats * m.renewal_cpu_ms
    size = fleet.messages / databases * m.row_bytes / 1e9
    cores = {part: value / 1000 for part, value in ms.items()}
    each = CONNECTIONS + (CONNECTIONS_OF_LOCKS if scope == "partitions" else 0)
    return Load(statements, cores, round(n * each), size)


def look_ms(instances: float, m: Measured = MEASURED) -> float:
    """A look at the oldest messages for as many as are claimed at once: it reads the shares of all
    instances to find its own, as far as the window and the ring go."""
    share = min(1.0, instances * max(1.0, 1 / m.message_looks) / WINDOW)
    return m.look_cpu_ms + share * (m.wide_look_cpu_ms - m.look_cpu_ms)


def between(instances: float, of_10: float, of_1000: float) -> float:
    """On the line through two measured points."""
    return of_10 + (instances - 10) * (of_1000 - of_10) / 990


def view_seconds(members: float, beat: float = BEAT_SECONDS) -> float:
    """Between two looks of a member at who is there; see Partitions."""
    return min(beat, max(LOOK_SECONDS, LOOK_PER_MEMBER * members))
