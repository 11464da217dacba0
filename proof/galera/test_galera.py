"""Three nodes of Galera that all take writes: conflicts show at COMMIT, locks are a node's own."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError
from msgworker.app import setup_of
from msgworker.db.database import Trouble, database_of
from msgworker.db.engine import open_engine
from msgworker.db.errors import trouble
from msgworker.instance.instance import Instance
from msgworker.limit import Limit
from msgworker.schema import rule
from msgworker.store import claim, items, limits, recover
from proof.crash.fleet import Trial, assert_clean
from proof.crash.scenarios import load
from proof.galera.conftest import fresh
from tests.servers import CHOSEN, CannotHave, Galera, MySQL, running
from tests.support import flags
from tests.support.flags import ME
from tests.support.rounds import register
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("galera")]


@pytest.fixture
def apps(urls: list[str]) -> Iterator[list[App]]:
    """An App of each node, on one database."""
    made = [App(url) for url in urls]
    made[0].create_schema()
    caught_up(made)
    yield made
    for app in made:
        app.engine.dispose()


def sent(app: App, *objects: str | None, **options: Any) -> list[int]:
    with app.engine.begin() as conn:
        return [app.send(conn, "t", {}, object_id=one, **options) for one in objects]


def caught_up(apps: list[App]) -> None:
    """Every node has what the first one has committed."""
    for app in apps:
        with app.engine.connect() as conn:
            conn.exec_driver_sql("SET SESSION wsrep_sync_wait = 15")
            conn.exec_driver_sql("SELECT count(*) FROM msgworker_message")
            conn.exec_driver_sql("SET SESSION wsrep_sync_wait = 0")


def both(apps: list[App], *acts: Callable[[sa.Connection], Any]) -> list[Exception | None]:
    """Each in a transaction on a node of its own, all open until each has done its part; then they
    commit, in this order. Their errors."""
    caught_up(apps)
    errors: list[Exception | None] = []
    with ExitStack() as stack:
        conns = [stack.enter_context(app.engine.connect()) for app in apps[: len(acts)]]
        for conn, act in zip(conns, acts, strict=True):
            conn.begin()
            act(conn)
        for conn in conns:
            try:
                conn.commit()
                errors.append(None)
            except Exception as error:
                errors.append(error)
                conn.rollback()
    caught_up(apps)
    return errors


@contextmanager
def before_commit_of(app: App, act: Callable[[], Any], lost: list[BaseException]) -> Iterator[None]:
    """Before the first COMMIT of a change on this node `act` commits its own on another. lost: gets
    the errors of this node's."""
    wrote: list[str] = []
    acted: list[bool] = []

    def executed(_: Any, __: Any, statement: str, *rest: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            wrote.append(statement)

    def commit(_: Any) -> None:
        if wrote and not acted:
            acted.append(True)
            act()

    def failed(context: Any) -> None:
        lost.append(context.original_exception)

    listeners = {"after_cursor_execute": executed, "commit": commit, "handle_error": failed}
    for name, listener in listeners.items():
        sa.event.listen(app.engine, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners.items():
            sa.event.remove(app.engine, name, listener)


@contextmanager
def instances(apps: list[App]) -> Iterator[tuple[Instance, Instance]]:
    """One on each of two nodes; nothing of them is started."""
    first, second = (Instance(setup_of(app)) for app in apps[:2])
    yield first, second
    for instance in (first, second):
        instance.settler.close()
        instance.housekeeper.close()


def assert_one_wins(errors: list[Exception | None]) -> None:
    first, *others = errors
    assert first is None
    assert [error is not None and trouble(error) for error in others] == [Trouble.AGAIN]


def statuses(app: App) -> list[int]:
    with app.engine.connect() as conn:
        return list(conn.scalars(sa.text("SELECT status FROM msgworker_message ORDER BY msg_id")))


def test_a_node_is_known(apps: list[App]) -> None:
    assert all(database_of(app.engine).certifies for app in apps)


def test_a_message_that_two_nodes_flag_at_once_is_of_one(apps: list[App]) -> None:
    ids = sent(apps[0], "a")
    caught_up(apps)
    seen = [flags.seen(app, *ids) for app in apps]

    def flag(place: int, conn: sa.Connection) -> None:
        assert claim.flag(conn, apps[place].tables, seen[place], me=f"i-{place}")

    assert_one_wins(both(apps, partial(flag, 0), partial(flag, 1)))
    assert statuses(apps[1]) == [1]


def test_the_guard_is_looked_at_when_a_transaction_is_certified(apps: list[App]) -> None:
    """P1: two messages that become those of one object on two nodes at once."""
    ids = sent(apps[0], None, None)

    def flag(place: int, conn: sa.Connection) -> None:
        change = (
            "UPDATE msgworker_message SET status=1, claimed_by=%s, object_id='a' WHERE msg_id=%s"
        )
        conn.exec_driver_sql(change, (f"i-{place}", ids[place]))

    assert_one_wins(both(apps, partial(flag, 0), partial(flag, 1)))
    assert statuses(apps[2]) == [1, 0]


def test_a_limit_holds_over_all_nodes(apps: list[App]) -> None:
    """The lock of its record is a node's own: who takes a permit must have changed it."""
    with apps[0].engine.begin() as conn:
        limits.declare(conn, apps[0].tables, "t", Limit(1, 0, 1, 1), None, me="x")
    ids = sent(apps[0], "a", "b")
    caught_up(apps)
    seen = [flags.seen(app, msg_id) for app, msg_id in zip(apps, ids, strict=False)]

    def act(place: int) -> Callable[[sa.Connection], None]:
        def take(conn: sa.Connection) -> None:
            t = apps[place].tables
            free = limits.lock(conn, t, "t")
            assert free is not None
            assert free.starts == 1
            assert claim.flag(conn, t, seen[place], me=f"i-{place}")
            limits.take(conn, t, "t", free, 1)

        return take

    assert_one_wins(both(apps, act(0), act(1)))
    assert statuses(apps[2]) == [1, 0]


def test_an_item_is_not_recorded_beside_a_recovery_on_another_node(apps: list[App]) -> None:
    """P5, of the items of a fan-out: the fence locks a row, which no other node sees."""
    (msg_id,) = sent(apps[0], "a")
    caught_up(apps)
    flags.flagged(apps[0], msg_id)

    def recovers(conn: sa.Connection) -> None:
        assert recover.recover(conn, apps[0].tables, [msg_id], dead_id=ME, text="dead") == 1

    def records(conn: sa.Connection) -> None:
        t = apps[1].tables
        one = items.Record("x", True, 1, None)
        assert items.record(conn, t, msg_id, [one], me=ME, tries=0, there=())

    assert_one_wins(both(apps, recovers, records))
    with apps[0].engine.connect() as conn:
        assert items.count(conn, apps[0].tables, msg_id) == 0


def test_a_rule_does_not_change_while_an_instance_registers_on_another_node(
    apps: list[App],
) -> None:
    def holds(conn: sa.Connection) -> None:
        assert rule.hold(conn, apps[0].tables)

    def changes(conn: sa.Connection) -> None:
        wanted = rule.Rule(5, "continue")
        assert rule.change(conn, apps[1].tables, wanted).state is rule.Answer.CHANGED

    holds_first = both(apps, lambda conn: holds(conn))
    assert holds_first == [None]
    assert_one_wins(both(apps, holds, changes))


def test_one_of_two_nodes_sends_a_unique_key(apps: list[App]) -> None:
    def send(place: int) -> Callable[[sa.Connection], Any]:
        app = apps[place]
        return lambda conn: app.send(conn, "t", {}, unique_key="k", on_duplicate="skip")

    assert_one_wins(both(apps, send(0), send(1)))
    assert statuses(apps[2]) == [0]


def test_a_request_to_cancel_that_two_nodes_end_at_once_harms_no_heartbeat(apps: list[App]) -> None:
    """An instance that starts ends open requests, too, and must not fail for another's COMMIT."""
    (msg_id,) = sent(apps[0], "a")
    flags.flagged(apps[0], msg_id)
    assert apps[0].ops.cancel(ids=[msg_id], reason="late").requested
    with apps[0].engine.begin() as conn:
        conn.exec_driver_sql("UPDATE msgworker_message SET status = 0, claimed_by = NULL")
    caught_up(apps)
    for app in apps[:2]:
        app.add_handler("t", lambda msg: None)
    with instances(apps) as (first, second):
        lost: list[BaseException] = []
        with before_commit_of(apps[1], first.housekeeper.requests.read, lost):
            register(second)
        assert [trouble(error) for error in lost] == [Trouble.AGAIN]
        second.housekeeper.requests.read()
        assert not second.housekeeper.requests.open
    caught_up(apps)
    assert statuses(apps[2]) == [-1]


def test_a_handler_whose_commit_conflicts_with_another_node_runs_again_and_no_try_counts(
    apps: list[App],
) -> None:
    """Its own row is the one in conflict; the settle is in the same transaction."""
    with apps[0].engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE counter (id INT PRIMARY KEY, n INT NOT NULL)")
        conn.exec_driver_sql("INSERT INTO counter VALUES (1, 0)")
    (msg_id,) = sent(apps[0], "a")
    caught_up(apps)
    add, runs = "UPDATE counter SET n = n + 1 WHERE id = 1", list[int]()

    @apps[1].handler("t", transactional=True)
    def count(msg: Any, ctx: Any) -> None:
        runs.append(msg.error_try_times)
        ctx.connection.exec_driver_sql(add)
        if len(runs) == 1:
            with apps[0].engine.begin() as conn:
                conn.exec_driver_sql(add)

    assert apps[1].worker(threads=1).drain().done == 1
    assert runs == [0, 0]
    caught_up(apps)
    with apps[2].engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT n FROM counter").scalar() == 2
        row = conn.exec_driver_sql("SELECT msg_id, status, error_try_times FROM msgworker_message")
        assert row.all() == [(msg_id, 2, 0)]


def test_a_limit_that_two_nodes_declare_at_once_is_declared(apps: list[App]) -> None:
    for app in apps[:2]:
        app.add_handler("t", lambda msg: None, max_running=1)
    with instances(apps) as (first, second):
        lost: list[BaseException] = []
        with before_commit_of(apps[1], lambda: register(first), lost):
            register(second)
    assert [trouble(error) for error in lost] == [Trouble.AGAIN]
    caught_up(apps)
    with apps[2].engine.connect() as conn:
        assert set(limits.read_all(conn, apps[2].tables)) == {"t"}


def test_a_schema_that_two_nodes_record_at_once_is_recorded(apps: list[App]) -> None:
    """`create_schema` of two programs that start together: the rule, and the version."""
    for record in (
        lambda app: rule.recorded_of(app.engine, app.tables),
        lambda app: rule.record_version(app.engine, app.tables),
    ):
        with apps[0].engine.begin() as conn:
            conn.exec_driver_sql("DELETE FROM msgworker_lease")
        caught_up(apps)
        lost: list[BaseException] = []
        with before_commit_of(apps[1], partial(record, apps[0]), lost):
            record(apps[1])
        assert [trouble(error) for error in lost] == [Trouble.AGAIN]
        caught_up(apps)
        with apps[2].engine.connect() as conn:
            assert conn.exec_driver_sql("SELECT count(*) FROM msgworker_lease").scalar() == 1


def test_ids_of_two_nodes_ascend_where_inserts_wait_for_what_is_committed(apps: list[App]) -> None:
    ids = []
    for turn in range(60):
        with apps[turn % 3].engine.begin() as conn:
            conn.exec_driver_sql("SET SESSION wsrep_sync_wait = 4")
            ids.append(apps[turn % 3].send(conn, "t", {}))
    assert ids == sorted(ids)


def test_doctor_says_what_order_means_where_ids_are_of_nodes(apps: list[App]) -> None:
    with apps[0].engine.connect() as conn:
        conn.exec_driver_sql("SET GLOBAL wsrep_sync_wait = 0")
    texts = [finding.text for finding in apps[0].ops.doctor()]
    assert any("Galera cluster of 3 nodes" in text for text in texts)
    assert any("each node gives out ids of its own" in text for text in texts)
    with apps[0].engine.connect() as conn:
        conn.exec_driver_sql("SET GLOBAL wsrep_sync_wait = 4")
    apps[0].engine.dispose()
    try:
        texts = [finding.text for finding in apps[0].ops.doctor()]
    finally:
        with apps[0].engine.connect() as conn:
            conn.exec_driver_sql("SET GLOBAL wsrep_sync_wait = 0")
    assert not any("each node gives out ids of its own" in text for text in texts)


def test_doctor_has_no_advice_where_one_node_gives_out_all_ids(
    apps: list[App], cluster: Galera
) -> None:
    """One writer, as docs/operate/galera.md sets it up."""
    node = cluster.nodes[0]
    node.query("SET GLOBAL wsrep_auto_increment_control = OFF")
    node.query("SET GLOBAL auto_increment_increment = 1")
    apps[0].engine.dispose()
    try:
        findings = apps[0].ops.doctor()
        ids = sent(apps[0], *[None] * 5)
    finally:
        node.query("SET GLOBAL wsrep_auto_increment_control = ON")
        node.query(f"SET GLOBAL auto_increment_increment = {len(cluster.nodes)}")
    assert not any("each node gives out ids of its own" in one.text for one in findings)
    assert ids == list(range(ids[0], ids[0] + 5))


def test_instances_on_all_nodes_break_no_rule(cluster: Galera, tmp_path: Path) -> None:
    urls = fresh(cluster)
    trial = Trial(urls[0], tmp_path, lease=10.0)
    try:
        for url in urls * 2:
            trial.spawn(through=url, threads=2)
        for consumer in trial.consumers:
            consumer.ready()
        trial.send_many(load(1500, 60, random.Random(1)))
        trial.consumers[0].kill()
        trial.finish(120)
        trial.stop_all()
        caught_up([trial.app])
        verdict = trial.judge()
        assert_clean(trial, verdict)
        assert len({e.instance for e in verdict.events if e.kind.name == "STARTED"}) >= 5
    finally:
        trial.close()


def test_connections_go_on_to_the_next_host_when_a_node_is_cut_off(cluster: Galera) -> None:
    fresh(cluster)
    first, second, _ = cluster.nodes
    engine = open_engine(cluster.url().replace("/?", "/mysql?"))

    def port() -> int:
        with engine.connect() as conn:
            conn.exec_driver_sql("SELECT count(*) FROM mysql.user").all()
            return int(conn.exec_driver_sql("SELECT @@port").scalar_one())

    def moved() -> bool:
        try:
            return port() == second.port
        except Exception as error:
            if trouble(error) not in (Trouble.LOST, Trouble.AGAIN):
                raise
            return False

    assert port() == first.port
    first.tell("gmcast.isolate=1")
    try:
        until(moved, "the second node is used", seconds=60)
    finally:
        first.tell("gmcast.isolate=0")
    until(first.answers, "the first is back", seconds=60)
    assert port() == second.port  # all stay together
    until(first.answers, "all are back")
    engine.dispose()


def test_what_was_committed_is_read_on_the_host_that_is_used_next(cluster: Galera) -> None:
    """The next node may be behind: here it applies nothing for a second."""
    label = fresh(cluster)[0].rpartition("/")[2]
    first, second, _ = cluster.nodes
    first.query(f"CREATE TABLE {label}.seen (id INT PRIMARY KEY)")
    engine = open_engine(
        f"mysql+pymysql://root@/{label}?host=127.0.0.1:1&host=127.0.0.1:{second.port}"
    )
    with sa.create_engine(f"{second.url}{label}").connect() as stopped:
        stopped.exec_driver_sql("SELECT count(*) FROM seen").all()
        stopped.exec_driver_sql("FLUSH TABLES WITH READ LOCK")
        first.query(f"INSERT INTO {label}.seen VALUES (1)")
        assert stopped.exec_driver_sql("SELECT count(*) FROM seen").scalar() == 0
        late = threading.Timer(1.0, stopped.exec_driver_sql, ["UNLOCK TABLES"])
        late.start()
        with engine.connect() as conn:
            found = conn.exec_driver_sql("SELECT count(*) FROM seen").scalar_one()
        late.join()
    engine.dispose()
    assert found == 1


def test_a_node_that_stays_behind_is_passed_over(cluster: Galera) -> None:
    label = fresh(cluster)[0].rpartition("/")[2]
    first, second, third = cluster.nodes
    first.query(f"CREATE TABLE {label}.seen (id INT PRIMARY KEY)")
    hosts = f"host=127.0.0.1:{second.port}&host=127.0.0.1:{third.port}"
    engine = open_engine(f"mysql+pymysql://root@/{label}?{hosts}")
    second.tell("repl.causal_read_timeout=PT1S")
    try:
        with sa.create_engine(f"{second.url}{label}").connect() as stopped:
            stopped.exec_driver_sql("FLUSH TABLES WITH READ LOCK")
            first.query(f"INSERT INTO {label}.seen VALUES (1)")
            with engine.connect() as conn:
                assert conn.exec_driver_sql("SELECT @@port").scalar_one() == third.port
                assert conn.exec_driver_sql("SELECT count(*) FROM seen").scalar_one() == 1
            stopped.exec_driver_sql("UNLOCK TABLES")
    finally:
        second.tell("repl.causal_read_timeout=PT30S")
    engine.dispose()


def test_a_first_host_that_is_away_is_passed_over(cluster: Galera) -> None:
    url = cluster.url().replace("host=", "host=127.0.0.1:1&host=", 1)
    engine = open_engine(url.replace("/?", "/mysql?"))
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT @@port").scalar_one() == cluster.nodes[0].port
    engine.dispose()
    with pytest.raises(ConfigError):
        open_engine("mysql+pymysql://root@a/b?host=c:3306")


def test_a_group_of_mysql_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its settings alone: no group is started."""
    monkeypatch.setenv(CHOSEN, "mysql-9.7")
    try:
        with running(MySQL(durable=False)) as server:
            server.query("CREATE DATABASE queue")
            plain = App(f"{server.url}queue")
            plain.create_schema()
            assert not database_of(plain.engine).certifies
            server.query("INSTALL PLUGIN group_replication SONAME 'group_replication.so'")
            server.query("SET GLOBAL group_replication_single_primary_mode = OFF")
            server.query("SET GLOBAL auto_increment_increment = 3")
            several = App(f"{server.url}queue")
            assert database_of(several.engine).certifies
            texts = [one.text for one in several.ops.doctor()]
            assert any("Group Replication with several primaries" in text for text in texts)
            (told,) = [one for one in several.ops.doctor() if "ids of its own" in one.text]
            server.query(*told.fix)
            again = App(f"{server.url}queue")
            assert not [one for one in again.ops.doctor() if "ids of its own" in one.text]
            server.query("SET GLOBAL group_replication_single_primary_mode = ON")
            server.query(f"SET GLOBAL group_replication_group_name = '{uuid.uuid4()}'")
            server.query("SET GLOBAL group_replication_consistency = 'EVENTUAL'")
            single = App(f"{server.url}queue")
            texts = [one.text for one in single.ops.doctor()]
            assert any("Group Replication with a single primary" in text for text in texts)
            (told,) = [one for one in single.ops.doctor() if "becomes the primary" in one.text]
            server.query(*told.fix)
            assert not [one for one in single.ops.doctor() if "becomes the primary" in one.text]
            for app in (plain, several, again, single):
                app.engine.dispose()
    except CannotHave as reason:
        pytest.skip(f"not there: {reason}")
