"""The writes of ops: rerun, discard, release, purge, pause; conditional, audited, in order."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity import wait_none

from msgworker import App, ConfigError, Message, MessageTable, MsgworkerError, Reject, SchemaError
from msgworker.message import Status
from msgworker.ops import asking, releasing
from msgworker.ops.bulk import Bulk
from msgworker.ops.results import Progress, Why
from msgworker.store import change, ddl_script, lease
from msgworker.store.fingerprint import fingerprint
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, until
from tests.support.watching import Watch

NEW, RUNNING, DONE, FAILED = 0, 1, 2, -1


def put(app: App, *rows: tuple[Any, int], tries: int = 3, **values: Any) -> list[int]:
    """Rows as they stand: (object, status); a failed one has `tries`. Returns their ids."""
    t = app.tables
    ids = []
    with app.engine.begin() as conn:
        for object_id, status in rows:
            roles = {
                "object_id": object_id,
                "status": status,
                "topic": "t",
                "error_try_times": tries if status == FAILED else 0,
                "last_error": "ValueError: no" if status == FAILED else None,
                "claimed_by": "somebody" if status == RUNNING else None,
            } | values
            key = conn.execute(sa.insert(t.message).values(t.values(**roles))).inserted_primary_key
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


# ---------------------------------------------------------------- rerun


def test_rerun_by_filter(app, table):
    put(app, ("a", FAILED), ("b", FAILED), ("c", FAILED), topic="x")
    put(app, ("d", FAILED), topic="y", last_error="KeyError: 'k'")
    put(app, ("e", FAILED), tries=1)
    put(app, ("f", NEW), ("g", DONE))
    assert app.ops.rerun(topic="x", dry_run=True) == 3
    assert app.ops.rerun(error="KeyError") == 1
    assert app.ops.rerun(object_id="b") == 1
    assert app.ops.rerun(since=datetime.now(UTC) + timedelta(hours=1)) == 0
    assert app.ops.rerun(status="failed") == 1
    done = app.ops.rerun()
    assert (done, done.matched, done.skipped) == (2, 2, 0)
    assert table.statuses == [0, 0, 0, 0, 0, 0, 2]


def test_rerun_by_failure_group(app, table):
    put(app, *[(f"o{i}", FAILED) for i in range(3)], last_error="ValueError: no account 17")
    put(app, ("p", FAILED), last_error="ValueError: no account 18")
    put(app, ("q", FAILED), last_error="KeyError: 'k'")
    group = fingerprint("ValueError: no account 99")
    assert app.ops.rerun(fingerprint=group, dry_run=True) == 4
    assert app.ops.rerun(fingerprint=group) == 4
    assert table.statuses == [0, 0, 0, 0, -1]
    assert app.ops.rerun(fingerprint="none") == 0


def test_rerun_says_what_it_left_alone(app):
    ids = put(app, ("a", NEW), ("b", RUNNING), ("c", DONE), ("d", 99), ("e", FAILED))
    done = app.ops.rerun([*ids, 999, ids[4]])
    assert (done, done.matched, done.changed, done.skipped) == (1, 6, 1, 5)
    assert {skip.msg_id: skip.why for skip in done.skips} == {
        ids[0]: Why.NEW,
        ids[1]: Why.RUNNING,
        ids[2]: Why.DONE,
        ids[3]: Why.UNKNOWN,
        999: Why.NOT_THERE,
    }
    assert dict(done.why)[Why.NEW] == 1
    assert "is running" in str(done.skips[1])


def test_dry_run_changes_nothing_and_shows_a_sample(app, table):
    ids = put(app, *[(f"o{i}", FAILED) for i in range(30)])
    before = table.rows("msg_id", "status", "error_try_times", "last_error")
    would = app.ops.rerun(dry_run=True)
    assert (would, would.matched, would.op_id, would.dry_run) == (30, 30, None, True)
    assert [info.msg_id for info in would.sample] == ids[:10]
    assert table.rows("msg_id", "status", "error_try_times", "last_error") == before
    assert app.ops.audit() == []


BAD_IDS: list[Any] = ["1", ["1"], [True], [1.0], [10**30], [-(2**70)], [None], 1.5, b"1", object()]


@pytest.mark.parametrize("ids", BAD_IDS, ids=range(len(BAD_IDS)))
def test_ids_that_are_none(sqlite, ids):
    app = App(sqlite.url)
    app.create_schema()
    for act in (app.ops.rerun, app.ops.discard):
        with pytest.raises(ConfigError):
            act(ids, reason="why")
    assert app.ops.rerun([-5, 0, 2**63 - 1]).skipped == 3
    app.engine.dispose()


def test_writes_need_one_connection(app, make_app, table):
    """Of a user's Engine with a small pool; the steps do not run beside the look."""
    args = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1, "poolclass": sa.QueuePool}
    small = make_app(sa.create_engine(app.engine.url, **args))
    ids = put(app, *[(f"o{i}", FAILED) for i in range(3)])
    assert small.ops.rerun(ids[:2]) == 2
    assert small.ops.rerun(topic="t") == 1
    assert small.ops.discard(ids, reason="r") == 3
    assert small.ops.rerun(ids, with_successors=True) == 3
    put(app, ("p", RUNNING), claimed_by="gone-1")
    assert small.ops.release("gone-1") == 1
    assert small.ops.purge("30d") == 0


def test_a_long_list_of_ids(app, table):
    many_dead(app, 3000)
    done = app.ops.rerun(range(1, 100_000))
    assert (done.changed, done.skipped, len(done.skips)) == (3000, 96_999, 20)
    assert dict(done.why) == {Why.NOT_THERE: 96_999}
    assert set(table.statuses) == {0}


@pytest.mark.parametrize(
    "given",
    [
        {"status": "old"},
        {"status": "new"},
        {"status": "processing"},
        {"status": "done"},
        {"ids": [1], "topic": "t"},
        {"ids": [1], "status": "dead"},
        {"topic": 7},
        {"topic": ""},
        {"error": 7},
        {"since": "yesterday"},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001 - that is what is wrong
        {"object_id": 1.5},
        {"rate": 0},
        {"rate": float("nan")},
        {"rate": -1},
        {"actor": 7},
        {"actor": "x" * 201},
        {"reason": "x" * 1001},
        {"resume": 999},
        {"resume": 1, "topic": "t"},
    ],
    ids=str,
)
def test_rerun_refuses(sqlite, given):
    app = App(sqlite.url)
    app.create_schema()
    put(app, ("a", FAILED))
    with pytest.raises(ConfigError):
        app.ops.rerun(**given)
    assert Table(app).statuses == [-1]
    app.engine.dispose()


