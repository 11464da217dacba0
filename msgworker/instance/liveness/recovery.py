"""Recover the messages of dead instances: a part of the housekeeping, on its connection.

The database decides which instances are dead (an expired lease, taken over by one winner) and which
rows are given back. The time of recovery per round is limited, so that the rest of the housekeeping
is done in time, and it pauses between batches, so that others can work.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.db.database import Trouble
from msgworker.db.errors import reason_of, trouble
from msgworker.events import Cancelled, Dead, Event, Recovered
from msgworker.instance.connections import Connections
from msgworker.instance.settling.writer import send_about_dead
from msgworker.instance.state import Peers, Setup, Shared
from msgworker.message import UNWRITABLE
from msgworker.payload import shown
from msgworker.schema import rule
from msgworker.schema.rule import Rule, Verdict
from msgworker.store import lease, recover
from msgworker.store.claim import OF_A_ROW
from msgworker.store.rows import MIN_ID
from msgworker.store.send import notify

BEAT_SHARE = 0.5
"""Maximum share of the time between two rounds that a round spends on recovery."""
LEAST_SHARE = 0.1
"""Minimum share, however long the rest of the round has taken."""
REST_FACTOR = 3
"""The rest after a batch, as a multiple of the time that the batch took."""
REST_SHARE = 0.05
"""Maximum of that rest, as a share of the time between two rounds."""
NOT_RENEWED = (
    ", or did not renew its lease in time: its process still runs, so it was suspended, or a call "
    "of a handler kept Python's GIL for as long as a lease"
)
RecoverSome = Callable[[list[int], str, bool], int]
"""Gives messages back in a transaction, with this error text. True: and sends the messages of
`on_dead` about those that are dead now. Returns how many."""
MOST_FOREIGN = 10_000
"""Rows of foreign consumers whose age one instance knows."""
FORBEAR_LEASES = 2.0
"""An instance that was late with its own renewal takes over only those that have not renewed theirs
for this many leases: what delayed it may have delayed them."""
OTHERS_SECONDS = 3600.0
"""The lease of an instance of another table is left to those of that table for so long."""


def runs_here(dead: lease.Lease) -> bool:
    """Whether a process with the pid of this dead instance runs on this host."""
    said = dead.served.process
    pid = said.get("pid", 0)
    if os.name != "posix" or said.get("host") != socket.gethostname() or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


@dataclass(eq=False)
class Recovery:
    """The recovery of dead instances by this one; runs in the housekeeper's thread.

    rest: waits so many seconds; returns true, perhaps earlier, if the instance stops.
    on_recovered: called in the transaction of each batch, with its ids; returns the events to emit
    when that is committed. more: whether the last round ran out of time; the next one is due at
    once. under_way: messages are being given back. begun: how many instances it has begun to
    recover. The fetcher reads these two.
    """

    _setup: Setup
    _shared: Shared
    _link: Connections
    rest: Callable[[float], bool]
    on_recovered: Callable[[Connection, list[int]], Sequence[Cancelled]] = lambda conn, ids: ()

    def __post_init__(self) -> None:
        self._log = self._shared.log
        self._until = 0.0  # on the monotonic clock
        self._moved = False  # whether this round has made progress
        # The last row of a dead instance, where time ran out.
        self._seen: dict[recover.Owner, int] = {}
        self._foreign: dict[int, tuple[int, float]] = {}
        self._refused: set[int] = set()  # rows that cannot be recovered, logged once
        self.more = False
        self.under_way = False
        self.begun = 0

    def run(self, begun: float) -> int:
        """Recover, in a round that began at `begun` (monotonic); returns how many messages were
        given back."""
        setup, shared, beat = self._setup, self._shared, self._setup.settings.heartbeat_seconds
        self.more = self._moved = False
        with self._link.transaction() as conn:
            leases = lease.read_all(conn, setup.tables)
            holders = recover.owners(conn, setup.tables)
        self._count_peers(leases)
        self._until = max(begun + BEAT_SHARE * beat, time.monotonic() + LEAST_SHARE * beat)
        self._restart_ttls([one for one in leases if one.ahead and one.name != shared.identity.id])
        recovered, failed = 0, list[Exception]()

        def tried(work: Callable[[], int]) -> int:
            try:
                return work()
            except Exception as error:
                if trouble(error) is Trouble.LOST:
                    raise
                failed.append(error)
                return 0

        try:
            for work in self._due(leases, holders):
                self.under_way = True
                self.begun += 1
                recovered += tried(work)
                if self._out_of_time():
                    self.more = True
                    break
            recovered += tried(self._recover_foreign)
            # Rows that cannot be given back wait for the next round.
            self.more = self.more and self._moved
        finally:
            self.under_way = self.more
        if failed:  # the others are recovered
            raise failed[0]
        return recovered

    def _out_of_time(self) -> bool:
        """Whether the time is over, or we may be dead ourselves."""
        return time.monotonic() > self._until or self._shared.identity.in_doubt

    def _count_peers(self, leases: list[lease.Lease]) -> None:
        me, ours = self._shared.identity.id, (None, self._setup.tables.label)
        live = [one for one in leases if one.live and one.taken_by is None]
        names = sorted(one.name for one in live if one.served.table in ours)
        if me in names:
            self._shared.peers = Peers(names.index(me), len(names))

    def _restart_ttls(self, ahead: list[lease.Lease]) -> None:
        """Restart leases whose last renewal is in the future of the database's clock, which was set
        back: else dead instances would look alive."""
        changed = 0
        for one in random.sample(ahead, len(ahead)):
            with self._link.transaction() as conn:
                changed += lease.restart_ttl(conn, self._setup.tables, one)
            if self._out_of_time():
                break
        if changed:
            text = "the database's clock was set back: %s again from now"
            self._log.warning(text, plural(changed, "lease", "starts", "start"))

    def _due(
        self, leases: list[lease.Lease], holders: list[recover.Owner]
    ) -> Iterator[Callable[[], int]]:
        """The instances to recover, in random order, so that a long recovery does not starve
        others."""
        identity, tenure = self._shared.identity, self._shared.identity.tenure
        me, late = tenure.id, tenure.late or (tenure.registered and not identity.trusted())
        forbear = FORBEAR_LEASES * self._setup.settings.lease_seconds if late else 0.0
        ours = (None, self._setup.tables.label)
        for seen in random.sample(leases, len(leases)):
            if seen.name == me:
                continue
            others = not seen.live and seen.served.table not in ours and seen.name not in holders
            patience = max(forbear, OTHERS_SECONDS) if others else forbear
            if not seen.live and (seen.silent is None or seen.silent >= patience):
                yield partial(self._take_over, seen)
            elif seen.taken_by == me:  # it had more rows than we could give back in one round
                yield partial(self._recover_all, seen)
        known = {one.name for one in leases}
        for orphan in holders:
            if orphan not in known and orphan != me:
                yield partial(self._recover_orphan, orphan)

    def _recover_foreign(self) -> int:
        """Rows without an owner that have been flagged for `foreign_stale_after` seconds.

        No column records when a foreign consumer flagged them, so this counts the time for which we
        have seen them flagged with the same number of tries.
        """
        tables, patience = self._setup.tables, self._setup.settings.foreign_stale_after
        if patience is None:
            return 0
        with self._link.transaction() as conn:
            flagged = dict(recover.foreign(conn, tables, limit=MOST_FOREIGN))
        now, before = time.monotonic(), self._foreign
        self._foreign = {
            msg_id: before[msg_id] if before.get(msg_id, (None,))[0] == tries else (tries, now)
            for msg_id, tries in flagged.items()
        }
        stale = {i: tries for i, (tries, since) in self._foreign.items() if now - since > patience}
        recovered = 0
        text = f"a foreign consumer held this message for more than {patience:g} s"
        for tries, part in _parts(stale):
            begun = time.monotonic()
            recovered += self._all_or_each(part, partial(self._try_foreign, tries), text)
            if self._rest_after(time.monotonic() - begun) or self._out_of_time():
                self.more = True
                self._moved |= recovered > 0
                break
        if recovered:
            self._log.warning("recovered %s of a foreign consumer", plural(recovered, "message"))
        return recovered

    def _take_over(self, seen: lease.Lease) -> int:
        setup, shared = self._setup, self._shared
        me, ttl = shared.identity.id, setup.settings.lease_seconds
        with self._link.transaction() as conn:
            won = lease.take_over(conn, setup.tables, seen, me=me, ttl=ttl)
        if not won:
            return 0
        return self._recover_all(seen)

    def _recover_all(self, dead: lease.Lease) -> int:
        """Give back the rows of an instance whose lease we took over; drop the lease after the last
        row."""
        tables, shared = self._setup.tables, self._shared
        recovered, finished = self._recover_rows(dead.name, NOT_RENEWED if runs_here(dead) else "")
        if finished:
            with self._link.transaction() as conn:
                lease.drop(conn, tables, dead.name, taken_by=shared.identity.id)
            self._moved = True
        # If it was taken over before, another instance has logged it.
        if finished and not recovered and dead.taken_by is None:
            unknown = "" if tables.has("claimed_by") else ", as far as the table can tell"
            self._log.warning("instance %s is dead; it had no message%s", dead.name, unknown)
        return recovered

    def _recover_orphan(self, dead_id: recover.Owner) -> int:
        """Rows of an id without any lease: an instance that dropped it, or a row edited by hand. It
        may have registered, and claimed, between the two reads of `run`."""
        with self._link.transaction() as conn:
            if dead_id in {one.name for one in lease.read_all(conn, self._setup.tables)}:
                return 0
        return self._recover_rows(dead_id)[0]

    def _recover_rows(self, dead_id: recover.Owner, why: str = "") -> tuple[int, bool]:
        """Give back rows in batches, in short transactions. Returns how many, and whether no row is
        left. Locked ones are left for the next round; if time runs out, it continues after the last
        row of this one."""
        tables = self._setup.tables
        text = f"instance {shown(dead_id)} died while it held this message{why}"
        after = self._seen.pop(dead_id, MIN_ID)
        recovered, all_of_them = 0, after == MIN_ID
        while True:
            begun = time.monotonic()
            with self._link.transaction() as conn:
                ids = recover.flagged_by(conn, tables, dead_id, after=after, limit=recover.BATCH)
            done = self._all_or_each(ids, partial(self._try_to, dead_id), text)
            recovered += done
            all_of_them &= done == len(ids)
            if done:
                self._moved = True
                self._shared.look_now.set()
            if len(ids) < recover.BATCH:
                break
            after = ids[-1]
            if self._rest_after(time.monotonic() - begun) or self._out_of_time():
                self._seen[dead_id], all_of_them = after, False
                break
        if recovered:
            event = Recovered(self._shared.identity.id, shown(dead_id), recovered)
            self._setup.events.emit(event)
        return recovered, all_of_them

    def _all_or_each(self, ids: list[int], recover_some: RecoverSome, text: str) -> int:
        """Give back together, else one by one, so that no row blocks the others; returns how
        many."""
        if not ids:
            return 0
        try:
            done = recover_some(ids, text, True)
        except Exception as error:
            if trouble(error) not in OF_A_ROW:
                raise
            done = 0
            for one in random.sample(ids, len(ids)):
                if self._out_of_time():
                    break
                done += self._each(one, recover_some, text)
        if done:
            self._shared.in_flight.look_again.append(min(ids))
        return done

    def _each(self, msg_id: int, recover_some: RecoverSome, text: str) -> int:
        # The table may refuse the text, or a message of `on_dead`.
        for words, sends_on_dead in ((text, True), (text, False), (UNWRITABLE, False)):
            try:
                return recover_some([msg_id], words, sends_on_dead)
            except Exception as error:
                if trouble(error) not in OF_A_ROW:
                    raise
                why = reason_of(error)
        if msg_id not in self._refused:
            self._refused.add(msg_id)
            self._log.error("message %s cannot be recovered: %s", msg_id, why)
        return 0

    def _try_foreign(self, tries: int, ids: list[int], text: str, sends_on_dead: bool) -> int:
        give_back = partial(recover.recover_foreign, seen_tries=tries)
        return self._give_back(give_back, ids, text, sends_on_dead)

    def _try_to(
        self, dead_id: recover.Owner, ids: list[int], text: str, sends_on_dead: bool
    ) -> int:
        give_back = partial(recover.recover, dead_id=dead_id)
        return self._give_back(give_back, ids, text, sends_on_dead)

    def _give_back(
        self, give_back: Callable[..., int], ids: list[int], text: str, sends_on_dead: bool
    ) -> int:
        setup, recovered = self._setup, list[int]()
        registry, tables, me = setup.registry, setup.tables, self._shared.identity.id
        sends_on_dead = sends_on_dead and registry.has_follow_ups
        with self._link.transaction() as conn:
            done = give_back(conn, tables, ids, text=text, into=recovered)
            cancelled = self.on_recovered(conn, recovered)
            ended = {event.message.msg_id for event in cancelled}
            other = [msg_id for msg_id in recovered if msg_id not in ended]
            died = recover.died(conn, tables, other, ahead=not sends_on_dead)
            # Each once, since only one instance gives a row back.
            if sends_on_dead and send_about_dead(conn, registry, tables, died, text):
                notify(conn, setup.channel)
        events: list[Event] = [*(Dead(me, row, text) for row in died), *cancelled]
        for event in events:
            setup.events.emit(event)
        return done

    def _rest_after(self, took: float) -> bool:
        """Pause after a batch that took so many seconds; True if the instance stops."""
        most = REST_SHARE * self._setup.settings.heartbeat_seconds
        return self.rest(min(REST_FACTOR * took, most))


def _parts(tries_of: Mapping[int, int]) -> Iterator[tuple[int, list[int]]]:
    """Numbers of tries, each with a batch of the messages that have it."""
    for tries in set(tries_of.values()):
        ids = [msg_id for msg_id, own in tries_of.items() if own == tries]
        for start in range(0, len(ids), recover.BATCH):
            yield tries, ids[start : start + recover.BATCH]


# --- Make an App's rule the rule of its table, while no instance is alive.
#
# Messages of dead instances are recovered first, by the old rule. If an instance is alive, the
# table keeps its rule, and the caller uses that.

ROUNDS = 3
"""How often to try to recover messages of dead instances; what is left then is locked."""
IN_THE_WAY = {
    rule.Answer.BUSY: "live instances: %d",
    rule.Answer.HELD: "dead instances whose messages cannot be given back now: %d",
    rule.Answer.LOCKED: "another process is starting on it, or is suspended while doing so",
    rule.Answer.DEADLY: "failed messages that would be dead by it: %d",
}
HOW_TO_CHANGE_IT = "stop all its instances, then run `msgworker init-db`"


def change_rule(setup: Setup, wanted: Rule, log: logging.Logger, *, may_bury: bool) -> Verdict:
    """Make `wanted` the rule of the table, or return why not; logs one line about it.

    setup: with the rule that was read. may_bury: also if failed messages become dead by it: only on
    explicit request, since a start with another configuration may be a mistake. Waits up to a lease
    while another process changes it.
    """
    verdict = _change(setup, wanted, may_bury)
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


def _change(setup: Setup, wanted: Rule, may_bury: bool) -> Verdict:
    shared = Shared(setup)  # as of an instance, but it is never registered
    deadline, rounds = time.monotonic() + setup.settings.lease_seconds, 0
    with shared.connector.once() as link:
        while True:
            try:
                with link.transaction() as conn:
                    verdict = rule.change(conn, setup.tables, wanted, may_bury=may_bury)
            except Exception as error:
                if trouble(error) is not Trouble.AGAIN:
                    raise
                verdict = Verdict(rule.Answer.LOCKED)  # the database rolled it back
            if verdict.state is rule.Answer.HELD and rounds < ROUNDS:
                rounds += 1
                _recover_dead(setup, shared, link)
            elif verdict.state is rule.Answer.LOCKED and time.monotonic() < deadline:
                time.sleep(rule.look_seconds(setup.tables))
            else:
                return verdict


def _recover_dead(setup: Setup, shared: Shared, link: Connections) -> None:
    """Recover messages of dead instances, as the housekeeping does."""
    recovery = Recovery(setup, shared, link, rest=threading.Event().wait)
    recovery.run(time.monotonic())
    while recovery.more:
        recovery.run(time.monotonic())
