"""What is lost is named as what it is, and what is wrong in an epoch is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

from proof.crash.fleet import Sent
from proof.failover.epochs import Epoch, Line, Snapshot, Told, judge, lost
from proof.history import Event, Kind, Outcome


def line(n: int, status: int = 0, tries: int = 0, by: str | None = None) -> Line:
    return Line("a", status, tries, 0, by, "plain", n)


def seen(*lines: Line, effects: int = 0) -> Snapshot:
    return Snapshot({one.n: one for one in lines}, Counter({1: effects}), ())


def test_a_loss_is_named_as_a_send_an_outcome_a_claim_or_an_effect() -> None:
    old = seen(line(1, 2), line(2, -1, 1), line(3, 1, 0, "x"), line(4), line(5), effects=1)
    new = seen(line(1, 1, 0, "x"), line(2), line(3), line(4))
    loss = lost(old, new)
    assert (loss.sends, loss.outcomes, loss.claims, loss.effects) == ([5], [1, 2], [3], [1])
    assert str(lost(old, old)) == "nothing"


def told_of(*events: Event) -> Told:
    return Told(list(events), {1: Sent("a", "plain", 1.0, 1.1)}, [], [], 0.0)


def life(who: str, begin: float, outcome: Outcome = Outcome.DONE) -> list[Event]:
    return [
        Event(Kind.CLAIMED, begin, who, 1, "a", 1),
        Event(Kind.STARTED, begin + 0.1, who, 1, "a"),
        Event(Kind.ENDED, begin + 0.2, who, 1, "a", detail="returned"),
        Event(Kind.SETTLED, begin + 0.3, who, 1, "a", detail=outcome),
    ]


def broken(told: Told, epoch: Epoch, *, finished: bool = True) -> list[str]:
    return [*map(str, judge(told, epoch, ttl=30, finished=finished, outages=[]))]


BEFORE = Epoch(0.0, 10.0, None, seen(line(1, 2)))
AFTER = Epoch(10.0, 90.0, seen(line(1)), seen(line(1, 2)))


def test_a_message_that_went_back_runs_again() -> None:
    told = told_of(*life("x", 2.0), *life("y", 20.0))
    assert broken(told, BEFORE, finished=False) == []
    assert broken(told, AFTER) == []


def test_an_acknowledged_message_that_its_own_primary_has_not_is_found() -> None:
    assert any("gone from the table" in text for text in broken(
        told_of(), Epoch(0.0, 10.0, None, seen()), finished=False
    ))  # fmt: skip


def test_a_handler_of_a_lost_claim_may_run_on_and_settles_nothing() -> None:
    x = [*life("x", 9.7)[:1], *life("x", 9.95, Outcome.LOST)[1:]]
    assert broken(told_of(*x, *life("y", 10.0)), AFTER) == []
    wrote = [*x[:3], *life("x", 10.5)[3:]]
    assert any("I5" in text for text in broken(told_of(*wrote, *life("y", 20.0)), AFTER))


def test_what_went_back_and_stays_behind_is_found() -> None:
    left = Epoch(10.0, 90.0, seen(line(1)), seen(line(1)))
    assert any("neither DONE nor dead" in text for text in broken(told_of(), left))


def test_what_was_over_at_the_promotion_is_not_touched_again() -> None:
    again = Epoch(10.0, 90.0, seen(line(1, 2)), seen(line(1)))
    assert any("FINAL" in text for text in broken(told_of(), again))
    twice = Epoch(10.0, 90.0, seen(line(1, 2), effects=1), seen(line(1, 2), effects=2))
    assert any("I6" in text for text in broken(told_of(), twice))


def test_a_claim_that_stands_on_the_promoted_server_goes_on() -> None:
    held = Epoch(10.0, inf, seen(line(1, 1, 0, "x")), seen(line(1, 2)))
    x = life("x", 9.85)  # it ends, and settles, on the other side
    assert broken(told_of(*x), held) == []
    twice = [*x, *life("y", 9.96)[1:2], *life("x", 30.0)[1:2]]
    assert broken(told_of(*twice), held)


def test_a_settle_that_the_new_server_has_may_be_answered_late() -> None:
    over = Epoch(10.0, 90.0, seen(line(1, 2)), seen(line(1, 2)))

    def settled(since: float) -> Event:
        return Event(Kind.SETTLED, 12.0, "x", 1, "a", detail=Outcome.DONE, since=since)

    ran = life("x", 9.0)[:3]
    assert broken(told_of(*ran, settled(9.3)), over) == []
    assert any("I5" in text for text in broken(told_of(*ran, settled(11.0)), over))


def test_what_was_settled_in_vain_is_not_held_beside_a_message_on_its_last_try() -> None:
    suspect = Line("b", 0, 2, 1, None, "plain", 2)
    first = seen(line(1, 1, 0, "x"), suspect)
    epoch = Epoch(10.0, 90.0, first, seen(line(1, 1, 0, "x"), suspect._replace(status=2)))
    alone = [replace(e, msg_id=2, object_id="b") for e in life("x", 20.0)]
    alone[0] = replace(alone[0], attempt=3)
    settled = told_of(*life("x", 9.0), *alone)
    assert broken(settled, epoch, finished=False) == []
    runs = told_of(*life("x", 9.0)[:2], *alone)
    assert any("I10" in text for text in broken(runs, epoch, finished=False))