def test_a_table_with_the_four_columns_only(make_app):
    names = ("topic", "payload", "available_at", "claimed_by", "claimed_at", "crash_times")
    names += ("later_times", "last_error", "created_at", "finished_at", "shard", "instance_type")
    app = make_app(table=MessageTable("tb_cus_msg", msg_id="msgID", **dict.fromkeys(names)))
    app.create_schema()
    ids = put(app, ("a", FAILED), ("b", NEW), ("c", RUNNING), ("a", DONE))
    table = Table(app)
    assert app.ops.rerun() == 0  # a later one of its object has run
    assert app.ops.rerun(force=True) == 1
    assert app.ops.discard([*ids[:2]], reason="no use") == 2
    assert table.statuses == [-1, -1, 1, 2]
    assert app.ops.rerun(error="x") == app.ops.rerun(topic="t") == 0
    assert [entry.was_status for entry in app.ops.audit(ids[0])] == ["new", "dead"]
    assert app.ops.pause("default") == 1
    for act in (lambda: app.ops.release("x"), lambda: app.ops.purge("1d")):
        with pytest.raises(SchemaError, match=r"claimed_by|finished_at"):
            act()


# ---------------------------------------------------------------- order


def test_rerun_of_a_message_that_is_behind_its_time_needs_force(app, table):
    first, second, third = put(app, ("o", FAILED), ("o", DONE), ("o", FAILED))
    other = put(app, ("p", FAILED))[0]
    would = app.ops.rerun(dry_run=True)
    assert (would.matched, would.changed, would.skipped) == (3, 2, 1)
    done = app.ops.rerun()
    assert (done.changed, done.skipped) == (2, 1)
    (skip,) = done.skips
    assert (skip.msg_id, skip.why, skip.other_id) == (first, Why.RAN_LATER, second)
    assert "--force" in str(skip)
    assert "--with-successors" in str(skip)
    assert table.statuses == [-1, 2, 0, 0]
    assert app.ops.rerun([first]) == 0
    assert app.ops.rerun([first], force=True) == 1
    assert third != other


def test_rerun_of_a_message_whose_later_one_runs_says_so(app, table):
    first, second = put(app, ("o", FAILED), ("o", RUNNING))
    done = app.ops.rerun([first])
    assert (done, done.skips[0].other_id) == (0, second)
    assert table.statuses == [-1, 1]


def test_rerun_leaves_alone_what_is_overtaken_since_the_look(app, table):
    """The steps of a long rerun come after the look; workers go on meanwhile."""
    many_dead(app, 300, objects=300)
    objects = [f"o{i}" for i in range(294, 300)]
    ended, runs, died, waits, failed, gone = put(app, *[(o, NEW) for o in objects])
    came: list[int] = []

    def meanwhile(progress: Progress) -> None:
        if came:
            return
        table.edit(table.where(msg_id=ended), status=DONE)
        table.edit(table.where(msg_id=runs), status=RUNNING, claimed_by="x")
        table.edit(table.where(msg_id=died), status=FAILED, error_try_times=3)
        table.edit(table.where(msg_id=failed), status=FAILED, error_try_times=1)
        with app.engine.begin() as conn:
            conn.execute(sa.delete(app.tables.message).where(table.where(msg_id=gone)))
        came.extend(put(app, ("o293", DONE), ("o292", NEW)))

    done = app.ops.rerun(topic="t", progress=meanwhile)
    assert (done.matched, done.changed, done.skipped) == (300, 295, 5)
    assert {(skip.msg_id, skip.why, skip.other_id) for skip in done.skips} == {
        (294, Why.RAN_LATER, came[0]),
        (295, Why.RAN_LATER, ended),
        (296, Why.RUNS_LATER, runs),
        (297, Why.CHANGED, died),
        (300, Why.CHANGED, gone),
    }
    assert [status for (msg_id, status) in table.rows("msg_id", "status") if msg_id <= 300] == [
        *[NEW] * 293,
        *[FAILED] * 4,
        *[NEW] * 2,
        FAILED,
    ]
    assert app.ops.rerun([297, 300]) == 2
    assert waits


def test_rerun_goes_on_while_dead_ones_hold_their_object(blocking_app):
    """Under on_dead="block" a dead one behind holds the object, unless it was given up."""
    app, table = blocking_app, Table(blocking_app)
    many_dead(app, 150, objects=150)
    held, given_up = put(app, ("o148", FAILED), ("o149", FAILED), topic="x")

    def meanwhile(progress: Progress) -> None:
        table.edit(table.where(msg_id=given_up), error_try_times=4)

    done = app.ops.rerun(topic="t", progress=meanwhile)
    assert [(skip.msg_id, skip.why) for skip in done.skips] == [(150, Why.CHANGED)]
    assert done.changed == 149
    assert held


def test_a_slow_rerun_looks_only_a_little_ahead(sqlite, monkeypatch):
    app = App(sqlite.url)
    app.create_schema()
    put(app, ("a", FAILED))
    limits: list[int] = []
    chunk = change.chunk

    def watched(*args: Any, limit: int, **more: Any) -> Any:
        limits.append(limit)
        return chunk(*args, limit=limit, **more)

    monkeypatch.setattr(change, "chunk", watched)
    assert app.ops.rerun(rate=2) == 1
    assert limits == [40]
    app.engine.dispose()


def test_messages_without_object_have_no_order(app, table):
    put(app, (None, FAILED), (None, DONE))
    assert app.ops.rerun() == 1


