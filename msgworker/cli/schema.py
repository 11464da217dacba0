"""`init-db`, `ddl`, `db` and `doctor`: create, upgrade and check the tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from msgworker.app import table_from
from msgworker.cli.options import Call, app_option, common, flags, on_table
from msgworker.cli.output import Usage, note, print_json, print_script, print_text, safe, visible
from msgworker.counted import plural
from msgworker.db.database import DATABASES, MOST_PARTITIONS, NAMES, of
from msgworker.db.errors import masked
from msgworker.doctor import Finding, Severity
from msgworker.errors import SchemaError
from msgworker.schema import apply
from msgworker.schema.apply import Plan, Step
from msgworker.table.build import NEWEST

# --- `init-db` and `ddl`: create the tables, or print the script that creates them.


@click.command("init-db")
@on_table
def init_db(call: Call) -> None:
    """Create missing tables and indexes.

    Safe to run again, and from several hosts at once. An existing table only gets
    indexes (on MariaDB and MySQL also the hidden generated columns that they use).
    """
    app = call.app
    made = app.create_schema()
    if call.as_json:
        print_json({"table": app.table.name, "created": made})
        return
    for name in made:
        click.echo(f"created {safe(name)}")
    if not made:
        named = safe(app.table.name)
        click.echo(f"nothing to do: {named} and its indexes exist; msgworker doctor checks them")


@click.command("ddl")
@click.option(
    "--dialect", required=True, type=click.Choice(NAMES), help="The database of the script."
)
@click.option(
    "--partitions",
    type=click.IntRange(2, MOST_PARTITIONS),
    metavar="N",
    help="Divide the message table by the hash of its objects (PostgreSQL; slower).",
)
@app_option
@flags("table", "where", "on_dead", "max_tries")
@common
def ddl(call: Call, dialect: str, partitions: int | None) -> None:
    """Print the script that creates the schema, for a DBA. Connects to nothing."""
    if partitions and (why := DATABASES[dialect].unpartitioned):
        raise Usage(f"--partitions is for PostgreSQL: {why}")
    table = table_from(call.conf) if call.app_ref is None else call.app.table
    print_script(apply.ddl(table, dialect, partitions or 0).removesuffix("\n"))


# --- `db`: upgrade the tables of an earlier version, or show their version.

LEFT = "the message table is yours: these are run with --message-table, or by its owner"


@click.command("db")
@click.argument("action", metavar="upgrade|version", type=click.Choice(("upgrade", "version")))
@click.option("--dry-run", is_flag=True, help="Change nothing; print what would be done.")
@click.option("--sql", is_flag=True, help="Print only the statements that would run, and end.")
@click.option(
    "--message-table",
    is_flag=True,
    help="Also make the indexes of a message table with a name of its own.",
)
@on_table
def db(call: Call, action: str, sql: bool, message_table: bool) -> int:
    """Upgrade the tables of an earlier version while instances work, or show their version.

    Safe to run again, also after a crash, and from several hosts at once.
    """
    app, as_json = call.app, call.as_json
    look = call.how["dry_run"] or sql or action == "version"
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
        parts = (f"-- {visible(one.makes)}: {one.waits}\n{one.script}" for one in plan.steps)
        print_script("\n".join(parts))
        for step in plan.left:
            click.echo(f"-- left, see --message-table: {visible(step.makes)}")
    else:
        _print_plan(plan, look, of(app.engine).owner_rights)
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


def _print_plan(plan: Plan, look: bool, rights: str) -> None:
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


# --- `doctor`: what is missing, and the SQL that fixes it.

WORDS = {Severity.NEEDED: "needed", Severity.ADVISED: "advised", Severity.FINE: "ok"}
COLOURS = {Severity.NEEDED: "red", Severity.ADVISED: "yellow", Severity.FINE: "green"}


@click.command("doctor")
@click.option("--sql", is_flag=True, help="Print only the statements that are needed.")
@click.option("--advised", is_flag=True, help="With --sql: also those that are advised.")
@click.option("--plan", is_flag=True, help="Show the plan of the claim's query in full.")
@on_table
def doctor(call: Call, sql: bool, advised: bool, plan: bool) -> int:
    """Compare the live table, indexes, rights and server with what is needed; change nothing."""
    if advised and not sql:
        raise Usage("--advised says what --sql prints: give both")
    app = call.app
    found = app.ops.doctor()
    needed = [one for one in found if one.severity is Severity.NEEDED]
    code = SchemaError.exit_code if needed else 0
    if call.as_json:
        findings = [asdict(one) | {"mend": one.fix} for one in found]  # its name until 1.0
        print_json({"findings": findings, "exit_code": code})
        return code
    if sql:
        printed = (Severity.NEEDED, Severity.ADVISED) if advised else (Severity.NEEDED,)
        fixes = (f"{s};" for one in found if one.severity in printed for s in one.fix)
        print_script("\n".join(dict.fromkeys(fixes)))  # one statement may fix several
        for one in needed:
            if not one.fix:
                note(f"no statement fixes this: {one.text}")
        return code
    advice = [one for one in found if one.severity is Severity.ADVISED]
    click.echo(f"{masked(app.engine.url)}, table {visible(app.table.name)}")
    text = f"{plural(len(needed), 'finding')} to fix{_printed_by(needed, '--sql')}"
    click.echo(f"{text}, {len(advice)} advised{_printed_by(advice, '--sql --advised')}\n")
    for one in found:
        _print(one, plan)
    return code


def _printed_by(found: list[Finding], options: str) -> str:
    return f" (statements: {options})" if any(one.fix for one in found) else ""


def _print(one: Finding, plan: bool) -> None:
    word = click.style(f"{WORDS[one.severity]:<8}", fg=COLOURS[one.severity])
    margin = f"{'':<17} "
    print_text(visible(one.text), first=f"{word} {one.check:<8} ", rest=margin)
    if plan and one.detail:
        for line in one.detail.split("\n"):
            print_text(visible(line), first=margin, rest=f"{margin}  ")
