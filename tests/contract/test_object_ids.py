"""Which ids are one object, on each database and collation."""

from __future__ import annotations

import time
import uuid
from contextlib import nullcontext
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed, wait_none

from msgworker import App, ConfigError, Context, Message, MessageTable, SchemaError
from msgworker.doctor import Severity
from msgworker.instance.claiming.heads import Wanted
from tests import variants
from tests.support.apps import created
from tests.support.doctor import needed, run
from tests.support.ops import Cut, cut_after
from tests.support.rounds import by_hand
from tests.support.rows import Table, send
from tests.support.tables import SEED, foreign_table, insert, make_table
from tests.support.watching import Watch

TABLE = MessageTable("tb")
ONE = {
    "mariadb": {
        "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci": ("a", "A", "a ", "\u00e4"),
        "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci": ("ss", "SS", "\u00df"),
        "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": ("a", "a ", "a   "),
        "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_nopad_ci": ("a", "A", "\u00e4"),
        "VARCHAR(40) CHARACTER SET latin1 COLLATE latin1_german2_ci": ("ae", "AE ", "\u00e4"),
        "VARCHAR(40) CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci": ("a", "A", "a "),
        "CHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci": ("a", "A", "a "),
        "CHAR(40) CHARACTER SET latin1 COLLATE latin1_bin": ("a", "a ", "a  "),
        "TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci": ("a", "A", "a "),
    },
    "sqlite": {
        "TEXT COLLATE NOCASE": ("a", "A"),
        "TEXT COLLATE RTRIM": ("a", "a ", "a  "),
        "STRING": ("12", "012", "12.0"),
    },
    "postgresql": {"CITEXT": ("a", "A"), "CHAR(40)": ("a", "a ")},
}
TWO = {
    "mariadb": {
        "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin": ("a", "A", "a ", "\u00e4"),
        "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_nopad_ci": ("a", "a ", "b"),
        "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": ("a", "A", "\u00e4"),
        "CHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": ("a", "A", "\u00e4"),
    },
    "sqlite": {
        "TEXT": ("a", "A", "a "),
        "TEXT COLLATE NOCASE": ("a", "a ", "b"),
        "ANY": ("a", "A", "12"),
        "UUID": ("a", "A", "12"),
        "DECIMAL(10, 2)": ("a", "12", "12.5"),
        "STRING": ("a", "A", "12"),
        "BLOB": ("a", "A", "a "),
    },
    "postgresql": {'TEXT COLLATE "C"': ("a", "A", "a "), "CITEXT": ("a", "a ", "b")},
}


ONE["mariadb"] = {
    kind: ids
    for kind, ids in ONE["mariadb"].items()
    if not (variants.is_mysql() and kind.startswith("TEXT"))
}


def cases(given: dict[str, dict[str, tuple[str, ...]]]) -> list[Any]:
    return [
        pytest.param(name, kind, ids, id=f"{name}-{kind.split('COLLATE ')[-1]}-{len(kind)}")
        for name, kinds in given.items()
        for kind, ids in kinds.items()
    ]


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Any:
    """An App on a table whose object_id has a type, and its database."""
    apps: list[App] = []

    def make(name: str, kind: str) -> tuple[App, Any]:
        database = request.getfixturevalue(name)
        if kind == "CITEXT":
            try:
                run(database, "CREATE EXTENSION citext")
            except sa.exc.DBAPIError:
                pytest.skip("citext is not there")
        if kind == "MOOD":
            run(database, "CREATE TYPE mood AS ENUM ('calm', 'glad')")
        make_table(database, object_id=kind)
        apps.append(App(database.url, table=TABLE, poll_seconds=0.05))
        apps[-1].create_schema()
        return apps[-1], database

    return make


def put(app: App, *ids: Any) -> None:
    text = sa.text("INSERT INTO tb (msg_id, object_id) VALUES (:i, :o)")
    with app.engine.begin() as conn:
        conn.execute(text, [{"i": i, "o": o} for i, o in enumerate(ids, start=1)])


