"""ddl/ in step with the code and good on real servers; Oracle's and MySQL's SQL linted."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.mysql import mysqldb, pymysql

from msgworker import App, MessageTable, queries
from msgworker.db.database import DATABASES, NAMES, printing
from msgworker.db.types import KeyText
from msgworker.errors import DuplicateMessage
from msgworker.queries import counts, remaining
from msgworker.queries.explain import Asked
from msgworker.schema import apply
from msgworker.store import slices
from msgworker.store.controls import asking_jobs
from msgworker.store.done import NotTogether
from msgworker.table.build import own_tables, tables_for
from msgworker.table.columns import ROLES, Slice
from tests.oracle_driver import Log
from tests.oracle_lint import lint, mixed
from tests.statements import Sent
from tests.statements import statements as written
from tests.support.acts import Compiled, acts, scope_acts
from tests.variants import database_name

pytestmark = pytest.mark.quick

DDL = Path(__file__).parent.parent / "ddl"


def statements(script: str) -> list[str]:
    """The statements of a script: comments away, cut at the semicolons that end a line."""
    text = "\n".join(line for line in script.splitlines() if not line.startswith("--"))
    return [part.strip() for part in re.split(r";[ \t]*(?:\n|$)", text) if part.strip()]


# ---------------------------------------------------------------- in step


@pytest.mark.parametrize("name", NAMES)
def test_ddl_files_are_in_step(name):
    expected = apply.ddl(MessageTable(), name)
    path = DDL / f"{name}.sql"
    assert path.read_text(encoding="utf-8") == expected, (
        f"{path.name} is out of date; write it again with `msgworker ddl --dialect {name}`"
    )


HOOKED = """
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn, CreateTable
from msgworker import MessageTable
from msgworker.schema import apply
before = [apply.ddl(MessageTable(), name) for name in ("mysql", "postgresql")]
assert not any("_compiler_dispatcher" in vars(kind) for kind in (CreateColumn, CreateTable))
compiles(CreateColumn)(compiles(CreateTable)(lambda *_, **__: "the program's"))
assert before == [apply.ddl(MessageTable(), name) for name in ("mysql", "postgresql")]
"""


def test_hooks_of_a_program_on_the_ddl_of_sqlalchemy_are_its_own():
    subprocess.run([sys.executable, "-c", HOOKED], check=True)


def test_ddl_has_a_file_for_each_database_and_no_other():
    assert {path.stem for path in DDL.glob("*")} == {
        *NAMES,
        *(f"statements-{one}" for one in NAMES),
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_statements_of_an_instance_are_in_step(name):
    path = DDL / f"statements-{name}.sql"
    found = written(name)
    assert found.count("\n-- =====") > 10
    assert path.read_text(encoding="utf-8") == found, f"{path.name}: run `make ddl`, read the diff"


BOUNDS_ALONE = {
    *("newest", "counts", "find", "page", "overview", "ids_of_filter", "behind"),
    *(
        "flag",
        "flag_apart",
        "heads",
        "heads_by_age",
        "lanes",
        "by_object",
        "instances",
        "served",
        "archive",
    ),
    *("ran_later", "done_behind", "oldest", "oldest_among", "read_runs"),
}
"""Functions of which a statement names the message table once without its `where`: for an id up to
which it reads, or of rows that another part of it has chosen."""


OF_ANY_TABLE = {"advance", "finish", "counts", "overview"}
"""Functions that change an operation, whose id no other has; or ask whether jobs may be read."""


class Given(Sent):
    """It reads numbers where a count is read."""

    def execute(self, statement: Any = None, params: Any = None, **_: Any) -> Any:
        return super().execute(statement, params)

    def scalar_one(self) -> Any:
        class Instant(datetime):
            def __int__(self) -> int:
                return 0

        return Instant(2026, 11, 22, tzinfo=UTC)


class Mixing(Compiled):
    """Notes where texts of two character sets of Oracle would meet."""

    def __init__(self, t: Any) -> None:
        super().__init__("oracle")
        self.t, self.found = t, set[str]()

    def execute(self, statement: Any, params: Any = None) -> Any:
        self.found.update(mixed(statement, self.t.message))
        return super().execute(statement, params)


def nationals(**kinds: Any) -> Any:
    """Tables whose texts are NVARCHAR2 on Oracle, and asked for paused jobs."""
    plain = tables_for(MessageTable(), DATABASES["oracle"])
    present = {
        c.name: sa.NVARCHAR(190) if isinstance(c.type, sa.String | KeyText) else c.type
        for c in plain.message.c
    }
    return asking_jobs(tables_for(MessageTable(), DATABASES["oracle"], present | kinds))


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_no_text_of_ours_is_mixed_with_an_nvarchar2_of_oracle():
    t = nationals()
    conn: Any = Mixing(t)
    for act, options in acts(t, conn):
        if act is slices.open_values:  # it would ask this connection without an end
            continue
        with suppress(NotTogether, DuplicateMessage, TypeError, AttributeError):
            act(conn, t, **options)
    assert len(conn.sent) > 300
    keys = [key for index in t.message.indexes for key in index.expressions]
    assert conn.found | {one for key in keys for one in mixed(key, t.message)} == set()
    assert any("NVL(" in sql for sql in conn.sent)
    # Indexes on a VARCHAR2 are those of older versions.
    plain = nationals(object_id=sa.VARCHAR(190))
    (key, _) = next(i.expressions for i in plain.message.indexes if i.name.endswith("_object"))
    assert "coalesce(" in str(key)
    assert mixed(key, plain.message) != []


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("name", ["postgresql", "sqlite", "mariadb"])
def test_every_statement_asks_whether_a_row_is_a_message(name):
    """And in the tables that all message tables share, whether it is about one of this."""
    spec = MessageTable(shard="shard", instance_type="instance_type", where={"tenant": 77})
    conn: Any = Given(name)
    tables = tables_for(spec, DATABASES[name])
    after = "SET|WHERE|ORDER|GROUP|FORCE|USE|LIMIT|JOIN|ON|VALUES|FOR|LEFT|INNER|UNION|IGNORE"
    named = re.compile(rf"msgworker_message\b(?!\.)(?:\s+(?:AS\s+)?(?!(?:{after})\b)([a-z]\w*))?")
    asks = r"(tenant = 77|mw_\w+_w[0-9a-f]{6})"
    shared = [one.name for one in own_tables(tables) if "table_name" in one.c]
    beside = re.compile(
        rf"\b({'|'.join(shared)})\b(?!\.)(?:\s+(?:AS\s+)?(?!(?:{after})\b)([a-z]\w*))?"
    )
    silent, of_all, sent = set(), set(), 0
    for act, options in acts(tables, conn):
        conn.sent.clear()
        if act is slices.open_values:  # it would ask this connection without an end
            continue
        # What a look makes of the rows that it reads here is not what is tested.
        with suppress(NotTogether, DuplicateMessage, TypeError, AttributeError):
            act(conn, tables, **options)
        for sql in conn.sent:
            sent += 1
            plain = re.search(rf"(?<![.\w]){asks}", sql) is not None
            if sql.startswith("INSERT INTO msgworker_message"):
                plain = "tenant" in sql
            for found in named.finditer(sql):
                alias = found[1] or "msgworker_message"
                asked = re.search(rf"\b{alias}\.{asks}", sql) is not None
                if not asked and not (plain and found[1] is None):
                    silent.add(act.__name__)
            for found in () if sql.startswith("INSERT") else beside.finditer(sql):
                if not re.search(rf"\b({found[2] or found[1]}\.|(?<!\.))table_name\b", sql):
                    of_all.add(act.__name__)
    assert sent > 300
    assert silent <= BOUNDS_ALONE
    assert of_all <= OF_ANY_TABLE


@pytest.mark.parametrize("name", NAMES)
def test_ddl_takes_other_names(name):
    spec = MessageTable("crm.work_item", msg_id="nr", object_id="customer", payload=None)
    text = apply.ddl(spec, name)
    assert "crm.work_item" in text
    (made,) = [one for one in statements(text) if one.startswith("CREATE TABLE crm.work_item ")]
    assert "customer" in made
    assert "payload" not in made
    assert "msgworker_message" not in text


@pytest.mark.parametrize("name", NAMES)
def test_ddl_says_which_rows_are_messages(name):
    where = {"tenant": 7, "gone": None, "state": ["a'b", "c"], "live": True}
    text = apply.ddl(MessageTable("legacy", where=where), name)
    assert "INSERT INTO legacy (topic, object_id, payload, tenant, gone, state, live) " in text
    for sql in statements(text):
        assert name != "oracle" or lint(sql) == []
        if re.match(r"CREATE UNIQUE INDEX legacy_w\w+_guard", sql) and "mw_" not in sql:
            live = "live IS true" if name == "postgresql" else "live = 1"
            assert f"tenant = 7 AND gone IS NULL AND state IN ('a''b', 'c') AND {live}" in sql
            break
    else:
        assert name == "mariadb"
        assert "tenant = 7 AND gone IS NULL AND state IN ('a''b', 'c') AND live = 1" in text


@pytest.mark.parametrize("name", NAMES)
def test_ddl_has_short_names_only(name):
    spec = MessageTable("a_table_with_a_name_of_forty_characters_")
    for sql in statements(apply.ddl(spec, name)):
        match = re.match(r"CREATE (?:UNIQUE )?INDEX (\S+)", sql)
        if match:
            assert len(match[1]) <= 30


# ---------------------------------------------------------------- on real servers


def test_the_script_makes_what_create_schema_makes(database):
    name = database_name(database.name)
    script = statements((DDL / f"{name}.sql").read_text(encoding="utf-8"))
    with database.engine().connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for sql in script:
            conn.exec_driver_sql(sql)
    app = App(database.url)
    try:
        assert app.tables.spec.name == "msgworker_message"
        by_script = _live(app.engine)
        app.add_handler(None, lambda msg: None)
        with app.engine.begin() as conn:
            app.send_many(conn, "t", [({"n": i}, f"o{i % 3}") for i in range(30)])
        assert app.drain(linger=0).done == 30
        assert app.create_schema() == []
        assert _live(app.engine) == by_script
        with app.engine.begin() as conn:
            for table in sa.inspect(conn).get_table_names():
                if table.startswith("msgworker_"):
                    conn.exec_driver_sql(f"DROP TABLE {table}")
        app.create_schema()
        assert _live(app.engine) == by_script
    finally:
        app.engine.dispose()


def _live(engine: sa.Engine) -> list[str]:
    """The schema in the database's own words."""
    with engine.connect() as conn:
        if engine.dialect.name == "sqlite":
            mode = conn.exec_driver_sql("PRAGMA journal_mode").scalar()
            found = conn.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
            return sorted([str(mode), *(" ".join(str(row[0]).split()) for row in found)])
        if engine.dialect.name == "postgresql":
            columns = conn.exec_driver_sql(
                "SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, "
                "column_default, is_identity, identity_generation, collation_name "
                "FROM information_schema.columns WHERE table_schema = 'public'"
            )
            options = "SELECT relname, reloptions FROM pg_class WHERE relname LIKE 'msgworker%%'"
            indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
            found = [*columns, *conn.exec_driver_sql(indexes), *conn.exec_driver_sql(options)]
            return sorted(str(tuple(row)) for row in found)
        tables = sorted(row[0] for row in conn.exec_driver_sql("SHOW TABLES"))
        texts = [conn.exec_driver_sql(f"SHOW CREATE TABLE {t}").one()[1] for t in tables]
        return [re.sub(r" AUTO_INCREMENT=\d+", "", text) for text in texts]


