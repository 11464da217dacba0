"""The checker is itself checked: good histories are clean, each bad one is reported by its rule.

A checker that is never seen red proves nothing; one that is red on correct code is switched off.
"""

from __future__ import annotations

import os
import re
import threading
import time
from ast import literal_eval
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proof.history import (
    Cancel,
    Event,
    Final,
    JobRow,
    Keyed,
    Kind,
    Outcome,
    Recorder,
    Row,
    from_line,
    to_line,
)
from proof.judge import (
    CANCELLED,
    CHAIN,
    JOB_OVER,
    ON_DEAD,
    ON_DONE,
    SENT_BY,
    Rule,
    Terms,
    Violation,
    check,
    odd_ticks,
    too_many,
)

NEW, DONE, DEAD = (0, 0), (2, 0), (-1, 3)
WHOLE_RUN = [Kind.CLAIMED, Kind.STARTED, Kind.ENDED, Kind.SETTLED]


@dataclass
class Tale:
    """A history told step by step, one second each, with its final table and check settings."""

    events: list[Event] = field(default_factory=list)
    objects: dict[int, str | None] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    observed: list[tuple[float, list[tuple[str | None, int, int]]]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)  # more fields of Final
    now: float = 0

    def tell(self, kind: Kind, who: str, msg_id: int | None = None, **facts: Any) -> Tale:
        self.now += 1
        obj = None if msg_id is None else self.objects.get(msg_id)
        self.events.append(Event(kind, self.now, who, msg_id, obj, **facts))
        return self

    def insert(self, *ids: int, obj: str | None = "X") -> Tale:
        for msg_id in ids:
            self.objects[msg_id] = obj
            self.tell(Kind.INSERTED, "producer", msg_id)
        return self

    def begin(self, who: str, msg_id: int, attempt: int | None = None) -> Tale:
        self.tell(Kind.CLAIMED, who, msg_id, attempt=attempt)
        return self.tell(Kind.STARTED, who, msg_id)

    def finish(self, who: str, msg_id: int, outcome: Outcome = Outcome.DONE) -> Tale:
        return self.tell(Kind.ENDED, who, msg_id).tell(Kind.SETTLED, who, msg_id, detail=outcome)

    def run(self, who: str, msg_id: int, outcome: Outcome = Outcome.DONE) -> Tale:
        return self.begin(who, msg_id).finish(who, msg_id, outcome)

    def ends(self, rows: dict[int, tuple[Any, ...]], **settings: Any) -> Tale:
        """Close the tale: msg_id -> (status, tries[, claimed_by]); what check() is told."""
        for msg_id, (status, tries, *by) in rows.items():
            self.rows[msg_id] = Row(self.objects.get(msg_id), status, tries, by[0] if by else None)
        self.settings |= settings
        return self

    def broken(self) -> set[Rule]:
        return {v.rule for v in self.judged()}

    def judged(self) -> list[Violation]:
        """What check() finds."""
        final = Final(self.rows, self.observed, **self.seen)
        return check(self.events, final, Terms(**self.settings))


# --- good and bad histories -----------------------------------------------------------------------
#
# A line: its name (of a bad one the rule that it breaks first), what happens, => how the table ends
# (new, done, dead, or status/tries/claimed_by), | under which terms. `insert 1 of Y`: of object Y,
# else X; `-` is none.


