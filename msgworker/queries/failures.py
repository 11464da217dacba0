"""Failed and dead messages, grouped by error.

Read from the index of failed rows, the newest READ of them, each with its last try; a row without
one (a foreign consumer failed it) is grouped by its `last_error`. What an operator has
acknowledged, discarded or cancelled is in none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.db.clock import UtcDateTime, real_instant
from msgworker.db.types import beginning, bytewise, shortened, text_of
from msgworker.message import DEFAULT_TOPIC, State, topic_of
from msgworker.payload import shown
from msgworker.store import bounded, tries
from msgworker.store.bounded import Found, cursor_place, cursor_text, in_state
from msgworker.store.rows import is_topic
from msgworker.store.tries import fingerprint, in_common, masked, unplaced
from msgworker.table.columns import Cols
from msgworker.table.tables import ONE, ZERO, Tables

READ = 5_000
NOTHING = "(no error was recorded)"
TEXTS_READ = 50
"""The most different texts of last tries that are read of one group."""
SHOWN = 5
"""The most different texts that are shown of one group."""


@dataclass(frozen=True, slots=True)
class Text:
    """What `count` messages of a group say, without its place."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Failures:
    """Messages that failed for the same reason: type, place and words of their last error.

    error: what all of them say; or, if `varies`, their pattern, with ids, numbers and quoted values
    masked. example: what the newest one says, without its place; sample_error: with it. Both are
    None only where no error was recorded. texts: if it varies, what most of them say, the
    commonest first; other_texts: how many different ones there are besides. Both are nothing where
    each message says something else. waiting_objects: those that continue only when a message
    of this group has ended. first_seen, last_seen: of the last tries, None if not known.
    """

    fingerprint: str
    error: str
    dead: int
    failing: int
    topics: tuple[str, ...]
    waiting_objects: int
    first_seen: datetime | None
    last_seen: datetime | None
    sample_id: int
    sample_error: str | None
    example: str | None = None
    varies: bool = False
    texts: tuple[Text, ...] = ()
    other_texts: int = 0

    @property
    def count(self) -> int:
        return self.dead + self.failing


@dataclass(slots=True)
class _Group:
    dead: int = 0
    failing: int = 0
    topics: set[str] = field(default_factory=set)
    first: datetime | None = None
    last: datetime | None = None
    sample: int = bounded.LEAST
    waiting: int = 0
    text: str | None = None
    least: str | None = None
    most: str | None = None
    texts: Counter[str] = field(default_factory=Counter)  # of those without a try

    @property
    def count(self) -> int:
        return self.dead + self.failing

    def add(self, facts: Sequence[Any], *, has_topic: bool) -> None:
        """facts: a row of `_grouped`, behind its key. has_topic: whether the table has topics."""
        topic, left, count, first, last, i, waiting, least, most = facts
        self.failing += count if left else 0
        self.dead += 0 if left else count
        if has_topic:
            self.topics.add(topic_of(text_of(topic)))
        self.first = min((x for x in (self.first, first) if x is not None), default=None)
        self.last = max((x for x in (self.last, last) if x is not None), default=None)
        if i is not None and i >= self.sample:
            self.sample, self.text = i, most
        self.waiting += waiting
        self.least = min((x for x in (self.least, least) if x is not None), default=None)
        self.most = max((x for x in (self.most, most) if x is not None), default=None)


