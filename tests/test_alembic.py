"""Autogenerate of a real Alembic, with our hook and without."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable, SchemaError
from msgworker.alembic import include_object
from msgworker.db.database import database_of
from msgworker.schema import apply
from msgworker.table.build import NEWEST
from tests.support.apps import created
from tests.support.programs import environment, python
from tests.support.waiting import in_thread, until
from tests.upgrade import kept

pytest.importorskip("alembic", reason="in the extra dev")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(expression-based index|Unknown schema content|Did not recognize)"
)
PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "alembic.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)
OURS = {
    "msgworker_message",
    "msgworker_lease",
    "msgworker_item",
    "msgworker_try",
    "msgworker_operation",
    "msgworker_audit",
    "msgworker_pause",
    "msgworker_limit",
    "msgworker_cancel",
    "msgworker_lock",
    "msgworker_schedule",
    "msgworker_history",
    "msgworker_job",
}


def proposed(
    engine: sa.Engine, metadata: sa.MetaData, hook: Any = None, **options: Any
) -> list[tuple[str, str]]:
    """What autogenerate would do: (what, name)."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    options |= {} if hook is None else {"include_object": hook}
    with engine.connect() as conn:
        found = compare_metadata(MigrationContext.configure(conn, opts=options), metadata)
    flat = [one for step in found for one in (step if isinstance(step, list) else [step])]
    return [(step[0], str(getattr(step[-1], "name", None))) for step in flat]


def customers(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "customer",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(50), index=True),
    )


