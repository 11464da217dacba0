"""What operators are told about scopes."""

from __future__ import annotations

import pytest

from msgworker import doctor
from msgworker.coordination import DatabaseLocks, Dealer, Instance, Partitions
from msgworker.queries.explain import Reason
from tests.support.rows import Table, send
from tests.support.waiting import launched, until


@pytest.fixture
def busy(app):
    """An App with a handler and two messages."""
    app.add_handler("t", lambda msg: None)
    return app


def told(app):
    found = doctor.examine(app.engine, app.table)
    return " | ".join(one.text for one in found if one.check == "scopes")


def test_explain_says_when_no_live_instance_has_the_flag_of_a_message(busy):
    ids = send(busy, "a", "b")
    table = Table(busy)
    table.edit(table.where(msg_id=ids[0]), instance_type="asB")
    with launched(busy.worker(scope=Instance("asA"), threads=1)):
        found = [busy.ops.explain(i) for i in ids]
        assert [one.reason for one in found] == [Reason.NOBODY_LOOKS] * 2
        assert "instance type asB" in found[0].text
        assert "no instance type yet" in found[1].text
        assert "without an instance type" in told(busy)
        assert "asB" in told(busy)
        Dealer(busy, ["asA"]).deal_once()
        until(lambda: set(table.statuses) == {2}, "asA has done both")
        assert told(busy) == ""


def test_explain_and_doctor_say_when_no_live_member_owns_a_shard(busy):
    locks = DatabaseLocks(busy.engine)
    locks.create_schema()
    scope = Partitions(locks, shards=4, group="g")
    other = locks.acquire("g:shard:1", "another", 30)
    ids = send(busy, "a")
    table = Table(busy)
    table.edit(table.where(msg_id=ids[0]), shard=5)
    with launched(busy.worker(scope=scope, threads=1)) as worker:
        until(lambda: len(scope.view(busy.table)[1]) == 4, "it owns the others")
        worker.instance.heartbeat.wake()
        beat, says = worker.instance.heartbeat, "1 shard is owned by no live member (1)"
        until(lambda: beat.wake() or says in told(busy), "doctor says so")
        found = busy.ops.explain(ids[0])
        assert found.reason is Reason.NOBODY_LOOKS
        assert "owns shard 5" in found.text
        locks.release(other)
        until(lambda: table.statuses == [2], "it is done when the shard is free")
    locks.close()


def test_doctor_says_when_the_owner_of_a_shard_does_not_handle_a_topic_of_the_others(busy):
    locks = DatabaseLocks(busy.engine)
    locks.create_schema()
    busy.add_handler("u", lambda msg: None)
    ones, others = (
        busy.worker(scope=Partitions(locks, shards=4), threads=1, topics=[topic]) for topic in "tu"
    )
    says = [f"2 shards are owned by live members without a handler for topic {t}" for t in "tu"]
    with ones, others:
        for worker in (ones, others):
            worker.start()
        until(lambda: _beats(ones, others) or all(s in told(busy) for s in says), "doctor says so")
        assert "is owned by no live member" not in told(busy)
    locks.close()


def test_doctor_says_when_members_of_a_group_have_different_numbers_of_shards(busy):
    locks = DatabaseLocks(busy.engine)
    locks.create_schema()
    ones, others = (
        busy.worker(scope=Partitions(locks, shards=n, group="g"), threads=1) for n in (2, 6)
    )
    says = ("members of group g have different numbers of shards (2, 6)", "owned by no live member")
    with ones, others:
        for worker in (ones, others):
            worker.start()
        until(lambda: _beats(ones, others) or all(s in told(busy) for s in says), "doctor says so")
    locks.close()


def test_doctor_says_nothing_of_a_shard_that_another_group_looks_at(busy):
    locks = DatabaseLocks(busy.engine)
    locks.create_schema()
    locks.acquire("g:shard:5", "another", 30)
    scopes = [Partitions(locks, shards=n, group=group) for n, group in ((6, "g"), (2, "h"))]
    ones, others = (busy.worker(scope=scope, threads=1) for scope in scopes)
    with ones, others:
        says = "1 shard is owned by no live member (5)"
        ones.start()
        until(lambda: _beats(ones) or says in told(busy), "doctor says so")
        others.start()
        until(lambda: _beats(ones, others) or told(busy) == "", "the other group looks there")
    locks.close()


def _beats(*workers):
    for worker in workers:
        worker.instance.heartbeat.wake()
