"""Rows that are no messages: a table that holds those of others, too."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, ConfigError, Context, Message, MessageTable, RetryLater
from msgworker.doctor import Severity
from msgworker.errors import SchemaError
from msgworker.message import State
from msgworker.queries import counts as overview
from msgworker.store import recover
from tests.support.apps import created
from tests.support.leases import beat_now
from tests.support.rows import Table, send
from tests.support.waiting import launched, until

NAMED = {
    name: name
    for name in ("priority", "unique_key", "unique_kept", "headers", "job_id", "scheduled_for")
}
SPEC = MessageTable(
    "legacy", where={"tenant": 7, "deleted_at": None, "kind": ["a", "b'c"]}, **NAMED
)
OURS = {"tenant": 7, "deleted_at": None, "kind": "b'c"}
OTHERS = ({"tenant": 8}, {"tenant": None}, {"deleted_at": "2026"}, {"kind": "c"}, {"kind": None})
NOW = {"linger": 0, "threads": 1}


@pytest.fixture
def app(make_app) -> App:
    return created(make_app(table=SPEC, poll_seconds=0.02))


def insert(app: App, **values: Any) -> None:
    """A row by hand, by the names of columns."""
    row = {"topic": "t", "object_id": "o", "payload": "{}", "status": 0, "error_try_times": 0}
    with app.engine.begin() as conn:
        names = sa.table("legacy", *(sa.column(name) for name in {**row, **OURS, **values}))
        conn.execute(sa.insert(names).values({**row, **OURS, **values}))


def fill_with_others(app: App) -> None:
    """Rows of others in each state, of the same object and topic, older than ours."""
    old = datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    columns = {c.name for c in app.tables.message.c}
    states: list[dict[str, Any]] = [
        *({"status": status, "claimed_by": None} for status in (0, 1, 2, -1)),
        {"status": 1, "claimed_by": "gone"},
        {"status": -1, "error_try_times": 3, "last_error": "ValueError: theirs"},
        {"status": 0, "priority": 9},
        {"status": 0, "unique_key": "k"},
        {"status": 0, "topic": "theirs", "object_id": None},
        {"status": 55},
    ]
    assert {"tenant", "deleted_at", "kind"} <= columns
    for other in OTHERS:
        for state in states:
            insert(app, **{**state, "finished_at": old, "created_at": old, **other})


def everything(app: App) -> list[Any]:
    """All rows of others, whole."""
    with app.engine.connect() as conn:
        rows = conn.execute(sa.text("SELECT * FROM legacy ORDER BY msg_id")).mappings().all()
    ours = {"tenant": 7, "deleted_at": None}
    return [
        dict(row)
        for row in rows
        if any(row[name] != value for name, value in ours.items())
        or row["kind"] not in ("a", "b'c")
    ]


def of_state(app: App, state: State) -> int:
    return sum(one.count for one in app.ops.counts() if one.status is state)


def ids_of(rows: list[Any]) -> list[int]:
    return [row["msg_id"] for row in rows]


def test_rows_of_others_are_as_if_they_were_not_there(app):
    fill_with_others(app)
    before, ran = everything(app), list[int]()
    assert len(before) == 50

    @app.handler("t", wait=wait_none())
    def handle(msg: Message[Any], ctx: Context) -> None:
        ran.append(msg.msg_id)
        if msg.payload == "fails" and ctx.attempt == 1:
            raise ValueError("once")
        if msg.payload == "dies":
            raise ValueError("ours")
        if msg.payload == "later" and ctx.attempt == 1 and ran.count(msg.msg_id) == 1:
            raise RetryLater(after=0)

    insert(app, object_id="o", payload='"by hand"')
    with app.engine.begin() as conn:
        for payload in ("fails", "later", "dies", None):
            app.send(conn, "t", payload, object_id="o")
        app.send_many(conn, "t", [("many", f"m{n}") for n in range(50)])
        app.send(conn, "t", object_id="p", priority=3, delay=0)
        assert app.send(conn, "t", object_id="q", unique_key="k") not in ids_of(before)
    own = [i for i in Table(app).column("msg_id") if i not in ids_of(before)]
    assert of_state(app, State.NEW) == len(own)
    with app.engine.connect() as conn:
        seen = overview.overview(conn, app.tables)
    assert {one.topic for one in seen.topics} == {"t"}
    report = app.drain(linger=5, threads=2)
    assert (report.done, report.failed, report.left) == (len(own) - 1, 1, 0)
    assert set(ran) == set(own)
    firsts = [i for i in dict.fromkeys(ran) if i in own[:5]]
    assert firsts == own[:5]
    assert everything(app) == before


def test_operators_find_and_change_none_of_them(app):
    fill_with_others(app)
    before = everything(app)
    theirs = [row["msg_id"] for row in before]
    assert {row["status"] for row in before} >= {0, 1, -1, 2}
    ops = app.ops
    for one in theirs:
        assert ops.show(one) is None
        assert ops.explain(one) is None
    for word in (*State, None):
        assert list(ops.find(status=word, limit=100)) == []
        for newest in (True, False):
            assert list(ops.messages(status=word, newest=newest)) == []
    assert list(ops.find(object_id="o")) == []
    assert ops.counts() == []
    assert list(ops.failures()) == []
    assert list(ops.lanes()) == []
    for act in (
        lambda ids: ops.rerun(ids, force=True),
        lambda ids: ops.discard(ids, reason="no"),
        lambda ids: ops.cancel(ids, reason="no"),
        lambda ids: ops.acknowledge(ids, reason="no"),
        lambda ids: sum(ops.edit(one, payload="mine", reason="no").changed for one in ids),
        lambda ids: ops.rerun(topic="t", status="failed"),
        lambda ids: ops.discard(topic="t", reason="no"),
        lambda ids: ops.cancel(topic="t", reason="no"),
    ):
        assert act(theirs) == 0
    for dry in (True, False):
        assert ops.purge(older_than=timedelta(days=1), dead=True, dry_run=dry) == 0
    assert everything(app) == before


def test_recovery_leaves_what_others_hold(app):
    fill_with_others(app)
    insert(app, status=1, claimed_by="gone", object_id="mine")
    before = everything(app)
    app.add_handler("t", lambda msg: None)
    with launched(app.worker(threads=1)):
        until(lambda: of_state(app, State.DONE) == 1, "ours is recovered and done")
    assert everything(app) == before


def test_a_message_that_leaves_while_it_runs_is_as_if_it_were_deleted(app):
    begun, gate = threading.Event(), threading.Event()

    def handle(msg: Message[Any]) -> None:
        ran.append(msg.payload)
        if msg.payload == "leaves" and len(ran) == 1:
            begun.set()
            assert gate.wait(30)

    ran: list[Any] = []
    app.add_handler("t", handle)
    (left,) = send(app, "o", payload="leaves")
    (next_one,) = send(app, "o", payload="next")
    with launched(app.worker(threads=2)):
        assert begun.wait(30)
        with app.engine.begin() as conn:
            conn.execute(sa.text(f"UPDATE legacy SET deleted_at = 'x' WHERE msg_id = {left}"))
        gate.set()
        until(lambda: app.ops.show(next_one).status is State.DONE, "the next one runs")
        send(app, "z", payload="other")
        until(lambda: of_state(app, State.DONE) == 2, "the instance works on")
    assert everything(app)[0]["status"] == 1
    with app.engine.begin() as conn:
        conn.execute(sa.text(f"UPDATE legacy SET deleted_at = NULL WHERE msg_id = {left}"))
    with launched(app.worker(threads=1)):
        until(lambda: app.ops.show(left).status is State.DONE, "it is back, and recovered")
    assert ran.count("leaves") == 2


def noting(ran: list[Any]) -> Any:
    return lambda msg: ran.append(msg.payload)


def test_two_tenants_in_one_table(make_app):
    apps = [make_app(table=SPEC.replace(where={"tenant": n}), poll_seconds=0.02) for n in (1, 2)]
    apps[0].create_schema()
    apps[1].add_handler("none", lambda msg: None)
    with pytest.raises(SchemaError, match="init-db"):
        apps[1].worker(threads=1).start()
    apps[1].create_schema()
    ran: dict[int, list[Any]] = {0: [], 1: []}
    for n, one in enumerate(apps):
        one.add_handler("t", noting(ran[n]))
        with one.engine.begin() as conn:
            one.send_many(conn, "t", [(n, f"o{i % 3}") for i in range(30)])
            one.send(conn, "t", n, object_id="u", unique_key="same")
    with launched(apps[0].worker(threads=2)), launched(apps[1].worker(threads=2)):
        until(lambda: all(of_state(one, State.DONE) == 31 for one in apps), "all are done")
    assert ran == {0: [0] * 31, 1: [1] * 31}


def test_what_belongs_to_one_tenant_is_apart(make_app):
    apps = [make_app(table=SPEC.replace(where={"tenant": n}), poll_seconds=0.02) for n in (1, 2)]
    for one in apps:
        one.create_schema()
        one.add_handler("t", lambda msg: None)
        one.add_handler("over", lambda msg: None)
    first, second = apps
    first.ops.pause("t", actor="a")
    with first.engine.begin() as conn:
        job = first.job("j", conn=conn, on_complete="over")
        first.send(conn, "t", job=job)
        job.seal()
    with launched(first.worker(threads=1)) as a, launched(second.worker(threads=1)) as b:
        send(second, "o")
        until(lambda: of_state(second, State.DONE) == 1, "that of the second is done")
        assert [one.other_table for one in first.ops.instances()].count(None) == 1
        assert second.ops.jobs() == []
        b.stop()
        first.ops.resume("t", actor="a")
        until(lambda: beat_now(a) or of_state(first, State.DONE) == 2, "the job has completed")
    assert [one.kind for one in second.ops.audit()] == []


def test_a_purge_of_one_tenant_keeps_what_others_have_recorded(make_app):
    first, second = (make_app(table=SPEC.replace(where={"tenant": n})) for n in (1, 2))
    ran: list[int] = []

    @second.handler("t", max_tries=1)
    def handle(msg: Message[Any], ctx: Context) -> None:
        ctx.fan_out(ran.append, [1, 2], threads=1)
        raise ValueError("ours")

    for one in (first, second):
        one.create_schema()
    (left,) = send(second, "o")
    assert second.drain(**NOW).failed == 1
    assert first.ops.purge("30d") == 0
    assert [one.kind for one in second.ops.show(left).tries] == ["failed"]
    assert second.ops.rerun(left) == 1
    assert second.drain(**NOW).failed == 1
    assert ran == [1, 2]


def test_fan_outs_jobs_and_chains_stay_within(app):
    @app.handler("t")
    def handle(msg: Message[Any], ctx: Context) -> None:
        ctx.fan_out(lambda n: ctx.send("u", n, job=True), [1, 2]).raise_for_failed()
        ctx.send("u", 3, job=True)

    app.add_handler("u", lambda msg: None)
    app.add_handler("over", lambda msg: None)
    fill_with_others(app)
    before = everything(app)
    with app.engine.begin() as conn:
        job = app.job("j", conn=conn, on_complete="over")
        app.send(conn, "t", job=job)
        job.seal()
    insert(app, tenant=9, job_id=job.job_id)  # of nobody here: the job does not wait for it
    with launched(app.worker(threads=2)):
        until(lambda: of_state(app, State.DONE) == 5, "the job has completed")
    assert app.ops.job(job.job_id).done.count == 4
    assert everything(app)[:-1] == before


@pytest.mark.long
def test_what_is_recovered_is_named_within(app):
    insert(app, status=1, claimed_by="x", tenant=8)
    insert(app, status=1, claimed_by="y")
    with app.engine.begin() as conn:
        assert set(recover.owners(conn, app.tables)) == {"y"}
        assert recover.flagged_by(conn, app.tables, "x") == []


def test_a_bad_where_is_refused(subtests):
    for where, why in (
        (5, "where is a mapping"),
        ({"a": 1.5}, "takes texts, whole numbers"),
        ({"a": float("nan")}, "takes texts, whole numbers"),
        ({"a": datetime.now(UTC)}, "takes texts, whole numbers"),
        ({"a": {1}}, "takes texts, whole numbers"),
        ({"a": 2**63}, "64 bits"),
        ({"a": []}, "needs 1 to 100 values"),
        ({"a": [1, "1"]}, "of one type"),
        ({"a": [1, True]}, "of one type"),
        ({"a": [1, 1]}, "different ones"),
        ({"a": ""}, "printable characters"),
        ({"a": "x\x00"}, "printable characters"),
        ({"a": "x\\' OR 1=1"}, "printable characters"),
        ({"a": "50%"}, "printable characters"),
        ({"a": "\ud800"}, "printable characters"),
        ({"a": "x" * 191}, "printable characters"),
        ({"": 1}, "a name is needed"),
        ({3: 1}, "a name is needed"),
        ({"Status": 0}, "is msgworker's status"),
        ({"topic": "t"}, r"is msgworker's topic.*MessageTable\(topic=None\)"),
        ({"mw_x": 1}, "are msgworker's own"),
        ({"a": 1, "A": 2}, "is named twice"),
        (dict.fromkeys("abcdefghi"), "at most 8 columns"),
    ):
        with subtests.test(where=where, why=why), pytest.raises(ConfigError, match=why):
            MessageTable("legacy", where=where)


def test_a_where_is_kept_by_a_copy_and_told_apart():
    spec = MessageTable("legacy", where={"b": [1, None], "a": "x"})
    assert spec.where == (("b", (1, None)), ("a", ("x",)))
    assert spec.replace(max_tries=5).where == spec.where
    names = {
        MessageTable("legacy", where=where).index_name("guard")
        for where in ({}, {"a": 1}, {"a": True}, {"a": "1"}, {"a": [1, None]}, {"b": 1})
    }
    assert len(names) == 6
    assert spec.index_name("guard") == MessageTable(
        "legacy", where={"A": "x", "b": [1, None]}
    ).index_name("guard")


def test_a_where_that_the_table_does_not_fit_is_refused(app, make_app, subtests):
    for where, why in (
        ({"nothing": 1}, "has no column nothing, which where= names"),
        ({"payload_size": 1}, "has no column payload_size"),
        ({"tenant": "7"}, "takes whole numbers in where=, not '7'"),
        ({"kind": 7}, "takes texts in where=, not 7"),
    ):
        with subtests.test(where=where, why=why):
            other = make_app(table=SPEC.replace(where=where))
            for act in (other.create_schema, lambda other=other: other.tables):
                with pytest.raises(SchemaError, match=why):
                    act()
            assert re.search(why, " ".join(one.text for one in other.ops.doctor()))


def test_injected_text_stays_a_text(make_app):
    text = "x' OR '1'='1'; DROP TABLE legacy; --"
    app = created(make_app(table=MessageTable("legacy", where={"kind": text})))
    app.add_handler("t", lambda msg: None)
    send(app, "o")
    assert app.drain(**NOW).done == 1
    with app.engine.connect() as conn:
        assert conn.scalar(sa.text("SELECT kind FROM legacy")) == text


@pytest.mark.parametrize("value", [True, False, [None, False]], ids=str)
def test_truth_values(make_app, value):
    app = created(make_app(table=MessageTable("legacy", where={"live": value})))
    assert app.create_schema() == []
    app.add_handler("t", lambda msg: None)
    send(app, "o")
    row = {"topic": "t", "object_id": "o", "status": 0, "error_try_times": 0}
    names = sa.table("legacy", *(sa.column(n) for n in row), sa.column("live", sa.Boolean()))
    other = value is False or isinstance(value, list)
    with app.engine.begin() as conn:
        conn.execute(sa.insert(names).values(**row, live=other))
    assert app.drain(**NOW).done == 1
    assert sorted(Table(app).statuses) == [0, 2]


def drop_guard(app: App) -> None:
    t = app.tables
    with app.engine.begin() as conn:
        drop = t.database.drop_index(conn.dialect, t.guard_name, t.message)
        conn.exec_driver_sql(drop)


def index_names(app: App) -> set[str]:
    found = sa.inspect(app.engine).get_indexes(app.table.name)
    return {str(one["name"]) for one in found}


@pytest.mark.parametrize("name", ["legacy", "a_table_of_others_with_a_long_name"])
def test_without_its_where_a_table_is_left_alone(make_app, name):
    """What would be made, found and advised is of rows that are no messages, too."""
    app = created(make_app(table=SPEC.replace(name=name)))
    guard = app.tables.guard_name
    plain = make_app(table=MessageTable(name, **NAMED))
    plain.add_handler("t", lambda msg: None)
    before = index_names(app)
    says = f"its index {guard} is the guard of an App with a where="
    acts: list[Any] = [plain.create_schema, plain.upgrade_schema, plain.ops.counts]
    acts += [lambda: plain.upgrade_schema(dry_run=True), plain.worker(threads=1).start]
    acts.append(lambda: send(plain, "o"))
    for act in acts:
        with pytest.raises(SchemaError, match=says):
            act()
    (found,) = plain.ops.doctor()
    assert (found.severity, found.fix) == (Severity.NEEDED, ())
    assert says in found.text
    if app.tables.database.partial_indexes:
        assert "tenant = 7" in found.text
    assert index_names(app) == before
    other = make_app(table=SPEC.replace(name=name, where={"tenant": 8}))
    (missing,) = [one for one in other.ops.doctor() if "_guard is missing" in one.text]
    assert f"that of another where= is there: {guard}" in missing.text
    drop_guard(app)
    made = plain.create_schema()
    assert plain.tables.guard_name in made


def test_queries_that_a_text_proposes_show_messages_alone(app, caplog):
    """Of two running rows, and of an unknown status."""
    t = app.tables
    fill_with_others(app)
    with app.engine.begin() as conn:
        for index in t.message.indexes:
            conn.exec_driver_sql(t.database.drop_index(conn.dialect, str(index.name), t.message))

    def shown(text: str) -> list[Any]:
        query = "SELECT" + text.split(": SELECT")[1].split(";")[0]
        with app.engine.connect() as conn:
            return [tuple(row) for row in conn.execute(sa.text(query))]

    for status in (1, 1, 77):
        insert(app, object_id="ours", status=status)
    with pytest.raises(SchemaError, match="has two rows at status 1") as told:
        app.create_schema()
    assert shown(str(told.value)) == [("ours",)]
    with app.engine.begin() as conn:
        conn.execute(
            sa.text("UPDATE legacy SET status = 2 WHERE object_id = 'ours' AND status = 1")
        )
    app.create_schema()
    (warned,) = [one.getMessage() for one in caplog.records if "See them" in one.getMessage()]
    assert [status for _, status in shown(warned)] == [77]


def test_doctor_advises_to_drop_a_guard_over_all_rows(make_app):
    plain = make_app(table=MessageTable("legacy", **NAMED))
    app = created(make_app(table=SPEC))
    drop_guard(app)
    plain.create_schema()
    app.create_schema()
    (found,) = [one for one in app.ops.doctor() if "forbids two running rows" in one.text]
    assert found.severity is Severity.ADVISED
    with app.engine.begin() as conn:
        for statement in found.fix:
            conn.exec_driver_sql(statement)
    assert not [one for one in app.ops.doctor() if "forbids two" in one.text]


def test_doctor_looks_at_messages_alone(app):
    fill_with_others(app)
    insert(app, status=1, object_id="one")
    assert [one.check for one in app.ops.doctor() if one.severity is Severity.NEEDED] == []
    insert(app, status=77)
    (found,) = [one for one in app.ops.doctor() if one.severity is Severity.NEEDED]
    assert "1 row has an unknown status (77)" in found.text
    assert all("tenant = 7" in text for text in found.fix)


@pytest.mark.long
def test_rows_of_others_are_neither_edited_nor_acknowledged(app):
    fill_with_others(app)
    insert(app, status=-1, error_try_times=3, last_error="ValueError: ours")
    before = everything(app)
    with app.engine.connect() as conn:
        ids = list(conn.scalars(sa.text("SELECT msg_id FROM legacy ORDER BY msg_id")))
    done = [app.ops.edit(i, topic="u", reason="r").changed for i in ids]
    assert done == [0] * (len(ids) - 1) + [1]
    assert app.ops.overview().unacknowledged.count == 1
    assert app.ops.acknowledge(ids, reason="r") == 1
    assert app.ops.overview().unacknowledged.count == 0
    assert everything(app) == before
