"""The statements that mend a message table, and what they would do to what it holds: its rows, what
hangs on a column, and what is said of a column beside its type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db import catalogue, types
from msgworker.db.database import Was
from msgworker.db.errors import raise_lost
from msgworker.schema.describe import Check, Column, Live, Retyping
from msgworker.table.build import tables_for
from msgworker.table.columns import INSTANTS, REQUIRED, ROLES

REMAKE = "a column cannot be changed there: create the table again"
EMPTIED = tuple(name for name, role in ROLES.items() if role.emptied)


@dataclass(frozen=True, slots=True)
class Fault:
    """A violated requirement (needed) or recommendation. fix: statements that fix it, in order;
    () = nothing to run. role: of the column whose type it is. detail: what the rows hold that the
    statements change."""

    check: str
    needed: bool
    text: str
    fix: tuple[str, ...] = ()
    role: str = ""
    detail: str | None = None


def faults_text(found: Sequence[Fault]) -> str:
    """Faults as the end of the text of a SchemaError, with the statements that fix them."""
    fixes = list(dict.fromkeys(statement for fault in found for statement in fault.fix))
    text = "; ".join(fault.text for fault in found)
    return f"{text}. To fix it: {'; '.join(fixes)}" if fixes else text


# --- A column: one statement makes all of it fit where a change says all of it, whichever of its
# faults is printed; so no statement undoes another.


def is_retyped(live: Live, role: str) -> bool:
    """Whether the type of its column is changed."""
    return role in live.tried and not (live.tried[role].loses or live.tried[role].held)


def emptied(live: Live, role: str) -> tuple[str, ...]:
    """The statements that make its column take NULL, with no other default; and NULL of what is
    empty, which was none: as a key it would be one, as an owner an instance that is dead."""
    column = live.columns[role]
    at, changed = live.at(column.name), is_retyped(live, role)
    if live.database.whole_columns and changed:
        fix = _retyped(live, role, column)
    else:
        fix = tuple(live.database.drop_not_null(at, column.kind, column.rest))
    if not fix or not catalogue.takes_any_text(column.kind) or (changed and role in INSTANTS):
        return fix
    return *fix, f"UPDATE {at.table} SET {at.quoted} = NULL WHERE {at.quoted} = ''"


def unchecked(live: Live, check: Check) -> tuple[str, ...]:
    """The statements that drop a CHECK, all other of which stays."""
    if not check.of_column:
        return live.database.drop_check(live.at(check.name))
    column = live.all[check.name]
    role = next((r for r, c in live.columns.items() if c.name == column.name), "")
    if is_retyped(live, role):
        return _retyped(live, role, column)
    if role in EMPTIED and not column.nullable:
        return emptied(live, role)
    if role == "status" and default_problem(column):
        column = replace(column, default="0")
    return live.database.say_again(live.at(column.name), column)


def default_problem(status: Column) -> str:
    """Why a row that is inserted without a status is not new; "" if it is."""
    plain = (status.default or "NULL").strip("'()\" ").upper().split("::")[0].strip("'()\" ")
    if plain in ("0", "+0", "0.0", "0.00"):
        return ""
    if plain != "NULL":
        return f"has the default {plain}: such rows are not new"
    if not status.nullable:  # who inserts must say it
        return ""
    return "has no default: a row that is inserted without it is never claimed"


# --- Its type, and what a change of it would do to the rows.


def typed(live: Live, role: str, column: Column, text: str, *, is_needed: bool = True) -> Fault:
    """A column of another type: it is changed, or else another one is named."""
    fix = _retyped(live, role, column)
    tried = live.tried.get(role, Retyping())
    if tried.held:
        return Fault("types", is_needed, f"{text}; {tried.held}: drop that first", (), role)
    if tried.loses:
        text, fix = f"{text}; {tried.loses}", ()
    elif tried.drops:
        shown = ", ".join(
            f"{name} ({' '.join(check.split())[:200]})" for name, check in tried.drops
        )
        text += f"; CHECK {shown} is dropped, since it is of the old type: make one for the new"
    if is_needed or not live.database.loose_types or live.strict:
        text, fix = with_way_out(live, role, text, fix)
    return Fault("types", is_needed, text, fix, role, tried.holds or None)


def retyping(conn: Connection, live: Live, role: str) -> Retyping:
    """What a change of its type would do to all that the table holds."""
    if not live.database.retypes_values:
        return Retyping()
    column, spec = live.columns[role], live.spec
    ours = tables_for(spec, live.database).message.c[spec.names()[role]].type
    try:
        name = (spec.schema, spec.bare_name)
        held, checks = catalogue.hanging(conn, name, live.at(column.name), column.kind, ours)
    except DBAPIError as error:
        raise_lost(error)
        return Retyping("what uses it cannot be read")
    if held:
        which = ", ".join(held)
        return Retyping(held=f"its type cannot be changed while it is used by {which}")
    return replace(_of_values(conn, live, role, ours), drops=tuple(checks))


def _of_values(conn: Connection, live: Live, role: str, ours: Any) -> Retyping:
    column = live.columns[role]
    at = (conn, live.name, column.name)
    try:
        if role == "status":
            return _statuses(catalogue.values_as_numbers(*at, limit=20))
        if isinstance(ours, sa.Integer):
            odd = catalogue.not_whole(*at)
            return Retyping(f"it holds {', '.join(odd)}, which would be changed" if odd else "")
        if role in INSTANTS and not isinstance(column.kind, sa.DateTime):
            count = catalogue.filled(*at)
            text = f"{count:,} of its values would have to be read as instants of some time zone"
            return Retyping(text if count else "")
        if (length := length_of(ours)) and (count := catalogue.longer_than(*at, length)):
            return Retyping(f"{count:,} of its values are longer than {length} characters")
    except DBAPIError as error:
        raise_lost(error)
        return Retyping("what it holds cannot be read as that type")
    return Retyping()


def _statuses(found: Sequence[tuple[str | None, str | None, int]]) -> Retyping:
    """Only rows that say one of the four numbers keep their meaning."""
    shown = ", ".join(f"{'NULL' if v is None else v} ({n:,})" for v, _, n in found)
    for text, number, _ in found:
        try:
            value = Decimal(text or "")
            same = number is None or Decimal(number) == value
        except InvalidOperation:
            same = False
        if not same or value not in (-1, 0, 1, 2):
            return Retyping(f"its rows hold {shown}, which a change of the type would not keep")
    return Retyping(holds=f"status of the rows, as before: {shown}" if found else "")


def _retyped(live: Live, role: str, column: Column) -> tuple[str, ...]:
    ours = tables_for(live.spec, live.database).message.c[live.spec.names()[role]]
    kind, counts = column.kind, column.counts
    instant = role in INSTANTS and isinstance(kind, sa.DateTime)
    number = role in INSTANTS and isinstance(kind, types.NUMBERS)
    generated = column.generated and ROLES[role].may_be_generated
    if not live.database.can_alter_type(kind, ours.type, generated=generated):
        return ()
    plain = live.database.drop_generated(live.at(column.name)) if column.generated else ()
    zone = live.spec.time_zone if instant else None
    was = Was(zone, number, counts, _kept_default(role, column), kind, column.rest)
    drops = live.tried[role].drops if role in live.tried else ()
    dropped = (s for name, _ in drops for s in live.database.drop_check(live.at(name)))
    return (*plain, *dropped, *live.database.alter_type(live.at(column.name), ours, was))


def _kept_default(role: str, column: Column) -> str:
    """That of what producers send, who may leave it out; "" = ours, as of all that we write."""
    default = (column.default or "").partition(" ON UPDATE ")[0]
    gives_none = default.upper() in ("", "NULL") or role == "created_at"
    if gives_none or not ROLES[role].may_be_generated:
        return ""
    is_number = role != "msg_id" or not isinstance(column.kind, sa.Uuid)
    return default if is_number else ""


def with_way_out(
    live: Live, role: str, text: str, fix: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
    """Where a column cannot be changed, another one can be added and named."""
    if fix:
        return text, tuple(fix)
    if role in REQUIRED:
        return f"{text}. {REMAKE}", ()
    new = f"{live.columns[role].name}_2"
    ours = tables_for(live.spec, live.database).message.c[live.spec.names()[role]]
    kind = ours.type.compile(dialect=live.sql)
    quoted = live.sql.identifier_preparer.quote(new)
    add = f"ALTER TABLE {live.name} {live.database.add_column(f'{quoted} {kind}')}"
    return (
        f'{text}. {REMAKE}, or add a column ({add}) and name it: MessageTable({role}="{new}")',
        (),
    )


def length_of(kind: Any) -> int | None:
    """The most characters of a text of ours."""
    found: int | None = getattr(kind, "length", None)
    return found or getattr(getattr(kind, "impl", None), "length", None)
