"""What items of a fan-out send: with their records, once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from msgworker import App, Context, HandlerMisuse, LostClaim, Message
from msgworker.message import Outgoing
from msgworker.producing import outgoing
from msgworker.store import items as store
from msgworker.store import jobs
from msgworker.store.items import Record
from tests.support.fan_out import DONE, FAILED, Trying, records, run, take_over
from tests.support.rows import Table, send


def sent(app: App) -> list[Any]:
    """The objects of all messages of the topic next, in order."""
    rows = Table(app).rows("topic", "object_id")
    return [object_id for topic, object_id in rows if topic == "next"]


class Hired(Executor):
    """An executor of which nothing is known; it repeats each item, as some do."""

    def __init__(self) -> None:
        self._inner = ThreadPoolExecutor(2)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        def twice() -> Any:
            fn(*args, **kwargs)
            return fn(*args, **kwargs)

        return self._inner.submit(twice)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait)


@pytest.mark.parametrize("how", ["threads", "transactional", "pool", "hired"])
def test_what_an_item_sends_is_sent_once_though_its_message_fails_and_is_rerun(app, how):
    makes: dict[str, Any] = {"pool": ThreadPoolExecutor, "hired": Hired}
    executor = makes[how]() if how in makes else None
    exact, fails = how == "transactional", {2}

    def fan(ctx: Context) -> Any:
        async def in_a_task(n: int) -> None:
            ctx.send("next", object_id=f"b{n}")

        def item(n: int, *_: Any) -> int:
            got = ctx.send("next", object_id=f"a{n}")
            assert (got is not None) is exact
            asyncio.run(in_a_task(n))
            if n in fails:
                raise ValueError("not yet")
            return n

        ctx.send("next", object_id="with the outcome")
        found = ctx.fan_out(item, range(4), executor=executor, transactional_items=exact)
        fails.clear()
        known.append(sorted(sent(app)))
        return found.raise_for_failed()

    known: list[Any] = []
    trying = Trying(app, fan, tries=3)
    assert trying.drain(linger=5, topics=["fan"]).done == 1
    first = sorted(f"{kind}{n}" for kind in "ab" for n in (0, 1, 3))
    items = sorted([*first, "a2", "b2"])
    assert known == [first, items]
    assert sorted(sent(app)) == [*items, "with the outcome"]
    if executor is not None:
        executor.shutdown()
    assert app.ops.rerun([trying.msg_id], force=True) == 1
    assert trying.drain(topics=["fan"]).done == 1
    assert sorted(sent(app)) == [*items, *["with the outcome"] * 2]


def test_a_message_of_an_item_can_be_handled_before_the_handler_ends(app):
    def handle(msg: Message[Any]) -> None:
        handled.set()

    def fan(ctx: Context) -> Any:
        result = ctx.fan_out(lambda n: ctx.send("next"), [1])
        assert handled.wait(30)
        return result

    handled = threading.Event()
    app.add_handler("next", handle)
    trying = Trying(app, fan)
    assert trying.drain(threads=2).done == 2
    assert trying.result.done == 1


def test_without_the_claim_an_item_sends_nothing(app):
    over = threading.Event()

    def fan(ctx: Context) -> Any:
        def item(n: int) -> None:
            ctx.send("next", object_id=str(n))
            if n == 0 and not over.is_set():
                take_over(app, trying.msg_id)
                over.set()
            assert over.wait(60)

        return ctx.fan_out(item, range(4), threads=2)

    trying = Trying(app, fan, tries=2)
    assert trying.drain(linger=5, topics=["fan"]).done == 1
    assert isinstance(trying.errors[0], LostClaim)
    assert sorted(sent(app)) == ["0", "1", "2", "3"]


def test_a_record_that_is_written_again_sends_nothing_again(app):
    """After a lost answer to the COMMIT the same records are written again."""
    (msg_id,) = send(app, None)
    t = app.tables
    Table(app).edit(status=1, claimed_by="me")

    def write(batch: list[Record], *there: str) -> None:
        with app.engine.begin() as conn:
            assert store.record(conn, t, msg_id, batch, me="me", tries=0, there=there)

    def message(object_id: str) -> Outgoing:
        return outgoing(t, "next", None, object_id=object_id)

    def one(key: str) -> Record:
        return Record(key, True, 1, sends=[message(key), message(f"{key}{key}")])

    write([Record("c", False, 1, error="no")])
    both = [one("a"), one("c")]
    write(both, "c")
    assert sent(app) == ["a", "aa", "c", "cc"]
    write([*both, one("b")], "a", "c")
    assert sent(app) == ["a", "aa", "c", "cc", "b", "bb"]
    with app.engine.begin() as conn:
        assert not store.record(conn, t, msg_id, [one("d")], me="other", tries=0, there=())
    assert "d" not in sent(app)
    assert {key: row[0] for key, row in records(app).items()} == dict.fromkeys("abc", DONE)


@pytest.mark.requires("unique_keys")
def test_an_item_whose_message_is_refused_fails_and_the_others_do_not(app):
    """The key is that of a message of another topic, which cannot be replaced. What has the same
    sub-key and has not started waits for the next try."""

    def fan(ctx: Context) -> Any:
        def item(n: int) -> None:
            if n == 1 and ctx.attempt == 1:
                ctx.send("next", unique_key="k", on_duplicate="replace")
            else:
                ctx.send("next", object_id=str(n))

        def items() -> Any:
            yield from range(4)
            more = 4
            while "1" not in records(app):
                yield more
                more += 1
            yield LAST

        def sub_key(n: int) -> int | None:
            return 0 if n in (1, LAST) else None

        results.append(ctx.fan_out(item, items(), serial_by=sub_key))
        recorded.append((records(app), sent(app)))
        return results[-1].raise_for_failed()

    LAST = 1_000_000
    results: list[Any] = []
    recorded: list[Any] = []
    send(app, "x", topic="other", unique_key="k")
    trying = Trying(app, fan, tries=2)
    assert trying.drain(linger=5, topics=["fan"]).done == 1
    first, second = results
    assert list(first.failed) == [1]
    assert "a message that the item sends was refused: DuplicateMessage" in first.failed[1]
    assert (first.done, first.held_back, first.values[1]) == (first.total - 2, 1, None)
    found, by_then = recorded[0]
    assert found.pop("1")[::3] == (FAILED, first.failed[1])
    assert {row[0] for row in found.values()} == {DONE}
    assert sorted(by_then) == sorted(found)
    assert (second.failed_count, second.ran) == (0, 2)
    assert sorted(sent(app)) == sorted([*found, "1", str(LAST)])


@pytest.mark.requires("unique_keys")
@pytest.mark.parametrize("exact", [False, True], ids=["plain", "transactional"])
def test_keys_and_jobs_of_what_items_send(app, exact):
    def fan(msg: Message[Any], ctx: Context) -> None:
        def item(n: int, *_: Any) -> None:
            ctx.send("next", object_id="taken", unique_key="taken")
            ctx.send("next", object_id="my own", unique_key="mine")  # held until it ends
            ctx.send("next", object_id="new", unique_key="new", job=True)
            if n == 1:
                ctx.send("next", unique_key="taken", on_duplicate="raise")

        found = ctx.fan_out(item, [0, 1], threads=1, transactional_items=exact)
        failed.update(found.failed)

    failed: dict[Any, str] = {}
    app.add_handler("fan", fan)
    with app.engine.begin() as conn:
        job = app.job("all", conn=conn)
        app.send(conn, "fan", unique_key="mine", job=job)
        app.send(conn, "other", unique_key="taken")
        job.seal()
    assert app.drain(linger=0, topics=["fan"]).done == 1
    assert sent(app) == ["new"]
    assert failed.keys() == {1}
    assert ("DuplicateMessage" if exact else "HandlerMisuse: on_duplicate") in failed[1]
    rows = Table(app).rows("topic", "job_id")
    assert dict(rows)["next"] == job.job_id
    with app.engine.connect() as conn:
        assert jobs.complete(conn, app.tables, job.job_id) is None  # one of it waits


class Beside:
    """Runs functions in threads, and keeps what they raise."""

    def __init__(self) -> None:
        self.raised: list[Any] = []

    def start(self, fn: Any, *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                fn(*args)
            except Exception as error:
                self.raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def refused(self) -> int:
        """How many of them were refused, for this reason; forgets them."""
        found, self.raised = self.raised, []
        assert all("a thread that an item of a fan-out may have started" in str(e) for e in found)
        return len(found)


@pytest.mark.parametrize("how", ["threads", "transactional", "pool"])
def test_what_threads_of_an_item_send_is_sent_with_its_record_or_refused(app, how):
    beside, exact = Beside(), how == "transactional"
    executor = ThreadPoolExecutor(2) if how == "pool" else None
    asked: list[Any] = []

    def fan(ctx: Context) -> Any:
        def item(n: int, *_: Any) -> None:
            within = copy_context()
            beside.start(within.run, lambda: ctx.send("next", object_id=f"copy {n}")).join()
            asyncio.run(in_threads(n))
            asked.append(beside.start(ctx.send, "next"))
            asked[-1].join()

        async def in_threads(n: int) -> None:
            await asyncio.to_thread(ctx.send, "next", object_id=f"to_thread {n}")
            with pytest.raises(HandlerMisuse, match="may have started"):
                await asyncio.get_running_loop().run_in_executor(None, ctx.send, "next")

        beside.start(lambda: ctx.send("next", object_id="before")).join()
        result = ctx.fan_out(item, [1, 2], executor=executor, transactional_items=exact)
        result.raise_for_failed()
        asked.append(beside.start(ctx.send, "next"))
        asked[-1].join()
        within = copy_context()
        beside.start(within.run, lambda: ctx.send("next", object_id="after")).join()
        if ctx.attempt == 1:
            raise ValueError("the message fails, its items are done")
        return result

    trying = Trying(app, fan, tries=2)
    assert trying.drain(linger=5, topics=["fan"]).done == 1
    if executor is not None:
        executor.shutdown()
    assert beside.refused() == len(asked) == 4
    once = [f"{kind} {n}" for kind in ("copy", "to_thread") for n in (1, 2)]
    assert sorted(sent(app)) == sorted([*once, "before", "after"])


def test_after_an_item_has_returned_it_sends_nothing(sqlite_app):
    def fan(ctx: Context) -> Any:
        result = ctx.fan_out(lambda n: kept.append(copy_context()), [1])
        with pytest.raises(Exception, match="after its item has returned"):
            kept[0].run(ctx.send, "next")
        ctx.send("next", object_id="the handler's own")
        return result

    kept: list[Any] = []
    assert run(sqlite_app, fan).done == 1
    assert sent(sqlite_app) == ["the handler's own"]


def test_many_messages_of_items_do_not_wait_in_memory(sqlite_app, monkeypatch):
    monkeypatch.setattr("msgworker.instance.fan_out.items.MAX_SENDS", 5)
    monkeypatch.setattr("msgworker.instance.fan_out.items.LINGER_SECONDS", 600)
    seen: list[int] = []

    def fan(ctx: Context) -> Any:
        def item(n: int) -> None:
            for _ in range(5):
                ctx.send("next")

        def items() -> Any:
            for n in range(3):
                yield n
                while len(sent(sqlite_app)) < 5 * n:
                    yield 100 * n + len(seen)
                    seen.append(n)

        return ctx.fan_out(item, items())

    assert run(sqlite_app, fan).failed == {}
    assert len(sent(sqlite_app)) >= 15
