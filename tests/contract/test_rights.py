"""docs/operate/rights.md as it stands: each role does all of its work, and is refused the rest."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from msgworker import App, DatabaseUnavailable, DuplicateMessage, MessageTable, Reject, SchemaError
from msgworker.cli import main
from msgworker.coordination import DatabaseLocks, hold
from msgworker.doctor import Severity
from msgworker.errors import LeaseLost
from msgworker.events import ScheduleFailed
from msgworker.message import State
from msgworker.queries.messages import How
from msgworker.store import lease
from tests.engines import plain_engine
from tests.support.doctor import needed
from tests.support.leases import registered
from tests.support.programs import LOOKS
from tests.support.rows import Table, edit, send
from tests.support.spans import recorded
from tests.support.timers import put_back
from tests.support.waiting import until
from tests.support.web import Browser

pytestmark = pytest.mark.quick

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "rights.md"
LACKING = ", shard, priority)"
OF_OTHERS, OF_TRACES = ("unique_key", "(headers)", "(job_id)"), "(headers)"
"""Of a table without these columns."""
ROLES = ("owner", "producer", "worker", "looker", "ops")
_number = count()


def statements(title: str) -> list[str]:
    """The SQL of a section of the page, in order, without its comments."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.M)
    (text,) = [part for part in section if part.startswith(title)]
    blocks = re.findall(r"```sql\n(.*?)```", text, re.S)
    lines = [re.sub(r"^--.*$", "", block, flags=re.M) for block in blocks]
    return [one.strip() for one in "".join(lines).split(";") if one.strip()]


