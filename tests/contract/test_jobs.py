"""Jobs: many messages, one outcome, which is sent exactly once."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import ConfigError, JobSealed, MessageTable, PayloadError, SchemaError
from msgworker.app import setup_of
from msgworker.cli.jobs import ways_of
from msgworker.db.database import Trouble
from msgworker.errors import KeyUsed
from msgworker.events import JobCompleted
from msgworker.instance.instance import Instance
from msgworker.instance.liveness import housekeeper as closing
from msgworker.ops.repairs import Repairs
from msgworker.queries import jobs as progress
from msgworker.queries.remaining import Left
from msgworker.store import jobs
from msgworker.table.build import JOB_TABLE
from tests.engines import plain_engine
from tests.support.apps import created
from tests.support.databases import SQLITE
from tests.support.leases import registered
from tests.support.refusing import refuse
from tests.support.rows import Table, edit, send
from tests.support.waiting import in_thread, launched, until

DEAD = 3


def job_row(app: Any, job_id: int) -> Any:
    job = JOB_TABLE.of(app.tables)
    with app.engine.connect() as conn:
        return conn.execute(sa.select(job).where(job.c.job_id == job_id)).one()


def complete(app: Any, job: Any, **options: Any) -> jobs.Completed | None:
    with app.engine.begin() as conn:
        return jobs.complete(conn, app.tables, job.job_id, **options)


def ended(app: Any) -> list[int]:
    with app.engine.connect() as conn:
        return jobs.ended(conn, app.tables)[0]


def opened(app: Any, count: int = 2, *, seals: bool = True, **options: Any) -> Any:
    """A job with so many messages, sealed or not."""
    with app.engine.begin() as conn:
        job = app.job("month end", conn=conn, on_complete="report", **options)
        app.send_many(conn, "t", [({"n": n}, f"o{n}") for n in range(count)], job=job)
        if seals:
            job.seal()
    return job


def alive(app: Any, name: str = "alive-1", **options: Any) -> None:
    """An instance lives, which handles every topic."""
    registered(app, name, ttl=3600.0, **options)


def dies(app: Any, *ids: int) -> None:
    for msg_id in ids:
        edit(app, msg_id, status=-1, error_try_times=DEAD, last_error="ValueError: no")


def held(app: Any, job: Any) -> tuple[str, list[tuple[str, int]]]:
    """Its state, and what holds how many of it."""
    found = app.ops.job(job.job_id)
    (listed,) = [one for one in app.ops.jobs() if one.job_id == job.job_id]
    assert listed.state == found.state
    if found.acts:
        assert (found.seconds_left, listed.seconds_left) == (None, None)
    return str(found.state), [(str(one.why), one.count.count) for one in found.holds]


def reports(app: Any) -> list[Any]:
    table = Table(app)
    topics = table.column("topic")
    return [one for one in topics if one == "report"]


# ---------------------------------------------------------------- from the opening to the end


def test_a_job_completes_once_and_its_message_says_how_it_ended(app):
    got: list[Any] = []
    over: list[JobCompleted] = []
    app.on(JobCompleted, over.append)
    app.add_handler("t", lambda msg: None)
    app.add_handler("report", lambda msg: got.append(msg.payload))
    job = opened(app, 5)
    app.drain(linger=0)
    assert got == [{"job": job.job_id, "name": "month end", "done": 5, "dead": 0}]
    assert [(one.job, one.name, one.done, one.dead) for one in over] == [
        (job.job_id, "month end", 5, 0)
    ]
    row = job_row(app, job.job_id)
    assert (row.done, row.dead) == (5, 0)
    assert row.report_id == over[0].report_id == max(Table(app).column("msg_id"))
    app.drain(linger=0)
    assert len(got) == 1


def test_a_running_instance_completes_a_job_within_seconds(app_with):
    app = app_with(lease_seconds=30.0)
    at: list[Any] = []
    app.add_handler("t", lambda msg: None)
    app.add_handler("report", lambda msg: at.append(msg.payload))
    with launched(app.worker(threads=2)):
        opened(app, 3)
        until(lambda: at, "its message was handled", seconds=8)


def test_a_payload_and_an_object_of_one_s_own(app):
    got: list[Any] = []
    app.add_handler("report", lambda msg: got.append((msg.payload, msg.object_id)))
    with app.job("a", on_complete=("report", {"month": "2026-10"}, "C-1")):
        pass  # nothing is sent into it: it ends at once
    app.drain(linger=0)
    assert got == [({"month": "2026-10"}, "C-1")]


@pytest.mark.requires("lengths")
def test_a_job_whose_message_would_not_fit_into_its_column_is_not_opened(app, make_app):
    with app.engine.begin() as conn:
        payload = app.tables.message.c.payload
        quoted = conn.dialect.identifier_preparer.quote(payload.name)
        conn.exec_driver_sql(f"ALTER TABLE msgworker_message DROP COLUMN {quoted}")
        conn.exec_driver_sql(f"ALTER TABLE msgworker_message ADD {quoted} VARCHAR(40)")
    other = make_app(app.engine)
    assert other.job("a", on_complete="report").job_id
    with pytest.raises(PayloadError, match="takes 40 at most"):
        other.job("a" * 40, on_complete="report")
    assert len(other.ops.jobs()) == 1


def test_a_job_in_transactions_of_its_own_is_sealed_by_the_end_of_its_block(app):
    app.add_handler("t", lambda msg: None)
    with app.job("a", on_complete="report") as job:
        send(app, "x", job=job)
        send(app, "y", job=app.job(job.job_id))
        assert job_row(app, job.job_id).sealed_at is None
    assert job_row(app, job.job_id).sealed_at is not None
    assert Table(app).column("job_id") == [job.job_id] * 2
    with pytest.raises(JobSealed, match="sealed"):
        send(app, "z", job=job)
    assert job.seal() is False


def test_a_block_that_raises_leaves_the_job_open_and_a_rollback_leaves_none(app):
    with pytest.raises(ZeroDivisionError), app.job("a") as job:
        raise ZeroDivisionError
    assert job_row(app, job.job_id).sealed_at is None
    assert ended(app) == []
    with app.engine.connect() as conn:
        with app.job("b", conn=conn) as gone:
            app.send(conn, "t", job=gone)
        conn.rollback()
    with pytest.raises(ConfigError, match="no job"):
        send(app, "x", job=gone)


def test_a_job_and_its_messages_by_plain_sql(app):
    """What another program does."""
    t = app.tables
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "INSERT INTO msgworker_job (table_name, name, on_complete) "
            f"VALUES ('{t.spec.bare_name}', 'by hand', 'report')"
        )
        job_id = conn.scalar(sa.text("SELECT MAX(job_id) FROM msgworker_job"))
        conn.exec_driver_sql(
            f"INSERT INTO {t.spec.name} (topic, object_id, job_id) VALUES ('t', 'o', {job_id})"
        )
        conn.exec_driver_sql(
            f"UPDATE msgworker_job SET sealed_at = opened_at WHERE job_id = {job_id}"
        )
    got: list[Any] = []
    app.add_handler("t", lambda msg: None)
    app.add_handler("report", lambda msg: got.append(msg.payload["done"]))
    app.drain(linger=0)
    assert got == [1]


# ---------------------------------------------------------------- handlers that send into it


@pytest.mark.parametrize("kind", ["plain", "transactional", "batch", "group"])
def test_a_handler_sends_into_the_sealed_job_of_its_message(app, kind):
    got: list[Any] = []
    options: dict[str, Any] = {
        "plain": {},
        "transactional": {"transactional": True},
        "batch": {"transactional": True, "batch": 10},
        "group": {"transactional": True, "group": 10},
    }[kind]

    @app.handler("t", **options)
    def first(msg: Any, ctx: Any) -> None:
        for one in msg if isinstance(msg, list) else [msg]:
            of = {"of": one} if isinstance(msg, list) else {}
            ctx.send("second", one.payload, job=True, **of)
            ctx.send("beside", one.payload, **of)

    app.add_handler("second", lambda msg: None)
    app.add_handler("beside", lambda msg: None)
    app.add_handler("report", lambda msg: got.append(msg.payload["done"]))
    opened(app, 3)
    send(app, "of no job")
    opened(app, 1)  # a batch has messages of both
    app.drain(linger=0)
    assert sorted(got) == [2, 6]


def test_a_message_of_no_job_sends_into_none_and_another_job_is_refused(app):
    seen: list[str] = []

    @app.handler("t")
    def first(msg: Any, ctx: Any) -> None:
        ctx.send("second", job=True)
        with pytest.raises(ConfigError, match="job=True") as why:
            ctx.send("second", job=17)
        seen.append(str(why.value))

    app.add_handler("second", lambda msg: None)
    send(app, "a")
    app.drain(linger=0)
    assert Table(app).column("job_id") == [None, None]
    assert len(seen) == 1


# ---------------------------------------------------------------- exactly once, and not too early


def test_it_waits_for_the_seal_and_for_all_messages(app):
    job = opened(app, 2, seals=False)
    for msg_id in Table(app).column("msg_id"):
        edit(app, msg_id, status=2)
    assert complete(app, job) is None
    assert ended(app) == []
    job = opened(app, 1)
    (msg_id,) = Table(app).column("msg_id")[2:]
    for status, tries in ((0, 0), (1, 0), (-1, 1), (-1, 2)):
        edit(app, msg_id, status=status, error_try_times=tries)
        assert complete(app, job) is None, (status, tries)
        assert ended(app) == []
    edit(app, msg_id, status=2)
    assert ended(app) == [job.job_id]
    assert complete(app, job) is not None
    assert complete(app, job) is None
    assert ended(app) == []
    assert reports(app) == ["report"]


@pytest.mark.requires("row_locks")
def test_two_settles_that_end_the_last_two_messages_at_once(app):
    """Each sees the other's as unfinished: who looks after both has to find it."""
    job = opened(app, 2)
    t = app.tables
    ids = Table(app).column("msg_id")

    def end(conn: Any, msg_id: int) -> None:
        column = t.message.c
        conn.execute(sa.update(t.message).values(status=2).where(column.msg_id == msg_id))

    with app.engine.connect() as one, app.engine.connect() as two:
        end(one, ids[0])
        end(two, ids[1])
        with app.engine.connect() as third:
            assert jobs.ended(third, t)[0] == []
        one.commit()
        assert ended(app) == []
        two.commit()
    assert ended(app) == [job.job_id]
    assert complete(app, job) is not None


