"""Options that several commands share, and the App that they lead to."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import click
import sqlalchemy as sa

from msgworker import App, db
from msgworker.cli import logs
from msgworker.cli.group import (
    APP_EXAMPLE,
    METAVAR,
    Invocation,
    call_of,
    debug_option,
    is_reference,
)
from msgworker.cli.output import Usage
from msgworker.config import SETTINGS, Configuration, as_id, flag_of, load
from msgworker.errors import MsgworkerError, SchemaError
from msgworker.instance.running.traceback import library_of
from msgworker.message import State

# --- The App of a command: imported, or made from the configuration.

F = TypeVar("F", bound=Callable[..., Any])
WITHOUT_A_FILE = ("init-db", "ddl", "config")
"""Commands that make a missing file of SQLite, or connect to nothing: a connection makes it."""
FLAGS = ("url", "table", "where", "on_dead", "max_tries")


TARGET = (*FLAGS, "locks")
"""Settings that say what a command acts on: a command that it proposes has them too."""


def keep_given(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback of the options that are repeated in the commands that this call proposes."""
    if value is not None and isinstance(ctx.obj, Invocation):
        ctx.obj.given[str(param.name)] = _masked(str(param.name), value)
    return value


def _masked(name: str, value: str) -> str:
    """The value of an option without passwords; one that was masked so is refused when it is
    read."""
    if name == "locks":
        from msgworker.coordination.centres import masked_centre

        return masked_centre(value)
    if name != "url":
        return value
    try:
        masked = db.masked(sa.make_url(value))
    except (sa.exc.ArgumentError, ValueError):
        return db.MASK
    return masked if db.MASK in masked else value


def app_option(fn: F) -> F:
    """--app; and the App as the first argument, see `group.app_as_option`."""
    return click.option(
        "--app",
        "app_ref",
        metavar=METAVAR,
        callback=keep_given,
        help="The App; may also be given as an argument.",
    )(fn)


def target(fn: F) -> F:
    """The options of every command that works on a message table."""
    return app_option(flags(*FLAGS)(fn))


def open_app(ctx: click.Context, given: dict[str, Any]) -> App:
    """The App of this call: --app, or url and table of the configuration.

    Removes the options of `target` and `common` from `given`. Does not connect.
    """
    ref = app_ref_of(given)
    conf = configure(ctx, given)
    return app_from(conf, ctx) if ref is None else import_app(ref, ctx, conf)


def app_ref_of(given: dict[str, Any]) -> str | None:
    """Removes --app from `given`; raises Usage if a table is given too."""
    ref: str | None = given.pop("app_ref", None)
    both = [name for name in FLAGS if given.get(name) is not None]
    if ref is not None and both:
        raise Usage(f"--app brings its own {both[0]}; give --app or --{both[0].replace('_', '-')}")
    return ref


def needed_app(ctx: click.Context, ref: str | None) -> str:
    """The App of a command that requires one; raises Usage."""
    if ref is None:
        raise Usage(f"name an App: msgworker {ctx.info_name} {APP_EXAMPLE}")
    return ref


def app_from(conf: Configuration, ctx: click.Context) -> App:
    """An App without handlers, made from the configuration."""
    call_of(ctx).secrets |= db.secrets_of(conf.url)  # before anything can fail
    return _opened(ctx, App.from_config(conf))


def import_app(ref: str, ctx: click.Context, conf: Configuration | None = None) -> App:
    """The App that `pkg.module:app` names, with the schedules of the configuration; the current
    directory comes first on sys.path.

    Raises Usage if the module or the attribute is not there or is not an App.
    """
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
    call_of(ctx).secrets |= db.secrets_of(app.engine.url)
    if conf is not None:
        app.add_configured(conf)
    return _opened(ctx, app)


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


def _opened(ctx: click.Context, app: App) -> App:
    call_of(ctx).engine = app.engine
    ctx.call_on_close(app.engine.dispose)
    path = db.DatabaseFile(app.engine).path
    missing = os.path.isdir(os.path.dirname(path)) and not os.path.exists(path)
    if missing and ctx.info_name not in WITHOUT_A_FILE:
        raise SchemaError(
            f"there is no database file {path}: correct the path, or run `msgworker init-db`, "
            "which makes it"
        )
    return app


# --- Options that several commands share, and how they become the configuration.
#
# Every option that is a setting is read as text and checked by `config.Setting`, so that a flag, a
# variable and a line in a file have the same meaning and the same errors.

CONFIG_FILE = "config_file"


