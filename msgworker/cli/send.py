"""`send`: insert one message."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from msgworker import payload as payloads
from msgworker.cli.options import on_table, open_app
from msgworker.cli.output import Usage, print_json
from msgworker.config import seconds
from msgworker.errors import PayloadError
from msgworker.logs import logger
from msgworker.message import ON_DUPLICATE, UNIQUE, OnDuplicate, Uniqueness

MAX_BYTES = 64_000_000
log = logger("msgworker.cli")


@click.command("send")
@click.argument("topic")
@click.option("--object-id", metavar="TEXT", help="The object of the message; none: no order.")
@click.option("--payload", metavar="JSON|@FILE|-", help="JSON, a file that has it, or - for stdin.")
@click.option("--delay", metavar="TIME", help="Not before this time has passed: 30, 30s, 5m.")
@click.option("--priority", type=int, metavar="N", help="0 to 32767; higher first; none: 0.")
@click.option("--unique-key", metavar="TEXT", help="Only one message holds a key at a time.")
@click.option("--unique", type=click.Choice(UNIQUE), help="Until it has ended, or is purged.")
@click.option("--on-duplicate", type=click.Choice(ON_DUPLICATE), help="If the key is taken.")
@click.option("--job", type=int, metavar="ID", help="The job that it belongs to, which is open.")
@on_table
def send(
    ctx: click.Context,
    /,
    topic: str,
    object_id: str | None,
    payload: str | None,
    delay: str | None,
    priority: int | None,
    unique_key: str | None,
    unique: Uniqueness | None,
    on_duplicate: OnDuplicate | None,
    job: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Send one message; print its id."""
    with_handlers = given["app_ref"] is not None
    app = open_app(ctx, given)
    value = None if payload is None else _decoded(payload)
    wait = None if delay is None else seconds("--delay", delay)
    if with_handlers and app.topics is not None and topic not in app.topics:
        log.warning("no handler here takes topic %s", topic)
    app.tables  # noqa: B018 - raises SchemaError before a transaction is open
    with app.engine.begin() as conn:
        msg_id = app.send(
            conn,
            topic,
            value,
            object_id=object_id,
            delay=wait,
            priority=priority,
            unique_key=unique_key,
            unique=unique or "open",
            on_duplicate=on_duplicate or "skip",
            job=job,
        )
    if as_json:
        print_json({"msg_id": msg_id, "topic": topic, "object_id": object_id})
    else:
        click.echo(msg_id)


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
        return payloads.decode(text)
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