def test_also_done_runs_the_object_again_in_order(app, table):
    first, *rest = put(app, ("o", FAILED), ("o", DONE), ("o", NEW), ("o", FAILED), ("o", DONE))
    put(app, ("p", DONE), ("p", FAILED))
    watch = Watch()
    app.add_handler("t", watch)
    also: dict[str, Any] = {"with_successors": True, "also_done": True}
    would = app.ops.rerun([first], **also, dry_run=True)
    assert (would, would.done_again, would.stay_done) == (4, 2, 0)
    done = app.ops.rerun([first], **also)
    assert (done, done.skipped) == (4, 0)
    assert table.statuses == [0, 0, 0, 0, 0, 2, -1]
    assert app.drain(linger=0).done == 5
    watch.assert_in_order([first, *rest])
    assert len(audited(app)) == 4


def test_with_successors_of_several_messages_of_one_object(app, table):
    ids = put(app, ("o", FAILED), ("o", FAILED), ("o", DONE))
    would = app.ops.rerun(ids, with_successors=True, also_done=True, dry_run=True)
    done = app.ops.rerun(ids, with_successors=True, also_done=True)
    assert (would.matched, would.changed, would.skipped) == (3, 3, 0)
    assert (done.matched, done.changed, done.skipped) == (3, 3, 0)
    assert table.statuses == [0, 0, 0]


def test_with_successors_waits_for_what_runs(app, table):
    first, second = put(app, ("o", FAILED), ("o", RUNNING))
    done = app.ops.rerun([first], with_successors=True)
    assert (done, done.skips[0].why, done.skips[0].other_id) == (0, Why.RUNS_LATER, second)
    assert table.statuses == [-1, 1]


def test_with_successors_leaves_what_was_discarded(app, table):
    ids = put(app, ("o", FAILED), ("o", NEW), ("o", FAILED))
    app.ops.discard([ids[1]], reason="wrong")
    assert app.ops.rerun([ids[0]], with_successors=True, dry_run=True) == 2
    assert app.ops.rerun([ids[0]], with_successors=True) == 2
    assert table.statuses == [0, -1, 0]


def test_with_successors_leaves_what_is_done(app, table):
    """The handler of a done message would meet the rows that it wrote."""
    first, *_, last = ids = put(
        app, ("o", FAILED), ("o", DONE), ("o", FAILED), ("o", NEW), ("o", DONE), ("o", FAILED)
    )
    put(app, ("p", DONE))
    watch = Watch()
    app.add_handler("t", watch)
    for_these: dict[str, Any] = {"ids": [first], "with_successors": True}
    would = app.ops.rerun(**for_these, dry_run=True)
    assert (would.matched, would.changed, would.done_again, would.stay_done) == (3, 3, 0, 2)
    assert [info.msg_id for info in would.sample] == [first, ids[2], last]
    done = app.ops.rerun(**for_these)
    assert (done.matched, done.changed, done.skipped) == (3, 3, 0)
    assert table.statuses == [0, 2, 0, 0, 2, 0, 2]
    assert app.drain(linger=0).done == 4
    watch.assert_in_order([first, ids[2], ids[3], last])


def test_rerun_behind_done_ones_needs_to_be_said(app, table):
    """It runs after them: with_successors and force say that it may."""
    first, *rest = put(app, ("o", FAILED), ("o", DONE), ("o", DONE))
    assert app.ops.rerun([first]).skips[0].why is Why.RAN_LATER
    for says in ({"with_successors": True}, {"force": True}):
        would = app.ops.rerun([first], **says, dry_run=True)
        assert (would.changed, would.done_again) == (1, 0)
        assert app.ops.rerun([first], **says) == 1
        assert table.statuses == [0, 2, 2]
        table.edit(table.where(msg_id=first), status=FAILED, error_try_times=3)
    assert audited(app)[-1][1] == first
    assert rest


def test_a_done_message_runs_again_by_its_own_name_alone(app, table):
    """force takes a done head; what is done behind it is no head, and stays."""
    first, second, third, last = put(app, ("o", DONE), ("o", DONE), ("o", DONE), ("o", FAILED))
    says: dict[str, Any] = {"with_successors": True, "force": True}
    assert app.ops.rerun([first], with_successors=True).skips[0].why is Why.DONE
    would = app.ops.rerun([first, third], **says, dry_run=True)
    assert (would.changed, would.done_again, would.stay_done) == (3, 2, 1)
    done = app.ops.rerun([first, third], **says)
    assert (done.matched, done.changed) == (3, 3)
    assert table.statuses == [0, 2, 0, 0]
    assert audited(app) == [(done.op_id, first), (done.op_id, third), (done.op_id, last)]
    assert app.ops.rerun([second], force=True, dry_run=True).done_again == 1


def test_also_done_without_successors_is_refused(app, table):
    (first,) = put(app, ("o", FAILED))
    with pytest.raises(ConfigError, match="with_successors"):
        app.ops.rerun([first], also_done=True)
    assert table.statuses == [-1]


def test_an_interrupted_rerun_goes_on_with_the_done_ones_it_was_asked_for(app, table):
    ids = put(app, ("o", FAILED), ("o", DONE), ("p", FAILED), ("p", DONE))
    with pytest.raises(Cut):
        app.ops.rerun([ids[0], ids[2]], with_successors=True, also_done=True, progress=cut_after(1))
    assert table.statuses == [0, 0, -1, 2]
    assert app.ops.rerun(resume=app.ops.audit()[0].op_id) == 4
    assert table.statuses == [0, 0, 0, 0]


def test_a_rerun_of_done_transactional_messages_meets_their_rows_only_if_asked(app, table):
    """What a run has written is there: a rerun of done ones doubles it, or fails at its key."""
    meta = sa.MetaData()
    paid = sa.Table("paid", meta, sa.Column("k", sa.String(100), primary_key=True))
    meta.create_all(app.engine)
    broken = [True]

    @app.handler("t", transactional=True, wait=wait_none())
    def pay(msg: Message, ctx: Any) -> None:
        if broken[0] and msg.msg_id % 4 == 1:
            raise ValueError("no such account")
        ctx.connection.execute(paid.insert().values(k=msg.idempotency_key))

    send(app, *["o"] * 8)
    app.drain(linger=0)
    assert table.statuses == [-1, 2, 2, 2, -1, 2, 2, 2]
    broken[0] = False
    assert app.ops.rerun(topic="t", with_successors=True) == 2
    assert app.drain(linger=0).failed == 0
    assert table.statuses == [2] * 8
    app.ops.rerun([1], force=True, with_successors=True, also_done=True)
    assert app.drain(linger=0).failed == 8  # asked for by name


