"""Planted bugs of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from msgworker.instance.running import batch as batchtransaction
from msgworker.store import settle as batch
from msgworker.store.settle import OutOfDate, Share
from msgworker.table import Tables


@contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    before = target.__dict__[name]
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


def counts_ignored() -> AbstractContextManager[None]:
    """A head that is gone, or a follower, is not noticed."""
    changed = batch._changed

    def all_changed(conn: Connection, t: Tables, statement: Any, ids: Any, params: Any) -> int:
        changed(conn, t, statement, ids, params)
        return len(ids)

    return replaced(batch, "_changed", all_changed)


def half_is_committed() -> AbstractContextManager[None]:
    """The lanes that are still ours are committed, with the writes for the others."""
    settle = batch.settle_batch

    def each(conn: Connection, t: Tables, shares: Sequence[Share], **how: Any) -> set[int]:
        flagged: set[int] = set()
        for share in shares:
            try:
                with conn.begin_nested():
                    flagged |= settle(conn, t, [share], **how)
            except (OutOfDate, IntegrityError):
                pass
        return flagged

    return replaced(batchtransaction.store, "settle_batch", each)
