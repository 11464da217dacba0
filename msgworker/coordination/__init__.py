"""Many machines on one table: locks, and the division of work.

All of this is advice: it says where to look next. Only the message table decides who may write, so
a stale, split or lost lock costs time, never correctness.
"""

from msgworker.coordination.centres import Everywhere, Instance, OneJob
from msgworker.coordination.database import DatabaseLocks
from msgworker.coordination.dealer import Dealer
from msgworker.coordination.lease import Lease, LockCentre, hold, new_owner
from msgworker.coordination.partitions import Partitions, Shard, round_robin, sticky
from msgworker.coordination.redis import RedisLocks
from msgworker.coordination.segments import Segments
from msgworker.coordination.zookeeper import ZooKeeperLocks
from msgworker.errors import LeaseBusy, LeaseLost, LocksUnavailable

__all__ = [
    "DatabaseLocks",
    "Dealer",
    "Everywhere",
    "Instance",
    "Lease",
    "LeaseBusy",
    "LeaseLost",
    "LockCentre",
    "LocksUnavailable",
    "OneJob",
    "Partitions",
    "RedisLocks",
    "Segments",
    "Shard",
    "ZooKeeperLocks",
    "hold",
    "new_owner",
    "round_robin",
    "sticky",
]
