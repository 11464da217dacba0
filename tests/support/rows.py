"""Messages sent and rows read from outside."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from msgworker import App


class Table:
    """The rows of an App's message table, read from outside."""

    def __init__(self, app: App) -> None:
        self.app = app

    def rows(self, *roles: str) -> list[Any]:
        """The columns of these roles, by msg_id."""
        t = self.app.tables
        columns = [t.message.c[t.names[role]] for role in roles]
        query = sa.select(*columns).order_by(t.message.c[t.names["msg_id"]])
        with self.app.engine.connect() as conn:
            return [tuple(row) for row in conn.execute(query)]

    def one(self, *roles: str) -> Any:
        """The same of the only row; a single role gives its bare value."""
        (row,) = self.rows(*roles)
        return row[0] if len(roles) == 1 else row

    def column(self, role: str) -> list[Any]:
        return [row[0] for row in self.rows(role)]

    @property
    def statuses(self) -> list[Any]:
        return self.column("status")

    def edit(self, where: sa.ColumnElement[bool] | None = None, **roles: Any) -> int:
        """An UPDATE by hand; returns the rows matched."""
        t = self.app.tables
        change = sa.update(t.message).values({t.names[r]: v for r, v in roles.items()})
        if where is not None:
            change = change.where(where)
        with self.app.engine.begin() as conn:
            return int(conn.execute(change).rowcount)

    def where(self, **roles: Any) -> sa.ColumnElement[bool]:
        t = self.app.tables
        return sa.and_(*(t.message.c[t.names[r]] == v for r, v in roles.items()))


def send(
    app: App, *objects: Any, topic: str = "t", payload: Any = None, **options: Any
) -> list[Any]:
    """Send one message per object, in one transaction; returns their msg_ids."""
    c = app.tables.cols()
    with app.engine.begin() as conn:
        if len(objects) > 20 and not options:  # one by one takes long
            last = conn.scalar(sa.select(sa.func.max(c.msg_id))) or 0
            app.send_many(conn, topic, [(payload, object_id) for object_id in objects])
            ids = list(conn.scalars(sa.select(c.msg_id).where(c.msg_id > last).order_by(c.msg_id)))
            assert len(ids) == len(objects)
            return ids
        return [
            app.send(conn, topic, payload, object_id=object_id, **options) for object_id in objects
        ]


def edit(app: App, msg_id: int, **roles: Any) -> None:
    table = Table(app)
    assert table.edit(table.where(msg_id=msg_id), **roles) == 1


def leave_rows_at_1(app: App, objects: int = 30, behind: int = 5) -> list[int]:
    """Rows that some consumer flagged, long gone; others wait behind them."""
    names = [f"o{i}" for i in range(objects)]
    held = send(app, *names)
    send(app, *(name for name in names for _ in range(behind)))
    for msg_id in held:
        edit(app, msg_id, status=1)
    return held
