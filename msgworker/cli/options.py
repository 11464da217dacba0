"""Options that several commands share, and how they become the configuration.

Every option that is a setting is read as text and checked by `config.Setting`, so that a flag, a
variable and a line in a file have the same meaning and the same errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from msgworker.cli import logs
from msgworker.cli.failing import Usage
from msgworker.cli.group import Invocation, set_debug
from msgworker.config import SETTINGS, Configuration, flag_of, load

F = TypeVar("F", bound=Callable[..., Any])
CONFIG_FILE = "config_file"


def setting(name: str, *, metavar: str | None = None, help: str | None = None) -> Callable[[F], F]:
    """An option for a setting; None if it is not given."""
    spec = SETTINGS[name]
    shown = {"seconds": "TIME", "whole": "N", "choice": "|".join(spec.choices)}
    text = help or spec.about
    return click.option(
        flag_of(name),
        name,
        multiple=spec.kind == "texts",
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
    fn = click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=set_debug,
        help="Show the traceback of an error.",
    )(fn)
    fn = flags("log_level", "log_format")(fn)
    return click.option(
        "--config",
        CONFIG_FILE,
        metavar="FILE",
        help="Read this file instead of ./msgworker.toml.",
    )(fn)


def as_json(fn: F) -> F:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")(fn)


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
    call: Invocation = ctx.find_object(Invocation) or Invocation()
    ctx.with_resource(
        logs.logging_to_stderr(
            level=conf["log_level"] or level,
            form=conf["log_format"],
            secrets=call.secrets,
            tracebacks=call.debug,
        )
    )
    return conf


def message_id(text: str) -> int:
    """A message's id from the command line: a whole number of 64 bits; raises Usage."""
    try:
        number = int(text) if len(text) <= 20 and text.isascii() else None
    except ValueError:
        number = None
    if number is None:
        raise Usage(f"an id is a whole number, got {text!r:.60}")
    id_in_range(number)
    return number


def id_in_range(number: int | None) -> int | None:
    if number is not None and not -(2**63) <= number < 2**63:
        raise Usage(f"an id has at most 64 bits, got {number!r:.60}")
    return number
