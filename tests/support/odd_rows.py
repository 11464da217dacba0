"""Rows of any values beside good ones."""

from __future__ import annotations

from typing import Any

from msgworker import App, Message
from msgworker.app import registry_of


def put(app: App, **columns: str) -> None:
    """Insert a row of SQL expressions, as a producer in another language does."""
    columns = {"topic": "'t'", "object_id": "'bad'"} | columns
    names = ", ".join(columns)
    with app.engine.begin() as conn:
        if app.engine.dialect.name == "mysql":
            conn.exec_driver_sql("SET SESSION sql_mode = ''")
        values = ", ".join(columns.values()).replace("%", "%%")
        conn.exec_driver_sql(f"INSERT INTO msgworker_message ({names}) VALUES ({values})")
    app.engine.dispose()


def drain(app: App, taken: list[Message[Any]], **options: Any) -> Any:
    if not registry_of(app).handlers:
        app.add_handler("t", taken.append)
    return app.drain(**{"linger": 0.2, "time_limit": 40, "threads": 2} | options)


def assert_all_others_ran(taken: list[Message[Any]], good: list[int]) -> None:
    ran = [m.msg_id for m in taken if m.msg_id in good]
    assert sorted(ran) == sorted(good)
    for object_id in {m.object_id for m in taken} - {None}:
        own = [m.msg_id for m in taken if m.object_id == object_id]
        assert own == sorted(own)


def drain_all(app: App, taken: list[Message[Any]], **options: Any) -> Any:
    app.add_handler(None, taken.append)
    return drain(app, taken, **options)
