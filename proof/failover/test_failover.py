"""A primary that dies, a standby that is promoted, an old primary that comes back."""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.db.database import Trouble
from msgworker.db.engine import open_engine
from msgworker.db.errors import trouble
from msgworker.db.servers import refuse_standby
from msgworker.errors import DatabaseUnavailable
from msgworker.instance.connections import Connections
from proof import pairs
from proof.crash.conftest import tortured
from proof.crash.scenarios import SCENARIOS
from proof.failover import conftest as fixtures
from proof.failover.work import app_of, mended, rows, send, working
from proof.pairs.postgresql import PostgreSQLPair
from tests.engines import plain_engine
from tests.servers import PgBouncer, running
from tests.support.doctor import needed
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]
OFTEN = replace(SCENARIOS["everything"], crash=6.0)


def test_a_standby_is_an_outage_until_it_is_promoted(
    pair: pairs.AnyPair, caplog: pytest.LogCaptureFixture
) -> None:
    url = pair.make("queue")
    app, handled = app_of(url)
    with working(app) as worker:
        send(app, 1)
        until(lambda: handled == [1] and rows(url) == [(2, 0)], "it works")
        me, instance = worker.instance_id, worker.instance
        assert instance is not None
        pair.wait_for_replay()
        pair.primary.crash()
        pair.proxy.turn(pair.standby.port)
        with (
            plain_engine(url, poolclass=sa.NullPool).connect() as conn,
            pytest.raises(DatabaseUnavailable, match=r"is a standby|is read-only"),
        ):
            refuse_standby(conn)
        until(lambda: instance.shared.away.seconds > 5, "it would have ended the run")
        instance.raise_what_people_must_mend()
        pair.promote().remove()
        pair.mend()
        mended(lambda: send(app, 2))
        until(lambda: handled == [1, 2], "it goes on")
        assert worker.instance_id == me
    assert rows(url) == [(2, 0)] * 2
    away = said(caplog, "database.away")
    assert len([r for r in away if r.levelno >= logging.WARNING]) == 1
    assert "unexpected error" not in caplog.text


