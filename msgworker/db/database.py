"""What each supported database can do: a row in DIALECTS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

# --- The capabilities of each supported database: a row in DIALECTS.


@dataclass(frozen=True, slots=True)
class Dialect:
    """Capabilities of a database by which our statements differ.

    partial_indexes: an index may have a WHERE; else finished rows are kept out by a CASE.
    case_index: how a CASE is indexed: "column" (a generated column) or "function".
    guard_case: the same for the guard.
    stored_columns: generated columns are stored, not virtual.
    oldest_index: open rows can be read in order of age without reading finished ones.
    recursive_skip_scan: a recursive query can skip from object to object along an index.
    slices_by_age: entries of the index of slices are in order of age, so that those that leave
    together are on few pages; else by object.
    arrays: a whole batch is sent as arrays, and a WITH may contain an UPDATE.
    on_conflict: an INSERT can step back from the entry of one unique index.
    latest_by_lock: a locking read sees what was committed after the snapshot of the transaction.
    ordered_update: an UPDATE changes its rows in the order that it names.
    blocks: several statements may be sent as one block, see `block_of`.
    row_locks, skip_locked: SELECT ... FOR UPDATE [SKIP LOCKED] exists.
    share_locks: shared row locks exist, with SKIP LOCKED.
    certifies: row locks are those of one server of several, which find out at COMMIT who has
    changed the same row: what relies on a lock must change the row, too (Galera).
    defers: constraints and triggers may be deferred to the COMMIT, unless a transaction forbids it.
    update_ignore: the prefix that makes an UPDATE skip rows that violate the guard.
    rowcount_includes_ignored: the row count of such an UPDATE includes the skipped rows.
    max_ids: how many ids one IN list may have.
    bare_unions: a branch of a UNION may have its own ORDER BY and LIMIT, without a derived table.
    json_lists: a list of ids is sent as one JSON text, so that the statement stays the same.
    index_hint: how a query names the index it must use; planners guess badly about indexes that
    hold a
        small, fast-changing part of a table.
    tuned: statements that set and reset planner options for the plans of the claim, on the claim's
    connection.
    wide_join_settings: the same for joins of a large part of the table with itself.
    notify: a commit can wake up listeners.
    settles_at_once: how many batches of outcomes an instance writes at the same time; more than one
    only where that was measured to be faster.
    partitioned: of this message table, not of a database: it is partitioned by the hash of the
    object, so that only an index with the object can be unique.
    one_writer: transactions that write exclude each other in the whole database.
    max_name: the longest name of a table or column, in bytes.
    loose_types: a column takes every value, whatever its type.
    storage_engines: a table has one of several, some of them without transactions.
    text_in_bytes: the length of a text is counted in bytes, not in characters.
    pads_chars: values read from a CHAR(n) are padded with blanks.
    texts_as_instants: a column of texts can be compared with instants.
    slow_sums: a SUM of whole numbers is one of decimals, which takes twice the time of floats.
    key_collation: the collation of object ids, if a column needs one of its own.
    """

    name: str
    partial_indexes: bool = False
    case_index: Literal["column", "function"] | None = None
    guard_case: Literal["column", "function"] | None = None
    stored_columns: bool = False
    oldest_index: bool = False
    recursive_skip_scan: bool = False
    slices_by_age: bool = False
    arrays: bool = False
    on_conflict: bool = False
    latest_by_lock: bool = False
    ordered_update: bool = False
    blocks: bool = False
    row_locks: bool = True
    share_locks: bool = False
    certifies: bool = False
    skip_locked: bool = True
    defers: bool = False
    update_ignore: str | None = None
    rowcount_includes_ignored: bool = False
    max_ids: int = 1000
    bare_unions: bool = False
    json_lists: bool = False
    index_hint: str | None = None
    tuned: tuple[str, str] | None = None
    wide_join_settings: tuple[str, str] | None = None
    notify: bool = False
    settles_at_once: int = 1
    partitioned: bool = False
    one_writer: bool = False
    max_name: int = 128
    loose_types: bool = False
    storage_engines: bool = False
    text_in_bytes: bool = False
    pads_chars: bool = False
    texts_as_instants: bool = False
    slow_sums: bool = False
    key_collation: str | None = None


DIALECTS = {
    d.name: d
    for d in (
        Dialect(
            "postgresql",
            max_name=63,
            pads_chars=True,
            partial_indexes=True,
            oldest_index=True,
            recursive_skip_scan=True,
            arrays=True,
            on_conflict=True,
            share_locks=True,
            settles_at_once=2,
            defers=True,
            max_ids=10_000,
            # A bitmap scan reads all rows of a deep object to give the first few.
            tuned=("SET enable_bitmapscan = off", "RESET enable_bitmapscan"),
            # Before the table is analyzed it looks small, and a nested loop over it takes hours.
            wide_join_settings=("SET enable_nestloop = off", "RESET enable_nestloop"),
            notify=True,
        ),
        Dialect(
            "sqlite",
            partial_indexes=True,
            oldest_index=True,
            recursive_skip_scan=True,
            on_conflict=True,
            slices_by_age=True,  # a commit writes each page that it has changed, whole
            row_locks=False,
            skip_locked=False,
            update_ignore="OR IGNORE",
            max_ids=10_000,
            json_lists=True,
            index_hint="INDEXED BY {}",
            one_writer=True,
            loose_types=True,
        ),
        Dialect(
            "mariadb",
            max_name=64,
            text_in_bytes=True,
            texts_as_instants=True,
            slow_sums=True,
            key_collation="utf8mb4_nopad_bin",
            case_index="column",
            guard_case="column",
            share_locks=True,
            settles_at_once=2,
            # After a crash of the server InnoDB may take an index on a virtual column as corrupted.
            stored_columns=True,
            storage_engines=True,
            latest_by_lock=True,
            ordered_update=True,
            update_ignore="IGNORE",
            rowcount_includes_ignored=True,
            bare_unions=True,
            index_hint="FORCE INDEX ({})",
        ),
        Dialect(
            "mysql",
            max_name=64,
            text_in_bytes=True,
            texts_as_instants=True,
            slow_sums=True,
            key_collation="utf8mb4_0900_bin",
            case_index="column",
            guard_case="function",  # MySQL 8 allows a CASE as a key part: no column needed
            storage_engines=True,
            latest_by_lock=True,
            ordered_update=True,
            update_ignore="IGNORE",
            rowcount_includes_ignored=True,
            bare_unions=True,
            index_hint="FORCE INDEX ({})",
        ),
        Dialect(
            "oracle",
            case_index="function",
            guard_case="function",
            oldest_index=True,
            pads_chars=True,
            blocks=True,
            defers=True,
            max_ids=500,  # an IN list over 1,000 elements is ORA-01795
            index_hint="FIRST_ROWS(100) INDEX(%(name)s {})",
        ),
    )
}
NAMES = tuple(DIALECTS)


# --- An INSERT that steps back from a conflict, and the ids that an INSERT tells.


def insert_unless(
    name: str,
    table: sa.Table,
    values: dict[str, Any],
    column: sa.ColumnElement[Any],
    where: sa.ColumnElement[bool],
) -> sa.Insert:
    """An INSERT of nothing where the partial unique index on this column has the entry already."""
    unless: dict[str, Any] = {"index_elements": [column], "index_where": where}
    if name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table).values(values).on_conflict_do_nothing(**unless)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table).values(values).on_conflict_do_nothing(**unless)


def tells_no_other_ids(dialect: sa.Dialect) -> bool:
    """Whether the driver knows of an INSERT only what the counter of a table has given: not an id
    that comes by a trigger, or from a sequence."""
    return dialect.name in ("mysql", "mariadb", "sqlite")


def returns_ids(dialect: sa.Dialect) -> bool:
    """Whether an INSERT can return what it has inserted."""
    version = dialect.server_version_info or ()
    if dialect.name == "sqlite":
        return version >= (3, 35)
    return bool(getattr(dialect, "is_mariadb", False)) and version >= (10, 5)
