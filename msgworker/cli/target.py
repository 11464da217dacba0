"""The App of a command: imported, or made from the configuration."""

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

from msgworker import App, MessageTable, dialects
from msgworker.cli.failing import Usage
from msgworker.cli.group import Invocation
from msgworker.cli.options import configure, flags
from msgworker.cli.reference import METAVAR, is_reference
from msgworker.config import SETTINGS, Configuration
from msgworker.errors import MsgworkerError
from msgworker.table import COLUMNS

F = TypeVar("F", bound=Callable[..., Any])
FLAGS = ("url", "table", "on_dead", "max_tries")


def app_option(fn: F) -> F:
    """--app; and the App as the first argument, see `reference`."""
    return click.option(
        "--app", "app_ref", metavar=METAVAR, help="The App; may also be given as an argument."
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
        raise Usage(f"name an App: msgworker {ctx.info_name} pkg.module:app")
    return ref


def app_from(conf: Configuration, ctx: click.Context) -> App:
    """An App without handlers, made from the configuration."""
    _keep_secrets(ctx, conf.url)
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
    _keep_secrets(ctx, app.engine.url)
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
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        frame
        for frame in frames
        if not frame.filename.startswith((ours, "<")) and frame.filename != importlib.__file__
    ]
    if not theirs:
        return ""
    return f" ({os.path.basename(theirs[-1].filename)} line {theirs[-1].lineno})"


def settings_of(app: App) -> dict[str, Any]:
    """The settings that an App was built with, by the names of the configuration."""
    table = app.table
    own = {name: getattr(app.settings, name) for name, s in SETTINGS.items() if s.group == "app"}
    rules = {
        name: getattr(table, name)
        for name, s in SETTINGS.items()
        if s.group == "table" and name not in ("table", "columns")
    }
    url = app.engine.url.render_as_string(hide_password=False)
    return {"url": url, "table": table.name, "columns": columns_of(table), **rules, **own}


def columns_of(table: MessageTable) -> dict[str, str | None]:
    """The columns whose names differ from the defaults of a table of this name."""
    names, plain = table.names(), MessageTable(table.name).names()
    return {role: names.get(role) for role in COLUMNS if names.get(role) != plain.get(role)}


def _opened(ctx: click.Context, app: App) -> App:
    call = ctx.find_object(Invocation)
    if call is not None:
        call.engine = app.engine
    ctx.call_on_close(app.engine.dispose)
    return app


def _keep_secrets(ctx: click.Context, url: str | sa.URL) -> None:
    """Register secrets before anything can fail."""
    call = ctx.find_object(Invocation)
    if call is not None:
        call.secrets |= dialects.secrets_of(url)
