"""The rules of chains, keys, limits, cancels and ticks: each fault is told, clean rows are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from proof.crash import feature_rules as rules
from proof.crash.feature_rules import (
    CHAIN,
    KEYED,
    ON_DEAD,
    ON_DONE,
    SENT_BY,
    TICK,
    Broken,
    Cancel,
    Keyed,
    Line,
    Promise,
    payload_of,
)

SENDS, BEGIN = {"sends": True}, datetime(2026, 1, 1, tzinfo=UTC)
BY_OPERATOR = "cancelled: wrong file (by torture)"


def dead(msg_id: int, topic: str = "plain", error: str = "Planned: try 3") -> Line:
    return Line(msg_id, topic, status=-1, tries=3, error=error, payload=SENDS)


def made(msg_id: int, topic: str, about: int) -> Line:
    return Line(msg_id, topic, payload={"msg_id": about})


def tick(msg_id: int, second: int) -> Line:
    return Line(msg_id, TICK, TICK, tick=BEGIN + timedelta(seconds=second))


CHAINS = [
    Line(1, "plain", payload=SENDS),
    made(2, SENT_BY, 1),
    Line(3, "plain"),
    dead(4),
    Line(5, "exact", status=-1, tries=1, payload=SENDS),
    Line(6, CHAIN),
    made(7, ON_DONE, 6),
    dead(8, CHAIN),
    made(9, ON_DEAD, 8),
    dead(10, CHAIN, BY_OPERATOR),
    Line(11, CHAIN, status=0),
]


def without(msg_id: int) -> list[Line]:
    return [line for line in CHAINS if line.msg_id != msg_id]


BAD_CHAINS: dict[str, Sequence[Line]] = {
    "not sent": without(2),
    "sent twice": [*CHAINS, made(20, SENT_BY, 1)],
    "sent by a failed try": [*CHAINS, made(20, SENT_BY, 5)],
    "sent by a dead one": [*CHAINS, made(20, SENT_BY, 4)],
    "sent by one that sends nothing": [*CHAINS, made(20, SENT_BY, 3)],
    "sent by none": [*CHAINS, made(20, SENT_BY, 99)],
    "done and not told": without(7),
    "done and told twice": [*CHAINS, made(20, ON_DONE, 6)],
    "done and told as dead": [*CHAINS, made(20, ON_DEAD, 6)],
    "dead and not told": without(9),
    "dead and told twice": [*CHAINS, made(20, ON_DEAD, 8)],
    "dead and told as done": [*CHAINS, made(20, ON_DONE, 8)],
    "cancelled and told as dead": [*CHAINS, made(20, ON_DEAD, 10)],
    "unfinished and told as done": [*CHAINS, made(20, ON_DONE, 11)],
}

KEYS = [Line(1, KEYED, key="a"), Line(2, KEYED, status=0, key="a"), Line(3, KEYED, key="b")]
SENT = [Keyed("a", 1), Keyed("a", 2), Keyed("a", 2), Keyed("b", 3)]
HELD = [(1.0, [("a", 1), ("b", 3)]), (2.0, [("a", 2)])]

CANCELS = [
    dead(1, error=BY_OPERATOR),
    dead(2, error=BY_OPERATOR),
    Line(3, "plain"),
    dead(4),
    Line(5, "plain"),
]
ASKED = [Cancel(1, 1, 2, True), *(Cancel(i, 1, 2, False) for i in (2, 3, 4))]


def of_keys(
    sends: Sequence[Keyed] = (), held: Sequence[rules.Holders] = (), error: str = ""
) -> list[Broken]:
    return rules.keys([*SENT, *sends], [*HELD, *held], KEYS, [error] if error else [])


FAULTS: dict[str, tuple[Promise, Callable[[], list[Broken]]]] = {
    "two seen with a key": (
        Promise.KEYS,
        lambda: of_keys(held=[(3.0, [("b", 3), ("a", 1), ("a", 2)])]),
    ),
    "two left with a key": (
        Promise.KEYS,
        lambda: rules.keys(SENT, HELD, [*KEYS, Line(4, KEYED, status=1, key="a")], ()),
    ),
    "one that failed holds its key": (
        Promise.KEYS,
        lambda: rules.keys([], [], [*KEYS, Line(4, KEYED, status=-1, tries=1, key="a")], ()),
    ),
    "a send that is gone": (Promise.KEYS, lambda: of_keys(sends=[Keyed("a", 9)])),
    "a send that got another key's id": (Promise.KEYS, lambda: of_keys(sends=[Keyed("a", 3)])),
    "an error in a producer": (Promise.KEYS, lambda: of_keys(error="IntegrityError()")),
    "three rows at 1": (Promise.LIMIT, lambda: rules.limit([(1.0, 2), (2.0, 3)])),
    "a waiting one was done": (
        Promise.CANCELS,
        lambda: rules.cancels([*ASKED, Cancel(5, 1, 2, True)], CANCELS),
    ),
    "a waiting one died of itself": (
        Promise.CANCELS,
        lambda: rules.cancels([Cancel(4, 1, 2, True), *ASKED[:3]], CANCELS),
    ),
    "a running one is left failed": (
        Promise.CANCELS,
        lambda: rules.cancels(
            [*ASKED, Cancel(6, 1, 2, False)], [*CANCELS, Line(6, "plain", status=-1, tries=1)]
        ),
    ),
    "a cancelled one is gone": (Promise.CANCELS, lambda: rules.cancels(ASKED, CANCELS[1:])),
    "nobody asked": (Promise.CANCELS, lambda: rules.cancels(ASKED[1:], CANCELS)),
    "a tick twice": (Promise.TICKS, lambda: rules.ticks([tick(1, 0), tick(2, 1), tick(3, 1)])),
    "a tick missing": (Promise.TICKS, lambda: rules.ticks([tick(1, 0), tick(2, 2)])),
    "no tick": (Promise.TICKS, lambda: rules.ticks([Line(1, "plain")])),
    "ticks out of order": (Promise.TICKS, lambda: rules.ticks([tick(1, 1), tick(2, 0)])),
} | {
    name: (Promise.CHAINS, lambda lines=lines: rules.chains(lines))  # type: ignore[misc]
    for name, lines in BAD_CHAINS.items()
}


def test_rows_that_keep_every_promise_are_clean() -> None:
    assert rules.chains(CHAINS) == []
    assert of_keys() == []
    assert rules.limit([(1.0, 0), (2.0, 2)]) == []
    assert rules.cancels(ASKED, CANCELS) == []
    assert rules.ticks([tick(2, 1), Line(3, "plain"), tick(1, 0)]) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_promise_is_told_once(name: str) -> None:
    promise, judge = FAULTS[name]
    found = judge()
    assert [one.promise for one in found] == [promise]
    assert str(found[0]).startswith(f"{promise}: ")


def test_every_promise_has_a_fault() -> None:
    assert {promise for promise, _ in FAULTS.values()} == set(Promise)


def test_rows_without_a_payload_have_an_empty_one() -> None:
    assert [payload_of(text) for text in (None, "null", '{"n": 1}')] == [{}, {}, {"n": 1}]
