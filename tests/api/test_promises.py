"""What the API says of a write is what has happened, and what may still happen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from msgworker import App
from msgworker.errors import KeyUsed
from msgworker.web.api import operations
from tests.api.conftest import client_of, dashboard_of
from tests.support.ops import FAILED, NEW, put
from tests.support.rows import Table
from tests.support.waiting import until

LIMIT = 1.0


@contextmanager
def locked(app: App, database: Any) -> Iterator[None]:
    """Another program has locked the table of messages against writes, as a CREATE INDEX does."""
    name = app.tables.message.name
    statement = {
        "sqlite": "BEGIN IMMEDIATE",
        "postgresql": f"LOCK TABLE {name} IN SHARE MODE",
        "mariadb": f"LOCK TABLES {name} READ",
    }.get(database.name, f"LOCK TABLE {name} IN SHARE MODE")
    with database.engine().connect() as conn:
        conn.exec_driver_sql(statement)
        try:
            yield
        finally:
            conn.rollback()
            if database.name == "mariadb":
                conn.exec_driver_sql("UNLOCK TABLES")


@pytest.fixture
def hurried(app: App) -> Iterator[Any]:
    """A dashboard with a short deadline."""
    made = dashboard_of(app, deadline=LIMIT)
    yield made
    made.site.close()


def sends(app: App) -> int:
    """How many operations are recorded."""
    return len(app.ops.audit(kind="send"))


def waits_no_more(served: Any) -> None:
    """All that was begun for requests has ended."""
    site = served.site
    until(lambda: not site.threads.busy and not site.writes.running(), "nothing runs any more")


@pytest.mark.parametrize("key", [None, "INC-1"])
def test_a_write_that_is_answered_503_with_a_promise_is_never_done(
    app: App, database: Any, hurried: Any, table: Table, key: str | None
) -> None:
    client = client_of(hurried)
    headers = {} if key is None else {"idempotency-key": key}
    body = {"topic": "t", "payload": 1}
    with locked(app, database):
        for _ in range(2):
            begun = time.monotonic()
            answer = client.post("/messages", json=body, headers=headers)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
            assert time.monotonic() - begun < LIMIT + 4
    waits_no_more(hurried)
    assert (table.statuses, sends(app)) == ([], 0)
    assert client.post("/messages", json=body, headers=headers).status_code == 200
    again = client.post("/messages", json=body, headers=headers)
    assert again.headers.get("idempotency-replayed") == (None if key is None else "true")
    assert len(table.statuses) == (2 if key is None else 1)


@pytest.mark.quick("sqlite-rerun|postgresql-pause")
@pytest.mark.parametrize(
    "write",
    [
        lambda client, i: client.post(f"/messages/{i}/rerun", json={}),
        lambda client, i: client.post("/topics/t/pause", json={}),
        lambda client, i: client.post("/messages", json={"topic": "t"}),
    ],
    ids=["rerun", "pause", "send"],
)
def test_a_write_that_was_given_up_before_its_commit_commits_nothing(
    app: App, hurried: Any, table: Table, write: Callable[..., Any]
) -> None:
    """Whatever it waits for: here for a second in Python, which no timeout of a server ends."""
    (msg_id,) = put(app, ("o", FAILED))
    before = (table.statuses, len(app.ops.pauses()), len(app.ops.audit()))
    held, go = threading.Event(), threading.Event()

    def late(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT"):
            held.set()
            assert go.wait(30)

    event.listen(app.engine, "after_cursor_execute", late)
    answer = write(client_of(hurried), msg_id)
    assert held.is_set()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
    go.set()
    waits_no_more(hurried)
    event.remove(app.engine, "after_cursor_execute", late)
    assert (table.statuses, len(app.ops.pauses()), len(app.ops.audit())) == before


def test_where_a_commit_gets_no_answer_none_is_told_to_repeat_it_but_with_its_key(
    app: App, hurried: Any, table: Table
) -> None:
    go = threading.Event()

    def late(conn: Any) -> None:
        if threading.current_thread().name.startswith("msgworker-web"):
            assert go.wait(30)

    event.listen(app.engine, "commit", late)
    client, body = client_of(hurried), {"topic": "t"}
    answer = client.post("/messages", json=body, headers={"idempotency-key": "k"})
    assert (answer.status_code, answer.headers.get("retry-after")) == (503, None)
    assert "is not known" in answer.json()["detail"]
    go.set()
    waits_no_more(hurried)
    event.remove(app.engine, "commit", late)
    again = client.post("/messages", json=body, headers={"idempotency-key": "k"})
    assert again.status_code == 200, again.text  # its connection may have been cut before that
    assert table.statuses == [NEW]


def test_what_is_done_of_a_write_that_was_ended_on_its_way_is_not_promised_anew(
    app: App, hurried: Any, database: Any
) -> None:
    """The record of a rerun is committed before its first step, which waits for the table."""
    if database.name == "sqlite":
        pytest.skip("the whole file is locked there, so nothing begins")
    ids = put(app, ("o", FAILED))
    with locked(app, database):
        answer = client_of(hurried).post(f"/messages/{ids[0]}/rerun", json={})
    assert (answer.status_code, answer.headers.get("retry-after")) == (503, None), answer.text
    assert "audit" in answer.json()["detail"]
    waits_no_more(hurried)
    assert str(app.ops.show(ids[0]).status) == "dead"
    (found,) = app.ops.audit()
    assert (found.changed, found.finished_at) == (0, None)


def test_of_requests_with_one_key_at_the_same_time_one_writes(app: App, table: Table) -> None:
    """In several processes: each has a site of its own here."""
    sites = [dashboard_of(app) for _ in range(2)]
    gate = threading.Barrier(6)

    def ask(number: int) -> Any:
        gate.wait(30)
        key = {"idempotency-key": "k"}
        return client_of(sites[number % 2]).post("/messages", json={"topic": "t"}, headers=key)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    for one in sites:
        one.site.close()
    assert [one.status_code for one in answers] == [200] * 6, [one.text for one in answers]
    assert len({one.json()["msg_id"] for one in answers}) == 1
    assert sum("idempotency-replayed" not in one.headers for one in answers) == 1
    assert table.statuses == [NEW]


def test_a_key_is_of_one_write_whoever_records_it(app: App) -> None:
    ids = put(app, ("a", FAILED), ("b", FAILED))
    ops = app.ops.acting(actor="anna", key="k", request="r1")
    assert ops.rerun([ids[0]]) == 1
    for again in (lambda: ops.rerun([ids[1]]), lambda: ops.pause("t"), lambda: ops.pause("u")):
        with pytest.raises(KeyUsed):
            again()
    assert (len(app.ops.audit()), app.ops.pauses()) == (1, [])
    found = app.ops.recorded("k")
    assert found is not None
    assert (found.kind, found.request, app.ops.recorded("r1")) == ("rerun", "r1", None)
    assert app.ops.acting(key="k2").rerun([ids[1]]) == 1


def test_a_database_that_is_away_is_503_for_every_write(app: App, hurried: Any) -> None:
    ids = put(app, ("a", FAILED))
    client = client_of(hurried)
    assert client.get("/messages").status_code == 200

    def refused(conn: Any) -> None:
        conn.close()
        raise sa.exc.OperationalError("connect", {}, ConnectionRefusedError("no server"))

    event.listen(app.engine, "engine_connect", refused)
    try:
        selection = {"filter": {"topic": "t"}, "reason": "r"}
        for path, body in (
            ("/rerun", selection),
            ("/skip", selection),
            ("/cancel", selection),
            ("/instances/a/release", {}),
            (f"/messages/{ids[0]}/rerun", {}),
            ("/messages", {"topic": "t"}),
            ("/topics/t/pause", {}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 503, (path, answer.text)
    finally:
        event.remove(app.engine, "engine_connect", refused)
    assert app.ops.audit() == []


def test_a_selection_that_is_not_counted_in_time_is_told_to_be_as_it_was(
    app: App, hurried: Any, monkeypatch: Any
) -> None:
    put(app, *((f"o{n}", FAILED) for n in range(3)))
    monkeypatch.setattr(operations, "BEGIN_SECONDS", 0.2)
    monkeypatch.setattr(operations, "WAIT_SECONDS", 0.0)
    go = threading.Event()

    def late(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT"):
            assert go.wait(30)

    event.listen(app.engine, "after_cursor_execute", late)
    answer = client_of(hurried).post("/rerun", json={"filter": {"status": "dead"}})
    assert (answer.status_code, "nothing was done" in answer.json()["detail"]) == (503, True)
    go.set()
    waits_no_more(hurried)
    event.remove(app.engine, "after_cursor_execute", late)
    assert app.ops.audit() == []
