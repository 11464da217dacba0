"""What operators see: counts, lists, failures, lanes, instances."""

from __future__ import annotations

import inspect
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tenacity import wait_none

import msgworker
from msgworker import App, MessageTable
from msgworker.errors import ConfigError, MsgworkerError
from msgworker.message import Outcome, Settlement, State
from msgworker.ops import Ops
from msgworker.queries import counts, failures, lanes, pages
from msgworker.queries.counts import Exact
from msgworker.queries.explain import Reason
from msgworker.queries.instances import Life
from msgworker.queries.messages import acts
from msgworker.store import bounded, settle, tries
from msgworker.store.tries import Failure, Kind
from tests.support.apps import created
from tests.support.databases import SQLITE
from tests.support.flags import ME, flagged
from tests.support.leases import registered
from tests.support.ops import DONE, FAILED, NEW, failing, looks, put, why
from tests.support.rows import Table, edit, send
from tests.support.waiting import launched, until


def test_every_look_of_ops_is_in_the_list_of_the_tests(tmp_path):
    """What takes no `actor` changes nothing; `looks` of tests/support/ops.py is what is tested for
    odd rows and long names."""
    reads = {
        name
        for name, method in inspect.getmembers(Ops, inspect.isfunction)
        if name[0] != "_"
        and not inspect.signature(method).parameters.keys() & {"reason", "how", "options"}
    }
    apart = {"acting", "within", "object_id", "operation", "recorded"}
    assert reads - apart == looks(App(f"sqlite:///{tmp_path}/q.db").ops, 1).keys()


def mixed(app: App, table: Table) -> list[int]:
    """40 messages: 10 done, 4 dead, 3 failed, 3 running, 20 new, of two topics."""
    ids = send(app, *(f"o{i}" for i in range(20)), topic="a")
    ids += send(app, *(f"p{i}" for i in range(20)), topic="b")
    c = app.tables.message.c

    def edit(some: list[int], **roles: Any) -> None:
        table.edit(c.msg_id.in_(some), **roles)

    edit(ids[:10], status=2)
    edit(ids[10:14], status=-1, error_try_times=3, last_error="KeyError: 'x17'")
    edit(ids[14:17], status=-1, error_try_times=1, last_error="Odd")
    edit(ids[17:20], status=1, claimed_by=ME)
    return ids


def test_counts_are_exact_of_a_small_table_and_bounded_of_a_large_one(app, table):
    mixed(app, table)
    found = {(one.status, one.topic): one.count for one in app.ops.counts()}
    assert found == {
        ("new", "b"): 20,
        ("processing", "a"): 3,
        ("done", "a"): 10,
        ("failed", "a"): 3,
        ("dead", "a"): 4,
    }
    assert all(one.exact is Exact.EXACT for one in app.ops.counts())
    with app.engine.connect() as conn:
        found = counts.counts(conn, app.tables, most=5)
    by_word = {one.status: one for one in found}
    assert (by_word[State.NEW].count, by_word[State.NEW].exact) == (5, Exact.AT_LEAST)
    assert (by_word[State.PROCESSING].count, by_word[State.PROCESSING].exact) == (3, Exact.EXACT)
    failed = [one for one in found if one.status in (State.FAILED, State.DEAD)]
    assert sum(one.count for one in failed) == 5
    assert {one.exact for one in failed} == {Exact.AT_LEAST}
    (done,) = (one for one in found if one.status is State.DONE)
    assert (done.exact, done.at_most) in ((Exact.ABOUT, True), (Exact.AT_LEAST, False))


def test_the_age_of_the_oldest_is_that_of_all_that_were_counted_apart(app):
    ids = send(app, "a", "b") + send(app, "c", "d", delay=3600)
    for msg_id, hours in zip(ids, (1, 9, 2, 3), strict=True):
        edit(app, msg_id, created_at=datetime.now(UTC) - timedelta(hours=hours))
    with app.engine.connect() as conn:
        for most in (3, 50):
            (new,) = (
                one for one in counts.counts(conn, app.tables, most=most) if one.status is State.NEW
            )
            assert new.oldest_seconds == pytest.approx(9 * 3600, abs=600)


