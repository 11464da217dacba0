"""Group commit, batches without a transaction, and what a handler of a batch may use."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from sqlalchemy.orm import Session
from tenacity.wait import wait_none
from typing_extensions import TypedDict

from msgworker import App, BatchContext, Context, Message, Reject
from msgworker.app import registry_of
from msgworker.errors import HandlerError, LostClaim
from msgworker.testing import Crashed, drain
from tests.support.batches import EFFECTS, Calls
from tests.support.rows import Table, send


def test_a_group_is_one_call_for_each_message_and_one_transaction(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, group=50)
    ids = send(app, "a", "a", "b", None, "b", "a")
    assert drain(app).done == 6
    order = [ids[0], ids[1], ids[5], ids[2], ids[4], ids[3]]
    assert calls.of == [[i] for i in order]
    assert len({id(ctx.connection) for ctx in calls.contexts}) == 1
    assert {type(ctx) for ctx in calls.contexts} == {Context}
    assert calls.effects == ids


def test_a_group_in_which_one_raises_runs_message_by_message(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, group=50, wait=wait_none())
    ids = send(app, "a", "b", "b", "c")
    calls.fails = {ids[1]: 2}
    report = drain(app)
    assert (report.done, report.retried) == (4, 1)
    assert table.column("error_try_times") == [0, 1, 0, 0]
    assert calls.of[:2] == [[ids[0]], [ids[1]]]  # the group ends there
    assert calls.effects == ids


@pytest.mark.parametrize("returned", [Reject("no"), iter([1])])
def test_what_one_message_alone_may_return_breaks_a_group_up(
    app: App, table: Table, returned: Any
) -> None:
    @app.handler("t", transactional=True, group=50)
    def handle(msg: Message) -> Any:
        return Reject("no") if msg.object_id == "b" else None

    send(app, "a", "b", "c")
    report = drain(app)
    assert (report.done, report.failed) == (2, 1)
    assert table.column("status") == [2, -1, 2]


def test_a_batch_without_a_transaction_has_the_heads_of_objects_all_flagged(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(batch=100)
    ids = send(app, "a", "a", "b", None, None)
    seen: list[Any] = []
    plain = calls.plain

    def looking(messages: list[Message], ctx: BatchContext) -> None:
        seen.append(table.column("status"))
        plain(messages, ctx)

    registry_of(app).handlers.clear()
    app.add_handler("t", looking, batch=100)
    assert drain(app).done == 5
    assert calls.of == [[ids[0], ids[2], ids[3], ids[4]], [ids[1]]]
    assert seen[0] == [1, 0, 1, 1, 1]


def test_a_batch_without_a_transaction_that_raises_runs_message_by_message(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(batch=100, wait=wait_none())
    ids = send(app, "a", "b", "c")
    calls.fails = {ids[1]: 2}
    report = drain(app)
    assert (report.done, report.retried) == (3, 1)
    assert calls.of == [ids, [ids[0]], [ids[1]], [ids[2]], [ids[1]]]
    assert table.column("error_try_times") == [0, 1, 0]


def test_a_failure_in_a_batch_without_a_transaction_is_the_result_of_its_lane(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(batch=100)
    ids = send(app, "a", "b", "a")
    calls.names = {ids[0]: ValueError("no address")}
    report = drain(app)
    assert (report.done, report.retried) == (1, 1)
    assert calls.of == [ids[:2]]
    assert table.rows("status", "error_try_times") == [(-1, 1), (2, 0), (0, 0)]


@pytest.mark.parametrize("options", [{"transactional": True}, {}], ids=["batch", "plain"])
def test_a_lost_claim_that_a_batch_handler_raises_itself_is_a_failed_try(
    app: App, calls: Calls, table: Table, options: dict[str, Any]
) -> None:
    """An exception of the package, for whose own one the messages are given up."""
    (first, second) = send(app, "a", "b")

    def handle(messages: list[Message]) -> None:
        calls.of.append([message.msg_id for message in messages])
        if first in calls.of[-1] and len(calls.of) < 9:
            raise LostClaim(first, "other")

    app.add_handler("t", handle, batch=10, wait=wait_none(), **options)
    report = drain(app)
    assert (report.done, report.failed, report.retried) == (1, 1, 2)
    assert table.rows("status", "error_try_times") == [(-1, 3), (2, 0)]
    assert sorted(calls.of) == sorted([[first, second], *[[first]] * 3, [second]])
    assert table.column("last_error")[0].startswith("LostClaim: ")


def test_an_async_handler_of_a_batch_works(app: App, table: Table) -> None:
    got: list[list[int]] = []

    @app.handler("t", batch=10)
    async def handle(messages: list[Message], ctx: BatchContext) -> None:
        got.append([message.msg_id for message in messages])

    ids = send(app, "a", "b")
    assert drain(app).done == 2
    assert got == [ids]


def test_a_session_of_a_batch_commits_with_it(app: App, calls: Calls, table: Table) -> None:
    calls.add(transactional=True, batch=10)
    registry_of(app).handlers.clear()

    @app.handler("t", transactional=True, batch=10)
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        assert isinstance(ctx.session, Session)
        for message in messages:
            ctx.session.execute(EFFECTS.insert().values(msg_id=message.msg_id))

    ids = send(app, "a", "a", "b")
    assert drain(app).done == 3
    assert calls.effects == ids


def test_the_context_of_a_batch_says_what_it_is_of(
    app: App, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    @app.handler("t", batch=10)
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        seen.append((ctx.attempt, ctx.cancelled, bool(ctx.instance_id)))
        ctx.log.warning("here")
        with pytest.raises(Exception, match="transactional=True"):
            _ = ctx.connection
        with pytest.raises(Exception, match=r"leave out batch=\.\.\. to fan out"):
            ctx.fan_out(print, [1])

    send(app, "a", "b")
    assert drain(app).done == 2
    assert seen == [(1, False, True)]
    (record,) = [r for r in caplog.records if r.getMessage() == "here"]
    assert (record.topic, record.messages, record.msg_id) == ("t", 2, None)  # type: ignore[attr-defined]


@pytest.mark.quick("claimed")
@pytest.mark.parametrize("kind", ["batch", "group", "plain"])
@pytest.mark.parametrize("place", ["claimed", "handled", "settled"])
def test_a_crash_in_a_batch_gives_back_its_heads_with_a_try(
    msgworker_db: Any, place: str, kind: str
) -> None:
    app = msgworker_db.app()
    calls = Calls(app)
    calls.add(**{kind: 50} if kind != "plain" else {"batch": 50}, transactional=kind != "plain")
    ids = send(app, "a", "a", "b")
    with pytest.raises(Crashed):
        drain(app, crash=place)
    table = Table(app)
    if place == "settled":
        assert table.column("status") == ([2, 2, 2] if kind != "plain" else [2, 1, 2])
    else:
        assert calls.effects == []
        assert table.column("status") == [1, 0, 1]
    msgworker_db.clock.advance(app.settings.lease_seconds + 1)
    again = drain(app)
    assert again.left == 0
    assert set(table.statuses) == {2}
    tried = {"settled": [0, int(kind == "plain"), 0]}.get(place, [1, 0, 1])
    assert table.column("error_try_times") == tried
    if kind != "plain":
        assert calls.effects == ids


def test_a_crash_on_a_follower_is_a_crash_of_its_batch(msgworker_db: Any) -> None:
    app = msgworker_db.app()
    calls = Calls(app)
    calls.add(transactional=True, batch=50)
    ids = send(app, "a", "a", "b")
    with pytest.raises(Crashed, match=str(ids[1])):
        drain(app, crash="handled", crash_on=ids[1])
    assert calls.effects == []


def two(a: Any, b: Any) -> None:
    """A handler."""


def one_message(msg: Message) -> None:
    """A handler."""


def many_messages(messages: list[Message]) -> None:
    """A handler."""


async def waits(messages: list[Message]) -> None:
    """A handler."""


class Purchase(TypedDict):
    """A payload."""

    amount: int


def of_payloads(messages: list[Purchase]) -> None:
    """A handler."""


def of_a_tuple(messages: tuple[Message[Purchase], ...]) -> None:
    """A handler."""


def of_a_union(messages: list[Message[Purchase]] | None) -> None:
    """A handler."""


def of_one_purchase(msg: Message[Purchase]) -> None:
    """A handler."""


def with_a_context(messages: list[Message], ctx: Context) -> None:
    """A handler."""


def with_a_batch_context(msg: Message, ctx: BatchContext) -> None:
    """A handler."""


def of_a_list(messages: typing.List[Message[Purchase]]) -> None:  # noqa: UP006
    """A handler."""


def of_a_sequence(messages: Sequence[Message[Purchase]], ctx: BatchContext) -> None:
    """A handler."""


def of_an_iterable(messages: Iterable[Message[Purchase]], ctx: Any) -> None:
    """A handler."""


def of_anything(messages: list[Any], ctx: Context | BatchContext) -> None:
    """A handler."""


def with_an_annotated_context(messages, ctx: BatchContext) -> None:  # type: ignore[no-untyped-def]
    """A handler."""


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one": (two, {"batch": 1}, "from 2 to"),
    "none": (two, {"batch": 0}, "from 2 to"),
    "many": (two, {"batch": 10_001}, "10000"),
    "true": (two, {"batch": True}, "batch of handler"),
    "a fraction": (two, {"batch": 2.5}, "batch of handler"),
    "a text": (two, {"group": "50", "transactional": True}, "group of handler"),
    "both": (two, {"batch": 5, "group": 5, "transactional": True}, "use one of them"),
    "a group alone": (two, {"group": 5}, "needs transactional=True"),
    "no time": (two, {"batch": 5, "batch_seconds": 0}, "batch_seconds of handler"),
    "too long": (two, {"batch": 5, "batch_seconds": float("inf")}, "batch_seconds of handler"),
    "one message": (one_message, {"batch": 5}, r"gets a list: \(messages: list\[Message\]\)"),
    "one typed": (of_one_purchase, {"batch": 5}, r"\(messages: list\[Message\[Purchase\]\]\)"),
    "a list": (many_messages, {}, r"give it batch=.*or take one: \(msg: Message\)"),
    "a list in a group": (
        *(many_messages, {"group": 5, "transactional": True}),
        r"group=\.\.\. calls it with one: \(msg: Message\); or use batch=",
    ),
    "payloads": (
        *(of_payloads, {"batch": 5}),
        r"not list\[Purchase\]: annotate \(messages: list\[Message\[Purchase\]\]\)",
    ),
    "a tuple": (
        *(of_a_tuple, {"batch": 5}),
        r"not tuple\[Message\[Purchase\], \.\.\.\]: annotate \(messages: list\[Message\[Purch",
    ),
    "a union": (of_a_union, {"batch": 5}, r"annotate \(messages: list\[Message"),
    "the other context": (with_a_context, {"batch": 5}, r"annotate \(ctx: BatchContext\)"),
    "a plain one": (with_a_batch_context, {}, r"annotate \(ctx: Context\)"),
    "a group's": (
        *(with_a_batch_context, {"group": 5, "transactional": True}),
        r"annotate \(ctx: Context\)",
    ),
    "seconds alone": (two, {"batch_seconds": 3}, "is for batch=... and group="),
    "one try": (two, {"batch": 5, "max_tries": 1}, "no effect with max_tries=1"),
    "one try in a group": (
        *(two, {"group": 5, "max_tries": 1, "transactional": True}),
        "group=... has no effect with max_tries=1",
    ),
    "three": (lambda a, b, c: None, {"batch": 5}, r"\(messages, ctx\)"),
    "async": (waits, {"batch": 5, "transactional": True}, "not async"),
}


def test_bad_options_of_batches_are_refused_at_once(subtests: Any) -> None:
    for wrong in BAD:
        with subtests.test(wrong=wrong):
            app = App("sqlite:///never.db")  # nothing connects
            fn, options, text = BAD[wrong]
            with pytest.raises(HandlerError, match=text):
                app.add_handler("t", fn, **options)
            assert registry_of(app).handlers == {}


@pytest.mark.parametrize("fn", [of_a_list, of_a_sequence, of_an_iterable])
def test_the_type_of_payloads_is_that_of_any_annotation_that_a_list_meets(fn: Any) -> None:
    app = App("sqlite:///never.db")
    app.add_handler("t", fn, batch=5)
    assert registry_of(app).handlers["t"].payload_type is not None


@pytest.mark.parametrize("fn", [two, of_anything, with_an_annotated_context])
def test_a_batch_without_a_type_of_payloads_is_accepted(fn: Any) -> None:
    app = App("sqlite:///never.db")
    app.add_handler("t", fn, batch=5)
    assert registry_of(app).handlers["t"].payload_type is None