GOOD_TALES = """
one after another: insert 1 2; a run 1; b run 2 => 1 done, 2 done
two objects at once: insert 1; insert 2 of Y; a begin 1; a begin 2; a finish 1; a finish 2 => 1
    done, 2 done
null objects overlap: insert 1 2 3 of -; a begin 3; b begin 1; a begin 2; see -:1=1 -:2=1 -:3=1; a
    finish 3; b finish 1; a finish 2 => 1 done, 2 done, 3 done
retry then done: insert 1 2; a begin 1 try 1; a finish 1 failed; b begin 1 try 2; b finish 1; a run
    2 => 1 2/1, 2 done
dead then continue: insert 1 2; a run 1 failed; a run 1 failed; a run 1 dead; a run 2 => 1 dead, 2
    done
last failure not called dead: insert 1 2; a run 1 failed; a run 1 failed; a run 1 failed; a run 2 =>
    1 dead, 2 done
dead then block: insert 1 2; a run 1 dead => 1 dead, 2 new | {"on_dead": "block"}
block until rerun: insert 1 2; a run 1 dead; rerun 1; a run 1; a run 2 => 1 done, 2 done |
    {"on_dead": "block"}
block until discarded: insert 1 2; a run 1 failed; discard 1; a run 2 => 1 dead, 2 done |
    {"on_dead": "block"}
late commit: insert 2; a begin 2; insert 1; a finish 2; b run 1 => 1 done, 2 done
late commit behind the read of a run: insert 2 3; a begin 2; insert 1; a finish 2; a claim 3 since
    4.5; a start 3; a finish 3; a run 1 => 1 done, 2 done, 3 done
rerun of a dead one waits for the lane: insert 1 2; a run 1 dead; a begin 2; rerun 1; a finish 2; b
    run 1 => 1 done, 2 done
rerun starts the count anew: insert 1; a run 1 failed; a run 1 failed; a run 1 dead; rerun 1; a run
    1 failed; a run 1 failed; a run 1 => 1 2/2
rerun of a done one: insert 1; a run 1; rerun 1; a run 1; effect 1 1 => 1 done | {"transactional":
    {1}}
# Read at 2.5, as a follower; flagged when it waits again, before its lease is recovered.
discarded and rerun while a zombie claims: insert 1 2; lose z; discard 1; rerun 1; z claim 1 since
    2.5; z start 1; z finish 1; a run 2; effect 1 2 => 1 done, 2 done | {"transactional": True}
zombie taken over: insert 1 2; z begin 1 try 1; lose z; a recover 1 from z; a begin 1 try 2; z end
    1; z settle 1 lost; a finish 1; a run 2; effect 1 2 => 1 2/1, 2 done | {"transactional": True}
zombie settles before the flip: insert 1; z begin 1; lose z; z finish 1 => 1 done
zombie enters late: insert 1 2; z claim 1 try 3; lose z; a recover 1 from z; rerun 1; a begin 1 try
    1; z start 1; a finish 1; z end 1; z settle 1 lost; a run 2 => 1 done, 2 done
zombie writes its claim down after it was recovered: insert 1; lose z; a recover 1 from z; a run 1
    dead; rerun 1; z claim 1 since 1.5; z start 1; z end 1; z settle 1 lost; a run 1 failed; a run 1
    failed; a run 1 => 1 2/2
zombie never heard of again: insert 1 2; z begin 1; lose z; wait 90; a recover 1 from z; a run 1; a
    run 2 => 1 2/1, 2 done | {"ttl": 30}
zombie settled without a record: insert 1 2; z begin 1; z end 1; lose z; a run 2 => 1 done, 2 done
killed and recovered: insert 1 2; k begin 1; kill k; wait 40; a recover 1 from k; a run 1; a run 2
    => 1 2/1, 2 done | {"ttl": 30}
poison dies of its crashes: insert 1 2; k begin 1; kill k; a recover 1 from k; l begin 1; kill l; a
    recover 1 from l; m begin 1; kill m; a recover 1 from m; a run 2 => 1 dead, 2 done | {"ttl": 30}
killed before writing down its settle: insert 1 2 3; k begin 1; k end 1; kill k; a recover 2 from k;
    a run 2; a run 3; effect 1 2 3 => 1 done, 2 2/1, 3 done | {"transactional": True, "ttl": 30}
killed before writing down that it rejected: insert 1 2; k begin 1; k end 1 rejected; kill k; a run
    2 => 1 dead, 2 done | {"ttl": 30}
rejected though the answer was lost: insert 1; a begin 1; a end 1 rejected; a settle 1 lost => 1
    dead
commit whose answer was lost: insert 1 2; a begin 1; a end 1; b run 2; a settle 1 lost; effect 1 2
    => 1 done, 2 done | {"transactional": True}
rerun of what was silently done: insert 1; k begin 1; k end 1; kill k; rerun 1; a run 1; effect 1 1
    => 1 done | {"transactional": True}
killed after its settle: insert 1; k claim 1; k settle 1 released; kill k; wait 90; a run 1 => 1
    done | {"ttl": 30}
recoverer killed as well: insert 1 2; k begin 1; kill k; wait 30; kill l; wait 45; a begin 1 try 2;
    a finish 1; a run 2 => 1 2/1, 2 done | {"ttl": 30}
cut short after a kill: insert 1 2; k begin 1; kill k; wait 5; insert 3 => 1 1/0/k, 2 new, 3 new |
    {"ttl": 30, "finished": False}
claimed again in an outage without an answer: insert 1; a run 1 failed; wait 9; lose a; b recover 1
    from a; b run 1 => 1 2/2 | {"outages": [(6, 12)]}
recovered after an outage: insert 1; k begin 1; kill k; wait 80; a recover 1 from k; a run 1 => 1
    2/1 | {"ttl": 30, "outages": [(2, 10), (20, 45)]}
outages that overlap and one after the deadline that they move: insert 1; k begin 1; kill k; wait
    100; a recover 1 from k; a run 1 => 1 2/1 | {"ttl": 30, "outages": [(60, 90), (30, 45), (20,
    40), (25, 30)]}
recoverer killed and then an outage: insert 1; k begin 1; kill k; wait 30; kill l; wait 70; a run 1
    => 1 2/1 | {"ttl": 30, "outages": [(40, 62)]}
away until the end: insert 1 2; k begin 1; kill k; wait 90; insert 3 => 1 1/0/k, 2 new, 3 new |
    {"ttl": 30, "finished": False, "outages": [(50, 1e999)]}
orderly stop: insert 1 2 3; a begin 1 try 1; a end 1; a settle 1; a claim 2 try 1; a settle 2
    released; effect 1 => 1 done, 2 new, 3 new | {"orderly": True, "finished": False,
    "transactional": {1, 2, 3}}
released then done: insert 1; a begin 1 try 1; a finish 1 failed; a claim 1 try 2; a settle 1
    released; b begin 1 try 2; b finish 1 => 1 2/1 | {"orderly": True}
released by an instance that tells no attempts: insert 1; a claim 1; a settle 1 released; b begin 1
    try 1; b finish 1 => 1 done
released then rerun then discarded: insert 1; a claim 1 try 1; a settle 1 released; rerun 1; discard
    1 => 1 dead
# One thread of a settles, another has sent its claim by then.
settle recorded after the next claim was sent: insert 1; a begin 1 try 1; a end 1; a claim 1 try 2
    since 4.1; a settle 1 failed since 4.2; a start 1; a finish 1 => 1 2/1
discarded: insert 1 2; discard 1; a run 2 => 1 dead, 2 done
rejected: insert 1 2; a begin 1; a end 1 rejected; a settle 1 dead; a run 2 => 1 dead, 2 done
foreign beside ours: insert 1 2; old foreign 1; old foreign_done 1; a run 2 => 1 done, 2 done |
    {"orderly": True}
foreign told only at its end: insert 1 2; old foreign_done 1; a run 2 => 1 done, 2 done
foreign failed then ours: insert 1 2; old foreign 1; old foreign_failed 1; a begin 1 try 2; a finish
    1; a run 2 => 1 2/1, 2 done
foreign until dead: insert 1 2; old foreign 1; old foreign_failed 1; old foreign 1; old
    foreign_failed 1; old foreign 1; old foreign_failed 1; a run 2 => 1 dead, 2 done
foreign still at work: insert 1; insert 2 of Y; old foreign 1; a run 2 => 1 1/0, 2 done |
    {"orderly": True, "finished": False, "transactional": {1}}
foreign recovered when stale: insert 1 2; old foreign 1; wait 99; a recover 1 from foreign; a run 1;
    a run 2 => 1 2/1, 2 done
foreign failed then rerun twice: insert 1 2; old foreign 1; old foreign_failed 1; rerun 1; old
    foreign 1; old foreign_done 1; a run 2; rerun 1; old foreign 1; old foreign_done 1 => 1 done, 2
    done
zombie that ends after a rerun: insert 1 2; c begin 1; lose c; b recover 1 from c; rerun 1; old
    foreign 1; old foreign_done 1; a run 2; c end 1 => 1 2/1, 2 done
# b claims 2 after a's settle of 1 committed, and says so before a can write its line.
records later than commits: insert 1 2; a begin 1; a end 1; b claim 2 since 5.5; b start 2; a settle
    1 since 5.2; b finish 2 => 1 done, 2 done
insert recorded after its run: a run 1; insert 1 => 1 done
last try after a crash runs alone: insert 1; insert 2 of Y; k begin 1; k begin 2; kill k; a recover
    1 from k; a recover 2 from k; a run 1 failed; a run 1; a run 2 => 1 2/2, 2 2/1
zombie writes down late what it did before: insert 1; z begin 1 try 1; z end 1; lose z; a recover 1
    from z; z settle 1 failed since 4.2; z claim 1 try 2 since 4.5; z start 1; z end 1; z settle 1
    lost; a begin 1 try 3; a finish 1 => 1 2/2
cancelled while it ran: insert 1 2; a run 1 cancelled; a run 2; effect 2 => 1 dead, 2 done |
    {"transactional": True}
cancelled before it started: insert 1 2; a claim 1; a settle 1 cancelled; a run 2 => 1 dead, 2 done
cancelled when it was recovered: insert 1 2; k begin 1; kill k; a recover 1 from k; discard 1; a run
    2 => 1 dead, 2 done
two of a limit of two: insert 1 2 3 of -; a begin 1; b begin 2; a finish 1; a begin 3; b finish 2; a
    finish 3 => 1 done, 2 done, 3 done | {"limited": {1, 2, 3}, "max_running": 2}
# The permit of a dead instance is free with its lease, though its handler may still run.
zombies beside a limit: insert 1 2 of -; z begin 1; lose z; a recover 1 from z; a begin 2; z end 1;
    z settle 1 lost; a finish 2; a run 1 => 1 2/1, 2 done | {"limited": {1, 2}}
killed beside a limit: insert 1 2 of -; k begin 1; kill k; a recover 1 from k; a run 2; a run 1 => 1
    2/1, 2 done | {"limited": {1, 2}}
"""

