"""Which messages are proposed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from msgworker.store import candidates
from tests.support.rows import send
from tests.support.store import OTHER, ids_of


@pytest.mark.requires("index_by_age")
def test_oldest_finds_open_rows_by_age(store):
    a = send(store.app, "a", "b", None, "a")
    waiting = send(store.app, "c", delay=3600)
    store.row(a[1], status=2)
    store.row(a[3], status=-1, error_try_times=3)
    assert ids_of(store(candidates.oldest, mark=-1, limit=10)) == [a[0], a[2]]
    assert ids_of(store(candidates.oldest, mark=a[0] + 1, limit=10)) == [a[2]]
    assert ids_of(store(candidates.oldest, mark=-1, limit=1)) == [a[0]]
    assert waiting[0] not in ids_of(store(candidates.oldest, mark=-1, limit=10))


@pytest.mark.requires("index_by_age")
def test_of_the_running_only_those_with_an_object_are_read(store):
    """Nothing waits behind a running message without an object: it would only take up room."""
    a = send(store.app, None, "a", None, "a")
    for msg_id in a[:2]:
        store.row(msg_id, status=1, claimed_by=OTHER)
    assert ids_of(store(candidates.oldest, mark=-1, limit=10)) == a[1:]
    assert ids_of(store(candidates.oldest, mark=-1, limit=2)) == a[1:3]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_of_rows_without_an_object_only_those_of_a_share_are_read(store, slots):
    ids = send(store.app, *[None] * 100, "a", "b")
    shares = []
    for slot in range(slots):
        one = {"share": (slot, slots), "limit": 200}
        found, end = store(candidates.without_object, after=None, **one)
        assert end is None
        shares.append(ids_of(found))
        assert {candidates.share_of_id(i, slots) for i in shares[-1]} == {slot}
        if store.t.database.oldest_index:
            assert ids_of(store(candidates.oldest, mark=-1, **one)) == shares[-1] + ids[-2:]
    assert sorted(i for share in shares for i in share) == ids[:-2]
    first, second = shares[0][:2]
    page = store(candidates.without_object, after=first, limit=1, share=(0, slots))
    assert (ids_of(page[0]), page[1]) == ([second], second)


def test_a_negative_id_is_in_the_share_that_each_instance_computes(store):
    ids = send(store.app, *[None] * 40)
    store.table.edit(msg_id=store.t.cols().msg_id - 10_000)
    for slot in range(3):
        share = {"share": (slot, 3), "limit": 200}
        found, _ = store(candidates.without_object, after=None, **share)
        mine = [i - 10_000 for i in ids if candidates.share_of_id(i - 10_000, 3) == slot]
        assert ids_of(found) == mine
        if store.t.database.oldest_index:
            assert ids_of(store(candidates.oldest, mark=-20_000, **share)) == mine


def test_candidates_show_what_was_seen(store):
    (msg_id,) = send(store.app, "a", topic="x")
    store.row(msg_id, status=-1, error_try_times=2, crash_times=1)
    (found,), after = store(candidates.heads, after=None, limit=10)
    assert (found.msg_id, found.object_id, found.status, found.tries) == (msg_id, "a", -1, 2)
    assert (found.crash_times, found.topic, found.due) == (1, "x", 1)
    assert after is None


def test_heads_gives_the_first_open_row_of_each_object(store):
    ids = send(store.app, "b", "a", "b", "c", None, "a")
    store.row(ids[1], status=2)
    found, after = store(candidates.heads, after=None, limit=10)
    assert [(c.object_id, c.msg_id) for c in found] == [("a", ids[5]), ("b", ids[0]), ("c", ids[3])]
    assert after is None


@pytest.mark.parametrize("but", [False, True])
def test_heads_of_some_topics_are_read_without_those_of_others(store, monkeypatch, but):
    """Only a head counts: what stands behind another topic's is none."""
    monkeypatch.setattr(candidates, "PAGE", 4)
    ours, others = ("t", "u")[but], ("u", "t")[but]
    a = send(store.app, "a", "c", "f", "f", topic=ours)
    send(store.app, "a", "b", "d", "e", "g", topic=others)
    those, found, after = candidates.Those(["t"], but), [], None
    for _ in range(10):
        some, after = store(candidates.heads, after=after, limit=2, those=those)
        found += [(c.object_id, c.msg_id) for c in some]
        if after is None:
            break
    assert found == [("a", a[0]), ("c", a[1]), ("f", a[2])]
    assert after is None


