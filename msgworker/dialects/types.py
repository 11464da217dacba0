"""Column types, and texts as each database compares and measures them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, oracle
from sqlalchemy.types import TypeDecorator, TypeEngine

from msgworker.dialects.capabilities import DIALECTS
from msgworker.errors import ConfigError


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime in Python; microseconds kept (SQLite: milliseconds, as text)."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        if dialect.name == "oracle":  # DateTime would be DATE: whole seconds
            return dialect.type_descriptor(oracle.TIMESTAMP())
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ConfigError(f"a time needs its time zone, got {value!r}; use datetime.now(UTC)")
        utc = value.astimezone(UTC)
        if dialect.name == "sqlite":
            return utc.strftime("%Y-%m-%d %H:%M:%S.") + f"{utc.microsecond // 1000:03d}"
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if not isinstance(value, datetime):
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class KeyText(TypeDecorator[str]):
    """Text that is compared byte by byte, so that an index can be walked in its order."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        length = self.impl_instance.length  # type: ignore[attr-defined]
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.String(length, collation="C"))
        if dialect.name in ("mysql", "mariadb"):
            # nopad: with the older padded collations 'a' and 'a ' were one object.
            nopad = DIALECTS["mariadb" if _is_mariadb(dialect) else "mysql"].key_collation
            kind = mysql.VARCHAR(length, charset="utf8mb4", collation=nopad)
            return dialect.type_descriptor(kind)
        return dialect.type_descriptor(sa.String(length))


def _is_mariadb(dialect: sa.Dialect) -> bool:
    return dialect.name == "mariadb" or bool(getattr(dialect, "is_mariadb", False))


class WholeId(TypeDecorator[int]):
    """An id that its table declares as NUMERIC or DECIMAL: whole numbers in Python all the same."""

    impl = sa.BigInteger
    cache_ok = True

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value)


def recollated(column: sa.ColumnElement[Any], collation: str) -> sa.ColumnElement[Any]:
    """A text column as our keys hold it; two columns of different collations cannot be compared."""
    kept = getattr(column.type, "collation", None)
    if kept == collation or isinstance(column.type, KeyText):
        return column
    return sa.collate(sa.cast(column, mysql.CHAR(charset="utf8mb4")), collation)


def key_text(length: int) -> TypeEngine[str]:
    """A column type for keys of at most `length` characters; see KeyText."""
    return KeyText(length)


class JsonList(TypeDecorator[list[int]]):
    """A list of whole numbers as the text of a JSON array; only for parameters."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: list[int] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else f"[{','.join(map(str, value))}]"


def plain_text(length: int) -> TypeEngine[str]:
    """Text of at most `length` characters, for people."""
    return sa.String(length).with_variant(sa.Text(), "sqlite")


def long_text() -> TypeEngine[str]:
    """Text of any length."""
    return sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def big_id() -> TypeEngine[int]:
    """A 64-bit key that the database itself counts up."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def text_length(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The length of a text, in the unit that costs least on the database."""
    return sa.func.length(column, type_=sa.BigInteger())