@pytest.mark.requires("row_locks")
def test_two_that_complete_at_once_send_one_message(app):
    job = opened(app, 0)
    with app.engine.connect() as one:
        assert jobs.complete(one, app.tables, job.job_id) is not None
        assert complete(app, job) is None  # it does not wait
        one.commit()
    assert complete(app, job) is None
    assert reports(app) == ["report"]


def test_a_look_for_jobs_that_have_ended_goes_on_behind_those_that_have_not(app, monkeypatch):
    waits, over = opened(app, 1), opened(app, 0)
    assert ended(app) == [over.job_id]
    monkeypatch.setattr(jobs, "LOOKED_AT", 2)  # behind that, of whose statement it is a part
    with app.engine.connect() as conn:
        found, behind = jobs.ended(conn, app.tables)
        assert (found, behind) == ([over.job_id], over.job_id)
        assert jobs.ended(conn, app.tables, after=over.job_id) == ([], None)
    assert waits.job_id < over.job_id


def test_a_completion_that_is_rolled_back_is_done_by_the_next_look(app):
    job = opened(app, 0)
    with app.engine.connect() as one:
        assert jobs.complete(one, app.tables, job.job_id) is not None
        one.rollback()
    assert reports(app) == []
    assert ended(app) == [job.job_id]
    assert complete(app, job) is not None
    assert reports(app) == ["report"]


@pytest.mark.requires("row_locks")
def test_the_seal_waits_for_a_transaction_that_has_sent(app):
    """So a message that commits late cannot come after the end."""
    job = opened(app, 1, seals=False)
    for msg_id in Table(app).column("msg_id"):
        edit(app, msg_id, status=2)
    sealed = threading.Event()

    def seal() -> None:
        app.job(job.job_id).seal()
        sealed.set()

    with app.engine.connect() as late:
        app.send(late, "t", job=job.job_id)
        join = in_thread(seal)
        assert not sealed.wait(0.5)
        assert complete(app, job) is None
        late.commit()
    join()
    assert job_row(app, job.job_id).sealed_at is not None
    assert complete(app, job) is None
    assert ended(app) == []


@pytest.mark.requires("row_locks")
def test_senders_of_one_job_do_not_wait_for_each_other(app):
    if app.engine.dialect.name == "oracle":
        pytest.skip("no shared locks of rows there")
    job = opened(app, 0, seals=False)
    with app.engine.connect() as one, app.engine.connect() as two:
        app.send(one, "t", job=job.job_id)
        app.send(two, "t", job=job.job_id)
        two.commit()
        one.commit()
    assert Table(app).column("job_id") == [job.job_id] * 2


