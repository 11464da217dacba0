"""Parts of a message for `show`: tracebacks of its tries, items of its fan-outs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from msgworker.cli.output import Column, print_block, print_with_text
from msgworker.cli.words import ago
from msgworker.message import State
from msgworker.store.items import ItemInfo, Items
from msgworker.store.looking.info import MessageInfo
from msgworker.store.settling.tries import Try

VALUE_SHOWN = 50
END_LINES = 6
FRAME = '  File "'


def print_traces(tries: Sequence[Try], *, whole: bool) -> None:
    """The traceback of each try, the newest first; equal ones once. Older ones show only their end,
    unless `whole`."""
    same: dict[str, list[int]] = {}
    for one in reversed(tries):
        if one.traceback is not None:
            same.setdefault(one.traceback, []).append(one.number)
    for place, (text, numbers) in enumerate(same.items()):
        end = text if whole or place == 0 else _end(text)
        note = "" if end == text else " (its end; --all shows all of it)"
        click.echo(f"traceback of {_named(numbers)}{note}")
        print_block(end)


def _named(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"try {numbers[0]}"
    *others, last = sorted(numbers)
    return f"tries {', '.join(map(str, others))} and {last}"


def _end(text: str) -> str:
    """The last frame of a traceback, and the error."""
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if line.startswith(FRAME)]
    return "\n".join(lines[starts[-1] if starts else 0 :][:END_LINES])


ITEM_COLUMNS = (
    Column("ITEM", share=2, least=12),
    Column("STATE"),
    Column("TRIES", "right"),
    Column("ENDED", "right"),
    Column("VALUE OR ERROR", share=4, least=16),
)


def print_items(info: MessageInfo) -> None:
    """The counts, and the listed items."""
    items = info.items
    assert items is not None
    click.echo(f"items: {counted(items, running=info.status is State.PROCESSING)}")
    if not items.listed:
        return
    print_with_text(ITEM_COLUMNS, [_item_row(one) for one in items.listed], whole=True)
    more = items.done + items.failed - len(items.listed)
    if more > 0:
        click.echo(f"  and {more:,}{'' if items.complete else '+'} more")


def counted(items: Items, *, running: bool) -> str:
    """`812 done, 3 failed, 185 of 1,000 not started`."""
    plus = "" if items.complete else "+"
    parts = [f"{items.done:,}{plus} done"]
    if items.failed:
        parts.append(f"{items.failed:,}{plus} failed")
    if items.not_started:
        word = "not ended" if running else "not started"
        parts.append(f"{items.not_started:,} of {items.total:,} {word}")
    return ", ".join(parts)


def _item_row(one: ItemInfo) -> list[Any]:
    text = one.error if one.error is not None else one.value
    if text is not None and one.error is None and len(text) > VALUE_SHOWN:
        text = f"{text[:VALUE_SHOWN]}... ({len(text):,} characters)"
    ended = "-" if one.finished_at is None else ago(one.finished_at)
    return [one.key, one.state, one.tries, ended, text]


def items_dict(items: Items | None) -> dict[str, Any] | None:
    """The items for JSON."""
    return None if items is None else asdict(items) | {"not_started": items.not_started}
