"""Output for people and for programs: texts, tables, JSON, and errors with their exit codes."""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from msgworker.commands import command, proposed
from msgworker.errors import ConfigError, ExitCode, MsgworkerError, PayloadError
from msgworker.payload import as_json

if TYPE_CHECKING:
    import sqlalchemy as sa

# --- Texts and numbers for people: ages, instants, plurals, and text from outside.

UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def visible(text: str) -> str:
    r"""Text with all characters that control a terminal escaped: \x1b, \u202e, \n."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in UNSAFE else char
        for char in text
    )


def safe(value: Any) -> str:
    """A value as a cell or a line: "-" for None, control characters escaped."""
    return "-" if value is None else visible(str(value))


_STEPS = ((86_400 * 7, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def age(seconds: float | None) -> str:
    """An age in one unit: "6 minutes"; "-" if it is unknown."""
    if seconds is None:
        return "-"
    for size, unit in _STEPS:
        if seconds >= (2 * size if unit == "week" else size):
            count = int(seconds // size)
            return f"{count:,} {unit}{'s' if count != 1 else ''}"
    return "just now"


def ago(instant: datetime) -> str:
    """ "6 minutes ago", "just now"."""
    text = age(since(instant))
    return text if text == "just now" else f"{text} ago"


def since(instant: datetime | None) -> float | None:
    """Seconds from an instant until now on this host's clock; negative in the future."""
    return None if instant is None else (datetime.now(UTC) - instant).total_seconds()


def when(instant: datetime) -> str:
    """An instant for people: UTC to the second, and its distance from now."""
    away = since(instant) or 0.0
    text = f"in {age(-away)}" if away <= -1 else f"{age(away)} ago" if away >= 1 else "just now"
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({text})"


_BLANKS = re.compile(r"( +)")


def width_of(text: str) -> int:
    """The columns of a terminal that a text without control characters takes."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth

    return max(0, int(wcswidth(text)))


def head(text: str, width: int) -> str:
    """As much of a text as fits into so many columns."""
    if text.isascii():
        return text[:width]
    from wcwidth import wcwidth

    taken = 0
    for place, char in enumerate(text):
        taken += max(0, wcwidth(char))
        if taken > width:
            return text[:place]
    return text


def wrapped(text: str, width: int | None, *, first: str = "", rest: str = "") -> list[str]:
    """A text in lines of at most `width` columns, broken at blanks; None = in one line.

    first, rest: the prefix of the first line, and of the others. The indent of the text itself is
    repeated. A word is broken only if it is longer than a line. Colours do not count as width.
    """

    def size(part: str) -> int:
        return width_of(click.unstyle(part))

    if width is None or size(first) + size(text) <= width:
        return [(first + text).rstrip()]
    body = text.lstrip(" ")
    margin = text[: len(text) - len(body)]
    if len(first + margin) > width // 2:
        margin, rest = "", rest[: width // 2]
    rest = rest[: max(0, width - len(margin) - 2)]
    lines, line, blank = [], first + margin, ""
    started = False
    for part in _BLANKS.split(body):
        if not part or part.isspace():
            blank = part
            continue
        if started and size(line) + len(blank) + size(part) > width:
            lines.append(line)
            line, blank = rest + margin, ""
        line, blank = line + blank + part, ""
        started = True
        while size(line) > width:
            fits = max(head(line, width), line[: len(rest + margin) + 1], key=len)
            lines.append(fits)
            line = rest + margin + line[len(fits) :]
    return [one.rstrip() for one in [*lines, line]]


def again(**other: Any) -> str:
    """The command of this call to propose, with all its options, and others, such as after=5."""
    ctx = click.get_current_context()
    words = [str(ctx.info_name)]
    for param in ctx.command.params:
        name = str(param.name)
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        value = other.get(name, ctx.params.get(name) if given else None)
        if name not in ctx.obj.given and value is not None:
            words += [param.opts[0]] if isinstance(param, click.Option) else []
            words += [] if value is True else [shlex.quote(str(value))]
    return command(visible(" ".join(words)))


# --- Errors: one line of text and an exit code (`errors.ExitCode`).

USAGE = ExitCode.USAGE
NOTHING_MATCHED = ExitCode.NOTHING_MATCHED
OUR_FAULT = ExitCode.OUR_FAULT


class NothingMatched(click.ClickException):
    """Nothing matches the request; nothing was changed."""

    exit_code = NOTHING_MATCHED


class Declined(click.ClickException):
    """A confirmation was answered with no; nothing was changed."""

    exit_code = ExitCode.REFUSED


class Usage(click.ClickException):
    """The command line is wrong."""

    exit_code = USAGE


def exit_code_of(error: BaseException) -> int:
    """The exit code that an error ends the program with."""
    if isinstance(error, PayloadError):
        return USAGE
    if isinstance(error, click.ClickException | MsgworkerError):
        return error.exit_code
    return OUR_FAULT


def sentence(error: BaseException, debug: bool = False) -> str:
    """What, where and how to fix it, in one line."""
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "msgworker"
        return f"{error.format_message()} See `{path} --help`"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, MsgworkerError):
        return str(error)
    how = "" if debug else "; run it again with --debug for the traceback"
    return f"unexpected error: {type(error).__name__}: {error}{how}"


def ours(error: Exception, engine: sa.Engine | None) -> Exception:
    """An error of the database in our words."""
    if engine is None:
        return error
    from sqlalchemy.exc import DBAPIError, TimeoutError

    from msgworker.db.connections import refusal

    known = isinstance(error, DBAPIError | TimeoutError)
    return refusal(engine, error) if known else error


# --- Lines, tables and JSON.
#
# Rule: text from outside (object ids, topics, errors, payloads) never reaches a terminal raw. A
# control character in an object id could retitle the window, hide a line, or reverse text.


def print_error(text: str, secrets: Collection[str] = ()) -> None:
    """One line on stderr: `msgworker: what, where, how to fix it`; wrapped on a terminal."""
    if secrets or "://" in text or "=" in text:
        from msgworker.db.errors import without

        text = without(text, secrets)
    line = " ".join(text.split("\n"))
    _echo(f"msgworker: {visible(' '.join(line.split()))}")


def note(text: str) -> None:
    """A note on stderr, separate from the data; wrapped on a terminal."""
    _echo(visible(proposed(text)))


def _echo(text: str) -> None:
    width = terminal_width() if sys.stderr.isatty() else None
    click.echo("\n".join(wrapped(text, width)), err=True)


def print_json(value: Any) -> None:
    """JSON on stdout, two spaces deep; instants in ISO 8601, unsafe characters as escapes, what is
    no finite number as a text. Where stdout is not UTF-8 it is ASCII, which all read alike."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    others = codecs.lookup(encoding).name != "utf-8"
    text = as_json(value, _json, indent=2, ensure_ascii=others)
    click.echo("\n".join(_json_line(line) for line in text.split("\n")))


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value)