# ---------------------------------------------------------------- dead messages, reruns


def test_dead_messages_complete_a_job_unless_it_waits_for_its_operator(app):
    over, waits = opened(app, 1), opened(app, 1, on_dead="wait")
    dead = Table(app).column("msg_id")
    for msg_id in dead:
        edit(app, msg_id, status=-1, error_try_times=DEAD, last_error="ValueError: no")
    assert ended(app) == [over.job_id]
    done = complete(app, over)
    assert done is not None
    assert (done.done, done.dead) == (0, 1)
    assert complete(app, waits) is None
    app.ops.discard([dead[1]], reason="paid by hand", actor="anna")
    assert complete(app, waits) is not None


def test_a_rerun_of_one_that_waits_lets_it_complete(app):
    app.add_handler("t", lambda msg: None)
    job = opened(app, 1, on_dead="wait")
    (dead,) = Table(app).column("msg_id")
    edit(app, dead, status=-1, error_try_times=DEAD)
    app.drain(linger=0)
    assert reports(app) == []
    app.ops.rerun([dead], actor="anna")
    app.drain(linger=0)
    assert reports(app) == ["report"]
    assert job_row(app, job.job_id).done == 1


def test_a_rerun_after_the_end_sends_nothing_again(app):
    app.add_handler("t", lambda msg: None)
    job = opened(app, 1)
    app.drain(linger=0)
    first = job_row(app, job.job_id)
    assert app.ops.rerun(job=job.job_id, status="done", force=True, actor="anna") == 1
    found = app.ops.job(job.job_id)
    assert (found.state, found.percent, found.total.count) == ("completed", "0.0", 1)
    assert (found.waiting.count, found.done.count, found.completed_done) == (1, 0, 1)
    app.drain(linger=0)
    assert job_row(app, job.job_id) == first
    assert reports(app) == ["report"]


# ---------------------------------------------------------------- bad input


@SQLITE
def test_a_job_that_cannot_be_opened(app, subtests):
    for options, says in (
        ({"name": ""}, "1 to 190 characters"),
        ({"name": "x" * 191}, "1 to 190 characters"),
        ({"name": "a\x00"}, "NUL"),
        ({"name": None}, "1 to 190 characters"),
        ({"name": "a", "on_dead": "stop"}, "on_dead"),
        ({"name": "a", "on_complete": 5}, "on_complete"),
        ({"name": "a", "on_complete": ()}, "on_complete"),
        ({"name": "a", "on_complete": ("t", 1, "o", 2)}, "on_complete"),
        ({"name": "a", "on_complete": ""}, "topic"),
        ({"name": "a", "on_complete": ("t", None, "o" * 191)}, "object_id"),
        ({"name": "a", "opened_by": 5}, "opened_by"),
        ({"name": 5, "on_complete": "t"}, "open already"),
    ):
        with subtests.test(options=options, says=says):
            others = {name: value for name, value in options.items() if name != "name"}
            with pytest.raises(ConfigError, match=says):
                app.job(options["name"], **others)
            with app.engine.connect() as conn:
                assert (
                    conn.scalar(sa.select(sa.func.count()).select_from(JOB_TABLE.of(app.tables)))
                    == 0
                )


@SQLITE
def test_a_job_that_is_none(app, subtests):
    for job in (True, "1", 0, -1, 2**63, 99, 1.0):
        with subtests.test(job=job):
            with pytest.raises(ConfigError, match="job"):
                send(app, "a", job=job)
            assert Table(app).statuses == []


@SQLITE
def test_an_id_that_is_none(app, subtests):
    for job in (True, 0, -5, 2**63):
        with subtests.test(job=job), pytest.raises(ConfigError, match="the id of a job"):
            app.job(job)


def test_a_seal_of_a_job_that_is_not_there(app):
    with pytest.raises(ConfigError, match="no job 99"):
        app.job(99).seal()
    job = opened(app, 0)
    assert app.job(job.job_id).seal() is False


def test_a_job_of_another_table_is_none_of_ours(make_app):
    ours, theirs = make_app(), make_app(table=MessageTable("msg_theirs", job_id="job_id"))
    ours.create_schema()
    theirs.create_schema()
    job = opened(ours, 0)
    with pytest.raises(ConfigError, match="no job"):
        send(theirs, "a", job=job.job_id)
    assert ended(theirs) == []


def test_a_table_without_the_column_has_no_jobs(make_app):
    app = created(make_app(table=MessageTable("msg_without")))
    with pytest.raises(SchemaError, match="job_id"):
        app.job("a")
    app.add_handler("t", lambda msg: None)
    send(app, "a")
    assert app.drain(linger=0).done == 1


def test_a_job_may_wait_for_dead_messages_only_where_they_can_be_discarded(make_app):
    app = created(make_app(table=MessageTable("msg_plain", job_id="job_id", last_error=None)))
    with pytest.raises(ConfigError, match="last_error"):
        app.job("a", on_dead="wait")
    assert app.job("a").job_id == 1


# ---------------------------------------------------------------- what operators see and do


def test_how_far_a_job_is(app):
    alive(app)
    job = opened(app, 6, opened_by="anna")
    ids = Table(app).column("msg_id")
    edit(app, ids[0], status=1)
    edit(app, ids[1], status=2)
    edit(app, ids[2], status=-1, error_try_times=1)
    edit(app, ids[3], status=-1, error_try_times=DEAD)
    found = app.ops.job(job.job_id)
    counts = [found.waiting, found.running, found.done, found.dead, found.total, found.ended]
    assert [one.count for one in counts] == [3, 1, 1, 1, 6, 2]
    assert found.state == "running"
    assert round(found.share, 3) == 0.333
    assert (found.name, found.opened_by, found.on_complete) == ("month end", "anna", "report")
    assert found.rate > 0
    assert found.seconds_left > 0
    assert [one.job_id for one in app.ops.jobs(is_open=True)] == [job.job_id]
    assert app.ops.jobs(is_open=False) == []
    assert app.ops.job(job.job_id + 1) is None
    app.ops.pause_job(job.job_id, actor="anna")  # what runs goes on, and the others have no end
    found = app.ops.job(job.job_id)
    assert (found.state, found.rate is None, found.seconds_left) == ("paused", False, None)
    app.ops.cancel_job(job.job_id, reason="wrong month", actor="anna")
    found = app.ops.job(job.job_id)
    assert (found.state, found.rate is None, found.seconds_left) == ("cancelled", False, None)