def test_heads_shows_heads_that_cannot_go(store):
    """A head that runs, waits or blocks is shown as such: nothing behind it is offered instead."""
    ids = send(store.app, "a", "a", "b", "b")
    store.row(ids[0], status=1, claimed_by=OTHER)
    store.row(
        ids[2], status=-1, error_try_times=1, available_at=datetime.now(UTC) + timedelta(hours=1)
    )
    found, _ = store(candidates.heads, after=None, limit=10)
    assert [(c.msg_id, c.status, c.due) for c in found] == [(ids[0], 1, 1), (ids[2], -1, 0)]


def test_heads_walks_all_objects_in_steps(store):
    names = [f"o{i:03}" for i in range(50)]
    send(store.app, *names, *names)
    seen: list[Any] = []
    after = None
    for _ in range(100):
        found, after = store(candidates.heads, after=after, limit=7)
        seen += [c.object_id for c in found]
        if after is None:
            break
    assert seen == names


def test_heads_over_a_deep_object(store):
    with store.app.engine.begin() as conn:
        store.app.send_many(conn, "t", [(None, "deep")] * 2500)
        store.app.send_many(conn, "t", [(None, "other"), (None, "zebra")])
    seen: list[Any] = []
    after = None
    while True:
        found, after = store(candidates.heads, after=after, limit=1)
        seen += [(c.object_id, c.msg_id) for c in found]
        if after is None:
            break
    # A page may end inside an object; its later rows are hints that `flag` refuses.
    assert {o for o, _ in seen} == {"deep", "other", "zebra"}
    assert seen[0] == ("deep", store.table.column("msg_id")[0])


def test_due_after_finds_rows_whose_instant_has_come(store):
    past = send(store.app, "a", "b", at=datetime.now(UTC) - timedelta(hours=2))
    later = send(store.app, "c", at=datetime.now(UTC) - timedelta(hours=1))
    send(store.app, "d", delay=3600)
    send(store.app, "e")
    found = store(candidates.due_after, since=None, limit=10)
    assert ids_of(found) == [*past, *later]
    assert all(c.due == 1 and c.waits_until is not None for c in found)
    first = found[0]
    again = store(candidates.due_after, since=(first.waits_until, first.msg_id), limit=10)
    assert ids_of(again) == [past[1], *later]
    assert ids_of(store(candidates.due_after, since=None, limit=1)) == [past[0]]


def test_due_after_leaves_out_finished_and_dead_rows(store):
    done, dead = send(store.app, "a", "b", at=datetime.now(UTC) - timedelta(hours=2))
    store.row(done, status=2)
    store.row(dead, status=-1, error_try_times=3)
    assert store(candidates.due_after, since=None, limit=10) == []


def test_loose_finds_open_rows_without_an_object(store):
    ids = send(store.app, None, "a", None, None)
    store.row(ids[2], status=2)
    for after, limit, expected, cursor in (
        (None, 10, [ids[0], ids[3]], None),
        (ids[0], 10, [ids[3]], None),
        (None, 1, [ids[0]], ids[0]),
    ):
        found, to = store(candidates.without_object, after=after, limit=limit)
        assert (ids_of(found), to) == (expected, cursor)


@pytest.mark.parametrize("but", [False, True])
def test_those_without_an_object_are_read_without_other_topics(store, monkeypatch, but):
    monkeypatch.setattr(candidates, "PAGE", 2)
    ours, others = ("t", "u")[but], ("u", "t")[but]
    ids = [send(store.app, None, topic=topic)[0] for topic in (ours, others, others, others, ours)]
    those, read = candidates.Those(["t"], but), candidates.without_object
    pages, after = [], None
    for _ in range(10):
        found, after = store(read, after=after, limit=1, those=those)
        pages.append((ids_of(found), after))
        if after is None:
            break
    assert pages == [([ids[0]], ids[1]), ([], ids[3]), ([ids[4]], None)]
    assert store(read, after=ids[1], limit=1, those=those, until=ids[2]) == ([], ids[2])


@pytest.mark.requires("pages_of_heads")
def test_heads_are_read_up_to_an_object_and_no_further(store, monkeypatch):
    monkeypatch.setattr(candidates, "PAGE", 2)
    send(store.app, "a", "b", "c", "f", topic="u")
    (e,) = send(store.app, "e")
    those = candidates.Those(["u"], True)
    for after, expected in ((None, ([], "b")), ("b", ([], "d")), ("d", ([], "d"))):
        found = store(candidates.heads, after=after, limit=1, those=those, until="d")
        assert found == expected
    found, to = store(candidates.heads, after="d", limit=1, those=those)
    assert (ids_of(found), to) == ([e], "f")
