"""Names of tables and columns, of any characters."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, ConfigError, Context, Message, MessageTable, SchemaError
from msgworker.table.build import own_tables
from msgworker.table.columns import BESIDE
from tests.support.apps import created
from tests.support.ops import looks
from tests.support.rows import send
from tests.support.waiting import launched, until

NAMES = [
    "msg; drop table x--",
    'we"ird',
    "br]ack[et",
    "back`tick",
    "quo'te",
    "per%cent",
    "per%(s)s",
    "co:lon",
    "sp ace",
    "\u00dcn\u00efcode",
    "select",
    "brace{0}",
    "que?stion",
    "back\\slash",
    "(paren)",
]


@pytest.mark.quick("sqlite-select|postgresql-quo|mariadb-back.t")
@pytest.mark.parametrize("name", NAMES)
def test_odd_table_names_are_one_identifier(make_app, name):
    app = make_app(table=MessageTable(name))
    assert name in app.create_schema()
    assert app.create_schema() == []
    app.add_handler("t", lambda msg: None)
    send(app, "a", "a", None)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(1, "a")] * 3)
    assert app.drain(linger=0).done == 6
    assert [c.count for c in app.ops.counts()] == [6]


@pytest.mark.quick("sqlite-per%cent|postgresql-que")
@pytest.mark.requires("quotes_in_names", of='we"ird')
@pytest.mark.parametrize(
    "name", [*NAMES, "ids", "me", "error", "mark", "rows", "at", "after", "seen"]
)
def test_odd_column_names_are_one_identifier(make_app, name):
    roles = ("msg_id", "object_id", "status", "error_try_times", "payload", "claimed_by")
    spec = MessageTable("odd_columns", **{role: f"{name} {i}" for i, role in enumerate(roles)})
    if name not in NAMES:
        spec = MessageTable("odd_columns", **{"status": name, "available_at": "delay"})
    app = make_app(table=spec)
    if "`" in name and app.engine.dialect.name in ("mysql", "mariadb"):
        app.create_schema()  # SQLAlchemy misreads such names
        with pytest.raises(SchemaError, match="has no column"):
            _ = app.tables
        return
    app.create_schema()
    assert app.create_schema() == []

    @app.handler("t", wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")

    send(app, "a", "a", None, payload={"x": 1})
    report = app.drain(linger=1)
    assert (report.done, report.retried) == (3, 3)
    assert app.ops.rerun([1], force=True) == 1


BAD_NAMES: list[Any] = [
    "",
    "  ",
    None,
    7,
    "a.b.c",
    ".",
    "a.",
    ".b",
    "x" * 200,
    "nul\x00",
    "new\nline",
    "\udcff",
]


def test_names_that_cannot_be(subtests):
    for name in BAD_NAMES:
        with subtests.test(name=name):
            with pytest.raises(ConfigError):
                MessageTable(name)
            if name not in ("a.b.c", ".", "a.", ".b"):
                with pytest.raises(ConfigError):
                    MessageTable(msg_id=name)


def test_a_name_that_is_too_long_for_the_database(database, make_app):
    app = make_app(table=MessageTable("x" * 100))
    if database.name == "sqlite":
        app.create_schema()
        return
    for act in (app.create_schema, lambda: app.tables):
        with pytest.raises(SchemaError, match=r"x{60}"):
            act()


def test_names_of_our_own_are_refused(sqlite_app, subtests):
    assert {t.name for t in own_tables(sqlite_app.tables)} == {f"msgworker_{n}" for n in BESIDE}
    for name in BESIDE:
        says = "one of msgworker's own tables"
        with subtests.test(name=name), pytest.raises(ConfigError, match=says):
            MessageTable(f"crm.Msgworker_{name}")
    for name in ("mw_open_object", "mw_ids", "MW_ME"):
        says = r"names that begin with mw_ are msgworker's own"
        with subtests.test(name=name), pytest.raises(ConfigError, match=says):
            MessageTable("tb", last_error=name)


def test_columns_may_be_named_like_anything_else(make_app):
    """Also like what a statement calls its parameters, or SQL its words."""
    names = {"object_id": "b_topic", "topic": "b_payload", "payload": "b_object_id"}
    names |= {"status": "b_at", "error_try_times": "rows", "available_at": "b_delay"}
    names |= {"claimed_by": "order", "last_error": "me", "msg_id": "after", "finished_at": "low"}
    app = created(make_app(table=MessageTable("select", **names)))
    app.add_handler("t", lambda msg: 1 / msg.payload, wait=wait_none())
    with app.engine.begin() as conn:
        for number in (1, 0):
            app.send(conn, "t", number, object_id="a", delay=0)
    report = app.drain(linger=0)
    assert (report.done, report.failed) == (1, 1)
    assert app.ops.rerun([2], reason="r") == 1


@pytest.mark.quick("a$")
@pytest.mark.parametrize("name", ["客" * 21, "客" * 18 + "a"])
def test_a_long_table_name_of_many_bytes_can_be_notified(postgresql, name):
    app = App(postgresql.url, table=MessageTable(name), notify=True)
    try:
        app.create_schema()
        app.add_handler("t", lambda msg: None)
        with launched(app.worker(threads=1)) as worker:
            send(app, "a")
            until(lambda: worker.tally.done == 1, "the message is done")
    finally:
        app.engine.dispose()


LONG = 1_000_000
TEXTS = {"postgresql": "TEXT", "mariadb": "LONGTEXT", "mysql": "LONGTEXT", "sqlite": "TEXT"}
KEYS = {"postgresql": "BIGSERIAL", "sqlite": "INTEGER"}


@pytest.fixture
def long_names(database: Any) -> App:
    """A table of theirs with names of a megabyte in every column that takes such: new, running and
    failed rows, each topic in three of them, and each object where ids may be so long."""
    if database.name not in TEXTS:
        pytest.skip("the table is written for the others")
    engine, text = database.engine(), TEXTS[database.name]
    wide = database.name == "sqlite"
    key = KEYS.get(database.name, "BIGINT AUTO_INCREMENT")
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE theirs (id {key} PRIMARY KEY, obj {text if wide else 'VARCHAR(100)'},"
            f" topic {text}, status SMALLINT NOT NULL DEFAULT 0, tries SMALLINT NOT NULL DEFAULT 0,"
            f" body {text}, claimed_by {text}, last_error {text})"
        )
    names = {"msg_id": "id", "object_id": "obj", "error_try_times": "tries", "payload": "body"}
    app = created(App(engine, table=MessageTable("theirs", **names)))
    rows = [
        {"o": f"{n} {'o' * LONG if wide else ''}", "t": f"{n % 4} {'t' * LONG}"} | state
        for n, state in enumerate(
            [{"s": s, "w": w, "e": e, "x": x} for s, w, e, x in STATES for _ in range(4)]
        )
    ]
    with engine.begin() as conn:
        for row in rows:
            for behind in (False, True):
                values = row | ({"s": 0, "w": None, "e": None, "x": 0} if behind else {})
                statement = "INSERT INTO theirs (obj, topic, status, claimed_by, last_error, tries)"
                conn.execute(sa.text(f"{statement} VALUES (:o, :t, :s, :w, :e, :x)"), values)
    return app


STATES = [
    (0, None, None, 0),
    (1, "w" * LONG, None, 0),
    (-1, None, f"Error: {'e' * LONG}", 3),
    (-1, None, f"Error: {'e' * LONG}", 1),
]
"""Status, owner, error and tries."""
MOST_READ = 4 * LONG  # bytes that one look may hold in Python: there are 60 and more of a megabyte


def _peak(look: Callable[[], Any]) -> int:
    look()  # what it imports is not counted
    tracemalloc.start()
    try:
        look()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.quick("postgresql")
def test_a_look_reads_the_beginning_of_very_long_names_only(long_names):
    ops = long_names.ops
    first = ops.find(limit=1)[0]
    assert first.topic is not None
    assert first.topic.startswith("0 tt")
    assert (len(first.topic), first.topic[-1]) == (2001, "…")
    (group,) = ops.failures()
    assert (group.dead, group.failing, len(group.topics), group.waiting_objects) == (4, 4, 4, 4)
    assert len(ops.messages(fingerprint=group.fingerprint)) == 8
    assert len(ops.lanes()) == 16
    by_object: list[int] = []
    after = None
    while True:
        page = ops.lanes(by="object", limit=3, after=after)
        by_object += [one.head.msg_id for one in page]
        after = page.next_after
        if after is None:
            break
    assert sorted(by_object) == sorted(one.head.msg_id for one in ops.lanes())
    assert len({one.topic for one in ops.counts()}) == 4
    running = ops.find(status="processing")[0].msg_id
    more = {
        "find": lambda: ops.find(limit=100),
        "messages": lambda: ops.messages(limit=100),
        "members": lambda: ops.messages(fingerprint=group.fingerprint),
        "lanes by object": lambda: ops.lanes(by="object"),
        "place of another": lambda: ops.place(first.msg_id),
        "dry run": lambda: ops.rerun(fingerprint=group.fingerprint, dry_run=True),
    }
    read = {name: _peak(look) for name, look in (looks(ops, running) | more).items()}
    assert {name: size for name, size in read.items() if size > MOST_READ} == {}


@pytest.mark.long
def test_an_act_on_messages_of_an_owner_with_a_long_name_is_recorded(long_names):
    owner = "foreign consumer " * 8
    with long_names.engine.begin() as conn:
        conn.execute(sa.text("UPDATE theirs SET claimed_by = :w WHERE status = 1"), {"w": owner})
    running = long_names.ops.find(status="processing")[0].msg_id
    assert long_names.ops.cancel(running, reason="r") == 1
    (act,) = long_names.ops.audit(running)
    assert act.was_claimed_by == owner[:64]
