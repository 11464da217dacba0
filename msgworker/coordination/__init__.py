"""Many machines on one table: locks, and who works on what.

All of this is advice: it says where to look next. Who may write is decided by the message table
alone, so a lock that is stale, split or gone costs time, never truth.
"""

from msgworker.coordination.database import DatabaseLocks
from msgworker.coordination.holding import hold
from msgworker.coordination.lease import Lease, LockCentre, new_owner
from msgworker.coordination.redis import RedisLocks
from msgworker.coordination.zookeeper import ZooKeeperLocks
from msgworker.errors import LeaseBusy, LeaseLost, LocksUnavailable

__all__ = [
    "DatabaseLocks",
    "Lease",
    "LeaseBusy",
    "LeaseLost",
    "LockCentre",
    "LocksUnavailable",
    "RedisLocks",
    "ZooKeeperLocks",
    "hold",
    "new_owner",
]
