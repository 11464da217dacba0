"""The standard streams of a call, also if some were closed at its start.

A closed stream is opened on the null device before another file can take its number: otherwise
output would go into the first socket or database file. A write that fails (closed, disk full)
raises nothing, because work must continue: it is reported once on the other stream, and
`group.Main` decides the exit code.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

NAMES = ("stdin", "stdout", "stderr")
LOST = "{} cannot be written: {}; output there is lost"


class ClosedPipe(Exception):
    """The reader of our output has closed the pipe."""


class Output(io.FileIO):
    """Stdout or stderr. lost: why the first failed write failed; None if none has.

    on_loss: called with a line, once, when a write fails.
    ends: a pipe without a reader raises ClosedPipe, once, which ends the command.
    """

    def __init__(self, fd: int, *, closed: bool) -> None:
        super().__init__(fd, "w", closefd=False)
        self.title = NAMES[fd]
        self.lost: OSError | None = None
        self.on_loss: Callable[[str], None] = _nobody
        self.ends = False
        self._was_closed = closed

    def write(self, data: Any) -> int:
        """Write all of `data`, or nothing; raises no error."""
        try:
            if self._was_closed:
                raise OSError(errno.EBADF, "it is closed")
            while (count := super().write(data)) is None:  # a reader that is slow
                select.select([], [self], [])
            return count
        except OSError as error:
            if self.lost is None:
                self.lost = error
                self._say(error)
        return len(data)

    def _say(self, error: OSError) -> None:
        if not _unread(error):
            with suppress(Exception):
                self.on_loss(LOST.format(self.title, error.strerror or error))
        elif self.ends:
            raise ClosedPipe


class UnclosedStream(io.TextIOWrapper):
    """A stream that cannot be closed: a handler may try, and the log still works."""

    def close(self) -> None:
        with suppress(ValueError):
            self.flush()


class Streams:
    """Stdout and stderr of this call; None if they were replaced."""

    def __init__(self, out: Output | None = None, err: Output | None = None) -> None:
        self._out, self._err = out, err
        if out is not None and err is not None:
            out.ends, out.on_loss = True, _onto(err)

    def of_work(self, *, text: bool) -> None:
        """The command continues when its output is lost.

        text: the output is text for people, so that an extra line does no harm.
        """
        if self._out is not None and self._err is not None:
            self._out.ends = False
            self._err.on_loss = _onto(self._out) if text else _nobody
            # Report a closed stream now: later the log may be that of children.
            self._err.write(b"")

    def of_child(self, report: Callable[[str], None]) -> None:
        """The command works for another process, which gets the line about a loss."""
        for stream in (self._out, self._err):
            if stream is not None:
                stream.ends, stream.on_loss = False, report

    def output_is_lost(self) -> bool:
        """Whether lost output on stdout counts as a failure; called at the end."""
        with suppress(ClosedPipe, ValueError):
            sys.stdout.flush()
        out = self._out
        return out is not None and out.ends and out.lost is not None and not _unread(out.lost)


def _onto(other: Output) -> Callable[[str], None]:
    def report(line: str) -> None:
        other.write(f"msgworker: {line}\n".encode())

    return report


def _nobody(line: str) -> None:
    pass


def _unread(error: OSError) -> bool:
    return isinstance(error, BrokenPipeError)


@contextmanager
def standard_streams() -> Iterator[Streams]:
    """The streams of this call, until the block ends."""
    closed = [fd for fd in range(3) if _opened(fd)]
    before = (sys.stdin, sys.stdout, sys.stderr)
    if 0 in closed and sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the whole program
    outputs = [_taken(fd, fd in closed) for fd in (1, 2)]
    try:
        yield Streams(*outputs)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError, ClosedPipe):
                stream.flush()
        sys.stdin, sys.stdout, sys.stderr = before


def _opened(fd: int) -> bool:
    """Open the null device under this number, if nothing is open; returns whether it did."""
    try:
        os.fstat(fd)
        return False
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != fd:
            os.dup2(null, fd)
            os.close(null)
        os.set_inheritable(fd, True)
        return True


def _taken(fd: int, closed: bool) -> Output | None:
    """Replace a stream of the interpreter with an Output."""
    name = NAMES[fd]
    old: TextIO | None = getattr(sys, name)
    if old is not getattr(sys, f"__{name}__"):
        return None
    raw = Output(fd, closed=closed)
    errors = getattr(old, "errors", None) or "strict"
    new = UnclosedStream(
        io.BufferedWriter(raw),
        encoding=getattr(old, "encoding", None) or "utf-8",
        # What the encoding has not (Latin-1, that of Windows) is no reason to end.
        errors="backslashreplace" if errors == "strict" else errors,
        line_buffering=name == "stderr" or getattr(old, "line_buffering", False),
        write_through=getattr(old, "write_through", False),
    )
    setattr(sys, name, new)
    return raw
