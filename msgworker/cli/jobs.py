"""`jobs`: list them, show one and watch how far it is, seal, pause, resume and cancel one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace
from time import monotonic, sleep
from typing import Any

import click

from msgworker import App
from msgworker.cli import output
from msgworker.cli.logs import screen
from msgworker.cli.options import Call, limited, on_table, writes
from msgworker.cli.rerun import as_json_of, print_act, print_result
from msgworker.commands import command
from msgworker.config import SETTINGS, id_of, nearest
from msgworker.counted import many, plural
from msgworker.errors import ConfigError, ExitCode
from msgworker.queries.explain import Waits
from msgworker.queries.jobs import Hold, JobInfo, JobState
from msgworker.store.bounded import Capped, Found

ACTIONS = ("show", "seal", "pause", "resume", "cancel")
COLUMNS = (
    output.Column("JOB", "job_id", "right"),
    output.Column("NAME", "name", share=2),
    output.Column("STATE", "state"),
    output.Column("WAITING", "waiting", "right"),
    output.Column("RUNNING", "running", "right"),
    output.Column("DONE", "done", "right"),
    output.Column("DEAD", "dead", "right"),
    output.Column("%", "percent", "right"),
    output.Column("AGE", lambda one: output.age(output.since(one.opened_at)), "right"),
)
COUNTS = ("waiting", "running", "done", "dead", "total", "retrying", "to_rerun")
AGAIN_ONLY = "where a later one of its object is done, only with --force or --with-successors"
WATCH_SECONDS = 1.0
NOTE_SECONDS = 10.0
"""How often the progress is printed where there is no terminal."""


@click.command("jobs")
@click.argument("action", metavar="[show|seal|pause|resume|cancel]", required=False)
@click.argument("job", metavar="[ID]", required=False)
@click.option("--open", "is_open", is_flag=True, help="Only those that have not completed.")
@limited(50)
@click.option("--after", metavar="ID", help="Older than this one: the next page.")
@click.option("--watch", is_flag=True, help="With show: print how far it is until it is over.")
@click.option(
    "--time-limit", "watch_limit", metavar="TIME", help="With --watch: end with 6 after this time."
)
@writes
@on_table
def jobs(
    call: Call,
    action: str | None,
    job: str | None,
    is_open: bool,
    limit: int,
    after: str | None,
    watch: bool,
    watch_limit: str | None,
) -> int:
    """List jobs, the newest first; show how far one is, what holds it and what can be done; seal
    one; let none of its messages start, and let them start again; or cancel one with its messages.

    Its messages: `list --job ID`; its dead ones run again by `rerun --job ID`. When it completes
    its message is sent: dead messages count as ended, but a job that was opened with on_dead="wait"
    waits until they are rerun or discarded. --watch ends when it
    has completed and nothing of it is unfinished; its exit code is 1 if messages of it are dead
    then, and 6 if --time-limit has ended it before.
    """
    if action is not None and action not in ACTIONS:
        if action.isascii() and action.isdigit():
            raise output.Usage(
                f"say what is to be done with it, such as: {command(f'jobs show {action:.20}')}"
            )
        raise output.Usage(f"unknown action {action!r:.60}; {nearest(action, ACTIONS)}")
    if action is not None and job is None:
        raise output.Usage(f"name the job by its id: {command(f'jobs {action} ID')}")
    if watch and action != "show":
        raise output.Usage("--watch is for one job: `msgworker jobs show ID --watch`")
    if watch_limit is not None and not watch:
        raise output.Usage("--time-limit is for --watch: `msgworker jobs show ID --watch`")
    seconds = SETTINGS["time_limit"].read(watch_limit, "--time-limit") if watch_limit else None
    if action in (None, "show") and any(call.how.values()):
        raise output.Usage(f"what is to be done? {', '.join(ACTIONS[1:])}, and the id of a job")
    if action == "cancel":
        call.need_reason()
    app = call.app
    if action is None or job is None:
        last = None if after is None else id_of(after)
        found = app.ops.jobs(is_open=is_open or None, limit=limit, after=last)
        _list(found, as_json=call.as_json)
        return 0
    job_id = id_of(job)
    if action == "show":
        return _show(app, job_id, as_json=call.as_json, watch=watch, seconds=seconds)
    if action == "cancel":
        return _cancel(app, job_id, call.as_json, **call.how)
    del call.how["yes"]
    return _switch(app, action, job_id, call.as_json, **call.how)


def _list(found: Found[JobInfo], *, as_json: bool) -> None:
    if as_json:
        output.print_json({"jobs": [as_dict(one) for one in found], "next_after": found.next_after})
    elif not found:
        click.echo("there is no job")
    else:
        output.print_table(COLUMNS, found)
        if found.next_after is not None:
            output.note(f"there may be more: {output.again(after=found.next_after)}")


def as_dict(one: JobInfo) -> dict[str, Any]:
    """A job for JSON: numbers as they are, `more` where there are more than were counted."""
    fields = asdict(one)
    counts = {name: found for name in COUNTS if (found := getattr(one, name)) is not None}
    more = [name for name, found in counts.items() if found.more]
    fields |= {name: found.count for name, found in counts.items()}
    fields["holds"] = [
        asdict(hold) | {"count": hold.count.count, "at_least": hold.count.more}
        for hold in one.holds
    ]
    percent = None if one.share is None else round(100 * one.share, 1)
    return fields | {"at_least": more, "percent": percent}


def _known(app: App, job_id: int) -> JobInfo:
    found = app.ops.job(job_id) if job_id > 0 else None
    if found is None:
        raise output.NothingMatched(f"there is no job {job_id}")
    return found


def _show(app: App, job_id: int, *, as_json: bool, watch: bool, seconds: float | None) -> int:
    found = _watched(app, job_id, seconds) if watch else _known(app, job_id)
    if as_json:
        output.print_json(as_dict(found))
    else:
        for line in _lines(found, blocks=app.table.on_dead == "block"):
            output.print_text(line, rest="    ")
    if watch and not _is_over(found):
        return ExitCode.RETRIES
    return int(watch and bool(found.dead))


def _is_over(one: JobInfo) -> bool:
    """It has completed, and nothing that was rerun or sent since is unfinished."""
    return one.completed_at is not None and not one.unfinished


def _watched(app: App, job_id: int, limit: float | None) -> JobInfo:
    """The job once it is over, or after so many seconds; until then its progress, with the rate of
    the last seconds: without a terminal only when it has changed."""
    line, noted_at, noted, before = screen(), -NOTE_SECONDS, "", None
    until = None if limit is None else monotonic() + limit
    try:
        while True:
            found, now = _known(app, job_id), monotonic()
            if _is_over(found) or (until is not None and now >= until):
                return found
            before = before or (now, found.ended.count)
            seconds, rate = now - before[0], found.rate
            if seconds and not found.ended.more:
                rate = (found.ended.count - before[1]) / seconds
            if seconds >= NOTE_SECONDS:
                before = (now, found.ended.count)
            text = f"job {job_id}: {progress(found, rate)}"
            if line.is_terminal:
                line.status(text)
            elif now - noted_at >= NOTE_SECONDS and text != noted:
                noted_at, noted = now, text
                output.note(text)
            sleep(WATCH_SECONDS if until is None else min(WATCH_SECONDS, max(0.0, until - now)))
    finally:
        line.status("")


def progress(one: JobInfo, rate: float | None) -> str:
    """Such as "[#######...] 62.3 %, 62,310 of 100,000, 12 dead, 3,100/s, 12 seconds left"."""
    marks = None if one.share is None else int(20 * one.share)
    bar = "?" * 20 if marks is None else "#" * marks + "." * (20 - marks)
    parts = [f"[{bar}] {one.percent} %", f"{one.ended} of {one.total}"]
    if one.dead:
        parts.append(f"{one.dead} dead")
    if one.retrying:
        have = "has" if str(one.retrying) == "1" else "have"
        parts.append(f"{one.waiting} waiting, {one.retrying} of them {have} failed")
    if rate and one.rate and one.state in (JobState.OPEN, JobState.RUNNING):
        left = one.unfinished
        parts.append(f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s")
        if left and not left.more and not one.acts:
            parts.append(f"{output.age(max(1.0, left.count / rate))} left")
    if one.state is not JobState.RUNNING:
        parts.append(one.state.value)
    return ", ".join([*parts, *(output.safe(hold.text) for hold in one.acts[:1])])


def _lines(one: JobInfo, *, blocks: bool) -> list[str]:
    over = one.completed_at is not None
    lines = [f"job {one.job_id}: {output.safe(one.name)}", f"state: {_state(one)}"]
    lines.append(f"progress: {progress(replace(one, holds=()), one.rate)}")
    counts = f"{one.waiting} waiting, {one.running} running, {one.done} done, {one.dead} dead"
    if over:
        then = f"when it completed: {one.completed_done:,} done, {one.completed_dead:,} dead"
        same = (one.done.count, one.dead.count) == (one.completed_done, one.completed_dead)
        counts = then if same and not one.unfinished else f"{then}; now: {counts}"
    lines.append(f"messages: {counts}")
    who = {"opened_at": one.opened_by, "paused_at": one.paused_by}
    why = {"paused_at": one.paused_reason}
    for name in ("opened_at", "sealed_at", "paused_at", "cancelled_at", "completed_at"):
        if (instant := getattr(one, name)) is not None and not (over and name == "paused_at"):
            by = f" by {output.safe(who[name])}" if who.get(name) else ""
            by += f": {output.safe(why[name])}" if why.get(name) else ""
            lines.append(f"{name.removesuffix('_at')}: {output.when(instant)}{by}")
    if one.on_complete is not None and one.cancelled_at is None:
        sent = "" if one.report_id is None else f": message {one.report_id}"
        of = "" if one.object_id is None else f" of object {output.safe(one.object_id)}"
        ends = "" if over else f" ({one.dead_are})"
        completes = "completed" if over else "completes"
        lines.append(f"when it {completes}: {output.safe(one.on_complete)}{of}{sent}{ends}")
    ways = [(command(words), then) for words, then in ways_of(one, blocks=blocks)]
    width = max((len(way) for way, _ in ways), default=0)
    lines += ["what can be done:"] if ways else []
    return lines + [f"  {way:{width}}  # {then}" for way, then in ways]


def _state(one: JobInfo) -> str:
    """With what holds it: "held: 5 wait behind 1 dead message, such as message 3"."""
    told = "; ".join(output.safe(hold.text) for hold in one.holds)
    if one.state is JobState.PAUSED:
        why = f": {output.safe(one.paused_reason)}" if one.paused_reason else ""
        told = f"by {output.safe(one.paused_by or 'plain SQL')}{why}"
    between = " " if one.state is JobState.PAUSED else ": "
    return f"{one.state}{between if told else ''}{told}"


def ways_of(one: JobInfo, *, blocks: bool) -> list[tuple[str, str]]:
    """What an operator can do with a job as it is: commands, and what each does. blocks: a dead
    message holds up its object, so nothing behind it is done."""
    job, over, state = one.job_id, one.completed_at is not None, one.state
    by_dead = any(hold.why is Waits.DEAD and hold.ours for hold in one.holds)
    dead = one.to_rerun or Capped(0)
    its_dead = f"its {many(dead, 'dead message')}"
    ways = [way for hold in one.holds for way in _ways_out(hold)]
    if dead:
        stays = "; it stays completed" if over else ""
        stays += "" if blocks else f"; {AGAIN_ONLY}"
        ways.append((f"rerun --job {job}", f"try {its_dead} again{stays}"))
    waits = one.on_dead == "wait" and one.cancelled_at is None
    if dead and not over and (by_dead or waits):
        then = "what is behind goes on" if by_dead else "it does not wait for them"
        then = "it completes, and counts them as dead" if state is JobState.WAITS else then
        discard = f"discard --job {job} --status dead --reason TEXT"
        ways.append((discard, f"give up {its_dead}: {then}"))
    if over:
        if one.unfinished:
            ways.append((f"cancel --job {job} --reason TEXT", "cancel what is unfinished again"))
        return ways
    if state is JobState.PAUSED:
        ways.append((f"jobs resume {job}", "let its messages start again"))
    elif one.waiting:
        ways.append((f"jobs pause {job}", "let none of its messages start"))
    if one.sealed_at is None:
        ways.append((f"jobs seal {job}", "all of it was sent"))
    if one.waiting:
        too = f", and {its_dead}" if blocks and dead else ""
        ways.append((f"discard --job {job} --reason TEXT", f"give up what waits{too}"))
    if one.cancelled_at is None:
        ways.append((f"jobs cancel {job} --reason TEXT", "cancel all of it; it sends no message"))
    elif one.unfinished:  # sent by handlers since
        ways.append((f"jobs cancel {job} --reason TEXT", "cancel what is unfinished"))
    return ways


def _ways_out(hold: Hold) -> Iterator[tuple[str, str]]:
    """Of what is no message of the job."""
    if hold.why in (Waits.NO_HANDLER, Waits.OTHER_SLICES):
        topic = "" if hold.topic is None else f" that handles {output.safe(hold.topic)}"
        yield "run", f"start an instance{topic}, or drain with it"
    elif hold.why is Waits.PAUSED and hold.topic is not None:
        topic = shlex.quote(output.safe(hold.topic))
        yield f"resume {topic}", "let the handlers of its topic start again"
    elif hold.why in (Waits.PAUSED, Waits.NOBODY):
        yield f"explain {hold.msg_id}", "what message they wait for"
    elif hold.why is Waits.DEAD and not hold.ours:
        yield f"rerun {hold.msg_id}", "try the dead message again that they wait for"
        yield f"discard {hold.msg_id} --reason TEXT", "give it up: what is behind it goes on"


DONE = {"seal": "sealed", "pause": "paused", "resume": "resumed"}


def _switch(app: App, action: str, job_id: int, json: bool, **how: Any) -> int:
    _known(app, job_id)
    did = DONE[action]
    try:
        done = getattr(app.ops, f"{action}_job")(job_id, **how)
    except ConfigError as error:
        raise output.NothingMatched(str(error)) from None
    if not done and action == "resume":  # as with topics
        raise output.NothingMatched(f"job {job_id} is not paused")
    result, already = {"job": job_id, did: int(done)}, f"job {job_id} is {did} already"
    print_act(done, json, result, f"{did} job {job_id}", already)
    return 0


def _cancel(app: App, job_id: int, json: bool, *, yes: bool, dry_run: bool, **how: Any) -> int:
    known = _known(app, job_id)
    try:
        would = app.ops.cancel_job(job_id, dry_run=True, **how)
    except ConfigError as error:
        raise output.NothingMatched(str(error)) from None
    unsent = None if known.cancelled_at is not None else known.on_complete
    then = "" if unsent is None else f": its message {output.safe(unsent)} is then never sent"
    if dry_run:
        if json:
            output.print_json(as_json_of(would, "cancelled") | {"job": job_id, "unsent": unsent})
        else:
            again = f"job {job_id} is cancelled already"
            click.echo(again if known.cancelled_at else f"would cancel job {job_id}{then}")
            if would.matched:
                print_result(would, word="cancelled", verb="cancel", json=False)
        return 0
    if would or known.cancelled_at is None:
        output.confirm(
            f"Cancel job {job_id} and {plural(int(would), 'message')} of it{then}?", yes=yes
        )
    done = app.ops.cancel_job(job_id, **how)
    if json:
        output.print_json(as_json_of(done, "cancelled") | {"job": job_id})
    else:
        asked = f", requested {done.requested:,}" if done.requested else ""
        count = plural(done.changed - done.requested, "message")
        click.echo(f"cancelled job {job_id}: {count}{asked}")
    return 0