class Site:
    """A database with a login for each role."""

    def __init__(self, database: Any) -> None:
        self.url = sa.make_url(database.url)
        self.postgresql = database.name == "postgresql"
        self.engine = plain_engine(self.url, isolation_level="AUTOCOMMIT")
        self.prefix = f"crm{os.getpid()}x{next(_number)}_"
        self.apps: list[App] = []
        for role in ROLES:
            name = self.prefix + role
            how = f"ROLE {name} LOGIN" if self.postgresql else f"USER {name}"
            self.run(f"CREATE {how}")

    def run(self, *texts: str) -> None:
        with self.engine.connect() as conn:
            for text in texts:
                own = text.replace("crm_", self.prefix).replace("crm.", f"{self.url.database}.")
                conn.exec_driver_sql(own.replace("%", "%%"))

    def url_of(self, role: str) -> str:
        url = self.url.set(username=self.prefix + role, password=None)
        return url.render_as_string(hide_password=False)

    def app(self, role: str, **options: Any) -> App:
        self.apps.append(App(self.url_of(role), backoff_seconds=0, lease_seconds=9, **options))
        return self.apps[-1]

    def cli(self, role: str, *args: str) -> Result:
        return CliRunner().invoke(main, [*args, "--url", self.url_of(role)])

    def grant(self, table: MessageTable | None = None, make: str = "") -> None:
        """All of the page; make: the statement by which the owner makes a table of its own."""
        found = statements("PostgreSQL" if self.postgresql else "MariaDB and MySQL")
        owners = [one for one in found if "crm_owner" in one]
        self.run(*owners)
        app = self.app("owner", table=table)
        if make:
            with app.engine.begin() as conn:
                conn.exec_driver_sql(make)
        app.create_schema()
        rest = [one for one in found if one not in owners]
        if table is not None:
            rest = [one.replace("msgworker_message", table.name) for one in rest]
            fit = [one for one in rest if not any(what in one for what in OF_OTHERS)]
            rest = [one.replace(LACKING, ")") for one in fit]
        self.run(*rest)

    def close(self) -> None:
        for app in self.apps:
            app.engine.dispose()
        for role in ROLES:
            name = self.prefix + role
            if self.postgresql:
                self.run(f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")
            else:
                self.run(f"DROP USER {name}")
        self.engine.dispose()


@pytest.fixture
def site(database: Any) -> Iterator[Site]:
    if database.name not in ("postgresql", "mariadb"):
        pytest.skip("no logins there")
    made = Site(database)
    try:
        yield made
    finally:
        made.close()


def leave_behind(admin: App, name: str, *objects: str, ttl: float) -> list[int]:
    """Messages in the hands of an instance that will not end them."""
    with admin.engine.begin() as conn:
        lease.register(conn, admin.tables, name, ttl=ttl)
    ids = send(admin, *objects)
    for msg_id in ids:
        table = Table(admin)
        table.edit(table.where(msg_id=msg_id), status=1, claimed_by=name)
    return ids


@pytest.mark.requires("unique_keys")
def test_each_role_of_the_page_does_its_work(site):
    site.grant()
    producer, worker, ops = site.app("producer"), site.app("worker"), site.app("ops")
    admin, looker = site.app("owner"), site.app("looker")
    seen: list[Any] = []

    @worker.handler("t")
    def handle(msg, ctx):
        seen.append(msg.object_id)
        if msg.payload == "bad" or (msg.payload == "once" and seen.count("a") == 1):
            raise ValueError(str(msg.payload))
        if msg.payload == "items":
            ctx.fan_out(str, [1, 2, 3]).raise_for_failed()

    # What producers send is worked off: a retry, a dead one, items, one of a dead instance.
    (retried,) = send(producer, "a", payload="once")
    (bad,) = send(producer, "c", payload="bad")
    (items,) = send(producer, "d", payload="items", at=datetime(2020, 1, 1, tzinfo=UTC))
    with producer.engine.begin() as conn:
        keyed = [
            producer.send(conn, "t", object_id="k", unique_key="k", unique=how, on_duplicate=what)
            for what in ("skip", "replace")
            for how in ("open", "kept")
        ]
        assert len(set(keyed)) == 1
        assert producer.send_many(conn, "t", [(None, "e"), (None, "f")]) == 2
    (crashed,) = leave_behind(admin, "gone", "g", ttl=-1.0)
    report = worker.drain(threads=2, linger=1)
    assert (report.done, report.failed) == (6, 1), report
    words = {info.msg_id: info.status for info in ops.ops.find()}
    assert words[bad] is State.DEAD
    assert {words[one] for one in (retried, items, crashed)} == {State.DONE}
    assert len(ops.ops.items(items)) == 3

    # Who looks sees all of it; doctor tells what an instance would lack.
    for look in LOOKS:
        if look == "doctor":
            continue
        done = site.cli("looker", *look.replace("1", str(bad)).split())
        nothing = look in ("audit", "partitions")
        assert done.exit_code == (5 if nothing else 0), (look, done.stderr)
    done = site.cli("looker", "doctor")
    assert (done.exit_code, "may not UPDATE" in done.stdout) == (4, True)
    assert site.cli("worker", "doctor").exit_code == 0

    taken = pytest.raises(LeaseLost, match="taken away")
    with closing(DatabaseLocks(worker.engine)) as locks, taken, hold(locks, "report"):
        assert [one.name for one in looker.ops.locks()] == ["report"]
        assert ops.ops.release_lock("report", force=True).changed == 1

    # Ops.
    assert ops.ops.rerun([bad]).changed == 1
    assert ops.ops.discard([bad], reason="wrong").changed == 1
    (waits,) = send(producer, "w")
    (runs,) = leave_behind(admin, "here", "r", ttl=-1.0)
    assert ops.ops.cancel([waits, runs], reason="wrong").requested == 1
    worker.drain(linger=1)
    assert {ops.ops.show(one).ending.how for one in (waits, runs)} == {How.CANCELLED}
    assert looker.ops.show(runs).cancel is None
    (late,) = leave_behind(admin, "late", "h", ttl=-1.0)
    assert ops.ops.release("late").changed == 1
    assert ops.ops.pause("t").changed == 1
    assert worker.drain(linger=0).left == 1
    assert ops.ops.resume("t").changed == 1
    worker.drain(linger=0)
    assert ops.ops.show(late).status is State.DONE
    assert ops.ops.purge(older_than=0.001, dead=True).changed > 5
    assert ops.ops.find() == []
    assert {"rerun", "purge", "release-lock"} <= {entry.kind for entry in ops.ops.audit()}

    # A producer may not write to the audit, and sends nevertheless; an operator is recorded.
    done = site.cli("producer", "send", "other", "--json")
    assert (done.exit_code, json.loads(done.stdout)["operation"]) == (0, None), done.stderr
    assert "sent, but not in the audit" in done.stderr
    assert site.cli("producer", "send", "other", "--reason", "r").exit_code != 0
    assert [one.topic for one in ops.ops.find()] == ["other"]


@pytest.mark.requires("unique_keys")
def test_a_producer_of_the_page_may_keep_its_context_with_what_it_sends(site, monkeypatch):
    site.grant()
    with recorded(monkeypatch) as spans:
        app = site.app("producer", tracing=True)
        for _ in range(2):
            (msg_id,) = send(app, "k", unique_key="k", on_duplicate="replace")
        kept = site.app("looker").ops.show(msg_id).trace_id
        assert kept == f"{spans.sent[1].context.trace_id:032x}"


@pytest.mark.quick("postgresql")
def test_doctor_says_what_a_producer_lacks_for_traces(site, monkeypatch):
    site.grant()

    def lacks(**options: Any) -> list[Any]:
        found = site.app("producer", **options).ops.doctor()
        return [one for one in found if "tracing is on" in one.text]

    with recorded(monkeypatch):
        assert lacks(tracing=True) == []
        page = statements("PostgreSQL" if site.postgresql else "MariaDB and MySQL")
        for right in (one for one in page if OF_TRACES in one):
            site.run(right.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))
        assert lacks() == []  # without traces nothing is lacking
        *insert, update = lacks(tracing=True)
        assert {one.severity for one in (*insert, update)} == {Severity.NEEDED}
        assert 'on_duplicate="replace" is refused' in update.text
        if site.postgresql:  # the INSERT of the page is one of columns
            assert ["each send is refused" in one.text for one in insert] == [True]
            with pytest.raises(sa.exc.DBAPIError, match="denied"):
                send(site.app("producer", tracing=True), "a")
        site.run(*(text for one in (*insert, update) for text in one.fix))
        send(site.app("producer", tracing=True), "a")
        assert lacks(tracing=True) == []


