"""What tests of the contract look at: rows, intervals of handlers; and waiting with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, Message
from msgworker.clock import clock
from msgworker.instance.instance import Instance

PATIENCE_SECONDS = 60.0


def until(
    condition: Callable[[], Any],
    what: str,
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.02,
) -> Any:
    """Wait until the condition holds and return its value; fail with `what` after the deadline.

    every: seconds between the first looks; up to five times as long where it takes time.
    """
    deadline = time.monotonic() + seconds
    pause, longest = threading.Event(), 5 * every
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        pause.wait(every)
        every = min(1.2 * every, longest)
    return found


class Table:
    """The rows of an App's message table, read from outside."""

    def __init__(self, app: App) -> None:
        self.app = app

    def rows(self, *roles: str) -> list[Any]:
        """The columns of these roles, by msg_id."""
        t = self.app.tables
        columns = [t.message.c[t.names[role]] for role in roles]
        query = sa.select(*columns).order_by(t.message.c[t.names["msg_id"]])
        with self.app.engine.connect() as conn:
            return [tuple(row) for row in conn.execute(query)]

    def one(self, *roles: str) -> Any:
        """The same of the only row; a single role gives its bare value."""
        (row,) = self.rows(*roles)
        return row[0] if len(roles) == 1 else row

    def column(self, role: str) -> list[Any]:
        return [row[0] for row in self.rows(role)]

    @property
    def statuses(self) -> list[Any]:
        return self.column("status")

    def edit(self, where: sa.ColumnElement[bool] | None = None, **roles: Any) -> int:
        """An UPDATE by hand; returns the rows matched."""
        t = self.app.tables
        change = sa.update(t.message).values({t.names[r]: v for r, v in roles.items()})
        if where is not None:
            change = change.where(where)
        with self.app.engine.begin() as conn:
            return int(conn.execute(change).rowcount)

    def where(self, **roles: Any) -> sa.ColumnElement[bool]:
        t = self.app.tables
        return sa.and_(*(t.message.c[t.names[r]] == v for r, v in roles.items()))


def send(
    app: App, *objects: Any, topic: str = "t", payload: Any = None, **options: Any
) -> list[Any]:
    """Send one message per object, in one transaction; returns their msg_ids."""
    with app.engine.begin() as conn:
        return [
            app.send(conn, topic, payload, object_id=object_id, **options) for object_id in objects
        ]


@dataclass
class Watch:
    """Intervals of handlers: did two of one object overlap, did they start in order."""

    spans: list[tuple[Any, int, float, float]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    now: int = 0
    most: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, msg: Message[Any]) -> None:
        self.saw(msg.object_id, msg.msg_id)

    def saw(self, object_id: Any, msg_id: int, work: Callable[[], Any] | None = None) -> None:
        with self._lock:
            self.threads.add(threading.get_ident())
            self.now += 1
            self.most = max(self.most, self.now)
            begin = time.monotonic()
        try:
            if work is not None:
                work()
        finally:
            with self._lock:
                self.now -= 1
                self.spans.append((object_id, msg_id, begin, time.monotonic()))

    @property
    def ids(self) -> list[int]:
        """In order of start."""
        return [span[1] for span in sorted(self.spans, key=lambda s: s[2])]

    def of(self, object_id: Any) -> list[int]:
        found = [span for span in self.spans if span[0] == object_id]
        return [span[1] for span in sorted(found, key=lambda s: s[2])]

    def assert_exclusive(self) -> None:
        """No two handlers of one object at once."""
        last: dict[Any, tuple[Any, int, float, float]] = {}
        for span in sorted(self.spans, key=lambda s: s[2]):
            before = last.get(span[0])
            if span[0] is not None and before is not None:
                assert before[3] <= span[2], f"{before} and {span} overlap"
            last[span[0]] = span

    def assert_in_order(self, expected: Sequence[Any] | None = None) -> None:
        """Each object by msg_id, each message once; `expected`: all of these and no others."""
        for object_id in {span[0] for span in self.spans} - {None}:
            ids = self.of(object_id)
            assert ids == sorted(set(ids)), f"object {object_id}: {ids}"
        if expected is not None:
            assert sorted(self.ids) == sorted(expected)


def loses_its_lease(one: Instance, new_id: str = "new-self") -> None:
    """It goes on under this id, of which it believes that it has a lease."""
    one.runtime.forget_all(new_id)
    one.runtime.identity.registered(clock() + 3600.0)


def fetch(one: Instance) -> int:
    """One round of the claim loop that looks at everything afresh."""
    one.finder.search.forget()
    return one.fetcher.run_once()


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Run in a thread; the function returned joins it, and returns or raises what came out."""
    out: list[Any] = []
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            out.append(work())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> Any:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), f"{work} has not ended"
        if trouble:
            raise trouble[0]
        return out[0]

    return join


def assert_facts(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """This was logged, and every record about one message names it."""
    about_one = [r for r in caplog.records if r.getMessage().startswith("message ")]
    assert any(text in r.getMessage() for r in about_one)
    facts = ("instance", "msg_id", "object_id", "topic", "try")
    assert [r.getMessage() for r in about_one if not all(hasattr(r, f) for f in facts)] == []