BAD_TALES = """
i1 two instances on one message: insert 1; a begin 1; b begin 1; a finish 1; b end 1; b settle 1
    lost => 1 done
i1 late commit claimed beside a running one: insert 2; a begin 2; insert 1; b begin 1; b finish 1; a
    finish 2 => 1 done, 2 done
i1 recovered from a living instance: insert 1; a begin 1; b recover 1 from a; b begin 1; b finish 1;
    a end 1; a settle 1 lost => 1 2/1
i1 twice at once in one zombie: insert 2; z begin 2; lose z; insert 1; z begin 1; z finish 1; z
    finish 2 => 1 done, 2 done
i1 beside a foreign consumer: insert 2; old foreign 2; insert 1; a run 1; old foreign_done 2 => 1
    done, 2 done
i1 message without object twice at once: insert 1 of -; a begin 1; b begin 1; a finish 1; b end 1 =>
    1 done
i1 beside a foreign consumer that never ends: insert 2; old foreign 2; insert 1; a run 1 => 1 done,
    2 1/0 | {"finished": False}
i2 higher first: insert 1 2; a run 2; a run 1 => 1 done, 2 done
i2 past a failed one in backoff: insert 1 2; a run 1 failed; a run 2; a run 1 => 1 2/1, 2 done
i2 past a dead one that blocks: insert 1 2; a run 1 dead; a run 2 => 1 dead, 2 done | {"on_dead":
    "block"}
i2 past a recovered one: insert 1 2; k begin 1; kill k; a recover 1 from k; a run 2; a run 1 => 1
    2/1, 2 done
i2 rerun seen but passed over: insert 1 2; a run 1 dead; rerun 1; a run 2; a run 1 => 1 done, 2 done
i2 past one that never ran: insert 1 2 3; a run 1; a run 3 => 1 done, 2 new, 3 done | {"finished":
    False}
i2 past one that was not settled: insert 1 2; a begin 1; a end 1; b run 2 => 1 1/0/a, 2 done |
    {"finished": False}
i3 left new: insert 1 2; a run 1 => 1 done, 2 new
i3 row gone: insert 1 2; a run 1; a run 2 => 1 done | {"finished": False}
i3 invented row: insert 1; a run 1 => 1 done, 7 done
i3 invented message ran: insert 1; a run 1; a run 2 => 1 done, 2 done
i3 inserted twice: insert 1 1; a run 1 => 1 done
i3 done though it never ran: insert 1; a claim 1; a settle 1 => 1 done
i3 done by nobody: insert 1 => 1 done
i3 done though the settle was forgotten: insert 1; a begin 1; a end 1 => 1 done
i3 done though killed in the handler: insert 1; k begin 1; kill k => 1 done
i3 done though settled failed: insert 1; k run 1 failed; kill k => 1 2/1
i3 stuck at 1: insert 1; a begin 1; a end 1 => 1 1/0/a
i3 waits behind nothing that blocks: insert 1 2; insert 3 of Y; a run 3 dead; a run 1 => 1 done, 2
    new, 3 dead | {"on_dead": "block"}
i4 started four times: insert 1; a begin 1 try 1; a finish 1 failed; a begin 1 try 2; a finish 1
    failed; a begin 1 try 3; a finish 1 failed; a begin 1 try 3; a finish 1 => 1 2/3 | {"max_tries":
    3}
i4 crashes not counted: insert 1; k begin 1 try 1; kill k; a recover 1 from k; l begin 1 try 1; kill
    l; a recover 1 from l; m begin 1 try 1; kill m; a recover 1 from m; a begin 1 try 1; a finish 1
    => 1 done
i4 fourth try claimed: insert 1; a begin 1 try 1; a finish 1 failed; k claim 1 try 2; lose k; a
    recover 1 from k; k claim 1 try 3; lose k; a recover 1 from k; a claim 1 try 4; a settle 1
    released => 1 dead
i4 start ahead of the flag: insert 1 2; a run 1; a start 2; a claim 2; a finish 2 => 1 done, 2 done
i4 start on the claim of another: insert 1; a claim 1; b start 1; b end 1; a start 1; a finish 1 =>
    1 done
i4 start of a done one without a claim: insert 1; a run 1; b start 1; b end 1 => 1 done
i4 start after the release: insert 1; a claim 1; a settle 1 released; a start 1; a end 1; b run 1 =>
    1 done
i4 start after its own settle: insert 1; a claim 1; a settle 1; a start 1; a end 1 => 1 done
i4 start after recovery with a living lease: insert 1; a claim 1; b recover 1 from a; a start 1; a
    end 1; b run 1 => 1 2/1
i4 twice under one claim: insert 1; a begin 1; a end 1; a start 1; a finish 1 => 1 done
i4 settled while running: insert 1; a begin 1; a settle 1; a end 1 => 1 done
i4 ended without start: insert 1; a run 1; a end 1 => 1 done
i5 zombie overwrites the new owner: insert 1; z begin 1; lose z; a recover 1 from z; a begin 1; z
    finish 1; a finish 1 => 1 2/1
i5 zombie fails what was recovered: insert 1; z begin 1; lose z; a recover 1 from z; z finish 1
    failed; a run 1 => 1 2/2
i5 recovery overwrites a settle: insert 1; z begin 1; lose z; z finish 1 failed; a recover 1 from z;
    a run 1 => 1 2/2
i5 recovery overwrites a settle after an outage: insert 1; wait 5; a run 1 failed; lose a; b recover
    1 from a; b run 1 => 1 2/2 | {"outages": [(2, 5)]}
i5 recovery of a living holder overwrites a settle: insert 1; a run 1 failed; wait 9; b recover 1
    from a; b run 1 => 1 2/2 | {"outages": [(6, 12)]}
i5 zombie settles before a recovery: insert 1; a begin 1; lose a; a finish 1 failed; wait 9; b
    recover 1 from a; b run 1 => 1 2/2 | {"outages": [(6, 12)]}
i5 settled twice: insert 1; a run 1; a settle 1 => 1 done
i5 settled without a claim: insert 1 2; a run 1; a begin 2; b settle 2 released; a finish 2 => 1
    done, 2 done
i5 settled before its claim: insert 1; a settle 1 failed; a run 1 => 1 done
i6 effect twice: insert 1; a run 1; effect 1 1 => 1 done | {"transactional": {1}}
i6 effect missing: insert 1 2; a run 1; a run 2; effect 2 => 1 done, 2 done | {"transactional":
    True}
i6 effect of a dead one: insert 1; a run 1 failed; a run 1 failed; a run 1 failed; effect 1 => 1
    dead | {"transactional": {1}}
i6 effect of a failure before a rerun: insert 1; a run 1 failed; rerun 1; a run 1; effect 1 1 => 1
    done | {"transactional": True}
i6 effect of a fenced zombie: insert 1 2; z begin 1 try 1; lose z; a recover 1 from z; a begin 1 try
    2; z end 1; z settle 1 lost; a finish 1; a run 2; effect 1 2; effect 1 => 1 2/1, 2 done |
    {"transactional": True}
i7 unknown status: insert 1; a run 1 => 1 7/0
i7 unknown status seen: insert 1; see X:1=3; a run 1 => 1 done
i7 two at 1 seen: insert 1 2; see X:1=1 X:2=1 Y:3=1; a run 1; a run 2 => 1 done, 2 done
i7 two at 1 at the end: insert 1 2 => 1 1/0/a, 2 1/0/b | {"finished": False}
i8 row left at 1: insert 1 2; a run 1; a claim 2 => 1 done, 2 1/0/a | {"orderly": True}
i8 release counted a try: insert 1; a claim 1 try 1; a settle 1 released; b begin 1 try 2; b finish
    1 => 1 2/1
i8 release counted a try in the table: insert 1; a claim 1 try 1; a settle 1 released => 1 -1/1 |
    {"orderly": True, "finished": False}
i8 released though started: insert 1; a run 1 released; a run 1 => 1 done
i8 released while running: insert 1; a begin 1; a settle 1 released; a end 1; a run 1 => 1 done
i9 never recovered: insert 1; insert 2 of Y; k begin 1; kill k; wait 60; a run 2 => 1 1/0/k, 2 done
    | {"ttl": 30, "finished": False}
i9 recovered too late: insert 1; k begin 1; kill k; wait 50; a recover 1 from k; a run 1 => 1 2/1 |
    {"ttl": 30}
i9 unrecorded claim recovered too late: insert 1; insert 2 of Y; k run 2; kill k; wait 50; a recover
    1 from k; a run 1 => 1 2/1, 2 done | {"ttl": 30}
i9 claimed again too late: insert 1; k claim 1; kill k; wait 15; a run 1 => 1 2/1 | {"ttl": 10,
    "heartbeat": 2}
i9 recovered too late though outages are over or yet to come: insert 1; k begin 1; kill k; wait 60;
    a recover 1 from k; a run 1 => 1 2/1 | {"ttl": 30, "outages": [(0, 4), (55, 90)]}
i9 recovered too late for its outage: insert 1; k begin 1; kill k; wait 80; a recover 1 from k; a
    run 1 => 1 2/1 | {"ttl": 30, "outages": [(20, 30), (21, 29), (22, 30)]}
i9 never recovered after an outage: insert 1; insert 2 of Y; k begin 1; kill k; wait 90; a run 2 =>
    1 1/0/k, 2 done | {"ttl": 30, "finished": False, "outages": [(20, 40)]}
i10 dead after one failure: insert 1; a run 1 failed => 1 dead
i10 dead though not rejected: insert 1; a begin 1; a end 1 raised; a settle 1 dead => 1 dead
i10 dead though killed before it rejected: insert 1; k begin 1; k end 1 raised; kill k => 1 dead
i10 dead though nobody wrote down that it rejected: insert 1; a begin 1; a end 1 rejected => 1 dead
i10 dead without a try: insert 1 => 1 dead
i10 failed without having run: insert 1; a claim 1; a settle 1 failed; a run 1 => 1 2/1
i10 dies for the crashes of another: insert 1; insert 2 of Y; k begin 1; k begin 2; kill k; a
    recover 1 from k; a recover 2 from k; l begin 1; l begin 2; kill l; a recover 1 from l; a
    recover 2 from l; m begin 1; m begin 2; kill m; a recover 1 from m; a recover 2 from m => 1
    dead, 2 dead
i10 last try after a crash not alone: insert 1; insert 2 of Y; k begin 1; kill k; a recover 1 from
    k; a run 1 failed; a begin 1; a run 2; a finish 1 => 1 2/2, 2 done
i11 two of a limit of one: insert 1 2 of -; a begin 1; a begin 2; a finish 1; a finish 2 => 1 done,
    2 done | {"limited": {1, 2}}
i11 three of a limit of two: insert 1 2 3 4 of -; a begin 1; b begin 2; b begin 4; a finish 1; c
    begin 3; b finish 2; b finish 4; c finish 3 => 1 done, 2 done, 3 done, 4 done | {"limited": {1,
    2, 3, 4}, "max_running": 2}
i2 effects out of order: insert 1 2; a run 1; a run 2; effect 2 1 => 1 done, 2 done |
    {"transactional": True, "in_order": True}
i11 three rows at 1: insert 1 2 of -; see -:1=1 -:2=1; a run 1; a run 2 => 1 done, 2 done |
    {"limited": {1, 2}}
final cancelled runs: insert 1; a run 1 cancelled; b run 1 failed => 1 dead
final done runs again: insert 1; a run 1; b run 1 => 1 done
final done by a foreign consumer runs again: insert 1; old foreign 1; old foreign_done 1; a run 1 =>
    1 done
final discarded runs: insert 1; discard 1; a run 1 failed => 1 dead
final rejected runs again: insert 1; a run 1 dead; a run 1 dead => 1 dead
final dead of a crash runs again: insert 1; a run 1 failed; a run 1 failed; k claim 1; kill k; a
    recover 1 from k; a run 1 failed => 1 -1/4
final done undone in the table: insert 1; a run 1 => 1 -1/1 | {"finished": False}
"""


