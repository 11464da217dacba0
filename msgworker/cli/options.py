"""Options that several commands share, and the App that they lead to."""

from __future__ import annotations

import functools
import importlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

import click
import sqlalchemy as sa

from msgworker import App
from msgworker.cli import logs
from msgworker.cli.group import METAVAR, Invocation, debug_option, is_reference
from msgworker.cli.output import Usage, visible
from msgworker.commands import command
from msgworker.config import SETTINGS, Configuration, flag_of, load
from msgworker.db import errors
from msgworker.db.errors import MASK, secrets_of
from msgworker.db.servers import DatabaseFile
from msgworker.errors import MsgworkerError, SchemaError
from msgworker.instance.running.traceback import library_of
from msgworker.message import State

# --- What every command gets beside its own options.

WITHOUT_A_FILE = ("init-db", "ddl", "config")
"""Commands that make a missing file of SQLite, or connect to nothing: a connection makes it."""
FLAGS = ("url", "table", "where", "on_dead", "max_tries")
TARGET = (*FLAGS, "locks")
"""Settings that say what a command acts on: a command that it proposes has them too."""
CONFIG_FILE = "config_file"
NOTED = (*TARGET, CONFIG_FILE)
HOW = ("actor", "reason", "dry_run", "yes")


class Call:
    """One call of a command: the options that several commands have, and what they lead to.

    as_json: --json. app_ref: --app. file: --config. chosen: settings, None = not given. how: of a
    write, those of HOW that the command has. own: all other options.
    """

    log_level = "warning"
    """Where none is configured; may be set until `conf` is asked for."""

    def __init__(self, ctx: click.Context, given: dict[str, Any]) -> None:
        self.ctx = ctx
        self.invocation = ctx.find_object(Invocation) or Invocation()
        self.as_json: bool = given.pop("as_json", False)
        self.app_ref: str | None = given.pop("app_ref", None)
        self.file: str | None = given.pop(CONFIG_FILE, None)
        self.how = {name: given.pop(name) for name in HOW if name in given}
        chosen = {name: given.pop(name) for name in list(given) if name in SETTINGS}
        self.chosen = {name: None if value == () else value for name, value in chosen.items()}
        self.own = given

    def note(self, name: str, value: str) -> None:
        """The commands that this call proposes have this option, too, or this variable."""
        _keep(self.invocation, name if name in NOTED else SETTINGS[name].variable, value)

    def note_origins(self) -> None:
        """The commands that it proposes are run in other shells, in another folder and without our
        variables: they have all that says which table, rows and locks are meant."""
        groups = ("locks",) if self.app_ref is not None else ("database", "table", "locks")
        for name, one in SETTINGS.items():
            origin, value = self.conf.origins[name], self.conf[name]
            if one.group not in groups:
                continue
            if origin == (self.file or "msgworker.toml"):
                self.note(CONFIG_FILE, os.path.abspath(origin))
                if name == "locks":
                    self.invocation.given[name] = ""  # which the file has, with its password
            elif origin.startswith(("environment", "pyproject.toml")):
                self.note(name, _as_text(name, value))
        url = self.app.engine.url
        path = DatabaseFile(self.app.engine).path if self.app_ref is None else ""
        if path and not str(url.database).startswith("file:"):
            self.note("url", url.set(database=path).render_as_string(hide_password=False))

    @functools.cached_property
    def conf(self) -> Configuration:
        """Its configuration; the first use starts the log."""
        conf = load(self.chosen, file=self.file)
        level = conf["log_level"] or self.log_level
        self.ctx.with_resource(logs.logging_to_stderr(level, conf["log_format"], self.invocation))
        return conf

    @functools.cached_property
    def app(self) -> App:
        """The App of --app, else one without handlers, of the configuration. Does not connect."""
        both = [name for name in FLAGS if self.chosen.get(name) is not None]
        if self.app_ref is not None and both:
            flag = both[0].replace("_", "-")
            raise Usage(f"--app brings its own {both[0]}; give --app or --{flag}")
        if self.app_ref is not None:
            conf, app = self.conf, self.imported
            app.add_configured(conf)
            return app
        self.invocation.secrets |= secrets_of(self.conf.url)  # before anything can fail
        return self._opened(App.from_config(self.conf))

    @functools.cached_property
    def imported(self) -> App:
        """The App that --app names, which is given; the current directory comes first on sys.path.

        Raises Usage if the module or the attribute is not there or is not an App.
        """
        ref = self.needed_ref
        if not is_reference(ref):
            raise Usage(f"an app looks like pkg.module:app, got {ref!r:.80}")
        module_name, _, attribute = ref.partition(":")
        module = _import(module_name, ref)
        apps = [name for name, value in vars(module).items() if isinstance(value, App)]
        if not hasattr(module, attribute):
            has = f"its Apps: {', '.join(apps)}" if apps else "it has no App"
            raise Usage(f"module {module_name} has no attribute {attribute!r}; {has}")
        app = getattr(module, attribute)
        if not isinstance(app, App):
            has = f"; its Apps: {', '.join(apps)}" if apps else ""
            raise Usage(f"{ref} is a {type(app).__name__}, but must be a msgworker App{has}")
        self.invocation.secrets |= secrets_of(app.engine.url)
        return self._opened(app)

    @property
    def needed_ref(self) -> str:
        """--app of a command that requires one; raises Usage."""
        if self.app_ref is None:
            raise Usage(f"name an App: {command(str(self.ctx.info_name))}")
        return self.app_ref

    def need_reason(self) -> None:
        """Raise Usage for a write without a reason, unless it is a dry run."""
        if not self.how["dry_run"] and not (self.how["reason"] or "").strip():
            raise Usage("--reason is required; it is kept in the audit")

    def _opened(self, app: App) -> App:
        self.invocation.engine = app.engine
        self.ctx.call_on_close(app.engine.dispose)
        path = DatabaseFile(app.engine).path
        missing = os.path.isdir(os.path.dirname(path)) and not os.path.exists(path)
        if missing and self.ctx.info_name not in WITHOUT_A_FILE:
            raise SchemaError(
                f"there is no database file {path}: correct the path, or run `msgworker init-db`, "
                "which makes it"
            )
        return app


