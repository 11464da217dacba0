"""`doctor`: what is missing, and the SQL that fixes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from msgworker import dialects
from msgworker.cli.options import as_json, common
from msgworker.cli.output import print_json, print_text, styled_as, to_terminal
from msgworker.cli.target import open_app, target
from msgworker.cli.words import visible
from msgworker.counted import plural
from msgworker.errors import SchemaError
from msgworker.store.looking.doctor import Finding, Severity

WORDS = {Severity.NEEDED: "needed", Severity.ADVISED: "advised", Severity.FINE: "ok"}
COLOURS = {Severity.NEEDED: "red", Severity.ADVISED: "yellow", Severity.FINE: "green"}


@click.command("doctor")
@click.option("--sql", is_flag=True, help="Print only the statements that are needed.")
@click.option("--plan", is_flag=True, help="Show the plan of the claim's query in full.")
@target
@as_json
@common
@click.pass_context
def doctor(ctx: click.Context, /, as_json: bool, sql: bool, plan: bool, **given: Any) -> int:
    """Compare the live table, indexes, rights and server with what is needed; change nothing."""
    app = open_app(ctx, given)
    found = app.ops.doctor()
    needed = [one for one in found if one.severity is Severity.NEEDED]
    code = SchemaError.exit_code if needed else 0
    if as_json:
        print_json({"findings": [asdict(one) for one in found], "exit_code": code})
        return code
    if sql:
        for statement in (s for one in needed for s in one.mend):
            click.echo(f"{visible(statement)};")
        for one in needed:
            if not one.mend:
                click.echo(f"no statement fixes this: {visible(one.text)}", err=True)
        return code
    click.echo(f"{dialects.masked(app.engine.url)}, table {visible(app.table.name)}\n")
    for one in found:
        _print(one, plan)
    advised = sum(one.severity is Severity.ADVISED for one in found)
    click.echo(f"\n{plural(len(needed), 'finding')} to fix, {advised} advised")
    if needed and to_terminal():
        click.echo("`msgworker doctor --sql` prints only the statements; read them first", err=True)
    return code


def _print(one: Finding, plan: bool) -> None:
    word = styled_as(f"{WORDS[one.severity]:<8}", COLOURS[one.severity])
    margin = f"{'':<17} "
    print_text(visible(one.text), first=f"{word} {one.check:<8} ", rest=margin)
    for statement in one.mend:
        print_text(f"{visible(statement)};", first=margin, rest=f"{margin}  ")
    if plan and one.detail:
        for line in one.detail.split("\n"):
            print_text(visible(line), first=margin, rest=f"{margin}  ")