OF_MESSAGES = {"rerun": Kind.RERUN, "discard": Kind.DISCARDED, "effect": Kind.EFFECT}
OF_INSTANCES = {"kill": Kind.KILLED, "lose": Kind.LEASE_LOST}
ACTS = {
    **{"claim": Kind.CLAIMED, "start": Kind.STARTED, "end": Kind.ENDED, "settle": Kind.SETTLED},
    **{"recover": Kind.RECOVERED, "foreign": Kind.FOREIGN_CLAIMED},
    **{"foreign_done": Kind.FOREIGN_DONE, "foreign_failed": Kind.FOREIGN_DONE},
}


def acted(tale: Tale, text: str) -> None:
    """One step, such as `a begin 1 try 2`."""
    first, *words = text.split()
    if first == "insert":
        obj = words.pop() if "of" in words else "X"
        ids = [int(word) for word in words if word != "of"]
        tale.insert(*ids, obj=None if obj == "-" else obj)
    elif first == "see":
        seen = [re.split("[:=]", word) for word in words]
        rows = [(None if obj == "-" else obj, int(i), int(s)) for obj, i, s in seen]
        tale.observed.append((tale.now, rows))
    elif first == "wait":
        tale.now += float(words[0])
    elif first in OF_INSTANCES:
        tale.tell(OF_INSTANCES[first], words[0])
    elif first in OF_MESSAGES:
        for word in words:
            tale.tell(OF_MESSAGES[first], "ops", int(word))
    else:
        by_an_instance(tale, first, *words)