def failures(
    conn: Connection,
    t: Tables,
    *,
    topic: str | None = None,
    since: datetime | None = None,
    job: int | None = None,
    limit: int = 50,
    after: str | None = None,
    newest: int = READ,
) -> Found[Failures]:
    """The groups, largest first, behind the cursor `after`; `complete` is False if only the newest
    messages were read. topic, since, job: of failures of this topic, since this instant, of
    this job. Raises ConfigError for a topic or job where the table has no column for it."""
    bounded.refuse_lacking(t, topic=topic, job=job)
    groups: dict[str, _Group] = {}
    params: dict[str, Any] = {"newest": newest, "topic": topic, "since": since, "job": job}
    has_topic = t.has("topic")
    by_topic = None if topic is None or not has_topic else topic == DEFAULT_TOPIC
    asked = (by_topic, since is not None, job is not None)
    grouped = t.built(("failures", asked), lambda: _grouped(t, *asked, bare=False))
    read = 0
    bare = False
    for key, *facts in conn.execute(grouped, params).all():
        read += int(facts[2])
        bare |= key is None
        if key is not None:
            groups.setdefault(key, _Group()).add(facts, has_topic=has_topic)
    if bare:
        statement = t.built(("failures_bare", asked), lambda: _grouped(t, *asked, bare=True))
        for raw, *facts in conn.execute(statement, params).all():
            text = shown(shortened(raw)) if isinstance(raw, bytes) else shortened(raw)
            group = groups.setdefault(fingerprint(raw or ""), _Group())
            group.texts[unplaced(text or "")] += int(facts[2])
            facts += [text, text]
            group.add(facts, has_topic=has_topic)
    ranked = sorted(groups.items(), key=lambda g: (-g[1].count, g[0]))
    if after is not None:
        count, last = cursor_place(after, int, str)
        ranked = [g for g in ranked if (-g[1].count, g[0]) > (-count, last)]
    chosen = ranked[:limit]
    samples = tries.of(conn, t, [group.sample for _, group in chosen])
    rows = [_shown(key, group, samples) for key, group in chosen]
    if varying := [row.fingerprint for row in rows if row.varies]:
        statement = t.built(("failures_texts", asked), lambda: _texts(t, *asked))
        unread: Counter[str] = Counter()
        for key, text, count, of_group in conn.execute(statement, params | {"groups": varying}):
            groups[key].texts[unplaced(text or "")] += int(count)
            unread[key] = max(0, int(of_group) - TEXTS_READ)
        for i, row in enumerate(rows):
            texts = groups[row.fingerprint].texts
            commonest = texts.most_common(SHOWN)
            if row.varies and commonest[0][1] > 1:
                others = len(texts) - len(commonest) + unread[row.fingerprint]
                shown_texts = tuple(Text(*one) for one in commonest)
                rows[i] = replace(row, texts=shown_texts, other_texts=others)
    following = None
    if len(ranked) > limit:
        following = cursor_text([chosen[-1][1].count, chosen[-1][0]])
    # What is not wanted was not counted.
    walk = bounded.failed(t, t.cols(), None if job is None else bounded.an_id(job))
    all_read = walk.end(conn, t, rows=newest, newest=True) is None
    complete = all_read and following is None
    return Found(rows, complete=complete, next_after=following, looked_at=read)


def _shown(key: str, group: _Group, samples: dict[int, list[tries.Try]]) -> Failures:
    last = samples.get(group.sample)
    text = (last[-1].error if last else None) or group.text or group.most
    same = in_common(group.least or text, group.most or text) if text else NOTHING
    return Failures(
        fingerprint=key,
        error=same or masked(text or ""),
        dead=group.dead,
        failing=group.failing,
        topics=tuple(sorted(group.topics)),
        waiting_objects=group.waiting,
        first_seen=group.first,
        last_seen=group.last,
        sample_id=group.sample,
        sample_error=text,
        example=unplaced(text) if text else None,
        varies=same is None,
    )


def _texts(t: Tables, by_topic: bool | None, since: bool, by_job: bool) -> sa.Select[Any]:
    """Of groups that vary the commonest texts of last tries: their group, text, how many say so,
    and how many different ones it has."""
    f = _failed(t, by_job, {*"itpxa", *(("at", "f") if since else ())}).c
    asked = (*_asked(t, f, by_topic, since), f.p.in_(bindparam("groups", expanding=True)))
    grouped = sa.select(f.p, f.x, sa.func.count().label("n")).where(*asked).group_by(f.p, f.x)
    g = grouped.subquery("g").c
    place = sa.func.row_number().over(partition_by=g.p, order_by=(g.n.desc(), g.x))
    of_group = sa.func.count().over(partition_by=g.p)
    h = sa.select(g.p, g.x, g.n, of_group.label("d"), place.label("r")).subquery("h").c
    return sa.select(h.p, h.x, h.n, h.d).where(h.r <= sa.literal_column(str(TEXTS_READ)))


