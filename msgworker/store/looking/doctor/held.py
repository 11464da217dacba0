"""Messages left at 1: without an owner, or of dead instances where no other lives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker import dialects
from msgworker.counted import plural
from msgworker.dialects import is_overtime, seconds_since
from msgworker.store.looking import left, window
from msgworker.store.looking.doctor.finding import Finding, advised, fine
from msgworker.store.looking.doctor.patient import Patient
from msgworker.store.looking.instances import InstanceInfo, Life, instances
from msgworker.store.recovering.recover import flagged_at, giving_back
from msgworker.store.tables import ddl_script
from msgworker.table import Tables

MOST = 100_000


def held(p: Patient) -> list[Finding]:
    """What is left at 1, what it holds back, and the command that gives it back."""
    if p.live is None or not _there(p, p.live.lease):
        return []
    if not _indexed(p.live):  # it would read the whole table; the indexes are needed first
        return []
    beside = (*ddl_script.ops_tables(p.live), *ddl_script.feature_tables(p.live))
    lacking = frozenset(t.name for t in beside if not _there(p, t))
    t = replace(p.live, missing=lacking)
    try:
        found = list(_found(p, t))
    except DBAPIError as error:
        if is_overtime(error):
            raise
        return []  # no right to read, or a column is missing: another check tells
    return found or [fine("held", "every processing message belongs to a live instance")]


def _found(p: Patient, t: Tables) -> Iterator[Finding]:
    who = instances(p.conn, t)
    lives = any(one.life is Life.LIVE and one.other_table is None for one in who)
    yield from _of_nobody(p, t, lives)
    if not any(one.works for one in who):
        yield from _of_the_dead(who)


def _indexed(t: Tables) -> bool:
    named = {t.spec.index_name(suffix) for suffix in ("guard", "object")}
    return t.indexes is not None and named <= t.indexes


def _there(p: Patient, table: sa.Table) -> bool:
    return bool(dialects.is_there(p.inspector, table))


def _of_nobody(p: Patient, t: Tables, lives: bool) -> Iterator[Finding]:
    c = t.cols()
    if c.claimed_by is None and lives:  # they may be its own
        return
    ids = window.running(t)
    age: Any = sa.null()
    dated: Any = sa.literal_column("0")
    ages = t.has("claimed_at") or t.has("created_at")
    if ages:
        age = seconds_since(sa.func.min(flagged_at(c)))
        dated = sa.func.count(flagged_at(c))
    query = sa.select(sa.func.count(), dated, age)
    query = query.select_from(ids.join(t.message, ids.c.i == c.msg_id))
    if c.claimed_by is not None:
        query = query.where(c.claimed_by.is_(None))
    count, known, oldest = p.conn.execute(query).one()
    if not count:
        return
    waiting = left.left(p.conn, t, left.Asked(topics=None), most=MOST)
    behind = waiting.by.get(left.Waits.NOBODY, count) - count
    text = f"{_messages(count)} at 1 without an owner"
    if oldest is not None:
        text += f", the oldest for {float(oldest) / 3600:.1f} h at most"
    if ages and known < count:
        text += f", {'' if known == 0 else f'{count - known:,} of them '}of unknown age"
    text += f", and {_messages(behind)} waiting behind" if behind > 0 else ""
    give = giving_back(dated=known == count)
    text += f": if no foreign consumer works on them any more, {give} gives them back"
    yield advised("held", text)


def _messages(count: int) -> str:
    return plural(count, "message")


def _of_the_dead(who: list[InstanceInfo]) -> Iterator[Finding]:
    dead = [one for one in who if one.running and one.life not in (Life.LIVE, Life.FOREIGN)]
    if dead:
        count = sum(one.running for one in dead)
        text = (
            f"{_messages(count)} in the hands of the dead ({dead[0].instance_id}, say), and no "
            "instance lives: start one, which gives them back, or "
            f"`msgworker release {dead[0].instance_id}`"
        )
        yield advised("held", text)