def by_an_instance(tale: Tale, who: str, verb: str, number: str, *rest: str) -> None:
    msg_id, facts = int(number), dict[str, str]()
    while len(rest) > 1:
        facts[rest[-2]], rest = rest[-1], rest[:-2]
    attempt = int(facts["try"]) if "try" in facts else None
    detail = rest[0] if rest else None
    if verb == "begin":
        tale.begin(who, msg_id, attempt)
    elif verb in ("run", "finish"):
        getattr(tale, verb)(who, msg_id, Outcome(detail or Outcome.DONE))
    else:
        usual = {"settle": Outcome.DONE, "foreign_failed": "failed"}
        detail = detail or facts.get("from") or usual.get(verb)
        since = float(facts["since"]) if "since" in facts else None
        tale.tell(ACTS[verb], who, msg_id, detail=detail, attempt=attempt, since=since)


def told_by(text: str) -> Tale:
    """The tale of a line, without its name."""
    text, _, terms = text.partition(" | ")
    acts, _, ends = text.partition(" => ")
    tale = Tale()
    for ids, obj in re.findall(r"insert ([\d ]*\d)(?: of (\S+))?(?:;|$)", acts):
        tale.objects |= {int(i): None if obj == "-" else obj or "X" for i in ids.split()}
    for act in acts.split("; "):
        acted(tale, act)
    known = {"new": NEW, "done": DONE, "dead": DEAD}
    rows: dict[int, tuple[Any, ...]] = {}
    for msg_id, end in (one.split() for one in ends.split(", ") if one):
        status, *more = end.split("/")
        rows[int(msg_id)] = known.get(end) or (int(status), int(more[0]), *more[1:])
    return tale.ends(rows, **(literal_eval(terms) if terms else {}))