@SQLITE
def test_what_is_done_is_at_most_the_estimate_where_others_were_not_all_counted(app):
    put(app, *[(None, FAILED)] * 6, *[(None, DONE)] * 5)
    with app.engine.connect() as conn:
        few, enough = (counts.counts(conn, app.tables, most=most) for most in (5, 7))
    done = {one.status: (one.count, one.at_most) for one in few}[State.DONE]
    assert done == (6, True)
    assert {one.status: (one.count, one.at_most) for one in enough}[State.DONE] == (5, False)
    assert str(counts.total(few, State.DONE)) == "at most 6"


def test_what_is_done_is_at_least_0_where_no_statistics_tell_it(app, monkeypatch):
    put(app, *[(None, DONE)] * 3, (None, NEW))
    monkeypatch.setattr("msgworker.queries.counts.row_estimate", lambda *_: None)
    monkeypatch.setattr(counts, "MOST", 2)
    assert {state: str(one) for state, one in app.ops.overview().counts.items()} == {
        State.NEW: "1",
        State.DONE: "0+",
    }


def test_new_ones_behind_all_that_was_looked_at_are_at_least_0(app, monkeypatch):
    """Where no index has new ones by age: behind a failed one and many that are done."""
    first, *_ = put(app, ("a", NEW), *[(None, DONE)] * 9, ("z", NEW))
    edit(app, first, status=-1, error_try_times=1)
    monkeypatch.setattr(bounded, "SCAN", 3)
    with app.engine.connect() as conn:
        found = counts.counts(conn, app.tables, most=5)
    assert str(counts.total(found, State.NEW)) in ("1", "0+")
    assert all(one.of_all for one in found if not one.count)


def test_delayed_messages_are_counted_and_listed(app, table):
    late = send(app, "a", delay=3600)
    soon = send(app, "b")
    with app.engine.connect() as conn:
        found = counts.counts(conn, app.tables, most=1)
    assert sum(one.count for one in found if one.status is State.NEW) >= 1
    assert [info.msg_id for info in app.ops.find(status="new")] == [*late, *soon]
    assert [info.msg_id for info in app.ops.find(status="new", limit=1)] == late
    assert [info.msg_id for info in app.ops.find(status="new", after=late[0])] == soon


def test_find_by_error_by_time_and_by_state_in_pages(app, table, subtests):
    ids = mixed(app, table)
    assert [i.msg_id for i in app.ops.find(error="x17", status="dead")] == ids[10:14]
    assert [i.msg_id for i in app.ops.find(error="Odd")] == ids[14:17]
    ago = datetime.now(UTC) - timedelta(hours=1)
    assert len(app.ops.find(since=ago)) == 40
    assert app.ops.find(since=datetime.now(UTC) + timedelta(hours=1)) == []
    for word in State:
        with subtests.test(word=word):
            expected = {
                "new": ids[20:],
                "processing": ids[17:20],
                "done": ids[:10],
                "failed": ids[14:17],
                "dead": ids[10:14],
                "unknown": [],
            }[word]
            found, after = [], None
            while True:
                page = app.ops.find(status=word, limit=3, after=after)
                found += [info.msg_id for info in page]
                assert page.complete
                after = page.next_after
                if after is None:
                    break
            assert found == expected


def test_find_by_what_no_index_serves_stops_and_goes_on(app, table, monkeypatch):
    monkeypatch.setattr(bounded, "SCAN", 10)
    ids = mixed(app, table)
    page = app.ops.find(object_id="p19")  # it shows what is open wherever it stands
    assert ([info.msg_id for info in page], page.complete) == ([ids[39]], False)
    assert [i.msg_id for i in app.ops.find(object_id="p19", status="new")] == [ids[39]]
    assert app.ops.find(object_id="p19", status="failed") == []
    first = app.ops.find(topic="b")
    assert (list(first), first.complete, first.next_after) == ([], False, ids[9])
    found, after = [], None
    for _ in range(10):
        page = app.ops.find(topic="b", after=after)
        found += [info.msg_id for info in page]
        after = page.next_after
        if after is None:
            break
    assert found == ids[20:]


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_pages_of_new_messages_leave_none_out_and_show_none_twice(app, monkeypatch, limit):
    """Those of another topic stand in front, those that wait for an instant beside and behind."""
    monkeypatch.setattr(bounded, "SCAN", 4)
    send(app, *(f"a{n}" for n in range(13)), topic="other")
    wanted = send(app, "late", topic="x", delay=3600)
    wanted += send(app, *(f"b{n}" for n in range(10)), topic="x")
    wanted += send(app, *(f"c{n}" for n in range(9)), topic="x", delay=3600)
    send(app, *(f"d{n}" for n in range(9)), topic="other", delay=1800)
    wanted += send(app, "last", topic="x")
    found, after, complete = [], None, []
    for _ in range(100):
        page = app.ops.find(status="new", topic="x", limit=limit, after=after)
        found += [info.msg_id for info in page]
        complete.append(page.complete)
        after = page.next_after
        assert page.complete or after is not None
        if after is None:
            break
    assert found == wanted
    assert complete[-1]


