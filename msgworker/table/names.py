"""Names, roles and limits of the message table and of our own tables beside it."""

from __future__ import annotations

DEFAULT_NAME = "msgworker_message"
REQUIRED = ("msg_id", "object_id", "status", "error_try_times")
OPTIONAL = (
    "topic",
    "payload",
    "available_at",
    "claimed_by",
    "claimed_at",
    "crash_times",
    "later_times",
    "last_error",
    "created_at",
    "finished_at",
    "shard",
    "instance_type",
)
COLUMNS = REQUIRED + OPTIONAL
SLICES = {"shard": "shard", "instance_type": "flag"}
"""The columns that slice a table among instances, and the suffixes of their indexes."""
SHARDS = 64
MAX_FLAG = 30
"""Characters of an instance_type."""
MOST_SHARDS = 32_767
"""What a SMALLINT takes."""
MAX_NAME = 30  # Oracle before 12.2
MAX_OBJECT_ID = 190
MAX_ERROR = 2000
LONGEST_ID = 64
"""Characters of an instance's id."""
MAX_TRIES = 3
ADDED = "msgworker_added"
"""Marks a column that a later version has added to a table of ours, and says what is not kept where
it is missing; instances do without it."""
FAILED = "failed"
"""The suffix of the index of failed and dead rows."""
BESIDE = ("lease", "item", "try", "operation", "audit", "pause", "lock")
"""Our own tables beside the message table, without `msgworker_`."""
OWN_PREFIX = "mw_"
"""How our generated columns and the parameters of our statements begin."""
NO_OBJECT = "~msgworker.none~"
"""What `open_object` holds for an open message without an object."""
NO_OBJECT_RUNNING = "~msgworker.running~"
"""The same for a running one, so that those are found without reading all the others."""

OPEN_OBJECT = "mw_open_object"
FAILED_MARK = "mw_failed"
RUNNING_OBJECT = "mw_running_object"
"""Our generated columns, where a database needs them for its indexes."""
