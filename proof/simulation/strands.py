"""Threads that take turns as a schedule says, and the locks and the time that they see.

The roles of the product run unchanged, each in a thread of its own; but only one thread runs at any
moment, from one pause to the next. It pauses wherever another thread or process may come in
between: before a statement and after a COMMIT (connections.py), where it waits for a lock, an event
or a moment, and now and then where it takes a lock or reads the clock. So the same draws give the
same history, however the machine is loaded.

`replaced_in` gives the modules of the product `time`, `threading` and `random` of this kind: by
these names they have all that they know of threads and time, those that are added later, too.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

Condition = Callable[[], bool] | None
STEP_SECONDS = 0.01
SWITCHES = 0.1  # how often a thread pauses where it takes a lock or reads the clock
PRODUCT = "msgworker.instance."
ALSO = ("msgworker.clock", "msgworker.db.errors")  # it pauses, and draws for how long


class Gone(BaseException):
    """Ends the threads of a process that is no more."""


class Process(Protocol):
    """To which a strand belongs."""

    alive: bool
    label: str


class _Worker:
    """A thread of the machine, used for one strand after the other."""

    idle: ClassVar[list[_Worker]] = []

    def __init__(self) -> None:
        self.go = threading.Lock()
        self.go.acquire()
        self.job: Callable[[], None] = lambda: None
        threading.Thread(target=self._loop, name="simulation", daemon=True).start()

    def _loop(self) -> None:
        while True:
            self.go.acquire()
            self.job()  # another may have it already when this returns


class Strand:
    """One thread of one process. It runs when it is chosen, until it pauses or ends.

    ready, until: what it waits for, and until when at most; None, None = it may go on at once.
    ran_at: when its last steps began.
    """

    def __init__(
        self, stage: Stage, name: str, process: Process, work: Callable[[], object]
    ) -> None:
        self.name = name
        self.process = process
        self.ready: Condition = None
        self.until: float | None = None
        self.started = self.over = False
        self.ran_at: deque[float] = deque(maxlen=4)
        self.weight = 1.0
        self.thread: Thread | None = None
        self._stage = stage
        self._work = work
        self._worker: _Worker | None = None
        self._burier: threading.Lock | None = None

    def wake(self) -> None:
        """Let its thread go on; the one that calls this must stand still then."""
        if self._worker is None:
            self._worker = _Worker.idle.pop() if _Worker.idle else _Worker()
            self._worker.job = self._run
            self.started = True
        self._worker.go.release()

    def pause(self, ready: Condition = None, until: float | None = None) -> None:
        """Called by its own thread: let others run, until it is chosen again."""
        assert self._worker is not None
        self.ready, self.until = ready, until
        if not self._stage.pass_on(self):
            self._worker.go.acquire()
        if not self.process.alive:
            raise Gone

    def end(self) -> None:
        """End it; its process is not alive any more."""
        if not self.started or self.over or self._stage.asking is self:
            return  # the last one ends by itself, as soon as it goes on
        before, self._stage.current = self._stage.current, self
        self._burier = threading.Lock()
        self._burier.acquire()
        self.wake()
        self._burier.acquire()
        self._stage.current = before

    def _run(self) -> None:
        try:
            self._work()
        except Gone:
            pass
        except BaseException as error:
            self._stage.errors.append(error)
        worker, self._worker, self.over = self._worker, None, True
        assert worker is not None
        _Worker.idle.append(worker)
        if self._burier is not None:
            self._burier.release()
        else:
            self._stage.pass_on(None)


class Clock(Protocol):
    """Virtual seconds."""

    seconds: float


class Stage:
    """What the strands of one schedule share.

    current: the strand that runs now. asking: the one whose thread chooses the next one. atomic: it
    is in the middle of a transaction, so nothing comes in between. spawn: told of a new strand.
    errors: which have ended strands.
    """

    def __init__(
        self, clock: Clock, rng: random.Random, spawn: Callable[[Strand], None], chance: str
    ) -> None:
        self.clock = clock
        self.current: Strand | None = None
        self.asking: Strand | None = None
        self.atomic = False
        self.errors: list[BaseException] = []
        self._rng = rng
        self._spawn = spawn
        self._plot: Iterator[Strand] = iter(())
        self._chosen: list[Strand | None] = []
        self._over = threading.Lock()
        self._over.acquire()
        self.random = random.Random(chance)  # what the product draws
        self.time = Time(self)
        self.threading = Threading(self)

    def play(self, plot: Iterator[Strand]) -> None:
        """Let run whom the plot names, one after the other, until it ends. Whoever pauses asks it
        for the next one, so that a thread that goes on itself costs no change of threads."""
        self._plot = plot
        self.pass_on(None)
        self._over.acquire()
        if self.errors:
            raise self.errors[0]

    def pass_on(self, me: Strand | None) -> bool:
        """Let the next one run; True if it is the strand that asks. Raises Gone if that has died
        meanwhile."""
        if not self._chosen:
            self._chosen.append(self._choose(me))
        if me is not None and not me.process.alive:
            self.current = me
            raise Gone  # and when it has ended, the one that is chosen goes on
        chosen = self._chosen.pop()
        self.current = chosen
        if chosen is None:
            self._over.release()
            return False
        chosen.ran_at.append(self.clock.seconds)
        if chosen is me:
            return True
        chosen.wake()
        return False

    def _choose(self, me: Strand | None) -> Strand | None:
        self.current, self.asking = None, me
        try:
            return None if self.errors else next(self._plot, None)
        except BaseException as error:
            self.errors.append(error)
            return None
        finally:
            self.asking = None

    def monotonic(self) -> float:
        self.maybe()
        return self.clock.seconds

    def begin(self, name: str, process: Process, work: Callable[[], object]) -> Strand:
        """A new thread of a process."""
        strand = Strand(self, name, process, work)
        self._spawn(strand)
        return strand

    def pause(self, ready: Condition = None, until: float | None = None) -> None:
        """Let others run, unless that cannot be here."""
        if self.current is None:
            assert ready is None, "there is no thread that could wait"
        elif not self.current.process.alive:
            raise Gone
        elif not self.atomic:
            self.current.pause(ready, until)
        elif ready is not None:
            raise AssertionError(f"{self.current.name} waits in the middle of a transaction")

    def linger(self, steps: int) -> None:
        """Let others run for so many steps, or at least for one."""
        if steps and not self.atomic:
            self.pause(lambda: False, self.clock.seconds + steps * STEP_SECONDS)
        else:
            self.pause()

    def maybe(self) -> None:
        """Now and then let others run."""
        strand = self.current
        if strand is None or self.atomic:
            return
        if not strand.process.alive:
            raise Gone
        if self._rng.random() < SWITCHES:
            strand.pause()

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until it is so, so many seconds at most; returns whether it is."""
        self.maybe()
        if not ready() and (seconds is None or seconds > 0):
            self.pause(ready, None if seconds is None else self.clock.seconds + seconds)
        return ready()


