"""Rows of PyMySQL are decoded as the driver itself decodes them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pymysql.connections
import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.dialects import fetch
from msgworker.dialects.drivers import odd_texts
from msgworker.dialects.quickrows import ANY_UTF8, row_of, use_quick_rows

SIZES = (0, 1, 250, 251, 252, 65_535, 65_536, 70_000)
QUERY = (
    "SELECT 0, -7, 9223372036854775807, NULL, 1.50, 2e3, 'text', '', 'ä€𝄞', x'00FF', "
    "TIMESTAMP'2026-11-23 12:00:00.25', DATE'2026-11-23', REPEAT('x', 300), REPEAT('ä', 40000)"
)


def packed(value: bytes | None) -> bytes:
    """A value as the server sends it."""
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    head, width = (b"\xfc", 2) if size < 1 << 16 else (b"\xfd", 3)
    return head + size.to_bytes(width, "little") + value


@pytest.mark.parametrize("size", SIZES)
def test_a_value_of_any_length_is_decoded(size: int):
    many = "ä" * (size // 2)
    values = [b"x" * size, None, b"12", many.encode(), b"1.5", b"\xff" * size]
    kinds: list[tuple[str | None, Any]] = [
        *((ANY_UTF8, None), (ANY_UTF8, None), ("ascii", int)),
        *((ANY_UTF8, None), ("ascii", Decimal), (None, None)),
    ]
    wanted = ("x" * size, None, 12, many, Decimal("1.5"), values[-1])
    assert row_of(b"".join(map(packed, values)), kinds) == wanted


def test_a_text_that_is_not_utf_8_is_kept_and_told():
    odd_texts.met = False
    assert row_of(packed(b"a\xffb"), [(ANY_UTF8, None)]) == ("a\udcffb",)
    assert odd_texts.met


def test_all_kinds_of_values_are_read_as_by_the_driver(mariadb):
    engine = mariadb.engine()
    ours = App(mariadb.url).engine
    with engine.connect() as plain, ours.connect() as conn:
        raw: Any = conn.connection.driver_connection
        assert type(raw) is not type(plain.connection.driver_connection)
        assert fetch(conn, sa.text(QUERY), {}) == plain.execute(sa.text(QUERY)).all()
        with pytest.raises(sa.exc.DBAPIError, match="nothing"):
            conn.exec_driver_sql("SELECT nothing")
        assert conn.exec_driver_sql("SELECT 1").scalar() == 1
    ours.dispose()


def test_another_character_set_and_a_class_of_somebody_else_are_left_to_the_driver(mariadb):
    engine = mariadb.engine()

    class Own(pymysql.connections.Connection):
        pass

    with engine.connect() as conn:
        raw: Any = conn.connection.driver_connection
        raw.__class__ = Own
        use_quick_rows(raw)
        assert type(raw) is Own
        raw.__class__ = pymysql.connections.Connection
        use_quick_rows(raw)
        raw.set_character_set("latin1")
        # Two bytes that are one character in UTF-8.
        assert conn.exec_driver_sql("SELECT CHAR(195, 164 USING latin1)").scalar() == "Ã¤"
        conn.invalidate()
