"""What proof/oracle_live.sh asks a real Oracle for besides the suite: what it is, the plans of our
statements, and how fast a table is worked off.

    python -m proof.oracle.live facts | plans | bench

The login is that of MSGWORKER_TEST_ORACLE_URL; its schema belongs to the tests and is emptied
(proof/oracle/schema.py).
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from bench.counts import SHAPES
from msgworker import App
from proof.oracle import counting
from proof.oracle.schema import emptied
from proof.oracle.text import bind_names
from tests.oracle_lint import parts_of_block

VARIABLE = "MSGWORKER_TEST_ORACLE_URL"
DONE_BEFORE = 100_000  # done rows beside the few open ones: what a plan must not read
OPEN = 2_000
_FACTS = (
    "SELECT banner FROM v$version",
    "SELECT name || ' = ' || value FROM v$parameter WHERE name IN ('compatible', 'cursor_sharing',"
    " 'optimizer_mode', 'cluster_database',"
    " 'commit_logging', 'commit_wait', 'session_cached_cursors')",
    "SELECT parameter || ' = ' || value FROM nls_database_parameters"
    " WHERE parameter IN ('NLS_CHARACTERSET', 'NLS_LENGTH_SEMANTICS')",
)
_HOT = ("SELECT", "UPDATE", "DELETE")


def facts(url: str) -> None:
    """The server, as far as this login may ask, and what is on this side."""
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        raw: Any = conn.connection.dbapi_connection
        print("server", raw.version, "thin" if getattr(raw, "thin", False) else "thick")
        for query in _FACTS:
            try:
                for line in conn.exec_driver_sql(query).scalars():
                    print(line)
            except sa.exc.DBAPIError as error:
                print(f"not for this login: {str(error.orig).splitlines()[0]}: {query[:60]}")
    engine.dispose()
    for name in ("SQLAlchemy", "oracledb"):
        print(name, version(name))
    print("Python", platform.python_version(), platform.platform())


def plans(url: str) -> None:
    """The plan of every statement of a drain, by EXPLAIN PLAN and DBMS_XPLAN, with statistics as
    docs/project/oracle.md advises them."""
    emptied(url)
    app = App(url)
    app.create_schema()
    _fill(app)
    sent: dict[str, Any] = {}

    def note(conn: Any, cursor: Any, text: str, parameters: Any, *_: Any) -> None:
        one = parameters[0] if isinstance(parameters, list) else parameters
        for _, statement in parts_of_block(text) or [("", text)]:
            asked = statement.lstrip().upper().startswith(_HOT)
            if asked and "RETURNING" not in statement.upper() and "msgworker_" in statement:
                names = bind_names(statement)
                sent.setdefault(
                    statement.strip(), {k: one[k] for k in one if k.strip('"').upper() in names}
                )

    event.listen(app.engine, "before_cursor_execute", note)
    app.add_handler("bench", lambda msg: None)
    app.drain(linger=0)
    event.remove(app.engine, "before_cursor_execute", note)
    with app.engine.connect() as conn:
        for number, (text, parameters) in enumerate(sent.items()):
            print(f"\n-- {number}\n{text}")
            try:
                for line in _plan(conn, number, text, parameters):
                    print(line)
            except sa.exc.DBAPIError as error:
                print(f"no plan: {str(error.orig).splitlines()[0]}")
    app.engine.dispose()
    print(f"\n{len(sent)} statements")


def _plan(conn: sa.Connection, number: int, text: str, parameters: Any) -> list[str]:
    label = f"mw_{number}"
    conn.exec_driver_sql(f"EXPLAIN PLAN SET STATEMENT_ID = '{label}' FOR {text}", parameters)
    display = f"DBMS_XPLAN.DISPLAY(NULL, '{label}', 'BASIC +ROWS +COST +PREDICATE')"
    shown = f"SELECT plan_table_output FROM TABLE({display})"
    return [str(line) for line in conn.exec_driver_sql(shown).scalars()]


def _fill(app: App) -> None:
    """Many that are done, some that are open, and statistics."""
    with app.engine.begin() as conn:
        for part in range(0, DONE_BEFORE, 5_000):
            made = [({"i": i}, f"o{i % 1000}") for i in range(part, part + 5_000)]
            app.send_many(conn, "bench", made)
        conn.execute(sa.text(f"UPDATE {app.table.name} SET status = 2"))
    with app.engine.begin() as conn:
        app.send_many(conn, "bench", [({"i": i}, f"o{i % 1000}") for i in range(OPEN)])
    options = "method_opt => 'FOR ALL COLUMNS SIZE 1 FOR COLUMNS SIZE 254 STATUS'"
    with app.engine.begin() as conn:
        table = app.table.name.upper()
        conn.exec_driver_sql(
            f"BEGIN DBMS_STATS.GATHER_TABLE_STATS(user, '{table}', {options}); END;"
        )


def bench(url: str) -> None:
    """Messages per second of one process, by the shapes of bench/counts.json."""
    for name in SHAPES:
        emptied(url)
        counted = counting.count(url, name)
        number = SHAPES[name].rows.count
        print(f"{name}: {number / counted.seconds:,.0f} messages/s", flush=True)
    emptied(url)


def main() -> int:
    asked = {"facts": facts, "plans": plans, "bench": bench}
    url = os.environ.get(VARIABLE)
    if len(sys.argv) != 2 or sys.argv[1] not in asked or not url:
        print(f"{__doc__}\n{VARIABLE} is {'set' if url else 'not set'}", file=sys.stderr)
        return 2
    asked[sys.argv[1]](url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
