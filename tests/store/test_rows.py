"""Rows as they are read, whatever their counters hold."""

from __future__ import annotations

import gc
from decimal import Decimal
from typing import Any

import pytest

from msgworker.db import DATABASES, Escaped
from msgworker.schema.describe import FILLED
from msgworker.store.rows import Row, bare_rows, rows_of
from msgworker.store.send import PARAMS, inserted_values, row_values
from msgworker.table import MessageTable, tables_for

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
