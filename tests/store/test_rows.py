"""Rows as they are read, and UPDATEs of rows that are given by lists of ids."""

from __future__ import annotations

import gc
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker.db.connections import Escaped
from msgworker.db.database import DATABASES
from msgworker.message import Settlement
from msgworker.schema.describe import FILLED
from msgworker.store import settle
from msgworker.store.rows import Row, bare_rows, changed, in_guard_order, rows_of
from msgworker.store.send import PARAMS, inserted_values, row_values
from msgworker.table.build import tables_for
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables
from tests.support.flags import ME
from tests.support.rows import send

# --- Rows as they are read, whatever their counters hold.


TABLES = tables_for(MessageTable(), DATABASES["sqlite"])


def found(*numbers: Any) -> tuple[Any, ...]:
    return (1, "a", "t", "{}", *numbers, "2026-01-31", None)


@pytest.mark.parametrize("numbers", [(0, 0, 0), (1, 0, 0), (0, 2, 300), (2**31 - 1, 1, 1)])
def test_usual_counters_stand_in_the_row_as_they_are(numbers: tuple[int, ...]):
    given = [found(*numbers), found(0, 0, 0)]
    assert rows_of(TABLES, given) == [Row(*one) for one in given]
    assert bare_rows(TABLES, [("x", *one) for one in given], 1) == given


@pytest.mark.parametrize(
    "value", [0.0, 1.5, False, Decimal(0), Decimal("NaN"), None, "0", -1, b"0"]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_odd_counter_is_judged_and_changes_no_other_row(value: Any, place: int):
    numbers: list[Any] = [0, 0, 0]
    numbers[place] = value
    usual, odd, behind = rows_of(TABLES, [found(0, 0, 0), found(*numbers), found(3, 0, 0)])
    assert (usual, behind) == (Row(*found(0, 0, 0)), Row(*found(3, 0, 0)))
    assert all(type(n) is int and n >= 0 for n in odd[4:7])
    assert (odd.odd is None) == (isinstance(value, float | bool | Decimal) and value == 0)


def test_a_row_that_the_driver_could_not_decode_is_judged():
    (row,) = rows_of(TABLES, Escaped([(1, "a\udcff", *found(0, 0, 0)[2:])]))
    assert "object_id" in (row.odd or "")


@pytest.mark.parametrize("name", sorted(DATABASES))
def test_an_update_in_guard_order_takes_no_further_condition(name: str):
    """MariaDB and MySQL would sort by it."""
    database = DATABASES[name]
    t = tables_for(MessageTable(), database)
    ordered = in_guard_order(t, sa.update(t.message).where(t.among(t.cols().msg_id)))
    as_sent = ordered.prefix_with("IGNORE") if t.orders_updates else ordered
    text = str(as_sent.compile(dialect=database.offline_dialect()))
    assert ("ORDER BY" in text) == (name in ("mariadb", "mysql"))
    for change in (ordered, as_sent):
        for add in (change.where, change.filter_by, change.filter):
            with pytest.raises(AssertionError, match="a part of the order"):
                add(**{"status": 0}) if add == change.filter_by else add(sa.true())


@pytest.mark.long
def test_rows_that_wait_are_nothing_to_the_garbage_collector():
    given = [(0, 1, *found(0, 0, 0)[:3], "{}" * n, *found(0, 0, 0)[4:]) for n in range(5)]
    bare = bare_rows(TABLES, given, 2)
    gc.collect()
    assert not any(map(gc.is_tracked, bare))
    assert gc.is_tracked(Row(*bare[0]))


def test_what_counts_as_filled_is_what_each_insert_names():
    added = {name: name for name in ("priority", "unique_key", "unique_kept", "headers")}
    spec = MessageTable(**added, scheduled_for="scheduled_for")
    t = tables_for(spec, DATABASES["sqlite"], says_priority=True)
    row = row_values(t, topic="t", object_id=None, payload=None, delay=None, at=None)
    assert {"msg_id", *inserted_values(t, frozenset(row))} == set(FILLED)


def test_every_parameter_of_a_row_is_known():
    given: dict[str, Any] = dict.fromkeys(("topic", "object_id", "payload", "at"), "x")
    given |= {"priority": 1, "unique_key": "k", "kept": True, "scheduled_for": "x", "job_id": 1}
    t = tables_for(MessageTable(), DATABASES["sqlite"])
    keys = {key for delay in (None, 1.0) for key in row_values(t, delay=delay, **given)}
    assert keys | {"b_headers"} == set(PARAMS)


# --- UPDATEs of rows that are given by lists of ids.


def _done(t: Tables) -> sa.Update:
    c = t.cols()
    return (
        sa.update(t.message).where(t.among(c.msg_id)).values(t.values(status=2, last_error="50%"))
    )


def test_it_changes_the_rows_that_are_listed_and_says_how_many_there_were(store):
    ids = send(store.app, *"abcd")
    change = _done(store.t)
    assert store(changed, "test", change, {"mw_ids": [ids[1], ids[3], ids[3] + 1]}) == 2
    assert store.table.rows("status", "last_error") == [(0, None), (2, "50%")] * 2
    assert store(changed, "test", change, {"mw_ids": [ids[0]]}) == 1


def test_nothing_but_whole_numbers_gets_into_a_text(store):
    ids = send(store.app, "a")
    change = _done(store.t)
    with pytest.raises((TypeError, sa.exc.DBAPIError)):
        store(changed, "test", change, {"mw_ids": [f"{ids[0]}) OR (1 = 1"]})
    assert store.table.rows("status") == [(0,)]


def test_a_settle_hands_no_id_to_a_driver_that_would_write_it_into_the_text(store):
    """PyMySQL does that for one value after the other, and takes longer than for all the rest."""
    ids = send(store.app, *"abcd", *"abcd")
    rows = store.flagged(*ids[:4])
    given: list[Any] = []
    with store.app.engine.connect() as conn:
        sa.event.listen(conn, "before_cursor_execute", lambda *sent: given.append(sent[3]))
        batch = [Settlement(row.msg_id, next_id=row.msg_id + 4) for row in rows]
        settle.settle(conn, store.t, batch, me=ME)
        conn.commit()
    assert [s for (s,) in store.table.rows("status")] == [2] * 4 + [1] * 4
    assert max(map(len, given)) <= 5
