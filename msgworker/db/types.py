"""Column types, and how each database compares and measures texts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from msgworker.db.database import DATABASES
from msgworker.payload import BEGINNING


class KeyText(TypeDecorator[str]):
    """Text that is compared byte by byte, so that an index can be read in its order."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        length = self.impl_instance.length  # type: ignore[attr-defined]
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.String(length, collation="C"))
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects import mysql

            # nopad: with the older padded collations 'a' and 'a ' were one object.
            nopad = DATABASES["mariadb" if _is_mariadb(dialect) else "mysql"].key_collation
            kind = mysql.VARCHAR(length, charset="utf8mb4", collation=nopad)
            return dialect.type_descriptor(kind)
        return dialect.type_descriptor(sa.String(length))


def _is_mariadb(dialect: sa.Dialect) -> bool:
    return dialect.name == "mariadb" or bool(getattr(dialect, "is_mariadb", False))


class WholeId(TypeDecorator[int]):
    """An id that its table declares as NUMERIC or DECIMAL: still a whole number in Python. None for
    a fraction and for NaN."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name == "oracle":  # its driver would fail on a fraction
            from sqlalchemy.dialects import oracle

            number: Any = oracle.NUMBER
            return dialect.type_descriptor(number(asdecimal=True))
        return dialect.type_descriptor(sa.BigInteger())

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int | None:
        return whole_number(value)


def whole_number(value: Any) -> int | None:
    """A driver's number as a whole number, None if it is not one."""
    if type(value) is int:
        return value
    if not isinstance(value, int | float | Decimal):
        return None
    try:
        return int(value) if value == int(value) else None
    except (ValueError, OverflowError):  # NaN, infinite
        return None


