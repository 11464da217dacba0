"""The schemas of earlier versions, as `msgworker ddl` printed them, with rows in all states.

versions/NN/DATABASE.sql is version NN; COMMITS names where it is from, for code of that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from msgworker import App
from msgworker.db.database import of

FOLDER = Path(__file__).parent / "versions"
COMMITS = {
    1: "4cb27c7f0b697dc6c69eaed272ae5f4af2e3bf8a",
    2: "b007961",
    3: "0bb8eeb",
    4: "a278837",
    5: "f674892",
    6: "71f2213",
    7: "cce9958",
    8: "837c9d1",
    9: "17dda3e",
    10: "156f8f2",
    11: "2708a7b",
    12: "09c5ee8e",  # 0.2.0
    13: "bb61e3d",
}
STATES = (
    # topic, object, status, tries, error
    ("done", "'a'", 2, 0, "NULL"),
    ("dead", "'b'", -1, 3, "'ValueError: no'"),
    ("failed", "'b'", -1, 1, "'ValueError: not yet'"),
    ("behind", "'b'", 0, 0, "NULL"),
    ("new", "'c'", 0, 0, "NULL"),
    ("alone", "NULL", 0, 0, "NULL"),
    ("running", "'d'", 1, 0, "NULL"),
)
LEFT = 5  # how many of them an instance handles: the running one is given back first


def statements(version: int, name: str) -> Iterator[str]:
    """The statements of a kept schema."""
    text = (FOLDER / f"{version:02}" / f"{name}.sql").read_text()
    for part in text.split(";\n"):
        lines = [line for line in part.splitlines() if not line.startswith("--")]
        if "".join(lines).strip():
            yield "\n".join(lines).strip()


def restore(
    engine: sa.Engine, version: int, *, table: str = "msgworker_message", messages: bool = True
) -> None:
    """Make the tables of a version; messages: with one in each state, and an item."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        name = "mariadb" if getattr(engine.dialect, "is_mariadb", False) else engine.dialect.name
        for statement in statements(version, name):
            made = statement.replace("msgworker_message", table)
            conn.exec_driver_sql(made, execution_options={"no_parameters": True})
        if not messages:
            return
        for topic, key, status, tries, error in STATES:
            conn.exec_driver_sql(
                f"INSERT INTO {table} (topic, object_id, payload, status, error_try_times, "
                f"last_error) VALUES ('{topic}', {key}, '{{\"n\": 1}}', {status}, {tries}, {error})"
            )
        conn.exec_driver_sql(
            "INSERT INTO msgworker_item (table_name, msg_id, item_key, status) "
            f"VALUES ('{table}', 5, 'first', 2)"
        )


def rows(engine: sa.Engine, table: str = "msgworker_message") -> list[tuple[Any, ...]]:
    """The messages as the first version knows them."""
    with engine.connect() as conn:
        found = conn.exec_driver_sql(
            "SELECT msg_id, topic, object_id, payload, status, error_try_times, last_error "
            f"FROM {table} ORDER BY msg_id"
        )
        return [tuple(str(value) for value in row) for row in found]


def shape(engine: sa.Engine) -> dict[str, Any]:
    """All tables with their columns and indexes, by name."""
    found: dict[str, Any] = {}
    with engine.connect() as conn:
        inspector = sa.inspect(conn)
        for name in inspector.get_table_names():
            if not name.lower().startswith("msgworker_"):
                continue
            columns = {
                c["name"].lower(): (str(c["type"]), c["nullable"])
                for c in inspector.get_columns(name)
            }
            found[name.lower()] = (
                columns,
                sorted(of(conn).indexes_of(conn, sa.Table(name, sa.MetaData()))),
            )
    return found


def unfinished(conn: sa.Connection, table: sa.Table) -> set[str]:
    """The indexes of a table whose creation was interrupted."""
    there = of(conn).indexes_of(conn, table)
    return {name for name, one in there.items() if not one.finished}


def shape_made_anew(engine: sa.Engine) -> dict[str, Any]:
    """The shape that a new database has: drops the tables here, and makes them as `init-db`."""
    app = App(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for name in shape(engine):
            conn.exec_driver_sql(f"DROP TABLE {name}")
    app.create_schema()
    return shape(engine)
