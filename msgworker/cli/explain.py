"""`status`, `explain`, `failures`, `lanes`, `instances` and `limits`: how many messages there are,
and why they do not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import Any

import click

from msgworker import App
from msgworker.cli.options import Call, audited, limited, on_table
from msgworker.cli.output import (
    Column,
    NothingMatched,
    Usage,
    age,
    ago,
    note,
    print_json,
    print_list,
    print_table,
    print_text,
    safe,
    since,
    styled,
    to_terminal,
    when,
)
from msgworker.cli.rerun import print_act
from msgworker.cli.show import age_of, as_dict, items_dict, items_text, tries_of, what
from msgworker.config import id_of
from msgworker.counted import many, plural, that_hold_up
from msgworker.db.errors import masked
from msgworker.message import State, topic_of
from msgworker.queries.counts import Count, Exact, total
from msgworker.queries.explain import Explanation
from msgworker.queries.failures import Failures
from msgworker.queries.instances import InstanceInfo, Life, TopicLimit
from msgworker.queries.lanes import BLOCKED, LaneInfo
from msgworker.store.bounded import Capped

# ---------------------------------------------------------------- limits


@click.command("limits")
@click.option("--remove", metavar="TOPIC", help="Forget the limits of a topic.")
@audited
@on_table
def limits(call: Call, remove: str | None) -> None:
    """List topics with max_running or rate: what runs, who has it, when the next may start.

    Handlers declare limits; the newest start counts. --remove is for topics whose handlers declare
    none any more: an instance whose handler does records them again.
    """
    ops = call.app.ops
    if remove is None:
        if any(call.how.values()):
            raise Usage("give the topic with --remove")
        found = ops.limits()
        counts = ops.counts() if found else []
        print_list(
            found,
            limit_columns(counts),
            as_json=call.as_json,
            nothing="no topic has limits",
            as_dict=lambda one: limit_dict(one, counts),
        )
        return
    done = ops.remove_limit(remove, **call.how)
    if not done:
        raise NothingMatched(f"topic {remove} has no limits")
    text = f"removed the limits of {safe(remove)}"
    print_act(done, call.as_json, {"topic": remove, "removed": True}, text)


def limit_columns(counts: list[Count]) -> list[Column]:
    def running(one: TopicLimit) -> str:
        return f"{one.running}" if one.max_running is None else f"{one.running}/{one.max_running}"

    def holders(one: TopicLimit) -> str:
        return ", ".join(f"{who} ({count})" for who, count in sorted(one.holders.items()))

    def starts(one: TopicLimit) -> str:
        if one.starts == 0:
            return f"next in {one.next_seconds or 0.0:.3g} s"
        return "" if one.starts is None else f"{one.starts}"

    return [
        Column("TOPIC", "topic", share=1),
        Column("RUNNING", running, "right"),
        Column("NEW", lambda one: new_of(one, counts), "right"),
        Column("HELD BY", holders, share=2),
        Column("RATE", lambda one: "" if one.rate is None else f"{one.rate} burst {one.burst}"),
        Column("STARTS", starts, "right"),
        Column("DECLARED BY", "declared_by", share=1),
    ]


# ---------------------------------------------------------------- explain


@click.command("explain")
@click.argument("msg_id", metavar="ID")
@on_table
def explain(call: Call, msg_id: str) -> None:
    """Say why a message is not running, and what the message before it waits for."""
    number = id_of(msg_id)
    found = call.app.ops.explain(number)
    if found is None:
        raise NothingMatched(f"there is no message {number} in {call.app.table.name}")
    if call.as_json:
        print_json(_explained(found))
        return
    indent = ""
    step: Explanation | None = found
    while step is not None:
        for line in _sentences(step):
            print_text(line, first=indent, rest=f"{indent}    ")
        step, indent = step.behind, f"{indent}  "


def _sentences(one: Explanation) -> Iterator[str]:
    info = one.message
    whose = "" if info.object_id is None else f", object {safe(info.object_id)}"
    what = f"{styled(info.word)}, topic {safe(info.topic)}{whose}"
    yield f"message {info.msg_id} ({what}): {safe(one.text)}"
    if one.since is not None:
        yield f"  since {when(one.since)}"
    if one.until is not None:
        yield f"  until {when(one.until)}"
    if one.items is not None:
        running = info.status is State.PROCESSING
        yield f"  its fan-out: {items_text(one.items, running=running)}"
    if one.limit is not None:
        yield f"  limits of its topic: {safe(one.limit.use)}"
    if info.changed is not None:
        yield f"  {safe(str(info.changed))} {ago(info.changed.at)}"
    if info.last_error is not None and info.status in (State.FAILED, State.DEAD):
        before = "" if info.changed is None else f", of before it was {safe(str(info.changed))}"
        yield f"  last error{before}: {safe(info.last_error)}"


def _explained(one: Explanation) -> dict[str, Any]:
    return asdict(one) | {
        "message": as_dict(one.message),
        "behind": None if one.behind is None else _explained(one.behind),
        "items": items_dict(one.items),
    }


# ---------------------------------------------------------------- failures


@click.command("failures")
@click.option("--topic", metavar="TEXT", help="Only this topic.")
@click.option("--job", type=int, metavar="ID", help="Only this job.")
@limited(20)
@on_table
def failures(call: Call, topic: str | None, job: int | None, limit: int) -> None:
    """Group dead and failing messages by error."""
    app = call.app
    found = app.ops.failures(topic=topic, job=job, limit=limit)
    if call.as_json:
        groups = [asdict(one) | {"count": one.count} for one in found]
        print_json({"failures": groups, "complete": found.complete, "read": found.looked_at})
        return
    if not found and (topic is not None or job is not None):
        click.echo(f"nothing has failed in {safe(app.table.name)} by these filters")
        return
    if not found:
        known = sum(one.acknowledged for one in app.ops.counts())
        are = f"{known:,} {'is' if known == 1 else 'are'}"
        but = f" that is not acknowledged, discarded or cancelled ({are})" if known else ""
        click.echo(f"nothing has failed in {safe(app.table.name)}{but}")
        return
    print_table(FAILURE_COLUMNS, found, "rest")
    if not found.complete:
        note(
            f"grouped: the newest {found.looked_at or 0:,} failed messages, the {len(found)} "
            "largest groups"
        )


def _texts(one: Failures) -> str:
    """What the messages of a group say, such as "12 say: no host a; 3 say: no host b"."""
    if not one.texts:
        return f"for example: {one.example}"
    said = [f"{each.count:,} say{'s' * (each.count == 1)}: {each.text}" for each in one.texts]
    return "; ".join(
        said + ([f"and {plural(one.other_texts, 'other')}"] if one.other_texts else [])
    )


def _many(number: int) -> str:
    return f"{number:,}" if number else "-"


FAILURE_COLUMNS = (
    Column("GROUP", "fingerprint"),
    Column("DEAD", lambda one: _many(one.dead), "right"),
    Column("FAILING", lambda one: _many(one.failing), "right"),
    Column("HELD UP", lambda one: _many(one.waiting_objects), "right"),
    Column("LAST SEEN", lambda one: age(since(one.last_seen)), "right"),
    Column("SAMPLE", "sample_id", "right"),
    Column("TOPICS", lambda one: ", ".join(one.topics) or None, share=1),
    Column(
        "ERROR",
        lambda one: f"{one.error}; {_texts(one)}" if one.varies else one.error,
        share=4,
        least=16,
    ),
)


# ---------------------------------------------------------------- lanes


@click.command("lanes")
@limited(20)
@on_table
def lanes(call: Call, limit: int) -> None:
    """List objects that wait, blocked ones first: the head of each, and how many are behind it."""
    app = call.app
    found = app.ops.lanes(by="blocked", limit=limit)
    if call.as_json:
        rows = [asdict(one) | {"head": as_dict(one.head)} for one in found]
        print_json({"lanes": rows, "complete": found.complete})
        return
    if not found:
        click.echo(f"no object waits in {safe(app.table.name)}")
        return
    print_table(lane_columns(app), found, "text")
    if not found.complete:
        note(
            "more objects wait than are shown; these are blocked, have most messages or are oldest"
        )


def lane_columns(app: App) -> list[Column]:
    def behind(one: LaneInfo) -> str:
        return f"{one.behind:,}{'+' if one.at_least else ''}" if one.behind else "-"

    return [
        Column("OBJECT", "object_id", share=2),
        Column("BEHIND", behind, "right"),
        Column("HEAD", lambda one: one.head.msg_id, "right"),
        Column("STATUS", lambda one: one.head.word),
        Column("TRIES", lambda one: tries_of(one.head, app), "right"),
        Column("AGE", lambda one: age_of(one.head, app), "right"),
        Column("TOPIC", lambda one: one.head.topic, share=1),
        Column("WHAT", _lane_what, share=3, least=12),
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
def instances(call: Call) -> None:
    """List live instances with their messages, and dead ones that still hold messages."""
    found = call.app.ops.instances()
    nothing = "no instance lives, and nothing is running"
    print_list(found, INSTANCE_COLUMNS, as_json=call.as_json, nothing=nothing, below="name")
    dead = sum(one.running for one in found if one.life not in (Life.LIVE, Life.FOREIGN))
    works = any(one.works for one in found)
    if dead and not works and not call.as_json:
        note(f"{plural(dead, 'message')} of dead instances: recovered when an instance starts")


def _topics(one: InstanceInfo) -> str:
    if one.life in (Life.NO_LEASE, Life.FOREIGN):
        return "-"
    topics = "all" if one.topics is None else ", ".join(one.topics)
    return topics if one.other_table is None else f"{topics} (of {one.other_table})"


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
        return _many(one.running)
    return f"{min(one.handlers, one.running):,} of {one.running:,}"


INSTANCE_COLUMNS = (
    Column("INSTANCE", "instance_id"),
    Column("LIFE", _life),
    Column("SINCE", lambda one: age(since(one.started_at)), "right"),
    Column("LAST SIGN", lambda one: age(since(one.renewed_at)), "right"),
    Column("RUNNING", _running, "right"),
    Column("LONGEST", lambda one: age(since(one.oldest_claim_at)), "right"),
    Column("THREADS", lambda one: "-" if one.threads is None else f"{one.threads:,}", "right"),
    Column("PROCESS", lambda one: "-" if one.host is None else f"{one.host}/{one.pid}", share=1),
    Column("VERSION", lambda one: one.version or "-"),
    Column("TOPICS", _topics, share=2),
    Column("LABEL", "label", share=1),
)


# --- `status`: how many messages are in each state.

OPEN = (State.NEW, State.PROCESSING, State.FAILED)
PAUSED_SHOWN = 20


@click.command("status")
@click.option(
    "--dead-unacknowledged", is_flag=True, help="End with 1 if there are any, as a check."
)
@on_table
def status(call: Call, dead_unacknowledged: bool) -> int:
    """Count messages by state and topic, with the age of the oldest."""
    app = call.app
    counts, limits, paused = app.ops.counts(), app.ops.limits(), app.ops.paused_jobs()
    dead = total(counts, State.DEAD, lambda one: one.count - one.acknowledged)
    known = total(counts, State.DEAD, lambda one: one.acknowledged)
    code = int(dead_unacknowledged and dead.count > 0)
    if call.as_json:
        print_json(
            {
                "database": masked(app.engine.url),
                "table": app.table.name,
                "counts": [
                    asdict(one)
                    | {"oldest_seconds": one.oldest_seconds and round(one.oldest_seconds, 3)}
                    for one in counts
                ],
                "limits": [limit_dict(one, counts) for one in limits],
                "paused_jobs": [asdict(one) for one in paused],
            }
        )
        return code
    if not counts:
        click.echo(f"{safe(app.table.name)} holds no messages")
        return code
    _print_counts(counts)
    for one in limits:
        does = "new" if one.lacks is None else f"wait for {one.lacks}"
        text = f"limits of {safe(one.topic)}: {one.use}, {new_of(one, counts)} {does}"
        print_text(text, rest="    ")
    for job in paused[:PAUSED_SHOWN]:
        print_text(f"job {job.job_id}, {safe(job.name)}: {safe(job.told)}", rest="    ")
    if len(paused) > PAUSED_SHOWN:
        click.echo(f"and {len(paused) - PAUSED_SHOWN:,} more paused jobs")
    if any(c.exact is not Exact.EXACT for c in counts):
        note(
            "a large table: + means at least, < means at most, ~ means an estimate from the "
            "database's statistics"
        )
    if known.count:
        note(f"{known} of the dead messages are acknowledged, discarded or cancelled")
    for name, held, command in (("hold_objects", "object", "lanes"), ("hold_jobs", "job", "jobs")):
        number = total(counts, State.DEAD, attrgetter(name))
        if number.count:
            note(f"{that_hold_up(number, held)}: `msgworker {command}`")
    if not dead_unacknowledged and dead.count and to_terminal():
        then = "`msgworker rerun --group HEX`"
        note(f"dead messages wait for an operator: `msgworker failures`, then {then}")
    if code:
        note(f"{many(dead, 'dead message')} not acknowledged: `msgworker failures`")
    return code


def _waiting(one: TopicLimit, counts: list[Count]) -> list[Count]:
    return [c for c in counts if c.status is State.NEW and topic_of(c.topic) == one.topic]


def limit_dict(one: TopicLimit, counts: list[Count]) -> dict[str, Any]:
    waiting = sum(count.count for count in _waiting(one, counts))
    return asdict(one) | {"new": waiting, "waits_for": one.why}


def new_of(one: TopicLimit, counts: list[Count]) -> str:
    """How many new messages of a limited topic there are; more than so many: "20,000+"."""
    return str(_counted(_waiting(one, counts), State.NEW, counts))


def _counted(rows: list[Count], state: State, counts: list[Count]) -> Capped:
    """Of a topic, or of all; counts: of all. At least so many, if not all of the state were
    counted: some of it may be behind those that were."""
    return total(rows, state) + Capped(0, total(counts, state).more)


def _print_counts(counts: list[Count]) -> None:
    """A row for each topic, and one for all of them if there are several."""
    by_topic: dict[str, list[Count]] = defaultdict(list)
    for count in counts:
        if not count.of_all:
            by_topic[topic_of(count.topic)].append(count)
    rows = sorted(by_topic.items())
    if len(rows) != 1 or any(count.of_all for count in counts):
        rows.append(("all topics", counts))
    words = [w for w in State if w is not State.UNKNOWN or any(c.status is w for c in counts)]
    columns = [
        Column("TOPIC", lambda row: row[0] or '""', share=1),
        *(Column(word.value.upper(), partial(in_state, word, counts), "right") for word in words),
        Column("OLDEST OPEN", _oldest, "right"),
    ]
    print_table(columns, rows)


def in_state(state: State, counts: list[Count], row: tuple[str, list[Count]]) -> str:
    found = _counted(row[1], state, counts)
    if found.about:
        return f"{'<' if found.at_most else ''}~{rounded(found.count):,}"
    if not found and total(counts, state).about:
        return "?"  # the estimate is for all topics together
    return str(found) if found else "-"


def _oldest(row: tuple[str, list[Count]]) -> str:
    ages = [c.oldest_seconds for c in row[1] if c.status in OPEN and c.oldest_seconds is not None]
    return age(max(ages)) if ages else "-"


def rounded(number: int) -> int:
    """An estimate from statistics, rounded to three digits."""
    return round(number, min(0, 3 - len(str(number))))