@pytest.mark.parametrize(
    ("statuses", "says", "rate", "left"),
    [
        ((0, 0, 0, 2), "at most 33.3", True, False),
        ((0, 2, 2, 2), "at least 66.7", False, False),
        ((0, 0, 2, 2), "?", False, False),
        ((0, 0, 0, 0), "0.0", False, False),
        ((0, 1, 2, -1), "50.0", True, True),
        ((2, 2, 2, 2), "at least 100.0", False, False),
    ],
)
def test_what_was_not_counted_is_said_and_makes_no_wrong_number(app, statuses, says, rate, left):
    alive(app)
    job = opened(app, 4)
    for msg_id, status in zip(Table(app).column("msg_id"), statuses, strict=True):
        edit(app, msg_id, status=status, error_try_times=DEAD if status < 0 else 0)
    with app.engine.connect() as conn:
        found = progress.show(conn, app.tables, job.job_id, most=2)
    assert found.percent == says
    assert (found.rate is not None, found.seconds_left is not None) == (rate, left)
    assert (found.share is None) == ("a" in says or says == "?")


def test_a_large_job_is_counted_in_parts(app, monkeypatch):
    monkeypatch.setattr(jobs, "PART", 2)
    job = opened(app, 9)
    for n, msg_id in enumerate(Table(app).column("msg_id")):
        edit(app, msg_id, status=2 if n < 5 else -1, error_try_times=0 if n < 5 else DEAD)
    t = replace(app.tables, _built={})  # PART is a literal of the statement
    with app.engine.begin() as conn:
        over = jobs.complete(conn, t, job.job_id)
    assert (over.done, over.dead) == (5, 4)


def test_a_job_of_which_a_dead_message_is_rerun_while_it_is_counted_is_counted_again(app):
    job = opened(app, 3)
    ids = Table(app).column("msg_id")
    for msg_id, status in zip(ids, (-1, 2, 2), strict=True):
        edit(app, msg_id, status=status, error_try_times=DEAD if status < 0 else 0)
    asked = itertools.count()

    @contextmanager
    def statement() -> Any:
        if next(asked) == 1:
            edit(app, ids[0], status=2, error_try_times=0)  # it is rerun, and done
        with app.engine.connect() as conn:
            yield conn

    had = jobs.ended_of(statement, app.tables, job.job_id)
    assert complete(app, job, had=had) is None
    over = complete(app, job)
    assert (over.done, over.dead) == (3, 0)


def test_a_job_of_which_a_done_message_is_rerun_once_it_was_counted_stays_open(app):
    job = opened(app, 2)
    ids = Table(app).column("msg_id")
    Table(app).edit(status=2)
    had = jobs.ended_of(app.engine.connect, app.tables, job.job_id)
    assert had == {"done": 2, "dead": 0}
    edit(app, ids[0], status=0)
    assert complete(app, job, had=had) is None
    edit(app, ids[0], status=2)
    assert complete(app, job, had=had) is not None


def test_a_list_counts_its_first_jobs_further(app, monkeypatch):
    for _ in range(3):
        opened(app, 4)
    monkeypatch.setattr(progress, "OF_A_LIST", (5, 2))
    monkeypatch.setattr(progress, "LISTED", 8)
    assert [str(one.waiting) for one in app.ops.jobs()] == ["4", "4", "2+"]


@pytest.mark.requires("rows_by_index")
def test_none_found_before_counting_stopped_may_be_some(app, monkeypatch):
    monkeypatch.setattr(jobs, "DEAD_LOOKED_AT", 2)
    alive(app)
    job = opened(app, 3, on_dead="wait")
    ids = Table(app).column("msg_id")
    dies(app, *ids)
    app.ops.discard(ids[:2], reason="paid by hand", actor="anna")
    t = replace(app.tables, _built={})  # what is looked at is a literal of the statement
    with app.engine.connect() as conn:
        found = progress.show(conn, t, job.job_id)
        (listed,) = progress.find(conn, t, is_open=None, limit=5, after=None)
    assert (str(found.to_rerun), listed.to_rerun) == ("0+", None)
    assert (found.state, listed.state, found.rate) == ("waits", "waits", None)
    commands = [command.partition(" --")[0] for command, _ in ways_of(found, blocks=False)]
    assert commands == ["rerun", "discard", f"jobs cancel {job.job_id}"]
    with app.engine.connect() as conn:
        awaited = jobs.awaited(conn, t, job.job_id)
    assert Left(job=job.job_id, dead_awaited=awaited).job_waits


def test_the_states_of_a_job(app):
    alive(app)
    job = opened(app, 1, seals=False, on_dead="wait")

    def state() -> str:
        return str(app.ops.job(job.job_id).state)

    assert state() == "open"
    assert app.ops.seal_job(job.job_id, dry_run=True, actor="anna") == 1
    assert app.ops.seal_job(job.job_id, actor="anna") == 1
    assert app.ops.seal_job(job.job_id, actor="anna") == 0
    assert state() == "running"
    (msg_id,) = Table(app).column("msg_id")
    edit(app, msg_id, status=-1, error_try_times=DEAD)
    assert state() == "waits"
    found = app.ops.job(job.job_id)
    assert (found.ended.count, found.rate, found.seconds_left) == (1, None, None)
    assert [one.to_rerun for one in app.ops.jobs()] == [None]
    edit(app, msg_id, status=2)
    assert complete(app, job) is not None
    assert state() == "completed"
    app.ops.rerun([msg_id], force=True, actor="anna")
    found = app.ops.job(job.job_id)
    assert (found.waiting.count, found.done.count) == (1, 0)
    assert found.completed_at is not None


# ---------------------------------------------------------------- what holds a job


@pytest.fixture
def blocking(make_app):
    """A table whose dead messages block their object, and an instance that lives."""
    app = created(make_app(table=MessageTable(on_dead="block")))
    alive(app)
    return app


def test_a_job_behind_dead_messages_says_so_and_has_no_time_left(blocking):
    app = blocking
    with app.engine.begin() as conn, app.job("a", conn=conn) as job:
        app.send_many(conn, "t", [(None, f"o{n % 2}") for n in range(6)], job=job)
        app.send_many(conn, "t", [(None, "free")] * 2, job=job)
    one, two, *_, free, last = Table(app).column("msg_id")
    edit(app, free, status=2)
    assert app.ops.job(job.job_id).seconds_left > 0
    dies(app, one, two)
    found = app.ops.job(job.job_id)  # one that is free goes on, and yet it has no end
    assert (found.state, found.rate is None, found.seconds_left) == ("running", False, None)
    edit(app, last, status=2)
    assert held(app, job) == ("held", [("dead", 4)])
    found = app.ops.job(job.job_id)
    (hold,) = found.holds
    assert (hold.msg_id, hold.ours, hold.needs_act, found.rate) == (one, True, True, None)
    assert hold.text == f"4 wait behind 2 dead messages, such as message {one}"
    app.ops.discard(two, reason="paid by hand", actor="anna")
    assert held(app, job) == ("running", [("dead", 2)])
    assert app.ops.rerun(job=job.job_id, actor="anna") == 1
    assert held(app, job) == ("running", [])


