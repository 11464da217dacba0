"""Whatever a handler raises."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed, wait_none

from msgworker import App, Context, Message, Reject, RetryLater
from msgworker.errors import ConfigError, MsgworkerError, PayloadError
from msgworker.instance.observers import Spans
from msgworker.instance.running.call import Caller
from msgworker.instance.running.pool import HandlerThreads, LaneQueue
from msgworker.store import claim, recover, settle
from tests.engines import dispose_all
from tests.support.apps import created
from tests.support.logged import CANARY
from tests.support.rows import Table, edit, send
from tests.support.rule import expire
from tests.support.timers import timer
from tests.support.waiting import in_thread


class Strange(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def _cyclic() -> Exception:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


@dataclass(frozen=True)
class Frozen(Exception):
    customer: str


@dataclass(frozen=True)
class FrozenReject(Reject):
    customer: str


class BareReject(Reject):
    def __init__(self, customer: str) -> None:
        self.customer = customer


class BareLater(RetryLater):
    def __init__(self) -> None:
        pass


class OddLater(BareLater):
    after_seconds = "soon"  # type: ignore[assignment]


class Refusing(Exception):
    """Refuses whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise SystemExit(name)


class RefusingReject(Reject):
    @property
    def reason(self) -> str:  # type: ignore[override]
        raise SystemExit(1)

    @reason.setter
    def reason(self, _: str) -> None:
        pass


