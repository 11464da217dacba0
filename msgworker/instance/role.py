"""A role: a thread of an instance with a loop and one `run_once`, which survives every error.

It logs an outage of the database when it begins and when it ends, and retries with growing,
jittered pauses.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy.exc import DBAPIError

from msgworker.counted import plural
from msgworker.db import errors
from msgworker.db.database import Trouble
from msgworker.errors import MsgworkerError
from msgworker.events import Events, OutageBegan, OutageEnded
from msgworker.instance.connections import Connections
from msgworker.logs import Said

EVERYDAY = {Trouble.AGAIN: 10, Trouble.LOST: 2}
"""Deadlocks, lock waits and dead connections are common; only this many in a row give a warning."""
HUNGRY_SECONDS = 1.0
"""The pause before a loop that ran out of memory starts again."""
AGAIN_SECONDS = 60.0
"""A loop that raises twice within this time is not started again at once."""


def outlive(
    name: str,
    log: logging.LoggerAdapter[logging.Logger],
    loop: Callable[[], None],
    twice: Callable[[MsgworkerError], bool],
) -> None:
    """The outermost frame of a thread: runs `loop`, which returns when asked to end. An error that
    it raises is a bug of ours: it is logged, and the loop starts again. twice: called with the
    second one within AGAIN_SECONDS, but for lack of memory; returns whether to start once more."""
    failed_at, unlogged = float("-inf"), None
    while True:
        try:
            if unlogged is not None:
                log.critical("%s: its loop was ended by an error", name, exc_info=unlogged)
                unlogged = None
            loop()
            return
        except errors.NO_MEMORY as error:
            unlogged = error  # logged after the pause: that needs memory
            time.sleep(HUNGRY_SECONDS)
            continue
        except BaseException as error:
            now = time.monotonic()
            again, failed_at = now - failed_at > AGAIN_SECONDS, now
            with suppress(BaseException):
                log.critical("%s: its loop was ended by an error", name, exc_info=error)
            text = f"{name}: its loop was ended by a {type(error).__name__} twice; see the log"
        if not again and not twice(MsgworkerError(text)):
            return


class Away:
    """The parts of an instance that cannot reach the database now; called by their threads. The
    first one logs the outage and the last one its end, so that an outage gives two log lines.

    patience: failures in a row before an outage is logged, if EVERYDAY says no more. quiet: now
    none is logged."""

    patience = 0
    quiet = False

    def __init__(self, stream: Events | None = None, instance: Callable[[], str] = str) -> None:
        """stream: gets an event from the first and the last. instance: returns the id."""
        self._stream = stream or Events()
        self._instance = instance
        self._since: dict[Outage, float] = {}
        self._lock = threading.Lock()

    def begins(self, who: Outage, name: str, reason: str) -> bool:
        """`who` is in an outage now; True if it is the first. name: may not be unique."""
        with self._lock:
            first = not self._since
            self._since.setdefault(who, time.monotonic())
        if first:
            self._stream.emit(OutageBegan(self._instance(), name, reason))
        return first

    def ends(self, who: Outage, name: str, failures: int) -> bool:
        """The outage of `who` is over; True if it was the last."""
        with self._lock:
            self._since.pop(who, None)
            last = not self._since
        if last:
            self._stream.emit(OutageEnded(self._instance(), name, failures))
        return last

    @property
    def outages(self) -> list[Outage]:
        with self._lock:
            return list(self._since)

    @property
    def seconds(self) -> float:
        """The duration of the longest present outage; 0 if there is none."""
        with self._lock:
            return time.monotonic() - min(self._since.values()) if self._since else 0.0


class Aside(Away):
    """For a part that neither claims, settles nor renews the lease: its failures are no outage of
    the instance, end no drain, and are logged only if they last while the others work."""

    patience = 6

    def __init__(self, main: Away) -> None:
        super().__init__()
        self._main = main

    @property
    def quiet(self) -> bool:  # type: ignore[override]
        return self._main.seconds > 0


class Outage:
    """Detects the beginning and the end of an outage, with a log line each; used by one thread."""

    def __init__(
        self,
        log: logging.LoggerAdapter[logging.Logger],
        what: str,
        away: Away | None = None,
        longest_pause: float = errors.LONGEST_PAUSE_SECONDS + 0.5,
    ) -> None:
        self._log = log
        self._longest_pause = longest_pause
        self._what = what
        self._away = away or Away()
        self._logged = False
        self.failures = 0
        self.error: BaseException | None = None

    def failed(self, error: BaseException) -> float:
        """Record a failure; return the seconds to wait before the next try."""
        self.failures += 1
        self.error = error
        with suppress(*errors.NO_MEMORY):
            self._log_failure(error)
        return errors.outage_pause(self.failures, self._longest_pause)

    def _log_failure(self, error: BaseException) -> None:
        if self.failures < max(EVERYDAY.get(errors.trouble(error), 0), self._away.patience):
            self._log.debug("%s: %s; trying again", self._what, errors.reason_of(error))
        elif not (self._logged or self._away.quiet):
            self._logged = True
            why, extra = errors.reason_of(error), {"event": Said.DATABASE_AWAY}
            first = self._away.begins(self, self._what, why)
            level = logging.WARNING if first else logging.DEBUG
            self._log.log(level, "%s: %s; trying again", self._what, why, extra=extra)

    def over(self) -> None:
        """Record a success."""
        if self._logged and self._away.ends(self, self._what, self.failures):
            text, extra = "%s: works again after %s", {"event": Said.DATABASE_BACK}
            self._log.warning(text, self._what, plural(self.failures, "failure"), extra=extra)
        self.failures = 0
        self.error = None
        self._logged = False


class Role:
    """A thread with a loop, its start and end; a subclass implements one round and its pause.

    link: its connections; the watchdog cuts them if a round hangs. None = it uses no database.
    """

    link: Connections | None = None

    def __init__(
        self,
        name: str,
        log: logging.LoggerAdapter[logging.Logger],
        away: Away | None = None,
        wake: threading.Event | None = None,
        stop_for: Callable[[MsgworkerError], None] | None = None,
        *,
        longest_pause: float = errors.LONGEST_PAUSE_SECONDS + 0.5,
    ) -> None:
        """wake: set by others to end the pause early. stop_for: stops the instance if the loop
        cannot continue; None = it works without this role. longest_pause: seconds."""
        self.name = name
        self.log = log
        self._aside = isinstance(away, Aside)
        self.outage = Outage(log, name, away, longest_pause)
        self.busy_since: float | None = None  # when the current round began
        self._logged_error = ""
        self._stop_for = stop_for
        self._wake = wake or threading.Event()
        self._asked_to_end = threading.Event()
        self.over = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self) -> int:
        """One round; returns how much was done."""
        raise NotImplementedError

    def pause_seconds(self, did: int) -> float:
        """Seconds to wait after a round; did: what `run_once` returned."""
        raise NotImplementedError

    def answered(self) -> bool:
        """Whether a round without an error shows that the database works."""
        return True

    def failed(self, error: BaseException) -> None:
        """Called with every error of a round."""

    def woken(self) -> None:
        """Called when something has set `wake`, before the next round."""

    def ended(self) -> None:
        """Called by the thread when the loop is over."""

    def start(self) -> None:
        name = f"msgworker-{self.name}"
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Cut the pause short."""
        self._wake.set()

    def ask_to_end(self) -> None:
        """Make the loop end after the current round; `join` waits for it."""
        self._asked_to_end.set()
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def _loop(self) -> None:
        try:
            outlive(self.name, self.log, self._rounds, self._failed_twice)
        finally:
            self.over.set()
            self.ended()

    def _rounds(self) -> None:
        while not self._asked_to_end.is_set():
            pause = self.round_once()
            if pause > 0 and not self._asked_to_end.is_set():
                self._wake.wait(pause)
            if self._wake.is_set():  # during the wait, after it, or without one
                self._wake.clear()
                self.woken()

    def _failed_twice(self, error: MsgworkerError) -> bool:
        if self._stop_for is None:
            return not self._asked_to_end.wait(AGAIN_SECONDS)
        self._stop_for(error)
        return False

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is its thread. Idents are not compared: they are reused."""
        return self._thread is threading.current_thread()

    @property
    def ident(self) -> int | None:
        return self._thread.ident if self._thread else None

    def round_once(self) -> float:
        self.busy_since = time.monotonic()
        try:
            did = self.run_once()
        except BaseException as error:
            self.failed(error)
            pause = self.outage.failed(error)
            reason = errors.reason_of(error)
            if errors.trouble(error) is Trouble.OTHER and reason != self._logged_error:
                self._logged_error = reason  # a repeated error is logged once
                plain = errors.shows_a_row(error) or (self._aside and isinstance(error, DBAPIError))
                shown = None if plain else error
                why = "unexpected error; continuing" if shown else reason
                self.log.error("%s: %s", self.name, why, exc_info=shown)
            return pause
        finally:
            self.busy_since = None
        self._logged_error = ""
        if self.answered():
            self.outage.over()
        return self.pause_seconds(did)