def test_a_job_behind_dead_messages_that_are_not_of_it(blocking):
    app = blocking
    before, gone = send(app, "a", "b")
    job = opened(app, 0, seals=False)
    with app.engine.begin() as conn:
        app.send(conn, "t", object_id="a", job=job)
        job.seal(conn)
    dies(app, before, gone)
    assert held(app, job) == ("held", [("dead", 1)])
    (hold,) = app.ops.job(job.job_id).holds
    assert (hold.msg_id, hold.ours) == (before, False)


def test_what_a_job_waits_for(app):
    """Each that needs an act, and what comes by itself."""
    job = opened(app, 2)
    first, second = Table(app).column("msg_id")
    assert held(app, job) == ("held", [("no handler", 2)])
    assert "no instance lives" in app.ops.job(job.job_id).holds[0].text
    alive(app, topics=["other"])
    assert held(app, job) == ("held", [("no handler", 2)])
    assert app.ops.job(job.job_id).holds[0].topic == "t"
    alive(app, "alive-2", topics=["t"])
    assert held(app, job) == ("running", [])
    app.ops.pause("t", actor="anna")
    assert held(app, job) == ("held", [("paused", 2)])
    assert app.ops.job(job.job_id).holds[0].text == "2 wait: topic t is paused by anna"
    app.ops.resume("t", actor="anna")
    edit(app, first, status=-1, error_try_times=1)
    edit(app, second, available_at=datetime(2999, 1, 1, tzinfo=UTC))
    assert held(app, job) == ("running", [("later", 1)])
    edit(app, first, available_at=datetime(2999, 1, 1, tzinfo=UTC))
    assert held(app, job) == ("running", [("retry", 1), ("later", 1)])
    found = app.ops.job(job.job_id)
    assert (found.rate, found.seconds_left, found.acts) == (None, None, ())
    edit(app, first, status=1, claimed_by="gone-1")  # its instance is dead: another gives it back
    assert held(app, job) == ("running", [("later", 1)])


def test_a_job_beside_a_drain_of_another_job(app):
    job = opened(app, 1)
    alive(app, scope={"kind": "job", "job": job.job_id + 1})
    assert held(app, job) == ("held", [("other slices", 1)])
    (hold,) = app.ops.job(job.job_id).holds
    assert hold.text == "1 waits: what lives handles other jobs alone"
    alive(app, "alive-2", scope={"kind": "job", "job": job.job_id})
    assert held(app, job) == ("running", [])


def test_a_job_behind_one_that_is_paused(app):
    alive(app)
    first = opened(app, 1)
    second = opened(app, 1)  # of the same object
    app.ops.pause_job(first.job_id, actor="anna")
    assert held(app, first) == ("paused", [])
    assert held(app, second) == ("held", [("paused", 1)])
    (hold,) = app.ops.job(second.job_id).holds
    assert (hold.ours, hold.topic) == (False, None)


def test_a_paused_job_of_which_one_runs_has_no_time_left(app):
    alive(app)
    job = opened(app, 3)
    done, runs, _ = Table(app).column("msg_id")
    edit(app, done, status=2)
    edit(app, runs, status=1, claimed_by="alive-1")
    edit_opened = {"opened_at": datetime.now(UTC) - timedelta(hours=1)}
    with app.engine.begin() as conn:
        conn.execute(sa.update(JOB_TABLE.of(app.tables)).values(edit_opened))
    assert app.ops.job(job.job_id).seconds_left > 0
    app.ops.pause_job(job.job_id, actor="anna")
    found = app.ops.job(job.job_id)
    assert (found.state, found.running.count, found.seconds_left) == ("paused", 1, None)


def test_messages_without_an_object_wait_for_themselves(app):
    alive(app)
    with app.engine.begin() as conn, app.job("a", conn=conn) as job:
        ids = [app.send(conn, "t", job=job) for _ in range(3)]
    assert held(app, job) == ("running", [])
    edit(app, ids[0], status=1)
    app.ops.pause("t", actor="anna")
    assert held(app, job) == ("running", [("paused", 2)])


def test_what_holds_a_large_job_is_said_of_its_oldest_and_newest(blocking, monkeypatch):
    monkeypatch.setattr(progress, "LOOKED_AT_OF_A_LIST", 2)
    app = blocking
    with app.engine.begin() as conn, app.job("a", conn=conn) as job:
        app.send_many(conn, "t", [(None, "o")] * 5, job=job)
    first, *_ = Table(app).column("msg_id")
    dies(app, first)
    assert held(app, job) == ("held", [("dead", 4)])
    (listed,) = app.ops.jobs()
    assert listed.holds[0].text.startswith("2+ of 4 wait behind 1+ dead messages, such as")
    with app.engine.begin() as conn:
        app.send(conn, "t", object_id="free")
    edit(app, max(Table(app).column("msg_id")), job_id=job.job_id)
    (listed,) = app.ops.jobs()
    assert (listed.state, listed.seconds_left) == ("running", None)


def test_a_job_that_waits_for_its_operator_counts_what_it_waits_for(app):
    job, other = opened(app, 3, on_dead="wait"), opened(app, 1)
    ids = Table(app).column("msg_id")
    dies(app, *ids)
    # No instance lives to complete the other one, whose dead message has ended.
    assert held(app, other) == ("held", [("no handler", 0)])
    assert held(app, job) == ("waits", [("dead", 3)])
    app.ops.discard(ids[0], reason="paid by hand", actor="anna")
    assert held(app, job) == ("waits", [("dead", 2)])
    found = app.ops.job(job.job_id)
    assert (found.dead.count, found.to_rerun.count) == (3, 2)
    assert app.ops.rerun(job=job.job_id, dry_run=True) == 2
    (hold,) = found.holds
    assert hold.text == "it waits for 2 dead messages, until they are rerun or discarded"
    app.ops.discard(job=job.job_id, status="dead", reason="paid by hand", actor="anna")
    alive(app)
    assert held(app, job) == ("running", [])  # it is about to complete
    assert complete(app, job) is not None
    found = app.ops.job(job.job_id)
    assert (found.state, found.completed_done, found.completed_dead) == ("completed", 0, 3)