def _import(name: str, ref: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Usage(
                f"there is no module {error.name!r} for {ref}; looked in {here} and in the "
                "installed packages"
            ) from error
        raise Usage(f"{name} cannot be imported: {error}{_place(error)}") from error
    except MsgworkerError as error:  # a handler or a setting is wrong; say where
        error.args = (f"{error}{_place(error)}",)
        raise
    except (Exception, SystemExit) as error:
        said = traceback.format_exception_only(error)[-1].strip()
        raise Usage(f"{name} cannot be imported: {said}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """The place of an error in the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if library_of(frame.filename) is None]
    if not theirs:
        return ""
    return f" ({os.path.basename(theirs[-1].filename)} line {theirs[-1].lineno})"


# --- Options that several commands share.
#
# Every option that is a setting is read as text and checked by `config.Setting`, so that a flag, a
# variable and a line in a file have the same meaning and the same errors.


def keep_given(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback of the options that are repeated in the commands that this call proposes."""
    if value is not None and isinstance(ctx.obj, Invocation):
        _keep(ctx.obj, str(param.name), value)
    return value


def _keep(invocation: Invocation, name: str, value: str) -> None:
    invocation.given[name] = visible(shlex.quote(_masked(name, value)))


def _as_text(name: str, value: Any) -> str:
    """The value of a setting as its option and its variable have it."""
    if name == "columns":
        return ",".join(f"{role}={column or ''}" for role, column in value.items())
    return json.dumps(value) if name == "where" else str(value)


def _masked(name: str, value: str) -> str:
    """The value of an option without passwords; one that was masked so is refused when it is
    read."""
    if name == "locks":
        from msgworker.coordination.centres import masked_centre

        return masked_centre(value)
    if name != "url":
        return value
    try:
        masked = errors.masked(sa.make_url(value))
    except (sa.exc.ArgumentError, ValueError):
        return MASK
    return masked if MASK in masked else value


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, shown in this order."""

    def decorate(fn: Any) -> Any:
        for decorator in reversed(decorators):
            fn = decorator(fn)
        return fn

    return decorate


def flags(*names: str) -> Callable[[Any], Any]:
    """Options for settings; None if one is not given."""
    return options(*map(_flag, names))


def _flag(name: str) -> Callable[[Any], Any]:
    spec = SETTINGS[name]
    shown = {"seconds": "TIME", "whole": "N", "where": "JSON", "choice": "|".join(spec.choices)}
    return click.option(
        flag_of(name),
        name,
        multiple=spec.kind == "texts",
        callback=keep_given if name in TARGET else None,
        metavar=shown.get(spec.kind, "TEXT"),
        help=f"{spec.about[0].upper()}{spec.about[1:]}.",
    )


def limited(count: int) -> Callable[[Any], Any]:
    text = f"At most so many, {count} if not given."
    return click.option("--limit", metavar="N", type=int, default=count, help=text)


def common(fn: Callable[..., Any]) -> Any:
    """The options of every command: --config, the log, --debug. It is called with its `Call`, and
    with the options of its own."""

    @click.pass_context
    @functools.wraps(fn)
    def called(ctx: click.Context, /, **given: Any) -> Any:
        call = Call(ctx, given)
        return fn(call, **call.own)

    text = "Read this file instead of ./msgworker.toml."
    config = click.option("--config", CONFIG_FILE, metavar="FILE", callback=keep_given, help=text)
    return options(config, flags("log_level", "log_format"), debug_option)(called)


app_option = click.option(
    "--app",
    "app_ref",
    metavar=METAVAR,
    callback=keep_given,
    help="The App; may also be given as an argument.",
)
"""See also `group.app_as_option`."""
target = options(app_option, flags(*FLAGS))
"""Which message table."""
as_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
on_table = options(target, as_json, common)
"""Of every command on a message table."""
by_whom = options(
    click.option("--reason", metavar="TEXT", help="Why, for the audit."),
    click.option("--actor", metavar="TEXT", help="Who does it; default: user and host."),
)
audited = options(
    click.option("--dry-run", is_flag=True, help="Print what it would change; change nothing."),
    by_whom,
)
"""Of every write."""
writes = options(
    click.option("--yes", is_flag=True, help="Do not ask before more than one is changed."), audited
)
"""Of a write on messages."""
filters = options(
    click.option("--status", metavar="WORD", help=f"One of {', '.join(State)}."),
    click.option("--topic", metavar="TEXT", help="Only this topic."),
    click.option("--object-id", metavar="TEXT", help="Only this object."),
    click.option("--error", metavar="TEXT", help="The last error holds this text."),
    click.option(
        "--since", metavar="TIME", help="Created in the last 2h, or since 2026-11-21T08:00Z."
    ),
    click.option("--job", type=int, metavar="ID", help="Only this job."),
)
UNACKNOWLEDGED = "dead_unacknowledged"
unacknowledged = click.option(
    "--dead-unacknowledged",
    is_flag=True,
    help="Only dead ones that are not acknowledged, discarded or cancelled.",
)
of_group = click.option(
    "--group", "fingerprint", metavar="HEX", help="Only this group of failures."
)


def asks_for_dead(given: dict[str, Any], *, dead: bool = False) -> None:
    """Takes --dead-unacknowledged out of `given`, as filters; dead: --dead was given. Raises
    Usage."""
    only = given.pop(UNACKNOWLEDGED, False)
    if (dead or only) and given["status"] not in (None, "dead"):
        word = "--dead-unacknowledged" if only else "--dead"
        raise Usage(f"{word} means --status dead; give one of them")
    if dead or only:
        given["status"] = "dead"
    given["acknowledged"] = False if only else None


def id_in_range(number: int | None) -> int | None:
    if number is not None and not -(2**63) <= number < 2**63:
        raise Usage(f"an id has at most 64 bits, got {number!r:.60}")
    return number
