"""Ask for work when there is room.

Claims take heads, then read the runs behind them in a new statement, after the flags have
committed. How much is held in hand is for appetite.py to say; what waits here too long while other
instances live is given back.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from math import inf
from typing import Any

from sqlalchemy.exc import DBAPIError

from msgworker.dialects import Trouble, reason_of, secrets_of, trouble, without
from msgworker.instance.appetite import Appetite
from msgworker.instance.lanes import Lanes
from msgworker.instance.role import EVERYDAY, Role
from msgworker.instance.search import Look, Search
from msgworker.instance.seat import Seat
from msgworker.instance.settler import Settler
from msgworker.instance.slicing import SliceSearch
from msgworker.instance.state import Lane, State, in_quarantine
from msgworker.instance.sweep import holds_nothing, release_unknown
from msgworker.message import topic_of
from msgworker.store import claim, due
from msgworker.store.claim import Candidate, Row
from msgworker.store.instances import leased, leases_ending
from msgworker.table import Slice

FIRST_PAUSE = 0.01
TICK_SECONDS = 0.01
BARREN_LOOKS = 3
OVERDUE_SECONDS = 2.5
FAST_SECONDS = 5.0
FEAST_SECONDS = 30.0
LONGEST_FAST_SECONDS = 600.0
LONGEST_REST_SECONDS = 30.0
LEFT_TO_OTHERS = 4.0
ASK_SECONDS = 0.5
TOPIC_REPORT_SECONDS = 3600.0
TOPIC_ASK_SECONDS = 60.0


class Fetcher(Role):
    """The claim loop."""

    def __init__(
        self,
        state: State,
        *,
        lanes: Lanes,
        settler: Settler,
        drain_linger: float | None = None,
        retry_linger: float = 0.0,
        seat: Seat | None = None,
    ) -> None:
        super().__init__("fetcher", state.log, state.away)
        self._state = state
        self._lanes = lanes
        self._settler = settler
        self.link = self._link = state.link(tuned=True)
        kind = Search if seat is None else SliceSearch
        self._search = kind(state.tables, state.topics, state.blocked)
        self._seat = seat
        self._where: Slice | None = None
        self._parts: dict[int, Any] = {}
        self._refusals = state.refusals
        self._secrets = secrets_of(state.engine.url)
        settings = state.settings
        self._appetite = Appetite(lanes.threads, settings.lanes_limit, settings.run_limit)
        self._linger = drain_linger
        self._retry_linger = retry_linger
        self._awaits: float | None = None  # a drain: seconds until there is something to do again
        self._barren = 0
        self._looked_afresh = False
        self._overdue_since: float | None = None
        self._runs_pay = 8
        self._suspect = False
        self._fast_until = 0.0
        self._fast_seconds = FAST_SECONDS
        self._unseen_seconds = self._round_since = self._rest = 0.0
        self._pause = FIRST_PAUSE
        self._asked_at = -ASK_SECONDS
        self._awaits_a_lease = False
        self._leases: dict[str | None, tuple[datetime | None, float]] = {}
        self._topics_told: dict[str, float] = {}  # when, on the monotonic clock
        self.overdue_seconds = OVERDUE_SECONDS
        self.beat_now: Callable[[], None] = lambda: None
        self.exhausted = False
        self._covered = False

    # ------------------------------------------------------------ one round

    def run_once(self) -> int:
        """Claim if there is room; returns how many lanes were won, -1 if there was no room."""
        if self._seat is None:
            return self._claim_if_room()
        self._covered = False
        try:
            return self._claim_if_room()
        finally:
            self._seat.looked(complete=self._covered)

    def _claim_if_room(self) -> int:
        self._lanes.nudge()
        self._settler.flush()
        state = self._state
        held = len(state.in_hand)
        busy = held + self._look_at_handlers()
        if not state.trusted() or self._runs_alone(held):
            return -1
        if not self._appetite.has_room(busy):
            self._share(held)
            return -1
        room = self._appetite.lanes - busy
        if state.wants_new_id and self._fasts(held):
            if held == 0:
                self._ask_for_new_id()
            return -1
        dry = self._lanes.waiting == 0
        me = state.instance_id
        look = self._look(room, held)
        if look.quarantined is not None and self._fasts(held):
            if held > 0:
                return self._nothing(look)
            if self._claim_alone(look.quarantined, me):
                return 1
            self._search.pass_over(look.quarantined)  # somebody else has it: go on with the others
        if look.quarantined is None and not state.wants_new_id:
            self._end_fast()
        won = self._claim(look.candidates, me) if look.candidates else 0
        self._appetite.fed(dry=dry, full=won >= room)
        return won or self._nothing(look)

    def _look_at_handlers(self) -> int:
        """Decide anew how much to hold; returns how many handlers of an id that was lost still have
        their threads."""
        now = time.monotonic()
        running = list(self._state.running.values())
        self._appetite.sees(self._lanes.mean_seconds, [now - r.since for r in running])
        return sum(not self._state.is_ours(r.owner) for r in running)

    def _share(self, held: int) -> None:
        """Give back, without a try, what would wait here for long while another instance may have
        threads for it. It is not claimed again at once: there is no room for it."""
        excess = held - self._appetite.kept
        if excess <= 0 or self._state.slots < 2 or self._state.fasts:
            return
        if self._where is not None and self._where.exclusive:  # nobody else would take it
            return
        lanes = self._lanes.take_back(excess)
        if lanes:
            self.log.debug("gave back %d messages that waited for a thread", len(lanes))
            self._settler.give_back(lanes)

    def _ask_for_new_id(self) -> None:
        now = time.monotonic()
        if now > self._asked_at + ASK_SECONDS:
            self._asked_at = now
            self.beat_now()

    def _runs_alone(self, held: int) -> bool:
        """Whether what is in hand is a message in quarantine: nothing is claimed beside it."""
        if held != 1:
            return False
        max_tries = self._state.tables.spec.max_tries
        rows = [lane.rows[0] for lane in list(self._state.in_hand)]
        return any(in_quarantine(row.crash_times, row.tries, max_tries) for row in rows)

    def _fasts(self, held: int) -> bool:
        """Start nothing for a while, so that our hands get empty: for a message in quarantine, or
        for a new id. Where handlers take longer, each fast lasts longer than the one before."""
        now = time.monotonic()
        if held == 0:
            self._end_fast()
            self._fast_seconds = FAST_SECONDS
            return True
        if self._fast_until == 0.0:
            self._fast_until = now + self._fast_seconds
            self._state.fasts = True
            self._settler.give_back(self._lanes.take_back())
        elif now > self._fast_until + FEAST_SECONDS:
            self._end_fast()
        elif self._state.fasts and now > self._fast_until:
            self._state.fasts = False
            self._fast_seconds = min(LONGEST_FAST_SECONDS, self._fast_seconds * 2)
        return self._state.fasts

    def _end_fast(self) -> None:
        self._fast_until = 0.0
        self._state.fasts = False

    def _claim_alone(self, candidate: Candidate, me: str) -> int:
        """Claim a message in quarantine, if really nothing else is flagged by us."""
        state = self._state
        with state.claiming:
            release_unknown(state, self._link)
            if state.in_hand or not holds_nothing(state, self._link):
                return 0
        return self._claim([candidate], me)

    def _look(self, room: int, held: int) -> Look:
        state = self._state
        objects, ids = state.held_by_ghosts()
        if self._refusals:
            refused_objects, refused_ids = self._refusals.waiting()
            objects, ids = objects | refused_objects, ids | refused_ids
        self._search.paused = state.paused
        look = self._looked(room, held, objects, ids)
        objects, ids = state.held()  # asked after the look, see there
        look.candidates = [
            c for c in look.candidates if c.same not in objects and c.msg_id not in ids
        ]
        if state.doubtful:
            self._drop_doubtful(look)
        self._report_topics()
        return look

    def _looked(self, room: int, held: int, objects: set[Any], ids: set[int]) -> Look:
        state = self._state
        wants: dict[str, Any] = {
            "want": room,
            "slot": state.slot,
            "slots": state.slots,
            "skip_objects": objects,
            "skip_ids": ids,
        }
        if self._seat is None:
            with self._link.statement() as conn:
                return self._search.look(conn, in_hand=held, **wants)
        assert isinstance(self._search, SliceSearch)
        self._where = self._seat.slice()
        if self._where is None:
            return Look(complete=True)
        ours, mine = state.held()  # what runs is not in the index of slices: what waits behind is
        wants |= {"skip_objects": objects | ours, "skip_ids": ids | mine}
        with self._link.statement() as conn:
            look = self._search.look_in(conn, self._where, **wants)
        self._parts = look.places
        self._covered = look.complete and not look.candidates
        return look

    def _drop_doubtful(self, look: Look) -> None:
        """Not under this id; see `State.doubtful`."""
        state = self._state
        free = [c for c in look.candidates if c.msg_id not in state.doubtful]
        if look.quarantined is not None and look.quarantined.msg_id in state.doubtful:
            look.quarantined = None
            state.wants_new_id = True
        if len(free) < len(look.candidates):
            state.wants_new_id = True
        look.candidates = free

    def _claim(self, candidates: list[Candidate], me: str) -> int:
        """Flag; me: the id under which we looked."""
        state = self._state
        with state.claiming:
            if state.instance_id != me or not state.trusted():
                return 0  # declared dead meanwhile: what was looked at is not for our new self
            if self._suspect:  # the last claim may have been committed without our knowing
                release_unknown(state, self._link)
            self._suspect = True
            rows = self._flag(candidates, me)
            self._suspect = False
            lanes = [Lane(me, [row]) for row in rows]
            if self._seat is not None:
                for lane in lanes:
                    lane.part = self._parts.get(lane.row.msg_id)
            state.in_hand.update(lanes)
        state.tally.claims += 1
        state.tally.offered += len(candidates)
        state.tally.won += len(rows)
        if len(rows) < len(candidates):
            won = {row.msg_id for row in rows}
            lost = [c for c in candidates if c.msg_id not in won]
            self._search.refused(lost)
            self._refusals.lost(lost)
        if not rows:
            return 0
        # A message in quarantine is claimed as the only one: nothing behind it, nothing beside it.
        if not in_quarantine(rows[0].crash_times, rows[0].tries, state.tables.spec.max_tries):
            self._read_runs(lanes)
        self._barren = 0
        self._looked_afresh = False
        self._overdue_since = None
        self._lanes.put(lanes)
        return len(rows)

    def _flag(self, candidates: list[Candidate], me: str) -> list[Row]:
        together, alone = self._refusals.sorted_out(candidates)
        rows = self._flag_together(together, me) if together else []
        if alone:
            rows += self._flag_apart([[one] for one in alone], me)
            rows.sort(key=lambda row: row.msg_id)
        self._refusals.tell(self.log)
        return rows

    def _flag_together(self, candidates: list[Candidate], me: str) -> list[Row]:
        tables = self._state.tables
        try:
            if tables.dialect.arrays:
                with self._link.statement() as conn:
                    return claim.flag(conn, tables, candidates, me=me)
            with self._link.transaction() as conn:
                return claim.flag(conn, tables, candidates, me=me)
        except claim.LeftAlone:
            pass
        except DBAPIError as error:
            if trouble(error) not in claim.OF_A_ROW:
                raise
        return self._flag_apart([candidates], me)

    def _flag_apart(self, parts: list[list[Candidate]], me: str) -> list[Row]:
        """One that cannot be flagged does not hold up the others."""
        rows: list[Row] = []
        refused: dict[int, DBAPIError] = {}
        with self._link.transaction() as conn:
            claim.refuse_at_once(conn, self._state.tables)
            for part in parts:
                won, errors = claim.flag_apart(conn, self._state.tables, part, me=me)
                rows += won
                refused |= errors
        for one in (one for part in parts for one in part):
            error = refused.get(one.msg_id)
            if error is None:
                self._refusals.heard(one, None)
            # The guard may be why: that somebody was faster is no refusal, but not every time.
            elif trouble(error) is not Trouble.RACE or self._refusals.suspects(one):
                self._refusals.heard(one, without(reason_of(error), self._secrets))
        return rows

    def _read_runs(self, lanes: Sequence[Lane]) -> None:
        """Objects with one message each need no runs: then only every 8th claim looks for them."""
        self._runs_pay -= 1
        run = self._appetite.run
        if run < 1 or (self._runs_pay < 0 and self._runs_pay % 8):
            return
        heads = [lane.row for lane in lanes]
        try:
            with self._link.statement() as conn:
                t = self._state.tables
                runs = claim.read_runs(conn, t, heads, limit=run, within=self._where)
        except Exception as error:
            # The heads are flagged: they must run, if without followers.
            kind = trouble(error)
            level = logging.DEBUG if kind in EVERYDAY else logging.WARNING  # an outage is told once
            text = "runs could not be read; going on with the heads: %s"
            self.log.log(level, text, reason_of(error), exc_info=kind is Trouble.OTHER)
            return
        topics = self._state.topics
        for lane in lanes:
            followers = runs.get(lane.row.msg_id, ())
            for row in followers:
                if topics is not None and topic_of(row.topic) not in topics:
                    break
                if self._state.is_paused(row) or row.msg_id in self._state.doubtful:
                    break
                lane.rows.append(row)
            if followers:
                self._runs_pay = 8
        self._appetite.saw([lane.rows[-1] for lane in lanes])

    # ------------------------------------------------------------ nothing found

    def _nothing(self, look: Look) -> int:
        self._note_round(look)
        self._awaits = None
        if self._state.in_hand:
            self._barren = 0
            self._looked_afresh = False
            self._overdue_since = None
        elif self._seat is not None and not self._seat.settled:
            self._barren = 0  # there may be more in a moment
        elif look.complete or (look.round_over and not look.candidates):
            self._barren += 1
            if self._barren == 1:  # what was passed over a moment ago may be free by now
                self._search.forget()
            if self._linger is not None and self._barren >= BARREN_LOOKS:
                self._consider_end(self._linger)
        return 0

    def _note_round(self, look: Look) -> None:
        """Rounds over many messages that nobody may take (a paused topic, say) go on without idle
        pauses, but leave the database most of the time, and rest longer than they took."""
        now = time.monotonic()
        if look.complete or look.round_over:
            took = now - self._round_since if self._round_since else 0.0
            self._rest = min(LEFT_TO_OTHERS * took, LONGEST_REST_SECONDS)
            self._round_since = self._unseen_seconds = 0.0
        else:
            self._round_since = self._round_since or now
            self._unseen_seconds = look.seconds

    def _consider_end(self, linger: float) -> None:
        if self._suspect:  # the answer to the last claim was lost: some rows may be ours unknown
            with self._state.claiming:
                release_unknown(self._state, self._link)
            self._suspect = False
            self._barren = 0
            self._search.forget()
            return
        if self._state.recovering:  # what is given back may be ours to do
            return
        if not self._looked_afresh:  # what was remembered between looks may have hidden something
            self._looked_afresh = True
            self._search.forget()
            return
        if self._seat is not None and self._where is None:  # nothing to wait for
            self.exhausted = True
            self.stop()
            return
        with self._link.statement() as conn:
            coming = due.coming(
                conn,
                self._state.tables,
                topics=self._state.topics,
                paused=self._state.paused,
                linger=linger,
                retry_linger=self._retry_linger,
                within=self._where,
            )
        self._awaits = coming.seconds
        if coming.seconds is None and linger > 0:
            self._awaits, before = self._until_a_lease_ends(linger), self._awaits_a_lease
            self._awaits_a_lease = self._awaits is not None
            if before and not self._awaits_a_lease:  # what it had may be free since we looked
                self._looked_afresh = False
                return
        if self._awaits is not None:
            self._overdue_since = None
        elif not coming.overdue:
            self.exhausted = True
            self.stop()
        else:
            # Due, but nothing could be claimed: it waits behind something that is not ours.
            now = time.monotonic()
            self._overdue_since = self._overdue_since or now
            if now - self._overdue_since > self.overdue_seconds:
                self.exhausted = True
                self.stop()

    def _until_a_lease_ends(self, linger: float) -> float | None:
        """Seconds until another instance that has messages is dead, if within `linger`; a lease
        that is renewed meanwhile, or that nobody can take over, is not waited for."""
        state = self._state
        with self._link.statement() as conn:
            ending = leases_ending(conn, state.tables, within=linger, but=state.instance_id)
        now, awaited = time.monotonic(), []
        for one in ending:
            left = one.left_seconds or 0.0
            late = now + left + state.settings.heartbeat_seconds
            renewed_at, until = self._leases.setdefault(one.instance_id, (one.renewed_at, late))
            if one.renewed_at == renewed_at and now < until:
                awaited.append(left)
        if 0.0 in awaited:
            self.beat_now()  # it takes the lease over
        return min(awaited, default=None)

    def _report_topics(self) -> None:
        """Topics that nobody has a handler for: each once an hour, a new one at once."""
        unknown = self._search.unknown_topics
        if not unknown:
            return
        now, told = time.monotonic(), self._topics_told
        # A topic need not be a text (SQLite).
        late = (t for t in unknown if now - told.get(t, -inf) > TOPIC_REPORT_SECONDS)
        handled = self._state.registry.topics()  # it has a handler, and was not chosen
        asked = [t for t in late if handled is not None and t not in handled]
        new = self._of_nobody(asked, now) if asked else []
        if new:
            self._topics_told = {
                t: at for t, at in told.items() if now - at <= TOPIC_REPORT_SECONDS
            } | dict.fromkeys(new, now)
            names = ", ".join(repr(name) for name in new[:10])
            more = f" and {len(new) - 10:,} more" if len(new) > 10 else ""
            self.log.warning("messages wait whose topic has no handler here: %s%s", names, more)

    def _of_nobody(self, topics: Sequence[Any], now: float) -> list[Any]:
        """Those of the topics that no other live instance handles; the others are asked about again
        in a while."""
        with self._link.statement() as conn:
            others = leased(conn, self._state.tables)
        theirs = [t for t in topics if any(one.handles(t) for one in others)]
        again = now - TOPIC_REPORT_SECONDS + TOPIC_ASK_SECONDS
        self._topics_told |= dict.fromkeys(theirs, again)
        return sorted((t for t in topics if t not in theirs), key=str)

    def pause_seconds(self, did: int) -> float:
        """No pause while there is room and work; a tick while hands are full; longer when idle."""
        if did > 0:
            self._unseen_seconds = self._round_since = self._rest = 0.0
            self._pause = FIRST_PAUSE
            return 0.0 if did * 4 >= self._appetite.lanes else 0.001
        if did < 0 or self._state.in_hand:
            return TICK_SECONDS
        if self._unseen_seconds:
            return max(TICK_SECONDS, LEFT_TO_OTHERS * self._unseen_seconds)
        if self._linger is not None and self._awaits is None:
            return FIRST_PAUSE
        self._pause = min(self._state.settings.poll_seconds, self._pause * 1.3)
        if self._awaits is not None:
            return max(FIRST_PAUSE, min(self._pause, self._awaits))
        return max(self._rest, self._pause * random.uniform(0.75, 1.0))

    def wake(self) -> None:
        self._pause = FIRST_PAUSE
        super().wake()

    def wake_if_room(self) -> None:
        """Called after every settle."""
        if self._appetite.has_room(len(self._state.in_hand)):
            self._wake.set()

    def failed(self, error: BaseException) -> None:
        self._search.forget()
        # What was due while the database was away was not passed over: a drain begins its end anew.
        self._barren = 0
        self._looked_afresh = False
        self._overdue_since = None

    def ended(self) -> None:
        self._link.close()
