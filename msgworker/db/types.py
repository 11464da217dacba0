"""Column types, how each database compares and measures texts, and the DDL of our tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import ColumnElement, TableValuedAlias, schema
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from msgworker.db.database import Database, of_dialect
from msgworker.payload import BEGINNING, fitting, shown


class OfDatabase(FunctionElement[Any]):
    """An expression that each database writes in its own way, by the template of `Database` of the
    same name."""

    inherit_cache = True
    way: str

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.inherit_cache = True
        cls.way = cls.__name__.lstrip("_")
        if cls.way not in {*vars(Database), *Database.__annotations__}:
            raise TypeError(f"{cls.__name__}: Database has no template {cls.way}")


@compiles(OfDatabase)
def _written(element: OfDatabase, compiler: SQLCompiler, **kw: Any) -> str:
    parts = (str(compiler.process(clause, **kw)) for clause in element.clauses)
    template: str = getattr(of_dialect(compiler.dialect), element.way)
    return template.format(*parts)


class CreateColumn(schema.CreateColumn):
    """SQLAlchemy's, with what it leaves out. It is a class of our own because a hook on its own
    class is the program's: ours there would replace one of its own, or be replaced."""


class CreateTable(schema.CreateTable):
    """The same, of a table."""

    def __init__(self, element: sa.Table) -> None:
        super().__init__(element)
        self.columns = [CreateColumn(column) for column in element.columns]


@compiles(CreateColumn)
def _column_written(element: CreateColumn, compiler: DDLCompiler, **kw: Any) -> str:
    text: str = compiler.visit_create_column(element, **kw)  # type: ignore[no-untyped-call]
    return of_dialect(compiler.dialect).column_written(element.element, text)


@compiles(CreateTable)
def _table_written(element: CreateTable, compiler: DDLCompiler, **kw: Any) -> str:
    text: str = compiler.visit_create_table(element, **kw)  # type: ignore[no-untyped-call]
    return of_dialect(compiler.dialect).table_written(element.element, text)


class KeyText(TypeDecorator[str]):
    """Text that is compared byte by byte, so that an index can be read in its order."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        length = self.impl_instance.length  # type: ignore[attr-defined]
        return dialect.type_descriptor(of_dialect(dialect).key_type(length))


class WholeId(TypeDecorator[int]):
    """An id that its table declares as NUMERIC or DECIMAL: still a whole number in Python. None for
    a fraction and for NaN."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(of_dialect(dialect).whole_id_type())

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


def cast_text(kind: TypeEngine[Any]) -> Callable[[Any], str]:
    """How MariaDB and MySQL cast a value of a column of this type to a text, by the value as it is
    read. A double without a scale that is 1e15 or more may be written otherwise."""
    scale, zeros = getattr(kind, "scale", None), getattr(kind, "zerofill", False)
    if isinstance(kind, sa.DateTime | sa.Time):
        parts = getattr(kind, "fsp", None) or 0
        length = (19 if isinstance(kind, sa.DateTime) else 8) + (parts and parts + 1)

        def form(value: Any) -> str:
            text: str = value.isoformat(timespec="microseconds")
            return text.replace("T", " ")[:length]
    elif isinstance(kind, sa.Numeric | sa.Float) and scale is not None:
        width = (getattr(kind, "precision", None) or 0) + (scale > 0) if zeros else 0

        def form(value: Any) -> str:
            return f"{Decimal(value):.{scale}f}".zfill(width)
    elif isinstance(kind, sa.Float):

        def form(value: Any) -> str:
            return f"{Decimal(repr(float(value))).normalize():f}"
    elif kind.__visit_name__ == "BIT":
        size = (int(getattr(kind, "length", None) or 1) + 7) // 8

        def form(value: Any) -> str:
            return str(int(value).to_bytes(size, "big").decode(errors="replace")).replace(
                "\ufffd", "?"
            )
    elif zeros:
        width = getattr(kind, "display_width", None) or 0

        def form(value: Any) -> str:
            return str(value).zfill(width)
    else:
        return str

    def text(value: Any) -> str:
        try:
            return form(value)
        except (TypeError, ValueError, ArithmeticError, AttributeError):
            return str(value)  # of another type than its column says

    return text


NUMBERS: tuple[Any, ...] = (sa.Integer, sa.Numeric, sa.Float)
"""Since SQLAlchemy 2.1 a Float is no Numeric."""