def legacy(metadata: sa.MetaData, name: str = "tb_cus_msg") -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("msgid", sa.Integer, primary_key=True),
        sa.Column("objectid", sa.String(40)),
        sa.Column("status", sa.Integer, nullable=False, server_default="0"),
        sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
        sa.Index(f"ix_{name}_objectid", "objectid"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def message_table(name: str, **rules: Any) -> MessageTable:
    return MessageTable(
        name, msg_id="msgid", object_id="objectid", error_try_times="tries", payload=None, **rules
    )


def made(database: Any, table: MessageTable | None = None) -> sa.Engine:
    app = created(App(database.url, table=table))
    app.engine.dispose()
    return database.engine()


def test_autogenerate_drops_none_of_our_tables(database):
    metadata = sa.MetaData()
    customers(metadata)
    metadata.create_all(database.engine())
    engine = made(database)
    dropped = {name for what, name in proposed(engine, metadata) if what == "remove_table"}
    assert dropped == OURS
    assert proposed(engine, metadata, include_object) == []


@pytest.mark.parametrize("rules", [{}, {"max_tries": 5, "on_dead": "block"}], ids=["plain", "rule"])
@pytest.mark.parametrize("name", ["tb_cus_msg", "a_name_that_is_too_long_for_an_index_of_ours"])
def test_autogenerate_drops_no_index_and_no_hidden_column_of_a_message_table(database, name, rules):
    metadata = sa.MetaData()
    legacy(metadata, name)
    metadata.create_all(database.engine())
    engine = made(database, message_table(name, **rules))
    steps = {what for what, found in proposed(engine, metadata) if found not in OURS}
    assert "remove_index" in steps
    assert ("remove_column" in steps) == (database.name in ("mariadb", "mysql"))
    assert proposed(engine, metadata, include_object) == []


def test_autogenerate_drops_no_index_of_slices(database):
    metadata = sa.MetaData()
    table = legacy(metadata)
    table.append_column(sa.Column("shard", sa.SmallInteger))
    table.append_column(sa.Column("flag", sa.String(64)))
    metadata.create_all(database.engine())
    engine = made(database, message_table(table.name, shard="shard", instance_type="flag"))
    removed = [name for what, name in proposed(engine, metadata) if what == "remove_index"]
    assert {f"{table.name}_shard", f"{table.name}_flag"} <= set(removed)
    assert proposed(engine, metadata, include_object) == []


def test_a_message_table_of_another_name_is_known_by_its_guard(database):
    engine = made(database, MessageTable("crm_queue"))
    metadata = sa.MetaData()
    assert ("remove_table", "crm_queue") in proposed(engine, metadata)
    assert proposed(engine, metadata, include_object) == []


def test_tables_in_a_schema_are_known_too(postgresql):
    with postgresql.engine().begin() as conn:
        conn.execute(sa.schema.CreateSchema("crm"))
    engine = made(postgresql, MessageTable("crm.queue"))
    found = proposed(engine, sa.MetaData(), include_schemas=True)
    assert {("remove_table", "queue"), ("remove_table", "msgworker_lease")} < set(found)
    assert proposed(engine, sa.MetaData(), include_object, include_schemas=True) == []


def test_what_is_the_user_s_own_is_still_dropped(database):
    """A table, a column and an index that the metadata has no more, also on a message table."""
    before = sa.MetaData()
    customers(before)
    # Called as ours would be, one as those of a message table, on a table that is none.
    orders = sa.Table("orders", before, sa.Column("id", sa.Integer, primary_key=True))
    orders.append_column(sa.Column("due", sa.Integer))
    for suffix in ("due", "key", "group", "owner"):
        sa.Index(f"orders_{suffix}", orders.c.due, orders.c.id)
    messages = legacy(before)
    messages.append_column(sa.Column("note", sa.String(20)))
    sa.Index("tb_cus_msg_note", messages.c.note)
    before.create_all(database.engine())
    engine = made(database, message_table("tb_cus_msg"))
    now = sa.MetaData()
    sa.Table(
        "orders", now, sa.Column("id", sa.Integer, primary_key=True), sa.Column("due", sa.Integer)
    )
    legacy(now)
    steps = {
        step for step in proposed(engine, now, include_object) if step[0] != "remove_constraint"
    }
    assert steps == {
        ("remove_table", "customer"),
        ("remove_index", "ix_customer_name"),
        *(("remove_index", f"orders_{suffix}") for suffix in ("due", "key", "group", "owner")),
        ("remove_index", "tb_cus_msg_note"),
        ("remove_column", "note"),
    }


def test_our_tables_in_the_metadata_are_compared_as_ever(database):
    """Who has declared one of them takes care of it."""
    engine = made(database)
    metadata = sa.MetaData()
    sa.Table("msgworker_pause", metadata, sa.Column("topic", sa.String(100), primary_key=True),
             sa.Column("more", sa.Integer))  # fmt: skip
    steps = proposed(engine, metadata, include_object)
    assert ("add_column", "more") in steps
    assert "remove_table" not in {what for what, _ in steps}


def test_the_hook_of_the_page_beside_one_s_own(database):
    """Both have to agree."""
    (example,) = (one for one in EXAMPLES if "def include_object" in one)
    made_by: dict[str, Any] = {}
    exec(example, made_by)
    metadata = sa.MetaData()
    sa.Table("legacy_x", metadata, sa.Column("id", sa.Integer, primary_key=True))
    customers(metadata)
    metadata.create_all(database.engine())
    engine = made(database)
    steps = proposed(engine, sa.MetaData(), made_by["include_object"])
    assert {name for what, name in steps if what == "remove_table"} == {"customer"}


@pytest.fixture
def migrations(tmp_path, monkeypatch):
    """Make the folder of migrations of the page, for an engine: its Config."""
    from alembic import command
    from alembic.config import Config
    from sqlalchemy.orm import DeclarativeBase

    class Base(DeclarativeBase):
        pass

    customers(Base.metadata)

    def migrations(engine: sa.Engine, env: str = EXAMPLES[0]) -> Any:
        crm, models = types.ModuleType("crm"), types.ModuleType("crm.models")
        models.Base, models.engine = Base, engine  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "crm", crm)
        monkeypatch.setitem(sys.modules, "crm.models", models)
        folder = tmp_path / "migrations"
        config = Config(tmp_path / "alembic.ini")
        config.set_main_option("script_location", str(folder))
        config.set_main_option("path_separator", "os")
        command.init(config, str(folder))
        (folder / "env.py").write_text(env)
        return config

    return migrations


def revision(config: Any, name: str, text: str) -> None:
    """Write a revision into the folder of the migrations."""
    folder = Path(config.get_main_option("script_location"))
    (folder / "versions" / f"{name}.py").write_text(text)


