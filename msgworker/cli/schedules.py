"""`schedules`: list them, pause, resume, delete, and send the message of one now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from msgworker.cli.options import audited, on_table, open_app, said
from msgworker.cli.output import (
    Column,
    NothingMatched,
    Usage,
    age,
    command,
    print_json,
    print_with_text,
    safe,
    since,
    when,
)
from msgworker.config import nearest
from msgworker.errors import ConfigError
from msgworker.ops.records import ScheduleInfo
from msgworker.ops.results import Repaired

ACTIONS = {
    "pause": ("pause_schedule", "paused", "is paused already"),
    "resume": ("resume_schedule", "resumed", "is not paused"),
    "run-now": ("run_now", "sent the message of", ""),
    "delete": ("delete_schedule", "deleted", ""),
}
COLUMNS = (
    Column("SCHEDULE", share=1),
    Column("SPEC", share=1),
    Column("TOPIC", share=1),
    Column("STATE", share=1),
    Column("LAST"),
    Column("NEXT TICKS (UTC)", share=2),
)
LATE_SECONDS = 60.0


@click.command("schedules")
@click.argument("action", metavar="[pause|resume|run-now|delete]", required=False)
@click.argument("name", metavar="[NAME]", required=False)
@audited
@on_table
def schedules(
    ctx: click.Context, /, action: str | None, name: str | None, as_json: bool, **given: Any
) -> None:
    """List schedules with their next five ticks; or pause, resume, delete one, or send its message
    now."""
    who = said(given)
    if action is not None and action not in ACTIONS:
        raise Usage(f"unknown action {action!r:.60}; {nearest(action, ACTIONS)}")
    if action is not None and name is None:
        raise Usage(f"name the schedule: {command(f'schedules {action} NAME')}")
    if action is None and any(who.values()):
        raise Usage(f"what is to be done? {', '.join(ACTIONS)}, and the name of a schedule")
    app = open_app(ctx, given)
    if action is None or name is None:
        _list(app.ops.schedules(), as_json)
        return
    method, word, already = ACTIONS[action]
    try:
        done: Repaired = getattr(app.ops, method)(name, **who)
    except ConfigError as error:
        if name in {one.name for one in app.ops.schedules() if one.stored}:
            raise
        raise NothingMatched(str(error)) from None
    if not done and action == "resume":  # as with topics
        raise NothingMatched(f"schedule {safe(name)} {already}")
    sent = done.sample[0].msg_id if done.sample else None
    if as_json:
        result = {"operation": done.op_id, "schedule": name, "action": action, "changed": int(done)}
        print_json(result | {"dry_run": done.dry_run, "msg_id": sent})
    elif not done:
        click.echo(f"schedule {safe(name)} {already}")
    else:
        what = "" if sent is None else f": message {sent}"
        click.echo(f"{'would have ' if done.dry_run else ''}{word} schedule {safe(name)}{what}")


def _list(found: list[ScheduleInfo], json: bool) -> None:
    if json:
        print_json([asdict(one) for one in found])
    elif not found:
        click.echo("there is no schedule")
    else:
        print_with_text(COLUMNS, [_row(one) for one in found])


def _row(one: ScheduleInfo) -> list[Any]:
    spec = one.spec if one.tz == "UTC" else f"{one.spec} ({one.tz})"
    last = "-" if one.last_at is None else age(since(one.last_at))
    ticks = [f"{tick:%Y-%m-%d %H:%M:%S}" for tick in one.next_times]
    state = "; ".join(part for part in (_state(one), _overlap(one)) if part) or "-"
    return [one.name, spec, one.topic, state, last, ", ".join(ticks)]


def _overlap(one: ScheduleInfo) -> str:
    """Such as "overlap skip: 12 skipped"; "" where ticks may overlap."""
    counts = ((one.skipped, "skipped"), (one.replaced, "replaced"))
    said = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    if one.overlap == "allow":
        return said
    return f"overlap {one.overlap}: {said}" if said else f"overlap {one.overlap}"


def _state(one: ScheduleInfo) -> str:
    """In a few words, the gravest first."""
    if one.problem is not None:
        return one.problem
    if one.paused_at is not None:
        why = f": {one.paused_reason}" if one.paused_reason else ""
        return f"paused {when(one.paused_at)} by {one.paused_by or '-'}{why}"
    if not one.stored:
        return "not started yet"
    if one.late_seconds > LATE_SECONDS:
        return f"due for {age(one.late_seconds)}: no instance fires it"
    return "not declared here" if one.declared is False else ""
