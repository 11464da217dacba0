"""Several processes (`--processes`): children of this one, each with its own instance."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from msgworker import Report
from msgworker.cli.logs import StatusLine, screen
from msgworker.cli.output import OUR_FAULT, Usage
from msgworker.instance.stop import INSIST_SECONDS, NUMBERS, Signals, StopRequest, asking, end_by
from msgworker.logs import Said, logger
from msgworker.metrics.counting import Snapshot, past, summed, unpacked

# --- The connection of a child to its parent.
#
# The parent sends lines on the pipe that is our standard input. The end of the
# pipe means that the parent has died, and starts an orderly stop. No other process reads the pipe:
# the standard input of processes that handlers start is empty.


class Parent:
    """The parent of this process; created as early as possible, in the main thread.

    Until `begin`, there is nothing to stop: a line of the parent, or a signal, ends the process.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.asked = StopRequest()
        self._begun = False
        self._lock = threading.Lock()
        self._write_lock = threading.RLock()
        words, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        for number in asking():
            signal.signal(number, signal.SIG_DFL)
        threading.Thread(
            target=self._listen, args=(words,), name="msgworker-parent", daemon=True
        ).start()

    def begin(self) -> None:
        """From now on a worker may run, which has to be stopped in order."""
        with self._lock:
            self._begun = True

    def send(self, **event: Any) -> None:
        """Send to the parent: `progress`, counts by word; `metrics`, a snapshot of them; `report`,
        that of a drain."""
        line = json.dumps(event).encode() + b"\n"
        with suppress(OSError), self._write_lock:  # the parent has died; `_listen` handles that
            os.write(self._fd, line)  # a long line is written in parts

    def _listen(self, words: int) -> None:
        with suppress(OSError), open(words, "rb") as lines:
            for line in lines:
                self._obey(line.decode().rstrip("\n"))
        self._obey("")

    def _obey(self, line: str) -> None:
        with self._lock:
            if not self._begun:
                os._exit(0)
        word, _, number = line.partition(" ")
        if word == NOW:
            self.asked.insist(int(number))
        else:
            self.asked.stop()


# --- The parent.
#
# The parent handles no message. It starts the children, restarts one that died under `run`, and
# sums their reports. It passes on a stop through the pipe that is their standard input, not by a
# signal: a manager that signals the whole group reaches each child, and a second signal from the
# parent would count as a request to stop at once.

log = logger("msgworker.cli")
FINAL = (0, 2, 3, 4)
"""Exit codes that starting the child again would not change."""
RESPAWN_MOST_SECONDS = 30.0
HEALTHY_SECONDS = 60.0
TICK_SECONDS = 0.2
STOP, NOW = "stop", "now"
"""The lines sent to a child: stop in order; stop at once, and end by the signal of this number."""


@dataclass(slots=True)
class Child:
    process: subprocess.Popen[bytes]
    fd: int
    begun: float
    said: bytes = b""
    logged: bytes = b""
    counts: Counter[str] = field(default_factory=Counter)
    metrics: Snapshot = field(default_factory=dict)
    report: dict[str, Any] | None = None
    lost: str = ""

    @property
    def at_work(self) -> bool:
        """Whether it may have begun to handle messages: from then on no signal kills it at once."""
        return bool(self.counts)

    def say(self, word: str) -> None:
        """Send it a line; see `Parent`."""
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended
            os.write(self.process.stdin.fileno(), word.encode() + b"\n")