def sending(site: Site) -> list[str]:
    """The rights of workers that send, and of operators who do."""
    found = statements("Workers that send")
    return [one for one in found if ("crm.msgworker" in one) != site.postgresql]


def send_more(site: Site) -> None:
    site.run(*sending(site))


@pytest.mark.quick("postgresql")
@pytest.mark.requires("unique_keys")
def test_a_worker_that_deletes_what_is_done_needs_the_right_to(site):
    site.grant()
    app, producer = site.app("worker"), site.app("producer")
    app.add_handler("t", lambda msg: None, when_done="delete")
    send(producer, "a", "b")
    with pytest.raises(DatabaseUnavailable, match=r"needs DELETE there \(docs/operate/rights"):
        app.drain(linger=0)
    table = Table(site.app("owner"))
    assert table.statuses == [0, 0]
    assert needed(site.app("worker")) == []
    (lacks,) = needed(app)
    assert "may not DELETE on msgworker_message, which when_done=" in lacks.text
    site.run(*lacks.fix)
    assert needed(app) == []
    assert app.drain(linger=0).done == 2
    assert table.statuses == []


@pytest.mark.requires("unique_keys")
def test_the_rights_of_the_page_are_enough_for_chains(site):
    site.grant()
    producer, worker = site.app("producer"), site.app("worker")

    def plain(msg, ctx):
        for what in ("skip", "replace"):
            ctx.send("next", msg.payload, object_id="n", unique_key="k", on_duplicate=what)

    def inside(msg, ctx):
        ctx.send("next", msg.payload, unique_key="l", unique="kept")
        ctx.send("next", msg.payload, unique_key="l", unique="kept")
        raise Reject("no")

    worker.add_handler("t", plain, on_done="told", max_tries=1, on_dead="told")
    worker.add_handler("u", inside, transactional=True, on_dead="told")
    worker.add_handler("v", lambda msgs, ctx: [ctx.send("next", of=m) for m in msgs], batch=5)
    send_more(site)
    for topic in "tuv":
        send(producer, "b", topic=topic)
    worker.drain(linger=0)
    found = [(info.topic, info.status) for info in site.app("looker").ops.find()]
    open_ones = sorted(topic for topic, status in found if status is State.NEW)
    assert open_ones == ["next", "next", "told", "told"]
    site.run(*[one.replace("GRANT", "REVOKE").replace(" TO ", " FROM ") for one in sending(site)])
    send(producer, "c")
    with pytest.raises(DatabaseUnavailable, match=r"the statement needs .*INSERT"):
        worker.drain(linger=0)
    assert needed(site.app("worker")) == []
    (lacks,) = needed(worker)
    assert "may not INSERT on msgworker_message, which on_done or on_dead needs" in lacks.text


