"""`rerun`, `discard` and `cancel`: count, ask for confirmation, then change."""

from __future__ import annotations

from typing import Any

import click

from msgworker.cli.changing import (
    carry_out,
    choice_of,
    chooses,
    long_work,
    nothing_of,
    tell_result,
    writes,
)
from msgworker.cli.failing import Usage
from msgworker.cli.options import as_json, common
from msgworker.cli.target import open_app, target


@click.command("rerun")
@chooses
@click.option("--dead", is_flag=True, help="All dead messages: --status dead.")
@click.option("--force", is_flag=True, help="Also done ones, and ones that run out of order.")
@click.option(
    "--with-successors",
    is_flag=True,
    help="Also failed and dead ones behind them, in order; done ones stay done.",
)
@click.option(
    "--also-done", is_flag=True, help="With --with-successors: also done ones behind them."
)
@long_work
@writes
@target
@as_json
@common
@click.pass_context
def rerun(
    ctx: click.Context,
    /,
    dead: bool,
    force: bool,
    with_successors: bool,
    also_done: bool,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    reason: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Try failed and dead messages again, with their tries set to 0.

    By id, or by filter: dead ones, if no --status is given. New and running messages are skipped.
    So is a message if a later one of its object has run: see --force and
    --with-successors. Done messages run again only with --force or --also-done: their handlers
    then find what they wrote before.
    """
    if dead and given["status"] not in (None, "dead"):
        raise Usage("--dead means --status dead; give one of them")
    if dead:
        given["status"] = "dead"
    chosen = choice_of(given)
    app = open_app(ctx, given)
    done = carry_out(
        app,
        app.ops.rerun,
        question="Set {} to new?",
        dry_run=dry_run,
        yes=yes,
        force=force,
        with_successors=with_successors,
        also_done=also_done,
        actor=actor,
        reason=reason,
        **chosen,
    )
    named = len(chosen["ids"] or ())
    return tell_result(
        done,
        word="rerun",
        verb="rerun",
        json=as_json,
        named=named,
        nothing=lambda: nothing_of(app, chosen),
    )


@click.command("discard")
@chooses
@long_work
@writes
@target
@as_json
@common
@click.pass_context
def discard(
    ctx: click.Context,
    /,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    reason: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Give up messages: dead, with the --reason as their last error; their object continues.

    By id, or by filter: unfinished ones, if no --status is given. Running ones are skipped:
    see `release`. A discarded message can be rerun by its id.
    """
    chosen = choice_of(given)
    if not dry_run and chosen["operation"] is None and not (reason or "").strip():
        raise Usage("--reason is required; it is kept in the audit")
    app = open_app(ctx, given)
    done = carry_out(
        app,
        app.ops.discard,
        question="Give up {}?",
        dry_run=dry_run,
        yes=yes,
        actor=actor,
        reason=reason,
        **chosen,
    )
    named = len(chosen["ids"] or ())
    return tell_result(
        done,
        word="discarded",
        verb="discard",
        json=as_json,
        named=named,
        nothing=lambda: nothing_of(app, chosen),
    )


@click.command("cancel")
@chooses
@long_work
@writes
@target
@as_json
@common
@click.pass_context
def cancel(
    ctx: click.Context,
    /,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    reason: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Cancel messages: dead, with the --reason as their last error; their object continues.

    By id, or by filter: new, failed and running ones, if no --status is given. For a running one a
    request is recorded, which its instance sees within a heartbeat: its handler sees ctx.cancelled,
    and the message is dead when the handler raises or returns.
    """
    chosen = choice_of(given)
    if not dry_run and chosen["operation"] is None and not (reason or "").strip():
        raise Usage("--reason is required; it is kept in the audit")
    app = open_app(ctx, given)
    done = carry_out(
        app,
        app.ops.cancel,
        question="Cancel {}?",
        dry_run=dry_run,
        yes=yes,
        actor=actor,
        reason=reason,
        **chosen,
    )
    named = len(chosen["ids"] or ())
    return tell_result(
        done,
        word="cancelled",
        verb="cancel",
        json=as_json,
        named=named,
        nothing=lambda: nothing_of(app, chosen),
    )
