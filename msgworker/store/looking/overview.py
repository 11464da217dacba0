"""Everything at a glance: how many messages are in which state, topic by topic, and who works.

All of it is bounded like `counts`: the numbers of a large table are capped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.dialects import beginning
from msgworker.message import State, topic_of
from msgworker.store.changing import pause, purge
from msgworker.store.changing.pause import Pause
from msgworker.store.looking import counts, limited
from msgworker.store.looking.capped import Capped
from msgworker.store.looking.counts import Exact
from msgworker.store.looking.instances import InstanceInfo, Life, instances
from msgworker.store.looking.limited import TopicLimit
from msgworker.table import Tables

MOST = 10_000
"""Messages of a state are counted up to this number."""
NEWEST = 1_000
"""So many of the newest messages are looked at for the names of topics."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: how many of its messages are in each state, and what holds it back.

    counts: of the states in which messages of it were found. oldest_seconds: the age of the oldest
    one that is new; None if there is none, or its age is not known. handlers: live instances that
    have a handler for it. paused, limit: None if it is not.
    """

    topic: str
    counts: Mapping[State, Capped]
    oldest_seconds: float | None
    handlers: int
    paused: Pause | None = None
    limit: TopicLimit | None = None

    def count(self, status: State | str) -> Capped:
        """How many of its messages are in a state."""
        return self.counts.get(State(status), Capped(0))


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts, topics and instances, read at `read_at` by the database's clock.

    counts: messages in each state; "done" of a large table is an estimate that no topic has a share
    of. topics: by name, all that were seen: in messages, in handlers of live instances, in pauses
    and limits. oldest_seconds: the age of the oldest new message. live, silent, dead: how many
    instances; a silent one is live, but misses its heartbeat or has stopped.
    """

    read_at: datetime
    counts: Mapping[State, Capped]
    topics: tuple[TopicInfo, ...]
    oldest_seconds: float | None
    live: int
    silent: int
    dead: int

    def count(self, status: State | str) -> Capped:
        """How many messages are in a state."""
        return self.counts.get(State(status), Capped(0))


def overview(conn: Connection, t: Tables) -> Overview:
    """The present state of the table and of its instances."""
    who = instances(conn, t)
    totals: dict[State, Capped] = {}
    of_topic: defaultdict[str, dict[State, Capped]] = defaultdict(dict)
    ages: dict[str, float] = {}
    for one in counts.counts(conn, t, most=MOST):
        number = Capped(one.count, one.exact is Exact.AT_LEAST, one.exact is Exact.ABOUT)
        totals[one.status] = totals.get(one.status, Capped(0)) + number
        if one.topic is None and number.about:
            continue
        name = topic_of(one.topic)
        of_topic[name][one.status] = of_topic[name].get(one.status, Capped(0)) + number
        if one.status is State.NEW and one.oldest_seconds is not None:
            ages[name] = max(ages.get(name, 0.0), one.oldest_seconds)
    return Overview(
        read_at=purge.cutoff(conn, 0.0),
        counts=totals,
        topics=_topics(conn, t, who, of_topic, ages),
        oldest_seconds=max(ages.values(), default=None),
        live=sum(one.life is Life.LIVE for one in who),
        silent=sum(one.silent for one in who),
        dead=sum(one.life in (Life.DEAD, Life.TAKEN_OVER, Life.NO_LEASE) for one in who),
    )


def _topics(
    conn: Connection,
    t: Tables,
    who: list[InstanceInfo],
    of_topic: Mapping[str, Mapping[State, Capped]],
    ages: Mapping[str, float],
) -> tuple[TopicInfo, ...]:
    paused = {one.topic: one for one in pause.read_all(conn, t)}
    limit = {one.topic: one for one in limited.topics(conn, t)}
    handled = {name for one in who if one.works for name in one.topics or ()}
    names = {*of_topic, *paused, *limit, *handled, *_newest(conn, t)}
    return tuple(
        TopicInfo(
            topic=name,
            counts=dict(of_topic.get(name, {})),
            oldest_seconds=ages.get(name),
            handlers=sum(one.handles(name) for one in who),
            paused=paused.get(name),
            limit=limit.get(name),
        )
        for name in sorted(names)
    )


def _newest(conn: Connection, t: Tables) -> set[str]:
    """The topics of the newest messages: counting begins with the oldest and may not reach them."""
    if not t.has("topic"):
        return set()

    def build() -> sa.Select[tuple[str | None]]:
        c = t.cols()
        assert c.topic is not None
        names = sa.select(beginning(c.topic).label("t"))
        rows = names.order_by(c.msg_id.desc()).limit(NEWEST).subquery("w")
        return sa.select(rows.c.t).distinct()

    found = conn.scalars(t.built("overview_newest", build))
    return {topic_of(counts.topic_text(name)) for name in found}
