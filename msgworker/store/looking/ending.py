"""How dead messages have ended: from their stored tries and from the audit.

The number of tries in a row only shows that none is left: it is the same for a message that was
rejected at its first try, or discarded, and for one that has failed each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.dialects import Trouble, trouble
from msgworker.message import State
from msgworker.store.changing import audit
from msgworker.store.changing.cancelling import CANCELLED
from msgworker.store.changing.change import DISCARDED
from msgworker.store.looking.info import Ending, How, MessageInfo
from msgworker.store.settling import tries
from msgworker.store.settling.tries import Kind, Try
from msgworker.table import Tables

ORDINALS = ("first", "second", "third", "fourth", "fifth")


class _Act(NamedTuple):
    """An operation on a message: a rerun or a discard."""

    kind: str
    actor: str
    reason: str | None
    at: datetime


def told(conn: Connection, t: Tables, infos: Iterable[MessageInfo]) -> list[MessageInfo]:
    """The same messages, the dead ones with how they have ended. `conn` commits each statement."""
    infos = list(infos)
    dead = [info.msg_id for info in infos if info.status is State.DEAD]
    if not dead:
        return infos
    failed = tries.of(conn, t, dead)
    acts = _acts(conn, t, dead)
    return [
        replace(info, ending=_ending(info, failed.get(info.msg_id, []), acts.get(info.msg_id, [])))
        if info.status is State.DEAD
        else info
        for info in infos
    ]


def _ending(info: MessageInfo, failed: Sequence[Try], acts: Sequence[_Act]) -> Ending:
    reruns = [act.at for act in acts if act.kind == "rerun"]
    since = [one for one in failed if not reruns or one.ended_at >= reruns[-1]]
    number = since[-1].number - since[0].number + 1 if since else 0
    if since and not reruns:
        number = since[-1].number  # older ones may have been dropped
    discards = [act for act in acts if act.kind == "discard"]
    if discards and not any(one.ended_at > discards[-1].at for one in since):
        by = f"{DISCARDED}{discards[-1].actor}"
        return Ending(How.DISCARDED, f"{by}: {discards[-1].reason}", number)
    if (info.last_error or "").startswith(DISCARDED):
        return Ending(How.DISCARDED, info.last_error or "", None)
    if (info.last_error or "").startswith(CANCELLED):
        return Ending(How.CANCELLED, info.last_error or "", number)
    if not since:
        return Ending(How.UNKNOWN, "no tries left", None)
    if since[-1].kind == Kind.REJECTED:
        return Ending(How.REJECTED, f"rejected at its {_ordinal(number)} try", number)
    crashes = sum(one.kind == Kind.CRASH for one in since)
    text = f"dead after {number} failed {'try' if number == 1 else 'tries'}"
    if crashes:
        text += f", {crashes} of them by a crash"
    return Ending(How.FAILED, text, number)


def _ordinal(number: int) -> str:
    return ORDINALS[number - 1] if number <= len(ORDINALS) else f"{number}th"


def _acts(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, list[_Act]]:
    """The operations on messages, the oldest first; empty if the audit cannot be read."""
    found: defaultdict[int, list[_Act]] = defaultdict(list)
    if {audit.operations(t).name, audit.lines(t).name} & t.missing:
        return found

    def build() -> sa.Select[Any]:
        o, a = audit.operations(t), audit.lines(t)
        columns: list[Any] = [a.c.msg_id, o.c.kind, o.c.actor, o.c.reason, a.c.changed_at]
        query = sa.select(*columns).join_from(a, o, a.c.op_id == o.c.op_id)
        of_ours = (o.c.table_name == t.spec.bare_name, o.c.kind.in_(("rerun", "discard")))
        return query.where(t.among(a.c.msg_id), *of_ours).order_by(a.c.op_id)

    size = t.dialect.max_ids
    try:
        for start in range(0, len(ids), size):
            params = {"mw_ids": list(ids[start : start + size])}
            for msg_id, *act in conn.execute(t.built("acts_of", build), params):
                found[msg_id].append(_Act(*act))
    except DBAPIError as error:
        if trouble(error) is not Trouble.REFUSED:
            raise
    return found
