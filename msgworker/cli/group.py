"""The main group: all commands, and the exit code of each end of a command.

COMMANDS has a line per command: name -> module of this package, where the command is the attribute
of the same name (a dash becomes an underscore), and its summary in --help. A module is imported
only when one of its commands is called; this module and its imports need no database.
"""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from msgworker import __version__
from msgworker.cli.failing import exit_code_of, sentence
from msgworker.cli.output import print_error
from msgworker.cli.reference import METAVAR, app_as_option, takes_app
from msgworker.cli.streams import ClosedPipe, Streams, standard_streams
from msgworker.cli.words import visible
from msgworker.errors import ExitCode

if TYPE_CHECKING:
    import sqlalchemy as sa

COMMANDS = {
    "demo": ("demo", "Real purchases on embedded SQLite, one process killed."),
    "init-db": ("schema", "Create missing tables and indexes."),
    "db": ("database", "Upgrade the tables of an earlier version, or show their version."),
    "ddl": ("schema", "Print the script that creates the schema, for a DBA."),
    "run": ("work", "Handle messages until a signal arrives."),
    "drain": ("work", "Handle messages until none is due now or soon."),
    "web": ("web", "Serve the dashboard and the JSON API."),
    "send": ("produce", "Send one message; print its id."),
    "status": ("look", "Count messages by state and topic."),
    "list": ("look", "List messages by filter, the oldest first."),
    "show": ("show", "Show a message: payload, errors, tries, and its audit."),
    "explain": ("why", "Say why a message is not running, and what is before it."),
    "failures": ("why", "Group dead and failing messages by error."),
    "rerun": ("repair", "Try failed and dead messages again, with their tries set to 0."),
    "discard": ("repair", "Give up messages: they become dead, with your reason."),
    "cancel": ("repair", "Cancel messages: waiting ones now, running ones by a request."),
    "release": ("release", "Give back messages of a dead instance, or without an owner."),
    "purge": ("purge", "Delete done messages that finished long ago."),
    "pause": ("pause", "Stop handlers of a topic from starting; list paused topics."),
    "resume": ("pause", "Resume a paused topic."),
    "limits": ("limits", "List topics with max_running or rate, and who has the permits."),
    "schedules": ("schedules", "List schedules; pause, resume, delete one, or send it now."),
    "audit": ("audit", "List what operators did, newest first."),
    "lanes": ("why", "List objects that wait: the head of each, and how many behind."),
    "instances": ("why", "List live and dead instances with their messages."),
    "locks": ("locking", "List locks: holder, token, since when and for how long."),
    "partitions": ("scoping", "Show the current and the next owner of each shard."),
    "deal": ("scoping", "Deal messages to slices, a few at a time."),
    "doctor": ("doctor", "Compare table, indexes, rights and server with what is needed."),
    "config": ("configured", "List every setting with its value and origin."),
}
"""Summaries fit into a line of 80 characters beside the longest name."""
NEED_APP = ("run", "drain")
_URL = re.compile(r"[A-Za-z][\w+.-]*://.*", re.S)


@dataclass(slots=True)
class Invocation:
    """One call of the program, for error handling. `ctx.obj` of every command.

    secrets: texts that must not be shown, collected when a URL is read.
    engine: the database in use, once it is known.
    streams: its stdout and stderr.
    """

    debug: bool = False
    secrets: set[str] = field(default_factory=set)
    engine: sa.Engine | None = None
    streams: Streams = field(default_factory=Streams)


class Main(click.Group):
    """Loads commands when they are called; turns every error into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        found = importlib.import_module(f"msgworker.cli.{module}")
        command: click.Command = getattr(found, attribute_of(cmd_name))
        if takes_app(command):
            needed = METAVAR if cmd_name in NEED_APP else f"[{METAVAR}]"
            command.options_metavar = f"[OPTIONS] {needed}"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None and takes_app(command):
            rest = app_as_option(ctx, name, command, rest)
        return name, command, rest

    def main(  # type: ignore[override]  # click has overloads: it returns or does not
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "msgworker",
        **extra: Any,
    ) -> Any:
        extra.pop("standalone_mode", None)
        with standard_streams() as streams:
            code = self._code(args, prog_name, Invocation(streams=streams), extra)
            if streams.output_is_lost():
                code = code or ExitCode.OUTPUT
        sys.exit(code)

    def _code(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        call: Invocation,
        extra: dict[str, Any],
    ) -> int:
        """Run the command; returns its exit code."""
        for word in sys.argv[1:] if args is None else args:
            if found := _URL.search(word):  # also one in the wrong place, such as --table=URL
                from msgworker.dialects import secrets_of

                call.secrets |= secrets_of(found[0])
        try:
            code = super().main(args, prog_name, standalone_mode=False, obj=call, **extra)
        except ClosedPipe:  # `| head` has closed it
            code = 0
        except (KeyboardInterrupt, click.Abort):
            print_error("interrupted")
            code = ExitCode.INTERRUPTED
        except Exception as error:
            if call.debug:
                _traceback(error, call)
            print_error(sentence(error, call.engine, call.debug), call.secrets)
            code = exit_code_of(error, call.engine)
        return code if isinstance(code, int) else 0


def attribute_of(name: str) -> str:
    """The Python name of a command."""
    return name.replace("-", "_") if name not in ("list",) else f"{name}_"


def _traceback(error: BaseException, call: Invocation) -> None:
    import traceback

    from msgworker.dialects import without

    for line in "".join(traceback.format_exception(error)).splitlines():
        click.echo(visible(without(line, call.secrets)), err=True)


def set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Callback of every --debug."""
    if value and isinstance(ctx.obj, Invocation):
        ctx.obj.debug = True


def exit_codes() -> str:
    """The table of exit codes, for --help."""
    lines = [
        textwrap.fill(f"{code:>3} {code.means}", 76, subsequent_indent=" " * 4) for code in ExitCode
    ]
    return "\n".join(["\b", "Exit codes:", *lines])


@click.group(
    "msgworker",
    cls=Main,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exit_codes(),
)
@click.version_option(__version__, package_name="msgworker", prog_name="msgworker")
@click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=set_debug,
    help="Show the traceback of an error.",
)
def main() -> None:
    """A reliable, ordered, fast work queue on a relational message table."""
