"""What `make test` leaves to `make test-long`.

A test of several databases is quick on one of them, each test on another; only what decides between
databases, and the crash tests, are quick on all (ON_ALL). QUICK names the exceptions: tests that mean
something on one database only, and tests of seconds, of which some parameters are quick. Each
promise keeps its main test in `make test`.
"""

# ruff: noqa: E501 - a table: one line for each test

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from proof.oracle import cannot, standins
from tests import variants

ON_ALL = (
    "proof/crash/",
    "tests/bench/",
    "tests/contract/test_ops_races.py",
    "tests/contract/test_rights.py",
    "tests/store/",
    "tests/test_ddl.py",
    "tests/test_servers.py",
)
"""Files whose tests are quick on all databases."""
DATABASES = ("sqlite", "postgresql", "mariadb")
ALL = ""
NONE = r"(?!)"
"""For QUICK: with all its parameters; none of them, the test is long."""

QUICK = {
    "test_a_page_shows_what_its_commands_print": "quickstart|testing|flag-table|troubleshooting",
    "test_a_page_with_tabs_is_run_on_servers": "postgresql",
    "test_local_times_are_due_when_their_clock_shows_them": r"0-.*Shanghai-1",
    "test_what_we_write_is_read_back_as_the_same_instants": r"0-.*Shanghai|2-mariadb",
    "test_doctor_finds_a_table_of_another_zone": r"0-.*Shanghai",
    "test_an_instant_is_written_as_the_clocks_of_its_zone_show_it": "Berlin",
    "test_what_waits_is_due_at_the_latest_meaning_of_its_local_time": "Berlin|Howe",
    "test_the_database_s_clock_counts_for_local_times": "Berlin",
    "test_send_many_keeps_order_and_counts": "sqlite",
    "test_batches_of_processes_that_are_killed_are_done_exactly_once_in_order": NONE,
    "test_schemathesis_finds_nothing_in_many_requests": NONE,
    "test_a_dry_run_tells_what_it_has_counted_when_its_time_is_up": NONE,
    "test_a_dry_run_that_finds_nothing_in_its_time_says_so": NONE,
    "test_a_dry_run_of_a_whole_object_or_instance_is_ended_at_its_time": NONE,
    "test_a_write_that_counts_is_ended_at_its_time_before_anything_is_done": NONE,
    "test_second_signal_stops_at_once": NONE,
    "test_a_stop_at_once_ends_within_seconds_while_the_database_does_not_answer": NONE,
    "test_the_id_of_an_instance_is_never_cut": "-80",
    "test_a_command_whose_output_is_lost_says_so_and_ends_with_74": "show|status",
    "test_what_only_one_database_has_is_refused_until_it_is_mended": "ids that change|list|transactions",
    "test_slowly_recorded_history_is_clean": NONE,
    "test_slow_line_is_slow_and_correct": NONE,
    "test_a_long_recovery_does_not_cost_us_our_own_lease": NONE,
    "test_a_program_that_ends_while_its_stop_hangs_says_what_it_leaves": NONE,
    "test_insisting_once_more_ends_the_program_where_it_stands": NONE,
    "test_mysql_is_sent_the_statements_of_scopes_and_locks_that_mariadb_runs": "shard",
    "test_tries_counted_in_decimals_back_off_like_whole_ones": NONE,
    "test_rows_that_cannot_be_recovered_do_not_use_up_the_time_of_others": NONE,
    "test_the_lease_is_kept_while_a_stop_waits_for_a_handler": NONE,
    "test_an_engine_without_a_pool_works": NONE,
    "test_an_engine_that_pings_works": NONE,
    "test_transactional_handlers_wait_for_a_connection_of_a_small_pool": NONE,
    "test_notifications_end_no_drain_on_a_small_pool": NONE,
    "test_what_is_done_beside_messages_ends_no_drain": "sqlite-a lost",
    "test_a_pooler_is_looked_for_once_where_nothing_is_pooled": NONE,
    # web
    "test_no_text_becomes_an_element_or_an_attribute": "^0$",
    "test_a_thousand_odd_values_break_no_page": NONE,
    "test_no_page_shows_a_secret": "sqlite",
    "test_no_answer_shows_a_secret": "postgresql",
    "test_no_write_says_a_secret_again": "postgresql",
    "test_no_refusal_says_a_secret_again": "sqlite",
    "test_no_command_shows_a_secret": "postgresql",
    "test_what_is_kept_of_an_error_has_no_secret": "sqlite",
    "test_odd_values_break_no_page_of_each_database": NONE,
    "test_an_incident_is_seen_and_mended_in_a_browser": NONE,
    "test_axe_finds_nothing_serious_on_any_page": NONE,
    "test_no_page_is_wider_than_the_screen": NONE,
    "test_short_names_are_not_broken": NONE,
    "test_everything_that_acts_is_seen_on_a_phone_under_a_low_header": NONE,
    "test_odd_values_make_no_page_wider_than_a_phone": NONE,
    "test_a_group_is_rerun_by_the_keyboard_alone": NONE,
    "test_what_changes_is_loaded_anew_by_itself": NONE,
    # bench
    "test_a_tiny_run_finds_no_fault": NONE,
    "test_a_tiny_run_measures_rates_and_counts": NONE,
    "test_a_tiny_run_reports_each_scenario_with_one_and_two_processes": NONE,
    "test_statements_per_message_stay_as_recorded": "postgresql-B(1|2|14|14 group)$|sqlite-B(2|15)$|mariadb-B2$",
    "test_the_run_says_on_which_machine_and_how_durable": NONE,
    # cli
    "test_messages_that_wait_for_their_retry_end_a_drain_with_6": "1",
    "test_work_that_nobody_does_is_said_given_back_and_done": "2",
    "test_a_view_of_one_message_cuts_nothing_and_breaks_no_word": "60",
    "test_no_line_is_wider_than_the_terminal": "80",
    "test_drain_sums_what_was_done": "2",
    "test_handler_that_hangs_ends_the_program": NONE,
    "test_messages_that_turn_out_slow_are_given_to_others": NONE,
    "test_only_the_topics_that_were_asked_for": NONE,
    "test_run_ends_in_order_at_a_signal": "15-2",
    "test_run_ends_when_its_time_is_over": NONE,
    "test_slow_messages_are_spread_over_the_processes": NONE,
    "test_terminal_is_asked_before_many_are_changed": "^y|x04",
    "test_a_group_that_is_stopped_while_children_import_the_app_ends_in_order": "run-15",
    "test_a_second_signal_within_two_seconds_is_the_same_stop": "15",
    "test_a_signal_after_two_seconds_stops_at_once_and_gives_back_what_has_not_started": "mariadb-2",
    "test_a_stop_at_once_does_not_wait_for_a_locked_row_and_gives_back_the_others": "postgresql",
    "test_one_stop_of_a_whole_group_is_one_stop_by_whatever_way_it_comes": NONE,
    "test_signals_that_rain_for_two_seconds_are_one_stop": "2-15",
    "test_a_drain_does_its_work_whatever_its_streams_are": "^<&- >|full",
    "test_several_processes_do_their_work_whatever_their_streams_are": "^<",
    "test_tables_fit_a_terminal_and_let_no_escape_through": "80",
    "test_prometheus_itself_scrapes_and_judges": NONE,
    # contract
    "test_three_tries_then_dead": ALL,
    "test_transactional_effects_commit_with_the_outcome": ALL,
    "test_a_message_in_quarantine_runs_alone": ALL,
    "test_a_worker_without_the_guard_does_not_start": ALL,
    "test_the_database_refuses_a_second_running_row": ALL,
    "test_a_handler_that_swallows_a_lost_connection_is_run_again": "postgresql",
    "test_a_lease_that_somebody_has_locked_is_not_waited_for": NONE,
    "test_a_locked_message_in_quarantine_does_not_stop_the_others": "postgresql",
    "test_a_stop_does_not_wait_for_a_heartbeat_without_an_answer": "postgresql",
    "test_a_stop_does_not_wait_for_a_row_that_somebody_has_locked": "mariadb",
    "test_a_stop_does_not_wait_for_ever_for_an_answer": "mariadb",
    "test_an_item_that_swallows_a_lost_connection_is_run_again": "mariadb",
    "test_listeners_of_the_user_s_engine_do_not_end_the_renewals": "mariadb",
    "test_recovery_does_not_wait_for_a_row_that_somebody_has_locked": "mariadb",
    "test_recovery_into_a_column_that_is_too_short_for_its_words": "postgresql",
    "test_who_stands_still_after_its_renewal_holds_no_lock": "mariadb",
    "test_who_is_being_taken_over_does_not_wait_for_its_lease": "mariadb",
    "test_a_statement_of_a_handler_may_take_longer_than_the_lease": NONE,
    "test_handlers_on_half_open_connections_run_again_on_others": "postgresql",
    "test_a_handler_s_connection_is_cut_when_its_claim_is_lost": "mariadb",
    "test_a_lease_is_renewed_while_the_table_of_messages_is_locked": "postgresql",
    "test_a_handler_s_transaction_longer_than_the_lease_costs_nobody_the_lease": NONE,
    "test_a_foreign_consumer_beside_ours": ALL,
    "test_a_table_in_a_schema": "mariadb",
    "test_failed_head_holds_back_its_successors": ALL,
    "test_graceful_stop_releases_without_counting_a_try": ALL,
    "test_instance_leaves_for_a_handler_that_hangs_and_others_recover": "postgresql-run",
    "test_order_and_exclusion_over_two_workers_and_apps": ALL,
    "test_order_holds_over_failures_and_workers": ALL,
    "test_settle_whose_connection_is_lost_is_in_doubt": "postgresql",
    "test_a_login_that_may_only_read": "mariadb",
    "test_generated_columns_are_missing": "mariadb",
    "test_virtual_columns_are_advised_against_where_a_crash_may_spoil_them": "mariadb",
    "test_ids_that_the_database_takes_for_one_are_one_object": "general_ci-6|latin1_german|RTRIM|CITEXT|CHAR.40",
    "test_ids_that_the_database_tells_apart_are_objects_of_their_own": "utf8mb4_bin-5|TEXT|BLOB|DECIMAL|C.-16",
    "test_a_failed_message_holds_back_ids_that_are_the_same": "general_ci-60|NOCASE|CITEXT",
    "test_nothing_is_claimed_beside_a_lane_of_the_same_object": "unicode_ci|RTRIM|CHAR",
    "test_a_transactional_item_taken_over_before_its_commit_writes_nothing": "mariadb",
    "test_an_item_s_own_deadlock_is_run_again": "mariadb",
    "test_cut_sessions_lose_nothing_and_repeat_no_transactional_item": NONE,
    "test_recovery_leaves_a_row_whose_item_is_committing": "postgresql",
    "test_two_items_commit_side_by_side": "mariadb",
    "test_an_odd_value_harms_its_own_message_only": "sqlite-(status-0|available_at-_$|available_at-_gar|topic)|postgresql-available_at-_inf|mariadb-(payload-_NaN|object|created)",
    "test_release_does_not_wait_for_locked_rows": "postgresql",
    "test_release_takes_rows_that_were_locked_for_a_moment": "mariadb",
    "test_a_check_that_takes_what_is_written_is_left_alone": "sqlite-status|mariadb-length|postgresql-length",
    "test_a_column_of_any_type_has_a_mend_that_runs": "generated|CHECK|money",
    "test_a_column_that_cannot_hold_what_is_written_is_refused_with_its_mend": "sqlite-(a short|avail)|postgresql-(ids|claimed)|mariadb-(ids|finished)",
    "test_a_change_sees_who_is_just_registering": "postgresql",
    "test_a_start_comes_between_two_steps_of_an_operation": "postgresql",
    "test_registrations_do_not_wait_for_each_other": "postgresql",
    "test_the_rule_is_kept_while_a_message_of_the_dead_cannot_be_given_back": "mariadb",
    "test_who_starts_waits_for_a_change_that_goes_on": "postgresql",
    "test_a_program_that_ends_without_a_stop_is_stopped_in_order": "sqlite-(start|an error)|postgresql-(run|sys)|mariadb-(drain|no thread)",
    "test_the_child_of_a_handler_that_forks_ends_and_the_parent_goes_on": "sqlite-(returns|async)|postgresql-(raises|transactional$)|mariadb-(items$|before)",
    "test_a_message_that_somebody_has_locked_is_asked_for_again": "postgresql",
    # coordination
    "test_a_holder_that_is_stopped_for_too_long_knows_it_and_changes_nothing": "sqlite|redis",
    # crash
    "test_a_kill_repeats_no_transactional_item_and_at_most_a_batch": "sqlite",
    "test_fleet_that_comes_and_goes_loses_nothing_and_keeps_order": NONE,
    "test_a_column_that_is_dropped_under_us_ends_the_run_and_is_named": NONE,
    "test_a_forked_child_has_connections_of_its_own": "postgresql",
    "test_a_lease_table_that_is_gone_ends_the_run": NONE,
    "test_a_pool_that_is_used_up_is_waited_for": "mariadb",
    "test_a_rival_that_locks_the_row_costs_time_and_no_try": "sqlite",
    "test_deadlocks_of_handlers_are_run_again_and_take_effect_once": NONE,
    "test_leases_that_are_gone_make_new_instances": NONE,
    "test_rights_that_go_away_end_the_run_with_a_clear_error": "mariadb",
    "test_all_frozen_beyond_their_leases_go_on_without_a_storm": NONE,
    "test_clock_of_the_database_put_forward_costs_tries_and_breaks_nothing": NONE,
    "test_frozen_between_claim_and_handler_does_not_start_it": "sqlite",
    "test_frozen_beyond_its_lease_is_fenced_and_comes_back_as_another": "sqlite-plain|postgresql-exact",
    "test_killed_at_a_point_is_recovered_and_loses_nothing": "sqlite-in-settle-plain|postgresql-in-claim-plain|mariadb-after-effect-exact",
    "test_killed_when_the_clock_of_the_database_was_put_back": NONE,
    "test_object_of_a_killed_process_goes_on_with_the_heir": NONE,
    "test_poison_dies_after_three_starts_and_takes_nobody_along": "mariadb-segv",
    "test_second_sigterm_stops_at_once_and_recovery_follows": NONE,
    "test_several_poisons_never_kill_an_innocent": NONE,
    "test_told_to_stop_under_load_leaves_nothing_behind": "mariadb-15",
    "test_wall_clocks_of_consumers_do_not_matter": "sqlite",
    "test_cut_at_commit_is_answered_by_reading_and_never_guessed": "postgresql",
    "test_an_outage_is_one_line_and_its_end_another": "mariadb",
    "test_drain_gives_up_a_database_that_stays_away_and_run_does_not": NONE,
    "test_drain_whose_last_claim_was_cut_leaves_nothing": "postgresql",
    "test_half_open_connections_cost_the_lease_and_are_cut": "plain-postgresql|exact-mariadb",
    "test_crash_of_the_server_loses_nothing_and_counts_no_try": "postgresql-0.0",
    "test_ended_sessions_lose_nothing_and_count_no_try": "mariadb",
    "test_every_tick_is_one_message_while_processes_are_killed": "sqlite",
    "test_torture_breaks_no_rule": "postgresql",
    "test_a_way_that_is_closed_is_silent_and_all_of_them_are_an_outage": NONE,
    # fuzz
    "test_a_table_of_any_types_works_or_is_refused_with_its_mend": "mariadb",
    "test_odd_rows_among_good_ones_harm_themselves_only": "postgresql",
    # oracle
    "test_an_error_of_oracle_s_loses_nothing_and_repeats_no_effect": "03113-before-commit-eff|00060-statement-cl|4011-after-commit-se|25408-statement-se|08177-before-commit-eff",
    # scopes
    "test_a_worker_that_breaks_a_rule_is_noticed": "Keeps",
    # simulation
    "test_planted_bug_is_found": "guard-index|settle-without-claimed|crash-counts|no-take-over|sweep-beside|beside-a-q|one-answer|trusted|no-lease",
    # upgrade
    "test_code_of_an_earlier_version_goes_on_while_tables_are_upgraded": NONE,
    "test_what_db_upgrade_prints_as_sql_leads_to_the_same_schema": "sqlite-1$|postgresql-4|mariadb-8",
    "test_a_revision_waits_for_a_table_in_use_without_holding_up_others": NONE,
    # others
    "test_odd_column_names_are_one_identifier": "sqlite-(select|per|at)|postgresql-(quo|que|rows)|mariadb-(we|msg|co)",
    "test_odd_table_names_are_one_identifier": "sqlite-(co:|select)|postgresql-(que|quo)|mariadb-(msg|back)",
    "test_a_database_that_does_not_exist": "postgresql",
    "test_a_wrong_password": "mariadb",
    "test_the_clock_of_the_host_may_be_wrong_by_decades": "postgresql",
    "test_the_engine_s_isolation_level_is_not_ours": "postgresql",
    "test_every_statement_is_one_that_oracle_takes": "ours",
    "test_a_hundred_thousand_events_take_seconds": NONE,
    "test_quick_searches_find_what_is_expected": "no fence|the look does|followers without|locks:",
    "test_demo_proves_what_it_says": NONE,
    "test_main_samples_run_on_every_database": "existing",
    "test_sample_runs": "^0[13]",
    "test_the_databases_of_the_sample_are_proved_as_three_schemas": NONE,
    "test_hot_statements_use_the_claim_indexes": "never.*sqlite|none waited.*(postgresql|mariadb)",
    "test_a_crash_in_a_batch_gives_back_its_heads_with_a_try": "claimed",
    "test_runs_are_as_long_as_batches_need_but_no_more_is_held_in_all": "1000-0",
    "test_one_of_ten_wins_each_round_and_tokens_rise": "sqlite|redis",
    "test_who_ends_the_transaction_of_one_message_fails_with_that": "group-rollback",
    "test_who_ends_the_transaction_of_a_batch_fails_its_heads_and_nothing_runs_again": "rollback",
    "test_release_by_force_fences_the_living": NONE,
    "test_a_race_that_is_always_lost_is_a_refusal": NONE,
    "test_one_planted_fault_is_found": NONE,
    "test_oracle_s_hints_name_the_indexes": NONE,
    "test_a_program_that_ends_beside_a_long_handler_says_what_it_leaves": NONE,
    "test_a_drain_that_waits_looks_at_the_pace_of_polling": NONE,
    "test_a_drain_that_is_stopped_as_a_group_counts_no_try": NONE,
    "test_a_drain_that_waits_takes_new_work_as_it_comes": NONE,
    "test_what_handlers_start_does_not_read_the_words_of_the_parent": NONE,
    "test_drain_tells_of_a_process_that_died": NONE,
    "test_a_look_into_a_slice_reads_no_row_of_others": NONE,
    "test_closed_pipe_ends_quietly": NONE,
    "test_an_outage_longer_than_the_lease_loses_it": "zookeeper|sqlite",
    "test_a_wait_strategy_that_fails_costs_only_its_delay": "SystemExit|ValueError",
}
"""Test -> what of its parameters is quick, as a pattern found in their ids. No two tests share a name."""
ON_EACH_VERSION = ("test_torture_breaks_no_rule",)
"""Quick on the server whose version is tested, whichever that is."""


