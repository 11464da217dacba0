"""What is written down of a batch, and the history that is made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from msgworker.instance.running.batch import BatchCaller, Cancelled, Taken
from proof.crash import points
from proof.crash.batch_witness import BEHIND, SHARED, tell_of_batches, watch_batches
from proof.history import DONE, NEW, Event, Final, Kind, Outcome, Row
from proof.judge import Rule, Terms, check

ME, HEIR = "me", "heir"


def head(*more: Event) -> list[Event]:
    """Message 1 of an object, in a batch of two, up to the COMMIT."""
    return [
        Event(Kind.CLAIMED, 2, ME, 1, "o", 1, since=1),
        Event(Kind.STARTED, 3, ME, 1, "o", detail=SHARED),
        Event(Kind.ENDED, 5, ME, 1, "o", detail="returned"),
        *more,
    ]


BEHIND_IT = Event(Kind.ENDED, 7, ME, 2, "o", detail=f"{BEHIND}2.5")


def settled(msg_id: int, outcome: Outcome = Outcome.DONE, at: float = 8) -> Event:
    return Event(Kind.SETTLED, at, ME, msg_id, "o", detail=outcome, since=6)


def judged(told: list[Event], *killed: str, rows: tuple[int, int] = (DONE, DONE), effects: int = 2):
    """The events of message 2, and the rules that are broken."""
    final = {i: Row("o", status) for i, status in enumerate(rows, 1)}
    events = tell_of_batches(told, final, killed)
    more = [Event(Kind.INSERTED, 0.5, "producer", i, "o") for i in final]
    more += [Event(Kind.EFFECT, 99, "effects", i, "o") for i in (1, 2, 2)[:effects]]
    more += [Event(Kind.KILLED, 9, who) for who in killed]
    terms = Terms(transactional=True, finished=False)
    found = check([*events, *more], Final(final), terms)
    told_of_2 = sorted((e for e in events if e.msg_id == 2), key=lambda e: e.at)
    return [str(e.kind) for e in told_of_2], {violation.rule for violation in found}


ITS_OWN = ["claimed", "started", "ended"]


def test_what_is_done_behind_a_head_has_its_own_run_right_behind_it():
    told = head(BEHIND_IT, settled(1), settled(2, at=8.1))
    assert judged(told) == ([*ITS_OWN, "settled"], set())


def test_what_stands_behind_a_head_whose_batch_was_rolled_back_did_nothing():
    told = head(BEHIND_IT, settled(1, Outcome.FAILED))
    assert judged(told, rows=(DONE, NEW), effects=0)[0] == []


def test_a_kill_after_the_commit_hides_no_effect():
    assert judged(head(BEHIND_IT), ME) == (ITS_OWN, set())


def test_where_another_one_did_it_a_kill_in_a_batch_has_done_nothing():
    heir = [
        Event(Kind.CLAIMED, 21, HEIR, 2, "o", 1, since=20),
        Event(Kind.STARTED, 22, HEIR, 2, "o"),
        Event(Kind.ENDED, 23, HEIR, 2, "o", detail="returned"),
    ]
    done = Event(Kind.SETTLED, 25, HEIR, 2, "o", detail=Outcome.DONE, since=24)
    assert judged(head(BEHIND_IT, *heir, done), ME)[0] == [*ITS_OWN, "settled"]
    assert judged(head(BEHIND_IT, *heir), ME, HEIR)[0] == ITS_OWN


def test_an_unknown_answer_that_the_table_betrays_was_a_commit():
    told = head(BEHIND_IT, settled(1, Outcome.LOST), settled(2, Outcome.LOST))
    assert judged(told) == ([*ITS_OWN, "settled"], set())
    assert judged(told, rows=(DONE, NEW), effects=1) == ([], set())


def test_two_effects_of_a_message_in_a_batch_are_found():
    told = head(BEHIND_IT, settled(1), settled(2, at=8.1))
    assert judged(told, effects=3)[1] == {Rule.I6}
    assert judged(told, effects=1)[1] == {Rule.I6}


def test_a_run_alone_after_a_batch_is_the_same_run():
    alone = [
        Event(Kind.STARTED, 6, ME, 1, "o"),
        Event(Kind.ENDED, 7, ME, 1, "o", detail="returned"),
        settled(1),
    ]
    events = tell_of_batches(head(*alone), {}, [])
    assert [e.at for e in events if e.kind == Kind.STARTED] == [3]


def test_a_message_given_back_after_its_batch_was_rolled_back_has_not_run():
    events = tell_of_batches(head(settled(1, Outcome.RELEASED)), {}, [])
    assert [e.kind for e in events] == [Kind.CLAIMED, Kind.SETTLED]


@pytest.mark.parametrize("cancelled", [False, True])
def test_only_a_batch_that_was_committed_is_written_down_as_done(
    monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """Cancelled, at a second try after an answer was lost: it ends without a COMMIT or an error."""
    for owner, name in (
        (BatchCaller, "handle"),
        (BatchCaller, "_call"),
        (BatchCaller, "_settle"),
        (BatchCaller, "_was_committed"),
        (BatchCaller, "_in_transaction"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    told: list[int] = []
    witness: Any = SimpleNamespace(
        _tell=SimpleNamespace(now=lambda: 1.0), _told_of=lambda row, *_: told.append(row.msg_id)
    )
    watch_batches(witness)

    def until_committed(*_: Any) -> None:
        if cancelled:
            raise Cancelled

    row = SimpleNamespace(msg_id=1, payload=None, tries=0)
    lane: Any = SimpleNamespace(
        row=row, owner=ME, taken=lambda: [row], result=None, settled=None, next_row=None
    )
    caller: Any = SimpleNamespace(transacting=SimpleNamespace(until_committed=until_committed))
    nothing: Any = SimpleNamespace()
    batch = BatchCaller(nothing, nothing, caller, nothing)
    points.now.sent_at = 0.5
    message: Any = SimpleNamespace(msg_id=1)
    run_batch: Any = batch._in_transaction
    run_batch([Taken(lane, [message])], nothing, nothing)
    assert told == ([] if cancelled else [1])
