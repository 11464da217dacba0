"""The hook for Alembic that keeps `--autogenerate` from dropping objects of msgworker, and the
upgrade of its tables within a revision.

It hides only objects that are in the database but not in your metadata, and of these only objects
with a name of msgworker. Alembic itself is not imported here.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import cache
from typing import Any

import sqlalchemy as sa

from msgworker.db.database import DATABASES, NAMES, database_of
from msgworker.errors import ConfigError, SchemaError
from msgworker.schema import apply, known
from msgworker.schema.difference import INDEXES
from msgworker.table import columns
from msgworker.table.build import OWN, own_tables, tables_for
from msgworker.table.spec import MessageTable

__all__ = ["include_object", "upgrade"]

OFFLINE = (
    "alembic upgrade --sql has no tables to compare with: paste the output of "
    "`msgworker db upgrade --sql` into op.execute(...)"
)
BEGUN = (
    "a transaction was begun before Alembic's, so indexes cannot be built beside others: in env.py "
    "use engine.connect(), not engine.begin(), and context.begin_transaction()"
)
_PART = r"(_w[0-9a-f]{6})?"
_RULE = r"(?:_t(\d{1,4})(b?))?"
_OF_OTHERS = {one.index[0] for one in OWN if one.index is not None}
_SUFFIXES = [one for one in INDEXES if one not in _OF_OTHERS]
_INDEX = re.compile(rf"{_PART}{_RULE}_({'|'.join(_SUFFIXES)})$")
_PARTITION = re.compile(rf"{columns.DEFAULT_NAME}_p\d+")
_HIDDEN = (columns.OPEN_OBJECT, columns.RUNNING_OBJECT, columns.FAILED_MARK)
_COLUMN = re.compile(rf"({'|'.join([*_HIDDEN, *columns.HIDDEN.values()])}){_PART}{_RULE}")


def include_object(
    object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any
) -> bool:
    """Alembic's hook of this name: False for objects of msgworker that your metadata lacks.

    These are msgworker's tables; message tables that are only in the database; and on your own
    message table the guard, the claim indexes and, on MariaDB and MySQL, the hidden generated
    columns. Combine it with a hook of your own: `include_object(...) and mine(...)`.
    """
    if not reflected or compare_to is not None or name is None:
        return True
    if type_ == "table":
        return not (name.lower() in _our_tables() or _is_message_table(object))
    table = getattr(object, "table", None)
    if table is None:
        return True
    if type_ == "column":
        return not _COLUMN.fullmatch(name.lower())
    if type_ in ("index", "unique_constraint"):
        return not (_is_ours(name, table.name) and _is_message_table(table))
    return True


def upgrade(op: Any, table: MessageTable | None = None, *, message_table: bool = True) -> list[str]:
    """Upgrade msgworker's tables within a revision, by what `msgworker db upgrade` runs; return
    what was made, [] if all was there.

    op: alembic.op, of a revision that is connected (not `alembic upgrade --sql`). table: the
    App's, msgworker_message by default. The statements are run in Alembic's autocommit_block(),
    since PostgreSQL builds indexes in no transaction, if they are to let others work; so env.py
    leaves it to Alembic to begin the transaction. Raises SchemaError.
    """
    context = op.get_context()
    if context.as_sql:
        raise SchemaError(OFFLINE)
    made: list[str] = []
    with ExitStack() as block:
        try:
            block.enter_context(context.autocommit_block())
        except AssertionError as error:  # all that Alembic says
            raise SchemaError(BEGUN) from error
        conn = op.get_bind()
        database = database_of(conn.engine)
        spec = table or MessageTable()
        spec = known.rule_there(conn, spec, database).to(spec)
        apply.upgrade(
            *(conn.engine, spec, database),
            message_table=message_table,
            on_step=lambda step: made.append(step.makes),
            conn=conn,
        )
    return made


@cache
def _our_tables() -> frozenset[str]:
    tables = tables_for(MessageTable(), DATABASES[NAMES[0]])  # their names are the same in all
    return frozenset(table.name for table in own_tables(tables)) | {columns.DEFAULT_NAME}


def _is_message_table(table: sa.Table) -> bool:
    """Whether a reflected table has the guard, or is a partition as `msgworker ddl` names it; an
    index `orders_due` alone proves nothing.

    Two of the other indexes count too: SQLAlchemy does not read every index on an expression.
    """
    if _PARTITION.fullmatch(table.name.lower()):
        return True
    ours = {str(i.name).lower() for i in table.indexes if _is_ours(str(i.name), table.name)}
    return len(ours) > 1 or any(name.endswith("_guard") for name in ours)


def _is_ours(name: str, table: str) -> bool:
    """Whether an index has the name of a msgworker index on this table, under any rule."""
    found = _INDEX.search(name.lower())
    if found is None:
        return False
    part, tries, block, suffix = found.groups(default="")
    rules: list[dict[str, Any]] = [{}]
    if tries:
        rules.append({"max_tries": int(tries), "on_dead": "block" if block else "continue"})
    try:
        specs = [MessageTable(table.replace(".", "_"), **rule) for rule in rules]
    except ConfigError:  # not a valid name or rule of a message table
        return False
    return any(spec.index_name(suffix, part) == name.lower() for spec in specs)