def exact(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type of a live column by which expressions of it are read exactly: SQLAlchemy reads those
    of Oracle's NUMBER as floats, 7 as 7.0, and large ids rounded."""
    if kind.__visit_name__ == "DOMAIN":
        return exact(kind.data_type)  # type: ignore[attr-defined]
    if kind.__visit_name__ != "NUMBER":
        return kind
    if getattr(kind, "scale", None) == 0:
        return sa.BigInteger()
    return sa.Numeric(getattr(kind, "precision", None), getattr(kind, "scale", None))


class AnyText(TypeDecorator[str]):
    """A text that was read from a column and is used as a parameter, also if it is not UTF-8."""

    impl = sa.String
    cache_ok = True

    def bind_expression(self, bindvalue: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        return _given_back(bindvalue)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        if dialect.name != "sqlite" or not isinstance(value, str):
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogateescape")
        return value


class _given_back(FunctionElement[str]):
    inherit_cache = True
    type = sa.String()


@compiles(_given_back)
def _as_it_is(element: _given_back, compiler: SQLCompiler, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(_given_back, "sqlite")
def _as_text(element: _given_back, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS TEXT)"


class AnyId(TypeDecorator[Any]):
    """An id in a column that takes every value; a read value can be used as a parameter."""

    impl = sa.types.NullType
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        if isinstance(value, Decimal):
            return int(value) if value == value.to_integral_value() else str(value)
        return str(value) if isinstance(value, UUID) else value


def key_like(kind: TypeEngine[Any], length: int) -> TypeEngine[str]:
    """The type of a generated column for texts of a column of type `kind`, with the same
    collation."""
    if isinstance(kind, KeyText):
        return KeyText(length)
    from sqlalchemy.dialects import mysql

    charset, collation = (getattr(kind, name, None) for name in ("charset", "collation"))
    return mysql.VARCHAR(length, charset=charset, collation=collation)


def recollated(column: sa.ColumnElement[Any], collation: str) -> sa.ColumnElement[Any]:
    """A text column in the form of our keys; columns of different collations cannot be compared."""
    kept = getattr(column.type, "collation", None)
    if kept == collation or isinstance(column.type, KeyText):
        return column
    from sqlalchemy.dialects import mysql

    return sa.collate(sa.cast(column, mysql.CHAR(charset="utf8mb4")), collation)


def key_text(length: int) -> TypeEngine[str]:
    """A column type for keys of at most `length` characters; see KeyText."""
    return KeyText(length)


class bytewise(FunctionElement[str]):
    """A text that is compared byte by byte, whatever the collation of its column: for conditions
    and for GROUP BY."""

    inherit_cache = True
    type = sa.String()


@compiles(bytewise)
def _bytewise_elsewhere(element: bytewise, compiler: SQLCompiler, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(bytewise, "postgresql")
def _bytewise_postgresql(element: bytewise, compiler: SQLCompiler, **kw: Any) -> str:
    return f'(CAST({compiler.process(element.clauses, **kw)} AS TEXT) COLLATE "C")'


@compiles(bytewise, "sqlite")
def _bytewise_sqlite(element: bytewise, compiler: SQLCompiler, **kw: Any) -> str:
    return f"({compiler.process(element.clauses, **kw)} COLLATE BINARY)"


@compiles(bytewise, "mysql", "mariadb")
def _bytewise_mysql(element: bytewise, compiler: SQLCompiler, **kw: Any) -> str:
    kept = DATABASES["mariadb" if _is_mariadb(compiler.dialect) else "mysql"].key_collation
    return f"(CONVERT({compiler.process(element.clauses, **kw)} USING utf8mb4) COLLATE {kept})"


class _beginning(FunctionElement[Any]):
    inherit_cache = True


def beginning(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A text as a look reads it: its first BEGINNING characters, and a few more if it is longer,
    see `payload.told`. What is no text, or cannot be as long, is left as it is."""
    kind = column.type
    length = getattr(kind, "length", None)
    texts = sa.String | KeyText | AnyText | AnyId | sa.types.NullType
    if isinstance(kind, sa.Enum) or not isinstance(kind, texts):
        return column
    if isinstance(kind, sa.CHAR) and length is not None:
        return column
    found = _beginning(column)
    found.type = kind
    return found


@compiles(_beginning)
def _substr(element: _beginning, compiler: SQLCompiler, **kw: Any) -> str:
    return f"substr({compiler.process(element.clauses, **kw)}, 1, {BEGINNING + 1})"


@compiles(_beginning, "postgresql")
def _substr_postgresql(element: _beginning, compiler: SQLCompiler, **kw: Any) -> str:
    return f"substr(CAST({compiler.process(element.clauses, **kw)} AS TEXT), 1, {BEGINNING + 1})"


@compiles(_beginning, "sqlite")
def _substr_sqlite(element: _beginning, compiler: SQLCompiler, **kw: Any) -> str:
    # In bytes, since characters are counted up to a NUL there; and each value is loaded once, since
    # it is loaded whole.
    text, most = compiler.process(element.clauses, **kw), 4 * BEGINNING + 4
    whole = f"CAST(substr(CAST({text} AS BLOB), 1, {most}) AS TEXT)"
    part = f"substr({text}, 1, {most})"
    return f"(CASE typeof({text}) WHEN 'text' THEN {whole} WHEN 'blob' THEN {part} ELSE {text} END)"


class _place_of(FunctionElement[int]):
    """Where a text begins in another one, from 1 on; 0 = it is not there."""

    inherit_cache = True
    type = sa.Integer()


@compiles(_place_of)
def _instr(element: _place_of, compiler: SQLCompiler, **kw: Any) -> str:
    return f"instr({compiler.process(element.clauses, **kw)})"


@compiles(_place_of, "postgresql")
def _strpos(element: _place_of, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **kw)})"


def same_text(column: sa.ColumnElement[Any], value: Any) -> sa.ColumnElement[bool]:
    """The column holds this very value: no collation makes 'MAIL' of 'mail', or cuts blanks. Its
    own comparison stands beside, by which an index is read."""
    same: sa.ColumnElement[bool] = column == value
    if not isinstance(column.type, sa.String | sa.Enum | TypeDecorator):
        return same
    if isinstance(column.type, KeyText | AnyId | WholeId):
        return same
    given = value if isinstance(value, sa.ClauseElement) else sa.literal(value, AnyText())
    return sa.and_(same, bytewise(column) == bytewise(given))


def holds_text(column: sa.ColumnElement[Any], part: str) -> sa.ColumnElement[bool]:
    """A text is a part of that in the column, byte by byte."""
    found: sa.ColumnElement[int] = _place_of(
        bytewise(column), bytewise(sa.literal(part, AnyText()))
    )
    return found > 0


class JsonList(TypeDecorator[list[int]]):
    """A list of whole numbers as the text of a JSON array; only for parameters."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: list[int] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else f"[{','.join(map(str, value))}]"


def plain_text(length: int) -> TypeEngine[str]:
    """Text of at most `length` characters."""
    return sa.String(length).with_variant(sa.Text(), "sqlite")


class LongText(TypeDecorator[str]):
    """Text of any length, also on databases whose TEXT is limited."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects import mysql

            return dialect.type_descriptor(mysql.LONGTEXT())
        return self.impl_instance


class Utf8(TypeDecorator[str]):
    """A text as a parameter for a column of bytes."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return value.encode() if isinstance(value, str) else value


def long_text() -> TypeEngine[str]:
    """Text of any length."""
    return LongText()


def big_id() -> TypeEngine[int]:
    """A 64-bit key that the database generates."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def text_length(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The length of a text, in the cheapest unit of the database."""
    return sa.func.length(column, type_=sa.BigInteger())


def json_text(name: str, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A parameter that is already JSON text, for a column that may have a JSON type, which would
    encode it again."""
    if isinstance(column.type, sa.LargeBinary | sa.BINARY | sa.VARBINARY):
        return sa.bindparam(name, type_=Utf8())
    if not isinstance(column.type, sa.JSON):
        return sa.bindparam(name)
    from sqlalchemy.dialects import postgresql

    text = sa.bindparam(name, type_=sa.Text())
    takes_text = not isinstance(column.type, postgresql.JSON)
    return text if takes_text else sa.cast(text, column.type)
