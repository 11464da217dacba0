"""The functions of store/, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from msgworker import App
from msgworker.message import Outcome, Settled, Settlement
from msgworker.store import claim, done, settle
from msgworker.store.candidates import Candidate
from msgworker.store.rows import Row
from tests.support import flags
from tests.support.flags import ME
from tests.support.rows import Table

OTHER = "other-2"


class Store:
    """The store functions on an App's table, each in a transaction of its own."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.t = app.tables
        self.table = Table(app)

    def __call__(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with self.app.engine.begin() as conn:
            return act(conn, self.t, *args, **options)

    def row(self, msg_id: int, **roles: Any) -> None:
        """Edit one row by hand."""
        assert self.table.edit(self.table.where(msg_id=msg_id), **roles) == 1

    def seen(self, *ids: int) -> list[Candidate]:
        return flags.seen(self.app, *ids)

    def flag(self, *candidates: Candidate, me: str = ME) -> list[int]:
        return [row.msg_id for row in self(claim.flag, candidates, me=me)]

    def flagged(self, *ids: int, me: str = ME) -> list[Row]:
        return flags.flagged(self.app, *ids, me=me)

    def state(self, msg_id: int) -> tuple[Any, ...]:
        c = self.t.cols()
        query = sa.select(c.status, c.error_try_times, c.claimed_by).where(c.msg_id == msg_id)
        with self.app.engine.connect() as conn:
            return tuple(conn.execute(query).one())

    def settle(self, *batch: Settlement, me: str = ME) -> dict[int, Settled]:
        """As the settler does it: together, and one by one if that cannot be."""
        try:
            return self(settle.settle, batch, me=me)
        except (done.FlagMissing, sa.exc.IntegrityError):
            return {one.msg_id: self(settle.settle_one, one, me=me) for one in batch}


def ids_of(found: Sequence[Any]) -> list[int]:
    return [one[0] for one in found]


def bad(msg_id: int, outcome: Outcome = Outcome.FAILED, **more: Any) -> Settlement:
    return Settlement(msg_id, outcome, error="E: x", **more)
