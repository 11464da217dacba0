"""`rerun`, `discard`, `acknowledge` and `cancel`: count, ask for confirmation, then change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import click

from msgworker import App
from msgworker.cli import output
from msgworker.cli.logs import screen
from msgworker.cli.options import (
    UNACKNOWLEDGED,
    Call,
    as_json,
    asks_for_dead,
    common,
    filters,
    of_group,
    options,
    target,
    unacknowledged,
    writes,
)
from msgworker.cli.show import as_dict, instant_of
from msgworker.commands import command
from msgworker.config import id_of
from msgworker.counted import plural
from msgworker.ops.looks import MAX_GROUPS
from msgworker.ops.results import ADVICE, OnProgress, Progress, Repaired

# --- Shared parts of the commands that write: options, confirmation, progress, output.

EXAMPLES = 10
"""Skipped messages that are named."""
FILTERS = ("status", "topic", "object_id", "error", "since", "fingerprint", "job", "acknowledged")
long_work = options(
    click.option("--rate", metavar="N", help="At most so many a second: 50, or 50/s."),
    click.option("--resume", hidden=True),  # its name until 0.1; goes in 1.0
    click.option(
        "--operation", metavar="N", help="Continue the interrupted operation of this number."
    ),
)
chooses = options(click.argument("ids", nargs=-1, metavar="ID..."), filters, of_group)


def choice_of(given: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of `chooses` and `long_work` out of `given`; checks them; raises Usage."""
    ids = [id_of(text) for text in given.pop("ids", ())]
    chosen: dict[str, Any] = {name: given.pop(name) for name in FILTERS if name in given}
    chosen["since"] = instant_of(chosen["since"])
    named = [name for name, value in chosen.items() if value is not None]
    chosen["operation"] = operation_of(given)
    chosen["rate"] = rate_of(given)
    if ids and named:
        raise output.Usage(f"give ids or a filter, not both: {_first_filter()}")
    if chosen["operation"] is not None and named:
        raise output.Usage(
            "--operation continues with the original selection; give no ids and no filter"
        )
    if not ids and not named and chosen["operation"] is None:
        raise output.Usage("give ids, or a filter such as --status dead, --topic or --error")
    return chosen | {"ids": list(dict.fromkeys(ids)) or None}


def _first_filter() -> str:
    """The first option of this call that is a filter, as it is written: "--group"."""
    ctx = click.get_current_context()
    names = {*FILTERS, "dead", UNACKNOWLEDGED} - {"acknowledged"}
    filters = [one for one in ctx.command.params if one.name in names]
    return next(one.opts[0] for one in filters if ctx.params[str(one.name)] not in (None, False))


def operation_of(given: dict[str, Any]) -> int | None:
    before, text = given.pop("resume"), given.pop("operation")
    text = before if text is None else text
    return None if text is None else id_of(text)


def rate_of(given: dict[str, Any]) -> float | None:
    """--rate, checked: messages a second."""
    text = given.pop("rate")
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(?:/s)?", text, re.ASCII)
    if match is None or float(match[1]) <= 0:
        raise output.Usage(f"--rate must be messages a second such as 50 or 50/s, got {text!r:.60}")
    return float(match[1])


# ---------------------------------------------------------------- carrying out


def carry_out(
    app: App,
    write: Callable[..., Repaired],
    *,
    question: str,
    dry_run: bool,
    yes: bool,
    always_ask: bool = False,
    **asked: Any,
) -> Repaired:
    """Count the messages, ask for confirmation, do it; returns what was done, or would be.

    question: with {} for the number, such as "Set {} to new?".
    """
    total: int | None = None
    if asked.get("operation") is None:
        would = write(**asked, dry_run=True)
        total = int(would)
        if dry_run or would.matched == 0:
            return replace(would, dry_run=dry_run)
        ask(app, would, question, yes=yes, always=always_ask)
        if aside(would):
            output.note(f"{plural(total, 'message')}{aside(would)}")
    elif dry_run:
        raise output.Usage(
            "--operation has no --dry-run; `msgworker audit` shows the progress so far"
        )
    with _watched(None if total is None else would.matched) as on_progress:
        return write(**asked, progress=on_progress)


def ask(app: App, would: Repaired, question: str, *, yes: bool, always: bool = False) -> None:
    """Ask for confirmation before more than one message is changed; question: see `carry_out`."""
    if would > 1 or (always and would):
        many = f"{plural(int(would), 'message')} of {app.table.name}"
        output.confirm(question.replace("{}", many + aside(would), 1), yes=yes)


