"""What is left unfinished, by what it waits for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import BindParameter, ColumnElement, Connection, bindparam

from msgworker.counted import many
from msgworker.db.clock import real_instant, seconds_since
from msgworker.db.connections import fetch
from msgworker.db.types import beginning, bytewise
from msgworker.message import State, Status, topic_of
from msgworker.payload import shown
from msgworker.queries import messages
from msgworker.queries.explain import Asked, Facts, Verdict, Waits, World, sentence, verdict
from msgworker.queries.instances import InstanceInfo, Life, why_not
from msgworker.store import controls, jobs
from msgworker.store.bounded import Capped
from msgworker.store.recover import undated
from msgworker.store.rows import from_indexes
from msgworker.table.columns import JOB, Cols
from msgworker.table.tables import ONE, ZERO, Tables, job_msg_id, lit

# A message waits for what holds its object: the running message if there is one, else the head.

MOST = 200_000
"""The most entries of the object index that are read; of more only a part is."""
FAILED_SCAN = 10_000
"""The most failed messages of a job, dead ones among them, whose rows are read for those that wait
for their next try."""


class Example(NamedTuple):
    """The lowest message that others wait for, or that waits itself; text: why it does not run.
    beside: that it is not of the job that was asked for, and who handles it; else ""."""

    msg_id: int
    claimed_by: str | None
    text: str
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """total: unfinished messages. by: how many wait for what; together fewer than the total where
    only a part of very many was looked at. due_heads: how many of those that are due have none of
    their object before them. next_seconds: until the first retry, or the first other
    instant if no retry waits. holders: the other instances that have messages and whose lease has
    not ended, the first to end first. job: whose messages alone were counted; dead_awaited: the
    dead ones that it waits for (on_dead="wait")."""

    total: int = 0
    by: dict[Waits, int] = field(default_factory=dict)
    due_heads: int = 0
    examples: dict[Waits, Example] = field(default_factory=dict)
    next_seconds: float | None = None
    holders: tuple[InstanceInfo, ...] = ()
    job: int | None = None
    dead_awaited: Capped | None = None

    @property
    def job_waits(self) -> list[str]:
        """What to do about dead messages that the job waits for, if no dead one is in `by`."""
        if not self.dead_awaited or self.by.get(Waits.DEAD):
            return []
        text = f"job {self.job} waits for {many(self.dead_awaited, 'dead message')}: `msgworker "
        text += f"rerun --job {self.job}` tries them again, `msgworker discard --job {self.job} "
        return [f"{text}--status dead --reason ...` gives them up"]

    @property
    def lease_seconds(self) -> float | None:
        """Until the last of the leases of `holders` ends; None if there is none."""
        return max((one.left_seconds or 0.0 for one in self.holders), default=None)


def left(conn: Connection, t: Tables, asked: Asked, *, most: int = MOST) -> Left:
    """Count what is unfinished, by reason; one query if nothing is. t: see `asking_jobs`."""
    total = messages.unfinished(conn, t) if asked.job is None else _of_job(conn, t, asked.job)
    awaited = None if asked.job is None else jobs.awaited(conn, t, asked.job)
    if total == 0:
        return Left(job=asked.job, dead_awaited=awaited)
    world = World.read(conn, t, asked)
    cut = total > most
    role = None if asked.within is None else asked.within.by
    statement = t.built(("left", cut, role), partial(_statement, t, cut, role))
    params: dict[str, Any] = {"most": most} if cut else {}
    if asked.within is not None:
        params["mw_slice"] = list(asked.within.values)
    groups = [_Group._make(row) for row in fetch(conn, statement, params)]
    found: defaultdict[Waits, list[tuple[_Group, Verdict]]] = defaultdict(list)
    for one in groups:
        why = verdict(_facts_of(one, _unseen(asked)), world)
        assert why.left_as is not None  # it is unfinished, and the head of its object
        found[why.left_as].append((one, why))
    by = {why: sum(int(one.number) for one, _ in found[why]) for why in Waits if why in found}
    dated = Waits.NOBODY not in by or not undated(conn, t, limit=1)
    examples, soon = {}, dict[Waits, list[float]]()
    for waits, rows in found.items():
        if known := [pair for pair in rows if pair[0].head is not None]:
            first = min(known, key=lambda pair: pair[0].rank)
            examples[waits] = _example(conn, t, *first, world, dated=dated)
        soon[waits] = [one.seconds for one, _ in rows if one.seconds is not None]
    holders = {one.owner: world.holder(one.owner) for one in groups}
    live = [one for one in holders.values() if one is not None and one.life is Life.LIVE]
    return Left(
        total=total if cut else sum(by.values()),
        by=by,
        due_heads=sum(int(one.heads) for one, _ in found.get(Waits.DUE, ())),
        examples=examples,
        next_seconds=min(soon.get(Waits.RETRY) or soon.get(Waits.LATER) or [], default=None),
        holders=tuple(sorted(live, key=lambda one: one.left_seconds or 0.0)),
        job=asked.job,
        dead_awaited=awaited,
    )


def _example(
    conn: Connection, t: Tables, one: _Group, found: Verdict, world: World, *, dated: bool
) -> Example:
    asked, head, owner = world.asked, int(one.head or 0), one.name
    assert asked is not None
    facts = replace(_facts_of(one, _unseen(asked)), owner=owner, dated=dated)
    info = messages.show(conn, t, head) if found is Verdict.HELD else None
    if info is not None and info.job_id is not None:
        paused = controls.paused_jobs(conn, t, job_id=info.job_id)
        facts = replace(facts, held="".join(job.text for job in paused) or facts.held)
    beside = "" if asked.job is None else facts.unseen
    return Example(head, owner, sentence(found, facts, world), beside)


class _Group(NamedTuple):
    """Messages that wait for rows that are alike. here: these are in the slice of the instance.
    heads: how many rows they are. past: seconds since the first of their instants came. head: None
    where their ids are no whole numbers."""

    status: int
    tries_left: int
    due: int
    here: int
    topic: str | None
    owner: str | None
    number: int
    heads: int
    head: int | None
    past: float | None

    @property
    def name(self) -> str | None:
        """The owner, as it can be shown."""
        return None if self.owner is None else shown(self.owner)

    @property
    def seconds(self) -> float | None:
        """Until the first of them is due."""
        return None if self.past is None or self.due else max(0.0, -float(self.past))

    @property
    def rank(self) -> tuple[bool, int]:
        """As an example: without an owner first, then the lowest."""
        return self.owner is not None, self.head or 0


def _unseen(asked: Asked) -> str:
    """Why the instance that asks does not look at what is not in its slice."""
    if asked.job is None:
        return "its scope does not look where it stands"
    return f"it is not of job {asked.job}: a worker, or a drain without --job, handles it"


def _facts_of(one: _Group, unseen: str) -> Facts:
    state = State.NEW if one.status == Status.NEW else State.FAILED
    state = state if one.tries_left else State.DEAD
    return Facts(
        status=State.PROCESSING if one.status == Status.PROCESSING else state,
        topic=topic_of(one.topic),
        owner=one.owner,
        due=bool(one.due),
        unseen="" if one.here else unseen,
        held="its job is paused" if one.topic == controls.JOB_PAUSED else "",
    )


def _of_job(conn: Connection, t: Tables, job: int) -> int:
    """How many messages of a job are unfinished."""

    def build() -> Any:
        source = t.message.alias("m")
        m = t.cols(source)
        query = t.hinted(sa.select(sa.func.count()), source, JOB)
        return query.where(*_of_the_job(m, "job_id"), t.unfinished(m))

    return int(conn.execute(t.built("left_of_job", build), {"mw_slice": [job]}).scalar_one())


# ---------------------------------------------------------------- of a job


class OfJob(NamedTuple):
    """Messages of a job that wait for the same. number: how many; rows: for how many messages, of
    which msg_id is the first; here: those are of the job. topic: of those. text: why they do not
    run. seconds: until the first of them is due."""

    waits: Waits
    here: bool
    topic: str
    text: str
    number: int
    rows: int
    msg_id: int
    seconds: float | None


def of_job(
    conn: Connection, t: Tables, job_id: int, world: World, *, most: int, retries: bool
) -> list[OfJob]:
    """What those of a job wait for that do not run: of the `most` oldest and newest at least, the
    most first. retries: some of them have failed. t: see `controls.asking_jobs`."""
    statement = t.built(("left_of_a_job", most, retries), partial(_sampled, t, most, retries))
    found: dict[tuple[Any, ...], OfJob] = {}
    for row in fetch(conn, statement, {"mw_job": job_id, "mw_slice": [job_id]}):
        one = _Group._make(row)
        facts = replace(_facts_of(one, ""), owner=one.name)
        able = world.handling(facts.topic)
        if one.here and able and all(who.scope.get("kind") == "job" for who in able):
            facts = replace(facts, unseen=why_not(able, None, None, job_id))
        why = verdict(facts, world)
        assert why.left_as is not None  # it is unfinished, and the head of its object
        mine = OfJob(
            why.left_as,
            bool(one.here),
            shown(facts.topic),
            sentence(why, facts, world),
            int(one.number),
            int(one.heads),
            int(one.head or 0),
            one.seconds,
        )
        key = (mine.waits, mine.here, mine.topic if mine.waits in BY_TOPIC else "")
        found[key] = _both(found[key], mine) if key in found else mine
    return sorted(found.values(), key=lambda one: (-one.number, one.msg_id))


BY_TOPIC = (Waits.PAUSED, Waits.NO_HANDLER)
"""Of these each topic is counted for itself."""


def _both(one: OfJob, two: OfJob) -> OfJob:
    first = min(one, two, key=lambda each: each.msg_id)
    soon = [each.seconds for each in (one, two) if each.seconds is not None]
    number, rows = one.number + two.number, one.rows + two.rows
    return first._replace(number=number, rows=rows, seconds=min(soon, default=None))


def _sampled(t: Tables, most: int, retries: bool) -> Any:
    """As `_statement`, of the oldest and the newest that wait of a job."""
    ends = [_end(t, status, newest, most // 2) for status in _WAITING for newest in (False, True)]
    s = sa.union(*ends[: None if retries else 2]).subquery("s").c
    each = sa.case((s.o.is_(None), s.i))  # without an object it waits for itself
    grouped = sa.select(s.o, sa.func.min(s.i).label("i"), sa.func.count().label("n"))
    g = grouped.group_by(s.o, each).subquery("g")
    one = sa.func.coalesce(_running(t, g.c.o), _lowest(t, g.c.o), g.c.i)
    f = sa.select(one.label("i"), g.c.n).subquery("f")
    h = t.cols(t.message.alias("h"))
    rows = _facts(t, h, f.c.n, "job_id")
    return _grouped(t, rows.select_from(f.join(h.msg_id.table, h.msg_id == f.c.i)))


_WAITING = (Status.NEW, Status.FAILED)


def _end(t: Tables, status: Status, newest: bool, most: int) -> sa.Select[Any]:
    source = t.message.alias("m")
    m = t.cols(source)
    job = bindparam("mw_job", type_=sa.BigInteger())
    query = jobs.of_status(t, job, status, source=source)
    columns: list[Any] = [t.object_key(m).label("o"), m.msg_id.label("i")]
    query = query.with_only_columns(*columns)
    key = job_msg_id(t, m)
    query = query.order_by(key.desc() if newest else key)
    if status is Status.FAILED:  # among dead ones, of which there may be any number
        again = sa.case((t.tries_left(m), ONE), else_=ZERO).label("again")
        c = query.add_columns(again).limit(lit(FAILED_SCAN)).subquery().c
        query = sa.select(c.o, c.i).where(c.again == ONE).order_by(c.i.desc() if newest else c.i)
    some = query.limit(lit(most))
    return sa.select(*some.subquery().c)


# ---------------------------------------------------------------- the statement


def _statement(t: Tables, cut: bool, role: str | None) -> Any:
    parts = (_of_objects(t, cut, role), *_without_object(t, cut, role))
    return sa.union_all(*(_grouped(t, part) for part in parts))


def _of_objects(t: Tables, cut: bool, role: str | None) -> sa.Select[Any]:
    """Each object's entries are counted by the index alone; then one row of each is read."""
    source = t.message.alias("m")
    m = t.cols(source)
    key, index = t.open_object(m), JOB if role == "job_id" else "object"
    entries = t.hinted(sa.select(key.label("o"), t.open_msg_id(m).label("i")), source, index)
    entries = entries.where(t.open_rows(m), t.between_objects(key), *_of_the_job(m, role))
    if cut:
        some = entries.order_by(key, t.open_msg_id(m)).limit(bindparam("most", type_=sa.Integer()))
        e = some.subquery("e").c
        grouped = sa.select(e.o.label("o"), sa.func.min(e.i).label("i"), sa.func.count().label("n"))
        grouped = grouped.group_by(e.o)
    else:
        least = sa.func.min(t.open_msg_id(m)).label("i")
        grouped = entries.with_only_columns(key.label("o"), least, sa.func.count().label("n"))
        grouped = grouped.group_by(key)
    g = grouped.subquery("g")
    # Of a job the first one of the object may be of another job.
    first = _lowest(t, g.c.o) if role == "job_id" else g.c.i
    one = sa.func.coalesce(_running(t, g.c.o), first)
    f = sa.select(one.label("i"), g.c.n).subquery("f")
    h = t.cols(t.message.alias("h"))
    return _facts(t, h, f.c.n, role).select_from(f.join(h.msg_id.table, h.msg_id == f.c.i))