def test_the_first_page_of_new_messages_begins_at_the_lowest(app, monkeypatch):
    monkeypatch.setattr(bounded, "OPEN_SCAN", 3)
    ids = send(app, *(f"z{n}" for n in range(5)), *(f"a{n}" for n in range(5)))
    page = app.ops.find(status="new")
    assert ([info.msg_id for info in page], page.complete) == (ids, True)


def test_since_is_found_by_halving(app, table, monkeypatch):
    ids = send(app, *(f"o{i}" for i in range(30)))
    now = datetime.now(UTC)
    for n, i in enumerate(ids):
        created = now - timedelta(days=30 - n)
        table.edit(app.tables.message.c.msg_id == i, created_at=created, status=2)
    app.engine.dispose()
    since = now - timedelta(days=10, hours=1)
    assert [info.msg_id for info in app.ops.find(since=since)] == ids[20:]
    monkeypatch.setattr(bounded, "SINCE_SLACK", 1)
    assert [info.msg_id for info in app.ops.find(since=since)] == ids[20:]
    # Of a producer whose transaction was the longer one: its id is the lower one, its time is not.
    monkeypatch.setattr(bounded, "SINCE_SLACK", 2)
    edit(app, ids[17], created_at=now)
    assert [info.msg_id for info in app.ops.find(since=since)] == [ids[17], *ids[20:]]


@SQLITE
def test_limits_are_bounded(app, subtests):
    for limit in (0, -1, 10**12, True, "5", None):
        with subtests.test(limit=limit):
            for look in (app.ops.find, app.ops.failures, app.ops.lanes):
                with pytest.raises(ConfigError, match="limit must be"):
                    look(limit=limit)


@SQLITE
def test_ids_are_whole_numbers_of_64_bits(app, subtests):
    for msg_id in (10**30, "1;--", None, 1.5, -(2**70)):
        with subtests.test(msg_id=msg_id):
            for look in (app.ops.show, app.ops.explain):
                with pytest.raises(ConfigError, match="msg_id must be"):
                    look(msg_id)
            with pytest.raises(ConfigError, match="op_id must be"):
                app.ops.operation(msg_id)
            for look in (app.ops.find, app.ops.audit):
                with pytest.raises(ConfigError, match="after must be"):
                    look(after=msg_id if msg_id is not None else "x")


@SQLITE
def test_an_error_names_the_argument_that_is_no_text(app, subtests):
    for value in (7, "", b"t", ["t"], object()):
        with subtests.test(value=value):
            topics = (app.ops.find, app.ops.messages, app.ops.history) if value != "" else ()
            for look, name in (
                *((one, "topic") for one in topics),
                *((one, "error") for one in (app.ops.find, app.ops.messages)),
                *((app.ops.audit, word) for word in ("kind", "actor")),
            ):
                with pytest.raises(ConfigError, match=f"^{name} must be a text"):
                    look(**{name: value})


@SQLITE
def test_what_can_be_no_object_is_refused(app, subtests):
    for value in (10**30, 1.5, True, b"o", ["o"], object()):
        with subtests.test(value=value):
            for act in (app.ops.find, app.ops.messages, app.ops.rerun):
                with pytest.raises(ConfigError, match=r"^object_id "):
                    act(object_id=value)


@pytest.mark.parametrize("text", ["\udcff", "half \ud800", "a\0b"], ids=["byte", "half", "nul"])
def test_a_text_that_no_database_has_is_no_error_of_a_driver(app, subtests, text):
    """As a shell gives a byte that is not UTF-8."""
    ops, reason = app.ops, {"reason": "r"}
    filters: dict[str, Any] = {
        "topic": lambda: ops.find(topic=text),
        "object": lambda: ops.find(object_id=text),
        "error": lambda: ops.find(error=text),
        "group": lambda: ops.messages(fingerprint=text),
        "rerun": lambda: ops.rerun(object_id=text),
        "discard": lambda: ops.discard(topic=text, **reason),
        "purge": lambda: ops.purge("30d", topic=text),
        "failures": lambda: ops.failures(topic=text),
        "history": lambda: ops.history(topic=text),
        "audit": lambda: ops.audit(actor=text),
        "pause": lambda: ops.pause(text),
        "resume": lambda: ops.resume(text),
        "limit": lambda: ops.remove_limit(text),
        "archive": lambda: ops.purge("30d", archive_to=text),
    }
    for name, act in filters.items():
        with subtests.test(name=name):
            if "\0" not in text:
                with pytest.raises(ConfigError, match=r"surrogate|UTF-8"):
                    act()
            else:
                with suppress(ConfigError):  # some databases have it
                    act()
    for act in (lambda: ops.release(text), lambda: ops.items(1, after=text)):
        with subtests.test(name="others"), suppress(MsgworkerError):
            act()


