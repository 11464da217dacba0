"""What the catalogue does not tell of a table is tried: a message in a transaction that is rolled
back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable, SchemaError
from msgworker.doctor import Severity
from msgworker.schema.apply import ddl
from tests.support.apps import created
from tests.support.doctor import needed, run
from tests.support.rows import Table, send
from tests.support.tables import SEED, TABLE, foreign_table, insert, make_table

STAYS_NULL = {
    "sqlite": ("INT PRIMARY KEY", "PRIMARY KEY", "BIGINT PRIMARY KEY", "INTEGER PRIMARY KEY DESC"),
    "postgresql": ("BIGINT UNIQUE", "NUMERIC(18) UNIQUE"),
    "mariadb": ("BIGINT UNIQUE", "INT UNSIGNED UNIQUE"),
}


def refused(app: App, words: str, *acts: Callable[[], Any]) -> None:
    """create_schema, these acts and doctor say so."""
    for act in (app.create_schema, *acts):
        with pytest.raises(SchemaError) as error:
            act()
        assert words in str(error.value)
    assert words in " ".join(one.text for one in needed(app))


def test_a_table_whose_ids_stay_null_is_refused(database, make_app):
    if database.name not in STAYS_NULL:
        pytest.skip("its keys are NOT NULL")
    for kind in STAYS_NULL[database.name]:
        foreign_table(database, msgID=kind)
        app = make_app(table=SEED)
        with pytest.raises(SchemaError, match=r"(?i)gets no id: column msgID"):
            app.create_schema()
        told = " ".join(one.text for one in needed(app))
        assert "gets no id: column msgid" in told.lower()
        (mends,) = {one.fix for one in app.ops.doctor() if "gets no id" in one.text}
        assert bool(mends) == (database.name != "sqlite")
        run(database, *mends)
        if mends:
            app.create_schema()
            with app.engine.begin() as conn, pytest.raises(sa.exc.DBAPIError):
                app.send(conn, "default", object_id="a")
        run(database, "DROP TABLE tb_cus_msg")


def test_a_start_refuses_a_table_whose_ids_have_come_to_stay_null(sqlite):
    foreign_table(sqlite)
    App(sqlite.url, table=SEED).create_schema()
    run(
        sqlite,
        "CREATE TABLE was AS SELECT * FROM tb_cus_msg",
        "DROP TABLE tb_cus_msg",
        'CREATE TABLE tb_cus_msg ("msgID" BIGINT PRIMARY KEY, "objectID" VARCHAR(50), '
        'status INTEGER DEFAULT 0, "errorTryTimes" INTEGER DEFAULT 0)',
        'CREATE UNIQUE INDEX tb_cus_msg_guard ON tb_cus_msg ("objectID") WHERE status = 1',
    )
    app = App(sqlite.url, table=SEED)
    app.add_handler(None, lambda msg: None)
    refused(app, "gets no id", lambda: app.drain(linger=0))


def test_ids_that_a_trigger_gives_are_ids(sqlite):
    foreign_table(sqlite, msgID="BIGINT PRIMARY KEY")
    run(
        sqlite,
        "CREATE TRIGGER number AFTER INSERT ON tb_cus_msg WHEN NEW.msgID IS NULL BEGIN "
        "UPDATE tb_cus_msg SET msgID = rowid + 100 WHERE rowid = NEW.rowid; END",
    )
    app = created(App(sqlite.url, table=SEED))
    app.add_handler(None, lambda msg: None)
    insert(sqlite, "objectID", "'a'")
    assert app.drain(linger=0).done == 1
    assert needed(app) == []


@pytest.mark.parametrize("left", ["the last row", "none"])
def test_a_trial_where_no_id_is_left_changes_no_message(sqlite, left):
    """SQLite ends the transaction with that error: what followed was committed, and the newest
    message done."""
    app = created(App(sqlite.url))
    app.add_handler("t", lambda msg: None)
    table, last = Table(app), 2**63 - 1
    (first,) = send(app, "a")
    table.edit(table.where(msg_id=first), msg_id=last)
    with app.engine.begin() as conn:
        conn.exec_driver_sql(f"UPDATE sqlite_sequence SET seq = {last}")
        if left == "none":
            conn.exec_driver_sql("UPDATE msgworker_message SET msg_id = 7")
    before = table.rows("msg_id", "status", "error_try_times", "finished_at")
    found = " ".join(one.text for one in app.ops.doctor())
    assert ("no higher msg_id" in found) is (left == "the last row")
    assert "App.send cannot insert" in found
    assert table.rows("msg_id", "status", "error_try_times", "finished_at") == before
    assert app.drain(linger=0).done == 1


def test_a_trial_leaves_no_row_and_uses_up_no_id(database, make_app, app, table):
    for _ in range(2):
        app.create_schema()
        app.ops.doctor()
    assert table.statuses == []
    assert send(app, "a", "b") == [1, 2]
    trial = [one for one in app.ops.doctor() if one.check == "trial"]
    assert [one.severity for one in trial] == [Severity.FINE]
    make_table(database)
    theirs = make_app(table=TABLE)
    for _ in range(2):
        theirs.create_schema()
        theirs.ops.doctor()
    assert send(theirs, "a", "b") == [1, 2]
    assert Table(theirs).statuses == [0, 0]


@pytest.mark.parametrize("child", [False, True])
def test_tables_that_inherit_are_refused(postgresql, child):
    make_table(postgresql)
    run(postgresql, "CREATE TABLE tb_2026 () INHERITS (tb)")
    app = App(postgresql.url, table=MessageTable("tb_2026" if child else "tb"))
    refused(app, "is a part of another table" if child else "has tables that inherit from it")
    assert [sql for one in needed(app) for sql in one.fix if " tb" in sql] == []


def test_a_table_that_has_come_to_be_inherited_is_refused_at_the_start(postgresql):
    make_table(postgresql)
    App(postgresql.url, table=TABLE).create_schema()
    run(postgresql, "CREATE TABLE tb_2026 () INHERITS (tb)")
    app = App(postgresql.url, table=TABLE)
    app.add_handler(None, lambda msg: None)
    with pytest.raises(SchemaError, match="inherit"):
        app.drain(linger=0)


@pytest.fixture
def role(postgresql: Any) -> Iterator[str]:
    """A login with all rights on the tables, and no way past row-level security."""
    app = created(App(postgresql.url))
    name = f"mw_rls_{uuid.uuid4().hex[:10]}"
    run(
        app,
        f"CREATE ROLE {name} LOGIN",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}",
        "ALTER TABLE msgworker_message ENABLE ROW LEVEL SECURITY",
    )
    yield name
    run(app, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


POLICIES = {
    "no policy": ((), "no policy lets it see a row"),
    "reads only": (("FOR SELECT USING (true)",), "no policy lets it change a row"),
    "of others": (("TO postgres USING (true)",), "no policy lets it see a row"),
    "changes none": (
        ("FOR SELECT USING (true)", "FOR INSERT WITH CHECK (true)", "FOR UPDATE USING (false)"),
        "nothing is changed, without an error: a policy",
    ),
    "takes no flag": (
        (
            "FOR SELECT USING (true)",
            "FOR INSERT WITH CHECK (true)",
            "FOR UPDATE USING (true) WITH CHECK (status <> 1)",
        ),
        "does not take a message that is claimed (status 1)",
    ),
}


@pytest.mark.quick("no policy|no flag")
@pytest.mark.parametrize("case", POLICIES)
def test_policies_that_let_no_message_run_are_told_at_once(postgresql, role, case):
    app = App(postgresql.url)
    policies, words = POLICIES[case]
    run(app, *(f"CREATE POLICY p{n} ON msgworker_message {p}" for n, p in enumerate(policies)))
    send(app, "a")
    worker = App(sa.make_url(postgresql.url).set(username=role))
    worker.add_handler("t", lambda msg: None)
    with pytest.raises(SchemaError, match="cannot be used") as error:
        worker.drain(linger=0)
    assert words in str(error.value)
    assert words in " ".join(one.text for one in needed(worker))


def test_policies_that_hide_some_messages_are_warned_of(postgresql, role, caplog):
    app = App(postgresql.url)
    run(app, "CREATE POLICY mine ON msgworker_message USING (topic <> 'secret')")
    worker = App(sa.make_url(postgresql.url).set(username=role))
    worker.add_handler(None, lambda msg: None)
    send(app, "a")
    assert worker.drain(linger=0).done == 1
    assert "the policies (mine) hide are never handled" in caplog.text
    (told,) = [one for one in worker.ops.doctor() if "mine" in one.text]
    assert told.severity is Severity.ADVISED


@pytest.fixture
def publish(postgresql: Any) -> Iterator[Callable[[], None]]:
    """Publishes all tables, until the end of the test."""
    yield lambda: run(postgresql, "CREATE PUBLICATION all_of_it FOR ALL TABLES")
    run(postgresql, "DROP PUBLICATION all_of_it")


def test_a_publication_that_refuses_updates_is_found(postgresql, publish):
    make_table(postgresql)
    run(postgresql, "ALTER TABLE tb DROP CONSTRAINT tb_pkey, ADD UNIQUE (msg_id)")
    app = created(App(postgresql.url, table=TABLE))
    assert needed(app) == []
    publish()
    (told,) = needed(app)
    assert (told.check, "replica identity" in told.text) == ("trial", True)
    with pytest.raises(SchemaError, match="replica identity"):
        app.create_schema()
    assert told.fix == ("ALTER TABLE tb REPLICA IDENTITY USING INDEX tb_msg_id_key",)
    run(postgresql, *told.fix)
    assert needed(app) == []


def test_a_publication_takes_updates_of_partitions_once_they_are_mended(postgresql, publish):
    run(postgresql, ddl(MessageTable(), "postgresql", partitions=2))
    publish()
    app = App(postgresql.url)
    (told,) = needed(app)
    assert len(told.fix) == 2
    run(postgresql, *told.fix)
    app.add_handler("t", lambda msg: None)
    send(app, "a")
    assert app.drain(linger=0).done == 1


KEEPS_OPEN = {
    "postgresql": (
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER keep BEFORE UPDATE ON msgworker_message FOR EACH ROW "
        "WHEN (NEW.status = 2) EXECUTE FUNCTION keep()",
    ),
    "sqlite": (
        "CREATE TRIGGER keep BEFORE UPDATE ON msgworker_message WHEN NEW.status = 2 "
        "BEGIN SELECT RAISE(IGNORE); END",
    ),
    "mariadb": (
        "CREATE TRIGGER keep BEFORE UPDATE ON msgworker_message FOR EACH ROW "
        "SET NEW.status = IF(NEW.status = 2, OLD.status, NEW.status)",
    ),
}


def test_a_trigger_that_silently_keeps_a_message_open_is_found(database, app):
    if database.name not in KEEPS_OPEN:
        pytest.skip("triggers are written otherwise there")
    run(app, *KEEPS_OPEN[database.name])
    (told,) = needed(app)
    assert (told.check, "does not take one that is done (2)" in told.text) == ("trial", True)
    assert "a trigger (keep) keeps it away" in told.text


IDS_OF_MARIADB = {
    "a trigger": (
        "BIGINT",
        "CREATE TRIGGER number BEFORE INSERT ON tb FOR EACH ROW SET NEW.msg_id = "
        "coalesce((SELECT max(msg_id) FROM tb), 40) + 1",
    ),
    "a trigger beside a counter": (
        "BIGINT AUTO_INCREMENT",
        "CREATE TRIGGER number BEFORE INSERT ON tb FOR EACH ROW SET NEW.msg_id = "
        "coalesce((SELECT max(msg_id) FROM tb), 40) + 1",
    ),
    "a sequence": ("BIGINT DEFAULT nextval(numbers)", "ALTER SEQUENCE numbers RESTART 41"),
}


OTHER_OWNER = {
    "sqlite": "CREATE TRIGGER owner AFTER UPDATE ON msgworker_message WHEN NEW.claimed_by <> 'x'"
    " BEGIN UPDATE msgworker_message SET claimed_by = 'x' WHERE msg_id = NEW.msg_id; END",
    "postgresql": "CREATE FUNCTION owner() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " NEW.claimed_by = CURRENT_USER; RETURN NEW; END $$; CREATE TRIGGER owner BEFORE UPDATE"
    " ON msgworker_message FOR EACH ROW EXECUTE FUNCTION owner()",
    "mariadb": "CREATE TRIGGER owner BEFORE UPDATE ON msgworker_message FOR EACH ROW"
    " SET NEW.claimed_by = CURRENT_USER()",
}


@pytest.mark.requires("common_sql")
def test_a_trigger_that_writes_another_owner_is_found(database, app):
    """No flag would ever be ours."""
    run(database, OTHER_OWNER[database.name])
    (told,) = [one.text for one in needed(app)]
    assert "claimed (status 1): its claimed_by is not what was written: a trigger (owner)" in told


@pytest.mark.parametrize("does", ["ALSO SELECT 1", "INSTEAD NOTHING"])
def test_a_rule_that_rewrites_updates_is_refused(postgresql, does):
    """Also one of few rows: each claim fails."""
    make_table(postgresql)
    run(postgresql, f"CREATE RULE act AS ON UPDATE TO tb WHERE OLD.status = 9 DO {does}")
    refused(App(postgresql.url, table=TABLE), "rule act rewrites updates")


@pytest.mark.parametrize("does", ["NOTIFY changed, 'a'", "NOTHING"])
def test_a_rule_that_adds_no_query_is_taken(postgresql, does):
    """As the manual of PostgreSQL has it: claims work with it."""
    make_table(postgresql)
    run(postgresql, f"CREATE RULE act AS ON UPDATE TO tb DO ALSO {does}")
    app = created(App(postgresql.url, table=TABLE))
    app.add_handler(None, lambda msg: None)
    send(app, "a", "a", "b")
    assert app.drain(linger=0).done == 3


def test_an_unlogged_table_is_advised_against(postgresql):
    make_table(postgresql)
    run(postgresql, "ALTER TABLE tb SET UNLOGGED")
    app = created(App(postgresql.url, table=TABLE))
    (found,) = [one for one in app.ops.doctor() if "UNLOGGED" in one.text]
    assert found.severity is Severity.ADVISED
    run(postgresql, *found.fix)
    assert not [one for one in app.ops.doctor() if "UNLOGGED" in one.text]


@pytest.mark.requires("sequences", of="a sequence")
@pytest.mark.requires("ids_of_triggers", of="trigger$")
@pytest.mark.parametrize("case", IDS_OF_MARIADB)
def test_send_returns_the_id_that_was_given(mariadb, case):
    kind, statement = IDS_OF_MARIADB[case]
    if "numbers" in kind:
        run(mariadb, "CREATE SEQUENCE numbers")
    make_table(mariadb, msg_id=kind)
    app = created(App(mariadb.url, table=TABLE))
    run(mariadb, statement)
    ids = send(app, "a", "b")
    assert ids == [41, 42]
    assert Table(app).column("msg_id") == [41, 42]


@pytest.mark.quick("failed")
@pytest.mark.parametrize(("kind", "words"), [("(-1, 0, 1, 2)", ""), ("(0, 1, 2)", "failed (-1)")])
def test_a_status_of_a_domain_is_taken_if_it_takes_what_is_written(postgresql, kind, words):
    run(postgresql, f"CREATE DOMAIN state AS smallint CHECK (VALUE IN {kind})")
    make_table(postgresql, status="state DEFAULT 0")
    app = App(postgresql.url, table=TABLE)
    if words:
        with pytest.raises(SchemaError, match="is of a domain") as error:
            app.create_schema()
        assert words in str(error.value)
        (told,) = [one for one in needed(app) if one.check == "types"]
        run(app, *told.fix)
    app = created(App(postgresql.url, table=TABLE))
    app.add_handler(None, lambda msg: None)
    send(app, "a")
    assert app.drain(linger=0).done == 1


def test_a_status_of_one_byte_is_taken(mariadb):
    make_table(mariadb, status="TINYINT(1) NOT NULL DEFAULT 0")
    app = created(App(mariadb.url, table=TABLE))
    app.add_handler(None, lambda msg: None)
    send(app, "a")
    assert app.drain(linger=0).done == 1
    assert needed(app) == []


def test_a_key_of_several_columns_is_told_with_what_mends_it(database, make_app):
    ids = {"postgresql": "BIGSERIAL", "mariadb": "BIGINT AUTO_INCREMENT"}.get(database.name)
    if ids is None:
        pytest.skip("the counter of SQLite is the key alone")
    run(
        database,
        f"CREATE TABLE tb (tenant INTEGER DEFAULT 1, msg_id {ids}, object_id VARCHAR(40), "
        "status SMALLINT DEFAULT 0, error_try_times SMALLINT DEFAULT 0, "
        "PRIMARY KEY (msg_id, tenant))",
    )
    app = make_app(table=TABLE)
    with pytest.raises(SchemaError, match="msg_id is not unique") as error:
        app.create_schema()
    assert "create_schema" not in str(error.value)
    mend = str(error.value).partition("To fix it: ")[2]
    assert mend in [sql for one in needed(app) for sql in one.fix]
    run(database, mend)
    assert app.create_schema()


@pytest.mark.requires("partial_indexes")
def test_an_index_of_some_rows_keeps_no_ids_unique(database, make_app):
    foreign_table(database, msgID="INTEGER NOT NULL")
    run(database, "CREATE UNIQUE INDEX of_new ON tb_cus_msg (msgID) WHERE status = 0")
    with pytest.raises(SchemaError, match=r"(?i)msgid is not unique"):
        make_app(table=SEED).create_schema()


def test_a_payload_of_bytes_is_sent_and_read(database, make_app):
    kind = {"sqlite": "BLOB", "postgresql": "BYTEA", "mariadb": "BLOB"}.get(database.name)
    if kind is None:
        pytest.skip("another type there")
    make_table(database, payload=kind)
    app = created(make_app(table=TABLE))
    got: list[Any] = []
    app.add_handler(None, lambda msg: got.append(msg.payload))
    with app.engine.begin() as conn:
        app.send(conn, "default", {"n": "\u4e2d"})
        app.send_many(conn, "default", [([1, 2], None)])
    assert app.drain(linger=0).done == 2
    assert got == [{"n": "\u4e2d"}, [1, 2]]


def test_a_view_is_refused_in_its_own_words(database, make_app):
    make_table(database)
    run(database, "CREATE VIEW seen AS SELECT * FROM tb")
    app = make_app(table=MessageTable("seen"))
    with pytest.raises(SchemaError, match="is a view"):
        app.create_schema()
    assert "is a view" in " ".join(one.text for one in needed(app))


SEEN_WHOLE = "CREATE POLICY whole ON msgworker_message USING (true)"


def test_row_level_security_switched_on_since_the_tables_were_read_ends_no_drain_with_0(
    postgresql, role
):
    app = App(postgresql.url)
    run(app, SEEN_WHOLE)
    worker = App(sa.make_url(postgresql.url).set(username=role))
    worker.add_handler("t", lambda msg: None)
    send(app, "a")
    assert worker.drain(linger=0).done == 1
    run(app, "DROP POLICY whole ON msgworker_message")
    send(app, "a")
    with pytest.raises(SchemaError, match="no policy lets it see a row"):
        worker.drain(linger=0)
    run(app, SEEN_WHOLE)  # mended: the same App works again
    assert worker.drain(linger=0).done == 1


def test_row_level_security_switched_on_during_a_drain_is_told(postgresql, role):
    app = App(postgresql.url)
    run(app, "ALTER TABLE msgworker_message DISABLE ROW LEVEL SECURITY")
    worker = App(sa.make_url(postgresql.url).set(username=role))
    first, _ = send(app, "a", "b")

    @worker.handler("t")
    def handle(msg: Any) -> None:
        if msg.msg_id == first:
            run(
                app,
                "ALTER TABLE msgworker_message ENABLE ROW LEVEL SECURITY",
                "CREATE POLICY some ON msgworker_message USING (status <> 0)",
            )
            send(app, "c")

    with pytest.raises(SchemaError, match="was switched on, or changed, while this drain ran"):
        worker.drain(linger=0, threads=1)


@pytest.mark.quick("lease|pause")
@pytest.mark.parametrize("table", ["msgworker_lease", "msgworker_item", "msgworker_pause"])
def test_row_level_security_of_our_own_tables_is_told(postgresql, role, table):
    app = App(postgresql.url)
    run(app, SEEN_WHOLE, f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    worker = App(sa.make_url(postgresql.url).set(username=role))
    worker.add_handler("t", lambda msg: None)
    words = f"row-level security of table {table} is on for this login: no policy lets it see a row"
    if table == "msgworker_pause":  # instances run without it
        assert words in " ".join(one.text for one in worker.ops.doctor())
        return
    with pytest.raises(SchemaError, match=words):
        worker.drain(linger=0)
    assert words in " ".join(one.text for one in needed(worker))
    run(app, f"CREATE POLICY ours ON {table} USING (true)")
    assert worker.drain(linger=0).exit_code == 0
