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

from msgworker.coordination.centres import DATABASE, check_centre
from msgworker.errors import ConfigError
from msgworker.instance.stop import asking
from msgworker.logs import logger
from msgworker.web import access, sessions
from msgworker.web.access import Door
from msgworker.web.sessions import Role

if TYPE_CHECKING:
    import uvicorn

    from msgworker import App
    from msgworker.web.application import Dashboard

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
    values: Iterable[tuple[str, Any, str]] | None = None,
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
            f"set {sessions.TOKEN_VARIABLE}, or give --token-file FILE, or --trusted-proxy-header "
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
    found = sessions.tokens_from(environ)
    if file is not None:
        found = sessions.checked([*found, *sessions.read_tokens(file)], f"--token-file {file}")
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


def configured(dashboard: Dashboard) -> uvicorn.Config:
    """What uvicorn is started with."""
    import uvicorn

    from msgworker.web.connections import Connection, most_at_once

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
    from msgworker.web.connections import Server

    server = Server(configured(dashboard))

    async def answer() -> None:
        asyncio.get_running_loop().set_exception_handler(_LoopErrors())
        await server.serve(sockets=[listener])

    with _stopping(server, dashboard), listener:
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
def _stopping(server: uvicorn.Server, dashboard: Dashboard) -> Iterator[None]:
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
    """Where a browser finds it."""
    host, port, *_ = listener.getsockname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{root_path or ''}/"


__all__ = ["address", "dashboard_for", "listening", "serve"]
