"""Tables of theirs: other names, and the four columns and nothing else."""

from __future__ import annotations

from typing import Any

from msgworker import App, MessageTable
from tests.support.doctor import run

OTHER_NAMES = {
    "msg_id": "nr",
    "object_id": "customer",
    "status": "state",
    "error_try_times": "tries",
    "topic": "kind",
    "payload": "body",
    "available_at": "not_before",
    "claimed_by": "owner",
    "last_error": "why",
}
IDENTITY = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGSERIAL PRIMARY KEY",
    "mariadb": "BIGINT AUTO_INCREMENT PRIMARY KEY",
}
SEED = MessageTable(
    "tb_cus_msg",
    msg_id="msgID",
    object_id="objectID",
    status="status",
    error_try_times="errorTryTimes",
    payload=None,
)


def seed_table(database: Any, objects: str = "VARCHAR(50)", quote: str = "") -> None:
    """The seed's own table: four columns and nothing else."""
    q = quote.join
    columns = ", ".join(
        [
            f"{q(['', 'msgID', ''])} {IDENTITY[database.name]}",
            f"{q(['', 'objectID', ''])} {objects}",
            "status INTEGER DEFAULT 0 NOT NULL",
            f"{q(['', 'errorTryTimes', ''])} INTEGER DEFAULT 0 NOT NULL",
        ]
    )
    with database.engine().begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE tb_cus_msg ({columns})")


def topicless(app: App) -> App:
    """The table of this App, in a file of SQLite, with the four columns alone."""
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE {app.table.name} (msg_id INTEGER PRIMARY KEY, object_id VARCHAR(190), "
            "status SMALLINT DEFAULT 0, error_try_times SMALLINT DEFAULT 0)"
        )
    app.create_schema()
    return app


def foreign_table(database: Any, **changed: str) -> None:
    """The seed's table, with other types for some columns."""
    columns = {
        "msgID": IDENTITY[database.name],
        "objectID": "VARCHAR(50)",
        "status": "INTEGER DEFAULT 0",
        "errorTryTimes": "INTEGER DEFAULT 0",
    } | changed
    text = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    with database.engine().begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE tb_cus_msg ({text})")


def insert(database: Any, columns: str, *values: str) -> None:
    with database.engine().begin() as conn:
        for value in values:
            text = f"INSERT INTO tb_cus_msg ({columns}) VALUES ({value})"
            conn.exec_driver_sql(text.replace("%", "%%"))


COLUMNS = {
    "msg_id": {"sqlite": "INTEGER", "postgresql": "SERIAL", "mariadb": "BIGINT AUTO_INCREMENT"},
    "object_id": "VARCHAR(40)",
    "status": "SMALLINT DEFAULT 0 NOT NULL",
    "error_try_times": "SMALLINT DEFAULT 0 NOT NULL",
    "available_at": {"postgresql": "TIMESTAMPTZ", "mariadb": "DATETIME(6)", "sqlite": "TEXT"},
    "claimed_by": "VARCHAR(64)",
    "claimed_at": {"postgresql": "TIMESTAMPTZ", "mariadb": "DATETIME(6)", "sqlite": "TEXT"},
    "finished_at": {"postgresql": "TIMESTAMPTZ", "mariadb": "DATETIME(6)", "sqlite": "TEXT"},
    "last_error": "VARCHAR(2000)",
}
TABLE = MessageTable("tb")


def make_table(database: Any, rest: str = "", whole: str = "", **changed: str) -> None:
    """A foreign table, full of columns; `changed`: their types; whole: what is said behind them."""
    columns = []
    for role, kinds in (COLUMNS | changed).items():
        kind = kinds if isinstance(kinds, str) else kinds[database.name]
        key = " PRIMARY KEY" if role == "msg_id" else ""
        columns.append(f"{role} {kind}{key}")
    run(database, f"CREATE TABLE tb ({', '.join(columns)}{rest}) {whole}")