def test_a_completed_job_shows_what_was_rerun_since(app, monkeypatch):
    job = opened(app, 4)
    ids = Table(app).column("msg_id")
    for msg_id in ids[:2]:
        edit(app, msg_id, status=2)
    dies(app, *ids[2:])
    complete(app, job)

    def now() -> tuple[int, ...]:
        shown = [app.ops.job(job.job_id), *app.ops.jobs()]
        found = [
            (*(n.count for n in (one.waiting, one.done, one.dead, one.total)), one.percent)
            for one in shown
        ]
        assert found[0] == found[1]
        assert {(one.completed_done, one.completed_dead) for one in shown} == {(2, 2)}
        assert {one.state for one in shown} == {"completed"}
        return found[0]

    assert now() == (0, 2, 2, 4, "100.0")
    assert app.ops.rerun(job=job.job_id, actor="anna") == 2
    assert now() == (2, 2, 0, 4, "50.0")
    edit(app, ids[2], status=2)
    dies(app, ids[3])
    assert now() == (0, 3, 1, 4, "100.0")
    edit(app, ids[3], status=2)
    assert now() == (0, 4, 0, 4, "100.0")
    with app.engine.begin() as conn:  # a purge has taken some: what they were is not known any more
        conn.execute(sa.delete(app.tables.message).where(Table(app).where(msg_id=ids[0])))
    assert now() == (0, 3, 0, 4, "100.0")


def test_failed_messages_behind_many_dead_ones_are_counted_up_to_a_bound(app, monkeypatch):
    monkeypatch.setattr(jobs, "SCAN", 4)
    job = opened(app, 6)
    *dead, again = Table(app).column("msg_id")
    dies(app, *dead)
    edit(app, again, status=-1, error_try_times=1)
    t = replace(app.tables, _built={})  # SCAN is a literal of the statement
    with app.engine.connect() as conn:
        found = jobs.counts(conn, t, job.job_id, most=2)
        assert [(found[name].count, found[name].more) for name in ("waiting", "dead")] == [
            (0, True),
            (2, True),
        ]
        found = jobs.counts(conn, t, job.job_id, most=9)
        assert [str(found[name]) for name in ("waiting", "retrying", "dead")] == ["1", "1", "5"]


def test_an_edited_message_of_a_job_waits_and_has_not_failed(app):
    job = opened(app, 3)
    edited, failed, new = Table(app).column("msg_id")
    edit(app, edited, available_at=datetime(2100, 1, 1, tzinfo=UTC))
    assert app.ops.edit(edited, payload=1, reason="r") == 1
    edit(app, failed, status=-1, error_try_times=1)
    alive(app)
    (found,) = app.ops.jobs()
    assert [str(one) for one in (found.waiting, found.retrying, found.dead)] == ["3", "1", "0"]
    for msg_id in (failed, new):
        edit(app, msg_id, status=2)
    assert held(app, job)[1] == [("later", 1)]


def test_pages_of_jobs(app):
    ids = [opened(app, 0).job_id for _ in range(5)]
    first = app.ops.jobs(limit=2)
    assert [one.job_id for one in first] == [ids[4], ids[3]]
    second = app.ops.jobs(limit=3, after=first.next_after)
    assert [one.job_id for one in second] == [ids[2], ids[1], ids[0]]
    assert app.ops.jobs(limit=3, after=second.next_after) == []


def test_the_messages_of_a_job_are_found_and_chosen(app):
    others, job = opened(app, 2), opened(app, 5)
    ids = [row[0] for row in Table(app).rows("msg_id", "job_id") if row[1] == job.job_id]
    for msg_id in ids[:2]:
        edit(app, msg_id, status=-1, error_try_times=DEAD, last_error="ValueError: no")
    edit(app, ids[2], status=2)
    assert [one.msg_id for one in app.ops.find(job=job.job_id)] == ids
    assert {one.job_id for one in app.ops.find(job=job.job_id)} == {job.job_id}
    assert [one.msg_id for one in app.ops.find(job=job.job_id, status="dead")] == ids[:2]
    assert [one.msg_id for one in app.ops.find(job=job.job_id, limit=2, after=ids[1])] == ids[2:4]
    assert [one.msg_id for one in app.ops.find(job=job.job_id, object_id="o3")] == [ids[3]]
    assert {one.msg_id for one in app.ops.messages(job=job.job_id)} == set(ids)
    assert app.ops.find(job=others.job_id + 99) == []
    assert app.ops.rerun(job=job.job_id, actor="anna") == 2
    assert app.ops.discard(job=others.job_id, reason="no", actor="anna") == 2
    with pytest.raises(ConfigError, match="job"):
        app.ops.find(job=0)


def test_a_cancelled_job_sends_nothing(app):
    app.add_handler("t", lambda msg: None)
    job = opened(app, 3, seals=False, on_dead="wait")
    first, *_ = Table(app).column("msg_id")
    edit(app, first, status=-1, error_try_times=DEAD, last_error="ValueError: no")
    assert app.ops.cancel_job(job.job_id, dry_run=True, actor="anna") == 2
    with pytest.raises(ConfigError, match="reason"):
        app.ops.cancel_job(job.job_id, actor="anna")
    done = app.ops.cancel_job(job.job_id, reason="wrong month", actor="anna")
    assert done == 2
    app.drain(linger=0)
    assert reports(app) == []
    row = job_row(app, job.job_id)
    assert (row.done, row.dead, row.report_id) == (0, 3, None)
    assert row.completed_at is not None
    assert app.ops.job(job.job_id).state == "cancelled"
    with pytest.raises(JobSealed):
        send(app, "x", job=job)
    with pytest.raises(ConfigError, match="has completed"):
        app.ops.cancel_job(job.job_id, reason="again", actor="anna")
    kinds = [(one.kind, one.about) for one in app.ops.audit()]
    assert kinds == [("cancel", None), ("cancel-job", str(job.job_id))]


def test_what_handlers_have_sent_into_a_job_that_is_being_cancelled_is_cancelled_too(
    app, monkeypatch
):
    job = opened(app, 2)
    real = Repairs.cancel

    def cancel(ops: Any, *args: Any, **asked: Any) -> Any:
        done = real(ops, *args, **asked)
        if "status" not in asked:
            with app.engine.begin() as conn:
                app.send(conn, "t", {}, object_id="late")
            edit(app, max(Table(app).column("msg_id")), job_id=job.job_id)
        return done

    monkeypatch.setattr(Repairs, "cancel", cancel)
    assert app.ops.cancel_job(job.job_id, reason="wrong month", actor="anna") == 3
    assert Table(app).column("status") == [-1, -1, -1]