def test_doctor_says_which_index_a_batch_of_alembic_has_turned(sqlite):
    """SQLAlchemy reads no DESC of an index of SQLite."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    app = created(App(sqlite.url))
    with app.engine.begin() as conn:
        op = Operations(MigrationContext.configure(conn))
        with op.batch_alter_table("msgworker_message", recreate="always") as batch:
            batch.add_column(sa.Column("extra", sa.Integer))

    def found():
        return [one for one in App(sqlite.url).ops.doctor() if "another order" in one.text]

    (one,) = found()
    assert "index msgworker_message_urgent" in one.text
    with app.engine.begin() as conn:
        for statement in one.fix:
            conn.exec_driver_sql(statement)
    assert found() == []


def test_the_env_py_of_the_page_makes_an_empty_revision(sqlite, migrations):
    from alembic import command

    made(sqlite)
    engine = sqlite.engine()
    customers(own := sa.MetaData())
    own.create_all(engine)
    config = migrations(engine)
    command.stamp(config, "head")
    command.revision(config, autogenerate=True, message="nothing")
    folder = Path(config.get_main_option("script_location"))
    (script,) = (folder / "versions").glob("*nothing.py")
    assert "op." not in script.read_text()


(UPGRADE,) = (one for one in EXAMPLES if "def upgrade" in one)
EARLIER = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0001", None

def upgrade():
    op.create_table("customer", sa.Column("id", sa.Integer, primary_key=True),
                    sa.Column("name", sa.String(50)))
"""
LATER = """
from alembic import op
revision, down_revision = "9999", "4f1c"

def upgrade():
    op.create_index("ix_customer_name", "customer", ["name"])
"""


@pytest.mark.quick("postgresql-one transaction-6")
@pytest.mark.parametrize("version", [1, 6])
@pytest.mark.parametrize("how", ["one transaction", "one each"])
def test_a_revision_upgrades_the_tables_of_an_earlier_version(database, migrations, version, how):
    from alembic import command

    kept.restore(database.engine(), version)
    before = kept.rows(database.engine())
    env = EXAMPLES[0]
    if how == "one each":
        env = env.replace("include_object,\n", "include_object, transaction_per_migration=True,\n")
    config = migrations(database.engine(), env)
    revision(config, "0001_before", EARLIER)
    revision(config, "4f1c_msgworker", UPGRADE.replace("= None", '= "0001"'))
    revision(config, "9999_after", LATER)
    command.upgrade(config, "head")
    app = App(database.url)
    plan = app.upgrade_schema(dry_run=True)
    assert (plan.found, plan.recorded, plan.steps, plan.left) == (NEWEST, NEWEST, (), ())
    app.engine.dispose()
    assert kept.rows(database.engine()) == before
    with database.engine().connect() as conn:
        assert conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "9999"
        assert sa.inspect(conn).has_index("customer", "ix_customer_name")
    assert kept.shape(database.engine()) == kept.shape_made_anew(database.engine())
    command.stamp(config, "0001")
    revision(config, "9999_after", LATER.replace("op.create", "lambda: op.create"))
    command.upgrade(config, "head")  # it finds nothing to do


@pytest.mark.long
def test_a_revision_builds_indexes_in_no_transaction_and_waits_for_no_long_lock(
    postgresql, migrations
):
    """As `msgworker db upgrade` does: the lock timeout is said in the transaction of the ALTER."""
    from alembic import command

    kept.restore(postgresql.engine(), 4)
    engine = postgresql.engine()
    ran: list[tuple[str, bool]] = []

    def note(conn, cursor, statement, *_):
        ran.append((statement, cursor.connection.info.transaction_status.name == "IDLE"))

    sa.event.listen(engine, "before_cursor_execute", note)
    config = migrations(engine)
    revision(config, "4f1c_msgworker", UPGRADE)
    command.upgrade(config, "head")
    building = [idle for text, idle in ran if " INDEX CONCURRENTLY " in text]
    assert building
    assert all(building)
    changing = [i for i, (text, _) in enumerate(ran) if text.startswith("ALTER TABLE msgworker_m")]
    assert changing
    for place in changing:
        (begin, _), (limit, in_none), (_, alone) = ran[place - 2 : place + 1]
        assert (begin, limit) == ("BEGIN", "SET LOCAL lock_timeout = '5s'")
        assert (in_none, alone) == (False, False)


