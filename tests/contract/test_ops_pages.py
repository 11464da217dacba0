"""Overview, pages of messages and their cursors, places in an object, reads with a deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError, SelectionChanged, TookTooLong
from msgworker.message import State
from msgworker.queries import counts, pages
from msgworker.store import bounded, tries
from msgworker.store.bounded import Capped, Found, cursor_place, cursor_text
from msgworker.store.tries import Failure, Kind, fingerprint
from tests.support.databases import SQLITE
from tests.support.ops import DONE, FAILED, NEW, RUNNING, put
from tests.support.rows import edit, send


def all_of(app: App, *, most: int = 200, **wanted: Any) -> list[int]:
    """The ids of all pages, one after the other."""
    found: list[int] = []
    after = None
    for _ in range(most):
        page = app.ops.messages(after=after, **wanted)
        found += [info.msg_id for info in page]
        after = page.next_after
        if after is None:
            return found
    raise AssertionError("the list does not end")


def mixed(app: App) -> dict[str, list[int]]:
    """Six messages of each state, in turns."""
    kinds = {"done": DONE, "dead": FAILED, "processing": RUNNING, "new": NEW}
    found: dict[str, list[int]] = {word: [] for word in (*kinds, "failed")}
    for n in range(6):
        for word, status in kinds.items():
            found[word] += put(app, (f"{word}{n}", status), topic=f"t{n % 2}")
        found["failed"] += put(app, (f"f{n}", FAILED), tries=1)
    return found


def test_running_messages_without_an_object_are_found_among_the_unfinished(app):
    ids = put(app, ("a", NEW), (None, RUNNING), (None, NEW), ("b", RUNNING), (None, DONE))
    assert app.ops.unfinished() == 4
    assert all_of(app, status="processing") == [ids[3], ids[1]]
    asked = app.ops.cancel(topic="t", reason="test")
    assert (asked.changed, asked.skipped, asked.requested) == (4, 0, 2)


@pytest.mark.quick(
    "sqlite-True-(done|dead)|sqlite-False-new|postgresql-True-(new|failed)|mariadb-False-None"
)
@pytest.mark.parametrize("word", [None, *(state for state in State if state != "unknown")])
@pytest.mark.parametrize("newest", [True, False])
def test_pages_show_every_message_of_a_state_once_in_order(app, word, newest, monkeypatch):
    ids = mixed(app)
    wanted = sorted(ids[word] if word else [i for some in ids.values() for i in some])
    wanted = wanted[::-1] if newest else wanted
    assert all_of(app, status=word, newest=newest, limit=4) == wanted
    monkeypatch.setattr(bounded, "SCAN", 3)
    found = all_of(app, status=word, newest=newest, limit=2)
    if word == "done" and newest:  # these pass over the backlog
        found.sort(reverse=True)
    assert found == wanted


def test_a_filter_that_no_index_serves_stops_and_says_where_it_goes_on(app, monkeypatch):
    ids = mixed(app)
    monkeypatch.setattr(bounded, "SCAN", 7)
    page = app.ops.messages(topic="nothing")
    assert (list(page), page.complete) == ([], False)
    assert page.next_after is not None
    assert all_of(app, topic="nothing") == []
    odd = [i for word in ("done", "dead", "processing", "new") for i in ids[word][1::2]]
    assert all_of(app, topic="t1", limit=3) == sorted(odd, reverse=True)
    assert all_of(app, topic="t1", status="dead", newest=False) == ids["dead"][1::2]
    assert all_of(app, error="ValueError", status="failed") == ids["failed"][::-1]
    future = datetime.now(UTC) + timedelta(days=1)
    assert all_of(app, since=future) == []
    assert len(all_of(app, since=future - timedelta(days=3))) == 30


def test_delayed_messages_come_after_the_others_or_by_age(app, monkeypatch):
    late = send(app, "a", delay=7200) + send(app, "b", delay=3600)
    soon = send(app, "c", "d")
    monkeypatch.setattr(bounded, "SCAN", 2)
    found = all_of(app, status="new", limit=1)
    if app.tables.database.oldest_index:
        assert found == [*soon[::-1], late[1], late[0]]
    else:
        assert found == [*soon[::-1], *late[::-1]]


def test_of_one_object_the_unfinished_messages_come_first(app):
    ids = put(app, ("a", DONE), ("a", FAILED), ("b", DONE), ("a", DONE), ("a", NEW), ("a", NEW))
    assert all_of(app, object_id="a", limit=1) == [ids[5], ids[4], ids[3], ids[1], ids[0]]
    assert all_of(app, object_id="a", newest=False, limit=2) == [
        ids[4],
        ids[5],
        ids[0],
        ids[1],
        ids[3],
    ]
    assert all_of(app, object_id="a", status="done") == [ids[3], ids[0]]
    assert all_of(app, object_id="a", status="new") == [ids[5], ids[4]]


def test_done_messages_below_a_backlog_come_before_those_among_it(app, monkeypatch):
    below = put(app, *(("a", DONE) for _ in range(3)))
    put(app, *((f"o{n}", NEW) for n in range(5)))
    among = put(app, ("b", DONE))
    put(app, *((f"p{n}", NEW) for n in range(9)))
    assert all_of(app, status="done") == [*among, *below[::-1]]
    monkeypatch.setattr(bounded, "SCAN", 4)
    first = app.ops.messages(status="done", limit=2)
    assert [info.msg_id for info in first] == below[:0:-1]
    assert all_of(app, status="done", limit=2) == [*below[::-1], *among]
    assert all_of(app, status="done", since=datetime.now(UTC) - timedelta(days=1)) == [
        *below[::-1],
        *among,
    ]


def test_a_group_is_shown_by_the_last_try_or_by_the_last_error(app, monkeypatch):
    mine, other = "ValueError: no 1", "KeyError: 'x'"
    ids = put(app, *((f"a{n}", FAILED) for n in range(5)), last_error=mine)
    put(app, ("c", FAILED), ("d", NEW), last_error=other)
    with app.engine.begin() as conn:  # these have tries, of which the last one counts
        for error in (mine, other):
            tries.keep(conn, app.tables, [Failure(ids[0], Kind.FAILED, error)], instance="i")
        tries.keep(conn, app.tables, [Failure(ids[1], Kind.FAILED, mine)], instance="i")
    group = fingerprint(mine)
    assert all_of(app, fingerprint=group, limit=2) == ids[:0:-1]
    assert all_of(app, fingerprint=group, newest=False) == ids[1:]
    assert all_of(app, fingerprint=group, status="failed") == []
    monkeypatch.setattr(pages, "GROUP_WALK", 2)
    assert all_of(app, fingerprint=group, limit=1) == ids[:0:-1]
    assert [info.ending.text for info in app.ops.messages(fingerprint=group, limit=1)] == [
        "no tries left"
    ]


NO_CURSORS = ["", "x", "\u2028", "e30", "W10", "A" * 3000, 7]
NO_CURSORS += [
    cursor_text(place)
    for place in ([0, "5"], [True], [0, 2**70], [0, ["no instant", 1]], [None, 1])
]


@SQLITE
def test_a_cursor_that_is_none_is_refused(app):
    for wanted in ({}, {"status": "done"}, {"fingerprint": "a" * 16}):
        for after in NO_CURSORS:
            with pytest.raises(ConfigError, match="no cursor"):
                app.ops.messages(after=after, **wanted)


def test_a_cursor_of_another_list_finds_nothing_or_is_refused(app):
    mixed(app)
    for place in ([1, ["2026-01-01 00:00:00", 3]], [7, 1], [-1, 1], [1, 2, 3, 4], [3, 4]):
        for word in ("new", "dead", None, "done"):
            try:
                assert isinstance(app.ops.messages(status=word, after=cursor_text(place)), Found)
            except ConfigError as error:
                assert "no cursor" in str(error)  # noqa: PT017 - either of the two


@SQLITE
def test_wrong_filters_of_a_page_are_refused(app):
    wrong: tuple[dict[str, Any], ...] = (
        {"limit": 201},
        {"limit": 0},
        {"status": "lost"},
        {"status": "new", "fingerprint": "a"},
        {"topic": 7},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001 - it lacks its time zone
        {"object_id": ["a"]},
    )
    for filters in wrong:
        with pytest.raises(ConfigError):
            app.ops.messages(**filters)


def test_a_place_is_of_the_unfinished_messages_of_the_object(app, monkeypatch):
    ids = put(app, ("a", DONE), ("a", NEW), ("a", NEW), ("a", NEW), ("b", NEW), (None, NEW))
    one = app.ops.place(ids[2])
    assert (one.object_id, one.head, one.ahead, one.behind) == ("a", ids[1], Capped(1), Capped(1))
    head = app.ops.place(ids[1])
    assert (head.head, head.ahead, head.behind) == (ids[1], Capped(0), Capped(2))
    assert [app.ops.place(i) for i in (ids[0], ids[5], 999)] == [None, None, None]
    monkeypatch.setattr("msgworker.queries.lanes.MOST", 1)
    other = App(app.engine.url)  # with statements that are not built yet
    assert other.ops.place(ids[1]).behind == Capped(1, more=True)


def test_the_overview_counts_up_to_a_limit_and_names_every_topic(app, monkeypatch):
    mixed(app)
    put(app, ("z", NEW), topic="default")
    app.ops.pause("t1", reason="bank holiday", actor="anna")
    app.ops.pause("quiet")
    found = app.ops.overview()
    assert found.counts == {word: Capped(6) for word in State if word not in ("new", "unknown")} | {
        State.NEW: Capped(7)
    }
    by_name = {one.topic: one for one in found.topics}
    assert by_name.keys() == {"t", "t0", "t1", "quiet", "default"}
    assert by_name["t1"].paused.reason == "bank holiday"
    assert (by_name["t0"].paused, by_name["quiet"].counts) == (None, {})
    assert by_name["t0"].count("done") == Capped(3)
    assert by_name["default"].count("new") == Capped(1)
    assert (found.live, found.silent, found.dead) == (0, 0, 1)  # "another" has no lease
    assert abs((found.read_at - datetime.now(UTC)).total_seconds()) < 60
    monkeypatch.setattr(counts, "MOST", 4)
    capped = app.ops.overview()
    assert str(capped.count("new")) == "4+"
    assert {"t", "t0", "t1"} <= {one.topic for one in capped.topics}
    (quiet,) = (one for one in capped.topics if one.topic == "quiet")
    assert {word: str(one) for word, one in quiet.counts.items()} | {State.NEW: "0+"} == {
        word: "0+" for word, one in capped.counts.items() if one.more
    }


def test_a_capped_number_says_so():
    assert [str(one) for one in (Capped(1204), Capped(10_000, more=True))] == ["1,204", "10,000+"]
    assert str(Capped(9_000_000, about=True)) == "about 9,000,000"
    assert str(Capped(9_000_000, about=True, at_most=True)) == "at most 9,000,000"
    assert Capped(1) + Capped(2, more=True) == Capped(3, more=True)


def test_a_cursor_is_safe_in_a_url_and_reads_back(subtests):
    for place in ([0, 1], [0, None], [2, "ä\ud800"], [1, [2, "x"]]):
        with subtests.test(place=place):
            text = cursor_text(place)
            assert text.replace("-", "").replace("_", "").isalnum()
            kinds = tuple(type(part) for part in place)
            assert len(cursor_place(text, *kinds)) == 2


def slow(conn: sa.Connection) -> None:
    """A query that takes long."""
    name = conn.dialect.name
    steps = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 99999999)"
    text = {"postgresql": "SELECT pg_sleep(0.3)", "sqlite": f"{steps} SELECT max(i) FROM n"}
    conn.exec_driver_sql(text.get(name, "SELECT SLEEP(0.3) FROM (SELECT 1 UNION SELECT 2) a")).all()


def test_a_read_that_takes_too_long_is_ended_and_the_connection_lives_on(app, monkeypatch):
    in_time = app.ops.within(60)
    assert in_time.counts() == []
    with monkeypatch.context() as patched:
        patched.setattr(counts, "counts", lambda conn, t: slow(conn))
        with pytest.raises(TookTooLong, match=r"after 0\.05 s"):
            app.ops.within(0.05).counts()
        if app.engine.dialect.name != "sqlite":  # the next user of it has no deadline
            assert app.ops.counts() is None
    assert in_time.counts() == app.ops.counts() == []


@SQLITE
def test_a_deadline_is_a_number_of_seconds(app):
    for seconds in (0, -1, float("nan"), "1s", True, 1e9):
        with pytest.raises(ConfigError, match="seconds"):
            app.ops.within(seconds)


def test_groups_are_paged_and_filtered_by_topic_and_time(app):
    letters = "abcdef"  # three full pages
    for n, letter in enumerate(letters):
        error = f"ValueError: no {letter}"
        put(app, *((f"{letter}{i}", FAILED) for i in range(n + 1)), last_error=error, topic=letter)
    found, after = [], None
    while True:
        page = app.ops.failures(limit=2, after=after)
        found += [(group.topics, group.count) for group in page]
        after = page.next_after
        assert page
        assert page.complete == (after is None)
        if after is None:
            break
    assert found == [((letter,), n + 1) for n, letter in reversed(list(enumerate(letters)))]
    (only,) = app.ops.failures(topic="c")
    assert (only.topics, only.count) == (("c",), 3)
    assert app.ops.failures(topic="nothing") == []
    with app.engine.begin() as conn:
        (a,) = app.ops.find(topic="a")
        tries.keep(conn, app.tables, [Failure(a.msg_id, Kind.FAILED, "new")], instance="i")
    now = datetime.now(UTC)
    assert [group.topics for group in app.ops.failures(since=now - timedelta(hours=1))] == [("a",)]
    assert app.ops.failures(since=now + timedelta(hours=1)) == []
    assert app.ops.failures(since=now - timedelta(hours=1), topic="b") == []
    (b,) = app.ops.find(topic="b", limit=1)  # without a try: since it was finished
    edit(app, b.msg_id, finished_at=now - timedelta(minutes=5))
    (only,) = app.ops.failures(since=now - timedelta(hours=1), topic="b")
    assert (only.count, only.topics) == (1, ("b",))
    with pytest.raises(ConfigError, match="no cursor"):
        app.ops.failures(after="x")


def test_lanes_are_paged_by_object(app, monkeypatch):
    put(app, *((name, NEW) for name in "cab" for _ in range(3)), ("d", DONE), (None, NEW))
    for scan, limit in ((100, 2), (4, 2), (4, 5)):  # the last: of a page with fewer than the limit
        monkeypatch.setattr(bounded, "OPEN_SCAN", scan)
        found, after = [], None
        while True:
            page = app.ops.lanes(by="object", limit=limit, after=after)
            found += [(lane.object_id, lane.behind) for lane in page]
            after = page.next_after
            if after is None:
                break
        assert found == [("a", 2), ("b", 2), ("c", 2)]
    for wrong in ({"by": "age"}, {"after": "x"}, {"by": "object", "after": "x"}):
        with pytest.raises(ConfigError):
            app.ops.lanes(**wrong)


def test_the_audit_has_pages_filters_and_where_it_was_asked_from(app):
    ids = put(app, *((f"o{n}", FAILED) for n in range(3)))
    ops = app.ops.acting(actor="anna", source="web 10.0.0.7")
    for msg_id in ids:
        ops.rerun(msg_id, reason="again")
    ops.pause("t", actor="bob")
    app.ops.resume("t", actor="bob")
    told = [(one.kind, one.actor, one.source) for one in app.ops.audit()]
    assert told == [("resume", "bob", None), ("pause", "bob", "web 10.0.0.7")] + 3 * [
        ("rerun", "anna", "web 10.0.0.7")
    ]
    assert all("source" not in one.filter for one in app.ops.audit())
    assert app.ops.audit(ids[0])[0].source == "web 10.0.0.7"
    first = app.ops.audit(limit=2)
    second = app.ops.audit(limit=2, after=first.next_after)
    rest = app.ops.audit(limit=2, after=second.next_after)
    assert [len(first), len(second), len(rest), rest.next_after] == [2, 2, 1, None]
    assert len({one.op_id for one in (*first, *second, *rest)}) == 5
    assert len(app.ops.audit(kind="rerun")) == 3
    assert len(app.ops.audit(actor="bob")) == len(app.ops.audit(actor="bob", kind="pause")) + 1
    assert app.ops.audit(since=datetime.now(UTC) + timedelta(hours=1)) == []
    for wrong in ({"after": 2**70}, {"kind": ""}, {"since": 3}):
        with pytest.raises(ConfigError):
            app.ops.audit(**wrong)
    with pytest.raises(ConfigError, match="source"):
        app.ops.acting(source="x" * 201)


def test_a_write_that_expects_another_number_changes_nothing(app, table):
    ids = put(app, *((f"o{n}", FAILED) for n in range(3)), ("n", NEW))
    would = app.ops.rerun(topic="t", dry_run=True)
    assert would.changed == 3
    put(app, ("late", FAILED))
    for expected in (2, 3, 0):
        with pytest.raises(SelectionChanged) as caught:
            app.ops.rerun(topic="t", expected_count=expected)
        assert (caught.value.expected, caught.value.found) == (expected, 4)
    with pytest.raises(SelectionChanged):
        app.ops.rerun(ids[:3], with_successors=True, expected_count=2)
    with pytest.raises(SelectionChanged):
        app.ops.discard(topic="t", reason="x", expected_count=4)
    with pytest.raises(SelectionChanged):
        app.ops.cancel([ids[3]], reason="x", expected_count=0)
    with pytest.raises(ConfigError, match="expected_count"):
        app.ops.rerun(topic="t", expected_count="4")
    assert app.ops.audit() == []
    assert table.statuses == [FAILED, FAILED, FAILED, NEW, FAILED]
    assert app.ops.rerun(topic="t", expected_count=4) == 4
    assert app.ops.rerun(topic="t", expected_count=0) == 0
    assert app.ops.cancel([ids[3]], reason="x", expected_count=1) == 1
    assert app.ops.discard([ids[0]], reason="x", expected_count=1) == 1
    assert app.ops.rerun([ids[3]], with_successors=True, expected_count=1) == 1