# ---------------------------------------------------------------- MySQL 8

MYSQL_REFUSES = {
    r"nopad_bin": "a collation that only MariaDB has",
    r"\bPERSISTENT\b": "only MariaDB",
    r"INDEX \S+ ON \S+ \(CASE": "an expression as a key part stands in parentheses of its own",
    r"DEFAULT (?!\(|')[a-z_]+\(": "an expression as a default stands in parentheses",
    r"WHERE": "no index with a predicate",
}


@pytest.mark.parametrize(
    ("name", "set_default"),
    {
        "postgresql": "ALTER TABLE t ALTER COLUMN created_at SET DEFAULT now()",
        "mariadb": "ALTER TABLE t ALTER COLUMN created_at SET DEFAULT (utc_timestamp(6))",
        "mysql": "ALTER TABLE t ALTER COLUMN created_at SET DEFAULT (utc_timestamp(6))",
        "oracle": "ALTER TABLE t MODIFY (created_at DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP))",
        "sqlite": None,  # it has no such statement
    }.items(),
)
def test_an_added_created_at_leaves_the_rows_that_are_there_without_a_value(name, set_default):
    message = tables_for(MessageTable("t"), DATABASES[name]).message
    sql = DATABASES[name].offline_dialect()
    add, *rest = apply.add_with_default_for_new(sql, message, message.c.created_at)
    assert "created_at" in add
    assert "DEFAULT" not in add
    assert "NOT NULL" not in add
    assert rest == ([] if set_default is None else [set_default])
    assert name != "oracle" or [lint(one) for one in (add, *rest)] == [[], []]


