"""Values on their way to the engine and back, as Oracle and its driver have them."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from datetime import datetime
from typing import Any

import oracledb

Type = Any  # one of the driver's types of the database, or a Python type that stands for one

LOBS = (oracledb.DB_TYPE_CLOB, oracledb.DB_TYPE_NCLOB, oracledb.DB_TYPE_BLOB)
_TEXTS = (oracledb.STRING, oracledb.DB_TYPE_VARCHAR, oracledb.DB_TYPE_NVARCHAR, str)


class Lob:
    """A text that is read by a call, as the driver gives CLOBs."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def read(self) -> Any:
        return self._value

    def size(self) -> int:
        return len(self._value)


class Variable:
    """What `cursor.var` gives: where an OUT parameter or a column comes to."""

    def __init__(
        self,
        typ: Type,
        size: int = 0,
        arraysize: int = 1,
        outconverter: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        self.type = typ
        self.outconverter = outconverter
        self.values: list[Any] = [None] * max(1, arraysize)

    def getvalue(self, position: int = 0) -> Any:
        return self.values[position]

    def converted(self, value: Any) -> Any:
        """A value of the database in the type that was asked for."""
        if value is None:
            return None
        if self.type in LOBS:
            value = Lob(value)
        elif self.type in _TEXTS:
            value = as_text(value)
        elif self.type is decimal.Decimal:
            value = decimal.Decimal(as_text(value))
        elif self.type is oracledb.NATIVE_FLOAT:
            value = float(value)
        return self.outconverter(value) if self.outconverter else value


def as_text(value: Any) -> str:
    """A value as Oracle makes a text of it: a number without zeros that say nothing."""
    if isinstance(value, decimal.Decimal):
        plain = format(value, "f")
        return (plain.rstrip("0").rstrip(".") if "." in plain else plain) or "0"
    if isinstance(value, float):
        return as_text(decimal.Decimal(repr(value)))
    return str(value)


def sent(value: Any) -> Any:
    """A value as the database gets it: '' is NULL there, and there are no booleans."""
    if value == "" and isinstance(value, str):
        return None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.replace(tzinfo=None)
    return value


def read(value: Any) -> Any:
    """A value as the database gives it."""
    return None if value == "" and isinstance(value, str) else value


def plain_number(value: Any) -> Any:
    """A number without a variable: whole ones as int, others as float."""
    if isinstance(value, decimal.Decimal):
        return int(value) if value == int(value) else float(value)
    return value
