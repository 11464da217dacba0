"""Oracle: round trips and parses that are saved by what the driver is told of a statement."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

ROWS_AT_ONCE = 501
"""One more than our lists of ids have: so the driver knows the last row as the last."""
_ROOMS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 500)


def _fetch_at_once(
    conn: sa.Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
) -> None:
    # By default the first answer brings 2 rows, and each further round trip 100 of them.
    cursor.prefetchrows = cursor.arraysize = ROWS_AT_ONCE


def _pad_lists(
    conn: sa.Connection, element: Any, multiparams: Any, params: Any, options: Any
) -> tuple[Any, Any, Any]:
    # A list is as many parameters as it has elements, so each length would be a statement of its
    # own, to be parsed by the server and kept by the driver: it is filled up with its last element.
    return element, [_padded(one) for one in multiparams], _padded(params)


def _padded(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    lists = {
        name: [*value, *value[-1:] * (_room(len(value)) - len(value))]
        for name, value in given.items()
        if name.startswith("mw_") and isinstance(value, list) and len(value) > 1
    }
    return {**given, **lists} if lists else given


def _room(length: int) -> int:
    return next((room for room in _ROOMS if room >= length), length)
