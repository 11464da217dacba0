"""Real processes, real databases, real faults, judged by the history checker.

A fault by its number (F1 to F36, named so in the tests), the test of it, and the databases (S
SQLite, P PostgreSQL, M MariaDB). Every Trial is judged by the rules of proof/judge.py: I1
exclusion, I2 order, I3 nothing lost, I4 tries bounded, I5 fenced, I6 exactly once, I7 states, I8
orderly stops, I9 recovered in time, I10 no death for others, I11 limits.

F1   kill -9 under load                        SPM test_kill: kill_under_load, object_of_a_killed
F2   kill -9 between claim and handler         SPM test_kill: killed_at_a_point[after-claim]
F3   kill -9 after the effect                  SPM test_kill: killed_at_a_point[after-effect]
F4   kill -9 inside the claim's transaction    SPM test_kill: killed_at_a_point[in-claim]
F5   SIGSTOP beyond the lease, in the handler  SPM test_kill: frozen_beyond_its_lease
F6   SIGSTOP between claim and handler         SPM test_kill: frozen_between_claim_and_handler
F7   SIGSTOP of all                            SPM test_kill: all_frozen
F8   SIGTERM, a second one, SIGINT             SPM test_kill: told_to_stop, second_sigterm
F9   the server stops at once and starts       P   test_sessions: crash_of_the_server
F10  kill -9 of the server                     M    test_sessions: crash_of_the_server
F11  sessions ended                            PM  test_sessions: ended_sessions
F12  cut exactly at COMMIT, before and after   PM  test_network: cut_at_commit
F13  black hole                                PM  test_network: half_open_connections
F14  delay, resets                             PM  test_network: slow_line, outage_is_one_line
F15  one instance cannot reach the database    PM  test_network: half_open_connections
F16  deadlocks, lock timeouts                  SPM test_hostile: deadlocks, rival_that_locks
F17  late commits                              PM  test_torture (SQLite has one writer)
F18  gaps in the ids                           SPM test_kill: all_frozen
F19  wall clocks a day off                     SPM test_kill: wall_clocks (Python's clock only)
F20  the database's clock jumps                SPM test_kill: clock_of_the_database (leases moved)
F21  disk full                                 S   test_hostile: full_disk
F22  read-only, rights revoked                 SPM test_hostile: rights_that_go_away, read_only
F23  another writer holds SQLite               S   test_hostile: rival_that_locks
F24  too few connections, a pool used up       SPM test_hostile: too_few_connections, pool_used_up
F25  poison: exit, SEGV, kill; no memory left  SPM test_kill: poison, several_poisons, memory
F26  a handler that hangs                      SPM contract: over_its_timeout, outlives_the_grace
F27  items that end or hang their threads      SPM test_kill: items_that_end_or_hang
F28  reruns at once                            SPM contract (app): rerun
F29  a row deleted or changed while it runs    SPM test_bad_handlers: deletes_or_changes_its_own_row
F30  a column dropped while running            PM  test_hostile: column_that_is_dropped
F31  many instances, one object                SPM test_kill: all_frozen; test_torture: fleet
F34  leases that a backup did not hold         SPM test_hostile: leases_that_are_gone
F36  fork after the engine was used            SPM test_hostile: forked_child

`torture` does most of it at once (test_torture for a few seconds), to plain and to transactional
handlers, batches and groups, with chains, unique keys, limits, cancels and schedules; or less at
once, and more of that (scenarios.py): large batches, limits, ticks. test_rolling scales a fleet
with shared-out shards under load.
"""