# ---------------------------------------------------------------- discard


def test_discard(app, table):
    ids = put(app, ("a", NEW), ("b", RUNNING), ("c", DONE), ("d", FAILED))
    failed = put(app, ("e", FAILED), tries=1)
    done = app.ops.discard([*ids, *failed, 99], reason="twin of 7", actor="alice")
    assert (done.changed, done.skipped) == (3, 3)
    assert {s.why for s in done.skips} == {Why.RUNNING, Why.DONE, Why.NOT_THERE}
    assert table.rows("status", "error_try_times") == [(-1, 3), (1, 0), (2, 0), (-1, 3), (-1, 3)]
    assert table.column("last_error")[0] == "discarded by alice: twin of 7"
    assert table.column("finished_at")[0] is not None
    again = app.ops.discard([ids[0]], reason="x")
    assert (again, again.skips[0].why) == (0, Why.GIVEN_UP)


@pytest.mark.parametrize("length", [40, 13, 5])
def test_discard_where_the_text_is_too_long_for_the_column(make_app, database, length):
    """Of a table that was adopted; cut, it still says what it must: that people gave it up."""
    kind = f"VARCHAR({length})"
    if database.name == "mariadb":
        kind += " CHARACTER SET ascii"
    engine = sa.create_engine(database.url)
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE tb (msg_id BIGINT PRIMARY KEY, object_id VARCHAR(20), "
            "status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 NOT NULL, "
            f"claimed_by VARCHAR(64), last_error {kind} CHECK (length(last_error) <= {length}))"
        )
        conn.exec_driver_sql("INSERT INTO tb (msg_id, object_id) VALUES (1, 'a'), (2, 'b')")
    engine.dispose()
    app = make_app(table=MessageTable("tb", payload=None))
    app.create_schema()
    table = Table(app)
    reason = "no use any more " * 5
    assert app.ops.discard([1, 2], reason=reason, actor="Zo\u00eb") == 2
    assert table.rows("status", "error_try_times") == [(-1, 3)] * 2
    assert app.ops.audit()[0].reason == reason
    text = table.column("last_error")[0]
    if length < 13:
        assert text is None
    else:
        assert "discarded by Zo\u00eb: no use".startswith(text[:15])
        assert app.ops.rerun() == 0
    assert app.ops.rerun([1]) == 1


def test_discard_lets_a_blocked_object_go_on(blocking_app):
    app, table = blocking_app, Table(blocking_app)
    app.add_handler("t", lambda msg: Reject("no") if msg.payload == "bad" else None)
    (bad,) = send(app, "o", payload="bad")
    send(app, "o", payload="good")
    assert app.drain(linger=0).failed == 1
    assert app.drain(linger=0).done == 0
    assert app.ops.discard([bad], reason="no use") == 1
    assert app.drain(linger=0).done == 1
    assert table.rows("status", "error_try_times") == [(-1, 4), (2, 0)]
    assert app.ops.discard(topic="t", reason="x") == 0
    assert app.ops.rerun() == 0  # all dead ones, but not those that were given up
    assert app.ops.rerun([bad], force=True) == 1


def test_a_rerun_of_all_dead_ones_leaves_those_discarded(app, table):
    ids = put(app, ("a", FAILED), ("b", NEW))
    app.ops.discard([ids[1]], reason="100% wrong")
    assert app.ops.rerun() == 1
    assert table.statuses == [0, -1]
    assert app.ops.rerun(error="100% wrong") == 1


def test_discard_by_filter_takes_what_is_unfinished(app, table):
    put(app, ("a", NEW), ("b", DONE), ("c", RUNNING))
    put(app, ("d", FAILED), tries=1)
    assert app.ops.discard(topic="t", reason="r", dry_run=True) == 2
    assert app.ops.discard(topic="t", reason="r") == 2
    assert table.statuses == [-1, 2, 1, -1]


@pytest.mark.parametrize(
    "given",
    [
        {"ids": [1]},
        {"ids": [1], "reason": ""},
        {"ids": [1], "reason": "  "},
        {"reason": "all"},
        {"status": "processing", "reason": "r"},
        {"status": "done", "reason": "r"},
        {"status": "x", "reason": "r"},
        {"ids": [1], "topic": "t", "reason": "r"},
    ],
    ids=str,
)
def test_discard_refuses(sqlite, given):
    app = App(sqlite.url)
    app.create_schema()
    put(app, ("a", NEW))
    with pytest.raises(ConfigError):
        app.ops.discard(**given)
    assert Table(app).statuses == [0]
    app.engine.dispose()


# ---------------------------------------------------------------- audit


def test_every_change_is_in_the_audit(app):
    ids = put(app, ("a", FAILED), ("b", FAILED), crash_times=1)
    app.ops.rerun(topic="t", actor="alice", reason="listener is back")
    app.ops.discard([ids[0]], actor="bob", reason="twin")
    discard, rerun = app.ops.audit()
    assert (rerun.kind, rerun.actor, rerun.reason) == ("rerun", "alice", "listener is back")
    assert rerun.filter == {"topic": "t"}
    assert (rerun.matched, rerun.changed, rerun.skipped) == (2, 2, 0)
    assert rerun.started_at <= rerun.finished_at
    assert (discard.kind, discard.filter) == ("discard", {"ids": [ids[0]]})
    newest, oldest = app.ops.audit(ids[0])
    assert (newest.kind, newest.was_status, newest.was_tries) == ("discard", "new", 0)
    assert (oldest.kind, oldest.was_status, oldest.was_tries) == ("rerun", "dead", 3)
    assert (oldest.msg_id, oldest.was_error) == (ids[0], "ValueError: no")
    assert app.ops.audit(999) == []
    assert len(app.ops.audit(limit=1)) == 1
    with pytest.raises(ConfigError):
        app.ops.audit(limit=0)


def test_the_actor_is_the_user_if_nobody_is_named(app):
    put(app, ("a", FAILED))
    app.ops.rerun()
    assert "@" in app.ops.audit()[0].actor


