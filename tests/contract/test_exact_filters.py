"""Topics, objects and errors are compared byte by byte, whatever the collation of their columns."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.store import candidates, change, slices
from msgworker.store.slices import Place
from tests.support.apps import created

TEXTS = {
    "postgresql": "VARCHAR(40) COLLATE blind",
    "mariadb": "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "sqlite": "VARCHAR(40) COLLATE NOCASE",
}
ORDERED = TEXTS | {"postgresql": 'VARCHAR(40) COLLATE "en-US-x-icu"'}
KEYS = {
    "postgresql": "BIGSERIAL PRIMARY KEY",
    "mariadb": "BIGINT AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
}
NAMES = ("mail", "MAIL", "Mail ", "other")


@pytest.fixture
def blind(database: Any) -> App:
    """A table of theirs whose collations ignore case, with a message of each name."""
    if database.stand_in is not None:
        pytest.skip("collations are those of the stand-in")
    engine, text = database.engine(), TEXTS[database.name]
    ids = ORDERED[database.name]  # the one of PostgreSQL must tell objects apart
    with engine.begin() as conn:
        if database.name == "postgresql":
            conn.exec_driver_sql(
                "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', "
                "deterministic = false)"
            )
        conn.exec_driver_sql(
            f"CREATE TABLE theirs (id {KEYS[database.name]}, obj {ids}, topic {text}, shard INT,"
            " status SMALLINT NOT NULL DEFAULT 0, tries SMALLINT NOT NULL DEFAULT 0, body TEXT,"
            f" claimed_by VARCHAR(100), finished_at {_instant(database.name)}, last_error {text})"
        )
    names = {"msg_id": "id", "object_id": "obj", "error_try_times": "tries", "payload": "body"}
    return created(App(engine, table=MessageTable("theirs", **names)))


def _instant(name: str) -> str:
    return {"postgresql": "TIMESTAMPTZ", "mariadb": "DATETIME(6)"}.get(name, "TEXT")


def _fill(app: App, **values: Any) -> None:
    with app.engine.begin() as conn:
        for name in NAMES:
            row = {"topic": name, "obj": name, "last_error": f"{name}: no", **values}
            columns, marks = ", ".join(row), ", ".join(f":{key}" for key in row)
            conn.execute(sa.text(f"INSERT INTO theirs ({columns}) VALUES ({marks})"), row)


def _topics(app: App, **filters: Any) -> list[str]:
    return [row.topic for row in app.ops.find(**filters)]


@pytest.mark.parametrize("name", NAMES)
def test_a_filter_finds_what_is_written_so(blind: App, name: str) -> None:
    _fill(blind)
    assert _topics(blind, topic=name) == [name]
    assert _topics(blind, object_id=name) == [name]
    assert _topics(blind, error=f"{name}: no") == [name]
    assert _topics(blind, topic=name.swapcase() + "x") == []


def test_what_is_counted_of_a_topic_is_found_in_it(blind: App) -> None:
    """Messages without a topic are those of "default"; an empty text is a topic of its own."""
    names = (None, "", "default", "Default", "mail", "mail ", " ")
    for name in names:
        _fill(blind, topic=name, status=-1, tries=3)
    ops = blind.ops
    counted = {one.topic: one.count("dead").count for one in ops.overview().topics}
    assert counted == {**dict.fromkeys(names[1:], 4), "default": 8}
    for name, count in counted.items():
        groups = ops.failures(topic=name)
        assert sum(one.count for one in groups) == count
        assert {one.topics for one in groups} == {(name,)}
        assert len(ops.find(topic=name)) == len(ops.messages(topic=name)) == count
        assert ops.acknowledge(topic=name, dry_run=True).changed == count
    assert {one.topic for one in ops.find(topic="")} == {""}


def test_an_empty_object_is_one(blind: App) -> None:
    _fill(blind, obj="")
    assert {one.object_id for one in blind.ops.find(object_id="")} == {""}
    assert [(one.object_id, one.behind) for one in blind.ops.lanes()] == [("", 3)]


def test_a_write_of_an_operator_touches_its_topic_only(blind: App) -> None:
    _fill(blind)
    for done in (blind.ops.discard(topic=name, reason="no") for name in ("MAIL", "mail ")):
        assert done.changed in (0, 1)
    assert _topics(blind, status="dead") == ["MAIL"]
    assert blind.ops.rerun(topic="mail", status="dead").changed == 0
    assert blind.ops.rerun(object_id="mail", status="dead").changed == 0
    assert blind.ops.rerun(error="mail", status="dead").changed == 0
    _fill(blind, status=2)
    assert blind.ops.purge(topic="Mail ", older_than=0.001).changed in (0, 1)
    assert _topics(blind, status="done", topic="mail") == ["mail"]


def test_counts_and_failures_tell_topics_apart(blind: App) -> None:
    _fill(blind, status=-1, tries=3)
    _fill(blind)
    found = {(count.status.value, count.topic): count.count for count in blind.ops.counts()}
    assert {key: n for key, n in found.items() if key[0] == "new"} == {
        ("new", name): 1 for name in NAMES
    }
    groups = blind.ops.failures(topic="MAIL")
    assert sum(group.count for group in groups) == 1
    assert blind.ops.rerun(status="dead", force=True).changed == len(NAMES)


def test_a_pass_through_a_slice_meets_every_object_in_the_order_of_the_database(
    database: Any,
) -> None:
    """Of a table where shard 0 is NULL in some rows: a place in one order says nothing of the
    other."""
    if database.stand_in is not None:
        pytest.skip("collations are those of the stand-in")
    engine = database.engine()
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE theirs (id {KEYS[database.name]}, obj {ORDERED[database.name]},"
            " topic VARCHAR(40), shard INT, status SMALLINT NOT NULL DEFAULT 0,"
            " tries SMALLINT NOT NULL DEFAULT 0, body TEXT, claimed_by VARCHAR(100))"
        )
        for n in range(40):
            name = f"{'aB'[n % 2]}{chr(ord('C') + n // 2)}".swapcase() if n % 3 else f"b{n}"
            shard = "NULL" if n % 4 < 2 else "0"
            conn.exec_driver_sql(
                f"INSERT INTO theirs (obj, topic, shard) VALUES ('{name}{n}', 't', {shard})"
            )
    names = {"msg_id": "id", "object_id": "obj", "error_try_times": "tries", "payload": "body"}
    app = created(App(engine, table=MessageTable("theirs", **names, shard="shard")))
    if app.tables.database.slices_by_age:
        pytest.skip("slices stand by age there")
    for deep in (False, True):
        met: list[str] = []
        place = Place(0)
        with engine.connect() as conn:
            for _ in range(60):
                (page,) = slices.heads(conn, app.tables, "shard", [place], 3, deep=deep)
                met += [row.object_id for row in page.found]
                if page.after is None:
                    break
                place = Place(0, page.after)
        assert len(met) == len(set(met)) == 40


@pytest.mark.parametrize("but", [False, True])
def test_the_rows_of_some_topics_are_those_written_so(blind: App, but: bool) -> None:
    """Else a worker of "mail" takes no notice of "MAIL", which has its own worker."""
    _fill(blind)
    with blind.engine.connect() as conn:
        c = blind.tables.cols()
        query = sa.select(c.topic).where(candidates.topic_among(blind.tables, c.topic, but=but))
        found = set(conn.scalars(query, {"mw_topics": ["MAIL", "Mail "]}))
    assert found == ({"mail", "other"} if but else {"MAIL", "Mail "})


@pytest.mark.requires("objects_without_case")
def test_a_rerun_sees_that_a_later_message_of_an_equal_object_has_run(
    database: Any, make_app: Any
) -> None:
    """Where "mail" and "MAIL" are one object, because the collation of its column says so."""
    with database.engine().begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE theirs (id {KEYS[database.name]}, obj {TEXTS[database.name]},"
            " topic VARCHAR(40), status SMALLINT NOT NULL DEFAULT 0, body TEXT,"
            " tries SMALLINT NOT NULL DEFAULT 0, claimed_by VARCHAR(100), last_error TEXT)"
        )
    names = {"msg_id": "id", "object_id": "obj", "error_try_times": "tries", "payload": "body"}
    app = created(make_app(table=MessageTable("theirs", **names)))
    t = app.tables
    with app.engine.connect() as conn:
        for number, (name, status) in enumerate((("mail", -1), ("other", -1), ("MAIL", 0)), 1):
            conn.exec_driver_sql(
                "INSERT INTO theirs (id, obj, topic, status, tries) VALUES"
                f" ({number}, '{name}', 't', {status}, {3 if status else 0})"
            )
        behind = change.behind(conn, t, [1, 2])
        assert (behind.ids, behind.first) == ({1, 2}, {1: 3})
        conn.exec_driver_sql("UPDATE theirs SET status = 2 WHERE id = 3")
        assert change.done_above(conn, t, [1, 2], 0) == {1: 3}
        conn.commit()