@SQLITE
def test_a_window_is_one_of_three(app, subtests):
    for window in ("2h", "", 60, None, ["1h"]):
        with subtests.test(window=window):
            for look in (app.ops.history, app.ops.timings):
                with pytest.raises(ConfigError, match=r"^window must be one of 1h, 6h, 24h"):
                    look(window)


def test_no_such_message(app):
    assert (app.ops.show(4711), app.ops.explain(-4711)) == (None, None)


def test_failures_are_grouped_by_what_they_have_in_common(app):
    failing(app)
    failing(app, "another thing", topic="u")
    ids = send(app, "a", "b", "c")
    (other,) = send(app, "d", topic="u")
    app.drain(linger=5)
    found = app.ops.failures()
    assert found.complete
    assert [(one.count, one.dead, one.topics) for one in found] == [(3, 3, ("t",)), (1, 1, ("u",))]
    assert found[0].error.startswith("ValueError: no account # of '#' [ops.py in handler]")
    assert found[0].sample_id == ids[-1]
    assert str(ids[-1]) in found[0].sample_error
    assert found[0].sample_error.startswith(found[0].example)
    assert f"no account {ids[-1]} of" in found[0].example
    assert found[1].error.startswith("ValueError: another thing [")
    assert (found[1].example, found[1].varies) == ("ValueError: another thing", False)
    assert found[1].sample_id == other
    assert found[0].first_seen <= found[0].last_seen


@pytest.mark.parametrize("tried", [True, False], ids=["with tries", "without"])
def test_a_group_says_what_holds_for_all_of_it(app, subtests, tried):
    """Its text where all say the same, else the pattern, with an example: the newest."""
    place = " [test_ops_looks.py in <lambda>]" if tried else " [crm.py in post]"
    groups = (
        (("CHF", "CHF", "CHF"), "KeyError: 'CHF'", "KeyError: 'CHF'"),
        (("CHF", "XXX", "CHF"), "KeyError: '#'", "KeyError: 'CHF'"),
        (("XXX", "CHF", "XXX"), "KeyError: '#'", "KeyError: 'XXX'"),
        (("CHF", "chf"), "KeyError: '#'", "KeyError: 'chf'"),
        (("CHF", "C-17"), "KeyError: '#'", "KeyError: 'C-17'"),
    )
    app.add_handler(None, lambda msg: {}[msg.payload], wait=wait_none())
    for names, _, _ in groups:
        for name in names:
            if tried:
                send(app, None, payload=name, topic=".".join(names))
            else:
                told = f"KeyError: '{name}' [crm.py:9 in post]"
                put(app, (None, -1), last_error=told, topic=".".join(names))
    if tried:
        app.drain(linger=5)
    for names, error, example in groups:
        with subtests.test(names=names):
            (group,) = app.ops.failures(topic=".".join(names))
            found = (group.error, group.example, group.dead)
            assert found == (error + place, example, len(names))
            assert group.varies == ("#" in error)


def test_failures_of_a_job_are_its_own(app):
    failing(app)
    with app.engine.begin() as conn:
        job = app.job("month end", conn=conn)
        app.send_many(conn, "t", [({"n": n}, f"o{n}") for n in range(3)], job=job)
    (other,) = send(app, "x")
    app.drain(linger=5)
    assert [one.dead for one in app.ops.failures()] == [4]
    (group,) = app.ops.failures(job=job.job_id, topic="t")
    assert (group.dead, group.sample_id < other) == (3, True)
    assert list(app.ops.failures(job=job.job_id, topic="u")) == []
    none = app.ops.failures(job=4711)
    assert (list(none), none.complete) == ([], True)
    with app.engine.connect() as conn:
        found = failures.failures(conn, app.tables, job=job.job_id, newest=2)
    assert (sum(one.count for one in found), found.complete) == (2, False)
    for wrong in (0, "1", True):
        with pytest.raises(ConfigError, match="job"):
            app.ops.failures(job=wrong)


