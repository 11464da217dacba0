"""`release`, `purge`, `pause`, `resume` and `schedules`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from msgworker import App
from msgworker.cli.options import audited, on_table, open_app, said, writes
from msgworker.cli.output import (
    Column,
    NothingMatched,
    Usage,
    age,
    command,
    note,
    print_json,
    print_table,
    print_with_text,
    safe,
    since,
    when,
)
from msgworker.cli.rerun import carry_out, long_work, operation_of, print_act, print_result, rate_of
from msgworker.config.values import duration_or_instant, nearest
from msgworker.errors import ConfigError
from msgworker.ops.call import Repaired
from msgworker.ops.records import ScheduleInfo

# --- `release`: give back the messages of an instance, or messages without an owner.

OF_NOBODY = (
    "Give back {} without an owner, with a try counted for each? If a foreign consumer still works "
    "on one, it is handled twice."
)


@click.command("release")
@click.argument("instance", metavar="[INSTANCE]", required=False)
@click.option("--force", is_flag=True, help="Also of a live instance; waits until its lease ends.")
@click.option("--nobody", is_flag=True, help="Messages at 1 without an owner.")
@click.option("--older-than", metavar="AGE", help="With --nobody: claimed, or created, longer ago.")
@click.option("--any-age", is_flag=True, help="With --nobody: of any age, or unknown age.")
@writes
@on_table
def release(
    ctx: click.Context,
    /,
    instance: str | None,
    force: bool,
    nobody: bool,
    older_than: str | None,
    any_age: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Give back the messages of a dead instance, with a try counted, without waiting for recovery.

    A live instance needs --force: its lease is taken over, and its messages are given back when it
    can no longer start handlers.

    With --nobody: messages at 1 without an owner, left by a foreign consumer that no longer runs,
    or from before the table was adopted.
    """
    if nobody == (instance is not None):
        raise Usage("give the id of an instance, or --nobody")
    if nobody and force:
        raise Usage("--force is for an instance; --nobody needs no --force")
    if not nobody and (older_than is not None or any_age):
        raise Usage("--older-than and --any-age go with --nobody")
    how, app = said(given), open_app(ctx, given)
    if nobody:
        done = carry_out(
            app,
            app.ops.release_nobody,
            question=OF_NOBODY,
            always_ask=True,
            older_than=age_or_instant(older_than),
            any_age=any_age,
            **how,
        )
        if done.matched == 0:
            raise NothingMatched("no message is at 1 without an owner, or none for so long")
        return print_result(done, word="released", verb="release", json=as_json)
    if force and not how["dry_run"]:
        note("if it is alive, its messages are given back when its lease would have ended; wait")
    assert instance is not None
    done = carry_out(
        app,
        app.ops.release,
        question="Take {} away from " + instance.replace("{", "{{").replace("}", "}}") + "?",
        always_ask=force,
        instance=instance,
        force=force,
        **how,
    )
    if done.matched == 0:
        raise NothingMatched(_nothing_of(app, instance))
    return print_result(done, word="released", verb="release", json=as_json)


def _nothing_of(app: App, instance: str) -> str:
    known = [one.instance_id or "" for one in app.ops.instances()]
    if instance in known:
        return f"instance {instance} has claimed nothing"
    near = [one for one in known if one.startswith(instance)]
    hint = f"; did you mean {near[0]}?" if len(near) == 1 else ""
    return f"no such instance: {instance}; see `msgworker instances`{hint}"


# --- `purge`: delete old finished messages.


@click.command("purge")
@click.option(
    "--older-than", metavar="TIME", help="Finished so long ago (30d), or before an instant."
)
@click.option("--topic", metavar="TEXT", help="Only this topic.")
@click.option("--dead", is_flag=True, help="Dead ones too, unless they hold their object back.")
@click.option("--archive-to", metavar="TABLE", help="Copy them there in the same transaction.")
@long_work
@writes
@on_table
def purge(
    ctx: click.Context,
    /,
    older_than: str | None,
    topic: str | None,
    dead: bool,
    archive_to: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Delete done messages that finished long ago, in short transactions."""
    operation, rate = operation_of(given), rate_of(given)
    if (older_than is None) == (operation is None):
        raise Usage("give --older-than, such as 30d, or --operation")
    asked: dict[str, Any] = {"topic": topic, "dead": dead, "archive_to": archive_to}
    if operation is not None and any(asked.values()):
        raise Usage("--operation continues with the original selection; give no other one")
    how, app = said(given), open_app(ctx, given)
    done = carry_out(
        app,
        app.ops.purge,
        question="Delete {} permanently?" if archive_to is None else "Move {} to the archive?",
        older_than=age_or_instant(older_than),
        operation=operation,
        rate=rate,
        **how,
        **asked,
    )
    return print_result(done, word="purged", verb="purge", json=as_json)


def age_or_instant(text: str | None) -> float | datetime | None:
    """--older-than; raises ConfigError. Its range is checked where it is used."""
    return None if text is None else duration_or_instant("--older-than", text)


# --- `pause` and `resume`: stop handlers of a topic from starting, on every instance.


@click.command("pause")
@click.argument("topic", required=False)
@audited
@on_table
def pause(ctx: click.Context, /, topic: str | None, as_json: bool, **given: Any) -> None:
    """Stop handlers of TOPIC from starting; without TOPIC, list paused topics.

    Instances notice at their next heartbeat. Running handlers continue to their end.
    """
    who = said(given)
    app = open_app(ctx, given)
    if topic is None:
        if any(who.values()):
            raise Usage("give the TOPIC to pause")
        _list(app, as_json)
        return
    done = app.ops.pause(topic, **who)
    name, result = safe(topic), {"topic": topic, "paused": True}  # also if it was so before
    print_act(done, as_json, result, f"paused {name}", f"topic {name} is paused already")
    if app.topics is not None and topic not in app.topics and app.topics:
        note(f"no handler here takes topic {topic}")


@click.command("resume")
@click.argument("topic")
@audited
@on_table
def resume(ctx: click.Context, /, topic: str, as_json: bool, **given: Any) -> None:
    """Resume a paused TOPIC."""
    who = said(given)
    done = open_app(ctx, given).ops.resume(topic, **who)
    if not done:
        raise NothingMatched(f"topic {topic} is not paused")
    print_act(done, as_json, {"topic": topic, "resumed": True}, f"resumed {safe(topic)}")


def _list(app: App, json: bool) -> None:
    found = app.ops.pauses()
    if json:
        print_json([asdict(one) for one in found])
    elif not found:
        click.echo("no topic is paused")
    else:
        columns = [Column("TOPIC", share=1), Column("SINCE", "right"), Column("ACTOR", share=1)]
        rows = [[p.topic, age(since(p.paused_at)), p.actor, p.reason] for p in found]
        print_table([*columns, Column("REASON", share=2)], rows)


# --- `schedules`: list them, pause, resume, delete, and send the message of one now.

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
        _list_schedules(app.ops.schedules(), as_json)
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
    result = {"schedule": name, "action": action, "changed": int(done)}
    what, of = "" if sent is None else f": message {sent}", f"schedule {safe(name)}"
    print_act(done, as_json, result, f"{word} {of}{what}", f"{of} {already}", msg_id=sent)


def _list_schedules(found: list[ScheduleInfo], json: bool) -> None:
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
