"""The rule of a table: max_tries and on_dead."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.config import load
from msgworker.errors import RuleChanged, SchemaError
from msgworker.schema import rule
from msgworker.schema.rule import Rule
from tests.support.leases import leases
from tests.support.rows import Table, send
from tests.support.rule import FIVE, THREE, bare, drain, recorded, rows, states, write, written
from tests.support.waiting import launched, until

NAMES = {
    "msg_id": "msgID",
    "object_id": "objectID",
    "status": "status",
    "error_try_times": "errorTryTimes",
}


@pytest.mark.parametrize("schema", [True, False], ids=["create_schema", "bare"])
def test_a_rejected_message_never_runs_again_where_max_tries_is_raised(crm, schema):
    app = crm.app()
    (one,) = send(app, "C-1", topic="reject")
    after = send(app, "C-1", "C-1", topic="ok")
    (dead,) = send(app, "C-2", topic="fail")
    drain(app)
    assert crm.ran.index(("reject", one)) < crm.ran.index(("ok", after[0]))
    other = crm.app(5, schema=True) if schema else bare(crm, app, 5)
    assert drain(other).done == 0
    assert (crm.times(one), crm.times(dead)) == (1, 3)
    assert recorded(other) == FIVE
    (late,) = send(other, "C-3", topic="fail")
    drain(other)
    assert crm.times(late) == 5  # the new rule is in force
    assert crm.times(one) == 1


def test_a_discarded_message_never_runs_again_where_max_tries_is_raised(crm):
    app = crm.app()
    (one,) = send(app, "C-1", topic="ok")
    app.ops.discard(one, reason="wrong file", actor="anna")
    other = crm.app(5)
    assert drain(other).left == 0
    assert crm.ran == []
    assert other.ops.show(one).status == "dead"


def test_two_apps_of_two_rules_work_by_the_table_s(crm, caplog):
    app, other = crm.app(), crm.app(5, schema=False)
    (one,) = send(app, "C-1", topic="reject")
    with launched(app.worker(threads=1)):
        until(lambda: crm.times(one) == 1 and rows(app)[0][0] == -1, "rejected")
        with caplog.at_level(logging.WARNING, "msgworker"):
            drain(other)
        (late,) = send(app, "C-2", topic="fail")
        drain(other)
        until(lambda: rows(app)[1] == (-1, 3), "dead by the table's rule")
    assert (crm.times(one), crm.times(late)) == (1, 3)
    assert recorded(app) == THREE
    (told,) = {r.getMessage() for r in caplog.records if "keeps its rule" in r.getMessage()}
    for words in (str(THREE), str(FIVE), "live instances: 1", "stop all", "init-db"):
        assert words in told


def test_create_schema_beside_a_live_instance_keeps_the_rule_and_warns(crm, caplog):
    app = crm.app()
    with launched(app.worker(threads=1)):
        other = crm.app(5)
    assert recorded(app) == THREE
    assert "keeps its rule" in caplog.text
    assert other.create_schema() == [f"rule {FIVE}"]  # now no instance lives
    assert other.create_schema() == []


def test_a_look_with_another_app_says_dead_where_it_is_dead(crm):
    app = crm.app()
    ids = write(app, (-1, 3), (-1, 2))
    other = crm.app(5, "block", schema=False)
    assert [other.ops.show(i).status for i in ids] == ["dead", "failed"]
    assert states(other) == ["dead", "failed"]
    assert {c.status: c.count for c in other.ops.counts()} == {"failed": 1, "dead": 1}
    assert other.ops.explain(ids[0]).reason == "dead"
    assert other.tables.spec.max_tries == 3
    assert other.ops.rerun(status="dead", dry_run=True) == 1


@pytest.mark.quick("sqlite-(5-2b|3-5|3b-5b|5b-2b)|postgresql-3-5-|mariadb-5-3")
@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        # raised: dead stays dead, failed has more tries left
        ("3", "5", [2, 3, 7], "failed 2, dead 5, dead 7"),
        # lowered: who has failed as often is dead now
        ("5", "3", [2, 3, 4, 5], "failed 2, dead 3, dead 4, dead 5"),
        # who died or was discarded before holds nothing back under "block" either
        ("3", "3b", [2, 3, 4], "failed 2, dead 4, dead 4"),
        ("3", "5b", [2, 3, 6], "failed 2, dead 6, dead 6"),
        ("5", "2b", [1, 2, 4, 5], "failed 1, dead 2, dead 2, dead 5"),
        # 3 holds its object back, 4 was discarded
        ("3b", "3", [2, 3, 4], "failed 2, dead 3, dead 4"),
        ("3b", "5", [2, 3, 4], "failed 2, dead 5, dead 5"),
        ("3b", "5b", [2, 3, 4], "failed 2, dead 5, dead 6"),
        ("5b", "2b", [1, 3, 5, 6], "failed 1, dead 2, dead 2, dead 6"),
        ("5b", "2", [1, 3, 5, 6], "failed 1, dead 3, dead 5, dead 6"),
    ],
)
def test_a_change_of_the_rule_leaves_what_is_dead_dead(crm, old, new, before, after):
    app = crm.app(*written(old))
    write(app, *((-1, tries) for tries in before))
    write(app, (0, 0), (2, 2), (2, 9))
    other = crm.app(*written(new))
    assert recorded(other) == written(new)
    both = zip(states(other), rows(other), strict=True)
    found = [f"{word} {tries}" for word, (_, tries) in both]
    assert ", ".join(found[: len(before)]) == after
    assert rows(other)[len(before) :] == [(0, 0), (2, 2), (2, 9)]


def test_what_held_its_object_back_goes_on_to_and_what_did_not_does_not(crm):
    app = crm.app(3, "block")
    (dead, _, gone, _) = send(app, "a", "a", "b", "b", topic="ok")
    table = Table(app)
    table.edit(table.where(msg_id=dead), status=-1, error_try_times=3)
    app.ops.discard(gone, reason="wrong")
    other = crm.app(5, "block")
    assert (drain(other).done, drain(other).left) == (1, 2)  # the dead one, and who is behind it
    assert other.ops.lanes()[0].head.msg_id == dead
    last = crm.app(5)
    assert (drain(last).done, drain(last).left) == (1, 0)


def test_who_died_before_a_change_to_block_does_not_block(crm):
    app = crm.app()
    send(app, "a", "a", topic="fail")
    drain(app)
    other = crm.app(3, "block")
    (late,) = send(other, "a", topic="ok")
    assert drain(other).done == 1
    assert crm.times(late) == 1
    # People have not given it up: it is found as a dead one.
    assert other.ops.rerun(status="dead", dry_run=True, force=True) == 2


def test_a_lowered_max_tries_tells_how_many_are_dead_by_it_and_finishes_them(crm, caplog):
    app = crm.app(5)
    write(app, (-1, 2), (-1, 3), (-1, 4))
    Table(app).edit(available_at=datetime.now(UTC) + timedelta(hours=1))
    with caplog.at_level(logging.WARNING, "msgworker"):
        other = crm.app(3)
    assert "failed messages that are dead by it: 2" in caplog.text
    assert str(FIVE) in caplog.text
    ends = Table(other).rows("finished_at", "available_at")
    assert [(a is not None, b is None) for a, b in ends] == [(0, 0), (1, 1), (1, 1)]


@pytest.mark.requires("common_sql")
def test_a_table_of_the_seed_s_four_columns_has_a_rule_too(crm):
    app = crm.app(name="legacy")
    engine, old = app.engine, {"name": "seed", "payload": None, **NAMES}
    kind = "INTEGER PRIMARY KEY" if engine.dialect.name == "sqlite" else "SERIAL PRIMARY KEY"
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE seed ({_q(engine, 'msgID')} {kind}, {_q(engine, 'objectID')} "
            f"VARCHAR(60), status SMALLINT DEFAULT 0 NOT NULL, {_q(engine, 'errorTryTimes')} "
            "SMALLINT DEFAULT 0 NOT NULL)"
        )
    names = {key: value for key, value in old.items() if key != "name"}
    first = crm.app(name="seed", **names)
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"INSERT INTO seed ({_q(engine, 'objectID')}, status, {_q(engine, 'errorTryTimes')}) "
            "VALUES ('a', -1, 3), ('b', 1, 1)"
        )
    assert recorded(first) == THREE
    other = crm.app(5, name="seed", **names)
    assert recorded(other) == FIVE
    assert rows(other) == [(-1, 5), (1, 1)]
    assert recorded(app) == THREE  # each table has its own


def _q(engine: sa.Engine, name: str) -> str:
    return engine.dialect.identifier_preparer.quote(name)


def test_a_table_without_a_record_gets_that_of_its_first_start(crm):
    app = crm.app(4)
    _forget(app)
    assert app.ops.counts() == []
    drain(app)
    assert recorded(app) == Rule(4, "continue")


def test_a_table_of_an_earlier_version_is_known_by_its_indexes(crm):
    app = crm.app()
    write(app, (-1, 3))
    _forget(app)
    looking = crm.app(5, schema=False)
    assert looking.tables.spec.max_tries == 3
    other = crm.app(5)
    assert recorded(other) == FIVE
    assert rows(other) == [(-1, 5)]
    _forget(app)
    seven = MessageTable(max_tries=7)
    names = other.tables.indexes or ()
    assert sorted(rule.made_for(seven, names)) == [THREE, FIVE]
    assert rule.assumed(seven, names) == Rule.of(seven)  # those of two rules tell nothing


def _forget(app: App) -> None:
    t = app.tables.lease
    with app.engine.begin() as conn:
        conn.execute(sa.delete(t).where(t.c.kind == rule.KIND))


def test_a_record_that_is_no_rule_is_an_error_that_says_how_one_looks(crm):
    app = crm.app()
    t = app.tables.lease
    with app.engine.begin() as conn:
        conn.execute(sa.update(t).where(t.c.kind == rule.KIND).values(serves='{"max_tries": 0}'))
    with pytest.raises(SchemaError, match=r"is no rule: .*written like"):
        crm.app(schema=False).ops.counts()


def test_a_bare_start_by_another_rule_says_that_indexes_are_missing(crm, caplog):
    app = crm.app()
    write(app, (-1, 3))
    other = crm.app(5, schema=False)
    if app.tables.database.case_index == "column":
        with pytest.raises(SchemaError, match=r"mw_open_object_t5.*init-db"):
            drain(other)
        assert recorded(app) == THREE
        return
    drain(other)
    assert recorded(app) == FIVE
    assert rows(app) == [(-1, 5)]
    run = "run `msgworker init-db pkg.module:app`"
    assert f"is missing: claims read finished messages; {run}" in caplog.text


def test_a_write_of_ops_by_an_older_rule_is_refused(crm):
    app = crm.app()
    (one,) = send(app, "a", topic="ok")
    old = app.tables
    crm.app(5)
    ops = app.ops
    ops.read_tables = lambda _: old
    with pytest.raises(RuleChanged):
        ops.discard(one, reason="wrong")
    assert rows(app) == [(0, 0)]


def test_who_looks_for_long_sees_a_new_rule(crm, monkeypatch):
    monkeypatch.setattr("msgworker.schema.known.RULE_SECONDS", 0.0)
    app = crm.app()
    (one,) = send(app, "a", topic="ok")
    ops = app.ops
    assert ops.show(one).status == "new"
    other = crm.app(5)
    ops.discard(one, reason="wrong")
    assert rows(other) == [(-1, 5)]
    drain(other)
    assert crm.ran == []


def test_how_a_dead_message_has_ended_is_told_from_its_history(crm):
    app = crm.app()
    rejected, failed, gone, old, nobody = (
        *send(app, "a", topic="reject"),
        *send(app, "b", topic="fail"),
        *send(app, "c", "d", "e", topic="ok"),
    )
    app.ops.discard(gone, reason="wrong file", actor="anna")
    app.ops.discard(old, reason="too old", actor="bert")
    drain(app)
    table = Table(app)
    table.edit(table.where(msg_id=nobody), status=-1, error_try_times=3)  # by hand
    texts = {
        rejected: "rejected at its first try",
        failed: "dead after 3 failed tries",
        gone: "discarded by anna: wrong file",
        old: "discarded by bert: too old",
        nobody: "no tries left",
    }
    tries = {rejected: 1, failed: 3, gone: 0, old: 0, nobody: None}
    for looking in (app, crm.app(5)):
        found = {i: looking.ops.show(i).ending for i in texts}
        assert {i: one.text for i, one in found.items()} == texts
        assert {one.msg_id: one.ending.text for one in looking.ops.find(status="dead")} == texts
        assert {i: one.tries for i, one in found.items()} == tries
        assert (
            "rejected at its first try; a rerun tries it again"
            in looking.ops.explain(rejected).text
        )
        assert "it is dead after 3 failed tries" in looking.ops.explain(failed).text


def test_what_was_before_a_rerun_is_not_counted_in_how_it_has_ended(crm):
    app = crm.app()
    (one,) = send(app, "a", topic="fail")
    drain(app)
    app.ops.rerun(one)
    table = Table(app)
    table.edit(topic="reject")
    drain(app)
    assert app.ops.show(one).ending.text == "rejected at its first try"
    app.ops.rerun(one)
    assert app.ops.show(one).ending is None
    table.edit(status=1, claimed_by="host-1-gone", error_try_times=2)
    drain(app)
    assert app.ops.show(one).ending.text == "dead after 1 failed try, 1 of them by a crash"


def test_a_dead_head_that_blocks_says_how_it_has_ended(crm):
    app = crm.app(3, "block")
    (one, _) = (*send(app, "a", topic="reject"), *send(app, "a", topic="ok"))
    drain(app)
    (lane,) = app.ops.lanes()
    assert (lane.head.msg_id, lane.head.ending.text) == (one, "rejected at its first try")
    assert "its object waits until it is rerun or discarded" in app.ops.explain(one).text
    app.ops.discard(one, reason="wrong")
    assert "its object waits" not in app.ops.explain(one).text


def test_without_the_tables_of_ops_the_tries_tell_how_it_has_ended(crm):
    app = crm.app()
    (one,) = send(app, "a", topic="reject")
    drain(app)
    with app.engine.begin() as conn:
        for name in ("msgworker_audit", "msgworker_operation"):
            conn.exec_driver_sql(f"DROP TABLE {name}")
    assert crm.app(schema=False).ops.show(one).ending.text == "rejected at its first try"


def findings(app: App, check: str) -> list[Any]:
    return [one for one in app.ops.doctor() if one.check == check and one.severity != "fine"]


def test_doctor_tells_an_app_of_another_rule_what_a_change_would_do(crm):
    app = crm.app(5)
    write(app, (-1, 2), (-1, 3), (-1, 5))
    assert findings(app, "rule") == []
    other = crm.app(3, schema=False)
    (told,) = findings(other, "rule")
    assert "failed messages that would be dead at once: 1" in told.text
    with launched(app.worker(threads=1)):
        until(lambda: leases(app), "registered")
        (told,) = findings(other, "rule")
    for words in (str(FIVE), str(THREE), "stop all instances (1 live)", "init-db"):
        assert words in told.text
    assert (told.severity, told.fix) == ("advised", ())
    other.create_schema()
    assert findings(other, "rule") == []


def test_doctor_advises_to_drop_the_indexes_of_a_rule_of_the_past(crm):
    app = crm.app()
    other = crm.app(5)
    (told,) = findings(other, "indexes")
    assert str(THREE) in told.text
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for statement in told.fix:
            conn.exec_driver_sql(statement)
    assert findings(other, "indexes") == []
    assert other.create_schema() == []
    write(other, (0, 0))
    assert drain(other).done == 1


def test_doctor_finds_a_record_that_is_no_rule(crm):
    app = crm.app()
    t = app.tables.lease
    with app.engine.begin() as conn:
        conn.execute(sa.update(t).where(t.c.kind == rule.KIND).values(serves="x"))
    (told,) = findings(app, "rule")
    assert (told.severity, "is no rule" in told.text) == ("needed", True)


def test_a_configuration_that_names_no_rule_keeps_the_table_s(crm, tmp_path):
    app = crm.app(5, "block")
    url = app.engine.url.render_as_string(hide_password=False)
    plain = App.from_config(load({"url": url}, environ={}, folder=tmp_path))
    try:
        assert plain.create_schema() == []
        assert recorded(app) == Rule(5, "block")
        assert findings(plain, "rule") == []
    finally:
        plain.engine.dispose()


def test_a_start_changes_no_rule_by_which_messages_die(crm, caplog):
    app = crm.app(5)
    write(app, (-1, 3))
    Table(app).edit(available_at=datetime.now(UTC) + timedelta(hours=1))
    other = bare(crm, app, 3)
    drain(other)
    assert (recorded(app), states(app)) == (FIVE, ["failed"])
    assert "failed messages that would be dead by it: 1" in caplog.text
    other.create_schema()
    assert (recorded(app), states(other)) == (THREE, ["dead"])


def test_to_count_what_is_left_changes_no_rule(crm):
    app = crm.app()
    other = bare(crm, app, 5)
    send(app, "a", topic="ok")
    assert other.worker().left().total == 1
    assert recorded(app) == THREE