def test_a_group_shows_what_most_of_its_messages_say(app):
    said = [*["a1"] * 4, *["b2"] * 3, "c3", "d4", "e5", "f6", "g7"]
    texts = [
        f"ConnectionError: no host {name} [mail.py:{n} in send]" for n, name in enumerate(said)
    ]
    ids = put(app, *((f"a{n}", FAILED) for n in range(len(said))), last_error="x")
    with app.engine.begin() as conn:
        tried = [Failure(i, Kind.FAILED, text) for i, text in zip(ids[:9], texts, strict=False)]
        tries.keep(conn, app.tables, tried, instance="i")
    for msg_id, text in zip(ids[9:], texts[9:], strict=True):  # these have no try
        edit(app, msg_id, last_error=text)
    (group,) = app.ops.failures()
    assert (group.varies, group.count) == (True, 12)
    assert group.error == "ConnectionError: no host # [mail.py in send]"
    found = [(one.text, one.count) for one in group.texts]
    assert found[:2] == [("ConnectionError: no host a1", 4), ("ConnectionError: no host b2", 3)]
    assert [count for _, count in found[2:]] == [1, 1, 1]
    assert group.other_texts == 2
    app.ops.acknowledge(ids[:3], reason="known", actor="anna")
    (group,) = app.ops.failures(topic="t")
    assert [one.count for one in group.texts] == [3, 1, 1, 1, 1]


def test_a_group_of_which_each_message_says_something_else_shows_one(app):
    ids = put(app, *((f"a{n}", FAILED) for n in range(7)), last_error="x")
    with app.engine.begin() as conn:
        tried = [Failure(i, Kind.FAILED, f"ValueError: no {i}") for i in ids]
        tries.keep(conn, app.tables, tried, instance="i")
    (group,) = app.ops.failures()
    assert (group.varies, group.texts, group.other_texts) == (True, (), 0)
    assert group.example == f"ValueError: no {ids[-1]}"


def test_a_group_of_a_job_walks_the_failed_of_that_job_alone(app, monkeypatch):
    failing(app)
    send(app, *"abcde")
    with app.job("import") as job:
        (mine,) = send(app, "z", job=job)
    send(app, *"fghij")
    app.drain(linger=5)
    monkeypatch.setattr(pages, "GROUP_WALK", 2)
    (group,) = app.ops.failures(job=job.job_id)
    wanted = {"fingerprint": group.fingerprint, "job": job.job_id}
    for found in (app.ops.find(**wanted), app.ops.messages(**wanted)):
        assert ([one.msg_id for one in found], found.complete) == ([mine], True)


def test_a_group_is_found_in_pages_lowest_id_first(app):
    failing(app)
    ids = send(app, *"abcde")
    send(app, "x", topic="u")
    failing(app, "another thing", topic="u")
    app.drain(linger=5)
    first, _ = app.ops.failures()
    page = app.ops.find(fingerprint=first.fingerprint, limit=2)
    assert ([one.msg_id for one in page], page.next_after) == (ids[:2], ids[1])
    page = app.ops.find(fingerprint=first.fingerprint, after=page.next_after)
    assert ([one.msg_id for one in page], page.next_after, page.complete) == (ids[2:], None, True)
    assert list(app.ops.find(fingerprint=first.fingerprint, topic="u")) == []
    with pytest.raises(ConfigError, match="in no group of failures"):
        app.ops.find(fingerprint=first.fingerprint, status="new")


def test_failures_tell_how_many_objects_wait_behind(app, table):
    ids = send(app, "a", "a", "b", "c")
    flagged(app, ids[0], ids[2], ids[3], me=ME)
    batch = [Settlement(i, Outcome.FAILED, error=f"E: {i}", delay_seconds=60.0) for i in (1, 3, 4)]
    with app.engine.begin() as conn:
        settle.settle(conn, app.tables, batch, me=ME)
    (group,) = app.ops.failures()
    assert (group.failing, group.dead, group.waiting_objects) == (3, 0, 1)


def test_dead_messages_that_block_hold_their_objects_up(blocking_app):
    failing(blocking_app)
    send(blocking_app, "a", "a", "b")
    blocking_app.drain(linger=5)
    (group,) = blocking_app.ops.failures()
    assert (group.dead, group.waiting_objects) == (2, 1)


