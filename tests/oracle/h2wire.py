"""The protocol of H2's own TCP server, in version 20, which H2 2.0 and later have: what a driver in
Java would do, without a Java machine in the process of a test, which could not fork or be told to
stop by signals as ours are.

`Transfer.java` and `TcpServerThread.java` of H2 are its only description.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import socket
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

_VERSION = 20
_PREPARE, _CLOSE, _QUERY, _UPDATE, _END, _FETCHED = 0, 1, 2, 3, 4, 7
_COMMIT, _SET_ID, _CANCEL, _AUTOCOMMIT = 8, 12, 13, 15
_OK, _STATE_CHANGED = 1, 3
_ALL = 0x7FFF_FFFF
_KEPT = 100
"""So many statements of a session are kept: beyond 128 objects the server forgets the oldest."""
_KEPT_TEXT = 10_000
"""So many characters of them: of a long one the server keeps some megabytes, since it parses a
derived table anew for each way in which it may be read."""


class H2Error(Exception):
    """code: H2's own, as `org.h2.api.ErrorCode` has them."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code


LOST = 90067
"""The code of an error for a connection that is gone."""


@dataclass(frozen=True, slots=True)
class Column:
    """table: "" for an expression. kind: one of H2's names of types."""

    name: str
    table: str
    kind: str
    precision: int = -1
    scale: int = -1


@dataclass(slots=True)
class Result:
    """changed: -1 for a query."""

    columns: list[Column] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    changed: int = -1


@dataclass(frozen=True, slots=True)
class _Statement:
    number: int
    is_query: bool