class Time:
    """Stands for the module `time`."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.monotonic = self.perf_counter = stage.monotonic

    def clock_gettime(self, _which: int) -> float:
        return self._stage.monotonic()

    def sleep(self, seconds: float) -> None:
        self._stage.wait(lambda: False, max(seconds, 0.001))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Lock:
    """Stands for threading.Lock."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self._stage.wait(lambda: not self._taken, None if timeout < 0 else timeout)
        if self._taken:
            return False
        self._taken = True
        return True

    def release(self) -> None:
        assert self._taken, "released, but not taken"
        self._taken = False

    def locked(self) -> bool:
        return self._taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self._taken = False


class Gate(Lock):
    """Stands for threading.Condition."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._waiting: list[list[bool]] = []

    def wait(self, timeout: float | None = None) -> bool:
        told = [False]
        self._waiting.append(told)
        self._taken = False
        self._stage.wait(lambda: told[0], timeout)
        if not told[0]:
            self._waiting.remove(told)
        return self.acquire() and told[0]

    def notify(self, n: int = 1) -> None:
        for told in self._waiting[:n]:
            told[0] = True
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """Stands for threading.Event."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._set = False

    def is_set(self) -> bool:
        self._stage.maybe()
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._stage.wait(lambda: self._set, timeout)


class Thread:
    """Stands for threading.Thread."""

    def __init__(
        self,
        stage: Stage,
        target: Callable[..., object],
        name: str = "",
        args: tuple[Any, ...] = (),
        daemon: bool | None = None,
    ) -> None:
        self._stage = stage
        self._work = lambda: target(*args)
        self.name = name
        self.daemon = daemon
        self.ident: int | None = None
        self._strand: Strand | None = None

    def start(self) -> None:
        """Begin it, in the process of the thread that runs now."""
        by = self._stage.current
        assert by is not None, "threads are started by threads"
        self.ident = self._stage.threading.next_ident()
        name = f"{by.process.label}.{self.name.removeprefix('msgworker-')}"
        self._strand = self._stage.begin(name, by.process, self._work)
        self._strand.thread = self

    def is_alive(self) -> bool:
        return self._strand is not None and not self._strand.over

    def join(self, timeout: float | None = None) -> None:
        self._stage.wait(lambda: not self.is_alive(), timeout)


class Timer(Thread):
    """Stands for threading.Timer."""

    def __init__(self, stage: Stage, interval: float, function: Callable[[], object]) -> None:
        super().__init__(stage, self._late, "timer")
        self._cancelled = Event(stage)
        self._interval = interval
        self._function = function

    def _late(self) -> None:
        if not self._cancelled.wait(self._interval):
            self._function()

    def cancel(self) -> None:
        self._cancelled.set()


class Threading:
    """Stands for the module `threading`."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._idents = 0

    def next_ident(self) -> int:
        self._idents += 1
        return self._idents

    def Lock(self) -> Lock:
        return Lock(self._stage)

    def Condition(self) -> Gate:
        return Gate(self._stage)

    def Event(self) -> Event:
        return Event(self._stage)

    def Thread(self, target: Callable[..., object], **how: Any) -> Thread:
        return Thread(self._stage, target, **how)

    def Timer(self, interval: float, function: Callable[[], object]) -> Timer:
        return Timer(self._stage, interval, function)

    def current_thread(self) -> Any:
        strand = self._stage.current
        return threading.current_thread() if strand is None else strand.thread

    def get_ident(self) -> int:
        strand = self._stage.current
        return 0 if strand is None or strand.thread is None else strand.thread.ident or 0

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@contextmanager
def replaced_in(stage: Stage, others: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """The product's modules know the time, the threads and the chances of a stage.

    others: module, name and value of what is replaced beside.
    """
    ours = {"time": stage.time, "threading": stage.threading, "random": stage.random}
    real = {"time": time, "threading": threading, "random": random}
    names = [name for name in sys.modules if name.startswith(PRODUCT) or name in ALSO]
    found = [
        (sys.modules[module], name, ours[name])
        for module in names
        for name in ours
        if vars(sys.modules[module]).get(name) is real[name]
    ]
    found += others
    before = [(module, name, getattr(module, name)) for module, name, _ in found]
    try:
        for module, name, value in found:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)
