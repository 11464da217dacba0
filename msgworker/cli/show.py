"""`msgworker show`: one message in full."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from msgworker import App
from msgworker.cli.audit import entry_dict, line_of, of_message
from msgworker.cli.failing import NothingMatched
from msgworker.cli.options import as_json, common, message_id
from msgworker.cli.output import (
    Column,
    print_block,
    print_json,
    print_text,
    print_with_text,
    styled,
)
from msgworker.cli.target import open_app, target
from msgworker.cli.words import age, ago, safe, when
from msgworker.counted import plural
from msgworker.message import State
from msgworker.store.looking.info import MessageInfo
from msgworker.store.settling.tries import Try

PAYLOAD_SHOWN = 10_000


@click.command("show")
@click.argument("msg_id", metavar="ID")
@click.option("--all", "all_", is_flag=True, help="Every traceback in full, not only the newest.")
@click.option(
    "--items",
    metavar="N",
    type=int,
    default=20,
    help="How many items of a fan-out; default 20.",
)
@target
@as_json
@common
@click.pass_context
def show(
    ctx: click.Context, /, msg_id: str, all_: bool, items: int, as_json: bool, **given: Any
) -> None:
    """Show a message with its payload, last error, failed tries and items."""
    number = message_id(msg_id)
    app = open_app(ctx, given)
    info = app.ops.show(number, items=items)
    if info is None:
        raise NothingMatched(f"there is no message {number} in {app.table.name}")
    from msgworker.cli.within import items_dict, print_items, print_traces

    cut = info.payload is not None and len(info.payload) >= PAYLOAD_SHOWN
    audit = of_message(app, number)
    if as_json:
        whole = asdict(info) | {"payload_cut": cut, "audit": [entry_dict(one) for one in audit]}
        print_json(whole | {"items": items_dict(info.items)})
        return
    for name, value in _lines(info, app):
        print_text(value, first=f"{name:<11} ", rest=f"{'':<11} ")
    if info.last_error is not None:
        click.echo("last error")
        print_block(info.last_error)
    if info.tries:
        click.echo("failed tries")
        print_with_text(TRY_COLUMNS, [_try_row(one) for one in info.tries], whole=True)
        print_traces(info.tries, whole=all_)
    if info.items is not None:
        print_items(info)
    if audit:
        click.echo("audit")
        for one in audit:
            print_text(line_of(one), first="  ", rest="    ")
    if info.payload is not None:
        click.echo(f"payload (its first {PAYLOAD_SHOWN:,} characters)" if cut else "payload")
        print_block(_pretty(info.payload))


TRY_COLUMNS = (
    Column("NO", "right"),
    Column("HOW"),
    Column("ENDED", "right"),
    Column("TOOK", "right"),
    Column("INSTANCE", share=1, least=12),
    Column("ERROR", share=4, least=16),
)


def _try_row(one: Try) -> list[Any]:
    took = None if one.started_at is None else (one.ended_at - one.started_at).total_seconds()
    return [one.number, one.kind, ago(one.ended_at), _took(took), one.instance, one.error]


def _took(seconds_: float | None) -> str:
    if seconds_ is None or seconds_ < 0:
        return "-"
    return f"{seconds_:.3f} s" if seconds_ < 60 else age(seconds_)


def _lines(info: MessageInfo, app: App) -> list[tuple[str, str]]:
    tries = f"{info.error_try_times} of {app.tables.spec.max_tries} tries failed"
    state = f"{styled(info.status)}, {tries}"
    if info.ending is not None:
        how = safe(info.ending.text)
        dead = styled(info.status)
        state = how.replace("dead", dead, 1) if how.startswith("dead") else f"{dead}, {how}"
    lines = [
        ("message", f"{info.msg_id}"),
        ("status", state),
        ("topic", safe(info.topic)),
        ("object", "none: no order required" if info.object_id is None else safe(info.object_id)),
    ]
    if info.priority:
        lines.append(("priority", f"{info.priority}"))
    if info.scheduled_for is not None:
        lines.append(("schedule", f"sent for {when(info.scheduled_for)}"))
    if info.unique_key is not None:
        kept = ", kept until the message is purged" if info.unique_kept == 1 else ""
        lines.append(("unique key", f"{safe(info.unique_key)}{kept}"))
    if info.trace_id is not None:
        lines.append(("trace", info.trace_id))
    if info.crash_times:
        lines.append(("crashes", f"{info.crash_times} of the tries ended with their process"))
    if info.later_times:
        lines.append(("later", _later(info)))
    times = {
        "created": info.created_at,
        "available": info.available_at,
        "claimed": info.claimed_at if info.status is State.PROCESSING else None,
        "finished": info.finished_at,
    }
    if info.created_at is None and app.tables.has("created_at"):
        lines.append(("created", "unknown"))
    lines += [(name, when(instant)) for name, instant in times.items() if instant is not None]
    if info.claimed_by is not None:
        lines.append(("claimed by", safe(info.claimed_by)))
    if info.cancel is not None:
        by, at = safe(info.cancel.actor), ago(info.cancel.requested_at)
        lines.append(("cancel", f"requested by {by} {at}: {safe(info.cancel.reason)}"))
    lines += [("odd", f"{role} holds {safe(held)}") for role, held in info.odd.items()]
    return lines


def _later(info: MessageInfo) -> str:
    """Its postponements by RetryLater."""
    at, why = info.available_at, info.later_reason
    waits = at is not None and why is not None and info.status in (State.NEW, State.FAILED)
    back = f"due again at {when(at)}, " if at is not None and waits else ""
    reason = "" if why is None else f": {safe(why)}"
    return f"{back}postponed {plural(info.later_times or 0, 'time')}{reason}"


def _pretty(payload: str) -> str:
    try:
        return json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return payload
