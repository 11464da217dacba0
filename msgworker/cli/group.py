"""The main group: which commands there are, and what every end of a command means.

A command is a line in COMMANDS: name -> module of this package, where the command is the attribute
of the same name (a dash becomes an underscore). Modules are imported only when they are needed.
"""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import sqlalchemy as sa

from msgworker import __version__
from msgworker.cli.failing import exit_code_of, sentence
from msgworker.cli.output import print_error, visible
from msgworker.cli.reference import METAVAR, app_as_option, takes_app
from msgworker.cli.streams import ClosedPipe, Streams, standard_streams
from msgworker.dialects import secrets_of, without
from msgworker.errors import ExitCode

COMMANDS = {
    "demo": "demo",
    "init-db": "schema",
    "ddl": "schema",
    "run": "work",
    "drain": "work",
    "send": "produce",
    "status": "look",
    "list": "look",
    "show": "look",
    "explain": "why",
    "failures": "why",
    "rerun": "repair",
    "discard": "repair",
    "release": "release",
    "purge": "purge",
    "pause": "pause",
    "resume": "pause",
    "audit": "audit",
    "lanes": "why",
    "instances": "why",
    "locks": "locking",
    "partitions": "scoping",
    "deal": "scoping",
    "doctor": "doctor",
    "config": "configured",
}
NEED_APP = ("run", "drain")
_URL = re.compile(r"[A-Za-z][\w+.-]*://.*", re.S)


@dataclass(slots=True)
class Call:
    """One call of the program: what error handling has to know. `ctx.obj` of every command.

    secrets: texts that must not be shown, found when a URL is read.
    engine: the database in use, once it is known.
    streams: where it writes to.
    """

    debug: bool = False
    secrets: set[str] = field(default_factory=set)
    engine: sa.Engine | None = None
    streams: Streams = field(default_factory=Streams)


class Main(click.Group):
    """Loads commands when asked for; turns every error into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = importlib.import_module(f"msgworker.cli.{module}")
        command: click.Command = getattr(found, attribute_of(cmd_name))
        if takes_app(command):
            needed = METAVAR if cmd_name in NEED_APP else f"[{METAVAR}]"
            command.options_metavar = f"[OPTIONS] {needed}"
        return command

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
            code = self._code(args, prog_name, Call(streams=streams), extra)
            if streams.output_is_lost():
                code = code or ExitCode.OUTPUT
        sys.exit(code)

    def _code(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        call: Call,
        extra: dict[str, Any],
    ) -> int:
        """Run it; returns the exit code of what it did."""
        for word in sys.argv[1:] if args is None else args:
            if found := _URL.search(word):  # also one in the wrong place, such as --table=URL
                call.secrets |= secrets_of(found[0])
        try:
            code = super().main(args, prog_name, standalone_mode=False, obj=call, **extra)
        except ClosedPipe:  # `| head` has seen enough
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


def _traceback(error: BaseException, call: Call) -> None:
    import traceback

    for line in "".join(traceback.format_exception(error)).splitlines():
        click.echo(visible(without(line, call.secrets)), err=True)


def set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Callback of every --debug."""
    if value and isinstance(ctx.obj, Call):
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
    """A relational message table as a reliable, ordered, fast work queue."""