def _running(t: Tables, key: ColumnElement[Any]) -> Any:
    """The running message of an object."""
    source = t.message.alias("r")
    r = t.cols(source)
    running = t.hinted(sa.select(r.msg_id), source, "guard").where(t.runs(r, key))
    return running.limit(1).scalar_subquery()


def _lowest(t: Tables, key: ColumnElement[Any]) -> Any:
    """The lowest unfinished message of an object."""
    source = t.message.alias("x")
    x = t.cols(source)
    lowest: Any = t.hinted(sa.select(sa.func.min(t.open_msg_id(x))), source, "object")
    return lowest.where(t.open_object(x) == key, t.open_rows(x)).scalar_subquery()


def _without_object(t: Tables, cut: bool, role: str | None) -> list[sa.Select[Any]]:
    """Messages without an object wait for themselves."""
    index, its = JOB if role == "job_id" else None, partial(_of_the_job, role=role)
    if not cut:
        facts = partial(_fact_columns, t, count=ONE, role=role)
        return from_indexes(t, t.without_object, facts, its, index)
    found = []
    for ids in from_indexes(t, t.without_object, lambda c: [c.msg_id.label("i")], its, index):
        some = ids.limit(bindparam("most", type_=sa.Integer())).subquery("s")
        h = t.cols(t.message.alias("k"))
        rows = some.join(h.msg_id.table, h.msg_id == some.c.i)
        found.append(_facts(t, h, ONE, role).select_from(rows))
    return found