def _json_line(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line
    unsafe = {ord(c): json.dumps(c)[1:-1] for c in set(line) if unicodedata.category(c) in UNSAFE}
    return line.translate(unsafe | {0x7F: "\\u007f"})


def print_script(text: str) -> None:
    """SQL on stdout, to be run as it is. Raises ConfigError, before a line of it is printed, if
    stdout would not have it so: a name with an escape in it is another name."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    for char in set(text) - {"\n", "\t"}:
        if visible(char) != char or char.encode(encoding, "ignore") == b"":
            raise ConfigError(
                f"a statement holds {char!a}, which cannot be printed here as it is ({encoding}): "
                "set PYTHONIOENCODING=utf-8, or see --json"
            )
    if text:
        click.echo(text)


def print_text(text: str, *, first: str = "", rest: str = "") -> None:
    """Print an already safe text of ours on stdout: wrapped on a terminal, one line in a pipe."""
    _print_wrapped(proposed(text), first, rest)


def _print_wrapped(text: str, first: str, rest: str) -> None:
    width = terminal_width() if to_terminal() else None
    for line in wrapped(text, width, first=first, rest=rest):
        print_line(line)


def print_block(text: str) -> None:
    """A text of several lines, made safe and indented."""
    for line in text.split("\n"):
        _print_wrapped(visible(line), "  ", "    " if line[:1] == " " else "  ")


STYLES = {
    "new": "cyan",
    "waiting": "cyan",
    "processing": "blue",
    "done": "green",
    "failed": "yellow",
    "dead": "red",
    "unknown": "magenta",
    "live": "green",
    "live, overdue": "yellow",
    "taken over": "yellow",
    "no lease": "red",
}


GAP = 2
INDENT = "    "
NARROW = 110
"""A terminal with fewer columns shows long texts under their rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a listing. of: its cell, a field of a row or a function of it. share: 0 = never
    truncated; else its part of the remaining width."""

    title: str
    of: str | Callable[[Any], Any]
    align: Literal["left", "right"] = "left"
    share: int = 0
    least: int = 8

    def cell(self, row: Any) -> str:
        return safe(getattr(row, self.of) if isinstance(self.of, str) else self.of(row))


Below = Literal["", "text", "rest", "name"]
"""What a terminal that is too narrow shows below each row: nothing, so that columns are cut; the
last column, cut to a line; the last ones, whole; or the first, a name to be copied."""


def print_list(
    rows: Sequence[Any],
    columns: Sequence[Column],
    *,
    as_json: bool,
    nothing: str,
    as_dict: Callable[[Any], Any] = asdict,
    below: Below = "",
) -> None:
    """A whole list: as JSON, or as a table. nothing: the text if it is empty."""
    if as_json:
        print_json([as_dict(row) for row in rows])
    elif not rows:
        click.echo(nothing)
    else:
        print_table(columns, rows, below)


def print_table(columns: Sequence[Column], rows: Sequence[Any], below: Below = "") -> None:
    """Aligned columns on stdout: fitted to the width of a terminal, never cut in a pipe."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    natural, width, gaps = _natural(columns, cells), terminal_width(), len(columns) - 1
    fits = {
        "text": width >= NARROW,
        "rest": sum(natural) + GAP * gaps <= width,
        "name": sum(fitted(columns, natural, width - gaps)) <= width - gaps,
    }
    if not to_terminal() or fits.get(below, True):
        _print_cells(columns, cells)
        return
    kept = slice(1, None) if below == "name" else slice(gaps)
    while below == "rest" and kept.stop > 1 and sum(natural[kept]) + kept.stop - 1 > width:
        kept = slice(kept.stop - 1)
    if below == "text":
        lines = [_cut(f"{INDENT}{row[-1]}".rstrip(), width) for row in cells]
    else:
        lines = [_below(row[:1] if below == "name" else row[kept.stop :], width) for row in cells]
    _print_cells(columns[kept], [row[kept] for row in cells], lines)


def _below(cells: Sequence[str], width: int) -> str:
    """Cells in lines of their own."""
    lines = (wrapped(text, width, first=INDENT, rest=INDENT) for text in cells)
    return "\n".join(line for of_cell in lines for line in of_cell)


def _natural(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(len(column.title), *(width_of(row[i]) for row in cells), 0)
        for i, column in enumerate(columns)
    ]


def _print_cells(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], below: Sequence[str] = ()
) -> None:
    """below: lines to print under each row, already safe and short enough."""
    natural = _natural(columns, cells)
    room = terminal_width() if to_terminal() else None
    gap, widths = GAP, natural
    if room is not None:
        for gap in (GAP, 1):
            left = room - gap * (len(columns) - 1)
            widths = fitted(columns, natural, left)
            if sum(widths) <= left:
                break
    titles = [column.title for column in columns]
    print_line(_row(columns, titles, widths, gap=gap, room=room, bold=True))
    for number, row in enumerate(cells):
        print_line(_row(columns, row, widths, gap=gap, room=room))
        if below and below[number]:
            print_line(below[number])


