"""Payloads that are no strict JSON, too long, or of an unknown type."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import Message, MessageTable, PayloadError
from msgworker.payload import decode
from tests.support.apps import created
from tests.support.rows import Table, send
from tests.support.tables import SEED, foreign_table

BAD_PAYLOADS: dict[str, tuple[str, str]] = {
    "text": ("not JSON at all", "not JSON"),
    "cut": ('{"a": 1', "not JSON"),
    "two": ("1 2", "not JSON"),
    "blank": ("   ", "not JSON"),
    "single quotes": ("{'a': 1}", "not JSON"),
    "NaN": ("NaN", "NaN"),
    "Infinity": ('{"a": -Infinity}', "Infinity"),
    "1e999": ("[1e999]", "out of range"),
    "twins": ('{"a": 1, "a": 2}', "twice"),
    "surrogate": ('"\\ud800"', "surrogate"),
    "surrogate in capitals": ('"\\uD800"', "surrogate"),
    "deep": ("[" * 100_000 + "]" * 100_000, "deep"),
    "digits": ("1" * 1_000_000, "digits"),
    "minus digits": ("-" + "1" * 5_000, "digits"),
    "pickle": (pickle.dumps({"a": 1}, 0).decode(), "not JSON"),
}


def test_payloads_that_are_not_strict_json_are_dead_at_once(app):
    called: list[Any] = []
    app.add_handler("t", lambda msg: called.append(msg))
    t = app.tables
    rows = [{"topic": "t", "object_id": "o", "payload": raw} for raw, _ in BAD_PAYLOADS.values()]
    with app.engine.begin() as conn:
        conn.execute(sa.insert(t.message), rows)
    report = app.drain(linger=0)
    assert (report.failed, report.retried, report.left) == (len(rows), 0, 0)
    assert called == []
    found = Table(app).rows("status", "error_try_times", "last_error")
    assert {row[:2] for row in found} == {(-1, 3)}
    for row, (_, text) in zip(found, BAD_PAYLOADS.values(), strict=True):
        assert row[2].startswith("PayloadError")
        assert text in row[2]
        assert len(row[2]) < 600


GOOD_PAYLOADS: list[tuple[Any, Any]] = [
    (None, None),
    ("", None),
    ("null", None),
    ("[]", []),
    ('"x"', "x"),
    ("1", 1),
    ("-0.5e3", -500.0),
    ("true", True),
    ('"\\ud83d\\ude00"', "\U0001f600"),
    (b'{"a": 1}', {"a": 1}),
    (memoryview(b"[1]"), [1]),
    ({"a": 1}, {"a": 1}),
]


def test_payloads_that_are_good():
    assert [decode(raw) for raw, _ in GOOD_PAYLOADS] == [value for _, value in GOOD_PAYLOADS]


def test_bytes_that_are_not_utf_8_are_refused():
    for raw in (b"\xff\xfe", b"\x80abc", "\u00e4".encode("latin-1")):
        with pytest.raises(PayloadError, match="UTF-8"):
            decode(raw)


class _Bomb:
    """Unpickled, it would leave a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("unpickled"),))


def test_pickles_are_never_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for protocol in range(6):
        with pytest.raises(PayloadError):
            decode(pickle.dumps(_Bomb(), protocol))
    assert not (tmp_path / "unpickled").exists()


def test_a_blob_column_is_decoded_or_refused(database, make_app):
    kind = {"postgresql": "BYTEA"}.get(database.name, "BLOB")
    foreign_table(database, body=kind)
    app = created(make_app(table=SEED.replace(payload="body")))
    got: list[Any] = []
    app.add_handler(None, lambda msg: got.append(msg.payload))
    t = app.tables
    with app.engine.begin() as conn:
        for raw in (b'{"a": 1}', b"\xff\xfe", pickle.dumps(1)):
            values = {t.names["object_id"]: "o", "body": raw, t.names["status"]: 0}
            conn.execute(sa.insert(t.message).values(values))
    report = app.drain(linger=0)
    assert (report.done, report.failed) == (1, 2)
    assert got == [{"a": 1}]


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


def test_payloads_that_cannot_be_written_are_refused_before_any_sql(sqlite_app, subtests):
    """Each kind of fault; tests/test_payload.py has them all."""
    bad = {"fault": float("nan"), "digits": 10**5000, "circle": CYCLE, "deep": DEEP, "nul": "\x00"}
    for kind, payload in bad.items():
        with subtests.test(kind=kind), sqlite_app.engine.begin() as conn:
            with pytest.raises(PayloadError):
                sqlite_app.send(conn, "t", payload)
            with pytest.raises(PayloadError):
                sqlite_app.send_many(conn, "t", [(1, "o"), (payload, "o")])
    assert Table(sqlite_app).statuses == []


def test_payload_texts_come_back_as_they_were(app):
    texts = ["\\u0000", "a\\\\u0000", "\\", "\u2028", "\U0001f600", "'\"`;--"]
    got: list[Any] = []
    app.add_handler("t", lambda msg: got.append(msg.payload))
    for text in texts:
        send(app, "o", payload={"t": text, text: 1})
    app.drain(linger=0)
    assert got == [{"t": text, text: 1} for text in texts]


def test_send_refuses_a_payload_that_would_be_too_long_to_be_read(make_app):
    app = created(make_app(table=MessageTable(max_payload=50)))
    in_bytes = app.tables.database.text_in_bytes
    fits = "\u00e4" * (24 if in_bytes else 48)  # and two quotes
    with app.engine.begin() as conn:
        app.send(conn, "t", fits, object_id="o")
        with pytest.raises(PayloadError, match="max_payload"):
            app.send(conn, "t", fits + "x", object_id="o")
        with pytest.raises(PayloadError, match="max_payload"):
            app.send_many(conn, "t", [(fits + "x", "o")])
    got: list[Any] = []
    app.add_handler("t", lambda msg: got.append(msg.payload))
    assert app.drain(linger=0).done == 1
    assert got == [fits]


def test_a_type_of_payloads_that_is_not_known_is_told_and_one_that_comes_later_is_read(
    sqlite_app, caplog
):
    module: dict[str, Any] = {"Message": Message, "Any": Any}
    exec(
        "from __future__ import annotations\n"
        "def unknown(msg: Message[Unknown]): pass\n"
        "def later(msg: Message[Order], ctx: OnlyForTheChecker): seen.append(msg.payload)\n"
        "def known(msg: Message[int], ctx: OnlyForTheChecker): seen.append(msg.payload)\n"
        "def plain(msg: Message[Any], ctx: OnlyForTheChecker): pass\n",
        module,
    )
    for name in ("unknown", "later", "known", "plain"):
        sqlite_app.add_handler(name, module[name])
    module["seen"] = seen = []
    exec("from dataclasses import dataclass\n@dataclass\nclass Order:\n    n: int", module)
    send(sqlite_app, "a", topic="later", payload={"n": 1})
    send(sqlite_app, "b", topic="later", payload={"n": "no number"})
    send(sqlite_app, "c", topic="known", payload="no number")
    send(sqlite_app, "d", topic="unknown", payload={"n": 1})
    report = sqlite_app.drain(linger=0)
    assert (report.done, report.failed) == (2, 2)
    assert seen == [module["Order"](1)]
    told = [r.getMessage() for r in caplog.records if "payloads are not checked" in r.getMessage()]
    assert len(told) == 1
    assert "handler unknown: the type in Message[Unknown] is not a name of its module" in told[0]