def test_texts_of_people_are_kept_whatever_they_hold(app):
    put(app, ("a", FAILED))
    app.ops.rerun(actor="e\x00vil\u202e", reason="q'uo\"te; DROP TABLE x --\n\x1b[2J")
    entry = app.ops.audit()[0]
    assert "DROP TABLE" in entry.reason
    assert "vil" in entry.actor


def test_without_the_tables_of_ops_messages_are_handled_and_writes_refused(app, table):
    with app.engine.begin() as conn:
        for made in reversed(ddl_script.ops_tables(app.tables)):
            conn.execute(sa.schema.DropTable(made))
    other = App(app.engine.url)
    other.add_handler("t", lambda msg: None)
    send(other, "a")
    assert other.drain(linger=0).done == 1
    assert other.ops.rerun(dry_run=True) == 0
    for act in (
        lambda: other.ops.rerun(),
        lambda: other.ops.discard([1], reason="x"),
        lambda: other.ops.purge("1d"),
        lambda: other.ops.pause("t"),
        lambda: other.ops.audit(),
        lambda: other.ops.release("x"),
    ):
        with pytest.raises(SchemaError, match="init-db"):
            act()
    assert set(App(app.engine.url).create_schema()) == {
        "msgworker_operation",
        "msgworker_audit",
        "msgworker_pause",
    }
    assert other.ops.rerun([1], force=True) == 1
    other.engine.dispose()


class Cut(Exception):
    """Stands for a process that ends here."""


def cut_after(steps: int) -> Any:
    seen: list[Progress] = []

    def tell(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == steps:
            raise Cut

    return tell


def test_an_interrupted_rerun_goes_on_without_counting_twice(app, table):
    many_dead(app, 1500)
    with pytest.raises(Cut):
        app.ops.rerun(topic="t", progress=cut_after(2))
    (cut,) = app.ops.audit()
    assert cut.finished_at is None
    assert 0 < cut.changed < 1500
    assert table.statuses.count(0) == cut.changed == len(audited(app))
    table.edit(table.where(msg_id=1), status=FAILED, error_try_times=3)  # it has failed again
    done = app.ops.rerun(resume=cut.op_id)
    assert (done.op_id, done.changed, done.matched) == (cut.op_id, 1500, 1500)
    assert audited(app) == [(cut.op_id, i) for i in range(1, 1501)]
    assert table.statuses.count(0) == 1499
    with pytest.raises(ConfigError, match="is over"):
        app.ops.rerun(resume=cut.op_id)
    with pytest.raises(ConfigError, match="no discard"):
        app.ops.discard(resume=cut.op_id)


def test_an_interrupted_rerun_of_a_long_list_goes_on_with_the_same_ids(app, table, monkeypatch):
    """So many ids are not kept; what is through is not run again, also if it has ended since."""
    monkeypatch.setattr(asking, "KEPT_IDS", 250)
    many_dead(app, 300)
    table.edit(status=DONE)
    ids = range(1, 301)
    with pytest.raises(Cut):
        app.ops.rerun(ids, force=True, progress=cut_after(1))
    (cut,) = app.ops.audit()
    table.edit(table.where(status=NEW), status=DONE)
    table.edit(table.where(msg_id=1), status=FAILED, error_try_times=3)
    with pytest.raises(ConfigError, match="same ids again with resume"):
        app.ops.rerun(resume=cut.op_id)
    for others in ([1, 300], range(1, 300), range(2, 302), 7):
        with pytest.raises(ConfigError, match="not the ids"):
            app.ops.rerun(others, resume=cut.op_id)
    with pytest.raises(ConfigError, match="no other one"):
        app.ops.rerun(ids, force=True, resume=cut.op_id)
    done = app.ops.rerun(ids, resume=cut.op_id)
    assert (done.op_id, done.changed, done.skipped) == (cut.op_id, 300, 0)
    assert audited(app) == [(cut.op_id, i) for i in ids]
    assert table.statuses.count(NEW) == 300 - cut.changed
    assert table.statuses[0] == FAILED


def test_an_interrupted_discard_of_ids_goes_on_with_and_without_them(app, table):
    many_dead(app, 300)
    table.edit(status=NEW)
    for given in (None, range(1, 301)):
        with pytest.raises(Cut):
            app.ops.discard(range(1, 301), reason="r", progress=cut_after(1))
        done = app.ops.discard(given, resume=app.ops.audit()[0].op_id)
        assert done.changed == 300
        assert set(table.statuses) == {FAILED}
        table.edit(status=NEW, error_try_times=0, last_error=None)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_interrupted_rerun_with_successors_goes_on_to_its_end(app, table, steps):
    """Wherever it is cut: each message is counted once, those left alone too."""
    first, waiting, behind, second, third, ended = put(
        app, ("o", FAILED), ("p", NEW), ("o", FAILED), ("q", FAILED), ("r", FAILED), ("s", DONE)
    )
    ids = [first, waiting, behind, second, third, ended]
    with pytest.raises(Cut):
        app.ops.rerun(ids, with_successors=True, progress=cut_after(steps))
    (cut,) = app.ops.audit()
    table.edit(table.where(msg_id=first), status=DONE)
    done = app.ops.rerun(resume=cut.op_id)
    (entry,) = app.ops.audit()
    assert (entry.matched, entry.changed, entry.skipped) == (6, 4, 2)
    assert (done.op_id, done.matched, done.changed, done.skipped) == (cut.op_id, 6, 4, 2)
    assert entry.finished_at is not None
    with pytest.raises(ConfigError, match="is over"):
        app.ops.rerun(resume=cut.op_id)


def test_two_cannot_go_on_with_one_operation(app):
    many_dead(app, 1000)
    with pytest.raises(Cut):
        app.ops.rerun(progress=cut_after(1))
    op_id = app.ops.audit()[0].op_id
    with pytest.raises(Cut):
        app.ops.rerun(resume=op_id, progress=cut_after(1))
    done = []
    trouble: list[BaseException] = []

    def go_on() -> None:
        try:
            done.append(app.ops.rerun(resume=op_id))
        except Exception as error:
            trouble.append(error)

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) >= 1 or len(trouble) == 2
    with suppress(ConfigError):
        app.ops.rerun(resume=op_id)
    (entry,) = app.ops.audit()
    assert entry.changed == 1000
    assert len(audited(app)) == 1000


