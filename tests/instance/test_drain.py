"""When a drain is over, and what it does before."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from msgworker.config import Settings
from msgworker.instance.claiming.heads import Look
from msgworker.instance.claiming.loop import EMPTY_LOOKS, Drain, DrainEnd
from msgworker.instance.running.in_flight import InFlight
from msgworker.queries.explain import Waits
from msgworker.queries.remaining import Left
from msgworker.store.candidates import Candidate
from msgworker.store.lease import Lease
from tests.support.ticking import Ticking

A, FRESH, ASK, OVER = "", "afresh", "asked", "asked counted over"
SWEPT, ROUND = "released afresh", "asked counted everywhere afresh"
HEAD = Candidate(1, None, 0, 0, 0, None, True, None)
WHOLE = Look(complete=True)
TO_THE_END = [FRESH, A, FRESH]
THEN = datetime(2026, 11, 23, tzinfo=UTC)
LATER = datetime(2026, 11, 24, tzinfo=UTC)


class Ending(DrainEnd):
    """A drain's end over plain values: what the roles know, and what the table has, is set here.

    did: what it has done in the last step.
    """

    def __init__(self, clock: Ticking, drain: Drain | None) -> None:
        settings = Settings(lease_seconds=30.0)
        self.did: list[str] = []
        self.steady, self.reach, self.from_start = True, None, True
        self.unanswered = self.under_way = False
        self.begun = self.refused = 0
        self.limited_in: float | None = None
        self.next_in: float | None = None
        self.ending: list[Lease] = []
        self.due = 0
        self.in_flight = InFlight()
        super().__init__(
            cast(Any, SimpleNamespace(clock=clock, settings=settings)),
            cast(
                Any,
                SimpleNamespace(in_flight=self.in_flight, housekeep_now=SimpleNamespace(set=int)),
            ),
            drain,
            link=cast(Any, None),
            **dict.fromkeys(
                ("finder", "limit_poller", "refused_rows", "flagged", "recovery", "jobs"),
                cast(Any, self),
            ),
        )

    def __len__(self) -> int:
        """How many messages the database refuses to flag."""
        return self.refused

    def go_round(self) -> None:
        self.did.append("everywhere")

    def no_claim_in_flight(self) -> AbstractContextManager[None]:
        return nullcontext()

    def release_unknown(self, link: object) -> None:
        self.did.append("released")

    def forget(self, *, start: bool | None = None) -> None:
        if start is not None:  # else it is what is remembered of limited topics
            self.did.append("afresh")

    def starts_in(self) -> float | None:
        return self.limited_in

    def run(self) -> int:
        """No job ends."""
        return 0

    def read_due_in(self, drain: Drain) -> float | None:
        self.did.append("asked")
        return self.next_in

    def read_ending(self, drain: Drain) -> list[Lease]:
        return self.ending

    def read_left(self) -> Left:
        self.did.append("counted")
        return Left(due_heads=self.due, by=Counter({Waits.DUE: self.due}))


def end(clock: Ticking | None = None, *, drain: bool = True, **how: float) -> Ending:
    chosen = Drain(**{"linger": 5.0, "retry_linger": 0.0, "overdue": 2.5, **how}) if drain else None
    return Ending(clock or Ticking(), chosen)


def nothing(one: Ending, look: Look = WHOLE, **facts: Any) -> str:
    """What it does after a look that found nothing."""
    one.did.clear()
    before = {name: getattr(one, name) for name in facts}
    vars(one).update(facts)
    over = one.is_over(look)
    vars(one).update(before)
    return " ".join([*one.did, *["over"] * over])


def to_the_end(one: Ending, **facts: Any) -> list[str]:
    """All it does before it asks what becomes due; the next step asks."""
    did = [nothing(one, **facts) for _ in range(3)]
    assert not any(ASK in step for step in did)
    return did


def due(one: Ending, many: int, refused: int = 0) -> str:
    return nothing(one, due=many, refused=refused)


def ending(left: float = 3.0, renewed_at: datetime = THEN) -> list[Lease]:
    """The lease of another instance that has messages, which ends in so many seconds."""
    facts: dict[str, Any] = dict.fromkeys(Lease._fields)
    facts |= {"renewed_at": renewed_at, "expires_at": renewed_at + timedelta(seconds=30)}
    return [Lease(**facts | {"name": "b", "live": 1, "silent": 30.0 - left})]


def test_it_asks_only_after_looks_at_everything_and_one_afresh() -> None:
    one = end()
    assert [*to_the_end(one), nothing(one)] == [*TO_THE_END, OVER]
    assert len(TO_THE_END) == EMPTY_LOOKS


def test_who_drains_nothing_never_ends_and_forgets_once() -> None:
    one = end(drain=False)
    assert [nothing(one) for _ in range(20)] == [FRESH, *[A] * 19]


@pytest.mark.parametrize("look", [Look(), Look(round_over=True, candidates=[HEAD])])
def test_a_look_that_was_not_at_everything_or_found_some_says_nothing(look: Look) -> None:
    one = end()
    assert [nothing(one, look) for _ in range(9)] == [A] * 9
    assert to_the_end(one) == TO_THE_END


def test_a_round_over_the_objects_that_found_nothing_counts_as_a_look_at_everything() -> None:
    one = end()
    assert [nothing(one, Look(round_over=True)) for _ in range(4)] == [*TO_THE_END, OVER]


def test_a_look_that_did_not_begin_at_the_start_is_made_again_from_there_and_does_not_count() -> (
    None
):
    one, part = end(), Look(complete=True, from_start=False)
    assert [nothing(one, look) for look in (part, WHOLE, part, WHOLE, part, WHOLE, WHOLE)] == [
        *(FRESH, FRESH, FRESH, A, FRESH),
        *(FRESH, OVER),
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
        one.in_flight.running[1] = cast(Any, "a handler")
        assert nothing(one) == A
        one.in_flight.running.clear()
    assert to_the_end(one) == TO_THE_END


def test_where_more_of_the_table_is_about_to_be_ours_the_looks_do_not_count() -> None:
    one = end()
    for _ in range(9):
        assert nothing(one, steady=False) == A
    assert to_the_end(one) == TO_THE_END


def test_a_claim_whose_answer_was_lost_is_swept_first_and_the_looks_begin_anew() -> None:
    one = end()
    assert [nothing(one, unanswered=True) for _ in range(3)] == [FRESH, A, SWEPT]
    assert to_the_end(one) == TO_THE_END


def test_while_the_dead_are_recovered_it_does_not_end() -> None:
    one = end()
    assert [nothing(one, under_way=True) for _ in range(9)] == [FRESH, *[A] * 8]
    assert [nothing(one), nothing(one)] == [FRESH, OVER]


def test_what_is_due_soon_is_waited_for_and_it_knows_how_long() -> None:
    one = end()
    to_the_end(one)
    assert nothing(one, next_in=2.0) == ASK
    assert one.due_in == 2.0
    assert nothing(one, Look()) == A
    assert one.due_in is None  # it has looked since


@pytest.mark.parametrize(
    ("many", "refused", "waited", "then"),
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
def test_what_the_table_has_decides(many: int, refused: int, waited: float, then: str) -> None:
    clock = Ticking()
    one = end(clock, overdue=2.5)
    to_the_end(one)
    assert due(one, 9) == ROUND
    assert one.undone == 9
    to_the_end(one)
    clock.now += waited
    assert due(one, many, refused) == then
    assert one.undone == (many if many > refused else 0)


def test_what_is_due_makes_the_looks_begin_anew() -> None:
    one = end()
    to_the_end(one)
    assert due(one, 1) == ROUND
    assert one.due_in is not None
    assert to_the_end(one) == TO_THE_END


def test_what_comes_makes_the_overdue_wait_begin_anew() -> None:
    clock = Ticking()
    one = end(clock)
    to_the_end(one)
    due(one, 1)
    clock.now += 9.0
    to_the_end(one)
    assert nothing(one, next_in=1.0) == ASK
    assert due(one, 1) == ROUND


def test_messages_that_were_recovered_while_it_counted_are_looked_for() -> None:
    one = end()
    to_the_end(one)
    counted = one.read_left

    def recovered_meanwhile() -> Left:
        one.begun += 1
        return counted()

    one.read_left = recovered_meanwhile  # type: ignore[method-assign]
    assert nothing(one) == "asked counted afresh"


@pytest.mark.parametrize(
    ("limited_in", "linger", "ends"),
    [(None, 5.0, True), (0.0, 0.0, False), (5.0, 5.0, False), (5.1, 5.0, True)],
)
def test_a_limited_message_that_may_start_soon_is_waited_for(
    limited_in: float | None, linger: float, ends: bool
) -> None:
    one = end(linger=linger)
    steps = [nothing(one, limited_in=limited_in) for _ in range(4)]
    assert steps == ([*TO_THE_END, OVER] if ends else [A] * 4)


def test_a_lease_that_ends_soon_is_waited_for_and_then_everything_is_looked_at_afresh() -> None:
    one = end()
    to_the_end(one)
    assert nothing(one, ending=ending(3.0)) == ASK
    assert one.due_in == 3.0
    assert nothing(one) == ASK  # it is gone: what it had may be free since we looked
    assert nothing(one) == FRESH
    assert nothing(one) == OVER


def test_who_does_not_linger_waits_for_no_lease() -> None:
    one = end(linger=0.0)
    to_the_end(one)
    assert nothing(one, ending=ending(3.0)) == OVER


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