class Fleet:
    """`size` children that all run `arguments`."""

    def __init__(self, arguments: list[str], size: int, *, progress: StatusLine) -> None:
        if os.name != "posix":
            raise Usage("--processes needs a system such as Linux; start so many `msgworker run`")
        self._arguments = arguments
        self._size = size
        self._progress = progress
        self._screen = screen()
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._past: Counter[str] = Counter()
        # What ended children have counted, and those that live: replaced at once, so that no scrape
        # misses one that is just being reaped.
        self._measured: tuple[Snapshot, tuple[Child, ...]] = ({}, ())
        self._reports: list[dict[str, Any]] = []
        self._asked = StopRequest()
        self._asked.begun = True
        self._words: list[str] = []  # sent to every child
        self._codes: list[int] = []
        self._killed_early: list[int] = []
        self._respawn_at: list[float] = []
        self._failures = 0
        self._lost: set[str] = set()  # what the children cannot write

    def run(self) -> int:
        """Run until a signal arrives or the time is over; returns the worst exit code."""
        self._work(respawn=True)
        return self._worst()

    def drain(self) -> tuple[Report, int]:
        """Run until every child has drained; returns the summed report and the worst exit code."""
        begun = time.monotonic()
        self._work(respawn=False)
        found = total(self._reports, time.monotonic() - begun)
        if self._asked.in_order and len(self._reports) < self._size:
            # A child that was stopped before it began sends no report.
            found = replace(found, stopped=True)
        return found, self._worst()

    def metrics(self) -> list[Snapshot]:
        """What the children have counted last, and those that have ended; any thread may ask."""
        before, children = self._measured
        return [before, *(child.metrics for child in children)]

    def _worst(self) -> int:
        """The worst exit code; a child that a stop killed before it began counts as 0."""
        early = [] if self._asked.in_order else self._killed_early
        return max(self._codes + early, default=0)

    def _work(self, *, respawn: bool) -> None:
        with Signals(self._asked, self._kill):
            try:
                for _ in range(self._size):
                    self._start()
                while self._children or self._respawn_at:
                    self._round(respawn)
            finally:
                self._end_all()
                self._progress.end()

    def _round(self, respawn: bool) -> None:
        self._pass_on()
        for key, _ in self._selector.select(TICK_SECONDS):
            if not key.data():
                self._selector.unregister(key.fd)
        for child in self._children.values():
            self._log_loss(child)
        for child in list(self._children.values()):
            if child.process.poll() is not None:
                self._ended(child, respawn)
        counts = sum((child.counts for child in self._children.values()), self._past.copy())
        shown = {word: counts[word] for word in ("done", "retried", "dead")}
        self._progress.show({"processes": len(self._children)} | shown)
        if self._asked.in_order or any(code in FINAL[1:] for code in self._codes):
            self._respawn_at.clear()
        due = [at for at in self._respawn_at if at <= time.monotonic()]
        for at in due:
            self._respawn_at.remove(at)
            self._start()

    def _start(self) -> None:
        ours, theirs = os.pipe()
        command = [sys.executable, "-m", "msgworker", *self._arguments, "--report-fd", str(theirs)]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE if self._screen.is_terminal else None,
                pass_fds=(theirs,),
                process_group=0,
            )
        finally:
            os.close(theirs)
        child = Child(process=process, fd=ours, begun=time.monotonic())
        self._children[ours] = child
        before, children = self._measured
        self._measured = before, (*children, child)
        self._listen(ours, partial(_read_reports, child))
        if process.stderr is not None:  # so that log lines and the status line do not mix
            self._listen(process.stderr.fileno(), partial(self._show, child))
        for word in self._words:
            child.say(word)

    def _pass_on(self) -> None:
        if self._asked.in_order and STOP not in self._words:
            log.info(
                "stopping: running handlers may end; another signal after %g s stops at once",
                INSIST_SECONDS,
            )
            self._say(STOP)
        now = f"{NOW} {self._asked.at_once}"
        if self._asked.at_once is not None and now not in self._words:
            log.warning("stopping at once")
            self._say(now)

    def _say(self, word: str) -> None:
        """Send a line to all children, and to those that are started later."""
        self._words.append(word)
        for child in self._children.values():
            child.say(word)

    def _listen(self, fd: int, take: Callable[[], bool]) -> None:
        os.set_blocking(fd, False)
        self._selector.register(fd, selectors.EVENT_READ, take)

    def _show(self, child: Child) -> bool:
        assert child.process.stderr is not None
        data = _read(child.process.stderr.fileno())
        lines = (child.logged + (data or b"")).split(b"\n")
        child.logged = lines.pop()
        for line in lines:
            self._screen.line(line.decode("utf-8", "replace"))
        return data != b""

    def _close(self, child: Child) -> None:
        """Read the last lines of a child that has ended, and close its pipes."""
        _read_reports(child)
        self._log_loss(child)
        fds = [child.fd]
        if child.process.stderr is not None:
            self._show(child)
            fds.append(child.process.stderr.fileno())
        for fd in fds:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        os.close(child.fd)
        for pipe in (child.process.stdin, child.process.stderr):
            if pipe is not None:
                pipe.close()
        del self._children[child.fd]
        before, children = self._measured
        before = summed((before, past(child.metrics)))
        self._measured = before, tuple(one for one in children if one is not child)

    def _ended(self, child: Child, respawn: bool) -> None:
        code = child.process.wait()
        self._close(child)
        self._past += child.counts
        if child.report is not None:
            self._reports.append(child.report)
        if code in (0, 1) and (self._asked.in_order or not respawn):
            # A report says why it is 1; what that process has left, others may have done since.
            self._codes.append(code if child.report is None else 0)
        elif respawn and code not in FINAL and not self._asked.in_order:
            self._again(child, code)
        elif -code in NUMBERS and not child.at_work:
            self._killed_early.append(128 - code)
        else:
            self._codes.append(code if code >= 0 else 128 - code)
            self._gone(child, code)

    def _log_loss(self, child: Child) -> None:
        """Log once that a stream of the children is lost; our own log may be lost too."""
        if child.lost and child.lost not in self._lost:
            self._lost.add(child.lost)
            log.warning("in the processes %s", child.lost)

    def _again(self, child: Child, code: int) -> None:
        """A child crashed; others recover its messages. Start a new one after a growing pause."""
        healthy = time.monotonic() - child.begun > HEALTHY_SECONDS
        self._failures = 0 if healthy else self._failures + 1
        pause = min(RESPAWN_MOST_SECONDS, 2.0 ** min(self._failures, 10) / 2)
        log.warning(
            "process %d %s; its messages are recovered, another one starts in %.1f s",
            child.process.pid,
            ending(code),
            pause,
            extra={"event": Said.PROCESS_ENDED},
        )
        self._respawn_at.append(time.monotonic() + pause)

    def _gone(self, child: Child, code: int) -> None:
        if code not in FINAL:
            extra = {"event": Said.PROCESS_ENDED}
            log.warning("process %d %s", child.process.pid, ending(code), extra=extra)
        elif code != 0:  # the child has logged why; a new one would fail too
            self._say(STOP)

    def _end_all(self) -> None:
        """End all children: none may outlive this process."""
        self._say(STOP)
        for child in list(self._children.values()):
            child.process.wait()
            self._close(child)
        self._selector.close()

    def _kill(self, number: int) -> None:
        """A third signal: end everything without waiting."""
        for child in list(self._children.values()):
            child.process.kill()
        end_by(number)