class _Unsayable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "huge": (lambda: ValueError("x" * 10_000_000), "ValueError: xxx"),
    "binary": (lambda: ValueError("\x00\x01\xff\ud800 end"), "end"),
    "four bytes": (lambda: ValueError("\U0001f600" * 5000), "\U0001f600"),
    "unprintable": (Unprintable, "Unprintable: <unprintable>"),
    "endless": (Endless, "Endless: <unprintable>"),
    "unpicklable": (Unpicklable, "holds a lock"),
    "cyclic": (_cyclic, "ValueError: one"),
    "SystemExit": (lambda: SystemExit(3), "SystemExit: 3"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "StopIteration": (StopIteration, "StopIteration"),
    "strange": (lambda: Strange("odd"), "Strange: odd"),
    "MemoryError": (MemoryError, "MemoryError"),
    "RecursionError": (RecursionError, "RecursionError"),
    "CancelledError": (asyncio.CancelledError, "CancelledError"),
    "not JSON": (lambda: json.JSONDecodeError("bad", "x", 0), "JSONDecodeError"),
    "unsayable reason": (lambda: Reject(_Unsayable()), "rejected"),  # type: ignore[arg-type]
    "frozen": (lambda: Frozen("C-1"), "Frozen: "),
    "frozen reason": (lambda: FrozenReject("C-1"), "rejected: C-1"),
    "bare reason": (lambda: BareReject("C-1"), "rejected: C-1"),
    "bare later": (BareLater, ""),
    "odd later": (OddLater, ""),
    "refusing": (Refusing, "Refusing"),
    "refusing Reject": (RefusingReject, "RefusingReject"),
    "unsayable later": (lambda: RetryLater(5, _Unsayable()), ""),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", ["plain", "transactional", "async"])
def test_whatever_a_handler_raises_its_try_fails_and_the_worker_lives(app, kind):
    make: list[Callable[[], BaseException]] = [make for make, _ in RAISED.values()]

    def handle(msg: Message) -> None:
        if msg.payload < len(make):
            raise make[msg.payload]()

    async def handle_async(msg: Message) -> None:
        handle(msg)

    fn = handle_async if kind == "async" else handle
    options = {"transactional": kind == "transactional", "wait": wait_fixed(3600)}
    app.add_handler("t", fn, **options)
    for i in range(len(make)):
        send(app, f"o{i}", payload=i)
    with app.worker(threads=1) as worker:  # one thread: if it died, nothing would go on
        assert worker.drain(linger=0).done == 0
        send(app, "good", payload=10**6)
        assert worker.drain(linger=0).done == 1
    rows = Table(app).rows("status", "error_try_times", "last_error", "claimed_by")
    for (name, (_, text)), row in zip(RAISED.items(), rows, strict=False):
        if "later" in name:
            assert row[:2] in ((0, 0), (-1, 1)), name
        else:
            assert row[0] == -1, (name, row)
            assert row[1] == (3 if "reason" in name else 1), name
        assert text in row[2] or (kind == "async" and "Stop" in name), (name, row)
        assert len(row[2].encode()) <= 2000
        assert "\x00" not in row[2]
        assert row[3] is None


@pytest.mark.parametrize("kind", ["plain", "transactional", "async"])
def test_keyboard_interrupt_in_a_handler_fails_its_try_and_stops_the_worker(app, kind):
    def handle(msg: Message) -> None:
        raise KeyboardInterrupt

    async def handle_async(msg: Message) -> None:
        raise KeyboardInterrupt

    fn = handle_async if kind == "async" else handle
    app.add_handler("t", fn, transactional=kind == "transactional", wait=wait_fixed(3600))
    send(app, "o", *["p"] * 3)
    join = in_thread(app.worker(threads=1).run)
    join()
    table = Table(app)
    assert 1 not in table.statuses
    assert sorted(table.column("error_try_times"))[-1] == 1


def test_a_recursion_without_end_and_a_failed_allocation(sqlite_app):
    def forever(n: int = 0) -> int:
        return forever(n + 1) + 1

    @sqlite_app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if msg.payload:
            forever()
        bytearray(1 << 62)

    send(sqlite_app, "a", payload=1)
    send(sqlite_app, "b", payload=0)
    assert sqlite_app.drain(linger=0).retried == 2
    first, second = Table(sqlite_app).column("last_error")
    assert "RecursionError" in first
    assert "MemoryError" in second


def test_the_database_s_password_is_not_kept_in_an_error(postgresql):
    app = App(sa.make_url(postgresql.url).set(password=CANARY))  # the tests' server asks for none
    app.create_schema()

    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        raise ValueError(f"cannot reach postgresql://u:{CANARY}@host")

    send(app, "o")
    app.drain(linger=0)
    text = Table(app).one("last_error")
    assert CANARY not in text
    assert "***" in text


def test_the_text_of_an_error_is_one_line_of_the_log(sqlite_app, caplog):
    caplog.set_level("INFO", "msgworker")

    def handle(msg: Message) -> None:
        raise ValueError("a\r\nCRITICAL forged \x1b[2K")

    sqlite_app.add_handler("t", handle)
    send(sqlite_app, "o")
    sqlite_app.drain(linger=0)
    told = [r.getMessage() for r in caplog.records if "forged" in r.getMessage()]
    assert told
    assert all(text.isprintable() for text in told)


class FrozenLater(RetryLater):
    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        super().__setattr__(name, value)


ODD: list[Callable[[], BaseException]] = [
    lambda: Frozen("C-1"),
    Refusing,
    lambda: FrozenReject("C-1"),
    lambda: FrozenLater(3600),
]


@pytest.mark.parametrize("options", [{}, {"transactional": True}], ids=["plain", "transactional"])
@pytest.mark.parametrize("how", ["raised", "failed"])
def test_a_batch_outlives_errors_that_refuse_whatever_is_asked_of_them(app, options, how):
    def handle(messages: list[Message], ctx: Any) -> None:
        for msg in messages:
            if msg.payload is None:
                continue
            if how == "raised":
                raise ODD[msg.payload]()
            ctx.fail(msg, ODD[msg.payload]())

    app.add_handler("t", handle, batch=20, wait=wait_fixed(3600), **options)
    for place in range(len(ODD)):
        send(app, f"o{place}", payload=place)
        send(app, f"good{place}", payload=None)
    with app.worker(threads=1) as worker:
        assert worker.drain(linger=0).done == len(ODD)
    rows = Table(app).rows("status", "error_try_times", "claimed_by")
    assert [row for row in rows if row[0] != 2] == [
        (-1, 1, None),
        (-1, 1, None),
        (-1, 3, None),
        (0, 0, None),
    ]


@pytest.mark.parametrize("exact", [False, True], ids=["plain", "transactional"])
def test_items_outlive_errors_that_refuse_whatever_is_asked_of_them(app, exact):
    failed: dict[Any, str] = {}

    def item(place: int, _: Any = None) -> None:
        raise ODD[place]()

    def handle(msg: Message, ctx: Any) -> None:
        failed.update(ctx.fan_out(item, range(len(ODD)), transactional_items=exact).failed)

    app.add_handler("t", handle)
    send(app, "o", payload=None)
    assert app.drain(threads=1, linger=0).done == 1
    names = ["Frozen", "Refusing", "FrozenReject", "FrozenLater"]
    assert [failed[place].split(":")[0] for place in range(len(ODD))] == names


def test_a_handler_thread_outlives_an_error_of_ours_and_its_message_is_tried_again(
    app, monkeypatch, caplog
):
    ran: list[Any] = []
    app.add_handler("t", lambda msg: ran.append(msg.payload), wait=wait_fixed(3600))
    worker, told = app.worker(threads=1), []

    def took(self: LaneQueue, seconds: float, lanes: int = 1) -> None:
        told.append(seconds)
        if len(told) == 1:
            raise SystemExit("of ours")

    monkeypatch.setattr(LaneQueue, "took", took)
    send(app, "o", payload=1)
    send(app, "p", payload=2)
    worker.drain(linger=0)
    assert sorted(ran) == [1, 2]
    assert sorted(Table(app).rows("status", "claimed_by")) in ([(2, None), (2, None)],)
    assert "an error round its handler" in caplog.text


def test_an_instance_whose_loops_end_by_errors_again_and_again_leaves(app, monkeypatch):
    app.add_handler("t", lambda msg: None)

    def broken(self: LaneQueue) -> None:
        raise LookupError("of ours")

    monkeypatch.setattr(LaneQueue, "next", broken)
    with pytest.raises(MsgworkerError, match="ended by a LookupError twice"):
        app.worker(threads=1).run(time_limit=30)
    assert app.ops.instances() == []


@pytest.mark.quick(
    "sqlite-settle-settle_at_once-True|sqlite-LaneQueue-next-False|postgresql-claim-flag-True|mariadb-recover-recover-False"
)
@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (claim, "flag"),
        (settle, "settle"),
        (settle, "settle_at_once"),
        (recover, "recover"),
        (LaneQueue, "next"),
    ],
    ids=lambda one: getattr(one, "__name__", one).rpartition(".")[2],
)
def test_an_instance_without_memory_waits_for_it_and_blames_no_message(
    app, monkeypatch, caplog, module, name, answered
):
    """answered: the statement has been sent, and its answer finds no memory."""
    real, failed = getattr(module, name), list[int]()
    times = 1 if name == "recover" else 3

    def hungry(*args: Any, **more: Any) -> Any:
        found = real(*args, **more) if answered and name != "next" else None
        if len(failed) < times:
            failed.append(1)
            raise MemoryError
        return real(*args, **more) if found is None else found

    ran: list[Any] = []

    @app.handler("t", transactional=name == "settle_at_once", wait=wait_none())
    def handle(msg: Message) -> None:
        ran.append(msg.payload)
        if msg.payload == "fails" and ran.count("fails") == 1:
            raise ValueError("once")

    send(app, "a", payload="dead")
    edit(app, *Table(app).column("msg_id"), status=1, claimed_by="who was killed")
    send(app, "b", payload="done")
    send(app, "c", payload="fails")
    monkeypatch.setattr(module, name, hungry)
    monkeypatch.setattr("msgworker.instance.role.HUNGRY_SECONDS", 0.1)
    app.drain(threads=1, linger=0)
    app.drain(threads=1, linger=0)
    assert len(failed) == times
    assert sorted(set(ran)) == ["dead", "done", "fails"]
    # A transaction is rolled back, and its handler runs again, unless the statement has committed.
    committed = answered and app.engine.dialect.name == "postgresql"
    assert len(ran) == 4 + (times if name == "settle_at_once" and not committed else 0)
    seen = Table(app).rows("status", "error_try_times", "crash_times")
    assert seen == [(2, 1, 1), (2, 0, 0), (2, 1, 0)]
    assert "died while it held this message" in str(Table(app).column("last_error")[0])
    assert not [one for one in caplog.messages if "not written" in one or "refused" in one]


