"""Clients that send or read slowly, against the server of `msgworker web`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from msgworker import App
from msgworker.web import guard, serving
from tests.support.waiting import until
from tests.support.web import dashboard_with

HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
SOON = 10.0


class Served:
    """A dashboard that is served in a thread."""

    def __init__(self, app: App) -> None:
        self.dashboard = dashboard_with(app)
        self.listener = serving.listening("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.server = serving.Server(serving.uvicorn_config(self.dashboard))
        serve = self.server.serve(sockets=[self.listener])
        self.thread = threading.Thread(target=lambda: asyncio.run(serve))
        self.made: list[socket.socket] = []
        self.thread.start()

    def connect(self, *sent: bytes) -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self.port), timeout=SOON)
        self.made.append(found)
        for part in sent:
            found.sendall(part)
        return found

    @property
    def head(self) -> bytes:
        return HEAD % self.port

    def healthy(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/healthz"
        return bool(urllib.request.urlopen(url, timeout=SOON).status == 200)

    @property
    def open(self) -> int:
        return len(self.server.server_state.connections)

    def close(self) -> None:
        for one in self.made:
            one.close()
        self.server.should_exit = True
        self.thread.join(SOON)
        self.listener.close()
        self.dashboard.site.close()


@pytest.fixture
def served(sqlite_app: App) -> Iterator[Served]:
    made = Served(sqlite_app)
    yield made
    made.close()


def is_closed(one: socket.socket) -> bool:
    """Whether the server has closed it; what it had sent is read."""
    with contextlib.suppress(ConnectionError):
        while one.recv(65_536):
            pass
    return True


def answered(one: socket.socket) -> bool:
    """Whether the next answer is that all is well; it is read whole."""
    found = b""
    while b'{"status":"ok"}' not in found:
        part = one.recv(65_536)
        if not part:
            return False
        found += part
    return found.startswith(b"HTTP/1.1 200")


def trickle(one: socket.socket, text: bytes = b"x") -> None:
    """Send a byte now and then until the server has had enough."""

    def refused() -> bool:
        try:
            one.sendall(text)
        except OSError:
            return True
        return False

    until(refused, "its end", seconds=SOON)


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHo"], ids=str)
def test_a_head_that_does_not_come_whole_in_time_ends_the_connection(
    served: Served, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.2)
    assert is_closed(served.connect(sent))


def test_bytes_that_trickle_in_buy_no_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.2)
    trickle(served.connect(served.head, b"X-A: "))
    again = served.connect(served.head, b"\r\n")  # the second request of a connection
    assert answered(again)
    trickle(again)


def test_a_body_that_no_answer_waits_for_ends_the_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.2)
    one = served.connect(served.head, b"Content-Length: 1000000\r\n\r\n")
    assert answered(one)
    trickle(one)


def test_the_body_of_a_write_has_a_time_too(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.3)
    head = served.head.replace(b"GET /healthz", b"POST /login")
    one = served.connect(head, b"Content-Length: 100\r\n\r\n")
    trickle(one)
    assert one.recv(65_536).startswith(b"HTTP/1.1 408") or is_closed(one)


def test_who_does_not_read_the_answer_is_left(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "UNREAD_SECONDS", 0.3)
    sent = served.head.replace(b"/healthz", b"/static/htmx.min.js") + b"\r\n"
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", served.port))
    served.made.append(one)
    one.setblocking(False)
    with contextlib.suppress(OSError):  # many requests, whose answers fill all buffers
        for _ in range(2000):
            one.sendall(sent)
    until(lambda: served.open == 0, "its end")


def test_slow_clients_leave_room_for_others(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Two hundred wait for their head; a further one takes the place of the first."""
    monkeypatch.setattr(serving, "MOST_UNFINISHED", 200)
    monkeypatch.setattr(serving, "HEAD_SECONDS", 60.0)  # time alone closes none
    with caplog.at_level(logging.WARNING):
        slow = [served.connect(b"GET / HTTP/1.1\r\n") for _ in range(200)]
        until(lambda: served.open == 200, "all connections")
        begun = time.monotonic()
        assert served.healthy()
        assert time.monotonic() - begun < 5
        assert is_closed(slow[0])
        assert served.open >= 199  # those who only wait are not punished
        assert caplog.records == []


def test_idle_connections_leave_room_for_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks now and then, so that none ends by time."""
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 20)
    monkeypatch.setattr(served.server.config, "timeout_keep_alive", 60)
    idle = []
    for _ in range(20):
        idle.append(served.connect(served.head + b"\r\n"))
        assert answered(idle[-1])
    idle[0].sendall(served.head + b"\r\n")
    assert answered(idle[0])  # it is the last now
    for _ in range(5):
        assert served.healthy()
    until(lambda: served.open <= 20, "room")
    assert is_closed(idle[1])
    for one in (idle[0], idle[-1]):
        one.sendall(served.head + b"\r\n")
        assert answered(one)


def test_a_connection_that_is_used_goes_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.3)
    one = served.connect()
    for _ in range(4):
        one.sendall(served.head + b"\r\n")
        assert answered(one)
        time.sleep(0.2)
    assert served.open == 1


def test_a_head_that_arrives_at_once_is_bounded_as_one_in_parts(served: Served) -> None:
    head = served.head + b"X-A: " + b"x" * 120_000 + b"\r\n\r\n"
    one = served.connect(head)
    assert one.recv(65_536).startswith(b"HTTP/1.1 400")
    assert is_closed(one)
    assert answered(served.connect(served.head + b"X-A: " + b"x" * 20_000 + b"\r\n\r\n"))


def test_a_cookie_of_any_length_takes_no_time(served: Served) -> None:
    begun = time.monotonic()
    cookie = b'Cookie: a="' + b"\\" * 28_000 + b'"; b=1\r\n\r\n'
    assert answered(served.connect(served.head + cookie))
    assert time.monotonic() - begun < 1.0  # to undo its quotes took more than that


def test_no_answer_on_a_kept_connection_waits_for_the_client(served: Served) -> None:
    answered(served.connect(served.head + b"\r\n"))
    for one in served.server.server_state.connections:
        kept = one.transport.get_extra_info("socket")
        assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_who_does_not_read_leaves_room_for_others_where_few_files_may_be_open(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "most_at_once", lambda: 8)
    asked = served.head.replace(b"/healthz", b"/static/htmx.min.js") + b"\r\n"
    for _ in range(20):
        one = served.connect()
        one.setblocking(False)
        with contextlib.suppress(OSError):
            one.send(asked * 200)  # more than fits between it and us

    def healthy() -> bool:
        with contextlib.suppress(OSError):
            return served.healthy()
        return False

    until(healthy, "another one is answered", seconds=SOON)
    assert served.open <= 8


def test_connections_that_cannot_be_accepted_are_told_once_in_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telling, loop = serving._LoopErrors(), asyncio.new_event_loop()
    for _ in range(500):
        telling(loop, {"message": "socket.accept() out of system resource", "exception": OSError()})
    loop.close()
    assert len([one for one in caplog.records if "accepted" in one.message]) == 1
