"""`pause` and `resume`: stop handlers of a topic from starting, on every instance."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from msgworker import App
from msgworker.cli.failing import NothingMatched, Usage
from msgworker.cli.options import as_json, common
from msgworker.cli.output import Column, note, print_json, print_table
from msgworker.cli.target import open_app, target
from msgworker.cli.words import age, safe, since
from msgworker.ops.results import Repaired


def says(fn: Any) -> Any:
    fn = click.option("--actor", metavar="TEXT", help="Who; default: user and host.")(fn)
    fn = click.option("--reason", metavar="TEXT", help="Why, for the audit.")(fn)
    return click.option("--dry-run", is_flag=True, help="Change nothing.")(fn)


@click.command("pause")
@click.argument("topic", required=False)
@says
@target
@as_json
@common
@click.pass_context
def pause(
    ctx: click.Context, /, topic: str | None, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Stop handlers of TOPIC from starting; without TOPIC, list paused topics.

    Instances notice at their next heartbeat. Running handlers continue to their end.
    """
    said = {"actor": given.pop("actor"), "reason": given.pop("reason")}
    app = open_app(ctx, given)
    if topic is None:
        if dry_run or any(said.values()):
            raise Usage("give the TOPIC to pause")
        _list(app, as_json)
        return
    done = app.ops.pause(topic, dry_run=dry_run, **said)
    _tell(done, topic, as_json, "paused", "is paused already")
    if app.topics is not None and topic not in app.topics and app.topics:
        note(f"no handler here takes topic {topic}")


@click.command("resume")
@click.argument("topic")
@says
@target
@as_json
@common
@click.pass_context
def resume(ctx: click.Context, /, topic: str, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Resume a paused TOPIC."""
    said = {"actor": given.pop("actor"), "reason": given.pop("reason")}
    app = open_app(ctx, given)
    done = app.ops.resume(topic, dry_run=dry_run, **said)
    if not done:
        raise NothingMatched(f"topic {topic} is not paused")
    _tell(done, topic, as_json, "resumed", "")


def _tell(done: Repaired, topic: str, json: bool, word: str, already: str) -> None:
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