def test_two_reruns_at_once_change_each_message_once(app):
    many_dead(app, 800)
    joins = [in_thread(lambda: app.ops.rerun()) for _ in range(3)]
    assert sum(join() for join in joins) == 800
    assert len(audited(app)) == len({msg_id for _, msg_id in audited(app)}) == 800
    assert sum(entry.changed for entry in app.ops.audit()) == 800


def test_a_row_that_changed_meanwhile_is_left_alone(app, table, monkeypatch):
    many_dead(app, 20)
    step = Bulk.step

    def late(self: Bulk, last_id: Any, work: Any) -> Any:
        table.edit(table.where(msg_id=7), status=RUNNING, claimed_by="x")
        table.edit(table.where(msg_id=8), last_error="another")
        table.edit(table.where(msg_id=9), status=NEW)
        return step(self, last_id, work)

    monkeypatch.setattr(Bulk, "step", late)
    done = app.ops.rerun(error="ValueError")
    assert (done.matched, done.changed, done.skipped) == (20, 17, 3)
    assert dict(done.why) == {Why.CHANGED: 1, Why.NEW: 1, Why.RUNNING: 1}
    assert (table.statuses[6], table.statuses[7]) == (RUNNING, FAILED)


def test_the_rate_is_kept(app):
    many_dead(app, 30)
    seen: list[Progress] = []
    done = app.ops.rerun(rate=200, progress=seen.append)
    assert done == 30
    assert [p.changed for p in seen] == sorted(p.changed for p in seen)
    assert seen[-1].changed == 30


def test_rerun_beside_workers_keeps_order_and_counts(app, table):
    """Dead ones are rerun again and again while a worker kills them again."""
    watch = Watch()
    app.add_handler("t", lambda msg: watch(msg) or Reject("no"), wait=wait_none())
    send(app, *(f"o{i % 5}" for i in range(60)))
    changed = 0
    with app.worker(threads=4) as worker:
        worker.start()
        for _ in range(5):
            until(lambda: len(watch.spans) > 30, "some are dead")
            changed += app.ops.rerun(force=True)
            changed += app.ops.rerun(force=True)
        until(
            lambda: table.statuses.count(FAILED) == 60 and len(watch.spans) == 60 + changed,
            "all are dead again",
        )
    watch.assert_exclusive()
    assert len(audited(app)) == changed


# ---------------------------------------------------------------- release


def test_release_of_a_dead_instance(app, table):
    ids = put(app, ("a", RUNNING), ("b", RUNNING), (None, RUNNING), claimed_by="gone-1")
    put(app, ("c", RUNNING), claimed_by="other")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "gone-1", ttl=-1.0)
    assert app.ops.release("gone-1", dry_run=True) == 3
    done = app.ops.release("gone-1", actor="alice", reason="host is off")
    assert done == 3
    assert table.rows("status", "error_try_times", "crash_times", "claimed_by") == [
        (-1, 1, 1, None),
        (-1, 1, 1, None),
        (-1, 1, 1, None),
        (1, 0, 0, "other"),
    ]
    text = "released from instance gone-1 by alice: host is off"
    assert table.column("last_error")[0] == text
    entry = app.ops.audit(ids[0])[0]
    assert (entry.kind, entry.was_status, entry.was_claimed_by) == (
        "release",
        "processing",
        "gone-1",
    )
    with app.engine.connect() as conn:
        assert lease.read_all(conn, app.tables) == []
    assert app.ops.release("gone-1") == 0


@pytest.mark.parametrize("leased", [True, False])
def test_release_does_not_wait_for_locked_rows(app, table, monkeypatch, leased):
    """They stay as they are, and recovery may go on with them at once."""
    if not app.tables.dialect.skip_locked:
        pytest.skip("locks no rows")
    monkeypatch.setattr(releasing, "AGAIN_AFTER_SECONDS", (0.0, 0.1))
    ids = put(app, *[(f"o{i}", RUNNING) for i in range(5)], claimed_by="gone-1")
    if leased:
        with app.engine.begin() as conn:
            lease.register(conn, app.tables, "gone-1", ttl=-1.0)
    m = app.tables.message
    with app.engine.connect() as frozen:
        frozen.execute(sa.select(m).where(table.where(msg_id=ids[2])).with_for_update()).all()
        done = in_thread(lambda: app.ops.release("gone-1"))()
        frozen.rollback()
    assert (done.matched, done.changed, done.skipped) == (5, 4, 1)
    assert [(skip.msg_id, skip.why) for skip in done.skips] == [(ids[2], Why.LOCKED)]
    assert table.statuses == [-1, -1, 1, -1, -1]
    (entry,) = app.ops.audit()
    assert (entry.changed, entry.skipped) == (4, 1)
    assert entry.finished_at is not None
    with app.engine.connect() as conn:
        assert [one.live for one in lease.read_all(conn, app.tables)] == [0] * leased
    assert app.ops.release("gone-1") == 1
    assert table.statuses == [-1] * 5


def test_release_takes_rows_that_were_locked_for_a_moment(app, table):
    if not app.tables.dialect.skip_locked:
        pytest.skip("locks no rows")
    ids = put(app, *[(f"o{i}", RUNNING) for i in range(3)], claimed_by="gone-1")
    m = app.tables.message
    frozen = app.engine.connect()
    frozen.execute(sa.select(m).where(table.where(msg_id=ids[0])).with_for_update()).all()

    def tell(progress: Progress) -> None:
        frozen.rollback()

    done = in_thread(lambda: app.ops.release("gone-1", progress=tell))()
    frozen.close()
    assert (done.matched, done.changed, done.skipped) == (3, 3, 0)
    assert table.statuses == [-1] * 3


@pytest.mark.parametrize("leased", [True, False])
def test_a_release_that_somebody_beats_is_over(app, table, monkeypatch, leased):
    """No operation stays open in the audit; nothing was changed."""
    put(app, ("a", RUNNING), claimed_by="gone-1")
    if leased:
        with app.engine.begin() as conn:
            lease.register(conn, app.tables, "gone-1", ttl=-1.0)
    held_by = releasing.held_by

    def beaten(*args: Any) -> Any:
        held = held_by(*args)
        with app.engine.begin() as conn:
            lease.drop(conn, app.tables, "gone-1")
            lease.register(conn, app.tables, "gone-1", ttl=60.0)
        return held

    monkeypatch.setattr(releasing, "held_by", beaten)
    with pytest.raises(MsgworkerError, match="try again"):
        app.ops.release("gone-1")
    assert table.statuses == [RUNNING]
    (entry,) = app.ops.audit()
    assert (entry.kind, entry.changed) == ("release", 0)
    assert entry.finished_at is not None