def test_failures_without_a_try_are_grouped_by_their_error(app, table):
    mixed(app, table)
    found = {one.error: one for one in app.ops.failures()}
    assert set(found) == {"KeyError: 'x17'", "Odd"}
    assert found["KeyError: 'x17'"].dead == 4
    assert found["Odd"].failing == 3
    table.edit(table.where(last_error="Odd"), last_error=None)
    assert "(no error was recorded)" in {one.error for one in app.ops.failures()}


def test_failures_are_in_groups_however_many_different_errors_they_have(app):
    errors = ["disk full"] * 3 + [f"no host {n}" for n in range(2_100)]
    t = app.tables
    rows = [t.values(topic="t", status=FAILED, error_try_times=3, last_error=one) for one in errors]
    with app.engine.begin() as conn:
        conn.execute(t.message.insert(), rows)
    found = [(one.error, one.count) for one in app.ops.failures()]
    assert found == [("no host #", 2_100), ("disk full", 3)]


def test_show_says_whether_it_has_only_the_beginning_of_a_payload(app):
    for length, is_cut in ((9_998, False), (9_999, True)):
        (msg_id,) = put(app, ("a", NEW), payload=f'"{"x" * length}"')
        info = app.ops.show(msg_id)
        assert (len(info.payload), info.payload_cut) == (10_000, is_cut)


def test_failures_read_the_newest_only(app, table):
    mixed(app, table)
    with app.engine.connect() as conn:
        found = failures.failures(conn, app.tables, newest=5)
    assert (sum(one.count for one in found), found.complete) == (5, False)


def test_failures_go_when_messages_are_done(app):
    failing(app)
    (first,) = send(app, "a")
    app.drain(linger=5)
    app.ops.rerun([first])
    assert app.ops.failures() == []


def test_lanes_show_the_head_and_how_many_wait_behind_it(app):
    ids = send(app, "a", "b", "a", "a", "c", None)
    flagged(app, ids[1], me=ME)
    found = app.ops.lanes()
    assert found.complete
    seen = [(one.object_id, one.head.msg_id, str(one.head.status), one.behind) for one in found]
    assert seen == [
        ("a", ids[0], "new", 2),
        ("b", ids[1], "processing", 0),
        ("c", ids[4], "new", 0),
    ]


def test_lanes_propose_heads_that_run_or_failed_whatever_else_waits(app, table):
    ids = send(app, *(f"o{i:02}" for i in range(30)), "z", "z")
    flagged(app, ids[20], me=ME)
    table.edit(
        app.tables.message.c.msg_id == ids[30],
        status=-1,
        error_try_times=1,
        available_at=datetime.now(UTC) + timedelta(hours=1),
    )
    with app.engine.connect() as conn:
        found = lanes.lanes(conn, app.tables, limit=20, scan=3)
    assert not found.complete
    assert {"o20", "z"} <= {one.object_id for one in found}
    assert (found[0].object_id, found[0].behind) == ("z", 1)


def test_lanes_read_a_bounded_part_of_the_delayed_messages(app, table):
    """A million may wait for their instant; heads that failed are looked for among the first."""
    (failed,) = send(app, "z")
    delayed = send(app, *(f"o{i:02}" for i in range(30)))
    later = datetime.now(UTC) + timedelta(hours=1)
    m = app.tables.message.c.msg_id
    table.edit(m.in_(delayed), available_at=later)
    table.edit(m == failed, status=-1, error_try_times=1, available_at=later + timedelta(minutes=1))
    with app.engine.connect() as conn:
        near = lanes.lanes(conn, app.tables, limit=10, scan=30)
        far = lanes.lanes(conn, app.tables, limit=10, scan=31)
    assert not near.complete
    assert "z" not in {one.object_id for one in near}
    assert "z" in {one.object_id for one in far}


def test_lanes_find_a_deep_object_that_is_read_in_part(app):
    send(app, "a", *["b"] * 6, "c")
    with app.engine.connect() as conn:
        part = lanes.lanes(conn, app.tables, limit=1, scan=3)
        whole = lanes.lanes(conn, app.tables, limit=3, scan=9)
    assert [(one.object_id, one.behind) for one in part] == [("b", 5)]
    assert (part.complete, part.looked_at) == (False, 3)
    assert [(one.object_id, one.behind) for one in whole] == [("b", 5), ("a", 0), ("c", 0)]
    assert (whole.complete, whole.looked_at) == (True, 8)


