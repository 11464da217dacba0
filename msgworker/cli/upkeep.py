"""`release`, `purge`, `pause`, `resume` and `schedules`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from msgworker import App
from msgworker.cli import output
from msgworker.cli.options import Call, audited, on_table, writes
from msgworker.cli.rerun import carry_out, long_work, operation_of, print_act, print_result, rate_of
from msgworker.commands import command
from msgworker.config.values import duration_or_instant, nearest
from msgworker.errors import ConfigError
from msgworker.ops.records import ScheduleInfo
from msgworker.ops.results import Repaired

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
    call: Call,
    instance: str | None,
    force: bool,
    nobody: bool,
    older_than: str | None,
    any_age: bool,
) -> int:
    """Give back the messages of a dead instance, with a try counted, without waiting for recovery.

    A live instance needs --force: its lease is taken over, and its messages are given back when it
    can no longer start handlers.

    With --nobody: messages at 1 without an owner, left by a foreign consumer that no longer runs,
    or from before the table was adopted.
    """
    if nobody == (instance is not None):
        raise output.Usage("give the id of an instance, or --nobody")
    if nobody and force:
        raise output.Usage("--force is for an instance; --nobody needs no --force")
    if not nobody and (older_than is not None or any_age):
        raise output.Usage("--older-than and --any-age go with --nobody")
    app = call.app
    if instance is None:
        done = carry_out(
            app,
            app.ops.release_nobody,
            question=OF_NOBODY,
            always_ask=True,
            older_than=age_or_instant(older_than),
            any_age=any_age,
            **call.how,
        )
        nothing = "no message is at 1 without an owner, or none for so long"
    else:
        if force and not call.how["dry_run"]:
            output.note(
                "if it is alive, its messages are given back when its lease would have ended; wait"
            )
        done = carry_out(
            app,
            app.ops.release,
            question=f"Take {{}} away from {instance}?",
            always_ask=force,
            instance=instance,
            force=force,
            **call.how,
        )
        nothing = "" if done.matched else _nothing_of(app, instance)
    return print_result(
        done, word="released", verb="release", json=call.as_json, nothing=lambda: nothing
    )


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
@click.option(
    "--dead", is_flag=True, help="Dead ones too, unless an object or a job waits for them."
)
@click.option("--archive-to", metavar="TABLE", help="Copy them there in the same transaction.")
@long_work
@writes
@on_table
def purge(call: Call, older_than: str | None, **given: Any) -> int:
    """Delete done messages that finished long ago, in short transactions."""
    operation, rate = operation_of(given), rate_of(given)
    if (older_than is None) == (operation is None):
        raise output.Usage("give --older-than, such as 30d, or --operation")
    if operation is not None and any(given.values()):
        raise output.Usage("--operation continues with the original selection; give no other one")
    archives, app = given["archive_to"] is not None, call.app
    done = carry_out(
        app,
        app.ops.purge,
        question="Move {} to the archive?" if archives else "Delete {} permanently?",
        older_than=age_or_instant(older_than),
        operation=operation,
        rate=rate,
        **call.how,
        **given,
    )
    return print_result(done, word="purged", verb="purge", json=call.as_json)


def age_or_instant(text: str | None) -> float | datetime | None:
    """--older-than; raises ConfigError. Its range is checked where it is used."""
    return None if text is None else duration_or_instant("--older-than", text)


# --- `pause` and `resume`: stop handlers of a topic from starting, on every instance.


@click.command("pause")
@click.argument("topic", required=False)
@audited
@on_table
def pause(call: Call, topic: str | None) -> None:
    """Stop handlers of TOPIC from starting; without TOPIC, list paused topics.

    Instances notice at their next heartbeat. Running handlers continue to their end.
    """
    app = call.app
    if topic is None:
        if any(call.how.values()):
            raise output.Usage("give the TOPIC to pause")
        nothing = "no topic is paused"
        output.print_list(app.ops.pauses(), PAUSE_COLUMNS, as_json=call.as_json, nothing=nothing)
        return
    done = app.ops.pause(topic, **call.how)
    name, result = output.safe(topic), {"topic": topic, "paused": True}  # also if it was so before
    print_act(done, call.as_json, result, f"paused {name}", f"topic {name} is paused already")
    if app.topics is not None and topic not in app.topics and app.topics:
        output.note(f"no handler here takes topic {topic}")


PAUSE_COLUMNS = (
    output.Column("TOPIC", "topic", share=1),
    output.Column("SINCE", lambda one: output.age(output.since(one.paused_at)), "right"),
    output.Column("ACTOR", "actor", share=1),
    output.Column("REASON", "reason", share=2),
)


@click.command("resume")
@click.argument("topic")
@audited
@on_table
def resume(call: Call, topic: str) -> None:
    """Resume a paused TOPIC."""
    done = call.app.ops.resume(topic, **call.how)
    if not done:
        raise output.NothingMatched(f"topic {topic} is not paused")
    print_act(
        done, call.as_json, {"topic": topic, "resumed": True}, f"resumed {output.safe(topic)}"
    )


# --- `schedules`: list them, pause, resume, delete, and send the message of one now.

ACTIONS = {
    "pause": ("pause_schedule", "paused", "is paused already"),
    "resume": ("resume_schedule", "resumed", "is not paused"),
    "run-now": ("run_now", "sent the message of", ""),
    "delete": ("delete_schedule", "deleted", ""),
}
LATE_SECONDS = 60.0


@click.command("schedules")
@click.argument("action", metavar="[pause|resume|run-now|delete]", required=False)
@click.argument("name", metavar="[NAME]", required=False)
@audited
@on_table
def schedules(call: Call, action: str | None, name: str | None) -> None:
    """List schedules with their next five ticks; or pause, resume, delete one, or send its message
    now."""
    if action is not None and action not in ACTIONS:
        raise output.Usage(f"unknown action {action!r:.60}; {nearest(action, ACTIONS)}")
    if action is not None and name is None:
        raise output.Usage(f"name the schedule: {command(f'schedules {action} NAME')}")
    if action is None and any(call.how.values()):
        raise output.Usage(f"what is to be done? {', '.join(ACTIONS)}, and the name of a schedule")
    app = call.app
    if action is None or name is None:
        output.print_list(
            app.ops.schedules(),
            SCHEDULE_COLUMNS,
            as_json=call.as_json,
            nothing="there is no schedule",
            below="text",
        )
        return
    method, word, already = ACTIONS[action]
    try:
        done: Repaired = getattr(app.ops, method)(name, **call.how)
    except ConfigError as error:
        if name in {one.name for one in app.ops.schedules() if one.stored}:
            raise
        raise output.NothingMatched(str(error)) from None
    if not done and action == "resume":  # as with topics
        raise output.NothingMatched(f"schedule {output.safe(name)} {already}")
    sent = done.sample[0].msg_id if done.sample else None
    result = {"schedule": name, "action": action, "changed": int(done)}
    what, of = "" if sent is None else f": message {sent}", f"schedule {output.safe(name)}"
    print_act(done, call.as_json, result, f"{word} {of}{what}", f"{of} {already}", msg_id=sent)


def _spec(one: ScheduleInfo) -> str:
    return one.spec if one.tz == "UTC" else f"{one.spec} ({one.tz})"


def _overlap(one: ScheduleInfo) -> str:
    """Such as "overlap skip: 12 skipped"; "" where ticks may overlap."""
    counts = ((one.skipped, "skipped"), (one.replaced, "replaced"))
    said = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    if one.overlap == "allow":
        return said
    return f"overlap {one.overlap}: {said}" if said else f"overlap {one.overlap}"


def _problem(one: ScheduleInfo) -> str:
    """What keeps it from firing, in a few words; the gravest."""
    if one.problem is not None:
        return one.problem
    if one.paused_at is not None:
        why = f": {one.paused_reason}" if one.paused_reason else ""
        return f"paused {output.when(one.paused_at)} by {one.paused_by or '-'}{why}"
    if not one.stored:
        return "not started yet"
    if one.late_seconds > LATE_SECONDS:
        return f"due for {output.age(one.late_seconds)}: no instance fires it"
    return "not declared here" if one.declared is False else ""


def _state(one: ScheduleInfo) -> str:
    return "; ".join(part for part in (_problem(one), _overlap(one)) if part) or "-"


SCHEDULE_COLUMNS = (
    output.Column("SCHEDULE", "name", share=1),
    output.Column("SPEC", _spec, share=1),
    output.Column("TOPIC", "topic", share=1),
    output.Column("STATE", _state, share=1),
    output.Column("LAST", lambda one: output.age(output.since(one.last_at))),
    output.Column(
        "NEXT TICKS (UTC)",
        lambda one: ", ".join(f"{tick:%Y-%m-%d %H:%M:%S}" for tick in one.next_times),
        share=2,
    ),
)
