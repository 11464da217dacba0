"""The message table: columns by role, the predicates of the protocol, and the indexes.

A user writes a `MessageTable`: names and rules. The statements are built from `Tables`: the same
for one database, with the columns that exist.

names       names, roles and limits
spec        MessageTable
columns     Cols: the columns by role
tables      Tables: the predicates of the protocol
build       Tables from a MessageTable and the columns of a database
indexes     the guard and the claim indexes: a class of Tables for each kind of database
priorities  rows with a priority, and their index
uniqueness  rows whose unique key counts, and their index
own         msgworker's own tables that every instance uses
versions    what each version of the schema has added
"""

from msgworker.table.build import (
    LEAST,
    NEWEST,
    VERSIONS,
    WITHOUT_TICK,
    WITHOUT_TRACE,
    Version,
    build_tables,
    live_names,
    reached,
    tables_for,
    version_of,
)
from msgworker.table.spec import (
    ADDED,
    BESIDE,
    COLUMNS,
    DEFAULT_NAME,
    FAILED,
    FAILED_MARK,
    HELD_KEY,
    LEAST_HEADERS,
    LONGEST_ID,
    MAX_ERROR,
    MAX_FLAG,
    MAX_HEADERS,
    MAX_KEY,
    MAX_OBJECT_ID,
    MAX_SCHEDULE,
    MAX_TRIES,
    MOST_PRIORITY,
    MOST_SHARDS,
    NAMED_ONLY,
    NO_OBJECT,
    NO_OBJECT_RUNNING,
    OPEN_OBJECT,
    OWN_PREFIX,
    REQUIRED,
    RUNNING_OBJECT,
    SLICES,
    UNIQUE,
    URGENT,
    URGENT_RANK,
    Cols,
    MessageTable,
    Slice,
    lit,
    text_lit,
)
from msgworker.table.tables import Tables

__all__ = [
    "ADDED",
    "BESIDE",
    "COLUMNS",
    "DEFAULT_NAME",
    "FAILED",
    "FAILED_MARK",
    "HELD_KEY",
    "LEAST",
    "LEAST_HEADERS",
    "LONGEST_ID",
    "MAX_ERROR",
    "MAX_FLAG",
    "MAX_HEADERS",
    "MAX_KEY",
    "MAX_OBJECT_ID",
    "MAX_SCHEDULE",
    "MAX_TRIES",
    "MOST_PRIORITY",
    "MOST_SHARDS",
    "NAMED_ONLY",
    "NEWEST",
    "NO_OBJECT",
    "NO_OBJECT_RUNNING",
    "OPEN_OBJECT",
    "OWN_PREFIX",
    "REQUIRED",
    "RUNNING_OBJECT",
    "SLICES",
    "UNIQUE",
    "URGENT",
    "URGENT_RANK",
    "VERSIONS",
    "WITHOUT_TICK",
    "WITHOUT_TRACE",
    "Cols",
    "MessageTable",
    "Slice",
    "Tables",
    "Version",
    "build_tables",
    "lit",
    "live_names",
    "reached",
    "tables_for",
    "text_lit",
    "version_of",
]
