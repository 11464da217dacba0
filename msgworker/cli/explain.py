"""`explain`, `failures`, `lanes`, `instances` and `limits`: why messages do not run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from msgworker import App
from msgworker.cli.options import audited, message_id, on_table, open_app, said
from msgworker.cli.output import (
    Column,
    NothingMatched,
    Usage,
    age,
    note,
    print_json,
    print_table,
    print_text,
    print_with_name,
    print_with_text,
    safe,
    since,
    styled,
    when,
)
from msgworker.cli.show import (
    age_of,
    as_dict,
    counted,
    items_dict,
    limit_dict,
    new_of,
    tries_of,
    what,
)
from msgworker.counted import plural
from msgworker.message import State
from msgworker.queries.explain import Explanation
from msgworker.queries.failures import Failures
from msgworker.queries.instances import InstanceInfo, Life
from msgworker.queries.lanes import BLOCKED, LaneInfo

# ---------------------------------------------------------------- limits


@click.command("limits")
@click.option("--remove", metavar="TOPIC", help="Forget the limits of a topic.")
@audited
@on_table
def limits(ctx: click.Context, /, remove: str | None, as_json: bool, **given: Any) -> None:
    """List topics with max_running or rate: what runs, who has it, when the next may start.

    Handlers declare limits; the newest start counts. --remove is for topics whose handlers declare
    none any more: an instance whose handler does records them again.
    """
    who = said(given)
    app = open_app(ctx, given)
    if remove is None:
        if any(who.values()):
            raise Usage("give the topic with --remove")
        _list(app, as_json)
        return
    done = app.ops.remove_limit(remove, **who)
    if not done:
        raise NothingMatched(f"topic {remove} has no limits")
    if as_json:
        result = {"operation": done.op_id, "topic": remove, "removed": True}
        print_json({**result, "dry_run": done.dry_run})
    else:
        would = "would be " if done.dry_run else ""
        click.echo(f"limits of {safe(remove)} {would}removed")


def _list(app: App, json: bool) -> None:
    found = app.ops.limits()
    counts = app.ops.counts() if found else []
    if json:
        print_json([limit_dict(one, counts) for one in found])
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
        starts = "" if one.starts is None else str(one.starts)
        if one.starts == 0:
            starts = f"next in {one.next_seconds or 0.0:.3g} s"
        new = new_of(one, counts)
        rows.append([one.topic, running, new, held, rate, starts, one.declared_by])
    columns = [Column("TOPIC", share=1), Column("RUNNING", "right"), Column("NEW", "right")]
    columns += [
        Column("HELD BY", share=2),
        Column("RATE"),
        Column("STARTS", "right"),
        Column("DECLARED BY", share=1),
    ]
    print_table(columns, rows)


limited = click.option(
    "--limit", metavar="N", type=int, default=20, help="At most so many, 20 if not given."
)

# ---------------------------------------------------------------- explain


@click.command("explain")
@click.argument("msg_id", metavar="ID")
@on_table
def explain(ctx: click.Context, /, msg_id: str, as_json: bool, **given: Any) -> None:
    """Say why a message is not running, and what the message before it waits for."""
    number = message_id(msg_id)
    app = open_app(ctx, given)
    found = app.ops.explain(number)
    if found is None:
        raise NothingMatched(f"there is no message {number} in {app.table.name}")
    if as_json:
        print_json(_explained(found))
        return
    indent = ""
    step: Explanation | None = found
    while step is not None:
        for line in _sentences(step):
            print_text(line, first=indent, rest=f"{indent}    ")
        step, indent = step.behind, f"{indent}  "


def _sentences(one: Explanation) -> list[str]:
    info = one.message
    whose = "" if info.object_id is None else f", object {safe(info.object_id)}"
    lines = [
        f"message {info.msg_id} ({styled(info.status)}, topic {safe(info.topic)}{whose}): "
        f"{safe(one.text)}"
    ]
    if one.since is not None:
        lines.append(f"  since {when(one.since)}")
    if one.until is not None:
        lines.append(f"  until {when(one.until)}")
    if one.items is not None:
        running = info.status is State.PROCESSING
        lines.append(f"  its fan-out: {counted(one.items, running=running)}")
    if one.limit is not None:
        lines.append(f"  limits of its topic: {safe(one.limit.use)}")
    if info.last_error is not None and info.status in (State.FAILED, State.DEAD):
        lines.append(f"  last error: {safe(info.last_error)}")
    return lines


def _explained(one: Explanation) -> dict[str, Any]:
    return {
        "message": as_dict(one.message),
        "reason": one.reason,
        "text": one.text,
        "since": one.since,
        "until": one.until,
        "instance": None if one.instance is None else asdict(one.instance),
        "started": one.started,
        "running_seconds": one.running_seconds,
        "behind": None if one.behind is None else _explained(one.behind),
        "items": items_dict(one.items),
        "cancel": None if one.cancel is None else asdict(one.cancel),
        "limit": None if one.limit is None else asdict(one.limit),
        "key_holder": one.key_holder,
    }


# ---------------------------------------------------------------- failures


@click.command("failures")
@limited
@on_table
def failures(ctx: click.Context, /, limit: int, as_json: bool, **given: Any) -> None:
    """Group dead and failing messages by error."""
    app = open_app(ctx, given)
    found = app.ops.failures(limit=limit)
    if as_json:
        groups = [asdict(one) | {"count": one.count} for one in found]
        print_json({"failures": groups, "complete": found.complete, "read": found.looked_at})
        return
    if not found:
        known = sum(one.acknowledged for one in app.ops.counts())
        are = f"{known:,} {'is' if known == 1 else 'are'}"
        but = f" that is not acknowledged, discarded or cancelled ({are})" if known else ""
        click.echo(f"nothing has failed in {safe(app.table.name)}{but}")
        return
    print_with_text(FAILURE_COLUMNS, [_failure_row(one) for one in found], whole=True)
    if not found.complete:
        note(
            f"grouped: the newest {found.looked_at or 0:,} failed messages, the {len(found)} "
            "largest groups"
        )


FAILURE_COLUMNS = (
    Column("GROUP"),
    Column("DEAD", "right"),
    Column("FAILING", "right"),
    Column("HELD UP", "right"),
    Column("LAST SEEN", "right"),
    Column("SAMPLE", "right"),
    Column("TOPICS", share=1),
    Column("ERROR", share=4, least=16),
)


def _failure_row(one: Failures) -> list[Any]:
    numbers = [f"{n:,}" if n else "-" for n in (one.dead, one.failing, one.waiting_objects)]
    seen = age(since(one.last_seen))
    topics = ", ".join(one.topics) or None
    error = one.error if one.example is None else f"{one.error}; the newest: {one.example}"
    return [one.fingerprint, *numbers, seen, one.sample_id, topics, error]


# ---------------------------------------------------------------- lanes


@click.command("lanes")
@limited
@on_table
def lanes(ctx: click.Context, /, limit: int, as_json: bool, **given: Any) -> None:
    """List objects that wait, blocked ones first: the head of each, and how many are behind it."""
    app = open_app(ctx, given)
    found = app.ops.lanes(by="blocked", limit=limit)
    if as_json:
        rows = [asdict(one) | {"head": as_dict(one.head)} for one in found]
        print_json({"lanes": rows, "complete": found.complete})
        return
    if not found:
        click.echo(f"no object waits in {safe(app.table.name)}")
        return
    print_with_text(LANE_COLUMNS, [_lane_row(one, app) for one in found])
    if not found.complete:
        note(
            "more objects wait than are shown; these are blocked, have most messages or are oldest"
        )


LANE_COLUMNS = (
    Column("OBJECT", share=2),
    Column("BEHIND", "right"),
    Column("HEAD", "right"),
    Column("STATUS"),
    Column("TRIES", "right"),
    Column("AGE", "right"),
    Column("TOPIC", share=1),
    Column("WHAT", share=3, least=12),
)


def _lane_row(one: LaneInfo, app: App) -> list[Any]:
    head = one.head
    behind = f"{one.behind:,}{'+' if one.at_least else ''}" if one.behind else "-"
    tries = tries_of(head, app)
    old = age_of(head, app)
    return [
        one.object_id,
        behind,
        head.msg_id,
        head.status,
        tries,
        old,
        head.topic,
        _lane_what(one),
    ]


def _lane_what(one: LaneInfo) -> str:
    head = one.head
    if one.reason in BLOCKED and head.status is not State.DEAD:
        told = what(head) if head.status is not State.PROCESSING else ""
        return "; ".join(part for part in (one.why, told) if part)
    if one.started is None:
        return what(head)
    if one.started:
        return f"running for {age(one.running_seconds)}, on {head.claimed_by}"
    return f"claimed {age(since(head.claimed_at))} ago, not started, by {head.claimed_by}"


# ---------------------------------------------------------------- instances


@click.command("instances")
@on_table
def instances(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """List live instances with their messages, and dead ones that still hold messages."""
    app = open_app(ctx, given)
    found = app.ops.instances()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        click.echo("no instance lives, and nothing is running")
        return
    print_with_name(INSTANCE_COLUMNS, [_instance_row(one) for one in found])
    dead = sum(one.running for one in found if one.life not in (Life.LIVE, Life.FOREIGN))
    if dead and not any(one.life is Life.LIVE and not one.stopped for one in found):
        note(f"{plural(dead, 'message')} of dead instances: recovered when an instance starts")


INSTANCE_COLUMNS = (
    Column("INSTANCE"),
    Column("LIFE"),
    Column("SINCE", "right"),
    Column("LAST SIGN", "right"),
    Column("RUNNING", "right"),
    Column("LONGEST", "right"),
    Column("THREADS", "right"),
    Column("PROCESS", share=1),
    Column("VERSION"),
    Column("TOPICS", share=2),
    Column("LABEL", share=1),
)


def _instance_row(one: InstanceInfo) -> list[Any]:
    topics = "all" if one.topics is None else ", ".join(one.topics)
    if one.life in (Life.NO_LEASE, Life.FOREIGN):
        topics = "-"
    elif one.other_table is not None:
        topics = f"{topics} (of {one.other_table})"
    return [
        one.instance_id,
        _life(one),
        age(since(one.started_at)),
        age(since(one.renewed_at)),
        _running(one),
        age(since(one.oldest_claim_at)),
        "-" if one.threads is None else f"{one.threads:,}",
        "-" if one.host is None else f"{one.host}/{one.pid}",
        one.version or "-",
        topics,
        one.label,
    ]


def _life(one: InstanceInfo) -> str:
    if one.stopped and one.life is Life.LIVE:
        return f"stopped, lease ends in {one.left_seconds or 0.0:.0f} s"
    return one.life if one.overdue_seconds is None else f"{one.life}, overdue"


def _running(one: InstanceInfo) -> str:
    """Handlers that ran at the last heartbeat, of the messages claimed now; only the latter if all
    were claimed after that heartbeat."""
    claimed, renewed = one.oldest_claim_at, one.renewed_at
    if claimed is not None and renewed is not None and claimed > renewed:
        return f"{one.running:,}"
    if not one.running or one.handlers is None:
        return f"{one.running:,}" if one.running else "-"
    return f"{min(one.handlers, one.running):,} of {one.running:,}"
