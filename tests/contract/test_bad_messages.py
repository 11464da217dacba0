"""What send cannot take: objects, topics, delays, connections."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import scoped_session, sessionmaker

from msgworker import App, ConfigError, Databases
from tests.support.apps import created
from tests.support.rows import Table, send

BAD_OBJECTS: list[Any] = [
    "x" * 191,
    "x" * 10_000,
    "nul\x00",
    "half \ud800",
    True,
    1.5,
    b"bytes",
    ["list"],
    {"a": 1},
    ("a",),
    object(),
]


def test_object_ids_that_cannot_be(sqlite_app, subtests):
    """The last four only where SQLite keeps them."""
    of_sqlite = [10**30, -(2**63) - 1, Decimal("1.5"), uuid.UUID(int=7)]
    for object_id in BAD_OBJECTS + of_sqlite:
        with subtests.test(object_id=object_id), sqlite_app.engine.begin() as conn:
            with pytest.raises(ConfigError, match="object_id"):
                sqlite_app.send(conn, "t", object_id=object_id)
            with pytest.raises(ConfigError, match="object_id"):
                sqlite_app.send_many(conn, "t", [(None, object_id)])
    assert Table(sqlite_app).statuses == []
    send(sqlite_app, 2**63 - 1)


def test_topics_that_cannot_be(sqlite_app, subtests):
    for topic in ("", "x" * 101, 7, "nul\x00", "half \ud800"):
        with (
            subtests.test(topic=topic),
            sqlite_app.engine.begin() as conn,
            pytest.raises(ConfigError, match="topic"),
        ):
            sqlite_app.send(conn, topic, object_id="o")
    for topic in ("", "x" * 101, 7):
        with subtests.test("handler", topic=topic), pytest.raises(ConfigError, match="topic"):
            sqlite_app.handler(topic)(lambda msg: None)


BAD_DELAYS: list[dict[str, Any]] = [
    {"delay": -1},
    {"delay": 10**12},
    {"delay": float("nan")},
    {"delay": "5"},
    {"delay": True},
    {"delay": timedelta(seconds=-1)},
    {"at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is what is wrong with it
    {"at": "2030-01-01"},
    {"at": 5},
    {"delay": 5, "at": datetime(2030, 1, 1, tzinfo=UTC)},
]


def test_delays_that_cannot_be(sqlite_app, subtests):
    for options in BAD_DELAYS:
        with subtests.test(options=options), sqlite_app.engine.begin() as conn:
            with pytest.raises(ConfigError):
                sqlite_app.send(conn, "t", **options)
            with pytest.raises(ConfigError):
                sqlite_app.send_many(conn, "t", [(1, "o")], **options)


def test_send_takes_a_connection_or_a_session(sqlite_app, subtests):
    for target in (None, "conn", object(), sqlite_app.engine):
        with (
            subtests.test(target=target),
            pytest.raises(ConfigError, match="Connection or Session"),
        ):
            sqlite_app.send(target, "t")


def test_send_many_takes_pairs(sqlite_app, subtests):
    for messages in ([1], ["ab"], [(1,)], [(1, "o", "k", 4)], [None]):
        with (
            subtests.test(messages=messages),
            sqlite_app.engine.begin() as conn,
            pytest.raises(ConfigError, match="pairs"),
        ):
            sqlite_app.send_many(conn, "t", messages)


def test_send_many_from_a_generator_that_raises_sends_nothing_if_rolled_back(app):
    def messages() -> Iterator[tuple[Any, Any]]:
        for i in range(12_000):
            yield i, "o"
        raise LookupError("the source broke")

    def produce() -> None:
        with app.engine.begin() as conn:
            app.send_many(conn, "t", messages())

    with pytest.raises(LookupError):
        produce()
    assert Table(app).statuses == []


def test_send_takes_a_scoped_session(sqlite_app):
    session = scoped_session(sessionmaker(sqlite_app.engine))
    sqlite_app.send(session, "t", object_id="x")
    session.rollback()
    assert sqlite_app.ops.find() == []
    sqlite_app.send(session, "t", object_id="x")
    session.commit()
    assert len(sqlite_app.ops.find()) == 1
    session.remove()


@pytest.mark.parametrize("way", ["send", "send_many", "Databases.send"])
def test_the_commit_of_a_scoped_session_wakes_the_workers(sqlite_app, monkeypatch, way):
    def produce() -> None:
        if way == "send_many":
            sqlite_app.send_many(session, "t", [(None, "x")])
        else:
            to = sqlite_app if way == "send" else Databases({"one": sqlite_app})
            to.send(session, "t", object_id="x")

    sqlite_app.add_handler("t", lambda msg: None)
    worker = sqlite_app.worker()
    session, woken = scoped_session(sessionmaker(sqlite_app.engine)), list[int]()
    monkeypatch.setattr(sqlite_app, "wake", lambda: woken.append(1))
    for _ in range(2):
        produce()
        before = len(woken)
        session.commit()
        assert len(woken) > before
    assert Table(sqlite_app).statuses == [0, 0]
    session.remove()
    del worker  # an App wakes those that are kept


def test_a_connection_to_another_database_is_refused(sqlite_app, postgresql, tmp_path):
    other = created(App(f"sqlite:///{tmp_path / 'other.db'}"))
    for engine, words in ((other.engine, "is of the file"), (postgresql.engine(), "postgresql")):
        with engine.begin() as conn, pytest.raises(ConfigError, match=words):
            sqlite_app.send(conn, "t")
    same = sa.create_engine(sqlite_app.engine.url.set(database=f"{sqlite_app.engine.url.database}"))
    with same.begin() as conn:
        sqlite_app.send(conn, "t")
    same.dispose()
    assert (len(sqlite_app.ops.find()), len(other.ops.find())) == (1, 0)
