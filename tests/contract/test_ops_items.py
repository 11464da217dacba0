"""Items of a fan-out, as operators see them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from msgworker import App, Context
from msgworker.doctor import Severity
from msgworker.errors import ConfigError
from msgworker.store import bounded
from msgworker.store.items import Items, ItemState
from tests.support.fan_out import Trying, double, refuse_odd
from tests.support.rows import Table, send
from tests.support.waiting import until


def items(app: App, msg_id: int, **options: Any) -> Items | None:
    info = app.ops.show(msg_id, **options)
    assert info is not None
    return info.items


def counts(app: App, msg_id: int) -> tuple[int, int, int | None, int | None]:
    found = items(app, msg_id)
    assert found is not None
    return found.done, found.failed, found.total, found.not_started


def test_show_counts_the_items_and_lists_the_failed_ones_first(app):
    def fan(ctx: Context) -> None:
        ctx.fan_out(refuse_odd, range(5), key=lambda n: f"k{n}").raise_for_failed()

    trying = Trying(app, fan, tries=3)
    trying.drain(linger=5)
    found = items(app, trying.msg_id)
    assert (found.done, found.failed, found.total, found.complete) == (3, 2, 5, True)
    assert [one.key for one in found.listed] == ["k1", "k3", "k0", "k2", "k4"]
    first, third = found.listed[0], found.listed[3]
    assert (first.state, first.tries, first.value) == (ItemState.FAILED, 3, None)
    assert first.error.startswith("ValueError: 1 is odd [fan_out.py:")
    assert (third.state, third.tries, third.error) == (ItemState.DONE, 1, None)
    assert json.loads(third.value) == 2
    assert all(one.finished_at is not None for one in found.listed)
    assert [one.key for one in items(app, trying.msg_id, items=1).listed] == ["k1"]
    assert items(app, trying.msg_id, items=0).listed == ()


def test_a_message_without_a_fan_out_has_no_items(app):
    (msg_id,) = send(app, "a")
    assert items(app, msg_id) is None
    assert list(app.ops.items(msg_id)) == []


def test_items_are_paged_by_their_keys(app):
    trying = Trying(app, lambda ctx: ctx.fan_out(refuse_odd, range(10)))
    trying.drain()
    seen: list[str] = []
    after = None
    while True:
        page = app.ops.items(trying.msg_id, limit=3, after=after)
        seen += [one.key for one in page]
        after = page.next_after
        if after is None:
            break
    assert seen == [str(n) for n in range(10)]
    failed = app.ops.items(trying.msg_id, state="failed")
    assert [one.key for one in failed] == ["1", "3", "5", "7", "9"]
    assert failed.complete
    assert [one.key for one in app.ops.items(trying.msg_id, state="done", limit=2)] == ["0", "2"]


def test_what_cannot_be_asked_of_items_is_refused(sqlite_app, subtests):
    for wrong in ({"state": "new"}, {"limit": 0}, {"limit": 10_001}, {"after": 1}, {"state": 2}):
        with subtests.test(wrong=wrong):
            with pytest.raises(ConfigError):
                sqlite_app.ops.items(1, **wrong)
            with pytest.raises(ConfigError):
                sqlite_app.ops.show(1, items=-1)


def test_what_has_not_started_is_known_where_the_items_are_a_list(app):
    def fan(ctx: Context) -> None:
        # Behind the first one, which fails, the others of its group are held back.
        ctx.fan_out(refuse_odd, [1, 2, 4, 6, 8], serial_by=lambda n: n < 5).raise_for_failed()

    trying = Trying(app, fan, tries=3)
    trying.drain(linger=5)
    assert counts(app, trying.msg_id) == (2, 1, 5, 2)


def test_how_many_are_left_of_a_generator_is_not_known(app):
    trying = Trying(app, lambda ctx: ctx.fan_out(double, (n for n in range(4))))
    trying.drain()
    assert counts(app, trying.msg_id) == (4, 0, None, None)


def test_the_items_of_all_fan_outs_of_a_message_are_counted_together(app):
    def fan(ctx: Context) -> None:
        ctx.fan_out(double, range(4), name="a")
        ctx.fan_out(double, range(2, 6), name="a")  # another round, two of them again
        ctx.fan_out(refuse_odd, range(3), name="b").raise_for_failed()

    trying = Trying(app, fan, tries=3)
    trying.drain(linger=5)
    assert counts(app, trying.msg_id) == (8, 1, 9, 0)


def test_a_retry_may_have_other_items(app):
    def fan(ctx: Context) -> None:
        ctx.fan_out(refuse_odd, [1, 2, 3, 4][: 5 - ctx.attempt], timeout=5).raise_for_failed()

    trying = Trying(app, fan, tries=3)
    trying.drain(linger=5)
    assert counts(app, trying.msg_id) == (2, 2, 4, 0)


def test_a_retry_whose_list_leaves_out_what_is_done_says_how_many_are_left(app):
    found: list[Any] = []

    def fan(ctx: Context) -> None:
        def look(item: str) -> None:
            if item == "e" and ctx.attempt == 1:
                raise ValueError("once")
            if item == "g":
                until(lambda: counts(app, trying.msg_id)[0] == 6, "all before it are recorded")
                found.append(counts(app, trying.msg_id))

        items = list("abcde" if ctx.attempt == 1 else "efghij")
        ctx.fan_out(look, items, threads=2, serial_by=lambda item: 1).raise_for_failed()
        ctx.fan_out(len, items, name="others")

    trying = Trying(app, fan, tries=2)
    trying.drain(linger=5)
    assert found == [(6, 0, 10, 4)]
    assert counts(app, trying.msg_id) == (16, 0, 16, 0)


def test_transactional_items_know_how_many_there_are(app):
    trying = Trying(
        app, lambda ctx: ctx.fan_out(lambda n, conn: n, range(3), transactional_items=True)
    )
    trying.drain()
    assert counts(app, trying.msg_id) == (3, 0, 3, 0)


def test_many_items_are_counted_in_part(app, monkeypatch):
    trying = Trying(app, lambda ctx: ctx.fan_out(refuse_odd, range(20)))
    trying.drain()
    monkeypatch.setattr(bounded, "SCAN", 6)
    found = items(app, trying.msg_id)
    assert (found.done + found.failed, found.complete, found.not_started) == (6, False, None)
    seen: list[str] = []
    after, rounds = None, 0
    while rounds == 0 or after is not None:
        page = app.ops.items(trying.msg_id, state="failed", after=after)
        seen += [one.key for one in page]
        after, rounds = page.next_after, rounds + 1
        assert page.complete == (after is None)
    assert sorted(seen, key=int) == [str(n) for n in range(1, 20, 2)]
    assert rounds == 4


def test_explain_says_how_far_a_fan_out_is(app):
    def fan(ctx: Context) -> None:
        ctx.fan_out(refuse_odd, range(5)).raise_for_failed()

    trying = Trying(app, fan, tries=3)
    trying.drain(linger=5)
    found = app.ops.explain(trying.msg_id).items
    assert (found.done, found.failed, found.total, found.listed) == (3, 2, 5, ())
    (other,) = send(app, "a")
    assert app.ops.explain(other).items is None
    app.ops.rerun([trying.msg_id])
    again = app.ops.explain(trying.msg_id)
    assert (again.message.status, again.items.done) == ("new", 3)


def test_instances_run_without_the_number_of_items_and_init_db_adds_it(app, make_app):
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE msgworker_item DROP COLUMN total")
    older = make_app()

    def fan(ctx: Context) -> None:
        ctx.fan_out(refuse_odd, range(5)).raise_for_failed()

    trying = Trying(older, fan, tries=3)
    trying.drain(linger=5)
    assert counts(older, trying.msg_id) == (3, 2, None, None)
    assert Table(older).statuses == [-1]
    advice = [one for one in older.ops.doctor() if "column total" in one.text]
    assert [(one.severity, one.check) for one in advice] == [(Severity.ADVISED, "tables")]
    assert make_app().create_schema() == ["total"]