def _failed(t: Tables, by_job: bool, only: Collection[str] = ()) -> sa.Subquery:
    """The newest failed rows: i, t (topic), l (tries left), of the last try p (fingerprint), x
    (error) and at, w (if a message waits behind the row: the first one of their object), e (error),
    f (finished), n (failed tries), a (acknowledged). only: not all of these."""
    c = t.cols()
    null: Any = sa.null()
    x = t.failed_try.alias("x").c
    tried = (x.table_name == t.message.name, x.msg_id == c.msg_id)
    last_at = sa.select(sa.func.max(x.ended_at)).where(*tried)
    columns = (
        c.msg_id.label("i"),
        (null if c.topic is None else bytewise(beginning(c.topic))).label("t"),
        sa.case((in_state(t, c, State.FAILED), 1), else_=0).label("l"),
        tries.last_of(t, c.msg_id, "fingerprint").label("p"),
        bytewise(tries.last_of(t, c.msg_id, "error")).label("x"),
        last_at.scalar_subquery().label("at"),
        _waited_for(t, c).label("w"),
        (null if c.last_error is None else bytewise(beginning(c.last_error))).label("e"),
        (null if c.finished_at is None else real_instant(c.finished_at)).label("f"),
        t.tries(c).label("n"),
        sa.case((bounded.acknowledged(t, c), 1), else_=0).label("a"),
    )
    rows = bindparam("newest", type_=sa.Integer())
    wanted = [column for column in columns if not only or column.name in only]
    job = bindparam("job", type_=sa.BigInteger()) if by_job else None
    walk = bounded.failed(t, c, job)
    return walk.query(t, wanted, (), end=None, limit=rows, newest=True).subquery("q")


def _waited_for(t: Tables, c: Cols) -> ColumnElement[Any]:
    source = t.message.alias("w")
    behind = t.cols(source)
    later = t.hinted(sa.select(ONE), source, "object").where(
        t.open_object(behind) == t.object_key(c),
        t.open_rows(behind),
        t.open_msg_id(behind) > c.msg_id,
    )
    waits = sa.and_(t.unfinished(c), c.object_id.is_not(None), sa.exists(later))
    source = t.message.alias("h")
    head = t.cols(source)
    first = t.hinted(sa.select(t.open_msg_id(head)), source, "object").where(
        t.open_object(head) == t.object_key(c), t.open_rows(head)
    )
    first = first.order_by(t.open_msg_id(head)).limit(ONE)
    return sa.case((waits, first.scalar_subquery()))


def _asked(t: Tables, f: Any, topic: bool | None, since: bool) -> list[ColumnElement[bool]]:
    """What is asked for: what no operator knows, and the conditions of a narrower question. topic:
    None = of all; whether it is the one of messages without any."""
    where: list[ColumnElement[bool]] = [f.a == ZERO]
    if topic is not None:
        named = bindparam("topic", type_=sa.String())
        where.append(is_topic(f.t, named, none=topic))
    if since:
        where.append(sa.func.coalesce(f.at, f.f) >= bindparam("since", type_=UtcDateTime()))
    return where


def _grouped(
    t: Tables, by_topic: bool | None, since: bool, by_job: bool, bare: bool
) -> sa.Select[Any]:
    """The groups, topic by topic: by the last try; bare: of rows without one by their error."""
    f = _failed(t, by_job).c
    topic: list[Any] = [f.t] if t.has("topic") else []
    key: list[Any] = [f.p] if not bare else [f.e] if t.has("last_error") else []
    at = f.f if bare else f.at
    seen = (sa.func.min(at), sa.func.max(at), sa.func.max(f.i), sa.func.count(sa.distinct(f.w)))
    texts = () if bare else (sa.func.min(f.x), sa.func.max(f.x))
    columns = (*(key or [sa.null()]), *(topic or [sa.null()]), f.l, sa.func.count(), *seen, *texts)
    query = sa.select(*columns).where(*_asked(t, f, by_topic, since))
    query = query.group_by(f.l, *topic, *key)
    if not bare:
        return query
    edited = sa.and_(f.n == ZERO, f.e.is_(None))  # it has not failed: `change.edit`
    return query.where(f.p.is_(None), sa.not_(edited))