def _read(fd: int) -> bytes | None:
    """The available bytes; b"" at the end, None if there is nothing now."""
    try:
        return os.read(fd, 65_536)
    except BlockingIOError:
        return None


def _read_reports(child: Child) -> bool:
    """Read the reports of a child; False at the end of its pipe."""
    data = _read(child.fd)
    lines = (child.said + (data or b"")).split(b"\n")
    child.said = lines.pop()
    for line in lines:
        event = json.loads(line)
        if "progress" in event:
            child.counts = Counter(event["progress"])
        if "metrics" in event:
            child.metrics = unpacked(event["metrics"])
        child.report = event.get("report", child.report)
        child.lost = event.get("lost", child.lost)
    return data != b""


def ending(code: int) -> str:
    if code >= 0:
        ours = " (an error of msgworker itself)" if code == OUR_FAULT else ""
        return f"ended with {code}{ours}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def total(reports: list[dict[str, Any]], seconds: float) -> Report:
    """The sum of the reports of several drains of one table, without the messages left."""
    names = ("done", "failed", "retried", "released", "undone")
    return Report(
        **{name: sum(report[name] for report in reports) for name in names},
        seconds=seconds,
        database_lost=any(r["database_lost"] for r in reports),
        stopped=any(r["stopped"] for r in reports),
        refused=max((r["refused"] for r in reports), default=0),  # the same ones, if they share all
    )
