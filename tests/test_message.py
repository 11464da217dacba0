"""What a handler gets is a Message in every respect, however it was made."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from msgworker import Message, message
from msgworker.message import filled

AT = datetime(2026, 1, 31, 8, 30, tzinfo=UTC)
MADE: Message[Any] = Message(7, "a", "invoice", {"n": 1}, 2, AT, "messages")


@pytest.fixture(autouse=True, params=["GIL", "no GIL"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "FREE_THREADED", request.param == "no GIL")


def quickly() -> Message[Any]:
    return filled(7, "a", "invoice", {"n": 1}, 2, lambda: AT, "messages")


def test_a_filled_message_equals_one_that_was_made():
    msg = quickly()
    assert type(msg) is Message
    assert (msg, repr(msg)) == (MADE, repr(MADE))
    assert msg.idempotency_key == "messages:7"
    assert {msg.created_at, filled(7, "a", "invoice", {}, 2, None, "messages").created_at} == {
        AT,
        None,
    }
    numbers = [filled(1, None, "t", 5, 0, None, "m"), Message(1, None, "t", 5, 0, None, "m")]
    assert len({hash(one) for one in numbers}) == 1


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Message)])
def test_a_filled_message_is_frozen(name: str):
    msg = quickly()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(msg, name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(msg, name)
    assert msg == MADE


def test_a_filled_message_has_no_other_attributes():
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        quickly().other = 1  # type: ignore[attr-defined]
    assert not hasattr(quickly(), "__dict__")


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_a_filled_message_equals_it(way: Any):
    assert way(quickly()) == MADE


def test_a_filled_message_is_replaced_and_taken_apart_like_any_dataclass():
    assert dataclasses.replace(quickly(), topic="order") == dataclasses.replace(MADE, topic="order")
    assert dataclasses.asdict(quickly()) == dataclasses.asdict(MADE)
    match quickly():
        case Message(msg_id, object_id, "invoice"):
            assert (msg_id, object_id) == (7, "a")
        case _:
            pytest.fail("no match")


def test_the_instant_of_a_message_is_read_once_and_only_if_it_is_asked_for():
    asked: list[int] = []

    def read() -> datetime:
        asked.append(1)
        return AT

    msg = filled(7, "a", "invoice", {}, 2, read, "messages")
    assert (msg.payload, asked) == ({}, [])
    assert (msg.created_at, msg.created_at, asked) == (AT, AT, [1])


def test_without_the_gil_no_object_gets_another_class(monkeypatch: pytest.MonkeyPatch):
    """Python stops all threads for that: with two threads half of the messages a second."""
    monkeypatch.setattr(message, "FREE_THREADED", True)
    monkeypatch.setattr(message, "_Draft", None)
    assert quickly() == MADE
