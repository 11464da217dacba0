"""An instance whose rounds are called by hand."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from msgworker import App
from msgworker.app import setup_of
from msgworker.clock import clock
from msgworker.instance.instance import Instance
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.state import InstanceView, Scope
from msgworker.table.tables import Tables


@contextmanager
def by_hand(app: App, threads: int = 1, scope: Scope | None = None) -> Iterator[Instance]:
    """One that holds its lease; no thread of it runs."""
    made = Instance(replace(setup_of(app), threads=threads, scope=scope))
    register(made)
    made.lanes.took(0.0)  # more is claimed at once than there are threads
    try:
        yield made
    finally:
        close(made)


def close(one: Instance) -> None:
    one.settler.close()
    one.caller.close()
    for role in (one.fetcher, one.heartbeat, one.housekeeper):
        role.link.close()


def register(one: Instance) -> None:
    """Take its lease, as a start does."""
    one.housekeeper.prepare()
    one.heartbeat.register()


def beat(one: Instance) -> int:
    """A round of its heartbeat and of its housekeeper; how many messages were given back."""
    one.heartbeat.run_once()
    return one.housekeeper.run_once()


def recover_what_is_stale(one: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of its recovery, a minute apart: it has patience with a foreign consumer."""
    with monkeypatch.context() as patch:
        for now in (time.monotonic(), time.monotonic() + 60.0):
            patch.setattr(time, "monotonic", lambda now=now: now)
            one.housekeeper.recovery.run(now)


def trust_until(identity: Identity, at: float) -> None:
    """It trusts its lease until then."""
    identity.tenure = replace(identity.tenure, trusted_until=at)


def renewed_before(identity: Identity, seconds: float) -> None:
    """Its last renewal is so much longer ago."""
    identity.tenure = replace(identity.tenure, renewed_at=identity.tenure.renewed_at - seconds)


def doubted(identity: Identity) -> None:
    """It may be dead."""
    renewed_before(identity, 3600.0)
    assert identity.doubt(least_age=1.0)
    assert time.monotonic() > identity.tenure.renewed_at


def declared_dead(one: Instance) -> None:
    """It has learned that its lease was taken over, and goes on under a new id."""
    one.shared.identity.lost(one.shared.identity.id)
    one.heartbeat.re_register()


def loses_its_lease(one: Instance, new_id: str = "new-self") -> None:
    """It goes on under this id, of which it believes that it has a lease."""
    one.shared.identity.lost(one.shared.identity.id)
    me = one.shared.identity.id
    one.shared.continue_as(me, new_id, clock() + 3600.0, time.monotonic())


def fetch(one: Instance) -> int | None:
    """One round of the claim loop that looks at everything afresh: how many lanes it has won, None
    if it did not look."""
    one.fetcher.finder.search.forget()
    won = one.fetcher.run_once()
    return won if won or one.fetcher.looked else None


def standing(tables: Tables, holding: Callable[[], Collection[Any]] = set) -> InstanceView:
    """What a scope sees of an instance. holding: the shards of the messages that it holds."""
    return InstanceView(
        tables=tables,
        instance_id=lambda: "host-1-x",
        holding=holding,
        wake=lambda: None,
        log=logging.LoggerAdapter(logging.getLogger("msgworker.instance"), {}),
    )
