"""`release`: give back the messages of an instance, or messages without an owner."""

from __future__ import annotations

from typing import Any

import click

from msgworker import App
from msgworker.cli.changing import carry_out, tell_result, writes
from msgworker.cli.failing import NothingMatched, Usage
from msgworker.cli.options import as_json, common
from msgworker.cli.output import note
from msgworker.cli.purge import age_or_instant
from msgworker.cli.target import open_app, target

OF_NOBODY = (
    "Give back {} without an owner, with a try counted for each? If a foreign consumer still works "
    "on one, it is handled twice."
)


@click.command("release")
@click.argument("instance", metavar="[INSTANCE]", required=False)
@click.option("--force", is_flag=True, help="Also of a live instance; waits until its lease ends.")
@click.option("--nobody", is_flag=True, help="Messages at 1 without an owner.")
@click.option("--older-than", metavar="AGE", help="With --nobody: claimed, or created, longer ago.")
@click.option("--any-age", is_flag=True, help="With --nobody: of any age, or unknown age.")
@writes
@target
@as_json
@common
@click.pass_context
def release(
    ctx: click.Context,
    /,
    instance: str | None,
    force: bool,
    nobody: bool,
    older_than: str | None,
    any_age: bool,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    reason: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Give back the messages of a dead instance, with a try counted, without waiting for recovery.

    A live instance needs --force: its lease is taken over, and its messages are given back when it
    can no longer start handlers.

    With --nobody: messages at 1 without an owner, left by a foreign consumer that no longer runs,
    or from before the table was adopted.
    """
    if nobody == (instance is not None):
        raise Usage("give the id of an instance, or --nobody")
    if nobody and force:
        raise Usage("--force is for an instance; --nobody needs no --force")
    if not nobody and (older_than is not None or any_age):
        raise Usage("--older-than and --any-age go with --nobody")
    app = open_app(ctx, given)
    write: dict[str, Any] = {"actor": actor, "reason": reason, "dry_run": dry_run, "yes": yes}
    if nobody:
        done = carry_out(
            app,
            app.ops.release_nobody,
            question=OF_NOBODY,
            always_ask=True,
            older_than=age_or_instant(older_than),
            any_age=any_age,
            **write,
        )
        if done.matched == 0:
            raise NothingMatched("no message is at 1 without an owner, or none for so long")
        return tell_result(done, word="released", verb="release", json=as_json)
    if force and not dry_run:
        note("if it is alive, its messages are given back when its lease would have ended; wait")
    assert instance is not None
    done = carry_out(
        app,
        app.ops.release,
        question="Take {} away from " + instance.replace("{", "{{").replace("}", "}}") + "?",
        always_ask=force,
        instance=instance,
        force=force,
        **write,
    )
    if done.matched == 0:
        raise NothingMatched(_nothing_of(app, instance))
    return tell_result(done, word="released", verb="release", json=as_json)


def _nothing_of(app: App, instance: str) -> str:
    known = [one.instance_id or "" for one in app.ops.instances()]
    if instance in known:
        return f"instance {instance} has claimed nothing"
    near = [one for one in known if one.startswith(instance)]
    hint = f"; did you mean {near[0]}?" if len(near) == 1 else ""
    return f"no such instance: {instance}; see `msgworker instances`{hint}"
