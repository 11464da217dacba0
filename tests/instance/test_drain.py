"""When a drain is over, and what it does before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from msgworker.instance.claiming.drain import EMPTY_LOOKS, Drain, DrainEnd, Next, Seen
from msgworker.instance.claiming.heads import Look
from msgworker.store.candidates import Candidate
from msgworker.store.lease import Lease
from tests.support.ticking import Ticking

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
        assert nothing(one, steady=False) is A
    assert asks(one) == TO_THE_END


def test_a_claim_whose_answer_was_lost_is_swept_first_and_the_looks_begin_anew() -> None:
    one = end()
    assert [nothing(one, unanswered=True) for _ in range(3)] == [FRESH, A, RELEASE_UNKNOWN]
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