@pytest.mark.quick("utf8mb4_general_ci-6|NOCASE|CITEXT")
@pytest.mark.parametrize(("name", "kind", "ids"), cases(ONE))
def test_ids_that_the_database_takes_for_one_are_one_object(made, name, kind, ids):
    app, database = made(name, kind)
    put(app, *ids)
    app.add_handler(None, lambda msg: 1 / 0, wait=wait_fixed(3600))
    report = app.drain(threads=2, linger=0)
    assert (report.retried, report.left) == (1, len(ids))  # the failed one holds back the others
    run(database, "DELETE FROM tb")
    put(app, *(ids * 12)[:24])
    app, watch = App(app.engine, table=TABLE), Watch()
    pause = partial(time.sleep, 0.003)
    app.add_handler(None, lambda msg: watch.saw(msg.object_id, msg.msg_id, pause))
    assert app.drain(threads=4, linger=0).done == 24
    assert watch.ids == list(range(1, 25))
    assert watch.most == 1
    assert [one for one in needed(app) if one.check != "numbers"] == []  # the test gives ids


@pytest.mark.quick("utf8mb4_bin-50|BLOB")
@pytest.mark.parametrize(("name", "kind", "ids"), cases(TWO))
def test_ids_that_the_database_tells_apart_are_objects_of_their_own(made, name, kind, ids):
    app, _ = made(name, kind)
    put(app, *ids, *ids)
    app.add_handler(None, lambda msg: 1 / (msg.msg_id - 1), wait=wait_fixed(3600))
    report = app.drain(threads=2, linger=0)
    assert (report.done, report.retried) == (2 * len(ids) - 2, 1)
    assert [one for one in needed(app) if one.check != "numbers"] == []  # the test gives ids


@pytest.mark.quick("RTRIM|CHAR")
@pytest.mark.parametrize(("name", "kind", "ids"), cases(ONE))
def test_nothing_is_claimed_beside_a_lane_of_the_same_object(made, name, kind, ids):
    """Not while its settle is under way, nor while a handler of a former self runs."""
    app, _ = made(name, kind)
    put(app, ids[0], ids[1], "zz" if kind != "STRING" else "77")
    app.add_handler(None, lambda msg: None)
    with by_hand(app) as one:
        look = one.fetcher.finder.look(1, 0)
        assert [c.msg_id for c in look.candidates] == [1]
        assert one.fetcher.claim(look.candidates, look, one.shared.identity.id) == 1
        (lane,) = one.shared.in_flight.lanes
        Table(app).edit(app.tables.message.c.msg_id == 1, status=2, claimed_by=None)
        assert [c.msg_id for c in one.fetcher.finder.look(10, 1).candidates] == [3]
        one.shared.in_flight.lanes.clear()
        one.fetcher.finder.search.forget()
        assert [c.msg_id for c in one.fetcher.finder.look(10, 0).candidates] == [2, 3]
        one.fetcher.finder.search.forget()
        objects = {lane.row.same}
        with one.fetcher.link.statement() as conn:
            found = one.fetcher.finder.search.look(conn, Wanted(10, skip_objects=objects))
        assert [c.msg_id for c in found.candidates] == [3]