def test_lanes_count_up_to_a_limit(app, monkeypatch):
    monkeypatch.setattr(lanes, "BEHIND", 3)
    send(app, *["a"] * 6, *["b"] * 4)
    found = {one.object_id: (one.behind, one.at_least) for one in app.ops.lanes()}
    assert found == {"a": (3, True), "b": (3, False)}


def test_dead_heads_are_lanes_only_where_they_block(app, blocking_app, table):
    failing(blocking_app)
    send(blocking_app, "a", "a")
    blocking_app.drain(linger=5)
    (one,) = blocking_app.ops.lanes()
    assert (one.head.status, one.behind) == (State.DEAD, 1)
    app.create_schema()  # by the rule of this App from now on
    assert [lane.head.status for lane in app.ops.lanes()] == [State.NEW]


def test_objects_that_are_blocked_come_first_and_say_why(app):
    registered(app, "live-1", topics=["t", "p", "full"])
    send(app, *["deep"] * 5)
    with app.job("j", on_complete="t") as job, app.engine.begin() as conn:
        app.send(conn, "t", None, object_id="of a job", job=job)
    send(app, "held", "held", topic="p")
    (alone,) = send(app, "alone", topic="nobody")
    app.ops.pause("p", reason="x")
    app.ops.pause_job(job.job_id, reason="x")
    found = app.ops.lanes(by="blocked")
    assert [(one.object_id, one.reason) for one in found] == [
        ("alone", Reason.NO_HANDLER),
        ("held", Reason.PAUSED),
        ("of a job", Reason.JOB_PAUSED),
        ("deep", Reason.NEXT),
    ]
    for one in found[:3]:
        assert one.why == app.ops.explain(one.head.msg_id).text
    assert app.ops.lanes()[0].object_id == "deep"
    (one,) = [one for one in app.ops.lanes(by="object") if one.object_id == "alone"]
    assert (one.head.msg_id, one.reason) == (alone, Reason.NO_HANDLER)
    registered(app, "live-2")  # of every topic
    found = app.ops.lanes(by="blocked")
    assert [one.object_id for one in found] == ["held", "of a job", "deep", "alone"]


@pytest.mark.parametrize("topics", [["t"], None])
def test_objects_that_are_blocked_are_found_behind_many_that_are_not(app, topics):
    registered(app, "live-1", topics=topics)
    send(app, *(f"o{n}" for n in range(12) for _ in range(3)))
    send(app, "alone", topic="nobody")
    app.ops.pause("nobody", reason="x")
    with app.engine.connect() as conn:
        found = lanes.lanes(conn, app.tables, limit=2, scan=5, blocked=True)
        plain = lanes.lanes(conn, app.tables, limit=2, scan=5)
    assert (found[0].object_id, len(found), found.complete) == ("alone", 2, False)
    assert "alone" not in {one.object_id for one in plain}
    registered(app, "live-2", topics=["nobody"])
    send(app, *(f"x{n}" for n in range(9)), topic="others")
    found = app.ops.lanes(by="blocked", limit=5)
    reasons = [one.reason for one in found]
    if topics is not None:
        assert reasons == [Reason.NO_HANDLER] * 4 + [Reason.PAUSED]


def test_dead_heads_that_block_come_first(blocking_app):
    failing(blocking_app)
    send(blocking_app, "a")
    blocking_app.drain(linger=5)
    send(blocking_app, "a", "b", "b", "b")
    registered(blocking_app, "live-1")
    found = blocking_app.ops.lanes(by="blocked")
    assert [(one.object_id, one.reason) for one in found] == [
        ("a", Reason.DEAD),
        ("b", Reason.NEXT),
    ]
    assert "waits until it is rerun or discarded" in found[0].why


