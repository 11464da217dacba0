"""`limits`: the topics with max_running or rate, and what is used of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from msgworker import App
from msgworker.cli.failing import NothingMatched, Usage
from msgworker.cli.options import as_json, common
from msgworker.cli.output import Column, print_json, print_table
from msgworker.cli.pause import says
from msgworker.cli.target import open_app, target
from msgworker.cli.words import safe


@click.command("limits")
@click.option("--remove", metavar="TOPIC", help="Forget the limits of a topic.")
@says
@target
@as_json
@common
@click.pass_context
def limits(
    ctx: click.Context, /, remove: str | None, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """List topics with max_running or rate: what runs, who has it, when the next may start.

    Handlers declare limits; the newest start counts. --remove is for topics whose handlers declare
    none any more: an instance whose handler does records them again.
    """
    said = {"actor": given.pop("actor"), "reason": given.pop("reason")}
    app = open_app(ctx, given)
    if remove is None:
        if dry_run or any(said.values()):
            raise Usage("give the topic with --remove")
        _list(app, as_json)
        return
    done = app.ops.remove_limit(remove, dry_run=dry_run, **said)
    if not done:
        raise NothingMatched(f"topic {remove} has no limits")
    if as_json:
        told = {"operation": done.op_id, "topic": remove, "removed": True}
        print_json({**told, "dry_run": done.dry_run})
    else:
        would = "would be " if done.dry_run else ""
        click.echo(f"limits of {safe(remove)} {would}removed")


def _list(app: App, json: bool) -> None:
    found = app.ops.limits()
    if json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        click.echo("no topic has limits")
        return
    rows = []
    for one in found:
        running = (
            str(one.running) if one.max_running is None else f"{one.running}/{one.max_running}"
        )
        held = ", ".join(f"{who} ({count})" for who, count in sorted(one.holders.items()))
        rate = "" if one.rate is None else f"{one.rate} burst {one.burst}"
        tokens = "" if one.tokens is None else str(one.tokens)
        if one.tokens == 0:
            tokens = f"next in {one.next_seconds or 0.0:.3g} s"
        rows.append([one.topic, running, held, rate, tokens, one.declared_by])
    columns = [Column("TOPIC", share=1), Column("RUNNING", "right"), Column("HELD BY", share=2)]
    columns += [Column("RATE"), Column("TOKENS", "right"), Column("DECLARED BY", share=1)]
    print_table(columns, rows)
