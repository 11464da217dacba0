"""Rerun."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity import wait_none

from msgworker import App, ConfigError, Message, MessageTable, RetryLater, SchemaError
from msgworker.ops import operation
from msgworker.ops import repairs as rerunning
from msgworker.ops.operation import RecordedOperation
from msgworker.ops.results import Progress, Why
from msgworker.store import bounded, tries
from msgworker.store.tries import Failure, Kind
from tests.support.apps import created
from tests.support.ops import DONE, FAILED, NEW, RUNNING, Cut, audited, cut_after, many_dead, put
from tests.support.rows import Table, edit, send
from tests.support.waiting import PATIENCE_SECONDS, in_thread, until
from tests.support.watching import Watch


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


def test_what_is_rerun_or_discarded_keeps_nothing_of_the_tries_before(app, table):
    then = datetime.now(UTC) + timedelta(hours=1)
    before = {"crash_times": 2, "later_times": 7, "claimed_by": "gone"}
    before |= {"available_at": then, "finished_at": then}
    again, over = put(app, ("a", FAILED), ("b", FAILED), tries=1, **before)
    assert (app.ops.rerun(again), app.ops.discard(over, reason="r")) == (1, 1)
    roles = ("status", "error_try_times", "available_at", "claimed_by")
    assert table.rows(*roles) == [(0, 0, None, None), (-1, 3, None, None)]
    assert table.rows("crash_times", "later_times")[0] == (0, 0)
    assert app.ops.show(again).finished_at is None
    assert app.ops.show(over).finished_at < then


def test_writes_take_the_messages_of_a_group_that_lists_show(app):
    """By the last try, whatever the last error has become; without a try by that."""
    tried, *bare = put(app, ("a", FAILED), ("b", FAILED), ("c", FAILED), last_error="cut")
    edit(app, bare[1], last_error=None)
    with app.engine.begin() as conn:
        mine = Failure(tried, Kind.FAILED, "ValueError: no account 17")
        tries.keep(conn, app.tables, [mine], instance="i")
    groups = {one.sample_id: one.fingerprint for one in app.ops.failures()}
    assert len(groups) == 3
    for msg_id, group in groups.items():
        assert [one.msg_id for one in app.ops.find(fingerprint=group)] == [msg_id]
        (one,) = app.ops.rerun(fingerprint=group, dry_run=True).sample
        assert one.msg_id == msg_id
        assert app.ops.rerun(fingerprint=group) == 1
    assert list(app.ops.failures()) == []


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


def test_ids_that_are_none(sqlite, subtests):
    app = created(App(sqlite.url))
    for ids in BAD_IDS:
        with subtests.test(ids=ids):
            for act in (app.ops.rerun, app.ops.discard):
                with pytest.raises(ConfigError):
                    act(ids, reason="why")
            assert app.ops.rerun([-5, 0, 2**63 - 1]).skipped == 3


def test_calls_need_one_connection(app, make_app, table, monkeypatch):
    """Of a user's Engine with a small pool; the steps do not run beside the look, and the rule of
    the table is read again before a step."""
    monkeypatch.setattr("msgworker.schema.known.RULE_SECONDS", 0.0)
    args = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1, "poolclass": sa.QueuePool}
    small = make_app(sa.create_engine(app.engine.url, **args))
    ids = put(app, *[(f"o{i}", FAILED) for i in range(3)])
    assert small.ops.rerun(ids[:2]) == 2
    assert small.ops.rerun(topic="t") == 1
    assert small.ops.discard(ids, reason="r") == 3
    assert small.ops.rerun(ids, with_successors=True) == 3
    put(app, ("p", RUNNING), claimed_by="gone-1")
    assert small.ops.release("gone-1") == 1
    assert small.ops.cancel(topic="t", reason="r", dry_run=True).dry_run
    assert small.ops.pause("t") == 1
    assert small.ops.resume("t") == 1
    assert small.ops.purge("30d") == 0
    assert small.ops.find(limit=1)
    assert small.ops.show(ids[0])
    assert small.ops.explain(ids[0])
    assert small.ops.audit(limit=1)
    assert small.ops.counts()
    assert small.ops.unfinished()
    assert small.ops.lanes()
    assert small.ops.failures()
    assert not small.ops.instances()
    assert not small.ops.pauses()
    assert not small.ops.limits()
    assert not small.ops.schedules()
    with pytest.raises(ConfigError, match="no schedule"):
        small.ops.run_now("x")
    assert small.ops.items(ids[0]) == []


@pytest.mark.long
def test_a_long_list_of_ids(app, table):
    many_dead(app, 3000)
    done = app.ops.rerun(range(1, 100_000))
    assert (done.changed, done.skipped, len(done.skips)) == (3000, 96_999, 20)
    assert dict(done.why) == {Why.NOT_THERE: 96_999}
    assert set(table.statuses) == {0}


def test_rerun_refuses(sqlite, subtests):
    app = created(App(sqlite.url))
    put(app, ("a", FAILED))
    for given in (
        {"status": "old"},
        {"status": "new"},
        {"status": "processing"},
        {"status": "done"},
        {"ids": [1], "topic": "t"},
        {"ids": [1], "status": "dead"},
        {"topic": 7},
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
        {"operation": 999},
        {"operation": 1, "topic": "t"},
    ):
        with subtests.test(given=given):
            with pytest.raises(ConfigError):
                app.ops.rerun(**given)
            assert Table(app).statuses == [-1]


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
    for lacking in ({"error": "x"}, {"topic": "t"}):
        with pytest.raises(ConfigError, match="cannot be asked for"):
            app.ops.rerun(**lacking)
    assert [entry.was_status for entry in app.ops.audit(ids[0])] == ["new", "dead"]
    assert app.ops.pause("default") == 1
    for act in (lambda: app.ops.release("x"), lambda: app.ops.purge("1d")):
        with pytest.raises(SchemaError, match=r"claimed_by|finished_at"):
            act()


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
    for also, why in ((False, Why.RAN_LATER), (True, Why.RUNS_LATER)):
        done = app.ops.rerun([first], with_successors=also)
        assert (done, done.skips[0].why, done.skips[0].other_id) == (0, why, second)
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
    app = created(App(sqlite.url))
    put(app, ("a", FAILED))
    limits: list[int] = []
    real = bounded.ids_of_filter

    def watched(*args: Any, limit: int, **more: Any) -> Any:
        limits.append(limit)
        return real(*args, limit=limit, **more)

    monkeypatch.setattr(bounded, "ids_of_filter", watched)
    assert app.ops.rerun(rate=2) == 1
    assert limits == [40]


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


def test_an_interrupted_rerun_goes_on_with_the_done_ones_it_was_asked_for(app, table, monkeypatch):
    monkeypatch.setattr(operation, "MOST_SIZE", 1)
    ids = put(app, ("o", FAILED), ("o", DONE), ("p", FAILED), ("p", DONE))
    with pytest.raises(Cut):
        app.ops.rerun([ids[0], ids[2]], with_successors=True, also_done=True, progress=cut_after(1))
    assert table.statuses == [0, 0, -1, 2]
    assert app.ops.rerun(operation=app.ops.audit()[0].op_id) == 4
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


def test_a_rerun_of_all_dead_ones_leaves_those_discarded(app, table):
    ids = put(app, ("a", FAILED), ("b", NEW))
    app.ops.discard([ids[1]], reason="100% wrong")
    assert app.ops.rerun() == 1
    assert table.statuses == [0, -1]
    assert app.ops.rerun(error="100% wrong") == 1


def test_two_reruns_at_once_change_each_message_once(app):
    many_dead(app, 500)
    joins = [in_thread(lambda: app.ops.rerun()) for _ in range(3)]
    assert sum(join() for join in joins) == 500
    assert len(audited(app)) == len({msg_id for _, msg_id in audited(app)}) == 500
    assert sum(entry.changed for entry in app.ops.audit()) == 500


def test_a_row_that_changed_meanwhile_is_left_alone(app, table, monkeypatch):
    many_dead(app, 20)
    step = RecordedOperation.step

    def late(self: RecordedOperation, last_id: Any, work: Any) -> Any:
        table.edit(table.where(msg_id=7), status=RUNNING, claimed_by="x")
        table.edit(table.where(msg_id=8), last_error="another")
        table.edit(table.where(msg_id=9), status=NEW)
        return step(self, last_id, work)

    monkeypatch.setattr(RecordedOperation, "step", late)
    done = app.ops.rerun(error="ValueError")
    assert (done.matched, done.changed, done.skipped) == (20, 17, 3)
    assert dict(done.why) == {Why.CHANGED: 1, Why.NEW: 1, Why.RUNNING: 1}
    assert (table.statuses[6], table.statuses[7]) == (RUNNING, FAILED)


def test_the_rate_is_kept(app):
    many_dead(app, 30)
    seen: list[tuple[float, int]] = []
    begun = time.monotonic()
    done = app.ops.rerun(
        rate=100, progress=lambda told: seen.append((time.monotonic() - begun, told.changed))
    )
    assert done == 30
    counts = [changed for _, changed in seen]
    assert counts == sorted(counts)
    assert counts[-1] == 30
    early = [one for one in seen if one[1] > 25 + one[0] * 100 * 1.1]  # a step of a quarter second
    assert early == []
    assert time.monotonic() - begun > 0.25


@pytest.mark.parametrize(
    ("object_id", "how"),
    [(None, {}), ("a", {}), ("a", {"with_successors": True, "also_done": True})],
    ids=["no object", "object", "also done"],
)
def test_a_rerun_of_one_message_does_not_read_all_that_are_done_behind_it(
    sqlite_app, monkeypatch, object_id, how
):
    """Of one with an object: where the table has an index by object."""
    monkeypatch.setattr(bounded, "SINCE_SLACK", 10)
    engine = sa.create_engine(sqlite_app.engine.url)
    steps = [0]

    def count() -> None:
        steps[0] += 1

    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE INDEX by_object ON msgworker_message (object_id, msg_id)")
    sa.event.listen(engine, "checkout", lambda raw, *_: raw.set_progress_handler(count, 50))
    app = App(engine)
    took = []
    for done in (10, 1_500):
        (dead,) = put(app, (object_id, FAILED))
        put(app, *((f"b{n}", DONE) for n in range(done)))
        app.ops.rerun([dead], **how)  # the statements are built
        edit(app, dead, status=FAILED, error_try_times=3)
        steps[0] = 0
        assert app.ops.rerun([dead], **how).changed >= 1
        took.append(steps[0])
    assert took[1] < 3 * took[0]


def test_a_rerun_with_successors_takes_any_number_of_messages_in_order(app, table):
    """More than one statement takes, several of one object, some of them behind others."""
    names = [f"o{n % 130}" for n in range(450)]
    ids = put(app, *((name, FAILED) for name in names), (None, FAILED))
    kept = put(app, ("o0", DONE))
    would = app.ops.rerun(topic="t", with_successors=True, dry_run=True)
    assert (would, would.matched, would.stay_done) == (451, 451, 1)
    seen: list[Progress] = []
    done = app.ops.rerun(topic="t", with_successors=True, progress=seen.append)
    assert (done.changed, done.matched, done.skipped) == (451, 451, 0)
    assert len(seen) > 1
    assert audited(app) == [(done.op_id, msg_id) for msg_id in ids]
    assert {info.msg_id for info in app.ops.find(status="new", limit=1000)} == set(ids)
    assert [info.msg_id for info in app.ops.find(status="done")] == kept


def test_messages_with_many_behind_them_are_rerun_a_few_at_a_time(app, monkeypatch):
    monkeypatch.setattr(rerunning, "MOST_BEHIND", 20)
    put(app, *((f"o{n % 4}", FAILED) for n in range(120)))
    seen: list[Progress] = []
    assert app.ops.rerun(topic="t", with_successors=True, progress=seen.append) == 120
    assert [one.changed for one in seen][:2] == [30, 60]


def test_what_was_postponed_is_rerun_behind_a_running_message_and_its_outcome_is_written(
    app, table
):
    """The run behind a message is read long before: what a rerun sets to 0 is not read with it."""
    began, may_end = Event(), Event()
    calls: list[Any] = []

    @app.handler("t")
    def handle(msg: Message) -> Any:
        calls.append(msg.msg_id)
        if msg.msg_id == first:
            began.set()
            assert may_end.wait(PATIENCE_SECONDS)
        elif calls.count(msg.msg_id) == 1:
            return RetryLater(0, "not yet")
        return None

    first, second = send(app, "a", "a")
    edit(app, second, later_times=1)
    drained = in_thread(lambda: app.drain(threads=1, linger=1))
    until(began.is_set, "the first one runs")
    assert app.ops.discard(second, reason="r") == 1
    assert app.ops.rerun(second) == 1
    may_end.set()
    drained()
    assert calls == [first, second, second]
    assert table.rows("status", "error_try_times", "crash_times") == [(2, 0, 0), (2, 0, 0)]
