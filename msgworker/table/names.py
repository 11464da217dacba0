"""Names, roles and limits of the message table and of msgworker's own tables."""

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
    "priority",
    "unique_key",
    "unique_kept",
    "scheduled_for",
    "headers",
)
COLUMNS = REQUIRED + OPTIONAL
SLICES = {"shard": "shard", "instance_type": "flag"}
"""The columns that slice a table among instances, and the suffixes of their indexes."""
SHARDS = 64
MAX_FLAG = 30
"""The most characters of an instance_type."""
MOST_SHARDS = 32_767
"""The largest value of a SMALLINT."""
MOST_PRIORITY = 2_147_483_647
"""The highest priority; what is higher, lower than 1 or no number counts as 0."""
MAX_NAME = 30  # Oracle before 12.2
MAX_OBJECT_ID = 190
MAX_ERROR = 2000
MAX_HEADERS = 2000
"""The most characters of the headers of a message."""
LEAST_HEADERS = 73
"""Those of headers with a traceparent alone."""
MAX_SCHEDULE = 100
"""The most characters of a schedule's name."""
LONGEST_ID = 64
"""The most characters of an instance's id."""
MAX_TRIES = 3
ADDED = "msgworker_added"
"""Marks a column that a later version has added to one of our tables, with the effect of its
absence; instances work without it."""
FAILED = "failed"
"""The suffix of the index of failed and dead rows."""
URGENT = "urgent"
"""The suffix of the index of waiting rows with a priority."""
UNIQUE = "unique"
"""The suffix of the index of the unique keys that count."""
MAX_KEY = 190
"""The most characters of a unique key."""
NAMED_ONLY = ("priority", "unique_key", "unique_kept", "scheduled_for", "headers")
"""Columns of the default table, which a table of another name has only if they are named; a default
table of an earlier version works without them."""
BESIDE = (
    "lease",
    "item",
    "try",
    "operation",
    "audit",
    "pause",
    "limit",
    "cancel",
    "lock",
    "schedule",
    "history",
)
"""msgworker's own tables, without `msgworker_`."""
OWN_PREFIX = "mw_"
"""Prefix of our generated columns and of the parameters of our statements."""
NO_OBJECT = "~msgworker.none~"
"""The value of `open_object` for an open message without an object."""
NO_OBJECT_RUNNING = "~msgworker.running~"
"""The same for a running message, so that these are found without reading the others."""

OPEN_OBJECT = "mw_open_object"
FAILED_MARK = "mw_failed"
URGENT_RANK = "mw_urgent"
HELD_KEY = "mw_unique"
RUNNING_OBJECT = "mw_running_object"
"""Our generated columns, on databases that need them for indexes."""