def setting(name: str, *, metavar: str | None = None, help: str | None = None) -> Callable[[F], F]:
    """An option for a setting; None if it is not given."""
    spec = SETTINGS[name]
    shown = {"seconds": "TIME", "whole": "N", "where": "JSON", "choice": "|".join(spec.choices)}
    text = help or spec.about
    return click.option(
        flag_of(name),
        name,
        multiple=spec.kind == "texts",
        callback=keep_given if name in TARGET else None,
        metavar=metavar or shown.get(spec.kind, "TEXT"),
        help=text[0].upper() + text[1:] + ("" if text.endswith(".") else "."),
    )


def flags(*names: str) -> Callable[[F], F]:
    """Several setting options, shown in this order."""

    def add(fn: F) -> F:
        for name in reversed(names):
            fn = setting(name)(fn)
        return fn

    return add


def common(fn: F) -> F:
    """The options of every command: --config, the log, --debug."""
    fn = flags("log_level", "log_format")(debug_option(fn))
    return click.option(
        "--config",
        CONFIG_FILE,
        metavar="FILE",
        callback=keep_given,
        help="Read this file instead of ./msgworker.toml.",
    )(fn)


def as_json(fn: F) -> F:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")(fn)


def by_whom(fn: F) -> F:
    """--actor and --reason."""
    fn = click.option("--actor", metavar="TEXT", help="Who does it; default: user and host.")(fn)
    return click.option("--reason", metavar="TEXT", help="Why, for the audit.")(fn)


def audited(fn: F) -> F:
    """The options of every write: those of `by_whom`, --dry-run."""
    text = "Print what it would change; change nothing."
    return click.option("--dry-run", is_flag=True, help=text)(by_whom(fn))


def writes(fn: F) -> F:
    """The options of a write on messages: those of `audited`, --yes."""
    text = "Do not ask before more than one is changed."
    return click.option("--yes", is_flag=True, help=text)(audited(fn))


def said(given: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of `by_whom`, `audited` or `writes` out of `given`."""
    names = ("actor", "reason", "dry_run", "yes")
    return {name: given.pop(name) for name in names if name in given}


def on_table(fn: Callable[..., Any]) -> Any:
    """What every command on a message table takes: its options, --json, and the context."""
    return target(as_json(common(click.pass_context(fn))))


def filters(fn: F) -> F:
    """Filters of messages."""
    for option in (
        click.option("--job", type=int, metavar="ID", help="Only this job."),
        click.option(
            "--since", metavar="TIME", help="Created in the last 2h, or since 2026-11-21T08:00Z."
        ),
        click.option("--error", metavar="TEXT", help="The last error holds this text."),
        click.option("--object-id", metavar="TEXT", help="Only this object."),
        click.option("--topic", metavar="TEXT", help="Only this topic."),
        click.option("--status", metavar="WORD", help=f"One of {', '.join(State)}."),
    ):
        fn = option(fn)
    return fn


UNACKNOWLEDGED = "dead_unacknowledged"


def unacknowledged(fn: F) -> F:
    """--dead-unacknowledged, of every command that takes dead messages."""
    text = "Only dead ones that are not acknowledged, discarded or cancelled."
    return click.option("--dead-unacknowledged", is_flag=True, help=text)(fn)


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


def of_group(fn: F) -> F:
    """--group, a group of `failures`."""
    text = "Only this group of failures."
    return click.option("--group", "fingerprint", metavar="HEX", help=text)(fn)


def limited(count: int) -> Callable[[F], F]:
    """--limit, of lists that show so many if it is not given."""
    text = f"At most so many, {count} if not given."
    return click.option("--limit", metavar="N", type=int, default=count, help=text)


def configure(
    ctx: click.Context, given: dict[str, Any], *, level: str = "warning"
) -> Configuration:
    """The configuration of this call; starts the log. `given`: all options of the command.

    Removes the settings from `given`, so that the command's own options are left.
    level: the default log level.
    """
    file = given.pop(CONFIG_FILE, None)
    chosen = {name: given.pop(name) for name in list(given) if name in SETTINGS}
    conf = load({name: v if v != () else None for name, v in chosen.items()}, file=file)
    call = call_of(ctx)
    ctx.with_resource(
        logs.logging_to_stderr(
            level=conf["log_level"] or level,
            form=conf["log_format"],
            secrets=call.secrets,
            tracebacks=call.debug,
            proposes=call.proposes,
        )
    )
    return conf


def message_id(text: str) -> int:
    """A message's id from the command line: a whole number of 64 bits; raises Usage."""
    if (number := as_id(text)) is None:
        raise Usage(f"an id is a whole number of at most 64 bits, got {text!r:.60}")
    return number


def id_in_range(number: int | None) -> int | None:
    if number is not None and not -(2**63) <= number < 2**63:
        raise Usage(f"an id has at most 64 bits, got {number!r:.60}")
    return number
