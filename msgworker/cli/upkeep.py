"""`release`, `purge`, `pause` and `resume`."""

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
    note,
    print_json,
    print_table,
    safe,
    since,
)
from msgworker.cli.rerun import (
    carry_out,
    long_work,
    operation_of,
    print_result,
    rate_of,
)
from msgworker.config import as_instant, seconds
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
    """An age or an instant; raises Usage. Its range is checked where it is used."""
    if text is None:
        return None
    found = as_instant(text, "--older-than")
    return seconds("--older-than", text) if found is None else found


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
    _print_switched(done, topic, as_json, "paused", "is paused already")
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
    _print_switched(done, topic, as_json, "resumed", "")


def _print_switched(done: Repaired, topic: str, json: bool, word: str, already: str) -> None:
    if json:  # the state after the call, also if it was so before
        print_json({"operation": done.op_id, "topic": topic, word: True, "dry_run": done.dry_run})
    elif not done:
        click.echo(f"topic {safe(topic)} {already}")
    else:
        click.echo(f"{'would be ' if done.dry_run else ''}{word} {safe(topic)}")


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