def tales(text: str) -> dict[str, Callable[[], Tale]]:
    """By name."""
    whole = re.sub(r"\n    ", " ", re.sub(r"^#.*\n", "", text.strip(), flags=re.M))
    parts = (line.partition(": ") for line in whole.splitlines())
    return {name: partial(told_by, rest) for name, _, rest in parts}


def metered(*seconds: float) -> Tale:
    """Starts of messages of a topic of which two may start in a second."""
    tale = Tale().insert(*range(len(seconds)), obj=None)
    for msg_id, at in enumerate(seconds):
        tale.now = 100 + at
        for place, kind in enumerate(WHOLE_RUN):
            detail = Outcome.DONE if kind is Kind.SETTLED else None
            tale.events.append(Event(kind, tale.now + place / 1000, "a", msg_id, detail=detail))
    every = range(len(seconds))
    return tale.ends(dict.fromkeys(every, DONE), metered=set(every), per_second=2)


def even_starts() -> Tale:
    return metered(*(n / 2 for n in range(40)))


def i11_too_many_started() -> Tale:
    return metered(*sorted([*(n / 2 for n in range(40)), 7.1, 7.2, 7.3, 7.4]))


def i3_object_changed() -> Tale:
    tale = Tale().insert(1).run("a", 1).ends({1: DONE})
    tale.rows[1] = tale.rows[1]._replace(object_id="Y")
    return tale


GOOD = {**tales(GOOD_TALES), "nothing": Tale, "even starts": even_starts}
BAD = {
    **tales(BAD_TALES),
    "i3 object changed": i3_object_changed,
    "i11 too many started": i11_too_many_started,
}


@pytest.mark.parametrize("name", GOOD)
def test_good_history_is_clean(name: str) -> None:
    assert GOOD[name]().judged() == []


@pytest.mark.parametrize("name", BAD)
def test_bad_history_is_reported_by_its_rule_alone(name: str) -> None:
    assert BAD[name]().broken() == {name.partition(" ")[0].upper()}


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_has_two_bad_histories(rule: Rule) -> None:
    told = sum(name.startswith(f"{rule.lower()} ") for name in BAD)
    assert told + sum(rule is one for one, _ in BAD_TABLES.values()) >= 2


# --- tables: chains, keys, cancels, ticks ---------------------------------------------------------


def lived(rows: dict[int, Row], died: Sequence[int] = (), **seen: Any) -> Tale:
    """A plain history that ends with these rows. died: those that were dead before they were
    cancelled."""
    tale = Tale(rows=rows, seen=seen, settings={"finished": False})
    for msg_id, row in rows.items():
        tale.insert(msg_id, obj=row.object_id)
        for _ in range(row.error_try_times if CANCELLED not in (row.error or "") else 0):
            tale.run("a", msg_id, Outcome.FAILED)
        if msg_id in died:
            tale.run("a", msg_id, Outcome.DEAD)
        if row.status == 2:
            tale.run("a", msg_id)
        elif row.status == 1:
            tale.tell(Kind.CLAIMED, "a", msg_id)
        elif CANCELLED in (row.error or ""):
            tale.tell(Kind.DISCARDED, "ops", msg_id)
    return tale


SENDS, BEGIN = {"sends": True}, datetime(2026, 1, 1, tzinfo=UTC)


def row(topic: str, status: int = 2, tries: int = 0, **facts: Any) -> Row:
    return Row(None, status, tries, topic=topic, **facts)


def gone(topic: str = "plain", error: str = "Planned: try 3") -> Row:
    return row(topic, -1, 3, error=error, payload=SENDS)


def made(topic: str, about: int) -> dict[int, Row]:
    """One more message, of this topic, about that one."""
    return {20: row(topic, payload={"msg_id": about})}


def tick(second: int) -> Row:
    return Row("one", 2, topic="tick", tick=BEGIN + timedelta(seconds=second))


BY_OPERATOR = f"{CANCELLED}wrong file (by torture)"
CHAINS = {
    1: row("plain", payload=SENDS),
    2: row(SENT_BY, payload={"msg_id": 1}),
    3: row("plain"),
    4: gone(),
    5: row("exact", -1, 1, payload=SENDS),
    6: row(CHAIN),
    7: row(ON_DONE, payload={"msg_id": 6}),
    8: gone(CHAIN),
    9: row(ON_DEAD, payload={"msg_id": 8}),
    10: gone(CHAIN, BY_OPERATOR),
    11: row(CHAIN, 0),
}
KEYS = {1: row("keyed", key="a"), 2: row("keyed", 0, key="a"), 3: row("keyed", key="b")}
SENT = [Keyed("a", 1), Keyed("a", 2), Keyed("a", 2), Keyed("b", 3), Keyed("a", 1, 1.5)]
HELD = [(1.0, [("a", 1), ("b", 3)]), (2.0, [("a", 2)])]
STOPPED = {1: gone(error=BY_OPERATOR), 2: gone(error=BY_OPERATOR), 3: row("t"), 4: gone("t")}
ASKED = [Cancel(1, 1, 2, True), *(Cancel(i, 1, 2, False) for i in (2, 3, 4))]