def test_a_cancel_of_a_job_by_a_request_with_a_key_cancels_its_messages(app, monkeypatch):
    job = opened(app, 2)
    by_key = app.ops.acting(actor="anna", key="INC-4711")
    with monkeypatch.context() as patched:  # it is interrupted
        patched.delattr(Repairs, "cancel")
        with pytest.raises(AttributeError):
            by_key.cancel_job(job.job_id, reason="wrong month")
    assert app.ops.recorded("INC-4711") is None
    assert by_key.cancel_job(job.job_id, reason="wrong month") == 2
    assert Table(app).column("status") == [-1, -1]
    assert app.ops.recorded("INC-4711").changed == 2
    send(app, "late")
    edit(app, max(Table(app).column("msg_id")), job_id=job.job_id)
    other = opened(app, 1)
    for one in (job, other):
        with pytest.raises(KeyUsed):
            by_key.cancel_job(one.job_id, reason="wrong month")
    assert app.ops.job(other.job_id).cancelled_at is None


def test_a_purge_leaves_dead_messages_that_a_job_waits_for(app):
    waits, goes_on = opened(app, 2, on_dead="wait"), opened(app, 1)
    first, given_up, other = Table(app).column("msg_id")
    for msg_id in (first, given_up, other):
        edit(app, msg_id, status=-1, error_try_times=DEAD)
    app.ops.discard([given_up], reason="r")
    Table(app).edit(sa.true(), finished_at=datetime.now(UTC) - timedelta(days=9))
    assert app.ops.purge("8d", dead=True, dry_run=True).matched == 2
    assert app.ops.purge("8d", dead=True).changed == 2
    assert Table(app).column("msg_id") == [first]
    assert (complete(app, waits), complete(app, goes_on) is None) == (None, False)


def test_a_purge_takes_the_jobs_that_have_no_message_left(app, monkeypatch):
    app.add_handler(None, lambda msg: None)
    whole, part, *others = (opened(app, 2) for _ in range(6))
    waits = opened(app, 1, seals=False)
    bad = Table(app).column("msg_id")[2]
    edit(app, bad, status=-1, error_try_times=DEAD)
    app.drain(linger=0)
    now = datetime.now(UTC)
    with app.engine.begin() as conn:
        job = JOB_TABLE.of(app.tables)
        long_ago = {"completed_at": now - timedelta(days=9)}
        ended = job.c.completed_at.is_not(None)
        conn.execute(sa.update(job).where(ended, job.c.job_id != whole.job_id).values(long_ago))
    Table(app).edit(sa.true(), finished_at=now - timedelta(days=9))
    monkeypatch.setattr(jobs, "LOOKED_AT", 2)
    app.ops.purge("8d")
    left = {one.job_id for one in app.ops.jobs()}
    assert left == {whole.job_id, part.job_id, waits.job_id}  # new; with a dead message; open
    app.ops.purge("8d", dead=True)
    assert {one.job_id for one in app.ops.jobs()} == {whole.job_id, waits.job_id}
    with pytest.raises(ConfigError, match="it was purged"):
        send(app, "a", job=others[0].job_id)


def test_jobs_that_are_not_there(app, make_app):
    with pytest.raises(ConfigError, match="no job 99"):
        app.ops.seal_job(99, actor="anna")
    with pytest.raises(ConfigError, match="no job 99"):
        app.ops.cancel_job(99, reason="x", actor="anna")
    without = created(make_app(table=MessageTable("msg_without")))
    assert without.ops.jobs() == []
    assert without.ops.job(1) is None
    with pytest.raises(ConfigError, match="no job_id column"):
        without.ops.find(job=1)
    with pytest.raises(SchemaError, match="job_id"):
        without.ops.seal_job(1, actor="anna")


def test_a_job_whose_message_is_refused_holds_up_no_other(app, caplog):
    app.add_handler("t", lambda msg: None)
    bad = app.job("bad", on_complete="refused")
    bad.seal()
    good = opened(app, 1)
    if app.engine.dialect.name == "sqlite":
        with app.engine.begin() as conn:
            conn.exec_driver_sql(
                "CREATE TRIGGER theirs BEFORE INSERT ON msgworker_message "
                "WHEN NEW.topic = 'refused' BEGIN SELECT RAISE(ABORT, 'theirs'); END"
            )
    else:
        refuse(app, "topic <> 'refused'")
    app.drain(linger=0)
    assert job_row(app, good.job_id).completed_at is not None
    assert job_row(app, bad.job_id).completed_at is None
    assert "its message cannot be sent" in caplog.text


# ---------------------------------------------------------------- who waits for whom


@pytest.mark.requires("row_locks")
def test_a_drain_waits_for_who_is_completing_and_handles_the_message(app):
    """Its message, which is not committed yet, is of what the drain has to handle."""
    got: list[Any] = []
    app.add_handler("report", lambda msg: got.append(msg.payload["job"]))
    job = opened(app, 0)
    with app.engine.connect() as other:
        assert jobs.complete(other, app.tables, job.job_id) is not None
        join = in_thread(lambda: app.drain(linger=0))
        threading.Event().wait(1.0)
        other.commit()
    join()
    assert got == [job.job_id]


@pytest.mark.parametrize("by", ["the block", "seal"])
def test_a_seal_that_would_wait_for_its_own_sender_is_refused(app, by):
    """conn= was forgotten."""
    job = app.job("a", on_complete="report")
    with app.engine.connect() as conn:
        app.send_many(conn, "t", [(None, "x")], job=job)
        end = job.seal if by == "seal" else lambda: job.__exit__(None)
        with pytest.raises(ConfigError, match=r"job\.seal\(conn\)"):
            end()
        conn.commit()
        assert job_row(app, job.job_id).sealed_at is None
        app.send(conn, "t", job=job)
        assert job.seal(conn) is True
        conn.commit()
        assert job.seal() is False


def test_a_seal_after_the_commit_or_the_rollback_of_its_sender(app):
    for ends in ("commit", "rollback"):
        job = app.job("a")
        with app.engine.connect() as conn:
            app.send(conn, "t", job=job)
            getattr(conn, ends)()
            conn.execute(sa.text("SELECT 1 FROM msgworker_job"))
            conn.rollback()
            assert job.seal() is True