def test_other_schemas_are_asked_for_in_oracle_s_words():
    assert lint(DATABASES["oracle"].other_schemas) == []


def test_mysql_s_script_has_nothing_that_mysql_refuses():
    script = apply.ddl(MessageTable(), "mysql")
    for sql in statements(script):
        for pattern, why in MYSQL_REFUSES.items():
            assert not re.search(pattern, sql), f"{why}: {sql}"
    assert "((CASE WHEN (status = 1) THEN object_id END))" in script
    assert "utf8mb4_0900_bin" in script
    assert script.count("ENGINE=InnoDB") == script.count("CREATE TABLE")


@pytest.mark.long
@pytest.mark.parametrize("role", ["shard", None])
def test_mysql_is_sent_the_statements_of_scopes_and_locks_that_mariadb_runs(role):
    spec = MessageTable("crm.sliced", shard=role and "part", instance_type=role and "flag")
    sent = {}
    for name in ("mysql", "mariadb"):
        conn: Any = Compiled(name)
        for act, options in scope_acts(tables_for(spec, DATABASES[name]), conn):
            act(conn, tables_for(spec, DATABASES[name]), **options)
        sent[name] = set(conn.sent)
    assert len(sent["mysql"]) > (35 if role else 8)
    assert sent["mysql"] == sent["mariadb"]