def aside(would: Repaired) -> str:
    """Details of a rerun, cancel or acknowledge beside its number."""
    said = []
    if would.done_again:
        said.append(f"{would.done_again:,} of them done: handled again")
    if would.stay_done:
        said.append(f"{would.stay_done:,} behind that are done stay done")
    elif not would.complete:
        said.append("those behind that are done stay done; not counted, as it takes too long")
    if would.requested:
        said.append(f"{would.requested:,} of them running: a request to end them")
    if would.holding:
        many = f"{would.holding:,} of them {'holds' if would.holding == 1 else 'hold'}"
        said.append(f"{many} up an object or a job, until rerun or discarded")
    return f" ({'; '.join(said)})" if said else ""


@contextmanager
def _watched(total: int | None) -> Iterator[OnProgress]:
    """Progress on a terminal; if the block is interrupted, print how to continue."""
    last: list[Progress] = []
    name = click.get_current_context().info_name
    status, of = screen().status, "" if total is None else f" of {total:,}"

    def on_progress(progress: Progress) -> None:
        if progress.op_id is None:
            return
        last[:] = [progress]
        status(f"{name}: {progress.matched:,}{of}")

    try:
        yield on_progress
    except BaseException:
        status("")
        if last:
            how = f"continue with: {command(f'{name} --operation {last[0].op_id}')}"
            how = how if name != "release" else f"run it again: {output.again()}"
            output.note(f"interrupted: {last[0].changed:,} changed so far; {how}")
        raise
    status("")


def nothing_of(app: App, chosen: dict[str, Any]) -> str:
    """Why a selection may match nothing."""
    group = chosen["fingerprint"]
    if group is None:
        return "no message matches"
    found = app.ops.failures(limit=MAX_GROUPS)
    if any(one.fingerprint == group for one in found):
        return f"no message of group {group} matches: see `msgworker failures` for its dead ones"
    more = "" if found.complete else " of the newest failures"
    return f"there is no group {group}{more}; `msgworker failures` lists them"


def print_result(
    done: Repaired,
    *,
    word: str,
    verb: str,
    json: bool,
    named: int = 0,
    nothing: Callable[[], str] = lambda: "no message matches",
) -> int:
    """Print what was done, and why some were skipped; returns the exit code.

    word: "discarded". verb: "discard". named: how many were given by id. nothing: the text if
    nothing matches.
    """
    if json:
        output.print_json(as_json_of(done, word))
    elif done.matched == 0:
        pass  # the error is printed
    elif done.dry_run:
        click.echo(f"would {verb} {plural(done.changed, 'message')}{aside(done)}")
        for info in done.sample:
            click.echo(
                f"  {info.msg_id}  {info.word}  {output.safe(info.topic)}  "
                f"{output.safe(info.object_id)}"
            )
        if done.changed > len(done.sample) > 0:
            click.echo(f"  ... and {done.changed - len(done.sample):,} more")
    elif done.requested:
        click.echo(f"{word} {done.changed - done.requested:,}, requested {done.requested:,}")
        output.note("running ones end when their handlers do; `msgworker explain ID` says more")
    else:
        click.echo(f"{word} {done.changed:,}")
    _print_skips(done)
    if done.matched == 0:
        raise output.NothingMatched(nothing())
    return 0 if done.changed and done.changed >= named else output.NOTHING_MATCHED


def print_act(
    done: Repaired, json: bool, said: dict[str, Any], text: str, already: str = "", **more: Any
) -> None:
    """Print what was done to one thing, such as a topic. said, more: of it, in JSON. text: such as
    "paused orders"; already: that nothing was to be done."""
    if json:
        output.print_json({"operation": done.op_id, **said, "dry_run": done.dry_run, **more})
    elif not done:
        click.echo(already)
    else:
        click.echo(f"{'would have ' if done.dry_run else ''}{text}")


def _print_skips(done: Repaired) -> None:
    """Print how many were skipped and why, with one advice per reason, and the first of them."""
    same = Counter(skip.why for skip in done.skips)
    if done.skipped > EXAMPLES:
        why = ", ".join(f"{count:,} {reason}" for reason, count in done.why)
        output.note(f"{done.skipped:,} were skipped: {why}")
    for skip in done.skips[:EXAMPLES]:
        output.note(str(skip) if same[skip.why] == 1 else skip.fact)
    if done.skipped > EXAMPLES:
        output.note(f"... and {done.skipped - EXAMPLES:,} more")
    for reason, count in same.items():
        if count > 1 and reason in ADVICE:
            output.note(f"if {reason}: {ADVICE[reason]}")