def chained(*without: int) -> Tale:
    return lived({i: one for i, one in CHAINS.items() if i not in without})


def keyed(
    more: dict[int, Row] | None = None, sends: Any = (), held: Any = (), error: str = ""
) -> Tale:
    errors = [error] if error else []
    seen = {"sends": [*SENT, *sends], "holders": [*HELD, *held], "errors": errors}
    return lived(KEYS | (more or {}), **seen)


def stopped(asked: list[Cancel], more: dict[int, Row] | None = None, *without: int) -> Tale:
    rows = {i: one for i, one in (STOPPED | (more or {})).items() if i not in without}
    return lived(rows, cancels=asked)


def ticked(*seconds: int) -> Tale:
    tale = lived(dict(enumerate(map(tick, seconds), 1)))
    tale.settings["ticks"] = ["one"]
    return tale


JOB = {1: row("plain", job=7), 2: row("plain", -1, 3, job=7, error="Planned"), 3: row("plain")}
OVER = {4: row(JOB_OVER, payload={"job": 7})}
COMPLETED = JobRow(7, True, True, 4, 1, 1)


def of_jobs(rows: dict[int, Row], *jobs: JobRow, finished: bool = False) -> Tale:
    tale = lived(rows, jobs=jobs)
    tale.settings["finished"] = finished
    return tale


GOOD_TABLES = {
    "jobs": of_jobs(JOB | OVER, COMPLETED, JobRow(8, False, False), finished=True),
    "a job that is not over": of_jobs(JOB | {5: row("plain", 0, job=7)}, JobRow(7, True, False)),
    "chains": lived(CHAINS),
    "a chain that is cancelled once it died": lived(CHAINS | made(ON_DEAD, 10), died=[10]),
    "keys": keyed(),
    "cancels": stopped(ASKED),
    "ticks": ticked(0, 1, 2),
}
BAD_TABLES: dict[str, tuple[Rule, Tale]] = {
    f"chain {name}": (Rule.CHAINS, tale)
    for name, tale in {
        "not sent": chained(2),
        "sent twice": lived(CHAINS | made(SENT_BY, 1)),
        "sent by a failed try": lived(CHAINS | made(SENT_BY, 5)),
        "sent by a dead one": lived(CHAINS | made(SENT_BY, 4)),
        "sent by one that sends nothing": lived(CHAINS | made(SENT_BY, 3)),
        "sent by none": lived(CHAINS | made(SENT_BY, 99)),
        "done and not told": chained(7),
        "done and told twice": lived(CHAINS | made(ON_DONE, 6)),
        "done and told as dead": lived(CHAINS | made(ON_DEAD, 6)),
        "dead and not told": chained(9),
        "dead and told twice": lived(CHAINS | made(ON_DEAD, 8)),
        "dead and told as done": lived(CHAINS | made(ON_DONE, 8)),
        "cancelled and told as dead": lived(CHAINS | made(ON_DEAD, 10)),
        "dead, then cancelled and not told": lived(CHAINS, died=[10]),
        "unfinished and told as done": lived(CHAINS | made(ON_DONE, 11)),
    }.items()
} | {
    "two seen with a key": (Rule.KEYS, keyed(held=[(3.0, [("b", 3), ("a", 1), ("a", 2)])])),
    "two left with a key": (Rule.KEYS, keyed({4: row("keyed", 1, key="a")})),
    "one that failed holds its key": (Rule.KEYS, keyed({4: row("keyed", -1, 1, key="a")})),
    "a send that is gone": (Rule.KEYS, keyed(sends=[Keyed("a", 9)])),
    "a send that got another key's id": (Rule.KEYS, keyed(sends=[Keyed("a", 3)])),
    "a send that got one that was done": (Rule.KEYS, keyed(sends=[Keyed("a", 1, 2.5)])),
    "an error in a producer": (Rule.KEYS, keyed(error="IntegrityError()")),
    "a waiting one was done": (
        Rule.CANCELS,
        stopped([*ASKED, Cancel(5, 1, 2, True)], {5: row("t")}),
    ),
    "a waiting one died of itself": (Rule.CANCELS, stopped([Cancel(4, 1, 2, True), *ASKED[:3]])),
    "a running one is left failed": (
        Rule.CANCELS,
        stopped([*ASKED, Cancel(6, 1, 2, False)], {6: row("t", -1, 1)}),
    ),
    "a cancelled one is gone": (Rule.CANCELS, stopped(ASKED, None, 1)),
    "nobody asked": (Rule.CANCELS, stopped(ASKED[1:])),
    "a job that is forgotten": (Rule.JOBS, of_jobs(JOB, JobRow(7, True, False), finished=True)),
    "a job that completes too early": (
        Rule.JOBS,
        of_jobs(JOB | OVER | {5: row("plain", 0, job=7)}, COMPLETED),
    ),
    "a job that completes twice": (
        Rule.JOBS,
        of_jobs(JOB | OVER | {5: row(JOB_OVER, payload={"job": 7})}, COMPLETED),
    ),
    "a job whose message is lost": (Rule.JOBS, of_jobs(JOB, COMPLETED)),
    "a job that has lost a message": (
        Rule.JOBS,
        of_jobs({i: one for i, one in (JOB | OVER).items() if i > 1}, COMPLETED),
    ),
    "a message of a job that was rolled back": (Rule.JOBS, of_jobs(JOB | OVER)),
    "a tick twice": (Rule.TICKS, ticked(0, 1, 1)),
    "a tick missing": (Rule.TICKS, ticked(0, 2)),
    "no tick": (Rule.TICKS, ticked()),
    "ticks out of order": (Rule.TICKS, ticked(1, 0)),
}