@pytest.mark.parametrize("how", ["postgresql", "pgbouncer", "mariadb", "mysql"])
def test_an_old_primary_that_comes_back_is_refused(
    how: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    kind = "postgresql" if how == "pgbouncer" else how
    pair: pairs.AnyPair = request.getfixturevalue(kind)
    url = through = pair.make("queue")
    with ExitStack() as stack:
        if how == "pgbouncer":
            pooler = PgBouncer(pair.url, "transaction", more="server_login_retry = 1")
            stack.enter_context(running(pooler))
            through = f"{pooler.url}queue"
        app, handled = app_of(through, lease_seconds=3.0)
        worker = stack.enter_context(working(app))
        send(app, 1)
        until(lambda: handled == [1] and rows(url) == [(2, 0)], "it works")
        instance = worker.instance
        assert instance is not None
        pair.wait_for_replay()
        pair.primary.crash()
        time.sleep(0.5)
        old = pair.promote()
        stack.callback(old.remove)
        pair.mend()
        pair.turn()
        mended(lambda: send(app, 2))
        until(lambda: handled == [1, 2], "it goes on")
        until(lambda: rows(url) == [(2, 0)] * 2, "it is settled")
        if how != "postgresql":  # it asks with a heartbeat
            asked = instance.shared.identity.tenure.renewed_at + 2 * app.settings.heartbeat_seconds
            until(
                lambda: instance.shared.identity.tenure.renewed_at > asked,
                "it has asked the new one",
            )

        old.start()
        old.take_writes_alone()
        pair.proxy.turn(old.port)
        until(lambda: said(caplog, "primary.old"), "it is noticed")
        theirs = App(f"{old.url}queue")
        send(theirs, 3)
        theirs.engine.dispose()
        until(lambda: instance.shared.away.seconds > 3, "that is an outage")
        assert handled == [1, 2]
        assert rows(f"{old.url}queue") == [(2, 0), (0, 0)]
        assert "old primary" in " ".join(finding.text for finding in needed(app))

        pair.turn()
        mended(lambda: send(app, 4))
        until(lambda: handled == [1, 2, 4], "it goes on")
        texts = [finding.text for finding in app.ops.doctor()]
        fine = {"mariadb": pair.primary.port, "mysql": "[0-9a-f-]{36}"}.get(how, 2)
        assert [text for text in texts if re.match(rf"(on timeline|server) {fine}\b", text)]
    assert rows(url) == [(2, 0)] * 3
    assert [r.levelname for r in said(caplog, "primary.old")] == ["ERROR"]
    assert "unexpected error" not in caplog.text


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [r for r in caplog.records if getattr(r, "event", "") == event]


def test_a_connection_to_the_old_primary_is_not_used_beside_the_new_one(
    postgresql: PostgreSQLPair,
) -> None:
    """One that was partitioned off, not killed: connections to it live on."""
    engine = open_engine(f"{postgresql.url}postgres")
    links = [Connections(engine) for _ in range(2)]
    with links[0].transaction() as conn:
        conn.exec_driver_sql("CREATE TABLE t (a integer)")
    postgresql.wait_for_replay()
    old = postgresql.promote()
    postgresql.proxy.turn(postgresql.primary.port, cut=False)
    with links[0].transaction() as conn:  # nothing has shown it yet
        conn.exec_driver_sql("INSERT INTO t VALUES (1)")
    with links[1].transaction() as conn:
        assert not conn.exec_driver_sql("SELECT * FROM t").all()
    with pytest.raises(DatabaseUnavailable, match="replaced"), links[0].transaction():
        pass
    with links[0].transaction() as conn:
        assert not conn.exec_driver_sql("SELECT * FROM t").all()
    postgresql.proxy.turn(old.port, cut=False)
    with links[0].transaction() as conn:  # its connection is to the new one
        conn.exec_driver_sql("INSERT INTO t VALUES (2)")
    third = Connections(engine)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable, match="timeline 1"), third.transaction():
            pass
    with links[0].transaction() as conn:
        conn.exec_driver_sql("INSERT INTO t VALUES (3)")
    postgresql.proxy.turn(postgresql.primary.port, cut=False)
    with third.transaction() as conn:
        assert conn.exec_driver_sql("SELECT a FROM t").scalars().all() == [2, 3]
    for link in (*links, third):
        link.close()
    engine.dispose()
    old.remove()


def test_an_old_primary_that_waits_for_its_standby_answers_no_commit() -> None:
    with fixtures.running(PostgreSQLPair(synchronous=True)) as pair:
        pair.make("queue")
        pair.primary.crash()
        old = pair.promote()
        old.start()
        plain = plain_engine(f"{old.url}queue", poolclass=sa.NullPool)

        def write() -> None:
            with pytest.raises(sa.exc.DBAPIError), plain.begin() as conn:
                conn.exec_driver_sql("CREATE TABLE t (a integer)")
            ended.set()

        ended = threading.Event()
        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        until(lambda: old.ask(waits) == [(1,)], "it waits")
        assert not ended.wait(1)
        with plain.connect() as conn:
            assert not sa.inspect(conn).has_table("t")
        old.crash()
        old.remove()
        assert ended.wait(10), "its only end is that of the server"


def test_who_starts_on_an_old_primary_is_told_by_the_other_hosts_of_its_url(
    pair: pairs.AnyPair, caplog: pytest.LogCaptureFixture
) -> None:
    url = sa.make_url(pair.make("queue"))
    app, _ = app_of(url.render_as_string())
    pair.wait_for_replay()
    pair.primary.crash()
    old = pair.promote()
    pair.mend()
    pair.turn()
    mended(lambda: send(app, 1))
    app.engine.dispose()
    old.start()
    old.take_writes_alone()

    def naming(*servers: Any) -> tuple[App, list[int]]:
        hosts = "&".join(f"host=127.0.0.1:{one.port}" for one in servers)
        return app_of(f"{url.drivername}://{url.username}@/queue?{hosts}")

    pair.wait_for_replay()
    for other in (pair.primary, pair.standby):
        looked, _ = naming(old, other)
        assert "old primary" in " ".join(finding.text for finding in needed(looked))
        looked.engine.dispose()
        late, handled = naming(old, other)
        with pytest.raises(DatabaseUnavailable, match="old primary"), working(late):
            pass
        late.engine.dispose()
        assert [r.levelname for r in said(caplog, "primary.old")] == ["ERROR"]
        assert handled == []
        caplog.clear()

    good, handled = naming(pair.primary, old)
    with working(good):
        until(lambda: handled == [1], "it works on the new one")
    assert rows(f"{pair.primary.url}queue") == [(2, 0)]
    assert not said(caplog, "primary.old")
    old.remove()


