"""Edit: correct a message that waits or is dead, in its place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from tenacity import wait_fixed, wait_none

from msgworker import App, ConfigError, MessageTable, PayloadError, Reject
from msgworker.message import Outcome, State
from msgworker.ops.edits import diff
from msgworker.ops.results import Why
from msgworker.payload import decode_exactly
from msgworker.queries.explain import Waits
from msgworker.store.audit import Edited
from tests.engines import plain_engine
from tests.support.apps import created
from tests.support.databases import SQLITE
from tests.support.ops import DONE, FAILED, NEW, RUNNING, put
from tests.support.rounds import by_hand
from tests.support.rows import edit, send

SOON = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_an_edit_changes_what_is_given_and_keeps_the_rest(app, table):
    (msg_id,) = put(app, ("a", FAILED), payload='{"n": 1}', priority=2)
    would = app.ops.edit(msg_id, payload={"n": 2}, priority=5, dry_run=True)
    assert (would, would.dry_run, would.sample[0].payload) == (1, True, None)
    assert would.changes == (Edited("payload", '{"n": 1}', '{"n":2}'), Edited("priority", 2, 5))
    assert table.one("payload", "priority") == ('{"n": 1}', 2)
    done = app.ops.edit(
        msg_id, payload={"n": 2}, priority=5, seen=would.seen, reason="typo", actor="anna"
    )
    assert (done, done.changes) == (1, would.changes)
    assert table.one("status", "error_try_times", "topic", "payload", "priority") == (
        *(-1, 3, "t"),
        *('{"n":2}', 5),
    )
    assert app.ops.show(msg_id).last_error == "ValueError: no"
    told = app.ops.audit(msg_id)[0]
    assert (told.kind, told.actor, told.reason, told.was_status) == (
        *("edit", "anna", "typo"),
        State.DEAD,
    )
    assert told.changes == would.changes
    assert told.filter == {"ids": [msg_id]}  # payloads stand nowhere else


def test_an_edit_is_refused_of_what_its_column_does_not_take_or_is_too_long_to_be_read(make_app):
    app = created(make_app(table=MessageTable(max_payload=50)))
    (msg_id,) = put(app, ("a", FAILED), payload="1")
    with pytest.raises(PayloadError, match="max_payload"):
        app.ops.edit(msg_id, payload="x" * 60, reason="r")
    if app.tables.column_limits:
        with pytest.raises(ConfigError, match="the topic has 300 characters"):
            app.ops.edit(msg_id, topic="t" * 300, reason="r")
    assert (app.ops.show(msg_id).topic, app.ops.audit()) == ("t", [])


def test_an_edit_is_refused_if_the_message_has_changed_since_it_was_seen(app, table):
    (msg_id,) = send(app, "a", payload=1)
    seen = app.ops.edit(msg_id, payload=2, dry_run=True).seen
    assert app.ops.edit(msg_id, priority=1, reason="other") == 1
    done = app.ops.edit(msg_id, payload=2, seen=seen, reason="r")
    assert (done, done.skips[0].why, done.changes) == (0, Why.EDITED, ())
    assert table.one("payload") == "1"
    assert len(app.ops.audit(msg_id)) == 1


def test_an_edit_is_refused_of_what_runs_is_done_or_is_not_there(app, table):
    ids = put(app, ("a", RUNNING), ("b", DONE), ("c", 7))
    whys = [app.ops.edit(i, topic="u", reason="r").skips[0].why for i in [*ids, 99]]
    assert whys == [Why.RUNNING, Why.NOT_EDITED, Why.UNKNOWN, Why.NOT_THERE]
    assert table.column("topic") == ["t"] * 3
    assert app.ops.audit() == []


def test_an_edit_that_changes_nothing_writes_nothing(app, table):
    (msg_id,) = send(app, "a", payload={"a": 1, "b": 2})
    done = app.ops.edit(msg_id, topic="t", payload={"b": 2, "a": 1}, available_at=None, reason="r")
    assert (done, done.skips[0].why) == (0, Why.SAME)
    assert app.ops.audit() == []


def test_a_number_is_not_taken_for_what_holds_its_digits(app, table):
    (msg_id,) = send(app, "a", payload={"n": 1.5})
    for other in ({"number": "1.5"}, "1.5", {"number": [0, "15", -1]}):
        done = app.ops.edit(msg_id, payload={"n": other}, reason="r", dry_run=True)
        assert [one.column for one in done.changes] == ["payload"]


def test_a_message_that_was_read_ahead_runs_as_it_was_edited(app, table):
    """Its lane has it with the old payload: it is claimed again."""
    seen = []

    def handler(msg):
        seen.append((msg.msg_id, msg.payload))
        if msg.payload == "second":
            assert app.ops.edit(ids[3], payload="new", reason="r") == 1
            assert table.rows("status", "error_try_times")[3] == (-1, 0)

    app.add_handler("t", handler)
    ids = [send(app, "a", payload=text)[0] for text in ("first", "second", "third", "old", "fifth")]
    assert app.drain(linger=0).done == 5
    texts = ("first", "second", "third", "new", "fifth")
    assert seen == list(zip(ids, texts, strict=True))


def test_a_message_whose_topic_was_edited_runs_by_its_new_handler(app):
    ran = []
    app.add_handler("t", lambda msg: ran.append("t"))
    app.add_handler("u", lambda msg: ran.append("u"))
    free, held = send(app, None, "a")
    for msg_id in (free, held):
        assert app.ops.edit(msg_id, topic="u", reason="r") == 1
    assert app.drain(linger=0).done == 2
    assert ran == ["u", "u"]


def test_a_claim_under_way_of_a_failed_message_reads_its_new_topic(app, table):
    app.add_handler("t", lambda msg: None)
    (msg_id,) = put(app, ("a", FAILED), tries=1)
    with by_hand(app, 1) as one:
        look = one.fetcher.finder.look(5, 0)
        assert [found.msg_id for found in look.candidates] == [msg_id]
        assert app.ops.edit(msg_id, topic="u", reason="r") == 1
        assert table.one("status", "error_try_times", "topic") == (-1, 1, "u")
        (lane,), _ = one.fetcher.claimer.claim(look.candidates, one.shared.identity.id)
        assert lane.row.topic == "u"
        one.caller.handle(lane)
        assert lane.result.outcome is Outcome.RELEASED  # no handler here


@pytest.mark.parametrize("act", ["edit", "rerun"])
def test_an_error_of_before_an_edit_or_a_rerun_is_told_apart(app, act):
    """Until it fails again, or is done."""
    wait = wait_fixed(3600) if act == "edit" else wait_none()
    app.add_handler("t", lambda msg: {}[msg.payload], wait=wait)
    (msg_id,) = send(app, "a", payload="CHF")
    app.drain(linger=1)
    info = app.ops.show(msg_id)
    assert (info.changed, info.last_error.startswith("KeyError: 'CHF'")) == (None, True)
    change = {"payload": "EUR", "available_at": None} if act == "edit" else {}
    assert getattr(app.ops, act)(msg_id, **change, actor="anna", reason="INC-1") == 1
    for info in (app.ops.show(msg_id), *app.ops.find(), *app.ops.messages()):
        told = info.changed
        assert (told.kind, told.actor, told.reason) == (act, "anna", "INC-1")
        assert info.last_error.startswith("KeyError: 'CHF'")
        assert abs(datetime.now(UTC) - told.at) < timedelta(minutes=5)
    by = {"edit": "edited by anna", "rerun": "rerun by anna"}[act]
    (lane,) = app.ops.lanes()
    assert str(lane.head.changed) == by
    assert str(app.ops.explain(msg_id).message.changed) == by
    app.drain(linger=1)
    assert [app.ops.show(msg_id).changed, app.ops.find()[0].changed] == [None, None]
    app.ops.rerun(msg_id)
    app.ops.discard(msg_id, reason="r")
    assert app.ops.show(msg_id).changed is None  # what it says is of after the rerun


def test_a_message_that_was_edited_before_it_has_failed_says_so_too(app):
    (new, sent) = send(app, "a", "b")
    assert app.ops.edit(new, payload="x", actor="anna", reason="r") == 1
    assert [str(one.changed) for one in app.ops.find()] == ["edited by anna", "None"]
    assert app.ops.edit(sent, priority=1, actor="bob", reason="r") == 1
    assert app.ops.show(sent).changed is None  # it is new, and says nothing of a failure


def test_what_a_foreign_consumer_fails_after_an_edit_is_of_after_it(app, table):
    (msg_id,) = put(app, ("a", FAILED), tries=1)
    assert app.ops.edit(msg_id, topic="u", actor="anna", reason="r") == 1
    assert str(app.ops.show(msg_id).changed) == "edited by anna"
    edit(app, msg_id, error_try_times=2, last_error="ValueError: other")
    assert app.ops.show(msg_id).changed is None
    long = f"ValueError: {'long ' * 200}"  # of which the audit keeps the beginning
    edit(app, msg_id, last_error=long)
    assert app.ops.edit(msg_id, topic="t", actor="anna", reason="r") == 1
    assert str(app.ops.show(msg_id).changed) == "edited by anna"


def test_an_instant_is_edited_and_taken_away(app):
    ran = []
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    (msg_id,) = send(app, "a", at=SOON)
    assert app.drain(linger=0).done == 0
    done = app.ops.edit(msg_id, available_at=SOON + timedelta(days=1), reason="r")
    assert done.changes == (
        Edited("available_at", "2030-01-02T03:04:05+00:00", "2030-01-03T03:04:05+00:00"),
    )
    assert app.ops.edit(msg_id, available_at=None, reason="r") == 1
    assert app.drain(linger=0).done == 1
    assert ran == [msg_id]


def test_a_dead_message_stays_dead_until_it_is_rerun(app):
    seen = []

    def handler(msg):
        seen.append(msg.payload)
        if msg.payload == "bad":
            raise Reject("no")

    app.add_handler("t", handler)
    (msg_id,) = send(app, "a", payload="bad")
    app.drain(linger=0)
    assert app.ops.edit(msg_id, payload="good", reason="r") == 1
    assert app.ops.show(msg_id).status is State.DEAD
    assert app.drain(linger=0).done == 0
    assert app.ops.rerun(msg_id) == 1
    assert app.drain(linger=0).done == 1
    assert seen == ["bad", "good"]
    with pytest.raises(ConfigError, match="waits for no instant"):
        app.ops.edit(put(app, ("b", FAILED))[0], available_at=SOON, reason="r")


def test_a_discarded_message_is_edited_when_nothing_of_its_object_runs(app):
    first, second = put(app, ("a", RUNNING), ("a", NEW))
    app.ops.discard(second, reason="twin")
    done = app.ops.edit(second, payload=1, reason="r")
    assert (done, done.skips[0].why) == (0, Why.AHEAD)
    assert app.ops.edit(second, priority=3, reason="r") == 1  # no run has that
    edit(app, first, status=DONE, claimed_by=None)
    assert app.ops.edit(second, payload=1, reason="r") == 1


def test_a_rerun_gives_no_run_what_it_was_before_an_edit(app, table):
    """Whatever was done to it since: a run that is still going on may have it."""
    first, second = put(app, ("a", RUNNING), ("a", NEW))
    assert app.ops.edit(second, payload=1, reason="r") == 1
    assert app.ops.rerun(second) == 1
    assert table.rows("status", "error_try_times")[1] == (FAILED, 0)
    app.ops.discard(second, reason="twin")
    done = app.ops.rerun(second)
    assert (done, done.skips[0].why) == (0, Why.AHEAD)
    edit(app, first, status=DONE, claimed_by=None)
    assert app.ops.rerun(second) == 1
    assert table.statuses == [DONE, NEW]


def test_a_rerun_starts_no_edited_message_before_its_instant(app, table):
    first, *later = put(app, ("a", FAILED), ("a", NEW), ("a", NEW))
    for msg_id in later:
        edit(app, msg_id, available_at=SOON)
    assert app.ops.edit(later[0], payload=1, reason="r") == 1
    instants = table.rows("available_at")[1:]
    assert app.ops.rerun(first, with_successors=True) == 2
    assert app.ops.rerun(later[0]) == 1
    assert table.rows("available_at")[1:] == instants
    assert table.rows("status", "error_try_times") == [(NEW, 0), (FAILED, 0), (NEW, 0)]


def test_an_edited_message_that_is_due_later_waits_for_no_retry(app):
    app.add_handler("t", lambda msg: None)
    (msg_id,) = send(app, "a", payload=1, delay=100)
    assert app.ops.edit(msg_id, payload=2, reason="r") == 1
    report = app.drain(linger=1, retry_linger=1000)
    assert (report.left_by, report.exit_code) == ({Waits.LATER: 1}, 0)
    waits, failed = app.ops.show(msg_id), app.ops.show(put(app, ("b", FAILED), tries=1)[0])
    assert [(one.status, one.word) for one in (waits, failed)] == [
        (State.FAILED, "waiting"),
        (State.FAILED, "failed"),
    ]
    assert app.ops.explain(msg_id).text == "it is not due yet"


@pytest.mark.requires("unique_keys")
def test_a_unique_key_is_held_through_an_edit(app, table):
    (msg_id,) = send(app, "a", payload=1, unique_key="k")
    assert app.ops.edit(msg_id, payload=2, reason="r") == 1
    assert table.one("status", "payload") == (NEW, "2")  # no run has one with a key
    assert app.ops.edit(msg_id, topic="u", reason="r") == 1
    assert send(app, "a", payload=3, unique_key="k") == [msg_id]


def test_what_a_failed_try_has_not_said_is_in_no_group_of_failures(app):
    (msg_id,) = send(app, "a", payload=1)
    assert app.ops.edit(msg_id, payload=2, reason="r") == 1
    assert list(app.ops.failures()) == []


@SQLITE
def test_an_edit_refuses(app, table, subtests):
    (msg_id,) = send(app, "a")
    for given in (
        {},
        {"topic": ""},
        {"topic": "x" * 101},
        {"topic": "a\x00b"},
        {"topic": 1},
        {"priority": -1},
        {"priority": True},
        {"priority": 10**12},
        {"available_at": "now"},
        {"available_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - naive
        {"available_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))},
        {"topic": "u", "seen": "x"},
        {"topic": "u", "reason": " "},
        {"topic": "u", "reason": None},
        {"topic": "u", "actor": 1},
        {"msg_id": True, "topic": "u"},
        {"msg_id": 2**63, "topic": "u"},
        {"msg_id": "1", "topic": "u"},
    ):
        with subtests.test(given=given):
            with pytest.raises(ConfigError):
                app.ops.edit(**({"msg_id": msg_id, "reason": "r"} | given))
            assert table.one("topic", "status") == ("t", NEW)


@SQLITE
def test_an_edit_refuses_a_payload_that_cannot_be_sent(app, subtests):
    (msg_id,) = send(app, "a", payload=1)
    for payload in (float("nan"), object(), {"a": "\ud800"}):
        with subtests.test(payload=payload), pytest.raises(PayloadError):
            app.ops.edit(msg_id, payload=payload, reason="r")


@pytest.mark.requires("common_sql")
def test_an_edit_of_a_table_without_the_columns_says_so(make_app, database):
    number = "INTEGER" if database.name == "sqlite" else "BIGINT"
    engine = plain_engine(database.url)
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE te (msg_id {number} PRIMARY KEY, object_id VARCHAR(20), "
            "status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 NOT NULL, "
            "payload VARCHAR(40))"
        )
        conn.exec_driver_sql(
            "INSERT INTO te (msg_id, object_id, payload) VALUES (1, 'a', 'no json')"
        )
    engine.dispose()
    app = created(make_app(table=MessageTable("te")))
    for given in ({"topic": "u"}, {"available_at": None}, {"available_at": SOON}, {"priority": 1}):
        with pytest.raises(ConfigError, match=f"no {next(iter(given))} column"):
            app.ops.edit(1, **given, reason="r")
    done = app.ops.edit(1, payload={"n": 1}, reason="r")
    assert (done, done.changes) == (1, (Edited("payload", "no json", '{"n":1}'),))
    if database.name != "sqlite":  # where a column takes any length
        with pytest.raises(PayloadError, match="takes 40"):
            app.ops.edit(1, payload="x" * 60, reason="r")


def test_a_long_payload_is_kept_in_part_by_the_audit(app):
    (msg_id,) = send(app, "a", payload="x" * 30_000)
    assert app.ops.edit(msg_id, payload="y", reason="r") == 1
    (kept,) = app.ops.audit(msg_id)[0].changes
    assert (len(kept.old), kept.new) == (20_001, '"y"')


def test_a_diff_has_the_lines_that_differ():
    old, new = '{"a": 1, "b": {"c": [1, 2]}}', '{"a": 1, "b": {"c": [1, 3]}}'
    lines = diff(Edited("payload", old, new), around=1)
    assert lines == [(" ", "      1,"), ("-", "      2"), ("+", "      3"), (" ", "    ]")]
    assert diff(Edited("payload", None, "1")) == [("+", "1")]
    assert diff(Edited("priority", None, 2)) == [("-", "none"), ("+", "2")]


def test_an_edit_keeps_the_digits_that_it_is_given_and_shows_those_that_were(app, table):
    was, new = '{"amount": 12345678901234567.89, "n": 1.10}', "12345678901234567.88"
    (msg_id,) = put(app, ("a", NEW), payload=was)
    same = app.ops.edit(msg_id, payload=decode_exactly(was), reason="r")
    assert (same, same.skips[0].why) == (0, Why.SAME)
    wanted = decode_exactly(was.replace("12345678901234567.89", new))
    done = app.ops.edit(msg_id, payload=wanted, reason="r")
    assert table.one("payload") == f'{{"amount":{new},"n":1.10}}'
    (kept,) = app.ops.audit(msg_id)[0].changes
    assert ((kept,), kept.old) == (done.changes, was)
    signs = {sign: line for sign, line in diff(kept) if sign in "+-"}
    assert signs == {"-": '  "amount": 12345678901234567.89,', "+": f'  "amount": {new},'}


def test_two_edits_of_what_both_have_seen_do_one(app):
    (msg_id,) = send(app, "a", payload=1)
    one, other = (App(app.engine, table=app.table) for _ in range(2))
    seen = one.ops.edit(msg_id, payload=2, dry_run=True).seen
    assert one.ops.edit(msg_id, payload=2, seen=seen, reason="r") == 1
    assert other.ops.edit(msg_id, payload=3, seen=seen, reason="r") == 0


def test_a_payload_is_the_same_only_with_all_digits_of_its_numbers(sqlite_app, subtests):
    for held, new, same in (
        ('{"a": 12.50, "b": 1E2}', {"b": 100.0, "a": 12.5}, True),
        ('{"a": 12345678901234567.89}', {"a": 12345678901234567.89}, False),
        (
            '{"a": 1234567890123456789012345678901.5}',
            {"a": 1234567890123456789012345678901.0},
            False,
        ),
        ('{"a": 1e99999999999999999999}', {"a": 1.0}, False),
        ('{"a": 0.0}', {"a": 0}, False),
    ):
        with subtests.test(held=held, new=new, same=same):
            (msg_id,) = put(sqlite_app, ("a", NEW), payload=held)
            done = sqlite_app.ops.edit(msg_id, payload=new, dry_run=True)
            assert bool(done) is not same
