"""What a stand-in cannot do, by the names of tests. A test that is listed and passes is an error.

`python -m proof.oracle.cannot` prints the table of docs/project/oracle.md.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from proof.oracle.standins import NAMES

CORE = {
    "test_the_database_refuses_a_second_running_row",
    "test_order_and_exclusion_over_threads",
    "test_order_and_exclusion_over_two_workers_and_apps",
    "test_three_tries_then_dead",
    "test_failed_head_holds_back_its_successors",
    "test_reject_is_dead_at_once",
    "test_messages_without_an_object_are_claimed_together",
    "test_rerun_starts_again_from_zero",
}
SETTLE = {
    "test_settle_moves_the_flag_on",
    "test_settle_reports_what_is_lost_and_writes_nothing_for_it",
    "test_settle_ends_the_lane_when_the_next_one_is_gone",
    "test_a_guard_violation_of_one_lane_does_not_hold_up_the_others",
}
QUICK = CORE | SETTLE
"""The tests that `make test` runs on the first of them; the others are long."""
_SUITE = ("tests/contract/", "tests/store/test_settle.py")
"""What runs on stand-ins."""
_WORDS = "the test's own SQL is of other databases"
_SCHEMA = "the stand-in reads the catalogue of one schema at a time"
_ASKED = "doctor asks this of other servers only"


class Excuse(NamedTuple):
    """why; which: of the test's parameters, as a pattern of its id."""

    why: str
    which: str = ""


CANNOT: dict[str, tuple[Excuse, ...]] = {
    **dict.fromkeys(
        (
            "test_a_trigger_on_updates_is_shown",
            "test_a_status_that_is_text",
            "test_a_login_that_may_only_read",
            "test_recovery_on_a_table_with_a_small_key",
            "test_four_columns_of_an_existing_table_are_enough",
            "test_listeners_of_the_user_s_engine_do_not_end_the_renewals",
            "test_discard_where_the_text_is_too_long_for_the_column",
            "test_doctor_tells_what_it_found_in_time_and_names_the_checks_that_were_not",
            "test_the_deadline_of_doctor_ends_also_what_it_reads_first",
            "test_a_long_recovery_does_not_cost_us_our_own_lease",
            "test_an_odd_created_at_hides_no_ages_of_others",
            "test_a_stop_does_not_wait_for_ever_for_an_answer",
            "test_a_plain_insert_is_enough",
            "test_a_payload_is_json_once_in_a_column_of_a_json_type",
            "test_a_row_that_a_trigger_refuses_to_flag_is_passed_over_and_told_once",
            "test_messages_without_an_object_that_are_refused_do_not_hold_up_others",
            "test_a_row_that_is_refused_no_more_runs",
            "test_an_outcome_that_a_trigger_refuses_costs_only_that_row",
            "test_an_outcome_that_the_database_drops_without_an_error_is_a_failed_try",
            "test_a_claim_that_the_database_drops_without_an_error_is_a_refusal",
            "test_a_purged_row_that_a_trigger_puts_back_is_skipped_and_named",
            "test_a_table_of_the_seed_s_four_columns_has_a_rule_too",
            "test_what_is_no_priority_counts_as_none",
        ),
        (Excuse(_WORDS),),
    ),
    **dict.fromkeys(
        (
            "test_a_table_in_another_schema_is_named_not_made_anew",
            "test_a_table_in_a_schema",
        ),
        (Excuse(_SCHEMA),),
    ),
    "test_a_table_of_another_name_in_a_schema_has_its_size": (
        Excuse("Oracle tells the sizes of the login's own tables only"),
    ),
    **dict.fromkeys(
        (
            "test_an_instance_does_not_start_on_a_table_that_was_changed",
            "test_the_id_of_an_instance_is_read_back",
        ),
        (Excuse(_WORDS),),
    ),
    "test_a_check_of_the_column_itself_is_found": (
        Excuse("MariaDB gives a CHECK of a column no name of its own"),
    ),
    "test_a_check_that_was_ended_is_not_one_that_found_nothing": (
        Excuse(_ASKED, "held|unseen|schedules|plan"),
    ),
    "test_a_setting_of_the_server_that_was_not_told_in_time_is_not_one_it_lacks": (Excuse(_ASKED),),
    "test_the_engine_s_isolation_level_is_not_ours": (
        Excuse(
            "SQLAlchemy compares an Engine's own level with v$transaction, which this login may "
            "not read; READ UNCOMMITTED is none of Oracle's"
        ),
    ),
    "test_columns_of_a_wrong_kind_are_named": (
        Excuse("MariaDB makes a TINYINT of BOOLEAN", "boolean"),
    ),
    "test_a_database_that_does_not_exist": (Excuse("a service stands in the query of the URL"),),
    **dict.fromkeys(
        ("test_an_empty_topic_is_a_topic_of_its_own", "test_any_text_is_sent_in_bulk_as_it_is"),
        (Excuse("'' is NULL"),),
    ),
    "test_a_column_that_cannot_hold_what_is_written_is_refused_with_its_mend": (
        Excuse(
            "'' is NULL, a BIGINT is a NUMBER, and a DATE has a time",
            "claimed_by is never empty|last_error is never empty|is a number|is a day",
        ),
    ),
    "test_a_priority_out_of_range_is_refused_before_anything_is_sent": (
        Excuse("the bounds of a SMALLINT, which is a NUMBER on Oracle"),
    ),
    "test_objects_of_other_columns_are_sent_in_bulk": (
        Excuse("MariaDB's generated column takes no object id of a CHAR", "-CHAR"),
    ),
    "test_open_messages_whose_id_has_a_fraction_are_found": (
        Excuse("a NUMERIC has no fraction unless it says so"),
    ),
}
"""Test -> where it cannot pass, and why."""


def excused(items: list[pytest.Item]) -> None:
    """Take out what is not of the contract suite; expect a failure of those that are listed."""
    left = []
    for item in items:
        given = getattr(item, "callspec", None)
        name = str(given.params.get("database", "")) if given else ""
        if given and name in NAMES:
            if not item.nodeid.startswith(_SUITE):
                continue
            test = getattr(item, "originalname", None) or item.name
            for excuse in CANNOT.get(test, ()):
                if re.search(excuse.which, given.id):
                    item.add_marker(pytest.mark.xfail(reason=excuse.why, strict=True))
        left.append(item)
    items[:] = left


def shown() -> str:
    """The table of docs/project/oracle.md."""
    lines = ["| test | with | why |", "|---|---|---|"]
    for test, excuses in sorted(CANNOT.items()):
        for excuse in excuses:
            which = f"`{excuse.which}`".replace("|", "\\|") if excuse.which else "all"
            lines.append(f"| `{test}` | {which} | {excuse.why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(shown(), end="")
