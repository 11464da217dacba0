"""The App as an argument: `msgworker show crm:app 42` is `msgworker show --app=crm:app 42`.

Rule: an id is a number and an App is `pkg.module:app`, so they cannot be confused. A topic
or the id of an instance may look like an App: then the App is the first of two arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from msgworker.cli.failing import Usage

METAVAR = "PKG.MODULE:APP"
_TEXTS = ("topic", "instance")  # arguments that may hold a colon


def is_reference(text: str) -> bool:
    """Whether a text looks like `pkg.module:app`."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), attribute])


def takes_app(command: click.Command) -> bool:
    """Whether a command has --app."""
    return any(param.name == "app_ref" for param in command.params)


def app_as_option(
    ctx: click.Context, name: str, command: click.Command, args: Sequence[str]
) -> list[str]:
    """The arguments of a command, with an App in the first place turned into --app.

    Raises Usage if two Apps are given.
    """
    options: list[click.Parameter] = [p for p in command.params if isinstance(p, click.Option)]
    bare = click.Command(name, params=options)
    inner = click.Context(bare, parent=ctx, info_name=name)

    def split(some: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        given, words, _ = bare.make_parser(inner).parse_args(list(some))
        return given, words

    given, words = split(args)
    if not words or not _is_app(command, given, words):
        return list(args)
    ref, other = words[0], given.get("app_ref")
    if other is not None and other != ref:
        raise Usage(f"two Apps are given, {ref} and --app {other}; give one")
    for place, text in enumerate(args):
        rest = [*args[:place], *args[place + 1 :]]
        if text == ref and split(rest) == (given, words[1:]):
            return [f"--app={ref}", *rest]
    raise AssertionError("unreachable")


def _is_app(command: click.Command, given: dict[str, Any], words: list[str]) -> bool:
    """Whether the first argument is the App."""
    own = [param for param in command.params if isinstance(param, click.Argument)]
    if not own:  # the command has no other argument
        return True
    if not is_reference(words[0]) or own[0].name not in _TEXTS:
        return is_reference(words[0])
    known = given.get("app_ref") is not None or given.get("url") is not None
    if own[0].name == "instance":  # of `release`: required unless --nobody is given
        return len(words) > (0 if given.get("nobody") else 1)
    return len(words) > (len(own) if known else sum(param.required for param in own))