def _cut(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    return head(text, width - 1) + "…"


def fitted(columns: Sequence[Column], natural: Sequence[int], room: int) -> list[int]:
    """The width of each column: short columns are complete, long ones share the rest."""
    widths = list(natural)
    cut = [i for i, column in enumerate(columns) if column.share]
    left = room - sum(width for i, width in enumerate(natural) if i not in cut)
    while cut:
        shares = sum(columns[i].share for i in cut)
        short = [i for i in cut if natural[i] <= max(left * columns[i].share // shares, 0)]
        if not short:
            for i in cut:
                fair = left * columns[i].share // shares
                widths[i] = min(natural[i], max(fair, columns[i].least))
            break
        left -= sum(natural[i] for i in short)
        cut = [i for i in cut if i not in short]
    return widths


def _row(
    columns: Sequence[Column],
    row: Sequence[str],
    widths: Sequence[int],
    *,
    gap: int,
    room: int | None,
    bold: bool = False,
) -> str:
    """One line, truncated at the end if it does not fit even with narrow columns."""
    parts: list[str] = []
    used = 0
    for column, text, wanted in zip(columns, row, widths, strict=True):
        width = wanted if room is None else min(wanted, room - used)
        if width <= 0:
            break
        text = _cut(text, width)
        shown = click.style(text, bold=True) if bold else click.style(text, fg=STYLES.get(text))
        pad = " " * (width - width_of(text))
        parts.append(pad + shown if column.align == "right" else shown + pad)
        used += width + gap
    return (" " * gap).join(parts).rstrip()


def print_line(text: str) -> None:
    """A line of data; coloured only on a terminal, and not if NO_COLOR is set."""
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


def to_terminal() -> bool:
    return sys.stdout.isatty()


def terminal_width() -> int:
    """Columns of the terminal, or of COLUMNS."""
    return shutil.get_terminal_size().columns


def styled(word: str) -> str:
    """A status word in its colour; click removes the colour if there is no terminal."""
    return click.style(word, fg=STYLES.get(word))


def confirm(question: str, *, yes: bool) -> None:
    """Ask on stderr before many rows are written; raises Usage without a terminal, Declined if the
    answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Usage(f"{question} There is no terminal to ask; add --yes, or try --dry-run")
    if not click.confirm(visible(question), err=True):
        raise Declined("nothing changed")