def _of_the_job(c: Cols, role: str | None) -> list[ColumnElement[bool]]:
    """Of a drain of a job only its messages are counted."""
    if role != "job_id":
        return []
    return [c["job_id"].in_(bindparam("mw_slice", expanding=True))]


def _facts(t: Tables, c: Cols, count: ColumnElement[Any], role: str | None) -> sa.Select[Any]:
    return sa.select(*_fact_columns(t, c, count, role))


def _fact_columns(
    t: Tables, c: Cols, count: ColumnElement[Any], role: str | None
) -> list[ColumnElement[Any]]:
    """What a row waits for; see `_Group`."""
    nothing: ColumnElement[Any] = sa.null()
    here: ColumnElement[int] = ONE
    if role is not None:
        values: BindParameter[Any] = bindparam("mw_slice", expanding=True)
        here = sa.case((t.slice_value(c, role).in_(values), ONE), else_=ZERO)
    no_topic = c.topic is None and not t.asks_jobs
    columns: dict[str, ColumnElement[Any]] = {
        "s": sa.case((t.untried(c), lit(Status.NEW)), else_=c.status),
        "l": sa.case((t.tries_left(c), ONE), else_=ZERO),
        "d": sa.case((t.due(c), ONE), else_=ZERO),
        "h": here,
        "t": nothing if no_topic else bytewise(beginning(controls.topic_or_held(t, c))),
        "b": nothing
        if c.claimed_by is None
        else sa.case((t.running(c), bytewise(beginning(c.claimed_by)))),
        "n": count,
        "i": c.msg_id,
        "a": nothing if c.available_at is None else c.available_at,
    }
    return [column.label(name) for name, column in columns.items()]


def _grouped(t: Tables, rows: sa.Select[Any]) -> sa.Select[Any]:
    w = rows.subquery().c
    nothing: Any = sa.null()
    topic = w.t if t.has("topic") or t.asks_jobs else nothing
    owner = w.b if t.has("claimed_by") else nothing
    keys = (w.s, w.l, w.d, w.h, topic, owner)
    first = seconds_since(sa.func.min(real_instant(w.a))) if t.has("available_at") else nothing
    found = (*keys, sa.func.sum(w.n), sa.func.count(), sa.func.min(w.i), first)
    labelled = (column.label(f"f{i}") for i, column in enumerate(found))
    return sa.select(*labelled).group_by(*(key for key in keys if key is not nothing))
