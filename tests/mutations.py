"""The mutants of tests/mutants.py: what is replaced by what, and which tests must turn red."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One replacement; `file` under msgworker/; `tests` by name, with parameters."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _m(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, file, old, new, tests)


def _on(name: str, *databases: str) -> tuple[str, ...]:
    return tuple(f"{name}[{database}]" for database in databases)


ANY_ROW = "c.msg_id.is_not(None)"  # true, but not folded away: the parameters stay in use
ONE_WRONG_ROW = "test_one_wrong_row_leaves_all_of_a_batch_as_it_was"

MUTANTS = (
    # --- P1 exclusion
    _m(
        "the look after a lost answer does not wait for the commit",
        "store/settling/done.py",
        '            conn.execute(locking(t), {"mw_ids": part}).all()\n    return still_mine',
        "            pass\n    return still_mine",
        "test_a_commit_that_is_still_under_way_is_waited_for",
    ),
    _m(
        "no guard",
        "table/indexes.py",
        'self._add("guard", c.object_id, where=self.running(c), unique=True)',
        'self._add("guard", c.object_id, where=self.running(c))',
        *_on("test_the_database_refuses_a_second_running_row", "sqlite", "postgresql"),
    ),
    _m(
        "no guard, generated column",
        "table/indexes.py",
        'sa.Index(name("guard"), self._guard_key(c), unique=True)',
        'sa.Index(name("guard"), self._guard_key(c))',
        *_on("test_the_database_refuses_a_second_running_row", "mariadb"),
    ),
    _m(
        "claim does not look what runs",
        "store/claiming/claim.py",
        "        sa.not_(t.object_is_running(c)),\n",
        "",
        *_on("test_flag_refuses_an_object_that_runs", "sqlite", "postgresql"),
    ),
    # --- P2 order
    _m(
        "any message, not the head",
        "store/claiming/claim.py",
        "        sa.not_(t.earlier_unfinished(c)),\n",
        "",
        *_on("test_flag_refuses_who_is_not_the_head", "sqlite"),
    ),
    _m(
        "flagged whatever was seen",
        "store/claiming/claim.py",
        "if seen[r[1]] == (r[0], r[5])]",
        "if r[1] in seen]",
        *_on("test_flag_refuses_what_has_changed_since_it_was_seen", "sqlite"),
    ),
    _m(
        "flagged whatever was seen, one statement",
        "store/claiming/claim.py",
        ".where(c.status == seen.c.status, t.tries(c) == seen.c.tries, claimable)",
        ".where(claimable, t.claimable(c))",
        *_on("test_flag_refuses_what_has_changed_since_it_was_seen", "postgresql"),
    ),
    _m(
        "oldest candidates last",
        "store/claiming/candidates.py",
        """            .order_by(key)
            .limit(bindparam("rows", type_=sa.Integer()))
        )

    return as_candidates(sent_often(conn, t, "oldest\"""",
        """            .order_by(key.desc())
            .limit(bindparam("rows", type_=sa.Integer()))
        )

    return as_candidates(sent_often(conn, t, "oldest\"""",
        *_on("test_oldest_finds_open_rows_by_age", "sqlite"),
    ),
    _m(
        "running messages without an object take up room in a look",
        "store/claiming/candidates.py",
        "            .where(matters)\n",
        "",
        *_on("test_of_the_running_only_those_with_an_object_are_read", "sqlite"),
    ),
    _m(
        "running messages with an object are not seen",
        "store/claiming/candidates.py",
        "matters = sa.or_(c.object_id.is_not(None), c.status != lit(Status.PROCESSING))",
        "matters = c.status != lit(Status.PROCESSING)",
        *_on("test_of_the_running_only_those_with_an_object_are_read", "sqlite"),
    ),
    _m(
        "run goes on behind one that waits",
        "store/claiming/following.py",
        "elif found[1] and (role is None",
        "elif (role is None",
        "test_a_run_ends_before_the_first_unfinished_row_that_cannot_follow",
    ),
    _m(
        "run in spite of a lower one",
        "store/claiming/following.py",
        "ended = row[0] != head  # a lower unfinished row has appeared",
        "ended = False",
        *_on("test_a_run_is_empty_if_a_lower_unfinished_row_has_appeared", "sqlite"),
    ),
    _m(
        "flag moves to one that waits",
        "store/settling/done.py",
        "return [c.status == lit(Status.NEW), t.due(c), *never_tried]",
        "return [c.status == lit(Status.NEW), *never_tried]",
        "test_settle_ends_the_lane_when_the_next_one_is_gone[sqlite-later]",
    ),
    _m(
        "on_dead=block ignored",
        "table/tables.py",
        "last = ends_at(self.spec.max_tries, self.spec.on_dead)",
        "last = self.spec.max_tries",
        *_on("test_on_dead_block_waits_for_ops", "sqlite"),
    ),
    _m(
        "NULL is an object",
        "instance/claiming/pick.py",
        "        The source gives an object's rows in order: the first one that cannot run blocks "
        'the others.\n        """\n        same = row[self._key_at]\n        if same is not None:',
        "        The source gives an object's rows in order: the first one that cannot run blocks "
        'the others.\n        """\n        same = row[self._key_at]\n'
        "        if row.msg_id is not None:",
        *_on("test_messages_without_an_object_are_claimed_together", "sqlite"),
    ),
    # --- P7 priorities
    _m(
        "a message behind another is proposed by its priority",
        "store/claiming/urgent.py",
        "sa.case((t.earlier_unfinished(t.cols()), ZERO), else_=ONE)",
        "sa.case((sa.and_(t.earlier_unfinished(t.cols()), ONE == ZERO), ZERO), else_=ONE)",
        *_on("test_a_message_with_a_priority_behind_another_is_no_head", "sqlite"),
    ),
    _m(
        "what runs or is dead keeps its rank",
        "table/priorities.py",
        "parts = [t.claimable(c), _has_one(c)]",
        "parts = [t.unfinished(c), _has_one(c)]",
        *_on("test_only_what_may_be_claimed_and_waits_for_no_instant_has_a_rank", "sqlite"),
    ),
    _m(
        "what waits for an instant has a rank",
        "table/priorities.py",
        "parts.append(c.available_at.is_(None))",
        "pass",
        *_on("test_only_what_may_be_claimed_and_waits_for_no_instant_has_a_rank", "sqlite"),
    ),
    _m(
        "a text is the highest priority",
        "table/priorities.py",
        "c.priority.between(ONE, sa.literal_column(str(MOST_PRIORITY)))",
        "c.priority >= ONE",
        "test_odd_values_of_sqlite_count_as_none_or_as_their_number[1e300]",
    ),
    _m(
        "the oldest is owed nothing",
        "instance/claiming/urgency.py",
        "if overtaken >= SHARE - 1 else",
        "if overtaken >= SHARE * 99 else",
        *_on("test_of_every_eight_messages_claimed_one_is_the_oldest", "sqlite"),
    ),
    _m(
        "what overtakes the oldest that were not read is not counted",
        "instance/claiming/urgency.py",
        "return ranks[:want], overtaken + min(want, len(ranks))",
        "return ranks[:want], overtaken",
        *_on("test_of_every_eight_messages_claimed_one_is_the_oldest", "sqlite"),
    ),
    _m(
        "the oldest are not read when they are owed",
        "instance/claiming/search.py",
        "others = max(want - len(pick.own), urgency.owed(want, self._overtaken))",
        "others = max(want - len(pick.own), 0)",
        *_on("test_of_every_eight_messages_claimed_one_is_the_oldest", "sqlite"),
    ),
    _m(
        "of messages with a priority the lower ones are never the oldest",
        "instance/claiming/pick.py",
        "self.own += sorted(found, key=lambda row: row.msg_id)",
        "self.own += sorted(found, key=lambda row: -row.msg_id)",
        *_on("test_messages_with_a_priority_do_not_starve_each_other", "sqlite"),
    ),
    _m(
        "claimed messages start by id",
        "instance/claiming/claimer.py",
        "if self._by_priority and len(rows) > 1:",
        "if False:",
        *_on("test_heads_of_a_higher_priority_come_first", "sqlite"),
    ),
    _m(
        "urgent messages wait for the instance of their share",
        "instance/claiming/pick.py",
        "if self.slots == 1 or row.msg_id in self.priorities:",
        "if self.slots == 1:",
        *_on("test_urgent_messages_of_another_share_are_taken_too", "sqlite"),
    ),
    _m(
        "what cannot start hides lower priorities",
        "instance/claiming/search.py",
        "        if found < want:\n",
        "        if found < 0:\n",
        *_on("test_what_cannot_start_does_not_hide_lower_priorities", "sqlite"),
    ),
    _m(
        "urgent messages of other slices are proposed",
        "instance/claiming/slicing.py",
        "found.values.get(row.msg_id) in where.values",
        "row.msg_id in found.values",
        *_on("test_messages_with_a_priority_come_first_in_their_slice_only", "sqlite"),
    ),
    # --- P4, P5 the outcome
    _m(
        "no fence",
        "table/tables.py",
        "return running if c.claimed_by is None else sa.and_(running, c.claimed_by == me)",
        f"return running if c.claimed_by is None else sa.and_(running, "
        f"sa.or_(c.claimed_by == me, {ANY_ROW}))",
        *_on("test_settle_one", "sqlite", "postgresql"),
    ),
    _m(
        "no fence, one statement",
        "store/settling/done.py",
        ".where(*_named(t, c, ids), t.mine(c, ME))",
        f".where(*_named(t, c, ids), sa.or_(t.mine(c, ME), {ANY_ROW}))",
        "test_settle_reports_what_is_lost_and_writes_nothing_for_it",
    ),
    _m(
        "outcome of any try",
        "store/settling/settle.py",
        "same_claim = t.same_tries(c, counted)",
        f"same_claim = [sa.or_(one, {ANY_ROW}) for one in t.same_tries(c, counted)]",
        *_on("test_an_outcome_of_an_earlier_claim_is_not_written", "sqlite"),
    ),
    _m(
        "outcome of any RetryLater",
        "store/settling/settle.py",
        'same_claim.append(times == bindparam("mw_times", type_=sa.Integer()))',
        f'same_claim.append(sa.or_(times == bindparam("mw_times", type_=sa.Integer()), {ANY_ROW}))',
        *_on("test_an_outcome_from_before_a_retry_later_is_not_written", "sqlite"),
    ),
    _m(
        "flag moved in a second transaction",
        "store/settling/done.py",
        "    moved = 0\n    for part in _parts(t, nexts):\n",
        '    conn.exec_driver_sql("COMMIT")\n    conn.exec_driver_sql("BEGIN")\n'
        "    moved = 0\n    for part in _parts(t, nexts):\n",
        *_on("test_outcome_and_next_flag_commit_together", "sqlite"),
    ),
    _m(
        "no fence, one UPDATE",
        "store/settling/together.py",
        'ended = sa.and_(_one_of(c, "mw_heads"), t.mine(c, ME))',
        'ended = sa.and_(_one_of(c, "mw_heads"), c.status >= lit(Status.NEW))',
        "test_settle_reports_what_is_lost_and_writes_nothing_for_it[mariadb-edit0]",
        "test_settle_reports_what_is_lost_and_writes_nothing_for_it[mariadb-edit1]",
    ),
    _m(
        "flag moves to one that waits, one UPDATE",
        "store/settling/together.py",
        'next_one = sa.and_(_one_of(c, "mw_nexts"), *may_follow(t, c))',
        'next_one = sa.and_(_one_of(c, "mw_nexts"), c.status == lit(Status.NEW))',
        "test_settle_ends_the_lane_when_the_next_one_is_gone[mariadb-later]",
    ),
    _m(
        "one UPDATE that may be of fewer rows",
        "store/settling/together.py",
        "params) != len(heads) + len(nexts):",
        "params) > len(heads) + len(nexts):",
        "test_settle_ends_the_lane_when_the_next_one_is_gone[mariadb-edit0]",
    ),
    _m(
        "a released row flagged as if it were a next one",
        "store/settling/together.py",
        'next_one = sa.and_(_one_of(c, "mw_nexts"), *may_follow(t, c))',
        "next_one = sa.and_(*may_follow(t, c))",
        "test_a_row_that_was_given_back_meanwhile_is_not_flagged_again[mariadb]",
    ),
    _m(
        "the next row before the old one, one UPDATE",
        "store/rows.py",
        'by(c.object_id).op(",", precedence=90, is_comparison=True)(c.msg_id)',
        'by(c.object_id).op(",", precedence=90, is_comparison=True)(c.msg_id.desc())',
        *_on(
            "test_messages_that_are_done_are_settled_in_as_few_statements_as_the_database_allows",
            "mariadb",
        ),
    ),
    _m(
        "transactional outcome by itself",
        "instance/running/calling.py",
        "            fate = self._settle(conn, lane)\n",
        '            conn.exec_driver_sql("COMMIT")\n            conn.exec_driver_sql("BEGIN")\n'
        "            fate = self._settle(conn, lane)\n",
        *_on("test_effects_of_a_lost_claim_are_rolled_back", "sqlite", "mariadb"),
    ),
    _m(
        "claimed_by stays on a done row",
        "store/settling/done.py",
        "return t.values(status=lit(Status.DONE), finished_at=now(), claimed_by=sa.null())",
        "return t.values(status=lit(Status.DONE), finished_at=now())",
        *_on("test_settle_moves_the_flag_on", "sqlite"),
    ),
    # --- P6 tries
    _m(
        "tries counted in the except block only",
        "store/recovering/recover.py",
        "t.tries(c) + 1), else_=most)",
        "t.tries(c) + 0), else_=most)",
        *_on("test_recover_gives_back_with_a_try_and_a_crash_counted", "sqlite"),
    ),
    _m(
        "a try too many",
        "store/settling/settle.py",
        "dead = failed >= most",
        "dead = failed > most",
        *_on("test_settle_writes_every_outcome", "sqlite"),
    ),
    _m(
        "no back-off",
        "store/settling/settle.py",
        "available_at=sa.case((dead, sa.null()), else_=later)",
        "available_at=sa.null()",
        *_on("test_settle_writes_every_outcome", "sqlite"),
    ),
    _m(
        "RetryLater counted as a failure",
        "instance/running/outcome.py",
        "return Result(Outcome.LATER, clean(f",
        "return Result(Outcome.FAILED, clean(f",
        *_on("test_retry_later_is_not_counted", "sqlite"),
    ),
    _m(
        "bad payload tried again",
        "instance/running/outcome.py",
        "        return Result(Outcome.DEAD, text, trace=trace, raised=raised)\n",
        "        return Result(Outcome.FAILED, text, trace=trace, raised=raised)\n",
        *_on("test_a_payload_that_does_not_fit_is_dead_at_once", "sqlite"),
    ),
    _m(
        "a release counts a try",
        "store/settling/settle.py",
        "    return t.values(status=back, available_at=sa.null(), claimed_by=sa.null())\n",
        "    return t.values(status=lit(Status.FAILED), error_try_times=tries + 1, "
        "claimed_by=sa.null())\n",
        *_on("test_settle_writes_every_outcome", "sqlite"),
    ),
    _m(
        "a release of unknown rows counts a try",
        "store/recovering/recover.py",
        "t.values(status=back_to(t), available_at=sa.null(), claimed_by=sa.null())",
        "t.values(status=back_to(t), error_try_times=t.tries(c) + 1, claimed_by=sa.null())",
        *_on("test_release_gives_back_without_a_try", "sqlite"),
    ),
    _m(
        "quarantine off",
        "message.py",
        "return crash_times > 0 and tries >= max_tries - 1",
        "return crash_times > 99 and tries >= max_tries - 1",
        *_on("test_a_message_in_quarantine_runs_alone", "sqlite"),
    ),
    _m(
        "others claimed beside a quarantined one",
        "instance/running/hand.py",
        "return any(in_quarantine(row.crash_times, row.tries, max_tries) for row in rows)",
        "return False",
        *_on("test_a_message_in_quarantine_runs_alone", "sqlite"),
    ),
    _m(
        "a rerun keeps its tries",
        "store/changing/change.py",
        "            error_try_times=zero,\n",
        "",
        *_on("test_rerun_starts_again_from_zero", "sqlite"),
    ),
    # --- life and death
    _m(
        "recovery without take-over",
        "instance/liveness/recovery.py",
        "            won = lease.take_over(conn, runtime.tables, seen, me=me, ttl=ttl)\n",
        "            won = bool(ttl)\n",
        *_on("test_a_dead_lease_is_taken_over_and_then_goes", "sqlite"),
    ),
    _m(
        "a recovery for as long as it takes",
        "instance/liveness/recovery.py",
        "BEAT_SHARE = 0.5\n",
        "BEAT_SHARE = 500.0\n",
        *_on("test_a_long_recovery_does_not_cost_us_our_own_lease", "sqlite"),
    ),
    _m(
        "the id kept while a settle is under way",
        "instance/claiming/finder.py",
        "if c.msg_id not in runtime.identity.doubtful]",
        "if c.msg_id is not None]",
        *_on(
            "test_message_whose_settle_may_be_under_way_is_claimed_under_a_new_id_only",
            "sqlite",
        ),
    ),
    _m(
        "unconditional recovery",
        "store/recovering/recover.py",
        "        return [t.mine(c, _who(dead_id))]\n",
        f"        return [sa.or_(t.mine(c, _who(dead_id)), {ANY_ROW})]\n",
        *_on("test_recover_gives_back_with_a_try_and_a_crash_counted", "sqlite"),
    ),
    _m(
        "heartbeat stopped before handlers end",
        "instance/instance.py",
        "        self.fetcher.stop()\n        self.lanes.close()\n",
        "        self.fetcher.stop()\n        self.heartbeat.stop()\n        self.lanes.close()\n",
        *_on("test_the_lease_is_kept_while_a_stop_waits_for_a_handler", "sqlite"),
    ),
    _m(
        "renewal after a take-over",
        "store/recovering/lease.py",
        '                lease.name == bindparam("me"), lease.taken_by.is_(None), '
        "lease.expires_at > now()\n",
        '                lease.name == bindparam("me"), lease.expires_at > now()\n',
        *_on("test_a_take_over_has_one_winner_and_is_for_ever", "sqlite"),
    ),
    _m(
        "renewal of an expired lease",
        "store/recovering/lease.py",
        '                lease.name == bindparam("me"), lease.taken_by.is_(None), '
        "lease.expires_at > now()\n",
        '                lease.name == bindparam("me"), lease.taken_by.is_(None)\n',
        *_on("test_an_expired_lease_is_never_renewed", "sqlite"),
    ),
    _m(
        "take-over of any term",
        "store/recovering/lease.py",
        'lease.term == bindparam("seen"),\n                lease.expires_at <= now(),\n',
        'lease.term >= bindparam("seen"),\n',
        *_on("test_a_renewal_between_look_and_take_over_wins", "sqlite"),
    ),
    _m(
        "expiry by the process's clock",
        "store/recovering/lease.py",
        "        live = sa.case((lease.expires_at > now(), 1), else_=0)\n",
        "        from datetime import UTC\n\n"
        "        live = sa.case((lease.expires_at > datetime.now(UTC), 1), else_=0)\n",
        "test_leases_are_judged_by_the_database_s_clock",
    ),
    _m(
        "renewal by the process's clock",
        "store/recovering/lease.py",
        '                lease.name == bindparam("me"), lease.taken_by.is_(None), '
        "lease.expires_at > now()\n",
        '                lease.name == bindparam("me"), lease.taken_by.is_(None),\n'
        '                lease.expires_at > datetime.now(__import__("datetime").UTC)\n',
        "test_leases_are_judged_by_the_database_s_clock",
    ),
    _m(
        "the dead live on where the clock was put back",
        "instance/liveness/recovery.py",
        "if one.ahead and one.name",
        "if one.ahead > 1 and one.name",
        *_on("test_the_dead_do_not_live_on_where_the_clock_was_put_back", "sqlite"),
    ),
    _m(
        "a lost message does not make the heartbeat read the lease",
        "instance/settling/settler.py",
        "            self._doubt()  # before",
        "            # before",
        *_on("test_who_was_declared_dead_learns_it_from_the_first_message_it_lost", "sqlite"),
    ),
    _m(
        "handlers start without trust in the lease",
        "instance/running/handlerthreads.py",
        "            if not trusted:  # wait",
        "            if runtime.stopping is None:  # wait",
        *_on("test_no_handler_starts_while_the_lease_is_in_doubt", "sqlite"),
    ),
    _m(
        "claims without trust in the lease",
        "instance/claiming/claimer.py",
        "            if runtime.identity.id != me or not runtime.identity.trusted():\n"
        "                return [], []  # declared dead",
        "            if runtime.identity is None:\n                return [], []  # declared dead",
        *_on("test_a_new_self_claims_nothing_that_the_old_one_looked_at", "sqlite"),
    ),
    _m(
        "objects in flight are claimed again",
        "instance/claiming/finder.py",
        "if c.msg_id not in ids and (c.object_id is None or c.same not in objects)",
        "if c.msg_id is not None",
        *_on("test_nothing_is_claimed_of_an_object_whose_settle_is_unanswered", "sqlite"),
    ),
    _m(
        "slow work is hoarded",
        "instance/claiming/room.py",
        "if excess <= 0 or self._runtime.slots < 2",
        "if excess is not None or self._runtime.slots < 2",
        *_on("test_what_waits_behind_slow_handlers_is_given_back_where_others_live", "sqlite"),
    ),
    _m(
        "old handlers are not waited for",
        "instance/running/hand.py",
        "lost = [r for r in list(self.running.values()) if not is_ours(r.owner)]",
        "lost = [r for r in list(self.running.values()) if r.owner is None]",
        *_on("test_a_new_self_waits_for_the_handlers_of_the_old_one", "sqlite"),
    ),
    _m(
        "a renewal after the end of trust",
        "instance/liveness/heartbeat.py",
        "if begun >= identity.trusted_until or not",
        "if not",
        *_on("test_who_wakes_after_its_lease_is_over_does_not_ask_for_it", "postgresql"),
    ),
    _m(
        "a settle of a lost id is sent again and again",
        "instance/settling/writer.py",
        "return runtime.identity.is_ours(me) and not runtime.gave_up()",
        "return not runtime.gave_up()",
        *_on("test_a_settle_of_an_id_that_was_lost_is_not_sent_again", "sqlite"),
    ),
    # --- claims beside what is in flight
    _m(
        "threads that ran dry wait until all has ended",
        "instance/claiming/room.py",
        "            self._appetite.ran_dry()\n",
        "            self._appetite.has_room(busy)\n",
        *_on("test_more_is_claimed_while_lanes_are_in_flight_if_the_threads_ran_dry", "sqlite"),
    ),
    _m(
        "more is held although there was no more",
        "instance/claiming/appetite.py",
        "        if self._full:\n            self._full = False",
        "        if self.lanes:\n            self._full = False",
        "test_threads_that_run_dry_while_all_is_held_make_it_hold_more",
    ),
    _m(
        "lanes that end take up room until their settle is answered",
        "instance/claiming/room.py",
        "staying = max(0, held - self._settler.leaving)",
        "staying = held",
        *_on("test_lanes_that_end_with_the_settle_under_way_leave_their_room_to_others", "sqlite"),
    ),
    _m(
        "lanes that go on leave their room",
        "instance/settling/writer.py",
        "sum(s.next_id is None for s in batch)",
        "len(batch)",
        *_on("test_lanes_that_go_on_with_the_settle_under_way_keep_their_room", "sqlite"),
    ),
    _m(
        "lanes leave their room twice",
        "instance/settling/writer.py",
        "        finally:\n            self.leaving = 0\n",
        "        finally:\n            self.leaving += 0\n",
        *_on("test_lanes_that_end_with_the_settle_under_way_leave_their_room_to_others", "sqlite"),
    ),
    # --- two settles at once
    _m(
        "a settle beside another one for a few lanes",
        "instance/settling/settler.py",
        "if busy and not self._worth_a_settle():",
        "if busy and len(self.writers) < 2:",
        *_on("test_a_few_lanes_are_left_to_the_settle_under_way", "sqlite"),
    ),
    _m(
        "a few lanes wait for a settle however long it takes",
        "instance/settling/settler.py",
        "return bool(begun) and time.monotonic() - min(begun) > LONG_SECONDS",
        "return False",
        *_on("test_behind_a_settle_that_takes_long_any_lane_is_settled", "sqlite"),
        *_on("test_what_waits_for_a_settle_that_hangs_is_settled_by_the_other_one", "sqlite"),
    ),
    _m(
        "only the first settle is waited for",
        "instance/settling/settler.py",
        "        for writer in spare:\n            self._wait_for(writer)",
        "        for writer in spare[:0]:\n            self._wait_for(writer)",
        *_on("test_waiting_for_all_settles_waits_for_both", "sqlite"),
    ),
    _m(
        "a connection is closed while a settle uses it",
        "instance/settling/writer.py",
        "        with self.lock:\n            self.link.close()",
        "        if self.lock:\n            self.link.close()",
        *_on("test_connections_are_closed_after_the_settles_that_use_them", "sqlite"),
    ),
    _m(
        "lanes are taken without a connection",
        "instance/settling/settler.py",
        "                if writer.open():",
        "                if writer is not None:",
        *_on("test_without_a_second_connection_one_writer_settles_all", "sqlite"),
    ),
    _m(
        "a full pool is asked for a second connection",
        "instance/settling/writer.py",
        "        return has_free_connection(self._runtime.engine)",
        "        return has_free_connection is not None",
        *_on("test_a_pool_without_a_free_connection_is_not_asked_for_a_second_one", "sqlite"),
    ),
    _m(
        "the first of two outages that ends, ends both",
        "instance/role.py",
        "self._since.pop(who, None)",
        "self._since.clear()",
        "test_an_outage_of_two_parts_of_one_name_begins_and_ends_once",
    ),
    _m(
        "an idle writer stays in its outage",
        "instance/settling/settler.py",
        "            if became:\n                self._answered()\n",
        "",
        *_on("test_an_outage_of_an_idle_writer_ends_with_the_next_answer", "sqlite"),
    ),
    _m(
        "the watchdog sees one settle",
        "instance/instance.py",
        "settling=self.settler.links,",
        "settling=self.settler.links[:1],",
        *_on("test_the_watchdog_sees_both_settles", "sqlite"),
    ),
    _m(
        "what cannot be recovered is forgotten",
        "instance/liveness/heartbeat.py",
        'if not runtime.tables.has("claimed_by"):\n            self._go_on',
        "if runtime.tables is None:\n            self._go_on",
        *_on("test_what_has_not_started_is_asked_for_before_it_starts", "sqlite"),
    ),
    _m(
        "messages carried over are not locked and read again",
        "instance/running/lanes.py",
        "        if lane.owner == identity.id:\n            return True\n",
        "        if identity.is_ours(lane.owner):\n            return True\n",
        *_on("test_what_people_gave_back_while_the_lease_was_lost_is_not_started", "sqlite"),
    ),
    _m(
        "done under any claim, without owners",
        "store/settling/done.py",
        "mine = (t.among(c.msg_id), t.mine(c, ME), *t.same_tries(c, counted))",
        f"tries = [sa.or_(one, {ANY_ROW}) for one in t.same_tries(c, counted)]\n"
        "        mine = (t.among(c.msg_id), t.mine(c, ME), *tries)",
        "test_an_outcome_is_not_written_under_the_claim_of_another[sqlite-done]",
    ),
    _m(
        "done under any claim, without owners, one statement",
        "store/settling/done.py",
        "    return [c.msg_id == seen.c.msg_id, as_claimed]\n",
        f"    return [c.msg_id == seen.c.msg_id, sa.or_(as_claimed, {ANY_ROW})]\n",
        "test_an_outcome_is_not_written_under_the_claim_of_another[postgresql-done]",
    ),
    _m(
        "the renewal in a transaction",
        "instance/liveness/ownlease.py",
        "        with self._link.single() as conn:",
        "        with self._link.transaction() as conn:",
        *_on("test_who_stands_still_after_its_renewal_holds_no_lock", "postgresql"),
    ),
    _m(
        "a locked lease is waited for",
        "store/recovering/lease.py",
        "    if not t.dialect.row_locks:\n        return True\n",
        "    return True\n",
        *_on("test_a_lease_that_somebody_has_locked_is_not_waited_for", "postgresql"),
    ),
    _m(
        "no sweep of unknown rows",
        "instance/liveness/heartbeat.py",
        "        self._claimer.release_unknown(self._link, patience=CLAIM_PATIENCE_SECONDS)\n",
        "",
        *_on("test_rows_of_ours_that_no_lane_knows_are_given_back", "sqlite"),
    ),
    _m(
        "the sweep takes known rows too",
        "instance/claiming/claimer.py",
        "if msg_id not in known]",
        "if msg_id is not None]",
        *_on("test_a_sweep_leaves_what_is_in_hand", "sqlite"),
    ),
    _m(
        "rows of ids without a lease stay",
        "instance/liveness/recovery.py",
        "            if orphan not in known and orphan != me:\n",
        "            if orphan is None:\n",
        *_on("test_rows_of_an_id_without_a_lease_are_recovered", "sqlite"),
    ),
    _m(
        "the lease is dropped without a look",
        "instance/liveness/heartbeat.py",
        "        if not self._claimer.holds_nothing(self._link):\n            return False\n",
        "",
        *_on("test_a_lease_is_not_dropped_while_a_row_is_flagged", "sqlite"),
    ),
    _m(
        "a drain returns early",
        "instance/claiming/finder.py",
        "                linger=drain.linger,\n                retry_linger=drain.retry_linger,\n",
        "                linger=0.0,\n                retry_linger=0.0,\n",
        *_on("test_linger_sits_out_short_back_offs", "sqlite"),
    ),
    # --- the rule of the table
    _m(
        "registers under any rule",
        "store/tables/rule.py",
        "    elif found != Rule.of(t.spec):\n        raise",
        "    elif found != found:\n        raise",
        *_on("test_an_instance_of_an_older_rule_does_not_register", "sqlite"),
    ),
    _m(
        "registers without a lock of the rule",
        "store/tables/rule.py",
        "        if not t.dialect.row_locks:\n            return _query(t)",
        "        if shared or not t.dialect.row_locks:\n            return _query(t)",
        *_on("test_a_change_sees_who_is_just_registering", "postgresql"),
    ),
    _m(
        "rule changed beside the living",
        "store/tables/rule.py",
        "    if live := living(conn, t):\n",
        "    if live := living(conn, t)[:0]:\n",
        *_on("test_the_rule_is_kept_while_the_lease_of_the_dead_is_live", "sqlite"),
    ),
    _m(
        "rule changed while the dead hold messages",
        "store/tables/rule.py",
        "    if held := recover.owners(conn, t):\n",
        "    if held := recover.owners(conn, t)[:0]:\n",
        *_on("test_what_the_dead_hold_is_recovered_by_the_old_rule_first", "sqlite"),
    ),
    _m(
        "rule changed without the numbers",
        "store/tables/rule.py",
        "    _renumber(conn, t, found, wanted)\n",
        "",
        *_on("test_a_discarded_message_never_runs_again_where_max_tries_is_raised", "sqlite"),
    ),
    _m(
        "ops write by an older rule",
        "ops/bulk.py",
        "                if rule.hold(conn, self._tables):\n",
        "                if True:\n",
        *_on("test_a_write_of_ops_by_an_older_rule_is_refused", "sqlite"),
    ),
    # --- locks
    _m(
        "the token of a lock stands still",
        "store/sharing/locks.py",
        '"token": c.token + 1,',
        '"token": c.token + 0,',
        "test_a_former_holder_changes_nothing[sqlite]",
    ),
    _m(
        "a lock is taken from who holds it",
        "store/sharing/locks.py",
        '.where(c.name == bindparam("mw_name"), free).values(_taken(c))',
        '.where(c.name == bindparam("mw_name")).values(_taken(c))',
        "test_one_of_ten_wins_each_round_and_tokens_rise[sqlite]",
    ),
    _m(
        "a renewal does not ask for the token",
        "store/sharing/locks.py",
        'return (c.name == bindparam("mw_name"), who, c.token == bindparam("mw_token"))',
        'return (c.name == bindparam("mw_name"), who, c.token + 0 * bindparam("mw_token") > 0)',
        "test_a_former_holder_changes_nothing[sqlite]",
    ),
    _m(
        "what has expired is renewed",
        "store/sharing/locks.py",
        "whose = (*_of(c), sa.not_(_expired(c)))",
        "whose = _of(c)",
        "test_leases_keep_their_rules_in_any_order_of_events",
    ),
    _m(
        "a lease is believed in for its whole time",
        "coordination/lease.py",
        "TRUST = 0.9",
        "TRUST = 1.1",
        "test_a_process_that_stood_still_does_not_believe_in_its_lease",
    ),
    _m(
        "the lost reply to an acquire is not asked for",
        "coordination/database.py",
        "return locks.acquired(conn, self._tables, name, claim_id) or take(conn)",
        "return take(conn)",
        "test_the_lost_reply_to_an_acquire_loses_no_lock[postgresql]",
    ),
    _m(
        "a lock is released without its owner",
        "store/sharing/locks.py",
        "return sa.update(table(t)).where(*_of(c)).values(**free)",
        'both = bindparam("mw_owner") + bindparam("mw_token", type_=sa.String())\n'
        '        held = sa.or_(c.owner.is_not(None), both == "")\n'
        '        which = (c.name == bindparam("mw_name"), held)\n'
        "        return sa.update(table(t)).where(*which).values(**free)",
        "test_a_former_holder_changes_nothing[sqlite]",
    ),
    # --- how far to read ahead, and when to look
    _m(
        "a wake does not end the back-off of looks",
        "instance/claiming/pollpace.py",
        "self._look_at, self._woken = 0.0, True",
        "self._woken = True",
        *_on("test_a_message_of_this_process_starts_at_once_beside_a_busy_object", "sqlite"),
    ),
    _m(
        "looks beside a running message never back off",
        "instance/claiming/fetcher.py",
        "if held and self.pace.look_in > 0 and",
        "if held < 0 and self.pace.look_in > 0 and",
        *_on("test_rounds_beside_a_busy_object_send_nothing_before_the_next_look", "sqlite"),
    ),
    _m(
        "a wake between two waits is lost",
        "instance/role.py",
        "                if self._wake.is_set():",
        "                if pause < 0:",
        "test_a_wake_between_the_wait_and_the_next_round_is_not_lost",
    ),
    _m(
        "runs are read as if nothing was read ahead",
        "instance/claiming/claimer.py",
        "        return self._runs.limit(len(lanes) + max(0, to_come), ahead)",
        "        return self._runs.limit(len(lanes) + max(0, to_come), ahead * 0)",
        *_on("test_lanes_with_long_runs_leave_less_to_others", "sqlite"),
    ),
    _m(
        "a run that is cut short is read as long again",
        "instance/claiming/runlength.py",
        "cut = min(cut, 2 * done)",
        "cut = min(cut, 1 << 60)",
        "test_a_run_that_is_cut_short_is_followed_by_one_twice_as_long_as_was_used",
    ),
    # --- scopes
    _m(
        "a shard is given up while messages of it are in flight",
        "coordination/partitions.py",
        "busy = self._looking | self.in_hand(self.scope.shards)",
        "busy = self._looking | set()",
        *_on("test_a_shard_is_kept_while_something_of_it_is_in_hand", "sqlite"),
    ),
    _m(
        "what runs under a lost id is not in flight",
        "instance/running/hand.py",
        "return parts.union(*(running.parts() for running in list(self.running.values())))",
        "return parts",
        *_on("test_a_shard_is_kept_while_a_handler_of_a_lost_id_still_runs", "sqlite"),
    ),
    _m(
        "a shard is looked at though its lease is over",
        "coordination/partitions.py",
        "if n not in self._draining and one.live()]",
        "if n not in self._draining and one is not None]",
        *_on(
            "test_a_member_whose_lease_is_lost_forgets_all_and_begins_under_another_name",
            "sqlite",
        ),
    ),
    _m(
        "a segment is given up between a look and its claim",
        "coordination/segments.py",
        "if self._looking:  # candidates",
        "if self._looking is None:  # candidates",
        "test_segments_keep_their_rules_in_any_order_of_events",
    ),
    _m(
        "a look tells of the segment that is held at its end",
        "coordination/segments.py",
        "self._empty_until |= dict.fromkeys(was, until)",
        "self._empty_until |= dict.fromkeys(self._shards, until)",
        "test_a_look_tells_of_the_shards_that_it_began_with[sqlite]",
    ),
    _m(
        "an empty segment is looked at until it is given up",
        "coordination/segments.py",
        "lease.live() and not self._is_empty(self._shards, now)",
        "lease.live() and now is not None",
        "test_segments_keep_their_rules_in_any_order_of_events",
    ),
    _m(
        "a segment is held as long as it has work",
        "coordination/segments.py",
        "return now - self._since >= self.scope.hold",
        "return now - self._since >= 100 * self.scope.hold",
        "test_segments_keep_their_rules_in_any_order_of_events",
    ),
    # --- several databases
    _m(
        "a send goes to any database",
        "databases.py",
        "        if ours and name not in ours:\n",
        "        if ours and not name:\n",
        "test_a_message_is_sent_to_the_home_of_its_object_and_nowhere_else",
    ),
    _m(
        "a whole number has a home for each way to write it",
        "store/send.py",
        "object_id.is_finite() and object_id == int(object_id)",
        "object_id.is_nan()",
        "test_an_object_has_one_home_however_its_id_is_written",
    ),
    _m(
        "the shards at home are those away from it",
        "databases.py",
        "if n not in self.homes[name]]",
        "if n in self.homes[name]]",
        "test_shards_with_unfinished_messages_away_from_home_are_told",
    ),
    _m(
        "databases share the locks of their scopes",
        "databases.py",
        "                if other != name:\n",
        "                if not other:\n",
        "test_scopes_that_would_share_their_locks_are_refused",
    ),
    _m(
        "a stop is for the first database only",
        "workers.py",
        "        for part in parts:\n            part.look()\n",
        "        for part in parts[:1]:\n            part.look()\n",
        "test_one_signal_stops_all_databases_in_order",
    ),
    _m(
        "a database that is away at the start is given up",
        "workers.py",
        "    while not part.asked.in_order:\n",
        "    while not part.asked.in_order and not part.away:\n",
        "test_a_database_that_is_away_at_the_start_is_taken_in_when_it_is_back",
    ),
    _m(
        "one database that is away ends all",
        "workers.py",
        "if all(part.is_away for part in parts)",
        "if any(part.is_away for part in parts)",
        "test_a_database_that_is_away_at_the_start_is_taken_in_when_it_is_back",
    ),
    _m(
        "who waits for its database again and again ends never",
        "workers.py",
        "if all(part.is_away for part in parts)",
        "if all(not part for part in parts)",
        "test_who_can_use_none_of_its_databases_ends",
    ),
    _m(
        "a lost database is not the gravest",
        "workers.py",
        "(ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.RETRIES)",
        "(ExitCode.RETRIES, ExitCode.REFUSED, ExitCode.UNREACHABLE)",
        "test_the_gravest_report_is_the_exit_code_of_all",
    ),
    _m(
        "a look reads as much as there are instances",
        "instance/claiming/search.py",
        "objects = min(WINDOW, max(objects, self._stride))",
        "objects = max(objects, self._stride)",
        "test_a_look_everywhere_is_bounded_however_many_instances_live[sqlite]",
    ),
    # --- batches
    _m(
        "a batch: a head without its owner",
        "store/settling/batch.py",
        "mine = (_among(t, c), t.mine(c, ME), *t.same_tries(c, counted))",
        "mine = (_among(t, c), t.running(c), ME.is_not(None), *t.same_tries(c, counted))",
        *_on(
            "test_one_wrong_row_leaves_all_of_a_batch_as_it_was", "sqlite-a head of another owner"
        ),
    ),
    _m(
        "a batch: the heads are not counted",
        "store/settling/batch.py",
        "if _changed(conn, t, _finish_heads(t, counted), heads, params) != len(heads):",
        "if _changed(conn, t, _finish_heads(t, counted), heads, params) < 0:",
        *_on("test_a_lane_whose_head_is_gone_is_lost_and_the_others_run_alone", "sqlite"),
    ),
    _m(
        "a batch: the followers are not counted",
        "store/settling/batch.py",
        "if _changed(conn, t, _finish_followers(t), followers, {}) != len(followers):",
        "if _changed(conn, t, _finish_followers(t), followers, {}) < 0:",
        *_on("test_a_follower_that_is_no_longer_free_rolls_everything_back", "sqlite-discarded"),
    ),
    _m(
        "a batch: followers whatever their status",
        "store/settling/batch.py",
        'free = (c.status == lit(Status.NEW), t.due(c), t.tries(c) == sa.literal_column("0"))',
        'free = (t.due(c), t.tries(c) == sa.literal_column("0"))',
        *_on(
            "test_one_wrong_row_leaves_all_of_a_batch_as_it_was", "sqlite-a follower that is done"
        ),
    ),
    _m(
        "a batch: followers that wait",
        "store/settling/batch.py",
        'free = (c.status == lit(Status.NEW), t.due(c), t.tries(c) == sa.literal_column("0"))',
        'free = (c.status == lit(Status.NEW), t.tries(c) == sa.literal_column("0"))',
        *_on(ONE_WRONG_ROW, "sqlite-a follower that waits"),
    ),
    _m(
        "a batch: followers with a try",
        "store/settling/batch.py",
        'free = (c.status == lit(Status.NEW), t.due(c), t.tries(c) == sa.literal_column("0"))',
        "free = (c.status == lit(Status.NEW), t.due(c))",
        *_on(ONE_WRONG_ROW, "sqlite-a follower with a try"),
    ),
    _m(
        "a batch: the next is flagged whatever it is",
        "store/settling/batch.py",
        "free = (_among(t, c), *may_follow(t, c))",
        "free = (_among(t, c),)",
        *_on("test_a_next_message_that_is_not_free_gets_no_flag", "sqlite-edit0"),
    ),
    _m(
        "a batch: rows are not locked first",
        "store/settling/batch.py",
        "    if t.dialect.row_locks:\n        for part in",
        "    if t.dialect.row_locks and not shares:\n        for part in",
        *_on("test_all_rows_of_a_batch_are_locked_by_age_before_one_is_changed", "postgresql"),
    ),
    _m(
        "a batch: lanes are locked one by one",
        "store/settling/batch.py",
        "for part in _parts(t, sorted({*heads, *followers, *nexts})):",
        "for part in (p for s in shares for p in _parts(t, [s.head, *s.followers])):",
        *_on("test_all_rows_of_a_batch_are_locked_by_age_before_one_is_changed", "postgresql"),
    ),
    _m(
        "a batch again after an exception",
        "instance/running/batchcall.py",
        "lane.alone, lane.width, lane.verdict = True, 1, None",
        "lane.width, lane.verdict = 1, None",
        *_on(
            "test_after_an_exception_each_message_runs_alone_and_only_the_guilty_one_has_a_try",
            "sqlite",
        ),
    ),
    _m(
        "a batch again after an exception: its messages are shared out",
        "instance/running/lanes.py",
        "(kept if most is not None and lane.alone else back).appendleft(lane)",
        "(kept if most is None and lane.alone else back).appendleft(lane)",
        *_on(
            "test_messages_that_run_alone_after_an_exception_are_not_shared_out",
            "sqlite",
        ),
    ),
    _m(
        "a batch: all failures count that were named in an aborted transaction",
        "instance/running/batchcontext.py",
        "        return {msg_id: error}\n",
        "        return {msg_id: error} | self._failures\n",
        *_on(
            "test_errors_that_follow_from_the_first_one_charge_no_other_message",
            "postgresql-named-connection",
        ),
    ),
    _m(
        "a batch: an exception charges the heads",
        "instance/running/batchcall.py",
        "if len(left) == 1 and batch.is_single:",
        "if left:",
        *_on(
            "test_after_an_exception_each_message_runs_alone_and_only_the_guilty_one_has_a_try",
            "sqlite",
        ),
    ),
    _m(
        "a batch: a message that was in a crash leads again",
        "instance/running/gathering.py",
        "return row.tries == 0 and row.crash_times == 0 and row.flaw is None",
        "return row.flaw is None",
        *_on("test_a_message_with_a_try_behind_it_shares_no_batch_nor_does_its_lane", "sqlite"),
    ),
    _m(
        "a batch where there is one try",
        "instance/running/gathering.py",
        " and self._runtime.tables.spec.max_tries > 1",
        "",
        *_on("test_where_a_message_has_one_try_only_nothing_shares_a_batch", "sqlite"),
    ),
    _m(
        "a batch goes on over a message of another handler",
        "instance/running/gathering.py",
        "                or runtime.is_apart(row)\n            ):\n                return\n",
        "                or runtime.is_apart(row)\n            ):\n                continue\n",
        *_on(
            "test_a_message_of_another_handler_or_one_that_cannot_be_read_ends_the_run_of_a_batch",
            "sqlite",
        ),
    ),
    _m(
        "a batch: taken for committed without a look",
        "instance/running/batchtransaction.py",
        "if not heads.isdisjoint(flagged):",
        "if heads.isdisjoint(heads):",
        *_on(
            "test_all_of_a_batch_was_committed_or_nothing_where_the_answer_is_lost",
            "sqlite-goes on-not committed",
        ),
    ),
    _m(
        "a batch: sent again without a look",
        "instance/running/batchtransaction.py",
        "if not heads.isdisjoint(flagged):",
        "if heads:",
        *_on(
            "test_all_of_a_batch_was_committed_or_nothing_where_the_answer_is_lost",
            "sqlite-goes on-committed",
        ),
    ),
    _m(
        "a batch: what was written for a failed message is committed",
        "instance/running/batchtransaction.py",
        "if failures:\n                raise Failed(failures)",
        "if failures and not parts:\n                raise Failed(failures)",
        *_on("test_one_that_is_failed_gets_a_try_and_holds_back_what_follows_it", "sqlite"),
    ),
    _m(
        "a batch: the failure of the next message is forgotten at a stop",
        "instance/settling/settler.py",
        "lane.result = lane.result or Result(Outcome.RELEASED)",
        "lane.result = Result(Outcome.RELEASED)",
        *_on("test_a_failure_named_before_a_stop_is_written_by_the_stop", "sqlite"),
    ),
    _m(
        "a batch: lanes of several ids",
        "instance/running/gathering.py",
        "lane.owner != first.owner\n                or lane.result is not None",
        "lane.result is not None",
        "test_lanes_of_another_id_share_no_batch",
    ),
    _m(
        "a width that is read behind its place",
        "instance/running/hand.py",
        "            width = lane.width\n            place, rows = lane.place, lane.rows\n",
        "            place, rows = lane.place, lane.rows\n            width = lane.width\n",
        "test_a_message_that_gets_the_flag_is_known_whenever_the_lane_moves",
    ),
    # --- limits
    _m(
        "limits: more are flagged than permits are free",
        "instance/claiming/claimer.py",
        "candidates[: free.starts]",
        "candidates",
        *_on("test_no_more_are_flagged_than_may_run_and_the_others_lose_nothing", "sqlite"),
    ),
    _m(
        "limits: counted without a lock",
        "store/claiming/limits.py",
        "        return query.with_for_update(skip_locked=t.dialect.skip_locked)",
        "        return query",
        *_on("test_a_record_that_is_locked_holds_up_neither_us_nor_other_topics", "postgresql"),
    ),
    _m(
        "limits: a run is read on",
        "instance/claiming/claimer.py",
        "return not runtime.is_apart(row)",
        "return not runtime.is_paused(row)",
        *_on("test_a_message_behind_another_needs_a_permit_of_its_own", "sqlite"),
    ),
    _m(
        "limits: the flag moves on",
        "instance/settling/settlements.py",
        "not runtime.is_apart(ahead)",
        "not runtime.is_paused(ahead)",
        *_on("test_a_limit_that_comes_while_a_run_waits_holds_for_its_messages", "sqlite"),
    ),
    _m(
        "limits: those of the dead are not counted",
        "store/claiming/limits.py",
        "        return MOST_STARTS if most is None else max(0, most - self.running)",
        "        return MOST_STARTS if most is None else most",
        *_on("test_the_permits_of_a_dead_instance_come_back_with_its_messages", "sqlite"),
    ),
    _m(
        "limits: starts take no token",
        "store/claiming/limits.py",
        "    full_us = free.limit.taken(free.full_us, free.now_us, count)",
        "    full_us = free.full_us",
        *_on("test_so_many_start_as_there_are_tokens_and_the_rest_is_left", "sqlite"),
    ),
    _m(
        "limits: a bucket without a bottom",
        "limit.py",
        "return max(full_at, now)",
        "return full_at",
        "test_no_more_start_than_the_bucket_holds_and_the_rate_fills",
    # --- cancel
    _m(
        "a rerun keeps the request to cancel the run before",
        "store/changing/change.py",
        "    cancelling.drop(conn, t, ids)\n    return rerun\n",
        "    return rerun\n",
        *_on("test_a_rerun_after_a_cancel_takes_the_request_away", "sqlite"),
        *_on("test_a_rerun_of_the_same_moment_keeps_its_message", "sqlite-0"),
    ),
    _m(
        "a request is acted on as it was read",
        "store/changing/change.py",
        "    if not cancelling.drop_seen(conn, t, request) or asked.over:\n",
        "    cancelling.drop_seen(conn, t, request)\n    if asked.over:\n",
        *_on("test_a_rerun_of_the_same_moment_keeps_its_message", "sqlite-0"),
    ),
    _m(
        "a request hits a later claim",
        "instance/running/hand.py",
        "return None if found is None or found.row is not row else found.request",
        "return None if found is None else found.request",
        "test_a_request_is_for_one_claim_of_its_message",
    ),
    _m(
        "a cancelled message starts",
        "instance/running/calling.py",
        "is not None:\n            by_thread.pop(ident, None)\n            lane.result = cancelled",
        "is False:\n            by_thread.pop(ident, None)\n            lane.result = cancelled",
        *_on("test_a_message_that_has_not_started_ends_without_a_start", "sqlite"),
    ),
    _m(
        "a cancelled handler commits",
        "instance/running/calling.py",
        "            self._refuse_cancelled(lane)\n            fate",
        "            fate",
        *_on(
            "test_a_transactional_handler_that_returns_after_the_request_is_rolled_back",
            "postgresql",
        ),
    ),
    _m(
        "a batch with a cancelled message commits",
        "instance/running/batchtransaction.py",
        "if any([self.is_cancelled(part.lane) for part in parts]):",
        "if not parts:",
        *_on("test_a_batch_is_rolled_back_and_all_but_the_cancelled_run", "postgresql"),
    ),
    _m(
        "a cancelled message is recovered to be tried again",
        "instance/liveness/recovery.py",
        "            self._given_back(conn, ids)\n",
        "",
        *_on("test_a_message_of_an_instance_that_died_is_not_tried_again", "sqlite"),
    ),
    _m(
        "a cancelled message blocks its object",
        "store/settling/settle.py",
        "        if outcome is Outcome.CANCELLED:  # given up",
        "        if outcome is Outcome.DONE:  # given up",
        *_on(
            "test_a_message_cancelled_while_it_runs_lets_its_object_go_on_where_dead_ones_block",
            "sqlite",
        ),
    ),
)