class Wire:
    """One session of the administrator. database: such as "mem:one", which is made if it is not
    there."""

    def __init__(
        self, host: str, port: int, database: str, settings: dict[str, str], password: str = ""
    ) -> None:
        self._place = host, port
        self.session_id = uuid.uuid4().hex
        self._kept: dict[str, _Statement] = {}
        self._numbers = itertools.count(1)
        self._running = 0
        self._out = bytearray()
        self._socket = socket.create_connection(self._place, 10)
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in = self._socket.makefile("rb", 65536)
        self._int(_VERSION, _VERSION)
        self._text(database, f"jdbc:h2:tcp://{host}:{port}/{database}", "SA")
        key = hashlib.sha256(f"SA@{password}".encode("utf-16-be")).digest()
        self._bytes(key)
        self._int(-1, len(settings))
        for name, value in settings.items():
            self._text(name, value)
        try:
            self._send()
            self._read_int()
            self._int(_SET_ID)
            self._text(self.session_id, "UTC")
            self._send()
            self._read(1)
        except BaseException:
            self.abort()
            raise

    def execute(
        self, sql: str, values: Sequence[Any] = (), returning: Sequence[str] = ()
    ) -> Result:
        """values: for each ? of the text. returning: columns of the changed rows to be told."""
        statement = self._prepared(sql)
        self._running = statement.number
        self._int(_QUERY if statement.is_query else _UPDATE, statement.number)
        if statement.is_query:
            number = next(self._numbers)
            self._int(number)
            self._out += struct.pack(">qi", 0, _ALL)
        self._int(len(values))
        for value in values:
            self._value(value)
        if statement.is_query:
            self._send()
            count = self._read_int()
            result = self._result(count, self._read_long())
            self._int(_FETCHED, number)
            return result
        self._int(3 if returning else 0)
        if returning:
            self._int(len(returning))
            self._text(*returning)
        self._send()
        changed = self._read_long()
        self._read(1)
        result = Result()
        if returning:
            count = self._read_int()
            result = self._result(count, self._read_long())
        result.changed = changed
        return result

    def commit(self) -> None:
        self._int(_COMMIT)
        self._send()

    def autocommit(self, on: bool) -> None:
        self._int(_AUTOCOMMIT)
        self._out.append(on)
        self._send()

    def cancel(self) -> None:
        """End the statement that runs, from another thread."""
        with socket.create_connection(self._place, 10) as other:
            said = struct.pack(">iiii", _VERSION, _VERSION, -1, -1) + _counted(self.session_id)
            other.sendall(said + struct.pack(">ii", _CANCEL, self._running))

    def close(self) -> None:
        try:
            self._int(_CLOSE)
            self._send()
        finally:
            self.abort()

    def abort(self) -> None:
        """As a process that ends: the server rolls back."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._in.close()
            self._socket.close()

    def _prepared(self, sql: str) -> _Statement:
        kept = self._kept.get(sql)
        if kept is not None:
            return kept
        number = next(self._numbers)
        self._int(_PREPARE, number)
        self._text(sql)
        self._send()
        is_query, _ = self._read(2)
        self._read_int()  # of parameters
        while self._kept and (
            len(self._kept) >= _KEPT or sum(map(len, self._kept)) + len(sql) > _KEPT_TEXT
        ):
            oldest = next(iter(self._kept))
            self._int(_END, self._kept.pop(oldest).number)
        self._kept[sql] = _Statement(number, bool(is_query))
        return self._kept[sql]

    def _send(self) -> None:
        """Send what is written, and read whether all went well."""
        said, self._out = self._out, bytearray()
        try:
            self._socket.sendall(said)
            status = self._read_int()
        except (OSError, ValueError) as error:
            raise H2Error(LOST, f"the connection is gone: {error}") from error
        if status in (_OK, _STATE_CHANGED):
            return
        if status == 2:
            raise H2Error(LOST, "the session is closed")
        _, message, _ = (self._read_text() for _ in range(3))
        code = self._read_int()
        self._read_text()
        raise H2Error(code, message or "")

    def _result(self, width: int, count: int) -> Result:
        columns = [self._column() for _ in range(width)]
        rows = []
        for _ in range(count):
            mark = self._read(1)[0]
            if mark != 1:
                raise H2Error(LOST, f"a row was announced, and this came: {mark}")
            rows.append(tuple([self._read_value() for _ in columns]))
        return Result(columns, rows)

    def _column(self) -> Column:
        name, _, table, of = (self._read_text() for _ in range(4))
        kind = _TYPES.get(self._read_int(), "other")
        precision = scale = -1
        if kind in ("varchar", "char", "varbinary", "binary", "decfloat"):
            precision = self._read_int()
        elif kind in ("clob", "blob"):
            precision = self._read_long()
        elif kind == "numeric":
            precision, scale = self._read_int(), self._read_int()
            self._read(1)
        elif kind in ("double", "real", "interval"):
            precision = self._read(1)[0]
        elif kind in ("timestamp", "timestamp_tz", "time"):
            scale = self._read(1)[0]
        elif kind == "interval to second":
            self._read(2)
        elif kind == "other":
            raise H2Error(LOST, f"{name} is of a type that is not understood")
        self._read(5)  # is it an identity, and may it be NULL
        return Column(name or "", (of and table) or "", kind, precision, scale)

    def _read_value(self) -> Any:
        kind = self._read_int()
        if kind == 0:
            return None
        if kind in _FIXED:
            (value,) = struct.unpack(_FIXED[kind], self._read(struct.calcsize(_FIXED[kind])))
            return value
        if kind in (6, 31):
            return Decimal(self._read_text() or "0")
        if kind in (13, 14, 21):
            return self._read_text()
        if kind in (12, 30):
            return self._read(self._read_int())
        if kind == 10:
            return _instant(*_day(self._read_long()))
        if kind in (11, 24):
            day, nanos = self._read_long(), self._read_long()
            if kind == 24:
                self._read_int()
            year, month, number = _day(day)
            if not 1 <= year <= 9999:
                return f"{year}-{month}-{number}"
            return _instant(year, month, number) + timedelta(microseconds=nanos // 1000)
        raise H2Error(LOST, f"a value of type {kind} is not understood")

    def _value(self, value: Any) -> None:
        if value is None:
            self._int(0)
        elif isinstance(value, int):
            if -(1 << 63) <= value < 1 << 63:
                self._out += struct.pack(">iq", 5, value)
            else:
                self._int(6)
                self._text(str(value))
        elif isinstance(value, float | Decimal):
            self._int(31)
            self._text(str(value) if isinstance(value, Decimal) else repr(value))
        elif isinstance(value, str):
            self._int(13)
            self._text(value)
        elif isinstance(value, bytes):
            self._int(12)
            self._bytes(value)
        elif isinstance(value, date):
            at = value if isinstance(value, datetime) else _instant(*value.timetuple()[:3])
            day = at.year << 9 | at.month << 5 | at.day
            second = (at.hour * 60 + at.minute) * 60 + at.second
            self._out += struct.pack(">iqq", 11, day, second * 10**9 + at.microsecond * 1000)
        else:
            raise TypeError(f"not a value for a database: {value!r}")

    def _int(self, *numbers: int) -> None:
        self._out += struct.pack(f">{len(numbers)}i", *numbers)

    def _text(self, *texts: str) -> None:
        for text in texts:
            self._out += _counted(text)

    def _bytes(self, data: bytes) -> None:
        self._int(len(data))
        self._out += data

    def _read(self, count: int) -> bytes:
        data = self._in.read(count)
        if len(data) < count:
            raise OSError("the server has closed the connection")
        return data

    def _read_int(self) -> int:
        return int.from_bytes(self._read(4), "big", signed=True)

    def _read_long(self) -> int:
        return int.from_bytes(self._read(8), "big", signed=True)

    def _read_text(self) -> str | None:
        length = self._read_int()
        if length < 0:
            return None
        return self._read(2 * length).decode("utf-16-be", "surrogatepass")


_TYPES = {
    0: "null", 1: "boolean", 2: "tinyint", 3: "smallint", 4: "integer", 5: "bigint", 6: "numeric",
    7: "double", 8: "real", 9: "time", 10: "date", 11: "timestamp", 12: "varbinary", 13: "varchar",
    14: "varchar", 15: "blob", 16: "clob", 20: "uuid", 21: "char", 24: "timestamp_tz",
    28: "interval", 35: "interval to second", 42: "binary", 43: "decfloat",
}  # fmt: skip
_FIXED = {1: ">?", 2: ">b", 3: ">h", 4: ">i", 5: ">q", 7: ">d", 8: ">f"}


def _counted(text: str) -> bytes:
    data = text.encode("utf-16-be", "surrogatepass")
    return struct.pack(">i", len(data) // 2) + data


def _instant(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day)  # noqa: DTZ001 - a TIMESTAMP has no time zone


def _day(value: int) -> tuple[int, int, int]:
    return value >> 9, value >> 5 & 15, value & 31
