"""The main group: all commands, and the exit code of each end of a command."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from click.core import augment_usage_errors

from msgworker import __version__
from msgworker.cli.output import Usage, exit_code_of, ours, print_error, sentence, visible
from msgworker.cli.streams import ClosedPipe, Streams, standard_streams
from msgworker.commands import NEED_APP, Started, proposed, started
from msgworker.errors import ExitCode

if TYPE_CHECKING:
    import sqlalchemy as sa

# COMMANDS has a line per command: name -> module of this package, where the command is the
# attribute of the same name (a dash becomes an underscore, `list` is `list_`), and its summary in
# --help. A module is imported only when one of its commands is called; this module and its imports
# need no database.

COMMANDS = {
    "demo": ("web", "Real purchases on embedded SQLite, one process killed."),
    "init-db": ("schema", "Create missing tables and indexes."),
    "db": ("schema", "Upgrade tables of an earlier version, or show their version."),
    "ddl": ("schema", "Print the script that creates the schema, for a DBA."),
    "run": ("work", "Handle messages until a signal arrives."),
    "drain": ("work", "Handle messages until none is due now or soon."),
    "web": ("web", "Serve the dashboard and the JSON API."),
    "send": ("send", "Send one message; print its id."),
    "status": ("explain", "Count messages by state and topic."),
    "list": ("show", "List messages by filter, the oldest first."),
    "show": ("show", "Show a message: payload, errors, tries, and its audit."),
    "explain": ("explain", "Say why a message is not running, and what is before it."),
    "failures": ("explain", "Group dead and failing messages by error."),
    "rerun": ("rerun", "Try failed and dead messages again, with their tries set to 0."),
    "discard": ("rerun", "Make messages dead, with your reason; their objects continue."),
    "acknowledge": ("rerun", "Say that dead messages are known: they call for help no more."),
    "cancel": ("rerun", "Cancel messages: waiting ones now, running ones by a request."),
    "edit": ("send", "Correct a message that waits or is dead, in its place."),
    "release": ("upkeep", "Give back messages of a dead instance, or without an owner."),
    "purge": ("upkeep", "Delete done messages that finished long ago."),
    "pause": ("upkeep", "Stop handlers of a topic from starting; list paused topics."),
    "resume": ("upkeep", "Resume a paused topic."),
    "limits": ("explain", "List topics with max_running or rate, and who has the permits."),
    "schedules": ("upkeep", "List schedules; pause, resume, delete one, or send it now."),
    "jobs": ("jobs", "List jobs; show how far one is; seal one, or cancel it."),
    "audit": ("show", "List what operators did, newest first."),
    "lanes": ("explain", "List objects that wait, blocked ones first, with their heads."),
    "instances": ("explain", "List live and dead instances with their messages."),
    "locks": ("locks", "List locks: holder, token, since when and for how long."),
    "partitions": ("locks", "Show the current and the next owner of each shard."),
    "deal": ("locks", "Deal messages to instance types, a few at a time."),
    "doctor": ("schema", "Compare table, indexes, rights and server with what is needed."),
    "config": ("web", "List every setting with its value and origin."),
}
"""Summaries fit into a line of 80 characters beside the longest name."""
METAVAR = "PKG.MODULE:APP"
_URL = re.compile(r"[A-Za-z][\w+.-]*://.*", re.S)


def takes_app(command: click.Command) -> bool:
    return any(param.name == "app_ref" for param in command.params)


@dataclass(slots=True)
class Invocation(Started):
    """One call of the program. `ctx.obj` of every command.

    secrets: texts that must not be shown, collected when a URL is read.
    engine: the database in use, once it is known.
    streams: its stdout and stderr.
    """

    debug: bool = False
    secrets: set[str] = field(default_factory=set)
    engine: sa.Engine | None = None
    streams: Streams = field(default_factory=Streams)


# --- The App as an argument: `msgworker show crm:app 42` is `msgworker show --app=crm:app 42`.
#
# Rule: an id is a number and an App is `pkg.module:app`, so they cannot be confused. A topic, the
# id of an instance or the name of a schedule may look like an App: then the App is the first of
# two. Where the first argument says what is to be done (`jobs show`), the App may also follow it.

ACTION = "action"
_TEXTS = ("topic", "instance", "name")  # arguments that may hold a colon


def is_reference(text: str) -> bool:
    """Whether a text looks like `pkg.module:app`."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), attribute])


class _Word(str):
    """A word of the command line, which is known again among those that a parser gives back."""


