"""Reads and repairs for operators, and what they return; the CLI calls them."""

from __future__ import annotations

from msgworker.doctor import Finding
from msgworker.ops.edits import Edits
from msgworker.ops.records import Jobs, Locking, Scheduling
from msgworker.ops.results import Repaired
from msgworker.ops.upkeep import Upkeep
from msgworker.queries.counts import Count
from msgworker.queries.explain import Explanation
from msgworker.queries.failures import Failures
from msgworker.queries.instances import InstanceInfo
from msgworker.queries.jobs import Hold, JobInfo, JobState
from msgworker.queries.lanes import LaneInfo
from msgworker.queries.messages import MessageInfo
from msgworker.store.audit import AuditEntry, Edited, Operation
from msgworker.store.bounded import Found
from msgworker.store.controls import Pause, PausedJob
from msgworker.store.tries import Try

__all__ = [
    "AuditEntry",
    "Count",
    "Edited",
    "Explanation",
    "Failures",
    "Finding",
    "Found",
    "Hold",
    "InstanceInfo",
    "JobInfo",
    "JobState",
    "LaneInfo",
    "MessageInfo",
    "Operation",
    "Ops",
    "Pause",
    "PausedJob",
    "Repaired",
    "Try",
]


class Ops(Jobs, Edits, Upkeep, Scheduling, Locking):
    """Reads and repairs for operators, in short transactions."""
