"""Failed and dead messages, grouped by error.

Read from the index of failed rows, the newest READ of them, each with its last try; a row without
one (a foreign consumer failed it) is grouped by its `last_error`. What an operator has
acknowledged, discarded or cancelled is in none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.db import UtcDateTime, beginning, bytewise, real_instant, same_text
from msgworker.message import State
from msgworker.payload import shortened, shown
from msgworker.store import bounded, tries
from msgworker.store.bounded import Found, cursor_place, cursor_text, in_state
from msgworker.store.tries import fingerprint, masked, unmasked
from msgworker.table import Cols, Tables
from msgworker.table.tables import ONE, ZERO

READ = 5_000
TEXTS = 2_000
"""The most different error texts of rows without a try."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Messages that failed for the same reason: type, place and words of their last error.

    error: of the newest one, with ids, numbers and quoted values masked; quoted words that may name
    the cause are kept, and differ within a group. example: what the newest one says, where some of
    it is masked in `error`; else None. sample_error: its text with its place. waiting_objects:
    those that continue only when a message of this group has ended. first_seen, last_seen: of the
    last tries, None if not known.
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

    @property
    def count(self) -> int:
        return self.dead + self.failing

    def add(
        self,
        topic: str | None,
        left: int,
        count: int,
        first: Any,
        last: Any,
        i: int | None,
        waiting: int,
    ) -> None:
        self.failing += count if left else 0
        self.dead += 0 if left else count
        if topic is not None:
            self.topics.add(shortened(topic) if isinstance(topic, str) else shown(topic))  # a BLOB
        self.first = min((x for x in (self.first, first) if x is not None), default=None)
        self.last = max((x for x in (self.last, last) if x is not None), default=None)
        self.sample = max(self.sample, self.sample if i is None else i)
        self.waiting += waiting


def failures(
    conn: Connection,
    t: Tables,
    *,
    topic: str | None = None,
    since: datetime | None = None,
    limit: int = 50,
    after: str | None = None,
    newest: int = READ,
) -> Found[Failures]:
    """The groups, largest first, behind the cursor `after`; `complete` is False if only the newest
    messages were read. topic, since: of failures of this topic, and since this instant. Raises
    ConfigError for a topic where the table has no column for it."""
    bounded.refuse_lacking(t, topic=topic)
    groups: dict[str, _Group] = {}
    params: dict[str, Any] = {"newest": newest, "topic": topic, "since": since}
    asked = (topic is not None and t.has("topic"), since is not None)
    grouped = t.built(("failures", asked), lambda: _grouped(t, *asked, bare=False))
    read = 0
    bare = False
    for key, *facts in conn.execute(grouped, params).all():
        read += int(facts[2])
        bare |= key is None
        if key is not None:
            groups.setdefault(key, _Group()).add(*facts)
    if bare:
        statement = t.built(("failures_bare", asked), lambda: _grouped(t, *asked, bare=True))
        for text, *facts in conn.execute(statement, params).all():
            group = groups.setdefault(fingerprint(text or ""), _Group())
            group.add(*facts)
            group.text = shown(shortened(text)) if isinstance(text, bytes) else shortened(text)
    ranked = sorted(groups.items(), key=lambda g: (-g[1].count, g[0]))
    if after is not None:
        count, last = cursor_place(after, int, str)
        ranked = [g for g in ranked if (-g[1].count, g[0]) > (-count, last)]
    chosen = ranked[:limit]
    samples = tries.of(conn, t, [group.sample for _, group in chosen])
    rows = [_shown(key, group, samples) for key, group in chosen]
    following = None
    if len(ranked) > limit:
        following = cursor_text([chosen[-1][1].count, chosen[-1][0]])
    # What is not wanted was not counted.
    all_read = bounded.failed(t, t.cols()).end(conn, t, rows=newest, newest=True) is None
    complete = all_read and following is None
    return Found(rows, complete=complete, next_after=following, looked_at=read)


def _shown(key: str, group: _Group, samples: dict[int, list[tries.Try]]) -> Failures:
    last = samples.get(group.sample)
    text = last[-1].error if last else group.text
    return Failures(
        fingerprint=key,
        error=masked(text, names=True) if text else "(no error was recorded)",
        dead=group.dead,
        failing=group.failing,
        topics=tuple(sorted(group.topics)),
        waiting_objects=group.waiting,
        first_seen=group.first,
        last_seen=group.last,
        sample_id=group.sample,
        sample_error=text,
        example=unmasked(text) if text else None,
    )


def _failed(t: Tables) -> sa.Subquery:
    """The newest failed rows: i, t (topic), l (tries left), p (fingerprint), at, w (if a message
    waits behind the row: the first one of their object), e (error), n (failed tries), a
    (acknowledged)."""
    c = t.cols()
    null: Any = sa.null()
    x = t.failed_try.alias("x").c
    tried = (x.table_name == t.message.name, x.msg_id == c.msg_id)
    last_at = sa.select(sa.func.max(x.ended_at)).where(*tried)
    columns = (
        c.msg_id.label("i"),
        (null if c.topic is None else bytewise(beginning(c.topic))).label("t"),
        sa.case((in_state(t, c, State.FAILED), 1), else_=0).label("l"),
        tries.last_fingerprint(t, c.msg_id).label("p"),
        last_at.scalar_subquery().label("at"),
        _waited_for(t, c).label("w"),
        (null if c.last_error is None else beginning(c.last_error)).label("e"),
        (null if c.finished_at is None else real_instant(c.finished_at)).label("f"),
        t.tries(c).label("n"),
        sa.case((bounded.acknowledged(t, c), 1), else_=0).label("a"),
    )
    rows = bindparam("newest", type_=sa.Integer())
    walk = bounded.failed(t, c)
    return walk.query(t, columns, (), end=None, limit=rows, newest=True).subquery("q")


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


def _asked(t: Tables, f: Any, topic: bool, since: bool) -> list[ColumnElement[bool]]:
    """What is asked for: what no operator knows, and the conditions of a narrower question."""
    where: list[ColumnElement[bool]] = [f.a == ZERO]
    if topic:
        where.append(same_text(f.t, bindparam("topic", type_=sa.String())))
    if since:
        where.append(sa.func.coalesce(f.at, f.f) >= bindparam("since", type_=UtcDateTime()))
    return where


def _grouped(t: Tables, by_topic: bool, since: bool, bare: bool) -> sa.Select[Any]:
    """The groups, topic by topic: by the last try; bare: of rows without one by their error."""
    f = _failed(t).c
    topic: list[Any] = [f.t] if t.has("topic") else []
    key: list[Any] = [f.p] if not bare else [f.e] if t.has("last_error") else []
    at = f.f if bare else f.at
    seen = (sa.func.min(at), sa.func.max(at), sa.func.max(f.i), sa.func.count(sa.distinct(f.w)))
    columns = (*(key or [sa.null()]), *(topic or [sa.null()]), f.l, sa.func.count(), *seen)
    query = sa.select(*columns).where(*_asked(t, f, by_topic, since))
    query = query.group_by(f.l, *topic, *key)
    if not bare:
        return query
    edited = sa.and_(f.n == ZERO, f.e.is_(None))  # it has not failed: store/edits
    return query.where(f.p.is_(None), sa.not_(edited)).limit(TEXTS)
