"""`db`: upgrade the tables of an earlier version, or show their version."""

from __future__ import annotations

from typing import Any

import click

from msgworker import dialects
from msgworker.cli.options import as_json, common
from msgworker.cli.output import print_json, print_text
from msgworker.cli.target import open_app, target
from msgworker.cli.words import safe, visible
from msgworker.counted import plural
from msgworker.errors import SchemaError
from msgworker.store.tables.upgrade import Plan, Step
from msgworker.table import NEWEST

LEFT = "the message table is yours: these are run with --message-table, or by its owner"


@click.command("db")
@click.argument("action", metavar="upgrade|version", type=click.Choice(("upgrade", "version")))
@click.option("--dry-run", is_flag=True, help="Change nothing; tell what would be done.")
@click.option("--sql", is_flag=True, help="Print only the statements that would run, and end.")
@click.option(
    "--message-table",
    is_flag=True,
    help="Also make the indexes of a message table with a name of its own.",
)
@target
@as_json
@common
@click.pass_context
def db(
    ctx: click.Context,
    /,
    action: str,
    dry_run: bool,
    sql: bool,
    message_table: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Upgrade the tables of an earlier version while instances work, or show their version.

    Safe to run again, also after a crash, and from several hosts at once.
    """
    app = open_app(ctx, given)
    look = dry_run or sql or action == "version"
    made: list[Step] = []

    def on_step(step: Step) -> None:
        made.append(step)
        if not as_json:
            click.echo(f"made {visible(step.makes)}")

    plan = app.upgrade_schema(dry_run=look, message_table=message_table, on_step=on_step)
    code = SchemaError.exit_code if plan.left and action == "upgrade" else 0
    if action == "version":
        _version(plan, as_json)
    elif as_json:
        steps = [_step(one) for one in (plan.steps if look else made)]
        left = [_step(one) for one in plan.left]
        versions = {"table": plan.table, "found": plan.found, "wanted": NEWEST}
        print_json({**versions, "dry_run": look, "steps": steps, "left": left, "exit_code": code})
    elif sql:
        for step in plan.steps:
            click.echo(f"-- {visible(step.makes)}: {step.waits}")
            for line in step.script.split("\n"):
                click.echo(visible(line))
        for step in plan.left:
            click.echo(f"-- left, see --message-table: {visible(step.makes)}")
    else:
        _told(plan, look, dialects.owner_rights(app.engine))
    return code


def _step(step: Step) -> dict[str, Any]:
    return {
        "version": step.version,
        "makes": step.makes,
        "statements": list(step.statements),
        "waits": step.waits,
    }


def _version(plan: Plan, as_json: bool) -> None:
    found = {"table": plan.table, "found": plan.found, "recorded": plan.recorded, "wanted": NEWEST}
    if as_json:
        print_json(found)
        return
    recorded = "not recorded" if plan.recorded is None else f"recorded: {plan.recorded}"
    click.echo(f"{safe(plan.table)}: version {plan.found} ({recorded}); this package: {NEWEST}")


def _told(plan: Plan, look: bool, rights: str) -> None:
    name = visible(plan.table)
    if look and plan.steps:
        click.echo(
            f"{name}: from version {plan.found} to {NEWEST}, {plural(len(plan.steps), 'step')}"
        )
        for step in plan.steps:
            print_text(visible(f"{step.makes}: {step.waits}"), first="  ", rest="    ")
        click.echo(f"the login needs {rights}")
    elif plan.steps and not plan.left:
        click.echo(f"{name} is now version {NEWEST}")
    elif not plan.left:
        click.echo(f"nothing to do: {name} is version {NEWEST}")
    if plan.left:
        click.echo(f"left out, {LEFT}:")
        for step in plan.left:
            for line in step.script.split("\n"):
                print_text(visible(line), first="  ", rest="    ")