def app_as_option(
    ctx: click.Context, name: str, command: click.Command, args: Sequence[str]
) -> list[str]:
    """The arguments of a command, with an App in the first place, or behind an action, turned into
    --app.

    Raises Usage if two Apps are given, and for an App in another place.
    """
    bare = click.Command(name, params=[p for p in command.params if isinstance(p, click.Option)])
    own_ctx = click.Context(bare, parent=ctx, info_name=name)
    marked = [_Word(arg) for arg in args]
    with augment_usage_errors(own_ctx):  # an error names the help of the command
        given, words, _ = bare.make_parser(own_ctx).parse_args(list(marked))
    own = [param for param in command.params if isinstance(param, click.Argument)]
    at = _place_of_app(own, given, words)
    if at is None:
        if given.get("app_ref") is None and (wrong := _misplaced(own, words)):
            raise Usage(f"an App stands before the other arguments: msgworker {name} {wrong} ...")
        return list(args)
    ref, other = words[at], given.get("app_ref")
    if other is not None and other != ref:
        raise Usage(f"two Apps are given, {ref} and --app {other}; give one")
    place = next(place for place, word in enumerate(marked) if word is ref)
    return [f"--app={ref}", *args[:place], *args[place + 1 :]]


def _place_of_app(
    own: Sequence[click.Argument], given: dict[str, Any], words: Sequence[str]
) -> int | None:
    """Which word is the App; None = none. own: the arguments of the command."""
    if not words:
        return None
    if not own:
        return 0
    at = int(own[0].name == ACTION and not is_reference(words[0]))
    own, words = own[at:], words[at:]
    if not words or not is_reference(words[0]):
        return None
    if not own or own[0].name not in _TEXTS:
        return at
    known = given.get("app_ref") is not None or given.get("url") is not None
    needed = sum(param.required for param in own)
    if own[0].name == "instance":  # of `release`: required unless --nobody is given
        needed = 0 if given.get("nobody") else 1
    elif own[0].name == "name" or known:  # the name of a schedule stands behind an action
        needed = len(own)
    return at if len(words) > needed else None


def _misplaced(own: Sequence[click.Argument], words: Sequence[str]) -> str | None:
    """What looks like an App where no argument is that may be it."""
    if any(param.name in _TEXTS for param in own):
        words = words[len(own) :]
    elif any(param.nargs < 0 and param.name != "ids" for param in own):
        return None
    return next((word for word in words if is_reference(word)), None)


# --- The group of all commands.


class Main(click.Group):
    """Loads commands when they are called; turns every error into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        found = importlib.import_module(f"msgworker.cli.{module}")
        attribute = "list_" if cmd_name == "list" else cmd_name.replace("-", "_")
        command: click.Command = getattr(found, attribute)
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
        self, args: Sequence[str] | None = None, prog_name: str | None = "msgworker", **extra: Any
    ) -> Any:
        extra.pop("standalone_mode", None)
        how = {"program": prog_name or "msgworker", "brought": extra.pop("brought", None)}
        given = list(sys.argv[1:] if args is None else args)
        with standard_streams() as streams, started(call := Invocation(streams=streams, **how)):
            code = self._code(given, call, extra)
            if streams.output_is_lost():
                code = code or ExitCode.OUTPUT
        sys.exit(code)

    def _code(self, args: list[str], call: Invocation, extra: dict[str, Any]) -> int:
        alone, args = not args, args or ["--help"]
        for word in args:
            if found := _URL.search(word):  # also one in the wrong place, such as --table=URL
                from msgworker.db.errors import secrets_of

                call.secrets |= secrets_of(found[0])
        try:
            code = super().main(args, call.program, standalone_mode=False, obj=call, **extra)
        except ClosedPipe:  # `| head` has closed it
            code = 0
        except (KeyboardInterrupt, click.Abort):
            print_error("interrupted")
            code = ExitCode.INTERRUPTED
        except Exception as error:
            if call.debug:
                _traceback(error, call)
            error = ours(error, call.engine)
            print_error(proposed(sentence(error, call.debug)), call.secrets)
            code = exit_code_of(error)
        return ExitCode.USAGE if alone and not code else code if isinstance(code, int) else 0


def _traceback(error: BaseException, call: Invocation) -> None:
    import traceback

    from msgworker.db.errors import without

    for line in "".join(traceback.format_exception(error)).splitlines():
        click.echo(visible(without(line, call.secrets)), err=True)


def set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.obj, Invocation):
        ctx.obj.debug = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=set_debug,
    help="Show the traceback of an error.",
)
"""Of every command, and before each."""


def exit_codes() -> str:
    lines = [
        textwrap.fill(f"{code:>3} {code.means}", 76, subsequent_indent=" " * 4) for code in ExitCode
    ]
    return "\n".join(["\b", "Exit codes:", *lines])


@click.group(
    "msgworker",
    cls=Main,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exit_codes(),
)
@click.version_option(__version__, package_name="msgworker", prog_name="msgworker")
@debug_option
def main() -> None:
    """A reliable, ordered, fast work queue on a relational message table."""
