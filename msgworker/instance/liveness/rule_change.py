"""Make an App's rule the rule of its table, while no instance is alive.

Messages of dead instances are recovered first, by the old rule. If an instance is alive, the table
keeps its rule, and the caller uses that.
"""

from __future__ import annotations

import logging
import time

from msgworker.db import Trouble, trouble
from msgworker.instance.connections import Connections
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.state import Setup, Shared
from msgworker.schema import rule
from msgworker.schema.rule import Rule, Verdict

ROUNDS = 3
"""How often to try to recover messages of dead instances; what is left then is locked."""
IN_THE_WAY = {
    rule.Answer.BUSY: "live instances: %d",
    rule.Answer.HELD: "dead instances whose messages cannot be given back now: %d",
    rule.Answer.LOCKED: "another process is starting on it, or is suspended while doing so",
    rule.Answer.DEADLY: "failed messages that would be dead by it: %d",
}
HOW_TO_CHANGE_IT = "stop all its instances, then run `msgworker init-db`"


def change(setup: Setup, wanted: Rule, log: logging.Logger, *, may_bury: bool) -> Verdict:
    """Make `wanted` the rule of the table, or return why not; logs one line about it.

    setup: with the rule that was read. may_bury: also if failed messages become dead by it: only on
    explicit request, since a start with another configuration may be a mistake. Waits up to a lease
    while another process changes it.
    """
    shared = Shared(setup)  # as of an instance, but it is never registered
    with shared.connector.once() as link:
        verdict = _change(setup, shared, link, wanted, may_bury)
    table, old = setup.tables.spec.name, Rule.of(setup.tables.spec)
    if verdict.state is rule.Answer.CHANGED:
        text = "the rule of table %s is %s now, it was %s%s"
        died = f"; failed messages that are dead by it: {verdict.count}" if verdict.count else ""
        log.warning(text, table, wanted, old, died)
    elif verdict.state in IN_THE_WAY:
        why = IN_THE_WAY[verdict.state]
        why = why % verdict.count if "%d" in why else why
        text = "table %s keeps its rule %s, the App's %s is not used: %s; to change it, %s"
        log.warning(text, table, old, wanted, why, HOW_TO_CHANGE_IT)
    return verdict


def _change(
    setup: Setup, shared: Shared, link: Connections, wanted: Rule, may_bury: bool
) -> Verdict:
    deadline = time.monotonic() + setup.settings.lease_seconds
    rounds = 0
    while True:
        verdict = _once(setup, link, wanted, may_bury)
        if verdict.state is rule.Answer.HELD and rounds < ROUNDS:
            rounds += 1
            _recover_dead(setup, shared, link)
        elif verdict.state is rule.Answer.LOCKED and time.monotonic() < deadline:
            time.sleep(rule.look_seconds(setup.tables))
        else:
            return verdict


def _once(setup: Setup, link: Connections, wanted: Rule, may_bury: bool) -> Verdict:
    """A rollback by the database, such as a deadlock, counts as LOCKED."""
    try:
        with link.transaction() as conn:
            return rule.change(conn, setup.tables, wanted, may_bury=may_bury)
    except Exception as error:
        if trouble(error) is not Trouble.AGAIN:
            raise
        return Verdict(rule.Answer.LOCKED)


def _recover_dead(setup: Setup, shared: Shared, link: Connections) -> None:
    """Recover messages of dead instances, as the housekeeping does."""

    def rest(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    recovery = Recovery(setup, shared, link, rest=rest)
    recovery.run(time.monotonic())
    while recovery.more:
        recovery.run(time.monotonic())
