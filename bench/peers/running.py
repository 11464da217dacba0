"""Have a peer do a piece of work in a database of its own, and read what it logged."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa

from bench import databases
from bench.checking import judge
from bench.handlers import Entry
from bench.latency import waits_of
from bench.peers.peer import Peer
from bench.process import Counts, Seen
from bench.report import Line

SETUP_SECONDS = 900.0
START_SECONDS = 120.0
END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done.

    kind: unordered, ordered, effects, effects ordered or pickup. seconds: the limit; a peer that is
    slower is measured by what it has handled until then. finished: jobs done before, where kept.
    deletes: msgworker deletes what is done.
    """

    scenario: str
    label: str
    kind: str
    messages: int
    objects: int = 0
    seconds: float = 20.0
    processes: int = 1
    finished: int = 0
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """What a script is told, in the variable MSGWORKER_PEER_JOB."""

    step: str
    kind: str
    dsn: str
    messages: int
    finished: int
    objects: int
    seconds: float
    log: str


class PeerFailed(Exception):
    """A script that ended with an error; the text is the last line of what it said."""


def measure(peer: Peer, command: Sequence[str], work: Work, line: Line) -> None:
    """One round of a piece of work, added to its line; raises PeerFailed."""
    with (
        databases.scratch("postgresql") as url,
        tempfile.TemporaryDirectory(prefix="msgworker-bench-") as folder,
    ):
        dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        log = str(Path(folder) / "log")

        def job(step: str, name: str = log) -> Job:
            done = work.finished if peer.keeps_done else 0
            # Who is sent to waits for longer than the sender needs: a file ends it.
            seconds = START_SECONDS if (work.kind, step) == ("pickup", "work") else work.seconds
            return Job(step, work.kind, dsn, work.messages, done, work.objects, seconds, name)

        _end(_start(command, job("setup")), SETUP_SECONDS)
        tidy(url)
        if work.kind == "pickup":
            _pickup(command, job, log, line)
        else:
            names = [f"{log}{n}" for n in range(work.processes)]
            running = [_start(command, job("work", name)) for name in names]
            for process in running:
                _end(process, START_SECONDS + work.seconds + END_SECONDS)
            note(work, line, [read(Path(name).read_text()) for name in names])
            if work.kind.startswith("effects"):
                _check_effects(url, line)


def read(text: str) -> list[Entry]:
    """The entries of a log: number, object, start and end, by tabs; raises PeerFailed."""
    entries: list[Entry] = []
    for row in text.splitlines():
        try:
            number, object_id, started, ended = row.split("\t")
            entries.append((object_id or None, int(number), int(started), int(ended)))
        except ValueError as error:
            raise PeerFailed(f"its log has a line that cannot be read: {row[:60]!r}") from error
    return entries


def note(work: Work, line: Line, logs: Sequence[list[Entry]]) -> None:
    """Judge the logs of a round as those of msgworker are judged, and add it to the line."""
    verdict = judge([Seen(log, Counts()) for log in logs])
    if not verdict.handled:
        raise PeerFailed(f"nothing was handled in {work.seconds:.0f} s")
    line.order_faults += verdict.order_faults
    line.overlaps += verdict.overlaps
    line.missing += verdict.repeated
    left = work.messages - (verdict.handled - verdict.repeated)
    # Between the first start and the last end of one batch lies no reading and no writing.
    few = left and verdict.seconds < work.seconds / 2
    line.rates.append(verdict.handled / work.seconds if few else verdict.rate)
    line.notes[:] = [text for text in line.notes if not text.endswith("s were over")]
    if left:
        line.notes.append(f"{verdict.handled:,} handled when {work.seconds:.0f} s were over")


def _check_effects(url: sa.URL, line: Line) -> None:
    """An effect row for each message that was handled, and one only (it is their key)."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        line.notes.append(f"{conn.exec_driver_sql('SELECT count(*) FROM effect').scalar():,} rows")


def _pickup(command: Sequence[str], job: Callable[..., Job], log: str, line: Line) -> None:
    worker = _start(command, job("work"))
    sent = f"{log}-sent"
    try:
        time.sleep(2.0)  # what it does when it starts
        _end(_start(command, job("send", sent)), START_SECONDS + END_SECONDS)
        time.sleep(0.5)
        Path(f"{log}.stop").touch()
        _end(worker, END_SECONDS)
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()
    handled = read(Path(log).read_text())
    committed = {number: at for _, number, at, _ in read(Path(sent).read_text())}
    verdict = judge([Seen(handled, Counts())])
    line.rates.append(verdict.rate)
    line.missing += len(committed) - verdict.handled + 2 * verdict.repeated
    line.notes[:] = [waits_of(committed, handled)]


def tidy(url: sa.URL) -> None:
    """Statistics fresh, nothing left to vacuum or to write back, as before our own rounds."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as conn:
        conn.exec_driver_sql("VACUUM ANALYZE")
        conn.exec_driver_sql("CHECKPOINT")


def _start(command: Sequence[str], job: Job) -> subprocess.Popen[str]:
    variables = {**os.environ, "MSGWORKER_PEER_JOB": json.dumps(asdict(job))}
    for name in ("PYTHONPATH", "PYTHONHOME", "NODE_OPTIONS"):
        variables.pop(name, None)
    return subprocess.Popen(
        command,
        env=variables,
        cwd=Path(command[-1]).parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(process: subprocess.Popen[str], seconds: float) -> None:
    """Wait for the end; raises PeerFailed for an error or if it takes too long."""
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise PeerFailed(f"no end within {seconds:.0f} s") from None
    if process.returncode:
        raise PeerFailed(why(said) or f"exit code {process.returncode}")


def why(said: str) -> str:
    """The line of a traceback, of Python or Node, that says what went wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line.split(":")[0]]
    return (told or lines or [""])[-1][:200]
