"""`list`, `show` and `audit`: reading only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from msgworker import App
from msgworker.cli import options
from msgworker.cli.output import (
    NOTHING_MATCHED,
    Column,
    NothingMatched,
    again,
    age,
    ago,
    note,
    print_block,
    print_json,
    print_table,
    print_text,
    safe,
    since,
    styled,
    when,
)
from msgworker.commands import command
from msgworker.config import id_of
from msgworker.config.values import YEAR_SECONDS, duration_or_instant
from msgworker.counted import plural
from msgworker.errors import SchemaError
from msgworker.message import State
from msgworker.ops.edits import diff
from msgworker.payload import pretty
from msgworker.queries.messages import PAYLOAD_SHOWN, How, MessageInfo, acts
from msgworker.store.audit import AuditEntry, Edited
from msgworker.store.bounded import Found
from msgworker.store.items import ItemInfo, Items
from msgworker.store.tries import Try

# --- Parts of a message for `show`: tracebacks of its tries, items of its fan-outs.

VALUE_SHOWN = 50


def print_traces(tries: Sequence[Try], *, whole: bool) -> None:
    """The traceback of each try, the newest first; equal ones once. Older ones show only their end,
    unless `whole`."""
    same: dict[str, list[int]] = {}
    ends: dict[str, str] = {}
    for one in reversed(tries):
        if one.traceback is not None:
            same.setdefault(one.traceback, []).append(one.number)
            ends[one.traceback] = one.ends_with or ""
    for place, (text, numbers) in enumerate(same.items()):
        end = text if whole or place == 0 else ends[text]
        note = "" if end == text else " (its end; --all shows all of it)"
        click.echo(f"traceback of {_named(numbers)}{note}")
        print_block(end)


def _named(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"try {numbers[0]}"
    *others, last = sorted(numbers)
    return f"tries {', '.join(map(str, others))} and {last}"


def print_items(info: MessageInfo) -> None:
    items = info.items
    assert items is not None
    click.echo(f"items: {items_text(items, running=info.status is State.PROCESSING)}")
    if not items.listed:
        return
    print_table(ITEM_COLUMNS, items.listed, "rest")
    more = items.done + items.failed - len(items.listed)
    if more > 0:
        click.echo(f"  and {more:,}{'' if items.complete else '+'} more")


def items_text(items: Items, *, running: bool) -> str:
    """`812 done, 3 failed, 185 of 1,000 not started`."""
    plus = "" if items.complete else "+"
    parts = [f"{items.done:,}{plus} done"]
    if items.failed:
        parts.append(f"{items.failed:,}{plus} failed")
    if items.not_started:
        word = "not ended" if running else "not started"
        parts.append(f"{items.not_started:,} of {items.total:,} {word}")
    return ", ".join(parts)


def _item_text(one: ItemInfo) -> str | None:
    if one.error is not None or one.value is None or len(one.value) <= VALUE_SHOWN:
        return one.value if one.error is None else one.error
    return f"{one.value[:VALUE_SHOWN]}... ({len(one.value):,} characters)"


ITEM_COLUMNS = (
    Column("ITEM", "key", share=2, least=12),
    Column("STATE", "state"),
    Column("TRIES", "tries", "right"),
    Column("ENDED", lambda one: None if one.finished_at is None else ago(one.finished_at), "right"),
    Column("VALUE OR ERROR", _item_text, share=4, least=16),
)


def items_dict(items: Items | None) -> dict[str, Any] | None:
    return None if items is None else asdict(items) | {"not_started": items.not_started}


# --- `list`: messages, a line each.


@click.command("list")
@options.filters
@options.unacknowledged
@options.of_group
@options.limited(50)
@click.option("--after", metavar="ID", type=int, help="After this id: the next page.")
@options.on_table
def list_(call: options.Call, after: int | None, since: str | None, **asked: Any) -> int:
    """List messages by filter, the oldest first."""
    options.asks_for_dead(asked)
    asked |= {"after": options.id_in_range(after), "since": instant_of(since)}
    found: Found[MessageInfo] = call.app.ops.find(**asked)
    if call.as_json:
        page = {"messages": [as_dict(info) for info in found]}
        print_json(page | {"next_after": found.next_after, "complete": found.complete})
        return 0 if len(found) or not found.complete else NOTHING_MATCHED
    more = again(after=found.next_after)
    if not found and found.complete:
        raise NothingMatched("no message matches")
    if found:
        print_table(list_columns(call.app), found, "text")
    if not found:
        note(f"no message matches so far; continue with: {more}")
    elif not found.complete:
        note(f"only a part of this large table was searched; continue with: {more}")
    elif found.next_after is not None:
        note(f"there may be more: {more}")
    return 0


def list_columns(app: App) -> list[Column]:
    return [
        Column("ID", "msg_id", "right"),
        Column("STATUS", "word"),
        Column("TRIES", lambda info: tries_of(info, app), "right"),
        Column("TOPIC", "topic", share=1),
        Column("OBJECT", "object_id", share=1),
        Column("AGE", lambda info: age_of(info, app), "right"),
        Column("WHAT", what, share=2, least=12),
    ]


def age_of(info: MessageInfo, app: App) -> str:
    """The age of a message; "-" if the table has no column for it."""
    known = info.created_at is not None or not app.tables.has("created_at")
    return age(since(info.created_at)) if known else "unknown"


def tries_of(info: MessageInfo, app: App) -> str:
    """Failed and allowed tries; for a dead message only the failed ones, taken from its row if its
    tries are not stored, or "-" if the row does not say (it was discarded)."""
    if info.ending is None:
        return f"{info.error_try_times}/{app.tables.spec.max_tries}"
    if info.ending.tries is not None:
        return f"{info.ending.tries}"
    return "-" if info.ending.how is How.DISCARDED else f"{info.error_try_times}"


def what(info: MessageInfo) -> str:
    away = since(info.available_at)
    waits = f"due in {age(-away)}" if away is not None and away <= -1 else ""
    if info.status is State.PROCESSING:
        return f"since {age(since(info.claimed_at))}, by {info.claimed_by or 'a foreign consumer'}"
    if info.status is State.DONE:
        return f"done {ago(info.finished_at)}" if info.finished_at else ""
    if info.later_times and info.later_reason is not None:
        back = f"due again in {age(-away)}, " if away is not None and waits else ""
        return f"{back}postponed {plural(info.later_times, 'time')}: {info.later_reason}"
    rejected = info.ending is not None and info.ending.how is How.REJECTED
    ended = info.ending.text if info.ending is not None and rejected else ""
    waiting = info.status in (State.NEW, State.FAILED)
    priority = f"priority {info.priority}" if info.priority and waiting else ""
    known = f"acknowledged by {info.acknowledged}" if info.acknowledged is not None else ""
    changed = f"{info.changed} {ago(info.changed.at)}" if info.changed is not None else ""
    error = f"before: {info.last_error}" if changed and info.last_error else info.last_error
    return "; ".join(part for part in (waits, priority, ended, known, changed, error) if part)


def as_dict(info: MessageInfo) -> dict[str, Any]:
    """A message for JSON, without its payload."""
    left_out = ("payload", "payload_cut", "tries", "items", "ending", "cancel")
    return {name: v for name, v in asdict(info).items() if name not in left_out}


def instant_of(text: str | None) -> datetime | None:
    """--since: an instant, or how long ago; raises ConfigError."""
    if text is None:
        return None
    found = duration_or_instant("--since", text, 50 * YEAR_SECONDS)
    return found if isinstance(found, datetime) else datetime.now(UTC) - timedelta(seconds=found)


# --- `msgworker show`: one message in full.


@click.command("show")
@click.argument("msg_id", metavar="ID")
@click.option("--all", "all_", is_flag=True, help="Every traceback in full, not only the newest.")
@click.option(
    "--items", metavar="N", type=int, default=20, help="How many items of a fan-out; default 20."
)
@options.on_table
def show(call: options.Call, msg_id: str, all_: bool, items: int) -> None:
    """Show a message with its payload, last error, failed tries and items."""
    number, app = id_of(msg_id), call.app
    info = app.ops.show(number, items=items)
    if info is None:
        raise NothingMatched(f"there is no message {number} in {app.table.name}")
    audit = of_message(app, number)
    if call.as_json:
        whole = asdict(info) | {"audit": [entry_dict(one) for one in audit]}
        print_json(whole | {"items": items_dict(info.items)})
        return
    for name, value in _lines(info, app):
        print_text(value, first=f"{name:<11} ", rest=f"{'':<11} ")
    if info.last_error is not None:
        before = "" if info.changed is None else f", of before it was {safe(str(info.changed))}"
        click.echo(f"last error{before}")
        print_block(info.last_error)
    if info.tries:
        click.echo("failed tries")
        print_table(TRY_COLUMNS, info.tries, "rest")
        print_traces(info.tries, whole=all_)
    if info.items is not None:
        print_items(info)
    if audit:
        click.echo("audit")
        for one in audit:
            print_text(line_of(one), first="  ", rest="    ")
            print_changes(one.changes, indent="    ")
    if info.payload is not None:
        part = f" (its first {PAYLOAD_SHOWN:,} characters)" if info.payload_cut else ""
        click.echo(f"payload{part}")
        print_block(pretty(info.payload))


def _took(one: Try) -> str:
    seconds = one.ran_seconds
    if seconds is None or seconds < 0:
        return "-"
    return f"{seconds:.3f} s" if seconds < 60 else age(seconds)


TRY_COLUMNS = (
    Column("NO", "number", "right"),
    Column("HOW", "kind"),
    Column("ENDED", lambda one: ago(one.ended_at), "right"),
    Column("TOOK", _took, "right"),
    Column("INSTANCE", "instance", share=1, least=12),
    Column("ERROR", "error", share=4, least=16),
)


def _lines(info: MessageInfo, app: App) -> Iterator[tuple[str, str]]:
    """What a line each says of a message: a title, and its text."""
    spec, changed, cancel = app.tables.spec, info.changed, info.cancel
    yield "message", f"{info.msg_id}"
    yield "status", _status(info, spec.max_tries)
    yield "topic", safe(info.topic)
    yield "object", "none: no order required" if info.object_id is None else safe(info.object_id)
    if info.acknowledged is not None:
        yield "known", f"acknowledged by {safe(info.acknowledged)}"
    if changed is not None:
        why = f": {safe(changed.reason)}" if changed.reason else ""
        yield "changed", f"{safe(str(changed))} {ago(changed.at)}{why}"
    if info.priority:
        yield "priority", f"{info.priority}"
    if info.scheduled_for is not None:
        yield "schedule", f"sent for {when(info.scheduled_for)}"
    if info.job_id is not None:
        yield "job", f"{info.job_id}: {command(f'jobs show {info.job_id}')}"
    if info.unique_key is not None:
        kept = ", kept until the message is purged" if info.unique_kept == 1 else ""
        yield "unique key", f"{safe(info.unique_key)}{kept}"
    if info.trace_id is not None:
        yield "trace", info.trace_id
    if info.crash_times:
        yield "crashes", f"{info.crash_times} of the tries ended with their process"
    if info.later_times:
        waits = info.later_reason is not None and info.status in (State.NEW, State.FAILED)
        back = f"due again at {when(info.available_at)}, " if info.available_at and waits else ""
        reason = "" if info.later_reason is None else f": {safe(info.later_reason)}"
        yield "later", f"{back}postponed {plural(info.later_times, 'time')}{reason}"
    if info.created_at is None and app.tables.has("created_at"):
        yield "created", "unknown"
    for name in ("created", "available", "claimed", "finished"):
        at = getattr(info, f"{name}_at")
        if at is not None and (name != "claimed" or info.status is State.PROCESSING):
            yield name, when(at)
    if info.claimed_by is not None:
        yield "claimed by", safe(info.claimed_by)
    if cancel is not None:
        who = f"{safe(cancel.actor)} {ago(cancel.requested_at)}"
        yield "cancel", f"requested by {who}: {safe(cancel.reason)}"
    for role, held in info.odd.items():
        yield "odd", f"{role} holds {safe(held)}"
    if may := acts(info, app.tables):
        force = " --force" if info.status is State.DONE else ""
        others = f", or {', '.join(may[1:])}" if may[1:] else ""
        yield "commands", f"{command(f'{may[0]} {info.msg_id}{force}')}{others}"


def _status(info: MessageInfo, max_tries: int) -> str:
    status = styled(info.word)
    if info.ending is None:
        return f"{status}, {info.error_try_times} of {max_tries} tries failed"
    how = safe(info.ending.text)
    return how.replace("dead", status, 1) if how.startswith("dead") else f"{status}, {how}"


# --- `audit`: what operators did, and the state before it.


@click.command("audit")
@click.argument("msg_id", metavar="[ID]", required=False)
@options.limited(50)
@options.on_table
def audit(call: options.Call, msg_id: str | None, limit: int) -> int:
    """List what operators did, newest first: all operations, or those that changed message ID."""
    number = None if msg_id is None else id_of(msg_id)
    found = call.app.ops.audit(number, limit=limit)
    if call.as_json:
        print_json([entry_dict(entry) for entry in found])
        return 0 if found else NOTHING_MATCHED
    if not found:
        whose = "on this table" if number is None else f"to message {number}"
        raise NothingMatched(f"nothing was done {whose}")
    if number is None:
        print_table(AUDIT_COLUMNS, found, "text")
        return 0
    for entry in found:
        print_text(line_of(entry), rest="    ")
        print_changes(entry.changes, indent="    ")
    return 0


def _what_was_done(entry: AuditEntry) -> str:
    kind = entry.kind if entry.about is None else f"{entry.kind} {entry.about}"
    return kind if entry.finished_at is not None else f"{kind} (unfinished)"


AUDIT_COLUMNS = (
    Column("OPERATION", "op_id", "right"),
    Column("WHAT", _what_was_done, share=1),
    Column("CHANGED", lambda entry: f"{entry.changed:,}", "right"),
    Column("SKIPPED", lambda entry: f"{entry.skipped:,}", "right"),
    Column("AGE", lambda entry: age(since(entry.started_at)), "right"),
    Column("ACTOR", "actor", share=1),
    Column("REASON", lambda entry: entry.reason or "", share=2),
)


def line_of(entry: AuditEntry) -> str:
    at = when(entry.changed_at or entry.started_at)
    why = f": {safe(entry.reason)}" if entry.reason else ""
    was = (
        f"{entry.was_status}, {entry.was_tries} {'try' if entry.was_tries == 1 else 'tries'} failed"
    )
    return f"{at}  {entry.kind} by {safe(entry.actor)}{why} (#{entry.op_id}; it was {was})"


def print_changes(changes: Iterable[Edited], *, indent: str = "") -> None:
    """Old and new values, a payload by the lines that differ."""
    for change in changes:
        if change.column != "payload":
            old, new = (text for _, text in diff(change))
            print_text(f"{change.column}: {safe(old)} -> {safe(new)}", first=indent, rest=indent)
            continue
        click.echo(f"{indent}payload:")
        for sign, line in diff(change):
            print_text(f"{sign} {safe(line)}", first=f"{indent}  ", rest=f"{indent}    ")


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
