"""A message table of PostgreSQL that is partitioned by the hash of objects: what `ddl --partitions`
prints, what holds there, and what no instance starts on."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from tenacity.wait import wait_none

from msgworker import App, ConfigError, MessageTable, SchemaError
from msgworker.alembic import include_object
from msgworker.doctor import Finding, Severity
from msgworker.message import State
from msgworker.schema import apply
from msgworker.store import claim
from tests.support.doctor import needed, run
from tests.support.leases import dead_holds
from tests.support.ops import DONE, put
from tests.support.rows import Table, send
from tests.support.store import Store
from tests.support.waiting import in_thread, until

PARTS = 4
LONG_AGO = datetime(2026, 1, 5, tzinfo=UTC)
MESSAGES = "msgworker_message"


def made(database: Any, script: str | None = None, **options: Any) -> App:
    """An App on the table of the script, which is that of 4 partitions."""
    script = script or apply.ddl(MessageTable(), "postgresql", PARTS)
    with database.engine().begin() as conn:
        conn.exec_driver_sql(script)
    return App(database.url, backoff_seconds=1, **options)


@pytest.fixture
def divided(postgresql: Any) -> App:
    return made(postgresql)


def about_partitions(app: App) -> list[Finding]:
    return [one for one in app.ops.doctor() if one.check == "partitions"]


def test_the_script_makes_a_table_that_needs_nothing_more(divided):
    assert divided.create_schema() == []
    assert divided.upgrade_schema(dry_run=True).steps == ()
    assert needed(divided) == []
    (told,) = about_partitions(divided)
    assert told.severity is Severity.FINE
    assert "4 partitions by the hash of objects (msgworker_message_p0, " in told.text
    assert "0.6 to 0.9 of the speed" in told.text
    assert "unique keys" in told.text
    (plan,) = [one for one in divided.ops.doctor() if one.check == "plan"]
    assert plan.severity is Severity.FINE
    with divided.engine.connect() as conn:
        room = conn.scalars(
            sa.text(f"SELECT reloptions FROM pg_class WHERE relname ~ '^{MESSAGES}_p[0-9]$'")
        )
        assert list(room) == [["fillfactor=90"]] * PARTS


def test_messages_of_an_object_run_one_by_one_in_order(divided):
    ran, now = defaultdict[str, list[int]](list), list[str]()
    clashes: list[str] = []

    def handle(msg: Any) -> None:
        clashes.extend([msg.object_id] if msg.object_id in now else [])
        now.append(msg.object_id)
        ran[msg.object_id].append(msg.payload)
        now.remove(msg.object_id)

    divided.add_handler("t", handle)
    with divided.engine.begin() as conn:
        divided.send_many(conn, "t", [(n, f"o{n % 20}") for n in range(400)])
        divided.send_many(conn, "t", [(n, None) for n in range(20)])
    assert divided.drain(linger=0, threads=4).done == 420
    assert clashes == []
    assert len(ran.pop(None)) == 20
    assert ran == {f"o{k}": list(range(k, 400, 20)) for k in range(20)}
    with divided.engine.connect() as conn:
        parts = conn.scalar(sa.text(f"SELECT count(DISTINCT tableoid) FROM {MESSAGES}"))
    assert parts == PARTS


def test_the_guard_refuses_a_flag_that_the_claim_cannot_see(divided, postgresql):
    store, m = Store(divided), divided.tables.message
    a1, a2, b = send(divided, "a", "a", "b")
    seen = store.seen(a1, b)

    def flagged() -> list[int]:
        try:
            return [row.msg_id for row in store(claim.flag, seen, me="me")]
        except IntegrityError:
            return [row.msg_id for row in store(claim.flag_apart, seen, me="me")[0]]

    waits = sa.text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event = 'transactionid' AND datname = current_database()"
    )
    with postgresql.engine().connect() as foreign, postgresql.engine().connect() as watcher:
        foreign.execute(sa.update(m).where(m.c.msg_id == a2).values(status=1))
        join = in_thread(flagged)

        def waiting() -> bool:
            watcher.rollback()
            return bool(watcher.scalar(waits))

        until(waiting, "the claim waits for the foreign one")
        foreign.commit()
        assert join() == [b]
    assert [store.state(i)[0] for i in (a1, a2, b)] == [0, 1, 1]


def test_messages_are_recovered_rerun_purged_and_archived_as_those_of_any_table(divided):
    fails, ran, table = [False], list[int](), Table(divided)

    def handle(msg: Any) -> None:
        ran.append(msg.msg_id)
        if fails[0]:
            raise ValueError("not yet")

    divided.add_handler("t", handle, wait=wait_none())
    ids = send(divided, *(f"o{n}" for n in range(10)))
    dead_holds(divided, table, where=sa.text("msg_id % 2 = 0"))
    assert divided.drain(linger=0, threads=2).done == 10
    assert sorted(ran) == ids
    assert table.statuses == [2] * 10
    fails[0] = True
    send(divided, *(f"o{n}" for n in range(6)))
    divided.drain(linger=0, retry_linger=5)
    assert len(divided.ops.find(status=State.DEAD)) == 6
    fails[0] = False
    assert divided.ops.rerun(status=State.DEAD).changed == 6
    assert divided.drain(linger=0).done == 6
    for archive in ("old_messages", None):
        old = put(divided, *((f"o{n}", DONE) for n in range(8)), finished_at=LONG_AGO)
        assert divided.ops.purge("1h", archive_to=archive) == 8
        with divided.engine.connect() as conn:
            found = conn.scalars(sa.text("SELECT msg_id FROM old_messages ORDER BY 1"))
            assert (list(found) == old) == bool(archive)
    assert len(table.statuses) == 16
    with divided.engine.begin() as conn:
        with pytest.raises(ConfigError, match=r"has partitions.*unique"):
            divided.send(conn, "t", 1, unique_key="k")
        with pytest.raises(ConfigError, match=r"has partitions.*unique"):
            divided.send_many(conn, "t", [(1, "a"), (2, "b", "k")])
    assert len(table.statuses) == 16


def test_an_insert_cannot_bring_an_id_of_its_own(divided):
    with pytest.raises(sa.exc.DBAPIError, match="GENERATED ALWAYS"):
        run(divided, f"INSERT INTO {MESSAGES} (msg_id, object_id) VALUES (7, 'a')")
    run(divided, f"ALTER TABLE {MESSAGES} ALTER COLUMN msg_id SET GENERATED BY DEFAULT")
    _, told = about_partitions(divided)
    assert told.severity is Severity.ADVISED
    assert "may bring an id of its own" in told.text
    run(divided, *told.fix)
    assert len(about_partitions(divided)) == 1


def refused(app: App, why: str) -> None:
    """No instance starts, and doctor says so."""
    app.add_handler("t", lambda msg: None)
    with pytest.raises(SchemaError, match=why):
        app.drain(linger=0)
    assert [one for one in needed(app) if re.search(why, one.text)]
    app.engine.dispose()


def test_a_partition_that_is_missing_is_told_and_those_of_different_moduli_are_all(
    divided, postgresql
):
    run(divided, f"ALTER TABLE {MESSAGES} DETACH PARTITION {MESSAGES}_p2")
    refused(App(postgresql.url), r"lacks partitions: 1/4 of the objects")
    part = f"{MESSAGES}_p2 FOR VALUES WITH (MODULUS 4, REMAINDER 2)"
    run(divided, f"ALTER TABLE {MESSAGES} ATTACH PARTITION {part}")
    assert needed(App(divided.engine)) == []
    run(
        divided,
        f"DROP TABLE {MESSAGES}_p1",
        f"CREATE TABLE one PARTITION OF {MESSAGES} FOR VALUES WITH (MODULUS 8, REMAINDER 1)",
        f"CREATE TABLE five PARTITION OF {MESSAGES} FOR VALUES WITH (MODULUS 8, REMAINDER 5)",
    )
    assert needed(App(divided.engine)) == []


@pytest.mark.long
def test_a_guard_that_is_not_on_all_partitions_is_refused(divided, postgresql):
    where = "(object_id) WHERE status = 1"
    run(
        divided,
        f"DROP INDEX {MESSAGES}_guard",
        f"CREATE UNIQUE INDEX {MESSAGES}_guard ON ONLY {MESSAGES} {where}",
        *(f"CREATE UNIQUE INDEX g{n} ON {MESSAGES}_p{n} {where}" for n in range(PARTS)),
        *(f"ALTER INDEX {MESSAGES}_guard ATTACH PARTITION g{n}" for n in range(PARTS - 1)),
    )
    refused(App(postgresql.url), r"guard.*(unfinished|was not finished)")
    (finding,) = needed(App(divided.engine))
    assert [text.split()[0] for text in finding.fix] == ["DO", "CREATE"]
    divided.upgrade_schema()
    app = App(divided.engine)
    assert needed(app) == []
    app.add_handler("t", lambda msg: None)
    assert app.drain(linger=0).done == 0
    run(divided, f"DROP INDEX {MESSAGES}_guard")
    refused(App(postgresql.url), r"index msgworker_message_guard is missing")


@pytest.mark.long
def test_a_guard_that_is_not_unique_is_refused(postgresql):
    script = apply.ddl(MessageTable(), "postgresql", PARTS)
    refused(made(postgresql, script.replace("UNIQUE ", "", 1)), "guard.*not unique")


def test_ids_that_no_sequence_gives_are_refused(divided, postgresql):
    run(divided, f"ALTER TABLE {MESSAGES} ALTER COLUMN msg_id DROP IDENTITY")
    refused(App(postgresql.url), "msg_id has no identity")
    run(
        divided,
        "CREATE SEQUENCE numbers",
        f"ALTER TABLE {MESSAGES} ALTER COLUMN msg_id SET DEFAULT nextval('numbers')",
    )
    assert needed(App(divided.engine)) == []


@pytest.mark.long
def test_a_trigger_of_the_table_is_told_once_and_one_of_a_partition_too(divided, postgresql):
    run(
        postgresql,
        "CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        f"CREATE TRIGGER of_all BEFORE UPDATE ON {MESSAGES} FOR EACH ROW EXECUTE FUNCTION act()",
        f"CREATE TRIGGER of_one BEFORE UPDATE ON {MESSAGES}_p1 FOR EACH ROW EXECUTE FUNCTION act()",
        f"CREATE TRIGGER off BEFORE UPDATE ON {MESSAGES} FOR EACH ROW EXECUTE FUNCTION act()",
        f"ALTER TABLE ONLY {MESSAGES} DISABLE TRIGGER off",  # still on in each partition
    )
    told = [one.text.split()[1] for one in divided.ops.doctor() if one.check == "triggers"]
    assert sorted(set(told)) == ["of_all", "of_one", "off"]
    assert [told.count(name) for name in ("of_all", "of_one", "off")] == [1, 1, PARTS]


def test_missing_indexes_are_made_over_all_partitions(divided):
    names = {f"{MESSAGES}_{suffix}" for suffix in ("guard", "id", "object")}
    for act in (divided.create_schema, divided.upgrade_schema):
        run(divided, *(f"DROP INDEX {name}" for name in names))
        assert names <= {one.text.split()[1] for one in needed(App(divided.engine))}
        act()
        assert needed(App(divided.engine)) == []


def test_a_table_of_other_names_that_was_there_already(postgresql):
    spec = MessageTable("crm_msg", msg_id="nr", object_id="Customer")
    app = App(postgresql.url, table=spec)
    run(
        app,
        'CREATE TABLE crm_msg (nr bigserial, "Customer" text NOT NULL, topic text, payload text, '
        "status int NOT NULL DEFAULT 0, error_try_times int NOT NULL DEFAULT 0, "
        'claimed_by text, PRIMARY KEY (nr, "Customer")) PARTITION BY HASH ("Customer")',
        *(
            f"CREATE TABLE crm_{n} PARTITION OF crm_msg FOR VALUES WITH (MODULUS 2, REMAINDER {n})"
            for n in range(2)
        ),
    )
    app.create_schema()
    assert needed(app) == []
    app.add_handler("t", lambda msg: None)
    send(app, *(f"o{n}" for n in range(10)))
    assert app.drain(linger=0).done == 10


def test_alembic_s_hook_keeps_the_partitions(divided):
    metadata = sa.MetaData()
    metadata.reflect(divided.engine)
    ours = [name for name in metadata.tables if name.startswith(MESSAGES)]
    assert len(ours) == 1 + PARTS
    for name in ours:
        assert not include_object(metadata.tables[name], name, "table", True, None)
    for index in metadata.tables[MESSAGES].indexes:
        assert not include_object(index, str(index.name), "index", True, None)
