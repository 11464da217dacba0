"""What the scripts of the Python peers share: the job, the log, and when the work is over.

A script runs in its peer's own environment: it may import this file and its peer, nothing else.
Its job is JSON in the variable MSGWORKER_PEER_JOB: step (setup, work or send), kind (unordered,
ordered, pickup), dsn, messages, finished (jobs to be done already, by the numbers up to 0),
objects, seconds (the limit), log (the file to write).
"""

from __future__ import annotations

import asyncio
import json
import os
import time

JOB = json.loads(os.environ["MSGWORKER_PEER_JOB"])
CHUNK = 5_000
PER_SECOND = 50

_log: list[tuple[int, str, int, int]] = []


def key(i: int) -> str:
    """The object of message number i; neighbours are of different objects. "" = none."""
    return f"obj{i * 7919 % JOB['objects']:08d}" if JOB["objects"] else ""


def chunks(size=CHUNK):
    """The numbers of the messages to seed, in ranges that go into one call each."""
    first, last = 1 - JOB["finished"], JOB["messages"]
    for start in range(first, last + 1, size):
        yield range(start, min(start + size, last + 1))


def note(i: int, object_id: str, started: int) -> None:
    """Write down that message number i was handled; nanoseconds of CLOCK_MONOTONIC."""
    _log.append((i, object_id, started, time.monotonic_ns()))


async def until_over() -> None:
    """Return when all is handled or the time is up."""
    begun = time.monotonic()
    while time.monotonic() - begun < JOB["seconds"]:
        if JOB["messages"] and len(_log) >= JOB["messages"]:
            return
        if os.path.exists(JOB["log"] + ".stop"):
            return
        await asyncio.sleep(0.02)


async def at_pace(send) -> None:
    """Send messages one by one at a steady pace; the log has the instant after each commit."""
    begun = time.monotonic()
    for i in range(1, int(PER_SECOND * JOB["seconds"]) + 1):
        await asyncio.sleep(max(0.0, begun + i / PER_SECOND - time.monotonic()))
        await send(i)
        now = time.monotonic_ns()
        _log.append((i, "", now, now))


def write() -> None:
    """Write the log: number, object, start and end, by tabs."""
    with open(JOB["log"], "w") as file:
        for entry in _log:
            file.write("\t".join(map(str, entry)) + "\n")


def main(*, setup, work, send) -> None:
    """Do the step that is asked for."""
    asyncio.run({"setup": setup, "work": work, "send": send}[JOB["step"]]())
    if JOB["step"] != "setup":
        write()
    # Whatever the peer would still finish (pools, heartbeats, its own stop) is not measured.
    os._exit(0)
