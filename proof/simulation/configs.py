"""The kinds of schedules. Each leans on another part of the protocol; `mixed` has all at once."""

from __future__ import annotations

from proof.simulation.process import BATCH, GROUP, SENDING, Habits
from proof.simulation.schedule import Config

_ALL = (
    # Failures, late results, nothing else: the lanes themselves.
    Config(name="plain", objects=3, habits=Habits(fail=0.3), loose=1),
    # Processes die, stand still beyond their lease, and are killed by their own messages.
    Config(name="crashes", kills=2, pauses=2, poison=0.1),
    # Many zombies: single threads and whole processes stand still in the middle of anything.
    Config(name="zombies", instances=3, steps=280, pauses=4, stalls=6, kills=1, poison=0.1),
    # Replies are lost, transactions rolled back.
    Config(name="unknown", lost=0.12, again=0.06, kills=1, pauses=1, stalls=2, transactional=0.4),
    # One object whose settles are not answered, while operators change what would come next.
    Config(
        name="answers",
        instances=1,
        objects=1,
        messages=(2, 3),
        steps=600,
        ops=60,
        lost=0.2,
        stalls=6,
        transactional=0.5,
        habits=Habits(0.3, 0.0, 0.3),
    ),
    # People and producers: rerun, discard, late commits; and a stop.
    Config(name="ops", late=0.3, ops=5, stops=1, pauses=1, lost=0.04),
    # The database's clock is put forward and back, while processes die and stand still.
    Config(name="clock", instances=3, steps=240, jumps=4, kills=2, pauses=2, stalls=2, poison=0.05),
    # The seed's own consumer beside ours.
    Config(name="foreign", late=0.3, ops=3, foreign=True, kills=1, pauses=1),
    # A dead message holds its object.
    Config(
        name="block", on_dead="block", ops=4, kills=1, pauses=1, poison=0.1, habits=Habits(0.35)
    ),
    # Orderly stops while replies are lost.
    Config(name="stops", stops=3, pauses=1, lost=0.08, again=0.03),
    # The claim does not see what runs: only the guard excludes; violations leave the row alone.
    Config(name="guard", blind=True, late=0.4, ops=4, foreign=True, kills=1, pauses=1),
    # The same where a violation raises.
    Config(name="raising", blind=True, late=0.4, ops=4, foreign=True, kills=1, ignores=False),
    # One object, last tries, crashes: quarantine.
    Config(
        name="quarantine",
        objects=3,
        messages=(1, 3),
        steps=240,
        poison=0.35,
        kills=2,
        pauses=1,
        stalls=3,
        lost=0.05,
    ),
    Config(
        name="mixed",
        instances=3,
        steps=220,
        late=0.2,
        ops=3,
        foreign=True,
        kills=1,
        pauses=2,
        stops=1,
        lost=0.05,
        again=0.03,
        poison=0.04,
        transactional=0.3,
        loose=1,
    ),
    # Operators cancel what waits and what runs, and rerun it, while processes die and stand still.
    Config(
        name="cancels",
        instances=3,
        steps=240,
        ops=12,
        cancels=0.5,
        late=0.2,
        kills=1,
        pauses=2,
        stalls=3,
        stops=1,
        lost=0.05,
        again=0.03,
        transactional=0.4,
        loose=1,
    ),
    # Without `claimed_by`: operators release messages while all instances seem to be dead.
    Config(
        name="unowned",
        instances=3,
        steps=280,
        owners=False,
        frees=2,
        late=0.2,
        pauses=4,
        stalls=4,
        stops=1,
        again=0.03,
        transactional=0.3,
        habits=Habits(later=0.0),
        loose=1,
    ),
    # Batches: head and followers in one transaction, several objects, and all that can happen.
    Config(
        name="batches",
        batch=BATCH,
        transactional=1.0,
        messages=(2, 5),
        loose=1,
        steps=220,
        kills=1,
        pauses=1,
        stalls=2,
        stops=1,
        late=0.2,
        ops=3,
        foreign=True,
        lost=0.05,
        again=0.03,
        poison=0.05,
    ),
    # Batches of one object whose replies are lost, also while the COMMIT is under way.
    Config(
        name="batch answers",
        batch=BATCH,
        transactional=0.9,
        instances=1,
        objects=2,
        messages=(2, 5),
        steps=400,
        ops=20,
        lost=0.2,
        stalls=4,
        habits=Habits(0.2, 0.0, 0.2),
    ),
    # Group commit.
    Config(
        name="groups",
        batch=GROUP,
        transactional=0.9,
        messages=(1, 4),
        loose=2,
        kills=1,
        pauses=2,
        stalls=2,
        lost=0.05,
        again=0.03,
        ops=2,
        poison=0.05,
    ),
    # What handlers send is there once for each that is done, and for no other.
    Config(
        name="chains",
        batch=SENDING,
        transactional=0.9,
        messages=(1, 4),
        loose=1,
        kills=1,
        pauses=2,
        stalls=2,
        late=0.2,
        ops=3,
        lost=0.08,
        again=0.04,
        poison=0.05,
    ),
    # Instances that end when nothing is left to do, beside others that die.
    Config(name="drains", drains=True, kills=2, pauses=1, late=0.3, lost=0.05, again=0.03),
    # Messages of several priorities, late ones among them.
    Config(
        name="priorities",
        priorities=True,
        objects=4,
        loose=3,
        late=0.3,
        ops=3,
        kills=1,
        pauses=1,
        stops=1,
        lost=0.05,
        poison=0.05,
    ),
    # Topics with limits beside others: who holds permits dies, stands still, and gets no answer.
    Config(
        name="limits",
        limits=True,
        instances=3,
        objects=4,
        messages=(2, 3),
        loose=4,
        steps=220,
        kills=2,
        pauses=2,
        stalls=3,
        stops=1,
        late=0.2,
        ops=3,
        lost=0.06,
        again=0.03,
        transactional=0.2,
    ),
    # Two producers with the same keys, while what holds them fails, is recovered and ends.
    Config(
        name="keys",
        keys=10,
        steps=200,
        kills=1,
        pauses=1,
        stalls=2,
        stops=1,
        lost=0.06,
        again=0.03,
        habits=Habits(0.3, 0.1, 0.1),
    ),
    # A schedule: who fires it dies, stands still, gets no answer, and is rolled back.
    Config(
        name="ticks",
        instances=3,
        ticks=4,
        steps=200,
        kills=3,
        pauses=2,
        stalls=4,
        stops=1,
        lost=0.1,
        again=0.06,
        habits=Habits(0.1, 0.0, 0.0),
    ),
    # Heads are looked for long before their claim, while others change what they see.
    Config(
        name="ahead",
        ahead=True,
        instances=1,
        objects=5,
        messages=(1, 2),
        loose=5,
        steps=220,
        late=0.3,
        ops=5,
        foreign=True,
        kills=1,
        pauses=1,
        stalls=3,
        stops=1,
        lost=0.06,
        again=0.03,
        poison=0.04,
        transactional=0.2,
    ),
    # A statement is executed long after its sender has given it up.
    Config(
        name="delayed",
        objects=1,
        instances=1,
        steps=280,
        lost=0.25,
        delayed=0.7,
        habits=Habits(0.1, 0.0, 0.5),
    ),
)
CONFIGS = {config.name: config for config in _ALL}
