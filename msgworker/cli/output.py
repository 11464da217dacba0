"""Text for people and for programs: safe, aligned, masked.

Rule: nothing that somebody else wrote (object ids, topics, errors, payloads) reaches a terminal
raw. A control character in an object id could retitle the window, hide a line, or turn text around.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 4000
_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str) -> str:
    r"""Text with everything that a terminal would act on written out: \x1b, \u202e, \n."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE:
        return char
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def safe(value: Any) -> str:
    """A value as a cell or a line: "-" for None, control characters written out."""
    return "-" if value is None else visible(str(value))


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """Text without the passwords that a URL held, wherever they stand as a word of their own."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text


def print_error(text: str, secrets: Iterable[str] = ()) -> None:
    """One line on stderr: `msgworker: what, where, how to mend`."""
    line = " ".join(scrubbed(text, secrets).split("\n"))
    click.echo(f"msgworker: {visible(' '.join(line.split()))}", err=True)


def note(text: str) -> None:
    """A line for people, beside the data."""
    click.echo(visible(text), err=True)


# ---------------------------------------------------------------- for programs


def print_json(value: Any) -> None:
    """JSON on stdout, two spaces deep; instants in ISO 8601, unsafe characters as escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_json)
    click.echo("\n".join(_json_line(line) for line in text.split("\n")))


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value)


def _json_line(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line
    return "".join(
        json.dumps(c)[1:-1] if unicodedata.category(c) in _UNSAFE and c != "\x7f" else _delete(c)
        for c in line
    )


def _delete(char: str) -> str:
    return "\\u007f" if char == "\x7f" else char


# ---------------------------------------------------------------- words for numbers

_STEPS = ((86_400 * 7, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def age(seconds: float | None) -> str:
    """How long ago, in one unit that people say: "6 minutes"; "-" if it is not known."""
    if seconds is None:
        return "-"
    for size, unit in _STEPS:
        if seconds >= (2 * size if unit == "week" else size):
            count = int(seconds // size)
            return f"{count:,} {unit}{'s' if count != 1 else ''}"
    return "just now"


def since(instant: datetime | None) -> float | None:
    """Seconds from an instant until now on this host's clock; negative in the future."""
    return None if instant is None else (datetime.now(UTC) - instant).total_seconds()


def when(instant: datetime) -> str:
    """An instant for people: UTC to the second, and how far away it is."""
    away = since(instant) or 0.0
    told = f"in {age(-away)}" if away <= -1 else f"{age(away)} ago" if away >= 1 else "just now"
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({told})"


def plural(count: int, thing: str) -> str:
    """ "1 message", "2,000 messages"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


# ---------------------------------------------------------------- tables

STYLES = {
    "new": "cyan",
    "processing": "blue",
    "done": "green",
    "failed": "yellow",
    "dead": "red",
    "unknown": "magenta",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a listing. share: 0 = never cut; else its part of the room that is left."""

    title: str
    align: Literal["left", "right"] = "left"
    share: int = 0
    least: int = 0


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> None:
    """Aligned columns on stdout; cut to the terminal's width, never cut in a pipe."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.show_edge = False
    table.header_style = "bold"
    cut = console.is_terminal
    for column in columns:
        table.add_column(
            column.title,
            justify=column.align,
            no_wrap=True,
            overflow="ellipsis",
            min_width=column.least or None,
            ratio=column.share or None if cut else None,
        )
    for row in rows:
        table.add_row(*(Text(safe(v), style=STYLES.get(str(v), "")) for v in row))
    if cut:
        console.print(table)
        return
    with console.capture() as text:
        console.print(table)
    for line in text.get().splitlines():
        click.echo(line.rstrip())


def stdout() -> Console:
    """Stdout as rich sees it: colours only on a terminal and without NO_COLOR."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:  # rich would end the program with 1
            raise BrokenPipeError

    console = Quiet(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def styled(word: str) -> str:
    """A status word in its colour; click takes the colour away where there is no terminal."""
    return click.style(word, fg=STYLES.get(word))


# ---------------------------------------------------------------- questions


def confirm(question: str, *, yes: bool) -> None:
    """Ask on stderr before many rows are written; raises Usage where nobody can answer."""
    from msgworker.cli.failing import Usage

    if yes:
        return
    if not sys.stdin.isatty():
        raise Usage(f"{question} Nobody can be asked here; add --yes, or look with --dry-run")
    click.confirm(visible(question), abort=True, err=True)