def long_ones(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Those of the collected tests that are left to `make test-long`."""
    twins: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        file = item.nodeid.split("::")[0]
        given = getattr(item, "callspec", None)
        test = getattr(item, "originalname", None) or item.name
        if given and given.params.get("database") in standins.NAMES:
            if test not in cannot.QUICK:
                yield item
            continue
        pattern = QUICK.get(test)
        if test in ON_EACH_VERSION and variants.name() in variants.VERSIONS:
            pattern = variants.VARIANTS[variants.name()].server
        if pattern is not None:
            if not re.search(pattern, _id(given) if given else ""):
                yield item
        elif given and given.params.get("database") in DATABASES and not file.startswith(ON_ALL):
            name = str(given.params["database"])
            rest = "-".join(part for part in _id(given).split("-") if part != name)
            twins[f"{test}[{rest}]"][name] = item
    for key, found in twins.items():
        quick = sorted(found)[zlib.crc32(key.encode()) % len(found)]
        if variants.name() in variants.VERSIONS:
            quick = variants.VARIANTS[variants.name()].server
        yield from (item for name, item in found.items() if name != quick)


def _id(given: Any) -> str:
    """The id of a parametrized test, as it is where MariaDB has its place."""
    return re.sub(r"\bmysql\b", "mariadb", given.id) if variants.is_mysql() else given.id
