"""`send`: insert one message; `edit`: correct one that waits or is dead."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from msgworker import App
from msgworker import payload as payloads
from msgworker.cli.options import Call, by_whom, on_table, writes
from msgworker.cli.output import NOTHING_MATCHED, Usage, note, print_json
from msgworker.cli.rerun import as_json_of, aside, ask
from msgworker.cli.show import print_changes
from msgworker.config import id_of
from msgworker.config.values import duration_or_instant, seconds
from msgworker.counted import plural
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.errors import DatabaseUnavailable, PayloadError, SchemaError
from msgworker.logs import logger
from msgworker.message import ON_DUPLICATE, UNIQUE, State

MAX_BYTES = 64_000_000
log = logger("msgworker.cli")


@click.command("send")
@click.argument("topic")
@click.option("--object-id", metavar="TEXT", help="The object of the message; none: no order.")
@click.option("--payload", metavar="JSON|@FILE|-", help="JSON, a file that has it, or - for stdin.")
@click.option("--delay", metavar="TIME", help="Not before this time has passed: 30, 30s, 5m.")
@click.option("--priority", type=int, metavar="N", help="0 to 32767; higher first; none: 0.")
@click.option("--unique-key", metavar="TEXT", help="Only one message holds a key at a time.")
@click.option(
    "--unique", type=click.Choice(UNIQUE), default="open", help="Until it has ended, or is purged."
)
@click.option(
    "--on-duplicate", type=click.Choice(ON_DUPLICATE), default="skip", help="If the key is taken."
)
@click.option("--job", type=int, metavar="ID", help="The job that it belongs to, which is open.")
@by_whom
@on_table
def send(call: Call, topic: str, payload: str | None, delay: str | None, **options: Any) -> None:
    """Send one message; print its id."""
    app = call.app
    value = None if payload is None else _decoded(payload)
    options["delay"] = None if delay is None else seconds("--delay", delay)
    if call.app_ref is not None and app.topics is not None and topic not in app.topics:
        log.warning("no handler here takes topic %s", topic)
    app.tables  # noqa: B018 - raises SchemaError before a transaction is open
    msg_id, op_id = sent(app, topic, value, call.how, options)
    if call.as_json:
        result = {"msg_id": msg_id, "topic": topic, "object_id": options["object_id"]}
        print_json(result | {"operation": op_id})
    else:
        click.echo(msg_id)


def sent(
    app: App, topic: str, value: Any, by: dict[str, Any], options: dict[str, Any]
) -> tuple[Any, int | None]:
    """The ids of the message and of its operation; None if the audit is not there, or is not this
    login's, as of a producer that has no rights but to send."""
    try:
        found = app.ops.send(topic, value, **by, **options)
        return found.msg_id, found.op_id
    except (SchemaError, DatabaseUnavailable) as error:
        why = error.__cause__ or error
        refused = isinstance(error, SchemaError) or trouble(why) is Trouble.REFUSED
        if any(by.values()) or not refused:
            raise
    with app.engine.begin() as conn:
        msg_id = app.send(conn, topic, value, **options)
    note("sent, but not in the audit: its tables are missing, or this login may not write there")
    return msg_id, None


def _decoded(given: str) -> Any:
    text, place = given, "--payload"
    if given == "-":
        text, place = _text(sys.stdin.buffer.read(MAX_BYTES + 1), "stdin"), "stdin"
    elif given.startswith("@"):
        place = given[1:]
        text = _text(_bytes_of(place), place)
    if not text.strip():
        raise Usage(f"{place} is empty; leave --payload out for a message without one")
    try:
        return payloads.decode_exactly(text)
    except PayloadError as error:
        hint = " (quote the JSON for the shell, or write @file)" if place == "--payload" else ""
        raise PayloadError(f"{place}: {error}{hint}") from None


