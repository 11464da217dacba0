"""`release`: take what an instance has in hand away from it."""

from __future__ import annotations

from typing import Any

import click

from msgworker.cli.changing import carry_out, tell_result, writes
from msgworker.cli.failing import NothingMatched
from msgworker.cli.options import as_json, common
from msgworker.cli.output import note
from msgworker.cli.target import open_app, target


@click.command("release")
@click.argument("instance", metavar="INSTANCE")
@click.option(
    "--force", is_flag=True, help="Of an instance that lives, too; takes its lease's time."
)
@writes
@target
@as_json
@common
@click.pass_context
def release(
    ctx: click.Context,
    /,
    instance: str,
    force: bool,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    reason: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Give back what a dead instance has in hand, with a try counted, without waiting for recovery.

    A living one only with --force: its lease is taken over, and its messages are given back when it
    can start no handler any more.
    """
    app = open_app(ctx, given)
    if force and not dry_run:
        note("if it lives, its messages are given back when its lease would have ended; wait")
    done = carry_out(
        app,
        app.ops.release,
        question="Take {} away from " + instance.replace("{", "{{").replace("}", "}}") + "?",
        dry_run=dry_run,
        yes=yes,
        always_ask=force,
        instance=instance,
        force=force,
        actor=actor,
        reason=reason,
    )
    if done.matched == 0:
        raise NothingMatched(f"instance {instance} has nothing in hand")
    return tell_result(done, word="released", verb="release", json=as_json)
