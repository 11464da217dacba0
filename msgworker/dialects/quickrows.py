"""Rows of PyMySQL, decoded in one pass.

It is written in Python alone and takes four calls for each value, which was a third of what our
process does for a message. Here a value is a slice of its row. All else is the driver's own.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

ANY_UTF8: Final = "msgworker_any_utf8"
"""The encoding of a connection whose texts are read so: UTF-8, and what is not."""
_NULL = 251
_LENGTH_BYTES = {252: 2, 253: 3, 254: 8}
"""How many bytes the length of a value has, by what stands in its place; below 251 it is that."""


def use_quick_rows(raw: Any) -> None:
    """Make a connection of PyMySQL decode its rows so; one of a class derived from its own is left
    as it is."""
    quick = _connection_class()
    if type(raw) is quick.__base__:
        raw.__class__ = quick


@cache
def _connection_class() -> type:
    from pymysql.connections import Connection, MySQLResult

    class QuickResult(MySQLResult):  # type: ignore[misc]
        def _read_row_from_packet(self, packet: Any) -> tuple[Any, ...]:
            return row_of(packet.get_all_data(), self.converters)

    class QuickConnection(Connection):  # type: ignore[misc]
        def _read_query_result(self, unbuffered: bool = False) -> Any:
            if unbuffered or self.encoding != ANY_UTF8:
                return super()._read_query_result(unbuffered)
            self._result = None
            result = QuickResult(self)
            result.read()
            self._result = result
            if result.server_status is not None:
                self.server_status = result.server_status
            return result.affected_rows

    return QuickConnection


def row_of(data: bytes, converters: list[tuple[str | None, Any]]) -> tuple[Any, ...]:
    """The values of a row, each with its length before it. converters: of each column, its encoding
    (None = bytes; ASCII or ANY_UTF8) and what makes the value of the text."""
    row: list[Any] = []
    at, end = 0, len(data)
    for encoding, convert in converters:
        if at >= end:
            break
        length = data[at]
        at += 1
        if length >= _NULL:
            if length == _NULL:
                row.append(None)
                continue
            start = at
            at += _LENGTH_BYTES[length]
            length = int.from_bytes(data[start:at], "little")
        start = at
        at += length
        value: Any = data[start:at]
        if convert is int:
            value = int(value)
        else:
            if encoding is not None:
                try:
                    value = value.decode()
                except UnicodeDecodeError:
                    value = value.decode(encoding)
            if convert is not None:
                value = convert(value)
        row.append(value)
    return tuple(row)
