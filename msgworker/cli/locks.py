"""`locks`: list locks, and take one away from its holder."""

from __future__ import annotations

from typing import Any

import click

from msgworker import App
from msgworker.cli.group import Invocation
from msgworker.cli.options import (
    app_from,
    app_ref_of,
    as_json,
    common,
    configure,
    flags,
    import_app,
    target,
)
from msgworker.cli.output import Column, NothingMatched, Usage, age, print_json, print_table, safe
from msgworker.coordination.centres import DATABASE, open_centre, secrets_of_centre


@click.command("locks")
@click.option("--prefix", metavar="TEXT", default="", help="Only names with this prefix.")
@click.option("--release", "name", metavar="NAME", help="Take this lock away from its holder.")
@click.option("--force", is_flag=True, help="With --release: even if its lease is live.")
@click.option("--actor", metavar="TEXT", help="Who; default: user and host.")
@click.option("--reason", metavar="TEXT", help="Why, for the audit.")
@click.option("--dry-run", is_flag=True, help="With --release: change nothing.")
@flags("locks")
@target
@as_json
@common
@click.pass_context
def locks(
    ctx: click.Context,
    /,
    prefix: str,
    name: str | None,
    force: bool,
    actor: str | None,
    reason: str | None,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """List locks: holder, token, since when and for how long.

    With --release NAME: free a lock at once. Its holder notices at its next renewal.
    """
    if name is None and (force or dry_run or actor or reason):
        raise Usage("--force, --dry-run, --actor and --reason go with --release NAME")
    if name is not None and prefix:
        raise Usage("give --prefix or --release, not both")
    ref = app_ref_of(given)
    conf = configure(ctx, given)
    call = ctx.find_object(Invocation)
    if call is not None:
        call.secrets |= secrets_of_centre(conf.locks)
    app: App | None = None
    if name is not None or conf.locks == DATABASE or ref is not None:
        app = app_from(conf, ctx) if ref is None else import_app(ref, ctx)
    if app is None:
        centre = open_centre(conf.locks, None)
    else:
        centre = open_centre(conf.locks, app.engine, schema=app.table.schema)
    try:
        if name is None:
            _list([_dict(one) for one in centre.held(prefix)], as_json)
            return
        assert app is not None
        done = app.ops.release_lock(
            name, centre=centre, force=force, dry_run=dry_run, actor=actor, reason=reason
        )
    finally:
        centre.close()
    if not done:
        raise NothingMatched(f"lock {name} is not held" + (" any more" if done.matched else ""))
    if as_json:
        print_json(
            {"operation": done.op_id, "lock": name, "released": True, "dry_run": done.dry_run}
        )
    else:
        click.echo(f"{'would be ' if done.dry_run else ''}released {safe(name)}")


def _dict(one: Any) -> dict[str, Any]:
    return {
        "lock": one.name,
        "owner": one.owner,
        "token": one.token,
        "held_seconds": round(one.age, 3),
        "left_seconds": round(one.ttl, 3),
    }


def _list(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif not found:
        click.echo("no lock is held")
    else:
        columns = [
            Column("LOCK", share=2, least=12),
            Column("OWNER", share=2, least=12),
            Column("TOKEN", "right"),
            Column("HELD", "right"),
            Column("LEFT", "right"),
        ]
        rows = [
            [o["lock"], o["owner"], o["token"], age(o["held_seconds"]), age(o["left_seconds"])]
            for o in found
        ]
        print_table(columns, rows)
