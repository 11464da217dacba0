"""HAProxy with one writer in front of a cluster, as docs/operate/galera.md has it, and the check of
a node that it asks: 200 if the node is synced, else 503, as `clustercheck` answers."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.servers import CannotHave, Galera, GaleraNode, Server, install, running, unprivileged


class HAProxy(Server):
    """checks: the port at which each node is asked how it is."""

    name = "haproxy"

    def __init__(self, cluster: Galera, checks: list[int]) -> None:
        super().__init__()
        self.cluster, self.checks = cluster, checks

    @property
    def url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/"

    def prepare(self) -> None:
        if shutil.which("haproxy", path="/usr/sbin:/usr/bin") is None:
            install("haproxy")
        if shutil.which("haproxy", path="/usr/sbin:/usr/bin") is None:
            raise CannotHave("no haproxy found")
        self.user = unprivileged("haproxy")
        servers = [
            f"    server node{place} 127.0.0.1:{node.port} check port {check}"
            + " backup" * bool(place)
            for place, (node, check) in enumerate(zip(self.cluster.nodes, self.checks, strict=True))
        ]
        lines = [
            "defaults",
            "    mode tcp",
            "    timeout connect 2s",
            "    timeout client 1h",
            "    timeout server 1h",
            "listen queue",
            f"    bind 127.0.0.1:{self.port}",
            "    option httpchk",
            "    default-server inter 500ms fall 2 rise 2 on-marked-down shutdown-sessions",
            *servers,
        ]
        (self.folder / "haproxy.cfg").write_text("\n".join([*lines, ""]))
        self.give_folder()

    def command(self) -> list[str]:
        program = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
        assert program is not None
        return [program, "-db", "-f", str(self.folder / "haproxy.cfg")]

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


@contextlib.contextmanager
def checking(node: GaleraNode) -> Iterator[int]:
    """The port at which this node is asked how it is."""

    class Check(BaseHTTPRequestHandler):
        def do_OPTIONS(self) -> None:
            with contextlib.suppress(ConnectionError):  # of HAProxy, which waits 500 ms
                self.send_response(200 if node.answers() else 503)
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Check)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def in_front_of(cluster: Galera) -> Iterator[HAProxy]:
    """Raises CannotHave."""
    with ExitStack() as stack:
        made = HAProxy(cluster, [stack.enter_context(checking(node)) for node in cluster.nodes])
        yield stack.enter_context(running(made))
