"""Tables of theirs: other names, and the four columns and nothing else."""

from __future__ import annotations

from typing import Any

from msgworker import MessageTable

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