@pytest.mark.quick("gbk")
@pytest.mark.parametrize(
    ("charset", "stored"),
    [
        ("utf8mb3", "ValueError: 价 € \\U0001f4b6"),
        ("latin1", "ValueError: \\u4ef7 € \\U0001f4b6"),
        ("gbk", "ValueError: 价 \\u20ac \\U0001f4b6"),
        ("ascii", "ValueError: \\u4ef7 \\u20ac \\U0001f4b6"),
        ("koi8r", "ValueError: \\u4ef7 \\u20ac \\U0001f4b6"),
    ],
)
def test_an_error_that_the_column_has_no_characters_for_is_escaped(
    mariadb, charset, stored, caplog
):
    app = created(App(mariadb.engine()))
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            f"ALTER TABLE msgworker_message MODIFY last_error VARCHAR(2000) CHARACTER SET {charset}"
        )
    app = App(mariadb.engine())

    @app.handler("t", max_tries=1)
    def fails(msg: Message) -> None:
        raise ValueError("价 € 💶")

    ids = send(app, *range(5))
    assert app.drain(linger=0).failed == 5
    texts = Table(app).column("last_error")
    assert [text.partition(" [")[0] for text in texts] == [stored] * 5
    assert "trying again" not in caplog.text
    assert not [r for r in caplog.records if "1366" in r.getMessage()]
    app.ops.rerun(ids)
    app.ops.discard(ids, reason="价 € 💶")
    said = stored.removeprefix("ValueError: ")
    assert all(text.endswith(said) for text in Table(app).column("last_error"))


