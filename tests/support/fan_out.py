"""Items that note that they ran, a table of effects, the records."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, Context, FanOut, Message, Report
from tests.support.rows import send

DONE, FAILED = 2, -1  # of records
Fan = Callable[[Context], Any]


def double(n: int) -> int:
    """An item that other processes can run."""
    return 2 * n


def refuse_odd(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n


def die(n: int) -> None:
    raise SystemExit(f"item {n} ends its process")


class Odd(Exception):
    """It cannot be unpickled, as most errors with other arguments than their text."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")


class OddItem:
    """It can be pickled, and not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Odd, ("of an item",)


def odd(item: Any) -> Any:
    """An item that other processes can run, with what cannot travel."""
    if item == "raises":
        raise Odd(17, "account closed")
    if item == "hides":
        raise ValueError(threading.Lock())
    return OddItem() if item == "returns" else item


@dataclass
class Ran:
    """Which items ran, in order of their starts."""

    items: list[Any] = field(default_factory=list)
    fails: set[Any] = field(default_factory=set)
    now: int = 0
    most: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, item: Any, *rest: Any) -> Any:
        with self._lock:
            self.items.append(item)
        if item in self.fails:
            raise ValueError(f"item {item} fails")
        return item

    @property
    def counts(self) -> Counter[Any]:
        return Counter(self.items)


class Trying:
    """One message whose handler is `fan`: each `drain` gives what its tries returned or raised."""

    def __init__(self, app: App, fan: Fan, *, tries: int = 1, **options: Any) -> None:
        self.app = app
        self.results: list[FanOut] = []
        self.errors: list[BaseException] = []

        def handle(msg: Message[Any], ctx: Context) -> None:
            if ctx.attempt > tries:
                return
            try:
                found = fan(ctx)
            except BaseException as error:
                self.errors.append(error)
                raise
            if isinstance(found, FanOut):
                self.results.append(found)

        app.add_handler("fan", handle, wait=wait_none(), **options)
        (self.msg_id,) = send(app, None, topic="fan")

    def drain(self, **options: Any) -> Report:
        return self.app.drain(**{"linger": 0, "threads": 1, **options})

    @property
    def result(self) -> FanOut:
        assert not self.errors, self.errors
        (result,) = self.results
        return result

    @property
    def error(self) -> BaseException:
        assert not self.results, self.results
        (error,) = self.errors
        return error


def run(app: App, fan: Fan, **options: Any) -> FanOut:
    """The result of a fan-out in a message of its own."""
    trying = Trying(app, fan, **options)
    assert trying.drain().failed == 0
    return trying.result


def refused(app: App, fan: Fan, **options: Any) -> str:
    """The text of the error a fan-out ends with in its only try."""
    trying = Trying(app, fan, **options)
    trying.drain()
    return f"{type(trying.error).__name__}: {trying.error}"


def records(app: App, msg_id: int | None = None) -> dict[str, tuple[Any, ...]]:
    """key -> (status, tries, value, error) of a message, or of the only one that has any."""
    c = app.tables.item.c
    query = sa.select(c.item_key, c.status, c.tries, c.item_value, c.last_error)
    if msg_id is not None:
        query = query.where(c.msg_id == msg_id)
    with app.engine.connect() as conn:
        return {row[0]: tuple(row[1:]) for row in conn.execute(query)}


EFFECT = sa.Table(
    "fan_effect",
    sa.MetaData(),
    sa.Column(
        "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), primary_key=True
    ),
    sa.Column("item", sa.String(100), nullable=False),
)


def write_effect(item: Any, conn: sa.Connection) -> None:
    conn.execute(EFFECT.insert().values(item=str(item)))


def effects(app: App) -> Counter[str]:
    with app.engine.connect() as conn:
        return Counter(conn.scalars(sa.select(EFFECT.c.item)))


def take_over(app: App, msg_id: int) -> None:
    """What a recovery does to the row of an instance that was declared dead."""
    t = app.tables
    change = sa.update(t.message).where(t.message.c.msg_id == msg_id)
    with app.engine.begin() as conn:
        conn.execute(change.values(status=-1, error_try_times=1, claimed_by=None))
