"""`purge`: delete old finished messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from msgworker.cli.changing import carry_out, long_work, operation_of, rate_of, tell_result, writes
from msgworker.cli.failing import Usage
from msgworker.cli.options import as_json, common
from msgworker.cli.target import open_app, target
from msgworker.config import seconds


@click.command("purge")
@click.option(
    "--older-than", metavar="TIME", help="Finished so long ago (30d), or before an instant."
)
@click.option("--topic", metavar="TEXT", help="Only this topic.")
@click.option("--dead", is_flag=True, help="Dead ones too, unless they hold their object back.")
@click.option("--archive-to", metavar="TABLE", help="Copy them there in the same transaction.")
@long_work
@writes
@target
@as_json
@common
@click.pass_context
def purge(
    ctx: click.Context,
    /,
    older_than: str | None,
    topic: str | None,
    dead: bool,
    archive_to: str | None,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    reason: str | None,
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
    app = open_app(ctx, given)
    done = carry_out(
        app,
        app.ops.purge,
        question="Delete {} permanently?" if archive_to is None else "Move {} to the archive?",
        dry_run=dry_run,
        yes=yes,
        older_than=age_or_instant(older_than),
        operation=operation,
        rate=rate,
        actor=actor,
        reason=reason,
        **asked,
    )
    return tell_result(done, word="purged", verb="purge", json=as_json)


def age_or_instant(text: str | None) -> float | datetime | None:
    """An age or an instant; raises Usage. Its range is checked where it is used."""
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return seconds("--older-than", text)
    return instant.astimezone() if instant.tzinfo is None else instant
