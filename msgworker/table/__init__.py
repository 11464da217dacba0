"""The message table: columns by role, the predicates of the protocol, and the indexes.

A user writes a `MessageTable`: names and rules. The statements are built from `Tables`: the same
for one database, with the columns that exist.

columns     what each column holds, its type, and what is lost without it
spec        MessageTable: names, rules, and which rows are messages
tables      Tables: the predicates of the protocol
indexes     the guard and the claim indexes: a class of Tables for each kind of database
build       our own tables; Tables of the columns of a database; the versions of the schema
"""

from msgworker.table.build import (
    AUDIT,
    CANCEL,
    COUNTED,
    HISTORY,
    JOB_TABLE,
    LEAST,
    LIMIT,
    LOCK,
    MAX_ACTOR,
    MAX_JOB,
    MAX_LOCK,
    MAX_LOCK_OWNER,
    MAX_REASON,
    MAX_WAS_ERROR,
    MAX_WAS_OWNER,
    NEWEST,
    NUMBERS_OF_HISTORY,
    OPERATION,
    OWN,
    PAUSE,
    RAN_COUNTS,
    SCHEDULE,
    VERSIONS,
    WAITED_COUNTS,
    Need,
    OwnTable,
    build_tables,
    live_names,
    own_tables,
    reached,
    tables_for,
    version_of,
)
from msgworker.table.columns import (
    ADDED,
    BESIDE,
    COLUMNS,
    DEFAULT_NAME,
    DEFAULT_TRIES,
    FAILED_MARK,
    HELD_KEY,
    INSTANTS,
    JOB,
    JOB_STATUS,
    LEAST_HEADERS,
    LONGEST_ID,
    MAX_ERROR,
    MAX_HEADERS,
    MAX_INSTANCE_TYPE,
    MAX_KEY,
    MAX_OBJECT_ID,
    MAX_SCHEDULE,
    MAX_TOPIC,
    MOST_PRIORITY,
    MOST_SHARDS,
    NAMED_ONLY,
    NUMBERS,
    OPEN_OBJECT,
    OWN_PREFIX,
    REQUIRED,
    ROLES,
    RUNNING_OBJECT,
    SLICES,
    UNIQUE,
    URGENT,
    URGENT_RANK,
    WIDE,
    Cols,
    Slice,
)
from msgworker.table.spec import MessageTable, named_where, where_problem
from msgworker.table.tables import Tables, lit, text_lit
