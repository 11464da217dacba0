"""A proxy whose open connections can be made to lead nowhere, while new ones work."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa


class Holes:
    """Between a client and the server of a URL."""

    def __init__(self, url: sa.URL) -> None:
        self._to = (url.host, url.port)
        self._epoch = 0
        self._over = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.set(host="127.0.0.1", port=self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def open(self) -> None:
        """What is connected now stays so, and nothing passes any more."""
        self._epoch += 1

    def close(self) -> None:
        """Close all connections."""
        self._over = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._over:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        epoch = self._epoch
        with client, socket.create_connection(self._to) as server:
            while not self._over:
                ready = select.select([client, server], [], [], 0.05)[0]
                if epoch != self._epoch:
                    time.sleep(0.05)
                    continue
                for one in ready:
                    try:
                        data = one.recv(65536)
                        (server if one is client else client).sendall(data)
                    except OSError:
                        return
                    if not data:
                        return


@contextmanager
def holes(url: sa.URL) -> Iterator[Holes]:
    """One for the time of the block."""
    made = Holes(url)
    try:
        yield made
    finally:
        made.close()