# ---------------------------------------------------------------- Oracle

PLANTED = [
    "SELECT id FROM t LIMIT 1",
    "SELECT 1",
    "SELECT id FROM t AS x",
    "SELECT id FROM t ORDER BY id FETCH FIRST 1 ROWS ONLY FOR UPDATE SKIP LOCKED",
    "SELECT id FROM (SELECT id FROM t) q WHERE ROWNUM < 2 FOR UPDATE",
    "UPDATE t SET a=1 WHERE id=:date",
    "SELECT id FROM t WHERE o = ''",
    "INSERT INTO t VALUES (1), (2)",
    "SELECT id FROM t WHERE rownum<2 ORDER BY id",
    "SELECT EXISTS (SELECT 1 FROM t) FROM DUAL",
    "SELECT a FROM t WHERE ok = TRUE",
    "SELECT a FROM t WHERE true",
    "SELECT 1 FROM DUAL;",
    "SELECT a_name_that_is_longer_than_thirty FROM t",
    f"SELECT a FROM t WHERE id IN ({', '.join(['1'] * 1001)})",
    "WITH x AS (SELECT 1 FROM dual) UPDATE t SET a = 1",
    "INSERT INTO t (a) VALUES (1) RETURNING id",
    "UPDATE IGNORE t SET a = 1",
    "SELECT now() FROM dual",
    "SELECT /*+ INDEX(crm.t t_head) */ a FROM crm.t",
]


@pytest.mark.parametrize("sql", PLANTED, ids=range(len(PLANTED)))
def test_the_lint_finds_planted_errors(sql):
    assert lint(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t x WHERE x.id IN (1, 2) FOR UPDATE SKIP LOCKED",
        "INSERT INTO t (a) VALUES (:a) RETURNING id INTO :ret_0",
        "SELECT a FROM t WHERE b = 'true; LIMIT 1'",
        "SELECT /*+ INDEX(t t_head) */ a FROM crm.t",
        "SELECT id FROM (SELECT id FROM t ORDER BY id) WHERE ROWNUM <= :n",
        "SELECT id FROM t ORDER BY id FETCH FIRST :n ROWS ONLY",
    ],
)
def test_the_lint_takes_what_is_good(sql):
    assert lint(sql) == []


def test_oracle_s_script_is_clean():
    script = statements(apply.ddl(MessageTable(), "oracle"))
    assert len(script) >= 6
    assert {sql: lint(sql) for sql in script if lint(sql)} == {}


def test_every_function_that_reads_for_operators_is_called_for_its_statements():
    """But for two that need an answer: of the clock, and of a catalogue."""
    apart = {counts.history_of, counts.sizes}
    log: Any = Compiled("sqlite")
    called = {act for act, _ in acts(tables_for(MessageTable(), DATABASES["sqlite"]), log)}
    for part in pkgutil.iter_modules(queries.__path__, f"{queries.__name__}."):
        for name, one in vars(importlib.import_module(part.name)).items():
            ours = inspect.isfunction(one) and one.__module__ == part.name and name[0] != "_"
            if ours and [*inspect.signature(one).parameters][:2] == ["conn", "t"]:
                assert one in called | apart, (
                    f"{part.name}.{name}: a call of it in tests/support/acts.py"
                )


