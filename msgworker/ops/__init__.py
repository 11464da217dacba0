"""Reads and repairs for operators, and what they return; the CLI calls them."""

from __future__ import annotations

import importlib
import typing

from msgworker.ops.edits import Edits
from msgworker.ops.records import Jobs, Locking, Scheduling
from msgworker.ops.upkeep import Upkeep

if typing.TYPE_CHECKING:
    from msgworker.doctor import Finding
    from msgworker.ops.records import ScheduleInfo
    from msgworker.ops.results import Repaired, Sent
    from msgworker.queries.counts import Count, History, Overview, Sizes, Timings
    from msgworker.queries.explain import Explanation
    from msgworker.queries.failures import Failures
    from msgworker.queries.instances import InstanceInfo, TopicLimit
    from msgworker.queries.jobs import Hold, JobInfo, JobState
    from msgworker.queries.lanes import LaneInfo, LanePlace
    from msgworker.queries.messages import MessageInfo
    from msgworker.store.audit import AuditEntry, Edited, Operation
    from msgworker.store.bounded import Found
    from msgworker.store.controls import Pause, PausedJob
    from msgworker.store.items import ItemInfo
    from msgworker.store.tries import Try

_HOMES = {
    "AuditEntry": "store.audit",
    "Count": "queries.counts",
    "Edited": "store.audit",
    "Explanation": "queries.explain",
    "Failures": "queries.failures",
    "Finding": "doctor",
    "Found": "store.bounded",
    "History": "queries.counts",
    "Hold": "queries.jobs",
    "InstanceInfo": "queries.instances",
    "ItemInfo": "store.items",
    "JobInfo": "queries.jobs",
    "JobState": "queries.jobs",
    "LaneInfo": "queries.lanes",
    "LanePlace": "queries.lanes",
    "MessageInfo": "queries.messages",
    "Operation": "store.audit",
    "Overview": "queries.counts",
    "Pause": "store.controls",
    "PausedJob": "store.controls",
    "Repaired": "ops.results",
    "ScheduleInfo": "ops.records",
    "Sent": "ops.results",
    "Sizes": "queries.counts",
    "Timings": "queries.counts",
    "TopicLimit": "queries.instances",
    "Try": "store.tries",
}
"""The modules of what is returned, which are imported when a name is asked for."""


class Ops(Jobs, Edits, Upkeep, Scheduling, Locking):
    """Reads and repairs for operators, in short transactions."""


def __getattr__(name: str) -> typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"msgworker.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
