"""Many machines on one table: locks, and who works on what.

All of this is advice: it says where to look next. Who may write is decided by the message table
alone, so a lock that is stale, split or gone costs time, never truth.
"""

from msgworker.coordination.assign import round_robin, sticky
from msgworker.coordination.database import DatabaseLocks
from msgworker.coordination.dealer import Dealer
from msgworker.coordination.holding import hold
from msgworker.coordination.lease import Lease, LockCentre, new_owner
from msgworker.coordination.partitions import Partitions, Shard
from msgworker.coordination.redis import RedisLocks
from msgworker.coordination.scopes import Everywhere, Instance
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
