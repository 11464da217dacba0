"""What the contract suite cannot do on a variant, by the names of tests. A test that is listed and
passes is an error, unless it fails only now and then there."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests import variants


class Excuse(NamedTuple):
    """variants, which: patterns of the variant's name and of the test's id. always: it never
    passes."""

    variants: str
    why: str
    which: str = ""
    always: bool = True


_POOLED = "pgbouncer-.*"
_MYSQL = "mysql-.*"
_NO_COLUMN = "the guard is an index on an expression there, without a column"
_ONE_TYPE = "the driver wants values of one type in a column of executemany"
_NO_KEYS = "no index over partitions keeps keys unique"
CANNOT: dict[str, tuple[Excuse, ...]] = {
    "test_generated_columns_are_missing": (Excuse(_MYSQL, _NO_COLUMN),),
    "test_a_guard_that_is_not_unique": (Excuse(_MYSQL, _NO_COLUMN),),
    "test_two_rules_add_their_columns_at_once": (Excuse(_MYSQL, _NO_COLUMN),),
    "test_what_a_foreign_key_changes_is_not_stored": (
        Excuse(_MYSQL, "no column of ours is stored there", "STORED"),
    ),
    "test_a_storage_engine_without_transactions": (
        Excuse(_MYSQL, "MySQL has no such engine", "Aria"),
    ),
    "test_no_statement_is_printed_that_deletes_what_a_table_keeps": (
        Excuse(_MYSQL, "MySQL keeps no history of a table"),
    ),
    "test_a_check_that_an_update_fails_for_and_a_query_warns_of_is_found": (
        Excuse(_MYSQL, "MySQL makes no table with such a CHECK", "available_at"),
    ),
    "test_virtual_columns_are_advised_against_where_a_crash_may_spoil_them": (
        Excuse(_MYSQL, "a crash of MySQL spoils no index on a virtual column"),
    ),
    "test_a_sequence_of_mariadb_that_was_left_behind_is_told_and_mended": (
        Excuse(_MYSQL, "MySQL has no sequences"),
    ),
    "test_send_returns_the_id_that_was_given": (
        Excuse(_MYSQL, "MySQL has no sequences", "a sequence"),
        Excuse(
            _MYSQL, "MySQL returns no row of an INSERT, and no counter gave this id", "trigger\\]"
        ),
    ),
    "test_what_doctor_prints_runs_also_where_a_type_has_no_mend": (
        Excuse(_MYSQL, "MySQL has no such type that can be a key", "msg_id"),
    ),
    "test_an_odd_value_harms_its_own_message_only": (
        Excuse(
            "mysqldb|mariadbconnector",
            "MariaDB stores half of a surrogate pair, which these drivers cannot read",
            "x_eda080_",
        ),
        Excuse(_MYSQL, "MySQL stores no half of a surrogate pair", "x_eda080_", always=False),
    ),
    "test_odd_column_names_are_one_identifier": (
        Excuse("mariadbconnector", "the driver takes a quote in a name for a text", 'we"ird'),
    ),
    "test_ids_of_several_kinds_are_sent_in_bulk_as_one_by_one": (
        Excuse("mariadbconnector", _ONE_TYPE),
    ),
    "test_objects_of_other_columns_are_sent_in_bulk": (
        Excuse("mariadbconnector", _ONE_TYPE, r"VARCHAR\(40\)"),
    ),
    "test_a_notification_starts_a_message_at_once_beside_a_busy_object": (
        Excuse("pgbouncer-transaction", "no LISTEN: the message is found at the next look"),
    ),
    "test_instants_mean_the_same_in_any_time_zone_of_a_session": (
        Excuse(_POOLED, "PgBouncer refuses what the test sets with options= at the connection"),
    ),
    "test_two_items_commit_side_by_side": (
        Excuse("galera", "an item changes the row of its message, which is compared at COMMIT"),
    ),
    "test_registrations_do_not_wait_for_each_other": (
        Excuse("galera", "who registers changes a row, which is compared at COMMIT"),
    ),
    "test_settle_whose_connection_is_lost_is_in_doubt": (
        Excuse(_POOLED, "the test ends a session by its number, and the pooler has its own"),
    ),
    "test_an_outcome_that_is_all_of_its_transaction_is_looked_up": (
        Excuse(
            _POOLED,
            "a statement whose client is gone may reach the server after the look; the handler, "
            "which wrote nothing, then starts twice, and one settle counts",
            "during",
            always=False,
        ),
    ),
    "test_an_outcome_that_a_unique_index_of_the_user_refuses_ends_its_lane": (
        Excuse("partitions", "an index without the object cannot be unique"),
    ),
    "test_unique.py": (Excuse("partitions", _NO_KEYS, always=False),),
    "test_a_plain_handler_cannot_ask_for_an_error_of_a_taken_key": (
        Excuse("partitions", _NO_KEYS),
    ),
    "test_a_message_may_send_another_with_its_own_key": (Excuse("partitions", _NO_KEYS),),
    "test_a_key_that_is_taken_skips_that_message_alone": (Excuse("partitions", _NO_KEYS),),
    "test_each_role_of_the_page_does_its_work": (Excuse("partitions", _NO_KEYS),),
    "test_the_rights_of_the_page_are_enough_for_chains": (Excuse("partitions", _NO_KEYS),),
    "test_the_rights_of_the_page_are_enough_for_limits_and_keys": (Excuse("partitions", _NO_KEYS),),
    "test_a_producer_of_the_page_may_keep_its_context_with_what_it_sends": (
        Excuse("partitions", _NO_KEYS),
    ),
    "test_a_replaced_message_has_the_context_of_the_new_one": (Excuse("partitions", _NO_KEYS),),
}
"""Test, or file of tests -> where it cannot pass, and why."""


def only(items: list[pytest.Item]) -> None:
    """Where a variant is asked for, leave what runs on it (`variants.files`), on its server; expect
    a failure of those that are listed."""
    name = variants.name()
    if not name:
        return
    server = variants.VARIANTS[name].server
    left = []
    for item in items:
        given = getattr(item, "callspec", None)
        on = given.params.values() if given else ()
        fixtures = getattr(item, "fixturenames", ())
        if item.nodeid.startswith(variants.files()) and (server in on or server in fixtures):
            test = getattr(item, "originalname", None) or item.name
            for excuse in (*CANNOT.get(test, ()), *CANNOT.get(item.path.name, ())):
                if re.fullmatch(excuse.variants, name) and re.search(excuse.which, item.name):
                    mark = pytest.mark.xfail(reason=excuse.why, strict=excuse.always)
                    item.add_marker(mark)
            left.append(item)
    items[:] = left
