"""Connections of `msgworker web`: time limits for clients that send or read slowly.

uvicorn limits how long a connection may idle between two requests, but neither how long the head of
a request takes nor how long an answer is not read. So a few hundred clients that send a byte now
and then could use up all file descriptors, after which no connection can be accepted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""From the connection, or the first byte of a further request, to the end of the request's head;
and from an answer to the end of a body that it did not wait for."""
UNREAD_SECONDS = 60.0
"""How long an answer may stay unread."""
MOST_UNFINISHED = 200
"""The most connections whose request has not arrived whole; with one more the oldest is closed."""
MOST_CONNECTIONS = 900
"""With more, the one that has idled between two requests for the longest time is closed. uvicorn
refuses requests with 503 where there are `MOST_AT_ONCE`."""
MOST_AT_ONCE = 1000
"""With more, the one whose answer is unread for the longest time is closed; or else the oldest one
that idles or sends, which may be the new one."""
OTHER_FILES = 124
"""File descriptors reserved for connections of the database, files and pipes."""
PART = 8192
"""Bytes that are parsed at a time, so that the limit of a head also holds for one that arrives at
once."""


def most_at_once() -> int:
    """MOST_AT_ONCE, or less where the process may not have as many files open."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST_AT_ONCE
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_AT_ONCE
    return max(16, min(MOST_AT_ONCE, soft - OTHER_FILES))


class Server(uvicorn.Server):
    """Without its handlers of signals, which raise the signal again after an orderly stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Connection(H11Protocol):
    """One connection of a client, on the event loop. `server_state.connections` has them all."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._unfinished: dict[Connection, None] = vars(self.server_state).setdefault(
            "msgworker_unfinished", {}
        )
        self._idle: dict[Connection, None] = vars(self.server_state).setdefault(
            "msgworker_idle", {}
        )
        self._unreading: dict[Connection, None] = vars(self.server_state).setdefault(
            "msgworker_unreading", {}
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            # Otherwise an answer on a kept connection waits 40 ms for the client's delayed ACK.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._hurry()
        self._unfinished[self] = None
        if len(self._unfinished) > MOST_UNFINISHED:
            self._close_first(self._unfinished)
        most = most_at_once()
        if len(self.connections) > min(MOST_CONNECTIONS, most) and self._idle:
            self._close_first(self._idle)
        elif len(self.connections) > most:
            self._close_first(self._unreading or self._idle or self._unfinished)

    @staticmethod
    def _close_first(some: dict[Connection, None]) -> None:
        oldest = next(iter(some))
        del some[oldest]
        oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._calm()
        self.resume_writing()
        self._unfinished.pop(self, None)
        self._idle.pop(self, None)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PART):
            if not self.transport.is_closing():
                super().data_received(data[start : start + PART])
        self._judge()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._judge()
        if self.transport.get_write_buffer_size():
            self._watch_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
            self._unreading.pop(self, None)

    def _judge(self) -> None:
        """Whether the time of the client runs, after what has just been received or sent."""
        part = self.conn.their_state
        if part is h11.IDLE:
            late = self._late is not None or self.timeout_keep_alive_task is None
        elif part is h11.SEND_BODY:  # `guard.Bodies` has a limit for the body of a write
            late = self.cycle.response_complete
        else:
            late = self.transport.is_closing()
        if late:
            self._hurry()
        else:
            self._calm()
        self._idle.pop(self, None)
        if part is h11.IDLE and not late:
            self._idle[self] = None
        if late or part is h11.SEND_BODY:
            self._unfinished.setdefault(self)
        else:
            self._unfinished.pop(self, None)

    def _hurry(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _calm(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _watch_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self._end_unread)
        self._unreading.setdefault(self)

    def _end_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
