"""`msgworker web`: its options, checked before anything listens, and the server."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from msgworker.coordination.centres import DATABASE, check_centre
from msgworker.errors import ConfigError
from msgworker.instance.stop import asking
from msgworker.logs import logger
from msgworker.web import access
from msgworker.web.access import Door, Role

if TYPE_CHECKING:
    from msgworker import App
    from msgworker.web.application import Dashboard

__all__ = ["address", "dashboard_for", "listening", "serve"]

log = logger("msgworker.web")
KEY_VARIABLE = "MSGWORKER_WEB_KEY"
STOP_SECONDS = 5
"""How long answers that are under way may take at a stop."""
BACKLOG = 128
LOG_SECONDS = 60.0
"""Seconds between two log lines about connections that cannot be accepted."""
EVERYWHERE = ("0.0.0.0", "::", "")


def dashboard_for(
    app: App,
    conf: Mapping[str, Any],
    environ: Mapping[str, str],
    values: Iterable[tuple[str, Any, str]] = (),
) -> Dashboard:
    """The dashboard that settings describe; raises ConfigError if it would be open to others.

    conf: the settings `web_*` by name. values: what the page System shows, see `dashboard`.
    """
    from msgworker.web.application import dashboard

    host, port = conf["web_host"], conf["web_port"]
    door = door_for(conf, environ)
    if isinstance(door, access.Local) and not access.is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, and there is no authentication: "
            f"set {access.TOKEN_VARIABLE}, or give --token-file FILE, or --trusted-proxy-header "
            "NAME with --trusted-proxy ADDRESS; or leave --host at 127.0.0.1"
        )
    hosts = list(conf["web_allowed_hosts"])
    if host in EVERYWHERE and not hosts:
        raise ConfigError(
            f"--host {host} is every address of this machine: name those that browsers use with "
            f"--allowed-host NAME:{port}"
        )
    if host not in EVERYWHERE and port:
        hosts.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return dashboard(
        app,
        auth=door,
        root_path=conf["web_root_path"] or "",
        actions=conf["web_allow_actions"],
        allowed_hosts=hosts,
        trusted_proxies=conf["web_trusted_proxies"],
        redact=conf["web_redact"],
        label=conf["web_label"] or "",
        key=environ.get(KEY_VARIABLE),
        locks=None if conf["locks"] == DATABASE else check_centre(conf["locks"]),
        values=values,
    )


def door_for(conf: Mapping[str, Any], environ: Mapping[str, str]) -> Door:
    """The authentication that settings ask for; raises ConfigError."""
    role = Role.of(conf["web_role"])
    file, header = conf["web_token_file"], conf["web_trusted_proxy_header"]
    found = access.tokens_from(environ)
    if file is not None:
        found = access.checked([*found, *access.read_tokens(file)], f"--token-file {file}")
    if header is not None and found:
        raise ConfigError("give tokens or --trusted-proxy-header, not both")
    if header is not None:
        proxies = access.networks_of(conf["web_trusted_proxies"])
        if not proxies:
            raise ConfigError(
                "--trusted-proxy-header needs --trusted-proxy ADDRESS: from others the header "
                "could name any user"
            )
        says = conf["web_role_header"]
        named = None if says is None else access.header_name(says)
        return access.Proxied(access.header_name(header), proxies, role, named)
    if conf["web_role_header"] is not None:
        raise ConfigError("--role-header is of --trusted-proxy-header: give both")
    return access.Tokens(found, role) if found else access.Local(role)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; raises ConfigError if the address is not free or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host} port {port}: {why}") from None
    made.setblocking(False)
    return made


def uvicorn_config(dashboard: Dashboard) -> uvicorn.Config:
    return uvicorn.Config(
        dashboard,
        log_config=None,  # one event, one line, by our own logger
        http=Connection,  # of h11; httptools, where it is installed, has no limit of headers
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        limit_concurrency=most_at_once(),
        backlog=BACKLOG,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=STOP_SECONDS,
        h11_max_incomplete_event_size=32 * 1024,
    )


def serve(dashboard: Dashboard, listener: socket.socket) -> None:
    """Answer until SIGTERM, SIGINT, SIGHUP or SIGQUIT; then answers under way may take
    STOP_SECONDS. A second signal ends it at once."""
    server = Server(uvicorn_config(dashboard))

    async def answer() -> None:
        asyncio.get_running_loop().set_exception_handler(_LoopErrors())
        await server.serve(sockets=[listener])

    with _stopping(server), listener:
        asyncio.run(answer())
    dashboard.site.close()


class _LoopErrors:
    """Logs errors of the event loop; that no connection can be accepted, which is retried all the
    time, only once a minute."""

    def __init__(self) -> None:
        self._logged_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "accept" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._logged_at >= LOG_SECONDS:
            self._logged_at = time.monotonic()
            log.warning("no connection can be accepted now: %s", context.get("exception"))


@contextmanager
def _stopping(server: uvicorn.Server) -> Iterator[None]:
    """The first signal stops in order, the second one at once."""

    def stop(number: int, _: FrameType | None) -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in asking()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def address(listener: socket.socket, root_path: str | None) -> str:
    host, port, *_ = listener.getsockname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{root_path or ''}/"


# --- Connections of `msgworker web`: time limits for clients that send or read slowly.
#
# uvicorn limits how long a connection may idle between two requests, but neither how long the head
# of a request takes nor how long an answer is not read. So a few hundred clients that send a byte
# now and then could use up all file descriptors, after which no connection can be accepted.

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
        self._unfinished = self._shared("unfinished")
        self._idle = self._shared("idle")
        self._unreading = self._shared("unreading")

    def _shared(self, what: str) -> dict[Connection, None]:
        """Connections of this server, the oldest first."""
        found: dict[Connection, None] = vars(self.server_state).setdefault(f"msgworker_{what}", {})
        return found

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
