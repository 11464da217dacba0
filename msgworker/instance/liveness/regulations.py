"""Limits of topics over all instances: declare those of our handlers, obey those recorded.

They are read with every round of the housekeeping, where there are any. The newest declaration
counts: an instance records those of its handlers when it starts, where others stand there; after
that it obeys what is recorded, also for topics that its own code does not limit. So two versions of
the code do not change it in turns, and no start takes away what protects a system outside.
"""

from __future__ import annotations

import logging

from msgworker.dialects import Trouble, trouble
from msgworker.errors import SchemaError
from msgworker.instance.links import Link
from msgworker.instance.runtime import Runtime
from msgworker.limit import Limit
from msgworker.store.claiming import limits
from msgworker.store.claiming.limits import Recorded

RACES = 10


class Regulations:
    """Used by `Requests`, on the heartbeat's connection."""

    def __init__(
        self, runtime: Runtime, link: Link, log: logging.LoggerAdapter[logging.Logger]
    ) -> None:
        self._runtime = runtime
        self._link = link
        self._log = log
        self._started = False
        self._told: dict[str, int] = {}  # the version of each limit that was told to people

    @property
    def wanted(self) -> dict[str, Limit]:
        """The limits of our handlers."""
        runtime = self._runtime
        return {
            h.topic: h.limit
            for h in list(runtime.registry.handlers.values())
            if h.topic is not None and h.limit is not None
            if runtime.topics is None or h.topic in runtime.topics
        }

    def check(self) -> None:
        """Raise SchemaError if our handlers have limits and the database cannot record them."""
        tables = self._runtime.tables
        if not (wanted := self.wanted):
            return
        if limits.NAME in tables.missing:
            raise SchemaError(
                f"table {limits.NAME} is missing: the handler of {min(wanted)} has max_running or "
                "rate, which are recorded there. Run App.create_schema() or `msgworker init-db`, "
                "or see `msgworker ddl`"
            )
        if not tables.has("topic"):
            raise SchemaError(
                f"max_running and rate are limits of a topic, and table {tables.spec.name} has no "
                "column for topics: name it, MessageTable(topic=...), or add one"
            )

    def read(self, *, there: bool) -> None:
        """Read the limits that are recorded, if there are any; at the start declare those of our
        handlers before."""
        runtime, wanted = self._runtime, self.wanted
        recorded: dict[str, Recorded] = {}
        if there and runtime.tables.has("topic"):
            with self._link.transaction() as conn:
                recorded = limits.read_all(conn, runtime.tables)
        for topic, limit in wanted.items():
            seen = recorded.get(topic)
            if seen is None or (seen.limit != limit and not self._started):
                recorded[topic] = self._declare(topic, limit)
        self._started = True
        self._tell(recorded, wanted)
        by_topic = {topic: one.limit for topic, one in recorded.items()}
        if by_topic != runtime.limits:
            runtime.hold(runtime.paused, by_topic)

    def _declare(self, topic: str, limit: Limit) -> Recorded:
        """Record the limits of a handler instead of others."""
        tables, me = self._runtime.tables, self._runtime.identity.id
        for _ in range(RACES):
            with self._link.transaction() as conn:
                seen = limits.read_all(conn, tables).get(topic)
            if seen is not None and (seen.limit == limit or self._started):
                return seen
            try:
                with self._link.transaction() as conn:
                    written = limits.declare(conn, tables, topic, limit, seen, me=me)
            except Exception as error:
                if trouble(error) not in (Trouble.RACE, Trouble.AGAIN):
                    raise
                continue
            if written and seen is not None:
                text = "topic %s: limit changed from %s (declared by %s) to %s"
                self._log.warning(text, topic, seen.limit, seen.by, limit)
            if written:
                return Recorded(limit, 0 if seen is None else seen.version + 1, me)
        raise SchemaError(f"the limits of topic {topic} could not be recorded: others change them")

    def _tell(self, recorded: dict[str, Recorded], wanted: dict[str, Limit]) -> None:
        runtime, told = self._runtime, self._told
        self._told = {topic: one.version for topic, one in recorded.items()}
        for topic, one in recorded.items():
            if told.get(topic) == one.version:
                continue
            if runtime.topics is not None and topic not in runtime.topics:
                continue
            if topic not in wanted:
                text = "topic %s is limited to %s (declared by %s), not by this code; obeyed"
                self._log.info(text, topic, one.limit, one.by)
            elif one.limit != wanted[topic]:
                text = "topic %s: %s was declared by %s, which started later; obeyed instead of %s"
                self._log.warning(text, topic, one.limit, one.by, wanted[topic])
            else:
                self._log.info("topic %s: %s, over all instances", topic, one.limit)
