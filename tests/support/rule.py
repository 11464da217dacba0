"""Apps of several rules on one database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, Message, MessageTable, Reject
from msgworker.schema import rule
from msgworker.schema.rule import Rule
from tests.support.rows import Table, send
from tests.support.waiting import launched

THREE = Rule(3, "continue")
FIVE = Rule(5, "continue")


class Crm:
    """Apps of several rules on one database, whose handlers note what runs."""

    def __init__(self, make_app: Any) -> None:
        self._make = make_app
        self.ran: list[tuple[str, int]] = []

    def app(
        self, max_tries: int = 3, on_dead: str = "continue", *, schema: bool = True, **more: Any
    ) -> App:
        """Topics: ok; reject, at once; fail, always."""
        table = MessageTable(max_tries=max_tries, on_dead=on_dead, **more)
        app: App = self._make(table=table)
        app.add_handler("ok", self._note)
        app.add_handler("reject", self._reject)
        app.add_handler("fail", self.fail, wait=wait_none())
        if schema:
            app.create_schema()
        return app

    def _note(self, msg: Message[Any]) -> None:
        self.ran.append((msg.topic, msg.msg_id))

    def _reject(self, msg: Message[Any]) -> None:
        self._note(msg)
        raise Reject("no such customer")

    def fail(self, msg: Message[Any]) -> None:
        self._note(msg)
        raise ValueError("broken")

    def times(self, msg_id: int) -> int:
        return sum(1 for _, one in self.ran if one == msg_id)


def drain(app: App) -> Any:
    return app.drain(linger=0, threads=2)


def recorded(app: App) -> Rule | None:
    with app.engine.connect() as conn:
        return rule.read(conn, app.tables)


def rows(app: App) -> list[tuple[int, int]]:
    """(status, tries) by msg_id."""
    return Table(app).rows("status", "error_try_times")


def write(app: App, *states: tuple[int, int]) -> list[int]:
    """Messages of objects of their own with these statuses and tries."""
    ids = send(app, *(f"o{i}" for i in range(len(states))), topic="ok")
    table = Table(app)
    for msg_id, (status, tries) in zip(ids, states, strict=True):
        table.edit(table.where(msg_id=msg_id), status=status, error_try_times=tries)
    return ids


def states(app: App) -> list[str]:
    """How `show` words it, by msg_id."""
    return [str(one.status) for one in app.ops.find()]


def written(text: str) -> Rule:
    """3b: three tries, and a dead one blocks."""
    return Rule(int(text[0]), "block" if text.endswith("b") else "continue")


def bare(crm: Crm, app: App, max_tries: int, on_dead: str = "continue") -> App:
    """An App of another rule that has only made the indexes for it, as of a DBA's script."""
    with launched(app.worker(threads=1)):
        other = crm.app(max_tries, on_dead)
    assert recorded(other) != Rule(max_tries, on_dead)
    return other


def expire(app: App) -> None:
    t = app.tables.lease
    past = datetime.now(UTC) - timedelta(minutes=5)
    with app.engine.begin() as conn:
        conn.execute(sa.update(t).where(t.c.kind == "instance").values(expires_at=past))
