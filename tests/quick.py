"""What `make test` leaves to `make test-long`: long tests on further databases, with further
parameters.

Each promise keeps its main test in `make test`, on one database at least; what decides between two
databases (claims, order, locks, schemas, odd rows) stays on all of them. A test of seconds that is
about threads, processes or leases is on one, in turn. A test that is not named here or marked
`long` is quick with all its parameters.
"""

# ruff: noqa: E501 - a table: one line for each test

from __future__ import annotations

import re

import pytest

NONE = r"(?!)"
"""None of them: the test is long."""

QUICK = {
    "bench/test_bench.py": {
        "test_a_tiny_run_reports_each_scenario_with_one_and_two_processes": NONE,
    },
    "cli/test_left.py": {
        "test_messages_that_wait_for_their_retry_end_a_drain_with_6": "1",
        "test_work_that_nobody_does_is_said_given_back_and_done": "2",
    },
    "cli/test_processes.py": {
        "test_drain_sums_what_was_done": "2",
        "test_handler_that_hangs_ends_the_program": "run",
        "test_run_ends_in_order_at_a_signal": "15-2",
        "test_slow_messages_are_spread_over_the_processes": NONE,
        "test_terminal_is_asked_before_many_are_changed": "^y|x04",
    },
    "cli/test_stopping.py": {
        "test_a_group_that_is_stopped_while_children_import_the_app_ends_in_order": "run-15",
        "test_a_second_signal_within_two_seconds_is_the_same_stop": "15",
        "test_a_signal_after_two_seconds_stops_at_once_and_gives_back_what_has_not_started": "mariadb-2",
        "test_a_stop_at_once_does_not_wait_for_a_locked_row_and_gives_back_the_others": "postgresql",
        "test_one_stop_of_a_whole_group_is_one_stop_by_whatever_way_it_comes": "sqlite-children",
        "test_signals_that_rain_for_two_seconds_are_one_stop": "2-15",
    },
    "cli/test_streams.py": {
        "test_a_drain_does_its_work_whatever_its_streams_are": "^<&- >|full",
        "test_several_processes_do_their_work_whatever_their_streams_are": "^<",
    },
    "cli/test_why.py": {
        "test_tables_fit_a_terminal_and_let_no_escape_through": "80",
    },
    "contract/test_back_off.py": {
        "test_a_drain_that_waits_looks_at_the_pace_of_polling": "mariadb",
        "test_a_drain_that_waits_takes_new_work_as_it_comes": "postgresql",
        "test_a_drain_waits_for_a_retry_beyond_its_linger": "sqlite",
    },
    "contract/test_contract_app.py": {
        "test_a_message_that_becomes_due_while_a_drain_looks_is_not_left": "mariadb",
        "test_create_schema_by_four_processes_at_once": "postgresql|mariadb",
        "test_handler_over_its_timeout_is_told_and_its_try_fails": "postgresql",
        "test_rerun_of_all_dead_ones_of_a_topic": "sqlite",
        "test_send_many_keeps_order_and_counts": "mariadb",
        "test_time_limit_ends_a_drain": "postgresql",
        "test_transactional_effects_commit_with_the_outcome": "sqlite",
    },
    "contract/test_contract_protocol.py": {
        "test_the_lease_is_kept_while_a_stop_waits_for_a_handler": "mariadb",
    },
    "contract/test_contract_store.py": {
        "test_settles_of_many_lanes": "postgresql",
    },
    "contract/test_contract_trouble.py": {
        "test_a_drain_waits_for_what_it_recovers": "sqlite",
        "test_a_heartbeat_does_not_wait_for_a_claim_to_take_a_new_id": "mariadb",
        "test_a_lease_that_somebody_has_locked_is_not_waited_for": "postgresql",
        "test_a_long_recovery_does_not_cost_us_our_own_lease": "postgresql",
        "test_a_stop_does_not_wait_for_a_heartbeat_without_an_answer": "sqlite",
        "test_a_stop_does_not_wait_for_ever_for_an_answer": "mariadb",
        "test_listeners_of_the_user_s_engine_do_not_end_the_renewals": "postgresql",
        "test_messages_whose_outcome_cannot_be_written_are_recovered_while_we_go_on": "postgresql",
        "test_recovery_does_not_wait_for_a_row_that_somebody_has_locked": "mariadb",
        "test_rows_that_cannot_be_recovered_do_not_use_up_the_time_of_others": "sqlite",
        "test_what_waits_behind_a_paused_topic_is_found_soon": "mariadb",
        "test_who_stands_still_after_its_renewal_holds_no_lock": "postgresql",
    },
    "contract/test_contract_worker.py": {
        "test_a_foreign_consumer_on_the_seed_s_table": "sqlite",
        "test_an_app_keeps_the_workers_that_run_and_no_others": "mariadb",
        "test_drain_finds_what_stands_behind_messages_of_unknown_topics": "postgresql",
        "test_foreign_consumer_that_goes_on_to_the_next_try_is_not_stale": "sqlite",
        "test_instance_leaves_for_a_handler_that_hangs_and_others_recover": "postgresql-run",
        "test_message_of_a_foreign_consumer_is_left_alone_unless_asked": "mariadb",
        "test_worker_in_the_background_leaves_too_and_gives_back_the_rest": "postgresql",
    },
    "contract/test_fan_out.py": {
        "test_an_infinite_source_is_stopped_by_the_timeout": "sqlite",
        "test_forgotten_records_run_again": "mariadb",
    },
    "contract/test_fan_out_claim.py": {
        "test_a_batch_after_a_take_over_is_refused_and_items_stop": "postgresql",
        "test_a_handler_s_timeout_ends_new_items_and_waits_for_running_ones": "sqlite",
        "test_a_lease_that_may_be_over_stops_new_items_and_counts_no_try": "mariadb",
        "test_a_lost_lease_stops_new_items_and_the_next_instance_runs_the_rest": "postgresql",
        "test_a_stop_ends_new_items_and_counts_no_try": "sqlite-ours|postgresql-no later|mariadb-no wishes",
        "test_cut_sessions_lose_nothing_and_repeat_no_transactional_item": "postgresql-exact|mariadb-plain",
    },
    "contract/test_left.py": {
        "test_a_drain_tells_when_what_another_instance_has_would_be_recovered": "postgresql",
        "test_a_drain_waits_for_a_lease_that_ends_within_its_linger": "sqlite",
        "test_the_retries_of_a_drain_that_is_stopped_end_it_with_6": "mariadb",
    },
    "contract/test_odd_rows.py": {
        "test_a_race_that_is_always_lost_is_a_refusal": "postgresql",
        "test_a_row_that_is_refused_no_more_runs": "sqlite",
        "test_an_odd_value_harms_its_own_message_only": "sqlite-(status|available|payload|object|topic)|postgresql-(available|created)|mariadb-(available|payload|object|created)",
        "test_tries_counted_in_decimals_back_off_like_whole_ones": "mariadb",
    },
    "contract/test_ops_looks.py": {
        "test_explain_not_due": "postgresql",
    },
    "contract/test_ops_repairs.py": {
        "test_a_long_list_of_ids": "sqlite|mariadb",
        "test_instances_honour_a_pause_within_a_heartbeat": "sqlite",
        "test_release_by_force_fences_the_living": "mariadb",
        "test_rerun_beside_workers_keeps_order_and_counts": "postgresql",
    },
    "contract/test_requirements.py": {
        "test_a_check_that_refuses_what_is_written_is_found": "mariadb",
        "test_a_check_that_takes_what_is_written_is_left_alone": "postgresql",
    },
    "contract/test_rule.py": {
        "test_a_change_of_the_rule_leaves_what_is_dead_dead": "sqlite-3|postgresql-5|mariadb-3b",
        "test_a_record_that_is_no_rule_is_an_error_that_says_how_one_looks": "sqlite",
        "test_a_rejected_message_never_runs_again_where_max_tries_is_raised": "mariadb",
        "test_a_start_changes_no_rule_by_which_messages_die": "postgresql",
        "test_a_worker_that_was_declared_dead_raises_that_the_rule_has_changed": "sqlite",
        "test_a_worker_whose_rule_changes_while_it_starts_goes_by_the_new_one": "mariadb",
        "test_changes_and_starts_at_once_leave_one_rule_for_all": "postgresql",
        "test_create_schema_beside_a_live_instance_keeps_the_rule_and_warns": "sqlite",
        "test_to_count_what_is_left_changes_no_rule": "mariadb",
        "test_what_held_its_object_back_goes_on_to_and_what_did_not_does_not": "postgresql",
        "test_what_was_before_a_rerun_is_not_counted_in_how_it_has_ended": "sqlite",
    },
    "contract/test_stops.py": {
        "test_a_program_that_ends_without_a_stop_is_stopped_in_order": "sqlite-(start|an error)|postgresql-(run|sys)|mariadb-(drain|no thread)",
        "test_the_child_of_a_handler_that_forks_ends_and_the_parent_goes_on": "sqlite-(returns|async)|postgresql-(raises|transactional$)|mariadb-(items$|before)",
    },
    "contract/test_tracebacks.py": {
        "test_a_payload_that_cannot_be_read_is_logged_without_frames_of_ours": "mariadb",
        "test_a_timeout_of_an_async_handler_has_no_place_in_a_library": "postgresql",
        "test_an_error_is_let_go_when_it_is_logged": "sqlite",
        "test_instances_run_without_the_column_and_init_db_adds_it": "mariadb",
    },
    "coordination/test_centres.py": {
        "test_a_holder_that_is_stopped_for_too_long_knows_it_and_changes_nothing": "sqlite|redis",
    },
    "crash/test_fan_out_kill.py": {
        "test_a_kill_repeats_no_transactional_item_and_at_most_a_batch": "sqlite",
    },
    "crash/test_fleet.py": {
        "test_fleet_that_comes_and_goes_loses_nothing_and_keeps_order": "mariadb",
    },
    "crash/test_hostile.py": {
        "test_a_column_that_is_dropped_under_us_ends_the_run_and_is_named": "postgresql",
        "test_a_forked_child_has_connections_of_its_own": "postgresql",
        "test_a_lease_table_that_is_gone_ends_the_run": "mariadb",
        "test_a_pool_that_is_used_up_is_waited_for": "mariadb",
        "test_a_rival_that_locks_the_row_costs_time_and_no_try": "sqlite",
        "test_deadlocks_of_handlers_are_run_again_and_take_effect_once": "postgresql",
        "test_leases_that_are_gone_make_new_instances": "sqlite",
        "test_rights_that_go_away_end_the_run_with_a_clear_error": "mariadb",
    },
    "crash/test_kill.py": {
        "test_all_frozen_beyond_their_leases_go_on_without_a_storm": "postgresql",
        "test_clock_of_the_database_put_forward_costs_tries_and_breaks_nothing": "mariadb",
        "test_frozen_between_claim_and_handler_does_not_start_it": "sqlite",
        "test_frozen_beyond_its_lease_is_fenced_and_comes_back_as_another": "sqlite-plain|postgresql-exact",
        "test_killed_at_a_point_is_recovered_and_loses_nothing": "sqlite-in-settle-plain|postgresql-in-claim-plain|mariadb-after-effect-exact",
        "test_killed_when_the_clock_of_the_database_was_put_back": "postgresql",
        "test_object_of_a_killed_process_goes_on_with_the_heir": "sqlite",
        "test_poison_dies_after_three_starts_and_takes_nobody_along": "mariadb-segv",
        "test_second_sigterm_stops_at_once_and_recovery_follows": "sqlite",
        "test_several_poisons_never_kill_an_innocent": "postgresql",
        "test_told_to_stop_under_load_leaves_nothing_behind": "mariadb-15",
        "test_wall_clocks_of_consumers_do_not_matter": "sqlite",
    },
    "crash/test_network.py": {
        "test_an_outage_is_one_line_and_its_end_another": "mariadb",
        "test_drain_gives_up_a_database_that_stays_away_and_run_does_not": "postgresql",
        "test_drain_whose_last_claim_was_cut_leaves_nothing": "postgresql",
        "test_half_open_connections_cost_the_lease_and_are_cut": "plain-postgresql|exact-mariadb",
    },
    "crash/test_sessions.py": {
        "test_crash_of_the_server_loses_nothing_and_counts_no_try": "postgresql-0.0",
        "test_ended_sessions_lose_nothing_and_count_no_try": "mariadb",
    },
    "crash/test_torture.py": {
        "test_torture_breaks_no_rule": "postgresql",
    },
    "fuzz/test_fuzz.py": {
        "test_a_table_of_any_types_works_or_is_refused_with_its_mend": "mariadb",
        "test_odd_rows_among_good_ones_harm_themselves_only": "postgresql",
    },
    "scopes/test_partitions.py": {
        "test_two_workers_do_all_of_it_and_each_looks_at_its_own": "postgresql",
    },
    "scopes/test_people.py": {
        "test_explain_says_when_no_live_instance_has_the_flag_of_a_message": "sqlite",
    },
    "scopes/test_slices.py": {
        "test_a_message_waits_for_an_earlier_one_of_its_object_in_another_shard": "mariadb",
    },
    "simulation/test_simulation.py": {
        "test_planted_bug_is_found": "guard-index|settle-without-claimed_by|crash-counts|no-take-over|claimed_by-kept|settle-executed|any-message",
    },
    "test_bad_inputs.py": {
        "test_odd_column_names_are_one_identifier": "mariadb",
        "test_odd_table_names_are_one_identifier": "postgresql",
        "test_payload_texts_come_back_as_they_were": "mariadb",
        "test_two_tables_in_one_database_do_not_disturb_each_other": "postgresql",
        "test_two_workers_with_the_same_label_are_two_instances": "sqlite",
    },
    "test_history.py": {
        "test_a_hundred_thousand_events_take_seconds": "hot",
    },
    "test_model.py": {
        "test_quick_searches_find_what_is_expected": "short runs|no fence|poison",
    },
    "test_samples.py": {
        "test_demo_proves_what_it_says": NONE,
        "test_main_samples_run_on_every_database": "existing",
        "test_sample_runs": "^0[1-4]|several",
    },
}
"""File -> test -> what of its parameters is quick, as a pattern found in their ids."""


def is_long(item: pytest.Item) -> bool:
    """Whether a test, with these parameters, is left to `make test-long`."""
    file = item.nodeid.split("::")[0].removeprefix("tests/")
    pattern = QUICK.get(file, {}).get(getattr(item, "originalname", None) or item.name)
    if pattern is None:
        return False
    given = getattr(item, "callspec", None)
    return re.search(pattern, given.id if given else "") is None
