"""Planted bugs of unique keys: what must turn the checker red."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement

from msgworker.store import send
from msgworker.table import Cols, Tables, tables
from proof.simulation.batch_plants import replaced


def free_between_tries() -> AbstractContextManager[None]:
    """A message that has failed does not hold its key until its next try."""

    def counts(c: Cols) -> ColumnElement[bool]:
        assert c.unique_key is not None
        running_or_new = c.status.in_([sa.literal_column("0"), sa.literal_column("1")])
        return sa.and_(c.unique_key.is_not(None), running_or_new)

    patches = ExitStack()
    patches.enter_context(replaced(tables, "counts", counts))
    patches.enter_context(replaced(send, "counts", counts))
    return patches


def held_by_the_dead() -> AbstractContextManager[None]:
    """What ends a message does not say when."""
    values = Tables.values

    def endless(self: Tables, **roles: Any) -> dict[str, Any]:
        return values(self, **{k: v for k, v in roles.items() if k != "finished_at"})

    return replaced(Tables, "values", endless)