def test_release_of_rows_without_a_lease(app, table):
    put(app, ("a", RUNNING), claimed_by="ghost")
    assert app.ops.release("ghost") == 1
    assert table.statuses == [-1]


def test_release_refuses_a_living_instance(app, table):
    put(app, ("a", RUNNING), claimed_by="alive")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "alive", ttl=60.0)
    with pytest.raises(MsgworkerError, match="is alive"):
        app.ops.release("alive")
    with pytest.raises(MsgworkerError, match="is alive"):
        app.ops.release("alive", dry_run=True)
    assert app.ops.release("alive", dry_run=True, force=True) == 1
    with app.engine.begin() as conn:
        lease.take_over_live(conn, app.tables, "alive", me="another", ttl=60.0)
    with pytest.raises(MsgworkerError, match="being recovered"):
        app.ops.release("alive", force=True)
    assert table.statuses == [1]


@pytest.mark.parametrize("name", ["", None, 7, "x" * 65], ids=str)
def test_release_refuses_what_is_no_instance(sqlite, name):
    app = App(sqlite.url)
    app.create_schema()
    with pytest.raises(ConfigError):
        app.ops.release(name)
    app.engine.dispose()


def test_release_by_force_fences_the_living(make_app):
    """Its messages run elsewhere only when it starts nothing more; what it writes is refused."""
    app = make_app(lease_seconds=6)
    app.create_schema()
    table = Table(app)
    hold, watch = threading.Event(), Watch()

    @app.handler("t")
    def handle(msg: Message) -> None:
        watch.saw(msg.object_id, msg.msg_id, lambda: hold.wait(60) if msg.payload else None)

    first, *_ = send(app, "o", payload="hold")
    send(app, "o", "o", *(f"p{i}" for i in range(20)))
    with app.worker(threads=2) as worker:
        worker.start()
        until(lambda: watch.now or None, "it runs")
        old = worker.instance_id
        released = app.ops.release(old, force=True, reason="hangs")
        assert released >= 1
        until(lambda: worker.instance_id != old, "a new id")
        hold.set()
        until(lambda: table.statuses.count(DONE) == 23, "all done")
    watch.assert_exclusive()
    assert first in {entry.msg_id for i in [first] for entry in app.ops.audit(i)}
    assert table.rows("error_try_times")[0] == (1,)


# ---------------------------------------------------------------- pause


def test_a_paused_topic_waits_and_keeps_its_objects_waiting(app, table):
    watch = Watch()
    app.add_handler(None, watch)
    send(app, "a", topic="x")
    send(app, "a", "b", topic="y")
    assert app.ops.pause("x", reason="bank is closed", actor="alice") == 1
    assert app.ops.pause("x") == 0
    assert [(p.topic, p.actor, p.reason) for p in app.ops.pauses()] == [
        ("x", "alice", "bank is closed")
    ]
    report = app.drain(linger=0)
    assert (report.done, report.left) == (1, 2)
    assert table.statuses == [0, 0, 2]
    assert app.ops.resume("x") == 1
    assert app.ops.resume("x") == 0
    assert app.drain(linger=0).done == 2
    assert watch.of("a") == sorted(watch.of("a"))
    kinds = [entry.kind for entry in app.ops.audit()]
    assert kinds == ["resume", "pause"]


def test_a_pause_in_the_middle_of_a_run_keeps_order(app, table):
    watch = Watch()
    app.add_handler(None, watch)
    ids = send(app, "a", topic="y") + send(app, "a", topic="x") + send(app, "a", topic="y")
    app.ops.pause("x")
    report = app.drain(linger=0)
    assert (report.done, report.left) == (1, 2)
    assert watch.ids == ids[:1]


def test_instances_honour_a_pause_within_a_heartbeat(make_app):
    app = make_app(lease_seconds=9)
    app.create_schema()
    table, watch = Table(app), Watch()
    hold = threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        watch.saw(msg.object_id, msg.msg_id, lambda: hold.wait(60))

    send(app, *range(30))
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: watch.now, "one runs")
        app.ops.pause("t")
        until(lambda: worker.paused == {"t"}, "heard of it")
        hold.set()
        until(lambda: table.statuses.count(DONE) == 1, "what ran is done")
        until(lambda: table.statuses.count(NEW) == 29, "the others are given back")
        assert len(watch.spans) == 1
        assert set(table.column("error_try_times")) == {0}
        app.ops.resume("t")
        until(lambda: table.statuses.count(DONE) == 30, "they go on")


@pytest.mark.parametrize("topic", ["", None, 7, "x" * 101], ids=str)
def test_pause_refuses_what_is_no_topic(sqlite, topic):
    app = App(sqlite.url)
    app.create_schema()
    with pytest.raises(ConfigError):
        app.ops.pause(topic)
    with pytest.raises(ConfigError):
        app.ops.resume(topic)
    app.engine.dispose()


# ---------------------------------------------------------------- purge


OLD = datetime.now(UTC) - timedelta(days=40)


def test_purge_takes_what_was_finished_long_ago(app, table):
    put(app, ("a", DONE), ("b", DONE), finished_at=OLD)
    put(app, ("c", DONE), ("d", NEW), ("e", RUNNING), finished_at=datetime.now(UTC))
    put(app, ("f", FAILED), finished_at=OLD)
    put(app, ("g", NEW), created_at=OLD)
    put(app, ("h", DONE), created_at=OLD)  # by a foreign consumer, which fills in nothing
    would = app.ops.purge("30d", dry_run=True)
    assert (would, len(would.sample)) == (3, 3)
    assert app.ops.purge(timedelta(days=50)) == 0
    done = app.ops.purge("30d", reason="retention")
    assert (done, done.skipped) == (3, 0)
    assert table.column("object_id") == ["c", "d", "e", "f", "g"]
    assert app.ops.purge(older_than=datetime.now(UTC) - timedelta(days=30), dead=True) == 1
    assert table.column("object_id") == ["c", "d", "e", "g"]
    assert [entry.changed for entry in app.ops.audit()] == [1, 3, 0]
    assert "before" in app.ops.audit()[0].filter


