"""The same work for all, in turns: each round asks msgworker and then each peer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench import databases
from bench.databases import NotAvailable
from bench.latency import run_latency
from bench.peers.install import NotInstalled, install
from bench.peers.peer import Peer
from bench.peers.running import PeerFailed, Work, measure
from bench.report import OURS, Line
from bench.scenarios import Drain, Place, Scale, run_round
from bench.seeding import Rows, finished
from msgworker import App

KINDS = ("unordered", "ordered", "effects", "effects ordered", "pickup")
OBJECTS = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    """Messages of a drain, rounds, the limit of a drain in seconds, rows of a backlog."""

    messages: int
    rounds: int
    seconds: float
    backlog: int


FULL = Size(messages=100_000, rounds=3, seconds=20.0, backlog=1_000_000)
QUICK = Size(messages=5_000, rounds=1, seconds=5.0, backlog=100_000)


def works(size: Size, *, backlog: bool) -> Iterator[Work]:
    """What everybody is asked for; each kind once, the deep ones only if wanted."""
    n, s = size.messages, size.seconds
    yield Work("B1", "unordered", "unordered", n, seconds=s)
    yield Work("B2", f"{OBJECTS:,} objects", "ordered", n, OBJECTS, seconds=s)
    if backlog:
        deep = f"over {size.backlog:,} waiting + {size.backlog:,} finished"
        many = size.backlog
        yield Work("B4", f"unordered {deep}", "unordered", many, seconds=s, finished=many)
        ordered = f"{OBJECTS:,} objects {deep}"
        yield Work("B4", ordered, "ordered", many, OBJECTS, seconds=s, finished=many)
    yield Work("B7", "pickup at 50/s", "pickup", 0, seconds=s)
    batches = "transactional batches of 500, an effect row each"
    yield Work("B14", batches, "effects", n, seconds=s)
    yield Work("B14", f"{OBJECTS:,} objects, {batches}", "effects ordered", n, OBJECTS, seconds=s)


def run(peers: Sequence[Peer], chosen: Sequence[Work], size: Size) -> list[Line]:
    """The lines of all kinds of work, ours first in each; who fails has a line that says why."""
    commands = dict(_installed(peers))
    lines = []
    for work in chosen:
        own = dict(_own(work))
        ours = own[work]
        theirs = {peer: line_of(peer, work) for peer in peers}
        for _ in range(size.rounds):
            for one, line in own.items():
                our_turn(one, line)
            for peer, line in theirs.items():
                their_turn(peer, commands[peer], work, line)
        for peer, line in theirs.items():
            line.limit, line.ours = ours.limit, ours.rates
            if work.finished and not peer.keeps_done:
                line.notes.append("keeps no finished jobs")
        for one, line in own.items():
            line.without = "row" if one.deletes else ""
            if line is not ours:
                line.limit, line.ours = ours.limit, ours.rates
        lines += [*own.values(), *theirs.values()]
    return lines


def _own(work: Work) -> Iterator[tuple[Work, Line]]:
    """What msgworker is asked for, and its line: as it is by default, and where finished jobs need
    not stay without them, each with one process and with two."""
    yield work, Line("postgresql", work.scenario, f"{OURS} {work.label}", work.processes)
    if work.kind != "pickup" and not work.finished:
        for deletes, processes in ((False, 2), (True, 1), (True, 2)):
            one = replace(work, deletes=deletes, processes=processes)
            label = f"{OURS} {work.label}" + (', when_done="delete"' if deletes else "")
            yield one, Line("postgresql", work.scenario, label, processes)


def line_of(peer: Peer, work: Work) -> Line:
    """Empty, but for what the peer does not do of this work."""
    without = ", ".join(peer.missing(work.kind))
    return Line("postgresql", work.scenario, f"{peer.shown}: {work.label}", without=without)


def _installed(peers: Sequence[Peer]) -> Iterator[tuple[Peer, list[str] | str]]:
    """The command of each, or why there is none."""
    for peer in peers:
        print(f"installing {peer.shown}", file=sys.stderr)
        try:
            yield peer, install(peer)
        except NotInstalled as error:
            yield peer, f"not installed: {error}"


def their_turn(peer: Peer, command: list[str] | str, work: Work, line: Line) -> None:
    """One round of a peer; where it cannot be had, or fails, its line says why."""
    lacking = next((why for kind, why in peer.lacks.items() if work.kind.startswith(kind)), None)
    if line.not_run:
        return
    if lacking or isinstance(command, str):
        line.not_run = lacking or str(command)
        return
    try:
        measure(peer, command, work, line)
    except (PeerFailed, NotAvailable, OSError) as error:
        line.not_run = f"failed: {error}"
    print(f"{line.scenario} {line.label}: {line.not_run or _rate(line)}", file=sys.stderr)


def our_turn(work: Work, line: Line) -> None:
    """One round of msgworker; a failure is a fault."""
    if line.not_run:
        return
    try:
        with databases.scratch("postgresql") as url:
            place = Place("postgresql", url, Scale(work.messages, 1, work.seconds))
            app = App(place.text)
            app.create_schema()
            if work.kind == "pickup":
                _pickup(place, line)
            else:
                run_round(app, place, _drain(work), line)
            app.engine.dispose()
    except (RuntimeError, OSError, NotAvailable) as error:
        line.missing += 1
        line.not_run = f"failed: {error}"
    print(f"{line.scenario} {line.label}: {line.not_run or _rate(line)}", file=sys.stderr)


def _pickup(place: Place, line: Line) -> None:
    for one in run_latency(place):
        if "notify" in one.label:
            line.rates += one.rates
            line.missing += one.missing
            line.notes[:] = one.notes


def _drain(work: Work) -> Drain:
    rows, batches = Rows(work.messages, work.objects), work.kind.startswith("effects")
    return Drain(
        work.scenario,
        work.label,
        (finished(work.finished), rows) if work.finished else (rows,),
        None if work.finished else work.messages,
        work.processes,
        threads=2 if batches else 4,
        handler="effects" if batches else "nothing",
        batch=500 if batches else None,
        deletes=work.deletes,
        time_limit=work.seconds,
        limit=None if work.finished else "batched",
    )


def _rate(line: Line) -> str:
    return f"{line.rates[-1]:,.0f}/s, {line.faults} faults" if line.rates else "no figure"
