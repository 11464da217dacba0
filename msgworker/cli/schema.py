"""`init-db` and `ddl`: create the tables, or print the script that creates them."""

from __future__ import annotations

from typing import Any

import click

from msgworker import dialects
from msgworker.app import table_from
from msgworker.cli.failing import Usage
from msgworker.cli.options import as_json, common, configure, flags
from msgworker.cli.output import print_json
from msgworker.cli.target import app_option, app_ref_of, import_app, open_app, target
from msgworker.cli.words import safe
from msgworker.store.tables import ddl_script


@click.command("init-db")
@target
@as_json
@common
@click.pass_context
def init_db(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """Create missing tables and indexes.

    Safe to run again, and from several hosts at once. An existing table only gets
    indexes (on MariaDB and MySQL also the hidden generated columns that they use).
    """
    app = open_app(ctx, given)
    made = app.create_schema()
    if as_json:
        print_json({"table": app.table.name, "created": made})
        return
    for name in made:
        click.echo(f"created {safe(name)}")
    if not made:
        click.echo(f"nothing to do: {safe(app.table.name)} and its indexes exist")


@click.command("ddl")
@click.option(
    "--dialect",
    required=True,
    type=click.Choice(dialects.NAMES),
    help="The database of the script.",
)
@click.option(
    "--partitions",
    type=click.IntRange(2, dialects.MOST_PARTITIONS),
    metavar="N",
    help="Divide the message table by the hash of its objects (PostgreSQL; slower).",
)
@app_option
@flags("table", "on_dead", "max_tries")
@common
@click.pass_context
def ddl(ctx: click.Context, /, dialect: str, partitions: int | None, **given: Any) -> None:
    """Print the script that creates the schema, for a DBA. Connects to nothing."""
    if partitions and (why := dialects.UNPARTITIONED.get(dialect)):
        raise Usage(f"--partitions is for PostgreSQL: {why}")
    ref = app_ref_of(given)
    conf = configure(ctx, given)
    table = table_from(conf) if ref is None else import_app(ref, ctx).table
    click.echo(ddl_script.ddl(table, dialect, partitions or 0), nl=False)