@pytest.mark.requires("unique_keys")
@pytest.mark.quick("mariadb")
def test_the_rights_of_the_page_are_enough_for_schedules(site):
    site.grant()
    worker, ops, looker = site.app("worker"), site.app("ops"), site.app("looker")
    handled: list[Any] = []
    failed: list[str] = []
    worker.add_handler("t", lambda msg: handled.append(msg.scheduled_for))
    worker.every("1h", topic="t", name="hourly")
    worker.on(ScheduleFailed, lambda event: failed.append(event.error))
    worker.drain(linger=0)
    put_back(site.app("owner"), "hourly", 60)
    worker.drain(linger=0)
    assert len(failed) == 1
    assert "denied" in failed[0]
    refused = site.cli("ops", "schedules", "run-now", "hourly")
    assert (refused.exit_code, "the statement needs INSERT" in refused.stderr) == (3, True)
    send_more(site)
    assert worker.drain(linger=0).done == 1
    assert [tick is None for tick in handled] == [False]
    assert (ops.ops.pause_schedule("hourly"), ops.ops.resume_schedule("hourly")) == (1, 1)
    assert ops.ops.run_now("hourly") == 1
    assert [one.name for one in looker.ops.schedules()] == ["hourly"]
    assert site.cli("looker", "schedules").exit_code == 0
    assert site.cli("looker", "schedules", "pause", "hourly").exit_code == 3
    assert ops.ops.delete_schedule("hourly") == 1
    assert worker.drain(linger=0).done == 1
    late = site.app("worker")
    late.add_handler("t", lambda msg: None)
    late.every("1h", topic="t", name="late", overlap="replace")
    late.on(ScheduleFailed, lambda event: failed.append(event.error))
    late.drain(linger=0)
    assert ops.ops.run_now("late") == 1
    (msg_id,) = [one.msg_id for one in looker.ops.find(status="new")]
    owner = site.app("owner")
    registered(owner, "other-1")
    edit(owner, msg_id, status=1, claimed_by="other-1")
    put_back(owner, "late", 60)
    late.drain(linger=0)
    assert looker.ops.explain(msg_id).cancel.actor == "schedule late"
    assert len(failed) == 1


@pytest.mark.quick("postgresql")
@pytest.mark.requires("unique_keys")
def test_the_rights_of_the_page_are_enough_for_limits_and_keys(site):
    site.grant()
    producer, worker, ops = site.app("producer"), site.app("worker"), site.app("ops")
    worker.add_handler("t", lambda msg: None, max_running=2, rate="50/s")
    with producer.engine.begin() as conn:
        first = producer.send(conn, "t", 1, unique_key="k", unique="kept")
        with pytest.raises(DuplicateMessage):
            producer.send(conn, "t", 2, unique_key="k", on_duplicate="raise")
        second = producer.send(conn, "t", 1, unique_key="l")
    table = Table(site.app("owner"))
    table.edit(table.where(msg_id=second), claimed_at=datetime(2020, 1, 1, tzinfo=UTC))
    with producer.engine.begin() as conn:  # the one that was claimed goes on without its key
        assert producer.send(conn, "t", 2, unique_key="l", on_duplicate="replace") > second
    assert first < second
    send(producer, "a", "b", "c")
    assert worker.drain(linger=0).done == 6
    done = site.cli("looker", "limits")
    assert (done.exit_code, "50/s" in done.stdout) == (0, True)
    assert site.cli("looker", "limits", "t", "--remove", "--yes").exit_code != 0
    assert ops.ops.remove_limit("t") == 1


def test_a_producer_of_the_page_writes_no_state_of_a_message(site):
    site.grant()
    producer, worker = site.app("producer"), site.app("worker")
    state = ("status", "error_try_times", "claimed_by", "claimed_at", "finished_at", "crash_times")
    for name in (*state, "later_times", "last_error"):
        value = "'2026-01-01'" if name.endswith("_at") else "1"
        text = f"INSERT INTO msgworker_message (topic, {name}) VALUES ('t', {value})"
        with pytest.raises(sa.exc.DBAPIError), producer.engine.begin() as conn:
            conn.exec_driver_sql(text)
        with pytest.raises(sa.exc.DBAPIError), producer.engine.begin() as conn:
            conn.exec_driver_sql(f"UPDATE msgworker_message SET {name} = {value}")
    with producer.engine.begin() as conn:
        conn.exec_driver_sql("INSERT INTO msgworker_message (topic, object_id) VALUES ('t', 'o')")
        producer.send(conn, "t", 1, object_id="o", delay=0)
        producer.send_many(conn, "t", [(1, "o"), (2, None)])
    worker.add_handler("t", lambda msg: None)
    assert worker.drain(linger=0).done == 4