def _bytes_of(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Usage(f"{name} cannot be read: {error.strerror or error}") from None


def _text(raw: bytes, place: str) -> str:
    if len(raw) > MAX_BYTES:
        raise Usage(f"{place} is longer than {MAX_BYTES:,} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Usage(f"{place} is not UTF-8: {error.reason} at byte {error.start}") from None


# --- `edit`: what it would change, then the change.


@click.command("edit")
@click.argument("msg_id", metavar="ID")
@click.option("--topic", metavar="TEXT", help="Its new topic.")
@click.option("--payload", metavar="JSON|@FILE|-", help="Its new payload, as of send.")
@click.option(
    "--available-at", metavar="TIME|now", help="Not before: an instant, or 5m from now; or at once."
)
@click.option("--priority", type=int, metavar="N", help="Its new priority.")
@click.option("--seen", metavar="HEX", help="Only if it is as a dry run has seen it.")
@click.option("--rerun", "again", is_flag=True, help="A dead one: rerun it then.")
@click.option("--force", is_flag=True, help="With --rerun: also out of order, as of rerun.")
@click.option("--with-successors", is_flag=True, help="With --rerun: as of rerun.")
@writes
@on_table
def edit(
    call: Call,
    msg_id: str,
    topic: str | None,
    payload: str | None,
    available_at: str | None,
    priority: int | None,
    seen: str | None,
    again: bool,
    **order: Any,
) -> int:
    """Correct a message that waits or is dead; it keeps its id and its place.

    Prints what changes. It is refused if the message runs, is done, or has changed since it was
    read. A dead message stays dead until it is rerun. A --reason is required, for the audit.
    """
    number = id_of(msg_id)
    call.need_reason()
    how = {name: call.how[name] for name in ("actor", "reason")}
    dry_run = call.how["dry_run"]
    if not again and any(order.values()):
        flag = "force" if order["force"] else "with-successors"
        raise Usage(f"--{flag} is for --rerun; give that too")
    wanted: dict[str, Any] = {"topic": topic, "priority": priority}
    if payload is not None:
        wanted["payload"] = _decoded(payload)
    if available_at is not None:
        wanted["available_at"] = _instant(available_at)
    if payload is None and available_at is None and topic is None and priority is None:
        raise Usage("give what to edit: --topic, --payload, --available-at or --priority")
    app = call.app
    done = app.ops.edit(number, **wanted, seen=seen, dry_run=True)
    state = done.sample[0].status if done else None
    if again and state not in (None, State.DEAD):
        raise Usage(f"--rerun is for a dead message, and {number} is {state}: it has yet to run")
    if topic is not None and done:
        works = [one for one in app.ops.instances() if one.works]
        if works and not any(one.handles(topic) for one in works):
            note(f"no live instance has a handler for topic {topic}")
    if not call.as_json:
        print_changes(done.changes)
    rerun = app.ops.rerun(number, **order, dry_run=True) if again and done else None
    if not dry_run and done:
        if rerun is not None:
            ask(app, rerun, "Edit it, and set {} to new?", yes=call.how["yes"])
        done = app.ops.edit(number, **wanted, seen=done.seen, **how)
        rerun = app.ops.rerun(number, **order, **how) if again and done else None
    if call.as_json:
        found = as_json_of(done, "edited")
        found.pop("sample", None)
        found |= {"changes": [asdict(one) for one in done.changes], "seen": done.seen}
        print_json(found | ({} if rerun is None else {"rerun": as_json_of(rerun, "rerun")}))
    elif dry_run and done:
        click.echo(f"would edit message {number}; --seen {done.seen} edits it only as it is now")
        if rerun is not None:
            click.echo(f"would rerun {plural(int(rerun), 'message')}{aside(rerun)}")
    elif done:
        click.echo(f"edited message {number}{'' if rerun is None else f', rerun {int(rerun)}'}")
    for skip in (*done.skips, *(() if rerun is None else rerun.skips)):
        note(str(skip).replace("--force (force=True)", f"`msgworker rerun {number} --force`"))
    if state is State.DEAD and done and not rerun:
        note(f"it {'would stay' if dry_run else 'is still'} dead: `msgworker rerun {number}`")
    return 0 if done and (rerun is None or rerun) else NOTHING_MATCHED


def _instant(text: str) -> datetime | None:
    """--available-at; raises ConfigError."""
    if text == "now":
        return None
    found = duration_or_instant("--available-at", text, also="; or now")
    return found if isinstance(found, datetime) else datetime.now(UTC) + timedelta(seconds=found)