@pytest.fixture
def latin1(postgresql):
    """An App on a PostgreSQL database in LATIN1."""
    url = sa.make_url(postgresql.url)
    name = f"{url.database}_l"
    admin = postgresql.engine().execution_options(isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.exec_driver_sql(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
        )
    app = created(App(url.set(database=name), backoff_seconds=0))
    try:
        yield app
    finally:
        dispose_all()
        with admin.connect() as conn:
            conn.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_handler_of_a_topic_that_no_message_can_have_is_refused_at_the_start(latin1):
    latin1.add_handler("客户", lambda msg: None)
    with pytest.raises(ConfigError, match=r"topic '客户' .* has no characters for it"):
        latin1.drain(linger=0, time_limit=5)


def test_what_the_database_has_no_characters_for_is_escaped_in_errors_and_values(latin1):
    runs: list[str] = []

    def item(one: str) -> dict[str, str]:
        runs.append(one)
        if one == "bad":
            raise ValueError("é 日")
        return {"v": "é 日 💶"}

    def handle(msg: Message, ctx: Context) -> None:
        got = ctx.fan_out(item, ["ok", "bad"], threads=1)
        assert got.values == [{"v": "é 日 💶"}, None]
        got.raise_for_failed()

    latin1.add_handler("t", handle, wait=wait_none())
    latin1.add_handler("plain", lambda msg: 1 / int("日"), max_tries=1)
    (msg_id,) = send(latin1, "a")
    (plain,) = send(latin1, "b", topic="plain")
    latin1.drain(linger=0)
    assert runs == ["ok", "bad", "bad", "bad"]
    assert latin1.ops.items(msg_id)[0].error.startswith("ValueError: é \\u65e5")
    (tried,) = latin1.ops.show(plain).tries
    assert tried.error.startswith("ValueError: invalid literal for int() with base 10: '\\u65e5'")
    assert "lambda msg" in tried.traceback
    assert latin1.ops.discard([plain], reason="日", actor="客").changed == 1
    (entry,) = latin1.ops.audit(kind="discard")
    assert (entry.actor, entry.reason) == ("\\u5ba2", "\\u65e5")
    latin1.every("1h", topic="t", name="hourly")
    timer(latin1).ended()
    assert latin1.ops.pause_schedule("hourly", reason="日", actor="客") == 1
    (paused,) = latin1.ops.schedules()
    assert (paused.paused_by, paused.paused_reason) == ("\\u5ba2", "\\u65e5")


def test_a_message_about_a_dead_one_has_its_error_with_escapes(latin1):
    told: list[str] = []
    latin1.add_handler("t", lambda msg: 1 / int("日"), max_tries=1, on_dead="dead")
    latin1.add_handler("dead", lambda msg: told.append(msg.payload["error"]))
    send(latin1, "a")
    assert latin1.drain(linger=0).done == 1
    assert "base 10: '\\u65e5'" in told[0]
    latin1.add_handler("u", lambda msg: None, on_done="客")
    with pytest.raises(ConfigError, match="on_done or on_dead: the topic is '客'"):
        latin1.drain(linger=0)


@pytest.mark.requires("unique_keys")
def test_what_the_database_has_no_characters_for_is_refused_before_it_is_sent(latin1):
    (wrong,) = send(latin1, "a", topic="items")
    latin1.add_handler("items", lambda msg, ctx: ctx.fan_out(str, ["客"]), max_tries=1)
    latin1.drain(linger=0)
    assert "the key '\\u5ba2' of item 0 has characters" in latin1.ops.show(wrong).last_error
    with latin1.engine.begin() as conn:
        for options in ({"topic": "客"}, {"unique_key": "客"}, {"object_id": "客"}):
            with pytest.raises(ConfigError, match="characters of LATIN1 only"):
                latin1.send(conn, **{"topic": "t"} | options)
        with pytest.raises(PayloadError, match="characters of LATIN1 only"):
            latin1.send(conn, "t", "客")
        with pytest.raises(ConfigError, match="characters that the database does not keep"):
            latin1.job("客", conn=conn)
        latin1.send(conn, "é", "é", unique_key="é", object_id="é")


def test_a_name_that_the_database_has_no_characters_for_is_refused_in_words(latin1):
    named = App(latin1.engine, label="客")
    named.add_handler("t", lambda msg: None)
    for act in (
        lambda: latin1.ops.find(topic="客"),
        lambda: latin1.ops.find(error="客"),
        lambda: latin1.ops.pause("客"),
        lambda: named.drain(linger=0),
    ):
        with pytest.raises(ConfigError, match="no characters for '客'"):
            act()


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_lane_that_an_error_of_ours_leaves_with_its_thread_holds_up_no_other(
    sqlite, monkeypatch, caplog, done
):
    """Its message is recovered when the lease of the id that claimed it is over."""
    app = created(App(sqlite.url, backoff_seconds=0))
    handle, fail, ran = Caller.handle, HandlerThreads.fail, list[Any]()

    def no_memory(self: Caller, lane: Any, *args: Any) -> None:
        if done:
            handle(self, lane, *args)
        if lane.row.object_id == "a" and not failed:
            failed.append("handle")
            raise MemoryError
        if not done:
            handle(self, lane, *args)

    def fails(self: HandlerThreads, *args: Any) -> None:
        if len(failed) < 2:
            failed.append("fail")
            raise MemoryError
        fail(self, *args)

    failed: list[str] = []
    monkeypatch.setattr(Caller, "handle", no_memory)
    monkeypatch.setattr(HandlerThreads, "fail", fails)
    monkeypatch.setattr("msgworker.instance.role.HUNGRY_SECONDS", 0.1)
    app.add_handler("t", lambda msg: ran.append(msg.object_id))
    send(app, *"aabbcc")
    report = app.drain(threads=2, linger=0, time_limit=30)
    assert (report.done, report.left, report.stopped) == (4, 2, False)
    assert "could not be settled or released" in caplog.text
    expire(app)
    assert app.drain(threads=2, linger=0, time_limit=30).left == 0
    assert sorted(ran) == sorted("aabbcc" + "a" * done)
    assert Table(app).rows("status", "crash_times")[0] == (2, 1)


def test_messages_that_cannot_be_counted_are_done_all_the_same(sqlite, monkeypatch, caplog):
    def odd(*args: Any) -> Any:
        raise ValueError("odd")

    app = created(App(sqlite.url))
    app.add_handler("t", lambda msg: None)
    send(app, *"aaabbb")
    monkeypatch.setattr(Spans, "of", odd)
    assert app.drain(threads=2, linger=0, time_limit=30).left == 0
    assert Table(app).statuses == [2] * 6
    assert "settled as done, but not counted: ValueError: odd" in caplog.text