@pytest.mark.parametrize("at", ["the connection", "the engine", "the driver"])
def test_a_message_of_a_job_is_sent_in_a_transaction(app, at):
    job = opened(app, 0, seals=False)
    engine = app.engine
    if at == "the engine":
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    if at == "the driver":
        engine = plain_engine(engine.url)
    with engine.connect() as conn:
        if at == "the connection":
            conn = conn.execution_options(isolation_level="AUTOCOMMIT")
        if at == "the driver":
            conn.dialect.set_isolation_level(conn.connection.dbapi_connection, "AUTOCOMMIT")
        with pytest.raises(ConfigError, match="autocommit"):
            app.send(conn, "t", job=job)
        with pytest.raises(ConfigError, match="autocommit"):
            app.send_many(conn, "t", [(None, None)], job=job)
    assert Table(app).statuses == []


@pytest.mark.long
@SQLITE
def test_a_job_that_would_wait_for_a_transaction_of_its_own_thread_is_refused(app):
    with app.engine.begin() as conn:
        app.send(conn, "t")
        with pytest.raises(ConfigError, match=r"App.job\(..., conn=conn\)"):
            app.job("month end")
        app.job("month end", conn=conn)
    assert [one.name for one in app.ops.jobs()] == ["month end"]
    assert Table(app).statuses == [0]
    app.job("next")


@pytest.mark.quick("sqlite")
def test_a_sender_on_sqlite_keeps_the_seal_out_from_its_first_statement(app):
    """There a SELECT alone begins no transaction of the driver's."""
    if app.engine.dialect.name != "sqlite":
        pytest.skip("elsewhere the row is locked")
    job = opened(app, 0, seals=False)
    engine = sa.create_engine(app.engine.url)
    other = sa.create_engine(app.engine.url, connect_args={"timeout": 0.1})
    with engine.connect() as conn:
        jobs.lock_open(conn, app.tables, job.job_id)
        with pytest.raises(sa.exc.OperationalError, match="locked"), other.begin() as two:
            jobs.seal(two, app.tables, job.job_id)
    assert job_row(app, job.job_id).sealed_at is None
    engine.dispose()
    other.dispose()


@pytest.mark.requires("unique_keys")
def test_a_message_that_replaces_another_one_brings_it_into_its_job(app):
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        first = app.send(conn, "t", 1, unique_key="k")
    with app.engine.begin() as conn:
        job = app.job("a", conn=conn, on_complete="report")
        kept = app.send(conn, "t", 2, unique_key="k", on_duplicate="replace", job=job)
        job.seal()
    assert kept == first
    assert Table(app).column("job_id") == [job.job_id]
    assert ended(app) == []
    app.drain(linger=0)
    assert job_row(app, job.job_id).done == 1


@pytest.mark.requires("unique_keys")
@pytest.mark.parametrize("into", ["another job", "no job"])
def test_a_message_of_another_job_is_not_replaced(app, into):
    seen: list[Any] = []
    app.add_handler("t", lambda msg: seen.append(msg.payload))
    with app.engine.begin() as conn:
        job = app.job("a", conn=conn, on_complete="report")
        first = app.send(conn, "t", 1, unique_key="k", object_id="o", job=job)
        job.seal()
        other = app.job("b", conn=conn, on_complete="report")
        options = {"job": other} if into == "another job" else {}
        options |= {"unique_key": "k", "on_duplicate": "replace", "object_id": "o"}
        second = app.send(conn, "t", 2, **options)
        third = app.send(conn, "t", 3, **options)
        other.seal()
    assert second == third != first
    app.drain(linger=0, topics=["t"])
    assert seen == [1, 3]
    assert job_row(app, job.job_id).done == 1
    assert job_row(app, other.job_id).done == len(options) - 3


# ---------------------------------------------------------------- errors of a completion


class Refused(Exception):
    """What `closer` takes for a missing right."""


@pytest.fixture
def closer(app, monkeypatch):
    """What completes jobs in an instance that is not started."""
    real = closing.trouble
    monkeypatch.setattr(
        closing, "trouble", lambda e: Trouble.REFUSED if isinstance(e, Refused) else real(e)
    )
    app.add_handler("t", lambda msg: None)
    instance = Instance(setup_of(app))
    yield instance.housekeeper.jobs
    instance.housekeeper.close()


def test_a_message_that_may_not_be_sent_stops_no_other_job(app, closer, monkeypatch, caplog):
    bad, good = opened(app, 0), opened(app, 0)
    real = jobs.complete

    def complete(conn: Any, t: Any, job_id: int, **options: Any) -> Any:
        if job_id == bad.job_id:
            raise Refused("permission denied")
        return real(conn, t, job_id, **options)

    monkeypatch.setattr(jobs, "complete", complete)
    monkeypatch.setattr(closing, "AGAIN_SECONDS", 0.0)
    assert closer.run() == 1
    assert job_row(app, good.job_id).completed_at is not None
    assert "permission denied" in caplog.text
    monkeypatch.setattr(jobs, "complete", real)
    closer.next_at = 0.0
    assert closer.run() == 1
    assert job_row(app, bad.job_id).completed_at is not None


def test_a_job_whose_message_cannot_be_sent_is_tried_again_later(app, closer, monkeypatch, caplog):
    opened(app, 0)
    monkeypatch.setattr(jobs, "complete", lambda *_, **__: 1 / 0)
    for _ in range(3):
        closer.next_at = 0.0
        assert closer.run() == 0
    assert caplog.text.count("it is tried again in 60 s") == 1


def test_a_look_that_is_refused_is_tried_again(app, closer, monkeypatch, caplog):
    job = opened(app, 0)
    real = jobs.ended

    def refused(*_: Any, **__: Any) -> Any:
        raise Refused("permission denied")

    monkeypatch.setattr(jobs, "ended", refused)
    for _ in range(3):
        assert closer.run() == 0
        assert 59 < closer.pause <= 60
        closer.next_at = 0.0
    assert caplog.text.count("permission denied") == 1
    monkeypatch.setattr(jobs, "ended", real)
    assert closer.run() == 1
    assert job_row(app, job.job_id).completed_at is not None


def test_a_drain_ends_although_the_look_for_jobs_fails(app, monkeypatch, caplog):
    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(jobs, "ended", fails)
    app.add_handler("t", lambda msg: None)
    send(app, "a")
    assert app.drain(linger=0).done == 1
    assert "ended jobs" in caplog.text


def test_a_look_for_jobs_keeps_its_pause_in_every_round(app, closer, monkeypatch):
    opened(app, 0)
    assert closer.run() == 1
    opened(app, 0)
    assert closer.run() == 0
    assert closer.pause > 0
    closer.next_at = 0.0
    assert closer.run() == 1