@pytest.mark.long
def test_a_revision_waits_for_a_table_in_use_without_holding_up_others(postgresql, migrations):
    from alembic import command

    kept.restore(postgresql.engine(), 4)
    config = migrations(postgresql.engine())
    revision(config, "4f1c_msgworker", UPGRADE)
    with postgresql.engine().begin() as long:
        long.exec_driver_sql("SELECT count(*) FROM msgworker_message")
        upgraded = in_thread(lambda: command.upgrade(config, "head"))
        blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        with postgresql.engine().connect() as conn:
            until(lambda: conn.exec_driver_sql(blocked).scalar(), "it waits for its lock")
        with postgresql.engine().begin() as other:
            other.exec_driver_sql("SET LOCAL statement_timeout = '20s'")
            other.exec_driver_sql("UPDATE msgworker_message SET last_error = 'x' WHERE msg_id = 1")
    upgraded()
    app = App(postgresql.url)
    assert app.upgrade_schema(dry_run=True).steps == ()


LOCK_LIMIT = {"postgresql": "SHOW lock_timeout", "mysql": "SELECT @@SESSION.lock_wait_timeout"}


@pytest.mark.quick("postgresql")
def test_a_step_that_fails_leaves_the_session_of_a_revision_as_it_was(database):
    engine = database.engine()
    kept.restore(engine, 4)
    sa.event.listen(engine, "before_cursor_execute", fail_at_alter)
    limit = LOCK_LIMIT.get(database.name, "SELECT 1")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        before = conn.exec_driver_sql(limit).scalar()
        with pytest.raises(RuntimeError, match="ALTER"):
            apply.upgrade(engine, MessageTable(), database_of(engine), conn=conn)
        assert conn.exec_driver_sql(limit).scalar() == before


def test_a_step_that_fails_says_why_where_the_revision_has_the_only_connection(database):
    kept.restore(database.engine(), 4)
    pool = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1, "poolclass": sa.QueuePool}
    engine = sa.create_engine(database.url, **pool)
    sa.event.listen(engine, "before_cursor_execute", refuse_indexes)
    database, table = database_of(engine), MessageTable()
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn,
        pytest.raises(SchemaError, match=r"cannot upgrade the schema: .*not this one"),
    ):
        apply.upgrade(engine, table, database, message_table=True, conn=conn)
    engine.dispose()


def refuse_indexes(conn, cursor, statement, *_):
    if re.search(r"\bADD |CREATE (UNIQUE )?INDEX", statement):
        raise sa.exc.ProgrammingError(statement, {}, Exception("not this one"))


def fail_at_alter(conn, cursor, statement, *_):
    if "ALTER TABLE" in statement:
        raise RuntimeError(statement)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("begun outside", "not engine.begin"),
        ("offline", "msgworker db pkg.module:app upgrade --sql"),
    ],
)
def test_a_revision_that_cannot_upgrade_changes_nothing_and_says_how_it_can(
    database, migrations, how, why
):
    from alembic import command

    kept.restore(database.engine(), 6)
    before = kept.shape(database.engine())
    env = EXAMPLES[0]
    if how == "begun outside":
        env = env.replace("engine.connect()", "engine.begin()")
    config = migrations(database.engine(), env)
    revision(config, "4f1c_msgworker", UPGRADE)
    if how == "offline":
        env = Path(config.get_main_option("script_location")) / "env.py"
        offline = 'dialect_name=engine.dialect.name, opts={"as_sql": True}'
        env.write_text(EXAMPLES[0].replace("connection=connection", offline))
    with pytest.raises(SchemaError, match=why):
        command.upgrade(config, "head", sql=how == "offline")
    assert kept.shape(database.engine()) == before


@pytest.mark.long
def test_alembic_is_not_needed_and_not_hidden(tmp_path):
    """msgworker.alembic is not the module `alembic`, and does not import it."""
    code = (
        "import sys, msgworker.alembic, msgworker.cli, msgworker.testing\n"
        "assert 'alembic' not in sys.modules\n"
        "import alembic\n"
        "from alembic import command, context\n"
        "assert alembic is not msgworker.alembic\n"
    )
    env = environment(PYTHONPATH=":".join(filter(None, sys.path)))
    done = python("-c", code, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