def test_what_a_pooler_remembers_of_a_standby_is_not_believed(postgresql: PostgreSQLPair) -> None:
    postgresql.wait_for_replay()
    with running(PgBouncer(postgresql.standby.url, "transaction")) as pooler:
        engine = open_engine(f"{pooler.url}postgres")
        with engine.connect() as conn, pytest.raises(sa.exc.DBAPIError):
            conn.exec_driver_sql("CREATE TABLE t (a integer)")
        old = postgresql.promote()
        with engine.connect() as conn:
            refuse_standby(conn)
            conn.exec_driver_sql("CREATE TABLE t (a integer)")
        old.remove()
        engine.dispose()


@pytest.mark.parametrize("pooled", [False, True])
def test_what_a_standby_refuses_is_an_outage_and_other_refusals_are_not(
    postgresql: PostgreSQLPair, pooled: bool
) -> None:
    app, _ = app_of(f"{postgresql.primary.url}postgres")
    send(app, 1)
    postgresql.wait_for_replay()
    change = sa.text("UPDATE msgworker_message SET payload = payload")
    for server, meaning in (
        (postgresql.standby, Trouble.LOST),
        (postgresql.primary, Trouble.REFUSED),
    ):
        with running(PgBouncer(server.url, "transaction")) as pooler:
            engine = open_engine(f"{(pooler if pooled else server).url}postgres")
            with engine.connect() as conn:
                if server is postgresql.primary:
                    conn.execute(sa.text("SET TRANSACTION READ ONLY"))
                with pytest.raises(sa.exc.DBAPIError) as refused:
                    conn.execute(change)
                assert trouble(refused.value) is meaning
                assert conn.invalidated == (meaning is Trouble.LOST)
            engine.dispose()
    app.engine.dispose()


def test_hosts_of_a_url_lead_to_the_promoted_server(postgresql: PostgreSQLPair) -> None:
    """What libpq offers: no proxy."""
    ports = "&".join(
        f"host=127.0.0.1:{one.port}" for one in (postgresql.primary, postgresql.standby)
    )
    app, handled = app_of(
        f"postgresql+psycopg://postgres@/postgres?{ports}&target_session_attrs=read-write"
    )
    with working(app):
        send(app, 1)
        until(lambda: handled == [1], "it works")
        postgresql.wait_for_replay()
        postgresql.primary.crash()
        time.sleep(1)
        postgresql.promote().remove()
        mended(lambda: send(app, 2))
        until(lambda: handled == [1, 2], "it goes on")


def test_what_an_asynchronous_standby_lacked_is_named_and_runs_again(tmp_path: Path) -> None:
    scenario = replace(SCENARIOS["losses"], crash=6.0)
    with tortured(pairs.LOSSY, tmp_path, 3, 35.0, scenario=scenario) as (run, _):
        pass
    assert run.epochs is not None
    last, losses = run.epochs.done[-1].last.lines, run.epochs.losses
    assert all(line.is_over for line in last.values())
    assert len(losses) >= 2
    for name in ("sends", "outcomes", "effects"):  # claims: mostly of lost messages
        assert any(getattr(loss, name) for loss in losses), name
    there = {line.n for line in last.values()}
    for loss in losses:
        assert not there & set(loss.sends)  # they are not sent again
        assert {msg_id for msg_id in loss.outcomes if not last[msg_id].is_over} == set()


@pytest.mark.parametrize("name", pairs.LOSSLESS)
def test_nothing_is_lost_where_a_commit_waits_for_the_standby(name: str, tmp_path: Path) -> None:
    with tortured(name, tmp_path, 4, 30.0, scenario=OFTEN) as (run, verdict):
        assert run.score.crashes
        assert len(verdict.rows) > 100
