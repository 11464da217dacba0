"""Messages in every state, for tests of ops; operations that are cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from tenacity import wait_none

from msgworker import App
from msgworker.ops import Ops
from msgworker.ops.results import Progress
from msgworker.queries.explain import Reason
from msgworker.store import controls

NEW, RUNNING, DONE, FAILED = 0, 1, 2, -1


def looks(ops: Ops, msg_id: int) -> dict[str, Callable[[], Any]]:
    """Every look of ops; those at one message at this one."""
    of_one = ("show", "explain", "place", "items", "job")
    plain = (
        *("counts", "overview", "probe", "unfinished", "find", "messages", "failures"),
        *("instances", "limits", "history", "timings", "sizes", "doctor", "pauses", "audit"),
        *("schedules", "can_schedule", "locks", "jobs", "paused_jobs"),
    )
    found = {name: getattr(ops, name) for name in plain}
    found["lanes"] = lambda: ops.lanes(by="blocked")
    return found | {name: lambda name=name: getattr(ops, name)(msg_id) for name in of_one}


def put(app: App, *rows: tuple[Any, int], tries: int = 3, **values: Any) -> list[int]:
    """Rows as they stand: (object, status); a failed one has `tries`. Returns their ids."""
    t = app.tables
    ids, plain = [], t.message.insert()
    with app.engine.begin() as conn:
        for object_id, status in rows:
            roles = {
                "object_id": object_id,
                "status": status,
                "topic": "t",
                "error_try_times": tries if status == FAILED else 0,
                "last_error": "ValueError: no" if status == FAILED else None,
                "claimed_by": "another" if status == RUNNING else None,
            } | values
            columns = t.values(**roles)
            computed = {k: v for k, v in columns.items() if isinstance(v, sa.ClauseElement)}
            given = {k: v for k, v in columns.items() if k not in computed}
            # As parameters: a statement with the values in it is built anew for each row.
            insert = t.message.insert().values(computed) if computed else plain
            key = conn.execute(insert, given).inserted_primary_key
            assert key is not None
            ids.append(int(key[0]))
    return ids


def many_dead(app: App, count: int, objects: int = 50, **values: Any) -> None:
    t = app.tables
    rows = [
        t.values(
            object_id=f"o{i % objects}",
            topic="t",
            status=FAILED,
            error_try_times=3,
            last_error=f"ValueError: no {i}",
            **values,
        )
        for i in range(count)
    ]
    with app.engine.begin() as conn:
        conn.execute(sa.insert(t.message), rows)


def audited(app: App) -> list[tuple[int, int]]:
    """(op_id, msg_id) of every audit line."""
    with app.engine.connect() as conn:
        found = conn.execute(
            sa.text("SELECT op_id, msg_id FROM msgworker_audit ORDER BY op_id, msg_id")
        )
        return [(int(row[0]), int(row[1])) for row in found]


def requested(app: App) -> list[int]:
    """The messages of recorded requests to cancel."""
    with app.engine.connect() as conn:
        return [one.request.msg_id for one in controls.requests(conn, app.tables)]


class Cut(Exception):
    """Stands for a process that ends here."""


def cut_after(steps: int) -> Any:
    seen: list[Progress] = []

    def tell(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == steps:
            raise Cut

    return tell


def failing(app: App, text: str = "no account {n} of 'B{n}'", topic: str = "t") -> None:
    """A handler that always fails."""

    def handler(msg: Any) -> None:
        raise ValueError(text.format(n=msg.msg_id))

    app.add_handler(topic, handler, wait=wait_none())


def shown(app: App, msg_id: int) -> list[tuple[int, str, str | None]]:
    info = app.ops.show(msg_id)
    assert info is not None
    return [(one.number, one.kind, one.error) for one in info.tries]


def why(app: App, msg_id: int) -> Reason:
    found = app.ops.explain(msg_id)
    assert found is not None
    assert found.text
    return found.reason
