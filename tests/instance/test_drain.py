"""When a drain is over, and how long the claim loop waits between two rounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from msgworker.instance.claiming.drain import EMPTY_LOOKS, Drain, DrainEnd, Next, PollPace, Seen
from msgworker.instance.claiming.search import Look
from msgworker.store.candidates import Candidate
from msgworker.store.lease import Lease
from tests.support.ticking import Ticking

# --- When a drain is over, and what it does before.


A, FRESH, RELEASE_UNKNOWN, ASK = Next.AGAIN, Next.LOOK_AFRESH, Next.RELEASE_UNKNOWN, Next.ASK
COUNT, ROUND, OVER = Next.COUNT, Next.LOOK_EVERYWHERE, Next.OVER
HEAD = Candidate(1, None, 0, 0, 0, None, True, None)
WHOLE = Look(complete=True)
TO_THE_END = [FRESH, A, FRESH, ASK]
THEN = datetime(2026, 11, 23, tzinfo=UTC)
LATER = datetime(2026, 11, 24, tzinfo=UTC)


def end(clock: Ticking | None = None, *, drain: bool = True, **how: float) -> DrainEnd:
    chosen = Drain(**{"linger": 5.0, "retry_linger": 0.0, "overdue": 2.5, **how}) if drain else None
    return DrainEnd(chosen, heartbeat_seconds=10.0, clock=clock or Ticking())


def nothing(one: DrainEnd, look: Look = WHOLE, **facts: Any) -> Next:
    return one.saw_nothing(look, Seen(**facts))


def asks(one: DrainEnd, **facts: bool) -> list[Next]:
    """All it wants until it asks what becomes due."""
    wanted = [nothing(one, **facts)]
    while wanted[-1] is not ASK:
        wanted.append(nothing(one, **facts))
        assert len(wanted) < 20
    return wanted


def ending(left: float = 3.0, renewed_at: datetime = THEN) -> list[Lease]:
    """The lease of another instance that has messages, which ends in so many seconds."""
    facts: dict[str, Any] = dict.fromkeys(Lease._fields)
    facts |= {"renewed_at": renewed_at, "expires_at": renewed_at + timedelta(seconds=30)}
    return [Lease(**facts | {"name": "b", "live": 1, "silent": 30.0 - left})]


def test_it_asks_only_after_looks_at_everything_and_one_afresh() -> None:
    assert asks(end()) == TO_THE_END
    assert TO_THE_END.index(ASK) == EMPTY_LOOKS


def test_who_drains_nothing_never_ends_and_forgets_once() -> None:
    one = end(drain=False)
    assert [nothing(one) for _ in range(20)] == [FRESH, *[A] * 19]


@pytest.mark.parametrize("look", [Look(), Look(round_over=True, candidates=[HEAD])])
def test_a_look_that_was_not_at_everything_or_found_some_says_nothing(look: Look) -> None:
    one = end()
    assert [nothing(one, look) for _ in range(9)] == [A] * 9
    assert asks(one) == TO_THE_END


def test_a_round_over_the_objects_that_found_nothing_counts_as_a_look_at_everything() -> None:
    one = end()
    assert [nothing(one, Look(round_over=True)) for _ in range(4)] == TO_THE_END


def test_a_look_that_did_not_begin_at_the_start_is_made_again_from_there_and_does_not_count() -> (
    None
):
    one, part = end(), Look(complete=True, from_start=False)
    assert [nothing(one, look) for look in (part, WHOLE, part, WHOLE, part, WHOLE, WHOLE)] == [
        *(FRESH, FRESH, FRESH, A, FRESH),
        *(FRESH, ASK),
    ]
    limited = end()
    assert [nothing(limited, from_start=from_start) for from_start in (False, False, True)] == [
        FRESH
    ] * 3
    runs = end(drain=False)
    assert [nothing(runs, part) for _ in range(5)] == [FRESH, *[A] * 4]


@pytest.mark.parametrize("how", ["claimed", "in flight"])
@pytest.mark.parametrize("after", range(1, 4))
def test_work_makes_the_end_begin_anew(how: str, after: int) -> None:
    one = end()
    for _ in range(after):
        nothing(one)
    if how == "claimed":
        one.saw_work()
    else:
        assert nothing(one, in_flight=True) is A
    assert asks(one) == TO_THE_END


def test_where_more_of_the_table_is_about_to_be_ours_the_looks_do_not_count() -> None:
    one = end()
    for _ in range(9):
        assert nothing(one, settled=False) is A
    assert asks(one) == TO_THE_END


def test_a_claim_whose_answer_was_lost_is_swept_first_and_the_looks_begin_anew() -> None:
    one = end()
    assert [nothing(one, in_doubt=True) for _ in range(3)] == [FRESH, A, RELEASE_UNKNOWN]
    assert asks(one) == TO_THE_END


def test_while_the_dead_are_recovered_it_does_not_end() -> None:
    one = end()
    assert [nothing(one, recovering=True) for _ in range(9)] == [FRESH, *[A] * 8]
    assert asks(one) == [FRESH, ASK]


def test_what_is_due_soon_is_waited_for_and_it_knows_how_long() -> None:
    one = end()
    asks(one)
    assert one.after_ask(2.0) is A
    assert one.due_in == 2.0
    assert nothing(one, Look()) is A
    assert one.due_in is None  # it has looked since


def test_it_counts_what_the_table_has_before_it_is_over() -> None:
    one = end()
    asks(one)
    assert one.after_ask(None) is COUNT
    assert one.after_count(due=0, refused=0) is OVER


@pytest.mark.parametrize(
    ("due", "refused", "waited", "then"),
    [
        (0, 0, 0.0, OVER),
        (1, 0, 0.0, ROUND),
        (1, 0, 2.5, ROUND),
        (1, 0, 2.6, OVER),
        (2, 2, 0.0, OVER),  # all that is due was refused by the database, which is told
        (3, 2, 0.0, ROUND),
        (3, 2, 2.6, OVER),
        (1, 4, 0.0, OVER),  # others were mended or removed since
    ],
)
def test_what_the_table_has_decides(due: int, refused: int, waited: float, then: Next) -> None:
    clock = Ticking()
    one = end(clock, overdue=2.5)
    asks(one)
    one.after_count(due=9, refused=0)
    clock.now += waited
    assert one.after_count(due=due, refused=refused) is then


def test_what_is_due_makes_the_looks_begin_anew() -> None:
    one = end()
    asks(one)
    assert one.after_count(due=1, refused=0) is ROUND
    assert one.due_in is not None
    assert asks(one) == TO_THE_END


def test_what_comes_makes_the_overdue_wait_begin_anew() -> None:
    clock = Ticking()
    one = end(clock)
    asks(one)
    one.after_count(due=1, refused=0)
    clock.now += 9.0
    assert one.after_ask(1.0) is A
    assert one.after_count(due=1, refused=0) is ROUND


@pytest.mark.parametrize(
    ("starts_in", "linger", "ends"),
    [(None, 5.0, True), (0.0, 0.0, False), (5.0, 5.0, False), (5.1, 5.0, True)],
)
def test_a_limited_message_that_may_start_soon_is_waited_for(
    starts_in: float | None, linger: float, ends: bool
) -> None:
    one = end(linger=linger)
    steps = [nothing(one, starts_in=starts_in) for _ in range(4)]
    assert steps == (TO_THE_END if ends else [A] * 4)


def test_a_lease_that_ends_soon_is_waited_for_and_then_everything_is_looked_at_afresh() -> None:
    one = end()
    asks(one)
    assert one.after_ask(None, 3.0) is A
    assert one.due_in == 3.0
    assert nothing(one) is ASK
    assert one.after_ask(None) is A  # it is gone: what it had may be free since we looked
    assert nothing(one) is FRESH
    assert nothing(one) is ASK
    assert one.after_ask(None) is COUNT


def test_a_lease_is_waited_for_until_it_is_renewed_or_nobody_takes_it_over() -> None:
    clock = Ticking()
    one = end(clock)
    assert one.lease_ends_in([]) is None
    assert one.lease_ends_in(ending(3.0)) == 3.0
    assert one.lease_ends_in(ending(3.0, LATER)) is None
    clock.now += 12.9
    assert one.lease_ends_in(ending(0.0)) == 0.0  # it has ended; a heartbeat takes it over
    clock.now += 0.2
    assert one.lease_ends_in(ending(0.0)) is None


# --- How long the claim loop waits between two rounds.


UNFINISHED = Look(seconds=0.5)
ROUND_OVER = Look(round_over=True)


def pace(clock: Ticking | None = None, *, drains: bool = False) -> PollPace:
    return PollPace(1.0, drains=drains, clock=clock or Ticking(), jitter=lambda: 1.0)


def after(
    one: PollPace,
    won: int,
    *,
    holding: bool = False,
    due_in: float | None = None,
    more: bool = True,
) -> float:
    return one.after(won, wanted=8, holding=holding, due_in=due_in, more=more)


class Busy:
    """A claim loop that has room while one of its messages runs for a long time."""

    def __init__(self, longest: float = 1.0) -> None:
        self.clock = Ticking()
        self.begun = self.clock.now
        self.pace = PollPace(longest, clock=self.clock, jitter=lambda: 1.0)

    def looks(self, won: int = 0, *, more: bool = False) -> None:
        self.pace.looked(ROUND_OVER)
        assert after(self.pace, won, holding=True, more=more) == 0.01

    def until_the_next_look(self) -> float:
        """In the rounds of the loop, one each 10 ms."""
        since = self.clock.now
        while self.pace.look_in > 1e-9:
            assert after(self.pace, -1, holding=True) == 0.01
            self.clock.now += 0.01
        return round(self.clock.now - since, 6)

    def pauses(self, looks: int) -> list[float]:
        found = []
        for _ in range(looks):
            self.looks()
            found.append(self.until_the_next_look())
        return found


@pytest.mark.parametrize(
    ("won", "holding", "pause"),
    [
        (8, True, 0.0),
        (2, True, 0.0),  # a quarter of what was wanted
        (1, True, 0.001),
        (-1, True, 0.01),
        (-1, False, 0.01),
        (0, True, 0.01),
    ],
)
def test_there_is_no_pause_while_there_is_work_and_a_tick_while_hands_are_full(won, holding, pause):
    assert after(pace(), won, holding=holding) == pause


def test_idle_pauses_grow_to_the_longest_and_begin_anew_with_work_or_a_call() -> None:
    one = pace()
    grown = [after(one, 0) for _ in range(30)]
    assert grown[:3] == pytest.approx([0.013, 0.0169, 0.02197])
    assert grown == sorted(grown)
    assert grown[-1] == 1.0
    for again in (lambda: after(one, 1), one.restart):
        again()
        assert after(one, 0) == pytest.approx(0.013)
        for _ in range(30):
            after(one, 0)


def test_an_idle_pause_is_shorter_by_chance() -> None:
    one = PollPace(1.0, clock=Ticking())
    pauses = [after(one, 0) for _ in range(200)][30:]
    assert 0.75 <= min(pauses) < max(pauses) <= 1.0


def test_a_drain_waits_for_what_is_known_to_come_and_not_longer() -> None:
    one = pace(drains=True)
    assert after(one, 0) == after(one, 0) == 0.01
    assert after(one, 0, due_in=0.0) == 0.01
    for _ in range(30):
        after(one, 0, due_in=60.0)
    assert after(one, 0, due_in=60.0) == 1.0
    assert after(one, 0, due_in=0.3) == 0.3


def test_an_unfinished_round_leaves_the_database_four_times_as_long_as_its_look_took() -> None:
    one = pace()
    one.looked(UNFINISHED)
    assert after(one, 0) == 2.0
    one.looked(Look(seconds=0.001))
    assert after(one, 0) == 0.01


@pytest.mark.parametrize(("took", "rest"), [(2.0, 8.0), (60.0, 30.0)])
def test_after_a_long_round_it_rests_longer_than_that_took(took: float, rest: float) -> None:
    clock = Ticking()
    one = pace(clock)
    one.looked(UNFINISHED)
    clock.now += took / 2
    one.looked(UNFINISHED)
    clock.now += took / 2
    one.looked(ROUND_OVER)
    assert after(one, 0) == rest
    one.looked(ROUND_OVER)  # the next round took one look
    assert after(one, 0) < 0.1


def test_a_claim_ends_the_round_and_its_rest() -> None:
    clock = Ticking()
    one = pace(clock)
    one.looked(UNFINISHED)
    clock.now += 9.0
    one.looked(ROUND_OVER)
    after(one, 1)
    assert after(one, 0) == pytest.approx(0.013)


def test_fruitless_looks_become_rarer_while_something_runs_and_never_rarer_than_four_a_second():
    assert Busy().pauses(7) == [0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25]


def test_fruitless_looks_are_no_rarer_than_those_of_an_idle_instance() -> None:
    assert Busy(0.05).pauses(4) == [0.02, 0.04, 0.05, 0.05]
    assert Busy(0.001).pauses(3) == [0.01, 0.01, 0.01]


def test_a_wake_is_a_look_at_once_and_more_soon_after_for_a_commit_under_way() -> None:
    busy = Busy()
    busy.pauses(6)
    busy.looks()
    assert busy.pace.look_in > 0
    busy.pace.restart()
    assert busy.pace.look_in == 0
    assert busy.pauses(7) == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25]


def test_a_wake_in_a_round_without_a_look_is_not_forgotten() -> None:
    busy = Busy()
    busy.pauses(6)
    busy.pace.restart()
    after(busy.pace, -1, holding=True)  # there was no room
    assert busy.pace.look_in == 0
    assert busy.pauses(1) == [0.01]


def test_what_is_found_without_a_wake_makes_looks_frequent_again() -> None:
    busy = Busy()
    busy.pauses(6)
    busy.looks(won=1)
    assert busy.until_the_next_look() == 0.01
    assert busy.pauses(2) == [0.02, 0.04]


def test_the_next_run_of_a_busy_object_does_not_make_looks_frequent() -> None:
    busy = Busy()
    busy.pauses(6)
    busy.pace.restart()  # its lane has ended
    busy.looks(won=1)
    assert busy.until_the_next_look() == 0.01
    assert busy.pauses(2) == [0.25, 0.25]


@pytest.mark.parametrize("won", [1, 2])
def test_where_more_may_be_left_the_next_look_follows_at_once(won: int) -> None:
    busy = Busy()
    busy.pauses(6)
    busy.looks()
    after(busy.pace, won, holding=True, more=True)
    assert busy.pace.look_in == 0


def test_an_unfinished_round_goes_on_with_every_tick_while_something_runs() -> None:
    busy = Busy()
    busy.pauses(6)
    busy.pace.looked(UNFINISHED)
    assert after(busy.pace, 0, holding=True) == 0.01
    assert busy.pace.look_in == 0


def test_the_tail_of_a_claim_without_more_is_a_tick() -> None:
    one = pace()
    assert after(one, 8, more=False) == after(one, 1, more=False) == 0.01