def takes_numbers(kind: TypeEngine[Any]) -> bool:
    """Whether a column of this type may hold a number; so may one whose type is not known."""
    return isinstance(exact(kind), (*NUMBERS, sa.types.NullType))


class AnyText(TypeDecorator[str]):
    """A text that was read from a column and is used as a parameter, also if it is not UTF-8."""

    impl = sa.String
    cache_ok = True

    def bind_expression(self, bindvalue: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        return _given_back(bindvalue)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        if not isinstance(value, str) or value.isascii() or not of_dialect(dialect).odd_texts:
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogateescape")
        return value


class _given_back(OfDatabase):
    type = sa.String()


class AnyId(TypeDecorator[Any]):
    """An id in a column that takes every value; a read value can be used as a parameter."""

    impl = sa.types.NullType
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        if isinstance(value, Decimal):
            return int(value) if value == value.to_integral_value() else str(value)
        return str(value) if isinstance(value, UUID) else value


class bytewise(OfDatabase):
    """A text that is compared byte by byte, whatever the collation of its column: for conditions
    and for GROUP BY."""

    type = sa.String()


class or_text(OfDatabase):
    """A text, or this one of ours where it is NULL, whatever the character set of the column."""

    type = sa.String()


class _beginning(OfDatabase):
    pass


def beginning(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A text as operators read it: its first BEGINNING characters, and a few more if it is longer,
    see `shortened`. Other columns, and those that cannot hold as much, are read whole."""
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


def shortened(value: Any) -> Any:
    """A value that was read by `beginning`: of a longer text, its beginning and a sign."""
    if isinstance(value, str) and len(value) > BEGINNING:
        return f"{value[:BEGINNING]}…"
    return value[:BEGINNING] if isinstance(value, bytes) else value


def text_of(value: Any) -> str | None:
    """A name as it is in a row, the beginning of a very long one; a BLOB of SQLite as text."""
    return shortened(value) if value is None or isinstance(value, str) else shown(value)


class _place_of(OfDatabase):
    type = sa.Integer()


def is_own_enum(kind: TypeEngine[Any] | None) -> bool:
    """Whether an ENUM is a type of its own in the database, which compares it with no text."""
    return isinstance(kind, sa.Enum) and kind.name is not None


def same_text(column: sa.ColumnElement[Any], value: Any) -> sa.ColumnElement[bool]:
    """The column holds this very value: no collation makes 'MAIL' of 'mail', or cuts blanks. Its
    own comparison stands beside, by which an index is read."""
    kind, is_sql = column.type, isinstance(value, sa.ClauseElement)
    if not isinstance(kind, sa.String | TypeDecorator):
        return column == (value if is_sql else sa.literal(value, kind))
    same: sa.ColumnElement[bool] = column == value
    if isinstance(kind, KeyText | AnyId | WholeId):
        return same
    given = value if is_sql else sa.literal(value, AnyText())
    as_text = bytewise(column) == bytewise(given)
    return as_text if is_own_enum(kind) else sa.and_(same, as_text)


def holds_text(column: sa.ColumnElement[Any], part: str) -> sa.ColumnElement[bool]:
    """A text is a part of that in the column, byte by byte."""
    found: sa.ColumnElement[int] = _place_of(
        bytewise(column), bytewise(sa.literal(part, AnyText()))
    )
    return found > 0


# --- Lists in one parameter: as an array (`Database.arrays`), as JSON (`Database.json_lists`).


def array_param(name: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """An array that travels as one text, see `array_text`, `array_of_texts`: much cheaper to
    bind."""
    return sa.cast(sa.bindparam(name, type_=sa.Text()), sa.ARRAY(kind))


def array_text(numbers: Iterable[int]) -> str:
    """Numbers as the text of an array."""
    return "{" + ",".join(map(str, numbers)) + "}"


def array_of_texts(values: Iterable[Any]) -> str:
    """Values as the text of an array of texts, or of what is written as texts."""
    return "{" + ",".join(map(_of_array, values)) + "}"


def _of_array(value: Any) -> str:
    if value is None:
        return "NULL"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def array_rows(
    name: str, columns: Mapping[str, ColumnElement[Any]], *, place: str | None = None
) -> TableValuedAlias:
    """Arrays as the columns of a table of this name, where there are any (`Database.arrays`).
    place: the name of one more column, which numbers its rows in their order."""
    found = sa.func.unnest(*columns.values()).table_valued(*columns, with_ordinality=place)
    return found.render_derived(name=name)


class JsonList(TypeDecorator[list[int]]):
    """A list of whole numbers as the text of a JSON array; only for parameters."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: list[int] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else f"[{','.join(map(str, value))}]"


def json_rows(values: ColumnElement[Any], *columns: str, name: str | None = None) -> Any:
    """The parts of a JSON array as rows (`Database.json_lists`). columns: "key", "value"."""
    return sa.func.json_each(values).table_valued(*columns, name=name)


def in_json(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """`column` is one of the numbers in the parameter of this name, a `JsonList`."""
    numbers = sa.func.json_each(sa.bindparam(name, type_=JsonList()))
    return column.in_(sa.select(sa.literal_column("value")).select_from(numbers))


# --- Types of our own columns.


def plain_text(length: int) -> TypeEngine[str]:
    """Text of at most `length` characters."""
    return sa.String(length).with_variant(sa.Text(), "sqlite")


class LongText(TypeDecorator[str]):
    """Text of any length, also on databases whose TEXT is limited."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        kind = of_dialect(dialect).long_text_type()
        return self.impl_instance if kind is None else dialect.type_descriptor(kind)


class Utf8(TypeDecorator[str]):
    """A text as a parameter for a column of bytes."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return value.encode() if isinstance(value, str) else value


class NamedType(sa.types.UserDefinedType[Any]):
    """A type that SQLAlchemy does not know, by its name in DDL."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


def big_id() -> TypeEngine[int]:
    """A 64-bit key that the database generates."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def text_length(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The length of a text, in the cheapest unit of the database."""
    return sa.func.length(column, type_=sa.BigInteger())


def json_text(
    database: Database, name: str, column: sa.ColumnElement[Any]
) -> sa.ColumnElement[Any]:
    """A parameter that is already JSON text, for a column that may have a JSON type, which would
    encode it again."""
    if isinstance(column.type, sa.LargeBinary | sa.BINARY | sa.VARBINARY):
        return sa.bindparam(name, type_=Utf8())
    if not isinstance(column.type, sa.JSON):
        return sa.bindparam(name)
    text = sa.bindparam(name, type_=sa.Text())
    return sa.cast(text, column.type) if database.casts_json else text


# --- What a column takes.


class ColumnLimit(NamedTuple):
    """What a column takes; some servers cut off or replace the rest silently.

    unit: of `most`: characters, bytes, "" of a number its size, or "words", which are all that it
    takes. charset: of the bytes. codec: what encodes its texts, see `payload.fitting`; "" = any.
    least, places: of a number, the smallest, and how many places behind its point.
    """

    role: str
    most: int
    unit: str
    charset: str = ""
    codec: str = ""
    words: frozenset[str] = frozenset()
    least: int = 0
    places: int = 0

    def refusal(self, value: Any) -> tuple[str, str] | None:
        """What is too much of a value, and what the column takes; None = it is taken as it is."""
        if not self.unit:
            return self._of_number(value)
        text = str(value)
        if self.unit == "words":
            known = text.rstrip(" ").casefold() in self.words
            return None if known else (f"is {value!r:.60}", "one of its own words only")
        taken = len(text)
        if self.unit == "bytes" and self.charset in _UTF_8:
            taken = len(text.encode())
        if taken > self.most:
            return f"has {taken} {self.unit}", f"{self.most} at most"
        if self.codec and not text.isascii() and fitting(text, self.codec) != text:
            return f"is {value!r:.60}", f"characters of {self.charset} only"
        return None

    def _of_number(self, value: Any) -> tuple[str, str] | None:
        if not isinstance(value, int | Decimal):
            return None
        if isinstance(value, Decimal):
            if not value.is_finite():
                return None
            if -int(value.normalize().as_tuple().exponent) > self.places:
                return f"is {str(value)!r:.60}", f"{self.places} decimal places at most"
        if int(value) > self.most:
            return f"is {value!r:.60}", f"{self.most} at most"
        return (f"is {value!r:.60}", f"{self.least} at least") if int(value) < self.least else None


_UTF_8 = ("", "utf8", "utf8mb3", "utf8mb4")
