"""doctor finds what is broken, and the statements that it prints mend it; on every database."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.db.database import DATABASES
from msgworker.doctor import Finding, Severity
from msgworker.errors import DatabaseUnavailable, SchemaError
from msgworker.schema import apply
from msgworker.schema.describe import COMPUTED_FROM
from msgworker.table.build import tables_for
from tests.support.apps import created
from tests.support.doctor import needed, run
from tests.support.rows import Table, send
from tests.support.tables import make_table

SEED = {
    "msg_id": "msgID",
    "object_id": "objectID",
    "status": "status",
    "error_try_times": "errorTryTimes",
}


def mend(app: App, found: list[Finding] | None = None) -> None:
    """Run what doctor prints, in its order; found: what it has told."""
    for one in needed(app) if found is None else found:
        run(app, *one.fix)


def found_and_mended(make_app: Any, app: App, check: str, *words: str) -> None:
    """One finding of this check that says these words; its statements leave nothing to repair."""
    findings = needed(app)
    told = [one for one in findings if one.check == check]
    assert told, findings
    text = " ".join(one.text for one in told)
    assert all(word in text for word in words), text
    mend(app, findings)
    assert needed(app) == []
    again = make_app(table=app.table)
    again.add_handler(None, lambda msg: None)
    again.drain(linger=0)
    again.engine.dispose()


def test_a_fresh_schema_needs_nothing(app):
    found = app.ops.doctor()
    assert [one for one in found if one.severity is Severity.NEEDED] == []
    assert {"tables", "indexes", "rights", "clock", "rows"} <= {one.check for one in found}
    with pytest.warns(DeprecationWarning, match=r"^Finding.mend is now Finding.fix"):
        assert found[0].mend == found[0].fix


def test_nothing_is_changed_by_it(app, table):
    send(app, "a")
    before = table.rows("msg_id", "status", "claimed_by", "error_try_times")
    app.ops.doctor()
    assert table.rows("msg_id", "status", "claimed_by", "error_try_times") == before


def test_without_any_table_it_prints_how_to_make_them(make_app):
    app = make_app()
    (told,) = app.ops.doctor()
    assert "table msgworker_message does not exist" in told.text  # perhaps elsewhere
    assert "nor do the 12 tables beside it" in told.text
    assert "run `msgworker init-db pkg.module:app`" in told.text
    mend(app, [told])
    assert needed(app) == []
    app.add_handler(None, lambda msg: None)
    send(app, "a")
    assert app.drain(linger=0).done == 1
    assert app.create_schema() == []


def test_the_table_of_locks_is_missed_by_nobody_who_has_no_locks(make_app, app):
    run(app, "DROP TABLE msgworker_lock")
    assert [one for one in app.ops.doctor() if "msgworker_lock" in one.text] == []
    other = make_app()
    other.add_handler(None, lambda msg: None)
    send(other, "a")
    assert other.drain(linger=0).done == 1


ADVISED = dict.fromkeys(
    ("msgworker_operation", "msgworker_audit", "msgworker_pause"), "cannot write or pause"
) | {"msgworker_limit": "max_running or rate"}
"""Tables that instances work without, and what is lost then."""


def test_tables_of_ops_and_of_limits_are_advised(app):
    run(app, *(f"DROP TABLE {name}" for name in ADVISED))
    found = app.ops.doctor()
    assert [one for one in found if one.severity is Severity.NEEDED] == []
    for name, lost in ADVISED.items():
        (told,) = [one for one in found if one.check == "tables" and name in one.text]
        assert (told.severity, lost in told.text) == (Severity.ADVISED, True)
        run(app, *told.fix)
    assert app.create_schema() == []


def test_tables_beside_are_missing(make_app, app):
    names = ("msgworker_lease", "msgworker_item", "msgworker_try")
    run(app, *(f"DROP TABLE {name}" for name in names))
    with pytest.raises(SchemaError, match=r"init-db") as error:
        _ = make_app().tables
    assert all(f"{name} is missing" in str(error.value) for name in names)
    found_and_mended(make_app, app, "tables", *names)


def test_a_lease_table_of_an_older_version(make_app, app):
    run(app, "ALTER TABLE msgworker_lease DROP COLUMN serves")
    with pytest.raises(SchemaError, match=r"msgworker_lease has no column serves.*init-db"):
        _ = make_app().tables
    found_and_mended(make_app, app, "tables", "msgworker_lease", "serves")
    run(app, "ALTER TABLE msgworker_lease DROP COLUMN serves")
    assert make_app().create_schema() == ["serves"]
    assert needed(app) == []


def test_indexes_are_missing(make_app, app, database):
    on = " ON msgworker_message" if database.name == "mariadb" else ""
    names = [f"msgworker_message_{suffix}" for suffix in ("guard", "object", "failed", "due")]
    run(app, *(f"DROP INDEX {name}{on}" for name in names))
    found_and_mended(make_app, app, "indexes", *names)


@pytest.mark.quick("mariadb")
@pytest.mark.requires("guard_column")
def test_generated_columns_are_missing(make_app, app, database):
    if database.name != "mariadb":
        pytest.skip("no generated columns there")
    for suffix in ("guard", "object", "failed", "job"):
        run(app, f"DROP INDEX msgworker_message_{suffix} ON msgworker_message")
    for name in GENERATED:
        run(app, f"ALTER TABLE msgworker_message DROP COLUMN {name}")
    (told,) = [one for one in needed(app) if one.check == "columns"]
    assert (len(told.fix), told.detail) == (1, "the table is copied; writers wait meanwhile")
    found_and_mended(make_app, app, "columns", *GENERATED)


@pytest.mark.quick("mariadb")
@pytest.mark.requires("fragile_virtual_columns")
def test_virtual_columns_are_advised_against_where_a_crash_may_spoil_them(app, database):
    if database.name != "mariadb":
        pytest.skip("no generated columns there")
    kinds = generated(app)
    assert kinds == dict.fromkeys(GENERATED, "STORED GENERATED")
    make_virtual(app)
    (told,) = [one for one in app.ops.doctor() if "VIRTUAL" in one.text]
    assert told.severity is Severity.ADVISED
    (statement,) = told.fix  # one: the guard is never away
    send(app, "a")
    run(app, statement)
    assert generated(app) == kinds
    assert [one for one in app.ops.doctor() if "VIRTUAL" in one.text] == []
    assert app.create_schema() == []
    app.add_handler(None, lambda msg: None)
    assert app.drain(linger=0).done == 1


def test_what_generated_columns_read_is_known():
    """A column that a foreign key changes keeps those that read it from being stored."""
    t = tables_for(MessageTable(), DATABASES["mariadb"])
    computed = [str(c.computed.sqltext) for c in t.message.c if c.computed is not None]
    words = set(re.findall(r"\w+", " ".join(computed)))
    assert {role for role, name in t.names.items() if name in words} == set(COMPUTED_FROM)


@pytest.mark.quick("SET NULL|STORED")
@pytest.mark.requires("stored_columns", of="STORED")
@pytest.mark.parametrize(
    ("acts", "kind"),
    [
        ("ON UPDATE CASCADE", "VIRTUAL GENERATED"),
        ("ON DELETE SET NULL", "VIRTUAL GENERATED"),
        ("ON DELETE CASCADE", "STORED GENERATED"),
    ],
)
def test_what_a_foreign_key_changes_is_not_stored(mariadb, acts, kind):
    """MariaDB refuses such columns."""
    app = App(mariadb.url, table=MessageTable("tb"))
    run(
        app,
        "CREATE TABLE theirs (id varchar(20) PRIMARY KEY)",
        f"{THEIRS}, FOREIGN KEY (object_id) REFERENCES theirs (id) {acts})",
        "INSERT INTO theirs VALUES ('a')",
    )
    mend(app)
    assert not [name for name in app.create_schema() if name.startswith(("mw_", "tb_"))]
    assert set(generated(app).values()) == {kind}
    assert [one for one in app.ops.doctor() if "VIRTUAL" in one.text] == []
    app.add_handler(None, lambda msg: None)
    send(app, "a")
    assert app.drain(linger=0).done == 1


THEIRS = (
    "CREATE TABLE tb (msg_id bigint AUTO_INCREMENT PRIMARY KEY, topic varchar(20), "
    "object_id varchar(20), payload text, status smallint DEFAULT 0, "
    "error_try_times smallint DEFAULT 0"
)


@pytest.mark.parametrize("kind", ["DATE", "BIGINT", "BIT(8)"])
def test_no_collation_is_advised_where_ids_are_no_texts(mariadb, kind):
    """The statement changed nothing, however often it was run."""
    make_table(mariadb, object_id=kind)
    App(mariadb.url, table=MessageTable("tb")).create_schema()
    told = " ".join(one.text for one in App(mariadb.url, table=MessageTable("tb")).ops.doctor())
    assert "told apart by" not in told


@pytest.mark.requires("guard_column")
def test_two_rules_add_their_columns_at_once(mariadb, monkeypatch):
    """Generated columns are added together; some of them may be there by then."""
    one = App(mariadb.url, table=MessageTable("tb"))
    other = App(mariadb.url, table=MessageTable("tb", max_tries=5))
    adding, made = apply.add_columns, list[str]()

    def after_the_other(*arguments: Any) -> str:
        text = adding(*arguments)
        monkeypatch.setattr(apply, "add_columns", adding)
        made.extend(other.create_schema())
        return text

    run(one, f"{THEIRS})")
    monkeypatch.setattr(apply, "add_columns", after_the_other)
    made += one.create_schema()
    of_columns_it_lacks = {"mw_urgent", "mw_unique", "mw_job_status"}
    assert {*GENERATED, "mw_open_object_t5"} - of_columns_it_lacks <= set(made)
    assert len(made) == len(set(made))
    again = [*one.create_schema(), *other.create_schema()]
    assert {name.partition(" ")[0] for name in again} == {"rule"}  # that is all that changes


GENERATED = (
    *("mw_open_object", "mw_running_object", "mw_failed", "mw_urgent", "mw_unique"),
    "mw_job_status",
)


def generated(app: App) -> dict[str, str]:
    query = (
        "SELECT column_name, extra FROM information_schema.columns "
        "WHERE table_schema = database() AND column_name LIKE 'mw%'"
    )
    with app.engine.connect() as conn:
        found = conn.execute(sa.text(query)).all()
    return {name: re.sub(",? INVISIBLE$", "", extra) for name, extra in found}


def make_virtual(app: App) -> None:
    """As an earlier version made them."""
    made = apply.ddl(app.table, "mariadb").splitlines()
    columns = [line.strip(" ,") for line in made if line.strip().startswith("mw_")]
    virtual = [f"ADD COLUMN {line.replace('STORED', 'VIRTUAL')}" for line in columns]
    drops = [f"DROP COLUMN {name}" for name in GENERATED]
    for suffix in ("guard", "object", "failed", "job"):
        run(app, f"DROP INDEX msgworker_message_{suffix} ON msgworker_message")
    run(app, f"ALTER TABLE msgworker_message {', '.join([*drops, *virtual])}")
    app.create_schema()


@pytest.mark.requires("guard_column")
def test_a_guard_that_is_not_unique(make_app, app, database):
    on = " ON msgworker_message" if database.name == "mariadb" else ""
    column = "mw_running_object" if on else "object_id"
    run(
        app,
        f"DROP INDEX msgworker_message_guard{on}",
        f"CREATE INDEX msgworker_message_guard ON msgworker_message ({column})",
    )
    other = make_app()
    other.add_handler("t", lambda msg: None)
    with pytest.raises(SchemaError, match="not unique"):
        other.drain()
    found_and_mended(make_app, app, "indexes", "not unique")


@pytest.mark.parametrize(
    ("on", "why"),
    [
        pytest.param(
            *("(topic) WHERE status = 1", "is on topic"),
            marks=pytest.mark.requires("unique_index_of_any_column"),
        ),
        ("(object_id) WHERE status = 2", "has only rows where"),
        ("(object_id)", "has all rows"),
    ],
)
@pytest.mark.requires("partial_indexes")
def test_a_guard_of_other_rows(make_app, app, on, why):
    run(
        app,
        "DROP INDEX msgworker_message_guard",
        f"CREATE UNIQUE INDEX msgworker_message_guard ON msgworker_message {on}",
    )
    other = make_app()
    other.add_handler("t", lambda msg: None)
    with pytest.raises(SchemaError, match=f"guard index .* {why}"):
        other.drain()
    assert other.create_schema() == []
    found_and_mended(make_app, app, "indexes", why)


def test_an_index_of_our_name_on_another_column(make_app, app, database):
    on = " ON msgworker_message" if database.name == "mariadb" else ""
    run(
        app,
        f"DROP INDEX msgworker_message_due{on}",
        "CREATE INDEX msgworker_message_due ON msgworker_message (topic)",
    )
    (told,) = [one for one in app.ops.doctor() if one.check == "indexes"]
    assert (told.severity, "is on topic" in told.text) == (Severity.ADVISED, True)
    run(app, *told.fix)
    (told,) = [one for one in app.ops.doctor() if one.check == "indexes"]
    assert told.severity is Severity.FINE


@pytest.mark.requires("partial_indexes")
@pytest.mark.parametrize("suffix", ["object", "oldest"])
def test_an_index_of_before_that_has_more_rows_serves_and_is_built_anew(make_app, app, suffix):
    opened = "status IN (0, 1) OR status = -1 AND coalesce(error_try_times, 0) < 3"
    on, where = {
        "object": ("object_id, msg_id", opened),
        "oldest": ("msg_id", f"({opened}) AND available_at IS NULL"),
    }[suffix]
    name = f"msgworker_message_{suffix}"
    run(app, f"DROP INDEX {name}", f"CREATE INDEX {name} ON msgworker_message ({on}) WHERE {where}")
    other = make_app()
    other.add_handler("t", lambda msg: None)
    send(other, "a", None)
    assert other.drain().done == 2
    assert name in (other.tables.indexes or ())  # its queries use it
    (told,) = [one for one in other.ops.doctor() if one.check == "indexes"]
    assert told.severity is Severity.ADVISED
    assert "build it anew" in told.text
    if len(told.fix) > 2:
        run(app, *told.fix[:-1])  # who was ended there begins anew
    run(app, *told.fix)
    (told,) = [one for one in make_app().ops.doctor() if one.check == "indexes"]
    assert told.severity is Severity.FINE


@pytest.mark.requires("column_types")
@pytest.mark.requires("common_sql")
def test_a_column_beside_that_does_not_take_what_is_written(make_app, app, database):
    if database.name == "mariadb":
        short, filled = "MODIFY taken_by varchar(9)", "MODIFY item_value text NOT NULL"
    else:
        short = "ALTER COLUMN taken_by TYPE varchar(9)"
        filled = "ALTER COLUMN item_value SET NOT NULL"
    run(app, f"ALTER TABLE msgworker_lease {short}", f"ALTER TABLE msgworker_item {filled}")
    words = ("taken_by", "a text of 64 characters", "item_value", "must take NULL")
    with pytest.raises(SchemaError, match=r"taken_by of table msgworker_lease is VARCHAR\(9\)"):
        _ = make_app().tables
    found_and_mended(make_app, app, "types", *words)


def test_a_column_is_missing(make_app, app, database):
    drop = "ALTER TABLE msgworker_message DROP COLUMN"
    run(app, f"{drop} later_times", f"{drop} last_error")
    with pytest.raises(SchemaError, match="later_times"):
        _ = make_app().tables
    found_and_mended(make_app, app, "columns", "later_times", "last_error")


def test_running_rows_that_the_guard_would_refuse(make_app, app, table, database):
    _, second, *_ = send(app, "a", "a", "a", "b")
    on = " ON msgworker_message" if database.name == "mariadb" else ""
    run(app, f"DROP INDEX msgworker_message_guard{on}")
    table.edit(status=1, claimed_by="x")
    findings = needed(app)
    assert [one.check for one in findings] == ["rows", "indexes"]
    assert "1 object has more than one running row" in findings[0].text
    table.edit(table.where(msg_id=second), status=2)  # it has ended before they are run
    mend(app, findings)
    assert needed(app) == []
    assert table.statuses == [1, 2, 0, 1]


def test_statuses_that_nobody_knows(make_app, app, table):
    send(app, "a", "b")
    table.edit(app.tables.message.c.msg_id == 1, status=7)
    found_and_mended(make_app, app, "rows", "1 row has an unknown status (7)")
    assert [str(info.status) for info in app.ops.find(status="dead")] == ["dead"]


def test_statuses_are_looked_for_in_each_row(app, table, monkeypatch):
    monkeypatch.setattr("msgworker.doctor.rows.ROWS", 2)  # of a window
    monkeypatch.setattr("msgworker.doctor.rows.SHOWN", 0)  # however few are named
    send(app, *"abcde")
    table.edit(status=7)
    told = [one.text for one in app.ops.doctor() if one.check == "rows"]
    assert [text.partition(" (")[0] for text in told] == ["5 rows have an unknown status"]


def adopted(database: Any, make_app: Any, *rows: tuple[int, Any]) -> App:
    """An App on a table of others in mixed case, with these rows of object a: id and status."""
    with database.engine().begin() as conn:
        q = conn.dialect.identifier_preparer.quote
        conn.exec_driver_sql(
            f"CREATE TABLE {q('tbMsg')} ({q('msgID')} INTEGER PRIMARY KEY, {q('objectID')} "
            f"VARCHAR(20), {q('msgStatus')} INTEGER DEFAULT 0, {q('errorTimes')} INTEGER DEFAULT 0)"
        )
    for msg_id, status in rows:
        put(database, msg_id, status)
    names = SEED | {"status": "msgStatus", "error_try_times": "errorTimes"}
    app: App = make_app(table=MessageTable("tbMsg", **names))
    return app


def put(database: Any, msg_id: int, status: Any) -> None:
    with database.engine().begin() as conn:
        q = conn.dialect.identifier_preparer.quote
        conn.exec_driver_sql(
            f"INSERT INTO {q('tbMsg')} ({q('msgID')}, {q('objectID')}, {q('msgStatus')}) "
            f"VALUES ({msg_id}, 'a', {'NULL' if status is None else status})"
        )


def query_in(text: str) -> str:
    """The SELECT that a text proposes."""
    return "SELECT" + text.split(": SELECT")[1].split(";")[0]


def test_the_four_columns_are_asked_for_and_never_added(make_app, database):
    named = adopted(database, make_app, (1, 2), (2, 2))
    app = make_app(table=MessageTable("tbMsg", msg_id="msgID"))
    told = (
        "name the columns: MessageTable(object_id=..., status=..., error_try_times=...); the table "
        "has: msgID, objectID, msgStatus, errorTimes"
    )
    (columns,) = [one for one in needed(app) if one.check == "columns"]
    assert (columns.text.endswith(told), columns.fix) == (True, ())
    statements = [statement for one in app.ops.doctor() for statement in one.fix]
    assert [s for s in statements if "tbMsg" in s] == []
    app.add_handler(None, lambda msg: None)
    for refused in (app.create_schema, lambda: app.drain(linger=0)):
        with pytest.raises(SchemaError) as error:
            refused()
        assert (told in str(error.value), error.value.exit_code) == (True, 4)
    mend(app)
    mend(named)
    named.add_handler(None, lambda msg: None)
    assert named.drain(linger=0).done == 0


def test_one_column_that_is_not_found_is_asked_for(make_app, database):
    adopted(database, make_app)
    app = make_app(table=MessageTable("tbMsg", **SEED | {"error_try_times": "errorTimes"}))
    (told,) = [one for one in needed(app) if one.check == "columns"]
    assert "no column status; name the column: MessageTable(status=...); the table" in told.text


def test_the_first_create_schema_warns_of_statuses_that_nobody_knows(make_app, database, caplog):
    app = adopted(database, make_app, (1, 2), (2, 7), (3, None), (4, 0))
    app.create_schema()
    (told,) = [one.getMessage() for one in caplog.records if "unknown status" in one.getMessage()]
    assert "table tbMsg: 2 rows have an unknown status" in told
    assert "(message 2, say)" in told
    with app.engine.connect() as conn:
        assert {tuple(row) for row in conn.execute(sa.text(query_in(told)))} == {(2, 7), (3, None)}
    caplog.clear()
    assert app.create_schema() == []
    assert caplog.records == []
    app.add_handler(None, lambda msg: None)
    report = app.drain(linger=0)  # they are passed over, and hold nothing back
    assert (report.done, report.left, report.exit_code) == (1, 0, 0)
    told = needed(app)[0]
    assert "2 rows have an unknown status (7, NULL)" in told.text
    run(app, *told.fix)
    assert [one for one in app.ops.doctor() if "unknown status" in one.text] == []


def test_the_first_create_schema_says_nothing_of_statuses_that_are_known(
    make_app, database, caplog
):
    adopted(database, make_app, (1, 2), (2, 1)).create_schema()
    make_app().create_schema()
    # Another test's database may hold a table of that name, which is told on a shared server.
    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if "it is new here" not in text] == []


def test_rows_from_before_are_counted_before_they_are_handled(make_app, database, caplog):
    app = adopted(database, make_app, (1, 2), (2, 0), (3, -1), (4, 0))
    said = "3 rows from before msgworker would be handled (2 new, 1 failed with tries left; message"
    assert [one.severity for one in app.ops.doctor() if said in one.text] == [Severity.ADVISED]
    app.create_schema()
    assert [one.levelname for one in caplog.records if said in one.getMessage()] == ["WARNING"]
    assert [one.severity for one in app.ops.doctor() if said in one.text] == [Severity.ADVISED]
    app = make_app(table=replace(app.table, max_tries=2))  # nor does another rule change them
    app.create_schema()
    assert [one.severity for one in app.ops.doctor() if said in one.text] == [Severity.ADVISED]
    put(database, 5, 0)  # what is new is none of them
    caplog.clear()
    app.add_handler(None, lambda msg: None)
    assert app.drain(linger=0).done == 4
    assert [one.levelname for one in caplog.records if said in one.getMessage()] == ["WARNING"]
    caplog.clear()
    assert app.drain(linger=0).done == 0
    put(database, 1_000, -1)
    assert [one for one in app.ops.doctor() if "from before" in one.text] == []
    again = make_app(table=app.table)
    again.add_handler(None, lambda msg: None)
    assert again.drain(linger=0).done == 1
    assert "from before" not in caplog.text


def test_payloads_from_before_that_are_not_json_are_named_first(make_app, database, caplog):
    app = adopted(database, make_app, (1, 0), (2, 0), (3, 0), (4, 2))
    with database.engine().begin() as conn:
        q = conn.dialect.identifier_preparer.quote
        conn.exec_driver_sql(f"ALTER TABLE {q('tbMsg')} ADD {q('body')} VARCHAR(200)")
        for msg_id, text in ((2, "<invoice/>"), (3, '{"n": 1}'), (4, "<done/>")):
            change = f"UPDATE {q('tbMsg')} SET {q('body')} = '{text}' WHERE {q('msgID')} = {msg_id}"
            conn.exec_driver_sql(change)
    app = make_app(table=replace(app.table, payload="body"))
    said = "The payload of 1 of 3 that were read is not JSON (message 2)"
    assert [one.severity for one in app.ops.doctor() if said in one.text] == [Severity.ADVISED]
    app.create_schema()
    assert said in caplog.text
    unread = make_app(table=replace(app.table, payload=None))
    (finding,) = (one for one in unread.ops.doctor() if "from before" in one.text)
    assert "JSON" not in finding.text


def test_rows_of_a_table_that_was_made_here_are_not_from_before(make_app, caplog):
    app = created(make_app(table=MessageTable("tb_made")))
    send(app, "a")
    assert [one for one in app.ops.doctor() if "from before" in one.text] == []
    app.add_handler(None, lambda msg: None)
    assert app.drain(linger=0).done == 1
    assert "from before" not in caplog.text


def test_the_query_for_two_running_rows_runs(make_app, database):
    app = adopted(database, make_app, (1, 1), (2, 1))
    with pytest.raises(
        SchemaError, match=r"`msgworker doctor pkg\.module:app --sql` prints how to fix them"
    ) as error:
        app.create_schema()
    assert ".." not in str(error.value)
    with app.engine.connect() as conn:
        assert conn.scalars(sa.text(query_in(str(error.value)))).all() == ["a"]


@pytest.mark.quick("mariadb")
def test_a_wrong_type_and_a_column_too_short(app_with, postgresql_or_mariadb):
    app = app_with()
    kind = "varchar(5)" if app.engine.dialect.name == "postgresql" else "VARCHAR(5)"
    if app.engine.dialect.name == "postgresql":
        run(app, f"ALTER TABLE msgworker_message ALTER COLUMN crash_times TYPE {kind}")
        run(app, "ALTER TABLE msgworker_message ALTER COLUMN claimed_by TYPE varchar(20)")
    else:
        run(app, "ALTER TABLE msgworker_message MODIFY claimed_by VARCHAR(20)")
    findings = needed(app)
    told = [one for one in findings if one.check == "types"]
    assert any("claimed_by takes 20 characters" in one.text for one in told)
    if app.engine.dialect.name == "postgresql":
        assert any("crash_times (crash_times) is VARCHAR(5)" in one.text for one in told)
    mend(app, findings)
    assert needed(app) == []


@pytest.fixture
def postgresql_or_mariadb(database):
    if database.name == "sqlite":
        pytest.skip("types of columns are no more than advice there")
    return database


@pytest.mark.requires("common_sql")
def test_a_status_that_is_text(make_app, postgresql_or_mariadb):
    app = make_app(table=MessageTable("tb"))
    run(
        app,
        "CREATE TABLE tb (msg_id BIGINT PRIMARY KEY, object_id VARCHAR(20), "
        "status VARCHAR(3) DEFAULT '0', error_try_times INTEGER DEFAULT 0)",
        "INSERT INTO tb (msg_id, object_id) VALUES (1, 'a')",
    )
    findings = needed(app)
    assert "status (status) is VARCHAR(3)" in " ".join(one.text for one in findings)
    mend(app, findings)
    assert needed(app) == []
    app.add_handler(None, lambda msg: None)
    assert app.drain(linger=0).done == 1


@pytest.mark.quick("MyISAM")
@pytest.mark.requires("aria", of="Aria")
@pytest.mark.parametrize("engine", ["MyISAM", "Aria"])
def test_a_storage_engine_without_transactions(mariadb, engine):
    app = App(mariadb.url, table=MessageTable("tb"))
    try:
        run(
            app,
            "CREATE TABLE tb (msg_id BIGINT PRIMARY KEY, object_id VARCHAR(20), status INT "
            f"DEFAULT 0, error_try_times INT DEFAULT 0) ENGINE={engine}",
        )
        with pytest.raises(SchemaError, match="ENGINE=InnoDB"):
            app.create_schema()
        findings = needed(app)
        assert engine in next(one.text for one in findings if one.check == "storage")
        mend(app, findings)
        assert needed(app) == []
    finally:
        app.engine.dispose()


@pytest.mark.requires("sessions")
def test_who_holds_an_old_snapshot_is_named(app, database, monkeypatch):
    home = type(app.tables.database)
    if not home.oldest_snapshot:
        pytest.skip("it is not asked there")
    soon = home.oldest_snapshot.replace("> 600", "> -1")
    monkeypatch.setattr(home, "oldest_snapshot", soon)
    with database.engine().connect() as conn:
        conn.execution_options(isolation_level="REPEATABLE READ")
        conn.exec_driver_sql("SELECT count(*) FROM msgworker_message")
        mine = "pg_backend_pid()" if database.name == "postgresql" else "connection_id()"
        number = conn.exec_driver_sql(f"SELECT {mine}").scalar_one()
        (told,) = [one for one in app.ops.doctor() if "held a snapshot" in one.text]
        assert told.severity is Severity.ADVISED
        assert "session " in told.text
        if database.name == "postgresql":  # others are of the whole server, and may be older
            assert f"end it: SELECT pg_terminate_backend({number})" in told.text
    if database.name == "postgresql":
        assert not [one for one in app.ops.doctor() if "held a snapshot" in one.text]


@pytest.mark.requires("logins")
@pytest.mark.quick("mariadb")
@pytest.mark.requires("common_sql")
def test_a_login_that_may_only_read(app, database, servers):
    """doctor runs, and says which rights are missing."""
    quote = "'" if database.name == "mariadb" else ""
    user = f"mw_reader_{datetime.now(UTC):%H%M%S%f}"
    whom = f"'{user}'@'%'" if quote else user
    password = "IDENTIFIED BY 'x'" if quote else "LOGIN PASSWORD 'x'"
    run(app, f"CREATE USER {whom} {password}" if quote else f"CREATE ROLE {user} {password}")
    tables = ("msgworker_message", "msgworker_lease", "msgworker_item", "msgworker_try")
    try:
        run(app, *(f"GRANT SELECT ON {table} TO {whom}" for table in tables))
        url = sa.make_url(database.url).set(username=user, password="x")
        reader = App(url)
        try:
            assert reader.ops.counts() == []
            findings = needed(reader)
            assert {one.check for one in findings} == {"rights"}
            grants = [one.fix[0] for one in findings]
            message = reader.engine.dialect.identifier_preparer.format_table(app.tables.message)
            assert any(f"GRANT UPDATE ON {message} TO" in grant for grant in grants)
            assert any("GRANT DELETE ON msgworker_lease" in grant for grant in grants)
            run(app, *grants)
            assert needed(reader) == []
        finally:
            reader.engine.dispose()
    finally:
        run(app, f"DROP USER {whom}" if quote else f"DROP OWNED BY {user}")
        if not quote:
            run(app, f"DROP ROLE {user}")


def test_adopting_a_populated_foreign_table(make_app, database):
    """docs/reference/adopting.md, step by step: doctor, its statements, run."""
    name = "tb_cus_msg"
    quote = "`" if database.name == "mariadb" else '"'

    def q(column: str) -> str:
        return f"{quote}{column}{quote}"

    app = make_app(table=MessageTable(name, **SEED, payload=None))
    run(
        app,
        f"CREATE TABLE {name} ({q('msgID')} INTEGER PRIMARY KEY, {q('objectID')} VARCHAR(20), "
        f"status INTEGER DEFAULT 0 NOT NULL, {q('errorTryTimes')} INTEGER DEFAULT 0 NOT NULL)",
    )
    rows = ((1, "A", 2), (2, "A", 1), (3, "A", 1), (4, "B", 7), (5, "B", 0), (6, "C", 0))
    for msg_id, whose, status in rows:
        run(
            app,
            f"INSERT INTO {name} ({q('msgID')}, {q('objectID')}, status, {q('errorTryTimes')}) "
            f"VALUES ({msg_id}, '{whose}', {status}, 0)",
        )
    found = app.ops.doctor()
    text = "\n".join(one.text for one in found)
    for word in ("msgworker_lease", "tb_cus_msg_guard", "more than one running row", "(7)"):
        assert word in text
    advised = [one.text for one in found if one.severity is Severity.ADVISED]
    for word in ("no recovery", "no back-off", "no quarantine"):
        assert any(word in one for one in advised), advised
    mend(app, [one for one in found if one.severity is not Severity.FINE])
    assert needed(app) == []
    app = make_app(table=app.table)
    assert {"claimed_by", "available_at", "last_error", "topic"} <= set(app.tables.names)
    seen: list[int] = []
    app.add_handler(None, lambda msg: seen.append(msg.msg_id))
    table = Table(app)
    run(app, f"UPDATE {name} SET status = 0 WHERE {q('msgID')} = 2")  # no instance was running it
    report = app.drain(linger=0)
    assert (report.done, report.left) == (4, 0)
    assert [i for i in seen if i in (2, 3)] == [2, 3]
    assert table.statuses == [2, 2, 2, -1, 2, 2]
    assert [info.msg_id for info in app.ops.find(status="dead")] == [4]


def test_a_database_that_is_away():
    app = App("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    with pytest.raises(DatabaseUnavailable):
        app.ops.doctor()


def test_instants_without_a_time_zone(postgresql):
    app = App(postgresql.url)
    try:
        app.create_schema()
        run(app, "ALTER TABLE msgworker_message ALTER COLUMN available_at TYPE timestamp")
        (told,) = [one for one in app.ops.doctor() if one.check == "types"]
        assert (told.severity, "no time zone" in told.text) == (Severity.ADVISED, True)
        run(app, *told.fix)
        assert [one for one in app.ops.doctor() if one.check == "types"] == []
    finally:
        app.engine.dispose()


@pytest.mark.requires("startup_options")
def test_a_setting_of_postgresql_is_mended_as_it_is_printed(postgresql):
    url = sa.make_url(postgresql.url).update_query_dict({"options": "-csynchronous_commit=off"})
    app = created(App(url))
    (told,) = [one for one in app.ops.doctor() if "synchronous_commit is off" in one.text]
    assert told.fix == ("ALTER SYSTEM SET synchronous_commit = on", "SELECT pg_reload_conf()")


def test_a_payload_that_is_missing_may_stand_under_another_name(make_app, sqlite):
    app = make_app(sqlite.url, table=MessageTable("tb"))
    run(
        app,
        "CREATE TABLE tb (msg_id INTEGER PRIMARY KEY, object_id TEXT, status SMALLINT DEFAULT 0 "
        "NOT NULL, error_try_times SMALLINT DEFAULT 0 NOT NULL, body TEXT)",
    )
    (found,) = [f for f in app.ops.doctor() if "payload is missing" in f.text]
    assert "MessageTable(payload=...); columns without a name here: body" in found.text


# ---------------------------------------------------------------- in another schema


@pytest.fixture
def in_another_schema(database: Any) -> Iterator[str]:
    """The name of a schema that has a table tb_cus, and is not the one that is looked at."""
    if database.name == "sqlite":
        pytest.skip("no schemas there")
    name = f"crm_{uuid.uuid4().hex[:8]}"
    engine = database.engine().execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.exec_driver_sql(f"CREATE SCHEMA {name}")
        conn.exec_driver_sql(
            f"CREATE TABLE {name}.tb_cus (msg_id INTEGER PRIMARY KEY, object_id VARCHAR(20), "
            "status INTEGER DEFAULT 0 NOT NULL, error_try_times INTEGER DEFAULT 0 NOT NULL)"
        )
        yield name
        conn.exec_driver_sql(
            f"DROP SCHEMA {name}{' CASCADE' if database.name == 'postgresql' else ''}"
        )


@pytest.mark.requires("schemas")
def test_a_table_in_another_schema_is_named_not_made_anew(make_app, in_another_schema, caplog):
    app = make_app(table=MessageTable("tb_cus"))
    say = f"a table of that name is in schema {in_another_schema}"
    (told,) = [one for one in needed(app) if "tb_cus does not exist" in one.text]
    assert say in told.text
    assert f'MessageTable("{in_another_schema}.tb_cus")' in told.text
    assert told.fix == ()
    with pytest.raises(SchemaError, match=say):
        _ = app.tables
    app.create_schema()
    assert say in caplog.text
    named = make_app(table=MessageTable(f"{in_another_schema}.tb_cus"))
    assert not any("does not exist" in one.text for one in named.ops.doctor())


def numbers(app: App) -> list[Finding]:
    return [one for one in app.ops.doctor() if one.check == "numbers"]


def test_a_sequence_that_is_behind_or_begins_again_is_warned_of(postgresql):
    """Reliability 37: the order of ids is the order of messages."""
    app = created(App(postgresql.url))
    send(app, "a", "b")
    assert [one.severity for one in numbers(app)] == [Severity.FINE]
    name = "msgworker_message_msg_id_seq"
    run(app, f"ALTER SEQUENCE {name} RESTART WITH 1 CYCLE", f"SELECT nextval('{name}')")
    cycles, behind = numbers(app)
    assert "begins again at its end (CYCLE)" in cycles.text
    assert "stands at 1, but there are ids up to 2" in behind.text
    run(app, *cycles.fix, *behind.fix)
    assert send(app, "c") == [3]
    assert [one.severity for one in numbers(app)] == [Severity.FINE]
    run(app, f"ALTER SEQUENCE {name} MAXVALUE 3")  # long before those of its column do
    assert "the highest id is 3, and ids end at 3" in numbers(app)[0].text


def test_ids_that_come_to_their_end_are_warned_of(app, table):
    """Reliability 37, where nothing wraps: SQLite goes on with ids at random then."""
    send(app, "a")
    assert [one.severity for one in numbers(app)] == [Severity.FINE]
    table.edit(msg_id=2**63 - 2)
    found = numbers(app)[0]
    assert (found.severity, "ids end at 9223372036854775807" in found.text) == (
        Severity.ADVISED,
        True,
    )


LEFT_BEHIND = {
    "never called": ("INSERT INTO tb (msg_id) VALUES (7)",),
    "set, and not called since": (
        "INSERT INTO tb (msg_id) VALUES (7)",
        "SELECT setval('tb_msg_id_seq', 7, false)",
    ),
    "called by a default": (
        "CREATE SEQUENCE numbers START 5",
        "ALTER TABLE tb ALTER COLUMN msg_id SET DEFAULT nextval('numbers')",
        "DROP SEQUENCE tb_msg_id_seq",
        "INSERT INTO tb (msg_id) VALUES (7)",
    ),
}


@pytest.mark.quick("never")
@pytest.mark.parametrize("case", LEFT_BEHIND)
def test_a_sequence_that_was_left_behind_is_told_and_mended(postgresql, case, caplog):
    """As where rows are copied with their ids, and their sequence is not."""
    make_table(postgresql)
    run(postgresql, *LEFT_BEHIND[case])
    app = created(App(postgresql.url, table=MessageTable("tb")))
    app.add_handler(None, lambda msg: None)
    (told,) = numbers(app)
    assert (told.severity, "there are ids up to 7" in told.text) == (Severity.NEEDED, True)
    app.drain(linger=0)
    assert "new messages run before those" in caplog.text
    run(app, *told.fix, *told.fix)
    assert [one.severity for one in numbers(app)] == [Severity.FINE]
    assert send(app, "c") == [8]
    run(app, *told.fix)
    assert send(app, "c") == [9]


@pytest.mark.requires("sequences")
def test_a_sequence_of_mariadb_that_was_left_behind_is_told_and_mended(mariadb):
    run(mariadb, "CREATE SEQUENCE numbers")
    make_table(mariadb, msg_id="BIGINT DEFAULT nextval(numbers)")
    run(mariadb, "INSERT INTO tb (msg_id) VALUES (70000)")
    app = created(App(mariadb.url, table=MessageTable("tb")))
    (told,) = numbers(app)
    assert (told.severity, "there are ids up to 70000" in told.text) == (Severity.NEEDED, True)
    run(app, *told.fix, *told.fix)
    assert [one.severity for one in numbers(app)] == [Severity.FINE]
    assert send(app, "c")[0] > 70000


def test_the_sequence_of_operations_is_looked_at_too(postgresql):
    app = created(App(postgresql.url))
    run(app, "ALTER SEQUENCE msgworker_operation_op_id_seq RESTART WITH 1")
    assert [one.severity for one in numbers(app)] == [Severity.FINE]
    app.ops.pause("t", actor="me", reason="once")
    run(app, "ALTER SEQUENCE msgworker_operation_op_id_seq RESTART WITH 1")
    (told,) = numbers(app)
    assert told.severity is Severity.NEEDED
    run(app, *told.fix)
    app.ops.resume("t", actor="me", reason="again")