def as_json_of(done: Repaired, word: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operation": done.op_id,
        "matched": done.matched,
        word: done.changed - done.requested,
        "skipped": done.skipped,
        "why": {str(reason): count for reason, count in done.why},
        "dry_run": done.dry_run,
    }
    if done.kind == "cancel":
        found["requested"] = done.requested
    if done.dry_run and done.kind == "rerun":
        found |= {"done_again": done.done_again, "stay_done": done.stay_done}
    if done.dry_run and done.kind == "acknowledge":
        found["holding"] = done.holding
    if done.dry_run:
        found["sample"] = [as_dict(info) for info in done.sample]
        found |= {"complete": done.complete, "up_to": done.up_to}
    return found


# --- `rerun`, `discard` and `cancel`.


def changes(kind: str, *more: Callable[[Any], Any]) -> Callable[[Any], click.Command]:
    """A command that writes on messages, by id or by filter; more: options of its own."""
    return options(click.command(kind), chooses, *more, long_work, writes, target, as_json, common)


def change(
    call: Call, kind: str, word: str, question: str, given: dict[str, Any], **more: Any
) -> int:
    """Count, ask for confirmation, change, print. word: "discarded". more: of the ops call."""
    chosen = choice_of(given)
    if kind != "rerun" and chosen["operation"] is None:
        call.need_reason()
    app = call.app
    write = getattr(app.ops, kind)
    done = carry_out(app, write, question=question, **more, **call.how, **chosen)
    named = len(chosen["ids"] or ())
    why = partial(nothing_of, app, chosen)
    return print_result(done, word=word, verb=kind, json=call.as_json, named=named, nothing=why)


@changes(
    "rerun",
    click.option("--dead", is_flag=True, help="All dead messages: --status dead."),
    unacknowledged,
    click.option("--force", is_flag=True, help="Also done ones, and ones that run out of order."),
    click.option(
        "--with-successors",
        is_flag=True,
        help="Also failed and dead ones behind them, in order; done ones stay done.",
    ),
    click.option(
        "--also-done", is_flag=True, help="With --with-successors: also done ones behind them."
    ),
)
def rerun(call: Call, dead: bool, **given: Any) -> int:
    """Try failed and dead messages again, with their tries set to 0.

    By id, or by filter: dead ones, if no --status is given. New and running messages are skipped.
    So is a message if a later one of its object has run: see --force and
    --with-successors. Done messages run again only with --force or --also-done: their handlers
    then find what they wrote before.
    """
    asks_for_dead(given, dead=dead)
    order = {name: given.pop(name) for name in ("force", "with_successors", "also_done")}
    return change(call, "rerun", "rerun", "Set {} to new?", given, **order)


@changes("discard")
def discard(call: Call, **given: Any) -> int:
    """Make messages dead, with the --reason as their last error; their object continues.

    By id, or by filter: unfinished ones, if no --status is given. Running ones are skipped:
    see `release`. A discarded message can be rerun by its id.
    """
    return change(call, "discard", "discarded", "Discard {}?", given)


@changes(
    "acknowledge",
    click.option("--dead", is_flag=True, help="All dead messages: --status dead."),
    unacknowledged,
)
def acknowledge(call: Call, dead: bool, **given: Any) -> int:
    """Say that dead messages are known, with a --reason: they stay dead, and call for help no more.

    By id, or by filter. They leave failures, the alerts and the numbers of the dashboard, as
    discarded and cancelled ones do. One that is rerun and dies again is not acknowledged. What they
    hold up, an object or a job, stays so until they are rerun or discarded.
    """
    asks_for_dead(given, dead=dead)
    return change(call, "acknowledge", "acknowledged", "Acknowledge {}?", given)


@changes("cancel")
def cancel(call: Call, **given: Any) -> int:
    """Cancel messages: dead, with the --reason as their last error; their object continues.

    By id, or by filter: new, failed and running ones, if no --status is given. For a running one a
    request is recorded, which its instance sees within a heartbeat: its handler sees ctx.cancelled,
    and the message is dead when the handler raises or returns.
    """
    return change(call, "cancel", "cancelled", "Cancel {}?", given)
