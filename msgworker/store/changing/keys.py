"""Unique keys of messages that are set to new again: whose key another message has taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.table import Tables
from msgworker.table.uniqueness import able, counts, holds


def taken(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, int]:
    """Those of the ended messages whose key another one holds, or an earlier one of them would
    hold: msg_id -> the other one."""
    if not able(t) or not ids:
        return {}

    def build() -> sa.Select[Any]:
        c, other = t.cols(), t.cols(t.message.alias("h"))
        assert c.unique_key is not None
        held = sa.select(sa.func.min(other.msg_id)).where(*holds(t, other, c.unique_key))
        query = sa.select(c.msg_id, c.unique_key, held.scalar_subquery())
        zero: sa.ColumnElement[int] = sa.literal_column("0")
        ended = sa.case((counts(c), sa.literal_column("1")), else_=zero) == zero  # also if NULL
        return query.where(t.among(c.msg_id), c.unique_key.is_not(None), ended).order_by(c.msg_id)

    found: dict[int, int] = {}
    first: dict[str, int] = {}
    size = t.dialect.max_ids
    for start in range(0, len(ids), size):
        part = list(ids[start : start + size])
        for msg_id, key, other in conn.execute(t.built("keys_taken", build), {"mw_ids": part}):
            holder = first.setdefault(key, msg_id) if other is None else other
            if holder != msg_id:
                found[msg_id] = holder
    return found


def give_up(conn: Connection, t: Tables, ids: Sequence[int]) -> None:
    """Take their keys from messages, in the caller's transaction."""

    def build() -> sa.Update:
        without = {t.names["unique_key"]: sa.null()}
        return sa.update(t.message).where(t.among(t.cols().msg_id)).values(without)

    size = t.dialect.max_ids
    for start in range(0, len(ids), size):
        part = list(ids[start : start + size])
        conn.execute(t.built("keys_given_up", build), {"mw_ids": part})
