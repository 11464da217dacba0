"""Dry runs: they end at their time or limit, and what was counted is what is confirmed."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.errors import ConfigError, SelectionChanged, TookTooLong
from msgworker.ops import selection as choosing
from msgworker.ops.results import Progress
from msgworker.store import bounded, change, recover
from tests.support.databases import SQLITE
from tests.support.ops import DONE, FAILED, NEW, Cut, audited, many_dead, put

PAGE = 10


def _endless(conn: sa.Connection) -> None:
    """A query that only a deadline ends."""
    steps = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 999999999)"
    text = {"postgresql": "SELECT pg_sleep(60)", "sqlite": f"{steps} SELECT max(i) FROM n"}
    conn.exec_driver_sql(
        text.get(conn.dialect.name, "SELECT SLEEP(60) FROM (SELECT 1 UNION SELECT 2) a")
    ).all()


def _never(conn: sa.Connection, *_: Any, **__: Any) -> None:
    _endless(conn)


@pytest.fixture
def second_page_never_comes(monkeypatch):
    """Pages of ten messages, of which the second one never comes."""
    real = bounded.ids_of_filter

    def page(conn, t, wanted, *, after, limit, **more):
        if after is not None:
            _endless(conn)
        return real(conn, t, wanted, after=after, limit=min(limit, PAGE), **more)

    monkeypatch.setattr(bounded, "ids_of_filter", page)


def _states(app: App) -> list[str]:
    return [str(info.status) for info in app.ops.find(limit=100)]


@pytest.mark.long
def test_a_dry_run_tells_what_it_has_counted_when_its_time_is_up(app, second_page_never_comes):
    ids = put(app, *((f"o{n}", NEW) for n in range(30)))
    begun = time.monotonic()
    would = app.ops.within(1.0).discard(status="new", dry_run=True)
    assert time.monotonic() - begun < 20
    assert (would.changed, would.complete, would.up_to) == (PAGE, False, ids[PAGE - 1])
    assert [info.msg_id for info in would.sample] == ids[:PAGE]
    assert app.ops.counts()[0].count == 30  # the connection has no deadline any more


@pytest.mark.long
def test_a_dry_run_that_finds_nothing_in_its_time_says_so(app, monkeypatch):
    ids = put(app, ("a", FAILED), ("b", FAILED))
    monkeypatch.setattr(change, "ran_later", _never)
    for asked in ({"ids": ids}, {"status": "dead"}):
        would = app.ops.within(0.5).rerun(**asked, dry_run=True)
        assert (would.changed, would.complete, would.up_to) == (0, False, None)


@pytest.mark.long
def test_a_dry_run_of_a_whole_object_or_instance_is_ended_at_its_time(app, monkeypatch):
    put(app, ("a", FAILED), ("a", NEW))
    hurried = app.ops.within(0.5)
    monkeypatch.setattr(change, "not_done_behind", _never)
    with pytest.raises(TookTooLong):
        hurried.rerun(topic="t", with_successors=True, dry_run=True)
    monkeypatch.setattr(recover, "flagged_by", _never)
    with pytest.raises(TookTooLong):
        hurried.release("gone", dry_run=True)


@pytest.mark.parametrize("walk", ["ran_later", "done_behind"])
def test_a_rerun_that_cannot_tell_its_order_ends_and_names_the_index(
    app, monkeypatch, subtests, walk
):
    """Or what is done, of a whole object."""
    dead = put(app, *((f"o{n}", FAILED) for n in range(3)))
    monkeypatch.setattr(choosing, "ORDER_SECONDS", 0.2)
    monkeypatch.setattr(change, walk, _never)
    cases: list[dict[str, Any]] = [{"ids": dead[:1]}, {"ids": dead}]
    if walk == "done_behind":
        cases = [
            {**chosen, **also, "with_successors": True}
            for chosen in ({"ids": dead[:1]}, {"object_id": "o0"})
            for also in ({"also_done": True}, {"force": True})
        ]
    for asked in cases:
        for dry in (False, True):
            with subtests.test(asked=asked, dry=dry):
                begun = time.monotonic()
                with pytest.raises(TookTooLong, match=r"after 0\.2 s") as caught:
                    app.ops.rerun(**asked, dry_run=dry)
                assert time.monotonic() - begun < 20
                says = r"on \S*msgworker_message \(object_id, msg_id\).*--force"
                assert re.search(says, str(caught.value))
                assert (_states(app), app.ops.audit()) == (["dead"] * 3, [])
    assert app.ops.rerun(dead, force=True).changed == 3


def test_a_dry_run_with_successors_counts_each_message_once_over_its_pages(app, monkeypatch):
    ids = put(app, *[("o", FAILED)] * 3, *[("o", DONE)] * 2, ("p", FAILED), ("p", DONE))
    real = bounded.ids_of_filter

    def page(*args, limit, **more):
        return real(*args, limit=min(limit, 2), **more)

    monkeypatch.setattr(bounded, "ids_of_filter", page)
    would = app.ops.rerun(status="dead", with_successors=True, dry_run=True)
    assert (would.matched, would.changed, would.stay_done, would.complete) == (4, 4, 3, True)
    assert [info.msg_id for info in would.sample] == [*ids[:3], ids[5]]


def test_what_is_behind_messages_of_many_objects_is_found_in_one_walk(sqlite_app):
    """Not in one walk over all that failed for each of the objects."""
    steps = []
    for count in (100, 300):
        many_dead(sqlite_app, count, objects=count)
        ids = [info.msg_id for info in sqlite_app.ops.find(status="dead", limit=400)]
        with sqlite_app.engine.connect() as conn:
            change.not_done_behind(conn, sqlite_app.tables, ids[:1])  # builds and prepares
            taken: list[int] = []
            raw = conn.connection.driver_connection
            raw.set_progress_handler(lambda taken=taken: taken.append(1), 1)
            change.not_done_behind(conn, sqlite_app.tables, ids)
            raw.set_progress_handler(None, 0)
        steps.append(len(taken))
    assert steps[1] < 8 * steps[0]  # of four times as many messages


def test_a_dry_run_with_successors_says_if_it_could_not_count_what_stays_done(app, monkeypatch):
    """The rerun itself does not look for it."""
    (dead,) = put(app, ("o", FAILED))
    monkeypatch.setattr(choosing, "ORDER_SECONDS", 0.2)
    monkeypatch.setattr(change, "done_behind", _never)
    would = app.ops.rerun([dead], with_successors=True, dry_run=True)
    assert (would.changed, would.stay_done, would.complete) == (1, 0, False)
    assert app.ops.rerun([dead], with_successors=True).changed == 1


def test_a_dry_run_stops_at_its_limit_and_says_whether_that_was_all(app):
    ids = put(app, *((f"o{n}", NEW) for n in range(5)))
    for limit, counted, complete in ((3, 3, False), (5, 5, True), (6, 5, True)):
        would = app.ops.discard(status="new", dry_run=True, count_limit=limit)
        found = (would.changed, would.complete, would.up_to)
        assert found == (counted, complete, ids[counted - 1]), limit
    assert app.ops.discard(ids=ids, dry_run=True, count_limit=2).complete is False
    for limit in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="count_limit"):
            app.ops.discard(status="new", dry_run=True, count_limit=limit)


@pytest.mark.parametrize("kind", ["discard", "cancel"])
def test_a_dry_run_that_stops_at_its_limit_does_not_take_a_part_for_another_number(app, kind):
    put(app, *((f"o{n}", NEW) for n in range(5)))
    write = getattr(app.ops, kind)
    asked = {"status": "new", "dry_run": True, "count_limit": 3}
    for expected in (5, 3):
        would = write(**asked, expected_count=expected)
        assert (would.changed, would.complete) == (3, False)
    with pytest.raises(SelectionChanged) as caught:
        write(**asked, expected_count=2)
    assert (caught.value.found, "at least 3" in str(caught.value)) == (3, True)
    for limit, expected in ((5, 6), (6, 4), (6, 6)):  # all were counted
        with pytest.raises(SelectionChanged) as caught:
            write(status="new", dry_run=True, count_limit=limit, expected_count=expected)
        assert caught.value.found == 5


def test_a_dry_run_that_is_out_of_time_does_not_take_a_part_for_another_number(
    app, second_page_never_comes
):
    put(app, *((f"o{n}", NEW) for n in range(30)))
    would = app.ops.within(1.0).discard(status="new", dry_run=True, expected_count=30)
    assert (would.changed, would.complete) == (PAGE, False)


@pytest.mark.parametrize("kind", ["discard", "cancel"])
def test_what_was_counted_is_changed_and_nothing_behind_it(app, kind):
    put(app, *((f"o{n}", NEW) for n in range(5)))
    write = getattr(app.ops, kind)
    would = write(status="new", dry_run=True, count_limit=3)
    put(app, ("later", NEW))
    asked = {"status": "new", "reason": "no use", "up_to": would.up_to}
    with pytest.raises(SelectionChanged):
        write(**asked, expected_count=would.changed + 1)
    assert audited(app) == []
    assert write(**asked, expected_count=would.changed).changed == 3
    assert _states(app) == ["dead"] * 3 + ["new"] * 3


def test_a_rerun_up_to_a_message_keeps_to_it_also_when_continued(app):
    many_dead(app, 300)
    ids = [info.msg_id for info in app.ops.find(limit=300)]
    left = [Cut]

    def tell(progress: Progress) -> None:
        if left:
            raise left.pop()

    with pytest.raises(Cut):
        app.ops.rerun(topic="t", up_to=ids[199], progress=tell)
    (entry,) = app.ops.audit()
    assert 0 < entry.changed < 200
    assert app.ops.rerun(operation=entry.op_id).changed == 200
    assert len(app.ops.find(status="dead", limit=300)) == 100


@SQLITE
def test_up_to_alone_chooses_nothing(app):
    (found,) = put(app, ("a", NEW))
    for write in (app.ops.discard, app.ops.cancel):
        with pytest.raises(ConfigError, match="needs ids or a filter"):
            write(up_to=found, reason="x")
        with pytest.raises(ConfigError, match="not both"):
            write(ids=[found], up_to=found, reason="x")
        with pytest.raises(ConfigError, match="up_to"):
            write(status="new", up_to="1", reason="x")


def test_a_write_tells_how_far_it_has_counted_and_counts_no_more_than_expected(app, monkeypatch):
    put(app, *((f"o{n}", FAILED) for n in range(30)), ("o", DONE))
    real, pages = bounded.ids_of_filter, []

    def page(conn, t, wanted, *, after, limit, **more):
        pages.append(after)
        return real(conn, t, wanted, after=after, limit=min(limit, PAGE), **more)

    monkeypatch.setattr(bounded, "ids_of_filter", page)
    told: list[Progress] = []
    asked = {"topic": "t", "progress": told.append}
    with pytest.raises(SelectionChanged):
        app.ops.rerun(**asked, expected_count=5)
    assert [one.matched for one in told] == [PAGE]  # not all 30
    assert app.ops.rerun(**asked, expected_count=30).changed == 30
    counting = [one.matched for one in told if one.op_id is None]
    assert counting == [PAGE, PAGE, 2 * PAGE, 3 * PAGE]
    assert told[-1].op_id is not None


@pytest.mark.long
def test_a_write_that_counts_is_ended_at_its_time_before_anything_is_done(
    app, second_page_never_comes
):
    put(app, *((f"o{n}", NEW) for n in range(30)))
    with pytest.raises(TookTooLong):
        app.ops.within(1.0).discard(status="new", reason="x", expected_count=30)
    assert app.ops.audit() == []
    assert _states(app) == ["new"] * 30
