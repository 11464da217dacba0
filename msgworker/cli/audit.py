"""`audit`: what operators did, and the state before it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from msgworker import App
from msgworker.cli.options import message_id, on_table, open_app
from msgworker.cli.output import (
    NOTHING_MATCHED,
    Column,
    NothingMatched,
    age,
    print_json,
    print_text,
    print_with_text,
    safe,
    since,
    when,
)
from msgworker.errors import SchemaError
from msgworker.queries.audited import AuditEntry

COLUMNS = (
    Column("OPERATION", "right"),
    Column("WHAT", share=1),
    Column("CHANGED", "right"),
    Column("SKIPPED", "right"),
    Column("AGE", "right"),
    Column("ACTOR", share=1),
    Column("REASON", share=2),
)


@click.command("audit")
@click.argument("msg_id", metavar="[ID]", required=False)
@click.option(
    "--limit", metavar="N", type=int, default=50, help="At most so many, 50 if not given."
)
@on_table
def audit(
    ctx: click.Context, /, msg_id: str | None, limit: int, as_json: bool, **given: Any
) -> int:
    """List what operators did, newest first: all operations, or those that changed message ID."""
    number = None if msg_id is None else message_id(msg_id)
    app = open_app(ctx, given)
    found = app.ops.audit(number, limit=limit)
    if as_json:
        print_json([entry_dict(entry) for entry in found])
        return 0 if found else NOTHING_MATCHED
    if not found:
        whose = "on this table" if number is None else f"to message {number}"
        raise NothingMatched(f"nothing was done {whose}")
    if number is not None:
        for entry in found:
            print_text(line_of(entry), rest="    ")
        return 0
    print_with_text(COLUMNS, [_row(entry) for entry in found])
    return 0


def _row(entry: AuditEntry) -> list[Any]:
    kind = entry.kind if entry.about is None else f"{entry.kind} {entry.about}"
    if entry.finished_at is None:
        kind += " (unfinished)"
    counts = [f"{entry.changed:,}", f"{entry.skipped:,}"]
    return [
        entry.op_id,
        kind,
        *counts,
        age(since(entry.started_at)),
        entry.actor,
        entry.reason or "",
    ]


def line_of(entry: AuditEntry) -> str:
    """What was done to one message, in one line."""
    at = when(entry.changed_at or entry.started_at)
    why = f": {safe(entry.reason)}" if entry.reason else ""
    was = (
        f"{entry.was_status}, {entry.was_tries} {'try' if entry.was_tries == 1 else 'tries'} failed"
    )
    return f"{at}  {entry.kind} by {safe(entry.actor)}{why} (#{entry.op_id}; it was {was})"


def entry_dict(entry: AuditEntry) -> dict[str, Any]:
    """An entry for JSON; the keys of a message only if it has one."""
    found = asdict(entry)
    if entry.msg_id is None:
        for name in [name for name in found if name.startswith("was_")] + ["msg_id", "changed_at"]:
            del found[name]
    return found


def of_message(app: App, msg_id: int) -> list[AuditEntry]:
    """What operators did to a message; nothing if the tables of ops are missing."""
    try:
        return app.ops.audit(msg_id)
    except SchemaError:
        return []