def test_instances_live_and_dead_and_foreign(app, table):
    ids = send(app, "a", "b", "c", "d")
    registered(app, "live-1", label="night", topics=["t", "u"])
    registered(app, "dead-1", ttl=0.0)
    flagged(app, ids[0], me="live-1")
    flagged(app, ids[1], me="dead-1")
    flagged(app, ids[2], me="gone-1")
    table.edit(app.tables.message.c.msg_id == ids[3], status=1)
    found = {one.life: one for one in app.ops.instances()}
    assert list(found) == [Life.LIVE, Life.DEAD, Life.NO_LEASE, Life.FOREIGN]
    assert {life: (one.instance_id, one.running) for life, one in found.items()} == {
        Life.LIVE: ("live-1", 1),
        Life.DEAD: ("dead-1", 1),
        Life.NO_LEASE: ("gone-1", 1),
        Life.FOREIGN: (None, 1),
    }
    live = found[Life.LIVE]
    assert (live.label, live.topics) == ("night", ("t", "u"))
    assert live.started_at is not None
    assert live.oldest_claim_at is not None
    assert (live.host, live.pid, live.threads, live.version) == (None,) * 4  # as of 0.1.0


def test_a_worker_says_what_it_handles(app):
    app.add_handler("t", lambda msg: None)
    app.add_handler("u", lambda msg: None)
    with launched(app.worker(topics=["u"], threads=3)):
        (one,) = until(app.ops.instances, "the lease")
        assert (one.life, one.topics, one.other_table) == (Life.LIVE, ("u",), None)
        assert (one.host, one.pid) == (socket.gethostname(), os.getpid())
        assert (one.threads, one.version) == (3, msgworker.__version__)
    assert app.ops.instances() == []


def test_looks_work_on_the_four_columns_of_a_foreign_table(database, make_app):
    engine = database.engine()
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE tb_msg (msgid INTEGER PRIMARY KEY, objectid VARCHAR(20),"
            " status INTEGER NOT NULL, errortrytimes INTEGER NOT NULL)"
        )
        for row in (
            (1, "a", 2, 0),
            (2, "a", -1, 3),
            (3, "b", 1, 0),
            (4, "b", 0, 0),
            (5, "c", 9, 0),
        ):
            i, whose, status, failed = row
            conn.exec_driver_sql(f"INSERT INTO tb_msg VALUES ({i}, '{whose}', {status}, {failed})")
    spec = MessageTable(
        "tb_msg", msg_id="msgid", object_id="objectid", error_try_times="errortrytimes"
    )
    app = created(make_app(table=spec))
    ops = app.ops
    assert {one.status for one in ops.counts()} == {"new", "processing", "done", "dead", "unknown"}
    assert [info.msg_id for info in ops.find(status="dead")] == [2]
    assert [info.msg_id for info in ops.find(status="unknown")] == [5]
    assert [info.msg_id for info in ops.find(status="processing")] == [3]
    assert [one.sample_id for one in ops.failures()] == [2]
    assert [(one.object_id, one.behind) for one in ops.lanes()] == [("b", 1)]
    assert [one.life for one in ops.instances()] == [Life.FOREIGN]
    assert [why(app, i) for i in range(1, 6)] == [
        Reason.DONE,
        Reason.DEAD,
        Reason.RUNNING_FOREIGN,
        Reason.BEHIND,
        Reason.UNKNOWN_STATUS,
    ]
    assert app.ops.show(2).tries == ()


def test_since_beyond_the_calendar_is_refused(sqlite_app):
    with pytest.raises(ConfigError, match="9999"):
        sqlite_app.ops.find(since=datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-14))))


# ---------------------------------------------------------------- what may be done with a message


@pytest.mark.parametrize("on_dead", ["continue", "block"])
def test_what_may_be_done_with_a_message_is_what_ops_accept(make_app, on_dead):
    """`acts` offers each write that would change the message, and no other."""
    app = created(make_app(table=MessageTable(on_dead=on_dead)))
    waits, runs, done, dead, known, away, cancelled = put(
        app, *((f"o{n}", status) for n, status in enumerate((0, 1, 2, -1, -1, -1, 0)))
    )
    (failed,) = put(app, ("f", -1), tries=1)
    (given_up,) = put(app, ("g", -1), last_error="discarded by anna: gone")  # by another rule
    app.ops.acknowledge(known, reason="r")
    app.ops.discard(away, reason="r")
    app.ops.cancel(cancelled, reason="r")
    for msg_id in (waits, runs, done, dead, known, away, cancelled, failed, given_up):
        info = app.ops.show(msg_id)
        would = {
            kind
            for kind in ("rerun", "discard", "cancel", "acknowledge")
            if getattr(app.ops, kind)(
                [msg_id], dry_run=True, reason="r", **({"force": True} if kind == "rerun" else {})
            )
        }
        if app.ops.edit(msg_id, payload="new", dry_run=True):
            would.add("edit")
        assert set(acts(info, app.tables)) == would, (msg_id, info.status)