def test_purge_leaves_dead_ones_that_hold_their_object(blocking_app):
    app, table = blocking_app, Table(blocking_app)
    ids = put(app, ("a", FAILED), ("b", FAILED), finished_at=OLD)
    app.ops.discard([ids[1]], reason="x")
    table.edit(table.where(msg_id=ids[1]), finished_at=OLD)
    assert app.ops.purge("30d", dead=True) == 1
    assert table.column("object_id") == ["a"]


def test_purge_into_an_archive(app, table):
    put(app, *[(f"o{i}", DONE) for i in range(300)], finished_at=OLD, payload='{"n": 1}')
    before = table.rows("msg_id", "object_id", "payload", "created_at", "finished_at")
    assert app.ops.purge("30d", archive_to="old_messages", topic="t") == 300
    put(app, ("late", DONE), finished_at=OLD)
    assert app.ops.purge("30d", archive_to="old_messages") == 1
    assert table.rows("msg_id") == []
    archived = App(app.engine.url, table=MessageTable("old_messages"))
    t = sa.Table("old_messages", sa.MetaData(), autoload_with=app.engine)
    assert {c.name for c in t.c} >= set(app.tables.names.values())
    with app.engine.connect() as conn:
        names = ("msg_id", "object_id", "payload")
        rows = conn.execute(sa.select(*(t.c[n] for n in names)).order_by(t.c.msg_id)).all()
    assert [tuple(row) for row in rows[:300]] == [row[:3] for row in before]
    assert len(rows) == 301
    archived.engine.dispose()


def test_purge_refuses_an_archive_that_lacks_columns(app, table):
    put(app, ("a", DONE), finished_at=OLD)
    with app.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE too_narrow (msg_id INT, status INT)"))
        conn.execute(sa.text("CREATE TABLE old_m (x INT)"))
    with pytest.raises(SchemaError, match=r"too_narrow lacks column .*object_id"):
        app.ops.purge("30d", archive_to="too_narrow")
    for name in (
        "msgworker_message",
        "MSGWORKER_MESSAGE",
        "msgworker_lease",
        "",
        "a.b.c",
        "x\ny",
        7,
    ):
        with pytest.raises(ConfigError):
            app.ops.purge("30d", archive_to=name)
    assert table.statuses == [2]


def test_an_archive_that_does_not_take_the_rows_loses_none(app, table):
    put(app, ("a", DONE), finished_at=OLD)
    assert app.ops.purge("30d", archive_to="old_m") == 1
    (second,) = put(app, ("b", DONE), finished_at=OLD)
    with app.engine.begin() as conn:  # the same id stands there already
        conn.execute(sa.text(f"UPDATE old_m SET msg_id = {second}"))
    with pytest.raises(SchemaError, match="cannot be purged"):
        app.ops.purge("30d", archive_to="old_m")
    assert table.statuses == [2]


def test_purge_takes_the_items_of_a_message_too(app):
    ids = put(app, ("a", DONE), ("b", DONE), finished_at=OLD)
    new = put(app, ("c", DONE), finished_at=datetime.now(UTC))
    item = app.tables.item
    with app.engine.begin() as conn:
        for msg_id in (*ids, *new):
            values = {"table_name": app.table.name, "msg_id": msg_id, "item_key": "k", "status": 2}
            conn.execute(sa.insert(item).values(values))
    assert app.ops.purge("30d") == 2
    with app.engine.connect() as conn:
        assert list(conn.scalars(sa.select(item.c.msg_id))) == new


@pytest.mark.parametrize(
    "age",
    [
        None,
        0,
        -1,
        "0",
        "-5d",
        "soon",
        "",
        float("nan"),
        float("inf"),
        True,
        10**12,
        timedelta(0),
        timedelta(days=-1),
        datetime(2200, 1, 1, tzinfo=UTC),
        datetime(2020, 1, 1),  # noqa: DTZ001 - that is what is wrong
        [],
    ],
    ids=str,
)
def test_purge_refuses_ages_that_are_none(sqlite, age):
    app = App(sqlite.url)
    app.create_schema()
    put(app, ("a", DONE), finished_at=OLD)
    with pytest.raises(ConfigError):
        app.ops.purge(age)
    assert Table(app).statuses == [2]
    app.engine.dispose()


def test_purge_of_a_table_without_times_is_refused(database, make_app):
    spec = MessageTable("plain", finished_at=None, created_at=None, claimed_at=None)
    app = make_app(table=spec)
    app.create_schema()
    with pytest.raises(SchemaError, match="finished_at"):
        app.ops.purge("30d")


def test_an_interrupted_purge_goes_on(app, table):
    t = app.tables
    row = t.values(status=int(Status.DONE), topic="t", object_id="o", finished_at=OLD)
    with app.engine.begin() as conn:
        conn.execute(sa.insert(t.message), [row] * 900)
    with pytest.raises(Cut):
        app.ops.purge("30d", archive_to="old_m", progress=cut_after(2))
    (cut,) = app.ops.audit()
    assert len(table.statuses) == 900 - cut.changed
    done = app.ops.purge(resume=cut.op_id)
    assert (done.changed, done.op_id) == (900, cut.op_id)
    assert table.statuses == []
    with app.engine.connect() as conn:
        assert conn.execute(sa.text("SELECT count(*) FROM old_m")).scalar_one() == 900


def test_a_rerun_saves_a_message_from_the_purge(app, table, monkeypatch):
    ids = put(app, ("a", DONE), ("b", DONE), finished_at=OLD)
    step = Bulk.step

    def late(self: Bulk, last_id: Any, work: Any) -> Any:
        if self.op.kind == "purge" and self.op.steps == 0:
            assert app.ops.rerun([ids[0]], force=True) == 1
        return step(self, last_id, work)

    monkeypatch.setattr(Bulk, "step", late)
    done = app.ops.purge("30d", archive_to="old_m")
    assert (done.changed, done.skipped) == (1, 1)
    assert table.rows("msg_id", "status") == [(ids[0], 0)]