def _oracle_statements(
    spec: MessageTable, max_headers: int = 0, *, holds: bool = False, calls: Any = acts
) -> list[str]:
    log = Log()
    engine = log.engine()
    t = tables_for(spec, DATABASES["oracle"], max_headers=max_headers)
    t = asking_jobs(t) if holds else t
    with engine.connect() as conn:
        for act, options in calls(t, log):
            act(conn, t, **options)
            conn.rollback()
    return log.statements


SPECS = {
    "ours": MessageTable(),
    "blocking": MessageTable("crm.msg", on_dead="block", visibility_delay_seconds=1.0),
    "the seed's": MessageTable(
        "crm.tb_cus_msg",
        **{"msg_id": "msgid", "object_id": "objectid", "error_try_times": "errortrytimes"},
        **dict.fromkeys(
            (
                *("topic", "payload", "available_at", "claimed_by", "claimed_at", "crash_times"),
                *("later_times", "last_error", "created_at", "finished_at", "shard"),
                "instance_type",
            )
        ),
    ),
    "sliced": MessageTable("crm.sliced", shard="part", instance_type="flag"),
    "ranked": MessageTable("crm.ranked", priority="urgency", max_tries=5),
    "keyed": MessageTable("crm.keyed", unique_key="job_key", unique_kept="kept"),
}


@pytest.mark.quick("ours")
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_statement_is_one_that_oracle_takes(spec):
    found = _oracle_statements(spec)
    assert len(found) > (30 if spec.claimed_by else 15)
    wrong = {sql: lint(sql) for sql in found if lint(sql)}
    assert wrong == {}


@pytest.mark.long
def test_oracle_takes_the_statements_with_headers_while_a_job_is_paused():
    found = _oracle_statements(MessageTable(), max_headers=2000, holds=True)
    on = [sql for sql in found if "headers" in sql]
    assert {sql.split()[0] for sql in on} == {"SELECT", "INSERT", "UPDATE"}
    assert sum("paused with its job" in sql for sql in found) > 10
    assert {sql: lint(sql) for sql in found if lint(sql)} == {}


def test_oracle_takes_what_a_drain_of_a_job_asks():
    def of_a_job(t: Any, log: Any) -> Any:
        yield slices.heads_of_job, {"place": slices.Place(7), "rows": 8}
        for most in (1, 2):
            log.rows = {"count(*) AS count_1 \n": [(2,)]}
            asked = Asked(topics=None, within=Slice("job_id", (7,), exclusive=False))
            yield remaining.left, {"asked": asked, "most": most}

    found = _oracle_statements(MessageTable(), calls=of_a_job)
    assert len(found) > 5
    assert {sql: lint(sql) for sql in found if lint(sql)} == {}


@pytest.mark.long
def test_oracle_s_hints_name_the_indexes():
    found = "\n".join(_oracle_statements(MessageTable()))
    assert "/*+ FIRST_ROWS(100) INDEX(" in found


def test_the_page_about_adoption_names_each_column_with_its_type():
    page = (DDL.parent / "docs" / "reference" / "adopting.md").read_text(encoding="utf-8")
    told = {}
    for names, kinds, _ in re.findall(r"^\| (`.+?) \| (.+?) \| (.*) \|$", page, re.M):
        roles = re.findall(r"`(\w+)`", names)
        said = kinds.split(", ") if len(roles) > 1 and "," in kinds else [kinds] * len(roles)
        told |= dict(zip(roles, said, strict=True))
    sql = DATABASES["postgresql"].offline_dialect()
    columns = tables_for(MessageTable(), DATABASES["postgresql"]).message.c
    assert told.keys() == ROLES.keys()
    for column in columns:
        kind = column.type.compile(dialect=sql).lower().split(" collate ")[0]
        assert told[column.name].startswith(kind.replace("timestamp with time zone", "timestamptz"))


@pytest.mark.parametrize("driver", [mysqldb, pymysql])
def test_a_statement_is_printed_with_its_values_whatever_the_driver_formats(driver: Any) -> None:
    table = sa.table("t", sa.column("a%b", sa.String))
    shown = sa.update(table).values({"a%b": "5 %"}).where(table.c["a%b"] == "%s")
    text = shown.compile(dialect=printing(driver.dialect()), compile_kwargs={"literal_binds": True})
    assert str(text) == "UPDATE t SET `a%b`='5 %' WHERE t.`a%b` = '%s'"