def test_a_collation_of_which_nothing_is_known_is_refused_with_its_mend(postgresql):
    run(
        postgresql,
        "CREATE COLLATION odd (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    )
    make_table(postgresql, object_id="VARCHAR(40) COLLATE odd")
    app = App(postgresql.url, table=TABLE)
    with pytest.raises(SchemaError, match=r"object_id.*collation.*ALTER TABLE"):
        app.create_schema()
    run(postgresql, *(s for one in needed(app) if one.check == "types" for s in one.fix))
    app.create_schema()
    put(app, "a", "A")
    app.add_handler(None, lambda msg: None)
    assert app.drain(linger=0).done == 2


def test_ids_of_bytes_are_refused_by_name(mariadb):
    make_table(mariadb, object_id="BINARY(16)")
    app = App(mariadb.url, table=TABLE)
    with pytest.raises(SchemaError, match=r"object_id \(object_id\) is BINARY\(16\)"):
        app.create_schema()


KEY = "VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin GENERATED ALWAYS AS"
AS_BYTES = "CAST(object_id AS CHAR CHARACTER SET utf8mb4) COLLATE utf8mb4_nopad_bin"
LOOSE = "CASE WHEN (status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END"
OPEN = "status IN (0, 1) OR status = -1 AND coalesce(error_try_times, 0) < 3"


@pytest.mark.long
def test_a_table_adopted_by_an_older_version_goes_on_and_is_advised(mariadb):
    """There ids were told apart byte by byte, whatever the column says."""
    make_table(mariadb, object_id="VARCHAR(40) CHARACTER SET latin1 COLLATE latin1_swedish_ci")
    run(
        mariadb,
        f"ALTER TABLE tb ADD COLUMN mw_open_object {KEY} (CASE WHEN ({OPEN}) THEN "
        f"coalesce({AS_BYTES}, {LOOSE}) END) STORED INVISIBLE, ADD COLUMN mw_running_object {KEY} "
        f"(CASE WHEN (status = 1) THEN {AS_BYTES} END) STORED INVISIBLE",
    )
    app = created(App(mariadb.url, table=TABLE))
    put(app, "a", "A", "a", "\u00e4")
    app.add_handler(None, lambda msg: 1 / (msg.msg_id - 1), wait=wait_fixed(3600))
    report = app.drain(threads=2, linger=0)
    assert (report.done, report.retried) == (2, 1)
    assert needed(app) == []
    (told,) = [one for one in app.ops.doctor() if "run side by side" in one.text]
    assert told.severity is Severity.ADVISED
    run(mariadb, *told.fix, "DELETE FROM tb")
    assert needed(app) == []
    assert [one for one in app.ops.doctor() if "run side by side" in one.text] == []
    put(app, "a", "A", "a", "\u00e4")
    app.engine.dispose()
    app = App(mariadb.url, table=TABLE)
    assert app.create_schema() == []
    app.add_handler(None, lambda msg: 1 / (msg.msg_id - 1), wait=wait_fixed(3600))
    report = app.drain(threads=2, linger=0)
    assert (report.done, report.retried) == (1, 1)


@pytest.mark.requires("fractions")
def test_open_messages_whose_id_has_a_fraction_are_found(database, make_app):
    make_table(database, msg_id="NUMERIC NOT NULL" if database.name != "mariadb" else "DECIMAL(20)")
    app = created(make_app(table=TABLE))
    app.add_handler(None, lambda msg: None)
    fraction = "2" if database.name == "mariadb" else "2.5"  # rounded there
    rows = f"(1, 'a', 0), ({fraction}, 'b', 0), (3.0, 'c', 0), (4, 'd', 2)"
    run(database, f"INSERT INTO tb (msg_id, object_id, status) VALUES {rows}")
    told = [one.text for one in needed(app) if one.check == "rows"]
    if database.name == "mariadb":
        assert told == []
    else:
        assert "1 open row has an id with a fraction (2.5)" in told[0]
    assert app.drain(linger=0, time_limit=10).done == (3 if database.name == "mariadb" else 2)


OBJECT_IDS = [
    "",
    " ",
    "a",
    "A",
    "a ",
    "\u00e4",
    "a\u0308",
    "line\nbreak\r\n\ttab",
    "\U0001f600 emoji",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u202eright to left",
    "x' OR '1'='1; --",
    '"`]\\%_:b{}',
    "\x1b]0;title\x07",
    "\u2028",
    "\U0010ffff",
    "~msgworker.none~x",
    "x" * 190,
    "\u4e2d" * 190,
]


def test_object_ids_of_all_sorts_are_objects_of_their_own(app):
    if app.engine.dialect.name == "oracle":
        pytest.skip("an empty text is refused there")
    seen: dict[str, list[int]] = {}
    app.add_handler("t", lambda msg: seen.setdefault(msg.object_id, []).append(msg.msg_id))
    ids = send(app, *OBJECT_IDS, *OBJECT_IDS)
    assert app.drain(threads=3, linger=0).done == len(ids)
    half = len(OBJECT_IDS)
    assert seen == {name: [ids[i], ids[half + i]] for i, name in enumerate(OBJECT_IDS)}


@pytest.mark.core
def test_an_empty_text_is_an_object_and_refused_where_it_would_be_null(app):
    is_null = app.engine.dialect.name == "oracle"
    with app.engine.begin() as conn:
        for act in (
            lambda: app.send(conn, "t", object_id=""),
            lambda: app.send_many(conn, "t", [(None, "")]),
        ):
            with pytest.raises(ConfigError, match="NULL") if is_null else nullcontext():
                act()
    assert Table(app).column("object_id") == ([] if is_null else ["", ""])


def test_a_failed_head_holds_back_only_the_very_same_object(app):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if msg.object_id == "a":
            raise ValueError

    send(app, "a", "A", "a ", "\u00e4", "a")
    report = app.drain(linger=0)
    assert (report.done, report.retried, report.left) == (3, 1, 2)


@pytest.mark.quick("nopad")
@pytest.mark.parametrize(
    "collation",
    [
        "utf8mb4 COLLATE utf8mb4_general_ci",
        "utf8mb4 COLLATE utf8mb4_bin",
        "utf8mb4 COLLATE utf8mb4_nopad_bin",
        "latin1 COLLATE latin1_swedish_ci",
        "utf8mb3 COLLATE utf8mb3_general_ci",
    ],
)
def test_foreign_collations_keep_exclusion_and_order(mariadb, collation):
    foreign_table(mariadb, objectID=f"VARCHAR(50) CHARACTER SET {collation}")
    app = created(App(mariadb.url, table=SEED))
    ids: list[int] = []

    @app.handler(None, wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        ids.append(msg.msg_id)
        if ctx.attempt == 1:
            raise ValueError

    insert(mariadb, "objectID", "'a'", "'a'", "'b'", "NULL", "'a'")
    assert app.drain(linger=1, threads=2).done == 5
    assert [i for i in ids if i in (1, 2, 5)] == [1, 1, 2, 2, 5, 5]


def test_a_long_text_is_no_object_where_the_guard_is_an_index_on_an_expression(mariadb):
    if not variants.is_mysql():
        pytest.skip("a generated column has the guard there")
    make_table(mariadb, object_id="TEXT")
    app = App(mariadb.url, table=TABLE)
    with pytest.raises(SchemaError, match=r"object_id\) is TEXT, of which there is no") as told:
        app.create_schema()
    run(mariadb, str(told.value).partition("To fix it: ")[2])
    app.create_schema()


ONE_ID, OTHER_ID = (str(uuid.UUID(int=n)) for n in (0xAB, 2))
GIVEN = [
    ("mariadb", "UUID", (ONE_ID, ONE_ID.upper(), uuid.UUID(ONE_ID)), OTHER_ID, "abc"),
    ("mariadb", "BIGINT", ("3", 3, "3.0"), "4", "abc"),
    ("mariadb", "VARCHAR(20)", ("3", 3), "03", None),
    ("mariadb", "INT(6) UNSIGNED ZEROFILL", ("3", 3, "000003"), "4", "abc"),
    ("mariadb", "DECIMAL(10, 2)", ("3", 3, "3.0", Decimal(3)), "4", "abc"),
    ("mariadb", "DECIMAL(8, 2) ZEROFILL", ("3", Decimal("3.00")), "4", "abc"),
    ("mariadb", "DOUBLE", ("1.50", Decimal("1.5")), "2", "abc"),
    ("mariadb", "DATE", ("2020-01-01",), "2020-01-02", "abc"),
    ("mariadb", "DATETIME(3)", ("2020-01-01", "2020-01-01 00:00:00.0"), "2020-01-02", "abc"),
    ("mariadb", "TIME", ("10:00", "10:00:00"), "11:00", "abc"),
    ("postgresql", "UUID", (ONE_ID, ONE_ID.upper(), uuid.UUID(ONE_ID)), OTHER_ID, "abc"),
    ("postgresql", "SMALLINT", ("3", 3, "3.0"), "4", "99999"),
    ("postgresql", "NUMERIC(10, 2)", ("3", 3, "3.00", Decimal("3.0")), "4", "abc"),
    ("postgresql", "REAL", ("1.5", Decimal("1.50")), "4", "abc"),
    ("postgresql", "DATE", ("2020-01-01", "2020-1-1"), "2020-01-02", "2020-01-32"),
    ("postgresql", "TIMESTAMPTZ", ("2020-01-01 00:00:00+00",), "2020-01-02", "abc"),
    ("postgresql", "MOOD", ("calm",), "glad", "abc"),
    ("postgresql", "CHAR(10)", ("a", "a         "), "b", None),
    ("postgresql", "VARCHAR(20)", ("3", 3), "03", None),
    ("sqlite", "UUID", (ONE_ID, uuid.UUID(ONE_ID)), OTHER_ID, None),
    ("sqlite", "BIGINT", ("3", 3), "4", None),
]


@pytest.mark.quick("UUID|SMALLINT")
@pytest.mark.parametrize(
    ("name", "kind", "ways", "other", "wrong"),
    [pytest.param(*one, id=f"{one[0]}-{one[1]}") for one in GIVEN],
)
def test_an_object_is_found_however_it_is_given(made, name, kind, ways, other, wrong):
    """As a text, as by the command line, the JSON API and where an operation is continued; or as it
    is read from a message."""
    if variants.is_mysql() and (name, kind) == ("mariadb", "UUID"):
        pytest.skip("it has no type for this")
    app, _ = made(name, kind)
    put(app, ways[0], ways[0], other)
    (first, *_) = app.ops.find()
    with app.engine.connect() as conn:  # how the run behind a head is found
        t = app.tables
        key = sa.select(t.open_object(t.cols())).where(t.cols().msg_id == 1)
        assert t.key(first.object_id) == conn.scalar(key)
    known = isinstance(first.object_id, str | int | Decimal | uuid.UUID)
    for way in (*ways, *([first.object_id] if known else [])):
        assert [one.msg_id for one in app.ops.find(object_id=way)] == [1, 2]
        assert [one.msg_id for one in app.ops.messages(object_id=way)] == [2, 1]
        assert app.ops.discard(object_id=way, dry_run=True).changed == 2
    if wrong is not None:
        rerun = partial(app.ops.rerun, dry_run=True)
        for look in (app.ops.find, app.ops.messages, rerun):
            with pytest.raises(ConfigError, match=f"'{wrong}' is no object_id of table tb"):
                look(object_id=wrong)
    app.add_handler(None, lambda msg: None)
    assert app.drain(linger=0).done == 3
    assert len(app.ops.find(object_id=ways[0], status="done")) == 2
    assert [one for one in needed(app) if one.check != "numbers"] == []  # the test gives ids


@pytest.mark.parametrize("name", ["mariadb", "postgresql", "sqlite"])
def test_a_rerun_of_an_object_that_was_given_as_a_text_is_continued(made, name):
    if variants.is_mysql() and name == "mariadb":
        pytest.skip("it has no type for this")
    app, database = made(name, "UUID")
    put(app, *[ONE_ID] * 150, OTHER_ID)
    run(database, "UPDATE tb SET status = -1, error_try_times = 3")
    with pytest.raises(Cut):
        app.ops.rerun(object_id=ONE_ID, progress=cut_after(1))
    (cut,) = app.ops.audit()
    assert (0 < cut.changed < 150, cut.finished_at) == (True, None)
    assert app.ops.rerun(operation=cut.op_id) == 150


def test_a_topic_may_be_of_an_enumeration_of_the_database(postgresql):
    App(postgresql.url).create_schema()
    run(
        postgresql,
        "CREATE TYPE kind AS ENUM ('default', 'mail', 'Mail')",
        "ALTER TABLE msgworker_message ALTER topic DROP DEFAULT, ALTER topic TYPE kind USING "
        "topic::kind, ALTER topic SET DEFAULT 'default'",
    )
    app = App(postgresql.url)
    with app.engine.begin() as conn:
        app.send(conn, "mail", 1, object_id="a")
        app.send_many(conn, "Mail", [(1, "a"), (2, "b")])
    for topic, count in {"mail": 1, "Mail": 2, "letter": 0}.items():
        assert len(app.ops.find(topic=topic)) == count
        assert app.ops.discard(topic=topic, reason="-", dry_run=True) == count
    seen: list[str] = []
    app.add_handler("mail", lambda msg: seen.append(msg.topic))

    @app.handler("Mail")
    def handle(msg: Message, ctx: Context) -> None:
        seen.append(msg.topic)
        ctx.send("default", None)

    app.add_handler("default", lambda msg: seen.append(msg.topic))
    with app.job("paused") as job, app.engine.begin() as conn:
        app.send(conn, "mail", 2, job=job)
    app.ops.pause_job(job.job_id, reason="-")
    assert app.drain(linger=0).done == 5
    assert sorted(seen) == ["Mail", "Mail", "default", "default", "mail"]
    assert needed(app) == []


def test_a_flag_moves_on_where_ids_are_decimals(postgresql):
    """SQLAlchemy warned of a product of two tables."""
    make_table(postgresql, msg_id="NUMERIC(18)")
    app = created(App(postgresql.url, table=TABLE))
    app.add_handler(None, lambda msg: None)
    run(postgresql, "INSERT INTO tb (msg_id, object_id) VALUES (1, 'a'), (2, 'a'), (3, 'a')")
    assert app.drain(threads=1, linger=0).done == 3