@pytest.mark.parametrize("name", GOOD_TABLES)
def test_a_table_that_keeps_every_promise_is_clean(name: str) -> None:
    assert GOOD_TABLES[name].judged() == []


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_promise_that_a_table_breaks_is_told_once(name: str) -> None:
    rule, tale = BAD_TABLES[name]
    assert [one.rule for one in tale.judged()] == [rule]


def test_ticks_end_with_the_last_one_that_was_fired() -> None:
    ticks = [BEGIN + timedelta(seconds=4 * n) for n in range(3)]
    assert list(odd_ticks(ticks, period=4, last=ticks[2])) == []
    assert list(odd_ticks(ticks, period=4, last=ticks[1])) != []
    assert list(odd_ticks(ticks[:2], period=4, last=ticks[2])) != []


def test_more_starts_than_a_bucket_gives_are_told() -> None:
    assert too_many([0, 0, 1, 2], burst=2, per_second=1) is None
    assert too_many([0, 0, 0.9], burst=2, per_second=1) is not None
    assert too_many([0, 5, 5, 5], burst=2, per_second=1) is not None


# --- what is reported, how fast, and from which files ---------------------------------------------


def test_violation_says_who_what_and_when() -> None:
    tale = BAD["i1 late commit claimed beside a running one"]()
    (violation,) = check(tale.events, Final(tale.rows))
    assert violation.text == (
        "b started message 1 of 'X' at 6 while a was running message 2, started at 3"
    )
    assert [e.at for e in violation.events] == [3, 6, 7, 9]
    assert "6 b started message 1" in str(violation)


def test_a_pair_is_reported_once() -> None:
    tale = Tale().insert(2).begin("z", 2).insert(1).begin("z", 1).finish("z", 1)
    tale.tell(Kind.LEASE_LOST, "z").finish("z", 2).ends({1: DONE, 2: DONE})
    assert len(check(tale.events, Final(tale.rows))) == 1


def test_order_of_the_events_handed_in_does_not_matter() -> None:
    for tell in (*GOOD.values(), *BAD.values()):
        tale = tell()
        before = tale.broken()
        tale.events.reverse()
        assert tale.broken() == before


def test_events_of_one_instant_keep_their_order() -> None:
    tale = GOOD["one after another"]()
    tale.events = [replace(e, at=5) for e in tale.events]
    assert tale.broken() == set()


def test_event_of_a_message_needs_its_id() -> None:
    with pytest.raises(ValueError, match="without msg_id"):
        check([Event(Kind.STARTED, 1, "a")], Final({}))


def one_hot_object(count: int) -> Tale:
    tale = Tale().insert(*range(count))
    for msg_id in range(count):
        tale.run("ab"[msg_id % 2], msg_id)
    return tale.ends(dict.fromkeys(range(count), DONE))


def many_objects(count: int) -> Tale:
    tale = Tale()
    for msg_id in range(count):
        tale.insert(msg_id, obj=f"C-{msg_id % (count // 5)}").run("ab"[msg_id % 2], msg_id)
    return tale.ends(dict.fromkeys(range(count), DONE))


def all_late(count: int) -> Tale:
    tale = Tale()
    for msg_id in range(count, 0, -1):
        tale.insert(msg_id).run("a", msg_id)
    return tale.ends(dict.fromkeys(range(1, count + 1), DONE))


@pytest.mark.long
@pytest.mark.parametrize("tell", [one_hot_object, many_objects, all_late])
def test_a_hundred_thousand_events_take_seconds(tell: Callable[[int], Tale]) -> None:
    tale = tell(20_000)
    begun = time.process_time()
    assert tale.broken() == set()
    assert time.process_time() - begun < 30  # 1 to 3 s; a quadratic check would take hours


def test_line_and_back() -> None:
    event = Event(Kind.CLAIMED, 1.25, "a", 7, "Kunde \u00e4\n", 2, None, 1.0)
    assert from_line(to_line(event)) == event
    torn = to_line(event)[:20]  # by a process that was killed while it wrote
    assert from_line(torn + to_line(event)) == event
    assert "\n" not in to_line(event)
    assert to_line(Event(Kind.KILLED, 2.0, "a")) == '{"kind":"killed","at":2.0,"instance":"a"}'


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"kind":"eaten","at":1,"instance":"a"}',
                                  '{"kind":"killed","at":1,"instance":"a","x":1}'])  # fmt: skip
def test_line_that_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a history event"):
        from_line(line)


def record_some(path: Path, name: str, first: int) -> None:
    with closing(Recorder(path, name)) as recorder:
        for msg_id in range(first, first + 50):
            since = recorder.now()
            recorder.record(Kind.INSERTED, msg_id, f"{name}-{msg_id}", since=since)
            recorder.record(Kind.CLAIMED, msg_id, attempt=1, since=since)
            recorder.record(Kind.STARTED, msg_id)
            recorder.record(Kind.ENDED, msg_id, detail="returned")
            recorder.record(Kind.SETTLED, msg_id, detail=Outcome.DONE, since=recorder.now())
            recorder.record(Kind.EFFECT, msg_id)


def test_threads_and_processes_append_whole_lines(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    pid = os.fork()
    if pid == 0:
        record_some(one, "child", 1000)
        os._exit(0)
    threads = [
        threading.Thread(target=record_some, args=([one, other][n % 2], f"t{n}", n * 50))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.waitpid(pid, 0)[1] == 0
    lines = [line for path in (one, other) for line in path.read_text("utf-8").splitlines()]
    events = [from_line(line) for line in lines]
    assert len(events) == 5 * 50 * 6
    rows = {e.msg_id or 0: Row(e.object_id, 2) for e in events if e.kind == Kind.INSERTED}
    assert check(events, Final(rows), Terms(transactional=True)) == []
