"""`rerun`: what people may change. Counted first, asked about, then done."""

from __future__ import annotations

from typing import Any

import click

from msgworker import App
from msgworker.cli.failing import NOTHING_MATCHED, NothingMatched, Usage
from msgworker.cli.look import message_id
from msgworker.cli.options import as_json, common
from msgworker.cli.output import confirm, note, plural, print_json
from msgworker.cli.target import open_app, target

REFUSALS_SHOWN = 20
WHY = {
    "new": "is new: it waits for its turn already",
    "processing": "is running",
    "done": "is done; --force runs it again",
}


@click.command("rerun")
@click.argument("ids", nargs=-1, metavar="ID...")
@click.option("--dead", is_flag=True, help="All dead messages.")
@click.option("--topic", metavar="TEXT", help="With --dead: only of this topic.")
@click.option("--force", is_flag=True, help="By id: messages that are done, too.")
@click.option("--dry-run", is_flag=True, help="Say how many it would be; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before more than one message is changed.")
@target
@as_json
@common
@click.pass_context
def rerun(
    ctx: click.Context,
    /,
    ids: tuple[str, ...],
    dead: bool,
    topic: str | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Try failed and dead messages again, with no tries counted.

    By id, or all dead ones. New and running messages are left alone.
    """
    numbers = list(dict.fromkeys(message_id(text) for text in ids))
    _check(numbers, dead, topic, force)
    app = open_app(ctx, given)
    chosen = {"ids": numbers, "force": force} if numbers else {"topic": topic}
    many = app.ops.rerun(**chosen, dry_run=True)
    refused = _refusals(app, numbers, force) if len(numbers) > many else []
    if not dry_run and many > 1:
        confirm(f"Set {plural(many, 'message')} of {app.table.name} to new?", yes=yes)
    done = app.ops.rerun(**chosen) if many and not dry_run else 0
    if as_json:
        print_json({"matched": many, "rerun": done, "dry_run": dry_run})
    else:
        click.echo(f"would rerun {plural(many, 'message')}" if dry_run else f"rerun {done:,}")
    for line in refused:
        note(line)
    if many == 0 and not refused:
        where = f" in topic {topic}" if topic else ""
        raise NothingMatched(f"no message of {app.table.name} is dead{where}")
    return 0 if many >= len(numbers) else NOTHING_MATCHED


def _check(ids: list[int], dead: bool, topic: str | None, force: bool) -> None:
    if bool(ids) == dead:
        raise Usage("give ids, or --dead for all dead messages (of a --topic)")
    if ids and topic is not None:
        raise Usage("--topic goes with --dead, not with ids")
    if dead and force:
        raise Usage("--force goes with ids, not with --dead")


def _refusals(app: App, ids: list[int], force: bool) -> list[str]:
    """Why some of the ids were left alone; the first few of them."""
    lines: list[str] = []
    for number in ids:
        if len(lines) == REFUSALS_SHOWN:
            lines.append("... and more")
            break
        info = app.ops.show(number)
        if info is None:
            lines.append(f"message {number} is not there")
        elif info.status in WHY and not (force and info.status == "done"):
            lines.append(f"message {number} {WHY[info.status]}")
    return lines