def test_a_table_of_theirs_without_defaults_gets_its_state_from_us(make_app, database):
    if database.stand_in is not None:
        pytest.skip("it has no types of this database")
    app = make_app(table=MessageTable("theirs", topic=None))
    key = {"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "postgresql": "BIGSERIAL PRIMARY KEY"}
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE theirs (msg_id {key.get(database.name, 'BIGINT AUTO_INCREMENT')}"
            f"{'' if database.name in key else ' PRIMARY KEY'}, object_id VARCHAR(40),"
            " payload TEXT, status SMALLINT NOT NULL, error_try_times SMALLINT NULL,"
            " claimed_by VARCHAR(64))"
        )
    app.create_schema()
    assert app.tables.says == ("status", "error_try_times")
    app.add_handler(None, lambda msg: None)
    send(app, "a", "b")
    assert app.drain(linger=0).done == 2


@pytest.mark.quick("mariadb")
def test_each_role_of_the_page_is_refused_the_next_larger_thing(site):
    site.grant()
    (one,) = send(site.app("producer"), "a", payload="secret")
    for role, args, right in (
        ("producer", ("show", str(one)), "SELECT"),
        ("producer", ("discard", str(one), "--reason", "x", "--yes"), "SELECT"),
        ("looker", ("send", "t"), "INSERT"),
        ("looker", ("discard", str(one), "--reason", "x", "--yes"), "INSERT"),
        ("looker", ("pause", "t"), "INSERT"),
        ("worker", ("rerun", str(one), "--yes"), "INSERT"),
        ("worker", ("pause", "t"), "INSERT"),
        ("worker", ("send", "t"), "INSERT"),
        ("ops", ("send", "t"), "INSERT"),
    ):
        done = site.cli(role, *args)
        assert done.exit_code == 3, (role, args, done.stderr)
        assert re.search(rf"the statement needs [A-Z, ]*{right}", done.stderr), (role, done.stderr)
    for role in ("producer", "looker", "ops"):
        app = site.app(role)
        app.handler("t")(lambda msg: None)
        with pytest.raises(DatabaseUnavailable, match=r"the statement needs .*(UPDATE|INSERT)"):
            app.drain(linger=0)


def test_a_login_without_our_tables_gets_errors_of_ours_and_doctor_says_what_it_lacks(site):
    site.grant()
    (one,) = send(site.app("producer"), "a")
    everything = "ALL ON ALL TABLES IN SCHEMA public" if site.postgresql else "ALL, GRANT OPTION"
    site.run(f"REVOKE {everything} FROM crm_looker")
    site.run(f"GRANT SELECT ON {'' if site.postgresql else 'crm.'}msgworker_message TO crm_looker")
    app = site.app("looker")
    for look in (app.create_schema, app.ops.find, app.ops.pauses, partial(app.ops.show, one)):
        with pytest.raises((DatabaseUnavailable, SchemaError)):
            look()
    fixes = [fix for found in needed(app) for fix in found.fix]
    lacks = "GRANT SELECT ON msgworker_lease" if site.postgresql else "msgworker_lease"
    assert any(lacks in fix for fix in fixes), fixes


@pytest.mark.quick("mariadb")
def test_a_dashboard_needs_no_more_rights_than_a_looker_and_says_what_a_write_lacks(site):
    site.grant()
    (one, *_) = send(site.app("producer"), "a", "b", payload={"n": 1})
    dashboard = site.app("looker").web(actions=True)
    client = Browser(dashboard)
    try:
        pages = [dashboard.site.starlette.url_path_for(route) for _, route in dashboard.site.nav]
        assert len(pages) >= 10
        lists = ("overview", "messages", "failures", "lanes", "instances", "topics", "audit")
        for path in (*pages, f"/messages/{one}", "/readyz", *(f"/api/v1/{x}" for x in lists)):
            assert client.get(str(path)).status_code == 200, path
        page = "/act/pause-topic?name=t"
        answer = client.submit("/act/pause-topic", {"name": "t", "reason": "test"}, page=page)
        assert answer.status_code == 303, answer.text
        page = answer.headers["location"]
        until(lambda: "the statement needs" in client.get(page).text, "why it failed")
    finally:
        client.close()
        dashboard.site.close()


def test_a_login_that_may_not_read_jobs_sees_what_dead_messages_do_to_objects(site):
    table = MessageTable(on_dead="block")
    site.grant(table)
    admin = site.app("owner", table=table)
    (dead,) = send(admin, "a")
    Table(admin).edit(status=-1, error_try_times=3)
    site.run(f"REVOKE SELECT ON {'' if site.postgresql else 'crm.'}msgworker_job FROM crm_looker")
    looker = site.app("looker", table=table).ops
    assert [one.hold_objects for one in looker.counts()] == [1]
    assert looker.overview().hold_objects.count == 1
    assert "its object waits until" in looker.explain(dead).text
    assert looker.acknowledge(dead, dry_run=True).holding == 1
    assert [one.head.msg_id for one in looker.lanes()] == [dead]


def test_a_purge_by_a_login_that_may_not_read_jobs_leaves_their_dead_messages(site):
    table = MessageTable()
    site.grant(table)
    admin = site.app("owner", table=table)
    with admin.engine.begin() as conn:
        job = admin.job("j", conn=conn, on_dead="wait")
        admin.send(conn, "t", object_id="waits", job=job)
    send(admin, "a")
    ended = datetime.now(UTC) - timedelta(days=9)
    Table(admin).edit(status=-1, error_try_times=3, finished_at=ended)
    site.run(f"REVOKE SELECT ON {'' if site.postgresql else 'crm.'}msgworker_job FROM crm_ops")
    ops = site.app("ops", table=table).ops
    for dry_run in (True, False):
        done = ops.purge("8d", dead=True, dry_run=dry_run)
        assert (done.matched, done.changed, done.skipped) == (2, 1, 1)
        assert "is of a job, and this login may not read" in str(done.skips[0])
        assert done.why == ((done.skips[0].why, 1),)
    assert Table(admin).column("object_id") == ["waits"]


@pytest.mark.quick("postgresql")
def test_the_rights_of_a_table_of_theirs_are_those_of_ours(site):
    """An adopted table whose id is a serial."""
    table = MessageTable("tb_cus_msg")
    counted = "SERIAL" if site.postgresql else "BIGINT AUTO_INCREMENT"
    instant = "TIMESTAMP WITH TIME ZONE" if site.postgresql else "DATETIME(6)"
    site.grant(
        table,
        f"CREATE TABLE tb_cus_msg (msg_id {counted} PRIMARY KEY, object_id VARCHAR(50), topic "
        "VARCHAR(100) DEFAULT 'default', payload TEXT, status SMALLINT NOT NULL DEFAULT 0, "
        f"error_try_times SMALLINT NOT NULL DEFAULT 0, available_at {instant}, "
        "claimed_by VARCHAR(64))",
    )
    if site.postgresql:
        with pytest.raises(sa.exc.ProgrammingError, match="sequence"):
            send(site.app("producer", table=table), "a")
        site.run("GRANT USAGE ON SEQUENCE tb_cus_msg_msg_id_seq TO crm_producer")
    send(site.app("producer", table=table), "a", "b")
    worker, ops = site.app("worker", table=table), site.app("ops", table=table)
    handled: list[Any] = []
    worker.handler("t")(lambda msg: handled.append(msg.msg_id))
    assert worker.drain(linger=0).done == 2
    assert ops.ops.rerun(handled, force=True).changed == 2
    assert worker.drain(linger=0).done == 2


def test_the_grants_for_oracle_name_our_tables_and_one_each():
    """Compiled only: there is no Oracle here."""
    ours = {table for one in statements("MariaDB") for table in re.findall(r"crm\.(\w+)", one)}
    found = statements("Oracle")[1:]
    for one in found:
        match = re.fullmatch(r"GRANT ([A-Z, ]+)( \([\w, ]+\))? ON crm\.(\w+) TO crm_\w+", one)
        assert match is not None, one
        assert set(match[1].strip().split(", ")) <= {"SELECT", "INSERT", "UPDATE", "DELETE"}
        assert match[3] in ours
    others = [one for one in statements("MariaDB") if "owner" not in one and "producer" not in one]
    assert [one for one in found if "producer" not in one] == others
