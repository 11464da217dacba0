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
    "doctor": "Finding",
    "ops.records": "ScheduleInfo",
    "ops.results": "Repaired Sent",
    "queries.counts": "Count History Overview Sizes Timings",
    "queries.explain": "Explanation",
    "queries.failures": "Failures",
    "queries.instances": "InstanceInfo TopicLimit",
    "queries.jobs": "Hold JobInfo JobState",
    "queries.lanes": "LaneInfo LanePlace",
    "queries.messages": "MessageInfo",
    "store.audit": "AuditEntry Edited Operation",
    "store.bounded": "Found",
    "store.controls": "Pause PausedJob",
    "store.items": "ItemInfo",
    "store.tries": "Try",
}
"""The modules of what is returned, each with its names: imported when one of them is asked for."""


class Ops(Jobs, Edits, Upkeep, Scheduling, Locking):
    """Reads and repairs for operators, in short transactions."""


def __getattr__(name: str) -> typing.Any:
    home = next((home for home, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"msgworker.{home}"), name)
    return found
