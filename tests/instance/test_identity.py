"""The life of an identity: each arrow of the drawing, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from msgworker.instance.liveness import identity as identity_module
from msgworker.instance.liveness.identity import Identity, Misstep, Phase
from tests.support.ticking import Ticking

NEW, TRUSTED, DOUBTED = Phase.NEW, Phase.TRUSTED, Phase.DOUBTED
RETIRING, LOST = Phase.RETIRING, Phase.LOST
STEPS: dict[str, Callable[[Identity], object]] = {
    "registered": lambda one: one.registered(130.0, 90.0),
    "renewed": lambda one: _renewed(one),
    "doubt": lambda one: one.doubt(least_age=1.0),
    "retire": lambda one: one.retire(),
    "lost": lambda one: one.lost(one.id),
    "adopt": lambda one: one.adopt(one.id, "b", 130.0, 100.0),
}
ARROWS = {
    (NEW, "registered"): TRUSTED,
    (TRUSTED, "renewed"): TRUSTED,
    (TRUSTED, "doubt"): DOUBTED,
    (TRUSTED, "retire"): RETIRING,
    (DOUBTED, "renewed"): TRUSTED,
    (RETIRING, "renewed"): RETIRING,
    (RETIRING, "doubt"): DOUBTED,
    (RETIRING, "adopt"): TRUSTED,
    (LOST, "adopt"): TRUSTED,
    **{(phase, "lost"): LOST for phase in Phase},
}
SILENT = {(phase, step) for phase in Phase for step in ("doubt", "retire")} - set(ARROWS)
"""Any thread may ask for these; they change no phase where there is no arrow."""


def _renewed(one: Identity) -> None:
    one.renewed(one.id, 130.0, 101.0)


def reach(phase: Phase) -> Identity:
    """An identity in this phase."""
    one = Identity("a")
    path = {
        NEW: (),
        TRUSTED: ("registered",),
        DOUBTED: ("registered", "doubt"),
        RETIRING: ("registered", "retire"),
        LOST: ("registered", "lost"),
    }
    for step in path[phase]:
        STEPS[step](one)
    assert one.phase is phase
    return one


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    """Both clocks of an identity."""
    ticking = Ticking()
    monkeypatch.setattr(identity_module, "clock", ticking)
    monkeypatch.setattr(identity_module.time, "monotonic", ticking)
    return ticking


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("phase", Phase)
def test_each_arrow_of_the_drawing_is_taken_and_no_other(phase: Phase, step: str) -> None:
    one = reach(phase)
    if (phase, step) in ARROWS:
        STEPS[step](one)
        assert one.phase is ARROWS[phase, step]
    elif (phase, step) in SILENT:
        STEPS[step](one)
        assert one.phase is phase
    else:
        with pytest.raises(Misstep, match=f"a is {phase.name}"):
            STEPS[step](one)
        assert one.phase is phase


def test_the_drawing_names_every_phase_and_every_step() -> None:
    drawn = set(re.findall(r"\w+", identity_module.__doc__ or ""))
    assert {phase.name for phase in Phase} | set(STEPS) <= drawn


@pytest.mark.parametrize("phase", Phase)
def test_only_who_is_trusted_or_retires_may_start_handlers(phase: Phase) -> None:
    assert reach(phase).trusted() is (phase in (TRUSTED, RETIRING))


@pytest.mark.parametrize("phase", [TRUSTED, RETIRING])
def test_trust_ends_by_itself(phase: Phase, now: Ticking) -> None:
    one = reach(phase)
    now.now = 129.9
    assert one.trusted()
    now.now = 130.0
    assert not one.trusted()


def test_only_a_renewal_that_began_after_the_doubt_ends_it(now: Ticking) -> None:
    one = reach(DOUBTED)
    one.renewed("a", 150.0, now.now - 1.0)
    assert one.phase is DOUBTED
    one.renewed("a", 150.0, now.now + 1.0)
    assert one.phase is TRUSTED


def test_a_young_renewal_is_not_doubted(now: Ticking) -> None:
    one = reach(TRUSTED)
    one.renewed("a", 150.0, now.now - 0.5)
    assert not one.doubt(least_age=1.0)
    assert one.phase is TRUSTED
    one.renewed("a", 150.0, now.now - 1.5)
    assert one.doubt(least_age=1.0)


@pytest.mark.parametrize("phase", [NEW, DOUBTED])
def test_who_is_to_retire_does_so_once_it_is_trusted(phase: Phase) -> None:
    one = reach(phase)
    one.cannot_write("a", [7])
    assert (one.phase, one.retires, one.tenure.stuck) == (phase, True, {7})
    STEPS["registered" if phase is NEW else "renewed"](one)
    assert one.phase is RETIRING


def test_what_a_settle_of_a_lost_id_leaves_behind_is_not_put_on_the_new_one() -> None:
    one = reach(LOST)
    STEPS["adopt"](one)
    one.cannot_write("a", [7])
    one.abandoned("a", [8])
    assert (one.retires, one.tenure.stuck, one.tenure.doubtful) == (False, set(), set())
    one.abandoned(one.id, [8])
    assert one.tenure.doubtful == {8}


def test_a_doubt_does_not_stop_who_is_becoming_another() -> None:
    one = reach(RETIRING)
    one.doubt(least_age=1.0)
    STEPS["adopt"](one)
    assert one.phase is TRUSTED


@pytest.mark.parametrize("phase", [LOST, RETIRING])
def test_nothing_of_the_old_id_is_left_under_the_new_one(phase: Phase) -> None:
    one = reach(phase)
    one.tenure.stuck.add(1)
    one.tenure.doubtful.add(2)
    one.retire()
    STEPS["adopt"](one)
    assert (one.id, one.tenure.stuck, one.tenure.doubtful, one.retires) == (
        "b",
        set(),
        set(),
        False,
    )
    assert (one.tenure.trusted_until, one.in_doubt, one.tenure.late) == (130.0, False, False)
    assert [one.is_ours(owner) for owner in "ab"] == [False, True]


def test_all_former_ids_with_messages_that_cannot_be_written_are_known() -> None:
    one = reach(LOST)
    one.adopt("a", "b", 130.0, 100.0, has_stuck=True)
    for old, new, has_stuck in (("b", "c", True), ("c", "d", False)):
        one.retire()
        one.adopt(old, new, 130.0, 100.0, has_stuck=has_stuck)
    assert (one.ids[0], set(one.ids[1:])) == ("d", {"a", "b"})


def test_what_is_carried_over_stays_ours_until_the_next_id() -> None:
    one = reach(LOST)
    one.adopt("a", "b", 130.0, 100.0, carried=frozenset("a"))
    assert [one.is_ours(owner) for owner in "abc"] == [True, True, False]
    one.lost("b")
    one.adopt("b", "c", 130.0, 100.0)
    assert [one.is_ours(owner) for owner in "abc"] == [False, False, True]


def test_trust_is_waited_for_until_it_is_there_or_waiting_is_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = reach(DOUBTED)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            _renewed(one)

    monkeypatch.setattr(identity_module.time, "sleep", sleep)
    assert one.wait_for_trust(lambda: False)
    assert len(slept) == 3
    one.lost("a")
    assert not one.wait_for_trust(lambda: len(slept) >= 5)
    assert len(slept) == 5


@pytest.mark.parametrize("step", ["renewed", "lost", "adopt", "expired"])
def test_a_step_for_an_id_that_is_another_by_now_changes_nothing(step: str) -> None:
    """Two threads take steps: one may be late."""
    one = reach(RETIRING)
    STEPS["adopt"](one)
    before = one.tenure
    late: dict[str, Callable[[], object]] = {
        "renewed": lambda: one.renewed("a", 150.0, 120.0),
        "lost": lambda: one.lost("a"),
        "adopt": lambda: one.adopt("a", "c", 150.0, 120.0),
        "expired": lambda: one.expired("a"),
    }
    assert not late[step]()
    assert one.tenure is before


def test_the_margin_of_a_lease_goes_with_its_id():
    one = reach(RETIRING)
    one.renewed(one.id, 130.0, 101.0, margin=5.0)
    assert one.tenure.margin == 5.0
    STEPS["adopt"](one)
    assert one.tenure.margin is None
