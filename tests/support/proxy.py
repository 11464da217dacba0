"""A TCP proxy that does to connections what networks do.

pass; refuse (the port is closed); cut (reset all); black hole (bytes of living and of new
connections vanish, nothing is closed); delay. And `Cut`s: a connection is reset exactly at a
commit, before the server has got it or after it has committed and before the answer is through.

A commit is the COMMIT of a transaction, or a statement that stands alone; it is chosen by the text
of what it commits. The wire protocols of PostgreSQL and MySQL are read as far as that needs.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from sqlalchemy.engine import make_url

RESET = struct.pack("ii", 1, 0)
TICK_SECONDS = 0.02
CHUNK = 65536


Side = Literal["before", "during", "after"]


class Mode(Enum):
    PASS = "pass"
    REFUSE = "refuse"
    HOLE = "hole"


@dataclass
class Cut:
    """Reset the connection of commits whose text matches, `every`-th of them, `times` at most.

    side "before": the server never sees the commit. "during": it goes on with it, without a client.
    "after": it has committed, and no answer arrives.
    """

    match: str
    side: Side
    times: int = 1
    every: int = 1
    done: int = 0
    seen: int = 0

    def wants(self, text: str) -> bool:
        if self.done >= self.times or not re.search(self.match, text, re.I | re.S):
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        self.done += 1
        return True


class Reader:
    """Follows one connection's requests: `commits(bytes)` gives what each commit among them holds,
    with the place in the bytes where its request begins."""

    def __init__(self) -> None:
        self._rest = b""
        self._texts: list[str] = []
        self._in_transaction = False

    def commits(self, data: bytes) -> list[str]:
        found: list[str] = []
        self._rest += data
        for text in self._requests():
            word = text.lstrip().split(None, 1)[0].upper().rstrip(";") if text.strip() else ""
            if word in ("BEGIN", "START"):
                self._in_transaction, self._texts = True, []
            elif word == "COMMIT":
                found.append("\n".join(self._texts))
                self._in_transaction, self._texts = False, []
            elif word == "ROLLBACK":
                self._in_transaction, self._texts = False, []
            elif self._stands_alone(word):
                found.append(text)
            else:
                self._texts.append(text)
        return found

    def _stands_alone(self, word: str) -> bool:
        raise NotImplementedError

    def _requests(self) -> Iterator[str]:
        raise NotImplementedError

    def answered(self, data: bytes) -> bool:
        """Whether these bytes of the server end an answer."""
        raise NotImplementedError


class PostgreSQL(Reader):
    def __init__(self) -> None:
        super().__init__()
        self._started = False
        self._prepared: dict[bytes, str] = {}

    def _stands_alone(self, word: str) -> bool:
        return not self._in_transaction and word in ("WITH", "UPDATE", "INSERT", "DELETE")

    def _requests(self) -> Iterator[str]:
        while len(self._rest) >= (5 if self._started else 4):
            at = 1 if self._started else 0
            (size,) = struct.unpack_from("!I", self._rest, at)
            if len(self._rest) < at + size:
                return
            kind, body = self._rest[:at], self._rest[at + 4 : at + size]
            self._rest = self._rest[at + size :]
            if not self._started:  # SSLRequest and GSSENCRequest come before the real start
                self._started = body[:4] not in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30")
            elif kind == b"Q":
                yield body.rstrip(b"\0").decode(errors="replace")
            elif kind == b"P":
                name, text, _ = body.split(b"\0", 2)
                self._prepared[name] = text.decode(errors="replace")
            elif kind == b"B":
                _, name, _ = body.split(b"\0", 2)
                yield self._prepared.get(name, "")

    def answered(self, data: bytes) -> bool:
        return data[-6:-1] == b"Z\0\0\0\5"


class MySQL(Reader):
    """PyMySQL turns autocommit off at the connection, and on where each statement stands alone."""

    def __init__(self) -> None:
        super().__init__()
        self._autocommit = True
        self._started = False

    def _stands_alone(self, word: str) -> bool:
        words = ("UPDATE", "INSERT", "DELETE")
        return self._autocommit and not self._in_transaction and word in words

    def _requests(self) -> Iterator[str]:
        while len(self._rest) >= 4:
            size = int.from_bytes(self._rest[:3], "little")
            if len(self._rest) < 4 + size:
                return
            body, self._rest = self._rest[4 : 4 + size], self._rest[4 + size :]
            if not self._started:
                self._started = True  # who we are
            elif body[:1] == b"\x03":
                text = body[1:].decode(errors="replace")
                setting = re.match(r"\s*SET AUTOCOMMIT\s*=\s*(\d)", text, re.I)
                if setting:
                    self._autocommit = setting[1] == "1"
                else:
                    yield text

    def answered(self, data: bytes) -> bool:
        return bool(data)


class Redis(Reader):
    """Each command, or pipeline of commands, that a client sends at once stands alone."""

    def _stands_alone(self, word: str) -> bool:
        return True

    def _requests(self) -> Iterator[str]:
        text, self._rest = self._rest.decode(errors="replace"), b""
        yield text

    def answered(self, data: bytes) -> bool:
        return bool(data)


class ZooKeeper(Reader):
    """A request is told as its number: "op 15" creates a node, "op 2" deletes one."""

    def __init__(self) -> None:
        super().__init__()
        self._started = False

    def _stands_alone(self, word: str) -> bool:
        return True

    def _requests(self) -> Iterator[str]:
        while len(self._rest) >= 4:
            (size,) = struct.unpack_from("!I", self._rest)
            if len(self._rest) < 4 + size:
                return
            body, self._rest = self._rest[4 : 4 + size], self._rest[4 + size :]
            if self._started:
                yield f"op {struct.unpack_from('!i', body, 4)[0]}"
            self._started = True

    def answered(self, data: bytes) -> bool:
        return bool(data)


READERS = {"postgresql": PostgreSQL, "mysql": MySQL, "redis": Redis, "zookeeper": ZooKeeper}


@dataclass(eq=False)
class _Pair:
    client: socket.socket
    server: socket.socket
    reader: Reader
    stranded: bool = False
    doomed: bool = False
    answer: bytes = b""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self, *, client_only: bool = False) -> None:
        for end in (self.client,) if client_only else (self.client, self.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()


class Proxy:
    """Stands before one server on 127.0.0.1; `port` is where clients connect."""

    def __init__(self, port: int, protocol: str) -> None:
        self._target = port
        self._protocol = protocol
        self._pairs: set[_Pair] = set()
        self._lock = threading.Lock()
        self._cuts: list[Cut] = []
        self._over = False
        self.delay_seconds = 0.0
        self.mode = Mode.PASS
        self.accepted = 0
        self._listener: socket.socket | None = None
        self.port = 0
        self._listen()

    @classmethod
    def before(cls, url: str) -> Proxy:
        """One before the server of this URL."""
        parsed = make_url(url)
        assert parsed.port is not None
        return cls(parsed.port, parsed.get_backend_name())

    def url_of(self, url: str) -> str:
        """The URL that leads through here, on MySQL without encryption, which cannot be read."""
        led = make_url(url).set(port=self.port)
        if led.drivername.endswith("+pymysql"):
            led = led.update_query_dict({"ssl_disabled": "true"})
        return led.render_as_string(hide_password=False)

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(100)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    # ------------------------------------------------------------ what it does

    def refuse(self) -> None:
        """The port is closed, and every connection is reset."""
        self.mode = Mode.REFUSE
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def hole(self) -> None:
        """Bytes vanish in both directions, for living and new connections; nothing is closed."""
        self.mode = Mode.HOLE

    def strand(self) -> None:
        """The same for those that live now; new ones work."""
        with self._lock:
            for pair in self._pairs:
                pair.stranded = True

    def heal(self) -> None:
        """Pass again. What vanished is gone, so connections that met a hole are reset."""
        was, self.mode = self.mode, Mode.PASS
        if was is Mode.REFUSE:
            self._listen()
        if was is Mode.HOLE:
            self.cut()

    def cut(self) -> int:
        """Reset every connection; returns how many."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()
        return len(pairs)

    def turn(self, port: int, *, cut: bool = True) -> None:
        """From now on lead to another server; every connection is reset, unless it lives on."""
        self._target = port
        if cut:
            self.cut()

    def cut_at(self, match: str, side: Side, **how: int) -> Cut:
        """From now on cut at these commits."""
        cut = Cut(match, side, **how)
        with self._lock:
            self._cuts.append(cut)
        return cut

    def close(self) -> None:
        self._over = True
        if self.mode is not Mode.REFUSE:
            self.refuse()

    # ------------------------------------------------------------ how

    def _accept(self, listener: socket.socket) -> None:
        while not self._over:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        while self.mode is Mode.HOLE and not self._over:
            time.sleep(TICK_SECONDS)
        target = self._target
        try:
            server = socket.create_connection(("127.0.0.1", target), 10)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(client, server, READERS[self._protocol]())
        with self._lock:
            self._pairs.add(pair)
        if target != self._target:  # turned meanwhile
            pair.reset()
        back = threading.Thread(target=self._pump, args=(pair, server, client), daemon=True)
        back.start()
        self._pump(pair, client, server)
        back.join()
        with self._lock:
            self._pairs.discard(pair)
        for end in (client, server):
            end.close()

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket) -> None:
        asks = source is pair.client
        try:
            while data := source.recv(CHUNK):
                if self.mode is Mode.HOLE or pair.stranded:
                    continue
                if self.delay_seconds:
                    time.sleep(self.delay_seconds)
                if not (self._asked(pair, data) if asks else self._told(pair, data)):
                    continue
                sink.sendall(data)
        except OSError:
            pass
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _asked(self, pair: _Pair, data: bytes) -> bool:
        """Whether a request is passed on."""
        for text in pair.reader.commits(data):
            with self._lock:
                cut = next((cut for cut in self._cuts if cut.wants(text)), None)
            if cut is None:
                continue
            if cut.side == "before":
                pair.reset()
                return False
            if cut.side == "during":
                pair.server.sendall(data)
                pair.reset(client_only=True)
                return False
            pair.doomed = True
        return True

    def _told(self, pair: _Pair, data: bytes) -> bool:
        """Whether an answer is passed on."""
        if not pair.doomed:
            return True
        pair.answer += data
        if pair.reader.answered(pair.answer):
            pair.reset()
        return False
