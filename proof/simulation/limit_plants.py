"""Planted bugs of limits: what must turn the checker red."""

from __future__ import annotations

from contextlib import AbstractContextManager

from msgworker.instance.claiming.claimer import Claimer
from msgworker.instance.state import Controls
from msgworker.store import claim, limits
from msgworker.store.candidates import Candidate
from msgworker.store.rows import Row
from proof.simulation.batch_plants import replaced


def counted_before() -> AbstractContextManager[None]:
    """What is free is counted in a transaction of its own, before that of the flags."""

    def flag_limited(
        self: Claimer, topic: str, candidates: list[Candidate], me: str
    ) -> tuple[list[Row], list[Candidate]]:
        tables, rows = self._setup.tables, list[Row]()
        with self._link.transaction() as conn:
            free = limits.lock(conn, tables, topic)
        some = [] if free is None else candidates[: free.starts]
        if free is not None and some:
            with self._link.transaction() as conn:
                rows, _ = claim.flag_apart(conn, tables, some, me=me)
                limits.take(conn, tables, topic, free, len(rows))
        self._limit_poller.tried(topic, free, len(rows))
        return rows, some

    return replaced(Claimer, "_flag_limited", flag_limited)


def runs_go_on() -> AbstractContextManager[None]:
    """A message of a limited topic gets the flag of the one in front of it."""

    def init(self: Controls) -> None:
        object.__setattr__(self, "apart", self.paused)

    return replaced(Controls, "__post_init__", init)


def free_of_charge() -> AbstractContextManager[None]:
    """A start takes no token."""
    return replaced(limits, "take", lambda conn, t, topic, free, count: None)
