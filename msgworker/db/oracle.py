"""Oracle: round trips and parses that are saved: by what the driver is told of a statement, and by
statements that are sent as one block."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

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


_LIST = re.compile(r"\(__\[POSTCOMPILE_(\w+)\]\)")


_refused: weakref.WeakSet[sa.Dialect] = weakref.WeakSet()
"""Of the engines whose database has refused a block."""


def can_block(conn: sa.Connection) -> bool:
    """Whether `block_of` can be sent: not where schemas are translated, which would not be in its
    names; and not once the database has refused one."""
    translated = conn.get_execution_options().get("schema_translate_map")
    return not translated and conn.dialect not in _refused


def block_of(
    conn: sa.Connection, lock: sa.Select[Any], changes: Mapping[str, sa.Update]
) -> sa.TextClause:
    """A locking query, then UPDATEs, in one round trip: an anonymous block of PL/SQL, in which
    each statement begins when the one before it has ended. Rows are locked when their cursor is
    opened, not as they are fetched. The number of rows of each UPDATE comes back as the parameter
    of its name. Of parameters without a name only one statement may have any.
    """
    binds: dict[str, sa.BindParameter[Any]] = {}

    def compiled(statement: Any) -> str:
        made = statement.compile(dialect=conn.dialect)
        for bind, name in made.bind_names.items():
            value = {} if bind.required else {"value": bind.value}
            binds[name] = sa.bindparam(name, type_=bind.type, expanding=bind.expanding, **value)
        names = "|".join(made.bind_names.values())
        # Another colon is one of a literal.
        return _LIST.sub(r":\1", re.sub(rf":(?!(?:{names})\b)", r"\:", str(made)))

    compiled_changes = "; ".join(
        f"{compiled(change)}; :{name} := SQL%ROWCOUNT" for name, change in changes.items()
    )
    counts = [sa.outparam(name, sa.Integer()) for name in changes]
    return sa.text(
        f"DECLARE CURSOR mw_rows IS {compiled(lock)}; "
        f"BEGIN OPEN mw_rows; CLOSE mw_rows; {compiled_changes}; END;"
    ).bindparams(*binds.values(), *counts)


def send_block(conn: sa.Connection, block: sa.TextClause, params: dict[str, Any]) -> Sequence[int]:
    """Send a block of `block_of`; returns the number of rows of each UPDATE."""
    found: Any = conn.execute(block, params)
    return list(found.out_parameters.values())


def refuses_block(conn: sa.Connection, error: DBAPIError) -> bool:
    """Whether the error says that a block was not understood, as where PL/SQL takes a column for a
    word of its own. Nothing of it was done then; its statements may be good without it."""
    refused = bool(re.match(r"ORA-0*6550\b", str(error.orig)))
    if refused:
        _refused.add(conn.dialect)
    return refused
