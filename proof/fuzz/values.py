"""What a producer in any language may write into a column, as SQL of one database."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

Sql = st.SearchStrategy[str]

TEXTS = ("object_id", "topic", "payload", "claimed_by", "last_error", "instance_type")
NUMBERS = ("status", "error_try_times", "crash_times", "later_times", "shard")
INSTANTS = ("available_at", "claimed_at", "created_at", "finished_at")
COLUMNS = (*TEXTS, *NUMBERS, *INSTANTS, "msg_id")
MAX_PAYLOAD = 50_000  # of the table; longer ones are not read
LENGTHS = (1_900, 40_000, 60_000)  # characters of long texts

_days = st.datetimes().map(lambda at: at.isoformat(" "))
_ODD_INSTANTS = """
    0 | now | infinity | -infinity | NaN | 0000-00-00 | 0000-00-00 00:00:00 | 2026-00-00 |
    2026-02-30 00:00:00 | 1970-01-01 | 0001-01-01T00:00:00+14 | 9999-12-31 23:59:59.999999 |
    10000-01-01 00:00:00 | 20000-01-01 | 0044-03-15 BC | 4713-01-01 BC | 294276-12-31 23:59:59
    | 2-1-1 00:00:00 | 1700000000 | 1700000000000 | -1 | 2460000.5 | 24:00 |
    2026-11-23T05:00:00Z | 2026-11-23T05:00:00+05:30 | 2026-11-23 24:00:00 | 2026-12-31
    23:59:60 | garbage | \u0662\u0660\u0662\u0666-01-01
"""
_odd_instants = st.sampled_from(
    ["", " ", *(" ".join(one.split()) for one in _ODD_INSTANTS.split("|"))]
)
instants = st.one_of(_odd_instants, _days)

_json_leaf = st.one_of(
    st.none().map(lambda _: "null"),
    st.integers().map(str),
    st.floats().map(repr),  # nan and inf are no JSON
    st.sampled_from(['""', '"\\ud800"', '"\\u0000"', "1e999", "01", "True", "'x'", "1" * 5000]),
)
_json = st.recursive(
    _json_leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(inner, max_size=3).map(
            lambda items: "{" + ",".join(f'"k":{item}' for item in items) + "}"
        ),
        inner.map(lambda text: text[:-1]),
        inner.map(lambda text: f"\ufeff{text}"),
    ),
    max_leaves=5,
)

_long = (st.sampled_from("[{x"), st.sampled_from(LENGTHS))
_any_characters = st.text(max_size=20)
_plain_words = st.sampled_from(["", " ", "a", "A", "a ", "\x00", "\u202e", "%s", ":x", "\\", "'"])


# ---------------------------------------------------------------- SQLite

_ints = st.one_of(
    st.sampled_from([-2, -1, 0, 1, 2, 3, 4, 1 << 31, (1 << 63) - 1, -(1 << 63) + 1]),
    st.integers(-(1 << 63) + 1, (1 << 63) - 1),
).map(str)
_reals = st.one_of(
    st.sampled_from(["9e999", "-9e999", "1.5", "2.0", "-0.0", "1e300", "0.1", "9.3e18"]),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
_broken = st.sampled_from(
    [b"\xff", b"\xed\xa0\x80", b"\xc3", b"a\xff\x00b", b"\xf5\x80\x80\x80", b"\x80" * 300]
)


def _sqlite_text(raw: bytes) -> str:
    return f"CAST(x'{raw.hex()}' AS TEXT)"


def _sqlite_long(char: str, length: int) -> str:
    return f"replace(hex(zeroblob({length})), '00', '{char}')"


def _sqlite(column: str) -> Sql:
    texts: list[st.SearchStrategy[bytes]] = [
        _any_characters.map(str.encode),
        _plain_words.map(str.encode),
        _broken,
        st.binary(max_size=12),
    ]
    if column in INSTANTS:
        texts += [instants.map(str.encode)] * 4
    if column == "payload":
        texts += [_json.map(str.encode)] * 4
    kinds: list[Sql] = [
        st.just("NULL"),
        _ints,
        _reals,
        st.binary(max_size=12).map(lambda raw: f"x'{raw.hex()}'"),
        st.builds(_sqlite_long, *_long),
        st.sampled_from(["'2'", "'-1'", "'two'", "'1.5'", "' 1'", "'0x1'", "''", "'1e1'"]),
        *(text.map(_sqlite_text) for text in texts),
    ]
    return st.one_of(kinds)


# ---------------------------------------------------------------- PostgreSQL


def _small(least: int, most: int) -> Sql:
    near = [-2, -1, 0, 1, 2, 3, 4, 99, 100, least, most]
    return st.one_of(st.sampled_from(near), st.integers(least, most)).map(str)


_shorts = _small(-(1 << 15), (1 << 15) - 1)
_ids = _small(-(1 << 63) + 1, (1 << 63) - 1)


def _postgresql_text(text: str) -> str:
    raw = text.replace("\x00", "").encode("utf-8", "ignore")
    return f"convert_from('\\x{raw.hex()}'::bytea, 'UTF8')"


def _postgresql(column: str) -> Sql:
    if column in NUMBERS:
        return st.one_of(_shorts, st.just("NULL"))
    if column in INSTANTS:
        seconds = st.floats(-2e11, 9e12, allow_nan=False).map(lambda s: f"to_timestamp({s!r})")
        texts = instants.map(lambda text: f"'{text}'::timestamptz")
        return st.one_of(texts, seconds, st.just("NULL"))
    return _texts(column, _postgresql_text)


def _texts(column: str, quoted: Callable[[str], str]) -> Sql:
    texts: list[st.SearchStrategy[str]] = [_any_characters, _plain_words]
    if column == "payload":
        texts += [_json] * 4
    kinds: list[Sql] = [st.just("NULL"), *(text.map(quoted) for text in texts)]
    if column in ("payload", "last_error"):
        kinds.append(st.builds("repeat('{}', {})".format, *_long))
    kinds += [st.integers(50, 100).map(lambda n: quoted("\U0001f600" * n))]
    return st.one_of(kinds)


# ---------------------------------------------------------------- MariaDB, with an empty sql_mode


def _mariadb_text(text: str) -> str:
    raw = text.encode("utf-8", "ignore")
    return f"CONVERT(x'{raw.hex()}' USING utf8mb4)" if raw else "''"


def _mariadb(column: str) -> Sql:
    bytes_ = st.one_of(_broken, st.binary(min_size=1, max_size=12))
    bare = bytes_.map(lambda raw: f"x'{raw.hex()}'")
    if column in NUMBERS:
        words = st.sampled_from(["'two'", "1.5", "1e300", "-1e300", "''", "99999999999", "NULL"])
        return st.one_of(_shorts, words)
    if column in INSTANTS:
        texts = instants.map(lambda text: f"'{text}'")
        return st.one_of(texts, st.sampled_from(["0", "20260230", "NULL", "-1", "1e300"]), bare)
    return st.one_of(
        _texts(column, _mariadb_text), bare, st.sampled_from(["7", "1.5", "1e300", "_latin1 x'e9'"])
    )


OF = {"sqlite": _sqlite, "postgresql": _postgresql, "mariadb": _mariadb}


def values(database: str, column: str) -> Sql:
    """Values for this column, as SQL."""
    if column == "msg_id":
        return _ids
    return OF[database](column)
