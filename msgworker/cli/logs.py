"""Logs and progress on stderr, for the command line only: the library itself configures no logging.

One event is one line. Control characters are escaped, so that no message can fake a line or
control the terminal. All output goes through `Screen`, which keeps the status line below the log.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from msgworker.cli.group import Invocation
from msgworker.cli.output import terminal_width, visible
from msgworker.db.errors import without
from msgworker.instance.running.traceback import trace_of
from msgworker.logs import logger
from msgworker.payload import as_json, shown
from msgworker.table.columns import MAX_ERROR

FACTS = ("instance", "msg_id", "object_id", "topic", "try")
"""Attributes of the records of an instance; records about a message have all of them."""
STATUS_SECONDS = 0.5
LOG_PROGRESS_SECONDS = 10.0
LONG_TRACE = 32_000
"""The most characters of a traceback in a JSON line."""
SHORT_TRACE = 2000
"""The most bytes of a traceback in the text log, without --debug."""


class Lines(logging.Formatter):
    """Formats a record as one line, text or JSON; in text the traceback of a warning follows.

    invocation: whose secrets are left out. dated: a line of text has the day, too.
    """

    def __init__(self, form: str, invocation: Invocation, *, dated: bool = True) -> None:
        super().__init__()
        self._clock = "%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S"
        self._json = form == "json"
        self._invocation = invocation

    def format(self, record: logging.LogRecord) -> str:
        facts = {name: getattr(record, name) for name in FACTS if hasattr(record, name)}
        text = self._without(record.getMessage())
        write = self._as_json if self._json else self._as_text
        return write(record, text, facts)

    def _as_json(self, record: logging.LogRecord, text: str, facts: dict[str, Any]) -> str:
        event: dict[str, Any] = {
            "time": _instant(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **{name: getattr(record, name) for name in ("event", "more") if hasattr(record, name)},
            "message": text,
            **facts,
        }
        error = _error(record)
        if error is not None:
            event["error"] = _short(self._without(_last_line(error)), MAX_ERROR)
            trace = "".join(traceback.format_exception(error))
            event["traceback"] = _short(self._without(trace), LONG_TRACE)
        return as_json(event).replace("\x7f", "\\u007f")

    def _as_text(self, record: logging.LogRecord, text: str, facts: dict[str, Any]) -> str:
        clock = _instant(record).astimezone().strftime(self._clock)
        parts = [f"{clock} {record.levelname.lower():<7} {text}"]
        error = _error(record)
        said = "" if error is None else self._without(_last_line(error))
        if said and shown(_without_module(said), MAX_ERROR) not in text:
            parts.append(f"error={said!r}")
        parts += [f"{name}={_said(value)}" for name, value in facts.items() if value is not None]
        line = visible("  ".join([parts[0], " ".join(parts[1:])]).rstrip())
        trace = None if error is None else self._trace(record, error)
        if trace:
            trace = self._without(trace)
            line = "\n".join([line, *(visible(f"    {t}") for t in trace.splitlines())])
        return line

    def _without(self, text: str) -> str:
        return without(text, self._invocation.secrets)

    def _trace(self, record: logging.LogRecord, error: BaseException) -> str | None:
        """The traceback: in full with --debug, else the user's frames."""
        if self._invocation.debug:
            return "".join(traceback.format_exception(error))
        return trace_of(error, most=SHORT_TRACE) if record.levelno >= logging.WARNING else None


def _instant(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if isinstance(record.exc_info, tuple) else None


def _said(value: Any) -> str:
    """A fact of a record of the user's, also one whose text cannot be made."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _short(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long."""
    return text if len(text) <= most else f"{text[: most // 2]}\n...\n{text[-most // 2 :]}"


def _without_module(said: str) -> str:
    """`json.decoder.JSONDecodeError: x` in the form of `last_error`."""
    kind, colon, said = said.partition(":")
    return kind.rpartition(".")[2] + colon + said


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


class Screen(logging.Handler):
    """Stderr: log lines, and below them a status line that is redrawn. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self.is_terminal = sys.stderr.isatty()
        self._stream = sys.stderr
        self._status = ""
        self._write_lock = threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.line(self.format(record))
        except OSError:  # stderr is closed: work continues
            pass
        except Exception:
            self.handleError(record)

    def line(self, text: str) -> None:
        """Write a line above the status line."""
        with self._write_lock:
            self._stream.write(f"{self._clear()}{text}\n{self._status}")
            self._stream.flush()

    def status(self, text: str) -> None:
        """Redraw the status line; "" removes it. Does nothing without a terminal."""
        if not self.is_terminal:
            return
        with self._write_lock:
            clear, self._status = self._clear(), visible(text)[: terminal_width() - 1]
            self._stream.write(clear + self._status)
            self._stream.flush()

    def _clear(self) -> str:
        return "\r\x1b[2K" if self._status else ""


@contextmanager
def logging_to_stderr(level: str, form: str, invocation: Invocation) -> Iterator[Screen]:
    """Send every log record of this process to stderr until the block ends."""
    screen = Screen()
    # A file or the log of a service is read on another day.
    screen.setFormatter(Lines(form, invocation, dated=not screen.is_terminal))
    root = logging.getLogger()
    before, own = root.level, logging.getLogger("msgworker")
    own_before = own.level
    root.addHandler(screen)
    root.setLevel(max(logging.INFO, getattr(logging, level.upper())))
    own.setLevel(getattr(logging, level.upper()))
    logging.captureWarnings(True)
    try:
        yield screen
    finally:
        screen.status("")
        logging.captureWarnings(False)
        root.removeHandler(screen)
        root.setLevel(before)
        own.setLevel(own_before)


def screen() -> Screen:
    found = [h for h in logging.getLogger().handlers if isinstance(h, Screen)]
    return found[-1] if found else Screen()


class StatusLine:
    """Shows the progress of long work: a status line on a terminal, else a periodic log line."""

    def __init__(self, *, quiet: bool) -> None:
        self._screen = screen()
        self._quiet = quiet
        self._begun = time.monotonic()
        self._shown_at = self._begun
        self._before = (self._begun, 0)
        self._rate = 0.0
        self._logged: dict[str, int] | None = None  # the last logged counts

    def show(self, counts: dict[str, int]) -> None:
        """Called often; counts by word, "done" among them."""
        now = time.monotonic()
        if self._logged is None:
            self._logged = dict(counts)
        pause = STATUS_SECONDS if self._screen.is_terminal else LOG_PROGRESS_SECONDS
        if self._quiet or now - self._shown_at < pause:
            return
        self._shown_at = now
        done = counts.get("done", 0)
        then, before = self._before
        if now - then >= 1.0:
            self._rate = (done - before) / (now - then)
            self._before = (now, done)
        words = "  ".join(f"{word} {count:,}" for word, count in counts.items())
        text = f"{now - self._begun:.0f} s  {words}  {self._rate:,.0f}/s"
        if self._screen.is_terminal:
            self._screen.status(text)
        elif counts != self._logged:  # an idle service logs nothing
            self._logged = dict(counts)
            logger("msgworker.cli").info("progress: %s", text)

    def end(self) -> None:
        self._screen.status("")
