"""The kinds of schedules. Each leans on another part of the protocol; `mixed` has all at once.

A line: its name, and the fields of `Config`; a word alone is a true one.
"""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

from proof.simulation.schedule import Config

TABLE = """
# Failures, late results, nothing else: the lanes themselves.
plain: objects=3 fail=0.3 loose=1
# Processes die, stand still beyond their lease, and are killed by their own messages.
crashes: kills=2 pauses=2 poison=0.1
# Many zombies: single threads and whole processes stand still in the middle of anything.
zombies: instances=3 steps=280 pauses=4 stalls=6 kills=1 poison=0.1
# Replies are lost, transactions rolled back.
unknown: lost=0.12 again=0.06 kills=1 pauses=1 stalls=2 transactional=0.4
# One object whose settles are not answered, while operators change what would come next.
answers: instances=1 objects=1 messages=2-3 steps=600 ops=60 lost=0.2 stalls=6 transactional=0.5
    fail=0.3 reject=0.0 later=0.3
# People and producers: rerun, discard, late commits; and a stop.
ops: late=0.3 ops=5 stops=1 pauses=1 lost=0.04
# The database's clock is put forward and back, while processes die and stand still.
clock: instances=3 steps=240 jumps=4 kills=2 pauses=2 stalls=2 poison=0.05
# The seed's own consumer beside ours.
foreign: late=0.3 ops=3 foreign kills=1 pauses=1
# A dead message holds its object.
block: on_dead=block ops=4 kills=1 pauses=1 poison=0.1 fail=0.35
# Orderly stops while replies are lost.
stops: stops=3 pauses=1 lost=0.08 again=0.03
# The claim does not see what runs: only the guard excludes; violations leave the row alone.
guard: blind late=0.4 ops=4 foreign kills=1 pauses=1
# The same where a violation raises.
raising: blind late=0.4 ops=4 foreign kills=1 ignores=no
# One object, last tries, crashes: quarantine.
quarantine: objects=3 messages=1-3 steps=240 poison=0.35 kills=2 pauses=1 stalls=3 lost=0.05
mixed: instances=3 steps=220 late=0.2 ops=3 foreign kills=1 pauses=2 stops=1 lost=0.05 again=0.03
    poison=0.04 transactional=0.3 loose=1
# Operators cancel what waits and what runs, and rerun it, while processes die and stand still.
cancels: instances=3 steps=240 ops=12 cancels=0.5 late=0.2 kills=1 pauses=2 stalls=3 stops=1
    lost=0.05 again=0.03 transactional=0.4 loose=1
# Without `claimed_by`: operators release messages while all instances seem to be dead.
unowned: instances=3 steps=280 owners=no frees=2 late=0.2 pauses=4 stalls=4 stops=1 again=0.03
    transactional=0.3 later=0.0 loose=1
# Batches: head and followers in one transaction, several objects, and all that can happen.
batches: batch=batch transactional=1.0 messages=2-5 loose=1 steps=220 kills=1 pauses=1 stalls=2
    stops=1 late=0.2 ops=3 foreign lost=0.05 again=0.03 poison=0.05
# Batches of one object whose replies are lost, also while the COMMIT is under way.
batch answers: batch=batch transactional=0.9 instances=1 objects=2 messages=2-5 steps=400 ops=20
    lost=0.2 stalls=4 fail=0.2 reject=0.0 later=0.2
# Group commit.
groups: batch=group transactional=0.9 messages=1-4 loose=2 kills=1 pauses=2 stalls=2 lost=0.05
    again=0.03 ops=2 poison=0.05
# What handlers send is there once for each that is done, and for no other.
chains: batch=sending transactional=0.9 messages=1-4 loose=1 kills=1 pauses=2 stalls=2 late=0.2
    ops=3 lost=0.08 again=0.04 poison=0.05
# Messages that are done are deleted, alone, in batches and with others, and answers are lost.
deletes: deletes batch=batch transactional=0.2 instances=3 steps=280 pauses=4 stalls=6 kills=1
    poison=0.1 lost=0.04
# Instances that end when nothing is left to do, beside others that die.
drains: drains kills=2 pauses=1 late=0.3 lost=0.05 again=0.03
# Messages of several priorities, late ones among them.
priorities: priorities objects=4 loose=3 late=0.3 ops=3 kills=1 pauses=1 stops=1 lost=0.05
    poison=0.05
# Topics with limits beside others: who holds permits dies, stands still, and gets no answer.
limits: limits instances=3 objects=4 messages=2-3 loose=4 steps=220 kills=2 pauses=2 stalls=3
    stops=1 late=0.2 ops=3 lost=0.06 again=0.03 transactional=0.2
# Two producers with the same keys, while what holds them fails, is recovered and ends.
keys: keys=10 steps=200 kills=1 pauses=1 stalls=2 stops=1 lost=0.06 again=0.03 fail=0.3 reject=0.1
    later=0.1
# A job: who completes it dies, stands still, gets no answer, and is rolled back.
jobs: jobs instances=3 objects=3 messages=1-3 loose=2 steps=220 kills=3 pauses=2 stalls=4 stops=1
    late=0.3 lost=0.1 again=0.06 fail=0.3 reject=0.1 later=0.1 poison=0.04 transactional=0.3
# The same where instances end when nothing is left to do: what completes it is left to none.
job drains: jobs drains objects=2 messages=1-2 loose=1 kills=2 pauses=1 late=0.3 lost=0.06
    again=0.04
# A schedule: who fires it dies, stands still, gets no answer, and is rolled back.
ticks: instances=3 ticks=4 steps=200 kills=3 pauses=2 stalls=4 stops=1 lost=0.1 again=0.06
    fail=0.1 reject=0.0 later=0.0
# One instance alone, while others change what it sees.
alone: instances=1 objects=5 messages=1-2 loose=5 steps=220 late=0.3 ops=5 foreign kills=1
    pauses=1 stalls=3 stops=1 lost=0.06 again=0.03 poison=0.04 transactional=0.2
# A statement is executed long after its sender has given it up.
delayed: objects=1 instances=1 steps=280 lost=0.25 delayed=0.7 fail=0.1 reject=0.0 later=0.5
"""


def _value(text: str) -> Any:
    if least_most := re.fullmatch(r"(\d+)-(\d+)", text):
        return int(least_most[1]), int(least_most[2])
    if text in ("", "no"):
        return not text
    return literal_eval(text) if re.match(r"[\d.]+$", text) else text


def _config(name: str, line: str) -> Config:
    given = {key: _value(text) for key, _, text in (one.partition("=") for one in line.split())}
    return Config(name=name, **given)


CONFIGS = {
    name: _config(name, line)
    for name, line in re.findall(r"^(\w[\w ]*): (.*(?:\n    .*)*)", TABLE, re.M)
}
